"""The time of a product by tiles on Hopper: what `plan_hopper` and `plan_cluster` rank their configs by. Pure.

For each K-slice of 128 bytes a tile takes the longest of multiplying, of loading, of what the tensor cores and the
copy engine ask of shared memory, and of a slice's latency over the slices under way. A tile is its slices and a
beginning and an end; a product is as many tiles as the busiest SM walks over, or the time of its bytes in device
memory, and where both are near each other, more than either.

Fitted on one H200 by a random walk to 12,000 pairs of product and config, results/h200/tiles*.csv: tiles.csv of
2026-11-20 (89 sizes, layouts NN and NT; those of hopper_cluster less half a microsecond that its barriers took when the
file was made), the others of 2026-11-22 and 23; bench/model_fit.py is such a walk. tests/cpu/test_hopper_model.py says
how well, docs/hopper-gemm.md has the facts behind the terms.
"""

from __future__ import annotations

from ...gpu import Gpu
from .problem import MatmulProblem

SLICE_BYTES = 128  #: of a row, in one K-slice
CLOCKS_PER_US = 1900  #: near the boost clock
MMA_BYTES_PER_CLOCK = 4096  #: rows x columns x bytes of a slice that the tensor cores take in one clock
ROW_CLOCKS = 1.905  #: for 128 bytes of a row that an SM asks the L2 for
SHARED_ROW_CLOCKS = 1.356  #: for those that a neighbour in the cluster asks for and multicasts
LINE_BYTES, SECTOR_BYTES = 128, 32
LINE_FACTOR = 1.143  #: on rows whose pitch is no multiple of a line
BROKEN_FACTOR = 2.139  #: on rows whose pitch is no multiple of a sector: every other one takes three or four requests
MISSING_FACTOR = 3.163  #: on rows that are not there, of an operand that has less than a tile
TAIL_COLUMNS = 58  #: of B, where it is not contiguous along K: what the part of a panel of 64 costs to load
SHARED_MEMORY_FACTOR = 1.314  #: on the clocks in which shared memory passes 128 bytes each
LATENCY_CLOCKS = 1290  #: until a slice that is asked for is there; as many are under way as the ring has stages but one
LATENCY_SHARPNESS = 3.804  #: of the maximum of a slice's own time and of this one, shared out among them
LAUNCH_CLOCKS = 1759  #: once in a product, before and behind all tiles
TILE_CLOCKS = 70.38  #: a tile's beginning and end, beside its stores
STORE_CLOCKS = 0.06031  #: for each element of a tile
CLUSTER_CLOCKS = 628.3  #: more where CTAs meet, once
#: more to load a slice, for each CTA that shares B, and that shares A
CLUSTER_SLICE_CLOCKS = (3, 24.89)
EIGHT_FACTOR = 1.065  #: on the slices of clusters of 8
SWAPPED_FACTOR = 0.9833  #: on the slices of C^T = B^T A^T
SWAPPED_STORE_CLOCKS = 0.04308  #: more for each element of a tile that is turned on its way out
PROMOTE_CLOCKS = 150  #: of a slice, in which a single consumer's sums leave the tensor cores and nothing multiplies
DIRECT_CLOCKS = 0.05019  #: more for each element of a tile that hopper_cluster stores by masks
SCATTERED_CLOCKS = 0.4257  #: more for each of them where C's rows do not begin at 16 bytes
EXCHANGE_CLOCKS = 163.6  #: more where they exchange sums of parts of K
EXCHANGE_BYTES_PER_CLOCK = 12.02  #: that a CTA sends then
CUDA_CLOCKS = 1053  #: more for each tile of hopper_cluster but the first, than for one of hopper
UNEVEN_CLOCKS = 2532  #: more where tiles have two widths: the last of the wide ones is written while nothing multiplies
HIDDEN_HELD, HIDDEN_SPLIT = 0.351, 0.5128  #: shares of a tile's ends that the next tile hides: of one strip, of two
LONE_FACTOR = 1.019  #: on LONG_US or more, by CTAs that share no loads
#: on LONG_US or more, by pairs of CTAs that share what has the fewer rows of a tile: they ask the L2 for more
SMALL_SHARE_FACTOR = 1.0538
UNUSUAL_FACTOR = 1.0185  #: on LONG_US or more, where power is the limit, by all tiles but those of WIDE_TILE elements
LONG_US, WIDE_TILE = 80.0, 128 * 256
GLUON_FACTOR = 1.0448  #: on the slices of hopper
MEMORY_BYTES_PER_US = 4.660e6  #: read
REREAD_SHARE = 0.1957  #: of an operand, on top of its bytes, for each further cluster that reads it
MOST_REREADS = 7  #: from there on it stays in the L2
#: on the time of memory where 4 CTAs or more ask for neighbouring lines of the larger operand together, and CTAs are on
#: so many of the SMs
LOCKSTEP_FACTOR, IN_STEP_SHARE = 0.8665, 0.7
SM_BYTES_PER_US = 54.9e3  #: from memory, that one SM reads: what its copy engine has in flight, over the latency
SHARPNESS = 4.074  #: of the maximum of these times
#: SMs that clusters of a size fill together on one H200: its parts of the chip have 16 or 18 SMs, and one has fewer
SMS_IN_CLUSTERS = {1: 132, 2: 132, 4: 120, 8: 120}


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def loaded_columns(n: int, in_panels: bool) -> int:
    """What the columns of B of a tile cost to load, in whole ones; `in_panels` of 64, of which a part is dear."""
    return n - n % 64 + max(n % 64, TAIL_COLUMNS) if in_panels and n % 64 else n


def row_factor(pitch_bytes: int) -> float:
    """On the clocks to load a row, of a matrix whose rows lie so far apart."""
    if pitch_bytes % SECTOR_BYTES:
        return BROKEN_FACTOR
    return LINE_FACTOR if pitch_bytes % LINE_BYTES else 1.0


def clusters_at_once(peers: int, gpu: Gpu) -> int:
    """Clusters of so many CTAs, one on an SM, that the GPU has room for."""
    return SMS_IN_CLUSTERS[peers] * gpu.compute_units // 132 // peers


def slice_clocks(
    m: int, n: float, *, columns: int, cluster: tuple[int, int], factors: tuple[float, float], pieces: int,
    missing: float = 0.0,
) -> float:  # fmt: skip
    """Clocks of one slice of an m x n tile.

    columns: of B that are loaded. cluster: CTAs that share B, and A. factors: on loading A's and B's rows. pieces: of
    each operand, all in one slice. missing: what rows that are not there cost more than others, in rows.
    """
    products = pieces * (pieces + 1) // 2
    multiply = m * n * SLICE_BYTES * products / MMA_BYTES_PER_CLOCK
    own_a, own_b = m / cluster[1], columns / cluster[0]
    load = (own_a * factors[0] + own_b * factors[1] + missing) * ROW_CLOCKS
    load += (m - own_a + columns - own_b) * SHARED_ROW_CLOCKS
    load += sum(more * (count - 1) for more, count in zip(CLUSTER_SLICE_CLOCKS, cluster, strict=True))
    reads = (m + m * n / 64) * products  # of each strip of 64 rows: its own and all of B
    longest = max(multiply, load * pieces, reads * SHARED_MEMORY_FACTOR)
    return longest + PROMOTE_CLOCKS * (pieces > 1 and m == 64)


def product_us(
    problem: MatmulProblem, gpu: Gpu, size: int, tile: tuple[int, int], *, stages: int, columns: int = 0,
    cluster: tuple[int, int, int] = (1, 1, 1), factors: tuple[float, float] = (1.0, 1.0), pieces: int = 1,
    split_k: int = 1, slice_factor: float = 1.0, cuda: bool = False, by_tma: bool = True, swapped: bool = False,
    hidden: float = 0.0, before: int = 0, classes: int = 1, factor: float = 1.0, tiles_n: int = 0,
    scattered: bool = False,
) -> float:  # fmt: skip
    """Microseconds of a product, or of all of a batch in one launch, by `tile`, whose operands have `size` bytes.

    columns, factors, pieces: as in `slice_clocks`. stages: of 128 bytes of K in the ring. slice_factor: on the time of
    a slice. cluster: CTAs that share B, that share A, and that have a part of K.
    cuda: by hopper_cluster, not hopper. by_tma: whether C is stored so;
    scattered: whether its rows do not begin at 16 bytes then. before: bytes by which K begins earlier.
    hidden: the share of a tile's ends that is behind the next tile's beginning. classes: products of the batch that
    share one matrix B, whose rows are those of one C. factor: on all but the time of memory. tiles_n: of uneven widths,
    at most that of `tile`. Copies of operands and the launch that sums a split K are not in it.
    """
    m, n = tile
    sharers = cluster[0] * cluster[1]
    peers = sharers * cluster[2]
    down, right = ceil_div(problem.m, m * cluster[0]), tiles_n or ceil_div(problem.n, n * cluster[1])
    clusters = down * right * split_k
    if cuda:
        clusters *= problem.batches
    rounds = ceil_div(clusters, clusters_at_once(peers, gpu))
    slices = ceil_div(ceil_div(problem.k * size + before, SLICE_BYTES), split_k * cluster[2])
    multiplied = problem.n / tiles_n if tiles_n else n  # columns of a tile, on average
    absent = max(m - problem.m, 0) / cluster[1] + max(n - problem.n, 0) / cluster[0]
    clocks = slice_clocks(
        m, multiplied, columns=columns or n, cluster=cluster[:2], factors=factors, pieces=pieces,
        missing=absent * (MISSING_FACTOR - 1),
    )  # fmt: skip
    latency = LATENCY_CLOCKS / max(stages - 1, 1)
    clocks *= (1 + (latency / clocks) ** LATENCY_SHARPNESS) ** (1 / LATENCY_SHARPNESS)
    clocks *= slice_factor * slices * (1.0 if cuda else GLUON_FACTOR) * (SWAPPED_FACTOR if swapped else 1.0)
    clocks *= EIGHT_FACTOR if sharers == 8 else 1.0
    ends = TILE_CLOCKS + STORE_CLOCKS * m * n / cluster[2]
    if swapped:
        ends += SWAPPED_STORE_CLOCKS * m * n / cluster[2]
    launch = LAUNCH_CLOCKS + (CLUSTER_CLOCKS if peers > 1 else 0)
    if tiles_n:
        launch += UNEVEN_CLOCKS
    if not by_tma:
        ends += (DIRECT_CLOCKS + scattered * SCATTERED_CLOCKS) * m * n / cluster[2]
    if cluster[2] > 1:
        ends += EXCHANGE_CLOCKS + 4 * m * n * (cluster[2] - 1) / cluster[2] / EXCHANGE_BYTES_PER_CLOCK
    moved = problem.bytes / (1 if cuda else problem.batches)
    whole_m, whole_n = (problem.m, problem.n * classes) if swapped else (problem.m * classes, problem.n)
    down, right = (down, right * classes) if swapped else (down * classes, right)
    rereads = whole_n * min(down - 1, MOST_REREADS) + whole_m * min(right - 1, MOST_REREADS)
    moved += REREAD_SHARE * rereads * problem.k * size
    between = (ends + (CUDA_CLOCKS if cuda else 0)) * (1 - hidden)
    compute = (launch + rounds * clocks + ends + (rounds - 1) * between) / CLOCKS_PER_US
    compute *= factor
    if compute > LONG_US:
        compute *= (UNUSUAL_FACTOR if m * n != WIDE_TILE else 1.0) * (1.0 if sharers > 1 else LONE_FACTOR)
        compute *= SMALL_SHARE_FACTOR if (m > n and cluster[:2] == (2, 1)) or (n > m and cluster[:2] == (1, 2)) else 1.0
    in_step = cluster[0 if problem.m > problem.n else 1] >= 4 and clusters * peers > IN_STEP_SHARE * gpu.compute_units
    memory = moved / MEMORY_BYTES_PER_US * (LOCKSTEP_FACTOR if in_step else 1.0)
    memory = max(memory, moved / (clusters * peers) * rounds / SM_BYTES_PER_US)
    less, more = sorted((compute, memory))
    return more * (1 + (less / more) ** SHARPNESS) ** (1 / SHARPNESS)
