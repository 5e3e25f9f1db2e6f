"""hopper_registers.cu: FP32 on the tensor cores, one operand in registers: as TF32, or cut into two TF32 pieces there.

Wins for precision "3xtf32", whose pieces nobody writes to memory, and for "tf32" where an operand is not contiguous
along K, or tiles are few: they are cut along K. CUDA C++: Triton copies such an operand. Hopper (sm_90a).
Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", register fragments of A; Ootomo and Yokota,
"Recovering single precision accuracy from Tensor Cores".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from ....codegen import CodeObject
from ....codegen.cuda_call import CudaCall, Pointer, TensorMap
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....device.pieces import placing
from ....device.prepared import current_stream, prepared_on
from ....isa.words import counted
from ..config_registers import PIECES, along_k
from ..config_shares import CTA_BYTES
from ..parts_of_k import Parts
from ..tma_operand import UNUSED_PITCH, Order, Sizes, TmaOperand, kernel_source, prepare_launches

_TEXTS = ("hopper_ahead.cuh", "hopper_registers_feed.cuh", "hopper_registers.cu")
_FETCHED = 4


def fetched(problem, config, gpu) -> int:
    """Slices that the L2 is asked for before the kernel ahead ends. None where an SM has room for two CTAs: none asks
    while another loads."""
    return _FETCHED if 2 * (config.shared_bytes(problem) + CTA_BYTES) > gpu.lds_bytes + CTA_BYTES else 0


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; a copy of an operand is a kernel of its own."""
    rows, columns = config.tile
    r_along_k, s_along_k = along_k(problem, config)
    constants = {
        "BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": config.block_k, "STAGES": config.stages,
        "CLUSTER_M": 1, "CLUSTER_N": 1, "GROUP_M": config.group_m, "GROUPED": 0,
        "TURNED": int(config.turned), "PIECES": PIECES[problem.precision],
        "R_ALONG_K": int(r_along_k), "S_ALONG_K": int(s_along_k), "TMA_STORE": int(config.by_tma(problem)),
        "SPLIT": int(config.split_k > 1), "FETCHED": fetched(problem, config, gpu),
    }  # fmt: skip
    multiply = wgmma_function("multiply_step", columns, "tf32", a_in_registers=True)
    types = "typedef unsigned int u32;\ntypedef unsigned long long u64;\n"
    return compile_cuda(
        types + multiply + kernel_source(__package__, *_TEXTS), gpu,
        constants=constants, num_warps=4 * (rows // 64 + 1), lds_bytes=config.shared_bytes(problem),
        name="hopper_registers.cu",
    )  # fmt: skip


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        self.turned, self.by_tma = config.turned, config.by_tma(problem)
        rows, columns = config.tile
        outer, inner, step_k, row = problem.b.strides
        a = problem.a.strides, problem.m, config.copy_a
        b = (outer, inner, row, step_k), problem.n, config.copy_b
        (first, m, copy_first), (second, n, copy_second) = (b, a) if self.turned else (a, b)
        r_along_k, s_along_k = along_k(problem, config)
        # TMA rounds to TF32; what is cut into pieces comes whole.
        dtype = "tf32" if PIECES[problem.precision] == 1 else "fp32"
        self.first = TmaOperand(
            first, dtype, m, problem.k, problem.batch, along_k=r_along_k,
            box=(32, rows if r_along_k else 32), swizzle=128, copied=copy_first, pieces=1)  # fmt: skip
        self.second = TmaOperand(
            second, dtype, n, problem.k, problem.batch, along_k=s_along_k,
            box=(32, columns if s_along_k else 32), swizzle=128,
            copied=copy_second, pieces=1)  # fmt: skip
        self.place = placing(self.first.copy, self.second.copy, pdl=config.pdl)
        outer, inner, row, column = problem.out.strides
        batch = problem.batch
        if config.split_k > 1:  # a part behind the other, in lines that TMA writes
            row, column = -(-problem.n // 4) * 4, 1
            outer, inner, batch = 0, problem.m * row, (1, config.split_k)
        self.parts = Parts(problem, config, (config.split_k, problem.m, row)) if config.split_k > 1 else None
        if self.by_tma:
            strides = [step * 4 or UNUSED_PITCH for step in (row, inner, outer)]
            box = (32, min(columns, 32) if self.turned else 64, 1, 1)
            c_map = TensorMap("fp32", (problem.n, problem.m, *batch[::-1]), strides, box, 128)
        else:
            c_map = self.second.map  # is not used, but has to be one
        steps = (column, row) if self.turned else (row, column)
        order = Order.of(-(-m // rows), -(-n // columns), problem.batch[1], config.group_m)
        sizes = Sizes(
            m, n, problem.k, problem.batch[1], config.tiles(problem), order, *self.first.steps, *self.second.steps,
            outer, inner, *steps)  # fmt: skip
        self.launch = CudaCall(
            code_object(problem, config, gpu),
            (self.first.map, self.second.map, c_map, Pointer(), sizes, ctypes.c_int(config.slices(problem))), device,
            ctas=config.ctas(problem), pdl=config.pdl,
        )  # fmt: skip

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        to = out if self.parts is None else self.parts.allocate(out.device)
        first, second = self.place(b, a) if self.turned else self.place(a, b)
        mapped = to if self.by_tma else second
        self.launch.launch_at(
            current_stream(out.get_device()), first.data_ptr(), second.data_ptr(), mapped.data_ptr(), to.data_ptr())
        if self.parts is not None:
            self.parts.add_up(to, out)


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (a RegistersConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=config.one_by_one)


def launch(problem, config, gpu, a: Any, b: Any, out: Any) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    name, other = "BA" if config.turned else "AB"
    tiles, ctas = counted(config.tiles(problem), "tile"), counted(config.ctas(problem), "CTA")
    lines = [
        f"{tiles} of {config.block_m}x{config.block_n}, {ctas}",
        f"{name} reaches the tensor cores through registers",
    ]
    if config.split_k > 1:
        lines.append(f"K in {config.split_k} parts, summed in their order by a second launch")
    if config.turned:
        lines.append("C's transpose is computed, and turned on its way out")
    if PIECES[problem.precision] > 1:
        lines.append("both operands are cut into TF32 pieces on their way to the tensor cores")
    if not along_k(problem, config)[1]:
        lines.append(f"{other} is turned to lines along K in shared memory")
    for name, copied in (("A", config.copy_a), ("B", config.copy_b)):
        if copied:
            lines.append(f"{name} is copied first, contiguous along K")
    return lines
