"""The rules for dual-issue pairs against LLVM's assembler: thousands of random pairs, the same verdict on each."""

from __future__ import annotations

import contextlib
import random
import re

import pytest

from laneloom.codegen import versions
from laneloom.codegen.diagnostics import captured_stderr
from laneloom.gpu import get_gpu
from laneloom.isa.check_pairs import opcodes, ports, why_illegal
from laneloom.isa.parse import instruction

LITERALS = ("0x41234567", "0x12345678")
OTHER = ("v_fma_f32", "v_sub_nc_u32", "v_exp_f32")


def half(rng: random.Random, name: str) -> str:
    dst, src1 = f"v{rng.randrange(16)}", f"v{rng.randrange(16)}"
    src0 = rng.choice([*(f"v{rng.randrange(16)}" for _ in range(8)), f"s{rng.randrange(4)}", "1.0", "8", *LITERALS])
    if rng.random() < 0.03:
        src1 = f"s{rng.randrange(4)}"
    literal = rng.choice(LITERALS)
    dual = name.replace("v_", "v_dual_", 1)
    if name in ("v_mov_b32", "v_exp_f32"):
        return f"{dual} {dst}, {src0}"
    if name == "v_fmamk_f32":
        return f"{dual} {dst}, {src0}, {literal}, {src1}"
    if name == "v_fmaak_f32":
        return f"{dual} {dst}, {src0}, {src1}, {literal}"
    if name == "v_fma_f32":
        return f"{dual} {dst}, {src0}, {src1}, v{rng.randrange(16)}"
    return f"{dual} {dst}, {src0}, {src1}"


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1201"])
def test_verdicts_are_those_of_the_assembler(gpu: str):
    rng = random.Random(20)
    row = get_gpu(gpu)
    names = sorted(opcodes(11)[1] | opcodes(12)[1]) + list(OTHER)
    both = ["v_fmac_f32", "v_mul_f32", "v_mov_b32", "v_fmamk_f32", "v_cndmask_b32"]
    pairs = []
    for _ in range(3000):
        x, y = (rng.choice(names if rng.random() < 0.5 else both) for _ in range(2))
        pairs.append(f"{half(rng, x)} :: {half(rng, y)}")
    with captured_stderr() as printed, contextlib.suppress(RuntimeError, ValueError):
        versions.assembler()("".join(f"\t{p}\n" for p in pairs), gpu, versions.assembler_features(row))
    # Triton before 3.9 prints no line numbers, but every version prints the line.
    excerpts = re.findall(r"^(?:[^\n:]*:\d+:\d+: )?error: [^\n]*\n([^\n]*)", printed[0], re.MULTILINE)
    refused = {" ".join(text.split()) for text in excerpts}
    ours = set()
    for text in pairs:
        ins = instruction(*text.split(" ", 1))
        assert ins.second is not None
        if why_illegal(ins, ins.second, row.major):
            ours.add(text)
    assert 500 < len(refused) < 2900
    apart = ours ^ refused
    if row.major == 12 and versions.triton_version() < "3.9":
        # The LLVM of Triton 3.6 does not know yet that both halves may read one register through one port.
        apart = {text for text in apart if text in ours or not shares_a_register(text)}
    assert sorted(apart) == []


def shares_a_register(text: str) -> bool:
    """Whether both halves read one register through the same port."""
    x = instruction(*text.split(" ", 1))
    assert x.second is not None
    return any(a is not None and a == b for a, b in zip(ports(x), ports(x.second), strict=True))
