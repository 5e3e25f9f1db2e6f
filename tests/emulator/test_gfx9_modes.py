"""What people write for gfx9 and compilers do not: registers by number, skipped instructions, scalar stores."""

import struct

import numpy as np
import pytest

from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import EmulationError, HazardError, OutOfBoundsError, UnknownInstructionError

U32 = np.uint32
KERNEL = """
k:
\ts_load_dwordx2 s[4:5], s[0:1], 0x0
\tv_lshlrev_b32_e32 v1, 2, v0
\tv_lshrrev_b32_e32 v2, 6, v0
\tv_readfirstlane_b32 s8, v2
\ts_waitcnt lgkmcnt(0)
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 40
\t\t.amdhsa_accum_offset 32
\t\t.amdhsa_group_segment_fixed_size 1024
\t.end_amdhsa_kernel
"""
BOTH = pytest.mark.parametrize("strict", [False, True])


def run(code, strict=False, gpu="gfx942", words=256, inputs=None, threads=192, seed=0):
    """s[4:5]: `words` words; s8: the wave's number; v0: the lane's; v1: four times that."""
    memory = np.zeros(words, U32) if inputs is None else inputs.copy()
    lines = "\n".join("\t" + line.strip() for line in code.strip().splitlines())
    address = memory.ctypes.data
    launch(
        Program(KERNEL.format(code=lines), gpu, strict=strict), [1], struct.pack("<Q", address), workgroup_size=threads,
        regions=[Region("x", address, memory.nbytes, memory)], seed=seed,
    )  # fmt: skip
    return memory


# -- registers by number -----------------------------------------------------------------------------------------------

FILL = "\n".join(f"v_add_u32_e32 v{10 + k}, {1000 * k}, v0" for k in range(4))


@BOTH
@pytest.mark.parametrize("seed", [0, 3])
def test_each_wave_has_a_number_of_its_own(strict, seed):
    """The sources of an addition: waves 0, 1, 2 take registers 10, 11, 12; the sum always goes to v20."""
    got = run(f"""{FILL}
    s_set_gpr_idx_on s8, gpr_idx(SRC0)
    v_lshl_add_u32 v20, v10, 1, v1
    s_set_gpr_idx_off
    global_store_dword v1, v20, s[4:5]""", strict, seed=seed)  # fmt: skip
    lane = np.arange(192)
    np.testing.assert_array_equal(got[:192], 2 * (lane + 1000 * (lane // 64)) + 4 * lane)


@BOTH
@pytest.mark.parametrize(("moved", "expect"), [("SRC0", lambda lane: 7 + lane), ("DST", lambda lane: 0 * lane + 5)])
def test_registers_that_are_not_there(strict, moved, expect):
    """v0 is read for a source beyond the last register; a result there is not written."""
    got = run(f"""v_mov_b32_e32 v10, 1
    v_mov_b32_e32 v11, 7
    v_mov_b32_e32 v20, 5
    s_movk_i32 s9, 0xff
    s_set_gpr_idx_on s9, gpr_idx({moved})
    v_add_u32_e32 v20, v10, v11
    s_set_gpr_idx_off
    global_store_dword v1, v20, s[4:5]""", strict)  # fmt: skip
    np.testing.assert_array_equal(got[:192], expect(np.arange(192)))


@BOTH
def test_both_sources_and_the_result_move(strict):
    got = run(f"""{FILL}
    s_and_b32 s9, s8, 1
    s_set_gpr_idx_on s9, gpr_idx(SRC0,SRC1,DST)
    v_sub_u32_e32 v20, v11, v10
    s_set_gpr_idx_mode gpr_idx(DST)
    v_writelane_b32 v20, s8, 5
    s_set_gpr_idx_off
    s_cmp_eq_u32 s9, 0
    s_cbranch_scc1 .Lstore
    v_mov_b32_e32 v20, v21
    .Lstore:
    global_store_dword v1, v20, s[4:5]""", strict)  # fmt: skip
    lane = np.arange(192)
    np.testing.assert_array_equal(got[:192], np.where(lane % 64 == 5, lane // 64, 1000))


@BOTH
def test_comparisons_and_accumulation_registers_move(strict):
    got = run(f"""{FILL}
    v_accvgpr_write_b32 a2, v10
    v_accvgpr_write_b32 a3, v11
    v_accvgpr_write_b32 a4, v12
    s_set_gpr_idx_on s8, gpr_idx(SRC0)
    v_add_u32_e32 v20, 7, v0
    v_cmp_lt_u32_e64 s[10:11], v10, 1100
    v_accvgpr_read_b32 v21, a2
    s_set_gpr_idx_off
    v_cndmask_b32_e64 v20, 0, v21, s[10:11]
    global_store_dword v1, v20, s[4:5]""", strict)  # fmt: skip
    lane = np.arange(192)
    value = lane + 1000 * (lane // 64)
    np.testing.assert_array_equal(got[:192], np.where(value < 1100, value, 0))


@pytest.mark.parametrize(
    "code",
    ["v_fmac_f32_e32 v20, v10, v11", "v_lshlrev_b32_e32 v20, v10, v11", "v_mov_b32_dpp v20, v10 row_shr:1",
     "v_mov_b32 v20, v10 row_shr:1", "v_mov_b32_sdwa v20, v10 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_1",
     "v_fmaak_f32 v20, v10, v11, 0x40000000", "v_writelane_b32 v20, s8, 5", "v_readlane_b32 s9, v20, 5"],
)  # fmt: skip
def test_what_the_guide_makes_exceptions_of_stops(code):
    with pytest.raises(UnknownInstructionError, match=code.split()[0].split("_e32")[0].split("_dpp")[0]):
        run(f"{FILL}\ns_set_gpr_idx_on s8, gpr_idx(SRC0,DST)\n{code}\ns_set_gpr_idx_off")


def test_the_number_has_to_be_defined():
    code = f"{FILL}\ns_set_gpr_idx_on s20, gpr_idx(SRC0)\nv_add_u32_e32 v20, v10, v1\ns_set_gpr_idx_off"
    with pytest.raises(HazardError, match=r"register's number depends .*\(m0\).*v_add_u32_e32 v20, v10, v1"):
        run(code, strict=True)


def test_an_indexed_use_waits_for_its_load():
    code = f"""{FILL}
    global_load_dword v12, v1, s[4:5]
    s_set_gpr_idx_on s8, gpr_idx(SRC0)
    v_add_u32_e32 v20, v10, v1
    s_set_gpr_idx_off"""
    run(code.replace("s_set_gpr_idx_on", "s_waitcnt vmcnt(0)\ns_set_gpr_idx_on"), strict=True)
    run(code, strict=True, threads=128)  # waves 0 and 1 read v10 and v11
    with pytest.raises(HazardError, match="reads v12 before a wait for vmcnt"):
        run(code, strict=True)


def test_a_hazard_names_an_accumulation_register_as_the_text_does():
    with pytest.raises(HazardError, match=r"reads a5 before a wait for vmcnt: .*global_load_dwordx2"):
        run("global_load_dwordx2 a[4:5], v1, s[4:5]\nv_accvgpr_read_b32 v20, a5", strict=True)


# -- skipping ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("seed", [0, 3])
def test_waves_skip_vector_instructions_by_a_bit(strict, seed):
    """Bit 1 of the wave's number: wave 2 stores nothing and adds nothing."""
    got = run("""v_mov_b32_e32 v20, 1
    s_setvskip s8, 1
    global_atomic_add v1, v20, s[4:5]
    v_mov_b32_e32 v20, 5
    s_setvskip 0, 0
    s_waitcnt vmcnt(0)
    global_store_dword v1, v20, s[4:5] offset:256
    s_setvskip 0, 1
    v_nop""", strict, seed=seed)  # fmt: skip
    want = np.zeros(256, U32)
    want[:128] += 1
    want[64:256] = np.repeat([5, 5, 1], 64)
    np.testing.assert_array_equal(got, want)


def test_skipping_over_anything_else_stops():
    for code in ("s_mov_b32 s9, 1\ns_setvskip 0, 0", "v_nop\n.Lhere:\nv_nop\ns_setvskip 0, 0\ns_cbranch_scc1 .Lhere"):
        with pytest.raises(EmulationError, match="under s_setvskip is not implemented"):
            run("s_setvskip s8, 0\n" + code)
    with pytest.raises(EmulationError, match="'s_endpgm' under s_setvskip is not implemented"):
        run("s_setvskip s8, 0\nv_nop")
    with pytest.raises(HazardError, match=r"the branch depends on a value that nobody wrote.*s_setvskip s20, 0"):
        run("s_setvskip s20, 0\nv_nop\ns_setvskip 0, 0", strict=True)


# -- scalar stores -----------------------------------------------------------------------------------------------------


RESOURCE = """s_mov_b64 s[16:17], s[4:5]
    s_or_b32 s17, s17, 0x40000
    s_mov_b32 s18, -1
    s_mov_b32 s19, 0x20000"""


@BOTH
@pytest.mark.parametrize("words", [1, 2, 4])
@pytest.mark.parametrize("buffer", ["", "buffer_"])
def test_scalar_stores(strict, words, buffer):
    """Each wave its own place, by an offset in a register and one in the instruction."""
    data = "s12" if words == 1 else f"s[12:{11 + words}]"
    base = "s[16:19]" if buffer else "s[4:5]"
    got = run(f"""{RESOURCE}
    s_lshl_b32 s9, s8, 4
    s_add_u32 s12, s8, 100
    s_mov_b32 s13, 7
    s_mov_b32 s14, 8
    s_mov_b32 s15, s9
    s_{buffer}store_dword{f"x{words}" if words > 1 else ""} {data}, {base}, s9
    s_{buffer}store_dword{f"x{words}" if words > 1 else ""} {data}, {base}, 0x40 glc
    s_waitcnt lgkmcnt(0)
    s_dcache_wb""", strict, words=32)  # fmt: skip
    want = np.zeros(32, U32)
    rows = np.array([[100 + wave, 7, 8, 16 * wave] for wave in range(3)], U32)
    want[:12].reshape(3, 4)[:, :words] = rows[:, :words]
    want[16 : 16 + words] = next(row for row in rows if row[0] == got[16])[:words]
    np.testing.assert_array_equal(got, want)


COMBINED = {
    "add": (5, lambda m: m + 7), "sub": (5, lambda m: m - 7), "inc": (6, lambda m: 0 if m >= 7 else m + 1),
    "dec": (0, lambda m: 7 if not 0 < m <= 7 else m - 1), "umax": (2, lambda m: max(m, 7)),
    "umin": (-1, lambda m: min(m, 7)), "smax": (-1, lambda m: 7), "smin": (-16, lambda m: m),
    "xor": (1, lambda m: m ^ 7), "and": (12, lambda m: m & 7), "or": (8, lambda m: m | 7), "swap": (1, lambda m: 7),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("buffer", ["", "buffer_"])
@pytest.mark.parametrize("name", COMBINED)
def test_scalar_atomics(strict, name, buffer, bits):
    """Three waves, data 7; what each found is stored behind."""
    start, combine = COMBINED[name]
    most = 1 << bits
    inputs = np.zeros(4, np.uint64)
    inputs[0] = start % most
    wide = bits == 64
    base, data = "s[16:19]" if buffer else "s[4:5]", "s[12:13]" if wide else "s12"
    got = run(f"""{RESOURCE}
    s_mov_b64 s[12:13], 7
    s_{buffer}atomic_{name}{"_x2" if wide else ""} {data}, {base}, 0x0 glc
    s_waitcnt lgkmcnt(0)
    s_lshl_b32 s9, s8, 3
    s_add_u32 s9, s9, 8
    s_store_dwordx2 s[12:13], s[4:5], s9
    s_mov_b64 s[12:13], 7
    s_{buffer}atomic_{name}{"_x2" if wide else ""} {data}, {base}, 0x0""", strict, inputs=inputs.view(U32))  # fmt: skip
    states = [start % most]
    for _ in range(6):
        states.append(combine(states[-1]) % most)
    found = got.view(np.uint64).tolist()
    assert found[0] == states[6]
    assert set(found[1:]) <= set(states[:6])
    assert states[0] in found[1:]


@BOTH
@pytest.mark.parametrize("buffer", ["", "buffer_"])
def test_a_scalar_exchange_if_equal(strict, buffer):
    inputs = np.array([5, 1, 0, 0], U32)
    base = "s[16:19]" if buffer else "s[4:5]"
    code = f"""{RESOURCE}
    s_mov_b32 s12, 8
    s_mov_b32 s13, {{second}}
    s_mov_b32 s14, 5
    s_mov_b32 s15, {{high}}
    s_{buffer}atomic_cmpswap{{x2}}, {base}, 0x0 glc
    s_waitcnt lgkmcnt(0)
    s_store_dwordx2 s[12:13], s[4:5], 0x8"""

    def exchanged(**given):
        return run(code.format(**given), strict, inputs=inputs, threads=64).tolist()

    assert exchanged(x2="_x2 s[12:15]", second=2, high=1) == [8, 2, 5, 1]
    assert exchanged(x2="_x2 s[12:15]", second=2, high=2) == [5, 1, 5, 1]
    assert exchanged(x2=" s[12:13]", second=5, high=1) == [8, 1, 5, 5]
    assert exchanged(x2=" s[12:13]", second=6, high=1) == [5, 1, 5, 6]


def test_scalar_stores_are_checked():
    with pytest.raises(OutOfBoundsError, match="4-byte access"):
        run("s_store_dword s8, s[4:5], 0x20", words=8)
    for code, text in (
        ("s_store_dword s20, s[4:5], 0x0", r"stores bits that nobody wrote \(s20\)"),
        ("s_store_dword s8, s[4:5], s21", r"the address depends on a value that nobody wrote \(s21\)"),
        ("s_atomic_add s8, s[4:5], 0x0 glc\ns_add_u32 s9, s8, s8", "reads s8 before a wait for lgkmcnt"),
    ):
        with pytest.raises(HazardError, match=text):
            run(code, strict=True)


# -- buffers -----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("stride", [0, 4])
def test_without_an_index_a_buffers_records_are_bytes(strict, stride):
    """A resource with a stride and 40 bytes: lanes from 10 on read 0; by index there would be 40 records."""
    inputs = np.arange(256, dtype=U32)
    got = run(f"""s_mov_b32 s12, s4
    s_or_b32 s13, s5, {stride << 16:#x}
    s_movk_i32 s14, 40
    s_mov_b32 s15, 0x20000
    buffer_load_dword v20, v1, s[12:15], 0 offen
    s_waitcnt vmcnt(0)
    global_store_dword v1, v20, s[4:5] offset:256""", strict, inputs=inputs, threads=64)  # fmt: skip
    np.testing.assert_array_equal(got[64:128], [*range(10), *[0] * 54])


@BOTH
@pytest.mark.parametrize("gpu", ["gfx942", "gfx950"])
def test_each_word_is_in_range_or_out_of_it(strict, gpu):
    """16 bytes from 4 times the lane's number on, of 42: the eleventh word is cut off, and out of range."""
    inputs = np.arange(256, dtype=U32) + 1
    resource = "s_mov_b32 s12, s4\ns_mov_b32 s13, s5\ns_movk_i32 s14, 42\ns_mov_b32 s15, 0x20000\n"
    load = "buffer_load_dwordx4 v[20:23], v1, s[12:15], 0 offen\ns_waitcnt vmcnt(0)\n"
    store = "v_lshlrev_b32_e32 v3, 4, v0\nglobal_store_dwordx4 v3, v[20:23], s[4:5] offset:256"
    got = run(resource + load + "v_cmp_gt_u32_e32 vcc, 12, v0\ns_mov_b64 exec, vcc\n" + store, strict, gpu, 256, inputs)
    want = [[lane + k + 1 if lane + k < 10 else 0 for k in range(4)] for lane in range(12)]
    np.testing.assert_array_equal(got[64 : 64 + 48].reshape(12, 4), want)
    if gpu == "gfx950":
        into = "s_mov_b32 m0, 0\nbuffer_load_dwordx4 v1, s[12:15], 0 offen lds\ns_waitcnt vmcnt(0)\n"
        back = "v_lshlrev_b32_e32 v4, 4, v0\nds_read_b128 v[20:23], v4\ns_waitcnt lgkmcnt(0)\n"
        mask = "v_cmp_gt_u32_e32 vcc, 12, v0\ns_mov_b64 exec, vcc\n"
        got = run(resource + into + mask + back + store, strict, gpu, 256, inputs, threads=64)
        np.testing.assert_array_equal(got[64 : 64 + 48].reshape(12, 4), want)


@BOTH
def test_each_stored_word_is_in_range_or_out_of_it(strict):
    """Lanes 8 to 11 store at words 8 to 11 of ten; what lies out of range nobody need have written."""
    got = run("""s_mov_b32 s12, s4
    s_mov_b32 s13, s5
    s_movk_i32 s14, 40
    s_mov_b32 s15, 0x20000
    v_mov_b32_e32 v20, 5
    v_mov_b32_e32 v21, 6
    v_cmp_eq_u32_e32 vcc, 8, v0
    s_mov_b64 exec, vcc
    buffer_store_dwordx4 v[20:23], v1, s[12:15], 0 offen""", strict, words=16)  # fmt: skip
    np.testing.assert_array_equal(got, [0] * 8 + [5, 6] + [0] * 6)


@BOTH
def test_an_offset_that_goes_round_is_out_of_range(strict):
    """-4 and 8 make 4 in 32 bits; the hardware adds without cutting off."""
    inputs = np.arange(256, dtype=U32) + 1
    got = run("""s_mov_b32 s12, s4
    s_mov_b32 s13, s5
    s_movk_i32 s14, 64
    s_mov_b32 s15, 0x20000
    v_mov_b32_e32 v3, -4
    buffer_load_dword v20, v3, s[12:15], 0 offen offset:8
    s_waitcnt vmcnt(0)
    global_store_dword v1, v20, s[4:5] offset:256""", strict, inputs=inputs, threads=64)  # fmt: skip
    assert not got[64:128].any()


def test_by_index_a_buffers_records_count_the_stride():
    inputs = np.arange(256, dtype=U32)
    got = run("""s_mov_b32 s12, s4
    s_or_b32 s13, s5, 0x80000
    s_movk_i32 s14, 10
    s_mov_b32 s15, 0x20000
    buffer_load_dword v20, v0, s[12:15], 0 idxen offset:4
    s_waitcnt vmcnt(0)
    global_store_dword v1, v20, s[4:5] offset:256""", inputs=inputs, threads=64)  # fmt: skip
    np.testing.assert_array_equal(got[64:128], [2 * k + 1 if k < 10 else 0 for k in range(64)])


def test_a_race_with_a_load_into_lds_names_a_byte_of_lds():
    code = """s_mov_b32 m0, 0
    ds_write_b32 v1, v0
    s_waitcnt lgkmcnt(0)
    v_lshlrev_b32_e32 v3, 2, v0
    global_load_lds_dword v3, s[4:5]
    s_waitcnt vmcnt(0)"""
    with pytest.raises(HazardError, match=r"LDS byte 0x0, which wave \d of the same workgroup wrote"):
        run(code, strict=True, threads=128, inputs=np.arange(256, dtype=U32))


# -- halves of registers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942"])
def test_a_load_into_one_half_takes_the_whole_register(gpu):
    """It clears the other half, so nobody may use that before the wait."""
    code = """v_mov_b32_e32 v20, 7
    global_load_short_d16 v20, v1, s[4:5]
    {wait}
    ds_write_b16_d16_hi v1, v20"""
    run(code.format(wait="s_waitcnt vmcnt(0)"), True, gpu)
    with pytest.raises(HazardError, match="reads v20 before a wait"):
        run(code.format(wait=""), True, gpu)


def test_results_of_16_bits_by_vop3_alone_leave_the_other_half(cdna3):
    names = ["v_add_i16", "v_sub_i16", *(f"v_{n}_{k}" for n in ("min3", "max3", "med3") for k in ("f16", "i16", "u16"))]
    code = "\n".join(f"{name} v{n}, v0, v1{', v0' * ('3' in name)}" for n, name in enumerate(names, 2))
    machine = cdna3(code, "gfx90a", v={0: np.full(64, 7, np.uint16), 1: np.full(64, 3, np.uint16)})
    got = [int(machine.vector(n, np.uint32)[0]) for n in range(2, 2 + len(names))]
    assert got == [0xA5A5_000A, 0xA5A5_0004] + [0xA5A5_0003] * 3 + [0xA5A5_0007] * 6
