"""Sums of several float64 numbers, exact until they are rounded once to float32."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from .rounding import to_odd, two_sum_error


def sum_rounded_once(terms: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of arrays of one shape in float32, to nearest even, +0 if it is zero; none may overflow float64."""
    total, errors = _added(terms)
    inexact = np.any([e != 0 for e in errors], axis=0) & np.isfinite(total)
    if inexact.any():
        few = [np.broadcast_to(x, total.shape)[inexact] for x in terms]
        total[inexact] = _odd_sum(few, total[inexact], [e[inexact] for e in errors])
    return (total + 0.0).astype(np.float32)


def _added(terms: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Their sum in float64, and what each addition lost, exactly."""
    total, errors = np.array(terms[0]), []
    for x in terms[1:]:
        before, total = total, total + x
        errors.append(two_sum_error(before, x, total))
    return total, errors


def _odd_sum(terms: list[np.ndarray], total: np.ndarray, errors: list[np.ndarray]) -> np.ndarray:
    """The sum rounded to odd in float64, from one that lost `errors`."""
    lost, again = _added(errors)
    result = total + lost
    result = to_odd(result, two_sum_error(total, lost, result))
    # Only where the losses do not add up exactly either is the sum made of integers.
    for i in np.nonzero(np.any([e != 0 for e in again], axis=0))[0]:
        result[i] = _odd(sum((Fraction(float(x[i])) for x in terms), Fraction(0)))
    return result


def _odd(exact: Fraction) -> float:
    nearest = float(exact)
    rest = exact - Fraction(nearest)
    return float(to_odd(np.array([nearest]), np.array([float((rest > 0) - (rest < 0))]))[0])
