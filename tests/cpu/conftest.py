"""An empty cache of tuned configs."""

from __future__ import annotations

import pytest

from laneloom.ops.matmul import tuned


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty user's cache, and no tables of the package."""
    monkeypatch.setenv("LANELOOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned, "table_path", lambda name: tmp_path / "package" / f"{name}.json")
    tuned.forget()
    yield tmp_path
    tuned.forget()
