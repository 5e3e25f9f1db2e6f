"""Hopper's attention forward on a CPU model of its instructions: the kernel's own text, every thread by itself.

The full product of options runs with LANELOOM_MODEL=all; one of each kind otherwise, with wgmma as late as its wait
allows.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
from hopper_model import COMPILER, WARPS, built, tensor_map

torch = pytest.importorskip("torch")

from laneloom import verify  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.attention import reference  # noqa: E402
from laneloom.ops.attention.config_hopper import HopperForwardConfig  # noqa: E402
from laneloom.ops.attention.execute import Packing, band_of, problem_of  # noqa: E402
from laneloom.ops.attention.hopper import band_constants, factors, source_text  # noqa: E402
from laneloom.ops.attention.hopper_launch import forward_section  # noqa: E402
from laneloom.ops.attention.kernels.hopper_forward import constants_of  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: what the kernel's text has as assembly: products of either first operand
FUNCTIONS = """
inline void multiply_scores(float (&d)[COLUMNS / 2], u64 a, u64 b, int accumulate) {
  multiply_shared<COLUMNS>(d, a, false, b, false, accumulate);
}
inline void multiply_scores(float (&d)[COLUMNS / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {
  multiply_registers<COLUMNS>(d, {a0, a1, a2, a3}, b, accumulate, false);
}
inline void multiply_values(float (&d)[D_V / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {
  multiply_registers<D_V>(d, {a0, a1, a2, a3}, b, accumulate);
}
"""
LAUNCH = """
#if SOFTCAP
#define MORE , c->slope2
#else
#define MORE
#endif
struct Call {
  TensorMap *q, *k, *v, *o; u16* out; float* lse; const int *first_q, *first_k; int* counter;
  i64 s[5]; int n[10]; float scale2, slope2;
};
extern "C" void launch(int grid, int threads, int late, const Call* c) {
  const i64* s = c->s;
  const int* n = c->n;
  run_grid(grid, threads, late, [=] {
    attention_hopper_forward(*c->q, *c->k, *c->v, *c->o, c->out, c->lse, c->first_q, c->first_k, c->counter, s[0],
        s[1], s[2], s[3], s[4], c->scale2, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9] MORE);
  });
}
"""


class Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in "q k v o out lse first_q first_k counter".split()),
        ("s", ctypes.c_longlong * 5), ("n", ctypes.c_int * 10), ("scale2", ctypes.c_float),
        ("slope2", ctypes.c_float),
    )  # fmt: skip


JOIN = """
extern "C" void launch(const u16* parts, const float* part_lse, u16* out, float* lse, const int* first_q, int ctas,
                       int queries, int heads, int parts_of, int batches) {
  const i64 head = queries, row = D_V;
  run_grid(ctas, 256, false, [=] {
    attention_hopper_forward_join(parts, part_lse, out, lse, first_q, heads * head * row, head * row, row, heads * head,
                                  head, queries, heads, parts_of, batches);
  });
}
"""


def joined(folder, problem, part_out, part_lse, parts, first_q):
    """O and LSE of what parts of the keys left."""
    _, heads, n, d_v = part_out.shape
    heads //= parts
    out, lse = torch.full((1, heads, n, d_v), torch.nan, dtype=part_out.dtype), torch.full((1, heads, n), torch.nan)
    text = source_text("hopper_forward_join.cu", [], "attention_hopper_halves.cuh")
    (folder / "join").mkdir()
    library = built(text, band_constants(problem), JOIN, folder / "join")
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (part_out, part_lse, out, lse, first_q))
    library.launch(*pointers, -(-out.numel() // 8 // 256), n, heads, parts, problem.batch)
    return out, lse


def check(
    folder, heads, kv_heads, d, d_v, causal, window, lengths, *, packed, dtype="bf16", late=True, softcap=0.0, **knobs
):
    """All of O and LSE; lengths: (queries, keys) of sequences, of which one alone need not be packed."""
    torch.manual_seed(0)
    queries, keys = (list(itertools.accumulate((0, *n))) for n in zip(*lengths, strict=True))
    n, m, group = queries[-1], keys[-1], heads // kv_heads
    q, k, v = (
        torch.randn(1, rows, h, width).transpose(1, 2).to(DTYPES[dtype])
        for rows, h, width in ((n, heads, d), (m, kv_heads, d), (m, kv_heads, d_v))
    )
    q *= 3  # so that maxima move
    first_q, first_k = (torch.tensor(x, dtype=torch.int32) for x in (queries, keys))
    packing = Packing(first_q, first_k, max(x for x, _ in lengths), max(y for _, y in lengths)) if packed else None
    seen = band_of(causal, window)
    problem = problem_of(q, k, v, dtype, None, seen, packing, softcap)
    config = HopperForwardConfig(**({"columns": 80} | knobs))
    assert config.why_invalid(problem, get_gpu("sm_90a")) is None
    text = source_text("hopper_forward.cu", [FUNCTIONS], "attention_hopper_forward.cuh")
    library = built(text, constants_of(problem, config), LAUNCH, folder, WARPS)
    parts = config.parts
    out = torch.full((1, heads * parts, n, d_v), torch.nan, dtype=q.dtype)
    lse, counter = torch.full((1, heads * parts, n), torch.nan), torch.zeros(1, dtype=torch.int32)
    maps = [tensor_map(q, 64), tensor_map(k, config.columns), tensor_map(v, config.columns), tensor_map(out, 16)]
    split = replace(problem, heads=heads * parts)
    _, *sizes, first, last = split.scalars()
    tiles = config.tiles(split)
    call = Call(
        *map(ctypes.addressof, maps), out.data_ptr(), lse.data_ptr(),
        *(x.data_ptr() if packed else None for x in (first_q, first_k)), counter.data_ptr(),
        (ctypes.c_longlong * 5)(*out.stride()[:3], *lse.stride()[:2]),
        (ctypes.c_int * 10)(*sizes, problem.batch, first, last, forward_section(split, config), tiles, parts),
        *factors(split),
    )  # fmt: skip
    library.launch(min(2, tiles), 32 * config.num_warps, late, ctypes.byref(call))
    assert counter.item() == 0
    if parts > 1:
        out, lse = joined(folder, problem, out, lse, parts, first_q)
    for b, h in itertools.product(range(len(lengths)), range(heads)):
        rows, columns = slice(*queries[b : b + 2]), slice(*keys[b : b + 2])
        if rows.start == rows.stop:
            continue
        wide = [x[:, i : i + 1, at].double().numpy() for x, i, at in (
            (q, h, rows), (k, h // group, columns), (v, h // group, columns))]  # fmt: skip
        options = {"causal": seen.causal, "left": seen.left, "right": seen.right, "softcap": softcap}
        truth = reference.attention(*wide, **options)
        # Weights are rounded to 16 bits, and so is the output; exponentials are those of FP32.
        summed = reference.attention(*wide[:2], abs(wide[2]), **options).out
        error, unit = abs(out[:, h : h + 1, rows].double().numpy() - truth.out), verify.UNIT_ROUNDOFF[dtype]
        # So is what a part of the keys leaves.
        rounded = (unit + 2**-12 + unit * (parts > 1)) * summed
        assert (error <= rounded + unit * abs(truth.out) + 1e-30).all()
        assert np.allclose(lse[:, h : h + 1, rows].double().numpy(), truth.lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "knobs",
    [
        {"consumers": 2, "q_buffers": 2, "q_in_registers": True}, {"consumers": 1, "resident": 2, "q_buffers": 1},
        {"consumers": 3, "q_buffers": 2, "stages": 3}, {"consumers": 2, "q_buffers": 2, "early": True},
        {"consumers": 1, "q_buffers": 2, "columns": 48, "parts": 3},
    ],
)  # fmt: skip
def test_forward(tmp_path, knobs):
    """A band's both ends, rows that see nothing, sequences of all kinds; the next tile's scores begun early and not."""
    lengths = [(70, 133), (0, 9), (65, 0), (200, 260)]
    check(tmp_path, 2, 1, 80, 48, True, (70, 30), lengths, packed=True, **knobs)


def test_capped_scores(tmp_path):
    """Blocks that the mask cuts, and others, where neighbours share a reciprocal."""
    lengths = [(70, 133), (0, 9), (200, 260)]
    check(tmp_path, 2, 1, 64, 48, True, (150, 30), lengths, packed=True, softcap=2.0, consumers=1, columns=48)


@pytest.mark.skipif(os.environ.get("LANELOOM_MODEL") != "all", reason="LANELOOM_MODEL=all runs it")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, (70, 30))])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("d", "d_v", "dtype", "knobs"),
    [
        (64, 64, "bf16", {"consumers": 3, "q_buffers": 2, "stages": 3, "columns": 128}),
        (64, 64, "fp16", {"consumers": 1, "q_buffers": 2, "columns": 64, "resident": 3}),
        (128, 128, "fp16", {"consumers": 2, "q_buffers": 2, "q_in_registers": True, "columns": 128}),
        (128, 128, "bf16", {"consumers": 2, "columns": 160}), (256, 256, "bf16", {"consumers": 2}),
        (64, 32, "fp16", {"consumers": 1, "q_buffers": 2, "columns": 64, "parts": 4}),
        (16, 48, "fp16", {"consumers": 2, "q_buffers": 2, "columns": 208, "early": True}),
        (128, 64, "bf16", {"consumers": 2, "q_buffers": 2, "q_in_registers": True, "columns": 112, "early": True}),
    ],
)  # fmt: skip
def test_every_option(tmp_path, d, d_v, dtype, knobs, packed, causal, window, late):
    lengths = [(5, 9), (0, 12), (233, 200), (129, 3), (64, 0), (1, 70)] if packed else [(200, 300)]
    check(tmp_path, 2, 1, d, d_v, causal, window, lengths, packed=packed, dtype=dtype, late=late, **knobs)
