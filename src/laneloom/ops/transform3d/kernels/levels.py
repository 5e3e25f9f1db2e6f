"""Levels 1 to 4 of the ladder (levels.cu): three passes through device memory, there to be compared."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from ....codegen.code_object import CodeObject
from ....codegen.cuda_launch import CudaKernel, argument_types
from ....codegen.nvrtc import compile_cuda
from ....gpu import Gpu
from ..config_levels import LevelsConfig
from ..problem import Transform3dProblem


def compile_level(k: int, config: LevelsConfig, gpu: Gpu) -> CodeObject:
    """The kernel of one level for one K; needs NVRTC, no GPU."""
    return compile_cuda(
        resources.files(__package__).joinpath("levels.cu").read_text(encoding="utf-8"),
        gpu,
        constants={"K": k, "LEVEL": config.level, "THREADS": config.threads},
        num_warps=config.threads // 32,
        lds_bytes=0,
        name="levels.cu",
    )


def launch(problem: Transform3dProblem, config: LevelsConfig, gpu: Gpu, x: Any, factors: Any, out: Any) -> None:
    """x, out: dense torch tensors [N, K, K, K]; factors: [K, K]."""
    import torch

    kernel = _load(problem.k, config, gpu, x.device.index)
    blocks = min(config.blocks, problem.count)
    work = torch.empty((blocks, problem.k**3), dtype=x.dtype, device=x.device)
    dense = factors.contiguous()
    arguments = (x.data_ptr(), dense.data_ptr(), out.data_ptr(), work.data_ptr(), problem.count)
    kernel.launch(blocks, torch.cuda.current_stream(x.device).cuda_stream, arguments)


@cache
def _load(k: int, config: LevelsConfig, gpu: Gpu, device: int) -> CudaKernel:
    return CudaKernel(compile_level(k, config, gpu), argument_types("ppppq"), device)
