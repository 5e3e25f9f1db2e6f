"""What of a config of `hopper_cluster` follows from its tile and the problem. Pure.

That is the ring's stages, the way that C is stored, and the slices that the L2 is asked for ahead of time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gpu import Gpu
from .config_cluster import ClusterConfig
from .model_hopper import SECTOR_BYTES, SLICE_BYTES, Rows, ceil_div, clusters_at_once, rows_of
from .problem import DTYPE_BYTES, MatmulProblem

#: rows of a tile -> warpgroups that multiply it
ROWS = {64: 1, 128: 2, 192: 3, 256: 2}
ENOUGH_STAGES = 6  #: more are less than what a warp gains that need not wait for a panel of C to be read
MOST_STAGES = 14
PANEL_BYTES = 2048  #: of C that a warp stages at a time: 128 of each of its 16 rows
BARRIER_BYTES = 16  #: of a stage
WORD_BYTES = 16  #: that a lane writes at once, at most
#: slices that the L2 is asked for ahead of time, at least and at most: so many bytes, each once. Of 83 products on one
#: H100 (2026-11-26) 2.9% faster than none; the best number of each product saves 3.7%
LEAST_FETCHED, MOST_FETCHED, FETCHED_BYTES = 2, 8, 1_500_000
#: what it saves of products that leave half of the SMs to the next one, and of how many slices and bytes at most
FETCHED_US, MOST_SMALL_BYTES = 0.3, 2 << 20
#: of so few slices a ring of more stages and bytes is 2% slower, measured at 1000 cubed; in clusters of 4 one of 8 is
#: 2% faster. Smaller slices take more: 8 x 4096 x 512 by 64x8 tiles 3.4 us with 7, 3.0 with 14
SHORT_SLICES, SHORT_STAGES, SHORT_STAGES_OF_FOUR, SHORT_BYTES = 16, 7, 8, 172032


#: bytes of the lines that rows of A in classes begin alike in
CLASSES = {32: Rows.CLASS_32, 64: Rows.CLASS_64, 128: Rows.CLASS_128}


def operand_rows(problem: MatmulProblem, config: ClusterConfig, size: int) -> tuple[Rows, Rows]:
    """How the rows of both operands lie that `config` multiplies for `problem`, whose elements have `size` bytes."""
    of_a = CLASSES[config.line] if config.line else rows_of(problem.a, size, config.copy_a)
    of_b = rows_of(problem.b, size, config.copy_b)
    return (of_b, of_a) if config.swapped else (of_a, of_b)


def short_ring(lines: Any, sharers: Any) -> Any:
    """Stages for a short K, of so many lines each, of CTAs that share loads."""
    least = np.where(sharers < 4, SHORT_STAGES, SHORT_STAGES_OF_FOUR)
    return np.minimum(np.maximum(least, SHORT_BYTES // (lines * SLICE_BYTES)), MOST_STAGES)


def panels_and_stages(room: Any, stage_bytes: Any, warps: Any, of_tile: Any, most: Any) -> tuple[Any, Any]:
    """The panels of C that each warp stages at a time, of a tile's, as many as cost no stage that matters, and the
    stages that `room` bytes hold beside them."""

    def beside(panels: Any) -> Any:
        return np.minimum((room - warps * panels * PANEL_BYTES) // (stage_bytes + BARRIER_BYTES), most)

    best: Any = 1
    for panels in (2, 4):
        more = (best * 2 == panels) & (panels <= of_tile)
        best = np.where(more & (beside(panels) >= np.minimum(beside(best), ENOUGH_STAGES)), panels, best)
    return best, beside(best)


def overlapped(config: ClusterConfig, problem: MatmulProblem) -> ClusterConfig:
    """The same config, writing C while the tensor cores multiply as far as that is faster.

    Measured: 2% on the mean of 28 products for two strips, 0.5 to 2% for one; nothing for a single consumer. An
    addend takes the registers that it needs."""
    if config.consumers != 2 or config.own_tiles or (problem.epilogue and problem.epilogue.addend):
        return config
    best = config.with_knobs(split=True, hold_back=1) if config.strips == 2 else config.with_knobs(hold_back=2)
    for tried in (best, best.with_knobs(hold_back=0)):
        if tried.why_not_overlapped(problem) is None:
            return tried
    return config


def _lanes_are_faster(config: ClusterConfig, problem: MatmulProblem) -> bool:
    """Whether lanes write C sooner than TMA, where a CTA has one tile and nothing hides that.

    Measured on one H200 (2026-11-29): 0.5 to 8% less time of 45 of 47 products whose C is turned, 1 to 2% of most in
    tiles of 64 columns; of wider ones as often more. Rows that break sectors take TMA longer: 3% at 1000 cubed."""
    size = DTYPE_BYTES[problem.dtype_out]
    if size != 2:
        return False
    broken = problem.out.strides[2] * size % SECTOR_BYTES and not config.swapped
    whole_words = problem.vector_out * size == WORD_BYTES and (config.swapped or config.finished * size <= SLICE_BYTES)
    return bool(broken or whole_words)


def fitted(config: ClusterConfig, problem: MatmulProblem, gpu: Gpu) -> ClusterConfig:
    """The config with the way that C is stored, the stages that fit, and panels that cost none that matters."""
    panel = SLICE_BYTES // DTYPE_BYTES[problem.dtype_out]
    # Every program walks over an equal share of the tiles: a cluster that does not fit would begin when others end.
    config = config.with_knobs(programs=int(clusters_at_once(config.peers, gpu)) * config.peers)
    launched = config.as_launched(problem)
    alone = config.one_tile(launched)
    by_lanes = alone and _lanes_are_faster(config, problem)
    config = config.with_knobs(tma_store=config.stores_by_tma(problem) and not by_lanes)

    multiplied = config.as_multiplied(launched)
    empty = config.with_knobs(panels=0, stages=0)
    panels, stages = panels_and_stages(
        gpu.lds_bytes - empty.shared_bytes(problem), config.stage_bytes(multiplied), 4 * config.consumers,
        ceil_div(config.finished, panel), config.stages,
    )  # fmt: skip
    best = overlapped(config.with_knobs(panels=int(panels), stages=max(int(stages), 2)), problem)
    held = 0 if alone else best.hold_back  # there is no next tile to hold back for
    return best.with_knobs(hold_back=held, fetched=_fetched(best, problem))


def leaves_room(config: ClusterConfig, problem: MatmulProblem) -> bool:
    """Whether half of the SMs wait with the next product's CTAs, which have asked for all that they read."""
    idle = 2 * config.tiles(problem) * config.peers <= config.programs and not config.line
    slices = ceil_div(problem.k, config.block_k)
    return bool(config.fetched) and idle and slices <= MOST_FETCHED and problem.bytes <= MOST_SMALL_BYTES


def fetched_slices(problem: MatmulProblem, block_k: int, parts: Any) -> Any:
    """Slices to ask the L2 for before the kernel ahead has ended: what memory can bring in that time."""
    slice_bytes = SLICE_BYTES * (problem.m + problem.n) * problem.batches * parts
    fetched = np.clip(FETCHED_BYTES // slice_bytes, LEAST_FETCHED, MOST_FETCHED)
    return np.minimum(fetched, ceil_div(problem.k, block_k * parts))


def _fetched(config: ClusterConfig, problem: MatmulProblem) -> int:
    """Of a config. What is copied first is in the L2."""
    if config.copy_a or config.copy_b or config.grouped:
        return 0
    return int(fetched_slices(problem, config.block_k, config.cluster_k))
