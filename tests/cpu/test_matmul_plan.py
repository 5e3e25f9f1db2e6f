"""Problems, configs, plans and LDS layouts of matmul: all pure."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneloom.codegen import versions
from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.gpu import GPUS, get_gpu
from laneloom.isa.lds_banks import access_cycles
from laneloom.ops.matmul import config_mfma, execute
from laneloom.ops.matmul.api import explain
from laneloom.ops.matmul.config import MatmulConfig, plan, plan_with_reasons
from laneloom.ops.matmul.config_hopper import tma_writes
from laneloom.ops.matmul.config_wmma import WmmaConfig, needs_wide_offsets
from laneloom.ops.matmul.launch_wmma import constants
from laneloom.ops.matmul.layouts_wmma import load_layout, shared_layout
from laneloom.ops.matmul.plan_wmma import TILES, operand_traffic
from laneloom.ops.matmul.problem import Epilogue, MatmulProblem, Matrix

GFX1151 = get_gpu("gfx1151")
RDNA = [name for name, gpu in GPUS.items() if gpu.matrix_instructions == "wmma"]


def dense(m=512, n=512, k=512, **more) -> MatmulProblem:
    return MatmulProblem.contiguous(m, n, k, **more)


def test_problem_facts():
    problem = dense(128, 256, 64, layout="nt", batch=3, dtype_out="fp32")
    assert problem.layout == "nt"
    assert problem.batches == 3
    assert problem.flops == 2 * 3 * 128 * 256 * 64
    assert problem.bytes == 3 * (2 * 128 * 64 + 2 * 64 * 256 + 4 * 128 * 256)
    assert (problem.vector_a, problem.vector_b, problem.vector_out) == (8, 8, 4)
    assert problem.key == "matmul/nt/fp16_fp16_fp32/b3_m128_n256_k64/v8_8"
    assert hash(problem) == hash(dense(128, 256, 64, layout="nt", batch=3, dtype_out="fp32"))
    with pytest.raises(ArgumentError, match="layout: expected 'nn', 'nt', 'tn' or 'tt', got 'xy'"):
        dense(layout="xy")


def test_broadcast_operand_is_read_once():
    one = Matrix((0, 0, 64, 1))
    b, out = Matrix((0, 1024, 16, 1)), Matrix((0, 512, 16, 1))
    problem = MatmulProblem(32, 16, 64, "fp16", "fp16", "fp16", (1, 5), one, b, out)
    assert problem.bytes == 2 * (32 * 64 + 5 * 64 * 16 + 5 * 32 * 16)


@pytest.mark.parametrize(
    ("sizes", "layout", "vectors"),
    [
        ((64, 64, 64), "nn", (8, 8, 8)),
        ((64, 60, 64), "nn", (8, 4, 4)),
        ((64, 64, 62), "nn", (2, 8, 8)),
        ((64, 64, 63), "nt", (1, 1, 8)),
        ((63, 64, 64), "tn", (1, 8, 8)),
        ((1, 8, 24), "nn", (8, 8, 8)),
        ((8, 1, 24), "nn", (8, 8, 1)),
        ((1, 1, 1), "nn", (1, 1, 1)),
    ],
)
def test_vectors(sizes, layout, vectors):
    problem = dense(*sizes, layout=layout)
    assert (problem.vector_a, problem.vector_b, problem.vector_out) == vectors


def test_vectors_follow_the_base_address_and_the_batch_stride():
    a = Matrix((0, 8 * 64 + 4, 64, 1), alignment=16)
    b, out = Matrix((0, 512, 8, 1), alignment=4), Matrix((0, 64, 8, 1))
    problem = MatmulProblem(8, 8, 64, "fp16", "fp16", "fp16", (1, 2), a, b, out)
    assert (problem.vector_a, problem.vector_b) == (4, 2)


def test_plan_is_valid_on_every_rdna_gpu():
    sizes = (1, 17, 128, 1000, 4096)
    for name, m, n, k, layout in product(RDNA, sizes, sizes, (1, 33, 4096), ("nn", "nt")):
        problem, gpu = dense(m, n, k, layout=layout), get_gpu(name)
        config = plan(problem, gpu)
        assert config.why_invalid(problem, gpu) is None
        assert config == plan(problem, gpu)


def test_plan_chooses_by_size():
    large = plan(dense(4096, 4096, 4096), GFX1151)
    assert (large.schedule, large.block_m, large.block_n) == ("wmma_wide", 128, 128)
    assert plan(dense(4096, 4096, 4096, layout="nt"), GFX1151).schedule == "wmma"
    for sizes, side in (((16, 4096, 4096), "block_m"), ((4096, 1, 4096), "block_n"), ((1, 4095, 4095), "block_m")):
        for dtype in ("fp16", "int8", "fp8"):
            assert getattr(plan(dense(*sizes, dtype=dtype), GFX1151), side) == 16
    assert plan(dense(4096, 4096, 4096), GFX1151).parts(dense(4096, 4096, 4096)) == 1
    long = dense(128, 128, 65536)
    chosen = plan_with_reasons(long, get_gpu("gfx1201"))
    assert chosen.config.parts(long) >= 8
    assert f"K in {chosen.config.parts(long)} parts" in chosen.reason
    odd = plan_with_reasons(dense(4095, 4095, 4095), GFX1151)
    assert odd.config.block_m * odd.config.block_n <= 32 * 32 * odd.config.num_warps
    assert any("loads of 1 elements" in why for _, why in odd.passed_over)


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942"])
def test_cdna_2_and_3_multiply_8_bit_floats_as_bf16(gpu):
    gpu = get_gpu(gpu)
    config = plan(dense(4096, 4096, 4096, dtype="fp8"), gpu)
    assert config.text == plan(dense(4096, 4096, 4096, dtype="bf16"), gpu).text  # the same tiles in LDS


def test_stream_k_is_for_rounds_that_are_not_full():
    for name, sizes, streams in (
        ("gfx1151", (1024, 4096, 4096), False), ("gfx1151", (2048, 2048, 2048), False),
        ("gfx1151", (512, 4096, 4096), False), ("gfx1151", (1024, 1408, 4096), True),
        ("gfx1201", (768, 3072, 4096), True),
    ):  # fmt: skip
        config = plan(dense(*sizes, dtype="fp16", layout="nt"), get_gpu(name))
        assert bool(getattr(config, "stream_k", 0)) == streams, (name, sizes)


def test_cdna_tiles_of_256_rows(monkeypatch):
    """Where they fill rounds of the GPU's workgroups, and a SIMD has registers for two waves of them."""

    def first(gpu, *sizes, **kinds):
        config = next(config_mfma.candidates(dense(*sizes, **kinds), get_gpu(gpu)))[0]
        return config.block_m, config.block_n, config.block_k

    monkeypatch.setattr(versions, "triton_version", lambda: "3.9.0")
    large, square = (4096, 4096, 4096), (128, 128, 64)
    for layout in ("nn", "nt", "tn", "tt"):
        across = layout == "tn"
        assert first("gfx950", *large, dtype="bf16", layout=layout) == (256, 128, 64)
        assert first("gfx950", *large, dtype="int8", layout=layout) == (128 if across else 256, 128, 128)
        assert first("gfx942", *large, dtype="fp16", layout=layout) == ((256, 128, 32) if across else square)
    relu, gelu = (Epilogue(bias=("n", 1), dtype_bias="bf16", activation=name) for name in ("relu", "gelu"))
    assert first("gfx950", *large, dtype="bf16", epilogue=relu) == (256, 128, 64)
    for sizes, kinds in (
        (large, {"epilogue": gelu}), ((4096, 4096, 4097), {}), ((4096, 4099, 4096), {}), ((2048, 2048, 2048), {}),
        ((3000, 3000, 3000), {}),
    ):  # fmt: skip
        assert first("gfx950", *sizes, dtype="bf16", **kinds) == square
    assert first("gfx90a", *large, dtype="bf16") == square
    monkeypatch.setattr(versions, "triton_version", lambda: "3.6.0")
    assert first("gfx950", *large, dtype="bf16") == square


def test_cdna_1_multiplies_fp64_by_the_vector_unit():
    gpu = get_gpu("gfx908")
    assert plan(dense(4096, 4096, 4096, dtype="fp64"), gpu).schedule == "fma"
    assert plan(dense(4096, 4096, 4096, dtype="fp32"), gpu).schedule == "mfma"
    why = MatmulConfig.parse("mfma:block_m=64,block_n=64,block_k=16,num_warps=4").why_invalid(dense(dtype="fp64"), gpu)
    assert why == "a: gfx908 has no matrix instruction of FP64, the schedule fma multiplies it"
    fma = MatmulConfig.parse("fma:block_m=64,block_n=64,block_k=4,num_warps=4")
    assert "CDNA 1, got gfx90a" in (fma.why_invalid(dense(dtype="fp64"), get_gpu("gfx90a")) or "")


def test_explanations_go_to_other_processes():
    found = explain(dense(64, 64, 64), gpu="gfx1201")
    for copied in (pickle.loads(pickle.dumps(found)), deepcopy(found)):
        assert copied == found
        with pytest.raises(TypeError):
            copied.gpu.peak_tflops["fp16"] = 0.0


def test_explain():
    text = str(explain(dense(4096, 4096, 4000, layout="nn"), gpu="gfx1201"))
    assert "matmul/nn/fp16_fp16_fp16/b1_m4096_n4096_k4000/v8_8 on gfx1201: wmma_wide:block_m=128" in text
    assert "B is contiguous along N: loads of 16 bytes, transposed in registers on the way to LDS" in text
    ragged = str(explain(dense(128, 128, 40), gpu="gfx1201"))
    assert "the last K-tile has 8 of 32 columns and is masked" in ragged


@pytest.mark.parametrize(
    ("problem", "gpu", "message"),
    [
        (dense(dtype="fp32", precision="tf32"), "gfx1151", "precision: gfx1151 multiplies fp32 in FP32 only"),
        (dense(dtype_out="fp64"), "gfx1201", "out_dtype: expected fp32, fp16 or bf16, got fp64"),
        (dense(k=1 << 31), "gfx1201", r"K: expected 1 to 2\*\*31 - 1, got 2147483648"),
        (dense(dtype="uint8"), "gfx942", "fp8 or bf8, both operands alike, got uint8 and uint8"),
        (dense(dtype="fp32", precision="tf32"), "gfx90a", "precision: gfx90a multiplies fp32 in FP32 only"),
        (dense(dtype_acc="fp16"), "gfx950", "acc_dtype: gfx950 sums halves in fp32, got fp16"),
    ],
)
def test_refused_problems(problem, gpu, message):
    with pytest.raises(UnsupportedError, match=message):
        plan(problem, get_gpu(gpu))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"block_m": 96}, "block_m: expected a power of two, got 96"),
        ({"block_k": 128}, "block_k: expected 16, 32 or 64 elements, got 128"),
        ({"lds": "plain"}, "lds: expected 'swizzled', 'padded' or 'xor', got 'plain'"),
        ({"group_m": 0}, "group_m: expected at least 1, got 0"),
        ({"waves_n": 8}, "waves_n: expected at most num_warps, and that at most 16, got 8 and 4"),
        ({"block_m": 16}, "block_m and block_n: expected at least 16 x 16 for each of 2 x 2 waves, got 16 x 128"),
        ({"block_n": 16, "block_k": 16, "num_warps": 8, "waves_n": 1}, "block_k: 256 threads need at least 4 bytes"),
        ({"block_m": 32, "block_n": 16, "waves_n": 1, "num_warps": 2, "block_k": 16, "order": "spiral"},
         "order: expected 'grouped', 'row', 'column', 'chunked', 'snake', 'hilbert' or 'chiplet', got 'spiral'"),
        ({"stores": "direct"}, "stores: 'direct' takes at most 64 sums for each of 128 threads, got 128 x 128"),
        ({"buffers": 3}, "buffers: expected 1 or 2, got 3"),
        ({"block_n": 256}, "block_m x block_n: expected at most 128 elements for each of 128 threads"),
        ({"block_m": 256, "block_n": 256, "block_k": 64, "num_warps": 16}, "bytes of LDS, gfx1151 has 65536"),
    ],
)
def test_refused_configs(knobs, message):
    config = WmmaConfig(**{"block_m": 128, "block_n": 128, "block_k": 32} | knobs)
    assert message in (config.why_invalid(dense(), GFX1151) or "")


def test_config_text():
    config = WmmaConfig(block_m=128, block_n=64, block_k=32, lds="padded")
    assert config.text == (
        "wmma:block_m=128,block_n=64,block_k=32,num_warps=4,group_m=8,waves_n=2,lds=padded,buffers=2,prefetch=True,"
        "transpose=registers,stores=staged,control=fences,order=grouped,split_k=1,stream_k=0"
    )
    for known, _ in TILES:
        assert MatmulConfig.parse(known.text) == known
    assert MatmulConfig.parse("wmma:block_m=64,block_n=64,block_k=32") == WmmaConfig(block_m=64, block_n=64, block_k=32)
    for text, message in (
        ("nothing:block_m=1", "config: expected a schedule of wmma"),
        ("wmma:block_q=1", "config: unknown knob 'block_q'"),
        ("wmma:block_m=wide", "config: knob block_m must be of type int, got 'wide'"),
        ("wmma:block_m=64", "config: wmma needs block_n, block_k as well"),
    ):
        with pytest.raises(ArgumentError, match=message):
            MatmulConfig.parse(text)


def test_wide_offsets_only_where_a_tile_spans_them():
    config = WmmaConfig(block_m=64, block_n=64, block_k=32)
    assert not needs_wide_offsets(dense(4096, 4096, 1 << 23, layout="nt"), config)
    assert needs_wide_offsets(dense(256, 256, 1 << 25, layout="nt"), config)
    assert needs_wide_offsets(dense(256, 1 << 26, 256, layout="nn"), config)


CONFIGS = [
    WmmaConfig(block_m=rows, block_n=rows, block_k=block_k, num_warps=warps, waves_n=1, lds=lds)
    for rows, block_k, warps, lds in product((32, 64, 128, 256), (16, 32, 64), (1, 2, 4, 8), ("swizzled", "padded"))
    if rows * block_k >= 16 * 32 * warps
]


def elements(layout, register: int, lane: int, wave: int) -> tuple[int, int]:
    """(row, k) of one register of one lane."""
    row = k = 0
    for bases, index in ((layout.reg_bases, register), (layout.lane_bases, lane), (layout.warp_bases, wave)):
        for bit, basis in enumerate(bases):
            if index >> bit & 1:
                row, k = row ^ basis[0], k ^ basis[1]
    return row, k


def addresses(layout, rows: int, block_k: int) -> np.ndarray:
    """LDS offset in elements of [row, k]."""
    if not hasattr(layout, "interval_padding_pairs"):
        where = np.zeros((rows, block_k), np.int64)
        for offset in range(rows * block_k):
            row = k = 0
            for bit, basis in enumerate(layout.offset_bases):
                if offset >> bit & 1:
                    row, k = row ^ basis[0], k ^ basis[1]
            where[row, k] = offset
        return where
    plain = np.arange(rows * block_k).reshape(rows, block_k)
    return plain + sum(plain // every * pad for every, pad in layout.interval_padding_pairs)


def conflicts(offsets: list[int], width: int) -> int:
    """Extra clocks of one LDS access to `width` halves a lane, from offsets in halves."""
    address = 2 * np.array(offsets, np.int64)[None]
    return int(access_cycles(address, 2 * width)[1].sum())


@pytest.mark.covering
@pytest.mark.parametrize(("along_k", "stored"), [(True, 2), (False, 2), (True, 1)])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.text.removeprefix("wmma:"))
def test_layouts(config, along_k, stored):
    """Every element once; 16-byte global loads; no bank conflicts in the stores to LDS and the reads of fragments.

    stored: bytes in memory of what is a half in LDS.
    """
    rows, block_k = config.block_m, config.block_k
    load, store = (load_layout(rows, config, along_k, reorder, stored=stored) for reorder in (False, True))
    registers = 1 << len(load.reg_bases)
    held = {elements(load, r, lane, w) for r in range(registers) for lane in range(32) for w in range(config.num_warps)}
    assert len(held) == rows * block_k
    assert registers * 32 * config.num_warps == rows * block_k
    assert sorted(load.reg_bases) == sorted(store.reg_bases)
    assert load.reg_bases[:3] == ([[0, 1], [0, 2], [0, 4]] if along_k else [[1, 0], [2, 0], [4, 0]])
    assert not along_k or ([0, 8] in load.reg_bases[:4]) == (stored == 1 and config.lds != "padded" and registers >= 16)

    where = addresses(shared_layout(rows, config, along_k), rows, block_k)
    assert len(np.unique(where)) == rows * block_k
    # what the ISA guides' fragments read: 16 rows, 8 elements of K from each, by lanes 0 to 15
    for first, k in product(range(0, rows, 16), range(0, block_k, 8)):
        run = where[first : first + 16, k : k + 8]
        assert (np.diff(run, axis=1) == 1).all()
        assert (run[:, 0] % 8 == 0).all()
        assert conflicts(list(run[:, 0]), 8) == 0

    width = 1
    while width < 8 and [0, width] in store.reg_bases:
        width *= 2
    for r in range(0, registers, width):
        starts = []
        for lane in range(32):
            row, k = elements(store, r, lane, 0)
            assert (np.diff(where[row, k : k + width]) == 1).all()
            starts.append(int(where[row, k]))
        assert width == 1 or conflicts(starts, width) == 0


def test_layouts_of_the_planned_tiles_are_compile_time_constants():
    for config, _ in TILES:
        chosen = constants(dense(), config, GFX1151)
        assert all(isinstance(hash(value), int) for value in chosen.values())


@settings(suppress_health_check=[HealthCheck.too_slow])  # what it draws first waits for imports on a busy machine
@given(
    batch=st.lists(st.integers(1, 3), max_size=4),
    sizes=st.tuples(*[st.integers(1, 5)] * 3),
    kept=st.lists(st.booleans(), min_size=8, max_size=8),
    order=st.permutations(range(4)),
)
def test_problem_addresses_the_operands(batch, sizes, kept, order):
    """The problem's strides reach exactly the elements of the operands, batch by batch, in order."""
    m, n, k = sizes

    def operand(rows: int, columns: int, keep: list[bool], shuffle: bool) -> np.ndarray:
        shape = [size if kept_axis else 1 for size, kept_axis in zip(batch, keep, strict=False)]
        axes = sorted(range(len(batch)), key=lambda axis: order[axis]) if shuffle else list(range(len(batch)))
        base = np.arange(int(np.prod([*shape, rows, columns])), dtype=np.uint16)
        stored = base.reshape([shape[axis] for axis in axes] + [rows, columns])
        back = stored.transpose([*np.argsort(axes), len(batch), len(batch) + 1]) if batch else stored
        return np.broadcast_to(back, (*batch, rows, columns))

    a = operand(m, k, kept[:4], True)
    b = operand(k, n, kept[4:], False)
    out = operand(m, n, [True] * 4, False)
    problem = execute.problem_of(a, b, out, ("fp16", "fp16", "fp16"))
    if problem is None:
        assert len(batch) > 2
        return
    assert problem.flops == 2 * int(np.prod(batch)) * m * n * k
    folded = problem.m // m  # products of the batch that became rows of A
    operands = (
        (a.ravel(), problem.a, problem.m, k),
        (b.reshape(-1, k * n)[::folded].ravel(), problem.b, k, n),
        (out.ravel(), problem.out, problem.m, n),
    )
    for values, matrix, rows, columns in operands:
        reached = np.zeros((1, 1, 1, 1), np.int64)
        for axis, (extent, stride) in enumerate(zip((*problem.batch, rows, columns), matrix.strides, strict=True)):
            reached = reached + np.arange(extent).reshape([-1 if at == axis else 1 for at in range(4)]) * stride
        assert (reached.ravel() == values).all()


def test_plan_chooses_the_tile_order_that_asks_least_of_memory():
    """192 programs at once on 32 x 32 tiles: 16 rows by 12 columns are fewer than 8 by 24."""
    many = plan(dense(4096, 4096, 4096), get_gpu("gfx1100"))
    assert isinstance(many, WmmaConfig)
    assert (many.order, many.group_m) == ("grouped", 16)
    big, gpu = dense(4096, 4096, 4096), get_gpu("gfx1100")
    traffic = [operand_traffic(big, many, "grouped", group, gpu) for group in (8, 16)]
    assert traffic == [128 * (8 + 24), 128 * (16 + 12)]
    few = plan(dense(4096, 4096, 4096), GFX1151)
    assert isinstance(few, WmmaConfig)
    assert (few.order, few.group_m) == ("grouped", 8)


def test_one_product_of_a_batch_begins_where_any_may():
    """One row has no pitch that would say so."""
    whole = MatmulProblem.contiguous(1, 64, 224, dtype="fp32", batch=3)
    terms = Epilogue(addend=Matrix((0, 66, 64, 1)), dtype_addend="fp32")
    problem = replace(whole, out=Matrix((0, 67, 67, 1)), b=Matrix((0, 1 << 14, 64, 1)), epilogue=terms)
    one = problem.one_product()
    assert (one.a.alignment, one.b.alignment, one.out.alignment, one.epilogue.addend.alignment) == (16, 16, 4, 8)
    assert one.batches == one.vector_out == 1
    assert not tma_writes(one)
    assert one.one_product() is one
