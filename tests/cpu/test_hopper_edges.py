"""TMA takes no box of C that does not begin at 16 bytes: where the last tiles begin, which are moved back."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

pytest.importorskip("torch")

from laneloom.gpu import get_gpu
from laneloom.ops.matmul.kernels.hopper_cluster import edge_steps
from laneloom.ops.matmul.plan_cluster import cluster_configs
from laneloom.ops.matmul.problem import DTYPE_BYTES, MatmulProblem

GPU = get_gpu("sm_90a")


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("columns", "dtype_out"), [(777, "bf16"), (1001, "fp32"), (1004, "bf16"), (1016, "fp32")])
def test_boxes_of_c_begin_at_16_bytes(columns, dtype_out, layout):
    """C's rows lie 1024 elements apart and have fewer."""
    whole = MatmulProblem.contiguous(520, 1024, 512, dtype="bf16", dtype_out=dtype_out, layout=layout)
    problem, met = replace(whole, n=columns), set()
    for config, _ in islice(cluster_configs(problem, GPU), 400):
        if config.tma_store and not (problem.epilogue and problem.epilogue.addend):
            multiplied = config.as_multiplied(config.in_classes(problem))
            axis = 0 if config.swapped else 1
            size, block = ((multiplied.m, config.block_m), (multiplied.n, config.block_n))[axis]
            step = edge_steps(multiplied, config)[axis]
            start = max(-(-(size - block) // step) * step, 0)
            assert start * DTYPE_BYTES[dtype_out] % 16 == 0
            assert start + block >= size
            met.add(config.swapped)
    assert met == ({False, True} if dtype_out == "bf16" else {False})
