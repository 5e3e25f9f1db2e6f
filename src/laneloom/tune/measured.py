"""Trying configs on the GPU: compiled and verified side by side in workers, then timed alone, each beside the model's.

A worker that a kernel has taken down or hung costs that config and a new worker. The objective is the time of the cost
model's choice in a first run over the ratio to it in the config's own run, so that clocks which drift cancel.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import lru_cache
from multiprocessing import TimeoutError as NoAnswer
from multiprocessing.pool import AsyncResult

import torch

from .. import __version__
from ..bench.products import DTYPES, judge, multiply, operands
from ..bench.records import read_environment
from ..bench.timing import Launch, count_sets, interleave
from ..codegen.versions import triton_version
from ..errors import LaneloomError, UnsupportedError
from ..gpu import Gpu
from ..ops.matmul.config import MatmulConfig, plan_with_reasons
from ..ops.matmul.problem import MatmulProblem
from .outcome import Confirmed, Outcome
from .workers import Workers

GUARD = 4096  #: elements on either side of a result
HANGS_S = 120  #: compiling and one launch take longer only if something is stuck
FAR = 1.1  #: times the best, after a few rounds of all that are tried together, at which a config is given up
LOOK_ROUNDS, CONFIRM_ROUNDS = 5, 31
PATCHED_DTYPES = ("fp16", "bf16", "fp32", "fp64")  #: of products that torch.matmul does, and `patched` can route
_POISONED = "device error"  #: the worker's context is lost


class MeasuredEvaluator:
    """Times on this machine's GPU."""

    objective = "measured"
    method = (
        "sustained: CUDA-graph replays interleaved with the cost model's choice, order and inputs rotated; each config "
        "verified against FP64 before"
    )

    def __init__(self, problem: MatmulProblem, gpu: Gpu, *, workers: Workers, quick: bool = False):
        if not {problem.dtype_a, problem.dtype_b, problem.dtype_out} <= set(DTYPES) or problem.batches != 1:
            raise UnsupportedError(f"tuning on a GPU takes one product of {', '.join(DTYPES)}, got {problem.key}")
        if torch.cuda.is_current_stream_capturing():
            raise LaneloomError("tuning inside a CUDA-graph capture is refused: tune before it")
        environment = read_environment()
        self.where: dict[str, str | int | bool] = {
            "gpu": environment.gpu, "driver": environment.driver, "torch": environment.torch,
            "triton": triton_version(), "laneloom": __version__,
        }  # fmt: skip
        self.problem, self.gpu = problem, gpu
        self._workers, self._rounds, self._graph_us = workers, 7 if quick else 15, 300.0 if quick else 1000.0
        sets = count_sets(problem.bytes)
        self._operands = [operands(problem, seed) for seed in range(sets)]
        self._outs = [torch.empty(problem.m, problem.n, dtype=DTYPES[problem.dtype_out], device="cuda")
                      for _ in range(sets)]  # fmt: skip
        self._model = plan_with_reasons(problem, gpu, use_tables=False).config
        self._model_us: float | None = None

    def evaluate(self, configs: Sequence[MatmulConfig], best_us: float | None) -> Iterator[Outcome]:
        found = self._verify_all(configs)
        if self._model_us is None:
            both = {"model": self._launch(self._model), "again": self._launch(self._model)}
            times = interleave(both, len(self._outs), rounds=self._rounds, graph_us=self._graph_us)
            self._model_us = statistics.mean(t.median_us for t in times.values())
        looks = self._look([config for config, why in zip(configs, found, strict=True) if not why])
        seen = [us for us in (*looks.values(), best_us) if isinstance(us, float)]
        best_us = min(seen, default=None)
        for config, why in zip(configs, found, strict=True):
            outcome = Outcome(config, None, why) if why else self._time(config, looks[config.text], best_us)
            if outcome.finished and outcome.time_us is not None:
                best_us = min(outcome.time_us, best_us or outcome.time_us)
            yield outcome

    def confirm(self, configs: Sequence[MatmulConfig], model: MatmulConfig) -> Confirmed:
        """All of them, the model's choice and torch in one run, with more rounds."""
        candidates: dict[str, Launch] = {"model": self._launch(model)}
        candidates |= {config.text: self._launch(config) for config in configs}
        p = self.problem
        if p.dtype_a == p.dtype_b == p.dtype_out and p.dtype_a in PATCHED_DTYPES and p.precision == "ieee":
            candidates["torch"] = lambda i: torch.matmul(*self._operands[i], out=self._outs[i])
        times = interleave(candidates, len(self._outs), rounds=CONFIRM_ROUNDS)
        best = max(configs, key=lambda config: times[config.text].ratio_to_reference)
        model_us = times["model"].median_us
        # Noise is not a gain: the model's choice stays unless another beats it.
        if best != model and times[best.text].ratio_to_reference <= 1:
            best = model
        time_us = model_us if best == model else model_us / times[best.text].ratio_to_reference
        torch_us = model_us / times["torch"].ratio_to_reference if "torch" in times else None
        return Confirmed(best, time_us, model_us, torch_us)

    def close(self) -> None:
        """Let go of the operands."""
        self._operands, self._outs = [], []

    def _launch(self, config: MatmulConfig) -> Launch:
        return lambda i: multiply(self.problem, *self._operands[i], self._outs[i], config)

    def _look(self, configs: Sequence[MatmulConfig]) -> dict[str, float | str]:
        """By text: microseconds of a few rounds in which all take turns with the model's choice, or why not."""
        assert self._model_us is not None
        found: dict[str, float | str] = {}
        if configs:
            all_of_them = {"model": self._launch(self._model)} | {c.text: self._launch(c) for c in configs}
            times = interleave(
                all_of_them, len(self._outs), rounds=LOOK_ROUNDS, graph_us=self._graph_us / 2,
                on_failure=lambda name, error: found.update({name: str(error)}),
            )  # fmt: skip
            found |= {c.text: self._model_us / times[c.text].ratio_to_reference for c in configs if c.text in times}
        return found

    def _time(self, config: MatmulConfig, look: float | str, best_us: float | None) -> Outcome:
        assert self._model_us is not None
        if isinstance(look, str):
            return Outcome(config, None, look)
        if best_us is not None and look > FAR * best_us and config != self._model:  # what it gains on is timed whole
            return Outcome(config, look, f"{look / best_us:.1f} x the best after {LOOK_ROUNDS} rounds")
        both = {"model": self._launch(self._model), "candidate": self._launch(config)}
        timing = interleave(both, len(self._outs), rounds=self._rounds, graph_us=self._graph_us)["candidate"]
        return Outcome(config, self._model_us / timing.ratio_to_reference)

    def _verify_all(self, configs: Sequence[MatmulConfig]) -> list[str | None]:
        """Why each config is not timed, or None. What one takes down is tried again without it."""
        found: dict[int, str | None] = {}
        alone = False
        while len(found) < len(configs):
            left = [i for i in range(len(configs)) if i not in found][: 1 if alone else None]
            waiting: list[tuple[int, AsyncResult[str | None]]] = [
                (i, self._workers.pool.apply_async(why_wrong, (self.problem, configs[i].text))) for i in left
            ]
            lost = []
            for i, result in waiting:
                try:
                    why = result.get(timeout=HANGS_S if not lost else 0)
                except NoAnswer:
                    why = f"{_POISONED}: no answer after {HANGS_S} s"
                if why and why.startswith(_POISONED):
                    lost.append((i, why))
                else:
                    found[i] = why
            if lost:
                self._workers.close()
                if alone:
                    found[lost[0][0]] = lost[0][1]
                alone = True
        return [found[i] for i in range(len(configs))]


@lru_cache(maxsize=1)
def _inputs(problem: MatmulProblem) -> tuple[torch.Tensor, torch.Tensor]:
    return operands(problem, 0)


def why_wrong(problem: MatmulProblem, text: str) -> str | None:
    """What is wrong with a config's result on the GPU, into a poisoned and guarded C; None where nothing is."""
    try:
        a, b = _inputs(problem)
        dtype = DTYPES[problem.dtype_out]
        poison = -77 if dtype == torch.int32 else float("nan")
        whole = torch.full((problem.m * problem.n + 2 * GUARD,), poison, dtype=dtype, device="cuda")
        bits = whole.view(torch.uint8)
        guard = GUARD * dtype.itemsize
        before = bits[:guard].clone()
        out = whole[GUARD:-GUARD].view(problem.m, problem.n)
        multiply(problem, a, b, out, MatmulConfig.parse(text))
        torch.cuda.synchronize()
        if not (torch.equal(bits[:guard], before) and torch.equal(bits[-guard:], before)):
            return "wrong: it writes outside C"
        return judge(problem, a, b, out)[1]
    except LaneloomError as error:
        return str(error)
    except Exception as error:
        words = str(error).strip().partition("\n")[0][:200]
        is_lost = "CUDA" in words or "HIP" in words or "launch" in words
        return f"{_POISONED if is_lost else type(error).__name__}: {words}"
