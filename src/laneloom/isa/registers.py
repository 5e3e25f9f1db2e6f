"""Which registers an instruction reads and writes, and which wait counters it raises or waits for.

Register sets are bit masks (Python ints): bit n of a vector mask is v[n], of a scalar mask s[n] (with VCC, M0, EXEC and
the trap registers at their numbers in the scalar file). A 16-bit half counts as its whole register.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from ..errors import EmulationError
from .expressions import value_of
from .parse import EXEC, M0, NULL, VCC, Instruction, Operand

_TWO_RESULTS = re.compile(
    r"v_(add|sub|subrev)_co(_ci)?_u32|v_(addc|subb|subbrev)_co_u32|v_div_scale_f(32|64)|v_mad_(co_)?[ui]64_[ui]32"
)
_CARRIES = re.compile(r"v_(?:add|sub|subrev)_co(_ci)?_u32")
_NO_RESULT = re.compile(
    r"s_cmp|s_bitcmp|s_setreg|s_cbranch|s_branch|s_barrier|s_wait|s_sendmsg(halt)?$|s_alloc_vgpr|s_add_pc"
    r"|s_set|s_nop|s_sleep|s_clause|s_delay|s_endpgm"
    r"|s_trap|s_denorm_mode|s_round_mode|s_icache|s_dcache|s_prefetch|v_nop|(global|flat|buffer|scratch)_store"
    r"|(global|flat)_prefetch|(global|cluster)_load_async|tensor_|s_monitor|s_wakeup|ds_atomic_async"
    r"|s_(buffer_|scratch_)?store|ds_store(?!xchg)|ds_nop|(global|buffer)_(inv|wb|gl)"
)
_READS_RESULT = re.compile(
    r"v_(pk_)?fmac|v_mac_|v_swmmac|v_smfmac|v_dot\dc?acc|v_dot\dc|v_writelane|s_fmac|s_addk|s_mulk|s_cmovk|s_cmov_|s_bitset|v_swap|v_permlane\w*_swap"
    r"|v_(movrel|interp)|s_set_gpr|v_cvt_pkaccum"
)
_READS_DATA = re.compile(r"(s_|buffer_|s_buffer_)atomic")  # which a returned value replaces
_SWAPS = re.compile(r"v_swap|v_permlane\w*swap")
_TO_SCALAR = re.compile(r"s_|v_cmp|v_s_|v_readlane|v_readfirstlane")


@dataclass(frozen=True)
class Uses:
    """Registers of one instruction."""

    reads_v: int = 0
    writes_v: int = 0
    reads_s: int = 0
    writes_s: int = 0

    def __or__(self, other: Uses) -> Uses:
        return Uses(
            self.reads_v | other.reads_v, self.writes_v | other.writes_v,
            self.reads_s | other.reads_s, self.writes_s | other.writes_s,
        )  # fmt: skip


def mask_of(operand: Operand) -> int:
    """The registers of an operand as a bit mask."""
    return ((1 << operand.count) - 1) << operand.index


def results(ins: Instruction) -> int:
    """How many leading operands an instruction writes."""
    name = ins.name
    if name.startswith("v_cmpx"):  # gfx9 writes the mask to a register beside EXEC
        return int(len(ins.operands) > 2)
    usual = _usual_results(name)
    if usual == 0:
        return 0
    if "_atomic_" in name:
        if name.startswith(("buffer", "s_")):
            return int(ins.flag("glc") or "RETURN" in ins.modifiers.get("th", ""))
        based = name.startswith("global") or ins.operands[-1].kind == "s"  # CDNA 5's flat ones have a base, too
        return int(len(ins.operands) > 2 + based)
    if name.startswith("ds_") and not re.match(r"ds_(load|read|bpermute|permute|swizzle|consume|append)", name):
        return int("_rtn" in name)
    return usual


def misplaced_result(ins: Instruction) -> Operand | None:
    """The first destination of an ALU instruction that is no register, or none of the kind that it writes."""
    kinds = ("s" if _TO_SCALAR.match(ins.name) else "v", "v" if _SWAPS.match(ins.name) else "s")
    written = zip(ins.operands[: results(ins)], kinds, strict=False)
    return next((operand for operand, kind in written if operand.kind != kind), None)


def with_vcc(ins: Instruction, lanes: int) -> Instruction:
    """The instruction with the VCC that LLVM's assembler lets people leave out of comparisons and sums with carries.

    Of those of one word, that is, whose last source is a vector register.
    """
    vcc, given = Operand("s", VCC, lanes // 32), len(ins.operands)
    if ins.encoding.startswith("e64") or not given or ins.operands[-1].kind != "v":
        return ins
    if given == 2 and ins.name.startswith("v_cmp_"):
        return replace(ins, operands=(vcc, *ins.operands))
    if given == 3 and (match := _CARRIES.fullmatch(ins.name)):
        first, *sources = ins.operands
        return replace(ins, operands=(first, vcc, *sources, *([vcc] if match[1] else [])))
    return ins


@cache
def _usual_results(name: str) -> int:
    if _NO_RESULT.match(name) or "_load_lds_" in name:
        return 0
    return 2 if _TWO_RESULTS.match(name) or _SWAPS.match(name) else 1


@cache
def _reads_results(name: str) -> bool:
    return bool(_READS_RESULT.match(name) or _READS_DATA.match(name))


def uses(ins: Instruction, lanes: int) -> Uses:
    """Registers that an instruction, or both halves of a dual-issue pair, reads and writes."""
    name, count = ins.name, results(ins)
    reads_results = _reads_results(name)
    reads_v = writes_v = reads_s = writes_s = 0  # one record at the end: strict mode asks this of every instruction
    for position, operand in enumerate(ins.operands):
        if operand.kind == "v":
            mask = mask_of(operand)
            if position < count:
                writes_v |= mask
            if position >= count or reads_results:
                reads_v |= mask
        elif operand.kind == "s" and operand.index != NULL:
            mask = mask_of(operand)
            if position < count:
                writes_s |= mask
            if position >= count or reads_results:
                reads_s |= mask
    pair = lanes // 32
    vcc, exec_ = ((1 << pair) - 1) << VCC, ((1 << pair) - 1) << EXEC
    if name.startswith(("v_div_fmas", "s_cbranch_vcc")) or (name.startswith("v_cndmask") and len(ins.operands) == 3):
        reads_s |= vcc
    if name in ("s_set_gpr_idx_on", "s_set_gpr_idx_idx"):
        writes_s |= 1 << M0
    if name.startswith("v_cmpx"):
        writes_s |= exec_
    if "saveexec" in name or "wrexec" in name:
        reads_s |= exec_
        writes_s |= exec_
    found = Uses(reads_v, writes_v, reads_s, writes_s)
    return found | uses(ins.second, lanes) if ins.second is not None else found


# -- wait counters -----------------------------------------------------------------------------------------------------

_MEMORY = re.compile(r"(global|flat|buffer|scratch|cluster)_(load|store|atomic)")


def raises(ins: Instruction, major: int) -> tuple[str, ...]:
    """The counters that an instruction raises until it is done (each generation's names)."""
    name = ins.name
    if "_async_" in name:
        return ("asynccnt",)
    if name.startswith("tensor_"):
        return ("tensorcnt",)
    match = _MEMORY.match(name)
    if match:
        loads = match[2] == "load" or (match[2] == "atomic" and results(ins) > 0)
        if major == 12:
            counter = "loadcnt" if loads else "storecnt"
        elif major == 9:  # counts both
            counter = "vmcnt"
        else:
            counter = "vmcnt" if loads else "vscnt"
        return (counter, "dscnt" if major == 12 else "lgkmcnt") if match[1] == "flat" else (counter,)
    if name.startswith("ds_"):
        return ("dscnt" if major == 12 else "lgkmcnt",)
    if returns_in_any_order(ins):
        return ("kmcnt" if major == 12 else "lgkmcnt",)
    return ()


def is_scalar_load(ins: Instruction) -> bool:
    """Whether it loads from global memory into scalar registers."""
    return re.match(r"s_(buffer_|scratch_)?load", ins.name) is not None


def is_scalar_store(ins: Instruction) -> bool:
    """Whether it stores scalar registers to global memory, or combines them with what is there."""
    return re.match(r"s_(buffer_|scratch_)?(store|atomic)", ins.name) is not None


def returns_in_any_order(ins: Instruction) -> bool:
    """Scalar memory, clocks and answered messages may return out of order: only a wait for zero guards them."""
    if not ins.name.startswith("s_"):
        return False
    clocks = ("s_sendmsg_rtn", "s_memtime", "s_memrealtime")
    return is_scalar_load(ins) or is_scalar_store(ins) or ins.name.startswith(clocks)


_FIELD = re.compile(r"(vmcnt|lgkmcnt|expcnt|vscnt)(?:_sat)?\(((?:[^()]|\([^()]*\))+)\)")
_SINGLE = re.compile(r"s_wait_(loadcnt|storecnt|dscnt|kmcnt|samplecnt|bvhcnt|expcnt|asynccnt|tensorcnt)$")


def waits(ins: Instruction, major: int = 11) -> dict[str, int]:
    """Counter -> how many operations may still be under way after the instruction; empty if it does not wait.

    major: the generation, whose numbers hand-written code may have in place of fields.
    """
    return waits_of(ins.name, ins.text.partition(" ")[2], major)


def waits_of(name: str, text: str, major: int) -> dict[str, int]:
    """As `waits`, of a mnemonic and what stands behind it."""
    if not name.startswith("s_wait"):
        return {}
    if name == "s_waitcnt":
        fields = {counter: _number(n) for counter, n in _FIELD.findall(text)}
        return fields or _decode_waitcnt(_number(text), major)
    if name in ("s_waitcnt_vscnt", "s_waitcnt_vmcnt", "s_waitcnt_lgkmcnt", "s_waitcnt_expcnt"):
        return {name.removeprefix("s_waitcnt_"): _number(text.split(",")[-1])}
    if match := _SINGLE.match(name):
        return {match[1]: _number(text)}
    if name in ("s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt"):
        both = _number(text)
        return {name.split("_")[2]: both >> 8 & 63, "dscnt": both & 63}
    if name == "s_wait_idle":
        return dict.fromkeys(("loadcnt", "storecnt", "dscnt", "kmcnt", "vmcnt", "vscnt", "lgkmcnt"), 0)
    return {}


def _number(text: str) -> int:
    """What a wait counts down to, which people may write as an expression."""
    value = value_of(text)
    if value is None:
        raise EmulationError(f"a wait for {text.strip()!r}, which is no number")
    return value


def _decode_waitcnt(word: int, major: int) -> dict[str, int]:
    """s_waitcnt's immediate; all ones means no wait.

    gfx11: expcnt [2:0], lgkmcnt [9:4], vmcnt [15:10]. gfx9: vmcnt [15:14] and [3:0], expcnt [6:4], lgkmcnt [11:8].
    """
    if major == 9:
        got = {"expcnt": word >> 4 & 7, "lgkmcnt": word >> 8 & 15, "vmcnt": word >> 10 & 48 | word & 15}
        most = {"expcnt": 7, "lgkmcnt": 15, "vmcnt": 63}
    else:
        got = {"expcnt": word & 7, "lgkmcnt": word >> 4 & 63, "vmcnt": word >> 10 & 63}
        most = {"expcnt": 7, "lgkmcnt": 63, "vmcnt": 63}
    return {k: v for k, v in got.items() if v != most[k]}
