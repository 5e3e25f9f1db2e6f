"""Tests that run on a real GPU; skipped, with the reason, where there is none."""

from __future__ import annotations

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
