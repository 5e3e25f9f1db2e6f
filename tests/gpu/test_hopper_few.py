"""Few rows or columns of 16 bits by hopper_cluster, with K in any number of parts, on a real Hopper GPU."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from judged_products import DTYPES, GPU, LAYOUTS, assert_right, operand, run_twice  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.matmul.config import plan  # noqa: E402
from laneloom.ops.matmul.plan_few import CLUSTERS, TILE_ROWS, few_configs, is_few  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

SIZES = [(8, 4096, 512), (16, 1000, 1032), (24, 2056, 264), (32, 776, 3000), (5, 1352, 4104), (1, 3080, 520)]


pytestmark = pytest.mark.usefixtures("hopper")


def products(dtype, dtype_out):
    """Every size and layout that is for `few_configs`, upright and turned."""
    for (m, n, k), layout, turned in itertools.product(SIZES, LAYOUTS, (False, True)):
        sizes = (n, m, k) if turned else (m, n, k)
        problem = MatmulProblem.contiguous(*sizes, dtype=dtype, dtype_out=dtype_out, layout=layout)
        if is_few(problem):
            yield problem


@pytest.mark.parametrize("dtype_out", ["bf16", "fp32"])
@pytest.mark.parametrize("number", range(len(CLUSTERS) * len(TILE_ROWS)))
def test_every_tile_and_cluster(number, dtype_out):
    """Every config by a fifth of the products."""
    for problem in list(products("bf16", dtype_out))[number % 5 :: 5]:
        a = operand(problem.m, problem.k, torch.bfloat16, problem.layout[0], seed=1)
        b = operand(problem.k, problem.n, torch.bfloat16, problem.layout[1], seed=2)
        configs = [config for config, _ in few_configs(problem, GPU)]
        if number < len(configs):
            # wgmma cuts off half of FP32's last bit on average, at each 16 of K
            sums = max(2.0**-18, problem.k / 16 * 2.0**-24)
            assert_right(run_twice(problem, configs[number], a, b), a, b, sums=sums)


@pytest.mark.parametrize("parts", [3, 5, 6, 7, 8])
@pytest.mark.parametrize("columns", [8, 16, 24, 40, 64])
def test_fewer_finish_than_have_a_part(parts, columns):
    """Blocks of 8 columns that the parts do not divide, with all terms, C's rows anywhere in a wider buffer."""
    m, n, k = columns - 3, 967, 1032
    problem = MatmulProblem.contiguous(m, 968, k, dtype="fp16", layout="nt")
    chosen = next(config for config, _ in few_configs(MatmulProblem.contiguous(8, 968, k, dtype="fp16"), GPU))
    config = chosen.with_knobs(block_m=64, block_n=columns, consumers=1, cluster_m=1, cluster_k=parts, stages=3,
                               tma_store=False, programs=132 // parts * parts)  # fmt: skip
    assert config.why_invalid(problem, GPU) is None
    a, b = operand(m, k, torch.float16, "n", seed=1), operand(k, n, torch.float16, "t", seed=2)
    buffer = torch.full((m + 2, n + 5), 7.0, dtype=torch.float16, device="cuda")
    out = buffer[1:-1, 3 : n + 3]
    bias = operand(1, n, torch.float16, "n", seed=3)[0]
    got = laneloom.gemm(a, b, bias=bias, alpha=0.5, activation="relu", out=out, config=config)
    assert got is out
    want = torch.relu(0.5 * (a.double() @ b.double()) + bias.double())
    error = (out.double() - want).abs().max().item()
    assert error < 2**-10 * want.abs().max().item()
    out.fill_(7.0)
    assert (buffer == 7.0).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_what_the_plan_takes_with_terms(dtype):
    for problem in products(dtype, dtype):
        a = operand(problem.m, problem.k, DTYPES[dtype], problem.layout[0], seed=1)
        b = operand(problem.k, problem.n, DTYPES[dtype], problem.layout[1], seed=2)
        assert plan(problem, GPU).schedule in ("hopper_cluster", "hopper_skinny", "hopper_row", "hopper_rows")
        bias = operand(1, problem.n, DTYPES[dtype], "n", seed=3)[0]
        got = laneloom.gemm(a, b, bias=bias, beta=0.0)
        want = a.double() @ b.double() + bias.double()
        error = (got.double() - want).norm() / want.norm()
        assert error < torch.finfo(DTYPES[dtype]).eps
