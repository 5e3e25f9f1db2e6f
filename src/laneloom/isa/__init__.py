"""What one instruction of a GPU does, and what a compiled kernel is made of."""

from __future__ import annotations

from .catalogue import MatrixInstruction, find_instruction, instructions
from .layouts import Element, Layout, Place, get_layout, layout_csv

__all__ = [
    "Element",
    "Layout",
    "MatrixInstruction",
    "Place",
    "find_instruction",
    "get_layout",
    "instructions",
    "layout_csv",
]
