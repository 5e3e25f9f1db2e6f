"""Integer expressions of assembly, with the priorities and the truth (-1) that LLVM's assembler takes from GNU's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+|[A-Za-z_.$][\w.$]*|'.'|<<|>>|<=|>=|==|!=|<>|&&|\|\||[()+*/%&|^<>!~-])"
)
_ALL = (1 << 64) - 1


def _divided(a: int, b: int) -> int:
    return abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def _compared(holds: Callable[[int, int], bool]) -> Callable[[int, int], int]:
    return lambda a, b: -int(holds(a, b))


_COMPARED = {
    **dict.fromkeys(("!=", "<>"), _compared(lambda a, b: a != b)), "==": _compared(lambda a, b: a == b),
    "<": _compared(lambda a, b: a < b), "<=": _compared(lambda a, b: a <= b),
    ">": _compared(lambda a, b: a > b), ">=": _compared(lambda a, b: a >= b),
}  # fmt: skip
#: by priority, the lowest first
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    _COMPARED,
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "&": lambda a, b: a & b},
    {"*": lambda a, b: a * b, "/": _divided, "%": lambda a, b: a - b * _divided(a, b), "<<": lambda a, b: a << b,
     ">>": lambda a, b: (a & _ALL if a < 0 else a) >> b},
)  # fmt: skip
_UNARY: dict[str, Callable[[int], int]] = {
    "-": lambda a: -a, "+": lambda a: a, "~": lambda a: ~a, "!": lambda a: int(not a)
}  # fmt: skip


def value_of(text: str, symbols: Mapping[str, int] | None = None) -> int | None:
    """The value of an expression; None where it is none, or names what is no symbol."""
    found = leading_value(text, symbols)
    return None if found is None or found[1] else found[0]


def leading_value(text: str, symbols: Mapping[str, int] | None = None) -> tuple[int, str] | None:
    """The value of the expression that a text begins with, and what stands behind it; None as for `value_of`."""
    tokens, ends, at = [], [], 0
    text = text.strip()
    while match := _TOKEN.match(text, at):
        at = match.end()
        tokens.append(match[1])
        ends.append(at)
    try:
        value, end = _level(tokens, 0, 0, symbols or {})
    except (IndexError, KeyError, ValueError, ZeroDivisionError):
        return None
    return value, text[ends[end - 1] :]


def _level(tokens: list[str], at: int, level: int, symbols: Mapping[str, int]) -> tuple[int, int]:
    """The value of the operations of this priority and higher ones from a token on, and the token behind them."""
    if level == len(_LEVELS):
        return _operand(tokens, at, symbols)
    value, at = _level(tokens, at, level + 1, symbols)
    while at < len(tokens) and (operation := _LEVELS[level].get(tokens[at])):
        other, at = _level(tokens, at + 1, level + 1, symbols)
        value = operation(value, other)
    return value, at


def _operand(tokens: list[str], at: int, symbols: Mapping[str, int]) -> tuple[int, int]:
    token = tokens[at]
    if token == "(":
        value, at = _level(tokens, at + 1, 0, symbols)
        if tokens[at] != ")":
            raise ValueError(token)
        return value, at + 1
    if token in _UNARY:
        value, at = _operand(tokens, at + 1, symbols)
        return _UNARY[token](value), at
    if token[0].isdigit():
        octal = token[0] == "0" and token.isdigit()
        return int(token, 8 if octal else 0), at + 1
    if token[0] == "'":
        return ord(token[1]), at + 1
    return symbols[token], at + 1
