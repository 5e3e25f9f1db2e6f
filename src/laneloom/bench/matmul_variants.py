"""Measure what surrounds a product on one Hopper GPU: epilogues, scales, batches, groups; append to the same records.

Each against what a user would write in torch for the same result: `python -m laneloom.bench.matmul_variants --help`.
Every result is checked against FP64 before it is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import LaneloomError
from ..ops.matmul.api import matmul
from ..ops.matmul.gemm import gemm
from ..ops.matmul.grouped import grouped_matmul
from .kernel_sources import config_sources
from .records import append, hash_sources, make_record, read_environment
from .timing import METHOD_SINGLE, METHOD_SUSTAINED, count_sets, interleave, single_launch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
#: rounding of the output to bf16, of the sums of fp8 in wgmma, and of torch's intermediate results in bf16
BUDGET = 2.0**-7


@dataclass(frozen=True)
class Variant:
    """One comparison: both sides take an input set, and give the same result but for rounding."""

    op: str
    problem: dict[str, Any]
    flops: int
    bytes: int
    reference: str
    make: Callable[[int], tuple[Any, ...]]  #: input set number i
    ours: Callable[..., torch.Tensor]
    theirs: Callable[..., torch.Tensor]
    truth: Callable[..., torch.Tensor]


def _random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def _facts(m: int, n: int, k: int, kind: str, **more: int) -> dict[str, Any]:
    return {"m": m, "n": n, "k": k, "layout": "nt", "dtype": kind, "dtype_out": "bf16", "group": "variants", **more}


def iterate_variants() -> Iterator[Variant]:
    """Linear layers with bias and GELU, fp8 with scales for rows and columns, batches, groups of all sizes."""
    for m, n, k in ((4096, 4096, 4096), (512, 4096, 1024)):
        yield Variant(
            "gemm", _facts(m, n, k, "bf16 bias gelu"), 2 * m * n * k, 2 * (m * k + n * k + m * n), "torch linear, gelu",
            lambda i, m=m, n=n, k=k: (_random(m, k), _random(n, k), _random(n)),
            lambda a, w, bias: gemm(a, w.mT, bias=bias, activation="gelu"),
            lambda a, w, bias: F.gelu(F.linear(a, w, bias)),
            lambda a, w, bias: F.gelu(a.double() @ w.double().mT + bias.double()),
        )  # fmt: skip
        yield Variant(
            "gemm", _facts(m, n, k, "fp8 row scales"), 2 * m * n * k, m * k + n * k + 2 * m * n, "torch._scaled_mm",
            lambda i, m=m, n=n, k=k: (_random(m, k, dtype=FP8), _random(n, k, dtype=FP8),
                                      torch.rand(m, 1, device="cuda"), torch.rand(1, n, device="cuda")),
            lambda a, w, s, t: gemm(a, w.mT, scale_a=s[:, 0], scale_b=t[0], out_dtype=BF16),
            lambda a, w, s, t: torch._scaled_mm(a, w.mT, s, t, out_dtype=BF16, use_fast_accum=True),  # pyright: ignore
            lambda a, w, s, t: (a.double() @ w.double().mT) * s.double() * t.double(),
        )  # fmt: skip
    for batch, m, n, k in ((64, 512, 512, 512), (512, 128, 128, 64)):
        yield Variant(
            "matmul", {**_facts(m, n, k, "bf16"), "layout": "nn", "batch": batch}, 2 * batch * m * n * k,
            2 * batch * (m * k + n * k + m * n), "torch.bmm",
            lambda i, batch=batch, m=m, n=n, k=k: (_random(batch, m, k), _random(batch, k, n)),
            matmul, torch.bmm, lambda a, b: a.double() @ b.double(),
        )  # fmt: skip
    for sizes in ([512] * 8, [1900, 3, 700, 0, 61, 1000, 400, 32]):
        m, n, k, g = sum(sizes), 4096, 4096, len(sizes)
        ends = torch.tensor(sizes).cumsum(0).to("cuda", torch.int32)
        yield Variant(
            "grouped_matmul", {**_facts(m, n, k, "bf16"), "groups": g, "largest": max(sizes)}, 2 * m * n * k,
            2 * (m * k + g * n * k + m * n), "torch._grouped_mm",
            lambda i, m=m, n=n, k=k, g=g: (_random(m, k), _random(g, n, k)),
            lambda a, b, ends=ends: grouped_matmul(a, b.mT, ends),
            lambda a, b, ends=ends: torch._grouped_mm(a, b.mT, offs=ends),  # pyright: ignore
            lambda a, b, sizes=sizes: torch.cat([x.double() @ y.double().mT
                                                for x, y in zip(a.split(sizes), b, strict=True)]),
        )  # fmt: skip


def run(path: Path, *, rounds: int, single: bool) -> None:
    """Measure every variant and append its records to `path`. Raises LaneloomError for a wrong result."""
    environment, sources = read_environment(), hash_sources(config_sources(None))
    for variant in iterate_variants():
        sets = count_sets(variant.bytes)
        inputs = [variant.make(i) for i in range(sets)]
        truth = variant.truth(*inputs[0])
        errors = {}
        for name, call in ((variant.reference, variant.theirs), ("laneloom", variant.ours)):
            error = ((call(*inputs[0]).double() - truth).norm() / truth.norm()).item()
            errors[name] = error if error == error else float("inf")
        if errors["laneloom"] > BUDGET:
            raise LaneloomError(f"{variant.op} {variant.problem}: error {errors['laneloom']:.2e} is over {BUDGET:.2e}")
        del truth
        candidates: dict[str, Callable[[int], object]] = {
            variant.reference: lambda i, v=variant, x=inputs: v.theirs(*x[i]),
            "laneloom": lambda i, v=variant, x=inputs: v.ours(*x[i]),
        }
        timings = {METHOD_SUSTAINED: interleave(candidates, sets, reference=variant.reference, rounds=rounds)}
        if single:
            timings[METHOD_SINGLE] = single_launch(candidates, sets, reference=variant.reference, rounds=rounds)
        for method, by_name in timings.items():
            for name, timing in by_name.items():
                ours = name == "laneloom"
                append(path, make_record(
                    timing, op=variant.op, candidate=name, method=method, reference=variant.reference,
                    flops=variant.flops, bytes=variant.bytes, environment=environment,
                    kernel_hash=sources if ours else "", config=None, error=errors[name],
                    error_budget=BUDGET if ours else None, problem=variant.problem,
                ))  # fmt: skip
        ours = timings[METHOD_SUSTAINED]["laneloom"]
        print(
            f"{variant.op} {variant.problem}: {ours.median_us:.2f} us, "
            f"{variant.flops / ours.median_us / 1e6:.0f} TFLOP/s, {ours.ratio_to_reference:.3f} x {variant.reference}, "
            f"error {errors['laneloom']:.1e} (torch {errors[variant.reference]:.1e})", flush=True,
        )  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure epilogues, scales, batches and groups on Hopper.")
    parser.add_argument("--out", type=Path, required=True, help="file of records to append to")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--single", action="store_true", help="time single launches on an idle GPU as well")
    arguments = parser.parse_args()
    run(arguments.out, rounds=arguments.rounds, single=arguments.single)


if __name__ == "__main__":
    main()
