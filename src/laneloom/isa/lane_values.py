"""What vector registers hold, as far as the code alone says: a value for each lane of the first wave, or nothing.

The lanes' numbers come in v0, of a workgroup with one dimension; kernel arguments are not known, but what is in an SGPR
is equal for all lanes. So a value is known lane by lane, or but for something that all lanes add ("shifted"), which is
enough to tell bank conflicts: a shift by a multiple of 4 bytes turns all banks alike. Where paths meet, values that
differ by the same amount in every lane become shifted, others unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from .bits_of_three import AND, AND_OR, OR, OR3, XOR, XOR3, bits_of_three
from .check_code import Code, Step
from .parse import EXEC, TTMP, VCC, Instruction, Operand

_MASK = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Value:
    """One register: uint32 as int64 [lane]; shifted: every lane adds the same unknown multiple of `grain`."""

    lanes: np.ndarray
    shifted: bool = False
    grain: int = 1

    def same(self, other: Value) -> bool:
        """Whether both say the same."""
        return (
            self.shifted == other.shifted and self.grain == other.grain and np.array_equal(self.lanes, other.lanes)
        )


Values = dict[int, Value]  #: of the registers of which anything is known
SCALARS = 1000  #: a scalar register stands at this and its number
MASKS = 2000  #: what a scalar register, or a pair from it on, holds for each lane, at this and its number
ALL_LANES = -1  #: stands beside the registers: how often EXEC has been narrowed


def join(a: Values, b: Values) -> Values:
    """What holds on both paths."""
    out: Values = {}
    for n in a.keys() & b.keys():
        x, y = a[n], b[n]
        if x is y or x.same(y):
            out[n] = x
            continue
        if n == ALL_LANES:
            continue
        apart = (x.lanes - y.lanes) & _MASK
        if (apart == apart[0]).all():
            grain = int(np.gcd.reduce([x.grain if x.shifted else 0, y.grain if y.shifted else 0, int(apart[0])]))
            grain = (grain & -grain) or 1
            # The lanes stand for all that differ from them by the grain: the smallest makes them comparable.
            lanes = (x.lanes - x.lanes.min() + x.lanes.min() % grain) & _MASK
            out[n] = Value(lanes, True, grain)
    return out


def equal(a: Values, b: Values) -> bool:
    """Whether nothing more or less is known."""
    return a.keys() == b.keys() and all(a[n] is b[n] or a[n].same(b[n]) for n in a)


def values_at_start(code: Code) -> list[Values | None]:
    """What is known where each block begins; None for blocks that nothing reaches."""
    starts: list[Values | None] = [None] * len(code.blocks)
    if not code.blocks:
        return starts
    # One dimension of work-items: the compiler packs three ids into v0, of which y and z are then 0.
    starts[0] = {0: Value(np.arange(code.lanes, dtype=np.int64)), ALL_LANES: Value(np.zeros(1, np.int64))}
    if code.gpu.major == 12:  # the number of the wave, in bits 29:25
        starts[0][SCALARS + TTMP + 8] = Value(np.zeros(1, np.int64))
    pending, visits = [0], [0] * len(code.blocks)
    while pending:
        number = pending.pop()
        visits[number] += 1
        state = dict(starts[number] or {})
        block = code.blocks[number]
        for step in code.steps[block.first : block.last]:
            follow(step, state)
        for after in block.next:
            if after is None:
                continue
            known = starts[after]
            joined = state if known is None else join(known, state)
            if visits[after] > 8 and known is not None:  # give up on what still changes
                joined = {n: v for n, v in joined.items() if n in known and v.same(known[n])}
            if known is None or not equal(joined, known):
                starts[after] = joined
                pending.append(after)
    return starts


def follow(step: Step, state: Values) -> None:
    """What is known after an instruction."""
    ins = step.ins
    halves = [ins] if ins.second is None else [ins, ins.second]
    results = [(half, _result(half, state)) for half in halves]
    wrote_s = step.uses.writes_s
    for written, base in ((step.uses.writes_v, 0), (wrote_s, SCALARS), (wrote_s | wrote_s >> 1, MASKS)):
        while written:
            low = written & -written
            state.pop(base + low.bit_length() - 1, None)
            written ^= low
    for half, value in results:
        if value is not None:
            o = half.operands[0]
            base = 0 if o.kind == "v" else MASKS if half.name.startswith("v_cmp_") else SCALARS
            state[base + o.index] = value
    if step.uses.writes_s >> EXEC & 3:
        _follow_mask(ins, state)


def _follow_mask(ins: Instruction, state: Values) -> None:
    """Structured code narrows EXEC (saveexec, v_cmpx) and gives it back with s_or, or sets all lanes."""
    if ins.name.startswith("s_mov") and ins.operands[0] == ins.operands[1]:
        return  # a fence for the scheduler
    depth = state.pop(ALL_LANES, None)
    if ins.name.startswith("s_mov") and ins.operands[1].kind == "const" and ins.operands[1].value == -1:
        state[ALL_LANES] = Value(np.zeros(1, np.int64))
    elif depth is not None and not ins.name.startswith("s_mov"):
        if ins.name.startswith(("s_andn2_saveexec", "s_and_not1_saveexec")):  # the other lanes of the same branch
            state[ALL_LANES] = Value(np.maximum(depth.lanes, 1))
        else:
            back = ins.name.startswith(("s_or_b", "s_or_saveexec"))
            state[ALL_LANES] = Value(np.maximum(depth.lanes + (-1 if back else 1), 0))


def all_lanes(state: Values) -> bool:
    """Whether every lane is known to be active."""
    return ALL_LANES in state and int(state[ALL_LANES].lanes[0]) == 0


def _operand(o: Operand, state: Values) -> Value | None:
    if o.negate or o.absolute or o.half:
        return None
    if o.kind == "v" and o.count == 1:
        return state.get(o.index)
    if o.kind == "const" and isinstance(o.value, int):
        return Value(np.full(1, o.value & _MASK, np.int64))
    if o.kind == "s" and o.count == 1:
        return state.get(SCALARS + o.index, Value(np.zeros(1, np.int64), True))
    return None


_IN_PLACE = ("s_addk_", "s_mulk_")  # the destination is the first source


def _rule(ins: Instruction) -> Callable[..., Value | None] | None:
    if ins.name == "v_bitop3_b32":
        return _bitwise(ins.number("bitop3"))
    return _RULES.get(ins.name) or _compare(ins.name)


def _result(ins: Instruction, state: Values) -> Value | None:
    rule = _rule(ins)
    if rule is None or "dpp" in ins.encoding or len(ins.operands) < 2:
        return None
    if set(ins.modifiers) - {"offset", "bitop3"}:
        return None
    if ins.name.startswith("v_") and not all_lanes(state):  # the other lanes keep what they had
        return None
    read = ins.operands if ins.name.startswith(_IN_PLACE) else ins.operands[1:]
    sources = [_operand(o, state) for o in read]
    if ins.name == "v_cndmask_b32":
        mask = ins.operands[3].index if len(ins.operands) > 3 else VCC
        sources[2:] = [state.get(MASKS + mask)]
    return rule(*sources) if None not in sources else None


def _add(*terms: Value) -> Value:
    moving = [t.grain for t in terms if t.shifted]
    total = sum(t.lanes for t in terms)
    assert isinstance(total, np.ndarray)
    return Value(total & _MASK, bool(moving), min(moving, default=1))


def _subtract(a: Value, b: Value) -> Value:
    return _add(a, Value(-b.lanes, b.shifted, b.grain))


def _shift_left(amount: Value, x: Value) -> Value | None:
    if amount.shifted or amount.lanes.size > 1:
        return None
    n = int(amount.lanes[0]) & 31
    return Value((x.lanes << n) & _MASK, x.shifted, x.grain << n)


def _shift_right(amount: Value, x: Value) -> Value | None:
    if amount.shifted or amount.lanes.size > 1:
        return None
    n = int(amount.lanes[0]) & 31
    if not x.shifted:
        return Value(x.lanes >> n)
    if x.lanes.size == 1:
        return Value(np.zeros(1, np.int64), True, max(x.grain >> n, 1))
    # A shift by whole multiples of 2^n moves all results alike, as long as the lanes do not wrap.
    return Value(x.lanes >> n, True, x.grain >> n) if x.grain >> n else None


_ZERO = Value(np.zeros(1, np.int64))


def _bitwise(table: int):
    """The function of each bit of up to three sources that a truth table names."""

    def rule(a: Value, b: Value, c: Value = _ZERO) -> Value | None:
        sources = (a, b, c)
        # A shift is unknown from the grain on: with those bits clear and set, and every bit that makes a difference.
        cases = [[x.lanes & (x.grain - 1), x.lanes | -x.grain & _MASK] if x.shifted else [x.lanes] for x in sources]
        results = [bits_of_three(table, *case) & _MASK for case in product(*cases)]
        differs = _any_bit(*(r ^ results[0] for r in results))
        if not differs:
            return Value(results[0])
        grain = differs & -differs
        apart = _any_bit(*(x.lanes ^ x.lanes[0] if not x.shifted else _apart(x) for x in sources))
        apart &= differs | _any_bit(results[0] ^ results[0][0])
        if apart < grain:  # above, all lanes have the same bits, whatever they are
            return Value(results[0] & (grain - 1), True, grain)
        for k, x in enumerate(sources):
            if x.shifted and x.grain <= grain:
                above = -x.grain & _MASK
                same = (bits_of_three(table, *case) ^ case[k] for case in product(*cases))
                if not _any_bit(*same) & above:
                    return Value(x.lanes & above | results[0] & (x.grain - 1), True, x.grain)
        return None

    return rule


def _any_bit(*values: np.ndarray) -> int:
    """The bits that any lane of any value has."""
    return int(np.bitwise_or.reduce([np.bitwise_or.reduce(v) for v in values]))


def _apart(x: Value) -> np.ndarray:
    """Bits by which lanes may differ from the first, whatever the shift."""
    low = x.lanes & (x.grain - 1)
    high = x.lanes - low
    return (low ^ low[0]) | np.where(high == high[0], 0, -x.grain & _MASK)


def _any_scalar(a: Value, b: Value) -> Value | None:
    """What two scalars make of each other is one number, whatever it is."""
    return Value(np.zeros(1, np.int64), True) if a.lanes.size == b.lanes.size == 1 else None


def _multiply(a: Value, b: Value) -> Value | None:
    if a.shifted or b.shifted:
        if a.shifted and b.shifted:
            return _any_scalar(a, b)
        moving, fixed = (a, b) if a.shifted else (b, a)
        if fixed.lanes.size > 1:
            return None
        factor = int(fixed.lanes[0])
        return Value(moving.lanes * factor & _MASK, True, moving.grain * ((factor & -factor) or 1))
    return Value((a.lanes * b.lanes) & _MASK)


def _then(f, g):
    """(f of the first two) g the third."""

    def both(a: Value, b: Value, c: Value) -> Value | None:
        first = f(a, b)
        return None if first is None else g(first, c)

    return both


def _extract(x: Value, offset: Value, width: Value) -> Value | None:
    moved = _shift_right(offset, x)
    if moved is None or width.shifted or width.lanes.size > 1:
        return None
    return _bitwise(AND)(moved, Value(np.full(1, (1 << (int(width.lanes[0]) & 31)) - 1, np.int64)))


def _extract_signed(x: Value, offset: Value, width: Value) -> Value | None:
    field = _extract(x, offset, width)
    if field is None or field.shifted:
        return None
    sign = (1 << (int(width.lanes[0]) & 31)) >> 1
    return Value((field.lanes ^ sign) - sign & _MASK)


def _shift_right_signed(amount: Value, x: Value) -> Value | None:
    if amount.shifted or amount.lanes.size > 1 or x.shifted:
        return None
    return Value(_signed(x.lanes) >> (int(amount.lanes[0]) & 31) & _MASK)


def _short(constant: Value) -> Value:
    """A constant of 16 bits, which the text may have without its sign."""
    return Value(((constant.lanes & 0xFFFF) ^ 0x8000) - 0x8000 & _MASK)


def _signed(lanes: np.ndarray) -> np.ndarray:
    return (lanes ^ 1 << 31) - (1 << 31)


def _select(where_0: Value, where_1: Value, mask: Value) -> Value | None:
    if mask.shifted or where_0.shifted or where_1.shifted:
        return None
    return Value(np.where(mask.lanes, where_1.lanes, where_0.lanes))


def _compare(name: str) -> Callable[[Value, Value], Value | None] | None:
    """The rule of a v_cmp of integers: 1 or 0 for each lane; None for other instructions."""
    match = _COMPARE.fullmatch(name)
    if match is None:
        return None

    def rule(a: Value, b: Value) -> Value | None:
        if a.shifted or b.shifted:
            return None
        x, y = (_signed(v.lanes) if match[2] == "i32" else v.lanes for v in (a, b))
        return Value(_COMPARISONS[match[1]](x, y).astype(np.int64))

    return rule


_COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_COMPARE = re.compile(rf"v_cmp_({'|'.join(_COMPARISONS)})_([ui]32)")


def _scalar_field(extract):
    """s_bfe: offset in bits 4:0 of the second source, width in bits 22:16."""

    def rule(x: Value, what: Value) -> Value | None:
        code = int(what.lanes[0])
        offset, width = (Value(np.full(1, n, np.int64)) for n in (code & 31, code >> 16 & 127))
        return None if what.shifted else extract(x, offset, width)

    return rule


def _first_lane(x: Value) -> Value:
    return Value(x.lanes[:1], x.shifted, x.grain)


def _reversed(f):
    return lambda a, b: f(b, a)


_RULES = {
    "v_mov_b32": lambda a: a, "v_accvgpr_read_b32": lambda a: a, "v_accvgpr_write_b32": lambda a: a,
    "v_accvgpr_mov_b32": lambda a: a,
    "v_add_nc_u32": _add, "v_add3_u32": _add, "v_sub_nc_u32": _subtract, "v_subrev_nc_u32": _reversed(_subtract),
    "v_add_u32": _add, "v_sub_u32": _subtract, "v_subrev_u32": _reversed(_subtract),  # gfx9's names
    "v_lshlrev_b32": _shift_left, "v_lshrrev_b32": _shift_right,
    "v_and_b32": _bitwise(AND), "v_or_b32": _bitwise(OR), "v_xor_b32": _bitwise(XOR),
    "v_or3_b32": _bitwise(OR3), "v_xor3_b32": _bitwise(XOR3), "v_and_or_b32": _bitwise(AND_OR),
    "v_mul_u32_u24": _multiply, "v_mul_lo_u32": _multiply,
    "v_mad_u32_u24": _then(_multiply, _add),
    "v_lshl_add_u32": _then(_reversed(_shift_left), _add),
    "v_lshl_or_b32": _then(_reversed(_shift_left), _bitwise(OR)),
    "v_add_lshl_u32": _then(_add, _reversed(_shift_left)),
    "v_xad_u32": _then(_bitwise(XOR), _add),
    "v_bfe_u32": _extract, "v_bfe_i32": _extract_signed, "v_ashrrev_i32": _shift_right_signed,
    "v_cndmask_b32": _select,
    "v_readfirstlane_b32": _first_lane,
    "s_mov_b32": lambda a: a, "s_movk_i32": _short,
    "s_addk_i32": lambda a, b: _add(a, _short(b)), "s_addk_co_i32": lambda a, b: _add(a, _short(b)),
    "s_mulk_i32": lambda a, b: _multiply(a, _short(b)),
    "s_add_i32": _add, "s_add_u32": _add, "s_add_co_i32": _add, "s_add_co_u32": _add, "s_sub_i32": _subtract,
    "s_sub_u32": _subtract, "s_sub_co_i32": _subtract, "s_sub_co_u32": _subtract, "s_mul_i32": _multiply,
    "s_lshl_b32": _reversed(_shift_left), "s_lshr_b32": _reversed(_shift_right),
    "s_bfe_u32": _scalar_field(_extract), "s_bfe_i32": _scalar_field(_extract_signed),
    "s_ashr_i32": _reversed(_shift_right_signed),
    "s_and_b32": _bitwise(AND), "s_or_b32": _bitwise(OR), "s_xor_b32": _bitwise(XOR),
}  # fmt: skip
