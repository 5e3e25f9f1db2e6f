"""Stream-K: programs share the last round of tiles, parts are added up in K's order, terms are applied once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import rarely
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import laneloom
from laneloom import verify
from laneloom.device.stream_k import stream_parts, stream_piece
from laneloom.emulator.driver import ArrayArgument
from laneloom.errors import InvalidConfigError
from laneloom.ops.matmul import reference
from laneloom.ops.matmul.config_wmma import WmmaConfig
from laneloom.ops.matmul.dtypes import Int4
from laneloom.ops.matmul.problem import MatmulProblem
from laneloom.ops.matmul.stream_k import Shares

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

SMALL = WmmaConfig(block_m=32, block_n=32, block_k=32, num_warps=2, waves_n=2, stream_k=1)
ONE_WAVE: dict[str, Any] = {"num_warps": 1}
TYPES = {
    "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8, "uint8": torch.uint8,
    "fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2,
}  # fmt: skip


def random(dtype: str, *shape: int):
    if "int" in dtype:
        limits = torch.iinfo(TYPES[dtype])
        return torch.randint(limits.min, limits.max + 1, shape).to(TYPES[dtype])
    return torch.randn(shape).to(TYPES[dtype])


@pytest.mark.parametrize(
    ("gpu", "layout", "dtypes", "acc"),
    [
        *rarely(("gfx1151", "nn", ("fp16", "fp16"), None)),
        ("gfx1201", "tt", ("bf16", "bf16"), "bf16"),
        ("gfx1100", "nt", ("int8", "uint8"), None),
        ("gfx1201", "tn", ("bf8", "fp8"), None),
    ],
)
def test_layouts_and_dtypes(gpu, layout, dtypes, acc):
    """Whole tiles and shared ones, ragged in M, N and K; written once, and nothing around them."""
    torch.manual_seed(1)
    # 54 tiles: on 40 units a round of 40 and 14 shared ones
    m, n, k = 9 * 32 - 5, 6 * 32 - 3, 7 * 32 + 6
    a, b = random(dtypes[0], m, k), random(dtypes[1], k, n)
    stored = [x if letter == "n" else x.mT.contiguous().mT for x, letter in zip((a, b), layout, strict=True)]
    sums = acc or ("int32" if "int" in dtypes[0] else "fp32")
    guarded = verify.Guarded((m, n), sums)
    out = torch.from_numpy(guarded.array)
    out = out.view(torch.bfloat16) if sums == "bf16" else out
    with laneloom.emulated(gpu, strict=True, seed=4) as emulation:
        laneloom.matmul(*stored, out=out, out_dtype=out.dtype, acc_dtype=TYPES.get(acc or ""), config=SMALL)
    whole = ["wmma_matmul"] if gpu == "gfx1151" else []
    assert [record.kernel for record in emulation.launches] == [*whole, "wmma_matmul", "add_stream_sums"]
    assert guarded.untouched_outside()
    got = guarded.array if sums == "int32" else verify.decode(guarded.array, sums)
    values = [x.double().numpy() if x.is_floating_point() else x.numpy() for x in (a, b)]
    verdict = reference.judge(got, values[0], values[1], sums, sums)
    assert verdict.ok, verdict


def test_packed_integers():
    torch.manual_seed(2)
    a, b = torch.randint(-8, 8, (70, 260)), torch.randint(-8, 8, (260, 40))
    with laneloom.emulated("gfx1151", strict=True):
        got = laneloom.matmul(Int4.pack(a, -1), Int4.pack(b, -2), config=SMALL)
    assert torch.equal(got.long(), a @ b)


def test_batches_and_terms():
    """Terms once, for shared and whole tiles; D in place; the same bits in any order of waves and programs."""
    torch.manual_seed(3)
    a, b, bias = random("fp16", 3, 8, 70, 150), random("fp16", 8, 150, 40), random("fp16", 40)
    d = random("fp16", 3, 8, 70, 40)
    results = []
    for seed in (0, 11):
        out = d.clone()
        with laneloom.emulated("gfx1151", strict=True, seed=seed):
            laneloom.gemm(a, b, out, alpha=0.5, beta=-1, bias=bias, activation="silu", out=out, config=SMALL)
        results.append(out)
    assert torch.equal(*results)
    got, a, b = (x.double().numpy() for x in (results[0], a, b))
    terms = {"c": d.double().numpy(), "bias": bias.double().numpy()}
    assert reference.judge_gemm(got, a, b, "fp16", alpha=0.5, beta=-1, activation="silu", **terms).ok


def test_plan_shares_a_poorly_filled_round():
    """88 tiles of 128 x 128 on 40 units take three rounds of tiles; 8 of them shared take little over two."""
    problem = MatmulProblem.contiguous(1024, 1408, 4096)
    explanation = laneloom.explain(problem, gpu="gfx1151")
    assert isinstance(explanation.config, WmmaConfig)
    assert explanation.config.stream_k > 0
    assert any("80 whole tiles, then 8 that 40 workgroups share" in fact for fact in explanation.facts)
    filled = MatmulProblem.contiguous(1024, 1280, 4096)
    assert "stream_k=0" in laneloom.explain(filled, gpu="gfx1151").config.text


def test_refusals():
    a, b = random("fp16", 40, 40), random("fp16", 40, 40)
    for config, why in (
        ("wmma_coop:stream_k=1", "stream_k: the schedule wmma_coop has 0 only, got 1"),
        ("wmma:stream_k=1,split_k=2", "stream_k: expected 0 to 32, and 0 with split_k, got 1 and split_k=2"),
    ):
        with laneloom.emulated("gfx1151"), pytest.raises(InvalidConfigError, match=why):
            laneloom.matmul(a, b, config=f"{config},block_m=128,block_n=64,block_k=32")


@gluon.jit(do_not_specialize=["steps", "shared", "workers", "copies", "inverse"])
def write_pieces(out_ptr, parts_ptr, steps, shared, workers, copies, inverse):
    program = gl.program_id(0)
    which = gl.arange(0, 4, gl.BlockedLayout([1], [32], [1], [0]))
    tile, first, end, slot = stream_piece(program, steps, shared, workers, copies, inverse)
    values = gl.where(which == 0, tile, gl.where(which == 1, first, gl.where(which == 2, end, slot)))
    gl.store(out_ptr + 4 * program + which, values)
    if program < shared:
        begins, other, last = stream_parts(program, steps, shared, workers)
        values = gl.where(which == 0, begins, gl.where(which == 1, other, last))
        gl.store(parts_ptr + 4 * program + which, values)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(tiles=st.integers(1, 200), steps=st.integers(1, 60), workers=st.integers(1, 90))
def test_device_and_python_agree(tiles, steps, workers):
    shares = Shares.of(tiles, steps, workers)
    if shares.shared == 0:
        return
    pieces, parts = np.empty((shares.programs, 4), np.int32), np.empty((shares.shared, 4), np.int32)
    with laneloom.emulated("gfx1151"):
        write_pieces[(shares.programs,)](
            ArrayArgument(pieces), ArrayArgument(parts), steps, shares.shared, shares.workers, shares.copies,
            shares.inverse, **ONE_WAVE)  # fmt: skip
    assert [tuple(row) for row in pieces.tolist()] == [shares.piece(program) for program in range(shares.programs)]
    assert [[row[0], *range(row[1], row[2])] for row in parts.tolist()] == [
        shares.parts(tile) for tile in range(shares.shared)
    ]
