"""What warm calls of decoding and of attention on 8-bit floats hand to the driver, held against their operands."""

from __future__ import annotations

from dataclasses import replace
from math import e, gcd, log2

import pytest

torch = pytest.importorskip("torch")

from attention_driver import (  # noqa: E402
    COUNTER,
    GPU,
    MOST_RELATIVE,
    PROCESSORS,
    address_of,
    assert_same,
    boxed,
    forget,
    stand_in,
    steps,
)

import laneloom  # noqa: E402
from laneloom.codegen import cuda_call  # noqa: E402
from laneloom.ops.attention import decode, hopper_decode_call, torch_decode, torch_float8, torch_op  # noqa: E402
from laneloom.ops.attention.config import plan  # noqa: E402
from laneloom.ops.attention.config_decode import HopperDecodeConfig, HopperRangesConfig  # noqa: E402
from laneloom.ops.attention.execute import Band, problem_of  # noqa: E402
from laneloom.ops.attention.hopper_launch import forward_section  # noqa: E402
from laneloom.ops.attention.kernels import hopper_forward_float8  # noqa: E402
from laneloom.ops.attention.plan_decode import plan_decode  # noqa: E402


@pytest.fixture
def driver(monkeypatch):
    """The driver to which launches on the CPU's tensors go."""
    found, _ = stand_in(monkeypatch, (hopper_decode_call, hopper_forward_float8), (decode, torch_op))
    monkeypatch.setattr(cuda_call, "_MOST_ADDRESSES", 1)  # maps of the last call are forgotten
    forget(torch_decode, torch_float8)
    yield found
    forget(torch_decode, torch_float8)


@pytest.fixture
def rooms(monkeypatch):
    """What decoding takes for its parts: addresses and sizes."""
    found, make = [], torch.empty_strided

    def note(shape, strides, **options):
        x = make(shape, strides, **options)
        if len(shape) == 1:
            found.append((x.data_ptr(), x.numel()))
        return x

    monkeypatch.setattr(torch, "empty_strided", note)
    return found


#: heads, of keys, queries, keys, D, D of values, page, window; what runs
DECODING = {
    "a cluster": ((32, 8, 1, 4096, 128, 128, 0, None), HopperDecodeConfig(stages=3, splits=4, cluster=4, alone=True)),
    "a large cluster": ((4, 1, 1, 8192, 64, 64, 0, None), HopperDecodeConfig(stages=9, splits=16, cluster=16)),
    "clusters": ((8, 2, 1, 16384, 128, 128, 0, None), HopperDecodeConfig(stages=2, splits=18, cluster=3, early=True)),
    "runs of their own": ((5, 5, 1, 32768, 24, 24, 0, None), HopperDecodeConfig(stages=7, splits=8, alone=True)),
    "one run": ((16, 2, 3, 64, 64, 64, 0, None), HopperDecodeConfig(stages=2, splits=1)),
    "pages, a window": ((8, 4, 5, 2048, 128, 64, 16, 300), HopperDecodeConfig(stages=3, splits=8, cluster=8)),
    "heads abreast": ((32, 32, 1, 3072, 80, 80, 0, None), HopperDecodeConfig(stages=2, splits=2, cluster=2, abreast=2)),
    "clusters of more rows than a program has": (
        (40, 2, 2, 1000, 64, 64, 0, None), HopperDecodeConfig(stages=2, splits=6, cluster=3)),
    "ranges": ((32, 8, 1, 4096, 128, 128, 0, None), HopperRangesConfig(stages=3, ranges=132, alone=True)),
    "ranges of more rows": ((40, 2, 2, 1000, 64, 48, 0, None), HopperRangesConfig(stages=2, ranges=7)),
    "ranges of pages, a window": (
        (12, 4, 2, 2048, 32, 32, 48, 99), HopperRangesConfig(stages=2, ranges=264, abreast=2)),
}  # fmt: skip


@pytest.mark.parametrize("largest", [16, 8, 5])
@pytest.mark.parametrize("case", DECODING)
def test_decoding(driver, rooms, monkeypatch, case, largest):
    (heads, kv_heads, queries, keys, d, d_v, page, window), config = DECODING[case]
    monkeypatch.setattr(decode, "plan_decode", lambda problem, gpu, boxed: config)
    batch, scale, abreast = 3, 0.3, config.abreast
    driver.largest_cluster = largest
    is_ranges = isinstance(config, HopperRangesConfig)
    cluster = 1 if is_ranges else config.cluster
    while cluster > max(largest, 8):  # up to 8 are never asked about
        cluster //= 2
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)

        def random(*shape, generator=generator):
            return torch.randn(shape, generator=generator).bfloat16()

        q = random(batch, heads, queries, d).transpose(1, 2)
        rows = (batch * -(-keys // page), page) if page else (batch, keys)
        k, v = random(*rows, kv_heads, d), random(*rows, kv_heads, d_v)
        lengths = torch.full((batch,), keys, dtype=torch.int32)
        table = torch.arange(rows[0], dtype=torch.int32).view(batch, -1) if page else None
        driver.launches.clear()
        out, lse = laneloom.attention_decode(
            q, k, v, cache_lengths=lengths, block_table=table, scale=scale, window=window, return_lse=True)
        assert (out.shape, lse.shape) == ((batch, queries, heads, d_v), (batch, heads, queries))
        operands = {"q": q, "k_cache": k, "v_cache": v, "cache_lengths": lengths}
        problem = decode._problem(operands | ({"block_table": table} if page else {}), scale, window, 0.0)
        group = heads // kv_heads * abreast
        row_tiles = -(-queries * group // 16)
        units = batch * kv_heads // abreast * row_tiles
        if is_ranges:
            several, parts, own = True, units + config.ranges, {"batches": batch}
        else:
            clusters = config.splits // cluster
            several, parts = clusters > 1, units * clusters
            own = {"splits": config.splits}
        sums_rows = parts * min(16, queries * group)
        sums, size = rooms.pop() if several else (0, 0)
        assert size == (sums_rows * (d_v + 1) if several else 0)
        box = gcd(page or 64, 64)
        maps = {
            f"{name}_map": boxed(x.view(*x.shape[:2], -1, x.shape[3] * abreast).transpose(1, 2), box)
            for name, x in (("k", k), ("v", v))
        }
        wanted = {
            "grid": (config.ranges if is_ranges else units * config.splits, 1, 1), "block": (160, 1, 1),
            "shared": config.lds_bytes(problem), "cluster": cluster, **maps, "q": q.data_ptr(),
            "out": out.data_ptr(), "lse": lse.data_ptr(), "parts": sums,
            "parts_lse": sums + 4 * sums_rows * d_v if several else 0, "tickets": COUNTER if several else 0,
            "lengths": lengths.data_ptr(), "table": address_of(table), "q_batch": q.stride(0), "q_row": q.stride(1),
            "q_head": q.stride(2), "scale2": scale * log2(e), "queries": queries, "heads": heads,
            "group": group, "row_tiles": row_tiles, "left": window or 0, "table_row": table.stride(0) if page else 0,
            "room": table.shape[1] * page if page else keys,
            **own,
        }  # fmt: skip
        assert_same(driver.launches, [(f"attention_{config.schedule}", wanted)])
    assert len(torch_decode._warm) == 1


def test_the_longest_length_is_what_is_planned_for(driver):
    """Lengths up to the next of 64, 96, 128, .. are one plan and one prepared call."""
    q, cache = (torch.zeros(1, n, h, 128, dtype=torch.bfloat16) for n, h in ((1, 32), (32768, 8)))
    lengths = torch.full((1,), 1000, dtype=torch.int32)
    for said in (None, 900, 1000, 1024, 1025):
        laneloom.attention_decode(q, cache, cache, cache_lengths=lengths, max_seqlen_k=said)
    problem = decode._problem({"q": q, "k_cache": cache, "v_cache": cache, "cache_lengths": lengths}, None, None, 0.0)
    grids = [arguments["grid"][0] for _, arguments in driver.launches]
    plans = [replace(problem, keys=keys) for keys in (32768, 1024, 1024, 1024, 1536)]
    assert grids == [plan_decode(planned, GPU).programs(planned) for planned in plans]
    assert grids[0] != grids[1]
    assert len(torch_decode._warm) == 3


@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys"])
def test_nothing_to_attend_to(driver, empty):
    batch, heads, queries, keys = (0 if name == empty else 2 for name in ("batch", "heads", "queries", "keys"))
    cache = torch.zeros(batch, keys, heads, 64, dtype=torch.bfloat16)
    out, lse = laneloom.attention_decode(
        torch.ones(batch, queries, heads, 64, dtype=torch.bfloat16), cache, cache,
        cache_lengths=torch.zeros(batch, dtype=torch.int32), return_lse=True)  # fmt: skip
    assert not driver.launches
    assert torch.equal(out, torch.zeros(batch, queries, heads, 64, dtype=torch.bfloat16))
    assert torch.equal(lse, torch.full((batch, heads, queries), -torch.inf))


def test_heads_apart_are_not_read_as_one(driver):
    """Caches [B, H, S, D] seen as [B, S, H, D]: a head's rows lie together, those of its neighbours do not."""
    q = torch.randn(3, 1, 32, 80, dtype=torch.bfloat16)
    apart = torch.randn(3, 32, 2048, 80, dtype=torch.bfloat16).transpose(1, 2)
    seen = []
    driver.on_launch = lambda name, values: seen.append((values["group"], values["k_map"]))
    for k, v in ((apart, apart.contiguous()), (apart.contiguous(), apart)):
        laneloom.attention_decode(q, k, v, cache_lengths=torch.full((3,), 2048, dtype=torch.int32))
        assert seen.pop() == (1, boxed(k.transpose(1, 2), 64))


def test_queries_that_are_shifted_are_copied(driver):
    q = torch.randn(129, dtype=torch.bfloat16)[1:].view(1, 1, 1, 128)
    cache = torch.randn(1, 64, 1, 128, dtype=torch.bfloat16)
    seen = []
    driver.on_launch = lambda name, values: seen.append(values["q"])
    laneloom.attention_decode(q, cache, cache, cache_lengths=torch.tensor([64], dtype=torch.int32))
    assert seen[0] != q.data_ptr()
    assert seen[0] % 16 == 0


def test_capped_scores(driver):
    q, cache = torch.randn(1, 1, 4, 128, dtype=torch.bfloat16), torch.randn(1, 64, 2, 128, dtype=torch.bfloat16)
    laneloom.attention_decode(
        q, cache, cache, cache_lengths=torch.tensor([64], dtype=torch.int32), scale=0.3, softcap=20.0)
    ((name, values),) = driver.launches
    assert name.startswith("attention_hopper_decode")
    assert values["scale2"] == pytest.approx(20 * log2(e), rel=MOST_RELATIVE)
    assert values["slope2"] == pytest.approx(2 * log2(e) * 0.3 / 20, rel=MOST_RELATIVE)


@pytest.mark.parametrize("scaled", [False, True])
def test_attention_on_8_bit_floats(driver, scaled):
    batch, heads, kv_heads, queries, keys, d = 2, 4, 2, 150, 200, 128
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (
            torch.randn(batch, h, n, d, generator=generator).to(torch.float8_e4m3fn)
            for h, n in ((heads, queries), (kv_heads, keys), (kv_heads, keys)))
        by_head = torch.rand(kv_heads, batch).mT
        scales = {"scale_q": torch.rand(1), "scale_k": by_head, "scale_v": 0.25} if scaled else {}
        driver.launches.clear()
        out, lse = laneloom.flash_attention(q, k, v, causal=True, scale=0.3, return_lse=True, **scales)
        problem = replace(problem_of(q, k, v, "fp8", 0.3, Band("bottom_right")), out="bf16")
        config = plan(problem, GPU)
        wanted = steps(out=out) | {
            "grid": (min(config.tiles(problem), PROCESSORS), 1, 1), "block": (32 * config.num_warps, 1, 1),
            "shared": config.lds_bytes(problem), "q_map": boxed(q, 64), "k_map": boxed(k, config.columns),
            "v_map": boxed(v, config.columns), "out_map": boxed(out, 16), "out": out.data_ptr(),
            "lse": lse.data_ptr(), "first_q": 0, "first_k": 0, "counter": COUNTER, "lse_batch": lse.stride(0),
            "lse_head": lse.stride(1),
            "scale2": 0.3 * log2(e), "queries": queries, "keys": keys, "heads": heads, "group": 2, "batches": batch,
            "first": problem.first or 0, "last": problem.last, "tiles": config.tiles(problem),
            "section": forward_section(problem, config), "v_number": 0.25 if scaled else 1.0,
            **{name: address_of(scales.get(name) if name != "scale_v" else None) for name in
               ("scale_q", "scale_k", "scale_v")},
            "scale_q_batch": 0, "scale_q_head": 0, "scale_k_batch": 1 if scaled else 0,
            "scale_k_head": batch if scaled else 0, "scale_v_batch": 0, "scale_v_head": 0,
        }  # fmt: skip
        assert_same(driver.launches, [("attention_hopper_forward_float8", wanted)])
    assert len(torch_float8._warm) == 1
