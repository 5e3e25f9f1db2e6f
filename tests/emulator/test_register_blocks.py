"""Blocks of registers that M0 chooses from (RDNA 4), and gfx9's ways to scratch that only people write."""

import numpy as np
import pytest
from test_memory_instructions import random_bytes
from test_memory_instructions import run as run_memory

from laneloom.errors import HazardError, OutOfBoundsError, UnknownInstructionError

U32 = np.uint32
# v[8:11] are registers 1 to 4 of a block that begins at v7; of the 16 bytes of a lane, word k is for register k + 1.
ADDRESS = """v_sub_co_u32 v12, vcc_lo, v2, 4
v_sub_co_ci_u32 v13, vcc_lo, v3, 0, vcc_lo"""
SPACES = {
    "global": (f"{ADDRESS}\ns_mov_b32 m0, {{mask}}", "v[12:13]", "off", ""),
    "global_base": ("s_mov_b32 m0, {mask}", "v1", "s[2:3]", " offset:-4"),
    "scratch": ("scratch_store_b128 off, v[4:7], off\ns_mov_b32 m0, {mask}", "off", "off", " offset:-4"),
}
MASKS = [0b11110, 0b01010, 0b10000]


def words_of(mask: int) -> list[int]:
    return [k for k in range(4) if mask >> (k + 1) & 1]


def body_of(space: str, way: str, mask: int) -> str:
    before, vaddr, saddr, offset = SPACES[space]
    text = f"v[7:38], {vaddr}, {saddr}" if way == "load" else f"{vaddr}, v[7:38], {saddr}"
    lines = [before.format(mask=mask), "{waits}", f"{space.split('_')[0]}_{way}_block {text}{offset}", "{waits}"]
    if space == "scratch":
        lines += ["scratch_load_b128 v[4:7], off, off", "{waits}", "global_store_b128 v1, v[4:7], s[2:3]"]
    return "\n".join(lines)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("space", SPACES)
def test_blocks_move_the_registers_that_m0_names(space, strict):
    image, registers = random_bytes(7)
    for gpu, mask in zip(("gfx1201", "gfx1250", "gfx1201"), MASKS, strict=True):
        _, got = run_memory(gpu, body_of(space, "load", mask), image, registers, strict)
        want = registers.copy().view(U32)
        want[:, words_of(mask)] = image.view(U32)[:, words_of(mask)]
        np.testing.assert_array_equal(got.view(U32), want)
        got, _ = run_memory(gpu, body_of(space, "store", mask), image, registers, strict)
        want = image.copy().view(U32)
        want[:, words_of(mask)] = registers.view(U32)[:, words_of(mask)]
        np.testing.assert_array_equal(got.view(U32), want)


def test_blocks_stay_within_their_memory_and_store_what_was_written():
    image, registers = random_bytes(8)
    with pytest.raises(OutOfBoundsError, match="outside the 64 bytes"):
        run_memory("gfx1201", body_of("scratch", "load", 1 << 20), image, registers)
    with pytest.raises(HazardError, match=r"stores bits that nobody wrote \(v17\)"):
        run_memory("gfx1201", body_of("global", "store", 1 << 10), image, registers, strict=True)
    text = body_of("global_base", "load", 0b1000).replace("offset:-4\n{waits}", "offset:-4\nv_mov_b32 v14, v9")
    with pytest.raises(HazardError, match=r"reads v9 before a wait for loadcnt"):
        run_memory("gfx1201", text, image, registers, strict=True)


def test_registers_that_a_wave_asks_for_are_granted(execute):
    assert execute("s_alloc_vgpr s4\ns_cselect_b32 s5, 7, 8", gpu="gfx1201", s={4: 96}, scc=False).scalar(5) == 7


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("gpu", "name", "where", "nbytes"), [
    ("gfx942", "scratch_load_lds_dword", "off, off offset:4", 4), ("gfx950", "scratch_load_lds_sshort", "v12, off", 2),
    ("gfx942", "scratch_load_lds_ubyte", "off, s16", 1), ("gfx950", "scratch_load_lds_ushort", "v12, off", 2),
    ("gfx942", "scratch_load_lds_sbyte", "v12, off", 1),
])  # fmt: skip
def test_scratch_to_lds(gpu, name, where, nbytes, strict):
    image, registers = random_bytes(9)
    body = f"""scratch_store_dwordx4 off, v[4:7], off
    s_movk_i32 m0, 0x20
    s_mov_b32 s16, 4
    v_mov_b32 v12, 4
    {{waits}}
    {name} {where}
    {{waits}}
    v_lshlrev_b32 v12, 2, v0
    ds_read_b32 v8, v12 offset:{36 if where.endswith(":4") else 32}"""
    _, got = run_memory(gpu, body, image, registers, strict)
    for lane in range(31):
        octets = image[lane, 4 : 4 + nbytes].tobytes()
        value = int.from_bytes(octets, "little", signed="_lds_s" in name) & 0xFFFFFFFF
        assert got[lane, :4].tobytes() == value.to_bytes(4, "little")


def test_scratch_that_nobody_wrote_stays_so_in_lds():
    body = """s_movk_i32 m0, 0
    scratch_load_lds_dword off, off
    {waits}
    v_lshlrev_b32 v12, 2, v0
    ds_read_b32 v8, v12"""
    with pytest.raises(HazardError, match="stores bits that nobody wrote"):
        run_memory("gfx942", body, *random_bytes(1), strict=True)


@pytest.mark.parametrize("strict", [False, True])
def test_scalar_scratch(strict):
    """Registers count in 64 bytes, constants in one."""
    image, registers = random_bytes(10)
    body = """s_mov_b32 s16, 2
    s_scratch_load_dwordx2 s[20:21], s[2:3], s16
    s_scratch_load_dword s22, s[2:3], 0x14
    s_scratch_load_dwordx4 s[24:27], s[2:3], 0x100
    {waits}
    s_scratch_store_dwordx2 s[20:21], s[2:3], 0x10
    s_scratch_store_dword s22, s[2:3], s16
    s_scratch_store_dwordx4 s[24:27], s[2:3], 0x40
    v_mov_b32 v8, s20
    v_mov_b32 v9, s21
    v_mov_b32 v10, s22"""
    memory, got = run_memory("gfx942", body, image, registers, strict)
    raw = image.reshape(-1).view(U32)
    want = [raw[32], raw[33], raw[5]]
    assert got[5].view(U32)[:3].tolist() == want
    changed = raw.copy()
    changed[4:6], changed[32], changed[16:20] = want[:2], want[2], raw[64:68]
    np.testing.assert_array_equal(memory.reshape(-1).view(U32), changed)


@pytest.mark.parametrize(("gpu", "offset", "error", "text"), [
    ("gfx942", "src_private_base", UnknownInstructionError, "operand 'src_private_base' as a buffer's offset"),
    ("gfx1151", "2.0", OutOfBoundsError, r"\d{9,} bytes past"),
])  # fmt: skip
def test_scalar_offsets_of_buffers(gpu, offset, error, text):
    """A constant stands for its bits; an aperture for nothing here."""
    body = f"s_mov_b32 s6, -1\nbuffer_load_dword v8, v1, s[4:7], {offset} offen"
    with pytest.raises(error, match=text):
        run_memory(gpu, body, *random_bytes(11))


@pytest.mark.parametrize("gpu", ["gfx1201", "gfx1250"])
def test_scratch_behind_a_negative_register(gpu):
    """Of RDNA 4 the register of a scratch address is signed."""
    body = """scratch_store_b128 off, v[4:7], off
    v_mov_b32 v12, -16
    {waits}
    scratch_load_b32 v8, v12, off offset:20"""
    image, registers = random_bytes(12)
    _, got = run_memory(gpu, body, image, registers)
    np.testing.assert_array_equal(got.view(U32)[:, 0], image.view(U32)[:, 1])
