"""How matrix instructions of CDNA 1 to 3 add: in steps along K, each of which rounds the sum to D's type.

Facts by MMA-Sim (Xie and others, "Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units", arXiv 2511.10909),
whose models the authors report equal to an MI100, MI250X and MI300X, bit by bit, on random products of every dense
instruction:

- FP32 by FP32 and FP64: fused multiply-adds, one k after the other.
- CDNA 1, 16 bits: four products of fp16, or two of bf16, and the addend are summed exactly and rounded once.
- CDNA 2, 16 bits: products and sums are FP32 operations, ((p0 + p1) + (p2 + p3)) is added to the addend, of the older
  bf16 (p0 + p1); denormals of A, B and C are +0, those of products and sums zeros of their sign.
- CDNA 3: eight products of 16 bits, four of xf32, are cut toward zero to 24 bits below the exponent of the largest and
  added. Of 16 products of 8 bits the even and the odd ones are so by themselves; the two sums are cut downwards to 24
  bits below the larger exponent and added. With the addend the sum is cut downwards to 32 bits below the larger
  exponent of the two, the addend to 24; their sum to 31 bits below its own, and then rounded. Denormals are kept.

FP64 on CDNA 4, which nobody has measured, is taken to be the same chain of fused multiply-adds.

Rounding is to nearest even. An exponent here is that of the fields: a product's is the sum of its factors', whose
denormals have that of the smallest normal number. Infinities and NaN are as IEEE 754 says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..gpu import Gpu
from ..isa.catalogue import MatrixInstruction
from .exact_sums import sum_rounded_once
from .mfma_cut import cut
from .rounding import fma_f32, fma_f64, high_part, two_sum_error

F32, F64, I64 = np.float32, np.float64, np.int64
#: A [wave, block, row, k], B [wave, block, k, column] in float64 and C [wave, block, row, column] or a number -> D
Sum = Callable[[np.ndarray, np.ndarray, "np.ndarray | float"], np.ndarray]
_Part = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

_LEAST = {"f16": -14, "bf16": -126, "xf32": -126, "fp8_fnuz": -7, "bf8_fnuz": -15}  #: exponents of normal numbers
_SMALLEST = F32(2.0**-126)
_OUTPUTS = 8192  #: elements of D that are worked on at a time


def sum_of(row: MatrixInstruction, gpu: Gpu) -> Sum | None:
    """How an instruction adds; None where nobody has measured it, which is then rounded once."""
    if row.a == "f64":  # of CDNA 4 too: float64 holds no product of two doubles, and BLAS has orders of its own
        return partial(_in_parts, _fused_f64)
    if row.sparse or gpu.name not in ("gfx908", "gfx90a", "gfx942"):
        return None
    if row.a == "f32":
        return partial(_in_parts, _fused_f32)
    if row.a not in _LEAST:
        return None
    if gpu.name == "gfx942":
        step = {"xf32": 4, "f16": 8, "bf16": 8}.get(row.a, 16)
        return partial(_in_parts, partial(cut, _LEAST[row.a], _LEAST[row.b], step))
    step = 2 if row.a == "bf16" and "1k" not in row.name else 4
    return partial(_in_parts, partial(_exact, step) if gpu.name == "gfx908" else partial(_in_pairs, step, row.a))


def _in_parts(add: _Part, a: np.ndarray, b: np.ndarray, c: np.ndarray | float) -> np.ndarray:
    """Of some waves at a time, so that what is on the way stays in a processor's cache."""
    c = np.broadcast_to(c, (*a.shape[:-1], b.shape[-1]))
    each = max(1, _OUTPUTS // c[0].size)
    parts = [add(*(x[i : i + each] for x in (a, b, c))) for i in range(0, len(a), each)]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _products(a: np.ndarray, b: np.ndarray, k: int) -> np.ndarray:
    """Of column k of A and row k of B, of every element of D."""
    return a[..., k, None] * b[..., None, k, :]


# -- chains of fused multiply-adds -------------------------------------------------------------------------------------


def _fused_f32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    d = c
    for k in range(a.shape[-1]):
        d = fma_f32(a[..., k, None], b[..., None, k, :], d.astype(F64))
    return d


def _fused_f64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    d = c
    if not (_splits(a) and _splits(b) and np.abs(c).max() < 2.0**900):
        for k in range(a.shape[-1]):
            d = fma_f64(a[..., k, None], b[..., None, k, :], d)
        return d
    high_a, high_b = high_part(a), high_part(b)
    low_a, low_b = a - high_a, b - high_b
    for k in range(a.shape[-1]):
        product = _products(a, b, k)
        lost = _products(high_a, high_b, k)
        lost -= product
        lost += _products(high_a, low_b, k)
        lost += _products(low_a, high_b, k)
        lost += _products(low_a, low_b, k)
        total = product + d
        rest = two_sum_error(product, d, total)
        rest += lost
        rounded = total + rest
        # The sum of what two roundings lost is rounded itself, which tells only where it seems to be half a unit, or
        # three halves. Of a sum of zero the sign is not known.
        unsure = (rest.view(I64) & 0x7FFFFFFFFFFFF) == 0
        unsure = unsure.any() and unsure & ((rest != 0) | (total == 0))
        if np.any(unsure):
            x, y = (np.broadcast_to(part, d.shape)[unsure] for part in (a[..., k, None], b[..., None, k, :]))
            rounded[unsure] = fma_f64(x, y, d[unsure])
        d = rounded
    return d


def _splits(x: np.ndarray) -> bool:
    """Whether what products of such numbers lose to rounding is exact in float64."""
    size = np.abs(x)
    return bool(size.max() < 2.0**400 and size.min(where=size > 0, initial=1.0) > 2.0**-400)


# -- CDNA 1 and 2 ------------------------------------------------------------------------------------------------------


def _exact(step: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    d = c
    for first in range(0, a.shape[-1], step):
        d = sum_rounded_once([*(_products(a, b, k) for k in range(first, first + step)), d.astype(F64)])
    return d


def _flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < _SMALLEST, np.copysign(F32(0), x), x)


def _in_pairs(step: int, kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """A, B and C hold no denormals."""
    a, b, d = a.astype(F32), b.astype(F32), c.astype(F32)
    # Products of two numbers of fp16, and sums of them that are not zero, are far from being denormal.
    flushed = _flushed if kind == "bf16" else (lambda x: x)

    def pair(k: int) -> np.ndarray:
        return flushed(flushed(_products(a, b, k)) + flushed(_products(a, b, k + 1)))

    for first in range(0, a.shape[-1], step):
        total = pair(first)
        if step == 4:
            total = flushed(total + pair(first + 2))
        d = flushed(d + total)
    return d
