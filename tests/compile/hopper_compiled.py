"""Hopper's CUDA C++ schedules, compiled by NVRTC without a GPU, for tests of their machine code."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cuda.bindings.nvrtc")
pytest.importorskip("torch")

from laneloom.codegen import CodeObject
from laneloom.codegen.nvrtc import nvrtc_version
from laneloom.errors import UnsupportedError
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.execute import schedule_of

try:
    nvrtc_version()
except UnsupportedError as error:
    pytest.skip(str(error), allow_module_level=True)

GPU = get_gpu("sm_90a")


def compile_valid(problem, config, spills: int = 0) -> CodeObject:
    """The code of a config that is valid, spills no more and fits."""
    assert config.why_invalid(problem, GPU) is None
    code = schedule_of(config).code_object(problem, config, GPU)
    assert code.spills <= spills
    assert code.lds_bytes <= GPU.lds_bytes
    # CUDA 13.0 reads constants so that are `volatile`, from an address that is not theirs.
    assert not re.search(r"\bld\.volatile\.(?!shared|global)", code.asm)
    return code
