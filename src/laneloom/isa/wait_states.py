"""How many wait states CDNA needs between two instructions where the hardware does not wait by itself.

A wait state is one instruction, or one of the cycles that `s_nop` names. MFMA takes its passes (4 cycles each) and is
of one of three kinds: "xdl" (16 and 8 bits, integers, xf32), "sgemm" (FP32 products) and "dgemm" (FP64); CDNA 2 has one
rule for all but the last, CDNA 1 rules of its own (`wait_states_cdna1.py`).
Sources: AMD Instinct MI200 (CDNA 2) and MI300 (CDNA 3) ISA guides, "Manually Inserted Wait States (NOPs)" and
"Dependency Resolution: Required Independent Instructions"; AMD CDNA 4 ISA guide, the same sections; what they leave
open is as LLVM's GCNHazardRecognizer has it, against whose s_nop a test holds every row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ArgumentError
from .catalogue import find_instruction
from .check_code import Step
from .listing import Kind
from .parse import EXEC, M0, VCC, Instruction, Operand
from .registers import mask_of
from .wait_states_cdna1 import needed_on_cdna_1

MOST = 20  #: no dependency needs more
OLD = ("gfx908", "gfx90a")  #: whose hardware waits by itself where later ones leave it to the code

_TRANS = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_")
_DOT = re.compile(r"v_dot\d")
_FMA64 = re.compile(r"v_fmac?_f64")
_LANE = re.compile(r"v_(readlane|readfirstlane|writelane)_b32")
_LANE_SELECT = re.compile(r"v_(readlane|writelane)_b32")
_PERMLANE_SWAP = re.compile(r"v_permlane\d+_swap")
_MEMORY = re.compile(r"(global|flat|buffer|scratch|tbuffer)_(load|store|atomic)")
_WIDE_STORE = re.compile(r"(global|flat|buffer|scratch)_store_dwordx[34]|(global|flat|buffer|scratch)_store_b(96|128)")
TO_LDS = re.compile(r"(global|buffer|scratch)_load_lds_")  #: of CDNA, which counts them as loads
_VCC_BITS, _EXEC_BITS = 3 << VCC, 3 << EXEC


@dataclass(frozen=True)
class Matrix:
    """What an MFMA or SMFMAC does to registers (bit masks), and how long."""

    kind: str  #: "xdl", "sgemm" or "dgemm"
    passes: int
    result: int
    sources: int  #: A, B, sparse indices and scales
    sum: int  #: C, or the registers that it adds to
    small: bool  #: v_mfma_f64_4x4x4


@dataclass(frozen=True)
class Acts:
    """One instruction as the rules see it."""

    step: Step
    matrix: Matrix | None
    valu: bool  #: but no MFMA
    memory: bool  #: global, scratch or LDS
    trans: bool
    dot: bool
    dpp_reads: int
    half: bool  #: writes a part of a register's bits, selected
    data: int  #: of a store of more than 8 bytes

    @property
    def name(self) -> str:
        """Its mnemonic."""
        return self.step.ins.name


def acts(step: Step, gpu: str) -> Acts:
    """What the rules need to know of an instruction."""
    ins = step.ins
    name = ins.name
    matrix = _matrix(step, gpu) if step.kind is Kind.MATRIX else None
    valu = matrix is None and name.startswith("v_") and name != "v_nop"
    global_ = _MEMORY.match(name) is not None
    data = 0
    if _WIDE_STORE.match(name):
        # A buffer store with a register as its offset has time enough.
        data = 0 if name.startswith("buffer") and ins.operands[3].kind == "s" else _data(ins)
    dpp = _vector(*ins.operands[1:3]) if "dpp" in ins.encoding else 0
    return Acts(
        step, matrix, valu, global_ or name.startswith("ds_"), _TRANS.match(name) is not None,
        _DOT.match(name) is not None, dpp, valu and _selects_half(ins), data,
    )  # fmt: skip


def _matrix(step: Step, gpu: str) -> Matrix | None:
    ins = step.ins
    ops = ins.operands
    try:
        row = find_instruction(ins.name, gpu)
    except ArgumentError:
        return None  # of another generation
    if row.cycles is None or len(ops) < 4:
        return None
    passes = row.cycles // 4
    if "f8f6f4" in ins.name and ins.number("cbsz") >= 2 and ins.number("blgp") >= 2:
        passes //= 2  # neither A nor B has elements of 8 bits
    single = "xdl" if row.coissue or gpu in OLD else "sgemm"  # CDNA 2 has one rule for all but FP64
    kind = "dgemm" if ins.name.endswith("f64") else single
    sparse = ins.name.startswith("v_smfmac")
    sources = [*ops[1:3], *ops[(3 if sparse else 4) :]]
    return Matrix(
        kind, passes, mask_of(ops[0]), _vector(*sources), mask_of(ops[0]) if sparse else _vector(ops[3]),
        "4x4x4" in ins.name,
    )  # fmt: skip


def _vector(*operands: Operand) -> int:
    found = 0
    for o in operands:
        found |= mask_of(o) if o.kind == "v" else 0
    return found


def _data(ins: Instruction) -> int:
    place = 0 if ins.name.startswith("buffer") else 1
    return _vector(ins.operands[place]) if len(ins.operands) > place else 0


def _selects_half(ins: Instruction) -> bool:
    if ins.encoding == "sdwa":
        return ins.modifiers.get("dst_sel", "DWORD") != "DWORD"
    if ins.name.startswith(("v_pk_", "v_fma_mix", "v_dot")):  # packed: op_sel has no bit for the result
        return ins.name.startswith("v_fma_mixhi")
    return ins.modifiers.get("op_sel", "").rstrip("]").endswith("1")


def needed(before: Acts, after: Acts, gpu: str, open_v: int, open_s: int) -> Iterator[tuple[int, str]]:
    """Wait states that `after` needs since `before`, each with its reason.

    open_v, open_s: registers that nothing has written between the two.
    """
    first = gpu == "gfx908"
    if first:
        yield from needed_on_cdna_1(before, after, open_v, open_s)
    if before.matrix is not None:
        if not first:
            yield from _after_matrix(before.matrix, after, gpu, open_v)
        return
    written = before.step.uses.writes_v & open_v
    reads, writes = after.step.uses.reads_v, after.step.uses.writes_v
    if before.valu:
        yield from _after_valu(before, after, gpu, written, before.step.uses.writes_s & open_s)
    if after.dpp_reads & written:
        yield 2, "DPP reads its result"
    if before.data & writes & open_v and (after.valu or after.matrix is not None):
        yield 1 if gpu in OLD else 2, "the store still reads the register that is overwritten"
    if before.dot and after.matrix is None and not first:
        if after.name != before.name and (reads | writes) & written:
            yield 3, "another instruction wants the dot product's register"
        elif _vector(*after.step.ins.operands[1:3]) & written:
            yield 3, "a dot product multiplies its result"
    to_lds = TO_LDS.match(after.name) or after.step.ins.flag("lds")
    if to_lds and before.step.uses.writes_s >> M0 & 1 and not before.valu:
        yield 1, "M0, where the load to LDS begins, is written"


def _after_matrix(p: Matrix, after: Acts, gpu: str, open_v: int) -> Iterator[tuple[int, str]]:
    new = gpu == "gfx950"
    result = p.result & open_v
    late = {"xdl": p.passes + 3 + (new and p.passes != 2), "sgemm": p.passes + 2}  # a result can be read or replaced
    if after.matrix is not None:
        c = after.matrix
        if result & c.sources:
            states = late.get(p.kind, 6 if p.small else 19 if new else 11)
            yield states, "its result is A or B of a matrix instruction"
        if result & c.sum:
            yield _sum_states(p, c, gpu), "its result is C of a matrix instruction"
        return
    if after.valu or after.memory:
        if result & after.step.uses.reads_v:
            if p.kind == "dgemm" and after.memory:
                yield 9 if p.small else 18, "its result is stored or is an address"
            else:
                yield late.get(p.kind, 6 if p.small else 19 if new else 11), "its result is read"
        if result & after.step.uses.writes_v:
            yield late.get(p.kind, 6 if p.small else 11), "its result is overwritten"
        if p.kind == "xdl" and p.sum & open_v & after.step.uses.writes_v:
            yield p.passes - 1, "C, which it still reads, is overwritten"
    if p.kind == "dgemm" and _FMA64.match(after.name):
        yield 2, "an FP64 multiply-add follows an FP64 matrix instruction"


def _sum_states(p: Matrix, c: Matrix, gpu: str) -> int:
    """From a result to the C of another matrix instruction; the same registers, whole, are handed on."""
    old, new = gpu in OLD, gpu == "gfx950"
    if p.result == c.sum:
        if p.kind == "dgemm":
            return 4 if p.small and c.small and c.kind == "dgemm" else 0
        return 2 if p.passes == 2 and not old else 0
    if p.kind == "xdl":
        if old:
            return p.passes + (c.kind == "dgemm")
        return p.passes + 1 + (new and (p.passes != 2 or c.kind == "xdl"))
    if c.kind == "xdl":
        return 0
    return p.passes if p.kind == "sgemm" else 4 if p.small else 17 if new else 9


def _after_valu(before: Acts, after: Acts, gpu: str, vector: int, scalar: int) -> Iterator[tuple[int, str]]:
    """vector, scalar: what it has written and nothing else since."""
    uses = after.step.uses
    if after.matrix is not None and gpu != "gfx908":
        if uses.reads_v & vector and not before.dot:
            yield 2, "a matrix instruction reads its result"
        if scalar & _EXEC_BITS:
            yield 4, "a matrix instruction follows a write of EXEC"
    if after.valu:
        if gpu not in OLD:
            yield from _after_valu_since_cdna_3(before, after, vector, scalar)
        if _LANE_SELECT.match(after.name) and _scalar(after.step.ins.operands[2:3]) & scalar:
            yield 4, "the scalar register selects a lane"
        if after.name.startswith("v_div_fmas") and scalar & _VCC_BITS:
            yield 4, "v_div_fmas reads VCC"
        if "dpp" in after.step.ins.encoding and scalar & _EXEC_BITS:
            yield 5, "DPP follows a write of EXEC"
        if _PERMLANE_SWAP.match(after.name) and (uses.reads_v | uses.writes_v) & vector:
            yield 2, "rows of its result are exchanged"
    elif _MEMORY.match(after.name) and uses.reads_s & scalar & ~_EXEC_BITS:
        yield 5, "a memory access reads the scalar register"


def _after_valu_since_cdna_3(before: Acts, after: Acts, vector: int, scalar: int) -> Iterator[tuple[int, str]]:
    uses = after.step.uses
    if before.trans and not after.trans and uses.reads_v & vector:
        yield 1, "the result of a transcendental instruction is read"
    if before.half and uses.reads_v & vector:
        yield 1, "a register is read of which a selected part was written"
    if uses.reads_s & scalar & ~_EXEC_BITS:
        yield 2, "a vector instruction reads the scalar register"
    if _LANE.match(after.name):
        if uses.reads_v & vector and "writelane" not in after.name:
            yield 1, "a lane of its result is read"
        if scalar & _EXEC_BITS:
            yield 4, "lanes are accessed after a write of EXEC"


def _scalar(operands: tuple[Operand, ...]) -> int:
    found = 0
    for o in operands:
        found |= mask_of(o) if o.kind == "s" else 0
    return found
