"""Which cases of a long list run: a sample, or everything with LANELOOM_TESTS=all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar
from zlib import crc32

EVERYTHING = os.environ.get("LANELOOM_TESTS") == "all"
KERNELS = os.environ.get("LANELOOM_TESTS") == "kernels"  #: every test runs on each kernel once
#: axes whose values are kernels, or what a compiler says in its own words
NAMING = ("role", "name", "step", "level", "schedule", "instruction", "message")
DTYPES = ("dtype", "dtypes", "kind")

Case = TypeVar("Case")


def sampled(cases: Iterable[Case], first: int = 0, every: int = 2) -> list[Case]:
    """Every second case, or every n-th, from number `first`; all of them with LANELOOM_TESTS=all."""
    return list(cases) if EVERYTHING else list(cases)[first::every]


def rarely(*cases: Case) -> tuple[Case, ...]:
    """Cases whose branches others of the list take as well, for example of a GPU with a listed one's instructions."""
    return cases if EVERYTHING else ()


def without(cases: Iterable[Case], *left_out: Case) -> list[Case]:
    """The cases but those all of whose branches others of the list take together; these too with LANELOOM_TESTS=all."""
    given = list(cases)
    assert set(left_out) <= set(given)
    return [case for case in given if EVERYTHING or case not in left_out]


def in_turn(n: int, *cases: Case) -> tuple[Case, ...]:
    """What the n-th of some kernels runs of cases that all have: one of them, in turn."""
    return cases if EVERYTHING else (cases[n % len(cases)],)


def covering(cases: Sequence[Mapping[str, object]], together: int = 1) -> list[int]:
    """Numbers of cases (value by axis) that have every value of every axis, or every pair of values with together=2.

    Greedy: next is the case that brings most of what is missing, then the one whose values were seen least, so that
    the values of a short axis take turns beside those of a long one.
    """
    parts = [
        [tuple((axis, repr(case[axis])) for axis in axes) for axes in combinations(case, min(together, len(case)))]
        for case in cases
    ]
    seen: Counter[tuple[tuple[str, str], ...]] = Counter()
    missing = {part for case in parts for part in case}
    chosen = []
    left = list(range(len(cases)))
    while missing:
        brings = {n: len(missing.intersection(parts[n])) for n in left}
        left = [n for n in left if brings[n]]
        most = max(brings.values())
        n = min((n for n in left if brings[n] == most), key=lambda n: sum(seen[part] for part in parts[n]))
        chosen.append(n)
        seen.update(parts[n])
        missing.difference_update(parts[n])
    return sorted(chosen)


def turning(test: str, cases: Sequence[Mapping[str, object]], axis: str, count: int = 1) -> list[int]:
    """Numbers of cases with `count` of the values that an axis has; which ones is the test's name's to say, so that a
    file's tests take turns."""
    if axis not in cases[0]:
        return list(range(len(cases)))
    values = list(dict.fromkeys(repr(case[axis]) for case in cases))
    first = crc32(test.encode())
    kept = {values[(first + n * len(values) // count) % len(values)] for n in range(min(count, len(values)))}
    return [n for n, case in enumerate(cases) if repr(case[axis]) in kept]


def of_kernels(test: str, cases: Sequence[Mapping[str, object]], axes: Sequence[str] = NAMING) -> list[int]:
    """Numbers of cases with every value once of the axes that name a kernel, one case where none does; tests begin at
    different cases, so that a file's tests have different GPUs, tiles and sizes."""
    first = crc32(test.encode()) % len(cases)
    order = [*range(first, len(cases)), *range(first)]
    named = [{axis: value for axis, value in cases[n].items() if axis in axes} for n in order]
    return sorted(order[n] for n in covering(named))
