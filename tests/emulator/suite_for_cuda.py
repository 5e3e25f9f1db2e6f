"""A suite for device="cuda" as people write them; test_pytest_plugin.py runs it as gfx1201 code."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

DEVICE = triton.runtime.driver.active.get_active_torch_device()  # as the tutorials find theirs


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


def add(x, y, out=None):
    assert x.is_cuda and y.device.type == "cuda"
    out = torch.empty_like(x) if out is None else out
    with torch.cuda.device(x.device.index):
        add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
    return out


class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return add(x, y)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        assert x.is_cuda and grad.is_cuda
        both = add(grad.contiguous(), torch.zeros_like(grad))
        return both, both


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a gfx1201")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_forward_and_backward(dtype):
    x = torch.randn(1000, device="cuda", dtype=dtype, requires_grad=True)
    y = torch.randn(1000, dtype=dtype).cuda().requires_grad_()
    assert x.is_leaf and y.is_leaf and x.device == y.device == torch.device("cuda:0")
    out = Add.apply(x, y)
    torch.testing.assert_close(out, x + y)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))
    torch.cuda.synchronize()


def test_host_and_device_are_kept_apart():
    host = torch.zeros(64)
    device = host.to("cuda")
    one = torch.ones(64, device=torch.device("cuda"))
    add(device, one, out=device)
    before = device.cpu()
    assert not before.is_cuda and before.device.type == "cpu" and before.get_device() == -1
    add(device, one, out=device)
    assert (host == 0).all() and (before == 1).all() and (device == 2).all()
    assert device.to("cuda") is device and device.cuda() is device and before.cpu() is before
    assert device.half().is_cuda and device.to("cuda", torch.float16).dtype == torch.float16
    assert device.to(host).device.type == "cpu" and host.to(device).is_cuda and not host.double().is_cuda
    assert host.half().type_as(device).is_cuda and host.type_as(other=device).is_cuda
    assert not device.type_as(host).is_cuda
    assert device.to("meta").is_meta and device.to(torch.device("meta"), torch.int8, copy=True).dtype == torch.int8
    assert torch.from_numpy(before.numpy()).to(device.device).is_cuda
    with pytest.raises(AssertionError, match="device"):
        torch.testing.assert_close(before, device)


def test_modules_and_defaults():
    linear = torch.nn.Linear
    for module in (linear(8, 4).cuda(), linear(8, 4, device="cuda"), linear(8, 4).to("cuda:0", torch.float32)):
        assert module.weight.is_cuda and module(torch.randn(3, 8, device="cuda")).is_cuda
    with torch.device("cuda"):
        assert torch.empty(3).is_cuda
    torch.set_default_device("cuda")
    assert torch.zeros(3).is_cuda
    torch.set_default_device(None)
    assert not torch.zeros(3).is_cuda
    with torch.autocast("cuda", dtype=torch.float16):
        assert torch.randn(2, 2, device=0).is_cuda


def test_parameters_live_where_they_were_put():
    linear = torch.nn.Linear(8, 4)
    weight = linear.weight
    assert not weight.is_cuda and not torch.nn.Parameter(torch.ones(3)).is_cuda
    assert linear.cuda().weight is weight and weight.is_cuda and weight.data.is_cuda
    assert not linear.to("cpu").weight.is_cuda and not linear(torch.randn(3, 8)).is_cuda


def test_what_numpy_made_is_copied_to_the_gpu():
    array = np.zeros(64, np.float32)
    for make in (torch.from_numpy, lambda a: torch.frombuffer(a, dtype=torch.float32)):
        host = make(array)
        one = torch.ones(64, device="cuda")
        device = host.cuda()
        assert not host.is_cuda and device.is_cuda
        add(device, one, out=device)
        assert (array == 0).all() and (device == 1).all()


def test_numpy_takes_no_tensor_of_the_gpu():
    x = torch.ones(3, device="cuda")
    for take in (x.numpy, lambda: np.asarray(x), lambda: np.float32(x[0])):
        with pytest.raises(TypeError, match="copy the tensor to host memory first"):
            take()
    copy = x.requires_grad_().numpy(force=True)
    copy[0] = 5
    assert x[0] == 1 and (x.detach().cpu().numpy() == 1).all() and torch.get_rng_state().numpy().size


def test_there_is_one_gpu():
    x, linear = torch.ones(2, 3), torch.nn.Linear(3, 4, device="cuda")
    for ask in (
        lambda: x.to("cuda:1"), lambda: x.cuda(1), lambda: torch.ones(2, device="cuda:1"), lambda: linear.to("cuda:1"),
        lambda: torch.cuda.set_device(1), lambda: torch.cuda.get_device_properties(torch.device("cuda", 1)),
        lambda: torch.cuda.device("cuda:1"), lambda: torch.nn.DataParallel(linear, device_ids=[0, 1])(x),
        lambda: torch.nn.parallel.data_parallel(linear, x, [0, 1]),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal: cuda:1"):
            ask()
    assert torch.nn.DataParallel(linear)(x).is_cuda and x.cuda(0).is_cuda and torch.device(0).type == "cuda"


def test_types_of_tensors():
    x = torch.cuda.FloatTensor([1, 2])
    assert x.is_cuda and x.type() == "torch.cuda.FloatTensor" and isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.FloatTensor) and not isinstance(x, torch.cuda.HalfTensor)
    host = torch.FloatTensor(2, 3)
    assert isinstance(host, torch.FloatTensor) and host.type() == "torch.FloatTensor" and host.shape == (2, 3)
    for kind in (torch.cuda.HalfTensor, "torch.cuda.HalfTensor"):
        assert host.type(kind).is_cuda and host.type(kind).dtype == torch.float16
    assert not x.type(torch.LongTensor).is_cuda and x.type(torch.int8).is_cuda and x.type(dtype=torch.int8).is_cuda
    old = torch.Tensor([1, 2])
    moved = old.cuda()
    moved += 1
    assert old.tolist() == [1, 2] and not torch.Tensor(old).is_cuda and torch.ones(3, pin_memory=True).is_pinned()


def test_histograms_of_integers():
    x = torch.tensor([1, 2, 2, 5, -3], device="cuda")
    assert torch.histc(x, bins=4, min=0, max=4).tolist() == [0, 1, 2, 0] and x.histc(4).tolist() == [1, 0, 3, 1]


def test_autocast_casts_and_ends():
    x = torch.randn(4, 4, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_optimizers(how):
    layer = torch.nn.Linear(4, 4, device="cuda")
    optimizer = torch.optim.AdamW(layer.parameters(), **{how: True})
    layer(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["exp_avg"].is_cuda


def test_streams_events_and_marks():
    stream, event, x = torch.cuda.Stream(), torch.cuda.Event(), torch.ones(3).pin_memory()
    with torch.cuda.stream(stream):
        y = x.to("cuda", non_blocking=True)
    event.record(stream)
    torch.cuda.current_stream().wait_event(event)
    torch.cuda.current_stream().record_event().wait()
    y.record_stream(stream)
    torch.cuda.nvtx.range_push("part")
    torch.cuda.nvtx.range_pop()
    assert x.is_pinned() and not torch.ones(3).is_pinned()
    assert event.query() and y.is_cuda and not x.is_cuda and torch.cuda.memory_summary() == ""


def test_what_is_loaded(tmp_path):
    torch.save({"weights": [torch.ones(3)]}, tmp_path / "x.pt")
    for place in ("cuda", torch.device("cuda:0"), "cpu", None):
        assert torch.load(tmp_path / "x.pt", map_location=place)["weights"][0].is_cuda == ("cuda" in str(place))


def test_what_torch_says_of_the_gpu():
    assert torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (12, 0)
    properties = torch.cuda.get_device_properties(0)
    assert properties.gcnArchName == "gfx1201" and properties.max_threads_per_block == 1024
    assert properties.shared_memory_per_block_optin == properties.shared_memory_per_multiprocessor == 65536
    assert torch.version.hip is not None
    assert triton.runtime.driver.active.get_current_target().arch == "gfx1201"


def test_the_state_of_the_generator():
    torch.manual_seed(5)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    state = generator.get_state()
    assert state.view(torch.int64).tolist() == [5, 0] == [generator.initial_seed(), generator.get_offset()]
    state.view(torch.int64)[1] += 4
    generator.set_state(state)
    assert generator.get_state().view(torch.int64).tolist() == [5, 4]
    generator.set_offset(generator.get_offset() + 8)
    assert generator.clone_state().get_offset() == generator.get_offset() == 12
    assert generator.seed() == generator.initial_seed() and generator.get_offset() == 0
    own = torch.Generator(device="cuda")
    own.set_offset(16)
    assert own.get_offset() == 16 and torch.Generator(device="cuda").get_offset() == 0
    class Guard(torch.cuda.device): ...

    with Guard(0), torch.cuda._DeviceGuard(0) as guard:  # the second as Inductor writes it
        assert guard is None and isinstance(torch.cuda.device("cuda"), torch.cuda.device)
    torch.cuda.manual_seed_all(7)
    assert torch.cuda.initial_seed() == 7
    assert generator.initial_seed() == 7


def test_tensors_without_memory():
    """They may be on any device; a graph says which (Helion asks)."""
    x = torch.randn(4, 6, device="cuda")
    with FakeTensorMode() as mode:
        found = mode.from_tensor(x), torch.full((4, 6), 1.0, device="cuda"), torch.empty(4, 6, device=x.device)
        assert {t.device for t in found} == {torch.device("cuda", 0)}
        assert sum(found)[1, 2:].device == torch.device("cuda", 0) and torch.empty(3).device.type == "cpu"
    graph = make_fx(lambda x: torch.full((6,), 2.0, device=x.device) + x[1:], tracing_mode="fake")(x).graph
    (made,) = graph.find_nodes(op="call_function", target=torch.ops.aten.full.default)
    assert made.kwargs["device"] == torch.device("cuda", 0)


def test_the_tutorials_device():
    x, y = torch.rand(64, device=DEVICE), torch.rand(64, device=DEVICE)
    out = torch.empty_like(x)
    add_kernel[(1,)](x, y, out, 64, BLOCK=64)
    assert x.device == DEVICE and out.device == DEVICE
    torch.testing.assert_close(out, x + y)


def test_kernels_are_warned_of_tensors_on_the_host(recwarn):
    x, host = torch.ones(64, device="cuda"), torch.ones(64)
    add_kernel[(1,)](x, host.pin_memory(), x, 64, BLOCK=64)
    assert not [w for w in recwarn if "on the host" in str(w.message)]
    with pytest.warns(UserWarning, match="add_kernel: y_ptr is a tensor on the host.*cpu tensor"):
        add_kernel[(1,)](x, host, x, 64, BLOCK=64)
    assert (x == 3).all()


def test_tensors_in_wrappers():
    x, out = torch.arange(64, device="cuda").to(torch.uint32), torch.empty(64, dtype=torch.int32, device="cuda")
    view = triton.reinterpret(x, tl.int32)
    assert view.device.type == "cuda"

    class Strided:  # what FlagGems makes to have strides of its own
        def __init__(self, base):
            self.dtype, self.device, self.shape = base.dtype, base.device, base.shape
            self.stride, self.element_size, self.data_ptr = base.stride, base.element_size, base.data_ptr
            self.untyped_storage = base.untyped_storage

    add_kernel[(1,)](view, view, Strided(out), 64, BLOCK=64)
    torch.testing.assert_close(out, 2 * x.to(torch.int32))


class Halved(torch.Tensor):  # as quantized weights are made
    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(cls, inside.shape, dtype=inside.dtype, device=inside.device)

    def __init__(self, inside):
        self.inside = inside

    def __tensor_flatten__(self):
        return ["inside"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        from torch.utils._python_dispatch import return_and_correct_aliasing

        if func is torch.ops.aten.detach.default:
            return return_and_correct_aliasing(func, args, kwargs, cls(args[0].inside.detach()))
        return func(*(2 * x.inside if isinstance(x, cls) else x for x in args), **(kwargs or {}))


def test_wrapper_subclasses():
    for device in ("cpu", "cuda"):
        half = Halved(torch.ones(3, 4, device=device))
        weight = torch.nn.Parameter(half)
        assert half.device.type == weight.device.type == weight.inside.device.type == device
        y = torch.nn.functional.linear(torch.ones(2, 4, device=device), weight.detach())
        assert y.device.type == device and (y == 8).all()


def test_operators_registered_for_cuda():
    x, host = torch.arange(5.0, device="cuda"), torch.arange(5.0)

    @torch.library.custom_op("laneloom_suite::twice", mutates_args=(), device_types="cuda")
    def twice(x: torch.Tensor) -> torch.Tensor:
        return add(x, x, torch.empty(x.shape, device=x.device))

    assert twice(x).is_cuda and torch.equal(twice(x).cpu(), 2 * host)
    with pytest.raises(NotImplementedError, match="CUDA tensors only"):
        twice(host)

    @twice.register_kernel("cpu")
    def _(x):
        assert not x.is_cuda
        return -x

    assert torch.equal(twice(host), -host) and torch.equal(twice(x).cpu(), 2 * host)

    @torch.library.custom_op("laneloom_suite::everywhere", mutates_args=())
    def everywhere(x: torch.Tensor) -> torch.Tensor:
        return x + (1 if x.is_cuda else 2)

    assert torch.equal(everywhere(x).cpu() + 1, everywhere(host))


def test_operators_of_torch_that_are_replaced():
    x, host = torch.arange(5.0, device="cuda"), torch.arange(5.0)
    library = torch.library.Library("aten", "IMPL")
    library.impl("neg", lambda x: add(x, x), "CUDA")
    library.impl("logspace", lambda *_, device=None, **__: torch.ones(3, device=device), "CUDA")
    assert torch.equal((-x).cpu(), 2 * host) and torch.equal(-host, host * -1)
    assert torch.logspace(2, 3, 3, device="cuda").cpu().max() == 1 and torch.logspace(2, 3, 3).min() == 100
    library.impl("add_.Tensor", lambda x, y: x.copy_(x * 2 + y), "CUDA")
    assert torch.equal(x.add_(1).cpu(), 2 * host + 1) and torch.equal(host.add_(1), torch.arange(1.0, 6.0))
    assert host.int().add_(True).dtype == torch.int32 and (host.int().add_(2) == torch.arange(3, 8)).all()
    library._destroy()
    assert torch.equal((-x).cpu(), -x.cpu())


def test_operators_that_hand_on_to_torch():
    x, library = torch.arange(5.0, device="cuda"), torch.library.Library("aten", "IMPL")
    composite = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)

    def copied(x, *, dtype=None, device=None, **_):
        device = x.device if device is None else device
        return torch.ops.aten._to_copy.default.redispatch(composite, x, dtype=dtype, device=device)

    library.impl("_to_copy", copied, "CUDA")
    y = x.to(torch.float64)
    library._destroy()
    assert y.is_cuda and y.dtype == torch.float64 and torch.equal(y.cpu(), torch.arange(5.0).double())


def test_what_files_that_inductor_wrote_call():
    x = torch._C._dynamo.guards._empty_strided_cuda((3, 4), (1, 3), torch.bfloat16)
    assert x.is_cuda and x.stride() == (1, 3) and x.dtype == torch.bfloat16


def test_products_of_wider_types():  # torch has them for CUDA alone
    a, c = torch.randn(2, 3, 4, device="cuda").bfloat16(), torch.randn(2, 3, 3, device="cuda")
    wide = a.float()
    found = torch.baddbmm(c, a, a.mT, out_dtype=torch.float32, beta=2)
    assert found.is_cuda and torch.allclose(found, 2 * c + wide @ wide.mT)
    out = torch.empty(3, 3, device="cuda")
    assert torch.mm(a[0], a[1].mT, out_dtype=torch.float32, out=out) is out
    assert torch.allclose(out, wide[0] @ wide[1].mT)


def test_generators():
    g, host = torch.Generator(device="cuda"), torch.Generator().manual_seed(3)
    assert g.device.type == "cuda" and host.device.type == "cpu"
    assert isinstance(g, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
    x = torch.randn(4, device="cuda", generator=g.manual_seed(3))
    assert x.is_cuda and torch.equal(x.cpu(), torch.randn(4, generator=host))


def test_there_is_no_clock():
    for make in (torch.cuda.Event, torch.Event):
        with pytest.raises(Exception, match="no clock"):
            make(enable_timing=True)
    for make in (torch.cuda.CUDAGraph, lambda: torch.cuda.graph(None)):
        with pytest.raises(Exception, match="no CUDA graphs"):
            make()


def test_what_serving_libraries_ask_when_they_are_imported():
    # vLLM's and transformers' annotations, unsloth's table of streams, vLLM's accounts of memory
    assert torch.cuda.CUDAGraph | None and issubclass(torch.cuda.graph, object)
    assert torch.cuda.device(0).idx == 0 and isinstance(torch.cuda.ExternalStream(0), torch.Stream)
    torch.Event("cuda").record(torch.Stream(device="cuda"))
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == torch.accelerator.max_memory_allocated() == 0
    assert torch.accelerator.get_memory_info() == torch.cuda.mem_get_info()
    torch.accelerator.empty_cache()
    with torch.accelerator.device_index(0):  # around every launch of vLLM's
        pass
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.profiler.stop()
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        pass
    assert torch.cuda.memory.max_memory_allocated() == 0 and torch.cuda.get_arch_list() == ["gfx1201"]
    assert torch.float16 in torch.accelerator.get_device_capability()["supported_dtypes"]
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    assert torch.cuda.get_device_properties(0).clock_rate > 1e6 and torch.cuda.current_stream().priority == 0
