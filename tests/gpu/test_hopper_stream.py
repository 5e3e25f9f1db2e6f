"""FP32 by FMA with tiles cut along K, on a real Hopper GPU: every tile and layout, parts, graphs, streams, few CTAs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.matmul import reference  # noqa: E402
from laneloom.ops.matmul.config_stream import STREAM_TILES, StreamConfig  # noqa: E402
from laneloom.ops.matmul.execute import problem_of, schedule_of  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402

GPU = get_gpu("sm_90a")
GUARD = 1024  #: elements on both sides of a poisoned output


pytestmark = pytest.mark.usefixtures("hopper")


def operand(rows, columns, letter):
    x = torch.randn((rows, columns) if letter == "n" else (columns, rows), device="cuda")
    return x if letter == "n" else x.mT


def configure(problem, tile, *, split, programs=132, fed="in place"):
    """The tile with as many stages, up to four, as fit. fed: "in place" by TMA where it reads, copied elsewhere;
    everything "copied"; everything by "lanes"; or "mixed", A by lanes and B copied."""
    aligned = problem.m % 4 == problem.n % 4 == problem.k % 4 == 0
    copied = [not aligned or not along for along in (problem.a.major == "t", problem.b.major == "n")]
    lanes = [fed == "lanes", fed == "lanes"]
    if fed == "copied":
        copied = [True, True]
    elif fed == "mixed":
        copied, lanes = [False, True], [True, False]
    elif fed == "lanes":
        copied = [False, False]
    of = STREAM_TILES[tile]
    config = StreamConfig(
        block_m=tile[0], block_n=tile[1], block_k=of.block_k // 8 * 8 if any(lanes) else of.block_k,
        num_warps=tile[2], stages=4, split=split, programs=programs, copy_a=copied[0], copy_b=copied[1],
        lanes_a=lanes[0], lanes_b=lanes[1],
    )  # fmt: skip
    assert config.why_invalid(problem, GPU) is None
    return config


def run(problem, config, a, b):
    poisoned = torch.full((GUARD + problem.m * problem.n + GUARD,), float("nan"), device="cuda")
    out = poisoned[GUARD:-GUARD].view(problem.m, problem.n)
    schedule_of(config).launch(problem, config, GPU, a, b, out)
    torch.cuda.synchronize()
    assert poisoned[:GUARD].isnan().all()
    assert poisoned[-GUARD:].isnan().all()
    return out


def judge(out, a, b):
    out, a, b = (x.double().cpu().numpy() for x in (out, a, b))
    verdict = reference.judge(out, a, b, "fp32")
    assert verdict.ok, verdict


@pytest.mark.parametrize("fed", ["in place", "lanes", "mixed"])
@pytest.mark.parametrize(
    "sizes", [(520, 776, 200), (1, 333, 257), (129, 1, 1031), (517, 771, 203), (260, 514, 70), (64, 64, 4)]
)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_tile_whole_and_cut(layout, sizes, fed):
    m, n, k = sizes
    problem = MatmulProblem.contiguous(m, n, k, dtype="fp32", layout=layout)
    a, b = operand(m, k, layout[0]), operand(k, n, layout[1])
    for tile in STREAM_TILES:
        for split in (False, True):
            config = configure(problem, tile, split=split, fed=fed)
            out = run(problem, config, a, b)
            judge(out, a, b)
            assert torch.equal(out, run(problem, config, a, b))


@pytest.mark.parametrize("programs", [1, 2, 3, 7, 31, 132])
def test_shares_of_any_length(programs):
    """Tiles of one share, of two, of many; shares of a part, of one tile, of several."""
    for m, n, k in ((300, 500, 777), (128, 256, 5000), (1500, 1100, 90)):
        problem = MatmulProblem.contiguous(m, n, k, dtype="fp32", layout="tn")
        a, b = operand(m, k, "t"), operand(k, n, "n")
        for tile, fed in (((128, 256, 8), "copied"), ((64, 128, 4), "lanes"), ((64, 64, 4), "copied")):
            judge(run(problem, configure(problem, tile, split=True, programs=programs, fed=fed), a, b), a, b)


def test_more_ctas_than_fit_do_not_wait_for_each_other():
    problem = MatmulProblem.contiguous(256, 256, 8192, dtype="fp32", layout="tn")
    a, b = operand(256, 8192, "t"), operand(8192, 256, "n")
    for tile in ((64, 64, 4), (128, 128, 8)):
        judge(run(problem, configure(problem, tile, split=True, programs=500), a, b), a, b)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_lanes_bring_parts_of_larger_matrices_and_batches(layout):
    """Views with any pitch among NaN, a batch that repeats: no element beside the operands counts."""
    m, n, k = 133, 131, 145
    frames = [torch.full((2, 3, 170, 170), float("nan"), device="cuda") for _ in "ab"]
    a = frames[0][..., 5 : 5 + m, 3 : 3 + k] if layout[0] == "n" else frames[0][..., 5 : 5 + k, 3 : 3 + m].mT
    b = frames[1][:1, ..., 7 : 7 + k, 9 : 9 + n] if layout[1] == "n" else frames[1][:1, ..., 7 : 7 + n, 9 : 9 + k].mT
    a.normal_()
    b.normal_()
    b = b.expand(2, 3, k, n)
    out = torch.empty(2, 3, m, n, device="cuda")
    problem = problem_of(a, b, out, ("fp32", "fp32", "fp32"))
    for tile in STREAM_TILES:
        config = configure(problem, tile, split=True, fed="lanes")
        out.fill_(float("nan"))
        schedule_of(config).launch(problem, config, GPU, a, b, out)
        for got, x, y in zip(out.flatten(0, 1), a.flatten(0, 1), b.flatten(0, 1), strict=True):
            judge(got, x, y)


def test_graphs_are_replayed_with_the_same_number():
    a, b = operand(1536, 640, "n"), operand(640, 1536, "n")
    problem = MatmulProblem.contiguous(1536, 1536, 640, dtype="fp32")
    config = configure(problem, (128, 128, 8), split=True)
    out = torch.empty(1536, 1536, device="cuda")
    schedule_of(config).launch(problem, config, GPU, a, b, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            schedule_of(config).launch(problem, config, GPU, a, b, out)
    for _ in range(20):
        a.normal_()
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        judge(out, a, b)


def test_streams_beside_each_other():
    problem = MatmulProblem.contiguous(640, 512, 1024, dtype="fp32")
    config = configure(problem, (128, 128, 8), split=True)
    pairs = [(operand(640, 1024, "n"), operand(1024, 512, "n")) for _ in range(4)]
    wanted = [run(problem, config, a, b).clone() for a, b in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    outs = [torch.full((640, 512), float("nan"), device="cuda") for _ in pairs]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, (a, b), out in zip(streams, pairs, outs, strict=True):
            with torch.cuda.stream(stream):
                schedule_of(config).launch(problem, config, GPU, a, b, out)
    torch.cuda.synchronize()
    assert all(torch.equal(out, w) for out, w in zip(outs, wanted, strict=True))


def test_batches_in_one_launch_and_one_by_one():
    for letter in ("t", "n"):
        a = torch.randn((3, 96, 200) if letter == "t" else (3, 200, 96), device="cuda")
        a = a.mT if letter == "t" else a
        b = torch.randn(96, 300, device="cuda").expand(3, 96, 300)
        out = laneloom.matmul(a, b)
        for one, x, y in zip(out, a, b, strict=True):
            judge(one, x, y)


def test_infinities_and_nan_stay_where_they_belong():
    a, b = operand(300, 900, "n"), operand(900, 260, "n")
    a[7, 3], a[9, 4] = float("inf"), float("nan")
    out = laneloom.matmul(a, b)
    assert torch.isinf(out[7]).all()
    assert torch.isnan(out[9]).all()
    rest = [i for i in range(300) if i not in (7, 9)]
    judge(out[rest], a[rest], b)
