"""The commands that run machine code: emulate, demo, doctor."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from sampled import rarely, sampled
from typer.testing import CliRunner

from laneloom.cli import app, damage, demo, product
from laneloom.cli import doctor as doctor_command
from laneloom.gpu import GPUS, get_gpu
from laneloom.verify import Verdict

EMULATED = [name for name, row in GPUS.items() if row.emulated]
KEYS = ["ok", "gpu", "shape", "dtype", "error", "budget", "wall_s", "instructions", "lds_bank_conflicts", "hazards"]


_WITHOUT_TORCH = """
import sys

class WithoutTorch:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] == "torch" else self.finder.find_spec(name, *rest)

sys.meta_path[:] = map(WithoutTorch, sys.meta_path)
from laneloom.cli import main
main()
"""


def run(*arguments: str, columns: int = 100):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": str(columns)})


def emulate(*options: str) -> dict:
    result = run("emulate", "matmul", "--json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("gpu", sampled(EMULATED, every=3))  # families have members of the same instructions
def test_emulate_on_every_emulated_gpu(gpu):
    shown = emulate("--gpu", gpu, "--shape", "70,50,90")
    assert list(shown) == KEYS
    assert shown["ok"] is True
    assert (shown["gpu"], shown["shape"], shown["dtype"]) == (gpu, [70, 50, 90], "fp16")
    assert 0 < shown["error"] <= shown["budget"] < 0.1
    assert shown["wall_s"] > 0
    assert isinstance(shown["instructions"], int)
    assert shown["instructions"] > 1000
    assert shown["lds_bank_conflicts"] is None
    assert shown["hazards"] is None


def test_denormals_that_cdna_2_takes_for_zeros_are_in_the_budget():
    """One element of A in 20,000 is denormal in fp16: here some are."""
    assert emulate("--gpu", "gfx90a", "--shape", "100,200,300", "--out-dtype", "fp32")["ok"]


@pytest.mark.covering
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("dtype", "out"), [("bf16", "bf16"), ("bf16", "fp32"), ("fp16", "bf16")])
def test_layouts_and_bf16_without_torch(layout, dtype, out):
    shown = emulate("--gpu", "gfx1201", "--shape", "33,47,65", "--dtype", dtype, "--out-dtype", out, "--layout", layout)
    assert shown["ok"]
    assert shown["dtype"] == dtype


@pytest.mark.parametrize("dtype", ["fp8", "bf8"])
def test_floats_of_8_bits_on_cdna_5(dtype):
    assert emulate("--gpu", "gfx1250", "--shape", "33,47,65", "--dtype", dtype)["ok"]


@pytest.mark.parametrize(
    "words",
    [
        ["emulate", "matmul", "--shape", "32,32,32", "--dtype", "bf16"],
        ["emulate", "matmul", "--gpu", "gfx1250", "--shape", "33,47,65"],
        ["predict", "matmul", "--shape", "16,64,256", "--weight", "int4"],
        ["ladder", "sgemm", "--gpu", "gfx1100", "--step", "k2", "--no-predict"],
        ["ladder", "sgemm", "--gpu", "h200"],
        ["report", "-o", "page.html"],
        ["explain", "matmul", "--gpu", "sm_90a"],
    ],
    ids=" ".join,
)
def test_what_needs_no_torch(words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ["isa", "matmul", "--gpu", "sm_90a"],
        ["ladder", "transform3d", "--gpu", "gfx1151"],
        ["profile", "attention", "--gpu", "gfx1151"],
    ],
    ids=" ".join,
)
def test_what_needs_torch_says_so(words):
    done = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH, *words], capture_output=True, text=True, check=False)
    expected = "laneloom: the package 'torch' is missing: run `pip install torch`\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.parametrize("shape", ["0,5,5", "5,0,5", "5,5,0", "1,1,1"])
def test_smallest_products(shape):
    shown = emulate("--shape", shape)
    assert shown["ok"]
    assert (shown["instructions"] == 0) == ("0" in shape)


def test_seed_decides_the_operands():
    first, again, other = (emulate("--shape", "64,64,64", "--seed", seed) for seed in ("1", "1", "2"))
    assert first["error"] == again["error"] != other["error"]


def test_emulate_text():
    result = run("emulate", "matmul", "--shape", "64,64,64")
    assert result.exit_code == 0
    assert "wmma:block_m=" in result.stdout
    assert "right: within the FP64 budget" in result.stdout


def test_a_wrong_product_ends_with_1(monkeypatch):
    monkeypatch.setattr(product, "judge", lambda *_: Verdict(False, float("inf"), 0.5, (3, 4)))
    result = run("emulate", "matmul", "--shape", "32,32,32", "--json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert (shown["ok"], shown["error"]) == (False, None)
    result = run("emulate", "matmul", "--shape", "32,32,32")
    assert result.exit_code == 1
    assert "wrong: C[3, 4] is off by inf" in result.stdout


def test_a_write_outside_the_output_ends_with_1(monkeypatch):
    monkeypatch.setattr("laneloom.verify.Guarded.untouched_outside", lambda self: False)
    result = run("emulate", "matmul", "--shape", "32,32,32")
    assert result.exit_code == 1
    assert "the kernel wrote outside C" in result.stdout


@pytest.fixture
def small_demo(monkeypatch):
    """The demo on smaller matrices; a product of its own size takes a second on each GPU."""
    monkeypatch.setattr(demo, "_SIZE", 512)
    monkeypatch.setattr(demo, "_DAMAGED_SIZE", 128)


@pytest.mark.parametrize("columns", [80, *rarely(120)])
def test_demo(small_demo, tmp_path, columns):
    picture = tmp_path / "pictures" / "demo.svg"
    result = run("demo", "--svg", str(picture), columns=columns)
    assert result.exit_code == 0, result.output
    for step in ("1  Compile", "2  Execute", "3  Check", "4  Doubt", "Not shown", "All right"):
        assert step in result.stdout
    assert result.stdout.count("caught") >= 4  # a matrix instruction and a wait on each GPU, barriers if waves share
    assert "MISSED" not in result.stdout
    assert result.stdout.count("clean") == 2
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "\x1b" not in result.stdout
    ElementTree.parse(picture)
    assert "http" not in picture.read_text().replace("http://www.w3.org/2000/svg", "").replace(
        "https://www.textualize.io", ""
    )


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("gfx942", ("MFMA, the matrix instruction of a wave of 64 lanes,", "8 MFMA of 16 x 16 x 16", "MFMA cuts off")),
        ("gfx1250", ("WMMA, the matrix instruction of a wave of 32 lanes,", "2 WMMA of 16 x 16 x 32", "one rounding.")),
    ],
)
def test_demo_names_the_instructions_of_each_gpu(small_demo, gpu, said):
    result = run("demo", "--gpu", gpu, columns=120)
    assert result.exit_code == 0, result.output
    printed = " ".join(result.stdout.split())
    for words in said:
        assert words in printed
    assert ("WMMA" in printed) is (gpu == "gfx1250")
    assert "WMMA3" not in printed
    assert ("The G ask" in printed) is (gpu == "gfx942")  # CDNA 5 copies to LDS without registers


def test_demo_notices_a_wrong_product(small_demo, monkeypatch):
    monkeypatch.setattr(product, "judge", lambda *_: Verdict(False, 1.0, 0.5, (0, 0)))
    result = run("demo", "--gpu", "gfx1151")
    assert result.exit_code == 1
    assert "gfx1151: C[0, 0] is off by 1" in result.stdout


def test_demo_notices_a_check_that_cannot_fail(small_demo, monkeypatch):
    monkeypatch.setattr(product, "judge", lambda *_: Verdict(True, 0.0, 0.5, (0, 0)))
    result = run("demo", "--gpu", "gfx1151")
    assert result.exit_code == 1
    assert "a missing v_wmma_f32_16x16x16_f16 went unnoticed" in result.stdout


def test_demo_notices_a_strict_mode_that_sees_nothing(small_demo, monkeypatch):
    real = damage.run_without
    monkeypatch.setattr(damage, "run_without", lambda *a, strict: real(*a, strict=False))
    result = run("demo", "--gpu", "gfx1151")
    assert result.exit_code == 1
    assert "a missing s_waitcnt went unnoticed" in result.stdout


def test_demo_leaves_out_barriers_where_waves_share_a_workgroup():
    shared = product.Product(get_gpu("gfx1151"), 1024, 1024, 1024, "fp16", "fp32", "nn")
    config, code = product.compile_product(shared)
    assert code.num_warps > 1
    assert set(damage.victims(code)) == {"matrix", "wait", "barrier"}
    small = replace(shared, m=256, n=256, k=4 * config.block_k)
    assert [d.hazard for d in damage.run_damaged(code, config, small, seed=0)] == ["", "wait", "race"]


def test_doctor_json():
    result = run("doctor", "--json")
    shown = json.loads(result.stdout)
    assert result.exit_code == 0, [f for f in shown["findings"] if f["status"] == "broken"]
    assert shown["ok"] is True
    found = {(f["section"], f["name"]): f for f in shown["findings"]}
    for name in ("python", "numpy", "triton"):
        assert found["software", name]["status"] == "ok"
    for name in GPUS:
        assert found["compile", name]["facts"]["code_bytes"] > 0
    assert found["emulate", "gfx1151"]["facts"]["instructions"] > 0
    for cache in ("laneloom", "triton"):
        assert set(found["cache", cache]["facts"]) == {"path", "entries", "bytes"}


def test_doctor_finds_that_triton_interprets():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "laneloom", "doctor", "--json"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    broken = [f for f in json.loads(done.stdout)["findings"] if f["status"] == "broken"]
    assert [(f["section"], f["name"]) for f in broken] == [("software", "triton")]
    assert "TRITON_INTERPRET" in broken[0]["detail"]


def test_doctor_tells_what_is_broken(monkeypatch):
    def fail(name):
        raise RuntimeError(f"no code for {name}")

    monkeypatch.setattr(doctor_command, "_compile_probe", fail)
    result = run("doctor")
    assert result.exit_code == 1
    assert "BROKEN" in result.stdout
    assert "compile gfx1151: RuntimeError: no code for gfx1151" in result.stdout


@pytest.mark.parametrize("command", ["emulate", "predict"])
def test_a_pipe_gets_the_config_as_one_word(command):
    """So that it can be given to --config; COLUMNS or a terminal fold it."""
    product = ("matmul", "--gpu", "gfx1201", "--shape", "32,32,32")
    done = CliRunner().invoke(app, [command, *product], catch_exceptions=False, env={"COLUMNS": None})
    config = next(line.split() for line in done.stdout.splitlines() if line.startswith("Schedule"))[1]
    assert len(config) > 100
    assert config == json.loads(run("explain", *product, "--json").stdout)["config"]
    assert config not in run(command, *product).stdout
