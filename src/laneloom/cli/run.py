"""`laneloom run`: execute a file of AMDGCN assembly or a binary code object on arrays, in the emulator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError
from ..isa.words import counted
from .kernel_arguments import Given, pack
from .product import AsJson
from .source_file import read_source
from .terminal import check_writable, new_console, print_json, print_table

if TYPE_CHECKING:
    import numpy as np

    from ..emulator.launch import LaunchRecord
    from ..isa.metadata import KernelMetadata

_DTYPES = {
    "f16": "float16", "bf16": "uint16", "f32": "float32", "f64": "float64", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip
_FILLS = ("random", "zeros", "ones", "arange", "nan")
_SHOWN = 12  # mnemonics in the table; --json has all


def run(
    file: Annotated[
        Path,
        typer.Argument(help="AMDGCN assembly, or a binary of hipcc or clang: a code object or an offload bundle."),
    ],
    grid: Annotated[str, typer.Option("--grid", metavar="X,Y,Z", help="Workgroups; 1 to 3 numbers.")],
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="ARG",
            help="In the kernel's order: f16:64x64:random (or zeros, ones, arange, nan), i32:64 (a scalar), file.npy "
            "(for a struct too), out:f32:64x64 (filled with NaN), lds:4096 (LDS that a pointer leads to). Any array "
            "may end in ->result.npy.",
        ),
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="By default the one that the file names.")] = None,
    block: Annotated[
        str | None, typer.Option("--block", metavar="N", help="Threads of a workgroup; by default what the file says.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="X,Y,Z", help="Workgroups of a cluster (CDNA 5); the file may say it."),
    ] = None,
    lds: Annotated[int, typer.Option("--lds", min=0, help="Bytes of LDS beyond those that the file fixes.")] = 0,
    bounds: Annotated[
        str | None,
        typer.Option("--bounds", metavar="hardware", help="Past the end of LDS loads give 0 and stores are dropped."),
    ] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="The symbol, where the file has several.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at hazards and races as well.")] = False,
    order: Annotated[int, typer.Option("--order", min=0, help="Fixes another order of waves and workgroups.")] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of random arrays.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a kernel from its assembly, on arrays of yours.

    Shows what ran, how many instructions, and what became of each array.
    """
    import numpy as np

    from ..emulator.allocation import changes_words
    from ..emulator.launch import launch
    from ..emulator.memory import Region
    from ..emulator.program import Program
    from ..isa.metadata import select_kernel

    groups = _numbers(grid, "--grid")
    if bounds not in (None, "hardware"):
        raise ArgumentError(f"--bounds takes hardware alone (by default such accesses are errors), got {bounds!r}")
    source = read_source(file, gpu, kernel)
    if source.gpu is None:
        raise ArgumentError(f"{file} has no .amdgcn_target line: say with --gpu which GPU it is for")
    generator = np.random.default_rng(seed)
    given = [_parse_argument(a, generator) for a in argument or []]
    program = Program(source.text, source.gpu, kernel, strict=strict, elf=source.elf)
    described = select_kernel(source.text, program.kernel) if ".amdgpu_metadata" in source.text else None
    size = _workgroup_size(block, described, file)
    together = _numbers(cluster, "--cluster") if cluster else list((described and described.cluster) or (1,))
    before = [g.value.copy() if g.is_array else None for g in given]
    fixed = program.listing.directive("group_segment_fixed_size")
    packed, lds_bytes = pack(given, described, program.kernel, fixed + lds)
    # Small elements may be changed by atomics of the words around them, of which numpy gives out whole ones.
    words = changes_words(program.listing, ("global_", "flat_", "buffer_"))
    regions = [
        Region(f"{k}: {g.text}", g.value.ctypes.data, -(-g.value.nbytes // step) * step, g.value)
        for k, g in enumerate(given)
        if g.is_array and (step := 4 if words and g.value.itemsize < 4 else 1)
    ]
    for g in given:
        if g.save_to is not None:
            check_writable("--arg", g.save_to)
    record = launch(
        program, groups, packed, workgroup_size=size, lds_bytes=lds_bytes, regions=regions, seed=order,
        cluster=together, lds_drops=bounds == "hardware",
    )  # fmt: skip
    for g in given:
        if g.save_to is not None:
            np.save(g.save_to, g.value)
    arrays = [_summary(k, g, b) for k, (g, b) in enumerate(zip(given, before, strict=True)) if b is not None]
    if as_json:
        print_json(_to_dict(record) | {"arrays": arrays})
    else:
        _show(record, arrays)


def _workgroup_size(block: str | None, described: KernelMetadata | None, file: Path) -> list[int]:
    required = None if described is None else described.workgroup_size
    if block is None:
        if described is None:
            raise ArgumentError(f"{file} does not say how many threads a workgroup has: give --block")
        return list(required or [described.max_workgroup_size])
    size = _numbers(block, "--block")
    if required is not None and tuple(size + [1] * (3 - len(size))) != required:
        raise ArgumentError(f"--block {block}: the kernel takes workgroups of {','.join(map(str, required))} alone")
    return size


def _numbers(text: str, option: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not 1 <= len(values) <= 3 or min(values) < 1:
        raise ArgumentError(f"{option}: expected 1 to 3 positive numbers such as 16,16,1, got {text!r}")
    return values


# -- arguments ---------------------------------------------------------------------------------------------------------


def _parse_argument(text: str, generator: Any) -> Given:
    spec, arrow, target = (part.strip() for part in text.partition("->"))
    if arrow and not Path(target).name:
        raise ArgumentError(f"--arg {text}: expected a file after ->, such as result.npy")
    save_to = Path(target if target.endswith(".npy") else f"{target}.npy") if arrow else None  # as np.save calls it
    spec = spec.rstrip(":")
    if spec.endswith(".npy"):
        value = _loaded(text, spec)
        return Given(text, value.dtype.name, value, save_to)
    parts = spec.split(":")
    if parts[0] == "lds":
        if arrow:
            raise ArgumentError(f"--arg {text}: LDS is not written to a file")
        return Given(text, "lds", _lds_bytes(text, parts[1:]))
    output = parts[0] == "out"
    dtype, *rest = parts[1:] if output else parts
    if dtype not in _DTYPES:
        raise ArgumentError(
            f"--arg {text}: unknown type {dtype!r}; expected one of {', '.join(_DTYPES)}, or a .npy file"
        )
    if len(rest) == 1 and not output and not arrow:
        return Given(text, dtype, _scalar(text, dtype, rest[0]))
    shape = re.fullmatch(r"\d+(x\d+)*", rest[0]) if rest else None
    fill = rest[1] if len(rest) == 2 else "nan" if output and len(rest) == 1 else None
    if shape is None or fill not in _FILLS:
        raise ArgumentError(
            f"--arg {text}: expected TYPE:SHAPE:FILL such as f16:64x64:random (fills: {', '.join(_FILLS)}), "
            f"out:TYPE:SHAPE, TYPE:NUMBER, or a .npy file"
        )
    try:
        value = _array(dtype, tuple(int(n) for n in rest[0].split("x")), fill, generator)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(f"--arg {text[:80]}: numpy makes no array of this shape: {error}") from None
    return Given(text, dtype, value, save_to)


def _loaded(text: str, file: str) -> np.ndarray:
    """The array in a file, in the byte order of the GPU."""
    import numpy as np

    try:
        value = np.load(file)
    except (OSError, ValueError, EOFError) as error:
        # Of whatever it does not know numpy says that it is pickled, and how to load that all the same.
        why = "it holds no array of numbers in NumPy's format" if "pickle" in str(error) else error
        why = getattr(error, "strerror", None) or why
        raise ArgumentError(f"--arg {text}: cannot read {file}: {why}") from None
    if not isinstance(value, np.ndarray):
        raise ArgumentError(f"--arg {text}: {file} holds several arrays (.npz), expected one (.npy)")
    return np.ascontiguousarray(value, value.dtype.newbyteorder("<"))


def _lds_bytes(text: str, rest: list[str]) -> int:
    if len(rest) != 1 or not rest[0].isdecimal():
        raise ArgumentError(f"--arg {text}: expected lds:BYTES such as lds:4096")
    return int(rest[0])


def _scalar(text: str, dtype: str, number: str) -> int | float:
    try:
        value = float(number) if "f" in dtype else int(number, 0)
    except ValueError:
        raise ArgumentError(f"--arg {text}: {number!r} is no number of type {dtype}; an array needs a fill") from None
    if isinstance(value, int) and not -1 << int(dtype[1:]) - 1 <= value < 1 << int(dtype[1:]):
        raise ArgumentError(f"--arg {text}: {number} does not fit in the {dtype[1:]} bits of {dtype}")
    if isinstance(value, float) and "inf" not in number.lower() and _overflows(value, dtype):
        raise ArgumentError(f"--arg {text}: {number} does not fit in {dtype}, where it would be infinite")
    return value


def _overflows(value: float, dtype: str) -> bool:
    """Whether the kernel would get an infinity; numbers above a double's largest are one already."""
    import numpy as np

    with np.errstate(over="ignore"):  # bf16 is FP32 cut off
        return bool(np.isinf(np.array(value, "float32" if dtype == "bf16" else _DTYPES[dtype])))


def _array(dtype: str, shape: tuple[int, ...], fill: str, generator: Any) -> np.ndarray:
    """Random floats are normal, integers between -8 and 7 (0 and 15 if unsigned); "nan" of an integer is all ones."""
    import numpy as np

    kind = np.dtype(_DTYPES[dtype])
    if dtype == "bf16" or kind.kind == "f":
        values = {
            "random": lambda: generator.standard_normal(shape), "zeros": lambda: np.zeros(shape),
            "ones": lambda: np.ones(shape), "nan": lambda: np.full(shape, np.nan),
            "arange": lambda: np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape),
        }[fill]()  # fmt: skip
        if dtype == "bf16":
            from ..verify import encode

            return encode(values, "bf16")
        return values.astype(kind)
    low = -8 if kind.kind == "i" else 0
    if fill == "nan":
        return np.full(shape, -1 if kind.kind == "i" else np.iinfo(kind).max, kind)
    if fill == "random":
        return generator.integers(low, low + 16, shape, dtype=np.int64).astype(kind)
    if fill == "arange":
        return np.arange(int(np.prod(shape))).astype(kind).reshape(shape)
    return np.full(shape, int(fill == "ones"), kind)


# -- the report --------------------------------------------------------------------------------------------------------


def _summary(index: int, given: Given, before: Any) -> dict[str, Any]:
    import numpy as np

    from ..verify import decode

    values = decode(given.value, "bf16") if given.dtype == "bf16" else given.value
    if values.dtype.kind not in "biuf":  # structs, complex numbers, text: no least and no largest
        values = np.empty(0)
    values = values.astype(np.float64)
    good = values[np.isfinite(values)]
    old, new = (x.reshape(-1).view(np.uint8).reshape(x.size, -1) for x in (before, given.value))
    changed = int((old != new).any(-1).sum())
    return {
        "argument": index, "dtype": given.dtype, "shape": list(given.value.shape), "changed": changed,
        "not_finite": int(values.size - good.size), "min": float(good.min()) if good.size else None,
        "max": float(good.max()) if good.size else None, "mean": float(good.mean()) if good.size else None,
        "saved_to": str(given.save_to) if given.save_to else None,
    }  # fmt: skip


def _to_dict(record: LaunchRecord) -> dict[str, Any]:
    return {
        "kernel": record.kernel, "gpu": record.gpu, "grid": list(record.grid), "workgroup_size": record.workgroup_size,
        "lds_bytes": record.lds_bytes, "wall_s": record.wall_s, "instructions": record.instructions,
        "executed": dict(sorted(record.executed.items(), key=lambda item: -item[1])),
    }  # fmt: skip


def _show(record: LaunchRecord, arrays: list[dict[str, Any]]) -> None:
    from rich.table import Table

    console = new_console()
    x, y, z = record.grid
    console.print(
        f"{record.kernel} on {record.gpu}, emulated: {counted(x * y * z, 'workgroup')} of "
        f"{counted(record.workgroup_size, 'thread')}, {record.lds_bytes:,} bytes of LDS, "
        f"{counted(record.instructions, 'wave-instruction')} in {record.wall_s:.2f} s"
    )
    counts = Table("instruction", "executed", box=None, padding=(0, 2))
    counts.columns[1].justify = "right"
    ranked = sorted(record.executed.items(), key=lambda item: -item[1])
    for name, count in ranked[:_SHOWN]:
        counts.add_row(name, f"{count:,}")
    if len(ranked) > _SHOWN:
        counts.add_row(f"{len(ranked) - _SHOWN} more", f"{sum(n for _, n in ranked[_SHOWN:]):,}")
    print_table(counts)
    if not arrays:
        return
    saved = any(a["saved_to"] for a in arrays)
    titles = ("arg", "type", "shape", "changed", "min", "max", "mean", "NaN, inf", *(["saved to"] if saved else []))
    table = Table(*titles, box=None, padding=(0, 2))
    for column in table.columns:
        column.no_wrap = True
    for a in arrays:
        figures = ["" if a[k] is None else f"{a[k]:.6g}" for k in ("min", "max", "mean")]
        shape = "x".join(map(str, a["shape"]))
        row = [str(a["argument"]), a["dtype"], shape, f"{a['changed']:,}", *figures, f"{a['not_finite']:,}"]
        table.add_row(*row, *([a["saved_to"] or ""] if saved else []))
    print_table(table)
