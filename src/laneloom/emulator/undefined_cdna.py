"""Strict mode: undefined bits through instructions of CDNA that go by parts of registers: SDWA, pairs of f32, rows of
small floats, of which compilers use one where they have no instruction for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..isa.catalogue import TYPES
from ..isa.parse import VCC, Instruction, Operand
from ..isa.registers import results
from . import sdwa
from .alu import VECTOR
from .cdna5_convert import scales_taken
from .shadow import FULL, Shadow
from .state import U32, U64, Waves
from .undefined_bits import BITWISE, bits_written
from .undefined_carry import value_of

_NARROWS = re.compile(r"v_cvt_scalef32_(?:sr_)?pk(\d+)_(fp8|bf8|fp6|bf6|fp4)_(f32|f16|bf16)")
_WIDENS = re.compile(r"v_cvt_scale(?:f32)?_pk(8|16|32)_(f32|f16|bf16)_(fp8|bf8|fp6|bf6|fp4)")
_WIDE_PAIRS = re.compile(r"v_pk_\w+_[uf]64")
_PAIRS = frozenset({"v_pk_fma_f32", "v_pk_mul_f32", "v_pk_add_f32", "v_pk_mov_b32"})


def cdna_rule(ins: Instruction) -> Callable[[Waves], None] | None:
    """The rule of such an instruction; None for others."""
    if sdwa.is_sdwa(ins):
        return _sdwa_rule(ins)
    if match := _NARROWS.fullmatch(ins.name):
        return _narrowing_rule(ins, int(match[1]), 32 if match[3] == "f32" else 16, TYPES[match[2]].bits)
    if match := _WIDENS.fullmatch(ins.name):
        return _widening_rule(ins, int(match[1]), TYPES[match[3]].bits, 32 if match[2] == "f32" else 16)
    if _WIDE_PAIRS.fullmatch(ins.name):
        return _wide_pairs_rule(ins)
    return _pairs_rule(ins) if ins.name in _PAIRS else None


def _part_of(g: Waves, ins: Instruction, position: int) -> tuple[np.ndarray, np.ndarray]:
    """Value and undefined bits of what source 0 or 1 selects, from bit 0 on."""
    first, bits = sdwa.selection(ins, f"src{position}_sel")
    operand, up = ins.operands[1 + position], U32(32 - bits)
    found = []
    for word in (value_of(g, operand), g.shadow.of(operand)):
        x = np.asarray(word, U32) >> U32(first) << up
        found.append((x.view(np.int32) >> np.int32(up)).view(U32) if operand.signed else x >> up)
    return found[0], found[1]


def _sdwa_bitwise_rule(ins: Instruction, function: Callable | None) -> Callable[[Waves], None]:
    """As for the whole registers, of the parts that are selected; what dst_sel leaves over and pads is defined.

    function: from BITWISE; None: VCC chooses one of the sources.
    """
    part, (first, bits), n = bits_written(ins, 9), sdwa.selection(ins, "dst_sel"), ins.operands[0].index
    extends = ins.modifiers.get("dst_unused") == "UNUSED_SEXT"

    def follow(g: Waves) -> None:
        if function is None:
            no, yes = (_part_of(g, ins, k)[1] for k in range(2))
            undefined = np.where(g.shadow.mask(g, VCC), FULL, np.where(g.mask(VCC), yes, no))
        else:
            undefined = function(*(_part_of(g, ins, k) for k in range(len(ins.operands) - 1)))[1]
        undefined = undefined & U32((1 << bits) - 1)
        if extends:  # by the highest bit
            up = np.int32(32 - bits)
            undefined = (undefined.view(np.int32) << up >> up).view(U32)
        g.shadow.put(g, n, undefined << U32(first), part)

    return follow


def _sdwa_rule(ins: Instruction) -> Callable[[Waves], None]:
    """Any undefined bit of the selected parts makes the selected part of the result undefined."""
    if ins.name in BITWISE or ins.name == "v_cndmask_b32":
        return _sdwa_bitwise_rule(ins, BITWISE.get(ins.name))
    count, part = results(ins), bits_written(ins, 9)
    sources = ins.operands[count:]
    parts = [((1 << bits) - 1) << first for first, bits in (sdwa.selection(ins, f"src{k}_sel") for k in range(2))]
    op = VECTOR[ins.name]
    own = [ins.operands[0]] if op.reads_dst else []
    reads_vcc = op.src[-1:] == ("mask",) or "_co_ci_" in ins.name

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        bad = shadow.mask(g, VCC) if reads_vcc else np.zeros((g.count, 1), np.bool_)
        for k, operand in enumerate([*sources[:2], *own]):
            bad = bad | ((shadow.of(operand) & U32(parts[k] if k < len(sources[:2]) else 0xFFFFFFFF)) != 0)
        for destination in ins.operands[:count]:
            if destination.kind == "s":
                shadow.put_mask(g, destination.index, bad & g.active())
            else:
                shadow.put(g, destination.index, np.where(bad, FULL, U32(0)), part)

    return follow


def _pairs_rule(ins: Instruction) -> Callable[[Waves], None]:
    """Each of the two results has the undefined bits, or is undefined by the words, that its selection reads."""
    destination, *sources = ins.operands
    count = len(sources)
    moves = ins.name == "v_pk_mov_b32"
    if moves:
        words = [[(sources[k], ins.bits("op_sel", [0, 0])[k])] for k in range(2)]
    else:
        selections = ins.bits("op_sel", [0] * count), ins.bits("op_sel_hi", [1] * count)
        words = [list(zip(sources, chosen, strict=False)) for chosen in selections]

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        results_of = []
        for read in words:
            bits = U32(0)
            for operand, word in read:
                if operand.kind in ("v", "s"):
                    bits = bits | shadow.of(Operand(operand.kind, operand.index + word))
            results_of.append(bits if moves else np.where(np.asarray(bits) != 0, FULL, U32(0)))
        for k, bits in enumerate(results_of):
            shadow.put(g, destination.index + k, np.array(np.broadcast_to(bits, (g.count, g.lanes))))

    return follow


def _wide_pairs_rule(ins: Instruction) -> Callable[[Waves], None]:
    """Each of two 64-bit results is undefined by its own half of the vector operands, and by all of the scalar ones."""
    destination, *sources = ins.operands

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        results_of = []
        for place in range(2):
            bits = U32(0)
            for operand in sources:
                each = operand.count // 2 if operand.kind == "v" else operand.count
                first = operand.index + (place * each if operand.kind == "v" else 0)
                for n in range(first, first + each) if operand.kind in "vs" else ():
                    bits = bits | shadow.of(Operand(operand.kind, n))
            results_of.append(np.where(np.asarray(bits) != 0, FULL, U32(0)))
        for k, bits in enumerate(results_of):
            for n in range(destination.index + 2 * k, destination.index + 2 * k + 2):
                shadow.put(g, n, np.array(np.broadcast_to(bits, (g.count, g.lanes))))

    return follow


def _narrowing_rule(ins: Instruction, count: int, wide: int, narrow: int) -> Callable[[Waves], None]:
    """Of `count` numbers of `wide` bits, each makes `narrow` bits of the result; the scale and random bits make all."""
    destination, source, *others = ins.operands
    every = U64((1 << narrow) - 1)

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        all_bad = np.zeros((g.count, 1), np.bool_)
        for operand in others:
            all_bad = all_bad | (np.asarray(shadow.of(operand)) != 0)
        words = [np.zeros((g.count, g.lanes), U64) for _ in range(narrow * count // 32 + 1)]
        for k in range(count):
            word, half = divmod(wide * k, 32)
            bits = shadow.of(Operand(source.kind, source.index + word), None if wide == 32 else half > 0)
            where, shift = divmod(narrow * k, 32)
            field = np.where(all_bad | (np.asarray(bits) != 0), every, U64(0)) << U64(shift)
            words[where] |= field & U64(0xFFFFFFFF)
            words[where + 1] |= field >> U64(32)
        for k, word in enumerate(words[:-1]):
            shadow.put(g, destination.index + k, word.astype(U32))

    return follow


def _widening_rule(ins: Instruction, count: int, narrow: int, wide: int) -> Callable[[Waves], None]:
    """Of `count` numbers of `narrow` bits, each makes one of `wide` bits; the scale that a lane takes makes all."""
    destination, source, scale = ins.operands
    every, whole = U64((1 << narrow) - 1), U32((1 << wide) - 1)
    by_lane = ins.name.startswith("v_cvt_scale_")  # the scale's byte may lie in another lane

    def follow(g: Waves) -> None:
        shadow: Shadow = g.shadow
        of_scale = np.broadcast_to(np.asarray(shadow.of(scale), U32), (g.count, g.lanes))
        if by_lane:
            holder, first = scales_taken(ins, narrow, g.lanes)
            of_scale = of_scale[:, holder] >> first & U32(0xFF)
        words = [shadow.of(Operand(source.kind, source.index + k)).astype(U64) for k in range(narrow * count // 32)]
        words.append(np.zeros_like(words[0]))
        bits = [np.zeros((g.count, g.lanes), U32) for _ in range(wide * count // 32)]
        for k in range(count):
            where, shift = divmod(narrow * k, 32)
            code = (words[where] | words[where + 1] << U64(32)) >> U64(shift) & every
            to, up = divmod(wide * k, 32)
            bits[to] |= np.where((code != 0) | (of_scale != 0), whole, U32(0)) << U32(up)
        for k, word in enumerate(bits):
            shadow.put(g, destination.index + k, word)

    return follow
