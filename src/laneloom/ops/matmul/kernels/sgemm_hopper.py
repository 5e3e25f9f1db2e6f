"""The FP32 ladder on Hopper (sgemm_hopper.cu): seven steps by FMA, from a naive kernel to banks of registers.

There to be compared (docs/sgemm-ladder.md); the ladder ends with what `matmul` runs, kernels/hopper_stream.py.
A, B and C row-major, any sizes and pitches. CUDA C++ through NVRTC.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from ....codegen import CodeObject
from ....codegen.cuda_launch import CudaKernel, argument_types
from ....codegen.nvrtc import compile_cuda
from ....gpu import Gpu
from ..config_sgemm import HopperStepConfig, batch_offsets, grid, pitches, tiles
from ..problem import MatmulProblem

STAGES = 4  #: K-tiles in shared memory in steps 6 and 7
#: Floats of shared memory by step: the tiles of A, with what pads them, and of B.
SHARED_FLOATS = {
    1: 0, 2: 32 * 32 + 32 * 32, 3: 128 * (8 + 1) + 8 * 128, 4: 8 * (128 + 4) + 8 * 128,
    5: 2 * 8 * (128 + 4) + 2 * 8 * 128, 6: STAGES * 16 * (128 + 256), 7: STAGES * 16 * (128 + 4 + 256),
}  # fmt: skip
FLOAT_BYTES = 4


def _is_aligned(problem: MatmulProblem) -> bool:
    """Whether every row of A, B and C begins at a multiple of 16 bytes."""
    matrices = (problem.a, problem.b, problem.out)
    return all(m.alignment == 16 and all(stride % 4 == 0 for stride in m.strides[:3]) for m in matrices)


@cache
def _compile(config: HopperStepConfig, gpu: Gpu, aligned: bool) -> CodeObject:
    return compile_cuda(
        resources.files(__package__).joinpath("sgemm_hopper.cu").read_text(encoding="utf-8"),
        gpu,
        constants={"STEP": config.number, "ALIGNED": int(aligned), "STAGES": STAGES},
        num_warps=config.num_warps,
        lds_bytes=FLOAT_BYTES * SHARED_FLOATS[config.number],
        name="sgemm_hopper.cu",
    )


@cache
def _load(config: HopperStepConfig, gpu: Gpu, aligned: bool, device: int) -> CudaKernel:
    return CudaKernel(_compile(config, gpu, aligned), argument_types("pppiiiqqq"), device)


def code_object(problem: MatmulProblem, config: HopperStepConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    return _compile(config, gpu, _is_aligned(problem))


def launch(problem: MatmulProblem, config: HopperStepConfig, gpu: Gpu, a: Any, b: Any, c: Any) -> None:
    """Write a b into c, torch tensors on the GPU, batch after batch."""
    import torch

    kernel = _load(config, gpu, _is_aligned(problem), c.device.index)
    stream = torch.cuda.current_stream(c.device).cuda_stream
    columns, rows, _ = grid(problem, config)
    bases = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    for offsets in batch_offsets(problem):
        addresses = (base + FLOAT_BYTES * at for base, at in zip(bases, offsets, strict=True))
        kernel.launch(columns * rows, stream, (*addresses, problem.m, problem.n, problem.k, *pitches(problem)))


def facts(problem: MatmulProblem, config: HopperStepConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    width = "16-byte" if _is_aligned(problem) and config.number > 3 else "4-byte"
    return [f"{tiles(problem, config)}, {width} accesses of global memory"]
