"""Checks on machine code: `check(text, gpu)` says what is illegal, what costs time and what could be better.

The rules stand in finding.py, each with its reason, its source and what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..gpu import Gpu
from .check_code import Code, read_code
from .check_memory import check_accumulators, check_lds, check_occupancy, check_scalar_loads, check_spills
from .check_pairs import check_matrix_banks, check_missed, check_pairs
from .check_wait_states import check_wait_states
from .check_waits import check_waits
from .check_wmma import check_wmma_states
from .finding import Finding, Severity, found


@dataclass(frozen=True)
class Report:
    """What was found in one kernel, in the text's order."""

    kernel: str | None
    gpu: str
    instructions: int
    pairs: int  #: dual-issue pairs
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing but hints was found."""
        return all(f.severity is Severity.HINT for f in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """Findings of each rule."""
        return dict(Counter(f.rule for f in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "kernel": self.kernel, "gpu": self.gpu, "instructions": self.instructions, "dual_issue_pairs": self.pairs,
            "clean": self.clean, "counts": self.counts, "findings": [f.to_dict() for f in self.findings],
        }  # fmt: skip


def check(
    text: str,
    gpu: str | Gpu | None = None,
    kernel: str | None = None,
    *,
    counted: Mapping[int, tuple[int, int]] | None = None,
    lds_bytes: int | None = None,
    num_warps: int | None = None,
) -> tuple[Report, ...]:
    """A report on each kernel of an AMDGCN text, or on the one that is named.

    text: a compiler's `.s`, hand-written assembly, or the output of `llvm-objdump -d`. gpu: as for `read_code`.
    counted: line -> LDS clocks and those that conflicts add, from a launch in the emulator: better than what the code
    alone tells. lds_bytes, num_warps: of a launch, where the text does not say (Triton asks for LDS at launch).
    Raises as `read_code`.
    """
    return tuple(_check(code, counted, lds_bytes, num_warps) for code in read_code(text, gpu, kernel))


def _check(code: Code, counted: Any, lds_bytes: int | None, num_warps: int | None) -> Report:
    findings = [
        *check_waits(code), *check_scalar_loads(code), *check_spills(code),
        *check_occupancy(code, lds_bytes, num_warps), *check_wait_states(code), *check_wmma_states(code),
        *check_accumulators(code),
    ]  # fmt: skip
    # Code without a name may be a part of something.
    if code.kernel is not None and (step := code.step_before_end()) is not None:
        findings.append(found("runs-past-end", step.ins, "the last instruction, and nothing ends the kernel"))
    if not code.gpu.is_cdna5:  # whose pairs and banks of LDS are published nowhere
        findings += [
            *check_pairs(code), *check_missed(code), *check_matrix_banks(code), *check_lds(code, counted)
        ]
    findings.sort(key=lambda f: (f.line, f.rule))
    pairs = sum(step.ins.second is not None for step in code.steps)
    return Report(code.kernel, code.gpu.name, len(code.steps), pairs, tuple(findings))
