"""The time of a product by tiles on Hopper: what `plan_hopper` and `plan_cluster` rank their configs by. Pure.

For each K-slice of 128 bytes a tile takes the longest of multiplying, of loading and of what the tensor cores and the
copy engine ask of shared memory. A tile is its slices and a beginning and an end; a product is as many tiles as the
busiest SM walks over, or the time of its bytes in device memory, and where both are near each other, more than either.

Fitted on one H200, 2026-11-20, to the 1491 pairs of product and config in results/h200/tiles.csv (44 sizes, layouts NN
and NT): of what the plan offers and was measured, the config that the model prefers is 0.7% slower than the fastest,
on average. docs/hopper-gemm.md has the facts behind the terms.
"""

from __future__ import annotations

from ...gpu import Gpu
from .problem import MatmulProblem

SLICE_BYTES = 128  #: of a row, in one K-slice
CLOCKS_PER_US = 1900  #: near the boost clock; long products run slower, all alike
MMA_BYTES_PER_CLOCK = 4096  #: rows x columns x bytes of a slice that the tensor cores take in one clock
ROW_CLOCKS = 2.02  #: for 128 bytes of a row that an SM asks the L2 for
SHARED_ROW_CLOCKS = 1.92  #: for those that a neighbour in the cluster asks for and multicasts
SECTOR_BYTES = 32
BROKEN_FACTOR = 1.64  #: on rows whose pitch is no multiple of a sector: every other one takes two requests
SHARED_MEMORY_FACTOR = 0.94  #: on the clocks in which shared memory passes 128 bytes each
WRITE_FACTOR = 0.22  #: of the copy engine's writes, that do not hide behind the tensor cores' reads
TILE_CLOCKS = 800
CONSUMER_CLOCKS = 230  #: more to start and to finish, for a second consumer
STORE_CLOCKS = 2000 / (128 * 256)  #: for each element of a tile
CUDA_CLOCKS = 880  #: more for a tile of hopper_cluster than of hopper
CLUSTER_CLOCKS = 550  #: more where CTAs meet and signal each other
NARROW_FACTOR = 1.02  #: on tiles of less than WIDE_TILE elements: more bytes moved, and power, for the same sums
WIDE_TILE = 128 * 256
GLUON_FACTOR = 1.01  #: on the slices of hopper
MEMORY_BYTES_PER_US = 4.1e6
REREAD_SHARE = 0.06  #: of B, on top of its bytes, where two tiles read it for up to 128 rows
MEMORY_US = 1.5  #: until the first bytes come
SHARPNESS = 3.2  #: of the maximum of both times
#: SMs that clusters of a size fill together on one H200: its parts of the chip have 16 or 18 SMs, and one has fewer
SMS_IN_CLUSTERS = {1: 132, 2: 132, 4: 120, 8: 120}


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def slice_clocks(
    m: int, n: int, *, columns: int, cluster: tuple[int, int], factors: tuple[float, float], pieces: int
) -> float:
    """Clocks of one slice of an m x n tile.

    columns: of B that are loaded. cluster: CTAs that share B, and A. factors: on loading A's and B's rows. pieces: of
    each operand, all in one slice.
    """
    products = pieces * (pieces + 1) // 2
    multiply = m * n * SLICE_BYTES * products / MMA_BYTES_PER_CLOCK
    own_a, own_b = m / cluster[1], columns / cluster[0]
    load = (own_a * factors[0] + own_b * factors[1]) * ROW_CLOCKS
    load += (m - own_a + columns - own_b) * SHARED_ROW_CLOCKS
    reads = (m + m * n / 64) * products  # of each strip of 64 rows: its own and all of B
    memory = (reads + WRITE_FACTOR * (m + columns) * pieces) * SHARED_MEMORY_FACTOR
    return max(multiply, load * pieces, memory)


def product_us(
    problem: MatmulProblem, gpu: Gpu, size: int, tile: tuple[int, int], *, columns: int = 0,
    cluster: tuple[int, int] = (1, 1), factors: tuple[float, float] = (1.0, 1.0), pieces: int = 1, split_k: int = 1,
    cuda: bool = False,
) -> float:  # fmt: skip
    """Microseconds of a product, or of all of a batch in one launch, by `tile`, whose operands have `size` bytes.

    columns, cluster, factors, pieces: as in `slice_clocks`. cuda: by hopper_cluster, not hopper. Copies of operands and
    the sum of a split K's parts are not in it.
    """
    m, n = tile
    peers = cluster[0] * cluster[1]
    tiles = ceil_div(problem.m, m * cluster[0]) * ceil_div(problem.n, n * cluster[1]) * split_k
    if cuda:
        tiles *= problem.batches
    rounds = ceil_div(tiles, SMS_IN_CLUSTERS[peers] * gpu.compute_units // 132 // peers)
    slices = ceil_div(ceil_div(problem.k * size, SLICE_BYTES), split_k)
    clocks = slice_clocks(m, n, columns=columns or n, cluster=cluster, factors=factors, pieces=pieces)
    clocks *= slices * (1.0 if cuda else GLUON_FACTOR) * (NARROW_FACTOR if m * n < WIDE_TILE else 1.0)
    clocks += TILE_CLOCKS + STORE_CLOCKS * m * n + (CONSUMER_CLOCKS if m > 64 else 0)
    clocks += (CUDA_CLOCKS if cuda else 0) + (CLUSTER_CLOCKS if peers > 1 else 0)
    compute = rounds * clocks / CLOCKS_PER_US
    moved = problem.bytes / (1 if cuda else problem.batches)
    if m * cluster[0] < problem.m <= 128:
        moved += REREAD_SHARE * problem.n * problem.k * size
    moved = moved / MEMORY_BYTES_PER_US + MEMORY_US
    less, more = sorted((compute, moved))
    return more * (1 + (less / more) ** SHARPNESS) ** (1 / SHARPNESS)
