"""What Hopper's attention schedules share on the host: sources, tensor maps, tile counters, sections of heads."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from ...codegen.tensor_map import tensor_map
from ...errors import UnsupportedError
from .arguments import strides_of
from .problem import DTYPE_BYTES, AttentionProblem

_SECTION_BYTES = 24 << 20  #: what heads that run side by side read again and again: half of the L2
_TILES_PER_SECTION = 3 * 132
_COUNTERS = 4096
_COUNTER_BYTES = 128  #: programs of two launches do not share a line


def source_text(name: str, functions: list[str]) -> str:
    """CUDA C++ of a kernel file after what it needs of Hopper's instructions and its wgmma functions."""
    root = resources.files("laneloom")
    header = root.joinpath("device", "attention_hopper.cuh").read_text(encoding="utf-8")
    kernel = root.joinpath("ops", "attention", "kernels", name).read_text(encoding="utf-8")
    return "\n".join([header, *functions, kernel])


def band_constants(problem: AttentionProblem) -> dict[str, int]:
    """Macros of the dtype and the mask."""
    return {
        "D": problem.d,
        "D_V": problem.d_v,
        "HAS_FIRST": int(problem.first is not None),
        "HAS_LAST": int(problem.last is not None),
        "PACKED": int(problem.packed),
        "BOTTOM_RIGHT": int(problem.bottom_right),
        "BF16": int(problem.dtype == "bf16"),
    }


def section(problem: AttentionProblem, bytes_per_head: int, tiles_per_head: int) -> int:
    """Heads of keys whose tiles are mixed, so that the longest of them come first and they stay in the L2.

    Whole programs' worth of tiles in each section, and sections of one size, keep the last one from trailing.
    """
    heads = problem.batch * problem.kv_heads
    if problem.first is None and problem.last is None and not problem.packed:
        return 1
    least = -(-_TILES_PER_SECTION // max(tiles_per_head, 1))
    sections = max(1, heads // max(_SECTION_BYTES // max(bytes_per_head, 1), least, 1))
    return -(-heads // sections)


def box_map(x: Any, dtype: str, rows: int) -> Any:
    """Boxes of `rows` rows of 64 elements of x [B, H, N, D], coordinates (column, row, head, batch)."""
    shape = tuple(x.shape)[::-1]
    size = DTYPE_BYTES[dtype]
    # An axis of one element may have any stride; the copy engine wants a multiple of 16 bytes.
    strides = tuple(16 if n == 1 else s * size for n, s in zip(shape[1:], strides_of(x)[2::-1], strict=True))
    return tensor_map(x.data_ptr(), x.device.index, dtype, shape, strides, (64, rows, 1, 1))


def is_boxed(x: Any) -> bool:
    """Whether the copy engine reads x [B, H, N, D], which is `is_direct`: it takes no stride of 0."""
    return all(n == 1 or s > 0 for n, s in zip(x.shape, strides_of(x), strict=True))


@cache
def processors(device: int) -> int:
    """Multiprocessors."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


class _Counters:
    """Zeros that launches count tiles with, one launch at a time, and leave zero."""

    def __init__(self, device: int) -> None:
        import torch

        self.memory = torch.zeros(_COUNTERS * _COUNTER_BYTES // 4, dtype=torch.int32, device=f"cuda:{device}")
        self.of_stream: dict[int, int] = {}
        self.taken = 0

    def address(self, stream: int, captured: bool) -> int:
        if not captured and stream in self.of_stream:
            return self.of_stream[stream]
        if self.taken == _COUNTERS:
            raise UnsupportedError(f"more than {_COUNTERS} launches of flash_attention in CUDA graphs and streams")
        address = self.memory.data_ptr() + self.taken * _COUNTER_BYTES
        self.taken += 1
        if not captured:
            self.of_stream[stream] = address
        return address


@cache
def _counters(device: int) -> _Counters:
    return _Counters(device)


def counter(device: int, stream: int) -> int:
    """Address of a zero: launches of a stream, which follow each other, share it; one that is captured has its own,
    because its graph may be replayed beside any other."""
    import torch

    return _counters(device).address(stream, torch.cuda.is_current_stream_capturing())
