"""Hopper's attention on 8-bit floats on a CPU model of its instructions: the kernel's own text, every thread by itself.

The full product of options runs with LANELOOM_MODEL=all; one of them otherwise, with wgmma as late as its wait allows.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os

import numpy as np
import pytest
from hopper_model import COMPILER, built, tensor_map

torch = pytest.importorskip("torch")

from laneloom import verify  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.attention import reference  # noqa: E402
from laneloom.ops.attention.config_float8 import HopperFloat8Config  # noqa: E402
from laneloom.ops.attention.execute import Packing, band_of, problem_of  # noqa: E402
from laneloom.ops.attention.hopper import source_text  # noqa: E402
from laneloom.ops.attention.hopper_launch import forward_section  # noqa: E402
from laneloom.ops.attention.kernels.hopper_forward_float8 import constants_of  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
FLOAT8 = torch.float8_e4m3fn
LAUNCH = """
struct Call {
  TensorMap *q, *k, *v, *o; u16* out; float* lse; const int *first_q, *first_k; int* counter;
  const float* scales[3]; i64 s[5]; int n[9], steps[6]; float scale2, number_v;
};
extern "C" void launch(int grid, int threads, int late, const Call* c) {
  const i64* s = c->s;
  const int *n = c->n, *t = c->steps;
  run_grid(grid, threads, late, [=] {
    attention_hopper_forward_float8(*c->q, *c->k, *c->v, *c->o, c->out, c->lse, c->first_q, c->first_k, c->counter,
        s[0], s[1], s[2], s[3], s[4], c->scale2, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], c->scales[0],
        c->scales[1], c->scales[2], t[0], t[1], t[2], t[3], t[4], t[5], c->number_v);
  });
}
"""


class Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in "q k v o out lse first_q first_k counter".split()),
        ("scales", ctypes.c_void_p * 3), ("s", ctypes.c_longlong * 5), ("n", ctypes.c_int * 9),
        ("steps", ctypes.c_int * 6), ("scale2", ctypes.c_float), ("number_v", ctypes.c_float),
    )  # fmt: skip


def check(folder, heads, kv_heads, d, d_v, causal, window, lengths, *, packed, consumers=3, negative=False, late=True):
    """All of O and LSE; lengths: (queries, keys) of sequences, of which one alone need not be packed."""
    torch.manual_seed(0)
    queries, keys = (list(itertools.accumulate((0, *n))) for n in zip(*lengths, strict=True))
    n, m, group = queries[-1], keys[-1], heads // kv_heads
    q, k, v = (
        torch.randn(1, rows, h, width).transpose(1, 2)
        for rows, h, width in ((n, heads, d), (m, kv_heads, d), (m, kv_heads, d_v))
    )
    q, k, v = (x.to(FLOAT8) for x in ((-q.abs(), k.abs(), v) if negative else (q, k, v)))
    first_q, first_k = (torch.tensor(x, dtype=torch.int32) for x in (queries, keys))
    packing = Packing(first_q, first_k, max(x for x, _ in lengths), max(y for _, y in lengths)) if packed else None
    seen = band_of(causal, window)
    problem = dataclasses.replace(problem_of(q, k, v, "fp8", None, seen, packing), out="bf16")
    config = HopperFloat8Config(consumers=consumers, q_buffers=1 if d > 128 else 2)
    assert config.why_invalid(problem, get_gpu("sm_90a")) is None
    text = source_text("hopper_forward_float8.cu", [], "attention_hopper_forward.cuh")
    library = built(text, constants_of(problem, config) | {"ELEMENT_BYTES": 1}, LAUNCH, folder)
    scales = [torch.rand(len(lengths), kv_heads) + 0.5 for _ in range(3)]
    out = torch.full((1, heads, n, d_v), torch.nan, dtype=torch.bfloat16)
    lse, counter = torch.full((1, heads, n), torch.nan), torch.zeros(1, dtype=torch.int32)
    maps = [tensor_map(q, 64), tensor_map(k, 128), tensor_map(v, 128), tensor_map(out, 16)]
    scale2, *sizes, first, last = problem.scalars()
    tiles = config.tiles(problem)
    call = Call(
        *map(ctypes.addressof, maps), out.data_ptr(), lse.data_ptr(),
        *(x.data_ptr() if packed else None for x in (first_q, first_k)), counter.data_ptr(),
        (ctypes.c_void_p * 3)(*(x.data_ptr() for x in scales)),
        (ctypes.c_longlong * 5)(*out.stride()[:3], *lse.stride()[:2]),
        (ctypes.c_int * 9)(*sizes, problem.batch, first, last, forward_section(problem, config), tiles),
        (ctypes.c_int * 6)(*(step for x in scales for step in x.stride())), scale2, 0.5,
    )  # fmt: skip
    library.launch(min(2, tiles), 32 * config.num_warps, late, ctypes.byref(call))
    assert counter.item() == 0
    for b, h in itertools.product(range(len(lengths)), range(heads)):
        rows, columns = slice(*queries[b : b + 2]), slice(*keys[b : b + 2])
        if rows.start == rows.stop:
            continue
        scale_q, scale_k, scale_v = (x[b, h // group].double().numpy() for x in scales)
        wide = [x[:, i : i + 1, at].double().numpy() for x, i, at in (
            (q, h, rows), (k, h // group, columns), (v, h // group, columns))]  # fmt: skip
        wide = [wide[0] * scale_q, wide[1] * scale_k, wide[2] * scale_v * 0.5]
        options = {"causal": seen.causal, "left": seen.left, "right": seen.right}
        truth = reference.attention(*wide, **options)
        # Weights with an error of half a unit of e4m3 each, and the rounding to bf16.
        summed = reference.attention(*wide[:2], abs(wide[2]), **options).out
        error = abs(out[:, h : h + 1, rows].double().numpy() - truth.out)
        assert (error <= (2**-4 + 2**-12) * summed + verify.UNIT_ROUNDOFF["bf16"] * abs(truth.out) + 1e-30).all()
        assert np.allclose(lse[:, h : h + 1, rows].double().numpy(), truth.lse, rtol=1e-5, atol=1e-5)


def test_forward(tmp_path):
    """A band's both ends, rows that see nothing, sequences of all kinds."""
    lengths = [(70, 133), (0, 9), (65, 0), (100, 260)]
    check(tmp_path, 2, 1, 80, 96, True, (70, 30), lengths, packed=True)


@pytest.mark.skipif(os.environ.get("LANELOOM_MODEL") != "all", reason="LANELOOM_MODEL=all runs it")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, (70, 30))])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("d", "d_v", "consumers"), [(64, 64, 3), (128, 128, 3), (16, 48, 2), (256, 128, 3), (160, 16, 1)]
)
def test_every_option(tmp_path, d, d_v, consumers, packed, causal, window, late):
    lengths = [(5, 9), (0, 12), (233, 200), (129, 3), (64, 0), (1, 70)] if packed else [(200, 300)]
    check(tmp_path, 2, 1, d, d_v, causal, window, lengths, packed=packed, consumers=consumers, late=late,
          negative=d == 64)
