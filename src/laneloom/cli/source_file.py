"""A file of machine code that a command takes: assembly text, or a binary that llvm-objdump turns into it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArgumentError, UnsupportedError

#: text that is no machine code: what it is called, a line that only it has, what to do about it
_OTHER_TEXTS = (
    ("LLVM IR", r"^(?:define|declare)\b[^\n]*@|^target (?:triple|datalayout) =",
     "compile it with `llc -mcpu=GPU` or laneloom.codegen.compile_llvm_ir first"),
    ("MLIR", r"^(?:module\b[^\n]*\{$|#\w+ = #\w+\.|\s*(?:tt|gpu|llvm)\.func\b)", "compile it to assembly first"),
    ("PTX", r"^\s*\.target\s+sm_", "laneloom reads machine code of AMD's GPUs"),
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Assembly, and where it comes from."""

    text: str
    gpu: str | None  #: as asked for, else as the file names it
    elf: bytes | None = None  #: the code object whose disassembly the text is


def read_source(target: str | Path, gpu: str | None = None, kernel: str | None = None) -> Source:
    """The assembly in a file, on stdin for "-", or of a code object, an offload bundle or a program with one inside.

    Of a binary, the other kernels are left out where `kernel` names one. Where Triton's .amdgcn lies beside a binary,
    that is read: it has the lines of the source. Raises ArgumentError, and UnsupportedError as `disassemble`.
    """
    from ..isa.offload_bundle import is_binary
    from ..isa.targets import gpu_of

    try:
        data = sys.stdin.buffer.read() if str(target) == "-" else Path(target).read_bytes()
    except OSError as error:
        raise ArgumentError(f"cannot read {target}: {error.strerror or error}") from None
    if is_binary(data):
        beside = Path(target).with_suffix(".amdgcn")
        if not (str(target) != "-" and beside.is_file()):
            return _disassembled(target, data, gpu, kernel)
        data = beside.read_bytes()
    if b"\0" in data:
        raise ArgumentError(f"{target} is neither assembly nor a code object (ELF, or an offload bundle)")
    text = data.decode("utf-8-sig", errors="replace")  # comments and names of files may be in any encoding
    for name, line, do in _OTHER_TEXTS:
        if re.search(line, text, re.MULTILINE):
            raise ArgumentError(f"{target} is {name}, not AMDGCN assembly: {do}")
    try:
        return Source(text, gpu_of(text, gpu))
    except ArgumentError as error:
        raise ArgumentError(f"{target}: {error}") from None


def _disassembled(target: str | Path, data: bytes, gpu: str | None, kernel: str | None) -> Source:
    from ..isa.disassembly import disassemble

    try:
        found = disassemble(data, gpu, kernel)
    except (ArgumentError, UnsupportedError) as error:
        raise type(error)(f"{target}: {error}") from None
    return Source(found.text, found.gpu.name, found.elf)
