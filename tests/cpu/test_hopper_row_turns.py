"""The turns of hopper_row.cu as a C++ program: which rows its lanes multiply, and what an infinity becomes.

The kernel's own text up to its sums, thread after thread. Left out are its instructions: loads are the model's, which
counts those outside of B, and A comes element by element.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

pytest.importorskip("torch")

from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config_row import RowConfig
from laneloom.ops.matmul.kernels import hopper_row
from laneloom.ops.matmul.problem import MatmulProblem

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")
GPU = get_gpu("sm_90a")
BEGIN = """
#include <algorithm>
#include <cstring>
using std::min;
#define asm
#define volatile(...)
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
struct uint4 { unsigned x, y, z, w; };
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static struct { int x; } threadIdx, blockIdx;
static unsigned __cvta_generic_to_shared(const void *) { return 0; }
static float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static double __hiloint2double(unsigned high, unsigned low) {
    const unsigned long long bits = (unsigned long long)high << 32 | low;
    double x;
    memcpy(&x, &bits, 8);
    return x;
}
"""
LOADS = """
static const char *b_from, *b_to;
static SUM *sums;
static int outside;
static uint4 load_once(const void *from) {
    uint4 x = {};
    if (from < b_from || (const char *)from + 16 > b_to) ++outside;
    else memcpy(&x, from, 16);
    return x;
}
#define cluster_rank() (blockIdx.x % CLUSTER)
"""
KEPT = "    for (int j = 0; j < WIDE; ++j) sums[block + lane % LANES * WIDE + j] += acc[j];\n}\n"
RUN = """
extern "C" int run(const ELEMENT *a, const ELEMENT *b, OUT_TYPE *c, int n, int k) {
    b_from = (const char *)b, b_to = (const char *)(b + (i64)n * k), sums = c, outside = 0;
    for (blockIdx.x = 0; blockIdx.x < n / COLUMNS * CLUSTER; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x) matmul_hopper_row(a, b, c, RowSizes{n, k, 1, n, 1});
    return outside;
}
"""
CASES = {
    "a part of a turn, a ragged unit": ("bf16", 128, 1101, RowConfig(block_n=64, num_warps=16, cluster_k=2)),
    "two units, whole turns": ("bf16", 256, 1024, RowConfig(block_n=256, num_warps=8, stages=2, cluster_k=4)),
    "two units, a part of a turn": ("bf16", 256, 1000, RowConfig(block_n=256, num_warps=8, stages=2, cluster_k=2)),
    "two units, a ragged one": ("bf16", 128, 1093, RowConfig(block_n=128, num_warps=8, stages=2, cluster_k=2)),
    "parts without a unit": ("bf16", 64, 37, RowConfig(block_n=32, num_warps=1, stages=2, cluster_k=8)),
    "FP32, a ragged unit": ("fp32", 96, 1101, RowConfig(block_n=32, num_warps=16, cluster_k=2)),
    "FP32, two units": ("fp32", 128, 2056, RowConfig(block_n=64, num_warps=8, stages=2, cluster_k=4)),
    "FP64, a ragged unit": ("fp64", 48, 1101, RowConfig(block_n=16, num_warps=16, cluster_k=2)),
    "FP64, two units": ("fp64", 64, 1000, RowConfig(block_n=64, num_warps=8, stages=2)),
}
TYPES = {"bf16": np.float32, "fp32": np.float32, "fp64": np.float64}


@pytest.fixture(params=CASES)
def case(request, tmp_path, monkeypatch):
    """Sizes, and what multiplies a row by a matrix, and gives the loads outside of B as well."""
    dtype, n, k, config = CASES[request.param]
    problem = MatmulProblem.contiguous(1, n, k, dtype=dtype, dtype_out="fp32" if dtype == "bf16" else dtype)
    assert config.why_invalid(problem, GPU) is None
    monkeypatch.setattr(hopper_row, "compile_cuda", lambda source, gpu, **given: (source, given["constants"]))
    text, constants = hopper_row.code_object(problem, config, GPU)
    header, kernel = text.split("// C = A B for one row")
    taken = r"^(?:typedef .*|struct bf16 .*|__device__ .* as_float\(bf16 .*)$"
    types = re.findall(taken, header, re.MULTILINE)
    kernel = re.sub(r"^__device__[^\n]* load_once\(.*?^}\n", "", "//" + kernel, flags=re.MULTILINE | re.DOTALL)
    kernel = re.sub(r"^.*(release_successor|wait_for_predecessor)\(\);.*\n", "", kernel, flags=re.MULTILINE)
    turns, reduction, _ = kernel.partition("#pragma unroll\n    for (int j = 0; j < WIDE; ++j) {\n")
    assert reduction
    lines = [f"#define {name} {value}" for name, value in (constants | {"A_LINES": 0}).items()]
    source, library = tmp_path / "row.cpp", tmp_path / "row.so"
    source.write_text("\n".join([BEGIN, *types, *lines, LOADS, turns + KEPT, RUN]))
    command = [str(COMPILER), "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-o", str(library), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[:2000]
    run = ctypes.CDLL(str(library)).run

    def multiply(a, b):
        words = [np.ascontiguousarray(x, TYPES[dtype]) for x in (a, b)]
        if dtype == "bf16":
            words = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in words]
        c = np.zeros(n, TYPES[dtype])
        return c, run(*(ctypes.c_void_p(x.ctypes.data) for x in (*words, c)), n, k)

    return n, k, multiply


def test_every_row_is_multiplied_once(case):
    """Of small integers, so that sums are exact in any order."""
    n, k, multiply = case
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, k).astype(np.float32)
    b = random.integers(-4, 5, (k, n)).astype(np.float32)
    c, outside = multiply(a, b)
    assert (c == a @ b).all()
    assert outside == 0


@pytest.mark.covering
@pytest.mark.parametrize("where", [0, 8, -1])
def test_an_infinity_meets_no_zero_that_is_not_in_b(case, where):
    n, k, multiply = case
    a, b = np.ones(k, np.float32), np.ones((k, n), np.float32)
    a[where] = np.inf
    b[where, ::2] = -1
    assert (multiply(a, b)[0] == b[where] * np.inf).all()
