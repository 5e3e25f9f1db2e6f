"""Stochastic rounding of single floats at the ends of the range, against fractions: the sum with the random bits is cut
off at the last place that is kept, also below the normal numbers, and only then found too large.
"""

from fractions import Fraction
from math import floor, isinf, isnan

import numpy as np
import pytest

from laneloom.errors import UnknownInstructionError

U16, U32 = np.uint16, np.uint32
RNG = np.random.default_rng(31)
#: exponent and fraction bits, what does not fit, the largest number, NaN
FORMATS = {
    "fp8": (4, 3, 0x7F, 0x7E, 0x7F), "bf8": (5, 2, 0x7C, 0x7B, 0x7F), "e5m3": (5, 3, 0xFF, 0xFE, 0xFF),
    "f16": (5, 10, 0x7C00, 0x7BFF, 0x7FFF), "bf16": (8, 7, 0x7F80, 0x7F7F, 0x7FFF),
}  # fmt: skip
EDGES = [0, 1 << 31, 1, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345, 0x7F7FFFFF, 0x7F7F8000, 0x477FFFFF, 0xC77FE800,
         0x43E00000, 0xC3E80000, 0x43EFFFFF, 0x43F00000, 0x47600000, 0xC76FFFFF, 0x477BFFFF]  # fmt: skip


def floats(lowest: int, highest: int, count: int = 96) -> np.ndarray:
    """Bits of float32 between these powers of two, some of them with few digits."""
    exponent = np.clip(RNG.integers(lowest, highest, count) + 127, 0, 254)
    fraction = RNG.integers(0, 1 << 23, count) & RNG.choice([0x7FFFFF, 0x7FE000, 0x700000], count)
    bits = RNG.integers(0, 2, count) << 31 | exponent << 23 | fraction
    return np.concatenate([np.array(EDGES), bits]).astype(U32)


def seeds(count: int) -> np.ndarray:
    random = RNG.integers(0, 1 << 32, count).astype(U32)
    random[::3], random[1::6] = 0xFFFFFFFF, 0
    return random


def by_chance(
    value: Fraction | float, negative: bool, kind: str, random: int, stops: bool = False, rdna4: bool = False
) -> int:
    """rdna4: as many bits take part as normal numbers lose, and there is one NaN."""
    exponent_bits, fraction_bits, beyond, largest, nan = FORMATS[kind]
    if rdna4 and isnan(value):
        return {"fp8": 0xFF, "bf8": 0xFE}[kind]
    sign = 0 if kind == "e5m3" else int(negative) << exponent_bits + fraction_bits
    if isnan(value):
        return sign | nan
    if isinf(value):
        return sign | beyond
    bias, size = (1 << exponent_bits - 1) - 1, abs(Fraction(value))
    power = 1 - bias
    while size >= Fraction(2) ** (power + 1):
        power += 1
    units, chance = size / Fraction(2) ** (power - fraction_bits), Fraction(random, 1 << 32)
    if rdna4:
        parts = 1 << 23 - fraction_bits
        units, chance = Fraction(floor(units * parts), parts), Fraction(floor(chance * parts), parts)
    units = floor(units + chance)
    code = (power + bias - 1 << fraction_bits) + units
    return sign | (code if code <= largest else largest if stops else beyond)


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize(("kind", "lowest", "highest"), [("f16", -27, 18), ("bf16", -140, 128)])
def test_a_pair(execute, exact, kind, lowest, highest, stops):
    """The second one takes the next random number of v_prng_b32."""
    x = floats(lowest, highest), floats(lowest, highest)[::-1].copy()
    random = seeds(len(x[0]))
    mode = "s_setreg_imm32_b32 hwreg(HW_REG_WAVE_MODE, 23, 1), 1\n" if stops else ""
    code = f"{mode}v_cvt_sr_pk_{kind}_f32 v4, v0, v1, v2\nv_cvt_sr_pk_{kind}_f32 v5, v0, v1, v2 clamp"
    machine = execute(code, gpu="gfx1250", v={0: x[0], 1: x[1], 2: random})
    infinity, nan = FORMATS[kind][2], FORMATS[kind][4]
    for half in (0, 1):
        got = machine.vector(4, U16, half=half)
        got = np.where(got & 0x7FFF > infinity, got | nan, got)
        chances = random.tolist() if half == 0 else [(r << 1 & 0xFFFFFFFF) ^ (197 * (r >> 31)) for r in random.tolist()]
        rows = zip(x[half].tolist(), chances, strict=True)
        assert got.tolist() == [by_chance(exact.decode(v, "f32"), v >> 31, kind, r, stops) for v, r in rows]
        held = machine.vector(5, U16, half=half)
        one = {"f16": 0x3C00, "bf16": 0x3F80}[kind]
        assert held.tolist() == [0 if c > 0x7FFF or c > infinity else min(c, one) for c in got.tolist()]


@pytest.mark.parametrize(("gpu", "kind", "wide"), [
    ("gfx1250", "fp8", "f16"), ("gfx1250", "bf8", "f16"), ("gfx1250", "e5m3", "f32"),
    *((gpu, kind, "f32") for gpu in ("gfx1201", "gfx950") for kind in ("fp8", "bf8")),
])  # fmt: skip
def test_one_to_8_bits(execute, exact, gpu, kind, wide):
    x = floats(-20, 18) if wide == "f32" else RNG.integers(0, 1 << 16, 114).astype(U32)
    random = seeds(len(x))
    name, source, clamp = ("fp8", "v0", " clamp") if kind == "e5m3" else (kind, "v0" if wide == "f32" else "v0.l", "")
    code = f"v_cvt_sr_{name}_{wide} v4, {source}, v1{clamp}"
    got = execute(code, gpu=gpu, lanes=64 if gpu == "gfx950" else 32, v={0: x, 1: random}).vector(4, U32) & 0xFF
    sign = 31 if wide == "f32" else 15
    rows = zip(x.tolist(), random.tolist(), strict=True)
    rdna4 = gpu == "gfx1201"
    assert got.tolist() == [by_chance(exact.decode(v, wide), v >> sign, kind, r, rdna4=rdna4) for v, r in rows]


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_signs_of_a_pair_are_refused(execute, kind):
    with pytest.raises(UnknownInstructionError, match="neg or abs of a pair"):
        execute(f"v_cvt_pk_{kind}_f16 v4.l, -v0", gpu="gfx1250")
