"""The control experiments: the same machine code without one of its instructions has to be found wrong.

A matrix instruction left out makes the numbers wrong. A wait or a barrier left out changes no number here, where loads
land at once and waves move together: strict mode has to report it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import EmulationError, HazardError
from ..isa.analysis import hot_loop
from ..isa.listing import Instruction, Kind
from .product import Product, random_operands, run_product

if TYPE_CHECKING:
    from ..codegen import CodeObject
    from ..ops.matmul.config import MatmulConfig
    from ..verify import Verdict


@dataclass(frozen=True)
class Damage:
    """What was left out, and whether anybody noticed."""

    instruction: Instruction
    verdict: Verdict | None  #: None where the emulator itself stopped
    stopped: str = ""  #: its message
    hazard: str = ""  #: the kind of hazard that strict mode reported

    @property
    def caught(self) -> bool:
        """Whether the run was found wrong."""
        return self.verdict is None or not self.verdict.ok


def victims(code: CodeObject) -> dict[str, list[Instruction]]:
    """What to leave out of the hot loop: its last matrix instruction, its last wait for global loads, its barriers.

    A workgroup of one wave has nobody to wait for at a barrier.
    """
    loop = hot_loop(code.asm, code.kernel)
    if loop is None or not loop.count(Kind.MATRIX):
        raise EmulationError(f"{code.kernel} for {code.gpu.name} has no matrix instruction in a loop")
    matrix = [i for i in loop.instructions if i.kind is Kind.MATRIX]
    loads = [i for i in loop.instructions if i.kind is Kind.WAIT and re.search(r"vmcnt\(|loadcnt", i.text)]
    barriers = [i for i in loop.instructions if i.kind is Kind.BARRIER] if code.num_warps > 1 else []
    found = {"matrix": matrix[-1:], "wait": loads[-1:], "barrier": barriers}
    return {name: left_out for name, left_out in found.items() if left_out}


def run_without(
    code: CodeObject, left_out: Sequence[Instruction], config: MatmulConfig, product: Product, seed: int, strict: bool
) -> tuple[Verdict | None, EmulationError | None]:
    """Run the rest of `code` on a product of its constants: what the check says, or why the emulator stopped."""
    from ..emulator.launch import LaunchRecord, launch
    from ..emulator.program import Program

    lines = code.asm.split("\n")
    for instruction in left_out:
        lines[instruction.line - 1] = "\ts_nop 0"
    damaged = Program("\n".join(lines), code.gpu, code.kernel, strict=strict)

    def launch_damaged(program: Program, *args: Any, **how: Any) -> LaunchRecord:
        return launch(damaged if program.kernel == code.kernel else program, *args, **how)

    a, b = random_operands(product, seed)
    try:
        outcome = run_product(product, a, b, strict=strict, chosen=config, launcher=launch_damaged)
    except EmulationError as error:
        return None, error
    return outcome.verdict, None


def run_damaged(code: CodeObject, config: MatmulConfig, product: Product, seed: int) -> list[Damage]:
    """One control experiment for each kind of victim."""
    damages = []
    for name, left_out in victims(code).items():
        verdict, error = run_without(code, left_out, config, product, seed, strict=name != "matrix")
        hazard = error.kind if isinstance(error, HazardError) else ""
        damages.append(Damage(left_out[0], verdict, str(error or ""), hazard))
    return damages


def run_strict(code: CodeObject, config: MatmulConfig, product: Product, seed: int) -> EmulationError | None:
    """The whole code in strict mode: what it found, None where it found nothing."""
    return run_without(code, (), config, product, seed, strict=True)[1]
