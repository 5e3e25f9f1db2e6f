"""The knobs of kernels/flat.py, which takes float32 and complex64 on Hopper, and where it is faster than `fused`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...gpu import Gpu
from .config import Transform3dConfig, why_no_room
from .problem import Transform3dProblem

_MAX_WARPS = 32
_MAX_K = 32  #: a matrix has K^2 / 32 FP64 values in every lane
PIECE = 16  #: bytes, which bulk copies come in
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
