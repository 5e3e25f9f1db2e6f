"""`laneloom isa`: what the machine code of a product, attention, a file of AMDGCN text or a code object looks like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError, LaneloomError, UnsupportedError
from .product import (
    AsJson,
    Dtype,
    Layout,
    OutDtype,
    Precision,
    Scales,
    check_operation,
    compile_product,
    options_of_matmul,
    parse_product,
    refuse_options,
)
from .terminal import new_console, print_json
from .weights import Group, Weight, WeightProduct, compile_weight, parse_weight, said_of_weight

if TYPE_CHECKING:
    from ..codegen import CodeObject
    from ..isa.bare import BareKernel
    from .source_file import Source

_LEGEND = (
    "A loop's order: G global load, L LDS load, S LDS store, W matrix instruction (W4: four in a row), F multiply-add, "
    "GS global store, BAR barrier; WAIT for global loads, LW for LDS, SW for stores, WAIT(2) for all but two."
)
_GPU, _SHAPE = "gfx1151", "4096,4096,4096"
_FILE_ENDINGS = (".s", ".asm", ".amdgcn", ".txt", ".co", ".hsaco", ".o")


def isa(
    target: Annotated[
        str, typer.Argument(
            metavar="OPERATION|FILE", help="matmul, attention, or a file: assembly or a binary; - is stdin.")
    ],
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="A GPU of `laneloom gpus`; by default gfx1151, or the one that the file names."),
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", help="M,N,K of matmul, B,H,N,D of attention.")
    ] = None,
    dtype: Dtype = "fp16",
    out_dtype: OutDtype = None,
    layout: Layout = "nn",
    precision: Precision = None,
    scales: Scales = None,
    weight: Weight = None,
    group: Group = None,
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", help="The symbol to show of a file that holds several kernels; of attention: forward, "
                     "query and key (the backward's), on Hopper backward, or decode."),
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Attention under the mask of a language model.")] = False,
    listing: Annotated[bool, typer.Option(help="Every instruction, with the hot loop marked.")] = True,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Look for what is illegal, slow or could be better. Exit 1 on an error or a warning."
        ),
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", help="For --check: what `laneloom emulate --profile --json` printed of this kernel."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a kernel's machine code and what it consists of.

    Registers, LDS, occupancy, instruction mix, the order of the hot loop, the listing with the loop marked.
    """
    said, asked = "", {}
    is_file = target == "-" or Path(target).is_file() or "/" in target or target.endswith(_FILE_ENDINGS)
    if profile is not None and not check:
        raise ArgumentError("--profile belongs to --check")
    if causal and target != "attention":
        raise ArgumentError("--causal belongs to attention")
    name = _GPU if gpu is None else gpu
    of_matmul = options_of_matmul(out_dtype, layout, precision, scales, weight, group)
    if is_file:
        from .source_file import read_source

        of_operations = (("--shape", shape is not None), ("--dtype", dtype != "fp16"))
        refuse_options((*of_matmul, *of_operations), "an operation, not to a file")
        source = read_source(target, gpu, kernel)
        bare = source.elf is None and ".amdgpu_metadata" not in source.text
        if (check or bare) and source.gpu is not None and source.elf is None and ".amdhsa_kernel" in source.text:
            _assemble(source)
        if check:
            with _broken_lines_said(source):
                _check(source.text, source.gpu, kernel, profile, as_json)
            return
        if bare:
            from ..isa.bare import bare_kernel

            with _broken_lines_said(source):
                shown = bare_kernel(source.text, _gpu_of(source, target), kernel)
            _show(shown, said, asked, listing, as_json)
            return
        code = _code_object(source, target, kernel)
    elif target == "attention":
        from .attention_code import compile_attention

        refuse_options(of_matmul, "matmul")
        said, asked, code = compile_attention(name, shape, dtype, kernel, causal)
    else:
        check_operation(target, ("matmul", "attention"))
        shape = _SHAPE if shape is None else shape
        product = parse_product(target, name, shape, dtype, out_dtype, layout, precision, scales)
        product = parse_weight(product, weight, group)
        if kernel is not None:
            raise ArgumentError("--kernel: a product has one kernel; this option is for files")
        if isinstance(product, WeightProduct):
            (chosen, code), said = compile_weight(product), f"quantized_matmul {product.text}"
        else:
            chosen, code = compile_product(product)
            m, n, k = product.shape
            said = f"matmul {m} x {n} x {k}, {product.dtype} to {product.dtype_out}, layout {product.layout}"
        asked = {
            "shape": list(product.shape), "dtype": product.dtype, "out_dtype": product.dtype_out,
            "layout": product.layout, "precision": product.precision, "scales": product.scales, "config": chosen.text,
            **said_of_weight(product),
        }  # fmt: skip
    if check:
        _check(code.asm, code.gpu, code.kernel, profile, as_json, code.lds_bytes, code.num_warps)
        return
    _show(code, said, asked, listing, as_json)


def _assemble(source: Source) -> None:
    """Raises CompileError, which says what cannot be assembled."""
    from ..codegen.assemble import object_file

    with suppress(UnsupportedError):  # of a GPU that this Triton's LLVM does not know
        object_file(source.text, str(source.gpu))


@contextmanager
def _broken_lines_said(source: Source) -> Iterator[None]:
    """What stumbles over a line such as one without its last operand says which LLVM refuses."""
    try:
        yield
    except LaneloomError:
        raise
    except (LookupError, TypeError, ValueError):
        if source.gpu is not None and source.elf is None:
            _assemble(source)
        raise


def _check(
    text: str, gpu: Any, kernel: str | None, profile: Path | None, as_json: bool, lds_bytes: int | None = None,
    num_warps: int | None = None,
) -> None:  # fmt: skip
    from ..gpu import get_gpu
    from ..isa.check import check as check_text
    from .check import read_counts, show, to_dict

    counted = None if profile is None else read_counts(profile, gpu and get_gpu(gpu).name)
    reports = check_text(text, gpu, kernel, counted=counted, lds_bytes=lds_bytes, num_warps=num_warps)
    if as_json:
        print_json(to_dict(reports))
    else:
        show(reports)
    if not all(report.clean for report in reports):
        raise typer.Exit(1)


def _gpu_of(source: Source, path: str) -> str:
    if source.gpu is None:
        raise ArgumentError(f"{path} has no .amdgcn_target line: say with --gpu which GPU it is for")
    return source.gpu


def _code_object(source: Source, path: str, kernel: str | None) -> CodeObject:
    gpu = _gpu_of(source, path)
    if source.elf is not None:
        from ..codegen.code_object import from_amdgcn
        from ..gpu import get_gpu

        return from_amdgcn(source.text, source.elf, get_gpu(gpu), triton_version="", kernel=kernel)
    from ..codegen import assemble

    return assemble(source.text, gpu, kernel=kernel)


def _show(code: CodeObject | BareKernel, said: str, asked: dict[str, Any], listing: bool, as_json: bool) -> None:
    from ..isa import bare, render

    is_bare = isinstance(code, bare.BareKernel)
    if as_json:
        shown = bare.to_dict(code, listing=listing) if is_bare else render.to_dict(code, listing=listing)
        print_json(asked | shown)
        return
    console = new_console()
    if not console.is_terminal:  # a pipe has no width: do not cut the listing at an assumed one
        console = new_console(width=max([100, *(len(line) + 12 for line in code.asm.splitlines())]))
    if asked:
        console.print(said)
        console.print(asked["config"], style="dim")
    console.print(_LEGEND, "", style="dim", sep="\n")
    console.print(bare.render(code, listing=listing) if is_bare else render.render(code, listing=listing))
