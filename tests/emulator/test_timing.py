"""The timing model: single pipes against arithmetic done by hand, then whole kernels."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import triton
import triton.language as tl
from typer.testing import CliRunner

from laneloom.bench import predicted
from laneloom.bench.predicted import predict_matmul
from laneloom.cli import app
from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.isa.parse import instruction
from laneloom.timing import machine_of, predict, streams
from laneloom.timing.caches import Memory
from laneloom.timing.decode import decode
from laneloom.timing.simulate import Outcome, Stream, simulate

XTX = replace(machine_of("gfx1100"), lds_pace=1.0)  # whole clocks, to count by hand
WMMA = "v_wmma_f32_16x16x16_f16 v[{0}:{1}], v[64:71], v[72:79], v[{0}:{1}]"


def run(lines, waves=1, asked=None, machine=XTX, groups=1, **options) -> Outcome:
    """Waves that all execute `lines`; asked: line -> what it asks of a memory."""
    parsed = [instruction(text.partition(" ")[0], text.partition(" ")[2], 1, text) for text in lines]
    code = [decode(ins, machine, 32) for ins in parsed]
    places = [None if asked is None else asked.get(k) for k in range(len(lines))]
    listed = [Stream(k * groups // waves, list(range(len(lines))), places) for k in range(waves)]
    return simulate(machine, code, listed, Memory(machine, 0.0, 1.0), **options)


def cycles(lines, *args, **options) -> float:
    """From the wave's start to its end."""
    return max(run(lines, *args, **options).ends) - XTX.wave_start_cycles


def chain(n: int) -> list[str]:
    return ["v_add_f32 v1, v1, v2"] * n


def test_dependent_instructions_wait_for_the_result_and_others_do_not():
    assert cycles(chain(100)) == 99 * XTX.valu_latency + 1
    assert cycles([f"v_add_f32 v{k % 50}, v60, v61" for k in range(100)]) == 100


def test_waves_fill_each_others_gaps():
    # Ten waves on the two SIMDs of a CU: five on each, and the latency is five.
    assert cycles(chain(100), waves=10) == pytest.approx(500, rel=0.02)
    assert cycles(chain(100), waves=20) == pytest.approx(1000, rel=0.02)


def test_a_pair_takes_one_issue():
    pairs = [
        f"v_dual_fmac_f32 v{2 * k}, v61, v62 :: v_dual_fmac_f32 v{2 * k + 1}, v64, v65" for k in range(20)
    ]  # fmt: skip
    assert cycles(pairs * 5) == 100


@pytest.mark.parametrize(("gpu", "each"), [("gfx1151", 32), ("gfx1201", 16)])
def test_matrix_instructions(gpu: str, each: int):
    machine = machine_of(gpu)
    operands = WMMA if gpu == "gfx1151" else WMMA.replace("64:71", "64:67").replace("72:79", "72:75")
    apart = [operands.format(8 * k, 8 * k + 7) for k in range(4)] * 5
    assert run(apart, machine=machine).busy["matrix"] * 4 * run(apart, machine=machine).cycles == 20 * each
    assert cycles(apart, machine=machine) == 19 * each + 1
    # A sum that goes on waits two cycles more: measured by AMD on gfx1151.
    assert cycles([operands.format(0, 7)] * 20, machine=machine) == 19 * (each + machine.matrix_extra) + 1


def test_transcendentals_run_beside_the_other_instructions():
    exps = [f"v_exp_f32 v{k}, v60" for k in range(20)]
    assert cycles(exps) == 19 * 4 + 1
    mixed = [x for k in range(20) for x in (exps[k], *(f"v_add_f32 v{30 + j}, v60, v61" for j in range(3)))]
    assert cycles(mixed) == pytest.approx(80, abs=4)


def test_lds_moves_128_bytes_a_clock_and_conflicts_add_theirs():
    loads = [f"ds_load_b128 v[{4 * k}:{4 * k + 3}], v60" for k in range(10)] * 5
    plain = run(loads, asked={k: [(4, 0)] for k in range(50)})
    assert plain.busy["LDS"] * 2 * plain.cycles == 200
    assert plain.cycles - XTX.wave_start_cycles == pytest.approx(200, abs=4)
    slow = run(loads, asked={k: [(4, 0)] for k in range(50)}, machine=replace(XTX, lds_pace=0.5))
    assert slow.busy["LDS"] * 2 * slow.cycles == 400
    worse = run(loads, asked={k: [(4, 3)] for k in range(50)})
    assert worse.cycles - plain.cycles == 49 * 3
    # The other CU has an LDS of its own.
    both = run(loads, waves=2, groups=2, asked={k: [(4, 0)] for k in range(50)})
    assert both.cycles == plain.cycles


def test_a_wait_ends_when_the_load_is_there():
    lines = ["global_load_b32 v0, v[2:3], off", "s_waitcnt vmcnt(0)", "global_load_b32 v1, v[2:3], off",
             "s_waitcnt vmcnt(0)"]  # fmt: skip
    asked = {0: [(7,)], 2: [(7,)]}
    both, first = cycles(lines, asked=asked), cycles(lines[:2], asked=asked)
    assert first == pytest.approx(XTX.l2_latency, abs=8)
    assert both - first == pytest.approx(XTX.l0_latency, abs=8)  # the line is in the L0 now
    other = cycles(lines, asked={0: [(7,)], 2: [(8,)]})
    assert other == pytest.approx(2 * XTX.l2_latency, abs=16)


def test_a_wait_for_all_but_one_does_not_wait_for_the_last():
    lines = ["global_load_b32 v0, v[2:3], off", "global_load_b32 v1, v[4:5], off"]
    asked = {0: [(1,)], 1: [tuple(range(2, 200))]}
    one = cycles([*lines, "s_waitcnt vmcnt(1)"], asked=asked)
    assert one < XTX.l2_latency + 20 < cycles([*lines, "s_waitcnt vmcnt(0)"], asked=asked)


def test_far_memory_costs_bandwidth_and_latency():
    code = [decode(instruction("global_load_b32", "v0, v[2:3], off"), XTX, 32),
            decode(instruction("s_waitcnt", "vmcnt(0)", 1, "s_waitcnt vmcnt(0)"), XTX, 32)]  # fmt: skip
    times = {}
    for missing in (0.0, 1.0):
        stream = Stream(0, [0] * 200 + [1], [[(k,)] for k in range(200)] + [None])
        times[missing] = simulate(XTX, code, [stream], Memory(XTX, missing, 1.0)).cycles
    # 200 lines of 128 bytes at this WGP's share of the bandwidth.
    share = XTX.memory_gbs / XTX.wgps / XTX.clock_ghz
    assert times[1.0] == pytest.approx(200 * 128 / share + XTX.memory_latency_ns * XTX.clock_ghz, rel=0.1)
    assert times[0.0] < 0.6 * times[1.0]


def test_a_barrier_waits_for_the_last_wave():
    parsed = [instruction(t.partition(" ")[0], t.partition(" ")[2], 1, t) for t in (*chain(50), "s_barrier")]
    code = [decode(ins, XTX, 32) for ins in parsed]
    slow = Stream(0, list(range(51)), [None] * 51)
    quick = Stream(0, [50], [None])
    outcome = simulate(XTX, code, [slow, quick], Memory(XTX, 0.0, 1.0))
    assert outcome.ends[0] == outcome.ends[1]
    assert outcome.ends[0] - XTX.wave_start_cycles == pytest.approx(50 * 5 + XTX.barrier_cycles, abs=6)
    assert outcome.stalls["barrier"] > 0.3


def test_split_barriers_of_gfx12():
    lines = ["s_barrier_signal -1", *(f"v_add_f32 v{k}, v60, v61" for k in range(40)), "s_barrier_wait -1"]
    assert cycles(lines, waves=4, machine=machine_of("gfx1201")) == pytest.approx(2 * 40 + 2, abs=20)


def test_gpus_without_a_model():
    with pytest.raises(UnsupportedError, match="gfx950, not of sm_90a"):
        machine_of("sm_90a")
    with pytest.raises(ArgumentError, match="launched no kernel"):
        predict(lambda: None, "gfx1100")


# -- whole kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask) + tl.load(y_ptr + offs, mask), mask)


def arrays(n: int):
    from laneloom.emulator.driver import ArrayArgument

    return [ArrayArgument(np.zeros(n, np.float32)) for _ in range(3)]


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1201"])
def test_an_addition_is_limited_by_memory(gpu: str):
    n = 9 << 20  # more than the Infinity Cache holds
    x, y, out = arrays(n)
    prediction = predict(lambda: add[(n // 1024,)](x, y, out, n, BLOCK=1024), gpu)
    machine = machine_of(gpu)
    (kernel,) = prediction.kernels
    floor = 12 * n / machine.memory_gbs * 1e-3
    assert kernel.bandwidth_us == pytest.approx(floor, rel=0.01)
    assert floor <= kernel.time_us < 1.5 * floor
    assert "memory" in prediction.limiter
    assert prediction.label == "predicted"


def test_a_launch_that_loads_an_eighth_of_its_arguments_is_not_charged_for_all():
    """Of what is stored it may store all."""
    n = 9 << 20
    x, y, out = arrays(n)
    prediction = predict(lambda: add[(n // 8192,)](x, y, out, n, BLOCK=1024), "gfx1100")
    floor = (4 + 8 / 8) * n / machine_of("gfx1100").memory_gbs * 1e-3
    assert prediction.kernels[0].bandwidth_us == pytest.approx(floor, rel=0.02)


def test_time_follows_work_and_machine():
    machine, same = machine_of("gfx1151"), arrays(1 << 23)

    def time(n: int, m=machine, data=None) -> float:
        x, y, out = data or arrays(n)
        return predict(lambda: add[(n // 1024,)](x, y, out, n, BLOCK=1024), "gfx1151", machine=m).kernels[0].time_us

    base = time(1 << 23, data=same)
    assert time(1 << 24) == pytest.approx(2 * base, rel=0.1)
    slower = replace(machine, memory_gbs=machine.memory_gbs / 2, mall_gbs=machine.mall_gbs / 2)
    assert time(1 << 23, slower) > 1.7 * base
    assert time(1 << 23, data=same) == base  # nothing is random; where else arrays begin, other lines are theirs


def matmul_cycles(k: int) -> float:
    return predict_matmul(256, 256, k, "gfx1151", config="standard").kernels[0].cycles


def test_a_long_product_goes_on_as_it_began(monkeypatch):
    whole = matmul_cycles(1536)
    monkeypatch.setattr(predicted, "DEPTH", 512)
    assert matmul_cycles(1536) == pytest.approx(whole, rel=0.05)


def test_what_is_cut_out_of_a_loop_takes_what_it_would_have_taken(monkeypatch):
    monkeypatch.setattr(streams, "_MOST", 8000)
    cut = matmul_cycles(1024)
    monkeypatch.setattr(streams, "_MOST", 1 << 40)  # then the launch is a small one, and nothing is cut
    whole = matmul_cycles(1024)
    assert cut != whole  # something was left out
    assert cut == pytest.approx(whole, rel=0.05)


def test_command_and_timeline(tmp_path):
    file = tmp_path / "timeline.json"
    words = ["predict", "matmul", "--gpu", "gfx1201", "--shape", "256,256,256", "--timeline", str(file), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown["label"] == "predicted"
    assert shown["predicted_us"] > 0
    assert 0 < shown["kernels"][0]["busy"]["matrix"] <= 1
    trace = json.loads(file.read_text())
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert trace["otherData"]["label"] == "predicted"
    assert any(e["name"].startswith("v_wmma") for e in events)
    assert all(e["dur"] >= 0 for e in events)
    # A SIMD's matrix core does one instruction at a time.
    for simd in {e["pid"] for e in events}:
        spans = sorted((e["ts"], e["dur"]) for e in events if e["pid"] == simd and e["name"].startswith("v_wmma"))
        assert all(a + d <= b + 1e-9 for (a, d), (b, _) in itertools.pairwise(spans))
    # Perfetto drops bars that overlap with others of their track.
    for track in {(e["pid"], e["tid"]) for e in events}:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if (e["pid"], e["tid"]) == track)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(spans))
    begins = sum(e["ph"] == "b" for e in trace["traceEvents"])
    assert begins == sum(e["ph"] == "e" for e in trace["traceEvents"]) > 0
    folder = ["predict", "matmul", "--timeline", str(tmp_path), "--shape", "64,64,64"]
    assert CliRunner().invoke(app, folder).exit_code == 2


def test_products_of_4_bits_are_predicted():
    four, eight = (predict_matmul(256, 256, 4096, "gfx1201", dtype=d, dtype_out="int32") for d in ("int4", "int8"))
    assert 0.2 * eight.time_us < four.time_us < eight.time_us  # half of the bytes, the same instructions or better
