"""Hopper's plan and configs: pure, so they are tested without a GPU."""

from __future__ import annotations

from itertools import chain, product

import pytest

pytest.importorskip("torch")

from laneloom.bench.suites import load_suite
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.api import explain
from laneloom.ops.matmul.config import MatmulConfig, plan, plan_with_reasons
from laneloom.ops.matmul.config_cluster import ClusterConfig
from laneloom.ops.matmul.config_hopper import HopperConfig, PlainConfig, SkinnyConfig
from laneloom.ops.matmul.config_precise import PreciseConfig
from laneloom.ops.matmul.config_registers import RegistersConfig
from laneloom.ops.matmul.config_stream import StreamConfig
from laneloom.ops.matmul.execute import schedule_of
from laneloom.ops.matmul.plan_hopper import fuses_epilogue
from laneloom.ops.matmul.problem import DTYPE_BYTES, Epilogue, MatmulProblem, Matrix

GPU = get_gpu("sm_90a")
GFX = get_gpu("gfx1151")
BIG = HopperConfig(block_m=128, block_n=256, block_k=64, stages=4)


def problem(m, n, k, **options):
    return MatmulProblem.contiguous(m, n, k, **{"dtype": "bf16", **options})


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_whole_suite_has_a_valid_plan(layout, dtype):
    for sizes in (case for group in load_suite("gemm").values() for case in group):
        chosen = plan_with_reasons(problem(*sizes, dtype=dtype, layout=layout), GPU)
        assert chosen.config.why_invalid(problem(*sizes, dtype=dtype, layout=layout), GPU) is None
        assert not chosen.passed_over, f"{sizes}: the first candidate should be valid"
        assert MatmulConfig.parse(chosen.config.text) == chosen.config
        assert chosen.reason


@pytest.mark.parametrize(
    ("sizes", "layout", "schedule", "facts"),
    [
        ((4096, 4096, 4096), "nn", "hopper_cluster", {"block_m": 256, "block_n": 128, "split": True, "hold_back": 1}),
        ((8192, 8192, 1024), "nn", "hopper_cluster", {"block_m": 128, "own_tiles": True, "hold_back": 0}),
        ((3072, 3072, 3072), "nn", "hopper_cluster", {"tiles_n": 0}),
        ((2049, 2047, 2050), "nn", "hopper_cluster", {"copy_a": True, "copy_b": True, "tma_store": False}),
        ((256, 256, 256), "nt", "hopper_cluster", {"block_m": 64, "block_n": 64, "fetched": 4}),
        ((128, 256, 128), "nn", "hopper_cluster", {"block_m": 64, "block_n": 64, "fetched": 2}),
        ((65536, 64, 64), "nn", "hopper", {"block_m": 128, "block_n": 64}),
        ((128, 128, 16384), "nn", "hopper", {"split_k": 16}),
        ((16, 4096, 4096), "nn", "hopper_cluster", {"swapped": True, "block_m": 64, "block_n": 16, "cluster_k": 2}),
        ((4096, 16, 4096), "nn", "hopper_cluster", {"swapped": False, "block_m": 64, "block_n": 16, "cluster_k": 2}),
        ((1, 6144, 4096), "nt", "hopper_skinny", {"use_dot": False}),
        ((1, 4096, 4096), "nt", "hopper_rows", {"num_warps": 16, "cluster_k": 2}),
        # Few rows and a short K, or more tiles of 64 columns than SMs.
        ((8, 9472, 200), "nn", "hopper_cluster", {"block_m": 192, "block_n": 8, "cluster_m": 4, "stages": 8}),
        ((32, 16384, 512), "nt", "hopper_cluster", {"swapped": True}),
        ((16, 28672, 4096), "nn", "hopper_cluster", {"block_m": 128, "block_n": 16, "cluster_m": 4}),
        ((16, 28672, 4096), "nt", "hopper_cluster", {"block_m": 128, "block_n": 16, "cluster_m": 4}),
        ((16, 6144, 4096), "nn", "hopper_cluster", {"block_m": 192, "cluster_k": 2}),
        ((16, 512, 16384), "nn", "hopper_cluster", {"block_m": 64, "cluster_k": 6}),
        ((16, 155, 12544), "nt", "hopper", {"swapped": True, "split_k": 24}),
        # K of two slices; of one.
        ((13888, 9536, 112), "nt", "hopper_cluster", {}),
        ((4096, 4096, 64), "nn", "hopper", {"block_m": 128, "block_n": 64, "consumers": 1}),
        ((1000, 1000, 64), "nn", "hopper_cluster", {}), ((4096, 4096, 40), "nn", "hopper_cluster", {"cluster_m": 2}),
        ((127, 129, 131), "nn", "hopper_async", {}),
        ((1, 1, 1), "nn", "hopper_async", {}),
    ],
)
def test_what_runs_where(sizes, layout, schedule, facts):
    config = plan(problem(*sizes, layout=layout), GPU)
    assert config.schedule == schedule
    assert {name: getattr(config, name) for name in facts} == facts


def test_an_addend_holds_nothing_back():
    addend = Epilogue(scaled=True, addend=Matrix((0, 0, 4096, 1)), dtype_addend="bf16")
    for epilogue, held in ((addend, False), (Epilogue(bias=("n", 1), dtype_bias="bf16"), True)):
        config = plan(problem(4096, 4096, 4096, epilogue=epilogue), GPU)
        assert (config.split or config.hold_back > 0) == held


def test_only_the_operand_that_tma_cannot_read_is_copied():
    odd_a = plan(problem(1000, 1024, 1023), GPU)
    assert (odd_a.copy_a, odd_a.copy_b, odd_a.tma_store) == (True, False, True)
    odd_b = plan(problem(1000, 1023, 1024), GPU)
    assert (odd_b.copy_a, odd_b.copy_b, odd_b.tma_store) == (False, True, False)


def test_operands_contiguous_along_neither_axis_are_read_where_they_lie():
    strided = MatmulProblem(
        512, 512, 512, "bf16", "bf16", "bf16", (1, 1), Matrix((0, 0, 2048, 2)), Matrix((0, 0, 512, 1)),
        Matrix((0, 0, 512, 1)),
    )  # fmt: skip
    assert plan(strided, GPU).schedule == "hopper_async"


@pytest.mark.parametrize(
    ("sizes", "knobs", "schedule", "words"),
    [
        ((1000, 1000, 1000), {}, "hopper_cluster", {"block_m": 128, "block_n": 64, "cluster_m": 2, "line": 64}),
        ((1000, 1000, 1000), {"layout": "tn"}, "hopper_cluster", {"line": 0}),
        ((1001, 1000, 1000), {}, "hopper_cluster", {"line": 0}),
        ((1000, 1000, 5000), {"layout": "nt"}, "hopper_cluster", {"line": 32, "cluster_k": 2}),
        ((1304, 1304, 1304), {}, "hopper_cluster", {"swapped": True, "line": 32}),
        ((2000, 2000, 2000), {}, "hopper_cluster", {"line": 0}),
        ((1024, 1024, 1024), {"layout": "nt"}, "hopper_cluster", {"block_m": 64, "block_n": 128}),
        # plan_short: loads are shared where tiles of a multiple of 16 columns fill the SMs.
        ((128, 6144, 4096), {}, "hopper_cluster", {"block_m": 128, "block_n": 64, "cluster_n": 4}),
        ((128, 4096, 4096), {}, "hopper_cluster", {"block_m": 64, "block_n": 64, "cluster_m": 2}),
        ((48, 4096, 4096), {"dtype": "fp8", "dtype_out": "bf16", "layout": "nt"}, "hopper_cluster",
         {"block_n": 48, "cluster_k": 2, "swapped": True}),
        ((300, 3000, 3000), {}, "hopper_cluster", {"swapped": True, "block_n": 152, "line": 32}),
        ((5000, 5000, 5000), {}, "hopper_cluster", {"block_m": 128, "block_n": 176, "own_tiles": True}),
        # Tiles whose width lets the last round fill the SMs, measured: docs/hopper-gemm.md.
        ((512, 14336, 4096), {"layout": "nn"}, "hopper_cluster", {"block_m": 128, "block_n": 224}),
        ((6000, 6000, 6000), {}, "hopper_cluster", {"block_m": 128, "swapped": True}),
        ((1536, 1536, 1536), {"layout": "nt"}, "hopper_cluster", {"block_m": 128, "block_n": 144, "swapped": True}),
        ((64, 14336, 4096), {"layout": "nt"}, "hopper_cluster", {"block_m": 64, "cluster_n": 4}),
        # Clusters that share loads and have parts of K.
        ((160, 5120, 13824), {"layout": "nt"}, "hopper_cluster", {"cluster_m": 2, "cluster_n": 2, "cluster_k": 2}),
        ((64, 512, 2048), {}, "hopper_cluster", {"cluster_m": 1, "cluster_n": 1, "cluster_k": 8}),
        ((4096, 4096, 4096), {"dtype": "fp32"}, "hopper_stream",
         {"block_n": 128, "copy_a": True, "copy_b": False, "split": True}),
        ((4096, 4096, 4096), {"dtype": "fp32", "layout": "tn"}, "hopper_stream", {"copy_a": False}),
        ((2048, 2048, 2048), {"dtype": "fp32"}, "hopper_stream", {"copy_a": True, "split": True}),
        ((1536, 1536, 1536), {"dtype": "fp32"}, "hopper_stream", {"block_n": 128, "split": True}),
        ((512, 512, 8192), {"dtype": "fp32"}, "hopper_stream", {"lanes_a": True, "split_k": 8}),
        ((64, 64, 100000), {"dtype": "fp32", "layout": "tn"}, "hopper_stream", {"block_n": 32, "split_k": 250}),
        ((100, 1000, 10000), {"dtype": "fp64"}, "hopper_precise", {"split": False, "split_k": 8}),
        ((304, 304, 30000), {"layout": "nt"}, "hopper_cluster", {"block_m": 128, "split_k": 11}),
        ((1000, 1000, 20000), {}, "hopper_cluster", {"split_k": 2}),
        ((1024, 1024, 1024), {"dtype": "fp32"}, "hopper_stream", {"block_m": 32, "lanes_a": True, "lanes_b": False}),
        ((200, 200, 200), {"dtype": "fp32", "batch": 64}, "hopper_stream", {"lanes_a": True, "block_n": 128}),
        ((1024, 1024, 1024), {"dtype": "fp64"}, "hopper_precise", {"block_n": 64}),
        ((2048, 2048, 2048), {"dtype": "fp64"}, "hopper_precise", {"block_m": 128, "copy_b": False}),
        ((30, 70, 333), {"dtype": "fp64"}, "hopper_async", {}),
        ((300, 300, 300), {"dtype": "int8", "dtype_out": "int32", "layout": "tn"}, "hopper_cluster", {"copy_a": True}),
        ((3000, 3000, 3000), {"dtype": "fp32", "precision": "3xtf32"}, "hopper_cluster", {"pieces": 2, "promote": 1}),
        ((512, 512, 512), {"dtype": "fp32", "precision": "3xtf32"}, "hopper_registers", {"split_k": 1}),
        ((16, 4096, 4096), {"dtype": "fp32", "precision": "3xtf32"}, "hopper_registers", {"split_k": 4}),
        ((100, 1000, 10000), {"dtype": "fp32", "precision": "tf32"}, "hopper_registers", {"split_k": 8}),
        ((512, 512, 512), {"dtype": "fp32", "precision": "3xbf16"}, "hopper_cluster", {"pieces": 3, "block_k": 64}),
        ((512, 512, 512), {"dtype": "fp32", "precision": "tf32"}, "hopper_registers", {"turned": True}),
        ((64, 64, 50000), {"dtype": "fp32", "precision": "tf32", "batch": 4, "layout": "tn"}, "hopper_registers",
         {"split_k": 66, "copy_a": False, "copy_b": False}),
        ((2048, 2048, 512), {"dtype": "fp32", "precision": "tf32", "layout": "tt"}, "hopper_registers",
         {"block_m": 128, "block_n": 256}),
        ((2048, 2048, 512), {"dtype": "fp32", "precision": "tf32", "layout": "nt"}, "hopper_cluster", {}),
        ((333, 130, 512), {"dtype": "fp32", "precision": "tf32"}, "hopper_registers", {"copy_b": True}),
        ((4095, 4097, 4099), {"dtype": "fp32"}, "hopper_stream", {"block_m": 128, "block_n": 128}),
        ((512, 512, 512), {"dtype": "fp8", "dtype_out": "bf16"}, "hopper_cluster", {"copy_a": False, "copy_b": True}),
        ((333, 129, 517), {"dtype": "fp8", "dtype_out": "fp32"}, "hopper_cluster", {"copy_a": True, "copy_b": True}),
        ((512, 512, 512), {"dtype": "uint8", "dtype_out": "int32"}, "hopper_cluster", {}),
        ((512, 512, 512), {"epilogue": Epilogue(scaled=True)}, "hopper_cluster", {"tma_store": False}),
    ],
)  # fmt: skip
def test_the_plan_of_cuda_schedules(sizes, knobs, schedule, words):
    config = plan(problem(*sizes, **knobs), GPU)
    assert config.schedule == schedule
    assert {word: getattr(config, word) for word in words} == words


def test_the_transpose_swaps_operands_where_they_lie():
    p = problem(300, 512, 64, layout="nt", batch=3)
    turned = p.transposed()
    assert (turned.m, turned.n, turned.k, turned.layout) == (512, 300, 64, "nt")
    assert turned.a.strides == (0, 512 * 64, 64, 1)
    assert turned.b.strides == (0, 300 * 64, 1, 64)
    assert turned.out.strides == (0, 300 * 512, 1, 512)
    assert turned.transposed() == p


@pytest.mark.parametrize("line", [32, 64, 128])
@pytest.mark.parametrize(("columns", "dtype"), [(1000, "bf16"), (1004, "fp32"), (1040, "fp8"), (24, "bf16")])
def test_a_class_has_the_rows_that_begin_alike_in_lines(columns, dtype, line):
    whole = problem(80, 48, columns, dtype=dtype, dtype_out="fp32", layout="nt", batch=3)
    config = LINES.with_knobs(line=line)
    assert config.why_not_in_classes(whole) is None
    view = config.in_classes(whole)
    classes = config.classes(whole)
    assert view.batch == (3, classes)
    assert (view.m * classes, view.n, view.k) == (whole.m, whole.n, whole.k)
    for matrix, of_view in ((whole.a, view.a), (whole.out, view.out)):
        rows = [
            [o * of_view.strides[0] + c * of_view.strides[1] + j * of_view.strides[2] for j in range(view.m)]
            for o, c in product(range(3), range(classes))
        ]
        every = [o * matrix.strides[1] + m * matrix.strides[2] for o, m in product(range(3), range(whole.m))]
        assert sorted(chain.from_iterable(rows)) == every
        if matrix is whole.a:
            size = DTYPE_BYTES[dtype]
            begins = [{row * size % line for row in of_class} for of_class in rows[:classes]]
            assert all(len(begin) == 1 for begin in begins)
            assert sorted(b for begin in begins for b in begin) == list(range(0, line, line // classes))
    assert view.b.strides[:2] == (whole.b.strides[1], 0), "every class takes the same B"


def test_an_epilogue_is_fused_unless_another_schedule_streams_one_row_or_k_is_split():
    epilogue = Epilogue(scaled=True)
    fused = (512, 512, 4096), (16, 4096, 4096), (64, 24576, 1536), (1, 4096, 512), (1, 4096, 4096), (16, 512, 16384)
    for m, n, k in fused:
        assert fuses_epilogue(problem(m, n, k, epilogue=epilogue), GPU)
    for m, n, k in ((1, 28672, 4096), (28672, 1, 4096), (1, 128, 100000)):
        assert not fuses_epilogue(problem(m, n, k, epilogue=epilogue), GPU)
    assert fuses_epilogue(problem(1, 4096, 4096, dtype="fp8", epilogue=epilogue), GPU)
    assert "launch of its own" in explain(problem(1, 28672, 4096, epilogue=epilogue), gpu="sm_90a").facts[-1]
    assert explain(problem(16, 4096, 4096, epilogue=epilogue), gpu="sm_90a").config.schedule == "hopper_cluster"


CLUSTER = ClusterConfig(block_m=128, block_n=256, block_k=64, stages=4, cluster_m=2)
STRIPS = CLUSTER.with_knobs(block_m=256, block_n=128)
THREE = CLUSTER.with_knobs(block_m=192, block_n=128, consumers=3)
LINES = ClusterConfig(block_m=128, block_n=64, block_k=64, stages=7, line=128)
PRECISE = PreciseConfig(block_m=128, block_n=128, block_k=16, stages=4)
REGISTERS = RegistersConfig(block_m=128, block_n=128, block_k=32, stages=4, turned=True)
UPRIGHT = REGISTERS.with_knobs(block_n=16, turned=False)
STREAM = StreamConfig(block_m=64, block_n=64, block_k=16, num_warps=4, stages=4)
TF32 = {"dtype": "fp32", "precision": "tf32"}
ADDEND = Epilogue(addend=Matrix((0, 0, 64, 1)), dtype_addend="bf16")


@pytest.mark.parametrize(
    ("config", "of", "word"),
    [
        (CLUSTER, problem(64, 64, 64, dtype="fp32"), "does not multiply fp32 by fp32 in precision ieee"),
        (CLUSTER, problem(63, 63, 63), "need a at multiples of 16 bytes"),
        (CLUSTER.with_knobs(pieces=2), problem(64, 64, 64), "takes 1 pieces"),
        (CLUSTER, problem(64, 64, 64, dtype_out="int32"), "writes fp32, fp16, bf16"),
        (CLUSTER, problem(64, 63, 64, layout="nt"), "a TMA store needs C"),
        (CLUSTER.with_knobs(block_m=96), problem(64, 64, 64), "64 or 128 rows each"),
        (CLUSTER.with_knobs(block_n=260, tma_store=False), problem(64, 64, 64), "a multiple of 8 up to 256"),
        (REGISTERS, problem(64, 64, 64), "bare products of fp32 in precision tf32"),
        (REGISTERS.with_knobs(block_m=16), problem(64, 64, 64, layout="tn", **TF32), "turns a in panels of 32 columns"),
        (UPRIGHT, problem(64, 64, 64, layout="tn", **TF32), "turns b in panels of 32 columns"),
        (REGISTERS.with_knobs(block_m=40), problem(64, 64, 64, **TF32), "got 128x40"),
        (REGISTERS.with_knobs(block_m=256), problem(64, 64, 64, dtype="fp32", precision="3xtf32"), "got 128x256"),
        (REGISTERS.with_knobs(stages=1), problem(64, 64, 64, **TF32), "at least 2 stages"),
        (REGISTERS.with_knobs(split_k=3), problem(64, 64, 64, **TF32), "leave one of them none of K"),
        (REGISTERS.with_knobs(split_k=2), problem(64, 64, 64, batch=1000, **TF32), "parts of K of at most 256"),
        (REGISTERS.with_knobs(stages=8), problem(64, 64, 64, **TF32), "bytes of shared memory"),
        (CLUSTER.with_knobs(block_k=32), problem(64, 64, 64), "a K-slice has 128 bytes"),
        (CLUSTER.with_knobs(promote=1), problem(64, 64, 64), "sums a thread"),
        (CLUSTER.with_knobs(cluster_m=3), problem(64, 64, 64), "1, 2, 4 or 8 of which share a load, got 3 by 1 by 1"),
        (CLUSTER.with_knobs(stages=6), problem(64, 64, 64), "bytes of shared memory"),
        (CLUSTER.with_knobs(grouped=True, copy_a=True), problem(64, 64, 64), "read where they lie"),
        (CLUSTER.with_knobs(grouped=True), problem(64, 64, 64), "`grouped` is for rows in groups"),
        (CLUSTER.with_knobs(swapped=True), problem(64, 64, 64, epilogue=ADDEND), "C's transpose has no addend"),
        (CLUSTER.with_knobs(swapped=True), problem(64, 64, 64, dtype="int8"), "C of floats of 8 or 16 bits"),
        (CLUSTER.with_knobs(block_n=128, cluster_k=2), problem(64, 64, 64), "a slice or more each, got K = 64"),
        (CLUSTER.with_knobs(block_n=128, cluster_k=2, grouped=True), problem(512, 512, 512), "nor of groups"),
        (CLUSTER.with_knobs(block_n=128, cluster_k=2), problem(4096, 4096, 512), "one tile a cluster"),
        (CLUSTER.with_knobs(split=True), problem(512, 512, 512), "a split takes two strips and two slices"),
        (STRIPS.with_knobs(split=True), problem(512, 512, 64), "a split takes two strips and two slices"),
        (STRIPS.with_knobs(split=True, split_k=2), problem(512, 512, 192), "two slices of each part of K"),
        (STRIPS.with_knobs(split=True, promote=1, block_n=64), problem(512, 512, 512), "only bare sums of all of K"),
        (STRIPS.with_knobs(hold_back=1), problem(512, 512, 512, dtype_out="fp32"), "words of 16-bit results"),
        (STRIPS.with_knobs(hold_back=-1), problem(512, 512, 512), "0 slices or more"),
        (THREE.with_knobs(hold_back=1), problem(512, 512, 512), "and 3 consumers"),
        (CLUSTER.with_knobs(hold_back=2), problem(512, 512, 512, epilogue=Epilogue(scaled=True)), "160 a thread"),
        (CLUSTER.with_knobs(tiles_n=2), problem(512, 512, 512), "take a B along K"),
        (CLUSTER.with_knobs(tiles_n=2, cluster_n=2), problem(512, 512, 512, layout="nt"), "do not cut into columns"),
        (CLUSTER.with_knobs(tiles_n=2, block_k=128),
         problem(512, 512, 512, dtype="int8", dtype_out="int32", layout="nt"), "and of floats"),
        (CLUSTER.with_knobs(tiles_n=2), problem(512, 520, 512, layout="nt"), "2 tiles of 256 columns or 8 less cannot"),
        (CLUSTER.with_knobs(tiles_n=3), problem(512, 512, 512, layout="nt"), "3 tiles of 256 columns or 8 less cannot"),
        (CLUSTER.with_knobs(tiles_n=3, block_n=248), problem(512, 736, 512, layout="nt"), "a tile's last panel"),
        (CLUSTER.with_knobs(block_m=384, block_n=96, consumers=3, stages=2, tma_store=False), problem(512, 512, 512),
         "256 rows of A at most"),
        (CLUSTER.with_knobs(block_n=40, block_k=128, tma_store=False),
         problem(64, 72, 512, dtype="int8", dtype_out="int32", layout="nt"), "multiples of 16 columns above 32"),
        (CLUSTER.with_knobs(group_m=0), problem(512, 512, 512), "group_m: expected at least 1"),
        (CLUSTER.with_knobs(group_m=1 << 30), problem(512, 512, 512), "less than 2^31 tiles"),
        (CLUSTER, problem(1 << 31, 256, 64), "sizes of at most"),
        (LINES.with_knobs(line=48), problem(1000, 1000, 1000), "lines of 32, 64 or 128 bytes that A's rows break"),
        (LINES, problem(1000, 1000, 1024), "lines of 32, 64 or 128 bytes that A's rows break"),
        (LINES, problem(1000, 1000, 1000, layout="tn"), "rows of A in classes are contiguous"),
        (LINES.with_knobs(copy_b=True), problem(1000, 1000, 1000), "lie in place"),
        (LINES, problem(1004, 1000, 1000), "8 equal classes of rows"),
        (LINES, problem(1000, 1000, 1000, epilogue=Epilogue(bias=("m", 1), dtype_bias="fp32")), "terms of their own"),
        (LINES, problem(1000, 1000, 1000, epilogue=Epilogue(scale_a="row")), "terms of their own"),
        (PRECISE.with_knobs(group_m=0), problem(64, 64, 64, dtype="fp64"), "group_m: expected at least 1"),
        (REGISTERS.with_knobs(group_m=0), problem(64, 64, 64, **TF32), "group_m: expected at least 1"),
        (STREAM, problem(63, 64, 64, dtype="fp32", layout="tn"), "or copied, or brought by lanes"),
        (STREAM, problem(64, 64, 64, dtype="fp32"), "a has to be contiguous along C's axis"),
        (STREAM.with_knobs(num_warps=2), problem(64, 64, 64, dtype="fp32", layout="tn"), "64x64 by 4, 64x64 by 8"),
        (STREAM.with_knobs(lanes_a=True, block_k=12), problem(64, 64, 63, dtype="fp32"), "8 steps of K at once"),
        (STREAM.with_knobs(lanes_a=True, copy_a=True), problem(64, 64, 64, dtype="fp32"), "not both"),
        (STREAM.with_knobs(group_m=0), problem(64, 64, 64, dtype="fp32", layout="tn"), "group_m: expected at least 1"),
        (PRECISE, problem(64, 64, 64, dtype="fp32"), "fp64 throughout"),
        (PRECISE, problem(63, 63, 63, dtype="fp64"), "TMA needs a"),
        (PRECISE.with_knobs(block_n=40), problem(64, 64, 64, dtype="fp64"), "tiles of 128x128"),
        (PRECISE.with_knobs(block_k=32), problem(64, 64, 64, dtype="fp64"), "slices of 128 bytes"),
        (PRECISE.with_knobs(stages=8), problem(64, 64, 64, dtype="fp64"), "bytes of shared memory"),
        (PRECISE.with_knobs(programs=0, split=True), problem(64, 64, 64, dtype="fp64"), "in 2 stages at least"),
        (PRECISE.with_knobs(block_k=0, split=True), problem(64, 64, 64, dtype="fp64"), "slices of 128 bytes"),
    ],
)  # fmt: skip
def test_what_cuda_schedules_refuse(config, of, word):
    assert word in (config.why_invalid(of, GPU) or "")


@pytest.mark.parametrize("n", [1240, 1241, 1248, 1250, 1256, 1272, 1279, 1280])
def test_tiles_of_two_widths_cover_all_columns(n):
    config = CLUSTER.with_knobs(tiles_n=5)
    assert config.why_not_uneven(problem(512, n, 512, layout="nt")) is None
    wide = config.wide_tiles(n)
    assert 0 <= wide <= 5
    covered = wide * 256 + (5 - wide) * 248
    assert n <= covered < n + 8


def test_as_many_uneven_tiles_as_fill_the_last_round():
    for m, n, k, layout in ((4096, 4096, 4096, "nn"), (4096, 4096, 4096, "nt"), (6144, 6144, 6144, "nt")):
        of = problem(m, n, k, layout=layout)
        config = plan(of, GPU)
        clusters = config.tiles(of)
        assert config.tiles_n
        idle = -clusters % (132 // config.peers)
        assert idle < clusters // config.tiles_n, "no room for one more tile along these columns"
        assert f"{config.tiles_n} tiles along" in " ".join(schedule_of(config).facts(of, config, GPU))


def test_8_bit_types_keep_to_what_wgmma_takes():
    fp8 = problem(4096, 4096, 4096, dtype="fp8", dtype_out="bf16", layout="nt")
    assert plan(fp8, GPU).block_k == 128
    int8 = problem(4096, 4096, 4096, dtype="int8", dtype_out="int32", layout="nt")
    assert plan(int8, GPU).why_invalid(int8, GPU) is None
    assert not getattr(plan(int8, GPU), "swapped", False), "only C of 16 bits is turned on its way out"
    assert plan(problem(64, 64, 64, dtype="int8", dtype_out="int32"), GPU).schedule == "hopper_plain"
    narrow = plan(problem(64, 72, 512, dtype="int8", dtype_out="int32", layout="nt"), GPU)
    assert (narrow.schedule, narrow.block_n % 16) == ("hopper_cluster", 0), "wgmma of integers"


@pytest.mark.parametrize(
    ("config", "of", "word"),
    [
        (BIG, problem(64, 64, 64, dtype="fp32"), "multiplies two operands of"),
        (BIG, problem(63, 63, 63), "TMA needs a"),
        (BIG, problem(64, 63, 64), "TMA needs b"),
        (BIG, problem(64, 64, 64, dtype="int8", dtype_out="int32"), "8-bit operands along K"),
        (BIG, problem(64, 64, 64, batch=1000), "at most"),
        (BIG.with_knobs(stages=8), problem(512, 512, 512), "bytes of shared memory"),
        (BIG.with_knobs(stages=1), problem(512, 512, 512), "at least 2 stages"),
        (BIG.with_knobs(block_m=192), problem(512, 512, 512), "64 or 128 rows"),
        (BIG.with_knobs(block_n=192), problem(512, 512, 512), "power of two from 16 to 256"),
        (BIG.with_knobs(block_k=256), problem(512, 512, 512), "a K-slice has"),
        (BIG.with_knobs(block_m=256, stages=2), problem(512, 512, 512), "accumulators a thread"),
        (BIG.with_knobs(split_k=9), problem(512, 512, 512), "split_k is 1 to the 8"),
        (BIG.with_knobs(swapped=True), problem(512, 512, 512), "TMA store"),
        (BIG.with_knobs(num_warps=8), problem(512, 512, 512), "one warpgroup of 4 warps"),
        (BIG.with_knobs(pieces=3), problem(512, 512, 512), "1, 2 or 4 pieces"),
        (BIG.with_knobs(pieces=1, stages=2, buffers=2), problem(512, 512, 512), "buffers divide"),
        (BIG.with_knobs(lead=2), problem(512, 512, 128), "lead is under"),
        (BIG.with_knobs(lead=4), problem(512, 512, 512), "lead is under"),
        (BIG.with_knobs(max_registers=128), problem(512, 512, 512), "two consumers start with 168"),
        (BIG.with_knobs(block_m=64, consumers=1, max_registers=80), problem(512, 512, 512), "leave a consumer 136"),
        (BIG.with_knobs(programs=0), problem(512, 512, 512), "at least one program"),
        (BIG.with_knobs(group_m=0), problem(512, 512, 512), "group_m of at least 1"),
        (BIG.with_knobs(tma_store=False), problem(512, 1 << 24, 512), "2^31 apart"),
        (BIG.with_knobs(split_k=2, pieces=4), problem(1 << 16, 1 << 15, 512), "2^31 elements"),
        (BIG.with_knobs(split_k=2, swapped=True), problem(512, 512, 512), "not swapped"),
        (BIG.with_knobs(repack_a=True), problem(512, 512, 512, dtype="int8", dtype_out="int32", layout="nt"),
         "copies operands of fp16, bf16 only"),
        (BIG, problem(512, 512, 512, dtype_out="int32"), "products of bf16 go to"),
        (PlainConfig(block_m=16, block_n=16, block_k=16, num_warps=4), problem(64, 64, 64, dtype="fp8"),
         "two operands of"),
        (SkinnyConfig(block_n=64, block_k=128), problem(17, 64, 64), "16 rows at most"),
        (SkinnyConfig(block_n=64, block_k=128, use_dot=False), problem(2, 64, 64), "1 rows at most"),
        (SkinnyConfig(block_n=48, block_k=128), problem(1, 64, 64), "powers of two"),
        (PlainConfig(block_m=8, block_n=16, block_k=16, num_warps=4), problem(1, 1, 1), "16 at least"),
        (PlainConfig(block_m=16, block_n=16, block_k=16, num_warps=4, group_m=0), problem(1, 1, 1), "at least 1, got"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_the_reason(config, of, word):
    assert word in (config.why_invalid(of, GPU) or "")


@pytest.mark.parametrize(
    "config", [BIG, SkinnyConfig(block_n=64, block_k=128), PlainConfig(block_m=16, block_n=16, block_k=16, num_warps=4)]
)
def test_nothing_here_is_for_amd(config):
    assert GFX.name in (config.why_invalid(problem(512, 512, 512), GFX) or "")


def test_facts_are_sentences():
    for sizes in ((4096, 4096, 4096), (2049, 2047, 2050), (128, 128, 16384), (16, 4096, 4096), (1, 1, 1)):
        of = problem(*sizes)
        config = plan(of, GPU)
        assert all(isinstance(line, str) and line for line in schedule_of(config).facts(of, config, GPU))
