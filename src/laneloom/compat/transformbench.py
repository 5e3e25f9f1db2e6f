"""The benchmark of the transformbench seed: its levels, its defaults, its output line; and its validation.

Two conventions of counting exist. This uses 6 K^4 operations per tensor, a multiplication and an addition per term; the
seed's own table counts 3 K^4. Level 6 does 2 K^6, reported with 6 K^4 like the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ArgumentError, InvalidConfigError, UnsupportedError
from ..gpu import Gpu
from ..ops.scalars import is_whole, shown
from ..ops.target import active_gpu, expected_device_type
from ..ops.transform3d import Transform3dConfig, Transform3dProblem, execute, reference
from ..ops.transform3d.ladder import launch_shape, level_config, level_name

VALIDATED_K = (4, 6, 8, 10)
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Line:
    """One timed repetition."""

    level: str
    nfuncs: int
    nblocks: int
    k: int
    tasks: int
    threads: int
    smem: int
    time_us: float
    gflop: float

    def __str__(self) -> str:
        return (
            f"Transform;level={self.level};nfuncs={self.nfuncs};nblocks={self.nblocks};K={self.k};tasks={self.tasks};"
            f"threads={{{self.threads},1,1}};smem={self.smem};Time(us)={self.time_us:.0f};GFlop={self.gflop:.1f};"
            f"Gflop/s={self.gflop / (self.time_us * 1e-6):.1f}"
        )

    def as_json(self) -> dict[str, Any]:
        """The fields with the rate, for --json."""
        return asdict(self) | {"gflops": self.gflop / (self.time_us * 1e-6)}


def _prepare(
    problem: Transform3dProblem, config: Transform3dConfig, gpu: Gpu
) -> tuple[Callable[[], None], Any, Any, Any]:
    """A launch on random inputs, and x, matrix and out. The output starts as NaN."""
    import torch

    device = expected_device_type()
    generator = torch.Generator(device).manual_seed(0)
    shape = (problem.count, problem.k, problem.k, problem.k)
    x = torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
    matrix = torch.randn(shape[1:3], dtype=torch.float64, device=device, generator=generator)
    out = torch.full_like(x, float("nan"))

    def launch() -> None:
        execute.transform_into(x, matrix, out, "fp64", gpu, transpose=False, accumulate=False, config=config)

    return launch, x, matrix, out


def _check_sizes(**sizes: Any) -> None:
    for name, size in sizes.items():
        if not is_whole(size) or size < 1:
            expected = "at least 1" if is_whole(size) else "a whole number"
            raise ArgumentError(f"{name}: expected {expected}, got {shown(size)}")


def run(
    k: int = 16, nfuncs: int = 2048, nblocks: int = 512, ntasks: int = 500, repetitions: int = 5,
    level: str | int = "fused",
) -> Iterator[Line]:  # fmt: skip
    """Time `ntasks` submissions of `nfuncs` transforms per repetition (the seed's -K -N -M -n -r -l), on one stream.

    Inputs are random; one repetition before the first is dropped. Raises as `level_config`, and UnsupportedError
    without a GPU.
    """
    import torch

    _check_sizes(K=k, N=nfuncs, M=nblocks, n=ntasks, r=repetitions)
    level = str(level)
    gpu = active_gpu()
    if expected_device_type() != "cuda":
        raise UnsupportedError(f"transformbench times on a GPU; on an emulated {gpu.name}, validate the levels instead")
    problem = Transform3dProblem(k, nfuncs)
    config = level_config(level, problem, gpu, blocks=nblocks)
    launch, *_ = _prepare(problem, config, gpu)
    ctas, threads, smem = launch_shape(config, problem, gpu, nblocks)
    for repetition in range(repetitions + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(ntasks):
            launch()
        end.record()
        end.synchronize()
        if repetition:
            microseconds = 1000 * start.elapsed_time(end)
            gflop = problem.flops * ntasks / 1e9
            yield Line(level_name(level, gpu), nfuncs, ctas, k, ntasks, threads, smem, microseconds, gflop)


@dataclass(frozen=True)
class Validation:
    """The comparison of one level with FP64 on the CPU."""

    k: int
    nfuncs: int
    level: str
    max_abs_err: float
    max_rel_err: float  #: the largest error over the largest element of the result
    refused: str | None = None  #: why the level cannot do this K

    @property
    def passed(self) -> bool:
        """Whether the level ran and is right."""
        return self.refused is None and self.max_rel_err < TOLERANCE

    def as_json(self) -> dict[str, Any]:
        """The fields with the verdict, for --json; an error that is not finite is null."""
        errors = {"max_abs_err": self.max_abs_err, "max_rel_err": self.max_rel_err}
        finite = {name: value if math.isfinite(value) else None for name, value in errors.items()}
        return asdict(self) | finite | {"passed": self.passed}

    def __str__(self) -> str:
        head = f"K={self.k:<2} nfuncs={self.nfuncs} level={self.level}"
        if self.refused is not None:
            return f"{head}  REFUSED: {self.refused}"
        verdict = "PASS" if self.passed else "FAIL"
        return f"{head}  max_abs_err={self.max_abs_err:.2e}  max_rel_err={self.max_rel_err:.2e}  {verdict}"


def validate(level: str | int = "3", k: int | None = None, nfuncs: int = 16) -> Iterator[Validation]:
    """Compare a level with the CPU reference for one K, or for 4, 6, 8 and 10; a level that cannot run says why.

    Works inside `laneloom.emulated`. Raises ArgumentError for an unknown level and sizes below 1, UnsupportedError
    without a GPU.
    """
    _check_sizes(**({} if k is None else {"K": k}), N=nfuncs)
    level = str(level)
    gpu = active_gpu()
    for order in VALIDATED_K if k is None else (k,):
        problem = Transform3dProblem(order, nfuncs)
        try:
            config = level_config(level, problem, gpu)
            launch, x, matrix, out = _prepare(problem, config, gpu)
            launch()
        except (InvalidConfigError, UnsupportedError) as error:
            yield Validation(order, nfuncs, level, 0.0, 0.0, refused=str(error))
            continue
        truth = reference.transform(x.cpu().numpy(), matrix.cpu().numpy())
        error = abs(out.cpu().numpy() - truth)
        # A NaN that was never overwritten must not compare as small.
        worst = float(error.max()) if not (error != error).any() else float("inf")
        yield Validation(order, nfuncs, level, worst, worst / float(abs(truth).max()))
