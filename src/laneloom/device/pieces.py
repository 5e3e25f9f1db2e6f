"""Copy a matrix so that it is contiguous along one axis, with rows of whole 128-byte lines, whole or in pieces.

FP32 in pieces: x = x1 + x2 (+ x3) with x1 the nearest TF32 (BF16) to x, x2 the nearest to x - x1, and so on. Two TF32
pieces hold 22 bits of x, three BF16 pieces 24. An infinite or NaN x is x1, its other pieces are 0. Triton, Hopper.
Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores".
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .prepared import PreparedLaunch
from .repack import line_pitch

_TORCH = {
    "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn,
    "bf8": torch.float8_e5m2, "int8": torch.int8, "uint8": torch.uint8, "fp32": torch.float32, "fp64": torch.float64,
}  # fmt: skip
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
BLOCK_ROWS, BLOCK_K = 64, 64


@triton.jit
def _nearest(x, KIND: tl.constexpr):
    """The nearest TF32 or BF16, as FP32; x where that is not finite."""
    if KIND == "tf32":
        bits = x.to(tl.int32, bitcast=True)
        # Half of the last place that stays is added, ties away from zero; if that overflows, the rest is cut off.
        rounded = (bits + 0x1000) & ~0x1FFF
        near = tl.where((rounded & 0x7F800000) == 0x7F800000, bits & ~0x1FFF, rounded).to(tl.float32, bitcast=True)
    else:
        near = x.to(tl.bfloat16).to(tl.float32)
        near = tl.where(near - near == 0, near, (x.to(tl.int32, bitcast=True) & ~0xFFFF).to(tl.float32, bitcast=True))
    return tl.where(x - x == 0, near, x)


@triton.jit
def cut_into_pieces(source_ptr, copy_ptr, rows, K, stride_row, stride_k, pitch, stride_piece, PIECES: tl.constexpr,
                    KIND: tl.constexpr, ROWS_FIRST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                    PDL: tl.constexpr):
    """copy[piece, row, k] of source[row, k]. ROWS_FIRST: neighbours along the rows are neighbours in memory."""
    if PDL:
        gdc_launch_dependents()
        # The copy may still be read, and the source still be written, by the launches ahead.
        gdc_wait()
    blocks = tl.cdiv(K, COLUMNS)
    row = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)
    k = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (k < K)[None, :]
    if ROWS_FIRST:
        turned = tl.load(source_ptr + k.to(tl.int64)[:, None] * stride_k + row.to(tl.int64)[None, :] * stride_row,
                         mask=(k < K)[:, None] & (row < rows)[None, :])  # [COLUMNS, ROWS]
        x = tl.trans(turned)
    else:
        x = tl.load(source_ptr + row.to(tl.int64)[:, None] * stride_row + k.to(tl.int64)[None, :] * stride_k,
                    mask=inside)
    to = copy_ptr + row.to(tl.int64)[:, None] * pitch + k[None, :]
    if KIND == "as it is":
        tl.store(to, x, mask=inside)
    else:
        for piece in tl.static_range(PIECES):
            near = _nearest(x, KIND)
            tl.store(to + piece * stride_piece.to(tl.int64), near.to(copy_ptr.dtype.element_ty), mask=inside)
            x = tl.where(x - x == 0, x - near, 0.0)


class PiecesLaunch:
    """The copy of one matrix of fixed shape, call after call."""

    def __init__(self, dtype: str, pieces: int, rows: int, k: int, strides: tuple[int, int], *, pdl: bool) -> None:
        """`dtype` of the copy; "tf32" and more than one piece of "bf16" are made of FP32. `strides`: of rows, and of k,
        along which the copy is contiguous."""
        self._dtype = _TORCH[dtype]
        cut = dtype == "tf32" or pieces > 1
        self.pitch = line_pitch(k, self._dtype.itemsize)
        self._shape = (pieces, rows, self.pitch)
        kind = dtype if cut else "as it is"
        bits = None if cut else _BITS[self._dtype.itemsize]  # bits are bits: one kernel for every type of a size
        arguments = (
            rows, k, *strides, self.pitch, rows * self.pitch, pieces, kind, strides[0] == 1 and strides[1] != 1,
            BLOCK_ROWS, BLOCK_K, pdl,
        )  # fmt: skip
        grid = (triton.cdiv(rows, BLOCK_ROWS) * triton.cdiv(k, BLOCK_K),)
        self._launch = PreparedLaunch(
            cut_into_pieces, grid, lambda *tensors: (*(x.view(bits) if bits else x for x in tensors), *arguments),
            num_warps=4, launch_pdl=pdl,
        )  # fmt: skip

    def __call__(self, source: torch.Tensor) -> torch.Tensor:
        """The copy, [pieces, rows, pitch], of the matrix at `source`; columns past K hold anything."""
        copy = torch.empty(self._shape, dtype=self._dtype, device=source.device)
        self._launch(source, copy)
        return copy
