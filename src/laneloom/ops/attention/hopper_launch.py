"""The one launch of Hopper's forwards, on operands in 16 bits and in 8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_float, c_int32, c_int64
from typing import Any

from ...codegen.cuda_call import CudaCall, CudaFunction, Pointer
from .arguments import Tensors
from .hopper import boxes, counter, factors, processors
from .plan_forward import section
from .problem import AttentionProblem

JOIN_THREADS = 256  #: of a workgroup that adds up parts, 8 elements each


def starts_of(operands: dict[str, Any]) -> tuple[int, int]:
    """Addresses of where each sequence's queries and keys begin, 0 where none are packed."""
    first_q, first_k = operands.get("first_q"), operands.get("first_k")
    return (0, 0) if first_q is None or first_k is None else (first_q.data_ptr(), first_k.data_ptr())


def forward_section(problem: AttentionProblem, config: Any) -> int:
    """Heads of queries whose tiles are mixed in the forward."""
    return section(problem, config) * problem.group


def prepare_forward(
    kernel: CudaFunction, problem: AttentionProblem, config: Any, tensors: Tensors, *more: Any,
    names: Sequence[str] = (),
) -> Callable[[dict[str, Any]], None]:  # fmt: skip
    """What writes out and lse for operands that lie as these do, by name, by a forward's kernel.

    more: its arguments behind those that all forwards have. names: of the operands that Pointers among them take, or
    that are None."""
    from ...device.prepared import current_stream  # needs torch, without which kernels are compiled

    q, k, v, out, lse = (tensors.tensor(name) for name in ("q", "k", "v", "out", "lse"))
    device, tiles = q.device.index, config.tiles(problem)
    _, *sizes, first, last = problem.scalars()
    scale2, *slope2 = map(c_float, factors(problem))
    maps = [boxes(x, problem.dtype, rows) for x, rows in ((q, 64), (k, config.columns), (v, config.columns))]
    maps.append(boxes(out, problem.out_dtype, 16))
    pointers = [Pointer() for _ in ("out", "lse", "first_q", "first_k", "counter")]
    strides = map(c_int64, (*out.stride()[:3], *lse.stride()[:2]))
    integers: tuple[Any, ...] = (*sizes, problem.batch, first, last, forward_section(problem, config), tiles)
    call = CudaCall(
        kernel, (*maps, *pointers, *strides, scale2, *map(c_int32, integers), *more, *slope2), device,
        ctas=min(tiles, config.resident * processors(device)), pdl=True,
    )  # fmt: skip

    def run(operands: dict[str, Any]) -> None:
        stream = current_stream(device)
        others, out = [operands[name] for name in names], operands["out"].data_ptr()
        call.launch_at(
            stream, operands["q"].data_ptr(), operands["k"].data_ptr(), operands["v"].data_ptr(), out, out,
            operands["lse"].data_ptr(), *starts_of(operands), counter(device, stream),
            *(0 if x is None else x.data_ptr() for x in others),
        )  # fmt: skip

    return run
