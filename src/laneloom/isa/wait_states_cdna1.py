"""Wait states of CDNA 1's matrix instructions and of the moves to and from its accumulation registers.

These are a file of their own there, which memory does not reach: sums come in by `v_accvgpr_write_b32` and leave by
`v_accvgpr_read_b32`. Sources: AMD Instinct MI100 (CDNA 1) ISA guide, "Manually Inserted Wait States (NOPs)"; the
figures are LLVM's (GCNHazardRecognizer, checkMAIHazards908 and checkMAILdStHazards), against whose s_nop a test holds
every row. Left out: the state that LLVM keeps in front of a memory access that reads a result of the VALU where a move
stands between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .parse import EXEC

if TYPE_CHECKING:
    from .wait_states import Acts, Matrix

READ, WRITE = "v_accvgpr_read_b32", "v_accvgpr_write_b32"
_VECTOR = (1 << 256) - 1  #: v[n] of a mask in which a[n] is 256 + n
_EXEC_BITS = 3 << EXEC


def needed_on_cdna_1(before: Acts, after: Acts, open_v: int, open_s: int) -> Iterator[tuple[int, str]]:
    """As `wait_states.needed`, where either is a matrix instruction or moves an accumulation register."""
    if before.matrix is not None:
        yield from _after_matrix(before.matrix, after, open_v)
        return
    reads, written = after.step.uses.reads_v, before.step.uses.writes_v & open_v
    if before.name == WRITE:
        if after.matrix is not None and written & after.matrix.sources:
            yield 3, "it is A or B of a matrix instruction"
        elif after.matrix is not None and written & after.matrix.sum:
            yield 1, "it is C of a matrix instruction"
        elif after.name == READ and written & reads:
            yield 3, "the accumulation register is read back"
        elif after.name == WRITE and written & after.step.uses.writes_v:
            yield 3, "the accumulation register is written again"
    elif before.valu and (after.matrix is not None or after.name == WRITE):
        if reads & written & _VECTOR:
            yield 2, "its result goes into the matrix unit"
        if before.step.uses.writes_s & open_s & _EXEC_BITS:
            yield 4, "the matrix unit is used after a write of EXEC"
    if before.name == READ and after.memory and reads & written:
        yield 2, "a memory access reads what comes from an accumulation register"


def _after_matrix(p: Matrix, after: Acts, open_v: int) -> Iterator[tuple[int, str]]:
    result = p.result & open_v
    if after.matrix is not None:
        if result & after.matrix.sources:
            yield 4, "its result is A or B of a matrix instruction"
        if result & after.matrix.sum and p.result != after.matrix.sum:
            yield 2, "its result is C of a matrix instruction"
    elif after.name == READ and result & after.step.uses.reads_v:
        yield p.passes + 2, "its result is read"
    elif after.name == WRITE:
        if result & after.step.uses.writes_v:
            yield p.passes - 1, "its result is overwritten"
        if p.sum & open_v & after.step.uses.writes_v:
            yield max(p.passes - 3, 0), "C, which it still reads, is overwritten"
