"""Names of functions that are no identifiers, such as Triton's of functions that take aggregates: `"f__C<i32, c1>"`."""

from __future__ import annotations

import re

_QUOTED = re.compile(r'^[ \t]*\.type[ \t]+"([^"\n]+)"', re.M)
_ODD = re.compile(r"[^\w.$@]+")
_STRINGS = "".join(rf"(?<!\.{kind}\t)" for kind in ("ascii", "asciz", "string"))


def plain_name(name: str) -> str:
    """A symbol as an identifier of assembly."""
    return _ODD.sub("_", name)


def plain_symbols(text: str) -> str:
    """The same assembly, line for line, with an identifier in place of each name that LLVM had to quote."""
    given: dict[str, str] = {}
    for name in dict.fromkeys(_QUOTED.findall(text)):
        if (plain := plain_name(name)) != name:
            while plain in given.values():
                plain += "_"
            given[name] = plain
    if not given:
        return text
    names = "|".join(re.escape(name) for name in sorted(given, key=len, reverse=True))
    return re.sub(f'{_STRINGS}"({names})"', lambda match: given[match[1]], text)
