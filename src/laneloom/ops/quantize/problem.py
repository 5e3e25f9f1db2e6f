"""What one quantisation is: sizes, dtypes and where X's elements lie. No tensors, no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ArgumentError, UnsupportedError
from ...gpu import MOST_PROGRAMS
from ..axes import merge_axes
from ..matmul.problem import SCALE_BLOCK
from ..scalars import is_whole, shown

DTYPES = ("fp32", "fp16", "bf16")  #: of X
TILE_ROWS = {1: 8, SCALE_BLOCK: SCALE_BLOCK}  #: by rows of a block: rows of 128 numbers that a program takes
_MAX_EXTENT = 1 << 30  #: of a matrix along either axis, whose numbers are 32-bit ones


@dataclass(frozen=True)
class QuantizeProblem:
    """Blocks of `rows` x 128 of X[o, i, m, k], with o, i over two batch axes; 1 where there are none.

    Rows of a block of one row are all one axis, m, as far as strides allow. strides: in elements, of o, i, m, k.
    """

    rows: int
    batch: tuple[int, int]
    m: int
    k: int
    strides: tuple[int, int, int, int]
    dtype: str
    dtype_q: str

    @property
    def blocks(self) -> int:
        """Scales."""
        return self.batch[0] * self.batch[1] * -(-self.m // self.rows) * -(-self.k // SCALE_BLOCK)

    @property
    def programs(self) -> int:
        """Of the launch: each has 8 blocks of a row, or one of 128 rows."""
        return -(-self.blocks // (TILE_ROWS[self.rows] // self.rows))


def problem_of(
    shape: Sequence[int], strides: Sequence[int], rows: int, dtype: str, dtype_q: str
) -> QuantizeProblem | None:
    """The problem of an X that has elements; None where its axes need more strides than a kernel takes.

    Raises UnsupportedError for one that is too large.
    """
    *batch, m, k = shape
    *steps, stride_m, stride_k = strides
    axes = merge_axes(shape[:-1], strides[:-1]) if rows == 1 else [*merge_axes(batch, steps), (m, stride_m)]
    if len(axes) > 3:
        return None
    (outer, stride_o), (inner, stride_i), (m, stride_m) = [(1, 0)] * (3 - len(axes)) + axes
    problem = QuantizeProblem(rows, (outer, inner), m, k, (stride_o, stride_i, stride_m, stride_k), dtype, dtype_q)
    if max(m, k) > _MAX_EXTENT or problem.programs > MOST_PROGRAMS:
        most = MOST_PROGRAMS * TILE_ROWS[rows] // rows
        raise UnsupportedError(
            f"x: expected at most {_MAX_EXTENT} rows and columns and {most} blocks, got {problem.blocks} blocks of "
            f"shape {tuple(shape)}"
        )
    return problem


def check_rows(rows: Any) -> int:
    """The rows of a block. Raises ArgumentError."""
    if not is_whole(rows) or rows not in TILE_ROWS:
        raise ArgumentError(f"rows: expected 1 or {SCALE_BLOCK}, the rows that share a scale, got {shown(rows)}")
    return int(rows)


def scales_shape(shape: Sequence[int], rows: int) -> tuple[int, ...]:
    """The scales' shape. Raises ArgumentError for an X with fewer than two axes."""
    if len(shape) < 2:
        raise ArgumentError(f"x: expected at least 2 axes [..., M, K], got shape {tuple(shape)}")
    return (*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // SCALE_BLOCK))
