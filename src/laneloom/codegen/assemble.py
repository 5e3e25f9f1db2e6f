"""AMDGCN text and LLVM IR to CodeObjects, by the LLVM that Triton carries: no ROCm, hipcc or clang."""

from __future__ import annotations

import os
import re
import tempfile

from ..errors import ArgumentError, CompileError, UnsupportedError
from ..gpu import Gpu, get_gpu
from ..isa.metadata import select_kernel
from . import cache, versions
from .code_object import CodeObject, from_amdgcn
from .diagnostics import captured_stderr, explain_assembler_errors
from .llvm_ir import generate_assembly

_KERNEL = re.compile(r"^define\b[^(@]*\bamdgpu_kernel\b", re.MULTILINE)  # clang says dso_local, protected
_MADE_FOR = re.compile(r'"target-cpu"="([^"]*)"')


def assemble(
    text: str, gpu: str | Gpu, *, kernel: str | None = None, num_warps: int | None = None
) -> CodeObject:
    """Assemble and link AMDGCN text, with its `.amdhsa_kernel` and `.amdgpu_metadata` blocks, for `gpu`.

    kernel: the symbol that the CodeObject describes; needed where the text holds several.
    num_warps: waves per workgroup; by default the most that the metadata's `.max_flat_workgroup_size` admits.

    Raises CompileError with line number and text of every line that the assembler refuses, ArgumentError for
    text without metadata or without such a kernel, UnsupportedError for a GPU that is not AMD's.
    """
    gpu = _amd_gpu(gpu, "assembles AMDGCN text")
    versions.check_triton()
    key = cache.make_key("assembly", gpu.name, text, kernel, num_warps)
    return cache.fetch(key, lambda: _assemble(text, gpu, kernel, num_warps))


def compile_llvm_ir(text: str, gpu: str | Gpu, *, num_warps: int = 1) -> CodeObject:
    """Compile LLVM IR with one `amdgpu_kernel` function for `gpu`: code generation only, no middle-end
    optimisation.

    num_warps: waves per workgroup; the function's attribute "amdgpu-flat-work-group-size" has to admit them.

    Raises CompileError with LLVM's message, ArgumentError for another number of kernels than one,
    UnsupportedError for a GPU that is not AMD's.
    """
    gpu = _amd_gpu(gpu, "compiles LLVM IR")
    versions.check_triton()
    # "whole": what LLVM left something out of was stored once.
    key = cache.make_key("llvm-ir", "whole", gpu.name, text, num_warps, versions.default_fp_fusion())
    return cache.fetch(key, lambda: _compile_llvm_ir(text, gpu, num_warps))


def _amd_gpu(gpu: str | Gpu, what: str) -> Gpu:
    gpu = get_gpu(gpu)
    if gpu.vendor != "amd":
        raise UnsupportedError(f"laneloom {what} for AMD's GPUs only, not for {gpu.name} ({gpu.family})")
    versions.check_gpu(gpu)
    return gpu


def object_file(text: str, gpu: str | Gpu) -> bytes:
    """The object file that LLVM's assembler makes of AMDGCN text, with or without metadata.

    Raises CompileError with line number and text of every line that it refuses, UnsupportedError for a GPU that is not
    AMD's, or that this Triton's LLVM does not know.
    """
    gpu = _amd_gpu(gpu, "assembles AMDGCN text")
    versions.check_triton()
    return _object_file(text, gpu)


def _assemble(text: str, gpu: Gpu, kernel: str | None, num_warps: int | None) -> CodeObject:
    binary = _link(_object_file(text, gpu), gpu)
    select_kernel(text, kernel)
    return from_amdgcn(
        text, binary, gpu, kernel=kernel, num_warps=num_warps, triton_version=versions.triton_version()
    )


def _object_file(text: str, gpu: Gpu) -> bytes:
    assembler = versions.assembler()
    failure: Exception | None = None
    produced = b""
    with captured_stderr() as printed:
        try:
            produced = assembler(text, gpu.name, _features(text, gpu))
        except (RuntimeError, ValueError) as error:
            failure = error
    refused = explain_assembler_errors(printed[0], text)
    # Before 3.9 a refused line leaves an empty or partial object and no exception.
    if failure is not None or refused:
        raise CompileError(f"{gpu.name} cannot assemble the text: {refused or failure}") from failure
    return produced


def _features(text: str, gpu: Gpu) -> str:
    """LLVM features for the text: it has to be told of wave64 where the GPU's own is wave32."""
    features = [versions.assembler_features(gpu, text)]
    if 64 in gpu.wave_sizes[1:] and re.search(r"^\s*\.amdhsa_wavefront_size32\s+0", text, re.MULTILINE):
        features.append("+wavefrontsize64")
    return ",".join(filter(None, features))


def _link(produced: bytes, gpu: Gpu) -> bytes:
    from triton._C.libtriton import amd  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory(prefix="laneloom-") as folder, captured_stderr() as printed:
        source, target = os.path.join(folder, "kernel.o"), os.path.join(folder, "kernel.hsaco")
        with open(source, "wb") as file:
            file.write(produced)
        try:
            amd.link_hsaco(source, target)
        except RuntimeError as error:
            raise CompileError(f"linking the code object for {gpu.name} failed: {error}") from error
        with open(target, "rb") as file:
            binary = file.read()
    if not binary:
        raise CompileError(f"linking the code object for {gpu.name} failed: {printed[0].strip()}")
    return binary


def _compile_llvm_ir(text: str, gpu: Gpu, num_warps: int) -> CodeObject:
    kernels = len(_KERNEL.findall(text))
    if kernels != 1:
        raise ArgumentError(f"the LLVM IR must define exactly one amdgpu_kernel function, not {kernels}")
    text = _KERNEL.sub("define amdgpu_kernel", text)  # as Triton finds it
    # LLVM makes each function for the GPU that it names.
    if others := sorted({name for name in _MADE_FOR.findall(text) if name != gpu.name}):
        raise ArgumentError(f"the LLVM IR says that it is for {', '.join(others)}, not for {gpu.name} (\"target-cpu\")")
    asm = generate_assembly(text, gpu, num_warps=num_warps, fp_fusion=versions.default_fp_fusion())
    binary = _link(_object_file(asm, gpu), gpu)
    return from_amdgcn(asm, binary, gpu, num_warps=num_warps, triton_version=versions.triton_version())
