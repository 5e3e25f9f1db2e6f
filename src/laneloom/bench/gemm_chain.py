"""Benchmark of `laneloom.gemm_chain` against two torch products and two of laneloom's, in one run.

`python -m laneloom.bench.gemm_chain [--out results/h200/gemm_chain.jsonl]` checks every case against FP64, then times
it; `--search` times other tiles as well; `--table FILE` prints records as a Markdown table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import CompileError, LaneloomError
from ..ops.gemm_chain import execute
from ..ops.gemm_chain.config import ChainConfig, parse_config, plan
from ..ops.gemm_chain.problem import ChainProblem
from ..ops.target import active_gpu
from .records import Environment, Record, append, hash_sources, load, make_record, read_environment
from .report import by_candidate
from .timing import METHOD_SUSTAINED, count_sets, interleave

PACKAGE = Path(__file__).parents[1]
#: what a chain's time depends on
KERNEL_SOURCES = tuple(PACKAGE / "ops/gemm_chain" / name for name in ("kernels/hopper.py", "config.py"))
#: M, K0, N0, N1
CASES = (
    (262144, 64, 64, 64), (131072, 128, 128, 128), (262144, 32, 128, 32), (65536, 256, 64, 256),
    (8192, 4096, 16, 4096), (8192, 4096, 64, 4096), (8192, 4096, 128, 4096), (32768, 64, 1024, 64),
    (32768, 128, 1024, 128), (16384, 128, 8192, 128), (16384, 256, 4096, 256), (16384, 1024, 512, 128),
    (4096, 4096, 4096, 4096), (16, 4096, 64, 4096),
)  # fmt: skip


def tiles(problem: ChainProblem) -> Iterator[ChainConfig]:
    """Tiles around the planned ones."""
    shapes = ((64, 4), (128, 4), (128, 8))
    if problem.n0 <= 128:
        block_n0 = max(16, 1 << (problem.n0 - 1).bit_length())
        for block_m, num_warps in shapes:
            for block_n1 in (64, 128, 256):
                yield ChainConfig(
                    schedule="hopper", block_m=block_m, num_warps=num_warps, block_n0=block_n0, block_n1=block_n1,
                    block_k=64, keep=True, stages=2 if block_n0 * block_n1 > 128 * 128 else 3,
                )  # fmt: skip
    if problem.n1 <= 256:
        block_n1 = max(16, 1 << (problem.n1 - 1).bit_length())
        whole = max(16, 1 << (problem.k0 - 1).bit_length())
        for block_m, num_warps in shapes:
            for block_n0 in (32, 64, 128):
                for block_k in {64, whole if problem.k0 <= 256 else 128}:
                    yield ChainConfig(
                        schedule="hopper", block_m=block_m, num_warps=num_warps, block_n0=block_n0, block_n1=block_n1,
                        block_k=block_k, stages=2 if block_k > 128 or block_n1 > 128 else 3,
                    )  # fmt: skip


def _error(out: torch.Tensor, operands: tuple[torch.Tensor, ...]) -> float:
    """|| out - truth || / || truth || over the first and last rows, infinite where an element is NaN."""
    rows = torch.cat((torch.arange(64), torch.arange(out.shape[0] - 64, out.shape[0]))) % out.shape[0]
    a0, b0, b1 = (x.double() for x in (operands[0][rows.cuda()], *operands[1:]))
    truth = a0 @ b0 @ b1
    error = ((out[rows.cuda()].double() - truth).norm() / truth.norm()).item()
    return error if error == error and not out.isnan().any() else float("inf")


def compare(
    sizes: tuple[int, int, int, int],
    *,
    search: Iterable[ChainConfig] | None = None,
    rounds: int = 15,
    environment: Environment | None = None,
    report: Callable[[str], None] = print,
) -> Iterator[Record]:
    """Records of torch, laneloom's pair of products and its chain, each checked before it is timed.

    Raises LaneloomError where the planned chain is wrong: a wrong kernel is not timed.
    """
    gpu = active_gpu()
    m, k0, n0, n1 = sizes
    problem = ChainProblem.contiguous(m, k0, n0, n1, dtype="bf16")
    n_sets = count_sets(problem.bytes)
    sets = [
        tuple(
            torch.randn(shape, dtype=torch.float32, device="cuda").mul_(shape[0] ** -0.5 if i else 1.0).bfloat16()
            for i, shape in enumerate(((m, k0), (k0, n0), (n0, n1)))
        )
        for _ in range(n_sets)
    ]
    outs = [torch.empty((m, n1), dtype=torch.bfloat16, device="cuda") for _ in range(n_sets)]
    rooms = [torch.empty((m, n0), dtype=torch.bfloat16, device="cuda") for _ in range(n_sets)]
    configs = {"laneloom": plan(problem, gpu), "two laneloom products": ChainConfig(schedule="pair")}
    configs |= {c.text: c for c in search or () if c.why_invalid(problem, gpu) is None}

    def run(config: ChainConfig) -> Callable[[int], None]:
        def launch(i: int) -> None:
            a0, b0, b1 = sets[i]
            execute.chain_into(a0, b0, b1, None, outs[i], ("bf16", ""), execute.Factors(), gpu, config)

        return launch

    def torchs(i: int) -> None:
        a0, b0, b1 = sets[i]
        torch.matmul(torch.matmul(a0, b0, out=rooms[i]), b1, out=outs[i])

    torchs(0)
    budget = 2 * _error(outs[0], sets[0]) + 2.0**-8
    launches: dict[str, Callable[[int], Any]] = {"torch.matmul twice": torchs}
    errors: dict[str, float] = {}
    for name, config in configs.items():
        outs[0].fill_(float("nan"))
        try:
            run(config)(0)
            errors[name] = _error(outs[0], sets[0])
        except (CompileError, RuntimeError) as error:
            if name == "laneloom":
                raise
            report(f"{sizes} {name}: {str(error).splitlines()[0]}")
            continue
        if not errors[name] <= budget:
            if name == "laneloom":
                raise LaneloomError(f"{problem.key}: relative error {errors[name]:.2e} is over {budget:.2e}")
            report(f"{sizes} {name} is wrong and not timed: {errors[name]:.2e}")
            continue
        launches[name] = run(config)
    timings = interleave(launches, n_sets, rounds=rounds)
    for name, timing in timings.items():
        config = configs.get(name)
        yield make_record(
            timing,
            op="gemm_chain",
            problem={"m": m, "k0": k0, "n0": n0, "n1": n1, "dtype": "bf16"},
            candidate=name,
            config={"text": config.text} if config else None,
            method=METHOD_SUSTAINED,
            reference="torch.matmul twice",
            flops=problem.flops,
            bytes=problem.bytes,
            kernel_hash=hash_sources(KERNEL_SOURCES) if name == "laneloom" else "",
            environment=environment or read_environment(),
            error=errors.get(name),
            error_budget=budget if name in errors else None,
        )


def table(records: Iterable[Record]) -> str:
    """The records as a Markdown table, one row per case; of repeated measurements the last counts."""
    lines = [
        "| M, K0, N0, N1 | time, us | TFLOP/s | GB/s | x of torch twice | x of two laneloom products | what ran |",
        "|---|---|---|---|---|---|---|",
    ]
    for by_name in by_candidate(records):
        ours, pair = by_name["laneloom"], by_name["two laneloom products"]
        p = ours.problem
        sizes = f"{p['m']}, {p['k0']}, {p['n0']}, {p['n1']}" + (" (noisy)" if ours.noisy else "")
        config = parse_config((ours.config or {})["text"])
        ran = f"{'keep' if config.keep else 'blocks'}, {config.block_m} x {config.block_n1}, {config.num_warps} warps"
        lines.append(
            f"| {sizes} | {ours.median_us:.1f} | {ours.tflops:.0f} | {ours.gbs:.0f} | {ours.ratio_to_reference:.2f} | "
            f"{pair.median_us / ours.median_us:.2f} | {'pair' if config.schedule == 'pair' else ran} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure laneloom.gemm_chain against two products.")
    parser.add_argument("--table", type=Path, help="print the records of this file as a table and stop")
    parser.add_argument("--out", type=Path, help="append records to this file")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--search", action="store_true", help="time other tiles as well")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(load(arguments.table)))
        return
    environment = read_environment()
    for sizes in CASES:
        problem = ChainProblem.contiguous(*sizes, dtype="bf16")
        search = tiles(problem) if arguments.search else None
        for record in compare(sizes, search=search, rounds=arguments.rounds, environment=environment):
            if arguments.out and record.candidate in ("laneloom", "two laneloom products", "torch.matmul twice"):
                append(arguments.out, record)
            print(
                f"{sizes} {record.candidate:60s} {record.median_us:9.1f} us {record.tflops:5.0f} TFLOP/s "
                f"{record.gbs:5.0f} GB/s {record.ratio_to_reference:.3f} of torch" + (" noisy" if record.noisy else ""),
                flush=True,
            )
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
