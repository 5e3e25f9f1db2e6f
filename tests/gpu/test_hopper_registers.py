"""TF32 products with an operand in registers, on a real GPU, against FP64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.matmul.config_registers import RegistersConfig, register_operand  # noqa: E402
from laneloom.ops.matmul.kernels import hopper_registers  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

GPU = get_gpu("sm_90a")
GUARD = 1024  #: elements on both sides of a poisoned output
#: rows and columns of D, stages, programs
TILES = [(128, 256, 4, 132), (128, 128, 3, 4), (64, 256, 2, 8), (64, 64, 8, 132), (128, 64, 5, 3)]


def operand(rows, columns, letter, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn((rows, columns) if letter == "n" else (columns, rows), device="cuda", generator=generator)
    return x if letter == "n" else x.mT


def norm_error(out, truth):
    """|| out - truth || / || truth ||, infinite where an element is NaN."""
    error = ((out.double() - truth).norm() / truth.norm()).item()
    return error if error == error else float("inf")


def budget(a, b, truth):
    """Twice the error of torch's TF32 product of the same operands."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return 2 * norm_error(a @ b, truth)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("sizes", [(520, 776, 264), (4, 1028, 36), (1032, 8, 4), (300, 260, 132)])
def test_every_tile_in_every_layout(sizes, tile, layout):
    m, n, k = sizes
    rows, columns, stages, programs = tile
    problem = MatmulProblem.contiguous(m, n, k, dtype="fp32", layout=layout, precision="tf32")
    turned = register_operand(problem) == "b"
    config = RegistersConfig(
        block_m=columns if turned else rows, block_n=rows if turned else columns, block_k=32, stages=stages,
        copy_other=layout == "tn", programs=programs,
    )  # fmt: skip
    assert config.why_invalid(problem, GPU) is None
    a, b = operand(m, k, layout[0], 1), operand(k, n, layout[1], 2)
    truth = a.double() @ b.double()
    buffer = torch.empty(m * n + 2 * GUARD, device="cuda")
    results = []
    for _ in range(2):
        buffer.fill_(float("nan"))
        out = buffer[GUARD:-GUARD].view(m, n)
        hopper_registers.launch(problem, config, GPU, a, b, out)
        assert norm_error(out, truth) <= budget(a, b, truth)
        assert torch.cat([buffer[:GUARD], buffer[-GUARD:]]).isnan().all(), "written outside of C"
        results.append(out.clone())
    assert torch.equal(*results)


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_batches(layout):
    """Equal, broadcast and strided batches; the plan's choice."""
    a = torch.stack([operand(260, 96, layout[0], s) for s in range(6)]).view(2, 3, 260, 96)
    b = torch.stack([operand(96, 132, layout[1], s) for s in range(3)])
    if layout[0] == "t":
        a = a.mT.contiguous().mT
    if layout[1] == "t":
        b = b.mT.contiguous().mT
    assert laneloom.explain(a[0], b, precision="tf32").config.schedule == "hopper_registers"
    truth = a.double() @ b.double()
    out = laneloom.matmul(a, b, precision="tf32")
    assert norm_error(out, truth) <= budget(a, b, truth)
    assert torch.equal(out[1, 2], laneloom.matmul(a[1, 2], b[2], precision="tf32"))


def test_infinities_stay_and_nan_stays():
    a, b = operand(128, 64, "n", 1), operand(64, 128, "n", 2)
    a[3, 5], b[7, 9] = float("inf"), float("nan")
    out = laneloom.matmul(a, b, precision="tf32")
    assert not out[3].isfinite().any()
    assert out[:, 9].isnan().all()
    rest = torch.ones_like(out, dtype=torch.bool)
    rest[3], rest[:, 9] = False, False
    assert out[rest].isfinite().all()
