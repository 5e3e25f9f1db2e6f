"""hopper_rows.cu: few rows times a matrix that is read once, straight into the registers that mma takes.

The idea: mma does not care which of K's elements stand where, so what a lane loads need not pass through shared memory
first, nor begin at 16 bytes, as what TMA reads. B may lie along N or along K; few columns in place of few rows are
C^T = B^T A^T. The CTAs of a cluster have a part of K each and add up through distributed shared memory: no workspace,
no second launch, no copy of what TMA cannot read. Hopper (sm_90a).
Source: PTX ISA, `mma.m16n8k16`, `cp.async.bulk.prefetch`, `griddepcontrol`, `barrier.cluster`.
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
from ....isa.words import counted
from ..config_rows import EIGHTH, GROUP
from ..tma_operand import NO_TILES, OUTPUT_TYPES, kernel_source, prepare_launches


class _Sizes(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "blocks", "inner")),
        *((name, ctypes.c_int64) for name in ("a_m", "a_k", "b_k", "b_n", "c_m", "c_n")),
        *((f"{matrix}_{axis}", ctypes.c_int64) for matrix in "abc" for axis in ("outer", "inner")),
    )  # fmt: skip


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    few = config.as_multiplied(problem)
    out_type, out_kind = OUTPUT_TYPES[problem.dtype_out]
    piece, of_a, along_k = config.piece(problem), config.k_piece(problem), few.b.major == "t"
    constants = {
        "EIGHTS": config.block_m // EIGHTH, "GROUPS": config.block_n // GROUP // config.across,
        "WARPS": config.num_warps, "ACROSS": config.across, "PIECE": piece,
        "K_PIECE": piece if along_k else of_a or 8, "A_LINES": int(of_a > 0),
        "UNITS": config.stages, "CLUSTER": config.cluster_k, "RESIDENT": config.resident, "AHEAD": config.ahead,
        "BATCHED": int(problem.batches > 1),
        "ALONG_K": int(along_k), "C_ALONG_M": int(few.out.strides[2] == 1 and few.out.strides[3] != 1),
        "ELEMENT": problem.dtype_a, "FP16": int(problem.dtype_a == "fp16"), "OUT_TYPE": out_type, "OUT_KIND": out_kind,
    }  # fmt: skip
    return compile_cuda(
        kernel_source(__package__, "hopper_rows.cu"), gpu, constants=NO_TILES | constants, num_warps=config.num_warps,
        lds_bytes=config.shared_bytes(problem), name="hopper_rows.cu",
    )  # fmt: skip


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        few = config.as_multiplied(problem)
        sizes = _Sizes(
            few.m, few.n, few.k, config.blocks(problem), few.batch[1],
            *few.a.strides[2:], *few.b.strides[2:], *few.out.strides[2:],
            *few.a.strides[:2], *few.b.strides[:2], *few.out.strides[:2])  # fmt: skip
        self.swapped = config.swapped
        self.launch = CudaCall(
            code_object(problem, config, gpu), (Pointer(), Pointer(), Pointer(), sizes), device,
            ctas=config.ctas(problem), cluster=config.cluster_k, pdl=config.pdl,
        )  # fmt: skip

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        if self.swapped:
            a, b = b, a
        self.launch.launch_at(current_stream(out.get_device()), a.data_ptr(), b.data_ptr(), out.data_ptr())


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (a RowsConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=False)


def launch(problem, config, gpu, a: Any, b: Any, out: Any) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    streamed = "A" if config.swapped else "B"
    parts = f", {config.cluster_k} of a cluster with a part of K each" if config.cluster_k > 1 else ""
    ctas = counted(config.ctas(problem), "CTA")
    return [f"{ctas}, past whose mma {config.block_n} lines of {streamed} stream{parts}"]
