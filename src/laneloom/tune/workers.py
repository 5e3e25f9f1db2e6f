"""What a worker process does at its ends."""

from __future__ import annotations

import atexit
import os
import sys


def start_worker() -> None:
    """Let nothing be written to stderr while the interpreter ends: Triton's bindings list there what they leaked."""
    atexit.register(_silence)  # registered first, so it runs last


def _silence() -> None:
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
