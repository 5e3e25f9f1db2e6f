"""Weights of few bits without a GPU: what is taken, what codes mean, how far what is made of a matrix is from it."""

from __future__ import annotations

import numpy as np
import pytest

from laneloom import Int4, QuantizedWeight, quantize_weight
from laneloom.errors import ArgumentError, UnsupportedError
from laneloom.ops.quantized_matmul.weight import as_octets

DTYPES = ("int4", "uint4", "fp4", "int8", "fp8")


def octets(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8).view(dtype)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def hard(n: int = 24, k: int = 200) -> np.ndarray:
    """Rows of very different size, of zeros, of one sign, and with outliers."""
    w = np.random.default_rng(1).standard_normal((n, k)).astype(np.float32)
    w *= np.exp2(np.random.default_rng(2).integers(-60, 60, (n, 1))).astype(np.float32)
    w[0], w[1], w[2] = 0, abs(w[1]), -abs(w[2])
    w[3, ::7] *= 100
    w[4] = 2.0**-149
    w[5], w[5, 3] = 0, 3e38
    w[6, 0], w[6, 1] = 3e38, -3e38
    return w


def test_the_even_k_is_in_the_low_half():
    weight = QuantizedWeight(np.array([[0x21, 0xF8]], np.uint8), np.array([[2.0]], np.float32), "int4")
    assert weight.shape == (1, 4)
    assert weight.dequantize().tolist() == [[2, 4, -16, -2]]
    unsigned = QuantizedWeight(weight.values, weight.scales, "uint4", None, np.array([[8]], np.uint8))
    assert unsigned.dequantize().tolist() == [[-14, -12, 0, 14]]
    assert QuantizedWeight(weight.values, weight.scales, "fp4").dequantize().tolist() == [[1, 2, -0.0, -12]]


def test_groups_and_powers_of_two():
    """gpt-oss: 32 numbers of E2M1 under an E8M0 scale; K ends within a group."""
    scales = np.array([[127, 130], [0, 255]], np.uint8)
    w = QuantizedWeight(np.full((2, 20), 0x22, np.uint8), scales, "fp4", 32).dequantize()
    assert w[0].tolist() == [1.0] * 32 + [8.0] * 8
    assert (w[1, :32] == 2.0**-127).all()
    assert np.isnan(w[1, 32:]).all()


@pytest.mark.parametrize("dtype", [*DTYPES])
@pytest.mark.parametrize("group", [16, 128, None])
def test_how_far_a_weight_is_from_its_matrix(dtype, group):
    """Half a step of the format, by what FP32 rounds beside: the quotient twice, the scale once, the product once."""
    w = hard()
    weight = quantize_weight(w, dtype, group)
    step = 200 if group is None else group
    scales = weight.scales if dtype != "fp4" else np.exp2(weight.scales.astype(np.float64) - 127)
    scale = np.repeat(scales.astype(np.float64), step, -1)[:, :200]
    size = abs(w.astype(np.float64))
    bound = {
        "fp4": np.maximum(size / 4, scale / 4), "fp8": np.maximum(size / 16, scale / 1024)
    }.get(dtype, scale / 2)  # fmt: skip
    rounded = 4 * 2.0**-24 * (size + (15 * scale if dtype == "uint4" else 0)) + 2.0**-149
    error = abs(weight.dequantize().astype(np.float64) - w)
    assert (error <= bound + rounded).all()
    assert (scales[0] == 1).all(), "zeros"
    assert (weight.dequantize()[0] == 0).all()
    assert (scales >= (2.0**-127 if dtype == "fp4" else 2.0**-126)).all()


def test_what_the_largest_becomes():
    w = np.array([[1.0, -0.5] * 8, [0.25, 0.75] * 8], np.float32)
    assert quantize_weight(-w * 14, "int4", None).numbers()[0, :2].tolist() == [-7, 4]  # 3.5 to even
    assert quantize_weight(w * 254, "int8", None).values[0, :2].tolist() == [127, -64]
    assert quantize_weight(w, "fp8", None).numbers()[1, :2].tolist() == [144.0, 448.0]  # 149.3, between 144 and 160
    unsigned = quantize_weight(w, "uint4", None)
    assert unsigned.zeros.tolist() == [[5], [0]]
    assert unsigned.numbers()[:, :2].tolist() == [[15, 0], [5, 15]]
    mx = quantize_weight(np.array([[7.9, 6.0, 5.0, 2.5, 1.75, 0.75, 0.25, -0.3]]), "fp4", None)
    assert mx.scales.tolist() == [[127]]
    assert mx.numbers().tolist() == [[6, 6, 4, 2, 2, 1, 0, -0.5]], "ties to even, saturated"


def test_tensors_and_arrays_have_the_same_bits():
    torch = pytest.importorskip("torch")
    for dtype in DTYPES:
        for given in (hard(), hard().astype(np.float16) * np.float16(2.0**-8), hard().T.copy().T.astype(np.float64)):
            w = np.where(np.isfinite(given), given, 1).astype(given.dtype)
            ours, theirs = quantize_weight(w, dtype), quantize_weight(torch.from_numpy(w), dtype)
            assert ours.group == theirs.group == (32 if dtype == "fp4" else 128)
            pairs = [(ours.values, theirs.values), (ours.scales, theirs.scales)]
            pairs += [(ours.zeros, theirs.zeros)] if dtype == "uint4" else []
            for x, y in pairs:
                y = as_octets(y).numpy() if y.dtype.itemsize == 1 else y.numpy()
                assert np.array_equal(as_octets(x) if x.dtype.itemsize == 1 else x, y), dtype
            assert np.array_equal(ours.dequantize(np.float16), theirs.dequantize(torch.float16).numpy())


def test_tensors_of_their_own_dtypes():
    torch = pytest.importorskip("torch")
    w = torch.randn(2, 8, 64).bfloat16().requires_grad_()
    weight = quantize_weight(w, "fp8", 16)
    assert (weight.values.dtype, weight.ndim, weight.shape) == (torch.float8_e4m3fn, 3, (2, 8, 64))
    assert not weight.values.requires_grad
    for scales in (weight.scales.bfloat16(), weight.scales.half(), weight.scales.to(torch.float8_e4m3fn)):
        got = QuantizedWeight(weight.values.view(torch.uint8), scales, "fp8", 16).dequantize(torch.float32)
        assert torch.equal(got, weight.values.float() * scales.float().repeat_interleave(16, -1))
    powers = torch.full((2, 8, 4), 128, dtype=torch.uint8)
    for scales in (powers, powers.view(torch.float8_e8m0fnu)):
        got = QuantizedWeight(weight.values, scales, "fp8", 16)
        assert got.dtype_scale == "e8m0"
        assert torch.equal(got.dequantize(), 2 * weight.values.float())
    assert weight.dequantize(torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 0), (2, 0, 4)])
def test_empty(shape):
    for dtype in DTYPES:
        for group in (None, 32):
            weight = quantize_weight(np.ones(shape, np.float32), dtype, group)
            assert weight.shape == shape == weight.dequantize().shape


BYTES, SCALES = octets(4, 20), ones(4, 2)
REFUSALS = [
    (UnsupportedError, "dtype: expected 'int4', 'uint4', 'fp4', 'int8' or 'fp8', got 'int3'", (BYTES, SCALES, "int3")),
    (UnsupportedError, "dtype: expected .*, got None", (BYTES, SCALES, None)),
    (ArgumentError, "group: expected a power of two from 16 on, or None, got 24", (BYTES, SCALES, "int4", 24)),
    (ArgumentError, "group: .* got 8", (BYTES, SCALES, "int4", 8)),
    (ArgumentError, "group: .* got 32.0", (BYTES, SCALES, "int4", 32.0)),
    (ArgumentError, "values: expected a torch tensor or a numpy array, got list", ([1], SCALES, "int4")),
    (ArgumentError, "scales: expected a numpy array, got float", (BYTES, 1.0, "int4")),
    (UnsupportedError, "values: expected uint8 or int8 for dtype 'int4', got int32",
     (BYTES.astype(np.int32), SCALES, "int4")),
    (UnsupportedError, "values: expected int8 for dtype 'int8', got uint8", (BYTES, SCALES, "int8")),
    (UnsupportedError, "scales: expected dtype float32, .* or float8_e4m3fn, got float64",
     (BYTES, SCALES.astype(float), "int4", 32)),
    (ArgumentError, r"values: expected at least 2 axes, got shape \(20,\)", (BYTES[0], SCALES, "int4")),
    (ArgumentError, r"scales: expected shape \(4, 1\), one for each group of each row, got \(4, 2\)",
     (BYTES, SCALES, "int4")),
    (ArgumentError, r"scales: expected shape \(4, 2\), .* got \(4,\)", (BYTES, SCALES[:, 0], "int4", 32)),
    (ArgumentError, "zeros: expected None for dtype 'int4', only 'uint4' has them",
     (BYTES, SCALES, "int4", 32, octets(4, 2))),
    (UnsupportedError, "zeros: expected dtype uint8, got float32", (BYTES, SCALES, "uint4", 32, SCALES)),
    (ArgumentError, r"zeros: expected the shape of scales, \(4, 2\), got \(4, 1\)",
     (BYTES, SCALES, "uint4", 32, octets(4, 1))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "arguments"), REFUSALS)
def test_weights_that_are_refused(kind, message, arguments):
    with pytest.raises(kind, match=f"^{message}$"):
        QuantizedWeight(*arguments)


W = ones(4, 40)
UNQUANTISED = [
    (ArgumentError, "w: expected a torch tensor or a numpy array, got list", ([1],)),
    (UnsupportedError, "dtype: expected 'int4', .*, got 'int2'", (W, "int2")),
    (ArgumentError, "group: expected a power of two from 16 on, or None, got 'all'", (W, "int4", "all")),
    (UnsupportedError, "w: expected dtype float32, float16, bfloat16 or float64, got int64", (W.astype(int),)),
    (ArgumentError, r"w: expected at least 2 axes \[\.\.\., N, K\], got shape \(40,\)", (W[0],)),
    (ArgumentError, r"w: expected an even K, two numbers of 'fp4' to a byte, got shape \(4, 39\)", (W[:, 1:], "fp4")),
    (ArgumentError, "w: expected finite numbers of FP32, got NaN or infinities", (W * np.float32(np.nan),)),
    (ArgumentError, "w: expected finite numbers .*", (W.astype(float) * 1e39,)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("kind", "message", "arguments"), UNQUANTISED)
def test_matrices_that_are_refused(kind, message, arguments):
    with pytest.raises(kind, match=f"^{message}$"):
        quantize_weight(*arguments)


def test_numbers_of_another_dtype():
    weight = quantize_weight(W)
    with pytest.raises(UnsupportedError, match=r"^dtype: expected float32, float16 or bfloat16, got int32"):
        weight.dequantize(np.int32)
    with pytest.raises(ArgumentError, match=r"^dtype: expected a dtype of numpy's, got 'fp16'"):
        weight.dequantize("fp16")


def test_weights_are_equal_to_themselves_alone():
    """In a list or a dict, as modules and tensors: comparing and hashing neither fails nor reads the values."""
    for make in (lambda x: QuantizedWeight(x, ones(2, 1), "int4"), Int4):
        first, second = (make(octets(2, 4)) for _ in "ab")
        assert first != second
        assert [first, second].index(second) == 1
        assert {first: 1, second: 2}[second] == 2
