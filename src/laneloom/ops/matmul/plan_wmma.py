"""The order in which RDNA's configs are tried for a problem. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...gpu import Gpu
from .config import MatmulConfig
from .config_fma import FmaConfig
from .config_wmma import CoopConfig, PingpongConfig, WmmaConfig, lds_element_bytes
from .problem import MatmulProblem
from .tile_orders import footprint

CONFIGS: dict[str, type[MatmulConfig]] = {
    "wmma": WmmaConfig, "wmma_coop": CoopConfig, "wmma_pingpong": PingpongConfig, "fma": FmaConfig,
}  # fmt: skip

Tile = WmmaConfig | FmaConfig

#: Block tiles with their waves, and the share of the matrix units' rate that their LDS traffic is taken to allow: the
#: fewer rows and columns a wave has, the more often it reads each of them.
TILES = (
    (WmmaConfig(block_m=128, block_n=128, block_k=32), 1.0),
    (WmmaConfig(block_m=128, block_n=64, block_k=32), 0.85),
    (WmmaConfig(block_m=64, block_n=128, block_k=32), 0.85),
    (WmmaConfig(block_m=64, block_n=64, block_k=32), 0.65),
    (WmmaConfig(block_m=32, block_n=64, block_k=32, num_warps=2), 0.5),
    (WmmaConfig(block_m=64, block_n=32, block_k=32, num_warps=2, waves_n=1), 0.5),
    (WmmaConfig(block_m=32, block_n=32, block_k=32, num_warps=1, waves_n=1), 0.45),
)


def tiles_for(problem: MatmulProblem, gpu: Gpu) -> list[tuple[Tile, float]]:
    """The tiles that the dtypes allow, with their shares."""
    if problem.dtype_a in FMA_TILES:
        return list(FMA_TILES[problem.dtype_a])
    halves = problem.dtype_acc in ("fp16", "bf16") and gpu.major == 11
    block_k = LDS_ROW_BYTES // lds_element_bytes(problem, gpu)
    return [(replace(config, block_k=block_k), share) for config, share in (NARROW_WAVES if halves else TILES)]


def _tiles(problem: MatmulProblem, config: MatmulConfig) -> int:
    return problem.batches * -(-problem.m // config.block_m) * -(-problem.n // config.block_n)


def _cost(problem: MatmulProblem, config: MatmulConfig, share: float, gpu: Gpu) -> float:
    """Relative time: the elements that the busiest compute unit makes, over the rate at which it makes them."""
    return -(-_tiles(problem, config) // gpu.compute_units) * config.block_m * config.block_n / share


#: For 16-bit sums on RDNA 3, where a wave has 16 columns.
NARROW_WAVES = (
    (WmmaConfig(block_m=128, block_n=64, block_k=32, waves_n=4), 0.6),
    (WmmaConfig(block_m=64, block_n=64, block_k=32, waves_n=4), 0.5),
    (WmmaConfig(block_m=32, block_n=32, block_k=32, num_warps=2, waves_n=2), 0.4),
)
#: For FP32 and FP64, whose rate is that of the multiply-adds.
FMA_TILES = {
    "fp32": (
        (FmaConfig(block_m=128, block_n=128, block_k=8), 1.0),
        (FmaConfig(block_m=64, block_n=128, block_k=8, num_warps=4), 0.8),
        (FmaConfig(block_m=64, block_n=64, block_k=8, num_warps=4), 0.6),
        (FmaConfig(block_m=32, block_n=32, block_k=8, num_warps=1), 0.45),
    ),
    "fp64": (
        (FmaConfig(block_m=64, block_n=64, block_k=4, num_warps=4), 1.0),
        (FmaConfig(block_m=32, block_n=32, block_k=4, num_warps=2), 0.9),
        (FmaConfig(block_m=16, block_n=32, block_k=4, num_warps=1), 0.8),
    ),
}
LDS_ROW_BYTES = 64  #: of a tile, whatever the dtype


#: The orders that are tried after the usual one, and by how much less memory traffic one has to have: each is a kernel
#: of its own to compile.
OTHER_ORDERS = (("grouped", 4), ("grouped", 16), ("row", 8), ("column", 8))
LESS_TRAFFIC = 0.9
PROGRAMS_PER_UNIT = 2  #: workgroups that a compute unit is taken to run at a time


def operand_traffic(problem: MatmulProblem, config: MatmulConfig, order: str, group: int, gpu: Gpu) -> int:
    """Rows of A and columns of B that the programs which run at once need from memory, if each is fetched once."""
    tiles = -(-problem.m // config.block_m), -(-problem.n // config.block_n)
    rows, columns = footprint(order, *tiles, group, PROGRAMS_PER_UNIT * gpu.compute_units)
    return rows * config.block_m + columns * config.block_n


def with_best_order(problem: MatmulProblem, config: Tile, gpu: Gpu) -> Tile:
    """The config with the tile order that asks least of memory, if that is clearly less than what its own asks."""
    own = operand_traffic(problem, config, config.order, config.group_m, gpu)
    ranked = [(operand_traffic(problem, config, *other, gpu), other) for other in OTHER_ORDERS]
    least, (order, group) = min(ranked, key=lambda pair: pair[0])
    return replace(config, order=order, group_m=group) if least < LESS_TRAFFIC * own else config


def candidates(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """The tiles in the order of the time that `_cost` gives them; larger ones first where it gives the same."""
    tiles = tiles_for(problem, gpu)
    ranked = sorted(tiles, key=lambda tile: _cost(problem, tile[0], tile[1], gpu))
    for place, (config, share) in enumerate(ranked):
        tiles = _tiles(problem, config)
        useful = problem.batches * problem.m * problem.n / (tiles * config.block_m * config.block_n)
        config = with_best_order(problem, config, gpu)
        yield config, (
            f"rank {place + 1} of {len(ranked)} by the busiest compute unit's work: {tiles} tiles of "
            f"{config.block_m} x {config.block_n} on {gpu.compute_units} units, {useful:.0%} of them in the product, "
            f"LDS traffic allows {share:.0%} of the rate; {config.order} order ({config.group_m})"
        )
