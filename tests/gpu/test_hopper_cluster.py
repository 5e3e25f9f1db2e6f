"""Hopper's CUDA C++ schedules on a real GPU, against FP64: clusters, precisions, epilogues, batches."""

from __future__ import annotations

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from judged_products import DTYPES, GPU, LAYOUTS, ROUNDING, assert_right, norm_error, operand, run_twice  # noqa: E402

import laneloom  # noqa: E402
from laneloom.errors import UnsupportedError  # noqa: E402
from laneloom.ops.matmul.api import explain  # noqa: E402
from laneloom.ops.matmul.config_cluster import ClusterConfig  # noqa: E402
from laneloom.ops.matmul.config_precise import PRECISE_TILES, PreciseConfig  # noqa: E402
from laneloom.ops.matmul.execute import schedule_of  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

CLUSTERS = {
    "alone": ClusterConfig(block_m=128, block_n=256, block_k=64, stages=4, panels=2),
    "fetched": ClusterConfig(block_m=64, block_n=64, block_k=64, stages=7, consumers=1, cluster_m=2, fetched=5),
    "2x1": ClusterConfig(block_m=128, block_n=256, block_k=64, stages=4, panels=2, cluster_m=2),
    "1x2": ClusterConfig(block_m=256, block_n=128, block_k=64, stages=4, panels=2, cluster_n=2),
    "2x2": ClusterConfig(block_m=64, block_n=128, block_k=64, stages=8, consumers=1, cluster_m=2, cluster_n=2),
    "4x2": ClusterConfig(block_m=128, block_n=128, block_k=64, stages=6, cluster_m=4, cluster_n=2),
    "three consumers": ClusterConfig(block_m=192, block_n=64, block_k=64, stages=6, consumers=3, cluster_n=4),
    "few programs": ClusterConfig(block_m=128, block_n=128, block_k=64, stages=3, cluster_m=2, programs=4),
    "copied": ClusterConfig(block_m=128, block_n=128, block_k=64, stages=6, cluster_m=2, copy_a=True, copy_b=True),
    "promoted": ClusterConfig(block_m=128, block_n=128, block_k=64, stages=6, promote=2),
    "masked stores": ClusterConfig(block_m=128, block_n=128, block_k=64, stages=6, tma_store=False),
    "192x192": ClusterConfig(block_m=192, block_n=192, block_k=64, stages=4, consumers=3, cluster_n=2),
    "256x160": ClusterConfig(block_m=256, block_n=160, block_k=64, stages=3, cluster_m=2, tma_store=False),
    "transposed": ClusterConfig(block_m=128, block_n=200, block_k=64, stages=4, swapped=True, panels=2),
    "transposed, 76 rows a share": ClusterConfig(
        block_m=256, block_n=152, block_k=64, stages=3, swapped=True, cluster_m=2),
    "transposed, masked stores": ClusterConfig(
        block_m=64, block_n=40, block_k=64, stages=9, consumers=1, swapped=True, cluster_n=2, tma_store=False),
}  # fmt: skip

#: with a part of K in each CTA; one tile a cluster
PARTS = {
    "two": ClusterConfig(block_m=128, block_n=128, block_k=64, stages=5, cluster_k=2),
    "two that share": ClusterConfig(
        block_m=64, block_n=128, block_k=64, stages=6, consumers=1, cluster_k=2, cluster_n=2),
    "four": ClusterConfig(block_m=192, block_n=96, block_k=64, stages=3, consumers=3, cluster_k=4, tma_store=False),
    "transposed": ClusterConfig(block_m=256, block_n=96, block_k=64, stages=3, cluster_k=2, swapped=True),
    "two, b shared": ClusterConfig(block_m=128, block_n=96, block_k=64, stages=5, cluster_k=2, cluster_m=2),
    "four, a shared, transposed": ClusterConfig(
        block_m=64, block_n=96, block_k=64, stages=6, consumers=1, cluster_k=4, cluster_n=2, swapped=True),
    "two, both shared": ClusterConfig(
        block_m=192, block_n=80, block_k=64, stages=4, consumers=3, cluster_k=2, cluster_m=2, cluster_n=2,
        tma_store=False),
    "two, four share": ClusterConfig(
        block_m=64, block_n=192, block_k=64, stages=5, consumers=1, cluster_k=2, cluster_m=4),
    "transposed, masked stores": ClusterConfig(
        block_m=64, block_n=64, block_k=64, stages=6, consumers=1, cluster_k=4, swapped=True, tma_store=False),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_in_every_layout(name, layout, dtype):
    problem = MatmulProblem.contiguous(1000, 1032, 520, dtype=dtype, layout=layout)
    a = operand(1000, 520, DTYPES[dtype], layout[0], seed=1)
    b = operand(520, 1032, DTYPES[dtype], layout[1], seed=2)
    assert_right(run_twice(problem, CLUSTERS[name], a, b), a, b)


@pytest.mark.parametrize("k", [256, 1000])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_k_are_exchanged(name, layout, k):
    problem = MatmulProblem.contiguous(264, 328, k, dtype="bf16", layout=layout)
    a = operand(264, k, torch.bfloat16, layout[0], seed=1)
    b = operand(k, 328, torch.bfloat16, layout[1], seed=2)
    assert_right(run_twice(problem, PARTS[name], a, b), a, b)


@pytest.mark.parametrize("columns", [8, 48, 72, 144, 248])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_of_any_multiple_of_8_columns(layout, columns):
    config = ClusterConfig(block_m=128, block_n=columns, block_k=64, stages=4, tma_store=False)
    a, b = operand(296, 264, torch.bfloat16, layout[0], seed=1), operand(264, 520, torch.bfloat16, layout[1], seed=2)
    assert_right(run_twice(MatmulProblem.contiguous(296, 520, 264, dtype="bf16", layout=layout), config, a, b), a, b)


@pytest.mark.parametrize("sizes", [(129, 130 * 8, 64), (72, 8, 128), (8, 200, 72), (1000, 264, 1000), (65, 1001, 96)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_at_the_edges(layout, sizes):
    m, n, k = sizes
    a, b = operand(m, k, torch.float16, layout[0], seed=1), operand(k, n, torch.float16, layout[1], seed=2)
    problem = MatmulProblem.contiguous(m, n, k, dtype="fp16", layout=layout)
    for knobs in ({"cluster_m": 2}, {"cluster_n": 2}, {"block_n": 160}):
        config = ClusterConfig(**{"block_m": 128, "block_n": 128, "block_k": 64, "stages": 3, **knobs}, tma_store=False)
        if config.why_invalid(problem, GPU) is None:
            assert_right(run_twice(problem, config, a, b), a, b)


BY_LANES = {
    "a panel": {"block_m": 64, "block_n": 64, "consumers": 1},
    "two panels": {"block_m": 128, "block_n": 128, "hold_back": 2, "panels": 2},
    "parts of panels": {"block_m": 128, "block_n": 208, "panels": 1, "stages": 4},
    "four panels": {"block_m": 128, "block_n": 256, "panels": 2, "stages": 3},
    "strips in turn": {"block_m": 256, "block_n": 128, "split": True, "hold_back": 1, "panels": 2, "stages": 3},
    "tiles of one warpgroup": {"block_m": 128, "block_n": 176, "own_tiles": True, "panels": 2, "stages": 4},
    "two widths": {"block_m": 128, "block_n": 136, "tiles_n": 8},
    "parts of K": {"block_m": 128, "block_n": 128, "cluster_k": 2},
    "turned": {"block_m": 128, "block_n": 128, "swapped": True, "panels": 2},
}  # fmt: skip


@pytest.mark.parametrize("dtype_out", ["bf16", "fp32"])
@pytest.mark.parametrize("step", [1, 2, 4, 8])
@pytest.mark.parametrize("name", BY_LANES)
def test_rows_of_c_begin_anywhere(name, step, dtype_out):
    """Rows that are whole numbers of `step` elements, inside of a wider buffer, which stays as it was."""
    m, n, k = 517, 1024 + step, 264
    a, b = operand(m, k, torch.bfloat16, "n", seed=1), operand(k, n, torch.bfloat16, "t", seed=2)
    buffer = torch.full((m + 2, n + 3 * step), 7.0, dtype=DTYPES[dtype_out], device="cuda")
    out = buffer[1:-1, step : step + n]
    config = ClusterConfig(**{"block_k": 64, "stages": 5, "tma_store": False, **BY_LANES[name]})
    if dtype_out == "fp32":  # of which nothing is held back or turned
        config = config.with_knobs(hold_back=0, swapped=False)
    assert laneloom.matmul(a, b, out=out, out_dtype=out.dtype, config=config) is out
    assert_right(out, a, b)
    out.fill_(7.0)
    assert (buffer == 7.0).all()


@pytest.mark.parametrize("sizes", [(520, 776, 200), (1, 333, 257), (129, 1, 1031), (517, 771, 203)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp64(layout, sizes):
    m, n, k = sizes
    problem = MatmulProblem.contiguous(m, n, k, dtype="fp64", layout=layout)
    a, b = operand(m, k, torch.float64, layout[0], seed=1), operand(k, n, torch.float64, layout[1], seed=2)
    in_place = m % 4 == n % 4 == k % 4 == 0
    for (block_m, block_n, warps), copied, split in itertools.product(PRECISE_TILES, (False, True), (False, True)):
        config = PreciseConfig(
            block_m=block_m, block_n=block_n, block_k=16, num_warps=warps, stages=3, copy_a=copied or not in_place,
            split=split, copy_b=copied or not in_place)  # fmt: skip
        # The truth has the same precision: both sums' bound.
        assert norm_error(run_twice(problem, config, a, b), a @ b) <= 4 * k**0.5 * 2.0**-53


@pytest.mark.parametrize("programs", [1, 3, 31, 132, 500])
def test_fp64_in_shares_of_any_length_and_in_graphs(programs):
    """Shares of a part, of one tile, of several; more CTAs than fit; a graph launches with the same number again."""
    for m, n, k in ((300, 500, 778), (128, 256, 5000), (1500, 1100, 90)):
        problem = MatmulProblem.contiguous(m, n, k, dtype="fp64")
        a, b = operand(m, k, torch.float64, seed=1), operand(k, n, torch.float64, seed=2)
        config = PreciseConfig(block_m=64, block_n=128, block_k=16, stages=3, split=True, programs=programs)
        assert norm_error(run_twice(problem, config, a, b), a @ b) <= 4 * k**0.5 * 2.0**-53
    out, graph = torch.empty_like(a @ b), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        schedule_of(config).launch(problem, config, GPU, a, b, out)
    for _ in range(5):
        a.normal_()
        out.fill_(float("nan"))
        graph.replay()
        assert norm_error(out, a @ b) <= 4 * k**0.5 * 2.0**-53


@pytest.mark.parametrize("precision", ["tf32", "3xtf32", "3xbf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(512, 768, 512), (333, 129, 1027), (1, 300, 200), (64, 1000, 4096)])
def test_fp32_on_the_tensor_cores(sizes, layout, precision):
    m, n, k = sizes
    a, b = operand(m, k, torch.float32, layout[0], seed=3), operand(k, n, torch.float32, layout[1], seed=4)
    out = laneloom.matmul(a, b, precision=precision)
    assert_right(out, a, b, precision, sums=0.0)
    assert torch.equal(out, laneloom.matmul(a, b, precision=precision))
    schedules = ("hopper_cluster",) if precision == "3xbf16" else ("hopper_registers", "hopper_cluster")
    assert explain(a, b, precision=precision).config.schedule in schedules


def test_pieces_are_no_worse_than_cublas_in_fp32():
    torch.backends.cuda.matmul.allow_tf32 = False
    for k in (64, 512, 4096, 16384):
        a, b = operand(512, k, torch.float32, seed=k), operand(k, 512, torch.float32, seed=k + 1)
        truth = a.double() @ b.double()
        theirs = norm_error(a @ b, truth)
        for precision in ("3xtf32", "3xbf16"):
            assert norm_error(laneloom.matmul(a, b, precision=precision), truth) <= theirs


@pytest.mark.parametrize("pair", [("fp8", "fp8"), ("fp8", "bf8"), ("bf8", "fp8"), ("bf8", "bf8")])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(512, 768, 512), (333, 129, 1027)])
def test_every_pair_of_8_bit_floats_in_every_layout(sizes, layout, pair):
    m, n, k = sizes
    a, b = operand(m, k, DTYPES[pair[0]], layout[0], seed=1), operand(k, n, DTYPES[pair[1]], layout[1], seed=2)
    for dtype in (torch.float32, torch.bfloat16):
        a32, b32 = a.to(torch.float32), b.to(torch.float32)
        out = laneloom.matmul(a, b, out_dtype=dtype)
        assert norm_error(out, a32.double() @ b32.double()) <= 2.0**-9 + ROUNDING[dtype]


def test_promoted_sums_of_8_bit_floats_are_nearer():
    a, b = operand(512, 8192, DTYPES["fp8"], seed=1), operand(8192, 512, DTYPES["fp8"], "t", seed=2)
    problem = MatmulProblem.contiguous(512, 512, 8192, dtype="fp8", dtype_out="fp32", layout="nt")
    truth = a.double() @ b.double()
    config = ClusterConfig(block_m=128, block_n=128, block_k=128, stages=6)
    fast, slow = (norm_error(run_twice(problem, config.with_knobs(promote=p), a, b), truth) for p in (0, 1))
    assert slow < fast / 2


@pytest.mark.parametrize("pair", [("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8"), ("uint8", "int8")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_pair_of_8_bit_integers_is_exact(layout, pair):
    for m, n, k in ((512, 768, 512), (333, 129, 1027)):
        a, b = operand(m, k, DTYPES[pair[0]], layout[0], seed=1), operand(k, n, DTYPES[pair[1]], layout[1], seed=2)
        assert_right(laneloom.matmul(a, b), a, b)
        nearest = (a.double() @ b.double()).to(torch.bfloat16)
        assert torch.equal(laneloom.matmul(a, b, out_dtype=torch.bfloat16), nearest)


ACTIVATIONS = {
    None: lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "fp32", "fp64", "int8"])
@pytest.mark.parametrize("sizes", [(512, 768, 256), (333, 129, 519), (5, 2048, 2048)])
def test_epilogues(sizes, dtype, activation):
    m, n, k = sizes
    a, b = operand(m, k, DTYPES[dtype], seed=1), operand(k, n, DTYPES[dtype], "t", seed=2)
    if dtype == "int8":
        a, b = a % 4, b % 4
    out_dtype = {"fp32": torch.float32, "fp64": torch.float64}.get(dtype, torch.bfloat16)
    c = operand(m, n, torch.bfloat16 if dtype != "fp64" else torch.float32, seed=3)
    bias = operand(1, n, torch.float32, seed=4)[0]
    scale_a, scale_b = torch.rand(m, device="cuda"), torch.rand(n, device="cuda")
    product = a.double() @ b.double()
    for scales in ({}, {"scale_a": 0.25, "scale_b": scale_b}, {"scale_a": scale_a, "scale_b": scale_b}):
        out = laneloom.gemm(
            a, b, c, alpha=0.5, beta=-1.5, bias=bias, activation=activation, out_dtype=out_dtype, **scales)
        x = 0.5 * product
        if scales:
            x = x * (scale_a.double()[:, None] if scales["scale_a"] is scale_a else 0.25) * scale_b.double()
        sums = x.norm() * {1: 2.0**-9, 2: 2.0**-18, 4: 2.0**-20}.get(a.element_size(), 4 * k**0.5 * 2.0**-53)
        truth = ACTIVATIONS[activation](x - 1.5 * c.double() + bias.double())
        # An activation stretches an error by 1.2 at most.
        budget = 1.2 * sums + (ROUNDING[out_dtype] + 2.0**-21 * (dtype != "fp64")) * truth.norm()
        assert not out.isnan().any()
        assert (out.double() - truth).norm() <= budget


def test_an_epilogue_in_place():
    a, b = operand(512, 512, torch.bfloat16, seed=1), operand(512, 512, torch.bfloat16, seed=2)
    c = operand(512, 512, torch.bfloat16, seed=3)
    expected = laneloom.gemm(a, b, c, beta=1.0)
    laneloom.gemm(a, b, c, beta=1.0, out=c)
    assert torch.equal(c, expected)


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp32", "fp64"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_batches(layout, dtype):
    for m, n, k in ((128, 192, 96), (65, 130, 67)):
        a = torch.stack([operand(m, k, DTYPES[dtype], layout[0], seed=s) for s in range(6)])
        b = torch.stack([operand(k, n, DTYPES[dtype], layout[1], seed=s + 9) for s in range(6)])
        if layout == "nt":
            b = torch.stack([x.mT.contiguous() for x in b]).mT
        out_dtype = torch.float32 if dtype == "fp8" else None
        out = laneloom.matmul(a.view(2, 3, m, k), b.view(2, 3, k, n) if layout == "nn" else b.unflatten(0, (2, 3)),
                              out_dtype=out_dtype)
        for i, product in enumerate(out.view(6, m, n)):
            if dtype == "fp64":
                assert norm_error(product, a[i] @ b[i]) <= 4 * k**0.5 * 2.0**-53
            else:
                assert_right(product, a[i], b[i])
        shared = laneloom.matmul(a, b[0].expand(6, k, n), out_dtype=out_dtype)
        alone = laneloom.matmul(a[5], b[0], out_dtype=out_dtype)
        assert norm_error(shared[5], alone.double()) <= 4 * k**0.5 * ROUNDING[shared.dtype]


@pytest.mark.parametrize("precision", ["tf32", "3xtf32", "3xbf16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(3, 17, 40), (20, 200, 999), (70, 33, 65)])
def test_batches_in_other_precisions(sizes, layout, precision):
    m, n, k = sizes
    sums = 2.0**-11 if precision == "tf32" else (k / 6) ** 0.5 * 2.0**-24  # two operands of 11 bits; a chain in FP32
    for batch in ((2, 5), (300, 1)):
        size = math.prod(batch)
        a = operand(size * m, k, torch.float32, seed=1).view(*batch, m, k)
        b = operand(size * k, n, torch.float32, seed=2).view(*batch, k, n)
        a = a.mT.contiguous().mT if layout[0] == "t" else a
        b = b.mT.contiguous().mT if layout[1] == "t" else b
        for x, y in ((a, b), (a, b[:1].expand(*batch, k, n)), (a[:, :1].expand(*batch, m, k), b)):
            out = laneloom.matmul(x, y, precision=precision)
            for at in itertools.product(range(batch[0])[:: batch[0] // 2], range(batch[1])):
                assert_right(out[at], x[at], y[at], precision, sums=sums)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "bf8", "int8", "uint8", "fp32", "fp64"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(1, 64, 128), (3, 17, 40), (20, 200, 1000), (33, 48, 16), (7, 1, 33)])
def test_batches_of_few_rows(sizes, layout, dtype):
    """Strided batches of two axes in either order, one that repeats, more products than launches would be."""
    m, n, k = sizes
    for batch in ((2, 5), (300, 1)):
        size = math.prod(batch)
        a = operand(size * m, k, DTYPES[dtype], seed=1).view(*batch, m, k)
        b = operand(size * k, n, DTYPES[dtype], seed=2).view(*batch, k, n)
        a = a.mT.contiguous().mT if layout[0] == "t" else a
        b = b.mT.contiguous().mT if layout[1] == "t" else b
        a = a.transpose(0, 1).contiguous().transpose(0, 1)
        out_dtype = torch.float32 if dtype in ("fp8", "bf8") else None
        for x, y in ((a, b), (a, b[:1].expand(*batch, k, n)), (a[:, :1].expand(*batch, m, k), b)):
            out = laneloom.matmul(x, y, out_dtype=out_dtype)
            for at in itertools.product(range(batch[0])[:: batch[0] // 2], range(batch[1])):
                # A chain of K roundings in FP32: the k-th is of a sum that grew as the root of k.
                assert_right(out[at], x[at], y[at], sums=(k / 6) ** 0.5 * 2.0**-24 if dtype == "fp32" else None)
            assert not out.double().isnan().any()


def test_in_a_cuda_graph():
    a, b = operand(1000, 1000, torch.bfloat16, seed=1), operand(1000, 1000, torch.bfloat16, seed=2)
    x, y = operand(512, 512, torch.float32, seed=1), operand(512, 512, torch.float32, seed=2)
    bias = operand(1, 1000, torch.float32, seed=3)[0]
    calls = [
        lambda: laneloom.matmul(a, b),
        lambda: laneloom.matmul(x, y, precision="3xtf32"),
        lambda: laneloom.matmul(x, y),
        lambda: laneloom.gemm(a, b, bias=bias, activation="relu"),
    ]
    expected = [call() for call in calls]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]
    for result in results:
        result.fill_(float("nan"))
    graph.replay()
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)


def test_gradients_of_fp32_pieces():
    a, b = operand(128, 256, torch.float32, seed=1), operand(256, 512, torch.float32, seed=2)
    grad = operand(128, 512, torch.float32, seed=3)
    a.requires_grad_()
    b.requires_grad_()
    laneloom.matmul(a, b, precision="3xtf32").backward(grad)
    assert_right(a.grad, grad, b.detach().mT, sums=0.0)
    assert_right(b.grad, a.detach().mT, grad, sums=0.0)


def test_what_hopper_has_no_instruction_for_is_refused():
    a = operand(64, 64, torch.float16)
    with pytest.raises(UnsupportedError, match="fp16"):
        laneloom.matmul(a, a, acc_dtype=torch.float16)
