"""What `isa --check` derives of LDS addresses from the code alone, against what the emulator counts."""

from __future__ import annotations

import pytest
from sampled import rarely

from laneloom.cli.product import parse_product, random_operands, run_product
from laneloom.isa.check import check
from laneloom.isa.check_code import read_code
from laneloom.isa.check_memory import lds_clocks
from laneloom.ops.matmul.presets import named_config


@pytest.mark.parametrize(
    ("gpu", "config"),
    [("gfx1151", "standard"), ("gfx1201", "swizzled"), ("gfx950", None),
     *rarely(("gfx1151", "opt"), ("gfx942", None))],
)
def test_derived_clocks_are_those_that_the_emulator_counts(gpu: str, config: str | None):
    product = parse_product("matmul", gpu, "128,128,64", "fp16", "fp32")
    chosen = named_config(config) if config else None
    outcome = run_product(product, *random_operands(product, 1), profile=True, chosen=chosen)
    (record,) = outcome.launches
    assert record.profile is not None
    counted = {i.line: i for i in record.profile.instructions if i.lds_clocks}
    (code,) = read_code(record.asm, gpu, record.kernel)
    derived = {step.ins.line: clocks for step, clocks in lds_clocks(code) if clocks[0]}
    both = [line for line in derived if line in counted]
    assert len(both) >= 8
    for line in both:
        row = counted[line]
        assert derived[line] == (row.lds_clocks / row.executed, row.conflicts / row.executed), row.text
    # With the counts at hand the check says the same of every line, derived or not.
    counts = {line: (row.lds_clocks, row.conflicts) for line, row in counted.items()}
    (report,) = check(record.asm, gpu, record.kernel, counted=counts)
    assert {f.line for f in report.findings if f.rule == "lds-conflict"} == {
        line for line, row in counted.items() if row.conflicts
    }
