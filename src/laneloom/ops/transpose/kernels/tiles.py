"""Transpose tile by tile: 16-byte loads along X's rows, 16-byte stores along Y's, and between them one exchange.

The general schedule of every GPU: any strides, sizes, batch, elements of 1 to 8 bytes. A tile changes its layout
through LDS, or, on RDNA, between lanes in registers (`through`). Where X and Y are contiguous along the same axis
nothing is exchanged. Derivation, counts and figures: docs/transpose.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....device.hopper import release_successor, wait_for_predecessor
from ....device.lane_exchange import blocks_exchanged
from ....device.prepared import PreparedLaunch
from ....gpu import Gpu
from ..config import TilesConfig
from ..layouts import tiles_constants
from ..problem import TransposeProblem, as_integers

MAX_PROGRAMS = 1 << 24  #: of one launch: a grid of AMD's holds fewer than 2**32 threads

#: Not specialised on values: what matters about them are constexprs, so that a new size compiles nothing.
_SIZES = [
    "R", "C", "batch_inner", "stride_xo", "stride_xi", "stride_xr", "stride_xc", "stride_yo", "stride_yi", "stride_yr",
    "stride_yc", "first_program",
]  # fmt: skip
_RUNTIME = ["x_ptr", "y_ptr", *_SIZES]


@gluon.jit
def _pointers(
    base, b, r, c, stride_i, stride_r, stride_c,
    FAST: gl.constexpr, VEC: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Pointers of a tile from its first element, known to be contiguous and aligned in vectors of VEC along FAST."""
    if WIDE:
        b = b.to(gl.int64)
        r = r.to(gl.int64)
        c = c.to(gl.int64)
    # VEC above 1 says that the stride along the fast axis is 1
    if VEC == 1 or FAST != "r":
        r = r * stride_r
    if VEC == 1 or FAST != "c":
        c = c * stride_c
    pointers = base + (b * stride_i + r + c)
    ALIGNMENT: gl.constexpr = VEC * base.dtype.element_ty.primitive_bitwidth // 8
    if FAST == "r":
        return gl.max_contiguous(gl.multiple_of(pointers, [1, ALIGNMENT, 1]), [1, VEC, 1])
    else:
        return gl.max_contiguous(gl.multiple_of(pointers, [1, 1, ALIGNMENT]), [1, 1, VEC])


@gluon.jit
def _axes(BLOCK_B: gl.constexpr, BLOCK_R: gl.constexpr, BLOCK_C: gl.constexpr, LAYOUT: gl.constexpr):
    """Numbers of matrix, row and column in a tile, which broadcast to it."""
    b = gl.arange(0, BLOCK_B, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None, None]
    r = gl.arange(0, BLOCK_R, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :, None]
    c = gl.arange(0, BLOCK_C, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    return b, r, c


@gluon.jit
def _turned(x, FAST: gl.constexpr, EXCHANGE: gl.constexpr, CONSTRAINTS: gl.constexpr, BLOCK: gl.constexpr):
    """x with every lane holding BLOCK neighbours along the other axis than FAST; the values stay where they belong."""
    if FAST == "r":
        x = x.permute([0, 2, 1])
    x = blocks_exchanged(x, EXCHANGE, CONSTRAINTS, BLOCK)
    B: gl.constexpr = x.shape[0]
    R: gl.constexpr = x.shape[1]
    C: gl.constexpr = x.shape[2]
    # Each lane has what its partners' coordinates were: exchange the names of the two axes of each block.
    x = x.reshape([B, R // BLOCK, BLOCK, C // BLOCK, BLOCK]).permute([0, 1, 4, 3, 2]).reshape([B, R, C])
    if FAST == "r":
        x = x.permute([0, 2, 1])
    return x


@gluon.jit
def _move(
    x_tile, y_tile, left_b, left_r, left_c, stride_xi, stride_xr, stride_xc, stride_yi, stride_yr, stride_yc,
    MASKED: gl.constexpr, BLOCK_B: gl.constexpr, BLOCK_R: gl.constexpr, BLOCK_C: gl.constexpr,
    X_FAST: gl.constexpr, Y_FAST: gl.constexpr, X_VEC: gl.constexpr, Y_VEC: gl.constexpr, WIDE: gl.constexpr,
    LOAD: gl.constexpr, STORE: gl.constexpr, EXCHANGE: gl.constexpr, CONSTRAINTS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """One tile, of which left_b matrices, left_r rows and left_c columns exist."""
    b, r, c = _axes(BLOCK_B, BLOCK_R, BLOCK_C, LOAD)
    pointers = _pointers(x_tile, b, r, c, stride_xi, stride_xr, stride_xc, X_FAST, X_VEC, WIDE)
    if MASKED:
        x = gl.load(pointers, mask=(b < left_b) & (r < left_r) & (c < left_c))  # [BLOCK_B, BLOCK_R, BLOCK_C]
    else:
        x = gl.load(pointers)
    if EXCHANGE is not None:
        x = _turned(x, X_FAST, EXCHANGE, CONSTRAINTS, BLOCK)
    if STORE is not None:
        x = gl.convert_layout(x, STORE)
    HELD: gl.constexpr = x.type.layout
    b, r, c = _axes(BLOCK_B, BLOCK_R, BLOCK_C, HELD)
    pointers = _pointers(y_tile, b, r, c, stride_yi, stride_yr, stride_yc, Y_FAST, Y_VEC, WIDE)
    if MASKED:
        gl.store(pointers, x, mask=(b < left_b) & (r < left_r) & (c < left_c))
    else:
        gl.store(pointers, x)


@gluon.jit(do_not_specialize=_RUNTIME)
def transpose_tiles(
    x_ptr, y_ptr, R, C, batch_inner,
    stride_xo, stride_xi, stride_xr, stride_xc, stride_yo, stride_yi, stride_yr, stride_yc, first_program,
    BLOCK_B: gl.constexpr, BLOCK_R: gl.constexpr, BLOCK_C: gl.constexpr,
    X_FAST: gl.constexpr, Y_FAST: gl.constexpr, X_VEC: gl.constexpr, Y_VEC: gl.constexpr,
    R_VEC: gl.constexpr, C_VEC: gl.constexpr,
    WIDE: gl.constexpr, LOAD: gl.constexpr, STORE: gl.constexpr,
    EXCHANGE: gl.constexpr, CONSTRAINTS: gl.constexpr, BLOCK: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    tiles_r = (R - 1) // BLOCK_R + 1
    tiles_c = (C - 1) // BLOCK_C + 1
    tiles_b = (batch_inner - 1) // BLOCK_B + 1
    program = gl.program_id(0) + first_program
    c0 = (program % tiles_c).to(gl.int64) * BLOCK_C
    program = program // tiles_c
    r0 = (program % tiles_r).to(gl.int64) * BLOCK_R
    program = program // tiles_r
    b0 = (program % tiles_b).to(gl.int64) * BLOCK_B
    outer = (program // tiles_b).to(gl.int64)
    left_b = gl.minimum(batch_inner - b0, BLOCK_B).to(gl.int32)
    # a hint needs an operation of this function that is not folded away
    left_r = gl.multiple_of(gl.minimum(R - r0, BLOCK_R).to(gl.int32), [R_VEC])
    left_c = gl.multiple_of(gl.minimum(C - c0, BLOCK_C).to(gl.int32), [C_VEC])
    x_tile = x_ptr + outer * stride_xo + b0 * stride_xi + r0 * stride_xr + c0 * stride_xc
    y_tile = y_ptr + outer * stride_yo + b0 * stride_yi + r0 * stride_yr + c0 * stride_yc
    if PDL:
        wait_for_predecessor()
        release_successor()
    if (left_b == BLOCK_B) & (left_r == BLOCK_R) & (left_c == BLOCK_C):
        _move(
            x_tile, y_tile, left_b, left_r, left_c, stride_xi, stride_xr, stride_xc, stride_yi, stride_yr, stride_yc,
            False, BLOCK_B, BLOCK_R, BLOCK_C, X_FAST, Y_FAST, X_VEC, Y_VEC, WIDE, LOAD, STORE, EXCHANGE, CONSTRAINTS,
            BLOCK,
        )  # fmt: skip
    else:
        _move(
            x_tile, y_tile, left_b, left_r, left_c, stride_xi, stride_xr, stride_xc, stride_yi, stride_yr, stride_yc,
            True, BLOCK_B, BLOCK_R, BLOCK_C, X_FAST, Y_FAST, X_VEC, Y_VEC, WIDE, LOAD, STORE, EXCHANGE, CONSTRAINTS,
            BLOCK,
        )  # fmt: skip


def runtime_arguments(problem: TransposeProblem) -> dict[str, int]:
    """The kernel's integers, but for the number of the launch's first program."""
    values = (problem.rows, problem.columns, problem.batch[1], *problem.x.strides, *problem.y.strides)
    return dict(zip(_SIZES[:-1], values, strict=True))


def programs(problem: TransposeProblem, config: TilesConfig) -> int:
    """Workgroups: one for each tile."""
    tiles = -(-problem.rows // config.block_r) * -(-problem.columns // config.block_c)
    return tiles * -(-problem.batch[1] // config.block_b) * problem.batch[0]


def prepare(problem: TransposeProblem, config: TilesConfig, gpu: Gpu) -> Callable[[Any, Any], None]:
    """What writes the transpose of CUDA tensors that lie as `problem` says, call after call."""
    values = runtime_arguments(problem) | tiles_constants(problem, config, gpu)
    launches = []
    for first, grid in _grids(problem, config):
        rest = tuple((values | {"first_program": first})[name] for name in transpose_tiles.arg_names[2:])

        def arguments(x: Any, y: Any, rest: tuple[Any, ...] = rest) -> tuple[Any, ...]:
            return as_integers(x), as_integers(y), *rest

        options = {"num_warps": config.num_warps, "launch_pdl": values["PDL"]}
        launches.append(PreparedLaunch(transpose_tiles, grid, arguments, **options))

    def run(x: Any, y: Any) -> None:
        for launch in launches:
            launch(x, y)

    return launches[0] if len(launches) == 1 else run


def _grids(problem: TransposeProblem, config: TilesConfig) -> list[tuple[int, tuple[int, int, int]]]:
    """First program and grid of each launch."""
    count = programs(problem, config)
    return [(first, (min(count - first, MAX_PROGRAMS), 1, 1)) for first in range(0, count, MAX_PROGRAMS)]


def launch(problem: TransposeProblem, config: TilesConfig, gpu: Gpu, x: Any, y: Any) -> None:
    """Write x's transpose into y: what Triton takes for pointers to integers of the element's size."""
    arguments = runtime_arguments(problem) | tiles_constants(problem, config, gpu)
    for first, grid in _grids(problem, config):
        transpose_tiles[grid](
            x, y, first_program=first, **arguments, num_warps=config.num_warps, enable_fp_fusion=True
        )


def code_object(problem: TransposeProblem, config: TilesConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    element = f"*i{8 * problem.element_bytes}"
    integers = runtime_arguments(problem) | {"first_program": 0}
    constants = tiles_constants(problem, config, gpu)
    return compile_kernel(
        transpose_tiles,
        gpu=gpu,
        signature={"x_ptr": element, "y_ptr": element}
        | {name: "i32" if value < 1 << 31 else "i64" for name, value in integers.items()},
        constants=constants,
        num_warps=config.num_warps,
        attrs=(),
        options={"launch_pdl": True} if constants["PDL"] else None,
    )
