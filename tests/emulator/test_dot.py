"""Products on CDNA 5, the schedule `dot`, in strict mode against FP64."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import rarely

torch = pytest.importorskip("torch")

from laneloom import emulated, gemm, matmul  # noqa: E402
from laneloom.codegen.versions import parse_version, triton_version  # noqa: E402
from laneloom.errors import UnsupportedError  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.matmul.config import plan  # noqa: E402
from laneloom.ops.matmul.config_dot import DotConfig  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

pytestmark = pytest.mark.skipif(parse_version(triton_version()) < (3, 9), reason="Triton compiles for it from 3.9 on")
GPU = get_gpu("gfx1250")
EIGHTS = (torch.float8_e4m3fn, torch.float8_e5m2)
#: of the output; sums of exact products of 8-bit floats are exact in FP32 but for their own roundings
BUDGETS = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-21, torch.float64: 2**-50}


def operand(rows, columns, dtype, letter, batch=(), seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (*batch, rows, columns) if letter == "n" else (*batch, columns, rows)
    if dtype == torch.int8:
        x = torch.randint(-128, 128, shape, dtype=dtype, generator=generator)
    else:
        x = torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
    return x if letter == "n" else x.mT


def assert_right(out, a, b):
    truth = a.double() @ b.double()
    if out.dtype == torch.int32:
        assert torch.equal(out.double(), truth)
        return
    error = (out.double() - truth).norm() / truth.norm()
    assert error <= BUDGETS[out.dtype], float(error)


@pytest.mark.covering
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.float32, torch.float64])
def test_products_of_every_type_and_layout(dtype, layout):
    a, b = operand(70, 130, dtype, layout[0], seed=1), operand(130, 50, dtype, layout[1], seed=2)
    with emulated("gfx1250", strict=True) as session:
        assert_right(matmul(a, b), a, b)
    assert "matmul_dot" in session.launches[0].kernel


@pytest.mark.covering
@pytest.mark.parametrize("first", EIGHTS)
@pytest.mark.parametrize("second", EIGHTS)
def test_pairs_of_8_bit_floats(first, second):
    a, b = operand(33, 200, first, "n", seed=1), operand(200, 47, second, "t", seed=2)
    with emulated("gfx1250", strict=True):
        assert_right(matmul(a, b, out_dtype=torch.float32), a, b)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (129, 1, 65), (31, 33, 127), *rarely((1, 64, 300), (64, 64, 64))])
def test_sizes_batches_and_slices(sizes):
    m, n, k = sizes
    a, b = operand(m, k, torch.float16, "n", (3,), 1), operand(k, n, torch.float16, "t", seed=2).expand(3, k, n)
    wide = torch.full((3, m + 2, n + 3), float("nan"), dtype=torch.float16)
    with emulated("gfx1250", strict=True):
        matmul(a, b, out=wide[:, 1:-1, 2:-1])
    assert_right(wide[:, 1:-1, 2:-1], a, b)
    assert wide[:, 0].isnan().all()
    assert wide[:, -1].isnan().all()
    assert wide[:, :, :2].isnan().all()
    assert wide[:, :, -1].isnan().all()


def test_terms_are_a_launch_of_their_own():
    a, b, d = (operand(40, 40, torch.bfloat16, "n", seed=seed) for seed in (1, 2, 3))
    bias = operand(1, 40, torch.bfloat16, "n", seed=4)[0]
    with emulated("gfx1250", strict=True) as session:
        out = gemm(a, b, d, alpha=0.5, beta=2.0, bias=bias, activation="relu")
    truth = torch.relu(0.5 * (a.double() @ b.double()) + 2 * d.double() + bias.double())
    assert (out.double() - truth).norm() <= 2**-8 * truth.norm()
    assert len(session.launches) == 2


def test_gradients_and_arrays():
    a = operand(20, 30, torch.float32, "n", seed=1).requires_grad_()
    b = operand(30, 10, torch.float32, "n", seed=2).requires_grad_()
    with emulated("gfx1250", strict=True):
        matmul(a, b).sum().backward()
        out = matmul(a.detach().numpy(), b.detach().numpy())
    assert_right(a.grad, torch.ones(20, 10), b.detach().mT)
    assert_right(b.grad, a.detach().mT, torch.ones(20, 10))
    assert isinstance(out, np.ndarray)
    assert_right(torch.from_numpy(out), a.detach(), b.detach())


@pytest.mark.parametrize(
    ("knobs", "kinds", "words"),
    [
        ({}, {"dtype": "uint8"}, "multiplies fp16"), ({"block_k": 24}, {}, "powers of two"),
        ({"stages": 64}, {}, "bytes of LDS"), ({}, {"dtype": "fp32", "precision": "tf32"}, "full precision"),
        ({}, {"dtype": "fp64", "dtype_out": "int32"}, "out_dtype: expected fp64 or fp32, got int32"),
        ({}, {"dtype": "fp16", "dtype_out": "fp64"}, "out_dtype: expected fp32, fp16 or bf16, got fp64"),
    ],
)  # fmt: skip
def test_refusals_name_what_is_wrong(knobs, kinds, words):
    config = DotConfig(block_m=64, block_n=64, block_k=64).with_knobs(**knobs)
    assert words in (config.why_invalid(MatmulProblem.contiguous(64, 64, 64, **kinds), GPU) or "")


def test_other_gpus_and_types_are_refused():
    problem = MatmulProblem.contiguous(64, 64, 64)
    assert "for CDNA 5" in (DotConfig(block_m=64, block_n=64, block_k=64).why_invalid(problem, get_gpu("gfx950")) or "")
    with pytest.raises(UnsupportedError, match="multiplies fp16"):
        plan(MatmulProblem.contiguous(64, 64, 64, dtype="int4"), GPU)


def test_large_products_take_large_tiles():
    assert plan(MatmulProblem.contiguous(8192, 8192, 8192), GPU).block_m == 128
    assert plan(MatmulProblem.contiguous(20, 8192, 64), GPU).block_m == 32
