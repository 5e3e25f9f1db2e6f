"""Kernels of the kinds that Triton's tutorials teach, in strict mode, on three GPUs."""

import math

import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import laneloom  # noqa: E402
from laneloom.codegen.versions import parse_version, triton_version  # noqa: E402
from laneloom.errors import HazardError  # noqa: E402

pytestmark = pytest.mark.turning("gpu")
EPS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


@pytest.fixture(params=["gfx1151", "gfx1201", "gfx90a", "gfx942", "gfx1250"])
def gpu(request):
    torch.manual_seed(5)
    with laneloom.emulated(request.param, strict=True) as emulation:
        yield emulation


def poisoned(*shape, dtype=torch.float32):
    return torch.full(shape, float("nan"), dtype=dtype)


def assert_product(out, a, b, finish=lambda x: x):
    """out = finish(a b): the FP32 error bound of the sums, twice, through a 1-Lipschitz `finish`, then one rounding."""
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    sums = 2 * a.shape[-1] * 2.0**-24 * magnitude
    truth = finish(exact)
    assert ((out.double() - truth).abs() <= sums + EPS[out.dtype] * (truth.abs() + sums)).all()


# -- fused softmax, persistent: programs walk over rows ----------------------------------------------------------------


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride_x, stride_out, rows, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        x = tl.load(x_ptr + row * stride_x + columns, mask=inside, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * stride_out + columns, e / tl.sum(e, axis=0), mask=inside)


def test_persistent_softmax(gpu):
    x, out = torch.randn(37, 300), poisoned(37, 300)
    softmax_kernel[(8,)](x, out, 300, 300, 37, 300, BLOCK=512, STAGES=2, num_warps=8)
    want = torch.softmax(x.double(), 1)
    budget = 2 * (torch.softmax(x, 1).double() - want).abs().max() + 2.0**-24
    assert (out.double() - want).abs().max() <= budget


# -- matmul with grouped order and a fused activation ------------------------------------------------------------------


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid, tiles_m, tiles_n = tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * tiles_n)
    height = min(tiles_m - group * GROUP, GROUP)
    tile_m = group * GROUP + pid % (GROUP * tiles_n) % height
    tile_n = pid % (GROUP * tiles_n) // height
    offs_m, offs_n, offs_k = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_tile = a_ptr + (offs_m % M)[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_tile = b_ptr + offs_k[:, None] * stride_bk + (offs_n % N)[None, :] * stride_bn
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_tile, mask=offs_k[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_tile, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_tile += BK * stride_ak
        b_tile += BK * stride_bk
    if ACTIVATION is not None:
        acc = ACTIVATION(acc)
    c_tile = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_tile, acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


@pytest.mark.covering
@pytest.mark.parametrize(("dtype", "activation"), [(torch.float16, leaky_relu), (torch.bfloat16, None)])
def test_matmul_in_groups(gpu, dtype, activation):
    m, n, k = 150, 90, 75
    a, b, c = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype).T, poisoned(m, n, dtype=dtype)
    grid = (triton.cdiv(m, 32) * triton.cdiv(n, 32),)
    matmul_kernel[grid](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), BM=32, BN=32, BK=32, GROUP=3, ACTIVATION=activation
    )
    assert_product(c, a, b, (lambda x: torch.where(x >= 0, x, 0.01 * x)) if activation else (lambda x: x))
    assert gpu.launches[-1].matrix_instructions > 0


# -- dropout: the mask is drawn again from the seed in the backward pass -----------------------------------------------


@triton.jit
def seeded_dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, tl.load(x_ptr + offsets, mask=inside) / (1 - p), 0.0), mask=inside)


def philox(seed: int, counter: int) -> float:
    """tl.rand: Philox 4x32-10, its first word's 31 bits scaled to [0, 1). Salmon et al., SC 2011."""
    c, k = [counter, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        high, low = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(low >> 32) ^ c[1] ^ k[0], low & 0xFFFFFFFF, (high >> 32) ^ c[3] ^ k[1], high & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    word = c[0] - (1 << 32) if c[0] >> 31 else c[0]
    return (word if word >= 0 else -word - 1) * 4.6566127342e-10


def test_dropout_draws_the_numbers_of_philox(gpu):
    n, p, seed = 1000, 0.4, 0x1234567
    x, out, again = torch.randn(n), poisoned(n), poisoned(n)
    for target in (out, again):
        seeded_dropout_kernel[(4,)](x, target, n, p, seed, BLOCK=256)
    keep = torch.tensor([philox(seed, i) > p for i in range(n)])
    assert torch.equal(out != 0, keep)
    assert torch.equal(out, again)
    assert ((out[keep].double() * (1 - p) - x[keep].double()).abs() <= 4 * 2.0**-24 * x[keep].abs()).all()


# -- layer norm: the backward pass sums over rows under locks ----------------------------------------------------------


@triton.jit
def norm_forward_kernel(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, scale_ptr, n, eps, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=inside, other=0.0)
    mean = tl.sum(x, axis=0) / n
    centred = tl.where(inside, x - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    y = centred * scale * tl.load(w_ptr + columns, mask=inside) + tl.load(b_ptr + columns, mask=inside)
    tl.store(y_ptr + row * n + columns, y, mask=inside)
    tl.store(mean_ptr + row, mean)
    tl.store(scale_ptr + row, scale)


@triton.jit
def norm_backward_kernel(
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, scale_ptr, lock_ptr, n,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    inside = columns < n
    group = row % GROUPS
    x = tl.load(x_ptr + row * n + columns, mask=inside, other=0.0)
    dy = tl.load(dy_ptr + row * n + columns, mask=inside, other=0.0)
    scale = tl.load(scale_ptr + row)
    normed = tl.where(inside, (x - tl.load(mean_ptr + row)) * scale, 0.0)
    wdy = tl.load(w_ptr + columns, mask=inside, other=0.0) * dy
    c1, c2 = tl.sum(normed * wdy, axis=0) / n, tl.sum(wdy, axis=0) / n
    tl.store(dx_ptr + row * n + columns, (wdy - (normed * c1 + c2)) * scale, mask=inside)
    dw, db = dy * normed, dy
    while tl.atomic_cas(lock_ptr + group, 0, 1) == 1:
        pass
    count = tl.load(lock_ptr + GROUPS + group)
    if count == 0:
        tl.atomic_xchg(lock_ptr + GROUPS + group, 1)
    else:
        dw += tl.load(dw_ptr + group * n + columns, mask=inside)
        db += tl.load(db_ptr + group * n + columns, mask=inside)
    tl.store(dw_ptr + group * n + columns, dw, mask=inside)
    tl.store(db_ptr + group * n + columns, db, mask=inside)
    tl.debug_barrier()  # every wave has stored before the lock opens
    tl.atomic_xchg(lock_ptr + group, 0)


def test_layer_norm_forward_and_backward(gpu):
    rows, n, groups = 24, 200, 4
    x, w, b, dy = torch.randn(rows, n), torch.randn(n), torch.randn(n), torch.randn(rows, n)
    y, mean, scale, dx = poisoned(rows, n), poisoned(rows), poisoned(rows), poisoned(rows, n)
    norm_forward_kernel[(rows,)](x, y, w, b, mean, scale, n, 1e-5, BLOCK=256)
    dw, db, locks = poisoned(groups, n), poisoned(groups, n), torch.zeros(2 * groups, dtype=torch.int32)
    norm_backward_kernel[(rows,)](dx, dy, dw, db, x, w, mean, scale, locks, n, GROUPS=groups, BLOCK=256)

    def reference(dtype):
        leaves = [t.to(dtype).requires_grad_() for t in (x.clone(), w.clone(), b.clone())]
        out = torch.nn.functional.layer_norm(leaves[0], (n,), leaves[1], leaves[2])
        return [out.detach(), *torch.autograd.grad(out, leaves, dy.to(dtype))]

    for got, truth, single in zip(
        [y, dx, dw.sum(0), db.sum(0)], reference(torch.float64), reference(torch.float32), strict=True
    ):
        budget = 2 * (single.double() - truth).abs().max() + 4 * 2.0**-24 * truth.abs().max()
        assert (got.double() - truth).abs().max() <= budget
    assert (locks[:groups] == 0).all()


# -- libdevice ---------------------------------------------------------------------------------------------------------


@triton.jit
def libdevice_kernel(x_ptr, out_ptr, n, WHICH: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    if WHICH == "asin":
        y = libdevice.asin(x)
    elif WHICH == "erf":
        y = libdevice.erf(x)
    elif WHICH == "tanh":
        y = libdevice.tanh(x)
    elif WHICH == "log1p":
        y = libdevice.log1p(x)
    elif WHICH == "expm1":
        y = libdevice.expm1(x)
    elif WHICH == "sin":
        y = libdevice.sin(x)
    else:
        y = libdevice.pow(tl.abs(x), 1.7)
    tl.store(out_ptr + offsets, y, mask=offsets < n)


LIBRARY = {
    "asin": math.asin, "erf": math.erf, "tanh": math.tanh, "log1p": math.log1p, "expm1": math.expm1, "sin": math.sin,
    "pow": lambda x: abs(x) ** 1.7,
}  # fmt: skip
# Units in the last place that OpenCL 3.0, table "ULP values for single precision", allows; AMD's library keeps to it.
ULPS = {"asin": 4, "erf": 16, "tanh": 5, "log1p": 2, "expm1": 3, "sin": 4, "pow": 16}


@pytest.mark.covering
@pytest.mark.parametrize("which", LIBRARY)
def test_libdevice(gpu, which):
    x, out = torch.rand(500) * 1.9 - 0.95, poisoned(500)
    libdevice_kernel[(4,)](x, out, 500, WHICH=which, BLOCK=128)
    want = torch.tensor([LIBRARY[which](v) for v in x.tolist()], dtype=torch.float64)
    ulp = 2.0 ** (want.abs().log2().floor() - 23)
    assert ((out.double() - want).abs() <= (ULPS[which] + 0.5) * ulp).all()


# -- fused attention ---------------------------------------------------------------------------------------------------


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, n, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    start, head = tl.program_id(0) * BM, tl.program_id(1)
    base = head * n * D
    offs_m, offs_d = start + tl.arange(0, BM), tl.arange(0, D)
    rows = offs_m[:, None] < n
    q = tl.load(q_ptr + base + offs_m[:, None] * D + offs_d[None, :], mask=rows, other=0.0)
    top, total = tl.full([BM], -float("inf"), tl.float32), tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for at in range(0, min(n, start + BM) if CAUSAL else n, BN):
        offs_n = at + tl.arange(0, BN)
        keep = offs_n[None, :] < n
        if CAUSAL:
            keep = keep & (offs_m[:, None] >= offs_n[None, :])
        k = tl.load(k_ptr + base + offs_n[None, :] * D + offs_d[:, None], mask=offs_n[None, :] < n, other=0.0)
        s = tl.where(keep, tl.dot(q, k) * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(s, axis=1))
        p, shrink = tl.exp2(s - new_top[:, None]), tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, axis=1)
        v = tl.load(v_ptr + base + offs_n[:, None] * D + offs_d[None, :], mask=offs_n[:, None] < n, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        top = new_top
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + base + offs_m[:, None] * D + offs_d[None, :], out, mask=rows)
    tl.store(lse_ptr + head * n + offs_m, top + tl.log2(total), mask=offs_m < n)


@pytest.mark.covering
@pytest.mark.parametrize("causal", [True, False])
def test_attention_forward(gpu, causal):
    h, n, d = 2, 75, 32
    q, k, v = (torch.randn(h, n, d).half() for _ in range(3))
    out, lse = poisoned(h, n, d, dtype=torch.float16), poisoned(h, n)
    scale = d**-0.5 * math.log2(math.e)
    if gpu.gpu.name == "gfx90a" and parse_version(triton_version()) == (3, 8):
        # Its LLVM lets waves reach the loop's barrier with stores to LDS under way.
        with pytest.raises(HazardError, match="no wait before the barrier"):
            attention_kernel[(triton.cdiv(n, 32), h)](q, k, v, out, lse, n, scale, D=d, BM=32, BN=32, CAUSAL=causal)
        return
    attention_kernel[(triton.cdiv(n, 32), h)](q, k, v, out, lse, n, scale, D=d, BM=32, BN=32, CAUSAL=causal)
    scores = q.double() @ k.double().mT * d**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -float("inf"))
    weights = scores.softmax(-1)
    want = weights @ v.double()
    # P and the output are rounded to fp16 once each; the scores' FP32 error moves P by less than a tenth of that.
    budget = 1.1 * 2.0**-11 * (weights @ v.double().abs() + want.abs())
    assert ((out.double() - want).abs() <= budget).all()
    exact = scores.logsumexp(-1) * math.log2(math.e)
    assert ((lse.double() - exact).abs() <= 2.0**-18 * exact.abs().clamp(min=1)).all()


# -- grouped GEMM: the problems' addresses lie in tensors --------------------------------------------------------------


@triton.jit
def grouped_kernel(
    a_ptrs, b_ptrs, c_ptrs, sizes_ptr, count, PROGRAMS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tile, first = tl.program_id(0), 0
    for g in range(count):
        m, n, k = tl.load(sizes_ptr + 3 * g), tl.load(sizes_ptr + 3 * g + 1), tl.load(sizes_ptr + 3 * g + 2)
        tiles_n = tl.cdiv(n, BN)
        tiles = tl.cdiv(m, BM) * tiles_n
        while tile >= first and tile < first + tiles:
            a_ptr = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float16))
            offs_m = (tile - first) // tiles_n * BM + tl.arange(0, BM)
            offs_n = (tile - first) % tiles_n * BN + tl.arange(0, BN)
            acc = tl.zeros((BM, BN), tl.float32)
            for at in range(0, k, BK):
                offs_k = at + tl.arange(0, BK)
                inside_a, inside_b = offs_m[:, None] < m, offs_n[None, :] < n
                a = tl.load(
                    a_ptr + offs_m[:, None] * k + offs_k[None, :], mask=inside_a & (offs_k[None, :] < k), other=0.0
                )
                b = tl.load(
                    b_ptr + offs_k[:, None] * n + offs_n[None, :], mask=inside_b & (offs_k[:, None] < k), other=0.0
                )
                acc = tl.dot(a, b, acc)
            inside = (offs_m[:, None] < m) & (offs_n[None, :] < n)
            tl.store(c_ptr + offs_m[:, None] * n + offs_n[None, :], acc.to(tl.float16), mask=inside)
            tile += PROGRAMS
        first += tiles


def test_grouped_gemm(gpu):
    shapes = [(50, 40, 33), (16, 70, 64), (1, 5, 7), (33, 32, 100)]
    a = [torch.randn(m, k).half() for m, n, k in shapes]
    b = [torch.randn(k, n).half() for m, n, k in shapes]
    c = [poisoned(m, n, dtype=torch.float16) for m, n, k in shapes]
    tables = [torch.tensor([t.data_ptr() for t in group]) for group in (a, b, c)]
    sizes = torch.tensor(shapes, dtype=torch.int32)
    grouped_kernel[(3,)](*tables, sizes, len(shapes), PROGRAMS=3, BM=32, BN=32, BK=32)
    for x, y, z in zip(a, b, c, strict=True):
        assert_product(z, x, y)


# -- persistent matmul with tensor descriptors -------------------------------------------------------------------------


@triton.jit
def persistent_kernel(a, b, c, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, PROGRAMS, flatten=True):
        y, x = tile // tiles_n * BM, tile % tiles_n * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(tl.cdiv(K, BK)):
            acc = tl.dot(a.load([y, k * BK]), b.load([x, k * BK]).T, acc)
        c.store([y, x], acc.to(tl.float16))


@triton.jit
def device_persistent_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    c = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    persistent_kernel(a, b, c, M, N, K, PROGRAMS, BM, BN, BK)


@pytest.mark.covering
@pytest.mark.parametrize("where", ["host", "device"])
def test_persistent_matmul_with_descriptors(gpu, where):
    m, n, k = 100, 72, 56
    a, b, c = torch.randn(m, k).half(), torch.randn(n, k).half(), poisoned(m, n, dtype=torch.float16)
    blocks = {"BM": 32, "BN": 32, "BK": 32, "PROGRAMS": 4}
    if where == "host":
        descriptors = [TensorDescriptor.from_tensor(t, [32, 32]) for t in (a, b, c)]
        persistent_kernel[(4,)](*descriptors, m, n, k, **blocks)
    else:
        device_persistent_kernel[(4,)](a, b, c, m, n, k, **blocks)
    assert_product(c, a, b.T)
