"""The timing model of CDNA 3 and 4: single pipes against arithmetic done by hand, then whole kernels."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import triton
import triton.language as tl
from typer.testing import CliRunner

from laneloom.bench.predicted import predict_matmul, sample_matmul
from laneloom.cli import app
from laneloom.emulator.driver import ArrayArgument
from laneloom.isa.parse import instruction
from laneloom.ops.matmul import layouts_mfma
from laneloom.ops.matmul.kernels import mfma
from laneloom.timing import machine_of, predict
from laneloom.timing.caches import Memory
from laneloom.timing.decode import decode
from laneloom.timing.simulate import Outcome, Stream, simulate

MI300, MI355 = machine_of("gfx942"), machine_of("gfx950")


def run(lines, waves=1, asked=None, machine=MI300, groups=1) -> Outcome:
    """Waves that all execute `lines`; asked: line -> what it asks of a memory."""
    parsed = [instruction(text.partition(" ")[0], text.partition(" ")[2], 1, text) for text in lines]
    code = [decode(ins, machine, 64) for ins in parsed]
    places = [None if asked is None else asked.get(k) for k in range(len(lines))]
    listed = [Stream(k * groups // waves, list(range(len(lines))), places) for k in range(waves)]
    return simulate(machine, code, listed, Memory(machine, 0.0, 1.0))


def cycles(lines, *args, **options) -> float:
    """From the wave's start to its end."""
    return max(run(lines, *args, **options).ends) - MI300.wave_start_cycles


def test_an_instruction_takes_four_cycles_of_its_simd():
    chain = ["v_add_f32 v1, v1, v2"] * 50
    assert cycles(chain) == 200  # the next one finds the result
    assert cycles(chain, waves=4) == 200  # one wave on each SIMD
    assert cycles(chain, waves=8) == pytest.approx(400, abs=8)
    assert cycles(["v_exp_f32 v1, v2"] * 50) == pytest.approx(50 * 16, abs=16)
    assert cycles(["v_fma_f64 v[2:3], v[4:5], v[6:7], v[8:9]"] * 50) == 200
    assert cycles(["s_nop 9"] * 5) == 200


@pytest.mark.parametrize(
    ("machine", "text", "each"),
    [
        (MI300, "v_mfma_f32_16x16x16_f16 v[{0}:{1}], v[64:65], v[72:73], v[{0}:{1}]", 16),
        (MI300, "v_mfma_f64_16x16x4_f64 v[{0}:{1}], v[64:65], v[72:73], v[{0}:{1}]", 32),
        (MI355, "v_mfma_f32_16x16x32_f16 v[{0}:{1}], v[64:67], v[72:75], v[{0}:{1}]", 16),
        (MI355, "v_mfma_f64_16x16x4_f64 v[{0}:{1}], v[64:65], v[72:73], v[{0}:{1}]", 64),
        (MI355, "v_mfma_f32_16x16x128_f8f6f4 v[{0}:{1}], v[64:71], v[72:79], v[{0}:{1}]", 32),
        (MI355, "v_mfma_f32_16x16x128_f8f6f4 v[{0}:{1}], v[64:69], v[72:77], v[{0}:{1}] cbsz:2 blgp:2", 16),
    ],
)
def test_matrix_instructions(machine, text: str, each: int):
    size = 8 if "f64" in text else 4
    apart = [text.format(size * k, size * k + size - 1) for k in range(4)] * 5
    outcome = run(apart, machine=machine)
    assert outcome.busy["matrix"] * 4 * outcome.cycles == pytest.approx(20 * each)
    assert cycles(apart, machine=machine) == 19 * each + 4
    assert cycles([text.format(0, size - 1)] * 20, machine=machine) == 19 * each + 4  # a sum goes on without a gap


def test_vector_instructions_run_beside_matrix_instructions():
    sums = [f"v[{4 * k}:{4 * k + 3}]" for k in range(4)]
    mfma = [f"v_mfma_f32_16x16x16_f16 {c}, v[64:65], v[72:73], {c}" for c in sums]
    adds = ["v_add_f32 v80, v81, v82"] * 3
    mixed = [line for each in mfma * 5 for line in (each, *adds)]
    assert cycles(mixed) == pytest.approx(20 * 16, abs=16)
    assert cycles([line for each in mfma * 5 for line in (each, *adds, *adds)]) == pytest.approx(20 * 28, abs=16)
    # Those of FP32 keep the VALU.
    alone = [line.replace("16x16x16_f16", "16x16x4_f32").replace("v[64:65], v[72:73]", "v64, v72") for line in mfma]
    assert cycles([line for each in alone * 5 for line in (each, *adds)]) == pytest.approx(20 * (32 + 12), abs=32)
    # Another wave's vector instructions do not wait for the matrix core.
    code = [decode(instruction(t.partition(" ")[0], t.partition(" ")[2], 1, t), MI300, 64) for t in (*mfma, adds[0])]
    streams = [Stream(0, [0, 1, 2, 3] * 10, [None] * 40) for _ in range(4)] + [Stream(0, [4] * 100, [None] * 100)]
    outcome = simulate(MI300, code, streams, Memory(MI300, 0.0, 1.0))
    assert outcome.ends[4] - MI300.wave_start_cycles < 100 * 4 * 1.5


def test_lds_has_a_port_for_each_pair_of_simds():
    loads = [f"ds_load_b128 v[{4 * k}:{4 * k + 3}], v60" for k in range(10)] * 5
    asked = {k: [(8, 0)] for k in range(50)}
    one, four = cycles(loads, asked=asked), cycles(loads, asked=asked, waves=4)
    assert one == pytest.approx(50 * 16, rel=0.2)  # 1024 bytes at 64 a clock, eight waiting in the queue
    assert four == pytest.approx(4 * 50 * 8, rel=0.3)  # 128 a clock for all: as long as two waves of one pair
    new = {k: [(4, 0)] for k in range(50)}
    assert cycles(loads, asked=new, waves=4, machine=MI355) == pytest.approx(four / 2, rel=0.05)
    worse = cycles(loads, asked={k: [(8, 8)] for k in range(50)}, waves=4)
    assert worse == pytest.approx(2 * four, rel=0.1)


def test_no_more_lines_are_under_way_than_the_cache_has_places():
    loads = ["global_load_b128 v[0:3], v[4:5], off"] * 200
    asked = {k: [tuple(range(8 * k, 8 * k + 8))] for k in range(200)}
    far = replace(MI300, l2_latency=4000, l2_bytes_per_clock=1e9)
    bound = cycles([*loads, "s_waitcnt vmcnt(0)"], asked=asked, machine=far)
    assert bound == pytest.approx(200 * 8 / MI300.l0_in_flight * 4000, rel=0.3)
    free = cycles([*loads, "s_waitcnt vmcnt(0)"], asked=asked, machine=replace(far, l0_in_flight=0))
    assert free < bound / 2


def test_a_barrier_waits_for_the_latest_wave():
    """Waves are not followed in the order of time: the one that is looked at last need not come last."""
    lines = ["global_load_b32 v0, v[2:3], off", "s_waitcnt vmcnt(0)", "s_barrier"]
    code = [decode(instruction(t.partition(" ")[0], t.partition(" ")[2], 1, t), MI300, 64) for t in lines]
    adds = [decode(instruction("v_add_f32", "v1, v1, v2"), MI300, 64)]
    slow, quick = Stream(0, [0, 1, 2], [[(7,)], None, None]), Stream(0, [3, 3, 2], [None] * 3)
    outcome = simulate(MI300, code + adds, [slow, quick], Memory(MI300, 0.0, 1.0))
    assert min(outcome.ends) > MI300.wave_start_cycles + MI300.l2_latency
    assert all(0 <= share <= 1 for share in outcome.stalls.values())


# -- whole kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask) + tl.load(y_ptr + offs, mask), mask)


@pytest.mark.parametrize("gpu", ["gfx942", "gfx950"])
def test_an_addition_is_limited_by_memory(gpu: str):
    n = 48 << 20  # more than the Infinity Cache holds
    x, y, out = (ArrayArgument(np.zeros(n, np.float32)) for _ in range(3))
    (kernel,) = predict(lambda: add[(n // 1024,)](x, y, out, n, BLOCK=1024), gpu).kernels
    machine = machine_of(gpu)
    floor = 12 * n / machine.memory_gbs * 1e-3
    assert floor <= kernel.time_us < 1.5 * floor
    assert kernel.clock_ghz == machine.clock_ghz  # no matrix instruction lowers it
    assert kernel.waves_per_simd <= 8


def test_matrix_cores_lower_the_clock():
    sample = sample_matmul(2048, 2048, 1024, "gfx942", dtype="fp32")
    full = sample.evaluate(MI300).kernels[0]
    assert MI300.matrix_clock_ghz is not None
    assert MI300.matrix_clock_ghz < full.clock_ghz < MI300.clock_ghz
    quick = sample.evaluate(replace(MI300, matrix_clock_ghz=None)).kernels[0]
    assert quick.clock_ghz == MI300.clock_ghz
    assert quick.time_us < full.time_us


def test_bank_conflicts_cost_time(monkeypatch):
    """Rows of 128 bytes without the swizzle begin in one bank, all of them."""
    swizzled = predict_matmul(1024, 1024, 1024, "gfx942", dtype="bf16", layout="nn")
    monkeypatch.setattr(layouts_mfma, "FLIPS", {32: {128: {}}})
    mfma._constants.cache_clear()
    try:
        plain = predict_matmul(1024, 1024, 1024, "gfx942", dtype="bf16", layout="nn")
    finally:
        mfma._constants.cache_clear()
    assert swizzled.time_us < 0.85 * plain.time_us


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("gfx942", "int8"), ("gfx942", "fp64"), ("gfx950", "fp8"), ("gfx950", "bf16")]
)
def test_command_and_timeline(gpu: str, dtype: str, tmp_path):
    file = tmp_path / "timeline.json"
    words = ["predict", "matmul", "--gpu", gpu, "--dtype", dtype, "--shape", "256,256,256"]
    result = CliRunner().invoke(app, [*words, "--timeline", str(file), "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown["label"] == "predicted"
    assert 0 < shown["kernels"][0]["busy"]["matrix"] <= 1
    events = [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]
    assert any(e["name"].startswith("v_mfma") for e in events)
    for simd in {e["pid"] for e in events}:
        spans = sorted((e["ts"], e["dur"]) for e in events if e["pid"] == simd and e["name"].startswith("v_mfma"))
        assert all(a + d <= b + 1e-9 for (a, d), (b, _) in itertools.pairwise(spans))
    assert "per CU" in CliRunner().invoke(app, words).stdout
