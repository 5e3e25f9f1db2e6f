"""Products of one instruction set that differ from the row of the GPU table: an H100, fewer SMs, a part of a GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tuned_entries import entry

from laneloom.gpu import as_found, get_gpu
from laneloom.ops import target
from laneloom.ops.matmul import tuned
from laneloom.ops.matmul.config import plan, plan_with_reasons
from laneloom.ops.matmul.problem import MatmulProblem

ROW = get_gpu("sm_90a")
PCIE = as_found(ROW, "H100 PCIe", 114, 1.755, 2039)
PART = as_found(ROW, "H100 MIG 1g.10gb", 16, 1.98, 419)
DTYPES = ("bf16", "fp8", "fp32", "fp64")
SIZES = ((1, 4096, 4096), (1000, 1000, 1000), (64, 8192, 512), (4096, 4096, 4096), (300, 304, 30000), (5, 16, 32))


def problems():
    for dtype in DTYPES:
        for m, n, k in SIZES:
            wide = 16 if dtype == "fp8" else 1
            yield MatmulProblem.contiguous(m, n, -(-k // wide) * wide, dtype=dtype, layout="nt")


def test_known_products_are_rows():
    """Whatever a driver says of the last percents of bandwidth."""
    assert get_gpu("H200") is as_found(ROW, "H200", 132, 1.98, 4917) is ROW
    h100 = get_gpu("h100")
    assert h100 is as_found(ROW, "H100 80GB HBM3", 132, 1.98, 3352.3)
    assert (h100.name, h100.bandwidth_gbs, h100.compute_units) == ("sm_90a", 3350, 132)


def test_peaks_follow_compute_units_and_clock():
    assert PCIE.peak_tflops["bf16"] == pytest.approx(756, rel=0.01)  # NVIDIA's data sheet
    assert PCIE.compute_units == 114


@pytest.mark.parametrize("gpu", [PCIE, PART], ids=["114 SMs", "16 SMs"])
def test_plans_are_for_the_multiprocessors_there_are(gpu):
    """Persistent programs that do not fit would begin when the others have ended."""
    for problem in problems():
        config = plan(problem, gpu)
        assert config.why_invalid(problem, gpu) is None
        side_by_side = 3 if config.schedule == "hopper" else 2 if config.num_warps == 4 else 1
        assert getattr(config, "programs", 0) <= side_by_side * gpu.compute_units, config.text


def test_shipped_entries_are_their_products():
    """The entry was measured on an H200; an H100 has another config for it, from the model, which knows its memory."""
    entry = next(e for e in tuned.shipped_entries("sm_90a") if e.key.startswith("matmul/nn/bf16_bf16_bf16/b1_m256"))
    _, m, n, k = entry.sizes
    problem = MatmulProblem.contiguous(m, n, k, dtype="bf16")
    assert plan_with_reasons(problem, ROW).source == "tuned, exact"
    assert plan_with_reasons(problem, get_gpu("h100")).source == "cost model"
    own = next(e for e in tuned.shipped_entries("sm_90a") if "H100" in str(e.provenance["gpu"]) and "/nn/" in e.key)
    problem = MatmulProblem.contiguous(*own.sizes[1:], dtype="fp32")
    assert plan_with_reasons(problem, get_gpu("h100")).source == "tuned, exact"


def test_whose_entries_speak(monkeypatch):
    """Of the package's: a product's own; on the product of the GPU table those of another that gained enough."""
    problem = MatmulProblem.contiguous(1000, 2000, 3000)
    configs = [f"hopper:block_m=128,block_n=128,block_k=64,stages={n},consumers=2,pieces=4" for n in (3, 4)]
    h200, h100 = (
        entry(problem, config, gpu=gpu, gain=1.1, origin="package")
        for config, gpu in zip(configs, ("NVIDIA H200", "NVIDIA H100 80GB HBM3"), strict=True)
    )
    much = replace(h100, model_us=13.0)

    def source(gpu, *known):
        monkeypatch.setattr(tuned, "entries", lambda name: known)
        found = plan_with_reasons(problem, gpu)
        return found.config.stages if found.source == "tuned, exact" else found.source

    other = get_gpu("h100")
    assert (source(ROW, h100, h200), source(ROW, much, h200), source(other, h200, h100)) == (3, 3, 4)
    assert (source(ROW, h100), source(ROW, much), source(other, h200)) == ("cost model", 4, "cost model")
    assert source(PCIE, much, h200) == "cost model", "it has fewer SMs"


def test_the_told_estimate_is_of_the_products_own_memory():
    """What reads its weights once takes longer where memory is slower, though both plans compare schedules alike."""
    problem = MatmulProblem.contiguous(16, 28672, 4096, dtype="bf16")
    told = [
        float(plan_with_reasons(problem, gpu, use_tables=False).reason.split("estimate, ")[1].split()[0])
        for gpu in (get_gpu("h100"), ROW)
    ]
    assert told[0] > 1.2 * told[1]


def test_the_device_is_asked(monkeypatch):
    torch = pytest.importorskip("torch")
    found = {"mem_clock_rate": 2619000, "mem_bus_width": 5120, "multiprocessor_count": 132, "sm_clock_rate": 1980000}
    active = SimpleNamespace(utils=SimpleNamespace(get_device_properties=lambda device: found))
    monkeypatch.setattr(target.driver, "_active", active)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    target._device.cache_clear()
    assert target._device("sm_90a", 0) is get_gpu("h100")
    target._device.cache_clear()
    found |= {"mem_clock_rate": 0, "sm_clock_rate": 0}  # where a driver tells none
    assert target._device("sm_90a", 0) is ROW
    target._device.cache_clear()
