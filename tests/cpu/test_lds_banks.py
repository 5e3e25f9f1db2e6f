"""The bank model of LDS against counts made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from laneloom.isa.lds_banks import access_cycles, lanes_at_once

LANE = np.arange(32)


@pytest.mark.parametrize(("nbytes", "lanes"), [(1, 32), (2, 32), (4, 32), (8, 16), (12, 8), (16, 8)])
def test_lanes_of_a_phase(nbytes, lanes):
    assert lanes_at_once(nbytes) == lanes


@pytest.mark.parametrize(
    ("address", "nbytes", "expected"),
    [
        (4 * LANE, 4, (1, 0)),  # every bank once
        (0 * LANE, 4, (1, 0)),  # one word for all
        (2 * LANE, 2, (1, 0)),  # two lanes share each word
        (8 * LANE, 4, (1, 1)),  # even banks only: two lanes each
        (128 * LANE, 4, (1, 31)),  # one bank for all
        (132 * LANE, 4, (1, 0)),  # a pad of one word per row of 32
        (4 * LANE + 128 * (LANE == 5), 4, (1, 0)),  # another row, the same bank of its own
        (4 * LANE + 4 * (LANE == 5), 4, (1, 0)),  # lane 5 wants lane 6's word
        (4 * LANE + 132 * (LANE == 5), 4, (1, 1)),  # lane 5 wants lane 6's bank, another word
        (8 * LANE, 8, (2, 0)),
        (16 * LANE, 8, (2, 2)),  # in each half of the wave, 16 lanes on 16 banks: two words each
        (16 * LANE, 16, (4, 0)),
        (64 * LANE, 16, (4, 12)),  # 8 lanes at rows of 64 bytes meet on 8 banks: four words each, four times
        (80 * LANE, 16, (4, 0)),  # rows padded to 80 bytes
        (16 * (LANE % 8), 16, (4, 0)),
        (4 * LANE + 2, 4, (1, 1)),  # unaligned: 33 words
    ],
)
def test_one_wave(address, nbytes, expected):
    phases, extra = access_cycles(address[None], nbytes)
    assert (int(phases[0]), int(extra[0])) == expected


def test_inactive_lanes_want_nothing():
    address = (128 * LANE)[None]
    assert access_cycles(address, 4, (LANE < 5)[None])[1] == [4]
    assert access_cycles(16 * LANE[None], 16, (LANE < 8)[None])[0] == [1]
    phases, extra = access_cycles(address, 4, np.zeros((1, 32), bool))
    assert (phases[0], extra[0]) == (0, 0)


def test_atomics_on_one_word_take_turns():
    assert access_cycles(0 * LANE[None], 4, atomic=True)[1] == [31]
    assert access_cycles(4 * LANE[None], 4, atomic=True)[1] == [0]


def test_waves_of_64_lanes_and_several_waves():
    wide = np.arange(64)
    phases, extra = access_cycles(np.stack([4 * wide, 128 * wide]), 4)
    assert phases.tolist() == [2, 2]
    assert extra.tolist() == [0, 62]


def test_against_counting_word_by_word():
    rng = np.random.default_rng(0)
    for nbytes in (1, 2, 4, 8, 16):
        address = rng.integers(0, 4096 // nbytes, (20, 32)) * nbytes
        active = rng.random((20, 32)) < 0.8
        _, extra = access_cycles(address, nbytes, active)
        for wave in range(20):
            expected = 0
            for first in range(0, 32, lanes_at_once(nbytes)):
                words = {
                    (int(address[wave, lane]) + byte) // 4
                    for lane in range(first, first + lanes_at_once(nbytes))
                    if active[wave, lane]
                    for byte in range(nbytes)
                }
                banks = [w % 32 for w in words]
                expected += max([banks.count(b) for b in banks], default=1) - 1
            assert extra[wave] == expected
