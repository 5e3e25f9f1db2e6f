"""The directed rounding modes of what has rules of its own: DirectX's products, sums that round twice, division."""

from fractions import Fraction

import numpy as np
import pytest

from laneloom.errors import UnknownInstructionError

RNG = np.random.default_rng(8)


def rounded(exact, value: Fraction, kind: str, rounding: int) -> Fraction:
    if value == 0:
        return Fraction(0)
    found = exact.decode(exact.encode(value, kind, rounding), kind)
    assert isinstance(found, Fraction) or found == 0
    return Fraction(found)


@pytest.mark.parametrize("rounding", range(4))
def test_products_of_directx(execute, exact, rounding):
    """Zero times anything leaves what is added."""
    a, b, c = RNG.standard_normal((3, 64)).astype(np.float32)
    a[::7], b[3::11] = 0, 0
    code = f"""s_round_mode {rounding | rounding << 2}
    v_mul_dx9_zero_f32 v4, v0, v1
    v_fma_dx9_zero_f32 v5, v0, v1, v2"""
    machine = execute(code, v={0: a, 1: b, 2: c})
    for k, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        product = Fraction(x) * Fraction(y)
        assert machine.vector(4, np.float32)[k] == rounded(exact, product, "f32", rounding)
        assert machine.vector(5, np.float32)[k] == rounded(exact, product + Fraction(z), "f32", rounding)


@pytest.mark.parametrize("rounding", range(4))
def test_sums_that_round_twice(cdna3, exact, rounding):
    a, b, c = RNG.standard_normal((3, 64)).astype(np.float16)
    code = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), {rounding | rounding << 2}\nv_mad_f16 v4, v0, v1, v2"
    got = cdna3(code, v={0: a, 1: b, 2: c}).vector(4, np.float16)
    for k, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        product = rounded(exact, Fraction(x) * Fraction(y), "f16", rounding)
        assert got[k] == rounded(exact, product + Fraction(z), "f16", rounding)


@pytest.mark.parametrize(
    ("gpu", "text"), [("gfx1151", "v_div_fmas_f32 v4, v0, v1, v2"), ("gfx90a", "v_mad_f32 v4, v0, v1, v2")]
)
def test_what_rounds_to_nearest_alone(execute, gpu, text):
    a = RNG.standard_normal(64).astype(np.float32)
    code = f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), {{}}\n{text}"
    lanes = 64 if gpu == "gfx90a" else 32
    execute(code.format(0), gpu=gpu, lanes=lanes, v={0: a, 1: a, 2: a})
    with pytest.raises(UnknownInstructionError, match="rounding to nearest only"):
        execute(code.format(5), gpu=gpu, lanes=lanes, v={0: a, 1: a, 2: a})
