"""What constants in the text of an instruction stand for, by the operand's type."""

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("gpu", "code", "want"),
    [
        ("gfx1201", "s_mov_b64 s[0:1], -100", 0xFFFFFF9C),
        ("gfx942", "s_and_b64 s[0:1], -1, 0xffffffffffffff9c", 0xFFFFFF9C),
        ("gfx1151", "s_ashr_i64 s[0:1], 0x80000000, 4", 0xFFFFFFFFF8000000),
        ("gfx1201", "s_lshl_b64 s[0:1], 0x80000000, 4", 0x800000000),
        ("gfx1250", "s_mov_b64 s[0:1], -100", 0xFFFFFFFFFFFFFF9C),  # which has 64 bits there
        ("gfx1250", "s_mov_b64 s[0:1], 0xffffffff", 0xFFFFFFFF),
    ],
)
def test_literals_of_64_bits(execute, gpu, code, want):
    """32 bits, with the sign where the operand is signed."""
    lanes = 64 if gpu == "gfx942" else 32
    assert int(execute(code, gpu=gpu, lanes=lanes).scalar(0, np.uint64)[0]) == want


@pytest.mark.parametrize(
    ("gpu", "code", "want"),
    [
        ("gfx1201", "v_add_f64 v[0:1], 0, -100", 0xFFFFFF9C00000000),
        ("gfx1201", "v_add_f64 v[0:1], 0, 100.1", 0x4059066600000000),
        ("gfx1250", "v_mul_f64 v[0:1], 100.1, v[2:3]", 0x4059066666666666),
        ("gfx1250", "v_mul_f64 v[0:1], v[2:3], 100.1", 0x4059066600000000),
        ("gfx1250", "v_add_nc_u64 v[0:1], -100, v[4:5]", 0xFFFFFFFFFFFFFF9C),
        ("gfx1250", "v_add_nc_u64 v[0:1], v[4:5], -100", 0xFFFFFF9C),
    ],
)
def test_literals_of_vector_instructions(execute, gpu, code, want):
    """A double's is its upper half; CDNA 5 has 8 bytes of constant behind instructions of one word."""
    got = execute(code, gpu=gpu, v={2: np.ones(32), 4: np.zeros(32, np.uint64)}).vector(0, np.uint64)
    assert int(got[0]) == want


def test_a_flag_as_a_source_of_a_packed_instruction(execute):
    ones = np.full(32, 0x00010001, np.uint32)
    for scc in (0, 1):
        got = execute("v_pk_add_u16 v0, v1, src_scc", v={1: ones}, scc=bool(scc)).vector(0, np.uint32)
        assert (got == 0x00010001 + scc).all()


def test_more_bits_of_op_sel_than_sources(execute):
    """LLVM takes them."""
    x = np.full(32, 0x00070003, np.uint32)
    for bits in ("[0,1]", "[0,1,1]", "[0,1,1,1]"):
        assert (execute(f"v_pk_add_u16 v0, v1, v1 op_sel:{bits}", v={1: x}).vector(0, np.uint32) == 0x000E000A).all()


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("s_mov_b32 s0, (1<<4)|3", 19), ("s_mov_b32 s0, ~5", 0xFFFFFFFA), ("s_mov_b32 s0, !0", 1),
        ("s_mov_b32 s0, 017", 15), ("s_mov_b32 s0, 0x1.8p1", 0x40400000), ("s_mov_b32 s0, -0x1p0", 0xBF800000),
        ("s_mov_b32 s0, - 1.0", 0xBF800000), ("s_mov_b32 s0, - 7", 0xFFFFFFF9),
        ("s_mov_b64 [s2,s3], 5\ns_mov_b64 s[0:1], [s2, s3]", 5),
        ("s_getreg_b32 s0, 0x1901", 0xF),  # 4 bits from bit 4 of MODE
    ],
)  # fmt: skip
def test_other_spellings(execute, code, want):
    """As LLVM's assembler reads them."""
    assert int(execute(code).scalar(0, np.uint32)[0]) == want


@pytest.mark.parametrize(
    ("gpu", "code", "want"),
    [
        # sources of f32 or of f16: 16 bits, inline where these are
        ("gfx1201", "v_fma_mix_f32 v0, 0, 0, 0x3c00", 0x3F800000), ("gfx1151", "v_fma_mix_f32 v0, 0, 0, 1.5", 0x3E00),
        ("gfx1201", "v_fma_mix_f32 v0, 0, 0, 1.0001", 0x3F800000), ("gfx1201", "v_fma_mix_f32 v0, 0, 0, -100", 0xFF9C),
        ("gfx1201", "v_fma_mix_f32 v0, 0, 0, 0xfff5", 0xFFFFFFF5), ("gfx942", "v_fma_mix_f32 v0, 0, 0, -5", 0xFFFFFFFB),
        ("gfx1201", "v_fma_mix_f32 v0, 0, 0, 1.5 op_sel_hi:[0,0,1]", 0x3FC00000),
        ("gfx1250", "v_fma_mix_f32_bf16 v0, 0, 0, 0.1", 0x3DCD),
        ("gfx1250", "v_fma_mix_f32_bf16 v0, 0, 0, 0x3e22", 0x3E22F983),
        # integers of 16 bits: the lower half of FP32, literal or inline
        ("gfx1201", "v_mad_u32_u16 v0, 1, -1.5, 0", 0), ("gfx1201", "v_mad_u32_u16 v0, 1, 0.1, 0", 0xCCCD),
        ("gfx1151", "v_mad_u32_u16 v0, 1, 1.0, 0", 0), ("gfx1201", "v_mad_u32_u16 v0, 1, 0.15915494, 0", 0xF983),
        ("gfx1201", "v_ldexp_f16 v0, 0x3c00, 0.1\nv_cvt_f32_f16 v0, v0", 0x7F800000),  # by 0x2E66: FP16
        # bf16: to nearest even, 1/(2 pi) cut off
        ("gfx1250", "v_cvt_f32_bf16 v0, 0.1", 0x3DCD0000), ("gfx1250", "v_cvt_f32_bf16 v0, 0.15915494", 0x3E220000),
    ],
)  # fmt: skip
def test_constants_of_16_bits(execute, gpu, code, want):
    """As LLVM's assembler encodes them."""
    assert execute(code, gpu=gpu, lanes=64 if gpu == "gfx942" else 32).vector(0, np.uint32)[0] == want


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("s_trunc_f16 s0, 3.0", 0), ("s_trunc_f16 s0, 2.0", 0x4000), ("s_trunc_f16 s0, 0x4200", 0x4200),
        ("s_cvt_f32_f16 s0, 0.1", 0xC199A000), ("s_add_f16 s0, 0, 3.0", 0x4200),
        ("s_cmp_eq_f16 0, 3.0\ns_cselect_b32 s0, 1, 0", 1),
    ],
)  # fmt: skip
def test_floats_of_scalar_half_precision(execute, code, want):
    """LLVM's assembler writes 32 bits where there is one source or no result, of which 16 count."""
    assert execute(code, gpu="gfx1201").scalar(0)[0] == want


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx1151", "gfx1201"])
@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("v_mad_u16 v0, 1, 5, 0 op_sel:[0,1,0,0]", 0), ("v_mad_u16 v0, 1, -5, 0 op_sel:[0,1,0,0]", 0xFFFF),
        ("v_mad_u16 v0, 1, 1.0, 0 op_sel:[0,1,0,0]", 0x3F80), ("v_fma_f16 v0, 0, 0, 1.0 op_sel:[0,0,1,0]", 0),
        ("v_fma_f16 v0, 0, 0, 1.0 op_sel:[1,1,0,0]", 0x3C00),
    ],
)  # fmt: skip
def test_halves_of_constants(execute, gpu, code, want):
    """A constant has 32 bits, as an SGPR has, of which op_sel picks the upper ones."""
    got = execute(code, gpu=gpu, lanes=64 if gpu == "gfx90a" else 32).vector(0, np.uint32)
    assert got[0] == 0xA5A50000 | want
