"""The knobs of kernels/flat.py, which takes float32 and complex64 on Hopper, and those that were fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from ...gpu import Gpu
from .config import CTA_RESERVED_BYTES, FEW_TENSORS, SM_SHARED_BYTES, Transform3dConfig, why_no_room
from .problem import Transform3dProblem

_MAX_WARPS = 32
_MAX_K = 32  #: a matrix has K^2 / 32 FP64 values in every lane
PIECE = 16  #: bytes, which bulk copies come in
_BYTES_OF_CTA = 16 * 1024  #: of tensors, where they are small
_BYTES_OF_FEW = 3 * 1024  #: the same where there are too few tensors to fill the GPU many times
_WARPS_OF_SM, _CTAS_OF_SM, _MOST_WARPS = 16, 4, 12
_WARPS_OF_FEW = 6
_REGISTERS_OF_SM, _OTHER_REGISTERS = 65536, 48
#: K up to which it was faster than `fused` on one H100, and the orders in between of which the opposite is true
_FASTER_UP_TO: Mapping[str, int] = {"fp32": 31, "complex64": 31, "fp64": 26, "complex128": 26}
_FUSED_FASTER: Mapping[str, tuple[int, ...]] = {
    "fp32": (16,),
    "complex64": (),
    "fp64": (4, 6, 8, 10, 12, 16, 20, 22, 24),
    "complex128": (4, 6, 8, 10, 12, 16, 20, 24),
}
_THREE_MATRICES_UP_TO = 24  #: K beyond which they spill registers


def why_not_held(problem: Transform3dProblem, group: int, bulk: bool) -> str | None:
    """Why CTAs cannot hold `group` whole tensors that come by bulk copies or plain loads, or None."""
    if problem.complex_matrix:
        return "the kernel multiplies by a real matrix: a complex one takes four real products, not two"
    if problem.alignment < problem.element_bytes and problem.parts == 2:
        return "a complex tensor must start at a multiple of its element's size"
    tensors_in_one = problem.alignment >= PIECE and problem.stride_x == problem.k**3
    whole = group * problem.k**3 * problem.element_bytes % PIECE == 0
    if bulk and not problem.vector_aligned and not (tensors_in_one and whole):
        return (
            "bulk copies need tensors of whole 16 bytes at multiples of 16 bytes, "
            "or side by side and of whole 16 bytes in every group"
        )
    return None


@dataclass(frozen=True, kw_only=True)
class FlatConfig(Transform3dConfig):
    """kernels/flat.py: CTAs hold whole tensors; each contraction is a product of all their lines along an axis."""

    schedule: str = "flat"
    group: int = 1  #: tensors of one CTA
    warps: int  #: of one CTA
    ctas_per_sm: int = 1  #: at least so many CTAs share an SM: limits registers, and is checked against shared memory
    bulk: bool = True  #: bulk copies in; else plain loads, for any K and alignment

    def shared_bytes(self, problem: Transform3dProblem) -> int:
        """Dynamic shared memory of one CTA: tensors, matrices padded to tiles of 8, a barrier."""
        value = problem.element_bytes // problem.parts
        padded = -(-problem.k // 8) * 8
        tensors = -(-self.group * problem.k**3 * problem.element_bytes // 16) * 16
        return tensors + (1 if problem.same_matrix else 3) * padded * (padded * value + 16) + 8

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if gpu.name != "sm_90a":
            return f"the flat schedule is CUDA C++ for sm_90a, not for {gpu.name} ({gpu.family})"
        if problem.k > _MAX_K:
            return f"a lane's share of the matrix is in registers, which ends at K={_MAX_K}, got K={problem.k}"
        if why := why_not_held(problem, self.group, self.bulk):
            return why
        if min(self.group, self.warps, self.ctas_per_sm) < 1 or self.warps > _MAX_WARPS:
            return f"group and ctas_per_sm must be at least 1, warps 1 to {_MAX_WARPS}"
        what = f"{self.group} tensors of K={problem.k}"
        return why_no_room(what, self.shared_bytes(problem), self.ctas_per_sm, gpu)


def comes_first(problem: Transform3dProblem) -> bool:
    """Whether `flat` was faster than `fused` in problems of this dtype and K."""
    last = _FASTER_UP_TO[problem.dtype] if problem.same_matrix else _THREE_MATRICES_UP_TO
    return problem.k <= last and problem.k not in _FUSED_FASTER[problem.dtype]


def flat_config(problem: Transform3dProblem, gpu: Gpu) -> FlatConfig | None:
    """Knobs by which every K up to 30 was near its fastest on one H100 (docs/transform3d.md, 2026-11-28), if any fit.

    Tensors of some 16 KB to a CTA, so that several CTAs load while others multiply, whole 16 bytes where that allows
    bulk copies; 16 warps to an SM, in CTAs that share the lines evenly. Few tensors: small CTAs of many warps.
    """
    tensor = problem.k**3 * problem.element_bytes
    few = problem.count <= FEW_TENSORS
    whole = PIECE // gcd(PIECE, tensor)
    tiles_of_8 = -(-problem.k // 8)
    registers = 2 * (2 * tiles_of_8**2 + 4 * tiles_of_8) + _OTHER_REGISTERS  # a lane's: the matrix and sums are FP64
    warps_of_sm = min(_WARPS_OF_SM, _REGISTERS_OF_SM // 32 // registers)
    for bulk in (True, False):
        group = max((_BYTES_OF_FEW if few else _BYTES_OF_CTA) // tensor, 1)
        if bulk and not problem.vector_aligned:
            group = max(group // whole, 1) * whole
        config = FlatConfig(group=group, warps=1, bulk=bulk)
        fit = SM_SHARED_BYTES // (config.shared_bytes(problem) + CTA_RESERVED_BYTES)
        if config.why_invalid(problem, gpu) is not None or (bulk and group > 1 and fit < _CTAS_OF_SM):
            continue
        aim = min(max(-(-warps_of_sm // fit), _WARPS_OF_FEW if few else _CTAS_OF_SM), _MOST_WARPS)
        tiles = -(-group * problem.k**2 * problem.parts // 16)
        rounds = {warps: -(-tiles // warps) * warps / tiles for warps in range(aim - 1, aim + 2)}
        warps = min(rounds, key=lambda warps: rounds[warps] + abs(warps - aim) * 0.03)
        warps = min(warps, tiles)
        return replace(config, warps=warps, ctas_per_sm=max(min(warps_of_sm // warps, fit), 1))
    return None
