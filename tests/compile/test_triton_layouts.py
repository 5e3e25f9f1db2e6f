"""The catalogue's layouts against what Triton believes them to be, where Triton can print a layout."""

import re

import pytest
from triton.experimental.gluon import language as gl

from laneloom.codegen import versions
from laneloom.isa import get_layout

pytestmark = pytest.mark.skipif(
    not hasattr(gl.DotOperandLayout, "format_hardware_view"), reason="this Triton prints no hardware view"
)


def triton_view(layout, shape):
    """[register][lane] -> (row, column)."""
    warps = re.split(r"Warp\d+:\n", layout.format_hardware_view(list(shape)))[1:]
    lines = [[line for line in warp.splitlines() if line.strip()] for warp in warps]
    side_by_side = [" ".join(parts) for parts in zip(*lines, strict=True)]
    return [[(int(i), int(j)) for i, j in re.findall(r"\(\s*(\d+),\s*(\d+)\)", line)] for line in side_by_side]


def our_view(layout):
    at = {(32 * p.vgpr + p.bit_lo, p.lane): (e.row, e.col) for e, places in layout for p in places}
    return [[at[start, lane] for lane in range(layout.wave)] for start in sorted({start for start, _ in at})]


def dots(parent, k_width, shape):
    m, n, k = shape
    yield "D", parent, (m, n)
    yield "A", gl.DotOperandLayout(operand_index=0, parent=parent, k_width=k_width), (m, k)
    yield "B", gl.DotOperandLayout(operand_index=1, parent=parent, k_width=k_width), (k, n)


@pytest.mark.parametrize(
    ("gpu", "version", "k_width", "name", "k_order"),
    [
        ("gfx1151", 1, 16, "v_wmma_f32_16x16x16_f16", "calculator"),
        ("gfx1151", 1, 16, "v_wmma_i32_16x16x16_iu8", "calculator"),
        ("gfx1201", 2, 8, "v_wmma_f32_16x16x16_f16", "articles"),
        ("gfx1201", 2, 4, "v_wmma_f32_16x16x16_f16", "calculator"),
        ("gfx1201", 2, 8, "v_wmma_i32_16x16x16_iu8", "calculator"),
    ],
)
def test_wmma(gpu, version, k_width, name, k_order):
    for matrix, layout, shape in dots(versions.wmma_layout(version, 1, 1, False), k_width, (16, 16, 16)):
        assert triton_view(layout, shape) == our_view(get_layout(name, gpu, 32, matrix, k_order=k_order))


@pytest.mark.parametrize(
    ("name", "k", "k_width"),
    [
        ("v_wmma_f32_16x16x4_f32", 4, 2),
        ("v_wmma_f32_16x16x32_f16", 32, 8),
        ("v_wmma_f32_16x16x32_bf16", 32, 8),
        ("v_wmma_i32_16x16x64_iu8", 64, 16),
        ("v_wmma_f32_16x16x64_fp8_bf8", 64, 16),
        ("v_wmma_f32_16x16x128_bf8_fp8", 128, 16),
        ("v_wmma_f32_16x16x128_f8f6f4", 128, 16),
    ],
)
def test_wmma_of_cdna5(name, k, k_width):
    shape = (16, 16, k)
    for matrix, layout, size in dots(versions.wmma_layout(3, 1, 1, False, shape), k_width, shape):
        assert triton_view(layout, size) == our_view(get_layout(name, "gfx1250", 32, matrix))


@pytest.mark.parametrize(
    ("gpu", "version", "shape", "name", "k_width"),
    [
        ("gfx908", 1, (16, 16, 16), "v_mfma_f32_16x16x16f16", 4),
        ("gfx908", 1, (16, 16, 8), "v_mfma_f32_16x16x8bf16", 2),
        ("gfx908", 1, (32, 32, 4), "v_mfma_f32_32x32x4bf16", 2),
        ("gfx908", 1, (32, 32, 8), "v_mfma_i32_32x32x8i8", 4),
        ("gfx90a", 2, (16, 16, 16), "v_mfma_f32_16x16x16f16", 4),
        ("gfx90a", 2, (32, 32, 8), "v_mfma_f32_32x32x8bf16_1k", 4),
        ("gfx90a", 2, (32, 32, 8), "v_mfma_i32_32x32x8i8", 4),
        ("gfx942", 3, (16, 16, 16), "v_mfma_f32_16x16x16_f16", 4),
        ("gfx942", 3, (32, 32, 8), "v_mfma_f32_32x32x8_bf16", 4),
        ("gfx942", 3, (16, 16, 32), "v_mfma_f32_16x16x32_fp8_bf8", 8),
        ("gfx942", 3, (32, 32, 16), "v_mfma_i32_32x32x16_i8", 8),
        ("gfx950", 4, (16, 16, 32), "v_mfma_f32_16x16x32_f16", 8),
        ("gfx950", 4, (32, 32, 16), "v_mfma_f32_32x32x16_bf16", 8),
        ("gfx950", 4, (16, 16, 64), "v_mfma_i32_16x16x64_i8", 16),
        ("gfx950", 4, (16, 16, 128), "v_mfma_f32_16x16x128_f8f6f4", 16),
        ("gfx950", 4, (32, 32, 64), "v_mfma_f32_32x32x64_f8f6f4", 16),
    ],
)
def test_mfma(gpu, version, shape, name, k_width):
    parent = gl.amd.AMDMFMALayout(
        version=version, instr_shape=list(shape), transposed=False, warps_per_cta=[1, 1]
    )
    for matrix, layout, size in dots(parent, k_width, shape):
        assert triton_view(layout, size) == our_view(get_layout(name, gpu, 64, matrix))


@pytest.mark.parametrize(
    ("name", "k", "k_width"),
    [("f32.f16", 16, 2), ("f32.bf16", 16, 2), ("f32.tf32", 8, 1), ("s32.s8", 32, 4), ("f32.e4m3", 32, 4),
     ("f64.f64", 8, 1)],
)  # fmt: skip
def test_mma_sync(name, k, k_width):
    parent = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8])
    for matrix, layout, shape in dots(parent, k_width, (16, 8, k)):
        assert triton_view(layout, shape) == our_view(get_layout(f"mma.m16n8k{k}.{name}", "sm_90a", 32, matrix))


@pytest.mark.parametrize("n", [8, 64, 256])
def test_wgmma(n):
    layout = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, n, 16])
    ours = our_view(get_layout(f"wgmma.m64n{n}k16.f32.f16", "sm_90a", 128, "D"))
    assert triton_view(layout, (64, n)) == ours
