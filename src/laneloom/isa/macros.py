"""What an assembler expands in text that people wrote: `.macro`, `.rept`, `.irp`, `.irpc`, `.if` and their kin.

As LLVM's assembler does it, in GNU's syntax; `.include` and `.altmacro` are refused.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field

from ..errors import EmulationError
from .expressions import value_of

_DIRECTIVE = re.compile(r"\s*\.(\w+)\b\s*(.*?)\s*$")
_DEFINED = re.compile(r"\s*(?:\.(?:set|equ|equiv)\s+([A-Za-z_][\w.$]*)\s*,|([A-Za-z_][\w.$]*)\s*=(?!=))\s*(.+?)\s*$")
_CALL = re.compile(r"\s*(?:([\w.$@]+:)\s*)?([A-Za-z_.][\w.$]*)(?:\s+(.*?))?\s*$")
_ENDS = {"macro": ("endm", "endmacro"), "rept": ("endr",), "rep": ("endr",), "irp": ("endr",), "irpc": ("endr",)}
_LABEL = re.compile(r"\s*([A-Za-z_.$][\w.$@]*):(?!:)")
_TARGET = re.compile(r'^[ \t]*\.amdgcn_target[ \t]+"[^"\n]*gfx(\d+)([0-9a-f])([0-9a-f])\b', re.M)
_TESTS = {"if": "!=", "ifne": "!=", "ifeq": "==", "ifgt": ">", "ifge": ">=", "iflt": "<", "ifle": "<="}
_USES = re.compile(r"^[ \t]*\.(?:macro|rept?|irpc?|include|altmacro|if\w*)\b", re.M)
_MOST = 1_000_000  #: lines that come out

Line = tuple[int, str]


@dataclass
class _Macro:
    parameters: list[tuple[str, str, bool]]  #: name, what it is where nothing is given, whether it takes all the rest
    body: list[Line]
    calls: int = 0  #: `\\+`


class _Left(Exception):
    """`.exitm`."""


@dataclass
class _Expansion:
    symbols: dict[str, int] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)  #: what `.ifdef` finds: labels and symbols so far
    macros: dict[str, _Macro] = field(default_factory=dict)
    out: list[Line] = field(default_factory=list)
    calls: int = 0  #: `\\@`
    depth: int = 0

    def run(self, lines: list[Line]) -> None:
        at = 0
        while at < len(lines):
            number, line = lines[at]
            code = re.split(r";|//", line, maxsplit=1)[0]
            at += 1
            directive = _DIRECTIVE.match(code)
            name, rest = (directive[1], directive[2]) if directive else ("", "")
            if name in ("include", "altmacro"):
                raise EmulationError(
                    f"line {number} uses .{name}, which an assembler expands: give the text that it makes of it"
                )
            if name in _ENDS:
                end = _end(lines, at, (name,) if name == "macro" else tuple(_ENDS.keys() - {"macro"}), _ENDS[name])
                self._block(number, name, rest, lines[at:end])
                at = end + 1
            elif name.startswith("if"):
                at = self._choose(lines, at - 1)
            elif name == "purgem":
                self.macros.pop(rest, None)
            elif name == "exitm":
                raise _Left
            else:
                self._plain(number, line, code)

    def _plain(self, number: int, line: str, code: str) -> None:
        if label := _LABEL.match(code):
            self.defined.add(label[1])
        call = _CALL.match(code)
        if call and call[2] in self.macros:
            if call[1]:
                self._put(number, call[1])
            self._call(number, self.macros[call[2]], call[2], call[3] or "")
            return
        if defined := _DEFINED.match(code):
            name = defined[1] or defined[2]
            self.defined.add(name)
            if (value := value_of(defined[3], self.symbols)) is not None:
                self.symbols[name] = value
        self._put(number, line)

    def _put(self, number: int, line: str) -> None:
        self.out.append((number, line))
        if len(self.out) > _MOST:
            raise EmulationError(f"line {number}: the macros of this assembly make more than {_MOST:,} lines")

    def _block(self, number: int, name: str, rest: str, body: list[Line]) -> None:
        if name == "macro":
            words = _arguments(rest)
            self.macros[words[0]] = _Macro([_parameter(word) for word in words[1:]], body)
        elif name in ("rept", "rep"):
            for _ in range(self._value(number, rest)):
                self.run(body)
        else:
            symbol, *given = _arguments(rest)
            if name == "irpc":
                given = list("".join(given))
            while given and not given[-1]:
                given.pop()
            for text in given:
                self.run([(k, _put_in(line, {symbol: text})) for k, line in body])

    def _call(self, number: int, macro: _Macro, name: str, rest: str) -> None:
        given = {p: default for p, default, _ in macro.parameters}
        words, position = _arguments(rest), 0
        for k, word in enumerate(words):
            key, sign, value = word.partition("=")
            if sign and key.strip() in given:
                given[key.strip()] = value.strip()
                continue
            if position >= len(macro.parameters):
                raise EmulationError(f"line {number} gives {name} more arguments than it has")
            parameter, _, takes_rest = macro.parameters[position]
            if takes_rest:
                given[parameter] = ", ".join(words[k:])
                break
            given[parameter] = word or given[parameter]
            position += 1
        self.calls += 1
        self.depth += 1
        if self.depth > 200:
            raise EmulationError(f"line {number}: {name} calls itself without an end")
        given["@"], given["+"] = str(self.calls - 1), str(macro.calls)
        macro.calls += 1
        with contextlib.suppress(_Left):
            self.run([(number, _put_in(line, given)) for _, line in macro.body])
        self.depth -= 1

    def _choose(self, lines: list[Line], at: int) -> int:
        """Run the branch of an `.if` that holds; the line behind its `.endif`."""
        branches: list[tuple[int, str, str, list[Line]]] = []
        depth = 0
        for end in range(at, len(lines)):
            number, line = lines[end]
            match = _DIRECTIVE.match(re.split(r";|//", line, maxsplit=1)[0])
            name = match[1] if match else ""
            depth += name.startswith("if") - (name == "endif")
            if not depth:
                break
            if match and (end == at or (depth == 1 and name in ("elseif", "else"))):
                branches.append((number, name, match[2], []))
            else:
                branches[-1][3].append((number, line))
        else:
            raise EmulationError(f"line {lines[at][0]}: .if without .endif")
        for number, name, rest, body in branches:
            if self._holds(number, name, rest):
                self.run(body)
                break
        return end + 1

    def _holds(self, number: int, name: str, rest: str) -> bool:
        if name == "else":
            return True
        if name in ("ifdef", "ifndef", "ifnotdef"):
            return (rest in self.defined or rest in self.symbols) == (name == "ifdef")
        if name in ("ifb", "ifnb"):
            return bool(rest) == (name == "ifnb")
        if name in ("ifc", "ifnc", "ifeqs", "ifnes"):
            first, _, second = (part.strip() for part in rest.partition(","))
            return (first == second) == (name in ("ifc", "ifeqs"))
        sign = _TESTS.get("if" if name == "elseif" else name)
        if sign is None:
            raise EmulationError(f"line {number} uses .{name}, which is not implemented")
        return value_of(f"{self._value(number, rest)}{sign}0") != 0

    def _value(self, number: int, text: str) -> int:
        value = value_of(text, self.symbols)
        if value is None:
            raise EmulationError(f"line {number}: {text!r} is no expression of numbers and symbols with a value")
        return value


def _end(lines: list[Line], at: int, opens: tuple[str, ...], closes: tuple[str, ...]) -> int:
    """The line that ends a block whose first line is `at`."""
    depth = 1
    for end in range(at, len(lines)):
        match = _DIRECTIVE.match(lines[end][1])
        name = match[1] if match else ""
        depth += (name in opens) - (name in closes)
        if not depth:
            return end
    raise EmulationError(f"line {lines[at - 1][0]}: a block without .{closes[0]}")


def _arguments(text: str) -> list[str]:
    """What commas and blanks part; brackets, quotes and operators hold together."""
    words, depth, quoted, word, gap = [], 0, False, "", False
    for c in text.strip():
        if c == '"':
            quoted = not quoted
            continue
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0 and not quoted:
            words.append(word)
            word, gap = "", False
        elif c in " \t" and depth == 0 and not quoted:
            gap = bool(word)
        else:
            if gap and not (word[-1] in "+-*/&|^<>=!~" or c in "+-*/&|^<>=!"):
                words.append(word)
                word = ""
            word, gap = word + c, False
    return [*words, word] if word or words else []


def _parameter(word: str) -> tuple[str, str, bool]:
    name, _, default = word.partition("=")
    name, _, kind = name.partition(":")
    return name, default, kind == "vararg"


def _put_in(line: str, given: dict[str, str]) -> str:
    """A line of a body with its arguments, each written `\\name`; `\\()` parts a name from what is behind it."""
    line = re.sub(r"\\([\w$.]+|[@+])", lambda m: given.get(m[1], m[0]), line)
    return line.replace("\\()", "")


def uses_macros(text: str) -> bool:
    """Whether there is anything to expand."""
    return _USES.search(text) is not None


def _target_symbols(text: str) -> dict[str, int]:
    """What LLVM's assembler says of the GPU that `.amdgcn_target` names."""
    target = _TARGET.search(text)
    names = ("number", "minor", "stepping")
    return {f".amdgcn.gfx_generation_{n}": int(digits, 16 if n != "number" else 10)
            for n, digits in zip(names, target.groups(), strict=True)} if target else {}  # fmt: skip


def expand(text: str) -> list[Line]:
    """The lines that an assembler makes of a text, each with the number of the line it comes from: that of the call,
    of what a macro makes.

    Raises EmulationError for what it cannot expand.
    """
    expansion = _Expansion(_target_symbols(text))
    expansion.run(list(enumerate(text.split("\n"), 1)))
    return expansion.out
