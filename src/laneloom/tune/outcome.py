"""What trying one config gave, and the text of who tried it where."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..ops.matmul.config import MatmulConfig
from ..ops.matmul.problem import MatmulProblem


@dataclass(frozen=True)
class Outcome:
    """One config, tried."""

    config: MatmulConfig
    time_us: float | None  #: None where it was not timed
    why: str | None = None  #: why it was not timed to the end: wrong, refused, spills, or far slower than the best

    @property
    def finished(self) -> bool:
        """Whether the time counts."""
        return self.why is None and self.time_us is not None


@dataclass(frozen=True)
class Confirmed:
    """What the last look at a study's best found, in one run."""

    config: MatmulConfig
    time_us: float
    model_us: float  #: of the cost model's choice
    torch_us: float | None = None  #: of torch.matmul, where that can do the product


class Evaluator(Protocol):
    """How configs of one problem are tried: on the GPU, or by the timing model."""

    objective: str  #: "measured" or "predicted"
    method: str  #: how, in a line, for the table
    where: dict[str, str | int | bool]  #: GPU and versions, for the table; a study is of one of them

    def evaluate(self, configs: Sequence[MatmulConfig], best_us: float | None) -> Iterator[Outcome]:
        """Each config verified, and timed only if it is right; an outcome as soon as it is known."""
        ...

    def confirm(self, configs: Sequence[MatmulConfig], model: MatmulConfig) -> Confirmed:
        """The best of a few, looked at closely, beside the cost model's choice."""
        ...

    def close(self) -> None:
        """Let go of what the problem needed."""
        ...


def kernel_hash() -> str:
    """SHA-256 (16 hex digits) of the sources that a product's time depends on."""
    package = Path(__file__).parents[1]
    files = sorted([*package.glob("ops/matmul/kernels/*"), *package.glob("device/*"), *package.glob("ops/matmul/*.py")])
    digest = hashlib.sha256()
    for path in files:
        if path.is_file() and path.suffix in (".py", ".cu", ".cuh"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cut(problem: MatmulProblem, config: MatmulConfig) -> tuple[int, int, int]:
    """M, N and K of a small product that meets the same edges: one whole tile and what is left over, twice along K."""

    def shorter(size: int, block: int, whole: int) -> int:
        return size if size <= (whole + 1) * block else whole * block + size % block

    return (
        shorter(problem.m, config.block_m, 1),
        shorter(problem.n, config.block_n, 1),
        shorter(problem.k, config.block_k, 3),
    )
