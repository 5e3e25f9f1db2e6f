"""Problems, configs and plans of products with weights of few bits: all pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError
from laneloom.gpu import MOST_PROGRAMS, get_gpu
from laneloom.ops.matmul.problem import Matrix
from laneloom.ops.quantized_matmul.config import QuantizedConfig, parse_config
from laneloom.ops.quantized_matmul.config_fragments import FragmentsConfig
from laneloom.ops.quantized_matmul.plan import checked_config, plan
from laneloom.ops.quantized_matmul.problem import QuantizedProblem

GPUS = ("gfx1100", "gfx1151", "gfx1201", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1250", "sm_90a")
AMD = [name for name in GPUS if name != "sm_90a"]
GFX1151 = get_gpu("gfx1151")
TILE = QuantizedConfig(block_m=16, block_n=16, block_k=32)


def product(m: int = 64, n: int = 256, k: int = 512, **how) -> QuantizedProblem:
    return QuantizedProblem.contiguous(m, n, k, **how)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("group", [0, 16, 32, 128, 1024])
def test_every_gpu_has_a_plan(name, group):
    for m, n, k in ((1, 1, 2), (1, 4096, 4096), (3, 100, 1000), (33, 5000, 200), (5000, 128, 64)):
        for how in ({}, {"dtype_w": "fp8", "dtype": "bf16", "batch": 7}):
            problem, gpu = product(m, n, k, group=group, **how), get_gpu(name)
            assert plan(problem, gpu).why_invalid(problem, gpu) is None


@pytest.mark.parametrize("name", AMD)
def test_a_plan_goes_by_rows(name):
    """One row is multiplied by multiply-adds, up to 16 by a matrix instruction's rows; few have K-tiles of several
    small groups."""
    for m, block_m, block_k in (
        (1, 1, 256), (2, 16, 128), (16, 16, 128), (17, 32, 64), (64, 32, 64), (65, 64, 16), (4096, 64, 16)
    ):  # fmt: skip
        if m > 64 and isinstance(plan(product(m, 65536, 4096), get_gpu(name)), FragmentsConfig):
            many = plan(product(m, 65536, 4080), get_gpu(name))  # K of no whole groups
            assert isinstance(many, QuantizedConfig)
            assert many.block_m == block_m
            continue
        config = plan(product(m, 65536, 4096), get_gpu(name))
        assert isinstance(config, QuantizedConfig)
        assert (config.block_m, config.split_k, config.stages) == (block_m, 1, 1)
        small = plan(product(m, 65536, 4096, group=16), get_gpu(name))
        assert isinstance(small, QuantizedConfig)
        assert small.block_k == block_k
        few = plan(product(m, 65536, 4096, group=16, zeros=True), get_gpu(name))
        assert isinstance(few, QuantizedConfig)
        assert few.block_k == (block_k if m == 1 else min(block_k, 64))


@pytest.mark.parametrize(("name", "how", "tile"), [
    ("gfx942", {}, (64, 64, 128)), ("gfx1201", {}, (64, 128, 64)), ("gfx1151", {}, (128, 64, 64)),
    ("gfx1201", {"group": 0, "dtype_w": "int8"}, (128, 64, 64)), ("gfx1201", {"group": 32}, (64, 128, 128)),
    ("gfx1201", {"group": 32, "dtype_w": "fp4", "dtype_scale": "e8m0", "dtype": "bf16"}, (128, 64, 64)),
    ("gfx942", {"group": 32}, (64, 64, 128)), ("gfx1151", {"group": 32}, None),
    ("gfx1151", {"dtype_w": "fp8"}, None), ("gfx90a", {}, None),
    ("gfx942", {"group": 16}, None), ("gfx1201", {"k": 4160, "group": 32}, (64, 128, 64)), ("gfx1201", {"k": 80}, None),
    ("gfx942", {"m": 128}, None), ("gfx1201", {"m": 64}, None),
    ("gfx1201", {"batch": 8, "ragged": True}, (64, 128, 64)), ("gfx1201", {"batch": 16, "ragged": True}, (32, 128, 64)),
    ("gfx1151", {"batch": 16, "ragged": True, "group": 32}, (32, 64, 64)),
    ("gfx1151", {"m": 4096, "batch": 8, "ragged": True, "dtype_w": "fp8"}, (64, 64, 64)),
    ("gfx942", {"batch": 16, "ragged": True}, (32, 64, 128)),
    ("gfx942", {"batch": 16, "ragged": True, "group": 32, "k": 2880}, (64, 128, 64)),
    ("gfx1201", {"m": 4096, "batch": 8, "ragged": True, "group": 0}, (128, 64, 64)),
    ("gfx1201", {"batch": 64, "ragged": True}, None), ("gfx942", {"n": 256, "batch": 16, "ragged": True}, None),
])  # fmt: skip
def test_many_rows_are_multiplied_by_fragments(name, how, tile):
    """On AMD, where K is whole K-tiles and there are waves enough without parts of K; in groups more than 16 each."""
    problem, gpu = product(**{"m": 512, "n": 4096, "k": 4096} | how), get_gpu(name)
    config = plan(problem, gpu)
    assert isinstance(config, FragmentsConfig) == (tile is not None)
    if isinstance(config, FragmentsConfig):
        assert (config.block_m, config.block_n, config.block_k) == tile
        assert parse_config(config.text) == config


FRAGMENTS = FragmentsConfig(block_m=64, block_n=64, block_k=64)
ODD = Matrix((0, 0, 516, 1))


@pytest.mark.parametrize(("config", "problem", "why"), [
    (FRAGMENTS, product(dtype="fp32"), "multiplies fp16 and bf16, got fp32"),
    (FRAGMENTS, product(dtype_out="int32"), "out_dtype: expected fp32, fp16 or bf16, got int32"),
    (FRAGMENTS, replace(product(), k=0), "K: expected 1 to 1073741824, got 0"),
    (FRAGMENTS.with_knobs(block_m=8), product(), "blocks of 16 to 256 rows and columns"),
    (FRAGMENTS.with_knobs(block_k=16), product(), "block_k of 32, 64 or 128, got 16"),
    (FRAGMENTS.with_knobs(num_warps=8), product(), "warps of 16 columns or more"),
    (FRAGMENTS, product(group=16), "groups of 32 or more, with zeros of whole K-tiles, got 16"),
    (FRAGMENTS, product(group=32, zeros=True), "with zeros of whole K-tiles, got 32"),
    (FRAGMENTS, product(k=544, group=128), "K of whole K-tiles and groups, got 544"),
    (FRAGMENTS, product(batch=1025, ragged=True), "at most 1024 groups of rows, got 1025"),
    (FRAGMENTS, replace(product(), x=ODD), "rows of x along K that begin at 16 bytes"),
    (FRAGMENTS, replace(product(), values=replace(ODD, strides=(0, 0, 1, 256))), "rows of weight along K that begin"),
    (FRAGMENTS, replace(product(), values=replace(ODD, strides=(0, 0, 1 << 23, 1))), "rows of at most 4194304"),
    (FRAGMENTS, product(1 << 20, 1 << 22), f"at most {MOST_PROGRAMS} programs, got {1 << 30}"),
])  # fmt: skip
def test_what_fragments_refuses(config, problem, why):
    assert why in str(config.why_invalid(problem, GFX1151))


def test_fragments_are_amd_s():
    for name in ("gfx90a", "gfx1250", "sm_90a"):
        assert "for RDNA 3, 3.5 and 4, gfx942 and gfx950, got " in str(FRAGMENTS.why_invalid(product(), get_gpu(name)))


def test_k_goes_in_parts_where_waves_are_few():
    """MI300X has 1216 SIMDs, Strix Halo 80."""
    parts = {name: plan(product(1, 4096, 4096), get_gpu(name)).split_k for name in ("gfx942", "gfx1151")}  # pyright: ignore
    assert parts == {"gfx942": 5, "gfx1151": 1}
    few = plan(product(1, 64, 512), get_gpu("gfx942"))
    assert few.parts(product(1, 64, 512)) == 2, "as many as there are K-tiles"


def experts(m: int, groups: int, **how) -> QuantizedProblem:
    return product(m, 256, 512, batch=groups, ragged=True, **how)


def test_tiles_of_rows_in_groups():
    """No groups make more than the bound, some make as many; on average they are about what is likely."""
    generator = np.random.default_rng(1)
    for m, groups, rows in ((1, 8, 16), (40, 3, 16), (100, 128, 8), (500, 20, 16), (3000, 8, 64), (7, 1, 16)):
        problem = experts(m, groups)
        most = problem.row_tiles(rows)
        counts = np.stack([np.bincount(generator.integers(0, groups, m), minlength=groups) for _ in range(400)])
        tiles = (-(-counts // rows)).sum(1)
        assert tiles.max() <= most
        begun = min(groups, m)
        full = [1] * (begun - 1) + [m - begun + 1]  # each but the last has one row
        assert sum(-(-x // rows) for x in full) == most
        assert abs(problem.likely_row_tiles(rows) / tiles.mean() - 1) < 0.04
    assert product(33, batch=2).likely_row_tiles(16) == product(33, batch=2).row_tiles(16) == 6


def test_what_is_typical_of_groups():
    """The rows of a group go by the mean of those that have some; a weight is read once if it is chosen."""
    assert [(x.m, x.batches) for x in (experts(m, 128).typical for m in (1, 4, 1024, 4096))] == [
        (1, 1), (1, 4), (10, 128), (37, 128)]  # fmt: skip
    one = experts(20, 1)
    assert (one.typical.m, one.typical.batches, one.typical.ragged) == (20, 1, False)
    assert product(5).typical == product(5)
    problem = experts(1000, 4, bias="fp32")
    assert problem.flops == 2 * 1000 * 256 * 512
    of_expert = 256 * (512 // 2 + 2 * 4 + 4)
    assert problem.bytes == 4 * of_expert + 1000 * 2 * (512 + 256)
    assert problem.key.endswith("b4_m1000_n256_k512/bias_fp32/ragged")


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_a_plan_for_groups(name):
    for m, groups in ((1, 1), (3, 40), (64, 8), (5000, 8), (9000, 300)):
        problem, gpu = experts(m, groups), get_gpu(name)
        chosen = plan(problem, gpu)
        assert chosen.why_invalid(problem, gpu) is None
        assert chosen.parts(problem) == 1
    many = experts(5000, 5000, group=16)  # 16: `tiles` alone
    with pytest.raises(UnsupportedError, match="tiles: at most 4096 groups of rows, got 5000"):
        plan(many, get_gpu("gfx1151"))


def test_a_problem():
    problem = product(3, 64, 200, zeros=True, bias="fp32", dtype_scale="e8m0", group=32)
    assert (problem.groups, problem.k_stored, problem.has_bias, problem.batches) == (7, 100, True, 1)
    assert problem.flops == 2 * 3 * 64 * 200
    assert problem.bytes == 3 * 200 * 2 + 64 * (100 + 7 + 7 + 4) + 3 * 64 * 2
    assert problem.key == "quantized_matmul/nnnn/fp16_int4_e8m0_fp16/g32/b1_m3_n64_k200/zeros/bias_fp32"
    sums = problem.of_sums()
    assert (sums.dtype_out, sums.has_bias, sums.out.strides) == ("fp32", False, (0, 0, 64, 1))
    assert product(k=100, group=128) == product(k=100, group=0), "one group is the row"
    batch = product(3, 64, 64, batch=5, dtype_w="int8")
    assert batch.values.strides == (0, 64 * 64, 64, 1)
    with pytest.raises(ArgumentError, match="k: expected an even K of fp4, got 33"):
        product(k=33, dtype_w="fp4")


def test_text_and_back():
    config = TILE.with_knobs(split_k=4)
    assert parse_config(config.text) == config
    assert parse_config("tiles:block_m=16,block_n=16,block_k=32") == TILE
    for text, message in (
        ("dot:", "expected a schedule of tiles"), ("tiles:rows=3", "unknown knob 'rows'"), ("tiles:", "needs block_m"),
        ("tiles:block_m=x", "knob block_m must be of type int, got 'x'"), (3, "expected a config or its text, got 3"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=f"^config: .*{message}"):
            parse_config(text)


@pytest.mark.parametrize(("config", "problem", "why"), [
    (TILE, product(dtype="fp32"), "tiles: multiplies fp16 and bf16, got fp32"),
    (TILE, product(dtype_out="int32"), "out_dtype: expected fp32, fp16 or bf16, got int32"),
    (TILE, replace(product(), k=0), "K: expected 1 to 1073741824, got 0"),
    (TILE, product(m=1 << 31), "M: expected 1 to 1073741824, got 2147483648"),
    (TILE.with_knobs(block_n=24), product(), "blocks of powers of two, along N and K from 16 on"),
    (TILE.with_knobs(block_k=8), product(), "blocks of powers of two, along N and K from 16 on"),
    (TILE.with_knobs(block_m=8), product(), "block_m of 1, or of 16 to 256 rows, got 8"),
    (TILE.with_knobs(block_m=512), product(), "block_m of 1, or of 16 to 256 rows, got 512"),
    (TILE.with_knobs(block_m=1), product(), "block_m of 1 is for a single row, got M = 64"),
    (TILE.with_knobs(block_k=512), product(group=32), "block_k of at most 8 groups of 32, got 512"),
    (TILE.with_knobs(block_k=256), product(group=32, zeros=True), "block_k of at most 4 groups of 32, got 256"),
    (TILE.with_knobs(num_warps=3), product(), "1, 2, 4 or 8 warps, stages and group_m of 1 or more"),
    (TILE.with_knobs(split_k=65), product(), "split_k of 1 to 64, got 65"),
    (TILE, product(1 << 20, 1 << 20), f"at most {MOST_PROGRAMS} programs, got {1 << 32}"),
    (TILE.with_knobs(block_m=256, block_n=256, block_k=128), product(), "needs 131072 bytes of LDS, gfx1151 gives "),
])  # fmt: skip
def test_what_tiles_refuses(config, problem, why):
    assert why in str(config.why_invalid(problem, GFX1151))


def test_errors_of_plans():
    with pytest.raises(UnsupportedError, match=r"multiplies fp16 and bf16, got fp32 \(no schedule can do quantized_"):
        plan(product(dtype="fp32"), GFX1151)
    with pytest.raises(InvalidConfigError, match=r"^config tiles:.* cannot run: tiles: block_m of 1 is for a single "):
        checked_config(product(), GFX1151, TILE.with_knobs(block_m=1))


def test_large_groups_are_scaled_in_spans():
    for group, span in ((0, 32), (32, 32), (256, 256), (1024, 256)):
        assert TILE.span(product(k=4096, group=group)) == span
    assert TILE.with_knobs(block_k=128).span(product(k=4096, group=32)) == 128, "a K-tile of four groups"
    assert TILE.with_knobs(split_k=64).parts(product(k=4096, group=1024)) == 16
