"""The machine code of an NVIDIA kernel as text, for tests of what ptxas made of it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import triton.backends.nvidia as nvidia

from laneloom.codegen import CodeObject


def disassemble(code: CodeObject) -> str:
    """nvdisasm's listing."""
    tool = Path(nvidia.__file__).parent / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.binary)
        file.flush()
        return subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout


def listing_of(code: CodeObject) -> list[str]:
    """Instructions of the machine code, in its order."""
    return [
        " ".join(line.split())
        for line in re.findall(r"\*/\s+((?:@!?U?P\d+\s+)?[A-Z][^;]*);", disassemble(code))
    ]


def sass_of(code: CodeObject) -> list[str]:
    """Their mnemonics."""
    return [re.sub(r"^@!?U?P\d+ ", "", line).split()[0] for line in listing_of(code)]


def loops_of(code: CodeObject) -> list[list[str]]:
    """Instructions of every loop, whose last one branches back to the first; the shortest loop first."""
    lines, labels = [], {}
    for line in disassemble(code).splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(lines)
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            lines.append(found[1])
    loops = []
    for end, line in enumerate(lines):
        back = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
        if back and labels.get(back[1], end + 1) <= end:
            loops.append(lines[labels[back[1]] : end + 1])
    return sorted(loops, key=len)
