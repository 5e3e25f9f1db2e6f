"""Attention of few queries over a cache on Hopper (hopper_decode.cu), by NVRTC: a ring of tiles ahead, one launch.

Wins on sm_90a for head dimensions up to 256 over the general schedule (decode.py), whose loads pass through registers:
they have no room for as many bytes on the way as the memory wants. Bound by memory. Source: as for decode.py.
"""

from __future__ import annotations

import ctypes
from functools import cache

from ....codegen.code_object import CodeObject
from ....codegen.cuda_launch import CudaKernel, argument_types
from ....codegen.nvrtc import compile_cuda
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_decode import DecodeProblem, HopperDecodeConfig
from ..hopper import box_map, counter, source_text

# k, v maps; q, out, lse, parts, parts_lse, tickets, lengths, table; strides of q; scale2; queries .. splits
_ARGUMENTS = (None, None, *argument_types("ppppppppqqq"), ctypes.c_float, *argument_types("iiiiiii"))


def code_object(problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
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


def launch(problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu, tensors: Tensors) -> None:
    """Write out [B, N, H, D_V] and lse [B, H, N]; sums and sums_lse have room for the parts where there are several.

    One launch. Raises UnsupportedError without the extra `cuda`.
    """
    import torch

    q, out, lse, lengths = (tensors.tensor(name) for name in ("q", "out", "lse", "lengths"))
    # [.., keys, heads, D] as the copy engine's coordinates want it: columns, keys, heads, sequences or pages.
    k, v = (tensors.tensor(name).transpose(1, 2) for name in ("k", "v"))
    device = q.device.index
    stream = torch.cuda.current_stream(q.device).cuda_stream
    parts = parts_lse = tickets = 0
    if config.splits > 1:
        parts, parts_lse = (tensors.tensor(name).data_ptr() for name in ("sums", "sums_lse"))
        tickets = counter(device, stream, config.programs(problem) // config.splits)
    table = tensors.tensor("table")
    scale2, *sizes = problem.decode_scalars()
    rows = config.box(problem)
    _load(problem.code_key, config, gpu, device).launch(
        config.programs(problem), stream,
        (box_map(k, problem.dtype, rows), box_map(v, problem.dtype, rows), q.data_ptr(), out.data_ptr(),
         lse.data_ptr(), parts, parts_lse, tickets, lengths.data_ptr(), 0 if table is None else table.data_ptr(),
         *q.stride()[:3], scale2, *sizes, tensors.table_stride(), config.splits),
    )  # fmt: skip


@cache
def _load(problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu, device: int) -> CudaKernel:
    return CudaKernel(code_object(problem, config, gpu), _ARGUMENTS, device)
