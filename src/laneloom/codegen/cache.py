"""CodeObjects on disk, shared by processes.

One file per entry: a line with the format's name, its version and the SHA-256 of all that follows; a line of
JSON; the assembly text; the binary. A file is written beside its place and moved there by `os.replace`, so a
reader sees all of it or none; a file that a crash or a disk has damaged fails its checksum and is built
again. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from .code_object import CodeObject
from .versions import compiler_environment, triton_version

FORMAT = 1
"""Raised whenever the file's layout, CodeObject's fields or the way of compiling changes."""

_MAGIC = "laneloom-code-object"
_SUFFIX, _UNFINISHED = ".code", ".unfinished"
_log = logging.getLogger("laneloom")


@dataclass(frozen=True)
class CacheStats:
    """What the cache holds: its folder, the number of entries, their bytes."""

    path: Path
    entries: int
    bytes: int


def cache_dir() -> Path:
    """The folder of the cache: `LANELOOM_CACHE_DIR`, or `laneloom` in the user's cache folder. It may
    not exist yet.
    """
    chosen = os.environ.get("LANELOOM_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("laneloom", appauthor=False))


def stats() -> CacheStats:
    """Entries and bytes of this machine's cache; another process may change them meanwhile."""
    sizes = [size for path in _files(_SUFFIX) if (size := _size(path)) is not None]
    return CacheStats(cache_dir(), len(sizes), sum(sizes))


def clear() -> int:
    """Remove every entry, and what crashed writers left; returns the number of entries removed."""
    removed = 0
    for path in _files(_SUFFIX):
        path.unlink(missing_ok=True)
        removed += 1
    for path in _files(_UNFINISHED):
        path.unlink(missing_ok=True)
    return removed


def make_key(*parts: object) -> str:
    """SHA-256 of the parts, Triton's version, the compiler's environment variables and the cache's format.

    Each part enters with its type, so that 1, True and "1" are different keys.
    """
    digest = hashlib.sha256()
    for part in (FORMAT, triton_version(), sorted(compiler_environment().items()), *parts):
        text = f"{type(part).__name__}:{part!r}"
        digest.update(f"{len(text)}:{text};".encode(errors="surrogatepass"))
    return digest.hexdigest()


def fetch(key: str | None, build: Callable[[], CodeObject]) -> CodeObject:
    """The entry of `key`, or what `build` makes, which is then stored. A key of None is built always
    and not stored.
    """
    if key is None:
        return build()
    found = load(key)
    if found is None:
        found = build()
        store(key, found)
    return found


def load(key: str) -> CodeObject | None:
    """The entry of `key`; None where there is none, or where it is damaged, which is logged."""
    path = _path(key)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        head, _, body = content.partition(b"\n")
        if head.decode() != _head(body):
            raise ValueError("its checksum does not match")
        line, _, payload = body.partition(b"\n")
        header = json.loads(line)
        asm_bytes = header["asm_bytes"]
        return CodeObject.from_record(header["record"], payload[:asm_bytes].decode(), payload[asm_bytes:])
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("cache entry %s is damaged (%s) and is built again", path, error)
        return None


def store(key: str, code: CodeObject) -> None:
    """Write the entry of `key` at once or not at all; a cache that cannot be written is logged and done
    without.
    """
    asm = code.asm.encode()
    header = json.dumps({"asm_bytes": len(asm), "record": code.to_record()}, sort_keys=True).encode()
    body = header + b"\n" + asm + code.binary
    path = _path(key)
    unfinished = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=key[:16], suffix=_UNFINISHED)
        with os.fdopen(handle, "wb") as file:
            file.write(_head(body).encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        _log.warning("cannot write the cache entry %s: %s", path, error)
        if unfinished is not None:
            Path(unfinished).unlink(missing_ok=True)


def _head(body: bytes) -> str:
    return f"{_MAGIC} {FORMAT} {hashlib.sha256(body).hexdigest()}"


def _path(key: str) -> Path:
    # Two characters of the key make a folder, so that no folder grows to many thousands of files.
    return cache_dir() / "code" / key[:2] / (key + _SUFFIX)


def _files(suffix: str) -> list[Path]:
    return sorted((cache_dir() / "code").glob(f"*/*{suffix}"))


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
