"""Tables and the picture of docs/attention.md, from the records of `laneloom.bench.attention`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..gpu import get_gpu
from ..ops.attention.plan_decode import plan_decode
from .attention import COPY, CUDNN, DECODE_SOURCES, FLASH, KERNEL_SOURCES, Case, decode_problem
from .plots import pyplot_for, save_figure
from .records import Record, load
from .report import OURS, fill_page, geometric_mean, measured_on
from .suites import load_suite

_GPU = get_gpu("sm_90a")
_SWEEP = 16 * 16384  #: heads times positions of the sweep over lengths


def _newest(records: Iterable[Record]) -> dict[str, dict[tuple[Any, ...], dict[str, Record]]]:
    """Operation -> problem -> candidate -> its newest record."""
    found: dict[str, dict[tuple[Any, ...], dict[str, Record]]] = {}
    for record in records:
        problem = tuple(record.problem.items())
        found.setdefault(record.op, {}).setdefault(problem, {})[record.candidate] = record
    return found


def _words(problem: dict[str, Any]) -> str:
    heads, lengths = (
        f"{problem[a]}" if problem[a] == problem[b] else f"{problem[a]}:{problem[b]}"
        for a, b in (("heads", "kv_heads"), ("queries", "keys"))
    )
    words = f"{problem['batch']} x {heads} x {lengths} x {problem['d']} | {'yes' if problem['causal'] else 'no'}"
    return f"{words} | {problem['dtype']}"


def _ratio(by_name: dict[str, Record], other: str) -> float | None:
    if other not in by_name or OURS not in by_name:
        return None
    if by_name[OURS].reference == other:
        return by_name[OURS].ratio_to_reference
    return by_name[other].median_us / by_name[OURS].median_us


def _is_sweep(problem: dict[str, Any]) -> bool:
    positions = problem["batch"] * problem["heads"] * problem["queries"]
    return positions == _SWEEP and problem["d"] == 128 and problem["heads"] == 16


def problem_sizes(problem: dict[str, Any]) -> tuple[int, ...]:
    """A problem as the suite's file has it."""
    return tuple(int(problem[x]) for x in ("batch", "heads", "kv_heads", "queries", "keys", "d", "causal"))


def render_products(records: Iterable[Record]) -> str:
    """Markdown: one row a problem of forward and backward."""
    found = _newest(records)
    forward, backward = (found.get(f"attention {what}", {}) for what in ("forward", "backward"))
    if not forward:
        return "Nothing measured yet."
    lines = [
        "| B x H x N x D | causal | dtype | forward us | TFLOP/s | x cuDNN | x flash | backward us | TFLOP/s | x cuDNN "
        "| x flash | error / budget |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    (sizes,) = load_suite("attention").values()
    suite = {tuple(size) for size in sizes}
    ratios: dict[str, list[float]] = {"forward": [], "backward": []}
    newest = next(iter(forward.values()))[OURS]
    for problem, by_name in forward.items():
        row = _words(dict(problem))
        worst = 0.0
        for what, names in (("forward", by_name), ("backward", backward.get(problem, {}))):
            ours = names.get(OURS)
            if ours is None:
                row += " | | | |"
                continue
            newest = max(newest, ours, key=lambda record: record.time)
            worst = max(worst, (ours.error or 0) / (ours.error_budget or 1))
            cudnn, flash = _ratio(names, CUDNN), _ratio(names, FLASH)
            ratios[what] += [cudnn] if cudnn and problem_sizes(dict(problem)) in suite else []
            row += f" | {ours.median_us:.1f} | {ours.tflops:.0f} | " + " | ".join(
                "" if x is None else f"{x:.3f}" for x in (cudnn, flash))
        lines.append(f"| {row} | {worst:.2f} |")
    head = (
        f"{measured_on(newest, KERNEL_SOURCES)} "
        f"Geometric means over cuDNN on the suite (the first eleven): "
        f"forward {geometric_mean(ratios['forward']):.3f} (least {min(ratios['forward'], default=0):.3f}), "
        f"backward {geometric_mean(ratios['backward']):.3f} (least {min(ratios['backward'], default=0):.3f})."
    )
    return "\n".join([head, "", *lines])


def render_decode(records: Iterable[Record]) -> str:
    """Markdown: one row a problem of decoding, against copying the keys and values."""
    lines = [
        "| B x H x N x D | dtype | us | GB/s | of the copy's GB/s | x cuDNN | x flash | what ran |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for problem, by_name in _newest(records).get("attention decode", {}).items():
        ours, copy = by_name[OURS], by_name[COPY]
        ratios = ["" if x is None else f"{x:.2f}" for x in (_ratio(by_name, CUDNN), _ratio(by_name, FLASH))]
        words = _words(dict(problem)).replace(" | no |", " |")
        text = (ours.config or {}).get("text", "")
        is_stale = ours.is_stale(DECODE_SOURCES) or text != plan_decode(decode_problem(_case(ours)), _GPU).text
        lines.append(
            f"| {words} | {ours.median_us:.1f} | {ours.gbs:.0f} | {ours.gbs / copy.gbs:.2f} | {' | '.join(ratios)} | "
            f"{text}{' (stale)' if is_stale else ''} |"
        )
    return "\n".join(lines)


def _case(record: Record) -> Case:
    return Case(**{field.name: record.problem[field.name] for field in fields(Case)})


def render_summary(records: Iterable[Record]) -> str:
    """Markdown: the suite's geometric means and least ratios over cuDNN, one row a head dimension."""
    found = _newest(records)
    (sizes,) = load_suite("attention").values()
    suite = {tuple(size) for size in sizes}
    lines = [
        "| D | cases | forward x cuDNN | least | x torch flash | backward x cuDNN | least | x torch flash |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[int, dict[tuple[str, str], list[float]]] = {}
    for what in ("forward", "backward"):
        for problem, by_name in found.get(f"attention {what}", {}).items():
            if problem_sizes(dict(problem)) in suite and CUDNN in by_name:
                row = ratios.setdefault(int(dict(problem)["d"]), {})
                for other in (CUDNN, FLASH):
                    ratio = _ratio(by_name, other)
                    row.setdefault((what, other), []).extend([] if ratio is None else [ratio])
    for d, row in sorted(ratios.items()):
        cells = [str(d), str(len(row["forward", CUDNN]))]
        for what in ("forward", "backward"):
            cudnn, flash = row.get((what, CUDNN), []), row.get((what, FLASH), [])
            cells += [f"{geometric_mean(cudnn):.2f}", f"{min(cudnn):.2f}"] if cudnn else ["", ""]
            cells += [f"{geometric_mean(flash):.2f}"] if flash else [""]
        lines.append(f"| {' | '.join(cells)} |")
    shown = [by_name for what in ("forward", "backward") for by_name in found.get(f"attention {what}", {}).values()]
    if any(r.is_stale(KERNEL_SOURCES) for by_name in shown for r in by_name.values()):
        lines += ["", "Kernels have changed since some of these were measured: the page says which."]
    return "\n".join(lines)


def plot_lengths(records: Iterable[Record], path: Path) -> None:
    """TFLOP/s over the length of the sequences, 16,384 positions together, D = 128."""
    found = _newest(records)
    figure, axes = pyplot_for(path).subplots(1, 2, figsize=(9, 3.6), sharex=True, sharey=True)
    for ax, what in zip(axes, ("forward", "backward"), strict=True):
        for causal, style in ((False, "-"), (True, "--")):
            for name, colour in ((OURS, "C0"), (CUDNN, "C1"), (FLASH, "C2")):
                points = sorted(
                    (dict(problem)["queries"], by_name[name].tflops)
                    for problem, by_name in found.get(f"attention {what}", {}).items()
                    if _is_sweep(dict(problem)) and dict(problem)["causal"] == causal and name in by_name
                )
                if points:
                    label = f"{name}{', causal' if causal else ''}"
                    ax.plot(*zip(*points, strict=True), style, marker="o", markersize=3, color=colour, label=label)
        ax.set_title(f"{what}, D = 128")
    lengths = sorted({x for ax in axes for line in ax.lines for x in line.get_xdata()})
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
        ax.set_xlabel("length, 16,384 positions together")
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("TFLOP/s")
    axes[1].legend(fontsize=8, handlelength=3, loc="upper left", frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path)


def main() -> None:
    """Fill the page's tables and draw its picture from a file of records."""
    parser = argparse.ArgumentParser(description="Fill docs/attention.md from results/h200/attention.jsonl.")
    parser.add_argument("records", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--picture", type=Path, help="where the picture over lengths goes, an .svg file")
    parser.add_argument("--readme", type=Path, help="a page with a place for the summary")
    parser.add_argument("--other", type=Path, help="records of another GPU, whose tables have places of their own")
    arguments = parser.parse_args()
    records = load(arguments.records)
    others = {} if arguments.other is None else {"other ": load(arguments.other)}
    for prefix, found in {"": records, **others}.items():
        tables = {f"{prefix}products": render_products(found), f"{prefix}decode": render_decode(found)}
        fill_page(arguments.page, tables)
        if arguments.readme is not None:
            fill_page(arguments.readme, {f"{prefix}attention": render_summary(found)})
    if arguments.picture is not None:
        plot_lengths(records, arguments.picture)


if __name__ == "__main__":
    main()
