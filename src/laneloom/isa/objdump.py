"""Finds and runs `llvm-objdump`, which turns machine code into text."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ..errors import ArgumentError, UnsupportedError

VARIABLE = "LANELOOM_OBJDUMP"
_ROCM = Path("/opt/rocm/llvm/bin")
_LINE = re.compile(r"^\s+(\S.*?)\s*//\s*([0-9a-fA-F]+):((?: [0-9a-fA-F]{8})+)")

Line = tuple[str, str]  #: an instruction's text, and its words of machine code in hexadecimal


def find_objdumps() -> list[str]:
    """The programs to try, in this order: LANELOOM_OBJDUMP alone where it is set, else PATH, newest first, then ROCm.

    Raises ArgumentError where LANELOOM_OBJDUMP names no program.
    """
    if chosen := os.environ.get(VARIABLE):
        program = shutil.which(chosen)
        if program is None:
            raise ArgumentError(f"{VARIABLE} is {chosen!r}, which is no program")
        return [program]
    return list(dict.fromkeys(_programs(os.environ.get("PATH", ""))))


def _programs(path: str) -> Iterator[str]:
    if plain := shutil.which("llvm-objdump"):
        yield plain
    numbered: list[tuple[int, str]] = []
    for folder in path.split(os.pathsep):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        found = [match for name in names if (match := re.fullmatch(r"llvm-objdump-(\d+)", name))]
        numbered += [(int(match[1]), full) for match in found if (full := shutil.which(match[0]))]
    yield from (full for _, full in sorted(numbered, reverse=True))
    rocm = [_ROCM, *sorted(Path("/opt").glob("rocm-*/llvm/bin"), reverse=True)]
    for folder in rocm:
        if full := shutil.which("llvm-objdump", path=str(folder)):
            yield full


def read_lines(elf: bytes, gpu: str, wave: int, symbols: Sequence[str] | None = None) -> dict[int, Line]:
    """Address -> instruction of a linked code object for `gpu`, or of these symbols of it alone.

    What llvm-objdump cannot decode comes as `.long`. Raises UnsupportedError where no llvm-objdump knows the GPU.
    """
    programs = find_objdumps()
    if not programs:
        raise UnsupportedError(
            f"no llvm-objdump here to disassemble the binary: install LLVM 19 or newer or ROCm, or set {VARIABLE} to it"
        )
    options = ["--disassemble-symbols=" + ",".join(symbols)] if symbols is not None else ["-d"]
    if not gpu.startswith("gfx9"):
        options.append(f"--mattr=+wavefrontsize{wave},-wavefrontsize{96 - wave}")
    complaints = []
    with tempfile.TemporaryDirectory(prefix="laneloom-") as folder:
        file = Path(folder, "code.co")
        file.write_bytes(elf)
        for program in programs:
            done = subprocess.run(
                [program, *options, str(file)], capture_output=True, encoding="utf-8", errors="replace", check=False
            )
            if done.returncode == 0 and (lines := _parse(done.stdout)):
                return lines
            first = next((line for line in done.stderr.splitlines() if line.strip()), "printed no instruction")
            complaints.append(f"{_version(program)}: {first.strip().replace(str(file), 'the code object')}")
    raise UnsupportedError(
        f"no llvm-objdump here disassembles code for {gpu} ({'; '.join(complaints)}): install a newer LLVM or ROCm, "
        f"or set {VARIABLE} to its llvm-objdump"
    )


def _parse(text: str) -> dict[int, Line]:
    found: dict[int, Line] = {}
    for line in text.split("\n"):
        if match := _LINE.match(line):
            found[int(match[2], 16)] = (match[1], match[3].strip())
    return found


@cache
def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False)
    match = re.search(r"LLVM version (\S+)", done.stdout)
    return f"{Path(program).name} {match[1]}" if match else program
