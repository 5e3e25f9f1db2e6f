"""Single-precision vector arithmetic: IEEE-754 sums and products, minimum and maximum, rounding to integers, ldexp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.parse import Instruction
from .alu import Op, Target, build_vector, special, vector
from .mode import NEAREST, flush
from .rounding import ADD, FMA, MUL, SUB, fma_f32, ldexp_directed
from .tininess import FUSED_SUM, LDEXP, PRODUCT, denormal_before_packing

vector("v_add_f32", "f32", "f32 f32", np.add, rounded=ADD["f32"])
vector("v_sub_f32", "f32", "f32 f32", np.subtract, rounded=SUB["f32"])
vector("v_subrev_f32", "f32", "f32 f32", lambda a, b: b - a, rounded=lambda r: lambda a, b: SUB["f32"](r)(b, a))
vector("v_mul_f32", "f32", "f32 f32", np.multiply, rounded=MUL["f32"], exact=PRODUCT)
vector("v_fma_f32 v_fmamk_f32 v_fmaak_f32", "f32", "f32 f32 f32", fma_f32, rounded=FMA["f32"], exact=FUSED_SUM)
vector("v_fmac_f32", "f32", "f32 f32 f32", fma_f32, reads_dst=True, rounded=FMA["f32"], exact=FUSED_SUM)


def multiply_dx9(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a * b, where zero times anything is +0 (DirectX 9)."""
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


def fma_dx9(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c, where zero times anything leaves c."""
    return np.where((a == 0) | (b == 0), c, fma_f32(a, b, c))


def _dx9_rounded(operation: Callable) -> Callable:
    """A directed product or fused sum that leaves what is added where a factor is zero."""

    def rounded(rounding: int) -> Callable:
        function = operation(rounding)
        return lambda a, b, *c: np.where((a == 0) | (b == 0), c[0] if c else np.float32(0), function(a, b, *c))

    return rounded


def _fused_dx9(rounding: int = NEAREST) -> Callable:
    """Denormals are zeros whatever the mode says (rocjitsu, measured on gfx1100 and gfx1201)."""
    operation = fma_dx9 if rounding == NEAREST else _dx9_rounded(FMA["f32"])(rounding)
    operation = denormal_before_packing(operation, FUSED_SUM, "f32", rounding)
    return lambda *operands: flush(operation(*[flush(x, "f32") for x in operands]), "f32")


vector("v_mul_dx9_zero_f32", "f32", "f32 f32", multiply_dx9, rounded=_dx9_rounded(MUL["f32"]))
vector("v_fma_dx9_zero_f32", "f32", "f32 f32 f32", _fused_dx9(), rounded=_fused_dx9)
vector("v_fmac_dx9_zero_f32", "f32", "f32 f32 f32", _fused_dx9(), reads_dst=True, rounded=_fused_dx9)


# -- minimum and maximum -----------------------------------------------------------------------------------------------
# -0 < +0 everywhere. "num" forms (and all of gfx11) return the other operand of a NaN; minimum and maximum return NaN.

_QUIET = {2: 0x0200, 4: 0x400000, 8: 0x8000000000000}
_SIGN = {2: 0x8000, 4: 0x80000000, 8: 0x8000000000000000}


def _bits(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def quieted(x: np.ndarray) -> np.ndarray:
    """Signalling NaNs made quiet; everything else as it is."""
    raw = _bits(x)
    return np.where(np.isnan(x), raw | raw.dtype.type(_QUIET[raw.dtype.itemsize]), raw).view(x.dtype)


def is_signalling(x: np.ndarray) -> np.ndarray:
    """Which elements are signalling NaNs."""
    raw = _bits(x)
    return np.isnan(x) & (raw & raw.dtype.type(_QUIET[raw.dtype.itemsize]) == 0)


def _ordered(ufunc: np.ufunc, largest: bool) -> Callable:
    """min or max of numbers, with -0 < +0; a NaN operand gives a NaN."""
    join = np.bitwise_and if largest else np.bitwise_or

    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        r = ufunc(a, b)
        raw = _bits(r)
        wrong_zero = raw.dtype.type(_SIGN[raw.dtype.itemsize] if largest else 0)
        if not (raw == wrong_zero).any():
            return r
        ua, ub = _bits(a), _bits(b)
        opposite = ((ua ^ ub) == raw.dtype.type(_SIGN[raw.dtype.itemsize])) & (a == 0)
        return np.where(opposite, join(ua, ub), raw).view(r.dtype) if opposite.any() else r

    return function


larger, smaller = _ordered(np.maximum, True), _ordered(np.minimum, False)


def _num(ordered: Callable, signalling_wins: bool) -> Callable:
    """A NaN operand gives the other one; signalling_wins: a signalling NaN gives a quiet NaN (gfx11, IEEE mode)."""

    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        r = ordered(a, b)
        if not np.isnan(r).any():
            return r
        nan_a, nan_b = np.isnan(a), np.isnan(b)
        chosen = np.where(nan_a, np.where(nan_b, a, b), np.where(nan_b, a, r))
        if signalling_wins:
            chosen = np.where(is_signalling(a), a, np.where(is_signalling(b), b, chosen))
        return quieted(chosen)

    return function


def _propagating(ordered: Callable) -> Callable:
    """A NaN operand gives a quiet NaN, a signalling one first."""

    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        r = ordered(a, b)
        if not np.isnan(r).any():
            return r
        first = np.where(is_signalling(a), a, np.where(is_signalling(b), b, np.where(np.isnan(a), a, b)))
        return np.where(np.isnan(r), quieted(first), r)

    return function


MAX_NUM, MIN_NUM = _num(larger, False), _num(smaller, False)
MAX_IEEE, MIN_IEEE = _num(larger, True), _num(smaller, True)
MAXIMUM, MINIMUM = _propagating(larger), _propagating(smaller)


def then(first: Callable, second: Callable) -> Callable:
    """second(first(a, b), c)."""
    return lambda a, b, c: second(first(a, b), c)


def median(smallest: Callable) -> Callable:
    """The middle one of three numbers; with a NaN among them the minimum of the others.

    Of zeros the guides' pseudo-code tells which: the first that equals the largest is left out, whatever its sign, and
    the larger one of the other two is taken.
    """

    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        middle = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
        if not (middle == 0).any() and not np.isnan(middle).any():
            return middle
        nan = np.isnan(middle)  # any NaN makes numpy's middle one
        most = np.maximum(np.maximum(a, b), c)
        ordered = np.where(most == a, larger(b, c), np.where(most == b, larger(a, c), larger(a, b)))
        return np.where(nan, smallest(smallest(a, b), c), ordered) if nan.any() else ordered

    return function


def declare_extrema(kind: str) -> None:
    """All minima and maxima of one float type, under the names of gfx11 and of gfx12; f64 has those of two operands."""
    two, three = f"{kind} {kind}", f"{kind} {kind} {kind}"
    for name, ieee, num, propagating in (("max", MAX_IEEE, MAX_NUM, MAXIMUM), ("min", MIN_IEEE, MIN_NUM, MINIMUM)):
        vector(f"v_{name}_num_{kind}", kind, two, num)
        special(f"v_{name}_{kind}", _by_mode(kind, two, ieee, num), dpp=True, sdwa=True)
        vector(f"v_{name}imum_{kind}", kind, two, propagating)
        if kind == "f64":
            continue
        vector(f"v_{name}3_num_{kind}", kind, three, then(num, num))
        special(f"v_{name}3_{kind}", _by_mode(kind, three, then(ieee, ieee), then(num, num)), dpp=True)
        vector(f"v_{name}imum3_{kind}", kind, three, then(propagating, propagating))
    if kind == "f64":
        return
    vector(f"v_minmax_num_{kind}", kind, three, then(MIN_NUM, MAX_NUM))
    vector(f"v_maxmin_num_{kind}", kind, three, then(MAX_NUM, MIN_NUM))
    special(f"v_minmax_{kind}", _by_mode(kind, three, then(MIN_IEEE, MAX_IEEE), then(MIN_NUM, MAX_NUM)), dpp=True)
    special(f"v_maxmin_{kind}", _by_mode(kind, three, then(MAX_IEEE, MIN_IEEE), then(MAX_NUM, MIN_NUM)), dpp=True)
    vector(f"v_maximumminimum_{kind}", kind, three, then(MAXIMUM, MINIMUM))
    vector(f"v_minimummaximum_{kind}", kind, three, then(MINIMUM, MAXIMUM))
    vector(f"v_med3_num_{kind}", kind, three, median(MIN_NUM))
    special(f"v_med3_{kind}", _by_mode(kind, three, median(MIN_IEEE), median(MIN_NUM)), dpp=True)


def _by_mode(kind: str, sources: str, ieee: Callable, num: Callable) -> Callable:
    """A builder that takes the NaN rule from the mode: gfx11's IEEE bit, which gfx12 does not have."""
    chosen = {True: Op(kind, tuple(sources.split()), ieee), False: Op(kind, tuple(sources.split()), num)}

    def build(ins: Instruction, target: Target):
        return build_vector(chosen[target.mode.ieee and target.gpu.major < 12], ins, target)

    return build


declare_extrema("f32")


# -- rounding to integers, fractions, exponents ------------------------------------------------------------------------


def fraction(x: np.ndarray) -> np.ndarray:
    """x - floor(x), kept below 1; infinities give NaN."""
    below_one = np.nextafter(x.dtype.type(1), x.dtype.type(0))
    return np.minimum(x - np.floor(x), below_one)


def fraction_directed(add: Callable[[int], Callable]) -> Callable[[int], Callable]:
    """`fraction` in another rounding mode, of the sums that are rounded in it. Of whole numbers it is +0 in every mode
    (rocjitsu, by values of gfx1201).
    """

    def of_mode(rounding: int) -> Callable:
        def function(x: np.ndarray) -> np.ndarray:
            rest = np.minimum(add(rounding)(x, -np.floor(x)), np.nextafter(x.dtype.type(1), x.dtype.type(0)))
            return np.where(rest == 0, x.dtype.type(0), rest)

        return function

    return of_mode


def mantissa(x: np.ndarray) -> np.ndarray:
    """The significand in [0.5, 1) with the sign of x; zeros, infinities and NaNs as they are."""
    return np.frexp(x)[0]


def exponent(x: np.ndarray) -> np.ndarray:
    """The exponent that belongs to `mantissa`; 0 for zeros, infinities and NaNs."""
    return np.where(np.isfinite(x), np.frexp(x)[1], 0)


def scale_by_power(x: np.ndarray, power: np.ndarray) -> np.ndarray:
    """x * 2**power, rounded once."""
    return np.ldexp(x, np.asarray(power, np.int32))


for _name, _function in {"trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rndne": np.rint}.items():
    vector(f"v_{_name}_f32", "f32", "f32", _function)
vector("v_fract_f32", "f32", "f32", fraction, rounded=fraction_directed(ADD["f32"]))
vector("v_frexp_mant_f32", "f32", "f32", mantissa)
vector("v_frexp_exp_i32_f32", "i32", "f32", lambda x: exponent(x).astype(np.int32))
vector("v_ldexp_f32", "f32", "f32 i32", scale_by_power, rounded=ldexp_directed, exact=LDEXP)
