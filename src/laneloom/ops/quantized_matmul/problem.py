"""What one product with a weight of few bits is: sizes, dtypes and where its elements lie. No tensors, no GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from math import erfc, prod, sqrt

from ...errors import ArgumentError
from ..matmul.dtypes import DTYPE_BYTES as _DTYPE_BYTES
from ..matmul.problem import Matrix, most_row_tiles
from .weight import PACKED

DTYPE_BYTES = {**_DTYPE_BYTES, "e8m0": 1}


@dataclass(frozen=True)
class QuantizedProblem:
    """C[o, i, m, n] = sum over g of scale[o, i, n, g] (sum over k in g of X[o, i, m, k] (q[o, i, n, k] - zero[o, i, n,
    g])) + bias[n], with o, i over `batch`.

    Strides of axes with one element are set to 0, so that equal products are equal problems. Matrices of the weight
    have N rows: values a column for each byte, scales and zeros one for each group.
    """

    m: int
    n: int
    k: int
    dtype: str  #: of X
    dtype_w: str  #: of q: one of weight.DTYPES
    dtype_out: str
    dtype_scale: str  #: "fp32", "fp16", "bf16", "e8m0" or "fp8"
    group: int  #: k that share a scale; 0 where a row does
    batch: tuple[int, int]  #: outer and inner; an unbatched product is (1, 1)
    x: Matrix
    values: Matrix
    scales: Matrix
    out: Matrix
    zeros: Matrix | None = None
    bias: tuple[str, int, int] | None = None  #: its dtype, its strides in elements: of columns, of groups of rows
    #: row m is in one product of the inner batch alone; where each one's rows end is known on the GPU. m is of all.
    ragged: bool = False

    def __post_init__(self) -> None:
        if self.k <= self.group:  # one group is the row
            object.__setattr__(self, "group", 0)
        columns = {
            "x": (self.m, self.k), "values": (self.n, self.k_stored), "scales": (self.n, self.groups),
            "zeros": (self.n, self.groups), "out": (self.m, self.n),
        }  # fmt: skip
        for name, extents in columns.items():
            matrix = getattr(self, name)
            if matrix is not None:
                object.__setattr__(self, name, matrix.along((*self.batch, *extents)))
        if self.bias:
            kind, column, row = self.bias
            own = (kind, 0 if self.n == 1 else column, 0 if self.batches == 1 else row)
            object.__setattr__(self, "bias", own)

    @classmethod
    def contiguous(
        cls, m: int, n: int, k: int, *, dtype: str = "fp16", dtype_w: str = "int4", dtype_out: str | None = None,
        dtype_scale: str = "fp16", group: int = 128, zeros: bool = False, bias: str | None = None, batch: int = 1,
        ragged: bool = False,
    ) -> QuantizedProblem:  # fmt: skip
        """The problem of densely stored operands; dtype_out is `dtype` unless it is given, bias its dtype.

        Raises ArgumentError for an odd K of 4-bit numbers.
        """
        if dtype_w in PACKED and k % 2:
            raise ArgumentError(f"k: expected an even K of {dtype_w}, got {k}")
        stored = k // 2 if dtype_w in PACKED else k
        groups = -(-k // group) if group else 1

        def dense(rows: int, columns: int) -> Matrix:
            return Matrix((0, rows * columns, columns, 1))

        def rows(columns: int) -> Matrix:
            return Matrix((0, 0 if ragged else m * columns, columns, 1))

        return cls(
            m, n, k, dtype, dtype_w, dtype_out or dtype, dtype_scale, group, (1, batch), rows(k),
            dense(n, stored), dense(n, groups), rows(n), dense(n, groups) if zeros else None,
            (bias, 1, n if ragged else 0) if bias else None, ragged,
        )  # fmt: skip

    @property
    def is_packed(self) -> bool:
        """Whether a byte has two numbers."""
        return self.dtype_w in PACKED

    @property
    def k_stored(self) -> int:
        """Bytes of a row of values."""
        return self.k // 2 if self.is_packed else self.k

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return -(-self.k // self.group) if self.group else 1

    @property
    def folds(self) -> bool:
        """Whether numbers can be multiplied by their scales before they are by X, exactly: powers of two, in bf16,
        which has E8M0's range."""
        return self.dtype_w == "fp4" and self.dtype_scale == "e8m0" and self.dtype == "bf16" and self.group > 0

    @property
    def has_bias(self) -> bool:
        """Whether a bias is added."""
        return self.bias is not None

    @property
    def batches(self) -> int:
        """Independent products."""
        return prod(self.batch)

    def row_tiles(self, rows: int) -> int:
        """Tiles of `rows` rows along M, of all products; of rows in groups at most, wherever these end."""
        return most_row_tiles(self.m, self.batches, rows) if self.ragged else self.batches * -(-self.m // rows)

    def likely_row_tiles(self, rows: int) -> float:
        """The same on average, if rows choose their groups at random, all alike likely; 1 at least."""
        if not self.ragged:
            return self.row_tiles(rows)
        chosen = 1 - (1 - 1 / self.batches) ** self.m  # that a group has rows at all
        mean = self.m / self.batches
        width = sqrt(2 * max(mean * (1 - 1 / self.batches), 1e-9))
        more = (erfc((step * rows + 0.5 - mean) / width) / 2 for step in range(1, -(-self.m // rows)))
        return max(1.0, self.batches * (chosen + sum(takewhile(lambda p: p > 1e-6, more))))

    @property
    def pointers(self) -> dict[str, str | None]:
        """Types of the pointers that a kernel gets, None of those that are not there."""
        bytes_of = {"e8m0": "u8", "fp8": "u8"}
        return {
            "x_ptr": f"*{self.dtype}", "values_ptr": "*u8", "c_ptr": f"*{self.dtype_out}",
            "scales_ptr": f"*{bytes_of.get(self.dtype_scale, self.dtype_scale)}",
            "zeros_ptr": "*u8" if self.zeros else None, "bias_ptr": f"*{self.bias[0]}" if self.bias else None,
            "ends_ptr": "*i32" if self.ragged else None,
        }  # fmt: skip

    @property
    def typical(self) -> QuantizedProblem:
        """What to plan rows in groups for: the groups that have some, if rows choose at random, each with one row and,
        of what the others have, a standard deviation more than the mean. A product without groups is itself."""
        if not self.ragged:
            return self
        groups = max(1, round(self.batches * (1 - (1 - 1 / self.batches) ** self.m)))
        mean = self.m / groups
        spread = sqrt(max(mean - 1, 0)) if groups > 1 else 0
        return replace(self, m=int(min(self.m, mean + spread)), batch=(1, groups), ragged=False)

    @property
    def flops(self) -> int:
        """A multiplication and an addition per term."""
        return 2 * (1 if self.ragged else self.batches) * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Device memory traffic if each distinct element is read once and each of C written once. Rows in groups: of
        the groups that `typical` has."""
        if self.ragged:
            of_row = self.k * DTYPE_BYTES[self.dtype] + self.n * DTYPE_BYTES[self.dtype_out]
            return replace(self.typical, m=0).bytes + self.m * of_row
        matrices = [
            (self.x, self.m, self.k, DTYPE_BYTES[self.dtype]), (self.values, self.n, self.k_stored, 1),
            (self.scales, self.n, self.groups, DTYPE_BYTES[self.dtype_scale]),
            (self.out, self.m, self.n, DTYPE_BYTES[self.dtype_out]),
        ]  # fmt: skip
        if self.zeros is not None:
            matrices.append((self.zeros, self.n, self.groups, 1))
        total = DTYPE_BYTES[self.bias[0]] * self.n * (self.batches if self.bias[2] else 1) if self.bias else 0
        for matrix, rows, columns, size in matrices:
            extents = (*self.batch, rows, columns)
            total += prod(e if s else min(e, 1) for e, s in zip(extents, matrix.strides, strict=True)) * size
        return total

    def of_sums(self) -> QuantizedProblem:
        """The product without bias with row-major FP32 sums, as a schedule leaves those of each part of K."""
        out = Matrix((self.batch[1] * self.m * self.n, self.m * self.n, self.n, 1))
        return replace(self, bias=None, dtype_out="fp32", out=out)

    @property
    def key(self) -> str:
        """Name of the tuning record: all that a measured time can depend on but the exact strides."""
        group = f"g{self.group}" if self.group else "rows"
        dtypes = f"{self.dtype}_{self.dtype_w}_{self.dtype_scale}_{self.dtype_out}"
        sizes = f"b{self.batches}_m{self.m}_n{self.n}_k{self.k}"
        majors = self.x.major + self.values.major + self.scales.major + self.out.major
        terms = "/zeros" * (self.zeros is not None) + (f"/bias_{self.bias[0]}" if self.bias else "")
        terms += "/ragged" * self.ragged
        return f"quantized_matmul/{majors}/{dtypes}/{group}/{sizes}{terms}"
