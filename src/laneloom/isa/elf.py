"""Reads what laneloom needs of a 64-bit little-endian ELF file: sections, symbols, segments, relocations.

Source: System V ABI, "Object Files"; NVIDIA's `.nv.info` records as printed by `cuobjdump -elf`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import CompileError

MAGIC = b"\x7fELF"
RELOCATABLE, AMDGPU = 1, 224  #: e_type of what no linker has seen; e_machine of AMD's GPUs
FUNCTION = 2  #: kind of a symbol that is code
#: what reading a broken file ends in: places, names and types that are not what its headers and notes say
BROKEN = (struct.error, zlib.error, LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
_SYMTAB, _RELA, _DYNSYM = 2, 4, 11
_LOAD = 1
_TEXT = 4  #: flag of a section that holds code


@dataclass(frozen=True)
class Section:
    """One section: its name, type, link and bytes, and where it is loaded."""

    name: str
    kind: int
    link: int
    data: bytes
    address: int = 0
    flags: int = 0
    offset: int = 0  #: of its bytes in the file

    @property
    def holds_code(self) -> bool:
        """Whether its bytes are instructions."""
        return bool(self.flags & _TEXT)


@dataclass(frozen=True)
class Symbol:
    """One symbol; `section` is 0 where the file does not define it."""

    name: str
    kind: int
    binding: int  #: 0 local, 1 global, 2 weak
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class Segment:
    """What a loader places at `address`: the bytes, then zeros up to `nbytes`."""

    address: int
    nbytes: int
    data: bytes


@dataclass(frozen=True)
class Relocation:
    """A place that a loader fills in."""

    address: int
    kind: int
    symbol: Symbol | None
    addend: int


def machine(binary: bytes) -> tuple[int, int, int]:
    """The header's e_type, e_machine and e_flags."""
    kind, processor = struct.unpack_from("<HH", binary, 16)
    return kind, processor, struct.unpack_from("<I", binary, 48)[0]


def read_sections(binary: bytes) -> list[Section]:
    """Every section of the file, in its order. Raises CompileError where it is not an ELF file of this
    class.
    """
    if binary[:6] != MAGIC + b"\x02\x01":
        raise CompileError("the compiler's output is not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", binary, 40)
    entry_bytes, count, names_at = struct.unpack_from("<HHH", binary, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", binary, table + i * entry_bytes) for i in range(count)]

    def contents(header: tuple[int, ...]) -> bytes:
        no_bits = 8
        return b"" if header[1] == no_bits else binary[header[4] : header[4] + header[5]]

    names = contents(raw[names_at]) if raw else b""
    return [
        Section(_text(names, header[0]), header[1], header[6], contents(header), header[3], header[2], header[4])
        for header in raw
    ]


def read_segments(binary: bytes) -> list[Segment]:
    """What a loader places in memory."""
    (table,) = struct.unpack_from("<Q", binary, 32)
    entry_bytes, count = struct.unpack_from("<HH", binary, 54)
    found = []
    for k in range(count):
        kind, _, offset, address, _, held, nbytes, _ = struct.unpack_from("<IIQQQQQQ", binary, table + k * entry_bytes)
        if kind == _LOAD:
            found.append(Segment(address, nbytes, binary[offset : offset + held]))
    return found


def read_symbols(sections: Sequence[Section]) -> list[Symbol]:
    """Every named symbol: of the symbol table, or of the dynamic one where the file was stripped."""
    tables = [_symbols(sections, s) for s in sections if s.kind == _SYMTAB] or [
        _symbols(sections, s) for s in sections if s.kind == _DYNSYM
    ]
    return [symbol for table in tables for symbol in table if symbol.name]


def read_relocations(sections: Sequence[Section]) -> list[Relocation]:
    """What the loader has to fill in."""
    found = []
    for section in sections:
        if section.kind != _RELA:
            continue
        table = sections[section.link]
        symbols = _symbols(sections, table) if table.kind in (_SYMTAB, _DYNSYM) else []
        for address, info, addend in struct.iter_unpack("<QQq", section.data):
            symbol = symbols[info >> 32] if info >> 32 else None
            found.append(Relocation(address, info & 0xFFFFFFFF, symbol, addend))
    return found


def symbol_sizes(sections: Sequence[Section]) -> dict[str, int]:
    """Bytes of every named symbol that has a size."""
    tables = [section for section in sections if section.kind in (_SYMTAB, _DYNSYM)]
    return {s.name: s.size for table in tables for s in _symbols(sections, table) if s.name and s.size}


def symbol_names(sections: Sequence[Section]) -> list[str]:
    """Names of the symbol table in its order: `.nv.info` refers to kernels by this index."""
    table = next((section for section in sections if section.kind == _SYMTAB), None)
    return [s.name for s in _symbols(sections, table)] if table else []


def _symbols(sections: Sequence[Section], table: Section) -> list[Symbol]:
    names = sections[table.link].data
    return [
        Symbol(_text(names, name), info & 15, info >> 4, section, value, size)
        for name, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", table.data)
    ]


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
