"""How CDNA 1 to 3 add the products of a matrix instruction, one element at a time by integers and fractions.

Written from the description in docs/emulator.md alone, for tests; slow.
"""

import math
from fractions import Fraction

import numpy as np

LEAST = {"f16": -14, "bf16": -126, "xf32": -126, "f32": -126, "fp8_fnuz": -7, "bf8_fnuz": -15}


def single(x: Fraction) -> float:
    """To nearest even in FP32."""
    if x == 0:
        return 0.0
    size = abs(x)
    exponent = max(floor_log2(size), -126)
    rounded = round(size / Fraction(2) ** (exponent - 23)) * Fraction(2) ** (exponent - 23)
    return math.copysign(float(rounded) if rounded < 2**128 else math.inf, x)


def floor_log2(x: Fraction) -> int:
    n = x.numerator.bit_length() - x.denominator.bit_length()
    return n if Fraction(2) ** n <= x else n - 1


def exponent_of(x: float, least: int) -> int:
    return max(floor_log2(abs(Fraction(x))), least) if x else least


def toward_zero(x: Fraction, bit: int) -> Fraction:
    return math.trunc(x / Fraction(2) ** bit) * Fraction(2) ** bit


def down(x: Fraction, bit: int) -> Fraction:
    return math.floor(x / Fraction(2) ** bit) * Fraction(2) ** bit


def by_ieee(a: list[float], b: list[float], c: float) -> float:
    """Infinity or NaN of factors or addend; zero where there is none."""
    total = c if not math.isfinite(c) else 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y if not (math.isfinite(x) and math.isfinite(y)) else 0.0
    return total


def fused(kind: str, a: list[float], b: list[float], c: float) -> float:
    for x, y in zip(a, b, strict=True):
        special = by_ieee([x], [y], c)
        if special != 0:
            c = special
            continue
        exact = Fraction(x) * Fraction(y) + Fraction(c)
        if exact == 0:
            zero_product = math.copysign(0.0, math.copysign(1, x) * math.copysign(1, y))
            c = zero_product + c if 0 in (x, y) else 0.0
        elif kind == "f32":
            c = single(exact)
        else:
            try:
                c = float(exact)
            except OverflowError:
                c = math.inf if exact > 0 else -math.inf
    return c


def exact_steps(step: int, a: list[float], b: list[float], c: float) -> float:
    for k in range(0, len(a), step):
        x, y = a[k : k + step], b[k : k + step]
        special = by_ieee(x, y, c)
        exact = Fraction(c) if special == 0 else Fraction(0)
        if special == 0:
            exact += sum(Fraction(p) * Fraction(q) for p, q in zip(x, y, strict=True))
        c = special if special != 0 else single(exact)
    return c


def in_pairs(step: int, kind: str, a: list[float], b: list[float], c: float) -> float:
    def input_(x: float, least: int) -> float:
        return 0.0 if abs(x) < 2.0**least else x

    def output(x: float) -> float:
        return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x

    def rounded(exact: Fraction, plain: float) -> float:
        return output(single(exact) if exact != 0 else plain)

    def multiply(x: float, y: float) -> float:
        plain = x * y
        return rounded(Fraction(x) * Fraction(y), plain) if math.isfinite(x) and math.isfinite(y) else plain

    def add(x: float, y: float) -> float:
        plain = x + y
        return rounded(Fraction(x) + Fraction(y), plain) if math.isfinite(x) and math.isfinite(y) else plain

    c = input_(c, -126)
    p = [multiply(input_(x, LEAST[kind]), input_(y, LEAST[kind])) for x, y in zip(a, b, strict=True)]
    for k in range(0, len(p), step):
        total = add(p[k], p[k + 1])
        if step == 4:
            total = add(total, add(p[k + 2], p[k + 3]))
        c = add(c, total)
    return c


def cut_sum(a: list[float], b: list[float], kinds: tuple[str, str]) -> tuple[Fraction, int | None]:
    """Products cut 24 bits below the largest exponent, and that; None of products that are all zero."""
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x != 0 and y != 0]
    if not pairs:
        return Fraction(0), None
    top = max(exponent_of(x, LEAST[kinds[0]]) + exponent_of(y, LEAST[kinds[1]]) for x, y in pairs)
    return sum((toward_zero(Fraction(x) * Fraction(y), top - 24) for x, y in pairs), Fraction(0)), top


def cut_steps(step: int, kinds: tuple[str, str], a: list[float], b: list[float], c: float) -> float:
    for k in range(0, len(a), step):
        x, y = a[k : k + step], b[k : k + step]
        special = by_ieee(x, y, c)
        for p, q in zip(x, y, strict=True):
            if math.isfinite(p) and math.isfinite(q) and abs(p * q) >= 2.0**128:
                special += math.copysign(math.inf, p * q)
        if special != 0:
            c = special
            continue
        drops = step == 16
        if drops:
            (even, e), (odd, o) = (cut_sum(x[i::2], y[i::2], kinds) for i in (0, 1))
            top = max((n for n in (e, o) if n is not None), default=None)
            total = down(even, top - 24) + down(odd, top - 24) if top is not None else Fraction(0)
        else:
            total, top = cut_sum(x, y, kinds)
        of_c = exponent_of(c, -126)
        most = of_c if top is None else max(top, of_c)
        addend = Fraction(0) if drops and of_c < most - 25 else down(Fraction(c), most - 24)
        exact = down(total, most - 32) + addend
        if exact != 0:
            exact = down(exact, max(floor_log2(abs(exact)), -126) - 31)
        c = single(exact)
    return c


def element(gpu: str, row, a: list[float], b: list[float], c: float) -> float:
    """An element of D. a, b: a row of A, a column of B."""
    if row.a in ("f32", "f64"):
        return fused(row.a, a, b, c)
    if gpu == "gfx942":
        return cut_steps({"f16": 8, "bf16": 8, "xf32": 4}.get(row.a, 16), (row.a, row.b), a, b, c)
    step = 2 if row.a == "bf16" and not row.name.endswith("1k") else 4
    return exact_steps(step, a, b, c) if gpu == "gfx908" else in_pairs(step, row.a, a, b, c)


def product(gpu: str, row, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """D of A [..., i, k], B [..., k, j] and C [..., i, j]."""
    d = np.empty(c.shape)
    for at in np.ndindex(c.shape):
        *outer, i, j = at
        d[at] = element(gpu, row, a[(*outer, i)].tolist(), b[(*outer, slice(None), j)].tolist(), float(c[at]))
    return d
