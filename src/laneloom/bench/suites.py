"""The suites: which sizes are measured. Data files in `suites/`, one per operation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources

from ..errors import ArgumentError

SUITES = ("gemm", "attention", "transform3d")


def quick_cases(cases: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Three cases of a group: its first, its middle and its last one."""
    return [cases[i] for i in sorted({0, len(cases) // 2, len(cases) - 1})]


def load_suite(name: str) -> dict[str, list[tuple[int, ...]]]:
    """Group -> cases of a suite. The file's `about` says what the numbers of a case are.

    Raises ArgumentError for a name that is not in SUITES.
    """
    if name not in SUITES:
        raise ArgumentError(f"unknown suite {name!r}; there are {', '.join(SUITES)}")
    text = resources.files("laneloom.bench").joinpath("suites", f"{name}.json").read_text(encoding="utf-8")
    groups = json.loads(text)
    del groups["about"]
    return {group: [tuple(case) for case in cases] for group, cases in groups.items()}
