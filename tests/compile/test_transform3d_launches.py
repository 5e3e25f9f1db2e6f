"""What the transform's CUDA C++ kernels do before kernels ahead of them have ended, by the machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from sass_listing import disassemble

from laneloom.gpu import get_gpu
from laneloom.ops.transform3d import Transform3dProblem, plan
from laneloom.ops.transform3d.hopper import compile_on_hopper

HOPPER = get_gpu("sm_90a")
MEMORY = ("LD.", "LD ", "LDG", "ST.", "ST ", "STG", "UBLKCP")  #: generic ones reach another CTA's shared memory


def code_and_branches(code):
    """Instructions in their order, without predicates, and of every branch its place and that of its target."""
    ops, labels, branches = [], {}, []
    for line in disassemble(code).splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(ops)
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?\s*(.*?)\s*;", line):
            if target := re.search(r"\(?(\.L_x_\d+)\)?", found[1]):
                branches.append((len(ops), target[1]))
            ops.append(found[1])
    return ops, [(place, labels[target]) for place, target in branches]


def check_follows(code, *, bulk):
    """One path leads to the wait. Before it the L2 is asked for tensors and matrices, and behind it memory is used."""
    ops, branches = code_and_branches(code)
    (wait,) = [i for i, op in enumerate(ops) if op.startswith("ACQBULK")]
    assert all((place < wait) == (target <= wait) for place, target in branches), "no way around the wait"
    assert not any(op.startswith("EXIT") for op in ops[:wait]), "a thread that ended would let the kernel behind begin"
    used = [i for i, op in enumerate(ops) if op.startswith(MEMORY)]
    assert used
    assert wait < min(used)
    for word in ("UBLKPF", "CCTL.E.PF2"):
        asked = [i for i, op in enumerate(ops) if op.startswith(word)]
        assert len(asked) == 1
        assert asked[0] < wait
    barriers = [i for i, op in enumerate(ops) if op.startswith("SYNCS.EXCH")]
    assert len(barriers) == bulk
    assert all(barrier < wait for barrier in barriers)
    early, late = (i for i, op in enumerate(ops) if op.startswith("PREEXIT"))
    assert early < wait < late, "where there are several waves, and where there are not"
    assert any(op.startswith("UBLKCP") for op in ops) == bulk


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize(("dtype", "k", "schedule"), [
    ("fp64", 6, "fused"), ("fp64", 10, "fused"), ("fp64", 32, "fused"), ("complex128", 20, "fused"),
    ("fp64", 9, "flat"), ("complex64", 20, "flat"), ("fp32", 7, "fma"), ("complex64", 10, "fma"),
])  # fmt: skip
def test_memory_is_used_behind_the_kernels_ahead(dtype, k, schedule, bulk, accumulate):
    problem = Transform3dProblem(k, 2048, dtype, same_matrix=not accumulate, accumulate=accumulate)
    config = replace(plan(problem, HOPPER), bulk=bulk)
    assert config.schedule == schedule
    assert config.why_invalid(problem, HOPPER) is None
    assert (getattr(config, "cluster", 1) > 1) == (k >= 20 and schedule == "fused")
    code = compile_on_hopper(problem, config, HOPPER)
    assert code.spills == 0
    check_follows(code, bulk=bulk)
