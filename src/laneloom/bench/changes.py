"""What changed between two files of records: statistics first, then each problem that moved beyond its noise."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .records import Record

LEAST_CHANGE = 0.01  #: of a time; less is no change even where the intervals are narrower
RESAMPLES = 2000


@dataclass(frozen=True)
class Change:
    """One problem in both files. Speedups above 1 are faster now."""

    op: str
    problem: dict[str, Any]
    candidate: str
    old_us: float
    new_us: float
    speedup: float
    interval: tuple[float, float]  #: of the speedup, from both interquartile ranges
    by: str  #: what the speedup is of: "time", or "ratio" to a reference that ran in the same rounds

    @property
    def verdict(self) -> str:
        """ "faster" or "slower" where the interval and LEAST_CHANGE leave no doubt, else "same"."""
        low, high = self.interval
        if low > 1 + LEAST_CHANGE:
            return "faster"
        return "slower" if high < 1 - LEAST_CHANGE else "same"


@dataclass(frozen=True)
class Comparison:
    """Two files."""

    changes: tuple[Change, ...]
    only_old: int  #: records of problems that the other file lacks
    only_new: int
    mean: float  #: geometric mean of the speedups
    interval: tuple[float, float]  #: of 95 in 100 resamplings of the problems

    def count(self, verdict: str) -> int:
        """Problems with this verdict."""
        return sum(change.verdict == verdict for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        rows = [asdict(change) | {"verdict": change.verdict} for change in self.changes]
        return {
            "mean_speedup": self.mean, "interval": list(self.interval), "only_old": self.only_old,
            "only_new": self.only_new, "changes": rows,
        } | {verdict: self.count(verdict) for verdict in ("faster", "slower", "same")}  # fmt: skip


def _newest(records: Iterable[Record]) -> dict[tuple[str, str, str, str], Record]:
    return {
        (r.op, json.dumps(dict(r.problem), sort_keys=True), r.candidate, r.method): r
        for r in sorted(records, key=lambda r: r.time)
    }


def _spread(record: Record) -> float:
    """Half of the interquartile range, as a part of the median."""
    return record.iqr_us / 2 / record.median_us


def change_of(old: Record, new: Record) -> Change:
    """What became of one problem. Where both ran beside the same reference, its clocks are taken out."""
    beside = old.reference == new.reference != old.candidate
    speedup = (
        new.ratio_to_reference / old.ratio_to_reference if beside else old.median_us / new.median_us
    )
    spread = _spread(old) + _spread(new)
    return Change(
        old.op, dict(old.problem), old.candidate, old.median_us, new.median_us, speedup,
        (speedup / (1 + spread), speedup * (1 + spread)), "ratio" if beside else "time",
    )  # fmt: skip


def compare_records(old: Iterable[Record], new: Iterable[Record], candidate: str | None = "laneloom") -> Comparison:
    """Compare the newest record of each problem that both have; of one candidate, or with None of all."""
    before, after = (
        {key: r for key, r in _newest(records).items() if candidate is None or r.candidate == candidate}
        for records in (old, new)
    )
    changes = [change_of(before[key], after[key]) for key in before if key in after]
    changes.sort(key=lambda change: change.speedup)
    speedups = [change.speedup for change in changes]
    return Comparison(
        tuple(changes), len(before) - len(changes), len(after) - len(changes), geometric_mean(speedups),
        _resampled(speedups),
    )


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm; nan of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _resampled(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    chooser = random.Random(0)
    means = sorted(geometric_mean(chooser.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[RESAMPLES // 40], means[-RESAMPLES // 40 - 1]
