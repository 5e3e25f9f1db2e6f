"""Gradients of linear layers of models beside torch.matmul: which products they are, and what the pages say of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from laneloom.bench.matmul_cases import GRADIENT_ROWS, LAYER_SIDES, random_layer_gradients
from laneloom.bench.matmul_layers import read, render_gradients, summarise_gradients
from laneloom.pytorch.measurements import table_of

ROOT = Path(__file__).parents[2]
ROWS = read(ROOT / "results" / "h200" / "layer_gradients.csv")


def test_each_layer_has_both_products():
    """X [tokens, K] and W [N, K]: dX [tokens, K] sums over N, dW [N, K] over the tokens."""
    cases = random_layer_gradients(7, 20)
    assert len(cases) == 40
    for of_x, of_w in zip(cases[::2], cases[1::2], strict=True):
        (tokens, k, n), dw = ((p.m, p.n, p.k) for p in (of_x.problem, of_w.problem))
        assert dw == (n, k, tokens)
        assert (of_x.layout, of_w.layout, of_x.dtype) == ("nn", "tn", of_w.dtype)
        assert (n, k) in LAYER_SIDES
        assert tokens in GRADIENT_ROWS


def test_the_pages_have_what_was_measured():
    assert len(ROWS) == 320
    assert render_gradients(ROWS) in (ROOT / "docs" / "hopper-gemm-products.md").read_text(encoding="utf-8")
    assert summarise_gradients(ROWS) in (ROOT / "README.md").read_text(encoding="utf-8")
    for row in ROWS:  # one rounding of FP32 sums, as torch's
        assert row.error <= 1.1 * row.torch_error + 1e-5


def test_patched_knows_them():
    known = {(m.kind, m.sizes): m.ratio for m in table_of("sm_90a").measurements if m.op == "matmul"}
    for row in ROWS:
        assert (f"{row.dtype} {row.layout}", (1, row.m, row.n, row.k)) in known
