"""Which cases of a long list run: a sample, or everything with LANELOOM_TESTS=all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

EVERYTHING = os.environ.get("LANELOOM_TESTS") == "all"

Case = TypeVar("Case")


def sampled(cases: Iterable[Case], first: int = 0) -> list[Case]:
    """Every second case from number `first`; all of them with LANELOOM_TESTS=all."""
    return list(cases) if EVERYTHING else list(cases)[first::2]


def rarely(*cases: Case) -> tuple[Case, ...]:
    """Cases whose branches others of the list take as well, for example of a GPU with a listed one's instructions."""
    return cases if EVERYTHING else ()


def in_turn(n: int, *cases: Case) -> tuple[Case, ...]:
    """What the n-th of some kernels runs of cases that all have: one of them, in turn."""
    return cases if EVERYTHING else (cases[n % len(cases)],)
