"""A study: configs that Optuna proposes, tried one after another, in a journal that survives being killed.

The journal is JSON, one line for each step. It is locked while a study runs, by a lock that the system lets go of when
the process ends in whatever way; a line that was cut short is dropped, and what was running then is tried again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from ..errors import LaneloomError
from ..gpu import Gpu
from ..ops.matmul import tuned
from ..ops.matmul.config import MatmulConfig
from ..ops.matmul.problem import MatmulProblem
from .outcome import Evaluator, Outcome, kernel_hash
from .space import Space, params_of, propose, search_space, starting_points

MOST_MISSES = 400  #: proposals in a row that are invalid or known before a space counts as searched
CONFIRMED = 4  #: of the best, for the last look
_log = logging.getLogger("laneloom")


@dataclass(frozen=True)
class Step:
    """What a study tells while it runs."""

    tried: int
    trials: int
    invalid: int  #: proposals that `why_invalid` refused: they cost nothing and count as no trial
    outcome: Outcome
    best_us: float | None


@dataclass(frozen=True)
class Result:
    """What a study found."""

    config: MatmulConfig
    time_us: float
    model: MatmulConfig  #: the cost model's choice
    model_us: float
    torch_us: float | None  #: torch.matmul's, beside them, where it can do the product
    tried: int
    wrong: tuple[str, ...]  #: configs whose result was wrong, with how: each is a defect to report
    journal: Path


class _HeldLock(JournalFileOpenLock):
    """The whole journal is locked already, and a lock of Optuna's would outlive a process that is killed."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file's lock. Raises LaneloomError where another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LaneloomError(f"another process is tuning this product: wait for it, or end it ({path})") from None
        yield


def mend_journal(path: Path) -> None:
    """Drop what follows the last whole line of JSON, with one line of the log if that was more than a torn line."""
    if not path.exists():
        return
    content = path.read_bytes()
    good = 0
    for line in content.splitlines(keepends=True):
        try:
            whole = line.endswith(b"\n") and isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            break
        good += len(line)
    if good < len(content):
        if content.find(b"\n", good) >= 0:
            _log.warning("the journal %s is damaged from byte %d on: what came before is kept", path, good)
        with path.open("r+b") as file:
            file.truncate(good)
            os.fsync(file.fileno())


def _load(path: Path, name: str) -> optuna.Study:
    mend_journal(path)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=_HeldLock(str(path))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=0, multivariate=True, group=True, constant_liar=True)
    study = optuna.create_study(storage=storage, sampler=sampler, study_name=name, load_if_exists=True)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):  # what a process died with
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def open_study(path: Path, name: str) -> optuna.Study:
    """The study of a journal, which is made anew, with one line of the log, where it cannot be read."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = _load(path, name)
        _known(study)
        return study
    except Exception as error:
        aside = path.with_suffix(".damaged")
        _log.warning("the journal %s cannot be read (%s): it is kept as %s, a new one begins", path, error, aside.name)
        os.replace(path, aside)
        return _load(path, name)


def _known(study: optuna.Study) -> dict[str, tuple[float | None, str | None]]:
    """Config's text -> its time and why it was given up, of everything that was tried."""
    known = {}
    for trial in study.get_trials(deepcopy=False):
        text = trial.user_attrs.get("config")
        if isinstance(text, str) and trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            why = trial.user_attrs.get("why")
            known[text] = (None if trial.value is None else float(trial.value), None if why is None else str(why))
    return known


def journal_path(problem: MatmulProblem, gpu: Gpu, space: Space, evaluator: Evaluator) -> Path:
    """Where a study's journal lies: one for each product, space, objective, machine and state of the kernels."""
    parts = [problem.key, repr(space), evaluator.objective, repr(sorted(evaluator.where.items())), kernel_hash()]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return tuned.cache_folder(gpu.name).parent / "studies" / f"{name}.journal"


def _ask(
    study: optuna.Study, space: Space, problem: MatmulProblem, gpu: Gpu, known: dict[str, Any],
    starts: Sequence[MatmulConfig], wanted: int,
) -> tuple[list[tuple[optuna.Trial, MatmulConfig]], int]:  # fmt: skip
    """Up to `wanted` new and valid proposals, the starting points before others, and how many were invalid."""
    asked: list[tuple[optuna.Trial, MatmulConfig]] = []
    invalid = misses = 0
    while len(asked) < wanted and misses < MOST_MISSES:
        asked_for = {config.text for _, config in asked}
        if first := next((c for c in starts if c.text not in known and c.text not in asked_for), None):
            study.enqueue_trial(params_of(first, space))
        trial = study.ask()
        config = propose(trial, space, problem, gpu, starts)
        if config.why_invalid(problem, gpu) is not None:
            trial.set_constraint("why_invalid", 1.0)
            study.tell(trial, state=TrialState.PRUNED)
            invalid, misses = invalid + 1, misses + 1
        elif config.text in known or config.text in asked_for:
            time_us, why = known.get(config.text, (None, "asked for"))
            if time_us is not None and why is None:
                study.tell(trial, time_us)
            else:
                study.tell(trial, state=TrialState.PRUNED)
            misses += 1
        else:
            trial.set_user_attr("config", config.text)
            asked.append((trial, config))
            misses = 0
    return asked, invalid


def run_study(
    problem: MatmulProblem, gpu: Gpu, evaluator: Evaluator, *, trials: int, quick: bool = False, together: int = 1,
    on_step: Callable[[Step], None] | None = None,
) -> Result:  # fmt: skip
    """Try configs until `trials` of them were tried, those of an earlier, ended run of the same study included.

    together: proposals that are made before the first of them is tried, so that they can be compiled side by side.
    Raises LaneloomError where another process has the study, or where the cost model's own choice cannot be timed.
    """
    starts = starting_points(problem, gpu, quick=quick)
    space = search_space(problem, gpu, starts, quick=quick)
    path = journal_path(problem, gpu, space, evaluator)
    with _locked(path.with_suffix(".lock")):
        study = open_study(path, problem.key)
        known, invalid = _known(study), 0
        while len(known) < trials or starts[0].text not in known:  # that one may have died with a process
            wanted = max(1, min(together, trials - len(known)))
            batch, refused = _ask(study, space, problem, gpu, known, starts, wanted)
            invalid += refused
            if not batch:
                break
            outcomes = evaluator.evaluate([config for _, config in batch], _best(known))
            for (trial, _), outcome in zip(batch, outcomes, strict=True):
                if outcome.finished:
                    study.tell(trial, outcome.time_us)
                else:
                    trial.set_user_attr("why", outcome.why)
                    if outcome.time_us is not None:
                        trial.report(outcome.time_us, 0)  # a pruned trial's rank for the sampler
                    study.tell(trial, state=TrialState.PRUNED)
                known[outcome.config.text] = (outcome.time_us if outcome.finished else None, outcome.why)
                if on_step:
                    on_step(Step(len(known), trials, invalid, outcome, _best(known)))
        ranked = sorted((t, text) for text, (t, why) in known.items() if t is not None and why is None)
        if all(text != starts[0].text for _, text in ranked):
            why = known.get(starts[0].text, (None, "it was not tried"))[1]
            raise LaneloomError(f"the cost model's own choice {starts[0].text} was not timed: {why}")
        best = [MatmulConfig.parse(text) for _, text in ranked[:CONFIRMED]]
        last = evaluator.confirm(best, starts[0])
    wrong = tuple(f"{text}: {why}" for text, (_, why) in known.items() if why and why.startswith("wrong"))
    return Result(last.config, last.time_us, starts[0], last.model_us, last.torch_us, len(known), wrong, path)


def _best(known: dict[str, tuple[float | None, str | None]]) -> float | None:
    return min((t for t, why in known.values() if t is not None and why is None), default=None)
