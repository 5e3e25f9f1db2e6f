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
