"""Every instruction that the emulator executes has a test, by the record that a run of the tests left."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sampled import EVERYTHING
from typer.testing import CliRunner

from laneloom.cli import app
from laneloom.cli.coverage import ONE_EACH, instructions_of
from laneloom.emulator.instructions import RECORD, is_known, mnemonics, proofs
from laneloom.gpu import GPUS

ROOT = Path(__file__).parents[2]
RECORDER = "PYTHONPATH=tests/emulator python -m pytest -p record_coverage tests/emulator"
EMULATED = [name for name, gpu in GPUS.items() if gpu.emulated]


@pytest.mark.parametrize("gpu", [gpu for gpu in EMULATED if EVERYTHING or gpu in ONE_EACH])
def test_no_instruction_lacks_a_proof(gpu):
    known = proofs(GPUS[gpu].generation)
    bare = [name for name in instructions_of(GPUS[gpu]) if name not in known]
    assert not bare, f"no test executes these; write one, then run `{RECORDER}`"


def test_proofs_are_tests_that_exist():
    recorded = json.loads(RECORD.read_text())
    for test in {entry[0] for names in recorded.values() for entry in names.values()}:
        file, _, function = test.partition("::")
        path = ROOT / file
        assert path.is_file(), f"{file} is gone: run `{RECORDER}`"
        assert re.search(rf"^\s*def {function.rpartition('::')[2]}\(", path.read_text(), re.MULTILINE), test


def test_what_is_listed_can_be_built():
    for name in mnemonics():
        jumps = ("s_branch", "s_cbranch", "s_endpgm", "s_swappc", "s_setpc", "s_setvskip", "s_call", "s_add_pc")
        assert name.startswith((*jumps, "s_barrier")) or is_known(name)


def test_generations_differ_where_the_assembler_says_so():
    old, new = (set(instructions_of(GPUS[name])) for name in ("gfx1100", "gfx1201"))
    assert {"s_barrier", "s_waitcnt_vscnt", "ds_cmpstore_f32"} <= old - new
    assert {"s_barrier_wait", "s_wait_dscnt", "v_wmma_f32_16x16x16_fp8_fp8"} <= new - old
    assert {"v_add_f32", "global_load_b128", "ds_add_u32"} <= old & new


def test_the_table():
    result = CliRunner().invoke(app, ["emulate", "--coverage", "--gpu", "gfx1201", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    rows = {row["instruction"]: row for row in json.loads(result.stdout)}
    assert set(rows) == set(instructions_of(GPUS["gfx1201"]))
    assert rows["ds_add_rtn_u32"]["test"].endswith("test_memory_instructions.py::test_lds_atomic")
    assert rows["ds_add_rtn_u32"]["proof"] == "instruction test"
    text = CliRunner().invoke(app, ["emulate", "--coverage"], catch_exceptions=False).stdout
    row = rf"^v_add_f32 +{' '.join(ONE_EACH)} +tests/\S+ +instruction test"
    assert re.search(row, text, re.MULTILINE)
    result = CliRunner().invoke(app, ["emulate", "--coverage", "--gpu", "sm_90a"])
    assert result.exit_code == 2
