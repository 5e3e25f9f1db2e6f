"""hopper_cluster where it writes C while the tensor cores multiply, several tiles a program, against FP64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from judged_products import LAYOUTS, ROUNDING, assert_right, error_of_torch, norm_error, operand, run_twice  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.matmul.config_cluster import ClusterConfig  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

OVERLAPPED = {
    "held back": ClusterConfig(block_m=128, block_n=256, block_k=64, stages=4, panels=2, hold_back=2, programs=3),
    "held back, transposed": ClusterConfig(
        block_m=128, block_n=200, block_k=64, stages=4, hold_back=1, swapped=True, cluster_m=2, programs=4),
    "held back, masked stores": ClusterConfig(
        block_m=128, block_n=136, block_k=64, stages=5, hold_back=2, tma_store=False, programs=3),
    "split": ClusterConfig(block_m=256, block_n=128, block_k=64, stages=4, panels=2, split=True, programs=3),
    "both": ClusterConfig(
        block_m=256, block_n=128, block_k=64, stages=4, panels=2, split=True, hold_back=1, cluster_n=2, programs=4),
    "both, transposed": ClusterConfig(
        block_m=256, block_n=152, block_k=64, stages=3, split=True, hold_back=1, swapped=True, programs=3),
}  # fmt: skip


@pytest.mark.parametrize("k", [72, 128, 192, 520])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OVERLAPPED)
def test_c_is_written_while_the_next_tile_is_multiplied(name, layout, k):
    problem = MatmulProblem.contiguous(1000, 1032, k, dtype="fp16", layout=layout)
    a = operand(1000, k, torch.float16, layout[0], seed=1)
    b = operand(k, 1032, torch.float16, layout[1], seed=2)
    assert_right(run_twice(problem, OVERLAPPED[name], a, b), a, b)


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_terms_of_more_tiles_than_the_gpu_has_sms(layout):
    a = operand(2600, 520, torch.bfloat16, layout[0], seed=1)
    b = operand(520, 5000, torch.bfloat16, layout[1], seed=2)
    bias = torch.randn(5000, device="cuda")
    out = laneloom.gemm(a, b, bias=bias, activation="gelu")
    truth = torch.nn.functional.gelu(a.double() @ b.double() + bias.double())
    assert norm_error(out, truth) <= 2 * error_of_torch(520, a.dtype, "ieee") + 2.0**-9 + ROUNDING[out.dtype]
    assert torch.equal(out, laneloom.gemm(a, b, bias=bias, activation="gelu"))
