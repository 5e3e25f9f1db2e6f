"""numpy arrays as operands: without torch, in places and byte orders that no kernel walks over, and of transform3d."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.backends.amd.compiler import HIPBackend

import laneloom
from laneloom.emulator.arguments import ArrayArgument
from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.ops.transform3d.reference import transform

WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Absent())
import numpy as np, laneloom
from laneloom.errors import UnsupportedError
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
    try:
        laneloom.transform3d(np.ones((1, 2, 2, 2)), np.ones((2, 2)))
    except UnsupportedError as error:
        print(error)
"""


def test_every_operator_without_torch():
    """numpy 2's arrays have a `device`, which is no sign of a tensor."""
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "coeffs: transform3d needs torch, for numpy arrays too, and there is none"


def off_by_a_byte(values: np.ndarray) -> np.ndarray:
    moved = np.frombuffer(bytearray(values.nbytes + 1), values.dtype, offset=1).reshape(values.shape)
    moved[...] = values
    return moved


@triton.jit
def double(x_ptr, SIZE: tl.constexpr):
    at = x_ptr + tl.arange(0, SIZE)
    tl.store(at, 2 * tl.load(at))


def test_triton_that_imports_torch_to_ask_an_array(monkeypatch):
    """Its AMD backend before 3.8; kernels that Triton's own JIT launches met it."""

    def within(arg):
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(HIPBackend, "is_within_2gb", staticmethod(within))
    x = np.arange(4, dtype=np.float16)
    with laneloom.emulated("gfx1151"):
        double[(1,)](ArrayArgument(x), SIZE=4)
    assert x.tolist() == [0, 2, 4, 6]
    assert HIPBackend.is_within_2gb is within


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


@pytest.mark.parametrize("argument", ["c", "bias"])
def test_terms_between_addresses_are_refused(argument):
    torch = pytest.importorskip("torch")
    a, term = torch.ones(3, 3), off_by_a_byte(np.ones(3 if argument == "bias" else (3, 3), np.float32))
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError, match=f"^{argument}: expected elements at"):
        laneloom.gemm(a, a, beta=1.0, **{argument: torch.from_numpy(term)})


def test_sequences_between_addresses_are_refused():
    q = np.ones((3, 1, 16), np.float16)
    ends = off_by_a_byte(np.array([0, 1, 3], np.int32))
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError, match=r"^cu_seqlens_q: expected elements at mult"):
        laneloom.flash_attention(q, q, q, cu_seqlens_q=ends)


@pytest.mark.parametrize("place", ["between addresses", "every second", "backwards"])
def test_lengths_and_pages_that_do_not_lie_side_by_side(place):
    torch = pytest.importorskip("torch")
    moved = {
        "between addresses": off_by_a_byte, "every second": lambda x: np.stack([x, 0 * x], -1)[..., 0],
        "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    }[place]  # fmt: skip
    rng = np.random.default_rng(0)
    q, pages = (rng.standard_normal(s).astype(np.float16) for s in ((2, 1, 2, 16), (5, 16, 1, 16)))
    lengths, table = np.array([17, 3], np.int32), np.array([[4, 0], [2, -1]], np.int32)
    kinds = [np.asarray] if place == "backwards" else [np.asarray, torch.from_numpy]
    with laneloom.emulated("gfx1151"):
        expected = laneloom.attention_decode(q, pages, pages, cache_lengths=lengths, block_table=table)
        for kind in kinds:
            operands = map(kind, (q, pages, pages))
            got = laneloom.attention_decode(
                *operands, cache_lengths=kind(moved(lengths)), block_table=kind(moved(table))
            )
            assert np.array_equal(np.asarray(got), expected)


def test_products_go_into_tensors_of_one_device():
    torch = pytest.importorskip("torch")
    a, out = torch.ones(3, 3), torch.empty(3, 3, device="meta")
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError, match=r"^out: expected a tensor on cpu, as a is"):
        laneloom.matmul(a, a, out=out)


X = np.random.default_rng(0).integers(-3, 4, (2, 3, 3, 3)).astype(float)
T = np.random.default_rng(1).integers(-3, 4, (3, 3)).astype(float)


@pytest.mark.parametrize(
    ("coeffs", "matrix"),
    [
        (X, T),
        (X[0], np.stack([T, 2 * T, T.T])),
        (X[::-1, :, ::-1], T[::-1]),
        (X.astype(">f8"), T.astype(">f8")),
        (off_by_a_byte(X), off_by_a_byte(T)),
        (X.astype(np.float32), T.astype(np.float32)),
        (X * (1 + 2j), T),
        (X * (1 + 2j), T * 1j),
        (np.broadcast_to(X, (2, 2, 3, 3, 3)), np.broadcast_to(T[0], (3, 3))),  # neither can be written
        (X[:0], T),
    ],
)
def test_transform3d(coeffs, matrix):
    pytest.importorskip("torch")
    with laneloom.emulated("gfx1151"):
        got = laneloom.transform3d(coeffs, matrix)
    assert got.dtype == coeffs.dtype.newbyteorder("=")
    assert np.array_equal(got, transform(coeffs, matrix))  # of small whole numbers, exact


@pytest.mark.parametrize("make", [np.ones, lambda shape: np.ones(shape)[::-1], lambda s: off_by_a_byte(np.ones(s))])
def test_transform3d_into(make):
    pytest.importorskip("torch")
    out = make(X.shape)
    with laneloom.emulated("gfx1151"):
        assert laneloom.transform3d(X, T, out=out, accumulate=True) is out
        assert np.array_equal(out, 1 + transform(X, T))
        laneloom.transform3d(out, T, out=out)
    assert np.array_equal(out, transform(1 + transform(X, T), T))


def test_transform3d_refuses():
    pytest.importorskip("torch")
    fixed = X.copy()
    fixed.flags.writeable = False
    with laneloom.emulated("gfx1151"):
        for match, call in {
            "matrix: expected a numpy array, as coeffs is, got list": lambda: laneloom.transform3d(X, T.tolist()),
            "coeffs: expected a torch tensor or a numpy array, got list": lambda: laneloom.transform3d(X.tolist(), T),
            "out: expected shape": lambda: laneloom.transform3d(X, T, out=X[0]),
            "out: expected an array that can be written": lambda: laneloom.transform3d(X, T, out=fixed),
            "matrix: expected dtype torch.float64, as coeffs has": lambda: laneloom.transform3d(X, T * 1j),
        }.items():
            with pytest.raises(ArgumentError, match=f"^{match}"):
                call()
        with pytest.raises(UnsupportedError, match=r"^coeffs: expected dtype float64, .*, got float16"):
            laneloom.transform3d(X.astype(np.float16), T)
    with pytest.raises(UnsupportedError):
        laneloom.transform3d(X, T)
