"""Attention of few queries over a cache on Hopper (hopper_decode.cu), by NVRTC: a ring of tiles ahead, one launch.

Wins on sm_90a for head dimensions up to 256 over the general schedule (decode.py), whose loads pass through registers:
they have no room for as many bytes on the way as the memory wants. Bound by memory. Source: as for decode.py.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64
from functools import cache
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_call import CudaCall, CudaFunction, Pointer, load_function
from ....codegen.nvrtc import compile_cuda
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_decode import DecodeProblem, HopperDecodeConfig
from ..hopper import boxes, counter, source_text


def code_object(problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu) -> CodeObject:
    """The machine code that what `prepare` gives runs."""
    constants = {
        "D": problem.d,
        "D_V": problem.d_v,
        "STAGES": config.stages,
        "BOX": config.box(problem),
        "PAGE": problem.page,
        "HAS_FIRST": int(problem.left is not None),
        "BF16": int(problem.dtype == "bf16"),
    }
    return compile_cuda(
        source_text("hopper_decode.cu", []),
        gpu,
        constants=constants,
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name="hopper_decode.cu",
    )


def prepare(
    problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes out [B, N, H, D] and lse [B, H, N] for operands that lie as these do, by name; sums and sums_lse have
    room for the parts where there are several. One launch. Raises UnsupportedError without the extra `cuda`."""
    from ....device.prepared import current_stream  # needs torch, without which kernels are compiled

    # [.., keys, heads, D] as the copy engine's coordinates want it: columns, keys, heads, sequences or pages.
    q, k, v = tensors.tensor("q"), *(tensors.tensor(name).transpose(1, 2) for name in ("k", "v"))
    device, rows = q.device.index, config.box(problem)
    programs = config.programs(problem)
    scale2, *sizes = problem.decode_scalars()
    pointers = [Pointer() for _ in ("q", "out", "lse", "parts", "parts_lse", "tickets", "lengths", "table")]
    integers = map(c_int32, (*sizes, tensors.table_stride(), config.splits))
    call = CudaCall(
        _load(problem.code_key, config, gpu, device),
        (boxes(k, problem.dtype, rows), boxes(v, problem.dtype, rows), *pointers, *map(c_int64, q.stride()[:3]),
         c_float(scale2), *integers),
        device, ctas=programs, pdl=True,
    )  # fmt: skip
    names = ("k", "v", "q", "out", "lse")

    def run(operands: dict[str, Any]) -> None:
        stream = current_stream(device)
        parts = parts_lse = tickets = 0
        if config.splits > 1:
            parts, parts_lse = operands["sums"].data_ptr(), operands["sums_lse"].data_ptr()
            tickets = counter(device, stream, programs // config.splits)
        table = operands["table"]
        call.launch_at(
            stream, *(operands[name].data_ptr() for name in names), parts, parts_lse, tickets,
            operands["lengths"].data_ptr(), 0 if table is None else table.data_ptr(),
        )  # fmt: skip

    return run


@cache
def _load(problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu, device: int) -> CudaFunction:
    return load_function(code_object(problem, config, gpu), device)
