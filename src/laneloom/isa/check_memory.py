"""Checks of memory accesses and resources: LDS conflicts, narrow scalar loads, spills, moves to and from accumulation
registers, and what limits occupancy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from .analysis import find_loops, hottest
from .check_code import Code, Step
from .finding import Finding, found
from .lane_values import Value, all_lanes, follow, values_at_start
from .lds_banks import access_cycles, banks_of
from .listing import Kind, memory_width
from .occupancy import Occupancy, occupancy
from .parse import Operand

_PAIR = re.compile(r"ds_(load|read|store|write)(_2addr_(stride64_)?b|2(st64)?_b)(32|64)")
_SCALAR = re.compile(r"s_(buffer_)?load_(?:b(32|64|128)|dword(x2|x4)?)$")


def check_lds(code: Code, counted: Mapping[int, tuple[int, int]] | None = None) -> Iterator[Finding]:
    """LDS accesses with bank conflicts, by the code alone where the lanes' addresses follow from it.

    counted: line -> (clocks without conflicts, clocks that conflicts add) of a launch in the emulator; where it has an
    instruction, it is believed.
    """
    for step, (clocks, extra) in lds_clocks(code):
        text = f"conflicts add {extra} clocks to the {clocks} of each wave (from the code)"
        if counted is not None and step.ins.line in counted:
            clocks, extra = counted[step.ins.line]
            text = f"conflicts add {extra} clocks to {clocks} (counted by the emulator)"
        if extra:
            yield found("lds-conflict", step.ins, text)


def lds_clocks(code: Code) -> Iterator[tuple[Step, tuple[int, int]]]:
    """Every LDS load and store with its clocks and those that conflicts add; zeros where the code does not tell."""
    for block, start in zip(code.blocks, values_at_start(code), strict=True):
        state = dict(start or {})
        for step in code.steps[block.first : block.last]:
            if step.kind in (Kind.LDS_LOAD, Kind.LDS_STORE):
                yield step, _clocks(step, state, code) if all_lanes(state) else (0, 0)
            follow(step, state)


def _clocks(step: Step, state: Mapping[int, Value], code: Code) -> tuple[int, int]:
    """Clocks without conflicts and those that conflicts add; zeros where the address does not follow from the code."""
    ins = step.ins
    address = ins.operands[1 if step.kind is Kind.LDS_LOAD else 0]
    known = state.get(address.index) if address.kind == "v" else None
    nbytes, _ = memory_width(ins.name)
    if known is None or not nbytes or (known.shifted and known.grain % 4):
        return 0, 0
    offsets = [ins.number("offset")]
    if match := _PAIR.match(ins.name):
        unit = nbytes * (64 if match[3] or match[4] else 1)
        offsets = [ins.number("offset0") * unit, ins.number("offset1") * unit]
    place = np.broadcast_to(known.lanes, (code.lanes,))
    how = {"banks": banks_of(code.gpu), "load": step.kind is Kind.LDS_LOAD}
    counts = [access_cycles((place + offset)[None, :], nbytes, **how) for offset in offsets]
    return sum(int(phases[0]) for phases, _ in counts), sum(int(extra[0]) for _, extra in counts)


def check_scalar_loads(code: Code) -> Iterator[Finding]:
    """Scalar loads of neighbouring words from one base, with nothing between that changes the base."""
    for block in code.blocks:
        run: list[tuple[Step, int, int]] = []  # step, offset, bytes
        for step in code.steps[block.first : block.last]:
            place = _scalar_place(step)
            if place is not None:
                base = step.ins.operands[1]
                same = run and (run[0][0].ins.operands[1] == base and run[0][0].ins.name[:6] == step.ins.name[:6])
                if run and not same:
                    yield from _wide(run, code.gpu.major)
                    run = []
                run.append((step, *place))
                if step.uses.writes_s & _registers(base):
                    yield from _wide(run, code.gpu.major)
                    run = []
            elif run and (
                step.kind in (Kind.BARRIER, Kind.BRANCH, Kind.ATOMIC, Kind.GLOBAL_STORE)
                or step.uses.writes_s & _registers(run[0][0].ins.operands[1])
                or step.kind is Kind.WAIT
            ):
                yield from _wide(run, code.gpu.major)
                run = []
        yield from _wide(run, code.gpu.major)


def _scalar_place(step: Step) -> tuple[int, int] | None:
    """Offset and bytes of a scalar load from a constant offset."""
    match = _SCALAR.match(step.ins.name)
    ops = step.ins.operands
    if not match or len(ops) < 3 or ops[2].kind not in ("const", "s"):
        return None
    if ops[2].kind == "s":
        return None if ops[2].index != 124 else (step.ins.number("offset"), _bytes(match))
    return int(ops[2].value) + step.ins.number("offset"), _bytes(match)


def _bytes(match: re.Match) -> int:
    return int(match[2]) // 8 if match[2] else 4 * int((match[3] or "x1")[1:])


def _registers(o: Operand) -> int:
    return ((1 << o.count) - 1) << o.index


def _wide(run: list[tuple[Step, int, int]], major: int) -> Iterator[Finding]:
    """Groups of a run that lie side by side, where fewer loads would bring as much."""
    widths = (64, 32, 16, 12, 8, 4) if major == 12 else (64, 32, 16, 8, 4)
    ordered = sorted(run, key=lambda r: r[1])
    at = 0
    while at < len(ordered):
        group = [ordered[at]]
        while at + len(group) < len(ordered) and ordered[at + len(group)][1] == group[-1][1] + group[-1][2]:
            group.append(ordered[at + len(group)])
        at += len(group)
        total = sum(nbytes for _, _, nbytes in group)
        fewest, left = [], total
        for width in widths:
            fewest += [width] * (left // width)
            left %= width
        if len(fewest) < len(group):
            first = min((s for s, _, _ in group), key=lambda s: s.ins.line)
            lines = ", ".join(str(s.ins.line) for s, _, _ in group)
            better = ", ".join(f"s_load_{_width_name(width, major)}" for width in fewest)
            text = f"lines {lines} load {total} bytes from {group[0][1]:#x} on: {better} would do"
            yield found("narrow-scalar-loads", first.ins, text)


def _width_name(nbytes: int, major: int) -> str:
    if major != 9:
        return f"b{8 * nbytes}"
    return "dword" if nbytes == 4 else f"dwordx{nbytes // 4}"


def check_spills(code: Code) -> Iterator[Finding]:
    """Scratch accesses, and what the metadata says of spilled registers."""
    m = code.metadata
    # Without spills it is an array that the code indexes, or what a function keeps for itself.
    whose = ", of a private array or a call: nothing is spilled" if m and not (m.vgpr_spills or m.sgpr_spills) else ""
    for step in code.steps:
        if step.kind is Kind.SCRATCH:
            nbytes, _ = memory_width(step.ins.name)
            verb = "loads" if "load" in step.ins.name else "stores"
            yield found("spill", step.ins, f"{verb} {nbytes} bytes per lane{whose}")
    if m is not None and (m.vgpr_spills or m.sgpr_spills) and code.steps:
        text = f"the metadata counts {m.vgpr_spills} spilled VGPRs and {m.sgpr_spills} SGPRs"
        if m.scratch_bytes:
            text += f", {m.scratch_bytes} bytes of scratch per lane"
        yield found("spill", code.steps[0].ins, text)


def check_accumulators(code: Code) -> Iterator[Finding]:
    """Moves between vector and accumulation registers in the hot loop: one finding for the loop."""
    moves = {s.ins.line: s for s in code.steps if s.ins.name.startswith(("v_accvgpr_read", "v_accvgpr_write"))}
    loop = hottest(find_loops(code.listing)) if moves else None
    if loop is None:
        return
    inside = [moves[i.line] for i in loop.instructions if i.line in moves]
    if inside:
        reads = sum(s.ins.name.startswith("v_accvgpr_read") for s in inside)
        vector = loop.count(Kind.VALU)
        text = (
            f"{reads} reads and {len(inside) - reads} writes of accumulation registers among the {vector} vector "
            f"instructions of the loop at line {loop.lines[0]}"
        )
        yield found("accumulator-moves", inside[0].ins, text)


def check_occupancy(code: Code, lds_bytes: int | None = None, num_warps: int | None = None) -> Iterator[Finding]:
    """What keeps a SIMD from holding more waves, and how much less of it would let one more in."""
    m, gpu = code.metadata, code.gpu
    if m is None or not code.steps:
        return
    lds = m.lds_bytes if lds_bytes is None else lds_bytes
    waves = num_warps or max(1, m.max_workgroup_size // m.wave)
    by_registers = gpu.waves_per_simd(m.vgprs, m.wave, m.sgprs)
    mode = m.workgroup_processor_mode

    def occupancy_of(registers: int) -> Occupancy:
        return occupancy(gpu, by_registers=registers, lds_bytes=lds, num_warps=waves, workgroup_processor_mode=mode)

    fits = occupancy_of(by_registers)
    if fits.limiter == "wave slots" or fits.waves_per_simd >= gpu.max_waves_per_simd:
        return
    at = f"{fits.waves_per_simd:g} of {gpu.max_waves_per_simd} waves per SIMD"
    if fits.limiter == "registers":
        rest = range(by_registers + 1, gpu.waves_of_sgprs(m.sgprs) + 1)
        more = next((n for n in rest if occupancy_of(n).workgroups > fits.workgroups), None)
        kinds = f"{m.vgprs} VGPRs (SGPRs never limit)"
        if gpu.major == 9:  # one file for both
            kinds = f"{m.vgprs} VGPRs ({m.agprs} of them accumulation registers)" if m.agprs else f"{m.vgprs} VGPRs"
        text = f"{at}: limited by {kinds}"
        if gpu.waves_per_simd(m.vgprs, m.wave) > by_registers:
            text = f"{at}: limited by {m.sgprs} SGPRs, of which a SIMD has 800"
        elif more is not None:
            step = gpu.vgpr_file // more // gpu.vgpr_granule * gpu.vgpr_granule // gpu.registers_each(m.wave)
            text += f"; {step} would let {occupancy_of(more).waves_per_simd:g} waves in"
    else:
        text = f"{at}: limited by {lds} bytes of LDS in each workgroup ({waves} waves); registers permit {by_registers}"
    yield found("occupancy", code.steps[0].ins, text)
