"""The metadata note of a code object: MessagePack in the ELF file, YAML in assembly text.

Sources: LLVM "User Guide for AMDGPU Backend", "Code Object V3 to V6 Note Records"; the MessagePack specification.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from .elf import Section

_NOTE, _METADATA = 7, 32  # type of a section of notes; type of AMD's note
_KERNELS = "amdhsa.kernels"
_PLAIN = re.compile(r"[A-Za-z_.$][\w.$+-]*")  # text that YAML takes for text
_TRUTHS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
_LENGTHS = {
    0xC4: (">B", "bytes"), 0xC5: (">H", "bytes"), 0xC6: (">I", "bytes"), 0xD9: (">B", "text"), 0xDA: (">H", "text"),
    0xDB: (">I", "text"), 0xDC: (">H", "list"), 0xDD: (">I", "list"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip


def read_metadata(sections: Sequence[Section]) -> dict[str, Any] | None:
    """What the metadata notes say, the kernels of all of them together; None where there is none.

    A linker puts the notes of its object files behind one another, as in rocBLAS's libraries of one file per kernel.
    """
    whole: dict[str, Any] | None = None
    for section in sections:
        if section.kind == _NOTE:
            for name, kind, body in _notes(section.data):
                found = unpack(body) if name == b"AMDGPU" and kind == _METADATA else None
                if isinstance(found, dict):
                    kernels = [*(whole or {}).get(_KERNELS, ()), *found.get(_KERNELS, ())]
                    whole = found | (whole or {}) | ({_KERNELS: kernels} if kernels else {})
    return whole


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at + 12 <= len(data):
        name_bytes, body_bytes, kind = struct.unpack_from("<III", data, at)
        at += 12
        body = at + (name_bytes + 3 & ~3)
        yield data[at : at + name_bytes].rstrip(b"\0"), kind, data[body : body + body_bytes]
        at = body + (body_bytes + 3 & ~3)


def unpack(data: bytes) -> Any:
    """The value that a MessagePack document holds; extension types, which LLVM does not write, raise ValueError."""
    return _unpack(data, 0)[0]


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    if tag in _NUMBERS:
        form = _NUMBERS[tag]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if tag < 0xC0:
        count, kind = (tag & 31, "text") if tag >= 0xA0 else (tag & 15, "list" if tag >= 0x90 else "map")
    elif tag in _LENGTHS:
        form, kind = _LENGTHS[tag]
        count = struct.unpack_from(form, data, at)[0]
        at += struct.calcsize(form)
    else:
        raise ValueError(f"MessagePack type {tag:#x} at byte {at - 1}")
    if kind in ("text", "bytes"):
        raw = data[at : at + count]
        return raw.decode(errors="replace") if kind == "text" else raw, at + count
    items = []
    for _ in range(count * (2 if kind == "map" else 1)):
        item, at = _unpack(data, at)
        items.append(item)
    return (items, at) if kind == "list" else (dict(zip(items[::2], items[1::2], strict=True)), at)


def to_yaml(value: Any) -> str:
    """A document as the assembler's `.amdgpu_metadata` takes it."""
    return "---\n" + "\n".join(_lines(value, "")) + "\n..."


def _lines(value: Any, indent: str) -> Iterator[str]:
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in pairs:
        head = f"{indent}-" if key is None else f"{indent}{key}:"
        if not isinstance(item, dict | list):
            yield f"{head} {_scalar(item)}"
        elif not item:
            yield f"{head} {'{}' if isinstance(item, dict) else '[]'}"
        elif key is None:  # the first line of an item stands behind its dash
            first, *rest = _lines(item, indent + "  ")
            yield f"{head} {first.lstrip()}"
            yield from rest
        else:
            yield head
            yield from _lines(item, indent + "  ")


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _TRUTHS else json.dumps(value)
    return str(value)
