"""Loops, instruction mix and order of a compiled kernel, read from its AMDGCN text.

The order of an iteration is written with one letter per event and a count: G global load, D global load
straight to LDS, L LDS load, S LDS store, W matrix instruction, F multiply-add (only in loops without W), GS
global store, DS store from LDS to global memory, A atomic, X scratch, BAR barrier, SIG the signalling half
of a split barrier, WAIT for global loads, LW for LDS, SW for stores, WW for NVIDIA's matrix instructions. A
wait that lets the youngest N stay open is partial: WAIT(4).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ArgumentError
from .flow import Flow, flow_of
from .listing import Instruction, Kind, Listing, parse_listing
from .metadata import parse_metadata, select_kernel
from .registers import waits_of


@dataclass(frozen=True)
class Loop:
    """Consecutive instructions from the target of a backward branch to that branch."""

    label: str
    first: int  #: index of the first instruction in the listing
    last: int  #: index of the last backward branch
    depth: int  #: 1 for a loop inside no other
    instructions: tuple[Instruction, ...]
    target: str | None = None  #: processor, which decides what a wait counts

    @property
    def lines(self) -> tuple[int, int]:
        """First and last line in the parsed text."""
        return self.instructions[0].line, self.instructions[-1].line

    def count(self, kind: Kind) -> int:
        """Instructions of one kind."""
        return sum(i.kind is kind for i in self.instructions)


@dataclass(frozen=True)
class Mix:
    """How often each kind of instruction occurs."""

    kinds: dict[Kind, int]
    widths: dict[Kind, dict[str, int]]  #: memory accesses by width, such as {"16 B": 8}
    matrix: dict[str, int]  #: matrix instructions by mnemonic
    fmas: int  #: multiply-adds outside matrix instructions; a dual-issue or packed pair counts two
    total: int


@dataclass(frozen=True)
class Analysis:
    """What one kernel's text consists of."""

    listing: Listing
    loops: tuple[Loop, ...]
    hot: Loop | None
    mix: Mix


def analyze(asm: str, kernel: str | None = None) -> Analysis:
    """Listing, loops, hot loop and instruction mix of one kernel of an AMDGCN text."""
    return analyze_listing(parse_listing(asm, kernel))


def analyze_listing(listing: Listing) -> Analysis:
    """As `analyze`, for instructions that are parsed already."""
    loops = find_loops(listing)
    return Analysis(listing, loops, hottest(loops), instruction_mix(listing.instructions))


def find_loops(listing: Listing) -> tuple[Loop, ...]:
    """Every loop, in the order of their first instructions; branches to one label make one loop."""
    ends: dict[str, int] = {}
    for index, instruction in enumerate(listing.instructions):
        label = instruction.target
        if label is None or listing.labels.get(label, index + 1) > index:
            continue
        if flow_of(instruction.mnemonic, instruction.text) is Flow.CALLS:
            continue  # a function that stands in front
        # Compilers also place a shared exit before the code that branches to it.
        if _reaches(listing, listing.labels[label], index):
            ends[label] = index
    spans = sorted((listing.labels[label], end, label) for label, end in ends.items())
    loops = []
    for first, last, label in spans:
        around = sum(f <= first and last <= l and (f, l) != (first, last) for f, l, _ in spans)
        body = listing.instructions[first : last + 1]
        loops.append(Loop(label, first, last, around + 1, body, listing.target))
    return tuple(loops)


def _reaches(listing: Listing, start: int, goal: int) -> bool:
    """Whether execution from the instruction `start` can come to `goal`."""
    pending, seen = [start], set()
    while pending:
        index = pending.pop()
        while index < len(listing.instructions) and index not in seen:
            if index == goal:
                return True
            seen.add(index)
            instruction = listing.instructions[index]
            if instruction.target in listing.labels:
                pending.append(listing.labels[instruction.target])
            if instruction.ends_flow:
                break
            index += 1
    return False


def hot_loop(asm: str, kernel: str | None = None) -> Loop | None:
    """The loop with the most matrix instructions, else multiply-adds, else instructions; None without a loop.

    Instructions of an inner loop count for that one only, so the innermost loop that does the work is found.
    """
    return hottest(find_loops(parse_listing(asm, kernel)))


def hottest(loops: Sequence[Loop]) -> Loop | None:
    """That of `hot_loop` among the loops of a listing."""
    def weight(loop: Loop) -> tuple[int, int, int]:
        inner = [other for other in loops if other is not loop and _contains(loop, other)]
        own = [
            instruction
            for index, instruction in enumerate(loop.instructions, loop.first)
            if not any(other.first <= index <= other.last for other in inner)
        ]
        return sum(i.kind is Kind.MATRIX for i in own), sum(i.fmas for i in own), len(own)

    return max(loops, key=weight, default=None)


def _contains(outer: Loop, inner: Loop) -> bool:
    return outer.first <= inner.first and inner.last <= outer.last


def instruction_mix(instructions: Iterable[Instruction]) -> Mix:
    """Count `instructions` by kind, memory accesses by width, matrix instructions by name."""
    kinds: Counter[Kind] = Counter()
    widths: dict[Kind, Counter[str]] = {}
    matrix: Counter[str] = Counter()
    fmas = 0
    for instruction in instructions:
        kinds[instruction.kind] += 1
        fmas += instruction.fmas
        if instruction.width_bytes:
            widths.setdefault(instruction.kind, Counter())[instruction.width_name] += 1
        if instruction.kind is Kind.MATRIX:
            matrix[instruction.mnemonic] += 1
    ordered = {kind: kinds[kind] for kind in Kind if kinds[kind]}
    return Mix(ordered, {k: dict(c) for k, c in widths.items()}, dict(matrix), fmas, sum(kinds.values()))


_EVENTS = {
    Kind.MATRIX: "W",
    Kind.GLOBAL_LOAD: "G",
    Kind.GLOBAL_TO_LDS: "D",
    Kind.LDS_TO_GLOBAL: "DS",
    Kind.GLOBAL_STORE: "GS",
    Kind.LDS_LOAD: "L",
    Kind.LDS_STORE: "S",
    Kind.ATOMIC: "A",
    Kind.SCRATCH: "X",
}


def order(loop: Loop, *, lds_waits: bool = False) -> str:
    """The order of one iteration, for example "BAR G8 L16 W32 WAIT S8"; the module's docstring has the
    letters.

    LDS waits stand between almost every two matrix instructions, so they are left out unless `lds_waits`.
    """
    tokens: list[tuple[str, int]] = []

    def add(token: str, count: int = 1) -> None:
        if tokens and tokens[-1][0] == token and not token.startswith(("WAIT", "LW", "SW", "WW", "BAR")):
            count += tokens.pop()[1]
        if token == "BAR" and tokens and tokens[-1][0] == "SIG":
            tokens.pop()
        if not (tokens and tokens[-1][0] == token):
            tokens.append((token, count))

    multiply_adds = not loop.count(Kind.MATRIX)
    for instruction in loop.instructions:
        if instruction.kind in _EVENTS:
            add(_EVENTS[instruction.kind])
        elif instruction.kind is Kind.BARRIER:
            add("SIG" if "signal" in instruction.mnemonic or "arrive" in instruction.mnemonic else "BAR")
        elif instruction.kind is Kind.WAIT:
            for name, left in waits(instruction, loop.target).items():
                if name != "LW" or lds_waits:
                    add(f"{name}({left})" if left else name)
        elif multiply_adds and instruction.fmas:
            add("F", instruction.fmas)
    return " ".join(f"{token}{count if count > 1 else ''}" for token, count in tokens)


_WAITED = {
    "loadcnt": "WAIT", "vmcnt": "WAIT", "asynccnt": "WAIT", "dscnt": "LW", "lgkmcnt": "LW",
    "storecnt": "SW", "vscnt": "SW",
}  # fmt: skip


def waits(instruction: Instruction, target: str | None = None) -> dict[str, int]:
    """What a wait instruction waits for, and how many of each may stay open.

    "WAIT" are global loads, "LW" LDS, "SW" stores, "WW" wgmma. target: as of a loop.
    """
    if instruction.kind is not Kind.WAIT:
        return {}
    name, operands = instruction.mnemonic, instruction.operands
    if "." in name:  # PTX
        if name.startswith("mbarrier"):
            return {"WAIT": 0}
        number = re.search(r"\d+\s*$", operands)
        left = int(number[0]) if number else 0
        return {"WW" if name.startswith("wgmma") else "SW" if "bulk" in name else "WAIT": left}
    asked = waits_of(name, operands, 9 if (target or "").startswith("gfx9") else 11)
    left = {_WAITED[counter]: count for counter, count in asked.items() if counter in _WAITED}
    return {kind: left[kind] for kind in ("WAIT", "LW", "SW") if kind in left}


def matrix_overlap(loop: Loop) -> float:
    """The part of an iteration's matrix instructions that the least lucky global load has to hide behind.

    A load is issued, and the first wait that covers it ends its flight; the matrix instructions between the
    two, over those of one iteration, is its overlap (at most 1). The loop is followed over three iterations,
    because a load may be waited for in a later one. 0 for a loop without matrix instructions or global loads.
    Raises ArgumentError for PTX, whose waits count groups instead of loads.
    """
    if loop.target is not None and loop.target.startswith("sm_"):
        raise ArgumentError("the overlap of loads and matrix instructions can be told from AMDGCN text only")
    matrix = loop.count(Kind.MATRIX)
    in_order = [Kind.GLOBAL_LOAD, Kind.GLOBAL_TO_LDS]
    if not matrix or not any(loop.count(kind) for kind in in_order):
        return 0.0
    # CDNA's vmcnt counts stores as well; RDNA has a counter of its own for them.
    counted = [*in_order, Kind.SCRATCH]
    if loop.target is not None and loop.target.startswith("gfx9"):
        counted.append(Kind.GLOBAL_STORE)
    done = 0  # matrix instructions so far
    open_loads: list[tuple[bool, int]] = []  # (counts for the answer, `done` at issue), oldest first
    least = matrix
    iterations = 3
    for iteration in range(iterations):
        for instruction in loop.instructions:
            if instruction.kind is Kind.MATRIX:
                done += 1
            elif instruction.kind in counted:
                # The last iteration's loads would be waited for in one that is not followed.
                open_loads.append((instruction.kind in in_order and iteration < iterations - 1, done))
            elif "WAIT" in (left := waits(instruction, loop.target)):
                finished = len(open_loads) - left["WAIT"]
                flights = [done - issued for counts, issued in open_loads[: max(finished, 0)] if counts]
                least = min([least, *flights])
                del open_loads[: max(finished, 0)]
    return least / matrix


def narrow_loads(loop: Loop, width_bytes: int = 16) -> tuple[Instruction, ...]:
    """The global and LDS loads of the loop that read fewer bytes per lane and address than `width_bytes`."""
    loads = (Kind.GLOBAL_LOAD, Kind.GLOBAL_TO_LDS, Kind.LDS_LOAD)
    return tuple(i for i in loop.instructions if i.kind in loads and 0 < i.width_bytes < width_bytes)


def loads_are_wide(loop: Loop, width_bytes: int = 16) -> bool:
    """Whether the loop has global and LDS loads and all of them read `width_bytes` per lane and address."""
    both = (loop.count(Kind.GLOBAL_LOAD) or loop.count(Kind.GLOBAL_TO_LDS)) and loop.count(Kind.LDS_LOAD)
    return bool(both) and not narrow_loads(loop, width_bytes)


def has_spills(asm: str, kernel: str | None = None) -> bool:
    """Whether registers were spilled: by the metadata's counts, its scratch size, or scratch accesses in the
    code.

    A kernel that keeps an array in scratch on purpose counts as well.
    """
    if parse_metadata(asm):
        found = select_kernel(asm, kernel)
        if found.vgpr_spills or found.sgpr_spills or found.scratch_bytes:
            return True
    return any(i.kind is Kind.SCRATCH for i in parse_listing(asm, kernel).instructions)
