"""Matrices to and from the registers of a wave, by the catalogue's layouts: what a load and a store have to do.

Elements are codes (bit patterns), so that every type goes the same way: an fp16 matrix is packed from
`a.view(numpy.uint16)`, an fp8 or fp4 one from its bytes or nibbles.
"""

from __future__ import annotations

import numpy as np

from ..errors import ArgumentError
from .layouts import Layout


def pack(layout: Layout, codes: np.ndarray) -> np.ndarray:
    """The registers of an operand, uint32 [registers, lanes], from its codes.

    codes: integers [rows, cols] or [blocks, rows, cols]; of a sparse A [M, K/2] and of its index K [M, K/4], as
    `compress` gives them. Replicated elements go to all their places; bits that hold no element are zero.
    Raises ArgumentError for another shape, and for floats.
    """
    flat = _with_blocks(layout, _bits("codes", codes)).reshape(-1).astype(np.uint64)
    out = np.zeros((layout.registers, layout.wave), np.uint64)
    element, lane, vgpr, low, width = _index(layout)
    bits = (flat[element] & _ones(width)) << low
    np.bitwise_or.at(out, (vgpr, lane), bits & np.uint64(0xFFFFFFFF))
    over = (low + width) > 32
    np.bitwise_or.at(out, (vgpr[over] + 1, lane[over]), bits[over] >> np.uint64(32))
    return out.astype(np.uint32)


def unpack(layout: Layout, registers: np.ndarray) -> np.ndarray:
    """The codes, uint64 [blocks, rows, cols] (without blocks where there is one), that the registers hold.

    The inverse of `pack`; of replicated elements the copy in the lowest lane. Raises ArgumentError for another shape
    than [registers, lanes].
    """
    registers = _bits("registers", registers)
    if registers.shape != (layout.registers, layout.wave):
        raise ArgumentError(
            f"{layout.matrix} of {layout.instruction.name} is {layout.registers} registers of {layout.wave} lanes, "
            f"not {registers.shape}"
        )
    wide = np.vstack([registers, np.zeros((1, layout.wave), np.uint32)]).astype(np.uint64)
    element, lane, vgpr, low, width = (x[::-1] for x in _index(layout))  # the first copy is written last
    both = wide[vgpr, lane] | wide[vgpr + 1, lane] << np.uint64(32)
    blocks, rows, cols = _shape(layout)
    out = np.zeros(blocks * rows * (cols // layout.shared), np.uint64)
    out[element] = both >> low & _ones(width)
    out = out.reshape(blocks, rows, -1)
    if layout.shared > 1 and layout.matrix == "A":
        half = np.uint64(layout.width // 2)
        out = np.stack([out & _ones(half), out >> half], axis=-1).reshape(blocks, rows, -1)
    return out[0] if blocks == 1 else out


def _bits(name: str, values: np.ndarray) -> np.ndarray:
    """Integers as an array; a float's value is not its bits. Raises ArgumentError."""
    values = np.asarray(values)
    if values.dtype.kind not in "iub":
        raise ArgumentError(f"{name}: expected integers, such as x.view(numpy.uint16) of fp16, got {values.dtype}")
    return values


def compress(dense: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(values [M, K/2], index [M, K/4]) of a matrix of codes [M, K] with at most two non-zero in every four along K.

    Bits 1:0 and 3:2 of an index are the positions of the first and the second value among their four. Raises
    ArgumentError where more than two are not zero.
    """
    m, k = dense.shape
    fours = dense.reshape(m, k // 4, 4)
    if ((fours != 0).sum(axis=2) > 2).any():
        raise ArgumentError("a 4:2 sparse matrix has at most two non-zero elements in every four along K")
    # The non-zero positions first, in order; zeros fill up.
    order = np.argsort(fours == 0, axis=2, kind="stable")[..., :2]
    order.sort(axis=2)
    values = np.take_along_axis(fours, order, axis=2).reshape(m, k // 2)
    return values, order[..., 0] | order[..., 1] << 2


def _shape(layout: Layout) -> tuple[int, int, int]:
    return layout.blocks, layout.rows, layout.cols


def _with_blocks(layout: Layout, codes: np.ndarray) -> np.ndarray:
    blocks, rows, cols = _shape(layout)
    pairs = layout.shared > 1 and layout.matrix == "A"
    wanted = (rows, cols // 2 if pairs else cols // layout.shared)
    if codes.shape not in {wanted, (blocks, *wanted)} or (codes.ndim == 2 and blocks > 1):
        shape = wanted if blocks == 1 else (blocks, *wanted)
        raise ArgumentError(f"{layout.matrix} of {layout.instruction.name} is {shape}, not {codes.shape}")
    codes = codes.reshape(blocks, *wanted)
    if pairs:
        half = np.uint64(layout.width // 2)
        first, second = codes[..., 0::2].astype(np.uint64), codes[..., 1::2].astype(np.uint64)
        return first & _ones(half) | second << half
    return codes


def _ones(width) -> np.ndarray:
    """Masks of `width` low bits, for widths of 1 to 64."""
    return np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - np.asarray(width, np.uint64))


def _index(layout: Layout) -> tuple[np.ndarray, ...]:
    """Element number, lane, vgpr, lowest bit and width of every copy."""
    _, rows, cols = _shape(layout)
    run = layout.shared  # columns of the dense matrix that one place stands for
    entries = [
        ((e.block * rows + e.row) * (cols // run) + e.col // run, p.lane, p.vgpr, p.bit_lo, layout.width)
        for e, places in layout
        if e.col % run == 0
        for p in places
    ]
    element, lane, vgpr, low, width = np.array(entries).T
    return element, lane, vgpr, low.astype(np.uint64), width.astype(np.uint64)
