"""clang's builtins for AMD's GPUs, and atomics in every memory, against the same in Python."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
from compiled_here import GPUS, compiled, need_clang, run_code_object

WORD = 0xFFFFFFFF
HEAD = """
typedef unsigned u32; typedef int i32; typedef unsigned long long u64;
#define W {lanes}
#define GLOBAL __attribute__((address_space(1)))
typedef const GLOBAL u32* Words;
__attribute__((amdgpu_kernel)) void k(GLOBAL u32* out, Words pa, Words pb, Words pc) {{
  i32 i = __builtin_amdgcn_workitem_id_x();
  u32 a = pa[i], b = pb[i], c = pc[i];
  out[i] = {expression};
}}
"""


@pytest.fixture(autouse=True)
def _clang():
    need_clang()


def u8(x: int) -> list[int]:
    return [x >> 8 * k & 255 for k in range(4)]


def i8(x: int) -> list[int]:
    return [(v ^ 128) - 128 for v in u8(x)]


def u4(x: int) -> list[int]:
    return [x >> 4 * k & 15 for k in range(8)]


def i32(x: int) -> int:
    return ((x & WORD) ^ 1 << 31) - (1 << 31)


def dot(x, y) -> int:
    return sum(p * q for p, q in zip(x, y, strict=True))


def perm(a: int, b: int, c: int) -> int:
    places = u8(b) + u8(a)
    signs = [255 * (places[k] >> 7) for k in (1, 3, 5, 7)]
    chosen = [places[s] if s < 8 else signs[s - 8] if s < 12 else 255 * (s > 12) for s in u8(c)]
    return sum(octet << 8 * k for k, octet in enumerate(chosen))


def lerp(a: int, b: int, c: int) -> int:
    return sum((x + y + (z & 1) >> 1) << 8 * k for k, (x, y, z) in enumerate(zip(u8(a), u8(b), u8(c), strict=True)))


def sbfe(a: int, offset: int, width: int) -> int:
    if not width:
        return 0
    return i32(a << 32 - width - offset) >> 32 - width if offset + width < 32 else i32(a) >> offset


def limit(x: int, low: int, high: int) -> int:
    return max(low, min(high, x))


_DPP = "(u32)__builtin_amdgcn_update_dpp((i32)b, a, {}, {}, {}, {})"
_REVERSED = 0x89ABCDEF01234567
_ROWS = "0x01234567, 0x89abcdef, 0, 0)"

# name -> expression, and what lane i gets: of a, b, c (functions of the lane), the lane and the wave's size
BUILTINS = {
    "perm": ("__builtin_amdgcn_perm(a, b, c)", lambda a, b, c, i, w: perm(a(i), b(i), c(i))),
    "alignbit": ("__builtin_amdgcn_alignbit(a, b, c)", lambda a, b, c, i, w: (a(i) << 32 | b(i)) >> (c(i) & 31)),
    "alignbyte": ("__builtin_amdgcn_alignbyte(a, b, c)", lambda a, b, c, i, w: (a(i) << 32 | b(i)) >> 8 * (c(i) & 3)),
    "sad_u8": (
        "__builtin_amdgcn_sad_u8(a, b, c)",
        lambda a, b, c, i, w: sum(abs(x - y) for x, y in zip(u8(a(i)), u8(b(i)), strict=True)) + c(i),
    ),
    "sad_hi_u8": (
        "__builtin_amdgcn_sad_hi_u8(a, b, c)",
        lambda a, b, c, i, w: (sum(abs(x - y) for x, y in zip(u8(a(i)), u8(b(i)), strict=True)) << 16) + c(i),
    ),
    "sad_u16": (
        "__builtin_amdgcn_sad_u16(a, b, c)",
        lambda a, b, c, i, w: abs((a(i) & 65535) - (b(i) & 65535)) + abs((a(i) >> 16) - (b(i) >> 16)) + c(i),
    ),
    "msad_u8": (
        "__builtin_amdgcn_msad_u8(a, b, c)",
        lambda a, b, c, i, w: sum(abs(x - y) for x, y in zip(u8(a(i)), u8(b(i)), strict=True) if y) + c(i),
    ),
    "lerp": ("__builtin_amdgcn_lerp(a, b, c)", lambda a, b, c, i, w: lerp(a(i), b(i), c(i))),
    "ubfe": (
        "__builtin_amdgcn_ubfe(a, b & 31, c & 31)",
        lambda a, b, c, i, w: a(i) >> (b(i) & 31) & (1 << (c(i) & 31)) - 1,
    ),
    "sbfe": (
        "(u32)__builtin_amdgcn_sbfe((i32)a, b & 31, c & 31)",
        lambda a, b, c, i, w: sbfe(a(i), b(i) & 31, c(i) & 31),
    ),
    "udot4": ("__builtin_amdgcn_udot4(a, b, c, 0)", lambda a, b, c, i, w: dot(u8(a(i)), u8(b(i))) + c(i)),
    "udot4 clamp": (
        "__builtin_amdgcn_udot4(a, b, c, 1)",
        lambda a, b, c, i, w: min(dot(u8(a(i)), u8(b(i))) + c(i), WORD),
    ),
    "sudot4": (
        "(u32)__builtin_amdgcn_sudot4(1, a, 1, b, c, 0)",
        lambda a, b, c, i, w: dot(i8(a(i)), i8(b(i))) + c(i),
    ),
    "sudot4 mixed, clamp": (
        "(u32)__builtin_amdgcn_sudot4(0, a, 1, b, c, 1)",
        lambda a, b, c, i, w: limit(dot(u8(a(i)), i8(b(i))) + i32(c(i)), -(1 << 31), (1 << 31) - 1),
    ),
    "udot8": ("__builtin_amdgcn_udot8(a, b, c, 0)", lambda a, b, c, i, w: dot(u4(a(i)), u4(b(i))) + c(i)),
    "sudot8": (
        "(u32)__builtin_amdgcn_sudot8(1, a, 0, b, c, 0)",
        lambda a, b, c, i, w: dot([(x ^ 8) - 8 for x in u4(a(i))], u4(b(i))) + c(i),
    ),
    "mbcnt": (
        "__builtin_amdgcn_mbcnt_hi(WORD_MASK, __builtin_amdgcn_mbcnt_lo(WORD_MASK, c))".replace("WORD_MASK", "~0u"),
        lambda a, b, c, i, w: i % w + c(i),
    ),
    "readlane": ("(u32)__builtin_amdgcn_readlane(a, 5)", lambda a, b, c, i, w: a(i // w * w + 5)),
    "readfirstlane": ("(u32)__builtin_amdgcn_readfirstlane(a)", lambda a, b, c, i, w: a(i // w * w)),
    "readfirstlane in a branch": (
        "({ u32 r = c; if (i % 5 == 3) r = (u32)__builtin_amdgcn_readfirstlane(b); r; })",
        lambda a, b, c, i, w: b(next(j for j in range(i // w * w, 64) if j % 5 == 3)) if i % 5 == 3 else c(i),
    ),
    "ds_bpermute": (
        "(u32)__builtin_amdgcn_ds_bpermute((i32)(b & 0xfc), a)",
        lambda a, b, c, i, w: a(i // w * w + (b(i) >> 2 & 63) % w),
    ),
    "ds_permute": (
        "(u32)__builtin_amdgcn_ds_permute((i32)((i * 7 + 3 & W - 1) * 4), a)",
        lambda a, b, c, i, w: a(i // w * w + next(j for j in range(w) if (j * 7 + 3) % w == i % w)),
    ),
    "ds_swizzle": ("(u32)__builtin_amdgcn_ds_swizzle(a, 0x041f)", lambda a, b, c, i, w: a(i ^ 1)),
    "ds_swizzle quad": ("(u32)__builtin_amdgcn_ds_swizzle(a, 0x801b)", lambda a, b, c, i, w: a(i ^ 3)),
    "dpp quad_perm": (_DPP.format(0x1B, 15, 15, 1), lambda a, b, c, i, w: a(i ^ 3)),
    "dpp row_shr": (_DPP.format(0x111, 15, 15, 0), lambda a, b, c, i, w: a(i - 1) if i % 16 else b(i)),
    "dpp row_shl, bound_ctrl": (_DPP.format(0x103, 15, 15, 1), lambda a, b, c, i, w: a(i + 3) if i % 16 < 13 else 0),
    "dpp row_ror": (_DPP.format(0x125, 15, 15, 0), lambda a, b, c, i, w: a(i & ~15 | i - 5 & 15)),
    "dpp row_mirror": (_DPP.format(0x140, 15, 15, 0), lambda a, b, c, i, w: a(i ^ 15)),
    "dpp row_half_mirror, rows": (
        _DPP.format(0x141, 5, 15, 0), lambda a, b, c, i, w: b(i) if i // 16 % (w // 16) % 2 else a(i ^ 7),
    ),
    "dpp row_xmask, banks": (_DPP.format(0x165, 15, 3, 0), lambda a, b, c, i, w: a(i ^ 5) if i % 16 < 8 else b(i)),
    "dpp row_share": (_DPP.format(0x157, 15, 15, 0), lambda a, b, c, i, w: a(i & ~15 | 7)),
    "dpp8": (
        "(u32)__builtin_amdgcn_mov_dpp8(a, 0x053977)", lambda a, b, c, i, w: a(i & ~7 | 0x053977 >> 3 * (i & 7) & 7)
    ),
    "permlane16": (
        "(u32)__builtin_amdgcn_permlane16(b, a, " + _ROWS,
        lambda a, b, c, i, w: a(i & ~15 | _REVERSED >> 4 * (i & 15) & 15),
    ),
    "permlanex16": (
        "(u32)__builtin_amdgcn_permlanex16(b, a, " + _ROWS,
        lambda a, b, c, i, w: a((i & ~15 | _REVERSED >> 4 * (i & 15) & 15) ^ 16),
    ),
    "wavefrontsize": ("__builtin_amdgcn_wavefrontsize()", lambda a, b, c, i, w: w),
    "bitreverse64": (
        "(u32)__builtin_bitreverse64((u64)a << 32 | b)", lambda a, b, c, i, w: int(f"{a(i):032b}"[::-1], 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILTINS)
def test_builtins(name):
    expression, function = BUILTINS[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    a, b, c = (rng.integers(0, 1 << 32, 64, dtype=np.uint64).astype(np.uint32) for _ in range(3))
    a[:6], b[:6] = (0, 1, WORD, 1 << 31, WORD >> 1, 0xFF00FF), (WORD, 0, 1, 1 << 31, WORD >> 1, 31)
    read = [row.tolist().__getitem__ for row in (a, b, c)]
    for gpu, lanes, level in (("gfx1151", 32, "-O3"), ("gfx1201", 64, "-O1"), ("gfx1201", 32, "-O0")):
        text = HEAD.format(lanes=lanes, expression=expression)
        binary = compiled(text, gpu, level, *(["-mwavefrontsize64"] if lanes == 64 else []))
        out = np.zeros(64, np.uint32)
        run_code_object(binary, [out, a, b, c], strict=True)
        want = [function(*read, i, lanes) & WORD for i in range(64)]
        assert out.tolist() == want, f"{gpu}, wave{lanes}, {level}"


# -- atomics -----------------------------------------------------------------------------------------------------------

ATOMICS = """
typedef {type} T;
#define GLOBAL __attribute__((address_space(1)))
#define LOCAL __attribute__((address_space(3)))
#define MEET __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); \\
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup")
__attribute__((amdgpu_kernel)) void k(GLOBAL T* found, GLOBAL T* memory, const GLOBAL T* value) {{
  static __attribute__((address_space(3), loader_uninitialized)) T local[4];
  int i = __builtin_amdgcn_workitem_id_x();
  T own[4];
  for (int k = 0; k < 4; k++) own[k] = memory[8 + k];
  if (i < 4) local[i] = memory[4 + i];
  MEET;
  {pointer}
  T v = value[i], r;
  {operation};
  found[i] = r;
  MEET;
  if (i < 4) memory[4 + i] = local[i];
  found[{lanes} + i] = own[i & 3];
}}
"""
# "flat" takes lanes to all three memories with one instruction.
POINTERS = {
    "global": "GLOBAL T* p = memory;", "LDS": "LOCAL T* p = local;",
    "flat": "T* p = i % 3 == 0 ? (T*)memory : i % 3 == 1 ? (T*)local : (T*)own;",
}  # fmt: skip
TYPES = {
    "int": np.int32, "unsigned": np.uint32, "long long": np.int64, "unsigned long long": np.uint64, "float": np.float32,
    "double": np.float64,
}  # fmt: skip
COMBINE = {
    "add": lambda m, v: m + v, "sub": lambda m, v: m - v, "and": lambda m, v: m & v, "or": lambda m, v: m | v,
    "xor": lambda m, v: m ^ v, "min": min, "max": max, "exchange": lambda m, v: v, "load": lambda m, v: m,
    "store": lambda m, v: v,
}  # fmt: skip
CASES = [
    (space, kind, operation)
    for space, kind, operation in itertools.product(POINTERS, TYPES, [*COMBINE, "compare_exchange"])
    if kind not in ("float", "double") or operation in ("add", "min", "max", "exchange", "load", "store")
]


def operation_text(name: str, scope: int) -> str:
    place = "&p[i & 3]"
    if name == "compare_exchange":
        call = f"__hip_atomic_compare_exchange_strong({place}, &r, v, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED, {scope})"
        return f"r = (T)(i & 1); {call}"
    if name == "load":
        return f"r = __hip_atomic_load({place}, __ATOMIC_ACQUIRE, {scope})"
    if name == "store":
        return f"__hip_atomic_store({place}, v, __ATOMIC_RELEASE, {scope}); r = v"
    call = "exchange" if name == "exchange" else f"fetch_{name}"
    return f"r = __hip_atomic_{call}({place}, v, __ATOMIC_SEQ_CST, {scope})"


@pytest.mark.parametrize(("space", "kind", "operation"), CASES)
def test_atomics(space, kind, operation):
    """One wave, whose lanes take effect in their order; scopes, GPUs and levels take turns."""
    seed = zlib.crc32(f"{space}{kind}{operation}".encode())
    gpu, level = GPUS[seed % len(GPUS)], ("-O0", "-O1", "-O3")[seed // 6 % 3]
    lanes = 64 if gpu.startswith("gfx9") else (32, 64)[seed // 3 % 2]
    scope = 1 + seed // 18 % 5
    dtype = np.dtype(TYPES[kind])
    rng = np.random.default_rng(seed)
    value = rng.integers(-50, 50, lanes).astype(dtype)
    memory = np.concatenate([rng.integers(-9, 9, 8), rng.integers(0, 2, 4)]).astype(dtype)
    if dtype.kind == "f":
        value /= 4
    text = ATOMICS.format(type=kind, pointer=POINTERS[space], operation=operation_text(operation, scope), lanes=lanes)
    binary = compiled(text, gpu, level, *(["-mwavefrontsize64"] if lanes == 64 else []))
    found, want = np.zeros(2 * lanes, dtype), np.zeros(2 * lanes, dtype)
    after, got = memory.copy(), memory.copy()
    # To the code an atomic store is a plain one, which strict mode wants to be of one value.
    run_code_object(binary, [found, got, value], block=lanes, strict=operation != "store")
    for i in range(lanes):
        own = memory[8:].copy()
        place = {"global": 0, "LDS": 4, "flat": 4 * (i % 3)}[space] + (i & 3)
        held = own[i & 3] if place >= 8 else after[place]
        with np.errstate(all="ignore"):
            if operation == "compare_exchange":
                new = value[i] if held == dtype.type(i & 1) else held
            else:
                new = dtype.type(COMBINE[operation](held, value[i]))
        want[i] = value[i] if operation == "store" else held
        if place >= 8:
            own[i & 3] = new
        else:
            after[place] = new
        want[lanes + i] = own[i & 3]
    np.testing.assert_array_equal(got, after)
    np.testing.assert_array_equal(found, want)
