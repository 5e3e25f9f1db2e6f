"""Sums of matrix instructions as the hardware makes them, or rounded once, as the caller asks."""

from __future__ import annotations

import numpy as np
import pytest

import laneloom
from laneloom.errors import ArgumentError


def summed(gpu, a, b, **how):
    with laneloom.emulated(gpu, **how):
        return laneloom.matmul(a, b, out_dtype="float32")


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx942"])
def test_exact_sums_are_rounded_once_and_those_of_the_hardware_are_not(gpu):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((16, 8)).astype(np.float16), rng.standard_normal((8, 16)).astype(np.float16)
    b[0] *= 100  # large products, under which the others' last bits fall off, and which then cancel
    a[:, 1], b[1] = -a[:, 0], b[0]
    once = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    exact, measured = summed(gpu, a, b, sums="exact"), summed(gpu, a, b)
    assert np.array_equal(measured, summed(gpu, a, b, sums="hardware"))
    # The kernel for CDNA gives the eight of K to several instructions, each of which rounds.
    errors = [np.abs(sums - once).max() for sums in (exact, measured)]
    assert errors[0] <= (2.0**-23 * np.abs(once).max() if gpu == "gfx942" else 0)
    assert 10 * errors[0] < errors[1]
    size = np.abs(a.astype(float)) @ np.abs(b.astype(float))
    assert (np.abs(measured - once) <= 2.0**-18 * size).all()


def test_each_context_adds_as_it_was_asked():
    a = np.ones((16, 16), np.float16)
    with laneloom.emulated("gfx1151", sums="exact") as outer:
        with laneloom.emulated("gfx1151") as inner:
            assert (outer.sums, inner.sums) == ("exact", "hardware")
        laneloom.matmul(a, a)
    with pytest.raises(ArgumentError, match="sums: expected 'hardware' or 'exact', got 'fast'"):
        laneloom.emulated("gfx1151", sums="fast").__enter__()
