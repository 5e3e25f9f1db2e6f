"""Where Hopper's kernels write products whose K is cut: parts for a second launch to add up, or for each other."""

from __future__ import annotations

import ctypes

import torch

from ...device.split_k import ReduceLaunch
from .tma_operand import Order, Sizes

_SUMS = {"fp32": torch.float32, "fp64": torch.float64, "int32": torch.int32}


class Parts:
    """Memory for parts of K of a product or of rows `in_line`, and the launch that adds them up.

    shape: parts, rows, and columns that may be more than C's.
    """

    def __init__(self, problem, config, shape: tuple[int, int, int]) -> None:
        self.shape, self.dtype = shape, _SUMS[problem.dtype_sums]
        self.of_c, self.strides = (shape[1], problem.n), problem.out.strides[2:]
        self.reduce = ReduceLaunch(pdl=config.pdl)

    def allocate(self, device: torch.device) -> torch.Tensor:
        """Memory of one call: calls on other streams may run beside it."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def add_up(self, parts: torch.Tensor, out: torch.Tensor) -> None:
        """C."""
        self.reduce(parts, out.as_strided(self.of_c, self.strides))


class Output:
    """What `hopper_stream` and `hopper_precise` write for one problem and config."""

    def __init__(self, problem, config, a_steps: tuple[int, int], b_steps: tuple[int, int]) -> None:
        self.workspace, strides = config.workspace_bytes(problem), problem.out.strides
        self.parts = None
        if config.split_k > 1:  # parts of K stand where a batch's outer products do
            shape = (_, rows, columns) = config.parts_shape(problem)
            self.parts = Parts(problem, config, shape)
            strides = (rows * columns, problem.m * columns, columns, 1)
        items = config.tiles(problem) * config.split_k
        rows, columns = -(-problem.m // config.block_m), -(-problem.n // config.block_n)
        order = Order.of(rows, columns, problem.batch[1], config.group_m)
        self.sizes = Sizes(
            problem.m, problem.n, problem.k, problem.batch[1], items, order, *a_steps, *b_steps, *strides)  # fmt: skip
        #: the kernel's `whole` and `parts`
        self.cut = ctypes.c_int(config.whole_tiles(problem)), ctypes.c_int(config.split_k)

    def place(self, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the kernel writes, and where CTAs leave parts for each other; of this call alone."""
        if self.parts is not None:
            parts = self.parts.allocate(out.device)
            return parts, parts
        if not self.workspace:
            return out, out
        return out, torch.empty(self.workspace, dtype=torch.uint8, device=out.device)

    def finish(self, written: torch.Tensor, out: torch.Tensor) -> None:
        """Add parts of K up."""
        if self.parts is not None:
            self.parts.add_up(written, out)
