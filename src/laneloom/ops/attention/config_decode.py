"""Attention over a cache of keys and values: its problem, and the knobs of its schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from ...gpu import Gpu
from .config import lds_room, padded
from .config_hopper import chunks, why_not_wgmma, why_too_large
from .problem import DTYPE_BYTES, HALVES, in_base_2

ROWS = 16
MOST_SPLITS = 256  #: programs that share a row's keys
MOST_CLUSTER = 16  #: programs
MOST_RANGES = 1024
_MOST_ROWS = 1 << 19  #: up to which the kernels' way to divide by the heads of a group is exact
_WIDEST_HOPPER = 256
STATIC_BYTES = 2048  #: of shared memory: barriers, maxima and sums, what aligning the ring costs and the system keeps
_ALONE_BYTES = 118784  #: of shared memory: no two fit a processor


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
    def read_keys(self) -> int:
        """Keys of a sequence that are read: with a window, those that its queries see."""
        return self.keys if self.left is None else min(self.keys, self.left + self.queries)

    @property
    def row_tiles(self) -> int:
        """Tiles of the rows that share a head of keys: the queries of its heads."""
        return -(-self.queries * self.group // ROWS)

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
    rows: int = ROWS
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
        if not 1 <= self.splits <= MOST_SPLITS:
            return f"splits must be from 1 to {MOST_SPLITS}, got {self.splits}"
        need = self.lds_bytes(problem)
        if need > lds_room(gpu):
            return f"the tiles need {need} bytes of LDS, a workgroup of {gpu.name} has {lds_room(gpu)}"
        if self.programs(problem) >= 1 << 24:
            return f"one launch has fewer than {1 << 24} programs, this takes {self.programs(problem)}"
        return None


@dataclass(frozen=True, kw_only=True)
class _HopperDecode:
    """Programs of four warps of 16 rows, which read keys and values from a ring that TMA fills."""

    stages: int  #: tiles of 64 keys and their values in shared memory
    abreast: int = 1  #: heads of keys that a program reads as one
    alone: bool = False  #: no two of these, nor of the next launch, share a processor

    tile = 64  #: keys
    num_warps = 5

    def box(self, problem: DecodeProblem) -> int:
        """Keys of one copy, which lie within a page."""
        return gcd(problem.page, self.tile)

    def units(self, problem: DecodeProblem) -> int:
        """Tiles of rows that share a head of keys, of all sequences."""
        seen = problem.abreast(self.abreast)
        return seen.batch * seen.kv_heads * seen.row_tiles

    def pieces(self, problem: DecodeProblem) -> int:
        """Pieces of 128 bytes of a key's and a value's row in shared memory."""
        return chunks(problem.d * self.abreast) + chunks(problem.d_v * self.abreast)

    def ring_bytes(self, problem: DecodeProblem) -> int:
        """Shared memory of the ring."""
        return self.stages * self.tile * 128 * self.pieces(problem)

    def sums_bytes(self, problem: DecodeProblem) -> int:
        """Shared memory of four warps' sums."""
        return 4 * ROWS * (problem.d_v * self.abreast + 4) * 4

    def _why_not(self, problem: DecodeProblem, gpu: Gpu) -> str | None:
        operands = {"operands": "q, k_cache and v_cache", "values": "v_cache"}
        if problem.kv_heads % self.abreast or (self.abreast > 1 and not problem.adjacent):
            return f"{self.abreast} heads at once must lie side by side and divide {problem.kv_heads}"
        seen = problem.abreast(self.abreast)
        if why := why_not_wgmma(seen, gpu, _WIDEST_HOPPER, **operands):
            return why
        if problem.page % ROWS:
            return f"pages must be multiples of {ROWS} keys, got {problem.page}"
        if seen.group * seen.queries > _MOST_ROWS:
            return f"a head of keys has at most {_MOST_ROWS} rows, this one {seen.group * seen.queries}"
        if self.stages < 1:
            return f"stages must be at least 1, got {self.stages}"
        return None


@dataclass(frozen=True, kw_only=True)
class HopperDecodeConfig(_HopperDecode):
    """kernels/hopper_decode.cu: programs that have a run of one head's keys."""

    splits: int  #: programs that share a row's keys
    cluster: int = 1  #: of these programs, which put their sums together in shared memory
    early: bool = False  #: the next kernel's programs may take their places when these begin, not when their keys end
    schedule: str = "hopper_decode"  #: the kernel file's name

    @property
    def text(self) -> str:
        """The config as one word."""
        runs = f"splits={self.splits},cluster={self.cluster},abreast={self.abreast}"
        return f"{self.schedule}:stages={self.stages},{runs},early={int(self.early)},alone={int(self.alone)}"

    @property
    def clusters(self) -> int:
        """Clusters that share a row's keys, whose sums go through memory."""
        return self.splits // self.cluster

    def programs(self, problem: DecodeProblem) -> int:
        """Workgroups."""
        return self.units(problem) * self.splits

    def lds_bytes(self, problem: DecodeProblem) -> int:
        """Dynamic shared memory: the ring, at its end the warps' sums and what a cluster's programs read."""
        sums = self.sums_bytes(problem) + ROWS * (problem.d_v + 1) * 4
        return max(self.ring_bytes(problem), sums, _ALONE_BYTES * self.alone) + 1024

    def why_invalid(self, problem: DecodeProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if why := self._why_not(problem, gpu):
            return why
        if not 1 <= self.splits <= MOST_SPLITS:
            return f"splits must be from 1 to {MOST_SPLITS}, got {self.splits}"
        if not 1 <= self.cluster <= MOST_CLUSTER or self.splits % self.cluster:
            return f"a cluster must be 1 to {MOST_CLUSTER} programs and divide {self.splits}, got {self.cluster}"
        if self.programs(problem) >= 1 << 24:
            return f"one launch has fewer than {1 << 24} programs, this takes {self.programs(problem)}"
        return why_too_large(self.lds_bytes(problem) + STATIC_BYTES, gpu)


@dataclass(frozen=True, kw_only=True)
class HopperRangesConfig(_HopperDecode):
    """kernels/hopper_decode_ranges.cu: programs that divide the keys of all sequences and heads evenly."""

    ranges: int  #: programs at most: fewer where there are fewer tiles
    schedule: str = "hopper_decode_ranges"  #: the kernel file's name

    @property
    def text(self) -> str:
        """The config as one word."""
        ranges = f"ranges={self.ranges},abreast={self.abreast}"
        return f"{self.schedule}:stages={self.stages},{ranges},alone={int(self.alone)}"

    def programs(self, problem: DecodeProblem) -> int:
        """Workgroups."""
        return self.ranges

    def lds_bytes(self, problem: DecodeProblem) -> int:
        """Dynamic shared memory: the ring with the rows of queries that come with a tile, the warps' sums."""
        queries = self.stages * ROWS * (problem.d * DTYPE_BYTES[problem.dtype] + 16)
        needed = self.ring_bytes(problem) + queries + self.sums_bytes(problem)
        return max(needed, _ALONE_BYTES * self.alone) + 1024

    def why_invalid(self, problem: DecodeProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if why := self._why_not(problem, gpu):
            return why
        if not 1 <= self.ranges <= MOST_RANGES:
            return f"ranges must be from 1 to {MOST_RANGES}, got {self.ranges}"
        tiles = self.units(problem) * (-(-problem.keys // self.tile) + 1)
        if tiles >= 1 << 31:
            return f"all heads of all sequences have fewer than {1 << 31} tiles of keys, these {tiles}"
        return why_too_large(self.lds_bytes(problem) + STATIC_BYTES, gpu)
