"""Vector additions with a carry per lane in an SGPR mask, and the 64-bit multiply-add."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.parse import Instruction
from .alu import Step, Target, special, vector_readers, vector_writer
from .bits import I64, U64
from .dpp import lane_source
from .output_modifiers import output_modifier
from .state import Waves


def two_results(kinds: str, dst: str, fn: Callable, clamped: Callable | None = None) -> Callable:
    """A builder of `dst, mask = fn(*sources)`: a vector register and one bit per active lane in SGPRs.

    DPP's row and bank masks hold for the vector register alone (ISA guides); where DPP finds no source, the bit stays
    as it was (rocjitsu). clamped: of a result and its bit, what the clamp modifier makes of an integer.
    """
    sources = kinds.split()

    def build(ins: Instruction, target: Target) -> Step:
        destination, carry, *texts = ins.operands
        source = lane_source(ins, target.lanes)
        readers = vector_readers(ins, texts, sources, target, [0] * len(sources), source)
        store = vector_writer(ins, destination, dst, target)
        n, limit = carry.index, clamped if ins.flag("clamp") else None
        modify = output_modifier(ins, dst, target)

        def step(g: Waves) -> None:
            value, flag = fn(*[r(g) for r in readers])
            if limit is not None:
                value = limit(value, flag)
            elif modify is not None:
                value = modify(value)
            if source is not None and source.partial:
                if not source.zero_outside:
                    flag = np.where(source.readable(g), flag, g.mask(n))
                source.guarded(lambda _: value, store)(g)
            else:
                store(g, value)
            g.set_mask(n, flag if g.exec is None else np.logical_and(flag, g.exec))

        return step

    return build


def _most(value: np.ndarray, carry: np.ndarray) -> np.ndarray:
    return np.where(carry, value.dtype.type(np.iinfo(value.dtype).max), value)


def _none(value: np.ndarray, borrow: np.ndarray) -> np.ndarray:
    return np.where(borrow, value.dtype.type(0), value)


def _within_i64(value: np.ndarray, carry: np.ndarray) -> np.ndarray:
    """carry is bit 64 of the sum, its sign."""
    limits = np.iinfo(I64)
    return np.where(carry == (value < 0), value, np.where(carry, I64(limits.min), I64(limits.max)))


def _add(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    return total, total < a


def _subtract(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return a - b, a < b


def _add_with_carry(a: np.ndarray, b: np.ndarray, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    partial = a + b
    total = partial + carry
    return total, (partial < a) | (total < partial)


def _subtract_with_borrow(a: np.ndarray, b: np.ndarray, borrow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    partial = a - b
    return partial - borrow, (a < b) | (partial < borrow)


for _names, _kinds, _fn, _clamped in (
    ("v_add_co_u32", "u32 u32", _add, _most),
    ("v_sub_co_u32", "u32 u32", _subtract, _none),
    ("v_subrev_co_u32", "u32 u32", lambda a, b: _subtract(b, a), _none),
    ("v_add_co_ci_u32", "u32 u32 mask", _add_with_carry, _most),
    ("v_sub_co_ci_u32", "u32 u32 mask", _subtract_with_borrow, _none),
    ("v_subrev_co_ci_u32", "u32 u32 mask", lambda a, b, c: _subtract_with_borrow(b, a, c), _none),
):
    special(_names, two_results(_kinds, "u32", _fn, _clamped), dpp=True, sdwa=True)


def _multiply_add_u64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = np.multiply(a, b, dtype=U64) + c
    return total, total < c


def _multiply_add_i64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    product = np.multiply(a, b, dtype=I64)
    total = product + c
    # Bit 64 of the sum of two sign-extended 64-bit numbers.
    carry = total.view(U64) < c.view(U64)
    return total, carry ^ (product < 0) ^ (c < 0)


_of_u64 = two_results("u32 u32 u64", "u64", _multiply_add_u64, _most)
_of_i64 = two_results("i32 i32 i64", "i64", _multiply_add_i64, _within_i64)
special("v_mad_u64_u32 v_mad_co_u64_u32", _of_u64, dpp=True)
special("v_mad_i64_i32 v_mad_co_i64_i32", _of_i64, dpp=True)
