"""What the launches of CUDA C++ kernels share: operands as TMA reads them, the sizes, the text in front of a kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

import torch

from ... import device
from ...codegen.cuda_call import TensorMap
from ...device.pieces import MatrixCopy

UNUSED_PITCH = 128  #: bytes, of an axis with one element
ELEMENT_BYTES = {
    "fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "bf8": 1, "int8": 1, "uint8": 1,
}  # fmt: skip

#: OUT_TYPE and OUT_KIND of kernels that store their sums one by one
OUTPUT_TYPES = {"bf16": ("u16", 0), "fp16": ("u16", 1), "fp32": ("float", 2)}
#: what the order of tiles in hopper.cuh asks for, of kernels without tiles
NO_TILES = {"GROUPED": 0, "BLOCK_M": 1, "BLOCK_N": 1, "CLUSTER_M": 1, "CLUSTER_N": 1, "GROUP_M": 1}


class Divisor(ctypes.Structure):
    """`Divisor` of hopper.cuh: n // d is n * multiplier >> shift for n below 2^31."""

    _fields_ = (("multiplier", ctypes.c_uint32), ("shift", ctypes.c_uint32))

    @staticmethod
    def of(d: int) -> Divisor:
        """For d from 1 to 2^31."""
        shift = 31 + (d - 1).bit_length()
        return Divisor(-(-(1 << shift) // d), shift)


class Tiling(ctypes.Structure):
    """`Tiling` of hopper.cuh."""

    _fields_ = (("by_tiles", Divisor), ("by_band", Divisor))


class Order(ctypes.Structure):
    """What the order of tiles in hopper.cuh divides by, of tiles of one width."""

    _fields_ = (("by_inner", Divisor), ("by_last_rows", Divisor), ("tiling", Tiling))

    @staticmethod
    def of(rows: int, columns: int, inner: int, group_m: int) -> Order:
        """rows, columns: of a product's tiles, each a cluster's; inner: products along the batch's inner axis."""
        tiling = Tiling(Divisor.of(max(rows * columns, 1)), Divisor.of(max(group_m * columns, 1)))
        return Order(Divisor.of(inner), Divisor.of(rows % group_m or group_m), tiling)


class Sizes(ctypes.Structure):
    """`Sizes` of hopper.cuh."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "batch_inner", "items")),
        ("order", Order),
        *((name, ctypes.c_int32) for name in ("a_outer", "a_inner", "b_outer", "b_inner")),
        *((name, ctypes.c_int64) for name in ("c_outer", "c_inner", "c_m", "c_n")),
        ("group_ends", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("groups", "wide_n", "narrow_n", "wide_items")),
        ("narrow_tiling", Tiling),
    )  # fmt: skip


class TmaOperand:
    """A or B of one shape: read where it lies, or from a copy, perhaps in pieces, that a launch ahead writes."""

    def __init__(
        self,
        strides: tuple[int, int, int, int],
        dtype: str,
        rows: int,
        k: int,
        batch: tuple[int, int],
        *,
        along_k: bool,
        box: tuple[int, int],
        swizzle: int,
        copied: bool,
        pieces: int,
    ) -> None:
        """`strides`: of both batch axes, of the axis of `rows`, which it shares with C, and of K. `along_k`: whether it
        is contiguous along K, or shall be in the copy, else along `rows`. `box`: of that axis and of the other."""
        size = ELEMENT_BYTES[dtype]
        outer, inner, row, step_k = strides
        self.copy: MatrixCopy | None = None
        products = (batch[0] if outer else 1, batch[1] if inner else 1)
        if copied:
            across, along, steps_of = (rows, k, (row, step_k)) if along_k else (k, rows, (step_k, row))
            self.copy = MatrixCopy(dtype, pieces, across, along, steps_of, products, (outer, inner))
            pitch = self.copy.pitch
            each = across * pitch
            sizes = (along, across, pieces * products[1], products[0])
            steps = (pitch, each, each * pieces * products[1])
        else:
            sizes = (*((k, rows) if along_k else (rows, k)), *products[::-1])
            steps = (row if along_k else step_k, inner, outer)
        #: whether the batch axes, outer and inner, step through the operand
        self.steps = (int(bool(outer)), int(bool(inner)))
        self.map = TensorMap(dtype, sizes, [step * size or UNUSED_PITCH for step in steps], (*box, 1, 1), swizzle)


def _each_product(batch: tuple[int, int], strides: Sequence[tuple[int, ...] | None]) -> Iterator[list[int]]:
    """The offset of each operand, in elements, for every product of a batch; `strides` of what is not there is None."""
    for outer in range(batch[0]):
        for inner in range(batch[1]):
            yield [0 if s is None else outer * s[0] + inner * s[1] for s in strides]


def _shifted(operand: torch.Tensor, offset: int) -> torch.Tensor:
    """What begins `offset` elements behind `operand`'s first."""
    return operand.as_strided((1,), (1,), operand.storage_offset() + offset)


def prepare_launches(
    make: Callable[..., Callable[..., None]], problem: Any, config: Any, gpu: Any, *, copied: bool
) -> Callable[..., None]:
    """What runs `make(problem, config, gpu, device)` call after call; it is made at the first one.

    copied: whether what is copied ahead is of one product, so that a batch goes product by product.
    """
    if problem.batches > 1 and copied:
        return _product_by_product(problem, prepare_launches(make, problem.one_product(), config, gpu, copied=copied))
    prepared: list[Callable[..., None]] = []

    def run(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *terms: Any) -> None:
        if not prepared:
            prepared.append(make(problem, config, gpu, out.device.index))
        prepared[0](a, b, out, *terms)

    return run


def _product_by_product(problem: Any, run: Callable[..., None]) -> Callable[..., None]:
    e, scales = problem.epilogue, problem.scales
    addend = e.addend.strides if e and e.addend else None
    of_blocks = (scales.a.strides, scales.b.strides) if scales else (None, None)

    def run_batch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, add: Any = None, *terms: Any) -> None:
        strides = [problem.a.strides, problem.b.strides, problem.out.strides, addend, *of_blocks]
        for at_a, at_b, at_out, at_add, *at_scales in _each_product(problem.batch, strides):
            rest = (None if add is None else _shifted(add, at_add), *terms) if e or scales else ()
            if scales:
                rest = (*rest[:4], *(_shifted(x, at) for x, at in zip(terms[3:5], at_scales, strict=True)))
            run(_shifted(a, at_a), _shifted(b, at_b), _shifted(out, at_out), *rest)

    return run_batch


def kernel_source(package: str, *names: str) -> str:
    """The texts of a package's files, one behind the other, with hopper.cuh in front of them."""
    header = resources.files(device).joinpath("hopper.cuh").read_text(encoding="utf-8")
    return header + "".join(resources.files(package).joinpath(name).read_text(encoding="utf-8") for name in names)
