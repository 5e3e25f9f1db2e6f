"""Kernels that clang compiles here for AMD's GPUs, and their code objects in the emulator."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.isa.disassembly import disassemble
from laneloom.isa.metadata import select_kernel

GPUS = ("gfx1100", "gfx1151", "gfx1201", "gfx90a", "gfx942")
_C = ["-x", "c", "-w", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"]


@cache
def clang() -> str | None:
    """A clang that knows AMD's GPUs; LANELOOM_CLANG names the first to try."""
    names = [os.environ.get("LANELOOM_CLANG", "clang"), "/opt/rocm/llvm/bin/clang"]
    for name in [*names, *(f"clang-{n}" for n in range(30, 16, -1))]:
        if program := shutil.which(name):
            done = subprocess.run([program, "-print-targets"], capture_output=True, text=True, check=False)
            if "amdgcn" in done.stdout:
                return program
    return None


@cache
def _why_not() -> str:
    if not clang():
        return "no clang for AMD's GPUs here (LANELOOM_CLANG)"
    try:
        for gpu in GPUS:
            disassemble(compiled("__attribute__((amdgpu_kernel)) void k(void) {}", gpu, "-O1"))
    except (ArgumentError, UnsupportedError) as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"{clang()} compiles nothing for AMD's GPUs here: {error.stderr.strip().splitlines()[0]}"
    return ""


def need_clang() -> None:
    """Skip where nothing can be compiled for AMD's GPUs, or what is compiled cannot be read."""
    if reason := _why_not():
        pytest.skip(reason)


def call_clang(text: str, *options: str) -> None:
    """Compile C."""
    program = clang()
    assert program
    subprocess.run([program, *_C, *options, "-"], input=text, text=True, check=True, capture_output=True)


def compiled(text: str, gpu: str, *options: str) -> bytes:
    """The code object of a C program."""
    with tempfile.TemporaryDirectory(prefix="laneloom-") as folder:
        path = os.path.join(folder, "code.co")
        call_clang(text, "-target", "amdgcn-amd-amdhsa", "-nogpulib", f"-mcpu={gpu}", *options, "-o", path)
        with open(path, "rb") as file:
            return file.read()


def llvm_ir(text: str, gpu: str, *options: str) -> str:
    """A C program as LLVM IR, optimized for a GPU that clang knows, without that GPU's name."""
    with tempfile.TemporaryDirectory(prefix="laneloom-") as folder:
        path = os.path.join(folder, "code.ll")
        target = ("-target", "amdgcn-amd-amdhsa", "-nogpulib", f"-mcpu={gpu}")
        call_clang(text, *target, "-S", "-emit-llvm", *options, "-o", path)
        with open(path, encoding="utf-8") as file:
            return re.sub(r'"target-(cpu|features)"="[^"]*"', "", file.read())


def run_code_object(binary: bytes, arguments: Sequence[np.ndarray | bytes], **options) -> None:
    """Run the one kernel of a code object; `options` as for `run_assembly`."""
    code = disassemble(binary)
    run_assembly(code.text, code.gpu, arguments, elf=code.elf, **options)


def run_assembly(
    text: str, gpu: str, arguments: Sequence[np.ndarray | bytes], *, elf: bytes | None = None, grid: int = 1,
    block: int = 64, strict: bool = False,
) -> None:  # fmt: skip
    """Run the one kernel of a text; arrays are passed by address, bytes by value."""
    program = Program(text, gpu, strict=strict, elf=elf)
    described = select_kernel(text)
    slots = [a for a in described.arguments if not a.kind.startswith("hidden_")]
    packed, regions = bytearray(described.kernarg_bytes), []
    for k, (slot, value) in enumerate(zip(slots, arguments, strict=True)):
        if isinstance(value, np.ndarray):
            regions.append(Region(f"argument {k}", value.ctypes.data, value.nbytes, value))
            value = struct.pack("<Q", value.ctypes.data)
        packed[slot.offset : slot.offset + len(value)] = value
    launch(program, [grid], bytes(packed), workgroup_size=block, regions=regions)
