"""What can be chosen for one product with a weight of few bits: the schedules and their knobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Self

from ...errors import ArgumentError
from ...gpu import MOST_PROGRAMS, Gpu
from ..config_words import config_of_words, config_text, read_when_traced
from ..matmul.dtypes import FLOAT_OUTPUTS, HALVES
from ..scalars import shown
from .problem import QuantizedProblem

#: schedule -> the module of its Config class; the kernel itself is kernels/<schedule>.py
SCHEDULES = {"tiles": "config", "fragments": "config_fragments", "hopper_weights": "config_hopper"}
MOST_PARTS = 64  #: of K
MOST_STEPS = 8  #: `tl.dot` of a group, or of a K-tile of small ones; larger groups have several sums that are scaled
MOST_WITH_ZEROS = 4  #: groups of a K-tile: of 8 Triton 3.6 makes wrong code
MOST_ROW_GROUPS = 1 << 12  #: whose ends a program loads
_MOST_EXTENT = 1 << 30  #: of M, N and K, so that sums of a position and a tile fit 32 bits


@dataclass(frozen=True, kw_only=True)
class BaseConfig:
    """A schedule's name and what every schedule answers; each schedule's own class adds its knobs."""

    schedule: str

    def why_invalid(self, problem: QuantizedProblem, gpu: Gpu) -> str | None:
        """Why this config cannot do `problem` on `gpu`, or None: the only statement of each constraint."""
        raise NotImplementedError

    def parts(self, problem: QuantizedProblem) -> int:
        """Parts of K whose FP32 sums `launch` leaves side by side, for `execute` to add up in their order."""
        return 1

    def with_knobs(self, **knobs: Any) -> Self:
        """The same config with some knobs changed."""
        return replace(self, **knobs)

    @property
    def text(self) -> str:
        """The config as one word, which `parse_config` reads back: "tiles:block_m=16,..."."""
        return config_text(self)


@dataclass(frozen=True, kw_only=True)
class QuantizedConfig(BaseConfig):
    """kernels/tiles.py: a program has block_m x block_n of C, and one of split_k parts of K."""

    schedule: str = "tiles"
    block_m: int  #: 1: products by multiply-adds in place of matrix instructions
    block_n: int
    block_k: int
    num_warps: int = 4
    stages: int = 2  #: K-tiles in flight
    split_k: int = 1
    group_m: int = 8  #: rows of tiles that are visited together, so that their operands stay in the L2

    def span(self, problem: QuantizedProblem) -> int:
        """K that a program takes at once: a K-tile, or as many as a group has, or a part of a large one."""
        if self.block_m == 1 or problem.group <= self.block_k:
            return self.block_k
        return min(problem.group, MOST_STEPS * self.block_k)

    def parts(self, problem: QuantizedProblem) -> int:
        """See BaseConfig."""
        return max(1, min(self.split_k, -(-problem.k // self.span(problem))))

    def programs(self, problem: QuantizedProblem) -> int:
        """Of the launch, but for parts of K."""
        return problem.row_tiles(self.block_m) * -(-problem.n // self.block_n)

    def lds_bytes(self, problem: QuantizedProblem) -> int:
        """Of the tiles that a program multiplies."""
        return 0 if self.block_m == 1 else 2 * (self.block_m + self.block_n) * self.block_k

    def why_invalid(self, problem: QuantizedProblem, gpu: Gpu) -> str | None:
        """See BaseConfig."""
        if problem.dtype not in HALVES:
            return f"tiles: multiplies {' and '.join(HALVES)}, got {problem.dtype}"
        if problem.dtype_out not in FLOAT_OUTPUTS:
            return f"out_dtype: expected fp32, fp16 or bf16, got {problem.dtype_out}"
        for name, size in (("M", problem.m), ("N", problem.n), ("K", problem.k)):
            if not 0 < size <= _MOST_EXTENT:
                return f"{name}: expected 1 to {_MOST_EXTENT}, got {size}"
        blocks = (self.block_m, self.block_n, self.block_k)
        if any(block < 1 or block & (block - 1) for block in blocks) or min(self.block_n, self.block_k) < 16:
            return f"tiles: blocks of powers of two, along N and K from 16 on, got {self.text}"
        if self.block_m not in (1, *(16 << i for i in range(5))):
            return f"tiles: block_m of 1, or of 16 to 256 rows, got {self.block_m}"
        if self.block_m == 1 and problem.m != 1 and not problem.ragged:
            return f"tiles: block_m of 1 is for a single row, got M = {problem.m}"
        if problem.ragged and problem.batches > MOST_ROW_GROUPS:
            return f"tiles: at most {MOST_ROW_GROUPS} groups of rows, got {problem.batches}"
        most = MOST_WITH_ZEROS if problem.zeros else MOST_STEPS
        if self.block_m > 1 and problem.group and self.block_k > most * problem.group:
            return f"tiles: block_k of at most {most} groups of {problem.group}, got {self.block_k}"
        if self.num_warps not in (1, 2, 4, 8) or self.stages < 1 or self.group_m < 1:
            return f"tiles: 1, 2, 4 or 8 warps, stages and group_m of 1 or more, got {self.text}"
        if problem.ragged and self.split_k > 1:
            return f"tiles: no parts of K of rows in groups, got {self.split_k}"
        if not 1 <= self.split_k <= MOST_PARTS:
            return f"tiles: split_k of 1 to {MOST_PARTS}, got {self.split_k}"
        if self.programs(problem) > MOST_PROGRAMS:
            return f"tiles: at most {MOST_PROGRAMS} programs, got {self.programs(problem)}"
        if (needed := self.lds_bytes(problem)) > gpu.lds_bytes:
            return f"tiles: needs {needed} bytes of LDS, {gpu.name} gives {gpu.lds_bytes}"
        return None


CONFIGS: dict[str, type[BaseConfig]] = {"tiles": QuantizedConfig}


@read_when_traced
def parse_config(text: Any) -> BaseConfig:
    """The config whose `text` this is; knobs that are left out take their defaults.

    Raises ArgumentError for an unknown schedule, an unknown or missing knob, or a value of another type.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"config: expected a config or its text, got {shown(text)}")
    schedule, _, rest = text.partition(":")
    if schedule not in SCHEDULES:
        raise ArgumentError(f"config: expected a schedule of {', '.join(SCHEDULES)}, got {schedule!r}")
    kind = import_module(f".{SCHEDULES[schedule]}", __package__).CONFIGS[schedule]
    return config_of_words(kind, filter(None, rest.split(",")))


def given_config(config: Any) -> BaseConfig:
    """A config, or the one whose text it is. Raises as `parse_config`."""
    return config if isinstance(config, BaseConfig) else parse_config(config)
