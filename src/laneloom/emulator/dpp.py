"""DPP: the first source of a vector instruction read from another lane of the same wave.

Controls of gfx11 and gfx12 (RDNA 3 ISA guide, "Data Parallel Processing"): quad_perm, row_shl/shr/ror, row_mirror,
row_half_mirror, row_share, row_xmask over rows of 16 lanes, and dpp8 over groups of 8. gfx9 (CDNA 3 ISA guide) also has
row_bcast, the last lane of a row to the rows behind it, and shifts of the whole wave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import DPP_CONTROLS, Instruction
from .state import Waves

OUTSIDE = -1  #: a source lane that does not exist


def _list(text: str) -> list[int]:
    return [int(x, 0) for x in re.findall(r"\d+", text)]


#: modifiers that are DPP's
_CONTROLS = DPP_CONTROLS | {"row_mask", "bank_mask", "bound_ctrl", "fi"}


def source_lanes(ins: Instruction, lanes: int) -> np.ndarray:
    """Of DPP per destination lane the source lane, OUTSIDE where the control points past the row."""
    lane = np.arange(lanes)
    row, within = lane & ~15, lane & 15
    for key, value in ins.modifiers.items():
        if key == "dpp8":
            return (lane & ~7) + np.array(_list(value))[lane & 7]
        if key == "quad_perm":
            return (lane & ~3) + np.array(_list(value))[lane & 3]
        if key == "row_mirror":
            return row + 15 - within
        if key == "row_half_mirror":
            return (lane & ~7) + 7 - (lane & 7)
        if key in ("row_shl", "row_shr"):
            from_lane = within + int(value, 0) * (1 if key == "row_shl" else -1)
            return np.where((from_lane >= 0) & (from_lane < 16), row + from_lane, OUTSIDE)
        if key == "row_ror":
            return row + ((within - int(value, 0)) & 15)
        if key in ("row_share", "row_newbcast"):
            return row + int(value, 0)
        if key == "row_bcast":
            last = (lane & ~int(value, 0)) - 1  # 15: of the row in front; 31: of the first two rows
            return np.where(last >= 0, last, OUTSIDE)
        if key in ("wave_shl", "wave_shr"):
            from_lane = lane + (1 if key == "wave_shl" else -1)
            return np.where((from_lane >= 0) & (from_lane < lanes), from_lane, OUTSIDE)
        if key in ("wave_rol", "wave_ror"):
            return (lane + (1 if key == "wave_rol" else -1)) % lanes
        if key == "row_xmask":
            return row + (within ^ int(value, 0))
    raise UnknownInstructionError(f"no known DPP control in {ins.text!r}")


class LaneSource:
    """One DPP control: which lane each lane reads, and which lanes it leaves unwritten."""

    def __init__(self, lanes: np.ndarray, write: np.ndarray, zero_outside: bool, fetch_inactive: bool):
        self.lanes = np.where(lanes == OUTSIDE, np.arange(len(lanes)), lanes)
        self.outside = lanes == OUTSIDE
        self.write = write  #: lanes enabled by row_mask and bank_mask
        self.zero_outside = zero_outside  #: bound_ctrl: a source that cannot be read gives 0
        self.fetch_inactive = fetch_inactive
        self.partial = not bool(write.all()) or not zero_outside

    def reader(self, inner: Callable, negated: bool | Sequence[int] = False) -> Callable:
        """`inner`, permuted over lanes; what cannot be read is 0 (`guarded` decides whether it is written).

        negated: `inner` changes the sign, of each half in packed operands. DPP gives the 0 before source modifiers, as
        LLVM assumes where it folds a v_mov_b32_dpp into the instruction that negates it, so -0 comes out.
        """
        index, outside = self.lanes, self.outside
        any_outside = bool(outside.any())

        def read(g: Waves) -> np.ndarray:
            x = inner(g)
            if x.ndim < 2 or x.shape[1] == 1:
                return x  # a scalar source is the same in every lane
            y = x[:, index]
            bits = y.dtype.itemsize * 8
            zero = (np.asarray(negated, f"u{bits // 8}") << (bits - 1)).view(y.dtype)
            if any_outside:
                y[:, outside] = zero
            if g.exec is not None and not self.fetch_inactive:
                readable = g.exec[:, index].reshape(*y.shape[:2], *([1] * (y.ndim - 2)))
                y = np.where(readable, y, zero)
            return y

        return read

    def readable(self, g: Waves) -> np.ndarray:
        """Which lanes have a source to read, [wave, lane] or what broadcasts to it."""
        if g.exec is None or self.fetch_inactive:
            return ~self.outside[None]
        return ~self.outside & g.exec[:, self.lanes]

    def enabled(self, g: Waves) -> np.ndarray:
        """The active lanes, less those that the masks, or an unreadable source without bound_ctrl, disable."""
        enabled = np.broadcast_to(self.write, (g.count, g.lanes))
        if not self.zero_outside:
            enabled = enabled & self.readable(g)
        return enabled if g.exec is None else enabled & g.exec

    def guarded(self, compute: Callable, store: Callable) -> Callable[[Waves], None]:
        """A step that writes the enabled lanes only."""

        def step(g: Waves) -> None:
            before = g.exec
            enabled = self.enabled(g)
            value = compute(g)
            g.exec = enabled
            try:
                store(g, value)
            finally:
                g.exec = before

        return step

    def moved(self, build: Callable, ins: Instruction, target: Any) -> Callable[[Waves], None]:
        """A step of an instruction with one result that is built without DPP: it finds what its first source moved to
        in one more register, the last."""
        destination, first, *others = ins.operands
        rest = {name: value for name, value in ins.modifiers.items() if name not in _CONTROLS}
        encoding = ins.encoding.partition("dpp")[0].rstrip("_")
        operands = (destination, replace(first, index=-1), *others)
        step = build(replace(ins, encoding=encoding, operands=operands, modifiers=rest), target)
        read = self.reader(lambda g: g.u[first.index])

        def with_one_more(g: Waves, found: np.ndarray) -> None:
            row = np.ascontiguousarray(found)
            views = (row, row.view(np.int32), row.view(np.float32), row.view(np.uint16).reshape(*row.shape, 2))
            files = (g.u, g.i, g.f, g.h)
            for file, view in zip(files, views, strict=True):
                file.append(view)
            try:
                step(g)
            finally:
                for file in files:
                    file.pop()

        return self.guarded(read, with_one_more) if self.partial else lambda g: with_one_more(g, read(g))


def lane_source(ins: Instruction, lanes: int) -> LaneSource | None:
    """The DPP control of an instruction, None where it has none."""
    if "dpp" not in ins.encoding:
        return None
    index = source_lanes(ins, lanes)
    lane = np.arange(lanes)
    rows, banks = ins.number("row_mask", 0xF), ins.number("bank_mask", 0xF)
    write = ((rows >> (lane // 16 % 4)) & 1).astype(bool) & ((banks >> (lane % 16 // 4)) & 1).astype(bool)
    if "dpp8" in ins.modifiers:  # dpp8 has no masks and no bound_ctrl: every source lane exists
        return LaneSource(index, np.ones(lanes, bool), True, ins.number("fi") == 1)
    return LaneSource(index, write, ins.number("bound_ctrl", 0) != 0, ins.number("fi") == 1)
