"""How each instruction spreads undefined bits (strict mode): one rule per instruction, run before it.

Arithmetic makes a result wholly undefined if any bit that it reads is. Moves, bitwise operations, shifts, selects and
permutes are followed bit by bit, so that a half or a lane that is filled and then masked away raises no alarm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeGuard

import numpy as np

from ..isa.parse import EXEC, NULL, VCC, Instruction, Operand
from ..isa.registers import Uses, results, uses
from .alu import VECTOR, Target
from .dpp import LaneSource, lane_source
from .matrix import is_matrix
from .operands import DTYPE
from .shadow import FULL, Shadow, bits_of
from .state import U32, Waves
from .undefined_bits import (
    BITWISE,
    BITWISE_HALVES,
    bits_read,
    bits_written,
    clears_half,
    halves_read,
    of_three,
    scalar_bitwise,
    sources_of,
)
from .undefined_bitwise import bitwise_halves_rule, bitwise_rule
from .undefined_carry import carry_rule, scalar_word, value_of
from .undefined_cdna import cdna_rule
from .undefined_fields import field_rule
from .undefined_indexed import INDEXED, indexed_rule
from .undefined_lanes import permlane_rule, permute_rule, read_lane_rule, write_lane_rule

Rule = Callable[[Waves], None]

#: name -> how many data operands are moved by the others
_ROUTED_DATA = {"v_perm_b32": 2, "v_alignbit_b32": 2, "v_alignbyte_b32": 2, "v_bfe_u32": 1, "v_bfe_i32": 1}
_ROUTED_BY = {"v_perm_b32": 0xFFFFFFFF, "v_alignbyte_b32": 3}  # bits of the others that matter: else 31, a bit's number
# In these 64-bit results the low word comes from low words alone: compilers use them for 32-bit values.
_UPWARD = re.compile(
    r"v_(mad_(co_|nc_)?[ui]64_[ui]32|lshlrev_b64|lshl_add_u64|(add_nc|sub_nc|mul)_u64)|s_(add_nc|sub_nc|mul)_u64"
)
_TWIN = re.compile(r"v_(mov_b16|mov_b64|swap_b|accvgpr)|ds_swizzle")
WRITES_SCC = re.compile(
    r"s_(cmp|bitcmp|barrier_signal_isfirst|(?!\w+_f(16|32)|\w+_nc_|add_pc)"
    r"(add|sub|and|or|xor|nand|nor|xnor|not|lsh|ashr|min|max|abs|bfe|bcnt|wqm|quadmask))"
)
_ONE_HALF = re.compile(r"v_(?!pk_)\w+16")
_READS_SCC = re.compile(r"s_(cselect|addc|subb|add_co_ci|sub_co_ci|cmov)")


def _keeps_carries(lanes: LaneSource | None, ins: Instruction) -> TypeGuard[LaneSource]:
    """Whether DPP leaves the carry of a lane that has no source as it was."""
    return lanes is not None and not lanes.zero_outside and results(ins) > 1


def rule(ins: Instruction, target: Target, step: Callable[[Waves], None], touched: Uses) -> Rule:
    """How an ALU, lane or matrix instruction spreads undefined bits; called before the instruction runs."""
    if ins.name == "v_permlane64_b32" and target.lanes == 32:
        return lambda g: None  # nothing runs
    if INDEXED.match(ins.name):
        return indexed_rule(ins, target)
    slow: Rule | None = None  #: built when undefined bits come by, which is rare
    reads_scc, writes_scc = bool(_READS_SCC.match(ins.name)), bool(WRITES_SCC.match(ins.name))
    scalar = ins.name.startswith("s_")
    part = bits_written(ins, target.gpu.major)
    lanes = lane_source(ins, target.lanes) if ins.name.startswith("v_") and ins.second is None else None
    keeps = (lanes is not None and lanes.partial) or ins.name.startswith(("v_permlane16_", "v_permlanex16_"))
    looks_at = touched.reads_v | (touched.writes_v if keeps else 0)
    reads_s = touched.reads_s | (touched.writes_s if _keeps_carries(lanes, ins) else 0)

    def follow(g: Waves) -> None:
        nonlocal slow
        shadow = g.shadow
        if (looks_at & shadow.dirty_v) or (reads_s & shadow.dirty_s):
            slow = slow or _slow_rule(ins, target, touched, step)
            slow(g)
        elif reads_scc and shadow.scc.any():
            for n in bits_of(touched.writes_s):
                shadow.put_scalar(n, np.where(shadow.scc, FULL, U32(0)))
        elif part != 0xFFFFFFFF:
            shadow.put(g, ins.operands[0].index, U32(0), part)
        else:
            shadow.clean(g, touched)
            if scalar and writes_scc:
                shadow.scc[...] = False

    return follow


def _slow_rule(ins: Instruction, target: Target, touched: Uses, step) -> Rule:
    name = ins.name
    if ins.second is not None:
        return _dual_rule(ins, target, step)
    if found := cdna_rule(ins):
        return found
    if name.startswith("v_") and lane_source(ins, target.lanes) is not None:  # the other rules know own lanes alone
        return _twin_rule(step, touched) if name == "v_mov_b32" else _default_rule(ins, target, touched)
    if name.startswith("v_bitop"):
        return _any_bitwise_rule(ins, target)
    if name in BITWISE:
        return bitwise_rule(ins, BITWISE[name])
    if name in BITWISE_HALVES:
        return bitwise_halves_rule(ins, BITWISE_HALVES[name], bits_written(ins, target.gpu.major))
    if found := field_rule(ins) or carry_rule(ins, target):
        return found
    if target.gpu.major == 9 and _ONE_HALF.fullmatch(name):  # clears the other half, which the rules of halves leave
        return _default_rule(ins, target, touched)
    if name in _ROUTED_DATA:
        return _routed_rule(ins)
    if name.startswith("v_cndmask_b"):
        return _select_rule(ins, target)
    if is_matrix(name):
        return _matrix_rule(touched)
    if name in ("v_readlane_b32", "v_readfirstlane_b32"):
        return read_lane_rule(ins)
    if name == "v_writelane_b32":
        return write_lane_rule(ins)
    if name.startswith("v_permlane"):
        return permlane_rule(ins, step)
    if _TWIN.match(name):
        return _twin_rule(step, touched)
    if name.startswith("ds_"):
        return permute_rule(ins, step)
    if _UPWARD.match(name):
        return _upward_rule(ins)
    if name.startswith(("s_", "v_s_")):
        return _scalar_rule(ins, target, touched)
    return _default_rule(ins, target, touched)


def _any_bitwise_rule(ins: Instruction, target: Target) -> Rule:
    """A function of two or three operands that the instruction gives by its table."""
    function = of_three(ins.number("bitop3"))
    if ins.name == "v_bitop3_b16":
        return bitwise_halves_rule(ins, function, bits_written(ins, target.gpu.major))
    return bitwise_rule(ins, function)


def _default_rule(ins: Instruction, target: Target, touched: Uses) -> Rule:
    """Any undefined bit that is read makes the result of the lane undefined."""
    op = VECTOR.get(ins.name)
    count, sources, part = results(ins), sources_of(ins), bits_written(ins, target.gpu.major)
    looks_at = bits_read(ins, sources)
    kinds = op.src if op is not None and op.build is None else ()
    masks = {k for k, kind in enumerate(kinds) if kind == "mask"}
    lanes = lane_source(ins, target.lanes)
    packed = halves_read(ins, sources) if re.match(r"v_pk_\w+16$", ins.name) and lanes is None else []
    implicit = Operand("s", VCC, target.lanes // 32) if touched.reads_s >> VCC & 1 else None
    depends = U32(0xFFFF) if clears_half(ins, target.gpu.major) else FULL

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        bad, low, high = np.zeros((g.count, 1), np.bool_), np.False_, np.False_
        for k, operand in enumerate(sources):
            if k in masks and operand.kind == "s":
                got = shadow.mask(g, operand.index)
            elif looks_at[k] != 0xFFFFFFFF and operand.count == 1:
                got = (shadow.of(operand) & U32(looks_at[k])) != 0
            else:
                got = shadow.any_of(operand)
            if packed:
                low = low | ((shadow.of(operand) & U32(packed[k][0])) != 0)
                high = high | ((shadow.of(operand) & U32(packed[k][1])) != 0)
            if k == 0 and lanes is not None and operand.kind == "v":
                got = np.broadcast_to(got, (g.count, g.lanes))[:, lanes.lanes] & lanes.readable(g)
            bad = bad | got
        if implicit is not None and not any(o.kind == "s" and o.index == VCC for o in sources):
            bad = bad | shadow.mask(g, VCC)
        if ins.name.startswith("v_cmpx"):
            shadow.put_mask(g, EXEC, bad & g.active())
            return
        for position in range(count):
            destination = ins.operands[position]
            if destination.kind == "s":
                if _keeps_carries(lanes, ins):
                    kept = shadow.mask(g, destination.index)
                    shadow.put_mask(g, destination.index, np.where(lanes.readable(g), bad, kept) & g.active())
                    continue
                shadow.put_mask(g, destination.index, bad & g.active())
                continue
            bits = np.where(bad, depends, U32(0))
            if packed:
                bits = np.where(low, U32(0xFFFF), U32(0)) | np.where(high, U32(0xFFFF0000), U32(0))
            for k in range(destination.count):
                if lanes is not None and lanes.partial:
                    bits = np.where(lanes.enabled(g), bits, shadow.V[destination.index + k])
                shadow.put(g, destination.index + k, bits, part)

    return follow


def _routed_rule(ins: Instruction) -> Rule:
    """Data bits moved to other places: the same function over the undefined bits, less its constants."""
    n, sources, op = ins.operands[0].index, ins.operands[1:], VECTOR[ins.name]
    data, routed_by = _ROUTED_DATA[ins.name], U32(_ROUTED_BY.get(ins.name, 31))
    select = ins.bits("op_sel", [0] * len(sources))[data:]
    by = [(o, U32(16 if up or o.half == "h" else 0)) for o, up in zip(sources[data:], select, strict=True)]

    def follow(g: Waves) -> None:
        control = [np.asarray(value_of(g, o), U32) >> low for o, low in by]
        zero = [np.zeros((1, 1), DTYPE[kind]) for kind in op.src[:data]]
        undefined = [np.asarray(g.shadow.of(o), U32).view(z.dtype) + z for o, z in zip(sources, zero, strict=False)]
        bits = (op.fn(*undefined, *control) & ~op.fn(*zero, *control)).view(U32)
        for o, low in by:
            bits = np.where((g.shadow.of(o) >> low & routed_by) != 0, FULL, bits)
        g.shadow.put(g, n, bits)

    return follow


def _select_rule(ins: Instruction, target: Target) -> Rule:
    n, no, yes = ins.operands[0].index, ins.operands[1], ins.operands[2]
    mask = ins.operands[3].index if len(ins.operands) > 3 else VCC
    up: list[bool | None] = [None, None]  #: of halves: which of each source
    part = bits_written(ins, target.gpu.major) if ins.name == "v_cndmask_b16" else 0xFFFFFFFF
    if ins.name == "v_cndmask_b16":
        up = [bool(high) or o.half == "h" for high, o in zip(ins.bits("op_sel", [0, 0]), (no, yes), strict=False)]
    shift = U32(16 if part == 0xFFFF0000 else 0)

    def follow(g: Waves) -> None:
        bits = np.where(g.mask(mask), g.shadow.of(yes, up[1]), g.shadow.of(no, up[0]))
        g.shadow.put(g, n, np.where(g.shadow.mask(g, mask), FULL, bits << shift), part)

    return follow


def _upward_rule(ins: Instruction) -> Rule:
    """Undefined bits of a 64-bit result reach from the words that are undefined upwards."""
    destination, count = ins.operands[0], results(ins)
    sources = ins.operands[count:]

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        low, high = np.False_, np.False_
        for o in sources:
            words = [shadow.of(Operand(o.kind, o.index + k)) != 0 for k in range(o.count)]
            low = low | words[0]
            high = high | words[-1]
        for k, bad in enumerate((low, low | high)):
            bits = np.where(bad, FULL, U32(0))
            if destination.kind == "v":
                shadow.put(g, destination.index + k, bits)
            else:
                shadow.put_scalar(destination.index + k, np.broadcast_to(bits, (g.count, 1))[:, 0])
        if count > 1 and ins.operands[1].kind == "s" and ins.operands[1].index != NULL:
            shadow.put_mask(g, ins.operands[1].index, (low | high) & g.active())

    return follow


def _matrix_rule(touched: Uses) -> Rule:
    """Row i of D is undefined where row i of A or C is, column j where B's is; taken per wave, which is coarser."""
    reads, scalars, writes = (list(bits_of(x)) for x in (touched.reads_v, touched.reads_s, touched.writes_v))

    def follow(g: Waves) -> None:
        bad = (g.shadow.V[reads] != 0).any(axis=(0, 2)) | (g.shadow.S[scalars] != 0).any(axis=0)
        for n in writes:
            g.shadow.V[n] = np.where(bad, FULL, U32(0))[:, None]
            g.shadow.note(n)

    return follow


def _twin_rule(step, touched: Uses) -> Rule:
    """An instruction that only moves whole bits between lanes and registers is run on the shadow itself."""

    def follow(g: Waves) -> None:
        twin = g.twin(g.shadow.V)
        step(twin)
        for n in bits_of(touched.writes_v):
            g.shadow.note(n)

    return follow


def _dual_rule(ins: Instruction, target: Target, step) -> Rule:
    assert ins.second is not None
    first = Instruction(ins.name, "", ins.operands, ins.modifiers, ins.line, ins.text, ins.source)
    x, y = (rule(half, target, step, uses(half, target.lanes)) for half in (first, ins.second))
    written = range(ins.operands[0].index, ins.operands[0].index + ins.operands[0].count)

    def follow(g: Waves) -> None:
        before = [g.shadow.V[n].copy() for n in written]
        x(g)
        after = [g.shadow.V[n].copy() for n in written]
        for n, row in zip(written, before, strict=True):
            g.shadow.V[n] = row
            g.shadow.dirty_v |= 1 << n
        y(g)
        for n, row in zip(written, after, strict=True):
            g.shadow.V[n] = row
            g.shadow.note(n)

    return follow


def _scalar_bitwise_rule(ins: Instruction, target: Target, function: Callable) -> Rule:
    """Bit by bit: a known 0 decides an AND and a known 1 an OR, as code that merges lane masks relies on."""
    destination, *sources = ins.operands
    saves, width = "exec_b" in ins.name, destination.count
    if saves:
        sources.append(Operand("s", EXEC, width))

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        words = [function(*[scalar_word(g, o, k) for o in sources]) for k in range(width)]
        words = [tuple(np.broadcast_to(part, (g.count,)).copy() for part in word) for word in words]
        if "save" in ins.name:
            for k in range(width):
                shadow.put_scalar(destination.index + k, shadow.S[EXEC + k].copy())
        for k, (_, bits) in enumerate(words):
            shadow.put_scalar((EXEC if saves else destination.index) + k, bits)
            if "_wrexec" in ins.name:
                shadow.put_scalar(destination.index + k, bits)
        if "mov" not in ins.name:  # SCC says whether any bit is set, which one that is known to be decides
            known = np.any([value & ~bits for value, bits in words], axis=0)
            shadow.scc[...] = np.any([bits for _, bits in words], axis=0) & ~known

    return follow


def _scalar_select_rule(ins: Instruction) -> Rule:
    """The source that SCC chooses, word by word; a conditional move chooses between its source and what was there."""
    destination, yes, *others = ins.operands
    no = others[0] if others else destination

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        words = []
        for k in range(destination.count):
            bits = np.where(g.scc, scalar_word(g, yes, k)[1], scalar_word(g, no, k)[1])
            words.append(np.where(shadow.scc, FULL, bits))
        for k, bits in enumerate(words):
            shadow.put_scalar(destination.index + k, bits)

    return follow


def _scalar_rule(ins: Instruction, target: Target, touched: Uses) -> Rule:
    if function := scalar_bitwise(ins.name):
        return _scalar_bitwise_rule(ins, target, function)
    if re.match(r"s_(cselect_b|cmov_b|cmovk_i)", ins.name):
        return _scalar_select_rule(ins)
    destinations, sources = ins.operands[: results(ins)], [n for n in bits_of(touched.reads_s) if n != NULL]

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        width = max([o.count for o in destinations] or [1])
        whole = np.where(shadow.scc, FULL, U32(0)) if _READS_SCC.match(ins.name) else U32(0)
        for n in sources:
            whole = whole | shadow.S[n]
        bits = [np.where(whole != 0, FULL, U32(0))] * width
        for o in destinations:
            for k in range(o.count):
                shadow.put_scalar(o.index + k, bits[min(k, width - 1)])
        if WRITES_SCC.match(ins.name):
            total = U32(0)
            for b in bits:
                total = total | b
            shadow.scc[...] = total != 0

    return follow
