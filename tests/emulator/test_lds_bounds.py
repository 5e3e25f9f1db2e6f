"""Accesses past the end of LDS: errors, or what the ISA guides say (loads give 0, stores are dropped) if asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import laneloom
from laneloom.cli import app
from laneloom.emulator.driver import emulate_code_object
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import OutOfBoundsError

# out[lane] = what `body` left in v3 and v4; v1 is the address that memory holds for the lane, v2 is lane + 1.
KERNEL = """
\t.amdgcn_target "amdgcn-amd-amdhsa--{gpu}"
\t.text
k:
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 32
\t\t.amdhsa_next_free_sgpr 48
\t\t.amdhsa_group_segment_fixed_size {asked}
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_float_denorm_mode_32 3
\t\t.amdhsa_float_denorm_mode_16_64 3
\t.end_amdhsa_kernel
"""
CODE = """
s_load_b64 s[2:3], s[0:1], 0x0
v_lshlrev_b32 v5, 2, v0
v_add_nc_u32 v2, 1, v0
{waits}
global_load_b32 v1, v5, s[2:3]
{waits}
{body}
{waits}
global_store_b32 v5, v3, s[2:3] offset:128
global_store_b32 v5, v4, s[2:3] offset:256
"""
WAITS = {
    "gfx942": "s_waitcnt vmcnt(0) lgkmcnt(0)",
    "gfx1151": "s_waitcnt vmcnt(0) lgkmcnt(0)",
    "gfx1201": "s_wait_loadcnt 0x0\ns_wait_dscnt 0x0\ns_wait_kmcnt 0x0",
}
GIVEN_OUT = 512  #: bytes of LDS for a kernel that asks for 100
PAST = np.array([512, 516, 1020, 0xF00000, 0x7FFFFFFC, 0x80000000, 0xFFFF0000, 4096], np.uint32)
BACK_AND_FORTH = "ds_store_b32 v1, v2\n{waits}\nds_load_2addr_b32 v[3:4], v1 offset1:128"


def assembly(gpu: str, body: str, asked: int = 100) -> str:
    code = CODE.format(body=body.format(waits=WAITS[gpu]), waits=WAITS[gpu])
    return KERNEL.format(gpu=gpu, asked=asked, code="\n".join("\t" + line for line in code.strip().splitlines()))


def run(gpu: str, body: str, addresses, *, strict=False, lds_drops=True, asked=100) -> np.ndarray:
    memory = np.zeros((3, 32), np.uint32)
    memory[0] = np.resize(np.asarray(addresses, np.uint32), 32)
    at = memory.ctypes.data
    launch(
        Program(assembly(gpu, body, asked), gpu, strict=strict), [1], at.to_bytes(8, "little"), workgroup_size=32,
        regions=[Region("x", at, memory.nbytes, memory)], lds_drops=lds_drops,
    )  # fmt: skip
    return memory[1:]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("gpu", list(WAITS))
def test_loads_give_0_and_stores_are_dropped(gpu, strict):
    """What is given out beyond the size asked for is memory as any other."""
    inside = np.array([0, 4, 96, 100, 200, 256, 508, 404, 8, 12, 104, 108, 208, 264, 504, 412], np.uint32)
    addresses = np.concatenate([inside[:8], PAST, inside[8:], PAST])
    first, second = run(gpu, BACK_AND_FORTH, addresses, strict=strict)
    np.testing.assert_array_equal(first, np.where(addresses < GIVEN_OUT, np.arange(1, 33), 0))
    assert not second.any()  # 512 bytes further on


TO_LDS = """ds_store_b32 v5, v2
s_movk_i32 m0, 448
{load}
{{waits}}
v_add_u32 v6, 448, v5
ds_load_b32 v3, v6
ds_load_b32 v4, v5"""
RESOURCE = "s_mov_b64 s[4:5], s[2:3]\ns_movk_i32 s6, 0x80\ns_mov_b32 s7, 0x31014000\n"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "load", ["global_load_lds_dword v5, s[2:3]", f"{RESOURCE}buffer_load_dword v5, s[4:7], 0 offen lds"]
)
def test_loads_straight_into_lds_are_dropped(load, strict):
    """Lanes from 16 on would land past the end."""
    addresses = np.arange(1000, 1032, dtype=np.uint32)
    past, other = run("gfx942", TO_LDS.format(load=load), addresses, strict=strict)
    np.testing.assert_array_equal(past, np.where(np.arange(32) < 16, addresses, 0))
    np.testing.assert_array_equal(other, np.arange(1, 33))
    with pytest.raises(OutOfBoundsError, match="at byte 100, outside the 100 bytes"):
        run("gfx942", TO_LDS.format(load=load).replace("448", "36"), addresses, strict=strict, lds_drops=False)


@pytest.mark.parametrize("gpu", list(WAITS))
def test_by_default_it_is_an_error(gpu):
    with pytest.raises(
        OutOfBoundsError, match=r"at byte 512, outside the 100 bytes .* bounds='hardware' lets loads give 0"
    ):
        run(gpu, BACK_AND_FORTH, [0, 512], lds_drops=False)


@pytest.mark.parametrize("gpu", list(WAITS))
@pytest.mark.parametrize(
    ("body", "address"), [("ds_add_u32 v1, v2", 512), ("ds_store_b64 v1, v[2:3]", 508), ("ds_load_b64 v[3:4], v1", 508)]
)
def test_what_the_guides_do_not_define_stays_an_error(gpu, body, address):
    """Atomics, and accesses that begin inside."""
    with pytest.raises(
        OutOfBoundsError, match=f"at byte {address}, outside the 512 bytes that the kernel allocates;"
    ) as e:
        run(gpu, body, [address])
    assert "hardware" not in str(e.value)


WORD = "ds_store_b8 v1, v2\n{waits}\nds_load_b32 v3, v1\n{waits}\n"


@pytest.mark.parametrize("gpu", list(WAITS))
@pytest.mark.parametrize("atomic", ["ds_or_b32 v1, v2", "ds_cmpstore_rtn_b32 v3, v1, v2, v3"])
def test_atomics_on_bytes_touch_the_last_word(gpu, atomic):
    """LLVM makes them atomics of the word around, which may end past the bytes that the kernel asks for."""
    if gpu == "gfx942":
        atomic = atomic.replace("cmpstore", "cmpst").replace("v2, v3", "v3, v2")
    body = f"{WORD}{atomic}\n{{waits}}\nds_load_u8 v3, v1\nv_mov_b32 v4, 0\n"
    for asked in (97, 98, 99):
        past, _ = run(gpu, body, 96, lds_drops=False, asked=asked)
        assert set(past) <= set(range(64))
        with pytest.raises(OutOfBoundsError, match="at byte 100, outside the 100 bytes"):
            run(gpu, body, 100, lds_drops=False, asked=asked)
    with pytest.raises(OutOfBoundsError, match="4-byte LDS access at byte 96, outside the 97 bytes"):
        run(gpu, WORD + "v_mov_b32 v4, 0", 96, lds_drops=False, asked=97)


def test_from_the_command_line(tmp_path):
    file, given = tmp_path / "k.s", tmp_path / "given.npy"
    file.write_text(assembly("gfx1151", BACK_AND_FORTH))
    memory = np.zeros((3, 32), np.uint32)
    memory[0] = np.resize(PAST, 32)
    memory[1:] = 7
    np.save(given, memory)
    command = ["run", str(file), "--grid", "1", "--block", "32", "--arg", f"{given}->{given}", "--json"]
    assert "bounds='hardware'" in " ".join(CliRunner().invoke(app, command).output.split())
    done = CliRunner().invoke(app, [*command, "--bounds", "hardware"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["instructions"] > 5
    assert not np.load(given)[1:].any()
    other = CliRunner().invoke(app, [*command, "--bounds", "storage"])
    assert "--bounds takes hardware alone" in " ".join(other.output.split())


def test_in_a_context():
    torch = pytest.importorskip("torch")
    memory = torch.full((3, 32), 7, dtype=torch.int32)
    memory[0] = 4096
    at = memory.data_ptr().to_bytes(8, "little")
    with laneloom.emulated("gfx1151", bounds="hardware"):
        emulate_code_object(assembly("gfx1151", BACK_AND_FORTH), "k", [1], at, {"x": memory}, workgroup_size=32)
    assert not memory[1:].any()
