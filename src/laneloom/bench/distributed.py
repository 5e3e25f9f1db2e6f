"""Overlapped products and context-parallel attention against torch's own, on the GPUs of one host.

    torchrun --nproc-per-node 2 -m laneloom.bench.distributed --out results/h200/distributed.jsonl

laneloom's candidates are checked against the FP64 result of this rank's part before they are timed. A round times
`CALLS` calls of one candidate between CUDA events after a barrier; candidates take turns in an order that is rotated,
and the slowest rank counts. Nothing is captured in graphs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ..errors import LaneloomError
from ..ops.matmul.api import matmul
from ..ops.transform3d.api import transform3d
from ..pytorch.distributed import (
    all_gather_matmul,
    all_gather_single,
    matmul_reduce_scatter,
    ring_attention,
    zigzag_shard,
)
from .records import append, hash_sources, make_record, read_environment
from .timing import Timing
from .works import sources

METHOD = "distributed: CUDA events around up to 10 calls after a barrier, order rotated, slowest rank, median"
CALLS, ROUNDS, ROUND_US = 10, 11, 10_000.0
OURS = "laneloom"
ALONE = "the product alone"  #: nothing is communicated: what no overlap can beat
#: torch 2.13's name for it, or the one before
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
#: what the kernels of a case belong to
OPERATIONS = {"all_gather_matmul": "matmul", "matmul_reduce_scatter": "matmul", "ring_attention": "attention",
              "transform3d": "transform3d"}  # fmt: skip
#: rows, hidden width and width of the feed-forward layer: two model sizes, prefill and a larger batch
PRODUCTS = ((2048, 4096, 14336), (8192, 4096, 14336), (2048, 8192, 28672), (8192, 8192, 28672))
#: heads, heads of keys, length of the whole sequence
ATTENTIONS = ((32, 32, 8192), (32, 8, 32768))


@dataclass(frozen=True)
class Case:
    """One problem; the first candidate is what it is compared with."""

    op: str
    problem: dict[str, Any]
    flops: int  #: of one rank
    truth: Callable[[], torch.Tensor]
    candidates: dict[str, Callable[[], torch.Tensor]]
    contexts: Mapping[str, Callable[[], AbstractContextManager[object]]] = field(default_factory=dict)
    floors: Mapping[str, Callable[[], torch.Tensor]] = field(default_factory=dict)  #: timed beside, no candidates


def _tensor(*shape: int, seed: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device=device, generator=torch.Generator(device).manual_seed(seed))


def _all_gather(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    all_gather_single(whole, x.contiguous())
    return whole


def product_cases(
    device: str, sizes: tuple[tuple[int, int, int], ...] = PRODUCTS, dtype: torch.dtype = torch.bfloat16
) -> Iterator[Case]:
    """The two products of a feed-forward layer whose weights are sharded, the rows between them too."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    group_name = dist.group.WORLD.group_name if dist.group.WORLD is not None else ""
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    for m, hidden, wide in sizes:
        shapes = ((m // ranks, hidden), (hidden, wide // ranks))
        x, w = (_tensor(*s, seed=rank, device=device, dtype=dtype) for s in shapes)
        candidates = {
            "torch: all_gather, matmul": lambda x=x, w=w: _all_gather(x) @ w,
            OURS: lambda x=x, w=w: all_gather_matmul(x, w),
        }
        if device == "cuda":
            candidates["laneloom, p2p"] = lambda x=x, w=w: all_gather_matmul(x, w, transport="p2p")
            candidates["torch: fused_all_gather_matmul"] = lambda x=x, w=w: (
                torch.ops.symm_mem.fused_all_gather_matmul(x, [w], 0, group_name)[1][0]
            )
        whole = _all_gather(x)
        yield Case("all_gather_matmul", {"m": m, "n": wide, "k": hidden, "ranks": ranks, "dtype": name},
                   2 * m * hidden * wide // ranks, lambda x=x, w=w: _all_gather(x).double() @ w.double(),
                   candidates, floors={ALONE: lambda x=whole, w=w: matmul(x, w)})  # fmt: skip
        shapes = ((m, wide // ranks), (wide // ranks, hidden))
        x, w = (_tensor(*s, seed=rank + ranks, device=device, dtype=dtype) for s in shapes)
        candidates = {
            "torch: matmul, reduce_scatter": lambda x=x, w=w: _reduce_scatter(x @ w),
            OURS: lambda x=x, w=w: matmul_reduce_scatter(x, w),
        }
        if device == "cuda":
            candidates["laneloom, p2p"] = lambda x=x, w=w: matmul_reduce_scatter(x, w, transport="p2p")
            candidates["torch: fused_matmul_reduce_scatter"] = lambda x=x, w=w: (
                torch.ops.symm_mem.fused_matmul_reduce_scatter(x, w, "sum", 0, group_name)
            )
        yield Case("matmul_reduce_scatter", {"m": m, "n": hidden, "k": wide, "ranks": ranks, "dtype": name},
                   2 * m * hidden * wide // ranks, lambda x=x, w=w: _reduce_scatter(x.double() @ w.double()),
                   candidates, floors={ALONE: lambda x=x, w=w: matmul(x, w)})  # fmt: skip


def _reduce_scatter(y: torch.Tensor) -> torch.Tensor:
    mine = y.new_empty(y.shape[0] // dist.get_world_size(), *y.shape[1:])
    reduce_scatter_single(mine, y)
    return mine


def attention_cases(device: str, sizes: tuple[tuple[int, int, int], ...] = ATTENTIONS, d: int = 128) -> Iterator[Case]:
    """Attention over a sequence in parts, whole and causal, against gathered keys and torch's context_parallel."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    ranks, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh(device, (ranks,))
    for heads, kv_heads, length in sizes:
        whole = [_tensor(1, h, length, d, seed=i, device=device) for i, h in enumerate((heads, kv_heads, kv_heads))]
        grouped = heads != kv_heads
        for causal in (False, True):
            rows = slice(rank * length // ranks, (rank + 1) * length // ranks)
            parts = [zigzag_shard(x) if causal else x[:, :, rows].contiguous() for x in whole]

            def truth(whole=whole, causal=causal, grouped=grouped, rows=rows, length=length) -> torch.Tensor:
                last = slice(-256, None)  # as many queries as fit: the last of this rank's part
                q = zigzag_shard(whole[0]) if causal else whole[0][:, :, rows]
                positions = torch.arange(length, device=device)
                mine = zigzag_shard(positions, axis=0) if causal else positions[rows]
                mask = positions[None, :] <= mine[last, None] if causal else None
                q, k, v = (x.double() for x in (q[:, :, last], *whole[1:]))
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)

            buffers = [x.clone() for x in whole]
            candidates = {
                "torch: context_parallel": lambda b=buffers, c=causal, g=grouped: F.scaled_dot_product_attention(
                    *b, is_causal=c, enable_gqa=g
                ),
                OURS: lambda p=parts, c=causal: ring_attention(*p, causal=c),
            }
            if device == "cuda":
                candidates["laneloom, p2p"] = lambda p=parts, c=causal: ring_attention(*p, causal=c, transport="p2p")
            contexts = {
                "torch: context_parallel": lambda b=buffers: context_parallel(mesh, buffers=b, buffer_seq_dims=[2] * 3)
            }
            if not causal:
                candidates["torch: all_gather, attention"] = lambda p=parts, g=grouped: F.scaled_dot_product_attention(
                    p[0], _gathered_sequence(p[1]), _gathered_sequence(p[2]), enable_gqa=g
                )
            pairs = length * length // ranks // (2 if causal else 1)
            problem = {"heads": heads, "kv_heads": kv_heads, "length": length, "d": d, "causal": causal,
                       "ranks": ranks, "dtype": "bf16"}  # fmt: skip
            yield Case("ring_attention", problem, 4 * heads * pairs * d, truth, candidates, contexts)


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
            "transform3d", {"k": k, "count": count, "ranks": ranks, "dtype": "fp64"}, 6 * count // ranks * k**4,
            lambda x=part, t=t: torch.einsum("nabc,ai,bj,ck->nijk", x, t, t, t),
            {
                "torch: three products": lambda x=part, t=t: products(x, t),
                OURS: lambda x=x, t=matrix: cast(DTensor, transform3d(x, t)).to_local(),
            },
            floors={"without DTensor": lambda x=part, t=t: transform3d(x, t)},
        )  # fmt: skip


def _gathered_sequence(x: torch.Tensor) -> torch.Tensor:
    return _all_gather(x.movedim(2, 0)).movedim(0, 2)


def relative_error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """|| got - truth || / || truth || of the last rows that truth has; infinite where an element is NaN."""
    axis = next((i for i, (n, kept) in enumerate(zip(got.shape, truth.shape, strict=True)) if n != kept), 0)
    got = got.narrow(axis, got.shape[axis] - truth.shape[axis], truth.shape[axis])
    error = ((got.double() - truth).norm() / truth.norm()).item()
    return error if error == error else float("inf")


def check(case: Case) -> tuple[dict[str, Callable[[], torch.Tensor]], float, float]:
    """The candidates that run here, laneloom's worst error and its budget: twice torch's and one rounding.

    Raises LaneloomError where a result of laneloom's is wrong.
    """
    truth, runs, errors = case.truth(), {}, {}
    for name, call in case.candidates.items():
        try:
            with case.contexts.get(name, nullcontext)(), torch.no_grad():
                errors[name] = relative_error(call(), truth)
            runs[name] = call
        except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
            if name == OURS:
                raise
            if dist.get_rank() == 0:
                print(f"{case.op} {case.problem}: {name} does not run: {error}", flush=True)
    theirs = [error for name, error in errors.items() if name.startswith("torch")]
    budget = 2 * (min(theirs) if theirs else 0.0) + 2.0**-8
    ours = max(error for name, error in errors.items() if name.startswith("laneloom"))
    if not ours <= budget:
        raise LaneloomError(f"{case.op} {case.problem}: relative error {ours:.2e} is over its budget of {budget:.2e}")
    return runs, ours, budget


def measure(case: Case, candidates: dict[str, Callable[[], torch.Tensor]]) -> dict[str, Timing]:
    """Timings by candidate, of the slowest rank."""
    everything = {**candidates, **case.floors}
    samples: dict[str, list[float]] = {name: [] for name in everything}
    names, calls = list(samples), 1
    for r in range(ROUNDS + 2):
        shift = r % len(names)
        for name in names[shift:] + names[:shift]:
            with case.contexts.get(name, nullcontext)(), torch.no_grad():
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                dist.barrier()
                torch.cuda.synchronize()
                start.record()
                for _ in range(calls):
                    everything[name]()
                end.record()
                torch.cuda.synchronize()
            slowest = torch.tensor(1000 * start.elapsed_time(end) / calls, device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            samples[name].append(slowest.item())
        if r == 1:  # warm now: the same number of calls on every rank, whose slowest times are the same
            longest = max(values[-1] for values in samples.values())
            calls = max(1, min(CALLS, int(ROUND_US / longest)))
            samples = {name: [] for name in names}
    return {name: Timing.from_samples(values, samples[names[0]]) for name, values in samples.items()}


def run(path: Path, cases: Iterator[Case]) -> None:
    """Check and measure every case; rank 0 appends the records to `path`."""
    environment = read_environment()
    for case in cases:
        candidates, error, budget = check(case)
        timings = measure(case, candidates)
        if dist.get_rank() != 0:
            continue
        for name, timing in timings.items():
            ours = name == OURS
            append(path, make_record(
                timing, op=case.op, problem=case.problem, candidate=name, config=None, method=METHOD,
                reference=next(iter(timings)), flops=case.flops, bytes=0, environment=environment,
                kernel_hash=hash_sources(sources(OPERATIONS[case.op])) if ours else "",
                error=error if ours else None, error_budget=budget if ours else None,
            ))  # fmt: skip
            rate = case.flops / timing.median_us / 1e6
            print(f"{case.op} {case.problem} {name}: {timing.median_us:.1f} us, {rate:.0f} TFLOP/s a GPU, "
                  f"{timing.ratio_to_reference:.3f} x{' (noisy)' if timing.noisy else ''}", flush=True)  # fmt: skip


SUITES = {"products": product_cases, "transform3d": transform_cases, "attention": attention_cases}


def main() -> None:
    """Command line, one process for each GPU."""
    parser = argparse.ArgumentParser(description="Measure products and attention over several GPUs; run by torchrun.")
    parser.add_argument("--out", type=Path, required=True, help="file of records to append to")
    parser.add_argument("--only", choices=SUITES, help="one part of the suite")
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    for name, cases in SUITES.items():
        if arguments.only in (None, name):
            run(arguments.out, cases("cuda"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
