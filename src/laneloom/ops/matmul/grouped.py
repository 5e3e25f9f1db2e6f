"""`laneloom.grouped_matmul`: rows in groups, each against a matrix of its own, in one launch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentError, UnsupportedError
from ...gpu import Gpu
from ..scalars import shown
from ..target import active_gpu, expected_device_type
from .config_cluster import ClusterConfig
from .dtypes import outputs, words
from .execute import Terms, check_distinct, overlap, problem_of, schedule_of
from .gemm import check_block_dtypes, check_term
from .plan_blocks import scaled_configs
from .plan_cluster import cluster_configs
from .problem import SCALE_BLOCK, MatmulProblem

if TYPE_CHECKING:
    import torch

_ON_TENSORS = f"{__package__}.torch_grouped"  #: the module that has the operator


def grouped_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: torch.Tensor,
    *,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: ClusterConfig | None = None,
) -> torch.Tensor:
    """C[m, :] = A[m, :] B[g] for every row m of group g: those from ends[g - 1] (0 for the first) up to ends[g].

    a: [M, K]; b: [G, K, N]. fp16, bf16, or fp8 and bf8 in every pairing, contiguous along one axis with pitches of
        whole 16 bytes; 8-bit operands along K (b as the transpose of [G, N, K]). Torch tensors on a Hopper GPU.
    ends: [G], int32, on a's device, not decreasing. It is read by the kernel alone: nothing waits for the GPU, and a
        CUDA graph may be replayed with other ends. Rows from ends[G - 1] on are not written; rows past M are ignored.
    scale_a, scale_b: fp32 scales of blocks of 128 along K, of 8-bit operands, as `gemm` has them: [M, ceil(K / 128)],
        and [G, ceil(K / 128), N] or [G, ceil(K / 128), ceil(N / 128)], any strides. Both or neither.
    out: [M, N], where the result goes. It must share no memory with a, b and ends.
    out_dtype: fp32, fp16 or bf16; a's by default, fp32 for 8-bit operands.
    config: what runs; by default it is planned for groups of equal sizes.

    Products are exact and sums FP32, in an order that depends on the config alone; one rounding to out_dtype. The same
    call gives the same bits. There are no gradients.

    Raises ArgumentError for operands that do not fit together, UnsupportedError for what the GPU has no schedule for.
    Source: Gale, Narayanan, Young, Zaharia, "MegaBlocks" (products of experts without padding).
    """
    if "torch" not in sys.modules:
        raise ArgumentError(f"a: expected a torch tensor, got {type(a).__name__}")
    import torch

    optional = (("out", out), ("scale_a", scale_a), ("scale_b", scale_b))
    given = (pair for pair in optional if pair[1] is not None)
    for name, operand in (("a", a), ("b", b), ("ends", ends), *given):
        if not isinstance(operand, torch.Tensor):
            raise ArgumentError(f"{name}: expected a torch tensor, got {type(operand).__name__}")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {shown(out_dtype)}")
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise UnsupportedError("a: grouped products have no gradients, use torch.no_grad() or detach()")
    if out is None and config is None:
        torch_grouped = sys.modules.get(_ON_TENSORS)  # an import statement at each call takes a microsecond
        if torch_grouped is None:
            from . import torch_grouped
        return torch_grouped.grouped_operator(a, b, ends, out_dtype, scale_a, scale_b)
    wanted = result_dtype(a, b, ends, out_dtype if out is None else out_dtype or out.dtype, scale_a, scale_b)
    shape = (a.shape[0], b.shape[2])
    if out is None:
        out = a.new_empty(shape, dtype=wanted)
    elif tuple(out.shape) != shape or out.device != a.device or out.dtype != wanted:
        got = f"{list(out.shape)} of {out.dtype} on {out.device}"
        raise ArgumentError(f"out: expected {list(shape)} of {wanted} on {a.device}, got {got}")
    elif any(operand is not None and overlap(out, operand) for operand in (a, b, ends, scale_a, scale_b)):
        raise ArgumentError("out: expected memory of its own, got some that it shares with another operand")
    check_distinct(out)
    with torch.cuda.device(a.device if a.device.type == "cuda" else -1):
        prepare_launch(a, b, out, config, scale_a, scale_b)(a, b, out, ends, scale_a, scale_b)
    return out


def check_shapes(a: Any, b: Any) -> None:
    """Raise ArgumentError for a and b that are no rows and matrices for them."""
    if a.ndim != 2 or b.ndim != 3 or a.shape[1] != b.shape[1]:
        k = a.shape[1] if a.ndim == 2 else "K"
        raise ArgumentError(f"b: expected [G, {k}, N] for a of [M, K], got {list(a.shape)}, {list(b.shape)}")


def check_scales(a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
    """Raise for scales that are not of blocks along K of the rows of a and of the matrices of b."""
    from .torch_op import known_name

    if scale_a is scale_b is None:
        return
    blocks, n = -(-a.shape[1] // SCALE_BLOCK), b.shape[2]
    known = {"scale_a": [(a.shape[0], blocks)], "scale_b": [(b.shape[0], blocks, x) for x in (n, -(-n // SCALE_BLOCK))]}
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        shapes = " or ".join(str(list(shape)) for shape in known[name])
        if scale is None or tuple(scale.shape) not in known[name]:
            got = "none" if scale is None else list(scale.shape)
            raise ArgumentError(f"{name}: expected {shapes}, as both operands have scales or neither, got {got}")
        check_term(name, known_name(scale.dtype), "")
        if scale.device != a.device:
            raise ArgumentError(f"{name}: expected a tensor on {a.device}, as a is, got one on {scale.device}")


def result_dtype(
    a: Any, b: Any, ends: Any, out_dtype: Any, scale_a: Any = None, scale_b: Any = None
) -> torch.dtype:  # fmt: skip
    """torch's dtype of the result. Checks the operands and it."""
    import torch

    from .torch_op import dtype_name, operand_dtypes, output_dtype

    check_shapes(a, b)
    check_scales(a, b, scale_a, scale_b)
    if ends.dtype != torch.int32 or ends.shape != b.shape[:1] or not ends.is_contiguous():
        raise ArgumentError(f"ends: expected {b.shape[0]} contiguous int32, got {ends.dtype} of {list(ends.shape)}")
    gpu = active_gpu()
    if gpu.matrix_instructions != "wgmma" or a.device.type != expected_device_type():
        raise UnsupportedError(f"a: grouped products run on Hopper GPUs only, got a tensor on {a.device}, {gpu.name}")
    if {b.device, ends.device} != {a.device}:
        raise ArgumentError(f"b: expected all tensors on {a.device}, got {b.device} and {ends.device}")
    kind, _ = operand_dtypes(a, b, None)
    if scale_a is not None:
        check_block_dtypes(kind)
    wanted = output_dtype(kind, out_dtype)
    if (name := dtype_name("out_dtype", wanted)) not in outputs(kind, has_terms=False):
        raise UnsupportedError(f"out_dtype: expected {words(outputs(kind, has_terms=False))}, got {name}")
    return wanted


def prepare_launch(
    a: Any, b: Any, out: Any, config: ClusterConfig | None = None, scale_a: Any = None, scale_b: Any = None
) -> Callable[..., None]:
    """What writes out for a, b, out, ends and scales that lie as these do, `result_dtype` having seen them."""
    from ...device.prepared import prepared_on
    from .torch_op import dtype_name

    if 0 in out.shape:
        return lambda *_: None
    if a.shape[1] == 0:
        raise ArgumentError("a: expected at least one column")
    gpu, rows = active_gpu(), (b.shape[0], *out.shape)
    names = dtype_name("a", a.dtype), dtype_name("b", b.dtype), dtype_name("out", out.dtype)
    terms = Terms() if scale_a is None else Terms(scale_a=scale_a.expand(b.shape[0], *scale_a.shape), scale_b=scale_b)
    problem = problem_of(a.expand(b.shape[0], *a.shape), b, out.expand(rows), names, terms)
    assert problem is not None  # one batch axis
    chosen = _plan(problem, gpu) if config is None else config.with_knobs(grouped=True)
    if (why := chosen.why_invalid(problem, gpu)) is not None:
        raise UnsupportedError(why)
    launch = prepared_on(schedule_of(chosen).prepare, problem, chosen, gpu, out.device)
    return lambda a, b, out, ends, *scales: launch(a, b, out, *[None] * 4, *(scales or (None, None)), ends)


@lru_cache(maxsize=1024)
def _plan(problem: MatmulProblem, gpu: Gpu) -> ClusterConfig:
    """The config for groups of equal sizes. Raises UnsupportedError with the reason where there is none."""
    rows = -(-problem.m // problem.batches)
    ranked = scaled_configs if problem.scales else cluster_configs
    for config, _ in ranked(replace(problem, m=rows), gpu):
        grouped = config.with_knobs(grouped=True)
        if grouped.peers == 1 and grouped.why_invalid(problem, gpu) is None:
            return grouped
    any_tile = ClusterConfig(
        block_m=64, block_n=64, block_k=128 if problem.dtype_a in ("fp8", "bf8") else 64, stages=4, consumers=1,
        tma_store=False, grouped=True, scaled=int(problem.scales is not None))  # fmt: skip
    raise UnsupportedError(any_tile.why_invalid(problem, gpu) or f"no grouped schedule can do {problem.key}")
