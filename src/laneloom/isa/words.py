"""Counts in sentences, of everything that prints some."""

from __future__ import annotations


def counted(n: float, noun: str) -> str:
    """ "1 workgroup", "1,024 workgroups": of nouns whose plural ends in s."""
    number = f"{n:,}" if isinstance(n, int) else f"{n:g}"
    return f"{number} {noun}" if n == 1 else f"{number} {noun}s"
