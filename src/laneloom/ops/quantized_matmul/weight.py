"""`laneloom.QuantizedWeight`: numbers of 4 or 8 bits, the scales of their groups, and what they stand for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ArgumentError, UnsupportedError
from ..matmul.dtypes import words
from ..scalars import is_whole, shown

DTYPES = ("int4", "uint4", "fp4", "int8", "fp8")
PACKED = ("int4", "uint4", "fp4")  #: two to a byte along K, the even k in the low half
LEAST_GROUP = 16
#: what holds the values of each dtype, and its scales: the storage's name and the project's word
_VALUES = {
    "int4": ("uint8", "int8"), "uint4": ("uint8", "int8"), "fp4": ("uint8", "int8"), "int8": ("int8",),
    "fp8": ("float8_e4m3fn", "uint8"),
}  # fmt: skip
_SCALES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e8m0fnu": "e8m0", "uint8": "e8m0",
    "float8_e4m3fn": "fp8",
}  # fmt: skip
#: E2M1: 1 sign, 2 exponent bits of bias 1, 1 of mantissa
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def is_tensor(x: Any) -> bool:
    """Whether x is a torch tensor; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def storage_name(x: Any) -> str:
    """The name of a tensor's or an array's dtype, the same of both."""
    return str(x.dtype).removeprefix("torch.") if is_tensor(x) else x.dtype.name


def scale_dtype(scales: Any) -> str:
    """The project's word for the dtype of scales. Raises UnsupportedError."""
    name = storage_name(scales)
    if name not in _SCALES:
        raise UnsupportedError(f"scales: expected dtype {words([*_SCALES])}, got {name}")
    return _SCALES[name]


def check_group(group: Any) -> int | None:
    """How many k share a scale. Raises ArgumentError."""
    if group is None:
        return None
    if not is_whole(group) or group < LEAST_GROUP or int(group) & (int(group) - 1):
        raise ArgumentError(f"group: expected a power of two from {LEAST_GROUP} on, or None, got {shown(group)}")
    return int(group)


@dataclass(frozen=True, eq=False)  # tensors and arrays have no truth of their equality: two weights differ
class QuantizedWeight:
    """A weight W[..., N, K] of few bits, as torch.nn.Linear has it:

        W[..., n, k] = scales[..., n, g] (q[..., n, k] - zeros[..., n, g]),  g = k // group.

    values: q, all torch tensors or all numpy arrays here. 4 bits: uint8 or int8 [..., N, K / 2], the even k in the low
        half of the byte, the odd one in the high half; K is even. 8 bits: [..., N, K].
    scales: [..., N, ceil(K / group)], fp32, fp16, bf16, float8_e4m3fn, or powers of two as float8_e8m0fnu or its bits
        in uint8: 2^(x - 127), of 255 NaN. Batch axes as those of values.
    dtype: of q. "int4": -8 to 7, two's complement. "uint4": 0 to 15. "fp4": E2M1, 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
        negatives. "int8": int8. "fp8": E4M3, float8_e4m3fn or its bits in uint8.
    group: how many k share a scale, a power of two from 16 on. None: a row does, and scales are [..., N, 1].
    zeros: of "uint4", the q that stands for 0, uint8 of scales' shape. Without them nothing is subtracted.

    `quantize_weight` makes one of a matrix. Any strides. Raises ArgumentError for what does not fit together,
    UnsupportedError for other dtypes.
    Source: Frantar et al., "GPTQ", and Lin et al., "AWQ" (4-bit integers with scales and zeros of groups); OCP
    Microscaling Formats (MX) Specification (E2M1, E8M0, groups of 32); OCP 8-bit Floating Point Specification (E4M3).
    """

    values: Any
    scales: Any
    dtype: str
    group: int | None = None
    zeros: Any = None

    def __post_init__(self) -> None:
        if not (isinstance(self.dtype, str) and self.dtype in DTYPES):
            raise UnsupportedError(f"dtype: expected {words([*map(repr, DTYPES)])}, got {shown(self.dtype)}")
        group = check_group(self.group)
        tensors = is_tensor(self.values)
        kind = "a torch tensor" if tensors else "a torch tensor or a numpy array"
        parts = {"values": self.values, "scales": self.scales}
        if self.zeros is not None:
            parts["zeros"] = self.zeros
        for name, x in parts.items():
            if not (is_tensor(x) if tensors else isinstance(x, np.ndarray)):
                wanted = kind if name == "values" or tensors else "a numpy array"
                raise ArgumentError(f"{name}: expected {wanted}, got {type(x).__name__}")
            if getattr(x, "is_nested", False):
                raise UnsupportedError(f"{name}: expected a strided tensor, got a nested one")
        if storage_name(self.values) not in _VALUES[self.dtype]:
            known = words(_VALUES[self.dtype])
            raise UnsupportedError(
                f"values: expected {known} for dtype {self.dtype!r}, got {storage_name(self.values)}"
            )
        scale_dtype(self.scales)
        if len(self.values.shape) < 2:
            raise ArgumentError(f"values: expected at least 2 axes, got shape {tuple(self.values.shape)}")
        *batch, n, k = self.shape
        groups = 1 if group is None else -(-k // group)
        wanted = (*batch, n, groups)
        if tuple(self.scales.shape) != wanted:
            raise ArgumentError(
                f"scales: expected shape {wanted}, one for each group of each row, got {tuple(self.scales.shape)}"
            )
        if self.zeros is None:
            return
        if self.dtype != "uint4":
            raise ArgumentError(f"zeros: expected None for dtype {self.dtype!r}, only 'uint4' has them")
        if storage_name(self.zeros) != "uint8":
            raise UnsupportedError(f"zeros: expected dtype uint8, got {storage_name(self.zeros)}")
        if tuple(self.zeros.shape) != wanted:
            raise ArgumentError(f"zeros: expected the shape of scales, {wanted}, got {tuple(self.zeros.shape)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., N, K)."""
        *rows, k = self.values.shape
        return (*rows, k * (2 if self.dtype in PACKED else 1))

    @property
    def ndim(self) -> int:
        """Axes of W."""
        return len(self.values.shape)

    @property
    def dtype_scale(self) -> str:
        """ "fp32", "fp16", "bf16", "e8m0" or "fp8"."""
        return scale_dtype(self.scales)

    def dequantize(self, dtype: Any = None) -> Any:
        """W [..., N, K], by tensor or array arithmetic where the values are.

        dtype: fp32 (default), fp16 or bf16, torch's or numpy's (ml_dtypes' bfloat16). The product is FP32, rounded
        once.
        Raises ArgumentError, UnsupportedError for another dtype.
        """
        if is_tensor(self.values):
            import torch

            known: tuple[Any, ...] = (torch.float32, torch.float16, torch.bfloat16)
            wanted = torch.float32 if dtype is None else dtype
            if not isinstance(wanted, torch.dtype):
                raise ArgumentError(f"dtype: expected a torch dtype, got {shown(dtype)}")
        else:
            try:
                wanted = np.dtype(np.float32 if dtype is None else dtype)
            except TypeError:
                raise ArgumentError(f"dtype: expected a dtype of numpy's, got {shown(dtype)}") from None
            known = tuple(x for x in (wanted,) if wanted.name in ("float32", "float16", "bfloat16"))
        if wanted not in known:
            raise UnsupportedError(f"dtype: expected float32, float16 or bfloat16, got {wanted}")
        q, scales = self.numbers(), to_float32(self.scales, self.dtype_scale)
        zeros = None if self.zeros is None else to_float32(self.zeros, "uint8")
        k = self.shape[-1]
        if self.group is not None:
            scales, zeros = (None if x is None else _repeated(x, self.group, k) for x in (scales, zeros))
        w = (q if zeros is None else q - zeros) * scales
        return w.to(wanted) if is_tensor(w) else w.astype(wanted)

    def numbers(self) -> Any:
        """q [..., N, K] in fp32."""
        if self.dtype not in PACKED:
            return to_float32(self.values, self.dtype)
        octets = as_octets(self.values)
        if is_tensor(octets):
            import torch

            halves = torch.stack([octets & 15, octets >> 4], -1).flatten(-2)
            table = torch.tensor(_table(self.dtype), dtype=torch.float32, device=octets.device)
            return table[halves.int()]
        halves = np.stack([octets & 15, octets >> 4], -1).reshape(*octets.shape[:-1], 2 * octets.shape[-1])
        return np.asarray(_table(self.dtype), np.float32)[halves]


def _table(dtype: str) -> list[float]:
    """The number of each code of 4 bits."""
    if dtype == "fp4":
        return list(_FP4)
    return [float(x - 16 * (dtype == "int4" and x > 7)) for x in range(16)]


def _repeated(x: Any, group: int, k: int) -> Any:
    """[..., G] as [..., K], each `group` times, the last as often as there are k."""
    repeated = x.repeat_interleave(group, -1) if is_tensor(x) else np.repeat(x, group, -1)
    return repeated[..., :k]


def as_octets(x: Any) -> Any:
    """The bits of 8-bit numbers as uint8, where they lie."""
    if storage_name(x) == "uint8":
        return x
    if is_tensor(x):
        import torch

        return x.view(torch.uint8)
    return x.view(np.uint8)


def to_float32(x: Any, dtype: str) -> Any:
    """Numbers of the project's `dtype` in fp32, exactly."""
    if dtype not in ("e8m0", "fp8"):
        return x.float() if is_tensor(x) else x.astype(np.float32)
    octets = as_octets(x)
    if not is_tensor(octets):
        return float8_table(dtype)[octets]
    import torch

    if dtype == "fp8":
        return octets.view(torch.float8_e4m3fn).float()
    table = torch.from_numpy(float8_table(dtype)).to(octets.device)
    return table[octets.int()]


def float8_table(dtype: str) -> np.ndarray:
    """The number of each code of 8 bits in fp32: "e8m0" is 2^(x - 127) and NaN, "fp8" E4M3."""
    if dtype == "e8m0":
        powers = np.ldexp(np.float32(1), np.arange(-127, 129)[:255])
        return np.append(powers, np.float32(np.nan)).astype(np.float32)
    from ...verify import decode

    return decode(np.arange(256), "fp8").astype(np.float32)
