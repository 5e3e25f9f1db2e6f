"""`laneloom.attention_decode`: new queries over a cache of keys and values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ...gpu import Gpu
from ..scalars import is_whole, shown, whole
from ..target import active_gpu, expected_device_type, gpu_for_arrays, is_emulated
from ..traced import loaded
from .arguments import Tensors, address_of, aligned_copy, checked_scale, checked_softcap, is_direct, strides_of
from .config_decode import DecodeProblem
from .hopper import is_boxed
from .plan_decode import plan_decode

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | np.ndarray

_PAGE_STEP = 16
_ON_TENSORS = f"{__package__}.torch_decode"  #: the module that needs torch
_DTYPES = {"float16": "fp16", "torch.float16": "fp16", "torch.bfloat16": "bf16"}


def attention_decode(
    q: Operand,
    k_cache: Operand,
    v_cache: Operand,
    *,
    cache_lengths: Operand,
    block_table: Operand | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
) -> Any:
    """O[b,n,h,:] = sum over j of P[n,j] V[b,j,g,:], P[n,:] the softmax of scale Q[b,n,h,:] . K[b,j,g,:] over the keys
    j <= L_b - N + n, g = h // (H / H_kv): the N last queries of each sequence, whose L_b keys are in the cache.

    q: [B, N, H, D], fp16 or bf16; N is small (1 for a step of decoding), and the new keys are in the cache already.
    k_cache, v_cache: [B, S, H_kv, D] and [B, S, H_kv, D_V], or with `block_table` pages of them, [pages, P, H_kv, D]
        and [pages, P, H_kv, D_V], P a multiple of 16. Dtype as q; D and D_V multiples of 8 from 16 to 512. Contiguous
        last axis, other strides multiples of 8 elements, rows less than 2**23 elements apart: never copied. Keys that
        are infinite or NaN may make NaN of other heads of their sequence too: Hopper reads several heads as one.
    cache_lengths: int32 [B], L_b from 0 to S (not checked on a GPU). Keys beyond are not read.
        Copied, as block_table is, where its elements or those of a row do not lie side by side.
    block_table: int32 [B, most pages of a sequence]: key j of sequence b is row j % P of page
        block_table[b, j // P].
    scale: 1 / sqrt(D) by default. window: how many keys a query sees before its own; None for all. softcap: as for
        `flash_attention`.
    max_seqlen_k: about how many keys the longest sequence has, where the host knows: the work is divided for that
        many, in place of the cache's S or the block table's. Rounded up to 64, 96, 128, 192, .., so that it may grow
        from call to call. Not a limit: longer sequences are attended to in full, in more time.
    return_lse: return (O, LSE), LSE [B, H, N] fp32, the log of the sum over the seen keys of exp(scale Q . K).

    O is [B, N, H, D_V]. Accumulation and statistics FP32; P is rounded to the operands' dtype before it meets V, O
    once. The keys are split over programs and put together in their order: the same call gives the same bits. A query
    that sees no key gives zeros and LSE -inf. No gradients. Torch tensors on the GPU that Triton drives, or on the CPU
    inside `laneloom.emulated`; numpy arrays only there.

    Raises ArgumentError for operands that do not fit, UnsupportedError for what no schedule can do. Source:
    "Flash-Decoding" and "PagedAttention"; the arguments are those of flash-attn's flash_attn_with_kvcache.
    """
    torch = sys.modules.get("torch")
    operands = named_operands(q, k_cache, v_cache, cache_lengths, block_table)
    kind = np.ndarray if torch is None or not isinstance(q, torch.Tensor) else torch.Tensor
    for name, x in operands.items():
        if not isinstance(x, kind):
            known = "torch tensor" if kind is not np.ndarray else "numpy array"
            what = "torch tensor or a numpy array" if name == "q" else f"{known}, as q is"
            raise ArgumentError(f"{name}: expected a {what}, got {type(x).__name__}")
    scale = checked_scale(scale)
    if not isinstance(return_lse, bool):
        raise ArgumentError(f"return_lse: expected True or False, got {shown(return_lse)}")
    if window is not None:
        if not is_whole(window) or window < 0:
            what = "how many keys a query sees before its own"
            raise ArgumentError(f"window: expected {what}, or None, got {shown(window)}")
        window = _held(window)
    if max_seqlen_k is not None:
        if not is_whole(max_seqlen_k) or max_seqlen_k < 1:
            what = "about how many keys the longest sequence has"
            raise ArgumentError(f"max_seqlen_k: expected {what}, or None, got {shown(max_seqlen_k)}")
        max_seqlen_k = _held(max_seqlen_k)
    arguments = (q, k_cache, v_cache, cache_lengths, block_table, scale, window, checked_softcap(softcap), max_seqlen_k)
    if kind is np.ndarray:
        results = prepare_decode(*arguments)(*arguments)
    else:
        torch_decode = loaded(_ON_TENSORS)
        if torch_decode is None:
            from . import torch_decode
        results = torch_decode.decode_operator(*arguments)
    return results if return_lse else results[0]


def _held(keys: Any) -> Any:
    """A number of keys as the operator's integers hold it."""
    return whole(keys if keys < 1 << 62 else 1 << 62)


def rounded_up(keys: int) -> int:
    """The least of 64, 96, 128, 192, 256, .. that is no less: a plan and its kernel serve all up to there."""
    most = max(64, 1 << (keys - 1).bit_length())
    return most * 3 // 4 if most > 64 and keys <= most * 3 // 4 else most


def named_operands(q: Any, k_cache: Any, v_cache: Any, lengths: Any, block_table: Any) -> dict[str, Any]:
    """The operands that there are, by the arguments' names."""
    found = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "cache_lengths": lengths}
    return found if block_table is None else found | {"block_table": block_table}


def prepare_decode(
    q: Any, k_cache: Any, v_cache: Any, lengths: Any, block_table: Any, scale: float | None, window: int | None,
    softcap: float, max_seqlen_k: int | None = None,
) -> Callable[..., tuple[Any, Any]]:  # fmt: skip
    """What gives O and LSE of operands that lie as these do. It takes the arguments of this function, which checks
    them."""
    gpu = active_gpu()
    operands = named_operands(q, k_cache, v_cache, lengths, block_table)
    _check_dtypes(operands, gpu)
    problem = _problem(operands, scale, window, softcap)
    planned = problem if max_seqlen_k is None else replace(problem, keys=min(rounded_up(max_seqlen_k), problem.keys))
    config = plan_decode(planned, gpu, boxed=is_boxed(k_cache) and is_boxed(v_cache))
    rows = (problem.batch, problem.heads, problem.queries)
    make_out, make_lse = _maker((*q.shape[:3], problem.d_v), q, q.dtype), _maker(rows, q)
    copied = not _is_direct(q)
    copied_lengths, copied_table = (x is not None and not _has_plain_rows(x) for x in (lengths, block_table))

    def operands_of(q: Any, k: Any, v: Any, lengths: Any, table: Any) -> dict[str, Any]:
        return {
            "q": _copied(q) if copied else q, "k": k, "v": v, "out": make_out(), "lse": make_lse(),
            "lengths": _copied(lengths) if copied_lengths else lengths,
            "table": _copied(table) if copied_table else table,
        }  # fmt: skip

    launch = launch_by(problem, config, gpu, operands_of(q, k_cache, v_cache, lengths, block_table))

    def run(q: Any, k: Any, v: Any, lengths: Any, table: Any, *_: Any) -> tuple[Any, Any]:
        if problem.batch and is_emulated():
            _check_lengths(lengths, problem.keys)
        operands = operands_of(q, k, v, lengths, table)
        launch(operands)
        return operands["out"], operands["lse"]

    return run


def launch_by(
    problem: DecodeProblem, config: Any, gpu: Gpu, operands: dict[str, Any]
) -> Callable[[dict[str, Any]], None]:
    """What writes out and lse for operands that lie as these do."""
    if 0 in (problem.batch, problem.heads, problem.queries, problem.keys):
        return _attend_to_nothing
    schedule = import_module(f".kernels.{config.schedule}", __package__)
    if hasattr(schedule, "prepare"):
        return schedule.prepare(problem, config, gpu, Tensors(operands))

    parts = (problem.batch, problem.heads, problem.queries, config.splits)
    q = operands["q"]
    makers = {"sums": _maker((*parts, problem.d_v), q), "sums_lse": _maker(parts, q)} if config.splits > 1 else {}

    def run(operands: dict[str, Any]) -> None:
        plain = {name: x if x is None or isinstance(x, np.ndarray) else x.detach() for name, x in operands.items()}
        made = {name: make() for name, make in makers.items()}
        schedule.launch(problem, config, gpu, Tensors(plain | made))

    return run


def _check_lengths(lengths: Any, keys: int) -> None:
    least, most = int(lengths.min()), int(lengths.max())
    if least < 0 or most > keys:
        raise ArgumentError(f"cache_lengths: expected 0 to {keys}, the keys of a sequence, got {least} to {most}")


def _attend_to_nothing(operands: dict[str, Any]) -> None:
    operands["out"][...], operands["lse"][...] = 0, -inf


def _maker(shape: tuple[int, ...], q: Any, dtype: Any = None) -> Callable[[], Any]:
    """What makes arrays where q is; without a dtype, of fp32."""
    if isinstance(q, np.ndarray):
        return partial(np.empty, shape, dtype or np.float32)
    import torch

    from ..warm import maker_of

    return maker_of(torch.empty(shape, dtype=dtype or torch.float32, device=q.device))


def _copied(x: Any) -> Any:
    """A contiguous copy at a multiple of 16 bytes."""
    if isinstance(x, np.ndarray):
        return aligned_copy(x)
    from .torch_op import copy_of

    return copy_of(x)


def _is_direct(x: Any) -> bool:
    """Whether the kernel reads x [B, N, H, D], whose rows are those of one head, where it lies."""
    return is_direct(x.swapaxes(1, 2), address_of(x))


def _has_plain_rows(x: Any) -> bool:
    """Whether kernels read the integers x where they lie: whole elements side by side, rows in their order."""
    *outer, inner = (s if n > 1 else 1 for n, s in zip(x.shape, strides_of(x), strict=True))
    return inner == 1 and min(outer, default=0) >= 0 and address_of(x) % x.itemsize == 0


def check_axes(operands: dict[str, Any]) -> None:
    """Raise ArgumentError for an operand with too many or too few axes."""
    for name, x in operands.items():
        axes = {"cache_lengths": 1, "block_table": 2}.get(name, 4)
        if len(x.shape) != axes:
            raise ArgumentError(f"{name}: expected {axes} axes, got shape {tuple(x.shape)}")


def check_devices(operands: dict[str, Any]) -> None:
    """Raise ArgumentError for tensors that are not all in one place."""
    device = operands["q"].device
    for name, x in operands.items():
        if x.device != device:
            raise ArgumentError(f"{name}: expected a tensor on {device}, as q is, got one on {x.device}")


def _check_dtypes(operands: dict[str, Any], gpu: Gpu) -> None:
    """The dtypes, one device and the numbers of axes."""
    q = operands["q"]
    for name, x in operands.items():
        wanted = "int32" if name in ("cache_lengths", "block_table") else None
        dtype = str(x.dtype)
        if wanted and dtype.removeprefix("torch.") != wanted:
            raise ArgumentError(f"{name}: expected dtype int32, got {dtype}")
        if not wanted and dtype not in _DTYPES:
            raise UnsupportedError(f"{name}: expected dtype float16 or bfloat16, got {dtype}")
        if not wanted and x.dtype != q.dtype:
            raise ArgumentError(f"{name}: expected q's dtype {q.dtype}, got {dtype}")
    if not isinstance(q, np.ndarray):
        check_devices(operands)
    check_axes(operands)
    if isinstance(q, np.ndarray):
        gpu_for_arrays(**operands)
    if not isinstance(q, np.ndarray) and q.device.type != (expected := expected_device_type()):
        raise ArgumentError(f"q: expected a tensor on {expected} for {gpu.name}, got one on {q.device}")


def _problem(operands: dict[str, Any], scale: float | None, window: int | None, softcap: float) -> DecodeProblem:
    q, k, v, lengths = (operands[name] for name in ("q", "k_cache", "v_cache", "cache_lengths"))
    table = operands.get("block_table")
    batch, queries, heads, d = q.shape
    if k.shape[3] != d or (table is None and k.shape[0] != batch):
        raise ArgumentError(f"k_cache: expected q's batch {batch} and head dimension {d}, got shape {tuple(k.shape)}")
    if tuple(v.shape[:3]) != tuple(k.shape[:3]):
        raise ArgumentError(f"v_cache: expected k_cache's {tuple(k.shape[:3])} and D_V, got shape {tuple(v.shape)}")
    if heads and (not k.shape[2] or heads % k.shape[2]):
        raise ArgumentError(f"q: expected a multiple of k_cache's {k.shape[2]} heads, got {heads}")
    if lengths.shape[0] != batch:
        raise ArgumentError(f"cache_lengths: expected {batch} elements, got shape {tuple(lengths.shape)}")
    for name in ("k_cache", "v_cache"):
        if 0 not in operands[name].shape and not _is_direct(operands[name]):
            raise ArgumentError(
                f"{name}: expected contiguous rows at multiples of 16 bytes, got strides {strides_of(operands[name])}"
            )
    page, keys = 0, k.shape[1]
    if table is not None:
        page, keys = k.shape[1], k.shape[1] * table.shape[1]
        if page % _PAGE_STEP or page == 0:
            raise ArgumentError(f"k_cache: expected pages of a multiple of {_PAGE_STEP} keys, got {page}")
        if table.shape[0] != batch:
            raise ArgumentError(f"block_table: expected {batch} rows, got shape {tuple(table.shape)}")
    return DecodeProblem(
        batch, heads, max(k.shape[2], 1), queries, keys, d, v.shape[3], _DTYPES[str(q.dtype)],
        1 / sqrt(d or 1) if scale is None else float(scale), window, page,
        all(x.shape[2] == 1 or strides_of(x)[2] == x.shape[3] for x in (k, v)), softcap,
    )  # fmt: skip
