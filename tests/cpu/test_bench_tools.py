"""What is made of records and profiles: comparisons, charts, the report's page, bottlenecks, refusals without a GPU."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from sampled import rarely

pytest.importorskip("torch")

import torch
from typer.testing import CliRunner

from laneloom.bench import records
from laneloom.bench.bottleneck import GpuProfile, KernelTime, measured_bottleneck, predicted_bottleneck
from laneloom.bench.changes import compare_records
from laneloom.bench.html_report import newest, problem_words, report_page
from laneloom.bench.plots import COLOURS, Axis, Chart
from laneloom.bench.products import judge
from laneloom.bench.roofline import Ceilings, ceilings, roofline_svg
from laneloom.bench.timing import METHOD_SUSTAINED
from laneloom.cli import app
from laneloom.errors import ArgumentError
from laneloom.ops.matmul.problem import MatmulProblem

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def record(m=64, us=10.0, *, ratio=1.0, iqr=0.1, candidate="laneloom", reference="torch", **facts):
    environment = records.Environment("a GPU", "1.2", "2.11", "3.6.0", "0123456789ab", False)
    problem = {"m": m, "n": 64, "k": 64, "layout": "nn", "dtype": "bf16", "dtype_out": "bf16", "group": "g"}
    fields = {
        "op": "matmul", "problem": problem, "candidate": candidate, "config": None, "method": METHOD_SUSTAINED,
        "median_us": us, "iqr_us": iqr, "ratio_to_reference": ratio, "noisy": False, "reference": reference,
        "flops": 2 * m * 64 * 64, "bytes": 1 << 20, "kernel_hash": "", "environment": environment,
        "time": "2026-11-20T00:00:00+00:00",
    }  # fmt: skip
    return records.Record(**{**fields, **facts})


def test_only_what_moved_beyond_its_noise_changed():
    old = [record(1), record(2), record(3), record(4, iqr=4.0), record(5)]
    new = [
        record(1, ratio=1.25),  # faster beside the same reference
        record(2, ratio=0.8),
        record(3, us=20.0, ratio=1.0),  # clocks fell for both
        record(4, ratio=1.25, iqr=4.0),  # inside the noise
        record(6),
    ]
    found = compare_records(old, new)
    verdicts = {change.problem["m"]: change.verdict for change in found.changes}
    assert verdicts == {1: "faster", 2: "slower", 3: "same", 4: "same"}
    assert (found.only_old, found.only_new) == (1, 1)
    assert found.mean == pytest.approx((1.25 * 0.8 * 1.25) ** 0.25)
    assert found.interval[0] <= found.mean <= found.interval[1]
    assert json.dumps(found.to_dict())


def test_without_a_common_reference_times_are_compared():
    change = compare_records([record(us=10.0)], [record(us=5.0, reference="other")]).changes[0]
    assert (change.by, change.speedup) == ("time", 2.0)
    mine = {"candidate": "laneloom", "reference": "laneloom"}
    assert compare_records([record(us=10.0, **mine)], [record(us=5.0, **mine)]).changes[0].speedup == 2.0


def test_compare_takes_two_files(tmp_path):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    for path, ratio in ((old, 1.0), (new, 0.5)):
        records.append(path, record(ratio=ratio))
    shown = CliRunner().invoke(app, ["compare", str(old), str(new)])
    assert shown.exit_code == 1
    assert "1 slower" in " ".join(shown.stdout.split())
    told = CliRunner().invoke(app, ["compare", str(new), str(old), "--json"])
    assert told.exit_code == 0
    assert json.loads(told.stdout)["changes"][0]["speedup"] == 2.0
    assert CliRunner().invoke(app, ["compare", str(old), str(tmp_path / "none")]).exit_code == 2


def test_ceilings_are_what_was_reached():
    rows = [record(64, us=1.0), record(128, us=1.0), record(us=100.0, bytes=1 << 30, flops=0)]
    limits = ceilings(rows)
    assert limits.tflops == {"bf16": pytest.approx(2 * 128 * 64 * 64 / 1e6)}
    assert limits.gbs == pytest.approx((1 << 30) / 100e3)
    ElementTree.fromstring(roofline_svg(rows, limits))
    # Of several GPUs, or of what only moves the operands, nothing says how fast one computes.
    others = [record(us=1e-3, candidate="moved alone"), record(us=1e-3, problem={"dtype": "bf16", "ranks": 2})]
    assert ceilings([*rows, *others]) == limits


def luminance(colour: str) -> float:
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colour", COLOURS)
def test_colours_are_seen_on_white_and_on_a_dark_page(colour):
    """A contrast of 3, as WCAG asks of pictures."""
    assert 1.05 / (luminance(colour) + 0.05) >= 3
    assert (luminance(colour) + 0.05) / (luminance("#12151a") + 0.05) >= 3


def test_a_problem_names_its_sizes():
    problem = {"dtype": "bf16", "from_s": 0.5, "group": "x", "k": 3, "m": 1, "causal": True, "gelu": False}
    assert problem_words(record(problem=problem)) == "from_s 0.5, k 3, m 1, bf16, causal"


@pytest.mark.parametrize("log", [True, False])
def test_a_chart_is_whole_and_inside_its_frame(log):
    chart = Chart(Axis("x <", log=log), Axis("y &", log=log))
    chart.line("a: 1", [(1, 1), (1000, 20)], dashed=True)
    chart.dots("b <script>", [(3.0, 7.0, 'tip "&<>'), (900.0, 0.5, "")])
    tree = ElementTree.fromstring(chart.svg())
    _, _, width, height = map(float, tree.get("viewBox").split())
    circles = [(float(e.get("cx")), float(e.get("cy"))) for e in tree.iter() if e.tag.endswith("circle")]
    assert len(circles) == 2
    assert all(0 < x < width and 0 < y < height for x, y in circles)
    assert circles[0][0] < circles[1][0]
    assert circles[0][1] < circles[1][1]
    assert "Nothing" in Chart(Axis("x"), Axis("y")).svg()


@pytest.mark.parametrize("span", [(10, 10000), (622, 680), (13, 790), (0.2, 0.9), (5, 5.01), (1e-3, 1e5)])
def test_an_axis_has_labels(span):
    """Whatever its range: at least two, in order and inside."""
    low, high = (math.log10(value) for value in span)
    ticks = Axis("rate", log=True).ticks(low, high)
    assert len(ticks) >= 2
    assert ticks == sorted(set(ticks))
    assert all(low - 1e-9 <= math.log10(tick) <= high + 1e-9 for tick in ticks)


def test_every_roof_meets_the_slope():
    """The line of memory begins below the lowest ridge, however few dots there are."""
    limits = Ceilings(4000.0, {"bf16": 800.0, "fp64": 60.0})
    sizes = {"flops": 10**12, "bytes": 10**9, "us": 10_000.0}
    rows = [record(**sizes), record(**sizes, problem={"m": 1, "dtype": "fp64"})]
    picture = ElementTree.fromstring(roofline_svg(rows, limits))
    slope, *roofs = [[tuple(map(float, p.split(","))) for p in line.get("points").split()]
                     for line in picture.iter("{http://www.w3.org/2000/svg}polyline")]  # fmt: skip
    assert len(roofs) == 2
    assert all(slope[0][0] < roof[0][0] <= slope[1][0] + 0.1 for roof in roofs)


class Tags(HTMLParser):
    """Whether tags close in order."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong, self.rows = [], [], 0

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "line", "rect", "circle", "polyline", "br"):
            self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        elif tag not in ("line", "rect", "circle", "polyline"):
            self.wrong.append(tag)


def test_the_report_stands_alone(tmp_path):
    large = record(64, ratio=1.2, kernel_hash="0" * 16, bytes=1 << 30, flops=10**12)
    for one in (large, record(128, ratio=0.9), record(64, candidate="torch")):
        records.append(tmp_path / "gpu" / "matmul.jsonl", one)
    records.append(tmp_path / "gpu" / "odd.jsonl", record(candidate="<b>laneloom", op="x<y"))
    (tmp_path / "predicted").mkdir()
    (tmp_path / "predicted" / "lines.jsonl").write_text('{"label": "predicted"}\n')
    page = report_page(tmp_path)
    assert not re.search(r"src=|href=\"[^#]|@import|url\(|<script", page)
    assert "1 are stale" in page
    assert "<b>" not in page
    assert page.count("<svg") == 1
    tags = Tags()
    tags.feed(page)
    assert (tags.open, tags.wrong) == ([], [])
    assert tags.rows == 4 + 2 + page.split('id="tuned"')[1].count("<tr>")
    with pytest.raises(ArgumentError, match="no file of records"):
        report_page(tmp_path / "predicted")


def test_the_committed_records_make_a_report(tmp_path):
    out = tmp_path / "report.html"
    shown = CliRunner().invoke(app, ["report", "-o", str(out)])
    assert shown.exit_code == 0, shown.output
    page = out.read_text()
    measured = [r for path in (ROOT / "results").rglob("*.jsonl") if '"schema_version"' in path.read_text()
                for r in newest(records.load(path))]  # fmt: skip
    assert page.count("</tr>") >= len(measured)
    assert "K sweep" in page
    if CHROMIUM is None:
        return
    # The page is no wider than a phone: wide tables scroll in their own frames.
    probe = page.replace("</body>", "<script>document.title=document.documentElement.scrollWidth</script></body>")
    out.write_text(probe)
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900", "--dump-dom", out.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert int(re.search(r"<title>(\d+)</title>", done.stdout)[1]) <= 500


PROFILE = GpuProfile((KernelTime("k", 10.0, 1.0),), 10.0, 10.0, 3.0, 500.0, 1000.0, 0.7, 0.2)


@pytest.mark.parametrize(
    ("profile", "word"),
    [
        (PROFILE, "arithmetic: 500.0 TFLOP/s are 70%"),
        (replace(PROFILE, memory_share=0.9), "memory: 1000 GB/s are 90%"),
        (replace(PROFILE, host_us=30.0), "the host"),
        (replace(PROFILE, matrix_share=0.3), "neither memory (20% of its peak) nor arithmetic (30%)"),
        (replace(PROFILE, matrix_share=None), "neither"),
        (replace(PROFILE, kernels=(KernelTime("k", 5.0, 1.0), KernelTime("copy", 5.0, 1.0))), "more than one kernel"),
    ],
)
def test_the_bottleneck_follows_from_the_figures(profile, word):
    assert word in measured_bottleneck(profile)


def test_the_figures_of_a_prediction_are_those_of_what_limits_it():
    """Matrix instructions share their pipe with others: neither may be in use most of the time alone."""
    kernel = SimpleNamespace(
        limiter="matrix pipe", busy={"LDS": 0.62, "matrix": 0.59, "VALU": 0.27}, stalls={"VALU": 0.38}, rounds=1.0,
        waves_per_simd=7,
    )  # fmt: skip
    told = predicted_bottleneck(SimpleNamespace(slowest=kernel))
    assert told.startswith("matrix pipe: matrix and VALU together in use 86% of the time")


def test_a_profile_without_a_gpu_is_predicted():
    words = ["profile", "matmul", "--gpu", "gfx1151", "--shape", "64,64,64", "--json"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert told["label"] == "predicted"
    busiest = max(told["kernels"][0]["busy"].values())
    assert f"{busiest:.0%}" in told["bottleneck"]
    assert "right" in told["counters"]["Counted at"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize(
    "words",
    [["bench", "gemm"], ["profile", "matmul"], ["tune", "matmul"], ["bench", "nothing"], ["bench", "attention", "--gpu",
     "gfx1151"], ["profile", "attention", "--shape", "1,2,3"], ["bench", "gemm", "--gpu", "gfx1151", "--group", "x"]],
    ids=" ".join,
)  # fmt: skip
def test_without_a_gpu_the_refusal_says_what_to_do(words):
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2
    assert re.search(r"gfx1151|there are|expected", shown.stderr)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64", "int8", "fp8"])
def test_the_judge_on_tensors_passes_what_is_right_and_nothing_else(dtype):
    problem = MatmulProblem.contiguous(40, 24, 33, dtype=dtype)
    names = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
             "int8": torch.int8, "fp8": torch.float8_e4m3fn, "int32": torch.int32}  # fmt: skip
    torch.manual_seed(0)
    if dtype == "int8":
        a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((40, 33), (33, 24)))
    else:
        a, b = (torch.randn(s, dtype=torch.float64).to(names[dtype]) for s in ((40, 33), (33, 24)))
    right = (a.double() @ b.double()).to(names[problem.dtype_out])
    share, why = judge(problem, a, b, right)
    assert why is None
    assert share <= 1
    damaged = right.clone()
    damaged[39, 23] += 1 if dtype == "int8" else damaged[39, 23].abs() * 0.05 + 0.01
    assert "C[39, 23]" in judge(problem, a, b, damaged)[1]
    if dtype != "int8":
        damaged[39, 23] = float("nan")
        share, why = judge(problem, a, b, damaged)
        assert why is not None
        assert share == float("inf")


@pytest.fixture
def emulated_cuda(monkeypatch):
    """Code for device "cuda", on CPU tensors and in the emulator."""
    from laneloom import emulated
    from laneloom.bench import products, works
    from laneloom.emulator.cuda_on_cpu import cuda_on_cpu
    from laneloom.gpu import get_gpu

    gpu = get_gpu("gfx1151")
    monkeypatch.setattr(works, "count_sets", lambda size: 1)
    monkeypatch.setattr(products, "seeded", lambda seed: torch.Generator().manual_seed(seed))
    with emulated(gpu), cuda_on_cpu(gpu):
        yield gpu


@pytest.mark.parametrize(
    "make",
    [
        *rarely(lambda w, gpu: w.gemm_work(50, 60, 70, "fp16", "nt", "g", gpu)),
        lambda w, gpu: w.gemm_work(40, 60, 70, "int8", "nn", "g", gpu),
        lambda w, gpu: w.attention_work((1, 4, 2, 70, 90, 64, 1), "fp16"),
        *rarely(lambda w, gpu: w.attention_work((2, 2, 2, 64, 64, 64, 0), "bf16")),
        *rarely(lambda w, gpu: w.transform_work(6, 5, "fp64")),
        lambda w, gpu: w.transform_work(4, 5, "complex128"),
    ],
)
def test_what_is_measured_is_right_and_so_is_its_rival(make, emulated_cuda):
    from laneloom.bench import works
    from laneloom.errors import LaneloomError

    work = make(works, emulated_cuda)
    assert 0 <= work.check() <= 1
    assert work.flops > 0
    theirs = work.torch(*work.arguments[0]) if work.problem["dtype"] != "int8" else None
    ours = work.ours(0)
    if theirs is not None and isinstance(ours, torch.Tensor):
        assert torch.allclose(ours.to(theirs.dtype), theirs, rtol=2e-2, atol=2e-2)
    # A kernel that is wrong is found: the same check of operands that changed behind its back.
    changed = {"matmul": "multiply", "attention": "flash_attention", "transform3d": "transform3d"}[work.op]
    whole = getattr(works, changed)

    def broken(*given, **how):
        result = whole(*given, **how)
        target = result if work.op == "attention" else (how.get("out") if "out" in how else given[3])
        target.view(-1)[-1:] += 3
        return result

    works.__dict__[changed] = broken
    try:
        with pytest.raises(LaneloomError):
            work.check()
    finally:
        works.__dict__[changed] = whole


def test_the_selftest_runs_emulated_and_sees_a_wrong_kernel(tmp_path, monkeypatch):
    from laneloom.bench import selftest

    out = tmp_path / "selftest.json"
    words = ["selftest", "--emulate", "gfx1151", "--most", "2", "-o", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    told = json.loads(out.read_text())
    assert told["counts"] == {"right": 2, "wrong": 0, "refused": 0, "failed": 0}
    assert told["how"] == "emulated"
    assert str(Path.home()) not in out.read_text()
    whole = selftest.matmul

    def broken(a, b, *, out=None, **how):
        result = whole(a, b, out=out, **how)
        result[-1, -1] += 1
        return result

    monkeypatch.setattr(selftest, "matmul", broken)
    assert CliRunner().invoke(app, words).exit_code == 1
    assert json.loads(out.read_text())["counts"]["wrong"] == 2


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied", "/home/anna/.triton"), "PermissionError: Permission denied"),
        (RuntimeError("in /home/anna/py/x.py:7, of matmul/nn/fp16"), "RuntimeError: in x.py:7, of matmul/nn/fp16"),
        (RuntimeError("no '/dev/kfd' for 1 / 2 of it"), "RuntimeError: no '/dev/kfd' for 1 / 2 of it"),
        (RuntimeError(f"('{Path.home()}/x.py')"), "RuntimeError: ('x.py')"),
    ],
)
def test_the_selftest_names_no_folder(monkeypatch, error, told):
    from laneloom.bench import selftest

    def failing(*args, **how):
        raise error

    monkeypatch.setattr(selftest, "matmul", failing)
    assert next(selftest.run_checks("cpu")).detail == told


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_the_selftest_without_a_gpu_says_so(tmp_path):
    out = tmp_path / "selftest.json"
    shown = CliRunner().invoke(app, ["selftest", "-o", str(out)])
    assert shown.exit_code == 2
    assert "--emulate gfx1151" in shown.stderr
    assert not out.exists()
    out.write_text("of another run")
    assert CliRunner().invoke(app, ["selftest", "-o", str(out)]).exit_code == 2
    assert out.read_text() == "of another run"
