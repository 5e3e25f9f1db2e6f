"""Every launch of laneloom's says whether multiplications and additions fuse to FMA, since Triton's own default changes
from 3.9, which warns of it, to 3.10. Other people's kernels keep Triton's default and its warning."""

from __future__ import annotations

import fresh_process
import pytest

pytest.importorskip("torch")

from laneloom.codegen.versions import parse_version, triton_version

VERSION = parse_version(triton_version())
CDNA_5 = pytest.param(
    "gfx1250", marks=pytest.mark.skipif(VERSION < (3, 9), reason="Triton compiles for it from 3.9 on")
)

_SCRIPT = """
import os

os.environ["TRITON_CACHE_DIR"] = {cache!r}
os.environ.pop("TRITON_DEFAULT_FP_FUSION", None)

import first_launches

first_launches.{calls}({gpu!r})
"""


def run(folder, calls, gpu):
    script = folder / "launches.py"
    script.write_text(_SCRIPT.format(cache=str(folder / "triton"), calls=calls, gpu=gpu))
    status, said = fresh_process.run(script, 300)
    assert status == 0, said


@pytest.mark.parametrize("gpu", ["gfx1151", CDNA_5])
def test_every_launch_says_whether_to_fuse(tmp_path, gpu):
    run(tmp_path, "launch_all", gpu)


@pytest.mark.skipif(VERSION != (3, 9), reason="Triton 3.9 alone warns")
def test_other_peoples_kernels_are_warned_of(tmp_path):
    run(tmp_path, "launch_somebody_elses", "gfx1151")
