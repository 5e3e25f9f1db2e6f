"""Profile of a launch: what each instruction executed, asked of memory, and lost to LDS bank conflicts and idle lanes.

Counts are exact; none is a time. Global memory is counted in lines of 128 bytes, the cache line of RDNA's vector caches
and L2 (AMD RDNA architecture white paper): a transaction is one line that one wave-instruction wants. LDS follows the
model of `isa.lds_banks`. The `Counters` of a launch stand beside its waves: memories tell them every access, and each
step tells them which instruction it is. Without them nothing is counted but how often each block runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..isa.catalogue import find_instruction
from ..isa.lds_banks import access_cycles, banks_of
from ..isa.listing import Kind, parse_instruction
from ..locks import cached_property

if TYPE_CHECKING:
    from ..isa.parse import Instruction
    from .alu import Step
    from .memory import GlobalMemory
    from .program import Program
    from .state import Waves

LINE_BYTES = 128
_LOADS = (Kind.GLOBAL_LOAD, Kind.ATOMIC)
_STORES = (Kind.GLOBAL_STORE, Kind.ATOMIC)
_GLOBAL = (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.ATOMIC)
_VECTOR = (Kind.VALU, Kind.DUAL, *_GLOBAL, Kind.LDS_LOAD, Kind.LDS_STORE, Kind.LDS_OTHER, Kind.SCRATCH)
_SINGLE_FLOP = re.compile(r"v_(dual_)?(pk_)?(add|sub|subrev|mul)_f(16|32|64)")
_KEPT_PATTERNS = 4096  #: LDS access patterns whose cost is remembered: loops come back to the same addresses


@dataclass(frozen=True)
class InstructionProfile:
    """One instruction over a whole launch."""

    line: int  #: of the assembly text
    text: str
    kind: Kind
    source: str | None  #: Python file and line
    executed: int = 0  #: waves that executed it, summed over time
    idle_lanes: int = 0  #: lanes that EXEC held back, summed over those
    requested_bytes: int = 0  #: that active lanes asked memory for
    transactions: int = 0  #: global memory: lines of 128 bytes, summed over wave-instructions
    lines: int = 0  #: global memory: different lines in the whole launch
    lds_clocks: int = 0  #: LDS: clocks without conflicts
    conflicts: int = 0  #: LDS: clocks that bank conflicts add
    matrix_flops: int = 0
    vector_flops: int = 0  #: of active lanes: adds and multiplies 1, multiply-adds 2, packed and dual twice that

    @property
    def hits_global(self) -> bool:
        """Whether it accesses global memory from lanes."""
        return self.kind in _GLOBAL


@dataclass(frozen=True)
class Profile:
    """Every instruction of a launch, in the text's order, and their sums."""

    instructions: tuple[InstructionProfile, ...]
    lanes: int  #: of a wave
    splits: int  #: times that waves which ran together took different ways at a branch
    loaded_lines: int  #: different lines of 128 bytes that loads wanted
    stored_lines: int  #: different lines that stores wanted

    @cached_property
    def kinds(self) -> dict[Kind, int]:
        """Wave-instructions executed by kind, most first."""
        sums: dict[Kind, int] = {}
        for ins in self.instructions:
            sums[ins.kind] = sums.get(ins.kind, 0) + ins.executed
        return {kind: n for kind, n in sorted(sums.items(), key=lambda item: -item[1]) if n}

    def total(self, field: str, kinds: Sequence[Kind] | None = None) -> int:
        """The sum of a field of InstructionProfile, over some kinds or all."""
        return sum(getattr(ins, field) for ins in self.instructions if kinds is None or ins.kind in kinds)

    @property
    def flops(self) -> int:
        """Of matrix instructions and of vector arithmetic."""
        return self.total("matrix_flops") + self.total("vector_flops")

    @property
    def conflicts(self) -> int:
        """Clocks that LDS bank conflicts add."""
        return self.total("conflicts")

    @property
    def requested_bytes(self) -> int:
        """What lanes ask global memory for; caches serve what is asked again."""
        return self.total("requested_bytes", _GLOBAL)

    @property
    def transactions(self) -> int:
        """Lines that the first cache is asked for."""
        return self.total("transactions", _GLOBAL)

    @property
    def footprint_bytes(self) -> int:
        """The least that memory has to move, were caches endless: each line once if loaded, once if stored."""
        return LINE_BYTES * (self.loaded_lines + self.stored_lines)

    @property
    def coalescing(self) -> float | None:
        """Requested bytes over the bytes of the lines asked for: 1 is all of every line; above 1, lanes share bytes."""
        return self.requested_bytes / (LINE_BYTES * self.transactions) if self.transactions else None

    @property
    def intensity(self) -> float | None:
        """FLOP per byte of the footprint."""
        return self.flops / self.footprint_bytes if self.footprint_bytes else None

    @property
    def idle_share(self) -> float:
        """The part of vector instructions' lanes that EXEC held back; matrix instructions ignore EXEC."""
        lanes = self.lanes * self.total("executed", _VECTOR)
        return self.total("idle_lanes", _VECTOR) / lanes if lanes else 0.0


class Counters:
    """What is counted while one launch runs; `steps` are the program's, each telling which instruction it is."""

    def __init__(self, program: Program):
        code = program.listing.instructions
        self.program, self.banks = program, banks_of(program.gpu)
        self.atomic = [ins.name.startswith("ds_") and not re.match(r"ds_(load|store)_", ins.name) for ins in code]
        self.local_load = [ins.name.startswith("ds_load") for ins in code]
        self.now = 0  #: number of the running instruction
        self.splits = 0
        names = ("idle_lanes", "requested_bytes", "transactions", "lds_clocks", "conflicts")
        self.sums = {name: np.zeros(len(code), np.int64) for name in names}
        self.touched: dict[int, np.ndarray] = {}  #: instruction -> which lines it has wanted
        self._exec: np.ndarray | None = None
        self._idle = 0
        self._patterns: dict[tuple, tuple[int, int]] = {}
        number = {id(ins): k for k, ins in enumerate(code)}
        self.steps = [
            [self._watched(step, number[id(ins)]) for step, ins in zip(block.steps, block.sources, strict=True)]
            for block in program.blocks
        ]

    def _watched(self, step: Step, number: int) -> Step:
        idle = self.sums["idle_lanes"]

        def watched(g: Waves) -> None:
            self.now = number
            if g.exec is not None:
                if g.exec is not self._exec:
                    self._exec, self._idle = g.exec, g.exec.size - int(np.count_nonzero(g.exec))
                idle[number] += self._idle
            step(g)

        return watched

    def watch(self, memory: GlobalMemory) -> None:
        """Count the accesses of this global memory too."""
        memory.counters = self
        self._starts = memory.starts
        first, last = memory.starts // LINE_BYTES, (memory.ends - 1) // LINE_BYTES
        self._lines = int((last - first + 1).sum())
        self._shift = np.cumsum([0, *(last - first + 1)])[:-1] - first  # line of an address -> its place in `touched`

    # -- what memories call --------------------------------------------------------------------------------------------

    def count_local(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        """An access of LDS: addresses [wave, lane] within the workgroup."""
        atomic, load = self.atomic[self.now], self.local_load[self.now]
        key = (nbytes, atomic, load, hash(address.tobytes()), None if active is None else hash(active.tobytes()))
        found = self._patterns.get(key)
        if found is None:
            clocks, extra = access_cycles(address, nbytes, active, atomic=atomic, banks=self.banks, load=load)
            if len(self._patterns) >= _KEPT_PATTERNS:
                self._patterns.clear()
            found = self._patterns[key] = int(clocks.sum()), int(extra.sum())
        self.sums["lds_clocks"][self.now] += found[0]
        self.sums["conflicts"][self.now] += found[1]
        self._add_bytes(address, nbytes, active)

    def count_global(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        """An access of global memory: addresses [wave, lane], or [wave, 1] of a scalar load."""
        self._add_bytes(address, nbytes, active)
        line, new = distinct_lines(address, nbytes, active)
        wanted = line[new]
        self.sums["transactions"][self.now] += len(wanted)
        if self.now not in self.touched:
            self.touched[self.now] = np.zeros(self._lines, np.bool_)
        region = np.maximum(np.searchsorted(self._starts, wanted * LINE_BYTES + (LINE_BYTES - 1), side="right") - 1, 0)
        self.touched[self.now][wanted + self._shift[region]] = True

    def _add_bytes(self, address: np.ndarray, nbytes: int, active: np.ndarray | None) -> None:
        lanes = address.size if active is None else int(np.count_nonzero(active))
        self.sums["requested_bytes"][self.now] += nbytes * lanes

    # -- the result ----------------------------------------------------------------------------------------------------

    def profile(self, block_counts: Sequence[int]) -> Profile:
        """What was counted, with how many waves executed each block."""
        code, lanes = self.program.listing.instructions, self.program.lanes
        executed = [0] * len(code)
        for block, waves in zip(self.program.blocks, block_counts, strict=True):
            executed[block.first : block.last] = [waves] * (block.last - block.first)
        rows = tuple(self._row(k, ins, executed[k], lanes) for k, ins in enumerate(code))
        touched = {kinds: self._union(rows, kinds) for kinds in (_LOADS, _STORES)}
        return Profile(rows, lanes, self.splits, touched[_LOADS], touched[_STORES])

    def _row(self, k: int, ins: Instruction, executed: int, lanes: int) -> InstructionProfile:
        parsed = parse_instruction(ins.text, ins.line)
        sums = {name: int(values[k]) for name, values in self.sums.items()}
        lines = int(np.count_nonzero(self.touched[k])) if k in self.touched else 0
        matrix = executed * find_instruction(ins.name, self.program.gpu).flops if parsed.kind is Kind.MATRIX else 0
        single = sum(2 if m[2] else 1 for m in _SINGLE_FLOP.finditer(ins.text))
        vector = (2 * parsed.fmas + single) * (executed * lanes - sums["idle_lanes"])
        source = str(ins.source) if ins.source else None
        return InstructionProfile(
            ins.line, parsed.text, parsed.kind, source, executed, lines=lines, matrix_flops=matrix, vector_flops=vector,
            **sums,
        )  # fmt: skip

    def _union(self, rows: Sequence[InstructionProfile], kinds: Sequence[Kind]) -> int:
        mine = [self.touched[k] for k, row in enumerate(rows) if row.kind in kinds and k in self.touched]
        return int(np.count_nonzero(np.logical_or.reduce(mine))) if mine else 0


def distinct_lines(address: np.ndarray, nbytes: int, active: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Lines [wave, n] in ascending order, and which of them are an active lane's and differ from the one before."""
    line, last = address // LINE_BYTES, (address + (nbytes - 1)) // LINE_BYTES
    if (line != last).any():
        line = np.concatenate([line, last], axis=1)
        active = None if active is None else np.concatenate([active, active], axis=1)
    line = line.copy() if active is None else np.where(active, line, -1)
    line.sort(axis=1)
    new = line >= 0
    new[:, 1:] &= line[:, 1:] != line[:, :-1]
    return line, new
