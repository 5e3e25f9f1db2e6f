"""Trying configs with no GPU: right in the emulator on a small product, then timed by laneloom.timing. Predicted."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from .. import __version__, verify
from ..bench.predicted import sample_matmul
from ..codegen.versions import triton_version
from ..emulator.driver import emulated
from ..errors import LaneloomError, UnsupportedError
from ..gpu import Gpu, get_gpu
from ..ops.matmul import execute, reference
from ..ops.matmul.config import MatmulConfig
from ..ops.matmul.dtypes import Arithmetic
from ..ops.matmul.problem import MatmulProblem
from ..timing import machine_of
from .outcome import Confirmed, Outcome, cut
from .workers import start_worker

_INTEGERS = {"int8": (-128, 128), "uint8": (0, 256)}


class PredictedEvaluator:
    """The timing model's verdict of a product of contiguous operands on a GPU of RDNA or CDNA."""

    objective = "predicted"
    method = "laneloom.timing on the emulator's trace; right in the emulator on a small product of the same edges"

    def __init__(self, problem: MatmulProblem, gpu: Gpu, *, jobs: int = 1):
        machine_of(gpu)  # refuses a GPU without a timing model
        if problem.dtype_a != problem.dtype_b or problem.dtype_a not in verify.STORAGE or problem.batches != 1:
            raise UnsupportedError(f"tuning without a GPU takes one product of one dtype, got {problem.key}")
        if problem.precision != "ieee":
            raise UnsupportedError(f"tuning without a GPU takes full precision, got {problem.precision}")
        self.problem, self.gpu = problem, gpu
        self.where: dict[str, str | int | bool] = {"gpu": gpu.product, "triton": triton_version()}
        self.where["laneloom"] = __version__
        self._jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def evaluate(self, configs: Sequence[MatmulConfig], best_us: float | None) -> Iterator[Outcome]:
        if self._jobs == 1:
            yield from (try_config(self.problem, self.gpu, config) for config in configs)
            return
        futures = [self._submit(config) for config in configs]
        for config, future in zip(configs, futures, strict=True):
            try:
                yield future.result()
            except BrokenProcessPool:  # a worker died, and took what waited behind it along: each once more, alone
                self.close()
                try:
                    yield self._submit(config).result()
                except BrokenProcessPool:
                    self.close()
                    yield Outcome(config, None, "its process died")

    def _submit(self, config: MatmulConfig) -> Future[Outcome]:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._jobs, mp_context=context, initializer=start_worker)
        return self._pool.submit(try_named, self.problem, self.gpu.name, config.text)

    def confirm(self, configs: Sequence[MatmulConfig], model: MatmulConfig) -> Confirmed:
        """The first that strict mode finds nothing in."""
        reasons = []
        for config in configs:
            why = why_wrong(self.problem, self.gpu, config, strict=True)
            if why is None:
                mine, its = (try_config(self.problem, self.gpu, c).time_us for c in (config, model))
                if mine and its:
                    return Confirmed(config, mine, its) if mine < its else Confirmed(model, its, its)
                why = "it, or the cost model's choice, cannot be timed"
            reasons.append(f"{config.text}: {why}")
        raise LaneloomError("no config passed the last check: " + "; ".join(reasons))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def try_named(problem: MatmulProblem, gpu: str, config: str) -> Outcome:
    """`try_config` of what a process can send: names."""
    return try_config(problem, get_gpu(gpu), MatmulConfig.parse(config))


def try_config(problem: MatmulProblem, gpu: Gpu, config: MatmulConfig) -> Outcome:
    """One config: compiled, emulated, judged against FP64, predicted."""
    try:
        spills = execute.code_object(problem, gpu, config).spills
        if spills:
            return Outcome(config, None, f"{spills} registers spill")
        why = why_wrong(problem, gpu, config)
        if why is not None:
            return Outcome(config, None, why)
        sampled = sample_matmul(
            problem.m, problem.n, problem.k, gpu, dtype=problem.dtype_a, dtype_out=problem.dtype_out,
            layout=problem.layout, config=config,
        )  # fmt: skip
        return Outcome(config, sampled.evaluate(machine_of(gpu)).time_us)
    except Exception as error:  # a compiler's failure is a bad config here, not the end of the study
        return Outcome(config, None, f"{type(error).__name__}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def why_wrong(problem: MatmulProblem, gpu: Gpu, config: MatmulConfig, *, strict: bool = False) -> str | None:
    """What is wrong with a config's result in the emulator, on random operands; None where nothing is."""
    m, n, k = cut(problem, config)
    rng = np.random.default_rng(m + n + k)
    dtype, out = problem.dtype_a, problem.dtype_out
    small = MatmulProblem.contiguous(m, n, k, dtype=dtype, dtype_out=out, layout=problem.layout)
    refused = config.why_invalid(small, gpu)
    if refused is not None:
        return f"refused on {m} x {n} x {k}: {refused}"
    a = _operand(rng, (m, k), dtype, problem.layout[0])
    b = _operand(rng, (k, n), dtype, problem.layout[1])
    guarded = verify.Guarded((m, n), out)
    with emulated(gpu, strict=strict):
        execute.multiply_into(
            a, b, guarded.array, (dtype, dtype, out), gpu, config, arithmetic=Arithmetic("ieee", problem.dtype_acc)
        )
    first, second = (x if dtype in _INTEGERS else verify.decode(x, dtype) for x in (a, b))
    got = guarded.array if out == "int32" else verify.decode(guarded.array, out)
    verdict = reference.judge(got, first, second, out, problem.dtype_acc, cuts=reference.cuts_of(gpu, dtype))
    if not verdict.ok:
        return f"wrong: C{list(verdict.index)} is off by {verdict.error:.2e}, allowed {verdict.budget:.2e}"
    return None if guarded.untouched_outside() else "wrong: it writes outside C"


def _operand(rng: np.random.Generator, shape: tuple[int, int], dtype: str, letter: str) -> np.ndarray:
    stored = shape if letter == "n" else shape[::-1]
    if dtype in _INTEGERS:
        array = rng.integers(*_INTEGERS[dtype], stored).astype(verify.STORAGE[dtype])
    else:
        array = verify.encode(rng.standard_normal(stored), dtype)
    return array if letter == "n" else array.T
