"""Which half of a register an instruction of 16 bits means, where llvm-objdump leaves it out.

LLVM 19 and 20 know halves of registers in a part of these instructions. Of the others they print registers of 8 bits,
though the highest bit chooses the upper half in formats of one word, and leave out op_sel in those of two.

Source: AMD RDNA 3 and RDNA 4 ISA guides, "16-bit Math and VGPRs" and "Microcode Formats" (VOP3).
"""

from __future__ import annotations

import re

_UPPER = re.compile(r"v(\d+)/\*Invalid register, operand has '\w+_Lo128' register class\*/")
_SECOND_RESULT = re.compile(r"_co_|div_scale|mad_[ui]64")  # a scalar register stands where others have op_sel
_VOP3 = 0b110101


def with_halves(text: str, words: str) -> str:
    """The text of an instruction with every half that its machine code chooses."""
    if "/*" in text:
        text = _UPPER.sub(lambda match: f"v{int(match[1]) - 128}.h", text)
    if not words.startswith("D") or " " not in words or "op_sel" in text:
        return text
    head = int(words[:8], 16)
    chosen = head >> 11 & 15
    if head >> 26 != _VOP3 or not chosen or not text.startswith("v_") or _SECOND_RESULT.search(text):
        return text
    name, _, rest = text.partition(" ")
    sources = len(rest.split(",")) - (not name.startswith("v_cmpx")) - name.startswith("v_cndmask")
    bits = [chosen >> k & 1 for k in (*range(sources), 3)]
    return f"{text} op_sel:[{','.join(map(str, bits))}]"
