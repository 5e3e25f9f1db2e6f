"""Every load, store and atomic instruction of each GPU, against what its name says, byte by byte."""

from __future__ import annotations

import re
import struct
from collections import Counter
from fractions import Fraction
from operator import itemgetter

import numpy as np
import pytest
from sampled import in_turn

from laneloom.cli.coverage import instructions_of
from laneloom.emulator.cdna import modern
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import AccessFault, GlobalMemory, Region
from laneloom.emulator.program import Program
from laneloom.errors import HazardError, OutOfBoundsError
from laneloom.gpu import get_gpu

KERNEL = """
k:
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 32
\t\t.amdhsa_next_free_sgpr 48
\t\t.amdhsa_group_segment_fixed_size 8192
\t\t.amdhsa_private_segment_fixed_size 64
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_wavefront_size32 1
\t\t.amdhsa_float_denorm_mode_32 3
\t\t.amdhsa_float_denorm_mode_16_64 3
\t.end_amdhsa_kernel
"""
# Three arrays of 16 bytes a lane follow each other: memory's image, the registers at first, the registers after.
START = """
s_load_b64 s[2:3], s[0:1], 0x0
{waits}
s_mov_b32 s4, s2
s_mov_b32 s5, s3
s_movk_i32 s6, {records}
s_mov_b32 s7, {flags}
v_lshlrev_b32 v1, 4, v0
v_mov_b32 v3, s3
v_add_co_u32 v2, vcc_lo, s2, v1
v_add_co_ci_u32 v3, vcc_lo, 0, v3, vcc_lo
global_load_b128 v[4:7], v1, s[2:3]
global_load_b128 v[8:11], v1, s[2:3] offset:512
{waits}
"""
END = """
{waits}
global_store_b128 v1, v[8:11], s[2:3] offset:1024
"""
# Of a buffer's resource: CDNA 5 has bits 44:7 of the bytes, and the stride where others have the format.
RESOURCE, WIDE_RESOURCE = {"records": 0x200, "flags": 0x31014000}, {"records": 0x200 >> 7, "flags": 0}
# How each space is addressed at the lane's 16 bytes, and how its image is put there and fetched.
SPACES = {
    "global": ("v1, {data}s[2:3]", "", ""),
    "flat": ("v[2:3]{data}", "", ""),
    "buffer": ("v1, s[4:7], {soffset} offen", "", ""),
    "scratch": ("off, {data}off", "scratch_store_b128 off, v[4:7], off", "scratch_load_b128 v[4:7], off, off"),
    "ds": ("v1{data}", "ds_store_b128 v1, v[4:7]", "ds_load_b128 v[4:7], v1"),
}
WAITS = {
    9: "s_waitcnt vmcnt(0) lgkmcnt(0)",
    11: "s_waitcnt vmcnt(0) lgkmcnt(0)\ns_waitcnt_vscnt null, 0x0",
    12: "s_wait_loadcnt 0x0\ns_wait_storecnt 0x0\ns_wait_dscnt 0x0\ns_wait_kmcnt 0x0",
}
GPUS = ("gfx1151", "gfx1201", "gfx90a", "gfx942", "gfx1250")
CASES = [(gpu, name) for gpu in GPUS for name in instructions_of(get_gpu(gpu))]
PLAIN = re.compile(
    r"(global|flat|scratch|buffer|ds)_(load|store)_(?:(d16_hi|d16)_)?([uib])(8|16|32|64|96|128)(?:_(d16_hi|d16))?$"
)
PAIR = re.compile(r"ds_(load|store)_2addr_(stride64_)?b(32|64)$")
SCALAR = re.compile(r"s_(buffer_)?load_([uib])(\d+)$")
ATOMIC = re.compile(r"(global|flat|buffer)_atomic_(?:pk_add_(b?f16)|(\w+)_([uibf])(32|64))$")
LDS_ATOMIC = re.compile(
    r"ds_(?!load|store_|b?permute|swizzle|condxchg|storexchg_2|atomic_)"
    r"(?:pk_add(_rtn)?_(b?f16)|(\w+?)(_rtn)?_([uibf])(32|64))$"
)


def cases(pattern: re.Pattern) -> list:
    return [(gpu, name) for gpu, name in CASES if pattern.match(modern(name))]


def run(gpu: str, body: str, image: np.ndarray, registers: np.ndarray, strict=False):
    """image, registers: [lane, 16] bytes at first; both after."""
    memory = np.zeros(4096, np.uint8)
    memory[:512], memory[512:1024] = image.reshape(-1), registers.reshape(-1)
    resource = WIDE_RESOURCE if get_gpu(gpu).is_cdna5 else RESOURCE
    code = (START + body + END).format(waits=WAITS[get_gpu(gpu).major], **resource)
    lines = "\n".join("\t" + line for line in code.strip().splitlines() if line)
    address = memory.ctypes.data
    launch(
        Program(KERNEL.format(code=lines), gpu, strict=strict), [1], address.to_bytes(8, "little"), workgroup_size=32,
        regions=[Region("x", address, memory.nbytes, memory)],
    )  # fmt: skip
    return memory[:512].reshape(32, 16), memory[1024:1536].reshape(32, 16)


def in_space(space: str, instruction: str) -> str:
    """The instruction between putting the image into its space and bringing it back."""
    _, put, get = SPACES[space]
    back = "global_store_b128 v1, v[4:7], s[2:3]" if get else ""
    return "\n".join([put, "{waits}", instruction, "{waits}", get, "{waits}", back])


def operands(space: str, data: str, major: int, load: bool) -> str:
    """Data first in loads and in all buffer instructions, between or behind the addresses in other stores."""
    where = SPACES[space][0]
    if load or space == "buffer":
        return f"{data}, " + where.format(data="", soffset="0" if major < 12 else "null")
    return where.format(data=f"{data}, " if space in ("global", "scratch") else f", {data}", soffset="")


def random_bytes(seed: int) -> tuple[np.ndarray, np.ndarray]:
    image, registers = np.random.default_rng(seed).integers(0, 256, (2, 32, 16), np.uint8)
    return image, registers


@pytest.mark.parametrize(("gpu", "name"), cases(PLAIN))
def test_load_or_store(gpu, name):
    match = PLAIN.match(modern(name))
    assert match
    space, way, before, letter, bits, behind = match.groups()
    half, nbytes = before or behind, int(bits) // 8
    image, registers = random_bytes(len(name))
    words = max(nbytes // 4, 1)
    data = "v8" if words == 1 else f"v[8:{7 + words}]"
    major = get_gpu(gpu).major
    text = f"{name} {operands(space, data, major, way == 'load')}"
    got_image, got_registers = run(gpu, in_space(space, text), image, registers)
    want_image, want_registers = image.copy(), registers.copy()
    for lane in range(32):
        if way == "store":
            first = 2 if half == "d16_hi" else 0
            want_image[lane, :nbytes] = registers[lane, first : first + nbytes]
            continue
        raw = image[lane, :nbytes].tobytes()
        value = int.from_bytes(raw, "little", signed=letter == "i")
        if half:
            place = 2 if half == "d16_hi" else 0
            if major == 9:  # ECC: the other half is cleared
                want_registers[lane, :4] = 0
            want_registers[lane, place : place + 2] = list((value & 0xFFFF).to_bytes(2, "little"))
        else:
            size = max(nbytes, 4)
            want_registers[lane, :size] = list((value & (1 << 8 * size) - 1).to_bytes(size, "little"))
    np.testing.assert_array_equal(got_image, want_image)
    np.testing.assert_array_equal(got_registers, want_registers)


@pytest.mark.parametrize(("gpu", "name"), cases(PAIR))
def test_two_addresses(gpu, name):
    """Lane l's first item lies at l * size, its second behind all first ones."""
    match = PAIR.match(modern(name))
    assert match
    way, far, bits = match.groups()
    size = int(bits) // 8
    step = 1 if far else 32
    second = step * size * (64 if far else 1)
    pair = (lambda n: f"v[{n}:{n + 1}]") if size == 8 else (lambda n: f"v{n}")
    image, registers = random_bytes(1)
    want_image, want_registers = image.copy(), registers.copy()
    if way == "load":
        body = (
            f"ds_store_b{bits} v12, {pair(4)}\nds_store_b{bits} v12, {pair(6)} offset:{second}\n{{waits}}\n"
            f"{name} v[8:{7 + size // 2}], v12 offset1:{step}"
        )
        want_registers[:, :size], want_registers[:, size : 2 * size] = image[:, :size], image[:, 8 : 8 + size]
    else:
        body = (
            f"{name} v12, {pair(8)}, {pair(10)} offset1:{step}\n{{waits}}\n"
            f"ds_load_b{bits} {pair(4)}, v12\nds_load_b{bits} {pair(6)}, v12 offset:{second}\n{{waits}}\n"
            "global_store_b128 v1, v[4:7], s[2:3]"
        )
        want_image[:, :size], want_image[:, 8 : 8 + size] = registers[:, :size], registers[:, 8 : 8 + size]
    shift = size.bit_length() - 1
    got_image, got_registers = run(gpu, f"v_lshlrev_b32 v12, {shift}, v0\n{body}", image, registers)
    np.testing.assert_array_equal(got_image, want_image)
    np.testing.assert_array_equal(got_registers, want_registers)


@pytest.mark.parametrize(("gpu", "name"), cases(SCALAR))
def test_scalar_load(gpu, name):
    match = SCALAR.match(modern(name))
    assert match
    buffer, letter, bits = match.groups()
    words, nbytes = max(int(bits) // 32, 1), int(bits) // 8
    image, registers = random_bytes(2)
    destination = "s16" if words == 1 else f"s[16:{15 + words}]"
    moves = "\n".join(f"v_mov_b32 v{8 + k}, s{16 + k}" for k in range(min(words, 4)))
    body = f"{name} {destination}, {'s[4:7]' if buffer else 's[2:3]'}, 0x24\n{{waits}}\n{moves}"
    last = f"\nv_mov_b32 v11, s{15 + words}" if words > 4 else ""  # and the last word of a long one
    _, got = run(gpu, body + last, image, registers)
    raw = image.reshape(-1)[0x24 : 0x24 + nbytes].tobytes()
    size = max(nbytes, 4)
    want = int.from_bytes(raw, "little", signed=letter == "i") & (1 << 8 * size) - 1
    octets = list(want.to_bytes(size, "little"))
    if words > 4:
        octets = octets[:12] + octets[-4:]
    assert got[0, : len(octets)].tolist() == octets


def combine(op: str, letter: str, bits: int, memory: bytes, data: bytes, compare: bytes) -> bytes:
    """The bytes that one lane's atomic leaves, from the ISA guides' pseudocode."""
    if letter == "f":
        form = {32: "<f", 64: "<d"}[bits]
        m, d, c = (struct.unpack(form, raw)[0] for raw in (memory, data, compare))
        if op == "add":
            return struct.pack(form, np.float32(m) + np.float32(d) if bits == 32 else m + d)
        if op in ("cmpswap", "cmpstore"):
            return data if m == c else memory
        return memory if (m < d) == op.startswith("min") else data
    m, d, c = (int.from_bytes(raw, "little", signed=letter == "i") for raw in (memory, data, compare))
    results = {
        "add": m + d, "sub": m - d, "rsub": d - m, "and": m & d, "or": m | d, "xor": m ^ d,
        "min": min(m, d), "max": max(m, d), "inc": 0 if m >= d else m + 1, "dec": d if m == 0 or m > d else m - 1,
        "csub": max(m - d, 0), "sub_clamp": max(m - d, 0), "cond_sub": m - d if m >= d else m,
        "mskor": m & ~d | c, "wrap": m - d if m >= d else m + c,
        "swap": d, "storexchg": d, "cmpswap": d if m == c else m, "cmpstore": d if m == c else m,
    }  # fmt: skip
    return (results[op] & (1 << bits) - 1).to_bytes(bits // 8, "little")


def packed_add(kind: str, memory: bytes, data: bytes, exact) -> bytes:
    """Two 16-bit sums, each rounded once."""
    out = b""
    for k in (0, 2):
        m, d = (exact.decode(int.from_bytes(raw[k : k + 2], "little"), kind) for raw in (memory, data))
        out += exact.encode(Fraction(m) + Fraction(d), kind).to_bytes(2, "little")
    return out


def atomic_bytes(letter: str, bits: int, packed: str | None, exact) -> tuple[np.ndarray, np.ndarray]:
    """Image and registers: ordinary numbers, some lanes with equal or zero operands."""
    rng = np.random.default_rng(bits)
    if packed:
        parts = {"f16": np.float16, "bf16": np.float32}[packed]
        both = rng.standard_normal((2, 32, 8)).astype(parts)
        raw = both.view(np.uint16) if packed == "f16" else (both.view(np.uint32) >> 16).astype(np.uint16)
        image, registers = np.ascontiguousarray(raw).view(np.uint8)
    elif letter == "f":
        image, registers = rng.standard_normal((2, 32, 128 // bits)).astype(f"f{bits // 8}").view(np.uint8)
    else:
        image, registers = rng.integers(0, 256, (2, 32, 16), np.uint8)
        image[:4] = 0
        registers[4:8] = 0
    size = bits // 8
    image[8:16, :size] = registers[8:16, size : 2 * size]  # compares that hit
    return image.copy(), registers.copy()


ATOMICS = sorted(cases(ATOMIC), key=itemgetter(1))
GPUS_OF = Counter(name for _, name in ATOMICS)


@pytest.mark.parametrize(
    ("gpu", "name", "returns"),
    [(gpu, name, returns) for n, (gpu, name) in enumerate(ATOMICS)
     for returns in (in_turn(n, False, True) if GPUS_OF[name] > 1 else (False, True))],
)  # fmt: skip
def test_global_atomic(gpu, name, returns, exact):
    match = ATOMIC.match(modern(name))
    assert match
    space, packed, op, letter, bits = match.groups()
    bits = int(bits or 32)
    major, size = get_gpu(gpu).major, bits // 8
    count = size // 4 * (2 if op == "cmpswap" else 1)
    data = "v8" if count == 1 else f"v[8:{7 + count}]"
    got = "v14" if size == 4 else "v[14:15]"
    mark = {9: "sc0", 11: "glc", 12: "th:TH_ATOMIC_RETURN"}[major] if returns else ""
    text = {
        "global": f"v1, {data}, s[2:3]", "flat": f"v[2:3], {data}",
        "buffer": f"{data}, v1, s[4:7], {'0' if major < 12 else 'null'} offen",
    }[space]  # fmt: skip
    if returns and space != "buffer":
        text = f"{got}, {text}"
    moved = "" if not returns or space == "buffer" else "".join(
        f"\nv_mov_b32 v{8 + k}, v{14 + k}" for k in range(size // 4)
    )  # fmt: skip
    image, registers = atomic_bytes(letter, bits, packed, exact)
    _check_atomic(
        gpu, f"{name} {text} {mark}\n{{waits}}{moved}", image, registers, packed, op, letter, size, returns, exact
    )


@pytest.mark.parametrize(("gpu", "name"), cases(LDS_ATOMIC))
def test_lds_atomic(gpu, name, exact):
    match = LDS_ATOMIC.match(modern(name))
    assert match
    packed_returns, packed, op, other_returns, letter, bits = match.groups()
    bits, returns = int(bits or 32), bool(packed_returns or other_returns)
    size = bits // 8
    pair = (lambda n: f"v[{n}:{n + 1}]") if size == 8 else (lambda n: f"v{n}")
    both = [pair(8), pair(8 + size // 4)] if op in ("cmpstore", "mskor", "wrap") else [pair(8)]
    if gpu.startswith("gfx9") and op == "cmpstore":  # gfx9 has the value to compare with first
        both.reverse()
    data = ", ".join(both)
    head = f"{pair(14)}, v1" if returns else "v1"
    moved = "".join(f"\nv_mov_b32 v{8 + k}, v{14 + k}" for k in range(size // 4)) if returns else ""
    image, registers = atomic_bytes(letter, bits, packed, exact)
    body = in_space("ds", f"{name} {head}, {data}{moved}")
    _check_atomic(gpu, body, image, registers, packed, op, letter, size, returns, exact)


def _check_atomic(gpu, body, image, registers, packed, op, letter, size, returns, exact) -> None:
    got_image, got_registers = run(gpu, body, image, registers)
    want_image, want_registers = image.copy(), registers.copy()
    for lane in range(32):
        before, data, compare = (
            raw.tobytes() for raw in (image[lane, :size], registers[lane, :size], registers[lane, size : 2 * size])
        )
        if packed:
            after = packed_add(packed, before, data, exact)
        else:
            after = combine(op, letter, 8 * size, before, data, compare)
        want_image[lane, :size] = list(after)
        if returns:
            want_registers[lane, :size] = image[lane, :size]
    np.testing.assert_array_equal(got_image, want_image)
    np.testing.assert_array_equal(got_registers, want_registers)


@pytest.mark.parametrize("space", ["global", "ds"])
def test_lanes_that_meet_take_effect_one_after_another(space):
    image, registers = np.zeros((2, 32, 16), np.uint8)
    add = {"global": "global_atomic_add_u32 v14, v13, v12, s[2:3] glc", "ds": "ds_add_rtn_u32 v14, v13, v12"}[space]
    put = "ds_store_b32 v13, v13\n{waits}\n" if space == "ds" else ""
    get = "\nds_load_b32 v4, v13\n{waits}\nglobal_store_b32 v13, v4, s[2:3]" if space == "ds" else ""
    body = f"v_mov_b32 v12, 1\nv_mov_b32 v13, 0\n{put}{add}\n{{waits}}\nv_mov_b32 v8, v14{get}"
    after, found = run("gfx1151", body, image, registers)
    assert after.view(np.uint32)[0, 0] == 32
    assert sorted(found.view(np.uint32)[:, 0]) == list(range(32))


WIDE = """
k:
\ts_load_b128 s[4:7], s[0:1], 0x0
\ts_waitcnt lgkmcnt(0)
\ts_load_b128 s[8:11], s[4:5], {offset}
\ts_waitcnt lgkmcnt(0)
\ts_add_u32 s8, s8, s{last}
\tv_mov_b32 v0, s8
\tv_mov_b32 v1, 0
\tglobal_store_b32 v1, v0, s[6:7]
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 8
\t\t.amdhsa_next_free_sgpr 16
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_kernarg_size 16
\t\t.amdhsa_wavefront_size32 1
\t.end_amdhsa_kernel
"""


@pytest.mark.parametrize("strict", [False, True])
def test_a_load_of_four_words_of_which_three_are_there(strict):
    def run(offset, last, words):
        room, out = np.arange(16, dtype=np.uint32), np.zeros(1, np.uint32)
        start = -room.ctypes.data // 4 % 2  # a multiple of 8 bytes
        source = room[start : start + words]
        regions = [Region("source", source.ctypes.data, source.nbytes, room), Region("out", out.ctypes.data, 4, out)]
        code = Program(WIDE.format(offset=offset, last=last), "gfx1151", strict=strict)
        arguments = struct.pack("<QQ", source.ctypes.data, out.ctypes.data)
        launch(code, [1], arguments, workgroup_size=1, regions=regions)
        return int(out[0]), start

    got, start = run(0, 10, 3)
    assert got == 2 * start + 2
    got, start = run(8, 10, 5)
    assert got == 2 * start + 2 + 4
    for offset, words in ((0, 2), (4, 4)):  # two words are no reason for four; an address that 8 does not divide
        with pytest.raises(OutOfBoundsError, match="16-byte access"):
            run(offset, 10, words)
    if strict:
        with pytest.raises(HazardError, match="nobody wrote"):
            run(0, 11, 3)


def test_the_lane_that_leaves_its_memory_is_named_not_one_that_is_held_back():
    memory = np.zeros(64, np.uint8)
    region = Region("x", memory.ctypes.data, memory.nbytes, memory)
    address = np.full((1, 32), memory.ctypes.data, np.int64)
    address[0, 3:5] = 7
    active = np.zeros((1, 32), bool)
    active[0, 3:] = True
    with pytest.raises(AccessFault) as caught:
        GlobalMemory([region]).check(address, 4, active)
    assert (caught.value.wave, caught.value.lane) == (0, 3)
