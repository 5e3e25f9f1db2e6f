"""Texts of Hopper's attention kernels as C++ programs on hopper_model.h, and tensors as its copy engine sees them."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

COMPILER = shutil.which("g++")
OPTIONS = ("-std=c++17", "-shared", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables")
HEADER = Path(__file__).with_name("hopper_model.h")
WARPS = HEADER.with_name("warp_model.h")  #: with what warps do beside wgmma


class ModelError(AssertionError):
    """What the model reports of a launch: an illegal instruction, a wait without an end."""


def damaged(changes: Mapping[str, str], late: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """What gives a kernel's text with something else in place of each of `changes`, which stands there once, and of
    `late`, wherever it stands."""

    def change(text: str) -> str:
        for there, instead in changes.items():
            assert text.count(there) == 1, there
            text = text.replace(there, instead)
        for there, instead in (late or {}).items():
            text = text.replace(there, instead)
        return text

    return change


def without_assembly(text: str) -> str:
    """A CUDA text without the functions that hold assembly: the model has them."""
    kept, at = [], 0
    for function in re.finditer(r"^(?:template <[^\n]*>\s)?__device__ __forceinline__ [^{;]*\{", text, re.MULTILINE):
        depth, end = 1, function.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if "asm" in text[function.start() : end]:
            kept.append(text[at : function.start()])
            at = end
    return "".join([*kept, text[at:]])


def built(text: str, constants: dict[str, Any], launch: str, folder: Path, header: Path = HEADER) -> ctypes.CDLL:
    """A kernel's text with its constants, and `launch`, the C++ function that starts it, as a library in `folder`."""
    text = without_assembly(text)
    text = re.sub(r"struct __align__\(64\) TensorMap.*", "", text)
    text = text.replace("extern __shared__ char memory[];", "char* const memory = arena;")
    text = text.replace("__shared__ Shared storage;", "Shared& storage = *(Shared*)(arena + STATIC_AT);")
    text = text.replace("__shared__ Held held[2];", "Held* const held = (Held*)(arena + STATIC_AT + 8192);")
    assert "asm" not in text
    assert "__shared__" not in text
    lines = [f"#define {key} {value}" for key, value in {"CTAS": 2, **constants}.items()]
    return compiled("\n".join([*lines, f'#include "{header}"', text, launch]), folder)


@cache
def standard_headers(level: str) -> tuple[str, tempfile.TemporaryDirectory]:
    """What the model includes of C++'s library, read once: a quarter of each program's compilation. And its folder."""
    folder = tempfile.TemporaryDirectory()
    header = Path(folder.name, "standard.h")
    header.write_text("\n".join(re.findall(r"^#include <.*>$", HEADER.read_text(), re.MULTILINE)))
    subprocess.run([COMPILER, level, *OPTIONS, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return str(header), folder


def compiled(program: str, folder: Path, level: str = "-Og") -> ctypes.CDLL:
    """A C++ program as a library in `folder`; level: of optimisation."""
    source = folder / "kernel.cpp"
    source.write_text(program)
    library = folder / "kernel.so"
    header, _ = standard_headers(level)
    command = [COMPILER, level, *OPTIONS, "-include", header, "-o", library, source]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[:2000]
    return ctypes.CDLL(str(library))


def tensor_map(x, rows):
    """The model's TensorMap of x [B, H, N, D], with boxes of `rows` rows."""
    words = (ctypes.c_ulonglong * 16)()
    batch, heads, n, d = x.shape
    words[:9] = [x.data_ptr(), d, n, heads, batch, *x.stride()[2::-1], rows]
    return words


def in_own_process(run) -> None:
    """Do what writes nothing but shared memory; what it says where it fails is the error's text."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            os.dup2(said.fileno(), 2)
            failed = 1
            try:
                run()
                failed = 0
            finally:
                os._exit(failed)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        if status:
            raise ModelError(said.read().decode(errors="replace").strip()[-2000:] or f"ended by {status}")
