"""What can be chosen for one chain: the schedules, their knobs, and `plan`, which chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from ...errors import ArgumentError, InvalidConfigError, UnsupportedError
from ...gpu import Gpu
from ..config_words import config_text, read_when_traced
from ..matmul.problem import Matrix
from ..scalars import shown
from .problem import DTYPE_BYTES, OPERANDS, ChainProblem

SCHEDULES = ("wmma", "hopper", "pair")
_COPIED = 16  #: elements, and bytes of alignment
MAX_PROGRAMS = 1 << 24  #: of one launch: a grid of AMD's holds fewer than 2**32 threads
MAX_SIZE = 1 << 30  #: of M, K0, N0 and N1: sums of a position and a tile fit 32 bits


@dataclass(frozen=True, kw_only=True)
class ChainConfig:
    """Which schedule runs, and its tile.

    A program owns block_m rows of D1. With `keep`, all columns of P (N0 up to block_n0) stay in registers while it
    visits its columns of D1, block_n1 at a time, and `split` programs share these columns. Without, P comes block_n0
    columns at a time, and a program sums block_n1 columns of D1: more columns make more programs, and each computes P
    again.
    """

    schedule: str  #: "wmma" (RDNA, CDNA 5), "hopper", or "pair": two products through memory
    block_m: int = 64
    block_n0: int = 64
    block_n1: int = 64
    block_k: int = 32
    num_warps: int = 4
    keep: bool = False
    split: int = 1
    stages: int = 3  #: hopper: tiles under way

    @property
    def text(self) -> str:
        """The config as one word, which `parse_config` reads back: "wmma:block_m=64,..."."""
        return config_text(self)

    def programs(self, problem: ChainProblem) -> int:
        """Workgroups of the fused schedules."""
        across = self.split if self.keep else -(-problem.n1 // self.block_n1)
        return problem.batches * -(-problem.m // self.block_m) * across

    def flops(self, problem: ChainProblem) -> int:
        """What is computed, with every P that is computed again."""
        again = 1 if self.schedule == "pair" else self.split if self.keep else -(-problem.n1 // self.block_n1)
        return 2 * problem.batches * problem.m * problem.n0 * (again * problem.k0 + problem.n1)

    def lds_bytes(self, problem: ChainProblem) -> int:
        """LDS of a workgroup of the wmma schedule: one K-tile of A0 and B0, one tile of B1."""
        elements = (self.block_m + self.block_n0) * self.block_k + self.block_n1 * self.block_n0
        return elements * DTYPE_BYTES[problem.dtype]

    def why_invalid(self, problem: ChainProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if self.schedule not in SCHEDULES:
            return f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}"
        if problem.dtype not in OPERANDS:
            return f"a0, b0 and b1 must be {' or '.join(OPERANDS)}, got {problem.dtype}"
        if self.schedule == "pair":
            return None
        wanted = {"wmma": ("wmma", "wmma3"), "hopper": ("wgmma",)}[self.schedule]
        if gpu.matrix_instructions not in wanted:
            return f"the schedule multiplies by {wanted[0]}, {gpu.name} ({gpu.family}) has {gpu.matrix_instructions}"
        if max(problem.m, problem.k0, problem.n0, problem.n1) > MAX_SIZE:
            return f"sizes must be at most {MAX_SIZE}, got {problem.key}"
        sizes = (self.block_m, self.block_n0, self.block_n1, self.block_k, self.num_warps)
        if any(n < 1 or n & (n - 1) for n in sizes) or min(sizes[:4]) < 16:
            return f"blocks must be powers of two from 16 on, num_warps a power of two, got {sizes}"
        if self.keep and problem.n0 > self.block_n0:
            return f"keep holds all of N0 in registers: block_n0 must be at least {problem.n0}, got {self.block_n0}"
        if self.split < 1 or (self.split > 1 and not self.keep):
            return f"split shares the columns of D1 that keep visits, got split={self.split} with keep={self.keep}"
        if self.programs(problem) > MAX_PROGRAMS:
            return f"one launch has at most {MAX_PROGRAMS} programs, this takes {self.programs(problem)}"
        if self.schedule == "wmma":
            if self.block_m < 16 * self.num_warps:
                return f"each wave has 16 rows or more, got block_m={self.block_m} and num_warps={self.num_warps}"
            if min(self.block_k, self.block_n0) < gpu.matrix_depth:
                return (
                    f"{gpu.name} multiplies {gpu.matrix_depth} steps at once, which blocks of K0 and N0 must have, got "
                    f"block_k={self.block_k} and block_n0={self.block_n0}"
                )
            if self.lds_bytes(problem) > gpu.lds_bytes:
                return f"the tiles need {self.lds_bytes(problem)} bytes of LDS, {gpu.name} has {gpu.lds_bytes}"
        else:
            if self.block_m < 64 * (self.num_warps // 4) or self.num_warps < 4 or self.stages < 1:
                return (
                    "a warpgroup of four warps has 64 rows, and a stage is needed, got "
                    f"block_m={self.block_m}, num_warps={self.num_warps} and stages={self.stages}"
                )
            return self._unaligned(problem)
        return None

    def _unaligned(self, problem: ChainProblem) -> str | None:
        """Why asynchronous copies of 16 bytes cannot fetch the operands; Triton looks for multiples of 16."""
        if any(size % _COPIED for size in (problem.k0, problem.n0, problem.n1)):
            return f"K0, N0 and N1 must be multiples of {_COPIED}, got {problem.k0}, {problem.n0} and {problem.n1}"
        for name in ("a0", "b0", "b1"):
            matrix: Matrix = getattr(problem, name)
            major = problem.panel(name)[2]
            pitches = [stride for stride in matrix.strides if stride != 1]
            if major == "neither" or matrix.alignment < _COPIED or any(stride % _COPIED for stride in pitches):
                return (
                    f"{name} must be contiguous along rows or columns with other strides that are multiples of "
                    f"{_COPIED}, at an address that is one, got {matrix}"
                )
        return None


@read_when_traced
def parse_config(text: Any) -> ChainConfig:
    """The config whose `text` this is; knobs that are left out take their defaults. Raises ArgumentError."""
    if not isinstance(text, str):
        raise ArgumentError(f"config: expected a config or its text, got {shown(text)}")
    schedule, _, rest = text.partition(":")
    known = {f.name: f.type for f in fields(ChainConfig) if f.name != "schedule"}
    knobs: dict[str, int | bool] = {}
    for word in filter(None, rest.split(",")):
        name, _, value = word.partition("=")
        if name not in known:
            raise ArgumentError(f"config: unknown knob {name!r}, the knobs are {', '.join(known)}")
        flags = {"True": True, "False": False}
        if value not in flags if known[name] == "bool" else not value.isdecimal():
            raise ArgumentError(f"config: knob {name} must be of type {known[name]}, got {value!r}")
        knobs[name] = flags[value] if known[name] == "bool" else int(value)
    return replace(ChainConfig(schedule=schedule), **knobs)  # pyright: ignore[reportArgumentType]


def _padded(n: int, most: int, least: int = 16) -> int:
    """The power of two from `least` on that holds n, at most `most`."""
    return min(most, max(least, 1 << max(0, n - 1).bit_length()))


def candidates(problem: ChainProblem, gpu: Gpu) -> Iterator[tuple[ChainConfig, str]]:
    """Configs with the reason for their place, best first."""
    saves = _SAVING * problem.n0 >= problem.k0 + problem.n1
    if gpu.matrix_instructions == "wgmma":
        yield from _hopper(problem, gpu, saves)
    elif gpu.wmma_version:
        yield from _wmma(problem, gpu, saves)
    yield ChainConfig(schedule="pair"), "two products: P is small beside the rest, too wide for registers, or unaligned"


#: P's traffic, 2 N0 a row of A0, is worth saving where it is at least a quarter of that of A0 and D1. One H200: at a
#: quarter the fused chain takes 0.8 of the time, at a 64th 1.3 (docs/gemm-chain.md, 2026-11-20).
_SAVING = 8
_WMMA_WIDEST = 128  #: columns of P or D1 whose sums a wave of RDNA holds, with all the rest in 256 registers
_HOPPER_WIDEST = 128


def _wmma(problem: ChainProblem, gpu: Gpu, saves: bool) -> Iterator[tuple[ChainConfig, str]]:
    depth = gpu.matrix_depth
    block_k = _padded(problem.k0, 32, depth)
    block_m = 64 if problem.m > 32 else _padded(problem.m, 32)
    shared = {"schedule": "wmma", "block_m": block_m, "block_k": block_k, "num_warps": block_m // 16}
    if problem.n0 <= _WMMA_WIDEST and saves:
        block_n1 = _padded(problem.n1, 64)
        config = ChainConfig(**shared, block_n0=_padded(problem.n0, _WMMA_WIDEST, depth), block_n1=block_n1, keep=True)
        rows = config.programs(problem)
        # P again for other columns costs less than compute units without work
        split = max(1, min(-(-gpu.compute_units // rows), problem.n1 // max(block_n1, 2 * problem.k0)))
        yield replace(config, split=split), "all of P's columns fit the registers"
    if problem.n1 <= _WMMA_WIDEST:
        config = ChainConfig(**shared, block_n0=64, block_n1=_padded(problem.n1, _WMMA_WIDEST))
        yield config, "all of D1's columns fit the registers: P comes block by block"


def _hopper(problem: ChainProblem, gpu: Gpu, saves: bool) -> Iterator[tuple[ChainConfig, str]]:
    if problem.batches * -(-problem.m // 128) <= gpu.compute_units // 2:
        return  # too few programs: two products split theirs along K
    if problem.n0 <= _HOPPER_WIDEST and saves:
        config = ChainConfig(
            schedule="hopper", block_m=128, block_n0=_padded(problem.n0, _HOPPER_WIDEST),
            block_n1=_padded(problem.n1, 64), block_k=_padded(problem.k0, 64),
            num_warps=4 if problem.k0 <= 128 else 8, keep=True,
        )  # fmt: skip
        yield config, "all of P's columns fit the registers"
    if max(problem.k0, problem.n1) <= _HOPPER_WIDEST:
        config = ChainConfig(
            schedule="hopper", block_m=128, block_n0=64, block_n1=_padded(problem.n1, _HOPPER_WIDEST),
            block_k=_padded(problem.k0, _HOPPER_WIDEST), num_warps=8,
        )  # fmt: skip
        yield config, "A0's rows stay, and all of D1's columns fit the registers: P comes block by block"


def plan_with_reasons(problem: ChainProblem, gpu: Gpu) -> tuple[ChainConfig, str]:
    """The first valid candidate, and why it came first. Pure; raises UnsupportedError where there is none."""
    why = "there is no candidate"
    for config, reason in candidates(problem, gpu):
        why = config.why_invalid(problem, gpu)
        if why is None:
            return config, reason
    raise UnsupportedError(f"no gemm_chain schedule can do {problem.key} on {gpu.name}: {why}")


@lru_cache(maxsize=4096)
def plan(problem: ChainProblem, gpu: Gpu) -> ChainConfig:
    """The config that `gemm_chain` runs when none is given. Pure; raises UnsupportedError."""
    return plan_with_reasons(problem, gpu)[0]


def checked_config(problem: ChainProblem, gpu: Gpu, config: ChainConfig | None) -> ChainConfig:
    """`config` if it can do the problem, or what `plan` chooses. Raises InvalidConfigError, UnsupportedError."""
    if config is None:
        return plan(problem, gpu)
    why = config.why_invalid(problem, gpu)
    if why is not None:
        raise InvalidConfigError(f"config: {config.text} cannot do {problem.key} on {gpu.name}: {why}")
    return config
