"""Finds and runs `llvm-objdump`, which turns machine code into text."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

from ..errors import ArgumentError, UnsupportedError
from .halves import with_halves
from .unused_fields import reread

VARIABLE = "LANELOOM_OBJDUMP"
_ROCM = Path("/opt/rocm/llvm/bin")
_LINE = re.compile(r"^\s+(\S.*?)\s*//\s*([0-9a-fA-F]+):((?: [0-9a-fA-F]{8})+)")

Line = tuple[str, str]  #: an instruction's text, and its words of machine code in hexadecimal
Range = tuple[int, int]  #: first address, one past the last


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


def read_lines(elf: bytes, gpu: str, wave: int, ranges: Sequence[Range] | None = None) -> dict[int, Line]:
    """Address -> instruction of a linked code object for `gpu`, or of these ranges of it alone.

    What none here can decode comes as `.long`. Raises UnsupportedError where no llvm-objdump knows the GPU.
    """
    programs = find_objdumps()
    if not programs:
        raise UnsupportedError(
            f"no llvm-objdump here to disassemble the binary: install LLVM 19 or newer or ROCm, or set {VARIABLE} to it"
        )
    options = ["-d"]
    if not gpu.startswith("gfx9"):
        # With real-true16 the halves of registers are told as the machine takes them, whatever the compiler was told.
        options.append(f"--mattr=+wavefrontsize{wave},-wavefrontsize{96 - wave},+real-true16")
    complaints = []
    best: dict[int, Line] = {}
    with tempfile.TemporaryDirectory(prefix="laneloom-") as folder:
        file = Path(folder, "code.co")
        # Of gfx90a's scalar loads LLVM 14 leaves out the register that a constant offset is added to.
        for program in sorted(programs, key=_release, reverse=True):
            decode = partial(_decode, program, options, file, ranges)
            lines, complaint = decode(elf)
            if not lines:
                complaints.append(f"{_version(program)}: {complaint}")
                continue
            if not gpu.startswith("gfx9") and _undecodable(lines):
                lines = reread(elf, lines, lambda code, decode=decode: decode(code)[0])
            if not best or _undecodable(lines) < _undecodable(best):
                best = lines
            if not _undecodable(best):
                break
    if best:
        return best
    raise UnsupportedError(
        f"no llvm-objdump here disassembles code for {gpu} ({'; '.join(complaints)}): install a newer LLVM or ROCm, "
        f"or set {VARIABLE} to its llvm-objdump"
    )


def _decode(
    program: str, options: Sequence[str], file: Path, ranges: Sequence[Range] | None, elf: bytes
) -> tuple[dict[int, Line], str]:
    """What the program makes of a code object, and its complaint where that is nothing."""
    file.write_bytes(elf)
    lines, complaint = {}, "printed no instruction"
    # By addresses, not by symbols: at a symbol inside a function, as assembly may have, the latter would stop.
    for part in [(f"--start-address={start}", f"--stop-address={end}") for start, end in ranges or ()] or [()]:
        done = subprocess.run(
            [program, *options, *part, str(file)], capture_output=True, encoding="utf-8", errors="replace", check=False
        )
        lines |= {} if done.returncode else _parse(done.stdout)
        complaint = next((line for line in done.stderr.splitlines() if line.strip()), complaint)
    return lines, complaint.strip().replace(str(file), "the code object")


def _undecodable(lines: dict[int, Line]) -> int:
    return sum(text.startswith(".") for text, _ in lines.values())


def _parse(text: str) -> dict[int, Line]:
    found: dict[int, Line] = {}
    for line in text.split("\n"):
        if match := _LINE.match(line):
            words = match[3].strip()
            found[int(match[2], 16)] = (with_halves(match[1], words), words)
    return found


def _release(program: str) -> int:
    match = re.search(r" (\d+)", _version(program))
    return int(match[1]) if match else 0


@cache
def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False)
    match = re.search(r"LLVM version (\S+)", done.stdout)
    return f"{Path(program).name} {match[1]}" if match else program
