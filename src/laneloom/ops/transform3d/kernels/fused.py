"""One CUDA C++ kernel (fused.cu) per K: each tensor is read once, contracted three times on chip, written once.

Wins wherever it fits, on Hopper: the work is bound by memory up to K = 24. FP64 matrix
instructions m16n8k4, the contraction in steps of 4; float32 is computed in float64, a complex tensor is read and
written as it lies and computed as two real ones. The transform: Beylkin, Fann, Gan,
Harrison, Yanai, "Multiresolution quantum chemistry", section III (the tensor product of two-scale filters).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_launch import CudaKernel, argument_types
from ....codegen.nvrtc import compile_cuda
from ....gpu import Gpu
from ..config import FusedConfig
from ..problem import Transform3dProblem

_VALUE = {"fp64": "double", "fp32": "float", "complex128": "double", "complex64": "float"}
_ARGUMENTS = "pppqqqqqq"  # x, matrix, out, n, stride_x, stride_out, stride_axis, stride_k, stride_n


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


def launch(problem: Transform3dProblem, config: FusedConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """x, out: torch tensors [N, K, K, K], each tensor dense; factors: real, [K, K] or [3, K, K], any strides.

    Raises UnsupportedError without the extra `cuda`.
    """
    import torch

    kernel = _load(replace(problem, count=1, stride_x=None, stride_out=None), config, gpu, x.device.index)
    ctas = -(-problem.count // config.group) * config.cluster
    matrix_strides = (0, *factors.stride()) if problem.same_matrix else factors.stride()
    pointers = (x.data_ptr(), factors.data_ptr(), out.data_ptr())
    tensor_strides = (problem.parts * problem.stride_x, problem.parts * problem.stride_out)  # pyright: ignore
    arguments = (*pointers, problem.count, *tensor_strides, *matrix_strides)
    kernel.launch(ctas, torch.cuda.current_stream(x.device).cuda_stream, arguments)


@cache
def _load(problem: Transform3dProblem, config: FusedConfig, gpu: Gpu, device: int) -> CudaKernel:
    """The kernel, loaded on `device`."""
    return CudaKernel(compile_fused(problem, config, gpu), argument_types(_ARGUMENTS), device)
