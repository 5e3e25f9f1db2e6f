"""What every tier of the tests shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache of CodeObjects for the whole run, so that no test reads or writes the user's."""
    former = os.environ.get("LANELOOM_CACHE_DIR")
    path = tmp_path_factory.mktemp("laneloom-cache")
    os.environ["LANELOOM_CACHE_DIR"] = str(path)
    yield path
    if former is None:
        del os.environ["LANELOOM_CACHE_DIR"]
    else:
        os.environ["LANELOOM_CACHE_DIR"] = former
