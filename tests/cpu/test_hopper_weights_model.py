"""hopper_weights.cu on a CPU model of Hopper's instructions: its own text and its own launch, every thread by itself.

Values, scales and rows lie in wider buffers of what must not be read, C among what must not be written.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import pytest
from hopper_model import COMPILER, damaged
from sampled import sampled, without

torch = pytest.importorskip("torch")

from matmul_model import WEIGHTS, Model  # noqa: E402
from matmul_products import DTYPES, GUARD, WORDS  # noqa: E402
from matmul_products import GPU as WHOLE_GPU  # noqa: E402

from laneloom import QuantizedWeight  # noqa: E402
from laneloom.ops.matmul.problem import Matrix  # noqa: E402
from laneloom.ops.quantized_matmul import reference  # noqa: E402
from laneloom.ops.quantized_matmul.config_hopper import HopperWeightsConfig, hopper_configs  # noqa: E402
from laneloom.ops.quantized_matmul.kernels import hopper_weights  # noqa: E402
from laneloom.ops.quantized_matmul.problem import QuantizedProblem  # noqa: E402
from laneloom.ops.quantized_matmul.weight import PACKED  # noqa: E402

GPU = replace(WHOLE_GPU, compute_units=2)  #: a CTA of which takes tile after tile

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no g++")


@pytest.fixture
def model(folder, monkeypatch):
    return functools.partial(Model, folder, monkeypatch, of=WEIGHTS)


def lying(batch, rows, columns, gap, repeated=False):
    """A matrix with `gap` elements behind each row; `repeated`: along the inner batch axis."""
    pitch = columns + gap
    return Matrix((batch[1] * rows * pitch, 0 if repeated else rows * pitch, pitch, 1))


def product(
    m, n, k, dtype_w, dtype="bf16", *, out=None, scale="fp32", group=128, zeros=False, bias=None, batch=(1, 1),
    repeated=False, along_m=False, ragged=0,
) -> QuantizedProblem:  # fmt: skip
    """repeated: the weight, along the inner batch axis. along_m: so is C contiguous. ragged: groups of rows. Every
    matrix has gaps."""
    if ragged:
        batch = (1, ragged)
    groups = -(-k // group) if group else 1
    scales = lying(batch, n, groups, 3, repeated)
    c = lying(batch, n, m, 3, ragged > 0) if along_m else lying(batch, m, n, 5, ragged > 0)
    return QuantizedProblem(
        m, n, k, dtype, dtype_w, out or dtype, scale, group, batch, lying(batch, m, k, 8, ragged > 0),
        lying(batch, n, k // 2 if dtype_w in PACKED else k, 16, repeated), scales,
        c.transposed() if along_m else c, scales if zeros else None,
        (bias, 2, 2 * n + 3 if ragged else 0) if bias else None, ragged > 0,
    )  # fmt: skip


def laid(matrix, shape, values):
    """`values` of `shape` as `matrix` lies, the first along an axis that repeats, with all bits set in its gaps."""
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, matrix.strides, strict=True))
    memory = torch.full((size * values.element_size(),), 255, dtype=torch.uint8).view(values.dtype)
    distinct = tuple(slice(None if stride else 1) for stride in matrix.strides)
    memory.as_strided(shape, matrix.strides)[distinct] = values[distinct]
    return memory.as_strided(shape, matrix.strides)


def operands(problem):
    """x, a weight and a bias. All codes of the weight, of which one is NaN; of E8M0 2^-127 and one NaN."""
    torch.manual_seed(problem.k)
    (outer, inner), n = problem.batch, problem.n
    x = laid(problem.x, (outer, inner, problem.m, problem.k),
             torch.randn(outer, inner, problem.m, problem.k).to(DTYPES[problem.dtype]))  # fmt: skip
    shape = (outer, inner, n, problem.k_stored)
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    if problem.dtype_w == "fp8":
        codes = codes.where(codes & 0x7F != 0x7F, 0)
        codes[-1, :, n // 2, -1] = 0x7F
    values = laid(problem.values, shape, codes.view(torch.int8) if problem.dtype_w == "int8" else codes)
    shape = (outer, inner, n, problem.groups)
    if problem.dtype_scale == "e8m0":
        scales = torch.randint(120, 130, shape, dtype=torch.uint8)
        scales[..., : n // 4, 0] = 0
        scales[..., n // 3, -1] = 255
    else:
        kind = {"fp8": torch.float8_e4m3fn, **DTYPES}[problem.dtype_scale]
        scales = ((torch.rand(shape) + 0.5) * (torch.randint(0, 2, shape) * 2 - 1)).to(kind)
    zeros = problem.zeros and laid(problem.zeros, shape, torch.randint(0, 256, shape, dtype=torch.uint8))
    weight = QuantizedWeight(values, laid(problem.scales, shape, scales), problem.dtype_w, problem.group or None, zeros)
    bias = problem.bias and torch.randn(inner, 2 * n + 3).to(DTYPES[problem.bias[0]])[:, : 2 * n : 2]
    return x, weight, bias if problem.ragged or bias is None else bias[0]


def run(problem, config, x, weight, bias, ends=None):
    """C. Nothing else may be written: not between its rows, not before and behind it, no row that is in no group."""
    assert config.why_invalid(problem, GPU) is None, config.why_invalid(problem, GPU)
    kind, shape, strides = DTYPES[problem.dtype_out], (*problem.batch, problem.m, problem.n), problem.out.strides
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    memory = torch.full((size + 2 * GUARD,), -1, dtype=WORDS[kind.itemsize]).share_memory_()  # NaN
    expected = memory.clone()
    out = memory.view(kind).as_strided(shape, strides, GUARD)
    numbers = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    hopper_weights.prepare(problem, config, GPU)(x, weight.values, weight.scales, weight.zeros, bias, out, numbers)
    own = torch.arange(len(memory)).as_strided(shape, strides, GUARD)
    own = (own if ends is None else own[0, 0, : ends[-1]]).flatten()
    expected[own] = memory[own]
    assert torch.equal(expected, memory), "written outside of C"
    return out


def check(problem, config, given):
    out = run(problem, config, *given)
    x, weight, bias = given
    bias = None if bias is None else bias.double().numpy()
    verdict = reference.judge(out.double().numpy(), x.double().numpy(), weight, problem.dtype_out, bias)
    assert verdict.ok, f"wrong: {verdict}"
    return out


def check_groups(problem, config, given, ends):
    """Each group's rows beside its weight."""
    out = run(problem, config, *given, ends)
    x, weight, bias = given
    parts = (weight.values, weight.scales, weight.zeros, bias)
    for group, (first, end) in enumerate(zip((0, *ends), ends, strict=False)):
        last = min(end, problem.m)
        values, scales, zeros, own_bias = (
            None if t is None else t[0, group] if t.dim() == 4 else t[group] for t in parts
        )
        verdict = reference.judge(
            out[0, group, first:last].double().numpy(), x[0, group, first:last].double().numpy(),
            QuantizedWeight(values, scales, weight.dtype, weight.group, zeros), problem.dtype_out,
            None if own_bias is None else own_bias.double().numpy(),
        )  # fmt: skip
        assert verdict.ok, f"wrong, group {group}: {verdict}"
    return out


def small(eighths=1, consumers=1, **knobs) -> HopperWeightsConfig:
    knobs = {"stages": 2, "together": 1, "unit": 2} | knobs
    return HopperWeightsConfig(eighths=eighths, consumers=consumers, **knobs)


CASES = {
    "int4": (product(5, 77, 416, "int4", scale="fp16"), small(unit=8)),
    "int4, fp16, two groups of a slice": (
        product(13, 131, 736, "int4", "fp16", group=64, out="fp32"), small(2, 2, unit=4, together=2, depth=2)),
    "int4, many slices": (product(17, 65, 1856, "int4", scale="e8m0", bias="bf16"), small(depth=2, stages=3, unit=4)),
    "one element": (product(1, 1, 32, "int4", "fp16", scale="bf16", bias="fp32"), small(consumers=2, fetched=0)),
    "zeros, groups of 32, two strips": (
        product(29, 100, 320, "uint4", scale="bf16", group=32, zeros=True, bias="fp32"), small(4, strips=2, cluster=2)),
    "zeros, fp16, groups of two slices": (
        product(7, 193, 544, "uint4", "fp16", scale="fp16", group=256, zeros=True), small(1, 3, unit=8, together=4)),
    "zeros of rows, c along m": (
        product(61, 67, 224, "uint4", scale="fp8", group=0, zeros=True, out="fp16", along_m=True), small(8, unit=1)),
    "mxfp4": (
        product(3, 129, 1056, "fp4", scale="e8m0", group=32), small(1, 2, unit=8, together=2, depth=2, cluster=4)),
    "mxfp4, fp16": (product(15, 190, 288, "fp4", "fp16", scale="e8m0", group=32, bias="bf16"), small(2, 3)),
    "fp4, a batch, the weight repeated": (
        product(9, 60, 448, "fp4", scale="fp8", group=64, batch=(2, 2), repeated=True), small(2, unit=4)),
    "int8 of rows": (product(6, 255, 640, "int8", group=0), small(1, 2, strips=2, unit=8, together=2, cluster=2)),
    "int8, fp16, a batch, c along m": (
        product(60, 35, 352, "int8", "fp16", scale="bf16", batch=(1, 2), along_m=True), small(8)),
    "fp8": (product(11, 100, 672, "fp8", group=64), small(2, 2, unit=4, stages=3, depth=2)),
    "fp8 of rows, fp16": (
        product(31, 127, 576, "fp8", "fp16", scale="fp16", group=0, out="fp32", bias="fp16"),
        small(4, 2, cluster=4, unit=4)),
    "int4, x by tma, two groups of a slice": (
        product(130, 100, 736, "int4", scale="fp16", group=64, bias="bf16"), small(16, x_by_tma=True, unit=1)),
    "zeros, fp16, x by tma, a batch": (
        product(33, 131, 416, "uint4", "fp16", scale="fp16", zeros=True, batch=(2, 2), repeated=True),
        small(8, 2, x_by_tma=True, stages=3)),
    "mxfp4, x by tma": (
        product(77, 120, 544, "fp4", scale="e8m0", group=32), small(16, strips=2, x_by_tma=True, cluster=2, unit=1)),
    "fp4, fp16, x by tma": (
        product(21, 70, 288, "fp4", "fp16", scale="fp8", group=64), small(4, x_by_tma=True, unit=4)),
    "int8, x by tma, c along m": (
        product(20, 150, 352, "int8", group=0, along_m=True, out="fp32"),
        small(4, 3, x_by_tma=True, together=2, unit=1)),
    "fp8, fp16, x by tma": (product(70, 40, 224, "fp8", "fp16", group=32), small(16, x_by_tma=True, unit=1)),
    "int4, sums carried on, slices of 64": (
        product(150, 131, 544, "int4", scale="bf16", bias="fp32"),
        small(24, 2, x_by_tma=True, turns=True, carried=True, unit=4)),
    "zeros, fp16, groups of four slices, carried, clusters": (
        product(70, 67, 1120, "uint4", "fp16", scale="fp16", group=256, zeros=True, out="fp32"),
        small(16, 2, x_by_tma=True, turns=True, carried=True, cluster=2, stages=3)),
    "int8, four groups of a slice, carried": (
        product(100, 180, 736, "int8", group=32, along_m=True),
        small(20, 3, x_by_tma=True, turns=True, carried=True, unit=1)),
    "fp4, two groups of a slice, carried, two strips": (
        product(40, 140, 480, "fp4", scale="fp8", group=64, batch=(1, 2)),
        small(8, 2, strips=2, x_by_tma=True, turns=True, carried=True)),
    "fp8, fp16, carried": (
        product(250, 60, 288, "fp8", "fp16", scale="fp16", out="fp32"),
        small(32, 2, x_by_tma=True, turns=True, carried=True)),
    "int8 of rows, 256 rows of x": (product(230, 70, 416, "int8", group=0, bias="bf16"), small(32, x_by_tma=True)),
    "int4, in turns": (
        product(150, 251, 672, "int4", scale="fp16", bias="bf16"),
        small(10, 2, x_by_tma=True, carried=True, turns=True, unit=8, stages=3)),
    "int4, in turns, sums apart, two groups of a slice": (
        product(70, 131, 480, "int4", "fp16", group=64, out="fp32"),
        small(8, 2, x_by_tma=True, turns=True, unit=4, cluster=2)),
    "zeros, three in turns": (
        product(30, 400, 416, "uint4", scale="bf16", zeros=True, batch=(1, 2)),
        small(4, 3, x_by_tma=True, carried=True, turns=True, unit=1)),
    "mxfp4, in turns": (
        product(77, 260, 544, "fp4", scale="e8m0", group=32), small(12, 2, x_by_tma=True, turns=True, unit=8)),
    "int8 of rows, two strips in turns": (
        product(90, 300, 288, "int8", group=0, along_m=True), small(6, 2, strips=2, x_by_tma=True, turns=True)),
    "int4, more blocks of rows than follow each other": (
        product(1300, 150, 32, "int4"), small(32, 2, x_by_tma=True, turns=True)),
    "mxfp8, fp16": (product(8, 40, 224, "fp8", "fp16", scale="e8m0", group=32, batch=(2, 1)), small(together=2)),
}  # fmt: skip


USUAL = sampled(without(CASES, "zeros of rows, c along m", "mxfp8, fp16"))


@pytest.mark.parametrize("name", USUAL)
def test_products(model, name):
    """Whether wgmma reads late or at once, the same bits."""
    problem, config = CASES[name]
    given = operands(problem)
    model()
    late = check(problem, config, given)
    model(late=False)
    words = WORDS[late.element_size()]
    assert torch.equal(run(problem, config, *given).view(words), late.view(words))


#: groups that are empty, that end within tiles and past the last row, more than 32 of them; of few CTAs
RAGGED = {
    "int4": (product(60, 77, 416, "int4", scale="fp16", ragged=5, bias="bf16"), small(unit=8), (0, 9, 9, 40, 57)),
    "more groups than a warp has lanes": (
        product(70, 20, 160, "fp4", scale="e8m0", group=32, ragged=67), small(2, unit=4),
        (*[0] * 3, *range(1, 29), *[40] * 30, *range(60, 64), 70, 90)),
    "int8, x by tma, c along m": (
        product(150, 130, 224, "int8", "fp16", group=0, ragged=3, along_m=True, bias="fp32"),
        small(8, 2, x_by_tma=True, stages=3), (70, 75, 149)),
    "zeros, clusters": (
        product(30, 70, 416, "uint4", scale="bf16", zeros=True, ragged=4, out="fp32"), small(2, cluster=2),
        (3, 3, 20, 30)),
    "no rows": (product(9, 40, 160, "fp8", ragged=2), small(together=2), (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", RAGGED)
def test_rows_in_groups(model, name):
    problem, config, ends = RAGGED[name]
    given = operands(problem)
    model()
    late = check_groups(problem, config, given, ends)
    model(late=False)
    words = WORDS[late.element_size()]
    assert torch.equal(run(problem, config, *given, ends).view(words), late.view(words))


@pytest.mark.parametrize(("dtype", "knobs"), [
    ("bf16", {"eighths": 4}), ("bf16", {"eighths": 8, "x_by_tma": True}), ("fp16", {"eighths": 4, "x_by_tma": True}),
])  # fmt: skip
def test_every_number_by_every_power_of_two(model, dtype, knobs):
    """By the identity, exactly: of bf16 down to 2**-128 and up to what FP32 holds."""
    problem = product(32, 255, 32, "fp4", dtype, scale="e8m0", group=32, out="fp32")
    codes = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2, dtype=torch.uint8)
    scales = torch.arange(255, dtype=torch.uint8)[:, None]
    weight = QuantizedWeight(codes.expand(255, 16), scales, "fp4", 32)
    given = (problem.values, (1, 1, 255, 16), weight.values), (problem.scales, (1, 1, 255, 1), scales)
    values, scales = (laid(matrix, shape, x.expand(shape)) for matrix, shape, x in given)
    x = laid(problem.x, (1, 1, 32, 32), torch.eye(32).to(DTYPES[dtype]).expand(1, 1, 32, 32))
    model()
    got = run(problem, small(**knobs), x, QuantizedWeight(values, scales, "fp4", 32), None)
    assert torch.equal(got[0, 0], weight.dequantize().T)


@pytest.mark.parametrize("seed", sampled(range(60), every=20))
def test_what_is_planned(model, seed):
    """Products that nobody chose, each by a config that the plan ranks."""
    g = random.Random(seed)
    kind = g.choice(list(hopper_weights.VALUES))
    m = g.choice((1, g.randint(2, 32), g.randint(33, 64), g.randint(65, 140)))
    problem = product(
        m, g.randint(1, 260), 32 * g.randint(1, 24), kind, g.choice(("fp16", "bf16")),
        out=g.choice(("fp32", "fp16", "bf16")), scale=g.choice(list(hopper_weights.SCALES)),
        group=g.choice((0, 32, 64, 128, 256)), zeros=kind == "uint4" and g.random() < 0.7,
        bias=g.choice((None, "fp32", "bf16")), batch=g.choice(((1, 1), (1, 1), (1, 2))), along_m=g.random() < 0.3,
    )  # fmt: skip
    config = g.choice(list(hopper_configs(problem, WHOLE_GPU)))
    model()
    check(problem, config, operands(problem))


def asm(words):
    return f'asm volatile("{words};" ::: "memory");'


FREE, WAIT = "if (freed && lane == 0) arrive(freed);", asm("wgmma.wait_group.sync.aligned 1")
LOAD, STORE = "next.load(of_w, beside, own, unit + 1);", "bringing[d].store(of, to, units);"
BEGIN, PARTS = "    begin();\n    fragments[0].load(of_w, beside, own, 0);\n", "float *parts ="
SLOW, SLOWER = "fibers::sleep(500); ", "fibers::sleep(4000); "  # for each slice, once
GROUPS = product(5, 64, 1024, "int4"), small(unit=4)
FEW_SLICES = product(5, 64, 256, "int4"), small(unit=4)
TWO_CONSUMERS = product(13, 128, 256, "int4"), small(2, 2, cluster=2)
ROWS = product(5, 64, 1024, "int8", group=0), small(unit=4)
PARTS_OF_K = product(5, 64, 512, "int4"), small(unit=4, cluster=2)

#: what is wrong: what stands in the kernel's text and what instead, what is said of it, of which product. Who would be
#: ahead of what is wrong by luck is slow.
FAULTS = {
    "a slice is read before it is there": (
        {"if (within == 0) wait_barrier(at.full(), at.phase);": "", STORE: SLOWER + STORE}, "wrong|on its way|for ever",
        FEW_SLICES),
    "wgmma may see old rows of x": ({asm("fence.proxy.async.shared::cta"): ""}, "wgmma reads what no fence", GROUPS),
    "a tile's last slice is not freed": (
        {"    if (lane == 0) arrive(freed);": ""}, "waits for ever", (product(5, 512, 512, "int4"), small(unit=4))),
    "bytes that nobody expects": ({"count * (W_BYTES": "(count - 1) * (W_BYTES"}, "waits for ever", FEW_SLICES),
    "x is in another order than w": ({"i == 3 ? 0x7632 : 0x5410": "i == 3 ? 0x5410 : 0x7632"}, "wrong", FEW_SLICES),
    "a slice is freed before its products are done": (
        {FREE: "", WAIT: f"__syncwarp(); if (unit == 0 && freed) {{ if (lane == 0) arrive(freed); {SLOW}}} {WAIT}"},
        "wrong|on its way", ROWS),
    "a slice is freed before all of it is read": (
        {FREE: f"if (last && lane == 0) arrive(last), {SLOW}"}, "wrong|on its way", GROUPS),
    "a slice is freed while the last words are on their way": (
        {FREE: "", LOAD: f"{LOAD} __syncwarp(); if (last) {{ if (lane == 0) arrive(last); {SLOW}}}"},
        "on its way from shared memory is overwritten", GROUPS),
    "registers are overwritten before wgmma is done": ({WAIT: ""}, "wgmma still reads its registers", ROWS),
    "sums are read before wgmma is done": (
        {f"                {asm('wgmma.wait_group.sync.aligned 0')}": ""}, "wrong", GROUPS),
    "sums take the place of what is still read": (
        {"__syncthreads();  // the": "// the", BEGIN: f"{BEGIN[:12]} if (threadIdx.x >= 128) {SLOWER}{BEGIN[12:]}"},
        "wrong|on its way", TWO_CONSUMERS),
    "sums of a neighbour take the place of what is still read": (
        {asm("barrier.cluster.arrive.relaxed"): "", asm("barrier.cluster.wait"): "",
         BEGIN: f"if (blockIdx.x == 1) {SLOWER}{BEGIN}"}, "wrong|on its way", PARTS_OF_K),
    "sums are added before all are there": (
        {asm("barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire"): "__syncthreads();",
         PARTS: f"if (rank == 1) {SLOWER}{PARTS}"}, "wrong|a signal to a CTA that has ended", PARTS_OF_K),
    "scales are read before the kernels ahead are done": (
        {"wait_for_predecessor();  // C": "// C"}, "kernels ahead", ROWS),
}  # fmt: skip


#: but what test_hopper_registers_faults.py finds with the same model, and what every product above would show
OWN = sampled(without(FAULTS, "sums are read before wgmma is done", "x is in another order than w"), every=4)


@pytest.mark.parametrize("name", OWN)
def test_faults_are_seen(model, name):
    changes, what, (problem, config) = FAULTS[name]
    model(change=damaged(changes))
    with pytest.raises(AssertionError, match=what):
        check(problem, config, operands(problem))
