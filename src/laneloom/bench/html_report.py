"""One self-contained page of records: what was measured on which GPU, pictures, tables, and what is out of date."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import ArgumentError
from ..ops.matmul import tuned
from .plots import Axis, Chart
from .records import Record, load, read_commit
from .roofline import ceilings, roofline_svg

CSS = """
:root { color-scheme: light dark; --line: #d4d7dd; --soft: #f4f5f7; --dim: #5f6672; --bad: #b42318; --good: #067647; }
@media (prefers-color-scheme: dark) {
  :root { --line: #363b44; --soft: #1c2027; --dim: #9aa3b0; --bad: #f97066; --good: #47cd89; }
  body { background: #12151a; color: #e6e8eb; } a { color: #84adff; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 20px 16px 60px; max-width: 1080px; }
h1 { font-size: 1.6em; margin: 0.2em 0; } h2 { margin: 2em 0 0.4em; border-bottom: 1px solid var(--line); }
h3 { margin: 1.6em 0 0.3em; } p { margin: 0.5em 0; } .dim, .none { color: var(--dim); }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 12px 0; }
.scroll { overflow-x: auto; }
svg { min-width: 460px; width: 100%; max-width: 800px; display: block; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.4em 0; }
th, td { padding: 3px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; text-align: right; }
th { background: var(--soft); font-weight: 600; } th:first-child, td:first-child, .l { text-align: left; }
.p { white-space: normal; min-width: 21em; }
summary { cursor: pointer; padding: 6px 0; }
.stale, .down { color: var(--bad); } .up { color: var(--good); }
code { font-size: 0.92em; overflow-wrap: anywhere; }
"""


def gather(results: Path) -> dict[str, dict[str, list[Record]]]:
    """GPU's folder -> file -> its records. Raises ArgumentError for a folder without records, or a damaged file."""
    found: dict[str, dict[str, list[Record]]] = {}
    for path in sorted(results.rglob("*.jsonl")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if not any(sign in text for sign in ('"schema_version"', '"median_us"', "\ufffd")):
            continue  # lines of another kind, such as predictions
        records = load(path)
        if records:
            found.setdefault(path.parent.name, {})[path.stem] = records
    if not found:
        raise ArgumentError(f"{results}: no file of records, *.jsonl, is in this folder")
    return found


def report_page(results: Path) -> str:
    """The page of every record in a folder: nothing on it is fetched, nothing runs."""
    found = gather(results)
    is_stale = _staleness()
    commit, dirty = read_commit()
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in [*found, "tuned"])
    body = [
        f"<h1>laneloom {escape(__version__)}: what was measured</h1>",
        f'<p class="dim">Made {date} at commit {escape(commit)}{", with changes" if dirty else ""}. Measured figures '
        "are medians of interleaved CUDA-graph replays on the named GPU; predicted ones say so. "
        + ("A figure whose kernel has changed since is marked stale." if is_stale else
           "Without PyTorch here, nothing says whether a kernel has changed since.") + "</p>",
        f"<nav>{links}</nav>",
    ]  # fmt: skip
    for folder, files in found.items():
        body += _gpu_section(folder, files, is_stale)
    body += _tuned_section()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>laneloom report</title><style>{CSS}</style></head>\n<body>\n'
        + "\n".join(body) + "\n</body></html>\n"
    )  # fmt: skip


def _staleness() -> Callable[[Record], bool] | None:
    """Whether a record's kernel has changed since; None where torch is missing, which the lists of sources need."""
    if find_spec("torch") is None:
        return None
    from . import works

    current: dict[tuple[str, str | None], set[str]] = {}

    def hashes(op: str, config: str | None) -> set[str]:
        from .records import hash_sources

        known = {hash_sources(works.sources(op))} if (works.PACKAGE / "ops" / op).is_dir() else set()
        for sources in _published_sources(op, config):
            known.add(hash_sources(sources))
        return known

    def is_stale(record: Record) -> bool:
        key = record.op, (record.config or {}).get("text")
        if key not in current:
            current[key] = hashes(*key)
        return bool(record.kernel_hash and current[key]) and record.kernel_hash not in current[key]

    return is_stale


def _published_sources(op: str, config: str | None) -> list[list[Path]]:
    """The lists of sources that the benchmarks of an operation hash, of a product those of what its config runs."""
    from importlib import import_module

    if op == "matmul":
        from .kernel_sources import config_sources

        return [list(config_sources(config))]
    try:
        module = import_module(f".{op}", __package__)
    except ImportError:
        return []
    listed = [list(module.KERNEL_SOURCES)] if hasattr(module, "KERNEL_SOURCES") else []
    if op == "transform3d":
        listed += module.SOURCES.values()
    return listed


def _gpu_section(folder: str, files: dict[str, list[Record]], is_stale: Callable[[Record], bool] | None) -> list[str]:
    records = [r for rs in files.values() for r in rs]
    seen = [r.environment for r in records]
    places = sorted({(e.gpu, e.driver, e.torch, e.triton) for e in seen})
    parts = [f'<h2 id="{escape(folder)}">{escape(folder)}</h2>']
    for gpu, driver, torch, triton in places:
        words = [f"driver {driver}" if driver else "", f"torch {torch}" if torch else "", f"triton {triton}"]
        parts.append(f'<p class="dim">{escape(gpu)}: {escape(", ".join(word for word in words if word))}</p>')
    limits = ceilings(records)
    if limits.gbs and limits.tflops:
        reached = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in sorted(limits.tflops.items(), key=lambda i: -i[1]))
        parts += [
            "<h3>Roofline, measured</h3>",
            f"<p>Most that any record reached: {limits.gbs:.0f} GB/s on more than 256 MB; TFLOP/s by dtype: "
            f"{escape(reached)}. "
            "Dots are laneloom's kernels, sustained; above the slope, a cache holds the operands.</p>",
            f'<div class="scroll">{roofline_svg(newest(records), limits)}</div>',
        ]
    parts += _k_sweep(records)
    for name, rows in files.items():
        parts += _file_section(name, rows, is_stale)
    return parts


def newest(records: Iterable[Record]) -> list[Record]:
    """The newest of each problem, candidate and method, in the order of the file."""
    kept = {}
    for r in records:
        key = (r.op, json.dumps(dict(r.problem), sort_keys=True), r.candidate, r.method)
        if key not in kept or r.time >= kept[key].time:
            kept[key] = r
    return list(kept.values())


def _k_sweep(records: Sequence[Record]) -> list[str]:
    """TFLOP/s of the 3-D transform over K, for each candidate of its largest batch."""
    best: dict[tuple[str, int], Record] = {}
    for r in newest(records):
        if r.op == "transform3d" and r.tflops and r.problem.get("dtype") == "fp64" and "ranks" not in r.problem:
            key = (r.candidate, int(r.problem["k"]))
            if key not in best or r.bytes > best[key].bytes:
                best[key] = r
    if not best:
        return []
    chart = Chart(Axis("K"), Axis("TFLOP/s"))
    for name in dict.fromkeys(name for name, _ in best):
        points = sorted((k, r.tflops, r) for (candidate, k), r in best.items() if candidate == name)
        chart.line(name, [(k, rate) for k, rate, _ in points])
        chart.dots(name, [(k, rate, f"{name}, K = {k}: {rate:.1f} TFLOP/s, {r.gbs:.0f} GB/s") for k, rate, r in points])
    return ["<h3>K sweep of the 3-D transform, FP64, largest batch</h3>", f'<div class="scroll">{chart.svg()}</div>']


def _file_section(name: str, records: list[Record], is_stale: Callable[[Record], bool] | None) -> list[str]:
    rows = newest(records)
    ours = [r for r in rows if r.candidate == "laneloom" and r.reference != "laneloom"]
    parts = [f"<h3>{escape(name)}</h3>"]
    if ours:
        from .report import geometric_mean

        groups: dict[tuple[str, str, str], list[Record]] = {}
        for r in ours:
            groups.setdefault((r.op, r.reference, r.method.partition(":")[0]), []).append(r)
        for (op, reference, method), mine in groups.items():
            least = min(mine, key=lambda r: r.ratio_to_reference)
            stale = sum(bool(is_stale and is_stale(r)) for r in mine)
            parts.append(
                f"<p>{escape(op)}, {escape(method)}: {geometric_mean([r.ratio_to_reference for r in mine]):.3f} x "
                f"{escape(reference)} in the geometric mean of {len(mine)}, least {least.ratio_to_reference:.3f} x "
                f"({escape(problem_words(least))})."
                + (f' <span class="stale">{stale} are stale.</span>' if stale else "") + "</p>"
            )  # fmt: skip
    head = ("problem", "candidate", "us", "IQR", "TFLOP/s", "GB/s", "x reference", "error/budget", "date", "method")
    heads = "".join(f'<th class="{"l" if word in ("candidate", "method") else ""}">{word}</th>' for word in head)
    lines = [f"<tr>{heads}</tr>"]
    several = len({r.op for r in rows}) > 1
    for r in rows:
        problem = ": ".join(filter(None, [r.op if several else "", problem_words(r)]))
        ratio = r.ratio_to_reference
        shade = "up" if ratio > 1.01 else "down" if ratio < 0.99 else ""
        share = "" if r.error is None or not r.error_budget else f"{r.error / r.error_budget:.2f}"
        marks = '<span class="stale"> stale</span>' if is_stale and is_stale(r) else ""
        marks += " noisy" if r.noisy else ""
        cells: list[tuple[str, str]] = [
            ("p", escape(problem)), ("l", escape(r.candidate) + marks), ("", f"{r.median_us:.2f}"),
            ("", f"{r.iqr_us:.2f}"), ("", f"{r.tflops:.1f}" if r.tflops else ""),
            ("", f"{r.gbs:.0f}" if r.bytes else ""),
            (shade, f"{ratio:.3f}"), ("", share), ("", r.time[:10]), ("l", escape(r.method.partition(":")[0])),
        ]  # fmt: skip
        lines.append("<tr>" + "".join(f'<td class="{kind}">{text}</td>' for kind, text in cells) + "</tr>")
    table = f'<div class="scroll"><table>{"".join(lines)}</table></div>'
    parts.append(f"<details><summary>All {len(rows)} figures</summary>{table}</details>")
    return parts


def problem_words(record: Record) -> str:
    """A record's problem: sizes with their names, then words."""
    sizes = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in record.problem.items()
             if isinstance(v, int | float) and not isinstance(v, bool)]  # fmt: skip
    words = [str(v) for k, v in record.problem.items() if isinstance(v, str) and k not in ("group", "dtype_out")]
    words += [k for k, v in record.problem.items() if v is True]
    return ", ".join([*sizes, *words])


def _tuned_section() -> list[str]:
    """The package's tuned tables."""
    rows = []
    for path in sorted(tuned.table_path("any").parent.glob("*.json")):
        for e in tuned.read_table(path, path.stem, "package"):
            p = e.provenance
            cells: tuple[Any, ...] = (
                path.stem, e.key, e.objective, f"{e.time_us:.2f}", f"{e.model_us:.2f}", f"{e.gain:.3f}",
                p.get("trials", ""), p.get("date", ""), e.config,
            )  # fmt: skip
            rows.append("<tr>" + "".join(f'<td class="l">{escape(str(cell))}</td>' for cell in cells) + "</tr>")
    head = ("GPU", "product", "objective", "us", "model's choice, us", "gain", "trials", "date", "config")
    heads = "".join(f'<th class="l">{word}</th>' for word in head)
    parts = ['<h2 id="tuned">Tuned tables of the package</h2>']
    if not rows:
        return [*parts, '<p class="none">None: the cost models choose.</p>']
    return [*parts, f'<div class="scroll"><table><tr>{heads}</tr>{"".join(rows)}</table></div>']
