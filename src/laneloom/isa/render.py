"""What a compiled kernel looks like: registers, LDS, occupancy, instruction mix, order of the hot loop,
listing.
"""

from __future__ import annotations

from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..gpu import Gpu
from .analysis import (
    Analysis,
    Mix,
    analyze,
    analyze_listing,
    instruction_mix,
    matrix_overlap,
    narrow_loads,
    order,
)
from .listing import Kind
from .occupancy import Occupancy, occupancy
from .ptx import parse_ptx
from .words import counted

STYLES = {
    Kind.MATRIX: "bold magenta",
    Kind.DUAL: "green",
    Kind.GLOBAL_LOAD: "bold cyan",
    Kind.GLOBAL_TO_LDS: "bold cyan",
    Kind.GLOBAL_STORE: "cyan",
    Kind.LDS_TO_GLOBAL: "cyan",
    Kind.LDS_LOAD: "blue",
    Kind.LDS_STORE: "blue",
    Kind.WAIT: "bold yellow",
    Kind.BARRIER: "bold red",
    Kind.BRANCH: "bold",
    Kind.SCRATCH: "bold white on red",
    Kind.OTHER: "dim",
}


class CompiledKernel(Protocol):
    """The part of a CodeObject that is shown; `isa` stands below `codegen` and does not import it."""

    @property
    def kernel(self) -> str: ...
    @property
    def gpu(self) -> Gpu: ...
    @property
    def asm(self) -> str: ...
    @property
    def vgprs(self) -> int: ...
    @property
    def sgprs(self) -> int: ...
    @property
    def vgpr_spills(self) -> int: ...
    @property
    def sgpr_spills(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def lds_bytes(self) -> int: ...
    @property
    def occupancy(self) -> int | None: ...
    @property
    def code_bytes(self) -> int: ...
    @property
    def num_warps(self) -> int: ...
    @property
    def wave(self) -> int: ...
    @property
    def triton_version(self) -> str: ...
    @property
    def workgroup_processor_mode(self) -> bool: ...


def analyze_code(code: CompiledKernel) -> Analysis:
    """The analysis of a CodeObject's text, AMDGCN or PTX."""
    if code.gpu.vendor == "nvidia":
        return analyze_listing(parse_ptx(code.asm))
    return analyze(code.asm, code.kernel)


def code_occupancy(code: CompiledKernel) -> Occupancy:
    """Waves per SIMD of a CodeObject with its LDS counted, and the limiter."""
    return occupancy(
        code.gpu,
        by_registers=code.occupancy or code.gpu.waves_per_simd(code.vgprs, code.wave, code.sgprs),
        lds_bytes=code.lds_bytes,
        num_warps=code.num_warps,
        workgroup_processor_mode=code.workgroup_processor_mode,
    )


def to_dict(code: CompiledKernel, *, listing: bool = True) -> dict[str, Any]:
    """Everything that `render` shows, as JSON can hold it. `hot_loop` is None for a kernel without a loop."""
    analysis = analyze_code(code)
    fits = code_occupancy(code)
    shown: dict[str, Any] = {
        "kernel": code.kernel,
        "gpu": code.gpu.name,
        "triton": code.triton_version,
        "registers": {
            "vgprs": code.vgprs,
            "sgprs": code.sgprs,
            "vgpr_spills": code.vgpr_spills,
            "sgpr_spills": code.sgpr_spills,
        },
        "scratch_bytes": code.scratch_bytes,
        "lds_bytes": code.lds_bytes,
        "code_bytes": code.code_bytes,
        "num_warps": code.num_warps,
        "wave": code.wave,
        "occupancy": {
            "waves_per_simd": fits.waves_per_simd,
            "limiter": fits.limiter,
            "by_registers": fits.by_registers,
            "by_lds": fits.by_lds,
            "wave_slots": fits.slots,
            "workgroups": fits.workgroups,
        },
    }
    return shown | analysis_dict(analysis, code.gpu, listing)


def analysis_dict(analysis: Analysis, gpu: Gpu, listing: bool) -> dict[str, Any]:
    """The part of `to_dict` that the instructions alone tell."""
    hot = analysis.hot
    shown: dict[str, Any] = {"mix": _mix_dict(analysis.mix), "hot_loop": None}
    if hot is not None:
        shown["hot_loop"] = {
            "label": hot.label,
            "lines": list(hot.lines),
            "order": order(hot),
            "order_with_lds_waits": order(hot, lds_waits=True),
            "mix": _mix_dict(instruction_mix(hot.instructions)),
            "matrix_overlap": matrix_overlap(hot) if gpu.vendor == "amd" else None,
            "narrow_loads": [i.text for i in narrow_loads(hot)],
        }
    if listing:
        shown["listing"] = [
            {"line": i.line, "kind": str(i.kind), "text": i.text} for i in analysis.listing.instructions
        ]
    return shown


def render(code: CompiledKernel, *, listing: bool = True) -> RenderableType:
    """The page of `laneloom isa`, for rich's console; without `listing`, the tables alone."""
    analysis = analyze_code(code)
    compiler = f", Triton {code.triton_version}" if code.triton_version else ""
    parts: list[RenderableType] = [
        Text.assemble((code.kernel, "bold"), f"  {code.gpu.name} ({code.gpu.family}){compiler}"),
        Text(),
        _resources(code),
        Text(),
        *analysis_parts(analysis, code.gpu, listing),
    ]
    return Group(*parts)


def analysis_parts(analysis: Analysis, gpu: Gpu, listing: bool) -> list[RenderableType]:
    """The part of the page that the instructions alone tell."""
    parts: list[RenderableType] = [_mix_table(analysis), Text(), *_loop_lines(gpu, analysis)]
    return [*parts, Text(), _listing(analysis)] if listing else parts


def _mix_dict(mix: Mix) -> dict[str, Any]:
    return {
        "instructions": mix.total,
        "kinds": {str(kind): count for kind, count in mix.kinds.items()},
        "widths": {str(kind): dict(widths) for kind, widths in mix.widths.items()},
        "matrix": mix.matrix,
        "fmas": mix.fmas,
    }


def _resources(code: CompiledKernel) -> Table:
    gpu, fits = code.gpu, code_occupancy(code)
    place = "WGP" if code.workgroup_processor_mode else "SM" if gpu.vendor == "nvidia" else "CU"
    spilled = f"{code.vgpr_spills} vector, {code.sgpr_spills} scalar"
    table = Table.grid(padding=(0, 2))
    table.add_row("Vector registers", f"{code.vgprs} of {gpu.vgprs_per_wave}")
    if gpu.vendor == "amd":
        table.add_row("Scalar registers", f"{code.sgprs} of {gpu.sgprs_per_wave}")
    style = "bold red" if code.vgpr_spills or code.sgpr_spills or code.scratch_bytes else ""
    table.add_row("Spilled registers", Text(f"{spilled}; scratch {code.scratch_bytes} B per lane", style=style))
    table.add_row("LDS" if gpu.vendor == "amd" else "Shared memory", f"{code.lds_bytes:,} of {gpu.lds_bytes:,} B")
    table.add_row("Workgroup", f"{counted(code.num_warps, 'wave')} of {code.wave}")
    by_lds = "" if fits.by_lds is None else f", LDS {fits.by_lds:g}"
    table.add_row(
        "Occupancy",
        f"{counted(fits.waves_per_simd, 'wave')} per SIMD ({counted(fits.workgroups, 'workgroup')} per {place}), "
        f"limited by {fits.limiter} (registers permit {fits.by_registers}{by_lds}, slots {fits.slots})",
    )
    table.add_row("Code", f"{code.code_bytes:,} B")
    return table


def _mix_table(analysis: Analysis) -> Table:
    hot = instruction_mix(analysis.hot.instructions) if analysis.hot else None
    table = Table(title="Instructions", title_justify="left", box=None, pad_edge=False, padding=(0, 2))
    table.add_column("kind")
    table.add_column("kernel", justify="right")
    table.add_column("hot loop", justify="right")
    table.add_column("in the hot loop" if hot else "in the kernel")
    detailed = hot or analysis.mix
    for kind, count in analysis.mix.kinds.items():
        names = detailed.matrix if kind is Kind.MATRIX else detailed.widths.get(kind, {})
        detail = ", ".join(f"{n} x {name}" for name, n in names.items())
        table.add_row(
            str(kind), str(count), str(hot.kinds.get(kind, 0)) if hot else "", detail, style=STYLES.get(kind)
        )
    table.add_row("all", str(analysis.mix.total), str(hot.total) if hot else "", "", style="bold")
    if analysis.mix.fmas:
        table.add_row("multiply-adds", str(analysis.mix.fmas), str(hot.fmas) if hot else "", "per lane")
    return table


def _loop_lines(gpu: Gpu, analysis: Analysis) -> list[RenderableType]:
    hot = analysis.hot
    if hot is None:
        return [Text("The kernel has no loop.")]
    first, last = hot.lines
    lines: list[RenderableType] = [
        Text.assemble(("Hot loop ", "bold"), f"{hot.label}, lines {first} to {last}"),
        Text(f"  {order(hot)}"),
        Text(f"  with LDS waits: {order(hot, lds_waits=True)}", style="dim"),
    ]
    if gpu.vendor == "amd" and hot.count(Kind.MATRIX):
        covered = f"{matrix_overlap(hot):.0%} of an iteration's matrix instructions"
        lines.append(Text(f"  every global load is in flight during at least {covered}"))
    narrow = narrow_loads(hot)
    if narrow:
        lines.append(Text(f"  {len(narrow)} loads are narrower than 16 bytes, the first: {narrow[0].text}"))
    return lines


def _listing(analysis: Analysis) -> Text:
    """Every instruction with its line; the hot loop has a bar at its left."""
    places: dict[int, list[str]] = {}
    for label, index in analysis.listing.labels.items():
        if label.startswith((".Ltmp", ".Lfunc", "$L__tmp", "$L__func")):
            continue  # marks of the debug information
        places.setdefault(index, []).append(label)
    hot = analysis.hot
    text = Text(no_wrap=True)
    for index, instruction in enumerate(analysis.listing.instructions):
        inside = hot is not None and hot.first <= index <= hot.last
        for label in places.get(index, ()):
            text.append(f"{'':6}{'┃' if inside else ' '} {label}:\n", style="bold")
        text.append(f"{instruction.line:5} ", style="dim")
        text.append("┃   " if inside else "    ", style="bold magenta")
        text.append(instruction.text + "\n", style=STYLES.get(instruction.kind, ""))
    return text
