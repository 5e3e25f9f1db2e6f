"""How many tensors and warps a CTA of `fused` and `flat` has on Hopper: for many tensors what was the fastest, where
that was measured and the model does worse, else what the model finds shortest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, gcd
from typing import Any

from ...gpu import Gpu
from .config import FusedConfig
from .config_flat import PIECE, FlatConfig
from .model_hopper import REGISTERS_OF_SM, ctas_by_memory, estimate_us, flat_registers
from .problem import Transform3dProblem

_TIMES = (1, 2, 3, 4, 6, 8, 12, 16)
_LEAST_BYTES, _MOST_BYTES = 1500, 40 * 1024  #: of a CTA's tensors, of tiny ones, and where it has several
_FUSED_WARPS, _FUSED_WARPS_COMPLEX = (4, 5, 6, 8, 12), (4, 5, 6)
_FLAT_WARPS = (3, 4, 5, 6, 7, 8, 10)
#: that a thread may have at least, the model's first; of `flat` what the matrix and sums take, if that is more
_FUSED_REGISTERS, _FLAT_REGISTERS = (112, 80, 64), (0, 128)
_LEAST_WARPS_OF_SM = 6
#: dtype -> K -> tensors and warps of a CTA, CTAs of an SM that were the fastest of transform3d_configs.csv on average
#: of the batches of MANY tensors and more
_OF_MANY: Mapping[str, Mapping[int, tuple[int, int, int]]] = {
    "fp64": {
        6: (2, 4, 4), 7: (4, 5, 3), 9: (4, 8, 2), 10: (4, 8, 4), 11: (2, 8, 2), 12: (2, 8, 3), 13: (2, 8, 2),
        14: (1, 7, 3), 15: (2, 10, 2), 17: (2, 10, 1), 18: (1, 6, 2), 19: (2, 8, 2), 21: (2, 8, 1), 23: (2, 8, 1),
        26: (1, 10, 1),
    },
    "fp32": {
        8: (2, 4, 8), 13: (4, 8, 2), 14: (2, 8, 2), 17: (4, 10, 1), 20: (1, 4, 4), 22: (1, 4, 4), 24: (1, 6, 2),
        28: (1, 8, 1),
    },
    "complex128": {
        6: (4, 5, 3), 7: (1, 4, 4), 8: (1, 6, 4), 9: (1, 6, 2), 10: (1, 5, 5), 11: (1, 8, 2), 12: (1, 6, 5),
        14: (1, 8, 2), 18: (1, 8, 2),
    },
    "complex64": {8: (2, 8, 4), 13: (2, 8, 3), 16: (1, 8, 2), 20: (1, 10, 1), 24: (1, 10, 1)},
}  # fmt: skip
#: the same of the batches that move LARGE bytes and more, where it is another
_OF_LARGE: Mapping[str, Mapping[int, tuple[int, int, int]]] = {
    "fp64": {
        2: (276, 4, 8), 4: (12, 4, 4), 5: (12, 4, 8), 6: (12, 8, 2), 7: (4, 4, 8), 8: (1, 4, 4), 9: (4, 7, 3),
        10: (4, 4, 4), 11: (2, 6, 4), 13: (2, 8, 3), 18: (1, 6, 3),
    },
    "fp32": {8: (8, 8, 4), 13: (4, 5, 5), 14: (2, 4, 6)},
    "complex128": {
        3: (48, 6, 5), 4: (12, 4, 4), 6: (8, 4, 4), 7: (2, 6, 5), 9: (2, 7, 3), 10: (1, 4, 4), 12: (1, 6, 3),
    },
    "complex64": {8: (4, 8, 4), 13: (2, 5, 5), 16: (1, 4, 4), 20: (1, 6, 2)},
}  # fmt: skip
#: dtype -> K, of which an SM has room for a tensor or for none -> CTAs of a cluster, warps of a CTA, CTAs of an SM and
#: column tiles in flight that were the fastest of transform3d_large.csv; of the orders left out config.py's are
_OF_LARGE_ORDERS: dict[str, dict[int, tuple[int, int, int, int]]] = {
    "fp64": {
        27: (2, 8, 2, 2), 28: (2, 8, 2, 2), 29: (2, 8, 2, 2), 30: (1, 12, 1, 1), 31: (4, 8, 2, 2), 33: (3, 6, 2, 1),
        34: (4, 6, 2, 1), 35: (6, 4, 3, 1), 36: (4, 6, 2, 1), 38: (5, 4, 2, 1), 39: (8, 6, 2, 1), 40: (8, 6, 2, 1),
        41: (6, 4, 2, 1), 42: (7, 4, 2, 1), 48: (6, 8, 1, 1),
    },
    "fp32": {
        33: (3, 4, 3, 1), 34: (2, 6, 2, 1), 35: (3, 4, 3, 1), 36: (1, 12, 1, 1), 37: (1, 12, 1, 1), 38: (4, 4, 3, 1),
        39: (4, 4, 3, 1), 40: (5, 4, 3, 1), 48: (6, 4, 2, 1),
    },
    "complex128": {
        25: (3, 6, 2, 2), 26: (3, 6, 2, 1), 27: (7, 4, 4, 2), 28: (6, 4, 3, 2), 29: (6, 4, 3, 2),
        30: (8, 4, 3, 2), 31: (8, 4, 3, 2), 32: (8, 4, 3, 2), 33: (7, 6, 2, 1), 34: (7, 6, 2, 1), 35: (7, 6, 2, 1),
        41: (7, 8, 1, 1), 42: (7, 8, 1, 1), 43: (8, 8, 1, 1),
    },
    "complex64": {31: (8, 4, 4, 2), 36: (6, 4, 3, 1), 40: (8, 6, 2, 1), 44: (8, 4, 2, 1)},
}  # fmt: skip
#: where it was not measured, as FP64, of which a tensor has as many bytes
_OF_LARGE_ORDERS["complex64"] |= {
    k: knobs for k, knobs in _OF_LARGE_ORDERS["fp64"].items() if 32 < k < 44 and k not in _OF_LARGE_ORDERS["complex64"]
}
MANY, LARGE = 1000, 150_000_000
#: CTAs of a cluster -> bytes, as FP64, of a tensor that is faster so, and clusters that the GPU has room for; pairs of
#: CTAs are no help to complex128 (transform3d_few.csv)
_CLUSTERS_OF_FEW = {8: (16_000, 15), 4: (16_000, 30), 2: (35_000, 66)}
_PAIRS_UP_TO = 40
_FOUR_WARPS_FROM = 24  #: K of complex128, in clusters of four
IN_REGISTERS_UP_TO = 16  #: K whose matrix they have in registers
FUSED_UP_TO = 12  #: K; beyond, a CTA of `fused` has one tensor, and its knobs are measured ones


def _fit(config: FusedConfig | FlatConfig, problem: Transform3dProblem, registers: int) -> int:
    """CTAs of an SM whose threads have so many registers."""
    return min(REGISTERS_OF_SM // 32 // registers // config.warps, ctas_by_memory(config, problem))


def _valid(config: Any, registers: Sequence[int], problem: Transform3dProblem, gpu: Gpu) -> Iterator[Any]:
    """With as many CTAs of an SM as leave a thread so many registers, once each."""
    for fit in dict.fromkeys(_fit(config, problem, each) for each in registers):
        if fit * config.warps >= _LEAST_WARPS_OF_SM:
            each = replace(config, ctas_per_sm=fit)
            if each.why_invalid(problem, gpu) is None:
                yield each


def _groups(tensor: int, whole: int = 1) -> list[int]:
    """Numbers of a CTA's tensors of so many bytes, in their order; multiples of `whole` as well."""
    unit = max(_LEAST_BYTES // tensor, 1)
    found = {n * each for n in _TIMES for each in (unit, unit * whole, -(-unit // whole) * whole)}
    return [n for n in sorted(found) if n <= max(whole, unit) or n * tensor <= _MOST_BYTES]


def fused_configs(problem: Transform3dProblem, gpu: Gpu, bulk: bool, *, every: bool = False) -> Iterator[FusedConfig]:
    """Of small tensors; every: with fewer registers a thread as well, which some spill."""
    k, tensor = problem.k, problem.k**3 * problem.element_bytes
    unroll = 1 if k % 8 == 2 else 2  # a last tile of two columns leaves most of its registers empty
    for group in _groups(tensor):
        for warps in _FUSED_WARPS if problem.parts == 1 else _FUSED_WARPS_COMPLEX:
            config = FusedConfig(group=group, warps=warps, bulk=bulk, unroll=unroll)
            if warps <= max(group * k * problem.parts, 4):
                yield from _valid(config, _FUSED_REGISTERS[: None if every else 1], problem, gpu)


def flat_configs(problem: Transform3dProblem, gpu: Gpu, *, every: bool = False) -> Iterator[FlatConfig]:
    """Groups of whole 16 bytes by bulk copies, others by plain loads; every: with more registers a thread as well."""
    tensor = problem.k**3 * problem.element_bytes
    # With some to spare. In fewer than 64 ptxas refuses the kernel's instructions.
    taken = max(flat_registers(problem.k) + 16, 64)
    likely = _FLAT_REGISTERS[:1] if problem.same_matrix else _FLAT_REGISTERS[1:]  # three matrices spill in fewer
    registers = [max(taken, each) for each in (_FLAT_REGISTERS if every else likely)]
    whole = 1 if problem.vector_aligned else PIECE // gcd(PIECE, tensor)
    for group in _groups(tensor, whole):
        for warps in _FLAT_WARPS:
            config = FlatConfig(group=group, warps=warps, bulk=group % whole == 0)
            if config.bulk and config.why_invalid(problem, gpu) is not None:
                config = replace(config, bulk=False)
            if warps <= max(-(-group * problem.k**2 * problem.parts // 16), 3):
                yield from _valid(config, registers, problem, gpu)


def _measured(problem: Transform3dProblem) -> tuple[int, int, int] | None:
    """Tensors, warps and CTAs of an SM that were the fastest with one matrix."""
    if not problem.same_matrix:
        return None
    large = _OF_LARGE[problem.dtype].get(problem.k) if problem.bytes >= LARGE else None
    return large or (_OF_MANY[problem.dtype].get(problem.k) if problem.count >= MANY else None)


def _chosen(every: Iterable[Any], likely: Iterable[Any], problem: Transform3dProblem, gpu: Gpu) -> Any:
    knobs = _measured(problem)
    if knobs is not None:
        for config in every:
            if config.bulk and (config.group, config.warps, config.ctas_per_sm) == knobs:
                return config
    return min(likely, key=lambda config: estimate_us(problem, config, gpu), default=None)


def _rounded(problem: Transform3dProblem) -> Transform3dProblem:
    """With a sixteenth of tensors more, or less than that: callers come with another number of them each time."""
    step = max(1 << problem.count.bit_length() >> 5, 1)
    return replace(problem, count=-(-problem.count // step) * step)


@lru_cache(maxsize=4096)
def _fused(problem: Transform3dProblem, gpu: Gpu, bulk: bool) -> FusedConfig | None:
    every = fused_configs(problem, gpu, bulk, every=True)
    return _chosen(every, fused_configs(problem, gpu, bulk), problem, gpu)


@lru_cache(maxsize=4096)
def _flat(problem: Transform3dProblem, gpu: Gpu) -> FlatConfig | None:
    return _chosen(flat_configs(problem, gpu, every=True), flat_configs(problem, gpu), problem, gpu)


def fewest_ctas(k: int, most: int) -> int:
    """That hold as few planes each as `most` CTAs would."""
    return ceil(k / ceil(k / most))


def few_config(problem: Transform3dProblem, bulk: bool, unroll: int, as_flat: bool) -> FusedConfig | None:
    """Of fewer tensors than SMs: CTAs of a cluster hold one together, as many as the GPU has room for at once."""
    tensor = 8 * problem.k**3 * problem.parts
    most = next((c for c, (least, fit) in _CLUSTERS_OF_FEW.items() if tensor >= least and problem.count <= fit), 1)
    wide = problem.dtype == "complex128"
    if most == 1 or (wide and most == 2):
        return None
    four_warps = wide and most == 4 and problem.k >= _FOUR_WARPS_FROM
    return FusedConfig(
        cluster=fewest_ctas(problem.k, most),
        warps=4 if four_warps else 8,
        bulk=bulk,
        matrix_in_registers=problem.k <= (IN_REGISTERS_UP_TO if problem.same_matrix else FUSED_UP_TO),
        unroll=unroll if four_warps else 1,
        as_flat=as_flat,
    )


def large_knobs(problem: Transform3dProblem) -> dict[str, Any] | None:
    """Of many tensors of an order that was measured by clusters, where another knob than config.py's is faster; of few
    ones too where pairs of CTAs cannot hold them."""
    knobs = _OF_LARGE_ORDERS[problem.dtype].get(problem.k)
    if knobs is None or (problem.count <= _CLUSTERS_OF_FEW[2][1] and problem.k <= _PAIRS_UP_TO):
        return None
    names = ("cluster", "warps", "ctas_per_sm", "unroll")
    return {**dict(zip(names, knobs, strict=True)), "matrix_in_registers": False}


def fused_config(problem: Transform3dProblem, gpu: Gpu, bulk: bool) -> FusedConfig | None:
    """What was the fastest, or the shortest by the model, if any fit."""
    return _fused(_rounded(problem), gpu, bulk)


def flat_config(problem: Transform3dProblem, gpu: Gpu) -> FlatConfig | None:
    """What was the fastest, or the shortest by the model, if any fit."""
    return _flat(_rounded(problem), gpu)
