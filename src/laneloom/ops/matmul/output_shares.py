"""Where the products of hopper_shares.cuh go: to C, or in parts of K to memory that a second launch adds up. Hopper."""

from __future__ import annotations

import ctypes

import torch

from ...device.split_k import ReduceLaunch
from .tma_operand import Sizes


class Output:
    """What `hopper_stream` and `hopper_precise` write for one problem and config."""

    def __init__(self, problem, config, a_steps: tuple[int, int], b_steps: tuple[int, int]) -> None:
        self.workspace, self.dtype = config.workspace_bytes(problem), None
        strides = problem.out.strides
        if config.split_k > 1:  # parts of K stand where a batch's outer products do
            self.dtype = {"fp32": torch.float32, "fp64": torch.float64}[problem.dtype_out]
            self.parts = (_, rows, columns) = config.parts_shape(problem)
            self.shape, self.strides = (rows, problem.n), strides[2:]
            self.reduce = ReduceLaunch(pdl=config.pdl)
            strides = (rows * columns, problem.m * columns, columns, 1)
        items = config.tiles(problem) * config.split_k
        self.sizes = Sizes(
            problem.m, problem.n, problem.k, problem.batch[1], items, *a_steps, *b_steps, *strides)  # fmt: skip
        #: the kernel's `whole` and `parts`
        self.cut = ctypes.c_int(config.whole_tiles(problem)), ctypes.c_int(config.split_k)

    def place(self, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the kernel writes, and where CTAs leave parts for each other; of this call alone: calls on other streams
        may run beside it."""
        if self.dtype is not None:
            parts = torch.empty(self.parts, dtype=self.dtype, device=out.device)
            return parts, parts
        if not self.workspace:
            return out, out
        return out, torch.empty(self.workspace, dtype=torch.uint8, device=out.device)

    def finish(self, written: torch.Tensor, out: torch.Tensor) -> None:
        """Add parts of K up."""
        if self.dtype is not None:
            self.reduce(written, out.as_strided(self.shape, self.strides))
