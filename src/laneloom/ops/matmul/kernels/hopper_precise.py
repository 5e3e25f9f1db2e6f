"""hopper_precise.cu: FP64 by DMMA, operands by TMA through a ring, one producer warp, persistent.

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
from ....device.prepared import current_stream, prepared_on
from ..problem import DTYPE_BYTES
from ..tma_operand import Sizes, TmaOperand, kernel_source, placing, prepare_launches

CONSUMER_WARPS = 8


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; copies of operands are kernels of their own."""
    constants = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "STAGES": config.stages, "GROUP_M": config.group_m,
        "CLUSTER_M": 1, "CLUSTER_N": 1, "GROUPED": 0,
        "A_IS_KM": int(not _along_k(problem, config, "a")), "B_IS_NK": int(_along_k(problem, config, "b")),
        "WIDE_STORE": int(problem.vector_out * DTYPE_BYTES[problem.dtype_out] == 16),
    }  # fmt: skip
    return compile_cuda(
        kernel_source(__package__, "hopper_precise.cu"), gpu, constants=constants, num_warps=CONSUMER_WARPS + 4,
        lds_bytes=config.shared_bytes(problem), name="hopper_precise.cu",
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


def count_tiles(problem, config) -> int:
    """Tiles of every product of the batch."""
    return -(-problem.m // config.block_m) * -(-problem.n // config.block_n) * problem.batches


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        self.a, self.b = _operand(problem, config, "a"), _operand(problem, config, "b")
        self.place = placing(self.a, self.b, pdl=config.pdl)
        items = count_tiles(problem, config)
        sizes = Sizes(
            problem.m, problem.n, problem.k, problem.batch[1], items, *self.a.steps, *self.b.steps,
            *problem.out.strides)  # fmt: skip
        self.launch = CudaCall(
            code_object(problem, config, gpu), (self.a.map, self.b.map, Pointer(), sizes, ctypes.c_double(1)), device,
            ctas=min(items, config.programs), pdl=config.pdl,
        )  # fmt: skip

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        a, b = self.place(a, b)
        self.launch.launch_at(current_stream(out.get_device()), a.data_ptr(), b.data_ptr(), out.data_ptr())


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (a PreciseConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=config.copy_a or config.copy_b)


def launch(problem, config, gpu, a: Any, b: Any, out: Any) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    lines = [f"{count_tiles(problem, config)} tiles of {config.block_m}x{config.block_n} by matrix instructions (DMMA)"]
    for name, copied in (("A", config.copy_a), ("B", config.copy_b)):
        if copied:
            lines.append(f"{name} is copied first: contiguous along K, rows of whole 128-byte lines")
    return lines
