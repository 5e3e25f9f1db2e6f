"""The wait states that `isa --check` asks for on CDNA, against the s_nop that LLVM puts between instructions.

Both ways: code that LLVM made has none missing, and every s_nop of it, one shorter, is missed. Known differences:
LLVM looks at each block once, though a shorter path may lead through it (products have wait states of their own behind
the last matrix instruction, see docs/checking-machine-code.md); it asks of the nearest matrix instruction only; it
takes the high half's selector of packed instructions for one of the result; it breaks up loads in a row for replays
after page faults, which is no dependency.
"""

from __future__ import annotations

import random
import re

import pytest
from sampled import sampled

from laneloom.codegen import versions
from laneloom.gpu import get_gpu
from laneloom.isa.check_code import read_code
from laneloom.isa.check_wait_states import check_wait_states
from laneloom.ops.matmul.execute import code_object
from laneloom.ops.matmul.problem import MatmulProblem

CDNA = ["gfx908", "gfx90a", "gfx942", "gfx950"]


def missing(text: str, gpu: str) -> list[str]:
    (code,) = read_code(text, gpu)
    return [f"{f.line}: {f.what}" for f in check_wait_states(code)]


def without_one(lines: list[str], at: int) -> str:
    """The program with the s_nop of line `at` one shorter."""
    states = int(lines[at].split()[1])
    return "\n".join([*lines[:at], f"\ts_nop {states - 1}" if states else "", *lines[at + 1 :]])


def is_ours(lines: list[str], at: int) -> bool:
    """Whether the s_nop of line `at` is of the kernel's own inline assembly."""
    return any("#ASMSTART" in line for line in lines[at - 2 : at])


def breaks_up_loads(lines: list[str], at: int) -> bool:
    """Whether the s_nop of line `at` stands between two loads from memory, which LLVM keeps apart for their replay."""
    code = [[line for line in part if re.match(r"\t[a-z]", line)] for part in (lines[:at], lines[at + 1 :])]
    return all(re.match(r"\t(global|buffer|flat|s)_load", line) for line in (code[0][-1], code[1][0]))


@pytest.mark.covering
@pytest.mark.parametrize("gpu", CDNA)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_compiled_products(gpu: str, dtype: str):
    code = code_object(MatmulProblem.contiguous(17, 33, 65, dtype=dtype), get_gpu(gpu))
    lines = code.asm.split("\n")
    assert missing(code.asm, gpu) == []
    if gpu == "gfx90a":
        return  # LLVM counts no inline assembly: behind the kernel's own wait states it puts as many again
    nops = [k for k, line in enumerate(lines) if re.match(r"\ts_nop \d", line)]
    nops = [k for k in nops if not is_ours(lines, k) and not breaks_up_loads(lines, k)]
    found = [bool(missing(without_one(lines, k), gpu)) for k in nops]
    assert len(found) >= 1
    assert all(found), [lines[k - 1 : k + 2] for k, seen in zip(nops, found, strict=True) if not seen]


# -- random programs of LLVM's machine instructions --------------------------------------------------------------------

HEAD = """--- |
  target triple = "amdgcn-amd-amdhsa"
  define amdgpu_kernel void @k() #0 {{ ret void }}
  attributes #0 = {{ "amdgpu-flat-work-group-size"="64,64" "target-cpu"="{gpu}" }}
...
---
name: k
tracksRegLiveness: false
noVRegs: true
machineFunctionInfo:
  isEntryFunction: true
body: |
  bb.0:
"""
#: LLVM's name, registers of D, of A and B each, of C
MATRIX = (
    ("V_MFMA_F32_4X4X4F16", 4, 2, 4), ("V_MFMA_F32_16X16X16F16", 4, 2, 4), ("V_MFMA_F32_32X32X8F16", 16, 2, 16),
    ("V_MFMA_F32_32X32X4F16", 32, 2, 32), ("V_MFMA_F32_4X4X1F32", 4, 1, 4), ("V_MFMA_F32_16X16X4F32", 4, 1, 4),
    ("V_MFMA_F32_32X32X2F32", 16, 1, 16), ("V_MFMA_F64_4X4X4F64", 2, 2, 2), ("V_MFMA_F64_16X16X4F64", 8, 2, 8),
    ("V_MFMA_I32_16X16X32I8", 4, 2, 4),
)  # fmt: skip
#: of CDNA 1 and 2 for one that they lack
WITHOUT = ("gfx908", "gfx90a")
OLDER = {"V_MFMA_I32_16X16X32I8": ("V_MFMA_I32_16X16X16I8", 4, 1, 4)}


class Program:
    """Random instructions on few registers, so that they depend on each other."""

    def __init__(self, seed: int, gpu: str):
        self.random = random.Random(seed)
        self.first = gpu == "gfx908"
        self.rows = [OLDER.get(row[0], row) if gpu in WITHOUT else row for row in MATRIX]
        if self.first:
            self.rows = [row for row in self.rows if "F64" not in row[0]]
        self.dpp = 0

    def vector(self, count: int = 1) -> str:
        return registers("v", self.place(count), count)

    def place(self, count: int) -> int:
        step = 2 if count > 1 else 1
        return self.random.randrange(0, (40 - count) // step + 1) * step

    def scalar(self) -> str:
        return f"$sgpr{self.random.randrange(4, 10)}"

    def matrix(self) -> str:
        name, result, operand, addend = self.random.choice(self.rows)
        d = c = self.place(result)
        while self.random.random() < 0.6 and result < 32:
            c = self.place(addend)
            if d + result <= c or c + addend <= d:  # LLVM lets D and C be the same or apart
                break
            c = d
        a, b = self.vector(operand), self.vector(operand)
        if self.first:
            a = a.replace("vgpr", self.random.choice(("vgpr", "agpr")))
            d, c = (registers("a", at, count) for at, count in ((d, result), (c, addend)))
            return f"{d} = {name}_e64 {a}, {b}, {c}, 0, 0, 0, implicit $mode, implicit $exec"
        return (
            f"{registers('v', d, result)} = {name}_vgprcd_e64 {a}, {b}, {registers('v', c, addend)}, 0, 0, 0, "
            "implicit $mode, implicit $exec"
        )

    def move(self) -> str:
        v, a = self.vector(), self.vector().replace("vgpr", "agpr")
        if self.random.random() < 0.5:
            return f"{v} = V_ACCVGPR_READ_B32_e64 {a}, implicit $exec"
        return f"{a} = V_ACCVGPR_WRITE_B32_e64 {v}, implicit $exec"

    def line(self) -> str:
        v, s = self.vector, self.scalar
        mode = "implicit $mode, implicit $exec"
        return self.random.choice((
            *[self.move] * (6 * self.first), self.matrix, self.matrix, self.matrix, self.matrix, self.matrix,
            lambda: f"{v()} = V_ADD_F32_e32 {v()}, {v()}, {mode}",
            lambda: f"{v()} = V_MUL_F32_e32 {s()}, {v()}, {mode}",
            lambda: f"{v()} = V_EXP_F32_e32 {v()}, {mode}",
            lambda: f"{v(2)} = V_FMA_F64_e64 0, {v(2)}, 0, {v(2)}, 0, {v(2)}, 0, 0, {mode}",
            lambda: f"{s()} = V_READFIRSTLANE_B32 {v()}, implicit $exec",
            lambda: f"{s()} = V_READLANE_B32 {v()}, {s()}",
            lambda: f"V_CMP_LT_U32_e32 {v()}, {v()}, implicit-def $vcc, implicit $exec",
            lambda: f"{v()} = V_CNDMASK_B32_e32 {v()}, {v()}, implicit $vcc, implicit $exec",
            lambda: f"{v()} = V_DIV_FMAS_F32_e64 0, {v()}, 0, {v()}, 0, {v()}, 0, 0, implicit $vcc, {mode}",
            lambda: f"GLOBAL_STORE_DWORDX4 $vgpr40_vgpr41, {v(4)}, 0, 0, implicit $exec :: (store (s128), addrspace 1)",
            lambda: f"{v(2)} = GLOBAL_LOAD_DWORDX2_SADDR $sgpr4_sgpr5, {v()}, 0, 0, implicit $exec :: (load (s64), "
                    "addrspace 1)",
            lambda: f"DS_WRITE_B64_gfx9 {v()}, {v(2)}, 0, 0, implicit $exec :: (store (s64), addrspace 3)",
        ))()  # fmt: skip


def registers(kind: str, first: int, count: int) -> str:
    return "$" + "_".join(f"{kind}gpr{n}" for n in range(first, first + count))


def compiled(lines: list[str], gpu: str, tmp_path) -> list[str]:
    """What LLVM prints for machine instructions: s_nop among them."""
    from triton._C.libtriton import llvm  # pyright: ignore[reportMissingImports]

    if not hasattr(llvm, "translate_mir_to_asm"):
        pytest.skip("this Triton takes no machine instructions")
    versions.assembler()
    used = [f"$vgpr{n}" for n in range(42)] + [f"$sgpr{n}" for n in range(4, 10)] + ["$vcc"]
    body = [*lines, "S_ENDPGM 0" + "".join(f", implicit {name}" for name in used)]
    file = tmp_path / "program.mir"
    file.write_text(HEAD.format(gpu=gpu) + "".join(f"    {line}\n" for line in body) + "...\n")
    asm = llvm.translate_mir_to_asm(str(file), "amdgcn-amd-amdhsa", gpu, "", [], True, False, False)
    code = asm.partition("s_endpgm")[0].split("\n")
    return [line for line in code if line.startswith("\t") and not line.strip().startswith((".", ";"))]


@pytest.mark.parametrize("gpu", CDNA)
def test_random_programs(gpu: str, tmp_path):
    nops = caught = clean = programs = 0
    for seed in sampled(range(25)):
        program = Program(seed, gpu)
        lines = compiled([program.line() for _ in range(40)], gpu, tmp_path)
        whole = missing("\n".join(lines), gpu)
        clean += not whole
        programs += 1
        for at, line in enumerate(lines):
            if line.startswith("\ts_nop"):
                nops += 1
                caught += len(missing(without_one(lines, at), gpu)) > len(whole)
    # The rest: a C of many registers, of which LLVM sees the last writer alone; and registers written in between.
    # On CDNA 1 LLVM takes the passes of any matrix instruction before for those of the one that is depended on.
    first = gpu == "gfx908"
    assert nops > 12 * programs / (2.5 if first else 1)
    assert caught >= (0.95 if first else 0.98) * nops
    assert clean >= programs - 3
