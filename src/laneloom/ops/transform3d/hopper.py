"""The CUDA C++ schedules `fused`, `flat` and `fma`: compiled for one K, loaded, launched on tensors that lie alike."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int32, c_int64
from dataclasses import asdict, replace
from functools import cache
from importlib import resources
from typing import Any

from ...codegen.code_object import CodeObject
from ...codegen.cuda_call import CudaCall, CudaFunction, Pointer, ctas_per_processor, load_function
from ...codegen.nvrtc import compile_cuda
from ...device.prepared import current_stream
from ...gpu import Gpu
from .config import FusedConfig
from .config_flat import FlatConfig
from .config_fma import FmaConfig
from .problem import Transform3dProblem

#: schedule -> the files of kernels/ that its text is made from
TEXTS = {
    "fused": ("follow.cuh", "fused.cu"),
    "flat": ("follow.cuh", "tensors.cuh", "flat.cu"),
    "fma": ("follow.cuh", "tensors.cuh", "fma.cu"),
}
OnHopper = FusedConfig | FlatConfig | FmaConfig
_VALUE = {"fp64": "double", "fp32": "float", "complex128": "double", "complex64": "float"}


def compile_on_hopper(problem: Transform3dProblem, config: OnHopper, gpu: Gpu) -> CodeObject:
    """kernels/<schedule>.cu, its knobs as constants, for this K and dtype; needs NVRTC, no GPU."""
    knobs = {name.upper(): int(value) for name, value in asdict(config).items() if name != "schedule"}
    constants = {
        **knobs,
        "K": problem.k,
        "SAME_MATRIX": int(problem.same_matrix),
        "ACCUMULATE": int(problem.accumulate),
        "VALUE": _VALUE[problem.dtype],
        "PARTS": problem.parts,
        "VECTORS_OUT": int(problem.vector_aligned),
    }
    folder, texts = resources.files(f"{__package__}.kernels"), TEXTS[config.schedule]
    return compile_cuda(
        "".join(folder.joinpath(text).read_text(encoding="utf-8") for text in texts),
        gpu,
        constants=constants,
        num_warps=config.warps,
        lds_bytes=config.shared_bytes(problem),
        name=texts[-1],
    )


def prepare(
    problem: Transform3dProblem, config: OnHopper, gpu: Gpu, x: Any, factors: Any, out: Any
) -> Callable[[Any, Any, Any], None]:
    """What runs for torch tensors that lie as these do: x, out, each tensor dense; factors: real, [K, K] or [3, K, K].

    Raises UnsupportedError without the extra `cuda`.
    """
    from torch.cuda import get_device_properties

    device = x.device.index
    # Of the strides the code knows only whether all tensors are aligned.
    alignment = problem.alignment if problem.vector_aligned else min(problem.alignment, problem.element_bytes)
    kernel = _load(replace(problem, count=1, stride_x=None, stride_out=None, alignment=alignment), config, gpu, device)
    matrix_strides = (0, *factors.stride()) if problem.same_matrix else factors.stride()
    tensor_strides = (problem.parts * problem.stride_x, problem.parts * problem.stride_out)  # pyright: ignore
    resident = ctas_per_processor(kernel, device) * get_device_properties(device).multi_processor_count
    # x, matrix, out, n, stride_x, stride_out, stride_axis, stride_k, stride_n, resident
    sizes = map(c_int64, (problem.count, *tensor_strides, *matrix_strides))
    arguments = (Pointer(), Pointer(), Pointer(), *sizes, c_int32(resident))
    cluster = config.cluster if isinstance(config, FusedConfig) else 1
    call = CudaCall(kernel, arguments, device, ctas=-(-problem.count // config.group) * cluster, pdl=True)

    def run(x: Any, factors: Any, out: Any) -> None:
        call.launch_at(current_stream(device), x.data_ptr(), factors.data_ptr(), out.data_ptr())

    return run


@cache
def _load(problem: Transform3dProblem, config: OnHopper, gpu: Gpu, device: int) -> CudaFunction:
    """The kernel, loaded on `device`."""
    return load_function(compile_on_hopper(problem, config, gpu), device)
