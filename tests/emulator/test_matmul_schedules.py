"""Schedules beside the general one, tile orders, and operands that reach beyond 2**31 elements."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import rarely

import laneloom
from laneloom.codegen.versions import parse_version, triton_version
from laneloom.errors import InvalidConfigError
from laneloom.ops.matmul import reference
from laneloom.ops.matmul.config_wmma import WideConfig, WmmaConfig

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

SMALL = WmmaConfig(block_m=64, block_n=64, block_k=32)


@pytest.fixture
def gfx1151():
    with laneloom.emulated("gfx1151") as emulation:
        yield emulation


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def check(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """c is a @ b under the derived budget, every element."""
    verdict = reference.judge(c.double().numpy(), a.double().numpy(), b.double().numpy(), "fp16")
    assert verdict.ok, verdict


@pytest.mark.parametrize("name", ["gfx1201", *rarely("gfx1151")])
def test_split_k(name):
    """Parts of K, the last one shorter, and their terms; the same bits twice, and more parts than K has tiles."""
    with laneloom.emulated(name, strict=True) as emulation:
        for shape_a, shape_b, parts in (((33, 200), (200, 31), 3), ((2, 1, 8, 70), (3, 70, 24), 50)):
            config = WmmaConfig(block_m=32, block_n=32, block_k=32, num_warps=1, waves_n=1, split_k=parts)
            a, b, bias = random(*shape_a), random(*shape_b), random(shape_b[-1])
            got = laneloom.gemm(a, b, bias=bias, alpha=0.5, activation="silu", config=config)
            terms = {"bias": bias.double().numpy(), "alpha": 0.5, "activation": "silu"}
            values = (x.double().numpy() for x in (got, a, b))
            assert reference.judge_gemm(*values, "fp16", **terms).ok
            assert torch.equal(got, laneloom.gemm(a, b, bias=bias, alpha=0.5, activation="silu", config=config))
        assert [record.kernel for record in emulation.launches] == 4 * ["wmma_matmul", "apply_epilogue"]
        assert [record.grid[1] for record in emulation.launches[::2]] == [3, 3, 3, 3]


def test_plan_splits_k_and_takes_skinny_tiles():
    a, b = random(9, 520), random(520, 40)
    with laneloom.emulated("gfx1151", strict=True) as emulation:
        check(a, b, laneloom.matmul(a, b))
        explanation = laneloom.explain(a, b)
    assert isinstance(explanation.config, WmmaConfig)
    assert explanation.config.block_m == 16
    assert any("parts of" in fact for fact in explanation.facts) == (explanation.config.split_k > 1)
    assert emulation.launches[0].kernel == "wmma_matmul"


@pytest.mark.parametrize(("name", "layout"), [("gfx1201", "tt"), ("gfx1151", "tn"), *rarely(("gfx1151", "nn"))])
def test_wide_accesses(name, layout):
    """Every access of the loop is 16 bytes wide, without bank conflicts, by waves with different operands."""
    config = WideConfig(block_m=128, block_n=128, block_k=32)
    with laneloom.emulated(name, strict=True, seed=7, profile=True) as emulation:
        for m, n, k in ((136, 8, 72), (8, 136, 104)):
            a = random(m, k) if layout[0] == "n" else random(k, m).T
            b = random(k, n) if layout[1] == "n" else random(n, k).T
            check(a, b, laneloom.matmul(a, b, config=config))
            profile = emulation.launches[-1].profile
            assert profile is not None
            # Triton 3.8 turns the sums, once a program, through LDS that it lays out with conflicts.
            turned = parse_version(triton_version()) == (3, 8)
            loop = [i for i in profile.instructions if not (turned and "device/epilogue.py" in (i.source or ""))]
            assert sum(i.conflicts for i in loop) == 0
        with pytest.raises(InvalidConfigError, match="loads 16 bytes at a time, the strides or addresses allow fewer"):
            laneloom.matmul(random(8, 9), random(9, 8), config=config)
        with pytest.raises(InvalidConfigError, match="wmma_wide takes 16-bit elements, got int8"):
            laneloom.matmul(*(torch.ones(16, 16, dtype=torch.int8),) * 2, config=config)


def test_every_tile_order_is_a_bijection(gfx1151):
    """The kernel of every group height writes each tile of ragged grids once: the guarded output has no NaN left."""
    for group_m, (m, n) in ((1, (70, 100)), (2, (170, 100)), (3, (230, 70)), (8, (40, 300))):
        config = WmmaConfig(block_m=32, block_n=32, block_k=32, num_warps=1, waves_n=1, group_m=group_m)
        a, b = random(m, 8), random(8, n)
        check(a, b, laneloom.matmul(a, b, config=config))


def test_a_product_may_take_several_launches(gfx1151, monkeypatch):
    monkeypatch.setattr("laneloom.ops.matmul.launch_wmma.MOST_PROGRAMS", 5)
    a, b = random(2, 100, 16), random(2, 16, 72)
    check(a, b, laneloom.matmul(a, b, config=SMALL))
    assert [record.grid for record in gfx1151.launches] == [(5, 1, 1), (3, 1, 1)]


def test_more_than_2_to_the_31_elements(gfx1151):
    """Tiles that begin past element 2**31 of A, B and C: rows far apart in memory of which little is touched."""
    pitch, rows, k = 1 << 23, 300, 16
    store = torch.from_numpy(np.zeros(rows * pitch, np.float16))  # untouched pages take no memory
    a = store.as_strided((rows, k), (pitch, 1))
    a.copy_(random(rows, k))
    b = random(k, 8)
    assert "offsets inside a tile need 64 bits" not in laneloom.explain(a, b, config=SMALL).facts
    check(a, b, laneloom.matmul(a, b, config=SMALL))
    check(b.T, a.T, laneloom.matmul(b.T, a.T, config=SMALL))
    out = torch.from_numpy(np.zeros(rows * pitch, np.float16)).as_strided((rows, 8), (pitch, 1))
    near = a.clone()
    laneloom.matmul(near, b, out=out, config=SMALL)
    check(near, b, out)
