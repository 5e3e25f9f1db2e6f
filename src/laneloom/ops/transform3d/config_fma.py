"""The knobs of kernels/fma.py, which takes float32 and complex64 of most low K on Hopper, and what was fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from ...gpu import Gpu
from .config import FEW_TENSORS, Transform3dConfig, why_no_room
from .config_flat import PIECE, why_not_held
from .problem import Transform3dProblem

#: K of which it was faster than `flat` on one H200 -> lanes. These leave the tiles of 8 columns of FP64 part empty
_LANES: Mapping[int, int] = {**dict.fromkeys((*range(1, 8), 9, 11), 1), 10: 2, 12: 2, 15: 3, 18: 3}
#: K and numbers of an element -> lanes, warps, bytes of a CTA's tensors where there are few tensors
_OF_FEW: Mapping[tuple[int, int], tuple[int, int, int]] = {
    (11, 1): (1, 4, 24 * 1024), (12, 1): (4, 8, 28 * 1024), (12, 2): (4, 5, 16 * 1024), (18, 1): (3, 6, 48 * 1024),
}  # fmt: skip
_MAX_WARPS, _WARP = 32, 32
_MOST_OF_MATRIX = 144  #: elements of it in a lane's registers
_WARPS = 4
_SMALL_K = 8
#: of a CTA's tensors at most, for each number of an element up to that K, and beyond; the least of small ones
_BYTES_OF_SMALL, _BYTES, _LEAST_BYTES_OF_SMALL = 12 * 1024, 48 * 1024, 4 * 1024
_BYTES_OF: Mapping[int, int] = {10: 32 * 1024}
_LEAST_CTAS = 256  #: that tensors are divided among, if there are as many


@dataclass(frozen=True, kw_only=True)
class FmaConfig(Transform3dConfig):
    """kernels/fma.py: CTAs hold whole tensors; lanes contract two lines of an axis at a time by FP32 multiply-adds."""

    schedule: str = "fma"
    group: int = 1  #: tensors of one CTA
    warps: int  #: of one CTA
    lanes: int = 1  #: that share two lines along an axis: each makes K / lanes of their elements
    bulk: bool = True  #: bulk copies in; else plain loads, for any K and alignment

    def shared_bytes(self, problem: Transform3dProblem) -> int:
        """Dynamic shared memory of one CTA: tensors, matrices, a barrier."""
        tensors = -(-self.group * problem.k**3 * problem.element_bytes // 16) * 16
        matrices = (1 if problem.same_matrix else 3) * problem.k * self.lanes * -(-problem.k // self.lanes)
        return tensors + -(-matrices // 2) * 8 + 8

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if gpu.name != "sm_90a":
            return f"the fma schedule is CUDA C++ for sm_90a, not for {gpu.name} ({gpu.family})"
        if problem.dtype not in ("fp32", "complex64"):
            return f"the fma schedule adds up in FP32: float32 and complex64, got {problem.dtype}"
        if not 1 <= self.lanes <= min(problem.k, _WARP):
            return f"lanes must be 1 to K={problem.k} and at most {_WARP}, got {self.lanes}"
        if (in_lane := -(-problem.k // self.lanes) * problem.k) > _MOST_OF_MATRIX:
            return f"a lane's columns of the matrix are in registers, up to {_MOST_OF_MATRIX} elements, got {in_lane}"
        if why := why_not_held(problem, self.group, self.bulk):
            return why
        if min(self.group, self.warps) < 1 or self.warps > _MAX_WARPS:
            return f"group must be at least 1, warps 1 to {_MAX_WARPS}"
        return why_no_room(f"{self.group} tensors of K={problem.k}", self.shared_bytes(problem), 1, gpu)


def fma_config(problem: Transform3dProblem, gpu: Gpu) -> FmaConfig | None:
    """Knobs by which these K were near their fastest on one H200 (docs/transform3d.md, 2026-11-30), if any fit."""
    k, tensor, few = problem.k, problem.k**3 * problem.element_bytes, problem.count <= FEW_TENSORS
    if k not in _LANES:
        return None
    most, least = _BYTES_OF.get(k, _BYTES), 0
    if k <= _SMALL_K:
        most, least = _BYTES_OF_SMALL * problem.parts, _LEAST_BYTES_OF_SMALL
    lanes, warps = _LANES[k], _WARPS
    if few and (k, problem.parts) in _OF_FEW:
        lanes, warps, most = _OF_FEW[k, problem.parts]
    group = max(min(most // tensor, max(problem.count // _LEAST_CTAS, least // tensor)), 1)
    whole = PIECE // gcd(PIECE, tensor)
    for bulk, of in ((True, 1 if problem.vector_aligned else whole), (False, 1)):
        tensors = max(group // of, 1) * of
        units = -(-tensors * k * k * problem.parts // 2) * lanes
        config = FmaConfig(group=tensors, warps=min(warps, -(-units // 32)), lanes=lanes, bulk=bulk)
        if config.why_invalid(problem, gpu) is None:
            return config
    return None
