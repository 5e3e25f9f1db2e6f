"""fp8 and bf8 with `precision="promoted"` on a real GPU: every tile, public calls, and no larger an error than torch's
without fast accumulation."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from judged_products import GPU, norm_error  # noqa: E402

import laneloom  # noqa: E402
from laneloom.bench.products import judge, operands  # noqa: E402
from laneloom.ops.matmul.execute import schedule_of  # noqa: E402
from laneloom.ops.matmul.plan_blocks import ONLY_TURNED, scaled_configs  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def promoted(m, n, k, out="fp32", layout="nt"):
    return MatmulProblem.contiguous(m, n, k, dtype="fp8", dtype_out=out, layout=layout, precision="promoted")


@pytest.mark.parametrize("out", ["fp32", "bf16"])
@pytest.mark.parametrize("size", [(400, 520, 1040), (72, 264, 144), (16, 512, 2064), (777, 1000, 400)])
def test_every_tile_of_the_plan(size, out):
    problem = promoted(*size, out)
    a, b = operands(problem, 0)
    kind = torch.float32 if out == "fp32" else torch.bfloat16
    configs = [config for config, _ in scaled_configs(problem, GPU)]
    random.Random(size[0]).shuffle(configs)
    of_tiles = {(c.block_m, c.block_n, c.scaled, c.dual, c.swapped): c for c in configs}
    assert len(of_tiles) >= (4 if size[0] <= ONLY_TURNED else 8)
    for config in of_tiles.values():
        results = []
        for _ in range(2):
            c = torch.full((problem.m, problem.n), float("nan"), dtype=kind, device="cuda")
            schedule_of(config).launch(problem, config, GPU, a, b, c)
            results.append(c)
        assert torch.equal(*results), "not the same bits twice"
        share, why = judge(problem, a, b, results[0])
        assert why is None, f"{config.text}: {why}"
        assert share <= 1


@pytest.mark.parametrize("k", [512, 4096, 32768])
def test_the_error_is_that_of_torch_without_fast_accumulation(k):
    a, b = operands(promoted(512, 1024, k), 1)
    one = torch.ones((), device="cuda")
    truth = a.double() @ b.double()
    theirs, fast = (
        norm_error(torch._scaled_mm(a, b, one, one, out_dtype=torch.float32, use_fast_accum=how), truth)
        for how in (False, True)
    )
    ours = norm_error(laneloom.matmul(a, b, precision="promoted"), truth)
    assert ours <= 1.02 * theirs  # sums of the same 128 products, in the tensor cores' order
    assert ours < 0.5 * fast


@pytest.mark.parametrize("seed", range(24))
def test_random_calls(seed):
    draw = random.Random(seed)
    m, n, k = (draw.choice((draw.randint(1, 300), draw.randint(1, 40) * 16, draw.randint(1, 2000))) for _ in range(3))
    dtypes = draw.choice(((E4, E4), (E4, E5), (E5, E4), (E5, E5)))
    generator = torch.Generator("cuda").manual_seed(seed)
    a = torch.randn(m, k, device="cuda", generator=generator).to(dtypes[0])
    b = torch.randn(n, k, device="cuda", generator=generator).to(dtypes[1]).t()
    if draw.random() < 0.3:  # other strides
        a, b = a.t().contiguous().t(), b.contiguous()
    truth = a.double() @ b.double()
    budget = 2.0**-12  # about 13 bits of each block's sum are right, whatever K is
    assert norm_error(laneloom.matmul(a, b, precision="promoted"), truth) <= budget
    scale_a, scale_b = (torch.rand(size, device="cuda", generator=generator) + 0.5 for size in (m, n))
    bias = torch.randn(n, device="cuda", generator=generator)
    terms = {"scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    got = laneloom.gemm(a, b, **terms, precision="promoted", out_dtype=torch.bfloat16)
    wanted = scale_a.double()[:, None] * truth * scale_b.double() + bias.double()
    assert norm_error(got, wanted) <= budget + 2.0**-8


def test_a_batch_and_a_graph():
    a = torch.randn(3, 200, 512, device="cuda").to(E4)
    b = torch.randn(3, 320, 512, device="cuda").to(E4).mT
    out = torch.empty(3, 200, 320, device="cuda")
    laneloom.matmul(a, b, out=out, precision="promoted")
    assert norm_error(out, a.double() @ b.double()) < 2.0**-11
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        laneloom.matmul(a, b, out=out, precision="promoted")
    first = out.clone()
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, first)


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ends", [(0, 5, 133, 133, 400), (64, 128, 192, 256, 300), (400, 400, 400, 400, 400)])
def test_groups(ends, out):
    n, k = 1000, 656
    generator = torch.Generator("cuda").manual_seed(ends[0])
    a = torch.randn(400, k, device="cuda", generator=generator).to(E4)
    b = torch.randn(len(ends), n, k, device="cuda", generator=generator).to(E4).mT
    scale_a = torch.rand(400, device="cuda", generator=generator) + 0.5
    scale_b = torch.rand(len(ends), n, device="cuda", generator=generator) + 0.5
    on_gpu = torch.tensor(ends, dtype=torch.int32, device="cuda")
    got = laneloom.grouped_matmul(
        a, b, on_gpu, scale_a=scale_a, scale_b=scale_b, out_dtype=out, precision="promoted")  # fmt: skip
    fast = laneloom.grouped_matmul(a, b, on_gpu, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.float32)
    first = 0
    for g, end in enumerate(ends):
        if end > first:
            rows = slice(first, end)
            truth = scale_a[rows, None].double() * (a[rows].double() @ b[g].double()) * scale_b[g].double()
            error = norm_error(got[rows], truth)
            assert error <= 2.0**-12 + (2.0**-8 if out == torch.bfloat16 else 0)
            assert out == torch.bfloat16 or error < norm_error(fast[rows], truth)
        first = max(first, end)
