"""The control experiments: the same machine code without one of its instructions has to be found wrong.

A matrix instruction left out makes the numbers wrong. A wait or a barrier left out changes no number here, where loads
land at once and waves move together: strict mode has to report it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import EmulationError, HazardError
from ..isa.analysis import hot_loop
from ..isa.listing import Instruction, Kind
from .product import Product, judge, random_operands

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
    from .. import verify
    from ..emulator.launch import launch
    from ..emulator.memory import Region
    from ..emulator.program import Program
    from ..ops.matmul import execute

    lines = code.asm.split("\n")
    for instruction in left_out:
        lines[instruction.line - 1] = "\ts_nop 0"
    a, b = random_operands(product, seed)
    c = verify.Guarded((product.m, product.n), product.dtype_out)
    arrays = {"a_ptr": a, "b_ptr": b, "c_ptr": c.array}
    values = execute.schedule_of(config).runtime_arguments(product.problem())
    values |= {name: array.ctypes.data for name, array in arrays.items()}
    block = bytearray(code.kernarg_bytes)
    for argument in code.arguments:
        # What has no name is Triton's scratch memory, of which this kernel needs none.
        data = struct.pack("<q", values.get(argument.name or "", 0))[: argument.size]
        block[argument.offset : argument.offset + len(data)] = data
    tiles = -(-product.m // config.block_m) * -(-product.n // config.block_n)
    try:
        launch(
            Program("\n".join(lines), code.gpu, code.kernel, strict=strict),
            (tiles,),
            bytes(block),
            workgroup_size=code.workgroup_size,
            lds_bytes=code.lds_bytes,
            regions=[Region(name, x.ctypes.data, x.nbytes, x) for name, x in arrays.items()],
        )
    except EmulationError as error:
        return None, error
    return judge(product, a, b, c.array), None


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
