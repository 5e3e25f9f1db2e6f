"""Which dtypes a product takes, what it sums them in and how: the vocabulary of MatmulProblem. No tensors, no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..scalars import is_whole, shown

#: Bytes of one stored element of every dtype that a schedule may name. int4 and uint4 are stored in pairs along K, the
#: even k in the low half of the byte.
DTYPE_BYTES = {
    "fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "bf8": 1, "int32": 4, "int8": 1, "uint8": 1, "int4": 1,
    "uint4": 1,
}  # fmt: skip
#: operand -> what its products are summed in: the first by default, another by `acc_dtype`
ACCUMULATORS = {
    "fp64": ("fp64",), "fp32": ("fp32",), "fp16": ("fp32", "fp16"), "bf16": ("fp32", "bf16"), "fp8": ("fp32",),
    "bf8": ("fp32",), "int8": ("int32",), "uint8": ("int32",), "int4": ("int32",), "uint4": ("int32",),
}  # fmt: skip
#: Dtypes of which one operand may have one, the other another.
MIXED = (frozenset({"int8", "uint8"}), frozenset({"fp8", "bf8"}), frozenset({"int4", "uint4"}))
HALVES = ("fp16", "bf16")
FLOAT_OUTPUTS = ("fp32", *HALVES)
#: how operands may be multiplied -> which ones; "ieee", as all of them are by default, goes with any
PRECISIONS = {"ieee": (), "tf32": ("fp32",), "3xtf32": ("fp32",), "3xbf16": ("fp32",), "promoted": ("fp8", "bf8")}

FULL_PRECISIONS = ("ieee", "promoted")  #: where a GPU's sums of 8-bit floats are FP32


def stored_k(k: int, dtype: str) -> int:
    """Stored elements of k steps along K."""
    return k // 2 if dtype in ("int4", "uint4") else k


def default_output(dtype_a: str, has_terms: bool) -> str:
    """What the result is stored as if nobody says: the sums' dtype for 8-bit and 4-bit operands, a's for others.

    Integers whose sums are scaled or added to become fp32.
    """
    if dtype_a in ("fp8", "bf8"):
        return "fp32"
    if ACCUMULATORS.get(dtype_a) == ("int32",):
        return "fp32" if has_terms else "int32"
    return dtype_a


def outputs(dtype_a: str, has_terms: bool) -> tuple[str, ...]:
    """What the result may be stored as: integer sums as they are only where nothing is made of them."""
    if dtype_a == "fp64":
        return ("fp64", "fp32")
    if ACCUMULATORS.get(dtype_a) == ("int32",) and not has_terms:
        return ("int32", *FLOAT_OUTPUTS)
    return FLOAT_OUTPUTS


def words(names: Sequence[str]) -> str:
    """ "fp32, fp16 or bf16"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


@dataclass(frozen=True)
class Arithmetic:
    """How a product is computed, where its dtypes leave a choice."""

    precision: str = "ieee"  #: one of PRECISIONS
    dtype_acc: str = ""  #: what is summed in; empty for the default of a's dtype


IEEE = Arithmetic()


def check_pair(dtype_a: str, dtype_b: str) -> None:
    """Raise UnsupportedError for operands of int32, ArgumentError for such as no product takes together, for example
    fp16 and fp32."""
    if dtype_a not in ACCUMULATORS:
        raise UnsupportedError(f"a: expected dtype {words([*ACCUMULATORS])}, got {dtype_a}")
    if dtype_b != dtype_a and frozenset({dtype_a, dtype_b}) not in MIXED:
        raise ArgumentError(f"b: expected a's dtype {dtype_a}, got {dtype_b}")


def check_arithmetic(dtype_a: str, precision: str | None, acc: str | None) -> Arithmetic:
    """The checked arguments `precision` and `acc_dtype` of a call. Raises ArgumentError."""
    if precision is not None and not (isinstance(precision, str) and precision in PRECISIONS):
        raise ArgumentError(f"precision: expected None, {', '.join(map(repr, PRECISIONS))}, got {shown(precision)}")
    if precision not in (None, "ieee") and dtype_a not in (known := PRECISIONS[precision]):
        raise ArgumentError(f"precision: {precision!r} is for {words(known)} operands, a's dtype is {dtype_a}")
    known = ACCUMULATORS[dtype_a]
    if acc is not None and acc not in known:
        raise ArgumentError(f"acc_dtype: expected {words(known)} for operands of {dtype_a}, got {acc}")
    return Arithmetic(precision or "ieee", "" if acc == known[0] else acc or "")


@dataclass(frozen=True, eq=False)  # tensors and arrays have no truth of their equality: two operands differ
class Int4:
    """An operand of 4-bit integers, two in each byte along K: the even k in the low half of the byte, the odd one in
    the high half.

        laneloom.matmul(laneloom.Int4.pack(a, axis=-1), laneloom.Int4.pack(b, axis=-2))      # int32

    packed: int8 or uint8, a torch tensor or a numpy array: [..., M, K/2] where it is the first operand, [..., K/2, N]
        where it is the second.
    signed: whether the values are -8 to 7, or 0 to 15.
    """

    packed: Any
    signed: bool = True

    def __post_init__(self) -> None:
        kind = str(getattr(self.packed, "dtype", type(self.packed).__name__)).removeprefix("torch.")
        if kind not in ("int8", "uint8"):
            raise ArgumentError(f"packed: expected a tensor or an array of int8 or uint8, got {kind}")
        if not isinstance(self.signed, bool):
            raise ArgumentError(f"signed: expected True or False, got {shown(self.signed)}")

    @property
    def dtype(self) -> str:
        """ "int4" or "uint4"."""
        return "int4" if self.signed else "uint4"

    @classmethod
    def pack(cls, values: Any, axis: int, signed: bool = True) -> Int4:
        """The operand of integers that fit in 4 bits; `axis` is K: -1 for the first operand, -2 for the second.

        An odd K gets a zero at its end. Raises ArgumentError for a value that does not fit, and for values that are no
        integers.
        """
        kind = str(getattr(values, "dtype", type(values).__name__)).removeprefix("torch.")
        if not hasattr(values, "swapaxes") or not kind.lstrip("<>=u").startswith("i"):
            raise ArgumentError(f"values: expected a tensor or an array of integers, got {kind}")
        if not isinstance(signed, bool):
            raise ArgumentError(f"signed: expected True or False, got {shown(signed)}")
        if not is_whole(axis):
            raise ArgumentError(f"axis: expected one of values' {values.ndim} axes, got {shown(axis)}")
        if not -values.ndim <= axis < values.ndim:
            raise ArgumentError(f"axis: expected one of values' {values.ndim} axes, got {axis}")
        low, high = (-8, 7) if signed else (0, 15)
        if 0 not in values.shape and not (low <= int(values.min()) and int(values.max()) <= high):
            raise ArgumentError(f"values: expected {low} to {high}, got {int(values.min())} to {int(values.max())}")
        values = values.swapaxes(axis, -1)
        even, odd = values[..., 0::2], values[..., 1::2]
        if isinstance(values, np.ndarray):
            packed = (even & 15).astype(np.uint8)
            packed[..., : odd.shape[-1]] |= (odd & 15).astype(np.uint8) << 4
        else:
            import torch

            packed = (even & 15).to(torch.uint8)
            packed[..., : odd.shape[-1]] |= (odd & 15).to(torch.uint8) << 4
        return cls(packed.swapaxes(axis, -1), signed)

    def unpack(self, axis: int) -> Any:
        """The values as int8, with K along `axis`; the inverse of `pack`."""
        packed = self.packed.swapaxes(axis, -1)
        if isinstance(packed, np.ndarray):
            bits = packed.view(np.uint8)
            halves = np.stack([bits & 15, bits >> 4], -1).astype(np.int8)
        else:
            import torch

            bits = packed.view(torch.uint8)
            halves = torch.stack([bits & 15, bits >> 4], -1).to(torch.int8)
        if self.signed:
            halves = halves - 16 * (halves > 7)
        if isinstance(halves, np.ndarray):
            halves = halves.astype(np.int8)
        return halves.reshape(*packed.shape[:-1], 2 * packed.shape[-1]).swapaxes(axis, -1)


def unwrap(a: Any, b: Any) -> tuple[Any, Any, tuple[str, str] | None]:
    """The tensors of two operands, and their dtypes where these are not the tensors' own.

    Raises ArgumentError for one 4-bit operand and one of another kind.
    """
    if not isinstance(a, Int4) and not isinstance(b, Int4):
        return a, b, None
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, Int4):
            raise ArgumentError(
                f"{name}: expected a laneloom.Int4 as the other operand is, got {type(operand).__name__}"
            )
    return a.packed, b.packed, (a.dtype, b.dtype)
