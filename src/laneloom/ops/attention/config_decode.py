"""Attention over a cache of keys and values: its problem, the knobs of its schedule, and which a problem gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

from ...errors import UnsupportedError
from ...gpu import Gpu
from .config import lds_room, padded
from .config_hopper import chunks, why_not_wgmma, why_too_large
from .problem import DTYPE_BYTES, HALVES, in_base_2

_ROWS = 16
_MOST_SPLITS = 256
_PROGRAMS_PER_PROCESSOR = 8  #: enough of one wave each to keep the memory's queues full
_MOST_CLUSTER = 16  #: programs
_LEAST_STEPS = 4  #: blocks of keys of a program
_WIDEST_HOPPER = 256
_STATIC_BYTES = 2048  #: of shared memory: barriers, maxima and sums, what aligning the ring costs and the system keeps
_LEAST_STAGES = 2  #: of a ring, where there is room
_ALONE_BYTES = 118784  #: of shared memory: no two fit a processor
_ON_THE_WAY = 12e6  #: bytes that all rings together hold; of more, memory is slower
#: programs that a processor's registers hold, by the most columns of a row: PROGRAMS of hopper_decode.cu
_RESIDENT = {64: 3, 160: 2}
_ABREAST, _WIDEST_ABREAST = (1, 2, 4), 192  #: heads of keys that a program may read as one, and their columns
#: clusters that run at once on 132 processors, of which a cluster takes some that lie together, by their programs
_CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 12: 7, 16: 7}
_CLUSTERS_ON = 132
_CLUSTERS_OF_ROW = (1, 2, 3, 4, 6, 8, 12, 16, 32)
_LARGE_CLUSTER, _LARGE_CLUSTER_US = 8, 5  #: programs, and of reading
_FEW_SPLITS = 4  #: more of them are no more than run at once
#: of reading, up to which the next kernel's programs take their places early; where these take several rounds
_EARLY_US, _EARLY_IN_ROUNDS_US = 8, 20
_NEARLY_FULL = 0.75  #: of the places for programs
_SECTOR = 64  #: bytes that memory moves at once
#: of 480 problems on one H200 (docs/attention.md, "Tried"), in us: a call, each further round of programs, a tile's
#: work and that for 128 bytes of its rows; tiles' work after the last one is there, a tile ahead, a row of the result
_START_US, _ROUND_US, _TILE_US, _CHUNK_US = 1.10, 2.73, 0.140, 0.171
_TILES_AFTER, _AHEAD_US, _ROW_US = 2.91, 0.076, 0.0167
#: clusters' sums and each of their programs; clusters that share rows, and a row of each; what an early launch saves;
#: clusters whose next launch finds too few places for its own
_CLUSTER_US, _PEER_US, _JOIN_US, _JOIN_ROW_US, _EARLY_SAVES_US, _HELD_UP_US = 1.28, 0.0244, 2.87, 0.0535, 0.125, 2.45
#: of the memory's rate, what is reached; bytes that a row costs beside its own, and those beyond where it begins within
#: a sector and neighbours are not read together, more so in clusters; what clusters lose, and runs without them
_BANDWIDTH_SHARE, _ROW_BYTES, _BROKEN_BYTES, _BROKEN_MORE = 1.0586, 9.95, 20.7, 42.7
_CLUSTERS_LOSE, _RUNS_LOSE = 0.1277, 0.0675
_PAIR_GBS = 127.6  #: of two processors that have one way to the L2
_NORM = 5.07  #: of limits: the largest one counts, and near it the others


@dataclass(frozen=True)
class DecodeProblem:
    """Queries at the end of sequences whose keys and values lie in a cache, in rows of one sequence or in pages."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int  #: room of the cache; the lengths come with each call
    d: int
    d_v: int
    dtype: str = "fp16"
    scale: float = 1.0
    left: int | None = None  #: keys that a query sees before its own
    page: int = 0  #: keys of a page; 0 where a sequence's keys lie in one piece
    adjacent: bool = False  #: a position's rows of all heads lie side by side, in keys and in values
    softcap: float = 0.0  #: scores become softcap tanh(score / softcap); 0 for none

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def key(self) -> str:
        """Name of the tuning record."""
        return (
            f"attention_decode/{self.dtype}/b{self.batch}_h{self.heads}:{self.kv_heads}_n{self.queries}:{self.keys}"
            f"_d{self.d}:{self.d_v}_page{self.page}"
        )

    @property
    def cache_bytes(self) -> int:
        """Bytes of all keys and values."""
        return self.batch * self.kv_heads * self.keys * (self.d + self.d_v) * DTYPE_BYTES[self.dtype]

    @property
    def row_tiles(self) -> int:
        """Tiles of the rows that share a head of keys: the queries of its heads."""
        return -(-self.queries * self.group // _ROWS)

    @property
    def code_key(self) -> DecodeProblem:
        """This problem without what compiled code does not depend on."""
        left = None if self.left is None else 0
        cap = float(self.softcap != 0)
        return replace(
            self, batch=1, heads=1, kv_heads=1, queries=1, keys=1, scale=1.0, left=left, adjacent=False, softcap=cap
        )

    @property
    def cap2(self) -> float | None:
        """`softcap` in base 2, as the general schedule's kernel takes it; None for none."""
        return in_base_2(self.softcap) if self.softcap else None

    def abreast(self, count: int) -> DecodeProblem:
        """This problem with so many heads of keys, which lie side by side, as one wider head."""
        return replace(self, kv_heads=self.kv_heads // count, d=self.d * count, d_v=self.d_v * count)

    def decode_scalars(self) -> tuple[float | int, ...]:
        """The kernels' scalar arguments: scale2, queries, heads, group, row_tiles, left."""
        left = 0 if self.left is None else min(self.left, self.keys)
        return in_base_2(self.scale), self.queries, self.heads, self.group, self.row_tiles, left


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """kernels/decode.py: one wave of 16 rows a program, which reads a run of the keys."""

    columns: int  #: keys of a step
    out: int  #: columns of the result that a program sums
    splits: int  #: programs that share a row's keys
    schedule: str = "decode"  #: the kernel file's name
    rows: int = _ROWS
    depth: int = 16  #: columns of a step, and of a tile's rows, that there are at least: an instruction's steps of K
    combine_warps: int = 4
    combine_step: int = 32

    @property
    def text(self) -> str:
        """The config as one word."""
        return f"decode:columns={self.columns},out={self.out},splits={self.splits}"

    def parts(self, problem: DecodeProblem) -> int:
        """Programs that share a row's columns."""
        return -(-problem.d_v // self.out)

    def programs(self, problem: DecodeProblem) -> int:
        """Workgroups."""
        return problem.batch * problem.kv_heads * problem.row_tiles * self.parts(problem) * self.splits

    def lds_bytes(self, problem: DecodeProblem) -> int:
        """LDS of a program."""
        elements = (self.rows + self.columns) * padded(problem.d, self.depth) + self.columns * self.out
        return max(elements, 2 * self.rows * self.out) * DTYPE_BYTES[problem.dtype]

    def why_invalid(self, problem: DecodeProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if problem.dtype not in HALVES:
            return f"q, k_cache and v_cache must be fp16 or bf16, got {problem.dtype}"
        for name, d in (("D", problem.d), ("D of v_cache", problem.d_v)):
            if not 16 <= d <= 512 or d % 8:
                return f"{name} must be a multiple of 8 from 16 to 512, got {d}"
        sizes = (self.rows, self.columns, self.out)
        if any(n < 16 or n & (n - 1) for n in sizes):
            return f"rows, columns and out must be powers of two from 16 on, got {sizes}"
        if self.depth != gpu.matrix_depth or self.columns < self.depth:
            return (
                f"{gpu.name} multiplies {gpu.matrix_depth} steps at once, which depth must be and columns have, got "
                f"{self.depth} and {self.columns}"
            )
        if problem.page % self.columns and self.columns > self.depth:
            return f"a block of {self.columns} keys must lie within a page, got pages of {problem.page}"
        if not 1 <= self.splits <= _MOST_SPLITS:
            return f"splits must be from 1 to {_MOST_SPLITS}, got {self.splits}"
        need = self.lds_bytes(problem)
        if need > lds_room(gpu):
            return f"the tiles need {need} bytes of LDS, a workgroup of {gpu.name} has {lds_room(gpu)}"
        if self.programs(problem) >= 1 << 24:
            return f"one launch has fewer than {1 << 24} programs, this takes {self.programs(problem)}"
        return None


@dataclass(frozen=True, kw_only=True)
class HopperDecodeConfig:
    """kernels/hopper_decode.cu: four warps of 16 rows, which read a run of the keys from a ring that TMA fills."""

    splits: int  #: programs that share a row's keys
    stages: int  #: tiles of 64 keys and their values in shared memory
    cluster: int = 1  #: of these programs, which put their sums together in shared memory
    abreast: int = 1  #: heads of keys that a program reads as one
    early: bool = False  #: the next kernel's programs may take their places when these begin, not when their keys end
    alone: bool = False  #: no two of these, nor of the next launch, share a processor
    schedule: str = "hopper_decode"  #: the kernel file's name

    tile = 64  #: keys
    num_warps = 5

    @property
    def text(self) -> str:
        """The config as one word."""
        runs = f"splits={self.splits},cluster={self.cluster},abreast={self.abreast}"
        return f"{self.schedule}:stages={self.stages},{runs},early={int(self.early)},alone={int(self.alone)}"

    @property
    def clusters(self) -> int:
        """Clusters that share a row's keys, whose sums go through memory."""
        return self.splits // self.cluster

    def box(self, problem: DecodeProblem) -> int:
        """Keys of one copy, which lie within a page."""
        return gcd(problem.page, self.tile)

    def programs(self, problem: DecodeProblem) -> int:
        """Workgroups."""
        seen = problem.abreast(self.abreast)
        return seen.batch * seen.kv_heads * seen.row_tiles * self.splits

    def pieces(self, problem: DecodeProblem) -> int:
        """Pieces of 128 bytes of a key's and a value's row in shared memory."""
        return chunks(problem.d * self.abreast) + chunks(problem.d_v * self.abreast)

    def lds_bytes(self, problem: DecodeProblem) -> int:
        """Dynamic shared memory: the ring, at its end four warps' sums."""
        ring = self.stages * self.tile * 128 * self.pieces(problem)
        sums, joined, weights = 4 * (problem.d_v * self.abreast + 4), problem.d_v + 1, self.clusters + 1
        return max(ring, _ROWS * (sums + joined + weights) * 4, _ALONE_BYTES * self.alone) + 1024

    def why_invalid(self, problem: DecodeProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        operands = {"operands": "q, k_cache and v_cache", "values": "v_cache"}
        if problem.kv_heads % self.abreast or (self.abreast > 1 and not problem.adjacent):
            return f"{self.abreast} heads at once must lie side by side and divide {problem.kv_heads}"
        if why := why_not_wgmma(problem.abreast(self.abreast), gpu, _WIDEST_HOPPER, **operands):
            return why
        if problem.page % _ROWS:
            return f"pages must be multiples of {_ROWS} keys, got {problem.page}"
        if not 1 <= self.splits <= _MOST_SPLITS or self.stages < 1:
            return f"splits must be from 1 to {_MOST_SPLITS}, stages at least 1, got {self.splits} and {self.stages}"
        if not 1 <= self.cluster <= _MOST_CLUSTER or self.splits % self.cluster:
            return f"a cluster must be 1 to {_MOST_CLUSTER} programs and divide {self.splits}, got {self.cluster}"
        if self.programs(problem) >= 1 << 24:
            return f"one launch has fewer than {1 << 24} programs, this takes {self.programs(problem)}"
        return why_too_large(self.lds_bytes(problem) + _STATIC_BYTES, gpu)


def hopper_configs(
    problem: DecodeProblem, gpu: Gpu, shares: Iterable[tuple[int, int]] | None = None
) -> Iterator[tuple[int, HopperDecodeConfig]]:
    """Programs that a processor has at once, and the config: of clusters and how many of them share a row's keys."""
    tiles = max(1, -(-problem.keys // HopperDecodeConfig.tile))
    for abreast in _ABREAST:
        alone = HopperDecodeConfig(splits=1, stages=1, abreast=abreast)
        if alone.why_invalid(problem, gpu):
            continue
        seen = problem.abreast(abreast)
        if abreast > 1 and (max(seen.d, seen.d_v) > _WIDEST_ABREAST or seen.row_tiles > problem.row_tiles):
            continue  # keys would be read more than once
        programs = alone.programs(problem)
        room = _most_resident(alone, problem) * gpu.compute_units
        for cluster, clusters in shares or product(_CLUSTERS, _CLUSTERS_OF_ROW):
            splits = cluster * clusters
            if _is_too_large(cluster, problem, gpu):
                continue
            if splits <= min(tiles, _MOST_SPLITS) and (splits <= _FEW_SPLITS or programs * splits <= room):
                yield from _with_rings(replace(alone, splits=splits, cluster=cluster), problem, gpu)


def _with_rings(
    config: HopperDecodeConfig, problem: DecodeProblem, gpu: Gpu
) -> Iterator[tuple[int, HopperDecodeConfig]]:
    """Programs that a processor has at once, and the config with its ring.

    Where each program can have a processor, it has it alone: else the next launch's programs come to lie in twos
    beside the last of these, and their processors' ways to the L2 are too narrow. All rings together then hold what
    memory wants to have on the way. More programs than processors share them, with rings as long as there is room, and
    so may few large clusters, which the next launch's find no places beside.
    """
    programs, tile = config.programs(problem), config.tile * 128 * config.pieces(problem)
    most = (gpu.lds_bytes - _STATIC_BYTES - 1024) // tile
    resident = _most_resident(config, problem)
    at_once = config.cluster * clusters_at_once(config.cluster, gpu)
    if programs <= at_once or resident == 1:
        wanted = _ON_THE_WAY / (min(programs, at_once) * tile)
        stages = max(1, min(most, max(_LEAST_STAGES, round(wanted))))
        yield 1, replace(config, stages=stages, alone=True, early=_is_early(config, 1, problem, gpu))
    if programs > max(at_once, gpu.compute_units) or _is_held_up(config, problem, gpu):
        for rings in range(2, resident + 1):
            stages = (gpu.lds_bytes // rings - _STATIC_BYTES - 1024) // tile
            if stages > 1:
                yield rings, replace(config, stages=stages, early=_is_early(config, rings, problem, gpu))


def _is_held_up(config: HopperDecodeConfig, problem: DecodeProblem, gpu: Gpu) -> bool:
    """Whether there are processors for these programs and the next launch's, but not where clusters need them."""
    programs = config.programs(problem)
    is_room = 2 * programs <= gpu.compute_units
    return is_room and 2 * programs > config.cluster * clusters_at_once(config.cluster, gpu)


def _is_too_large(cluster: int, problem: DecodeProblem, gpu: Gpu) -> bool:
    """Whether so many programs, whose processors lie together, read too much by the one way that these have."""
    return cluster > _LARGE_CLUSTER and _memory_us(problem, gpu) > _LARGE_CLUSTER_US


def _is_early(config: HopperDecodeConfig, resident: int, problem: DecodeProblem, gpu: Gpu) -> bool:
    """Whether the next launch's programs take their places as these begin: where there are processors for both, or
    none left for the next, and reading takes so little that its beginning counts."""
    programs, processors, us = config.programs(problem), gpu.compute_units, _memory_us(problem, gpu)
    if resident == 1 and 2 * programs <= processors:
        return config.cluster == 1
    rounds = programs / (resident * processors)
    is_full = resident == 1 or rounds > _NEARLY_FULL
    return config.splits == 1 and is_full and us < (_EARLY_US if rounds <= 1 else _EARLY_IN_ROUNDS_US)


def _most_resident(config: HopperDecodeConfig, problem: DecodeProblem) -> int:
    columns = config.abreast * max(problem.d, problem.d_v)
    return next((n for limit, n in _RESIDENT.items() if columns <= limit), 1)


def clusters_at_once(programs: int, gpu: Gpu) -> int:
    """Clusters of so many programs, each of which has a processor alone, that run at once."""
    return max(1, _CLUSTERS[programs] * gpu.compute_units // _CLUSTERS_ON)


def estimate_us(problem: DecodeProblem, config: HopperDecodeConfig, resident: int, gpu: Gpu) -> float:
    """A call's time: memory, the way of two processors to the L2 or the programs' work bounds each round of programs;
    then what it costs to begin and to put runs together."""
    programs, pieces, peers = config.programs(problem), config.pieces(problem), config.cluster
    run = max(1, -(-problem.keys // (config.tile * config.splits)))  # tiles
    at_once = resident * peers * clusters_at_once(peers, gpu)
    further = -(-programs // at_once) - 1
    row = config.abreast * problem.d * DTYPE_BYTES[problem.dtype]
    beyond = _ROW_BYTES
    if row % _SECTOR and (config.splits > 1 or further):
        beyond += _BROKEN_BYTES + (_BROKEN_MORE if peers > 1 else 0)
    lost = (_CLUSTERS_LOSE if peers > 1 else 0) + (_RUNS_LOSE if config.clusters > 1 else 0)
    memory_us = _memory_us(problem, gpu) * (1 + beyond / row) * (1 + lost)
    pair_us = problem.cache_bytes / programs / (_PAIR_GBS * 1e3)
    tile_us = _TILE_US + _CHUNK_US * pieces / 2

    def round_us(count: int) -> float:
        beside = min(-(-count // gpu.compute_units), resident)
        limits = memory_us * count / programs, run * tile_us * beside, pair_us * -(-2 * count // gpu.compute_units)
        return sum(us**_NORM for us in limits) ** (1 / _NORM)

    last = programs - further * at_once
    beside = min(-(-last // gpu.compute_units), resident)
    rows = min(_ROWS, problem.group * problem.queries * config.abreast) * problem.d_v / 128
    total = _START_US + _ROUND_US * further + (further * round_us(at_once) if further else 0) + round_us(last)
    total += _TILES_AFTER * tile_us * beside + _AHEAD_US * min(config.stages, run) + _ROW_US * rows
    if peers > 1:
        total += _CLUSTER_US + _PEER_US * peers
    if resident == 1 and _is_held_up(config, problem, gpu):
        total += _HELD_UP_US
    if config.clusters > 1:
        total += _JOIN_US + _JOIN_ROW_US * rows * config.clusters / peers
    return total - _EARLY_SAVES_US * config.early


def _memory_us(problem: DecodeProblem, gpu: Gpu) -> float:
    return problem.cache_bytes / (gpu.bandwidth_gbs * 1e3 * _BANDWIDTH_SHARE)


def _plan_hopper(problem: DecodeProblem, gpu: Gpu) -> HopperDecodeConfig | None:
    """The config that has the shortest estimate."""
    found = [(estimate_us(problem, config, n, gpu), config) for n, config in hopper_configs(problem, gpu)]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def plan_decode(problem: DecodeProblem, gpu: Gpu, *, boxed: bool = True) -> DecodeConfig | HopperDecodeConfig:
    """The config that `attention_decode` runs. Pure; raises UnsupportedError where there is none.

    boxed: the copy engine can read the caches, whose strides are above 0.
    """
    if boxed and gpu.matrix_instructions == "wgmma":
        own = _plan_hopper(problem, gpu)
        if own is not None and own.why_invalid(problem, gpu) is None:
            return own
    wide = max(padded(problem.d), padded(problem.d_v))
    most = 64 if gpu.matrix_instructions == "wmma" else 128  # beyond, blocks of 32 keys spill
    depth = gpu.matrix_depth
    columns = 32 if depth == 32 or (wide <= most and problem.page % 32 == 0) else 16
    # columns whose sums, with all else, a lane's registers hold: 512 of CDNA 1 to 4, 1024 of CDNA 5
    widest = {"mfma": 512, "wmma3": 256}.get(gpu.matrix_instructions, 128)
    out = min(widest, padded(problem.d_v))
    alone = DecodeConfig(columns=columns, out=out, splits=1, depth=depth)
    # No program more than run at once: the last ones would run alone.
    together = _PROGRAMS_PER_PROCESSOR
    if gpu.family.startswith("CDNA"):
        together = min(together, max(1, gpu.lds_bytes // alone.lds_bytes(problem)))
    wanted = together * gpu.compute_units // max(alone.programs(problem), 1)
    most = max(1, problem.keys // (_LEAST_STEPS * columns))
    config = replace(alone, splits=max(1, min(wanted, most, _MOST_SPLITS)))
    why = config.why_invalid(problem, gpu)
    if why is not None:
        raise UnsupportedError(f"no schedule can do {problem.key} on {gpu.name}: {why}")
    return config
