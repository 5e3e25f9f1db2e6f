"""TMA writes whole pieces of 16 bytes, also behind the end of a row of C: where that is not C's, it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import plan
from laneloom.ops.matmul.config_registers import RegistersConfig
from laneloom.ops.matmul.plan_cluster import cluster_configs
from laneloom.ops.matmul.problem import MatmulProblem

GPU = get_gpu("sm_90a")


@pytest.mark.covering(together=2)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("precision", ["ieee", "3xtf32", "tf32"])
@pytest.mark.parametrize(("m", "n"), [(520, 777), (520, 1001), (1, 314), (2048, 1002)])
def test_rows_that_do_not_fill_16_bytes_are_not_written_by_tma(m, n, layout, dtype, precision):
    """C's rows lie 1024 elements apart and have fewer."""
    if precision != "ieee" and dtype != "fp32":
        pytest.skip("precisions are of FP32 operands")
    whole = MatmulProblem.contiguous(m, 1024, 512, dtype=dtype, layout=layout, precision=precision)
    problem = replace(whole, n=n)
    config = plan(problem, GPU)
    assert not getattr(config, "tma_store", False) or getattr(config, "split_k", 1) > 1
    assert not isinstance(config, RegistersConfig) or not config.by_tma(problem) or config.split_k > 1
    config, _ = next(cluster_configs(whole, GPU), (None, 0.0))
    if config is not None and config.tma_store:
        why = config.with_knobs(tiles_n=0).why_invalid(problem, GPU)
        assert why is not None
        assert "TMA" in why
