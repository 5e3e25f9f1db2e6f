"""What a check of machine code finds, and the rules that it goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from .parse import Instruction


class Severity(StrEnum):
    """How sure it is that something is wrong."""

    ERROR = "error"  #: the hardware or the assembler does not take it
    WARNING = "warning"  #: it costs time
    HINT = "hint"  #: it may cost time, or something better may be possible


@dataclass(frozen=True)
class Rule:
    """One thing that is looked for."""

    severity: Severity
    basis: str  #: "documented" (vendor's guide, or the assembler), "derived" (follows from the code), "assumption"
    why: str
    fix: str


_GUIDE = "AMD ISA guide, Dual Issue VALU"
RULES: Mapping[str, Rule] = MappingProxyType({
    "illegal-pair": Rule(
        Severity.ERROR, f"documented: {_GUIDE}",
        "The encoding of a pair has no room for this, so the assembler refuses it.",
        "Change the opcode, operands or registers named, or write two instructions.",
    ),
    "pair-bank-conflict": Rule(
        Severity.ERROR, f"documented: {_GUIDE}",
        "Each of the 4 register banks (number mod 4) has one port for each source, and both halves want the same one.",
        "Give one of them a register of another bank, or exchange the sources of a half that commutes.",
    ),
    "pair-reads-old-value": Rule(
        Severity.HINT, f"documented: {_GUIDE}",
        "Both halves read before either writes: the second half gets the value from before the pair.",
        "Right for an exchange of registers; otherwise write two instructions.",
    ),
    "missed-pair": Rule(
        Severity.HINT, f"documented: {_GUIDE}",
        "A pair takes one issue cycle where two instructions take two.",
        "Write the two as one v_dual_... :: v_dual_..., in registers that allow it.",
    ),
    "wmma-banks": Rule(
        Severity.HINT, "assumption: banks are documented, how WMMA reads them is not",
        "If A and B are read side by side, every step wants two registers of one bank.",
        "Start A and B in different banks (number mod 4). Measure: 16 or 32 cycles may hide it.",
    ),
    "needless-wait": Rule(
        Severity.WARNING, "derived: operations under way on every path to it",
        "On every path to this wait no more operations of the counter are under way than it lets stay.",
        "Delete it, or let it wait for less.",
    ),
    "lds-conflict": Rule(
        Severity.WARNING,
        "documented: 32 banks of 4 bytes per pair of SIMDs (gfx942: per CU; gfx950: 64 per CU); which lanes share a "
        "clock is assumed, but for CDNA's loads of 16 bytes",
        "Lanes that are served together want different words of one bank, so they take turns.",
        "Pad the rows or swizzle the columns so that such lanes fall into different banks.",
    ),
    "narrow-scalar-loads": Rule(
        Severity.WARNING, "derived: neighbouring loads from one base",
        "Each takes an issue cycle and a request to the scalar cache; one wide load brings all of it.",
        "Load into consecutive registers, the first a multiple of the count (up to 4), with one s_load_b64, b128, ...",
    ),
    "spill": Rule(
        Severity.WARNING, "derived: scratch accesses and the kernel's metadata",
        "Registers that did not fit, and arrays that no register can be indexed for, go through memory.",
        "Use smaller tiles or more waves per tile, or permit more registers (fewer waves per SIMD); index arrays by "
        "constants, with loops unrolled.",
    ),
    "missing-nops": Rule(
        Severity.ERROR,
        "documented: AMD CDNA 3 and 4 ISA guides, required independent instructions; LLVM's rules (alone on CDNA 5)",
        "CDNA does not wait for this by itself: what is read, or overwritten, is not yet what the code means.",
        "Put an s_nop (CDNA 5: v_nop), or as many independent instructions, in between. Compilers do, but not for "
        "inline assembly.",
    ),
    "runs-past-end": Rule(
        Severity.ERROR, "derived: branches and where they lead",
        "A wave that comes here goes on with whatever lies behind the kernel in memory.",
        "End the kernel with s_endpgm, or jump before its last instruction.",
    ),
    "accumulator-moves": Rule(
        Severity.WARNING, "derived: v_accvgpr_read and v_accvgpr_write in the hot loop",
        "Vector instructions cannot work on accumulation registers: each move takes 4 cycles of the VALU.",
        "Keep what the loop computes with in v registers (MFMA takes them for C and D), or use smaller tiles.",
    ),
    "occupancy": Rule(
        Severity.HINT, "documented: register file, LDS and wave slots of the GPU table",
        "Fewer waves hide less latency; more of them only help where something waits.",
        "Use less of what limits, down to the next step that is named.",
    ),
})  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One place in the code where a rule speaks."""

    rule: str
    line: int  #: of the text
    text: str  #: the instruction
    source: str | None  #: file:line of the source, from .loc
    what: str

    @property
    def severity(self) -> Severity:
        """The rule's."""
        return RULES[self.rule].severity

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        rule = RULES[self.rule]
        return {
            "rule": self.rule, "severity": str(rule.severity), "line": self.line, "text": self.text,
            "source": self.source, "what": self.what, "why": rule.why, "fix": rule.fix, "basis": rule.basis,
        }  # fmt: skip


def found(rule: str, ins: Instruction, what: str) -> Finding:
    """A finding at an instruction."""
    return Finding(rule, ins.line, ins.text, str(ins.source) if ins.source else None, what)
