"""Rows in groups on emulated GPUs: where groups end only the kernel knows. Strict mode, every group against FP64."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from random_groups import DTYPES, check_groups  # noqa: E402
from sampled import EVERYTHING, rarely, sampled  # noqa: E402

import laneloom  # noqa: E402
from laneloom.codegen.versions import parse_version, triton_version  # noqa: E402
from laneloom.errors import ArgumentError, UnsupportedError  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.matmul import grouped  # noqa: E402
from laneloom.ops.matmul.config_dot import DotConfig  # noqa: E402
from laneloom.ops.matmul.config_mfma import MfmaConfig  # noqa: E402
from laneloom.ops.matmul.config_wmma import WideConfig, WmmaConfig  # noqa: E402
from laneloom.ops.matmul.tile_orders import ORDERS  # noqa: E402
from laneloom.verify import UNIT_ROUNDOFF  # noqa: E402

pytestmark = pytest.mark.usefixtures("poisoned_allocations")

KNOWN = parse_version(triton_version()) >= (3, 9)
CDNA_5 = pytest.param("gfx1250", marks=pytest.mark.skipif(not KNOWN, reason="Triton compiles for it from 3.9 on"))
GPUS = ("gfx1151", *rarely("gfx1100"), "gfx1201", "gfx942", "gfx90a", CDNA_5)
KERNELS = {"wmma": "wmma_matmul", "mfma": "mfma_matmul", "wmma3": "matmul_dot"}
NAN = float("nan")


def compiled(pairs):
    """A GPU and a pair each of what this Triton compiles for."""
    return [(gpu, pair) for gpu in pairs if KNOWN or gpu != "gfx1250" for pair in pairs[gpu]]


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.randint(-128 if dtype.is_signed else 0, 128, shape, dtype=dtype)
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def multiply(gpu, a, b, ends, out, **options):
    """`grouped_matmul` into out, which holds NaN; its one launch."""
    with laneloom.emulated(gpu, strict=True) as emulation:
        assert laneloom.grouped_matmul(a, b, torch.tensor(ends, dtype=torch.int32), out=out, **options) is out
    (record,) = emulation.launches
    assert record.kernel == KERNELS[get_gpu(gpu).matrix_instructions]
    check_groups(out, a, b, ends, NAN, flushes=gpu == "gfx90a")
    return record


#: rows of each group, rows of A more than these, N, K
CASES = {
    "ragged": ((37, 0, 90, 3), 5, 100, 72), "the first is empty": ((0, 0, 65), 0, 33, 40), "one": ((70,), 20, 64, 64),
    "whole tiles": ((128, 64), 0, 128, 128), "more than a wave": ((1, 0, 2) * 30, 1, 20, 24),
    "more than rows": ((0, 1, 0, 0, 1, 0, 0, 0, 1), 0, 17, 19), "a column": ((20, 21), 0, 40, 1),
    "past M": ((30, 30, 30), -40, 40, 65), "none": ((0, 0, 0), 33, 40, 24), "an element": ((1,), 0, 1, 1),
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("gpu", GPUS)
def test_groups(gpu, case):
    rows, more, n, k = CASES[case]
    ends = list(accumulate(rows))
    m = ends[-1] + more
    multiply(gpu, draw(m, k), draw(len(rows), k, n), ends, torch.full((m, n), NAN).bfloat16())


@pytest.mark.covering
@pytest.mark.parametrize("layout", ["nt", "tn", "tt", "xx"])
@pytest.mark.parametrize("gpu", GPUS)
def test_strides(gpu, layout):
    """Operands contiguous along either axis or neither, aligned or off by an element, and a result that is a part of
    another. A's columns allow loads of 16 bytes, groups do not: they begin anywhere."""
    m, n, k, groups, ends = 80, 50, 36, 3, [33, 34, 75]
    if layout == "xx":
        a, b = draw(m, 2 * k + 1)[:, 1::2], draw(groups, k, 3 * n)[..., ::3]
    else:
        a = draw(m, k + 3)[:, 1:-2] if layout[0] == "n" else draw(k, m).mT
        b = draw(2 * groups, n, k)[::2].mT if layout[1] == "t" else draw(groups, k, n)
    wide = torch.full((m + 2, n + 3), NAN).float()
    multiply(gpu, a, b, ends, wide[1:-1, 2:-1])
    wide[1:-1, 2:-1] = NAN
    assert wide.isnan().all(), "written beside out"


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942", CDNA_5])
def test_a_result_along_its_columns(gpu):
    multiply(gpu, draw(40, 24), draw(2, 24, 30), [11, 37], torch.full((30, 40), NAN).bfloat16().mT)


PAIRS = {  # some that scales have too, or K in groups, rarely
    "gfx1151": (*rarely("fp16 fp16", "fp8 bf8"), "int8 uint8"),
    "gfx1201": (*rarely("fp16 fp16", "int8 int8"), "bf8 fp8"),
    "gfx942": (*rarely("fp16 fp16", "fp32 fp32", "fp8 fp8"), "int8 int8", "fp64 fp64"),
    "gfx90a": ("fp16 fp16", *rarely("bf8 bf8")), "gfx908": ("bf16 bf16",), "gfx950": rarely("fp8 fp8"),
    "gfx1250": ("fp16 fp16", *rarely("fp8 bf8", "int8 int8"), "fp64 fp64"),
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "dtypes"), compiled(PAIRS))
def test_dtypes(gpu, dtypes):
    first, second = (DTYPES[name] for name in dtypes.split())
    a, b, ends = draw(60, 40, dtype=first), draw(2, 40, 50, dtype=second), torch.tensor([25, 60], dtype=torch.int32)
    with laneloom.emulated(gpu, strict=True):
        out = laneloom.grouped_matmul(a, b, ends)
    eights = {torch.int8: torch.int32, torch.uint8: torch.int32}
    assert out.dtype == (first if first.itemsize > 1 else eights.get(first, torch.float32))
    check_groups(out, a, b, [25, 60], NAN, flushes=gpu == "gfx90a")


SCALED = {
    "gfx1151": ("bf16 bf16 bf16", "fp8 bf8 bf16", "int8 int8 fp32"), "gfx1201": ("fp8 fp8 fp16",),
    "gfx942": ("fp16 fp16 fp16", "fp8 fp8 bf16", "fp32 fp32 fp32"), "gfx908": rarely("int8 int8 bf16"),
    "gfx1250": ("fp8 bf8 bf16", "int8 int8 fp32", *rarely("fp64 fp64 fp64")),
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "dtypes"), compiled(SCALED))
def test_scales_of_rows_and_columns(gpu, dtypes):
    """C[m, n] is multiplied by scale_a[m] scale_b[g, n], of any strides, before the one rounding."""
    first, second, stored = (DTYPES[name] for name in dtypes.split())
    m, n, k, ends = 75, 50, 40, [25, 25, 60]
    a, b = draw(m, k, dtype=first), draw(3, k, n, dtype=second)
    scale_a, scale_b = torch.rand(2 * m)[::2] + 0.5, torch.rand(n, 3).t() + 0.5
    with laneloom.emulated(gpu, strict=True) as emulation:
        of_ends = torch.tensor(ends, dtype=torch.int32)
        out = torch.full((m, n), NAN).to(stored)
        laneloom.grouped_matmul(a, b, of_ends, scale_a=scale_a, scale_b=scale_b, out=out)
        again = laneloom.grouped_matmul(a, b, of_ends, scale_a=scale_a, scale_b=scale_b, out_dtype=stored)
    assert len(emulation.launches) == 2
    assert out[60:].isnan().all(), "rows behind the last group"
    assert torch.equal(again[:60], out[:60])
    for group, (begin, end) in enumerate(pairwise((0, *ends))):
        x = a[begin:end].double() * scale_a[begin:end, None].double()
        y = b[group].double() * scale_b[group].double()
        roundings = (k + 4) * 2.0**-24 * (x.abs() @ y.abs()) + UNIT_ROUNDOFF[dtypes.split()[2]] * (x @ y).abs()
        assert ((out[begin:end].double() - x @ y).abs() <= roundings).all()
    if first != torch.float16 and not EVERYTHING:
        return  # arrays of another dtype have no kernel here that these could share
    arrays = [x.numpy() for x in (a.float().half(), b.float().half(), of_ends, scale_a, scale_b)]
    with laneloom.emulated(gpu):
        halves = laneloom.grouped_matmul(*arrays[:3], scale_a=arrays[3], scale_b=arrays[4])
        same = laneloom.grouped_matmul(
            *(torch.from_numpy(x) for x in arrays[:3]), scale_a=scale_a, scale_b=scale_b)  # fmt: skip
    assert np.array_equal(halves[:60], same[:60].numpy())


TILES = {
    "gfx1151": WmmaConfig(block_m=32, block_n=32, block_k=32, num_warps=1, waves_n=1, group_m=2),
    "gfx942": MfmaConfig(block_m=32, block_n=32, block_k=64, num_warps=2, group_m=2),
}


@pytest.mark.covering
@pytest.mark.parametrize("gpu", TILES)
@pytest.mark.parametrize("order", sampled(ORDERS))
def test_tile_orders(order, gpu):
    """Each group's tiles in any order, of more tiles along both axes than one."""
    a, b, config = draw(150, 24), draw(3, 24, 100), replace(TILES[gpu], order=order)
    for ends in ([70, 71, 140], [0, 0, 33]):  # as many tiles as there can be, and few of them
        multiply(gpu, a, b, ends, torch.full((150, 100), NAN).bfloat16(), config=config)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942"])
def test_more_programs_than_one_launch_has(gpu, monkeypatch):
    monkeypatch.setattr("laneloom.ops.matmul.launch_wmma.MOST_PROGRAMS", 3)
    a, b, ends, out = draw(90, 24), draw(4, 24, 70), [33, 34, 34, 90], torch.full((90, 70), NAN).bfloat16()
    with laneloom.emulated(gpu, strict=True) as emulation:
        laneloom.grouped_matmul(a, b, torch.tensor(ends, dtype=torch.int32), out=out)
    assert len(emulation.launches) > 2
    check_groups(out, a, b, ends, NAN)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942", CDNA_5])
def test_ends_that_are_no_ends(gpu, monkeypatch):
    """Ends that decrease, are negative or far past M: what is written lies in out, and its reads in A and B."""
    monkeypatch.setattr(grouped, "check_ends_rise", lambda ends: None)  # as on a GPU, whose are not looked at
    a, b, buffer = draw(150, 40), draw(5, 40, 50), torch.full((152, 50), NAN).bfloat16()
    for ends in ([50, -7, 2**31 - 1, 10, 60], [-(2**31), 3, -1, 3, 2**31 - 1]):
        with laneloom.emulated(gpu):  # in strict mode such groups, which share rows, are a race of workgroups
            laneloom.grouped_matmul(a, b, torch.tensor(ends, dtype=torch.int32), out=buffer[1:-1])
    assert buffer[[0, -1]].isnan().all()


def test_a_row_does_not_depend_on_other_groups():
    a, b = draw(90, 40), draw(2, 40, 50)
    with laneloom.emulated("gfx1151"):
        first, second = (laneloom.grouped_matmul(a, b, torch.tensor(ends, dtype=torch.int32))
                         for ends in ([10, 90], [45, 90]))  # fmt: skip
    assert torch.equal(first[:10], second[:10])
    assert torch.equal(first[45:], second[45:])
    assert not torch.equal(first[10:45], second[10:45])


def test_nothing():
    none = torch.zeros(0, dtype=torch.int32)
    with laneloom.emulated("gfx1151") as emulation:
        assert laneloom.grouped_matmul(draw(0, 8), draw(2, 8, 5), torch.zeros(2, dtype=torch.int32)).shape == (0, 5)
        assert laneloom.grouped_matmul(draw(4, 8), draw(2, 8, 0), torch.tensor([1, 4]).int()).shape == (4, 0)
        assert laneloom.grouped_matmul(draw(4, 8), draw(0, 8, 5), none).isnan().all()
    assert not emulation.launches


def test_arrays():
    """What tensors give; of a result that no kernel can walk over, rows of no group keep what is there."""
    a, b, ends = draw(40, 24, dtype=torch.float16), draw(2, 24, 30, dtype=torch.float16), torch.tensor([11, 37]).int()
    backwards = np.full((40, 30), NAN, np.float32)[::-1]
    with laneloom.emulated("gfx1151", strict=True):
        expected = laneloom.grouped_matmul(a, b, ends, out_dtype=torch.float32).numpy()
        arrays = a.numpy(), b.numpy(), ends.numpy()
        got = laneloom.grouped_matmul(*arrays, out_dtype=np.float32)
        assert laneloom.grouped_matmul(a.numpy()[::-1].copy()[::-1], *arrays[1:], out=backwards) is backwards
    assert got.dtype == np.float32
    for array in (got, backwards):
        np.testing.assert_array_equal(array[:37], expected[:37])
    assert np.isnan(backwards[37:]).all()


HALVES = {"a": draw(8, 16), "b": draw(2, 16, 8), "ends": torch.tensor([3, 8]).int()}
FLOAT8 = {"a": draw(8, 16).to(torch.float8_e4m3fn), "b": draw(2, 16, 8).to(torch.float8_e4m3fn)}
SCALES = {"scale_a": torch.ones(8, 1), "scale_b": torch.ones(2, 1, 8)}
ROW_SCALES = {"scale_a": torch.ones(8), "scale_b": torch.ones(2, 8)}
WMMA = WmmaConfig(block_m=64, block_n=64, block_k=32)
REFUSED = {
    "scales": ("gfx1151", FLOAT8 | SCALES, UnsupportedError, "^scale_a: scales of blocks in grouped products run on H"),
    "scales of 64 bits": ("gfx942", {x: y.double() for x, y in ROW_SCALES.items()}, UnsupportedError,
                          "^scale_a: expected a number or dtype fp32"),
    "one scale": ("gfx942", {"scale_a": torch.ones(8)}, ArgumentError, r"^scale_b: expected \[2, 8\], as both .* none"),
    "scales of two kinds": ("gfx942", ROW_SCALES | {"scale_b": torch.ones(2, 1, 8)}, ArgumentError,
                            r"^scale_a: expected \[8, 1\]"),
    "scales of K in groups": ("gfx942", ROW_SCALES | {"b": draw(16, 8), "ends": torch.tensor([16]).int()},
                              UnsupportedError, "^scale_a: expected none, scales go with groups of rows"),
    "groups": ("gfx942", {"b": draw(1025, 16, 8), "ends": torch.zeros(1025).int()}, UnsupportedError, "at most 1024 g"),
    "fp32": ("gfx1151", {x: HALVES[x].float() for x in "ab"}, UnsupportedError, "^a: gfx1151 multiplies groups of 16-"),
    "parts of K": ("gfx1151", {"config": replace(WMMA, split_k=2)}, UnsupportedError, "^split_k: rows or K in groups"),
    "shares": ("gfx1151", {"config": replace(WMMA, stream_k=1)}, UnsupportedError, "^split_k: rows or K in groups are"),
    "other kernels": ("gfx1151", {"config": WideConfig(block_m=128, block_n=128, block_k=32)}, UnsupportedError,
                      "^wmma_wide: multiplies all rows of a product by one matrix"),
    "other GPUs": ("gfx942", {"config": DotConfig(block_m=64, block_n=64, block_k=64)}, UnsupportedError, "CDNA 5"),
    "no columns": ("gfx1151", {"a": draw(8, 0), "b": draw(2, 0, 8)}, ArgumentError, "at least one column"),
    "between addresses": (
        "gfx1151", {"a": torch.from_numpy(np.zeros(257, np.uint8)[1:].view(np.float16).reshape(8, 16)),
                    "b": draw(2, 16, 8, dtype=torch.float16)}, ArgumentError, "^a: expected elements at multiples"),
    "elsewhere": ("gfx1151", {"a": draw(8, 16).to("meta"), "config": WMMA}, ArgumentError, "^b: expected a tensor on"),
    "out_dtype": ("gfx1151", {"out_dtype": torch.float64}, UnsupportedError, "^out_dtype: expected fp32, fp16 or bf16"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    gpu, changes, error, words = REFUSED[case]
    with laneloom.emulated(gpu) as emulation, pytest.raises(error, match=words):
        laneloom.grouped_matmul(**HALVES | changes)
    assert not emulation.launches


ARRAYS = {name: x.half().numpy() if name != "ends" else x.numpy() for name, x in HALVES.items()}
REFUSED_ARRAYS = {
    "a tensor": ({"b": HALVES["b"]}, ArgumentError, "^b: expected a numpy array, as a is, got Tensor"),
    "64 bits": ({"ends": np.array([3, 8])}, ArgumentError, "^ends: expected 2 contiguous int32, got int64"),
    "scales": (SCALES, ArgumentError, "^scale_a: expected a numpy array, as a is, got Tensor"),
    "scales of blocks": ({x: y.numpy() for x, y in SCALES.items()}, UnsupportedError, "^scale_a: scales of blocks"),
    "scales of 64 bits": ({x: y.double().numpy() for x, y in ROW_SCALES.items()}, UnsupportedError,
                          "^scale_a: expected a number or dtype fp32"),
    "out": ({"out": ARRAYS["a"][:, :8]}, ArgumentError, "^out: expected memory of its own"),
    "another shape": ({"out": np.zeros((8, 9), np.float16)}, ArgumentError, r"^out: expected shape \(8, 8\)"),
    "another dtype": ({"out_dtype": np.int32}, UnsupportedError, "^out_dtype: expected fp32, fp16 or bf16"),
}


@pytest.mark.parametrize("case", REFUSED_ARRAYS)
def test_refused_arrays(case):
    changes, error, words = REFUSED_ARRAYS[case]
    with laneloom.emulated("gfx1151") as emulation, pytest.raises(error, match=words):
        laneloom.grouped_matmul(**ARRAYS | changes)
    assert not emulation.launches


def test_arrays_are_refused_without_an_emulated_gpu():
    with pytest.raises(UnsupportedError, match=r"no GPU|got a numpy array"):
        laneloom.grouped_matmul(**ARRAYS)


CONFIG = "wmma:block_m=16,block_n=16,block_k=16,num_warps=1,waves_n=1"


@pytest.mark.parametrize("config", [None, CONFIG])
def test_what_looks_at_operators_sees_calls_with_a_result_or_a_config(config):
    """Views that negate, what autograd kept, a tracer, a compiler, autocast: as of any operator."""
    a, b, ends = draw(9, 16, dtype=torch.float16), draw(2, 16, 8, dtype=torch.float16), torch.tensor([4, 9]).int()

    def into(a, b, ends):
        out = torch.zeros(9, 8, dtype=torch.float16)
        return laneloom.grouped_matmul(a, b, ends, out=out, config=config)

    with laneloom.emulated("gfx1151"):
        expected = laneloom.grouped_matmul(a, b, ends, config=config)
        assert torch.equal(into(torch._neg_view(a), torch._neg_view(b), ends), expected)
        with pytest.raises(ArgumentError, match=r"^out: .* negated"):
            laneloom.grouped_matmul(a, b, ends, out=torch._neg_view(expected), config=config)
        traced = torch.fx.experimental.proxy_tensor.make_fx(into)(a, b, ends)
        assert torch.equal(traced(-a, b, ends), -expected)
        compiled = torch.compile(into, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(a, b, ends), expected)
        with pytest.raises(UnsupportedError, match=r"inside torch\.vmap"):
            torch.vmap(lambda a: laneloom.grouped_matmul(a, b, ends, out=expected, config=config))(torch.stack([a, a]))
        with torch.autocast("cpu", torch.bfloat16):
            assert laneloom.grouped_matmul(a, b, ends, config=config).dtype == torch.bfloat16
        kept = torch.ones(9, 8, dtype=torch.float16, requires_grad=True) * 2
        loss = kept.square().sum()
        with torch.no_grad():
            laneloom.grouped_matmul(a, b, ends, out=kept, config=config)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_gradients_of_a_call_with_a_config():
    a, b, ends = draw(9, 16).requires_grad_(), draw(2, 16, 8).requires_grad_(), torch.tensor([4, 9]).int()
    with laneloom.emulated("gfx1151"):
        ours, theirs = (torch.autograd.grad(laneloom.grouped_matmul(a, b, ends, config=config).sum(), (a, b))
                        for config in (CONFIG, None))  # fmt: skip
    assert all(map(torch.equal, ours, theirs))
