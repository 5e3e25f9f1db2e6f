"""The seed's variants by name: each the config that does what its name says; docs/presets.md has every idea.

    laneloom.matmul(a, b, config="kunroll")

The seed wmma_ops had a kernel per name; here most are knobs of one schedule, and three have loops of their own. Where
its description and its code differ, the name counts. stream_k is laneloom's own. All are for RDNA 3, 3.5 and 4, any
size and stride.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ...errors import ArgumentError
from ...gpu import Gpu
from ..config_words import read_when_traced
from ..scalars import shown
from .config import MatmulConfig, NamedPlan
from .config_sgemm import LADDER
from .config_wmma import CoopConfig, PingpongConfig, WmmaConfig
from .problem import MatmulProblem

#: The seed's default kernel: 128 x 64 of C by 8 waves of 32 x 32, one 16-deep K-tile at a time, rows padded to 24.
STANDARD = WmmaConfig(
    block_m=128, block_n=64, block_k=16, num_warps=8, waves_n=2, lds="padded", transpose="scalar", order="row"
)
TILED_64X64 = replace(STANDARD, block_m=64, num_warps=4)
TILED_256X64 = replace(STANDARD, block_m=256)
TILED_128X128 = replace(STANDARD, block_n=128)
KUNROLL = replace(STANDARD, block_k=32)


def adaptive(problem: MatmulProblem, gpu: Gpu) -> MatmulConfig:
    """The seed's rule: the first of its conditions that holds. Its matmul_adaptive and gemm_adaptive."""
    m, n, k = problem.m, problem.n, problem.k
    if max(m, n) < 512:
        return TILED_64X64
    if m > 4 * n and m >= 4096:
        return TILED_64X64
    if n >= 8192 and m >= 2048:
        return TILED_256X64
    if 768 <= max(m, n) <= 1536 and k >= 512:
        return KUNROLL
    return STANDARD


PRESETS: Mapping[str, MatmulConfig | NamedPlan] = MappingProxyType({
    "standard": STANDARD,
    "tiled_64x64": TILED_64X64,
    "tiled_128x64": STANDARD,
    "tiled_256x64": TILED_256X64,
    "tiled_128x128": TILED_128X128,
    "adaptive": NamedPlan("adaptive"),
    "kunroll": KUNROLL,
    "quad": replace(STANDARD, block_k=64, buffers=1),
    "highOcc": replace(STANDARD, block_m=64, block_n=32, num_warps=4, buffers=1),
    "noPrefetch": replace(STANDARD, buffers=1, prefetch=False),
    "native": replace(STANDARD, control="waits"),
    "asmOpt": replace(STANDARD, control="priority"),
    "zerocopy": replace(STANDARD, lds="xor", stores="direct"),
    "swizzled": replace(STANDARD, lds="xor"),
    "xor_optimized": replace(STANDARD, lds="xor", transpose="gather"),
    "coop": CoopConfig(block_m=128, block_n=64, block_k=16, lds="padded", order="row"),
    "pingpong": PingpongConfig(block_m=128, block_n=128, block_k=16, order="row"),
    "hilbert": replace(STANDARD, order="hilbert"),
    "opt": replace(STANDARD, block_n=128, transpose="shuffle"),
    "stream_k": WmmaConfig(block_m=128, block_n=64, block_k=32, num_warps=8, stream_k=2),
})  # fmt: skip

PLANNERS: Mapping[str, Callable[[MatmulProblem, Gpu], MatmulConfig]] = MappingProxyType({"adaptive": adaptive})


@read_when_traced
def _parsed(text: str) -> MatmulConfig:
    return MatmulConfig.parse(text)


def named_config(config: MatmulConfig | NamedPlan | str | None) -> MatmulConfig | NamedPlan | None:
    """A preset by its name, a config by its text, or what was given. Raises ArgumentError for an unknown name."""
    if config is None or isinstance(config, MatmulConfig | NamedPlan):
        return config
    if not isinstance(config, str):
        raise ArgumentError(f"config: expected a config, its text or a preset's name, got {shown(config)}")
    if config in PRESETS:
        return PRESETS[config]
    if config in LADDER:
        return LADDER[config]
    if ":" in config:
        return _parsed(config)
    known = ", ".join([*PRESETS, *LADDER])
    raise ArgumentError(f"config: expected one of {known}, or a config's text, got {shown(config)}")
