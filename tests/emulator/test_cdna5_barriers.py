"""Barriers of CDNA 5 that some waves of a workgroup share: named ones, and words of LDS through Gluon's `mbarrier`."""

import numpy as np
import pytest
import triton
from test_cdna5_clusters import run as run_cluster

from laneloom.errors import DeadlockError, UnknownInstructionError

# s6: the wave's number in its workgroup; v9: the lane's; v1: the byte of a thread's word; barrier 1 has two members.
START = """s_load_b64 s[2:3], s[0:1], 0x0
\ts_wait_kmcnt 0x0
\ts_bfe_u32 s6, ttmp8, 0x50019
\tv_and_b32 v0, 0x3ff, v0
\tv_and_b32 v9, 31, v0
\tv_lshlrev_b32 v1, 2, v0
\tv_lshlrev_b32 v8, 2, v9
\tv_mov_b32 v4, 0
\ts_mov_b32 m0, 0x20001
\ts_cmp_lg_u32 s6, 0
\ts_cbranch_scc1 .Lready
\ts_barrier_init m0
.Lready:
\ts_barrier_signal -1
\ts_barrier_wait -1
"""
STORE = "\tglobal_store_b32 v1, v4, s[2:3]\n"


def run(code: str, threads: int = 128, **options) -> np.ndarray:
    """What lanes leave in v4."""
    return run_cluster(START + code + STORE, (1,), (1,), threads=threads, **options)[:threads].reshape(-1, 32)


@pytest.mark.parametrize("gpu", ["gfx1250", "gfx1201"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_two_of_four_waves_meet(seed, gpu):
    """Wave 3 hands numbers to wave 1, whose turn may come first; the others go their way."""
    code = """\ts_cmp_eq_u32 s6, 1
\ts_cbranch_scc0 .Lmet
\ts_barrier_join 1
.Lmet:
\ts_barrier_signal -1
\ts_barrier_wait -1
\ts_cmp_eq_u32 s6, 3
\ts_cbranch_scc0 .Lnot3
\tv_add_nc_u32 v3, 0x64, v9
\tds_store_b32 v8, v3
\ts_wait_dscnt 0x0
\ts_barrier_signal 1
\ts_branch .Lend
.Lnot3:
\ts_cmp_eq_u32 s6, 1
\ts_cbranch_scc0 .Lend
\ts_barrier_signal 1
\ts_barrier_wait 1
\tds_load_b32 v4, v8
\ts_wait_dscnt 0x0
.Lend:
"""
    got = run(code, seed=seed, gpu=gpu)
    np.testing.assert_array_equal(got[1], 100 + np.arange(32))
    assert not got[[0, 2, 3]].any()


def test_turns_of_two_waves():
    """Each of five rounds adds what the other wave wrote in the one before."""
    code = """\ts_barrier_join m0
\ts_barrier_signal -1
\ts_barrier_wait -1
\ts_cmp_gt_u32 s6, 1
\ts_cbranch_scc1 .Lend
\tv_mov_b32 v4, 1
\tv_xor_b32 v5, 0x80, v1
\ts_mov_b32 s7, 5
\ts_mov_b32 m0, 1
.Lloop:
\tds_store_b32 v1, v4
\ts_wait_dscnt 0x0
\ts_barrier_signal m0
\ts_barrier_wait 1
\tds_load_b32 v6, v5
\ts_wait_dscnt 0x0
\tv_add_nc_u32 v4, v4, v6
\ts_barrier_signal 1
\ts_barrier_wait 1
\ts_sub_co_i32 s7, s7, 1
\ts_cmp_lg_u32 s7, 0
\ts_cbranch_scc1 .Lloop
.Lend:
"""
    got = run(code)
    assert (got[:2] == 32).all()
    assert not got[2:].any()


@pytest.mark.parametrize("gpu", ["gfx1250", "gfx1201"])
def test_what_the_state_says(gpu):
    code = """\ts_get_barrier_state s8, 1
\ts_wait_kmcnt 0x0
\ts_barrier_signal_isfirst 1
\ts_cselect_b32 s9, 1, 0
\ts_get_barrier_state s10, m0
\ts_get_barrier_state s11, 2
\ts_barrier_signal_isfirst 1
\ts_cselect_b32 s12, 1, 0
\ts_get_barrier_state s13, 1
\ts_wait_kmcnt 0x0
\tv_mov_b32 v4, s8
""" + "".join(
        f"\tv_cmp_eq_u32 vcc_lo, {lane}, v9\n\tv_mov_b32 v5, s{n}\n\tv_cndmask_b32 v4, v4, v5, vcc_lo\n"
        for lane, n in ((1, 9), (2, 10), (3, 11), (4, 12), (5, 13))
    )
    got = run(code, threads=32, gpu=gpu)[0]
    assert got[:6].tolist() == [0x21, 1, 0x10021, 0, 0, 0x21]


def test_waits_that_wait_for_nothing():
    """A wave that joined nothing, and barrier 0."""
    assert not run("\ts_barrier_signal 0\n\ts_barrier_wait 1\n").any()


def test_a_barrier_that_is_never_complete():
    with pytest.raises(DeadlockError, match=r"wave 0 waits for ever at a named barrier.*s_barrier_wait 1"):
        run("\ts_barrier_join 1\n\ts_barrier_signal 1\n\ts_barrier_wait 1\n", threads=32)


def test_what_is_refused():
    with pytest.raises(UnknownInstructionError, match="strict mode does not follow named barriers"):
        run("", strict=True)
    with pytest.raises(UnknownInstructionError, match=r"s_get_barrier_state.*workgroup's own barrier"):
        run("\ts_get_barrier_state s8, -1\n")


@pytest.mark.skipif(triton.__version__ < "3.9", reason="Gluon's mbarrier for CDNA 5 is Triton 3.9's")
def test_phases_of_a_barrier_in_lds():
    """Every thread arrives; three rounds, in which waves pass numbers on through LDS."""
    torch = pytest.importorskip("torch")
    from gluon_barriers import pass_on

    import laneloom

    out = torch.zeros(3, 128, dtype=torch.int32)
    with laneloom.emulated("gfx1250"):
        pass_on[(1,)](out, num_warps=4)
    np.testing.assert_array_equal(out.numpy(), np.arange(128) + 1000 * np.arange(3)[:, None])


@pytest.mark.skipif(triton.__version__ < "3.9", reason="Gluon's mbarrier for CDNA 5 is Triton 3.9's")
@pytest.mark.parametrize("seed", [0, 2])
def test_specialized_waves(seed):
    """Two waves fill what four empty; Triton's code has them meet at named barriers too."""
    torch = pytest.importorskip("torch")
    from gluon_barriers import hand_over

    import laneloom

    out = torch.zeros(4, 128, dtype=torch.int32)
    with laneloom.emulated("gfx1250", seed=seed) as gpu:
        hand_over[(1,)](out, 4, num_warps=4)
    np.testing.assert_array_equal(out.numpy(), 3 * np.arange(128) + 1000 * np.arange(4)[:, None])
    assert gpu.launches[-1].matching("s_barrier_join") > 0
