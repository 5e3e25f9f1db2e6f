"""Odd arguments of the public functions: the exact result, or a refusal that names the argument."""

from __future__ import annotations

import numpy as np
import pytest

import laneloom
from laneloom.emulator.driver import EmulatedDriver
from laneloom.errors import ArgumentError, UnknownGpuError, UnsupportedError
from laneloom.ops import target

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def gpu():
    with laneloom.emulated("gfx1151") as emulation:
        yield emulation


def halves(*shape: int) -> np.ndarray:
    """Small whole numbers, whose sums and products are exact."""
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float16)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(float) @ b.astype(float)


@pytest.mark.parametrize("call", [laneloom.matmul, laneloom.gemm])
def test_out_dtype_in_another_byte_order_is_the_machines(call):
    a, b = halves(5, 6), halves(6, 7)
    with laneloom.emulated("gfx1151", sums="exact"):
        got = call(a, b, out_dtype=">f4")
    assert got.dtype == np.dtype("=f4")
    assert np.array_equal(got, product(a, b))


@pytest.mark.parametrize("call", [laneloom.matmul, laneloom.gemm])
@pytest.mark.parametrize("dtype", ["fp17", torch.float16, 3])
def test_no_dtype_of_numpys(call, dtype):
    with pytest.raises(ArgumentError, match="out_dtype: expected a dtype of numpy's"):
        call(halves(2, 2), halves(2, 2), out_dtype=dtype)
    with pytest.raises(ArgumentError, match="acc_dtype: "):
        call(halves(2, 2), halves(2, 2), acc_dtype="fp17")


def test_an_addend_in_another_byte_order():
    a, b, c, addend = halves(4, 3), halves(3, 5), halves(5, 6), halves(4, 6).astype(">f4")
    expected = product(product(a, b), c) + addend
    assert np.array_equal(laneloom.gemm_chain(a, b, c, addend, beta1=1.0), expected)


def test_integers_that_no_float_holds_are_refused():
    x, huge, q = halves(2, 2), 10**400, np.ones((1, 1, 2, 16), np.float16)
    cache, lengths = np.ones((1, 2, 1, 16), np.float16), np.array([2], np.int32)
    coarse = torch.ones(1, 1, 2, 16).to(torch.float8_e4m3fn)
    calls = {
        "alpha": lambda: laneloom.gemm(x, x, alpha=huge), "beta": lambda: laneloom.gemm(x, x, x, beta=-huge),
        "scale_a": lambda: laneloom.gemm(x, x, scale_a=huge), "scale_b": lambda: laneloom.gemm(x, x, scale_b=huge),
        "alpha0": lambda: laneloom.gemm_chain(x, x, x, alpha0=huge),
        "beta1": lambda: laneloom.gemm_chain(x, x, x, x, beta1=10**5000),
        "scale": lambda: laneloom.flash_attention(q, q, q, scale=huge),
        "scale_q": lambda: laneloom.flash_attention(coarse, coarse, coarse, scale_q=huge),
    }  # fmt: skip
    for name, call in calls.items():
        with pytest.raises(ArgumentError, match=f"^{name}: expected a number that a float holds, got an integer of"):
            call()
    with pytest.raises(ArgumentError, match=r"^scale: expected a number that a float holds"):
        laneloom.attention_decode(cache, cache, cache, cache_lengths=lengths, scale=huge)


def test_masks_are_refused():
    x = np.ma.masked_array(halves(1, 2, 8, 16), halves(1, 2, 8, 16) > 0)
    plain, lengths = halves(1, 2, 8, 16), np.array([2], np.int32)
    calls = (
        lambda: laneloom.matmul(plain, x.swapaxes(2, 3)), lambda: laneloom.gemm(plain, plain.swapaxes(2, 3), x),
        lambda: laneloom.transpose(x), lambda: laneloom.flash_attention(plain, x, plain),
        lambda: laneloom.gemm_chain(plain, plain.swapaxes(2, 3), x),
        lambda: laneloom.attention_decode(x, plain, plain, cache_lengths=lengths),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(UnsupportedError, match=": expected an array without a mask, got a MaskedArray"):
            call()


def test_arrays_are_for_the_emulator_alone(monkeypatch):
    class RealDriver:
        get_current_target = EmulatedDriver.get_current_target
        emulation = target.driver.active.emulation

    monkeypatch.setattr(target.driver, "_active", RealDriver())  # of a GPU that laneloom emulates as well
    with pytest.raises(UnsupportedError, match="a: expected a torch tensor on gfx1151, got a numpy array"):
        laneloom.matmul(halves(2, 2), halves(2, 2))


def test_configs_that_are_none():
    a, t, x = torch.ones(2, 2).half(), torch.eye(2), torch.ones(1, 2, 2, 2)
    calls = (
        lambda c: laneloom.matmul(a, a, config=c), lambda c: laneloom.gemm(a, a, config=c),
        lambda c: laneloom.transpose(a, config=c), lambda c: laneloom.gemm_chain(a, a, a, config=c),
        lambda c: laneloom.transform3d(x, t, config=c),
    )  # fmt: skip
    for call in calls:
        for wrong in (3, []):
            with pytest.raises(ArgumentError, match=r"^config: expected a config"):
                call(wrong)
    assert torch.equal(laneloom.transform3d(x, t, config="chained:group=256,num_warps=4"), x)
    with pytest.raises(ArgumentError, match="config: unknown schedule 'matmul'"):
        laneloom.transform3d(x, t, config="matmul")


@pytest.mark.parametrize("call", [laneloom.matmul, laneloom.gemm])
def test_words_of_another_type(call):
    a = torch.ones(2, 2)
    for wrong in (3, ["tf32"], True):
        with pytest.raises(ArgumentError, match="precision: expected None, 'ieee'"):
            call(a, a, precision=wrong)
    for wrong in (3, float, np.float32):
        with pytest.raises(ArgumentError, match="acc_dtype: expected a torch dtype"):
            call(a, a, acc_dtype=wrong)


def test_transforms_into_shared_elements_and_flags_that_are_none():
    x, t = torch.ones(2, 2, 2, 2), torch.eye(2)
    with pytest.raises(ArgumentError, match="out: expected strides under which no elements overlap"):
        laneloom.transform3d(x, t, out=x[:1].expand(2, 2, 2, 2))
    with pytest.raises(ArgumentError, match="transpose: expected True or False, got 'yes'"):
        laneloom.transform3d(x, t, transpose="yes")


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("length", [-1, 17])
def test_lengths_outside_the_cache(kind, length):
    q, cache = kind(halves(2, 1, 1, 16)), kind(halves(2, 16, 1, 16))
    lengths = kind(np.array([16, length], np.int32))
    with pytest.raises(ArgumentError, match="cache_lengths: expected 0 to 16, the keys of a sequence"):
        laneloom.attention_decode(q, cache, cache, cache_lengths=lengths)


@pytest.mark.parametrize("ends", [[0, 5], [0, 3, 2, 4], [-1, 4], [1, 4], [0, 3]])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_ends_outside_the_rows(kind, ends):
    q, first = kind(halves(4, 1, 16)), kind(np.array(ends, np.int32))
    with pytest.raises(ArgumentError, match=r"cu_seqlens_q: expected numbers from 0 to 4, the rows, that never fall"):
        laneloom.flash_attention(q, q, q, cu_seqlens_q=first)


def test_scores_as_large_as_they_may_be():
    """FP32 keeps multiples of 16 of them in base 2, so that a weight may be 2**8, which the sums divide out."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 64, 16).half() for _ in range(3))
    scores = q.double() @ k.double().mT
    scale = float(2**27 / scores.abs().max())
    truth = torch.softmax(scale * scores, -1) @ v.double()
    assert (laneloom.flash_attention(q, k, v, scale=scale) - truth).abs().max() <= 2**-10 * v.abs().max()


def test_a_length_that_no_sequence_has():
    q = torch.ones(4, 1, 16).half()
    ends = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(ArgumentError, match="max_seqlen_q: expected the longest"):
        laneloom.flash_attention(q, q, q, cu_seqlens_q=ends, max_seqlen_q=1 << 31)


def test_numpys_numbers_are_numbers():
    x, q = halves(3, 3), torch.from_numpy(halves(1, 2, 5, 16))
    assert np.array_equal(laneloom.gemm_chain(x, x, x, x, alpha1=np.float32(2), beta1=np.int64(1)), 2 * x @ x @ x + x)
    limits = (np.int64(1), np.int32(0))
    same = {limits: (1, 0), (2**70, None): None}
    for window, meant in same.items():
        got, expected = (laneloom.flash_attention(q, q, q, window=w) for w in (window, meant))
        assert torch.equal(got, expected)
    rows, ends = q[0].transpose(0, 1), torch.tensor([0, 2, 5], dtype=torch.int32)
    laneloom.flash_attention(rows, rows, rows, cu_seqlens_q=ends, max_seqlen_q=np.int32(3))
    for wrong in (True, np.float32(1), "1"):
        with pytest.raises(ArgumentError, match="window: "):
            laneloom.flash_attention(q, q, q, window=(wrong, 0))


@pytest.mark.filterwarnings("ignore:.*(CSR|nested)")
def test_tensors_without_strides():
    x = torch.ones(4, 4).half()
    for wrong in (x.to_sparse(), x.to_sparse_csr(), torch.nested.nested_tensor([x])):
        calls = {
            "a": lambda wrong: laneloom.matmul(wrong, x), "c": lambda wrong: laneloom.gemm(x, x, wrong, beta=1.0),
            "out": lambda wrong: laneloom.gemm(x, x, out=wrong), "x": lambda wrong: laneloom.transpose(wrong),
            "q": lambda wrong: laneloom.flash_attention(wrong, x, x),
        }  # fmt: skip
        for name, call in calls.items():
            with pytest.raises(UnsupportedError, match=f"^{name}: expected a strided tensor"):
                call(wrong)


@pytest.mark.filterwarnings("ignore:.*(CSR|nested)")
def test_nested_tensors_in_every_place():
    """torch itself stops with an internal error where one is asked for its shape."""
    x, q, ends = torch.ones(4, 4).half(), torch.ones(4, 1, 16).half(), torch.tensor([0, 4], dtype=torch.int32)
    weight = laneloom.quantize_weight(torch.ones(4, 32), "int8", group=None)
    for wrong in (torch.nested.nested_tensor([x]), torch.nested.nested_tensor([ends])):
        refused = {
            "out": (
                lambda wrong: laneloom.matmul(x, x, out=wrong),
                lambda wrong: laneloom.grouped_matmul(x, x[None], ends[1:], out=wrong),
                lambda wrong: laneloom.transform3d(torch.ones(1, 2, 2, 2), torch.ones(2, 2), out=wrong),
            ),
            "q": (lambda wrong: laneloom.flash_attention(wrong, q, q, cu_seqlens_q=ends),),
            "v": (lambda wrong: laneloom.flash_attention(q, q, wrong, cu_seqlens_q=ends),),
            "cu_seqlens_q": (lambda wrong: laneloom.flash_attention(q, q, q, cu_seqlens_q=wrong),),
        }  # fmt: skip
        for name, calls in refused.items():
            for call in calls:
                with pytest.raises((ArgumentError, UnsupportedError), match=rf"^{name}: expected .* nested"):
                    call(wrong)
    with pytest.raises(UnsupportedError, match=r"^scales: expected a strided tensor, got a nested one"):
        laneloom.QuantizedWeight(weight.values, torch.nested.nested_tensor([weight.scales]), "int8")
    with pytest.raises(ArgumentError, match=r"^cu_seqlens_q: .*sparse_csr"):
        laneloom.flash_attention(q, q, q, cu_seqlens_q=torch.ones(2, 2).to_sparse_csr())


def test_results_that_show_other_bits():
    x = torch.ones(2, 3, dtype=torch.complex64)
    with pytest.raises(ArgumentError, match=r"^out: expected a tensor that shows the bits it holds, got a conjugated"):
        laneloom.transpose(x, out=x.clone().mH)
    with pytest.raises(ArgumentError, match=r"^out: .* negated"):
        laneloom.matmul(torch.ones(2, 2), torch.ones(2, 2), out=torch._neg_view(torch.ones(2, 2)))


def test_operands_that_explain_knows_nothing_of():
    x = halves(4, 4)
    for a, b, name in ((x, None, "b"), ([1], x, "a"), (x, torch.from_numpy(x), "b"), (torch.from_numpy(x), x, "b")):
        with pytest.raises(ArgumentError, match=f"^{name}: expected a .*(array|tensor)"):
            laneloom.explain(a, b)
    tensor = torch.from_numpy(x)
    with pytest.raises(UnsupportedError, match="a: expected a strided tensor"):
        laneloom.explain(tensor.to_sparse(), tensor)


def test_axes_are_counted_where_nothing_has_data():
    cache, lengths = torch.empty(1, 16, 1, 16, device="meta"), torch.empty(1, device="meta", dtype=torch.int32)
    with pytest.raises(ArgumentError, match="q: expected 4 axes, got shape"):
        laneloom.attention_decode(cache[0], cache, cache, cache_lengths=lengths)


def test_dtypes_of_terms_are_named():
    x = halves(2, 2)
    for term in (x.astype(bool), x.astype(np.int64), x.astype(np.int8)):
        for kind in (np.asarray, torch.from_numpy):
            with pytest.raises(UnsupportedError, match=r"c: expected dtype fp32, fp16 or bf16, got (bool|int64|int8)"):
                laneloom.gemm(kind(x), kind(x), kind(term), beta=1.0)


def test_a_tensor_in_place_of_a_word_or_a_number_is_named_in_one_sentence():
    x, q = torch.ones(4, 8).half(), torch.ones(1, 1, 4, 16).half()
    lengths = torch.ones(1, dtype=torch.int32)
    calls = {
        "scale": lambda wrong: laneloom.flash_attention(q, q, q, scale=wrong),
        "softcap": lambda wrong: laneloom.flash_attention(q, q, q, softcap=wrong),
        "causal": lambda wrong: laneloom.flash_attention(q, q, q, causal=wrong),
        "return_lse": lambda wrong: laneloom.attention_decode(q, q, q, cache_lengths=lengths, return_lse=wrong),
        "alpha": lambda wrong: laneloom.gemm(x, x.mT, alpha=wrong),
        "activation": lambda wrong: laneloom.gemm(x, x.mT, activation=wrong),
        "precision": lambda wrong: laneloom.matmul(x, x.mT, precision=wrong),
        "out_dtype": lambda wrong: laneloom.matmul(x, x.mT, out_dtype=wrong),
    }
    with laneloom.emulated("gfx1151"):
        for name, call in calls.items():
            for wrong in (torch.ones(3, 4), np.ones((3, 4), np.float32)):
                kind = f"{type(wrong).__name__} of {wrong.dtype} with 2 axes"
                with pytest.raises(ArgumentError, match=rf"^{name}: expected [^\n]*, got {kind}$"):
                    call(wrong)


@pytest.mark.parametrize("call", ["transpose", "gemm_chain", "transform3d"])
def test_a_tensor_in_place_of_a_config_is_named_in_one_sentence(call):
    x = torch.ones(2, 2, 2, 2)
    operands = {"transpose": (x,), "gemm_chain": (x[0, 0],) * 3, "transform3d": (x, x[0, 0])}[call]
    with pytest.raises(ArgumentError, match=r"^config: expected a config or its text, got Tensor of \S+ with 2 axes$"):
        getattr(laneloom, call)(*operands, config=torch.ones(3, 3))


def test_what_prints_in_lines_is_named_in_one():
    class Odd:
        def __repr__(self) -> str:
            return "two\n  lines"

    with pytest.raises(ArgumentError, match=r"^alpha: expected a real number, got two lines$"):
        laneloom.gemm(halves(2, 2), halves(2, 2), alpha=Odd())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", [np.ones(2), np.ones((2, 2), "f4,f4"), torch.ones(2), torch.ones(())])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_an_array_is_no_dtype(kind, wrong):
    x = kind(halves(2, 2))
    for name in ("out_dtype", "acc_dtype"):
        for call in (laneloom.matmul, laneloom.gemm, laneloom.explain):
            with pytest.raises(ArgumentError, match=f"^{name}: expected a "):
                call(x, x, **{name: wrong})
    coarse = torch.ones(1, 1, 2, 16).to(torch.float8_e4m3fn)
    with pytest.raises(ArgumentError, match=r"^out_dtype: expected torch\.bfloat16 or torch\.float16, got "):
        laneloom.flash_attention(coarse, coarse, coarse, out_dtype=wrong)


def test_pairs_of_4_bits_from_what_is_none():
    x = torch.ones(4, 4, dtype=torch.int8)
    wrong = {"axis": (1.0, "1", None, torch.ones(2), torch.int8), "signed": (1, None, x, np.ones(0))}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ArgumentError, match=f"^{name}: expected "):
                laneloom.Int4.pack(x, **({"axis": -1} | {name: value}))
    for value in (3, laneloom.Int4(x)):
        with pytest.raises(ArgumentError, match=r"^values: expected a tensor or an array of integers"):
            laneloom.Int4.pack(value, axis=-1)
    with pytest.raises(ArgumentError, match=r"^signed: expected True or False, got 'no'"):
        laneloom.Int4(x, "no")  # pyright: ignore[reportArgumentType]


def test_ends_of_sequences_of_another_kind():
    q, ends = torch.ones(4, 1, 16).half(), np.array([0, 4], np.int32)
    for wrong, kind in ((ends, "a ndarray of int32"), ([0, 4], "a list"), (np.int32, "a type")):
        with pytest.raises(ArgumentError, match=f"^cu_seqlens_q: expected a contiguous int32 vector .*, got {kind}"):
            laneloom.flash_attention(q, q, q, cu_seqlens_q=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match=r"^v: expected a torch tensor as the others are, got type$"):
        laneloom.flash_attention(q, q, np.float16, cu_seqlens_q=torch.from_numpy(ends))  # pyright: ignore


def test_a_result_of_groups_that_is_no_tensor():
    a, ends = torch.ones(8, 16).half(), torch.tensor([8], dtype=torch.int32)
    with pytest.raises(ArgumentError, match=r"^out: expected a torch tensor, got list$"):
        laneloom.grouped_matmul(a, a.mT[None], ends, out=[])  # pyright: ignore[reportArgumentType]


def test_numbers_beyond_a_float_are_infinite_as_on_a_gpu():
    x = torch.ones(2, 2)
    assert torch.equal(laneloom.gemm(x, x, alpha=1e308), torch.full((2, 2), torch.inf))
    assert laneloom.gemm(x.double(), x.double(), alpha=1e300)[0, 0] == 2e300


@pytest.mark.filterwarnings("ignore:.*quant")
def test_a_quantized_tensor_is_not_moved():
    with pytest.raises(UnsupportedError, match=r"^x: expected a strided tensor, got a quantized one$"):
        laneloom.transpose(torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8))


def test_what_names_no_gpu():
    for wrong in (0, None, torch.ones(2, 2)):
        with pytest.raises(UnknownGpuError, match=r"^gpu: expected a name such as 'gfx1151', got "):
            laneloom.emulated(wrong).__enter__()  # pyright: ignore[reportArgumentType]


def test_scales_that_fp32_cannot_hold():
    q, lengths = torch.ones(1, 1, 2, 16).half(), torch.tensor([2], dtype=torch.int32)
    for wrong in (1e31, -1e300, float("nan"), float("inf"), True):
        with pytest.raises(ArgumentError, match=r"^scale: expected a number from -1e\+30 to 1e\+30, or None, got "):
            laneloom.flash_attention(q, q, q, scale=wrong)
        with pytest.raises(ArgumentError, match=r"^scale: "):
            laneloom.attention_decode(q, q, q, cache_lengths=lengths, scale=wrong)
    assert torch.equal(laneloom.flash_attention(q, q, q, scale=-1e30), q)
    coarse = q.to(torch.float8_e4m3fn)
    assert torch.equal(laneloom.flash_attention(coarse, coarse, coarse, scale_q=np.float32(2)), q.bfloat16())
    for wrong in (0, -1.0, float("inf"), 1e31):
        with pytest.raises(ArgumentError, match=r"^scale_q: expected a number above 0, up to "):
            laneloom.flash_attention(coarse, coarse, coarse, scale_q=wrong)
    with pytest.raises(ArgumentError, match=r"^scale: expected scale x scale_q x scale_k up to "):
        laneloom.flash_attention(coarse, coarse, coarse, scale_q=1e20, scale_k=1e20)


def test_results_without_elements_overlap_nowhere():
    """numpy gives arrays without elements strides of 0."""
    x, out = halves(3, 0, 4), np.empty((3, 0, 5), np.float16)
    assert laneloom.matmul(x, halves(4, 5), out=out) is out
    assert laneloom.gemm(x, halves(4, 5), out=out) is out
    assert laneloom.gemm_chain(x, halves(4, 4), halves(4, 5), out=out) is out
    assert laneloom.transpose(halves(3, 5, 0), out=out) is out
    cubes = np.empty((3, 0, 2, 2, 2))
    assert laneloom.transform3d(np.ones_like(cubes), np.eye(2), out=cubes) is cubes


def test_strides_of_single_elements_mean_nothing():
    x, t, out = np.full((2, 1, 1, 1), 3.0), np.full((1, 1), 2.0), np.empty((2, 1, 1, 1))
    assert (laneloom.transform3d(x[:, ::-1, :, ::-1], t[::-1], out=out[..., ::-1]) == 24).all()
    assert (out == 24).all()


def test_gradients_of_decoding_are_refused_in_our_words():
    q, lengths = torch.ones(1, 1, 2, 16).half().requires_grad_(), torch.tensor([2], dtype=torch.int32)
    cache = torch.ones(1, 16, 1, 16).half()
    for _ in range(2):  # the second call is one that was met before
        out = laneloom.attention_decode(q, cache, cache, cache_lengths=lengths)
        with pytest.raises(UnsupportedError, match=r"^attention_decode has no gradients: use flash_attention"):
            out.sum().backward()
