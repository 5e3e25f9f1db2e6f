"""The floating-point part of the MODE register: rounding and denormals, as the builders of instructions see it.

The compiler sets the mode by the kernel descriptor and changes it by instructions with constant arguments, in straight
line around what needs it. So the mode is known where code is built: `mode_after` follows it in program order.
Layout of MODE[7:0] (RDNA 3 and RDNA 4 ISA guides): round_32, round_16_64, denorm_32, denorm_16_64, two bits each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from ..errors import UnknownInstructionError
from ..gpu import Gpu
from ..isa.parse import Instruction, Listing

NEAREST, UP, DOWN, ZERO = range(4)  #: rounding modes
_FP16_OVFL = 23  #: its bit in MODE
_ROUNDINGS = ("nearest even", "towards +infinity", "towards -infinity", "towards zero")
_MODE_REGISTER = re.compile(r"hwreg\(\s*(HW_REG_MODE|HW_REG_WAVE_MODE|1)\s*(?:,\s*(\d+)\s*,\s*(\d+)\s*)?\)")


@dataclass(frozen=True)
class Mode:
    """Rounding (0 nearest even, 1 up, 2 down, 3 to zero) and denormals (bit 0: inputs kept, bit 1: results kept)."""

    round_32: int = NEAREST
    round_16_64: int = NEAREST
    denorm_32: int = 3
    denorm_16_64: int = 3
    f16_overflow: bool = False  #: FP16_OVFL: what overflows an f16 or 8-bit float stops at the largest number
    ieee: bool = True  #: gfx11: min and max turn a signalling NaN into a quiet one instead of ignoring it

    def rounding(self, kind: str) -> int:
        """The rounding mode of results of type `kind`."""
        return self.round_32 if kind == "f32" else self.round_16_64

    def flushes_inputs(self, kind: str) -> bool:
        """Whether denormal operands of type `kind` read as zero."""
        return kind in _FLUSHED and not self._denorm(kind) & 1

    def flushes_results(self, kind: str) -> bool:
        """Whether denormal results of type `kind` become zero."""
        return kind in _FLUSHED and not self._denorm(kind) & 2

    def _denorm(self, kind: str) -> int:
        return self.denorm_32 if kind == "f32" else self.denorm_16_64

    @property
    def bits(self) -> int:
        """MODE[7:0]."""
        return self.round_32 | self.round_16_64 << 2 | self.denorm_32 << 4 | self.denorm_16_64 << 6

    def with_bits(self, bits: int) -> Mode:
        """This mode with another MODE[7:0]."""
        return replace(
            self, round_32=bits & 3, round_16_64=bits >> 2 & 3, denorm_32=bits >> 4 & 3, denorm_16_64=bits >> 6 & 3
        )


_FLUSHED = {"f16": np.uint16, "f32": np.uint32, "f64": np.uint64}
_EXPONENT = {"f16": 0x7C00, "f32": 0x7F800000, "f64": 0x7FF0000000000000}


def initial_mode(listing: Listing, gpu: Gpu) -> Mode:
    """The mode that a kernel's descriptor asks for (LLVM's defaults: fp32 flushed, fp16 and fp64 kept)."""
    return Mode(
        listing.directive("float_round_mode_32", 0),
        listing.directive("float_round_mode_16_64", 0),
        listing.directive("float_denorm_mode_32", 0),
        listing.directive("float_denorm_mode_16_64", 3),
        bool(listing.directive("fp16_overflow", 0)),
        bool(listing.directive("ieee_mode", 1)) and not gpu.is_rdna_4m,
    )


def mode_after(ins: Instruction, mode: Mode) -> Mode:
    """The mode that instructions after `ins` run under.

    Raises UnknownInstructionError for a write to MODE whose value is not a constant.
    """
    if ins.name == "s_denorm_mode":
        return mode.with_bits(mode.bits & 0x0F | (_constant(ins, 0) & 0xF) << 4)
    if ins.name == "s_round_mode":
        return mode.with_bits(mode.bits & 0xF0 | _constant(ins, 0) & 0xF)
    if ins.name not in ("s_setreg_b32", "s_setreg_imm32_b32"):
        return mode
    field = mode_field(ins)
    if field is None:
        return mode
    offset, size = field
    if offset <= _FP16_OVFL < offset + size:
        mode = replace(mode, f16_overflow=bool(_constant(ins, 1) >> (_FP16_OVFL - offset) & 1))
    if offset >= 8:
        return mode
    mask = ((1 << size) - 1) << offset & 0xFF
    return mode.with_bits(mode.bits & ~mask | _constant(ins, 1) << offset & mask)


def mode_field(ins: Instruction) -> tuple[int, int] | None:
    """(offset, size) of the bits of MODE that an s_setreg or s_getreg names; None for another register."""
    match = _MODE_REGISTER.search(ins.text)
    return (int(match[2] or 0), int(match[3] or 32)) if match else None


def _constant(ins: Instruction, position: int) -> int:
    operand = ins.operands[min(position, len(ins.operands) - 1)]
    if operand.kind == "const" and isinstance(operand.value, int):
        return operand.value
    raise UnknownInstructionError(f"{ins.text!r} writes a value to the MODE register that is not a constant")


def flush(x: np.ndarray, kind: str) -> np.ndarray:
    """Denormals as zeros of the same sign."""
    raw = np.asarray(x).view(_FLUSHED[kind])
    integer = raw.dtype.type
    sign = integer(1 << (raw.dtype.itemsize * 8 - 1))
    if raw.ndim == 0:
        return np.where(raw & integer(_EXPONENT[kind]), raw, raw & sign).view(x.dtype)
    # Without the sign and less one, denormals are the smallest numbers and zeros the largest. Mostly there are none.
    least = _EXPONENT[kind] & -_EXPONENT[kind]
    place = raw << integer(1)
    place -= integer(1)
    denormal = place < integer(2 * least - 1)
    return np.where(denormal, raw & sign, raw).view(x.dtype) if denormal.any() else x


def refuse_rounding(ins: Instruction, rounding: int) -> UnknownInstructionError:
    """The error for an operation that is implemented for nearest even only."""
    return UnknownInstructionError(f"{ins.name} exists here for rounding to nearest only, not {_ROUNDINGS[rounding]}")
