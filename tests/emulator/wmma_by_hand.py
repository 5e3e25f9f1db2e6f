"""WMMA of 16-bit floats in whole numbers, one element at a time: what RDNA 3 and RDNA 4 do by rocjitsu, written again.

Numbers are Fractions, and the grid is a power of two: slow, and unlike the emulator's arrays in all but the rule.
"""

from fractions import Fraction
from math import floor, inf

INFINITE, NAN = "infinite", "nan"
FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23)}  # bits of the exponent and of the fraction


def two_to(n):
    return Fraction(2) ** n


def read(bits, kind):
    """(the number, or INFINITE or NAN; whether it is negative; the exponent field's place, of denormals the least)."""
    exponent_bits, fraction_bits = FORMATS[kind]
    field, low = bits >> fraction_bits & (1 << exponent_bits) - 1, bits & (1 << fraction_bits) - 1
    negative, bias = bool(bits >> (exponent_bits + fraction_bits)), (1 << exponent_bits - 1) - 1
    if field == (1 << exponent_bits) - 1:
        return (NAN if low else INFINITE), negative, 0
    place = max(field, 1) - bias
    size = Fraction(low + (1 << fraction_bits) * (field > 0)) * two_to(place - fraction_bits)
    return size, negative, place


def exponent(size):
    """Of the leading bit of a positive number."""
    e = size.numerator.bit_length() - size.denominator.bit_length()
    return e if two_to(e) <= size else e - 1


def write(value, kind, flushes, stops):
    """The nearest number of the format, ties to even; zero is positive. flushes: the significand is rounded as if there
    were no least exponent, and what lies below the normal numbers then is zero."""
    exponent_bits, fraction_bits = FORMATS[kind]
    bias = (1 << exponent_bits - 1) - 1
    sign, size = (value < 0) << (exponent_bits + fraction_bits), abs(value)
    if size == 0:
        return 0
    e = exponent(size)
    unit = two_to((e if flushes else max(e, 1 - bias)) - fraction_bits)
    size = round(size / unit) * unit
    if size == 0 or (flushes and size < two_to(1 - bias)):
        return 0
    if size >= two_to(bias + 1):
        return sign | (((1 << exponent_bits) - 1 << fraction_bits) - stops)
    e = max(exponent(size), 1 - bias)
    units = int(size / two_to(e - fraction_bits))
    return sign | ((e + bias << fraction_bits) + units - (1 << fraction_bits))


def special(factors, c):
    """The bits in float32 where something is not finite, else None."""
    up = down = invalid = False
    for (x, sx, _), (y, sy, _) in factors:
        if NAN in (x, y):
            return 0xFFC00A3D
        if INFINITE in (x, y):
            invalid |= 0 in (x, y)
            up, down = up or sx == sy, down or sx != sy
    if invalid or (up and down):
        return 0xFFC00000
    value, negative, _ = read(c, "f32")
    if value == NAN:
        return c | 0x400000
    if value == INFINITE:
        up, down = up or not negative, down or negative
    return 0xFFC00000 if up and down else 0x7F800000 if up else 0xFF800000 if down else None


def step(a, b, c, kind, cd, rdna4, stops):
    """a, b: bits of the factors of one step; c: bits of float32. Returns bits of D's type."""
    factors = [(read(x, kind), read(y, kind)) for x, y in zip(a, b, strict=True)]
    if kind == "bf16" and not rdna4:  # denormals of bf16 are zeros
        factors = [tuple((0 if p == -126 and v not in (NAN, INFINITE) and v < two_to(-126) else v, s, p)
                         for v, s, p in pair) for pair in factors]  # fmt: skip
    word = special(factors, c)
    if word is not None:
        if cd == "f32":
            return word
        if word == 0xFFC00A3D:
            return 0xFE3D if cd == "f16" else 0xFFFD
        return word >> 16 if cd == "bf16" else word >> 16 & 0x8000 | 0x7C00 | word >> 13 & 0x3FF
    addend, negative, _ = read(c, "f32")
    if not rdna4 and addend < two_to(-126):
        addend = Fraction(0)
    terms = [(x * y, sx != sy, px + py) for (x, sx, px), (y, sy, py) in factors]
    place = max((p for size, _, p in terms if size), default=-inf)
    leading = exponent(addend) if addend else -inf
    if rdna4:
        least = -14 if cd == "f16" else -126
        grid = int(max(place - 24, max(leading, least) - 26))
        total = 0
        for pair in (terms[k : k + 2] for k in range(0, len(terms), 2)):
            own = max((p for size, _, p in pair if size), default=None)
            if own is not None:
                units = sum(floor((-size if below else size) / two_to(own - 24)) for size, below, _ in pair)
                total += floor(units * two_to(own - 24) / two_to(grid))
        kept = floor(addend / two_to(grid))
        total += floor(-addend / two_to(grid)) if negative and (kept or grid <= least) else -kept if negative else kept
        result = total * two_to(grid)
    else:
        if not addend and not any(size for size, _, _ in terms):
            return 0
        leading = max(leading, -14) if cd == "f16" else leading
        grid = int(max(place - 24, leading - 26))
        total = floor(addend / two_to(grid))
        for size, below, _ in terms:
            units = floor(size / two_to(grid))
            total += -units - 1 if below != negative else units
        result = (-total if negative else total) * two_to(grid)
    if cd == "f16":
        return write(result, "f16", False, stops)
    word = write(result, "f32", not rdna4, False)
    return word >> 16 if cd == "bf16" else word


def widened(bits, cd):
    """Bits of C in float32."""
    if cd == "f32":
        return bits
    if cd == "bf16":
        return bits << 16
    value, negative, _ = read(bits, "f16")
    sign = negative << 31
    if value in (NAN, INFINITE):
        return sign | 0x7F800000 | (bits & 0x3FF) << 13
    return sign | write(value, "f32", False, False)


def element(a, b, c, kind, cd, rdna4, lanes, stops=False):
    """D of one row of A and one column of B, 16 factors each as they lie along K in the guides, and C."""
    order = range(16)
    if rdna4 and lanes == 32:  # four of the first lanes, four of the others
        order = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
    size = 4 if rdna4 else 2
    for k in range(0, 16, size):
        at = order[k : k + size]
        c = step([a[i] for i in at], [b[i] for i in at], widened(c, cd), kind, cd, rdna4, stops)
    return c
