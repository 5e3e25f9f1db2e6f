"""Double-precision vector arithmetic."""

from __future__ import annotations

import numpy as np

from .alu import vector
from .floating import declare_extrema, exponent, fraction, fraction_directed, mantissa, scale_by_power
from .rounding import ADD, FMA, MUL, fma_f64, ldexp_directed
from .tininess import FUSED_SUM, LDEXP, PRODUCT

vector("v_add_f64", "f64", "f64 f64", np.add, rounded=ADD["f64"])
vector("v_mul_f64", "f64", "f64 f64", np.multiply, rounded=MUL["f64"], exact=PRODUCT)
vector("v_fma_f64 v_fmamk_f64 v_fmaak_f64", "f64", "f64 f64 f64", fma_f64, rounded=FMA["f64"], exact=FUSED_SUM)
declare_extrema("f64")
for _name, _function in {"trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rndne": np.rint}.items():
    vector(f"v_{_name}_f64", "f64", "f64", _function)
vector("v_fract_f64", "f64", "f64", fraction, rounded=fraction_directed(ADD["f64"]))
vector("v_frexp_mant_f64", "f64", "f64", mantissa)
vector("v_frexp_exp_i32_f64", "i32", "f64", lambda x: exponent(x).astype(np.int32))
vector("v_ldexp_f64", "f64", "f64 i32", scale_by_power, rounded=ldexp_directed, exact=LDEXP)


def _two_over_pi() -> int:
    """The first 1201 bits of the fraction of 2 / pi, by Machin's formula in integers."""
    guard = 64
    one = 1 << (1201 + guard)

    def arctangent_of_inverse(n: int) -> int:
        total, term, k = 0, one // n, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= n * n
            k += 2
        return total

    pi = 4 * (4 * arctangent_of_inverse(5) - arctangent_of_inverse(239))
    return (2 * one * one // pi) >> guard


_TWO_OVER_PI = _two_over_pi()


def reduction_segment(x: np.ndarray, segment: np.ndarray) -> np.ndarray:
    """53 bits of 2 / pi, chosen by segment and the size of x, for the reduction of large angles (V_TRIG_PREOP_F64)."""
    x, segment = np.broadcast_arrays(x, segment)
    power = ((x.view(np.uint64) >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int64)
    shift = (segment & 31).astype(np.int64) * 53 + np.maximum(power - 1077, 0)
    bits = np.empty(x.shape)
    for at in np.unique(shift):
        bits[shift == at] = float((_TWO_OVER_PI << int(at) >> (1201 - 53)) & ((1 << 53) - 1))
    # Scaled once: without the 128 of large angles the segment may be a denormal, which has lost bits.
    return np.ldexp(bits, -53 - shift + np.where(power >= 1968, 128, 0))


vector("v_trig_preop_f64", "f64", "f64 u32", reduction_segment)
