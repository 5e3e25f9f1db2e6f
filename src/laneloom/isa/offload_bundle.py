"""The code objects inside what hipcc and clang write: offload bundles, plain or compressed, alone or in a program.

Source: LLVM "Clang Offload Bundler", "Bundled Binary File Layout" and "Compressed and Bundled Binary File".
"""

from __future__ import annotations

import importlib
import re
import struct
import zlib
from collections.abc import Iterator

from ..errors import ArgumentError, LaneloomError, UnsupportedError
from .elf import AMDGPU, BROKEN, MAGIC, machine, read_sections

BUNDLE, COMPRESSED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
_FAT_SECTIONS = (".hip_fatbin", "__CLANG_OFFLOAD_BUNDLE__")
_ZLIB, _ZSTD = 0, 1
_TARGET = re.compile(r"gfx[^:]+")  # behind it stand settings of the target, such as :xnack-


def is_binary(data: bytes) -> bool:
    """Whether these bytes are an ELF file or an offload bundle."""
    return data.startswith((MAGIC, BUNDLE, COMPRESSED))


def code_objects(data: bytes) -> list[tuple[str, bytes]]:
    """Every code object for AMD's GPUs in a file, each with the target that its bundle names ("" outside of one).

    Raises ArgumentError for a file that is broken or holds none, UnsupportedError for a compression that is not here.
    """
    try:
        found = list(_code_objects(data))
    except LaneloomError:
        raise
    except BROKEN as error:
        raise ArgumentError("the file is cut off or broken") from error
    if not found:
        raise ArgumentError("the file holds no code for AMD's GPUs")
    return found


def _code_objects(data: bytes) -> Iterator[tuple[str, bytes]]:
    if data.startswith(MAGIC):
        if data[4:6] != b"\x02\x01":
            raise ArgumentError("the file is no 64-bit little-endian ELF file")
        if machine(data)[1] == AMDGPU:
            yield "", data
            return
        for section in read_sections(data):
            if section.name in _FAT_SECTIONS:
                yield from _bundles(section.data)
        return
    yield from _bundles(data)


def _bundles(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The code objects of the bundles that stand behind one another in `data`."""
    at, view = 0, memoryview(data)  # a library of a gigabyte may hold hundreds: what is behind one is neither
    place = {BUNDLE: -1, COMPRESSED: -1}  # copied nor searched again
    while at < len(data):
        for magic, found_at in place.items():
            if found_at < at:
                found_at = data.find(magic, at)
                place[magic] = found_at if found_at >= 0 else len(data)
        at = min(place.values())
        if at == len(data):
            return
        if at == place[COMPRESSED]:
            bundle, nbytes = _decompress(view[at:])
            yield from _entries(memoryview(bundle))[0]
        else:
            found, nbytes = _entries(view[at:])
            yield from found
        at += nbytes


def _entries(bundle: memoryview) -> tuple[list[tuple[str, bytes]], int]:
    """The code objects of one bundle, and how many bytes it takes."""
    (count,) = struct.unpack_from("<Q", bundle, len(BUNDLE))
    at = len(BUNDLE) + 8
    found = []
    end = at
    for _ in range(count):
        offset, size, name_bytes = struct.unpack_from("<QQQ", bundle, at)
        name = str(bundle[at + 24 : at + 24 + name_bytes], "utf-8")
        at += 24 + name_bytes
        end = max(end, at, offset + size)
        if "amdgcn" in name and size:
            target = _TARGET.search(name)
            found.append((target[0] if target else "", bytes(bundle[offset : offset + size])))
    return found, end


def _decompress(data: memoryview) -> tuple[bytes, int]:
    """The bundle in a compressed one, and how many bytes that takes."""
    version, method = struct.unpack_from("<HH", data, 4)
    if version not in (1, 2, 3):
        raise UnsupportedError(f"laneloom does not know version {version} of compressed offload bundles")
    # Version 1: bytes before compression, hash. 2 puts the file's bytes in front, 3 makes both sizes 8 bytes.
    header, sizes = {1: (20, "<I"), 2: (24, "<II"), 3: (32, "<QQ")}[version]
    numbers = struct.unpack_from(sizes, data, 8)
    total = numbers[0] if version > 1 else len(data)
    body = data[header:total]
    if method == _ZLIB:
        return zlib.decompress(body), total
    if method != _ZSTD:
        raise UnsupportedError(f"laneloom does not know compression {method} of offload bundles")
    return _unpack_zstd(body, numbers[-1]), total


def _unpack_zstd(body: memoryview, nbytes: int) -> bytes:
    """Python has zstd from 3.14 on; before that a package may be there."""
    try:
        return importlib.import_module("compression.zstd").decompress(body)
    except ModuleNotFoundError:
        pass
    try:
        zstandard = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        raise UnsupportedError(
            "the offload bundle is compressed with zstd: run `pip install zstandard`, or build without "
            "--offload-compress"
        ) from None
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=nbytes)
