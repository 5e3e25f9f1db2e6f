"""The FP32 ladder as rows: what each step compiles to, whether it is right, and how long it takes.

On RDNA a step is compiled, run and checked in the emulator, and its time predicted (timing model); published figures of
the article that it comes from stand beside it. On Hopper the times are records of an H200.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, LaneloomError, UnsupportedError
from ..gpu import Gpu, get_gpu
from ..isa.analysis import hot_loop
from ..isa.listing import Kind
from ..ops.matmul import execute, reference
from ..ops.matmul.config_sgemm import LADDER
from ..ops.matmul.problem import MatmulProblem
from ..verify import Guarded
from .plots import pyplot_for, save_figure
from .records import Record, load
from .timing_model import cases

RECORDS = Path("results") / "h200" / "sgemm-ladder.jsonl"
REFERENCE = "torch.matmul"
FMA = "FMA instructions"  #: the candidate that does nothing else
PLANNED = "planned"  #: what `laneloom.matmul` runs by itself
CHECKED = (200, 136, 76)  #: M, N, K of what is emulated: edges in every direction
ROCBLAS_US = 4499.2  #: at 4096 cubed on the Radeon RX 7900 XTX, by the article that the steps come from

TECHNIQUES = {
    "sgemm_k1": "naive", "sgemm_k2": "LDS tiles", "sgemm_k3": "register tiles", "sgemm_k4": "next tile prefetched",
    "sgemm_k5": "padded LDS, 16 x 8 a lane", "sgemm_k6": "assembly, register banks",
    "sgemm_k7": "unrolled, s_setprio", "sgemm_k8": "spread loads, scalar bases",
    "sgemm_h1": "naive", "sgemm_h2": "shared-memory tiles", "sgemm_h3": "register tiles",
    "sgemm_h4": "16-byte accesses", "sgemm_h5": "double buffering", "sgemm_h6": "cp.async, 8 x 16 a thread",
    "sgemm_h7": "both register banks", PLANNED: "what matmul runs",
}  # fmt: skip


@dataclass(frozen=True)
class Rung:
    """One step. Null where it does not apply, or where nobody knows."""

    step: str
    technique: str
    vgprs: int | None = None
    lds_bytes: int | None = None
    dual_issue_pairs: int | None = None  #: multiply-add pairs in the loop's code
    dual_issue_share: float | None = None  #: of the loop's multiply-adds, those in pairs
    lds_bank_conflicts: int | None = None  #: clocks that they add in the emulated product
    error: float | None = None  #: RDNA: at the emulated element nearest to its budget; Hopper: of the norm, relative
    budget: float | None = None
    predicted_us: float | None = None
    measured_us: float | None = None
    published_us: float | None = None
    x_vendor: float | None = None  #: the vendor's time over the measured one, else over the predicted one
    limiter: str | None = None  #: predicted

    @property
    def right(self) -> bool | None:
        """Whether the error is in its budget; None where nothing was checked."""
        return None if self.error is None or self.budget is None else self.error <= self.budget


@dataclass(frozen=True)
class Ladder:
    """All steps on one GPU."""

    gpu: str
    product: str
    size: int  #: M = N = K of the times
    vendor: str  #: what `x_vendor` compares with
    label: str  #: "predicted" or "measured"
    rungs: tuple[Rung, ...]
    fma_tflops: float | None = None  #: measured rate of FMA instructions alone

    def tflops(self, time_us: float | None) -> float | None:
        """The rate of the product in a time."""
        return None if time_us is None else 2 * self.size**3 / time_us / 1e6

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        facts = {name: getattr(self, name) for name in ("gpu", "product", "size", "vendor", "label", "fma_tflops")}
        return facts | {"rows": [asdict(rung) for rung in self.rungs]}


def find_rungs(gpu: str, size: int, steps: Sequence[str] | None, *, predict: bool, records: Path | None) -> Ladder:
    """The ladder on a GPU. `steps` by name ("k6", "sgemm_k6"), all by default.

    Raises ArgumentError for an unknown step or a file without records, UnsupportedError for a GPU without a ladder.
    """
    row = get_gpu(gpu)
    if row.vendor == "nvidia":
        return _recorded(row, size, steps, records)
    if not row.emulated or row.major == 9:
        raise UnsupportedError(
            f"--gpu: the FP32 ladder is for RDNA 3, 3.5, 4 and Hopper, got {row.name} ({row.family})"
        )
    rungs = [_emulated_rung(name, row, size, predict=predict) for name in _chosen("sgemm_k", steps)]
    return Ladder(row.name, row.product, size, "rocBLAS, published", "predicted", tuple(rungs))


def _chosen(prefix: str, steps: Sequence[str] | None) -> list[str]:
    known = [name for name in LADDER if name.startswith(prefix)]
    wanted = ["sgemm_" + step.removeprefix("sgemm_") for step in steps or known]
    for name in wanted:
        if name not in known:
            names = ", ".join(step.removeprefix("sgemm_") for step in known)
            raise ArgumentError(f"--step: expected one of {names}, got {name.removeprefix('sgemm_')!r}")
    return wanted


def _emulated_rung(name: str, gpu: Gpu, size: int, *, predict: bool) -> Rung:
    from ..emulator.driver import emulated
    from .predicted import predict_matmul

    m, n, k = CHECKED
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    out = Guarded((m, n), "fp32")
    with emulated(gpu, strict=True, profile=True) as emulation:
        execute.multiply_into(a, b, out.array, ("fp32", "fp32", "fp32"), gpu, LADDER[name])
    if not out.untouched_outside():
        raise LaneloomError(f"{name} on {gpu.name} wrote beyond its output")
    verdict = reference.judge(out.array.astype(np.float64), a.astype(np.float64), b.astype(np.float64), "fp32")
    profile = emulation.launches[0].profile
    code = execute.code_object(MatmulProblem.contiguous(size, size, size, dtype="fp32"), gpu, LADDER[name])
    loop = hot_loop(code.asm)
    pairs = [i for i in loop.instructions if i.kind is Kind.DUAL and i.fmas] if loop else []
    fmas = sum(i.fmas for i in loop.instructions) if loop else 0
    published = {case.config: case.published_us for case in cases() if case.config in LADDER}
    here = gpu.name == "gfx1100" and size == 4096
    prediction = predict_matmul(size, size, size, gpu, dtype="fp32", config=name) if predict else None
    return Rung(
        name.removeprefix("sgemm_").upper(), TECHNIQUES[name], code.vgprs, code.lds_bytes, len(pairs),
        sum(i.fmas for i in pairs) / fmas if fmas else None, profile.conflicts if profile else None,
        verdict.error, verdict.budget, prediction.time_us if prediction else None, None,
        published[name] if here else None, ROCBLAS_US / prediction.time_us if prediction and here else None,
        prediction.limiter if prediction else None,
    )  # fmt: skip


def _recorded(gpu: Gpu, size: int, steps: Sequence[str] | None, path: Path | None) -> Ladder:
    path = path or Path(__file__).parents[3] / RECORDS
    if not path.is_file():
        raise UnsupportedError(
            f"there is no file of records {path}: name one of laneloom's repository with --records"
        )
    newest = {r.candidate: r for r in load(path) if r.problem.get("m") == size}  # later lines replace earlier ones
    names = _chosen("sgemm_h", steps)
    found = [newest[name] for name in (*names, *(() if steps else (PLANNED,))) if name in newest]
    if not found:
        raise ArgumentError(f"{path} has no records of the ladder at {size} cubed")
    fma = newest[FMA].tflops if FMA in newest else None
    reference_rung = [_recorded_rung(newest[REFERENCE])] if REFERENCE in newest and not steps else []
    rungs = (*reference_rung, *(_recorded_rung(record) for record in found))
    return Ladder(gpu.name, found[0].environment.gpu, size, "cuBLAS", "measured", rungs, fma)


def _recorded_rung(record: Record) -> Rung:
    config = record.config or {}
    name = record.candidate
    step = {PLANNED: "planned", REFERENCE: "cuBLAS"}.get(name, name.removeprefix("sgemm_").upper())
    return Rung(
        step, TECHNIQUES.get(name, "torch.matmul in FP32"), config.get("vgprs"), config.get("lds_bytes"),
        error=record.error, budget=record.error_budget, measured_us=record.median_us,
        x_vendor=record.ratio_to_reference,
    )  # fmt: skip


def markdown(found: Ladder) -> str:
    """The table of docs/sgemm-ladder.md."""
    emulated = found.label == "predicted"
    names = ["step", "technique", "VGPRs", "LDS bytes"]
    names += (
        ["pairs in the loop", "conflicts", "predicted us", "published us", "x rocBLAS, predicted"] if emulated else []
    )
    names += [] if emulated else ["us", "TFLOP/s", "x cuBLAS", "of FMA"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for r in found.rungs:
        rate = found.tflops(r.measured_us)
        of_fma = rate / found.fma_tflops if rate and found.fma_tflops else None
        cells = [r.step, r.technique, r.vgprs, r.lds_bytes]
        if emulated:
            cells += [r.dual_issue_pairs, r.lds_bank_conflicts, _form(r.predicted_us, ",.0f")]
            cells += [_form(r.published_us, ",.0f"), _form(r.x_vendor, ".2f")]
        else:
            cells += [_form(r.measured_us, ",.1f"), _form(rate, ".1f"), _form(r.x_vendor, ".3f"), _form(of_fma, ".0%")]
        lines.append(f"| {' | '.join('' if c is None else str(c) for c in cells)} |")
    return "\n".join(lines)


def _form(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def plot_rungs(found: Ladder, path: Path) -> None:
    """TFLOP/s of every step as bars: predicted and published, or measured; needs matplotlib (the extra `report`)."""
    pyplot = pyplot_for(path)
    series = {"predicted": "#1f6feb", "measured": "#1f6feb", "published": "#8b949e"}
    shown = {kind: [found.tflops(getattr(r, f"{kind}_us")) for r in found.rungs] for kind in series}
    shown = {kind: values for kind, values in shown.items() if any(values)}
    if not shown:
        raise ArgumentError("--plot: no time of these steps is predicted, measured or published")
    figure, axes = pyplot.subplots(figsize=(8.2, 4.2))
    width = 0.8 / max(len(shown), 1)
    for number, (kind, values) in enumerate(shown.items()):
        places = [x + width * (number - (len(shown) - 1) / 2) for x in range(len(values))]
        bars = axes.bar(places, [v or 0.0 for v in values], width, label=kind, color=series[kind])
        axes.bar_label(bars, [f"{v:.1f}" if v else "" for v in values], fontsize=7)
    peak = found.fma_tflops or get_gpu(found.gpu).peak_tflops["fp32"]
    axes.axhline(peak, linestyle="--", color="#d29922", linewidth=1)
    axes.text(-0.5, peak, " FMA alone, measured" if found.fma_tflops else " FMA peak", va="bottom", fontsize=7)
    axes.set_xticks(range(len(found.rungs)), [f"{r.step}\n{_wrapped(r.technique)}" for r in found.rungs], fontsize=7)
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"FP32 product of {found.size} cubed, {found.product}: {' and '.join(shown)}", fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0.0, 0.9))
    figure.tight_layout()
    save_figure(figure, path)


def _wrapped(text: str, width: int = 13) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def write_page(page: Path, images: Path) -> None:
    """The tables of the page, between its marks, and its plots."""
    text = page.read_text(encoding="utf-8")
    for gpu in ("gfx1100", "h200"):
        found = find_rungs(gpu, 4096, None, predict=True, records=None)
        plot_rungs(found, images / f"sgemm-ladder-{gpu}.svg")
        head, rest = text.split(f"<!-- {gpu} -->\n", 1)
        tail = rest.split(f"<!-- end of {gpu} -->\n", 1)[1]
        text = f"{head}<!-- {gpu} -->\n{markdown(found)}\n<!-- end of {gpu} -->\n{tail}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    """Fill the page of the ladder and draw its plots: needs no GPU, and some minutes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--page", type=Path, default=Path("docs/sgemm-ladder.md"))
    parser.add_argument("--images", type=Path, default=Path("docs/images"), help="the folder of its plots")
    arguments = parser.parse_args()
    write_page(arguments.page, arguments.images)


if __name__ == "__main__":
    main()
