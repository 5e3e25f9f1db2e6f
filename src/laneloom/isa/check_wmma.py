"""Vector instructions that CDNA 5's hardware leaves to the code between a matrix instruction and what depends on it.

Matrix instructions run beside the vector unit, and nothing waits: a matrix instruction that takes the result for A, B
or indices, and a vector instruction that reads or overwrites the result, or overwrites A, B or indices, has to have so
many vector instructions before it (`v_nop` is one). Transcendental ones run elsewhere and wait. Source: LLVM's hazard
recognizer for gfx1250 and gfx1251, which LLVM's code goes by (tests/compile/test_check_wmma.py).
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator

from .catalogue import MatrixInstruction, instructions
from .check_code import Code, Step
from .finding import Finding, found
from .listing import Kind
from .registers import mask_of

#: cycles of the matrix instruction -> vector instructions in between, before a matrix one and before any other
_WMMA = {4: (2, 1), 8: (5, 4), 16: (9, 8), 32: (17, 16)}
_SWMMAC = {8: (3, 2), 16: (5, 4)}  # of gfx1250; on gfx1251 they are no exception
_MOST = 17
_VECTOR = (Kind.MATRIX, Kind.VALU, Kind.DUAL)
_TRANSCENDENTAL = re.compile(r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos|tanh|prng)_")


def check_wmma_states(code: Code) -> Iterator[Finding]:
    """Instructions that come too soon after a matrix instruction that they depend on."""
    if not code.gpu.is_cdna5:
        return
    rows = {row.name: row for row in instructions(code.gpu)}
    before = code.blocks_before()
    for number, block in enumerate(code.blocks):
        for at in range(block.first, block.last):
            step = code.steps[at]
            if step.kind in _VECTOR and not _TRANSCENDENTAL.match(step.ins.name):
                yield from _missing(code, rows, before, number, at)


def _missing(
    code: Code, rows: dict[str, MatrixInstruction], before: list[list[int]], number: int, at: int
) -> Iterator[Finding]:
    """The worst dependency of one instruction, back along every path."""
    own = code.steps[at]
    worst: tuple[int, Step, int] | None = None
    pending, seen = [(number, at, 0)], set()
    while pending:
        number, place, distance = pending.pop()
        block = code.blocks[number]
        while place > block.first and distance < _MOST:
            place -= 1
            earlier = code.steps[place]
            row = rows.get(earlier.ins.name)
            if row is not None and row.coissue and _depends(earlier, own):
                needed = _needed(earlier, row, own.kind is Kind.MATRIX)
                if needed - distance > (worst[0] if worst else 0):
                    worst = needed - distance, earlier, needed
            distance += earlier.kind in _VECTOR
        if distance < _MOST:
            for other in before[number]:
                if (other, distance) not in seen:
                    seen.add((other, distance))
                    pending.append((other, code.blocks[other].last, distance))
    if worst is not None:
        missing, earlier, needed = worst
        yield found(
            "missing-nops", own.ins,
            f"{needed} vector instruction{'s' if needed > 1 else ''} since line {earlier.ins.line} "
            f"({earlier.ins.text}), {needed - missing} here: {missing} of v_nop missing",
        )  # fmt: skip


def _depends(matrix: Step, own: Step) -> bool:
    """Whether `own` may not follow the matrix instruction at once."""
    result, sources = _result_and_sources(matrix)
    if own.kind is Kind.MATRIX:
        return bool(result & _result_and_sources(own)[1])
    return bool(result & (own.uses.reads_v | own.uses.writes_v) or sources & own.uses.writes_v)


def _result_and_sources(matrix: Step) -> tuple[int, int]:
    """The registers of D, and those of A, B and indices."""
    d, *sources = (mask_of(o) if o.kind == "v" else 0 for o in matrix.ins.operands)
    count = 3 if "swmmac" in matrix.ins.name else 2
    return d, functools.reduce(operator.or_, sources[:count])


def _needed(matrix: Step, row: MatrixInstruction, before_matrix: bool) -> int:
    cycles = row.cycles or 8
    fours = [matrix.ins.modifiers.get(f"matrix_{x}_fmt", "") for x in "ab"]
    if all("FP4" in word for word in fours):
        cycles //= 2
    table = _SWMMAC if row.kind == "swmmac" and row.generation == "cdna5" else _WMMA
    return table[cycles][0 if before_matrix else 1]
