"""Who multiplies blocks along K that have scales, and who refuses them: all pure."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from importlib import import_module
from itertools import product

import pytest

from laneloom.gpu import MOST_PROGRAMS, get_gpu
from laneloom.ops.matmul import config as configs
from laneloom.ops.matmul.config import plan
from laneloom.ops.matmul.config_blocks import BlocksConfig
from laneloom.ops.matmul.config_cluster import ClusterConfig
from laneloom.ops.matmul.plan_blocks import scaled_configs
from laneloom.ops.matmul.problem import BlockScales, Epilogue, MatmulProblem, Matrix

SCALED = ("blocks", "hopper_cluster")
GPUS = ("gfx1151", "gfx1201", "gfx90a", "gfx950", "gfx1250", "sm_90a")
HOPPER = get_gpu("sm_90a")
#: values of knobs without defaults, some of which suit each schedule that takes 8-bit floats somewhere
KNOBS = {
    "block_m": (64, 16, 1, 128), "block_n": (64, 128), "block_k": (64, 16, 128, 32), "stages": (3,),
    "num_warps": (4, 8),
}  # fmt: skip
#: what multiplies bare 8-bit floats on one of the GPUs
EIGHTS = {"wmma", "wmma_coop", "wmma_pingpong", "wmma_direct", "mfma", "dot", "hopper"}


def blocks(m=256, n=256, k=512, scales=(1, 128), **more) -> MatmulProblem:
    return MatmulProblem.contiguous(m, n, k, **{"dtype": "fp8", "layout": "nt", "scales": scales, **more})


def knobs_of(schedule: str):
    kind = import_module(f"laneloom.ops.matmul.{configs.SCHEDULES[schedule]}").CONFIGS[schedule]
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    for values in product(*(KNOBS[name] for name in needed)):
        yield kind(schedule=schedule, **dict(zip(needed, values, strict=True)))


@pytest.mark.parametrize("schedule", [name for name in configs.SCHEDULES if name not in SCALED])
def test_other_schedules_refuse_scales(schedule):
    """What can do the bare product refuses the one with scales, for them."""
    bare = [blocks(m, scales=None, layout=layout) for m, layout in product((256, 1, 8), ("nn", "nt"))]
    found = 0
    for config, problem, name in product(knobs_of(schedule), bare, GPUS):
        gpu, with_scales = get_gpu(name), replace(problem, scales=blocks(problem.m).scales)
        why = config.why_invalid(with_scales, gpu)
        if config.why_invalid(problem, gpu) is None:
            assert why == f"{schedule}: sums all of K alike, here blocks of it have scales"
            found += 1
        assert why is not None
    assert (found > 0) == (schedule in EIGHTS)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("scales", [(1, 128), (1, 1), (128, 128)])
def test_every_gpu_has_a_plan(name, scales):
    for sizes in ((1, 1, 1), (3000, 4096, 7168), (64, 136, 200)):
        for more in ({}, {"dtype_b": "bf8", "layout": "tn", "batch": 3}):
            problem, gpu = blocks(*sizes, scales, **more), get_gpu(name)
            config = plan(problem, gpu)
            assert config.why_invalid(problem, gpu) is None
            assert config.schedule == ("hopper_cluster" if name == "sm_90a" else "blocks")


def test_a_problem_of_blocks():
    problem = blocks(130, 200, 300)
    assert problem.key.endswith("/blocks_1_128")
    a, b = Matrix((0, 0, 3, 1), 4), Matrix((0, 0, 1, 3), 4)
    assert problem.scales == BlockScales(a, b, 1, 128)
    turned = problem.transposed()
    assert turned.scales == BlockScales(Matrix((0, 0, 3, 1), 4), Matrix((0, 0, 1, 3), 4), 128, 1)
    assert turned.transposed().scales == problem.scales


TILE = BlocksConfig(block_m=64, block_n=64, block_k=64)


@pytest.mark.parametrize(("config", "problem", "why"), [
    (TILE, blocks(scales=None), "blocks: the schedule is for blocks along K that have scales"),
    (TILE, blocks(dtype="fp16"), "blocks: multiplies fp8 or bf8, got fp16 and fp16"),
    (TILE, blocks(dtype_out="int32"), "out_dtype: expected fp32, fp16 or bf16, got int32"),
    (TILE, blocks(dtype_out="bf16", epilogue=Epilogue(activation="relu")),
     "blocks: writes the scaled product; its terms are a launch of their own"),
    (TILE, blocks(k=0), "K: expected 1 to 2**31 - 129, got 0"),
    (TILE, blocks(m=1 << 31), "M: expected 1 to 2**31 - 129, got 2147483648"),
    (TILE.with_knobs(block_k=256), blocks(), "tiles of powers of two from 16 up, along K up to 128"),
    (TILE.with_knobs(block_m=48), blocks(), "tiles of powers of two from 16 up, along K up to 128"),
    (TILE.with_knobs(num_warps=3), blocks(), "1, 2, 4 or 8 warps, stages and group_m of 1 or more"),
    (TILE, blocks(1 << 20, 1 << 20), f"at most {MOST_PROGRAMS} programs, got {1 << 28}"),
    (TILE.with_knobs(block_m=256, block_n=256, block_k=128), blocks(),
     "needs 131072 bytes of LDS, gfx1151 gives 65536"),
])  # fmt: skip
def test_what_blocks_refuses(config, problem, why):
    assert why in str(config.why_invalid(problem, get_gpu("gfx1151")))


BIAS = Epilogue(bias=("n", 1), dtype_bias="bf16")
ADDEND = Epilogue(addend=Matrix((0, 0, 256, 1)), dtype_addend="bf16")
CLUSTER = ClusterConfig(block_m=128, block_n=128, block_k=128, stages=4, scaled=1, tma_store=False)


@pytest.mark.parametrize(("knobs", "problem", "why"), [
    ({"scaled": 0}, blocks(), "`scaled` is for blocks of K that have scales"),
    ({}, blocks(scales=None), "`scaled` is for blocks of K that have scales"),
    ({"block_k": 64}, blocks(dtype="bf16"), "sums of 8-bit floats are scaled by blocks, or promoted"),
    ({"promote": 2}, blocks(), "scaled sums leave the tensor cores every slice"),
    ({"cluster_k": 2}, blocks(), "scaled sums leave the tensor cores every slice"),
    ({"scaled": 3}, blocks(), "one part of a tile's columns or two"),
    ({"block_m": 256, "scaled": 2}, blocks(), "two parts are of one strip"),
    ({"dual": True, "scaled": 2}, blocks(), "a dual config has one part of one strip"),
    ({"block_m": 192, "consumers": 3}, blocks(scales=(128, 128)), "tiles begin and end where 128 rows"),
    ({"block_n": 192}, blocks(), "a part's columns have one scale, got 192 of 128"),
    ({"block_n": 256}, blocks(scales=(1, 1)), "264 sums a thread"),
    # What ptxas was seen to spill: two strips of 128 columns beside anything, an addend beside the largest tiles.
    ({"block_m": 256}, blocks(scales=(1, 1), dtype_out="bf16"), "224 sums a thread, 200 fit"),
    ({"block_m": 256, "tma_store": True, "panels": 2}, blocks(dtype_out="bf16"), "216 sums a thread, 208 fit"),
    ({"block_m": 256, "tma_store": True}, blocks(), "216 sums a thread, 208 fit"),
    ({"block_n": 256, "scaled": 2}, blocks(), "224 sums a thread, 200 fit"),
    ({"block_n": 256, "scaled": 2}, blocks(scales=(1, 1), dtype_out="bf16"), "216 sums a thread, 200 fit"),
    ({"block_n": 256, "scaled": 2}, blocks(dtype_out="bf16", epilogue=BIAS), "208 sums a thread, 192 fit"),
    ({"dual": True}, blocks(dtype_out="bf16", epilogue=ADDEND), "192 sums a thread, 168 fit"),
    ({"block_m": 192, "consumers": 3}, blocks(dtype_out="bf16", epilogue=ADDEND), "128 sums a thread, 96 fit"),
])  # fmt: skip
def test_what_hopper_cluster_refuses(knobs, problem, why):
    assert CLUSTER.why_invalid(blocks(), HOPPER) is None
    assert why in str(CLUSTER.with_knobs(**knobs).why_invalid(problem, HOPPER))


@pytest.mark.parametrize("problem", [
    blocks(16, 4096, 4096, dtype_out="bf16"), blocks(512, 512, dtype_out="bf16", epilogue=Epilogue(activation="relu")),
])  # fmt: skip
def test_configs_are_ranked_and_valid(problem):
    """Those of few rows are turned."""
    ranked = scaled_configs(problem, HOPPER)
    assert len(ranked) >= 8
    assert [time for _, time in ranked] == sorted(time for _, time in ranked)
    assert all(config.why_invalid(problem, HOPPER) is None for config, _ in ranked)
    assert any(config.swapped for config, _ in ranked) == (problem.m == 16)


@pytest.mark.parametrize("more", [{}, {"layout": "nn", "dtype_b": "bf8"}, {"epilogue": BIAS, "dtype_out": "bf16"}])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (16, 4096, 4096), (333, 777, 2001), (4096, 4096, 4096)])
def test_promoted_sums_leave_the_tensor_cores_every_slice(sizes, more):
    promoted = blocks(*sizes, scales=None, precision="promoted", **more)
    config = plan(promoted, HOPPER)
    assert isinstance(config, ClusterConfig)
    assert config.scaled > 0
    usual = blocks(*sizes, scales=None, **more)
    assert getattr(plan(usual, HOPPER), "scaled", 0) == 0
    assert "`scaled` is for" in str(config.why_invalid(usual, HOPPER))
    assert "_promoted/" in promoted.key
    for name in ("gfx1201", "gfx950", "gfx90a", "gfx1151", "gfx1250") if not more else ():  # whose sums are FP32
        assert plan(promoted, get_gpu(name)) == plan(usual, get_gpu(name))


def test_tiles_without_scales_may_cut_blocks():
    """128 columns have no scale in common."""
    ranked = [config for config, _ in scaled_configs(blocks(4096, 4096, scales=None, precision="promoted"), HOPPER)]
    assert any(config.block_n == 176 for config in ranked)
    assert all(config.why_invalid(blocks(4096, 4096), HOPPER) for config in ranked if config.block_n == 176)


def test_parts_of_k_of_columns_that_do_not_fill_16_bytes():
    """They are written with masks where TMA cannot write them."""
    for n in (45, 48):
        ranked = scaled_configs(blocks(64, n, 16384, (1, 128)), HOPPER)
        assert {config.tma_store for config, _ in ranked if config.split_k > 1} == {n == 48}
