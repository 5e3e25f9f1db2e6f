"""Flat instructions: each lane's address leads to global memory, LDS or scratch, in one instruction."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from laneloom.emulator.launch import launch
from laneloom.emulator.memory import GlobalMemory, LocalMemory, Region
from laneloom.emulator.operands import PRIVATE_APERTURE, SCRATCH_APERTURE, SHARED_APERTURE
from laneloom.emulator.program import Program
from laneloom.emulator.state import Waves
from laneloom.errors import HazardError, OutOfBoundsError
from laneloom.isa.parse import EXEC

LANES, ROOM = 32, 64
KERNEL = """
k:
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 24
\t\t.amdhsa_wavefront_size32 1
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size 64
\t.end_amdhsa_kernel
"""
LOADS = {
    "u8": (1, "u1"), "i8": (1, "i1"), "u16": (2, "u2"), "i16": (2, "i2"), "b32": (4, "u4"), "b64": (8, "u4"),
    "b96": (12, "u4"), "b128": (16, "u4"),
}  # fmt: skip


class Machine:
    """32 lanes whose addresses lie in all three memories, each lane's in bytes of its own."""

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        self.octets = rng.integers(0, 256, LANES * ROOM, dtype=np.uint8)
        region = Region("x", self.octets.ctypes.data, self.octets.nbytes, self.octets)
        self.lds = LocalMemory(1, LANES * ROOM)
        self.lds.bytes[: LANES * ROOM] = rng.integers(0, 256, LANES * ROOM)
        private = rng.integers(0, 256, (1, LANES, ROOM), dtype=np.uint8)
        V = rng.integers(0, 1 << 32, (40, 1, LANES), dtype=np.uint64).astype(np.uint32)
        S = np.zeros((128, 1), np.uint32)
        S[EXEC] = rng.integers(0, 1 << 32) | 7
        self.g = Waves(
            V, S, np.zeros(1, bool), np.arange(1), np.zeros((1, 1), np.int64), LANES, GlobalMemory([region]), self.lds,
            True, private,
        )  # fmt: skip
        self.space = np.arange(LANES) % 3
        lane = np.arange(LANES).astype(np.uint64)
        place = lane * np.uint64(ROOM)
        where = [
            place + np.uint64(self.octets.ctypes.data),
            place + np.uint64(SHARED_APERTURE << 32),
            np.full(LANES, PRIVATE_APERTURE << 32, np.uint64),
        ]
        address = np.choose(self.space, where)
        V[2, 0], V[3, 0] = address.astype(np.uint32), (address >> np.uint64(32)).astype(np.uint32)
        self.active = (S[EXEC, 0] >> np.arange(LANES) & 1).astype(bool)

    def bytes_of(self, lane: int) -> np.ndarray:
        """The 64 bytes that a lane's address begins."""
        whole = (self.octets, self.lds.bytes)
        if self.space[lane] == 2:
            return self.g.private[0, lane]  # pyright: ignore[reportOptionalSubscript]
        return whole[self.space[lane]][lane * ROOM : (lane + 1) * ROOM]

    def run(self, code: str, gpu: str) -> None:
        program = Program(KERNEL.format(code=f"\t{code}", lds=LANES * ROOM), gpu)
        for step in program.blocks[0].steps:
            step(self.g)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
@pytest.mark.parametrize("kind", LOADS)
def test_loads(kind, gpu):
    nbytes, dtype = LOADS[kind]
    for seed in range(4):
        m = Machine(seed)
        before = m.g.V.copy()
        registers = "v8" if nbytes <= 4 else f"v[8:{7 + nbytes // 4}]"
        m.run(f"flat_load_{kind} {registers}, v[2:3] offset:12", gpu)
        for lane in range(LANES):
            words = m.bytes_of(lane)[12 : 12 + nbytes].view(dtype).astype(f"{dtype[0]}4").view(np.uint32)
            for k, word in enumerate(words):
                assert m.g.V[8 + k, 0, lane] == (word if m.active[lane] else before[8 + k, 0, lane])


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
@pytest.mark.parametrize(("kind", "nbytes"), [("b8", 1), ("b16", 2), ("b32", 4), ("b64", 8), ("b96", 12), ("b128", 16)])
def test_stores(kind, nbytes, gpu):
    for seed in range(4):
        m = Machine(seed)
        before = [m.bytes_of(lane).copy() for lane in range(LANES)]
        registers = "v8" if nbytes <= 4 else f"v[8:{7 + nbytes // 4}]"
        m.run(f"flat_store_{kind} v[2:3], {registers} offset:8", gpu)
        for lane in range(LANES):
            want = before[lane]
            if m.active[lane]:
                want[8 : 8 + nbytes] = np.ascontiguousarray(m.g.V[8:12, 0, lane]).view(np.uint8)[:nbytes]
            np.testing.assert_array_equal(m.bytes_of(lane), want)


ATOMICS = {
    "add_u32": lambda m, d: m + d, "sub_u64": lambda m, d: m - d, "min_i32": np.minimum, "max_u64": np.maximum,
    "xor_b32": lambda m, d: m ^ d, "swap_b64": lambda m, d: d, "add_f32": lambda m, d: m + d,
}  # fmt: skip


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics(name, returns):
    size = int(name[-2:]) // 8
    dtype = np.dtype({"u": "u", "i": "i", "b": "u", "f": "f"}[name[-3]] + str(size))
    for seed in range(3):
        m = Machine(seed)
        if dtype.kind == "f":
            for memory in (m.octets, m.lds.bytes, m.g.private.reshape(-1)):  # pyright: ignore[reportOptionalMemberAccess]
                memory[:] = np.tile(np.float32([1.5, -2]).view(np.uint8), memory.size // 8)
            m.g.V[8:10] = np.float32(0.25).view(np.uint32)
        before = [m.bytes_of(lane).copy() for lane in range(LANES)]
        registers, result = (f"v[8:{7 + size // 4}]", f"v[4:{3 + size // 4}]") if size > 4 else ("v8", "v4")
        old = m.g.V.copy()
        answer, glc = (f"{result}, ", " glc") if returns else ("", "")
        m.run(f"flat_atomic_{name} {answer}v[2:3], {registers}{glc}", "gfx1151")
        for lane in range(LANES):
            data = np.ascontiguousarray(old[8 : 8 + size // 4, 0, lane]).view(dtype)
            held = before[lane][:size].view(dtype).copy()
            if m.active[lane]:
                with np.errstate(all="ignore"):
                    before[lane][:size] = np.asarray(ATOMICS[name](held, data), dtype).view(np.uint8)
            np.testing.assert_array_equal(m.bytes_of(lane), before[lane])
            got = np.ascontiguousarray(m.g.V[4 : 4 + size // 4, 0, lane]).view(np.uint8)
            want = held.view(np.uint8) if m.active[lane] and returns else np.ascontiguousarray(
                old[4 : 4 + size // 4, 0, lane]
            ).view(np.uint8)  # fmt: skip
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("compare", [True, False])
def test_compare_and_swap(compare):
    m = Machine(5)
    for lane in range(LANES):
        m.g.V[9, 0, lane] = m.bytes_of(lane)[:4].view(np.uint32)[0] if compare else 1
    before = [m.bytes_of(lane)[:4].view(np.uint32)[0] for lane in range(LANES)]
    m.run("flat_atomic_cmpswap_b32 v4, v[2:3], v[8:9] glc", "gfx1151")
    for lane in np.flatnonzero(m.active):
        assert m.bytes_of(lane)[:4].view(np.uint32)[0] == (m.g.V[8, 0, lane] if compare else before[lane])
        assert m.g.V[4, 0, lane] == before[lane]


# -- whole programs, as compilers write them ---------------------------------------------------------------------------

# Each lane keeps its number in LDS and in scratch, by pointers made of the apertures, and adds up both.
APERTURES = """
\ts_load_b64 s[2:3], s[0:1], 0x0
\ts_mov_b64 s[4:5], src_shared_base
\ts_mov_b64 s[6:7], src_private_base
\tv_lshlrev_b32_e32 v1, 2, v0
\tv_dual_mov_b32 v3, s5 :: v_dual_mov_b32 v2, v1
\tv_mov_b32_e32 v4, 16
\tv_mov_b32_e32 v5, s7
\tflat_store_b32 v[2:3], v0
\tflat_store_b32 v[4:5], v0
{between}
\tv_xor_b32_e32 v2, 0x80, v2
\tflat_load_b32 v6, v[2:3]
\t{load}
\tflat_load_b32 v7, v[4:5]
\t{wait}
\tv_add_nc_u32_e32 v6, v6, v7
\tglobal_store_b32 v1, v6, s[2:3]
"""
WAITS = {"gfx1151": "s_waitcnt vmcnt(0) lgkmcnt(0)", "gfx1201": "s_wait_loadcnt_dscnt 0x0"}
KERNEL_WAIT = {"gfx1151": "s_waitcnt lgkmcnt(0)", "gfx1201": "s_wait_kmcnt 0x0"}
BARRIER = {"gfx1151": "s_waitcnt_vscnt null, 0x0\n\ts_barrier", "gfx1201": "s_barrier_signal -1\n\ts_barrier_wait -1"}


def run_apertures(gpu: str, strict: bool, change=lambda text: text) -> np.ndarray:
    stores = WAITS[gpu] if gpu == "gfx1151" else "s_wait_storecnt_dscnt 0x0"
    between = f"\t{KERNEL_WAIT[gpu]}\n\t{stores}\n\t{BARRIER[gpu]}"
    text = change(APERTURES.format(between=between, load="s_nop 0", wait=WAITS[gpu]))
    out = np.zeros(64, np.uint32)
    regions = [Region("out", out.ctypes.data, out.nbytes, out)]
    program = Program(KERNEL.format(code=text, lds=256), gpu, strict=strict)
    launch(program, [1], struct.pack("<Q", out.ctypes.data), workgroup_size=64, regions=regions)
    return out


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
def test_apertures(gpu, strict):
    lane = np.arange(64)
    np.testing.assert_array_equal(run_apertures(gpu, strict), (lane ^ 32) + lane)


@pytest.mark.parametrize("gpu", ["gfx942", "gfx1151", "gfx1201", "gfx1250"])
@pytest.mark.parametrize("space", ["shared", "private"])
def test_the_lower_half_of_an_aperture(execute, gpu, space):
    """What a source of 32 bits gets of it."""
    code = f"s_mov_b32 s0, src_{space}_base\nv_mov_b32 v0, src_{space}_limit\ns_add_u32 s1, src_{space}_limit, 3"
    got = execute(code, gpu=gpu, lanes=64 if gpu == "gfx942" else 32)
    assert (got.scalar(0)[0], got.vector(0, np.uint32)[0], got.scalar(1)[0]) == (0, 0xFFFFFFFF, 2)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("s_barrier\n", "s_nop 0\n", "race"),
        ("s_waitcnt vmcnt(0) lgkmcnt(0)\n\tv_add", "s_waitcnt vmcnt(0)\n\tv_add", "wait"),
        ("v_xor_b32_e32 v2, 0x80, v2", "v_xor_b32_e32 v2, 0x80, v8", "undefined"),
        ("flat_store_b32 v[4:5], v0", "flat_store_b16 v[4:5], v0", "undefined"),
        ("flat_store_b32 v[2:3], v0", "flat_store_b32 v[2:3], v9", "undefined"),
    ],
)
def test_strict_mode_follows_flat_accesses(old, new, kind):
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    with pytest.raises(HazardError) as caught:
        run_apertures("gfx1151", True, change)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("v_mov_b32_e32 v4, 16", "v_mov_b32_e32 v4, 61", "4-byte scratch access at byte 61, outside the 64 bytes"),
        ("v_dual_mov_b32 v2, v1", "v_dual_mov_b32 v2, 0x100", "4-byte LDS access at byte 256"),
    ],
)
def test_out_of_bounds(old, new, message):
    with pytest.raises(OutOfBoundsError, match=message):
        run_apertures("gfx1151", False, lambda text: text.replace(old, new))


# On CDNA 5 an address of scratch says of which lane: each lane reads its neighbour's, and all add to that of lane 3.
OF_LANES = """
\ts_load_b64 s[2:3], s[0:1], 0x0
\tv_mbcnt_lo_u32_b32 v1, -1, 0
\tv_mov_b32_e32 v2, 16
\tv_lshlrev_b32_e32 v3, 20, v1
\tv_add_nc_u64_e32 v[2:3], src_flat_scratch_base_lo, v[2:3]
\tflat_store_b32 v[2:3], v0
\ts_wait_storecnt_dscnt 0x0
\tv_xor_b32_e32 v5, 0x100000, v3
\tv_mov_b32_e32 v4, v2
\tflat_load_b32 v6, v[4:5]
\ts_wait_loadcnt_dscnt 0x0
\tv_mov_b32_e32 v7, src_flat_scratch_base_hi
\tv_xor_b32_e32 v8, src_flat_scratch_base_hi, v3
\tv_add_nc_u32_e32 v5, 0x300000, v7
\tflat_atomic_add_u32 v9, v[4:5], v0 th:TH_ATOMIC_RETURN
\ts_wait_loadcnt_dscnt 0x0
\tscratch_load_b32 v9, off, off offset:16
\tv_lshlrev_b32_e32 v1, 2, v0
\ts_wait_kmcnt 0x0
\ts_wait_loadcnt 0x0
\tglobal_store_b32 v1, v6, s[2:3]
\tglobal_store_b32 v1, v8, s[2:3] offset:256
\tglobal_store_b32 v1, v9, s[2:3] offset:512
"""


@pytest.mark.parametrize("strict", [False, True])
def test_scratch_of_other_lanes(strict):
    out = np.zeros((3, 64), np.uint32)
    text = KERNEL.format(code=OF_LANES, lds=0)
    regions = [Region("out", out.ctypes.data, out.nbytes, out)]
    program = Program(text, "gfx1250", strict=strict)
    launch(program, [1], struct.pack("<Q", out.ctypes.data), workgroup_size=64, regions=regions)
    lane = np.arange(64)
    np.testing.assert_array_equal(out[0], lane ^ 1)
    np.testing.assert_array_equal(out[1], lane % 32 << 20)  # below 1 << 26: an address of scratch, as no other is
    assert all(other ^ SCRATCH_APERTURE >= 1 << 26 for other in (SHARED_APERTURE, PRIVATE_APERTURE, 0x7FFF))
    want = lane.copy()
    for first in (0, 32):
        want[first + 3] += lane[first : first + 32].sum()
    np.testing.assert_array_equal(out[2], want)
