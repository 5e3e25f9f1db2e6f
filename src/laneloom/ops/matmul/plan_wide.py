"""Which schedule FP32 and FP64 products in full precision take on Hopper. Pure.

`hopper_async` competes with `hopper_stream` (FP32) and `hopper_precise` (FP64) by estimates of their times. The model
of `hopper_async`: the SM with the most CTAs multiplies, loads and waits; a launch, a round of CTAs and an exchange of
sums cost something each. Fitted to tiles_wide.csv of results/h200; docs/hopper-gemm.md has what it misses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...gpu import Gpu
from . import config_precise, config_stream
from .config import MatmulConfig
from .config_async import TILES, AsyncConfig
from .config_hopper import TMA_BYTES
from .config_precise import PreciseConfig, precise_configs
from .config_row import CLUSTERS, stream_row
from .config_shares import added_up
from .config_stream import StreamConfig, stream_configs
from .model_hopper import SECTOR_BYTES, ceil_div, clusters_at_once
from .problem import DTYPE_BYTES, MatmulProblem

LONG_LINES = 16  #: columns of a tile up to which slices of 256 bytes are tried in FP32; in FP64 they were no faster
MOST_ROUNDS = 3  #: of CTAs, from which on K is not cut
LEAST_SLICES = 2  #: of a CTA of a cluster
LEAST_SPLIT = 4  #: slices of a CTA where K is cut further
MOST_SPLIT = 64
MOST_STAGES = 8
#: bytes of the rings of an SM's first two CTAs, and the fewest stages, where copies of less than 16 bytes go through
#: the L1: lines that several share stay there if the driver, which gives shared memory 100 KB then, leaves it 156
_NARROW_RINGS, _LEAST_NARROW = 96 << 10, 3


@dataclass(frozen=True)
class _Model:
    """What `hopper_async` takes in one type. Times in us."""

    launch: float
    fma_per_us: float  #: of an SM with enough CTAs
    piece: float  #: one asynchronous copy
    bytes_per_us: float  #: from the L2 to one SM
    bandwidth_share: float  #: of the memory's rate, what is reached
    cta: float  #: one CTA of an SM, beside its work
    exchange: float  #: of sums in a cluster
    exchange_peer: float  #: for each of its CTAs
    exchange_kb: float
    second: float  #: a second launch that sums parts of K
    second_mb: float  #: of all parts
    alone: float  #: times that a CTA takes without others on its SM for what it multiplies
    store_kb: float  #: of a CTA's sums
    written: float  #: bytes that one byte of C counts as
    pace: dict[tuple[int, int], float]  #: of each tile's multiplications


_MODELS = {
    "fp32": _Model(
        0.9678, 142650, 4.509e-05, 48220, 0.8575, 0.3342, 0.5676, 0.05114, 0.0671, 1.166, 0.2347, 0.8756, 0.02733,
        1.131,
        {(128, 64): 0.8804, (128, 32): 0.9958, (128, 16): 1.319, (128, 8): 1.693, (128, 4): 2.862,
         (128, 1): 0.001, (64, 64): 0.9784, (64, 32): 1.15, (64, 16): 1.657, (64, 8): 1.993, (64, 4): 0.5163,
         (64, 1): 1.7e-05, (32, 32): 1.285},
    ),
    "fp64": _Model(
        1.206, 321070, 8.287e-05, 220000, 0.9132, 0.04119, 0.6428, 0.04494, 0, 1.452, 0.1244, 0.8909, 0.0254, 1.388,
        {(128, 64): 1.541, (64, 64): 1.274, (64, 32): 1.512, (32, 32): 2.259, (64, 16): 2.006,
         (64, 8): 2.394, (128, 8): 3.498},
    ),
}  # fmt: skip
ROW_REASON = "one row or column: the other operand, whose lines lie across K, streams once, multiplied by FMA"
_TINY = 1 << 12  #: multiplications of a product that plain loads finish sooner
#: a launch that copies operands, in us, and bytes that it reads and writes in one, within the L2 and beyond
_COPIES = {"fp32": (1.952, 4.518e6, 3.419e6), "fp64": (1.222, 4.013e6, 4.218e6)}
_COPIED_IN_L2 = 40_000_000  #: bytes
_LONG_CHAIN, _LONG_CHAIN_FACTOR = 8192, 1.05  #: K of one chain of sums, whose error decides where times are alike


def _residents(double: bool, tile: tuple[int, int]) -> tuple[int, ...]:
    """CTAs of a tile that an SM may hold at once: what registers allow, or fewer with more stages."""
    if tile == (128, 64) or (double and tile == (64, 64)):
        return (2,)
    return (3,) if not double and tile[1] >= 16 else (2, 4)


def async_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[AsyncConfig]:
    """Every config of `hopper_async` that is worth a thought."""
    double = problem.dtype_a == "fp64"
    size = DTYPE_BYTES[problem.dtype_a]
    for tile in TILES[problem.dtype_a]:
        for swapped in (False,) if tile[0] == tile[1] else (False, True):
            m, n = (problem.n, problem.m) if swapped else (problem.m, problem.n)
            if tile[0] > 2 * max(m, 32) or tile[1] > 2 * max(n, 8) or (tile[1] <= LONG_LINES and n > 2 * tile[1]):
                continue  # mostly empty, or too narrow
            if tile[1] < 8 and n > tile[1]:
                continue
            for slice_bytes in (128, 256) if tile[1] <= LONG_LINES and not double else (128,):
                base = AsyncConfig(
                    block_m=tile[0], block_n=tile[1], block_k=slice_bytes // size, stages=2, swapped=swapped,
                    resident=1,
                )  # fmt: skip
                residents = _residents(double, tile)
                yield from cut(problem, base, gpu, residents, lambda _, tiles: tiles < MOST_ROUNDS * gpu.compute_units)


def is_narrow(problem: MatmulProblem, config: AsyncConfig) -> bool:
    """Whether some of a config's copies are shorter than 16 bytes."""
    return min(config.vectors(problem)) * DTYPE_BYTES[problem.dtype_a] < TMA_BYTES


def cut(
    problem: MatmulProblem, base: AsyncConfig, gpu: Gpu, residents: tuple[int, ...], fits: Callable[[int, int], bool]
) -> Iterator[AsyncConfig]:
    """The config with K in parts of a cluster, in more, or whole, and with the stages that fit.

    fits: whether clusters of so many CTAs are worth it for so many tiles.
    """
    slices, tiles = ceil_div(problem.k, base.block_k), base.ctas(problem)
    stage_bytes, narrow = base.stage_bytes(problem), is_narrow(problem, base)
    for cluster_k in CLUSTERS:
        if cluster_k > 1 and (slices < LEAST_SLICES * cluster_k or not fits(cluster_k, tiles)):
            break
        for resident in residents:
            fitting = resident * gpu.compute_units // (tiles * cluster_k)
            splits = {1}
            if problem.batches == 1 and cluster_k in (1, CLUSTERS[-1]):
                splits |= {
                    s for s in (fitting, fitting // 2) if 1 < s <= MOST_SPLIT and slices >= LEAST_SPLIT * cluster_k * s
                }
            for split_k in sorted(splits):
                of_cta = slices // (cluster_k * split_k)
                stages = min(MOST_STAGES, of_cta + 1, gpu.lds_bytes // resident // stage_bytes)
                if narrow:
                    together = ceil_div(tiles * cluster_k * split_k, gpu.compute_units)
                    if resident != next((held for held in residents if held >= together), residents[-1]):
                        continue
                    stages = min(stages, max(_LEAST_NARROW, _NARROW_RINGS // (min(2, together) * stage_bytes)))
                config = base.with_knobs(
                    cluster_k=cluster_k, split_k=split_k, resident=resident, stages=max(2, stages))
                if config.why_invalid(problem, gpu) is None:
                    yield config


def async_us(problem: MatmulProblem, config: AsyncConfig, gpu: Gpu) -> float:
    """The model's time of `hopper_async`."""
    model, size = _MODELS[problem.dtype_a], DTYPE_BYTES[problem.dtype_a]
    multiplied, parts = config.as_multiplied(problem), config.cluster_k * config.split_k
    slices = ceil_div(ceil_div(problem.k, config.block_k), parts)
    depth = problem.k / parts if problem.dtype_a == "fp32" else slices * config.block_k
    tile = (config.block_m, config.block_n)
    pieces = (tile[0] / multiplied.vector_a + tile[1] / multiplied.vector_b) * config.block_k * slices
    multiplying = tile[0] * tile[1] * depth * model.pace[tile] / model.fma_per_us + pieces * model.piece
    multiplying += tile[0] * tile[1] * size / 1000 * model.store_kb
    loading = sum(tile) * config.block_k * size * slices / model.bytes_per_us

    def together(ctas: int) -> float:
        """So many CTAs of one SM at once."""
        return ((ctas * max(multiplying, loading)) ** 3 + (multiplying * model.alone) ** 3) ** (1 / 3)

    places = config.cluster_k * int(clusters_at_once(config.cluster_k, gpu))
    of_sm = ceil_div(config.ctas(problem), places)
    rounds, rest = divmod(of_sm, config.resident)
    body = rounds * together(config.resident) + (together(rest) if rest else 0) + model.cta * of_sm
    written = problem.m * problem.n * problem.batches * size
    moved = problem.bytes + (model.written - 1) * written
    memory_us = moved / (model.bandwidth_share * gpu.bandwidth_gbs * 1e3)
    time_us = model.launch + (body**4 + memory_us**4) ** 0.25
    if config.cluster_k > 1:
        time_us += model.exchange + model.exchange_peer * config.cluster_k
        time_us += model.exchange_kb * tile[0] * tile[1] * size / 1000
    if config.split_k > 1:
        time_us += model.second + model.second_mb * added_up(config.split_k) * problem.m * problem.n * size / 1e6
    return time_us


def _copies_us(problem: MatmulProblem, config: StreamConfig | PreciseConfig) -> float:
    size = DTYPE_BYTES[problem.dtype_a]
    moved = 0.0
    for copied, matrix, rows in ((config.copy_a, problem.a, problem.m), (config.copy_b, problem.b, problem.n)):
        read = SECTOR_BYTES if matrix.major == "x" else size  # for each element
        moved += copied * rows * problem.k * (size + read)
    if not moved:
        return 0.0
    launch_us, in_l2, beyond = _COPIES[problem.dtype_a]
    moved *= problem.batches
    copied_us = min(moved, _COPIED_IN_L2) / in_l2 + max(moved - _COPIED_IN_L2, 0) / beyond
    return copied_us + launch_us


def by_tma(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[StreamConfig | PreciseConfig, float]]:
    """What TMA feeds, with estimates."""
    if problem.dtype_a == "fp32":
        for streamed in stream_configs(problem, gpu):
            yield streamed, streamed_us(problem, streamed, gpu)
        return
    for config in precise_configs(problem, gpu):
        yield config, precise_us(problem, config, gpu)


def precise_us(problem: MatmulProblem, config: PreciseConfig, gpu: Gpu) -> float:
    """The model's time of `hopper_precise`, with its copies."""
    each = problem.one_product() if config.one_by_one(problem) else problem
    time_us = config_precise.estimate_us(each, config, gpu) * (problem.batches // each.batches)
    return time_us + _copies_us(problem, config)


def streamed_us(problem: MatmulProblem, config: StreamConfig, gpu: Gpu) -> float:
    """The model's time of `hopper_stream`, with its copies."""
    each = problem.one_product() if config.one_by_one(problem) else problem
    time_us = config_stream.estimate_us(each, config, gpu) * (problem.batches // each.batches)
    time_us *= _LONG_CHAIN_FACTOR if problem.k > _LONG_CHAIN * config.split_k else 1
    return time_us + _copies_us(problem, config)


def wide_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """Configs of FP32 and FP64 in full precision, the shortest estimate first, with the reason."""
    if problem.m * problem.n * problem.k <= _TINY:
        return
    if (row := stream_row(problem, gpu)) is not None:
        yield row, ROW_REASON
    found: list[tuple[float, MatmulConfig, str]] = [
        (async_us(problem, config, gpu), config, "operands where they lie, by asynchronous copies")
        for config in async_configs(problem, gpu)
    ]
    words = f"{'fp32 by FMA' if problem.dtype_a == 'fp32' else 'fp64 by matrix instructions'}, operands through a ring"
    found += [(time_us, config, words) for config, time_us in by_tma(problem, gpu)]
    for time_us, config, reason in sorted(found, key=lambda item: item[0]):
        yield config, f"{reason}; shortest estimate, {time_us:.1f} us"
