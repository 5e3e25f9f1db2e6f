"""hopper_rows.cu on a CPU model of the GPU's instructions: its own text and its own launch, every thread by itself."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hopper_model import COMPILER
from sampled import sampled, without

torch = pytest.importorskip("torch")

from matmul_model import ROWS, Model  # noqa: E402
from matmul_products import GPU, compare, product, run  # noqa: E402

from laneloom.ops.matmul.config_rows import RowsConfig  # noqa: E402
from laneloom.ops.matmul.kernels import hopper_rows  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem, Matrix  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture
def model(folder, monkeypatch):
    return functools.partial(Model, folder, monkeypatch, of=ROWS)


def small(**knobs) -> RowsConfig:
    return RowsConfig(**{"block_m": 8, "block_n": 64, "num_warps": 2} | knobs)


def narrow(m, n, k, layout="nt", **options):
    """A problem whose operands are contiguous, so that lines begin where they do."""
    return MatmulProblem.contiguous(m, n, k, layout=layout, **{"dtype": "bf16", **options})


CASES = {
    "along n": (product(5, 136, 136, "nn"), small()),
    "along k": (product(8, 100, 136, "nt"), small()),
    "along n, in fours": (narrow(7, 140, 100, "nn"), small(stages=1)),
    "along n, in pairs": (narrow(3, 134, 70, "nn"), small(stages=3)),
    "along n, a in fours": (narrow(9, 136, 108, "nn"), small(block_m=16)),
    "along n, a in pairs": (narrow(8, 136, 134, "nn"), small(cluster_k=2)),
    "along n, a in ones": (narrow(5, 136, 101, "nn"), small()),
    "along k, in fours": (narrow(8, 67, 132), small()),
    "along k, in pairs": (narrow(8, 70, 134), small(stages=1)),
    "a along m": (product(8, 72, 100, "tn"), small()),
    "a along m, b in pairs along k": (narrow(6, 66, 98, "tt"), small()),
    "two eights, two groups": (product(13, 200, 70, "nn"), small(block_m=16, block_n=128)),
    "warps across": (product(16, 130, 100, "nt"), small(block_m=16, block_n=128, num_warps=4, across=2)),
    "all warps across": (product(9, 264, 72, "nn"), small(block_m=16, block_n=256, num_warps=4, across=4)),
    "parts of k": (product(8, 72, 200, "nn"), small(cluster_k=4)),
    "parts of k, without a unit": (product(8, 72, 40, "nt"), small(cluster_k=4)),
    "parts of k, in pairs": (narrow(11, 66, 134), small(block_m=16, cluster_k=2)),
    "asked for ahead": (product(8, 136, 200, "nn"), small(ahead=64)),
    "asked for ahead, along k": (product(8, 72, 200, "nt"), small(ahead=64, cluster_k=2)),
    "fp16": (product(8, 72, 72, "nn", dtype="fp16"), small()),
    "fp16 to fp32": (product(8, 72, 72, "nt", dtype="fp16", out="fp32"), small()),
    "c at a pitch": (product(8, 72, 72, "nt", c_pitch=101), small()),
    "a batch": (product(5, 136, 72, "nn", batch=(2, 2)), small()),
    "a batch, parts of k, repeated": (product(8, 72, 136, "nt", batch=(2, 2), shared="a"), small(cluster_k=2)),
    "a batch, swapped": (product(100, 6, 72, "tn", batch=(1, 3)), small(swapped=True, num_warps=4)),
    "swapped": (product(136, 5, 136, "nt"), small(swapped=True)),
    "swapped, parts of k": (product(100, 6, 136, "tn"), small(swapped=True, cluster_k=2)),
    "swapped, in pairs": (narrow(70, 8, 102), small(swapped=True)),
}  # fmt: skip


USUAL = sampled(without(
    CASES, "a along m", "warps across", "parts of k", "fp16", "a batch", "swapped", "along k, in pairs"), first=1,
)  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_products(model, name):
    model()
    problem, config = CASES[name]
    a, b, out = run(problem, config, kernel=hopper_rows)
    a, b = a.double().numpy(), b.double().numpy()
    compare(out, a @ b, abs(a) @ abs(b), problem.k, problem.dtype_out)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("k", [70, 72, 101])
def test_what_is_behind_the_end_of_k_is_not_read(model, layout, k):
    """Operands lie in wider buffers of NaN."""
    model()
    pitch = 104
    b = Matrix((0, 0, 72, 1) if layout == "nn" else (0, 0, 1, pitch))
    a, c = Matrix((0, 0, pitch, 1)), Matrix((0, 0, 72, 1))
    problem = MatmulProblem(5, 72, k, "bf16", "bf16", "fp32", (1, 1), a, b, c)
    config = small(cluster_k=2)
    assert config.why_invalid(problem, GPU) is None
    wide_a = torch.full((5, pitch), float("nan"), dtype=torch.bfloat16)
    wide_b = torch.full((k + 8, 72) if layout == "nn" else (72, pitch), float("nan"), dtype=torch.bfloat16)
    wide_a[:, :k] = torch.randn(5, k)
    inside = wide_b[:k] if layout == "nn" else wide_b[:, :k].mT
    inside.copy_(torch.randn(k, 72))
    wide_a[0, k - 1] = float("inf")
    out = torch.empty(5, 72, dtype=torch.float32).share_memory_()
    hopper_rows.prepare(problem, config, GPU)(wide_a, wide_b, out)
    assert torch.equal(out[0], torch.where(inside[k - 1] > 0, float("inf"), float("-inf")).float())
    truth = wide_a[1:, :k].double() @ inside.double()
    assert np.allclose(out[1:], truth, rtol=1e-5, atol=1e-4)
