"""What Hopper's attention schedules share on the host: sources, tensor maps, tile counters."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_int, c_uint64, c_void_p
from functools import cache
from importlib import import_module, resources
from typing import Any

from ...codegen.cuda_call import TensorMap
from ...codegen.cuda_context import driver
from .arguments import strides_of
from .problem import DTYPE_BYTES, AttentionProblem, in_base_2

_ZEROS = 1 << 20  #: 32-bit counters that are allocated together
_LEAST_ZEROS = 32  #: of a stream: programs of two launches do not share a line


def source_text(name: str, functions: list[str], *headers: str) -> str:
    """CUDA C++ of a kernel file after Hopper's instructions, its wgmma functions, and further headers."""
    root = resources.files("laneloom")
    texts = [root.joinpath("device", h).read_text(encoding="utf-8") for h in ("attention_hopper.cuh", *headers)]
    kernel = root.joinpath("ops", "attention", "kernels", name).read_text(encoding="utf-8")
    return "\n".join([texts[0], *functions, *texts[1:], kernel])


def band_constants(problem: AttentionProblem) -> dict[str, int]:
    """Macros of the output's dtype and the mask."""
    return {
        "D": problem.d,
        "D_V": problem.d_v,
        "HAS_FIRST": int(problem.first is not None),
        "HAS_LAST": int(problem.last is not None),
        "PACKED": int(problem.packed),
        "BOTTOM_RIGHT": int(problem.bottom_right),
        "BF16": int(problem.out_dtype == "bf16"),
        "SOFTCAP": int(problem.softcap != 0),
    }


def factors(problem: Any) -> tuple[float, ...]:
    """A kernel's factors of scores in base 2: scale; of capped ones the cap, and that of the argument of `squash`."""
    if not problem.softcap:
        return (in_base_2(problem.scale),)
    return in_base_2(problem.softcap), 2 * in_base_2(problem.scale / problem.softcap)


def boxes(x: Any, dtype: str, rows: int) -> TensorMap:
    """Boxes of `rows` rows of 128 bytes of x [B, H, N, D], coordinates (column, row, head, batch)."""
    shape, size = tuple(x.shape)[::-1], DTYPE_BYTES[dtype]
    # An axis of one element may have any stride; the copy engine wants a multiple of 16 bytes.
    strides = [16 if n == 1 else s * size for n, s in zip(shape[1:], strides_of(x)[2::-1], strict=True)]
    return TensorMap(dtype, shape, strides, (128 // size, rows, 1, 1), 128)


def is_boxed(x: Any) -> bool:
    """Whether the copy engine reads x [B, H, N, D], which is `is_direct`: it takes no stride of 0."""
    return all(n == 1 or s > 0 for n, s in zip(x.shape, strides_of(x), strict=True))


@cache
def processors(device: int) -> int:
    """Multiprocessors."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


class _Zeros:
    """Zeros that launches count with and leave zero: for launches of one stream, which follow each other.

    Those of a capture have zeros of their own, because its graph may be replayed beside anything else.
    """

    def __init__(self, device: int) -> None:
        self.device = f"cuda:{device}"
        self.blocks: dict[tuple[int, int], tuple[int, int]] = {}
        self.memory: list[Any] = []
        self.next, self.left = 0, 0
        self.is_capturing: Callable[[], bool] = import_module("torch").cuda.is_current_stream_capturing

    def address(self, stream: int, count: int) -> int:
        capture = _capture_of(stream) if self.is_capturing() else 0
        address, room = self.blocks.get((stream, capture), (0, 0))
        if room < count:
            room = max(_LEAST_ZEROS, 1 << (count - 1).bit_length())
            address = self.take(room, captured=capture != 0)
            self.blocks[stream, capture] = address, room
        return address

    def take(self, count: int, *, captured: bool) -> int:
        # A capture cannot fill memory but as a part of its graph: what it may want is there before.
        if not captured and self.left < count + _ZEROS // 2:
            self.next, self.left = self.allocate(max(_ZEROS, 2 * count)), max(_ZEROS, 2 * count)
        if self.left < count:
            return self.allocate(count)
        address = self.next
        self.next, self.left = self.next + 4 * count, self.left - count
        return address

    def allocate(self, count: int) -> int:
        import torch

        self.memory.append(torch.zeros(count, dtype=torch.int32, device=self.device))
        return self.memory[-1].data_ptr()


@cache
def _zeros(device: int) -> _Zeros:
    return _Zeros(device)


def counter(device: int, stream: int, count: int = 1) -> int:
    """Address of `count` 32-bit zeros for a launch on this stream or in what it captures; it leaves them zero."""
    return _zeros(device).address(stream, count)


def _capture_of(stream: int) -> int:
    """The number of the capture that the stream is in."""
    capturing, number = c_int(), c_uint64()
    rest = (None, None, None)
    driver().cuStreamGetCaptureInfo_v2(c_void_p(stream), byref(capturing), byref(number), *rest)
    return number.value
