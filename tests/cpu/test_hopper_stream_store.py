"""What hopper_stream.cu stores of a warp's sums, as a C++ program: the kernel's own text, lane beside lane.

Every element of C that the warp has and nothing else is written once, for every shape of a warp's tile, whatever rows
of C are aligned to. `hopper_stream.cu` reads an A that lies along K in another order, which is a case of its own.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from importlib.resources import files

import numpy as np
import pytest

pytest.importorskip("torch")

from laneloom.ops.matmul.config_stream import STREAM_TILES, Feed

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")
#: rows and columns of a warp
WARPS = sorted({(m // tile.warps_m, n * tile.warps_m // warps) for (m, n, warps), tile in STREAM_TILES.items()})
STORES = {"single elements": (1, 0), "pairs": (2, 0), "whole pieces": (2, 1)}  #: C_VECTOR, WIDE_STORE
BEGIN = """
#include <cstdint>
#include <cstring>
#include <pthread.h>
#include <thread>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define AS_IT_LIES 4
typedef uint32_t u32;
typedef int64_t i64;
struct float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static u32 __float_as_uint(float x) { u32 bits; memcpy(&bits, &x, 4); return bits; }
static float __uint_as_float(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
struct Sizes { int M, N; i64 c_m, c_n; };
static pthread_barrier_t all_lanes;
static thread_local int own_lane;
static float there[32];
static void __syncwarp() { pthread_barrier_wait(&all_lanes); }
static float __shfl_sync(u32, float x, int lane) {
    there[own_lane] = x;
    __syncwarp();
    x = there[lane];
    __syncwarp();
    return x;
}
"""
NAMED = ("PAIRED", "TWISTED", "WARP_M", "WARP_N", "THREAD_M", "THREAD_N", "A_LANES", "C_VECTOR", "WIDE_STORE")
#: an element's sum is its own number
RUN = """
static void run(float *c, int M, int N, int c_m, int c_n, int m0, int n0) {
    alignas(16) static char staging[16 * WARP_N * 4];
    auto one = [&](int lane) {
        own_lane = lane;
        Sums sums;
        for (int i = 0; i < THREAD_M; ++i)
            for (int j = 0; j < THREAD_N; ++j)
                sums.x[i][j] = 1 + row_of(i, lane_u(lane)) * WARP_N + column_of(j, lane_v(lane));
        store(sums, c, Sizes{M, N, c_m, c_n}, m0, n0, lane, staging);
    };
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < 32; ++lane) lanes.emplace_back(one, lane);
    for (auto &lane : lanes) lane.join();
}
"""


def _text() -> str:
    kernel = (files("laneloom.ops.matmul.kernels") / "hopper_stream.cu").read_text(encoding="utf-8")
    lanes = re.search(r"^struct Sums .*?(?=^// What one lane holds)", kernel, re.MULTILINE | re.DOTALL)
    stores = re.search(r"^// Sums are stored and loaded.*?(?=^// ---- Parts)", kernel, re.MULTILINE | re.DOTALL)
    assert lanes
    assert stores
    return lanes[0].replace("#define A_STEPS", "//") + stores[0]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A function for each warp's tile, way to read A and way to store."""
    source = [BEGIN]
    for m, n in WARPS:
        for feed in (Feed.IN_ROWS, Feed.AS_IT_LIES):
            for number, (vector, wide) in enumerate(STORES.values()):
                values = ("", "", m, n, m // 8, n // 4, int(feed), vector, wide)
                defined = zip(NAMED[2:], values[2:], strict=True)
                source += [f"namespace of_{m}_{n}_{int(feed)}_{number} {{", *(f"#undef {name}" for name in NAMED),
                           *(f"#define {name} {value}" for name, value in defined), _text(), RUN, "}"]  # fmt: skip
    calls = "\n".join(
        f'extern "C" void run_{name}(float *c, int M, int N, int c_m, int c_n, int m0, int n0) {{ '
        f"pthread_barrier_init(&all_lanes, nullptr, 32); of_{name}::run(c, M, N, c_m, c_n, m0, n0); }}"
        for name in re.findall(r"namespace of_(\w+)", "\n".join(source))
    )
    folder = tmp_path_factory.mktemp("store")
    (folder / "store.cpp").write_text("\n".join(source) + calls)
    command = [str(COMPILER), "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-pthread", "-o", str(folder / "store.so")]
    built = subprocess.run([*command, str(folder / "store.cpp")], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[:2000]
    return ctypes.CDLL(str(folder / "store.so"))


@pytest.mark.parametrize("stores", STORES)
@pytest.mark.parametrize("feed", [Feed.IN_ROWS, Feed.AS_IT_LIES])
@pytest.mark.parametrize(("rows", "columns"), WARPS)
def test_each_element_is_written_once_and_nothing_else(library, rows, columns, feed, stores):
    number = list(STORES).index(stores)
    step = (1, 2, 4)[number]  # what C's sides and pitch are multiples of
    run = getattr(library, f"run_{rows}_{columns}_{int(feed)}_{number}")
    m0, n0 = 3, 4 * step
    for m, n in ((m0 + rows, n0 + columns), (m0 + rows - 5, n0 + columns - step), (m0 + 1, n0 + step)):
        for across in (1, 3) if step == 1 else (1,):
            pitch = (n + 2 * step) * across
            c = np.full((m + rows, pitch), np.nan, np.float32)
            run(ctypes.c_void_p(c.ctypes.data), m, n, pitch, across, m0, n0)
            expected = np.full_like(c, np.nan)
            there = expected[m0:m, n0 * across : n * across : across]
            there[:] = (1 + np.arange(rows)[:, None] * columns + np.arange(columns))[: m - m0, : n - n0]
            np.testing.assert_array_equal(c, expected)
