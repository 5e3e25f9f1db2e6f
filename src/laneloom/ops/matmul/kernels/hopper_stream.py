"""hopper_stream.cu: FP32 by FMA, operands through a ring by TMA or by lanes, tiles cut along K to equal shares.

Wins for FP32 (precision "ieee") but for the smallest products. What lies along K comes by TMA as well and is turned in
shared memory, or read so where tiles are small; what TMA does not read, four warps bring element by element; or either
is copied first. The sums of a tile that was cut are added in the order of K, whoever computes them: the same inputs
give the same bits. CUDA C++: the inner loop's registers and order of instructions. Hopper (sm_90a).
Source: Osama, Merrill, Cecka et al., "Stream-K" (2023); NVIDIA CUTLASS, "Efficient GEMM in CUDA".
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

from ....codegen import CodeObject
from ....codegen.cuda_call import CudaCall
from ....codegen.nvrtc import compile_cuda
from ....device.pieces import placing
from ....device.prepared import prepared_on
from ....isa.words import counted
from ..config_shares import LAUNCHES, SHARES
from ..config_stream import Feed
from ..parts_of_k import Output
from ..tma_operand import TmaOperand, kernel_source, prepare_launches

_TEXTS = ("hopper_shares.cuh", "hopper_stream_feed.cuh", "hopper_stream.cu")
#: of a thread that brings operands and of one that multiplies, by the CTAs of an SM: together what a launch is given
_REGISTERS = {1: (56, 224), 2: (40, 216)}
_REGISTERS_TURNED = (48, 208)  #: where both operands are turned, of two CTAs


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; copies of operands are kernels of their own."""
    tile = config.tile
    a, b = (config.feed(problem, name) for name in "ab")
    turned = a is b is Feed.TURNED and tile.resident > 1
    producer, consumer = _REGISTERS_TURNED if turned else _REGISTERS[tile.resident]
    constants = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "STAGES": config.stages,
        "GROUP_M": config.group_m, "CUT": config.cut or SHARES, "CLUSTER_M": 1, "CLUSTER_N": 1, "GROUPED": 0,
        "WARPS_M": tile.warps_m, "WARPS_N": config.num_warps // tile.warps_m, "RESIDENT": tile.resident,
        "PRODUCER_REGISTERS": producer, "CONSUMER_REGISTERS": consumer,
        "A_LANES": int(a), "B_LANES": int(b),
        "WIDE_STORE": int(config.stores_wide(problem)), "C_VECTOR": min(problem.vector_out, 2),
    }  # fmt: skip
    return compile_cuda(
        kernel_source(__package__, *_TEXTS), gpu, constants=constants,
        num_warps=config.num_warps + 4, lds_bytes=config.shared_bytes(problem), name="hopper_stream.cu",
    )  # fmt: skip


def _operand(problem, config, name: str) -> TmaOperand:
    if name == "a":
        strides, rows, block, copied = problem.a.strides, problem.m, config.block_m, config.copy_a
    else:
        outer, inner, step_k, row = problem.b.strides
        strides, rows, block, copied = (outer, inner, row, step_k), problem.n, config.block_n, config.copy_b
    along_k = config.feed(problem, name) in (Feed.TURNED, Feed.AS_IT_LIES)
    return TmaOperand(
        strides, "fp32", rows, problem.k, problem.batch, along_k=along_k,
        box=(config.block_k, block) if along_k else (block, config.block_k),
        swizzle=64 if along_k and config.block_k == 16 else 0, copied=copied, pieces=1,
    )  # fmt: skip


class _Plain(ctypes.Structure):
    """`Plain` of hopper_stream.cu."""

    _fields_ = (
        ("first", ctypes.c_void_p), ("outer", ctypes.c_int64), ("inner", ctypes.c_int64), ("line", ctypes.c_int64),
    )  # fmt: skip


def _plain(matrix) -> _Plain:
    outer, inner, row, column = matrix.strides
    return _Plain(0, outer, inner, row if matrix.major == "n" else column)


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem, config, gpu, device: int) -> None:
        self.a, self.b = _operand(problem, config, "a"), _operand(problem, config, "b")
        self.place = placing(self.a.copy, self.b.copy, pdl=config.pdl)
        self.pointer, self.parts, self.number = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.output = output = Output(problem, config, self.a.steps, self.b.steps)
        self.plain_a, self.plain_b = _plain(problem.a), _plain(problem.b)
        arguments = (self.plain_a, self.plain_b, self.pointer, output.sizes, *output.cut, self.parts, self.number)
        self.launch = CudaCall(
            code_object(problem, config, gpu), (self.a.map, self.b.map, *arguments), device,
            ctas=config.ctas(problem), pdl=config.pdl,
        )  # fmt: skip
        self.lock = threading.Lock()
        self.boxes_a, self.boxes_b = (config.feed(problem, name).by_tma for name in "ab")

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        written, parts = self.output.place(out)
        a, b = self.place(a, b)
        stream = torch.cuda.current_stream(out.device).cuda_stream
        with self.lock:  # the arguments are filled in place
            if self.boxes_a:
                self.a.map.set_address(a.data_ptr())
            else:
                self.plain_a.first = a.data_ptr()
            if self.boxes_b:
                self.b.map.set_address(b.data_ptr())
            else:
                self.plain_b.first = b.data_ptr()
            self.pointer.value, self.parts.value = written.data_ptr(), parts.data_ptr()
            self.number.value = next(LAUNCHES)
            self.launch(stream)
        self.output.finish(written, out)


def prepare(problem, config, gpu) -> Callable[..., None]:
    """What runs `config` (a StreamConfig) on tensors that lie as `problem` says, call after call, on one device."""
    return prepare_launches(_Prepared, problem, config, gpu, copied=config.one_by_one(problem))


def launch(problem, config, gpu, a: Any, b: Any, out: Any) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    tiles, ctas = config.tiles(problem), config.ctas(problem)
    lines = [f"{counted(tiles, 'tile')} of {config.block_m}x{config.block_n} by FMA, {counted(ctas, 'CTA')}"]
    lines += config.describe_cut(problem)
    for name in "ab":
        feed = config.feed(problem, name)
        if feed is Feed.TURNED:
            lines.append(f"{name.upper()} comes in boxes that three warps turn")
        elif not feed.by_tma:
            lines.append(f"{name.upper()} comes element by element, by four warps")
    for name, copied in (("A", config.copy_a), ("B", config.copy_b)):
        if copied:
            lines.append(
                f"{name} is copied first: contiguous along {'M' if name == 'A' else 'N'}, rows of whole 128-byte lines"
            )
    return lines
