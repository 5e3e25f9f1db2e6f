"""Conversions of CDNA 5 (gfx1250) between f16 and 8-bit floats, and between 8 or 16 small floats and wide ones.

Sources: LLVM's definitions; for the scales of `v_cvt_scale_*`, MLIR's `amdgpu.scaled_ext_packed_matrix`, and for 8 bits
what Triton's upcast of MX operands relies on: the two name different encodings of `scale_sel` there, and the ones that
only MLIR names are refused. `v_cvt_scalef32_*` scale, and round by random bits, as CDNA 4's do, which rocjitsu's tests
(ROCm/rocm-systems) say of CDNA 5 too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.catalogue import TYPES
from ..isa.parse import Instruction
from .alu import Step, Target, refuse_signs, special
from .cdna4_alu import WIDE, exponent_of, halves_of, narrow_to, nearest, next_random, put_row
from .cdna4_stochastic import stochastic
from .float8 import SMALL_VALUES, power_of_two
from .float8_convert import byte_number, encoder
from .operands import read, write
from .packed import write_halves
from .state import U32, Waves

U16 = np.uint16

# -- f16 and 8 bits ----------------------------------------------------------------------------------------------------


def _decode(kind: str) -> Callable[[Instruction, Target], Step]:
    values = SMALL_VALUES[kind].astype(np.float16)

    def build(ins: Instruction, target: Target) -> Step:
        destination, text = ins.operands
        shift, source, store = U32(8 * byte_number(ins, 8)), read(text, "b32"), write(destination, "f16")
        return lambda g: store(g, values[(source(g) >> shift) & U32(0xFF)])

    return build


def _decode_pair(kind: str) -> Callable[[Instruction, Target], Step]:
    values = SMALL_VALUES[kind].astype(np.float16).view(U16)

    def build(ins: Instruction, target: Target) -> Step:
        destination, text = ins.operands
        source = read(text, "b16")

        def step(g: Waves) -> None:
            pair = np.broadcast_to(np.asarray(source(g)), (g.count, g.lanes))
            write_halves(g, destination.index, np.stack([values[pair & U16(0xFF)], values[pair >> U16(8)]], axis=-1))

        return step

    return build


def _encode_pair(kind: str) -> Callable[[Instruction, Target], Step]:
    def build(ins: Instruction, target: Target) -> Step:
        destination, text = ins.operands
        refuse_signs(ins, text)
        convert, store = encoder(kind, ins, target), write(destination, "b16")
        low, high = halves_of(text, "f16")

        def step(g: Waves) -> None:
            a, b = (convert(np.asarray(r(g), np.float64)) for r in (low, high))
            store(g, (a | b << U32(8)).astype(U16))

        return step

    return build


for _kind in ("fp8", "bf8"):
    special(f"v_cvt_f16_{_kind}", _decode(_kind))
    special(f"v_cvt_pk_f16_{_kind}", _decode_pair(_kind))
    special(f"v_cvt_pk_{_kind}_f16", _encode_pair(_kind))

# -- 8 or 16 at once ---------------------------------------------------------------------------------------------------

#: scale_sel -> the byte that lanes 0 to 15 take, the one that lanes 16 to 31 take, and the first lane of those whose
#: registers hold them: lane l reads that of lane first + l % 16.
_SCALES_4_6 = {0: (0, 1, 0), 2: (2, 3, 0), 1: (0, 2, 0), 4: (0, 1, 16), 6: (2, 3, 16), 5: (0, 2, 16)}
_SCALES_8 = {0: (0, 0, 0), 8: (0, 1, 0)}


def scales_taken(ins: Instruction, bits: int, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Per lane of `v_cvt_scale_*` the lane that holds its scale, and the scale's first bit there."""
    known = _SCALES_8 if bits == 8 else _SCALES_4_6
    if ins.number("scale_sel") not in known:
        raise UnknownInstructionError(f"{ins.text!r}: what this scale_sel selects is not documented")
    low, high, first = known[ins.number("scale_sel")]
    lane = np.arange(lanes)
    return first + lane % 16, U32(8) * np.where(lane < 16, low, high).astype(U32)


def _enlarge(small: str, wide: str, count: int) -> Callable[[Instruction, Target], Step]:
    bits, table = TYPES[small].bits, SMALL_VALUES[small]

    def build(ins: Instruction, target: Target) -> Step:
        destination, source, scale = ins.operands
        holder, shift = scales_taken(ins, bits, target.lanes)
        scales, n = read(scale, "u32"), source.index

        def step(g: Waves) -> None:
            words = np.broadcast_to(np.asarray(scales(g)), (g.count, g.lanes))[:, holder]
            times, values = power_of_two(words >> shift & U32(0xFF)), []
            for k in range(count):
                code = _field(g, n, bits * k, bits)
                values.append(narrow_to(table[code] * times, wide))
            put_row(g, destination.index, values, wide)

        return step

    return build


def _field(g: Waves, n: int, at: int, bits: int) -> np.ndarray:
    """`bits` bits from bit `at` on of the registers from n on."""
    word = g.u[n + at // 32].astype(np.uint64)
    if at % 32 + bits > 32:
        word = word | g.u[n + at // 32 + 1].astype(np.uint64) << np.uint64(32)
    return (word >> np.uint64(at % 32)).astype(np.int64) & (1 << bits) - 1


def _shrink(small: str, wide: str, count: int, random: bool = False) -> Callable[[Instruction, Target], Step]:
    bits, (_, widen) = TYPES[small].bits, WIDE[wide]

    def build(ins: Instruction, target: Target) -> Step:
        convert = encoder(small, ins, target) if bits == 8 else nearest(small)
        by_chance = stochastic(small, ins, target)
        destination, source, *others, scale = ins.operands
        factor, n = exponent_of(scale), source.index
        seed = read(others[0], "u32") if random else None

        def step(g: Waves) -> None:
            times, words = factor(g), [np.zeros((g.count, g.lanes), np.uint64) for _ in range(bits * count // 32 + 1)]
            chance = None if seed is None else np.asarray(seed(g))
            for k in range(count):
                if wide == "f32":
                    x = g.f[n + k].astype(np.float64)
                else:
                    x = widen((g.u[n + k // 2] >> U32(16 * (k % 2))).astype(U16))
                if chance is None:
                    code = convert(x / times)
                else:
                    code, chance = by_chance(x / times, chance), next_random(chance)
                code, at = np.asarray(code).astype(np.uint64), bits * k
                words[at // 32] |= code << np.uint64(at % 32)
                words[at // 32 + 1] |= code << np.uint64(at % 32) >> np.uint64(32)
            for k, word in enumerate(words[:-1]):
                g.put(destination.index + k, word.astype(U32))

        return step

    return build


for _wide in WIDE:
    for _small, _count in (("fp8", 8), ("bf8", 8), ("fp4", 8), ("fp6", 16), ("bf6", 16)):
        special(f"v_cvt_scale_pk{_count}_{_wide}_{_small}", _enlarge(_small, _wide, _count))
        special(f"v_cvt_scalef32_pk{_count}_{_small}_{_wide}", _shrink(_small, _wide, _count))
        special(f"v_cvt_scalef32_sr_pk{_count}_{_small}_{_wide}", _shrink(_small, _wide, _count, random=True))
