"""The time of a product by tiles on Hopper: what `plan_hopper` and `plan_cluster` rank their configs by. Pure.

What a config chooses may be a number or an array of numbers, of many configs at once: a plan ranks thousands.

For each K-slice of 128 bytes a tile takes the longest of multiplying, of loading, of what the tensor cores and the
copy engine ask of shared memory, and of a slice's latency over the slices under way. A tile is its slices and a
beginning and an end; a product is as many tiles as the busiest SM walks over, or the time of its bytes in device
memory, and where both are near each other, more than either.

Fitted on one H200 by a random walk to 17,000 pairs of product and config, results/h200/tiles*.csv, of 2026-11-22 to 24,
and on one H100 to 9,000; bench/model_fit.py is such a walk. tests/cpu/test_hopper_model.py says how well,
docs/hopper-gemm.md has the facts behind the terms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from ...gpu import Gpu
from .problem import MatmulProblem, Matrix

SLICE_BYTES = 128  #: of a row, in one K-slice
CLOCKS_PER_US = 1900  #: near the boost clock
MMA_BYTES_PER_CLOCK = 4096  #: rows x columns x bytes of a slice that the tensor cores take in one clock
LINE_BYTES, SECTOR_BYTES = 128, 32
TAIL_COLUMNS = 58  #: of B, where it is not contiguous along K: what the part of a panel of 64 costs to load
PROMOTE_CLOCKS = 150  #: of a slice, in which a single consumer's sums leave the tensor cores and nothing multiplies
HIDDEN_HELD, HIDDEN_SPLIT = 0.2478, 0.5297  #: shares of a tile's ends that the next tile hides: of one strip, of two
LONG_US, WIDE_TILE = 80.0, 128 * 256
IN_STEP_SHARE = 0.7  #: of the SMs, on which CTAs are that ask in step
#: SMs that clusters of a size fill together on one H200: its parts of the chip have 16 or 18 SMs, and one has fewer
SMS_IN_CLUSTERS = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120}
_SMS = np.array([SMS_IN_CLUSTERS.get(peers, 0) for peers in range(9)])


class Rows(Enum):
    """How the rows of an operand lie in memory: what one costs to load beside one in whole lines. Its value is the name
    of that factor in `Constants`."""

    LINES = ""  #: their pitch is a multiple of a line, or they are copied to such a one
    SECTORS = "sector_rows"  #: of a sector
    BROKEN = "broken_rows"  #: of neither: every other row takes three or four requests
    CLASS_32 = "class_32_rows"  #: rows in classes: those of a tile begin alike in lines of 32 bytes
    CLASS_64 = "class_64_rows"
    CLASS_128 = "class_128_rows"


@dataclass(frozen=True)
class Constants:
    """What was fitted on a product, whose memory has `bandwidth_gbs`; by default on one H200."""

    bandwidth_gbs: int = 4800
    row_clocks: float = 1.731  #: for 128 bytes of a row that an SM asks the L2 for
    shared_row_clocks: float = 1.377  #: for those that a neighbour in the cluster asks for and multicasts
    #: on those of `Rows` that do not come in whole lines
    sector_rows: float = 1.128
    broken_rows: float = 2.038
    class_32_rows: float = 1.189
    class_64_rows: float = 1.069
    class_128_rows: float = 0.9573
    missing_factor: float = 3.319  #: on rows that are not there, of an operand that has less than a tile or a slice
    #: more to load a slice, for each box: one of an operand contiguous along K, else one for 64 rows
    box_clocks: float = 6.652
    shared_memory_factor: float = 1.331  #: on the clocks in which shared memory passes 128 bytes each
    latency_clocks: float = 1356.0  #: until a slice that is asked for is there
    busy_stages: float = 1.124  #: of the ring, in which no slice is under way
    latency_sharpness: float = 4.307  #: of the maximum of a slice's own time and of this one, shared out among them
    launch_clocks: float = 3377.0  #: once in a product, before and behind all tiles
    tile_clocks: float = 52.84  #: a tile's beginning and end, beside its stores
    store_clocks: float = 0.04935  #: for each element of a tile
    cluster_clocks: float = 186.6  #: more where CTAs meet, once
    #: more to load a slice, for each doubling of the CTAs that share B, and that share A
    shared_b_clocks: float = 0.7544
    shared_a_clocks: float = 12.27
    least_clocks: float = 192.9  #: of a slice, which the producer takes to ask for it
    one_factor: float = 0.9692  #: on the slices of CTAs that have one consumer each
    #: on the slices of those that share loads, and of those that share both operands
    shared_by_one_factor: float = 1.024
    shared_both_factor: float = 1.031
    eight_factor: float = 1.029  #: on the slices of clusters of 8
    swapped_factor: float = 0.9908  #: on the slices of C^T = B^T A^T
    swapped_store_clocks: float = 0.02672  #: more for each element of a tile that is turned on its way out
    direct_clocks: float = 0.038  #: more for each element of a tile that hopper_cluster stores by masks
    gluon_direct_clocks: float = 0.2  #: the same, by hopper
    #: more for each of them where C's rows do not begin at 16 bytes, and where they are turned on their way out
    #: (tiles_unaligned.csv of one H200, 2026-11-28; on an H100 taken to be as many)
    scattered_clocks: float = 0.04
    scattered_columns: float = 200.0  #: of a tile, at which that is twice as much: its rows begin and end within lines
    turned_scattered_clocks: float = 0.4
    exchange_clocks: float = 153.6  #: more where they exchange sums of parts of K, for each further part
    exchange_bytes_per_clock: float = 7.797  #: that a CTA sends then
    cuda_clocks: float = 131.1  #: more for each tile of hopper_cluster but the first, than for one of hopper
    #: more where tiles have two widths: the last of the wide ones is written while nothing multiplies
    uneven_clocks: float = 2111.0
    lone_factor: float = 1.007  #: on LONG_US or more, by CTAs that share no loads
    #: on LONG_US or more, by pairs of CTAs that share what has the fewer rows of a tile: they ask the L2 for more
    small_share_factor: float = 1.009
    #: on LONG_US or more, where power is the limit, by all tiles but those of WIDE_TILE elements
    unusual_factor: float = 1.024
    gluon_factor: float = 1.037  #: on the slices of hopper
    memory_bytes_per_us: float = 4.829e6  #: read
    #: of an operand, on top of its bytes, for the next clusters that read it, and so many times that at most: others
    #: find it in the L2
    reread_share: float = 0.5792
    most_rereads: float = 2.0
    #: on the time of memory where 4 CTAs or more ask for neighbouring lines of the larger operand together, and CTAs
    #: are on IN_STEP_SHARE of the SMs
    lockstep_factor: float = 0.9051
    #: on the time of memory, by CTAs that share the operand with more rows, or only the other; for each doubling of
    #: those that have parts of K; of C^T = B^T A^T
    shared_larger_time: float = 0.9962
    shared_smaller_time: float = 1.025
    parts_memory_time: float = 1.045
    swapped_memory_time: float = 1.011
    #: from memory, that one SM reads: what its copy engine has in flight, over the latency
    sm_bytes_per_us: float = 54420.0
    sharpness: float = 4.511  #: of the maximum of these times
    #: of tiles of one warpgroup each (tiles_own.csv, held against the suite of one H200): on their slices
    own_factor: float = 0.972
    own_shared: float = 0.9  #: on the clocks in which shared memory passes what is read and written, 128 bytes each
    own_share: float = 0.266  #: of a tile's ends, what still counts
    own_tail_clocks: float = 25.0  #: more for each tile whose columns are no multiple of 16
    own_ends: float = 1.99  #: times its ends a tile's slices have to take, to hide those of another

    def of_rows(self, rows: Rows) -> float:
        """The factor on the clocks to load such rows."""
        return getattr(self, rows.value) if rows.value else 1.0

H200 = Constants()
#: of one H100, whose memory is slower and whose L2 gives its SMs less: results/h100/tiles_models.csv, 2026-11-26
H100 = Constants(
    bandwidth_gbs=3350, row_clocks=2.197, shared_row_clocks=1.133, sector_rows=1.365, broken_rows=1.577,
    class_32_rows=1.275, class_64_rows=1.208, class_128_rows=1.136, missing_factor=1.651, box_clocks=0.5481,
    shared_memory_factor=0.7592, latency_clocks=1845, busy_stages=1.008, latency_sharpness=3.629, launch_clocks=1655,
    tile_clocks=0.0003054, store_clocks=0.08954, cluster_clocks=1603, shared_b_clocks=1.43e-05,
    shared_a_clocks=0.3058, least_clocks=195.5, one_factor=1.112, shared_by_one_factor=1.022,
    shared_both_factor=1.016, eight_factor=0.9907, swapped_factor=1.006, swapped_store_clocks=0.01425,
    direct_clocks=0.01787, exchange_clocks=504, exchange_bytes_per_clock=14.95,
    cuda_clocks=333.9, uneven_clocks=334.8, lone_factor=1.04, small_share_factor=1.014, unusual_factor=1.025,
    memory_bytes_per_us=3.64e6, reread_share=0.2899, most_rereads=9.507, lockstep_factor=0.9469,
    shared_larger_time=0.9306, shared_smaller_time=1.021, parts_memory_time=1.089, swapped_memory_time=0.9974,
    sm_bytes_per_us=1.529e5, sharpness=2.99, own_factor=0.939, own_share=0.158,
    own_tail_clocks=106, own_ends=1.555,
)  # fmt: skip
BETWEEN_GBS = 4000  #: GPUs with more bandwidth are like the H200, others like the H100


def constants_of(gpu: Gpu) -> Constants:
    """Those of the product that the GPU is like."""
    return H200 if gpu.bandwidth_gbs > BETWEEN_GBS else H100


def compared_as(gpu: Gpu) -> Gpu:
    """The GPU by whose constants schedules are compared with each other: all of their models were fitted to the H200's
    memory. Those of another product say which tiles are the fastest of one schedule there."""
    return replace(gpu, bandwidth_gbs=H200.bandwidth_gbs)


def memory_us(moved: Any, gpu: Gpu) -> Any:
    """Microseconds in which so many bytes pass between the GPU and its memory."""
    c = constants_of(gpu)
    return moved / c.memory_bytes_per_us * (c.bandwidth_gbs / gpu.bandwidth_gbs)


def ceil_div(x: Any, y: Any) -> Any:
    """x / y, rounded up."""
    return -(-x // y)


def loaded_columns(n: Any, in_panels: bool) -> Any:
    """What the columns of B of a tile cost to load, in whole ones; `in_panels` of 64, of which a part is dear."""
    return np.where(n % 64, n - n % 64 + np.maximum(n % 64, TAIL_COLUMNS), n) if in_panels else n


def boxes_of(rows: Any, along_k: bool) -> Any:
    """The copy engine's, for a slice of so many rows of A or columns of B."""
    return 1 if along_k else ceil_div(rows, 64)


def rows_of(matrix: Matrix, size: int, copied: bool = False) -> Rows:
    """How the rows of an operand lie, whose elements have `size` bytes, or those of its copy."""
    pitch = size * (matrix.strides[2] if matrix.major == "n" else matrix.strides[3])
    if copied or pitch % LINE_BYTES == 0:
        return Rows.LINES
    return Rows.BROKEN if pitch % SECTOR_BYTES else Rows.SECTORS


def clusters_at_once(peers: Any, gpu: Gpu) -> Any:
    """Clusters of so many CTAs, one on an SM, that the GPU has room for."""
    return _SMS[peers] * gpu.compute_units // 132 // peers


def slice_clocks(
    m: Any, n: Any, *, columns: Any, boxes: Any, cluster: tuple[Any, Any], rows: tuple[Rows, Rows], pieces: int,
    missing: Any = 0.0, own: Any = False, c: Constants = H200,
) -> Any:  # fmt: skip
    """Clocks of one slice of an m x n tile.

    columns: of B that are loaded. boxes: that both operands come in. cluster: CTAs that share B, and A. rows: how A's
    and B's lie. pieces: of each operand, all in one slice. missing: what rows that are not there cost more
    than others, in rows. own: whether warpgroups have tiles of their own. c: of the product.
    """
    products = pieces * (pieces + 1) // 2
    multiply = m * n * SLICE_BYTES * products / MMA_BYTES_PER_CLOCK
    own_a, own_b = m / cluster[1], columns / cluster[0]
    load = (own_a * c.of_rows(rows[0]) + own_b * c.of_rows(rows[1]) + missing) * c.row_clocks
    load += (m - own_a + columns - own_b) * c.shared_row_clocks
    load += c.box_clocks * boxes + c.shared_b_clocks * np.log2(cluster[0]) + c.shared_a_clocks * np.log2(cluster[1])
    reads = (m + m * n / 64) * products  # of each strip of 64 rows: its own and all of B
    passed = np.maximum(reads * c.shared_memory_factor, (reads + m + columns) * c.own_shared * own)
    longest = np.maximum(np.maximum(multiply, load * pieces), np.maximum(passed, c.least_clocks))
    return longest + (PROMOTE_CLOCKS * (m == 64) if pieces > 1 else 0)


def product_us(
    problem: MatmulProblem, gpu: Gpu, size: int, tile: tuple[Any, Any], *, stages: Any, boxes: Any, columns: Any = None,
    cluster: tuple[Any, Any, Any] = (1, 1, 1), rows: tuple[Rows, Rows] = (Rows.LINES, Rows.LINES), pieces: int = 1,
    split_k: Any = 1, slice_factor: Any = 1.0, cuda: bool = False, by_tma: Any = True, swapped: bool = False,
    hidden: Any = 0.0, before: int = 0, classes: int = 1, factor: Any = 1.0, tiles_n: Any = 0, scattered: bool = False,
    own: Any = False,
) -> Any:  # fmt: skip
    """Microseconds of a product, or of all of a batch in one launch, by `tile`, whose operands have `size` bytes.

    columns, boxes, pieces: as in `slice_clocks`; by default all of a tile's columns. rows: how those of A and B lie.
    stages: of 128 bytes of K in the ring. slice_factor: on the time of a slice. cluster: CTAs that share B, that share
    A, and that have a part of K. cuda: by hopper_cluster, not hopper. by_tma: whether C is stored so; scattered:
    whether its rows do not begin at 16 bytes then. before: bytes by which K begins earlier.
    hidden: the share of a tile's ends that is behind the next tile's beginning. classes: products of the batch that
    share one matrix B, whose rows are those of one C. factor: on all but the time of memory. tiles_n: of uneven widths,
    at most that of `tile`, or 0. own: whether warpgroups have tiles of their own. Copies of operands and the launch
    that sums a split K are not in it.
    """
    (m, n), (share_b, share_a, parts) = tile, cluster
    sharers, c = share_b * share_a, constants_of(gpu)
    peers = sharers * parts
    down, right = ceil_div(problem.m, m * share_b), np.where(tiles_n, tiles_n, ceil_div(problem.n, n * share_a))
    clusters = down * right * split_k * (problem.batches if cuda else 1)
    rounds = ceil_div(clusters, clusters_at_once(peers, gpu))
    slices = ceil_div(ceil_div(problem.k * size + before, SLICE_BYTES), split_k * parts)
    multiplied = np.where(tiles_n, problem.n / np.maximum(tiles_n, 1), n)  # columns of a tile, on average
    absent = np.maximum(m - problem.m, 0) / share_a + np.maximum(n - problem.n, 0) / share_b
    if problem.k * size < SLICE_BYTES:  # a part of every row is not there
        absent = absent + (1 - problem.k * size / SLICE_BYTES) * (m / share_a + n / share_b)
    clocks = slice_clocks(
        m, multiplied, columns=n if columns is None else columns, boxes=boxes, cluster=(share_b, share_a),
        rows=rows, pieces=pieces, missing=absent * (c.missing_factor - 1), own=own, c=c,
    )  # fmt: skip
    latency = c.latency_clocks / np.maximum(stages - c.busy_stages, 0.5)
    clocks *= (1 + (latency / clocks) ** c.latency_sharpness) ** (1 / c.latency_sharpness)
    clocks = clocks * np.where(own, c.own_factor, 1.0)
    clocks *= slice_factor * slices * (1.0 if cuda else c.gluon_factor) * (c.swapped_factor if swapped else 1.0)
    clocks *= np.where(sharers == 8, c.eight_factor, 1.0)
    clocks *= np.where(m == 64, np.where(sharers > 1, c.shared_by_one_factor, c.one_factor), 1.0)
    clocks *= np.where((share_b > 1) & (share_a > 1), c.shared_both_factor, 1.0)
    finished = m * n / parts  # elements
    scattering = c.turned_scattered_clocks if swapped else c.scattered_clocks * (1 + c.scattered_columns / n)
    direct = c.direct_clocks + scattered * scattering if cuda else c.gluon_direct_clocks
    stored = c.store_clocks + swapped * c.swapped_store_clocks + np.where(by_tma, 0.0, direct)
    ends = c.tile_clocks + stored * finished
    ends += (parts - 1) * (c.exchange_clocks + 4 * finished / c.exchange_bytes_per_clock)
    launch = c.launch_clocks + np.where(peers > 1, c.cluster_clocks, 0.0) + np.where(tiles_n, c.uneven_clocks, 0.0)
    between = (ends + (c.cuda_clocks if cuda else 0)) * (1 - hidden)
    left = c.own_share * ends + c.own_tail_clocks * (n % 16 > 0) + np.maximum(c.own_ends * ends - clocks, 0) / 2
    between = np.where(own, left, between)
    compute = (launch + rounds * clocks + ends + (rounds - 1) * between) / CLOCKS_PER_US * factor
    small_share = np.where(m > n, (share_b == 2) & (share_a == 1), (share_b == 1) & (share_a == 2)) & (m != n)
    long = np.where(m * n == WIDE_TILE, 1.0, c.unusual_factor) * np.where(sharers > 1, 1.0, c.lone_factor)
    compute *= np.where(compute > LONG_US, long * np.where(small_share, c.small_share_factor, 1.0), 1.0)

    whole_m, whole_n = (problem.m, problem.n * classes) if swapped else (problem.m * classes, problem.n)
    down, right = (down, right * classes) if swapped else (down * classes, right)
    more_n, more_m = down - 1, right - 1  # clusters that read B's columns, and A's rows
    rereads = whole_n * more_n / (1 + more_n / c.most_rereads) + whole_m * more_m / (1 + more_m / c.most_rereads)
    moved = problem.bytes / (1 if cuda else problem.batches) + c.reread_share * rereads * problem.k * size
    larger, smaller = (share_a, share_b) if problem.m > problem.n else (share_b, share_a)
    in_step = (smaller >= 4) & (clusters * peers > IN_STEP_SHARE * gpu.compute_units)
    memory = memory_us(moved, gpu)
    memory = memory * np.where(in_step, c.lockstep_factor, 1.0)
    memory = np.maximum(memory, moved / (clusters * peers) * rounds / c.sm_bytes_per_us)
    memory *= np.where(larger > 1, c.shared_larger_time, np.where(smaller > 1, c.shared_smaller_time, 1.0))
    memory *= c.parts_memory_time ** np.log2(parts)
    memory *= c.swapped_memory_time if swapped else 1.0
    less, more = np.minimum(compute, memory), np.maximum(compute, memory)
    return more * (1 + (less / more) ** c.sharpness) ** (1 / c.sharpness)
