"""Which lane holds what on the way to LDS, and the constexprs of the wmma schedule."""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import Any

from triton.experimental.gluon import language as gl

from ...codegen.versions import wmma_layout
from ...gpu import Gpu
from ..attention.layouts import rows_layout, shared_layout, turned_layout
from .config import ChainConfig
from .problem import DTYPE_BYTES, ChainProblem

#: The kernels' integers, in their order; the values come from `runtime_arguments`.
SIZES = [
    "M", "K0", "N0", "N1", "batch_inner", "stride_ao", "stride_ai", "stride_am", "stride_ak", "stride_bo", "stride_bi",
    "stride_bk", "stride_bn", "stride_eo", "stride_ei", "stride_ek", "stride_en", "stride_co", "stride_ci",
    "stride_cm", "stride_cn", "stride_do", "stride_di", "stride_dm", "stride_dn",
]  # fmt: skip
POINTERS = ["a0_ptr", "b0_ptr", "b1_ptr", "c1_ptr", "out_ptr"]
#: Not specialised on values: what matters about them are constexprs, so that a new size compiles nothing.
RUNTIME = [*POINTERS, "alpha0", "alpha1", "beta1", *SIZES]


def runtime_arguments(problem: ChainProblem) -> dict[str, int]:
    """The kernel's integers."""
    added = problem.c1.strides if problem.c1 else (0, 0, 0, 0)
    matrices = (problem.a0.strides, problem.b0.strides, problem.b1.strides, added, problem.out.strides)
    values = (problem.m, problem.k0, problem.n0, problem.n1, problem.batch[1])
    return dict(zip(SIZES, (*values, *(stride for four in matrices for stride in four)), strict=True))


def signature(problem: ChainProblem) -> tuple[dict[str, str], dict[str, None]]:
    """Triton's types of the kernel's arguments, and those that are None."""
    kinds = {f"{name}_ptr": f"*{problem.dtype}" for name in ("a0", "b0", "b1", "out")}
    kinds |= {"alpha0": "fp32", "alpha1": "fp32"}
    kinds |= {name: "i32" if value < 1 << 31 else "i64" for name, value in runtime_arguments(problem).items()}
    if problem.c1:
        return kinds | {"c1_ptr": f"*{problem.dtype_c}", "beta1": "fp32"}, {}
    return kinds, {"c1_ptr": None, "beta1": None}


def _load_layouts(rows: int, depth: int, major: str, num_warps: int) -> tuple[Any, Any]:
    """Layouts of a [rows, depth] tile as it is loaded, and as it is stored to LDS with K contiguous."""
    if major != "row":
        layout = rows_layout(rows, depth, num_warps)
        return layout, layout
    return tuple(_flipped(turned_layout(depth, rows, num_warps, stored=stored)) for stored in (False, True))  # pyright: ignore[reportReturnType]


def _flipped(layout: gl.DistributedLinearLayout) -> gl.DistributedLinearLayout:
    """The layout of the transposed tile."""
    registers, lanes, warps, blocks = (
        [list(reversed(basis)) for basis in group]
        for group in (layout.reg_bases, layout.lane_bases, layout.warp_bases, layout.block_bases)
    )
    return gl.DistributedLinearLayout(registers, lanes, warps, blocks, list(reversed(layout.shape)))


def _reach(rows: int, depth: int, strides: tuple[int, int]) -> int:
    return (rows - 1) * strides[0] + (depth - 1) * strides[1]


@cache
def constants(problem: ChainProblem, config: ChainConfig, gpu: Gpu) -> dict[str, Any]:
    """The constexprs of kernels/wmma.py."""
    version = gpu.wmma_version
    size = DTYPE_BYTES[problem.dtype]
    tiles = {
        "a0": (config.block_m, config.block_k), "b0": (config.block_n0, config.block_k),
        "b1": (config.block_n1, config.block_n0),
    }  # fmt: skip
    found: dict[str, Any] = {}
    vectors = {"a0": 1, "b0": 1, "b1": 1}
    wide = False
    for name, (rows, depth) in tiles.items():
        extent, length, major, strides, vector = problem.panel(name)
        load, store = _load_layouts(rows, depth, major, config.num_warps)
        wide |= _reach(min(rows, extent), min(depth, length), strides) * size >= 1 << 32
        letter = {"a0": "A", "b0": "B", "b1": "E"}[name]
        vectors[name] = vector if major == "k" else 1
        found |= {
            f"{letter}_MAJOR": major, f"{letter}_VEC": vector, f"{letter}_LOAD": load, f"{letter}_STORE": store,
            f"{letter}_SHARED": shared_layout(depth, (1, 0)),
        }  # fmt: skip
    return found | {
        "BLOCK_M": config.block_m,
        "BLOCK_N0": config.block_n0,
        "BLOCK_N1": config.block_n1,
        "BLOCK_K": config.block_k,
        "KEEP": config.keep,
        "SPLIT": config.split,
        "WHOLE_K": problem.k0 % config.block_k == 0,
        "WHOLE_N0": problem.n0 % config.block_n0 == 0,
        "WIDE": wide,
        "K_VEC": gcd(problem.k0, max(vectors["a0"], vectors["b0"])),
        "N0_VEC": gcd(problem.n0, vectors["b1"], config.block_n0),
        "OUT_VEC": problem.row_vector("out"),
        "C_VEC": problem.row_vector("c1"),
        "VERSION": version,
        "K_WIDTH": 16 if version == 1 else 8,
        "ACC": wmma_layout(version, config.num_warps, 1, True, (16, 16, gpu.matrix_depth)),
        "OUT_STORE": rows_layout(config.block_m, config.block_n1, config.num_warps),
    }
