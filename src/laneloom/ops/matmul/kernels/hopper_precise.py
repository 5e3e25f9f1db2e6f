"""hopper_precise.cu: FP64 by DMMA, operands by TMA through a ring, one producer warp, tiles cut along K to shares.

Wins wherever TMA can read the operands, or copies of them, and C has enough tiles; all four layouts as they lie. CUDA
C++: the inner loop needs registers that are indexed by hand. Hopper (sm_90a).
Source: PTX ISA, `mma.m16n8k16` for .f64; NVIDIA CUTLASS, "Efficient GEMM in CUDA".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from ....codegen import CodeObject
from ....codegen.cuda_call import CudaCall, Pointer
from ....codegen.nvrtc import compile_cuda
from ....device.pieces import placing
from ....device.prepared import current_stream, prepared_on
from ....isa.words import counted
from ..config_shares import LAUNCHES
from ..parts_of_k import Output
from ..tma_operand import TmaOperand, kernel_source, prepare_launches

_TEXTS = ("hopper_ahead.cuh", "hopper_shares.cuh", "hopper_precise.cu")
#: of a thread that brings operands and of one that multiplies, by the CTAs of an SM: together what a launch is given
_REGISTERS = {1: (40, 232), 2: (40, 216)}
#: slices that the L2 is asked for before the kernel ahead ends, by the CTAs of an SM: none asks while another loads
_FETCHED = {1: 2, 2: 0}


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; copies of operands are kernels of their own."""
    tile = config.tile
    producer, consumer = _REGISTERS[tile.resident]
    constants = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k,
        "WARPS_M": tile.warps_m, "WARPS_N": config.num_warps // tile.warps_m, "CUT": config.cut,
        "RESIDENT": tile.resident, "PRODUCER_REGISTERS": producer, "CONSUMER_REGISTERS": consumer,
        "STAGES": config.stages, "FETCHED": _FETCHED[tile.resident], "GROUP_M": config.group_m,
        "CLUSTER_M": 1, "CLUSTER_N": 1, "GROUPED": 0,
        "A_IS_KM": int(not _along_k(problem, config, "a")), "B_IS_NK": int(_along_k(problem, config, "b")),
        "WIDE_STORE": int(config.stores_wide(problem)),
    }  # fmt: skip
    return compile_cuda(
        kernel_source(__package__, *_TEXTS), gpu, constants=constants,
        num_warps=config.num_warps + 4, lds_bytes=config.shared_bytes(problem), name="hopper_precise.cu",
    )  # fmt: skip


def _along_k(problem, config, name: str) -> bool:
    matrix, copied, along = (problem.a, config.copy_a, "n") if name == "a" else (problem.b, config.copy_b, "t")
    return copied or matrix.major == along


def _operand(problem, config, name: str) -> TmaOperand:
    if name == "a":
        strides, rows, block, copied = problem.a.strides, problem.m, config.block_m, config.copy_a
    else:
        outer, inner, step_k, row = problem.b.strides
        strides, rows, block, copied = (outer, inner, row, step_k), problem.n, config.block_n, config.copy_b
    along_k = _along_k(problem, config, name)
    return TmaOperand(
        strides, "fp64", rows, problem.k, problem.batch, along_k=along_k,
        box=(16, block if along_k else config.block_k), swizzle=128, copied=copied, pieces=1,
    )  # fmt: skip


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        self.a, self.b = _operand(problem, config, "a"), _operand(problem, config, "b")
        self.place = placing(self.a.copy, self.b.copy, pdl=config.pdl)
        self.output = output = Output(problem, config, self.a.steps, self.b.steps)
        arguments = (output.sizes, ctypes.c_double(1), *output.cut, Pointer(), Pointer())
        self.launch = CudaCall(
            code_object(problem, config, gpu), (self.a.map, self.b.map, Pointer(), *arguments), device,
            ctas=config.ctas(problem), pdl=config.pdl,
        )  # fmt: skip

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        written, parts = self.output.place(out)
        a, b = self.place(a, b)
        addresses = a.data_ptr(), b.data_ptr(), written.data_ptr(), parts.data_ptr()
        self.launch.launch_at(current_stream(out.get_device()), *addresses, next(LAUNCHES))
        self.output.finish(written, out)


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (a PreciseConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=config.one_by_one(problem))


def launch(problem, config, gpu, a: Any, b: Any, out: Any) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    tile, ctas = f"{config.block_m}x{config.block_n}", counted(config.ctas(problem), "CTA")
    lines = [f"{counted(config.tiles(problem), 'tile')} of {tile} by matrix instructions (DMMA), {ctas}"]
    lines += config.describe_cut(problem)
    for name, copied in (("A", config.copy_a), ("B", config.copy_b)):
        if copied:
            lines.append(f"{name} is copied first: contiguous along K, rows of whole 128-byte lines")
    return lines
