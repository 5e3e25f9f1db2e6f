"""CDNA 5's copies between memory and LDS past the registers, and what strict mode says without the wait for them."""

import numpy as np
import pytest
from test_memory_instructions import random_bytes, run

from laneloom.errors import HazardError, UnknownInstructionError

WAIT = {"asynccnt": "s_wait_asynccnt 0x0", "tensorcnt": "s_wait_tensorcnt 0x0"}


@pytest.mark.parametrize("sender", ["global", "cluster"])
@pytest.mark.parametrize("bits", [8, 32, 64, 128])
def test_asynchronous_loads_and_stores(bits, sender):
    """Each lane's bytes from its address to its place in LDS, and from LDS to memory; a cluster is one workgroup."""
    image, registers = random_bytes(3)
    size = bits // 8
    body = f"""ds_store_b128 v1, v[8:11]
    {{waits}}
    {sender}_load_async_to_lds_b{bits} v1, v[2:3], off
    {WAIT["asynccnt"]}
    ds_load_b128 v[8:11], v1"""
    _, got = run("gfx1250", body, image, registers, strict=True)
    np.testing.assert_array_equal(got[:, :size], image[:, :size])
    np.testing.assert_array_equal(got[:, size:], registers[:, size:])
    body = f"""ds_store_b128 v1, v[8:11]
    {{waits}}
    global_store_async_from_lds_b{bits} v[2:3], v1, off
    {WAIT["asynccnt"]}"""
    after, _ = run("gfx1250", body, image, registers, strict=True)
    np.testing.assert_array_equal(after[:, :size], registers[:, :size])
    np.testing.assert_array_equal(after[:, size:], image[:, size:])


def test_an_asynchronous_load_without_its_wait():
    image, registers = random_bytes(3)
    body = """global_load_async_to_lds_b128 v1, v[2:3], off
    ds_load_b128 v[8:11], v1"""
    with pytest.raises(HazardError, match="asynccnt") as caught:
        run("gfx1250", body, image, registers, strict=True)
    assert caught.value.kind == "wait"


TILE = """s_mov_b32 s8, 1
s_mov_b32 s9, 0
s_mov_b32 s10, s2
s_or_b32 s11, s3, 0x80000000
s_mov_b32 s12, 0x20000
s_mov_b32 s13, 0x{columns:04x}0000
s_mov_b32 s14, 0x{rows:04x}0000
s_mov_b32 s15, 0x00040000
s_mov_b32 s16, 0x20
s_mov_b32 s17, 4
s_mov_b32 s18, 0
s_mov_b32 s19, 0
tensor_load_to_lds s[8:11], s[12:19]
{wait}
ds_load_b128 v[8:11], v1"""


@pytest.mark.parametrize(("rows", "columns"), [(32, 4), (20, 4), (32, 3)])
def test_a_tile_by_the_tensor_mover(rows, columns):
    """A tile of 32 rows of 4 words of a tensor of `rows` by `columns`: what is outside of it is zero."""
    image, registers = random_bytes(4)
    body = TILE.format(rows=rows, columns=columns, wait=WAIT["tensorcnt"])
    _, got = run("gfx1250", body, image, registers, strict=True)
    want = image.view(np.uint32).copy()
    want[rows:], want[:, columns:] = 0, 0
    np.testing.assert_array_equal(got.view(np.uint32), want)


@pytest.mark.parametrize("rows", [0, 32])
def test_an_empty_tile(rows):
    """A tile of rows of no elements moves nothing."""
    image, registers = random_bytes(4)
    load = TILE.format(rows=32, columns=4, wait=WAIT["tensorcnt"]).replace("s15, 0x00040000", "s15, 0")
    load = load.replace("s16, 0x20", f"s16, {rows}")
    _, got = run("gfx1250", f"ds_store_b128 v1, v[8:11]\n{{waits}}\n{load}", image, registers, strict=True)
    np.testing.assert_array_equal(got, registers)


def test_a_tile_without_its_wait():
    image, registers = random_bytes(4)
    with pytest.raises(HazardError, match="tensorcnt") as caught:
        run("gfx1250", TILE.format(rows=32, columns=4, wait=""), image, registers, strict=True)
    assert caught.value.kind == "wait"


@pytest.mark.parametrize(("rows", "columns"), [(32, 4), (20, 4), (32, 3)])
def test_a_tile_back_by_the_tensor_mover(rows, columns):
    """What is outside of the tensor keeps what memory has."""
    image, registers = random_bytes(4)
    load = TILE.format(rows=rows, columns=columns, wait="").rsplit("\n", 3)[0]
    body = f"ds_store_b128 v1, v[8:11]\n{{waits}}\n{load}\ntensor_store_from_lds s[8:11], s[12:19]"
    after, _ = run("gfx1250", f"{body}\n{WAIT['tensorcnt']}", image, registers, strict=True)
    want = image.view(np.uint32).copy()
    want[:rows, :columns] = registers.view(np.uint32)[:rows, :columns]
    np.testing.assert_array_equal(after.view(np.uint32), want)


ITERATED = """s_mov_b32 s8, 1
s_mov_b32 s9, 0
s_mov_b32 s10, s2
s_or_b32 s11, s3, 0x80000000
s_mov_b32 s12, {options:#x}
s_mov_b32 s13, 0x00040000
s_mov_b32 s14, 0x00030000
s_mov_b32 s15, 0x00040000
s_mov_b32 s16, 4
s_mov_b32 s17, 8
s_mov_b32 s18, 0
s_mov_b32 s19, 0
s_mov_b32 s20, 0
s_mov_b32 s21, {lds_step}
s_mov_b32 s22, 28
s_mov_b32 s23, 0x00020000"""
AGAIN = "s[8:11], s[12:19], s[20:23]"


@pytest.mark.parametrize("gap", [0, 4])
def test_a_tile_again_and_again(gap):
    """A tile of 4 rows of 4 words, every second row of the tensor, which has 3; three times, each time 7 rows further
    on in memory; gaps of 4 words behind each row in LDS, if any, of each repeat anew.
    """
    image, registers = random_bytes(4)
    padding = (1 << 20 | 1 << 22 | 3 << 25) if gap else 0
    load = ITERATED.format(options=0xA0000 | padding, lds_step=40)
    body = f"""ds_store_b128 v1, v[8:11]
    {{waits}}
    {load}
    tensor_load_to_lds {AGAIN}
    {WAIT["tensorcnt"]}
    ds_load_b128 v[8:11], v1"""
    _, got = run("gfx1250", body, image, registers, strict=True)
    rows, want = image.view(np.uint32), registers.view(np.uint32).copy()
    for repeat in range(3):
        for row in range(4):
            want[10 * repeat + row * (2 if gap else 1)] = rows[7 * repeat + 2 * row] if row < 3 else 0
    np.testing.assert_array_equal(got.view(np.uint32), want)


def test_a_tile_back_again_and_again():
    image, registers = random_bytes(4)
    body = f"""ds_store_b128 v1, v[8:11]
    {{waits}}
    {ITERATED.format(options=0xA0000 | 1 << 20, lds_step=16)}
    tensor_store_from_lds {AGAIN}
    {WAIT["tensorcnt"]}"""
    after, _ = run("gfx1250", body, image, registers, strict=True)
    sent, want = registers.view(np.uint32), image.view(np.uint32).copy()
    for repeat in range(3):
        for row in range(3):
            want[7 * repeat + 2 * row] = sent[4 * repeat + row]
    np.testing.assert_array_equal(after.view(np.uint32), want)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 12, 1 << 40])
def test_arrivals_at_a_barrier_in_lds(count):
    """Of a barrier of 4 with 3 to come, each lane's own: the arrival beyond the last begins the next phase."""
    image, registers = random_bytes(6)
    words = image.view(np.uint64)
    words[:, 0], words[:, 1] = 3 << 32 | 5 << 29 | 2, count
    body = """ds_store_b64 v1, v[4:5]
    {waits}
    ds_atomic_barrier_arrive_rtn_b64 v[8:9], v1, v[6:7]
    {waits}
    ds_load_b64 v[10:11], v1
    {waits}
    ds_atomic_async_barrier_arrive_b64 v1
    {waits}
    ds_load_b64 v[4:5], v1
    {waits}
    global_store_b64 v1, v[4:5], s[2:3]"""
    after, got = run("gfx1250", body, image, registers)
    before = 3 << 32 | 5 << 29 | 2

    def arrived(n):
        return 3 << 32 | (5 - (n + 1) // 4 & 7) << 29 | (2 - n) % 4

    for lane in range(32):
        assert got.view(np.uint64)[lane].tolist() == [before, arrived(count)]
        assert after.view(np.uint64)[lane, 0] == arrived(count + 1)


def test_hints_change_nothing():
    image, registers = random_bytes(7)
    body = """s_setprio_inc_wg 1
    s_monitor_sleep 1
    s_wakeup_barrier 1
    flat_prefetch_b8 v[2:3]
    global_prefetch_b8 v[2:3], off"""
    after, got = run("gfx1250", body, image, registers, strict=True)
    np.testing.assert_array_equal(after, image)
    np.testing.assert_array_equal(got, registers)


@pytest.mark.parametrize(("name", "width"), [
    ("ds_load_tr4_b64", 4), ("ds_load_tr6_b96", 6), ("global_load_tr4_b64", 4), ("global_load_tr6_b96", 6),
    ("ds_load_b64_tr_b4", 4), ("ds_load_b96_tr_b6", 6), ("global_load_b64_tr_b4", 4), ("global_load_b96_tr_b6", 6),
])  # fmt: skip
def test_transposed_loads_of_small_elements(name, width):
    """Lane l gets element m = l % 16 of the 16 k of its half wave; lanes loaded all m of one k."""
    image, registers = random_bytes(5)
    size, space = 2 * width, name.split("_")[0]
    put = "ds_store_b128 v1, v[4:7]\n    {waits}" if space == "ds" else ""
    where = "v1" if space == "ds" else "v[2:3], off"
    body = f"{put}\n    {name} v[8:{7 + size // 4}], {where}"
    _, got = run("gfx1250", body, image, registers)
    rows = {}  # of k
    for lane in range(32):
        word = int.from_bytes(image[lane, :size].tobytes(), "little")
        k = lane % 8 + 8 * (lane // 16) + 16 * (lane // 8 % 2)
        if width == 6:
            k = lane % 4 + 4 * (lane // 8) + 16 * (lane // 4 % 2)
        rows[k] = [word >> width * m & (1 << width) - 1 for m in range(16)]
    for lane in range(32):
        column = [rows[16 * (lane // 16) + i][lane % 16] for i in range(16)]
        want = sum(x << width * i for i, x in enumerate(column))
        assert got[lane, :size].tobytes() == want.to_bytes(size, "little")


@pytest.mark.parametrize(("gpu", "space", "tail", "width"), [
    ("gfx1250", "ds", "_tr16_b128", 16), ("gfx1250", "ds", "_tr8_b64", 8), ("gfx1250", "ds", "_b64_tr_b8", 8),
    ("gfx1250", "global", "_tr16_b128", 16), ("gfx1250", "global", "_tr8_b64", 8),
    ("gfx1201", "global", "_tr_b128", 16), ("gfx1201", "global", "_tr_b64", 8), ("gfx1250", "global", "_tr_b64", 8),
    ("gfx1250", "ds", "_tr_b64", 8), ("gfx1250", "ds", "_tr_b128", 16), ("gfx1250", "ds", "_b128_tr_b16", 16),
    ("gfx1250", "global", "_b64_tr_b8", 8), ("gfx1250", "global", "_b128_tr_b16", 16),
])  # fmt: skip
@pytest.mark.parametrize("strict", [False, True])
def test_transposed_loads(gpu, space, tail, width, strict):
    """Lane l gets element m = l % 16 of eight k of its half wave; lanes loaded eight neighbouring m of one k."""
    image, registers = random_bytes(5)
    size = width
    tail += {16: " v[8:11]", 8: " v[8:9]"}[width]
    put = "ds_store_b128 v1, v[4:7]\n    {waits}" if space == "ds" else ""
    where = "v1" if space == "ds" else "v[2:3], off"
    _, got = run(gpu, f"{put}\n    {space}_load{tail}, {where}", image, registers, strict=strict)
    loaded = np.ascontiguousarray(image[:, :size]).view(f"u{width // 8}")
    lanes = np.arange(32)
    of_k = lanes % 8 + 8 * (lanes // 16) if width == 16 else lanes % 4 + 4 * (lanes // 8)
    of_m = lanes // 8 % 2 if width == 16 else lanes // 4 % 2
    tile = np.zeros((16, 16), loaded.dtype)  # [k, m]
    for lane in lanes:
        tile[of_k[lane], 8 * of_m[lane] : 8 * of_m[lane] + 8] = loaded[lane]
    out = np.ascontiguousarray(got[:, :size]).view(loaded.dtype)
    for lane in lanes:
        np.testing.assert_array_equal(out[lane], tile[8 * (lane // 16) : 8 * (lane // 16) + 8, lane % 16])


def test_transposed_loads_in_waves_of_64_lanes_are_refused(execute):
    with pytest.raises(UnknownInstructionError, match="which lanes exchange what in a wave of 64"):
        # too long for a proof in the record of coverage
        execute("s_nop 0\n" * 40 + "global_load_tr_b128 v[8:9], v[2:3], off", gpu="gfx1201", lanes=64)
