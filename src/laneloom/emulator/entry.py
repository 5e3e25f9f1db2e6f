"""Where a kernel's code starts, and what its registers hold then.

Source: LLVM AMDGPUUsage, "Initial Kernel Execution State" and "Preloaded Kernel Arguments".
"""

from __future__ import annotations

import numpy as np

from ..gpu import Gpu
from ..isa.parse import EXEC, NULL, TTMP, Listing
from .buffer_access import scratch_resource
from .not_given import NotGiven

#: user SGPRs and how many words each takes, in order; the words of the argument block that are preloaded come behind
_USER_SGPRS = {
    "private_segment_buffer": 4, "dispatch_ptr": 2, "queue_ptr": 2, "kernarg_segment_ptr": 2, "dispatch_id": 2,
    "flat_scratch_init": 2, "private_segment_size": 1,
}  # fmt: skip
#: in the order in which a kernel up to gfx11 gets them behind its user SGPRs
SYSTEM_SGPRS = (
    *(f"workgroup_id_{axis}" for axis in "xyz"), "workgroup_info", "private_segment_wavefront_offset",
)  # fmt: skip
_HEADER_BYTES = 256  #: of code for firmware that preloads nothing; other firmware starts behind it


def first_instruction(listing: Listing, gpu: Gpu) -> int:
    """The index of the instruction that a kernel starts with.

    Kernels of CDNA 2 to 4 whose arguments are preloaded begin with code for firmware that does not: a trap, or loads of
    the same registers, which do no harm.
    """
    code = listing.instructions
    if gpu.major != 9 or not listing.directive("user_sgpr_kernarg_preload_length") or not code:
        return 0
    if code[0].address >= 0:
        behind = code[0].address + _HEADER_BYTES
        return next((k for k, ins in enumerate(code) if ins.address == behind), 0)
    return int(code[0].name == "s_trap")  # a text has `.fill` behind it


def _enabled(listing: Listing) -> list[str]:
    return [n for n in _USER_SGPRS if listing.directive(f"user_sgpr_{n}", int(n == "kernarg_segment_ptr"))]


def user_sgpr_count(listing: Listing) -> int:
    """How many user SGPRs there are: as many as what is asked for takes, where the descriptor does not say."""
    preloaded = listing.directive("user_sgpr_kernarg_preload_length")
    return listing.directive("user_sgpr_count", sum(_USER_SGPRS[name] for name in _enabled(listing)) + preloaded)


def user_sgprs(S: np.ndarray, listing: Listing, kernarg: np.ndarray, packet: int, scratch: int) -> None:
    """Fill the user SGPRs; kernarg: the bytes of the argument block."""
    resource = sum(word << 32 * k for k, word in enumerate(scratch_resource(scratch)))
    values = {
        "private_segment_buffer": resource, "dispatch_ptr": packet, "kernarg_segment_ptr": kernarg.ctypes.data,
        "flat_scratch_init": resource & 0xFFFFFFFFFFFF, "private_segment_size": scratch,
    }  # fmt: skip
    at = 0
    for name in _enabled(listing):
        for k in range(_USER_SGPRS[name]):
            S[at] = values.get(name, 0) >> (32 * k) & 0xFFFFFFFF
            at += 1
    first = listing.directive("user_sgpr_kernarg_preload_offset")
    words = kernarg.view(np.uint32)[first : first + listing.directive("user_sgpr_kernarg_preload_length")]
    S[at : at + len(words)] = words[:, None]


def lane_numbers(listing: Listing, gpu: Gpu) -> int:
    """In how many registers, from v0 on, a lane's x, y and z come; 0: packed into v0, as since gfx90a."""
    return 1 + listing.directive("system_vgpr_workitem_id", 0) if gpu.is_cdna_1 else 0


def number_lanes(V: np.ndarray, thread: np.ndarray, size: tuple[int, int, int], listing: Listing, gpu: Gpu) -> None:
    """Tell each lane its x, y and z; thread: [wave, lane] its number in the workgroup."""
    tx, ty, tz = thread % size[0], thread // size[0] % size[1], thread // (size[0] * size[1])
    numbers = lane_numbers(listing, gpu)
    if numbers == 0:
        V[0] = tx | ty << 10 | tz << 20
    for k, number in enumerate((tx, ty, tz)[:numbers]):
        V[k] = number


def defined_at_entry(listing: Listing, gpu: Gpu, not_given: NotGiven) -> int:
    """The scalar registers that hold something when a kernel starts, as a bit mask.

    not_given: what the launch leaves out of the argument block, which some of them are loaded from.
    """
    count = user_sgpr_count(listing)
    mask = (1 << count) - 1
    first = sum(_USER_SGPRS[name] for name in _enabled(listing))
    preloaded = 4 * np.arange(listing.directive("user_sgpr_kernarg_preload_length"))
    preloaded += not_given.base + 4 * listing.directive("user_sgpr_kernarg_preload_offset")
    for k in np.flatnonzero(not_given.lacks(preloaded, 4).all(axis=1)):
        mask &= ~(1 << first + int(k))
    if gpu.major == 12:
        mask |= int(gpu.is_cdna5) << TTMP + 6 | 1 << TTMP + 7 | 1 << TTMP + 8 | 1 << TTMP + 9
    else:
        for field in SYSTEM_SGPRS:
            if listing.directive(f"system_sgpr_{field}", int(field == "workgroup_id_x")):
                mask |= 1 << count
                count += 1
    return mask | 3 << EXEC | 1 << NULL
