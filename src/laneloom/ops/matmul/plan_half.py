"""Configs of `hopper_async` for 16 bits on Hopper, with estimates of their times. Pure.

`plan_hopper` compares them with those of the schedules that TMA feeds: this one wins for small products, batches of
them, and rows that TMA cannot read. A CTA loads and multiplies while others of its SM do; what is left alone waits.
Fitted to the rows of 16 bits in tiles_wide.csv, tiles_batches.csv and tiles_unaligned.csv of results/h200 and, where
rows begin at 16 bytes, in results/h100/tiles_wide.csv, 2026-11-29: of what is near the fastest it misses by 10%.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...gpu import Gpu
from .config_async import HALF_TILES, AsyncConfig
from .config_hopper import tma_reads
from .dtypes import HALVES
from .model_hopper import LINE_BYTES, ceil_div, clusters_at_once
from .plan_wide import cut, is_narrow
from .problem import DTYPE_BYTES, MatmulProblem

TILES = tuple(tile for tile in HALF_TILES if tile not in ((64, 8), (16, 16)))  #: two are never much faster
MOST_CTAS = {1: 1 << 31, 2: 264, 4: 200, 8: 132}  #: by CTAs of a cluster: larger ones find no place together
SMALL_TILE = 1024  #: elements, up to which an SM holds four CTAs, or eight of a short K, else two
LONG_K = 256  #: above which slices of 128 are tried where rows begin at single elements
#: on these estimates of one product, beside those of the others for what TMA reads where it lies, and for what has to
#: be copied for them, beside few rows or columns or more: they miss by 20%, and what TMA feeds is the faster of equals
DOUBT, DOUBT_OF_COPIES, DOUBT_OF_FEW, FEW_ROWS = 1.3, 1.2, 0.88, 32
#: of all products up to which the others are compared with, and of one of a larger batch
MOST_MULTIPLICATIONS, SMALL_MULTIPLICATIONS = 1 << 31, 1 << 22
REGISTERS, SHARED_BYTES, MOST_RESIDENT = 1 << 16, 228 << 10, 16  #: of an SM; its CTAs
#: registers of a thread, with whole vectors and with rows that begin anywhere
TILE_REGISTERS = {
    (128, 64): (152, 160), (128, 32): (104, 128), (128, 16): (80, 108), (128, 8): (72, 96), (64, 64): (104, 133),
    (64, 32): (80, 109), (64, 16): (64, 86), (32, 32): (64, 85), (32, 16): (64, 80),
}  # fmt: skip
#: in us, per tile: what multiplying takes of each element and k
PACE = {
    (128, 64): 2.329e-07, (128, 32): 3.368e-07, (128, 16): 1.614e-07, (128, 8): 2.841e-07, (64, 64): 2.914e-07,
    (64, 32): 4.415e-07, (64, 16): 4.814e-07, (32, 32): 9.33e-07, (32, 16): 8.778e-07,
}  # fmt: skip
#: of CTAs with an SM each, by the elements that rows are aligned to
ALONE_ON_ITS_SM = {1: 0.9271, 2: 0.8753, 4: 0.8872}
LAUNCH_US, FILL_US = 0.6239, 1.407  #: of a launch; of one that fills the SMs, so that the next one cannot begin
PIECE_US, SINGLE_US = 6.269e-05, 5.932e-05  #: a copy of several elements, of one
#: two k of a row that a lane reads, where rows begin anywhere: along K, and not
WORD_US, HALVES_US = 5.758e-05, 4.033e-05
LINE_US = 0.0003189  #: a line of memory that a tile's rows touch
BYTE_US = 1.133e-05  #: a byte from the L2
#: bytes a time of those that memory gives by the data sheet, a part from the L2; a written byte, in bytes read
MEMORY_SHARE, WRITTEN = 1.417, 2.312
CTA_US, STORE_US = 0.0299, 2.535e-05  #: of an SM: a CTA, an element of its tile
#: of a CTA alone
ALONE, WAIT_US = 0.7603, 0.279
SINGLE_WAIT_US = 0.2745  #: a slice with single elements, whose registers are waited for
EXCHANGE_US, EXCHANGED_US = 0.7844, 9.741e-05  #: of sums in a cluster, and of each element
SECOND_US, SUMMED_US = 1.166, 1.643e-06  #: a launch that adds parts, each element of a part


def half_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[AsyncConfig]:
    """Every config that is worth a thought."""
    single = 1 in (problem.vector_a, problem.vector_b)
    for tile in TILES:
        small = tile[0] * tile[1] <= SMALL_TILE
        # What goes through registers is waited for once a slice, and shifted lines bring a piece more for each.
        slices = (32,) if problem.k <= 32 else (64, 128) if single and small and problem.k > LONG_K else (64,)
        for swapped in (False,) if tile[0] == tile[1] else (False, True):
            m, n = (problem.n, problem.m) if swapped else (problem.m, problem.n)
            if tile[0] > 2 * max(m, 32) or tile[1] > 2 * max(n, 8) or (tile[1] <= 16 and n > 2 * tile[1]):
                continue  # mostly empty, or too narrow
            for block_k in slices:
                base = AsyncConfig(
                    block_m=tile[0], block_n=tile[1], block_k=block_k, stages=2, swapped=swapped,
                    resident=256 // block_k if small else 2,
                )  # fmt: skip
                for config in cut(problem, base, gpu, (base.resident,), lambda ctas, n: n * ctas <= MOST_CTAS[ctas]):
                    if base.resident == 2 and is_alone(problem, config, gpu) and not is_narrow(problem, config):
                        stages = SHARED_BYTES // 2 // config.stage_bytes(problem) + 1
                        config = config.with_knobs(resident=1, stages=stages)
                    yield config


def is_alone(problem: MatmulProblem, config: AsyncConfig, gpu: Gpu) -> bool:
    """Whether there are no more CTAs than SMs, of rows that begin between 16 bytes, with enough slices each for a ring
    of half of an SM's shared memory."""
    slices = ceil_div(problem.k, config.block_k * config.cluster_k * config.split_k)
    fills = slices >= SHARED_BYTES // 2 // config.stage_bytes(problem)
    return min(problem.vector_a, problem.vector_b) < 8 and config.ctas(problem) <= gpu.compute_units and fills


def half_us(problem: MatmulProblem, config: AsyncConfig, gpu: Gpu) -> float:
    """The model's time."""
    multiplied, parts = config.as_multiplied(problem), config.cluster_k * config.split_k
    slices = ceil_div(ceil_div(problem.k, config.block_k), parts)
    tile = (config.block_m, config.block_n)
    elements = tile[0] * tile[1]
    vectors, shifted = config.vectors(problem), config.shifted(problem)
    single = 1 in vectors

    def touched(count: int) -> float:
        """Lines of memory that so many neighbours lie in, on average, wherever they begin."""
        return (count * DTYPE_BYTES[problem.dtype_a] + LINE_BYTES - 16) / LINE_BYTES

    along = config.block_k * slices
    pieces = sum(side / vector for side, vector in zip(tile, vectors, strict=True) if vector > 1) * along
    singles = sum(side for side, vector in zip(tile, vectors, strict=True) if vector == 1) * along
    words_us = 0.0
    contiguous = multiplied.a.major == "n", multiplied.b.major == "t"  # along K
    # Each warp reads its rows of the tile, and its columns.
    warp = 16 * HALF_TILES[tile][0], 8 * HALF_TILES[tile][1]
    for moved, along_k, side, other, of_warp in zip(shifted, contiguous, tile, tile[::-1], warp[::-1], strict=True):
        if moved:
            pieces += along / config.block_k * side if along_k else along  # one more in each line
            words_us += side * along / 2 * (other / of_warp) * (WORD_US if along_k else HALVES_US)
    lines = sum(
        (side * slices * touched(config.block_k) if along_k else along * touched(side))
        for side, along_k in zip(tile, contiguous, strict=True)
    )
    multiplying = elements * along * PACE[tile] + pieces * PIECE_US + singles * SINGLE_US
    multiplying += words_us + lines * LINE_US + elements * STORE_US + CTA_US
    loading = sum(tile) * along * DTYPE_BYTES[problem.dtype_a] * BYTE_US
    alone = multiplying * ALONE
    alone += slices * SINGLE_WAIT_US if single else slices / (config.stages - 1) * WAIT_US
    if config.cluster_k > 1:
        alone += EXCHANGE_US + elements * EXCHANGED_US
    registers = min(TILE_REGISTERS[tile][single or any(shifted)], REGISTERS // (128 * config.resident))
    resident = min(REGISTERS // (128 * registers), SHARED_BYTES // (config.shared_bytes(problem) + 1024), MOST_RESIDENT)

    def together(ctas: float) -> float:
        """So many CTAs of one SM at once."""
        return ((ctas * max(multiplying, loading)) ** 3 + alone**3) ** (1 / 3)

    at_once = int(clusters_at_once(config.cluster_k, gpu)) * config.cluster_k  # with one on each SM
    rounds, rest = divmod(ceil_div(config.ctas(problem), at_once), resident)
    time_us = LAUNCH_US + rounds * together(resident) + (together(rest) if rest else 0)
    written = problem.batches * problem.m * problem.n * DTYPE_BYTES[problem.dtype_out]
    time_us += (problem.bytes + (WRITTEN - 1) * written) / (MEMORY_SHARE * gpu.bandwidth_gbs * 1e3)
    time_us += FILL_US * min(1, rounds + rest / resident)
    if config.resident <= 2 and is_alone(problem, config, gpu):
        time_us *= ALONE_ON_ITS_SM[min(problem.vector_a, problem.vector_b)]
    if config.split_k > 1:
        time_us += SECOND_US + SUMMED_US * config.split_k * problem.m * problem.n
    return time_us


def half_best(problem: MatmulProblem, gpu: Gpu) -> list[tuple[AsyncConfig, float]]:
    """Configs with their estimates, the shortest first; none for what others do better."""
    if problem.dtype_a not in HALVES or problem.dtype_b != problem.dtype_a:
        return []
    each = problem.m * problem.n * problem.k
    large = each > SMALL_MULTIPLICATIONS and each * problem.batches > MOST_MULTIPLICATIONS
    if not each * problem.batches or (large and "x" not in problem.layout):
        return []
    fed = "x" not in problem.layout and tma_reads(problem, "a") and tma_reads(problem, "b")
    copied = DOUBT_OF_FEW if min(problem.m, problem.n) <= FEW_ROWS else DOUBT_OF_COPIES
    doubt = 1.0 if problem.batches > 1 else DOUBT if fed else copied  # a batch has `plan_batch`'s
    found = [(config, doubt * half_us(problem, config, gpu)) for config in half_configs(problem, gpu)]
    return sorted(found, key=lambda pair: pair[1])[:3]
