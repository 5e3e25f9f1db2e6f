"""Random calls as RDNA's, CDNA's and CDNA 5's code: any size, stride, dtype and option, in strict mode, against FP64.

Of each kind of GPU a few of the seeds, and all with LANELOOM_TESTS=all.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from random_calls import DTYPES, Attention, Product
from random_groups import Groups
from random_steps import Chain, Transform, Transpose
from random_weights import Experts, Weights
from sampled import sampled

import laneloom

GPUS = ("gfx1100", "gfx1151", "gfx1201")
CDNA = ("gfx942", "gfx950", "gfx90a", "gfx908")
KINDS = tuple(kind for kind in DTYPES if kind != "int32")
WITHOUT_UINT8 = tuple(kind for kind in KINDS if kind != "uint8")


@pytest.mark.parametrize("seed", sampled(range(36), every=8))
def test_products(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Product(seed, 7, KINDS).check("cpu", tensor_cores=False)


@pytest.mark.covering
@pytest.mark.parametrize("seed", sampled(range(36, 42), every=4))
@pytest.mark.parametrize("gpu", ["gfx908", "gfx90a"])
def test_products_on_cdna_1_and_2(gpu, seed):
    with laneloom.emulated(gpu, strict=True):
        Product(seed, 7, WITHOUT_UINT8).check("cpu", tensor_cores=False, flushes=gpu == "gfx90a")


@pytest.mark.parametrize("seed", sampled(range(42, 48), every=8))
def test_products_on_cdna_5(seed):
    with laneloom.emulated("gfx1250", strict=True):
        Product(seed, 7, WITHOUT_UINT8).check("cpu", tensor_cores=False)


@pytest.mark.parametrize("seed", sampled(range(20), every=3))  # each GPU once
def test_groups(seed):
    gpu = (*GPUS, *CDNA)[seed % 7]
    kinds = tuple(kind for kind in KINDS if gpu in CDNA or kind not in ("fp32", "fp64"))
    with laneloom.emulated(gpu, strict=True):
        Groups(seed, 7, tuple(x for x in kinds if gpu in GPUS or x != "uint8")).check("cpu", flushes=gpu == "gfx90a")


@pytest.mark.parametrize("seed", sampled(range(20, 24), every=4))
def test_groups_on_cdna_5(seed):
    with laneloom.emulated("gfx1250", strict=True):
        Groups(seed, 7, WITHOUT_UINT8).check("cpu")


@pytest.mark.parametrize("seed", sampled(range(9), every=8))
def test_attention(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Attention(seed, 70).check("cpu")


@pytest.mark.parametrize("seed", sampled(range(9, 13)))
def test_attention_on_cdna(seed):
    with laneloom.emulated(CDNA[(seed - 9) % 4], strict=True):
        Attention(seed, 70).check("cpu")


@pytest.mark.parametrize("seed", sampled(range(13, 19), every=6))
def test_attention_on_cdna_5(seed):
    with laneloom.emulated("gfx1250", strict=True):
        Attention(seed, 70).check("cpu")


@pytest.mark.parametrize("seed", sampled(range(18), every=8))
def test_transforms(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Transform(seed, 14).check("cpu")


@pytest.mark.parametrize("seed", sampled(range(18), every=8))
def test_chains(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Chain(seed, 90).check("cpu", lost=2.0**-24)


@pytest.mark.parametrize("seed", sampled(range(18, 24), every=8))
def test_chains_on_cdna_5(seed):
    with laneloom.emulated("gfx1250", strict=True):
        Chain(seed, 90).check("cpu", lost=2.0**-24)


@pytest.mark.parametrize("seed", sampled(range(18), every=8))
def test_transposes(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Transpose(seed, 130).check("cpu")


@pytest.mark.parametrize("seed", sampled(range(40), every=10))
def test_weights(seed):
    gpu = (*GPUS, *CDNA)[seed % 7]
    with laneloom.emulated(gpu, strict=True):
        Weights(seed, 7).check("cpu", flushes=gpu == "gfx90a")


@pytest.mark.parametrize("seed", sampled(range(40), every=10))
def test_experts(seed):
    gpu = (*GPUS, *CDNA)[seed % 7]
    with laneloom.emulated(gpu, strict=True):
        Experts(seed, 7).check("cpu", flushes=gpu == "gfx90a")
