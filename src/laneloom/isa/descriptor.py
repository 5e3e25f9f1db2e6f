"""The kernel descriptor of a code object, 64 bytes, as the assembler's `.amdhsa_` directives.

Source: LLVM "User Guide for AMDGPU Backend", "Kernel Descriptor" and "compute_pgm_rsrc1" to 3.
"""

from __future__ import annotations

import struct

from ..gpu import Gpu

DESCRIPTOR_BYTES = 64

_RSRC1 = (
    ("float_round_mode_32", 12, 2), ("float_round_mode_16_64", 14, 2), ("float_denorm_mode_32", 16, 2),
    ("float_denorm_mode_16_64", 18, 2), ("fp16_overflow", 26, 1),
)  # fmt: skip
_RSRC1_TO_GFX11 = (("dx10_clamp", 21, 1), ("ieee_mode", 23, 1))
_RSRC1_RDNA = (("workgroup_processor_mode", 29, 1), ("memory_ordered", 30, 1), ("forward_progress", 31, 1))
_RSRC2 = (
    ("user_sgpr_count", 1, 5), ("system_sgpr_workgroup_id_x", 7, 1),
    ("system_sgpr_workgroup_id_y", 8, 1), ("system_sgpr_workgroup_id_z", 9, 1), ("system_sgpr_workgroup_info", 10, 1),
    ("system_vgpr_workitem_id", 11, 2),
)  # fmt: skip
_PROPERTIES = (
    ("user_sgpr_dispatch_ptr", 1, 1), ("user_sgpr_queue_ptr", 2, 1), ("user_sgpr_kernarg_segment_ptr", 3, 1),
    ("user_sgpr_dispatch_id", 4, 1), ("user_sgpr_private_segment_size", 6, 1), ("uses_dynamic_stack", 11, 1),
)  # fmt: skip
_PROPERTIES_CDNA = (("user_sgpr_private_segment_buffer", 0, 1), ("user_sgpr_flat_scratch_init", 5, 1))


def entry_offset(raw: bytes) -> int:
    """Where the kernel's first instruction is, in bytes from the descriptor."""
    return struct.unpack_from("<q", raw, 16)[0]


def wave_of(raw: bytes) -> int:
    """Lanes of the kernel's waves."""
    return 32 if struct.unpack_from("<H", raw, 56)[0] >> 10 & 1 else 64


def directives(raw: bytes, gpu: Gpu, sgprs: int) -> dict[str, int]:
    """The `.amdhsa_` directives that make this descriptor, by name without the prefix.

    sgprs: how many scalar registers the kernel uses, which the descriptor of RDNA does not tell.
    """
    major = gpu.major
    lds, scratch, kernarg = struct.unpack_from("<III", raw, 0)
    rsrc3, rsrc1, rsrc2 = struct.unpack_from("<III", raw, 44)
    properties, preload = struct.unpack_from("<HH", raw, 56)
    wave = wave_of(raw)
    values = {
        "group_segment_fixed_size": lds, "private_segment_fixed_size": scratch, "kernarg_size": kernarg,
    }  # fmt: skip
    values |= _fields(properties, _PROPERTIES)
    # Before CDNA 3 a kernel that uses scratch is told where its wave's begins.
    told = gpu.name in ("gfx908", "gfx90a")
    places = "system_sgpr_private_segment_wavefront_offset" if told else "enable_private_segment"
    values |= _fields(rsrc2, ((places, 0, 1), *_RSRC2))
    if gpu.is_cdna5:
        values["user_sgpr_count"] = rsrc2 >> 1 & 63  # 32 at most
        values["named_barrier_count"] = rsrc3 >> 14 & 7  # in fours
    rdna = () if major < 10 else _RSRC1_RDNA[1:] if gpu.is_cdna5 else _RSRC1_RDNA  # WGPs are not halved on CDNA 5
    older = _RSRC1_TO_GFX11 if major < 12 and not gpu.is_rdna_4m else ()
    values |= _fields(rsrc1, _RSRC1 + older + rdna)
    # Registers are counted in granules: of 4 in wave64 of RDNA and on CDNA 1, of 16 on CDNA 5, else of 8.
    narrow = gpu.is_cdna_1 or (major >= 10 and wave == 64)
    values["next_free_vgpr"] = ((rsrc1 & 63) + 1) * (16 if gpu.is_cdna5 else 4 if narrow else 8)
    values["next_free_sgpr"] = max(1, min(sgprs, 106 if major >= 10 else 102) - 2)  # without VCC, which is reserved
    if major >= 10:
        values["wavefront_size32"] = int(wave == 32)
        values["inst_pref_size"] = rsrc3 >> 4 & (63 if major < 12 else 255)
    elif gpu.is_cdna_1:
        values |= _fields(properties, _PROPERTIES_CDNA)
    else:
        values["accum_offset"] = ((rsrc3 & 63) + 1) * 4
        values["tg_split"] = rsrc3 >> 16 & 1
        values |= _fields(properties, _PROPERTIES_CDNA)
    if preload and (gpu.is_cdna5 or (major == 9 and not gpu.is_cdna_1)):
        values["user_sgpr_kernarg_preload_length"] = preload & 127
        values["user_sgpr_kernarg_preload_offset"] = preload >> 7
    return values


def _fields(word: int, fields: tuple[tuple[str, int, int], ...]) -> dict[str, int]:
    return {name: word >> at & ((1 << width) - 1) for name, at, width in fields}
