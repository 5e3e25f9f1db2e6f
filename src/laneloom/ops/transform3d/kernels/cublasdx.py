"""Level 5 of the ladder (cublasdx.cu): NVIDIA's device-side BLAS, from the headers of the package nvidia-mathdx.

The baseline of the fused kernel; compiling takes about 20 seconds, once.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module, resources, util
from pathlib import Path
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_launch import CudaKernel, argument_types
from ....codegen.nvrtc import compile_cuda
from ....errors import UnsupportedError
from ....gpu import Gpu
from ..config_levels import CublasdxConfig
from ..problem import Transform3dProblem


def compile_cublasdx(k: int, config: CublasdxConfig, gpu: Gpu) -> CodeObject:
    """The kernel for one K; needs NVRTC and the headers of nvidia-mathdx and of the CUDA toolkit, no GPU."""
    return compile_cuda(
        resources.files(__package__).joinpath("cublasdx.cu").read_text(encoding="utf-8"),
        gpu,
        constants={"ORDER": k, "THREADS": config.threads},
        num_warps=config.threads // 32,
        lds_bytes=config.shared_bytes(k),
        name="cublasdx.cu",
        include_paths=_include_paths(),
        options=["--device-as-default-execution-space"],
    )


def _include_paths() -> list[str]:
    spec = util.find_spec("nvidia.mathdx") if util.find_spec("nvidia") else None
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError("cuBLASDx: its headers are missing, install nvidia-mathdx")
    mathdx = Path(next(iter(spec.submodule_search_locations)))
    return [str(mathdx / "include"), str(mathdx / "external" / "cutlass" / "include"), *_toolkit_headers()]


def _toolkit_headers() -> list[str]:
    """Folders with cuda_runtime.h and cuda/std: what cuda-pathfinder finds, else CUDA_HOME."""
    root = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    try:
        find = import_module("cuda.pathfinder").find_nvidia_header_directory
        found = [path for path in (find("cudart"), find("cccl")) if path]
    except (ImportError, AttributeError):
        found = []
    folders = found or [str(Path(root) / "include"), str(Path(root) / "include" / "cccl")]
    if not any((Path(folder) / "cuda_runtime.h").exists() for folder in folders):
        raise UnsupportedError("cuBLASDx: the CUDA toolkit's headers are missing, set CUDA_HOME to the toolkit")
    return folders


def launch(problem: Transform3dProblem, config: CublasdxConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """x, out: dense torch tensors [N, K, K, K]; factors: [K, K]."""
    import torch

    kernel = _load(problem.k, config, gpu, x.device.index)
    arguments = (x.data_ptr(), factors.contiguous().data_ptr(), out.data_ptr())
    kernel.launch(problem.count, torch.cuda.current_stream(x.device).cuda_stream, arguments)


@cache
def _load(k: int, config: CublasdxConfig, gpu: Gpu, device: int) -> CudaKernel:
    return CudaKernel(compile_cublasdx(k, config, gpu), argument_types("ppp"), device)
