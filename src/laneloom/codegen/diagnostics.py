"""Turns what Triton and LLVM print or raise into one sentence that a user can act on."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import triton
from triton.compiler.errors import CompilationError

from ..locks import process_lock
from .versions import parse_version

COMPILER_LOCK = process_lock()
"""Held while a compilation changes process-wide state: Triton's knobs, sys.stdout, file descriptor 2."""


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Collect what native code writes to file descriptor 2; the list holds the text after the block."""
    captured: list[str] = []
    with COMPILER_LOCK, tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield captured
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            captured.append(file.read().decode(errors="replace"))


@contextmanager
def llvm_errors() -> Iterator[list[str]]:
    """Collect the errors of LLVM's code generator, one line each, which Triton does not look at; what else native code
    prints meanwhile is passed on after the block.

    LLVM goes on after such an error and leaves out what it cannot generate. Under Triton before 3.9 it ends the process
    after printing it instead, so there nothing is collected.
    """
    found: list[str] = []
    if parse_version(triton.__version__) < (3, 9):
        yield found
        return
    printed: list[str] = []
    try:
        with captured_stderr() as printed:
            yield found
    finally:
        errors = re.compile(r"^error: ([^\n]+)\n?", re.MULTILINE)
        found.extend(errors.findall(printed[0]))
        sys.stderr.write(errors.sub("", printed[0]))


class _ThreadStdout:
    """Keeps what this thread prints and passes every other thread's prints on."""

    def __init__(self, through: TextIO) -> None:
        self.through = through
        self.thread = threading.get_ident()
        self.text: list[str] = []

    def write(self, text: str) -> int:
        if threading.get_ident() != self.thread:
            return self.through.write(text)
        self.text.append(text)
        return len(text)

    def flush(self) -> None:
        self.through.flush()

    def __getattr__(self, name: str):
        return getattr(self.through, name)


@contextmanager
def captured_stdout() -> Iterator[list[str]]:
    """Collect what this thread prints through sys.stdout; the list grows as it is printed."""
    with COMPILER_LOCK:
        former = sys.stdout
        capture = _ThreadStdout(former)
        sys.stdout = capture  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield capture.text
        finally:
            sys.stdout = former


def explain_triton_error(error: BaseException, printed: str = "") -> str:
    """The useful part of an exception of Triton's front end or passes: message, function's line, source
    line.
    """
    innermost: CompilationError | None = None
    cause: BaseException | None = error
    last = error
    while cause is not None:
        last = cause
        if isinstance(cause, CompilationError):
            innermost = cause
        cause = cause.__cause__
    if innermost is not None:
        message = innermost.error_message or _one_line(last) if last is not innermost else innermost.error_message
        where = ""
        line = getattr(innermost.node, "lineno", None)
        lines = (innermost.src or "").split("\n")
        if line is not None and line <= len(lines):  # a call refused inside another function counts from that one
            where = f" (line {line} of the function: `{lines[line - 1].strip()}`)"
        return f"{_squeeze(_without_repr(message or 'unsupported construct'))}{where}"
    diagnosed = re.findall(r"error: ([^\n]+)", printed)
    if diagnosed:
        return _squeeze("; ".join(dict.fromkeys(diagnosed)))
    return _one_line(error)


def _without_repr(message: str) -> str:
    """Triton wraps other exceptions by their repr: NameError('...') becomes its text."""
    wrapped = re.fullmatch(r"(?:NameError|ValueError|TypeError|AssertionError)\((['\"])(.*)\1\)", message, re.DOTALL)
    return wrapped[2] if wrapped else message


def _one_line(error: BaseException) -> str:
    text = _squeeze(str(error))
    if text and isinstance(error, AssertionError | RuntimeError | ValueError):
        return text  # these names tell nothing
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _squeeze(text: str, most: int = 1500) -> str:
    """Whitespace runs as one space, and no more than `most` characters."""
    text = " ".join(str(text).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def explain_assembler_errors(printed: str, source: str) -> str:
    """Each error of LLVM's assembler as `line N: text: message`.

    Triton before 3.9 prints no line number; there the first line of the source with the printed text is
    meant.
    """
    lines = source.split("\n")
    found: list[str] = []
    reports = re.findall(r"^(?:[^\n:]*:(\d+):\d+: )?error: ([^\n]*)\n([^\n]*)", printed, re.MULTILINE)
    for number, message, excerpt in reports:
        if number:
            at = int(number)
        else:
            wanted = excerpt.split()
            at = next((i + 1 for i, line in enumerate(lines) if line.split() == wanted), 0)
        text = (lines[at - 1] if 0 < at <= len(lines) else excerpt).strip()
        found.append(f"line {at}: `{text}`: {message}" if at else f"`{text}`: {message}")
    shown = 5
    if len(found) > shown:
        found[shown:] = [f"and {len(found) - shown} more"]
    return "; ".join(found)
