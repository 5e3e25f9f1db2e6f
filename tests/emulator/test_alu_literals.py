"""What constants in the text of an instruction stand for, by the operand's type."""

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("gpu", "code", "want"),
    [
        ("gfx1201", "s_mov_b64 s[0:1], -100", 0xFFFFFF9C),
        ("gfx942", "s_and_b64 s[0:1], -1, 0xffffffffffffff9c", 0xFFFFFF9C),
        ("gfx1151", "s_ashr_i64 s[0:1], 0x80000000, 4", 0xFFFFFFFFF8000000),
        ("gfx1201", "s_lshl_b64 s[0:1], 0x80000000, 4", 0x800000000),
        ("gfx1250", "s_mov_b64 s[0:1], -100", 0xFFFFFFFFFFFFFF9C),  # which has 64 bits there
        ("gfx1250", "s_mov_b64 s[0:1], 0xffffffff", 0xFFFFFFFF),
    ],
)
def test_literals_of_64_bits(execute, gpu, code, want):
    """32 bits, with the sign where the operand is signed."""
    lanes = 64 if gpu == "gfx942" else 32
    assert int(execute(code, gpu=gpu, lanes=lanes).scalar(0, np.uint64)[0]) == want


@pytest.mark.parametrize(
    ("gpu", "code", "want"),
    [
        ("gfx1201", "v_add_f64 v[0:1], 0, -100", 0xFFFFFF9C00000000),
        ("gfx1201", "v_add_f64 v[0:1], 0, 100.1", 0x4059066600000000),
        ("gfx1250", "v_mul_f64 v[0:1], 100.1, v[2:3]", 0x4059066666666666),
        ("gfx1250", "v_mul_f64 v[0:1], v[2:3], 100.1", 0x4059066600000000),
        ("gfx1250", "v_add_nc_u64 v[0:1], -100, v[4:5]", 0xFFFFFFFFFFFFFF9C),
        ("gfx1250", "v_add_nc_u64 v[0:1], v[4:5], -100", 0xFFFFFF9C),
    ],
)
def test_literals_of_vector_instructions(execute, gpu, code, want):
    """A double's is its upper half; CDNA 5 has 8 bytes of constant behind instructions of one word."""
    got = execute(code, gpu=gpu, v={2: np.ones(32), 4: np.zeros(32, np.uint64)}).vector(0, np.uint64)
    assert int(got[0]) == want
