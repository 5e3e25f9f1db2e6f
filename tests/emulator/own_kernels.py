"""A small call of every AMD kernel of laneloom's: what the mutation test and the orders of waves work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import laneloom
from laneloom.ops.matmul.config_wmma import WideConfig, WmmaConfig
from laneloom.ops.transform3d.config import ChainedConfig, RowsConfig
from laneloom.ops.transform3d.config_levels import AmdLevelsConfig
from laneloom.ops.transpose.config import FragmentsConfig, TilesConfig

GPUS = ("gfx1151", "gfx1201")
CDNA = ("gfx942", "gfx950")
CDNA_5 = ("gfx1250",)


@dataclass(frozen=True)
class Case:
    """One kernel in one situation."""

    file: str  #: of ops/, the kernel in question
    make: Callable[..., Callable[[], tuple[torch.Tensor, ...]]]  #: (seed, more loop iterations) -> the call
    launch: int = -1  #: which of the call's launches is the one in question
    caught: Counter = field(default_factory=Counter)  #: at least so many deletions of each kind are caught, of all
    step: int = 1  #: of five times as many mutants one is run, unless all are asked for
    gpus: tuple[str, ...] = GPUS


def _half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def _matmul(m: int, n: int, k: int, layout: str = "nn", config=None, dtype=torch.float16):
    def make(seed=0, more=0):
        torch.manual_seed(seed)
        shape = (n, k + more) if layout == "nt" else (k + more, n)
        b = torch.randint(-9, 9, shape).to(dtype)
        a = torch.randint(-9, 9, (m, k + more)).to(dtype)
        out = torch.int32 if dtype is torch.int8 else dtype
        return lambda: (laneloom.matmul(a, b.T if layout == "nt" else b, out_dtype=out, config=config),)

    return make


def _gemm(k: int, activation: str):
    def make(seed=0, more=0):
        torch.manual_seed(seed)
        a, b, c, bias = _half(50, k + more if k else 0), _half(k + more if k else 0, 37), _half(50, 37), _half(37)
        return lambda: (laneloom.gemm(a, b, c, alpha=0.5, beta=-2, bias=bias, activation=activation),)

    return make


def _scaled(seed=0, more=0):
    torch.manual_seed(seed)
    a, b = (torch.randn(*shape).to(torch.float8_e4m3fn) for shape in ((20 + more, 150), (150, 37)))
    scale_a, scale_b = torch.rand(20 + more, 2) + 0.5, torch.rand(2, 1) + 0.5
    return lambda: (laneloom.gemm(a, b, scale_a=scale_a, scale_b=scale_b),)


def _gemm_chain(seed=0, more=0):
    torch.manual_seed(seed)
    a0, b0, b1, c1 = _half(40, 24 + more), _half(24 + more, 40), _half(40, 24), _half(40, 24)
    return lambda: (laneloom.gemm_chain(a0, b0, b1, c1, alpha0=0.5, beta1=2.0),)


def _attention(backward: bool):
    def make(seed=0, more=0):
        torch.manual_seed(seed)
        q, k, v = (_half(1, 2, n, d).requires_grad_(backward) for n, d in ((40, 24), (50 + more, 24), (50 + more, 16)))
        gradient = _half(1, 2, 40, 16)

        def call():
            out = laneloom.flash_attention(q, k, v, causal=True)
            return torch.autograd.grad(out, (q, k, v), gradient) if backward else (out,)

        return call

    return make


_gradients = _attention(True)


def _decode(seed=0, more=0):
    torch.manual_seed(seed)
    q, k, v = _half(2, 1, 4, 24), _half(2, 130 + more, 2, 24), _half(2, 130 + more, 2, 16)
    lengths = torch.tensor([130, 37], dtype=torch.int32) + more
    return lambda: (laneloom.attention_decode(q, k, v, cache_lengths=lengths),)


def _transform3d(config):
    def make(seed=0, more=0):
        torch.manual_seed(seed)
        x, matrix = torch.randn(3 + more, 5, 5, 5, dtype=torch.float64), torch.randn(5, 5, dtype=torch.float64)
        return lambda: (laneloom.transform3d(x, matrix, config=config),)

    return make


def _transpose(config):
    def make(seed=0, more=0):
        torch.manual_seed(seed)
        x = torch.randint(-9999, 9999, (2, 70 + more, 45), dtype=torch.int16)
        return lambda: (laneloom.transpose(x, config=config),)

    return make


def _quantize(seed=0, more=0):
    torch.manual_seed(seed)
    x = torch.randn(70, 45 + more, dtype=torch.bfloat16)

    def call():
        q, scale = laneloom.quantize_blocks(x, rows=128)
        return q.view(torch.uint8), scale

    return call


def _quantized(m: int, config: str, k: int = 100):
    def make(seed=0, more=0):
        torch.manual_seed(seed)
        values = torch.randint(0, 256, (37, (k + more) // 2), dtype=torch.uint8)
        weight = laneloom.QuantizedWeight(values, torch.rand(37, -(-(k + more) // 32)) + 0.5, "int4", 32)
        x = _half(m, k + more)
        return lambda: (laneloom.quantized_matmul(x, weight, config=config),)

    return make


_FP32 = torch.float32
CASES = {
    # four waves, several K-tiles, no masks
    "matmul": Case("matmul/wmma", _matmul(256, 512, 96, "nt"), caught=Counter(wait=3, barrier=1)),
    # masks in every load and store
    "matmul, ragged": Case("matmul/wmma", _matmul(70, 37, 45), caught=Counter(wait=3, mask=1), step=25),
    "mfma": Case(
        "matmul/mfma", _matmul(50, 37, 70), caught=Counter(wait=8, barrier=2, mask=10), step=6,
        gpus=("gfx90a", "gfx942"),
    ),
    "coop": Case("matmul/wmma_coop", _matmul(200, 150, 96, config="coop"), caught=Counter(wait=2), step=20),
    "wide": Case(
        "matmul/wmma_wide", _matmul(200, 144, 96, config=WideConfig(block_m=128, block_n=128, block_k=32)),
        caught=Counter(wait=2, barrier=1), step=20,
    ),
    "stream-K's sums": Case(
        "matmul/stream_sums", _matmul(40, 40, 136, config=WmmaConfig(
            block_m=32, block_n=32, block_k=32, num_warps=2, waves_n=2, stream_k=1)),
        caught=Counter(wait=1, mask=1), step=8,
    ),
    "pingpong": Case(
        "matmul/wmma_pingpong", _matmul(200, 150, 96, config="pingpong"), caught=Counter(wait=2, barrier=1), step=20
    ),
    "direct": Case(
        "matmul/wmma_direct",
        _matmul(67, 45, 100, "nt", "wmma_direct:block_m=32,block_n=32,block_k=32,num_warps=2", torch.int8),
        caught=Counter(wait=1, mask=1), step=12, gpus=("gfx1201",),
    ),
    "fma": Case("matmul/fma", _matmul(70, 37, 45, dtype=_FP32), caught=Counter(wait=2, mask=1), step=40),
    "sgemm_k1": Case("matmul/sgemm_naive", _matmul(35, 20, 9, config="sgemm_k1", dtype=_FP32), step=4),
    "sgemm_k2": Case(
        "matmul/sgemm_square", _matmul(35, 40, 37, config="sgemm_k2", dtype=_FP32), caught=Counter(barrier=1), step=4
    ),
    "sgemm_k5": Case(
        "matmul/sgemm_tiles", _matmul(131, 20, 20, config="sgemm_k5", dtype=_FP32), caught=Counter(wait=2), step=60
    ),
    "sgemm_k8": Case(
        "matmul/sgemm_assembly", _matmul(131, 20, 20, config="sgemm_k8", dtype=_FP32), caught=Counter(wait=2), step=16,
        gpus=("gfx1151",),
    ),
    "gemm": Case("matmul/wmma", _gemm(45, "gelu"), caught=Counter(wait=2, mask=1), step=60),
    "gemm without K": Case("matmul/epilogue", _gemm(0, "silu"), caught=Counter(wait=1, mask=1), step=4),
    "gemm_chain": Case("gemm_chain/wmma", _gemm_chain, caught=Counter(wait=2), step=8),
    "attention": Case("attention/forward", _attention(False), caught=Counter(wait=2), step=12),
    "attention, query's gradient": Case("attention/backward", _gradients, 1, Counter(wait=2), step=16),
    "attention, key's gradient": Case("attention/backward", _gradients, 2, Counter(wait=2), step=16),
    "decoding": Case("attention/decode", _decode, 0, Counter(wait=2), step=12),
    "attention, MFMA": Case(
        "attention/forward", _attention(False), caught=Counter(wait=10, barrier=2, mask=2), step=12, gpus=CDNA
    ),
    "attention, query's gradient, MFMA": Case(
        "attention/backward", _gradients, 1, Counter(wait=20, barrier=6, mask=2), step=16, gpus=CDNA
    ),
    "attention, key's gradient, MFMA": Case(
        "attention/backward", _gradients, 2, Counter(wait=25, barrier=12, mask=2), step=16, gpus=CDNA
    ),
    "decoding, MFMA": Case("attention/decode", _decode, 0, Counter(wait=10, mask=2), step=12, gpus=CDNA),
    "matmul, CDNA 5": Case(
        "matmul/dot", _matmul(50, 37, 140), caught=Counter(wait=40, barrier=1, mask=20), step=6, gpus=CDNA_5
    ),
    "gemm_chain, CDNA 5": Case(
        "gemm_chain/wmma", _gemm_chain, caught=Counter(wait=10, barrier=2, mask=4), step=8, gpus=CDNA_5
    ),
    "attention, CDNA 5": Case(
        "attention/forward", _attention(False), caught=Counter(wait=8, barrier=1, mask=1), step=12, gpus=CDNA_5
    ),
    "attention, query's gradient, CDNA 5": Case(
        "attention/backward", _gradients, 1, Counter(wait=15, barrier=4, mask=1), step=16, gpus=CDNA_5
    ),
    "attention, key's gradient, CDNA 5": Case(
        "attention/backward", _gradients, 2, Counter(wait=20, barrier=8, mask=2), step=16, gpus=CDNA_5
    ),
    "decoding, CDNA 5": Case("attention/decode", _decode, 0, Counter(wait=8, mask=1), step=12, gpus=CDNA_5),
    "few bits": Case(
        "quantized_matmul/tiles", _quantized(20, "tiles:block_m=32,block_n=32,block_k=32,num_warps=2,stages=1"),
    ),
    "a row against few bits": Case(
        "quantized_matmul/tiles", _quantized(1, "tiles:block_m=1,block_n=16,block_k=32,num_warps=1,stages=1"),
    ),
    "few bits, unpacked where they are multiplied": Case(
        "quantized_matmul/fragments", _quantized(40, "fragments:block_m=32,block_n=64,block_k=32,num_warps=2", 128),
        caught=Counter(wait=20, barrier=4, mask=45), step=10,
    ),
    "quantising": Case("quantize/blocks", _quantize, caught=Counter(wait=1, mask=1), step=10),
    "transform3d rows": Case("transform3d/rows", _transform3d(RowsConfig()), caught=Counter(wait=3, mask=1), step=2),
    "transform3d chained": Case("transform3d/chained", _transform3d(ChainedConfig()), caught=Counter(wait=2), step=8),
    "transform3d strips": Case(
        "transform3d/levels_amd", _transform3d(AmdLevelsConfig(level=5)), caught=Counter(wait=1), step=8
    ),
    "transpose": Case("transpose/tiles", _transpose(TilesConfig()), caught=Counter(wait=1, mask=1), step=6),
    "transpose by WMMA": Case(
        "transpose/fragments", _transpose(FragmentsConfig(block_r=32, chunks=2, num_warps=2)), caught=Counter(wait=1),
        step=5,
    ),
    "scaled blocks": Case("matmul/blocks", _scaled, caught=Counter(wait=2, mask=1), step=30),
}  # fmt: skip


def turn(name: str) -> int:
    """Which of a case's GPUs takes its turn: kernels of one call have the same, so that it is compiled once."""
    case = CASES[name]
    calls = [(other.make, other.gpus) for other in CASES.values()]
    return calls.index((case.make, case.gpus)) % len(case.gpus)
