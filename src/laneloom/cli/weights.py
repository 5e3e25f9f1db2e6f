"""A product with a weight of few bits as the command line asks for it: what stands in for operands, a run, its code."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError
from .product import Outcome, Product, check_choice, check_size

if TYPE_CHECKING:
    from ..codegen import CodeObject
    from ..ops.matmul.api import Explanation
    from ..ops.quantized_matmul.config import BaseConfig
    from ..timing import Prediction

#: dtype of the weight -> of its scales, and the group that checkpoints have; 0 is a row
USUAL = {"int4": ("fp16", 128), "uint4": ("fp16", 128), "fp4": ("e8m0", 32), "int8": ("fp32", 0), "fp8": ("fp32", 0)}

Weight = Annotated[
    str | None,
    typer.Option("--weight", help="B is a weight [N, K] of int4, uint4 (with zeros), fp4, int8 or fp8 and A fp16 or "
                 "bf16: what quantized_matmul does."),
]
Group = Annotated[
    int | None, typer.Option("--group", help="k that share a scale of --weight, 0: a row does; by default as usual.")
]


@dataclass(frozen=True)
class WeightProduct(Product):
    """C[M, N] = X[M, K] W[N, K]^T on one GPU."""

    weight: str = "int4"
    group: int = 128

    @property
    def text(self) -> str:
        """The product in words."""
        scales = f"a scale for {self.group} k" if self.group else "a scale for a row"
        out = "" if self.dtype_out == self.dtype else f" to {self.dtype_out}"
        return f"{self.m} x {self.n} x {self.k}, {self.dtype} by {self.weight} with {scales}{out}"

    def problem(self) -> Any:  # no MatmulProblem
        """The QuantizedProblem of densely stored operands. Raises ArgumentError where no kernel is launched."""
        from ..ops.quantized_matmul.problem import QuantizedProblem

        if 0 in self.shape:
            raise ArgumentError(f"--shape: {self.text} has nothing to multiply, so no kernel runs")
        return QuantizedProblem.contiguous(
            *self.shape, dtype=self.dtype, dtype_w=self.weight, dtype_out=self.dtype_out,
            dtype_scale=USUAL[self.weight][0], group=self.group, zeros=self.weight == "uint4",
        )  # fmt: skip


def parse_weight(product: Product, weight: str | None, group: int | None) -> Product:
    """The product with a weight of few bits, if there is one. Raises ArgumentError, UnsupportedError."""
    from ..ops.matmul.dtypes import FLOAT_OUTPUTS, HALVES
    from ..ops.quantized_matmul.weight import LEAST_GROUP, PACKED, check_group

    if weight is None:
        if group is not None:
            raise ArgumentError("--group belongs to --weight")
        return product
    check_choice("--weight", weight, tuple(USUAL))
    check_choice("--dtype", product.dtype, HALVES)
    check_choice("--out-dtype", product.dtype_out, FLOAT_OUTPUTS)
    if product.layout != "nn" or product.precision != "ieee" or product.scales:
        raise ArgumentError("--weight: the weight lies as [N, K]; --layout, --precision and --scales belong to others")
    if weight in PACKED and product.k % 2:
        raise ArgumentError(f"--shape: expected an even K, as {weight} comes in pairs along it, got {product.k}")
    group = USUAL[weight][1] if group is None else group
    try:
        check_group(group or None)
    except ArgumentError:
        raise ArgumentError(f"--group: expected 0 or a power of two from {LEAST_GROUP} on, got {group}") from None
    return WeightProduct(
        product.gpu, *product.shape, product.dtype, product.dtype_out, "nt", weight=weight, group=group
    )  # fmt: skip


def said_of_weight(product: Product) -> dict[str, Any]:
    """What JSON says of a weight of few bits."""
    return {"weight": product.weight, "group": product.group} if isinstance(product, WeightProduct) else {}


def compile_weight(product: WeightProduct) -> tuple[BaseConfig, CodeObject]:
    """The planned config and its machine code. Raises UnsupportedError where there is no schedule."""
    from ..ops.quantized_matmul import execute
    from ..ops.quantized_matmul.plan import plan

    problem = product.problem()
    chosen = plan(problem, product.gpu)
    return chosen, execute.code_object(problem, product.gpu, chosen)


def explain_weight(product: WeightProduct) -> Explanation:
    """Which config runs, and why those that rank higher do not."""
    from ..ops.matmul.api import Explanation
    from ..ops.quantized_matmul.plan import candidates, plan

    problem: Any = product.problem()
    chosen: Any = plan(problem, product.gpu)
    passed_over = []
    for config in candidates(problem, product.gpu):
        why = config.why_invalid(problem, product.gpu)
        if why is None:
            break
        passed_over.append((config.text, why))
    reason = "the tile goes by the rows, parts of K by the waves"
    if chosen.schedule == "fragments":
        reason = "many rows: a wave unpacks its columns of W for all rows of a tile, as its instructions want them"
    elif chosen.schedule != "tiles":
        reason = "the shortest estimate of a model of Hopper"
    parts = chosen.parts(problem)
    facts = (f"{parts} parts of K, added up by a second launch",) if parts > 1 else ()
    return Explanation(problem, product.gpu, chosen, reason, facts, tuple(passed_over), "plan")


def predict_weight(product: WeightProduct, config: str | None) -> tuple[Prediction, str]:
    """The predicted time, and the config's text."""
    from ..bench.predicted_weights import predict_weights

    product.problem()  # refuses a product that nothing is launched for
    return predict_weights(
        product.gpu, *product.shape, (product.weight, USUAL[product.weight][0], product.group, product.dtype),
        config, product.dtype_out,
    )  # fmt: skip


def run_weight(product: WeightProduct, *, strict: bool, seed: int, profile: bool) -> Outcome:
    """Multiply random numbers in the emulator as `quantized_matmul` does, and judge the result.

    Raises UnsupportedError for a GPU that is not emulated.
    """
    import numpy as np

    from .. import verify
    from ..emulator.driver import emulated
    from ..ops.matmul.reference import cuts_of
    from ..ops.quantized_matmul import execute, reference
    from ..ops.quantized_matmul.plan import plan
    from ..ops.quantized_matmul.weight import PACKED, QuantizedWeight
    from .product import aligned

    m, n, k = product.shape
    check_size(*product.shape)
    rng = np.random.default_rng(seed)
    kind, packed = USUAL[product.weight][0], product.weight in PACKED
    x = aligned(verify.encode(rng.standard_normal((m, k), np.float32), product.dtype))
    values = rng.integers(0, 256, (n, k // 2 if packed else k)).astype(np.uint8)
    if product.weight == "fp8":
        values[values & 0x7F == 0x7F] = 0  # no NaN
    shape = (n, -(-k // product.group) if product.group else 1)
    scales = rng.integers(120, 130, shape).astype(np.uint8) if kind == "e8m0" else rng.uniform(0.5, 1.5, shape)
    scales = scales if kind == "e8m0" else scales.astype({"fp16": np.float16, "fp32": np.float32}[kind])
    zeros = aligned(rng.integers(0, 16, shape).astype(np.uint8)) if product.weight == "uint4" else None
    values = values.view(np.int8) if product.weight == "int8" else values
    weight = QuantizedWeight(aligned(values), aligned(scales), product.weight, product.group or None, zeros)
    c = verify.Guarded((m, n), product.dtype_out)
    dtypes = execute.Dtypes(product.dtype, product.weight, kind, product.dtype_out, "", product.group)
    with emulated(product.gpu, strict=strict, seed=seed, profile=profile) as emulation:
        began = time.perf_counter()
        operands = execute.Operands(x, *execute.weight_operands(weight), None, c.array)
        execute.multiply_into(operands, dtypes, product.gpu, None)
        wall_s = time.perf_counter() - began
    chosen: Any = plan(product.problem(), product.gpu) if emulation.launches else None
    flushed = product.dtype if product.gpu.flushes_denormals else None
    got, rows = verify.decode(c.array, product.dtype_out), verify.decode(x, product.dtype)
    cuts = cuts_of(product.gpu, product.dtype)
    verdict = reference.judge(got, rows, weight, product.dtype_out, flushed=flushed, cuts=cuts)
    return Outcome(verdict, c.untouched_outside(), tuple(emulation.launches), wall_s, chosen)
