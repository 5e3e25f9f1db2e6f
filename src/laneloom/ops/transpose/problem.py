"""What one batch of transposes is: sizes, element size and where elements lie. No tensors, no GPU."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from ..matmul.problem import Matrix

ELEMENT_BYTES = (1, 2, 4, 8)
MAX_VECTOR_BYTES = 16


def as_integers(x: Any) -> Any:
    """A torch tensor as integers of its elements' size: bits are moved."""
    return x.view(getattr(sys.modules["torch"], f"int{8 * x.dtype.itemsize}"))


@dataclass(frozen=True)
class TransposeProblem:
    """Y[o, i, c, r] = X[o, i, r, c], with o, i over `batch`, for elements of any kind: bits are moved.

    Both matrices are described in X's axes, (outer, inner, r, c). Strides of axes with one element are 0, so that equal
    problems compare equal.
    """

    rows: int
    columns: int
    element_bytes: int
    batch: tuple[int, int]
    x: Matrix
    y: Matrix

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            object.__setattr__(self, name, getattr(self, name).along((*self.batch, self.rows, self.columns)))

    @classmethod
    def contiguous(cls, rows: int, columns: int, *, element_bytes: int = 2, batch: int = 1) -> TransposeProblem:
        """The problem of a dense X [batch, rows, columns] and a dense Y [batch, columns, rows]."""
        size = rows * columns
        return cls(
            rows, columns, element_bytes, (1, batch), Matrix((0, size, columns, 1)), Matrix((0, size, 1, rows))
        )

    @property
    def batches(self) -> int:
        """Matrices."""
        return prod(self.batch)

    @property
    def bytes(self) -> int:
        """Device memory traffic if each distinct element of X is read once and each of Y is written once."""
        extents = (*self.batch, self.rows, self.columns)
        distinct = prod(n if s else min(n, 1) for n, s in zip(extents, self.x.strides, strict=True))
        return (distinct + prod(extents)) * self.element_bytes

    def fast_axis(self, matrix: Matrix) -> str:
        """The axis of X, "r" or "c", along which the matrix's elements lie closest together."""
        r, c = matrix.strides[2:]
        if self.rows == 1 or self.columns == 1:
            return "r" if self.columns == 1 else "c"
        return "r" if r < c and r else "c" if c else "r"

    def vector(self, matrix: Matrix) -> int:
        """Neighbours along the fast axis that one aligned access of at most 16 bytes takes, a power of two."""
        at = "rc".index(self.fast_axis(matrix)) + 2
        if matrix.strides[at] != 1:
            return 1
        others = [s * self.element_bytes for n, s in enumerate(matrix.strides) if n != at]
        return max(1, gcd(MAX_VECTOR_BYTES, matrix.alignment, *others) // self.element_bytes)

    @property
    def key(self) -> str:
        """Name of the tuning record."""
        marks = self.fast_axis(self.x) + self.fast_axis(self.y)
        return f"transpose/{8 * self.element_bytes}bit/{marks}/r{self.rows}_c{self.columns}_b{self.batches}"
