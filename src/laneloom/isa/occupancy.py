"""How many waves of a kernel one SIMD can hold, and what stops it from holding more."""

from __future__ import annotations

from dataclasses import dataclass

from ..gpu import KIB, Gpu

# LLVM "User Guide for AMDGPU Backend", COMPUTE_PGM_RSRC2.GRANULATED_LDS_SIZE: 128 dwords, 320 on gfx950;
# on gfx1250 512, by the occupancy that LLVM prints.
_LDS_GRANULE_BYTES = 512
_LDS_GRANULES_BYTES = {"gfx950": 1280, "gfx1250": 2048, "gfx1251": 2048}
# NVIDIA CUDA C++ Programming Guide, compute capability 9.0: the system keeps 1 KiB per block.
_NVIDIA_RESERVED_BYTES = KIB


@dataclass(frozen=True)
class Occupancy:
    """Waves per SIMD: what fits, and what each resource alone would permit."""

    waves_per_simd: float  #: whole workgroups, spread over the SIMDs that they share
    limiter: str  #: "registers", "LDS" or "wave slots"
    by_registers: int
    by_lds: float | None  #: None for a kernel without LDS
    slots: int
    workgroups: int  #: resident on one CU, WGP or SM; 0 where not even one fits


def allocated_lds(gpu: Gpu, lds_bytes: int) -> int:
    """What a workgroup of an AMD GPU gets that asks for so many bytes."""
    granule = _LDS_GRANULES_BYTES.get(gpu.name, _LDS_GRANULE_BYTES)
    return -(-lds_bytes // granule) * granule


def occupancy(
    gpu: Gpu,
    *,
    by_registers: int,
    lds_bytes: int,
    num_warps: int,
    workgroup_processor_mode: bool = False,
) -> Occupancy:
    """The occupancy of workgroups of `num_warps` waves with `lds_bytes` each.

    by_registers: waves per SIMD that the registers permit, as LLVM says or `gpu.waves_per_simd` computes.
    workgroup_processor_mode: RDNA: a workgroup spreads over the two CUs of a WGP and shares their LDS.
    """
    units = 2 if workgroup_processor_mode else 1
    simds = gpu.simds_per_cu * units
    pool, cost = gpu.lds_bytes * units, allocated_lds(gpu, lds_bytes)
    if gpu.vendor == "nvidia":
        pool, cost = gpu.lds_bytes + _NVIDIA_RESERVED_BYTES, lds_bytes + _NVIDIA_RESERVED_BYTES
    fits = {
        "registers": by_registers * simds // num_warps,
        "wave slots": gpu.max_waves_per_simd * simds // num_warps,
    }
    by_lds = None
    if lds_bytes:
        fits["LDS"] = pool // cost
        by_lds = fits["LDS"] * num_warps / simds
    # Where the wave slots are full, nothing else limits.
    limiter = min(("wave slots", "registers", "LDS"), key=lambda name: fits.get(name, fits["wave slots"] + 1))
    workgroups = min(fits.values())
    return Occupancy(
        waves_per_simd=workgroups * num_warps / simds,
        limiter=limiter,
        by_registers=by_registers,
        by_lds=by_lds,
        slots=gpu.max_waves_per_simd,
        workgroups=workgroups,
    )
