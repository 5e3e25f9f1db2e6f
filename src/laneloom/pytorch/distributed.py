"""Products and attention over several GPUs, computing while they communicate, on torch.distributed.

The operators themselves run on DTensors by the rules of `ops/sharding.py`. What is here is what DTensor does not do:
products whose operand arrives, or whose result leaves, shard by shard during the product, and attention over a sequence
that no GPU holds whole.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist

from ..errors import ArgumentError, UnsupportedError
from ..ops import sharding as _sharding  # noqa: F401
from ..ops.matmul.api import matmul
from . import symmetric
from .ring import group_of, ring_attention, what_came, zigzag_shard, zigzag_unshard

__all__ = ["all_gather_matmul", "matmul_reduce_scatter", "ring_attention", "zigzag_shard", "zigzag_unshard"]

Transport = Literal["p2p", "symmetric"]
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  #: of products, whose results have the same
#: torch 2.13's name for it, or the one before
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_gather_matmul(
    x: torch.Tensor, w: torch.Tensor, group: dist.ProcessGroup | None = None, *, transport: Transport | None = None
) -> torch.Tensor:
    """Y[M, N] = (the rows of all ranks' X, in rank order) W: all-gather and product, overlapped.

    x: [M / ranks, K], of one shape on every rank; fp16, bf16, fp32 or fp64.
    w: [K, N], of x's dtype: this rank's columns of a weight sharded by columns.
    group: the default group if None.
    transport: "symmetric", copies over torch's symmetric memory, for GPUs of one host that can reach each other; "p2p",
        a send and a receive for each pair of ranks through the group's backend. None: symmetric where it can be.

    Each shard is multiplied when it is there, this rank's own first; every row is laneloom.matmul's of that row. The
    backward is `matmul_reduce_scatter` for x, and for w one product of the gathered rows, which are gathered again.
    Deterministic. All ranks of the group have to call.

    Raises ArgumentError for operands that do not fit, UnsupportedError for other dtypes and for a
    transport that is not there.
    """
    _check(x, w)
    group = group_of(group)
    return _AllGatherMatmul.apply(x, w, group, symmetric.transport_of(transport, x, group))


def matmul_reduce_scatter(
    x: torch.Tensor, w: torch.Tensor, group: dist.ProcessGroup | None = None, *, transport: Transport | None = None
) -> torch.Tensor:
    """Y[M / ranks, N] = this rank's rows of the sum of all ranks' X W: product and reduce-scatter, overlapped.

    x: [M, K / ranks], M a multiple of the ranks; w: [K / ranks, N]: this rank's rows of a weight sharded by rows.
    group, transport: as for `all_gather_matmul`.

    The rows of each rank are sent while those of the next are multiplied. Every rank's part is rounded once to x's
    dtype, their sum is FP32 (FP64 for fp64), in a fixed order: the same bits on every call. The backward is
    `all_gather_matmul`.
    Raises as `all_gather_matmul` does.
    """
    _check(x, w)
    group = group_of(group)
    if x.shape[0] % dist.get_world_size(group):
        raise ArgumentError(f"x: expected a multiple of {dist.get_world_size(group)} ranks rows, got {x.shape[0]}")
    return _MatmulReduceScatter.apply(x, w, group, symmetric.transport_of(transport, x, group))


def _check(x: Any, w: Any) -> None:
    for name, operand in (("x", x), ("w", w)):
        if not isinstance(operand, torch.Tensor) or operand.dim() != 2:
            raise ArgumentError(f"{name}: expected a tensor with 2 axes, got {what_came(operand)}")
    if x.dtype not in DTYPES:
        raise UnsupportedError(f"x: expected dtype {', '.join(str(d) for d in DTYPES)}, got {x.dtype}")
    if x.dtype != w.dtype:
        raise ArgumentError(f"w: expected x's dtype {x.dtype}, got {w.dtype}")
    if x.shape[1] != w.shape[0]:
        raise ArgumentError(f"w: expected {x.shape[1]} rows, as many as x has columns, got {tuple(w.shape)}")


def exchange(send: torch.Tensor, to: int, receive: torch.Tensor, source: int, group: Any) -> list[Any]:
    """Begin to send one tensor and receive another, both contiguous; to, source: ranks of the group."""
    return dist.batch_isend_irecv([
        dist.P2POp(dist.isend, send, dist.get_global_rank(group, to), group),
        dist.P2POp(dist.irecv, receive, dist.get_global_rank(group, source), group),
    ])  # fmt: skip


def _gather_and_multiply(
    x: Any, w: Any, group: Any, transport: str, keeps: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Y and the gathered rows, which are whole only if the caller `keeps` them."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    x = x.contiguous()
    gathered = x.new_empty(ranks, *x.shape)
    y = x.new_empty(ranks, x.shape[0], w.shape[1])
    if transport == "symmetric":
        symmetric.gather_and_multiply(x, w, gathered, y, group, keeps)
        return y.flatten(0, 1), gathered.flatten(0, 1)
    if keeps:
        gathered[rank] = x
    arriving = [
        exchange(x, (rank - step) % ranks, gathered[(rank + step) % ranks], (rank + step) % ranks, group)
        for step in range(1, ranks)
    ]
    matmul(x, w, out=y[rank])
    for step, requests in enumerate(arriving, start=1):
        for request in requests:
            request.wait()
        source = (rank + step) % ranks
        matmul(gathered[source], w, out=y[source])
    return y.flatten(0, 1), gathered.flatten(0, 1)


def _multiply_and_scatter(x: Any, w: Any, group: Any, transport: str) -> torch.Tensor:
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    rows = x.unflatten(0, (ranks, -1))
    if transport == "symmetric":
        return symmetric.multiply_and_add(rows, w, group)
    parts = x.new_empty(ranks, rows.shape[1], w.shape[1])  # of this rank's rows, from every rank
    leaving = []
    for step in range(1, ranks):
        target, source = (rank + step) % ranks, (rank - step) % ranks
        part = matmul(rows[target], w)
        leaving.append((exchange(part, target, parts[source], source, group), part))
    matmul(rows[rank], w, out=parts[rank])
    for requests, _ in leaving:
        for request in requests:
            request.wait()
    return parts.sum(0)  # torch sums 16-bit floats in FP32 and rounds once


class _AllGatherMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        x, w, group, transport = inputs
        ctx.save_for_backward(x, w)
        ctx.how = group, transport
        return _gather_and_multiply(x.detach(), w.detach(), group, transport)[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, w), (group, transport) = ctx.saved_tensors, ctx.how
        grad = grads[0].to(x.dtype).contiguous()
        grad_x = grad_w = work = gathered = None
        if ctx.needs_input_grad[1]:
            gathered = x.new_empty(grad.shape[0], x.shape[1])
            work = all_gather_single(gathered, x.contiguous(), group=group, async_op=True)
        if ctx.needs_input_grad[0]:
            grad_x = _multiply_and_scatter(grad, w.mT, group, transport)
        if gathered is not None and work is not None:
            work.wait()
            grad_w = matmul(gathered.mT, grad)
        return grad_x, grad_w, None, None


class _MatmulReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        x, w, group, transport = inputs
        ctx.save_for_backward(x, w)
        ctx.how = group, transport
        return _multiply_and_scatter(x.detach(), w.detach(), group, transport)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, w), (group, transport) = ctx.saved_tensors, ctx.how
        keeps = ctx.needs_input_grad[1]
        grad_x, gathered = _gather_and_multiply(grads[0].to(x.dtype), w.mT, group, transport, keeps)
        return grad_x, matmul(x.mT, gathered) if keeps else None, None, None
