"""Odd requests of the command line: each ends in one sentence on stderr and an exit code that is not 0."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laneloom.bench import sgemm_rungs
from laneloom.cli import app
from laneloom.cli.ladder import _sgemm_table
from laneloom.cli.terminal import least_width
from laneloom.errors import UnsupportedError
from laneloom.gpu import get_gpu


def sentence(*arguments: str, code: int = 2, **environment: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100"} | environment)
    assert result.exit_code == code, result.output
    (line,) = result.stderr.strip().splitlines()
    return line.removeprefix("laneloom: ")


@pytest.mark.parametrize("command", ["emulate", "isa", "explain"])
def test_an_empty_option_is_not_left_out(command):
    assert sentence(command, "matmul", "--gpu", "").startswith("unknown GPU ''")
    assert sentence(command, "matmul", "--out-dtype", "").startswith("--out-dtype: expected fp64")


@pytest.mark.parametrize("command", ["emulate", "isa", "explain", "predict"])
def test_pairs_of_4_bits_are_operands_only(command):
    assert "got 'int4'" in sentence(command, "matmul", "--out-dtype", "int4")


def test_modifiers_below_zero():
    assert "cbsz of v_mfma" in sentence("layout", "v_mfma_f32_32x32x8f16", "--gpu", "gfx942", "--cbsz", "-1")


def test_a_folder_is_no_file_of_records(tmp_path):
    message = sentence("ladder", "transform3d", "--records", str(tmp_path))
    assert message == f"cannot read {tmp_path}: Is a directory"


def test_layouts_are_the_products():
    words = ("profile", "attention", "--gpu", "gfx1151", "--layout", "tt")
    assert sentence(*words) == "--layout: only matmul has layouts, attention has none"


@pytest.mark.parametrize("operation", ["attention", "transform3d"])
def test_a_dtype_that_an_operation_does_not_take(operation):
    for gpu in ((), ("--gpu", "gfx1151")):
        assert sentence("profile", operation, "--dtype", "int8", *gpu).startswith(f"--dtype: {operation} takes fp")


def test_the_fp32_ladder_has_no_step_for_cdna():
    assert sentence("ladder", "sgemm", "--gpu", "gfx942").startswith("--gpu: the FP32 ladder is for RDNA")


def test_a_home_that_holds_no_cache(tmp_path, monkeypatch):
    home = tmp_path / "file"
    home.write_text("")
    for name in ("HOME", "TRITON_HOME"):
        monkeypatch.setenv(name, str(home))
    for name in ("TRITON_CACHE_DIR", "LANELOOM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for words in (["emulate", "matmul", "--shape", "7,7,7"], ["isa", "matmul"]):
        done = _run(words)
        assert done.returncode == 1
        advice = "set TRITON_CACHE_DIR to a folder that can be written"
        assert done.stderr == f"laneloom: {home}/.triton: Not a directory ({advice})\n"


@pytest.mark.parametrize("home", ["/proc/none", "/proc/none/anna"])
def test_a_home_that_cannot_be_made(monkeypatch, home):
    monkeypatch.setenv("HOME", home)
    for name in ("TRITON_HOME", "TRITON_CACHE_DIR", "LANELOOM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    done = _run(["emulate", "matmul", "--shape", "7,7,7"])
    advice = "set TRITON_CACHE_DIR to a folder that can be written"
    assert (done.returncode, done.stderr) == (1, f"laneloom: /proc/none: No such file or directory ({advice})\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk(monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        done = _run(["gpus"], stdout=full)
    assert (done.returncode, done.stderr) == (1, "laneloom: No space left on device\n")


def test_a_terminal_without_the_tables_characters(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = _run(["ladder", "transform3d", "-K", "10"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "K=10" in done.stdout


def test_names_as_rocm_prints_them():
    assert get_gpu("gfx90a:sramecc+:xnack-") is get_gpu("gfx90a")
    assert "unknown GPU 'gfx906:xnack-'" in sentence("explain", "matmul", "--gpu", "gfx906:xnack-")


def _run(arguments: list[str], stdout: int | io.TextIOBase = subprocess.PIPE) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "laneloom", *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("asked", "known"),
    [("rx9070", "gfx1201"), ("RX 9070", "gfx1201"), ("Strix Halo", "gfx1151"), ("mi300x", "gfx942")],
)
def test_a_products_name_leads_to_its_gpu(asked, known):
    assert f"the nearest known are {known} (" in sentence("explain", "matmul", "--gpu", asked)


def test_a_gpu_like_none():
    assert "unknown GPU 'zzz'; known are gfx1100 (" in sentence("explain", "matmul", "--gpu", "zzz")


@pytest.mark.parametrize("name", ["kernel.co", "kernel.hsaco", "kernel.o", "kernel.s"])
def test_a_file_that_is_not_there_is_no_operation(name):
    assert sentence("isa", name) == f"cannot read {name}: No such file or directory"


@pytest.mark.parametrize("command", [["ladder", "transform3d"], ["ladder", "sgemm", "--gpu", "h200"], ["gpus"]])
def test_a_narrow_terminal_cuts_no_figures_off(command):
    result = CliRunner().invoke(app, command, env={"COLUMNS": "40"})
    assert result.exit_code == 0
    assert "…" not in result.stdout
    assert {"fused", "H7", "emulated"} & set(result.stdout.split())


@pytest.mark.parametrize("columns", ["0", "1", "20"])
def test_fewer_columns_than_words_need_lose_none(columns):
    for command in (["explain", "matmul"], ["gpus"]):
        wanted, got = (CliRunner().invoke(app, command, env={"COLUMNS": width}).stdout for width in ("40", columns))
        assert got == wanted
        assert "gfx1151" in got


def test_what_else_predicts_attention():
    assert "`laneloom profile attention --gpu gfx1151` is" in sentence("bench", "attention", "--gpu", "gfx1151")
    assert sentence("bench", "roofline", "--gpu", "gfx1151").endswith("predicted, roofline is not here")


def test_an_order_of_k_where_there_is_one_alone():
    said = sentence("layout", "v_wmma_f32_16x16x16_f16", "--gpu", "gfx1151", "--k-order", "articles")
    assert said == "--k-order: A and B of v_wmma_f32_16x16x16_f16 on gfx1151 have one order (calculator), not two"
    for words in (("v_wmma_i32_16x16x16_iu8",), ("v_wmma_f32_16x16x16_f16", "--wave", "64")):
        assert "have one order" in sentence("layout", *words, "--gpu", "gfx1201", "--k-order", "articles")


def test_records_of_the_3d_ladder_that_are_not_there(tmp_path):
    file = tmp_path / "none.jsonl"
    said = sentence("ladder", "transform3d", "--records", str(file))
    assert said == f"--records: cannot read {file}: No such file or directory"
    file.write_text("")
    assert sentence("ladder", "transform3d", "--records", str(file)) == f"{file} has no records of 2048 tensors"


@pytest.mark.parametrize("ladder", [("transform3d",), ("sgemm", "--gpu", "h200")])
def test_records_of_another_operation(ladder):
    file = Path(__file__).parents[2] / "results/h200/attention.jsonl"
    assert sentence("ladder", *ladder, "--records", str(file)).startswith(f"{file} has no records of ")


def test_options_that_contradict_each_other():
    for ladder in ("transform3d", "sgemm"):
        words = ("ladder", ladder, "--gpu", "gfx1100", "--records", "none.jsonl")
        assert sentence(*words).endswith("are emulated and predicted, no records are shown")
    assert sentence("emulate", "matmul", "--coverage").startswith("--coverage lists what the emulator knows")


def test_more_memory_than_there_is():
    words = ("predict", "matmul", "--shape", "2000000000,2000000000,2000000000")
    assert sentence(*words).startswith("not enough memory for this size: Unable to allocate 6.94 EiB")


def test_a_plot_of_no_times(tmp_path):
    pytest.importorskip("matplotlib")
    words = ("--gpu", "gfx1201", "--step", "k2", "--no-predict", "--plot", str(tmp_path / "none.svg"))
    assert sentence("ladder", "sgemm", *words) == "--plot: no time of these steps is predicted, measured or published"
    assert not list(tmp_path.iterdir())


def test_a_profile_of_another_gpu(tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"gpu": "gfx1151", "profile": []}')
    words = ("isa", "matmul", "--shape", "64,64,64", "--no-listing", "--check", "--profile", str(profile))
    said = sentence(*words, "--gpu", "gfx1201")
    assert said == f"--profile: {profile} was counted on gfx1151, the code is for gfx1201"
    assert CliRunner().invoke(app, [*words, "--gpu", "gfx1151"]).exit_code == 0


def test_a_report_of_a_file_that_is_no_text(tmp_path):
    (tmp_path / "broken.jsonl").write_bytes(bytes(range(128, 256)))
    said = sentence("report", "--results", str(tmp_path), "-o", str(tmp_path / "page.html"))
    assert said == f"{tmp_path}/broken.jsonl is not text: expected benchmark records, JSON lines"


@pytest.mark.parametrize("ladder", ["sgemm", "transform3d"])
def test_a_plot_is_refused_before_the_work(ladder, tmp_path, monkeypatch):
    def work(*_: object, **__: object) -> None:
        raise AssertionError("worked first")

    monkeypatch.setattr(sgemm_rungs, "find_rungs", work)
    if ladder == "transform3d":
        pytest.importorskip("torch")
        from laneloom.bench import transform3d_rungs

        monkeypatch.setattr(transform3d_rungs, "predict_rungs", work)
    words = ("ladder", ladder, "--gpu", "gfx1100", "--plot")
    assert sentence(*words, "x.pdf") == "--plot: expected a file that ends in .svg or .png, got 'x.pdf'"
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    assert sentence(*words, str(tmp_path / "file/x.svg")).startswith("--plot: cannot write ")


def test_the_fp32_ladder_fits_a_hundred_characters():
    widest = sgemm_rungs.Rung(
        "planned", "cp.async, 8 x 16 a thread", 255, 232448, error=9.9e-8, budget=1e-7, measured_us=1601540.0,
        x_vendor=11.092)  # fmt: skip
    found = sgemm_rungs.Ladder("sm_90a", "H200", 16384, "cuBLAS", "measured", (widest,), 61.2)
    assert least_width(_sgemm_table(found)) <= 100


def test_orders_of_the_transform_are_positive():
    result = CliRunner().invoke(app, ["ladder", "transform3d", "--gpu", "gfx1151", "-K", "-3"])
    assert result.exit_code == 2
    assert "greater than or equal to 1" in result.stderr


def test_options_in_front_of_validate_are_not_ignored():
    for option in ("-K", "-N"):
        words = ("transformbench", option, "4", "validate", "--gpu", "gfx1151")
        assert sentence(*words) == f"{option}: expected behind validate, whose options are its own"


def test_options_of_layouts_that_would_be_ignored():
    words = ("layout", "v_wmma_f32_16x16x16_f16", "--gpu", "gfx1151")
    assert sentence(*words, "--block", "3") == "--block belongs to --element or --output"
    assert sentence(*words, "--register", "0,1", "--block", "3") == "--block belongs to --element or --output"
    assert sentence(*words, "--output", "1,2", "--matrix", "A").startswith("--output shows A, B, C and D")
    assert sentence(*words, "--cbsz", "3") == "cbsz of v_wmma_f32_16x16x16_f16 may be 0, not 3"


def test_results_that_cannot_be_written(tmp_path):
    kernel = tmp_path / "kernel.s"
    kernel.write_text(
        '.amdgcn_target "amdgcn-amd-amdhsa--gfx1151"\n.type k,@function\nk:\ns_trap 2\ns_endpgm\n'
        ".amdhsa_kernel k\n.amdhsa_next_free_vgpr 1\n.amdhsa_next_free_sgpr 1\n.end_amdhsa_kernel\n"
    )
    words = ("run", str(kernel), "--grid", "1", "--block", "32", "--arg")
    assert sentence(*words, f"f32:4:zeros->{kernel}/x.npy").startswith("--arg: cannot write ")
    assert sentence(*words, "lds:64->x.npy") == "--arg lds:64->x.npy: LDS is not written to a file"


def test_a_kernel_that_the_file_has_not(tmp_path):
    kernel = tmp_path / "kernel.s"
    kernel.write_text(
        '.amdgcn_target "amdgcn-amd-amdhsa--gfx1151"\n.type k,@function\nk:\ns_endpgm\n'
        ".amdhsa_kernel k\n.amdhsa_next_free_vgpr 1\n.amdhsa_next_free_sgpr 1\n.end_amdhsa_kernel\n"
    )
    words = ("run", str(kernel), "--grid", "1", "--block", "1")
    assert sentence(*words, "--kernel", "nope") == "no kernel 'nope' in this assembly: it describes k"
    said = CliRunner().invoke(app, words, env={"COLUMNS": "200"}).stdout
    assert said.startswith("k on gfx1151, emulated: 1 workgroup of 1 thread, 0 bytes of LDS, 1 wave-instruction in ")


@pytest.mark.parametrize(
    "words",
    [("selftest", "-o"), ("report", "-o"), ("predict", "matmul", "--timeline"), ("emulate", "matmul", "--html")],
)
def test_standard_output_is_no_file(words, tmp_path, monkeypatch):
    if words[0] == "selftest":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert sentence(*words, "-").endswith(": expected the name of a file, got '-'")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("operation", "shape"), [("attention", "100,100,100000,64"), ("transform3d", "65000,2")]
)
def test_a_profile_of_more_than_fits(operation, shape):
    said = sentence("profile", operation, "--gpu", "gfx1151", "--shape", shape)
    assert said.startswith("--shape: the operands and the result take ")


def test_work_that_fails_leaves_no_empty_file(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise UnsupportedError("failed")

    monkeypatch.setattr(sgemm_rungs, "find_rungs", fail)
    pytest.importorskip("matplotlib")
    kept, made = tmp_path / "kept.svg", tmp_path / "made.svg"
    kept.write_text("there")
    for path in (kept, made):
        assert sentence("ladder", "sgemm", "--gpu", "gfx1100", "--plot", str(path)) == "failed"
    assert kept.read_text() == "there"
    assert not made.exists()


def test_a_script_to_patch_that_is_not_there(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "none.py"
    done = subprocess.run([sys.executable, "-m", "laneloom.pytorch", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"laneloom: cannot read {script}: No such file or directory\n")


def test_options_that_nothing_reads_are_not_ignored():
    assert sentence("emulate", "--coverage", "--strict").startswith("--strict: --coverage lists")
    assert sentence("compare", "old.jsonl", "new.jsonl", "--shape", "8,8,8").startswith("--shape: two files of records")


def test_a_ladder_without_a_level_that_can_run():
    assert sentence("ladder", "transform3d", "--gpu", "gfx1151", "-K", "1000").startswith("no level can run: L1-global")
