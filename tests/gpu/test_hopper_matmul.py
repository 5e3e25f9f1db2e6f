"""laneloom.matmul and its Hopper schedules on a real GPU, against FP64."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

from judged_products import DTYPES, GPU, run_twice  # noqa: E402

from laneloom.errors import InvalidConfigError  # noqa: E402
from laneloom.ops.matmul.api import explain, matmul  # noqa: E402
from laneloom.ops.matmul.config import plan  # noqa: E402
from laneloom.ops.matmul.config_hopper import HopperConfig, PlainConfig, SkinnyConfig  # noqa: E402
from laneloom.ops.matmul.config_row import RowConfig  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

#: half a unit in the last place of 1.0
ROUNDING = {
    torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24, torch.float64: 2**-53, torch.int32: 0,
}  # fmt: skip
#: half of the smallest subnormal
SMALLEST = {
    torch.bfloat16: 2**-134, torch.float16: 2**-25, torch.float32: 2**-150, torch.float64: 0, torch.int32: 0,
}  # fmt: skip


def operand(rows, columns, dtype, transposed=False, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (columns, rows) if transposed else (rows, columns)
    if dtype == torch.int8:
        x = torch.randint(-128, 128, shape, dtype=dtype, device="cuda", generator=generator)
    else:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        x = torch.randn(shape, device="cuda", generator=generator, dtype=wide).to(dtype)
    return x.mT if transposed else x


@functools.cache
def worst_sum(k, dtype):
    """The worst error of torch's sums of k products on the same tensor cores, for each unit of what was summed."""
    k = -(-k // 16) * 16  # for other K torch leaves the tensor cores
    a, b = operand(1024, k, dtype, seed=5), operand(k, 1024, dtype, True, seed=6)
    if dtype == DTYPES["fp8"]:
        one = torch.ones((), device="cuda")
        out = torch._scaled_mm(a, b, one, one, out_dtype=torch.float32, use_fast_accum=True)
    elif dtype == torch.float64:
        return k * 2.0**-53  # the truth has the same precision: the bound on its own error
    elif dtype == torch.float32:
        torch.backends.cuda.matmul.allow_tf32 = False
        out = torch.mm(a, b)
    else:
        out = torch.mm(a, b, out_dtype=torch.float32)
    a, b = a.double(), b.double()
    return ((out.double() - a @ b).abs() / (a.abs() @ b.abs())).max().item()


def assert_right(out, a, b):
    """Within 2 x the worst error of torch's sums of as many terms, and one rounding of the output; int8 is exact."""
    dtype = a.dtype
    sums = 0.0 if dtype == torch.int8 else 2 * worst_sum(a.shape[1], dtype)
    a, b = a.double(), b.double()
    truth = a @ b
    budget = sums * (a.abs() @ b.abs()) + ROUNDING[out.dtype] * truth.abs() + SMALLEST[out.dtype]
    error = (out.double() - truth).abs()
    assert not out.double().isnan().any()
    assert (error <= budget).all(), f"worst error {(error - budget).max().item():.2e} over budget"


def check(sizes, layout, dtype, config, dtype_out=None):
    problem = MatmulProblem.contiguous(*sizes, dtype=dtype, dtype_out=dtype_out, layout=layout)
    assert config.why_invalid(problem, GPU) is None
    a = operand(problem.m, problem.k, DTYPES[dtype], layout[0] == "t", seed=1)
    b = operand(problem.k, problem.n, DTYPES[dtype], layout[1] == "t", seed=2)
    assert_right(run_twice(problem, config, a, b), a, b)


REPACK = {"repack_a": True, "repack_b": True, "tma_store": False}
SCHEDULES = {
    "128x256": ((1000, 1032, 520), HopperConfig(block_m=128, block_n=256, block_k=64, stages=4)),
    "256x128": ((1000, 1032, 520), HopperConfig(block_m=256, block_n=128, block_k=64, stages=4)),
    "128x128": ((264, 136, 72), HopperConfig(block_m=128, block_n=128, block_k=64, stages=6)),
    "64x256": ((520, 1032, 264), HopperConfig(block_m=64, block_n=256, block_k=64, stages=4, consumers=1)),
    "64x128": ((520, 1032, 264), HopperConfig(block_m=64, block_n=128, block_k=64, stages=8, consumers=1, pieces=1)),
    "128x64": ((520, 1032, 264), HopperConfig(block_m=128, block_n=64, block_k=64, stages=8, pieces=1)),
    "64x64": ((520, 136, 264), HopperConfig(block_m=64, block_n=64, block_k=128, stages=6, consumers=1, pieces=1)),
    "four pieces, two buffers": (
        (1000, 1032, 520), HopperConfig(block_m=128, block_n=256, block_k=64, stages=4, pieces=4, buffers=2, lead=1)),
    "split K": ((136, 264, 4104), HopperConfig(block_m=128, block_n=128, block_k=64, stages=6, split_k=5)),
    "repacked": ((517, 1027, 129), HopperConfig(block_m=256, block_n=128, block_k=64, stages=4, pieces=4, **REPACK)),
    "one program": ((304, 520, 136), HopperConfig(block_m=128, block_n=64, block_k=64, stages=3, programs=1)),
    "transposed": ((16, 1032, 2056), HopperConfig(block_m=64, block_n=16, block_k=128, stages=4, consumers=1,
                                                  pieces=1, swapped=True, tma_store=False)),
    "transposed, split K": ((8, 1032, 2056), HopperConfig(block_m=64, block_n=16, block_k=128, stages=4, consumers=1,
                                                          pieces=1, swapped=True, tma_store=False, split_k=3)),
    "transposed, repacked": ((5, 1031, 2057), HopperConfig(block_m=64, block_n=16, block_k=128, stages=4, consumers=1,
                                                           pieces=1, swapped=True, **REPACK)),
    "skinny": ((16, 1000, 2056), SkinnyConfig(block_n=64, block_k=128)),
    "skinny, split K": ((9, 1024, 1000), SkinnyConfig(block_n=16, block_k=256, split_k=3)),
    "one row": ((1, 1027, 1031), SkinnyConfig(block_n=4, block_k=2048, stages=2, use_dot=False)),
    "one column": ((1027, 1, 1031), SkinnyConfig(block_n=4, block_k=1024, stages=1, use_dot=False, swapped=True)),
    "one column, split K": ((2048, 1, 4096), HopperConfig(block_m=64, block_n=16, block_k=128, stages=6, consumers=1,
                                                          pieces=1, tma_store=False, split_k=4)),
    "plain": ((127, 129, 131), PlainConfig(block_m=32, block_n=32, block_k=128, num_warps=4, stages=2)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_is_right(name, layout, dtype):
    sizes, config = SCHEDULES[name]
    check(sizes, layout, dtype, config)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "int8"])
@pytest.mark.parametrize(
    ("rows", "k"), [(5120, 640), (2048, 4096), (1000, 8192), (304, 20000), (6000, 8192), (333, 777), (1, 5000)]
)
def test_a_matrix_times_one_column_and_one_row_times_a_matrix(rows, k, dtype):
    a, x = operand(rows, k, DTYPES[dtype], False, seed=1), operand(k, 1, DTYPES[dtype], False, seed=2)
    assert_right(matmul(a, x), a, x)
    assert_right(matmul(x.mT, a.mT), x.mT, a.mT)
    turned = operand(rows, k, DTYPES[dtype], True, seed=3)
    assert_right(matmul(turned, x), turned, x)


ROWS = {
    "two parts of K, columns moved back": (1032, 1031, RowConfig(block_n=64, num_warps=16, cluster_k=2, ahead=256)),
    "parts without a unit": (256, 37, RowConfig(block_n=256, num_warps=8, cluster_k=8, ahead=64)),
    "two units in flight": (3080, 1024, RowConfig(block_n=256, num_warps=8, stages=2, cluster_k=8, ahead=64)),
    "no cluster": (4096, 4096, RowConfig(block_n=128, num_warps=16, ahead=10000)),
    "two units in flight, a short turn": (3080, 1000, RowConfig(block_n=128, num_warps=8, stages=2, cluster_k=2)),
    "two units in flight, a ragged one": (3080, 2061, RowConfig(block_n=256, num_warps=8, stages=2, cluster_k=4)),
    "one warp": (40, 2048, RowConfig(block_n=32, num_warps=1, stages=2)),
    "clusters of 4": (3080, 520, RowConfig(block_n=128, num_warps=8, cluster_k=4)),
}  # fmt: skip


@pytest.mark.parametrize("dtype_out", [None, "fp32"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ROWS)
def test_one_row_streams(name, dtype, dtype_out):
    n, k, config = ROWS[name]
    check((1, n, k), "nn", dtype, config, dtype_out)


WIDE_ROWS = {
    "whole turns": (4096, 4096, RowConfig(block_n=16, num_warps=16, ahead=256)),
    "columns moved back, a ragged unit": (1036, 1031, RowConfig(block_n=32, num_warps=16, cluster_k=2, ahead=256)),
    "two units in flight": (264, 4100, RowConfig(block_n=64, num_warps=8, stages=2, cluster_k=8, ahead=64)),
    "parts without a unit": (64, 37, RowConfig(block_n=32, num_warps=8, cluster_k=8)),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("name", WIDE_ROWS)
def test_one_row_or_column_streams_in_full_precision(name, dtype, swapped):
    n, k, config = WIDE_ROWS[name]
    check((n, 1, k) if swapped else (1, n, k), "tn" if swapped else "nn", dtype, config.with_knobs(swapped=swapped))


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
@pytest.mark.parametrize("sizes", [(4096, 1, 4096), (3000, 1, 5000), (1, 1000, 300), (1, 136, 2049)])
def test_one_row_or_column_by_the_plan(sizes, dtype):
    layout = "tn" if sizes[1] == 1 else "nn"
    config = plan(MatmulProblem.contiguous(*sizes, dtype=dtype, layout=layout), GPU)
    assert (config.schedule == "hopper_row") == (sizes[1] == 1 or dtype != "bf16")
    check(sizes, layout, dtype, config)


@pytest.mark.parametrize("where", [0, -1])
@pytest.mark.parametrize("sizes", [(3072, 3072), (4096, 4096), (6144, 1032), (6144, 3000), (3072, 1025)])
def test_an_infinite_element_of_a_row_makes_infinities(sizes, where):
    """Also where lanes have no second unit of rows, or a part of one."""
    n, k = sizes
    a, b = operand(1, k, torch.bfloat16, seed=1), operand(k, n, torch.bfloat16, seed=2)
    a[0, where] = float("inf")
    assert torch.equal(matmul(a, b), torch.where(b[where] > 0, float("inf"), float("-inf")).to(torch.bfloat16)[None])


def test_one_row_and_its_product_may_be_strided():
    a, b = operand(1, 2 * 1031, torch.bfloat16, seed=1)[:, ::2], operand(1031, 1040, torch.bfloat16, seed=2)[:, 8:]
    out = torch.full((1, 2 * 1032), float("nan"), dtype=torch.bfloat16, device="cuda")
    config = RowConfig(block_n=64, num_warps=16, cluster_k=4, ahead=64)
    matmul(a, b, out=out[:, ::2], config=config)
    assert_right(out[:, ::2], a, b)
    assert out[:, 1::2].isnan().all()


def test_one_row_after_another():
    """Programmatic dependent launch: each launch reads the row that the one ahead wrote."""
    rotation = torch.linalg.qr(torch.randn(512, 512, device="cuda", dtype=torch.float64))[0]
    rotation = rotation.to(torch.bfloat16).contiguous()
    config = RowConfig(block_n=64, num_warps=16, cluster_k=2, ahead=256)
    x, y = operand(1, 512, torch.bfloat16), torch.empty(1, 512, dtype=torch.bfloat16, device="cuda")
    expected = x.clone()
    for _ in range(50):
        expected = matmul(expected, rotation, config=config)
        torch.cuda.synchronize()
    for _ in range(25):
        matmul(x, rotation, out=y, config=config)
        matmul(y, rotation, out=x, config=config)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("sizes", [(1024, 2048, 1040), (200, 528, 272), (16, 1040, 528)])
def test_int8_is_exact(sizes):
    check(sizes, "nt", "int8", HopperConfig(block_m=256, block_n=128, block_k=128, stages=4, pieces=4), "int32")


@pytest.mark.parametrize("sizes", [(1024, 2048, 1040), (200, 528, 272), (16, 1040, 528)])
def test_fp8_is_right(sizes):
    check(sizes, "nt", "fp8", HopperConfig(block_m=128, block_n=128, block_k=128, stages=4, pieces=4), "fp32")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1), (1, 4096, 4096), (2, 3, 5), (16, 6144, 4096), (127, 129, 131), (128, 4096, 2048), (255, 257, 64),
        (1000, 1000, 1000), (1023, 1025, 1027), (2048, 2048, 2048), (65536, 64, 64), (16, 16, 65536),
        (128, 128, 16384), (33, 20000, 1), (4095, 4097, 259),
    ],
)  # fmt: skip
def test_matmul_takes_any_size(sizes, transposed, dtype):
    m, n, k = sizes
    a, b = operand(m, k, dtype, seed=3), operand(k, n, dtype, transposed, seed=4)
    out = matmul(a, b)
    assert_right(out, a, b)
    assert torch.equal(out, matmul(a, b))
    given = torch.full_like(out, float("nan"))
    assert matmul(a, b, out=given) is given
    assert torch.equal(given, out)
    operator = torch.ops.laneloom.matmul(a, b, None, None)
    assert torch.equal(operator, out), "the operator and the warm path run the same kernel"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
@pytest.mark.parametrize("sizes", [(1, 300, 200), (130, 70, 333), (520, 1040, 272)])
def test_other_dtypes_are_right(sizes, dtype, transposed):
    m, n, k = sizes
    a, b = operand(m, k, dtype, seed=3), operand(k, n, dtype, transposed, seed=4)
    out_dtype = torch.int32 if dtype == torch.int8 else None
    out = matmul(a, b, out_dtype=out_dtype)
    assert_right(out, a, b)
    assert torch.equal(out, matmul(a, b, out_dtype=out_dtype))


def test_plan_that_ran_is_the_one_explained():
    a, b = operand(4096, 64, torch.bfloat16), operand(64, 4096, torch.bfloat16)
    assert explain(a, b).config.schedule == "hopper"
    assert explain(a[:1, :1], b[:1, :1]).config.schedule == "hopper_async"


def test_strided_and_batched_operands():
    x, y = operand(600, 900, torch.bfloat16), operand(900, 800, torch.bfloat16)
    for a, b in ((x[::2, ::3], y[::3, ::5]), (x[5:200, 7:600], y[7:600, 3:777]), (x.mT[3:, 1:], y[:599, 1:])):
        assert_right(matmul(a, b), a, b)
    batch = torch.stack([operand(130, 260, torch.float16, seed=s) for s in range(3)])
    weights = operand(260, 140, torch.float16, seed=9)
    for i, product in enumerate(matmul(batch, weights)):
        assert_right(product, batch[i], weights)
    for i, product in enumerate(matmul(batch, weights.expand(3, 260, 140))):
        assert_right(product, batch[i], weights)
    large = torch.stack([operand(1024, 512, torch.bfloat16, seed=s) for s in range(3)])
    other = torch.stack([operand(512, 1024, torch.bfloat16, seed=s + 7) for s in range(3)])
    for i, product in enumerate(matmul(large, other)):
        assert_right(product, large[i], other[i])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_products_of_a_batch_may_begin_at_any_address(dtype):
    """Copies are made for each product: the first of a batch lies at whole 16 bytes, the second does not."""
    m, n, k = (645, 502, 1002) if dtype == torch.bfloat16 else (260, 192, 128)
    batch = torch.randn(2 * m * k + 1, device="cuda", dtype=torch.float64).to(dtype).as_strided(
        (2, m, k), (m * k + (0 if m % 2 else 1), k, 1))  # fmt: skip
    other = torch.randn(2, k, n, device="cuda", dtype=torch.float64).to(dtype)
    assert batch[1].data_ptr() % 16 != 0
    for i, product in enumerate(matmul(batch, other)):
        assert_right(product, batch[i], other[i])


def test_out_may_be_strided_transposed_or_an_operand():
    a, b = operand(256, 256, torch.bfloat16, seed=1), operand(256, 256, torch.bfloat16, seed=2)
    expected = matmul(a, b)
    transposed = torch.empty(256, 256, dtype=a.dtype, device="cuda").mT
    assert torch.equal(matmul(a, b, out=transposed), expected)
    wide = torch.full((256, 600), float("nan"), dtype=a.dtype, device="cuda")
    matmul(a, b, out=wide[:, 3:259])
    assert torch.equal(wide[:, 3:259], expected)
    assert wide[:, :3].isnan().all()
    assert wide[:, 259:].isnan().all()
    matmul(a, b, out=a)
    assert torch.equal(a, expected)


def test_gradients():
    a, b = operand(128, 256, torch.bfloat16, seed=1), operand(256, 512, torch.bfloat16, seed=2)
    grad = operand(128, 512, torch.bfloat16, seed=3)
    a.requires_grad_()
    b.requires_grad_()
    matmul(a, b).backward(grad)
    assert_right(a.grad, grad, b.detach().mT)
    assert_right(b.grad, a.detach().mT, grad)


def test_in_a_cuda_graph():
    a, b = operand(512, 512, torch.bfloat16, seed=1), operand(512, 512, torch.bfloat16, seed=2)
    expected = matmul(a, b)
    out = torch.empty_like(expected)
    matmul(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, b, out=out)
        again = matmul(out, b)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, expected)
    assert torch.equal(again, matmul(expected, b))


def test_a_chain_of_dependent_launches():
    """Programmatic dependent launch: each launch reads what the one ahead wrote, and overwrites what it read."""
    rotation = torch.linalg.qr(torch.randn(512, 512, device="cuda", dtype=torch.float64))[0].to(torch.bfloat16)
    x, y = operand(512, 512, torch.bfloat16), torch.empty(512, 512, dtype=torch.bfloat16, device="cuda")
    expected = x.clone()
    for _ in range(50):
        expected = matmul(expected, rotation)
        torch.cuda.synchronize()
    for _ in range(25):
        matmul(x, rotation, out=y)
        matmul(y, rotation, out=x)
    assert torch.equal(x, expected)


def test_a_config_that_cannot_run_is_refused():
    a, b = operand(64, 64, torch.bfloat16), operand(64, 64, torch.bfloat16)
    with pytest.raises(InvalidConfigError, match="shared memory"):
        matmul(a, b, config=HopperConfig(block_m=128, block_n=256, block_k=64, stages=8))
    with pytest.raises(InvalidConfigError, match="TMA"):
        matmul(operand(64, 63, torch.bfloat16), b[:63], config=SCHEDULES["128x256"][1])


def test_more_than_2_31_elements():
    a, b = operand(70000, 64, torch.bfloat16, seed=1), operand(64, 33000, torch.bfloat16, seed=2)
    out = matmul(a, b)
    assert out.numel() > 2**31
    for rows in (slice(0, 64), slice(69936, 70000)):
        assert_right(out[rows], a[rows], b)
