"""Attention over a cache of keys and values: its problem, the knobs of its schedule, and which a problem gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
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
_FILLED = 0.75  #: of the places that so many programs a processor have
#: of 233 problems on one H100 (docs/attention.md, "Tried"), in us: a round of programs, and what they lose where there
#: is more than one; until a tile is there; its work, and for 128 bytes of its rows; each 128 bytes of a row ahead;
#: putting runs together, and each doubling of them; of the memory's rate, what is reached
_ROUND_US, _ROUNDS_FACTOR, _LATENCY_US, _TILE_US, _CHUNK_US = 0.38, 1.14, 1.39, 0.26, 0.1
_AHEAD_US, _JOIN_US, _DOUBLING_US, _BANDWIDTH_SHARE = 0.33, 3.05, 0.6, 1.04


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
    def row_tiles(self) -> int:
        """Tiles of the rows that share a head of keys: the queries of its heads."""
        return -(-self.queries * self.group // _ROWS)

    @property
    def code_key(self) -> DecodeProblem:
        """This problem without what compiled code does not depend on."""
        left = None if self.left is None else 0
        cap = float(self.softcap != 0)
        return replace(
            self, batch=1, heads=1, kv_heads=1, queries=1, keys=1, scale=1.0, left=left, softcap=cap
        )

    @property
    def cap2(self) -> float | None:
        """`softcap` in base 2, as the general schedule's kernel takes it; None for none."""
        return self.softcap * log2(2.718281828459045) if self.softcap else None

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
    """The runs and programs a processor, whose rings fill its memory, that have the shortest estimate.

    A program takes for each tile its latency over the tiles that it has ahead, or its work beside others' on the
    processor; or all of them what the memory takes. Runs have to be put together; numbers of them that are no power of
    two were measured slower. Where programs fill the processors, their rings leave no room: the next launch's would
    come to lie beside some of them while others stand idle. Not so where the last 128 bytes of a row are a part.
    """
    both = chunks(problem.d) + chunks(problem.d_v)
    tile_bytes = HopperDecodeConfig.tile * 128 * both
    alone = HopperDecodeConfig(splits=1, stages=1).programs(problem)
    tiles = max(1, -(-problem.keys // HopperDecodeConfig.tile))
    moved = problem.batch * problem.kv_heads * problem.keys * (problem.d + problem.d_v) * DTYPE_BYTES[problem.dtype]
    memory_us = moved / (gpu.bandwidth_gbs * 1e3 * _BANDWIDTH_SHARE)

    def cost(together: int, splits: int) -> float:
        programs, of_run = alone * splits, -(-tiles // splits)
        ahead = min(ring(together), of_run)
        rounds = -(-programs // (together * gpu.compute_units))
        beside = min(-(-programs // gpu.compute_units), together)
        tile_us = max(_LATENCY_US / ahead, _TILE_US + _CHUNK_US * both / 2 * beside)
        joined_us = _JOIN_US + _DOUBLING_US * log2(splits) if splits > 1 else 0.0
        begun_us = rounds * _ROUND_US + _AHEAD_US * ahead * both / 2
        return begun_us + joined_us + max(memory_us, rounds * of_run * tile_us) * (_ROUNDS_FACTOR if rounds > 1 else 1)

    def ring(together: int) -> int:
        return max(1, (gpu.lds_bytes // together - _STATIC_BYTES - 1024) // tile_bytes)

    numbers = [n for n in (1, 2, 3, 4) if n == 1 or ring(n) >= _LEAST_RING]
    runs = [1 << n for n in range(min(tiles, _MOST_SPLITS).bit_length())]
    together, splits = min(product(numbers, runs), key=lambda pair: cost(*pair))
    filling = (n for n in numbers if _FILLED <= alone * splits / (n * gpu.compute_units) <= 1)
    if problem.d % 64 == 0 == problem.d_v % 64:
        together = next(filling, together)
    return HopperDecodeConfig(splits=splits, stages=ring(together))


def plan_decode(problem: DecodeProblem, gpu: Gpu, *, boxed: bool = True) -> DecodeConfig | HopperDecodeConfig:
    """The config that `attention_decode` runs. Pure; raises UnsupportedError where there is none.

    boxed: the copy engine can read the caches, whose strides are above 0.
    """
    if boxed and gpu.matrix_instructions == "wgmma" and not problem.softcap:
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
