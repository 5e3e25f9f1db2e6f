"""Operand -> function that reads it from `Waves` as a native numpy dtype, and type -> function that writes it.

Type names are those of AMD's ISA guides: b16 u16 i16 f16 bf16, b32 u32 i32 f32, b64 u64 i64 f64. A vector register
reads as [wave, lane], a scalar one as [wave, 1], a constant as a numpy scalar, so that everything broadcasts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import Operand, Wide
from .state import U32, U64, Waves

Read = Callable[[Waves], np.ndarray]
Write = Callable[[Waves, np.ndarray], None]

DTYPE = {
    "b16": np.uint16, "u16": np.uint16, "i16": np.int16, "f16": np.float16, "bf16": np.uint16,
    "b32": np.uint32, "u32": np.uint32, "i32": np.int32, "f32": np.float32,
    "b64": np.uint64, "u64": np.uint64, "i64": np.int64, "f64": np.float64,
}  # fmt: skip
BITS = {name: np.dtype(t).itemsize * 8 for name, t in DTYPE.items()}
#: Upper halves of flat addresses that mean LDS and scratch; on CDNA 5 scratch of the lane in bits 25:20 of the half, of
#: which code looks at bits 31:26 alone to tell scratch from the others.
SHARED_APERTURE, PRIVATE_APERTURE, SCRATCH_APERTURE = 0x20000000, 0x20000001, 0x30000000
_APERTURES = {
    "src_shared_base": SHARED_APERTURE << 32, "src_shared_limit": SHARED_APERTURE << 32 | 0xFFFFFFFF,
    "src_private_base": PRIVATE_APERTURE << 32, "src_private_limit": PRIVATE_APERTURE << 32 | 0xFFFFFFFF,
    "src_flat_scratch_base_lo": SCRATCH_APERTURE << 32,
}  # fmt: skip
INLINE = frozenset(sign * x for sign in (1, -1) for x in (0.5, 1.0, 2.0, 4.0)) | {0.15915494309189532}
_HALF_OF_1_BY_PI = 0x3E22F983  #: in FP32
FLOATS = frozenset({"f16", "bf16", "f32", "f64"})


def constant_bits(value: int | float, kind: str) -> int:
    """The bits that an inline constant or literal stands for in an operand of type `kind`.

    A float constant is encoded in the operand's own format, for an integer in FP32's, of which one of 16 bits has the
    lower half (LLVM's encodings, and what it says of hardware). A literal has 32 bits: a 64-bit operand that is signed
    has them sign-extended, another integer zero-extended, and a float has them for its high half (RDNA and CDNA ISA
    guides, "Literal constants"; LLVM AMDGPU operand syntax). All 64 are there where it is Wide.
    """
    size = BITS[kind]
    if isinstance(value, float):
        if size == 64:
            bits = struct.unpack("<Q", struct.pack("<d", value))[0]
            return bits if value in INLINE else bits & ~0xFFFFFFFF
        if kind == "f16":
            return struct.unpack("<H", struct.pack("<e", value))[0]
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        if kind == "bf16":  # to nearest even, but for 1/(2 pi), whose inline constant is cut off
            return (bits + (0 if bits == _HALF_OF_1_BY_PI else 0x7FFF + (bits >> 16 & 1))) >> 16
        return bits & ((1 << size) - 1)
    if size == 64 and not isinstance(value, Wide) and not -16 <= value <= 64:
        signed = value - (1 << 64) if value >> 63 == 1 else value
        if -(1 << 31) <= signed < 1 << 32:  # others are no literals but addresses that calls.py writes
            low = value & 0xFFFFFFFF
            value = low << 32 if kind == "f64" else (low ^ 1 << 31) - (1 << 31) if kind == "i64" else low
    return value & ((1 << size) - 1)


def constant_word(value: int | float, kind: str) -> int:
    """The 32 bits that a constant of a 16-bit operand has, of which op_sel picks a half (LLVM, getInlineEncodingV216).

    An inline float stands in the low half as f16 or bf16, as f32 bits for integers; an integer is 32 bits wide.
    """
    return constant_bits(value, kind if isinstance(value, float) and kind in ("f16", "bf16") else "b32")


def constant(operand: Operand, kind: str, high: bool = False) -> np.ndarray:
    """A constant operand as a numpy scalar of the operand's type, source modifiers applied; `high` as in `read`."""
    assert isinstance(operand.value, int | float)
    high = high and BITS[kind] == 16
    bits = constant_word(operand.value, kind) >> 16 if high else constant_bits(operand.value, kind)
    value = np.array(bits, f"u{BITS[kind] // 8}").view(DTYPE[kind])
    return np.asarray(modify(value, operand.negate, operand.absolute))


def modify(x, negate: bool, absolute: bool):
    """Source modifiers: |x| then -x, on the sign bit, so that NaN keeps its payload."""
    if x.dtype.kind == "f":
        if absolute:
            x = np.abs(x)
        return np.negative(x) if negate else x
    sign = 1 << (x.dtype.itemsize * 8 - 1)
    if absolute:
        x = x & x.dtype.type(sign - 1)
    return x ^ x.dtype.type(sign) if negate else x


def read(operand: Operand, kind: str, high: bool = False) -> Read:
    """How to read `operand` as `kind`; `high` takes the upper 16 bits (op_sel or a `.h` suffix)."""
    plain = _read_plain(operand, kind, high or operand.half == "h")
    if operand.kind == "const" or not (operand.negate or operand.absolute):
        return plain
    negate, absolute = operand.negate, operand.absolute
    return lambda g: modify(plain(g), negate, absolute)


def _read_plain(operand: Operand, kind: str, high: bool) -> Read:
    n, size, dtype = operand.index, BITS[kind], DTYPE[kind]
    if operand.kind == "const":
        value = constant(operand, kind, high)
        return lambda g: value
    if operand.kind == "v":
        if size == 32:
            if dtype is np.float32:
                return lambda g: g.f[n]
            if dtype is np.int32:
                return lambda g: g.i[n]
            return lambda g: g.u[n]
        if size == 64:
            return (lambda g: g.pair(n)) if dtype is U64 else (lambda g: g.pair(n).view(dtype))
        part = int(high)
        return lambda g: g.h[n].view(dtype)[..., part]
    if operand.kind == "s":
        if size == 32:
            return (lambda g: g.sv[n]) if dtype is U32 else (lambda g: g.sv[n].view(dtype))
        if size == 64:
            return lambda g: g.scalar64(n)[:, None].view(dtype)
        shift = U32(16 if high else 0)
        return lambda g: (g.sv[n] >> shift).astype(np.uint16).view(dtype)
    if operand.value == "src_scc" or operand.value == "scc":
        return lambda g: g.scc.astype(f"u{size // 8}")[:, None].view(dtype)
    if operand.value in ("src_vccz", "vccz"):
        from ..isa.parse import VCC

        return lambda g: (~g.mask(VCC).any(axis=1)).astype(f"u{size // 8}")[:, None].view(dtype)
    if operand.value in ("src_execz", "execz"):
        return lambda g: (~g.active().any(axis=1)).astype(f"u{size // 8}")[:, None].view(dtype)
    if operand.value in _APERTURES:  # 32 bits are the lower ones, zeros or ones, for all that LLVM knows
        aperture = np.array([[_APERTURES[str(operand.value)] & (1 << size) - 1]], f"u{size // 8}").view(dtype)
        return lambda g: aperture
    if operand.value == "src_flat_scratch_base_hi" and size == 32:
        half = np.array([[SCRATCH_APERTURE]], U32).view(dtype)
        return lambda g: half
    raise UnknownInstructionError(f"operand {operand.value!r} is not implemented")


def read_mask(operand: Operand) -> Read:
    """How to read a lane mask: an SGPR (pair) or a constant, as booleans [wave, lane]."""
    if operand.kind == "s":
        n = operand.index
        return lambda g: g.mask(n)
    if operand.kind == "const":
        bits = int(operand.value) & ((1 << 64) - 1)

        def from_constant(g: Waves) -> np.ndarray:
            return np.array([[bool(bits >> lane & 1) for lane in range(g.lanes)]])

        return from_constant
    raise UnknownInstructionError(f"{operand.value!r} cannot be a lane mask")


def write(operand: Operand, kind: str, high: bool = False) -> Write:
    """How to write `kind` lanes to a vector register where EXEC is set; 16-bit writes keep the other half."""
    n, size = operand.index, BITS[kind]
    if operand.kind != "v":
        raise UnknownInstructionError("a vector instruction cannot write a scalar register here")
    if size == 32:
        return lambda g, x: g.put(n, np.asarray(x))
    if size == 64:

        def pair(g: Waves, x: np.ndarray) -> None:
            words = np.ascontiguousarray(np.broadcast_to(x, (g.count, g.lanes))).view(U32).reshape(g.count, g.lanes, 2)
            g.put(n, words[..., 0])
            g.put(n + 1, words[..., 1])

        return pair
    part = int(high or operand.half == "h")

    def half(g: Waves, x: np.ndarray) -> None:
        bits = np.asarray(x).view(np.uint16)
        if g.exec is None:
            g.h[n][..., part] = bits
        else:
            np.copyto(g.h[n][..., part], bits, where=g.exec)

    return half


def read_scalar(operand: Operand, kind: str) -> Read:
    """How to read a scalar operand as [wave] (or a numpy scalar)."""
    if operand.kind == "const":
        value = constant(operand, kind)
        return lambda g: value
    if operand.kind == "s" and not (operand.negate or operand.absolute):
        n, dtype = operand.index, DTYPE[kind]
        if BITS[kind] == 32:
            return (lambda g: g.s[n]) if dtype is U32 else (lambda g: g.s[n].view(dtype))
        if BITS[kind] == 64:
            return (lambda g: g.scalar64(n)) if dtype is U64 else (lambda g: g.scalar64(n).view(dtype))
    inner = read(operand, kind)
    return lambda g: inner(g)[..., 0]
