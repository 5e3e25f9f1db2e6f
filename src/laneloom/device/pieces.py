"""Copy one or two matrices, or batches, in one launch: contiguous along one axis, rows of whole 128-byte lines.

Whole, or FP32 in pieces: x = x1 + x2 (+ x3) with x1 the nearest TF32 (BF16) to x, x2 the nearest to x - x1, and so on.
Two TF32 pieces hold 22 bits of x, three BF16 pieces 24. An infinite or NaN x is x1, its others are 0 or NaN. Gluon,
Hopper.

TMA needs 16-byte pitches; matrices of odd sizes have none. A pitch of whole lines, not of 16 bytes, keeps each of its
128-byte requests inside one line: on one H200 (2026-11-20) a 4095x4097x4099 product ran at 617 TFLOP/s from it and at
486 from a 16-byte pitch. The lanes of a warp load neighbours along the axis that the source is contiguous along, in
vectors of what its rows are aligned to, and store 16 bytes each along K; elements change lanes between the two.
Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .hopper import release_successor, wait_for_predecessor
from .prepared import PreparedLaunch

_TORCH = {
    "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn,
    "bf8": torch.float8_e5m2, "int8": torch.int8, "uint8": torch.uint8, "fp32": torch.float32, "fp64": torch.float64,
}  # fmt: skip
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HALVES = {"tf32": 1 << 12, "bf16": 1 << 15}  #: of the last place that a piece keeps, in the bits of an FP32
LINE_BYTES = 128
_VECTOR_BYTES = 16
_LANES = 32
_LANE_BYTES = 32  #: of a copy that lies as its source does, in a lane
_LEAST_ROW, _MOST_ROW = LINE_BYTES, 1024  #: bytes of a block's row there
_WARPS, _TURNING_WARPS = 4, 8  #: where no matrix is turned, and where one is
_TURNED_ROWS = 64  #: of a block that is turned; its rows are lines


@gluon.jit
def _copy_block(source_ptr, copy_ptr, block, rows, K, stride_row, stride_k, lines, ROW_VECTOR: gl.constexpr,
                K_VECTOR: gl.constexpr, LOAD: gl.constexpr, STORE: gl.constexpr, PIECES: gl.constexpr,
                HALF: gl.constexpr, PDL: gl.constexpr):
    ROWS: gl.constexpr = STORE.shape[0]
    COLUMNS: gl.constexpr = STORE.shape[1]
    SIZE: gl.constexpr = source_ptr.dtype.element_ty.primitive_bitwidth // 8
    LINE: gl.constexpr = 128 * 8 // copy_ptr.dtype.element_ty.primitive_bitwidth
    blocks = gl.cdiv(K, COLUMNS)
    first_row = (block // blocks).to(gl.int64) * ROWS
    first_k = (block % blocks).to(gl.int64) * COLUMNS
    pitch = lines * LINE  # of which the compiler knows that vectors divide it
    # Vectors are there as a whole or not at all.
    left_rows = gl.multiple_of(gl.minimum(rows - first_row, ROWS).to(gl.int32), [ROW_VECTOR])
    left_k = gl.multiple_of(gl.minimum(K - first_k, COLUMNS).to(gl.int32), [K_VECTOR])
    left_pitch = gl.minimum(pitch - first_k, COLUMNS).to(gl.int32)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LOAD))[:, None]
    k = gl.arange(0, COLUMNS, gl.SliceLayout(0, LOAD))[None, :]
    pointers = source_ptr + (first_row * stride_row + first_k * stride_k) + (row * stride_row + k * stride_k)
    pointers = gl.multiple_of(pointers, [ROW_VECTOR * SIZE, K_VECTOR * SIZE])
    pointers = gl.max_contiguous(pointers, [ROW_VECTOR, K_VECTOR])
    inside = (row < left_rows) & (k < left_k)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, STORE))[:, None]
    k = gl.arange(0, COLUMNS, gl.SliceLayout(0, STORE))[None, :]
    to = copy_ptr + (first_row * pitch + first_k) + (row * pitch + k)
    in_lines = (row < left_rows) & (k < left_pitch)
    # Every block has rows. The branch keeps the compiler from computing the addresses behind the wait.
    if PDL and left_rows > 0:
        # The copy may still be read, and the source still be written, by the launches ahead.
        wait_for_predecessor()
    x = gl.convert_layout(gl.load(pointers, mask=inside, other=0), STORE)  # [ROWS, COLUMNS]
    if HALF == 0:
        gl.store(to, x, mask=in_lines)
    else:
        # Ties go away from zero. What would round to infinity is cut off, and so are infinity and NaN.
        LIMIT: gl.constexpr = 2.0**128 - HALF * 2.0**104
        bits = x.to(gl.int32, bitcast=True)
        bits = gl.where(gl.abs(x) < LIMIT, bits + HALF, bits)
        for _ in gl.static_range(PIECES):
            near = (bits & (-2 * HALF)).to(gl.float32, bitcast=True)
            gl.store(to, near.to(copy_ptr.dtype.element_ty), mask=in_lines)
            to += rows.to(gl.int64) * pitch
            x -= near
            bits = x.to(gl.int32, bitcast=True) + HALF


@gluon.jit
def _of_product(source_ptr, copy_ptr, block, blocks, rows, lines, inner, stride_outer, stride_inner,
                PIECES: gl.constexpr):
    """The pointers to the matrix of the product that a block belongs to, and to its first piece."""
    LINE: gl.constexpr = 128 * 8 // copy_ptr.dtype.element_ty.primitive_bitwidth
    product = block // blocks
    source_ptr += (product // inner).to(gl.int64) * stride_outer + (product % inner).to(gl.int64) * stride_inner
    return source_ptr, copy_ptr + product.to(gl.int64) * PIECES * rows * lines * LINE


_OF_MATRIX = ("rows", "k", "stride_row", "stride_k", "lines", "products", "inner", "stride_outer", "stride_inner")
_INTEGERS = [f"{name}_{about}" for name in "ab" for about in _OF_MATRIX]


# What matters about the integers is said by constants, so that another size compiles nothing.
@gluon.jit(do_not_specialize=_INTEGERS)
def cut_into_pieces(a_ptr, a_copy_ptr, b_ptr, b_copy_ptr, a_rows, a_k, a_stride_row, a_stride_k, a_lines, a_products,
                    a_inner, a_stride_outer, a_stride_inner, b_rows, b_k, b_stride_row, b_stride_k, b_lines, b_products,
                    b_inner, b_stride_outer, b_stride_inner, A_ROW_VECTOR: gl.constexpr, A_K_VECTOR: gl.constexpr,
                    A_LOAD: gl.constexpr, A_STORE: gl.constexpr, B_ROW_VECTOR: gl.constexpr, B_K_VECTOR: gl.constexpr,
                    B_LOAD: gl.constexpr, B_STORE: gl.constexpr, ALIKE: gl.constexpr, BATCHED: gl.constexpr,
                    WIDE: gl.constexpr, PIECES: gl.constexpr, HALF: gl.constexpr, PDL: gl.constexpr):
    """copy[piece, row, k] of source[row, k], for two matrices: the first programs copy A's blocks, the rest B's.

    lines: of 128 bytes, in a row of the copy; its columns past K hold anything. VECTOR: elements along an axis that lie
    together, aligned to their bytes, as the rows and K themselves are whole numbers of them. ALIKE: both are loaded by
    the same code. BATCHED: copy[product, piece, row, k] of so many products, `inner` of them from one outer step to the
    next. WIDE: offsets inside a block need 64 bits. HALF: of the last place that a piece keeps, in the bits of an FP32;
    0 copies bits.
    """
    if PDL:
        release_successor()
    OFFSET: gl.constexpr = gl.int64 if WIDE else gl.int32
    a_stride_row, a_stride_k, a_lines = a_stride_row.to(OFFSET), a_stride_k.to(OFFSET), a_lines.to(OFFSET)
    b_stride_row, b_stride_k, b_lines = b_stride_row.to(OFFSET), b_stride_k.to(OFFSET), b_lines.to(OFFSET)
    block = gl.program_id(0)
    a_blocks = gl.cdiv(a_rows, A_STORE.shape[0]) * gl.cdiv(a_k, A_STORE.shape[1])
    b_blocks = gl.cdiv(b_rows, B_STORE.shape[0]) * gl.cdiv(b_k, B_STORE.shape[1])
    of_a = a_blocks * a_products if BATCHED else a_blocks
    if BATCHED and block < of_a:
        a_ptr, a_copy_ptr = _of_product(
            a_ptr, a_copy_ptr, block, a_blocks, a_rows, a_lines, a_inner, a_stride_outer, a_stride_inner, PIECES)
    if BATCHED and block >= of_a:
        b_ptr, b_copy_ptr = _of_product(
            b_ptr, b_copy_ptr, block - of_a, b_blocks, b_rows, b_lines, b_inner, b_stride_outer, b_stride_inner,
            PIECES)
    in_a = block < of_a
    if BATCHED:
        block = block % a_blocks if in_a else (block - of_a) % b_blocks
    elif not in_a:
        block -= of_a
    if ALIKE and not in_a:
        a_ptr, a_copy_ptr, a_rows, a_k = b_ptr, b_copy_ptr, b_rows, b_k
        a_stride_row, a_stride_k, a_lines = b_stride_row, b_stride_k, b_lines
    if ALIKE or in_a:
        _copy_block(a_ptr, a_copy_ptr, block, a_rows, a_k, a_stride_row, a_stride_k, a_lines, A_ROW_VECTOR, A_K_VECTOR,
                    A_LOAD, A_STORE, PIECES, HALF, PDL)
    else:
        _copy_block(b_ptr, b_copy_ptr, block, b_rows, b_k, b_stride_row, b_stride_k, b_lines, B_ROW_VECTOR,
                    B_K_VECTOR, B_LOAD, B_STORE, PIECES, HALF, PDL)


def _steps(axis: int, step: int, count: int) -> list[list[int]]:
    """Bits of a number under `count`, as steps along an axis."""
    return [[0, step << bit] if axis else [step << bit, 0] for bit in range(count.bit_length() - 1)]


@cache
def _block_layout(shape: tuple[int, int], axis: int, vector: int, warps: int) -> gl.DistributedLinearLayout:
    """Lanes with `vector` elements each side by side along an axis, more of them and all warps along the other."""
    along, across = shape[axis], shape[1 - axis]
    lanes = min(_LANES, along // vector)
    others = _LANES // lanes
    of_warp = across // warps
    held = _steps(axis, 1, vector) + _steps(axis, vector * lanes, along // (vector * lanes))
    return gl.DistributedLinearLayout(
        held + _steps(1 - axis, others, of_warp // others), _steps(axis, vector, lanes) + _steps(1 - axis, 1, others),
        _steps(1 - axis, of_warp, warps), [], list(shape),
    )  # fmt: skip


def line_pitch(columns: int, element_bytes: int) -> int:
    """The pitch, in elements, of rows of whole 128-byte lines."""
    line = LINE_BYTES // element_bytes
    return -(-columns // line) * line


@dataclass(frozen=True)
class MatrixCopy:
    """One matrix and what its copy is."""

    dtype: str  #: of the copy; "tf32" and more than one piece of "bf16" are made of FP32
    pieces: int
    rows: int
    k: int
    strides: tuple[int, int]  #: of rows, and of K, along which the copy is contiguous
    #: outer and inner number of matrices, and the steps from one to the next
    batch: tuple[int, int] = (1, 1)
    batch_strides: tuple[int, int] = (0, 0)

    @property
    def products(self) -> int:
        """Matrices that are copied."""
        return self.batch[0] * self.batch[1]

    @property
    def pitch(self) -> int:
        """Elements from one row of the copy to the next."""
        return line_pitch(self.k, _TORCH[self.dtype].itemsize)

    @property
    def half(self) -> int:
        """The kernel's HALF."""
        return _HALVES[self.dtype] if self.dtype == "tf32" or self.pieces > 1 else 0

    @property
    def rows_first(self) -> bool:
        """Whether neighbours along the axis of rows are neighbours in memory."""
        return self.strides[0] == 1 != self.strides[1]

    @property
    def vector(self) -> int:
        """Elements of the widest loads, where the matrix begins at a multiple of 16 bytes."""
        if 1 not in self.strides:
            return 1
        size = 4 if self.half else _TORCH[self.dtype].itemsize
        extent, step = (self.rows, self.strides[1]) if self.rows_first else (self.k, self.strides[0])
        return gcd(extent, step, *self.batch_strides, _VECTOR_BYTES // size)

    def block(self, warps: int) -> tuple[int, int]:
        """Rows and columns of a program's block."""
        size = _TORCH[self.dtype].itemsize
        if self.rows_first:
            return _TURNED_ROWS, LINE_BYTES // size
        row = min(max(1 << (self.k * size - 1).bit_length(), _LEAST_ROW), _MOST_ROW)
        return warps * _LANES * _LANE_BYTES // row, row // size

    def layouts(self, vector: int, warps: int) -> tuple[gl.DistributedLinearLayout, gl.DistributedLinearLayout]:
        """Of a block as it is loaded, by vectors of so many elements, and as it is stored."""
        size, block = _TORCH[self.dtype].itemsize, self.block(warps)
        if self.rows_first:
            return _block_layout(block, 0, vector, warps), _block_layout(block, 1, _VECTOR_BYTES // size, warps)
        if size == 1:  # bytes change lanes slowly: every lane stores the 8 that it loads
            return (_block_layout(block, 1, 8, warps),) * 2
        return _block_layout(block, 1, vector, warps), _block_layout(block, 1, _VECTOR_BYTES // size, warps)


class PiecesLaunch:
    """The copies of one or two matrices of fixed shapes, call after call."""

    def __init__(self, *copies: MatrixCopy, pdl: bool) -> None:
        """`copies`: in equally many pieces, with elements of one size. `pdl`: may start while the kernel ahead still
        drains."""
        self._copies, self._pdl = copies, pdl
        self._batched = any(copy.products > 1 for copy in copies)
        self._shapes = [((copy.pieces * copy.products, copy.rows, copy.pitch), _TORCH[copy.dtype]) for copy in copies]
        self._bytes = self._shapes[0][1].itemsize
        self.num_warps = _TURNING_WARPS if any(copy.rows_first for copy in copies) else _WARPS
        blocks = [(copy, *copy.block(self.num_warps)) for copy in copies]
        self.grid = (sum(x.products * -(-x.rows // rows) * -(-x.k // columns) for x, rows, columns in blocks),)
        self._wide = any(
            rows * max(x.strides[0], x.pitch) + columns * x.strides[1] >= 1 << 31 for x, rows, columns in blocks
        )
        self._launch = PreparedLaunch(
            cut_into_pieces, self.grid, self.arguments, num_warps=self.num_warps, launch_pdl=pdl)  # fmt: skip

    def arguments(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """All of the kernel's. `tensors`: a matrix and its copy, then the other and its, or the same again."""
        first = self._copies[0]
        integers: list[int] = []
        constants: list[Any] = []
        # No program reaches the second of two that are the same.
        for copy, source in zip((*self._copies, first)[:2], tensors[::2], strict=True):
            integers += [copy.rows, copy.k, *copy.strides, copy.pitch * self._bytes // LINE_BYTES]
            integers += [copy.products, copy.batch[1], *copy.batch_strides]
            vector = copy.vector if source.data_ptr() % _VECTOR_BYTES == 0 else 1
            constants += (vector, 1) if copy.rows_first else (1, vector)
            constants += copy.layouts(vector, self.num_warps)
        if not first.half:  # bits are bits: one kernel for every type of a size
            tensors = tuple(x.view(_BITS[self._bytes]) for x in tensors)
        return (
            *tensors, *integers, *constants, constants[:4] == constants[4:], self._batched, self._wide, first.pieces,
            first.half, self._pdl,
        )  # fmt: skip

    def __call__(self, *sources: torch.Tensor) -> list[torch.Tensor]:
        """The copies, [products x pieces, rows, pitch], of what is at `sources`; columns past K hold anything."""
        copies = [torch.empty(shape, dtype=dtype, device=sources[0].device) for shape, dtype in self._shapes]
        self._launch(sources[0], copies[0], sources[-1], copies[-1])
        return copies


def placing(
    first: MatrixCopy | None, second: MatrixCopy | None, *, pdl: bool
) -> Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor]]:
    """What gives what the kernel reads of two tensors: each itself, or its copy, which has to live until the kernel is
    launched. One launch makes the copies; `pdl`: it may start while the kernel ahead still drains."""
    copies = [copy for copy in (first, second) if copy is not None]
    if not copies:
        return lambda a, b: (a, b)
    launch = PiecesLaunch(*copies, pdl=pdl)
    if first is None:
        return lambda a, b: (a, *launch(b))
    if second is None:
        return lambda a, b: (*launch(a), b)
    return launch
