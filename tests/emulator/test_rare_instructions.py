"""What compilers hardly write: halts, a debugger's branches, rows of lanes for conversions, older loads to LDS."""

import re

import numpy as np
import pytest
from test_flow_instructions import run as run_flow
from test_memory_instructions import random_bytes
from test_memory_instructions import run as run_memory

from laneloom.errors import EmulationError, TrapError, UnknownInstructionError

U32 = np.uint32


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942"])
@pytest.mark.parametrize("which", ["cdbgsys", "cdbguser", "cdbgsys_or_user", "cdbgsys_and_user"])
def test_no_debugger_ever_branches(gpu, which):
    code = f"v_mov_b32 v1, 1\ns_cbranch_{which} .Lend\nv_mov_b32 v1, 2\n.Lend:"
    assert run_flow(gpu, code) == 2


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx942"])
@pytest.mark.parametrize("text", ["s_sethalt 1", "s_setkill 1", "s_sendmsghalt sendmsg(MSG_INTERRUPT)"])
def test_a_wave_that_stops_itself(gpu, text):
    with pytest.raises(TrapError, match=f"{text.split()[0]} stops the wave"):
        run_flow(gpu, text)
    assert run_flow(gpu, "v_mov_b32 v1, 3\ns_sethalt 0") == 3


@pytest.mark.parametrize("name", ["s_endpgm_saved", "s_endpgm_ordered_ps_done"])
def test_other_ends(name):
    assert run_flow("gfx1151", f"s_cbranch_scc0 .Lgo\n.Lgo:\n{name}") == 0xFFFFFFFF


@pytest.mark.parametrize("text", ["s_branch 1", "s_cbranch_scc0 -3", "s_cbranch_vccnz 0xfffd", "s_call_b64 s[8:9], 12"])
def test_distances_in_words(text):
    """LLVM's assembler takes them; how long the instructions of a text are it alone knows."""
    with pytest.raises(EmulationError, match=f"counts words of .*: write a label; line .*{re.escape(text)}"):
        run_flow("gfx1151", text)


def test_jumps_that_lead_nowhere():
    with pytest.raises(EmulationError, match=r"a call of an unknown label; line .*s_call_b64"):
        run_flow("gfx1151", "s_call_b64 s[8:9], .Lelsewhere")
    with pytest.raises(EmulationError, match=r"a branch to an unknown label; line .*s_cbranch_scc0 .Lelsewhere"):
        run_flow("gfx1151", "s_cbranch_scc0 .Lelsewhere")
    with pytest.raises(UnknownInstructionError, match="s_cbranch_join is not implemented"):
        run_flow("gfx942", "s_cbranch_join s4")


CONTROLS = ("row_shr:1", "quad_perm:[3,2,1,0]", "row_ror:5")


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize(
    ("gpu", "name", "texts"),
    [
        ("gfx1201", "v_cvt_pk_fp8_f32_e64", "v4, {}, v1 op_sel:[0,0,1]"),
        ("gfx1201", "v_cvt_sr_bf8_f32_e64", "v4, {}, v1 byte_sel:2"),
        ("gfx1172", "v_cvt_pk_bf8_f32_e64", "v4, {}, v1"), ("gfx942", "v_pk_fmac_f16", "v4, {}, v1"),
    ],
)  # fmt: skip
def test_sources_of_other_lanes(execute, gpu, name, texts, control):
    """As a move of the same lanes before; lanes whose source is out of reach keep what they had."""
    lanes = 64 if gpu == "gfx942" else 32
    rng = np.random.default_rng(3)
    given = {0: rng.standard_normal(lanes).astype(np.float32), 1: rng.standard_normal(lanes).astype(np.float32)}
    given[4] = given[5] = rng.integers(0, 1 << 32, lanes).astype(U32)
    active = rng.random(lanes) < 0.8
    tail = f"{control} row_mask:0xd bank_mask:0xe"
    options = {"gpu": gpu, "lanes": lanes, "v": given}
    got = execute(f"{name}_dpp {texts.format('v0')} {tail}", active=active, **options).vector(4, U32)
    moved = execute(f"v_mov_b32_dpp v5, v0 {tail}", active=active, **options).vector(5, U32)
    marks = execute(f"v_mov_b32_dpp v5, v0 {tail}", active=active, **{**options, "v": {**given, 5: ~moved}})
    wrote = marks.vector(5, U32) == moved
    plain = execute(f"{name} {texts.format('v5')}", **{**options, "v": {**given, 5: moved}}).vector(4, U32)
    np.testing.assert_array_equal(got, np.where(wrote, plain, given[4]))
    assert 0 < wrote.sum() < lanes
    assert (plain != given[4])[wrote].any()


@pytest.mark.parametrize("gpu", ["gfx908", "gfx90a"])
@pytest.mark.parametrize(("name", "nbytes"), [("ubyte", 1), ("sshort", 2), ("dword", 4)])
def test_global_loads_to_lds_by_a_modifier(gpu, name, nbytes):
    image, registers = random_bytes(3)
    body = f"""s_movk_i32 m0, 0x20
    global_load_{name} v[2:3], off offset:4 lds
    {{waits}}
    v_mul_u32_u24 v12, 4, v0
    ds_read_b32 v8, v12 offset:36"""
    _, got = run_memory(gpu, body, image, registers)
    raw = image.reshape(-1)
    for lane in range(31):
        octets = raw[16 * lane + 4 : 16 * lane + 4 + nbytes].tobytes()
        value = int.from_bytes(octets, "little", signed=name.startswith("s")) & 0xFFFFFFFF
        assert got[lane, :4].tobytes() == value.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("gpu", "text"),
    [("gfx90a", "global_load_dword v1 lds"), ("gfx1151", "v_mov_b32"), ("gfx1151", "ds_load_b32 v1")],
)
def test_operands_that_nobody_expects(gpu, text):
    """Where the code does not come to them, they do no harm."""
    with pytest.raises(UnknownInstructionError, match=rf"does not implement {text.split()[0]} on {gpu}"):
        run_flow(gpu, text)
    assert run_flow(gpu, f"v_mov_b32 v1, 5\ns_branch .Lend\n{text}\n.Lend:") == 5
