"""The end of a buffer's records: what begins before it and ends behind it."""

import numpy as np
import pytest
from test_memory_instructions import random_bytes, run

# Odd lanes address 4 bytes before the end of the 4 GiB that 0xffffffff records nearly are.
MASKED = """s_mov_b32 s6, -1
    v_and_b32 v13, 1, v0
    v_cmp_eq_u32 vcc_lo, 1, v13
    v_mov_b32 v12, -4
    v_cndmask_b32 v14, v1, v12, vcc_lo
    {access}
    {{waits}}"""


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
@pytest.mark.parametrize("bits", [32, 128])
def test_code_masks_lanes_by_an_offset_of_minus_4(gpu, bits):
    image, registers = random_bytes(3)
    data, size = {32: "v8", 128: "v[8:11]"}[bits], bits // 8
    soffset = "null" if gpu == "gfx1201" else "0"
    access = f"buffer_load_b{bits} {data}, v14, s[4:7], {soffset} offen"
    _, got = run(gpu, MASKED.format(access=access), image, registers, strict=True)
    np.testing.assert_array_equal(got[::2, :size], image[::2, :size])
    assert not got[1::2, :size].any()
    access = f"buffer_store_b{bits} {data}, v14, s[4:7], {soffset} offen"
    after, _ = run(gpu, MASKED.format(access=access), image, registers, strict=True)
    np.testing.assert_array_equal(after[::2, :size], registers[::2, :size])
    np.testing.assert_array_equal(after[1::2], image[1::2])


@pytest.mark.parametrize(("name", "last"), [("u8", 511), ("u16", 510), ("b32", 508), ("b64", 508)])
def test_the_last_of_512_records(name, last):
    """Lane 0 reads what begins at `last`, lane 1 one byte on: only the first is inside."""
    image, registers = random_bytes(3)
    data = "v[8:9]" if name == "b64" else "v8"
    body = f"""v_min_u32 v13, 1, v0
    v_add_nc_u32 v14, 0x{last:x}, v13
    v_mov_b32 v8, -1
    buffer_load_{name} {data}, v14, s[4:7], 0 offen
    {{waits}}"""
    _, got = run("gfx1151", body, image, registers)
    size = {"u8": 1, "u16": 2}.get(name, 4)
    np.testing.assert_array_equal(got[0, :size], image.reshape(-1)[last : last + size])
    assert not got[1:, :4].any()


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx942", "gfx1250"])
@pytest.mark.parametrize(("stride", "records", "size"), [(0, 8, 8), (4, 3, 12), (0, 7, 4), (0, 0, 0), (16, 1, 16)])
def test_scalar_loads_beyond_the_records_give_zeros(gpu, stride, records, size):
    """The bytes of a buffer are its records, times its stride if it has one; each word counts for itself."""
    image, registers = random_bytes(3)
    if gpu == "gfx1250":  # bits 6:0 of the records are on top of the address, the stride is in the last word,
        # with bits that mean nothing to a scalar load: the stride's scale, swizzling, the record's end
        put = f"s_or_b32 s5, s5, 0x{records << 25:x}\ns_mov_b32 s6, 0\ns_mov_b32 s7, 0x{stride << 12 | 15 << 26:x}"
    else:
        put = f"s_or_b32 s5, s5, 0x{stride << 16:x}\ns_mov_b32 s6, {records}"
    name = "s_buffer_load_dwordx4" if gpu == "gfx942" else "s_buffer_load_b128"
    body = f"""{put}
    {name} s[8:11], s[4:7], 0x0
    {{waits}}
    v_mov_b32 v8, s8
    v_mov_b32 v9, s9
    v_mov_b32 v10, s10
    v_mov_b32 v11, s11"""
    _, got = run(gpu, body, image, registers, strict=True)
    want = np.zeros(16, np.uint8)
    want[:size] = image[0, :size]
    assert (got == want).all()
