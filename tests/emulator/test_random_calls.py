"""Random calls as RDNA code: any size, stride, dtype and option, in strict mode, against FP64."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from random_calls import TORCH, Attention, Product

import laneloom

GPUS = ("gfx1100", "gfx1151", "gfx1201")
KINDS = tuple(kind for kind in TORCH if kind != "int32")


@pytest.mark.parametrize("seed", range(36))
def test_products(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Product(seed, 7, KINDS).check("cpu", tensor_cores=False)


@pytest.mark.parametrize("seed", range(9))
def test_attention(seed):
    with laneloom.emulated(GPUS[seed % 3], strict=True):
        Attention(seed, 70).check("cpu")
