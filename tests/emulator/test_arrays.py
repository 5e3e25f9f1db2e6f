"""numpy arrays as operands: without torch, in places and byte orders that no kernel walks over."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import laneloom
from laneloom.errors import ArgumentError

WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Absent())
import numpy as np, laneloom
ones = lambda *shape: np.ones(shape, np.float16)
with laneloom.emulated("gfx1201") as gpu:
    assert (laneloom.matmul(ones(16, 700), ones(700, 18)) == 700).all()  # K is split
    assert len(gpu.launches) == 2
    assert (laneloom.gemm(ones(5, 8), ones(8, 3), ones(3), beta=2.0) == 10).all()
    assert (laneloom.gemm_chain(ones(5, 8), ones(8, 8), ones(8, 8)) == 64).all()
    assert laneloom.transpose(ones(2, 3)).shape == (3, 2)
    q = ones(1, 2, 1, 16)
    assert (laneloom.flash_attention(q, q, q) == 1).all()
    assert (laneloom.attention_decode(q, q, q, cache_lengths=np.array([2], np.int32)) == 1).all()
"""


def test_every_operator_without_torch():
    """numpy 2's arrays have a `device`, which is no sign of a tensor."""
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def off_by_a_byte(values: np.ndarray) -> np.ndarray:
    moved = np.frombuffer(bytearray(values.nbytes + 1), values.dtype, offset=1).reshape(values.shape)
    moved[...] = values
    return moved


def test_elements_between_addresses():
    a, b = np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(4, 2)
    with laneloom.emulated("gfx1151"):
        for call in (laneloom.matmul, laneloom.gemm):
            assert np.array_equal(call(off_by_a_byte(a), off_by_a_byte(b), out=off_by_a_byte(np.ones((3, 2)))), a @ b)


def test_tensors_between_addresses_are_refused():
    torch = pytest.importorskip("torch")
    a = torch.from_numpy(off_by_a_byte(np.ones((3, 3))))
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError, match=r"^b: expected elements at multiples of 8"):
        laneloom.matmul(torch.ones(3, 3).double(), a)


def test_products_go_into_tensors_of_one_device():
    torch = pytest.importorskip("torch")
    a, out = torch.ones(3, 3), torch.empty(3, 3, device="meta")
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError, match=r"^out: expected a tensor on cpu, as a is"):
        laneloom.matmul(a, a, out=out)
