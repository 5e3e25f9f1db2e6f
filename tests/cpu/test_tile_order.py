"""The numbers by which kernels on Hopper divide without dividing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneloom.gpu import get_gpu
from laneloom.ops.matmul.plan_wide import by_tma
from laneloom.ops.matmul.problem import MatmulProblem, Matrix
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


@pytest.mark.parametrize("batch", [(1, 1), (2, 3)])
@pytest.mark.parametrize(
    ("dtype", "sizes"), [("fp32", (700, 900, 500)), ("fp64", (1000, 300, 5000)), ("fp64", (2049, 2047, 64))])
def test_what_kernels_of_fp32_and_fp64_are_given(dtype, sizes, batch):
    """The sizes that a launch hands over, by which items are found, beside a division of each item."""
    pytest.importorskip("torch")
    from laneloom.ops.matmul.parts_of_k import Output

    m, n, k = sizes
    dense = MatmulProblem.contiguous(m, n, k, dtype=dtype)

    def each(matrix: Matrix, size: int) -> Matrix:
        return replace(matrix, strides=(batch[1] * size, size, *matrix.strides[2:]))

    problem = replace(
        dense, batch=batch, a=each(dense.a, m * k), b=each(dense.b, k * n), out=each(dense.out, m * n))
    configs = [config for config, _ in by_tma(problem, get_gpu("h200"))][:4]
    assert configs
    for config in configs:
        sizes_given = Output(problem, config, (1, 1), (1, 1)).sizes
        order = sizes_given.order
        rows, columns = -(-m // config.block_m), -(-n // config.block_n)
        for item in (0, rows * columns - 1, sizes_given.items - 1):
            product = divided(item, order.tiling.by_tiles)
            assert product == item // (rows * columns)
            assert divided(product, order.by_inner) == product // batch[1]
