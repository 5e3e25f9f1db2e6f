"""Exchanges of two places, ds_append and ds_consume, addresses made of lane numbers: the guides' pseudo-code."""

from __future__ import annotations

import numpy as np
import pytest
from test_memory_instructions import GPUS, combine, in_space, random_bytes, run

from laneloom.errors import HazardError, UnknownInstructionError
from laneloom.gpu import get_gpu

LANE = np.arange(32)


def words(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows).view(np.uint32)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    ("name", "offsets", "bits"),
    [
        ("ds_storexchg_2addr_rtn_b32", "offset0:3 offset1:1", 32),
        ("ds_storexchg_2addr_rtn_b64", "offset0:1", 64),
        ("ds_storexchg_2addr_stride64_rtn_b32", "offset1:1", 32),
        ("ds_storexchg_2addr_stride64_rtn_b64", "offset1:1", 64),
    ],
)
def test_exchange_of_two_places(gpu, name, offsets, bits):
    """The second place may be another lane's first: lanes then go one after another."""
    image, registers = random_bytes(bits)
    pair = (lambda n: f"v[{n}:{n + 1}]") if bits == 64 else (lambda n: f"v{n}")
    count = bits // 32
    text = f"{name} v[12:{11 + 2 * count}], v1, {pair(8)}, {pair(8 + count)} {offsets}"
    moved = "\n{waits}\n" + "".join(f"v_mov_b32 v{8 + k}, v{12 + k}\n" for k in range(2 * count))
    got_image, got = run(gpu, in_space("ds", text + moved), image, registers)
    unit = bits // 8 * (64 if "stride64" in name else 1)
    steps = [int(o.partition(":")[2]) for o in offsets.split()]
    first, second = (steps[0], steps[1] if len(steps) > 1 else 0) if "offset0" in offsets else (0, steps[0])
    lds = np.full(512 + 1024, 0xFF, np.uint8)  # NaN patterns, where nobody wrote
    lds[:512] = image.reshape(-1)
    size, want = bits // 8, registers.copy()
    for lane in range(32):
        places = [16 * lane + o * unit for o in (first, second)]
        old = [lds[p : p + size].copy() for p in places]
        for k, p in enumerate(places):
            lds[p : p + size] = registers[lane, k * size : (k + 1) * size]
        want[lane, : 2 * size] = np.concatenate(old)
    np.testing.assert_array_equal(got_image.reshape(-1), lds[:512])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("gpu", GPUS)
def test_conditional_exchange(gpu):
    image, registers = random_bytes(7)
    text = "ds_condxchg32_rtn_b64 v[12:13], v1, v[8:9] offset:8\n{waits}\nv_mov_b32 v8, v12\nv_mov_b32 v9, v13"
    got_image, got = run(gpu, in_space("ds", text), image, registers)
    old, sent = words(image), words(registers)[:, :2]
    want = old.copy()
    want[:, 2:] = np.where(sent >> 31, sent & 0x7FFFFFFF, old[:, 2:])
    np.testing.assert_array_equal(words(got_image), want)
    np.testing.assert_array_equal(words(got)[:, :2], old[:, 2:])


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", ["ds_append", "ds_consume"])
def test_a_counter_in_lds(gpu, name):
    """Eleven active lanes take from the word at 64 (gfx11: M0's high half is a base); all get its former value."""
    image, registers = random_bytes(3)
    base, offset = (48, 16) if get_gpu(gpu).major == 11 else (0, 64)
    body = f"s_mov_b32 m0, {base << 16:#x}\ns_mov_b32 exec_lo, 0x7ff\n{name} v8 offset:{offset}\n{{waits}}\n"
    got_image, got = run(gpu, in_space("ds", body + "s_mov_b32 exec_lo, -1"), image, registers)
    want_image, want = words(image).copy(), words(registers).copy()
    want[:11, 0] = want_image[4, 0]
    want_image[4, 0] = int(want_image[4, 0]) + (11 if name == "ds_append" else -11) & 0xFFFFFFFF
    np.testing.assert_array_equal(words(got_image), want_image)
    np.testing.assert_array_equal(words(got), want)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_counter_whose_address_llvm_puts_into_m0(gpu):
    """`__builtin_amdgcn_ds_append(&counter)` is no access of the word at 0."""
    with pytest.raises(UnknownInstructionError, match=r"whether ds_append adds M0\[15:0\].*is not documented"):
        run(gpu, in_space("ds", "s_movk_i32 m0, 0x40\nds_append v8"), *random_bytes(3))


@pytest.mark.parametrize("gpu", GPUS)
def test_addresses_made_of_lane_numbers(gpu):
    image, registers = random_bytes(4)
    flat = words(image).reshape(-1)
    body = "s_movk_i32 m0, 0x40\nds_load_addtid_b32 v8 offset:16\nglobal_load_addtid_b32 v9, s[2:3] offset:32\n{waits}"
    _, got = run(gpu, in_space("ds", body), image, registers)
    np.testing.assert_array_equal(words(got)[:, 0], flat[20 + LANE])
    np.testing.assert_array_equal(words(got)[:, 1], flat[8 + LANE])
    body = "s_movk_i32 m0, 0x40\nds_store_addtid_b32 v8 offset:16"
    got_image, _ = run(gpu, in_space("ds", body), image, registers)
    flat = flat.copy()
    flat[20 + LANE] = words(registers)[:, 0]
    np.testing.assert_array_equal(words(got_image).reshape(-1), flat)
    got_image, _ = run(gpu, "global_store_addtid_b32 v8, s[2:3] offset:32", image, registers)
    flat = words(image).reshape(-1).copy()
    flat[8 + LANE] = words(registers)[:, 0]
    np.testing.assert_array_equal(words(got_image).reshape(-1), flat)


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("s_movk_i32 m0, 0x0\nv_mov_b32 v8, 1\nds_store_addtid_b32 v8\n{waits}\nds_append v9", True),
        ("v_mov_b32 v8, 1\nds_store_addtid_b32 v8", False),
        ("s_movk_i32 m0, 0x0\nds_append v9", False),
        ("ds_add_u32 v1, v8", False),
        ("ds_store_b32 v1, v8\n{waits}\nds_add_u32 v1, v8", True),
        ("ds_storexchg_rtn_b32 v12, v1, v8\n{waits}\nds_add_u32 v1, v8", True),
        ("ds_storexchg_rtn_b32 v9, v1, v8\n{waits}\nglobal_store_b32 v1, v9, s[2:3]", False),
    ],
)
def test_strict_asks_for_a_defined_base_and_word(text, ok):
    image, registers = random_bytes(5)
    if ok:
        run("gfx1151", text, image, registers, strict=True)
        return
    with pytest.raises(HazardError, match="nobody wrote"):
        run("gfx1151", text, image, registers, strict=True)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "access",
    [
        "ds_load_b32 v12, v2 offset:64", "ds_load_2addr_b32 v[12:13], v2 offset0:16 offset1:17",
        "ds_storexchg_2addr_rtn_b32 v[12:13], v2, v8, v9 offset0:16 offset1:17", "ds_add_rtn_u32 v12, v2, v8 offset:64",
    ],
)  # fmt: skip
def test_the_sum_of_base_and_offset_has_32_bits(gpu, strict, access):
    """v2 is 64 bytes below the lane's place: negative for the first lanes."""
    image, registers = random_bytes(11)
    text = "v_subrev_nc_u32 v2, 64, v1\n" + access + "\n{waits}\nv_mov_b32 v8, v12"
    _, got = run(gpu, in_space("ds", text), image, registers, strict=strict)
    np.testing.assert_array_equal(words(got)[:, 0], words(image)[:, 0])


_NAMES = {"u": "add sub rsub inc dec min max", "i": "min max", "b": "and or xor write", "f": "min max"}
IN_LDS = [(name, kind, bits) for kind, names in _NAMES.items() for name in names.split() for bits in (32, 64)]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("distance", [2, -6, -5])
@pytest.mark.parametrize(("name", "kind", "bits"), [*IN_LDS, ("add", "f", 32)])
def test_a_place_combined_with_another(name, kind, bits, distance, strict):
    """CDNA 1 alone; the other place may be another lane's first, which has then changed."""
    image, registers = random_bytes(bits)
    if kind == "f":
        image = np.random.default_rng(3).standard_normal((32, 128 // bits)).astype(f"f{bits // 8}").view(np.uint8)
    mask = "" if distance > 0 else "s_mov_b64 exec, 0xfffffff0\n"  # the first lanes would read below LDS
    text = f"{mask}ds_{name}_src2_{kind}{bits} v1 offset:{distance & 0x7FFF}\ns_mov_b64 exec, 0xffffffff"
    got, _ = run("gfx908", in_space("ds", text), image, registers, strict=strict)
    want, size = bytearray(image.tobytes()), bits // 8
    for lane in range(0 if distance > 0 else 4, 32):
        to, source = 16 * lane, 16 * lane + 4 * distance
        other = bytes(want[source : source + size])
        op = "swap" if name == "write" else name
        want[to : to + size] = combine(op, kind, bits, bytes(want[to : to + size]), other, other)
    assert got.tobytes() == bytes(want)


def test_a_distance_in_the_address_is_refused():
    with pytest.raises(UnknownInstructionError, match="ds_add_src2_u32 with a distance"):
        run("gfx908", in_space("ds", "ds_add_src2_u32 v1 offset:0x8000"), *random_bytes(1))
