"""A matrix product as the command line asks for it: parsing, random operands, a run in the emulator, the verdict."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError
from ..gpu import Gpu, get_gpu

if TYPE_CHECKING:
    from ..codegen import CodeObject
    from ..emulator.launch import LaunchRecord
    from ..ops.matmul.config import MatmulConfig
    from ..ops.matmul.problem import MatmulProblem
    from ..verify import Verdict

OPERATIONS = ("matmul",)
_LAYOUTS = ("nn", "nt", "tn", "tt")
MOST_BYTES = 8 << 30  #: of the operands and of the FP64 arrays that judge them

Operation = Annotated[str, typer.Argument(metavar="OPERATION", help="What to compute: matmul.")]
GpuName = Annotated[str, typer.Option("--gpu", help="A GPU of `laneloom gpus`.")]
Shape = Annotated[str, typer.Option("--shape", help="M,N,K: A is [M, K], B is [K, N].")]
Dtype = Annotated[str, typer.Option("--dtype", help="Of A and B, such as fp16 or bf16.")]
OutDtype = Annotated[str | None, typer.Option("--out-dtype", help="Of C, such as fp32; by default that of A and B.")]
Layout = Annotated[
    str, typer.Option("--layout", help="nn, nt, tn or tt: how A and B are stored; t is the transpose in memory.")
]
Precision = Annotated[
    str | None, typer.Option("--precision", help="Of fp32: tf32, 3xtf32, 3xbf16, else full; of fp8, bf8: promoted.")
]
Scales = Annotated[
    str | None,
    typer.Option(
        "--scales", help="Of fp8, bf8: rows of A and columns of B that share a scale of a block of K, such as 1,128."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Product:
    """C[M, N] = A[M, K] B[K, N] on one GPU."""

    gpu: Gpu
    m: int
    n: int
    k: int
    dtype: str
    dtype_out: str
    layout: str
    precision: str = "ieee"
    scales: tuple[int, int] | None = None  #: rows of A and columns of B that share a scale of a block of K

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return self.m, self.n, self.k

    @property
    def text(self) -> str:
        """The product in words."""
        out = "" if self.dtype_out == self.dtype else f" to {self.dtype_out}"
        layout = "" if self.layout == "nn" else f", layout {self.layout}"
        precision = "" if self.precision == "ieee" else f", precision {self.precision}"
        scales = f", scales of {self.scales[0]} and {self.scales[1]} by 128" if self.scales else ""
        return f"{self.m} x {self.n} x {self.k}, {self.dtype}{out}{layout}{precision}{scales}"

    def problem(self) -> MatmulProblem:
        """The problem of densely stored operands. Raises ArgumentError for a product that no kernel is launched for."""
        from ..ops.matmul.problem import MatmulProblem

        if 0 in self.shape:
            raise ArgumentError(f"--shape: {self.text} has nothing to multiply, so no kernel runs")
        return MatmulProblem.contiguous(
            *self.shape, dtype=self.dtype, dtype_out=self.dtype_out, layout=self.layout, precision=self.precision,
            scales=self.scales,
        )  # fmt: skip


def check_operation(operation: str, known: Sequence[str] = OPERATIONS) -> None:
    """Raises ArgumentError unless the operation is a known one."""
    if operation not in known:
        raise ArgumentError(f"unknown operation {operation!r}; {_nearest(operation, known)}")


def options_of_matmul(
    out_dtype: str | None, layout: str, precision: str | None, scales: str | None, weight: str | None, group: int | None
) -> tuple[tuple[str, bool], ...]:
    """The options that only products have, and whether each is given."""
    values = {
        "--out-dtype": out_dtype, "--precision": precision, "--scales": scales, "--weight": weight, "--group": group,
    }  # fmt: skip
    return *((option, value is not None) for option, value in values.items()), ("--layout", layout != "nn")


def refuse_options(options: Sequence[tuple[str, bool]], of: str) -> None:
    """Raises ArgumentError if one of the options, which belong to `of` alone, is given."""
    for option, given in options:
        if given:
            raise ArgumentError(f"{option} belongs to {of}")


def parse_product(
    operation: str,
    gpu: str,
    shape: str,
    dtype: str,
    out_dtype: str | None = None,
    layout: str = "nn",
    precision: str | None = None,
    scales: str | None = None,
) -> Product:
    """The product that the words ask for. Raises ArgumentError or UnknownGpuError with one sentence."""
    check_operation(operation)
    row = get_gpu(gpu)
    from ..ops.matmul.dtypes import ACCUMULATORS, check_arithmetic, default_output, stored_k
    from ..verify import STORAGE

    check_choice("--dtype", dtype, tuple(ACCUMULATORS))  # which of them a schedule takes, its config says
    if out_dtype is None:
        out_dtype = default_output(dtype, has_terms=False)
    check_choice("--out-dtype", out_dtype, tuple(STORAGE))  # pairs of int4 are operands only
    check_choice("--layout", layout, _LAYOUTS)
    sizes = parse_shape(shape)
    if stored_k(2, dtype) == 1 and sizes[2] % 2:
        raise ArgumentError(f"--shape: expected an even K, as {dtype} comes in pairs along it, got {sizes[2]}")
    how = check_arithmetic(dtype, precision, None).precision
    return Product(row, *sizes, dtype, out_dtype, layout, how, _parse_scales(scales, dtype))


def _parse_scales(text: str | None, dtype: str) -> tuple[int, int] | None:
    from ..ops.matmul.gemm import check_block_dtypes

    if text is None:
        return None
    check_block_dtypes(dtype)
    known = ("1,1", "1,128", "128,1", "128,128")
    check_choice("--scales", text.replace(" ", ""), known)
    rows, columns = text.split(",")
    return int(rows), int(columns)


def parse_shape(text: str) -> tuple[int, int, int]:
    """M, N and K of "512,512,512" or "512x512x512". Raises ArgumentError."""
    parts = re.split(r"\s*[,x]\s*", text.strip())
    if len(parts) != 3 or not all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts):
        raise ArgumentError(
            f"--shape: expected three integers M,N,K of at least 0, such as 512,512,512, got {text!r}"
        )
    m, n, k = (int(part) for part in parts)
    if max(m, n, k) >= 1 << 31:
        raise ArgumentError(f"--shape: expected sizes below 2**31, got {text!r}")
    return m, n, k


def check_choice(option: str, given: str, known: Sequence[str]) -> None:
    """Raises ArgumentError unless what an option was given is among these."""
    if given not in known:
        raise ArgumentError(f"{option}: expected {', '.join(known[:-1])} or {known[-1]}, got {given!r}")


def _nearest(given: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(given, known, n=3, cutoff=0.4)
    return f"the nearest is {', '.join(near)}" if near else f"the known ones are: {', '.join(known)}"


def compile_product(product: Product) -> tuple[MatmulConfig, CodeObject]:
    """The planned config and its machine code. Raises UnsupportedError where there is no schedule."""
    from ..ops.matmul import config, execute

    problem = product.problem()
    chosen = config.plan(problem, product.gpu)
    return chosen, execute.code_object(problem, product.gpu, chosen)


@dataclass(frozen=True)
class Outcome:
    """What a run in the emulator gave."""

    verdict: Verdict
    intact: bool  #: whether the guard bands around C still hold what was written there before
    launches: tuple[LaunchRecord, ...]
    wall_s: float  #: of the product, compilation and emulation together
    config: MatmulConfig | None  #: None where nothing had to be launched

    @property
    def ok(self) -> bool:
        """Right within the budget, and nothing written outside C."""
        return self.verdict.ok and self.intact

    @property
    def instructions(self) -> int:
        """Wave-instructions executed."""
        return sum(record.instructions for record in self.launches)

    @property
    def reasons(self) -> list[str]:
        """What is wrong, as sentences; empty when nothing is."""
        v, found = self.verdict, []
        if not v.ok:
            found.append(f"C{list(v.index)} is off by {v.error:.3g}, the budget there is {v.budget:.3g}")
        if not self.intact:
            found.append("the kernel wrote outside C")
        return found


def check_size(m: int, n: int, k: int) -> None:
    """Raises ArgumentError for a product that takes too much memory to be checked in FP64."""
    needed = 8 * (m * k + k * n + 5 * m * n)
    if needed > MOST_BYTES:
        raise ArgumentError(
            f"--shape: checking {m} x {n} x {k} in FP64 takes {needed / 2**30:.0f} GiB, "
            f"the most is {MOST_BYTES / 2**30:.0f}"
        )


def random_operands(product: Product, seed: int) -> tuple[Any, Any]:
    """A and B in the storage of their dtype (bf16 and 8-bit floats as bits, int4 in pairs) and in the layout's order:
    standard normal, or integers of the whole range.
    """
    import numpy as np

    from .. import verify
    from ..ops.matmul.dtypes import stored_k

    check_size(*product.shape)
    rng = np.random.default_rng(seed)
    m, n, k = product.shape
    k = stored_k(k, product.dtype)
    operands = []
    for letter, rows, columns in ((product.layout[0], m, k), (product.layout[1], k, n)):
        stored = (rows, columns) if letter == "n" else (columns, rows)
        if "int" in product.dtype:
            values = rng.integers(0, 256, stored).astype(np.uint8)
            array = aligned(values if product.dtype.startswith("u") else values.view(np.int8))
        else:
            kind = np.float64 if product.dtype == "fp64" else np.float32
            array = aligned(verify.encode(rng.standard_normal(stored, kind), product.dtype))
        operands.append(array if letter == "n" else array.T)
    return operands[0], operands[1]


def aligned(array: Any) -> Any:
    """A copy aligned to 256 bytes, as a GPU's allocator gives memory: cache lines are counted as there."""
    import numpy as np

    octets = np.empty(array.nbytes + 256, np.uint8)
    skip = -octets.ctypes.data % 256
    copy = octets[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def judge(product: Product, a: Any, b: Any, c: Any) -> Verdict:
    """C, in its storage, against the product in FP64, or in whole numbers."""
    from .. import verify
    from ..ops.matmul import reference
    from ..ops.matmul.dtypes import ACCUMULATORS, Int4

    accumulator = ACCUMULATORS[product.dtype][0]
    if product.dtype.endswith("int4"):
        signed = product.dtype == "int4"
        values = (Int4(a, signed).unpack(-1), Int4(b, signed).unpack(-2))
    elif accumulator == "int32":
        values = (a, b)
    else:
        values = (verify.decode(a, product.dtype), verify.decode(b, product.dtype))
    got = c if product.dtype_out == "int32" else verify.decode(c, product.dtype_out)
    zeros = product.dtype if product.gpu.flushes_denormals and product.dtype in ("fp16", "bf16") else None
    cuts = reference.cuts_of(product.gpu, product.dtype)
    return reference.judge(got, *values, product.dtype_out, accumulator, zeros, cuts)


def run_product(
    product: Product,
    a: Any,
    b: Any,
    *,
    strict: bool = False,
    seed: int = 0,
    profile: bool = False,
    chosen: MatmulConfig | None = None,
    launcher: Callable[..., LaunchRecord] | None = None,
) -> Outcome:
    """Multiply in the emulator as `laneloom.matmul` does, into a guarded and poisoned C, and judge the result.

    strict, seed, profile: as for `laneloom.emulated`. chosen: what runs, by default what `plan` chooses. launcher: runs
    each kernel in place of `emulator.launch.launch`.
    Raises UnsupportedError for a GPU that is not emulated.
    """
    from .. import verify
    from ..device.triton_types import TRITON_TYPES
    from ..emulator.driver import ArrayArgument, emulated
    from ..ops.matmul import config, execute

    class Stored(ArrayArgument):
        """An array with its dtype's name: numpy has no bf16, so its bits say too little."""

        def __init__(self, array: Any, dtype: str):
            super().__init__(array)
            self.ndim = array.ndim
            self.dtype = TRITON_TYPES.get(dtype, dtype)

        def __setitem__(self, index: Any, value: Any) -> None:
            self.array[index] = value

    c = verify.Guarded((product.m, product.n), product.dtype_out)
    dtypes = (product.dtype, product.dtype, product.dtype_out)
    with emulated(product.gpu, strict=strict, seed=seed, profile=profile) as emulation:
        emulation.launcher = launcher or emulation.launcher
        stored_a, stored_b, stored_c = map(Stored, (a, b, c.array), dtypes)
        began = time.perf_counter()
        execute.multiply_into(stored_a, stored_b, stored_c, dtypes, product.gpu, chosen)
        wall_s = time.perf_counter() - began
    if chosen is None and emulation.launches:
        chosen = config.plan(product.problem(), product.gpu)
    verdict = judge(product, a, b, c.array)
    return Outcome(verdict, c.untouched_outside(), tuple(emulation.launches), wall_s, chosen)
