"""LLVM IR text to AMDGCN text, in a process of its own: `python -m laneloom.codegen.llvm_ir gfx1151 4 1`.

LLVM aborts its process for IR that it cannot parse (Triton 3.6) or select instructions for (every version).
In a child that is an error message; in the caller it would be the end of the user's session.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

from ..errors import CompileError
from ..gpu import Gpu, get_gpu
from . import versions

_ERROR = re.compile(r"^error: ", re.MULTILINE)


def generate_assembly(text: str, gpu: Gpu, *, num_warps: int, fp_fusion: bool) -> str:
    """The AMDGCN text that LLVM's code generation makes of `text`. Raises CompileError with its message."""
    command = [sys.executable, "-m", __name__, gpu.name, str(num_warps), str(int(fp_fusion))]
    # The child finds the same packages as this process, whatever changed sys.path.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.run(command, input=text.encode(), capture_output=True, env=environment, check=False)
    printed = child.stderr.decode(errors="replace")
    # Of Triton 3.9 on LLVM goes on after an error and leaves out what it cannot generate, a whole function at times.
    if child.returncode or not child.stdout.strip() or _ERROR.search(printed):
        raise CompileError(f"LLVM refused the IR for {gpu.name}: {_reason(printed)}")
    return child.stdout.decode()


def _reason(printed: str) -> str:
    """LLVM's message among what the child printed: before a stack dump or at the end of a traceback."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    for mark in ("LLVM ERROR: ", "error: ", "RuntimeError: "):
        found = [line.partition(mark)[2] for line in lines if mark in line]
        if found:
            return re.sub(r" ?lineno: (\d+)$", r" at line \1", found[0].removeprefix("<unknown>:0:0: "))
    return lines[-1] if lines else "it printed no reason"


def _main(gpu_name: str, num_warps: str, fp_fusion: str) -> None:
    gpu = get_gpu(gpu_name)
    backend: Any = make_backend(GPUTarget("hip", gpu.name, gpu.wave))
    options = backend.parse_options({"num_warps": int(num_warps), "enable_fp_fusion": fp_fusion == "1"})
    # Asking for the assembler registers LLVM's targets, which code generation needs as well.
    versions.assembler()
    asm = backend.make_amdgcn(sys.stdin.read(), {}, options)
    sys.stdout.write(asm)


if __name__ == "__main__":
    _main(*sys.argv[1:])
