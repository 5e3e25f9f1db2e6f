"""hopper_stream.cu: FP32 by FMA, operands by TMA through a ring, one producer warp, tiles cut along K to equal shares.

Wins for FP32 (precision "ieee") wherever TMA can read the operands, or copies of them. An operand that is contiguous
along K is copied first. The sums of a tile that was cut are added in the order of K, whoever computes them: the same
inputs give the same bits. CUDA C++: the inner loop's registers and order of instructions. Hopper (sm_90a).
Source: Osama, Merrill, Cecka et al., "Stream-K" (2023); NVIDIA CUTLASS, "Efficient GEMM in CUDA".
"""

from __future__ import annotations

import ctypes
import itertools
import secrets
import threading
from collections.abc import Callable
from typing import Any

import torch

from ....codegen import CodeObject
from ....codegen.cuda_call import CudaCall
from ....codegen.nvrtc import compile_cuda
from ....device.prepared import prepared_on
from ..problem import DTYPE_BYTES
from ..tma_operand import Sizes, TmaOperand, kernel_source, placing, prepare_launches

#: A launch's flags hold its number once a part is there. What memory held before is no number of these, but by a chance
#: of one in 2^62; and a part's reader writes another one, so that the same launch in a graph begins anew.
_LAUNCHES = itertools.count(secrets.randbits(62))


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; copies of operands are kernels of their own."""
    constants = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "STAGES": config.stages,
        "GROUP_M": config.group_m, "CLUSTER_M": 1, "CLUSTER_N": 1, "GROUPED": 0,
        "WIDE_STORE": int(problem.vector_out * DTYPE_BYTES["fp32"] == 16),
    }  # fmt: skip
    return compile_cuda(
        kernel_source(__package__, "hopper_stream.cu"), gpu, constants=constants, num_warps=config.num_warps + 4,
        lds_bytes=config.shared_bytes(problem), name="hopper_stream.cu",
    )  # fmt: skip


def _operand(problem, config, name: str) -> TmaOperand:
    if name == "a":
        strides, rows, block, copied = problem.a.strides, problem.m, config.block_m, config.copy_a
    else:
        outer, inner, step_k, row = problem.b.strides
        strides, rows, block, copied = (outer, inner, row, step_k), problem.n, config.block_n, config.copy_b
    return TmaOperand(
        strides, "fp32", rows, problem.k, problem.batch, along_k=False, box=(block, config.block_k), swizzle=0,
        copied=copied, pieces=1,
    )  # fmt: skip


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        self.a, self.b = _operand(problem, config, "a"), _operand(problem, config, "b")
        self.place = placing(self.a, self.b, pdl=config.pdl)
        self.pointer, self.parts, self.number = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.workspace = config.workspace_bytes(problem)
        sizes = Sizes(
            problem.m, problem.n, problem.k, problem.batch[1], config.tiles(problem), *self.a.steps, *self.b.steps,
            *problem.out.strides)  # fmt: skip
        whole = ctypes.c_int(config.whole_tiles(problem))
        self.launch = CudaCall(
            code_object(problem, config, gpu),
            (self.a.map, self.b.map, self.pointer, sizes, whole, self.parts, self.number), device,
            ctas=config.ctas(problem), pdl=config.pdl,
        )  # fmt: skip
        self.lock = threading.Lock()

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        # Of this call alone: calls on other streams may run beside it.
        parts = torch.empty(self.workspace, dtype=torch.uint8, device=out.device) if self.workspace else out
        a, b = self.place(a, b)
        stream = torch.cuda.current_stream(out.device).cuda_stream
        with self.lock:  # the arguments are filled in place
            self.a.map.set_address(a.data_ptr())
            self.b.map.set_address(b.data_ptr())
            self.pointer.value, self.parts.value = out.data_ptr(), parts.data_ptr()
            self.number.value = next(_LAUNCHES)
            self.launch(stream)


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (a StreamConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=config.copy_a or config.copy_b)


def launch(problem, config, gpu, a: Any, b: Any, out: Any) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    tiles, ctas = config.tiles(problem), config.ctas(problem)
    lines = [f"{tiles} tiles of {config.block_m}x{config.block_n} by FMA, {ctas} CTAs"]
    if cut := tiles - config.whole_tiles(problem):
        lines.append(f"{cut} of them cut along K into equal shares; {config.workspace_bytes(problem)} bytes for parts")
    for name, copied in (("A", config.copy_a), ("B", config.copy_b)):
        if copied:
            lines.append(
                f"{name} is copied first: contiguous along {'M' if name == 'A' else 'N'}, rows of whole 128-byte lines"
            )
    return lines
