"""The time of a product by tiles on Hopper: what `plan_hopper` and `plan_cluster` rank their configs by. Pure.

What a config chooses may be a number or an array of numbers, of many configs at once: a plan ranks thousands.

For each K-slice of 128 bytes a tile takes the longest of multiplying, of loading, of what the tensor cores and the
copy engine ask of shared memory, and of a slice's latency over the slices under way. A tile is its slices and a
beginning and an end; a product is as many tiles as the busiest SM walks over, or the time of its bytes in device
memory, and where both are near each other, more than either.

Fitted on one H200 by a random walk to 17,000 pairs of product and config, results/h200/tiles*.csv, of 2026-11-22 to 24;
bench/model_fit.py is such a walk. tests/cpu/test_hopper_model.py says how well, docs/hopper-gemm.md has the facts
behind the terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gpu import Gpu
from .problem import MatmulProblem

SLICE_BYTES = 128  #: of a row, in one K-slice
CLOCKS_PER_US = 1900  #: near the boost clock
MMA_BYTES_PER_CLOCK = 4096  #: rows x columns x bytes of a slice that the tensor cores take in one clock
ROW_CLOCKS = 1.731  #: for 128 bytes of a row that an SM asks the L2 for
SHARED_ROW_CLOCKS = 1.377  #: for those that a neighbour in the cluster asks for and multicasts
LINE_BYTES, SECTOR_BYTES = 128, 32
LINE_FACTOR = 1.128  #: on rows whose pitch is no multiple of a line
BROKEN_FACTOR = 2.038  #: on rows whose pitch is no multiple of a sector: every other one takes three or four requests
MISSING_FACTOR = 3.319  #: on rows that are not there, of an operand that has less than a tile
TAIL_COLUMNS = 58  #: of B, where it is not contiguous along K: what the part of a panel of 64 costs to load
BOX_CLOCKS = 6.652  #: more to load a slice, for each box: one of an operand contiguous along K, else one for 64 rows
SHARED_MEMORY_FACTOR = 1.331  #: on the clocks in which shared memory passes 128 bytes each
LATENCY_CLOCKS = 1356.0  #: until a slice that is asked for is there
BUSY_STAGES = 1.124  #: of the ring, in which no slice is under way
LATENCY_SHARPNESS = 4.307  #: of the maximum of a slice's own time and of this one, shared out among them
LAUNCH_CLOCKS = 3377.0  #: once in a product, before and behind all tiles
TILE_CLOCKS = 52.84  #: a tile's beginning and end, beside its stores
STORE_CLOCKS = 0.04935  #: for each element of a tile
CLUSTER_CLOCKS = 186.6  #: more where CTAs meet, once
#: more to load a slice, for each doubling of the CTAs that share B, and that share A
SHARED_B_CLOCKS, SHARED_A_CLOCKS = 0.7544, 12.27
LEAST_CLOCKS = 192.9  #: of a slice, which the producer takes to ask for it
ONE_FACTOR = 0.9692  #: on the slices of CTAs that have one consumer each
#: on the slices of those that share loads, and of those that share both operands
SHARED_BY_ONE_FACTOR, SHARED_BOTH_FACTOR = 1.024, 1.031
EIGHT_FACTOR = 1.029  #: on the slices of clusters of 8
SWAPPED_FACTOR = 0.9908  #: on the slices of C^T = B^T A^T
SWAPPED_STORE_CLOCKS = 0.02672  #: more for each element of a tile that is turned on its way out
PROMOTE_CLOCKS = 150  #: of a slice, in which a single consumer's sums leave the tensor cores and nothing multiplies
DIRECT_CLOCKS = 0.02878  #: more for each element of a tile that hopper_cluster stores by masks
GLUON_DIRECT_CLOCKS = 0.001859  #: the same, by hopper
SCATTERED_CLOCKS = 0.253  #: more for each of them where C's rows do not begin at 16 bytes
EXCHANGE_CLOCKS = 153.6  #: more where they exchange sums of parts of K, for each further part
EXCHANGE_BYTES_PER_CLOCK = 7.797  #: that a CTA sends then
CUDA_CLOCKS = 131.1  #: more for each tile of hopper_cluster but the first, than for one of hopper
#: more where tiles have two widths: the last of the wide ones is written while nothing multiplies
UNEVEN_CLOCKS = 2111.0
HIDDEN_HELD, HIDDEN_SPLIT = 0.2478, 0.5297  #: shares of a tile's ends that the next tile hides: of one strip, of two
LONE_FACTOR = 1.007  #: on LONG_US or more, by CTAs that share no loads
#: on LONG_US or more, by pairs of CTAs that share what has the fewer rows of a tile: they ask the L2 for more
SMALL_SHARE_FACTOR = 1.009
UNUSUAL_FACTOR = 1.024  #: on LONG_US or more, where power is the limit, by all tiles but those of WIDE_TILE elements
LONG_US, WIDE_TILE = 80.0, 128 * 256
GLUON_FACTOR = 1.037  #: on the slices of hopper
MEMORY_BYTES_PER_US = 4.829e6  #: read
#: of an operand, on top of its bytes, for the next clusters that read it, and so many times that at most: others find
#: it in the L2
REREAD_SHARE, MOST_REREADS = 0.5792, 2.0
#: on the time of memory where 4 CTAs or more ask for neighbouring lines of the larger operand together, and CTAs are on
#: so many of the SMs
LOCKSTEP_FACTOR, IN_STEP_SHARE = 0.9051, 0.7
#: on the time of memory, by CTAs that share the operand with more rows, or only the other; for each doubling of those
#: that have parts of K; of C^T = B^T A^T
SHARED_LARGER_TIME, SHARED_SMALLER_TIME, PARTS_MEMORY_TIME, SWAPPED_MEMORY_TIME = 0.9962, 1.025, 1.045, 1.011
SM_BYTES_PER_US = 54420.0  #: from memory, that one SM reads: what its copy engine has in flight, over the latency
SHARPNESS = 4.511  #: of the maximum of these times
#: SMs that clusters of a size fill together on one H200: its parts of the chip have 16 or 18 SMs, and one has fewer
SMS_IN_CLUSTERS = {1: 132, 2: 132, 4: 120, 8: 120}
_SMS = np.array([SMS_IN_CLUSTERS.get(peers, 0) for peers in range(9)])


def ceil_div(x: Any, y: Any) -> Any:
    """x / y, rounded up."""
    return -(-x // y)


def loaded_columns(n: Any, in_panels: bool) -> Any:
    """What the columns of B of a tile cost to load, in whole ones; `in_panels` of 64, of which a part is dear."""
    return np.where(n % 64, n - n % 64 + np.maximum(n % 64, TAIL_COLUMNS), n) if in_panels else n


def boxes_of(rows: Any, along_k: bool) -> Any:
    """The copy engine's, for a slice of so many rows of A or columns of B."""
    return 1 if along_k else ceil_div(rows, 64)


def row_factor(pitch_bytes: int) -> float:
    """On the clocks to load a row, of a matrix whose rows lie so far apart."""
    if pitch_bytes % SECTOR_BYTES:
        return BROKEN_FACTOR
    return LINE_FACTOR if pitch_bytes % LINE_BYTES else 1.0


def clusters_at_once(peers: Any, gpu: Gpu) -> Any:
    """Clusters of so many CTAs, one on an SM, that the GPU has room for."""
    return _SMS[peers] * gpu.compute_units // 132 // peers


def slice_clocks(
    m: Any, n: Any, *, columns: Any, boxes: Any, cluster: tuple[Any, Any], factors: tuple[float, float], pieces: int,
    missing: Any = 0.0,
) -> Any:  # fmt: skip
    """Clocks of one slice of an m x n tile.

    columns: of B that are loaded. boxes: that both operands come in. cluster: CTAs that share B, and A. factors: on
    loading A's and B's rows. pieces: of each operand, all in one slice. missing: what rows that are not there cost more
    than others, in rows.
    """
    products = pieces * (pieces + 1) // 2
    multiply = m * n * SLICE_BYTES * products / MMA_BYTES_PER_CLOCK
    own_a, own_b = m / cluster[1], columns / cluster[0]
    load = (own_a * factors[0] + own_b * factors[1] + missing) * ROW_CLOCKS
    load += (m - own_a + columns - own_b) * SHARED_ROW_CLOCKS
    load += BOX_CLOCKS * boxes + SHARED_B_CLOCKS * np.log2(cluster[0]) + SHARED_A_CLOCKS * np.log2(cluster[1])
    reads = (m + m * n / 64) * products  # of each strip of 64 rows: its own and all of B
    longest = np.maximum(np.maximum(multiply, load * pieces), np.maximum(reads * SHARED_MEMORY_FACTOR, LEAST_CLOCKS))
    return longest + (PROMOTE_CLOCKS * (m == 64) if pieces > 1 else 0)


def product_us(
    problem: MatmulProblem, gpu: Gpu, size: int, tile: tuple[Any, Any], *, stages: Any, boxes: Any, columns: Any = None,
    cluster: tuple[Any, Any, Any] = (1, 1, 1), factors: tuple[float, float] = (1.0, 1.0), pieces: int = 1,
    split_k: Any = 1, slice_factor: float = 1.0, cuda: bool = False, by_tma: Any = True, swapped: bool = False,
    hidden: Any = 0.0, before: int = 0, classes: int = 1, factor: Any = 1.0, tiles_n: Any = 0, scattered: bool = False,
) -> Any:  # fmt: skip
    """Microseconds of a product, or of all of a batch in one launch, by `tile`, whose operands have `size` bytes.

    columns, boxes, factors, pieces: as in `slice_clocks`; by default all of a tile's columns. stages: of 128 bytes of K
    in the ring. slice_factor: on the time of a slice. cluster: CTAs that share B, that share A, and that have a part of
    K. cuda: by hopper_cluster, not hopper. by_tma: whether C is stored so;
    scattered: whether its rows do not begin at 16 bytes then. before: bytes by which K begins earlier.
    hidden: the share of a tile's ends that is behind the next tile's beginning. classes: products of the batch that
    share one matrix B, whose rows are those of one C. factor: on all but the time of memory. tiles_n: of uneven widths,
    at most that of `tile`, or 0. Copies of operands and the launch that sums a split K are not in it.
    """
    (m, n), (share_b, share_a, parts) = tile, cluster
    sharers = share_b * share_a
    peers = sharers * parts
    down, right = ceil_div(problem.m, m * share_b), np.where(tiles_n, tiles_n, ceil_div(problem.n, n * share_a))
    clusters = down * right * split_k * (problem.batches if cuda else 1)
    rounds = ceil_div(clusters, clusters_at_once(peers, gpu))
    slices = ceil_div(ceil_div(problem.k * size + before, SLICE_BYTES), split_k * parts)
    multiplied = np.where(tiles_n, problem.n / np.maximum(tiles_n, 1), n)  # columns of a tile, on average
    absent = np.maximum(m - problem.m, 0) / share_a + np.maximum(n - problem.n, 0) / share_b
    clocks = slice_clocks(
        m, multiplied, columns=n if columns is None else columns, boxes=boxes, cluster=(share_b, share_a),
        factors=factors, pieces=pieces, missing=absent * (MISSING_FACTOR - 1),
    )  # fmt: skip
    latency = LATENCY_CLOCKS / np.maximum(stages - BUSY_STAGES, 0.5)
    clocks *= (1 + (latency / clocks) ** LATENCY_SHARPNESS) ** (1 / LATENCY_SHARPNESS)
    clocks *= slice_factor * slices * (1.0 if cuda else GLUON_FACTOR) * (SWAPPED_FACTOR if swapped else 1.0)
    clocks *= np.where(sharers == 8, EIGHT_FACTOR, 1.0)
    clocks *= np.where(m == 64, np.where(sharers > 1, SHARED_BY_ONE_FACTOR, ONE_FACTOR), 1.0)
    clocks *= np.where((share_b > 1) & (share_a > 1), SHARED_BOTH_FACTOR, 1.0)
    finished = m * n / parts  # elements
    direct = DIRECT_CLOCKS + scattered * SCATTERED_CLOCKS if cuda else GLUON_DIRECT_CLOCKS
    ends = TILE_CLOCKS + (STORE_CLOCKS + swapped * SWAPPED_STORE_CLOCKS + np.where(by_tma, 0.0, direct)) * finished
    ends += (parts - 1) * (EXCHANGE_CLOCKS + 4 * finished / EXCHANGE_BYTES_PER_CLOCK)
    launch = LAUNCH_CLOCKS + np.where(peers > 1, CLUSTER_CLOCKS, 0.0) + np.where(tiles_n, UNEVEN_CLOCKS, 0.0)
    between = (ends + (CUDA_CLOCKS if cuda else 0)) * (1 - hidden)
    compute = (launch + rounds * clocks + ends + (rounds - 1) * between) / CLOCKS_PER_US * factor
    small_share = np.where(m > n, (share_b == 2) & (share_a == 1), (share_b == 1) & (share_a == 2)) & (m != n)
    long = np.where(m * n == WIDE_TILE, 1.0, UNUSUAL_FACTOR) * np.where(sharers > 1, 1.0, LONE_FACTOR)
    compute *= np.where(compute > LONG_US, long * np.where(small_share, SMALL_SHARE_FACTOR, 1.0), 1.0)

    whole_m, whole_n = (problem.m, problem.n * classes) if swapped else (problem.m * classes, problem.n)
    down, right = (down, right * classes) if swapped else (down * classes, right)
    more_n, more_m = down - 1, right - 1  # clusters that read B's columns, and A's rows
    rereads = whole_n * more_n / (1 + more_n / MOST_REREADS) + whole_m * more_m / (1 + more_m / MOST_REREADS)
    moved = problem.bytes / (1 if cuda else problem.batches) + REREAD_SHARE * rereads * problem.k * size
    larger, smaller = (share_a, share_b) if problem.m > problem.n else (share_b, share_a)
    in_step = (smaller >= 4) & (clusters * peers > IN_STEP_SHARE * gpu.compute_units)
    memory = moved / MEMORY_BYTES_PER_US * np.where(in_step, LOCKSTEP_FACTOR, 1.0)
    memory = np.maximum(memory, moved / (clusters * peers) * rounds / SM_BYTES_PER_US)
    memory *= np.where(larger > 1, SHARED_LARGER_TIME, np.where(smaller > 1, SHARED_SMALLER_TIME, 1.0))
    memory *= PARTS_MEMORY_TIME ** np.log2(parts)
    memory *= SWAPPED_MEMORY_TIME if swapped else 1.0
    less, more = np.minimum(compute, memory), np.maximum(compute, memory)
    return more * (1 + (less / more) ** SHARPNESS) ** (1 / SHARPNESS)
