"""What one instruction costs: the pipe that it takes, for how long, when its result is there, what it waits for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from ..isa.catalogue import find_instruction
from ..isa.listing import memory_width
from ..isa.parse import Instruction
from ..isa.registers import raises, uses, waits
from .machine import Machine


class Pipe(IntEnum):
    """What executes an instruction."""

    NONE = 0  #: handled where instructions are fetched: waits, hints, priorities
    VALU = 1
    SALU = 2
    SCALAR_MEMORY = 3
    LDS = 4
    LOAD = 5
    STORE = 6
    SIGNAL = 7  #: arrival at a barrier
    WAIT_BARRIER = 8
    BARRIER = 9  #: both
    BRANCH = 10
    END = 11


@dataclass(slots=True)
class Cost:
    """One instruction of a listing, as the simulation needs it."""

    pipe: Pipe
    busy: int  #: cycles of the pipe
    latency: int  #: cycles from its start to its result
    trans: int  #: cycles of the transcendental unit
    reads: tuple[int, ...]  #: registers: a vector register's number, or 512 and a scalar's
    writes: tuple[int, ...]
    counters: tuple[int, ...]  #: which counters it raises
    waits: tuple[tuple[int, int], ...]  #: counter, how many may stay under way
    register_bytes: int  #: of a vector memory access: to or from registers
    lanes: int
    matrix: bool
    hold: int  #: cycles of the VALU, where a matrix instruction runs beside it
    dual: bool
    text: str
    priority: int | None  #: that the wave has from here on
    nap: int  #: cycles that the wave does nothing


SCALARS = 512
COUNTERS = ("vmcnt", "lgkmcnt", "vscnt", "expcnt", "loadcnt", "dscnt", "kmcnt", "storecnt", "samplecnt", "bvhcnt")
_TRANS = re.compile(r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos)_")
_QUARTER = re.compile(r"v_(mul_lo_u32|mul_hi_[ui]32|mad_(co_)?[ui]64_[ui]32)")
_DOUBLE = re.compile(r"v_.*_f64")
_HINT = re.compile(r"s_(wait|delay|nop|clause|sleep|setprio|set_inst|inst_prefetch|icache|sendmsg|code_end|version)")
_VECTOR_MEMORY = re.compile(r"(global|flat|buffer|scratch)_(load|store|atomic)")


def decode(ins: Instruction, machine: Machine, lanes: int) -> Cost:
    """The cost of an instruction in a wave of `lanes` lanes."""
    found = uses(ins, lanes)
    reads = (*_bits(found.reads_v, 0), *_bits(found.reads_s, SCALARS))
    writes = (*_bits(found.writes_v, 0), *_bits(found.writes_s, SCALARS))
    waves = lanes // machine.valu_lanes
    pipe, busy, latency, trans, nap = _pipe(ins.name), 1, 0, 0, machine.issue_cycles
    matrix = ins.name.startswith(("v_wmma", "v_swmmac", "v_mfma", "v_smfmac"))
    hold = 0
    register_bytes = 0
    if pipe is Pipe.VALU:
        busy, latency = waves, machine.valu_latency + waves - 1
        if matrix:
            row = find_instruction(ins.name, machine.gpu)
            assert row.cycles is not None, ins.name
            cycles = row.cycles // 2 if _narrow_floats(ins) else row.cycles
            busy, latency = cycles, cycles + machine.matrix_extra
            hold = (row.coissue_delay or cycles) if machine.matrix_apart else 0
        elif _TRANS.match(ins.name):
            trans, latency = machine.trans_cycles * waves, machine.trans_latency
            if not machine.trans_apart:
                busy, trans = trans, 0
        elif _QUARTER.match(ins.name):
            busy, latency = 4 * waves, machine.multiply_latency
        elif _DOUBLE.match(ins.name):
            busy, latency = machine.double_cycles * waves, machine.double_latency
    elif pipe is Pipe.SALU:
        latency = machine.salu_latency
    elif pipe in (Pipe.LOAD, Pipe.STORE):
        width, _ = memory_width(ins.name)
        register_bytes = max(width, 4) * lanes
    elif ins.name == "s_nop":
        nap = (_number(ins) + 1) * machine.issue_cycles
    elif ins.name == "s_sleep":
        nap = 64 * max(_number(ins), 1)
    return Cost(
        pipe, busy, latency, trans, reads, writes,
        tuple(COUNTERS.index(c) for c in raises(ins, machine.gpu.major)),
        tuple((COUNTERS.index(c), n) for c, n in waits(ins, machine.gpu.major).items()),
        register_bytes, lanes, matrix, hold, ins.second is not None, ins.text,
        _number(ins) if ins.name == "s_setprio" else None, nap,
    )  # fmt: skip


def _narrow_floats(ins: Instruction) -> bool:
    """f8f6f4 where neither A nor B has elements of 8 bits."""
    return "f8f6f4" in ins.name and ins.number("cbsz") >= 2 and ins.number("blgp") >= 2


def _pipe(name: str) -> Pipe:
    if name.startswith("v_"):
        return Pipe.VALU
    if name.startswith("ds_"):
        return Pipe.LDS
    if match := _VECTOR_MEMORY.match(name):
        return Pipe.STORE if match[2] == "store" else Pipe.LOAD
    if name.startswith(("s_load", "s_buffer_load")):
        return Pipe.SCALAR_MEMORY
    if name in ("s_barrier", "s_barrier_wait", "s_barrier_signal"):
        return {"s_barrier": Pipe.BARRIER, "s_barrier_wait": Pipe.WAIT_BARRIER}.get(name, Pipe.SIGNAL)
    if name.startswith(("s_branch", "s_cbranch", "s_setpc", "s_swappc", "s_add_pc", "s_call")):
        return Pipe.BRANCH
    if name.startswith("s_endpgm"):
        return Pipe.END
    if _HINT.match(name):
        return Pipe.NONE
    return Pipe.SALU if name.startswith("s_") else Pipe.NONE


def _number(ins: Instruction) -> int:
    return int(ins.operands[0].value) if ins.operands else 0


def _bits(mask: int, base: int) -> list[int]:
    out = []
    while mask:
        low = mask & -mask
        out.append(base + low.bit_length() - 1)
        mask ^= low
    return out
