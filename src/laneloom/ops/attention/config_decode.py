"""Attention over a cache of keys and values: its problem, the knobs of its schedule, and which a problem gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, log2

from ...errors import UnsupportedError
from ...gpu import Gpu
from .config import lds_room, padded
from .config_hopper import chunks, why_not_wgmma, why_too_large
from .problem import DTYPE_BYTES, HALVES

_ROWS = 16
_MOST_SPLITS = 256
_PROGRAMS_PER_PROCESSOR = 8  #: enough of one wave each to keep the memory's queues full
_LEAST_STEPS = 4  #: blocks of keys of a program
_WIDEST_HOPPER = 256
_STATIC_BYTES = 2048  #: of shared memory: barriers, maxima and sums, what aligning the ring costs and the system keeps
_LEAST_RING = 3  #: tiles of a program that shares a processor
#: of 60 problems on one H100 (docs/attention.md, "Tried"): a round of programs; a tile, and 128 bytes of its rows;
#: putting runs together, and each doubling of them; of the memory's rate, what is reached
_ROUND_US, _TILE_US, _CHUNK_US, _JOIN_US, _DOUBLING_US, _BANDWIDTH_SHARE = 1.65, 0.236, 0.086, 1.9, 1.4, 0.98
_SHARPNESS = 8  #: of the maximum of what tiles take and what the memory takes
_FILLED = 0.75  #: of the processors: programs that have one each and all of its memory


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
    def row_tiles(self) -> int:
        """Tiles of the rows that share a head of keys: the queries of its heads."""
        return -(-self.queries * self.group // _ROWS)

    @property
    def code_key(self) -> DecodeProblem:
        """This problem without what compiled code does not depend on."""
        left = None if self.left is None else 0
        return replace(self, batch=1, heads=1, kv_heads=1, queries=1, keys=1, scale=1.0, left=left)

    def decode_scalars(self) -> tuple[float | int, ...]:
        """The kernels' scalar arguments: scale2, queries, heads, group, row_tiles, left."""
        left = 0 if self.left is None else min(self.left, self.keys)
        return self.scale * log2(2.718281828459045), self.queries, self.heads, self.group, self.row_tiles, left


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
    schedule: str = "hopper_decode"  #: the kernel file's name

    tile = 64  #: keys
    num_warps = 5

    @property
    def text(self) -> str:
        """The config as one word."""
        return f"{self.schedule}:stages={self.stages},splits={self.splits}"

    def box(self, problem: DecodeProblem) -> int:
        """Keys of one copy, which lie within a page."""
        return gcd(problem.page, self.tile)

    def programs(self, problem: DecodeProblem) -> int:
        """Workgroups."""
        return problem.batch * problem.kv_heads * problem.row_tiles * self.splits

    def lds_bytes(self, problem: DecodeProblem) -> int:
        """Dynamic shared memory: the ring, at its end four warps' sums."""
        ring = self.stages * self.tile * 128 * (chunks(problem.d) + chunks(problem.d_v))
        return max(ring, 4 * _ROWS * (problem.d_v + 4) * 4, (_ROWS * self.splits + _ROWS) * 4) + 1024

    def why_invalid(self, problem: DecodeProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        operands = {"operands": "q, k_cache and v_cache", "values": "v_cache"}
        if why := why_not_wgmma(problem, gpu, _WIDEST_HOPPER, **operands):
            return why
        if problem.page % _ROWS:
            return f"pages must be multiples of {_ROWS} keys, got {problem.page}"
        if not 1 <= self.splits <= _MOST_SPLITS or self.stages < 1:
            return f"splits must be from 1 to {_MOST_SPLITS}, stages at least 1, got {self.splits} and {self.stages}"
        if self.programs(problem) >= 1 << 24:
            return f"one launch has fewer than {1 << 24} programs, this takes {self.programs(problem)}"
        return why_too_large(self.lds_bytes(problem) + _STATIC_BYTES, gpu)


def _plan_hopper(problem: DecodeProblem, gpu: Gpu) -> HopperDecodeConfig:
    """The number of runs with the shortest estimate, and as many programs a processor as have rings of _LEAST_RING.

    A program takes a time for each tile, all of them the memory's for the bytes, whichever is longer; runs have to be
    put together. Numbers that are no power of two were measured slower. Programs that have nearly all processors to
    themselves take all of their memory: beside smaller ones the next launch's would come to lie two on a processor,
    while others stand idle; but not where a row's last 128 bytes are a part, which was measured slower.
    """
    both = chunks(problem.d) + chunks(problem.d_v)

    def ring(together: int) -> int:
        return (gpu.lds_bytes // together - _STATIC_BYTES - 1024) // (HopperDecodeConfig.tile * 128 * both)

    together = next((n for n in (3, 2) if ring(n) >= _LEAST_RING), 1)
    stages, alone = max(1, ring(together)), HopperDecodeConfig(splits=1, stages=1).programs(problem)
    tiles = max(1, -(-problem.keys // HopperDecodeConfig.tile))
    moved = problem.batch * problem.kv_heads * problem.keys * (problem.d + problem.d_v) * DTYPE_BYTES[problem.dtype]
    memory_us = moved / (gpu.bandwidth_gbs * 1e3 * _BANDWIDTH_SHARE)

    def cost(splits: int) -> float:
        rounds = -(-alone * splits // (together * gpu.compute_units))
        tiles_us = rounds * -(-tiles // splits) * (_TILE_US + _CHUNK_US * both / 2)
        joined_us = _JOIN_US + _DOUBLING_US * log2(splits) if splits > 1 else 0.0
        less, more = sorted((memory_us, tiles_us))
        return joined_us + rounds * _ROUND_US + more * (1 + (less / more) ** _SHARPNESS) ** (1 / _SHARPNESS)

    splits = min((1 << n for n in range(min(tiles, _MOST_SPLITS).bit_length())), key=cost)
    fills = _FILLED * gpu.compute_units <= alone * splits <= gpu.compute_units
    deep = fills and not problem.d % 64 and not problem.d_v % 64
    return HopperDecodeConfig(splits=splits, stages=max(1, ring(1)) if deep else stages)


def plan_decode(problem: DecodeProblem, gpu: Gpu, *, boxed: bool = True) -> DecodeConfig | HopperDecodeConfig:
    """The config that `attention_decode` runs. Pure; raises UnsupportedError where there is none.

    boxed: the copy engine can read the caches, whose strides are above 0.
    """
    if boxed and gpu.matrix_instructions == "wgmma":
        own = _plan_hopper(problem, gpu)
        if own.why_invalid(problem, gpu) is None:
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
