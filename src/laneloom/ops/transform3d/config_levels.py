"""Configs of the ladder: the techniques of the transformbench seed, one by one; the fused kernel combines them."""

from __future__ import annotations

from dataclasses import dataclass

from ...gpu import Gpu
from .config import Transform3dConfig, next_power_of_two
from .problem import Transform3dProblem

_MAX_THREADS = 1024
AMD_THREADS = 128  #: of a workgroup
_MAX_LEVEL_K = 64  #: K x K doubles of b in 48 KiB of static shared memory; 32 KiB at 64
_MAX_KRONECKER_K = 10  #: the matrix has K^6 elements: 8 MB at 10, 128 MB at 16


def _why_not_plain(problem: Transform3dProblem) -> str | None:
    """What all levels ask of a problem: they are there to be compared, not to be general."""
    dense = problem.stride_x == problem.stride_out == problem.k**3
    if problem.dtype != "fp64" or not problem.same_matrix or problem.accumulate or not dense:
        return "the levels take dense fp64 tensors, one matrix for all axes, and do not accumulate"
    return None


@dataclass(frozen=True, kw_only=True)
class LevelsConfig(Transform3dConfig):
    """kernels/levels.py: three passes through device memory, from scalar code to FP64 matrix instructions."""

    schedule: str = "levels"
    level: int  #: 1 global memory, 2 matrix in shared memory, 3 output rows in registers, 4 matrix instructions
    blocks: int = 512  #: CTAs, each with a workspace of one tensor
    threads: int = 128

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if gpu.name != "sm_90a":
            return f"levels 1 to 4 are CUDA C++ for sm_90a, not for {gpu.name} ({gpu.family})"
        if self.level not in (1, 2, 3, 4):
            return f"level must be 1, 2, 3 or 4, got {self.level}"
        if not 32 <= self.threads <= _MAX_THREADS or self.threads % 32 or self.blocks < 1:
            return f"threads must be a multiple of 32 up to {_MAX_THREADS}, blocks at least 1"
        if problem.k > _MAX_LEVEL_K:
            return f"the levels keep the matrix in shared memory, which ends at K={_MAX_LEVEL_K}, got K={problem.k}"
        return _why_not_plain(problem)


@dataclass(frozen=True, kw_only=True)
class AmdLevelsConfig(Transform3dConfig):
    """kernels/levels_amd.py: three passes through device memory on AMD's GPUs, by scalar code."""

    schedule: str = "levels_amd"
    level: int  #: 1 global memory, 2 matrix in LDS, 3 output rows in registers, 5 strips of the tensor in LDS as well

    def rows(self, k: int) -> int:
        """Rows of one workgroup: two outputs per thread at levels 1 and 2, a row per thread at the others."""
        return AMD_THREADS if self.level in (3, 5) else max(1, 2 * AMD_THREADS // next_power_of_two(k))

    def shared_bytes(self, k: int) -> int:
        """LDS of one workgroup, axes padded to powers of two: the matrix, and at level 5 a strip of 128 rows."""
        padded = next_power_of_two(k)
        return {1: 0, 5: padded * (padded + AMD_THREADS) * 8}.get(self.level, padded * padded * 8)

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if gpu.vendor != "amd":
            return f"these levels are written for AMD's waves and LDS, {gpu.name} ({gpu.family}) has schedule levels"
        if self.level not in (1, 2, 3, 5):
            return f"level must be 1, 2, 3 or 5, got {self.level}"
        if problem.k > _MAX_LEVEL_K:
            return f"a thread keeps K outputs in registers, which ends at K={_MAX_LEVEL_K}, got K={problem.k}"
        need = self.shared_bytes(problem.k)
        if need > gpu.lds_bytes:
            strip = f"the matrix and a strip of {AMD_THREADS} rows of K={problem.k}"
            return f"{strip} take {need} bytes of LDS of {gpu.lds_bytes}"
        return _why_not_plain(problem)


@dataclass(frozen=True, kw_only=True)
class CublasdxConfig(Transform3dConfig):
    """kernels/cublasdx.py: level 5, the three passes by NVIDIA's device-side BLAS, tensors in shared memory."""

    schedule: str = "cublasdx"
    threads: int = 128

    def shared_bytes(self, k: int) -> int:
        """Two tensors and the matrix."""
        return (2 * k**3 + k**2) * 8

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if gpu.name != "sm_90a":
            return f"cuBLASDx runs on NVIDIA's GPUs only, not on {gpu.name} ({gpu.family})"
        if not 32 <= self.threads <= _MAX_THREADS or self.threads % 32:
            return f"threads must be a multiple of 32 up to {_MAX_THREADS}, got {self.threads}"
        need = self.shared_bytes(problem.k)
        if need > gpu.lds_bytes:
            return f"two tensors of K={problem.k} and the matrix take {need} bytes of shared memory of {gpu.lds_bytes}"
        return _why_not_plain(problem)


@dataclass(frozen=True, kw_only=True)
class KroneckerConfig(Transform3dConfig):
    """kernels/kronecker.py: level 6, one product with the K^3 x K^3 Kronecker matrix, 2 K^6 operations per tensor."""

    schedule: str = "kronecker"

    def why_invalid(self, problem: Transform3dProblem, gpu: Gpu) -> str | None:
        """See Transform3dConfig."""
        if problem.k > _MAX_KRONECKER_K:
            megabytes = problem.k**6 * 8 / 1e6
            return f"the Kronecker matrix of K={problem.k} takes {megabytes:.0f} MB, allowed is K={_MAX_KRONECKER_K}"
        return _why_not_plain(problem)
