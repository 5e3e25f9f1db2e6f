"""Every instruction of the ALU tables is one that LLVM assembles, with these operands, for a GPU that is emulated."""

import contextlib
import re

import numpy as np
import pytest

from laneloom.cli.coverage import instructions_of
from laneloom.codegen import versions
from laneloom.codegen.diagnostics import captured_stderr
from laneloom.emulator.aliases import ALIASES
from laneloom.emulator.alu import SCALAR, VECTOR
from laneloom.emulator.operands import BITS
from laneloom.emulator.program import Program
from laneloom.errors import UnknownInstructionError
from laneloom.gpu import get_gpu

GPUS = ("gfx1100", "gfx1151", "gfx1201")
CDNA = ("gfx908", "gfx90a", "gfx942", "gfx950")
_LANES = "v1, v2, s3, s4"
SPECIAL = {  # the operands of instructions that have a builder of their own
    "v_readlane_b32": "s1, v2, 3",
    "v_readfirstlane_b32": "s1, v2",
    "v_writelane_b32": "v1, s2, 3",
    "v_permlane16_b32": _LANES,
    "v_permlanex16_b32": _LANES,
    "v_permlane16_var_b32": "v1, v2, v3",
    "v_permlanex16_var_b32": "v1, v2, v3",
    "v_permlane64_b32": "v1, v2",
    "v_swap_b32": "v1, v2",
    "v_swap_b16": "v1.l, v2.h",
    "v_mbcnt_lo_u32_b32": "v1, s2, v3",
    "v_mbcnt_hi_u32_b32": "v1, s2, v3",
    "v_mqsad_u32_u8": "v[0:3], v[4:5], v6, v[8:11]",
    "s_denorm_mode": "15",
    "s_round_mode": "0",
    "s_setreg_b32": "hwreg(HW_REG_MODE, 12, 4), s1",
    "s_setreg_imm32_b32": "hwreg(HW_REG_MODE, 0, 4), 3",
    "s_getreg_b32": "s1, hwreg(HW_REG_MODE, 0, 4)",
    "v_fma_mix_f32": "v1, v2, v3, v4",
    "v_fma_mixlo_f16": "v1, v2, v3, v4",
    "v_fma_mixhi_f16": "v1, v2, v3, v4",
    "v_div_scale_f32": "v1, vcc_lo, v2, v3, v4",
    "v_div_scale_f64": "v[0:1], vcc_lo, v[2:3], v[4:5], v[6:7]",
    "v_pk_fmac_f16": "v1, v2, v3",
    "v_swaprel_b32": "v1, v2",
    "s_getpc_b64": "s[0:1]",
    "s_sendmsg": "sendmsg(MSG_INTERRUPT)",
    "s_sendmsg_rtn_b32": "s1, sendmsg(MSG_RTN_GET_REALTIME)",
    "s_sendmsg_rtn_b64": "s[0:1], sendmsg(MSG_RTN_GET_REALTIME)",
    "s_trap": "2",
    "s_sethalt": "1",
    "s_setkill": "1",
    "s_sendmsghalt": "sendmsg(MSG_INTERRUPT)",
    "s_barrier_signal": "-1",
    "s_barrier_init": "m0",
    "s_barrier_join": "m0",
    "s_get_barrier_state": "s1, 1",
    "s_barrier_signal_isfirst": "-1",
}
PATTERNS = [
    (r"s_(min|max)_f(16|32)", "s1, s2, s3"),
    (r"v_(add|sub|subrev)_co_u32", "v1, s2, v3, v4"),
    (r"v_(add|sub|subrev)_co_ci_u32", "v1, s2, v3, v4, s5"),
    (r"v_mad(_co)?_[iu]64_[iu]32", "v[0:1], s2, v3, v4, v[6:7]"),
    (r"v_(max|min)(_num)?_f64", "v[0:1], v[2:3], v[4:5]"),
    (r"v_(max|min)(_num)?_f32", "v1, v2, v3"),
    (r"v_(max|min)(_num)?_f16", "v1.l, v2.l, v3.h"),
    (r"v_(max3|min3|med3|minmax|maxmin)(_num)?_f32", "v1, v2, v3, v4"),
    (r"v_(max3|min3|med3|minmax|maxmin)(_num)?_f16", "v1.l, v2.l, v3.h, v4.l"),
    (r"v_pk_(fma|mad)_\w+", "v1, v2, v3, v4"),
    (r"v_pk_\w+", "v1, v2, v3"),
    (r"v_cvt_f32_(fp8|bf8)", "v1, v2"),
    (r"v_cvt_pk_f32_(fp8|bf8)", "v[0:1], v2.l"),
    (r"v_cvt_pk_(fp8|bf8)_f32", "v1.l, v2, v3"),
    (r"v_cvt_sr_(fp8|bf8)_f32", "v1, v2, v3"),
    (r"v_dot2acc_\w+", "v1, v2, v3"),
    (r"v_dot2_(f16_f16|bf16_bf16)", "v1.l, v2, v3, v4.l"),
    (r"v_dot\w+", "v1, v2, v3, v4"),
    (r"v_s_\w+", "s1, s2"),
    (r"v_movrel\w+", "v1, v2"),
    (r"s_\w+(saveexec|wrexec)_b32", "s1, s2"),
    (r"s_\w+(saveexec|wrexec)_b64", "s[0:1], s[2:3]"),
    (r"s_movrel\w+_b32", "s1, s2"),
    (r"s_movrel\w+_b64", "s[0:1], s[2:3]"),
]

CDNA_PATTERNS = [
    (r"s_mem(real)?time", "s[2:3]"),
    (r"s_set_gpr_idx_on", "s2, 0"),
    (r"s_set_gpr_idx_idx", "s2"),
    (r"s_ff0_i32_b64", "s1, s[2:3]"),
    (r"s_ff0_i32_b32", "s1, s2"),
    (r"v_bitop3_b(16|32)", "v1, v2, v3, v4 bitop3:0x27"),
    (r"v_cmpx?_\w+", "s[2:3], v3, v4"),
    (r"v_cvt_scalef32_sr_pk32_\w+_f32", "v[0:5], v[0:31], v6, v7"),
    (r"v_cvt_scalef32_sr_pk32_\w+", "v[0:5], v[8:23], v6, v7"),
    (r"v_cvt_scalef32_2xpk16_\w+", "v[0:5], v[8:23], v[24:39], v7"),
    (r"v_cvt_scalef32_pk32_(fp6|bf6)_b?f16", "v[0:5], v[8:23], v7"),
    (r"v_cvt_scalef32_sr_pk_fp4_f32", "v1, v[2:3], v4, v5"),
    (r"v_cvt_scalef32_sr_\w+", "v1, v2, v3, v4"),
    (r"v_cvt_sr_b?f16_f32", "v1, v2, v3"),
    (r"v_cvt_scalef32_(f32|f16)_\w+", "v1, v2, v3"),
    (r"v_cvt_scalef32_pk32_f32_\w+", "v[0:31], v[32:37], v38"),
    (r"v_cvt_scalef32_pk32_\w+", "v[0:15], v[32:37], v38"),
    (r"v_cvt_scalef32_pk_f32_\w+", "v[0:1], v2, v3"),
    (r"v_cvt_scalef32_pk_(b?f16|f32)_\w+", "v1, v2, v3"),
    (r"v_cvt_scalef32_pk_\w+_f32", "v1, v2, v3, v4"),
    (r"v_cvt_scalef32_pk_\w+_b?f16", "v1, v2, v3"),
    (r"v_cvt_pk\w+|v_dot\dc_\w+|v_mac_f(16|32)|v_subrev_u16", "v1, v2, v3"),
    (r"v_cvt_f32_bf16|v_permlane\w+swap_b32|v_prng_b32", "v1, v2"),
    (r"v_madak_f(16|32)", "v1, v2, v3, 0x1234"),
    (r"v_madmk_f(16|32)", "v1, v2, 0x1234, v3"),
    (r"v_mov_b64", "v[0:1], v[2:3]"),
    (r"v_lshl_add_u64", "v[0:1], v[2:3], v4, v[6:7]"),
    (r"v_fmac_f64|v_pk_(add|mul)_f32|v_pk_mov_b32", "v[0:1], v[2:3], v[4:5]"),
    (r"v_pk_fma_f32", "v[0:1], v[2:3], v[4:5], v[6:7]"),
    (r"v_(pk|fma|mad|div|dot2|ashr)_\w+", "v1, v2, v3, v4"),
]


def register(kind: str, n: int, file: str) -> str:
    if kind == "mask":
        return f"s{n}"
    if BITS[kind] == 64:
        return f"{file}[{2 * n}:{2 * n + 1}]"
    return f"{file}{n}.l" if BITS[kind] == 16 and file == "v" else f"{file}{n}"


def operands(name: str) -> str:
    op = VECTOR[name] if name in VECTOR else SCALAR[name][0]
    if op.build is not None or name in SPECIAL:
        name = ALIASES.get(name, name)
        return SPECIAL.get(name) or next(text for pattern, text in PATTERNS if re.fullmatch(pattern, name))
    file = "v" if name in VECTOR else "s"
    sources = [k for k in op.src if k != "scc"]
    sources = sources[: len(sources) - op.reads_dst - op.implicit_vcc]
    texts = [register(op.dst, 1, file)] if op.dst not in ("", "exec") else []
    texts += [register(kind, k + 2, file) for k, kind in enumerate(sources)]
    if re.match(r"s_(movk|addk|mulk|cmovk|cmpk)_", name):
        texts[-1] = "5"
    if "fmamk" in name:
        texts[2] = "0x1234"
    if "fmaak" in name:
        texts[3] = "0x1234"
    return ", ".join(texts)


def refusals(lines: list[str], gpu: str) -> dict[int, str]:
    """Number of each line that LLVM refuses, and why."""
    # What LLVM refuses is in what it prints.
    with captured_stderr() as printed, contextlib.suppress(RuntimeError, ValueError):
        versions.assembler()(".text\n" + "\n".join(lines) + "\n", gpu, "")
    return {int(m[1]) - 2: m[2] for m in re.finditer(r":(\d+):\d+: error: (.*)", printed[0])}


@pytest.fixture(scope="module")
def lines() -> dict[str, str]:
    others = of_cdna_alone() | of_cdna_5_alone() | {"v_bitop2_b32"}  # which is dual alone
    return {name: f"\t{name} {operands(name)}" for name in [*VECTOR, *SCALAR] if name not in others}


def of_gpus(gpus) -> set[str]:
    return set().union(*(instructions_of(get_gpu(gpu)) for gpu in gpus)) & {*VECTOR, *SCALAR}


def of_cdna_alone() -> set[str]:
    return of_gpus(CDNA) - of_gpus(GPUS)


def of_cdna_5_alone() -> set[str]:
    """test_cdna5_operations.py and test_cdna5_pairs.py assemble and run them."""
    return of_gpus(["gfx1250", "gfx1251"]) - of_gpus(CDNA) - of_gpus(GPUS)


@pytest.fixture(scope="module")
def refused(lines):
    return {gpu: refusals(list(lines.values()), gpu) for gpu in GPUS}


def test_llvm_assembles_every_instruction_for_some_gpu(lines, refused):
    bad = {n: refused["gfx1201"][k] for k, n in enumerate(lines) if all(k in refused[gpu] for gpu in GPUS)}
    # dot2acc_f32_bf16 exists in dual issue only, and Triton 3.6 takes it alone all the same.
    assert set(bad) <= {"v_dot2acc_f32_bf16"}, bad
    dual = "\tv_dual_dot2acc_f32_bf16 v1, v2, v3 :: v_dual_mov_b32 v4, v5"
    assert refusals([dual], "gfx1100") == refusals([dual], "gfx1201") == {}


def test_every_instruction_builds(lines, refused):
    for gpu in GPUS:
        accepted = [line for k, line in enumerate(lines.values()) if k not in refused[gpu]]
        assert len(accepted) > 650
        code = "\n".join(accepted)
        program = Program(f"k:\n{code}\n\ts_endpgm\n\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n", gpu)
        assert [s for s in program.blocks[0].steps if s.__qualname__.startswith("Program._unknown")] == []


@pytest.mark.parametrize("gpu", GPUS)
def test_an_older_spelling_is_the_same_machine_code(gpu, lines, refused):
    """The same operation in both tables, and LLVM encodes both alike."""
    order = {name: k for k, name in enumerate(lines)}
    for alias, name in ALIASES.items():
        if alias not in order or order[alias] in refused[gpu]:
            continue
        text = f"\t{alias} {operands(alias)}\n", f"\t{name} {operands(alias)}\n"
        codes = [bytes(versions.assembler()(".text\n" + t, gpu, "")) for t in text]
        assert codes[0] == codes[1], alias


def test_instructions_of_cdna_assemble_and_build():
    names = sorted(of_cdna_alone())
    assert len(names) > 60
    code = [f"\t{n} {next(text for pattern, text in CDNA_PATTERNS if re.fullmatch(pattern, n))}" for n in names]
    refused = {gpu: refusals(code, gpu) for gpu in CDNA}
    bad = {n: refused["gfx950"][k] for k, n in enumerate(names) if all(k in refused[gpu] for gpu in CDNA)}
    assert not bad
    for gpu in CDNA:
        text = "\n".join(line for k, line in enumerate(code) if k not in refused[gpu])
        kernel = f"k:\n{text}\n\ts_endpgm\n\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n"
        program = Program(kernel, gpu)
        assert [s for s in program.blocks[0].steps if s.__qualname__.startswith("Program._unknown")] == []


def test_what_can_be_dual_is_known():
    for name in (
        "add_f32 cndmask_b32 dot2acc_f32_bf16 dot2acc_f32_f16 fmaak_f32 fmac_f32 fmamk_f32 max_f32 min_f32 max_num_f32 "
        "min_num_f32 mov_b32 mul_dx9_zero_f32 mul_f32 sub_f32 subrev_f32 add_nc_u32 lshlrev_b32 and_b32"
    ).split():
        assert f"v_{name}" in VECTOR


@pytest.mark.parametrize(
    ("gpu", "written", "printed"),
    [
        ("gfx1151", "s_mov_b64 [vcc_lo, vcc_hi], s[6:7]", "s_mov_b64 vcc, s[6:7]"),
        ("gfx1151", "s_not_b64 s[4:5], [exec_lo,exec_hi]", "s_not_b64 s[4:5], exec"),
        ("gfx1201", "s_mov_b32 [s4], s5", "s_mov_b32 s4, s5"),
        ("gfx1201", "v_add_f32_e64 [v4], -[v5], [s6]", "v_add_f32_e64 v4, -v5, s6"),
        ("gfx90a", "s_mov_b64 xnack_mask, s[6:7]", "s_mov_b64 [xnack_mask_lo, xnack_mask_hi], s[6:7]"),
        ("gfx942", "s_mov_b32 xnack_mask_hi, s6\ns_or_b32 s4, s5, xnack_mask_hi",
         "s_mov_b32 xnack_mask_hi, s6\ns_or_b32 s4, s5, s6"),
    ],
)  # fmt: skip
def test_registers_by_name_and_in_lists(execute, gpu, written, printed):
    given = {"v": {5: np.arange(64, dtype=np.float32)}, "s": {n: np.uint32(0x3F80_0000 + n) for n in range(4, 8)}}
    a, b = (execute(code, gpu=gpu, lanes=64 if gpu in CDNA else 32, **given) for code in (written, printed))
    np.testing.assert_array_equal(a.waves.S, b.waves.S)
    np.testing.assert_array_equal(a.waves.V, b.waves.V)
    assert a.scalar(0)[0] == a.scalar(1)[0] == 0xA5A5_A5A5  # where a name without a number led


@pytest.mark.parametrize(
    "code",
    [
        "s_mov_b32 {}, s5", "s_and_saveexec_b32 {}, s5", "s_getreg_b32 {}, hwreg(HW_REG_MODE, 0, 4)",
        "s_sendmsg_rtn_b32 {}, sendmsg(MSG_RTN_GET_REALTIME)", "s_movrels_b32 {}, s5", "v_readfirstlane_b32 {}, v5",
        "v_readlane_b32 {}, v5, 0", "v_cmp_eq_u32 {}, v5, v6", "v_add_co_u32 v4, {}, v5, v6",
        "v_div_scale_f32 v4, {}, v5, v5, v6", "s_call_b64 {}, k",
    ],
)  # fmt: skip
@pytest.mark.parametrize("destination", ["src_scc", "v0"])
def test_a_scalar_result_goes_to_a_register(execute, code, destination):
    """By number alone these led to s0."""
    with pytest.raises(UnknownInstructionError, match=f"'{destination}' as the destination is not implemented"):
        execute(code.format(destination), gpu="gfx1151")


@pytest.mark.parametrize("code", ["v_pk_add_u16 {}, v5, v6", "v_writelane_b32 {}, s5, 0", "v_movrels_b32 {}, v5"])
@pytest.mark.parametrize("destination", ["src_scc", "s0"])
def test_a_vector_result_goes_to_a_register(execute, code, destination):
    with pytest.raises(UnknownInstructionError, match=f"'{destination}' as the destination is not implemented"):
        execute(code.format(destination), gpu="gfx1151")


@pytest.mark.parametrize(
    ("gpu", "written", "printed"),
    [
        ("gfx1151", "v_add_co_ci_u32 v4, v5, v6", "v_add_co_ci_u32_e32 v4, vcc_lo, v5, v6, vcc_lo"),
        ("gfx1201", "v_subrev_co_ci_u32_dpp v4, v5, v6 row_xmask:1 row_mask:0xf bank_mask:0xf",
         "v_subrev_co_ci_u32_dpp v4, vcc_lo, v5, v6, vcc_lo row_xmask:1 row_mask:0xf bank_mask:0xf"),
        ("gfx942", "v_sub_co_u32 v4, v5, v6", "v_sub_co_u32_e32 v4, vcc, v5, v6"),
        ("gfx1250", "v_cmp_lt_i32 v5, v6", "v_cmp_lt_i32_e32 vcc_lo, v5, v6"),
    ],
)
def test_vcc_may_be_left_out(execute, gpu, written, printed):
    v = {n: np.arange(64, dtype=np.uint32) * np.uint32(0x2765_4321 * n) for n in (5, 6)}
    given = {"v": v, "s": {106: np.uint64(0x1234_5678_9ABC_DEF0)}, "gpu": gpu, "lanes": 64 if gpu in CDNA else 32}
    a, b = (execute(code, **given) for code in (written, printed))
    np.testing.assert_array_equal(a.waves.S, b.waves.S)
    np.testing.assert_array_equal(a.waves.V, b.waves.V)


@pytest.mark.parametrize("code", ["v_cmp_ge_u32_e64 s20, -1.0", "v_cmp_ge_u32_e64 v5, v6", "v_cmp_ge_u32 s20, 1",
                                  "v_add_co_ci_u32_e64 v4, v5, v6", "v_sub_co_ci_u32 v4, v5, 1"])  # fmt: skip
def test_vcc_may_not_be_left_out_of_two_words(execute, code):
    """LLVM's assembler refuses these."""
    with pytest.raises(UnknownInstructionError, match="does not implement"):
        execute(code, gpu="gfx1151")
