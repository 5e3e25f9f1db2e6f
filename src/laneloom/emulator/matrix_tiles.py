"""What lies in the registers of a WMMA: the numbers of the formats, and the places of D's elements in the lanes."""

from __future__ import annotations

import numpy as np

from .float8 import BF8_VALUES, FP8_VALUES


def tile_to_registers(tile: np.ndarray, lanes: int, gfx12: bool) -> np.ndarray:
    """[wave, 16, 16] -> [e, wave, lane], e = element of D within the lane."""
    waves = len(tile)
    groups = lanes // 16
    if not gfx12:  # row = groups e + g
        return tile.reshape(waves, 16 // groups, groups, 16).transpose(1, 0, 2, 3).reshape(-1, waves, lanes)
    if groups == 2:  # row = 8 g + e
        return tile.reshape(waves, 2, 8, 16).transpose(2, 0, 1, 3).reshape(8, waves, 32)
    # row = 8 (g % 2) + 4 (g / 2) + e
    return tile.reshape(waves, 2, 2, 4, 16).transpose(3, 0, 2, 1, 4).reshape(4, waves, 64)


def registers_to_tile(block: np.ndarray, gfx12: bool) -> np.ndarray:
    """[e, wave, lane] -> [wave, 16, 16]: the other way."""
    count, waves, lanes = block.shape
    groups = lanes // 16
    if not gfx12:
        return block.reshape(count, waves, groups, 16).transpose(1, 0, 2, 3).reshape(waves, 16, 16)
    if groups == 2:
        return block.reshape(8, waves, 2, 16).transpose(1, 2, 0, 3).reshape(waves, 16, 16)
    return block.reshape(4, waves, 2, 2, 16).transpose(1, 3, 2, 0, 4).reshape(waves, 16, 16)


def decode_elements(block: np.ndarray, kind: str, signed: bool) -> np.ndarray:
    """The numbers in registers (the last axis) as float64."""
    if kind == "f32":
        return block.view(np.float32).astype(np.float64)
    if kind == "f16":
        return block.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return bf16_to_f64(block.view(np.uint16))
    if kind in ("fp8", "bf8"):
        return (FP8_VALUES if kind == "fp8" else BF8_VALUES).take(block.view(np.uint8))
    if kind == "iu8":
        return block.view(np.int8 if signed else np.uint8).astype(np.float64)
    octets = block.view(np.uint8)
    nibbles = np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1).astype(np.int8)
    return (np.where(nibbles > 7, nibbles - 16, nibbles) if signed else nibbles).astype(np.float64)


def bf16_to_f64(bits: np.ndarray) -> np.ndarray:
    """The values of bf16's bits."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def f64_to_bf16(x: np.ndarray) -> np.ndarray:
    """Round float64 once to bf16 (nearest even), as bits.

    Rounding to odd on the way through float32 keeps the sticky bit, so the second rounding is the only one.
    """
    single = x.astype(np.float32)
    back = single.astype(np.float64)
    bits = single.view(np.uint32)
    inexact = (back != x) & np.isfinite(x) & np.isfinite(single)
    away = inexact & (np.abs(back) > np.abs(x))
    bits = np.where(away, bits - np.uint32(1), bits)
    bits = np.where(inexact, bits | np.uint32(1), bits)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)
