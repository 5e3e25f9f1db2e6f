"""Attention of few queries over a cache on Hopper (hopper_decode.cu), by NVRTC: a ring of tiles ahead, one launch.

Wins on sm_90a for head dimensions up to 256 over the general schedule (decode.py), whose loads pass through registers:
they have no room for as many bytes on the way as the memory wants. Bound by memory. Source: as for decode.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....codegen.code_object import CodeObject
from ....gpu import Gpu
from ..arguments import Tensors
from ..config_decode import DecodeProblem, HopperDecodeConfig
from ..hopper_decode_call import compiled, prepared


def code_object(problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu) -> CodeObject:
    """The machine code that what `prepare` gives runs."""
    return compiled(problem, config, gpu)


def prepare(
    problem: DecodeProblem, config: HopperDecodeConfig, gpu: Gpu, tensors: Tensors
) -> Callable[[dict[str, Any]], None]:
    """What writes out [B, N, H, D_V] and lse [B, H, N] for operands that lie as these do, by name. One launch.
    Raises UnsupportedError without the extra `cuda`."""
    units = config.units(problem)

    def parts_of(cluster: int) -> tuple[int, int]:
        clusters = config.splits // cluster
        return (units * clusters, units * cluster) if clusters > 1 else (0, 0)

    return prepared(problem, config, gpu, tensors, (config.splits,), parts_of, cluster=config.cluster)
