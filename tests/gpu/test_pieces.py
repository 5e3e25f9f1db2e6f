"""Copies ahead of Hopper's products on a real GPU: both operands by one launch, any sizes, strides and addresses."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")

from judged_products import DTYPES, GPU, LAYOUTS, assert_right, operand  # noqa: E402
from pieced import IN_PIECES, assert_adds_up, assert_extremes_survive, lying, numbers  # noqa: E402

import laneloom  # noqa: E402
from laneloom.device import pieces  # noqa: E402
from laneloom.device.pieces import MatrixCopy, PiecesLaunch  # noqa: E402
from laneloom.device.prepared import PreparedLaunch  # noqa: E402
from laneloom.ops.matmul.config_precise import precise_configs  # noqa: E402
from laneloom.ops.matmul.config_stream import stream_configs  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

TORCH = {"tf32": torch.float32, **DTYPES}


def copies_of(dtype, count, *sources):
    launch = PiecesLaunch(*(MatrixCopy(dtype, count, *x.shape, x.stride()) for x in sources), pdl=True)
    launch(*sources)  # by the JIT; the next call goes past it
    return [copy[..., : x.shape[1]] for copy, x in zip(launch(*sources), sources, strict=True)]


@pytest.mark.parametrize(("kind", "count", "left"), IN_PIECES)
@pytest.mark.parametrize("orders", ["kr", "rk", "kk", "rr", "ns", "sr", "k", "r"])
@pytest.mark.parametrize("sizes", [((512, 768), (1024, 256)), ((333, 1027), (1, 129)), ((131, 5), (1000, 1000))])
def test_pieces_add_up(sizes, orders, kind, count, left):
    sources = [numbers(*size, order, "cuda") for size, order in zip(sizes[: len(orders)], orders, strict=True)]
    for x, found in zip(sources, copies_of(kind, count, *sources), strict=True):
        assert_adds_up(found, x, kind, left)


@pytest.mark.parametrize("orders", ["kr", "rk", "sn", "r"])
@pytest.mark.parametrize("dtype", ["uint8", "fp8", "bf8", "fp16", "bf16", "fp32", "fp64"])
def test_whole_elements_of_every_size_keep_their_bits(dtype, orders):
    sources = []
    for (rows, k), order in zip([(516, 772), (333, 1027)][: len(orders)], orders, strict=True):
        words = torch.randint(0, 256, (rows, k * TORCH[dtype].itemsize), dtype=torch.uint8, device="cuda")
        sources.append(lying(words.view(TORCH[dtype]), order))
    for x, copy in zip(sources, copies_of(dtype, 1, *sources), strict=True):
        assert torch.equal(copy[0].contiguous().view(torch.uint8), x.contiguous().view(torch.uint8))


def test_strides_past_32_bits():
    room = torch.empty((1 << 31) + 400, dtype=torch.uint8, device="cuda")
    x = room.as_strided((2, 300), (1 << 31, 1))
    x.copy_(torch.randint(0, 256, x.shape, dtype=torch.uint8, device="cuda"))
    other = torch.randint(0, 256, (100, 33), dtype=torch.uint8, device="cuda")
    for source, copy in zip((x, other), copies_of("uint8", 1, x, other), strict=True):
        assert torch.equal(copy[0], source)


@pytest.mark.parametrize("order", "kr")
@pytest.mark.parametrize(("kind", "count"), [("tf32", 2), ("bf16", 3)])
def test_what_is_not_finite_stays_so_and_the_largest_does_not_overflow(kind, count, order):
    assert_extremes_survive(partial(copies_of, kind, count), order, "cuda")


@pytest.fixture
def launches(monkeypatch):
    """The copies' launches, as they happen."""
    found = []
    launch = PreparedLaunch.__call__

    def counted(self, *tensors):
        if self._kernel is pieces.cut_into_pieces:
            found.append(self._grid[0])
        launch(self, *tensors)

    monkeypatch.setattr(PreparedLaunch, "__call__", counted)
    return found


@pytest.mark.parametrize("precision", ["3xtf32", "3xbf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(64, 1000, 512), (1032, 72, 200), (333, 130, 1027), (1, 300, 129), (65, 1, 31)])
def test_both_operands_of_a_product_are_cut_by_one_launch(sizes, layout, precision, launches):
    """In TF32 on their way to the tensor cores: there the launch only copies what TMA does not read."""
    m, n, k = sizes
    a, b = operand(m, k, torch.float32, layout[0], seed=3), operand(k, n, torch.float32, layout[1], seed=4)
    out = laneloom.matmul(a, b, precision=precision)
    assert len(launches) == 1 or (len(launches) == 0 and precision == "3xtf32")
    assert_right(out, a, b, precision, sums=0.0)
    assert torch.equal(out, laneloom.matmul(a, b, precision=precision))


@pytest.mark.parametrize("orders", ["ss", "nr", "kn", "rs"])
def test_pieces_of_views(orders):
    a, b = (lying(operand(*size, torch.float32, seed=3), order)
            for size, order in zip([(200, 333), (333, 170)], orders, strict=True))  # fmt: skip
    assert_right(laneloom.matmul(a, b, precision="3xtf32"), a, b, "3xtf32", sums=0.0)


@pytest.mark.parametrize("pair", [("fp8", "bf8"), ("int8", "uint8"), ("fp64", "fp64"), ("fp32", "fp32")])
def test_whole_operands_of_two_sizes_are_copied_by_one_launch(pair, launches):
    a, b = operand(333, 1027, DTYPES[pair[0]], "t", seed=1), operand(1027, 129, DTYPES[pair[1]], seed=2)
    config = None
    if pair[0] in ("fp32", "fp64"):  # the plan prefers what copies nothing
        problem = MatmulProblem.contiguous(333, 129, 1027, dtype=pair[0], layout="tn")
        wide = precise_configs(problem, GPU) if pair[0] == "fp64" else stream_configs(problem, GPU)
        config = next(config for config in wide if config.copy_a and config.copy_b)
    out = laneloom.matmul(a, b, out_dtype=torch.float32 if "fp8" in pair else None, config=config)
    assert len(launches) == 1
    if pair[0] == "fp64":
        assert (out - (a @ b)).norm() <= 4 * 1027**0.5 * 2.0**-53 * out.norm()  # the truth has the same precision
    else:
        wide = (a.float(), b.float()) if "fp8" in pair else (a, b)
        assert_right(out, *wide, sums=2.0**-9 if "fp8" in pair else 0.0)


def test_products_without_elements_or_terms():
    empty = torch.empty(0, 64, device="cuda")
    assert laneloom.matmul(empty, operand(64, 8, torch.float32), precision="3xtf32").shape == (0, 8)
    zeros = laneloom.matmul(torch.empty(5, 0, device="cuda"), torch.empty(0, 8, device="cuda"), precision="3xtf32")
    assert torch.equal(zeros, torch.zeros(5, 8, device="cuda"))


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("precision", ["3xtf32", "3xbf16"])
def test_what_is_not_finite_spoils_its_own_row_and_column_only(precision, bad):
    a, b = operand(200, 300, torch.float32, seed=1), operand(300, 170, torch.float32, "t", seed=2)
    clean = laneloom.matmul(a, b, precision=precision)
    a[17, 250], b[3, 99] = bad, bad
    out = laneloom.matmul(a, b, precision=precision)
    spoiled = torch.zeros_like(out, dtype=torch.bool)
    spoiled[17], spoiled[:, 99] = True, True
    assert not out[spoiled].isfinite().any()
    assert torch.equal(out[~spoiled], clean[~spoiled])


def test_on_two_streams_and_in_a_graph():
    pairs = [(operand(512, 384, torch.float32, "nt"[i], seed=i), operand(384, 640, torch.float32, "tn"[i], seed=i + 9))
             for i in range(2)]  # fmt: skip
    expected = [laneloom.matmul(a, b, precision="3xtf32") for a, b in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    results = [[], []]
    for _ in range(50):
        for stream, (a, b), outs in zip(streams, pairs, results, strict=True):
            with torch.cuda.stream(stream):
                outs.append(laneloom.matmul(a, b, precision="3xtf32"))
    torch.cuda.synchronize()
    for outs, wanted in zip(results, expected, strict=True):
        assert all(torch.equal(out, wanted) for out in outs)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [laneloom.matmul(a, b, precision="3xtf32") for a, b in pairs * 4]
    # A launch that does not wait for the one ahead would read the sources, or the copies, of another product.
    for a, _ in pairs:
        a.mul_(2)
    for _ in range(20):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
    for out, wanted in zip(outs, expected * 4, strict=True):
        assert torch.equal(out, 2 * wanted)
