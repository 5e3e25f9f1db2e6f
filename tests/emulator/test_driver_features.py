"""What Triton's JIT lets a kernel and its call contain, through the emulated driver."""

import sys
import tracemalloc
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from triton import knobs  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import laneloom  # noqa: E402
from laneloom.errors import ArgumentError, EmulationError, OutOfBoundsError, UnsupportedError  # noqa: E402

pytestmark = pytest.mark.turning("gpu")


@pytest.fixture(params=["gfx1151", "gfx1201", "gfx1250"])
def gpu(request):
    with laneloom.emulated(request.param) as emulation:
        yield emulation


@triton.jit
def descriptor_kernel(source, target, y, x, scale, BM: tl.constexpr, BN: tl.constexpr):
    target.store([y, x], (source.load([y, x]) * scale).to(target.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_host_descriptors_clip_and_pad(gpu, dtype):
    """A block that hangs over two edges: loads of what lies outside give zero, stores there do nothing."""
    a = torch.randint(-50, 50, (20, 24)).to(dtype)
    storage = torch.full((28, 40), 7, dtype=dtype)
    out = storage[:20, :24]
    descriptors = [TensorDescriptor(t, t.shape, t.stride(), [16, 16]) for t in (a, out)]
    descriptor_kernel[(1,)](*descriptors, 8, 16, 3, BM=16, BN=16)
    want = torch.full_like(storage, 7)
    want[8:20, 16:24] = a[8:20, 16:24] * 3
    assert torch.equal(storage, want)


@triton.jit
def padded_kernel(source, out_ptr, N: tl.constexpr):
    offsets = tl.arange(0, N)
    tl.store(out_ptr + offsets, source.load([4]))


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_host_descriptors_pad_with_what_they_say(gpu, padding):
    x, out = torch.arange(12, dtype=torch.float32), torch.full((16,), -1.0)
    padded_kernel[(1,)](TensorDescriptor(x, [12], [1], [16], padding=padding), out, N=16)
    assert torch.equal(out[:8], x[4:])
    # CDNA 5's tensor unit knows zeros only, and Triton's host code for it leaves the padding out
    assert (out[8:].isnan() if padding == "nan" and not gpu.gpu.is_cdna5 else out[8:] == 0).all()


@triton.jit
def device_descriptor_kernel(a_ptr, out_ptr, m, n, stride, BM: tl.constexpr, BN: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, shape=[m, n], strides=[stride, 1], block_shape=[BM, BN])
    out = tl.make_tensor_descriptor(out_ptr, shape=[n, m], strides=[m, 1], block_shape=[BN, BM])
    y, x = tl.program_id(0) * BM, tl.program_id(1) * BN
    out.store([x, y], a.load([y, x]).T)


def test_device_descriptors(gpu):
    a, out = torch.randn(52, 36)[:, :33], torch.full((33, 52), float("nan"))
    device_descriptor_kernel[(4, 3)](a, out, 52, 33, 36, BM=16, BN=16)
    assert torch.equal(out, a.T)


@triton.jit
def nested_kernel(pair, scale, out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, N), pair[0].load([0]) * scale + pair[1])


def test_descriptors_inside_tuples(gpu):
    x, out = torch.randn(32), torch.zeros(32)
    nested_kernel[(1,)]((TensorDescriptor(x, [32], [1], [32]), 5), 2, out, N=32)
    assert torch.equal(out, x * 2 + 5)


def test_a_descriptor_is_checked_against_its_tensor(gpu):
    """A descriptor may lie about its shape; the memory behind it does not."""
    a, out = torch.randn(16, 16), torch.zeros(32, 16)
    lie = TensorDescriptor(a, [32, 16], [16, 1], [16, 16])
    with pytest.raises(OutOfBoundsError, match=r"argument 'source\.base'"):
        descriptor_kernel[(1,)](lie, TensorDescriptor.from_tensor(out, [16, 16]), 16, 0, 1, BM=16, BN=16)


class Point(NamedTuple):
    x: int
    weights: object


@triton.jit
def tuple_kernel(points, flags, out_ptr, N: tl.constexpr):
    offsets = tl.arange(0, N)
    total = tl.load(points[0].weights + offsets) * points[0].x + tl.load(points[1].weights + offsets) * points[1].x
    tl.store(out_ptr + offsets, total + flags[1][0])


def test_tuples_and_named_tuples(gpu):
    u, v, out = torch.randn(64), torch.randn(64), torch.zeros(64)
    tuple_kernel[(1,)]((Point(3, u), Point(-5, v)), (None, (2.5, 9)), out, N=64)
    torch.testing.assert_close(out, u * 3 + v * -5 + 2.5, rtol=1e-6, atol=1e-6)


@triton.jit
def typed_kernel(
    out_ptr, a: tl.int8, b: tl.uint8, c: tl.int16, d: tl.uint16, e: tl.int32, f: tl.uint32, g: tl.int64, h: tl.uint64,
    p: tl.float16, q: tl.bfloat16, r: tl.float32, s: tl.float64, t: tl.int1,
):  # fmt: skip
    tl.store(out_ptr + 0, a.to(tl.float64))
    tl.store(out_ptr + 1, b.to(tl.float64))
    tl.store(out_ptr + 2, c.to(tl.float64))
    tl.store(out_ptr + 3, d.to(tl.float64))
    tl.store(out_ptr + 4, e.to(tl.float64))
    tl.store(out_ptr + 5, f.to(tl.float64))
    tl.store(out_ptr + 6, g.to(tl.float64))
    tl.store(out_ptr + 7, h.to(tl.float64))
    tl.store(out_ptr + 8, p.to(tl.float64))
    tl.store(out_ptr + 9, q.to(tl.float64))
    tl.store(out_ptr + 10, r.to(tl.float64))
    tl.store(out_ptr + 11, s)
    tl.store(out_ptr + 12, t.to(tl.float64))


def test_scalars_of_every_annotated_type(gpu):
    out = torch.zeros(13, dtype=torch.float64)
    values = [-100, 200, -30000, 60000, -(2**31), 2**32 - 1, -(2**63), 2**63 + 2**40, 1.5, -2.25, 0.1, 0.1, True]
    typed_kernel[(1,)](out, *values)
    want = [float(v) for v in values]
    want[10] = torch.tensor(0.1, dtype=torch.float32).item()
    assert out.tolist() == want


@triton.jit
def optional_kernel(x_ptr, bias_ptr, out_ptr, N: tl.constexpr):
    offsets = tl.arange(0, N)
    x = tl.load(x_ptr + offsets)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offsets)
    tl.store(out_ptr + offsets, x)


def test_none_may_stand_for_a_pointer(gpu):
    x, bias, out = torch.randn(32), torch.randn(32), torch.zeros(32)
    optional_kernel[(1,)](x, None, out, N=32)
    assert torch.equal(out, x)
    optional_kernel[(1,)](x, bias, out, N=32)
    assert torch.equal(out, x + bias)


def test_reinterpreted_tensors(gpu):
    x, out = torch.randn(32), torch.zeros(32, dtype=torch.int32)
    optional_kernel[(1,)](triton.reinterpret(x, tl.int32), None, out, N=32)
    assert torch.equal(out, x.view(torch.int32))


@triton.jit
def indirect_kernel(table_ptr, out_ptr, N: tl.constexpr):
    pid = tl.program_id(0)
    source = tl.load(table_ptr + pid).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + pid * N + tl.arange(0, N), tl.load(source + tl.arange(0, N)))


def test_addresses_in_an_argument_lead_to_live_tensors(gpu):
    parts = [torch.randn(32) for _ in range(5)]
    table = torch.tensor([p.data_ptr() for p in parts])
    out = torch.zeros(5, 32)
    indirect_kernel[(5,)](table, out, N=32)
    assert torch.equal(out, torch.stack(parts))


def test_what_an_address_leads_to_has_bounds(gpu):
    storage = torch.randn(64)
    short = storage[32:60]
    table = torch.tensor([short.data_ptr()])
    with pytest.raises(OutOfBoundsError, match=r"bytes past the end of argument 'table_ptr -> \(28,\)' \(112 bytes\)"):
        indirect_kernel[(1,)](table, torch.zeros(32), N=32)


def test_an_address_may_lie_inside_a_tensor(gpu):
    whole = torch.randn(5 * 32 + 8)
    table = whole.data_ptr() + 4 * (8 + 32 * torch.arange(5))
    out = torch.zeros(5, 32)
    indirect_kernel[(5,)](table, out, N=32)
    assert torch.equal(out, whole[8:].view(5, 32))
    table += 4
    with pytest.raises(OutOfBoundsError, match=r"4 bytes past the end of argument 'table_ptr -> 672 bytes'"):
        indirect_kernel[(5,)](table, out, N=32)


def test_fake_tensors_hold_no_addresses(gpu, recwarn):
    with FakeTensorMode():
        fake = torch.randn(32)
    test_addresses_in_an_argument_lead_to_live_tensors(gpu)
    assert fake.shape == (32,)
    assert not [w for w in recwarn if "data pointer" in str(w.message)]


def test_addresses_of_dead_tensors_are_caught(gpu):
    table = torch.tensor([torch.randn(1 << 20).data_ptr()])
    with pytest.raises(OutOfBoundsError, match=r"byte access at 0x"):
        indirect_kernel[(1,)](table, torch.zeros(32), N=32)


#: elements that lie behind the first 4 GB of addresses: of a smaller number Triton makes an argument of 32 bits
LARGE = 1 << 23


@triton.jit
def address_kernel(address, out_ptr, N: tl.constexpr):
    source = address.to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + tl.arange(0, N), tl.load(source + tl.arange(0, N)))


def test_an_address_may_be_a_scalar(gpu):
    x, out = torch.randn(LARGE)[:32], torch.zeros(32)
    address_kernel[(1,)](x.data_ptr(), out, N=32)
    assert torch.equal(out, x)


@triton.jit
def seed_kernel(seed, table_ptr, out_ptr):
    tl.store(out_ptr + tl.arange(0, 8), tl.load(table_ptr + tl.arange(0, 8)) ^ seed)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the system what memory the process has")
def test_large_integers_are_not_looked_up_among_the_tensors(gpu, monkeypatch):
    table, out = torch.arange(8) * 3 + (1 << 40), torch.zeros(8, dtype=torch.int64)
    monkeypatch.setattr("laneloom.emulator.pointers.gc.get_objects", None)
    seed_kernel[(1,)](123456789012, table, out)
    assert torch.equal(out, table ^ 123456789012)


def test_code_of_another_gpu_is_refused(gpu):
    x, out = torch.randn(LARGE)[:32], torch.zeros(32)
    with laneloom.emulated("gfx1100"):
        compiled = address_kernel.warmup(x.data_ptr(), out, N=32, grid=(1,))
        compiled[(1, 1, 1)](x.data_ptr(), out, 32)
        with pytest.raises(ArgumentError, match="takes 3 arguments, constants included, got 2"):
            compiled[(1, 1, 1)](x.data_ptr(), out)
    with pytest.raises(EmulationError, match="address_kernel was compiled for gfx1100 and is launched inside"):
        compiled[(1, 1, 1)](x.data_ptr(), out, 32)


@triton.jit
def narrow_atomic_kernel(x_ptr, N: tl.constexpr):
    tl.atomic_add(x_ptr + tl.arange(0, 8) % N, 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_atomic_on_two_bytes_may_touch_the_word_around_them(gpu, dtype):
    storage = torch.zeros(8, dtype=dtype)
    narrow_atomic_kernel[(1,)](storage[1:4], N=3)
    assert storage.tolist() == [0, 3, 3, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("gpu", ["gfx908", "gfx942"])
def test_an_atomic_on_two_bytes_may_touch_the_word_around_them_where_words_have_no_suffix(gpu):
    storage = torch.zeros(8, dtype=torch.bfloat16)
    with laneloom.emulated(gpu, strict=True):
        narrow_atomic_kernel[(1,)](storage[1:4], N=3)
    assert storage.tolist() == [0, 3, 3, 2, 0, 0, 0, 0]


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def test_warmup_compiles_and_runs_nothing(gpu):
    compiled = copy_kernel.warmup(torch.float32, torch.float32, 64, BLOCK=64, grid=(1,))
    assert gpu.gpu.name in compiled.asm["amdgcn"]
    assert gpu.launches == []


def test_compiled_kernels_may_be_kept_and_launched(gpu):
    x, out = torch.randn(64), torch.zeros(64)
    compiled = copy_kernel.warmup(x, out, 64, BLOCK=64, grid=(1,))
    compiled[(1, 1, 1)](x, out, 64, 64)
    assert torch.equal(out, x)


def test_a_kernel_with_its_grid_may_be_kept():
    launcher = copy_kernel[(2,)]
    x = torch.randn(100)
    for name in ("gfx1151", "gfx1201", "gfx1151"):
        out = torch.zeros(100)
        with laneloom.emulated(name) as gpu:
            launcher(x, out, 100, BLOCK=64, num_ctas=1)
        assert torch.equal(out, x)
        assert [r.gpu for r in gpu.launches] == [name]


def test_kernels_of_an_emulated_gpu_do_not_run_outside():
    x, out = torch.randn(64), torch.zeros(64)
    with laneloom.emulated("gfx1151"):
        compiled = copy_kernel.warmup(x, out, 64, BLOCK=64, grid=(1,))
        launch = compiled.run
    with pytest.raises(EmulationError, match=r"outside `laneloom\.emulated`"):
        launch(1, 1, 1, 0, None, None, None, None, None, x, out, 64, 64)


def test_launch_hooks(gpu):
    seen = []
    enter, leave = lambda data: seen.append(("enter", data.get()["name"])), lambda data: seen.append(("exit",))
    knobs.runtime.launch_enter_hook.add(enter)
    knobs.runtime.launch_exit_hook.add(leave)
    try:
        copy_kernel[(1,)](torch.randn(64), torch.zeros(64), 64, BLOCK=64)
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
        knobs.runtime.launch_exit_hook.remove(leave)
    assert seen == [("enter", "copy_kernel"), ("exit",)]


@gluon.jit
def greedy_kernel(x_ptr):
    """Asks for 512 KiB of LDS and uses half a KiB."""
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    registers: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    part = gl.allocate_shared_memory(gl.float32, [131072], shared).slice(0, 128)
    offsets = gl.arange(0, 128, registers)
    part.store(gl.load(x_ptr + offsets))
    gl.store(x_ptr + offsets, part.load(registers))


def test_too_much_lds_is_what_triton_says_it_is(gpu):
    with pytest.raises(OutOfResources, match=rf"shared memory.*{gpu.gpu.lds_bytes}"):
        greedy_kernel[(1,)](torch.randn(128))


def test_do_bench_says_that_there_is_no_clock(gpu):
    x, out = torch.randn(64), torch.zeros(64)
    with pytest.raises(UnsupportedError, match="has no clock"):
        triton.testing.do_bench(lambda: copy_kernel[(1,)](x, out, 64, BLOCK=64))


def test_a_big_grid_takes_no_more_memory_than_a_small_one():
    @triton.jit
    def mark_kernel(out_ptr):
        pid = tl.program_id(0)
        tl.store(out_ptr + pid, (pid % 251).to(tl.uint8))

    peaks = {}
    with laneloom.emulated("gfx1151") as gpu:
        for n in (10, 10_000, 250_000):  # the first compiles
            out = torch.zeros(n, dtype=torch.uint8)
            tracemalloc.start()
            mark_kernel[(n,)](out, num_warps=1)
            peaks[n] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert torch.equal(out, (torch.arange(n) % 251).to(torch.uint8))
    assert gpu.launches[-1].grid == (250_000, 1, 1)
    # One number per program, to deal them out, and nothing per instruction.
    assert peaks[250_000] <= peaks[10_000] + 16 * 250_000


@triton.jit
def assembly_kernel(x_ptr, out_ptr, TEXT: tl.constexpr, REGISTERS: tl.constexpr):
    i = tl.arange(0, 64)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.inline_asm_elementwise(TEXT, REGISTERS, [x], tl.float32, is_pure=True, pack=1))


def test_nvidias_inline_assembly_is_refused_not_garbage(gpu):
    """LLVM says "could not allocate output register for constraint 'f'" and gives code all the same."""
    out = torch.full((64,), 7.0)
    with pytest.raises(EmulationError, match=r"assembly_kernel: its inline assembly 'tanh.approx.*'f' is no register"):
        assembly_kernel[(1,)](torch.randn(64), out, TEXT="tanh.approx.f32 $0, $1;", REGISTERS="=f,f")
    assert (out == 7).all()


def test_inline_assembly_of_bytes_is_refused_not_garbage(gpu):
    """LLVM has no register for a vector of bytes, and gives code without the assembly."""
    x, out = torch.arange(64, dtype=torch.int8), torch.full((64,), 7.0)
    with pytest.raises(EmulationError, match=r"no register for an operand of its inline assembly 'v_mov_b32.*i8"):
        assembly_kernel[(1,)](x, out, TEXT="v_mov_b32 $0, $1", REGISTERS="=v,v")
    assert (out == 7).all()


def test_amds_inline_assembly_runs(gpu):
    x, out = torch.randn(64), torch.zeros(64)
    assembly_kernel[(1,)](x, out, TEXT="v_xor_b32 $0, 0x80000000, $1", REGISTERS="=v,v")
    assert torch.equal(out, -x)
