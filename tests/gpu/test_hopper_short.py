"""Up to 128 rows or columns of 8 and 16 bits, and few tiles, on a real Hopper GPU: what the plan may take."""

from __future__ import annotations

from itertools import islice

import pytest

torch = pytest.importorskip("torch")

from judged_products import GPU, LAYOUTS, assert_right, operand, run_twice  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.matmul.config import plan  # noqa: E402
from laneloom.ops.matmul.plan_cluster import cluster_configs  # noqa: E402
from laneloom.ops.matmul.plan_few import few_configs, is_few  # noqa: E402
from laneloom.ops.matmul.plan_short import CLUSTERS, is_short, short_configs  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

HALVES = [
    (m, n, k, layout, turned)
    for m, n, k in ((40, 968, 1032), (64, 4096, 512), (100, 600, 1352), (128, 2056, 776), (72, 520, 4104),
                    (264, 1032, 2056), (1000, 1000, 1000))
    for layout in LAYOUTS for turned in (False, True)
]  # fmt: skip
EIGHTHS = [(1, 4112, 528), (7, 1040, 4096), (24, 512, 2064), (48, 2064, 1040), (72, 1000, 528), (128, 1056, 1024),
           (300, 1040, 2064)]


pytestmark = pytest.mark.usefixtures("hopper")


def both(problem, wide):
    """Operands whose dtypes are the problem's."""
    a = operand(problem.m, problem.k, wide, problem.layout[0], seed=1)
    b = operand(problem.k, problem.n, wide, problem.layout[1], seed=2)
    return a, b


@pytest.mark.parametrize("dtype_out", ["bf16", "fp32"])
@pytest.mark.parametrize(("m", "n", "k", "layout", "turned"), HALVES)
def test_likely_configs_of_sixteen_bits(m, n, k, layout, turned, dtype_out):
    m, n = (n, m) if turned else (m, n)
    problem = MatmulProblem.contiguous(m, n, k, dtype="bf16", dtype_out=dtype_out, layout=layout)
    if not is_short(problem, GPU):
        pytest.skip("planned otherwise, as TMA cannot read it")
    a, b = both(problem, torch.bfloat16)
    sums = max(2.0**-18, k / 16 * 2.0**-24)  # wgmma cuts off half of FP32's last bit on average, at each 16 of K
    for config, _ in islice(short_configs(problem, GPU), 3):
        assert_right(run_twice(problem, config, a, b), a, b, sums=sums)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_cluster(cluster):
    """All tiles that the plan ranks first in clusters of one kind, of three products."""
    found = 0
    for m, n, k, layout in ((128, 2056, 4104, "nt"), (40, 968, 1032, "nn"), (96, 5120, 1352, "nt")):
        problem = MatmulProblem.contiguous(m, n, k, dtype="bf16", layout=layout)
        a, b = both(problem, torch.bfloat16)
        alike = {config.with_knobs(cluster_m=cluster[0], cluster_n=cluster[1], cluster_k=cluster[2],
                                   programs=132 // max(1, cluster[0] * cluster[1] * cluster[2])
                                   * cluster[0] * cluster[1] * cluster[2], stages=3)
                 for config, _ in short_configs(problem, GPU)}  # fmt: skip
        for config in alike:
            if config.why_invalid(problem, GPU) is None:
                assert_right(run_twice(problem, config, a, b), a, b, sums=max(2.0**-18, k / 16 * 2.0**-24))
                found += 1
    assert found


@pytest.mark.parametrize("pair", [("fp8", "fp8"), ("bf8", "fp8")])
@pytest.mark.parametrize(("m", "n", "k"), EIGHTHS)
def test_eight_bits(m, n, k, pair):
    """Of few rows and of more, scaled and bare."""
    kinds = {"fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2}
    problem = MatmulProblem.contiguous(m, n, k, dtype=pair[0], dtype_b=pair[1], dtype_out="bf16", layout="nt")
    assert is_few(problem) or is_short(problem, GPU)
    assert plan(problem, GPU).schedule == "hopper_cluster"
    a, b = (x.to(kinds[name]) for x, name in zip(both(problem, torch.float32), pair, strict=True))
    b = b.mT.contiguous().mT
    for config, _ in islice((few_configs if is_few(problem) else short_configs)(problem, GPU), 4):
        assert_right(run_twice(problem, config, a, b), a, b)
    scale_a, scale_b = (torch.rand(x, device="cuda") + 0.5 for x in ((m, 1), (1, n)))
    got = laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)
    want = (a.double() @ b.double()) * scale_a.double() * scale_b.double()
    assert (got.double() - want).norm() < (2**-8 + 2**-9) * want.norm()


@pytest.mark.parametrize(
    ("m", "n", "k", "layout"), [(1000, 2000, 24, "nt"), (520, 4096, 40, "nn"), (264, 1032, 64, "tt")])
def test_k_of_a_slice_or_less(m, n, k, layout):
    problem = MatmulProblem.contiguous(m, n, k, dtype="bf16", layout=layout)
    assert plan(problem, GPU).schedule == "hopper_cluster"
    a, b = both(problem, torch.bfloat16)
    for config, _ in islice(cluster_configs(problem, GPU), 4):
        assert_right(run_twice(problem, config, a, b), a, b)


@pytest.mark.parametrize(
    ("m", "n", "k", "layout"), [(40, 968, 1032, "nt"), (128, 2056, 776, "nn"), (968, 72, 1032, "tt")])
def test_with_every_term(m, n, k, layout):
    problem = MatmulProblem.contiguous(m, n, k, dtype="fp16", layout=layout)
    assert is_short(problem, GPU)
    a, b = both(problem, torch.float16)
    bias, c = operand(1, n, torch.float16, "n", seed=3)[0], operand(m, n, torch.float16, "n", seed=4)
    got = laneloom.gemm(a, b, c, bias=bias, alpha=0.5, beta=2.0, activation="relu")
    want = torch.relu(0.5 * (a.double() @ b.double()) + 2.0 * c.double() + bias.double())
    assert (got.double() - want).abs().max().item() < 2**-10 * want.abs().max().item()
