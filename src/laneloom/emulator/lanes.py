"""Data across the lanes of a wave: readlane, writelane, permlane, and swaps of registers."""

from __future__ import annotations

import numpy as np

from ..isa.parse import Instruction, Operand
from .alu import Step, Target, special
from .operands import read, read_scalar, write
from .state import U32, U64, Waves


def _lane_number(operand: Operand, lanes: int):
    """How to read a lane select: the low 5 or 6 bits of a scalar."""
    inner = read_scalar(operand, "u32")
    return lambda g: np.broadcast_to(inner(g) & U32(lanes - 1), (g.count,)).astype(np.intp)


def _read_lane(ins: Instruction, target: Target) -> Step:
    destination, source, lane = ins.operands
    value, select, n = read(source, "b32"), _lane_number(lane, target.lanes), destination.index

    def step(g: Waves) -> None:
        lanes = np.broadcast_to(value(g), (g.count, g.lanes))
        g.set_scalar(n, lanes[np.arange(g.count), select(g)])

    return step


def _read_first_lane(ins: Instruction, target: Target) -> Step:
    destination, source = ins.operands
    value, n = read(source, "b32"), destination.index

    def step(g: Waves) -> None:
        lanes = np.broadcast_to(value(g), (g.count, g.lanes))
        if g.exec is None:
            g.set_scalar(n, lanes[:, 0])
        else:  # no active lane at all reads lane 0, which argmax gives
            g.set_scalar(n, lanes[np.arange(g.count), np.argmax(g.exec, axis=1)])

    return step


def _write_lane(ins: Instruction, target: Target) -> Step:
    destination, source, lane = ins.operands
    value, select, n = read_scalar(source, "b32"), _lane_number(lane, target.lanes), destination.index

    def step(g: Waves) -> None:  # whatever EXEC says
        g.u[n][np.arange(g.count), select(g)] = value(g)

    return step


special("v_readlane_b32", _read_lane)
special("v_readfirstlane_b32", _read_first_lane)
special("v_writelane_b32", _write_lane)


# -- permutations within rows of 16 lanes ------------------------------------------------------------------------------


def _permute(ins: Instruction, target: Target, choose, other_row: bool) -> Step:
    """Each lane takes the value of lane choose(g)[lane] of its row, or of the neighbouring row.

    op_sel:[fi, bound_ctrl]: fi reads inactive lanes too; else they give 0 with bound_ctrl, and no write without.
    """
    destination = ins.operands[0]
    value, n = read(ins.operands[1], "b32"), destination.index
    fetch_inactive, zero_inactive = (bool(b) for b in ins.bits("op_sel", [0, 0])[:2])
    lane = np.arange(target.lanes)
    row = (lane & ~15) ^ (16 if other_row else 0)

    def step(g: Waves) -> None:
        index = row + choose(g)
        x = np.broadcast_to(value(g), (g.count, g.lanes))
        if len(index) == 1 and (g.exec is None or fetch_inactive):
            g.put(n, x.take(index[0], axis=1))
            return
        index = index + np.arange(0, g.count * g.lanes, g.lanes)[:, None]
        taken = x.reshape(-1).take(index)
        if g.exec is None or fetch_inactive:
            g.put(n, taken)
            return
        readable = g.exec.reshape(-1).take(index)
        if zero_inactive:
            g.put(n, np.where(readable, taken, U32(0)))
        else:
            np.copyto(g.u[n], taken, where=g.exec & readable)

    return step


def _selected_by_scalars(ins: Instruction, target: Target):
    low, high = (read_scalar(o, "b32") for o in ins.operands[2:4])
    shift = (np.arange(target.lanes) & 15).astype(U64) * U64(4)

    def choose(g: Waves) -> np.ndarray:
        nibbles = np.atleast_1d(np.asarray(low(g)).astype(U64) | np.asarray(high(g)).astype(U64) << U64(32))
        if (nibbles == nibbles[0]).all():  # as nearly always
            nibbles = nibbles[:1]
        return (nibbles[:, None] >> shift & U64(15)).astype(np.intp)

    return choose


def _selected_by_lane(ins: Instruction, target: Target):
    operand = ins.operands[2]
    if operand.kind == "v":  # as an address: strict mode moves undefined bits by what was selected
        return lambda g: (g.addresses[operand.index] & U32(15)).astype(np.intp)
    select = read(operand, "b32")
    return lambda g: np.broadcast_to(select(g) & U32(15), (g.count, g.lanes)).astype(np.intp)


special("v_permlane16_b32", lambda ins, t: _permute(ins, t, _selected_by_scalars(ins, t), False))
special("v_permlanex16_b32", lambda ins, t: _permute(ins, t, _selected_by_scalars(ins, t), True))
special("v_permlane16_var_b32", lambda ins, t: _permute(ins, t, _selected_by_lane(ins, t), False))
special("v_permlanex16_var_b32", lambda ins, t: _permute(ins, t, _selected_by_lane(ins, t), True))


def _swap_halves_of_wave(ins: Instruction, target: Target) -> Step:
    """v_permlane64: lanes 0 to 31 and 32 to 63 exchange; EXEC masks the write only. Wave32 skips it."""
    destination, source = ins.operands
    value, n = read(source, "b32"), destination.index
    if target.lanes == 32:
        return lambda g: None
    index = np.arange(64) ^ 32
    return lambda g: g.put(n, np.broadcast_to(value(g), (g.count, g.lanes))[:, index])


special("v_permlane64_b32", _swap_halves_of_wave)


# -- exchanging registers ----------------------------------------------------------------------------------------------


def _swap(kind: str):
    def build(ins: Instruction, target: Target) -> Step:
        x, y = ins.operands
        read_x, read_y, write_x, write_y = read(x, kind), read(y, kind), write(x, kind), write(y, kind)

        def step(g: Waves) -> None:
            old = read_x(g).copy()
            write_x(g, read_y(g))
            write_y(g, old)

        return step

    return build


special("v_swap_b32", _swap("b32"))
special("v_swap_b16", _swap("b16"))
