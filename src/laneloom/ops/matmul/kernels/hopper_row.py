"""hopper_row.cu: one row times B contiguous along N, B streamed through registers and multiplied by FMA.

The idea: B is read once, 16 bytes a lane, with as many lines in flight as memory wants. The CTAs of a cluster have a
part of K each and add up through distributed shared memory: no workspace, no second launch. Wins for M = 1 in layouts
NN and TN, where the time is that of reading B. Hopper (sm_90a).
Source: PTX ISA, `cp.async.bulk.prefetch`, `griddepcontrol`, `barrier.cluster`.
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
from ..config_row import PIECE_BYTES, UNIT
from ..problem import DTYPE_BYTES
from ..tma_operand import NO_TILES, OUTPUT_TYPES, kernel_source, prepare_launches

_WIDE = {"fp32": "float", "fp64": "double"}


class _Sizes(ctypes.Structure):
    _fields_ = (
        ("n", ctypes.c_int32), ("k", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("a_k", "b_k", "c_n")),
    )  # fmt: skip


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    problem, kind = config.as_multiplied(problem), problem.dtype_a
    out_type, out_kind = ("double", 2) if kind == "fp64" else OUTPUT_TYPES[problem.dtype_out]
    whole = problem.k % (UNIT * config.turn(problem) * config.cluster_k) == 0
    constants = {
        "WIDE": PIECE_BYTES // DTYPE_BYTES[kind], "LANES": config.lanes(problem), "WARPS": config.num_warps,
        "CLUSTER": config.cluster_k, "UNITS": config.stages, "AHEAD": config.ahead, "WHOLE_TURNS": int(whole),
        "A_LINES": int(problem.a.strides[3] == 1 and problem.a.alignment >= PIECE_BYTES),
        **{name.upper(): int(kind == name) for name in ("fp16", "fp32", "fp64")},
        "ELEMENT": _WIDE.get(kind, kind), "SUM": _WIDE.get(kind, "float"), "OUT_TYPE": out_type, "OUT_KIND": out_kind,
    }  # fmt: skip
    return compile_cuda(
        kernel_source(__package__, "hopper_row.cu"), gpu, constants=NO_TILES | constants, num_warps=config.num_warps,
        lds_bytes=0, name="hopper_row.cu",
    )  # fmt: skip


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        of = config.as_multiplied(problem)
        sizes = _Sizes(of.n, of.k, of.a.strides[3], of.b.strides[2], of.out.strides[3])
        self.swapped = config.swapped
        self.launch = CudaCall(
            code_object(problem, config, gpu), (Pointer(), Pointer(), Pointer(), sizes), device,
            ctas=config.ctas(problem), cluster=config.cluster_k, pdl=config.pdl,
        )  # fmt: skip

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        row, lines = (b, a) if self.swapped else (a, b)
        self.launch.launch_at(current_stream(out.get_device()), row.data_ptr(), lines.data_ptr(), out.data_ptr())


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (a RowConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=False)


def launch(problem, config, gpu, a: Any, b: Any, out: Any) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    parts = f", {config.cluster_k} of a cluster with a part of K each" if config.cluster_k > 1 else ""
    read = "rows of A" if config.swapped else "columns of B"
    return [f"{counted(config.ctas(problem), 'CTA')} for {config.block_n} {read}{parts}, by FMA"]
