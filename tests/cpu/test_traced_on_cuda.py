"""torch.compile traces every public function on CUDA tensors, with no GPU: they are fake, Dynamo sees the same code.

On CPU tensors the warm path steps aside before it asks CUDA anything, so that tests with those never met its questions.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops import warm  # noqa: E402
from laneloom.pytorch import patch  # noqa: E402
from laneloom.pytorch.routing import Decision  # noqa: E402


def tensor(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="cuda")


def whole(*shape):
    return tensor(*shape, dtype=torch.int32)


#: public function -> (how it is called, its operands)
CALLS = {
    "matmul": (laneloom.matmul, lambda: (tensor(64, 32), tensor(32, 16))),
    "matmul_out": (
        lambda a, b, out: laneloom.matmul(a, b, out=out),
        lambda: (tensor(64, 32), tensor(32, 16), tensor(64, 16)),
    ),
    "gemm": (
        lambda a, b, c: laneloom.gemm(a, b, c, alpha=0.7, beta=0.5, activation="gelu"),
        lambda: (tensor(64, 32), tensor(32, 16), tensor(16)),
    ),
    "grouped_matmul": (laneloom.grouped_matmul, lambda: (tensor(64, 32), tensor(3, 32, 16), whole(3))),
    "gemm_chain": (
        lambda a, b, c: laneloom.gemm_chain(a, b, c, alpha0=0.5),
        lambda: (tensor(64, 32), tensor(32, 16), tensor(16, 24)),
    ),
    "flash_attention": (
        lambda q, k, v: laneloom.flash_attention(q, k, v, causal=True, scale=0.1),
        lambda: tuple(tensor(2, 4, 64, 32) for _ in range(3)),
    ),
    "attention_decode": (
        lambda q, k, v, lengths: laneloom.attention_decode(q, k, v, cache_lengths=lengths, scale=0.1),
        lambda: (tensor(2, 1, 4, 32), tensor(2, 64, 2, 32), tensor(2, 64, 2, 32), whole(2)),
    ),
    "quantized_matmul": (
        lambda x, q, scales: laneloom.quantized_matmul(x, laneloom.QuantizedWeight(q, scales, "fp8")),
        lambda: (tensor(64, 32), tensor(16, 32, dtype=torch.float8_e4m3fn), tensor(16, 1)),
    ),
    "quantize_blocks": (lambda x: laneloom.quantize_blocks(x)[1], lambda: (tensor(64, 32),)),
    "transform3d": (
        laneloom.transform3d,
        lambda: (tensor(5, 6, 6, 6, dtype=torch.float64), tensor(6, 6, dtype=torch.float64)),
    ),
    "transpose": (laneloom.transpose, lambda: (tensor(64, 32),)),
}  # fmt: skip


#: a config as a text, which no compiler can read, of each operation that takes one
TEXTS = {
    "matmul": "hopper_plain:block_m=64,block_n=64,block_k=64,num_warps=4,stages=2",
    "gemm": "hopper_plain:block_m=64,block_n=64,block_k=64,num_warps=4,stages=2",
    "grouped_matmul": "hopper_cluster:block_m=128,block_n=128,block_k=64,stages=3",
    "gemm_chain": "pair",
    "quantized_matmul": "tiles:block_m=16,block_n=16,block_k=32,num_warps=1",
    "transform3d": "rows",
    "transpose": "tiles:through=lds",
}


@pytest.fixture(autouse=True)
def torch_with_cuda(monkeypatch):
    """What torch's CUDA build has and its CPU build has not: a function that Dynamo cannot trace."""
    torch._dynamo.reset()
    monkeypatch.setattr(warm, "current_device", torch._dynamo.disable(lambda: 0))


def test_every_public_function_is_called():
    others = {"Int4", "QuantizedLinear", "QuantizedWeight", "emulated", "explain", "patched", "quantize_linears"}
    functions = set(laneloom.__all__) - others - {"quantize_weight"}
    assert functions | {"matmul_out"} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_one_graph(name):
    """fullgraph with symbolic sizes. No gradients: without CUDA torch has no streams to record them for."""
    function, operands = CALLS[name]
    with FakeTensorMode():
        compiled = torch.compile(lambda *x: function(*x) * 2, fullgraph=True, dynamic=True, backend="eager")
        assert compiled(*operands()).device.type == "cuda"


@pytest.mark.parametrize("name", TEXTS)
def test_one_graph_with_a_config_as_a_text(name):
    public = getattr(laneloom, name)

    def call(*x):
        operands = (x[0], laneloom.QuantizedWeight(*x[1:], "fp8")) if name == "quantized_matmul" else x
        return public(*operands, config=TEXTS[name])

    with FakeTensorMode():
        operands = CALLS[name][1]()
        compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
        assert compiled(*operands).shape == call(*operands).shape


def test_patched_linear(monkeypatch):
    """`patched` routes a call inside a compiled graph, as it does where a GPU is."""
    monkeypatch.setattr(patch, "decide", lambda *args, **kwargs: Decision(True, "always"))
    with FakeTensorMode():
        x, weight = tensor(64, 32), tensor(16, 32)
        compiled = torch.compile(torch.nn.functional.linear, fullgraph=True, backend="eager")
        with laneloom.patched() as p:
            assert compiled(x, weight).shape == (64, 16)
    assert [entry.routed for entry in p.report().entries] == [True]


def test_meta_tensors_have_the_results_shapes():
    """On the device "meta" only shapes exist: the operators know them, and nothing is launched."""

    def meta(*shape: int, dtype=torch.float16) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    q, k = meta(1, 2, 5, 16), meta(1, 2, 7, 16)
    cube, matrix = meta(2, 6, 6, 6, dtype=torch.float64), meta(6, 6, dtype=torch.float64)
    results = (
        laneloom.matmul(meta(3, 4), meta(4, 5)), laneloom.gemm(meta(3, 4), meta(4, 5), bias=meta(5)),
        laneloom.transpose(meta(3, 4)), laneloom.flash_attention(q, k, k),
        laneloom.gemm_chain(meta(16, 16), meta(16, 32), meta(32, 16)), laneloom.transform3d(cube, matrix),
    )  # fmt: skip
    assert all(x.device.type == "meta" for x in results)
    shapes = [(3, 5), (3, 5), (4, 3), (1, 2, 5, 16), (16, 16), (2, 6, 6, 6)]
    assert [tuple(x.shape) for x in results] == shapes
