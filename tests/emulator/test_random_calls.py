"""Random calls as RDNA code, attention as CDNA's: any size, stride, dtype and option, in strict mode, against FP64."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from random_calls import DTYPES, Attention, Product
from random_steps import Chain, Transform, Transpose

import laneloom

GPUS = ("gfx1100", "gfx1151", "gfx1201")
CDNA = ("gfx942", "gfx950")
KINDS = tuple(kind for kind in DTYPES if kind != "int32")


@pytest.mark.parametrize("seed", range(36))
def test_products(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Product(seed, 7, KINDS).check("cpu", tensor_cores=False)


@pytest.mark.parametrize("seed", range(9))
def test_attention(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Attention(seed, 70).check("cpu")


@pytest.mark.parametrize("seed", range(9, 11))
def test_attention_on_cdna(seed):
    with laneloom.emulated(CDNA[seed % 2], strict=True):
        Attention(seed, 70).check("cpu")


@pytest.mark.parametrize("seed", range(18))
def test_transforms(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Transform(seed, 14).check("cpu")


@pytest.mark.parametrize("seed", range(18))
def test_chains(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Chain(seed, 90).check("cpu", lost=2.0**-24)


@pytest.mark.parametrize("seed", range(18))
def test_transposes(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Transpose(seed, 130).check("cpu")
