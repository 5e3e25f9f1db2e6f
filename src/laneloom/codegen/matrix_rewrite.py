"""Matrix instructions that Triton does not emit, in place of ones that it does and that have the same registers.

RDNA's integer instructions say by a modifier of each operand whether it is signed; Triton sets both. Its iu4
instructions take the registers of iu8 with two values a byte, and bf16 sums lie as fp16 sums do. So a kernel is written
with the instruction that Triton has, on data whose meaning it does not know, and marks itself by a comment:

    ; matrix instructions: iu8 0 1        operands unsigned and signed
    ; matrix instructions: iu4 1 1        bytes are pairs of 4-bit integers
    ; matrix instructions: bf16           operands and sums are bf16

A kernel without the comment passes unchanged. Source: AMD RDNA 3 and RDNA 4 ISA guides, "Wave Matrix Multiply
Accumulate"; VOP3P's NEG field is the sign of integer operands.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext

from ..errors import CompileError
from .versions import rewritten_assembly

_MARK = re.compile(r";\s*matrix instructions: (iu8|iu4|bf16)(?: ([01]) ([01]))?")
_IU8 = re.compile(r"^(\s*)v_wmma_i32_16x16x16_iu8 ([^;\n]*?) neg_lo:\[1,1,0\](.*)$", re.MULTILINE)


def mark(kind: str, first_signed: bool = True, second_signed: bool = True) -> str:
    """The text of the inline assembly that marks a kernel: one scalar in, the same out; signs of the instruction's
    operands.
    """
    signs = "" if kind == "bf16" else f" {int(first_signed)} {int(second_signed)}"
    return f"; matrix instructions: {kind}{signs} $0 $1"


def rewrite(asm: str) -> str:
    """AMDGCN text with the matrix instructions that its mark asks for. Raises CompileError if it has none to change."""
    found = _MARK.search(asm)
    if found is None:
        return asm
    kind, *signed = found.groups()
    if kind == "bf16":
        asm, count = re.subn(r"\bv_wmma_f16_16x16x16_f16\b", "v_wmma_bf16_16x16x16_bf16", asm)
    else:
        signs = f"neg_lo:[{signed[0]},{signed[1]},0]" if "1" in signed else ""
        asm, count = _IU8.subn(lambda line: _integer(line, kind, signs), asm)
    if count == 0:
        raise CompileError(f"the kernel is marked for {kind} matrix instructions and has none to rewrite")
    return asm


def _integer(line: re.Match[str], kind: str, signs: str) -> str:
    indent, operands, rest = line.groups()
    if kind == "iu8":
        return f"{indent}v_wmma_i32_16x16x16_iu8 {operands} {signs}{rest}"
    d, a, b, c = (operand.strip() for operand in operands.split(", "))
    (a_first, a_last), (b_first, _) = (map(int, re.findall(r"\d+", registers)) for registers in (a, b))
    if a_last - a_first == 1:  # RDNA 4: 16 values of 4 bits in two registers, 32 steps of K
        return f"{indent}v_wmma_i32_16x16x32_iu4 {operands} {signs}{rest}"
    # RDNA 3: four registers are the operands of two instructions of 16 steps of K
    lines = [
        f"{indent}v_wmma_i32_16x16x16_iu4 {d}, v[{a_first + i}:{a_first + i + 1}], v[{b_first + i}:{b_first + i + 1}], "
        f"{c if i == 0 else d} {signs}{rest}"
        for i in (0, 2)
    ]
    return "\n".join(lines)


def rewriting(marked: bool) -> AbstractContextManager:
    """While it is on, Triton's AMD backend rewrites what it compiles; does nothing for a kernel that has no mark."""
    return rewritten_assembly(rewrite, __name__) if marked else nullcontext()
