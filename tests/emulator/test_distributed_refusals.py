"""What laneloom.pytorch.distributed refuses, in one sentence that names the argument, on a group of one rank."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import laneloom  # noqa: E402
from laneloom.errors import ArgumentError, UnsupportedError  # noqa: E402
from laneloom.pytorch.distributed import (  # noqa: E402
    all_gather_matmul,
    matmul_reduce_scatter,
    ring_attention,
    zigzag_shard,
    zigzag_unshard,
)

X, W = torch.ones(4, 8, dtype=torch.float16), torch.ones(8, 6, dtype=torch.float16)
Q = torch.ones(1, 2, 8, 16, dtype=torch.float16)

REFUSED = {
    "a mask that only flash_attention knows": (
        lambda: ring_attention(Q, Q, Q, causal="bottom_right"), "causal: expected True or False, got 'bottom_right'"),
    "deterministic": (
        lambda: ring_attention(Q, Q, Q, deterministic=None), "deterministic: expected True or False, got None"),
    "an array": (lambda: all_gather_matmul(X.numpy(), W), "x: expected a tensor with 2 axes, got ndarray"),
    "axes": (lambda: all_gather_matmul(X, W[0]), "w: expected a tensor with 2 axes, got shape (6,)"),
    "dtypes": (lambda: all_gather_matmul(X, W.float()), "w: expected x's dtype torch.float16, got torch.float32"),
    "an array of attention": (
        lambda: ring_attention(Q.numpy(), Q, Q), "q: expected a tensor [B, H, N, D], got ndarray"),
    **{
        f"a group that is none, {function.__name__}": (
            lambda function=function, args=args: function(*args, group="all"),
            "group: expected a process group of torch.distributed or None, got 'all'",
        )
        for function, *args in (
            (all_gather_matmul, X, W), (matmul_reduce_scatter, X, W), (ring_attention, Q, Q, Q),
            (zigzag_shard, Q), (zigzag_unshard, Q),
        )
    },
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    call, sentence = REFUSED[name]
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError) as refused:
        call()
    assert str(refused.value) == sentence


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.int32, torch.complex64])
@pytest.mark.parametrize("function", [all_gather_matmul, matmul_reduce_scatter])
def test_dtypes_whose_products_have_another_are_refused(function, dtype):
    with laneloom.emulated("gfx1201"), pytest.raises(UnsupportedError) as refused:
        function(X.to(dtype), W.to(dtype))
    expected = "torch.float16, torch.bfloat16, torch.float32, torch.float64"
    assert str(refused.value) == f"x: expected dtype {expected}, got {dtype}"
