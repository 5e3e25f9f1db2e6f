"""Registers and constraints of `hopper_cluster` where sums of 8-bit floats leave the tensor cores every slice. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .problem import DTYPE_BYTES, SCALE_BLOCK, MatmulProblem

if TYPE_CHECKING:
    from .config_cluster import ClusterConfig


def why_not_scaled(config: ClusterConfig, multiplied: MatmulProblem) -> str | None:
    """Why scales of blocks cannot be applied, or why there are none."""
    scales = multiplied.scales
    if bool(config.scaled) != multiplied.adds_blocks:
        return "hopper_cluster: `scaled` is for blocks of K that have scales, or whose sums are promoted"
    if not config.scaled:
        return None
    rows, columns = (scales.rows, scales.columns) if scales else (1, 1)
    if multiplied.dtype_a not in ("fp8", "bf8") or not {rows, columns} <= {1, SCALE_BLOCK}:
        return f"hopper_cluster: sums of 8-bit floats are scaled by blocks, or promoted, got {multiplied.key}"
    if config.promote or config.cluster_k > 1 or config.split or config.hold_back or config.tiles_n or config.line:
        return "hopper_cluster: scaled sums leave the tensor cores every slice, of whole tiles in one part of K"
    if config.scaled not in (1, 2) or config.block_n % (8 * config.scaled):
        return "hopper_cluster: one part of a tile's columns or two, of whole blocks of 8"
    if (config.scaled == 2 and config.strips > 1) or (config.dual and config.strips * config.scaled > 1):
        return "hopper_cluster: two parts are of one strip, and a dual config has one part of one strip"
    if rows > 1 and config.block_m % rows and rows % config.block_m:
        return f"hopper_cluster: tiles begin and end where {rows} rows that share a scale do"
    if columns > 1 and config.block_n // config.scaled > columns:
        return f"hopper_cluster: a part's columns have one scale, got {config.block_n // config.scaled} of {columns}"
    return "hopper_cluster: rows of groups have a scale each" if rows > 1 and config.grouped else None


def beside_scaled(config: ClusterConfig, problem: MatmulProblem, multiplied: MatmulProblem) -> int:
    """Registers beside the scaled sums: of a slice's, scales of columns, A's rows, two stores of groups, ptxas."""
    by_column = multiplied.scales is not None and multiplied.scales.columns == 1
    masked, wide = not config.tma_store, DTYPE_BYTES[problem.dtype_out] > 2
    needed = config.block_n // (1 if config.dual else 2 * config.scaled)
    needed += config.block_n // 4 * (config.dual and by_column) + (16 + 16 * (masked and wide)) * (config.scaled > 1)
    added = config.dual and masked and wide and problem.epilogue and problem.epilogue.addend
    needed += 8 * (bool(added) + by_column * ((masked or wide) + bool(problem.epilogue)))
    tight = by_column or masked or wide or config.panels > 1 or problem.epilogue
    both = config.grouped and ((by_column and config.scaled > 1) or (config.tma_store and (by_column or wide)))
    return needed + (24 if config.strips > 1 and tight else 0) + 8 * both
