"""Products and attention over all GPUs of this machine, by both transports, eager and in CUDA graphs.

One group of processes makes all checks, because starting it is most of the time. Nothing here uses NVLink multicast.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import traceback
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

WITHOUT_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1",
}  # fmt: skip
GPUS = torch.cuda.device_count()
UNIT = 2.0**-8  #: bf16's
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")


def random(*shape, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16)


def assert_near(got, truth, roundings):
    """The norm of the difference: `roundings` to bf16 of results or of what is summed to them."""
    error = ((got.double() - truth).norm() / truth.norm()).item()
    assert got.shape == truth.shape
    assert error <= roundings * UNIT, f"relative error {error:.3g}"


def rows_of(rank, rows):
    return slice(rank * rows, (rank + 1) * rows)


# -- checks: each runs in every process --------------------------------------------------------------------------------


def gathered_product(rank, ranks, transport):
    from laneloom.pytorch.distributed import all_gather_matmul

    rows, k, n = 192, 512, 320
    whole, grads = random(rows * ranks, k, seed=0), [random(rows * ranks, n, seed=20 + r) for r in range(ranks)]
    weights = [random(k, n, seed=10 + r) for r in range(ranks)]
    x, w = whole[rows_of(rank, rows)].clone().requires_grad_(), weights[rank].clone().requires_grad_()
    y = all_gather_matmul(x, w, transport=transport)
    y.backward(grads[rank])
    assert_near(y.detach(), whole.double() @ w.detach().double(), 2)
    all_grads = sum(g.double() @ v.double().mT for g, v in zip(grads, weights, strict=True))
    assert_near(x.grad, all_grads[rows_of(rank, rows)], 2 + ranks)
    assert_near(w.grad, whole.double().mT @ grads[rank].double(), 2)


def scattered_product(rank, ranks, transport):
    from laneloom.pytorch.distributed import matmul_reduce_scatter

    rows, k, n = 192, 320, 512
    xs, ws = ([random(*s, seed=first + r) for r in range(ranks)] for s, first in (((rows * ranks, k), 0), ((k, n), 50)))
    grad = random(rows * ranks, n, seed=99)
    x, w = xs[rank].clone().requires_grad_(), ws[rank].clone().requires_grad_()
    y = matmul_reduce_scatter(x, w, transport=transport)
    y.backward(grad[rows_of(rank, rows)])
    total = sum(a.double() @ b.double() for a, b in zip(xs, ws, strict=True))
    assert_near(y.detach(), total[rows_of(rank, rows)], 2 + ranks)
    assert_near(x.grad, grad.double() @ ws[rank].double().mT, 2)
    assert_near(w.grad, xs[rank].double().mT @ grad.double(), 2)


def attention_in_a_ring(rank, ranks, transport):
    from laneloom.pytorch.distributed import ring_attention, zigzag_shard, zigzag_unshard

    length = 256 * ranks
    q, k, v, grad = (random(1, heads, length, 64, seed=i) for i, heads in enumerate((4, 2, 2, 4)))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    for causal in (False, True):
        truth = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
        truths = [truth.detach(), *torch.autograd.grad(truth, leaves, grad.double())]
        parts = [zigzag_shard(x).clone().requires_grad_() for x in (q, k, v)]
        out = ring_attention(*parts, causal=causal, transport=transport)
        out.backward(zigzag_shard(grad))
        for got, expected in zip([out.detach(), *(x.grad for x in parts)], truths, strict=True):
            assert_near(zigzag_unshard(got), expected, 4 + ranks)


def replayed(rank, ranks, transport):
    """Graphs replayed many times, on other data each time and with eager calls between, give the eager calls' bits."""
    from laneloom.pytorch.distributed import all_gather_matmul, matmul_reduce_scatter, ring_attention

    x, w, v = random(256, 512, seed=rank), random(512, 384, seed=10 + rank), random(384, 512, seed=20 + rank)
    q = random(1, 2, 256, 64, seed=rank)

    def layer():
        attended = ring_attention(q, q, q, transport=transport)
        return matmul_reduce_scatter(all_gather_matmul(x, w, transport=transport), v, transport=transport), attended

    with torch.no_grad():
        layer()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = layer()
        for turn in range(8):
            x.copy_(random(256, 512, seed=100 * turn + rank))
            q.copy_(random(1, 2, 256, 64, seed=100 * turn + rank))
            if turn % 4 == 3:  # a rank that comes late
                torch.cuda._sleep(3_000_000 * (rank + 1))
            graph.replay()
            for got, expected in zip([r.clone() for r in results], layer(), strict=True):
                assert torch.equal(got, expected)


def growth_in_a_capture(rank, ranks, transport):
    """Memory that a graph would have to make is refused; what graphs know stays when later calls need more."""
    import laneloom
    from laneloom.pytorch.distributed import all_gather_matmul

    if transport != "symmetric":
        return
    with torch.no_grad():
        x, w = random(64, 64, seed=rank), random(64, 64, seed=9)
        expected = all_gather_matmul(x, w)
        graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = all_gather_matmul(x, w)
        large, weight = random(4096, 8192, seed=rank), random(8192, 64, seed=1)
        with (
            pytest.raises(laneloom.errors.UnsupportedError, match="make the call once before"),
            torch.cuda.graph(other, capture_error_mode="thread_local"),
        ):
            all_gather_matmul(large, weight)
        all_gather_matmul(large, weight)
        torch.cuda.empty_cache()
        random(64, 2**20, seed=rank)  # over memory that was given back
        graph.replay()
        assert torch.equal(result, expected)


CHECKS = [gathered_product, scattered_product, attention_in_a_ring, replayed, growth_in_a_capture]
TRANSPORTS = ["symmetric", "p2p"]


def run_checks(rank, ranks, port, path):
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    outcomes = {}
    for transport in TRANSPORTS:
        for function in CHECKS:
            try:
                function(rank, ranks, transport)
                torch.cuda.synchronize()
                text = ""
            except Exception:
                text = traceback.format_exc()
            outcomes[f"{function.__name__}-{transport}"] = text
            with open(f"{path}.{rank}", "w") as file:
                json.dump(outcomes, file)
            failed = torch.tensor(float(text != ""), device="cuda")
            dist.all_reduce(failed)
            if failed.item() not in (0, ranks):  # ranks that are not at the same place would wait for each other
                os._exit(1)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """rank -> check -> what went wrong."""
    path = tmp_path_factory.mktemp("outcomes") / "outcome"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(GPUS), str(port), str(path)],
            env={**os.environ, **WITHOUT_MULTICAST},
        )
        for rank in range(GPUS)
    ]
    try:
        for process in processes:
            process.wait(240)
    finally:
        for process in processes:
            process.kill()
    files = [path.with_name(f"{path.name}.{rank}") for rank in range(GPUS)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_on_every_gpu(outcomes, name, transport):
    for rank, found in enumerate(outcomes):
        text = found.get(f"{name}-{transport}", "did not finish")
        assert text == "", f"rank {rank} of {GPUS}: {text}"


if __name__ == "__main__":
    run_checks(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
