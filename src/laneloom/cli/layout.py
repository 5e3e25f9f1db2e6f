"""`laneloom layout`: which lane, register and bits hold which element of a matrix instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError

if TYPE_CHECKING:
    from ..gpu import Gpu
    from ..isa import Layout, MatrixInstruction


def layout(
    instruction: Annotated[str, typer.Argument(help="A mnemonic of `laneloom instructions`, in any spelling.")],
    gpu: Annotated[str, typer.Option("--gpu", help="A GPU of `laneloom gpus`.")],
    wave: Annotated[int | None, typer.Option(help="Lanes per wave; by default what the GPU's kernels use.")] = None,
    matrix: Annotated[
        str | None, typer.Option(help="A, B, C, D, or K: the index of a sparse A. All by default.")
    ] = None,
    opsel: Annotated[int, typer.Option(help="RDNA 3, 16-bit C and D: 0 low, 4 high halves. RDNA 4: index key.")] = 0,
    cbsz: Annotated[int, typer.Option(help="CDNA: blocks of A broadcast, or A's type in f8f6f4.")] = 0,
    abid: Annotated[int, typer.Option(help="CDNA: the block to broadcast, or the set of indices.")] = 0,
    blgp: Annotated[int, typer.Option(help="CDNA: lane pattern of B, B's type in f8f6f4, what f64 negates.")] = 0,
    k_order: Annotated[str, typer.Option(help="RDNA 4, 16-bit A and B: calculator or articles.")] = "calculator",
    element: Annotated[str | None, typer.Option(metavar="I,J", help="Where this row and column lies.")] = None,
    register: Annotated[str | None, typer.Option(metavar="V,LANE", help="What this register of a lane holds.")] = None,
    output: Annotated[str | None, typer.Option(metavar="I,J", help="What makes this element of D, and where.")] = None,
    block: Annotated[int, typer.Option(help="The block that --element and --output mean.")] = 0,
    transpose: Annotated[bool, typer.Option("--transpose", help="Exchange a table's rows and columns.")] = False,
    style: Annotated[str, typer.Option("--format", help="table, csv, markdown, asciidoc, svg, html.")] = "table",
) -> None:
    """Show which lane and register holds which matrix element."""
    from ..gpu import get_gpu
    from ..isa import find_instruction, get_layout, layout_text
    from ..isa.layout_digits import describes_k_twice

    if style not in (*layout_text.FORMATS, "svg", "html"):
        raise ArgumentError(f"--format: one of {', '.join(layout_text.FORMATS)}, svg, html, not {style!r}")
    asked = sum(x is not None for x in (element, register, output))
    if asked > 1:
        raise ArgumentError("give one of --element, --register and --output")
    if block and element is output is None:
        raise ArgumentError("--block belongs to --element or --output")
    if output is not None and matrix is not None:
        raise ArgumentError("--output shows A, B, C and D: leave out --matrix")
    if style in ("svg", "html") and asked:
        raise ArgumentError(f"--format {style} shows whole matrices: leave out --element, --register and --output")
    if style == "html" and (matrix is not None or wave is not None or opsel):
        raise ArgumentError("--format html has every matrix, wave and half: leave out --matrix, --wave and --opsel")
    if style in ("svg", "html", "csv") and transpose:
        raise ArgumentError(f"--transpose exchanges the rows and columns of tables, which --format {style} has none of")
    target = get_gpu(gpu)
    row = find_instruction(instruction, target)
    if k_order == "articles" and not any(describes_k_twice(row, lanes) for lanes in row.waves if wave in (None, lanes)):
        raise ArgumentError(f"--k-order: A and B of {row.name} on {target.name} have one order (calculator), not two")
    if style == "html":
        from ..isa.layout_html import layout_html

        typer.echo(layout_html(row, target, cbsz=cbsz, abid=abid, blgp=blgp, k_order=k_order), nl=False)
        return
    lanes = wave if wave is not None else row.waves[0]
    chosen: dict[str, Any] = {"opsel": opsel, "cbsz": cbsz, "abid": abid, "blgp": blgp, "k_order": k_order}
    names = (matrix,) if matrix is not None else row.matrices
    layouts = [get_layout(row, target, lanes, name, **chosen) for name in names]
    if element is not None or register is not None:
        option, text = ("--element", element) if register is None else ("--register", register)
        _show_points(layouts, option, _pair(text, option), block, style, transpose)
    elif output is not None:
        _show_output(row, target, lanes, _pair(output, "--output"), block, chosen, style, transpose)
    else:
        _show_whole(row, target, lanes, layouts, style, transpose)


def _pair(text: str | None, option: str) -> tuple[int, int]:
    try:
        first, second = (int(part) for part in (text or "").split(","))
    except ValueError:
        raise ArgumentError(f"{option}: two numbers such as 3,5, not {text!r}") from None
    return first, second


def _show_points(
    layouts: list[Layout], option: str, at: tuple[int, int], block: int, style: str, transpose: bool
) -> None:
    from ..isa import layout_text
    from ..isa.layouts import Element

    tables, elements = [], []
    # Without --matrix the point need not lie in every matrix: show those that have it.
    for one in layouts:
        try:
            if option == "--element":
                tables.append(layout_text.element_table(one, *at, block))
                elements.append((one, Element(block, *at)))
            else:
                tables.append(layout_text.register_table(one, *at))
                elements += [(one, e) for _, e in one.elements(at[1], at[0])]
        except ArgumentError:
            if one is layouts[-1] and not tables:
                raise
    if style == "csv":
        typer.echo(layout_text.csv_of(elements))
        return
    typer.echo("\n\n".join((t.transposed() if transpose else t).text(style) for t in tables))


def _show_output(
    row: MatrixInstruction, gpu: Gpu, wave: int, at: tuple[int, int], block: int, chosen: dict, style: str,
    transpose: bool,
) -> None:  # fmt: skip
    from ..isa import get_layout, layout_text

    if style == "csv":
        held = {m: get_layout(row, gpu, wave, m, **chosen) for m in {*row.matrices, "C"}}
        typer.echo(layout_text.csv_of((held[m], e) for m, e in layout_text.output_elements(row, *at, block)))
        return
    table = layout_text.output_table(row, gpu, wave, *at, block, chosen)
    typer.echo((table.transposed() if transpose else table).text(style))


def _show_whole(
    row: MatrixInstruction, gpu: Gpu, wave: int, layouts: list[Layout], style: str, transpose: bool
) -> None:
    from ..isa import layout_text
    from ..isa.layouts import CSV_HEADER

    if style == "svg":
        from ..isa.layout_svg import layout_svg

        typer.echo(layout_svg(layouts), nl=False)
        return
    if style == "csv":
        typer.echo("\n".join([CSV_HEADER, *(line for one in layouts for line in one.csv_lines())]))
        return
    if style == "table":
        typer.echo("\n".join(layout_text.describe(row, gpu, wave)))
    for one in layouts:
        if style == "table":
            size = f"{one.rows} x {one.cols}"
            typer.echo(f"\n{one.matrix}: {size}, {layout_text.type_text(one)}, registers: {one.registers}")
            typer.echo("".join(f"  {line}\n" for line in layout_text.formulas(one)))
        tables = [t.transposed() if transpose else t for t in layout_text.grid(one, style)]
        typer.echo("\n\n".join(t.text(style) for t in tables))
