"""FP32 products on the tensor cores with an operand in registers, on a real GPU, against FP64."""

from __future__ import annotations

import itertools
import random

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.matmul.config import plan  # noqa: E402
from laneloom.ops.matmul.config_registers import in_registers, registers_configs  # noqa: E402
from laneloom.ops.matmul.kernels import hopper_registers  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

GPU = get_gpu("sm_90a")
GUARD = 1024  #: elements on both sides of a poisoned output
SIZES = [(520, 776, 264), (4, 1028, 36), (1032, 8, 4), (301, 259, 131), (64, 64, 4096), (1, 300, 5), (130, 70, 2000)]
CASES = list(itertools.product(SIZES, ("nn", "nt", "tn", "tt"), ("tf32", "3xtf32")))


def operand(rows, columns, letter, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn((rows, columns) if letter == "n" else (columns, rows), device="cuda", generator=generator)
    return x if letter == "n" else x.mT


def norm_error(out, truth):
    """|| out - truth || / || truth ||, infinite where an element is NaN."""
    error = ((out.double() - truth).norm() / truth.norm()).item()
    return error if error == error else float("inf")


def budget(a, b, truth, precision):
    """Twice the error of torch's product of the same operands, which with few rows may be FP32's; of TF32 at least its
    own rounding's, of pieces FP32's rounding of every product and sum."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        return 2 * max(norm_error(a @ b, truth), 2.0**-12 if precision == "tf32" else 2.0**-23)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize(("sizes", "layout", "precision"), CASES)
def test_tiles_in_every_layout(sizes, layout, precision):
    """Some of all tiles, upright and turned, cut and whole, with few programs and all."""
    m, n, k = sizes
    problem = MatmulProblem.contiguous(m, n, k, dtype="fp32", layout=layout, precision=precision)
    every = list(registers_configs(problem, GPU))
    chosen = random.Random(str((sizes, layout, precision))).sample(every, min(4, len(every)))
    a, b = operand(m, k, layout[0], 1), operand(k, n, layout[1], 2)
    truth = a.double() @ b.double()
    most = budget(a, b, truth, precision)
    buffer = torch.empty(m * n + 2 * GUARD, device="cuda")
    for number, config in enumerate(chosen):
        few = config.with_knobs(programs=3, stages=2 + number % 2)
        results = []
        for tried in (config, config, few):
            buffer.fill_(float("nan"))
            out = buffer[GUARD:-GUARD].view(m, n)
            hopper_registers.launch(problem, tried, GPU, a, b, out)
            assert norm_error(out, truth) <= most, tried.text
            assert torch.cat([buffer[:GUARD], buffer[-GUARD:]]).isnan().all(), "written outside of C"
            results.append(out.clone())
        assert torch.equal(*results[:2])


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
@pytest.mark.parametrize("layout", ["nn", "tn", "tt", "nt"])
def test_batches(layout, precision):
    """Equal, broadcast and strided batches."""
    a = torch.stack([operand(260, 96, layout[0], s) for s in range(6)]).view(2, 3, 260, 96)
    b = torch.stack([operand(96, 132, layout[1], s) for s in range(3)])
    if layout[0] == "t":
        a = a.mT.contiguous().mT
    if layout[1] == "t":
        b = b.mT.contiguous().mT
    truth = a.double() @ b.double()
    out = laneloom.matmul(a, b, precision=precision)
    assert norm_error(out, truth) <= budget(a, b, truth, precision)
    assert torch.equal(out, laneloom.matmul(a, b, precision=precision))


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_a_batch_with_parts_of_k(precision):
    """Few tiles and a long K: product by product, each in parts."""
    a = torch.stack([operand(64, 50000, "t", s) for s in range(4)])
    b = torch.stack([operand(50000, 64, "n", s) for s in range(4, 8)])
    a = a.mT.contiguous().mT
    problem = MatmulProblem.contiguous(64, 64, 50000, dtype="fp32", layout="tn", batch=4, precision=precision)
    config = plan(problem, GPU)
    assert config.schedule == "hopper_registers"
    assert config.split_k > 1
    truth = a.double() @ b.double()
    out = laneloom.matmul(a, b, precision=precision)
    assert norm_error(out, truth) <= budget(a, b, truth, precision)
    assert torch.equal(out, laneloom.matmul(a, b, precision=precision))


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_captured_parts_of_k_give_the_same_bits(layout):
    a, b = operand(100, 6000, layout[0], 1), operand(6000, 260, layout[1], 2)
    problem = MatmulProblem.contiguous(100, 260, 6000, dtype="fp32", layout=layout, precision="3xtf32")
    config = next(c for c in registers_configs(problem, GPU) if c.split_k > 1)
    out, once = torch.empty(2, 100, 260, device="cuda")
    hopper_registers.launch(problem, config, GPU, a, b, once)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hopper_registers.launch(problem, config, GPU, a, b, out)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, once)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
def test_infinities_and_nan_are_not_lost(precision):
    a, b = operand(128, 64, "n", 1), operand(64, 128, "n", 2)
    a[3, 5], b[7, 9] = float("inf"), float("nan")
    problem = MatmulProblem.contiguous(128, 128, 64, dtype="fp32", precision=precision)
    out = torch.empty(128, 128, device="cuda")
    hopper_registers.launch(problem, in_registers(problem, GPU)[0], GPU, a, b, out)
    assert not out[3].isfinite().any()
    assert out[:, 9].isnan().all()
    rest = torch.ones_like(out, dtype=torch.bool)
    rest[3], rest[:, 9] = False, False
    assert out[rest].isfinite().all()


def test_the_largest_numbers_stay_finite():
    """A piece that would round to infinity is cut off."""
    a, b = torch.zeros(64, 32, device="cuda"), torch.zeros(32, 64, device="cuda")
    largest = torch.finfo(torch.float32).max
    a[1, 2], a[5, 2], b[2, 3], b[9, 4], a[7, 9] = largest, -largest, 0.5, largest, 0.25
    problem = MatmulProblem.contiguous(64, 64, 32, dtype="fp32", precision="3xtf32")
    out = torch.empty(64, 64, device="cuda")
    hopper_registers.launch(problem, in_registers(problem, GPU)[0], GPU, a, b, out)
    truth = a.double() @ b.double()
    assert norm_error(out / 2.0**100, truth / 2.0**100) < 2.0**-20
