"""WMMA's hello world: C = A B with A and B 16 x 16 of ones, in one wave and one matrix instruction.

Runs on any machine: laneloom compiles the kernel for the GPU that is named and executes its machine code.

    python examples/wmma_hello_world.py [gfx1100 | gfx1151 | gfx1201]

A lane of RDNA 3 holds a whole row of A, and both half waves hold the same; a lane of RDNA 4 holds half of a row.
`laneloom layout v_wmma_f32_16x16x16_f16 --gpu gfx1151` shows it, and DotOperandLayout stands for it below.
"""

from __future__ import annotations

import argparse

import numpy as np
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import laneloom
from laneloom.codegen.versions import wmma_layout
from laneloom.emulator.driver import ArrayArgument
from laneloom.gpu import GPUS

WITH_ITS_WMMA = [name for name, gpu in GPUS.items() if gpu.family in ("RDNA 3", "RDNA 3.5", "RDNA 4")]


@gluon.jit
def hello(a_ptr, b_ptr, c_ptr, ACC: gl.constexpr, K_WIDTH: gl.constexpr, GENERATION: gl.constexpr):
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, K_WIDTH)  # which lane holds which A[i, k]
    B: gl.constexpr = gl.DotOperandLayout(1, ACC, K_WIDTH)
    i = gl.arange(0, 16, gl.SliceLayout(1, A))
    k = gl.arange(0, 16, gl.SliceLayout(0, A))
    a = gl.load(a_ptr + i[:, None] * 16 + k[None, :])
    k = gl.arange(0, 16, gl.SliceLayout(1, B))
    j = gl.arange(0, 16, gl.SliceLayout(0, B))
    b = gl.load(b_ptr + k[:, None] * 16 + j[None, :])
    c = gl.zeros((16, 16), gl.float32, ACC)
    if GENERATION == 3:
        c = gl.amd.rdna3.wmma(a, b, c)  # v_wmma_f32_16x16x16_f16
    else:
        c = gl.amd.rdna4.wmma(a, b, c)
    i = gl.arange(0, 16, gl.SliceLayout(1, ACC))
    j = gl.arange(0, 16, gl.SliceLayout(0, ACC))
    gl.store(c_ptr + i[:, None] * 16 + j[None, :], c)


def main(gpu: str) -> np.ndarray:
    a, b = np.ones((16, 16), np.float16), np.ones((16, 16), np.float16)
    c = np.zeros((16, 16), np.float32)
    generation = 4 if gpu.startswith("gfx12") else 3
    acc = wmma_layout(generation - 2, 1, 1, transposed=False)
    with laneloom.emulated(gpu, strict=True) as emulation:
        hello[(1,)](*map(ArrayArgument, (a, b, c)), ACC=acc, K_WIDTH=16 if generation == 3 else 8,
                    GENERATION=generation, num_warps=1, enable_fp_fusion=True)  # fmt: skip
    print(c)
    print(f"{gpu}: {emulation.launches[0].kernel}, every element is {c[0, 0]:g}")
    return c


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpu", nargs="?", default="gfx1151", choices=WITH_ITS_WMMA)
    main(parser.parse_args().gpu)
