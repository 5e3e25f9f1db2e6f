"""Hopper's matrix instructions: mma.sync of every type that sm_90 has, and wgmma, whose accumulators lie in registers.

Source: PTX ISA 8.7, "Matrix multiply-accumulate operation using mma instruction" and "Asynchronous warpgroup level
matrix multiply-accumulate". NVIDIA publishes neither opcodes nor cycles; the tensor cores' rate is in `laneloom gpus`.
"""

from __future__ import annotations

from dataclasses import replace

from .catalogue import MatrixInstruction

_PTX = "PTX ISA 8.7; NVIDIA publishes no cycles"
_NAMES = {"fp8": "e4m3", "bf8": "e5m2", "i32": "s32", "i8": "s8"}

# A and B types, K of the shapes m16n8k..., accumulators
_MMA = (
    ("f16", (8, 16), ("f32", "f16")),
    ("bf16", (8, 16), ("f32",)),
    ("tf32", (4, 8), ("f32",)),
    ("f64", (4, 8, 16), ("f64",)),
)


def hopper_rows() -> list[MatrixInstruction]:
    """All rows: mma.sync by type and shape, then wgmma by type and N."""
    return [*_mma_rows(), *_wgmma_rows()]


def _mma_rows() -> list[MatrixInstruction]:
    rows = [_mma(8, 4, "f64", "f64", "f64")]
    for kind, depths, accumulators in _MMA:
        rows += [_mma(16, k, cd, kind, kind) for k in depths for cd in accumulators]
    for a in ("fp8", "bf8"):
        for b in ("fp8", "bf8"):
            rows += [_mma(16, 32, cd, a, b) for cd in ("f32", "f16")]
    for m, k in ((8, 16), (16, 16), (16, 32)):
        rows += [_mma(m, k, "i32", a, b, ("satfinite",)) for a in ("i8", "u8") for b in ("i8", "u8")]
    return rows


def _mma(m: int, k: int, cd: str, a: str, b: str, modifiers: tuple[str, ...] = ()) -> MatrixInstruction:
    types = ".".join(_NAMES.get(t, t) for t in (cd, a, b, cd))
    name = f"mma.sync.aligned.m{m}n8k{k}.row.col.{types}"
    return MatrixInstruction(name, "hopper", "mma", m, 8, k, 1, a, b, cd, (32,), modifiers, _PTX)


# A and B types, K, accumulators. Transposition is for 16-bit types only, signs and scale for floats.
_WGMMA = (
    ("f16", "f16", 16, ("f32", "f16")),
    ("bf16", "bf16", 16, ("f32",)),
    ("tf32", "tf32", 8, ("f32",)),
    *((a, b, 32, ("f32", "f16")) for a in ("fp8", "bf8") for b in ("fp8", "bf8")),
    *((a, b, 32, ("i32",)) for a in ("i8", "u8") for b in ("i8", "u8")),
)


def _wgmma_rows() -> list[MatrixInstruction]:
    rows = []
    for a, b, k, accumulators in _WGMMA:
        integer = a in ("i8", "u8")
        modifiers = ("scale-d", "satfinite") if integer else ("scale-d", "imm-scale-a", "imm-scale-b")
        if a in ("f16", "bf16"):
            modifiers += ("imm-trans-a", "imm-trans-b")
        for n in (8, 16, 24, *range(32, 257, 16)) if integer else range(8, 257, 8):
            for cd in accumulators:
                types = ".".join(_NAMES.get(t, t) for t in (cd, a, b))
                name = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types}"
                row = MatrixInstruction(name, "hopper", "wgmma", 64, n, k, 1, a, b, cd, (128,), modifiers, _PTX)
                rows.append(replace(row, note="B, and A unless it is given in registers, come from shared memory"))
    return rows
