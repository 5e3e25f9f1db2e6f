"""The transform on a real NVIDIA GPU: numerics against FP64 on the CPU, layouts, gradients, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings")

from laneloom.compat import transformbench  # noqa: E402
from laneloom.errors import ArgumentError, InvalidConfigError  # noqa: E402
from laneloom.gpu import get_gpu  # noqa: E402
from laneloom.ops.transform3d import (  # noqa: E402
    FusedConfig,
    MatmulsConfig,
    RowsConfig,
    blocks,
    plan,
    reference,
    transform3d,
)
from laneloom.ops.transform3d.config_flat import FlatConfig  # noqa: E402
from laneloom.ops.transform3d.config_fma import FmaConfig, fma_config  # noqa: E402
from laneloom.ops.transform3d.plan_hopper import flat_config  # noqa: E402
from laneloom.ops.transform3d.problem import Transform3dProblem  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.version.cuda is None, reason="needs an NVIDIA GPU"),
]

DTYPES = {"fp64": torch.float64, "fp32": torch.float32}
BUDGET = 4.0  #: times the bound on the reference's own rounding
BAND = 256


def random(*shape, dtype="fp64", seed=0):
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.standard_normal(shape)).to(DTYPES[dtype]).cuda()


def guarded(*shape, dtype="fp64"):
    """A tensor of NaN between two bands of NaN."""
    n = int(np.prod(shape))
    buffer = torch.full((n + 2 * BAND,), float("nan"), dtype=DTYPES[dtype], device="cuda")
    return buffer, buffer[BAND : BAND + n].view(shape)


def intact(buffer):
    return bool(buffer[:BAND].isnan().all() and buffer[-BAND:].isnan().all())


def share(got, x, t, dtype="fp64", **options):
    got, x, t = (tensor.resolve_conj().cpu().numpy() for tensor in (got, x, t))
    return reference.worst_share(got, x, t, dtype=dtype, **options)


@pytest.mark.parametrize(("dtype", "k", "count"), [
    ("fp64", 10, 2048), ("fp64", 10, 40), ("fp64", 32, 64), ("fp64", 9, 2048), ("fp32", 7, 20_000), ("fp32", 10, 3),
])  # fmt: skip
def test_launches_use_what_those_ahead_of_them_wrote(dtype, k, count):
    """A launch begins while the one ahead still runs: it may not read tensors or matrices before that has ended."""
    x, orthogonal = random(count, k, k, k, dtype=dtype), torch.linalg.qr(random(k, k, dtype=dtype))[0].contiguous()

    def chain(between):
        ahead, out, results = x.clone(), torch.empty_like(x), []
        for _ in range(8):
            transform3d(ahead, orthogonal, out=out)
            between()
            results.append(transform3d(x, out[0, 0]))
            between()
            ahead, out = out, ahead
        return results

    expected, got = chain(torch.cuda.synchronize), chain(lambda: None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(lambda: None)
    for _ in range(3):
        graph.replay()
    for results in (got, captured):
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
@pytest.mark.parametrize("k", [*range(1, 34), 40, 48, 64])
def test_every_k(k, dtype):
    count = {True: 301, False: 7}[k <= 16]
    x, t = random(count, k, k, k, dtype=dtype), random(k, k, dtype=dtype, seed=1)
    buffer, out = guarded(count, k, k, k, dtype=dtype)
    transform3d(x, t, out=out)
    assert share(out, x, t, dtype) <= BUDGET
    assert intact(buffer)
    again = transform3d(x, t)
    assert torch.equal(out, again)
    if k <= 30 or k == 32:
        assert plan(Transform3dProblem(k, count, dtype), get_gpu("sm_90a")).schedule in ("flat", "fma", "fused")


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
@pytest.mark.parametrize("k", [3, 6, 8, 10, 13, 16, 20, 24, 30, 32, 36])
def test_one_matrix_per_axis_transposed_and_accumulated(k, dtype):
    x, t = random(2, 5, k, k, k, dtype=dtype), random(3, k, k, dtype=dtype, seed=1)
    assert share(transform3d(x, t), x, t, dtype) <= BUDGET
    assert share(transform3d(x, t, transpose=True), x, t, dtype, transpose=True) <= BUDGET
    start = random(2, 5, k, k, k, dtype=dtype, seed=2)
    out = start.clone()
    transform3d(x, t, out=out, accumulate=True, transpose=True)
    assert share(out, x, t, dtype, transpose=True, start=start.cpu().numpy()) <= BUDGET


@pytest.mark.parametrize("k", [6, 16, 32])
@pytest.mark.parametrize("count", [0, 1, 2, 17])
def test_batches(k, count):
    x, t = random(count, k, k, k), random(k, k, seed=1)
    out = transform3d(x, t)
    assert out.shape == x.shape
    assert count == 0 or share(out, x, t) <= BUDGET
    assert torch.equal(out, torch.stack([transform3d(one, t) for one in x]) if count else out), "batch invariance"


@pytest.mark.parametrize("k", [11, *range(13, 49)])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "complex128", "complex64"])
def test_clusters_of_few_tensors_give_the_bits_of_many(k, dtype):
    part = "fp64" if dtype in ("fp64", "complex128") else "fp32"
    x = random(100, k, k, k, 2 if "complex" in dtype else 1, dtype=part)
    x = torch.view_as_complex(x) if "complex" in dtype else x[..., 0]
    for t in (random(k, k, dtype=part, seed=1), random(3, k, k, dtype=part, seed=1)):
        many, added = transform3d(x, t), x.clone()
        transform3d(x, t, out=added, accumulate=True)
        for first, count in ((0, 1), (1, 15), (0, 30), (1, 60)):
            few = slice(first, first + count)
            assert torch.equal(transform3d(x[few], t), many[few]), (first, count)
            out = x[few].clone()
            transform3d(x[few], t, out=out, accumulate=True)
            assert torch.equal(out, added[few]), (first, count)


@pytest.mark.parametrize("k", [8, 10, 20])
def test_strides_and_alignment(k):
    t = random(k, k, seed=1)
    padded = random(9, k**3 + 2)
    strided = padded[:, : k**3].unflatten(1, (k, k, k))
    assert share(transform3d(strided, t), strided, t) <= BUDGET
    odd = random(9 * k**3 + 1)[1:].view(9, k, k, k)  # 8 bytes past an aligned address
    assert share(transform3d(odd, t), odd, t) <= BUDGET
    permuted = random(9, k, k, k).permute(0, 3, 1, 2)
    assert share(transform3d(permuted, t), permuted, t) <= BUDGET
    every_other = random(4, 6, k, k, k)[:, ::2]
    assert share(transform3d(every_other, t), every_other, t) <= BUDGET
    assert torch.equal(transform3d(strided, t.mT, transpose=True), transform3d(strided, t))
    target = torch.full((9, k, k, k + 1), float("nan"), dtype=torch.float64, device="cuda")
    transform3d(strided, t, out=target[..., :k])
    assert share(target[..., :k], strided, t) <= BUDGET
    assert bool(target[..., k].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128, torch.complex64])
@pytest.mark.parametrize("k", [5, 6, 8, 9, 10, 14, 16, 18])
def test_tensors_of_out_at_odd_distances(k, dtype):
    x, t = torch.randn(50, k, k, k, dtype=dtype, device="cuda"), torch.randn(k, k, dtype=dtype, device="cuda").real
    buffer = torch.full((50, k**3 + 1), float("nan"), dtype=dtype, device="cuda")
    out = buffer[:, : k**3].view(50, k, k, k)
    transform3d(x, t, out=out)
    assert torch.equal(out, transform3d(x, t))
    assert bool(buffer[:, -1].isnan().all())


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "complex64"])
@pytest.mark.parametrize("k", [*range(1, 8), *range(9, 13), 15, 18])
def test_fma_in_whole_groups_and_parts_of_them(k, dtype, same, accumulate):
    problem = Transform3dProblem(k, 100_000, dtype, same)
    config = fma_config(problem, get_gpu("sm_90a"))
    count = 2 * config.group + 1 if k > 2 else 5000
    x = random(count, k, k, k, *(2,) * (dtype == "complex64"), dtype="fp32")
    x = torch.view_as_complex(x) if dtype == "complex64" else x
    t = random(*(k, k) if same else (3, k, k), dtype="fp32", seed=1)
    start = torch.randn_like(x)

    def run(config, x=x):
        out = start.clone()
        return transform3d(x, t, out=out, accumulate=accumulate, config=config)

    got = run(config)
    assert share(got, x, t, dtype, **({"start": start.cpu().numpy()} if accumulate else {})) <= BUDGET
    assert torch.equal(run(fma_config(replace(problem, count=1), get_gpu("sm_90a"))), got), "batch invariance"
    # Any number of lanes, and not from a multiple of 16 bytes on: by plain loads.
    for lanes in {min(k, lanes) for lanes in ((1, 2, 3) if k <= 12 else (3, 4, 5))}:
        assert torch.equal(run(FmaConfig(group=1, warps=3, lanes=lanes, bulk=False)), got)
    shifted = torch.cat((x.flatten()[:1], x.flatten()))[1:].view(x.shape)
    assert torch.equal(run(replace(config, bulk=False), shifted), got)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "complex128", "complex64"])
@pytest.mark.parametrize("k", [*range(1, 31)])
def test_flat_in_whole_groups_and_parts_of_them(k, dtype):
    real = "fp64" if dtype in ("fp64", "complex128") else "fp32"
    config = flat_config(Transform3dProblem(k, 100_000, dtype), get_gpu("sm_90a"))
    if config is None:
        assert k > 20
        return
    count = 2 * config.group + 1 if k > 2 else 5000
    x = random(count, k, k, k, 2, dtype=real) if dtype != real else random(count, k, k, k, dtype=real)
    x, t = torch.view_as_complex(x) if dtype != real else x, random(k, k, dtype=real, seed=1)
    got = transform3d(x, t, config=config)
    assert share(got, x, t, dtype) <= BUDGET
    few = flat_config(Transform3dProblem(k, 1, dtype), get_gpu("sm_90a"))
    assert torch.equal(transform3d(x, t, config=few), got), "batch invariance"
    if k % 2:
        # Not from a multiple of 16 bytes on: by plain loads.
        shifted = torch.cat((x.flatten()[:1], x.flatten()))[1:].view(x.shape)
        assert torch.equal(transform3d(shifted, t, config=replace(config, bulk=False)), got)


def test_in_place():
    x, t = random(33, 12, 12, 12), random(12, 12, seed=1)
    want = transform3d(x, t)
    transform3d(x, t, out=x)
    assert torch.equal(x, want)


def test_identity_and_linearity():
    x, y, t = random(50, 20, 20, 20), random(50, 20, 20, 20, seed=3), random(20, 20, seed=1)
    assert torch.equal(transform3d(x, torch.eye(20, dtype=x.dtype, device="cuda")), x)
    assert torch.equal(transform3d(2 * x, t), 2 * transform3d(x, t))
    both = transform3d(x, t) + transform3d(y, t)
    assert torch.allclose(transform3d(x + y, t), both, rtol=0, atol=1e-11 * both.abs().max().item())


def test_orthogonal_matrix_is_inverted_by_its_transpose():
    x = random(50, 16, 16, 16)
    q = torch.linalg.qr(random(16, 16, seed=1))[0]
    back = transform3d(transform3d(x, q), q, transpose=True)
    assert torch.allclose(back, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_infinities_stay_in_their_tensor(dtype):
    x, t = random(64, 10, 10, 10, dtype=dtype), random(10, 10, dtype=dtype, seed=1)
    clean = transform3d(x, t)
    x[5, 1, 2, 3] = float("inf")
    dirty = transform3d(x, t)
    keep = torch.arange(64) != 5
    assert torch.equal(dirty[keep], clean[keep])
    assert not bool(dirty[5].isfinite().any())


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64])
def test_complex_coefficients(dtype):
    x = torch.randn(6, 10, 10, 10, dtype=dtype, device="cuda")
    t = torch.randn(10, 10, dtype=dtype.to_real(), device="cuda")
    name = "fp64" if dtype == torch.complex128 else "fp32"
    got = transform3d(x, t)
    for part in ("real", "imag"):
        assert share(getattr(got, part), getattr(x, part), t, name) <= BUDGET
    out = torch.zeros_like(x)
    transform3d(x, t, out=out, accumulate=True)
    assert torch.equal(out, got)


def complex_random(*shape, dtype, seed=0):
    parts = [random(*shape, dtype="fp64" if dtype == torch.complex128 else "fp32", seed=seed + i) for i in (0, 100)]
    return torch.complex(*parts)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64], ids=["complex128", "complex64"])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 6, 8, 9, 10, 12, 13, 16, 20, 21, 24, 30, 32, 36])
def test_complex_tensors_of_every_kind_of_order(k, dtype):
    name = str(dtype).removeprefix("torch.")
    x, t = complex_random(19, k, k, k, dtype=dtype), random(3, k, k, seed=1).to(dtype.to_real())
    got = transform3d(x, t)
    assert share(got, x, t, name) <= BUDGET
    assert torch.equal(got, transform3d(x, t))
    complex_plan, real_plan = (
        plan(Transform3dProblem(k, 1000, dtype, same_matrix=False), get_gpu("sm_90a")).schedule
        for dtype in (name, {"complex128": "fp64", "complex64": "fp32"}[name])
    )
    if complex_plan == real_plan != "matmuls":
        # The real kernel does the same products in the same order.
        assert torch.equal(got.real, transform3d(x.real.contiguous(), t))
    start = complex_random(19, k, k, k, dtype=dtype, seed=5)
    out = start.clone()
    transform3d(x.conj(), t[0], out=out, transpose=True, accumulate=True)
    assert share(out, x.conj(), t[0], name, transpose=True, start=start.cpu().numpy()) <= BUDGET
    if k <= 24 and k % 2 == 0:
        assert plan(Transform3dProblem(k, 19, name), get_gpu("sm_90a")).schedule in ("flat", "fma", "fused")


@pytest.mark.parametrize("k", [4, 10, 17])
def test_complex_matrix(k):
    x, t = complex_random(9, k, k, k, dtype=torch.complex128), complex_random(3, k, k, dtype=torch.complex128, seed=1)
    assert share(transform3d(x, t), x, t, "complex128") <= BUDGET
    assert share(transform3d(x, t.conj()[0], transpose=True), x, t.conj()[0], transpose=True) <= BUDGET
    assert share(transform3d(x, t, config=RowsConfig()), x, t, "complex128") <= BUDGET


@pytest.mark.parametrize("real_matrix", [True, False])
def test_complex_gradients(real_matrix):
    x, t = (complex_random(*s, dtype=torch.complex128) for s in ((2, 3, 3, 3), (3, 3, 3)))
    t = t.real.clone() if real_matrix else t
    assert torch.autograd.gradcheck(transform3d, (x.requires_grad_(), t.requires_grad_()))


@pytest.mark.parametrize("shape", [(5, 5), (3, 5, 5)])
@pytest.mark.parametrize("transpose", [False, True])
def test_gradients(shape, transpose):
    x, t = random(4, 5, 5, 5).requires_grad_(), random(*shape, seed=1).requires_grad_()

    def call(x, t):
        return transform3d(x, t, transpose=transpose)

    assert torch.autograd.gradcheck(call, (x, t))
    assert torch.autograd.gradgradcheck(call, (x, t))


def test_opcheck_and_compile():
    x, t = random(4, 6, 6, 6), random(6, 6, seed=1)
    torch.library.opcheck(torch.ops.laneloom.transform3d, (x, t))
    torch.library.opcheck(torch.ops.laneloom.transform3d_out, (x, t, torch.empty_like(x)))


def test_captured_in_a_graph_on_another_stream():
    x, t = random(100, 16, 16, 16), random(16, 16, seed=1)
    want = transform3d(x, t)
    out = torch.full_like(x, float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        transform3d(x, t, out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)


@pytest.mark.parametrize(
    "config",
    [
        FusedConfig(warps=4, bulk=False),
        FusedConfig(group=3, warps=2, matrix_in_registers=False),
        FusedConfig(cluster=2, warps=4, unroll=1),
        FusedConfig(cluster=4, warps=3),
        FlatConfig(warps=4, bulk=False),
        FlatConfig(group=3, warps=5),
        FlatConfig(warps=32),
        MatmulsConfig(),
        RowsConfig(),
        RowsConfig(dot=True),
    ],
    ids=lambda config: config.text,
)
@pytest.mark.parametrize("k", [8, 12, 20])
def test_configs(config, k):
    x, t = random(11, k, k, k), random(3, k, k, seed=1)
    assert share(transform3d(x, t, config=config), x, t) <= BUDGET


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_building_blocks(dtype):
    a, b = random(3, 30, 77, dtype=dtype), random(30, 100, dtype=dtype, seed=1)
    want = (a.double().mT @ b.double()).cpu()
    limit = {"fp64": 1e-13, "fp32": 1e-4}[dtype]
    for got in (blocks.mTxm(a, b), blocks.mxm(a.mT, b), blocks.mxmT(a.mT, b.mT), blocks.mTxmT(a, b.mT)):
        assert torch.allclose(got.double().cpu(), want, rtol=0, atol=limit)


@pytest.mark.parametrize("level", ["1", "2", "3", "4", "5", "6", "7", "fused"])
def test_levels_validate(level):
    if level == "5":
        pytest.importorskip("nvidia.mathdx", reason="level 5 needs the extra mathdx")
    for line in transformbench.validate(level, None, 16):
        assert line.passed, line


def test_transformbench_times():
    lines = list(transformbench.run(k=8, nfuncs=64, ntasks=3, repetitions=2))
    assert len(lines) == 2
    assert all(str(line).startswith("Transform;level=fused;nfuncs=64;") and line.time_us > 0 for line in lines)


def test_refusals():
    x, t = random(2, 6, 6, 6), random(6, 6)
    with pytest.raises(ArgumentError, match="matrix: expected a tensor on cuda:0"):
        transform3d(x, t.cpu())
    with pytest.raises(InvalidConfigError, match="bulk copies need an even K"):
        transform3d(random(2, 5, 5, 5), random(5, 5), config=FusedConfig(warps=4))
    with pytest.raises(ArgumentError, match="out: expected shape"):
        transform3d(x, t, out=x[:1])
