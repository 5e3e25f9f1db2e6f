"""Every preset is right in strict emulation: ragged and whole tiles, every layout, epilogues, tile orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import in_turn, sampled
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import laneloom
from laneloom import verify
from laneloom.device.tile_order import tile_of
from laneloom.errors import InvalidConfigError
from laneloom.ops.matmul import reference
from laneloom.ops.matmul.config_wmma import WmmaConfig
from laneloom.ops.matmul.presets import PRESETS
from laneloom.ops.matmul.tile_orders import CHIPLETS, ORDERS

SCHEDULES = ("standard", "opt", "coop", "pingpong", "zerocopy", "xor_optimized")  # loops and ways of their own
OTHERS = [name for name in PRESETS if name not in SCHEDULES]


def operands(m: int, n: int, k: int, layout: str = "nn") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m * n + k)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    return (a if layout[0] == "n" else a.T.copy().T), (b if layout[1] == "n" else b.T.copy().T)


def check(name, m: int, n: int, k: int, layout: str = "nn") -> None:
    """The whole output under the budget, and nothing written around it."""
    a, b = operands(m, n, k, layout)
    out = verify.Guarded((m, n), "fp32")
    laneloom.matmul(a, b, out=out.array, out_dtype=np.float32, config=name)
    verdict = reference.judge(out.array, a, b, "fp32")
    assert verdict.ok, verdict
    assert out.untouched_outside()


@pytest.mark.parametrize("name", [*sampled(SCHEDULES), *sampled(OTHERS, every=10)])
def test_ragged(name):
    with laneloom.emulated("gfx1151", strict=True, seed=5) as emulation:
        check(name, 129, 67, 33)
    # stream_k: pieces of tiles, which are fewer than would fill the GPU, and their sums
    assert len(emulation.launches) == (2 if name == "stream_k" else 1)


@pytest.mark.parametrize("name", [*sampled(SCHEDULES, first=1), *sampled(OTHERS, first=2, every=10)])
def test_whole_vectors(name):
    with laneloom.emulated("gfx1201", strict=True, seed=6):
        check(name, 136, 72, 104)


@pytest.mark.parametrize(("turn", "name"), enumerate(SCHEDULES))
def test_small_and_transposed(turn, name):
    with laneloom.emulated("gfx1100", strict=True, seed=7):
        for m, n, k, layout in in_turn(turn, (128, 128, 64, "tt"), (1, 1, 1, "nn"), (128, 136, 48, "tn")):
            check(name, m, n, k, layout)


@pytest.mark.parametrize("name", sampled(SCHEDULES, every=3))
def test_epilogues(name):
    a, b = operands(130, 72, 40)
    c = np.random.default_rng(0).standard_normal((130, 72)).astype(np.float32)
    with laneloom.emulated("gfx1151", strict=True, seed=8):
        got = laneloom.gemm(a, b, c, alpha=2, beta=0.5, bias=c[0], activation="relu", config=name)
    assert reference.judge_gemm(got, a, b, "fp16", c=c, alpha=2, beta=0.5, bias=c[0], activation="relu").ok


def test_a_preset_that_cannot_run_says_why():
    a, b = operands(16, 16, 16)
    with laneloom.emulated("gfx1151"), pytest.raises(InvalidConfigError, match="buffers: the schedule wmma_coop has 2"):
        laneloom.matmul(a, b, config="wmma_coop:block_m=128,block_n=64,block_k=16,buffers=1")


@gluon.jit(do_not_specialize=["tiles_m", "tiles_n"])
def write_order(out_ptr, tiles_m, tiles_n, ORDER: gl.constexpr, GROUP: gl.constexpr, CHIPLETS: gl.constexpr):
    program = gl.program_id(0)
    m, n = tile_of(program, tiles_m, tiles_n, ORDER, GROUP, CHIPLETS)
    which = gl.arange(0, 2, gl.BlockedLayout([1], [32], [1], [0]))
    gl.store(out_ptr + 2 * program + which, gl.where(which == 0, m, n))


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(tiles_m=st.integers(1, 40), tiles_n=st.integers(1, 40))
def test_device_and_python_agree_on_every_order(order, tiles_m, tiles_n):
    out = np.full((tiles_m * tiles_n, 2), -1, np.int32)
    with laneloom.emulated("gfx1151"):
        from laneloom.emulator.driver import ArrayArgument

        write_order[(tiles_m * tiles_n,)](
            ArrayArgument(out), tiles_m, tiles_n, ORDER=order, GROUP=3, CHIPLETS=CHIPLETS, num_warps=1)  # fmt: skip
    assert [tuple(row) for row in out.tolist()] == [
        ORDERS[order](program, tiles_m, tiles_n, 3) for program in range(tiles_m * tiles_n)
    ]


@pytest.mark.parametrize("order", sampled(ORDERS, every=4))
def test_orders_in_the_kernel(order):
    config = WmmaConfig(block_m=32, block_n=32, block_k=32, num_warps=1, waves_n=1, order=order, group_m=2)
    with laneloom.emulated("gfx1151", strict=True, seed=9):
        check(config, 100, 132, 8)
