"""Attention over a cache of keys and values: its problem, the knobs of its schedule, and which a problem gets."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from ...errors import UnsupportedError
from ...gpu import Gpu
from .config import padded
from .problem import DTYPE_BYTES

_ROWS = 16
_MOST_SPLITS = 256
_PROGRAMS_PER_PROCESSOR = 8  #: enough of one wave each to keep the memory's queues full
_LEAST_STEPS = 4  #: blocks of keys of a program


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

    def decode_scalars(self, config: DecodeConfig) -> tuple[float | int, ...]:
        """The kernel's scalar arguments: scale2, queries, heads, group, row_tiles, left."""
        left = 0 if self.left is None else min(self.left, self.keys)
        return self.scale * log2(2.718281828459045), self.queries, self.heads, self.group, config.row_tiles(self), left


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """kernels/decode.py: one wave of 16 rows a program, which reads a run of the keys."""

    columns: int  #: keys of a step
    out: int  #: columns of the result that a program sums
    splits: int  #: programs that share a row's keys
    rows: int = _ROWS
    combine_warps: int = 4
    combine_step: int = 32

    @property
    def text(self) -> str:
        """The config as one word."""
        return f"decode:columns={self.columns},out={self.out},splits={self.splits}"

    def parts(self, problem: DecodeProblem) -> int:
        """Programs that share a row's columns."""
        return -(-problem.d_v // self.out)

    def row_tiles(self, problem: DecodeProblem) -> int:
        """Tiles of the rows that share a head of keys: the queries of its heads."""
        return -(-problem.queries * problem.group // self.rows)

    def programs(self, problem: DecodeProblem) -> int:
        """Workgroups."""
        return problem.batch * problem.kv_heads * self.row_tiles(problem) * self.parts(problem) * self.splits

    def lds_bytes(self, problem: DecodeProblem) -> int:
        """LDS of a program."""
        elements = (self.rows + self.columns) * padded(problem.d) + self.columns * self.out
        return max(elements, 2 * self.rows * self.out) * DTYPE_BYTES[problem.dtype]

    def why_invalid(self, problem: DecodeProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if gpu.matrix_instructions not in ("wmma", "wgmma"):
            return f"the kernel multiplies by WMMA or NVIDIA's mma, {gpu.name} ({gpu.family}) has neither"
        if problem.dtype not in DTYPE_BYTES:
            return f"q, k_cache and v_cache must be fp16 or bf16, got {problem.dtype}"
        for name, d in (("D", problem.d), ("D of v_cache", problem.d_v)):
            if not 16 <= d <= 512 or d % 8:
                return f"{name} must be a multiple of 8 from 16 to 512, got {d}"
        sizes = (self.rows, self.columns, self.out)
        if any(n < 16 or n & (n - 1) for n in sizes):
            return f"rows, columns and out must be powers of two from 16 on, got {sizes}"
        if problem.page % self.columns:
            return f"a block of {self.columns} keys must lie within a page, got pages of {problem.page}"
        if not 1 <= self.splits <= _MOST_SPLITS:
            return f"splits must be from 1 to {_MOST_SPLITS}, got {self.splits}"
        need = self.lds_bytes(problem)
        if need > min(gpu.lds_bytes, 64 * 1024):
            return f"the tiles need {need} bytes of LDS, a workgroup of {gpu.name} has {min(gpu.lds_bytes, 65536)}"
        if self.programs(problem) >= 1 << 24:
            return f"one launch has fewer than {1 << 24} programs, this takes {self.programs(problem)}"
        return None


def plan_decode(problem: DecodeProblem, gpu: Gpu) -> DecodeConfig:
    """The config that `attention_decode` runs. Pure; raises UnsupportedError where there is none."""
    wide = max(padded(problem.d), padded(problem.d_v))
    twice = gpu.vendor == "amd" and gpu.major == 11  # fragments lie in both halves of a wave
    columns = 32 if wide <= (64 if twice else 128) and problem.page % 32 == 0 else 16
    alone = DecodeConfig(columns=columns, out=min(128, padded(problem.d_v)), splits=1)
    wanted = -(-_PROGRAMS_PER_PROCESSOR * gpu.compute_units // max(alone.programs(problem), 1))
    most = max(1, problem.keys // (_LEAST_STEPS * columns))
    config = DecodeConfig(columns=columns, out=alone.out, splits=max(1, min(wanted, most, _MOST_SPLITS)))
    why = config.why_invalid(problem, gpu)
    if why is not None:
        raise UnsupportedError(f"no schedule can do {problem.key} on {gpu.name}: {why}")
    return config
