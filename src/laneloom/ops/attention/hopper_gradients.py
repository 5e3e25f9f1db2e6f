"""The three launches of Hopper's backward: what stands before, the schedule's own kernel, what stands after."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64
from functools import cache, partial
from typing import Any

from ...codegen.code_object import CodeObject
from ...codegen.cuda_call import CudaCall, CudaFunction, Pointer, load_function
from ...codegen.nvrtc import compile_cuda
from ...codegen.wgmma import wgmma_function
from ...gpu import Gpu
from .arguments import Tensors
from .config_hopper import chunks
from .hopper import band_constants, boxes, counter, processors, source_text
from .hopper_launch import starts_of
from .problem import AttentionProblem

BLOCK = 64  #: queries of a step
_SUMS_BYTES = 64 * 64 * 4  #: dQ's sums of a block, 64 columns of them
_PIECES, _FLOATS = 16, 4  #: bytes of a query's lse, or delta, as three 16-bit pieces and zeros, or as FP32


def constants_of(problem: AttentionProblem, config: Any) -> dict[str, int]:
    """Macros of a schedule's own kernel."""
    return {**band_constants(problem), "KEYS": config.rows, "STAGES": config.stages, **dict(config.constants)}


def owners_code(problem: AttentionProblem, config: Any, gpu: Gpu) -> CodeObject:
    """The machine code of a schedule whose warpgroups own keys (device/attention_hopper_columns.cuh)."""
    constants = constants_of(problem, config)
    functions = [
        wgmma_function("multiply_block", BLOCK, problem.dtype),
        wgmma_function("add_values", problem.d_v, problem.dtype, a_in_registers=True, b_by_row=True),
        wgmma_function("add_keys", problem.d, problem.dtype, a_in_registers=True, b_by_row=True),
        wgmma_function("multiply_queries", 64, problem.dtype, a_by_column=True, b_by_row=True),
    ]
    name = f"{config.schedule}.cu"
    return compile_cuda(
        source_text(name, functions, "attention_hopper_backward.cuh", "attention_hopper_columns.cuh"),
        gpu,
        constants=constants,
        num_warps=config.num_warps,
        lds_bytes=config.lds_bytes(problem),
        name=name,
    )


def _end_code(problem: AttentionProblem, gpu: Gpu, *, start: bool, pieces: bool) -> CodeObject:
    constants = band_constants(problem) | {"START": int(start), "PIECES": int(pieces)}
    return compile_cuda(
        source_text("hopper_backward_ends.cu", []),
        gpu,
        constants=constants,
        num_warps=8 if start else 4 * chunks(problem.d),
        lds_bytes=0,
        name="hopper_backward_ends.cu",
    )


@cache
def _load_ends(problem: AttentionProblem, gpu: Gpu, device: int, pieces: bool) -> tuple[CudaFunction, CudaFunction]:
    start, finish = (_end_code(problem, gpu, start=flag, pieces=pieces) for flag in (True, False))
    return load_function(start, device), load_function(finish, device)


@cache
def _load(
    code_object: Callable[..., CodeObject], problem: AttentionProblem, config: Any, gpu: Gpu, device: int
) -> CudaFunction:
    return load_function(code_object(problem, config, gpu), device)


def waves(problem: AttentionProblem, tiles_per_head: int, programs: int) -> tuple[int, int]:
    """Heads of keys in a section, whose tiles are mixed with the longest first, and tiles in a wave.

    Under a mask as many heads as give every program a tile, since what they read and add up then meets in the L2, but
    two of them, since sums that all programs want at once wait for each other; and an even number of waves, of which
    the second evens out what the first leaves (attention_hopper_backward.cuh).
    """
    heads = problem.batch * problem.kv_heads
    tiles = max(1, heads * tiles_per_head)
    if problem.first is None and problem.last is None and not problem.packed:
        return 1, tiles
    if 2 * tiles <= 3 * programs:
        return max(1, heads), tiles
    count = 2 * round(tiles / (2 * programs))
    section = max(-(-heads // count), min(heads, 2))
    mixed = section * tiles_per_head
    return section, -(-mixed // max(1, round(mixed * count / tiles)))


def prepare(
    problem: AttentionProblem, config: Any, gpu: Gpu, tensors: Tensors, code_object: Callable[..., CodeObject]
) -> Callable[[dict[str, Any]], None]:
    """What writes dq, dk and dv for operands that lie as these do, by name. A tile is `config.rows` keys, which
    `config.cluster` CTAs share.

    code_object(problem, config, gpu): the schedule's own kernel. Raises UnsupportedError without the extra `cuda`.
    """
    import torch  # here, since kernels are compiled without it

    from ...device.prepared import current_stream

    q, k, v, g, out, lse = (tensors.tensor(name) for name in ("q", "k", "v", "g", "out", "lse"))
    dq, dk, dv = (tensors.tensor(name) for name in ("dq", "dk", "dv"))
    device = q.get_device()
    blocks = -(-problem.queries // BLOCK)
    # Where sequences are packed, block b of sequence i is the (first query of i) // 64 + i + b-th.
    sum_blocks = q.shape[2] // BLOCK + problem.batch + 1 if problem.packed else blocks
    all_blocks = problem.heads * sum_blocks * (1 if problem.packed else problem.batch)
    sums_bytes = all_blocks * chunks(problem.d) * _SUMS_BYTES
    lines_bytes = all_blocks * 2 * BLOCK * (_PIECES if config.pieces else _FLOATS)
    room = (sums_bytes + lines_bytes,)
    make_room = partial(torch.empty_strided, room, (1,), dtype=torch.uint8, device=q.device)

    start_code, finish_code = _load_ends(problem.code_key, gpu, device, config.pieces)
    main_code = _load(code_object, problem.code_key, config, gpu, device)
    owners = problem.batch * problem.heads * blocks
    end_sizes = (c_float(problem.scale), *map(c_int32, (problem.queries, problem.heads, blocks, sum_blocks)))
    pointers = [Pointer() for _ in ("g", "out", "lse", "dlse", "lines", "sums", "first_q")]
    strides = map(c_int64, (*g.stride()[:3], *out.stride()[:3], *lse.stride()[:2]))
    start = CudaCall(start_code, (*pointers, *strides, *end_sizes), device, ctas=owners, pdl=True)

    tiles = config.tiles(problem)
    programs = processors(device) // config.cluster
    mixed = waves(problem, -(-problem.keys // config.rows), programs)
    box = config.rows // config.cluster
    scale2, *sizes, first, last = problem.scalars()
    maps = [boxes(x, problem.dtype, rows) for x, rows in ((q, BLOCK), (k, box), (v, box), (g, BLOCK))]
    pointers = [Pointer() for _ in ("lines", "sums", "dk", "dv", "first_q", "first_k", "counter")]
    strides = map(c_int64, (*dk.stride()[:3], *dv.stride()[:3]))
    integers: tuple[Any, ...] = (*sizes, problem.batch, first, last, *mixed, tiles, sum_blocks)
    scalars = (c_float(scale2), c_float(problem.scale), *map(c_int32, integers))
    main = CudaCall(
        main_code, (*maps, *pointers, *strides, *scalars), device,
        ctas=config.cluster * min(tiles, programs),  # the kernel says that it is a cluster
        pdl=True,
    )  # fmt: skip

    pointers = [Pointer() for _ in ("sums", "dq", "first_q")]
    strides = map(c_int64, dq.stride()[:3])
    # Without `pdl`: its CTAs would wait where the main kernel's end first, and 32 x 16 x 512 took 2% longer.
    finish = CudaCall(finish_code, (*pointers, *strides, *end_sizes), device, ctas=owners)

    def run(operands: dict[str, Any]) -> None:
        stream = current_stream(device)
        dlse, (starts_q, starts_k) = operands["dlse"], starts_of(operands)
        g = operands["g"].data_ptr()
        room = make_room()  # lives until all is launched
        sums = room.data_ptr()
        lines = sums + sums_bytes
        start.launch_at(
            stream, g, operands["out"].data_ptr(), operands["lse"].data_ptr(), 0 if dlse is None else dlse.data_ptr(),
            lines, sums, starts_q,
        )  # fmt: skip
        main.launch_at(
            stream, operands["q"].data_ptr(), operands["k"].data_ptr(), operands["v"].data_ptr(), g, lines, sums,
            operands["dk"].data_ptr(), operands["dv"].data_ptr(), starts_q, starts_k, counter(device, stream),
        )  # fmt: skip
        finish.launch_at(stream, sums, operands["dq"].data_ptr(), starts_q)

    return run
