"""What the metadata says, how many waves fit, and how a kernel is shown."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from rich.console import Console

from laneloom.errors import ArgumentError
from laneloom.gpu import Gpu, get_gpu
from laneloom.isa.analysis import has_spills
from laneloom.isa.metadata import parse_metadata, select_kernel
from laneloom.isa.occupancy import occupancy
from laneloom.isa.render import render, to_dict

G = "global_load_b128 v[0:3], v[8:9], off"
L = "ds_load_b128 v[4:7], v10"
S = "ds_store_b128 v11, v[0:3]"
W = "v_wmma_f32_16x16x16_f16 v[16:23], v[0:7], v[8:15], v[16:23]"

METADATA = """
first:
	s_endpgm
.Lfunc_end0:
second:
	scratch_load_b32 v0, off, s32
	s_endpgm
.Lfunc_end1:
	.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .address_space:  global
        .name:           out
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .offset:         8
        .size:           4
        .value_kind:     by_value
    .group_segment_fixed_size: 0x100
    .kernarg_segment_size: 16
    .max_flat_workgroup_size: 128
    .name:           first
    .reqd_workgroup_size:
      - 128
      - 1
      - 1
    .sgpr_count:     10
    .uses_dynamic_stack: false
    .vgpr_count:     20
    .wavefront_size: 32
    .workgroup_processor_mode: 1
  - .name:           'second'
    .args: []
    .vgpr_spill_count: 3
    .private_segment_fixed_size: 16
    .language_version: [ 2, 0 ]
amdhsa.target:   amdgcn-amd-amdhsa--gfx1151
...
	.end_amdgpu_metadata
"""


def test_metadata():
    first, second = parse_metadata(METADATA)
    assert (first.name, first.vgprs, first.sgprs, first.lds_bytes, first.wave) == ("first", 20, 10, 256, 32)
    assert first.max_workgroup_size == 128
    assert first.workgroup_processor_mode
    assert [(a.name, a.offset, a.size, a.kind) for a in first.arguments] == [
        ("out", 0, 8, "global_buffer"),
        (None, 8, 4, "by_value"),
    ]
    assert (second.name, second.vgpr_spills, second.scratch_bytes, second.arguments) == ("second", 3, 16, ())
    assert parse_metadata("s_endpgm") == ()
    assert select_kernel(METADATA, "second") == second
    with pytest.raises(ArgumentError, match="first, second"):
        select_kernel(METADATA)
    with pytest.raises(ArgumentError, match="no kernel 'third'"):
        select_kernel(METADATA, "third")
    with pytest.raises(ArgumentError, match="amdgpu_metadata"):
        select_kernel("s_endpgm")


def test_spills():
    assert not has_spills(METADATA, "first")
    assert has_spills(METADATA, "second")
    assert has_spills("\tscratch_load_b32 v0, off, s32\n\ts_endpgm\n")


@pytest.mark.parametrize(
    ("gpu", "registers", "lds", "warps", "wgp", "expected"),
    [
        ("gfx1151", 16, 0, 4, True, (16.0, "wave slots", None, 16)),
        ("gfx1151", 6, 32768, 4, True, (4.0, "LDS", 4.0, 4)),
        ("gfx1151", 3, 32768, 4, True, (3.0, "registers", 4.0, 3)),
        ("gfx1151", 6, 65536, 4, False, (2.0, "LDS", 2.0, 1)),
        ("gfx942", 8, 32768, 4, False, (2.0, "LDS", 2.0, 2)),
        ("gfx942", 1, 0, 8, False, (0.0, "registers", None, 0)),
        ("gfx1250", 16, 6145, 1, False, (10.0, "LDS", 10.0, 40)),
        ("sm_90a", 16, 100 * 1024, 4, False, (2.0, "LDS", 2.0, 2)),
    ],
)
def test_occupancy(gpu: str, registers: int, lds: int, warps: int, wgp: bool, expected: tuple):
    found = occupancy(
        get_gpu(gpu), by_registers=registers, lds_bytes=lds, num_warps=warps, workgroup_processor_mode=wgp
    )
    assert (found.waves_per_simd, found.limiter, found.by_lds, found.workgroups) == expected


@pytest.mark.parametrize(
    ("gpu", "of_32", "of_64"),
    [
        ("gfx1100", {96: 16, 100: 12, 128: 10, 200: 7, 255: 5}, {48: 16, 60: 12, 64: 10, 96: 8, 128: 5, 255: 2}),
        ("gfx1102", {60: 16, 72: 12, 128: 8, 255: 4}, {32: 16, 48: 10, 72: 7, 84: 5, 150: 3, 255: 2}),
        ("gfx1201", {96: 16, 127: 10, 191: 8}, {60: 12, 72: 10, 100: 7, 168: 4, 200: 3}),
    ],
)
def test_registers_of_waves_of_both_sizes(gpu: str, of_32: dict[int, int], of_64: dict[int, int]):
    """As LLVM 19 prints "Occupancy" of kernels with so many registers."""
    for lanes, known in ((32, of_32), (64, of_64)):
        assert {n: get_gpu(gpu).waves_per_simd(n, lanes) for n in known} == known
    assert get_gpu(gpu).waves_per_simd(200) == get_gpu(gpu).waves_per_simd(200, 32)
    assert get_gpu("gfx942").waves_per_simd(128, 64) == get_gpu("gfx942").waves_per_simd(128) == 4


@dataclass(frozen=True)
class Kernel:
    """What `render` needs of a CodeObject."""

    asm: str
    gpu: Gpu = get_gpu("gfx1151")
    kernel: str = "matmul"
    vgprs: int = 215
    sgprs: int = 30
    vgpr_spills: int = 0
    sgpr_spills: int = 0
    scratch_bytes: int = 0
    lds_bytes: int = 32768
    occupancy: int | None = 6
    code_bytes: int = 1000
    num_warps: int = 4
    wave: int = 32
    triton_version: str = "3.9.0"
    workgroup_processor_mode: bool = True


def kernel_text(body: str) -> str:
    metadata = METADATA[METADATA.index("\t.amdgpu_metadata") :].replace("first", "matmul")
    return f'\t.amdgcn_target "amdgcn-amd-amdhsa--gfx1151"\nmatmul:\n{body}\ts_endpgm\n.Lfunc_end0:\n{metadata}'


def test_rendering_and_json():
    body = "".join(f"\t{i}\n" for i in ("s_barrier", G, L, W, W, "s_waitcnt vmcnt(0)", S))
    code = Kernel(kernel_text(f"\ts_nop 0\n.LBB0_1:\n{body}\ts_cbranch_scc1 .LBB0_1\n"))
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render(code))
    page = capture.get()
    for shown in (
        "gfx1151", "215 of 256", "32,768 of 65,536 B", "4 waves per SIMD", "limited by LDS", "BAR G L W2 WAIT S",
        "2 x v_wmma_f32_16x16x16_f16", "1 x 16 B", "during at least 100% of an iteration's", "┃   " + W,
    ):  # fmt: skip
        assert shown in page
    assert "┃   s_nop" not in page
    assert "┃   s_endpgm" not in page
    shown = json.loads(json.dumps(to_dict(code)))
    assert shown["hot_loop"]["order"] == "BAR G L W2 WAIT S"
    assert shown["hot_loop"]["mix"]["matrix"] == {"v_wmma_f32_16x16x16_f16": 2}
    assert shown["occupancy"]["limiter"] == "LDS"
    assert len(shown["listing"]) == shown["mix"]["instructions"] == 10
    assert "listing" not in to_dict(code, listing=False)


def test_a_kernel_without_a_loop_is_rendered():
    code = Kernel(kernel_text(""), occupancy=None)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render(code))
    assert "The kernel has no loop." in capture.get()
    assert to_dict(code)["hot_loop"] is None
    assert to_dict(code)["occupancy"]["by_registers"] == get_gpu("gfx1151").waves_per_simd(215)
