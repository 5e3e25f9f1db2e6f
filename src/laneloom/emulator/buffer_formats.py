"""The formats of typed buffers: how the bits of an element are components, and what a register holds of each.

Components lie from the lowest bit up; AMD names them from the highest down, which shows where they differ in width
(2_10_10_10 has X in bits 9:0, and 2 bits of W on top). Sources: RDNA 3 and CDNA 3 ISA guides, "Memory Buffer
Instructions" and the tables of formats; LLVM AMDGPUAsmGFX9 and AMDGPUAsmGFX11, "format".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..errors import UnknownInstructionError
from .float16 import narrow, widen
from .mode import ZERO
from .rounding import round_to
from .state import U32

_CUT = round_to(np.float16, ZERO)  #: float32 to float16
_KINDS = ("UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT", "SNORM_OGL", "FLOAT")
#: gfx9's data formats by number
_GFX9 = (
    "INVALID", "8", "16", "8_8", "32", "16_16", "10_11_11", "11_11_10", "10_10_10_2", "2_10_10_10", "8_8_8_8",
    "32_32", "16_16_16_16", "32_32_32", "32_32_32_32",
)  # fmt: skip
_WHOLE = ("UINT", "SINT", "FLOAT")
_PLAIN = _KINDS[:6]
#: the formats of gfx11 and gfx12, data and number in one, in the order of their numbers from 1 on
_UNIFIED = tuple(
    (data, kind)
    for data, kinds in (
        ("8", _PLAIN), ("16", (*_PLAIN, "FLOAT")), ("8_8", _PLAIN), ("32", _WHOLE), ("16_16", (*_PLAIN, "FLOAT")),
        ("10_11_11", ("FLOAT",)), ("11_11_10", ("FLOAT",)), ("10_10_10_2", ("UNORM", "SNORM", "UINT", "SINT")),
        ("2_10_10_10", _PLAIN), ("8_8_8_8", _PLAIN), ("32_32", _WHOLE), ("16_16_16_16", (*_PLAIN, "FLOAT")),
        ("32_32_32", _WHOLE), ("32_32_32_32", _WHOLE),
    )
    for kind in kinds
)  # fmt: skip


@dataclass(frozen=True)
class Format:
    """One format."""

    widths: tuple[int, ...]  #: bits of each component, X first
    kind: str  #: of _KINDS

    @property
    def nbytes(self) -> int:
        """Bytes of an element."""
        return sum(self.widths) // 8

    @property
    def whole(self) -> bool:
        """Whether registers hold integers."""
        return self.kind in ("UINT", "SINT")

    def load(self, words: np.ndarray, half: bool) -> list[np.ndarray]:
        """The components of elements [..., words], as registers hold them: 32 bits, or 16 where `half`."""
        components, place = [], 0
        for width in self.widths:
            code = words[..., place // 32] >> U32(place % 32)
            place += width
            narrowed = _CUT if self.kind == "FLOAT" and width == 32 else narrow  # (rocjitsu)
            components.append(_narrowed(self._value(code & U32(_mask(width)), width), self.whole, half, narrowed))
        return components

    def absent(self, component: int, half: bool) -> int:
        """What a register gets of a component that the format has not: 0 of X, Y and Z, 1 of W."""
        return 0 if component < 3 else self.one(half)

    def one(self, half: bool) -> int:
        """1 as a register holds it."""
        return 1 if self.whole else 0x3C00 if half else 0x3F800000

    def store(self, components: list[np.ndarray], half: bool) -> np.ndarray:
        """The elements [..., words] of registers' components; what is beyond the range becomes its end."""
        words = np.zeros((*components[0].shape, max(self.nbytes // 4, 1)), U32)
        place = 0
        for value, width in zip(components, self.widths, strict=False):
            words[..., place // 32] |= self._code(_widened(value, self.kind, half), width) << U32(place % 32)
            place += width
        return words

    def _value(self, code: np.ndarray, width: int) -> np.ndarray:
        kind = self.kind
        if kind == "FLOAT":
            return _small_float(code, width)
        if kind == "UINT":
            return code
        signed = (code << U32(32 - width)).view(np.int32) >> np.int32(32 - width)
        if kind == "SINT":
            return signed.view(U32)
        number = code.astype(np.float64) if kind[0] == "U" else signed.astype(np.float64)
        if kind == "UNORM":
            number = number / _mask(width)
        elif kind == "SNORM":
            number = np.maximum(number / _mask(width - 1), -1)
        elif kind == "SNORM_OGL":
            number = (2 * number + 1) / _mask(width)
        return number.astype(np.float32).view(U32)

    def _code(self, value: np.ndarray, width: int) -> np.ndarray:
        kind = self.kind
        if kind == "FLOAT":
            return _small_code(value, width)
        if kind == "UINT":
            return np.minimum(value, U32(_mask(width)))
        low, high = (0, _mask(width)) if kind[0] == "U" else (-_mask(width - 1) - 1, _mask(width - 1))
        if kind == "SINT":
            return np.clip(value.view(np.int32), low, high).view(U32) & U32(_mask(width))
        number = value.view(np.float32).astype(np.float64)
        number = np.where(np.isnan(number), 0, number)
        if kind in ("UNORM", "SNORM"):
            number = np.clip(number, 0 if kind[0] == "U" else -1, 1) * high
        elif kind == "SNORM_OGL":
            number = (np.clip(number, -1, 1) * _mask(width) - 1) / 2
        return np.rint(np.clip(number, low, high)).astype(np.int64).astype(U32) & U32(_mask(width))


def _mask(width: int) -> int:
    return (1 << width) - 1


def _narrowed(value: np.ndarray, whole: bool, half: bool, narrowed: Callable) -> np.ndarray:
    if not half:
        return value
    return value & U32(0xFFFF) if whole else narrowed(value.view(np.float32)).view(np.uint16).astype(U32)


def _widened(value: np.ndarray, kind: str, half: bool) -> np.ndarray:
    if not half:
        return value
    value = value & U32(0xFFFF)
    if kind == "SINT":
        return ((value << U32(16)).view(np.int32) >> np.int32(16)).view(U32)
    return value if kind == "UINT" else widen(value.astype(np.uint16)).view(U32)


def _small_float(code: np.ndarray, width: int) -> np.ndarray:
    """The float32 of a code of 32, 16, 11 or 10 bits; those of 11 and 10 are float16 without a sign, cut short."""
    if width == 32:
        return code
    return widen((code << U32({16: 0, 11: 4, 10: 5}[width])).astype(np.uint16)).view(U32)


def _small_code(value: np.ndarray, width: int) -> np.ndarray:
    """A float32 as such a code, to nearest even; in 11 and 10 bits negative numbers are 0, and what is too large is the
    largest number (rocjitsu).
    """
    if width == 32:
        return value
    number = value.view(np.float32)
    if width == 16:
        return narrow(number).view(np.uint16).astype(U32)
    fraction = width - 5
    infinity = 31 << fraction
    size = np.where(np.isfinite(number) & (number > 0), number, np.float32(0)).astype(np.float64)
    exponent = np.maximum(np.frexp(size)[1] - 1, -14)
    code = np.rint(np.ldexp(size, fraction - exponent)).astype(np.int64) + (exponent + 14 << fraction)
    code = np.where(size == 0, 0, np.minimum(code, infinity - 1))
    code = np.where(np.isposinf(number), infinity, code)
    return np.where(np.isnan(number), infinity | 1 << fraction - 1, code).astype(U32)


@cache
def make(data: str, kind: str) -> Format:
    """The format of a name such as 8_8_8_8 and UNORM. Raises UnknownInstructionError."""
    if not re.fullmatch(r"\d+(_\d+)*", data) or kind not in _KINDS:
        raise UnknownInstructionError(f"no buffer has the format {data}, {kind}")
    widths = tuple(int(width) for width in reversed(data.split("_")))
    if kind == "FLOAT" and not set(widths) <= {10, 11, 16, 32}:
        raise UnknownInstructionError(f"no buffer has the format {data}, {kind}")
    return Format(widths, kind)


def of_number(number: int, major: int) -> Format:
    """The format of a number in an instruction, and on gfx11 and gfx12 in a resource."""
    if major == 9:
        return of_parts(number & 15, number >> 4)
    if not 0 < number <= len(_UNIFIED):
        raise UnknownInstructionError(f"no buffer has the format {number}")
    return make(*_UNIFIED[number - 1])


def of_parts(data: int, kind: int) -> Format:
    """The format of gfx9's numbers for the data and for what they mean."""
    if not 0 < data < len(_GFX9):
        raise UnknownInstructionError(f"no buffer has the data format {data}")
    return make(_GFX9[data], _KINDS[kind])


def of_text(text: str | None, major: int) -> Format:
    """The format of an instruction's modifier: names or a number; what it leaves out is 8 bits and UNORM."""
    if text is None:
        return make("8", "UNORM")
    if not text.startswith("["):
        return of_number(int(text, 0), major)
    data, kind = "8", "UNORM"
    for name in re.findall(r"\w+", text):
        if match := re.fullmatch(r"BUF_FMT_([\d_]+)_([A-Z]+)", name):
            data, kind = match.groups()
        elif name.startswith("BUF_DATA_FORMAT_"):
            data = name.removeprefix("BUF_DATA_FORMAT_")
        elif name.startswith("BUF_NUM_FORMAT_"):
            kind = name.removeprefix("BUF_NUM_FORMAT_")
        else:
            data = name
    return make(data, kind)
