"""The floating-point part of the MODE register: rounding and denormals, as the builders of instructions see it.

The compiler sets the mode by the kernel descriptor and changes it by instructions with constant arguments, in straight
line around what needs it, also by what `s_getreg` had read before. So the mode is known where code is built:
`modes_of` follows it in program order.
Layout of MODE (CDNA 3, RDNA 3 and RDNA 4 ISA guides): [7:0] round_32, round_16_64, denorm_32, denorm_16_64, two bits
each; before RDNA 4 [8] DX10_CLAMP and [9] IEEE; [23] FP16_OVFL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..errors import UnknownInstructionError
from ..gpu import Gpu
from ..isa.parse import Instruction, Listing, Operand
from ..isa.registers import uses

NEAREST, UP, DOWN, ZERO = range(4)  #: rounding modes
_DX10_CLAMP, _IEEE, _FP16_OVFL = 8, 9, 23  #: their bits in MODE
KEPT = 0xFF | 1 << _DX10_CLAMP | 1 << _IEEE | 1 << _FP16_OVFL  #: the bits of MODE that are followed
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
    ieee: bool = True  #: before gfx12: min and max heed a signalling NaN, and output modifiers are ignored
    clamps_nan: bool = True  #: DX10_CLAMP, before gfx12: clamp makes 0 of a NaN

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
        """The bits of MODE that are followed."""
        low = self.round_32 | self.round_16_64 << 2 | self.denorm_32 << 4 | self.denorm_16_64 << 6
        return low | self.clamps_nan << _DX10_CLAMP | self.ieee << _IEEE | self.f16_overflow << _FP16_OVFL

    def with_bits(self, bits: int) -> Mode:
        """This mode with other `bits`."""
        flags = (bool(bits >> place & 1) for place in (_FP16_OVFL, _IEEE, _DX10_CLAMP))
        return Mode(bits & 3, bits >> 2 & 3, bits >> 4 & 3, bits >> 6 & 3, *flags)


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
        bool(listing.directive("ieee_mode", 1)) and has_ieee_mode(gpu),
        bool(listing.directive("dx10_clamp", 1)) or not has_ieee_mode(gpu),
    )


def has_ieee_mode(gpu: Gpu) -> bool:
    """Whether MODE has the bits IEEE and DX10_CLAMP, which RDNA 4 and 4m lack."""
    return gpu.major < 12 and not gpu.is_rdna_4m


def modes_of(listing: Listing, start: Mode, lanes: int) -> list[Mode]:
    """The mode that each instruction of a listing is built for. Constants are followed through scalar registers along
    straight code, and stand in the instructions afterwards that write MODE by them.
    """
    entries, labels = set(listing.entries.values()), set(listing.labels.values())
    modes, mode = [], start
    known: dict[int, int] = {}  #: what scalar registers hold
    for index, ins in enumerate(listing.instructions):
        if index in entries:  # callers hand over the mode that the kernel started with
            mode = start
        if index in labels:
            known = {}
        modes.append(mode)
        if ins.name == "s_setreg_b32" and ins.operands[-1].kind == "s" and ins.operands[-1].index in known:
            ins.operands = (*ins.operands[:-1], Operand("const", value=known[ins.operands[-1].index]))
        mode = mode_after(ins, mode)
        _note(ins, mode, known, lanes)
    return modes


def _note(ins: Instruction, mode: Mode, known: dict[int, int], lanes: int) -> None:
    """What an instruction leaves in scalar registers."""
    if ins.name in ("s_swappc_b64", "s_call_b64"):
        known.clear()
    value: int | None = None
    if ins.name in ("s_mov_b32", "s_movk_i32"):
        source = ins.operands[1]
        value = known.get(source.index) if source.kind == "s" else None
        value = source.value if isinstance(source.value, int) else value
    elif ins.name == "s_getreg_b32" and (field := mode_field(ins)) is not None:
        value = mode.bits >> field[0] & (1 << field[1]) - 1
    if value is not None:
        known[ins.operands[0].index] = value & 0xFFFFFFFF
    elif known:
        written = uses(ins, lanes).writes_s
        for n in [n for n in known if written >> n & 1]:
            del known[n]


def mode_after(ins: Instruction, mode: Mode) -> Mode:
    """The mode that instructions after `ins` run under.

    Raises UnknownInstructionError for a write to MODE whose value is not a constant.
    """
    if ins.name == "s_denorm_mode":
        return mode.with_bits(mode.bits & ~0xF0 | (_constant(ins, 0) & 0xF) << 4)
    if ins.name == "s_round_mode":
        return mode.with_bits(mode.bits & ~0x0F | _constant(ins, 0) & 0xF)
    if ins.name not in ("s_setreg_b32", "s_setreg_imm32_b32"):
        return mode
    field = mode_field(ins)
    if field is None:
        return mode
    offset, size = field
    mask = ((1 << size) - 1) << offset & KEPT
    return mode if not mask else mode.with_bits(mode.bits & ~mask | _constant(ins, 1) << offset & mask)


def mode_field(ins: Instruction) -> tuple[int, int] | None:
    """(offset, size) of the bits of MODE that an s_setreg or s_getreg names; None for another register."""
    if match := _MODE_REGISTER.search(ins.text):
        return int(match[2] or 0), int(match[3] or 32)
    field = ins.operands[ins.name == "s_getreg_b32"].value  # as the machine has it: number, offset, size
    if isinstance(field, int) and field & 63 == 1:
        return field >> 6 & 31, (field >> 11 & 31) + 1
    return None


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
