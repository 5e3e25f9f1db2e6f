"""Random calls on a real GPU: any size, stride, dtype and option, against FP64."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from random_calls import Attention, Product
from random_steps import Chain, Transform, Transpose
from random_weights import Experts, Weights

KINDS = ("bf16", "fp16", "bf16", "fp16", "fp8", "bf8", "fp32", "fp64", "int8", "uint8")


@pytest.mark.parametrize("seed", range(200))
def test_products(seed):
    Product(seed, 11, KINDS).check("cuda", tensor_cores=True)


@pytest.mark.parametrize("seed", range(60))
def test_attention(seed):
    Attention(seed, 700).check("cuda")


@pytest.mark.parametrize("seed", range(60))
def test_transforms(seed):
    Transform(seed, 40).check("cuda")


@pytest.mark.parametrize("seed", range(60))
def test_chains(seed):
    Chain(seed, 700).check("cuda", lost=2.0**-23)


@pytest.mark.parametrize("seed", range(40))
def test_transposes(seed):
    Transpose(seed, 3000).check("cuda")


@pytest.mark.parametrize("seed", range(100))
def test_weights(seed):
    Weights(seed, 11).check("cuda")


@pytest.mark.parametrize("seed", range(100))
def test_experts(seed):
    Experts(seed, 10).check("cuda")
