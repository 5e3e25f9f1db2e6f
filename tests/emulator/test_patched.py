"""laneloom.patched in the emulator: what is routed, what is not and why, and that training does not notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import laneloom  # noqa: E402
from laneloom.bench import measured  # noqa: E402
from laneloom.bench.matmul_wide import read as read_wide  # noqa: E402
from laneloom.bench.records import load  # noqa: E402
from laneloom.gpu import GPUS  # noqa: E402
from laneloom.ops.matmul import tuned  # noqa: E402
from laneloom.ops.matmul.problem import MatmulProblem  # noqa: E402
from laneloom.pytorch import measurements, routing  # noqa: E402

HALF = torch.float16


def random(*shape, seed=0, dtype=HALF):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


@pytest.fixture
def gfx1201():
    torch._dynamo.reset()
    with laneloom.emulated("gfx1201") as emulation:
        yield emulation


def entry(p):
    (found,) = p.report().entries
    return found


def assert_attention_close(got, expected):
    """Both round weights and what comes out to fp16; where else torch rounds depends on the CPU: four roundings."""
    assert (got - expected).double().norm() <= 4 * 2.0**-11 * expected.double().norm()


A, B, BIAS = random(2, 9, 16), random(16, 16, seed=1), random(16, seed=2)
Q = random(1, 2, 9, 16)
ROWS, EXPERTS, ENDS = random(9, 16).bfloat16(), random(3, 16, 8, seed=1).bfloat16(), torch.tensor([4, 4, 9]).int()
ROUTED = {
    "matmul": lambda: torch.matmul(A, B),
    "at": lambda: A @ B,
    "method": lambda: A.matmul(other=B),
    "mm": lambda: torch.mm(A[0], B),
    "mm_method": lambda: A[0].mm(mat2=B),
    "bmm": lambda: torch.bmm(A, A.mT),
    "linear": lambda: F.linear(A, B),
    "linear_bias": lambda: nn.functional.linear(A, weight=B, bias=BIAS),
    "fp32": lambda: torch.matmul(A.float(), B.float()),
    "fp64": lambda: torch.matmul(A.double(), B.double()),
    "addmm": lambda: torch.addmm(random(9, 16, seed=3), A[0], B, beta=0.5, alpha=2),
    "grouped": lambda: F.grouped_mm(ROWS, EXPERTS, offs=ENDS),
    "grouped_of_k": lambda: torch._grouped_mm(ROWS.mT, random(9, 8).bfloat16(), ENDS, out_dtype=torch.bfloat16),
    "attention": lambda: F.scaled_dot_product_attention(Q, Q, Q),
    "attention_causal": lambda: F.scaled_dot_product_attention(Q, Q[:, :, :5], Q[:, :, :5], is_causal=True, scale=0.3),
    "attention_grouped": lambda: F.scaled_dot_product_attention(Q, Q[:, :1], Q[:, :1], enable_gqa=True),
}


@pytest.mark.parametrize("name", ROUTED)
def test_routed(gfx1201, name):
    expected = ROUTED[name]()
    with laneloom.patched(always=True) as p:
        got = ROUTED[name]()
    assert (entry(p).routed, entry(p).calls) == (True, 1)
    assert gfx1201.launches
    (assert_attention_close if "attention" in name else torch.testing.assert_close)(got, expected)


KEPT = {
    "out": (lambda: torch.matmul(A, B, out=torch.empty(2, 9, 16, dtype=HALF)), "out="),
    "vector": (lambda: torch.matmul(A, B[0]), "a vector"),
    "empty": (lambda: torch.matmul(A[:0], B), "an empty operand"),
    "integers": (lambda: torch.matmul(A.int(), B.int()), "dtype torch.int32"),
    "complex": (lambda: torch.matmul(A.cfloat(), B.cfloat()), "complex64"),
    "grouped_batch": (lambda: F.grouped_mm(EXPERTS, EXPERTS.mT), "groups that are a batch"),
    "grouped_columns": (lambda: F.grouped_mm(EXPERTS.mT, ROWS.mT, offs=ENDS), "columns in groups"),
    "sparse": (lambda: torch.mm(A[0].float().to_sparse(), B.float()), "layout torch.sparse_coo"),
    "nested": (
        lambda: F.linear(torch.nested.nested_tensor([A[0], A[0, :2]]), B.mT).to_padded_tensor(0.0), "a nested tensor"
    ),
    "mask": (lambda: F.scaled_dot_product_attention(Q, Q, Q, torch.ones(9, 9, dtype=torch.bool)), "attn_mask"),
    "dropout": (lambda: F.scaled_dot_product_attention(Q, Q, Q, dropout_p=1e-9), "dropout"),
    "scale": (lambda: F.scaled_dot_product_attention(Q, Q, Q, scale=2e30), "a scale that is no number or too large"),
    "scale_tensor": (lambda: F.scaled_dot_product_attention(Q, Q, Q, scale=torch.tensor(0.5)), "a scale"),
    "three_axes": (lambda: F.scaled_dot_product_attention(Q[0], Q[0], Q[0]), "without 4 axes"),
    "narrow_heads": (lambda: F.scaled_dot_product_attention(*[Q[..., :4]] * 3), "multiple of 8"),
    "meta": (lambda: torch.zeros(torch.matmul(A.to("meta"), B.to("meta")).shape), "on meta, Triton drives cpu"),
    "forward_mode": (lambda: torch.func.jvp(lambda x: x @ B, (A,), (A,))[1], "forward-mode derivatives"),
    "input_unused": (lambda: torch.addmm(BIAS.clone().requires_grad_(), A[0], B, beta=0), "beta=0"),
}


@pytest.mark.filterwarnings("ignore:.*nested")
@pytest.mark.parametrize("name", KEPT)
def test_kept(gfx1201, name):
    call, reason = KEPT[name]
    expected = call()
    with laneloom.patched(always=True) as p:
        got = call()
    assert not entry(p).routed
    assert reason in entry(p).reason
    assert not gfx1201.launches
    assert got.requires_grad == expected.requires_grad
    torch.testing.assert_close(got, expected)


def test_errors_are_torch_s_own(gfx1201):
    mistakes = (
        lambda: torch.matmul(A, B[:5]), lambda: F.linear(A), lambda: torch.mm(A, B), lambda: A.half() @ B.float(),
        lambda: F.linear(A, B, BIAS.float()), lambda: torch.addmm(BIAS.float(), A[0], B),
    )  # fmt: skip
    for call in mistakes:
        with pytest.raises((RuntimeError, TypeError)) as plain:
            call()
        with laneloom.patched(always=True), pytest.raises(plain.type) as routed:
            call()
        assert str(routed.value) == str(plain.value)


def test_without_measurements_nothing_is_routed(gfx1201):
    with laneloom.patched() as p:
        A @ B
    assert "nothing measured near 1x18x16x16 fp16 nn on gfx1201" in entry(p).reason
    assert "runs on" in str(p.report())
    assert str(p.report()).endswith("0 calls ran on laneloom, 1 on torch")


def test_without_a_gpu_nothing_is_routed():
    with laneloom.patched(always=True) as p:
        torch.testing.assert_close(A @ B, torch.matmul(A, B))
    assert "no GPU" in entry(p).reason


def measured_at(monkeypatch, *rows):
    table = measurements.Table(rows, {"matmul": (4.0, 9.0)})
    monkeypatch.setattr(routing, "table_of", lambda name: table if name == "gfx1201" else measurements.Table())


def test_measurements_decide(gfx1201, monkeypatch):
    """The forward alone wins; with its two gradients, which lose, the sum does not."""
    kinds = {"fp16 nt": 1.2, "fp16 nn": 0.5, "fp16 tn": 0.5}
    measured_at(monkeypatch, *(measurements.Measurement("matmul", kind, (1, 16, 16, 16), 10.0, ratio)
                               for kind, ratio in kinds.items()))  # fmt: skip
    with laneloom.patched() as p:
        F.linear(A, B)
    assert entry(p).routed
    assert entry(p).reason.startswith("1.200 x")
    with laneloom.patched() as p:
        F.linear(A, B.clone().requires_grad_())
    assert not entry(p).routed
    for captured in (False, True):  # 7.41 us become the 9 that the host needs, torch takes 8.89
        shorter = measurements.Measurement("matmul", "fp16 nt", (1, 16, 16, 16), 7.9, 1.2)
        measured_at(monkeypatch, shorter)
        with laneloom.patched(captured=captured) as p:
            F.linear(A, B)
        assert entry(p).routed is captured
    with laneloom.patched() as p:
        F.linear(random(300, 16), B)  # further than twice as large
    assert "nothing measured near" in entry(p).reason


def test_the_users_tuned_tables_decide(gfx1201, monkeypatch, tmp_path):
    """On a GPU that the package has no measurements of: what `laneloom tune` timed beside torch routes a call."""
    monkeypatch.setenv("LANELOOM_CACHE_DIR", str(tmp_path))
    problem = MatmulProblem.contiguous(18, 16, 16, layout="nt")
    slow = "wmma:block_m=32,block_n=32,block_k=64,num_warps=1,waves_n=1"
    for torch_us, routed in ((9.0, False), (12.0, True)):
        entry_of = tuned.TunedEntry(
            problem.key, tuned.kind_of(problem), tuned.sizes_of(problem), slow, 10.0, 11.0, "measured",
            {"date": "2026-11-20"}, torch_us,
        )  # fmt: skip
        path = tuned.cache_path(problem.key, "gfx1201")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(tuned.render_table([entry_of], "gfx1201"))
        tuned.forget()
        with laneloom.patched() as p:
            got = F.linear(A, B)
        assert entry(p).routed is routed
        assert entry(p).reason.endswith("tuned on this machine 2026-11-20")
        torch.testing.assert_close(got, F.linear(A, B))
    assert len(gfx1201.launches) == 1
    with laneloom.patched() as p:  # a bias makes it another product: the cost model's choice, 1.09 x
        F.linear(A, B, BIAS)
    assert entry(p).reason.startswith("1.091 x")
    with laneloom.patched() as p:
        F.linear(A, B.clone().requires_grad_())  # nobody tuned the gradient
    assert "nothing measured near 1x16x16x18" in entry(p).reason
    tuned.forget()


def test_nests_and_belongs_to_one_thread(gfx1201):
    counts = []

    def elsewhere():
        with laneloom.patched() as inner:
            torch.mm(B, B)
        counts.append(inner.report().kept)

    with laneloom.patched(always=True) as outer:
        with laneloom.patched() as inner:
            A @ B
        A @ B
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    A @ B
    assert (inner.report().kept, inner.report().routed) == (1, 0)
    assert (outer.report().kept, outer.report().routed) == (0, 1)
    assert counts == [1]
    with outer, inner:
        outer(torch.mm)(B, B)  # enters the outer one once more, and leaves it
        torch.mm(B, B)
    assert (inner.report().kept, inner.report().routed) == (2, 0)
    assert (outer.report().kept, outer.report().routed) == (0, 2)
    p = laneloom.patched(always=True)
    assert torch.equal(p(torch.mm)(B, B), laneloom.matmul(B, B))
    assert p.report().routed == 1


class Block(nn.Module):
    """A transformer's block, and the loss of predicting its input."""

    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(x)))
        return (x[:, :-1] - x[:, 1:].detach()).square().mean()


def losses(steps, model, **context):
    """The curve of some steps of SGD in autocast, and what was routed."""
    optimiser = torch.optim.SGD(model.parameters(), 1.0)
    p = laneloom.patched(**context)
    curve = []
    for _ in range(steps):
        with p, torch.autocast("cpu", torch.bfloat16):
            loss = model(random(2, 9, 32, dtype=torch.float32))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        curve.append(loss.item())
    return curve, p.report()


def test_a_transformer_trains_the_same_curve(gfx1201):
    """Against the same weights in FP64: laneloom's curve is as near as torch's own in bf16, within a factor of 2."""
    models = []
    for _ in range(3):
        torch.manual_seed(0)
        models.append(Block())
    plain, _ = losses(4, models[0])
    routed, report = losses(4, models[1], always=True)
    assert (report.routed, report.kept) == (4 * 5, 0)
    exact_model = models[2].double()
    exact = []
    optimiser = torch.optim.SGD(exact_model.parameters(), 1.0)
    for _ in range(4):
        loss = exact_model(random(2, 9, 32, dtype=torch.float64))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        exact.append(loss.item())
    worst = max(abs(a - b) for a, b in zip(plain, exact, strict=True))
    assert exact[-1] < 0.8 * exact[0]
    assert max(abs(a - b) for a, b in zip(routed, exact, strict=True)) <= 2 * worst + 2.0**-8 * exact[0]


def test_compiles_into_one_graph_with_symbolic_sizes(gfx1201):
    torch.manual_seed(0)
    model = Block().to(torch.bfloat16)  # the kernels of the training above
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    with laneloom.patched(always=True) as p:
        for n in (9, 12):
            x = random(2, n, 32, seed=n, dtype=torch.bfloat16)
            got = compiled(x)
            torch.testing.assert_close(got, model(x))
            got.backward()
    traced = [e for e in p.report().entries if not e.calls]
    assert len(traced) == 5
    assert all(e.routed for e in traced)
    assert "in compiled graphs 5 and 0" in str(p.report())


def test_inside_multi_head_attention(gfx1201):
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(32, 2, batch_first=True, dtype=HALF), random(1, 9, 32)
    expected = module(x, x, x, need_weights=False)[0]
    with laneloom.patched(always=True) as p:
        got = module(x, x, x, need_weights=False)[0]
    assert p.report().routed == 3
    assert_attention_close(got, expected)


def test_second_derivatives_of_attention(gfx1201):
    q = Q.clone().requires_grad_()

    def penalty():
        out = F.scaled_dot_product_attention(q, q, q)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), q, create_graph=True)
        return torch.autograd.grad(gradient.float().square().sum(), q)[0]

    with sdpa_kernel(SDPBackend.MATH):  # torch's own fast attention has no second derivative
        expected = penalty()
    with laneloom.patched(always=True) as p:
        got = penalty()
    assert p.report().routed == 1
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02 * expected.abs().max().item())


def test_environment_and_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, torch, laneloom\nprint(sys.argv[1:], torch.ones(3, 3) @ torch.ones(3, 3))\n")
    environment = {**os.environ, "LANELOOM_PATCH": "1"}
    for command, env in (([str(script), "x"], environment), (["-m", "laneloom.pytorch", str(script), "x"], None)):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("['x'] tensor")
        assert "0 calls ran on laneloom, 1 on torch" in done.stderr


def test_shipped_tables_are_from_the_records():
    """Every row of a table is one of a record in results/."""
    root = Path(__file__).parents[2] / "results"
    tables = list(measured.TABLES.glob("*.json"))
    assert tables
    for table in tables:
        assert table.stem in GPUS
        folder = {gpu: name for name, gpu in measured.FOLDERS.items()}[table.stem]
        records = [record for path in (root / folder).glob("*.jsonl") for record in load(path)]
        rows = [row for row, _ in measured.rows_of(records)]
        for path, read in measured.other_files(root, table.stem):
            source = f"on one {path.parent.name.upper()}"
            if read is measured.config_rows:  # the plan's configs are among all
                rows += [measured.product_row(row, row.batch, row.torch_us, source) for row in read_wide(path)]
            else:
                rows += read(path, source)
        shipped = json.loads(table.read_text())["measurements"]
        assert shipped
        known = {json.dumps(row) for row in rows}
        assert all(json.dumps(row) in known for row in shipped)
        assert len(measurements.table_of(table.stem).measurements) == len(shipped)


DAMAGED = ["", "[]", '{"schema_version": 9}', '{"schema_version": 1, "measurements": [{"op": 1}]}']


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_table_is_an_error_that_names_it(text):
    with pytest.raises(measurements.MeasurementsError, match=r"x\.json"):
        measurements.parse(text, "x.json")


def test_experts_with_gradients(gfx1201):
    """Both of a layer's matrices, routed forwards and backwards."""

    def layer(x, up, down):
        return F.grouped_mm(F.grouped_mm(x, up, offs=ENDS).relu(), down, offs=ENDS)

    tensors = [ROWS, EXPERTS, random(3, 8, 16, seed=2).bfloat16()]
    theirs, ours = ([x.clone().requires_grad_() for x in tensors] for _ in range(2))
    grad = random(9, 16, seed=3).bfloat16()
    layer(*theirs).backward(grad)
    with laneloom.patched(always=True) as p:
        layer(*ours).backward(grad)
    assert p.report().routed == 2
    assert {(e.function, e.routed) for e in p.report().entries} == {("grouped_mm", True)}
    assert sum(launch.kernel == "wmma_matmul" for launch in gfx1201.launches) == 6
    for expected, got in zip(theirs, ours, strict=True):
        torch.testing.assert_close(got.grad, expected.grad)
