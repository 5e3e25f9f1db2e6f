"""Kernels, assembly and LLVM IR become code objects for every GPU of the table, with no GPU present."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from laneloom.codegen import CodeObject, assemble, compile_kernel, versions
from laneloom.codegen.versions import cta_barrier, tma_load, tma_store, wmma_layout
from laneloom.errors import ArgumentError, CompileError, UnknownGpuError, UnsupportedError
from laneloom.gpu import GPUS
from laneloom.isa.analysis import analyze, has_spills

VERSION = versions.parse_version(versions.triton_version())
AMD = [name for name, gpu in GPUS.items() if gpu.vendor == "amd" and gpu.known_since <= VERSION]
WMMA = [name for name in AMD if GPUS[name].matrix_instructions == "wmma"]


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, scale, B: tl.constexpr, MODE: tl.constexpr = "add", dtype: tl.constexpr = None):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + offs, mask=offs < n)
    if MODE == "add":
        x = x * scale + tl.load(y_ptr + offs, mask=offs < n)
    if dtype is not None:
        x = x.to(dtype)
    tl.store(out_ptr + offs, x, mask=offs < n)


ADD: dict[str, Any] = {
    "signature": {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "scale": "fp32"},
    "constants": {"B": 1024},
}


def compile_add(gpu: str = "gfx1151", **changes: Any) -> CodeObject:
    return compile_kernel(add, gpu=gpu, **(ADD | changes))


@gluon.jit
def tile(a_ptr, c_ptr, K, LOAD: gl.constexpr, SHARED: gl.constexpr, MMA: gl.constexpr, KW: gl.constexpr):
    rows = gl.arange(0, 64, gl.SliceLayout(1, LOAD))
    cols = gl.arange(0, 32, gl.SliceLayout(0, LOAD))
    acc = gl.zeros((64, 64), gl.float32, MMA)
    a_lds = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [64, 32], SHARED)
    for k in range(0, K, 32):
        a = gl.load(a_ptr + rows[:, None] * K + k + cols[None, :])
        cta_barrier()  # the former iteration's LDS reads are done
        a_lds.store(a)
        cta_barrier()  # every wave's part is in LDS
        left = a_lds.load(gl.DotOperandLayout(0, MMA, KW))
        right = a_lds.permute([1, 0]).load(gl.DotOperandLayout(1, MMA, KW))
        if MMA.version == 1:
            acc = gl.amd.rdna3.wmma(left, right, acc)
        else:
            acc = gl.amd.rdna4.wmma(left, right, acc)
    out_rows = gl.arange(0, 64, gl.SliceLayout(1, MMA))
    out_cols = gl.arange(0, 64, gl.SliceLayout(0, MMA))
    gl.store(c_ptr + out_rows[:, None] * 64 + out_cols[None, :], acc)


def compile_tile(gpu: str, **changes: Any) -> CodeObject:
    version = GPUS[gpu].wmma_version or 1
    constants = {
        "LOAD": gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]),
        "SHARED": gl.SwizzledSharedLayout(8, 2, 4, [1, 0]),
        "MMA": wmma_layout(version, 2, 2, True),
        "KW": 16 if version == 1 else 8,
    }
    signature = {"a_ptr": "*fp16", "c_ptr": "*fp32", "K": "i32"}
    return compile_kernel(tile, gpu=gpu, signature=signature, constants=constants | changes)


@pytest.mark.parametrize("gpu", AMD)
def test_a_triton_kernel_compiles_for_every_amd_gpu(gpu: str):
    code = compile_add(gpu)
    assert code.kernel == "add"
    assert code.gpu is GPUS[gpu]
    assert code.triton_version == triton.__version__
    assert code.binary.startswith(b"\x7fELF")
    assert re.search(rf"amdgcn_target.*{gpu}\b", code.asm)
    assert code.wave == GPUS[gpu].wave
    assert code.workgroup_size == 4 * code.wave
    assert 0 < code.vgprs <= 64
    assert 0 < code.sgprs <= GPUS[gpu].sgprs_per_wave + 6  # VCC and the like count
    assert (code.spills, code.scratch_bytes, code.lds_bytes) == (0, 0, 0)
    assert code.occupancy == code.gpu.waves_per_simd(code.vgprs)
    assert code.workgroup_processor_mode == (code.wave == 32 and not code.gpu.is_cdna5)  # whose WGPs are not halved
    named = [(a.name, a.offset, a.size) for a in code.arguments[:5]]
    assert named == [("x_ptr", 0, 8), ("y_ptr", 8, 8), ("out_ptr", 16, 8), ("n", 24, 4), ("scale", 28, 4)]
    assert [a.kind for a in code.arguments[:5]] == ["global_buffer"] * 3 + ["by_value"] * 2
    assert all(a.name is None for a in code.arguments[5:])
    assert code.kernarg_bytes >= 32
    stated = re.search(r"codeLenInByte = (\d+)", code.asm)
    assert stated is not None
    assert code.code_bytes == int(stated[1])


def test_an_nvidia_kernel(capfd: pytest.CaptureFixture[str]):
    code = compile_add("sm_90a", options={"num_stages": 2})
    assert capfd.readouterr() == ("", "")
    assert code.binary.startswith(b"\x7fELF")
    assert ".target sm_90a" in code.asm
    assert 8 <= code.vgprs <= 64
    assert (code.spills, code.scratch_bytes, code.lds_bytes, code.arguments) == (0, 0, 0, ())
    assert code.code_bytes > 0
    assert code.occupancy == 16


@triton.jit
def normalize(x_ptr, out_ptr, B: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, B))
    tl.store(out_ptr + tl.arange(0, B), x / tl.sum(x))


@pytest.mark.parametrize("gpu", ["gfx1151", "sm_90a"])
def test_spills_and_lds_are_reported(gpu: str):
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32"}
    small = compile_kernel(normalize, gpu=gpu, signature=signature, constants={"B": 1024}, num_warps=4)
    assert small.spills == 0
    assert 0 < small.lds_bytes < 1024  # the waves exchange their sums
    # 256 values per lane have to outlive the sum, which leaves no register for an address.
    large = compile_kernel(normalize, gpu=gpu, signature=signature, constants={"B": 8192}, num_warps=1)
    assert large.vgpr_spills > 0
    assert large.scratch_bytes > 0
    if gpu != "sm_90a":
        assert has_spills(large.asm)
        assert not has_spills(small.asm)


@pytest.mark.parametrize("gpu", WMMA)
def test_a_gluon_kernel_compiles_for_every_wmma_gpu(gpu: str):
    code = compile_tile(gpu)
    hot = analyze(code.asm).hot
    assert hot is not None
    assert sum(i.mnemonic == "v_wmma_f32_16x16x16_f16" for i in hot.instructions) == 8
    assert code.lds_bytes == 64 * 32 * 2
    assert code.spills == 0
    assert sum("barrier" in i.mnemonic for i in hot.instructions) >= 2


@gluon.jit
def tma_copy(source, target):
    tile = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(arrived, count=1)
    mbarrier.expect(arrived, source.block_type.nbytes)
    tma_load(source, [0, 0], arrived, tile)
    mbarrier.wait(arrived, 0)
    tma_store(target, [0, 0], tile)
    tma.store_wait(0)


def test_tensor_descriptors_reach_a_hopper_kernel():
    layout = gl.NVMMASharedLayout.get_default_for([128, 64], gl.bfloat16)
    kind = f"tensordesc<bf16[128, 64],{layout!r}>"
    code = compile_kernel(tma_copy, gpu="sm_90a", signature={"source": kind, "target": kind}, constants={})
    assert "cp.async.bulk.tensor.2d.shared" in code.asm
    assert code.lds_bytes >= 128 * 64 * 2 + 8


def test_buffer_operations_can_be_refused():
    assert "buffer_load" in compile_add().asm
    plain = compile_add(options={"buffer_ops": False}).asm
    assert "buffer_" not in re.sub(r"buffer_\w*inv|global_buffer", "", plain)
    assert "global_load_b128" in plain


def test_divisibility_decides_the_width():
    assert "load_b128" in compile_add().asm
    assert "load_b128" not in compile_add(attrs=()).asm
    assert "load_b128" not in compile_add(attrs=["n"]).asm


def test_constants_of_every_kind():
    copied = compile_add(constants={"B": 1024, "MODE": "copy"})
    added = compile_add()
    assert copied.asm.count("buffer_load") < added.asm.count("buffer_load")
    halved = compile_add(
        signature=ADD["signature"] | {"out_ptr": "*fp16"}, constants={"B": tl.constexpr(1024), "dtype": tl.float16}
    )
    assert re.search(r"v_cvt_\w*f16|mixlo_f16", halved.asm)
    without_y = {k: v for k, v in ADD["signature"].items() if k != "y_ptr"}
    null = compile_add(signature=without_y, constants={"B": 1024, "MODE": "copy", "y_ptr": None})
    assert [a.name for a in null.arguments[:4]] == ["x_ptr", "out_ptr", "n", "scale"]


def test_the_same_call_gives_an_equal_object_from_the_cache():
    assert compile_add("gfx1100") == compile_add("gfx1100")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"gpu": "gfx9999"}, UnknownGpuError, "gfx"),
        ({"constants": {}}, ArgumentError, "'B' of add is in neither"),
        ({"constants": {"B": 1024, "C": 1}}, ArgumentError, "no argument 'C'"),
        ({"constants": {"B": 1024, "n": 1}}, ArgumentError, "both signature and constants"),
        ({"signature": ADD["signature"] | {"n": "int"}}, ArgumentError, "unknown type 'int'"),
        ({"attrs": ["B"]}, ArgumentError, "attrs names 'B'"),
        ({"options": {"num_stage": 1}}, ArgumentError, "num_stages"),
        ({"options": {"num_warps": 1}}, ArgumentError, "argument of its own"),
        ({"num_warps": 3}, CompileError, "power of 2"),
        ({"constants": {"B": 1000}}, CompileError, r"power of 2 \(line \d of the function: `offs = "),
        ({"constants": {"B": 1024, "dtype": "nonsense"}}, CompileError, "add does not compile for gfx1151: "),
    ],
)
def test_refusals(changes: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        compile_add(**changes)


def test_an_autotuner_is_refused_with_the_way_out():
    tuned = triton.autotune(configs=[triton.Config({"B": 128})], key=["n"])(add)
    with pytest.raises(ArgumentError, match=r"kernel\.fn"):
        compile_kernel(tuned, gpu="gfx1151", **ADD)
    with pytest.raises(ArgumentError, match="not function"):
        compile_kernel(lambda x: x, gpu="gfx1151", signature={}, constants={})


def test_a_layout_of_another_generation_is_refused():
    with pytest.raises(ArgumentError, match=r"MMA is a WMMA layout of version 1, .* not for gfx1201 \(RDNA 4\)"):
        compile_tile("gfx1201", MMA=wmma_layout(1, 2, 2, True))
    with pytest.raises(ArgumentError, match="not for gfx942"):
        compile_tile("gfx942")


HAND_WRITTEN = """
	.amdgcn_target "{target}"
	.text
{bodies}
{descriptors}
	.amdgpu_metadata
---
amdhsa.version: [ 1, 2 ]
amdhsa.kernels:
{metadata}
...
	.end_amdgpu_metadata
"""


def hand_written(*names: str, body: str = "s_endpgm") -> str:
    # The target's spelling differs between LLVM's versions, so a compiled kernel tells it.
    target = re.search(r'amdgcn_target "([^"]+)"', compile_add().asm)
    assert target is not None
    bodies = "".join(
        f"\t.globl {n}\n\t.p2align 8\n\t.type {n},@function\n{n}:\n\t{body}\n.L{n}_end:\n\t.size {n}, .L{n}_end-{n}\n"
        for n in names
    )
    descriptors = "\t.section .rodata\n" + "".join(
        f"\t.p2align 6\n\t.amdhsa_kernel {n}\n\t\t.amdhsa_group_segment_fixed_size 256\n\t\t.amdhsa_next_free_vgpr 3\n"
        f"\t\t.amdhsa_next_free_sgpr 4\n\t\t.amdhsa_wavefront_size32 1\n\t.end_amdhsa_kernel\n"
        for n in names
    )
    metadata = "".join(
        f"  - .name: {n}\n    .symbol: '{n}.kd'\n    .kernarg_segment_size: 16\n    .kernarg_segment_align: 8\n"
        "    .group_segment_fixed_size: 256\n    .private_segment_fixed_size: 0\n    .wavefront_size: 32\n"
        "    .sgpr_count: 4\n    .vgpr_count: 3\n    .max_flat_workgroup_size: 64\n    .args:\n"
        "      - .name: out\n        .offset: 0\n        .size: 8\n        .value_kind: global_buffer\n"
        "      - .offset: 8\n        .size: 4\n        .value_kind: by_value\n"
        for n in names
    )
    return HAND_WRITTEN.format(target=target[1], bodies=bodies, descriptors=descriptors, metadata=metadata.rstrip("\n"))


def test_hand_written_assembly():
    code = assemble(hand_written("nothing"), "gfx1151")
    assert (code.kernel, code.num_warps, code.wave, code.lds_bytes, code.code_bytes) == ("nothing", 2, 32, 256, 4)
    assert (code.vgprs, code.sgprs, code.occupancy, code.kernarg_bytes) == (3, 4, None, 16)
    assert [(a.name, a.offset, a.size, a.kind) for a in code.arguments] == [
        ("out", 0, 8, "global_buffer"),
        (None, 8, 4, "by_value"),
    ]
    with pytest.raises(ArgumentError, match="64 threads"):
        assemble(hand_written("nothing"), "gfx1151", num_warps=4)


def test_one_of_several_kernels_is_named():
    text = hand_written("first", "second")
    with pytest.raises(ArgumentError, match="first, second"):
        assemble(text, "gfx1151")
    with pytest.raises(ArgumentError, match="no kernel 'third'"):
        assemble(text, "gfx1151", kernel="third")
    assert assemble(text, "gfx1151", kernel="second").kernel == "second"


def test_assembling_a_compiled_kernel_again_gives_the_same_binary():
    compiled = compile_tile("gfx1201")
    again = assemble(compiled.asm, "gfx1201")
    assert again.binary == compiled.binary
    assert again.code_bytes == compiled.code_bytes
    assert again.lds_bytes == 0  # Triton allocates LDS at launch: the text does not tell


def test_16_bit_arithmetic_assembles_again():
    half = {name: kind.replace("fp32", "fp16") if kind[0] == "*" else kind for name, kind in ADD["signature"].items()}
    compiled = compile_add("gfx1151", signature=half, constants={"B": 256, "dtype": tl.float16}, attrs=())
    assert assemble(compiled.asm, "gfx1151").binary == compiled.binary


def test_a_wrong_instruction_is_named_with_its_line(capfd: pytest.CaptureFixture[str]):
    text = hand_written("broken", body="v_foo_b32 v0, v1\n\ts_endpgm")
    line = next(i for i, t in enumerate(text.split("\n"), 1) if "v_foo" in t)
    with pytest.raises(CompileError, match=rf"line {line}: `v_foo_b32 v0, v1`: invalid instruction"):
        assemble(text, "gfx1151")
    assert capfd.readouterr() == ("", "")


def test_assembly_is_refused_for_the_wrong_gpu():
    with pytest.raises(CompileError, match=r"line 2: `\.amdgcn_target"):
        assemble(hand_written("nothing"), "gfx1201")
    with pytest.raises(UnsupportedError, match="sm_90a"):
        assemble(hand_written("nothing"), "sm_90a")
    with pytest.raises(ArgumentError, match="amdgpu_metadata"):
        assemble("\ts_endpgm\n", "gfx1151")


@gluon.jit
def check_waves(MMA: gl.constexpr, BASES: gl.constexpr):
    linear: gl.constexpr = gl.to_linear_layout(MMA, [128, 64])
    gl.static_assert(linear.warp_bases == BASES, "the waves lie elsewhere")


@pytest.mark.parametrize(("gpu", "version"), [("gfx1151", 1), ("gfx1201", 2)])
def test_wmma_layout_spreads_the_waves(gpu: str, version: int):
    def check(bases: list[list[int]]) -> None:
        constants = {"MMA": wmma_layout(version, 4, 2, True), "BASES": bases}
        compile_kernel(check_waves, gpu=gpu, signature={}, constants=constants, num_warps=8)

    check([[0, 16], [16, 0], [32, 0]])
    with pytest.raises(CompileError, match="the waves lie elsewhere"):
        check([[16, 0], [32, 0], [0, 16]])
    with pytest.raises(ArgumentError, match="warps_n must be a power of two, not 3"):
        wmma_layout(version, 2, 3, True)


def test_versions():
    assert versions.parse_version("3.6.0+git1a2b") == (3, 6)
    with pytest.raises(UnsupportedError, match=r"3\.5\.1 is installed"):
        versions.check_triton("3.5.1")
    with pytest.warns(UserWarning, match=r"3\.99\.0 is newer"):
        versions.check_triton("3.99.0")
    with pytest.raises(UnsupportedError, match="cannot read"):
        versions.check_triton("nightly")


@gluon.jit
def asm_on_bytes(x_ptr, out_ptr, LAYOUT: gl.constexpr):
    offs = gl.arange(0, 128, LAYOUT)
    x = gl.load(x_ptr + offs)
    y = gl.inline_asm_elementwise("v_mov_b32 $0, $1", "=v,v", [x], dtype=gl.int8, is_pure=True, pack=4)
    gl.store(out_ptr + offs, y)


@pytest.mark.skipif(
    versions.parse_version(triton.__version__) < (3, 9), reason="LLVM ends the process after printing its error"
)
def test_what_llvm_left_out_is_an_error(capfd):
    """LLVM takes no operand of four bytes: it says so on descriptor 2 and leaves an empty kernel."""
    layout = gl.BlockedLayout([4], [32], [1], [0])
    message = "asm_on_bytes does not compile for gfx1151: LLVM left out what it could not generate, because it could "
    with pytest.raises(CompileError, match=message + "not allocate output register for constraint 'v'"):
        compile_kernel(
            asm_on_bytes, gpu="gfx1151", signature={"x_ptr": "*i8", "out_ptr": "*i8"}, constants={"LAYOUT": layout},
            num_warps=1,
        )  # fmt: skip
    assert capfd.readouterr().err == ""
