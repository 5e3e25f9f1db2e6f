"""Profiles of launches against counts made by hand."""

from __future__ import annotations

import numpy as np
import pytest

import laneloom
from laneloom.emulator.driver import emulated
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import OutOfBoundsError
from laneloom.gpu import get_gpu
from laneloom.isa.listing import Kind

KERNEL = """
k:
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 32
\t\t.amdhsa_next_free_sgpr 32
\t\t.amdhsa_group_segment_fixed_size 8192
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_wavefront_size32 {narrow}
\t.end_amdhsa_kernel
"""
WAIT = dict.fromkeys(("gfx1151", "gfx942", "gfx950"), "s_waitcnt lgkmcnt(0)") | {"gfx1201": "s_wait_kmcnt 0x0"}


def run(code: str, gpu: str = "gfx1151", *, grid=1, threads=32, strict=False):
    """The profile of some lines; s[2:3] point to 16384 bytes aligned to 256, v0 is the thread."""
    array = np.zeros(16384 + 256, np.uint8)
    start = array.ctypes.data + (-array.ctypes.data & 255)
    lines = f"s_load_b64 s[2:3], s[0:1], 0x0\n{WAIT[gpu]}\n{code}"
    stripped = [line.strip() for line in lines.strip().splitlines()]
    code = "\n".join(line if line.endswith(":") else "\t" + line for line in stripped)
    text = KERNEL.format(code=code, narrow=int(get_gpu(gpu).wave == 32))
    record = launch(
        Program(text, gpu, strict=strict), [grid], start.to_bytes(8, "little"), workgroup_size=threads,
        regions=[Region("x", start, 16384, array)], profile=True,
    )  # fmt: skip
    assert record.profile is not None
    return record, record.profile


def one(profile, text: str):
    (found,) = [ins for ins in profile.instructions if ins.text.startswith(text)]
    return found


def test_nothing_is_counted_unless_asked():
    a = np.ones((16, 16), np.float16)
    with emulated("gfx1151") as gpu:
        laneloom.matmul(a, a)
    assert gpu.launches[0].profile is None


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_global_accesses(gpu, strict):
    """3 workgroups of 2 waves at the same addresses: lines are counted once, transactions for every wave."""
    code = """
        v_lshlrev_b32 v5, 2, v0
        v_lshlrev_b32 v2, 7, v0
        v_mov_b32 v3, 0
        v_add_nc_u32 v1, 0x2000, v5
        global_store_b32 v1, v3, s[2:3] offset:0
        global_store_b32 v1, v3, s[2:3] offset:64
        global_load_b32 v4, v2, s[2:3]
        global_load_b128 v[8:11], v5, s[2:3] offset:128
    """
    record, p = run(code, gpu, grid=3, threads=64, strict=strict)
    straight = one(p, "global_store_b32 v1, v3, s[2:3] offset:0")
    assert straight.executed == 6
    assert (straight.requested_bytes, straight.transactions, straight.lines) == (3 * 256, 6, 2)
    shifted = one(p, "global_store_b32 v1, v3, s[2:3] offset:64")
    assert (shifted.transactions, shifted.lines) == (12, 3)
    strided = one(p, "global_load_b32")
    assert (strided.requested_bytes, strided.transactions, strided.lines) == (3 * 256, 6 * 32, 64)
    overlapping = one(p, "global_load_b128")  # lanes 4 bytes apart ask for 16 bytes each: 140 bytes of 2 lines a wave
    assert (overlapping.requested_bytes, overlapping.transactions, overlapping.lines) == (3 * 1024, 12, 3)
    scalar = one(p, "s_load_b64")
    assert (scalar.executed, scalar.requested_bytes, scalar.transactions) == (6, 48, 6)
    assert p.requested_bytes == 3 * (256 + 256 + 256 + 1024)  # scalar loads have their own cache
    assert p.transactions == 6 + 12 + 192 + 12
    assert (p.loaded_lines, p.stored_lines) == (64, 3)
    assert p.footprint_bytes == 128 * 67
    assert p.total("executed") == record.instructions
    assert p.kinds[Kind.GLOBAL_STORE] == 12


@pytest.mark.parametrize("strict", [False, True])
def test_lds_conflicts(strict):
    code = """
        v_mov_b32 v2, 0
        v_mov_b32 v3, 0
        v_mov_b32 v4, 0
        v_mov_b32 v5, 0
        v_lshlrev_b32 v1, 7, v0
        v_lshlrev_b32 v6, 6, v0
        v_lshlrev_b32 v7, 4, v0
        ds_store_b32 v1, v2
        ds_store_b128 v6, v[2:5] offset:4096
        ds_load_b128 v[8:11], v6 offset:4096
        ds_store_2addr_b64 v7, v[2:3], v[4:5] offset1:1
        ds_add_u32 v3, v2 offset:4096
        s_waitcnt lgkmcnt(0)
    """
    _, p = run(code, strict=strict)

    def clocks(text: str) -> tuple[int, int]:
        ins = one(p, text)
        return ins.lds_clocks, ins.conflicts

    assert clocks("ds_store_b32") == (1, 31)
    assert clocks("ds_store_b128") == (4, 12)
    assert clocks("ds_load_b128") == (4, 12)
    assert clocks("ds_store_2addr_b64") == (4, 4)  # two accesses of 8 bytes, 16 apart: each half wave meets twice
    assert clocks("ds_add_u32") == (1, 31)
    assert p.conflicts == 31 + 12 + 12 + 4 + 31
    assert one(p, "ds_load_b128").requested_bytes == 512
    assert p.requested_bytes == 0


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [("gfx942", ((2, 62), (8, 24), (8, 0), (8, 8))), ("gfx950", ((1, 31), (4, 12), (4, 0), (4, 4)))],
)
def test_lds_conflicts_by_the_banks_of_the_gpu(gpu: str, expected):
    """32 banks of gfx942, 64 of gfx950; loads of 16 bytes are served in their orders of lanes, stores one by one."""
    code = """
        v_lshlrev_b32 v1, 7, v0
        v_lshlrev_b32 v3, 6, v0
        v_and_b32 v4, 15, v0
        v_lshlrev_b32 v4, 4, v4
        v_lshrrev_b32 v5, 4, v0
        v_lshl_add_u32 v4, v5, 10, v4
        v_lshlrev_b32 v5, 6, v5
        v_xor_b32 v4, v4, v5
        ds_write_b32 v1, v0
        ds_write_b128 v3, v[8:11]
        ds_write_b128 v4, v[8:11]
        ds_read_b128 v[8:11], v4
        s_waitcnt lgkmcnt(0)
    """
    _, p = run(code, gpu, threads=64)
    rows = [one(p, text) for text in ("ds_write_b32", "ds_write_b128 v3", "ds_write_b128 v4", "ds_read_b128")]
    assert tuple((row.lds_clocks, row.conflicts) for row in rows) == expected


def test_conflicts_of_each_time_are_added():
    """An access whose addresses change, four times: strides of 4, 8, 16 and 32 bytes meet 1, 2, 4 and 8 ways."""
    code = """
        v_lshlrev_b32 v1, 2, v0
        v_mov_b32 v2, 0
        s_mov_b32 s4, 0
        .Lagain:
        ds_store_b32 v1, v2
        v_lshlrev_b32 v1, 1, v1
        s_add_i32 s4, s4, 1
        s_cmp_lt_i32 s4, 4
        s_cbranch_scc1 .Lagain
    """
    _, p = run(code)
    store = one(p, "ds_store_b32")
    assert (store.executed, store.lds_clocks, store.conflicts) == (4, 4, 0 + 1 + 3 + 7)


def test_idle_lanes_and_flops():
    """5 of 32 lanes at work; a wave that has no lane left skips the block."""
    code = """
        v_cvt_f32_u32 v1, v0
        v_cmp_gt_u32 vcc_lo, 5, v0
        s_and_saveexec_b32 s4, vcc_lo
        s_cbranch_execz .Lend
        v_fma_f32 v2, v1, v1, v1
        v_lshlrev_b32 v3, 2, v0
        global_store_b32 v3, v2, s[2:3]
        .Lend:
        s_mov_b32 exec_lo, s4
        v_add_f32 v4, v1, v1
        v_pk_fma_f16 v5, v1, v1, v1
    """
    _, p = run(code, threads=64)
    fma, store = one(p, "v_fma_f32"), one(p, "global_store_b32")
    assert (fma.executed, fma.idle_lanes, fma.vector_flops) == (1, 27, 10)
    assert (store.requested_bytes, store.transactions) == (20, 1)
    assert one(p, "v_add_f32").vector_flops == 64
    assert one(p, "v_pk_fma_f16").vector_flops == 4 * 64
    assert p.flops == 10 + 64 + 256
    assert p.splits == 1
    assert p.idle_share == 3 * 27 / (32 * (2 + 2 + 3 + 2 + 2))


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_matmul(gpu):
    """A product of whole tiles at aligned addresses: exactly its FLOPs and its operands' bytes."""
    k = 160

    def aligned(shape):
        flat = np.zeros(shape[0] * shape[1] + 128, np.float16)
        start = -flat.ctypes.data % 256 // 2
        return flat[start : start + shape[0] * shape[1]].reshape(shape)

    a, b = aligned((128, k)), aligned((k, 128))
    rng = np.random.default_rng(0)
    a[...], b[...] = rng.standard_normal(a.shape), rng.standard_normal(b.shape)
    with emulated(gpu, profile=True) as emulation:
        laneloom.matmul(a, b, out=aligned((128, 128)))
    p = emulation.launches[0].profile
    assert p is not None
    assert p.total("matrix_flops") == 2 * 128 * 128 * k
    assert p.footprint_bytes == 2 * (128 * k + k * 128 + 128 * 128)
    assert p.conflicts == 0
    assert p.intensity == p.flops / p.footprint_bytes


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942"])
def test_flops_of_mfma_in_every_spelling(gpu):
    a = np.ones((64, 64), np.float16)
    with emulated(gpu, profile=True) as emulation:
        laneloom.matmul(a, a)
    assert emulation.launches[0].profile.total("matrix_flops") == 2 * 64**3


def test_a_profile_changes_nothing():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 40, 40)).astype(np.float16)
    with emulated("gfx1151") as plain:
        expected = laneloom.matmul(a, b)
    with emulated("gfx1151", profile=True, strict=True, seed=3) as watched:
        got = laneloom.matmul(a, b)
    np.testing.assert_array_equal(got, expected)
    profile = watched.launches[0].profile
    assert profile is not None
    assert profile.total("executed") == plain.launches[0].instructions


@pytest.mark.parametrize("strict", [False, True])
def test_an_access_past_the_last_argument_is_reported_as_such(strict):
    with pytest.raises(OutOfBoundsError, match="4100 bytes past the end of argument 'x'"):
        run("v_mov_b32 v1, 0x5000\nglobal_load_b32 v2, v1, s[2:3]", strict=strict)
