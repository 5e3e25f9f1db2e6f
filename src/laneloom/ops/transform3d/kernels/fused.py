"""One CUDA C++ kernel (fused.cu) per K: each tensor is read once, contracted three times on chip, written once.

Wins wherever it fits, on Hopper: the work is bound by memory up to K = 24. FP64 matrix
instructions m16n8k4, the contraction in steps of 4; float32 is computed in float64, a complex tensor is read and
written as it lies and computed as two real ones. The transform: Beylkin, Fann, Gan,
Harrison, Yanai, "Multiresolution quantum chemistry", section III (the tensor product of two-scale filters).
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
from ..config import FusedConfig
from ..problem import Transform3dProblem

_VALUE = {"fp64": "double", "fp32": "float", "complex128": "double", "complex64": "float"}


def compile_fused(problem: Transform3dProblem, config: FusedConfig, gpu: Gpu) -> CodeObject:
    """The kernel for this K, dtype and config; needs NVRTC, no GPU."""
    constants = {
        "K": problem.k,
        "GROUP": config.group,
        "CLUSTER": config.cluster,
        "WARPS": config.warps,
        "CTAS_PER_SM": config.ctas_per_sm,
        "BULK": int(config.bulk),
        "MATRIX_IN_REGISTERS": int(config.matrix_in_registers),
        "UNROLL": config.unroll,
        "SAME_MATRIX": int(problem.same_matrix),
        "ACCUMULATE": int(problem.accumulate),
        "VALUE": _VALUE[problem.dtype],
        "PARTS": problem.parts,
    }
    return compile_cuda(
        resources.files(__package__).joinpath("fused.cu").read_text(encoding="utf-8"),
        gpu,
        constants=constants,
        num_warps=config.warps,
        lds_bytes=config.shared_bytes(problem),
        name="fused.cu",
    )


def prepare(
    problem: Transform3dProblem, config: FusedConfig, gpu: Gpu, x: Any, factors: Any, out: Any
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
    call = CudaCall(kernel, arguments, device, ctas=-(-problem.count // config.group) * config.cluster)

    def run(x: Any, factors: Any, out: Any) -> None:
        call.launch_at(current_stream(device), x.data_ptr(), factors.data_ptr(), out.data_ptr())

    return run


def launch(problem: Transform3dProblem, config: FusedConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """As `prepare` says, once."""
    prepare(problem, config, gpu, x, factors, out)(x, factors, out)


@cache
def _load(problem: Transform3dProblem, config: FusedConfig, gpu: Gpu, device: int) -> CudaFunction:
    """The kernel, loaded on `device`."""
    return load_function(compile_fused(problem, config, gpu), device)
