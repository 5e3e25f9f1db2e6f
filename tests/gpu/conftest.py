"""Tests that run on a real GPU; skipped, with the reason, where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


def _missing_gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "there is no GPU"
    if torch.version.hip is None and torch.cuda.get_device_capability() != (9, 0):
        return f"the schedules are for Hopper, this is {torch.cuda.get_device_name()}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    reason = _missing_gpu()
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def hopper() -> None:
    """What NVIDIA's schedules alone can run; random numbers of torch as from 0."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    torch.manual_seed(0)


@pytest.fixture
def poisoned_allocations() -> Iterator[None]:
    """As elsewhere; what torch has on a GPU in no deterministic form, beside ours, is warned of and runs."""
    torch = pytest.importorskip("torch")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(before)
