"""hopper_cluster whose warpgroups have tiles of their own, in turn, against FP64; terms, groups, few tiles and many."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from judged_products import DTYPES, GPU, LAYOUTS, ROUNDING, assert_right, norm_error, operand, run_twice  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.matmul.config_cluster import ClusterConfig  # noqa: E402
from laneloom.ops.matmul.plan_cluster import cluster_configs  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

OWN = ClusterConfig(block_m=128, block_n=128, block_k=64, stages=5, own_tiles=True, programs=4)
TILES = {
    "one program": {"programs": 1},
    "a program a tile": {"programs": 132},
    "wide, panels by twos": {"block_n": 192, "panels": 2, "stages": 4},
    "half a panel": {"block_n": 168},
    "a shared": {"cluster_n": 2},
    "b shared, turned": {"cluster_m": 2, "swapped": True, "block_n": 176},
    "masked stores": {"tma_store": False, "programs": 3},
    "masked stores, turned": {"tma_store": False, "swapped": True, "block_n": 136, "programs": 3},
    "two stages": {"stages": 2, "programs": 2},
}  # fmt: skip


@pytest.mark.parametrize("k", [64, 320, 1096])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TILES)
def test_every_way(name, layout, k):
    m, n = 904, 1064
    config = OWN.with_knobs(**TILES[name])
    if config.block_n % 16 and layout[0 if config.swapped else 1] == ("t" if config.swapped else "n"):
        config = config.with_knobs(block_n=config.block_n + 8)
    problem = MatmulProblem.contiguous(m, n, k, dtype="bf16", layout=layout)
    a, b = operand(m, k, torch.bfloat16, layout[0], 1), operand(k, n, torch.bfloat16, layout[1], 2)
    assert_right(run_twice(problem, config, a, b), a, b)


@pytest.mark.parametrize(("dtype", "out"), [("fp16", "fp16"), ("bf16", "fp32"), ("fp8", "bf16"), ("int8", "int32")])
@pytest.mark.parametrize("n", [1264, 1279, 1280])
def test_two_widths(dtype, out, n):
    k = 528
    problem = MatmulProblem.contiguous(776, n, k, dtype=dtype, dtype_out=out, layout="nt")
    block = 32 if dtype == "int8" else 128
    size = 128 if DTYPES[dtype].itemsize == 1 else 64
    config = OWN.with_knobs(block_k=size, block_n=block, tiles_n=-(-n // block), programs=3)
    config = config.with_knobs(tma_store=config.stores_by_tma(problem))
    a, b = operand(776, k, DTYPES[dtype], "n", 1), operand(k, n, DTYPES[dtype], "t", 2)
    assert_right(run_twice(problem, config, a, b), a, b)


@pytest.mark.parametrize("size", [(4096, 4096, 512), (3000, 5000, 256), (8192, 2112, 1000)])
def test_what_the_plan_ranks(size):
    """The first few widths, even and uneven, as the plan makes them."""
    problem = MatmulProblem.contiguous(*size, dtype="bf16", layout="nt")
    a = operand(size[0], size[2], torch.bfloat16, "n", 1)
    b = operand(size[2], size[1], torch.bfloat16, "t", 2)
    found = {}
    for config, _ in cluster_configs(problem, GPU):
        if config.own_tiles:
            found.setdefault((config.block_n, config.tiles_n > 0, config.swapped), config)
    assert len(found) > 8
    for config in list(found.values())[:12]:
        assert_right(run_twice(problem, config, a, b), a, b)


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_terms(activation, beta):
    a, b = operand(4096, 512, torch.bfloat16, seed=1), operand(512, 4096, torch.bfloat16, "t", 2)
    d, bias = operand(4096, 4096, torch.bfloat16, seed=3), operand(1, 4096, torch.bfloat16, seed=4)[0]
    out = laneloom.gemm(a, b, beta=beta, c=d if beta else None, bias=bias, activation=activation)
    truth = a.double() @ b.double() + beta * d.double() + bias.double()
    truth = torch.nn.functional.gelu(truth) if activation else truth
    assert norm_error(out, truth) <= 2 * ROUNDING[out.dtype]


@pytest.mark.parametrize("cluster_n", [1, 2])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_rows_in_groups(dtype, cluster_n):
    """Groups of random numbers of rows, some empty."""
    ends = torch.tensor([0, 700, 700, 713, 2000, 2900], dtype=torch.int32, device="cuda")
    a = operand(2900, 512, DTYPES[dtype], "n", 1)
    b = torch.stack([operand(640, 512, DTYPES[dtype], "n", seed) for seed in range(6)]).mT
    config = OWN.with_knobs(grouped=True, block_k=128 if dtype == "fp8" else 64, cluster_n=cluster_n, programs=132)
    out = laneloom.grouped_matmul(a, b, ends, out_dtype=torch.bfloat16, config=config)
    first = 0
    for group, end in enumerate(ends.tolist()):
        if end > first:
            assert_right(out[first:end], a[first:end], b[group])
        first = end
