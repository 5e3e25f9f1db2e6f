"""CDNA 4's loads straight into LDS, and its loads from LDS that transpose, byte by byte."""

import pytest
from test_memory_instructions import in_space, random_bytes, run

from laneloom.errors import HazardError, OutOfBoundsError


@pytest.mark.parametrize("source", ["global", "buffer"])
@pytest.mark.parametrize("name", ["ubyte", "sbyte", "ushort", "sshort", "dword", "dwordx3", "dwordx4"])
def test_loads_to_lds(name, source):
    """Lane l's data lands at M0, the offset and l times what a lane writes; memory is read at the offset too."""
    nbytes = {"ubyte": 1, "sbyte": 1, "ushort": 2, "sshort": 2, "dword": 4, "dwordx3": 12, "dwordx4": 16}[name]
    image, registers = random_bytes(3)
    where = {"global": f"global_load_lds_{name} v[2:3], off offset:4",
             "buffer": f"buffer_load_{name} v1, s[4:7], 0 offen offset:4 lds"}[source]  # fmt: skip
    stride = max(nbytes, 4)
    body = f"""s_movk_i32 m0, 0x20
    {where}
    {{waits}}
    v_mul_u32_u24 v12, {stride}, v0
    ds_load_b{8 * stride} v[8:{7 + stride // 4}], v12 offset:36"""
    _, got = run("gfx950", body, image, registers)
    raw = image.reshape(-1)
    for lane in range(31):
        octets = raw[16 * lane + 4 : 16 * lane + 4 + nbytes].tobytes()
        value = int.from_bytes(octets, "little", signed=name.startswith("s")) & (1 << 8 * stride) - 1
        assert got[lane, :stride].tobytes() == value.to_bytes(stride, "little")


@pytest.mark.parametrize("gpu", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("load", "m0"), [
    ("global_load_lds_dword v[2:3], off", 0x40023), ("buffer_load_dword v1, s[4:7], 0 offen lds", 0x40020),
])  # fmt: skip
def test_bits_of_m0_that_loads_to_lds_read(gpu, load, m0):
    """Buffer loads the low 16 (gfx950: 18), the others bits 17 to 2 (CDNA 3 and 4 ISA guides, 9.1.9 and 10.3)."""
    image, registers = random_bytes(4)
    body = f"""s_mov_b32 m0, {m0}
    {load}
    {{waits}}
    v_lshlrev_b32 v12, 2, v0
    ds_load_b32 v8, v12 offset:32"""
    _, got = run(gpu, body, image, registers)
    for lane in range(31):
        assert got[lane, :4].tobytes() == image.reshape(-1)[16 * lane : 16 * lane + 4].tobytes()


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("load", ["global_load_lds_dword v[2:3], off", "buffer_load_dword v1, s[4:7], 0 offen lds"])
def test_a_wave_waits_for_its_own_load_to_lds(gpu, load):
    """No register stands for the place, and no other wave reads it; an older load of two is there at vmcnt(1)."""
    image, registers = random_bytes(3)
    body = f"""s_movk_i32 m0, 0x100
    {load}
    s_movk_i32 m0, 0x200
    {load}
    v_lshlrev_b32_e32 v12, 2, v0
    s_waitcnt vmcnt(1)
    ds_read_b32 v8, v12 offset:256
    WAIT
    ds_read_b32 v9, v12 offset:512"""
    run(gpu, body.replace("WAIT", "s_waitcnt vmcnt(0)"), image, registers, strict=True)
    for early, verb in [(body, "reads"), (body.replace("ds_read_b32 v9, v12", "ds_write_b32 v12, v12"), "overwrites")]:
        with pytest.raises(HazardError, match=f"{verb} LDS before a wait for vmcnt: line .*lds") as caught:
            run(gpu, early.replace("WAIT", "s_nop 0"), image, registers, strict=True)
        assert caught.value.kind == "wait"


@pytest.mark.parametrize("gpu", ["gfx942", "gfx950"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("load", ["global_load_lds_dword v[10:11], off", "buffer_load_dword v1, s[4:7], 0 offen lds"])
def test_a_wave_whose_load_to_lds_is_turned_off(gpu, load, strict):
    """Triton gives it an M0 out of any LDS: nothing is fetched, from whatever address, and nothing written."""
    image, registers = random_bytes(3)
    body = f"""v_mov_b32 v10, 0x100
    v_mov_b32 v11, 0
    v_lshlrev_b32_e32 v12, 2, v0
    ds_write_b32 v12, v0 offset:32
    s_waitcnt lgkmcnt(0)
    s_mov_b32 m0, 0x7fffffff
    {load}
    s_waitcnt vmcnt(0)
    ds_read_b32 v8, v12 offset:32"""
    _, got = run(gpu, body, image, registers, strict=strict)
    assert got[:, :4].copy().view("u4").ravel().tolist() == list(range(32))
    if "global" in load:
        with pytest.raises(OutOfBoundsError):
            run(gpu, body.replace("0x7fffffff", "32"), image, registers, strict=strict)


@pytest.mark.parametrize(("total", "width"), [(64, 16), (64, 8), (64, 4), (96, 6)])
def test_transposed_loads_from_lds(total, width):
    """16 lanes address rows of 16 elements one after another; lane c of them gets column c."""
    each, size = total // width, total // 8
    image, registers = random_bytes(4)
    words = f"v[8:{7 + size // 4}]"
    body = in_space("ds", f"ds_read_b{total}_tr_b{width} {words}, v1")
    _, got = run("gfx950", body, image, registers)
    for first in (0, 16):
        stored = [int.from_bytes(image[first + lane, :size].tobytes(), "little") for lane in range(16)]
        elements = [x >> width * k & (1 << width) - 1 for x in stored for k in range(each)]
        for c in range(16):
            want = sum(elements[16 * row + c] << width * row for row in range(each))
            assert got[first + c, :size].tobytes() == want.to_bytes(size, "little")
