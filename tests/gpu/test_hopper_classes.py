"""hopper_cluster's tiles of rows that begin alike within lines of memory, on a real GPU, against FP64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from judged_products import GUARD, ROUNDING, assert_right, norm_error, operand  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.matmul.config_cluster import ClusterConfig  # noqa: E402

WIDE = ClusterConfig(block_m=128, block_n=64, block_k=64, stages=7, line=128)
CONFIGS = {
    "128": WIDE,
    "64, 2x1": WIDE.with_knobs(line=64, cluster_m=2),
    "32, 2x2": WIDE.with_knobs(line=32, cluster_m=2, cluster_n=2),
    "one consumer": WIDE.with_knobs(block_m=64, block_n=128, consumers=1, panels=2),
    "few programs": WIDE.with_knobs(programs=6, cluster_n=2),
    "192x192": WIDE.with_knobs(block_m=192, block_n=192, consumers=3, stages=4, line=64),
    "held back": WIDE.with_knobs(hold_back=2, programs=6),
    "two strips, held back": WIDE.with_knobs(block_m=256, stages=4, split=True, hold_back=1, line=32, programs=6),
    "parts of K": WIDE.with_knobs(block_n=128, stages=5, cluster_k=2),
    "transposed": WIDE.with_knobs(block_n=72, swapped=True, cluster_m=4, panels=2),
    "transposed, shared": WIDE.with_knobs(block_m=64, block_n=120, consumers=1, swapped=True, cluster_n=2, line=32),
    "transposed, parts of K": WIDE.with_knobs(block_n=128, stages=5, cluster_k=2, swapped=True),
    "masked stores": WIDE.with_knobs(block_n=48, tma_store=False, line=64),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sizes", [(1000, 1000, 1000), (264, 328, 1048), (8, 136, 88), (1016, 512, 24)])
def test_rows_in_classes(sizes, name, layout, dtype):
    m, n, k = sizes
    config = CONFIGS[name]
    if k <= 64 and (config.cluster_k > 1 or config.split):
        pytest.skip("one slice")
    a, b = operand(m, k, dtype, seed=1), operand(k, n, dtype, layout[1], seed=2)
    buffer = torch.empty(m * n + 2 * GUARD, dtype=dtype, device="cuda")
    results = []
    for _ in range(2):
        buffer.fill_(float("nan"))
        out = buffer[GUARD:-GUARD].view(m, n)
        laneloom.matmul(a, b, out=out, config=config)
        assert torch.cat([buffer[:GUARD], buffer[-GUARD:]]).isnan().all(), "written outside of C"
        results.append(out.clone())
    assert torch.equal(*(r.view(torch.int16) for r in results)), "not the same bits twice"
    assert_right(results[0], a, b)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("name", ["128", "32, 2x2", "transposed"])
def test_what_lies_before_a_row_stays_out_of_it(name, layout):
    """K begins before the row's first element, where the row ahead ends: with NaN there, and around both operands."""
    a, b = operand(1000, 1000, torch.bfloat16, seed=1), operand(1000, 1000, torch.bfloat16, layout[1], seed=2)
    expected = laneloom.matmul(a, b, config=CONFIGS[name])
    around_a = torch.full((1004, 1016), float("nan"), dtype=torch.bfloat16, device="cuda")
    around_b = around_a.clone()
    inner_b = around_b[2:-2, 8:-8] if layout == "nn" else around_b[2:-2, 8:-8].mT
    around_a[2:-2, 8:-8], inner_b[...] = a, b
    # At another pitch the classes are others, and with them the order of the sums.
    assert_right(laneloom.matmul(around_a[2:-2, 8:-8], inner_b, config=CONFIGS[name]), a, b)
    a[500] = float("nan")
    poisoned = laneloom.matmul(a, b, config=CONFIGS[name])
    assert poisoned[500].isnan().all()
    assert torch.equal(poisoned[501:], expected[501:])
    assert torch.equal(poisoned[:500], expected[:500])


@pytest.mark.parametrize("batch", [(3,), (3, 1), (1, 3)])
def test_batches(batch):
    a = operand(3 * 328, 136, torch.bfloat16, seed=1).view(*batch, 328, 136)
    b = operand(3 * 136, 264, torch.bfloat16, seed=2).view(*batch, 136, 264)
    for shared in (b, b.reshape(3, 136, 264)[0]):  # a matrix each, or one for all
        out = laneloom.matmul(a, shared, config=CONFIGS["64, 2x1"])
        assert_right(out, a, shared)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_epilogues(activation):
    m, n, k = 1000, 520, 328
    a, b = operand(m, k, torch.bfloat16, seed=1), operand(k, n, torch.bfloat16, seed=2)
    c, bias = operand(m, n, torch.bfloat16, seed=3), operand(1, n, torch.float32, seed=4)[0]
    terms = {"alpha": 0.5, "beta": -1.5, "bias": bias, "activation": activation}
    usual = laneloom.gemm(a, b, c, config=WIDE.with_knobs(line=0), **terms)
    assert usual.isfinite().all()
    for name in ("128", "64, 2x1", "32, 2x2"):
        # The same products in an order of its own: two roundings of FP32 sums apart before the last.
        out = laneloom.gemm(a, b, c, config=CONFIGS[name], **terms)
        assert norm_error(out, usual.double()) <= 2 * ROUNDING[torch.bfloat16]


@pytest.mark.parametrize("name", ["fp8", "int8"])
def test_8_bit_types(name):
    m, n, k = 496, 272, 1040  # 1040 bytes break sectors
    if name == "fp8":
        a = operand(m, k, torch.float8_e4m3fn, seed=1)
        b = operand(k, n, torch.float8_e4m3fn, "t", seed=2)
    else:
        a = (operand(m, k, torch.float32, seed=1) * 40).clamp(-127, 127).to(torch.int8)
        b = (operand(k, n, torch.float32, "t", seed=2) * 40).clamp(-127, 127).to(torch.int8)
    config = WIDE.with_knobs(block_k=128)
    out = laneloom.matmul(a, b, config=config)
    if name == "int8":
        assert torch.equal(out.double(), a.double() @ b.double())
    else:
        truth = a.float().double() @ b.float().double()
        assert norm_error(out, truth) <= 2.0**-9 + ROUNDING[out.dtype]


def test_tf32():
    a, b = operand(1000, 1004, torch.float32, seed=1), operand(1004, 520, torch.float32, "t", seed=2)
    truth = a.double() @ b.double()
    out = laneloom.matmul(a, b, precision="tf32", config=WIDE.with_knobs(block_k=32))
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        theirs = norm_error(a @ b, truth)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert norm_error(out, truth) <= 2 * theirs
