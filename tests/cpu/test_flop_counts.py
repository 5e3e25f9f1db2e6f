"""torch's FlopCounterMode counts what laneloom's operators do, as it counts torch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import laneloom.pytorch  # noqa: E402


def empty(*shape, dtype=torch.float16):
    return torch.empty(shape, dtype=dtype, device="meta")


def flops(function, *args, **options):
    with FlopCounterMode(display=False) as counter:
        function(*args, **options)
    return counter.get_total_flops()


def trained(function):
    def call(*operands):
        function(*(x.requires_grad_() for x in operands)).sum().backward()

    return call


def quantized(x, values, scales, **options):
    return laneloom.quantized_matmul(x, laneloom.QuantizedWeight(values, scales, "int4"), **options)


A, B = empty(2, 3, 4), empty(4, 5)
Q, K = empty(1, 4, 5, 16), empty(1, 2, 7, 16)
PACKED, ENDS = empty(5, 2, 16), empty(3, dtype=torch.int32)
TOKEN, CACHE = empty(2, 1, 4, 16), empty(2, 8, 2, 16)
CUBES, MATRIX = empty(2, 3, 3, 3, dtype=torch.float64), empty(3, 3, dtype=torch.float64)
PRODUCT = 2 * 2 * 3 * 5 * 4
SCORES = 4 * 5 * 7


@pytest.mark.parametrize(
    ("expected", "function", "operands", "options"),
    [
        (PRODUCT, laneloom.matmul, (A, B), {}),
        (PRODUCT, laneloom.matmul, (A, B), {"out": empty(2, 3, 5)}),
        (PRODUCT, laneloom.gemm, (A, B), {"bias": empty(5), "activation": "gelu"}),
        (PRODUCT, laneloom.gemm, (A, B), {"out": empty(2, 3, 5)}),
        (3 * PRODUCT, trained(laneloom.matmul), (A, B), {}),
        (2 * 3 * 5 * (4 + 6), laneloom.gemm_chain, (A[0], B, empty(5, 6)), {}),
        (PRODUCT, quantized, (A, empty(5, 2, dtype=torch.uint8), empty(5, 1)), {}),
        (PRODUCT, quantized, (A, empty(5, 2, dtype=torch.uint8), empty(5, 1)), {"out": empty(2, 3, 5)}),
        (2 * SCORES * 32, laneloom.flash_attention, (Q, K, K), {"causal": True}),
        (2 * SCORES * (32 + 80), trained(laneloom.flash_attention), (Q, K, K), {}),
        (2 * 2 * 2 * 4 * 4 * 32, laneloom.flash_attention, (PACKED,) * 3, {"cu_seqlens_q": ENDS, "max_seqlen_q": 4}),
        (2 * 4 * 2 * 8 * 32, laneloom.attention_decode, (TOKEN, CACHE, CACHE), {"cache_lengths": ENDS[:2]}),
        (2 * 6 * 3**4, laneloom.transform3d, (CUBES, MATRIX), {}),
        (2 * 6 * 3**4, laneloom.transform3d, (CUBES, MATRIX), {"out": CUBES.clone()}),
        (0, laneloom.transpose, (A,), {}),
    ],
)  # fmt: skip
def test_counts(expected, function, operands, options):
    assert flops(function, *(x.detach() for x in operands), **options) == expected


def test_matrices_of_4_bits_have_two_k_in_a_byte():
    packed = torch.empty(3, 8, dtype=torch.uint8, device="meta"), torch.empty(8, 5, dtype=torch.uint8, device="meta")
    formula = laneloom.ops.flop_counts.FORMULAS["matmul"]
    assert formula(*packed, None, None, None, None, ["int4", "int4"], out_val=empty(3, 5)) == 2 * 3 * 5 * 16


def test_lengths_that_are_known_count():
    formulas = laneloom.ops.flop_counts.FORMULAS
    ends, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 5], [3, 8]))
    options = ("none", None, None, None, ends, ends, 3, 3)
    assert formulas["flash_attention"](PACKED, PACKED, PACKED, *options) == 2 * 2 * (2 * 2 + 3 * 3) * 32
    assert formulas["attention_decode"](TOKEN, CACHE, CACHE, lengths) == 2 * 4 * (3 + 8) * 32
