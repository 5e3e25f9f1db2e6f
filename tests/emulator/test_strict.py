"""Strict mode: one planted bug and one clean twin for each hazard, in assembly, for gfx11 and gfx12."""

import struct

import numpy as np
import pytest

from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import EmulationError, HazardError, OutOfBoundsError

KERNEL = """
k:
	.file 1 "/src" "kernel.py"
	.loc 1 10 0
{code}
	s_endpgm
.Lend:
	.size k, .Lend-k
	.amdhsa_kernel k
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_next_free_vgpr 64
		.amdhsa_private_segment_fixed_size 16
		.amdhsa_wavefront_size32 1
		.amdhsa_float_denorm_mode_32 3
	.end_amdhsa_kernel
"""
GPUS = {"gfx1151": 11, "gfx1201": 12}
# What differs between the generations in these kernels.
WORDS = {
    11: {
        "wait_lds": "s_waitcnt lgkmcnt(0)", "wait_scalar": "s_waitcnt lgkmcnt(0)", "wait_load": "s_waitcnt vmcnt(0)",
        "wait_load_1": "s_waitcnt vmcnt(1)", "wait_store": "s_waitcnt_vscnt null, 0x0",
        "barrier": "s_barrier\n\tbuffer_gl0_inv", "num": "",
    },
    12: {
        "wait_lds": "s_wait_dscnt 0x0", "wait_scalar": "s_wait_kmcnt 0x0", "wait_load": "s_wait_loadcnt 0x0",
        "wait_load_1": "s_wait_loadcnt 0x1", "wait_store": "s_wait_storecnt 0x0",
        "barrier": "s_barrier_signal -1\n\ts_barrier_wait -1\n\tglobal_inv scope:SCOPE_SE", "num": "num_",
    },
}  # fmt: skip
POINTER = "\ts_load_b64 s[4:5], s[0:1], 0x0\n\t{wait_scalar}\n"  # s[4:5]: the buffer
LANE = "\tv_lshlrev_b32_e32 v1, 2, v0\n"  # v1: four times the thread's number


def run(code, gpu, *, threads=64, words=256, lds=1024, strict=True, seed=0, groups=1, end="\ts_endpgm\n"):
    text = KERNEL.format(code=code.format(**WORDS[GPUS[gpu]])).replace("\ts_endpgm\n", end)
    buffer = np.arange(words, dtype=np.uint32)
    launch(
        Program(text, gpu, strict=strict), (groups,), struct.pack("<Q", buffer.ctypes.data), workgroup_size=threads,
        lds_bytes=lds, regions=[Region("buffer", buffer.ctypes.data, buffer.nbytes, buffer)], seed=seed,
    )  # fmt: skip
    return buffer


HALF = POINTER + LANE + "\tv_lshl_or_b32 v3, v9, 16, v0\n"  # nobody wrote the high half of v3
STORE = "\tglobal_store_b32 v1, v2, s[4:5]\n"
WAVE_0_WAITS = (
    "\tv_readfirstlane_b32 s6, v0\n\ts_cmp_lg_u32 s6, 0\n\ts_cbranch_scc1 .L1\n"
    "\t{wait_lds}\n\t{barrier}\n\ts_branch .L2\n.L1:\n\t{barrier}\n.L2:\n\tds_load_b32 v2, v3\n\t{wait_lds}\n"
)

# name -> (kind, buggy code, clean code)
PAIRS = {
    "scalar load": (
        "wait",
        "\ts_load_b64 s[4:5], s[0:1], 0x0\n" + LANE + "\tv_mov_b32_e32 v2, 7\n" + STORE,
        POINTER + LANE + "\tv_mov_b32_e32 v2, 7\n" + STORE,
    ),
    "global load": (
        "wait",
        POINTER + LANE + "\tglobal_load_b32 v2, v1, s[4:5]\n\tv_add_nc_u32_e32 v2, 1, v2\n" + STORE,
        POINTER + LANE + "\tglobal_load_b32 v2, v1, s[4:5]\n\t{wait_load}\n\tv_add_nc_u32_e32 v2, 1, v2\n" + STORE,
    ),
    "partial wait": (
        "wait",
        POINTER + LANE + "\tglobal_load_b32 v2, v1, s[4:5]\n\tglobal_load_b32 v3, v1, s[4:5]\n\t{wait_load_1}\n"
        "\tv_mov_b32_e32 v2, v3\n" + STORE,
        POINTER + LANE + "\tglobal_load_b32 v2, v1, s[4:5]\n\tglobal_load_b32 v3, v1, s[4:5]\n\t{wait_load_1}\n"
        "\tv_mov_b32_e32 v4, v2\n\t{wait_load}\n" + STORE,
    ),
    "overwritten destination": (
        "wait",
        POINTER + LANE + "\tglobal_load_b32 v2, v1, s[4:5]\n\tv_mov_b32_e32 v2, 0\n" + STORE,
        POINTER + LANE + "\tglobal_load_b32 v2, v1, s[4:5]\n\t{wait_load}\n\tv_mov_b32_e32 v2, 0\n" + STORE,
    ),
    "LDS load": (
        "wait",
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tds_load_b32 v2, v1\n\tv_mov_b32_e32 v2, v2\n" + STORE,
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tds_load_b32 v2, v1\n\t{wait_lds}\n\tv_mov_b32_e32 v2, v2\n" + STORE,
    ),
    # A spilled pair of registers comes back as it was: only its undefined half may not be stored.
    "spilled register": (
        "undefined",
        POINTER + LANE + "\tv_mov_b32_e32 v4, v1\n\tscratch_store_b64 off, v[4:5], off\n\t{wait_store}\n"
        "\tscratch_load_b64 v[2:3], off, off\n\t{wait_load}\n\tv_mov_b32_e32 v2, v3\n" + STORE,
        POINTER + LANE + "\tv_mov_b32_e32 v4, v1\n\tscratch_store_b64 off, v[4:5], off\n\t{wait_store}\n"
        "\tscratch_load_b64 v[2:3], off, off\n\t{wait_load}\n" + STORE,
    ),
    "scratch that nobody wrote": (
        "undefined",
        POINTER + LANE + "\tscratch_store_b32 off, v1, off\n\t{wait_store}\n"
        "\tscratch_load_b32 v2, off, off offset:2\n\t{wait_load}\n" + STORE,
        POINTER + LANE + "\tscratch_store_b32 off, v1, off\n\t{wait_store}\n"
        "\tscratch_load_u16 v2, off, off offset:2\n\t{wait_load}\n" + STORE,
    ),
    "LDS read after write": (
        "race",
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x80, v1\n\t{wait_lds}\n\tds_load_b32 v2, v3\n"
        "\t{wait_lds}\n" + STORE,
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x80, v1\n\t{wait_lds}\n\t{barrier}\n"
        "\tds_load_b32 v2, v3\n\t{wait_lds}\n" + STORE,
    ),
    "LDS write after read": (
        "race",
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x80, v1\n\t{wait_lds}\n\t{barrier}\n"
        "\tds_load_b32 v2, v3\n\t{wait_lds}\n\tds_store_b32 v1, v2\n" + STORE,
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x80, v1\n\t{wait_lds}\n\t{barrier}\n"
        "\tds_load_b32 v2, v3\n\t{wait_lds}\n\t{barrier}\n\tds_store_b32 v1, v2\n" + STORE,
    ),
    "LDS write after write": (
        "race",
        POINTER + LANE + "\tv_and_b32_e32 v3, 31, v0\n\tv_lshlrev_b32_e32 v3, 2, v3\n\tds_store_b32 v3, v0\n"
        "\tv_mov_b32_e32 v2, 1\n" + STORE,
        # Every wave writes the same value: replicated data.
        POINTER + LANE + "\tv_and_b32_e32 v3, 31, v0\n\tv_lshlrev_b32_e32 v3, 2, v3\n\tds_store_b32 v3, v3\n"
        "\tv_mov_b32_e32 v2, 1\n" + STORE,
    ),
    "LDS store not waited for at the barrier": (
        "race",
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x80, v1\n\t{barrier}\n\tds_load_b32 v2, v3\n"
        "\t{wait_lds}\n" + STORE,
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x80, v1\n\t{wait_lds}\n\t{barrier}\n"
        "\tds_load_b32 v2, v3\n\t{wait_lds}\n" + STORE,
    ),
    "LDS store not waited for at two barriers": (
        "race",
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x80, v1\n\t{barrier}\n\t{barrier}\n"
        "\tds_load_b32 v2, v3\n\t{wait_lds}\n" + STORE,
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x80, v1\n\t{barrier}\n\t{wait_lds}\n\t{barrier}\n"
        "\tds_load_b32 v2, v3\n\t{wait_lds}\n" + STORE,
    ),
    # Wave 0 waits in code of its own: what it stored is there, what wave 1 stored may not be.
    "LDS store that one of two waves waits for": (
        "race",
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x80, v1\n" + WAVE_0_WAITS + STORE,
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_and_b32_e32 v3, 0x7c, v1\n" + WAVE_0_WAITS + STORE,
    ),
    "global race in a workgroup": (
        "race",
        POINTER + LANE + "\tglobal_store_b32 v1, v0, s[4:5] offset:0\n\tv_xor_b32_e32 v3, 0x80, v1\n"
        "\t{wait_store}\n\tglobal_load_b32 v2, v3, s[4:5]\n\t{wait_load}\n"
        "\tglobal_store_b32 v1, v2, s[4:5] offset:512\n",
        POINTER + LANE + "\tglobal_store_b32 v1, v0, s[4:5] offset:0\n\tv_xor_b32_e32 v3, 0x80, v1\n"
        "\t{wait_store}\n\t{barrier}\n\tglobal_load_b32 v2, v3, s[4:5]\n\t{wait_load}\n"
        "\tglobal_store_b32 v1, v2, s[4:5] offset:512\n",
    ),
    "stored register that nobody wrote": (
        "undefined",
        POINTER + LANE + STORE,
        POINTER + LANE + "\tv_mov_b32_e32 v2, 0\n" + STORE,
    ),
    "garbage under a mask": (
        # Lanes 16.. of v2 are never written, and all lanes are stored.
        "undefined",
        POINTER + LANE + "\tv_cmp_gt_u32_e32 vcc_lo, 16, v0\n\ts_and_saveexec_b32 s6, vcc_lo\n\tv_mov_b32_e32 v2, 3\n"
        "\ts_mov_b32 exec_lo, s6\n" + STORE,
        POINTER + LANE + "\tv_cmp_gt_u32_e32 vcc_lo, 16, v0\n\ts_and_saveexec_b32 s6, vcc_lo\n\tv_mov_b32_e32 v2, 3\n"
        + STORE + "\ts_mov_b32 exec_lo, s6\n",
    ),
    "permlane64 in wave32": (  # "treated as scalar NOP in wave32" (RDNA 3 ISA guide)
        "undefined",
        POINTER + LANE + "\tv_permlane64_b32 v2, v0\n" + STORE,
        POINTER + LANE + "\tv_mov_b32_e32 v2, 3\n\tv_permlane64_b32 v2, v0\n" + STORE,
    ),
    "undefined half": (
        "undefined",
        POINTER + LANE + "\tglobal_load_d16_b16 v2, v1, s[4:5]\n\t{wait_load}\n" + STORE,
        POINTER + LANE + "\tglobal_load_d16_b16 v2, v1, s[4:5]\n\t{wait_load}\n\tglobal_store_b16 v1, v2, s[4:5]\n",
    ),
    "undefined half selected away": (
        "undefined",
        POINTER + LANE + "\tglobal_load_d16_b16 v2, v1, s[4:5]\n\t{wait_load}\n\tv_or_b32_e32 v2, 0xffff, v2\n" + STORE,
        POINTER + LANE + "\tglobal_load_d16_b16 v2, v1, s[4:5]\n\t{wait_load}\n\tv_and_b32_e32 v2, 0xffff, v2\n"
        + STORE,
    ),
    "LDS that nobody wrote": (
        "undefined",
        POINTER + LANE + "\tds_load_b32 v2, v1\n\t{wait_lds}\n" + STORE,
        POINTER + LANE + "\tds_store_b32 v1, v0\n\tds_load_b32 v2, v1\n\t{wait_lds}\n" + STORE,
    ),
    "undefined address": (
        "undefined",
        POINTER + LANE + "\tglobal_load_b32 v2, v9, s[4:5]\n\t{wait_load}\n" + STORE,
        POINTER + LANE + "\tglobal_load_b32 v2, v1, s[4:5]\n\t{wait_load}\n" + STORE,
    ),
    "undefined branch": (
        "undefined",
        POINTER + LANE + "\tv_mov_b32_e32 v2, 1\n\ts_cmp_eq_u32 s20, 0\n\ts_cbranch_scc1 .Lover\n"
        "\tv_mov_b32_e32 v2, 2\n"
        ".Lover:\n" + STORE,
        POINTER + LANE + "\tv_mov_b32_e32 v2, 1\n\ts_cmp_eq_u32 s4, 0\n\ts_cbranch_scc1 .Lover\n\tv_mov_b32_e32 v2, 2\n"
        ".Lover:\n" + STORE,
    ),
    "undefined EXEC": (
        "undefined",
        POINTER + LANE + "\tv_cmp_gt_u32_e32 vcc_lo, 16, v9\n\ts_and_saveexec_b32 s6, vcc_lo\n\tv_mov_b32_e32 v2, 3\n"
        + STORE,
        POINTER + LANE + "\tv_cmp_gt_u32_e32 vcc_lo, 16, v0\n\ts_and_saveexec_b32 s6, vcc_lo\n\tv_mov_b32_e32 v2, 3\n"
        + STORE,
    ),
    "barrier that a wave skips": (
        "barrier",
        POINTER + LANE + "\tv_readfirstlane_b32 s6, v0\n\ts_cmp_ge_u32 s6, 32\n\ts_cbranch_scc1 .Lout\n\t{barrier}\n"
        "\tv_mov_b32_e32 v2, 2\n" + STORE + ".Lout:\n",
        POINTER + LANE + "\tv_readfirstlane_b32 s6, v0\n\t{barrier}\n\ts_cmp_ge_u32 s6, 32\n\ts_cbranch_scc1 .Lout\n"
        "\tv_mov_b32_e32 v2, 2\n" + STORE + ".Lout:\n",
    ),
    "misaligned atomic": (
        "alignment",
        POINTER + LANE + "\tv_mov_b32_e32 v2, 0\n\tglobal_atomic_add_u32 v1, v2, s[4:5] offset:2\n",
        POINTER + LANE + "\tv_mov_b32_e32 v2, 0\n\tglobal_atomic_add_u32 v1, v2, s[4:5] offset:4\n",
    ),
    "misaligned LDS atomic": (
        "alignment",
        POINTER + LANE + "\tv_mov_b32_e32 v2, 0\n\tds_store_2addr_b32 v1, v2, v2 offset1:1\n\t{wait_lds}\n"
        "\tds_add_u32 v1, v0 offset:1\n" + STORE,
        POINTER + LANE + "\tv_mov_b32_e32 v2, 0\n\tds_store_b32 v1, v2\n\t{wait_lds}\n"
        "\tds_add_u32 v1, v0\n" + STORE,
    ),
    "race of a store that is not aligned": (  # bytes 128 and 129 are stored by wave 0 and loaded by wave 1
        "race",
        POINTER + LANE + "\tglobal_store_b32 v1, v0, s[4:5] offset:2\n\tglobal_load_u16 v2, v1, s[4:5]\n"
        "\t{wait_load}\n" + STORE,
        POINTER + LANE + "\tglobal_store_b32 v1, v0, s[4:5] offset:2\n\tglobal_load_u16 v2, v1, s[4:5] offset:2\n"
        "\t{wait_load}\n\tglobal_store_b16 v1, v2, s[4:5] offset:514\n",
    ),
    "undefined byte": (
        "undefined",
        POINTER + LANE + "\tv_lshl_or_b32 v3, v9, 8, v0\n\tv_cvt_f32_ubyte1_e32 v2, v3\n" + STORE,
        POINTER + LANE + "\tv_lshl_or_b32 v3, v9, 8, v0\n\tv_cvt_f32_ubyte0_e32 v2, v3\n" + STORE,
    ),
    "undefined above 24 bits": (
        "undefined",
        POINTER + LANE + "\tv_lshl_or_b32 v3, v9, 23, v0\n\tv_mul_u32_u24_e32 v2, v3, v3\n" + STORE,
        POINTER + LANE + "\tv_lshl_or_b32 v3, v9, 24, v0\n\tv_mul_u32_u24_e32 v2, v3, v3\n" + STORE,
    ),
    "undefined amount of a shift": (
        "undefined",
        POINTER + LANE + "\tv_lshl_or_b32 v3, v9, 4, v0\n\tv_lshlrev_b32_e32 v2, v3, v0\n" + STORE,
        POINTER + LANE + "\tv_lshl_or_b32 v3, v9, 5, v0\n\tv_lshlrev_b32_e32 v2, v3, v0\n" + STORE,
    ),
    "undefined half of a mixed product": (
        "undefined",
        HALF + "\tv_fma_mix_f32 v2, v3, v0, v0 op_sel:[1,0,0] op_sel_hi:[1,0,0]\n" + STORE,
        HALF + "\tv_fma_mix_f32 v2, v3, v0, v0 op_sel_hi:[1,0,0]\n" + STORE,
    ),
    "undefined half of a packed sum": (
        "undefined",
        HALF + "\tv_pk_add_u16 v2, v3, v0\n" + STORE,
        HALF + "\tv_pk_add_u16 v2, v3, v0 op_sel_hi:[0,1]\n" + STORE,
    ),
    "undefined half of a maximum": (
        "undefined",
        HALF + "\tv_mov_b32_e32 v2, 0\n\tv_max_{num}f16_e32 v2.l, v3.h, v0.l\n" + STORE,
        HALF + "\tv_mov_b32_e32 v2, 0\n\tv_max_{num}f16_e32 v2.l, v3.l, v0.l\n" + STORE,
    ),
    "undefined half that is masked": (
        "undefined",
        POINTER + LANE + "\tv_lshl_or_b32 v3, v9, 8, v0\n\tv_and_b16 v2.l, 0x1ff, v3.l\n\tv_mov_b16_e32 v2.h, v0.l\n"
        + STORE,
        POINTER + LANE + "\tv_lshl_or_b32 v3, v9, 8, v0\n\tv_and_b16 v2.l, 0xff, v3.l\n\tv_mov_b16_e32 v2.h, v0.l\n"
        + STORE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", PAIRS)
def test_the_planted_bug_is_reported(name, gpu):
    kind, buggy, _ = PAIRS[name]
    with pytest.raises(HazardError) as caught:
        run(buggy, gpu)
    assert caught.value.kind == kind
    assert str(caught.value).startswith("k: ")
    assert "kernel.py:10" in str(caught.value)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", [0, 3])
def test_its_clean_twin_is_not(name, gpu, seed):
    *_, clean = PAIRS[name]
    assert np.array_equal(run(clean, gpu, seed=seed), run(clean, gpu, strict=False))


@pytest.mark.parametrize("gpu", GPUS)
def test_fast_mode_hides_what_strict_mode_reports(gpu):
    """The reason for strict mode: in lock-step the missing barrier changes nothing."""
    _, buggy, clean = PAIRS["LDS read after write"]
    assert np.array_equal(run(buggy, gpu, strict=False), run(clean, gpu, strict=False))


@pytest.mark.parametrize("gpu", GPUS)
def test_an_order_of_waves_can_expose_a_race_without_strict_mode(gpu):
    _, buggy, clean = PAIRS["LDS read after write"]
    right = run(clean, gpu)
    assert any(not np.array_equal(run(buggy, gpu, strict=False, seed=s), right) for s in range(1, 5))


@pytest.mark.parametrize("gpu", GPUS)
def test_a_race_names_both_parties(gpu):
    with pytest.raises(HazardError) as caught:
        run(PAIRS["LDS read after write"][1], gpu)
    message = str(caught.value)
    assert "LDS byte" in message
    assert "ds_store_b32" in message
    assert "ds_load_b32" in message
    assert "wave 1 of the same workgroup wrote" in message or "wave 0 of the same workgroup wrote" in message
    assert "with no barrier between" in message


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("barriers", ["the barrier", "two barriers"])
def test_a_race_behind_a_barrier_says_that_a_wait_is_missing(gpu, barriers):
    with pytest.raises(HazardError, match="of the same workgroup wrote with no wait before the barrier"):
        run(PAIRS[f"LDS store not waited for at {barriers}"][1], gpu)


def test_a_missing_wait_names_register_counter_and_load():
    with pytest.raises(HazardError, match=r"reads v2 before a wait for vmcnt: .*global_load_b32 v2"):
        run(PAIRS["global load"][1], "gfx1151")
    with pytest.raises(HazardError, match=r"reads v2 before a wait for loadcnt: .*global_load_b32 v2"):
        run(PAIRS["global load"][1], "gfx1201")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("strict", [False, True])
def test_out_of_bounds_is_caught_in_both_modes(gpu, strict):
    store = POINTER + LANE + "\tv_mov_b32_e32 v2, 0\n\tglobal_store_b32 v1, v2, s[4:5] offset:{o}\n"
    run(store.replace("{o}", "768"), gpu, strict=strict)
    with pytest.raises(OutOfBoundsError, match=r"4 bytes past the end of argument 'buffer'.*lane 0"):
        run(store.replace("{o}", "1024"), gpu, strict=strict)
    with pytest.raises(OutOfBoundsError, match="LDS access at byte 1024"):
        run(POINTER + LANE + "\tds_store_b32 v1, v0 offset:1024\n", gpu, strict=strict)


def test_replication_of_wmma_operands():
    code = POINTER + "\tv_and_b32_e32 v3, {mask}, v0\n" + "".join(
        f"\tv_mov_b32_e32 v{n}, v3\n" for n in range(16, 32)
    ) + "\tv_wmma_f32_16x16x16_f16 v[8:15], v[16:23], v[24:31], 0\n"  # fmt: skip
    run(code.replace("{mask}", "15"), "gfx1151", threads=32)
    with pytest.raises(HazardError) as caught:
        run(code.replace("{mask}", "31"), "gfx1151", threads=32)
    assert caught.value.kind == "replication"
    assert "v16 holds different data in lanes 0 and 16" in str(caught.value)


def test_a_matrix_instruction_with_inactive_lanes():
    code = POINTER + "".join(f"\tv_mov_b32_e32 v{n}, 0\n" for n in range(16, 32)) + "{exec}" + (
        "\tv_wmma_f32_16x16x16_f16 v[8:15], v[16:23], v[24:31], 0\n"
    )  # fmt: skip
    run(code.replace("{exec}", ""), "gfx1151", threads=32)
    with pytest.raises(HazardError, match="inactive lanes"):
        run(code.replace("{exec}", "\ts_mov_b32 exec_lo, 0xffff\n"), "gfx1151", threads=32)


@pytest.mark.parametrize("gpu", GPUS)
def test_one_wave_cannot_race_with_itself(gpu):
    code = POINTER + LANE + "\tds_store_b32 v1, v0\n\tv_xor_b32_e32 v3, 0x40, v1\n\t{wait_lds}\n\tds_load_b32 v2, v3\n"
    run(code + "\t{wait_lds}\n" + STORE, gpu, threads=32)


@pytest.mark.parametrize("gpu", GPUS)
def test_workgroups_do_not_share_lds(gpu):
    code = POINTER + LANE + "\tds_store_b32 v1, v0\n\tds_load_b32 v2, v1\n\t{wait_lds}\n" + STORE
    run(code, gpu, groups=3)


def test_errors_are_emulation_errors():
    assert issubclass(HazardError, EmulationError)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_load_into_one_half_leaves_the_other_free(gpu):
    start = POINTER + LANE + "\tv_mov_b32_e32 v2, 7\n\tglobal_load_d16_b16 v2, v1, s[4:5]\n"
    run(start + "\tds_store_b16_d16_hi v1, v2\n\t{wait_load}\n", gpu)
    with pytest.raises(HazardError, match="reads v2 before a wait"):
        run(start + "\tds_store_b16 v1, v2\n\t{wait_load}\n", gpu)
    start = POINTER + LANE + "\tv_mov_b32_e32 v2, 7\n\tglobal_load_d16_hi_b16 v2, v1, s[4:5]\n"
    run(start + "\tds_store_b16 v1, v2\n\t{wait_load}\n", gpu)
    with pytest.raises(HazardError, match="reads v2 before a wait"):
        run(start + "\tds_store_b32 v1, v2\n\t{wait_load}\n", gpu)
