"""A matrix instruction as one self-contained HTML page: every matrix beside its registers, for each wave and op_sel.

The page holds the layouts' digits, not their places: its script counts them out as layouts.py does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..gpu import Gpu, get_gpu
from .catalogue import GENERATIONS, MatrixInstruction, find_instruction
from .layout_digits import index_sets
from .layout_text import describe, formulas, type_text
from .layouts import AXES, Layout, get_layout


def pseudo_code(layout: Layout) -> str:
    """A correct load (A, B, C, K) or store (D) of the operand, one element a slot; / rounds down."""
    slot_text, _, back = formulas(layout)
    where = slot_text.partition("; ")[2]
    row, col = AXES[layout.matrix]
    at = dict(part.split(" = ", 1) for part in back.split("; "))
    slots = 1
    for digit in layout.slots:
        slots *= digit.radix
    name = layout.matrix
    block = f"[b = {at['b']}]" if "b" in at else ""
    element = f"{name}{block}[{row} = {at[row]}][{col} = {at[col]}]"
    slot = f"{name.lower()}.slot[slot]"
    if name == "D":
        move = f"{element} = {slot}"
    elif name == "A" and layout.shared > 1:
        move = f"{slot} = the two of {element} that are kept"
    elif name == "K":
        move = f"{slot} = position of the first + 4 * position of the second of A[{row} = {at[row]}][{col} = {at[col]}]"
    else:
        move = f"{slot} = {element}"
    return f"for every lane:\n  for slot in 0..{slots - 1}:   # {where}\n    {move}"


def layout_html(instruction: str | MatrixInstruction, gpu: str | Gpu, **modifiers: Any) -> str:
    """The page of an instruction, with switches for wave and op_sel (the index key of RDNA 4's sparse forms).

    modifiers: k_order, and cbsz, abid and blgp where they choose types or an index set, as in get_layout. Raises what
    get_layout raises, and ArgumentError for a cbsz or blgp that moves blocks or lanes, which the page cannot show.
    """
    target = get_gpu(gpu)
    row = find_instruction(instruction, target)
    variants = [
        {"wave": wave, "opsel": opsel, "matrices": {
            m: _facts(get_layout(row, target, wave, m, opsel, **modifiers)) for m in row.matrices
        }}
        for wave in row.waves
        for opsel in _opsels(row, wave)
    ]  # fmt: skip
    first, *about = describe(row, target, row.waves[0])
    data = {
        "title": row.name, "about": [first.partition(": ")[2].replace(f", {row.waves[0]} lanes", ""), *about],
        "opsel_name": "index key" if row.kind == "swmmac" else "op_sel", "variants": variants,
    }  # fmt: skip
    template = Path(__file__).with_name("layout_page.html").read_text(encoding="utf-8")
    title = f"{row.name}, {GENERATIONS[row.generation]}"
    # "</" inside the JSON would end the script element.
    return template.replace("{title}", title).replace("{data}", json.dumps(data).replace("</", "<\\/"))


def _opsels(row: MatrixInstruction, wave: int) -> tuple[int, ...]:
    if row.kind == "swmmac":
        return tuple(range(index_sets(row, wave)))
    return (0, 4) if "op_sel" in row.modifiers else (0,)


def _facts(layout: Layout) -> dict[str, Any]:
    if layout.cbsz or layout.blgp:
        raise ArgumentError("the page shows no cbsz or blgp that moves blocks or lanes: use --format svg or table")
    return {
        "axes": AXES[layout.matrix], "rows": layout.rows, "cols": layout.cols, "blocks": layout.blocks,
        "slots": layout.slots, "lanes": layout.lanes, "width": layout.width, "pitch": layout.pitch,
        "first_bit": layout.first_bit, "shared": layout.shared, "type": type_text(layout),
        "formulas": formulas(layout), "code": pseudo_code(layout),
    }  # fmt: skip
