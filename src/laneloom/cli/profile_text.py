"""A profile for the terminal: conclusions, the costliest accesses, and the listing with counts beside the lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..isa.analysis import hot_loop
from ..isa.render import STYLES
from .profile_facts import conclusions, costliest_global, costliest_lds, is_inside, note, profile_of, source_lines

if TYPE_CHECKING:
    from ..emulator.counters import Profile
    from ..emulator.launch import LaunchRecord
    from .product import Product

_BAR = 20
_LEGEND = (
    "Beside each instruction: how many waves executed it, and per wave: lines of 128 bytes that it wants of memory; "
    "LDS clocks (clk) and those that bank conflicts add; the share of idle lanes. Counts are exact; none is a time."
)


def render_profile(product: Product, record: LaunchRecord) -> RenderableType:
    """One launch."""
    profile = profile_of(record)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for topic, sentence in conclusions(product, record):
        table.add_row(topic, sentence)
    return Group(
        Text(f"Profile of {record.kernel}", style="bold"), table, Text(), _kinds(profile), Text(), _sources(profile),
        Text(), _global_accesses(profile), Text(), _lds_accesses(profile), Text(), Text(_LEGEND, style="dim"), Text(),
        _listing(record, profile),
    )  # fmt: skip


def _kinds(profile: Profile) -> Table:
    total = max(profile.total("executed"), 1)
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for kind, count in profile.kinds.items():
        filled = round(_BAR * count / total)
        table.add_row(
            Text(str(kind), style=STYLES.get(kind, "")), f"{count:,}", f"{count / total:.1%}", Text("█" * filled)
        )
    return table


def _sources(profile: Profile, most: int = 8) -> Table:
    total = max(profile.total("executed"), 1)
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_row(Text("Python lines by instructions executed", style="bold"), "")
    for source, count in source_lines(profile)[:most]:
        table.add_row(_short(source), f"{count / total:.1%}")
    return table


def _short(source: str) -> str:
    """A source line by its file's name: the folder is long and mostly the same."""
    return source.rsplit("/", 1)[-1]


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("instruction")
    return table


def _global_accesses(profile: Profile, most: int = 8) -> Table:
    table = _table("memory: line", "waves", "bytes", "lines")
    for ins in costliest_global(profile, most):
        counts = (f"{n:,}" for n in (ins.executed, ins.requested_bytes, ins.transactions))
        table.add_row(str(ins.line), *counts, Text(ins.text, style=STYLES.get(ins.kind, "")))
    return table


def _lds_accesses(profile: Profile, most: int = 8) -> Table:
    table = _table("LDS: line", "waves", "bytes", "clocks", "conflicts")
    for ins in costliest_lds(profile, most):
        counts = (f"{n:,}" for n in (ins.executed, ins.requested_bytes, ins.lds_clocks))
        extra = Text(f"{ins.conflicts:,}", style="bold red" if ins.conflicts else "")
        table.add_row(str(ins.line), *counts, extra, Text(ins.text, style=STYLES.get(ins.kind, "")))
    return table


def _listing(record: LaunchRecord, profile: Profile) -> Text:
    """Every instruction with its counts; the hot loop has a bar at its left."""
    hot = hot_loop(record.asm, record.kernel)
    notes = [note(ins, profile.lanes) for ins in profile.instructions]
    width = max(map(len, notes), default=0)
    digits = max(len(f"{ins.executed:,}") for ins in profile.instructions)
    text = Text(no_wrap=True)
    for ins, beside in zip(profile.instructions, notes, strict=True):
        text.append(f"{ins.line:5} ", style="dim")
        text.append(f"{ins.executed:>{digits},} ", style="" if ins.executed else "dim")
        text.append(f"{beside:<{width}} ", style="bold red" if ins.conflicts else "yellow")
        text.append("┃ " if is_inside(ins, hot) else "  ", style="bold magenta")
        text.append(ins.text + "\n", style=STYLES.get(ins.kind, "") if ins.executed else "dim")
    return text
