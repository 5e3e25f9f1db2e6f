"""Vector instructions that CDNA 4 (gfx950) adds (CDNA 4 ISA guide, "Instructions"): bitwise ones of any three operands,
swaps between rows of lanes, and conversions to and from floats of 4 to 8 bits under a scale, 2^(exponent of an f32).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.bits_of_three import bits_of_three
from ..isa.catalogue import TYPES
from ..isa.parse import Instruction, Operand
from .alu import Step, Target, refuse_signs, special, vector
from .bits import saturate
from .convert import to_f16
from .dots import bf16_to_f32, to_bf16
from .float8 import SMALL_VALUES, power_of_two
from .float8_convert import encoder
from .float16 import stopping
from .floating import MAXIMUM, MINIMUM
from .mode import NEAREST, flush
from .operands import Read, read, write
from .output_modifiers import output_modifier
from .packed import packed, read_halves, stopped_bf16, write_halves
from .state import U32, Waves

U16 = np.uint16

# -- bits and lanes ----------------------------------------------------------------------------------------------------


def _bitwise(kind: str) -> Callable[[Instruction, Target], Step]:
    def build(ins: Instruction, target: Target) -> Step:
        table = ins.number("bitop3")
        destination, *texts = ins.operands
        select = ins.bits("op_sel", [0, 0, 0, 0])
        sources = [read(text, kind, bool(high)) for text, high in zip(texts, select, strict=False)]
        store = write(destination, kind, bool(select[3]))

        def step(g: Waves) -> None:
            a, b, c = (np.asarray(r(g)) for r in sources)
            store(g, bits_of_three(table, a, b, c))

        return step

    return build


special("v_bitop3_b32", _bitwise("u32"))
special("v_bitop3_b16", _bitwise("u16"))


def _shift_and_saturate(dtype: type) -> Callable:
    def function(a: np.ndarray, b: np.ndarray, n: np.ndarray) -> np.ndarray:
        by = (n & U32(31)).astype(np.int32)
        low, high = (saturate(x >> by, dtype).astype(dtype).view(np.uint8).astype(U16) for x in (a, b))
        return low | high << U16(8)

    return function


vector("v_ashr_pk_i8_i32", "u16", "i32 i32 u32", _shift_and_saturate(np.int8))
vector("v_ashr_pk_u8_i32", "u16", "i32 i32 u32", _shift_and_saturate(np.uint8))


def next_random(x: np.ndarray) -> np.ndarray:
    """The next of a sequence of random words."""
    return (x << U32(1)) ^ np.where(x >> U32(31), U32(197), U32(0))


vector("v_prng_b32", "u32", "u32", next_random)


def _swap_rows(rows: int) -> Callable[[Instruction, Target], Step]:
    """The odd groups of `rows` lanes of the first register change places with the even ones of the second."""

    def build(ins: Instruction, target: Target) -> Step:
        x, y = (o.index for o in ins.operands)
        lane = np.arange(target.lanes)
        partner, odd = lane ^ rows, (lane & rows) != 0

        def step(g: Waves) -> None:
            first, second = g.u[x], g.u[y]
            new = np.where(odd, second[:, partner], first), np.where(odd, second, first[:, partner])
            g.put(x, new[0])
            g.put(y, new[1])

        return step

    return build


special("v_permlane16_swap_b32", _swap_rows(16))
special("v_permlane32_swap_b32", _swap_rows(32))

# -- 16 bits -----------------------------------------------------------------------------------------------------------


def bf16_stopping(convert: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Floats to bf16 under MODE.FP16_OVFL: what overflows stops at the largest number, infinities stay."""
    return lambda x: stopped_bf16(convert(x), np.isfinite(x))


def _to_pair(kind: str, rounded: Callable[[int], Callable]) -> Callable[[Instruction, Target], Step]:
    def build(ins: Instruction, target: Target) -> Step:
        destination, *texts = ins.operands
        # CDNA 4's ISA guide rounds to nearest whatever MODE says.
        convert = rounded(NEAREST if target.gpu.major == 9 else target.mode.rounding(kind))
        if target.mode.f16_overflow:
            convert = stopping(convert) if kind == "f16" else bf16_stopping(convert)
        a, b = (read(text, "f32") for text in texts)
        modify = output_modifier(ins, kind, target, flushes=False)

        def step(g: Waves) -> None:
            halves = [np.broadcast_to(convert(np.asarray(r(g))), (g.count, g.lanes)) for r in (a, b)]
            both = np.stack(halves, axis=-1)
            write_halves(g, destination.index, (both if modify is None else modify(both)).view(U16))

        return step

    return build


special("v_cvt_pk_bf16_f32", _to_pair("bf16", lambda _: to_bf16))
special("v_cvt_pk_f16_f32", _to_pair("f16", to_f16))
vector("v_cvt_f32_bf16", "f32", "bf16", bf16_to_f32)
packed("v_pk_minimum3_f16", "f16", 3, lambda a, b, c: MINIMUM(MINIMUM(a, b), c))
packed("v_pk_maximum3_f16", "f16", 3, lambda a, b, c: MAXIMUM(MAXIMUM(a, b), c))

# -- small floats under a scale ----------------------------------------------------------------------------------------

WIDE = {  #: the type that holds it, and how it becomes float64
    "f32": (np.float32, lambda x: x.astype(np.float64)),
    "f16": (np.float16, lambda x: x.view(np.float16).astype(np.float64)),
    "bf16": (U16, lambda x: bf16_to_f32(x).astype(np.float64)),
}


def narrow_to(x: np.ndarray, kind: str) -> np.ndarray:
    """float64, within what float32 holds, as f32, f16 or bf16 bits."""
    if kind == "bf16":
        return to_bf16(x.astype(np.float32))
    return x.astype(WIDE[kind][0])


def exponent_of(operand: Operand) -> Callable[[Waves], np.ndarray]:
    """The scale in the exponent field of an f32; sign and fraction count for nothing."""
    scale = read(operand, "u32")
    return lambda g: power_of_two(scale(g) >> U32(23) & U32(0xFF))


def put_row(g: Waves, n: int, values: list[np.ndarray], kind: str) -> None:
    """Results one after another: f32 in a register each, 16-bit ones two to a register."""
    full = [np.broadcast_to(v, (g.count, g.lanes)) for v in values]
    if kind == "f32":
        for k, v in enumerate(full):
            g.put(n + k, v)
        return
    for k in range(0, len(full), 2):
        write_halves(g, n + k // 2, np.stack(full[k : k + 2], axis=-1).view(U16))


def _enlarge(small: str, wide: str, count: int) -> Callable[[Instruction, Target], Step]:
    """`count` neighbouring small floats, times the scale. op_sel picks the bytes where a register holds more."""
    bits, table = TYPES[small].bits, SMALL_VALUES[small]

    def build(ins: Instruction, target: Target) -> Step:
        destination, source, scale = ins.operands
        select, factor = ins.bits("op_sel", [0, 0, 0, 0]), exponent_of(scale)
        byte = 0 if count == 32 else 2 * select[0] if bits * count == 16 else select[0] + 2 * select[1]
        half = bool(select[2]) if count == 1 else False
        if source.kind == "v":
            words = [read(Operand("v", source.index + k), "u32") for k in range(max(bits * count // 32, 1))]
        else:
            words = [read(source, "u32")]

        def step(g: Waves) -> None:
            times, values = factor(g), []
            for k in range(count):
                at = 8 * byte + bits * k
                word = np.asarray(words[at // 32](g)).astype(np.uint64)
                if at % 32 + bits > 32:
                    word = word | np.asarray(words[at // 32 + 1](g)).astype(np.uint64) << np.uint64(32)
                code = (word >> np.uint64(at % 32)).astype(np.int64) & (1 << bits) - 1
                values.append(narrow_to(table[code] * times, wide))
            if count == 1 and wide != "f32":
                write(destination, "u16", half)(g, values[0].view(U16))
            else:
                put_row(g, destination.index, values, wide)

        return step

    return build


def nearest(kind: str) -> Callable[[np.ndarray], np.ndarray]:
    """float64 -> codes of fp4, fp6 or bf6, to nearest even; beyond the largest number, and for NaN, that number."""
    bits = TYPES[kind].bits
    positive = SMALL_VALUES[kind][: 1 << bits - 1]
    middles = (positive[1:] + positive[:-1]) / 2  # between neighbours, ascending

    def function(x: np.ndarray) -> np.ndarray:
        magnitude = np.where(np.isnan(x), np.inf, np.abs(x))
        below, above = (np.searchsorted(middles, magnitude, side=side) for side in ("left", "right"))
        code = np.where(below % 2 == 0, below, above)  # they differ in the middle alone
        return (code | np.signbit(x).astype(np.int64) << bits - 1).astype(U32)

    return function


def flushed(reader: Read, target: Target) -> Read:
    """f32 to be converted to a small float: before CDNA 5 denormals follow the mode (CDNA 4 ISA guide, 7.3)."""
    if target.gpu.major > 9 or not target.mode.flushes_inputs("f32"):
        return reader
    return lambda g: flush(np.asarray(reader(g)), "f32")


def halves_of(operand: Operand, kind: str) -> list[Read]:
    """How to read the two numbers of a register; a constant's second one is 0, as in packed arithmetic."""
    both = read_halves(operand, kind, 0, 1)
    return [lambda g: both(g)[..., 0], lambda g: both(g)[..., 1]]


def _shrink(small: str, wide: str) -> Callable[[Instruction, Target], Step]:
    """Two numbers over the scale, to the byte or half of the destination that op_sel's last bits pick."""
    bits = TYPES[small].bits

    def build(ins: Instruction, target: Target) -> Step:
        convert = encoder(small, ins, target) if bits == 8 else nearest(small)
        destination, *texts, scale = ins.operands
        select, factor = ins.bits("op_sel", [0, 0, 0, 0]), exponent_of(scale)
        # The destination's bit follows those of the sources in the text; bytes take two bits, the last of four.
        shift = U32(16 * select[len(texts) + 1] if bits == 8 else 8 * (select[2] + 2 * select[3]))
        keep, n = ~(U32((1 << 2 * bits) - 1) << shift), destination.index
        if wide == "f32":
            sources = [flushed(read(text, "f32"), target) for text in texts]
        else:
            refuse_signs(ins, *texts)
            sources = halves_of(texts[0], wide)
        widen = WIDE[wide][1]

        def step(g: Waves) -> None:
            low, high = (convert(widen(np.asarray(r(g))) / factor(g)) for r in sources)
            g.put(n, (g.u[n] & keep) | (low | high << U32(bits)) << shift)

        return step

    return build


for _wide in WIDE:
    for _small in ("fp8", "bf8", "fp4"):
        special(f"v_cvt_scalef32_pk_{_wide}_{_small}", _enlarge(_small, _wide, 2))
        special(f"v_cvt_scalef32_pk_{_small}_{_wide}", _shrink(_small, _wide))
    for _small in ("fp6", "bf6"):
        special(f"v_cvt_scalef32_pk32_{_wide}_{_small}", _enlarge(_small, _wide, 32))
for _small in ("fp8", "bf8"):
    for _wide in ("f32", "f16"):
        special(f"v_cvt_scalef32_{_wide}_{_small}", _enlarge(_small, _wide, 1))
