"""Levels x K of the transform from whichever source there is: this machine's GPU, records, or the timing model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, InvalidConfigError, UnsupportedError
from ..gpu import Gpu, get_gpu
from ..ops.target import active_gpu, expected_device_type
from ..ops.transform3d import Transform3dConfig, Transform3dProblem, execute, ladder, reference
from .plots import pyplot_for, save_figure
from .records import Record, load

RECORDS = Path("results") / "h200" / "transform3d-ladder.jsonl"
TORCH = "three torch matmuls"
_CHECKED = 3  #: tensors that the emulator transforms before a time is predicted
_BUDGET = 4.0  #: times the bound on the rounding of an FP64 reference


@dataclass(frozen=True)
class Rung:
    """One level at one K."""

    level: str
    k: int
    time_us: float | None = None
    tflops: float | None = None
    share_of_bandwidth: float | None = None  #: the time of the limit over this one's
    footprint_bytes: int | None = None  #: of device memory: both batches, the matrix, what lies between passes
    limiter: str | None = None  #: where the time is predicted
    refused: str | None = None

    @property
    def cell(self) -> str:
        """What a table shows."""
        rate, share, memory = self.tflops or 0.0, self.share_of_bandwidth or 0.0, (self.footprint_bytes or 0) / 1e6
        return f"{rate:.2f}\n{share:.0%}\n{memory:.0f} MB"


@dataclass(frozen=True)
class Ladder:
    """Levels x K, and where they come from."""

    label: str  #: measured, recorded or predicted
    gpu: str
    count: int
    limit: str  #: what 100% of the bandwidth limit is
    rungs: tuple[Rung, ...]

    @property
    def orders(self) -> list[int]:
        """Every K, ascending."""
        return sorted({rung.k for rung in self.rungs})

    @property
    def levels(self) -> list[str]:
        """Every level that some K has, laneloom's own last."""
        return sorted({rung.level for rung in self.rungs}, key=lambda name: (name != TORCH, name))

    @property
    def headline(self) -> str:
        """One line: what the figures are."""
        return f"{self.label} on {self.gpu}, {self.count} tensors in FP64; 100% is {self.limit}"

    def at(self, level: str, k: int) -> Rung | None:
        """The rung, if there is one."""
        return next((rung for rung in self.rungs if (rung.level, rung.k) == (level, k)), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def find_rungs(orders: Sequence[int] | None, count: int, records: Path | None) -> Ladder:
    """Measured on the machine's GPU if there is one and no file is named; else from a file of records.

    Raises UnsupportedError where there is neither, ArgumentError for a file without records of `orders` and `count`.
    """
    if records is None and _has_gpu():
        return _measure(orders, count)
    if records is None:
        records = Path(__file__).parents[3] / RECORDS
        if not records.is_file():
            raise UnsupportedError(
                "there is no GPU here and no file of records: name one of laneloom's repository with --records, or "
                "predict with --gpu gfx1151"
            )
    if not records.exists():
        raise ArgumentError(f"--records: cannot read {records}: No such file or directory")
    chosen = [r for r in load(records) if r.problem.get("count") == count and (not orders or r.problem["k"] in orders)]
    if not chosen:
        wanted = f" and K in {list(orders)}" if orders else ""
        raise ArgumentError(f"{records} has no records of {count} tensors{wanted}")
    return from_records(chosen, "recorded")


def _has_gpu() -> bool:
    try:
        return active_gpu() is not None and expected_device_type() == "cuda"
    except UnsupportedError:
        return False


def _measure(orders: Sequence[int] | None, count: int) -> Ladder:
    from .transform3d_ladder import ORDERS, measure

    refusals: list[Rung] = []

    def refuse(k: int, level: str, why: str) -> None:
        refusals.append(Rung(level, k, refused=why))

    found = from_records(list(measure(orders or ORDERS, count, refused=refuse)), "measured")
    return Ladder(found.label, found.gpu, count, found.limit, (*found.rungs, *refusals))


def from_records(records: Sequence[Record], label: str) -> Ladder:
    """The newest record of every level and K; what the file lacks is refused again, by the configs themselves."""
    gpu, environment = get_gpu("sm_90a"), records[-1].environment
    if "H200" not in environment.gpu:
        gpu = active_gpu()
    newest = {(r.problem["k"], r.candidate): r for r in records if r.candidate != "copy"}
    count = records[-1].problem["count"]
    rungs = []
    for k in sorted({k for k, _ in newest}):
        problem = Transform3dProblem(k, count)
        for (order, level), record in newest.items():
            if order == k:
                held = ladder.footprint_of(record.config, problem) if record.config else None
                share = record.ratio_to_reference
                rungs.append(Rung(level, k, record.median_us, record.tflops, share, held))
        for level in ladder.LEVELS:
            name = ladder.level_name(level, gpu)
            if (k, name) not in newest and (why := _why_refused(level, problem, gpu)) is not None:
                rungs.append(Rung(name, k, refused=why))
    days = ", ".join(sorted({record.time[:10] for record in newest.values()}))
    limit = "a copy of the same bytes in the same run"
    return Ladder(label, f"{environment.gpu} ({days})", count, limit, tuple(rungs))


def _why_refused(level: str, problem: Transform3dProblem, gpu: Gpu) -> str | None:
    try:
        ladder.level_config(level, problem, gpu)
    except (InvalidConfigError, UnsupportedError) as why:
        return str(why).rpartition(f"on {gpu.name}: ")[2]  # the table says the rest
    return None


def predict_rungs(name: str, orders: Sequence[int], count: int) -> Ladder:
    """Every level in the emulator of an AMD GPU, checked against FP64, and its time by the timing model.

    Raises UnsupportedError for a GPU without a model, LaneloomError where a level is wrong.
    """
    gpu = get_gpu(name)
    rungs = []
    for k in sorted(set(orders)):
        problem = Transform3dProblem(k, count)
        limit_us = problem.bytes / gpu.bandwidth_gbs / 1e3
        for level in ladder.LEVELS:
            shown = ladder.level_name(level, gpu)
            why = _why_refused(level, problem, gpu)
            if why is not None:
                rungs.append(Rung(shown, k, refused=why))
                continue
            config = ladder.level_config(level, problem, gpu)
            _check(config, k, gpu)
            prediction = _predict(config, problem, gpu)
            time_us = prediction.time_us
            rungs.append(
                Rung(
                    shown, k, time_us, problem.flops / time_us / 1e6, limit_us / time_us,
                    ladder.footprint_bytes(config, problem), prediction.limiter,
                )
            )  # fmt: skip
    limit = f"reading and writing once at {gpu.bandwidth_gbs:.0f} GB/s"
    return Ladder("emulated and right, time predicted", f"{gpu.name} ({gpu.product})", count, limit, tuple(rungs))


def _tensors(k: int, count: int) -> tuple[Any, Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(k)
    x = torch.randn((count, k, k, k), dtype=torch.float64, generator=generator)
    return x, torch.randn((k, k), dtype=torch.float64, generator=generator), torch.full_like(x, float("nan"))


def _run(config: Transform3dConfig, x: Any, matrix: Any, out: Any, gpu: Gpu) -> None:
    execute.transform_into(x, matrix, out, "fp64", gpu, transpose=False, accumulate=False, config=config)


def _check(config: Transform3dConfig, k: int, gpu: Gpu) -> None:
    from ..emulator.driver import emulated
    from ..errors import LaneloomError

    x, matrix, out = _tensors(k, _CHECKED)
    with emulated(gpu, strict=True):
        _run(config, x, matrix, out, gpu)
    share = reference.worst_share(out.numpy(), x.numpy(), matrix.numpy())
    if not share <= _BUDGET * ladder.terms_ratio(config, k):
        raise LaneloomError(f"{config.text} is wrong at K={k} on {gpu.name}: {share:.1f} times the bound on rounding")


def _predict(config: Transform3dConfig, problem: Transform3dProblem, gpu: Gpu) -> Any:
    from ..timing import predict

    x, matrix, out = _tensors(problem.k, problem.count)
    return predict(lambda: _run(config, x, matrix, out, gpu), gpu)


def markdown(found: Ladder) -> str:
    """Levels x K as a table: TFLOP/s, the share of the bandwidth limit, MB held."""
    lines = [
        "| level | " + " | ".join(f"K = {k}" for k in found.orders) + " |",
        "|---" * (len(found.orders) + 1) + "|",
    ]
    for level in found.levels:
        rungs = [found.at(level, k) for k in found.orders]
        cells = ["-" if r is None or r.refused else r.cell.replace("\n", ", ") for r in rungs]
        lines.append(f"| {level} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot_rungs(found: Ladder, path: Path) -> None:
    """TFLOP/s of every level over K, the bandwidth limit dashed; needs matplotlib (the extra `report`)."""
    pyplot = pyplot_for(path)
    figure, axes = pyplot.subplots(figsize=(8.2, 4.6))
    limits: dict[int, float] = {}
    for level in found.levels:
        points = [r for r in found.rungs if r.level == level and r.tflops and r.share_of_bandwidth]
        limits |= {r.k: r.tflops / r.share_of_bandwidth for r in points if r.tflops and r.share_of_bandwidth}
        ours = level == "fused"
        axes.plot(
            [r.k for r in points], [r.tflops or 0.0 for r in points], marker="o", markersize=4, label=level,
            linewidth=2.4 if ours else 1.2, color="#1f6feb" if ours else None,
        )  # fmt: skip
    axes.plot(sorted(limits), [limits[k] for k in sorted(limits)], "--", color="#8b949e", label="bandwidth limit")
    axes.set_yscale("log")
    axes.set_xticks(found.orders)
    axes.set_xlabel("K")
    axes.set_ylabel("TFLOP/s, 6 K^4 a tensor")
    axes.set_title(f"{found.label}: {found.gpu}, {found.count} tensors", fontsize=10)
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.tight_layout()
    save_figure(figure, path)
