"""Several processes on gloo, each with an emulated GPU: sharded operators give the values of whole ones.

One group of processes for each size makes all checks, because starting them is most of the time; each check is a test.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import socket
import traceback

import fresh_process
import pytest
from sampled import rarely

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import triton  # noqa: E402
from triton.runtime import cache  # noqa: E402

import laneloom  # noqa: E402
from laneloom.ops.attention import reference  # noqa: E402

HALF = torch.float16
U16, U32 = 2.0**-11, 2.0**-24


def random(*shape, seed=0, dtype=HALF):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def check(got, truth, magnitude, roundings=1, terms=64):
    """|got - truth| within `roundings` to fp16 and FP32 sums of `terms` terms, whose magnitudes sum to `magnitude`."""
    error = (got.double() - truth).abs()
    allowed = (roundings * U16 + 2 * terms * U32) * magnitude + 1e-7
    assert got.shape == truth.shape
    assert bool((error <= allowed).all()), f"error over budget: {(error / allowed).max().item():.3g}"


def check_product(got, a, b, roundings=1):
    check(got, a.double() @ b.double(), a.double().abs() @ b.double().abs(), roundings)


# -- checks: each runs in every process of a group ---------------------------------------------------------------------


def dtensor_matmul(ranks):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (ranks,))
    a, b, g = random(8, 16), random(16, 12, seed=1), random(8, 12, seed=2)
    cases = [
        (Shard(0), Replicate(), Shard(0), 1), (Replicate(), Shard(1), Shard(1), 1),
        (Shard(1), Shard(0), Partial(), ranks),
    ]  # fmt: skip
    for place_a, place_b, expected, roundings in cases:
        x, y = (distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in ((a, place_a), (b, place_b)))
        out = laneloom.matmul(x, y)
        assert out.placements == (expected,), out.placements
        assert out.to_local().shape == tuple(n // ranks if i == getattr(expected, "dim", None) else n
                                             for i, n in enumerate((8, 12)))  # fmt: skip
        check_product(out.full_tensor().detach(), a, b, 2 * roundings)
        out.backward(distribute_tensor(g, mesh, [Replicate()]))
        check_product(x.grad.full_tensor(), g, b.mT, 2 * ranks)
        check_product(y.grad.full_tensor(), a.mT, g, 2 * ranks)
    batched = distribute_tensor(random(4, 8, 16), mesh, [Shard(0)])
    out = laneloom.matmul(batched, distribute_tensor(b, mesh, [Replicate()]))
    assert out.placements == (Shard(0),)
    check_product(out.full_tensor(), random(4, 8, 16), b)


def dtensor_gemm(ranks):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (ranks,))
    a, b, c, bias = random(8, 16), random(16, 12, seed=1), random(12, seed=2), random(12, seed=3)
    truth, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    for place_a, place_b, expected in ((Shard(0), Replicate(), Shard(0)), (Replicate(), Shard(1), Shard(1))):
        x, y = (distribute_tensor(t, mesh, [p]) for t, p in ((a, place_a), (b, place_b)))
        whole = [distribute_tensor(t, mesh, [Replicate()]) for t in (c, bias)]
        out = laneloom.gemm(x, y, whole[0], beta=0.5, bias=whole[1], activation="relu")
        assert out.placements == (expected,), out.placements
        expected_value = (truth + 0.5 * c.double() + bias.double()).relu()
        check(out.full_tensor(), expected_value, size + c.double().abs() + bias.double().abs())
        # The same specs with another term: a rule for the first may not be taken for the second.
        for terms in ({"c": whole[0], "beta": 1.0}, {"bias": whole[0]}):
            got = laneloom.gemm(x, y, **terms).full_tensor()
            check(got, truth + c.double(), size + c.double().abs())
    x, y = distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)])
    assert laneloom.gemm(x, y, alpha=2.0).placements == (Partial(),)
    got = laneloom.gemm(x, y, activation="relu").full_tensor()  # not a sum of parts
    check(got, truth.relu(), size)


def attention_truth(q, k, v, causal, grad, softcap=None):
    """O and the gradients in FP64."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    if softcap:
        options = {"causal": "top_left" if causal else "none", "softcap": softcap, "grad": grad.double().numpy()}
        found = reference.attention(*(x.detach().numpy() for x in leaves), **options)
        return torch.from_numpy(found.out), [torch.from_numpy(x) for x in (found.dq, found.dk, found.dv)]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
    return out.detach(), torch.autograd.grad(out, leaves, grad.double())


def check_attention(got, truth, roundings=1):
    """A mean of V's rows, or a gradient: relative to the largest element; P, dS and parts are rounded to fp16."""
    check(got, truth, truth.abs().max().clamp_min(1.0).expand_as(truth), 4 + roundings, 256)


def dtensor_attention(ranks):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (ranks,))
    q, k, v, grad = (random(2, 4, 8, 16, seed=i) for i in range(4))
    cases = [
        ((q, k, v), Shard(0), True, (Shard(0),)), ((q, k, v), Shard(1), True, (Shard(1),)),
        *rarely(((q, k[:, :1], v[:, :1]), Shard(0), False, (Shard(0),))),
    ]  # fmt: skip
    for operands, place, causal, expected in cases:
        truth, gradients = attention_truth(*operands, causal, grad)
        parts = [distribute_tensor(x, mesh, [place]).requires_grad_() for x in operands]
        out = laneloom.flash_attention(*parts, causal="top_left" if causal else False)
        assert out.placements == expected, out.placements
        check_attention(out.full_tensor().detach(), truth)
        out.backward(distribute_tensor(grad, mesh, [Replicate()]))
        for part, gradient in zip(parts, gradients, strict=True):
            check_attention(part.grad.full_tensor(), gradient)
    whole = [distribute_tensor(x, mesh, [Replicate()]) for x in (k, v)]
    for causal, expected in ((False, Shard(2)), (True, None)):  # a mask counts from the first query
        out = laneloom.flash_attention(distribute_tensor(q, mesh, [Shard(2)]), *whole, causal=causal)
        assert (out.placements == (Shard(2),)) is (expected is not None)
        check_attention(out.full_tensor(), attention_truth(q, k, v, causal, grad)[0])
    # One head of keys for all: heads may not be split from it, whatever the placement asks for.
    parts = [distribute_tensor(x, mesh, [place]) for x, place in ((q, Shard(1)), (k[:, :1], Replicate()))]
    out = laneloom.flash_attention(parts[0], parts[1], parts[1])
    check_attention(out.full_tensor(), attention_truth(q, k[:, :1], k[:, :1], False, grad)[0])


def dtensor_float8_attention(ranks):
    """Scales of each sequence and head of keys go with these, one for all stays whole."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = dist.init_device_mesh("cpu", (ranks,))

    def placed(x, place):  # gloo sends no 8-bit floats: each rank takes its own part
        part = x if place == Replicate() else x.chunk(ranks, place.dim)[dist.get_rank()]
        return DTensor.from_local(part.contiguous(), mesh, [place])

    q, k, v = (random(2, 4, 8, 16, seed=i).to(torch.float8_e4m3fn) for i in range(3))
    each, one = 0.5 + torch.rand(2, 4, generator=torch.Generator().manual_seed(3)), torch.tensor([0.75])
    expected = laneloom.flash_attention(q, k, v, causal=True, scale_q=each, scale_k=one, scale_v=2.0)
    for place in (Shard(0), Shard(1), Replicate()):
        parts = [placed(x, place) for x in (q, k, v, each)]
        scales = {"scale_q": parts[3], "scale_k": placed(one, Replicate()), "scale_v": 2.0}
        out = laneloom.flash_attention(*parts[:3], causal=True, **scales)
        assert out.placements == (place,), out.placements
        assert torch.equal(out.full_tensor(), expected)


def dtensor_others(ranks):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (ranks,))
    x, t, g = (random(*s, seed=i, dtype=torch.float64) for i, s in enumerate([(4, 3, 3, 3), (3, 3), (4, 3, 3, 3)]))
    coeffs, matrix = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_(), distribute_tensor(t, mesh, [Replicate()])
    out = laneloom.transform3d(coeffs, matrix)
    assert out.placements == (Shard(0),)
    torch.testing.assert_close(out.full_tensor().detach(), torch.einsum("nabc,ai,bj,ck->nijk", x, t, t, t))
    out.backward(distribute_tensor(g, mesh, [Shard(0)]))
    torch.testing.assert_close(coeffs.grad.full_tensor(), torch.einsum("nijk,ai,bj,ck->nabc", g, t, t, t))
    turned = laneloom.transpose(distribute_tensor(random(8, 12), mesh, [Shard(0)]))
    assert turned.placements == (Shard(1),)
    assert torch.equal(turned.full_tensor(), random(8, 12).mT)
    with pytest.raises(Exception, match="out: expected none for DTensors"):
        laneloom.transpose(distribute_tensor(random(8, 8), mesh, [Shard(0)]), out=distribute_tensor(random(8, 8), mesh))


def dtensor_chain(ranks):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (ranks,))
    a0, b0, b1 = random(16, 16), random(16, 16, seed=1), random(16, 16, seed=2)
    truth = a0.double() @ b0.double() @ b1.double()
    size = a0.double().abs() @ b0.double().abs() @ b1.double().abs()
    shards, whole = (Shard(0), Shard(1)), Replicate()
    for places, expected in (((shards[0], whole, whole), shards[0]), ((whole, shards[1], shards[0]), Partial())):
        operands = [distribute_tensor(x, mesh, [p]) for x, p in zip((a0, b0, b1), places, strict=True)]
        out = laneloom.gemm_chain(*operands)
        assert out.placements == (expected,), out.placements
        check(out.full_tensor(), truth, size, 2 + 2 * ranks)


def two_mesh_axes(ranks):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (2, ranks // 2))
    a, b = random(8, 16), random(16, 12, seed=1)
    out = laneloom.matmul(
        distribute_tensor(a, mesh, [Shard(0), Replicate()]), distribute_tensor(b, mesh, [Replicate(), Shard(1)])
    )
    assert out.placements == (Shard(0), Shard(1)), out.placements
    check_product(out.full_tensor(), a, b)


def dtensor_decode_and_groups(ranks):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (ranks,))

    def placed(tensors, placements):
        return [distribute_tensor(t, mesh, [p]) for t, p in zip(tensors, placements, strict=True)]

    lengths = torch.tensor([9, 20], dtype=torch.int32)
    operands = (random(2, 1, 4, 16), random(2, 32, 2, 16, seed=1), random(2, 32, 2, 16, seed=2), lengths)
    expected = laneloom.attention_decode(*operands[:3], cache_lengths=lengths)
    whole = Replicate()
    for places, result in (([Shard(2), Shard(2), Shard(2), whole], Shard(2)), ([Shard(0)] * 4, Shard(0))):
        q, k, v, n = placed(operands, places)
        out = laneloom.attention_decode(q, k, v, cache_lengths=n)
        assert out.placements == (result,), out.placements
        assert torch.equal(out.full_tensor(), expected)

    def by_group(a, b, ends):
        bounds = [0, *ends.tolist()]
        return torch.cat([a[i:j] @ x for i, j, x in zip(bounds[:-1], bounds[1:], b, strict=True)])

    a, b, ends = random(8, 16), random(2, 16, 12, seed=1), torch.tensor([3, 8], dtype=torch.int32)
    truth, size = (by_group(f(a.double()), f(b.double()), ends) for f in (torch.clone, torch.abs))
    columns, depth = ([whole, Shard(2), whole], Shard(1)), ([Shard(1), Shard(1), whole], Partial())
    rows = ([Shard(0), whole, whole], whole)  # groups are counted from the first row: gathered
    for places, result in (columns, depth, rows):
        out = laneloom.grouped_matmul(*placed((a, b, ends), places))
        assert out.placements == (result,), out.placements
        check(out.full_tensor(), truth, size, 2 * ranks)
    x, y, n, grad = placed((a, b, ends, random(8, 12, seed=3)), [whole, Shard(2), whole, Shard(1)])
    laneloom.grouped_matmul(x.requires_grad_(), y.requires_grad_(), n).backward(grad)
    assert torch.equal(y.grad.full_tensor(), laneloom.grouped_matmul(a.mT, random(8, 12, seed=3), ends))
    own = laneloom.quantize_weight(random(2, 12, 16).float(), "int8")
    x, q, s, n = placed((a, own.values, own.scales, ends), [whole, Shard(1), Shard(1), whole])
    out = laneloom.quantized_matmul(x, laneloom.QuantizedWeight(q, s, "int8"), ends=n)
    assert out.placements == (Shard(1),), out.placements
    assert torch.equal(out.full_tensor(), laneloom.quantized_matmul(a, own, ends=ends))


def gathered_product(ranks):
    from laneloom.pytorch.distributed import all_gather_matmul

    rank, rows = dist.get_rank(), 4
    x, w, g = random(rows * ranks, 16), random(16, 12, seed=1 + rank), random(rows * ranks, 12, seed=9 + rank)
    mine, weight = x[rank * rows :][:rows].clone().requires_grad_(), w.clone().requires_grad_()
    y = all_gather_matmul(mine, weight)
    check_product(y.detach(), x, w)
    assert torch.equal(y, all_gather_matmul(mine, weight))
    y.backward(g)
    weights, grads = ([random(*s, seed=first + r) for r in range(ranks)] for s, first in (((16, 12), 1), (g.shape, 9)))
    stacked, summed = torch.cat(grads, 1), torch.cat(weights, 1).mT
    check_product(mine.grad, stacked[rank * rows :][:rows], summed, ranks + 1)
    check_product(weight.grad, x.mT, g)


def scattered_product(ranks):
    from laneloom.pytorch.distributed import matmul_reduce_scatter

    rank, rows = dist.get_rank(), 4
    parts = [(random(rows * ranks, 16, seed=r), random(16, 12, seed=20 + r)) for r in range(ranks)]
    g = torch.cat([random(rows, 12, seed=40 + r) for r in range(ranks)])
    x, w = (t.clone().requires_grad_() for t in parts[rank])
    y = matmul_reduce_scatter(x, w)
    whole = [torch.cat([part[i] for part in parts], 1 - i) for i in range(2)]
    mine = slice(rank * rows, (rank + 1) * rows)
    check_product(y.detach(), whole[0][mine], whole[1], ranks + 1)
    y.backward(g[mine])
    check_product(x.grad, g, parts[rank][1].mT)
    check_product(w.grad, parts[rank][0].mT, g)
    for bad in (lambda: matmul_reduce_scatter(x[:-1], w), lambda: matmul_reduce_scatter(x, w[:-1])):
        with pytest.raises(laneloom.errors.ArgumentError):
            bad()
    with pytest.raises(laneloom.errors.UnsupportedError, match="symmetric memory is for CUDA tensors"):
        matmul_reduce_scatter(x, w, transport="symmetric")


def attention_in_a_ring(ranks):
    from laneloom.pytorch.distributed import ring_attention, zigzag_shard, zigzag_unshard

    rank, n = dist.get_rank(), 8 * ranks
    q, k, v, grad = (random(1, heads, n, 16, seed=i) for i, heads in enumerate((2, 1, 1, 2)))
    for causal, softcap in ((False, None), (True, None), (True, 0.5)):
        truth, gradients = attention_truth(q, k, v, causal, grad, softcap)
        mine = [zigzag_shard(x) if causal else x[:, :, 8 * rank :][:, :, :8] for x in (q, k, v, grad)]
        parts = [x.clone().requires_grad_() for x in mine[:3]]
        out = ring_attention(*parts, causal=causal, softcap=softcap)
        out.backward(mine[3])
        whole = [out.detach(), *(x.grad for x in parts)]
        for got, expected in zip(whole, (truth, *gradients), strict=True):
            if causal:
                check_attention(zigzag_unshard(got), expected, ranks)
            else:
                check_attention(got, expected[:, :, 8 * rank :][:, :, :8], ranks)
    assert torch.equal(zigzag_unshard(zigzag_shard(q)), q)
    with pytest.raises(laneloom.errors.ArgumentError, match="even number of queries"):
        ring_attention(*[random(1, 1, 3, 16)] * 3, causal=True)


def benchmark(ranks):
    """What `laneloom.bench.distributed` times is right; what is wrong, or fails on one rank, is said and not timed."""
    from laneloom.bench import distributed

    products = list(distributed.product_cases("cpu", ((8, 16, 32),), HALF))
    others = [*distributed.transform_cases("cpu", ((3, 4),)), *distributed.attention_cases("cpu", ((2, 1, 16),), 16)]
    assert {case.op for case in products + others} == set(distributed.OPERATIONS)
    for case in products:
        runs, errors, budget, faults = distributed.check(case)
        assert len(runs) == 2
        assert max(errors.values()) <= budget
        assert faults == []
    for case in others:
        assert case.truth().isfinite().all()
    right = products[0].candidates[distributed.OURS]
    for wrong in (lambda: right() * 1.1, lambda: right() / (0 if dist.get_rank() == 0 else 1), lambda: right()[1:]):
        products[0].candidates[distributed.OURS] = wrong
        runs, _, _, faults = distributed.check(products[0])
        assert set(runs) == {"torch: all_gather, matmul"}
        assert len(faults) == 1
        assert "over its budget" in faults[0]


CHECKS = {
    2: [dtensor_matmul, dtensor_gemm, dtensor_attention, dtensor_float8_attention, dtensor_others, dtensor_chain,
        dtensor_decode_and_groups, benchmark, *rarely(gathered_product, scattered_product, attention_in_a_ring)],
    4: [two_mesh_axes, gathered_product, scattered_product, attention_in_a_ring],
}  # fmt: skip


def compile_one_by_one(path):
    """Ranks launch the same kernels at the same time: the first compiles, the others find it in Triton's cache."""
    compile_kernel = triton.compiler.compile

    def compile_alone(*args, **options):
        with open(path, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_kernel(*args, **options)

    triton.compiler.compile = compile_alone


def run_checks(rank, ranks, port, path, key):
    torch.set_num_threads(1)
    cache.triton_key = lambda: key  # a digest of all its files
    gc.freeze()  # as tests/conftest.py does: a sixth of the time goes to garbage otherwise
    gc.set_threshold(50_000, 20, 100)
    compile_one_by_one(f"{path}.lock")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    outcomes = {}
    with laneloom.emulated("gfx1151"):
        for function in CHECKS[ranks]:
            try:
                function(ranks)
                outcomes[function.__name__] = ""
            except BaseException:
                outcomes[function.__name__] = traceback.format_exc()
                break  # the other processes wait for this one: they stop by the group's timeout, or with the process
    with open(f"{path}.{rank}", "w") as file:
        json.dump(outcomes, file)
    if all(text == "" for text in outcomes.values()):
        dist.destroy_process_group()
    else:
        os._exit(1)


@pytest.fixture(scope="module", params=list(CHECKS))
def outcomes(request, tmp_path_factory):
    """Number of ranks, and of each check -> what went wrong."""
    ranks, path = request.param, tmp_path_factory.mktemp("outcomes") / "outcome"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        shared = ranks, found.getsockname()[1], path, cache.triton_key()
    context = fresh_process.context()
    processes = [context.Process(target=run_checks, args=(rank, *shared)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(480)
        process.kill()
    files = [path.with_name(f"{path.name}.{rank}") for rank in range(ranks)]
    return ranks, [json.loads(file.read_text()) if file.exists() else {} for file in files]


@pytest.mark.parametrize("name", sorted({check.__name__ for checks in CHECKS.values() for check in checks}))
def test_on_every_rank(outcomes, name):
    ranks, found = outcomes
    if name not in {check.__name__ for check in CHECKS[ranks]}:
        return
    for rank in range(ranks):
        assert found[rank].get(name, "did not finish") == "", f"rank {rank} of {ranks}: {found[rank].get(name)}"
