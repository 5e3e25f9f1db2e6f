"""Assembly that a person wrote, brought to the form that compilers print, line for line.

LLVM's assembler takes more than LLVM prints: blanks after a modifier's colon or a sign, integer expressions, symbols of
`.set`, block comments, macros, numbered and indented labels, instructions at the start of a line or behind a label, in
capitals, and fields of hardware registers in braces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .expressions import leading_value, value_of
from .macros import expand, uses_macros

__all__ = ["as_printed", "line_number"]

# What compilers print has none of these: at the start of a line, and inside a line that may be an instruction.
_ODD_LINE = re.compile(
    r"^[ \t]*\.(?:macro|rept|irpc?|include|altmacro|if\w*)\b"
    r"|^[ \t]*(?:\.(?:set|equ|equiv)[ \t]+[A-Za-z_]\w*[ \t]*,|[A-Za-z_]\w*[ \t]*=(?!=))"
    r"|^(?:s_|v_|ds_|global_|flat_|buffer_|scratch_)\w+(?:[ \t]|$)|^[.\w$@]+:[ \t]*[a-z]\w+[ \t]"
    r"|^[ \t]*\d+:|^[ \t]+(?:\.L)?[\w$]+:[ \t]*$|^[ \t]*(?:[.\w$@]+:[ \t]*)?[A-Z][A-Za-z\d]*_\w+(?:[ \t]|$)",
    re.M,
)
_ODD_INSTRUCTION = re.compile(
    r"[ \t]+[a-z]\w+[ \t][^;/]*?"
    r"(?:\w:[ \t]+[\w(\[-]|\w[ \t]+:(?!:)|[\w\],]\t|[\[(][ \t]|[ \t][\]),]|\b(?:v|s|a|ttmp)(?:[ \t]+\[|\[[^\],]*[ \t])"
    r"|,[ \t]*-?[-~!|][ \t]+\S|\w[ \t]+\|[ \t]*(?:,|$)|hwreg\([^)]*\b0[xXbB]|\{[ \t]*(?:id|offset|size)\b"
    r"|[\w\])'][ \t]*(?:<<|>>|[<>=!]=|<>|&&|[+*/%<>&^-])[ \t]*[\w(~!'+-]"  # operations
    r"|(?:\)|(?<![\w.])\d\w*)[ \t]*\|{1,2}[ \t]*[\d(~!'-])"
)
_HIGH_REGISTER = re.compile(r" /\*v(?:\d+|\[\d+:\d+\])(?:\.[lh])?\*/")
_DESCRIBED = re.compile(r"(\s*\.amdhsa_\w+\s+)(.*?)\s*$")
_FROM = re.compile(r";@(\d+)$")  #: behind what macros moved: the line that it comes from
_SET = re.compile(r"^\s*(?:\.(?:set|equ|equiv)\s+([A-Za-z_]\w*)\s*,|([A-Za-z_]\w*)\s*=(?!=))\s*(.+?)\s*$")
_INSTRUCTION = re.compile(r"\t[a-z]")
_NUMBERED = re.compile(r"^\s*(\d+):")
_SYMBOL = re.compile(r"(?<![\w.$@])[A-Za-z_]\w*(?![\w.(])")
_SIGN = re.compile(r"((?:^|,)[ ]*[-~!])[ ]+")
_BARS = re.compile(r"((?:^|,)[ ]*-?\|)[ ]*([^|,]*?)[ ]*\|")
_OPERAND = re.compile(r"((?:^|,)[ ]*)((?:[^,(\[]|\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\])+)")
_VALUE = re.compile(r"(?<=\w:)[-~!'(\d][^:]*")
_BRACES = re.compile(r"\{([^{}]*)\}")
_EXPRESSION = re.compile(r"[\w()]+(?:[ \t]*(?:<<|>>|[+*/%&|^-])[ \t]*[\w()]+)+")


def as_printed(text: str) -> str:
    """The same program as compilers print it, each line where it was, but where macros make more lines: then each
    instruction says by `line_number` which it comes from. Compilers' own text comes back as it is, but for the comments
    in which LLVM repeats the numbers of registers above 255.

    Raises EmulationError for macros that cannot be expanded, and for `.include`.
    """
    if "/*" in text:
        text = _HIGH_REGISTER.sub("", text)
    if not _is_odd(text):
        return text
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n") or " ", text, flags=re.S)
    symbols: dict[str, int] = {}
    labels: dict[str, int] = {}
    lines = []
    for place, (number, line) in enumerate(expand(text) if uses_macros(text) else _numbered(text), 1):
        code = re.split(r";|//", line, maxsplit=1)[0]
        if match := _SET.match(code):
            value = value_of(match[3], symbols)
            if value is not None:
                symbols[match[1] or match[2]] = value
            lines.append("")
            continue
        if match := _NUMBERED.match(code):
            labels[match[1]] = labels.get(match[1], -1) + 1
            code = f".Lnumber{match[1]}_{labels[match[1]]}:" + code[match.end() :]
        if match := _DESCRIBED.match(code):
            value = value_of(match[2], symbols)
            lines.append(line if value is None else f"{match[1]}{value}")
        elif not code.strip() or code.lstrip().startswith(".amd"):
            lines.append(line)
        else:
            printed = _line(code, symbols, labels)
            lines.append(f"{printed} ;@{number}" if number != place and _INSTRUCTION.search(printed) else printed)
    return "\n".join(lines)


def _numbered(text: str) -> list[tuple[int, str]]:
    return [(line_number(line, place), line) for place, line in enumerate(text.split("\n"), 1)]


def line_number(line: str, place: int) -> int:
    """Of the text that a person wrote, the line that one of `as_printed` comes from, which stands at `place` there."""
    match = _FROM.search(line) if ";@" in line else None
    return int(match[1]) if match else place


def _is_odd(text: str) -> bool:
    code, _, metadata = text.partition(".amdgpu_metadata\n")  # whose keys may look like labels
    text = code + metadata.partition(".end_amdgpu_metadata")[2]
    if "/*" in text or _ODD_LINE.search(text):
        return True
    return any(map(_ODD_INSTRUCTION.match, text.split("\n")))


def _line(code: str, symbols: Mapping[str, int], labels: Mapping[str, int]) -> str:
    label = ""
    if match := re.match(r"([.\w$@]+:|[ \t]+(?:\.L)?[\w$]+:)(?!:)", code):
        label, code = match[1].lstrip(), code[match.end() :]
    if not code.strip() or code.lstrip().startswith(".") or code.lstrip().startswith(tuple("0123456789-")):
        return label + code
    mnemonic, _, rest = code.strip().replace("\t", " ").partition(" ")
    mnemonic = mnemonic.lower()
    if "branch" in mnemonic:
        target = re.fullmatch(r"\s*(\d+)([bf])\s*", rest)
        if target:
            count = labels.get(target[1], -1) + (target[2] == "f")
            return f"{label}\t{mnemonic} .Lnumber{target[1]}_{count}"
        return f"{label}\t{mnemonic} {rest.strip()}"
    if mnemonic.startswith(("s_wait", "s_delay", "s_sendmsg")):
        return f"{label}\t{mnemonic} {_replaced(rest, symbols).strip()}"
    rest = re.sub(r"(?<=\w)[ ]*:(?!:)[ ]*(?=[\w(\[~!-])", ":", rest)
    if mnemonic.startswith(("s_getreg", "s_setreg")):
        rest = _BRACES.sub(_register_field, rest)
    rest = re.sub(r"(?<=\()[ ]+|[ ]+(?=[),])", "", re.sub(r"\b(v|s|a|ttmp)[ ]+\[", r"\1[", rest))
    rest = _BARS.sub(r"\1\2|", _SIGN.sub(r"\1", rest))
    rest = re.sub(r"\[([^\]]*)\]", lambda m: f"[{_numbers(m[1], symbols)}]", rest)
    rest = re.sub(r"(?<=\w)\(([^()]+)\)", lambda m: f"({_numbers(m[1], symbols)})", rest)
    rest = _OPERAND.sub(lambda m: m[1] + _without_operations(m[2]), _replaced(rest, symbols))
    rest = _VALUE.sub(lambda m: _without_operations(m[0]), rest)
    rest = _EXPRESSION.sub(_computed, rest)
    return f"{label}\t{mnemonic} {rest.strip()}"


def _register_field(match: re.Match) -> str:
    """{id: 1, size: 4} as hwreg(1, 0, 4)."""
    given = dict(part.replace(" ", "").partition(":")[::2] for part in match[1].split(","))
    if not given.keys() <= {"id", "offset", "size"}:
        return match[0]
    return f"hwreg({given.get('id', 0)}, {given.get('offset', 0)}, {given.get('size', 32)})"


def _replaced(text: str, symbols: Mapping[str, int]) -> str:
    """Names of symbols as their numbers; a modifier's own name, before its colon, stays."""
    if not symbols:
        return text
    return _SYMBOL.sub(lambda m: str(symbols[m[0]]) if m[0] in symbols and text[m.end() :][:1] != ":" else m[0], text)


def _without_operations(operand: str) -> str:
    """The expression that an operand begins with as one number; what stands behind it are modifiers."""
    found = leading_value(operand)
    return operand if found is None or found[1][:1] not in ("", " ") else f"{found[0]}{found[1]}"


def _numbers(text: str, symbols: Mapping[str, int]) -> str:
    """What stands between brackets, each part of it computed."""
    return re.sub(r"[^,:]+", lambda m: _or_itself(value_of(m[0], symbols), m[0]), text.replace(" ", ""))


def _or_itself(value: int | None, text: str) -> str:
    return text if value is None else str(value)


def _computed(match: re.Match) -> str:
    return _or_itself(value_of(match[0]), match[0])
