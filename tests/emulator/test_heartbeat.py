"""What a long launch says of itself while it runs."""

import io
import sys

import numpy as np
import pytest

import laneloom
from laneloom.emulator import heartbeat


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def product():
    a = np.ones((64, 64), np.float16)
    with laneloom.emulated("gfx1151") as gpu:
        yield lambda: (laneloom.matmul(a, a), gpu.launches[-1])[1]


def test_a_terminal_shows_one_line_that_goes_away(product, monkeypatch):
    monkeypatch.setattr(heartbeat, "ON_TERMINAL_S", (0.0, 0.0))
    monkeypatch.setattr(sys, "stderr", Terminal())
    record = product()
    *lines, last = sys.stderr.getvalue().split("\r")[1:]
    assert last == "\x1b[K"
    assert lines[-1].startswith("wmma_matmul on gfx1151: ")
    assert f"{record.instructions:,} wave-instructions" in lines[-1]
    done = lines[-1].split()[3]
    assert f" {done} of {done} workgroups started, " in lines[-1]


def test_a_pipe_has_whole_lines(product, monkeypatch, capsys):
    monkeypatch.setattr(heartbeat, "ELSEWHERE_S", (0.0, 1e9))
    product()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("wmma_matmul on gfx1151: ")
    assert "\r" not in line


def test_a_short_launch_says_nothing(product, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    product()
    assert sys.stderr.getvalue() == ""
