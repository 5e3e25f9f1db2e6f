"""An empty cache of tuned configs; a folder for kernels of a CPU model."""

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where kernels lie that several tests share."""
    return tmp_path_factory.mktemp("kernels")
