"""`laneloom.flash_attention`: what users call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..scalars import shown
from ..target import gpu_for_arrays
from ..traced import loaded
from . import execute
from .arguments import aligned_copy, aligned_empty, checked_scale, checked_softcap, is_direct

_PACKED_AXES = 3
_ON_TENSORS = f"{__package__}.torch_op"  #: the module that needs torch

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray


def flash_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    causal: bool | Literal["bottom_right", "top_left"] = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    cu_seqlens_q: Operand | None = None,
    cu_seqlens_k: Operand | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    scale_q: float | torch.Tensor | None = None,
    scale_k: float | torch.Tensor | None = None,
    scale_v: float | torch.Tensor | None = None,
    out_dtype: Any = None,
) -> Any:
    """O[b,h,i,:] = sum over j of P[i,j] V[b,g,j,:], P[i,:] the softmax of scale Q[b,h,i,:] . K[b,g,j,:] over the keys
    that query i sees, g = h // (H / H_kv).

    q: [B, H, N, D]; k: [B, H_kv, N_k, D]; v: [B, H_kv, N_k, D_V]. fp16 or bf16, all of one dtype; D and D_V multiples
        of 8 from 16 to 512; H a multiple of H_kv; N and N_k from 0. Torch tensors on the GPU that Triton drives, or on
        the CPU inside `laneloom.emulated`; numpy arrays (float16) only there. An operand is read where it lies if its
        last axis is contiguous, its rows begin at multiples of 16 bytes and are less than 2**23 elements apart (views
        of [B, N, H, D] are); any other is copied first. O and the gradients are new tensors, [B, N, H, D] in memory
        where q, or the operand, is a view of that.
    causal: True or "bottom_right": query i sees the keys up to i + N_k - N; "top_left": up to i.
    scale: 1 / sqrt(D) by default; a number from -1e30 to 1e30. Scores beyond 2**27 in magnitude, of which FP32 keeps
        multiples of 16, may become infinite weights: O is infinite or NaN then.
    window: (left, right): query i, standing at key i + N_k - N (with "top_left" at key i), sees so many keys before and
        after that one; None or -1 for no limit. causal with a window is both.
    softcap: scores become softcap tanh(scale Q . K / softcap) before the mask, as in Gemma 2: a number from 1e-30 to
        1e30; None, or 0 as in flash-attn, for none. On Hopper not of 8-bit operands, and above 128 by the general,
        slower schedule.
    return_lse: return (O, LSE), LSE[b,h,i] = log of the sum over the seen keys of exp(scale Q . K), or of the capped
        scores, fp32. It is differentiable.
    deterministic: the same call gives the same bits. The forward always does, and so does the backward but for Hopper's
        own schedule, which adds up dQ by atomics: with deterministic=True, or torch.use_deterministic_algorithms(True),
        the general, slower one takes its place.
    cu_seqlens_q, cu_seqlens_k: sequences of different lengths one after the other, "packed": then q is [all queries,
        H, D], k [all keys, H_kv, D], v [all keys, H_kv, D_V], O [all queries, H, D_V], LSE [H, all queries]. int32
        vectors of B + 1 elements on q's device; sequence b is the rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1: from
        0, never falling, the last one the number of rows (not checked on a GPU). By default cu_seqlens_k is
        cu_seqlens_q.
    max_seqlen_q, max_seqlen_k: the longest sequences' lengths (longer is allowed; shorter is refused in the emulator
        and leaves rows undefined on a GPU); computed by default, for which the host waits; that of k is q's where
        cu_seqlens_k is left out.
    scale_q, scale_k, scale_v: of 8-bit operands, what each was divided by before it was rounded: a number, or fp32
        with one element or one for each sequence and head of keys, [B, H_kv]; all above 0.
    out_dtype: of 8-bit operands, torch.bfloat16 (the default) or torch.float16; others give q's.

    Products are exact and sums FP32, softmax in FP32 in base 2; P is rounded to the operands' dtype before it is
    multiplied by V, and so are P and dS in the backward; O and the gradients are rounded once. A query that sees no key
    gives zeros and LSE = -inf. What the mask hides is multiplied by 0, so that NaN or infinity in V reaches the queries
    of its block. Gradients of q, k, v from those of O and LSE; second derivatives raise UnsupportedError.

    Also torch.float8_e4m3fn, D and D_V multiples of 16, without gradients: the scores are multiplied by scale_q and
    scale_k, O by scale_v. On AMD such operands become fp16, exactly, and so does P. On Hopper, for D up to 256 and
    D_V up to 128, P is rounded to e4m3, as 2**8 times its share of the row's largest weight so far; the tensor cores
    keep about 14 bits of a sum over 128 keys, and these sums are added up in FP32.

    Raises ArgumentError for operands or options that do not fit, UnsupportedError for what no schedule can do.
    Source: Dao, "FlashAttention-2", arXiv:2307.08691; docs/attention.md derives it.
    """
    seen = execute.band_of(causal, window)
    scale, cap = checked_scale(scale), checked_softcap(softcap)
    if not (isinstance(return_lse, bool) and isinstance(deterministic, bool)):
        name, flag = ("deterministic", deterministic) if isinstance(return_lse, bool) else ("return_lse", return_lse)
        raise ArgumentError(f"{name}: expected True or False, got {shown(flag)}")
    scales = {"scale_q": scale_q, "scale_k": scale_k, "scale_v": scale_v}
    torch = sys.modules.get("torch")
    float8 = torch is not None and isinstance(q, torch.Tensor) and q.dtype == torch.float8_e4m3fn
    if not float8 and not (scale_q is scale_k is scale_v is out_dtype is None):
        _refuse_float8_options(q, scales, out_dtype)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if torch is not None and (
        isinstance(q, torch.Tensor) or isinstance(k, torch.Tensor) or isinstance(v, torch.Tensor)
    ):
        packing = execute.packing_of(lengths, torch.int32)
        if packing is not None:
            q, k, v = (_with_heads_first(name, x, packing) for name, x in (("q", q), ("k", k), ("v", v)))
        if float8:
            from .torch_float8 import attend_float8

            out, lse = attend_float8(q, k, v, scale, seen, packing, scales, out_dtype, cap)
        else:
            torch_op = loaded(_ON_TENSORS)
            if torch_op is None:
                from . import torch_op
            out, lse = torch_op.attend_tensors(q, k, v, scale, seen, packing, deterministic, cap)
    else:
        packing = execute.packing_of(lengths, np.dtype(np.int32))
        q, k, v = (_with_heads_first(name, x, packing) for name, x in (("q", q), ("k", k), ("v", v)))
        out, lse = _attend_arrays(q, k, v, scale, seen, packing, cap)
    if packing is not None:
        out, lse = out[0].swapaxes(0, 1), lse[0]
    return (out, lse) if return_lse else out


def _refuse_float8_options(q: Any, scales: dict[str, Any], out_dtype: Any) -> None:
    """Raise ArgumentError for what only 8-bit operands have."""
    dtype = getattr(q, "dtype", None)
    for name, x in scales.items():
        if x is not None:
            raise ArgumentError(f"{name}: expected None for operands of {dtype}, scales are those of 8-bit ones")
    if out_dtype is not None and (getattr(out_dtype, "ndim", 0) or out_dtype != dtype):
        raise ArgumentError(f"out_dtype: expected None or q's {dtype}, got {shown(out_dtype)}")


def _with_heads_first(name: str, x: Any, packing: execute.Packing | None) -> Any:
    """Packed rows [all positions, H, D] as [1, H, all positions, D]; anything else as it is."""
    if packing is None or not hasattr(x, "swapaxes") or isinstance(x, type):
        return x
    if getattr(x, "is_nested", False):
        raise UnsupportedError(f"{name}: expected packed rows [positions, H, D] with cu_seqlens_q, got a nested tensor")
    if len(x.shape) != _PACKED_AXES:
        raise ArgumentError(f"{name}: expected 3 axes [positions, H, D] with cu_seqlens_q, got shape {tuple(x.shape)}")
    return x.swapaxes(0, 1)[None]


def _attend_arrays(
    q: Any, k: Any, v: Any, scale: float | None, seen: execute.Band, packing: execute.Packing | None, softcap: float
) -> tuple[Any, Any]:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, np.ndarray):
            raise ArgumentError(f"{name}: expected a torch tensor or a numpy array, got {type(x).__name__}")
    gpu = gpu_for_arrays(q=q, k=k, v=v)
    execute.check_shapes(q, k, v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype != np.float16:
            raise UnsupportedError(f"{name}: expected dtype float16, got {x.dtype}")
    problem = execute.problem_of(q, k, v, "fp16", scale, seen, packing, softcap)
    operands = {
        "q": _direct(q), "k": _direct(k), "v": _direct(v),
        "out": aligned_empty((*q.shape[:3], v.shape[3])), "lse": np.empty(q.shape[:3], np.float32),
    }  # fmt: skip
    if packing is not None:
        operands |= {"first_q": packing.first_q, "first_k": packing.first_k}
    execute.attend_into(problem, gpu, operands)
    return operands["out"], operands["lse"]


def _direct(x: np.ndarray) -> np.ndarray:
    if x.dtype.isnative and is_direct(x, x.ctypes.data):
        return x
    return aligned_copy(x)
