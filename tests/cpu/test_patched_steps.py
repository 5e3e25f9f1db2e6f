"""Steps of transformers inside `patched`: the model that is measured, and what the pages say of the records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from laneloom.bench import host_time  # noqa: E402
from laneloom.bench.measured import host_of  # noqa: E402
from laneloom.bench.patched_steps import KINDS, MODELS, OURS, Block, _error, check_errors, render  # noqa: E402
from laneloom.bench.records import load  # noqa: E402
from laneloom.pytorch.measurements import table_of  # noqa: E402

ROOT = Path(__file__).parents[2]
RECORDS = load(ROOT / "results" / "h200" / "patched_steps.jsonl")
HOST = load(ROOT / "results" / "h200" / "host_time.jsonl")


def test_a_block_is_attention_and_two_layers_beside_sums():
    """Position i sees those before it alone, and each layer's gradient is there."""
    torch.manual_seed(0)
    block, x = Block(32, 2).double(), torch.randn(2, 5, 32, dtype=torch.float64)
    out = block(x)
    changed = x.clone()
    changed[:, 3:] += 1
    assert torch.equal(block(changed)[:, :3], out[:, :3])
    assert not torch.equal(block(changed)[:, 3:], out[:, 3:])
    out.sum().backward()
    assert sum(p.grad.norm() > 0 for p in block.parameters()) >= 10  # a norm's bias before keys, say, may have none


def test_errors_of_gradients_are_relative_and_see_nan():
    layer = torch.nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    truth = [p.grad.double() for p in layer.parameters()]
    assert _error(layer, truth) == 0
    assert _error(layer, [2 * t for t in truth]) == pytest.approx(0.5)
    layer.bias.grad[0] = torch.nan
    assert _error(layer, truth) == float("inf")


@pytest.mark.parametrize(
    ("ours", "theirs"), [(1.6e-3, 1e-3), (torch.inf, 1e-3), (torch.nan, 1e-3), (1e-3, torch.inf), (torch.inf,) * 2]
)
def test_errors_that_tell_nothing_are_refused(ours, theirs):
    check_errors((4, 8), {OURS: 1.4e-3, "torch": 1e-3})
    with pytest.raises(ArithmeticError, match="gradients off by"):
        check_errors((4, 8), {OURS: ours, "torch": theirs})


def test_the_pages_have_what_was_measured():
    assert render(RECORDS) in (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    ours = [r for r in RECORDS if r.candidate == OURS]
    assert len(ours) == 2 * len(KINDS) * len(MODELS)
    ratios = [r.ratio_to_reference for r in ours if r.problem["captured"]]
    said = re.search(r"#patched\) take ([\d.]+) to ([\d.]+) times", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert said is not None
    assert [float(x) for x in said.groups()] == [round(min(ratios), 2), round(max(ratios), 2)]
    assert min(ratios) > 1.0


def test_patched_weighs_the_host_as_in_layers():
    """What eight layers take with the call less what they take without, an eighth of it."""
    patched, table = ", patched and routed", table_of("sm_90a").host_us
    for gradients, case, op in ((False, "", "matmul in layers"), (True, ", both ways", "matmul with gradients")):
        of = {r.candidate: r.median_us for r in HOST if r.op == f"host_time/linear in layers{case}"}
        theirs, ours = host_time.in_layers(HOST, "matmul", gradients)
        assert theirs == pytest.approx((of["8 layers"] - of["8 layers without the call"]) / 8)
        assert ours == pytest.approx((of["8 layers" + patched] - of["8 layers without the call" + patched]) / 8)
        assert table[op] == pytest.approx((theirs, ours), abs=0.01)
    assert host_of([]) == {}
