"""`laneloom compare`: every preset of a product: whether it is right, what it compiles to, what should bound it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError, UnsupportedError
from .product import AsJson, Dtype, GpuName, Layout, OutDtype, Product, Shape, parse_product
from .terminal import given_options, new_console, print_json, print_table, working

if TYPE_CHECKING:
    from ..codegen import CodeObject
    from ..emulator.counters import InstructionProfile, Profile
    from ..gpu import Gpu
    from ..ops.matmul.config_wmma import WmmaConfig
    from ..ops.matmul.problem import MatmulProblem

_MULTIPLY_ADDS = ("v_dual_fmac", "v_fmac", "v_fma_")
_MOST_CHECKED = 1024  # of M, N and K where a product is emulated: larger ones repeat what smaller ones do


@dataclass(frozen=True)
class Row:
    """One preset. Shares and clocks are of one iteration of the loop over K; None where it has no iteration."""

    preset: str  #: its name; "planned" is what `matmul` takes by itself
    config: str
    refused: str | None  #: why it cannot do this product; then the rest is empty
    error: float | None = None  #: at the element with the largest share of its budget
    budget: float | None = None
    right: bool | None = None
    vgprs: int | None = None
    spills: int | None = None
    occupancy: float | None = None  #: waves per SIMD
    lds_bytes: int | None = None
    lds_bank_conflicts: float | None = None  #: clocks that they cost a wave
    matrix_share: float | None = None  #: of the instructions; of multiply-adds for FP32 and FP64
    wide_share: float | None = None  #: of the accesses of LDS and global memory, those of 16 bytes
    prefetch_overlap: float | None = None  #: matrix instructions that the unluckiest load hides behind
    bound: str | None = None  #: predicted: what takes most clocks of a compute unit
    bound_share: float | None = None  #: predicted: matrix clocks over the clocks of what bounds


def compare(
    ctx: typer.Context,
    operation: Annotated[str, typer.Argument(metavar="OPERATION|OLD", help="matmul, or a file of records.")],
    new: Annotated[str | None, typer.Argument(metavar="NEW", help="Another file of records.")] = None,
    gpu: GpuName = "gfx1151",
    shape: Shape = "512,512,512",
    dtype: Dtype = "fp16",
    out_dtype: OutDtype = None,
    layout: Layout = "nn",
    preset: Annotated[list[str] | None, typer.Option("--preset", help="Only this one; may be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare presets of a product, or two files of records.

    Each preset is compiled for the product, and run and checked in the emulator on a product of at most 1024 in
    every size.
    """
    if new is not None:
        from .changes import compare_files

        if surplus := given_options(ctx, but=("--json",)):
            raise ArgumentError(f"{surplus[0]}: two files of records have their own problems")
        compare_files(operation, new, as_json)
        return
    if Path(operation).suffix == ".jsonl":
        raise ArgumentError(f"{operation}: expected a second file of records to compare it with")
    product = parse_product(operation, gpu, shape, dtype, out_dtype, layout)
    if product.gpu.matrix_instructions != "wmma":
        raise UnsupportedError(f"--gpu: the presets need WMMA instructions, {product.gpu.name} has none")
    checked = checked_product(product)
    rows = []
    for name in chosen_presets(preset):
        with working(f"Compiling, running and checking {name} on {product.gpu.name}"):
            rows.append(compare_preset(name, product, checked))
    if as_json:
        print_json(to_dict(product, checked, rows))
    else:
        _show(product, checked, rows)
    if any(row.right is False for row in rows):
        raise typer.Exit(1)


def chosen_presets(asked: list[str] | None) -> list[str]:
    """The names to compare, "planned" first. Raises ArgumentError for an unknown one."""
    from ..ops.matmul.presets import PRESETS

    known = ["planned", *PRESETS]
    for name in asked or []:
        if name not in known:
            raise ArgumentError(f"--preset: expected one of {', '.join(known)}, got {name!r}")
    return asked or known


def checked_product(product: Product) -> Product:
    """The product that is emulated: sizes beyond 1024 are cut by multiples of 256, so that ragged ones stay ragged."""
    sizes = [n if n <= _MOST_CHECKED else 512 + n % 256 for n in product.shape]
    return replace(product, **dict(zip("mnk", sizes, strict=True)))


def compare_preset(name: str, product: Product, checked: Product) -> Row:
    """The row of one preset."""
    from ..errors import InvalidConfigError
    from ..isa.analysis import analyze, matrix_overlap
    from ..isa.render import code_occupancy
    from ..ops.matmul import execute
    from ..ops.matmul.presets import named_config
    from .product import random_operands, run_product

    problem = product.problem()
    asked = None if name == "planned" else named_config(name)
    try:
        config: Any = execute.checked_config(problem, product.gpu, asked)
    except InvalidConfigError as error:
        return Row(name, "" if asked is None else asked.text, str(error))
    code = execute.code_object(problem, product.gpu, config)
    outcome = run_product(checked, *random_operands(checked, 0), profile=True, chosen=config)
    record = outcome.launches[0]
    assert record.profile is not None
    hot = analyze(code.asm, code.kernel).hot
    smaller = checked.problem()
    depths = _depths(config, smaller, product.gpu, record.grid)
    # the first K-tile of each program comes before the loop
    executions = config.num_warps * sum(depth - 1 for depth in depths if depth)
    waves = config.num_warps * len(depths)
    loop = _of_the_loop(record.profile, executions, waves, checked_lines=_loop_lines(record.asm))
    unread = config.schedule in ("wmma_coop", "wmma_pingpong", "fma")
    row = Row(
        name,
        config.text,
        None,
        outcome.verdict.error,
        outcome.verdict.budget,
        outcome.ok,
        code.vgprs,
        code.vgpr_spills + code.sgpr_spills,
        code_occupancy(code).waves_per_simd,
        code.lds_bytes,
        # A linear reading of the text cannot follow waves that take different branches; fma has no matrix instructions.
        prefetch_overlap=None if unread or hot is None else matrix_overlap(hot),
    )
    if not loop:
        return row
    clocks = predicted_clocks(loop, executions, config, product, code)
    bound = max(clocks, key=lambda unit: clocks[unit])
    return replace(
        row,
        lds_bank_conflicts=sum(i.conflicts for i in loop) / executions,
        matrix_share=_share(loop, lambda i: i.matrix_flops > 0 or i.text.startswith(_MULTIPLY_ADDS)),
        wide_share=_share([i for i in loop if _width(i)], lambda i: _width(i) == 16),
        bound=bound,
        bound_share=clocks["matrix"] / clocks[bound],
    )


def _depths(config: Any, problem: MatmulProblem, gpu: Gpu, grid: tuple[int, int, int]) -> list[int]:
    """The K-tiles of each program of a product's first launch."""
    steps = -(-problem.k_stored // config.block_k)
    if getattr(config, "stream_k", 0) and not (shares := config.shares(problem, gpu)).whole:
        return [end - first for _, first, end, _ in map(shares.piece, range(grid[0]))]
    part = config.k_part(problem) // config.block_k if config.parts(problem) > 1 else steps
    return grid[0] * [min(part, steps - first) for first in range(0, steps, part)]


def _loop_lines(asm: str) -> tuple[int, int] | None:
    from ..isa.analysis import hot_loop

    hot = hot_loop(asm)
    return None if hot is None else hot.lines


def _of_the_loop(
    profile: Profile, executions: int, waves: int, checked_lines: tuple[int, int] | None
) -> list[InstructionProfile]:
    """The loop's instructions, and accesses and matrix instructions that the compiler placed beside it."""
    if executions == 0 or checked_lines is None:
        return []
    first, last = checked_lines
    beside = max(executions / 2, waves + 1)  # half of the waves in the loop, and more than all of them outside
    return [
        i
        for i in profile.instructions
        if i.executed
        and (first <= i.line <= last or (i.executed >= beside and (i.lds_clocks or i.hits_global or i.matrix_flops)))
    ]


def _share(instructions: list[InstructionProfile], chosen: Any) -> float | None:
    total = sum(i.executed for i in instructions)
    return sum(i.executed for i in instructions if chosen(i)) / total if total else None


def _width(instruction: InstructionProfile) -> int:
    """Bytes per lane of an access of LDS or global memory; 0 for anything else."""
    from ..isa.listing import Kind, parse_instruction

    memory = (Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.LDS_LOAD, Kind.LDS_STORE)
    return parse_instruction(instruction.text, 0).width_bytes if instruction.kind in memory else 0


def predicted_clocks(
    loop: list[InstructionProfile], wave_iterations: int, config: WmmaConfig, product: Product, code: CodeObject
) -> dict[str, float]:
    """Clocks of one compute unit that a workgroup's iteration takes of each resource, were it the only one.

    matrix: the unit's peak rate, of multiply-adds for FP32 and FP64. LDS: 128 bytes a clock, with bank conflicts.
    issue: one instruction a clock and SIMD. memory: what the programs that run at once need of A and B, each element
    fetched once, at the unit's share of the device's bandwidth. A model: nothing in it is measured.
    """
    from ..ops.matmul.plan_wmma import PROGRAMS_PER_UNIT, operand_traffic, peak_of
    from ..ops.matmul.problem import DTYPE_BYTES

    gpu, problem = product.gpu, product.problem()
    per_group = config.num_warps / wave_iterations
    flops_per_clock = peak_of(product.dtype, gpu) * 1000 / (gpu.compute_units * gpu.clock_ghz)
    flops = 2 * config.block_m * config.block_n * config.block_k * problem.k // problem.k_stored
    bytes_per_clock = gpu.bandwidth_gbs / (gpu.compute_units * gpu.clock_ghz)
    tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
    together = min(PROGRAMS_PER_UNIT * gpu.compute_units, tiles)
    traffic = operand_traffic(problem, config, config.order, config.group_m, gpu) / together
    return {
        "matrix": flops / flops_per_clock,
        "LDS": sum(i.lds_clocks + i.conflicts for i in loop) * per_group,
        "issue": sum(i.executed for i in loop) * per_group / gpu.simds_per_cu,
        "memory": traffic * config.block_k * DTYPE_BYTES[product.dtype] / bytes_per_clock,
    }


def to_dict(product: Product, checked: Product, rows: list[Row]) -> dict[str, Any]:
    """The command's JSON."""
    return {
        "gpu": product.gpu.name,
        "shape": list(product.shape),
        "checked_shape": list(checked.shape),
        "dtype": product.dtype,
        "out_dtype": product.dtype_out,
        "layout": product.layout,
        "rows": [asdict(row) for row in rows],
    }


def _show(product: Product, checked: Product, rows: list[Row]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("preset", "error", "budget", "VGPRs", "spills", "waves", "LDS", "conflicts", "matrix", "wide",
                    "overlap", "bound"):  # fmt: skip
        table.add_column(heading, justify="left" if heading in ("preset", "bound") else "right", no_wrap=True)
    for row in rows:
        if row.refused:
            table.add_row(row.preset, *[""] * 10, "refused")
            continue
        shares = (_percent(share) for share in (row.matrix_share, row.wide_share, row.prefetch_overlap))
        conflicts = "" if row.lds_bank_conflicts is None else f"{row.lds_bank_conflicts:.1f}"
        table.add_row(
            row.preset, f"{row.error:.1e}" + ("" if row.right else " WRONG"), f"{row.budget:.1e}", str(row.vgprs),
            str(row.spills), f"{row.occupancy:g}", str(row.lds_bytes), conflicts, *shares,
            "" if row.bound is None else f"{row.bound} {_percent(row.bound_share)}",
        )  # fmt: skip
    console = new_console()
    console.print(f"matmul {product.text}, on {product.gpu.name} ({product.gpu.family}); checked by emulation at "
                  f"{' x '.join(map(str, checked.shape))}")  # fmt: skip
    print_table(table)
    for row in rows:
        if row.refused:
            console.print(f"{row.preset}: {row.refused}", soft_wrap=True)
    console.print(
        "waves: per SIMD. Of one iteration of the loop: conflicts: clocks that LDS banks cost a wave; matrix: share of "
        "the instructions; wide: accesses of 16 bytes; overlap: matrix instructions behind which loads hide. bound: "
        "predicted, with the share of the matrix rate that it leaves; nothing here is measured.",
        style="dim",
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
