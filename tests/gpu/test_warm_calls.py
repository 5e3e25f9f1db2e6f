"""Calls that find what an earlier one prepared give the bits of calls that find nothing."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
from watching import Watching  # noqa: E402

import laneloom  # noqa: E402
import laneloom.pytorch  # noqa: E402  for the operators
from laneloom.ops.attention import torch_decode as decoding  # noqa: E402
from laneloom.ops.attention import torch_float8 as float8  # noqa: E402
from laneloom.ops.attention import torch_op as attention  # noqa: E402
from laneloom.ops.gemm_chain import torch_op as chain  # noqa: E402
from laneloom.ops.matmul import torch_grouped as grouped  # noqa: E402
from laneloom.ops.operators import Operator  # noqa: E402
from laneloom.ops.transform3d import torch_op as transform  # noqa: E402
from laneloom.ops.transpose import torch_op as transpose  # noqa: E402


def tensor(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64).to(dtype)


def shifted(x):
    """The same values at an address that 16 does not divide."""
    room = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape)
    return room.copy_(x)


def packed(seed):
    ends = [0, 100, 130, 300] if seed % 2 else [0, 20, 190, 300]
    starts = torch.tensor(ends, dtype=torch.int32, device="cuda")
    q, k, v = (tensor(300, 4, 64, seed=seed + i) for i in range(3))
    return laneloom.flash_attention(q, k, v, cu_seqlens_q=starts, max_seqlen_q=256, return_lse=True)


def attend(seed, n=192, d=64, **options):
    q, k, v = (tensor(2, 4, n, d, seed=seed + i) for i in range(3))
    return laneloom.flash_attention(q, k, v, return_lse=True, **options)


def attend_views(seed):
    """[B, N, H, D] seen as [B, H, N, D], one batch of keys for all, values where no 16-byte load reaches them."""
    q, k = tensor(2, 128, 4, 64, seed=seed).transpose(1, 2), tensor(1, 4, 96, 64, seed=seed).expand(2, 4, 96, 64)
    return laneloom.flash_attention(q, k, shifted(tensor(2, 4, 96, 64, seed=seed + 1)))


def decode(seed, keys=700):
    q, k, v = tensor(3, 1, 8, 64, seed=seed), *(tensor(3, keys, 2, 64, seed=seed + i) for i in (1, 2))
    lengths = torch.tensor([keys, 5 * seed, 1], dtype=torch.int32, device="cuda")
    return laneloom.attention_decode(q, k, v, cache_lengths=lengths, return_lse=True)


def attend_float8(seed):
    q, k, v = (tensor(2, 4, 192, 64, dtype=torch.float8_e4m3fn, seed=seed + i) for i in range(3))
    scales = tensor(2, 4, dtype=torch.float32, seed=seed).abs() + 0.5
    return laneloom.flash_attention(q, k, v, causal=True, scale_q=scales, scale_v=0.5, return_lse=True)


def multiply_groups(seed):
    ends = torch.tensor([40, 40 + seed, 256], dtype=torch.int32, device="cuda")
    return laneloom.grouped_matmul(tensor(256, 128, seed=seed), tensor(3, 128, 192, seed=seed), ends)


CALLS = {
    "decoding": (decoding, decode),
    "decoding, one run": (decoding, lambda seed: decode(seed, keys=64)),
    "8-bit floats": (float8, attend_float8),
    "groups": (grouped, multiply_groups),
    "attention": (attention, attend),
    "causal": (attention, lambda seed: attend(seed, causal=True)),
    "window and scale": (attention, lambda seed: attend(seed, window=(40, 3), scale=0.3)),
    "wide": (attention, lambda seed: attend(seed, d=512)),
    "no keys": (attention, lambda seed: laneloom.flash_attention(
        tensor(1, 2, 8, 32, seed=seed), *[tensor(1, 2, 0, 32)] * 2, return_lse=True)),
    "views": (attention, attend_views),
    "packed": (attention, packed),
    "transform3d": (transform, lambda seed: laneloom.transform3d(
        tensor(40, 10, 10, 10, dtype=torch.float64, seed=seed), tensor(10, 10, dtype=torch.float64, seed=seed))),
    "transform3d, transposed": (transform, lambda seed: laneloom.transform3d(
        tensor(2, 5, 8, 8, 8, dtype=torch.float32, seed=seed), tensor(3, 8, 8, dtype=torch.float32, seed=seed),
        transpose=True)),
    "transform3d, large": (transform, lambda seed: laneloom.transform3d(
        tensor(3, 50, 50, 50, dtype=torch.float64, seed=seed), tensor(50, 50, dtype=torch.float64, seed=seed))),
    "transpose": (transpose, lambda seed: laneloom.transpose(tensor(3, 100, 70, seed=seed))),
    "transpose, shifted": (transpose, lambda seed: laneloom.transpose(shifted(tensor(64, 128, seed=seed)))),
    "chain": (chain, lambda seed: laneloom.gemm_chain(
        tensor(65536, 64, seed=seed), tensor(64, 64, seed=seed), tensor(64, 32, seed=seed), alpha0=0.5, alpha1=0.25)),
    "chain with an addend": (chain, lambda seed: laneloom.gemm_chain(
        tensor(65536, 64, seed=seed), tensor(64, 64, seed=seed), tensor(64, 64, seed=seed), tensor(64, seed=seed),
        beta1=2.0)),
    "chain in two": (chain, lambda seed: laneloom.gemm_chain(
        tensor(512, 512, seed=seed), tensor(512, 1024, seed=seed), tensor(1024, 1024, seed=seed))),
}  # fmt: skip


def tensors(results):
    return results if isinstance(results, tuple) else (results,)


def forget(module):
    module._warm.clear()
    for operator in vars(module).values():
        if isinstance(operator, Operator):
            operator._calls.clear()


@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits(name):
    module, call = CALLS[name]
    cold = []
    for seed in (1, 2, 3):
        forget(module)
        cold.append(tensors(call(seed)))
    kept = len(module._warm)
    assert kept >= 1
    for seed in (3, 1, 2):  # each finds what the last cold call prepared for other data
        for warm, expected in zip(tensors(call(seed)), cold[seed - 1], strict=True):
            assert torch.equal(warm, expected)
    assert len(module._warm) == kept


@pytest.mark.parametrize(
    "name", ["attention", "packed", "decoding", "8-bit floats", "groups", "transform3d", "transpose", "chain"])
def test_in_another_thread(name):
    _, call = CALLS[name]
    expected = tensors(call(7))
    found = []
    thread = threading.Thread(target=lambda: (found.extend(tensors(call(7))), torch.cuda.synchronize()))
    thread.start()
    thread.join()
    for got, truth in zip(found, expected, strict=True):
        assert torch.equal(got, truth)


@pytest.mark.parametrize("causal", [False, True])
def test_replays_of_a_warm_call(causal):
    q, k, v = (tensor(1, 4, 512, 64, seed=i) for i in range(3))
    laneloom.flash_attention(q, k, v, causal=causal)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = laneloom.flash_attention(q, k, v, causal=causal)
    for seed in range(5):
        q.copy_(tensor(1, 4, 512, 64, seed=seed + 10))
        graph.replay()
        assert torch.equal(out, laneloom.flash_attention(q, k, v, causal=causal))


def test_a_negative_view_is_not_what_lies_there():
    z = torch.complex(tensor(4, 6, 6, 6, dtype=torch.float64), tensor(4, 6, 6, 6, dtype=torch.float64, seed=1))
    t = tensor(6, 6, dtype=torch.float64)
    plain, negative = z.imag, z.conj().imag
    assert negative.is_neg()
    for call in (lambda x: laneloom.transform3d(x, t), laneloom.transpose):
        torch.testing.assert_close(call(plain), -call(negative), rtol=1e-12, atol=1e-12)
    rows, view = plain.reshape(36, 24), z.reshape(36, 24).conj().imag
    lying = z.reshape(36, 24).imag  # with the strides of the view
    assert view.is_neg()
    for call in (laneloom.matmul, lambda a, b: laneloom.gemm(a, b, bias=a[:, 0].new_zeros(b.shape[1]))):
        expected = rows @ rows.mT
        for a, sign in ((lying, 1), (view, -1)):
            torch.testing.assert_close(call(a, rows.mT), sign * expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(call(rows, a.mT), sign * expected, rtol=1e-12, atol=1e-12)


def test_gradients_past_the_dispatcher():
    """As by the operator, through torch's dispatcher; second derivatives too."""
    q, k, v, grad = (tensor(1, 2, 128, 64, seed=i) for i in range(4))
    x, t = tensor(5, 6, 6, 6, dtype=torch.float64), tensor(6, 6, dtype=torch.float64)
    pairs = (
        ((q, k, v), laneloom.flash_attention, grad),
        ((x, t), laneloom.transform3d, tensor(5, 6, 6, 6, dtype=torch.float64, seed=3)),
        (tuple(tensor(64, 64, seed=i) for i in range(3)), laneloom.gemm_chain, tensor(64, 64, seed=4)),
    )
    for operands, call, g in pairs:
        results = []
        for context in (nullcontext(), nullcontext(), Watching()):
            leaves = [a.clone().requires_grad_() for a in operands]
            with context:
                out = call(*leaves)
                results.append((out.detach(), *torch.autograd.grad(out, leaves, g)))
        for cold, warm, operator in zip(*results, strict=True):
            for got in (cold, warm):
                rtol = 2e-2 if got.dtype == torch.bfloat16 else 1e-12
                torch.testing.assert_close(got, operator, rtol=rtol, atol=1e-2)
    small = torch.randn(2, 3, 3, 3, device="cuda", dtype=torch.float64, requires_grad=True)
    matrix = torch.randn(3, 3, device="cuda", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(laneloom.transform3d, (small, matrix))
