"""Which cases of a product run: every value of every axis, or every pair, and no more than are needed."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from sampled import covering, of_kernels, turning

AXES = {"tile": range(18), "layout": ["nn", "nt", "tn", "tt"], "gpu": ["one", "other"]}
CASES = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]


@pytest.mark.parametrize(("together", "most"), [(1, 18), (2, 18 * 4)])
def test_covering(together, most):
    chosen = covering(CASES, together)
    assert len(chosen) == most
    for axes in combinations(AXES, together):
        wanted = set(product(*(AXES[axis] for axis in axes)))
        assert {tuple(CASES[n][axis] for axis in axes) for n in chosen} == wanted


def test_values_of_short_axes_take_turns():
    layouts = [CASES[n]["layout"] for n in covering(CASES)]
    assert {layouts.count(layout) for layout in AXES["layout"]} == {4, 5}


def test_turning():
    seen = set()
    for test in map(str, range(50)):
        layouts = {CASES[n]["layout"] for n in turning(test, CASES, "layout", 2)}
        assert len(layouts) == 2
        seen |= layouts
    assert seen == set(AXES["layout"])
    assert turning("any", CASES, "stride") == list(range(len(CASES)))


def test_each_kernel_runs_once():
    cases = [{"role": role, **case} for role in ("forward", "query", "key") for case in CASES]
    chosen = {test: of_kernels(test, cases) for test in map(str, range(9))}
    for some in chosen.values():
        assert sorted(cases[n]["role"] for n in some) == ["forward", "key", "query"]
    assert len({cases[n]["layout"] for some in chosen.values() for n in some}) > 1
    assert len(of_kernels("any", CASES)) == 1
