"""Packed sequences and decoding over a cache on emulated GPUs, strictly, every element against FP64."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from sampled import rarely

import laneloom
from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.ops.attention import reference

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

LENGTHS, KEY_LENGTHS = (5, 0, 33, 20, 1), (9, 12, 40, 3, 0)  # a sequence without queries, one without keys
#: of fp16 and bf16: a rounding of P, of O, and the sum of a few
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


def exact(x: torch.Tensor) -> np.ndarray:
    """[positions, H, D] as the reference's [1, H, positions, D]."""
    return x.detach().double().numpy().swapaxes(0, 1)[None]


def assert_close(mine: np.ndarray, truth: np.ndarray, dtype: torch.dtype) -> None:
    assert not np.isnan(mine).any()
    assert np.all(np.abs(mine - truth) <= TOLERANCE[dtype] * (1 + np.abs(truth).max(initial=0)))


@pytest.mark.parametrize(
    ("name", "dtype", "d", "causal", "window"),
    [
        *rarely(("gfx1201", torch.bfloat16, 32, True, None), ("gfx1201", torch.float16, 32, "top_left", (10, None))),
        ("gfx1151", torch.float16, 16, False, (6, 4)), *rarely(("gfx90a", torch.float16, 32, "top_left", (None, 3))),
        *rarely(("gfx942", torch.bfloat16, 32, True, None), ("gfx908", torch.float16, 32, False, None)),
        *rarely(("gfx950", torch.bfloat16, 128, True, None)),
        ("gfx950", torch.bfloat16, 16, True, None), ("gfx1250", torch.float16, 16, "top_left", (None, 3)),
        *rarely(("gfx1151", torch.float16, 32, False, (6, 4)), ("gfx950", torch.bfloat16, 32, True, None)),
    ],
)  # fmt: skip
def test_packed(name, dtype, d, causal, window):
    first_q, first_k = (
        torch.tensor([0, *accumulate(n)], dtype=torch.int32) for n in (LENGTHS, KEY_LENGTHS)
    )
    sizes = ((LENGTHS, 4), (KEY_LENGTHS, 2), (KEY_LENGTHS, 2))
    q, k, v = (torch.randn(sum(n), h, d).to(dtype).requires_grad_() for n, h in sizes)
    grad = torch.randn(sum(LENGTHS), 4, d).to(dtype)
    options = {"causal": causal, "window": window, "cu_seqlens_q": first_q, "cu_seqlens_k": first_k}
    with laneloom.emulated(name, strict=True) as emulation:
        out, lse = laneloom.flash_attention(q, k, v, return_lse=True, **options)
        grads = torch.autograd.grad(out, (q, k, v), grad)
    assert [launch.kernel for launch in emulation.launches] == ["attention_forward", *["attention_backward"] * 2]
    assert out.is_contiguous()
    assert lse.shape == (4, sum(LENGTHS))
    left, right = window or (None, None)
    words = {False: "none", True: "bottom_right"}
    for b in range(len(LENGTHS)):
        rows, columns = slice(first_q[b], first_q[b + 1]), slice(first_k[b], first_k[b + 1])
        truth = reference.attention(
            exact(q[rows]), exact(k[columns]), exact(v[columns]), causal=words.get(causal, causal), left=left,
            right=right, grad=exact(grad[rows]),
        )  # fmt: skip
        assert_close(exact(out[rows]), truth.out, dtype)
        for mine, at, want in zip(grads, (rows, columns, columns), (truth.dq, truth.dk, truth.dv), strict=True):
            assert_close(exact(mine[at]), want, dtype)
        mine = lse[:, rows].detach().double().numpy()[None]
        assert np.array_equal(np.isinf(mine), np.isinf(truth.lse))
        np.testing.assert_allclose(mine[np.isfinite(mine)], truth.lse[np.isfinite(mine)], atol=1e-5)


def test_packed_is_each_sequence_alone():
    """The same bits, and max_seqlen may be larger than any."""
    first = torch.tensor([0, 20, 57], dtype=torch.int32)
    q, k, v = (torch.randn(57, 2, 16, dtype=torch.bfloat16) for _ in range(3))
    with laneloom.emulated("gfx950"):
        together = laneloom.flash_attention(q, k, v, causal=True, cu_seqlens_q=first, max_seqlen_q=90, max_seqlen_k=64)
        alone = [
            laneloom.flash_attention(*(x[at].transpose(0, 1)[None] for x in (q, k, v)), causal=True)[0].transpose(0, 1)
            for at in (slice(0, 20), slice(20, 57))
        ]
    assert torch.equal(together, torch.cat(alone))


def test_packed_arrays():
    first = np.array([0, 20, 57], np.int32)
    q, k, v = (np.random.default_rng(i).standard_normal((57, 2, 16)).astype(np.float16) for i in range(3))
    options = {"causal": "top_left", "window": (None, 3)}  # a kernel of test_packed
    with laneloom.emulated("gfx1250"):
        got = laneloom.flash_attention(q, k, v, cu_seqlens_q=first, **options)
        tensors = [torch.from_numpy(x) for x in (q, k, v)]
        want = laneloom.flash_attention(*tensors, cu_seqlens_q=torch.from_numpy(first), **options)
    assert np.array_equal(got, want.numpy())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cu_seqlens_q": None, "cu_seqlens_k": torch.zeros(2, dtype=torch.int32)}, "cu_seqlens_q: expected where"),
        ({"cu_seqlens_q": torch.zeros(3)}, "int32 vector"),
        ({"cu_seqlens_q": torch.zeros(1, dtype=torch.int32)}, "sequences"),
        ({"cu_seqlens_k": torch.zeros(4, dtype=torch.int32)}, "cu_seqlens_k: expected 3 elements"),
        ({"max_seqlen_q": -1}, "max_seqlen_q: expected"), ({"max_seqlen_k": 1.5}, "max_seqlen_k: expected"),
        ({"cu_seqlens_q": None, "max_seqlen_q": 4}, "expected None without"),
    ],
)  # fmt: skip
def test_packed_refusals(change, words):
    x = torch.randn(57, 2, 32, dtype=torch.float16)
    options = {"cu_seqlens_q": torch.tensor([0, 20, 57], dtype=torch.int32)} | change
    with laneloom.emulated("gfx1201"), pytest.raises(ArgumentError, match=words):
        laneloom.flash_attention(x, x, x, **options)


def test_packed_wants_three_axes():
    x = torch.randn(1, 2, 57, 32, dtype=torch.float16)
    with laneloom.emulated("gfx1201"), pytest.raises(ArgumentError, match="q: expected 3 axes"):
        laneloom.flash_attention(x, x, x, cu_seqlens_q=torch.tensor([0, 57], dtype=torch.int32))


def in_pages(x: torch.Tensor, page: int, order: torch.Tensor) -> torch.Tensor:
    """[B, S, H, D] in pages in the given order; rows beyond S are NaN."""
    batch, room, *rest = x.shape
    pages = -(-room // page)
    padded = torch.full((batch, pages * page, *rest), torch.nan, dtype=x.dtype)
    padded[:, :room] = x
    cache = torch.empty(batch * pages, page, *rest, dtype=x.dtype)
    cache[order] = padded.view(-1, page, *rest)
    return cache


@pytest.mark.parametrize(
    ("name", "shape", "page", "window", "lengths"),
    [
        ("gfx1201", (2, 4, 2, 1, 200, 64, 64), 0, None, (200, 37)),
        *rarely(("gfx1201", (3, 6, 2, 2, 160, 32, 48), 16, None, (160, 0, 17))),
        ("gfx1201", (1, 2, 2, 3, 300, 80, 24), 32, 20, (290,)),
        ("gfx1151", (2, 8, 1, 3, 150, 32, 32), 16, None, (150, 1)),
        *rarely(("gfx942", (2, 4, 2, 1, 200, 128, 64), 0, None, (200, 37))),
        ("gfx942", (1, 10, 2, 4, 300, 80, 24), 32, 20, (290,)),
        *rarely(("gfx950", (3, 6, 2, 2, 160, 16, 264), 16, None, (160, 0, 17))),
        *rarely(("gfx950", (2, 4, 2, 1, 200, 128, 64), 16, None, (200, 37))),
        ("gfx90a", (2, 4, 2, 2, 150, 64, 40), 16, None, (150, 33)),
        *rarely(("gfx1250", (3, 6, 2, 2, 160, 32, 48), 16, None, (160, 0, 17))),
        ("gfx1250", (1, 10, 2, 4, 300, 16, 24), 48, 20, (290,)),
        *rarely(("gfx1250", (2, 4, 2, 1, 200, 512, 264), 0, None, (200, 37))),
    ],
)  # fmt: skip
def test_decode(name, shape, page, window, lengths):
    batch, heads, kv_heads, queries, room, d, d_v = shape
    q = torch.randn(batch, queries, heads, d, dtype=torch.float16)
    k, v = (torch.randn(batch, room, kv_heads, n, dtype=torch.float16) for n in (d, d_v))
    caches, table = (k, v), None
    if page:
        order = torch.randperm(batch * -(-room // page))
        caches, table = tuple(in_pages(x, page, order) for x in (k, v)), order.view(batch, -1).int()
        caches = tuple(torch.nan_to_num(x) for x in caches)
    with laneloom.emulated(name, strict=True) as emulation:
        out, lse = laneloom.attention_decode(
            q, *caches, cache_lengths=torch.tensor(lengths, dtype=torch.int32), block_table=table, window=window,
            return_lse=True,
        )  # fmt: skip
    assert emulation.launches[0].kernel == "attention_decode"
    for b, n in enumerate(lengths):
        truth = reference.attention(exact(q[b]), exact(k[b, :n]), exact(v[b, :n]), causal="bottom_right", left=window)
        assert_close(exact(out[b]), truth.out, torch.float16)
        mine = lse[b].double().numpy()[None]
        assert np.array_equal(np.isinf(mine), np.isinf(truth.lse))
        np.testing.assert_allclose(mine[np.isfinite(mine)], truth.lse[np.isfinite(mine)], atol=1e-5)


def test_decode_arrays_and_strided_queries():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, 1, 64)).astype(np.float16).transpose(0, 2, 1, 3)
    k, v = (rng.standard_normal((2, 200, 2, 64)).astype(np.float16) for _ in range(2))
    lengths = np.array([200, 33], np.int32)
    with laneloom.emulated("gfx1201"):
        got = laneloom.attention_decode(q, k, v, cache_lengths=lengths)
        want = laneloom.attention_decode(
            torch.from_numpy(q.copy()), *map(torch.from_numpy, (k, v)), cache_lengths=torch.from_numpy(lengths))
    assert np.array_equal(got, want.numpy())


@pytest.mark.parametrize("window", [None, 400])
def test_the_longest_length_divides_the_work_and_limits_nothing(window):
    """A cache with much room and short sequences: as many runs as the length that is said wants, whatever there is."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, h, 16).half() for n, h in ((1, 4), (512, 2), (512, 2)))
    lengths = torch.tensor([512, 70], dtype=torch.int32)
    with laneloom.emulated("gfx1151", strict=True) as gpu:
        found, groups = [], []
        for said in (None, 1, 70, 500, 1 << 70):
            gpu.launches.clear()
            found.append(laneloom.attention_decode(q, k, v, cache_lengths=lengths, window=window, max_seqlen_k=said))
            groups.append(gpu.launches[0].grid)
    assert groups[1] < groups[0] == groups[3] == groups[4]
    for b, n in enumerate(lengths.tolist()):
        truth = reference.attention(exact(q[b]), exact(k[b, :n]), exact(v[b, :n]), causal="bottom_right", left=window)
        for out in found:
            assert_close(exact(out[b]), truth.out, torch.float16)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"cache_lengths": torch.zeros(2)}, ArgumentError, "cache_lengths: expected dtype int32"),
        ({"cache_lengths": torch.zeros(3, dtype=torch.int32)}, ArgumentError, "cache_lengths: expected 2"),
        ({"k_cache": torch.zeros(2, 40, 2, 16).half()}, ArgumentError, "k_cache: expected q's batch 2"),
        ({"v_cache": torch.zeros(2, 39, 2, 32).half()}, ArgumentError, "v_cache: expected"),
        ({"q": torch.zeros(2, 1, 3, 32).half()}, ArgumentError, "multiple of k_cache's 2 heads"),
        ({"q": torch.zeros(2, 1, 2, 32)}, UnsupportedError, "q: expected dtype float16 or bfloat16"),
        ({"block_table": torch.zeros(2, 4, dtype=torch.int32)}, ArgumentError, "pages of a multiple of 16"),
        ({"window": -3}, ArgumentError, "window: expected"),
        ({"scale": float("nan")}, ArgumentError, "scale: expected"),
        ({"max_seqlen_k": 0}, ArgumentError, "max_seqlen_k: expected about how many keys .* got 0"),
        ({"max_seqlen_k": 1.5}, ArgumentError, "max_seqlen_k: expected"),
    ],
)  # fmt: skip
def test_decode_refusals(change, error, words):
    cache = torch.zeros(2, 40, 2, 32, dtype=torch.float16)
    operands = {
        "q": torch.zeros(2, 1, 2, 32, dtype=torch.float16), "k_cache": cache, "v_cache": cache,
        "cache_lengths": torch.zeros(2, dtype=torch.int32),
    } | change  # fmt: skip
    with laneloom.emulated("gfx1201"), pytest.raises(error, match=words):
        laneloom.attention_decode(**operands)


def test_one_longest_length_is_enough_for_one_vector_of_lengths():
    """Nothing reads the lengths where a sequence's queries and keys are its own, as a compiler cannot."""
    q = torch.empty(5, 1, 16, dtype=torch.float16, device="meta")
    first = torch.empty(3, dtype=torch.int32, device="meta")
    assert laneloom.flash_attention(q, q, q, cu_seqlens_q=first, max_seqlen_q=3).shape == q.shape
    with pytest.raises(ArgumentError, match=r"^max_seqlen_q: expected the longest sequence's length, which a meta "):
        laneloom.flash_attention(q, q, q, cu_seqlens_q=first)


#: lengths as numbers of a call, which grow from call to call: how it is called with one
LENGTHS_AS_NUMBERS = {
    "max_seqlen_q": lambda x, most: laneloom.flash_attention(
        x, x, x, cu_seqlens_q=torch.tensor([0, 8, 24], dtype=torch.int32), max_seqlen_q=most),
    "window": lambda x, most: laneloom.flash_attention(*[x.transpose(0, 1)[None]] * 3, window=(most, 0)),
    "max_seqlen_k": lambda x, most: laneloom.attention_decode(
        x[:1, None], *[x[None]] * 2, cache_lengths=torch.tensor([20], dtype=torch.int32), max_seqlen_k=most),
    "decode's window": lambda x, most: laneloom.attention_decode(
        x[:1, None], *[x[None]] * 2, cache_lengths=torch.tensor([20], dtype=torch.int32), window=most),
}  # fmt: skip


@pytest.mark.parametrize("call", LENGTHS_AS_NUMBERS.values(), ids=LENGTHS_AS_NUMBERS)
def test_compiled_code_serves_lengths_that_grow(call):
    x = torch.randn(24, 2, 16, dtype=torch.float16)
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    with laneloom.emulated("gfx942"):
        for most in (16, 18, 19, 23):
            assert torch.equal(compiled(x, most), call(x, most))
    assert len(graphs) <= 2  # of the first number, which a compiler takes for a constant, and of all others


@pytest.mark.parametrize("call", LENGTHS_AS_NUMBERS.values(), ids=LENGTHS_AS_NUMBERS)
@pytest.mark.parametrize("strict", [False, True])
def test_exported_code_takes_lengths_from_sizes(call, strict):
    class Model(torch.nn.Module):
        def forward(self, x, like):
            return call(x, like.shape[0])

    x, sizes = torch.randn(24, 2, 16, dtype=torch.float16), {0: torch.export.Dim("most", min=2, max=1 << 20)}
    with laneloom.emulated("gfx942"):
        exported = torch.export.export(Model(), (x, torch.ones(20)), dynamic_shapes=(None, sizes), strict=strict)
        assert torch.equal(exported.module()(x, torch.ones(17)), call(x, 17))


def test_compiled_code_finds_the_longest_lengths_itself():
    x = torch.randn(24, 2, 16, dtype=torch.float16)
    ends = [torch.tensor([0, n, 24], dtype=torch.int32) for n in (4, 16)]

    def attend(x, ends):
        return laneloom.flash_attention(x, x, x, cu_seqlens_q=ends)

    class Model(torch.nn.Module):
        def forward(self, x, ends):
            return attend(x, ends)

    torch._dynamo.reset()
    with laneloom.emulated("gfx942"):
        exported = torch.export.export(Model(), (x, ends[0])).module()
        for run in (torch.compile(attend, fullgraph=True, backend="eager"), exported):
            for some in ends:
                assert torch.equal(run(x, some), attend(x, some))
