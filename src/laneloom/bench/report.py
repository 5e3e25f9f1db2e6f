"""Tables and pictures from records: nothing in the documentation is typed by hand."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .records import Record, load
from .timing import METHOD_SINGLE, METHOD_SUSTAINED

OURS = "laneloom"


def latest(records: Iterable[Record], *, candidate: str = OURS, method: str = METHOD_SUSTAINED) -> list[Record]:
    """The newest record of each problem, in the order in which the problems first appear."""
    newest: dict[tuple[tuple[str, object], ...], Record] = {}
    for record in records:
        if record.candidate == candidate and record.method == method:
            newest[tuple(sorted(record.problem.items()))] = record
    return list(newest.values())


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm; nan of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _config_words(record: Record) -> str:
    """The knobs that tell two configs apart, in a few letters."""
    text = str((record.config or {}).get("text", ""))
    schedule, _, rest = text.partition(":")
    knobs = dict(word.split("=", 1) for word in rest.split(",") if "=" in word)
    words = [f"{knobs.get('block_m')}x{knobs.get('block_n')}x{knobs.get('block_k')}"]
    if schedule != "hopper":
        words.insert(0, schedule.removeprefix("hopper_"))
    if knobs.get("consumers") == "1":
        words.append("one consumer")
    if knobs.get("split_k", "1") != "1":
        words.append(f"K in {knobs['split_k']}")
    words += [name for knob, name in (("swapped", "transposed"), ("repack_a", "repacked")) if knobs.get(knob) == "True"]
    return ", ".join(words)


def render_matmul_table(records: Iterable[Record], *, sources: Iterable[str | Path] = ()) -> str:
    """Markdown: one row a problem, with time, rate, ratio to the reference by both methods, error, and what ran.

    A ratio above 1 is faster than the reference. Rows whose kernel sources have changed since are marked stale;
    where all are, one line says so.
    """
    records = list(records)
    sources = list(sources)
    rows = latest(records)
    all_stale = bool(sources) and all(record.is_stale(sources) for record in rows)
    single = {tuple(sorted(r.problem.items())): r for r in latest(records, method=METHOD_SINGLE)}
    lines = [
        "| M x N x K | layout | dtype | us | TFLOP/s | GB/s | x sustained | x single | error / budget | what ran |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in rows:
        problem = record.problem
        alone = single.get(tuple(sorted(problem.items())))
        share = "" if record.error is None or not record.error_budget else f"{record.error / record.error_budget:.2f}"
        marks = " (noisy)" if record.noisy else ""
        if sources and not all_stale and record.is_stale(sources):
            marks += " (stale)"
        lines.append(
            f"| {problem['m']} x {problem['n']} x {problem['k']} | {str(problem['layout']).upper()} "
            f"| {problem['dtype']} | {record.median_us:.2f} | {record.tflops:.0f} | {record.gbs:.0f} "
            f"| {record.ratio_to_reference:.3f}{marks} "
            f"| {f'{alone.ratio_to_reference:.3f}' if alone else ''} | {share} | {_config_words(record)} |"
        )
    commits = ", ".join(sorted({f"{r.environment.commit}{' with changes' * r.environment.dirty}" for r in rows}))
    days = ", ".join(sorted({r.time[:10] for r in rows}))
    stale = " Stale: the kernels' sources have changed since." if all_stale else ""
    return "\n".join([f"Measured on {days} at commit {commits}.{stale}", "", *lines])


def summarise(records: Iterable[Record]) -> str:
    """Markdown: the geometric mean, the least ratio and where, for each dtype and both methods."""
    records = list(records)
    lines = [
        "| dtype | reference | products | mean x sustained | least x | where | mean x single |",
        "|---|---|---|---|---|---|---|",
    ]
    sustained, single = latest(records), latest(records, method=METHOD_SINGLE)
    for dtype in dict.fromkeys(r.problem["dtype"] for r in sustained):
        mine = [r for r in sustained if r.problem["dtype"] == dtype]
        least = min(mine, key=lambda r: r.ratio_to_reference)
        where = "{m} x {n} x {k} {layout}".format_map(least.problem)
        alone = geometric_mean([r.ratio_to_reference for r in single if r.problem["dtype"] == dtype])
        lines.append(
            f"| {dtype} | {least.reference} | {len(mine)} | {geometric_mean([r.ratio_to_reference for r in mine]):.3f} "
            f"| {least.ratio_to_reference:.3f} | {where} | {alone:.3f} |"
        )
    return "\n".join(lines)


def fill_page(page: Path, tables: Mapping[str, str]) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- end of name -->` on a Markdown page.

    Raises KeyError for a name that the page has no place for.
    """
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)
        if not place.search(text):
            raise KeyError(f"{page} has no place named {name!r}")
        text = place.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
    page.write_text(text, encoding="utf-8")


def plot_squares(records: Iterable[Record], path: Path, *, dtype: str = "bf16", layout: str = "nn") -> None:
    """TFLOP/s of square products over their size, ours and the reference's, both ways of timing; needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    records = list(records)
    reference = next(r.reference for r in records if r.problem["dtype"] == dtype)
    best = max(r.tflops for r in records if r.problem["dtype"] == dtype and r.method == METHOD_SUSTAINED)
    for candidate, colour in ((OURS, "#1f6feb"), (reference, "#8b949e")):
        for method, style, word in ((METHOD_SUSTAINED, "-", "sustained"), (METHOD_SINGLE, ":", "single launch")):
            points = [
                (int(r.problem["m"]), r.tflops)
                for r in latest(records, candidate=candidate, method=method)
                if r.problem["dtype"] == dtype and r.problem["layout"] == layout and r.problem["group"] == "square"
            ]
            axes.plot(*zip(*sorted(points), strict=True), style, marker="o", color=colour, label=f"{candidate}, {word}")
    axes.axhline(best, color="#d29922", linewidth=0.8, label="most that any product of the suite reached")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("M = N = K")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{dtype} {layout.upper()}, one {records[0].environment.gpu}")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> None:
    """Fill a page's tables and draw its picture from a file of records."""
    parser = argparse.ArgumentParser(description="Fill docs/hopper-gemm.md from results/h200/matmul.jsonl.")
    parser.add_argument("records", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--picture", type=Path, help="where the picture of the squares goes, an .svg file")
    arguments = parser.parse_args()
    # Only to mark stale figures, and it needs torch.
    from .matmul import KERNEL_SOURCES

    records = load(arguments.records)
    tables = {"summary": summarise(records), "table": render_matmul_table(records, sources=KERNEL_SOURCES)}
    fill_page(arguments.page, tables)
    if arguments.picture is not None:
        plot_squares(records, arguments.picture)


if __name__ == "__main__":
    main()
