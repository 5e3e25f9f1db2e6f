"""hopper_cluster_blocks.cuh on the CPU model of Hopper's instructions: scales of blocks along K, and sums of blocks
that are promoted without scales, held to FP64; what is wrong on purpose is seen.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from hopper_model import COMPILER
from sampled import rarely, sampled, without

torch = pytest.importorskip("torch")

from matmul_model import Model  # noqa: E402
from matmul_products import SUMMED, check_groups_of_rows, laid, product, run, small  # noqa: E402

from laneloom.ops.matmul import reference  # noqa: E402
from laneloom.ops.matmul.problem import SCALE_BLOCK, BlockScales, Matrix  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture
def model(folder, monkeypatch):
    for name, stand_in in SUMMED.items():
        monkeypatch.setattr(name, stand_in)
    return functools.partial(Model, folder, monkeypatch)


def over(size: int, together: int = SCALE_BLOCK) -> int:
    return -(-size // together)


def blocks(m, n, k, columns=128, rows=1, **rest):
    """A's scales lie as [X, M] with a gap behind each row, B's densely along K's blocks but for one element."""
    problem = product(m, n, k, "nt", dtype="fp8", **{"out": "bf16", **rest})
    own, x, inner = over(m, rows), over(k), problem.batch[1]
    a = Matrix((inner * x * (own + 3), x * (own + 3), 1, own + 3), 4)
    b = Matrix((0, over(n, columns) * (x + 1), 1, x + 1), 4)
    return replace(problem, scales=BlockScales(a, b, rows, columns))


def scaled(**knobs):
    return small(**{"block_k": 128, "scaled": 1, "programs": 4} | knobs)


def promoted(m, n, k, **rest):
    return product(m, n, k, dtype="fp8", precision="promoted", **{"out": "bf16", **rest})


def check(problem, config):
    scales = problem.scales
    if scales is None:
        a, b, out = run(problem, config)
        verdict = reference.judge(*(x.double().numpy() for x in (out, a, b)), problem.dtype_out)
        assert verdict.ok, f"wrong: {verdict}"
        return
    shapes = (over(problem.m, scales.rows), over(problem.k)), (over(problem.k), over(problem.n, scales.columns))
    lies = zip((scales.a, scales.b), shapes, (5, 6), strict=True)
    scale_a, scale_b = (laid(at, (*problem.batch, *shape), "fp32", seed) for at, shape, seed in lies)
    a, b, out = run(problem, config, *[None] * 4, scale_a, scale_b)
    wide = (x.double().numpy() for x in (out, a, b, scale_a, scale_b))
    verdict = reference.judge_blocks(*wide, problem.dtype_out)
    assert verdict.ok, f"wrong: {verdict}"


CASES = {
    "dual": (blocks(70, 136, 600), scaled(block_n=64, dual=True, stages=3)),
    "dual, scales of columns": (blocks(70, 136, 400, 1), scaled(block_n=64, dual=True)),
    "dual, one slice": (blocks(70, 40, 100), scaled(dual=True)),
    "one slice": (blocks(70, 40, 128), scaled()),
    "two parts": (blocks(70, 264, 200), scaled(block_m=128, block_n=256, consumers=2, scaled=2)),
    "two parts, scales of columns": (blocks(70, 168, 400, 1), scaled(block_n=192, scaled=2)),
    "three consumers": (blocks(200, 136, 300), scaled(block_m=192, block_n=128, consumers=3)),
    "two strips": (blocks(300, 72, 300, 1), scaled(block_m=256, block_n=64, consumers=2)),
    "128 rows of two strips": (blocks(300, 136, 200, 128, 128), scaled(block_m=256, block_n=128, consumers=2)),
    "128 rows of half a tile's": (blocks(200, 72, 260, 128, 128), scaled(block_n=64)),
    "columns across a block": (blocks(100, 280, 300), scaled(block_m=128, block_n=96, consumers=2)),
    "two parts across a block": (blocks(70, 400, 260), scaled(block_n=192, scaled=2)),
    "swapped": (blocks(40, 200, 300), scaled(block_n=40, swapped=True, dual=True)),
    "swapped, masked": (blocks(37, 141, 300, c_pitch=144), scaled(swapped=True, tma_store=False)),
    "cluster of 2 x 1": (blocks(200, 72, 400), scaled(cluster_m=2, dual=True)),
    "cluster of 1 x 2": (blocks(100, 104, 400, 1), scaled(cluster_n=2)),
    "parts of k": (blocks(70, 45, 900, out="fp32"), scaled(split_k=3, tma_store=False)),
    "parts of k of a batch": (blocks(64, 40, 520, batch=(1, 2)), scaled(split_k=2, dual=True, tma_store=True)),
    "batch, masked": (blocks(69, 45, 300, batch=(2, 2), c_pitch=52), scaled(tma_store=False)),
    "promoted, dual": (promoted(70, 136, 600), scaled(block_n=64, dual=True)),
    "promoted, two warpgroups": (promoted(140, 80, 400), scaled(block_m=128, block_n=40, consumers=2)),
    "promoted, dual by two": (promoted(140, 80, 300), scaled(block_m=128, block_n=40, consumers=2, dual=True)),
    "promoted, two parts": (promoted(70, 72, 300), scaled(block_m=128, block_n=48, consumers=2, scaled=2)),
    "promoted, two strips": (promoted(300, 40, 200), scaled(block_m=256, consumers=2)),
    "promoted, three": (promoted(200, 72, 300), scaled(block_m=192, block_n=40, consumers=3, cluster_n=1)),
    "promoted, swapped": (promoted(40, 200, 300), scaled(block_n=40, swapped=True, block_m=128, consumers=2)),
    "promoted, swapped, fp32": (
        promoted(37, 141, 300, out="fp32", c_pitch=143), scaled(block_n=40, swapped=True, tma_store=False)),
    "promoted, parts of k": (
        promoted(70, 45, 900, out="fp32"), scaled(block_m=128, consumers=2, split_k=3, tma_store=False)),
}  # fmt: skip


USUAL = sampled(without(
    CASES, "one slice", "two parts, scales of columns", "two strips", "128 rows of half a tile's",
    "two parts across a block", "swapped, masked", "parts of k of a batch", "promoted, dual", "promoted, two parts",
    "promoted, swapped", "promoted, two strips",
))  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_products(model, name):
    model()
    check(*CASES[name])


@pytest.mark.parametrize("name", ["dual, scales of columns", *rarely("two parts", "cluster of 2 x 1")])
def test_products_early(model, name):
    """What would come too early is seen where nothing waits for a wait."""
    model(late=False)
    check(*CASES[name])


def test_groups(model):
    """Rows of groups that end within tiles have scales of their own, and each group's B its own."""
    m, n, k, ends = 150, 40, 300, (70, 70, 75, 141)
    problem = blocks(m, n, k, batch=(1, len(ends)), shared="ac")
    a_scales = replace(problem.scales.a, strides=(0, 0, *problem.scales.a.strides[2:]))
    b_scales = replace(problem.scales.b, strides=(0, 4, 1, 3))
    problem = replace(problem, scales=replace(problem.scales, a=a_scales, b=b_scales), grouped=True)
    scale_a = laid(problem.scales.a, (1, 4, m, 3), "fp32", 5)
    scale_b = laid(problem.scales.b, (1, 4, 3, 1), "fp32", 6)
    model()
    terms = (*[None] * 4, scale_a, scale_b, torch.tensor(ends, dtype=torch.int32))
    a, b, out = run(problem, scaled(grouped=True, dual=True), *terms)
    for group, (first, end) in enumerate(zip((0, *ends), ends, strict=False)):
        got, own_a, own_scale = (x[0, group, first:end].double().numpy() for x in (out, a, scale_a))
        own_b, own_scale_b = (x[0, group].double().numpy() for x in (b, scale_b))
        verdict = reference.judge_blocks(got, own_a, own_b, own_scale, own_scale_b, "bf16")
        assert verdict.ok, verdict
    assert out[0, 0, ends[-1] :].isnan().all()


def test_promoted_groups(model):
    model()
    batch = promoted(150, 80, 300, batch=(1, 4), shared="ac")
    config = scaled(block_m=128, block_n=40, consumers=2, grouped=True)
    check_groups_of_rows(batch, config, (70, 70, 75, 141))


def waits(groups):
    return f'asm volatile("wgmma.wait_group.sync.aligned {groups};" ::: "memory");'


def turns(what, kind, whose):
    return f'asm volatile("bar.{what} %0, 256;" ::"{kind}"({whose}) : "memory");'


AFTER = "TURN_OF(slab == CONSUMERS - 1 ? 0 : slab + 1)"
FREED = "if (last && !FREED_LATE) free();"
#: what is wrong: of which case, what stands in the kernel's text, what instead, what is said of it
FAULTS = {
    "a slice is full before its scales are there": (
        "dual", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];", "mbarrier.arrive.shared::cta.b64 _, [%0];",
        "copies that nobody waits for"),
    "scales come before their place is free": (
        "dual", "wait_barrier(empty + 8 * stage, phase ^ 1);\n            float", "float",
        "more arrivals than it counts|waits for ever|wrong"),
    "scales of columns are overwritten while a slow warp adds": (
        "two strips", FREED, "if (last) free(), fibers::sleep(200);", "wrong"),
    "sums are added before wgmma is done": ("dual", waits(1), "", "wrong"),
    "the last sums are added before wgmma is done": ("one slice", waits(0), waits(1), "nobody waits for"),
    "A's registers are another slice's": ("two parts", "load_a((unit + 1) % UNITS);", "", "wrong"),
    "columns behind a block's end have its scale": (
        "columns across a block", "two = ALIGNED", "two = true || ALIGNED", "wrong"),
    "the next one's turn never comes": ("promoted, three", turns("arrive", "r", AFTER), ";", "waits for ever"),
    "the turn that nobody took is left": (
        "promoted, two warpgroups", turns("sync", "n", "TURN_OF(0)"), ";", "ends while 128 threads are at barrier 4"),
}  # fmt: skip


OWN = sampled(without(
    FAULTS, "the last sums are added before wgmma is done", "columns behind a block's end have its scale",
    "the turn that nobody took is left",
), first=1, every=4)  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_faults_are_seen(model, name):
    case, there, instead, what = FAULTS[name]

    def change(text):
        assert there in text
        return text.replace(there, instead)

    model(change=change)
    with pytest.raises(AssertionError, match=what):
        check(*CASES[case])


def test_a_slow_warp_that_frees_late_is_right(model):
    """Of the fault above it is the order that is wrong, not the delay."""
    model(change=lambda text: text.replace(FREED, FREED + " fibers::sleep(200);"))
    check(*CASES["two strips"])
