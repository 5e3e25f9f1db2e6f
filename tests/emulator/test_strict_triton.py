"""Strict mode on Triton kernels: bugs at the right Python line, clean kernels in any order of waves."""

import re
import resource
from contextlib import nullcontext

import numpy as np
import pytest
from sampled import rarely

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import laneloom  # noqa: E402
from laneloom.emulator import launch, program  # noqa: E402
from laneloom.errors import HazardError  # noqa: E402

GPUS = [*rarely("gfx1100"), "gfx1151", "gfx1201", "gfx1250"]
pytestmark = pytest.mark.turning("gpu", 2)


@triton.jit
def reverse_kernel(x_ptr, buffer_ptr, out_ptr, ORDERED: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(buffer_ptr + offsets, tl.load(x_ptr + offsets))
    if ORDERED:
        tl.debug_barrier()
    tl.store(out_ptr + offsets, tl.load(buffer_ptr + BLOCK - 1 - offsets))


@pytest.mark.parametrize("gpu", [*GPUS, "gfx90a", "gfx942"])
def test_a_race_in_a_triton_kernel_is_reported_at_its_line(gpu):
    x, buffer, out = torch.randn(256), torch.zeros(256), torch.zeros(256)
    with laneloom.emulated(gpu, strict=True):
        reverse_kernel[(1,)](x, buffer, out, ORDERED=True, BLOCK=256)
        assert torch.equal(out, x.flip(0))
        with pytest.raises(HazardError) as caught:
            reverse_kernel[(1,)](x, buffer, out, ORDERED=False, BLOCK=256)
    assert caught.value.kind == "race"
    first = reverse_kernel.fn.__code__.co_firstlineno
    reported = [int(n) for n in re.findall(rf"{re.escape(__file__)}:(\d+)", str(caught.value))]
    assert sorted(reported) == [first + 3, first + 6]  # the store, and the load that reads what another wave stored


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942"])
def test_global_memory_is_in_order_at_a_barrier_of_one_compute_unit(gpu):
    """LLVM waits there only where a workgroup may be split over compute units, as this one is then said to be."""

    def launched(compiled, *args, **kwargs):
        text = compiled.asm
        if split:
            text = text.replace(".amdhsa_tg_split 0", ".amdhsa_tg_split 1")
            assert text != compiled.asm
        return launch.launch(program.Program(text, compiled.gpu, compiled.kernel, strict=True), *args, **kwargs)

    x, buffer, out = torch.randn(256), torch.zeros(256), torch.zeros(256)
    for split in (False, True):
        with laneloom.emulated(gpu, strict=True) as emulation:
            emulation.launcher = launched
            with pytest.raises(HazardError, match="no wait before the barrier") if split else nullcontext():
                reverse_kernel[(1,)](x, buffer, out, ORDERED=True, BLOCK=256)
    assert torch.equal(out, x.flip(0))


@pytest.mark.parametrize("gpu", GPUS)
def test_a_wait_deleted_from_the_assembly_is_reported_at_the_python_line(gpu):
    """The wait that guards the loads of `softmax`-like code, taken out of the machine code."""

    @triton.jit
    def scale_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets)
        tl.store(out_ptr + offsets, x * 2)

    wait = re.compile(r"^\s+(s_waitcnt vmcnt\(0\)|s_wait_loadcnt 0x0).*$", re.M)

    def without_wait(compiled, *args, **kwargs):
        text, count = wait.subn("", compiled.asm)
        assert count
        return launch.launch(program.Program(text, compiled.gpu, compiled.kernel, strict=True), *args, **kwargs)

    x, out = torch.randn(256), torch.zeros(256)
    with laneloom.emulated(gpu, strict=True) as emulation:
        scale_kernel[(1,)](x, out, BLOCK=256)
        assert torch.equal(out, x * 2)
        emulation.launcher = without_wait
        with pytest.raises(HazardError) as caught:
            scale_kernel[(1,)](x, out, BLOCK=256)
    assert caught.value.kind == "wait"
    assert f"{__file__}:{scale_kernel.fn.__code__.co_firstlineno + 4}" in str(caught.value)


@pytest.mark.covering
@pytest.mark.parametrize("gpu", GPUS[:3])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 64), (100, 77, 33), (1, 300, 50), (65, 1, 129)])
def test_matmul_is_clean(gpu, m, n, k):
    a, b = torch.randn(m, k).half(), torch.randn(n, k).half().T
    with laneloom.emulated(gpu, strict=True, seed=1):
        c = laneloom.matmul(a, b)
    with laneloom.emulated(gpu):
        assert torch.equal(c, laneloom.matmul(a, b))


@triton.jit
def increment_kernel(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_a_replicated_read_of_a_small_tensor_is_no_race(gpu, seed):
    """Four waves load the 64 elements twice over, and one of the two copies is stored."""
    x = torch.zeros(64)
    with laneloom.emulated(gpu, strict=True, seed=seed):
        increment_kernel[(1,)](x, BLOCK=64, num_warps=4)
    assert torch.equal(x, torch.ones(64))


@triton.jit
def transpose_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    tl.store(out_ptr + tl.arange(0, C)[:, None] * R + tl.arange(0, R)[None, :], tl.trans(x))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.float32])
def test_halves_and_bytes_through_lds_are_defined(gpu, dtype):
    x, out = (torch.randn(64, 32) * 10).to(dtype), torch.zeros(32, 64, dtype=dtype)
    with laneloom.emulated(gpu, strict=True):
        transpose_kernel[(1,)](x, out, R=64, C=32)
    assert torch.equal(out, x.T)


@triton.jit
def sum_in_place_kernel(x_ptr, BLOCK: tl.constexpr):
    """Every wave loads all of the small tensor, and one may have stored before another loads."""
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(x_ptr + offsets, x - tl.sum(x, axis=0))


@pytest.mark.parametrize("gpu", GPUS)
def test_a_replica_that_comes_too_late_must_reach_no_memory(gpu):
    """The sum goes through LDS and a barrier, so each wave's load comes before any store: right in any order."""
    for seed in range(4):
        x = torch.arange(64, dtype=torch.float32)
        with laneloom.emulated(gpu, strict=True, seed=seed):
            sum_in_place_kernel[(1,)](x, BLOCK=64, num_warps=4)
        assert torch.equal(x, torch.arange(64, dtype=torch.float32) - 2016)


@triton.jit
def scatter_kernel(out_ptr, index_ptr, value_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.load(index_ptr + offsets), tl.load(value_ptr + offsets), mask=offsets != 5)


@pytest.mark.parametrize("gpu", ["gfx1151", "gfx942"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_two_lanes_of_one_store_may_write_one_value_alone(gpu, dtype):
    index, value, out = torch.arange(32), torch.arange(32).to(dtype), torch.zeros(32, dtype=dtype)
    index[5], index[9], value[9] = 0, 3, 3  # a lane that the mask turns off, and one that agrees
    with laneloom.emulated(gpu, strict=True):
        scatter_kernel[(2,)](out, index, value, BLOCK=32)  # both programs write the same
        assert out[[0, 3]].tolist() == [0, 3]
        value[9] = 4
        with pytest.raises(HazardError, match="different values from two lanes of one store") as caught:
            scatter_kernel[(1,)](out, index, value, BLOCK=32)
    assert caught.value.kind == "race"


def test_memory_that_no_wave_touches_costs_none():
    """Races are looked for in a view whose rows are far apart: 2 GiB of tags would be written otherwise."""
    x = np.lib.stride_tricks.as_strided(np.empty((1 << 27) + 16, np.float16), (3, 16), (1 << 27, 2))
    x[...] = 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with laneloom.emulated("gfx1151", strict=True):
        assert (laneloom.matmul(np.ones((2, 3), np.float16), x) == 3).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


@triton.jit
def last_tile_kernel(out_ptr, n, OWN: tl.constexpr, BLOCK: tl.constexpr):
    group = tl.program_id(0)
    tl.debug_barrier()  # whose fences order the waves of one workgroup alone
    offsets = tl.minimum(group * BLOCK, n - BLOCK) + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, (offsets + OWN * group).to(out_ptr.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.int64])
@pytest.mark.parametrize("gpu", [*GPUS, "gfx942"])
def test_workgroups_that_nothing_orders_may_store_one_value_alone(gpu, dtype):
    """The last tile, moved back to be whole, overlaps the one before, and no lane's bytes as the other's do."""
    out = torch.zeros(101, dtype=dtype)
    with laneloom.emulated(gpu, strict=True):
        last_tile_kernel[(4,)](out, 101, OWN=0, BLOCK=32)
        assert torch.equal(out, torch.arange(101).to(dtype))
        with pytest.raises(HazardError, match=r"different values from two workgroups .* from workgroup \(\d, 0, 0\)"):
            last_tile_kernel[(4,)](out, 101, OWN=1, BLOCK=32)


@triton.jit
def take_turns_kernel(turn_ptr, out_ptr):
    while tl.atomic_add(turn_ptr, 0, sem="acquire") != tl.program_id(0):
        pass
    tl.store(out_ptr, tl.program_id(0))
    tl.atomic_add(turn_ptr, 1, sem="release")


@pytest.mark.parametrize("gpu", [*GPUS, "gfx942"])
def test_workgroups_that_atomics_order_are_let_pass(gpu):
    turn, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with laneloom.emulated(gpu, strict=True):
        take_turns_kernel[(3,)](turn, out)
    assert out.item() == 2


@triton.jit
def chain_kernel(word_ptr, x_ptr):
    """Each program waits for the one before it: how many are through, and their sum, in one word."""
    word = tl.load(word_ptr, volatile=True)
    while word & 0xFF != tl.program_id(0):
        word = tl.load(word_ptr, volatile=True)
    tl.store(word_ptr, word + 1 + (tl.load(x_ptr + tl.program_id(0)) << 8))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("gpu", [*GPUS, "gfx90a", "gfx942"])
def test_workgroups_that_a_polled_word_orders_are_let_pass(gpu, seed):
    word, x = torch.zeros(1, dtype=torch.int64), torch.arange(6)
    with laneloom.emulated(gpu, strict=True, seed=seed):
        chain_kernel[(6,)](word, x, num_warps=1)
    assert word.item() == 15 << 8 | 6


@triton.jit
def joined(mean_a, m2_a, weight_a, mean_b, m2_b, weight_b):
    delta, weight = mean_b - mean_a, weight_a + weight_b
    return mean_a + delta * weight_b / weight, m2_a + m2_b + delta * delta * weight_a * weight_b / weight, weight


@triton.jit
def welford_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    mean, m2, _ = tl.reduce((x, tl.zeros_like(x), tl.full((BLOCK,), 1.0, tl.float32)), 0, joined)
    tl.store(out_ptr, mean)
    tl.store(out_ptr + 1, m2)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("gpu", [*GPUS, "gfx942"])
def test_replicas_that_round_alike_wave_by_wave_are_no_race(gpu, seed):
    """Eight waves hold 128 elements; the lanes of each, combined in other orders, store to one place of LDS."""
    x, out = torch.randn(128, generator=torch.Generator().manual_seed(1)), torch.zeros(2)
    with laneloom.emulated(gpu, strict=True, seed=seed):
        welford_kernel[(1,)](x, out, BLOCK=128, num_warps=8)
    torch.testing.assert_close(out, torch.stack([x.mean(), x.var() * 127]))
