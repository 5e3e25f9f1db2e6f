"""The command line, as far as nothing is compiled or emulated for long: help, errors, JSON, what it imports."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laneloom import __version__
from laneloom.cli import app, doctor
from laneloom.cli.terminal import print_json
from laneloom.codegen import compile_kernel
from laneloom.errors import UnsupportedError
from laneloom.gpu import GPUS

COMMANDS = ("demo", "doctor", "emulate", "isa", "explain", "gpus")


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "100"})


def refusal(*arguments: str) -> str:
    """The one sentence of a request that cannot be done."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("laneloom: ")
    return lines[0]


def test_help_names_every_command():
    result = run("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", result.stdout, re.MULTILINE)
    assert "..." not in result.stdout.split("Commands:")[1]  # no summary is cut off


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    assert run(command, "--help").exit_code == 0


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"laneloom {__version__}\n")


def test_help_starts_at_once_and_imports_nothing_heavy():
    help_text = "import sys\nfrom laneloom.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
    heavy = "print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules], time.process_time())"

    def time_of(code):
        code = f"{code}import sys, time\n{heavy}"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        modules, _, seconds = run.stdout.splitlines()[-1].rpartition(" ")
        assert modules == "[]"
        return float(seconds)

    # Of the processor, whatever else runs; beside typer's own at that moment, however fast the machine is just then.
    assert min(time_of(help_text) / time_of("import typer\n") for _ in range(4)) < 4


def test_module_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "laneloom", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"laneloom {__version__}\n"


@pytest.mark.parametrize("command", ["emulate", "isa", "explain"])
@pytest.mark.parametrize(
    "shape", ["512", "1,2", "1,2,3,4", "1,2,-3", "a,b,c", "1.5,2,3", "", "1,,3", f"{1 << 31},1,1", "9" * 30 + ",1,1"]
)
def test_bad_shapes_are_refused(command, shape):
    message = refusal(command, "matmul", "--shape", shape)
    assert "--shape" in message
    assert repr(shape) in message


@pytest.mark.parametrize("command", ["emulate", "isa", "explain"])
@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        ("--gpu", "gfx1159", "gfx1154 (RDNA 3.5"),
        ("--dtype", "fp61", "fp16, bf16"),
        ("--out-dtype", "int3", "fp16, bf16"),
        ("--layout", "nx", "nn, nt, tn or tt"),
    ],
)
def test_bad_options_are_refused_with_what_is_known(command, option, given, expected):
    message = refusal(command, "matmul", option, given)
    assert expected in message
    assert repr(given) in message


@pytest.mark.parametrize("command", ["emulate", "isa", "explain", "tune"])
def test_unknown_operation_gets_the_nearest(command):
    assert "nearest is matmul" in refusal(command, "matmull")
    assert "known ones are: matmul" in refusal(command, "zzz")


def test_a_missing_file_of_records_is_named():
    assert "no file old.jsonl" in refusal("compare", "old.jsonl", "new.jsonl")
    assert "a second file" in refusal("compare", "old.jsonl")


@pytest.mark.parametrize("command", [["transformbench"], ["transformbench", "validate"]])
def test_levels_are_checked_before_the_gpu(command):
    assert "--level: expected one of 1, 2" in refusal(*command, "--level", "9")


def test_unknown_command_and_missing_argument_end_with_2():
    assert run("emulat").exit_code == 2
    assert run("emulate").exit_code == 2


@pytest.mark.parametrize("command", ["emulate", "isa", "explain", "predict", "tune"])
def test_int32_is_no_dtype_of_operands(command):
    assert "--dtype: expected" in refusal(command, "matmul", "--gpu", "gfx1151", "--dtype", "int32")


@pytest.mark.parametrize("command", ["emulate", "isa", "explain"])
def test_dtypes_without_a_schedule_are_refused(command):
    assert "got fp64" in refusal(command, "matmul", "--gpu", "gfx1151", "--dtype", "int8", "--out-dtype", "fp64")


def test_4_bit_operands_come_in_pairs():
    assert "--shape: expected an even K" in refusal("explain", "matmul", "--dtype", "int4", "--shape", "8,8,7")


def test_gpus_that_are_not_emulated_are_refused():
    assert "sm_90a (Hopper) is not emulated" in refusal("demo", "--gpu", "sm_90a")
    assert "sm_90a (Hopper) is not emulated" in refusal("run", __file__, "--grid", "1", "--gpu", "sm_90a")


@pytest.mark.parametrize(
    "command",
    ["demo --svg", "emulate matmul --html", "predict matmul --timeline", "report --output", "selftest --output",
     "bench gemm --plot", "bench gemm --out"],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_refused_at_once(command, tmp_path):
    (tmp_path / "file").write_text("")
    option = command.split()[-1]
    for place in (tmp_path, tmp_path / "file" / "out"):
        assert f"{option}: cannot write {place}: " in refusal(*command.split(), str(place))


def test_predictions_have_no_rivals_and_leave_no_records():
    for option in ("--vs", "--out", "--plot"):
        assert f"{option}: with --gpu nothing is measured" in refusal("bench", "gemm", "--gpu", "gfx1151", option, "x")


def test_records_that_are_no_text_are_refused(tmp_path):
    file = tmp_path / "records.jsonl"
    file.write_bytes(bytes(range(256)))
    assert f"{file} is not text" in refusal("compare", str(file), str(file))


def test_sizes_that_cannot_be_checked_are_refused():
    assert "37253 GiB" in refusal("emulate", "matmul", "--shape", "1000000,1000000,10")


@pytest.mark.parametrize("command", ["isa", "explain"])
def test_an_empty_product_has_no_kernel(command):
    assert "nothing to multiply" in refusal(command, "matmul", "--shape", "0,5,5")


def test_gpus_json():
    rows = json.loads(run("gpus", "--json").stdout)
    assert [row["name"] for row in rows] == list(GPUS)
    for row in rows:
        assert row["sources"]
        assert row["published"] == (row["peak_tflops"].get("fp16", 0) > 0)
        assert row["emulated"] is GPUS[row["name"]].emulated


def test_gpus_table_names_every_row_and_source():
    shown = " ".join(run("gpus").stdout.split())
    for row in GPUS.values():
        assert row.name in shown
        assert all(source in shown for source in row.sources)


def test_explain_json():
    result = run("explain", "matmul", "--gpu", "gfx1100", "--shape", "4096,4096,4097", "--out-dtype", "fp32", "--json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert list(shown) == [
        "gpu", "shape", "dtype", "out_dtype", "layout", "precision", "scales", "schedule", "config", "knobs", "source",
        "reason", "facts", "passed_over", "patched",
    ]  # fmt: skip
    assert (shown["gpu"], shown["shape"], shown["dtype"], shown["out_dtype"], shown["layout"]) == (
        "gfx1100", [4096, 4096, 4097], "fp16", "fp32", "nn",
    )  # fmt: skip
    assert shown["config"].startswith(shown["schedule"] + ":")
    assert shown["knobs"]["block_m"] >= 16
    # Rows of 4097 elements are loaded one element at a time, for which the largest tiles are refused.
    assert shown["passed_over"]
    assert all(set(entry) == {"config", "why"} for entry in shown["passed_over"])


def test_promoted_sums_of_8_bit_floats():
    words = ("explain", "matmul", "--gpu", "sm_90a", "--shape", "512,512,512", "--precision", "promoted")
    assert "precision: 'promoted' is for fp8 or bf8 operands, a's dtype is bf16" in refusal(*words, "--dtype", "bf16")
    shown = json.loads(run(*words, "--dtype", "fp8", "--json").stdout)
    assert (shown["precision"], shown["schedule"]) == ("promoted", "hopper_cluster")
    assert any("leave the tensor cores and are added in FP32" in fact for fact in shown["facts"])


@pytest.mark.parametrize("command", ["explain", "isa"])
def test_precision_of_fp32(command):
    words = (command, "matmul", "--gpu", "sm_90a", "--shape", "64,64,20000", "--layout", "tn", "--precision", "3xtf32")
    assert "precision: '3xtf32' is for fp32 operands" in refusal(*words)
    if command == "explain":
        shown = json.loads(run(*words, "--dtype", "fp32", "--json").stdout)
        assert (shown["precision"], shown["schedule"]) == ("3xtf32", "hopper_registers")
        assert "B is turned to lines along K in shared memory" in shown["facts"]
        assert "precision 3xtf32" in run(*words, "--dtype", "fp32").stdout


def test_explain_text_gives_the_refused_configs():
    shown = " ".join(run("explain", "matmul", "--gpu", "gfx1100", "--shape", "4096,4096,4097").stdout.split())
    assert "Refused" in shown
    assert "expected at most 32 elements" in shown


def test_isa_json():
    result = run("isa", "matmul", "--gpu", "gfx1201", "--shape", "64,64,64", "--json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert (shown["gpu"], shown["shape"], shown["layout"]) == ("gfx1201", [64, 64, 64], "nn")
    assert isinstance(shown["registers"]["vgprs"], int)
    assert shown["registers"]["vgpr_spills"] == 0
    assert isinstance(shown["lds_bytes"], int)
    assert shown["occupancy"]["limiter"] in ("registers", "LDS", "wave slots")
    assert "v_wmma_f32_16x16x16_f16" in shown["hot_loop"]["mix"]["matrix"]
    assert len(shown["listing"]) == shown["mix"]["instructions"]


def test_isa_in_a_pipe_cuts_no_line():
    with_listing = run("isa", "matmul", "--gpu", "gfx1201", "--shape", "64,64,64").stdout
    listed = json.loads(run("isa", "matmul", "--gpu", "gfx1201", "--shape", "64,64,64", "--json").stdout)["listing"]
    for entry in listed:
        assert entry["text"] in with_listing
    assert "┃" in with_listing  # the loop's mark
    without = run("isa", "matmul", "--gpu", "gfx1201", "--shape", "64,64,64", "--no-listing").stdout
    assert "Occupancy" in without
    assert "┃" not in without


@pytest.fixture(scope="module")
def assembly(tmp_path_factory) -> Path:
    from laneloom.cli.probe import scaled_sum

    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "scale": "fp32"}
    code = compile_kernel(scaled_sum, gpu="gfx1100", signature=signature, constants={"BLOCK": 256})
    path = tmp_path_factory.mktemp("isa") / "kernel.s"
    path.write_text(code.asm)
    return path


def test_isa_of_a_file_takes_the_gpu_that_it_names(assembly):
    shown = json.loads(run("isa", str(assembly), "--json").stdout)
    assert (shown["kernel"], shown["gpu"], shown["hot_loop"]) == ("scaled_sum", "gfx1100", None)
    assert run("isa", str(assembly), "--gpu", "gfx1100").exit_code == 0


def test_isa_of_a_bad_file(assembly, tmp_path):
    assert "No such file" in refusal("isa", "missing.s")
    binary = tmp_path / "binary.s"
    binary.write_bytes(b"\x7fELF\xff\xfe\x00")
    assert "no 64-bit little-endian ELF file" in refusal("isa", str(binary))
    binary.write_bytes(b"\xff\xfe\x00")
    assert "neither assembly nor a code object" in refusal("isa", str(binary))
    for text, name in [
        ("define amdgpu_kernel void @k() {\n  ret void\n}\n", "LLVM IR"),
        ('#blocked = #ttg.blocked<{}>\nmodule attributes {} {\n  tt.func public @k() {\n', "MLIR"),
        (".version 8.0\n.target sm_90a\n.visible .entry k() { ret; }\n", "PTX"),
    ]:
        binary.write_text(text)
        for check in [], ["--check"]:
            assert f"is {name}, not AMDGCN assembly" in refusal("isa", str(binary), "--gpu", "gfx1100", *check)
    bare = tmp_path / "bare.s"
    bare.write_text("s_endpgm\n")
    assert "--gpu" in refusal("isa", str(bare))
    described = "k:\n\tv_mov_b32 v1, 1\n\ts_endpgm\n\t.amdhsa_kernel k\n\t\t.amdhsa_next_free_vgpr 8\n"
    bare.write_text(described + "\t\t.amdhsa_next_free_sgpr 8\n\t.end_amdhsa_kernel\n")
    assert "nothing found" in run("isa", str(bare), "--gpu", "gfx1100", "--check").stdout
    bare.write_text(bare.read_text().replace("v_mov", "v_moov"))
    result = run("isa", str(bare), "--gpu", "gfx1100", "--check")
    assert result.exit_code == 1
    assert "line 2: `v_moov_b32 v1, 1`: invalid instruction" in result.stderr
    assert "no kernel 'other'" in refusal("isa", str(assembly), "--kernel", "other")
    wrong = tmp_path / "wrong.s"
    wrong.write_text(assembly.read_text().replace("s_endpgm", "s_nonsense", 1))
    result = run("isa", str(wrong))
    assert result.exit_code == 1
    assert "s_nonsense" in result.stderr


def test_json_has_no_number_that_json_lacks(capsys):
    print_json({"a": float("inf"), "b": [float("nan"), 1.5], "c": None})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": None}


def test_amd_gpus_are_found_without_rocm(tmp_path, monkeypatch):
    nodes = (
        "gfx_target_version 0\nsimd_count 0\n",  # a CPU
        "gfx_target_version 110501\nsimd_count 80\nsimd_per_cu 2\n",
        "gfx_target_version 90402\nsimd_count 1216\nsimd_per_cu 4\n",
        "gfx_target_version 90010\nsimd_count 440\nsimd_per_cu 4\n",
        "gfx_target_version 90006\nsimd_count 8\n",
    )
    for number, text in enumerate(nodes):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "properties").write_text(text)
    monkeypatch.setattr(doctor, "_AMD_NODES", tmp_path)
    monkeypatch.setattr(doctor, "_nvidia_gpus", lambda: iter(()))
    assert list(doctor._amd_gpus()) == [
        ("gfx1151", "AMD, 40 compute units"), ("gfx942", "AMD, 304 compute units"),
        ("gfx90a", "AMD, 110 compute units"), ("gfx906", "AMD, 4 compute units"),
    ]  # fmt: skip
    found = list(doctor._present_gpus())
    assert [(f.name, f.status) for f in found] == [
        ("gfx1151", "ok"), ("gfx942", "ok"), ("gfx90a", "ok"), ("gfx906", "absent"),
    ]  # fmt: skip


def test_nvidia_gpus_are_found_by_the_drivers_tool(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '9.0, NVIDIA H200, 580.1'\necho '8.9, NVIDIA L4, 580.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    names = [("sm_90a", "NVIDIA H200, driver 580.1"), ("sm_89", "NVIDIA L4, driver 580.1")]
    assert list(doctor._nvidia_gpus()) == names
    tool.write_text("#!/bin/sh\nexit 9\n")  # the tool is there, the driver is not
    assert list(doctor._nvidia_gpus()) == []


def test_a_folder_that_cannot_be_written_is_found(tmp_path):
    doctor._check_writable(tmp_path / "not" / "there" / "yet")
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsupportedError, match="file cannot be written: Not a directory"):
        doctor._check_writable(tmp_path / "file")


def test_a_triton_that_is_too_old_for_a_gpu_breaks_nothing(monkeypatch):
    monkeypatch.setattr("laneloom.codegen.versions.triton_version", lambda: "3.8.0")
    found = doctor._compiled("gfx1170")
    assert (found.status, found.detail) == ("absent", "triton 3.8.0 does not know gfx1170 (RDNA 4m); 3.9 does")


def test_scales_of_blocks():
    asked = ("--gpu", "sm_90a", "--shape", "256,512,1024", "--dtype", "fp8", "--layout", "nt", "--json", "--scales")
    shown = json.loads(run("explain", "matmul", *asked, "1,128").stdout)
    assert shown["scales"] == [1, 128]
    assert shown["schedule"] == "hopper_cluster"
    assert shown["knobs"]["scaled"]
    for words, sentence in ((("1,64",), "--scales: expected 1,1"), (("1,128", "--dtype", "fp16"), "for fp8 and bf8")):
        refused = run("explain", "matmul", *asked, *words)
        assert refused.exit_code == 2
        assert sentence in refused.output + str(refused.exception)
