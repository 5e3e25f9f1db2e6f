"""One turn of a loop as a strip of letters, one per memory access, matrix instruction, wait and barrier."""

from __future__ import annotations

from rich.text import Text

from ..isa.analysis import Loop, waits
from ..isa.listing import Kind

_LETTERS = {
    Kind.BARRIER: ("|", "bold red", "barrier"),
    Kind.GLOBAL_LOAD: ("G", "bold cyan", "global load"),
    Kind.LDS_LOAD: ("L", "blue", "LDS load"),
    Kind.MATRIX: ("W", "bold magenta", "matrix"),
    Kind.WAIT: ("^", "bold yellow", "wait for G"),
    Kind.LDS_STORE: ("S", "green", "LDS store"),
}


def strip(loop: Loop) -> Text:
    """The loop's events in the order of its code."""
    text = Text(overflow="fold")
    for instruction in loop.instructions:
        if instruction.kind not in _LETTERS:
            continue
        # LDS waits stand between almost every two matrix instructions and would hide the order.
        if instruction.kind is Kind.WAIT and "WAIT" not in waits(instruction, loop.target):
            continue
        # RDNA 4 splits a barrier in two; waves are held by the second half.
        if instruction.kind is Kind.BARRIER and "signal" in instruction.mnemonic:
            continue
        letter, style, _ = _LETTERS[instruction.kind]
        text.append(letter, style)
    return text


def legend() -> Text:
    """What the letters of `strip` mean."""
    text = Text()
    for letter, style, meaning in _LETTERS.values():
        text.append(("  " if text else "") + letter, style)
        text.append(f" {meaning}", "dim")
    return text
