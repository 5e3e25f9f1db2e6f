"""Where every CTA of `hopper_cluster` has one tile, and how C is written there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import plan
from laneloom.ops.matmul.config_cluster import ClusterConfig
from laneloom.ops.matmul.fit_cluster import fitted
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem, Matrix

GPU = get_gpu("sm_90a")
TERMS = Epilogue(bias=("n", 1), dtype_bias="bf16")
ADDEND = Epilogue(scaled=True, addend=Matrix((0, 0, 1024, 1)), dtype_addend="bf16")


def product(m=1024, n=1024, k=512, **rest) -> MatmulProblem:
    return MatmulProblem.contiguous(m, n, k, **{"dtype": "bf16", "layout": "nt"} | rest)


def config(**knobs) -> ClusterConfig:
    return ClusterConfig(**{"block_m": 128, "block_n": 64, "block_k": 64, "stages": 4} | knobs)


@pytest.mark.parametrize(("knobs", "of", "expected"), [
    ({}, {}, True),  # 128 tiles
    ({}, {"m": 1025}, False),  # 144 of them
    ({"programs": 127}, {}, False),
    ({"programs": 128, "cluster_m": 2}, {}, True),
    ({"programs": 127, "cluster_m": 2}, {}, False),
    ({"cluster_k": 2}, {}, False),
    ({"cluster_k": 2}, {"n": 512}, True),
    ({"split_k": 2}, {}, False),
    ({"split_k": 2}, {"n": 512}, True),
    ({"swapped": True}, {}, True),
    ({"own_tiles": True}, {"n": 64}, False),  # warpgroups take turns
    ({}, {"epilogue": TERMS}, True),
    ({"block_n": 200}, {"epilogue": TERMS}, False),  # what ptxas spills
    ({}, {"epilogue": ADDEND}, False),
    ({}, {"dtype_out": "fp32"}, True),
    ({}, {"dtype_out": "fp32", "epilogue": TERMS}, False),
    ({"swapped": True}, {"dtype_out": "fp32"}, False),
], ids=str)  # fmt: skip
def test_the_kernel_is_told_that_a_cta_has_one_tile(knobs, of, expected):
    problem, ran = product(**of), config(**knobs)
    assert ran.one_tile(ran.as_launched(problem)) == expected


def test_groups_of_rows_have_as_many_tiles_as_they_end_up_with():
    problem = replace(product(), grouped=True)
    assert not config(grouped=True).one_tile(problem)


@pytest.mark.parametrize(("knobs", "of", "by_tma"), [
    ({}, {}, False),
    ({"block_n": 128}, {}, True),  # two panels of 128 bytes
    ({"block_n": 128, "swapped": True}, {}, False),
    ({}, {"m": 2048}, True),  # two tiles a CTA: written while the next is multiplied
    ({"swapped": True}, {"m": 2048}, True),
    ({}, {"dtype_out": "fp32"}, True),
    ({}, {"epilogue": TERMS}, False),
    ({}, {"epilogue": ADDEND}, True),
    ({"block_n": 128}, {"n": 1000}, False),  # rows that break sectors
    ({}, {"n": 1001}, False),  # and those that TMA does not write
], ids=str)  # fmt: skip
def test_lanes_store_where_nothing_hides_it(knobs, of, by_tma):
    assert fitted(config(**knobs), product(**of), GPU).tma_store == by_tma


@pytest.mark.parametrize(("m", "held"), [(1024, 0), (2048, 2)])
def test_nothing_is_held_back_for_a_tile_that_does_not_come(m, held):
    assert fitted(config(consumers=2), product(m), GPU).hold_back == held


@pytest.mark.parametrize("sizes", [(16, 4096, 4096), (512, 512, 512), (2912, 64, 768)])
def test_the_plan_of_short_products(sizes):
    ran = plan(product(*sizes), GPU)
    assert (ran.schedule, ran.tma_store, ran.hold_back) == ("hopper_cluster", False, 0)
