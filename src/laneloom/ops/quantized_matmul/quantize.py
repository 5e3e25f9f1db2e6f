"""`laneloom.quantize_weight`: a matrix as numbers of few bits and scales of groups, by tensor or array arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import verify
from ...errors import ArgumentError, UnsupportedError
from ..scalars import shown
from ..target import check_unmasked
from .weight import DTYPES, PACKED, QuantizedWeight, check_group, is_tensor, storage_name, to_float32

#: the number of each dtype that the largest magnitude of a group becomes
_LARGEST = {"int4": 7.0, "int8": 127.0, "fp8": 448.0}
_SMALLEST_SCALE = 2.0**-126  #: FP32's smallest normal number: a smaller scale is 0 to a GPU that flushes
_FP4_EXPONENT = 2  #: of E2M1's largest number, 6 = 1.5 x 2^2
#: magnitudes between E2M1's numbers, and whether they belong to the larger one: ties go to an even last bit
_FP4_TIES = ((0.25, 0), (0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0))
_TAKEN = ("float32", "float16", "bfloat16", "float64")
_GROUPS = {"fp4": 32}  #: MX's; of the others _GROUP
_GROUP = 128


def quantize_weight(w: Any, dtype: str = "int4", group: int | str | None = "usual") -> QuantizedWeight:
    """W[..., N, K] as numbers of few bits under scales that the largest of each group gives: round to nearest, nothing
    is trained.

    w: [..., N, K], fp32, fp16, bf16 or fp64, which becomes FP32; any strides; a torch tensor on any device, or a numpy
        array. K of 4-bit dtypes is even. NaN and infinities are refused, for which the device is waited for.
    group: how many k share a scale, a power of two from 16 on; None: a row does. "usual": 128, of "fp4" 32.
    dtype: what becomes of a group, in FP32; integers round to even:

        "int4"   scale = max |W| / 7                      q = round(W / scale), -7 to 7
        "uint4"  scale = (high - low) / 15                q = round(W / scale) + zero, cut off at 0 and 15
                 high = max(W, 0), low = min(W, 0)        zero = round(-low / scale)
        "fp4"    scale = 2^(floor(log2 max |W|) - 2)      q = W / scale to nearest even of E2M1, cut off at 6
        "int8"   scale = max |W| / 127                    q = round(W / scale), -127 to 127
        "fp8"    scale = max |W| / 448                    q = W / scale to nearest even of E4M3

    A group of zeros has scale 1. Scales are fp32, at least 2^-126; of "fp4" E8M0 as uint8, at least 2^-127.

    But for FP32's own roundings scale (q - zero) differs from W by at most scale / 2 of integers, the larger of |W| / 4
    and scale / 4 of "fp4", the larger of |W| / 16 and scale / 1024 of "fp8".

    Raises ArgumentError for what does not fit, UnsupportedError for other dtypes.
    Source: Frantar et al., "GPTQ" (rounding to nearest is where it starts); Lin et al., "AWQ" (zeros); OCP Microscaling
    Formats (MX) Specification, 6.3 (conversion to MXFP4).
    """
    if not is_tensor(w) and not isinstance(w, np.ndarray):
        raise ArgumentError(f"w: expected a torch tensor or a numpy array, got {type(w).__name__}")
    _check_plain(w)
    if not (isinstance(dtype, str) and dtype in DTYPES):
        raise UnsupportedError(f"dtype: expected {', '.join(map(repr, DTYPES))}, got {shown(dtype)}")
    if isinstance(group, str) and group == "usual":
        group = _GROUPS.get(dtype, _GROUP)
    checked = check_group(group)
    if storage_name(w) not in _TAKEN:
        raise UnsupportedError(f"w: expected dtype float32, float16, bfloat16 or float64, got {storage_name(w)}")
    if len(w.shape) < 2:
        raise ArgumentError(f"w: expected at least 2 axes [..., N, K], got shape {tuple(w.shape)}")
    if dtype in PACKED and w.shape[-1] % 2:
        raise ArgumentError(f"w: expected an even K, two numbers of {dtype!r} to a byte, got shape {tuple(w.shape)}")
    if is_tensor(w):
        w = w.detach()  # pyright: ignore[reportAttributeAccessIssue]
    w = to_float32(w, "")
    xp = _module_of(w)
    if not bool(xp.isfinite(w).all()):
        raise ArgumentError("w: expected finite numbers of FP32, got NaN or infinities")
    *rows, k = w.shape
    size = max(k, 1) if checked is None else checked
    groups = 1 if checked is None else -(-k // checked)
    blocks = _padded(w, groups * size - k).reshape(*rows, groups, size)
    codes, scales, zeros = _quantized(xp, blocks, dtype)
    codes = codes.reshape(*rows, groups * size)[..., :k]
    return QuantizedWeight(_stored(codes, dtype), scales, dtype, checked, zeros)


def _check_plain(w: Any) -> None:
    """Raise UnsupportedError for what hides numbers, or has none."""
    check_unmasked("w", w)
    if is_tensor(w):
        from ..operators import check_strided

        check_strided("w", w)
        if w.device.type == "meta":
            raise UnsupportedError("w: expected a tensor with numbers, got one on the device meta")


def _quantized(xp: Any, blocks: Any, dtype: str) -> tuple[Any, Any, Any]:
    """Codes (of "fp8" numbers), scales and zeros of blocks [..., G, group]."""
    largest = xp.amax(xp.abs(blocks), -1)  # [..., G]
    if dtype == "fp4":
        exponents = xp.frexp(largest)[1] - 1 - _FP4_EXPONENT  # of a number from 0.5 to 1 times 2^e
        octets = _cast(xp.clip(xp.where(largest == 0, 0, exponents), -127, 127) + 127, "uint8")
        quotients = blocks / to_float32(octets, "e8m0")[..., None]
        size = xp.abs(quotients)
        codes = _cast(quotients < 0, "uint8") * 8
        for tie, up in _FP4_TIES:
            codes = codes + _cast(size >= tie if up else size > tie, "uint8")
        return codes, octets, None
    if dtype == "uint4":
        high, low = xp.clip(xp.amax(blocks, -1), 0, None), xp.clip(xp.amin(blocks, -1), None, 0)
        scales = _scales(xp, high / 15 - low / 15)  # their difference may be beyond FP32
        zeros = xp.round(-low / scales)
        codes = xp.clip(xp.round(blocks / scales[..., None]) + zeros[..., None], 0, 15)
        return codes, scales, _cast(zeros, "uint8")
    scales = _scales(xp, largest / _LARGEST[dtype])
    quotients = blocks / scales[..., None]
    return quotients if dtype == "fp8" else xp.round(quotients), scales, None


def _scales(xp: Any, found: Any) -> Any:
    """Scales as they are used: 1 for groups of zeros, none that a GPU takes for 0."""
    return xp.where(found == 0, xp.ones_like(found), xp.clip(found, _SMALLEST_SCALE, None))


def _stored(codes: Any, dtype: str) -> Any:
    """Codes [..., K] as QuantizedWeight has them."""
    if dtype == "fp8":
        if not is_tensor(codes):
            return verify.encode(codes, "fp8")
        import torch

        return codes.to(torch.float8_e4m3fn)
    if dtype == "int8":
        return _cast(codes, "int8")
    octets = _cast(codes, "int8") if dtype == "int4" else _cast(codes, "uint8")
    low, high = octets[..., 0::2], octets[..., 1::2]
    return _cast((low & 15) | ((high & 15) << 4), "uint8")


def _module_of(x: Any) -> Any:
    """numpy or torch: both have the functions used here, by the same names."""
    if not is_tensor(x):
        return np
    import torch

    return torch


def _cast(x: Any, name: str) -> Any:
    """x as integers of 8 bits, which its numbers are, or are modulo 256."""
    if not is_tensor(x):
        return x.astype(name)
    import torch

    return x.to(getattr(torch, name))


def _padded(x: Any, more: int) -> Any:
    """x with `more` zeros at the end of its last axis."""
    if not is_tensor(x):
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)])
    import torch

    return torch.nn.functional.pad(x, (0, more))
