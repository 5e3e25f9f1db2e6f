"""The products of which the transform is made, under the names that MADNESS gives them: mTxm, mxm, mxmT, mTxmT.

c = a^T b, a b, a b^T and a^T b^T for float64, float32, complex128 and complex64, in that precision, by the schedule
`rows`; on the GPU that Triton drives, or on the CPU inside `laneloom.emulated`. a may carry batch axes, b is one
matrix, of a's dtype or, where a is complex, of its parts'. A product with b^T does not conjugate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ArgumentError, UnsupportedError
from ..target import active_gpu, expected_device_type
from .config import RowsConfig

if TYPE_CHECKING:
    import torch


def mTxm(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, accumulate: bool = False
) -> torch.Tensor:
    """c[..., i, j] = sum over k of a[..., k, i] b[k, j]; with `accumulate`, added to `out`. Raises as `mxm`."""
    return _product("mTxm", a, b, out, accumulate)


def mxm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, accumulate: bool = False) -> torch.Tensor:
    """c[..., i, j] = sum over k of a[..., i, k] b[k, j]; with `accumulate`, added to `out`.

    a: [..., I, K] and b: [K, J] with any strides; out: [..., I, J], dense. Takes no part in autograd. Raises
    ArgumentError for operands that do not fit together or are elsewhere, UnsupportedError for other dtypes.
    """
    return _product("mxm", a.mT, b, out, accumulate)


def mxmT(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, accumulate: bool = False
) -> torch.Tensor:
    """c[..., i, j] = sum over k of a[..., i, k] b[j, k]; with `accumulate`, added to `out`. Raises as `mxm`."""
    return _product("mxmT", a.mT, b.mT, out, accumulate)


def mTxmT(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, accumulate: bool = False
) -> torch.Tensor:
    """c[..., i, j] = sum over k of a[..., k, i] b[j, k]; with `accumulate`, added to `out`. Raises as `mxm`."""
    return _product("mTxmT", a, b.mT, out, accumulate)


def _product(name: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, accumulate: bool) -> torch.Tensor:
    """a [..., K, I] and b [K, J]."""
    import torch

    from .kernels import rows

    if a.dim() < 2 or b.dim() != 2 or a.shape[-2] != b.shape[0]:
        raise ArgumentError(f"{name}: a and b do not fit together, as matrices they are {a.mT.shape} and {b.shape}")
    if a.dtype not in (torch.float64, torch.float32, torch.complex128, torch.complex64):
        raise UnsupportedError(f"{name}: a must be torch.float64, float32, complex128 or complex64, got {a.dtype}")
    if b.dtype not in (a.dtype, a.dtype.to_real() if a.is_complex() else a.dtype) or a.device != b.device:
        raise ArgumentError(f"{name}: b must be {a.dtype} on {a.device}, as a is, got {b.dtype} on {b.device}")
    shape = (*a.shape[:-2], a.shape[-1], b.shape[1])
    if out is None:
        if accumulate:
            raise ArgumentError(f"{name}: accumulate needs out, to which the product is added")
        out = a.new_empty(shape)
    if tuple(out.shape) != shape or out.dtype != a.dtype or not out.is_contiguous():
        raise ArgumentError(
            f"{name}: out must be a dense {a.dtype} of shape {shape}, got {out.dtype} {tuple(out.shape)}"
        )
    gpu = active_gpu()
    if a.device.type != expected_device_type():
        raise ArgumentError(f"{name}: a must be on {expected_device_type()} for {gpu.name}, got {a.device}")
    if out.numel():
        batch = a.shape[:-2].numel()
        plain_a, plain_b = (t.detach().resolve_conj().resolve_neg() for t in (a, b))
        flat = plain_a.reshape(batch, *a.shape[-2:])
        with torch.cuda.device(a.device if a.device.type == "cuda" else -1):
            rows.multiply(RowsConfig(), flat, plain_b, out.view(batch, *shape[-2:]), accumulate=accumulate)
    return out
