"""What the WMMA kernels are called with: their arguments and constexprs, their launch, their machine code."""

from __future__ import annotations

from copy import copy
from functools import cache
from math import gcd
from typing import Any

import triton
from triton.experimental.gluon import language as gl

from ...codegen import CodeObject, compile_kernel
from ...codegen.matrix_rewrite import mark, rewriting
from ...codegen.versions import wmma_layout
from ...emulator.driver import ArrayArgument
from ...gpu import MOST_PROGRAMS, Gpu
from .config import MatmulConfig
from .config_fma import FmaConfig
from .config_mfma import MfmaConfig
from .config_wmma import ACROSS, VECTOR_BYTES, WmmaConfig, is_upcast, lds_element_bytes, needs_wide_offsets
from .layouts_wmma import halves_interleaved, load_layout, shared_layout
from .problem import DTYPE_BYTES, MatmulProblem
from .tile_orders import CHIPLETS

#: The kernels' arguments that are integers, in their order; the values come from `runtime_arguments`.
SIZES = [
    "M", "N", "K", "stride_ao", "stride_ai", "stride_am", "stride_ak", "stride_bo", "stride_bi", "stride_bk",
    "stride_bn", "stride_co", "stride_ci", "stride_cm", "stride_cn", "stride_do", "stride_di", "stride_dm",
    "stride_dn", "stride_bias", "batch_inner", "first_program",
]  # fmt: skip
PART_SIZES = ["k_part", "stride_part"]  #: of the schedule that splits K
SHARE_SIZES = ["whole", "shared", "workers", "copies", "inverse"]  #: of its stream-K, fields of `stream_k.Shares`
POINTERS = ["a_ptr", "b_ptr", "c_ptr", "add_ptr", "bias_ptr", "scale_a_ptr", "scale_b_ptr", "ends_ptr"]
#: Not specialised on values: what matters about them are constexprs, so that a new size compiles nothing.
RUNTIME = [*POINTERS, "alpha", "beta", *SIZES]
RUNTIME_PARTS = [*RUNTIME, *PART_SIZES, *SHARE_SIZES]

#: dtype -> Triton's name of a type, in a signature and in the language. What Triton has no matrix instructions for is
#: given to it as something of the same size, and `codegen.matrix_rewrite` says what it is.
_TRITON = {"fp8": "fp8e4nv", "bf8": "fp8e5", "int8": "i8", "uint8": "i8", "int4": "i8", "uint4": "i8", "int32": "i32"}
_LANGUAGE = {
    "fp8e4nv": gl.float8e4nv, "fp8e5": gl.float8e5, "i8": gl.int8, "fp16": gl.float16, "bf16": gl.bfloat16,
    "fp32": gl.float32, "fp64": gl.float64, "i32": gl.int32,
}  # fmt: skip


def triton_type(dtype: str) -> str:
    """Triton's name of a dtype in a signature."""
    return _TRITON.get(dtype, dtype)


def language_type(dtype: str) -> Any:
    """The dtype in a kernel."""
    return _LANGUAGE[triton_type(dtype)]


def operand_type(problem: MatmulProblem, dtype: str) -> str:
    """The type that a kernel takes an operand for: bf16 whose sums are bf16 as well passes for fp16."""
    return "fp16" if problem.dtype_acc == "bf16" else triton_type(dtype)


def instruction_mark(problem: MatmulProblem) -> str:
    """How the kernel's matrix instructions differ from what Triton emits; empty if they do not."""
    if problem.dtype_acc == "bf16":
        return mark("bf16")
    if problem.dtype_acc != "int32" or problem.dtype_a == problem.dtype_b == "int8":
        return ""
    # The accumulator's layout is the transposed one: the instruction's first operand is B.
    signed = (not dtype.startswith("u") for dtype in (problem.dtype_b, problem.dtype_a))
    return mark("iu4" if problem.dtype_a.endswith("4") else "iu8", *signed)


def runtime_arguments(problem: MatmulProblem) -> dict[str, int]:
    """The kernels' integers, but for the number of the launch's first program."""
    epilogue = problem.epilogue
    d = epilogue.addend.strides if epilogue and epilogue.addend else (0, 0, 0, 0)
    bias = epilogue.bias[1] if epilogue and epilogue.bias else 0
    a, b, c = problem.a.strides, problem.b.strides, problem.out.strides
    values = (problem.m, problem.n, problem.k_stored, *a, *b, *c, *d, bias, problem.batch[1])
    return dict(zip(SIZES[:-1], values, strict=True))


def pointer_types(problem: MatmulProblem) -> dict[str, str | None]:
    """Triton's types of the arguments that are no integers; None for those that the epilogue does without."""
    epilogue = problem.epilogue
    adds, biased = bool(epilogue and epilogue.addend), bool(epilogue and epilogue.bias)
    return {
        "a_ptr": f"*{operand_type(problem, problem.dtype_a)}",
        "b_ptr": f"*{operand_type(problem, problem.dtype_b)}",
        "c_ptr": f"*{triton_type(problem.dtype_out)}",
        "add_ptr": f"*{epilogue.dtype_addend}" if epilogue and adds else None,
        "bias_ptr": f"*{epilogue.dtype_bias}" if epilogue and biased else None,
        "alpha": ("i64" if problem.dtype_acc == "fp64" else "fp32") if epilogue and epilogue.scaled else None,
        "beta": ("i64" if problem.dtype_acc == "fp64" else "fp32") if adds else None,
        "scale_a_ptr": "*fp32" if epilogue and epilogue.scale_a else None,
        "scale_b_ptr": "*fp32" if epilogue and epilogue.scale_b else None,
        **({"ends_ptr": "*i32"} if problem.in_groups else {}),
    }


def epilogue_pieces(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> int:
    """In how many pieces of columns a tile is stored: whole tiles of every wave, at most 4.

    With an epilogue a piece has 32 sums a lane, which leaves registers for its terms; without one it is staged in no
    more LDS than the loop has.
    """
    if problem.epilogue:
        wanted = config.block_m * config.block_n // (32 * config.num_warps) / 32
    elif config.stores == "staged":
        wanted = config.block_m * config.block_n * DTYPE_BYTES[problem.dtype_out] / config.lds_bytes(problem, gpu)
    else:
        wanted = 1
    most = min(4, config.block_n // (16 * config.waves_n))
    return next((pieces for pieces in (1, 2, 4) if wanted <= pieces <= most), most)


def majors(problem: MatmulProblem) -> tuple[str, str]:
    """Along what A and B are contiguous: "k", "row" (of A; column of B) or "neither"."""
    a_major = {"n": "k", "t": "row", "x": "neither"}[problem.a.major]
    return a_major, {"n": "row", "t": "k", "x": "neither"}[problem.b.major]


def load_along(rows: int, config: FmaConfig | MfmaConfig, along_k: bool, widest: int, wave: int) -> gl.BlockedLayout:
    """A lane loads at most 16 bytes along the axis that is contiguous in memory; the lanes of a wave go along it first.

    widest: elements in 16 bytes.
    """
    held = rows * config.block_k // (wave * config.num_warps)
    extent = config.block_k if along_k else rows
    vector = min(widest, held, extent)
    lanes = min(wave, extent // vector)
    if along_k:
        return gl.BlockedLayout([1, vector], [wave // lanes, lanes], [config.num_warps, 1], [1, 0])
    return gl.BlockedLayout([vector, 1], [lanes, wave // lanes], [1, config.num_warps], [0, 1])


def problem_constants(problem: MatmulProblem, config: WmmaConfig | FmaConfig | MfmaConfig) -> dict[str, Any]:
    """The constexprs of every kernel that `launch_tiles` launches: tile, order, where operands and terms lie."""
    epilogue = problem.epilogue
    a_major, b_major = majors(problem)
    # The mask at the end of K has to be whole vectors only where vectors lie along K.
    along = [v for v, major in ((problem.vector_a, a_major), (problem.vector_b, b_major)) if major != "row"]
    return {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "ORDER": config.order,
        "GROUP": config.group_m,
        "CHIPLETS": CHIPLETS,
        "WHOLE_K": problem.k_stored % config.block_k == 0 and not problem.k_grouped,
        "WIDE": needs_wide_offsets(problem, config),
        "A_MAJOR": a_major,
        "B_MAJOR": b_major,
        "C_CONTIGUOUS": problem.out.major == "n",
        "ADD_CONTIGUOUS": bool(epilogue and epilogue.addend and epilogue.addend.major == "n"),
        "A_VEC": problem.vector_a,
        "B_VEC": problem.vector_b,
        "C_VEC": problem.vector_out,
        "ADD_VEC": problem.vector_addend,
        "K_VEC": gcd(problem.k_stored, max([1, *along])),
        "SCALE_A": (epilogue.scale_a if epilogue else None) or "none",
        "SCALE_B": (epilogue.scale_b if epilogue else None) or "none",
        "BIAS_AXIS": epilogue.bias[0] if epilogue and epilogue.bias else "none",
        "ACTIVATION": (epilogue.activation if epilogue else None) or "none",
        "N_VEC": max(problem.vector_out, problem.vector_addend),
    }


@cache
def constants(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> dict[str, Any]:
    """The constexprs that every WMMA kernel has."""
    version = gpu.wmma_version
    size = lds_element_bytes(problem, gpu)
    swaps = halves_interleaved(size, config.block_k, version)
    a_major, b_major = majors(problem)
    a_along, b_along = a_major != "row", b_major != "row"
    vector_c = 16 // DTYPE_BYTES[problem.dtype_out]
    pieces = epilogue_pieces(problem, config, gpu)
    lanes_n = min(32, config.block_n // pieces // vector_c)
    staged = gl.BlockedLayout([1, vector_c], [32 // lanes_n, lanes_n], [config.num_warps, 1], [1, 0])
    held = gl.float16 if is_upcast(problem, gpu) else None
    types = [held or _LANGUAGE[operand_type(problem, dtype)] for dtype in (problem.dtype_a, problem.dtype_b)]
    halves = problem.dtype_acc in ("fp16", "bf16")
    waves_m = config.num_warps // config.waves_n
    pairs = halves and version == 1 and config.block_m >= 32 * waves_m
    how: dict[str, Any] = {"size": size, "stored": DTYPE_BYTES[problem.dtype_a]}
    gathers, shuffles = config.transpose == "gather", config.transpose == "shuffle"
    return problem_constants(problem, config) | {
        "VERSION": version,
        "K_WIDTH": 16 if version == 1 else 8,
        "INTERLEAVED": swaps,
        "ACC_TYPE": gl.float16 if halves else language_type(problem.dtype_acc),
        "SUMS_TYPE": gl.bfloat16 if problem.dtype_acc == "bf16" else None,
        "MARK": instruction_mark(problem),
        "ACCUMULATOR": wmma_layout(version, waves_m, config.waves_n, transposed=True, pairs=pairs),
        "A_TYPE": types[0],
        "B_TYPE": types[1],
        "A_LOAD": load_layout(config.block_m, config, a_along, **how),
        "B_LOAD": load_layout(config.block_n, config, b_along, **how),
        "A_STORE": load_layout(config.block_m, config, a_along, reorder=True, interleaved=swaps, **how),
        "B_STORE": load_layout(config.block_n, config, b_along, reorder=True, interleaved=swaps, **how),
        "A_OPAQUE": problem.vector_a == 1 or (gathers and a_major == "row"),
        "B_OPAQUE": problem.vector_b == 1 or (gathers and b_major == "row"),
        "A_SHUFFLE": shuffles and a_major == "row",
        "B_SHUFFLE": shuffles and b_major == "row",
        "C_STORE": staged if config.stores == "staged" else None,
        "C_PIECES": pieces,
        # what keeps fewer registers under either version of LLVM
        "HOLD": "pinned" if problem.epilogue else "complete" if config.stores == "direct" or pieces > 1 else "none",
        "A_SHARED": shared_layout(config.block_m, config, a_along, size, swaps),
        "B_SHARED": shared_layout(config.block_n, config, b_along, size, swaps),
    }


def part_arguments(problem: MatmulProblem, config: MatmulConfig, chosen: dict[str, Any], gpu: Gpu) -> dict[str, int]:
    """The integers of a kernel that can split K: elements of a part of K and of its sums; who shares tiles."""
    if "SPLIT" not in chosen or not isinstance(config, WmmaConfig):
        return {}
    shares = config.shares(problem, gpu) if config.stream_k else None
    parts = {"k_part": config.k_part(problem), "stride_part": problem.batches * problem.m * problem.n}
    return parts | {name: getattr(shares, name, 0) for name in SHARE_SIZES}


def ends_layout(problem: MatmulProblem, config: MatmulConfig, gpu: Gpu) -> gl.BlockedLayout | None:
    """How a wave holds the ends of groups of rows: a power of two of them in each lane, the same in every wave."""
    if not problem.grouped:
        return None
    held = 1 << (-(-problem.batches // gpu.wave) - 1).bit_length()
    return gl.BlockedLayout([held], [gpu.wave], [config.num_warps], [0])


def _as(operand: Any, dtype: str, taken_for: str) -> Any:
    """What Triton takes for a pointer to the operand's memory, with elements of another type of the same size."""
    if dtype in ("int8", taken_for):
        return operand
    if isinstance(operand, ArrayArgument):
        operand = copy(operand)
        operand.dtype = taken_for
        return operand
    return triton.reinterpret(operand, _LANGUAGE[taken_for])


def launch_tiles(
    kernel: Any, problem: MatmulProblem, config: MatmulConfig, chosen: dict[str, Any], gpu: Gpu, a: Any, b: Any, c: Any,
    add: Any = None, bias: Any = None, alpha: float | None = None, beta: float | None = None,
    scale_a: Any = None, scale_b: Any = None, *, count: int | None = None, ends: Any = None,
) -> None:  # fmt: skip
    """Write activation(alpha scale_a (a b) scale_b + beta add + bias) into c: what Triton takes for pointers, None for
    no term. `chosen` are the kernel's constexprs, count its programs if they are not one for each tile, ends where
    groups of rows, or of K, end.
    """
    a, b = (
        _as(operand, dtype, operand_type(problem, dtype))
        for operand, dtype in ((a, problem.dtype_a), (b, problem.dtype_b))
    )
    arguments = runtime_arguments(problem) | part_arguments(problem, config, chosen, gpu) | chosen
    if problem.in_groups:
        arguments["ends_ptr"] = ends
    count = problem.tiles(config.block_m, config.block_n) if count is None else count
    with rewriting(bool(chosen["MARK"])):
        for first in range(0, count, MOST_PROGRAMS):
            kernel[(min(count - first, MOST_PROGRAMS), config.parts(problem), 1)](
                a, b, c, add, bias, alpha, beta, scale_a, scale_b, first_program=first, **arguments,
                num_warps=config.num_warps, enable_fp_fusion=True,
            )  # fmt: skip


def compile_tiles(
    kernel: Any, problem: MatmulProblem, config: MatmulConfig, chosen: dict[str, Any], gpu: Gpu
) -> CodeObject:
    """The machine code that `launch_tiles` runs."""
    types = pointer_types(problem)
    integers = runtime_arguments(problem) | part_arguments(problem, config, chosen, gpu) | {"first_program": 0}
    known = {name: kind for name, kind in types.items() if kind is not None}
    known |= {name: "i32" if value < 1 << 31 else "i64" for name, value in integers.items()}
    nothing: dict[str, Any] = {name: None for name, kind in types.items() if kind is None}
    with rewriting(bool(chosen["MARK"])):
        return compile_kernel(
            kernel, gpu=gpu, signature=known, constants=nothing | chosen, num_warps=config.num_warps, attrs=()
        )


def facts(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> list[str]:
    """What sizes, strides and dtypes made of the kernel, as sentences."""
    chosen = constants(problem, config, gpu)
    ways = {
        "registers": "transposed in registers on the way to LDS",
        "scalar": f"transposed by stores of {lds_element_bytes(problem, gpu)} bytes to LDS",
        "gather": "gathered along K", "shuffle": "transposed between lanes on the way to LDS",
    }  # fmt: skip
    lines = []
    held_bytes = lds_element_bytes(problem, gpu)
    widest = VECTOR_BYTES // (held_bytes if config.lds == "padded" else DTYPE_BYTES[problem.dtype_a])
    for name, major, dtype in (("A", chosen["A_MAJOR"], problem.dtype_a), ("B", chosen["B_MAJOR"], problem.dtype_b)):
        along = {"k": "K", "row": "M" if name == "A" else "N", "neither": "no axis"}[major]
        rows = config.block_m if name == "A" else config.block_n
        held = 1 if major == "row" and config.transpose == "gather" else rows * config.block_k // 32 // config.loaders
        way = ways[config.transpose] if major == "row" else "stored to LDS as loaded"
        loaded = min(chosen[f"{name}_VEC"], held, ACROSS if major == "row" else widest)
        lines.append(f"{name} is contiguous along {along}: loads of {loaded * DTYPE_BYTES[dtype]} bytes, {way}")
    stored = chosen["C_VEC"] * DTYPE_BYTES[problem.dtype_out]
    lines.append(f"C is stored {stored} bytes at a time" if config.stores == "staged" else "C is stored by its sums")
    if is_upcast(problem, gpu):
        lines.append(f"{gpu.name} has no 8-bit floats: A and B become fp16 between load and LDS, exactly")
    if problem.dtype_acc != "fp32":
        lines.append(f"products are summed in {problem.dtype_acc}")
    if not chosen["WHOLE_K"]:
        left = problem.k_stored % config.block_k
        lines.append(f"the last K-tile has {left} of {config.block_k} columns and is masked")
    if chosen["WIDE"]:
        lines.append("offsets inside a tile need 64 bits")
    if (parts := config.parts(problem)) > 1:
        lines.append(f"K in {parts} parts of {config.k_part(problem)}, added up in their order by a second launch")
    if config.stream_k and (shares := config.shares(problem, gpu)).shared:
        lines.append(
            f"{shares.whole} whole tiles, then {shares.shared} that {shares.workers} workgroups share: their parts are "
            "added up in their order by a launch of its own"
        )
    if problem.epilogue:
        lines.append(f"the sums become C in FP32 before their one rounding: {problem.epilogue.key.replace('+', ', ')}")
    count = "one buffer" if config.buffers == 1 else "two buffers"
    lines.append(f"LDS: {config.lds_bytes(problem, gpu)} bytes in {count}, {config.lds}")
    return lines
