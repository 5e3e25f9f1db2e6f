"""The eight steps of the FP32 ladder in strict emulation: every element against FP64, guard bands, edges, conflicts."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import EVERYTHING, sampled

import laneloom
from laneloom import verify
from laneloom.errors import ArgumentError, InvalidConfigError
from laneloom.isa.listing import Kind
from laneloom.ops.matmul import reference
from laneloom.ops.matmul.config_sgemm import LADDER, AssemblyConfig

STEPS = [name for name in LADDER if name.startswith("sgemm_k")]
IN_ASSEMBLY = ["sgemm_k6", "sgemm_k7", "sgemm_k8"]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def judge(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    verdict = reference.judge(c.astype(np.float64), a.astype(np.float64), b.astype(np.float64), "fp32")
    assert verdict.ok, verdict


def run(gpu: str, config, m: int, n: int, k: int, **options):
    """One product, judged whole, with guard bands around C."""
    a, b, out = random(m, k, seed=1), random(k, n, seed=2), verify.Guarded((m, n), "fp32")
    with laneloom.emulated(gpu, **options) as emulation:
        laneloom.matmul(a, b, out=out.array, config=config)
    judge(a, b, out.array)
    assert out.untouched_outside()
    return emulation


#: Divided by every tile; one; primes; one more and one less than the tile, K as well; thin; K = 1.
SHAPES = [
    (128, 128, 32),
    (1, 1, 1),
    (67, 131, 37),
    (129, 127, 9),
    (127, 129, 7),
    (3, 201, 24),
    (140, 3, 17),
    (33, 41, 1),
]


def gpu_of(row: int, column: int) -> str:
    """Either GPU in turn; Gluon's steps, which compile for seconds, have one for whole tiles and one for edges."""
    if STEPS[row] in IN_ASSEMBLY:
        return ("gfx1100", "gfx1151")[(row + column) // 2 % 2]
    return "gfx1151" if column else "gfx1100"


#: Each step with the whole tile and every third other shape; neighbours differ.
CASES = [
    pytest.param(step, shape, gpu_of(row, column), id=f"{step}-{'x'.join(map(str, shape))}")
    for row, step in enumerate(STEPS)
    for column, shape in enumerate(SHAPES)
    if (row + column) % 6 == 0 or (EVERYTHING and ((row + column) % 3 == 0 or column == 0))
]


@pytest.mark.parametrize(("step", "shape", "gpu"), CASES)
def test_every_step_is_right(step, shape, gpu):
    emulation = run(gpu, step, *shape, strict=True)
    assert len(emulation.launches) == 1
    assert emulation.launches[0].kernel.startswith("sgemm_")


@pytest.mark.parametrize("step", sampled(["sgemm_k1", "sgemm_k2", "sgemm_k4", *IN_ASSEMBLY], first=1))
def test_rdna4(step):
    run("gfx1201", step, 130, 141, 19, strict=True)


@pytest.mark.parametrize("step", sampled(IN_ASSEMBLY))
def test_any_order_of_waves_gives_the_same_bits(step):
    a, b, results = random(150, 40), random(40, 140), []
    for seed in (0, 3):
        with laneloom.emulated("gfx1100", strict=True, seed=seed):
            results.append(laneloom.matmul(a, b, config=step))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("step", sampled(STEPS, first=1))
def test_loops_have_no_lds_conflicts_from_k5_on(step):
    emulation = run("gfx1100", step, 256, 128, 40, profile=True)
    profile = emulation.launches[0].profile
    assert profile is not None
    assert profile.total("lds_clocks") > 0 or step == "sgemm_k1"
    # K3 and K4 store A's columns without padding
    assert (profile.conflicts > 0) == (step in ("sgemm_k3", "sgemm_k4"))


@pytest.mark.parametrize("step", IN_ASSEMBLY)
def test_all_multiplications_are_in_pairs(step):
    emulation = run("gfx1151", step, 128, 128, 24, profile=True)
    profile = emulation.launches[0].profile
    assert profile is not None
    pairs = sum(i.executed for i in profile.instructions if i.kind is Kind.DUAL and "fmac" in i.text)
    assert 2 * 32 * pairs == 128 * 128 * 24
    assert not any("fma" in i.text for i in profile.instructions if i.kind is Kind.VALU)


def test_no_elements_and_no_terms():
    with laneloom.emulated("gfx1100") as emulation:
        for step in ("sgemm_k1", "sgemm_k8"):
            np.testing.assert_array_equal(laneloom.matmul(random(3, 0), random(0, 4), config=step), np.zeros((3, 4)))
            assert laneloom.matmul(random(0, 3), random(3, 4), config=step).shape == (0, 4)
    assert not emulation.launches


@pytest.mark.parametrize("step", ["sgemm_k2", "sgemm_k5", "sgemm_k6", "sgemm_k8"])
def test_pitches_and_batches(step):
    """Rows that are parts of longer ones, a batch with an operand that it shares, and NaN all around."""
    wide_a, wide_b = np.full((3, 130, 60), np.nan, np.float32), np.full((40, 70), np.nan, np.float32)
    wide_a[:, :, 5:42], wide_b[:37, 3:68] = random(3, 130, 37), random(37, 65)
    a, b, out = wide_a[:, :, 5:42], wide_b[:37, 3:68], verify.Guarded((3, 130, 65), "fp32", (130 * 71, 71, 1))
    with laneloom.emulated("gfx1151", strict=True):
        laneloom.matmul(a, b, out=out.array, config=step)
    judge(a, np.broadcast_to(b, (3, 37, 65)), out.array)
    assert out.untouched_outside()


def test_groups_of_tiles():
    """Bands of tiles are another order of workgroups, some of which have nothing to do."""
    for loads in ("addressed", "batched"):
        config = AssemblyConfig(group_m=4, unroll=True, loads=loads)
        run("gfx1100", config, 270, 130, 16, strict=True)


def test_nan_and_infinity_stay_where_they_belong():
    a, b = random(130, 20), random(20, 150)
    a[129, 19], b[3, 149] = np.nan, np.inf
    with laneloom.emulated("gfx1100", strict=True):
        c = laneloom.matmul(a, b, config="sgemm_k8")
    assert np.isnan(c[129]).all()
    assert np.isinf(c[:129, 149]).all()
    assert np.isfinite(c[:129, :149]).all()


@pytest.mark.parametrize("step", ["sgemm_k1", "sgemm_k4", "sgemm_k7"])
def test_refusals_say_what_was_expected(step):
    a, b = random(8, 16), random(16, 8)
    with laneloom.emulated("gfx1100"):
        with pytest.raises(InvalidConfigError, match=r"a: .* row-major"):
            laneloom.matmul(a.T.copy().T, b, config=step)
        with pytest.raises(InvalidConfigError, match=r"b: .* row-major"):
            laneloom.matmul(a, b.T.copy().T, config=step)
        with pytest.raises(InvalidConfigError, match="fp32, got fp16"):
            laneloom.matmul(a.astype(np.float16), b.astype(np.float16), config=step)
        with pytest.raises(ArgumentError, match="sgemm_k8"):
            laneloom.matmul(a, b, config="sgemm_k9")


def test_knobs_that_do_not_go_together():
    a, b = random(8, 16), random(16, 8)
    with laneloom.emulated("gfx1100"):
        for config, why in (
            (AssemblyConfig(loads="batched"), "unroll=False"),
            (AssemblyConfig(priority=True), "unroll=False"),
            (AssemblyConfig(loads="wide"), "'wide'"),
            (AssemblyConfig(group_m=3), "power of two"),
            (AssemblyConfig(block_n=64), "128 x 128 x 8 by 4 waves"),
        ):
            with pytest.raises(InvalidConfigError, match=why):
                laneloom.matmul(a, b, config=config)


def test_torch_tensors_and_the_text_of_a_config():
    torch = pytest.importorskip("torch")
    a, b = torch.from_numpy(random(40, 30)), torch.from_numpy(random(30, 50))
    with laneloom.emulated("gfx1151", strict=True) as emulation:
        c = laneloom.matmul(a, b, config=LADDER["sgemm_k8"].text)
    judge(a.numpy(), b.numpy(), c.numpy())
    assert emulation.launches[0].kernel == "sgemm_k8_masked"
