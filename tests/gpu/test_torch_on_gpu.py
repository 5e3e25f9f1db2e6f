"""PyTorch on a real GPU: operators in CUDA graphs and in Inductor's code, `patched` around a model that trains."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from judged_products import norm_error  # noqa: E402

import laneloom  # noqa: E402
import laneloom.pytorch  # noqa: E402
from laneloom.ops.target import active_gpu  # noqa: E402
from laneloom.pytorch import measurements, routing  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_patched.py"


def random(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, dtype=dtype, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def operands(n, seed=0):
    """Of every function, for sizes with n in them."""
    wide = torch.float64
    return {
        "matmul": (random(n, 256, seed=seed), random(256, 128, seed=seed + 1)),
        "gemm": (random(n, 256, seed=seed), random(256, 128, seed=seed + 1), random(128, seed=seed + 2)),
        "flash_attention": tuple(random(2, 4, n, 64, seed=seed + i) for i in range(3)),
        "transform3d": (random(n, 10, 10, 10, seed=seed, dtype=wide), random(10, 10, seed=seed + 1, dtype=wide)),
    }


FUNCTIONS = {
    "matmul": laneloom.matmul, "gemm": lambda a, b, c: laneloom.gemm(a, b, c, beta=0.5, activation="gelu"),
    "flash_attention": laneloom.flash_attention, "transform3d": laneloom.transform3d,
}  # fmt: skip


@pytest.fixture(autouse=True)
def needs_cuda_bindings(request):
    torch._dynamo.reset()
    if "transform3d" in request.node.name and importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("the extra cuda is not installed")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("gradients", [False, True])
def test_in_a_cuda_graph(name, gradients):
    """A graph, gradients included, replayed on other data gives the bits of an eager call."""
    function = FUNCTIONS[name]
    static = [x.requires_grad_(gradients) for x in operands(96)[name]]
    weight = torch.randn_like(function(*static).detach())

    def step(tensors):
        out = function(*tensors)
        return out, torch.autograd.grad(out, tensors, weight) if gradients else ()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(static)
    fresh = [x.requires_grad_(gradients) for x in operands(96, seed=50)[name]]
    with torch.no_grad():
        for x, y in zip(static, fresh, strict=True):
            x.copy_(y)
    graph.replay()
    expected = step(fresh)
    assert torch.equal(captured[0], expected[0])
    assert all(torch.equal(x, y) for x, y in zip(captured[1], expected[1], strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_by_inductor(name):
    function = FUNCTIONS[name]
    compiled = torch.compile(lambda *x: torch.relu(function(*x)) * 2, fullgraph=True, dynamic=True)
    for n in (96, 128):
        tensors = operands(n)[name]
        torch.testing.assert_close(compiled(*tensors), torch.relu(function(*tensors)) * 2)


def test_grouped_product_is_an_operator():
    a, b = random(100, 256), random(3, 256, 128, seed=1)
    ends = torch.tensor([30, 30, 100], dtype=torch.int32, device="cuda")
    torch.library.opcheck(torch.ops.laneloom.grouped_matmul.default, (a, b, ends))
    expected = laneloom.grouped_matmul(a, b, ends)
    assert torch.equal(torch.compile(laneloom.grouped_matmul, fullgraph=True)(a, b, ends), expected)
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.equal(laneloom.grouped_matmul(a.float(), b, ends), expected)


def test_calls_follow_autocast():
    a, b = random(128, 128, dtype=torch.float32), random(128, 128, seed=1, dtype=torch.float32)
    before = laneloom.matmul(a, b)
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(2):
            assert laneloom.matmul(a, b).dtype == torch.bfloat16
    assert before.dtype == laneloom.matmul(a, b).dtype == torch.float32


def test_patched_routes_by_measurements():
    known = measurements.table_of(active_gpu().name).measurements
    for m in (m for m in known if m.op == "matmul" and m.kind == "bf16 nt" and m.sizes[1] in (1, 16, 128)):
        batch, rows, columns, depth = m.sizes
        if batch > 1:
            continue
        a, w = random(rows, depth), random(columns, depth, seed=1)
        with laneloom.patched(captured=True) as p:
            out = F.linear(a, w)
        (entry,) = p.report().entries
        assert entry.routed == (m.ratio > routing.LEAST_GAIN), entry
        if entry.routed:
            assert torch.equal(out, laneloom.matmul(a, w.mT))


FP8 = torch.float8_e4m3fn
OF_ROWS, OF_COLUMNS, OF_GROUPS = (random(*shape, dtype=torch.float32).abs() for shape in ((96, 1), (1, 64), (3, 64)))
SCALED = {
    "tensor": lambda a, b, _: torch._scaled_mm(
        a, b[0].mT, OF_ROWS[:1], OF_ROWS[:1], out_dtype=torch.bfloat16, use_fast_accum=True),
    "rows, promoted": lambda a, b, _: torch._scaled_mm(a, b[0].mT, OF_ROWS, OF_COLUMNS, out_dtype=torch.bfloat16),
    "recipes": lambda a, b, _: F.scaled_mm(
        a, b[0].mT, OF_ROWS, F.ScalingType.RowWise, OF_COLUMNS, F.ScalingType.RowWise, use_fast_accum=True),
    "groups": lambda a, b, ends: torch._scaled_grouped_mm(
        a, b.mT, OF_ROWS[:, 0], OF_GROUPS, ends, out_dtype=torch.bfloat16, use_fast_accum=True),
    "groups, promoted": lambda a, b, ends: F.scaled_grouped_mm(
        a, b.mT, OF_ROWS[:, 0], F.ScalingType.RowWise, OF_GROUPS, F.ScalingType.RowWise, offs=ends),
    "groups of halves": lambda a, b, ends: F.grouped_mm(a.bfloat16(), b.bfloat16().mT, offs=ends),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
def test_patched_takes_scaled_and_grouped_products(name):
    a, b = random(96, 256).to(FP8), random(3, 64, 256, seed=1).to(FP8)
    ends = torch.tensor([16, 16, 96], dtype=torch.int32, device="cuda")
    expected = SCALED[name](a, b, ends)
    with laneloom.patched(always=True) as p:
        got = SCALED[name](a, b, ends)
    (entry,) = p.report().entries
    assert (entry.routed, entry.calls) == (True, 1)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("terms", [{}, {"bias": True}, {"scales": True}, {"bias": True, "scales": True}])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 5, 16, 33, 64])
def test_few_rows_of_8_bit_floats(rows, out_dtype, terms):
    """By turned tiles, with their terms; in FP32 from registers to memory."""
    a, b = random(rows, 2064).to(FP8), random(1000, 2064, seed=1).to(FP8).mT
    bias = random(1000, seed=2) if "bias" in terms else None
    scales = [random(n, seed=3, dtype=torch.float32).abs() if "scales" in terms else None for n in (rows, 1000)]
    truth = a.double() @ b.double()
    if scales[0] is not None:
        truth = scales[0].double()[:, None] * truth * scales[1].double()
    truth = truth if bias is None else truth + bias.double()
    for precision in (None, "promoted"):
        how = {"out_dtype": out_dtype, "precision": precision}
        got = laneloom.gemm(a, b, bias=bias, scale_a=scales[0], scale_b=scales[1], **how)
        sums = 2.0**-9 if precision is None else 2.0**-12
        assert norm_error(got, truth) <= (2.0**-8 if out_dtype == torch.bfloat16 else sums)


def test_torch_s_own_layer_in_one_graph():
    """nn.TransformerEncoderLayer, patched, compiled with fullgraph, its step captured: gradients as near as torch's."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True, device="cuda")
    x = random(4, 128, 256, dtype=torch.float32)

    def gradients(run):
        layer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            out = run(x)
        out.float().square().mean().backward()
        return torch.cat([p.grad.flatten() for p in layer.parameters()])

    plain = gradients(layer)
    compiled = torch.compile(layer, fullgraph=True)
    with laneloom.patched(always=True) as p:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                gradients(compiled)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = gradients(compiled)
    graph.replay()
    assert len(p.report().entries) >= 5
    assert all(entry.routed for entry in p.report().entries)
    layer.double()
    out = layer(x.double())
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(out.square().mean(), list(layer.parameters()))])
    ours, theirs = ((g.double() - truth).norm() / truth.norm() for g in (captured, plain))
    assert ours <= 1.5 * theirs, (ours, theirs)


@pytest.mark.parametrize("flags", [[], ["--compile"], ["--graph"], ["--compile", "--graph"]], ids=" ".join)
def test_example_trains_the_same_curve(flags):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--always", "--steps", "12", *flags], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "laneloom  " in done.stdout
