"""laneloom.flash_attention and attention_decode on a real GPU: every option, all elements against FP64.

The budget is twice the error of torch's own attention in the same dtype, one rounding on top: of its flash backend, and
where that has no such mask, of its math path.
"""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
from judged_attention import attend, judge, seen  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import laneloom  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.attention import execute  # noqa: E402
from laneloom.ops.attention.config import plan, plan_backward  # noqa: E402

GPU = get_gpu("sm_90a")
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
MASKS = {
    "all": (False, None), "causal": (True, None), "top_left": ("top_left", None), "window": (False, (100, 30)),
    "causal_window": (True, (70, None)),
}  # fmt: skip


KINDS = {64: "_narrow", 128: "", 256: "_wide"}  # of the backward, by head dimension

pytestmark = pytest.mark.usefixtures("poisoned_allocations")


def operands(batch, heads, kv_heads, queries, keys, d, d_v=None, dtype=torch.bfloat16, interleaved=False):
    def one(h, n, width):
        shape = (batch, n, h, width) if interleaved else (batch, h, n, width)
        x = torch.randn(shape, device="cuda").to(dtype)
        return (x.transpose(1, 2) if interleaved else x).requires_grad_()

    d_v = d if d_v is None else d_v
    return one(heads, queries, d), one(kv_heads, keys, d), one(kv_heads, keys, d_v)


def check(q, k, v, causal=False, window=None, scale=None, deterministic=False):
    mask = seen(q.shape[2], k.shape[2], causal, window)
    factor = q.shape[3] ** -0.5 if scale is None else scale
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact, exact_lse = attend(*wide, mask, factor, torch.float64)
    grad, grad_lse = torch.randn_like(exact).to(q.dtype), torch.randn_like(exact_lse).float()
    dead = ~mask.any(-1)
    grad_lse[:, :, dead] = 0
    exact_lse_safe = torch.where(exact_lse.isinf(), 0.0, exact_lse)
    truth = torch.autograd.grad((exact * grad.double()).sum() + (exact_lse_safe * grad_lse.double()).sum(), wide)
    narrow = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    # torch's flash backend gives NaN for scales that are not positive.
    simple = not window and causal is False and q.shape[3] == v.shape[3] and factor > 0
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION] if simple else [SDPBackend.MATH]):
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *narrow, attn_mask=None if simple else mask, scale=factor, enable_gqa=q.shape[1] != k.shape[1])
    their_grads = torch.autograd.grad(torch.nan_to_num(theirs), narrow, grad, retain_graph=True)
    _, plain_lse = attend(*narrow, mask, factor, q.dtype)
    plain_lse = torch.where(plain_lse.isinf(), 0.0, plain_lse)
    lse_grads = torch.autograd.grad(plain_lse, narrow, grad_lse, allow_unused=True, materialize_grads=True)
    out, lse = laneloom.flash_attention(
        q, k, v, causal=causal, window=window, scale=scale, return_lse=True, deterministic=deterministic)
    judge([out], [torch.nan_to_num(theirs)], [exact], q.dtype)
    assert torch.equal(lse.isinf(), exact_lse.isinf())
    finite = ~exact_lse.isinf()
    assert (lse.double() - exact_lse)[finite].abs().max() < 2e-5 * (1 + exact_lse[finite].abs().max())
    got = torch.autograd.grad((out, lse), (q, k, v), (grad, grad_lse))
    judge(got, [a + b for a, b in zip(their_grads, lse_grads, strict=True)], truth, q.dtype)


@pytest.mark.parametrize(
    ("d", "dtype", "mask", "group"),
    [
        (d, dtype, mask, group)
        for number, (d, mask, group) in enumerate(itertools.product((64, 128, 256), MASKS, (1, 4)))
        for dtype in [(torch.bfloat16, torch.float16)[number % 2]]
    ],
)
def test_masks_and_groups(d, dtype, mask, group):
    causal, window = MASKS[mask]
    q, k, v = operands(2, 4, 4 // group, 333, 471, d, dtype=dtype)
    problem = execute.problem_of(q, k, v, NAMES[dtype], None, execute.band_of(causal, window))
    assert plan(problem, GPU).schedule == "hopper_forward"
    assert [c.schedule for c in plan_backward(problem, GPU)] == [f"hopper_backward{KINDS[d]}"]
    check(q, k, v, causal, window)


@pytest.mark.parametrize(
    ("d", "d_v"),
    [(16, 16), (24, 40), (80, 80), (96, 128), (128, 64), (64, 128), (192, 128), (136, 256), (264, 264), (512, 64)],
)
def test_head_dimensions(d, d_v):
    check(*operands(1, 2, 2, 200, 190, d, d_v), causal=True)


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (1, 900), (900, 1), (127, 128), (128, 127), (129, 129), (700, 40)]
)
def test_lengths(queries, keys):
    check(*operands(2, 2, 1, queries, keys, 64), causal=True)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("d", "d_v"), [(64, 64), (128, 64), (96, 96), (200, 256)])
def test_few_tiles(d, d_v, mask):
    """Parts of the keys in the forward, programs that share a head of keys in the backward."""
    causal, window = MASKS[mask]
    q, k, v = operands(1, 6, 2, 90, 2500, d, d_v, interleaved=True)
    problem = execute.problem_of(q, k, v, "bf16", None, execute.band_of(causal, window))
    assert (plan(problem, GPU).parts > 1) == (mask in ("all", "causal")), "others see too few keys"
    check(q, k, v, causal, window)
    q, k, v = operands(1, 6, 2, 2500, 140, d, d_v)
    (config,) = plan_backward(execute.problem_of(q, k, v, "bf16", None, execute.band_of(causal, window)), GPU)
    assert config.sharers == 3 or window
    check(q, k, v, causal, window)


def test_few_tiles_packed():
    lengths, key_lengths = [5, 0, 33, 1], [900, 12, 5000, 70]
    first_q, first_k = (
        torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32, device="cuda") for n in (lengths, key_lengths)
    )
    q, k, v = (
        torch.randn(sum(n) + 3, h, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for n, h in ((lengths, 4), (key_lengths, 2), (key_lengths, 2))
    )
    out = laneloom.flash_attention(q, k, v, causal=True, cu_seqlens_q=first_q, cu_seqlens_k=first_k)
    grad = torch.randn_like(out)
    grads = torch.autograd.grad(out, (q, k, v), grad)
    for b in range(len(lengths)):
        rows, columns = slice(*first_q[b : b + 2].tolist()), slice(*first_k[b : b + 2].tolist())
        parts = [x[at].detach().transpose(0, 1)[None] for x, at in ((q, rows), (k, columns), (v, columns))]
        if lengths[b]:
            alone = [x.clone().requires_grad_() for x in parts]
            want = laneloom.flash_attention(*alone, causal=True)
            assert (out[rows] - want[0].transpose(0, 1)).abs().max() < 2e-2
            wants = torch.autograd.grad(want, alone, grad[rows].transpose(0, 1)[None])
            for mine, at, theirs in zip(grads, (rows, columns, columns), wants, strict=True):
                assert (mine[at] - theirs[0].transpose(0, 1)).abs().max() < 2e-2 * (1 + theirs.abs().max())


def test_many_tiles():
    check(*operands(2, 16, 16, 2048, 2048, 128), causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_strides_and_broadcast(causal):
    check(*operands(2, 4, 2, 300, 300, 128, interleaved=True), causal=causal)
    q, k, v = operands(1, 2, 2, 150, 150, 64)
    expanded = [x.expand(3, -1, -1, -1) for x in (q, k, v)]
    out = laneloom.flash_attention(*expanded, causal=causal)
    assert torch.equal(out[0], out[2])
    assert torch.equal(out[:1], laneloom.flash_attention(q, k, v, causal=causal))


@pytest.mark.parametrize("scale", [-0.3, 0.0, 2.0])
def test_scales(scale):
    check(*operands(1, 2, 2, 150, 150, 64, dtype=torch.float16), scale=scale)


def test_large_scores_do_not_overflow():
    q, k, v = operands(1, 2, 2, 300, 700, 128)
    with torch.no_grad():
        q *= 30
    out, lse = laneloom.flash_attention(q, k, v, return_lse=True)
    exact, exact_lse = attend(q, k, v, seen(300, 700, False, None), 128**-0.5, torch.float64)
    assert (out.double() - exact).abs().max() < 0.05
    assert (lse.double() - exact_lse).abs().max() < 1e-3


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize(("values", "grads", "queries_by"), [(60.0, 400.0, 0.05), (1.0, 1e-5, 100.0)])
def test_gradients_of_any_size(d, values, grads, queries_by):
    """dO . O beyond fp16's largest number, and near its smallest: it is added in the matrix units, in three pieces."""
    q, k, v = (x.detach() for x in operands(1, 2, 2, 200, 40, d, dtype=torch.float16))
    q, k, v = q * queries_by, k * (0.05 if values > 1 else 1e-2), v * values
    grad = torch.randn_like(q) * grads
    got = torch.autograd.grad(laneloom.flash_attention(*(x.requires_grad_() for x in (q, k, v))), (q, k, v), grad)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact, _ = attend(*wide, seen(200, 40, False, None), d**-0.5, torch.float64)
    delta = (exact.detach() * grad.double()).sum(-1).abs().max()
    assert delta > 65504 if values > 1 else delta < 1e-4
    wanted = torch.autograd.grad(exact, wide, grad.double())
    for mine, want, by, terms in zip(got, wanted, (k, q, grad), (40, 200, 200), strict=True):
        assert want.abs().max() < 65504
        # fp16 has numbers 2^-24 apart at the least: results, and what is summed, times what it is multiplied by
        apart = 2**-24 * max(1.0, d**-0.5 * terms**0.5 * by.detach().double().square().mean().sqrt().item())
        assert (mine.double() - want).norm() < 4e-3 * want.norm() + apart * want.numel() ** 0.5


def test_deterministic():
    q, k, v = operands(2, 4, 2, 700, 700, 128)
    check(q, k, v, causal=True, deterministic=True)
    grads = []
    for _ in range(2):
        out = laneloom.flash_attention(q, k, v, causal=True, deterministic=True)
        grads.append(torch.autograd.grad(out, (q, k, v), torch.ones_like(out)))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("d", [64, 128, 256, 264])
@pytest.mark.parametrize("mask", ["all", "causal", "top_left", "window"])
def test_packed(mask, d):
    """The same as each sequence by itself, empty ones, ones without keys and neighbours included."""
    causal, window = MASKS[mask]
    lengths, key_lengths = [5, 0, 333, 129, 64, 1], [9, 12, 400, 3, 0, 70]
    first_q, first_k = (
        torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32, device="cuda") for n in (lengths, key_lengths)
    )
    q, k, v = (
        torch.randn(sum(n), h, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for n, h in ((lengths, 4), (key_lengths, 2), (key_lengths, 2))
    )
    out, lse = laneloom.flash_attention(
        q, k, v, causal=causal, window=window, return_lse=True, cu_seqlens_q=first_q, cu_seqlens_k=first_k)
    assert out.is_contiguous()
    grad = torch.randn_like(out)
    grads = torch.autograd.grad(out, (q, k, v), grad)
    for b, (n, m) in enumerate(zip(lengths, key_lengths, strict=True)):
        rows, columns = slice(int(first_q[b]), int(first_q[b + 1])), slice(int(first_k[b]), int(first_k[b + 1]))
        parts = [x[at].detach().transpose(0, 1)[None] for x, at in ((q, rows), (k, columns), (v, columns))]
        wide = [x.double().requires_grad_() for x in parts]
        exact, exact_lse = attend(*wide, seen(n, m, causal, window), d**-0.5, torch.float64)
        assert (out[rows].double() - exact[0].transpose(0, 1)).abs().max().item() < 2e-2 if n else True
        assert torch.equal(lse[:, rows].isinf(), exact_lse[0].isinf())
        if not n * m:
            continue
        truth = torch.autograd.grad(exact, wide, grad[rows].transpose(0, 1)[None].double())
        for mine, at, want in zip(grads, (rows, columns, columns), truth, strict=True):
            assert (mine[at].double() - want[0].transpose(0, 1)).abs().max() < 2e-2 * (1 + want.abs().max())


def test_graph_capture_and_streams():
    """Captured launches have tile counters of their own."""
    q, k, v = (x.detach() for x in operands(1, 4, 4, 600, 600, 128))
    want = laneloom.flash_attention(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = laneloom.flash_attention(q, k, v, causal=True)
    for _ in range(3):
        got.zero_()
        graph.replay()
        assert torch.equal(got, want)
    with torch.cuda.stream(torch.cuda.Stream()):
        other = laneloom.flash_attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    assert torch.equal(other, want)


def test_decode_in_graphs_on_two_streams():
    """Two graphs whose runs of keys are put together at the same time, over tickets of their own, again and again."""
    cases = []
    for seed in range(2):
        torch.manual_seed(seed)
        sizes = (1, 8), (4096, 2), (4096, 2)
        q, k, v = (torch.randn(2, n, h, 128, device="cuda", dtype=torch.bfloat16) for n, h in sizes)
        lengths = torch.tensor([4096, 4000], dtype=torch.int32, device="cuda")
        want = laneloom.attention_decode(q, k, v, cache_lengths=lengths)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = [laneloom.attention_decode(q, k, v, cache_lengths=lengths) for _ in range(3)]
        cases.append((graph, got, want, torch.cuda.Stream(), (q, k, v, lengths)))
    torch.cuda.synchronize()
    for _ in range(20):
        for graph, _got, _want, stream, _ in cases:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for _graph, got, want, _stream, _ in cases:
        assert all(torch.equal(x, want) for x in got)
