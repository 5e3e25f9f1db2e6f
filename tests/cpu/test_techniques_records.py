"""The tables of docs/transpose.md and docs/gemm-chain.md are those of the records, which are what `plan` chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from laneloom.bench import gemm_chain, transpose
from laneloom.bench.records import load
from laneloom.gpu import get_gpu
from laneloom.ops.gemm_chain import config as chain_config
from laneloom.ops.gemm_chain.problem import ChainProblem
from laneloom.ops.transpose import config as transpose_config
from laneloom.ops.transpose.problem import TransposeProblem

ROOT = Path(__file__).parents[2]
GPU = get_gpu("sm_90a")


@pytest.mark.parametrize(("bench", "name", "page"), [
    (transpose, "transpose", "transpose.md"), (gemm_chain, "gemm_chain", "gemm-chain.md"),
])  # fmt: skip
def test_tables_are_made_from_records(bench, name, page):
    records = load(ROOT / "results" / "h200" / f"{name}.jsonl")
    assert {record.op for record in records} == {name}
    assert bench.table(records) in (ROOT / "docs" / page).read_text()


def test_what_was_measured_is_what_runs():
    for record in load(ROOT / "results" / "h200" / "transpose.jsonl"):
        if record.candidate == "laneloom":
            p = record.problem
            problem = TransposeProblem.contiguous(
                p["rows"], p["columns"], element_bytes=p["element_bytes"], batch=p["batch"])
            assert record.config == {"text": transpose_config.plan(problem, GPU).text}
            assert record.bytes == problem.bytes
    for record in load(ROOT / "results" / "h200" / "gemm_chain.jsonl"):
        if record.candidate == "laneloom":
            p = record.problem
            problem = ChainProblem.contiguous(p["m"], p["k0"], p["n0"], p["n1"], dtype=p["dtype"])
            assert record.config == {"text": chain_config.plan(problem, GPU).text}
            assert (record.flops, record.bytes) == (problem.flops, problem.bytes)
