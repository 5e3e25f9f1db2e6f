"""What can be chosen for one product: the base of every schedule's Config, and `plan`, which chooses.

Each GPU family has its candidate list in a file of its own (`plan_wmma.py` for RDNA), named in `FAMILIES`. Such a file
defines `candidates(problem, gpu)`, which yields configs with the reason for their place, best first, and `CONFIGS`, the
class of each of its schedules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, Self

from ...errors import ArgumentError, UnsupportedError
from ...gpu import Gpu
from ..config_words import config_of_words, config_text
from .problem import MatmulProblem

#: matrix instruction of a GPU -> the module that plans for it
FAMILIES = {"wmma": "plan_wmma", "mfma": "config_mfma", "wmma3": "config_dot", "wgmma": "plan_hopper"}
#: schedule -> the module of its Config class; the kernel itself is kernels/<schedule>.py
SCHEDULES = {
    "wmma": "plan_wmma",
    "wmma_coop": "plan_wmma",
    "wmma_pingpong": "plan_wmma",
    "wmma_wide": "plan_wmma",
    "fma": "plan_wmma",
    "mfma": "config_mfma",
    "dot": "config_dot",
    "blocks": "config_blocks",
    "wmma_direct": "config_direct",
    "hopper": "plan_hopper",
    "hopper_skinny": "plan_hopper",
    "hopper_plain": "plan_hopper",
    "hopper_cluster": "plan_hopper",
    "hopper_precise": "plan_hopper",
    "hopper_registers": "plan_hopper",
    "hopper_stream": "plan_hopper",
    "hopper_row": "plan_hopper",
    "hopper_rows": "plan_hopper",
    "hopper_async": "plan_hopper",
    "sgemm_naive": "config_sgemm",
    "sgemm_square": "config_sgemm",
    "sgemm_tiles": "config_sgemm",
    "sgemm_assembly": "config_sgemm",
    "sgemm_hopper": "config_sgemm",
}

MOST_GROUPS = 1024  #: of rows, whose ends a wave holds at once


@dataclass(frozen=True, kw_only=True)
class MatmulConfig:
    """A schedule's name and the knobs that all schedules share; each schedule's own class adds its own."""

    schedule: str
    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    group_m: int = 8  #: rows of tiles that are visited together, so that their operands stay in the L2

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        """Why this config cannot do `problem` on `gpu`, or None: the only statement of each constraint."""
        raise NotImplementedError

    def with_knobs(self, **knobs: Any) -> Self:
        """The same config with some knobs changed."""
        if hasattr(self, "__post_init__") or not knobs.keys() <= self.__dict__.keys():
            return replace(self, **knobs)
        made = object.__new__(type(self))  # what `replace` gives, which looks at every field: a fifth of a plan's time
        made.__dict__.update(self.__dict__, **knobs)
        return made

    def parts(self, problem: MatmulProblem) -> int:
        """Parts of K whose sums `launch` leaves side by side, for `execute` to add up in their order and to finish."""
        return 1

    @property
    def text(self) -> str:
        """The config as one word, which `MatmulConfig.parse` reads back: "wmma:block_m=128,block_n=..."."""
        return config_text(self)

    @classmethod
    def parse(cls, text: str) -> MatmulConfig:
        """The config whose `text` this is; knobs that are left out take their defaults.

        Raises ArgumentError for an unknown schedule, an unknown or missing knob, or a value of another type.
        """
        schedule, _, rest = text.partition(":")
        if schedule not in SCHEDULES:
            raise ArgumentError(f"config: expected a schedule of {', '.join(SCHEDULES)}, got {schedule!r}")
        kind = import_module(f".{SCHEDULES[schedule]}", __package__).CONFIGS[schedule]
        return kind.from_words(word for word in rest.split(",") if word)

    @classmethod
    def from_words(cls, words: Iterator[str]) -> Self:
        """The config of this class with the knobs given as "name=value"."""
        return config_of_words(cls, words)


def why_not_plain(schedule: str, problem: MatmulProblem, *, takes_groups: bool = False) -> str | None:
    """Why a schedule that knows no scales of blocks along K, nor rows in groups unless it takes them, cannot do
    `problem`.
    """
    if problem.scales:
        return f"{schedule}: sums all of K alike, here blocks of it have scales"
    return why_not_grouped(schedule, problem, takes_groups=takes_groups)


def why_not_grouped(schedule: str, problem: MatmulProblem, *, takes_groups: bool = False) -> str | None:
    """Why a schedule cannot do rows, or K, in groups: it takes none, or not so many or such groups."""
    if not problem.in_groups:
        return None
    if not takes_groups and problem.k_grouped:
        return f"{schedule}: sums all of K in one product, here each group of it is one of its own"
    if not takes_groups:
        return f"{schedule}: multiplies all rows of a product by one matrix, here each group of them has its own"
    if problem.grouped and problem.batches > MOST_GROUPS:
        return f"b: expected at most {MOST_GROUPS} groups, got {problem.batches}"
    if problem.has_terms:
        return "products in groups have no terms, as alpha, c, bias or an activation, but scales of rows"
    return None


@dataclass(frozen=True)
class NamedPlan:
    """A rule of presets.PLANNERS, which stands where a config does and chooses one for each problem."""

    name: str

    @property
    def text(self) -> str:
        """The rule's name, which `presets.named_config` reads back."""
        return self.name

    def choose(self, problem: MatmulProblem, gpu: Gpu) -> MatmulConfig:
        """The config that the rule takes for a problem; it may be invalid there."""
        return import_module(".presets", __package__).PLANNERS[self.name](problem, gpu)


@dataclass(frozen=True)
class Plan:
    """The config that runs, why it came first, and what was passed over before it."""

    config: MatmulConfig
    reason: str
    passed_over: tuple[tuple[MatmulConfig, str], ...]  #: candidates that came before, with their `why_invalid`
    source: str = "cost model"  #: or "tuned, exact", "tuned, nearest": an entry of `tuned`'s tables


def plan_with_reasons(problem: MatmulProblem, gpu: Gpu, *, use_tables: bool = True) -> Plan:
    """What the tuner found for the product or one nearby, else the first valid candidate of the GPU's family.

    Pure but for the tables, which are read once in a process; without them the cost model alone decides. How many rows,
    or how much of K, each group of a grouped product has is not known: it is planned as if all had as many.
    Raises UnsupportedError if no schedule can do the problem.
    """
    if use_tables and not problem.in_groups and (found := import_module(".tuned", __package__).find(problem, gpu)):
        return Plan(found.config, found.reason, (), found.source)
    family = "plan_blocks" if problem.scales else FAMILIES[gpu.matrix_instructions]
    passed_over: list[tuple[MatmulConfig, str]] = []
    for config, reason in import_module(f".{family}", __package__).candidates(problem.of_equal_groups(), gpu):
        why = config.why_invalid(problem, gpu)
        if why is None:
            return Plan(config, reason, tuple(passed_over))
        passed_over.append((config, why))
    first = passed_over[0][1] if passed_over else "there is no candidate"
    raise UnsupportedError(f"{first} (no matmul schedule can do {problem.key} on {gpu.name})")


@lru_cache(maxsize=4096)
def plan(problem: MatmulProblem, gpu: Gpu) -> MatmulConfig:
    """The config that `matmul` runs when none is given. Pure but for the tables; raises UnsupportedError."""
    return plan_with_reasons(problem, gpu).config
