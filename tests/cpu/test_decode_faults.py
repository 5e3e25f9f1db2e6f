"""What the CPU model of Hopper says of attention's kernels over a cache where a part of their text is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hopper_model import COMPILER, damaged
from sampled import sampled

torch = pytest.importorskip("torch")

from decode_model import Model, check, problem_of, read_before  # noqa: E402

from laneloom.ops.attention.config_decode import HopperDecodeConfig, HopperRangesConfig  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")
STAGE = "    barrier_wait(shared_address(shared->{} + in.stage), in.phase{});\n"
SYNC = "named_sync(1, 128);"
CLUSTER = HopperDecodeConfig(splits=4, cluster=2, stages=2), [600, 300]
RANGES = HopperRangesConfig(ranges=5, stages=2), [600, 300, 0, 1]
#: programs that run beside each other
TOGETHER = HopperRangesConfig(ranges=4, stages=2), [600, 300]
#: one program, which goes from head to head
ALONE = HopperRangesConfig(ranges=1, stages=2), [65] * 12

#: what is wrong: what stands in the kernel's text, what instead, what is said of it, of which launch
FAULTS = {
    "a stage is read before it is full": (STAGE.format("full", "") + "    float s", "    float s", "wrong", CLUSTER),
    "a stage is refilled before it is empty": (STAGE.format("empty", " ^ 1"), "", "wrong|waits for ever", CLUSTER),
    "a stage is never empty": (
        "if (lane == 0) barrier_arrive(shared_address(shared->empty + in.stage));", "", "waits for ever", CLUSTER),
    "sums are written where others read the ring": (f"  {SYNC}  // the ring", "  // the ring", "wrong", CLUSTER),
    "sums are written where others read the last ones": (f"  {SYNC}  // the ring", "  // the ring", "wrong", ALONE),
    "sums are read before all are written": (f"  }}\n  {SYNC}\n}}", "  }\n}", "wrong", CLUSTER),
    "a cluster reads sums before they are there": (
        "    cluster_sync();\n    share", "    share", "wrong", CLUSTER),
    "a program ends while others read what it has": (
        "if (peers > 1) cluster_sync();  //", "//", "which is not there", CLUSTER),
    "tickets do not go round": ("+ rank, clusters - 1)", "+ rank, clusters)", "tickets are not zero", CLUSTER),
    "values behind the last key are seen": ("if (tile * TILE + TILE > run.keys) {", "if (false) {", "wrong", CLUSTER),
    "queries' bytes are not counted": (" + rows * HEAD * 2", "", "wrong|waits for ever", RANGES),
    "queries are where the tile before has them": (
        "queries_at(q_tile, in.stage) + (r", "queries_at(q_tile, 0) + (r", "wrong", RANGES),
    "parts of two heads have one place": ("w.number + begins", "begins", "wrong", RANGES),
    "parts are counted before they are there": (f"  __threadfence();\n  {SYNC}\n  if", "  if", "wrong", TOGETHER),
}  # fmt: skip
#: what is late, so that who does not wait is ahead of it
LATE = "for (int i = 0; i < 8 && blockIdx.x == 0 && threadIdx.x == 31; ++i) fibers::sleep();\njoin("
SLOW = {"before they are there": ("    join(", LATE)}


@pytest.mark.parametrize("name", sampled(FAULTS, every=3))
def test_faults_are_seen(tmp_path, monkeypatch, name):
    there, instead, what, (config, lengths) = FAULTS[name]
    late = dict(pair for words, pair in SLOW.items() if words in name)
    model = Model(tmp_path, monkeypatch, change=damaged({there: instead}, late))
    with pytest.raises(AssertionError, match=what):
        check(model, problem_of(lengths, 4, 2, room=640, d=64, d_v=64), config, lengths, launches=8)


@pytest.mark.parametrize(
    ("there", "instead", "config"),
    [
        ("if (keys != run.keys) divide", "if (false) divide", replace(CLUSTER[0], early=True)),
        ("if (!__any_sync(~0u, keys != before)) break;", "break;", RANGES[0]),
    ],
)
def test_lengths_of_before_the_wait_are_seen(tmp_path, monkeypatch, there, instead, config):
    model = Model(tmp_path, monkeypatch, change=damaged({there: instead} | read_before(2)))
    with pytest.raises(AssertionError, match="wrong"):
        check(model, problem_of([600, 300], 4, 2, room=640, d=64, d_v=64), config, [600, 300], before=[64, 300])
