"""What one chain of two products is: sizes, dtypes and where elements lie. No tensors, no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from ..matmul.problem import Matrix

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
OPERANDS = ("fp16", "bf16")


@dataclass(frozen=True)
class ChainProblem:
    """D1[o,i] = alpha1 P[o,i] B1[o,i] + beta1 C1[o,i], P the rounding of alpha0 A0[o,i] B0[o,i] to the operands' dtype.

    A0: [M, K0]; B0: [K0, N0]; B1: [N0, N1]; C1 and D1: [M, N1]; o, i over `batch`. Strides of axes with one element are
    0, so that equal problems compare equal. alpha0, alpha1 and beta1 are values of a call, not of the problem.
    """

    m: int
    k0: int
    n0: int
    n1: int
    dtype: str  #: of A0, B0, B1, P and D1
    batch: tuple[int, int]
    a0: Matrix
    b0: Matrix
    b1: Matrix
    out: Matrix
    c1: Matrix | None = None
    dtype_c: str = ""

    def __post_init__(self) -> None:
        for name, rows, columns in (
            ("a0", self.m, self.k0), ("b0", self.k0, self.n0), ("b1", self.n0, self.n1), ("out", self.m, self.n1),
            ("c1", self.m, self.n1),
        ):  # fmt: skip
            matrix = getattr(self, name)
            if matrix is not None:
                object.__setattr__(self, name, matrix.along((*self.batch, rows, columns)))

    @classmethod
    def contiguous(
        cls, m: int, k0: int, n0: int, n1: int, *, dtype: str = "fp16", batch: int = 1, add: bool = False
    ) -> ChainProblem:
        """The problem of row-major operands."""
        a0, b0, b1, out = (
            Matrix((0, rows * columns, columns, 1)) for rows, columns in ((m, k0), (k0, n0), (n0, n1), (m, n1))
        )
        return cls(m, k0, n0, n1, dtype, (1, batch), a0, b0, b1, out, out if add else None, dtype if add else "")

    @property
    def batches(self) -> int:
        """Independent chains."""
        return prod(self.batch)

    @property
    def flops(self) -> int:
        """A multiplication and an addition per term of two products."""
        return 2 * self.batches * self.m * self.n0 * (self.k0 + self.n1)

    @property
    def bytes(self) -> int:
        """Device memory traffic if operands are read once and D1 is written once; P takes none."""
        size = DTYPE_BYTES[self.dtype]
        once = self.m * (self.k0 + self.n1) + self.n0 * (self.k0 + self.n1)
        added = self.m * self.n1 * DTYPE_BYTES[self.dtype_c] if self.c1 else 0
        return self.batches * (once * size + added)

    def panel(self, name: str) -> tuple[int, int, str, tuple[int, int], int]:
        """a0, b0 or b1 as rows along which a tile is clamped and K along which it is summed.

        Rows, K, the axis that is contiguous ("k", "row" or "neither"), the strides of row and K, and the elements that
        one aligned load of at most 16 bytes takes. A vector along rows is read wholly or not at all, so that it has to
        divide the rows; the end of K is masked.
        """
        matrix: Matrix = getattr(self, name)
        sizes = {"a0": (self.m, self.k0), "b0": (self.n0, self.k0), "b1": (self.n1, self.n0)}
        rows, depth = sizes[name]
        outer, inner, first, second = matrix.strides
        row, k = (first, second) if name == "a0" else (second, first)
        major = "k" if k == 1 else "row" if row == 1 else "neither"
        size = DTYPE_BYTES[self.dtype]
        pitches = (outer, inner, row if major == "k" else k, *([rows] if major == "row" else []))
        room = gcd(16, matrix.alignment, *(stride * size for stride in pitches))
        vector = 1 if major == "neither" else max(1, room // size)
        return rows, depth, major, (row, k), vector

    def row_vector(self, name: str) -> int:
        """Elements of out or c1 that one aligned access of at most 16 bytes takes along a row, a divisor of N1."""
        matrix: Matrix | None = getattr(self, name)
        if matrix is None or matrix.strides[3] != 1:
            return 1
        size = DTYPE_BYTES[self.dtype if name == "out" else self.dtype_c]
        return max(1, gcd(16, matrix.alignment, self.n1 * size, *(s * size for s in matrix.strides[:3])) // size)

    @property
    def key(self) -> str:
        """Name of the tuning record."""
        layout = "".join({"k": "k", "row": "r", "neither": "x"}[self.panel(name)[2]] for name in ("a0", "b0", "b1"))
        sizes = f"b{self.batches}_m{self.m}_k{self.k0}_n{self.n0}_n{self.n1}"
        return f"gemm_chain/{self.dtype}/{layout}/{sizes}" + (f"_add_{self.dtype_c}" if self.c1 else "")
