"""What a launch hands a kernel in memory: the argument block with its hidden arguments, the dispatch packet."""

from __future__ import annotations

import struct

import numpy as np

from .global_sync import GlobalWaveSync
from .hostcall import Hostcall
from .not_given import NotGiven
from .operands import PRIVATE_APERTURE, SHARED_APERTURE
from .program import Program

# As a runtime aligns it: so many lines do scalar loads touch each time, and a predicted time is always the same.
_ALIGNMENT = 256

_Three = tuple[int, int, int]


def with_hidden_arguments(
    kernarg: bytes, program: Program, grid: _Three, size: _Three, lds_bytes: int, host: Hostcall | None,
    sync: GlobalWaveSync,
) -> np.ndarray:
    """The argument block with the hidden arguments that the metadata lists (LLVM AMDGPUUsage, code object V5)."""
    hidden = program.hidden_arguments
    end = max((a.offset + a.size for a in hidden), default=0)
    # Scalar loads may fetch whole 64-byte lines past the last argument.
    whole = (max(len(kernarg), end) + 127) & ~63
    octets = np.zeros(whole + _ALIGNMENT, np.uint8)
    skip = -octets.ctypes.data % _ALIGNMENT
    block = octets[skip : skip + whole]
    block[: len(kernarg)] = np.frombuffer(kernarg, np.uint8)
    values = {"hidden_grid_dims": 1 + max(k for k in range(3) if k == 0 or grid[k] * size[k] > 1)}
    values["hidden_dynamic_lds_size"] = lds_bytes - program.listing.directive("group_segment_fixed_size")
    values["hidden_shared_base"], values["hidden_private_base"] = SHARED_APERTURE, PRIVATE_APERTURE
    values["hidden_hostcall_buffer"] = host.address if host else 0
    values["hidden_multigrid_sync_arg"] = sync.address
    for k, axis in enumerate("xyz"):
        values[f"hidden_block_count_{axis}"] = grid[k]
        values[f"hidden_group_size_{axis}"] = size[k]
    for a in hidden:
        raw = values.get(a.kind, 0).to_bytes(8, "little")[: a.size]
        block[a.offset : a.offset + len(raw)] = np.frombuffer(raw, np.uint8)
    return block


def not_given(kernarg: bytes, program: Program, address: int) -> NotGiven:
    """What stands behind the arguments that the launch gives, up to the size that the descriptor says.

    Hidden arguments, which stand there, are given where the metadata lists them.
    """
    end = min((a.offset for a in program.hidden_arguments), default=program.listing.directive("kernarg_size"))
    return NotGiven(address, len(kernarg), end, program.arguments)


def dispatch_packet(grid: _Three, size: _Three, scratch: int, lds_bytes: int) -> np.ndarray:
    """The HSA kernel dispatch packet, which kernels read for the grid's size."""
    total = [min(g * s, 0xFFFFFFFF) for g, s in zip(grid, size, strict=True)]
    packet = struct.pack("<6H5I", 0, 3, *size, 0, *total, scratch, lds_bytes)
    return np.frombuffer(packet.ljust(64, b"\0"), np.uint8).copy()
