"""Dual-issue pairs (VOPD): which are legal, which single instructions could be paired, and banks of WMMA operands.

Sources: AMD RDNA 3 and RDNA 4 ISA guides, "Dual Issue VALU"; what the guide leaves open is as LLVM's assembler has it,
against which a test holds `why_illegal`. A vector register lies in bank (number mod 4). Each bank has a source cache
with a port for each of SRC0, SRC1 and SRC2, so two halves of a pair must not want one port of one bank. On gfx12 they
may share a register, and two moves are free of the rule.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace

from ..gpu import Gpu
from .check_code import Code, Step
from .finding import Finding, found
from .listing import Kind
from .parse import VCC, Instruction, Operand
from .registers import uses

_BOTH = frozenset(
    """v_fmac_f32 v_fmaak_f32 v_fmamk_f32 v_mul_f32 v_add_f32 v_sub_f32 v_subrev_f32 v_mul_dx9_zero_f32 v_mov_b32
    v_cndmask_b32 v_dot2acc_f32_f16 v_dot2acc_f32_bf16""".split()
)
_NUMBERS = frozenset({"v_max_num_f32", "v_min_num_f32"})
_OF_GENERATION = {11: frozenset({"v_max_f32", "v_min_f32"}), 117: _NUMBERS, 12: _NUMBERS}
_ONLY_Y = frozenset({"v_add_nc_u32", "v_lshlrev_b32", "v_and_b32"})
_COMMUTES = frozenset(
    "v_fmac_f32 v_mul_f32 v_add_f32 v_mul_dx9_zero_f32 v_max_f32 v_min_f32 v_max_num_f32 v_min_num_f32 v_add_nc_u32 "
    "v_and_b32".split()
)
_INLINE_FLOATS = frozenset((0.0, 0.5, 1.0, 2.0, 4.0, 0.15915494))
_INLINE_BITS = frozenset(struct.unpack("<I", struct.pack("<f", s * f))[0] for f in _INLINE_FLOATS for s in (1, -1) if f)
_FMA = ("v_fmac_f32", "v_fma_f32", "v_mul_f32", "v_add_f32", "v_fmaak_f32", "v_fmamk_f32")


def rules_of(gpu: Gpu) -> int:
    """Whose rules hold: 11, 12, or 117 for RDNA 4m, which has gfx12's opcodes and frees two moves, but no more."""
    return 117 if gpu.is_rdna_4m else gpu.major


def opcodes(major: int) -> tuple[frozenset[str], frozenset[str]]:
    """What the X half and what the Y half may be, on gfx11 or gfx12; CDNA has no pairs."""
    if major not in _OF_GENERATION:
        return frozenset(), frozenset()
    x = _BOTH | _OF_GENERATION[major]
    return x, x | _ONLY_Y


def ports(ins: Instruction) -> tuple[Operand | None, Operand | None, Operand | None]:
    """The operands that a half reads through SRC0, SRC1 and SRC2."""
    if not ins.operands:
        return None, None, None
    dst, sources = ins.operands[0], [*ins.operands[1:], None, None, None]
    if ins.name == "v_fmamk_f32":  # D = S0 * K + S1: S1 uses the port of SRC2
        return sources[0], None, sources[2]
    if ins.name == "v_fmaak_f32" or ins.name == "v_cndmask_b32":
        return sources[0], sources[1], None
    return sources[0], sources[1], dst if ins.name.startswith(("v_fmac", "v_dot2acc")) else None


def why_illegal(x: Instruction, y: Instruction, major: int, lanes: int = 32) -> list[str]:
    """Every rule that the pair x :: y breaks, as sentences; empty for a legal pair."""
    broken = []
    if lanes != 32:
        broken.append("only waves of 32 lanes execute pairs")
    allowed = opcodes(major)
    for half, ins, names in (("first", x, allowed[0]), ("second", y, allowed[1])):
        if ins.name not in names:
            where = " (it can be the second)" if ins.name in allowed[1] else f" on gfx{major}"
            broken.append(f"{ins.name.replace('v_', 'v_dual_', 1)} cannot be the {half} half{where}")
        if ins.modifiers or any(o.negate or o.absolute or o.half for o in ins.operands) or "dpp" in ins.encoding:
            broken.append(f"the {half} half has a modifier, for which a pair has no room")
        second = ports(ins)[1] or (ports(ins)[2] if ins.name == "v_fmamk_f32" else None)
        if second is not None and second.kind != "v":
            broken.append(f"the {half} half's second source is not a vector register")
    if broken or not (x.operands and y.operands):
        return broken
    dx, dy = x.operands[0], y.operands[0]
    if dx.kind == "v" and dy.kind == "v" and (dx.index ^ dy.index) & 1 == 0:
        kind = "odd" if dx.index & 1 else "even"
        broken.append(f"v{dx.index} and v{dy.index} are both {kind}: one destination must be even, the other odd")
    broken += _conflicts(x, y, major)
    scalars = {n for ins in (x, y) for n in _scalars(ins)}
    literals = {n for ins in (x, y) for n in _literals(ins)}
    if len(literals) > 1:
        broken.append("the halves have different literals, and there is room for one")
    elif len(scalars) + len(literals) > 2:
        count = f"{len(scalars)} scalar registers" + (" and a literal" if literals else "")
        broken.append(f"{count} (VCC counts): a pair has room for 2 together")
    return broken


def _conflicts(x: Instruction, y: Instruction, major: int) -> list[str]:
    """Ports of a register bank that both halves want."""
    broken = []
    moves = major in (12, 117) and x.name == y.name == "v_mov_b32"
    for port, (a, b) in enumerate(zip(ports(x), ports(y), strict=True)):
        if a is None or b is None or a.kind != "v" or b.kind != "v":
            continue
        if (major == 12 and a.index == b.index) or (moves and port == 0):
            continue
        if a is x.operands[0] and b is y.operands[0]:
            continue  # v_fmac adds to its destination: that one is even and one odd is a rule of its own
        banks = 4 if port < 2 else 2
        if a.index % banks == b.index % banks:
            what = f"bank {a.index % 4}" if banks == 4 else ("odd registers" if a.index & 1 else "even registers")
            broken.append(f"v{a.index} and v{b.index} are both SRC{port} from {what}")
    return broken


def _scalars(ins: Instruction) -> set[int]:
    named = {o.index for o in ins.operands[1:] if o.kind == "s"}
    return named | ({VCC} if ins.name == "v_cndmask_b32" and len(ins.operands) == 3 else set())


def _literals(ins: Instruction) -> set[int]:
    """Constants that need 32 bits of their own."""
    bits = set()
    for position, o in enumerate(ins.operands):
        if o.kind != "const" or isinstance(o.value, str):
            continue
        must = (ins.name == "v_fmaak_f32" and position == 3) or (ins.name == "v_fmamk_f32" and position == 2)
        value = -o.value if o.negate else o.value
        if isinstance(value, float):
            inline = abs(value) in _INLINE_FLOATS
            value = struct.unpack("<I", struct.pack("<f", value))[0]
        else:
            inline = -16 <= value <= 64 or value & 0xFFFFFFFF in _INLINE_BITS
        if must or not inline:
            bits.add(value & 0xFFFFFFFF)
    return bits


# -- what is checked ---------------------------------------------------------------------------------------------------


def check_pairs(code: Code) -> Iterator[Finding]:
    """Illegal pairs; pairs whose second half does not see what the first writes."""
    for step in code.steps:
        y = step.ins.second
        if y is None:
            continue
        x = replace_second(step.ins)
        broken = why_illegal(x, y, rules_of(code.gpu), code.lanes)
        for text in broken:
            rule = "pair-bank-conflict" if "SRC" in text else "illegal-pair"
            yield found(rule, step.ins, text)
        written = uses(x, code.lanes).writes_v
        if not broken and written & uses(y, code.lanes).reads_v:
            n = written.bit_length() - 1
            yield found("pair-reads-old-value", step.ins, f"the second half reads v{n}, which the first half writes")


def replace_second(ins: Instruction) -> Instruction:
    """The first half of a pair alone."""
    return replace(ins, second=None)


def check_missed(code: Code) -> Iterator[Finding]:
    """Neighbours that could be one pair, and multiply-adds that only their registers keep from it."""
    if code.lanes != 32:
        return
    for block in code.blocks:
        before: Step | None = None
        for step in code.steps[block.first : block.last]:
            if step.ins.name.startswith(("s_delay", "s_nop")):
                continue
            if step.kind is not Kind.VALU:
                before = None
                continue
            text = None if before is None else _could_pair(before.ins, step.ins, code)
            if text and before:
                yield found("missed-pair", before.ins, text)
                step = None
            before = step


def _could_pair(a: Instruction, b: Instruction, code: Code) -> str | None:
    """Why a and the b that follows could be one instruction, as a sentence."""
    first, second = _half(a), _half(b)
    if first is None or second is None:
        return None
    ua, ub = uses(a, code.lanes), uses(b, code.lanes)
    if ua.writes_v & (ub.reads_v | ub.writes_v):
        return None
    best: list[str] | None = None
    for x, y in ((first, second), (second, first)):
        for left in _orders(x):
            for right in _orders(y):
                broken = why_illegal(left, right, rules_of(code.gpu))
                if best is None or len(broken) < len(best):
                    best = broken
    if not best:
        return f"line {b.line} does not depend on this and can be its second half: {b.text}"
    wrong_registers = all("SRC" in text or "destination" in text for text in best)
    if wrong_registers and a.name in _FMA and b.name in _FMA:
        return f"line {b.line} could be its second half in other registers: {'; '.join(best)}"
    return None


def _half(ins: Instruction) -> Instruction | None:
    """A single instruction as a half of a pair, if its form allows it."""
    ops = ins.operands
    if ins.modifiers or "dpp" in ins.encoding or any(o.negate or o.absolute or o.half for o in ops):
        return None
    if ins.name == "v_fma_f32" and len(ops) == 4 and ops[3] == ops[0]:
        return replace(ins, name="v_fmac_f32", operands=ops[:3])
    if ins.name == "v_cndmask_b32" and len(ops) == 4 and (ops[3].kind, ops[3].index) != ("s", VCC):
        return None
    return ins


def _orders(ins: Instruction) -> list[Instruction]:
    """The instruction, and with its sources exchanged where that is the same."""
    if ins.name not in _COMMUTES or len(ins.operands) != 3:
        return [ins]
    d, a, b = ins.operands
    return [ins, replace(ins, operands=(d, b, a))]


_MATRIX = re.compile(r"v_(wmma|swmmac)_")


def check_matrix_banks(code: Code) -> Iterator[Finding]:
    """WMMA whose A and B start in the same bank."""
    for step in code.steps:
        ops = step.ins.operands
        if not _MATRIX.match(step.ins.name) or len(ops) < 3 or ops[1].kind != "v" or ops[2].kind != "v":
            continue
        a, b = ops[1].index, ops[2].index
        if a % 4 == b % 4 and a != b:
            yield found("wmma-banks", step.ins, f"A from v{a} and B from v{b} both start in bank {a % 4}")
