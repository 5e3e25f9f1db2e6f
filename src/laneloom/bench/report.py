"""Tables and pictures from records: nothing in the documentation is typed by hand."""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ..ops.matmul.tuned import TunedEntry, shipped_entries
from .changes import geometric_mean
from .plots import pyplot_for, save_figure
from .records import METHOD_SINGLE, METHOD_SUSTAINED, Record, load

OURS = "laneloom"


def latest(records: Iterable[Record], *, candidate: str = OURS, method: str = METHOD_SUSTAINED) -> list[Record]:
    """The newest record of each problem, in the order in which the problems first appear."""
    newest: dict[tuple[tuple[str, object], ...], Record] = {}
    for record in records:
        if record.candidate == candidate and record.method == method:
            newest[tuple(sorted(record.problem.items()))] = record
    return list(newest.values())


def by_candidate(records: Iterable[Record]) -> list[dict[str, Record]]:
    """The newest record of each candidate, for each problem, in the order in which the problems first appear."""
    newest: dict[tuple[tuple[str, object], ...], dict[str, Record]] = {}
    for record in records:
        newest.setdefault(tuple(record.problem.items()), {})[record.candidate] = record
    return list(newest.values())


#: what tells of a record whether something is so
Judge = Callable[[Record], bool]


def never(record: Record) -> bool:
    """No record is."""
    return False


def measured_on(record: Record, sources: Iterable[str | Path]) -> str:
    """The sentence that says where and when, and whether the kernel's `sources` have changed since."""
    of = record.environment
    stale = " **Stale: the kernels have changed since.**" if record.is_stale(sources) else ""
    return (
        f"Measured on one {of.gpu}, {record.time[:10]}, torch {of.torch}, driver {of.driver}, commit {of.commit}"
        f"{' with changes' if of.dirty else ''}.{stale}"
    )


def config_words(record: Record) -> str:
    return _knob_words(str((record.config or {}).get("text", "")))


def _knob_words(text: str) -> str:
    """The knobs that tell two configs apart, in a few letters."""
    schedule, _, rest = text.partition(":")
    knobs = dict(word.split("=", 1) for word in rest.split(",") if "=" in word)
    words = [f"{knobs.get('block_m')}x{knobs.get('block_n')}x{knobs.get('block_k')}"]
    if schedule != "hopper":
        words.insert(0, schedule.removeprefix("hopper_"))
    if knobs.get("consumers") == "1":
        words.append("one consumer")
    if knobs.get("split_k", "1") != "1":
        words.append(f"K in {knobs['split_k']}")
    peers = (knobs.get("cluster_m", "1"), knobs.get("cluster_n", "1"))
    if peers != ("1", "1"):
        words.append(f"{peers[0]}x{peers[1]} CTAs")
    if knobs.get("tiles_n", "0") != "0":
        words.append(f"{knobs['tiles_n']} uneven")
    if knobs.get("cluster_k", "1") != "1":
        words.append(f"K in {knobs['cluster_k']} CTAs")
    said = {"own_tiles": "own tiles", "swapped": "transposed", "repack_a": "repacked", "copy_a": "A copied"}
    said["copy_b"] = "B copied"
    words += [name for knob, name in said.items() if knobs.get(knob) == "True"]
    return ", ".join(words)


def render_matmul_table(records: Iterable[Record], is_stale: Judge = never) -> str:
    """Markdown: one row a problem, with time, rate, ratio to the reference by both methods, error, and what ran.

    A ratio above 1 is faster than the reference. Rows of kernels or plans that have changed since are marked stale;
    where all are, one line says so.
    """
    records = list(records)
    rows = latest(records)
    stale_rows = [is_stale(record) for record in rows]
    all_stale = bool(rows) and all(stale_rows)
    single = {tuple(sorted(r.problem.items())): r for r in latest(records, method=METHOD_SINGLE)}
    lines = [
        "| M x N x K | layout | dtype | us | TFLOP/s | GB/s | x sustained | x single | error / budget | what ran |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record, stale in zip(rows, stale_rows, strict=True):
        problem = record.problem
        alone = single.get(tuple(sorted(problem.items())))
        share = "" if record.error is None or not record.error_budget else f"{record.error / record.error_budget:.2f}"
        marks = " (noisy)" if record.noisy else ""
        if stale and not all_stale:
            marks += " (stale)"
        lines.append(
            f"| {problem['m']} x {problem['n']} x {problem['k']} | {str(problem['layout']).upper()} "
            f"| {problem['dtype']} | {record.median_us:.2f} | {record.tflops:.0f} | {record.gbs:.0f} "
            f"| {record.ratio_to_reference:.3f}{marks} "
            f"| {f'{alone.ratio_to_reference:.3f}' if alone else ''} | {share} | {config_words(record)} |"
        )
    commits = ", ".join(sorted({f"{r.environment.commit}{' with changes' * r.environment.dirty}" for r in rows}))
    days = ", ".join(sorted({r.time[:10] for r in rows}))
    note = " Stale: kernels or plans have changed since." if all_stale else ""
    return "\n".join([f"Measured on {days} at commit {commits}.{note}", "", *lines])


def summarise(records: Iterable[Record], is_stale: Judge = never) -> str:
    """Markdown: the geometric mean, the least ratio and where, for each dtype and both methods.

    Below it stands of which dtypes records are stale.
    """
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
    every = Counter(r.problem["dtype"] for r in sustained)
    older = Counter(r.problem["dtype"] for r in sustained if is_stale(r))
    if older:
        words = ", ".join(f"{count} of {every[dtype]} in {dtype}" for dtype, count in older.items())
        lines += ["", f"Kernels or plans have changed since these were measured: {words}."]
    return "\n".join(lines)


#: kinds of products whose errors are told apart in a table of their own
WIDE_KINDS = ("fp32", "tf32", "3xtf32", "3xbf16", "fp64")


def sizes_of(record: Record) -> str:
    return "{m} x {n} x {k}".format_map(record.problem)


def _alone(records: Iterable[Record], record: Record, method: str, candidate: str) -> Record | None:
    """The newest record of the same problem by another method or candidate."""
    same = [
        r for r in records
        if r.op == record.op and r.problem == record.problem and r.method == method and r.candidate == candidate
    ]  # fmt: skip
    return same[-1] if same else None


def _in_a_sentence(ratios: Sequence[float]) -> str:
    return (
        f"{len(ratios)} products, {geometric_mean(ratios):.3f} x torch.matmul on average, at least "
        f"{min(ratios, default=math.nan):.3f}; {sum(ratio < 0.97 for ratio in ratios)} under 0.97."
    )


def render_outside(records: Iterable[Record], is_stale: Judge = never) -> str:
    """Markdown: sizes outside of the suite, both layouts in a row, with the geometric mean and the least ratio."""
    rows: dict[str, dict[str, Record]] = {}
    for record in latest(records):
        rows.setdefault(sizes_of(record), {})[str(record.problem["layout"])] = record
    ratios = [record.ratio_to_reference for pair in rows.values() for record in pair.values()]
    lines = [
        _in_a_sentence(ratios), "",
        "| M x N x K | NN, us | x torch | what ran | NT, us | x torch | what ran |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for sizes, pair in rows.items():
        cells = []
        for layout in ("nn", "nt"):
            if (record := pair.get(layout)) is None:
                cells += ["", "", ""]
            else:
                marks = " (noisy)" * record.noisy + " (stale)" * is_stale(record)
                cells += [f"{record.median_us:.2f}", f"{record.ratio_to_reference:.3f}{marks}", config_words(record)]
        lines.append(f"| {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def render_random(records: Iterable[Record], is_stale: Judge = never) -> str:
    """Markdown: products of random sizes, each in one layout and dtype; the slowest against the reference first."""
    rows = sorted(latest(records), key=lambda r: r.ratio_to_reference)
    lines = [
        _in_a_sentence([r.ratio_to_reference for r in rows]), "",
        "| M x N x K | layout | dtype | us | x sustained | what ran |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for record in rows:
        marks = " (noisy)" * record.noisy + " (stale)" * is_stale(record)
        lines.append(
            f"| {sizes_of(record)} | {str(record.problem['layout']).upper()} | {record.problem['dtype']} "
            f"| {record.median_us:.2f} | {record.ratio_to_reference:.3f}{marks} | {config_words(record)} |"
        )
    return "\n".join(lines)


def render_tuned(entries: Sequence[TunedEntry]) -> str:
    """Markdown: the products of the package's table, the largest gain over the cost model's choice first."""
    dates = sorted({str(entry.provenance["date"]) for entry in entries})
    lines = [
        f"{len(entries)} products, {' and '.join(dates)}.", "",
        "| M x N x K | layout | dtype | on | us | x the model's choice | x torch | what runs |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for entry in sorted(entries, key=lambda e: -e.gain):
        _, layout, dtypes, *_ = entry.key.split("/")
        torch = "" if entry.torch_us is None else f"{entry.torch_us / entry.time_us:.3f}"
        words = f"{' x '.join(map(str, entry.sizes[1:]))} | {layout.upper()} | {dtypes.partition('_')[0]}"
        words += f" | {str(entry.provenance['gpu']).split()[1]}"  # "NVIDIA H200"
        lines.append(f"| {words} | {entry.time_us:.2f} | {entry.gain:.3f} | {torch} | {_knob_words(entry.config)} |")
    return "\n".join(lines)


def render_precisions(records: Iterable[Record]) -> str:
    """Markdown: FP32, its precisions and FP64, with laneloom's and torch's relative errors side by side."""
    records = list(records)
    lines = [
        "| M x N x K | layout | kind | us | TFLOP/s | x sustained | x single | error | torch's error | what ran |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in latest(records):
        problem = record.problem
        if problem["dtype"] not in WIDE_KINDS:
            continue
        alone = _alone(records, record, METHOD_SINGLE, OURS)
        theirs = _alone(records, record, METHOD_SUSTAINED, record.reference)
        their_error = "" if theirs is None or theirs.error is None else f"{theirs.error:.1e}"
        if problem["dtype"] == "fp64":
            their_error = "the truth"
        lines.append(
            f"| {sizes_of(record)} | {str(problem['layout']).upper()} | {problem['dtype']} "
            f"| {record.median_us:.1f} | {record.tflops:.0f} "
            f"| {record.ratio_to_reference:.3f}{' (noisy)' * record.noisy} "
            f"| {f'{alone.ratio_to_reference:.3f}' if alone else ''} | {record.error or 0:.1e} | {their_error} "
            f"| {config_words(record)} |"
        )
    return "\n".join(lines)


def render_variants(records: Iterable[Record]) -> str:
    """Markdown: epilogues, scales, batches and groups against what torch has for the same."""
    lines = ["| what | M x N x K | us | TFLOP/s | against | x sustained | error |", "|---|---|---|---|---|---|---|"]
    for record in latest(records):
        problem = record.problem
        if problem.get("group") != "variants":
            continue
        what = f"{record.op}, {problem['dtype']}"
        if "batch" in problem:
            what += f", batch of {problem['batch']}"
        if "groups" in problem:
            what += f", {problem['groups']} groups, the largest of {problem['largest']} rows"
        lines.append(
            f"| {what} | {sizes_of(record)} | {record.median_us:.1f} | {record.tflops:.0f} | {record.reference} "
            f"| {record.ratio_to_reference:.3f}{' (noisy)' * record.noisy} | {record.error or 0:.1e} |"
        )
    return "\n".join(lines)


def render_host(records: Iterable[Record], method: str) -> str:
    """Markdown: host time of a warm call, ours and torch's."""
    records = list(records)
    lines = ["| M x N x K | layout | us | torch.matmul, us | ratio |", "|---|---|---|---|---|"]
    for record in latest(records, method=method):
        problem, theirs = record.problem, _alone(records, record, method, record.reference)
        their_us = theirs.median_us if theirs else math.nan
        lines.append(
            f"| {sizes_of(record)} | {str(problem['layout']).upper()} "
            f"| {record.median_us:.1f} | {their_us:.1f} | {record.median_us / their_us:.2f} |"
        )
    return "\n".join(lines)


def fill_pages(pages: Sequence[Path], tables: Mapping[str, str]) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- end of name -->` on the Markdown pages that have the place.

    Raises KeyError for a name that no page has a place for.
    """
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    for name, table in tables.items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)
        if not any(place.search(text) for text in texts.values()):
            raise KeyError(f"{', '.join(map(str, pages))}: no place named {name!r}")
        for page, text in texts.items():
            texts[page] = place.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


def fill_page(page: Path, tables: Mapping[str, str]) -> None:
    """`fill_pages` of one."""
    fill_pages([page], tables)


def measure_or_fill(
    description: str, rounds: int, run: Callable[[Path, int], None], name: str,
    render: Callable[[Iterable[Record]], str],
) -> None:  # fmt: skip
    """The command line of a bench that appends records to a file, by `run`, or fills the place `name` of a page."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="file of records to append to, or to read with --page")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--page", type=Path, help="measure nothing: fill this page's table from the records")
    arguments = parser.parse_args()
    if arguments.page is None:
        run(arguments.out, arguments.rounds)
    else:
        fill_page(arguments.page, {name: render(load(arguments.out))})


def plot_squares(records: Iterable[Record], path: Path, *, dtype: str = "bf16", layout: str = "nn") -> None:
    """TFLOP/s of square products over their size, ours and the reference's, both ways of timing; needs matplotlib."""
    figure, axes = pyplot_for(path).subplots(figsize=(7, 4.2))
    from matplotlib import ticker

    records = list(records)
    reference = next(r.reference for r in records if r.problem["dtype"] == dtype)
    best = max(r.tflops for r in records if r.problem["dtype"] == dtype and r.method == METHOD_SUSTAINED)
    for candidate, colour in ((OURS, "#1f6feb"), (reference, "#8b949e"), ("torch.compile", "#2da44e")):
        for method, style, word in ((METHOD_SUSTAINED, "-", "sustained"), (METHOD_SINGLE, ":", "single launch")):
            points = [
                (int(r.problem["m"]), r.tflops)
                for r in latest(records, candidate=candidate, method=method)
                if r.problem["dtype"] == dtype and r.problem["layout"] == layout and r.problem["group"] == "square"
            ]
            if points:
                label = f"{candidate}, {word}"
                axes.plot(*zip(*sorted(points), strict=True), style, marker="o", color=colour, label=label)
    axes.axhline(best, color="#d29922", linewidth=0.8, label="most that any product of the suite reached")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.ScalarFormatter())
    axes.set_xlabel("M = N = K")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{dtype} {layout.upper()}, one {records[0].environment.gpu}")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    save_figure(figure, path)


def main() -> None:
    """Fill a page's tables and draw its picture from a file of records."""
    parser = argparse.ArgumentParser(description="Fill the pages of matmul on Hopper from results/h200/matmul.jsonl.")
    parser.add_argument("records", type=Path)
    parser.add_argument("pages", type=Path, nargs="+", help="each table goes where a page has a place for it")
    parser.add_argument("--picture", type=Path, help="where the picture of the squares goes, an .svg file")
    parser.add_argument("--other", type=Path, help="records of another GPU, for the pages' tables of it")
    parser.add_argument("--readme", type=Path, help="a page with a place for the summary")
    arguments = parser.parse_args()
    # Only to mark stale figures, and it needs torch.
    from .matmul import METHOD_HOST, is_stale
    from .matmul_cases import OUTSIDE, RANDOM

    every = load(arguments.records)
    records = [r for r in every if r.op == "matmul" and r.problem.get("group") not in ("variants", OUTSIDE, RANDOM)]
    narrow = [r for r in records if r.problem["dtype"] not in WIDE_KINDS]
    tables = {
        "summary": summarise(records, is_stale),
        "table": render_matmul_table(narrow, is_stale),
        "precisions": render_precisions(records), "variants": render_variants(every),
        "host": render_host(records, METHOD_HOST),
        "outside": render_outside((r for r in every if r.problem.get("group") == OUTSIDE), is_stale),
        "random": render_random((r for r in every if r.problem.get("group") == RANDOM), is_stale),
        "tuned": render_tuned(shipped_entries("sm_90a")),
    }  # fmt: skip
    fill_pages(arguments.pages, tables)
    if arguments.readme is not None:
        words = "[Of random sizes](docs/hopper-gemm-products.md#random-sizes) from 1 to 16384: "
        words += tables["random"].partition("\n")[0]
        fill_page(arguments.readme, {"matmul": tables["summary"], "random": words})
    if arguments.picture is not None:
        plot_squares(records, arguments.picture)
    if arguments.other is not None:
        from . import report_other

        report_other.fill(arguments.other, arguments.pages, arguments.readme)


if __name__ == "__main__":
    main()
