"""TMA's view of a matrix, from the host."""

from __future__ import annotations

from functools import lru_cache

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

UNUSED_PITCH = 128  #: of a matrix with one row: never used, but it has to be one that TMA takes

GLUON_TYPES = {
    torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32, torch.int8: gl.int8,
    torch.int32: gl.int32, torch.float8_e4m3fn: gl.float8e4nv, torch.float8_e5m2: gl.float8e5,
}  # fmt: skip
#: Gluon's type of each of Triton's names of them
GLUON_NAMES = {kind.name.replace("int", "i"): kind for kind in GLUON_TYPES.values()}


@lru_cache(maxsize=256)
def _shared_layout(dtype: torch.dtype, *block: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(list(block), GLUON_TYPES[dtype])


class TmaView:
    """A matrix, contiguous along its columns, that TMA moves in boxes of `block`; its address comes with each call."""

    def __init__(self, rows: int, columns: int, pitch: int, *block: int) -> None:
        self.shape = [rows, columns]
        self.strides = [pitch if rows > 1 else UNUSED_PITCH, 1]
        self.block = list(block)

    def descriptor(self, base: torch.Tensor) -> TensorDescriptor:
        """For the JIT; `base` gives address and dtype."""
        return TensorDescriptor(base, self.shape, self.strides, self.block, _shared_layout(base.dtype, *self.block))

    def signature(self, kind: str) -> str:
        """Triton's type of the descriptor of elements of Triton's type `kind`."""
        layout = gl.NVMMASharedLayout.get_default_for(self.block, GLUON_NAMES[kind])
        return f"tensordesc<{kind}{self.block},{layout!r}>"
