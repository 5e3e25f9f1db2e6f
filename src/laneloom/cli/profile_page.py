"""A profile as one self-contained HTML page: no script, no font, no picture from anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from .. import __version__
from ..isa.analysis import hot_loop
from ..isa.listing import Kind
from ..isa.words import counted
from .profile_facts import conclusions, costliest_global, costliest_lds, is_inside, note, profile_of, source_lines

if TYPE_CHECKING:
    from ..emulator.counters import InstructionProfile, Profile
    from ..emulator.launch import LaunchRecord
    from ..isa.analysis import Loop
    from .product import Outcome, Product

# Hues that stay apart for the colour-blind and read on both backgrounds: light, dark.
_COLOURS = {
    Kind.MATRIX: ("#9c2a80", "#e58acb"), Kind.VALU: ("#4a5560", "#aab4bf"), Kind.DUAL: ("#3c6e2f", "#93c47f"),
    Kind.SALU: ("#8a6a1f", "#d5b46a"), Kind.GLOBAL_LOAD: ("#00708f", "#62c3de"),
    Kind.GLOBAL_STORE: ("#00708f", "#62c3de"), Kind.ATOMIC: ("#00708f", "#62c3de"),
    Kind.LDS_LOAD: ("#2b55b3", "#8fb1ff"), Kind.LDS_STORE: ("#2b55b3", "#8fb1ff"),
    Kind.LDS_OTHER: ("#2b55b3", "#8fb1ff"), Kind.WAIT: ("#a35200", "#f0a35c"),
    Kind.BARRIER: ("#b3261e", "#ff8f86"), Kind.SCRATCH: ("#b3261e", "#ff8f86"),
}  # fmt: skip
_GLOBAL = {"waves": "executed", "bytes": "requested_bytes", "lines": "transactions"}
_LDS = {"waves": "executed", "bytes": "requested_bytes", "clocks": "lds_clocks", "conflicts": "conflicts"}
_OTHER = ("#6b7280", "#8b94a1")
_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c2126; --quiet: #5d6873; --line: #dfe3e8; --panel: #f5f7f9;
  --hot: #9c2a80; --heat: 156 42 128; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --ink: #e4e8ec; --quiet: #98a3ae; --line: #2c3238;
  --panel: #1c2126; --hot: #e58acb; --heat: 229 138 203; --bad: #ff8f86 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem clamp(.75rem, 3vw, 2rem); background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.35rem; margin: 0; line-height: 1.25 } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
p { margin: .25rem 0; max-width: 70ch } .quiet { color: var(--quiet) }
.bad { color: var(--bad); font-weight: 600 } .ok { font-weight: 600 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem; margin: 1rem 0 }
dt { color: var(--quiet) } dd { margin: 0; overflow-wrap: anywhere }
.bar { display: flex; height: 1.6rem; border-radius: 4px; overflow: hidden; margin: .5rem 0 }
.bar i { display: block; min-width: 1px; border-right: 1px solid var(--ground) }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-size: .85rem }
.key span::before { content: ""; display: inline-block; width: .7em; height: .7em; border-radius: 2px;
  margin-right: .4em; background: var(--c) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums }
th { text-align: right; font-weight: 600; color: var(--quiet); white-space: nowrap }
th, td { padding: .12rem .6rem; white-space: nowrap } td.n { text-align: right }
th.t, td.t { text-align: left }
td.t, .code { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }
table.accesses tr + tr td { border-top: 1px solid var(--line) } .code tr:target td { outline: 1px solid var(--hot) }
.code { font-size: .78rem; line-height: 1.45; border: 1px solid var(--line); border-radius: 6px;
  background: var(--panel); overflow: auto; max-height: 85vh; padding: 0 }
.code table { font-size: inherit; width: 100% } .code td { padding: 0 .6rem }
.code thead th { position: sticky; top: 0; background: var(--panel); padding: .35rem .6rem; z-index: 1;
  font-family: system-ui, sans-serif; box-shadow: 0 1px var(--line) }
.code td.t { width: 100%; border-left: 3px solid transparent } .code tr.hot td.t { border-left-color: var(--hot) }
.code tr.cold { opacity: .5 } .code td.s { color: var(--quiet); text-align: right } .code td.c { color: var(--bad) }
a { color: inherit }
"""


def page(product: Product, outcome: Outcome) -> str:
    """The whole page of a run whose launches were profiled."""
    result = '<span class="ok">right</span>' if outcome.ok else '<span class="bad">wrong</span>'
    schedule = f"<dt>Schedule</dt><dd>{escape(outcome.config.text)}</dd>" if outcome.config else ""
    launches = "".join(_launch(product, record) for record in outcome.launches)
    empty = "" if outcome.launches else "<p>Nothing to multiply, so no kernel ran.</p>"
    title = f"matmul {product.text} on {product.gpu.name}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}{_colour_rules()}</style></head><body>
<h1>{escape(title)}</h1>
<p class="quiet">{escape(product.gpu.family)}, emulated by laneloom {escape(__version__)}.
Counts are exact; none is a time.</p>
<dl><dt>Result</dt><dd>{result}: largest error {outcome.verdict.error:.3g} of {outcome.verdict.budget:.3g} allowed</dd>
{schedule}</dl>
{launches}{empty}</body></html>
"""


def _name(kind: Kind) -> str:
    return "k-" + str(kind).replace(" ", "-").lower()


def _colour_rules() -> str:
    """One colour per kind, for both backgrounds."""
    pairs = {kind: _COLOURS.get(kind, _OTHER) for kind in Kind}
    light, dark = ("".join(f".{_name(k)}{{--c:{pair[i]}}}" for k, pair in pairs.items()) for i in (0, 1))
    return f"{light}@media (prefers-color-scheme: dark){{{dark}}}[class^=k-] td.t,td.t[class*=k-]{{color:var(--c)}}"


def _launch(product: Product, record: LaunchRecord) -> str:
    profile = profile_of(record)
    hot = hot_loop(record.asm, record.kernel)
    x, y, z = record.grid
    said = "".join(f"<dt>{escape(topic)}</dt><dd>{escape(text)}</dd>" for topic, text in conclusions(product, record))
    return f"""<h2>{escape(record.kernel)}</h2>
<p class="quiet">{counted(x * y * z, "workgroup")} of {counted(record.workgroup_size, "thread")}</p>
<dl>{said}</dl>
<h2>What was executed</h2>{_kinds(profile)}
<h2>Costliest accesses of memory</h2>{_accesses(costliest_global(profile, 10), _GLOBAL)}
<h2>Costliest accesses of LDS</h2>{_accesses(costliest_lds(profile, 10), _LDS)}
<h2>Python lines</h2>{_sources(profile)}
<h2>Listing</h2>
<p class="quiet">Waves: how many executed the line; the darker, the more. Beside it, per wave: lines of 128 bytes wanted
of memory, LDS clocks (clk) and those that bank conflicts add, idle lanes. {_hot_link(hot)}</p>
{_listing(profile, hot)}"""


def _hot_link(hot: Loop | None) -> str:
    return f'The bar marks the <a href="#L{hot.lines[0]}">hot loop</a>.' if hot else ""


def _kinds(profile: Profile) -> str:
    total = max(profile.total("executed"), 1)
    parts = [(kind, count, count / total) for kind, count in profile.kinds.items()]
    bars = "".join(
        f'<i class="{_name(kind)}" style="flex:{count};background:var(--c)" title="{kind} {share:.1%}"></i>'
        for kind, count, share in parts
    )
    key = "".join(f'<span class="{_name(kind)}">{kind} {count:,} ({share:.1%})</span>' for kind, count, share in parts)
    return f'<div class="bar">{bars}</div><div class="key">{key}</div>'


def _table(classes: str, head: Iterable[tuple[str, str]], rows: Iterable[str]) -> str:
    cells = "".join(f'<th class="{kind}">{name}</th>' for kind, name in head)
    body = f"<thead><tr>{cells}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="{classes}">{body}</table></div>'


def _accesses(instructions: Iterable[InstructionProfile], columns: dict[str, str]) -> str:
    """One row each; columns: heading -> field of InstructionProfile."""

    def row(ins: InstructionProfile) -> str:
        cells = "".join(
            f'<td class="n{" bad" if field == "conflicts" and ins.conflicts else ""}">{getattr(ins, field):,}</td>'
            for field in columns.values()
        )
        return (
            f'<tr class="{_name(ins.kind)}"><td class="n"><a href="#L{ins.line}">{ins.line}</a></td>{cells}'
            f'<td class="t">{escape(ins.text)}</td></tr>'
        )

    head = [("", "line"), *(("", name) for name in columns), ("t", "instruction")]
    return _table("accesses", head, map(row, instructions))


def _sources(profile: Profile, most: int = 12) -> str:
    total = max(profile.total("executed"), 1)
    rows = [
        f'<tr><td class="t" title="{escape(source)}">{escape(source.rsplit("/", 1)[-1])}</td>'
        f'<td class="n">{count:,}</td><td class="n">{count / total:.1%}</td></tr>'
        for source, count in source_lines(profile)[:most]
    ]
    return _table("accesses", [("t", "line"), ("", "executed"), ("", "share")], rows)


def _listing(profile: Profile, hot: Loop | None) -> str:
    most = max((ins.executed for ins in profile.instructions), default=1) or 1
    rows, before = [], ""
    for ins in profile.instructions:
        source = ins.source.rsplit("/", 1)[-1] if ins.source else ""
        shown = source if source != before else ""
        before = source
        state = " ".join(name for name, on in (("hot", is_inside(ins, hot)), ("cold", not ins.executed)) if on)
        heat = f' style="background:rgb(var(--heat) / {0.28 * ins.executed / most:.3f})"' if ins.executed else ""
        beside = f'<td class="n{" c" if ins.conflicts else ""}">{escape(note(ins, profile.lanes))}</td>'
        rows.append(
            f'<tr id="L{ins.line}" class="{_name(ins.kind)} {state}"><td class="s">{ins.line}</td>'
            f'<td class="n"{heat}>{ins.executed:,}</td>{beside}<td class="t">{escape(ins.text)}</td>'
            f'<td class="s">{escape(shown)}</td></tr>'
        )
    head = [("", "line"), ("", "waves"), ("", "per wave"), ("t", "instruction"), ("", "Python")]
    return _table("", head, rows).replace('class="scroll"', 'class="code" tabindex="0"', 1)
