"""Atomics on numbers that differ from each other in little: zeros, NaN, infinities, denormals."""

import numpy as np
import pytest
from test_memory_instructions import in_space, random_bytes, run

from laneloom.gpu import get_gpu

DTYPES = {32: np.float32, 64: np.float64}
NAN, INF = float("nan"), float("inf")
#: what memory holds, the operand, and the smaller and the larger of them: -0 is below +0, a NaN is no number
PAIRS = [
    (0.0, -0.0, -0.0, 0.0), (-0.0, 0.0, -0.0, 0.0), (1.0, NAN, 1.0, 1.0), (NAN, -2.0, -2.0, -2.0),
    (1e-40, 0.0, 0.0, 1e-40), (INF, -1.0, -1.0, INF), (-INF, NAN, -INF, -INF), (-1e-39, 1e-39, -1e-39, 1e-39),
]  # fmt: skip


def in_lanes(values: list[float], bits: int) -> np.ndarray:
    rows = random_bytes(bits)[0].copy()
    rows[:, : bits // 8] = np.resize(np.array(values, DTYPES[bits]), 32).view(np.uint8).reshape(32, -1)
    return rows


def executed(
    gpu: str, space: str, op: str, bits: int, memory: list[float], data: list[float], before: str = ""
) -> np.ndarray:
    registers = "v8" if bits == 32 else "v[8:9]"
    text = {"global": f"global_atomic_{op} v1, {registers}, s[2:3]", "ds": f"ds_{op} v1, {registers}"}[space]
    body = before + (in_space("ds", text) if space == "ds" else text + "\n{waits}")
    after, _ = run(gpu, body, in_lanes(memory, bits), in_lanes(data, bits))
    return after[: len(memory), : bits // 8].copy().view(DTYPES[bits])[:, 0]


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


@pytest.mark.parametrize(
    ("gpu", "flushes"), [("gfx908", True), ("gfx90a", True), ("gfx942", False), ("gfx1151", False)],
)  # fmt: skip
def test_sums_of_denormals(gpu, flushes):
    """In the memory of CDNA 1 and 2 they are zeros, as operands and as sums; in LDS the mode decides."""
    memory, data = [1e-40, 1e-38, 2e-38, -1e-39], [1.0, 1e-39, -1.9e-38, -1e-39]
    exact = np.array(memory, np.float32) + np.array(data, np.float32)
    want = np.array([1.0, 0.0, 0.0, 0.0], np.float32) if flushes else exact
    got = executed(gpu, "global", "add_f32", 32, memory, data)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(executed(gpu, "ds", "add_f32", 32, memory, data), exact)


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx1151", "gfx1201"])
@pytest.mark.parametrize("bits", [32, 64])
def test_lds_takes_denormals_for_zeros_where_mode_does(gpu, bits):
    """Sums, and minima, which before gfx12 leave the number that they choose as it is."""
    if bits == 64 and gpu == "gfx1151":
        pytest.skip("no sums of float64 in its LDS")
    tiny = 2.0 ** (-130 if bits == 32 else -1026)
    least = tiny * 16
    memory, data = [tiny, least, -tiny, 1.0], [1.0, -least - tiny, 0.0, tiny]
    before = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 0\n"
    got = executed(gpu, "ds", f"add_f{bits}", bits, memory, data, before)
    np.testing.assert_array_equal(got, np.array([1, 0, 0, 1], DTYPES[bits]))
    name = "min_num" if gpu == "gfx1201" else "min"
    got = executed(gpu, "ds", f"{name}_f{bits}", bits, memory, data, before)
    kept = 0 if gpu == "gfx1201" else tiny
    np.testing.assert_array_equal(got, np.array([kept, -least - tiny, -kept, kept], DTYPES[bits]))
