"""Products with K in parts that a second launch adds up, on a real Hopper GPU: FP32 by FMA, FP64 by DMMA, wgmma."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.matmul import reference  # noqa: E402
from laneloom.ops.matmul.config import plan  # noqa: E402
from laneloom.ops.matmul.execute import problem_of, schedule_of  # noqa: E402
from laneloom.ops.matmul.plan_cluster import cluster_parts  # noqa: E402
from laneloom.ops.matmul.plan_wide import by_tma  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem, Matrix  # noqa: E402

GPU = get_gpu("sm_90a")
GUARD = 1024  #: elements on both sides of a poisoned output
FP8 = torch.float8_e4m3fn
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
SIZES = [(64, 64, 4096), (133, 77, 1001), (16, 300, 2000), (257, 129, 999), (520, 96, 640)]


pytestmark = pytest.mark.usefixtures("hopper")


def operand(rows, columns, letter, dtype):
    shape = (rows, columns) if letter == "n" else (columns, rows)
    x = torch.randn(shape, device="cuda", dtype=DTYPES[dtype])
    return x if letter == "n" else x.mT


def judge(out, a, b, dtype):
    verdict = reference.judge(*(x.double().cpu().numpy() for x in (out, a, b)), dtype)
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("dtype", "sizes", "layout"), itertools.product(DTYPES, SIZES, ("nn", "nt", "tn", "tt"))
)
def test_parts_of_every_length(dtype, sizes, layout):
    """Some of all configs in parts, with all CTAs and with three, into C as it lies and as its transpose does."""
    m, n, k = sizes
    problem = MatmulProblem.contiguous(m, n, k, dtype=dtype, layout=layout)
    a, b = operand(m, k, layout[0], dtype), operand(k, n, layout[1], dtype)
    every = [config for config, _ in by_tma(problem, GPU) if config.split_k > 1]
    turned = replace(problem, out=Matrix((0, 0, 1, m)))
    for config in random.Random(str((dtype, sizes, layout))).sample(every, min(4, len(every))):
        for tried, asked in ((config, problem), (replace(config, programs=3), problem), (config, turned)):
            buffer = torch.full((m * n + 2 * GUARD,), float("nan"), device="cuda", dtype=DTYPES[dtype])
            results = []
            for _ in range(2):
                buffer.fill_(float("nan"))
                out = buffer[GUARD:-GUARD].as_strided((m, n), asked.out.strides[2:], GUARD)
                schedule_of(tried).launch(asked, tried, GPU, a, b, out)
                assert torch.cat([buffer[:GUARD], buffer[-GUARD:]]).isnan().all(), "written outside of C"
                results.append(out.clone())
            judge(results[0], a, b, dtype)
            assert torch.equal(*results)


def narrow(rows, columns, letter, dtype):
    """Small whole numbers in a type that wgmma takes."""
    shape = (rows, columns) if letter == "n" else (columns, rows)
    x = torch.randint(-3, 4, shape, device="cuda").to({"bf16": torch.bfloat16, "int8": torch.int8}.get(dtype, FP8))
    return x if letter == "n" else x.mT


@pytest.mark.parametrize(("dtype", "out", "layouts"), [
    ("bf16", "bf16", ("nn", "nt", "tn", "tt")), ("bf16", "fp32", ("nn",)), ("int8", "int32", ("nt",)),
    ("fp8", "bf16", ("nt",)),
])  # fmt: skip
@pytest.mark.parametrize("sizes", [(64, 64, 20000), (200, 136, 8192), (304, 312, 5008), (16, 24, 65536)])
def test_parts_on_the_tensor_cores(sizes, dtype, out, layouts):
    """Products of small whole numbers are exact: nothing is left out, and nothing counted twice."""
    m, n, k = sizes
    kinds = {"bf16": torch.bfloat16, "fp32": torch.float32, "int32": torch.int32}
    for layout in layouts:
        problem = MatmulProblem.contiguous(m, n, k, dtype=dtype, dtype_out=out, layout=layout)
        a, b = narrow(m, k, layout[0], dtype), narrow(k, n, layout[1], dtype)
        truth = a.double() @ b.double()
        found = [config for config, _ in cluster_parts(problem, GPU)]
        assert found
        for config in found:
            buffer = torch.full((m * n + 2 * GUARD,), 77, device="cuda", dtype=kinds[out])
            written = buffer[GUARD:-GUARD].view(m, n)
            for _ in range(2):
                written.fill_(77)
                schedule_of(config).launch(problem, config, GPU, a, b, written)
                assert torch.equal(written, truth.to(kinds[out])), config.text
            assert (torch.cat([buffer[:GUARD], buffer[-GUARD:]]) == 77).all(), "written outside of C"


@pytest.mark.parametrize("in_line", [True, False])
@pytest.mark.parametrize("layout", ["tn", "nt"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_in_one_launch_or_product_by_product(dtype, layout, in_line):
    """C's products behind each other, or with room between them."""
    a = torch.randn((3, 6000, 72) if layout[0] == "t" else (3, 72, 6000), device="cuda", dtype=DTYPES[dtype])
    b = torch.randn((3, 6000, 40) if layout[1] == "n" else (3, 40, 6000), device="cuda", dtype=DTYPES[dtype])
    a, b = a.mT if layout[0] == "t" else a, b if layout[1] == "n" else b.mT
    out = torch.full((3, 72 if in_line else 80, 40), float("nan"), device="cuda", dtype=DTYPES[dtype])
    problem = problem_of(a, b, out[:, :72], (dtype,) * 3)
    in_parts = (config for config, _ in by_tma(problem, GPU) if config.split_k > 1)
    config = next(config for config in in_parts if not (config.copy_a or config.copy_b))
    assert config.one_by_one(problem) == (not in_line)
    laneloom.matmul(a, b, out=out[:, :72], config=config)
    for one, x, y in zip(out[:, :72], a, b, strict=True):
        judge(one, x, y, dtype)
    assert in_line or out[:, 72:].isnan().all(), "written outside of C"


@pytest.mark.parametrize("in_line", [True, False])
@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
def test_a_batch_on_the_tensor_cores(layout, in_line):
    of_a, of_b = (6000, 72) if layout[0] == "t" else (72, 6000), (6000, 40) if layout[1] == "n" else (40, 6000)
    a, b = (torch.stack([narrow(*size, "n", "bf16") for _ in range(3)]) for size in (of_a, of_b))
    a, b = a.mT if layout[0] == "t" else a, b if layout[1] == "n" else b.mT
    out = torch.full((3, 72 if in_line else 80, 40), 77, device="cuda", dtype=torch.bfloat16)
    problem = problem_of(a, b, out[:, :72], ("bf16",) * 3)
    found = next(cluster_parts(problem.one_product(), GPU))[0]
    assert found.one_by_one(problem) == (not in_line)
    assert in_line == bool(list(cluster_parts(problem, GPU)))
    for config in [found, *(config for config, _ in cluster_parts(problem, GPU))]:
        out.fill_(77)
        laneloom.matmul(a, b, out=out[:, :72], config=config)
        assert torch.equal(out[:, :72], (a.double() @ b.double()).bfloat16())
        assert in_line or (out[:, 72:] == 77).all(), "written outside of C"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_graph_gives_the_same_bits(dtype):
    a, b = operand(100, 6000, "n", dtype), operand(6000, 260, "t", dtype)
    once, out = laneloom.matmul(a, b), torch.empty(100, 260, device="cuda", dtype=DTYPES[dtype])
    assert plan(MatmulProblem.contiguous(100, 260, 6000, dtype=dtype, layout="nt"), GPU).split_k > 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        laneloom.matmul(a, b, out=out)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, once)
