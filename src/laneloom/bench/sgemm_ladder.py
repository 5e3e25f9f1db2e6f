"""Measure the FP32 ladder on a GPU, against torch.matmul in FP32 and the rate of FMA instructions alone, in one run.

`python -m laneloom.bench.sgemm_ladder --out results/h200/sgemm-ladder.jsonl`. Every step is checked against FP64 first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from ..codegen.cuda_launch import CudaKernel, argument_types
from ..codegen.nvrtc import compile_cuda
from ..errors import LaneloomError
from ..gpu import Gpu
from ..ops.matmul import execute
from ..ops.matmul.api import matmul
from ..ops.matmul.config import MatmulConfig, plan
from ..ops.matmul.config_sgemm import LADDER
from ..ops.matmul.problem import MatmulProblem
from ..ops.target import active_gpu
from .products import relative_error
from .records import append, hash_sources, make_record, read_environment
from .sgemm_rungs import FMA, PLANNED, REFERENCE
from .timing import METHOD_SUSTAINED, Timing, count_sets, interleave

KERNELS = Path(__file__).parents[1] / "ops" / "matmul" / "kernels"
CHECKED = ((130, 260, 97), (256, 512, 64))  #: M, N, K: edges everywhere, and none

_FMA_SOURCE = """
extern "C" __global__ void __launch_bounds__(256) fma_rate(float *out, int rounds) {
    float x[32];
    for (int i = 0; i < 32; ++i) x[i] = threadIdx.x + i;
    const float a = out[0], b = out[1];
    for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int i = 0; i < 128; ++i) x[i % 32] = fmaf(x[i % 32], a, b);
    }
    float sum = 0.0f;
    for (int i = 0; i < 32; ++i) sum += x[i];
    if (sum == 12345.0f) out[2] = sum;  // never: keeps the loop
}
"""
_FMA_ROUNDS, _FMA_THREADS, _FMA_CTAS_PER_UNIT = 400, 256, 8


def step_names(gpu: Gpu) -> list[str]:
    """The ladder's steps that are for this GPU, in order."""
    problem = MatmulProblem.contiguous(1024, 1024, 1024, dtype="fp32")
    return [name for name, config in LADDER.items() if config.why_invalid(problem, gpu) is None]


def sources(name: str) -> list[Path]:
    """The files that a step's time depends on."""
    if name == PLANNED:
        return [path for path in KERNELS.iterdir() if path.name.startswith("hopper_stream")]
    return [KERNELS / "sgemm_hopper.cu", KERNELS / "sgemm_hopper.py"]


def describe(problem: MatmulProblem, config: MatmulConfig, gpu: Gpu) -> dict[str, object]:
    """A config and what it compiles to, as a record holds them."""
    code = execute.code_object(problem, gpu, config)
    return {"text": config.text, "vgprs": code.vgprs, "lds_bytes": code.lds_bytes}


def check(name: str, config: MatmulConfig | None) -> None:
    """Raise LaneloomError unless a step is right on small products, one with edges in every direction."""
    for m, n, k in CHECKED:
        a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        out = torch.full((m, n), float("nan"), device="cuda")
        matmul(a, b, out=out, config=config)
        truth = a.double() @ b.double()
        budget = 2 * relative_error(a @ b, truth) + 2.0**-24
        error = relative_error(out, truth)
        if not error <= budget:
            raise LaneloomError(f"{name} at {m} x {n} x {k}: relative error {error:.2e}, budget {budget:.2e}")


def fma_launch(gpu: Gpu) -> tuple[Callable[[int], object], int]:
    """What issues FMA instructions on every unit and nothing else, and its operations."""
    code = compile_cuda(_FMA_SOURCE, gpu, constants={}, num_warps=_FMA_THREADS // 32, lds_bytes=0, name="fma_rate.cu")
    device = torch.cuda.current_device()
    kernel = CudaKernel(code, argument_types("pi"), device)
    ctas = _FMA_CTAS_PER_UNIT * torch.cuda.get_device_properties(device).multi_processor_count
    out = torch.tensor([0.999, 0.001, 0.0], device="cuda")

    def launch(_: int) -> None:
        kernel.launch(ctas, torch.cuda.current_stream().cuda_stream, (out.data_ptr(), _FMA_ROUNDS))

    return launch, 2 * 128 * _FMA_ROUNDS * _FMA_THREADS * ctas


def measure(size: int, gpu: Gpu, *, rounds: int) -> tuple[dict[str, Timing], dict[str, float], float, int]:
    """Timings of every step, of torch and of FMA alone; errors; their budget; operations of FMA alone."""
    problem = MatmulProblem.contiguous(size, size, size, dtype="fp32")
    sets = count_sets(problem.bytes)
    operands = [(torch.randn(size, size, device="cuda"), torch.randn(size, size, device="cuda")) for _ in range(sets)]
    outs = [torch.empty(size, size, device="cuda") for _ in range(sets)]
    configs: dict[str, MatmulConfig | None] = {name: LADDER[name] for name in step_names(gpu)}
    configs[PLANNED] = plan(problem, gpu)
    candidates: dict[str, Callable[[int], object]] = {
        REFERENCE: lambda i: torch.matmul(*operands[i], out=outs[i]),
    }
    candidates |= {
        name: lambda i, config=config: matmul(*operands[i], out=outs[i], config=config)
        for name, config in configs.items()
    }
    truth = operands[0][0].double() @ operands[0][1].double()
    errors = {}
    for name, launch in candidates.items():
        outs[0].fill_(float("nan"))
        launch(0)
        errors[name] = relative_error(outs[0], truth)
    budget = 2 * errors[REFERENCE] + 2.0**-24
    wrong = {name: error for name, error in errors.items() if not error <= budget}
    if wrong:
        raise LaneloomError(f"{problem.key}: over the budget of {budget:.2e}: {wrong}")
    candidates[FMA], operations = fma_launch(gpu)
    return interleave(candidates, sets, reference=REFERENCE, rounds=rounds), errors, budget, operations


def run(path: Path, sizes: list[int], *, rounds: int) -> None:
    """Check every step, measure all of them at every size and append the records to `path`."""
    torch.backends.cuda.matmul.allow_tf32 = False
    environment, gpu = read_environment(), active_gpu()
    for name in step_names(gpu):
        check(name, LADDER[name])
    for size in sizes:
        timings, errors, budget, operations = measure(size, gpu, rounds=rounds)
        problem = MatmulProblem.contiguous(size, size, size, dtype="fp32")
        chosen = {name: LADDER[name] for name in step_names(gpu)} | {PLANNED: plan(problem, gpu)}
        for name, timing in timings.items():
            config = chosen.get(name)
            record = make_record(
                timing, op="sgemm_ladder", candidate=name, method=METHOD_SUSTAINED, reference=REFERENCE,
                flops=operations if name == FMA else problem.flops, bytes=0 if name == FMA else problem.bytes,
                environment=environment, kernel_hash=hash_sources(sources(name)) if config else "",
                config=describe(problem, config, gpu) if config else None, error=errors.get(name),
                error_budget=budget if name in errors else None,
                problem={"m": size, "n": size, "k": size, "layout": "nn", "dtype": "fp32"},
            )  # fmt: skip
            append(path, record)
            print(
                f"{size} {name}: {timing.median_us:.1f} us, {record.tflops:.2f} TFLOP/s, "
                f"{timing.ratio_to_reference:.3f} x {REFERENCE}{' (noisy)' if timing.noisy else ''}",
                flush=True,
            )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure the FP32 ladder.")
    parser.add_argument("--out", type=Path, required=True, help="file of records to append to")
    parser.add_argument("--sizes", default="4096", help="of M = N = K, with commas")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    run(arguments.out, [int(size) for size in arguments.sizes.split(",")], rounds=arguments.rounds)


if __name__ == "__main__":
    main()
