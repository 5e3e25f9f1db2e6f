"""Kernels that `emulated` finds in Triton's cache."""

import os
import re
import shutil

import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import laneloom  # noqa: E402
from laneloom.emulator.driver import _assembly  # noqa: E402
from laneloom.errors import EmulationError  # noqa: E402


@triton.jit
def copy_kernel(x_ptr, out_ptr):
    lane = tl.arange(0, 64)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane))


def forget():
    """As the next process does not know what this one has read."""
    copy_kernel.device_caches.clear()
    _assembly.cache_clear()


@pytest.mark.parametrize("ending", ["amdgcn", "hsaco"])
def test_a_file_that_was_cut_off_is_named(ending, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, out = torch.randn(64), torch.zeros(64)
    forget()
    with laneloom.emulated("gfx1151"):
        copy_kernel.warmup(x, out, grid=(1,))
        (file,) = tmp_path.rglob(f"copy_kernel.{ending}")
        os.truncate(file, 500)
        forget()
        with pytest.raises(EmulationError) as caught:
            copy_kernel[(1,)](x, out)
        assert re.match(f"{file} .*a part of 'copy_kernel' only.* delete the folder {file.parent} ", str(caught.value))
        shutil.rmtree(file.parent)
        forget()
        copy_kernel[(1,)](x, out)
    assert torch.equal(x, out)
