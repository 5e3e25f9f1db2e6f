"""CUDA C++ to CodeObjects through NVRTC (the extra `cuda`): needs neither nvcc nor a GPU; cached on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from ..errors import CompileError, UnsupportedError
from ..gpu import Gpu, get_gpu
from . import cache
from .code_object import CodeObject, from_cubin


def compile_cuda(
    source: str,
    gpu: str | Gpu,
    *,
    constants: Mapping[str, int | str],
    num_warps: int,
    lds_bytes: int,
    name: str = "kernel.cu",
    include_paths: Sequence[str] = (),
    options: Sequence[str] = (),
) -> CodeObject:
    """Compile a CUDA C++ text with one `extern "C" __global__` function to the machine code of `gpu`.

    constants: preprocessor definitions, name to value.
    num_warps, lds_bytes: the launch's warps per CTA and dynamic shared memory; they describe, NVRTC does not use them.
    name: the source's name in the compiler's messages.
    include_paths: folders searched for headers; their contents are not part of the cache's key.
    options: further options of NVRTC.

    Raises CompileError with NVRTC's log, UnsupportedError without the extra or for a GPU that is not NVIDIA's.
    """
    gpu = get_gpu(gpu)
    if gpu.vendor != "nvidia":
        raise UnsupportedError(f"NVRTC compiles for NVIDIA's GPUs only, not for {gpu.name} ({gpu.family})")
    version = nvrtc_version()
    every_option = [
        f"--gpu-architecture={gpu.name}",
        "--std=c++17",
        "--ptxas-options=-v",
        "-default-device",  # for generic lambdas, which NVRTC 13.0 would take for host code
        *(f"--define-macro={key}={value}" for key, value in constants.items()),
        *(f"--include-path={path}" for path in include_paths),
        *options,
    ]
    key = cache.make_key("cuda", version, source, every_option, num_warps, lds_bytes)
    return cache.fetch(key, lambda: _compile(source, gpu, every_option, name, num_warps, lds_bytes, version))


def nvrtc_version() -> str:
    """The version of NVRTC that is there, such as "13.0". Raises UnsupportedError without the extra."""
    _, major, minor = _bindings().nvrtcVersion()
    return f"{major}.{minor}"


def _bindings() -> Any:
    try:
        bindings = import_module("cuda.bindings.nvrtc")
        bindings.nvrtcVersion()
    except Exception as error:  # pathfinder raises a RuntimeError where the library itself is missing
        raise UnsupportedError("CUDA C++ kernels need NVIDIA's run-time compiler: install laneloom[cuda]") from error
    return bindings


def _compile(
    source: str, gpu: Gpu, options: list[str], name: str, num_warps: int, lds_bytes: int, version: str
) -> CodeObject:
    nvrtc = _bindings()
    program = _check(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, None, None))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
        log = _read(nvrtc, program, "ProgramLog")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(
                f"{name} does not compile for {gpu.name}: {log.decode(errors='replace').strip(chr(0)).strip()}"
            )
        ptx = _read(nvrtc, program, "PTX").rstrip(b"\0").decode()
        cubin = _read(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return from_cubin(
        ptx,
        cubin,
        gpu,
        triton_version=f"none (NVRTC {version})",
        num_warps=num_warps,
        lds_bytes=lds_bytes,
        ptxas_log=log.decode(errors="replace"),
    )


def _read(nvrtc: Any, program: Any, what: str) -> bytes:
    size = _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    buffer = bytes(size)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer


def _check(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC failed: {status.name}")
    return values[0] if values else None
