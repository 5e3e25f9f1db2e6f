"""What warm calls of Hopper's transform hand to the driver, held against the operands of each call."""

from __future__ import annotations

import ctypes
import re
from importlib import resources
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from laneloom.codegen import cuda_call  # noqa: E402
from laneloom.codegen.cuda_call import CudaFunction  # noqa: E402
from laneloom.errors import LaneloomError  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.transform3d import execute, hopper, plan  # noqa: E402

GPU, STREAM, PROCESSORS, CTAS_EACH = get_gpu("sm_90a"), 77, 132, 5
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "complex128": torch.complex128, "complex64": torch.complex64}


class Driver:
    """Stands for libcuda: notes launches, by what the kernel's text says that it takes."""

    def __init__(self):
        self.schedule, self.launches, self.status = "", [], 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, found, function, threads, shared):
        assert function.value == threads == shared.value
        found._obj.value = CTAS_EACH
        return self.status

    def cuLaunchKernelEx(self, by_config, function, parameters, extra):
        config = by_config._obj
        assert (config.stream, extra) == (STREAM, None)
        programmatic = 6
        assert {x.id: x.value[0] for x in config.attributes[: config.attribute_count]} == {programmatic: 1}
        values: dict[str, object] = {"grid": tuple(config.grid)}
        for name, address in zip(names_of(self.schedule), parameters, strict=True):
            kind = ctypes.c_int32 if name == "resident" else ctypes.c_int64
            values[name] = kind.from_address(address).value
        self.launches.append(values)
        return 0


def names_of(schedule):
    text = resources.files("laneloom.ops.transform3d.kernels").joinpath(f"{schedule}.cu").read_text(encoding="utf-8")
    found = re.search(rf"transform3d_{schedule}\(([^)]*)\)", text)
    assert found is not None
    assert "__restrict__" not in found[1], "what kernels ahead may write is no constant"
    return [parameter.split()[-1] for parameter in found[1].split(",")]


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setattr(cuda_call, "driver", lambda: found)
    monkeypatch.setattr(cuda_call, "make_current", lambda device: None)
    monkeypatch.setattr(hopper, "current_stream", lambda device: STREAM)
    monkeypatch.setattr(hopper, "_load", lambda *_: CudaFunction("transform3d", 256, 256, 256, None))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=PROCESSORS))
    return found


@pytest.mark.parametrize(("dtype", "k", "count", "schedule"), [
    ("fp64", 10, 2048, "fused"), ("fp64", 10, 5, "fused"), ("fp64", 32, 3, "fused"), ("complex128", 20, 7, "fused"),
    ("fp64", 9, 33, "flat"), ("fp32", 7, 50, "fma"), ("complex64", 10, 9, "fma"),
])  # fmt: skip
@pytest.mark.parametrize("transpose", [False, True])
def test_launches_may_begin_before_the_kernel_ahead_has_ended(driver, dtype, k, count, schedule, transpose):
    driver.schedule = schedule
    xs = [torch.zeros((count, k, k, k), dtype=DTYPES[dtype]) for _ in range(2)]
    outs, matrix = [torch.zeros_like(x) for x in xs], torch.zeros((k, k), dtype=xs[0].real.dtype)
    config = plan(execute.problem_of(xs[0], matrix, outs[0], dtype, accumulate=False), GPU)
    assert config.schedule == schedule
    run = execute.prepare_transform(
        xs[0], matrix, outs[0], dtype, GPU, transpose=transpose, accumulate=False, config=None
    )
    for x, out in zip(xs, outs, strict=True):
        run(x, matrix, out)
    ctas = -(-count // config.group) * getattr(config, "cluster", 1)
    values = k**3 * (2 if dtype.startswith("complex") else 1)
    assert driver.launches == [
        {
            "grid": (ctas, 1, 1), "x": x.data_ptr(), "matrix": matrix.data_ptr(), "out": out.data_ptr(), "n": count,
            "stride_x": values, "stride_out": values, "stride_axis": 0, "stride_k": 1 if transpose else k,
            "stride_n": k if transpose else 1, "resident": CTAS_EACH * PROCESSORS,
        }
        for x, out in zip(xs, outs, strict=True)
    ]  # fmt: skip


def test_a_driver_that_knows_no_occupancy_is_an_error(driver):
    driver.status = 1
    with pytest.raises(LaneloomError, match="error 1 of its occupancy"):
        cuda_call.ctas_per_processor(CudaFunction("transform3d", 256, 256, 256, None), 0)
