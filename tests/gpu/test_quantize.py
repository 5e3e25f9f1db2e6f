"""laneloom.quantize_blocks on a real GPU: every bit is what torch makes of x / scale on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from quantised_blocks import BF8, FP8, check, expected, hard_numbers, ties  # noqa: E402

import laneloom  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_allocations")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype_q", [FP8, BF8], ids=str)
@pytest.mark.parametrize("rows", [1, 128])
def test_every_bit(rows, dtype, dtype_q):
    check(hard_numbers(dtype, dtype_q).cuda(), rows, dtype_q)
    check(ties(dtype_q).to(dtype).cuda(), rows, dtype_q)


@pytest.mark.parametrize("rows", [1, 128])
def test_large(rows):
    x = torch.randn(1030, 7168, device="cuda", dtype=torch.bfloat16) * torch.logspace(-9, 3, 7168, device="cuda")
    check(x.bfloat16(), rows)
    check(x.mT[:, 1:], rows)


@pytest.mark.parametrize("rows", [1, 128])
def test_captured(rows):
    """A warm call in a CUDA graph, replayed with other numbers in x."""
    x = torch.randn(200, 256, device="cuda", dtype=torch.bfloat16)
    laneloom.quantize_blocks(x, rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, scale = laneloom.quantize_blocks(x, rows)
    x.copy_(torch.randn(200, 256) * 7)
    graph.replay()
    wanted, wanted_scale = expected(x.cpu(), rows)
    assert torch.equal(q.cpu().view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(scale.cpu(), wanted_scale)
