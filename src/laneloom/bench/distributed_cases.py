"""What `laneloom.bench.distributed` measures: problems over several GPUs, and who solves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers torch.ops.symm_mem
import torch.nn.functional as F

from ..ops.attention.api import flash_attention
from ..ops.matmul.api import matmul
from ..ops.transform3d.api import transform3d
from ..pytorch.distributed import (
    all_gather_matmul,
    all_gather_single,
    matmul_reduce_scatter,
    ring_attention,
    zigzag_shard,
)

OURS = "laneloom"
COMPUTED, MOVED = "computed alone", "moved alone"  #: the parts of a call: no overlap beats the longer one
#: torch 2.13's name for it, or the one before
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
#: rows, hidden width and width of the feed-forward layer: two model sizes, prefill and a larger batch
PRODUCTS = ((2048, 4096, 14336), (8192, 4096, 14336), (2048, 8192, 28672), (8192, 8192, 28672))
#: heads, heads of keys, length of the whole sequence
ATTENTIONS = ((32, 32, 8192), (32, 8, 32768))

Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One problem; the first candidate is what it is compared with."""

    op: str
    problem: dict[str, Any]
    flops: int  #: of one rank
    bytes: int  #: that come to one rank, or leave it
    truth: Call
    candidates: dict[str, Call]
    contexts: Mapping[str, Callable[[], AbstractContextManager[object]]] = field(default_factory=dict)
    floors: Mapping[str, Call] = field(default_factory=dict)  #: timed beside, no candidates


def _tensor(*shape: int, seed: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device=device, generator=torch.Generator(device).manual_seed(seed))


def _all_gather(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    all_gather_single(whole, x.contiguous())
    return whole


def _reduce_scatter(y: torch.Tensor) -> torch.Tensor:
    mine = y.new_empty(y.shape[0] // dist.get_world_size(), *y.shape[1:])
    reduce_scatter_single(mine, y)
    return mine


def product_cases(
    device: str, sizes: tuple[tuple[int, int, int], ...] = PRODUCTS, dtype: torch.dtype = torch.bfloat16
) -> Iterator[Case]:
    """The two products of a feed-forward layer whose weights are sharded, the rows between them too."""
    for m, hidden, wide in sizes:
        yield _gathered_case(device, m, hidden, wide, dtype)
        yield _scattered_case(device, m, hidden, wide, dtype)


def _problem(m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, Any]:
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    return {"m": m, "n": n, "k": k, "ranks": dist.get_world_size(), "dtype": name}


def _operands(rows: int, k: int, columns: int, seed: int, **facts: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and a weight as torch.nn.Linear keeps it, [columns, k], transposed."""
    return _tensor(rows, k, seed=seed, **facts), _tensor(columns, k, seed=seed + 100, **facts).mT


def _group_name() -> str:
    assert dist.group.WORLD is not None
    return dist.group.WORLD.group_name


def _gathered_case(device: str, m: int, hidden: int, wide: int, dtype: torch.dtype) -> Case:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x, w = _operands(m // ranks, hidden, wide // ranks, rank, device=device, dtype=dtype)
    candidates: dict[str, Call] = {
        "torch: all_gather, matmul": lambda: _all_gather(x) @ w,
        OURS: lambda: all_gather_matmul(x, w),
    }
    if device == "cuda":
        candidates["laneloom, p2p"] = lambda: all_gather_matmul(x, w, transport="p2p")
        fused = torch.ops.symm_mem.fused_all_gather_matmul
        candidates["torch: fused_all_gather_matmul"] = lambda: fused(x, [w], 0, _group_name())[1][0]
    whole = _all_gather(x)
    floors = {COMPUTED: lambda: matmul(whole, w), MOVED: lambda: _all_gather(x)}
    return Case("all_gather_matmul", _problem(m, wide, hidden, dtype), 2 * m * hidden * wide // ranks,
                (ranks - 1) * x.nbytes, lambda: _all_gather(x).double() @ w.double(), candidates,
                floors=floors)  # fmt: skip


def _scattered_case(device: str, m: int, hidden: int, wide: int, dtype: torch.dtype) -> Case:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x, w = _operands(m, wide // ranks, hidden, rank + ranks, device=device, dtype=dtype)
    candidates: dict[str, Call] = {
        "torch: matmul, reduce_scatter": lambda: _reduce_scatter(x @ w),
        OURS: lambda: matmul_reduce_scatter(x, w),
    }
    if device == "cuda":
        candidates["laneloom, p2p"] = lambda: matmul_reduce_scatter(x, w, transport="p2p")
        fused = torch.ops.symm_mem.fused_matmul_reduce_scatter
        candidates["torch: fused_matmul_reduce_scatter"] = lambda: fused(x, w, "sum", 0, _group_name())
    part = matmul(x, w)
    floors = {COMPUTED: lambda: matmul(x, w), MOVED: lambda: _reduce_scatter(part)}
    return Case("matmul_reduce_scatter", _problem(m, hidden, wide, dtype), 2 * m * hidden * wide // ranks,
                (ranks - 1) * part.nbytes // ranks, lambda: _reduce_scatter(x.double() @ w.double()), candidates,
                floors=floors)  # fmt: skip


def attention_cases(device: str, sizes: tuple[tuple[int, int, int], ...] = ATTENTIONS, d: int = 128) -> Iterator[Case]:
    """Attention over a sequence in parts, whole and causal, against gathered keys and torch's context_parallel."""
    for heads, kv_heads, length in sizes:
        whole = [_tensor(1, h, length, d, seed=i, device=device) for i, h in enumerate((heads, kv_heads, kv_heads))]
        for causal in (False, True):
            yield _attention_case(device, whole, causal)


@contextmanager
def _context_parallel(mesh: Any, buffers: list[torch.Tensor], causal: bool) -> Iterator[None]:
    """torch's, whose balance of causal work has to be off where there is none to balance."""
    from torch.distributed.tensor.experimental import _attention, context_parallel

    before, _attention._cp_options.enable_load_balance = _attention._cp_options.enable_load_balance, causal
    try:
        with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * len(buffers)):
            yield
    finally:
        _attention._cp_options.enable_load_balance = before


def _attention_case(device: str, whole: list[torch.Tensor], causal: bool) -> Case:
    from torch.distributed.device_mesh import init_device_mesh

    ranks, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh(device, (ranks,))
    (heads, length, d), kv_heads = whole[0].shape[1:], whole[1].shape[1]
    grouped, half = heads != kv_heads, length // ranks // 2
    rows = slice(rank * length // ranks, (rank + 1) * length // ranks)
    parts = [zigzag_shard(x) if causal else x[:, :, rows].contiguous() for x in whole]
    q, k, v = parts

    def truth() -> torch.Tensor:
        last = slice(-256, None)  # as many queries as fit: the last of this rank's part
        positions = torch.arange(length, device=device)
        mine = zigzag_shard(positions, axis=0) if causal else positions[rows]
        mask = positions[None, :] <= mine[last, None] if causal else None
        queries, keys, values = (x.double() for x in (q[:, :, last], *whole[1:]))
        return F.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=grouped)

    def computed() -> torch.Tensor:
        if not causal:
            return flash_attention(q, whole[1], whole[2])
        for _ in range(ranks - 1):
            flash_attention(q, k[:, :, :half], v[:, :, :half])
        return flash_attention(q, k, v, causal="top_left")

    buffers = [x.clone() for x in whole]
    candidates: dict[str, Call] = {
        "torch: context_parallel": lambda: F.scaled_dot_product_attention(
            buffers[0], buffers[1], buffers[2], is_causal=causal, enable_gqa=grouped
        ),
        OURS: lambda: ring_attention(q, k, v, causal=causal),
    }
    if device == "cuda":
        candidates["laneloom, p2p"] = lambda: ring_attention(q, k, v, causal=causal, transport="p2p")
    if not causal:
        candidates["torch: all_gather, attention"] = lambda: F.scaled_dot_product_attention(
            q, _gathered_sequence(k), _gathered_sequence(v), enable_gqa=grouped
        )
    pairs = length * length // ranks // (2 if causal else 1)
    problem = {"heads": heads, "kv_heads": kv_heads, "length": length, "d": d, "causal": causal, "ranks": ranks,
               "dtype": "bf16"}  # fmt: skip
    contexts = {"torch: context_parallel": lambda: _context_parallel(mesh, buffers, causal)}
    return Case("ring_attention", problem, 4 * heads * pairs * d, (ranks - 1) * (k.nbytes + v.nbytes), truth,
                candidates, contexts, {COMPUTED: computed, MOVED: lambda: (_all_gather(k), _all_gather(v))[1]}
                )  # fmt: skip


def _gathered_sequence(x: torch.Tensor) -> torch.Tensor:
    return _all_gather(x.movedim(2, 0)).movedim(0, 2)


def transform_cases(device: str, sizes: tuple[tuple[int, int], ...] = ((10, 65536), (16, 32768))) -> Iterator[Case]:
    """The batched 3-D transform of a DTensor whose batch is sharded: no communication."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    ranks, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh(device, (ranks,))
    for k, count in sizes:
        part = _tensor(count // ranks, k, k, k, seed=rank, device=device, dtype=torch.float64)
        t = _tensor(k, k, seed=99, device=device, dtype=torch.float64)
        x = DTensor.from_local(part, mesh, [Shard(0)])
        matrix = DTensor.from_local(t, mesh, [Replicate()])

        def products(x: torch.Tensor, t: torch.Tensor, k: int = k) -> torch.Tensor:
            for _ in range(3):  # each takes the first axis and puts the new one last
                x = (x.reshape(-1, k, k * k).mT @ t).reshape(-1, k, k, k)
            return x

        yield Case(
            "transform3d", {"k": k, "count": count, "ranks": ranks, "dtype": "fp64"}, 6 * count // ranks * k**4, 0,
            lambda x=part, t=t: torch.einsum("nabc,ai,bj,ck->nijk", x, t, t, t),
            {
                "torch: three products": lambda x=part, t=t: products(x, t),
                OURS: lambda x=x, t=matrix: cast(DTensor, transform3d(x, t)).to_local(),
            },
            floors={COMPUTED: lambda x=part, t=t: transform3d(x, t)},
        )  # fmt: skip
