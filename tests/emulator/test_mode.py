"""The MODE register: its bits IEEE and DX10_CLAMP, and writes of what the code had read before."""

import numpy as np
import pytest

from laneloom.errors import UnknownInstructionError

ONE, TINY = np.ones(32, np.float32), np.full(32, 2.0**-30, np.float32)
SIGNALLING = np.full(64, 0x7F812345, np.uint32)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942"])
def test_ieee_is_a_bit_of_mode(execute, gpu):
    """Without it a signalling NaN is as any other."""
    lanes = 64 if gpu == "gfx942" else 32
    for code, want in (("", 0x7FC12345), ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 9, 1), 0\n", 0x3F800000)):
        got = execute(code + "v_max_f32 v0, 1.0, v2", gpu=gpu, v={2: SIGNALLING}, lanes=lanes)
        assert (got.vector(0, np.uint32) == want).all()


@pytest.mark.parametrize(
    ("gpu", "code", "directive", "want"),
    [
        ("gfx1151", "", "", 0),
        ("gfx1151", "", "\t\t.amdhsa_dx10_clamp 0", 0x7FC12345),
        ("gfx942", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 8, 1), 0\n", "", 0x7FC12345),
        ("gfx1201", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 8, 1), 0\n", "", 0),  # which has no such bit
    ],
)
def test_clamp_leaves_a_nan_without_dx10_clamp(execute, gpu, code, directive, want):
    lanes = 64 if gpu == "gfx942" else 32
    x = np.where(np.arange(64) % 2, np.float32(7), SIGNALLING.view(np.float32))
    got = execute(code + "v_add_f32 v0, v2, 0 clamp", gpu=gpu, v={2: x}, lanes=lanes, directives=directive)
    np.testing.assert_array_equal(got.vector(0, np.uint32), np.where(np.arange(64) % 2, 0x3F800000, want))


SAVED = """
s_getreg_b32 s4, hwreg(HW_REG_MODE, 0, 4)
s_round_mode 5
s_mov_b32 s5, s4
v_add_f32 v0, v2, v3
{between}
s_setreg_b32 hwreg(HW_REG_MODE, 0, 4), s5
v_add_f32 v1, v2, v3
"""


def test_a_mode_that_was_read_is_written_back(execute):
    machine = execute(SAVED.format(between=""), v={2: ONE, 3: TINY})
    assert (machine.vector(0, np.float32) == np.nextafter(np.float32(1), np.float32(2))).all()
    assert (machine.vector(1, np.float32) == 1).all()
    with pytest.raises(UnknownInstructionError, match="not a constant"):
        execute(SAVED.format(between="s_and_b32 s5, s5, s6"), v={2: ONE, 3: TINY})


def test_the_bits_that_are_read(execute):
    code = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\ns_getreg_b32 s4, hwreg(HW_REG_MODE)"
    assert execute(code, gpu="gfx1151").scalar(4)[0] == 0x8003F0
    assert execute(code, gpu="gfx1201").scalar(4)[0] == 0x8000F0
    with pytest.raises(UnknownInstructionError, match="does not keep"):
        execute("s_getreg_b32 s4, hwreg(HW_REG_MODE, 12, 8)", gpu="gfx1151")


def test_mixed_sources_follow_the_denormal_mode(execute):
    """Halves that of 16 bits, words that of 32."""
    half = np.full(32, 0x0001, np.uint16)  # 2^-24, a denormal half, and none of 32 bits
    code = "s_denorm_mode {}\nv_fma_mix_f32 v0, v2, 1.0, v3 op_sel_hi:[1,0,0]"
    small = np.full(32, 2.0**-130, np.float32)
    for mode, want in ((15, 2.0**-24), (3, 0.0), (12, 2.0**-24)):
        assert (execute(code.format(mode), v={2: half, 3: small * 0}).vector(0, np.float32) == want).all()
    for mode, want in ((15, 2.0**-130), (14, 0.0)):
        assert (execute(code.format(mode), v={2: half * 0, 3: small}).vector(0, np.float32) == want).all()
