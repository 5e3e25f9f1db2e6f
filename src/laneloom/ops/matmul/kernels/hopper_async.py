"""hopper_async.cu: FP32 by FMA and FP64 by DMMA of operands where they lie, by asynchronous copies; K in parts.

Wins for what the streaming schedules do badly: few rows, few tiles and a long K, small products, batches of them, rows
that TMA cannot read. Nothing is copied ahead. CUDA C++: the copies' sizes and the sums' places in registers depend on
how the operands lie. Hopper (sm_90a).
Source: PTX ISA, `cp.async`, `mma.m16n8k8` for .f64, `barrier.cluster`; NVIDIA CUTLASS, "Efficient GEMM in CUDA".
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
from ....device.split_k import ReduceLaunch
from ....isa.words import counted
from ..config_async import TILES
from ..tma_operand import NO_TILES, kernel_source, prepare_launches

_TEXTS = ("hopper_async_operands.cuh", "hopper_async_sums.cuh", "hopper_async.cu")
_NAMES = {"fp32": "float", "fp64": "double", "bf16": "bf16", "fp16": "fp16"}


class _Sizes(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "inner", "tiles_m", "tiles_n", "split")),
        *((f"{matrix}_{axis}", ctypes.c_int64) for matrix, last in (("a", "mk"), ("b", "kn"), ("c", "mn"))
          for axis in ("outer", "inner", *last)),
    )  # fmt: skip


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; the sum of a split K is a kernel of its own."""
    problem = config.as_written(problem)
    multiplied = config.as_multiplied(problem)
    kind = problem.dtype_a
    of_thread = dict(zip(("THREAD_M", "THREAD_N") if kind == "fp32" else ("ROWS_16", "COLUMNS_8"),
                         TILES[kind][config.block_m, config.block_n], strict=True))  # fmt: skip
    # A result that is swapped lies along the kernel's M.
    along_m = multiplied.out.strides[2] == 1 and multiplied.out.strides[3] != 1
    across = config.block_m if along_m else config.block_n
    store = min(problem.vector_out, across) if along_m == config.swapped else 1
    shifted_a, shifted_b = config.shifted(problem)
    vector_a, vector_b = config.vectors(problem)
    constants = {
        "WARPS": config.num_warps, "STAGES": config.stages, "CLUSTER": config.cluster_k,
        "RESIDENT": config.resident, **{name.upper(): int(kind == name) for name in ("fp64", "bf16", "fp16")},
        "ELEMENT": _NAMES[kind], "SUM": _NAMES[problem.dtype_sums], "OUT": _NAMES[problem.dtype_out],
        "A_ALONG_K": int(multiplied.a.major == "n"), "B_ALONG_K": int(multiplied.b.major == "t"),
        "A_SHIFTED": int(shifted_a), "B_SHIFTED": int(shifted_b),
        "A_VECTOR": vector_a, "B_VECTOR": vector_b if multiplied.b.major == "t" else min(vector_b, config.block_n),
        "C_ALONG_M": int(along_m), "C_VECTOR": store,
    }  # fmt: skip
    tile = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k}
    return compile_cuda(
        kernel_source(__package__, *_TEXTS), gpu, constants=NO_TILES | constants | tile | of_thread,
        num_warps=config.num_warps, lds_bytes=config.shared_bytes(problem), name="hopper_async.cu",
    )  # fmt: skip


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        multiplied = config.as_multiplied(config.as_written(problem))
        out = multiplied.out.strides
        if config.split_k > 1:  # every part has a result, one behind the other
            out = (problem.m * problem.n, 0, *out[2:])
        sizes = _Sizes(
            multiplied.m, multiplied.n, multiplied.k, multiplied.batch[1], *config.tiles(problem), config.split_k,
            *multiplied.a.strides, *multiplied.b.strides, *out)  # fmt: skip
        self.swapped = config.swapped
        self.launch = CudaCall(
            code_object(problem, config, gpu), (Pointer(), Pointer(), Pointer(), sizes), device,
            ctas=config.ctas(problem), cluster=config.cluster_k, pdl=config.pdl,
        )  # fmt: skip
        self.parts = (config.split_k, problem.m, problem.n) if config.split_k > 1 else None
        self.sums = torch.float64 if problem.dtype_sums == "fp64" else torch.float32
        self.reduce = ReduceLaunch(pdl=config.pdl)
        self.summed = (problem.m, problem.n), problem.out.strides[2:]

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        to = out if self.parts is None else torch.empty(self.parts, dtype=self.sums, device=out.device)
        first, second = (b, a) if self.swapped else (a, b)
        self.launch.launch_at(current_stream(out.get_device()), first.data_ptr(), second.data_ptr(), to.data_ptr())
        if self.parts is not None:
            self.reduce(to.view(-1, *self.summed[0]), out.as_strided(*self.summed))


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (an AsyncConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=False)


def launch(problem, config, gpu, a: Any, b: Any, out: Any) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    parts = f", {config.cluster_k} of a cluster with a part of K each" if config.cluster_k > 1 else ""
    parts += f", K in {config.split_k} parts that a second launch sums" if config.split_k > 1 else ""
    by = "FMA" if problem.dtype_a == "fp32" else "matrix instructions (DMMA)" if problem.dtype_a == "fp64" else "mma"
    return [f"{counted(config.ctas(problem), 'CTA')}, each of {config.block_m}x{config.block_n} by {by}{parts}"]
