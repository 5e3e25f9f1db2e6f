"""Data across lanes: readlane, writelane, permlane, DPP in all forms, swaps, lane counts."""

import numpy as np
import pytest

LANE = np.arange(32)
X = (LANE * 7 + 3).astype(np.uint32)
OLD = (LANE + 1000).astype(np.uint32)


def test_read_and_write_lanes(execute):
    x = np.arange(64, dtype=np.uint32) * 3
    machine = execute(
        "v_readlane_b32 s4, v2, 5\nv_readlane_b32 s5, v2, s6\nv_writelane_b32 v0, s6, 3\nv_writelane_b32 v1, -1, s7",
        v={2: x, 0: x, 1: x},
        s={6: np.array([33, 2]), 7: np.array([0, 31])},
    )
    np.testing.assert_array_equal(machine.scalar(4), [15, 37 * 3])
    np.testing.assert_array_equal(machine.scalar(5), [3, 34 * 3])  # 33 is lane 1: five bits count
    want = x.copy()
    want[3], want[35] = 33, 2
    np.testing.assert_array_equal(machine.vector(0, np.uint32), want)
    want = x.copy()
    want[0], want[63] = 0xFFFFFFFF, 0xFFFFFFFF
    np.testing.assert_array_equal(machine.vector(1, np.uint32), want)


def test_first_active_lane(execute):
    x = np.arange(96, dtype=np.uint32)
    active = np.concatenate([np.arange(32) >= 9, np.zeros(32, bool), np.ones(32, bool)])
    machine = execute("v_readfirstlane_b32 s4, v2\nv_writelane_b32 v0, 7, 2", v={2: x, 0: x}, active=active)
    np.testing.assert_array_equal(machine.scalar(4), [9, 32, 64])  # no active lane reads lane 0
    assert (machine.vector(0, np.uint32)[2::32] == 7).all()  # writelane ignores EXEC


@pytest.mark.parametrize("other", [False, True])
def test_permlane16(execute, other):
    choice = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 0]
    word = sum(c << 4 * k for k, c in enumerate(choice))
    index = (LANE & 16 ^ (16 if other else 0)) + np.array(choice)[LANE & 15]
    name = "v_permlanex16_b32" if other else "v_permlane16_b32"
    scalars = {4: word & 0xFFFFFFFF, 5: word >> 32}
    np.testing.assert_array_equal(execute(f"{name} v0, v2, s4, s5", v={2: X}, s=scalars).vector(0, np.uint32), X[index])
    # The destination may be the source.
    np.testing.assert_array_equal(execute(f"{name} v2, v2, s4, s5", v={2: X}, s=scalars).vector(2, np.uint32), X[index])
    variable = execute(f"{name.replace('_b32', '_var_b32')} v0, v2, v3", gpu="gfx1201",
                       v={2: X, 3: np.array(choice, np.uint32)[LANE & 15]}).vector(0, np.uint32)  # fmt: skip
    np.testing.assert_array_equal(variable, X[index])
    active = LANE % 3 != 0
    for modifier, inactive in (("", OLD), (" op_sel:[0,1]", np.uint32(0)), (" op_sel:[1,0]", X[index])):
        got = execute(f"{name} v0, v2, s4, s5{modifier}", v={2: X, 0: OLD}, s=scalars, active=active).vector(
            0, np.uint32
        )
        want = np.where(active, np.where(active[index], X[index], inactive), OLD)
        np.testing.assert_array_equal(got, want, err_msg=modifier)


def test_permlane64(execute):
    x = np.arange(64, dtype=np.uint32)
    got = execute("v_permlane64_b32 v0, v2", v={2: x}, lanes=64).vector(0, np.uint32)
    np.testing.assert_array_equal(got, x ^ 32)
    # "Supported in wave64 ONLY; treated as scalar NOP in wave32" (RDNA 3 ISA guide).
    got = execute("v_permlane64_b32 v0, v2", v={2: x[:32], 0: x[32:]}).vector(0, np.uint32)
    np.testing.assert_array_equal(got, x[32:])


CONTROLS = {
    "quad_perm:[1,0,3,2]": LANE ^ 1,
    "quad_perm:[3,3,0,1]": (LANE & ~3) + np.array([3, 3, 0, 1])[LANE & 3],
    "row_mirror": (LANE & ~15) + 15 - (LANE & 15),
    "row_half_mirror": (LANE & ~7) + 7 - (LANE & 7),
    "row_ror:3": (LANE & ~15) + (LANE - 3 & 15),
    "row_share:5": (LANE & ~15) + 5,
    "row_xmask:6": LANE ^ 6,
    "row_shl:2": np.where((LANE & 15) + 2 < 16, LANE + 2, -1),
    "row_shr:1": np.where((LANE & 15) >= 1, LANE - 1, -1),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_dpp_controls(execute, control):
    index = CONTROLS[control]
    for bound in (False, True):
        text = f"v_mov_b32_dpp v0, v2 {control} row_mask:0xf bank_mask:0xf" + (" bound_ctrl:1" if bound else "")
        want = np.where(index >= 0, X[np.maximum(index, 0)], 0 if bound else OLD)
        np.testing.assert_array_equal(execute(text, v={2: X, 0: OLD}).vector(0, np.uint32), want, err_msg=text)


def test_dpp_may_write_its_own_source(execute):
    got = execute("v_mov_b32_dpp v2, v2 quad_perm:[1,2,3,0] row_mask:0xf bank_mask:0xf", v={2: X}).vector(2, np.uint32)
    np.testing.assert_array_equal(got, X[(LANE & ~3) + (LANE + 1 & 3)])
    got = execute("v_add_nc_u32_dpp v2, v2, v2 row_shr:1 row_mask:0xf bank_mask:0xf", v={2: X}).vector(2, np.uint32)
    np.testing.assert_array_equal(got, np.where(LANE & 15, X + np.roll(X, 1), X))


def test_dpp_masks_disable_lanes(execute):
    text = "v_mov_b32_dpp v0, v2 quad_perm:[0,1,2,3] row_mask:0x2 bank_mask:0x5"
    enabled = (LANE >= 16) & (LANE // 4 % 2 == 0)
    np.testing.assert_array_equal(execute(text, v={2: X, 0: OLD}).vector(0, np.uint32), np.where(enabled, X, OLD))


def test_dpp8_and_fetching_inactive_lanes(execute):
    index = (LANE & ~7) + np.array([7, 6, 5, 4, 3, 2, 1, 0])[LANE & 7]
    got = execute("v_mov_b32_dpp v0, v2 dpp8:[7,6,5,4,3,2,1,0]", v={2: X}).vector(0, np.uint32)
    np.testing.assert_array_equal(got, X[index])
    active = LANE % 8 != 7
    got = execute("v_mov_b32_dpp v0, v2 dpp8:[7,6,5,4,3,2,1,0]", v={2: X, 0: OLD}, active=active).vector(0, np.uint32)
    np.testing.assert_array_equal(got, np.where(active, np.where(active[index], X[index], 0), OLD))
    got = execute("v_mov_b32_dpp v0, v2 dpp8:[7,6,5,4,3,2,1,0] fi:1", v={2: X, 0: OLD}, active=active).vector(
        0, np.uint32
    )
    np.testing.assert_array_equal(got, np.where(active, X[index], OLD))


def test_dpp_source_inactive(execute):
    active = LANE % 4 != 1
    index = LANE ^ 1
    for tail, unreadable in ((" bound_ctrl:1", np.uint32(0)), ("", OLD), (" fi:1", X[index])):
        text = f"v_mov_b32_dpp v0, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf{tail}"
        got = execute(text, v={2: X, 0: OLD}, active=active).vector(0, np.uint32)
        np.testing.assert_array_equal(
            got, np.where(active, np.where(active[index], X[index], unreadable), OLD), err_msg=tail
        )


def test_dpp_negates_the_zero_of_an_unreadable_source(execute):
    one = np.ones(32, np.float32)
    tail = "row_mask:0xf bank_mask:0xf bound_ctrl:1"
    code = (
        f"v_mul_f32_dpp v0, -v2, v3 row_shr:1 {tail}\nv_mul_f32_dpp v1, |v2|, v3 row_shr:1 {tail}\n"
        f"v_mul_f32_dpp v4, -|v2|, v3 quad_perm:[1,0,3,2] {tail}\n"
        f"v_fma_mix_f32_e64_dpp v5, -v2, v3, v6 row_shr:1 {tail}"
    )
    machine = execute(code, v={2: one, 3: one, 6: np.full(32, -0.0, np.float32)}, active=LANE % 2 == 0)
    for n, negated in {0: True, 1: False, 4: True, 5: True}.items():
        got = machine.vector(n, np.float32)[::2]  # every source lane is inactive or lies outside of the row
        assert not got.any()
        assert (np.signbit(got) == negated).all(), n


def test_dpp_on_other_instructions(execute):
    f = (LANE - 9.5).astype(np.float32)
    machine = execute(
        "v_add_f32_dpp v0, -v2, v3 row_xmask:1 row_mask:0xf bank_mask:0xf bound_ctrl:1\n"
        "v_cmp_gt_f32_e64_dpp s4, v2, v3 row_ror:1 row_mask:0xf bank_mask:0xf bound_ctrl:1\n"
        "v_fmac_f32_dpp v1, v2, v3 row_share:0 row_mask:0xf bank_mask:0xf bound_ctrl:1\n"
        "v_max3_f32_e64_dpp v5, v2, v3, 0 row_mirror row_mask:0xf bank_mask:0xf bound_ctrl:1",
        v={2: f, 3: f * 2, 1: f * 0 + 1},
    )
    np.testing.assert_array_equal(machine.vector(0, np.float32), -f[LANE ^ 1] + f * 2)
    np.testing.assert_array_equal(machine.mask(4), f[(LANE & ~15) + (LANE - 1 & 15)] > f * 2)
    np.testing.assert_array_equal(machine.vector(1, np.float32), f[LANE & ~15] * (f * 2) + 1)
    mirrored = f[(LANE & ~15) + 15 - (LANE & 15)]
    np.testing.assert_array_equal(machine.vector(5, np.float32), np.maximum(np.maximum(mirrored, f * 2), 0))


def test_carries_of_dpp(execute):
    """Masks of rows and banks hold for the sum alone; where there is no source the carry stays, too."""
    high = np.full(32, 0xFFFFFFFF, np.uint32)
    code = (
        "s_mov_b32 s4, 0x0000ffff\nv_add_co_u32_e64_dpp v0, s4, v2, v3 row_shl:1 row_mask:0x1 bank_mask:0x3\n"
        "s_mov_b32 s5, 0xffff0000\nv_add_co_u32_e64_dpp v1, s5, v2, v3 row_shl:1 row_mask:0xf bank_mask:0xf"
    )
    given = {2: LANE, 3: high, 0: OLD, 1: OLD}
    machine = execute(code, v=given)
    read = LANE % 16 != 15
    sums = np.where(read, LANE, OLD)  # of the next lane's number and -1
    np.testing.assert_array_equal(machine.vector(0, np.uint32), np.where(LANE < 8, sums, OLD))
    np.testing.assert_array_equal(machine.vector(1, np.uint32), sums)
    np.testing.assert_array_equal(machine.mask(4), read | (LANE == 15))
    np.testing.assert_array_equal(machine.mask(5), read | (LANE == 31))
    some = execute(code, v=given, active=LANE % 2 == 1)
    assert not (some.mask(4) & (LANE % 2 == 0)).any()


def test_swaps_and_dual_moves(execute):
    machine = execute(
        "v_swap_b32 v2, v3\nv_dual_mov_b32 v4, v5 :: v_dual_mov_b32 v5, v4", v={2: X, 3: OLD, 4: X, 5: OLD}
    )
    for n, want in ((2, OLD), (3, X), (4, OLD), (5, X)):
        np.testing.assert_array_equal(machine.vector(n, np.uint32), want)


@pytest.mark.parametrize("lanes", [32, 64])
def test_counting_lanes_below(execute, lanes):
    mask = 0xF0F0A5A55A5A1234
    lane = np.arange(lanes)
    low = [bin(mask & 0xFFFFFFFF & ((1 << min(int(n), 32)) - 1)).count("1") + 5 for n in lane]
    high = [bin(mask >> 32 & ((1 << max(int(n) - 32, 0)) - 1)).count("1") for n in lane]
    machine = execute(
        "v_mbcnt_lo_u32_b32 v0, s2, 5\nv_mbcnt_hi_u32_b32 v1, s3, v0",
        s={2: mask & 0xFFFFFFFF, 3: mask >> 32},
        lanes=lanes,
    )
    np.testing.assert_array_equal(machine.vector(0, np.uint32), low)
    np.testing.assert_array_equal(machine.vector(1, np.uint32), np.array(low) + np.array(high))


def test_moves_by_m0(execute):
    x = np.arange(64, dtype=np.uint32)
    machine = execute("s_mov_b32 m0, s9\nv_movrels_b32 v0, v2\nv_movreld_b32 v5, v2", v={2: x, 3: x + 100, 5: x, 6: x},
                      s={9: np.array([0, 1])})  # fmt: skip
    np.testing.assert_array_equal(machine.vector(0, np.uint32), np.where(x < 32, x, x + 100))
    np.testing.assert_array_equal(machine.vector(6, np.uint32), x)
