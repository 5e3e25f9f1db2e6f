"""The arguments of `laneloom run` as the bytes that a kernel gets."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, UnsupportedError
from ..isa.words import counted

if TYPE_CHECKING:
    from ..isa.metadata import ArgumentMetadata, KernelMetadata

_TRITON_NAMES = {"f16": "fp16", "f32": "fp32", "f64": "fp64"}
_TAKEN = ("global_buffer", "by_value", "dynamic_shared_pointer")


@dataclass
class Given:
    """One argument of the kernel as the command line gives it."""

    text: str
    dtype: str  #: "lds" for LDS that the launch allocates
    value: Any  #: an array for a pointer or a struct, a number for a scalar or of bytes of LDS
    save_to: Path | None = None

    @property
    def is_array(self) -> bool:
        """Whether the argument is memory, not a number."""
        return not isinstance(self.value, int | float)


def pack(given: list[Given], described: KernelMetadata | None, kernel: str, lds_bytes: int) -> tuple[bytes, int]:
    """The argument block, as the metadata lays it out, or each at its natural alignment where there is none.

    Also the bytes of LDS that the launch needs: `lds_bytes` and what pointers to LDS get behind them.
    """
    if described is None:
        block = bytearray()
        for g in given:
            piece = _address(g) if g.is_array else _scalar(g)
            block.extend(bytes(-len(block) % len(piece)) + piece)
        return bytes(block), lds_bytes
    slots = [a for a in described.arguments if not a.kind.startswith("hidden_")]
    # Triton appends two scratch pointers, which have no name; a kernel that needs none of it never reads them.
    scratch = len(slots) > 1 and all(a.kind == "global_buffer" and not a.name for a in slots[-2:])
    if not len(slots) - 2 * scratch <= len(given) <= len(slots):
        wants = ", ".join(f"{a.name or 'argument'} ({a.kind}, {a.size} bytes)" for a in slots)
        count = counted(len(slots), "argument") + (", or all but the last 2" if scratch else "")
        raise ArgumentError(f"{kernel} takes {count}, got {len(given)} of --arg: {wants}")
    block = bytearray(described.kernarg_bytes)
    no_pointers = all(a.kind == "by_value" for a in slots)  # as in Tensile's metadata: theirs are 8 bytes by value
    for k, (g, slot) in enumerate(zip(given, slots, strict=False)):
        if slot.kind not in _TAKEN:
            raise UnsupportedError(f"{kernel} takes a {slot.kind} as argument {k}, which laneloom cannot pass")
        if slot.kind == "dynamic_shared_pointer":
            if g.dtype != "lds":
                raise ArgumentError(f"--arg {g.text}: {kernel} expects LDS, such as lds:4096, as argument {k}")
            place = -(-lds_bytes // slot.pointee_align) * slot.pointee_align
            piece, lds_bytes = struct.pack("<I", place), place + int(g.value)
        else:
            piece = _piece(g, slot)
            if piece is None and g.is_array and no_pointers and slot.size == 8:
                piece = _address(g)
            if piece is None:
                raise ArgumentError(f"--arg {g.text}: {kernel} expects {_wanted(slot)} as argument {k}")
        block[slot.offset : slot.offset + len(piece)] = piece
    return bytes(block), lds_bytes


def _piece(g: Given, slot: ArgumentMetadata) -> bytes | None:
    """The bytes of an argument; None where the kernel takes something else."""
    if slot.kind == "global_buffer":
        return _address(g) if g.is_array else None
    if g.is_array:  # a struct
        return g.value.tobytes() if g.value.nbytes == slot.size else None
    if g.dtype == "lds" or slot.size not in (1, 2, 4, 8):
        return None
    piece = _scalar(g)
    if isinstance(g.value, int) and len(piece) < slot.size:  # the same number, of either sign
        piece += (b"\xff" if g.value < 0 and g.dtype[0] == "i" else b"\0") * (slot.size - len(piece))
    return piece if len(piece) == slot.size else None


def _address(g: Given) -> bytes:
    return struct.pack("<Q", g.value.ctypes.data if g.value.size else 0)  # as a tensor without elements has


def _scalar(g: Given) -> bytes:
    from ..emulator.arguments import pack_scalar

    return pack_scalar(g.text, _TRITON_NAMES.get(g.dtype, g.dtype), g.value)


def _wanted(slot: ArgumentMetadata) -> str:
    if slot.kind == "global_buffer":
        return "an array"
    if slot.size in (1, 2, 4, 8):
        return f"a scalar of {slot.size} bytes"
    return f"a struct of {slot.size} bytes, as a file.npy of as many,"
