"""8-bit floats whose blocks along K have scales, on a real GPU, against FP64: every tile, public calls, groups."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from judged_products import GPU, GUARD, norm_error  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.matmul.config_blocks import BlocksConfig  # noqa: E402
from laneloom.ops.matmul.execute import schedule_of  # noqa: E402
from laneloom.ops.matmul.plan_blocks import ONLY_TURNED, scaled_configs  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}


def operands(m, n, k, rows, columns, seed=0, dtypes=(E4, E4)):
    generator = torch.Generator("cuda").manual_seed(seed)
    blocks = -(-k // 128)
    a = torch.randn(m, k, device="cuda", generator=generator).to(dtypes[0])
    b = torch.randn(n, k, device="cuda", generator=generator).to(dtypes[1])
    scale_a = torch.rand(-(-m // rows), blocks, device="cuda", generator=generator) + 0.5
    scale_b = torch.rand(-(-n // columns), blocks, device="cuda", generator=generator) + 0.5
    return a, b.t(), scale_a, scale_b.t()


def truth(a, b, scale_a, scale_b):
    wide_a = scale_a.double().repeat_interleave(128, 1)[:, : a.shape[1]]
    wide_b = scale_b.double().repeat_interleave(128, 0)[: a.shape[1]]
    wide_a = wide_a if len(wide_a) == len(a) else wide_a.repeat_interleave(128, 0)[: len(a)]
    n = b.shape[1]
    wide_b = wide_b if wide_b.shape[1] == n else wide_b.repeat_interleave(128, 1)[:, :n]
    return (a.double() * wide_a) @ (b.double() * wide_b)


def assert_right(out, a, b, scale_a, scale_b):
    """Sums of 128 products in the tensor cores keep about 13 bits of the largest; one rounding of the result."""
    error = norm_error(out, truth(a, b, scale_a, scale_b))
    assert error <= 2.0**-10 + ROUNDING[out.dtype], f"{error:.2e}"


def run_twice(problem, config, a, b, *scales):
    buffer = torch.empty(problem.m * problem.n + 2 * GUARD, dtype=torch.bfloat16, device="cuda")
    results = []
    for _ in range(2):
        buffer.fill_(float("nan"))
        out = buffer[GUARD:-GUARD].view(problem.m, problem.n)
        schedule_of(config).launch(problem, config, GPU, a, b, out, *[None] * 4, *scales)
        assert torch.cat([buffer[:GUARD], buffer[-GUARD:]]).isnan().all(), "written outside of C"
        results.append(out.clone())
    assert torch.equal(*(r.view(torch.uint8) for r in results)), "not the same bits twice"
    return results[0]


def every_tile(problem, seed):
    """Of each tile one config of the plan, whatever its cluster and parts of K."""
    configs = [config for config, _ in scaled_configs(problem, GPU)]
    random.Random(seed).shuffle(configs)
    return list({(c.block_m, c.block_n, c.dual, c.swapped): c for c in configs}.values())


SIZES = [(400, 520, 1040), (72, 264, 144), (16, 512, 2064)]


@pytest.mark.parametrize("columns", [1, 128])
@pytest.mark.parametrize("size", SIZES)
def test_every_tile_of_the_plan(size, columns):
    problem = MatmulProblem.contiguous(*size, dtype="fp8", dtype_out="bf16", layout="nt", scales=(1, columns))
    x = operands(*size, 1, columns)
    configs = every_tile(problem, size[0])
    assert len(configs) >= (3 if size[0] <= ONLY_TURNED else 6)
    for config in configs:
        assert_right(run_twice(problem, config, *x), *x)


def test_one_scale_for_rows_and_columns():
    x = operands(384, 512, 640, 128, 128)
    problem = MatmulProblem.contiguous(384, 512, 640, dtype="fp8", dtype_out="bf16", layout="nt", scales=(128, 128))
    for config in every_tile(problem, 0)[::3]:
        assert_right(run_twice(problem, config, *x), *x)
    config = BlocksConfig(block_m=64, block_n=64, block_k=64)
    assert_right(run_twice(problem, config, *x), *x)


@pytest.mark.parametrize("seed", range(30))
def test_random_calls(seed):
    draw = random.Random(seed)
    m, n, k = (draw.choice((draw.randint(1, 300), draw.randint(1, 40) * 16, draw.randint(1, 2000))) for _ in range(3))
    rows, columns = draw.choice((1, 1, 128)), draw.choice((1, 128, 128))
    dtypes = draw.choice(((E4, E4), (E4, E5), (E5, E4), (E5, E5)))
    a, b, scale_a, scale_b = operands(m, n, k, rows, columns, seed, dtypes)
    if draw.random() < 0.3:  # other strides
        a, b = a.t().contiguous().t(), b.contiguous()
    if draw.random() < 0.3:
        scale_a, scale_b = scale_a.t().contiguous().t(), scale_b.contiguous()
    out_dtype = draw.choice([*ROUNDING])
    out = laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype)
    assert_right(out, a, b, scale_a, scale_b)
    bias = torch.randn(n, device="cuda")
    c = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
    terms = laneloom.gemm(a, b, c, beta=0.5, alpha=2.0, bias=bias, scale_a=scale_a, scale_b=scale_b)
    want = 2 * truth(a, b, scale_a, scale_b) + 0.5 * c.double() + bias.double()
    assert norm_error(terms, want) <= 2.0**-10


def test_a_batch_with_shared_scales():
    a, b, scale_a, scale_b = operands(160, 256, 384, 1, 128)
    batch = torch.stack([a.float(), -a.float()]).to(E4)
    out = laneloom.gemm(batch, b, scale_a=scale_a, scale_b=scale_b)
    assert_right(out[0], a, b, scale_a, scale_b)
    assert torch.equal(out[1], -out[0])
    own = torch.stack([scale_a, 2 * scale_a])
    assert torch.equal(laneloom.gemm(a.expand(2, -1, -1), b, scale_a=own, scale_b=scale_b)[1], 2 * out[0])


@pytest.mark.parametrize("columns", [1, 128])
@pytest.mark.parametrize("ends", [(0, 5, 133, 133, 400), (64, 128, 192, 256, 300)])
def test_groups(ends, columns):
    n, k = 320, 656
    parts = [operands(400, n, k, 1, columns, seed) for seed in range(len(ends))]
    a, scale_a = parts[0][0], parts[0][2]
    b, scale_b = torch.stack([p[1].t() for p in parts]).mT, torch.stack([p[3] for p in parts])
    out = torch.full((400, n), float("nan"), device="cuda")
    on_gpu = torch.tensor(ends, dtype=torch.int32, device="cuda")
    laneloom.grouped_matmul(a, b, on_gpu, scale_a=scale_a, scale_b=scale_b, out=out)
    first = 0
    for g, end in enumerate(ends):
        if end > first:
            rows = slice(first, end)
            assert_right(out[rows], a[rows], b[g], scale_a[rows], scale_b[g])
        first = max(first, end)
    assert out[first:].isnan().all(), "rows behind the last group"
