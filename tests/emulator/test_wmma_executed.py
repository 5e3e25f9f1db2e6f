"""Every WMMA and SWMMAC, with every modifier, as an assembled kernel in the emulator, against the exact product.

Fragments are packed and unpacked by `laneloom.isa` alone, whose layouts are not the emulator's: they meet here. The
data's exponents are close enough together that every sum is exact in float64, so results are compared bit by bit. Dense
sums of 16-bit floats are made in steps, four (gfx11: two) neighbours along K as AMD's calculator counts it at a time.
"""

import itertools
import struct

import numpy as np
import pytest

from laneloom.codegen import assemble
from laneloom.emulator.dot_pairs import Kind, dot_pairs
from laneloom.emulator.launch import launch
from laneloom.emulator.memory import Region
from laneloom.emulator.program import Program
from laneloom.errors import HazardError
from laneloom.isa import get_layout, instructions
from laneloom.isa.fragments import compress, pack, unpack

A, B, C, INDEX, D = 8, 24, 48, 60, 64  # first registers
MARK = 0x5A5A5A5A

TEXT = """
	.text
	.globl tile
	.p2align 8
	.type tile,@function
tile:
{code}
	s_endpgm
.Lend:
	.size tile, .Lend-tile
	.section .rodata
	.p2align 6
	.amdhsa_kernel tile
		.amdhsa_next_free_vgpr 96
		.amdhsa_next_free_sgpr 8
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_wavefront_size32 {wave32}
	.end_amdhsa_kernel
	.amdgpu_metadata
---
amdhsa.version: [ 1, 2 ]
amdhsa.kernels:
  - .name: tile
    .symbol: tile.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: {wave}
    .sgpr_count: 8
    .vgpr_count: 96
    .max_flat_workgroup_size: {wave}
    .args: []
...
	.end_amdgpu_metadata
"""


def span(first, count):
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def kernel(row, gpu, wave, tails, order, c_is=None):
    """Loads A, B, C (and the index) register by register, runs the instruction once per tail, stores every D."""
    count = {m: get_layout(row, gpu, wave, m).registers for m in order}
    gfx12 = gpu == "gfx1201"
    lines = ["s_load_b128 s[4:7], s[0:1], 0x0", "v_and_b32_e32 v0, 0x3ff, v0", "v_lshlrev_b32_e32 v0, 2, v0"]
    lines.append("s_wait_kmcnt 0x0" if gfx12 else "s_waitcnt lgkmcnt(0)")
    at = 0
    for matrix in order:
        for n in range(count[matrix]):
            lines += [f"v_add_nc_u32_e32 v1, {at:#x}, v0"]
            lines += [f"global_load_b32 v{FIRST[matrix] + n}, v1, s[4:5]"]
            at += 4 * wave
    lines.append("s_wait_loadcnt 0x0" if gfx12 else "s_waitcnt vmcnt(0)")
    d = count["C"]
    at = 0
    for tail in tails:
        for n in range(d):
            lines.append(f"v_mov_b32_e32 v{D + n}, v{C + n}" if row.sparse else f"v_mov_b32_e32 v{D + n}, {MARK:#x}")
        last = f"v{INDEX}" if row.sparse else c_is or span(C, d)
        lines.append(f"{row.name} {span(D, d)}, {span(A, count['A'])}, {span(B, count['B'])}, {last}{tail}")
        for n in range(d):
            lines += [f"v_add_nc_u32_e32 v1, {at:#x}, v0", f"global_store_b32 v1, v{D + n}, s[6:7]"]
            at += 4 * wave
    code = "\n".join("\t" + line for line in lines)
    return TEXT.format(code=code, wave32=int(wave == 32), wave=wave), d


FIRST = {"A": A, "B": B, "C": C, "K": INDEX}


def run(row, gpu, wave, tails, fragments, *, strict=False, c_is=None):
    """The registers of D after each tail, uint32 [tail, register, lane]."""
    text, d = kernel(row, gpu, wave, tails, list(fragments), c_is)
    assembled = assemble(text, gpu)  # LLVM accepts every line
    assert assembled.code_bytes > 8 * len(tails)
    inputs = np.ascontiguousarray(np.concatenate(list(fragments.values())))
    outputs = np.full((len(tails), d, wave), 0xDEADBEEF, np.uint32)
    regions = [Region("in", inputs.ctypes.data, inputs.nbytes), Region("out", outputs.ctypes.data, outputs.nbytes)]
    program = Program(assembled.asm, gpu, strict=strict)
    kernarg = struct.pack("<2Q", inputs.ctypes.data, outputs.ctypes.data)
    record = launch(program, [1], kernarg, workgroup_size=wave, regions=regions)
    assert record.executed[row.name] == len(tails)
    return outputs


# -- numbers -----------------------------------------------------------------------------------------------------------


def codes(rng, kind, shape):
    """Random bit patterns whose products, and sums of 64 of them, are exact in float64."""
    sign = rng.integers(0, 2, shape)
    if kind == "f16":
        return sign << 15 | rng.integers(12, 16, shape) << 10 | rng.integers(0, 1024, shape)
    if kind == "bf16":
        return sign << 15 | rng.integers(122, 130, shape) << 7 | rng.integers(0, 128, shape)
    if kind == "f32":
        return sign << 31 | rng.integers(123, 131, shape) << 23 | rng.integers(0, 1 << 23, shape)
    if kind == "fp8":
        return sign << 7 | rng.integers(0, 0x7F, shape)
    if kind == "bf8":
        return sign << 7 | rng.integers(8, 23, shape) << 2 | rng.integers(0, 4, shape)
    if kind == "i32":  # some that overflow
        return rng.choice([0x7FFFFF00, 0x80000100, 5, 0xFFFFFFF0], shape) + rng.integers(0, 16, shape)
    return rng.integers(0, 256 if kind == "iu8" else 16, shape)


def small_float(code, exponent_bits, mantissa_bits):
    bias = (1 << (exponent_bits - 1)) - 1
    sign = np.where(code >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / 2.0**mantissa_bits
    return sign * np.ldexp(np.where(exponent == 0, mantissa, 1 + mantissa), np.maximum(exponent, 1) - bias)


FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "fp8": (4, 3), "bf8": (5, 2)}


def value(code, kind, signed=True):
    code = np.asarray(code).astype(np.int64)
    if kind in FORMATS:
        return small_float(code, *FORMATS[kind])
    bits = {"i32": 32, "iu8": 8, "iu4": 4}[kind]
    return np.where(signed & (code >> (bits - 1) == 1), code - (1 << bits), code).astype(np.float64)


def rounded(exact, kind, clamp):
    """Codes of exact sums: floats rounded to nearest even, integers wrapped or saturated."""
    if kind == "i32":
        exact = np.clip(exact, -(2**31), 2**31 - 1) if clamp else exact
        return exact.astype(np.int64) & 0xFFFFFFFF
    if kind == "f32":
        return exact.astype(np.float32).view(np.uint32)
    if kind == "f16":
        return exact.astype(np.float16).view(np.uint16)
    mantissa, exponent = np.frexp(exact)
    return np.ldexp(np.rint(mantissa * 256), exponent - 8).astype(np.float32).view(np.uint32) >> 16


def in_steps(a, b, c, row, gpu):
    """D's codes of those of A [row, k], B [k, column] and C, by the rule of one step that test_wmma_sums.py holds."""
    kind = Kind(row.a == "bf16", row.cd == "f16", gpu == "gfx1201")
    d, size = np.broadcast_to(c, (16, 16)).astype(np.uint32), 4 if gpu == "gfx1201" else 2
    for k in range(0, row.k, size):
        rows, columns = np.broadcast_arrays(a[:, None, k : k + size], b.T[None, :, k : k + size])
        if row.cd == "f16":
            d = d.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
        elif row.cd == "bf16":
            d = d << 16
        d = dot_pairs(rows.astype(np.uint16), columns.astype(np.uint16), d.astype(np.uint32), kind)
        d = d >> 16 if row.cd == "bf16" else d
    return d


# -- modifiers ---------------------------------------------------------------------------------------------------------

BITS3 = list(itertools.product((0, 1), repeat=3))


def variants(row, wave):
    """(text, neg_lo, neg_hi, clamp, opsel) of all that the instruction can be told."""
    if row.cd == "i32":
        signs = [(low, (0, 0, 0), clamp) for low in BITS3 if not low[2] for clamp in (False, True)]
    elif row.a in ("fp8", "bf8"):
        signs = [((0, 0, x), (0, 0, y), False) for x in (0, 1) for y in (0, 1) if not (row.sparse and (x or y))]
    elif row.sparse:
        signs = [(low, high, False) for low in BITS3 for high in BITS3 if not (low[2] or high[2])]
    else:
        signs = [(low, high, False) for low in BITS3 for high in BITS3]
    keys = [0]
    if row.sparse:
        keys = range(key_count(row, wave))
    elif "op_sel" in row.modifiers:
        keys = (0, 4)
    for (low, high, clamp), key in itertools.product(signs, keys):
        words = [f" neg_lo:[{low[0]},{low[1]},{low[2]}]"] if any(low) else []
        words += [f" neg_hi:[{high[0]},{high[1]},{high[2]}]"] if any(high) else []
        words += [" clamp"] if clamp else []
        if key:
            words.insert(0, f" index_key:{key}" if row.sparse else " op_sel:[0,0,1]")
        yield "".join(words), low, high, clamp, key


def key_count(row, wave):
    """32 bits of the index register over four bits for every pair that a lane of A holds."""
    held = get_layout(row, "gfx1201", wave, "A").registers * 32 // {"f16": 16, "bf16": 16, "iu4": 4}.get(row.a, 8)
    return 32 // (2 * held)


CASES = [(row, gpu, wave) for gpu in ("gfx1151", "gfx1201") for row in instructions(gpu) for wave in row.waves]


@pytest.mark.covering
@pytest.mark.parametrize(("row", "gpu", "wave"), CASES, ids=lambda x: getattr(x, "name", str(x)))
def test_equals_the_exact_product(row, gpu, wave):
    rng = np.random.default_rng(row.opcode * wave)
    b, c = codes(rng, row.b, (row.k, 16)), codes(rng, row.cd, (16, 16))
    told = list(variants(row, wave))
    fragments = {"B": pack(get_layout(row, gpu, wave, "B"), b)}
    index = {}
    if row.sparse:
        a = codes(rng, row.a, (16, row.k // 2))
        for key in {v[4] for v in told}:
            pairs = rng.permuted(np.broadcast_to(np.arange(4), (16, row.k // 4, 4)), axis=2)[..., :2]
            index[key] = np.sort(pairs, axis=2)
        keys = [pack(get_layout(row, gpu, wave, "K", key), i[..., 0] | i[..., 1] << 2) for key, i in index.items()]
        fragments["K"] = np.bitwise_or.reduce(keys)
    else:
        a = codes(rng, row.a, (16, row.k))
    fragments["A"] = pack(get_layout(row, gpu, wave, "A"), a)
    halves = {0} if row.sparse else {v[4] for v in told}
    fragments["C"] = np.bitwise_or.reduce([pack(get_layout(row, gpu, wave, "C", half), c) for half in halves])
    tails = [v[0] for v in told]
    got = run(row, gpu, wave, tails, fragments)
    few = sorted({0, len(tails) // 2, len(tails) - 1})
    strict = run(row, gpu, wave, [tails[n] for n in few], fragments, strict=True)
    assert np.array_equal(strict, got[few])
    for registers, (text, low, high, clamp, key) in zip(got, told, strict=True):
        d = get_layout(row, gpu, wave, "D", key if "op_sel" in row.modifiers else 0)
        va, vb, vc = value(a, row.a, low[0]), value(b, row.b, low[1]), value(c, row.cd)
        if row.cd != "i32":
            va = va * np.where(np.arange(va.shape[1]) % 2, 1 - 2 * high[0], 1 - 2 * low[0])
            vb = vb * np.where(np.arange(row.k) % 2, 1 - 2 * high[1], 1 - 2 * low[1])[:, None]
            vc = (1 - 2 * low[2]) * (np.abs(vc) if high[2] else vc)
        if row.sparse:
            dense = np.zeros((16, row.k // 4, 4))
            np.put_along_axis(dense, index[key], va.reshape(16, -1, 2), axis=2)
            va = dense.reshape(16, row.k)
        half = row.k // 2
        if clamp and gpu == "gfx1201":  # saturates behind the products of A's lanes 0 to 15 too
            vc = np.clip(va[:, :half] @ vb[:half] + vc, -(2**31), 2**31 - 1)
            va, vb = va[:, half:], vb[half:]
        want = rounded(va @ vb + vc, row.cd, clamp)
        if row.a in ("f16", "bf16") and not row.sparse:
            bits = 32 if row.cd == "f32" else 16
            flips = [np.where(np.arange(row.k) % 2, high[n], low[n]) << 15 for n in (0, 1)]
            addend = (c & (1 << bits - 1) - 1 if high[2] else c) ^ low[2] << bits - 1
            near, want = want, in_steps(a ^ flips[0], b ^ flips[1][:, None], addend, row, gpu)
            off = np.abs(value(want, row.cd) - value(near, row.cd)).max()
            assert off <= {"f32": 2.0**-18, "f16": 2.0**-4, "bf16": 2.0}[row.cd] * np.abs(value(near, row.cd)).max()
        assert np.array_equal(unpack(d, registers), want), f"{row.name}{text}"
        if "op_sel" in row.modifiers:  # the other halves keep what they held
            assert (registers >> (0 if key else 16) & 0xFFFF == MARK & 0xFFFF).all()


SPARSE = [case for case in CASES if case[0].sparse]


@pytest.mark.parametrize(("row", "gpu", "wave"), SPARSE, ids=lambda x: getattr(x, "name", str(x)))
def test_corners_of_the_sparse_index(row, gpu, wave):
    """Each value takes the k that its own two bits name: in any order, both the same, all first, all last; a four whose
    values are zero counts for nothing, whatever its index is."""
    rng = np.random.default_rng(row.opcode + wave)
    a, b, c = codes(rng, row.a, (16, row.k // 2)), codes(rng, row.b, (row.k, 16)), codes(rng, row.cd, (16, 16))
    index = rng.integers(0, 16, (16, row.k // 4))
    index[0], index[1], index[2], index[3] = 0b0000, 0b1111, 0b0001, 0b1110  # equal, equal, falling, rising
    index[4] = np.arange(row.k // 4) % 16
    a[5] = 0
    if row.k // 4 > 1:
        a[6, 2:] = 0  # one four alone
    fragments = {
        "B": pack(get_layout(row, gpu, wave, "B"), b), "K": pack(get_layout(row, gpu, wave, "K"), index),
        "A": pack(get_layout(row, gpu, wave, "A"), a), "C": pack(get_layout(row, gpu, wave, "C"), c),
    }  # fmt: skip
    (registers,) = run(row, gpu, wave, [""], fragments, strict=True)
    signed = row.cd != "i32"
    va, vb = value(a, row.a, signed), value(b, row.b, signed)
    at = 4 * np.arange(row.k // 4)[:, None] + np.stack([index & 3, index >> 2], axis=-1)  # [row, four, value]
    want = value(c, row.cd) + np.einsum("mk,mkn->mn", va, vb[at.reshape(16, -1)])
    assert np.array_equal(unpack(get_layout(row, gpu, wave, "D"), registers), rounded(want, row.cd, False))


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201"])
@pytest.mark.parametrize(("text", "c"), [("0", 0.0), ("1.0", 1.0), ("-4.0", -4.0)])
def test_constant_as_c(gpu, text, c):
    for row in instructions(gpu):
        if row.sparse or row.cd == "i32":
            continue
        rng = np.random.default_rng(5)
        a, b = codes(rng, row.a, (16, row.k)), codes(rng, row.b, (row.k, 16))
        operands = {m: pack(get_layout(row, gpu, 32, m), x) for m, x in (("A", a), ("B", b))}
        operands["C"] = np.full((get_layout(row, gpu, 32, "C").registers, 32), MARK, np.uint32)
        (got,) = run(row, gpu, 32, [""], operands, c_is=text)
        if row.a in ("f16", "bf16"):
            want = in_steps(a, b, rounded(np.array(c), row.cd, False), row, gpu)
        else:
            want = rounded(value(a, row.a) @ value(b, row.b) + c, row.cd, False)
        assert np.array_equal(unpack(get_layout(row, gpu, 32, "D"), got), want), row.name


def test_ones_times_ones():
    """AMD's first example of WMMA: every element of D is 16."""
    row = next(r for r in instructions("gfx1100") if r.name == "v_wmma_f16_16x16x16_f16")
    one = np.full((16, 16), 0x3C00)
    fragments = {m: pack(get_layout(row, "gfx1100", 32, m), one * (m != "C")) for m in "ABC"}
    (got,) = run(row, "gfx1100", 32, [""], fragments)
    assert (unpack(get_layout(row, "gfx1100", 32, "D"), got) == np.float16(16).view(np.uint16)).all()


@pytest.mark.parametrize("wave", [32, 64])
def test_strict_mode_wants_replicated_lanes(wave):
    row = next(r for r in instructions("gfx1151") if r.name == "v_wmma_f32_16x16x16_f16")
    fragments = {m: pack(get_layout(row, "gfx1151", wave, m), np.ones((16, 16), int)) for m in "ABC"}
    run(row, "gfx1151", wave, [""], fragments, strict=True)
    fragments["B"][3, 21] ^= 1
    with pytest.raises(HazardError, match="lanes 5 and 21") as caught:
        run(row, "gfx1151", wave, [""], fragments, strict=True)
    assert caught.value.kind == "replication"


def test_compress_keeps_the_matrix():
    rng = np.random.default_rng(7)
    dense = rng.integers(1, 256, (16, 8, 4)) * (rng.permuted(np.tile([1, 1, 0, 0], (16, 8, 1)), axis=2))
    dense[0, 0] = 0
    values, index = compress(dense.reshape(16, 32))
    back = np.zeros((16, 8, 4), int)
    np.put_along_axis(back, np.stack([index & 3, index >> 2], axis=-1), values.reshape(16, 8, 2), axis=2)
    assert np.array_equal(back, dense)
    assert ((index & 3) < (index >> 2)).all()
