"""Atomics on numbers that differ from each other in little: zeros, NaN, infinities, denormals."""

import numpy as np
import pytest
from numpy.typing import ArrayLike
from test_memory_instructions import in_space, random_bytes, run

from laneloom.gpu import get_gpu

DTYPES = {32: np.float32, 64: np.float64}
NAN, INF = float("nan"), float("inf")
#: what memory holds, the operand, and the smaller and the larger of them: -0 is below +0, a NaN is no number
PAIRS = [
    (0.0, -0.0, -0.0, 0.0), (-0.0, 0.0, -0.0, 0.0), (1.0, NAN, 1.0, 1.0), (NAN, -2.0, -2.0, -2.0),
    (1e-40, 0.0, 0.0, 1e-40), (INF, -1.0, -1.0, INF), (-INF, NAN, -INF, -INF), (-1e-39, 1e-39, -1e-39, 1e-39),
]  # fmt: skip


def in_lanes(values: ArrayLike, bits: int) -> np.ndarray:
    rows = random_bytes(bits)[0].copy()
    rows[:, : bits // 8] = np.resize(np.array(values, DTYPES[bits]), 32).view(np.uint8).reshape(32, -1)
    return rows


def executed(
    gpu: str, space: str, op: str, bits: int, memory: ArrayLike, data: ArrayLike, before: str = ""
) -> np.ndarray:
    registers = "v8" if bits == 32 else "v[8:9]"
    text = {"global": f"global_atomic_{op} v1, {registers}, s[2:3]", "ds": f"ds_{op} v1, {registers}"}[space]
    body = before + (in_space("ds", text) if space == "ds" else text + "\n{waits}")
    after, _ = run(gpu, body, in_lanes(memory, bits), in_lanes(data, bits))
    return after[: np.size(memory), : bits // 8].copy().view(DTYPES[bits])[:, 0]


@pytest.mark.parametrize(("gpu", "space", "bits"), [
    ("gfx1151", "global", 32), ("gfx1151", "ds", 32), ("gfx1201", "global", 32), ("gfx1201", "ds", 64),
    ("gfx942", "ds", 32), ("gfx942", "ds", 64), ("gfx90a", "global", 64), ("gfx1250", "global", 64),
])  # fmt: skip
@pytest.mark.parametrize("largest", [False, True])
def test_smaller_and_larger(gpu, space, bits, largest):
    name = ("max" if largest else "min") + ("_num" if get_gpu(gpu).major == 12 else "")
    got = executed(gpu, space, f"{name}_f{bits}", bits, [p[0] for p in PAIRS], [p[1] for p in PAIRS])
    want = np.array([p[3 if largest else 2] for p in PAIRS], DTYPES[bits])
    np.testing.assert_array_equal(got.view(f"u{bits // 8}"), want.view(f"u{bits // 8}"))


@pytest.mark.parametrize(("gpu", "flushes"), [
    ("gfx908", True), ("gfx90a", True), ("gfx942", True), ("gfx1151", True), ("gfx1201", False),
])  # fmt: skip
def test_sums_of_denormals(gpu, flushes):
    """In memory before RDNA 4 denormal operands are zeros, not sums; in LDS the mode decides."""
    memory, data = [1e-40, 1e-38, 2e-38, -1e-39], [1.0, 1e-39, -1.9e-38, -1e-39]
    exact = np.array(memory, np.float32) + np.array(data, np.float32)
    want = np.array([1.0, 0.0, exact[2], -0.0], np.float32) if flushes else exact
    got = executed(gpu, "global", "add_f32", 32, memory, data)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    np.testing.assert_array_equal(executed(gpu, "ds", "add_f32", 32, memory, data), exact)


MODE_FLUSHES = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 0\n"


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx1151", "gfx1201"])
@pytest.mark.parametrize("bits", [32, 64])
def test_lds_takes_denormals_for_zeros_where_mode_does(gpu, bits):
    """Sums of float32, and minima, which before gfx12 leave the number that they choose as it is."""
    tiny = 2.0 ** (-130 if bits == 32 else -1026)
    least = tiny * 16
    memory, data = [tiny, least, -tiny, 1.0], [1.0, -least - tiny, 0.0, tiny]
    if gpu == "gfx90a" or bits == 32:
        got = executed(gpu, "ds", f"add_f{bits}", bits, memory, data, MODE_FLUSHES)
        want = [1, 0, 0, 1] if bits == 32 else np.add(memory, data)
        np.testing.assert_array_equal(got, np.array(want, DTYPES[bits]))
    name = "min_num" if gpu == "gfx1201" else "min"
    got = executed(gpu, "ds", f"{name}_f{bits}", bits, memory, data, MODE_FLUSHES)
    kept = 0 if gpu == "gfx1201" else tiny
    np.testing.assert_array_equal(got, np.array([kept, -least - tiny, -kept, kept], DTYPES[bits]))


def of_codes(gpu: str, space: str, op: str, rows: list[tuple[int, ...]], before: str = "") -> list[int]:
    """What 32 bits of memory, the first of each row, become by operands of the same type."""
    memory, data = (np.array([row[k] for row in rows], np.uint32).view(np.float32) for k in (0, 1))
    return executed(gpu, space, op, 32, memory, data, before).view(np.uint32).tolist()


@pytest.mark.parametrize(("gpu", "space"), [
    ("gfx942", "ds"), ("gfx1151", "ds"), ("gfx1151", "global"), ("gfx1201", "ds"), ("gfx1201", "global"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["min", "max"])
def test_extrema_of_nan(gpu, space, name):
    """Before RDNA 4 a signalling NaN wins, memory's first; there it is no number, and of two the operand comes out."""
    newer = gpu == "gfx1201"
    one, quiet, other, signalling = 0x3F800000, 0x7FC00002, 0xFFC00004, 0x7F800008
    quieted = signalling | 0x400000
    rows = [
        (signalling, one, one if newer else quieted), (one, signalling, one if newer else quieted),
        (quiet, one, one), (one, quiet, one), (quiet, other, other if newer else quiet), (quiet, signalling, quieted),
        (signalling, quiet, quiet if newer else quieted),
    ]  # fmt: skip
    assert of_codes(gpu, space, f"{name}{'_num' * newer}_f32", rows) == [row[2] for row in rows]


@pytest.mark.parametrize("gpu", ["gfx942", "gfx1201"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_packed_sums_in_lds_follow_the_denormal_mode(gpu, kind):
    rows = [(0x00010001, 0x00010001), (0x80010000, 0x00000001)]
    assert of_codes(gpu, "ds", f"pk_add_{kind}", rows) == [0x00020002, 0x80010001]
    assert of_codes(gpu, "ds", f"pk_add_{kind}", rows, MODE_FLUSHES) == [0, 0]


@pytest.mark.parametrize("space", ["ds", "global"])
def test_comparing_floats_follows_the_denormal_mode(space):
    """RDNA 3: a swap leaves a zero for a denormal, a minimum the number that it chose."""
    swap = {"ds": "ds_cmpstore_f32 v1, v8, v9", "global": "global_atomic_cmpswap_f32 v1, v[8:9], s[2:3]"}[space]
    rows, data = np.zeros((2, 32, 16), np.uint8)
    rows.view(np.uint32)[:3, 0] = [1, 1, 0x80000001]
    data.view(np.uint32)[:3, :2] = [[0x3F800000, 0], [2, 5], [2, 0x3F800000]]  # the new value, the one to compare with
    body = MODE_FLUSHES + (in_space("ds", swap) if space == "ds" else swap + "\n{waits}")
    after = run("gfx1151", body, rows, data)[0][:3, :4].copy().view(np.uint32)[:, 0].tolist()
    assert after == [0x3F800000, 0, 0x80000000]
    assert of_codes("gfx1151", space, "min_f32", [(2, 1), (0x80000001, 1)], MODE_FLUSHES) == [2, 0x80000001]
