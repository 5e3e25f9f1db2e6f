"""laneloom.flash_attention of fp8 operands on a real GPU: every option, all elements against FP64.

The budget is laneloom.verify's: twice the worst error of the same arithmetic, softmax's weights rounded to e4m3 as 256
times their share of the largest, scaled by what was summed, and one rounding of the output.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402
import laneloom.pytorch  # noqa: E402
from laneloom import verify  # noqa: E402
from laneloom.errors import ArgumentError, UnsupportedError  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.attention import execute  # noqa: E402
from laneloom.ops.attention.config import plan  # noqa: E402

GPU = get_gpu("sm_90a")
FLOAT8 = torch.float8_e4m3fn
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
MASKS = {
    "all": (False, None), "causal": (True, None), "top_left": ("top_left", None), "window": (False, (100, 30)),
    "causal_window": (True, (70, None)),
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("poisoned_allocations")


def operands(batch, heads, kv_heads, queries, keys, d, d_v=None, interleaved=False):
    def one(h, n, width):
        shape = (batch, n, h, width) if interleaved else (batch, h, n, width)
        x = torch.randn(shape, device="cuda").to(FLOAT8)
        return x.transpose(1, 2) if interleaved else x

    return one(heads, queries, d), one(kv_heads, keys, d), one(kv_heads, keys, d if d_v is None else d_v)


def check(q, k, v, causal=False, window=None, scale=None, got=None, factors=(1, 1, 1), **options):
    """All of O and LSE. factors: what q, k and v count as, numbers or [B, H_kv]; got: in place of a call."""
    group, depth = q.shape[1] // k.shape[1], q.shape[3]
    wide = []
    for x, factor, repeat in zip((q, k, v), factors, (1, group, group), strict=True):
        each = torch.as_tensor(factor, dtype=torch.float64, device="cuda")
        if each.dim():
            each = each.repeat_interleave(group, 1)[..., None, None]
        wide.append(x.double().repeat_interleave(repeat, 1) * each)
    first, last = execute.band(q.shape[2], k.shape[2], *execute.band_of(causal, window))
    distance = torch.arange(k.shape[2], device="cuda")[None] - torch.arange(q.shape[2], device="cuda")[:, None]
    mask = torch.ones_like(distance, dtype=torch.bool)
    mask &= distance >= (-(1 << 30) if first is None else first)
    mask &= distance <= ((1 << 30) if last is None else last)
    factor = depth**-0.5 if scale is None else scale
    s = (wide[0] @ wide[1].mT * factor).masked_fill(~mask, -math.inf)
    exact_lse = torch.logsumexp(s, -1)
    top = s.amax(-1, keepdim=True)
    weights = torch.exp(s - torch.where(top.isinf(), 0.0, top))
    total = weights.sum(-1, keepdim=True).clamp_min(1e-300)
    rounded = (weights * 256).float().to(FLOAT8).double() / 256
    pairs = (weights, wide[2]), (rounded, wide[2]), (weights, wide[2].abs())
    truth, same, magnitude = (p @ x / total for p, x in pairs)
    if got is None:
        got = laneloom.flash_attention(q, k, v, causal=causal, window=window, scale=scale, return_lse=True, **options)
    out, lse = got
    assert out.shape == truth.shape
    arrays = [x.double().cpu().numpy() for x in (out, truth, same, magnitude)]
    verdict = verify.judge(*arrays, NAMES[out.dtype])
    assert verdict.ok, verdict
    assert torch.equal(lse.isinf(), exact_lse.isinf())
    seen = ~exact_lse.isinf()
    # Each of depth / 32 instructions rounds to 2**-13 of what it sums; the softmax's own sum is FP32.
    summed = (wide[0].abs() @ wide[1].mT.abs()).amax(-1) * abs(factor)
    assert ((lse.double() - exact_lse).abs() <= summed * (depth / 32 + 1) * 2**-13 + 1e-5)[seen].all()
    return out


@pytest.mark.parametrize(("d", "mask", "group"), [
    (d, mask, group) for i, (mask, group) in enumerate(itertools.product(MASKS, (1, 4))) for d in (64, 128)[i % 2 :: 2]
])  # fmt: skip
def test_masks_and_groups(d, mask, group):
    q, k, v = operands(2, 20, 20 // group, 700, 900, d)
    causal, window = MASKS[mask]
    problem = execute.problem_of(q, k, v, "fp8", None, execute.band_of(causal, window))
    config = plan(dataclasses.replace(problem, out="bf16"), GPU)
    assert (config.schedule, config.consumers) == ("hopper_forward_float8", 3)
    check(q, k, v, causal, window)


@pytest.mark.parametrize(("d", "d_v"), [(16, 16), (48, 96), (256, 128), (160, 32)])
@pytest.mark.parametrize("many", [False, True])
def test_head_dimensions(d, d_v, many):
    check(*operands(2, 20 if many else 2, 2, 600, 190, d, d_v), causal=True)


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (1, 900), (900, 1), (127, 128), (129, 129), (700, 40), (0, 5), (5, 0)]
)
def test_lengths(queries, keys):
    if queries * keys:
        check(*operands(2, 2, 1, queries, keys, 64), causal=True)
    else:
        out = laneloom.flash_attention(*operands(2, 2, 1, queries, keys, 64))
        assert torch.equal(out, torch.zeros_like(out))


def test_two_warpgroups_and_many_tiles():
    check(*operands(1, 30, 30, 700, 700, 128))
    q, k, v = operands(2, 16, 16, 2048, 2048, 128)
    out = check(q, k, v, causal=True)
    assert torch.equal(out, laneloom.flash_attention(q, k, v, causal=True))


def test_strides_and_broadcast():
    check(*operands(2, 4, 2, 300, 300, 128, interleaved=True), causal=True)
    q, k, v = operands(1, 2, 2, 150, 150, 64)
    out = laneloom.flash_attention(*(x.expand(3, -1, -1, -1) for x in (q, k, v)))
    assert torch.equal(out[0], out[2])
    # Rows of 72 bytes, and an address that is no multiple of 16, are copied.
    odd = torch.randn(1, 2, 150, 72, device="cuda").to(FLOAT8)[..., 8:]
    check(q, odd, v)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_long_sums_keep_their_precision(shift):
    """14 bits of a sum over 16,384 keys would lose a fifth of values that do not cancel."""
    q, k, v = operands(1, 2, 2, 256, 16384, 128)
    flat = (q.float() * 0.1).to(FLOAT8)
    for queries in (q, flat):
        check(queries, k, (v.float() + shift).to(FLOAT8))


def test_negative_and_large_scores():
    q, k, v = operands(2, 20, 20, 700, 900, 64)
    check((-q.float().abs()).to(FLOAT8), k.float().abs().to(FLOAT8), v)
    check((q.float() * 8).to(FLOAT8), k, v, causal=True)
    # Equal weights are exact in e4m3: values that do not cancel, because what is left is the 14 bits of the sums.
    check(q, torch.zeros_like(k), v.float().abs().to(FLOAT8))


def test_scales_and_outputs():
    q, k, v = operands(2, 4, 2, 300, 333, 64)
    each = [torch.rand(2, 2, device="cuda") + 0.5 for _ in range(3)]
    check(q, k, v, True, factors=each, **dict(zip(("scale_q", "scale_k", "scale_v"), each, strict=True)))
    one = torch.full((1,), 0.7, device="cuda")
    check(q, k, v, True, factors=(0.5, 0.7, 3.0), scale_q=0.5, scale_k=one, scale_v=3.0, out_dtype=torch.float16)
    check(q, k, v, scale=0.3)


@pytest.mark.parametrize("mask", ["all", "causal", "window"])
def test_packed(mask):
    """Each sequence by itself, empty ones, ones without keys and neighbours included; scales of each."""
    causal, window = MASKS[mask]
    lengths, key_lengths = [5, 0, 333, 129, 64, 1], [9, 12, 400, 3, 0, 70]
    first_q, first_k = (
        torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32, device="cuda") for n in (lengths, key_lengths)
    )
    q, k, v = (
        torch.randn(sum(n), h, 64, device="cuda").to(FLOAT8)
        for n, h in ((lengths, 4), (key_lengths, 2), (key_lengths, 2))
    )
    scale_v = torch.rand(6, 2, device="cuda") + 0.5
    out, lse = laneloom.flash_attention(
        q, k, v, causal=causal, window=window, return_lse=True, cu_seqlens_q=first_q, cu_seqlens_k=first_k,
        scale_v=scale_v)  # fmt: skip
    assert out.is_contiguous()
    for b, (n, m) in enumerate(zip(lengths, key_lengths, strict=True)):
        rows, columns = slice(int(first_q[b]), int(first_q[b + 1])), slice(int(first_k[b]), int(first_k[b + 1]))
        if n * m:
            parts = [x[at].transpose(0, 1)[None] for x, at in ((q, rows), (k, columns), (v, columns))]
            got = out[rows].transpose(0, 1)[None], lse[:, rows][None]
            check(*parts, causal, window, got=got, factors=(1, 1, scale_v[b : b + 1]))
        elif n:
            assert not out[rows].any()
            assert (lse[:, rows] == -math.inf).all()


def test_in_pytorch():
    """Schema, fake shapes, tracing; one graph; vmap; a captured graph; no gradients."""
    q, k, v = operands(2, 4, 2, 300, 333, 64)
    operator = torch.ops.laneloom.flash_attention_float8
    # test_schema compares operands, which torch cannot for 8-bit floats.
    tests = ("test_faketensor", "test_autograd_registration", "test_aot_dispatch_static")
    torch.library.opcheck(operator.default, (q, k, v), test_utils=tests)
    want = laneloom.flash_attention(q, k, v, causal=True, scale_v=2.0)
    compiled = torch.compile(
        lambda *x: laneloom.flash_attention(*x, causal=True, scale_v=2.0), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), want)
    stacked = torch.vmap(lambda x: operator(x, k, v)[0])(torch.stack([q, q]))
    assert torch.equal(stacked[1], operator(q, k, v)[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = laneloom.flash_attention(q, k, v, causal=True, scale_v=2.0)
    for _ in range(3):
        got.zero_()
        graph.replay()
        assert torch.equal(got, want)
    with pytest.raises(UnsupportedError, match="no gradients"):
        laneloom.flash_attention(q.requires_grad_(), k, v).sum().backward()


def test_refusals():
    q, k, v = operands(1, 2, 2, 64, 64, 64, 136)
    with pytest.raises(UnsupportedError, match="D of v of 8-bit operands must be a multiple of 16 from 16 to 128"):
        laneloom.flash_attention(q, k, v)
    with pytest.raises(UnsupportedError, match="above 0"):
        laneloom.flash_attention(q, k, k, scale=-1.0)
    with pytest.raises(ArgumentError, match="shape"):
        laneloom.flash_attention(q, k, k, scale_k=torch.ones(3, device="cuda"))
