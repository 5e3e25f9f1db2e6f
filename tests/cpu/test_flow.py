"""Where control goes behind an instruction, and what depends on it: loops, checks, raw numbers in a text."""

import pytest

from laneloom.isa.analysis import hot_loop
from laneloom.isa.check import check
from laneloom.isa.flow import Flow, flow_of
from laneloom.isa.parse import parse


@pytest.mark.parametrize(
    ("text", "flow"),
    [
        ("s_endpgm", Flow.ENDS), ("s_endpgm_saved", Flow.ENDS), ("s_code_end", Flow.FILLS), ("s_branch .L", Flow.JUMPS),
        ("s_cbranch_scc1 .L", Flow.BRANCHES), ("s_subvector_loop_begin s0, .L", Flow.BRANCHES),
        ("s_setpc_b64 s[30:31]", Flow.LEAVES), ("s_set_pc_i64 s[30:31]", Flow.LEAVES),
        ("s_add_pc_i64 .L-.M", Flow.LEAVES), ("s_rfe_i64 s[0:1]", Flow.LEAVES), ("s_rfe_b64 s[0:1]", Flow.LEAVES),
        ("s_swappc_b64 s[0:1], s[2:3]", Flow.CALLS), ("s_swap_pc_i64 s[0:1], s[2:3]", Flow.CALLS),
        ("s_call_b64 s[0:1], f", Flow.CALLS), ("s_call_i64 s[0:1], f", Flow.CALLS), ("s_trap 2", Flow.ENDS),
        ("s_trap 3", Flow.NEXT), ("s_trap 0x3", Flow.NEXT), ("s_getpc_b64 s[0:1]", Flow.NEXT),
        ("s_set_gpr_idx_off", Flow.NEXT), ("s_setreg_b32 hwreg(1), s0", Flow.NEXT), ("v_nop", Flow.NEXT),
    ],
)  # fmt: skip
def test_kinds(text, flow):
    assert flow_of(text.split()[0], text) is flow


def rules(code: str, gpu: str) -> list[tuple[str, int]]:
    """The findings in a kernel, with the number of the line among its code's."""
    text = f"k:\n{code}\n\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n"
    return [(f.rule, f.line - 1) for report in check(text, gpu) for f in report.findings]


LOADS = "\tglobal_load_b32 v1, v[2:3], off\n\ts_wait_loadcnt 0x0\n"


@pytest.mark.parametrize(
    ("code", "gpu", "expected"),
    [
        # CDNA 5's names of a return and of a call
        ("\tv_nop\n\ts_set_pc_i64 s[30:31]", "gfx1250", []),
        ("\ts_swap_pc_i64 s[30:31], s[2:3]\n\ts_wait_loadcnt 0x0\n\ts_endpgm", "gfx1250", []),
        # Without a debugger llvm.debugtrap does nothing.
        (f"{LOADS}\ts_trap 3\n\tv_nop", "gfx1201", [("runs-past-end", 4)]),
        (f"{LOADS}\ts_trap 2\n\tv_nop", "gfx1201", []),
        # What firmware that preloads nothing finds stands in front of the kernel.
        ("\ts_trap 2\n\tv_nop\n\tv_nop", "gfx942", [("runs-past-end", 3)]),
        # A function may be one of no return; what follows a return is not reached.
        ("\tv_nop\n\ts_call_b64 s[30:31], f", "gfx1201", []),
        ("\tv_nop\n\ts_rfe_b64 s[30:31]\n\tv_nop", "gfx1201", []),
        ("\tv_nop\n\ts_code_end\n\ts_code_end", "gfx1201", [("runs-past-end", 1)]),
        ("\ts_endpgm\n\ts_code_end\n\ts_code_end", "gfx1201", []),
    ],
)  # fmt: skip
def test_what_the_checks_make_of_it(code, gpu, expected):
    assert rules(code, gpu) == expected


@pytest.mark.parametrize("call", ["s_swappc_b64 s[30:31], s[2:3]", "s_swap_pc_i64 s[30:31], s[2:3]"])
def test_a_loop_that_calls_is_a_loop(call):
    loop = hot_loop(f"f:\n.L1:\n\t{call}\n\tv_nop\n\ts_cbranch_scc1 .L1\n\ts_endpgm\n")
    assert loop is not None
    assert len(loop.instructions) == 3


def test_a_call_of_a_function_in_front_is_no_loop():
    assert hot_loop("f:\n\ts_setpc_b64 s[30:31]\nk:\n\ts_call_b64 s[30:31], f\n\ts_endpgm\n") is None


@pytest.mark.parametrize("leaves", ["s_add_pc_i64 .L1-.L2", "s_endpgm", "s_trap 2"])
def test_numbers_that_no_control_reaches_are_data(leaves):
    text = "k:\n\t{}\n\t.long 0xbf800000\n.L1:\n\ts_endpgm\n\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n"
    assert [i.name for i in parse(text.format(leaves)).instructions] == [leaves.split()[0], "s_endpgm"]
    assert "undecodable" in [i.name for i in parse(text.format("s_trap 3")).instructions]
