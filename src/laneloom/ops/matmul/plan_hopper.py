"""Which schedule a product runs as on Hopper. Pure: a table of tiles, ranked by `model_hopper`, and a few rules for
products with one short side; docs/hopper-gemm.md has what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from ...gpu import Gpu
from .config import MatmulConfig, plan
from .config_async import AsyncConfig
from .config_cluster import ClusterConfig
from .config_hopper import (
    PLAIN_DTYPES,
    WGMMA_DTYPES,
    HopperConfig,
    PlainConfig,
    SkinnyConfig,
    tma_reads,
    tma_writes,
)
from .config_precise import PreciseConfig
from .config_registers import PIECES, RegistersConfig, cluster_us, in_registers
from .config_row import RowConfig, stream_row
from .config_rows import RowsConfig, stream_rows
from .config_stream import StreamConfig
from .dtypes import HALVES
from .model_hopper import H200, SLICE_BYTES, Rows, boxes_of, ceil_div, compared_as, constants_of, product_us, rows_of
from .plan_batch import LYING, batch_configs
from .plan_blocks import scaled_configs
from .plan_cluster import best_cluster, cluster_parts, likely_configs, own_estimate, tiles_of
from .plan_cluster import estimate_us as cluster_us_of
from .plan_few import LEAST_LONG, few_configs, is_few
from .plan_half import half_best
from .plan_rows import one_row
from .plan_short import is_short
from .plan_wide import ROW_REASON, wide_configs
from .problem import DTYPE_BYTES, MatmulProblem

CONFIGS: dict[str, type[MatmulConfig]] = {
    "hopper": HopperConfig, "hopper_skinny": SkinnyConfig, "hopper_plain": PlainConfig,
    "hopper_cluster": ClusterConfig, "hopper_precise": PreciseConfig, "hopper_registers": RegistersConfig,
    "hopper_stream": StreamConfig, "hopper_row": RowConfig,
    "hopper_rows": RowsConfig, "hopper_async": AsyncConfig,
}  # fmt: skip

WIDE_SLICE_FACTOR = 1.063  #: on the time with slices of 256 bytes
LAUNCH_US = 1.59
REPACK_US = 1.218  #: the product waits for the whole copy
REPACK_BYTES_PER_US = 4.375e6  #: read and written
PART_US = 0.1019  #: for each part of a split K that the reduction waits for
PART_US_PER_MB = 0.5208  #: writing and reading again the fp32 parts of a split K
SHORT_SLICES = 4  #: of 256 bytes: with more stages fewer programs fit an SM
SPLIT_K = 4096  #: from here on a few tiles of 16 bits want more parts of K than a cluster has
STREAMED_ROWS = 32  #: up to here the short side becomes wgmma's N, and the long side its 64 rows
SKINNY_ROWS = 64  #: up to here a long K may be worth a launch of its own for an epilogue
TERMS_US, MOST_FUSED_ROW = 3.0, 200e6  #: that launch; bytes of a product of one row of 16 bits
#: up to here one launch of plain loads beats repacking; it takes 1.5 us for each 128 of K
SMALL_MULTIPLICATIONS, SMALL_K = 4 << 20, 384
ROWS_REASON = "few rows or columns: the other operand streams through registers, past mma"
ROW_ALONG_K = "one row or column: the other operand is read once, along K, and multiplied by FMA"
BATCH_MULTIPLICATIONS = 1 << 28  #: a product of a batch that is worth a launch of its own
STREAMED_ELEMENTS = 1 << 20  #: of an operand, from which on what streams it needs no estimate; twice where it is copied
#: elements of a load, and of an operand, from which on it streams through registers past few rows
STREAMED_VECTOR, NARROW_ELEMENTS = 4, 1 << 25
#: beside loads of 8 bytes: 64 by 4100 x 4096 by hopper_rows 33 us, by hopper_async 17; 44 by 13960 x 1444 26 and 37
#: (one H200, 2026-11-28)
CROWDED_ROWS = 48
LEAST_OF_ROUND = 0.4  #: of the CTAs of one row that the SMs hold
LEAST_SIDE, LEAST_SHORT_K = 32, 3 << 20  #: sides, and elements of C, from which on a K of one slice is `_short_k`'s


@dataclass(frozen=True)
class Tile:
    """A tile shape and what was best with it."""

    m: int
    n: int
    consumers: int
    stages: int
    pieces: int
    slice_bytes: int = SLICE_BYTES


#: In the order in which equal costs are resolved.
TILES = (
    Tile(128, 128, 2, 5, 2),
    Tile(128, 256, 2, 4, 2),
    Tile(256, 128, 2, 4, 2),
    Tile(64, 256, 1, 4, 2),
    Tile(128, 64, 2, 8, 1),
    Tile(64, 128, 1, 8, 1),
    Tile(64, 64, 1, 6, 1, slice_bytes=256),
)
#: what the model misses: on the time of a slice, and on that of multiplying by parts of K that all run at once
SLICE_FACTORS = {
    (128, 128): 1.205, (128, 256): 0.9822, (256, 128): 1.096, (64, 256): 1.036, (128, 64): 1.294, (64, 128): 1.132,
    (64, 64): 0.9534,
}  # fmt: skip
SPLIT_FACTORS = {
    (128, 128): 0.6998, (128, 256): 1.03, (256, 128): 0.9831, (64, 256): 0.9337, (128, 64): 0.5563, (64, 128): 1.005,
    (64, 64): 0.9806,
}  # fmt: skip
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)


def estimate_us(
    problem: MatmulProblem, tile: Tile, split_k: Any, gpu: Gpu, *, repack_a: bool = False, repack_b: bool = False
) -> Any:
    """The model's time of one product, in microseconds; split_k: a number, or an array of several."""
    size = DTYPE_BYTES[problem.dtype_a]
    rows = rows_of(problem.a, size, repack_a), rows_of(problem.b, DTYPE_BYTES[problem.dtype_b], repack_b)
    fitting = gpu.compute_units // (ceil_div(problem.m, tile.m) * ceil_div(problem.n, tile.n))
    time_us = product_us(
        problem, gpu, size, (tile.m, tile.n), rows=rows, split_k=split_k,
        boxes=boxes_of(tile.m, problem.a.major == "n") + boxes_of(tile.n, problem.b.major == "t"),
        stages=tile.stages * tile.slice_bytes // SLICE_BYTES, slice_factor=SLICE_FACTORS[tile.m, tile.n],
        by_tma=(split_k > 1) | tma_writes(problem),
        factor=np.where(
            (split_k > 1) & (split_k <= fitting) & (Rows.BROKEN not in rows), SPLIT_FACTORS[tile.m, tile.n], 1.0),
    )  # fmt: skip
    if tile.slice_bytes > SLICE_BYTES:
        time_us *= WIDE_SLICE_FACTOR
    reduction = LAUNCH_US + split_k * (PART_US + PART_US_PER_MB * problem.m * problem.n * 4e-6)
    time_us += np.where(split_k > 1, reduction, 0.0)
    copied = repack_a * problem.m * problem.k + repack_b * problem.k * problem.n
    return time_us + (REPACK_US + 2 * copied * size / REPACK_BYTES_PER_US if copied else 0.0)


def tiled(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[HopperConfig, float]]:
    """Every tile and split with its estimate; what TMA cannot read is copied."""
    size = DTYPE_BYTES[problem.dtype_a]
    copy_a, copy_b = (not tma_reads(problem, name) for name in "ab")
    writes, shared = tma_writes(problem), compared_as(gpu)
    for tile in TILES:
        if problem.dtype_a == "int8" and tile.n > 128:
            continue
        if tile.m >= 2 * max(problem.m, 64) or tile.n >= 2 * max(problem.n, 64):
            continue  # half of it would be empty, and rows that are not there take the copy engine longest
        slices = ceil_div(problem.k * size, tile.slice_bytes)
        splits = [split_k for split_k in SPLITS if split_k <= max(1, slices // 4)]
        times = estimate_us(problem, tile, np.array(splits), shared, repack_a=copy_a, repack_b=copy_b)
        for split_k, time_us in zip(splits, times.tolist(), strict=True):
            by_tma = writes or split_k > 1
            # The pointer epilogue keeps addresses beside the accumulators: smaller pieces leave it registers.
            pieces = tile.pieces if by_tma else min(4, tile.n // 16)
            config = HopperConfig(
                block_m=tile.m, block_n=tile.n, block_k=tile.slice_bytes // size, stages=tile.stages,
                consumers=tile.consumers, pieces=pieces, split_k=split_k, tma_store=by_tma, repack_a=copy_a,
                repack_b=copy_b, programs=gpu.compute_units,
            )  # fmt: skip
            yield _fit(config, problem, gpu), time_us


def _fit(config: HopperConfig, problem: MatmulProblem, gpu: Gpu) -> HopperConfig:
    """The config with smaller pieces, then fewer stages, until it fits the shared memory."""
    room = gpu.lds_bytes
    while config.shared_bytes(problem) > room and config.pieces < 4 and config.block_n // config.pieces > 16:
        config = config.with_knobs(pieces=config.pieces * 2)
    while config.shared_bytes(problem) > room and config.stages > 2:
        config = config.with_knobs(stages=config.stages - 1)
    return config


def _streams(problem: MatmulProblem) -> bool:
    """Whether a short side is best streamed by `long_side`; what `plan_few` takes does not come here."""
    short, long = sorted((problem.m, problem.n))
    if not ((short <= STREAMED_ROWS and 4 * short <= long) or short <= 16):
        return False
    if problem.dtype_a in HALVES:
        return long < LEAST_LONG and problem.k >= SPLIT_K
    return problem.dtype_a not in ("fp8", "bf8") or not tma_writes(problem)


def long_side(problem: MatmulProblem, gpu: Gpu) -> HopperConfig:
    """A short side of at most STREAMED_ROWS: the long one takes wgmma's 64 rows, and its operand streams."""
    swapped = problem.m <= problem.n
    short, long = sorted((problem.m, problem.n))
    size = DTYPE_BYTES[problem.dtype_a]
    tiles = ceil_div(long, 64)
    block_k = 2 * SLICE_BYTES // size
    slices = ceil_div(problem.k, block_k)
    # Three programs fit an SM with 4 stages. Fewer tiles than SMs need longer rings, or parts of K, to fill the memory.
    filled = tiles / gpu.compute_units
    if slices <= SHORT_SLICES and filled > 0.85:
        stages, split_k = 3, 1
    elif filled >= 2:
        stages, split_k = 4, 1
    elif filled <= 0.25:
        stages, split_k = 6, min(64, gpu.compute_units // tiles, max(1, slices // 4))
    elif filled <= 0.5 or filled > 1:
        stages, split_k = 8, 1
    elif filled > 0.85:
        stages, split_k = 6, 1
    else:
        stages, split_k = 4, min(2, slices)
    return _fit(
        HopperConfig(
            block_m=64, block_n=max(16, 1 << (short - 1).bit_length()), block_k=block_k, stages=stages, consumers=1,
            split_k=split_k, pieces=1, tma_store=False, swapped=swapped,
            programs=gpu.compute_units * (3 if stages == 4 else 2), max_registers=128,
        ),
        problem, gpu,
    )  # fmt: skip


def _plain(problem: MatmulProblem) -> PlainConfig:
    """Tiles for masked loads: small ones for small products."""
    size = DTYPE_BYTES[problem.dtype_a]
    if problem.m * problem.n * problem.k <= 1 << 12:
        return PlainConfig(block_m=16, block_n=16, block_k=32 if size == 1 else 16, num_warps=4, stages=1)
    if problem.m * problem.n <= 1 << 16:
        return PlainConfig(block_m=32, block_n=32, block_k=256 // size, num_warps=4, stages=2)
    if problem.dtype_a == "fp32":
        return PlainConfig(block_m=64, block_n=128, block_k=16, num_warps=8, stages=3)
    if size > 2:
        return PlainConfig(block_m=32, block_n=32, block_k=256 // size, num_warps=4, stages=2)
    return PlainConfig(block_m=64, block_n=64, block_k=64, num_warps=4, stages=3)


@lru_cache(maxsize=4096)
def fuses_epilogue(problem: MatmulProblem, gpu: Gpu) -> bool:
    """Whether a schedule that applies the problem's epilogue beats a bare one and a launch for the terms: not for few
    rows and a K whose parts are worth two launches, nor for one row of 16 bits that others stream faster. Of 150
    products of 1 to 64 rows on one H100 (2026-11-27) one launch takes 0.46 to 1.02 of two.
    """
    if problem.adds_blocks:
        return bool(scaled_configs(problem, gpu))
    best = best_cluster(problem, gpu)
    rows, size = min(problem.m, problem.n), DTYPE_BYTES[problem.dtype_a]
    if best is None or rows > SKINNY_ROWS or problem.k <= 1024:
        return best is not None
    sums = problem.of_sums()
    bare = plan(sums, gpu)
    if getattr(bare, "split_k", 1) > 1:
        return best[1] <= TERMS_US + min(time_us for _, time_us in (*cluster_parts(sums, gpu), *tiled(sums, gpu)))
    if isinstance(bare, ClusterConfig) or size != 2 or rows > 1:
        return isinstance(bare, ClusterConfig) or size <= 2
    return sums.bytes <= MOST_FUSED_ROW and best[1] <= 2e-3 * sums.bytes / compared_as(gpu).bandwidth_gbs + TERMS_US


def _wide_types(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """For FP32 and FP64."""
    if problem.precision == "ieee":
        yield from wide_configs(problem, gpu)
        yield _plain(problem), "takes any strides"


def _on_tensor_cores(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """For FP32 in another precision."""
    found: list[tuple[float, MatmulConfig, str]] = []
    if (best := in_registers(problem, gpu)) is not None:
        found.append((best[1], best[0], "an operand in registers"))
    if (best := best_cluster(problem, gpu)) is not None:
        estimate = cluster_us(problem, *best) if problem.precision in PIECES else best[1]
        found.append((estimate, best[0], "both operands in shared memory"))
    for time_us, config, reason in sorted(found, key=lambda item: item[0]):
        yield config, f"fp32 in precision {problem.precision}, {reason}; shortest estimate, {time_us:.1f} us"


def _told_us(problem: MatmulProblem, config: MatmulConfig, time_us: float, gpu: Gpu) -> float:
    """An estimate as it is told: not by the memory that schedules are compared by, where this product has its own."""
    if not isinstance(config, ClusterConfig) or config.split_k > 1 or compared_as(gpu) == gpu:
        return time_us
    if own := own_estimate(problem, gpu):
        return own[1](problem, config, gpu)
    return float(cluster_us_of(problem, config, tiles_of([config]), gpu)[0])


def _cluster(problem: MatmulProblem, gpu: Gpu, reason: str) -> Iterator[tuple[MatmulConfig, str]]:
    best = best_cluster(problem, gpu)
    if best is not None:
        yield best[0], f"{reason}; shortest estimate, {_told_us(problem, *best, gpu):.1f} us"


def _batch(problem: MatmulProblem, gpu: Gpu, in_place: bool) -> Iterator[tuple[MatmulConfig, str]]:
    """What takes a whole batch by one launch."""
    found = batch_configs(problem, gpu, in_place)
    multiplications = problem.m * problem.n * problem.k
    if not in_place and multiplications >= BATCH_MULTIPLICATIONS:
        each = problem.one_product()
        valid = (time_us for config, time_us in tiled(each, gpu) if config.why_invalid(problem, gpu) is None)
        alone_us = problem.batches * min(valid, default=math.inf)
        found = [item for item in found if item[1] < alone_us]
    for config, time_us, reason in found:
        yield config, f"{reason}; shortest estimate, {time_us:.1f} us"
    if multiplications < BATCH_MULTIPLICATIONS:
        yield _plain(problem), "many small products: one launch takes them all"


def _streaming(problem: MatmulProblem, gpu: Gpu, in_place: bool, lying: bool) -> Iterator[tuple[MatmulConfig, str]]:
    """What streams one operand past a few rows or columns of the other; not what `lying` does better, as 20 products on
    one H100 said (2026-11-26): rows that come 2 or 4 bytes at a time unless there are many, copies of the long side."""
    longest = max(problem.m, problem.n)
    vector = problem.vector_b if problem.n == longest else problem.vector_a
    narrow = lying and vector < STREAMED_VECTOR and longest * problem.k < NARROW_ELEMENTS
    crowded = lying and vector == STREAMED_VECTOR and min(problem.m, problem.n) > CROWDED_ROWS
    if not narrow and not crowded and (rows := stream_rows(problem, gpu)) is not None:
        yield rows, ROWS_REASON
    if problem.dtype_a in ("bf16", "fp16") and (skinny := one_row(problem, gpu)) is not None:
        yield skinny, ROW_ALONG_K
    if (row := stream_row(problem, gpu)) is not None:
        yield row, ROW_REASON
    if in_place and _streams(problem):
        yield long_side(problem, gpu), "one short side: the operand of the long one streams past the tensor cores"


def _is_even(problem: MatmulProblem, row: RowConfig, gpu: Gpu) -> bool:
    """Whether rows of B are whole lines and no few CTAs are left for a last round of two an SM: else hopper_cluster is
    14 to 24% faster (18 products on one H200, 2026-11-29)."""
    at_once = 2 * gpu.compute_units
    rounds, left = divmod(row.ctas(problem), at_once)
    return problem.n % 64 == 0 and (rounds == 0 or left == 0 or left >= LEAST_OF_ROUND * at_once)


def _few(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """What few rows or columns run as where TMA reads both operands."""
    if (row := stream_row(problem, gpu)) is not None and (problem.n == 1 or _is_even(problem, row, gpu)):
        yield row, ROW_REASON
    if (rows := stream_rows(problem, gpu)) is not None:
        yield rows, ROWS_REASON
    if problem.dtype_a in HALVES and (skinny := one_row(problem, gpu)) is not None:
        yield skinny, ROW_ALONG_K
    for config, time_us in islice(few_configs(problem, gpu), 6):
        yield config, f"few rows or columns: all SMs read the other operand, once; shortest estimate, {time_us:.1f} us"


def candidates(problem: MatmulProblem, gpu: Gpu) -> Iterator[tuple[MatmulConfig, str]]:
    """Configs for the problem with the reason for their place, best first."""
    if problem.adds_blocks:
        for config, time_us in scaled_configs(problem, gpu)[:8]:
            yield config, f"sums leave the tensor cores every slice; shortest estimate, {time_us:.1f} us"
        return
    if problem.epilogue:
        yield from _cluster(problem, gpu, "applies the epilogue to the sums in registers")
    if problem.dtype_a in ("fp32", "fp64"):
        yield from _wide_types(problem, gpu)
        yield from _on_tensor_cores(problem, gpu)
        return
    if is_few(problem):
        yield from _few(problem, gpu)
    if is_short(problem, gpu):
        for config, time_us in sorted(likely_configs(problem, gpu, True), key=lambda pair: pair[1]):
            told_us = _told_us(problem, config, time_us, gpu)
            yield config, f"few rows, columns or tiles; shortest estimate, {told_us:.1f} us"
    multiplications = problem.m * problem.n * problem.k
    movable = problem.dtype_a in WGMMA_DTYPES and "x" not in problem.layout
    in_place = movable and tma_reads(problem, "a") and tma_reads(problem, "b")
    lying = half_best(problem, gpu) if problem.batches == 1 else []
    if problem.batches > 1:
        yield from _batch(problem, gpu, in_place)
    small = multiplications <= SMALL_MULTIPLICATIONS and (problem.k <= SMALL_K or min(problem.m, problem.n) == 1)
    if movable and (in_place or not small):
        one_slice = problem.k * DTYPE_BYTES[problem.dtype_a] == SLICE_BYTES
        thin = min(problem.m, problem.n) < LEAST_SIDE and bool(lying)
        one_slice = one_slice and in_place and tma_writes(problem)
        if one_slice and problem.m * problem.n >= LEAST_SHORT_K and not thin:
            yield _short_k(problem, gpu), "K of one slice: two programs an SM, so that one stores while the other loads"
        if not lying or max(problem.m, problem.n) * problem.k >= STREAMED_ELEMENTS * (1 if in_place else 2):
            yield from _streaming(problem, gpu, in_place, bool(lying))
        clusters = likely_configs(problem, gpu, in_place) if problem.batches == 1 else []
        few = min(problem.m, problem.n) <= SKINNY_ROWS and constants_of(gpu) is not H200
        # hopper_cluster is faster where lanes store C, 1.13 on average of 36 products, and behind copies, 1.10 of 121
        # (one H200, 2026-11-28).
        alone = bool(clusters) and (few or not tma_writes(problem) or not in_place)
        tiles = () if alone else tiled(problem, gpu)
        for config, time_us in sorted((*tiles, *clusters, *lying), key=lambda pair: pair[1])[:6]:
            yield config, f"shortest estimate, {_told_us(problem, config, time_us, gpu):.1f} us"
    for config, time_us in lying:
        yield config, f"{LYING}; shortest estimate, {time_us:.1f} us"
    if not movable or not in_place or DTYPE_BYTES[problem.dtype_a] == 1:
        plain = problem.dtype_a in PLAIN_DTYPES and problem.dtype_b == problem.dtype_a
        large = multiplications > SMALL_MULTIPLICATIONS or not plain
        if large and problem.dtype_a != "fp16" and problem.dtype_a != "bf16":
            yield from _cluster(problem, gpu, "operands that wgmma takes along K only, copied so")
    yield _plain(problem), "takes any strides"


def _short_k(problem: MatmulProblem, gpu: Gpu) -> HopperConfig:
    size = DTYPE_BYTES[problem.dtype_a]
    tall = problem.m * problem.n > 128 * 64 * gpu.compute_units
    return _fit(
        HopperConfig(
            block_m=128 if tall else 64, block_n=64, block_k=SLICE_BYTES // size, stages=3, consumers=1, pieces=1,
            tma_store=True, programs=2 * gpu.compute_units, max_registers=128,
        ),
        problem, gpu,
    )  # fmt: skip
