"""The launches of Hopper's backward: what stands before, the schedule's own kernel, what stands after."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64
from functools import cache, partial
from math import prod
from typing import Any

from ...codegen.code_object import CodeObject
from ...codegen.cuda_call import CudaCall, CudaFunction, Pointer, load_function
from ...codegen.nvrtc import compile_cuda
from ...codegen.wgmma import wgmma_function
from ...gpu import Gpu
from .arguments import Tensors
from .config_hopper import chunks
from .hopper import band_constants, boxes, counter, factors, processors, source_text
from .hopper_launch import JOIN_THREADS, starts_of
from .plan_backward import BLOCK
from .problem import AttentionProblem

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


def end_constants(problem: AttentionProblem, what: str, *, pieces: bool) -> dict[str, int]:
    """Macros of "START", "FINISH" or "JOIN"."""
    kinds = {kind: int(kind == what) for kind in ("START", "FINISH", "JOIN")}
    return band_constants(problem) | kinds | {"PIECES": int(pieces)}


@cache
def _load_end(problem: AttentionProblem, gpu: Gpu, device: int, what: str, pieces: bool = False) -> CudaFunction:
    code = compile_cuda(
        source_text("hopper_backward_ends.cu", [], "attention_hopper_halves.cuh"),
        gpu,
        constants=end_constants(problem, what, pieces=pieces),
        num_warps=4 * chunks(problem.d) if what == "FINISH" else 8,
        lds_bytes=0,
        name="hopper_backward_ends.cu",
    )
    return load_function(code, device)


@cache
def _load(
    code_object: Callable[..., CodeObject], problem: AttentionProblem, config: Any, gpu: Gpu, device: int
) -> CudaFunction:
    return load_function(code_object(problem, config, gpu), device)


def waves(problem: AttentionProblem, tiles_per_head: int, programs: int, sharers: int = 1) -> tuple[int, int]:
    """Heads of keys in a section, whose tiles are mixed with the longest first, and tiles in a wave; a head's sharers
    are heads here.

    Under a mask as many heads as give every program a tile, since what they read and add up then meets in the L2, but
    two of them, since sums that all programs want at once wait for each other; and an even number of waves, of which
    the second evens out what the first leaves (attention_hopper_backward.cuh).
    """
    heads = problem.batch * problem.kv_heads * sharers
    tiles = max(1, heads * tiles_per_head)
    if not problem.masked and not problem.packed:
        return 1, tiles
    if 2 * tiles <= 3 * programs:
        return max(1, heads), tiles
    count = 2 * round(tiles / (2 * programs))
    section = max(-(-heads // count), min(heads, 2))
    mixed = section * tiles_per_head
    return section, -(-mixed // max(1, round(mixed * count / tiles)))


def _joining(
    problem: AttentionProblem, sharers: int, dk: Any, dv: Any, load_end: Callable[..., CudaFunction]
) -> CudaCall:
    """What writes dk and dv from the parts that sharers left."""
    eighths = dk.shape[0] * dk.shape[1] * dk.shape[2] * (problem.d + problem.d_v) // 8
    pointers = [Pointer() for _ in ("dk_parts", "dv_parts", "dk", "dv", "first_k")]
    strides = map(c_int64, (*dk.stride()[:3], *dv.stride()[:3]))
    sizes = map(c_int32, (dk.shape[2], problem.kv_heads, sharers, problem.batch))
    ctas = -(-eighths // JOIN_THREADS)
    return CudaCall(load_end("JOIN"), (*pointers, *strides, *sizes), dk.get_device(), ctas=ctas)


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
    tiles, sharers, programs = config.tiles(problem), config.sharers, processors(device) // config.cluster
    joined = [(*x.shape[:1], x.shape[1] * sharers, *x.shape[2:]) for x in (dk, dv)] if sharers > 1 else []
    sums_bytes = all_blocks * chunks(problem.d) * _SUMS_BYTES
    lines_bytes = all_blocks * 2 * BLOCK * (_PIECES if config.pieces else _FLOATS)
    parts_bytes = [2 * prod(shape) for shape in joined]
    room = (sums_bytes + lines_bytes + sum(parts_bytes),)
    make_room = partial(torch.empty_strided, room, (1,), dtype=torch.uint8, device=q.device)

    load_end = partial(_load_end, problem.code_key, gpu, device)
    owners = problem.batch * problem.heads * blocks
    end_sizes = (c_float(problem.scale), *map(c_int32, (problem.queries, problem.heads, blocks, sum_blocks)))
    pointers = [Pointer() for _ in ("g", "out", "lse", "dlse", "lines", "sums", "first_q")]
    strides = map(c_int64, (*g.stride()[:3], *out.stride()[:3], *lse.stride()[:2]))
    start = CudaCall(
        load_end("START", config.pieces), (*pointers, *strides, *end_sizes), device, ctas=owners, pdl=True)

    mixed = waves(problem, -(-problem.keys // config.rows), programs, sharers)
    box = config.rows // config.cluster
    _, queries, keys, heads, group, first, last = problem.scalars()
    scale2, *slope2 = map(c_float, factors(problem))
    maps = [boxes(x, problem.dtype, rows) for x, rows in ((q, BLOCK), (k, box), (v, box), (g, BLOCK))]
    pointers = [Pointer() for _ in ("lines", "sums", "dk", "dv", "first_q", "first_k", "counter")]
    written = [s for x in (dk, dv) for s in x.stride()[:3]]
    left = [s for _, h, n, d in joined for s in (h * n * d, n * d, d)]
    integers: tuple[Any, ...] = (
        queries, keys, heads, int(group) // sharers, problem.batch, first, last, *mixed, tiles, sum_blocks, sharers)
    scalars = (scale2, c_float(problem.scale), *map(c_int32, integers), *slope2)
    main = CudaCall(
        _load(code_object, problem.code_key, config, gpu, device),
        (*maps, *pointers, *map(c_int64, left or written), *scalars), device,
        ctas=config.cluster * min(tiles, programs),  # the kernel says that it is a cluster
        pdl=True,
    )  # fmt: skip

    pointers = [Pointer() for _ in ("sums", "dq", "first_q")]
    # Without `pdl`: its CTAs would wait where the main kernel's end first, and 32 x 16 x 512 took 2% longer.
    finish = CudaCall(
        load_end("FINISH"), (*pointers, *map(c_int64, dq.stride()[:3]), *end_sizes), device, ctas=owners)
    join = _joining(problem, sharers, dk, dv, load_end) if joined else None

    def run(operands: dict[str, Any]) -> None:
        stream = current_stream(device)
        dlse, (starts_q, starts_k) = operands["dlse"], starts_of(operands)
        g, dq, dk, dv = (operands[name].data_ptr() for name in ("g", "dq", "dk", "dv"))
        room = make_room()  # lives until all is launched
        sums = room.data_ptr()
        lines = sums + sums_bytes
        parts = lines + lines_bytes
        start.launch_at(
            stream, g, operands["out"].data_ptr(), operands["lse"].data_ptr(), 0 if dlse is None else dlse.data_ptr(),
            lines, sums, starts_q,
        )  # fmt: skip
        to_k, to_v = (parts, parts + parts_bytes[0]) if joined else (dk, dv)
        main.launch_at(
            stream, operands["q"].data_ptr(), operands["k"].data_ptr(), operands["v"].data_ptr(), g, lines, sums,
            to_k, to_v, starts_q, starts_k, counter(device, stream),
        )  # fmt: skip
        finish.launch_at(stream, sums, dq, starts_q)
        if join is not None:
            join.launch_at(stream, to_k, to_v, dk, dv, starts_k)

    return run
