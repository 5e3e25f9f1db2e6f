"""hopper_cluster.cu on a CPU model of Hopper's instructions: its own text and its own launch, every thread by itself.

wgmma and the copy engine's reads of what it stores come as late as their waits allow, but where a test says `early`.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from hopper_model import COMPILER
from sampled import sampled, without

torch = pytest.importorskip("torch")

from matmul_model import Model  # noqa: E402
from matmul_products import SUMMED, check, check_groups_of_k, check_groups_of_rows, compare, cut, product, run, small  # noqa: E402

from laneloom.device.pieces import PiecesLaunch  # noqa: E402
from laneloom.ops.matmul.problem import Epilogue, Matrix  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture
def model(folder, monkeypatch):
    for name, stand_in in SUMMED.items():
        monkeypatch.setattr(name, stand_in)
    return functools.partial(Model, folder, monkeypatch)


def own(**knobs):
    return small(**{"block_m": 128, "consumers": 2, "own_tiles": True} | knobs)


CASES = {
    "nn": (product(168, 72, 136, "nn"), small()),
    "nt": (product(104, 72, 136, "nt"), small()),
    "tn": (product(104, 72, 136, "tn"), small()),
    "tt": (product(104, 72, 136, "tt"), small()),
    "no edge on a multiple": (product(67, 40, 65, "nn"), small()),
    "smaller than a tile": (product(5, 8, 3, "nt"), small()),
    "panels of b, two consumers": (product(136, 168, 72, "tn"), small(block_m=128, block_n=80, consumers=2)),
    "staging of two panels": (product(70, 208, 72, "nn"), small(block_n=104, panels=2, programs=4)),
    "swapped": (product(72, 104, 136, "nn"), small(swapped=True)),
    "swapped, masked": (product(43, 83, 136, "tt", c_pitch=88), small(swapped=True, tma_store=False)),
    "swapped, uneven": (product(88, 128, 72, "nn"), small(block_n=48, swapped=True, tiles_n=2, programs=4)),
    "masked, rows that do not fill 16 bytes": (product(69, 45, 72, c_pitch=52), small(tma_store=False)),
    "rows of four panels, by twos": (product(40, 246, 72, c_pitch=250), small(block_n=248, panels=2, tma_store=False)),
    "rows of FP32, by twos": (product(69, 94, 72, out="fp32", c_pitch=98), small(block_n=72, tma_store=False)),
    "masked, in lines": (product(69, 40, 72, "tn", c_pitch=48), small(tma_store=False)),
    "hold_back": (product(200, 72, 328, "nt"), small(hold_back=3)),
    "hold_back over all slices": (product(200, 40, 72, "nt"), small(hold_back=3)),
    "split": (product(200, 72, 136, "nt"), small(block_m=128, split=True, programs=1)),
    "split, hold_back, masked": (
        product(180, 45, 200, "nn", c_pitch=48), small(block_m=128, split=True, hold_back=1, tma_store=False)),
    "split, hold_back, two consumers": (
        product(600, 40, 136), small(block_m=256, consumers=2, split=True, hold_back=1, programs=1)),
    "uneven, hold_back": (product(130, 176, 136), small(block_n=64, tiles_n=3, hold_back=1, programs=3)),
    "cluster of 2 x 1": (product(200, 72, 200, "nt"), small(cluster_m=2)),
    "cluster of 2 x 1, panels of b": (product(200, 72, 200, "tn"), small(cluster_m=2)),
    "cluster of 1 x 2": (product(100, 104, 200, "nn"), small(cluster_n=2)),
    "cluster of 1 x 2, panels of a, held back": (product(168, 72, 136, "tt"), small(cluster_n=2, hold_back=1)),
    "parts of k": (product(60, 24, 328, "nt"), small(cluster_k=4, programs=4)),
    "cluster of 2 x 2": (product(200, 104, 136, "nn"), small(cluster_m=2, cluster_n=2, programs=4)),
    "parts of k, swapped": (product(24, 72, 328, "nn"), small(cluster_k=2, swapped=True, programs=4)),
    "parts of k, b shared": (product(100, 24, 328, "nt"), small(cluster_m=2, cluster_k=2, programs=4)),
    "parts of k, a shared, swapped": (
        product(60, 64, 328, "nn"), small(cluster_n=2, cluster_k=2, swapped=True, programs=4)),
    "k cut twice": (product(60, 24, 328, "nt"), small(cluster_k=2, split_k=2, programs=4)),
    "parts of k for a second launch": (product(133, 45, 328, "tn"), small(split_k=3, programs=4, tma_store=False)),
    "parts of k, clusters, a batch": (product(70, 104, 200, "nn", batch=(1, 2)), small(cluster_n=2, split_k=4)),
    "parts of k, products one by one": (product(40, 40, 136, "nt", batch=(2, 2), shared="b"), small(split_k=2)),
    "parts of k, int8": (product(70, 40, 656, dtype="int8", out="int32"), small(block_k=128, split_k=5)),
    "classes of rows, fetched ahead": (product(104, 40, 136, "nn"), small(line=64, fetched=2)),
    "batch": (product(70, 40, 72, "nn", batch=(2, 2), shared="b"), small()),
    "batch, hold_back": (product(70, 40, 328, "nt", batch=(1, 3)), small(hold_back=3)),
    "batch, both copied": (product(70, 27, 53, "tn", batch=(2, 3)), small(copy_a=True, copy_b=True, tma_store=False)),
    "batch, a copied, b shared": (product(70, 40, 72, "tt", batch=(2, 2), shared="b"), small(copy_a=True)),
    "batch, b copied, fp8": (
        product(70, 40, 208, "nn", dtype="fp8", out="fp32", batch=(2, 2), shared="a"), small(block_k=128, copy_b=True)),
    "batch, b copied, parts of k": (
        product(70, 104, 200, "nn", batch=(1, 2)), small(cluster_n=2, split_k=4, copy_b=True)),
    "own tiles": (product(400, 72, 328, "nt"), own(programs=1)),
    "own tiles, one of them": (product(67, 24, 72, "nn"), own(programs=1)),
    "own tiles, uneven, masked": (product(300, 125, 136, "nt", c_pitch=128), own(tiles_n=4, tma_store=False)),
    "own tiles, swapped, a cluster of 2 x 1": (product(72, 600, 392, "nn"), own(swapped=True, cluster_m=2)),
    "own tiles, a cluster of 1 x 2, a batch": (product(140, 104, 72, "tt", batch=(1, 3)), own(cluster_n=2, stages=3)),
    "own tiles, classes of rows": (product(1040, 40, 136, "nn"), own(line=64, programs=3)),
    "own tiles, fp8": (product(400, 40, 656, dtype="fp8", out="fp32"), own(block_k=128, programs=1)),
    "fp8, promoted": (product(70, 40, 656, dtype="fp8", out="bf16"), small(block_k=128, promote=2)),
    "int8": (product(70, 40, 208, dtype="int8", out="int32"), small(block_k=128)),
}  # fmt: skip


USUAL = sampled(without(
    CASES, "nt", "tt", "swapped", "hold_back", "split", "cluster of 2 x 1", "cluster of 1 x 2", "parts of k", "int8"))


@pytest.mark.parametrize("name", USUAL)
def test_products(model, monkeypatch, name):
    """Copies of operands are torch's."""
    monkeypatch.setattr(PiecesLaunch, "__call__", lambda self, *sources: list(map(cut, self._copies, sources)))
    model()
    check(*CASES[name])


@pytest.mark.parametrize("name", ["nn", "split, hold_back, masked", "cluster of 2 x 1"])
def test_products_early(model, name):
    """What would come too early is seen where nothing waits for a wait."""
    model(late=False)
    check(*CASES[name])


@pytest.mark.parametrize(("name", "config", "a", "b"), [
    # 4 tiles down and 4 across, B's in two shares
    ("nt", small(cluster_m=2, programs=16, fetched=3), 3 * 4, 3 * 4 * 2),
    # A in two shares and panels of 64 rows, of four parts of K
    ("tn", small(cluster_n=2, cluster_k=2, programs=32, fetched=1), 2 * 4 * 2, 2 * 4),
    # 4 classes of rows, of which the second slice is the first
    ("nn", small(line=64, programs=64, fetched=2), 2 * 4, 2 * 4),
])  # fmt: skip
def test_what_is_asked_for_ahead(model, tmp_path, monkeypatch, name, config, a, b):
    """Every box of the first slices is asked for once, whoever reads it."""
    log = tmp_path / "boxes"
    monkeypatch.setenv("FETCHED_BOXES", str(log))
    model()
    check(product(200, 104, 328 if name != "nn" else 136, name), config)
    boxes = log.read_text().split("\n")[:-1]
    of_maps = [[box for box in boxes if box.startswith(one)] for one in {box.split()[0] for box in boxes}]
    assert sorted(map(len, of_maps)) == sorted((a, b))
    assert len(set(boxes)) == len(boxes)


def test_tf32(model):
    model()
    check(product(70, 40, 72, dtype="fp32", precision="tf32"), small(block_k=32), 2.0**-9)


@pytest.mark.parametrize(("precision", "pieces", "block_k"), [("3xtf32", 2, 32), ("3xbf16", 3, 64)])
def test_pieces(model, monkeypatch, precision, pieces, block_k):
    """Products of pieces that a launch ahead writes, here torch, each with the smallest ones first."""
    monkeypatch.setattr(PiecesLaunch, "__call__", lambda self, *sources: list(map(cut, self._copies, sources)))
    model()
    config = small(block_k=block_k, pieces=pieces, promote=1, copy_a=True, copy_b=True)
    check(product(70, 40, 136, "nn", dtype="fp32", precision=precision), config, 2.0**-20)
    check(product(70, 24, 72, "tn", batch=(2, 2), shared="b", dtype="fp32", precision=precision), config, 2.0**-20)


def gelu(x):
    return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()


def test_epilogue(model):
    """activation(alpha scale_a A B scale_b + beta D + bias), every term, and D in lines of 16 bytes."""
    m, n, k = 70, 40, 136
    terms = Epilogue(
        scaled=True, addend=Matrix((0, 0, n + 8, 1)), dtype_addend="bf16", bias=("n", 1), dtype_bias="fp32",
        activation="gelu", scale_a="row", scale_b="column",
    )  # fmt: skip
    d, bias = torch.randn(m, n + 8).bfloat16(), torch.randn(n)
    scale_a, scale_b = torch.rand(m) + 0.5, torch.rand(n) + 0.5
    model()
    a, b, out = run(product(m, n, k, epilogue=terms), small(), d, bias, 0.25, -1.5, scale_a, scale_b)
    a = a.double().numpy() * 0.25 * scale_a.double().numpy()[:, None]
    b = b.double().numpy() * scale_b.double().numpy()
    more = -1.5 * d[:, :n].double().numpy() + bias.double().numpy()
    compare(out, gelu(a @ b + more), abs(a) @ abs(b) + abs(more), k, "bf16")


def test_epilogue_of_two_strips(model):
    """A turned D whose elements come one by one, a bias of rows, results that wait for the next tile."""
    m, n, k = 140, 40, 136
    addend = Matrix((0, 0, 1, m))
    terms = Epilogue(addend=addend, dtype_addend="fp16", bias=("m", 2), dtype_bias="fp16", activation="relu")
    d, bias = torch.randn(n, m).half().T, torch.randn(2 * m).half()
    model()
    problem = product(m, n, k, "nn", out="fp16", dtype="fp16", epilogue=terms)
    a, b, out = run(problem, small(block_m=128, split=True, hold_back=1, programs=1), d, bias, None, 1.0)
    a, b = a.double().numpy(), b.double().numpy()
    more = d.double().numpy() + bias[::2].double().numpy()[:, None]
    compare(out, np.maximum(a @ b + more, 0), abs(a) @ abs(b) + abs(more), k, "fp16")


def test_terms_of_tiles_of_one_warpgroup_by_rows(model):
    """All rows of a panel at once, as the terms want the registers."""
    m, n, k = 300, 94, 72
    terms = Epilogue(scaled=True, bias=("n", 1), dtype_bias="bf16", activation="relu")
    bias = torch.randn(n).bfloat16()
    model()
    problem = product(m, n, k, c_pitch=98, epilogue=terms)
    a, b, out = run(problem, own(block_n=96, panels=2, tma_store=False, programs=2), None, bias, 0.25, None)
    a, b, more = 0.25 * a.double().numpy(), b.double().numpy(), bias.double().numpy()
    compare(out, np.maximum(a @ b + more, 0), abs(a) @ abs(b) + abs(more), k, "bf16")


@pytest.mark.parametrize("bias", [("n", 1), ("m", 2)])
@pytest.mark.parametrize("tma_store", [True, False])
def test_terms_of_a_turned_product(model, tma_store, bias):
    """Those of C's rows are its transpose's of columns, and the other way round."""
    m, n, k = 19, 150 if not tma_store else 152, 136
    terms = Epilogue(
        scaled=True, bias=bias, dtype_bias="bf16", activation="silu", scale_a="row", scale_b="column")  # fmt: skip
    values = torch.randn(n if bias[0] == "n" else 2 * m).bfloat16()
    scale_a, scale_b = torch.rand(m) + 0.5, torch.rand(n) + 0.5
    model()
    problem, config = product(m, n, k, epilogue=terms), small(block_n=24, swapped=True, tma_store=tma_store)
    a, b, out = run(problem, config, None, values, 0.25, None, scale_a, scale_b)
    a = a.double().numpy() * 0.25 * scale_a.double().numpy()[:, None]
    b = b.double().numpy() * scale_b.double().numpy()
    more = values.double().numpy() if bias[0] == "n" else values[::2].double().numpy()[:, None]
    z = a @ b + more
    compare(out, z / (1 + np.exp(-z)), 1.1 * (abs(a) @ abs(b) + abs(more)), k, "bf16")


@pytest.mark.parametrize("knobs", [
    {}, {"block_n": 40, "block_m": 128, "consumers": 2, "cluster_m": 2}, {"tiles_n": 3},
])  # fmt: skip
def test_a_turned_product_of_8_bit_floats_in_fp32(model, knobs):
    """From registers to memory, whatever C's pitch, scales and all."""
    m, n, k = 83, 141, 300
    scale_a, scale_b = torch.rand(m) + 0.5, torch.rand(n) + 0.5
    scales = Epilogue(scale_a="row", scale_b="column")
    problem = product(m, n, k, dtype="fp8", out="fp32", c_pitch=n + 2, epilogue=scales)
    model()
    config = small(**{"block_k": 128, "block_n": 32, "swapped": True, "tma_store": False, "programs": 4} | knobs)
    a, b, out = run(problem, config, None, None, None, None, scale_a, scale_b)
    a = a.double().numpy() * scale_a.double().numpy()[:, None]
    b = b.double().numpy() * scale_b.double().numpy()
    compare(out, a @ b, abs(a) @ abs(b), k, "fp32")


OF_ROWS = {
    "empty ones": ((70, 70, 75, 141), small()),
    "more than a warp looks at": ([3 * (i // 7) for i in range(71)], small(block_n=16, programs=32)),
    "the last of many": ([0] * 64 + [9], small(programs=3)),
    "none but in front": ([40] * 33, small()),
    "held back": ((70, 70, 75, 141), small(hold_back=2, programs=3)),
    "a cluster of 2 x 1": ((70, 70, 75, 141), small(cluster_m=2, programs=4)),
    "scaled": ((70, 70, 75, 141), small()),
    "own tiles": ((70, 70, 75, 141, 400), own(programs=1)),
    "a cluster of 1 x 2, two strips": ((70, 70, 75, 141), small(block_m=128, cluster_n=2, programs=4)),
}  # fmt: skip


@pytest.mark.parametrize("name", without(OF_ROWS, "none but in front", "held back"))
def test_groups(model, name):
    """Groups that end within tiles, that are empty, and rows behind the last group, which nobody writes."""
    ends, config = OF_ROWS[name]
    model()
    problem = product(ends[-1] + 9, 40, 72, "nn", batch=(1, len(ends)), shared="ac")
    if name == "scaled":
        problem = replace(problem, epilogue=Epilogue(scale_a="row", scale_b="column"))
    check_groups_of_rows(problem, config, ends)


OF_K = {
    "tn": ("tn", small()), "nt": ("nt", small()),
    "nn, two consumers, panels of b": ("nn", small(block_m=128, block_n=80, consumers=2, programs=3)),
    "tt, two strips held back": ("tt", small(block_m=128, hold_back=1, programs=3)),
    "tn, held back": ("tn", small(hold_back=2, programs=3)),
    "tn, a cluster of 2 x 1": ("tn", small(cluster_m=2, programs=4)),
    "nt, a cluster of 1 x 2": ("nt", small(cluster_n=2, programs=4)),
    "tn, swapped": ("tn", small(swapped=True)),
    "nt, uneven": ("nt", small(block_n=32, tiles_n=3, tma_store=False)),
    "nt, masked": ("nt", small(tma_store=False)),
    "tn, own tiles": ("tn", own(programs=3)),
    "nt, own tiles, a cluster of 1 x 2": ("nt", own(cluster_n=2, programs=4)),
    "nn, own tiles, swapped, panels of b": ("nn", own(block_n=80, swapped=True, programs=2)),
    "fp8": ("nt", small(block_k=128)),
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("name", without(OF_K, "nt", "tn, held back", "fp8"))
def test_k_in_groups(model, name, late):
    """Groups that begin and end within slices and pieces of 16 bytes, empty ones, and what is behind the last."""
    layout, config = OF_K[name]
    ends = (70, 70, 75, 139, 139, 403, 403)
    dtype = {"dtype": "fp8", "out": "bf16"} if name == "fp8" else {}
    m, n, k = 150, 83 if "masked" in name else 88, 424 if name == "fp8" else 416
    model(late=late)
    check_groups_of_k(product(m, n, k, layout, batch=(1, len(ends)), shared="ab", **dtype), config, ends)
