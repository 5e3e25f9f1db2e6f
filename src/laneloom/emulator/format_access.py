"""Buffer loads and stores with a format: `buffer_load_format_*` has it from the resource, `tbuffer_*` names it.

A load converts the components that the element has, gives 0 or 1 for those it has not, and with the resource's format
reorders them as the resource says (DST_SEL); a store converts as many as it has registers for, in their order.
Names are gfx11's here (cdna.py), `buffer_` for both.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import Instruction, Operand
from .alu import Builder, Step, Target
from .buffer_access import Buffer
from .buffer_formats import Format, of_number, of_parts, of_text
from .global_access import clears_other_half
from .memory import AccessFault
from .state import U32, Waves

NAME = re.compile(r"buffer_(load|store)_(d16_hi_|d16_)?format_(x|xy|xyz|xyzw)$")
#: every such instruction
NAMES = tuple(
    f"buffer_{way}_{half}format_{'xyzw'[:count]}"
    for way in ("load", "store")
    for half, counts in (("", 4), ("d16_", 4), ("d16_hi_", 1))
    for count in range(1, counts + 1)
)


class FormatFault(AccessFault):
    """A resource without a format that can be accessed."""

    error = UnknownInstructionError


class FormatAccess:
    """One such load or store; calling it executes it."""

    def __init__(self, ins: Instruction, target: Target):
        match = NAME.match(ins.name)
        assert match
        self.is_load, self.half = match[1] == "load", match[2] or ""
        self.count, self.major = len(match[3]), target.gpu.major
        operands = [o for o in ins.operands if not (o.kind == "symbol" and ":" in str(o.value))]
        data, vaddr, resource, soffset = operands
        self.high = self.half == "d16_hi_" or data.half == "h"
        self.keeps = self.half != "" and not clears_other_half(target.gpu)
        self.data, self.resource = data.index, resource.index
        self.where = Buffer(ins, target, vaddr, resource, soffset, 4)
        self.fixed = _format_in(ins, target.gpu.major) if ins.mnemonic.startswith("tbuffer_") else None

    def __call__(self, g: Waves) -> None:
        """Raises AccessFault where the memory refuses."""
        if self.fixed is not None:
            self._run(g, self.fixed, 0, np.ones(g.count, np.bool_))
            return
        words = g.s[self.resource + 3]
        for word in np.unique(words):
            waves = words == word
            try:
                form = self._format_of(int(word))
            except UnknownInstructionError as error:
                raise FormatFault(str(error), int(np.flatnonzero(waves)[0]), 0) from None
            self._run(g, form, int(word), waves)

    def _format_of(self, word: int) -> Format:
        """What the fourth word of a resource says."""
        if self.major == 9:
            return of_parts(word >> 15 & 15, word >> 12 & 7)
        return of_number(word >> 12 & 63, self.major)

    def _run(self, g: Waves, form: Format, word: int, waves: np.ndarray) -> None:
        """Execute it for the waves whose resource has this format."""
        if self.where.in_scratch(g):
            raise FormatFault("an access with a format to scratch is not implemented", 0, 0)
        self.where.nbytes = nbytes = form.nbytes
        address, inside = self.where(g)
        inside = inside & waves[:, None]
        at = g.memory.check(address, nbytes, inside)
        if not self.is_load:
            g.memory.scatter(at, form.store(self._registers(g, len(form.widths)), self.half != ""), nbytes, inside)
            return
        raw = g.memory.gather(at, nbytes) if inside.any() else np.zeros((g.count, g.lanes, max(nbytes // 4, 1)), U32)
        found = form.load(np.where(inside[..., None], raw, U32(0)), self.half != "")
        self._put(g, [self._component(form, found, word, k) for k in range(self.count)], waves)

    def _component(self, form: Format, found: list[np.ndarray], word: int, k: int) -> np.ndarray:
        select = k + 4 if self.fixed is not None else word >> 3 * k & 7
        half = self.half != ""
        if select < 4:
            return np.broadcast_to(U32(form.one(half) if select == 1 else 0), found[0].shape)
        if select - 4 < len(found):
            return found[select - 4]
        return np.broadcast_to(U32(form.absent(select - 4, half)), found[0].shape)

    def _put(self, g: Waves, values: list[np.ndarray], waves: np.ndarray) -> None:
        lanes = g.active() & waves[:, None]
        if not self.half:
            for k, value in enumerate(values):
                np.copyto(g.u[self.data + k], value, where=lanes)
            return
        for k, value in enumerate(values):
            n, part = self.data + k // 2, int(self.high or k % 2)
            if not self.keeps and k % 2 == 0:
                np.copyto(g.u[n], U32(0), where=lanes)
            np.copyto(g.h[n][..., part], value.astype(np.uint16), where=lanes)

    def _registers(self, g: Waves, wanted: int) -> list[np.ndarray]:
        """The components that the registers hold; one that the instruction has not is a copy of X."""
        if not self.half:
            held = [g.u[self.data + k] for k in range(self.count)]
        else:
            held = [g.h[self.data + k // 2][..., int(self.high or k % 2)].astype(U32) for k in range(self.count)]
        return held[:wanted] + [held[0]] * (wanted - len(held))


def _format_in(ins: Instruction, major: int) -> Format:
    """The format that the instruction names, in any of LLVM's spellings."""
    parts = {key: value for key, value in ins.modifiers.items() if key in ("dfmt", "nfmt", "format")}
    for o in ins.operands:
        if o.kind == "symbol" and ":" in str(o.value):
            key, _, value = str(o.value).partition(":")
            parts[key] = value
    if "dfmt" in parts or "nfmt" in parts:
        return of_parts(int(parts.get("dfmt", "1"), 0), int(parts.get("nfmt", "0"), 0))
    return of_text(parts.get("format"), major)


def data_bits(ins: Instruction) -> list[tuple[Operand, int]]:
    """Each register of the data, and which of its bits are components."""
    match = NAME.match(ins.name)
    assert match
    count = len(match[3])
    data = ins.operands[0]
    registers = [Operand(data.kind, data.index + k) for k in range((count + 1) // 2 if match[2] else count)]
    if not match[2]:
        return [(o, 0xFFFFFFFF) for o in registers]
    if match[2] == "d16_hi_" or data.half == "h":
        return [(registers[0], 0xFFFF0000)]
    return [(o, 0xFFFF if 2 * k + 1 == count else 0xFFFFFFFF) for k, o in enumerate(registers)]


def _build(ins: Instruction, target: Target) -> Step:
    return FormatAccess(ins, target)


def find(name: str) -> Builder | None:
    """The builder of a load or store with a format."""
    return _build if NAME.match(name) else None
