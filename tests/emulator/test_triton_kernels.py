"""Triton kernels as a stranger writes them, unchanged, through Triton's own JIT, as code of five GPUs in turn."""

import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import laneloom  # noqa: E402

GPUS = ["gfx1151", "gfx1201", "gfx90a", "gfx942", "gfx1250"]

pytestmark = pytest.mark.turning("gpu")


@pytest.fixture(params=GPUS)
def gpu(request):
    with laneloom.emulated(request.param) as emulation:
        yield emulation


def poisoned(*shape, dtype=torch.float32):
    return torch.full(shape, float("nan"), dtype=dtype)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@pytest.mark.parametrize("n", [1, 31, 1023, 1024, 1025, 10007])
def test_add(gpu, n):
    x, y, out = torch.randn(n), torch.randn(n), poisoned(n)
    add_kernel[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
    assert torch.equal(out, x + y)
    assert gpu.launches[-1].kernel == "add_kernel"
    assert gpu.launches[-1].grid == (triton.cdiv(n, 256), 1, 1)


def test_views_are_written_in_place_and_their_surroundings_are_not(gpu):
    storage = torch.arange(4096, dtype=torch.float32)
    before = storage.clone()
    x, y, out = storage[5:505], storage[1000:1500], storage[2001:2501]
    add_kernel[(2,)](x, y, out, 500, BLOCK=256)
    assert torch.equal(storage[2001:2501], before[5:505] + before[1000:1500])
    storage[2001:2501] = before[2001:2501]
    assert torch.equal(storage, before)


def test_arguments_may_overlap(gpu):
    x = torch.randn(700)
    want = x * 2
    add_kernel[(3,)](x, x, x, 700, BLOCK=256)
    assert torch.equal(x, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int32, torch.int64])
def test_add_in_other_types(gpu, dtype):
    integer = not dtype.is_floating_point
    x, y = (
        (torch.randint(-50, 50, (777,), dtype=dtype) if integer else torch.randn(777, dtype=torch.float64).to(dtype))
        for _ in range(2)
    )
    out = torch.full_like(x, 99)
    add_kernel[(4,)](x, y, out, 777, BLOCK=256)
    assert torch.equal(out, x + y)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride_x, stride_out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + columns, mask=columns < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + columns, e / tl.sum(e, axis=0), mask=columns < n)


@pytest.mark.covering(together=2)
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (7, 100), (33, 781), (5, 1024)])
@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_softmax(gpu, rows, n, num_warps):
    x = torch.randn(rows, n + 3)[:, :n]  # rows further apart than they are long
    out = poisoned(rows, n)
    softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), n, BLOCK=triton.next_power_of_2(n), num_warps=num_warps)
    want = torch.softmax(x.double(), dim=1)
    budget = 2 * (torch.softmax(x, dim=1).double() - want).abs().max() + 2.0**-24
    error = (out.double() - want).abs().max()
    assert error <= budget


@triton.jit
def layer_norm_kernel(x_ptr, out_ptr, w_ptr, b_ptr, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * stride + columns, mask=columns < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + columns, mask=columns < n, other=0.0).to(tl.float32)
        x = tl.where(columns < n, x - mean, 0.0)
        squares += x * x
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < n
        x = tl.load(x_ptr + row * stride + columns, mask=mask, other=0.0).to(tl.float32)
        w, b = tl.load(w_ptr + columns, mask=mask), tl.load(b_ptr + columns, mask=mask)
        tl.store(out_ptr + row * stride + columns, (x - mean) * scale * w + b, mask=mask)


def test_layer_norm(gpu):
    x, w, b = torch.randn(9, 1500).half(), torch.randn(1500).half(), torch.randn(1500).half()
    out = poisoned(9, 1500, dtype=torch.float16)
    layer_norm_kernel[(9,)](x, out, w, b, 1500, 1500, 1e-5, BLOCK=512)
    want = torch.nn.functional.layer_norm(x.double(), (1500,), w.double(), b.double())
    # One rounding to fp16 of values up to |want|, and the fp32 arithmetic in front of it.
    assert ((out.double() - want).abs() <= 2.0**-11 * want.abs() + 2.0**-18).all()


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


def test_dropout_with_philox_is_the_same_on_every_gpu():
    x = torch.randn(5000)
    results = []
    for name in GPUS:
        out = poisoned(5000)
        with laneloom.emulated(name):
            dropout_kernel[(5,)](x, out, 5000, 0.3, 123, BLOCK=1024)
        results.append(out)
    kept = results[0] != 0
    assert 0.65 < kept.float().mean() < 0.75
    assert torch.equal(results[0][kept], x[kept] / 0.7) or torch.allclose(results[0][kept], x[kept] / 0.7, rtol=2e-7)
    assert all(torch.equal(results[0], r) for r in results[1:])


@triton.jit
def histogram_kernel(x_ptr, counts_ptr, most_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    tl.atomic_add(counts_ptr + x, 1, mask=mask)
    tl.atomic_max(most_ptr, tl.max(x, axis=0))


def test_atomics(gpu):
    x = torch.randint(0, 10, (3000,), dtype=torch.int32)
    counts, most = torch.zeros(10, dtype=torch.int32), torch.full((1,), -1, dtype=torch.int32)
    histogram_kernel[(6,)](x, counts, most, 3000, BLOCK=512)
    assert torch.equal(counts, torch.bincount(x, minlength=10).int())
    assert most.item() == x.max().item()


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, out_ptr, n, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    base = tl.program_id(1) * n * D
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_d = tl.arange(0, D)
    q = tl.load(q_ptr + base + offs_m[:, None] * D + offs_d[None, :], mask=offs_m[:, None] < n, other=0.0)
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        offs_n = start + tl.arange(0, BN)
        inside = offs_n[None, :] < n
        k = tl.load(k_ptr + base + offs_n[None, :] * D + offs_d[:, None], mask=inside, other=0.0)
        s = tl.where((offs_m[:, None] >= offs_n[None, :]) & inside, tl.dot(q, k) * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, axis=1)
        v = tl.load(v_ptr + base + offs_n[:, None] * D + offs_d[None, :], mask=offs_n[:, None] < n, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        top = new_top
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + base + offs_m[:, None] * D + offs_d[None, :], out, mask=offs_m[:, None] < n)


def test_causal_attention(gpu):
    """Programs with different trip counts: the waves part at the loop's end and meet again."""
    h, n, d = 2, 200, 64
    q, k, v = (torch.randn(h, n, d).half() for _ in range(3))
    out = poisoned(h, n, d, dtype=torch.float16)
    attention_kernel[(triton.cdiv(n, 64), h)](q, k, v, out, n, d**-0.5 * 1.4426950408889634, D=d, BM=64, BN=32)
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    # P is rounded to fp16 (2^-11 each, weights sum to one), the output once more.
    assert ((out.double() - want).abs() <= 2.0**-11 * (want.abs() + v.double().abs().max())).all()
    assert gpu.launches[-1].matrix_instructions > 0


@triton.jit
def coordinates_kernel(out_ptr, nx, ny):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out_ptr + (z * ny + y) * nx + x, x + 100 * y + 10000 * z)


@pytest.mark.parametrize("grid", [(3,), (5, 7), (4, 3, 2), (1, 1, 9), (300, 2, 3)])
def test_grids(gpu, grid):
    nx, ny, nz = (*grid, 1, 1)[:3]
    out = torch.full((nz, ny, nx), -1, dtype=torch.int32)
    coordinates_kernel[grid](out, nx, ny)
    z, y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.int32) for n in (nz, ny, nx)), indexing="ij")
    assert torch.equal(out, x + 100 * y + 10000 * z)


@triton.jit
def scan_kernel(x_ptr, sum_ptr, order_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(sum_ptr + offsets, tl.cumsum(x, axis=0))
    tl.store(order_ptr + offsets, tl.sort(x))


def test_scan_and_sort(gpu):
    x = torch.randint(-1000, 1000, (4, 256), dtype=torch.int32)
    sums, order = torch.zeros_like(x), torch.zeros_like(x)
    scan_kernel[(4,)](x, sums, order, BLOCK=256)
    assert torch.equal(sums, x.cumsum(1).int())
    assert torch.equal(order, x.sort(1).values)


@triton.jit
def spin_kernel(flag_ptr, out_ptr):
    """Program 0 waits for the last program's flag: fairness between waves, not only order."""
    pid = tl.program_id(0)
    if pid == 0:
        while tl.atomic_cas(flag_ptr, 1, 2) != 1:
            pass
        tl.store(out_ptr, 7)
    elif pid == tl.num_programs(0) - 1:
        tl.atomic_xchg(flag_ptr, 1)


def test_one_program_may_wait_for_another(gpu):
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    spin_kernel[(4,)](flag, out, num_warps=1)
    assert out.item() == 7
    assert flag.item() == 2


@triton.jit
def lock_kernel(lock_ptr, sums_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    offs = sums_ptr + tl.arange(0, 32)
    tl.store(offs, tl.load(offs) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def look_back_kernel(flags_ptr, sums_ptr):
    """Each program adds to what the one before it has stored."""
    pid = tl.program_id(0)
    before = 0
    if pid > 0:
        while tl.load(flags_ptr + pid - 1, volatile=True) == 0:
            pass
        before = tl.load(sums_ptr + pid - 1, volatile=True)
    tl.store(sums_ptr + pid, before + pid)
    tl.debug_barrier()
    tl.atomic_xchg(flags_ptr + pid, 1)


def test_programs_that_poll_are_passed_over(gpu):
    lock, sums = torch.zeros(1, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    lock_kernel[(16,)](lock, sums, num_warps=1)
    assert sums.eq(16).all()
    assert lock.item() == 0
    flags, sums = torch.zeros(60, dtype=torch.int32), torch.zeros(60, dtype=torch.int32)
    look_back_kernel[(60,)](flags, sums, num_warps=1)
    assert torch.equal(sums, torch.arange(60).cumsum(0).int())
    assert sum(launch.instructions for launch in gpu.launches) < 100_000


def test_programs_may_poll_for_those_of_the_next_batch(gpu):
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    spin_kernel[(2000,)](flag, out, num_warps=1)
    assert out.item() == 7
    assert gpu.launches[-1].instructions < 100_000
