"""No order of waves and workgroups changes a bit of any kernel's result, and every RDNA kernel file has a case."""

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from own_kernels import CASES, turn  # noqa: E402
from sampled import in_turn  # noqa: E402

import laneloom  # noqa: E402

# Of 72 barriers whose deletion is a race, the first order shows 68, the second 2 more, and 50 orders no other.
ORDERS = 50 if os.environ.get("LANELOOM_ALL_ORDERS") else 2
CALLS = {(case.make, case.gpus): name for name, case in reversed(CASES.items())}  # several kernels of one call: one run


@pytest.mark.parametrize(
    ("name", "gpu"),
    [(name, gpu) for name in CALLS.values() for gpu in in_turn(turn(name), *CASES[name].gpus)],
)  # the GPU of test_mutations.py: what it compiles is compiled once
def test_no_order_of_waves_changes_the_result(name, gpu):
    call = CASES[name].make()
    with laneloom.emulated(gpu) as plain:
        want = call()
    launch = plain.launches[CASES[name].launch]
    assert launch.workgroup_size > 32 or max(launch.grid) > 1, "one wave has one order"
    for seed in range(1, ORDERS + 1):
        with laneloom.emulated(gpu, seed=seed):
            for got, expected in zip(call(), want, strict=True):
                assert torch.equal(got, expected), f"seed {seed}"


def test_every_kernel_of_amd_has_a_case():
    folder = Path(laneloom.__file__).parent / "ops"
    launches = ("@gluon.jit", "@triton.jit", "assemble(")
    files = {
        f"{path.parts[-3]}/{path.stem}"
        for path in folder.glob("*/kernels/*.py")
        if any(word in path.read_text() for word in launches)
    }
    assert {name for name in files if "hopper" not in name} == {case.file for case in CASES.values()}
