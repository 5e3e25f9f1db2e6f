"""Strict mode: what is checked before and after each instruction.

A `Guard` stands beside each instruction's closure. It holds waits against the operations under way, follows undefined
bits, and tells the tracked memories which access is whose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ..errors import HazardError
from ..gpu import Gpu
from ..isa.parse import EXEC, VCC, Instruction, Listing, Operand
from ..isa.registers import raises, results, returns_in_any_order, uses, waits
from .alu import VECTOR, Step, Target
from .between_groups import apart, only_atomics_order
from .flights import Flights, starts_copy
from .global_access import clears_other_half
from .group_clocks import OrderedMemory
from .matrix import decode, is_matrix
from .memory import Region
from .races import LATE, RaceFault, Touch, TrackedGlobalMemory, instruction_of, tag, wave_of
from .shadow import FULL, STORE_COUNTERS, Found, Shadow, bits_of
from .state import Waves
from .undefined import rule
from .undefined_bits import bits_read, bits_written, sources_of
from .undefined_memory import memory_rule

_HALVES = {"l": 0xFFFF, "h": 0xFFFF0000}
_HALVES_SINCE = 11  #: the generation from which on registers are loaded and written by halves
_MOST_STORES = 63  #: that can be under way: one more waits until the counter, of 6 bits, has room

Namer = Callable[[int], str]  #: a wave's number -> how messages name it


@dataclass(eq=False)
class UnderWay:
    """A memory operation that its counter still counts."""

    registers_v: int
    registers_s: int
    guard: Guard
    touches: list[tuple[Any, Touch]]  #: the memory, and where
    ids: np.ndarray | None = None  #: of a copy between memory and LDS: the waves of this group whose it is

    def of(self, ids: np.ndarray) -> UnderWay | None:
        """What concerns these waves. LLVM's waits count what other waves did, in code that was theirs alone, as
        its merge of paths does; those for copies are set by people, who know which wave copies."""
        if self.ids is None:
            return self
        mine = self.ids[np.isin(self.ids, ids)]
        return None if not len(mine) else self if len(mine) == len(self.ids) else replace(self, ids=mine)


@cache
def _access(name: str) -> tuple[bool, str, bool, bool, bool]:
    """Of an instruction: whether it touches LDS, its access to memory, whether it copies, touches both, is atomic."""
    lds = name.startswith("ds_") and not re.match(r"ds_(b?permute|swizzle|nop|gws)", name)
    memory = re.match(r"(global|flat|buffer|scratch)_(load|store|atomic)_", name)
    copies = starts_copy(name)
    return (
        lds, memory[2] if memory and memory[1] != "scratch" else "", copies,
        copies or bool(memory and memory[1] == "flat"),
        "atomic" in name or (lds and not re.match(r"ds_(load|store)_", name)),
    )  # fmt: skip


class Guard:
    """The checks of one instruction."""

    def __init__(self, ins: Instruction, number: int, target: Target, step: Step, is_tested: bool = False):
        """is_tested: a load from LDS or global memory on whose result the block's branch depends."""
        self.ins, self.number, self.target = ins, number, target
        self.uses = uses(ins, target.lanes)
        self.raises = raises(ins, target.gpu.major)
        self.waits = waits(ins, target.gpu.major)
        self.touched_v = self.uses.reads_v | self.uses.writes_v
        self.touched_s = self.uses.reads_s | self.uses.writes_s
        self.signals = ins.name in ("s_barrier", "s_barrier_signal")
        #: copies: between global memory and LDS; both: touches the two
        self.lds, self.memory, self.copies, self.both, self.atomic = _access(ins.name)
        self.is_tested, self.is_polled = is_tested and self.lds, is_tested and not self.lds
        self.any_order = returns_in_any_order(ins)
        self.follow = self._rule(step)
        self.writes_exec = bool(self.uses.writes_s >> EXEC & 3)
        self.matrix = is_matrix(ins.name)
        replicates = self.matrix and target.gpu.wmma_version == 1
        self.operands = sum(1 << n for n in decode(ins, target).operands()) if replicates else 0

    def _rule(self, step: Step) -> Callable[[Waves], None] | None:
        memory = self.raises and not self.ins.name.startswith(("s_sendmsg", "s_mem"))
        if memory and not (self.ins.name.startswith("ds_") and not self.lds):
            return memory_rule(self.ins, self.target, step)
        if not (self.uses.writes_v or self.uses.writes_s or self.ins.name.startswith("s_")):
            return lambda g: g.shadow.clean(g, self.uses)
        return rule(self.ins, self.target, step, self.uses)

    # -- before and after ----------------------------------------------------------------------------------------------

    def before(self, g: Waves) -> None:
        """Everything that must hold when the instruction starts."""
        shadow: Shadow = g.shadow
        if self.waits:
            self._wait(g)
        if (shadow.busy_v & self.touched_v) or (shadow.busy_s & self.touched_s):
            self._check_pending(g)
        if self.signals:
            self._leave_epoch(g)
        if self.matrix:
            self._check_matrix(g)
        if self.lds or self.memory or self.both:
            groups, waves = np.divmod(g.ids, g.waves_per_group)
            mine = None if self.atomic else tag(groups, shadow.epoch, waves, self.number)
            for memory in self._memories(g):
                memory.now, memory.groups, memory.is_polled = mine, groups, self.is_polled
            if g.lds.flights is not None:
                flights: Flights = g.lds.flights
                flights.starts_copy, flights.is_tested = self.copies, self.is_tested
                flights.ids, flights.epochs = g.ids, shadow.epoch
                if self.atomic and not self.copies and (self.lds or self.both):
                    flights.land()
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
        touches: list[tuple[Any, Touch]] = []
        for memory in self._memories(g):
            touches += [(memory, touch) for touch in memory.touches]
            memory.touches, memory.now = [], None
            if memory.doubtful is not None:
                for n in bits_of(self.uses.writes_v):
                    g.shadow.put(g, n, np.where(memory.doubtful, FULL, g.shadow.V[n]))
                memory.doubtful = None
        if self.raises:
            loads = results(self.ins) > 0
            ids = g.ids if self.copies else None
            entry = UnderWay(self.uses.writes_v if loads else 0, self.uses.writes_s if loads else 0, self, touches, ids)
            for memory, touch in touches if self.copies else ():
                if memory is g.lds:
                    g.lds.flights.begin(touch, self.raises[0], describe(self.ins))
            for counter in self.raises:
                entries = g.shadow.pending.setdefault(counter, [])
                entries.append([entry])
                if counter in STORE_COUNTERS and len(entries) > _MOST_STORES:
                    del entries[0]
            g.shadow.busy_v |= entry.registers_v
            g.shadow.busy_s |= entry.registers_s
        if g.lds.flights is not None and g.lds.flights.by_wave:
            if self.copies:
                g.lds.flights.settle_arrivals(self.raises[0])
            elif self.is_tested:
                self._forget_landed(g)
            if g.lds.flights.polled:
                g.lds.flights.land()

    def _memories(self, g: Waves) -> tuple[Any, ...]:
        """The tracked memories that the instruction works on."""
        if self.both:
            return (g.memory, g.lds)
        return (g.lds,) if self.lds else (g.memory,) if self.memory else ()

    # -- waits ---------------------------------------------------------------------------------------------------------

    def _wait(self, g: Waves) -> None:
        shadow: Shadow = g.shadow
        for counter, most in self.waits.items():
            entries = shadow.pending.get(counter)
            if not entries:
                continue
            if most and any(e.guard.any_order for group in entries for e in group):
                continue  # scalar loads return in any order: only a wait for zero says that one is done
            done = max(len(entries) - most, 0)
            copies = [e for group in entries[:done] for e in group if e.guard.copies]
            epoch = dict(zip(g.ids.tolist(), shadow.epoch.tolist(), strict=True)) if copies else {}
            for e in copies:
                for memory, touch in e.touches:
                    if memory.flights is not None:
                        memory.flights.end(touch, e.ids, epoch)
            if copies and g.lds.flights is not None:
                g.lds.flights.land()
            del entries[:done]
            if not entries:
                del shadow.pending[counter]
        shadow.count_pending()

    def _forget_landed(self, g: Waves) -> None:
        """Copies that the waves have seen arrive at a barrier in LDS are done, and so are those before them."""
        for counter in ("asynccnt", "tensorcnt"):
            entries = g.shadow.pending.get(counter, [])
            while entries and all(self._landed(g, e) for e in entries[0]):
                del entries[0]

    @staticmethod
    def _landed(g: Waves, e: UnderWay) -> bool:
        return e.ids is not None and all(g.lds.flights.landed(t, e.ids) for memory, t in e.touches if memory is g.lds)

    def _check_pending(self, g: Waves) -> None:
        for counter, entries in g.shadow.pending.items():
            for group in entries:
                for e in group:
                    if self._clashes(counter, e):
                        self._complain_wait(counter, e)

    def _clashes(self, counter: str, e: UnderWay) -> bool:
        # Operations of one counter return in order, so a load may follow another into the same register.
        in_turn = counter in self.raises and not self.any_order
        hit = e.registers_v & (self.uses.reads_v if in_turn else self.touched_v)
        if hit and not hit & (hit - 1):  # one register: a load into one half leaves the other free
            half = loaded_half(e.guard.ins, self.target.gpu)
            if half and touched_half(self.ins, hit.bit_length() - 1) == {"l": "h", "h": "l"}[half]:
                hit = 0
        return bool(hit or (e.registers_s & (self.uses.reads_s if in_turn else self.touched_s)))

    def _complain_wait(self, counter: str, e: UnderWay) -> None:
        hit_v, hit_s = e.registers_v & self.touched_v, e.registers_s & self.touched_s
        name = self._vector(next(bits_of(hit_v))) if hit_v else f"s{next(bits_of(hit_s))}"
        verb = "reads" if (hit_v & self.uses.reads_v) or (hit_s & self.uses.reads_s) else "overwrites"
        text = f"{verb} {name} before a wait for {counter}: {describe(e.guard.ins)} may still be under way"
        raise Found("wait", text)

    def _vector(self, n: int) -> str:
        """A vector register as the text names it."""
        first = self.target.accumulators
        return f"v{n}" if n < first else f"a{n - first}"

    def _leave_epoch(self, g: Waves) -> None:
        touches = [x for entries in g.shadow.pending.values() for group in entries for e in group for x in e.touches]
        if not touches:
            return
        next_epoch = np.full(int(g.ids.max()) + 2, -1)
        next_epoch[g.ids] = g.shadow.epoch + 1
        for memory, touch in touches:
            if not memory.in_order:
                memory.tags.postpone(touch, next_epoch, g.waves_per_group)

    # -- matrix instructions -------------------------------------------------------------------------------------------

    def _check_matrix(self, g: Waves) -> None:
        if g.exec is not None:
            wave, lane = (int(x[0]) for x in np.nonzero(~g.exec))
            raise Found("exec", "a matrix instruction runs with inactive lanes", int(g.ids[wave]), lane)
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


def describe(ins: Instruction) -> str:
    """An instruction as messages name it."""
    return f"line {ins.line}: {ins.text!r}" + (f" ({ins.source})" if ins.source else "")


def loaded_half(ins: Instruction, gpu: Gpu) -> str:
    """ "l" or "h" where a load writes only that half of its register."""
    if clears_other_half(gpu) or ("_format_" in ins.name and not ins.name.endswith("_format_x")):
        return ""
    if "_d16" in ins.name:
        return "h" if "_d16_hi" in ins.name else "l"
    return ins.operands[0].half if ins.operands else ""


def touched_half(ins: Instruction, register: int) -> str:
    """ "l" or "h" where an instruction reads and writes only that half of this vector register; else empty."""

    def is_it(o: Operand) -> bool:
        return o.kind == "v" and o.index <= register < o.index + o.count

    if ins.second is not None:
        return ""
    if ins.name in VECTOR:
        sources = sources_of(ins)
        read = bits_read(ins, sources)
        if len(read) != len(sources):
            return ""
        bits = [parts for o, parts in zip(sources, read, strict=True) if is_it(o)]
        bits += [bits_written(ins, _HALVES_SINCE) for o in ins.operands[: results(ins)] if is_it(o)]
        return next((half for half, mask in _HALVES.items() if all(b & ~mask == 0 for b in bits)), "")
    data = ins.operands[0 if ins.name.startswith("buffer") else 1] if "store" in ins.name else None
    narrow = ins.name.endswith(("_b8", "_b16")) or "_d16_hi" in ins.name
    found = set()
    for k, o in enumerate(ins.operands):
        if is_it(o):
            moved = ("h" if "_d16_hi" in ins.name else "l") if o is data and narrow else ""
            if "_load_" in ins.name and k == 0 and "_d16" in ins.name:
                moved = "h" if "_d16_hi" in ins.name else "l"
            found.add(moved or o.half)
    return found.pop() if len(found) == 1 else ""


def check_branch(g: Waves, condition: str, registers: tuple[int, ...] = ()) -> None:
    """A branch must not depend on undefined bits; registers: scalar ones that decide it."""
    shadow: Shadow = g.shadow
    if registers:
        bad = shadow.S[list(registers)].any(axis=0)
    elif condition.startswith("scc"):
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
        if ins.name.startswith("tensor_"):  # the descriptor says how wide: half words mostly
            narrow = min(narrow, 2)
        if "_format_" in ins.name:  # the resource says how wide
            narrow = 1
        if ins.name.startswith(prefixes) and (match := re.search(r"_[bui](8|16)(_|$)", ins.name)):
            narrow = min(narrow, int(match[1]) // 8)
    return narrow


def in_order(listing: Listing, major: int) -> bool:
    """Whether the waves of a workgroup reach global memory in the order in which they issue their accesses.

    On gfx9 they share the one vector cache of their compute unit, unless the kernel splits its workgroups, and a
    workgroup's release waits for no vector memory. On RDNA a barrier may pass an access, even where a workgroup keeps
    to one compute unit. Source: LLVM, "User Guide for AMDGPU Backend", "Memory Model gfx90a" and "gfx942"; for RDNA
    llvm-project's pull requests 160501 and 161638.
    """
    return major == 9 and not listing.directive("tg_split")


def tracked_memory(
    regions: Sequence[Region], listing: Listing, major: int, lanes: int, groups: int
) -> TrackedGlobalMemory:  # fmt: skip
    """Global memory of a launch of so many workgroups in strict mode."""
    unit = unit_bytes(listing, ("global_", "flat_", "buffer_"))
    if groups > 1 and only_atomics_order(listing):
        return OrderedMemory(regions, unit, in_order(listing, major), groups)
    return TrackedGlobalMemory(regions, unit, in_order(listing, major), apart(listing, lanes))


def as_error(kernel: str, found: Found, ins: Instruction, name_wave: Namer) -> HazardError:
    """A hazard with kernel, instruction, source line, wave and lane."""
    place = "" if found.wave is None else f"; {name_wave(found.wave)}"
    place += "" if found.lane is None else f", lane {found.lane}"
    return HazardError(f"{kernel}: {found.text}{place}; {describe(ins)}", found.kind)


def race_error(
    kernel: str, fault: RaceFault, guards: Mapping[int, Any], ins: Instruction, place: str, other_place: str
) -> HazardError:
    """A race, with both parties; other_place: the other, where it is of another workgroup."""
    if fault.other == fault.mine:
        text = f"{kernel}: address {fault.address:#x} gets different values from two lanes of one store"
        return HazardError(f"{text}; {place}, lane {fault.lane}; {describe(ins)}", "race")
    if fault.group is not None:
        other = describe(guards[instruction_of(fault.other)].ins)
        return HazardError(
            f"{kernel}: address {fault.address:#x} gets different values from two workgroups that nothing orders, here "
            f"and from {other_place} ({other}); {place}, lane {fault.lane}; {describe(ins)}",
            "race",
        )
    wave = wave_of(fault.other)
    who = "several waves" if wave is None else f"wave {wave}"
    memory = "LDS byte" if fault.lds else "address"
    did = "wrote" if fault.wrote else "read"
    missing = "with no wait before the barrier" if int(fault.other) & int(LATE) else "with no barrier between"
    other = describe(guards[instruction_of(fault.other)].ins)
    return HazardError(
        f"{kernel}: {memory} {fault.address:#x}, which {who} of the same workgroup {did} {missing} "
        f"({other}); {place}, lane {fault.lane}; {describe(ins)}",
        "race",
    )


def barrier_error(kernel: str, place: str, ins: Instruction) -> HazardError:
    """A barrier that some waves can never reach."""
    text = f"{kernel}: {place} waits at a barrier that other waves of its workgroup never reached; {describe(ins)}"
    return HazardError(text, "barrier")
