"""hopper_registers.cu on a CPU model of Hopper's instructions: its own text and its own launch, every thread by itself.

wgmma and the copy engine's reads of what it stores come as late as their waits allow.
"""

from __future__ import annotations

import functools

import pytest
from hopper_model import COMPILER
from sampled import sampled, without

torch = pytest.importorskip("torch")

from matmul_model import REGISTERS, Model  # noqa: E402
from matmul_products import SUMMED, cut  # noqa: E402
from registers_products import check, fp32, small, tf32  # noqa: E402

from laneloom.device.pieces import PiecesLaunch  # noqa: E402
from laneloom.ops.matmul.kernels import hopper_registers  # noqa: E402

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture
def model(folder, monkeypatch):
    monkeypatch.setattr(PiecesLaunch, "__call__", lambda self, *sources: list(map(cut, self._copies, sources)))
    for name, stand_in in SUMMED.items():
        monkeypatch.setattr(name, stand_in)
    return functools.partial(Model, folder, monkeypatch, of=REGISTERS)


TURNED, WIDE = small(turned=True), small(128, 64)
PRODUCTS = {
    "a along k": (fp32(70, 40, 136), small()),
    "k smaller than a slice": (fp32(70, 40, 5), small()),
    "a batch, b repeated": (fp32(70, 40, 72, batch=(2, 2), shared="b"), small()),
    "panels of a": (fp32(70, 72, 100, "tt"), small(columns=64)),
    "panels of a, b copied, several tiles": (fp32(140, 72, 72, "tn"), small(columns=64, copy_b=True)),
    "turned, panels of b": (fp32(72, 76, 136, "nn"), TURNED),
    "turned, panels of b, a copied, a batch": (
        fp32(40, 72, 72, "tn", batch=(1, 2)), TURNED.with_knobs(copy_a=True)),
    "turned, masked": (fp32(37, 69, 100, c_pitch=75), small(columns=16, turned=True)),
    "panels of both": (fp32(70, 72, 100, "tn"), small(columns=64)),
    "turned, panels of both, a batch": (fp32(104, 72, 72, "tn", batch=(1, 2)), TURNED),
    "128 rows, panels of both": (fp32(132, 100, 72, "tn"), small(128, 96)),
    "128 rows, several tiles": (fp32(200, 104, 72), WIDE),
    "128 rows, turned, masked": (fp32(45, 133, 72, "nn"), small(128, 32, turned=True)),
    "tf32": (tf32(70, 104, 136), small(columns=64)),
    "tf32, one slice": (tf32(70, 104, 20), small(columns=64)),
    "tf32, panels of a, 128 rows, masked": (tf32(133, 27, 136, "tt", c_pitch=51), small(128, 16, stages=3)),
    "tf32, turned, panels of b": (tf32(72, 140, 100, "nn"), small(128, 64, turned=True)),
    "tf32, panels of both": (tf32(72, 140, 100, "tn"), small(128, 64)),
    "parts of k, 128 rows": (fp32(133, 72, 72), small(128, 64, split_k=2)),
    "parts of k, masked, panels of a, several tiles": (fp32(133, 27, 136, "tt"), small(columns=16, split_k=3)),
    "parts of k, panels of both, c in wide rows": (fp32(68, 36, 136, "tn", c_pitch=43), small(split_k=3)),
    "parts of k, a batch": (fp32(40, 36, 136, batch=(1, 2)), small(split_k=3)),
    "tf32, parts of k, turned": (tf32(40, 70, 264, "nn"), small(turned=True, split_k=3)),
}  # fmt: skip


USUAL = sampled(without(PRODUCTS, "a along k", "panels of a", "turned, panels of b", "panels of both", "tf32"))


@pytest.mark.parametrize("name", USUAL)
def test_products(model, name):
    model()
    check(*PRODUCTS[name])


@pytest.mark.parametrize(("product", "config", "r", "s"), [
    # 3 tiles down and 2 across, lines along K
    (fp32(140, 40, 136), small(), 2 * 3, 2 * 2),
    # 1 and 2, panels of both, each two boxes a slice
    (fp32(70, 72, 100, "tn"), small(columns=64), 2 * 2 * 2, 2 * 2 * 2),
    # 3 parts of K, of one slice at least
    (fp32(68, 36, 136), small(split_k=3), 2 * (2 + 2 + 1), 2 * (2 + 2 + 1)),
], ids=["along k", "panels", "parts"])  # fmt: skip
def test_what_is_asked_for_ahead(model, tmp_path, monkeypatch, product, config, r, s):
    """Every box of the first two slices is asked for once, whoever reads it."""
    log = tmp_path / "boxes"
    monkeypatch.setenv("FETCHED_BOXES", str(log))
    monkeypatch.setattr(hopper_registers, "fetched", lambda *_: 2)
    model()
    check(product, config.with_knobs(programs=16))
    boxes = log.read_text().splitlines()
    of_maps = [[box for box in boxes if box.startswith(one)] for one in {box.split()[0] for box in boxes}]
    assert sorted(map(len, of_maps)) == sorted((r, s))
    assert len(set(boxes)) == len(boxes)
