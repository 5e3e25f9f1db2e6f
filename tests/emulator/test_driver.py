"""`emulated`: which driver is active when, what is refused, what an error says."""

import gc
import re
import weakref

import pytest
from sampled import rarely

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime import driver as triton_driver  # noqa: E402
from triton.runtime.jit import JITCallable  # noqa: E402

import laneloom  # noqa: E402
from laneloom.emulator import program  # noqa: E402
from laneloom.errors import (  # noqa: E402
    ArgumentError,
    DeadlockError,
    OutOfBoundsError,
    UnknownGpuError,
    UnsupportedError,
)


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def test_contexts_nest_and_each_keeps_its_own_launches():
    x, out = torch.randn(64), torch.zeros(64)
    before = triton_driver._active
    with laneloom.emulated("gfx1151") as outer:
        copy_kernel[(1,)](x, out, 64, BLOCK=64)
        with laneloom.emulated("gfx1201") as inner:
            copy_kernel[(1,)](x, out, 64, BLOCK=64)
            assert triton_driver.active.get_current_target().arch == "gfx1201"
        assert triton_driver.active.get_current_target().arch == "gfx1151"
        copy_kernel[(1,)](x, out, 64, BLOCK=64)
    assert triton_driver._active is before
    assert [r.gpu for r in outer.launches] == ["gfx1151", "gfx1151"]
    assert [r.gpu for r in inner.launches] == ["gfx1201"]
    assert outer.launches[0].asm != inner.launches[0].asm
    assert len(repr(outer.launches[0])) < 200  # a line, which the page on the emulator prints


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942"])
def test_a_kernel_and_its_gpu_say_what_occupancy_is_computed_from(gpu):
    """As Triton's tutorial of a fused softmax does, which divides by the number of registers."""
    x, out = torch.randn(64), torch.zeros(64)
    with laneloom.emulated(gpu):
        told = triton_driver.active.utils.get_device_properties(0)
        kernel = copy_kernel.warmup(x, out, 64, BLOCK=64, num_warps=1, grid=(1,))
        kernel._init_handles()
    facts = kernel.asm["amdgcn"]
    assert kernel.n_regs == int(re.search(r"\.vgpr_count: +(\d+)", facts)[1]) > 0
    assert kernel.n_spills == int(re.search(r"\.private_segment_fixed_size: +(\d+)", facts)[1]) == 0
    waves = told["max_threads_per_sm"] // told["warpSize"]
    assert waves == {"gfx1151": 32, "gfx942": 32}[gpu] <= told["max_num_regs"] // told["warpSize"] // kernel.n_regs


def test_functions_are_numbers_of_their_own():
    """Hooks of Triton's profiler, Proton, take the numbers that a GPU's driver gives."""
    x, out, seen = torch.randn(64), torch.zeros(64), []

    def see(module, function, *_):
        seen.append(function)

    triton.knobs.runtime.kernel_load_end_hook.add(see)
    try:
        for gpu in ("gfx1151", "gfx942"):
            with laneloom.emulated(gpu):
                for block in (64, 128):
                    triton.JITFunction(copy_kernel.fn)[(1,)](x, out, 64, BLOCK=block)
    finally:
        triton.knobs.runtime.kernel_load_end_hook.remove(see)
    assert len(set(seen)) == 4
    assert all(type(function) is int for function in seen)


def test_grids_are_integers():
    x, out = torch.randn(64), torch.zeros(64)
    with laneloom.emulated("gfx1151"), pytest.raises(TypeError, match="'float' object cannot be interpreted"):
        copy_kernel[(1.0,)](x, out, 64, BLOCK=64)


def test_a_context_is_entered_again_and_decorates():
    x, out = torch.randn(64), torch.zeros(64)
    context, before = laneloom.emulated("gfx1151"), triton_driver._active
    with context as first:
        copy_kernel[(1,)](x, out, 64, BLOCK=64)
        with context as second:
            copy_kernel[(1,)](x, out, 64, BLOCK=64)
    context(lambda: copy_kernel[(1,)](x, out, 64, BLOCK=64))()
    assert (len(first.launches), len(second.launches)) == (1, 1)
    assert triton_driver._active is before
    with pytest.raises(RuntimeError, match="on purpose"), context:
        raise RuntimeError("on purpose")
    assert triton_driver._active is before


@pytest.mark.parametrize("variable", ["TRITON_INTERPRET", "TRITON_STORE_BINARY_ONLY"])
def test_settings_with_which_nothing_would_be_emulated(monkeypatch, variable):
    """Interpreted kernels ran right inside the context, as Python."""
    before = triton_driver._active
    monkeypatch.setenv(variable, "1")
    with pytest.raises(UnsupportedError, match=f"{variable} is set: .*; unset it"), laneloom.emulated("gfx1151"):
        pass
    assert triton_driver._active is before


def test_what_runs_after_its_call_returned_is_not_decorated():
    """The context would be left before the first line ran."""

    async def coroutine():
        pass

    async def both():
        yield

    for late in (coroutine, both, lambda: (yield)):
        with pytest.raises(ArgumentError, match="is a generator or a coroutine, which runs later; enter it inside"):
            laneloom.emulated("gfx1151")(late)


def test_contexts_may_be_left_in_another_order_than_entered():
    x, out = torch.randn(64), torch.zeros(64)
    before, parse = triton_driver._active, JITCallable.parse
    first, second, third = (laneloom.emulated(gpu) for gpu in ("gfx1151", "gfx1201", "gfx1100"))
    contexts = [context.__enter__() for context in (first, second, third)]
    first.__exit__(None, None, None)
    copy_kernel[(1,)](x, out, 64, BLOCK=64)
    third.__exit__(None, None, None)
    copy_kernel[(1,)](x, out, 64, BLOCK=64)
    second.__exit__(None, None, None)
    assert [len(context.launches) for context in contexts] == [0, 1, 1]
    assert triton_driver._active is before
    assert JITCallable.parse is parse
    with pytest.raises(ArgumentError, match="left more often than entered"):
        second.__exit__(None, None, None)


def test_the_former_driver_comes_back_after_an_error():
    before = triton_driver._active
    with pytest.raises(RuntimeError, match="on purpose"), laneloom.emulated("gfx1151"):
        raise RuntimeError("on purpose")
    assert triton_driver._active is before


def test_unknown_gpu_names_the_nearest():
    with pytest.raises(UnknownGpuError, match="gfx1154"), laneloom.emulated("gfx1159"):
        pass


def test_a_gpu_without_an_emulator_is_refused():
    with pytest.raises(UnsupportedError, match="not emulated"), laneloom.emulated("sm_90a"):
        pass


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx1201", "gfx1250"])
def test_a_store_past_the_end_names_argument_kernel_line_and_lane(gpu):
    x, storage = torch.randn(200), torch.zeros(200)
    out = storage[:100]
    with laneloom.emulated(gpu), pytest.raises(OutOfBoundsError) as caught:
        copy_kernel[(1,)](x, out, 200, BLOCK=256)
    message = str(caught.value)
    assert "copy_kernel" in message
    assert "bytes past the end of argument 'out_ptr' (400 bytes)" in message
    assert f"{__file__}:{copy_kernel.fn.__code__.co_firstlineno + 3}" in message
    assert re.search(r"workgroup \(0, 0, 0\), wave \d, lane \d+", message)
    assert torch.equal(storage[100:], torch.zeros(100))


def test_a_load_before_the_start_is_caught():
    storage = torch.randn(200)

    @triton.jit
    def early_kernel(x_ptr, out_ptr):
        tl.store(out_ptr, tl.load(x_ptr - 1))

    with laneloom.emulated("gfx1151"), pytest.raises(OutOfBoundsError, match="4 bytes before argument 'x_ptr'"):
        early_kernel[(1,)](storage[100:], torch.zeros(1))


def test_a_tensor_without_elements_is_called_that():
    with laneloom.emulated("gfx1151"), pytest.raises(OutOfBoundsError, match="through a null pointer"):
        copy_kernel[(1,)](torch.zeros(0), torch.zeros(200), 200, BLOCK=256)


def test_a_null_pointer_is_caught():
    @triton.jit
    def chase_kernel(table_ptr, out_ptr):
        pointer = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
        tl.store(out_ptr, tl.load(pointer))

    table = torch.zeros(1, dtype=torch.int64)
    with laneloom.emulated("gfx1151"), pytest.raises(OutOfBoundsError, match="access at 0x0"):
        chase_kernel[(1,)](table, torch.zeros(1))


def test_a_pointer_may_be_given_as_a_number():
    x, out = torch.randn(64), torch.zeros(64)
    with laneloom.emulated("gfx1151"):
        compiled = copy_kernel.warmup(x, out, 64, BLOCK=64, grid=(1,))
        compiled[(1, 1, 1)](x.data_ptr(), out.data_ptr(), 64, 64)
        assert torch.equal(out, x)
        with pytest.raises(OutOfBoundsError, match="past the end of argument 'out_ptr -> "):
            compiled[(1, 1, 1)](x, out[8:].data_ptr(), 64, 64)


def test_a_pointer_may_have_an_address_and_a_type_alone():
    x, out = torch.randn(64), torch.zeros(64)

    class Pointer:
        def __init__(self, tensor):
            self.dtype, self.data_ptr = tensor.dtype, tensor.data_ptr

    with laneloom.emulated("gfx1151"):
        copy_kernel[(1,)](Pointer(x), Pointer(out), 64, BLOCK=64)
        assert torch.equal(out, x)
        with pytest.raises(OutOfBoundsError, match="past the end of argument 'out_ptr -> "):
            copy_kernel[(1,)](Pointer(x), Pointer(out[8:]), 64, BLOCK=64)


def test_strided_views_may_be_read_everywhere_they_reach():
    base = torch.randn(50, 40)
    view = base[3:40:2, 5:30:3]

    @triton.jit
    def gather_kernel(x_ptr, out_ptr, rows, columns, stride_r, stride_c, R: tl.constexpr, C: tl.constexpr):
        r, c = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
        mask = (r < rows) & (c < columns)
        tl.store(out_ptr + r * columns + c, tl.load(x_ptr + r * stride_r + c * stride_c, mask=mask), mask=mask)

    out = torch.full(view.shape, float("nan"))
    with laneloom.emulated("gfx1201"):
        gather_kernel[(1,)](view, out, *view.shape, *view.stride(), R=32, C=16)
    assert torch.equal(out, view)


def test_a_kernel_may_be_let_out_of_a_view():
    storage = torch.arange(40.0)
    out = torch.zeros(40)
    with laneloom.emulated("gfx1151"), pytest.raises(OutOfBoundsError, match="bounds='storage' allows that"):
        copy_kernel[(1,)](storage[:39], out, 40, BLOCK=64)
    with laneloom.emulated("gfx1151", bounds="storage"):
        copy_kernel[(1,)](storage[:39], out, 40, BLOCK=64)
    assert torch.equal(out, storage)
    with pytest.raises(ArgumentError, match="bounds: expected 'view', 'storage' or 'hardware', got 'all'"):
        laneloom.emulated("gfx1151", bounds="all").__enter__()
    for seed in (-1, 1.5, "2", None):
        with pytest.raises(ArgumentError, match="seed: expected a whole number"):
            laneloom.emulated("gfx1151", seed=seed).__enter__()  # pyright: ignore[reportArgumentType]


def test_a_view_with_stride_0_may_be_read_everywhere_in_its_storage():
    """Gathers hand over the table with stride 0 where the index takes over."""
    table, index = torch.randn(90), torch.tensor([3, 77, 0, 50])

    @triton.jit
    def take_kernel(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
        tl.store(out_ptr + tl.arange(0, N), tl.load(x_ptr + tl.load(index_ptr + tl.arange(0, N))))

    out = torch.zeros(4)
    with laneloom.emulated("gfx1151"):
        take_kernel[(1,)](torch.as_strided(table, (4,), (0,)), index, out, N=4)
        with pytest.raises(OutOfBoundsError, match="44 bytes past the end of argument 'x_ptr'"):
            take_kernel[(1,)](torch.as_strided(table, (4,), (0,)), index + 23, out, N=4)
    assert torch.equal(out, table[index])


def test_a_tensor_that_is_not_on_the_cpu_is_refused():
    with laneloom.emulated("gfx1151"), pytest.raises(ArgumentError, match="meta"):
        copy_kernel[(1,)](torch.empty(64, device="meta"), torch.zeros(64), 64, BLOCK=64)


def test_scalar_arguments_of_every_kind():
    @triton.jit
    def scalars_kernel(out_ptr, i, big, negative, f, flag):
        tl.store(out_ptr + 0, i.to(tl.float64))
        tl.store(out_ptr + 1, big.to(tl.float64))
        tl.store(out_ptr + 2, negative.to(tl.float64))
        tl.store(out_ptr + 3, f.to(tl.float64))
        tl.store(out_ptr + 4, tl.where(flag, 1.0, 0.0).to(tl.float64))

    out = torch.zeros(5, dtype=torch.float64)
    with laneloom.emulated("gfx1151"):
        scalars_kernel[(1,)](out, 12345, 2**40 + 17, -7, 0.5, True)
    assert out.tolist() == [12345, 2**40 + 17, -7, 0.5, 1]


def test_a_grid_of_zero_runs_nothing():
    with laneloom.emulated("gfx1151") as gpu:
        copy_kernel[(0,)](torch.zeros(1), torch.zeros(1), 1, BLOCK=64)
    assert gpu.launches == []


def test_autotune_ranks_by_instructions():
    calls = []

    @triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (32, 1024)], key=["n"])
    @triton.jit
    def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)

    x, out = torch.randn(4096), torch.zeros(4096)
    with laneloom.emulated("gfx1151") as gpu:
        tuned_kernel[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](x, out, 4096)
        calls = [r.instructions for r in gpu.launches]
    assert torch.equal(out, x)
    assert tuned_kernel.best_config.kwargs["BLOCK"] == 1024
    assert calls[-1] == min(calls)


@triton.jit
def hopeless_kernel(flag_ptr):
    while tl.atomic_cas(flag_ptr, 1, 2) != 1:
        pass


@pytest.mark.parametrize("warps", [4, *rarely(1)])  # of four, one asks and tells the others in LDS
def test_waiting_for_ever_is_an_error_not_a_hang(warps):
    with laneloom.emulated("gfx1151"), pytest.raises(DeadlockError, match=r"hopeless_kernel.*loops for ever"):
        hopeless_kernel[(2,)](torch.zeros(1, dtype=torch.int32), num_warps=warps)


@triton.jit
def far_kernel(flag_ptr, out_ptr):
    pid = tl.program_id(0)
    if pid == 0:
        while tl.atomic_cas(flag_ptr, 1, 2) != 1:
            pass
        tl.store(out_ptr, 7)
    elif pid == tl.num_programs(0) - 1:
        tl.atomic_xchg(flag_ptr, 1)


def test_a_program_may_wait_for_one_far_behind_it():
    """More workgroups than the emulator runs together."""
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with laneloom.emulated("gfx1201"):
        far_kernel[(1000,)](flag, out, num_warps=1)
    assert out.item() == 7


def test_programs_are_kept_within_bounds(monkeypatch):
    monkeypatch.setattr(program, "_loaded", {})
    monkeypatch.setattr(program, "INSTRUCTIONS_KEPT", 100)

    def load(n, length=30):
        code = f"\tv_mov_b32_e32 v1, {n}\n" * length + "\ts_endpgm\n"
        return program.load(f"k:\n{code}\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n", "gfx1151", "k")

    first, second = load(1), load(2)
    assert load(1) is first
    third = load(3)
    fourth = load(4)  # the second was used longest ago
    assert list(program._loaded.values()) == [first, third, fourth]
    assert load(2) is not second
    large = load(5, length=200)
    assert list(program._loaded.values()) == [large]


@pytest.mark.parametrize("strict", [False, True])
def test_a_program_that_is_dropped_is_gone_at_once(strict):
    """Without waiting for the collector, which may not come by for minutes, with millions of objects to walk over."""
    code = "\tv_mov_b32_e32 v1, 1\n\ts_cbranch_scc0 end\n\tv_mov_b32_e32 v2, 2\nend:\n\ts_endpgm\n"
    made = program.Program(f"k:\n{code}\t.amdhsa_kernel k\n\t.end_amdhsa_kernel\n", "gfx1151", "k", strict=strict)
    assert [len(block.steps) for block in made.blocks] == ([2, 1, 1] if strict else [1, 1, 0])
    gone = weakref.ref(made)
    gc.disable()
    try:
        del made
        assert gone() is None
    finally:
        gc.enable()
