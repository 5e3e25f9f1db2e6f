"""hopper_cluster.cu on a CPU model of Hopper's instructions: products and configs that nobody chose."""

from __future__ import annotations

import random

import pytest
from hopper_model import COMPILER
from sampled import EVERYTHING

torch = pytest.importorskip("torch")

from matmul_model import Model  # noqa: E402
from matmul_products import GPU, SUMMED, check, product, small  # noqa: E402

from laneloom.ops.matmul.config_cluster import ClusterConfig  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")

OUTPUTS = {"bf16": ("bf16", "fp32"), "fp16": ("fp16", "fp32"), "fp8": ("bf16", "fp32"), "int8": ("int32", "fp32")}
MOST_CTAS = 4  #: of a cluster on the model
OWN = {"block_m": 128, "consumers": 2, "split": False, "hold_back": 0, "cluster_k": 1, "split_k": 1}


def draw(seed: int) -> tuple[MatmulProblem, ClusterConfig]:
    """A product and a config that takes it."""
    of = random.Random(seed)
    while True:
        dtype = of.choice(("bf16", *OUTPUTS))
        halves, whole = dtype in ("bf16", "fp16"), of.random() < 0.5
        m, n, k = (size // 8 * 8 + 8 if whole else size for size in map(of.randint, (1, 1, 1), (300, 200, 500)))
        batch = of.choice(((1, 1), (1, 1), (1, 1), (1, 3), (2, 2)))
        problem = product(
            m, n, k, of.choice(("nn", "nt", "tn", "tt")) if halves else "nt",
            dtype=dtype, out=of.choice(OUTPUTS[dtype]),
            batch=batch, shared=of.choice(("", "a", "b")) if batch != (1, 1) else "",
            c_pitch=0 if of.random() < 0.6 else -(-n // 8) * 8 + of.choice((0, 1, 8)),
        )  # fmt: skip
        knobs = {
            "block_m": of.choice((64, 128, 192, 256)), "block_n": 8 * of.randint(1, 20),
            "block_k": 64 if halves else 128, "stages": of.randint(2, 6), "consumers": of.choice((1, 1, 2, 3)),
            "cluster_m": of.choice((1, 1, 2, 3)), "cluster_n": of.choice((1, 1, 2)),
            "cluster_k": of.choice((1, 1, 1, 2, 3)), "panels": of.choice((1, 1, 2)),
            "hold_back": of.choice((0, 0, 1, 2)), "split": of.random() < 0.15, "own_tiles": of.random() < 0.15,
            "tma_store": of.random() < 0.6, "swapped": of.random() < 0.25, "line": of.choice((0, 0, 0, 32, 64, 128)),
            "fetched": of.choice((0, 0, 1, 2, 5)), "group_m": of.choice((1, 2, 3, 8)),
            "split_k": of.choice((1, 1, 1, 2)), "tiles_n": 0 if of.random() < 0.8 else of.randint(1, 6),
            "programs": of.choice((1, 2, 4, 6, 12, 132)),
        }  # fmt: skip
        config = small(**knobs | (OWN if knobs["own_tiles"] else {}))
        if config.peers <= min(config.programs, MOST_CTAS) and config.why_invalid(problem, GPU) is None:
            return problem, config


@pytest.mark.parametrize("seed", range(80 if EVERYTHING else 8))
def test_random_configs(folder, monkeypatch, seed):
    for name, stand_in in SUMMED.items():
        monkeypatch.setattr(name, stand_in)
    Model(folder, monkeypatch, late=seed % 2 == 0)
    check(*draw(seed))
