"""What the CPU model of Hopper's instructions says of hopper_registers.cu where a part of its text is wrong."""

from __future__ import annotations

import functools

import pytest
from hopper_model import COMPILER, damaged
from sampled import sampled

torch = pytest.importorskip("torch")

from matmul_model import REGISTERS, Model  # noqa: E402
from registers_products import check, fp32, small  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture
def model(tmp_path, monkeypatch):
    return functools.partial(Model, tmp_path, monkeypatch, of=REGISTERS)


FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n'
WAIT, RELEASE = "wait_products<0>();\n", "        release(here);\n"
ONE_TILE, TILES = (fp32(64, 64, 136), small(columns=64)), (fp32(140, 72, 136), small(columns=64))
TWO_SLICES = fp32(64, 64, 64), small(columns=64)
TURNS = fp32(128, 64, 136), small(128, 64)
PANELS = fp32(64, 64, 136, "tn"), small(columns=64)

#: what is wrong: what stands in the kernel's text, what instead, what is said of it, of which product
FAULTS = {
    "wgmma may see old pieces": (f"{FENCE}            __syncwarp();", "__syncwarp();", "wgmma reads", ONE_TILE),
    "a slice is multiplied before it is cut": (
        "        wait_barrier(ring.cut + 8 * stage, phase);\n", "", "wrong|wgmma reads what no fence", TWO_SLICES),
    "a slice is never released": (RELEASE, "", "waits for ever", ONE_TILE),
    "sums are read before wgmma is done": (WAIT + RELEASE, RELEASE, "wrong|nobody waits for", ONE_TILE),
    "slices are refilled before wgmma is done": (
        WAIT + RELEASE, f"{RELEASE}fibers::sleep(500);\n{WAIT}", "wrong", ONE_TILE),
    "the other warpgroup never gets its turn": (
        'asm volatile("bar.arrive %0, 256;" ::"r"(5 - slab) : "memory");', ";", "waits for ever", TURNS),
    "the last turn is not taken": (
        'asm volatile("bar.sync 4, 256;" ::: "memory");', ";", "ends while 128 threads are at barrier 4", TURNS),
    "the copy engine may see old staging": (f"{FENCE}        asm", "asm", "the copy engine reads", ONE_TILE),
    "staging is written before the copy engine has read it": ("wait_group.read 1;", "commit_group;", "wrong", TILES),
    "staging of one piece is written before the last tile's is read": (
        "wait_group.read 0;", "wait_group.read 1;", "wrong", (fp32(70, 40, 136), small())),
    "a CTA ends before the copy engine has read it": (
        'asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");', ";", "a CTA ends before", ONE_TILE),
    "a block is turned before the one in its place has been read": (
        "        __syncwarp();\n#pragma unroll", "#pragma unroll", "wrong", PANELS),
}  # fmt: skip
#: what is late, so that what does not wait for it is ahead of it
SLOW = {
    "before it is cut": ("uint4 *x = (uint4 *)", "fibers::sleep(500);\n            uint4 *x = (uint4 *)"),
    "in its place": ("u32 block[4][4];", "if (lane == 5) fibers::sleep(500);\n        u32 block[4][4];"),
}


@pytest.mark.parametrize("name", sampled(FAULTS, first=1, every=4))
def test_faults_are_seen(model, name):
    there, instead, what, product = FAULTS[name]
    late = dict(pair for words, pair in SLOW.items() if words in name)
    model(change=damaged({there: instead}, late))
    with pytest.raises(AssertionError, match=what):
        check(*product)
