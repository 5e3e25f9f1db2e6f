"""Strict mode: what is checked before and after each instruction.

A `Guard` stands beside each instruction's closure. It holds waits against the operations under way, follows undefined
bits, and tells the tracked memories which access is whose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import HazardError
from ..isa.parse import EXEC, M0, NULL, TTMP, VCC, Instruction, Listing, Operand
from ..isa.registers import is_scalar_load, mask_of, raises, results, uses, waits
from .alu import Step, Target
from .global_access import Access, Buffer
from .matrix import decode, is_matrix
from .races import RaceFault, Touch, instruction_of, tag, wave_of
from .shadow import FULL, Found, Shadow, bits_of
from .state import U32, Waves
from .undefined import rule

Namer = Callable[[int], str]  #: a wave's number -> how messages name it


@dataclass(eq=False)
class UnderWay:
    """A memory operation that its counter still counts."""

    registers_v: int
    registers_s: int
    guard: Guard
    touches: list[Touch]
    memory: Any


class Guard:
    """The checks of one instruction."""

    def __init__(self, ins: Instruction, number: int, target: Target, step: Step):
        self.ins, self.number, self.target = ins, number, target
        self.uses = uses(ins, target.lanes)
        self.raises = raises(ins, target.gpu.major)
        self.waits = waits(ins)
        self.touched_v = self.uses.reads_v | self.uses.writes_v
        self.touched_s = self.uses.reads_s | self.uses.writes_s
        self.signals = ins.name in ("s_barrier", "s_barrier_signal")
        self.lds = ins.name.startswith("ds_") and not re.match(r"ds_(b?permute|swizzle|nop)", ins.name)
        memory = re.match(r"(global|flat|buffer|scratch)_(load|store|atomic)_", ins.name)
        self.memory = memory[2] if memory and memory[1] != "scratch" else ""
        self.scratch = bool(memory and memory[1] == "scratch")
        self.atomic = "atomic" in ins.name or (self.lds and not re.match(r"ds_(load|store)_", ins.name))
        self.scalar_load = is_scalar_load(ins)
        self.follow = self._rule(step)
        self.writes_exec = bool(self.uses.writes_s >> EXEC & 3)
        self.wmma = decode(ins, target) if is_matrix(ins.name) else None
        self.operands = sum(1 << n for n in self.wmma.operands()) if self.wmma else 0

    def _rule(self, step: Step) -> Callable[[Waves], None] | None:
        if self.scratch:
            return self._follow_scratch(step)
        if self.raises and not (self.ins.name.startswith("ds_") and not self.lds):
            return self._follow_lds(step) if self.lds else self._follow_memory()
        if not (self.uses.writes_v or self.uses.writes_s or self.ins.name.startswith("s_")):
            return lambda g: g.shadow.clean(g, self.uses)
        return rule(self.ins, self.target, step)

    # -- before and after ----------------------------------------------------------------------------------------------

    def before(self, g: Waves) -> None:
        """Everything that must hold when the instruction starts."""
        shadow: Shadow = g.shadow
        if self.waits:
            self._wait(shadow)
        if (shadow.busy_v & self.touched_v) or (shadow.busy_s & self.touched_s):
            self._check_pending(g)
        if self.signals:
            self._leave_epoch(shadow)
        if self.wmma is not None:
            self._check_matrix(g)
        if self.lds or self.memory:
            waves = g.ids % g.waves_per_group
            mine = None if self.atomic else tag(g.ids // g.waves_per_group, shadow.epoch, waves, self.number)
            self._memory(g).now = mine
        if self.follow is not None:
            self.follow(g)
        if self.writes_exec and (shadow.dirty_s >> EXEC) & 3:
            bad = shadow.mask(g, EXEC)
            if bad.any():
                wave, lane = (int(x[0]) for x in np.nonzero(bad))
                raise Found("undefined", "EXEC depends on a value that nobody wrote", int(g.ids[wave]), lane)

    def after(self, g: Waves) -> None:
        """Put the operation on its counters."""
        g.shadow.replicated &= ~self.uses.writes_v
        touches: list[Touch] = []
        memory = self._memory(g)
        if self.lds or self.memory:
            touches, memory.touches, memory.now = memory.touches, [], None
            if memory.doubtful is not None:
                for n in bits_of(self.uses.writes_v):
                    g.shadow.put(g, n, np.where(memory.doubtful, FULL, g.shadow.V[n]))
                memory.doubtful = None
        if self.raises:
            loads = results(self.ins) > 0
            entry = UnderWay(
                self.uses.writes_v if loads else 0, self.uses.writes_s if loads else 0, self, touches, memory
            )
            for counter in self.raises:
                g.shadow.pending.setdefault(counter, []).append([entry])
            g.shadow.busy_v |= entry.registers_v
            g.shadow.busy_s |= entry.registers_s

    def _memory(self, g: Waves) -> Any:
        """The tracked memory that the instruction works on."""
        return g.lds if self.lds else g.memory

    # -- waits ---------------------------------------------------------------------------------------------------------

    def _wait(self, shadow: Shadow) -> None:
        for counter, most in self.waits.items():
            entries = shadow.pending.get(counter)
            if not entries:
                continue
            if most and any(e.guard.scalar_load for group in entries for e in group):
                continue  # scalar loads return in any order: only a wait for zero says that one is done
            del entries[: max(len(entries) - most, 0)]
            if not entries:
                del shadow.pending[counter]
        shadow.count_pending()

    def _check_pending(self, g: Waves) -> None:
        for counter, entries in g.shadow.pending.items():
            for group in entries:
                for e in group:
                    if self._clashes(counter, e):
                        self._complain_wait(counter, e)

    def _clashes(self, counter: str, e: UnderWay) -> bool:
        if counter in self.raises and not self.scalar_load:
            # Operations of one counter return in order, so a load may follow another into the same register.
            return bool((e.registers_v & self.uses.reads_v) or (e.registers_s & self.uses.reads_s))
        hit = e.registers_v & self.touched_v
        if hit and not hit & (hit - 1):  # one register: a load into one half leaves the other free
            half = loaded_half(e.guard.ins)
            if half and touched_half(self.ins, hit.bit_length() - 1) == {"l": "h", "h": "l"}[half]:
                hit = 0
        return bool(hit or (e.registers_s & self.touched_s))

    def _complain_wait(self, counter: str, e: UnderWay) -> None:
        hit_v, hit_s = e.registers_v & self.touched_v, e.registers_s & self.touched_s
        name = f"v{next(bits_of(hit_v))}" if hit_v else f"s{next(bits_of(hit_s))}"
        verb = "reads" if (hit_v & self.uses.reads_v) or (hit_s & self.uses.reads_s) else "overwrites"
        text = f"{verb} {name} before a wait for {counter}: {describe(e.guard.ins)} may still be under way"
        raise Found("wait", text)

    def _leave_epoch(self, shadow: Shadow) -> None:
        for entries in shadow.pending.values():
            for group in entries:
                for e in group:
                    for touch in e.touches:
                        e.memory.tags.postpone(touch)

    # -- matrix instructions -------------------------------------------------------------------------------------------

    def _check_matrix(self, g: Waves) -> None:
        if g.exec is not None:
            wave, lane = (int(x[0]) for x in np.nonzero(~g.exec))
            raise Found("exec", "a matrix instruction runs with inactive lanes", int(g.ids[wave]), lane)
        assert self.wmma is not None
        if self.wmma.shape.gfx12:
            return
        wanted = self.operands & ~g.shadow.replicated
        if not wanted:
            return
        g.shadow.replicated |= wanted
        for n in bits_of(wanted):
            row = g.u[n].reshape(g.count, -1, 16)
            unequal = row[:, 1:] != row[:, :1]
            if unequal.any():
                differ = unequal.any(axis=1)
                wave, lane = (int(x[0]) for x in np.nonzero(differ))
                text = f"v{n} holds different data in lanes {lane} and {lane + 16}; gfx11 wants A and B replicated"
                raise Found("replication", text, int(g.ids[wave]), lane)

    # -- undefined bits of memory instructions -------------------------------------------------------------------------

    def _follow_memory(self) -> Callable[[Waves], None]:
        """Addresses and stored data must be defined; what is loaded is."""
        ins, count = self.ins, results(self.ins)
        data = self._data_operand()
        parts = self._stored_bits()
        addresses = [o for k, o in enumerate(ins.operands) if k >= count and o is not data and o.kind in ("v", "s")]
        buffer = Buffer(ins, *ins.operands[1:4]) if ins.name.startswith("buffer") else None
        half = self._loaded_part()

        def follow(g: Waves) -> None:
            shadow: Shadow = g.shadow
            if self.scalar_load:
                self._require_scalars(g, addresses)
            else:
                active = buffer(g)[1] if buffer is not None and data is not None else g.active()
                for o in addresses:
                    self._require(g, o, g.active(), "the address depends on a value that nobody wrote")
                if data is not None:
                    self._require(g, data, active, "stores bits that nobody wrote", parts)
            if half:
                n = ins.operands[0].index
                if shadow.dirty_v >> n & 1:
                    shadow.put(g, n, U32(0), half)
            else:
                shadow.clean(g, self.uses)

        return follow

    def _data_operand(self) -> Operand | None:
        ops = self.ins.operands
        if self.memory == "load" or self.scalar_load:
            return None
        if self.ins.name.startswith("buffer") or "_addtid_" in self.ins.name:
            return ops[0]
        return ops[results(self.ins) + 1]

    def _stored_bits(self) -> int:
        if self.memory != "store":
            return 0xFFFFFFFF
        access = Access(self.ins.name.split("_", 1)[1])
        low = (1 << 8 * min(access.nbytes, 4)) - 1
        data = self._data_operand()
        return low << 16 if access.half == "h" or (data is not None and data.half == "h") else low

    def _loaded_part(self) -> int:
        if self.memory != "load":
            return 0
        half = Access(self.ins.name.split("_", 1)[1]).half or self.ins.operands[0].half
        return {"h": 0xFFFF0000, "l": 0xFFFF}.get(half, 0)

    def _require(self, g: Waves, o: Operand, active: np.ndarray, text: str, parts: int = 0xFFFFFFFF) -> None:
        shadow: Shadow = g.shadow
        dirty = shadow.dirty_v if o.kind == "v" else shadow.dirty_s
        if not mask_of(o) & dirty:
            return
        for k in range(o.count):
            n = o.index + k
            if o.kind == "s" and n == NULL:
                continue
            row = shadow.V[n] if o.kind == "v" else shadow.S[n][:, None]
            bad = ((row & U32(parts)) != 0) & active
            if bad.any():
                wave, lane = (int(x[0]) for x in np.nonzero(bad))
                name = f"{o.kind}{n}"
                raise Found("undefined", f"{text} ({name})", int(g.ids[wave]), lane)

    def _require_scalars(self, g: Waves, operands: list[Operand]) -> None:
        for o in operands:
            for k in range(o.count):
                if o.index + k != NULL and g.shadow.S[o.index + k].any():
                    wave = int(np.flatnonzero(g.shadow.S[o.index + k])[0])
                    text = f"the address depends on a value that nobody wrote (s{o.index + k})"
                    raise Found("undefined", text, int(g.ids[wave]))

    def _follow_lds(self, step: Step) -> Callable[[Waves], None]:
        """The access itself, run on the undefined bits of LDS and registers."""
        count = results(self.ins)
        address: Operand | None = self.ins.operands[count] if len(self.ins.operands) > count else None
        base = address
        if re.search("addtid|append|consume", self.ins.name):  # the address is made of M0; gfx12 counts without it
            address, base = None, Operand("s", M0, count=int("addtid" in self.ins.name or self.target.gpu.major == 11))
        wrote = self.uses.writes_v
        halves = "_d16" in self.ins.name or bool(self.ins.operands[0].half)  # the other half stays as it was

        def follow(g: Waves) -> None:
            shadow: Shadow = g.shadow
            assert base is not None
            self._require(g, base, g.active(), "the LDS address depends on a value that nobody wrote")
            if self.atomic:
                for o in self.ins.operands[count + (address is not None) :]:
                    self._require(g, o, g.active(), "an atomic combines bits that nobody wrote")
                shadow.clean(g, self.uses)
                return
            if g.undefined_lds.clean and not halves and not self.uses.reads_v & shadow.dirty_v:
                shadow.clean(g, self.uses)
                return
            twin = g.twin(shadow.V)
            twin.lds = g.undefined_lds
            step(twin)
            for n in bits_of(wrote):
                shadow.note(n)

        return follow


    def _follow_scratch(self, step: Step) -> Callable[[Waves], None]:
        """The access itself, run on the undefined bits: compilers spill registers that are partly unused."""
        data = self.ins.operands[0 if "_load_" in self.ins.name else 1]
        addresses = [o for o in self.ins.operands if o is not data and o.kind in ("v", "s")]

        def follow(g: Waves) -> None:
            for o in addresses:
                self._require(g, o, g.active(), "the scratch address depends on a value that nobody wrote")
            if g.private is not None:
                twin = g.twin(g.shadow.V)
                twin.private = g.shadow.private
                step(twin)
            for n in bits_of(self.uses.writes_v):
                g.shadow.note(n)

        return follow


def describe(ins: Instruction) -> str:
    """An instruction as messages name it."""
    return f"line {ins.line}: {ins.text!r}" + (f" ({ins.source})" if ins.source else "")


def loaded_half(ins: Instruction) -> str:
    """ "l" or "h" where a load writes only that half of its register."""
    if "_d16" in ins.name:
        return "h" if "_d16_hi" in ins.name else "l"
    return ins.operands[0].half if ins.operands else ""


def touched_half(ins: Instruction, register: int) -> str:
    """ "l" or "h" where every operand that is this vector register is only that half of it; else empty."""
    found = set()
    data = ins.operands[0 if ins.name.startswith("buffer") else 1] if "store" in ins.name else None
    narrow = ins.name.endswith(("_b8", "_b16")) or "_d16_hi" in ins.name
    for o in ins.operands:
        if o.kind == "v" and o.index <= register < o.index + o.count:
            stored = ("h" if "_d16_hi" in ins.name else "l") if o is data and narrow else ""
            found.add(stored or o.half)
    return found.pop() if len(found) == 1 and ins.second is None else ""


def defined_at_entry(listing: Listing, major: int) -> int:
    """The scalar registers that hold something when a kernel starts, as a bit mask."""
    count = listing.directive("user_sgpr_count", 2)
    mask = (1 << count) - 1
    if major == 12:
        mask |= 1 << TTMP + 7 | 1 << TTMP + 8 | 1 << TTMP + 9
    else:
        for axis in "xyz":
            if listing.directive(f"system_sgpr_workgroup_id_{axis}", int(axis == "x")):
                mask |= 1 << count
                count += 1
    return mask | 3 << EXEC | 1 << NULL


def check_branch(g: Waves, condition: str) -> None:
    """A branch must not depend on undefined bits."""
    shadow: Shadow = g.shadow
    if condition.startswith("scc"):
        bad = shadow.scc
    elif condition.startswith("vcc"):
        bad = shadow.mask(g, VCC).any(axis=1)
    else:
        return
    if bad.any():
        wave = int(g.ids[int(np.flatnonzero(bad)[0])])
        raise Found("undefined", "the branch depends on a value that nobody wrote", wave)


def unit_bytes(listing: Listing, prefixes: tuple[str, ...]) -> int:
    """The grain of race detection: the narrowest access of the program, at most 4 bytes."""
    narrow = 4
    for ins in listing.instructions:
        if ins.name.startswith(prefixes) and (match := re.search(r"_[bui](8|16)(_|$)", ins.name)):
            narrow = min(narrow, int(match[1]) // 8)
    return narrow


def as_error(kernel: str, found: Found, ins: Instruction, name_wave: Namer) -> HazardError:
    """A hazard with kernel, instruction, source line, wave and lane."""
    place = "" if found.wave is None else f"; {name_wave(found.wave)}"
    place += "" if found.lane is None else f", lane {found.lane}"
    return HazardError(f"{kernel}: {found.text}{place}; {describe(ins)}", found.kind)


def race_error(kernel: str, fault: RaceFault, guards: Mapping[int, Guard], ins: Instruction, place: str) -> HazardError:
    """A race, with both parties."""
    wave = wave_of(fault.other)
    who = "several waves" if wave is None else f"wave {wave}"
    memory = "LDS byte" if guards[instruction_of(fault.mine)].lds else "address"
    did = "wrote" if fault.wrote else "read"
    other = describe(guards[instruction_of(fault.other)].ins)
    return HazardError(
        f"{kernel}: {memory} {fault.address:#x}, which {who} of the same workgroup {did} with no barrier between "
        f"({other}); {place}, lane {fault.lane}; {describe(ins)}",
        "race",
    )


def barrier_error(kernel: str, place: str, ins: Instruction) -> HazardError:
    """A barrier that some waves can never reach."""
    text = f"{kernel}: {place} waits at a barrier that other waves of its workgroup never reached; {describe(ins)}"
    return HazardError(text, "barrier")
