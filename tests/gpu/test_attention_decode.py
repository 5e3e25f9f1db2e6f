"""laneloom.attention_decode on a real GPU against FP64: as planned, and by every kind of config on Hopper."""

import ctypes
import math

import pytest

torch = pytest.importorskip("torch")

from judged_attention import attend, judge, seen  # noqa: E402

import laneloom  # noqa: E402
from laneloom.codegen.cuda_call import CudaCall, Pointer  # noqa: E402
from laneloom.codegen.nvrtc import compile_cuda  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.attention import decode  # noqa: E402
from laneloom.ops.attention.config_decode import DecodeProblem, HopperDecodeConfig, HopperRangesConfig  # noqa: E402
from laneloom.ops.attention.hopper import source_text  # noqa: E402
from laneloom.ops.attention.plan_decode import plan_decode  # noqa: E402

GPU = get_gpu("sm_90a")
#: splits, cluster: one run; a cluster of any size; several clusters; runs without clusters
SHARES = [(1, 1), (3, 3), (16, 16), (12, 12), (5, 1), (8, 4), (21, 7), (32, 16)]

pytestmark = pytest.mark.usefixtures("poisoned_allocations")


def in_pages(k, v, page):
    """The caches [B, S, H, D] cut into pages in any order, and the table of them; as they are without pages."""
    if not page:
        return (k, v), None
    order = torch.randperm(k.shape[0] * k.shape[1] // page, device="cuda")
    caches = tuple(torch.empty_like(x).view(-1, page, *x.shape[2:]) for x in (k, v))
    for cache, x in zip(caches, (k, v), strict=True):
        cache[order] = x.view(-1, page, *x.shape[2:])
    return caches, order.view(k.shape[0], -1).int()


def check(out, lse, q, k, v, lengths, window=None):
    for b, n in enumerate(lengths.tolist()):
        rows = [x.transpose(0, 1)[None] for x in (q[b], k[b, :n], v[b, :n])]
        mask = seen(q.shape[1], n, True, None if window is None else (window, None))
        exact, exact_lse = attend(*rows, mask, q.shape[3] ** -0.5, torch.float64)
        plain, _ = attend(*rows, mask, q.shape[3] ** -0.5, q.dtype)
        judge([out[b].transpose(0, 1)[None]], [plain], [exact], q.dtype)
        there = ~exact_lse[0].isinf()
        assert torch.equal(~lse[b].isinf(), there)
        assert torch.allclose(lse[b].double()[there], exact_lse[0][there], rtol=0, atol=1e-4)


@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize(
    ("d", "d_v", "window"), [(64, 64, None), (128, 128, 100), (80, 48, None), (256, 256, None), (264, 64, 50)]
)
def test_decode(page, d, d_v, window):
    batch, heads, kv_heads, queries, room = 3, 16, 4, 2, 1024
    lengths = torch.tensor([1024, 0, 777], dtype=torch.int32, device="cuda")
    q = torch.randn(batch, queries, heads, d, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, room, kv_heads, d, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(batch, room, kv_heads, d_v, device="cuda", dtype=torch.bfloat16)
    k[1], v[2, 777:] = math.nan, math.nan  # what no query sees
    caches, table = in_pages(k, v, page)
    config = plan_decode(DecodeProblem(batch, heads, kv_heads, queries, room, d, d_v, "bf16", 0.1, window, page), GPU)
    assert config.schedule.startswith("hopper_decode" if d <= 256 else "decode")
    out, lse = laneloom.attention_decode(
        q, *caches, cache_lengths=lengths, block_table=table, window=window, return_lse=True)
    again = laneloom.attention_decode(q, *caches, cache_lengths=lengths, block_table=table, window=window)
    assert torch.equal(out, again)
    check(out, lse, q, k, v, lengths, window)


@pytest.mark.parametrize("page", [0, 32])
def test_decode_of_many_rows(page):
    """More rows that share a head of keys than one program has: its tiles of rows have tickets of their own."""
    heads, kv_heads, queries, keys, d = 24, 1, 3, 2000, 128
    q = torch.randn(2, queries, heads, d, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(2, 2048, kv_heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    lengths = torch.tensor([keys, 1], dtype=torch.int32, device="cuda")
    problem = DecodeProblem(2, heads, kv_heads, queries, 2048, d, d, "bf16", 0.1, None, page)
    config = plan_decode(problem, GPU)
    assert config.schedule.startswith("hopper_decode")
    assert problem.row_tiles == 5
    assert config.programs(problem) > config.units(problem)
    caches, table = in_pages(k, v, page)
    out, lse = laneloom.attention_decode(q, *caches, cache_lengths=lengths, block_table=table, return_lse=True)
    check(out, lse, q, k, v, lengths)


#: D, of values, heads, of keys, heads abreast, page, window
SHAPES = [
    (64, 64, 4, 4, 1, 0, None), (40, 40, 8, 8, 4, 0, None), (80, 80, 4, 4, 2, 16, None), (32, 64, 12, 4, 2, 0, 300),
    (16, 8 * 3, 16, 16, 8, 64, 999), (128, 128, 14, 2, 1, 0, None), (72, 72, 12, 6, 2, 32, 40),
]  # fmt: skip


def check_config(config, lengths, room, d, d_v, heads, kv_heads, page, window):
    """Three launches give the same bits, which are right."""
    batch, queries = len(lengths), 2
    q = torch.randn(batch, queries, heads, d, device="cuda", dtype=torch.float16)
    k = torch.randn(batch, room, kv_heads, d, device="cuda", dtype=torch.float16)
    v = torch.randn(batch, room, kv_heads, d_v, device="cuda", dtype=torch.float16)
    for b, n in enumerate(lengths.tolist()):
        k[b, n:], v[b, n:] = math.inf, math.nan  # what no query sees
    caches, table = in_pages(k, v, page)
    problem = DecodeProblem(
        batch, heads, kv_heads, queries, room, d, d_v, "fp16", d**-0.5, window, page, adjacent=True)
    assert config.why_invalid(problem, GPU) is None
    results = []
    for _ in range(3):
        out = torch.full((batch, queries, heads, d_v), math.nan, device="cuda", dtype=torch.float16)
        lse = torch.full((batch, heads, queries), math.nan, device="cuda")
        operands = dict(zip("qkv", (q, *caches), strict=True))
        operands |= {"out": out, "lse": lse, "lengths": lengths, "table": table}
        decode.launch_by(problem, config, GPU, operands)(operands)
        results.append((out, lse))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])
    check(out, lse, q, k, v, lengths, window)


@pytest.mark.parametrize(("splits", "cluster"), SHARES)
@pytest.mark.parametrize(("d", "d_v", "heads", "kv_heads", "abreast", "page", "window"), SHAPES)
def test_every_share(splits, cluster, d, d_v, heads, kv_heads, abreast, page, window):
    torch.manual_seed(splits)
    lengths = torch.tensor([2112, 1, 1500], dtype=torch.int32, device="cuda")
    for early, alone in ((False, False), (True, False), (False, True)):
        config = HopperDecodeConfig(
            splits=splits, stages=3, cluster=cluster, abreast=abreast, early=early, alone=alone)
        check_config(config, lengths, 2112, d, d_v, heads, kv_heads, page, window)


@pytest.mark.parametrize("ranges", [1, 7, 132, 264, 1024])
@pytest.mark.parametrize(("d", "d_v", "heads", "kv_heads", "abreast", "page", "window"), SHAPES)
def test_every_division(ranges, d, d_v, heads, kv_heads, abreast, page, window):
    torch.manual_seed(ranges)
    few = [2112, 0, 1500, 64, 65]
    many = torch.randint(0, 321, (70,)).tolist()
    for lengths, room in ((few, 2112), (many, 320)):
        config = HopperRangesConfig(ranges=ranges, stages=2 + (ranges == 7), abreast=abreast, alone=ranges == 132)
        on_gpu = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        check_config(config, on_gpu, room, d, d_v, heads, kv_heads, page, window)


def test_more_sequences_than_lanes_search_at_once():
    """32 lanes have more than 32 sequences each."""
    torch.manual_seed(0)
    lengths = torch.randint(0, 65, (1500,), dtype=torch.int32, device="cuda")
    lengths[700] = 64
    config = HopperRangesConfig(ranges=264, stages=2)
    check_config(config, lengths, 64, 64, 64, 4, 2, 0, None)


def test_quotients_of_rows_are_exact():
    """By floats: of every row that a head of keys may have, and any heads of a group."""
    text = source_text("hopper_decode.cu", [], "attention_hopper_decode.cuh", "attention_hopper_decode_run.cuh")
    text = text[: text.index('extern "C"')] + """
extern "C" __global__ void misread(int* bad, int group) {
  const Rows n = {1, group, group, group, 0, 0, 0, 0};
  const int r = blockIdx.x * 1024 + threadIdx.x;
  if (query_of(r, n) != r / group || head_of(r, n) != r % group) atomicAdd(bad, 1);
}
"""
    constants = {"D": 64, "D_V": 64, "ABREAST": 1, "STAGES": 1, "BOX": 64, "PAGE": 0, "HAS_FIRST": 0, "BF16": 0}
    code = compile_cuda(text, GPU, constants=constants | {"SOFTCAP": 0}, num_warps=32, lds_bytes=0, name="misread.cu")
    bad = torch.zeros(1, dtype=torch.int32, device="cuda")
    pointer, group = Pointer(), ctypes.c_int32()
    call = CudaCall(code, (pointer, group), 0, ctas=(1 << 19) // 1024)
    for group.value in (*range(1, 130), 1000, 4095, 65537, 349525, 1 << 19):
        call.launch_at(torch.cuda.current_stream().cuda_stream, bad.data_ptr())
    assert bad.item() == 0
