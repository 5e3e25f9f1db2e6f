"""Products by hopper_registers.py on matmul_model.py's instructions, held to FP64."""

from __future__ import annotations

import functools

import torch
from matmul_products import compare, product, run

from laneloom.ops.matmul.config_registers import RegistersConfig
from laneloom.ops.matmul.kernels import hopper_registers


def small(rows=64, columns=32, *, turned=False, **knobs) -> RegistersConfig:
    """Tiles of `rows` x `columns` of D."""
    block_m, block_n = (columns, rows) if turned else (rows, columns)
    knobs = {"stages": 2, "programs": 2, "group_m": 2} | knobs
    return RegistersConfig(block_m=block_m, block_n=block_n, block_k=32, turned=turned, **knobs)


def fp32(m, n, k, layout="nt", precision="3xtf32", **rest):
    return product(m, n, k, layout, dtype="fp32", precision=precision, **rest)


tf32 = functools.partial(fp32, precision="tf32")


def near(x):
    """The nearest TF32, ties away from zero."""
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def check(problem, config):
    """TF32 rounds operands: FP64 takes them rounded. Of two pieces the product of both rests is left out, 2^-22 of each
    product, and wgmma cuts a last bit off each rest, 2^-23 each: 2^-21. Sums of FP32 have as much again."""
    a, b, out = run(problem, config, kernel=hopper_registers)
    if problem.precision == "tf32":
        a, b = near(a), near(b)
    a, b = a.double().numpy(), b.double().numpy()
    compare(out, a @ b, abs(a) @ abs(b), 1, "", 2.0**-20)
