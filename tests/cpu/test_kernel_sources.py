"""Which files a product's record depends on: those of the schedule that ran, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from laneloom.bench import kernel_sources, matmul, records
from laneloom.bench.kernel_sources import config_sources, schedule_sources
from laneloom.gpu import get_gpu
from laneloom.ops.matmul import config as matmul_config
from laneloom.ops.matmul.config import SCHEDULES
from laneloom.ops.matmul.problem import MatmulProblem

HOPPER = [name for name in SCHEDULES if name.startswith("hopper")]


def record(kernel_hash, config):
    problem = {"m": 64, "n": 64, "k": 64, "layout": "nn", "dtype": "bf16", "dtype_out": "bf16", "group": "square"}
    return records.Record(
        op="matmul", problem=problem, candidate="laneloom", config={"text": config}, method="", median_us=2.0,
        iqr_us=0.1, ratio_to_reference=1.0, noisy=False, reference="torch.matmul", flops=1, bytes=1,
        kernel_hash=kernel_hash, environment=records.Environment("a GPU", "1", "2", "3", "0123456789ab", False),
    )  # fmt: skip


def names(schedule):
    return {path.relative_to(kernel_sources.PACKAGE).as_posix() for path in schedule_sources(schedule)}


def test_a_schedule_depends_on_what_runs_on_the_gpu():
    of = "ops/matmul/kernels/hopper"
    copies = {"device/hopper.py", "device/pieces.py"}
    assert names("hopper_row") - copies == {"device/hopper.cuh", f"{of}_row.cu"}
    assert names("hopper_rows") - copies == {"device/hopper.cuh", f"{of}_rows.cu"}
    assert names("hopper_cluster") == copies | {
        "codegen/wgmma.py", "device/hopper.cuh", "device/split_k.py", f"{of}_cluster.cu", f"{of}_cluster_blocks.cuh",
        f"{of}_cluster_epilogue.cuh", f"{of}_cluster_groups.cuh", f"{of}_cluster_lanes.cuh",
        f"{of}_cluster_multiply.cuh", f"{of}_cluster_ring.cuh", f"{of}_cluster_store.cuh", f"{of}_cluster_sums.cuh",
    }  # fmt: skip
    assert "device/split_k.py" in names("hopper_stream") & names("hopper_precise"), "adds up parts of K"
    assert names("hopper") == {"device/hopper.py", "device/pieces.py", "device/split_k.py", f"{of}.py"}


def test_no_kernel_of_hopper_is_left_out():
    counted = set(config_sources(None))
    for path in kernel_sources.KERNELS.glob("hopper*.cu*"):
        assert path in counted
    assert all(schedule_sources(name) for name in HOPPER)


@pytest.mark.parametrize("changed", HOPPER)
def test_a_changed_kernel_makes_its_own_records_stale(changed, tmp_path):
    """Every file that no other schedule has, changed: only this schedule's records are stale."""
    rows = {name: record(records.hash_sources(schedule_sources(name)), name) for name in HOPPER}
    own = set(schedule_sources(changed)).difference(*(schedule_sources(name) for name in HOPPER if name != changed))
    assert own

    def rewritten(path):
        copy = tmp_path / path.relative_to(kernel_sources.PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes() + b"\n" * (path in own))
        return copy

    stale = {name for name, row in rows.items() if row.is_stale([rewritten(path) for path in schedule_sources(name)])}
    assert stale == {changed}


def test_a_record_is_of_its_schedule_and_its_plan(monkeypatch):
    gpu, problem = get_gpu("sm_90a"), MatmulProblem.contiguous(64, 64, 64, dtype="bf16")
    config = matmul_config.plan(problem, gpu)
    fresh = record(records.hash_sources(schedule_sources(config.schedule)), config.text)
    assert not matmul.is_stale(fresh)
    without_last_knob = config.text.rpartition(",")[0]  # as written before there was such a knob
    assert matmul_config.MatmulConfig.parse(without_last_knob) == config
    assert not matmul.is_stale(replace(fresh, config={"text": without_last_knob}))
    assert matmul.is_stale(replace(fresh, config={"text": config.text + ",dropped=1"}))
    assert matmul.is_stale(replace(fresh, config={"text": "hopper_gone:block_m=64"}))
    assert schedule_sources("hopper_gone") == ()
    other = config.text.replace(f"group_m={config.group_m}", f"group_m={config.group_m + 1}")
    assert matmul.is_stale(replace(fresh, config={"text": other}))
    monkeypatch.setattr(matmul, "config_sources", lambda text: schedule_sources("hopper_plain"))
    assert matmul.is_stale(fresh)
