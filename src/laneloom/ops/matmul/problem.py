"""What one matrix product is: sizes, dtypes and where its elements lie. No tensors, no GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

from ...errors import ArgumentError
from .dtypes import ACCUMULATORS, DTYPE_BYTES, default_output, stored_k

__all__ = ["ACTIVATIONS", "DTYPE_BYTES", "Epilogue", "MatmulProblem", "Matrix"]


@dataclass(frozen=True)
class Matrix:
    """Where an operand's element [outer, inner, row, column] lies, relative to its base address."""

    strides: tuple[int, int, int, int]  #: of outer batch, inner batch, row, column, in elements; 0 repeats
    alignment: int = 16  #: bytes; the largest power of two up to 16 that divides the base address

    @property
    def major(self) -> str:
        """ "n" if it is contiguous along its last axis, "t" if along the one before, "x" if along neither."""
        row, column = self.strides[2:]
        return "n" if column == 1 else "t" if row == 1 else "x"

    def transposed(self) -> Matrix:
        """Its transpose where it lies."""
        outer, inner, row, column = self.strides
        return replace(self, strides=(outer, inner, column, row))

    def along(self, extents: tuple[int, int, int, int]) -> Matrix:
        """The same matrix with stride 0 along every axis of at most one element, whose stride has no meaning."""
        if all(e > 1 or s == 0 for s, e in zip(self.strides, extents, strict=True)):
            return self
        strides = tuple(s if e > 1 else 0 for s, e in zip(self.strides, extents, strict=True))
        return replace(self, strides=strides)


@dataclass(frozen=True)
class Epilogue:
    """What becomes of the sums: C = activation(alpha scale_a (A B) scale_b + beta D + bias); this holds its shape.

    alpha and beta are values of a call, not of the problem; `scaled` says whether there is an alpha other than 1.
    """

    scaled: bool = False
    addend: Matrix | None = None  #: D, of C's shape; stride 0 repeats
    dtype_addend: str = ""
    bias: tuple[str, int] | None = None  #: the axis that it lies along, "m" or "n", and its stride in elements
    dtype_bias: str = ""
    activation: str | None = None  #: one of ACTIVATIONS
    scale_a: str | None = None  #: fp32: "tensor" for one number, "row" for one for each row of C
    scale_b: str | None = None  #: fp32: "tensor", or "column" for one for each column of C

    @property
    def key(self) -> str:
        """The epilogue's part of a tuning record's name."""
        parts = [f"scale_{name}_{axis}" for name, axis in (("a", self.scale_a), ("b", self.scale_b)) if axis]
        parts += ["alpha"] * self.scaled
        parts += [f"add_{self.dtype_addend}"] * (self.addend is not None)
        parts += [f"bias_{self.bias[0]}_{self.dtype_bias}"] if self.bias else []
        return "+".join([*parts, *([self.activation] if self.activation else [])])

    def transposed(self) -> Epilogue:
        """That of C^T = B^T A^T."""
        return replace(
            self, scale_a="row" if self.scale_b == "column" else self.scale_b,
            scale_b="column" if self.scale_a == "row" else self.scale_a,
            bias=self.bias and ("n" if self.bias[0] == "m" else "m", self.bias[1]),
            addend=self.addend and self.addend.transposed(),
        )  # fmt: skip


#: K of a block that has a scale, and the rows of A, or columns of B, of one where they share it
SCALE_BLOCK = 128


@dataclass(frozen=True)
class BlockScales:
    """FP32 scales of A's and B's blocks along K, of SCALE_BLOCK each:

    sum over blocks x of A_scale[m / rows, x] B_scale[x, n / columns] (sum over k in x of A[m, k] B[k, n]).
    """

    a: Matrix  #: where A's lie: a row is `rows` of A's, a column a block of K
    b: Matrix  #: where B's lie: a row is a block of K, a column `columns` of B's
    rows: int = 1  #: or SCALE_BLOCK
    columns: int = 1  #: or SCALE_BLOCK

    @property
    def key(self) -> str:
        """Their part of a tuning record's name."""
        return f"blocks_{self.rows}_{self.columns}"

    def transposed(self) -> BlockScales:
        """Those of C^T = B^T A^T."""
        return BlockScales(self.b.transposed(), self.a.transposed(), self.columns, self.rows)


#: What may be applied to alpha scale_a (A B) scale_b + beta D + bias. gelu is exact, by erf.
ACTIVATIONS = ("relu", "gelu", "silu")


def most_row_tiles(m: int, groups: int, rows: int) -> int:
    """Tiles of `rows` rows of m rows in groups, wherever these end: as many as there can be."""
    begun = min(groups, m)  # groups with rows, the last tile of each of which may have one
    return begun + (m - begun) // rows


@dataclass(frozen=True)
class MatmulProblem:
    """C[o, i, m, n] = sum over k of A[o, i, m, k] B[o, i, k, n], with o, i over `batch`, then the epilogue.

    Strides of axes with one element are set to 0, so that equal products are equal problems.
    """

    m: int
    n: int
    k: int
    dtype_a: str
    dtype_b: str
    dtype_out: str
    batch: tuple[int, int]  #: outer and inner; an unbatched product is (1, 1)
    a: Matrix
    b: Matrix
    out: Matrix
    epilogue: Epilogue | None = None  #: None for the bare product
    precision: str = "ieee"  #: one of dtypes.PRECISIONS
    dtype_acc: str = ""  #: what the products are summed in; by default the first of dtypes.ACCUMULATORS
    scales: BlockScales | None = None  #: of blocks along K, of 8-bit floats
    #: Whether A's rows lie in groups, one after another, each against one of the batch's B, where only the GPU knows; A
    #: and C have stride 0 along the batch.
    grouped: bool = False
    #: Whether K lies in groups, one after another, each a product of the batch, where only the GPU knows; A and B have
    #: stride 0 along the batch. `k` is that of all groups.
    k_grouped: bool = False

    def __post_init__(self) -> None:
        if not self.dtype_acc:
            object.__setattr__(self, "dtype_acc", ACCUMULATORS.get(self.dtype_a, ("fp32",))[0])
        if self.epilogue and self.epilogue.addend:
            addend = self.epilogue.addend.along((*self.batch, self.m, self.n))
            object.__setattr__(self, "epilogue", replace(self.epilogue, addend=addend))
        k = self.k_stored
        for name, rows, columns in (("a", self.m, k), ("b", k, self.n), ("out", self.m, self.n)):
            object.__setattr__(self, name, getattr(self, name).along((*self.batch, rows, columns)))
        if self.scales:
            blocks = -(-self.k // SCALE_BLOCK)
            of_a = self.scales.a.along((*self.batch, -(-self.m // self.scales.rows), blocks))
            of_b = self.scales.b.along((*self.batch, blocks, -(-self.n // self.scales.columns)))
            object.__setattr__(self, "scales", replace(self.scales, a=of_a, b=of_b))

    @classmethod
    def contiguous(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        dtype: str = "fp16",
        dtype_out: str | None = None,
        batch: int = 1,
        layout: str = "nn",
        epilogue: Epilogue | None = None,
        dtype_b: str | None = None,
        precision: str = "ieee",
        dtype_acc: str = "",
        scales: tuple[int, int] | None = None,
    ) -> MatmulProblem:
        """The problem of densely stored operands.

        `layout` has A's letter and B's: "n" stores A as [M, K] and B as [K, N], "t" stores A as [K, M] and B as [N, K].
        scales: rows of A and columns of B that share a scale of a block of K, 1 or SCALE_BLOCK; both dense along K's
        blocks last, as A and B^T are.
        dtype_b is `dtype` and dtype_out what a call makes of it, unless they are given. Raises ArgumentError for
        another layout.
        """
        if layout not in ("nn", "nt", "tn", "tt"):
            raise ArgumentError(f"layout: expected 'nn', 'nt', 'tn' or 'tt', got {layout!r}")
        p = stored_k(k, dtype)
        a = Matrix((0, m * p, p, 1) if layout[0] == "n" else (0, m * p, 1, m))
        b = Matrix((0, p * n, n, 1) if layout[1] == "n" else (0, p * n, 1, p))
        dtypes = (dtype, dtype_b or dtype, dtype_out or default_output(dtype, epilogue is not None))
        c = Matrix((0, m * n, n, 1))
        of_blocks = None
        if scales is not None:
            blocks, rows, columns = -(-k // SCALE_BLOCK), -(-m // scales[0]), -(-n // scales[1])
            of_a = Matrix((0, rows * blocks, blocks, 1), 4)
            of_blocks = BlockScales(of_a, Matrix((0, columns * blocks, 1, blocks), 4), *scales)
        return cls(m, n, k, *dtypes, (1, batch), a, b, c, epilogue, precision, dtype_acc, of_blocks)

    @property
    def in_groups(self) -> bool:
        """Whether rows or K lie in groups that only the GPU knows."""
        return self.grouped or self.k_grouped

    @property
    def has_terms(self) -> bool:
        """Whether there are terms; scales alone are none where rows lie in groups, whose schedules all have them."""
        e = self.epilogue
        return e is not None and bool(not self.grouped or e.scaled or e.addend or e.bias or e.activation)

    @property
    def adds_blocks(self) -> bool:
        """Whether sums of each SCALE_BLOCK of K are added up in FP32: of blocks that have scales, or promoted ones."""
        return self.scales is not None or self.precision == "promoted"

    @property
    def k_stored(self) -> int:
        """Stored elements along K: K, or half of it where each has two values."""
        return stored_k(self.k, self.dtype_a)

    def transposed(self) -> MatmulProblem:
        """The product C^T = B^T A^T of the same matrices where they lie."""
        return self._transposed

    @cached_property
    def _transposed(self) -> MatmulProblem:  # a plan asks for it thousands of times
        return replace(
            self, m=self.n, n=self.m, dtype_a=self.dtype_b, dtype_b=self.dtype_a, a=self.b.transposed(),
            b=self.a.transposed(), out=self.out.transposed(), epilogue=self.epilogue and self.epilogue.transposed(),
            scales=self.scales and self.scales.transposed(),
        )  # fmt: skip

    def with_elements(self) -> MatmulProblem:
        """The same with one of whatever there are none of: batches, rows, columns, terms."""
        batch = max(self.batch[0], 1), max(self.batch[1], 1)
        return replace(self, m=max(self.m, 1), n=max(self.n, 1), k=max(self.k, 1), batch=batch)

    def one_product(self) -> MatmulProblem:
        """Any product of the batch: its matrices are as aligned as those of all of them."""
        if self.batches == 1:
            return self

        def any_of(matrix: Matrix, dtype: str) -> Matrix:
            steps = (stride * DTYPE_BYTES[dtype] for stride in matrix.strides[:2])
            return replace(matrix, alignment=gcd(matrix.alignment, *steps))

        e = self.epilogue
        if e is not None and e.addend is not None:
            e = replace(e, addend=any_of(e.addend, e.dtype_addend))
        a, b = any_of(self.a, self.dtype_a), any_of(self.b, self.dtype_b)
        return replace(self, batch=(1, 1), a=a, b=b, out=any_of(self.out, self.dtype_out), epilogue=e)

    def of_equal_groups(self) -> MatmulProblem:
        """A batch of products of equal sizes as large as the groups together; the problem itself where it has none."""
        if self.k_grouped:
            k = -(-self.k // self.batches)
            a = replace(self.a, strides=(0, k * self.a.strides[3], *self.a.strides[2:]))
            b = replace(self.b, strides=(0, k * self.b.strides[2], *self.b.strides[2:]))
            return replace(self, k=k, a=a, b=b, k_grouped=False)
        if not self.grouped:
            return self
        m = -(-self.m // self.batches)
        a, out = (replace(x, strides=(0, m * x.strides[2], *x.strides[2:])) for x in (self.a, self.out))
        return replace(self, m=m, a=a, out=out, grouped=False)

    @property
    def dtype_sums(self) -> str:
        """What the bare product is stored as for a launch that finishes it: what it is summed in by default."""
        return ACCUMULATORS[self.dtype_a][0]

    def of_sums(self) -> MatmulProblem:
        """The bare product with row-major sums, as a schedule leaves those of each part of K.

        Batch axes that were merged were neighbours, so sums lie as those of a row-major result of any shape.
        """
        out = Matrix((self.batch[1] * self.m * self.n, self.m * self.n, self.n, 1))
        return replace(self, epilogue=None, dtype_out=self.dtype_sums, out=out)

    @property
    def batches(self) -> int:
        """Independent products."""
        return prod(self.batch)

    def tiles(self, block_m: int, block_n: int) -> int:
        """Tiles of all products; of rows in groups as many as there can be, wherever the groups end."""
        rows = self.batches * -(-self.m // block_m)
        if self.grouped:
            rows = most_row_tiles(self.m, self.batches, block_m)
        return rows * -(-self.n // block_n)

    @property
    def flops(self) -> int:
        """A multiplication and an addition per term."""
        return 2 * (1 if self.in_groups else self.batches) * self.m * self.n * self.k

    @cached_property
    def bytes(self) -> int:
        """Device memory traffic if each distinct element of A and B is read once and each of C written once."""
        total = 0
        matrices = [
            (self.a, self.m, self.k_stored, self.dtype_a),
            (self.b, self.k_stored, self.n, self.dtype_b),
            (self.out, self.m, self.n, self.dtype_out),
        ]
        if self.epilogue and self.epilogue.addend:
            matrices.append((self.epilogue.addend, self.m, self.n, self.epilogue.dtype_addend))
        for matrix, rows, columns, dtype in matrices:
            extents = (*self.batch, rows, columns)
            distinct = (e if s else min(e, 1) for e, s in zip(extents, matrix.strides, strict=True))
            total += prod(distinct) * DTYPE_BYTES[dtype]
        return total

    @property
    def layout(self) -> str:
        """A's and B's letters, "nn", "nt", "tn" or "tt"; "x" is an operand that is contiguous along neither axis."""
        return self.a.major + self.b.major

    @cached_property
    def vector_a(self) -> int:
        """Elements of A that one aligned load of at most 16 bytes takes: a power of two.

        Along K the strides and the base address decide, because the end of K is masked. Along M (N for B) the extent
        has to be whole vectors as well, because a vector is read wholly or not at all there; groups begin and end
        anywhere.
        """
        if self.grouped and self.a.major == "t":
            return 1
        return self._vector(self.a, self.dtype_a, along_k=self.a.major == "n", rows=self.m)

    @cached_property
    def vector_b(self) -> int:
        """Elements of B that one aligned load of at most 16 bytes takes; as `vector_a`."""
        return self._vector(self.b, self.dtype_b, along_k=self.b.major == "t", rows=self.n)

    @cached_property
    def vector_out(self) -> int:
        """Elements of C that one aligned store of at most 16 bytes takes along N: a power of two."""
        if self.out.major != "n":
            return 1
        return self._vector(self.out, self.dtype_out, along_k=False, rows=self.n)

    @cached_property
    def vector_addend(self) -> int:
        """Elements of the epilogue's addend that one aligned load of at most 16 bytes takes along N; 1 without one."""
        if self.epilogue is None or self.epilogue.addend is None or self.epilogue.addend.major != "n":
            return 1
        return self._vector(self.epilogue.addend, self.epilogue.dtype_addend, along_k=False, rows=self.n)

    def _vector(self, matrix: Matrix, dtype: str, *, along_k: bool, rows: int) -> int:
        if matrix.major == "x" or (along_k and self.k_grouped):
            return 1
        outer, inner, row, column = matrix.strides
        pitch = row if matrix.major == "n" else column
        limits = [stride * DTYPE_BYTES[dtype] for stride in (outer, inner, pitch)]
        limits += [matrix.alignment] if along_k else [matrix.alignment, rows * DTYPE_BYTES[dtype]]
        vector = 16 // DTYPE_BYTES[dtype]
        while any(limit % (vector * DTYPE_BYTES[dtype]) for limit in limits):
            vector //= 2
        return vector

    @cached_property
    def key(self) -> str:
        """Name of the tuning record: all that a measured time can depend on but the exact strides."""
        dtypes = "_".join((self.dtype_a, self.dtype_b, self.dtype_out))
        if self.dtype_acc != ACCUMULATORS.get(self.dtype_a, ("fp32",))[0]:
            dtypes += f"_acc_{self.dtype_acc}"
        if self.precision != "ieee":
            dtypes += f"_{self.precision}"
        sizes = f"{'g' if self.grouped else 'k' if self.k_grouped else 'b'}{self.batches}_m{self.m}_n{self.n}_k{self.k}"
        terms = "+".join(part.key for part in (self.scales, self.epilogue) if part)
        suffix = f"/{terms}" if terms else ""
        return f"matmul/{self.layout}/{dtypes}/{sizes}/v{self.vector_a}_{self.vector_b}{suffix}"
