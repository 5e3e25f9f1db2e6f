"""How far a launch is, where it takes long: on a terminal one line that changes, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time

from ..isa.words import counted

ON_TERMINAL_S = (3.0, 0.5)  #: until the first sign, and between two
ELSEWHERE_S = (60.0, 60.0)


class Heartbeat:
    """The signs of life of one launch, on standard error."""

    def __init__(self, name: str, workgroups: int) -> None:
        self._name, self._workgroups = name, workgroups
        self._begun, self._shown = time.perf_counter(), False
        self._on_terminal = sys.stderr is not None and sys.stderr.isatty()
        first, self._every = ON_TERMINAL_S if self._on_terminal else ELSEWHERE_S
        self._next = self._begun + first

    @property
    def is_due(self) -> bool:
        """Whether it is time for another sign."""
        return time.perf_counter() >= self._next

    def beat(self, started: int, instructions: int) -> None:
        """Say how many workgroups were started and how many wave-instructions executed."""
        now = time.perf_counter()
        self._next, self._shown = now + self._every, True
        text = (
            f"{self._name}: {started:,} of {counted(self._workgroups, 'workgroup')} started, "
            f"{counted(instructions, 'wave-instruction')}, {now - self._begun:.0f} s"
        )
        sys.stderr.write(f"\r{text}\x1b[K" if self._on_terminal else f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the line off the terminal."""
        if self._shown and self._on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
