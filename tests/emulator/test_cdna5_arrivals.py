"""Strict mode on copies to and from LDS that arrive at a barrier in LDS (CDNA 5): who knows that they have landed."""

import numpy as np
import pytest
import triton
from test_cdna5_clusters import run as run_cluster

import laneloom
from laneloom.errors import HazardError

new_triton = pytest.mark.skipif(triton.__version__ < "3.9", reason="Gluon's mbarrier for CDNA 5 is Triton 3.9's")
orders = pytest.mark.parametrize("seed", [0, 1, 2])
kinds = pytest.mark.parametrize("by_tensor", [False, True])


def copy(kernel: str, seed: int, *constants) -> None:
    torch = pytest.importorskip("torch")
    import gluon_arrivals

    a = torch.randn(5, 16, 64, dtype=torch.float16)
    out = torch.zeros_like(a)
    with laneloom.emulated("gfx1250", strict=True, seed=seed):
        getattr(gluon_arrivals, kernel)[(1,)](a, out, len(a), *constants, num_warps=4)
    np.testing.assert_array_equal(out.numpy(), a.numpy())


@pytest.mark.covering(together=2)
@new_triton
@orders
@kinds
@pytest.mark.parametrize("threads_too", [False, True])
def test_waves_that_wait_for_the_phase(threads_too, by_tensor, seed):
    copy("ring", seed, by_tensor, threads_too, "")


@pytest.mark.covering(together=2)
@new_triton
@orders
@kinds
@pytest.mark.parametrize("damage", ["wait", "phase", "late"])
def test_waves_that_do_not(damage, by_tensor, seed):
    """They wait for nothing, for the wrong phase, or for a barrier at which a later copy does not arrive."""
    counter = "tensorcnt" if by_tensor else "asynccnt"
    with pytest.raises(HazardError, match=f"reads LDS before a wait for {counter}, or for the barrier in LDS"):
        copy("ring", seed, by_tensor, False, damage)


@new_triton
@orders
@kinds
def test_a_buffer_that_copies_have_read(by_tensor, seed):
    copy("send", seed, by_tensor, "")
    with pytest.raises(HazardError, match="overwrites LDS before a wait for"):
        copy("send", seed, by_tensor, "wait")


# Each of two waves copies what its lanes then store; v2: the place of what the other wave copies; v3: the barrier.
CODE = """s_load_b64 s[2:3], s[0:1], 0x0
\ts_wait_kmcnt 0x0
\ts_bfe_u32 s6, ttmp8, 0x50019
\tv_and_b32 v0, 0x3ff, v0
\tv_lshlrev_b32 v1, 2, v0
\tv_xor_b32 v2, 0x80, v1
\tv_mov_b32 v3, 0x100
\tv_mov_b32 v4, 63
\tv_mov_b32 v5, 63
\ts_cmp_lg_u32 s6, 0
\ts_cbranch_scc1 .Lready
\tds_store_b64 v3, v[4:5]
\ts_wait_dscnt 0x0
.Lready:
\ts_barrier_signal -1
\ts_barrier_wait -1
\tglobal_load_async_to_lds_b32 v1, v1, s[2:3]
\tds_atomic_async_barrier_arrive_b64 v3
{wait}
\tds_load_b32 v6, v2
\ts_wait_dscnt 0x0
\tglobal_store_b32 v1, v6, s[2:3] offset:1024
"""
LOOK = "\tds_load_b32 v7, v3\n\ts_wait_dscnt 0x0\n"
POLL = f""".Lpoll:
{LOOK}\tv_and_b32 v7, 0x20000000, v7
\tv_cmp_eq_u32 vcc_lo, 0, v7
\ts_cbranch_vccnz .Lpoll
"""
SCALAR_POLL = f""".Lpoll:
{LOOK}\tv_readfirstlane_b32 s7, v7
\ts_bitcmp0_b32 s7, 29
\ts_cbranch_scc1 .Lpoll
"""
MEET = "\ts_barrier_signal -1\n\ts_barrier_wait -1\n"
FIRST = f"\ts_cmp_lg_u32 s6, 0\n\ts_cbranch_scc1 .Lpast\n{POLL}.Lpast:\n"
OWN = "\ts_wait_asynccnt 0x0\n"
IGNORED = f"{LOOK}\ts_cmp_lg_u32 s6, 5\n\ts_cbranch_scc1 .Lpast\n\ts_nop 0\n.Lpast:\n"


@orders
@pytest.mark.parametrize("wait", [POLL, SCALAR_POLL, FIRST + MEET, OWN + MEET, POLL + MEET + MEET])
def test_ways_to_know(wait, seed):
    """By the word; by a wave that knows, across the workgroup's barrier."""
    got = run_cluster(CODE.format(wait=wait), (1,), (1,), threads=64, strict=True, seed=seed)
    np.testing.assert_array_equal(got[256:320], np.arange(64) ^ 32)


@orders
@pytest.mark.parametrize("wait", ["", MEET, FIRST, OWN, LOOK + MEET, IGNORED])
def test_ways_not_to_know(wait, seed):
    """No wait, that of another wave without a barrier, for one's own copies alone, a word that decides nothing."""
    text = "reads LDS before a wait for asynccnt, or for the barrier in LDS"
    if seed and MEET not in wait:  # the other wave may have yet to copy
        text += "|bits that nobody wrote"
    with pytest.raises(HazardError, match=text):
        run_cluster(CODE.format(wait=wait), (1,), (1,), threads=64, strict=True, seed=seed)


def test_arrivals_without_copies_end_the_phase():
    code = CODE.replace(
        "\tglobal_load_async_to_lds_b32 v1, v1, s[2:3]\n", "\tds_store_b32 v2, v0\n\ts_wait_dscnt 0x0\n"
    )
    got = run_cluster(code.format(wait=POLL + MEET), (1,), (1,), threads=64, strict=True)
    np.testing.assert_array_equal(got[256:320], np.arange(64))
