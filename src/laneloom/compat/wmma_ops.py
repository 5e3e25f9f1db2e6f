"""The module wmma_ops, name for name: its scripts run after `import laneloom.compat.wmma_ops as wmma_ops`.

    C = wmma_ops.matmul_kunroll(A, B)                        fp16 in, fp32 out
    wmma_ops.gemm_inplace(A, B, C, alpha=1.5, beta=0.3)

A is [M, K] and B is [K, N], fp16, on the GPU, or on the CPU inside `laneloom.emulated`; results are new fp32 tensors.
Every product runs the preset of its name (docs/presets.md). Where wmma_ops was wrong this is right: any M, N and K, any
strides, more than 2**31 elements, a C in place that is not contiguous. Without C, beta has nothing to scale: C is 0.
Gradients reach the operands. Errors are laneloom's: ArgumentError, UnsupportedError.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch

from ..errors import ArgumentError
from ..ops.attention.api import flash_attention as _any_attention
from ..ops.matmul.api import matmul as _any_matmul
from ..ops.matmul.gemm import gemm as _any_gemm
from ..ops.scalars import is_number, shown

#: The argument of `matmul_tiled` -> preset.
TILES = ("tiled_64x64", "tiled_128x64", "tiled_256x64", "tiled_128x128")


def _checked(A: Any, B: Any) -> None:
    for name, operand, axes in (("A", A, "[M, K]"), ("B", B, "[K, N]")):
        if not isinstance(operand, torch.Tensor) or operand.ndim != 2 or operand.dtype != torch.float16:
            what = (
                f"{list(operand.shape)}, {operand.dtype}"
                if isinstance(operand, torch.Tensor)
                else type(operand).__name__
            )
            raise ArgumentError(f"{name}: expected a torch.float16 tensor {axes}, got {what}")


def _multiply(A: torch.Tensor, B: torch.Tensor, preset: str) -> torch.Tensor:
    _checked(A, B)
    return _any_matmul(A, B, out_dtype=torch.float32, config=preset)


def matmul(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B by the standard kernel: 128 x 64 tiles, two buffers in LDS, loads ahead of the matrix instructions."""
    return _multiply(A, B, "standard")


def matmul_adaptive(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B by the kernel that the seed's rule takes for the sizes."""
    return _multiply(A, B, "adaptive")


def matmul_tiled(A: torch.Tensor, B: torch.Tensor, config: int) -> torch.Tensor:
    """A B in tiles of 64 x 64, 128 x 64, 256 x 64 or 128 x 128, for config 0 to 3."""
    if not isinstance(config, Integral) or config not in range(len(TILES)):
        raise ArgumentError(f"config: expected 0, 1, 2 or 3, got {config!r}")
    return _multiply(A, B, TILES[config])


def matmul_kunroll(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with two K-tiles between barriers."""
    return _multiply(A, B, "kunroll")


def matmul_quad(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with four K-tiles between barriers."""
    return _multiply(A, B, "quad")


def matmul_highOcc(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B in tiles small enough for the most waves per SIMD."""
    return _multiply(A, B, "highOcc")


def matmul_noPrefetch(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with one buffer, loaded when the matrix instructions are done."""
    return _multiply(A, B, "noPrefetch")


def matmul_native(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with waits and fences written out."""
    return _multiply(A, B, "native")


def matmul_asmOpt(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with raised priority for waves that multiply."""
    return _multiply(A, B, "asmOpt")


def matmul_zerocopy(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with swizzled LDS and sums stored from where they are."""
    return _multiply(A, B, "zerocopy")


def matmul_swizzled(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with LDS swizzled by exclusive or, without padding."""
    return _multiply(A, B, "swizzled")


def matmul_xor_optimized(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with swizzled LDS and B gathered along K, so that its stores to LDS are vectors."""
    return _multiply(A, B, "xor_optimized")


def matmul_coop(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with half of the waves loading A, the other half B."""
    return _multiply(A, B, "coop")


def matmul_hilbert(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with tiles visited along a Hilbert curve."""
    return _multiply(A, B, "hilbert")


def matmul_pingpong(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B with half of the waves multiplying while the other half moves tiles."""
    return _multiply(A, B, "pingpong")


def matmul_opt(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B in tiles of 128 x 128, B transposed between lanes."""
    return _multiply(A, B, "opt")


def _gemm(A: Any, B: Any, alpha: float, beta: float, C: Any, out: Any, preset: str) -> torch.Tensor:
    _checked(A, B)
    if C is not None and (not isinstance(C, torch.Tensor) or C.dtype != torch.float32):
        raise ArgumentError(f"C: expected a torch.float32 tensor, got {getattr(C, 'dtype', type(C).__name__)}")
    return _any_gemm(A, B, C, alpha=alpha, beta=beta, out=out, out_dtype=torch.float32, config=preset)


def gemm(
    A: torch.Tensor, B: torch.Tensor, alpha: float = 1.0, beta: float = 0.0, C: torch.Tensor | None = None
) -> torch.Tensor:
    """alpha A B + beta C by the standard kernel, as a new tensor. C [M, N] fp32 is not read if beta is 0."""
    return _gemm(A, B, alpha, beta, C, None, "standard")


def gemm_adaptive(
    A: torch.Tensor, B: torch.Tensor, alpha: float = 1.0, beta: float = 0.0, C: torch.Tensor | None = None
) -> torch.Tensor:
    """alpha A B + beta C by the kernel that the seed's rule takes for the sizes, as a new tensor."""
    return _gemm(A, B, alpha, beta, C, None, "adaptive")


def gemm_inplace(
    A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, alpha: float = 1.0, beta: float = 0.0
) -> torch.Tensor:
    """C = alpha A B + beta C, in C's own memory, whatever its strides; returns C."""
    _checked(A, B)
    if not isinstance(C, torch.Tensor) or C.shape != (A.shape[0], B.shape[1]):
        what = list(C.shape) if isinstance(C, torch.Tensor) else type(C).__name__
        raise ArgumentError(f"C: expected a tensor {[A.shape[0], B.shape[1]]}, which is written, got {what}")
    return _gemm(A, B, alpha, beta, C, C, "standard")


def flash_attention(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool = False, scale: float = -1.0
) -> torch.Tensor:
    """softmax(scale Q K^T) V of [B, H, N, D] fp16 tensors, to fp16; a negative scale means 1 / sqrt(D).

    causal: query i sees the keys up to i, whatever the number of keys (aligned at the top left).
    """
    if not is_number(scale):
        raise ArgumentError(f"scale: expected a number, of which a negative one means 1 / sqrt(D), got {shown(scale)}")
    mask = "top_left" if causal else False
    return _any_attention(Q, K, V, causal=mask, scale=None if scale < 0 else scale)
