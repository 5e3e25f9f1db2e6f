"""Every way to launch works in a thread that no call has given a CUDA context yet, as torch's autograd threads are."""

from __future__ import annotations

import ctypes
import threading

import pytest

torch = pytest.importorskip("torch")

import laneloom  # noqa: E402


def tensor(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64).to(dtype)


def product(m, n, k, dtype=torch.bfloat16, transposed=False, **options):
    """A product with both gradients."""
    a, b = tensor(m, k, dtype=dtype, seed=1), tensor(*((n, k) if transposed else (k, n)), dtype=dtype, seed=2)
    grad = tensor(m, n, dtype=dtype, seed=3)

    def run():
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        out = laneloom.matmul(x, y.mT if transposed else y, **options)
        out.backward(grad)
        return out.detach(), x.grad, y.grad

    return run


def warm_product(m, n, k, dtype=torch.bfloat16, transposed=False, **options):
    """A product past PyTorch's dispatcher, into memory that is there."""
    a, b = tensor(m, k, dtype=dtype, seed=1), tensor(*((n, k) if transposed else (k, n)), dtype=dtype, seed=2)
    out = torch.empty(m, n, dtype=dtype, device="cuda")
    return lambda: (laneloom.matmul(a, b.mT if transposed else b, out=out, **options),)


def attention(dim):
    q, k, v, grad = (tensor(2, 4, 256, dim, seed=s) for s in range(4))

    def run():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = laneloom.flash_attention(*leaves, causal=True)
        out.backward(grad)
        return out.detach(), *(x.grad for x in leaves)

    return run


def decode():
    q, k, v = tensor(2, 1, 8, 64, seed=1), tensor(2, 512, 2, 64, seed=2), tensor(2, 512, 2, 64, seed=3)
    lengths = torch.tensor([500, 33], dtype=torch.int32, device="cuda")
    return lambda: (laneloom.attention_decode(q, k, v, cache_lengths=lengths),)


def transform(dtype, k):
    x, t, grad = tensor(40, k, k, k, dtype=dtype), tensor(k, k, dtype=dtype), tensor(40, k, k, k, dtype=dtype, seed=5)

    def run():
        leaves = x.clone().requires_grad_(), t.clone().requires_grad_()
        out = laneloom.transform3d(*leaves)
        out.backward(grad)
        return out.detach(), *(leaf.grad for leaf in leaves)

    return run


def epilogue():
    a, b, bias = tensor(512, 256, seed=1), tensor(256, 384, seed=2), tensor(384, seed=3)
    return lambda: (laneloom.gemm(a, b, bias=bias, activation="gelu"),)


def groups():
    a, b = tensor(300, 128, seed=1), tensor(3, 128, 192, seed=2)
    ends = torch.tensor([100, 170, 300], dtype=torch.int32, device="cuda")
    return lambda: (laneloom.grouped_matmul(a, b, ends),)


def chain():
    a, b, c = tensor(256, 64, seed=1), tensor(64, 64, seed=2), tensor(64, 64, seed=3)
    return lambda: (laneloom.gemm_chain(a, b, c, alpha0=0.5),)


CALLS = {
    "TMA and wgmma": lambda: product(512, 768, 512),
    "split K": lambda: product(128, 128, 8192),
    "one short side": lambda: product(16, 4096, 2048),
    "one row": lambda: product(1, 2048, 4096, transposed=True),
    "repacked": lambda: product(1027, 515, 1029),
    "masked loads": lambda: product(127, 129, 131),
    "clusters": lambda: product(1000, 1000, 1000),
    "fp32": lambda: product(512, 512, 256, torch.float32),
    "fp64": lambda: product(512, 512, 256, torch.float64),
    "tf32": lambda: product(512, 768, 512, torch.float32, precision="tf32"),
    "3xtf32": lambda: product(512, 512, 256, torch.float32, precision="3xtf32"),
    "warm": lambda: warm_product(512, 640, 512),
    "warm, clusters": lambda: warm_product(1000, 1000, 1000),
    "warm, fp64": lambda: warm_product(512, 640, 256, torch.float64),
    "warm, repacked": lambda: warm_product(1027, 517, 1029),
    "epilogue": epilogue,
    "groups": groups,
    "attention, 64": lambda: attention(64),
    "attention, 128": lambda: attention(128),
    "decode": decode,
    "transform, fp64": lambda: transform(torch.float64, 10),
    "transform, fp32": lambda: transform(torch.float32, 16),
    "transpose": lambda: (lambda x: lambda: (laneloom.transpose(x),))(tensor(300, 500)),
    "chain": chain,
}


def without_context(call):
    """What `call` gives in a thread that starts without a context."""
    found = []

    def target():
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            assert driver.cuCtxSetCurrent(None) == 0
            context = ctypes.c_void_p()
            assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
            assert context.value is None
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    torch.cuda.synchronize()
    return found[0]


@pytest.mark.parametrize("name", CALLS)
def test_a_thread_without_a_context(name):
    """First the thread compiles and loads as well, then all is warm; the bits are those of this thread's call."""
    call = CALLS[name]()
    torch.cuda.synchronize()
    cold = without_context(call)
    cold = [x.clone() for x in cold]
    here = [x.clone() for x in call()]
    warm = without_context(call)
    for one, two, three in zip(cold, here, warm, strict=True):
        assert not two.isnan().any()
        assert torch.equal(one, two)
        assert torch.equal(three, two)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", CALLS)
def test_a_device_that_is_not_the_current_one(name):
    """Operands on the second GPU while the first is current, in this thread and in one without a context."""
    expected = [x.cpu() for x in CALLS[name]()()]
    with torch.cuda.device(1):
        call = CALLS[name]()
    torch.cuda.synchronize(1)
    for results in (call(), without_context(call), call()):
        torch.cuda.synchronize(1)
        assert torch.cuda.current_device() == 0
        for result, wanted in zip(results, expected, strict=True):
            assert result.device.index == 1
            assert torch.equal(result.cpu(), wanted)
