"""Capped scores, softcap tanh(score / softcap), and sinks, which follow from the LSE, against FP64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from random_calls import Attention  # noqa: E402
from sampled import rarely  # noqa: E402

import laneloom  # noqa: E402
from laneloom.errors import ArgumentError, InvalidConfigError, UnsupportedError  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.attention import execute, reference  # noqa: E402
from laneloom.ops.attention.config import plan, plan_backward  # noqa: E402
from laneloom.ops.attention.problem import AttentionProblem  # noqa: E402

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

UNIT = 2.0**-11  #: of fp16


def exact(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def halves(*shapes):
    return tuple(torch.randn(shape, dtype=torch.float16) for shape in shapes)


@pytest.mark.parametrize("seed", [42, *rarely(1, 2, 3, 5)])
@pytest.mark.parametrize("name", ["gfx1201", *rarely("gfx1151", "gfx942", "gfx950", "gfx90a", "gfx908", "gfx1250")])
def test_forward_and_gradients(name, seed):
    call = Attention(seed, 60)
    call.softcap, call.gradients = 0.75, True
    with laneloom.emulated(name, strict=True):
        call.check("cpu")


def test_the_cap_itself():
    """The LSE of one key is its capped score: of any size a relative 2**-20, past the cap the cap."""
    scores = torch.tensor([0.0, *np.geomspace(1e-4, 6e4, 47)]).half()
    q = torch.zeros(1, 2, 48, 16, dtype=torch.float16)
    q[0, 0, :, 3], q[0, 1, :, 3] = scores, -scores
    k = torch.nn.functional.one_hot(torch.tensor([3]), 16).half().expand(1, 2, 1, 16)
    for cap in (30.0, 0.01, 1e6, 1e-30, 1e30):
        with laneloom.emulated("gfx1151"):
            _, lse = laneloom.flash_attention(q, k, k, scale=1.0, softcap=cap, return_lse=True)
        truth = cap * np.tanh(exact(q)[..., 3] / cap)
        assert (abs(exact(lse) - truth) <= 2.0**-20 * abs(truth)).all(), cap


def test_none_and_zero_are_no_cap():
    q, k, v = halves((1, 2, 30, 16), (1, 2, 30, 16), (1, 2, 30, 16))

    def attend(*operands, **cap):  # as test_compiled_and_batched, whose kernel it shares
        return laneloom.flash_attention(*operands, causal=True, **cap)

    with laneloom.emulated("gfx1201"):
        plain = attend(q, k, v)
        assert torch.equal(plain, attend(q, k, v, softcap=0))
        assert torch.equal(plain, attend(q, k, v, softcap=np.float32(0)))
        assert not torch.equal(plain, attend(q, k, v, softcap=0.5))
        arrays = attend(*(x.numpy() for x in (q, k, v)), softcap=0.5)
        assert np.array_equal(arrays, attend(q, k, v, softcap=np.float16(0.5)).numpy())


def test_packed_is_each_sequence_alone():
    first = torch.tensor([0, 20, 57], dtype=torch.int32)
    leaves = [x.requires_grad_() for x in halves((57, 4, 16), (57, 2, 16), (57, 2, 16))]
    together = [x.detach().clone().requires_grad_() for x in leaves]
    with laneloom.emulated("gfx942", strict=True):
        out = laneloom.flash_attention(*together, causal=True, softcap=0.5, cu_seqlens_q=first)
        out.sum().backward()
        for at in (slice(0, 20), slice(20, 57)):
            parts = (x[at].transpose(0, 1)[None] for x in leaves)
            alone = laneloom.flash_attention(*parts, causal=True, softcap=0.5)
            assert torch.equal(out[at], alone[0].transpose(0, 1))
            alone.sum().backward()
    for one, other in zip(together, leaves, strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("name", ["gfx1151", *rarely("gfx1201", "gfx942", "gfx1250")])
def test_decode(name):
    """Two runs of keys in pages, D of more than one fenced piece; and all of it by numpy."""
    q, k, v = halves((2, 2, 4, 80), (14, 16, 2, 80), (14, 16, 2, 24))
    table, lengths = torch.randperm(14).view(2, 7).int(), torch.tensor([112, 37], dtype=torch.int32)
    options = {"softcap": 0.75, "window": 90, "return_lse": True}
    with laneloom.emulated(name, strict=True):
        out, lse = laneloom.attention_decode(q, k, v, cache_lengths=lengths, block_table=table, **options)
        same, _ = laneloom.attention_decode(
            *(x.numpy() for x in (q, k, v)), cache_lengths=lengths.numpy(), block_table=table.numpy(), **options)
    assert np.array_equal(out.numpy(), same)
    for b, n in enumerate(lengths):
        keys, values = (exact(x[table[b].long()].flatten(0, 1)[:n]).swapaxes(0, 1)[None] for x in (k, v))
        queries = exact(q[b]).swapaxes(0, 1)[None]
        bounds = {"causal": "bottom_right", "left": 90, "softcap": 0.75}
        truth = reference.attention(queries, keys, values, **bounds)
        # P and O are rounded once each
        most = 3 * UNIT * reference.attention(queries, keys, abs(values), **bounds).out
        assert (abs(exact(out[b]).swapaxes(0, 1) - truth.out[0]) <= most[0]).all()
        assert (abs(exact(lse[b]) - truth.lse[0]) <= 2.0**-18 * (1 + abs(truth.lse[0]))).all()


def test_float8_on_amd():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in halves((1, 2, 40, 32), (1, 2, 40, 32), (1, 2, 40, 32)))
    words = {"causal": True, "softcap": 0.75}
    with laneloom.emulated("gfx1201"):
        out, lse = laneloom.flash_attention(
            q, k, v, scale_q=2.0, **words, return_lse=True, out_dtype=torch.float16)
    words |= {"causal": "bottom_right", "scale": 2 * 32**-0.5}
    truth = reference.attention(exact(q), exact(k), exact(v), **words)
    most = 3 * UNIT * reference.attention(exact(q), exact(k), abs(exact(v)), **words).out
    assert (abs(exact(out) - truth.out) <= most).all()
    assert (abs(exact(lse) - truth.lse) <= 2.0**-18 * (1 + abs(truth.lse))).all()


def test_compiled_and_batched():
    q, k, v = halves((3, 1, 2, 20, 16), (3, 1, 2, 20, 16), (3, 1, 2, 20, 16))

    def loss(q, k, v):
        return laneloom.flash_attention(q, k, v, causal=True, softcap=0.5).float().square().sum()

    torch._dynamo.reset()
    with laneloom.emulated("gfx1201"):
        expected = [torch.func.grad(loss)(*(x[i] for x in (q, k, v))) for i in range(3)]
        assert torch.equal(torch.vmap(torch.func.grad(loss))(q, k, v), torch.stack(expected))
        leaf = q[0].clone().requires_grad_()
        torch.compile(loss, fullgraph=True, backend="aot_eager")(leaf, k[0], v[0]).backward()
        assert torch.equal(leaf.grad, expected[0])
        cache, lengths = k[0].transpose(1, 2).contiguous(), torch.tensor([20], dtype=torch.int32)

        def decode(q):
            return laneloom.attention_decode(q, cache, cache, cache_lengths=lengths, softcap=0.5)

        token = q[0, :, :, :1].transpose(1, 2)
        assert torch.equal(torch.compile(decode, fullgraph=True, backend="aot_eager")(token), decode(token))


@pytest.mark.parametrize(
    "softcap", [-1.0, float("nan"), float("inf"), 1e-31, 1e31, 10**400, True, "50", torch.ones(()), np.float16("inf")]
)
def test_refusals(softcap):
    q, k, v = halves((1, 1, 4, 16), (1, 1, 4, 16), (1, 1, 4, 16))
    with laneloom.emulated("gfx1201"):
        with pytest.raises(ArgumentError, match="softcap: expected a number"):
            laneloom.flash_attention(q, k, v, softcap=softcap)
        with pytest.raises(ArgumentError, match="softcap: expected a number"):
            laneloom.attention_decode(q, k, v, cache_lengths=torch.ones(1, dtype=torch.int32), softcap=softcap)


def test_hoppers_own_schedules_cap():
    """Up to 128: their tanh is right to a part of the cap."""
    hopper = get_gpu("sm_90a")
    problem = AttentionProblem(1, 4, 2, 512, 512, 128, 128, "bf16", 0.1, softcap=50.0)
    own = plan(problem, hopper)
    assert own.schedule == "hopper_forward"
    assert [config.schedule for config in plan_backward(problem, hopper)] == ["hopper_backward_wide"]
    for larger in (replace(problem, softcap=129.0), replace(problem, softcap=1e-30, scale=1e3)):
        assert plan(larger, hopper).schedule == "forward"
        assert [config.role for config in plan_backward(larger, hopper)] == ["query", "key"]
        with pytest.raises(InvalidConfigError, match="softcap"):
            execute.code_object(larger, hopper, "forward", own)
    uncapped = plan_backward(replace(problem, softcap=0.0), hopper)[0]
    assert uncapped.schedule == "hopper_backward"
    assert "before they would be capped" in (uncapped.why_invalid(problem, hopper) or "")
    eight = AttentionProblem(1, 4, 2, 512, 512, 128, 128, "fp8", 0.1, softcap=50.0, out="bf16")
    with pytest.raises(UnsupportedError, match="softcap is for fp16 and bf16 there"):
        plan(eight, hopper)


@pytest.mark.parametrize("left", [None, *rarely(9)])
def test_sinks(left):
    """One more logit a head in the softmax's denominator: O sigmoid(LSE - sink), whose gradients are right too."""
    q, k, v = (x.requires_grad_() for x in halves((2, 4, 70, 24), (2, 2, 70, 24), (2, 2, 70, 40)))
    sink = torch.randn(4, requires_grad=True)
    slope = torch.randn(2, 4, 70, 40, dtype=torch.float16)
    with laneloom.emulated("gfx1151"):
        window = None if left is None else (left, None)  # None: with kernels of test_attention.py
        o, lse = laneloom.flash_attention(q, k, v, causal=True, window=window, return_lse=True)
        got = (o * torch.sigmoid(lse - sink[:, None])[..., None]).to(o.dtype)
        grads = torch.autograd.grad(got, (q, k, v, sink), slope)
        caches = (x.detach().transpose(1, 2).contiguous() for x in (q[:, :, -1:], k, v))
        lengths = torch.tensor([70, 70], dtype=torch.int32)
        last, last_lse = laneloom.attention_decode(*caches, cache_lengths=lengths, window=left, return_lse=True)
        last = (last * torch.sigmoid(last_lse - sink[:, None]).mT[..., None]).to(o.dtype)

    leaves = [x.detach().double().requires_grad_() for x in (q, k, v, sink)]
    dense_q, dense_k, dense_v, dense_sink = leaves
    scores = dense_q @ dense_k.repeat_interleave(2, 1).mT / 24**0.5
    distance = torch.arange(70)[None, :] - torch.arange(70)[:, None]
    scores = scores.masked_fill((distance > 0) | (distance < -(70 if left is None else left)), -torch.inf)
    with_sink = torch.cat([scores, dense_sink[None, :, None, None].expand(2, 4, 70, 1)], -1)
    truth = torch.softmax(with_sink, -1)[..., :-1] @ dense_v.repeat_interleave(2, 1)
    # P, O and the product of the two are rounded; so are dO, P and dS on the way back, and each gradient.
    assert (got.double() - truth).abs().max() <= 4 * UNIT * truth.abs().max()
    assert (last[:, 0].double() - truth[:, :, -1]).abs().max() <= 4 * UNIT * truth[:, :, -1].abs().max()
    for mine, want in zip(grads, torch.autograd.grad(truth, leaves, slope.double()), strict=True):
        assert (mine.double() - want).abs().max() <= 4 * UNIT * want.abs().max()
