"""LLVM's own code for CDNA 5: nothing to find in laneloom's kernels, and v_nops that it put there are needed."""

import re

import pytest

from laneloom.codegen.versions import parse_version, triton_version
from laneloom.gpu import get_gpu
from laneloom.isa.check import check
from laneloom.ops.attention.execute import code_object
from laneloom.ops.attention.problem import AttentionProblem
from laneloom.ops.matmul import execute
from laneloom.ops.matmul.problem import MatmulProblem

pytestmark = pytest.mark.skipif(parse_version(triton_version()) < (3, 9), reason="Triton compiles for it from 3.9 on")
GPU = get_gpu("gfx1250")
GPUS = [GPU, get_gpu("gfx1251")]


def errors(text, gpu=GPU):
    (report,) = check(text, gpu)
    return [f for f in report.findings if f.severity == "error"]


@pytest.mark.parametrize("role", ["forward", "query", "key"])
def test_attention(role):
    problem = AttentionProblem(2, 4, 2, 512, 512, 128, 128, "bf16", 128**-0.5, last=0)  # of test_attention_code too
    text = code_object(problem, GPU, role).asm
    assert not errors(text)
    assert errors(re.sub(r"^\tv_nop.*$", "", text, flags=re.MULTILINE))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("dtype", ["fp16", "fp8", "int8"])
def test_products(dtype, gpu):
    """Every v_nop is needed but that of the kernel's beginning."""
    text = execute.code_object(MatmulProblem.contiguous(256, 256, 256, dtype=dtype), gpu).asm
    assert not errors(text, gpu)
    lines = text.split("\n")
    nops = [n for n, line in enumerate(lines) if line.strip().startswith("v_nop")]
    assert len(nops) > 1
    for n in nops[1:]:
        assert errors("\n".join([*lines[:n], "", *lines[n + 1 :]]), gpu), n
