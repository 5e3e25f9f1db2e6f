"""Processes that compile and verify, of which a kernel may take one down."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from multiprocessing.pool import Pool


class Workers:
    """A pool that is started when it is first wanted, and again after it was closed: one for all products of a run."""

    def __init__(self, jobs: int):
        self._jobs = jobs
        self._pool: Pool | None = None

    @property
    def pool(self) -> Pool:
        """The processes."""
        if self._pool is None:
            self._pool = multiprocessing.get_context("spawn").Pool(self._jobs, start_worker)
        return self._pool

    def close(self) -> None:
        """End them, whatever they do."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()
            self._pool = None


def start_worker() -> None:
    """Let nothing be written to stderr while the interpreter ends: Triton's bindings list there what they leaked."""
    atexit.register(_silence)  # registered first, so it runs last


def _silence() -> None:
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
