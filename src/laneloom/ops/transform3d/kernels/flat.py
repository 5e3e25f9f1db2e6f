"""One CUDA C++ kernel (flat.cu) per K: each contraction is a product of all lines along an axis, 16 at a time.

Wins on Hopper where FP64 arithmetic is the bound and memory is not: float32 and complex64, whose bytes are half of
FP64's, and orders that `fused` pads most. The matrix as the second operand takes tiles of 8 columns, where `fused` has
tiles of 16 rows. The price is a trip through shared memory between the first two contractions.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_call import CudaCall, CudaFunction, Pointer, load_function
from ....codegen.nvrtc import compile_cuda
from ....device.prepared import current_stream
from ....gpu import Gpu
from ..config_flat import FlatConfig
from ..problem import Transform3dProblem

_VALUE = {"fp64": "double", "fp32": "float", "complex128": "double", "complex64": "float"}


def compile_flat(problem: Transform3dProblem, config: FlatConfig, gpu: Gpu) -> CodeObject:
    """The kernel for this K, dtype and config; needs NVRTC, no GPU."""
    constants = {
        "K": problem.k,
        "GROUP": config.group,
        "WARPS": config.warps,
        "CTAS_PER_SM": config.ctas_per_sm,
        "BULK": int(config.bulk),
        "SAME_MATRIX": int(problem.same_matrix),
        "ACCUMULATE": int(problem.accumulate),
        "VALUE": _VALUE[problem.dtype],
        "PARTS": problem.parts,
    }
    return compile_cuda(
        resources.files(__package__).joinpath("flat.cu").read_text(encoding="utf-8"),
        gpu,
        constants=constants,
        num_warps=config.warps,
        lds_bytes=config.shared_bytes(problem),
        name="flat.cu",
    )


def prepare(
    problem: Transform3dProblem, config: FlatConfig, gpu: Gpu, x: Any, factors: Any, out: Any
) -> Callable[[Any, Any, Any], None]:
    """What runs for torch tensors that lie as these do: x, out, each tensor dense; factors: real, [K, K] or [3, K, K].

    Raises UnsupportedError without the extra `cuda`.
    """
    device = x.device.index
    kernel = _load(replace(problem, count=1, stride_x=None, stride_out=None), config, gpu, device)
    matrix_strides = (0, *factors.stride()) if problem.same_matrix else factors.stride()
    tensor_strides = (problem.parts * problem.stride_x, problem.parts * problem.stride_out)  # pyright: ignore
    # x, matrix, out, n, stride_x, stride_out, stride_axis, stride_k, stride_n
    arguments = (Pointer(), Pointer(), Pointer(), *map(c_int64, (problem.count, *tensor_strides, *matrix_strides)))
    call = CudaCall(kernel, arguments, device, ctas=-(-problem.count // config.group))

    def run(x: Any, factors: Any, out: Any) -> None:
        call.launch_at(current_stream(device), x.data_ptr(), factors.data_ptr(), out.data_ptr())

    return run


def launch(problem: Transform3dProblem, config: FlatConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """As `prepare` says, once."""
    prepare(problem, config, gpu, x, factors, out)(x, factors, out)


@cache
def _load(problem: Transform3dProblem, config: FlatConfig, gpu: Gpu, device: int) -> CudaFunction:
    """The kernel, loaded on `device`."""
    return load_function(compile_flat(problem, config, gpu), device)
