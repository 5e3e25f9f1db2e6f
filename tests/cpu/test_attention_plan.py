"""Attention without a GPU: the band that masks make, the reference against torch, plans and their constraints."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest

from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.gpu import GPUS, MOST_PROGRAMS, get_gpu
from laneloom.ops.attention import execute, reference
from laneloom.ops.attention.config import AttentionConfig, lds_room, plan, plan_backward
from laneloom.ops.attention.config_decode import DecodeConfig, DecodeProblem, HopperDecodeConfig, HopperRangesConfig
from laneloom.ops.attention.config_hopper import HopperBackwardConfig, HopperBackwardWideConfig, HopperForwardConfig
from laneloom.ops.attention.hopper_gradients import waves
from laneloom.ops.attention.plan_backward import steps_of
from laneloom.ops.attention.plan_decode import plan_decode
from laneloom.ops.attention.plan_forward import section
from laneloom.ops.attention.problem import AttentionProblem, band

ROLES = ("forward", "query", "key")


def problem(
    d=64, d_v=None, queries=512, keys=512, batch=2, dtype="fp16", heads=4, kv_heads=2, scale=0.1, **rest
) -> AttentionProblem:
    return AttentionProblem(
        batch, heads, kv_heads, queries, keys, d, d if d_v is None else d_v, dtype, scale, **rest
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((5, 5, "none"), (None, None)), ((5, 5, "bottom_right"), (None, 0)), ((5, 8, "bottom_right"), (None, 3)),
        ((5, 8, "top_left"), (None, 0)), ((1, 8, "bottom_right"), (None, None)), ((8, 5, "bottom_right"), (None, -3)),
        ((50, 50, "none", 7, 2), (-7, 2)), ((50, 60, "none", 7, None), (3, None)),
        ((50, 50, "none", 49, 49), (None, None)),
        ((50, 50, "bottom_right", 7, 2), (-7, 0)), ((4, 4, "none", 10**12, 10**12), (None, None)),
    ],
)  # fmt: skip
def test_band(arguments, expected):
    """An end that cuts nothing is open, so that it makes no kernel of its own."""
    assert band(*arguments) == expected


def test_band_stays_in_32_bits():
    first, last = band(1 << 29, 1 << 29, "none", 10**15, 10**15)
    assert (first, last) == (None, None)
    first, last = band(3, 1 << 29, "top_left", 0, None)
    assert (first, last) == (0, 0)


def test_pairs_are_what_the_mask_shows():
    for queries, keys, first, last in ((7, 9, -2, 3), (9, 7, None, -4), (5, 5, 2, None), (4, 4, 9, None)):
        distance = np.arange(keys)[None, :] - np.arange(queries)[:, None]
        seen = (distance >= (-99 if first is None else first)) & (distance <= (99 if last is None else last))
        assert problem(queries=queries, keys=keys, first=first, last=last).pairs == seen.sum()


def test_flops_and_key():
    whole, half = problem(), problem(last=0)
    assert whole.flops == 4 * 2 * 4 * 512 * 512 * 64
    assert half.pairs == 512 * 513 // 2
    assert whole.key == "attention/fp16/b2_h4:2_n512:512_d64:64"
    assert half.key != whole.key


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("role", ROLES)
def test_every_head_dimension_has_a_plan(name, role):
    gpu = get_gpu(name)
    for d in range(16, 513, 8):
        for d_v in (16, d, 512):
            for queries in (1, 17, 512):
                case = problem(d, d_v, queries)
                config = plan(case, gpu, role)
                assert config.why_invalid(case, gpu) is None
                assert config.role == role
                assert config.lds_bytes(case) <= (gpu.lds_bytes if "hopper" in config.schedule else lds_room(gpu))


def test_hopper_takes_its_own_schedule_where_it_can():
    gpu = get_gpu("sm_90a")
    assert plan(problem(128), gpu).schedule == plan(problem(256), gpu).schedule == "hopper_forward"
    assert plan(problem(264), gpu).schedule == plan(problem(128, scale=-1.0), gpu).schedule == "forward"
    for d, d_v, kind in ((64, 64, "_narrow"), (64, 72, ""), (128, 128, "")):
        assert [config.schedule for config in plan_backward(problem(d, d_v), gpu)] == [f"hopper_backward{kind}"]
    assert [config.schedule for config in plan_backward(problem(64, 136), gpu)] == ["hopper_backward_wide"]
    for case, deterministic in ((problem(264), False), (problem(64), True), (problem(256), True)):
        roles = [config.role for config in plan_backward(case, gpu, deterministic=deterministic)]
        assert roles == ["query", "key"]
    # Few tiles: smaller ones, so that no multiprocessor idles.
    assert plan(problem(64, queries=512, batch=2, heads=8, kv_heads=8), gpu).consumers == 1
    assert plan(problem(64, queries=8192, keys=8192, batch=2, heads=8, kv_heads=8), gpu).consumers == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": 24}, "multiple of 16"), ({"consumers": 4}, "consumers 1 to 3"), ({"stages": 3}, "shared memory"),
        ({"columns": 256}, "registers"),
    ],
)  # fmt: skip
def test_hopper_configs_that_cannot(change, words):
    gpu = get_gpu("sm_90a")
    assert words in str(HopperForwardConfig(**{"columns": 160} | change).why_invalid(problem(128), gpu))
    assert "wgmma" in str(HopperForwardConfig(columns=128).why_invalid(problem(128), get_gpu("gfx1151")))
    assert "shared memory" in str(HopperBackwardConfig(stages=8).why_invalid(problem(128), gpu))
    assert "16 to 128" in str(HopperBackwardConfig().why_invalid(problem(136), gpu))
    assert "16 to 256" in str(HopperBackwardWideConfig().why_invalid(problem(264), gpu))
    assert "shared memory" in str(HopperBackwardWideConfig(stages=3).why_invalid(problem(256), gpu))


@pytest.mark.parametrize("d", [64, 128, 256])
def test_heads_of_keys_are_shared_where_tiles_are_few(d):
    gpu, sizes = get_gpu("sm_90a"), {"queries": 512, "keys": 512, "kv_heads": 2}

    def sharers_of(**changes):
        case = problem(d, **{"batch": 1, "heads": 12, **sizes, **changes})
        (config,) = plan_backward(case, gpu)
        assert case.group % config.sharers == 0
        assert config.tiles(case) == case.batch * case.kv_heads * config.sharers * -(-case.keys // 128)
        return config.sharers

    assert sharers_of() > 1
    assert sharers_of(last=0) > 1
    assert sharers_of(heads=2) == 1
    assert sharers_of(batch=64) == 1
    assert sharers_of(batch=64, last=0, queries=4096, keys=4096) == 1
    assert "divide the 6 heads" in str(HopperBackwardConfig(sharers=4).why_invalid(problem(128, heads=12), gpu))


def test_blocks_that_a_tile_of_keys_visits():
    config = HopperBackwardConfig()
    assert steps_of(problem(128, queries=300, keys=300), config).tolist() == [5, 5, 5]
    assert steps_of(problem(128, queries=300, keys=300, last=0), config).tolist() == [5, 3, 1]
    assert steps_of(problem(128, queries=100, keys=300, last=0), config).tolist() == [2, 0, 0]
    assert steps_of(problem(128, queries=300, keys=300, first=-10, last=10), config).tolist() == [3, 4, 2]


def test_sections_of_heads():
    """A wave of tiles where they are short, equal sections of some waves where the last one would be waited for."""
    config = HopperForwardConfig(columns=128, consumers=2)

    def heads_of(batch, heads, n, d=128, **rest):
        return section(problem(d, batch=batch, heads=heads, kv_heads=heads, queries=n, keys=n, last=0, **rest), config)

    assert section(problem(128), config) == 1, "without a mask all tiles are as long as each other"
    assert 16 <= heads_of(32, 16, 512) <= 40
    assert heads_of(1, 16, 16384) in (2, 4, 6, 8)
    assert 64 % heads_of(4, 16, 4096) == 0 or 64 % heads_of(4, 16, 4096) >= 6
    assert 1 <= heads_of(1, 3, 100) <= 3
    assert section(problem(128, batch=0, last=0), config) == 1


def test_decode_splits_the_keys_until_the_gpu_is_full():
    gpu = get_gpu("sm_90a")
    one = DecodeProblem(1, 32, 8, 1, 131072, 128, 128, "bf16")
    config = plan_decode(one, gpu, boxed=False)
    assert (config.schedule, config.splits) == ("decode", 132)
    assert config.programs(one) == 8 * 132
    assert plan_decode(dataclasses.replace(one, batch=512), gpu, boxed=False).splits == 1
    sixteen = dataclasses.replace(one, batch=16)
    assert plan_decode(sixteen, gpu, boxed=False).programs(sixteen) == 8 * 128, "no more than run at once"
    assert plan_decode(dataclasses.replace(one, keys=100), gpu, boxed=False).splits == 1, "some blocks for a program"
    paged = plan_decode(dataclasses.replace(one, page=16), gpu, boxed=False)
    assert isinstance(paged, DecodeConfig)
    assert paged.columns == 16
    assert "page" in str(dataclasses.replace(paged, columns=32).why_invalid(dataclasses.replace(one, page=48), gpu))
    assert "32 steps at once" in str(paged.why_invalid(one, get_gpu("gfx1250")))
    for page in (0, 16, 48):
        across = plan_decode(dataclasses.replace(one, page=page), get_gpu("gfx1250"))
        assert isinstance(across, DecodeConfig)
        assert across.columns == 32, "what an instruction takes, from two pages if they are small"
        assert "from 16 on" in str(dataclasses.replace(across, columns=48).why_invalid(one, get_gpu("gfx1250")))
    for name, d in (("gfx1151", 12), ("sm_90a", 12), ("sm_90a", 2048)):
        with pytest.raises(UnsupportedError, match="16 to 512"):
            plan_decode(dataclasses.replace(one, d=d), get_gpu(name))


def test_hopper_decodes_with_as_many_programs_as_keep_the_memory_busy():
    """Short caches in one run, caches of one sequence in runs, in clusters where that takes longer than reading; long
    ones, and several sequences whose heads are few, by programs that divide all keys evenly."""
    gpu = get_gpu("sm_90a")
    cases = (
        (1, 131072, 128, 128, 0), (16, 8192, 128, 128, 0), (4, 2048, 128, 4, 1), (40, 8192, 128, 264, 0),
        (16, 4096, 256, 132, 0), (1, 50, 128, 1, 1), (1, 8192, 128, 8, 8), (64, 2048, 128, 1, 1),
    )  # fmt: skip
    for batch, keys, d, programs, cluster in cases:
        case = DecodeProblem(batch, 32, 8 if d == 128 else 4, 1, keys, d, d, "bf16")
        config = plan_decode(case, gpu)
        if isinstance(config, HopperRangesConfig):
            assert (config.ranges, 0) == (programs, cluster)
        else:
            assert isinstance(config, HopperDecodeConfig)
            assert (config.splits, config.cluster) == (programs, cluster)
        for change in ({"d": 264}, {"page": 24}):
            assert config.why_invalid(dataclasses.replace(case, **change), gpu) is not None
        assert plan_decode(dataclasses.replace(case, d=264), gpu).schedule == "decode"
        assert plan_decode(case, get_gpu("gfx1151")).schedule == "decode"
        boxes = [config.box(dataclasses.replace(case, page=page)) for page in (0, 16, 48, 64, 96, 256)]
        assert boxes == [64, 16, 16, 64, 32, 64]


@pytest.mark.parametrize("gpu", [get_gpu("sm_90a"), dataclasses.replace(get_gpu("sm_90a"), bandwidth_gbs=3350)])
def test_every_decoding_that_hopper_plans_is_valid(gpu):
    generator = random.Random(0)
    seen = set()
    for _ in range(1200):
        group, kv_heads = generator.choice((1, 2, 3, 4, 7, 8, 40)), generator.choice((1, 2, 3, 5, 8, 12, 32))
        d, d_v = (8 * generator.randrange(2, 33) for _ in range(2))
        case = DecodeProblem(
            generator.choice((1, 2, 5, 64)), group * kv_heads, kv_heads, generator.choice((1, 1, 2, 17)),
            generator.choice((0, 1, 50, 65, 1000, 8192, 100_000)), d, generator.choice((d, d_v)), "bf16",
            left=generator.choice((None, 100)), page=generator.choice((0, 0, 16, 80)),
            adjacent=generator.random() < 0.7,
        )  # fmt: skip
        config = plan_decode(case, gpu)
        assert isinstance(config, (HopperDecodeConfig, HopperRangesConfig))
        assert config.why_invalid(case, gpu) is None
        assert config.abreast == 1 or case.adjacent
        wide = case.abreast(config.abreast)
        assert wide.row_tiles == case.row_tiles, "no key is read more often than by one head alone"
        runs = config.schedule == "hopper_decode" and (config.cluster > 1, config.clusters > 1)
        seen.add((runs, config.abreast > 1))
    assert len(seen) >= 8


def test_what_decoding_on_hopper_refuses():
    gpu = get_gpu("sm_90a")
    case = DecodeProblem(1, 12, 6, 1, 4096, 80, 80, "bf16", adjacent=True)
    config = HopperDecodeConfig(splits=16, stages=3, cluster=16, abreast=2)
    assert config.why_invalid(case, gpu) is None
    assert "divide 16" in str(dataclasses.replace(config, cluster=5).why_invalid(case, gpu))
    assert "1 to 16" in str(dataclasses.replace(config, splits=32, cluster=32).why_invalid(case, gpu))
    assert "divide 6" in str(dataclasses.replace(config, abreast=4).why_invalid(case, gpu))
    assert "side by side" in str(config.why_invalid(dataclasses.replace(case, adjacent=False), gpu))
    assert "256" in str(dataclasses.replace(config, abreast=6).why_invalid(case, gpu))
    many = dataclasses.replace(case, queries=1 << 18)
    ranges = HopperRangesConfig(ranges=132, stages=3, abreast=2)
    for one in (config, ranges):
        assert "rows" in str(one.why_invalid(many, gpu))
        assert "stages must be at least 1, got 0" in str(dataclasses.replace(one, stages=0).why_invalid(case, gpu))
    assert ranges.why_invalid(case, gpu) is None
    for count in (0, 1025):
        assert f"1 to 1024, got {count}" in str(dataclasses.replace(ranges, ranges=count).why_invalid(case, gpu))
    assert "tiles" in str(ranges.why_invalid(dataclasses.replace(case, batch=1 << 20, keys=1 << 20), gpu))


def test_cdna_keeps_whole_rows_of_the_result_in_a_program():
    for name, tiles in (("gfx942", (64, 64, 32)), ("gfx950", (64, 64, 64))):
        gpu = get_gpu(name)
        for d, rows in zip((64, 256, 512), tiles, strict=True):
            config = plan(problem(d), gpu)
            assert (config.rows, config.parts(problem(d))) == (rows, 1)
            assert config.why_invalid(problem(d, batch=(1 << 32) // 8, queries=rows), gpu) is not None
        decoding = DecodeProblem(1, 32, 8, 1, 131072, 128, 128, "bf16")
        config = plan_decode(decoding, gpu)
        at_once = gpu.lds_bytes // config.lds_bytes(decoding) * gpu.compute_units
        assert config.programs(decoding) <= min(at_once, 8 * gpu.compute_units), "no more than run at once"


@pytest.mark.parametrize("d", [0, 8, 12, 20, 520])
def test_head_dimensions_that_are_refused(d):
    for case in (problem(d, 64), problem(64, d)):
        with pytest.raises(UnsupportedError, match="must be a multiple of 8 from 16 to 512"):
            plan(case, get_gpu("gfx1151"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": 48, "num_warps": 3}, "powers of two"), ({"columns": 8}, "from 16 on"), ({"num_warps": 2}, "16 rows"),
        ({"rows": 256, "num_warps": 16}, "bytes of LDS"), ({"depth": 32}, "16 steps at once"),
    ],
)  # fmt: skip
def test_configs_that_cannot(change, words):
    knobs = {"role": "forward", "rows": 64, "columns": 32, "out": 64, "num_warps": 4} | change
    assert words in AttentionConfig(**knobs).why_invalid(problem(256), get_gpu("gfx1151"))


def test_other_refusals():
    config = plan(problem(), get_gpu("gfx1151"))
    assert "fp16 or bf16" in config.why_invalid(problem(dtype="fp32"), get_gpu("gfx1151"))
    assert "programs" in config.why_invalid(problem(batch=MOST_PROGRAMS), get_gpu("gfx1151"))
    assert "fewer than" in config.why_invalid(problem(keys=1 << 30), get_gpu("gfx1151"))


def test_window_and_causal_words():
    assert execute.band_of(True, (-1, 3)) == ("bottom_right", None, 3)
    assert execute.band_of("top_left", None) == ("top_left", None, None)
    for causal, window in ((1.5, None), ("upper", None), (False, (1,)), (False, (True, 2)), (False, (0.5, 1))):
        with pytest.raises(ArgumentError):
            execute.band_of(causal, window)


def test_reference_is_torchs_in_float64():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    shapes = ((2, 4, 9, 5), (2, 2, 7, 5), (2, 2, 7, 3))
    q, k, v = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    mask = torch.arange(7)[None, :] <= torch.arange(9)[:, None]
    scores = (q @ k.repeat_interleave(2, 1).mT * 0.3).masked_fill(~mask, -torch.inf)
    out, lse = scores.softmax(-1) @ v.repeat_interleave(2, 1), scores.logsumexp(-1)
    grad, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    theirs = torch.autograd.grad((out, lse), (q, k, v), (grad, grad_lse))
    arrays = [x.detach().numpy() for x in (q, k, v)]
    truth = reference.attention(*arrays, causal="top_left", scale=0.3, grad=grad.numpy(), grad_lse=grad_lse.numpy())
    for mine, other in zip(truth, (out, lse, *theirs), strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), rtol=1e-12, atol=1e-12)


def test_reference_of_nothing_seen():
    q, k, v = np.ones((1, 1, 3, 4)), np.ones((1, 1, 1, 4)), np.ones((1, 1, 1, 2))
    truth = reference.attention(q, k, v, causal="bottom_right")
    assert not truth.out[:, :, :2].any()
    assert np.isinf(truth.lse[:, :, :2]).all()
    np.testing.assert_allclose(truth.lse[0, 0, 2], 2.0)


def test_float8():
    """8-bit operands, forward: Hopper's own schedule, RDNA's general one; all else is refused with its reason."""
    gpu = get_gpu("sm_90a")
    case = problem(128, queries=4096, keys=4096, dtype="fp8", heads=16, kv_heads=4, out="bf16")
    config = plan(case, gpu)
    assert (config.schedule, config.consumers, config.rows) == ("hopper_forward_float8", 3, 192)
    assert plan(problem(64, dtype="fp8", out="fp16"), gpu).consumers == 1, "few tiles: small ones"
    for d, d_v in itertools.product(range(16, 257, 16), range(16, 129, 16)):
        for queries in (1, 4096):
            wide = dataclasses.replace(case, d=d, d_v=d_v, queries=queries)
            chosen = plan(wide, gpu)
            assert chosen.why_invalid(wide, gpu) is None
            assert chosen.lds_bytes(wide) + 2048 <= gpu.lds_bytes
    for change, words in (
        ({"d": 72, "d_v": 64}, "D of 8-bit operands"), ({"d_v": 144}, "from 16 to 128"), ({"scale": 0.0}, "above 0"),
        ({"out": ""}, "O fp16 or bf16"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=words):
            plan(dataclasses.replace(case, **change), gpu)
    assert "multiplied by wgmma" in config.why_invalid(case, get_gpu("gfx1201"))
    for name in ("gfx1151", "gfx1201"):
        general = plan(case, get_gpu(name))
        assert general == plan(dataclasses.replace(case, dtype="fp16", out=""), get_gpu(name))
        assert "must be fp16 or bf16" in general.why_invalid(case, gpu)
        with pytest.raises(UnsupportedError, match="multiples of 16"):
            plan(dataclasses.replace(case, d=72), get_gpu(name))
    for name in ("sm_90a", "gfx1151"):
        with pytest.raises(UnsupportedError, match=r"no candidate|must be fp16 or bf16"):
            plan_backward(case, get_gpu(name))
    for change, words in (({"transposers": 4}, "transposers 1 to 3"), ({"stages": 4}, "shared memory")):
        assert words in dataclasses.replace(config, **change).why_invalid(case, gpu)
    sizes = case.bytes, dataclasses.replace(case, dtype="bf16", out="").bytes
    assert sizes[0] < sizes[1] < 2 * sizes[0]


@pytest.mark.parametrize(
    ("heads", "tiles", "want"),
    [
        (64, 32, (4, 128)), (16, 128, (2, 128)), (8, 64, (2, 128)), (512, 4, (32, 128)), (3, 100, (2, 200)),
        (1, 600, (1, 150)),
    ],
)  # fmt: skip
def test_the_backward_mixes_as_many_heads_as_begin_together(heads, tiles, want):
    case = problem(128, batch=1, heads=heads, kv_heads=heads, last=0)
    assert waves(case, tiles, 132) == want
    assert -(-heads * tiles // want[1]) % 2 == 0, "the last wave has no second one"
    assert waves(problem(128, batch=1, heads=heads, kv_heads=heads), tiles, 132)[1] == heads * tiles, "all are as long"
    assert waves(case, tiles, heads * tiles) == (heads, heads * tiles), "all begin at once"
