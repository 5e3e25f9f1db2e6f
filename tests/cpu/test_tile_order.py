"""The numbers by which kernels on Hopper divide without dividing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laneloom.ops.matmul.tma_operand import Divisor, Order

LARGEST = 2**31 - 1


def divided(n: int, by: Divisor) -> int:
    return n * by.multiplier >> by.shift


@given(d=st.integers(1, LARGEST), n=st.integers(0, LARGEST))
def test_a_divisor_divides(d, n):
    by = Divisor.of(d)
    assert by.shift < 64
    for number in (n, n // d * d, max(n // d * d - 1, 0), LARGEST):
        assert divided(number, by) == number // d


@given(rows=st.integers(1, 300), columns=st.integers(1, 300), inner=st.integers(1, 9), group_m=st.integers(1, 64))
def test_an_order_has_the_divisors_of_its_tiles(rows, columns, inner, group_m):
    order = Order.of(rows, columns, inner, group_m)
    n = rows * columns * inner * 7 - 1
    assert divided(n, order.by_inner) == n // inner
    assert divided(n, order.tiling.by_tiles) == n // (rows * columns)
    assert divided(n, order.tiling.by_band) == n // (group_m * columns)
    assert divided(n, order.by_last_rows) == n // (rows % group_m or group_m)


def test_an_order_without_tiles_is_one():
    assert divided(5, Order.of(3, 0, 1, 8).tiling.by_tiles) == 5, "uneven tiles need not have narrow ones"
