"""Capped scores on a real GPU, by Hopper's own schedules: softcap tanh(score / softcap), against FP64."""

import math

import pytest

torch = pytest.importorskip("torch")

from judged_attention import judge, seen  # noqa: E402

import laneloom  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.attention import execute  # noqa: E402
from laneloom.ops.attention.config import plan, plan_backward  # noqa: E402
from laneloom.ops.attention.config_decode import DecodeProblem  # noqa: E402
from laneloom.ops.attention.plan_decode import plan_decode  # noqa: E402

GPU = get_gpu("sm_90a")

pytestmark = pytest.mark.usefixtures("poisoned_allocations")


def attend(q, k, v, mask, scale, cap, dtype):
    """O and LSE by plain operations in `dtype`, statistics of 16-bit types in FP32."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v = q.to(dtype), *(x.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = (cap * torch.tanh(q.to(wide) @ k.to(wide).mT * (scale / cap))).masked_fill(~mask, -math.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - torch.where(lse.isinf(), 0.0, lse)[..., None]).masked_fill(~mask, 0.0)
    return p.to(dtype) @ v, torch.where(lse.isinf(), 0.0, lse)


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("cap", [0.5, 50.0])
@pytest.mark.parametrize(
    ("d", "d_v", "causal", "window", "dtype"),
    [
        (64, 64, False, None, torch.bfloat16), (64, 64, True, None, torch.float16),
        (128, 128, True, None, torch.bfloat16), (128, 128, False, (100, 30), torch.float16),
        (256, 256, True, (70, None), torch.bfloat16),
        (96, 80, "top_left", None, torch.bfloat16), (192, 128, False, None, torch.float16),
    ],
)  # fmt: skip
def test_forward_and_gradients(d, d_v, causal, window, dtype, cap):
    heads, kv_heads, queries, keys, scale = 4, 2, 333, 471, 3 * d**-0.5
    shapes = (heads, queries, d), (kv_heads, keys, d), (kv_heads, keys, d_v)
    q, k, v = (randn(2, *shape, dtype=dtype).requires_grad_() for shape in shapes)
    problem = execute.problem_of(
        q, k, v, "bf16" if dtype == torch.bfloat16 else "fp16", scale, execute.band_of(causal, window), None, cap)
    assert plan(problem, GPU).schedule == "hopper_forward"
    assert [c.schedule for c in plan_backward(problem, GPU)] == ["hopper_backward_wide"]
    mask = seen(queries, keys, causal, window)
    grad, grad_lse = randn(2, heads, queries, d_v, dtype=dtype), randn(2, heads, queries, dtype=torch.float32)
    grad_lse[:, :, ~mask.any(-1)] = 0
    found = []
    for kind in (torch.float64, dtype):
        of = [x.detach().to(kind).requires_grad_() for x in (q, k, v)]
        out, lse = attend(*of, mask, scale, cap, kind)
        found.append((out, lse, torch.autograd.grad((out, lse), of, (grad.to(kind), grad_lse.to(lse.dtype)))))
    (exact, exact_lse, truth), (theirs, _, their_grads) = found
    out, lse = laneloom.flash_attention(
        q, k, v, causal=causal, window=window, scale=scale, softcap=cap, return_lse=True)
    judge([out], [theirs], [exact], dtype)
    there = mask.any(-1)
    assert (lse.double() - exact_lse)[:, :, there].abs().max() < 2e-5 * (1 + exact_lse.abs().max())
    judge(torch.autograd.grad((out, lse), (q, k, v), (grad, grad_lse)), their_grads, truth, dtype)


def test_packed_sequences():
    starts = torch.tensor([0, 100, 100, 431], dtype=torch.int32, device="cuda")
    q, k, v = (randn(431, 4, 128).requires_grad_() for _ in range(3))
    grad = randn(431, 4, 128)
    together = laneloom.flash_attention(q, k, v, causal=True, softcap=20.0, cu_seqlens_q=starts)
    grads = torch.autograd.grad(together, (q, k, v), grad)
    for begin, end in ((0, 100), (100, 431)):
        rows = [x[begin:end].transpose(0, 1)[None].detach().requires_grad_() for x in (q, k, v)]
        alone = laneloom.flash_attention(*rows, causal=True, softcap=20.0)
        torch.testing.assert_close(together[begin:end], alone[0].transpose(0, 1), rtol=0, atol=0)
        own = torch.autograd.grad(alone, rows, grad[begin:end].transpose(0, 1)[None])
        for one, other in zip(grads, own, strict=True):
            torch.testing.assert_close(one[begin:end], other[0].transpose(0, 1), rtol=2**-7, atol=2**-7)


def test_what_is_hidden_reaches_nobody():
    """Neighbours share a reciprocal where all are seen: a NaN in keys that the mask hides stays there."""
    q, k, v = (randn(1, 2, 300, 128) for _ in range(3))
    clean = laneloom.flash_attention(q, k, v, causal=True, softcap=30.0)
    k[:, :, 201:] = math.nan
    dirty = laneloom.flash_attention(q, k, v, causal=True, softcap=30.0)
    assert torch.equal(clean[:, :, :201], dirty[:, :, :201])
    assert dirty[:, :, 201:].isnan().all()


def test_caps_and_scores_of_any_size():
    """The LSE of one key is its capped score, to 2^-21 of the cap."""
    scores = torch.tensor([0.0, *torch.logspace(-4, 4.5, 60).tolist()], device="cuda").half()
    q = torch.zeros(1, 2, len(scores), 64, dtype=torch.float16, device="cuda")
    q[0, 0, :, 3], q[0, 1, :, 3] = scores, -scores
    k = torch.zeros(1, 2, 1, 64, dtype=torch.float16, device="cuda")
    k[..., 3] = 1
    for cap in (128.0, 30.0, 0.01, 1e-20, 1e6):
        _, lse = laneloom.flash_attention(q, k, k, scale=1.0, softcap=cap, return_lse=True)
        truth = cap * torch.tanh(q.double()[..., 3] / cap)
        assert ((lse.double() - truth).abs() <= 2.0**-21 * cap).all(), cap


@pytest.mark.parametrize(("d", "page", "window"), [(64, 0, None), (128, 16, 100), (256, 0, None), (80, 64, None)])
def test_decode(d, page, window):
    from test_attention_decode import in_pages

    q, k, v = randn(3, 2, 16, d), randn(3, 1024, 4, d), randn(3, 1024, 4, d)
    lengths = torch.tensor([1024, 1, 777], dtype=torch.int32, device="cuda")
    problem = DecodeProblem(3, 16, 4, 2, 1024, d, d, "bf16", 0.1, window, page, softcap=5.0)
    assert plan_decode(problem, GPU).schedule.startswith("hopper_decode")
    caches, table = in_pages(k, v, page)
    out, lse = laneloom.attention_decode(
        q, *caches, cache_lengths=lengths, block_table=table, window=window, scale=0.3, softcap=5.0, return_lse=True)
    for b, n in enumerate(lengths.tolist()):
        rows = [x.transpose(0, 1)[None] for x in (q[b], k[b, :n], v[b, :n])]
        mask = seen(2, n, True, None if window is None else (window, None))
        exact, exact_lse = attend(*rows, mask, 0.3, 5.0, torch.float64)
        plain, _ = attend(*rows, mask, 0.3, 5.0, q.dtype)
        judge([out[b].transpose(0, 1)[None]], [plain], [exact], q.dtype)
        there = mask.any(-1)
        assert torch.allclose(lse[b].double()[:, there], exact_lse[0][:, there], rtol=0, atol=1e-4)
