"""laneloom.quantized_matmul on a real GPU: every weight, every way that `hopper_weights` takes, and what falls to
`tiles`."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from random_weights import PACKED, SCALES, judge, judge_groups  # noqa: E402

import laneloom  # noqa: E402
from laneloom import QuantizedWeight  # noqa: E402
from laneloom.ops.quantized_matmul.config_hopper import hopper_configs  # noqa: E402
from laneloom.ops.quantized_matmul.problem import QuantizedProblem  # noqa: E402
from laneloom.ops.target import active_gpu  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_allocations")]


def weight_of(dtype, n, k, group, *batch, scale="fp16", zeros=False) -> QuantizedWeight:
    packed = dtype in PACKED
    values = torch.randint(0, 256, (*batch, n, k // 2 if packed else k), dtype=torch.uint8, device="cuda")
    if dtype == "int8":
        values = values.view(torch.int8)
    elif dtype == "fp8":
        values = values.where(values & 0x7F != 0x7F, 0).view(torch.float8_e4m3fn)
    shape = (*batch, n, -(-k // group) if group else 1)
    if scale == "e8m0":
        scales = torch.randint(120, 134, shape, dtype=torch.uint8, device="cuda")
    else:
        scales = (torch.rand(shape, device="cuda") + 0.5).to(SCALES[scale])
    of_groups = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda") if zeros else None
    return QuantizedWeight(values, scales, dtype, group, of_groups)


def check(got, x, weight, bias=None) -> None:
    verdict = judge(got, x, weight, bias)
    assert verdict.ok, verdict


#: weight, scales, group, zeros
CASES = [
    ("int4", "fp16", 128, False), ("int4", "fp32", 64, False), ("int4", "bf16", None, False),
    ("uint4", "fp16", 128, True), ("uint4", "fp32", 32, True), ("uint4", "bf16", None, True),
    ("fp4", "e8m0", 32, False), ("fp4", "fp8", 16, False), ("fp4", "fp16", 256, False),
    ("int8", "fp32", None, False), ("int8", "fp16", 64, False), ("fp8", "fp32", None, False),
    ("fp8", "bf16", 128, False), ("fp8", "e8m0", 32, False),
]  # fmt: skip
#: rows, columns and K that fill no tile, the latter no slice either
SHAPES = [(1, 200, 1024), (16, 512, 2880), (100, 130, 736), (520, 3000, 544)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_weights(case, dtype):
    kind, scale, group, zeros = case
    for m, n, k in SHAPES:
        weight = weight_of(kind, n, k, group, scale=scale, zeros=zeros)
        x, bias = torch.randn(m, k, device="cuda").to(dtype), torch.randn(n, device="cuda").to(dtype)
        got = laneloom.quantized_matmul(x, weight, bias=bias, out_dtype=torch.float32)
        check(got, x, weight, bias)
        assert torch.equal(got, laneloom.quantized_matmul(x, weight, bias=bias, out_dtype=torch.float32))


def truth_and_budget(x, weight):
    """In FP64 on the GPU: the product, and how far bf16 results may be off. In each step of 16 of K the tensor cores
    cut off 2^-23 of the largest sum, each group is added in FP32, and the result is rounded once."""
    wide, k = weight.dequantize(torch.float32).double().mT, x.shape[1]
    truth, sizes = x.double() @ wide, x.double().abs() @ wide.abs()
    return truth, (k / 16 + k / weight.group + 2) * 2.0**-23 * sizes + 2.0**-8 * truth.abs()


@pytest.mark.parametrize("m", [1, 12, 30, 64, 150, 1100])
def test_every_config(m):
    """All that the plan ranks, several times over: what is overwritten too early is not always wrong."""
    n, k = 1000, 4096
    weight = weight_of("int4", n, k, 128)
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    configs = list(hopper_configs(QuantizedProblem.contiguous(m, n, k, dtype="bf16"), active_gpu()))
    assert len(configs) > 10
    truth, budget = truth_and_budget(x, weight)
    for config in configs:
        first = laneloom.quantized_matmul(x, weight, config=config)
        assert ((first.double() - truth).abs() <= budget).all(), config.text
        for _ in range(20):
            assert torch.equal(first, laneloom.quantized_matmul(x, weight, config=config)), config.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", ["eighths=4", "eighths=8,x_by_tma=True"])
def test_every_number_by_every_power_of_two(dtype, config):
    """By the identity, exactly: of bf16 down to 2**-128 and up to what FP32 holds."""
    codes = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2, dtype=torch.uint8, device="cuda")
    scales = torch.arange(255, dtype=torch.uint8, device="cuda")[:, None]
    weight = QuantizedWeight(codes.repeat(255, 1), scales, "fp4", 32)
    x, config = torch.eye(32, device="cuda").to(dtype), f"hopper_weights:{config},together=1,unit=2"
    got = laneloom.quantized_matmul(x, weight, out_dtype=torch.float32, config=config)
    assert torch.equal(got, weight.dequantize().T)


def test_where_it_lies():
    """Strides, batches, experts, a weight that repeats, transposed results, and rows that only `tiles` reads."""
    experts = weight_of("fp4", 96, 256, 32, 3, scale="e8m0")
    x = torch.randn(3, 5, 256, device="cuda", dtype=torch.bfloat16)
    check(laneloom.quantized_matmul(x, experts), x, experts)
    one = weight_of("int4", 96, 256, 128)
    check(laneloom.quantized_matmul(x, one), x, one)
    wide = torch.randn(7, 512, device="cuda", dtype=torch.bfloat16)
    for part in (wide[:, 8:264], wide[:, 1:257], wide[:, ::2]):
        check(laneloom.quantized_matmul(part, one), part, one)
    out = torch.empty(96, 7, device="cuda", dtype=torch.float32).T
    laneloom.quantized_matmul(wide[:, :256], one, out=out)
    check(out, wide[:, :256], one)


def test_captured():
    """A warm call in a CUDA graph, replayed with other numbers in x."""
    weight = weight_of("int4", 512, 1024, 128)
    x = torch.randn(4, 1024, device="cuda", dtype=torch.float16)
    laneloom.quantized_matmul(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = laneloom.quantized_matmul(x, weight)
    x.copy_(torch.randn(4, 1024) * 7)
    graph.replay()
    check(got, x, weight)


def test_gradients_and_compile():
    weight = laneloom.quantize_weight(torch.randn(256, 512, device="cuda"), "int4")
    x = torch.randn(9, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    step = torch.compile(lambda x: laneloom.quantized_matmul(x, weight).square().sum(), fullgraph=True)
    step(x).backward()
    y = laneloom.quantized_matmul(x.detach(), weight)
    wanted = (2 * y).double() @ weight.dequantize(torch.bfloat16).double()
    assert (x.grad.double() - wanted).norm() < 2 * 2.0**-8 * wanted.norm()


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_rows_in_groups(case):
    """Empty groups, groups that end within tiles; many of them; rows in none. The kernel alone reads where they end."""
    kind, scale, group, zeros = case
    for groups, m, n, k in ((3, 40, 200, 1024), (7, 900, 130, 736), (130, 400, 96, 288), (8, 5, 512, 2880)):
        weight, bias = weight_of(kind, n, k, group, groups, scale=scale, zeros=zeros), torch.randn(groups, n).cuda()
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        for seed in range(3):
            ends = torch.randint(0, m + 1, (groups,), generator=torch.Generator().manual_seed(seed)).sort().values
            out = torch.full((m, n), torch.nan, device="cuda")
            laneloom.quantized_matmul(x, weight, ends=ends.int().cuda(), bias=bias, out=out)
            last = judge_groups(out, x, weight, ends.tolist(), bias)
            assert out[last:].isnan().all()


@pytest.mark.parametrize("m", [16, 100, 1000, 3000])
def test_every_config_of_groups(m):
    groups, n, k = 20, 300, 1024
    weight = weight_of("int4", n, k, 128, groups)
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    ends = torch.randint(0, m + 1, (groups,)).sort().values.int()
    shape = QuantizedProblem.contiguous(m, n, k, dtype="bf16", batch=groups, ragged=True)
    truth, budget = torch.zeros(2, m, n, device="cuda", dtype=torch.float64)
    for group, (begin, end) in enumerate(pairwise((0, *ends.tolist()))):
        own = laneloom.QuantizedWeight(weight.values[group], weight.scales[group], "int4", 128)
        truth[begin:end], budget[begin:end] = truth_and_budget(x[begin:end], own)
    for config in hopper_configs(shape, active_gpu()):
        first = torch.zeros(m, n, device="cuda", dtype=torch.bfloat16)
        laneloom.quantized_matmul(x, weight, ends=ends.cuda(), out=first, config=config)
        assert ((first.double() - truth).abs() <= budget).all(), config.text
        for _ in range(10):
            again = torch.zeros_like(first)
            laneloom.quantized_matmul(x, weight, ends=ends.cuda(), out=again, config=config)
            assert torch.equal(first, again), config.text


def test_groups_in_a_graph():
    """Replayed with other ends."""
    weight = weight_of("int4", 512, 1024, 128, 16)
    x = torch.randn(64, 1024, device="cuda", dtype=torch.float16)
    ends = torch.arange(4, 65, 4, dtype=torch.int32, device="cuda")
    laneloom.quantized_matmul(x, weight, ends=ends)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = laneloom.quantized_matmul(x, weight, ends=ends)
    for numbers in ([*range(0, 64, 4)], [0] * 15 + [64], [60] * 16):
        ends.copy_(torch.tensor(numbers))
        graph.replay()
        judge_groups(got, x, weight, numbers)
