"""Machine code of hopper_weights.cu, compiled without a GPU: wgmma of what lies in registers, no spills, no waits that
ptxas adds, shared memory that fits."""

from __future__ import annotations

import re

import pytest
from hopper_compiled import GPU
from sampled import sampled

from laneloom.ops.quantized_matmul.config_hopper import hopper_configs
from laneloom.ops.quantized_matmul.kernels import hopper_weights
from laneloom.ops.quantized_matmul.problem import QuantizedProblem

WEIGHTS = [
    ("int4", "fp16", 128, "bf16"), ("fp4", "e8m0", 32, "bf16"), ("uint4", "fp16", 64, "fp16"),
    ("int8", "fp32", 0, "bf16"), ("uint4", "fp32", 32, "bf16"), ("fp8", "bf16", 128, "fp16"),
    ("fp4", "e8m0", 32, "fp16"), ("fp8", "fp32", 0, "bf16"), ("int4", "fp32", 32, "fp16"),
    ("int8", "fp16", 64, "fp16"),
]  # fmt: skip
CASES = [(weight, m) for weight in WEIGHTS for m in (1, 16, 32, 64, 128, 1000)]


@pytest.mark.parametrize(("weight", "m"), sampled(CASES, every=9), ids=str)
def test_every_ranked_config(weight, m):
    """The tiles of each product: a different code for each, parts of K aside."""
    kind, scale, group, dtype = weight
    problem = QuantizedProblem.contiguous(
        m, 4096, 4096, dtype=dtype, dtype_w=kind, dtype_scale=scale, group=group, zeros=kind == "uint4", bias=dtype
    )
    ranked = list(hopper_configs(problem, GPU))
    configs = {config.with_knobs(cluster=1): config for config in ranked}
    assert len(configs) >= 4
    for config in configs.values():
        code = hopper_weights.code_object(problem, config, GPU)
        # CUDA 13.5's ptxas, not 13.0's, spills this tile with these zeros; no plan takes it.
        tile = config.strips, config.consumers, config.eighths
        spared = weight == ("uint4", "fp16", 64, "fp16") and tile == (2, 2, 8) and config != ranked[0]
        assert code.spills <= (24 if spared else 0), config.text
        assert code.lds_bytes <= GPU.lds_bytes
        shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(f16|bf16)\.", code.asm)
        assert set(shapes) == {(str(config.rows), {"fp16": "f16", "bf16": "bf16"}[dtype])}
        assert "cp.async.bulk.tensor.4d.shared::cluster" in code.asm
