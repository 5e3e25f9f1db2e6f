"""What laneloom compiles fuses multiplications and additions to FMA, whatever Triton's default is."""

from __future__ import annotations

import re

import triton
import triton.language as tl
from triton import knobs

from laneloom.codegen import CodeObject, compile_kernel
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.execute import code_object
from laneloom.ops.matmul.problem import MatmulProblem

VARIABLE = "TRITON_DEFAULT_FP_FUSION"


@triton.jit
def scaled(x_ptr, y_ptr, out_ptr, scale, BLOCK: tl.constexpr):
    """Somebody else's kernel."""
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) * scale + tl.load(y_ptr + offs))


def fused_and_not(code: CodeObject) -> tuple[bool, bool]:
    """Whether there are multiplications that are fused with an addition, and ones that are not."""
    return "v_fma" in code.asm or "v_dual_fma" in code.asm, bool(re.search(r"\bv_(dual_)?mul_f32", code.asm))


def test_code_is_the_same_with_every_default(monkeypatch, tmp_path):
    """laneloom's launches say that they fuse, so that is the code that they run; of other kernels the environment
    decides, and where it does not, they fuse as with every Triton until 3.9."""
    problem, types = MatmulProblem.contiguous(64, 64, 64, dtype="fp32"), dict.fromkeys(scaled.arg_names[:3], "*fp32")

    def compiled(folder: str) -> tuple[CodeObject, CodeObject]:
        monkeypatch.setenv("LANELOOM_CACHE_DIR", str(tmp_path / folder))
        other = compile_kernel(scaled, gpu="gfx1151", signature=types | {"scale": "fp32"}, constants={"BLOCK": 256})
        return code_object(problem, get_gpu("gfx1151")), other

    monkeypatch.delenv(VARIABLE, raising=False)
    own, other = compiled("unset")
    assert fused_and_not(own) == fused_and_not(other) == (True, False)
    monkeypatch.setattr(vars(type(knobs.language))["default_fp_fusion"], "default", False)
    assert [code.asm for code in compiled("as with 3.10")] == [own.asm, other.asm]
    monkeypatch.setenv(VARIABLE, "1")
    assert [code.asm for code in compiled("on")] == [own.asm, other.asm]
    monkeypatch.setenv(VARIABLE, "0")
    same, apart = compiled("off")
    assert same.asm == own.asm
    assert fused_and_not(apart) == (False, True)
