"""Attention of few queries over a cache on Hopper (hopper_decode.cu), by NVRTC: a ring of tiles ahead, one launch.

Wins on sm_90a for head dimensions up to 256 over the general schedule (decode.py), whose loads pass through registers:
they have no room for as many bytes on the way as the memory wants. Bound by memory. Source: as for decode.py.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64
from functools import cache, partial
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_call import CudaCall, CudaFunction, Pointer, load_function
from ....codegen.nvrtc import compile_cuda
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_decode import DecodeProblem, HopperDecodeConfig
from ..hopper import boxes, counter, factors, source_text


def code_object(problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu) -> CodeObject:
    """The machine code that what `prepare` gives runs."""
    seen = problem.abreast(config.abreast)
    constants = {
        "D": seen.d,
        "D_V": seen.d_v,
        "ABREAST": config.abreast,
        "STAGES": config.stages,
        "BOX": config.box(problem),
        "PAGE": problem.page,
        "HAS_FIRST": int(problem.left is not None),
        "BF16": int(problem.dtype == "bf16"),
        "SOFTCAP": int(problem.softcap != 0),
    }
    return compile_cuda(
        source_text("hopper_decode.cu", [], "attention_hopper_decode.cuh"),
        gpu,
        constants=constants,
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name="hopper_decode.cu",
    )


def prepare(
    problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes out [B, N, H, D_V] and lse [B, H, N] for operands that lie as these do, by name. One launch.
    Raises UnsupportedError without the extra `cuda`."""
    import torch  # here, since kernels are compiled without it

    from ....device.prepared import current_stream

    q, lse = tensors.tensor("q"), tensors.tensor("lse")
    k, v = (_abreast(tensors.tensor(name), config.abreast) for name in ("k", "v"))
    device, rows = q.device.index, config.box(problem)
    programs = config.programs(problem)
    _, *sizes = problem.abreast(config.abreast).decode_scalars()
    scale2, *slope2 = map(c_float, factors(problem))
    pointers = [Pointer() for _ in ("q", "out", "lse", "parts", "parts_lse", "tickets", "lengths", "table")]
    integers = map(c_int32, (*sizes, tensors.table_stride(), config.splits, config.early))
    call = CudaCall(
        _load(problem.code_key, config, gpu, device),
        (boxes(k, problem.dtype, rows), boxes(v, problem.dtype, rows), *pointers, *map(c_int64, q.stride()[:3]),
         scale2, *integers, *slope2),
        device, ctas=programs, cluster=config.cluster, pdl=True,
    )  # fmt: skip
    clusters = config.splits // call.cluster
    parts = lse.numel() * clusters
    room = (parts * (problem.d_v + 1),)
    make_parts = partial(torch.empty_strided, room, (1,), dtype=torch.float32, device=q.device)

    def run(operands: dict[str, Any]) -> None:
        stream = current_stream(device)
        sums = sums_lse = tickets = 0
        if clusters > 1:
            room = make_parts()  # lives until all is launched
            sums, tickets = room.data_ptr(), counter(device, stream, programs // clusters)
            sums_lse = sums + 4 * parts * problem.d_v
        table = operands["table"]
        call.launch_at(
            stream, operands["k"].data_ptr(), operands["v"].data_ptr(), operands["q"].data_ptr(),
            operands["out"].data_ptr(), operands["lse"].data_ptr(), sums, sums_lse, tickets,
            operands["lengths"].data_ptr(), 0 if table is None else table.data_ptr(),
        )  # fmt: skip

    return run


def _abreast(x: Any, count: int) -> Any:
    """[.., keys, heads, D] with so many heads as one, as the copy engine's coordinates want it: columns, keys, heads,
    sequences or pages."""
    return (x.unflatten(2, (-1, count)).flatten(3) if count > 1 else x).transpose(1, 2)


@cache
def _load(problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu, device: int) -> CudaFunction:
    return load_function(code_object(problem, config, gpu), device)
