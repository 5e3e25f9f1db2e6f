"""Attention over a sequence that is spread over ranks: keys and values go round, results are merged by their LSE.

Exact: with O_j, L_j of the keys of rank j, L = log sum_j exp(L_j) and O = sum_j exp(L_j - L) O_j. Source: Liu et al.,
"Ring Attention with Blockwise Transformers", arXiv:2310.01889.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import ArgumentError
from ..ops.attention.arguments import checked_scale, checked_softcap
from ..ops.attention.torch_op import attention_backward_operator, attention_operator, must_be_deterministic
from ..ops.scalars import shown
from .merge import merge_parts
from .symmetric import pull, transport_of


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    deterministic: bool = False,
    transport: str | None = None,
) -> torch.Tensor:
    """This rank's queries' rows of `laneloom.flash_attention` over the whole sequence.

    q: [B, H, N / ranks, D]; k: [B, H_kv, N / ranks, D]; v: [B, H_kv, N / ranks, D_V]: this rank's part of the sequence,
        of one shape on every rank. Without causal in any order; with it as `zigzag_shard` deals it out, N / ranks even:
        rank r has pieces r and 2 ranks - 1 - r of 2 ranks pieces, so that all ranks do the same work.
    scale: 1 / sqrt(D) by default. softcap, deterministic: as for `flash_attention`. group: the default group if None.
    transport: as for `all_gather_matmul`, of the forward; the backward sends and receives.

    Each rank computes with one rank's keys while it receives the next one's. Parts are rounded to q's dtype, and merged
    in FP32, in an order that depends on the rank alone; the result is rounded once. In the backward, gradients of keys
    and values travel with them, in FP32, added in an order that depends on the rank alone. Second derivatives raise
    RuntimeError. All ranks of the group have to call.

    Raises ArgumentError for shapes that do not fit.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.dim() != 4:
            raise ArgumentError(f"{name}: expected a tensor [B, H, N, D], got {what_came(x)}")
    for name, flag in (("causal", causal), ("deterministic", deterministic)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name}: expected True or False, got {shown(flag)}")
    if causal and (q.shape[2] != k.shape[2] or q.shape[2] % 2):
        raise ArgumentError(
            f"q: expected, with causal, an even number of queries and as many keys, got {q.shape[2]} and {k.shape[2]}"
        )
    deterministic = deterministic or must_be_deterministic()
    given = checked_scale(scale)
    factor = 1 / sqrt(q.shape[-1] or 1) if given is None else given
    group, cap = group_of(group), checked_softcap(softcap)
    return _RingAttention.apply(q, k, v, group, causal, factor, cap, deterministic, transport_of(transport, q, group))


def what_came(operand: Any) -> str:
    """Of a tensor with other axes than expected, or of something else."""
    return f"shape {tuple(operand.shape)}" if isinstance(operand, torch.Tensor) else type(operand).__name__


def group_of(group: dist.ProcessGroup | None) -> Any:
    """The group, or the default one. Raises ArgumentError for what is none, as torch hands to ranks outside a group."""
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ArgumentError(f"group: expected a process group of torch.distributed or None, got {group!r}")
    return dist.group.WORLD if group is None else group


def zigzag_shard(x: torch.Tensor, group: dist.ProcessGroup | None = None, axis: int = 2) -> torch.Tensor:
    """This rank's pieces r and 2 ranks - 1 - r of x, side by side. Raises ArgumentError if they do not divide x."""
    group = group_of(group)
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if x.shape[axis] % (2 * ranks):
        raise ArgumentError(f"x: expected a multiple of {2 * ranks} along axis {axis}, got {x.shape[axis]}")
    pieces = x.chunk(2 * ranks, axis)
    return torch.cat([pieces[rank], pieces[2 * ranks - 1 - rank]], axis)


def zigzag_unshard(x: torch.Tensor, group: dist.ProcessGroup | None = None, axis: int = 2) -> torch.Tensor:
    """The whole tensor on every rank, from the parts that `zigzag_shard` gave them. Takes no part in autograd."""
    group = group_of(group)
    ranks = dist.get_world_size(group)
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(ranks)]
    dist.all_gather(parts, x.detach().contiguous(), group=group)
    halves = [part.chunk(2, axis) for part in parts]
    return torch.cat([*(first for first, _ in halves), *(second for _, second in reversed(halves))], axis)


class _Step(NamedTuple):
    """What a rank computes with the keys of one rank: slices of its queries and of those keys, and a mask."""

    queries: slice
    keys: slice
    causal: str


def _step(rank: int, owner: int, length: int, causal: bool) -> _Step:
    """Every query sees all keys; or, with causal, what the order of the zigzag's pieces leaves."""
    whole, half = slice(None), length // 2
    if not causal:
        return _Step(whole, whole, "none")
    if owner == rank:  # pieces in rising order: the diagonal itself
        return _Step(whole, whole, "top_left")
    if owner < rank:  # their first piece is before both of ours, their second after both
        return _Step(whole, slice(0, half), "none")
    return _Step(slice(half, None), whole, "none")  # both their pieces lie between ours


class _Ring:
    """Tensors that go round: each rank has its own at first, and then those of the rank before, and so on."""

    def __init__(self, group: Any):
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)

    def owner(self, step: int) -> int:
        """Whose tensors this rank has after so many steps."""
        return (self.rank - step) % self.ranks

    def visit(self, k: torch.Tensor, v: torch.Tensor, transport: str) -> Iterator[Sequence[torch.Tensor]]:
        """Keys and values of every rank, this one's first; the next ones arrive while the caller computes."""
        if transport == "symmetric":
            yield from pull(k, v, self.group)
            return
        here: Sequence[torch.Tensor] = (k, v)
        for step in range(self.ranks):
            requests, arriving = ([], here) if step == self.ranks - 1 else self.send(here)
            yield here
            _wait(requests)
            here = arriving

    def send(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], Sequence[torch.Tensor]]:
        """Begin to pass tensors on: what to wait for, and where those of the rank before arrive."""
        if self.ranks == 1:
            return [], tensors
        arriving = tuple(torch.empty_like(x) for x in tensors)
        after, before = ((self.rank + d) % self.ranks for d in (1, -1))
        operations = [
            dist.P2POp(call, x, dist.get_global_rank(self.group, peer), self.group)
            for sent, received in zip(tensors, arriving, strict=True)
            for call, x, peer in ((dist.isend, sent, after), (dist.irecv, received, before))
        ]
        return dist.batch_isend_irecv(operations), arriving


def _wait(requests: list[Any]) -> None:
    for request in requests:
        request.wait()


_WHOLE = (None, None, None, None, 0, 0)  #: the operator's options after scale: no window, no packed sequences


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        q, k, v, group, causal, scale, softcap, deterministic, transport = inputs
        ring = _Ring(group)
        k, v = k.contiguous(), v.contiguous()
        out = lse = q
        for step, (keys, values) in enumerate(ring.visit(k, v, transport)):
            part = _step(ring.rank, ring.owner(step), q.shape[2], causal)
            operands = (q[:, :, part.queries], keys[:, :, part.keys], values[:, :, part.keys])
            partial, sums = attention_operator(*operands, part.causal, scale, *_WHOLE, False, softcap)
            if step == 0:  # every query meets the keys of its own rank
                out, lse = partial.contiguous(), sums.contiguous()
                continue
            whole = part.queries == slice(None)
            if not whole and out.dtype != torch.float32:
                out = out.float()
            last = step == ring.ranks - 1
            dtype = out.dtype if not whole else q.dtype if last else torch.float32
            target = out if out.dtype == dtype and dtype == torch.float32 else torch.empty_like(out, dtype=dtype)
            first = part.queries.start or 0
            merge_parts(out, lse, partial.contiguous(), sums.contiguous(), target, first)
            out = target
        result = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, result, lse)
        ctx.how = group, causal, scale, softcap, deterministic
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        (q, k, v, out, lse), (group, causal, scale, softcap, deterministic) = ctx.saved_tensors, ctx.how
        ring = _Ring(group)
        grad = grads[0].to(q.dtype).contiguous()
        dq = torch.zeros_like(q, dtype=torch.float32, memory_format=torch.contiguous_format)
        here: Sequence[torch.Tensor] = (k.contiguous(), v.contiguous())
        sums: Sequence[torch.Tensor] = tuple(torch.zeros_like(x, dtype=torch.float32) for x in here)
        requests: list[Any] = []
        for step in range(ring.ranks):
            fetching, arriving = ([], here) if step == ring.ranks - 1 else ring.send(here)
            keys, values = here
            part = _step(ring.rank, ring.owner(step), q.shape[2], causal)
            rows, columns = part.queries, part.keys
            parts = attention_backward_operator(
                grad[:, :, rows], None, q[:, :, rows], keys[:, :, columns], values[:, :, columns], out[:, :, rows],
                lse[:, :, rows].contiguous(), part.causal, scale, *_WHOLE, deterministic, softcap,
            )  # fmt: skip
            dq[:, :, rows] += parts[0]
            _wait(requests)  # the sums of these keys so far, from the rank that had them before
            for total, share in zip(sums, parts[1:], strict=True):
                total[:, :, columns] += share
            sent = sums  # held until they have left
            requests, sums = ring.send(sent)  # after the last step this brings home this rank's own
            _wait(fetching)
            here = arriving
        _wait(requests)
        return dq.to(q.dtype), sums[0].to(k.dtype), sums[1].to(v.dtype), *[None] * 6
