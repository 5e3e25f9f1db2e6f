"""Addresses inside arguments: a grouped GEMM takes int64 tensors that hold `data_ptr()` values.

A GPU reads whatever such an address points to. Here an address counts as an argument if a live CPU tensor starts there,
or holds it, so that its bounds are known as well.
"""

from __future__ import annotations

import gc
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LaneloomError
from .arguments import Argument, extent
from .memory import Region, window

_LOWEST, _HIGHEST = 1 << 22, 1 << 47  # no Linux process owns memory below its program, or above 47 bits
_WORDS = ("i64", "u64", "*i64", "*u64")


def pointed_at(values: Sequence[Argument]) -> list[Region]:
    """What the launch's 64-bit integer arguments, scalars or tensors, point to, and pointers that are given as numbers.

    An address at which live CPU tensors start may reach what they can; one inside a tensor, its storage.
    """
    holders: dict[int, str] = {}
    for name, kind, value in values:
        if kind in _WORDS or kind.startswith("*"):
            for address in _addresses(name, kind, value):
                holders.setdefault(address, name)
    torch = sys.modules.get("torch")
    if torch is None or not holders or not _any_mapped(holders):
        return []
    found, started, storages = [], set(), {}
    kinds = _classes(torch.Tensor)
    for tensor in gc.get_objects():
        if type(tensor) in kinds:
            start = _start(tensor)
            if start in holders:
                shape = tuple(tensor.shape)
                found.append(_rename(extent(holders[start], tensor), f"{holders[start]} -> {shape}"))
                started.add(start)
            elif start:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage
    inside = sorted(set(holders) - started)
    for start, storage in storages.items():
        k = bisect_left(inside, start)
        if k < len(inside) and inside[k] < start + storage.nbytes():
            holder = holders[inside[k]]
            found.append(Region(f"{holder} -> {storage.nbytes()} bytes", start, storage.nbytes(), storage))
    return found


def _any_mapped(addresses: Collection[int]) -> bool:
    """Whether memory of this process lies at any of them, where the system says it: most large integers are none.

    Finding the tensors among all objects of a process takes longer than a small launch.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    bounds = [int(x, 16) for line in lines for x in line.split(" ", 1)[0].split("-")]  # start and end by turns, sorted
    return any(bisect_right(bounds, address) % 2 for address in addresses)


def _classes(kind: type) -> set[type]:
    """A class and all that are made of it."""
    return {kind}.union(*(_classes(x) for x in type.__subclasses__(kind)))


def _addresses(name: str, kind: str, value: Any) -> list[int]:
    if value is None:
        return []
    if kind.startswith("*") and hasattr(value, "data_ptr"):
        if kind not in _WORDS:
            return []
        region = extent(name, value)
        words = window(region.address, region.nbytes).view(np.int64) if region.nbytes else np.empty(0, np.int64)
        return np.unique(words[(words >= _LOWEST) & (words < _HIGHEST)]).tolist()
    return [int(value)] if _LOWEST <= int(value) < _HIGHEST else []


def _start(tensor: Any) -> int:
    """Where a tensor's memory starts; 0 for tensors that have none on the CPU."""
    if type(tensor).__torch_dispatch__ is not sys.modules["torch"].Tensor.__torch_dispatch__:  # a wrapper or a fake
        return 0
    try:
        return tensor.data_ptr() if tensor.device.type == "cpu" else 0
    except (RuntimeError, LaneloomError):  # fake, sparse and wrapper tensors have no address
        return 0


def _rename(region: Region, name: str) -> Region:
    return Region(name, region.address, region.nbytes, region.owner)
