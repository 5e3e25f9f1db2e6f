"""Matrices of a matrix instruction in registers, element by element, as `isa/layouts.py` places them."""

import numpy as np

#: exponent bits, mantissa bits, bias, whether the top exponent holds infinity and NaN, or one code of it NaN
SMALL = {
    "fp8": (4, 3, 7), "bf8": (5, 2, 15), "fp8_fnuz": (4, 3, 8), "bf8_fnuz": (5, 2, 16), "fp6": (2, 3, 1),
    "bf6": (3, 2, 3), "fp4": (2, 1, 1),
}  # fmt: skip


def number(code: int, kind: str) -> float:
    """What a code of a small float stands for; none of those that are drawn is NaN or infinite."""
    exponent_bits, mantissa_bits, bias = SMALL[kind]
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)


def draw(rng, kind, shape):
    """(bit patterns, the numbers that they stand for)."""
    if kind in ("f64", "f32", "xf32"):
        values = rng.standard_normal(shape).astype(np.float64 if kind == "f64" else np.float32)
        if kind == "xf32":
            values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        return values.view(f"u{values.itemsize}").astype(np.uint64), values.astype(np.float64)
    if kind == "f16":
        values = rng.standard_normal(shape).astype(np.float16)
        return values.view(np.uint16).astype(np.uint64), values.astype(np.float64)
    if kind == "bf16":
        bits = rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype(np.uint64), (bits << np.uint32(16)).view(np.float32).astype(np.float64)
    if kind in ("i8", "iu8", "i32"):
        most = 1 << 31 if kind == "i32" else 128
        values = rng.integers(-most, most, shape)
        return (values & (2 * most - 1)).astype(np.uint64), values.astype(np.float64)
    bits = sum(SMALL[kind][:2]) + 1
    codes = rng.integers(0, 1 << bits, shape)
    if bits == 8:  # neither NaN nor infinity, nor sums that float64 cannot hold
        codes &= 0xBF
        codes[codes == 0x80] = 0
    values = np.vectorize(lambda c: number(int(c), kind))(codes)
    return codes.astype(np.uint64), values


def put(V, first, place, width, bits):
    """Write the bits of one element of every wave."""
    at = 32 * place.vgpr + place.bit_lo
    word, shift = first + at // 32, at % 32
    for k in range(-(-(shift + width) // 32)):
        mask = ((1 << width) - 1) << shift >> 32 * k & 0xFFFFFFFF
        part = (bits.astype(object) << shift) >> 32 * k
        old = V[word + k, :, place.lane]
        V[word + k, :, place.lane] = (old & np.uint32(~mask & 0xFFFFFFFF)) | (part & mask).astype(np.uint32)


def get(V, first, place, kind):
    word = first + place.vgpr
    if kind == "f64":
        return (V[word, :, place.lane] | V[word + 1, :, place.lane].astype(np.uint64) << np.uint64(32)).view(np.float64)
    row = np.ascontiguousarray(V[word, :, place.lane])
    if kind in ("f16", "bf16"):
        half = (row >> np.uint32(place.bit_lo)).astype(np.uint16)
        value = half.view(np.float16) if kind == "f16" else (half.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return value.astype(np.float64)
    return row.view(np.int32 if kind == "i32" else np.float32).astype(np.float64)


def fill(V, rng, layout, first):
    """Random elements in the registers of an operand; their values [wave, block, row, column]."""
    shape = (V.shape[1], layout.blocks, layout.rows, layout.cols)
    bits, values = draw(rng, layout.kind, shape)
    for (block, row, column), places in layout:
        for place in places:
            put(V, first, place, layout.width, bits[:, block, row, column])
    return values


def span(first, layout):
    return f"v[{first}:{first + layout.registers - 1}]" if layout.registers > 1 else f"v{first}"


def check(V, layout, first, exact):
    got = np.stack([get(V, first, places[0], layout.kind) for _, places in layout], axis=-1).reshape(exact.shape)
    if layout.kind == "i32":
        np.testing.assert_array_equal(got, exact.astype(np.int64).astype(np.int32))
    elif layout.kind in ("f16", "f32"):
        np.testing.assert_array_equal(got, exact.astype(f"f{layout.width // 8}"))
    elif layout.kind == "bf16":
        fraction, exponent = np.frexp(exact)
        np.testing.assert_array_equal(got, np.ldexp(np.rint(fraction * 256), exponent - 8))
    else:  # float64's own rounding of the sum of four products and C, in any order
        np.testing.assert_allclose(got, exact, rtol=0, atol=8 * 2.0**-53 * max(1.0, np.abs(exact).max()))
