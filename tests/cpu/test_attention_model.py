"""Hopper's attention backward on a CPU model of its instructions: the kernels' own text, every thread by itself.

The full product of options runs with LANELOOM_MODEL=all; one of each kernel otherwise, with wgmma as late as its wait
allows.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hopper_model import COMPILER, built, tensor_map

torch = pytest.importorskip("torch")

from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.attention.config import plan_backward  # noqa: E402
from laneloom.ops.attention.execute import Packing, band, band_of, problem_of  # noqa: E402
from laneloom.ops.attention.hopper import factors, source_text  # noqa: E402
from laneloom.ops.attention.hopper_gradients import constants_of, end_constants, waves  # noqa: E402
from laneloom.ops.attention.problem import AttentionProblem  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
GPU = get_gpu("sm_90a")
BLOCK = 64
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: three to five times what the rounding of P, dS and the results makes of standard normal operands
BUDGET = {"bf16": 8e-3, "fp16": 1e-3}
ENDS = source_text("hopper_backward_ends.cu", [], "attention_hopper_halves.cuh")
LAUNCH = """
#if SOFTCAP
#define MORE , c->slope2
#else
#define MORE
#endif
struct Call {
  TensorMap *q, *k, *v, *g;
  const LINES* lines; float* sums; u16 *dk, *dv; const int *first_q, *first_k; int* counter;
  i64 s[6]; float scale2, scale; int n[12]; float slope2;
};
extern "C" void launch(int grid, int threads, int cluster, int late, const Call* c) {
  const i64* s = c->s;
  const int* n = c->n;
  run_grid(grid, threads, late, [=] {
    KERNEL(*c->q, *c->k, *c->v, *c->g, c->lines, c->sums, c->dk, c->dv, c->first_q, c->first_k, c->counter, s[0], s[1],
           s[2], s[3], s[4], s[5], c->scale2, c->scale, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9],
           n[10], n[11] MORE);
  }, cluster);
}
"""


class Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in "q k v g lines sums dk dv first_q first_k counter".split()),
        ("s", ctypes.c_longlong * 6), ("scale2", ctypes.c_float), ("scale", ctypes.c_float), ("n", ctypes.c_int * 12),
        ("slope2", ctypes.c_float),
    )  # fmt: skip


def compiled(problem, config, folder: Path) -> ctypes.CDLL:
    columns = ["attention_hopper_columns.cuh"] if config.pieces else []
    text = source_text(f"{config.schedule}.cu", [], "attention_hopper_backward.cuh", *columns)
    constants = constants_of(problem, config) | {"KERNEL": f"attention_{config.schedule}"}
    return built(text, constants | {"LINES": "char" if config.pieces else "float"}, LAUNCH, folder)


def pieces(x, dtype):
    """[..., 8]: x as 2^15 a + 16 b + c in 16 bits, and zeros, as attention_hopper_start writes it."""
    a = (x / 2**15).to(dtype)
    rest = torch.where(x.isinf(), 0.0, x - 2**15 * a.float())
    b = (rest / 16).to(dtype)
    return torch.stack([a, b, (rest - 16 * b.float()).to(dtype), *[torch.zeros_like(a)] * 5], -1)


def exact(q, k, v, g, sequences, causal, window, softcap):
    """O, LSE and the three gradients in FP64, of sequences (first query, its end, first key, its end)."""
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    out, lse = torch.zeros(g.shape, dtype=torch.float64), torch.full(q.shape[:3], -torch.inf, dtype=torch.float64)
    grads = [torch.zeros_like(x) for x in wide]
    for a, b, c, d in sequences:
        if a == b or c == d:
            continue
        first, last = band(b - a, d - c, *band_of(causal, window))
        distance = torch.arange(d - c)[None] - torch.arange(b - a)[:, None]
        seen = torch.ones_like(distance, dtype=torch.bool)
        seen &= distance >= (-(1 << 30) if first is None else first)
        seen &= distance <= ((1 << 30) if last is None else last)
        keys, values = (x[:, :, c:d].repeat_interleave(group, 1) for x in wide[1:])
        s = wide[0][:, :, a:b] @ keys.mT * q.shape[3] ** -0.5
        s = (softcap * torch.tanh(s / softcap) if softcap else s).masked_fill(~seen, -torch.inf)
        part = torch.logsumexp(s, -1)
        p = torch.exp(s - torch.where(part.isinf(), 0.0, part)[..., None]).masked_fill(~seen, 0.0)
        result = p @ values
        for total, more in zip(grads, torch.autograd.grad(result, wide, g[:, :, a:b].double()), strict=True):
            total += more
        out[:, :, a:b], lse[:, :, a:b] = result.detach(), part.detach()
    return out, lse, grads


def check(
    folder, heads, kv_heads, d, d_v, dtype, causal, window, lengths, *, packed, sharers=1, lates=(True,), softcap=0.0
):
    """All elements of dQ, dK and dV; lengths: (queries, keys) of sequences, of which one alone need not be packed."""
    torch.manual_seed(0)
    queries, keys = (list(itertools.accumulate((0, *n))) for n in zip(*lengths, strict=True))
    n, m = queries[-1], keys[-1]
    q, g, k, v = (
        torch.randn(1, rows, h, width).transpose(1, 2).to(DTYPES[dtype])
        for rows, h, width in ((n, heads, d), (n, heads, d_v), (m, kv_heads, d), (m, kv_heads, d_v))
    )
    first_q, first_k = (torch.tensor(x, dtype=torch.int32) for x in (queries, keys))
    packing = Packing(first_q, first_k, max(x for x, _ in lengths), max(y for _, y in lengths)) if packed else None
    problem = problem_of(q, k, v, dtype, None, band_of(causal, window), packing, softcap)
    (planned,) = plan_backward(problem, GPU)
    config = replace(planned, sharers=sharers)
    library = compiled(problem, config, folder)
    ends = zip(itertools.pairwise(queries), itertools.pairwise(keys), strict=True)
    sequences = [(*rows, *columns) for rows, columns in ends]
    out, lse, grads = exact(q, k, v, g, sequences, causal, window, softcap)
    delta = (out * g.double()).sum(-1).float()
    sum_blocks = n // BLOCK + len(lengths) + 1 if packed else -(-n // BLOCK)
    blocks = [
        (head * sum_blocks + (a // BLOCK + i if packed else 0) + j, head, a + j * BLOCK, min(a + (j + 1) * BLOCK, b))
        for head in range(heads)
        for i, (a, b, _, _) in enumerate(sequences)
        for j in range(-(-(b - a) // BLOCK))
    ]
    # Of each query -lse / scale and -delta, or lse / ln 2 and delta; of one without keys and of none the weights are 0.
    lse_by, delta_by = (-1 / problem.scale, -1) if config.pieces else (1.4426950408889634, 1)
    lines = torch.full((heads * sum_blocks, 2, BLOCK), torch.nan)
    for at, head, a, b in blocks:
        lines[at, 0], lines[at, 1] = -torch.inf if config.pieces else torch.inf, 0
        part = lse[0, head, a:b].float() * lse_by
        lines[at, 0, : b - a] = torch.where(part.isinf(), lines[at, 0, : b - a], part)
        lines[at, 1, : b - a] = delta[0, head, a:b] * delta_by
    if config.pieces:
        lines = pieces(lines, q.dtype).contiguous()
    parts, tiles = -(-d // BLOCK), config.tiles(problem)
    clusters = min(2, tiles)
    together = waves(problem, -(-problem.keys // config.rows), clusters, sharers)
    _, queries, keys, _, group, first, last = problem.scalars()
    scale2, *slope2 = factors(problem)
    sizes = queries, keys, heads, group // sharers, problem.batch, first, last
    for late in lates:
        sums = torch.zeros(heads * sum_blocks, parts, 8, 128, 4)
        dk, dv = (torch.full_like(x, torch.nan).repeat_interleave(sharers, 1) for x in (k, v))
        counter = torch.zeros(1, dtype=torch.int32)
        box = config.rows // config.cluster
        maps = [tensor_map(x, rows) for x, rows in ((q, BLOCK), (k, box), (v, box), (g, BLOCK))]
        call = Call(
            *map(ctypes.addressof, maps),
            *(x.data_ptr() for x in (lines, sums, dk, dv, first_q, first_k, counter)),
            (ctypes.c_longlong * 6)(*dk.stride()[:3], *dv.stride()[:3]), scale2, problem.scale,
            (ctypes.c_int * 12)(*sizes, *together, tiles, sum_blocks, sharers), *slope2,
        )  # fmt: skip
        library.launch(clusters * config.cluster, 32 * config.num_warps, config.cluster, late, ctypes.byref(call))
        assert counter.item() == 0
        dq = torch.zeros(1, heads, n, parts * BLOCK)
        thread = torch.arange(128)
        for at, head, a, b in blocks:
            for part, j, e, half in itertools.product(range(parts), range(8), range(2), range(2)):
                row, column = thread // 32 * 16 + thread % 32 // 4 + 8 * half, 8 * j + 2 * (thread % 4) + e
                there = row < b - a
                dq[0, head, a + row[there], part * BLOCK + column[there]] = sums[at, part, j, there, 2 * half + e]
        dk, dv = (x.float().unflatten(1, (kv_heads, sharers)).sum(2) for x in (dk, dv))
        for mine, want in zip((dq[..., :d] * problem.scale, dk, dv), grads, strict=True):
            assert not mine.isnan().any()
            assert (mine.double() - want).norm() <= BUDGET[dtype] * want.norm()


START = """
extern "C" void launch(const u16* g, const u16* out, const float* lse, const float* dlse, Line* lines, float4* sums,
                       int heads, int n) {
  const int blocks = (n + 63) / 64;
  const i64 row = D_V, head = row * n;
  run_grid(heads * blocks, 256, false, [=] {
    attention_hopper_start(g, out, lse, dlse, lines, sums, nullptr, 0, head, row, 0, head, row, 0, n, 0.25f, n, heads,
                           blocks, blocks);
  });
}
"""


@pytest.mark.parametrize("kind", [0, 1])
def test_start(tmp_path, kind):
    """lse and delta of all sizes, rows without keys and beyond the last, as FP32 or in pieces."""
    heads, n, d = 2, 100, 40
    problem = AttentionProblem(1, heads, heads, n, n, d, d, "fp16")
    constants = end_constants(problem, "START", pieces=bool(kind))
    library = built(ENDS, constants, START, tmp_path)
    g, out = (torch.randn(heads, n, d, generator=torch.Generator().manual_seed(i)).half() for i in range(2))
    g *= torch.logspace(-5, 3, n)[:, None].half()
    lse, dlse = torch.linspace(-3e4, 3e4, heads * n).view(heads, n), torch.randn(heads, n)
    lse[0, 7] = -torch.inf
    lines = torch.full((heads * 2, 2, BLOCK, 8), torch.nan, dtype=torch.float16)
    lines = lines if kind else torch.full((heads * 2, 2, BLOCK), torch.nan)
    sums = torch.full((heads * 2, 8, 4, 128), torch.nan)  # of both blocks, 8 columns and a warp each
    library.launch(*(ctypes.c_void_p(x.data_ptr()) for x in (g, out, lse, dlse, lines, sums)), heads, n)
    rows = torch.tensor([BLOCK, n - BLOCK]).repeat(heads)[:, None] > 16 * torch.arange(4)
    cleared = (rows[:, None] & (torch.arange(8)[:, None] < (d + 15) // 16 * 2)).expand(-1, -1, -1)
    assert not sums[cleared].any()
    assert sums[~cleared].isnan().all()
    delta = (g.double() * out.double()).sum(-1) - dlse
    wide = lines.double()
    got = wide[..., :3] @ torch.tensor([2.0**15, 16, 1], dtype=torch.float64) if kind else wide
    got = got.view(heads, 2, 2, BLOCK).transpose(1, 2).reshape(heads, 2, 2 * BLOCK)
    want = [-lse.double() / 0.25, -delta] if kind else [lse.double() * 1.4426950408889634, delta]
    dead = -torch.inf if kind else torch.inf
    want[0][0, 7] = dead
    assert torch.equal(got[:, 0, n:], torch.full_like(got[:, 0, n:], dead))
    for mine, expected in zip((got[:, 0, :n], got[:, 1, :n]), want, strict=True):
        assert torch.equal(mine.isinf(), expected.isinf())
        finite = ~expected.isinf()
        assert ((mine - expected).abs() <= 2e-6 * expected.abs() + 2e-5)[finite].all()
    assert not kind or not wide[..., 3:].any()


JOIN = """
extern "C" void launch(const u16* dk_parts, const u16* dv_parts, u16* dk, u16* dv, const int* first_k, int ctas,
                       int keys, int heads, int sharers, int batches) {
  run_grid(ctas, 256, false, [=] {
    attention_hopper_join(dk_parts, dv_parts, dk, dv, first_k, heads * keys * D, keys * D, D, heads * keys * D_V,
                          keys * D_V, D_V, keys, heads, sharers, batches);
  });
}
"""


@pytest.mark.parametrize("packed", [False, True])
def test_join(tmp_path, packed):
    """Parts of dK and dV added up in FP32, rounded once; positions behind the last sequence stay as they are."""
    batches, heads, sharers, keys, d, d_v, behind = (1 if packed else 2), 3, 3, 21, 40, 16, 4
    problem = AttentionProblem(2, 9, heads, keys, keys, d, d_v, "bf16", packed=packed)
    constants = end_constants(problem, "JOIN", pieces=True)
    library = built(ENDS, constants, JOIN, tmp_path)
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(batches, heads * sharers, keys, n, generator=generator).bfloat16() for n in (d, d_v)]
    joined = [torch.full((batches, heads, keys, n), torch.nan, dtype=torch.bfloat16) for n in (d, d_v)]
    first_k = torch.tensor([0, 5, keys - behind], dtype=torch.int32)
    ctas = -(-batches * heads * keys * (d + d_v) // 8 // 256)
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (*parts, *joined, first_k))
    library.launch(*pointers, ctas, keys, heads, sharers, 2)
    there = keys - behind if packed else keys
    for mine, part in zip(joined, parts, strict=True):
        want = part.float().unflatten(1, (heads, sharers)).sum(2).bfloat16()
        assert torch.equal(mine[:, :, :there], want[:, :, :there])
        assert mine[:, :, there:].isnan().all()


MASKS = {"all": (False, None), "causal": (True, None), "window": (False, (70, 30))}


@pytest.mark.parametrize(
    ("d", "mask", "packed", "sharers"),
    [(64, "causal", True, 1), (80, "window", False, 1), (128, "causal", True, 2), (136, "all", False, 2)],
)
def test_backward(tmp_path, d, mask, packed, sharers):
    lengths = [(70, 133), (0, 9), (65, 0), (1, 20)] if packed else [(70, 200)] if d > 128 else [(150, 200)]
    check(tmp_path, 2, 1, d, d, "bf16", *MASKS[mask], lengths, packed=packed, sharers=sharers)


def test_capped_scores(tmp_path):
    lengths = [(70, 133), (65, 0), (150, 20)]
    check(tmp_path, 2, 1, 48, 64, "bf16", *MASKS["window"], lengths, packed=True, softcap=0.5)


@pytest.mark.skipif(os.environ.get("LANELOOM_MODEL") != "all", reason="LANELOOM_MODEL=all runs it")
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("d", "d_v"), [(64, 64), (24, 40), (128, 128), (96, 128), (128, 64), (64, 128), (256, 256), (192, 72)]
)
def test_every_option(tmp_path, d, d_v, packed, mask, dtype):
    lengths = [(5, 9), (0, 12), (233, 200), (129, 3), (64, 0), (1, 70)] if packed else [(200, 300)]
    for sharers in (1, 2):
        check(tmp_path, 2, 1, d, d_v, dtype, *MASKS[mask], lengths, packed=packed, sharers=sharers, lates=(False, True))
