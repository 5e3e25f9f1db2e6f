"""hopper_weights.cu: 16-bit rows times a weight of 4 or 8 bits, which is as narrow in shared memory as in memory.

The idea: wgmma takes W from registers, so that a lane makes 16-bit floats of what it read by a few instructions, right
before they are multiplied; and wgmma does not care which of K's elements stand where, so that no lane needs another's.
It reads a quarter of what a product of 16-bit weights does: for few rows, which are bound by that, three times as fast.
Hopper (sm_90a).
Source: PTX ISA, "Asynchronous warpgroup level matrix instructions", `cp.async.bulk.tensor`, `lop3`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ....codegen import CodeObject
from ....codegen.cuda_call import CudaCall, Pointer, TensorMap
from ....codegen.nvrtc import compile_cuda
from ....codegen.wgmma import wgmma_function
from ....device.prepared import current_stream
from ....gpu import Gpu
from ...matmul.tma_operand import NO_TILES, OUTPUT_TYPES, UNUSED_PITCH, kernel_source
from ..config_hopper import (
    HopperWeightsConfig,
    groups_of_slice,
    line_bytes,
    scale_bytes,
    scale_piece,
    scaled_group,
)
from ..problem import QuantizedProblem

VALUES = {"int4": 0, "uint4": 1, "fp4": 2, "int8": 3, "fp8": 4}
SCALES = {"fp32": 0, "fp16": 1, "bf16": 2, "e8m0": 3, "fp8": 4}


class _Sizes(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "blocks_m", "blocks_n", "inner", "tiles")),
        *((name, ctypes.c_int64) for name in ("x_m", "scale_n", "zero_n", "bias_n", "c_m", "c_n")),
        *((f"{name}_{axis}", ctypes.c_int64) for name in ("x", "scale", "zero", "c") for axis in ("outer", "inner")),
        ("bias_inner", ctypes.c_int64), ("w_outer", ctypes.c_int32), ("w_inner", ctypes.c_int32),
    )  # fmt: skip


def code_object(problem: QuantizedProblem, config: HopperWeightsConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    out_type, out_kind = OUTPUT_TYPES[problem.dtype_out]
    bias = problem.bias[0] if problem.bias else "fp32"
    constants = {
        "FP16": int(problem.dtype == "fp16"), "VALUES": VALUES[problem.dtype_w], "BITS": 4 if problem.is_packed else 8,
        "SCALES": SCALES[problem.dtype_scale], "SCALE_BYTES": scale_bytes(problem),
        "SCALE_PIECE": scale_piece(problem), "GROUP": scaled_group(problem),
        "GROUPS": groups_of_slice(problem), "ZEROS": int(problem.zeros is not None), "FOLD": int(problem.folds),
        "EIGHTS": config.eighths, "STRIPS": config.strips, "CONSUMERS": config.consumers, "STAGES": config.stages,
        "TOGETHER": config.together, "DEPTH": config.depth, "UNIT": config.unit, "CLUSTER": config.cluster,
        "X_BY_TMA": int(config.x_by_tma), "CARRIED": int(config.carried), "TURNS": int(config.turns),
        "FETCHED": config.fetched, "BATCHED": int(problem.batches > 1), "GROUPED": int(problem.ragged),
        "C_ALONG_M": int(problem.out.strides[2] == 1 and problem.out.strides[3] != 1), "OUT_TYPE": out_type,
        "OUT_KIND": out_kind, "HAS_BIAS": int(problem.has_bias), "BIAS_TYPE": "float" if bias == "fp32" else bias,
    }  # fmt: skip
    wgmma = wgmma_function("wgmma", config.rows, problem.dtype, a_in_registers=True)
    types = "typedef unsigned int u32;\ntypedef unsigned long long u64;\n"
    own = tuple(f"hopper_weights{rest}" for rest in ("_values.cuh", "_bring.cuh", "_store.cuh", ".cu"))
    return compile_cuda(
        types + wgmma + kernel_source(__package__, *own), gpu, constants=NO_TILES | constants,
        num_warps=4 * (config.consumers + 1), lds_bytes=_shared_bytes(problem, config, gpu), name="hopper_weights.cu",
    )  # fmt: skip


def _shared_bytes(problem: QuantizedProblem, config: HopperWeightsConfig, gpu: Gpu) -> int:
    """What a CTA takes: more than half of what there is where each can have a compute unit of its own. Those of the
    next launch, which come early, would share some, and leave others idle."""
    alone = config.ctas(problem, gpu) <= gpu.compute_units
    return max(config.shared_bytes(problem), gpu.lds_bytes // 2 + 1024 if alone else 0)


class _Prepared:
    """All that does not depend on the addresses, computed once per device."""

    def __init__(self, problem: QuantizedProblem, config: HopperWeightsConfig, gpu: Gpu, device: int) -> None:
        values, zeros = problem.values.strides, problem.zeros.strides if problem.zeros else (0, 0, 0, 0)
        sizes = _Sizes(
            problem.m, problem.n, problem.k, *config.blocks(problem), problem.batch[1], config.tiles(problem),
            problem.x.strides[2],
            problem.scales.strides[2], zeros[2], problem.bias[1] if problem.bias else 0, *problem.out.strides[2:],
            *problem.x.strides[:2], *problem.scales.strides[:2], *zeros[:2], *problem.out.strides[:2],
            problem.bias[2] if problem.bias else 0, int(values[0] > 0), int(values[1] > 0),
        )  # fmt: skip
        line = line_bytes(problem)
        outer, inner = (size if step else 1 for size, step in zip(problem.batch, values, strict=False))
        w_map = TensorMap(
            "uint8", (problem.k_stored, problem.n, inner, outer),
            [step or UNUSED_PITCH for step in (values[2], values[1], values[0])], (line, config.columns, 1, 1), line,
        )  # fmt: skip
        x = Pointer()
        if config.x_by_tma:
            steps = problem.x.strides
            outer, inner = (size if step else 1 for size, step in zip(problem.batch, steps, strict=False))
            x = TensorMap(
                problem.dtype, (problem.k, problem.m, inner, outer),
                [2 * step or UNUSED_PITCH for step in (steps[2], steps[1], steps[0])], (64, config.rows, 1, 1), 128,
            )  # fmt: skip
        self.launch = CudaCall(
            code_object(problem, config, gpu), (w_map, x, *(Pointer() for _ in range(5)), sizes), device,
            ctas=config.ctas(problem, gpu), cluster=config.cluster, pdl=True,
        )  # fmt: skip

    def __call__(self, x: Any, values: Any, scales: Any, zeros: Any, bias: Any, out: Any, ends: Any) -> None:
        self.launch.launch_at(
            current_stream(out.get_device()), values.data_ptr(), x.data_ptr(), scales.data_ptr(),
            0 if zeros is None else zeros.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(),
            0 if ends is None else ends.data_ptr(),
        )  # fmt: skip


def prepare(problem: QuantizedProblem, config: HopperWeightsConfig, gpu: Gpu) -> Callable[..., None]:
    """What runs `config` on CUDA tensors that lie as `problem` says, call after call, on one device."""
    prepared: list[_Prepared] = []

    def run(x: Any, values: Any, scales: Any, zeros: Any, bias: Any, out: Any, ends: Any = None) -> None:
        if not prepared:
            prepared.append(_Prepared(problem, config, gpu, out.device.index))
        prepared[0](x, values, scales, zeros, bias, out, ends)

    return run
