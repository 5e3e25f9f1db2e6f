"""Batch axes of operands as the few strides that a kernel takes."""

from __future__ import annotations

from collections.abc import Sequence


def merge_axes(sizes: Sequence[int], *strides: Sequence[int]) -> list[tuple[int, ...]]:
    """Axes of two elements or more as (size, its stride in each operand), neighbours merged where all strides allow.

    sizes: of the batch axes, outermost first; strides: of the same axes, one sequence for each operand.
    """
    axes: list[tuple[int, ...]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if axes and all(outer == size * inner for outer, inner in zip(axes[-1][1:], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, *steps)
        else:
            axes.append((size, *steps))
    return axes
