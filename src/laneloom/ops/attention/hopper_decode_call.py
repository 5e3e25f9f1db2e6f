"""What Hopper's schedules of attention over a cache share on the host: compiling, the call, room for parts of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_float, c_int32, c_int64
from functools import cache, partial
from typing import Any

from ...codegen.code_object import CodeObject
from ...codegen.cuda_call import CudaCall, CudaFunction, Pointer, load_function
from ...codegen.nvrtc import compile_cuda
from ...gpu import Gpu
from .arguments import Tensors
from .config_decode import ROWS, DecodeProblem, HopperDecodeConfig, HopperRangesConfig
from .hopper import boxes, counter, factors, source_text

Config = HopperDecodeConfig | HopperRangesConfig


def compiled(problem: DecodeProblem, config: Config, gpu: Gpu) -> CodeObject:
    """The machine code of a config's kernel."""
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
        "EARLY": int(config.early) if isinstance(config, HopperDecodeConfig) else 0,
    }
    name = f"{config.schedule}.cu"
    return compile_cuda(
        source_text(name, [], "attention_hopper_decode.cuh", "attention_hopper_decode_run.cuh"),
        gpu,
        constants=constants,
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name=name,
    )


def prepared(
    problem: DecodeProblem,
    config: Config,
    gpu: Gpu,
    tensors: Tensors,
    last: Sequence[int],
    parts_of: Callable[[int], tuple[int, int]],
    *,
    cluster: int = 1,
) -> Callable[[dict[str, Any]], None]:
    """What writes out [B, N, H, D_V] and lse [B, H, N] for operands that lie as these do, by name. One launch.

    last: the kernel's own arguments. parts_of: of the programs that a cluster has, how many parts of rows' sums go
    through memory, and how many tickets count them.
    """
    import torch  # here, since kernels are compiled without it

    from ...device.prepared import current_stream

    q, k, v = (tensors.tensor(name) for name in "qkv")
    device, rows = q.device.index, config.box(problem)
    seen = problem.abreast(config.abreast)
    _, *sizes = seen.decode_scalars()
    scale2, *slope2 = map(c_float, factors(problem))
    pointers = [Pointer() for _ in ("q", "out", "lse", "parts", "parts_lse", "tickets", "lengths", "table")]
    maps = (boxes(_abreast(x, config.abreast), problem.dtype, rows) for x in (k, v))
    integers = map(c_int32, map(int, (*sizes, tensors.table_stride(), problem.keys, *last)))
    call = CudaCall(
        _load(problem.code_key, config, gpu, device),
        (*maps, *pointers, *map(c_int64, q.stride()[:3]), scale2, *integers, *slope2),
        device, ctas=config.programs(problem), cluster=cluster, pdl=True,
    )  # fmt: skip
    parts, counts = parts_of(call.cluster)
    sums_rows = parts * min(ROWS, seen.group * seen.queries)
    room = (sums_rows * (problem.d_v + 1),)
    make_parts = partial(torch.empty_strided, room, (1,), dtype=torch.float32, device=q.device)

    def run(operands: dict[str, Any]) -> None:
        stream = current_stream(device)
        sums = sums_lse = tickets = 0
        if parts:
            room = make_parts()  # lives until all is launched
            sums, tickets = room.data_ptr(), counter(device, stream, counts)
            sums_lse = sums + 4 * sums_rows * problem.d_v
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
def _load(problem: DecodeProblem, config: Config, gpu: Gpu, device: int) -> CudaFunction:
    return load_function(compiled(problem, config, gpu), device)
