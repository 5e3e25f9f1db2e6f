"""FP32 product in assembly: 128 x 128 tiles by four waves of 64 x 64, every multiplication half of a dual-issue pair.

Steps K6, K7 and K8 of the FP32 ladder (docs/sgemm-ladder.md) for RDNA 3, 3.5 and 4: A and B row-major, any size. Lanes
hold 16 x 8 sums. A's fragments lie in vector register banks 2 and 3, B's in 0 and 1, so that the four operands of a
pair come from four banks. The ragged K-tile comes first, filled with zeros; rows and columns beyond the matrix read the
last one again and are not stored. Design and figures: the RDNA 3 SGEMM article by seb-v, kernels 6 to 8.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ....codegen import CodeObject, assemble
from ....gpu import Gpu
from ...assembled import launch_assembled
from ..assembly_sgemm import STEP, TILE, SgemmWriter
from ..config_sgemm import AssemblyConfig, batch_offsets, pitches
from ..problem import MatmulProblem


@lru_cache(maxsize=64)
def _assembled(config: AssemblyConfig, gpu: Gpu, whole: bool) -> CodeObject:
    return assemble(SgemmWriter(config, gpu, whole).text(), gpu)


def _is_whole(problem: MatmulProblem) -> bool:
    return problem.m % TILE == 0 and problem.n % TILE == 0 and problem.k % STEP == 0


def code_object(problem: MatmulProblem, config: AssemblyConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    return _assembled(config, gpu, _is_whole(problem))


def launch(problem: MatmulProblem, config: AssemblyConfig, gpu: Gpu, a: Any, b: Any, c: Any) -> None:
    """Write a b into c, batch after batch: what Triton takes for pointers."""
    code = code_object(problem, config, gpu)
    tiles_m, tiles_n = -(-problem.m // TILE), -(-problem.n // TILE)
    grid = (tiles_n * config.group_m, -(-tiles_m // config.group_m))
    sizes = (problem.m, problem.n, problem.k, *(4 * pitch for pitch in pitches(problem)))
    for offsets in batch_offsets(problem):
        launch_assembled(code, grid, (a, b, c), offsets, sizes)


def facts(problem: MatmulProblem, config: AssemblyConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    tiles = f"{-(-problem.m // TILE)} x {-(-problem.n // TILE)} tiles of {TILE} x {TILE}"
    edges = "the tile divides M, N and K: no masks" if _is_whole(problem) else "clamped loads and masked stores"
    return [f"{tiles}, {edges}; written in assembly, {len(batch_offsets(problem))} launches"]
