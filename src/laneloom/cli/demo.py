"""`laneloom demo`: the main job in one command, on any machine: compile, execute, check, explain."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import __version__
from ..gpu import Gpu, emulated_gpu
from ..isa.words import counted
from .product import Outcome, Product, compile_product, parse_product, random_operands, run_product
from .terminal import check_writable, new_console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ..codegen import CodeObject
    from ..isa.analysis import Loop
    from ..ops.matmul.config import MatmulConfig
    from .damage import Damage

_SIZE = 1024  # large enough for the tiles that a real product gets
_DAMAGED_SIZE = 256  # enough workgroups to be wrong in
_PICTURE_WIDTH = 106  # no strip of a hot loop wraps
_DEFAULT_GPUS = ("gfx1151", "gfx1201")


def demo(
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", help="An emulated GPU; may be repeated. Default: gfx1151, gfx1201.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random matrices.")] = 0,
    svg: Annotated[Path | None, typer.Option("--svg", help="Also draw the report as a picture here.")] = None,
) -> None:
    """Compile, run, check and doubt a matmul, without a GPU."""
    shape = f"{_SIZE},{_SIZE},{_SIZE}"
    # An fp32 C shows the error of the sums; a rounding to fp16 would cover it.
    products = [parse_product("matmul", name, shape, "fp16", "fp32") for name in gpu or _DEFAULT_GPUS]
    for product in products:
        emulated_gpu(product.gpu)
    report = _Report(svg)
    reasons = run_demo(products, seed, report)
    if svg is not None:
        report.save(svg)
    if reasons:
        raise typer.Exit(1)


class _Report:
    """Where the demo writes: the terminal, and a recording for the picture."""

    def __init__(self, svg: Path | None):
        if svg is not None:
            check_writable("--svg", svg)
        self.console = new_console()
        self.recording = new_console(record=True, width=_PICTURE_WIDTH, file=io.StringIO()) if svg else None

    @property
    def consoles(self) -> list[Console]:
        return [self.console, self.recording] if self.recording else [self.console]

    def print(self, *parts: RenderableType) -> None:
        """Write on all."""
        for console in self.consoles:
            for part in parts:
                console.print(part)

    def heading(self, number: str, title: str, text: str) -> None:
        """A step's title and the sentence that says what it does."""
        from rich.text import Text

        self.print("", Text.assemble((f"{number}  ", "bold cyan"), (title, "bold")))
        self.indented(text)

    def indented(self, *parts: RenderableType) -> None:
        """Write below a heading."""
        from rich.padding import Padding

        for part in parts:
            self.print(Padding(part, (0, 0, 0, 3), expand=False))

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show on a terminal what is going on; a pipe gets the results alone."""
        if not self.console.is_terminal:
            yield
            return
        with self.console.status(text):
            yield

    def save(self, path: Path) -> None:
        """Draw what was written."""
        assert self.recording is not None
        drawn = self.recording.export_svg(title="laneloom demo")
        # rich names fonts of a server; a picture in a repository has to stand alone.
        drawn = re.sub(r"@font-face\s*\{.*?\}\s*", "", drawn, flags=re.DOTALL)
        drawn = drawn.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace")
        path.write_text(drawn)


@dataclass
class _Run:
    """What is known about one GPU so far."""

    product: Product
    config: MatmulConfig
    code: CodeObject
    outcome: Outcome | None = None
    damages: list[Damage] = field(default_factory=list)


def run_demo(products: Sequence[Product], seed: int, report: _Report) -> list[str]:
    """Every step for every product; the reasons why something is wrong, empty when nothing is."""
    began = time.perf_counter()
    _introduce(products, report)
    reasons: list[str] = []
    runs = _compile(products, report)
    _execute(runs, seed, report, reasons)
    _control(runs, seed, report, reasons)
    _conclude(runs, time.perf_counter() - began, report, reasons)
    return reasons


def _introduce(products: Sequence[Product], report: _Report) -> None:
    from rich.text import Text

    size = products[0].m
    gpus = "two GPUs" if len(products) == 2 else "GPUs" if len(products) > 2 else "a GPU"
    report.print(
        Text.assemble(("laneloom", "bold"), (f" {__version__}", "dim")),
        "",
        f"One matrix product, C = A B of {size} x {size} random fp16 numbers with fp32 sums: compiled for {gpus} that "
        "need not be in this machine, executed as machine code, checked, and doubted.",
    )


def _name(gpu: Gpu) -> str:
    return "MFMA" if gpu.matrix_instructions == "mfma" else "WMMA"


def _matrix_instructions(products: Sequence[Product]) -> str:
    """ "WMMA, the matrix instruction of a wave of 32 lanes", and MFMA's where there are GPUs that have it."""
    lanes = {_name(p.gpu): p.gpu.wave for p in products}
    return " or ".join(f"{name}, the matrix instruction of a wave of {lanes[name]} lanes" for name in lanes)


def _counted(hot: Loop, gpu: Gpu) -> str:
    """ "32 WMMA of 16 x 16 x 16", by the mnemonics."""
    from ..isa.listing import Kind

    found = [i.mnemonic for i in hot.instructions if i.kind is Kind.MATRIX]
    sizes = dict.fromkeys(" x ".join(m.groups()) for m in map(re.compile(r"(\d+)x(\d+)x(\d+)").search, found) if m)
    return f"{len(found)} {_name(gpu)} of {' and '.join(sizes)}"


def _cut_off(runs: Sequence[_Run]) -> str:
    from ..ops.matmul.reference import cuts_of

    names = dict.fromkeys(_name(run.product.gpu) for run in runs if cuts_of(run.product.gpu, run.product.dtype))
    return f" and what {' and '.join(names)} cut{'s' * (len(names) == 1)} off" if names else ""


def _compile(products: Sequence[Product], report: _Report) -> list[_Run]:
    from ..codegen.versions import triton_version

    report.heading(
        "1",
        "Compile",
        f"Triton {triton_version()} and its LLVM turn one Python kernel into the code of each GPU. It multiplies "
        f"blocks by {_matrix_instructions(products)}, out of LDS, the on-chip memory.",
    )
    runs = []
    for product in products:
        with report.working(f"Compiling for {product.gpu.name}"):
            runs.append(_Run(product, *compile_product(product)))
    report.print("")
    report.indented(_code_table(runs))
    _explain_loop(runs, report)
    return runs


def _code_table(runs: Sequence[_Run]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from ..isa.listing import Kind
    from ..isa.render import analyze_code, code_occupancy

    table = Table.grid(padding=(0, 3, 0, 0))
    rows: dict[str, list[str | Text]] = {}
    for run in runs:
        code, gpu = run.code, run.product.gpu
        fits, hot = code_occupancy(code), analyze_code(code).hot
        spills = "none spilled" if not code.spills else Text(f"{code.spills} spilled", style="bold red")
        cells: dict[str, str | Text] = {
            "": Text.assemble((gpu.name, "bold"), f"  {gpu.family}"),
            " ": Text(gpu.product, style="dim"),
            "workgroup": f"{run.config.block_m} x {run.config.block_n} of C, {counted(code.num_warps, 'wave')}",
            "machine code": f"{code.code_bytes:,} B",
            "vector registers": Text.assemble(f"{code.vgprs} of {gpu.vgprs_per_wave}, ", spills),
            "LDS": f"{code.lds_bytes // 1024} of {gpu.lds_bytes // 1024} KiB",
            "occupancy": f"{fits.waves_per_simd:g} of {fits.slots} waves, by {fits.limiter}",
        }
        if hot is not None:
            loads = [counted(hot.count(kind), "load") for kind in (Kind.GLOBAL_LOAD, Kind.LDS_LOAD)]
            cells["hot loop"] = f"{counted(len(hot.instructions), 'instruction')}, with"
            cells["  matrix"] = _counted(hot, gpu)
            cells["  global memory"] = loads[0]
            cells["  LDS"] = f"{loads[1]}, {counted(hot.count(Kind.LDS_STORE), 'store')}"
        for name, cell in cells.items():
            rows.setdefault(name, []).append(cell)
    for name, row in rows.items():
        table.add_row(Text(name, style="dim"), *row)
    return table


def _explain_loop(runs: Sequence[_Run], report: _Report) -> None:
    from rich.table import Table
    from rich.text import Text

    from ..isa.analysis import matrix_overlap
    from ..isa.listing import Kind
    from ..isa.render import analyze_code
    from .loop_strip import legend, strip

    table = Table.grid(padding=(0, 3, 0, 0))
    loops = []
    for run in runs:
        hot = analyze_code(run.code).hot
        if hot is not None:
            table.add_row(Text(run.product.gpu.name, style="bold"), strip(hot))
            loops.append(hot)
    if not loops:
        return
    report.print("")
    report.indented("One pass of the hot loop, in the order of the machine code:", table, legend())
    if not any(hot.count(Kind.GLOBAL_LOAD) for hot in loops):  # CDNA 5: memory is copied to LDS, by other instructions
        return
    report.indented(
        "The G ask for the next blocks of A and B while the W multiply the blocks that lie in LDS. From a request to "
        f"its ^ there are at least {min(map(matrix_overlap, loops)):.0%} of a pass's W: memory and arithmetic overlap.",
    )


def _execute(runs: Sequence[_Run], seed: int, report: _Report, reasons: list[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    report.heading(
        "2", "Execute", "The emulator runs this very code, instruction by instruction, for all waves of all workgroups."
    )
    table = Table.grid(padding=(0, 3, 0, 0))
    for run in runs:
        with report.working(f"Executing on {run.product.gpu.name}"):
            run.outcome = run_product(run.product, *random_operands(run.product, seed))
        record = run.outcome.launches[0]
        if _instructions(record.asm) != _instructions(run.code.asm):
            reasons.append(f"{run.product.gpu.name}: the code that ran is not the code shown in step 1")
        groups = record.grid[0] * record.grid[1] * record.grid[2]
        table.add_row(
            Text(run.product.gpu.name, style="bold"),
            counted(groups, "workgroup"),
            counted(run.outcome.instructions, "wave-instruction"),
            f"{record.matrix_instructions:,} {_name(run.product.gpu)}",
            f"{record.wall_s:.1f} s",
        )
    report.indented(table)
    report.heading(
        "3",
        "Check",
        f"Each of the {runs[0].product.m * runs[0].product.n:,} elements of C against FP64. Allowed: twice the error "
        f"of numpy's FP32 product, scaled by what is summed, plus one rounding{_cut_off(runs)}.",
    )
    table = Table.grid(padding=(0, 3, 0, 0))
    for run in runs:
        assert run.outcome is not None
        verdict = run.outcome.verdict
        if run.outcome.ok:
            shown = Text("right", style="bold green")
        else:
            shown = Text("WRONG", style="bold red")
            reasons += [f"{run.product.gpu.name}: {reason}" for reason in run.outcome.reasons]
        table.add_row(
            Text(run.product.gpu.name, style="bold"),
            shown,
            _bar(verdict.share),
            f"worst {verdict.error:.1e}, allowed {verdict.budget:.1e}",
        )
    report.indented(table)


def _instructions(asm: str) -> list[str]:
    """The code itself, without the comments, where paths may differ."""
    from ..isa.listing import parse_listing

    return [instruction.text for instruction in parse_listing(asm).instructions]


def _bar(share: float, width: int = 20) -> Any:
    from rich.text import Text

    filled = min(width, round(share * width)) if share == share else width
    style = "green" if share <= 1 else "red"
    return Text.assemble(("█" * filled, style), ("░" * (width - filled), "dim"), f" {share:.0%}" if share < 10 else "")


def _control(runs: Sequence[_Run], seed: int, report: _Report, reasons: list[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from .damage import run_damaged, run_strict

    report.heading(
        "4",
        "Doubt",
        "Would anybody notice a wrong kernel? The same code with something of its hot loop left out. Waits and "
        "barriers change no number here, so strict mode looks for them.",
    )
    table = Table.grid(padding=(0, 3, 0, 0))
    for run in runs:
        # Some passes of the loop, so that one can race with the next.
        small = replace(run.product, m=_DAMAGED_SIZE, n=_DAMAGED_SIZE, k=max(_DAMAGED_SIZE, 4 * run.config.block_k))
        name = run.product.gpu.name
        with report.working(f"Executing damaged code on {name}"):
            found = run_strict(run.code, run.config, small, seed)
            run.damages = run_damaged(run.code, run.config, small, seed)
        if found is not None:
            reasons.append(f"{name}: strict mode found a fault in the whole code: {found}")
        clean = _found("clean", found is None)
        table.add_row(Text(name, style="bold"), clean, "nothing left out", "strict mode finds nothing")
        for damage in run.damages:
            if not damage.caught:
                reasons.append(f"{name}: a missing {damage.instruction.mnemonic} went unnoticed")
            if damage.verdict:
                how = f"{damage.verdict.share:.1e} x the budget"
            else:
                how = _HAZARDS.get(damage.hazard, damage.stopped)
            table.add_row("", _found("caught", damage.caught), f"without {_short(damage.instruction.mnemonic)}", how)
    report.indented(table)


_HAZARDS = {
    "wait": "register used before its load",
    "race": "two waves race in LDS",
    "undefined": "value used that nobody wrote",
}


def _short(mnemonic: str) -> str:
    names = {"v_wmma": "a WMMA", "v_mfma": "an MFMA", "s_barrier": "its barriers", "s_wait": "a wait for loads"}
    return next((name for prefix, name in names.items() if mnemonic.startswith(prefix)), mnemonic)


def _found(word: str, good: bool) -> Any:
    from rich.text import Text

    return Text(word, style="bold green") if good else Text("MISSED", style="bold red")


def _conclude(runs: Sequence[_Run], took_s: float, report: _Report, reasons: list[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    gpu = runs[0].product.gpu.name
    spills = sum(run.code.spills for run in runs)
    facts = Table.grid(padding=(0, 3, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column()
    for title, text in (
        ("Shown", f"1  the code is the GPUs' own, and it fits: {spills or 'no'} spilled registers;"),
        ("", "2  executed, it touches no memory but its arguments;"),
        ("", "3  it gives the right product of these matrices;"),
        ("", "4  the checks that say so can fail; no wait or barrier is missing."),
        ("Not shown", "speed: nothing was measured on a GPU."),
    ):
        facts.add_row(Text(title, style="bold"), text)
    commands = f"laneloom isa matmul --gpu {gpu}\nlaneloom emulate matmul --gpu {gpu} --shape 100,200,300"
    facts.add_row(Text("Next", style="bold"), Text(commands, style="cyan"))
    report.print("")
    if reasons:
        report.print(Text(f"WRONG after {took_s:.1f} s:", style="bold red"), *(Text(f"  {r}") for r in reasons))
        return
    report.print(facts, "", Text(f"All right, in {took_s:.1f} s.", style="bold green"))
