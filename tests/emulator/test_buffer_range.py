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
