"""Launches past the JIT: what can be seen of them without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402

from laneloom.codegen import cuda_call, cuda_context  # noqa: E402
from laneloom.device.pieces import line_pitch  # noqa: E402
from laneloom.device.prepared import PreparedLaunch, specialise  # noqa: E402
from laneloom.device.tma import UNUSED_PITCH, TmaView  # noqa: E402

DRIVER_SOURCE = """
    int contexts = 0, has_context = 1, launches = 0, taken[8];
    void *last[8];
    int cuInit(int flags) { return 0; }
    int cuDeviceGet(int *device, int ordinal) { *device = ordinal + 100; return 0; }
    int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(long)device; return 0; }
    int cuCtxSetCurrent(void *context) { contexts = (int)(long)context; has_context = 1; return 0; }
    int cuTensorMapEncodeTiled(char *map) { map[0] = 42; return has_context ? 0 : 201; }
    int cuLaunchKernelEx(const void *config, void *function, void **parameters, void **extra) {
        if (!has_context) return 201;
        ++launches;
        last[0] = *(void **)parameters[0];
        last[1] = *(void **)parameters[1];
        taken[0] = *(char *)parameters[2];
        taken[1] = *(int *)parameters[3];
        return 0;
    }
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A library that stands for NVIDIA's driver: counts launches, knows whether the thread has a context."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER_SOURCE)
    library = tmp_path / "driver.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    found = ctypes.CDLL(str(library))
    for module in (cuda_call, cuda_context):
        monkeypatch.setattr(module, "driver", lambda: found)
    cuda_context._primary_context.cache_clear()
    yield found
    cuda_context._primary_context.cache_clear()


VIEW = SimpleNamespace(shape=[16, 64], strides=[64, 1])


class Kernel:
    """Stands for a jit function of two pointers, a descriptor and an integer, and for what the JIT compiles of it."""

    name, function = "kernel", 7
    src = SimpleNamespace(
        signature={"x": "*bf16", "y": "*bf16", "t": "tensordesc<bf16[8, 64],L>", "BLOCK": "constexpr", "n": "i32"}
    )
    metadata = SimpleNamespace(
        global_scratch_size=0, profile_scratch_size=0, launch_cooperative_grid=False, num_ctas=1, num_warps=4, shared=0,
        launch_pdl=True, tensordesc_meta=[{"swizzle": 3, "elem_size": 2, "block_size": [8, 64]}],
    )  # fmt: skip

    def __init__(self):
        self.grids = []
        self.options = {}

    def __getitem__(self, grid):
        self.grids.append(grid)
        return self._launch

    def _launch(self, *arguments, **options):
        self.options = options
        return self


def on_device(tensor):
    tensor = tensor.view(tensor.shape)
    tensor.get_device = lambda: 3
    return tensor


def test_only_the_first_launch_of_each_alignment_goes_through_the_jit(driver):
    kernel = Kernel()
    launch = PreparedLaunch(kernel, (7,), lambda x, y, t: (x, y, VIEW, 64, 5), num_warps=4)
    x, y = (on_device(torch.zeros(32, 64, dtype=torch.bfloat16)) for _ in range(2))
    for calls in range(3):
        launch(x, y, x)
        assert (kernel.grids, driver_value(driver, "launches")) == ([(7, 1, 1)], calls)
    last = (ctypes.c_void_p * 2).in_dll(driver, "last")
    assert (last[0], last[1]) == (x.data_ptr(), y.data_ptr())
    taken = (ctypes.c_int * 2).in_dll(driver, "taken")
    assert tuple(taken) == (42, 16), "the descriptor's map, then its sizes"
    odd = on_device(y.flatten()[1:])
    launch(x, odd, x)
    assert len(kernel.grids) == 2
    launch(x, odd, x)
    assert (len(kernel.grids), last[1]) == (2, odd.data_ptr())


def driver_value(driver, name):
    return ctypes.c_int.in_dll(driver, name).value


def test_a_thread_without_a_context_is_given_the_devices(driver):
    """Where torch's autograd threads are when the first call that needs a context is ours."""
    lost = ctypes.c_int.in_dll(driver, "has_context")
    kernel = Kernel()
    launch = PreparedLaunch(kernel, (7,), lambda x, y, t: (x, y, VIEW, 64, 5))
    x, y, z = (on_device(torch.zeros(32, 64, dtype=torch.bfloat16)) for _ in range(3))
    lost.value = 0
    launch(x, y, x)
    assert driver_value(driver, "contexts") == 103, "before the JIT encodes a descriptor"
    for tensors in ((x, y, x), (x, y, z), (x, y, z)):  # a new address is encoded, a known one only launched
        lost.value = ctypes.c_int.in_dll(driver, "contexts").value = 0
        before = driver_value(driver, "launches")
        launch(*tensors)
        assert (driver_value(driver, "launches"), driver_value(driver, "contexts")) == (before + 1, 103)


def test_a_profiler_sees_every_launch(driver, monkeypatch):
    kernel = Kernel()
    launch = PreparedLaunch(kernel, (7,), lambda x, y, t: (x, y, VIEW, 64, 5))
    x = on_device(torch.zeros(32, 64, dtype=torch.bfloat16))
    launch(x, x, x)
    monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [print])
    launch(x, x, x)
    assert len(kernel.grids) == 2


def test_launches_say_whether_to_fuse(driver):
    x = on_device(torch.zeros(32, 64, dtype=torch.bfloat16))
    for given in ({}, {"enable_fp_fusion": False}):
        kernel = Kernel()
        PreparedLaunch(kernel, (7,), lambda x, y, t: (x, y, VIEW, 64, 5), num_warps=4, **given)(x, x, x)
        assert kernel.options == {"num_warps": 4, "enable_fp_fusion": True} | given


@triton.jit(do_not_specialize=["free"])
def specialised(x_ptr, one, sixteen, free, huge, scale, BLOCK: tl.constexpr):
    tl.store(x_ptr, one + sixteen + free + huge + scale + BLOCK)


def test_specialisation_is_the_jits():
    arguments = {"one": 1, "sixteen": 32, "free": 1, "huge": 1 << 40, "scale": 0.5, "BLOCK": 16}
    signature, constants, divisible = specialise(specialised, arguments, {"x_ptr": "*fp32"})
    assert signature == {"x_ptr": "*fp32", "sixteen": "i32", "free": "i32", "huge": "i64", "scale": "fp32"}
    assert constants == {"one": 1, "BLOCK": 16}
    assert set(divisible) == {"x_ptr", "sixteen", "huge"}


def test_a_single_row_gets_a_pitch_that_tma_takes():
    assert TmaView(1, 5, 3, 1, 8).strides == [UNUSED_PITCH, 1]
    assert TmaView(2, 5, 24, 1, 8).strides == [24, 1]
    assert "tensordesc<bf16[64, 32],NVMMASharedLayout" in TmaView(64, 64, 64, 64, 32).signature("bf16")


def test_repacked_rows_are_whole_lines():
    assert (line_pitch(1, 2), line_pitch(64, 2), line_pitch(65, 2), line_pitch(4099, 2)) == (64, 64, 128, 4160)
