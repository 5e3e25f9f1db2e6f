"""hopper_registers.cu: TF32 with the operand that is not contiguous along K in registers, so that nobody transposes it.

Wins for precision "tf32" in every layout but "nt", where TMA reads that operand. Where it is B, C's transpose is
multiplied and turned on its way out. CUDA C++: Triton has no clusters, and copies such an operand. Hopper (sm_90a).
Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", register fragments of A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ....codegen import CodeObject
from ....codegen.cuda_call import CudaCall, TensorMap
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....device.prepared import current_stream, prepared_on
from ..config_registers import register_operand
from ..tma_operand import UNUSED_PITCH, Sizes, TmaOperand, kernel_source, placing, prepare_launches


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; a copy of an operand is a kernel of its own."""
    rows, columns = config.tile(problem)
    constants = {
        "BLOCK_M": rows, "BLOCK_N": columns, "STAGES": config.stages, "CLUSTER_M": 1, "CLUSTER_N": 1,
        "GROUP_M": config.group_m, "GROUPED": 0, "TURNED": int(register_operand(problem) == "b"),
    }  # fmt: skip
    multiply = wgmma_function("multiply_step", columns, "tf32", a_in_registers=True)
    types = "typedef unsigned int u32;\ntypedef unsigned long long u64;\n"
    return compile_cuda(
        types + multiply + kernel_source(__package__, "hopper_registers.cu"), gpu, constants=constants,
        num_warps=4 * (rows // 64 + 1), lds_bytes=config.shared_bytes(problem), name="hopper_registers.cu",
    )  # fmt: skip


def count_tiles(problem, config) -> int:
    """Tiles of every product of the batch."""
    return -(-problem.m // config.block_m) * -(-problem.n // config.block_n) * problem.batches


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        self.turned = register_operand(problem) == "b"
        columns = config.tile(problem)[1]
        outer, inner, step_k, row = problem.b.strides
        a, b = (problem.a.strides, problem.m), ((outer, inner, row, step_k), problem.n)
        (first, m), (second, n) = (b, a) if self.turned else (a, b)
        self.first = TmaOperand(
            first, "tf32", m, problem.k, problem.batch, along_k=False, box=(32, 32), swizzle=128, copied=False,
            pieces=1)  # fmt: skip
        self.second = TmaOperand(
            second, "tf32", n, problem.k, problem.batch, along_k=True, box=(32, columns), swizzle=128,
            copied=config.copy_other, pieces=1)  # fmt: skip
        self.place = placing(self.first, self.second, pdl=config.pdl)
        outer, inner, row, _ = problem.out.strides
        strides = [step * 4 or UNUSED_PITCH for step in (row, inner, outer)]
        box = (32, 32 if self.turned else 64, 1, 1)
        c = TensorMap("fp32", (problem.n, problem.m, *problem.batch[::-1]), strides, box, 128)
        items = count_tiles(problem, config)
        sizes = Sizes(m, n, problem.k, problem.batch[1], items, *self.first.steps, *self.second.steps)
        self.launch = CudaCall(
            code_object(problem, config, gpu), (self.first.map, self.second.map, c, sizes), device,
            ctas=min(items, config.programs), pdl=config.pdl,
        )  # fmt: skip

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        first, second = self.place(b, a) if self.turned else self.place(a, b)
        self.launch.launch_at(current_stream(out.get_device()), first.data_ptr(), second.data_ptr(), out.data_ptr())


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (a RegistersConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=config.copy_other)


def launch(problem, config, gpu, a: Any, b: Any, out: Any) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    found = register_operand(problem)
    name, other = ("B", "A") if found == "b" else ("A", "B")
    lines = [
        f"{count_tiles(problem, config)} tiles of {config.block_m}x{config.block_n}",
        f"{name} reaches the tensor cores through registers: it is not contiguous along K",
    ]
    if found == "b":
        lines.append("C's transpose is computed, and turned on its way out")
    if config.copy_other:
        lines.append(f"{other} is copied first, contiguous along K")
    return lines
