"""Reads what laneloom needs of a 64-bit little-endian ELF file: sections and the sizes of its symbols.

Source: System V ABI, "Object Files"; NVIDIA's `.nv.info` records as printed by `cuobjdump -elf`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..errors import CompileError

_SYMTAB, _DYNSYM = 2, 11


@dataclass(frozen=True)
class Section:
    """One section: its name, type, link and bytes."""

    name: str
    kind: int
    link: int
    data: bytes


def read_sections(binary: bytes) -> list[Section]:
    """Every section of the file, in its order. Raises CompileError where it is not an ELF file of this
    class.
    """
    if binary[:6] != b"\x7fELF\x02\x01":
        raise CompileError("the compiler's output is not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", binary, 40)
    entry_bytes, count, names_at = struct.unpack_from("<HHH", binary, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", binary, table + i * entry_bytes) for i in range(count)]

    def contents(header: tuple[int, ...]) -> bytes:
        no_bits = 8
        return b"" if header[1] == no_bits else binary[header[4] : header[4] + header[5]]

    names = contents(raw[names_at])
    return [Section(_text(names, header[0]), header[1], header[6], contents(header)) for header in raw]


def symbol_sizes(sections: list[Section]) -> dict[str, int]:
    """Bytes of every named symbol that has a size."""
    sizes: dict[str, int] = {}
    for section in sections:
        if section.kind not in (_SYMTAB, _DYNSYM):
            continue
        names = sections[section.link].data
        for name, _, _, _, _, size in struct.iter_unpack("<IBBHQQ", section.data):
            if name and size:
                sizes[_text(names, name)] = size
    return sizes


def symbol_names(sections: list[Section]) -> list[str]:
    """Names of the symbol table in its order: `.nv.info` refers to kernels by this index."""
    for section in sections:
        if section.kind == _SYMTAB:
            names = sections[section.link].data
            return [_text(names, entry[0]) for entry in struct.iter_unpack("<IBBHQQ", section.data)]
    return []


def cubin_attribute(sections: list[Section], kernel: str, attribute: int) -> int | None:
    """The value that `.nv.info` gives `kernel` for an EIATTR code of form (symbol, value), or None."""
    names = symbol_names(sections)
    for section in sections:
        if section.name != ".nv.info":
            continue
        data, at = section.data, 0
        while at + 4 <= len(data):
            form, code, size = struct.unpack_from("<BBH", data, at)
            at += 4
            sized = 4
            if form != sized:
                continue
            if code == attribute and size == 8:
                symbol, value = struct.unpack_from("<II", data, at)
                if symbol < len(names) and names[symbol] == kernel:
                    return value
            at += size
    return None


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()
