"""Permutes through the LDS unit: ds_permute, ds_bpermute, ds_swizzle, against lane-by-lane loops."""

from __future__ import annotations

import numpy as np
import pytest

LANES = np.arange(32)
DATA = np.arange(100, 132, dtype=np.uint32)
RANDOM = np.random.default_rng(0).permutation(32).astype(np.uint32)
FEW = LANES % 3 != 1


@pytest.mark.parametrize("active", [None, FEW])
def test_bpermute_reads_the_lane_at_a_quarter_of_the_address(execute, active):
    """An inactive source lane gives 0; addresses wrap round the wave; the offset is added to them."""
    address = RANDOM * 4 + 128 * (LANES % 2).astype(np.uint32)
    got = execute("ds_bpermute_b32 v2, v0, v1 offset:8", v={0: address, 1: DATA}, active=active)
    on = np.ones(32, bool) if active is None else active
    for lane in range(32):
        source = (int(RANDOM[lane]) + 2) % 32
        want = DATA[source] if on[source] else 0
        assert got.vector(2, np.uint32)[lane] == (want if on[lane] else 0xA5A5A5A5)


def test_bpermute_that_fetches_inactive_lanes(execute):
    got = execute("ds_bpermute_fi_b32 v2, v0, v1", gpu="gfx1201", v={0: RANDOM * 4, 1: DATA}, active=FEW)
    np.testing.assert_array_equal(got.vector(2, np.uint32)[FEW], DATA[RANDOM][FEW])


@pytest.mark.parametrize("active", [None, FEW])
def test_permute_sends_to_the_lane_at_a_quarter_of_the_address(execute, active):
    """Where two lanes send to one the higher arrives; a lane that nobody sends to gets 0."""
    address = (RANDOM // 2 * 4).astype(np.uint32)
    got = execute("ds_permute_b32 v2, v0, v1", v={0: address, 1: DATA}, active=active).vector(2, np.uint32)
    on = np.ones(32, bool) if active is None else active
    want = np.zeros(32, np.uint32)
    for lane in range(32):
        if on[lane]:
            want[int(RANDOM[lane]) // 2] = DATA[lane]
    np.testing.assert_array_equal(got[on], want[on])
    assert (got[~on] == 0xA5A5A5A5).all()


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("offset:0x041f", LANES ^ 1),  # xor mask 1 in bits 14:10, and mask 31 in bits 4:0
        ("offset:0x001c", LANES & 28),
        ("offset:swizzle(SWAP,16)", LANES ^ 16),
        ("offset:swizzle(REVERSE,8)", LANES ^ 7),
        ("offset:swizzle(BROADCAST,4,2)", LANES & 28 | 2),
        ("offset:swizzle(QUAD_PERM,1,0,3,2)", LANES ^ 1),
        ('offset:swizzle(BITMASK_PERM,"00pip")', (LANES & 7) ^ 2),
        ("offset:swizzle(ROTATE,0,5)", (LANES + 5) % 32),
        ("offset:swizzle(ROTATE,1,5)", (LANES - 5) % 32),
        ("offset:swizzle(FFT,0)", [int(f"{lane:05b}"[::-1], 2) for lane in range(32)]),
        ("offset:0xf001", [int(f"{lane:05b}"[::-1], 2) >> 1 | lane & 1 for lane in range(32)]),
        ("offset:0xe01f", LANES),
    ],
)
def test_swizzle(execute, text, source):
    got = execute(f"ds_swizzle_b32 v2, v1 {text}", v={1: DATA}).vector(2, np.uint32)
    np.testing.assert_array_equal(got, DATA[source])
    got = execute(f"ds_swizzle_b32 v2, v1 {text}", v={1: DATA}, active=FEW).vector(2, np.uint32)
    np.testing.assert_array_equal(got[FEW], np.where(FEW[source], DATA[source], 0)[FEW])


@pytest.mark.parametrize(("gpu", "span"), [("gfx1100", 32), ("gfx1170", 32), ("gfx1201", 64), ("gfx942", 64)])
@pytest.mark.parametrize("name", ["ds_bpermute_b32", "ds_permute_b32"])
def test_exchange_of_64_lanes(execute, gpu, span, name):
    """Of gfx11 each half of the wave exchanges its own; others reach all lanes."""
    rng = np.random.default_rng(5)
    lane, other = np.arange(64), rng.permutation(64)
    data = rng.integers(0, 1 << 32, 64).astype(np.uint32)
    code = f"{name} v2, v0, v1 offset:4"
    got = execute(code, gpu=gpu, lanes=64, v={0: (4 * other).astype(np.uint32), 1: data}).vector(2, np.uint32)
    place = (other + 1) % span + lane // span * span
    want = data[place] if name == "ds_bpermute_b32" else np.zeros(64, np.uint32)
    if name == "ds_permute_b32":
        want[place] = data  # the last of two that meet stays
    np.testing.assert_array_equal(got, want)
