"""What the plan takes for batches on Hopper, for operands of two types and for products of nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from laneloom.gpu import get_gpu
from laneloom.ops.matmul.api import explain
from laneloom.ops.matmul.config import plan
from laneloom.ops.matmul.problem import MatmulProblem

GPU = get_gpu("sm_90a")


def problem(m, n, k, **options):
    return MatmulProblem.contiguous(m, n, k, **{"dtype": "bf16", **options})


def test_batches_take_one_launch():
    assert plan(problem(16, 16, 16, batch=1000), GPU).schedule == "hopper_async"
    assert plan(problem(1, 128, 4096, layout="nt", batch=48), GPU).schedule == "hopper_cluster"
    assert plan(problem(63, 64, 64, batch=1000), GPU).schedule == "hopper_cluster"
    assert plan(problem(4096, 4096, 512, batch=4), GPU).schedule == "hopper_cluster"


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942", "gfx1151", "gfx1201", "h100", "h200"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8"])
def test_what_is_explained_of_products_of_nothing(gpu, dtype):
    for sizes, batch in (((0, 5, 3), 1), ((5, 0, 3), 3), ((5, 3, 2), 0)):
        facts = explain(problem(*sizes, dtype=dtype, batch=batch), gpu=gpu).facts
        assert facts == ("C has no elements: nothing runs",)
    assert explain(problem(5, 3, 0, dtype=dtype), gpu=gpu).facts == ("K = 0: C is its terms or zeros",)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "xx"])
@pytest.mark.parametrize("sizes", [(2, 48, 1), (1, 1312, 26), (112, 17, 1984), (5, 24, 2)])
def test_types_that_differ_have_a_schedule(sizes, layout):
    for pair in (("int8", "uint8"), ("uint8", "int8"), ("fp8", "bf8")):
        out, step = "fp32" if "fp8" in pair else "int32", 2 if layout == "xx" else 1
        same = problem(*sizes, dtype=pair[0], layout=layout.replace("x", "n"), dtype_out=out)
        a, b = (replace(x, strides=tuple(step * s for s in x.strides)) for x in (same.a, same.b))
        assert plan(replace(same, a=a, b=b, dtype_b=pair[1]), GPU).schedule == "hopper_cluster"


@pytest.mark.parametrize("precision", ["tf32", "3xtf32", "3xbf16"])
def test_batches_of_any_number_in_other_precisions(precision):
    for layout in ("nn", "nt", "tn"):
        batch = problem(33, 40, 17, dtype="fp32", layout=layout, batch=3000, precision=precision)
        config = plan(batch, GPU)
        assert config.schedule in ("hopper_cluster", "hopper_registers")


@pytest.mark.parametrize("dtype", ["fp8", "bf8", "int8", "uint8"])
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_batches_of_any_number_whose_operands_are_copied_take_one_launch(dtype, layout):
    """wgmma takes 8 bits along K only: one launch copies the operands of all products."""
    for sizes in ((1, 16, 16), (33, 40, 17), (200, 200, 200)):
        batch = problem(*sizes, dtype=dtype, layout=layout, batch=3000, dtype_out="int32" if "int" in dtype else "bf16")
        config = plan(batch, GPU)
        assert (config.schedule, config.one_by_one(batch)) == ("hopper_cluster", False)
