"""How many sums a thread of hopper_cluster.cu has registers for: what compiles without spills. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config_hopper import adds_lines
from .problem import MatmulProblem

if TYPE_CHECKING:
    from .config_cluster import ClusterConfig


def _most_own_sums(problem: MatmulProblem, by_rows: bool) -> int:
    """Of a tile of one warpgroup, beside its terms: what every dtype of C compiles to without spills, either way up.

    by_rows: whether lanes store C by its rows."""
    if not (e := problem.epilogue):
        return 184 if by_rows else 192
    vectors = (e.scale_a == "row") + (e.scale_b == "column") + bool(e.bias)
    if e.addend:
        return (160, 152, 128, 128)[vectors] if adds_lines(problem) else 72
    return 160 if vectors == 3 else 176 if by_rows else 184


def most_sums(config: ClusterConfig, problem: MatmulProblem) -> int:
    """Sums that a thread has registers for, beside the terms of an epilogue and sums that are exchanged."""
    if config.scaled:
        e = problem.epilogue
        bare = 208 if config.tma_store else 200
        rooms = {1: 192, 2: 168, 3: 96} if e and e.addend else {1: 208, 2: 192 if e else bare, 3: 128}
        return rooms[config.consumers]
    if config.promote:
        return 64 if config.consumers == 3 else 192
    if config.cluster_k > 1 or (problem.epilogue and config.consumers == 3):
        return 64 if config.consumers == 3 else 96
    if config.own_tiles:
        return _most_own_sums(problem, by_rows=not (config.tma_store or config.swapped))
    if problem.epilogue:
        return 128
    return {1: 128, 2: 160, 3: 96}[config.consumers]
