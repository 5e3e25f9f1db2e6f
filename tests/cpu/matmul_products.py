"""Products by hopper_cluster.py, or another kernel's module, on matmul_model.py's instructions, held to FP64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from laneloom import verify
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config_cluster import ClusterConfig
from laneloom.ops.matmul.kernels import hopper_cluster
from laneloom.ops.matmul.problem import DTYPE_BYTES, MatmulProblem, Matrix

GPU = get_gpu("sm_90a")
DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn,
    "int8": torch.int8, "int32": torch.int32,
}  # fmt: skip
GUARD = 64  #: elements before and behind C
WORDS = {2: torch.int16, 4: torch.int32}


def product(m, n, k, layout="nt", *, dtype="bf16", out=None, c_pitch=0, batch=(1, 1), shared="", **rest):
    """A problem whose operands have the pitches that TMA takes. `shared`: operands that do not step along the inner
    batch axis."""
    whole = 16 // DTYPE_BYTES[dtype]

    def matrix(name, rows, columns, letter, pitch=0):
        pitch = pitch or -(-(columns if letter == "n" else rows) // whole) * whole
        step = pitch * (rows if letter == "n" else columns)
        inner = 0 if name in shared else step
        return Matrix((batch[1] * step, inner, *((pitch, 1) if letter == "n" else (1, pitch))))

    a, b = matrix("a", m, k, layout[0]), matrix("b", k, n, layout[1])
    c = matrix("c", m, n, "n", c_pitch or n)
    return MatmulProblem(m, n, k, dtype, dtype, out or dtype, batch, a, b, c, **rest)


def small(**knobs) -> ClusterConfig:
    knobs = {"block_m": 64, "block_n": 32, "block_k": 64, "group_m": 2, "stages": 2, "consumers": 1} | knobs
    return ClusterConfig(programs=knobs.pop("programs", 2), **knobs)


def summed(_, parts, out):
    out.copy_(parts[..., : out.shape[1]].sum(0))


def shared(*shape, **rest):
    """Memory that a launch's process writes for this one."""
    return torch.zeros(*shape, **rest).share_memory_()


#: what stands for the launch that adds up parts of K, and for where these lie
SUMMED = {"laneloom.device.split_k.ReduceLaunch.__call__": summed, "torch.empty": shared}


def laid(matrix, shape, dtype, seed):
    """Random elements that lie as `matrix` says."""
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, matrix.strides, strict=True))
    data = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * (40 if dtype == "int8" else 1)
    return data.to(DTYPES[dtype]).as_strided(shape, matrix.strides)


def cut(copy, source):
    """What pieces.py makes of the matrices of a batch: pieces of their elements, whose sum they are; behind the last
    along K anything."""
    rest = source.as_strided((*copy.batch, copy.rows, copy.k), (*copy.batch_strides, *copy.strides)).clone()
    rest = rest.flatten(0, 1)
    kind = torch.bfloat16 if copy.half and copy.dtype == "bf16" else rest.dtype
    pieces = torch.full((copy.products, copy.pieces, copy.rows, copy.pitch), 77, dtype=kind)
    for piece in range(copy.pieces):
        near = rest.clone()
        if copy.half:
            near = ((rest.view(torch.int32) + copy.half) & -2 * copy.half).view(torch.float32)
            rest -= near
        pieces[:, piece, :, : copy.k] = near
    return pieces.flatten(0, 1)


def run(problem, config, *terms, anyway=False, kernel=hopper_cluster):
    """A, B, C. Nothing but C may be written: not between its rows, not before and behind it. `anyway`: whatever the
    config says."""
    assert anyway or config.why_invalid(problem, GPU) is None
    a = laid(problem.a, (*problem.batch, problem.m, problem.k), problem.dtype_a, 1)
    b = laid(problem.b, (*problem.batch, problem.k, problem.n), problem.dtype_b, 2)
    kind, shape, strides = DTYPES[problem.dtype_out], (*problem.batch, problem.m, problem.n), problem.out.strides
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    memory = torch.full((size + 2 * GUARD,), -1, dtype=WORDS[kind.itemsize]).share_memory_()  # NaN
    expected = memory.clone()
    out = memory.view(kind).as_strided(shape, strides, GUARD)
    kernel.prepare(problem, config, GPU)(a, b, out, *terms)
    own = torch.arange(len(memory)).as_strided(shape, strides, GUARD).flatten()
    expected[own] = memory[own]
    assert torch.equal(expected, memory), "written outside of C"
    return a, b, out


def compare(out, truth, sums, k, dtype, unit=2.0**-24):
    """unit: of what each of the k terms may be off."""
    error = abs(out.double().numpy() - truth)
    wrong = ~(error <= k * unit * sums + verify.UNIT_ROUNDOFF.get(dtype, 0) * abs(truth))
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} wrong, the first at {np.argwhere(wrong)[0]}"


def check_groups_of_rows(problem, config, ends):
    """Of a batch that says nothing of groups; A and C are those of all products. Rows behind the last group stay."""
    numbers, scales = torch.tensor(ends, dtype=torch.int32), [None, None]
    if problem.epilogue:
        sizes = (problem.m,), (len(ends), problem.n)
        scales = [torch.rand(size, generator=torch.Generator().manual_seed(5)) + 0.5 for size in sizes]
    a, b, out = run(replace(problem, grouped=True), config.with_knobs(grouped=True), *[None] * 4, *scales, numbers)
    first = 0
    for group, end in enumerate(ends):
        x, y = a[0, group, first:end].double().numpy(), b[0, group].double().numpy()
        if problem.epilogue:
            x, y = x * scales[0][first:end, None].double().numpy(), y * scales[1][group].double().numpy()
        compare(out[0, group, first:end], x @ y, abs(x) @ abs(y), problem.k + 4, problem.dtype_out)
        first = end
    assert out[0, 0, first:].isnan().all()


def check_groups_of_k(problem, config, ends):
    """Of a batch that says nothing of groups; both operands are those of all products."""
    config = config.with_knobs(k_grouped=True)
    numbers = torch.tensor(ends, dtype=torch.int32)
    a, b, out = run(replace(problem, k_grouped=True), config, *[None] * 6, numbers)
    first = 0
    for group, end in enumerate(ends):
        x, y = a[0, 0, :, first:end].double().numpy(), b[0, 0, first:end].double().numpy()
        compare(out[0, group], x @ y, abs(x) @ abs(y), problem.k, problem.dtype_out)
        first = end


def check(problem, config, unit=2.0**-24):
    a, b, out = run(problem, config)
    a, b = a.double().numpy(), b.double().numpy()
    compare(out, a @ b, abs(a) @ abs(b), problem.k, problem.dtype_out, unit)
