"""The control experiment: the same machine code without one of its matrix instructions has to be found wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import EmulationError
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

    @property
    def caught(self) -> bool:
        """Whether the run was found wrong."""
        return self.verdict is None or not self.verdict.ok


def run_damaged(code: CodeObject, config: MatmulConfig, product: Product, seed: int) -> Damage:
    """Leave the hot loop's last matrix instruction out of `code` and run the rest on a product of its constants."""
    from .. import verify
    from ..emulator.launch import launch
    from ..emulator.memory import Region
    from ..emulator.program import Program
    from ..ops.matmul import execute

    loop = hot_loop(code.asm, code.kernel)
    if loop is None or not loop.count(Kind.MATRIX):
        raise EmulationError(f"{code.kernel} for {code.gpu.name} has no matrix instruction in a loop")
    victim = next(i for i in reversed(loop.instructions) if i.kind is Kind.MATRIX)
    lines = code.asm.split("\n")
    lines[victim.line - 1] = "\ts_nop 0"

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
            Program("\n".join(lines), code.gpu, code.kernel),
            (tiles,),
            bytes(block),
            workgroup_size=code.workgroup_size,
            lds_bytes=code.lds_bytes,
            regions=[Region(name, x.ctypes.data, x.nbytes, x) for name, x in arrays.items()],
        )
    except EmulationError as error:
        return Damage(victim, None, str(error))
    return Damage(victim, judge(product, a, b, c.array))
