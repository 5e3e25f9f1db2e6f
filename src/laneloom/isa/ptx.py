"""PTX text as the same list of instructions that AMDGCN text becomes, so that loops, mix and order work for
both.

Kinds on NVIDIA: wgmma and mma are matrix instructions, TMA and cp.async loads are "global to LDS", TMA
stores "LDS to global", mbarrier and wait_group instructions are waits. Source: PTX ISA, chapter "Instruction
Set".
"""

from __future__ import annotations

import re

from .listing import Instruction, Kind, Listing

_RULES: tuple[tuple[re.Pattern[str], Kind], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"wgmma\.mma_async|mma\.sync|tcgen05\.mma", Kind.MATRIX),
        (r"wgmma\.wait_group|cp\.async(\.bulk)?\.wait|mbarrier\.(try_wait|test_wait)", Kind.WAIT),
        (r"cp\.async\.bulk\.(tensor\.\dd\.)?global\.shared", Kind.LDS_TO_GLOBAL),
        (r"cp\.async\.(bulk\.(tensor\.\dd\.)?shared|ca|cg)", Kind.GLOBAL_TO_LDS),
        (r"(bar|barrier)\.|mbarrier\.arrive", Kind.BARRIER),
        (r"(atom|red)\.", Kind.ATOMIC),
        (r"ld\.(weak\.|relaxed\.|acquire\.|volatile\.)?(cta\.|gpu\.|sys\.)?global", Kind.GLOBAL_LOAD),
        (r"st\.(weak\.|relaxed\.|release\.|volatile\.)?(cta\.|gpu\.|sys\.)?global", Kind.GLOBAL_STORE),
        (r"ld\.(volatile\.)?shared|ldmatrix", Kind.LDS_LOAD),
        (r"st\.(volatile\.)?shared|stmatrix", Kind.LDS_STORE),
        (r"(ld|st)\.local", Kind.SCRATCH),
        (r"ld\.param", Kind.SCALAR_LOAD),
        (r"bra", Kind.BRANCH),
        (
            r"ret|exit|fence|membar|mbarrier|cp\.async|wgmma|griddep|setmaxnreg|prefetch|pragma|elect",
            Kind.OTHER,
        ),
    )
)


def parse_ptx(ptx: str) -> Listing:
    """The instructions of the PTX text's entry, of inline assembly too."""
    entry = re.search(r"\.visible\s+\.entry\s+([\w$.]+)", ptx)
    processor = re.search(r"^\s*\.target\s+(\w+)", ptx, re.MULTILINE)
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    start = ptx.count("\n", 0, entry.end()) if entry else 0
    for number, line in enumerate(ptx.split("\n")[start:], start + 1):
        text = line.split("//")[0].strip().strip("{}").strip()
        if label := re.match(r"([$\w]+):\s*", text):
            labels[label[1]] = len(instructions)
            text = text[label.end() :]
        if text.startswith((".section", ".file")):
            break
        statements = [part.strip() for part in text.split(";")]
        instructions += [_instruction(s, number) for s in statements if s and s[0] not in ".(){}"]
    return Listing(entry[1] if entry else None, processor[1] if processor else None, tuple(instructions), labels)


def _instruction(text: str, line: int) -> Instruction:
    words = text.split(None, 1) if not text.startswith("@") else text.split(None, 2)[1:]
    mnemonic, operands = words[0] if words else text, words[1] if len(words) > 1 else ""
    kind = next((kind for pattern, kind in _RULES if pattern.match(mnemonic)), Kind.VALU)
    width = 0
    if kind in (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.LDS_LOAD, Kind.LDS_STORE, Kind.SCRATCH):
        element = re.search(r"\.[busf](\d+)$", mnemonic)
        vector = re.search(r"\.[vx](\d)\b", mnemonic)
        # A matrix load or store moves one 32-bit register per lane and 8x8 matrix.
        bits = 32 if "matrix" in mnemonic else int(element[1]) if element else 0
        width = bits // 8 * (int(vector[1]) if vector else 1)
    if re.match(r"cp\.async\.c[ag]", mnemonic) and (copied := re.search(r"\],\s*(0x[0-9a-f]+|\d+)", operands)):
        width = int(copied[1], 0)
    target = operands.split(",")[-1].strip() if kind is Kind.BRANCH else None
    return Instruction(line, " ".join(text.split()), mnemonic, operands, kind, width, 1, target)
