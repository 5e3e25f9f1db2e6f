"""`pytest --emulate GPU` on suites as people write them for device="cuda"."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import fresh_process
import pytest
from sampled import rarely

from laneloom.emulator import pytest_plugin

pytest.importorskip("torch")

SUITE, COMPILED = (Path(__file__).with_name(f"suite_for_{name}.py").read_text() for name in ("cuda", "compile"))

RACE = """
import torch, triton, triton.language as tl


@triton.jit
def racy_kernel(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets % 7, offsets)


def test_race():
    x = torch.zeros(7, dtype=torch.int32, device="cuda")
    racy_kernel[(1,)](x, BLOCK=256)


def test_overrun():
    racy_kernel[(1,)](torch.zeros(6, dtype=torch.int32, device="cuda"), BLOCK=256)
"""


SUMS = """
import numpy as np
import laneloom


def test_sums():
    a = np.eye(16, dtype=np.float16) - np.float16(1) / 3
    exact = (a.astype(float) @ a.astype(float)).astype(np.float32)
    assert np.array_equal(laneloom.matmul(a, a, out_dtype="float32"), exact)
"""


def arguments(folder, text, *options):
    """pytest's, for a suite of its own."""
    (folder / "test_suite.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugin = () if "laneloom" in entry_points(group="pytest11").names else ("-p", "laneloom.emulator.pytest_plugin")
    return [*plugin, "-p", "no:cacheprovider", *options, str(folder)]


def run_pytest(folder, text, *options):
    command = [sys.executable, "-m", "pytest", *arguments(folder, text, *options)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, timeout=300)


def said_by_pytest(folder, text, *options):
    """The exit status and all that is printed, in a process that has imported torch already."""
    script = folder / "run.py"
    given = arguments(folder, text, *options)
    script.write_text(f"import os, sys, pytest\nos.environ['COLUMNS'] = '200'\nsys.exit(pytest.main({given}))\n")
    return fresh_process.run(script, 300)


def test_a_suite_written_for_cuda_runs_unchanged(tmp_path):
    (tmp_path / "test_compiled.py").write_text(COMPILED)
    (tmp_path / "conftest.py").write_text("import torch\n\nassert torch.cuda.device_count() == 1\n")
    done = run_pytest(tmp_path, SUITE, "--emulate", "gfx1201", "--emulate-strict", "--emulate-seed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "34 passed" in done.stdout
    assert "Triton kernels run as gfx1201 (RDNA 4) code on the CPU, strict, seed 3" in done.stdout
    assert "laneloom: gfx1201: 17 launches of 2 kernels in strict mode" in done.stdout


def test_strict_finds_a_race_and_every_mode_an_overrun(tmp_path):
    _, loose = said_by_pytest(tmp_path, RACE, "--emulate", "gfx1151")
    assert "1 failed, 1 passed" in loose
    assert "bytes past the end of argument 'x_ptr' (24 bytes)" in loose
    for option in ("--strict", *rarely("--emulate-strict")):
        _, strict = said_by_pytest(tmp_path, RACE, "--emulate", "gfx1151", option, "-k", "race")
        assert "1 failed" in strict
        assert "HazardError: racy_kernel" in strict
        assert "test_suite.py:8" in strict


def test_nothing_happens_without_the_option(tmp_path):
    text = "import torch, triton\n\ndef test_bare():\n    assert not torch.cuda.is_available()\n"
    text += "    assert type(triton.runtime.driver._active).__name__ != 'EmulatedDriver'\n"
    status, said = said_by_pytest(tmp_path, text)
    assert status == 0, said
    assert "laneloom:" not in said


def test_an_unknown_gpu_is_refused_in_a_sentence(tmp_path):
    status, said = said_by_pytest(tmp_path, "def test_nothing(): ...\n", "--emulate", "gfx1159")
    assert status == 4, said
    assert "gfx1154" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("gpu", "strict", "message"),
    [
        ("sm_90a", False, "is not emulated"), ("gfx1151,gfx942", False, "takes one GPU"),
        (None, True, "need --emulate GPU"),
    ],
)
def test_other_bad_options(gpu, strict, message):
    how = {"emulate_strict": strict, "emulate_seed": 0, "emulate_bounds": "view", "emulate_sums": "hardware"}
    options = SimpleNamespace(emulate=gpu, **how)
    with pytest.raises(pytest.UsageError, match=message):
        pytest_plugin.pytest_configure(
            SimpleNamespace(
                option=options,
                pluginmanager=SimpleNamespace(register=None, has_plugin=lambda name: False),
                invocation_params=SimpleNamespace(args=()),
            )
        )


@pytest.mark.parametrize(("options", "status"), [((), 1), (("--emulate-sums", "exact"), 0)])
def test_sums_are_rounded_once_where_the_command_line_says_so(tmp_path, options, status):
    assert said_by_pytest(tmp_path, SUMS, "--emulate", "gfx1151", *options)[0] == status
