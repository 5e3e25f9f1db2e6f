"""Strict mode follows what atomics order between workgroups: right kernels raise no alarm, wrong ones do."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import laneloom  # noqa: E402
from laneloom.emulator.group_clocks import PLACES, GroupClocks  # noqa: E402
from laneloom.errors import HazardError  # noqa: E402

GPUS = ["gfx1100", "gfx1201", "gfx942", "gfx950"]


def words(*values, n=1, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype) if values else torch.zeros(n, dtype=dtype)


@triton.jit
def ticket_kernel(next_ptr, serving_ptr, x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    ticket = tl.atomic_add(next_ptr, 1)
    while tl.atomic_add(serving_ptr, 0) != ticket:
        pass
    total = tl.load(out_ptr + offs) + tl.load(x_ptr + tl.program_id(0) * BLOCK + offs)
    tl.store(out_ptr + offs, total)
    tl.debug_barrier()
    tl.atomic_add(serving_ptr, 1)


def ticket_lock():
    x, out = torch.randn(9, 128).round(decimals=2), torch.zeros(128)
    ticket_kernel[(9,)](words(), words(), x, out, BLOCK=128)
    torch.testing.assert_close(out, x.sum(0))


@triton.jit
def spin_kernel(lock_ptr, x_ptr, out_ptr, PLAIN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    total = tl.load(out_ptr + offs) + tl.load(x_ptr + tl.program_id(0) * BLOCK + offs)
    tl.store(out_ptr + offs, total)
    tl.debug_barrier()
    if PLAIN:
        tl.store(lock_ptr, 0)
    else:
        tl.atomic_xchg(lock_ptr, 0)


def spin_lock(plain=False):
    x, out = torch.randn(9, 128), torch.zeros(128)
    spin_kernel[(9,)](words(), x, out, PLAIN=plain, BLOCK=128)
    torch.testing.assert_close(out, x.sum(0))


def spin_lock_that_a_store_opens():
    spin_lock(plain=True)


@triton.jit
def last_kernel(count_ptr, part_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0), -1.0)
    tl.store(part_ptr + tl.program_id(0) * BLOCK + offs, (offs + tl.program_id(0)).to(tl.float32))
    tl.debug_barrier()
    if tl.atomic_add(count_ptr, 1) == tl.num_programs(0) - 1:
        for k in range(tl.num_programs(0)):
            total = tl.sum(tl.load(part_ptr + k * BLOCK + offs), axis=0)
            tl.store(out_ptr + k, total)
        tl.store(count_ptr, 0)


def last_program_reduces():
    count, out = words(), torch.zeros(9)
    last_kernel[(9,)](count, torch.zeros(9, 64), out, BLOCK=64)
    assert out.tolist() == [2016 + 64 * k for k in range(9)]
    assert count.item() == 0


@triton.jit
def stream_k_kernel(lock_ptr, x_ptr, out_ptr, STEPS: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """Each program takes EACH steps of tiles of STEPS; who takes a tile's first step stores it, others add."""
    offs = tl.arange(0, BLOCK)
    step = tl.program_id(0) * EACH
    end = step + EACH
    while step < end:
        tile = step // STEPS
        stop = tl.minimum((tile + 1) * STEPS, end)
        total = tl.zeros([BLOCK], tl.float32)
        for k in range(step, stop):
            total += tl.load(x_ptr + k * BLOCK + offs)
        if step % STEPS == 0:
            tl.store(out_ptr + tile * BLOCK + offs, total)
            tl.debug_barrier()
            tl.atomic_xchg(lock_ptr + tile, stop - tile * STEPS)
        else:
            while tl.atomic_cas(lock_ptr + tile, -1, -1) != step - tile * STEPS:
                pass
            tl.store(out_ptr + tile * BLOCK + offs, tl.load(out_ptr + tile * BLOCK + offs) + total)
            tl.debug_barrier()
            tl.atomic_xchg(lock_ptr + tile, stop - tile * STEPS)
        step = stop


def stream_k():
    x, out = torch.randn(24, 64), torch.zeros(4, 64)
    stream_k_kernel[(8,)](words(n=4), x, out, STEPS=6, EACH=3, BLOCK=64)
    torch.testing.assert_close(out, x.view(4, 6, 64).sum(1))


@triton.jit
def split_k_kernel(turn_ptr, x_ptr, out_ptr, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    tile, part, offs = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + (tile * SPLIT + part) * BLOCK + offs)
    while tl.atomic_add(turn_ptr + tile, 0, sem="acquire") != part:
        pass
    if part > 0:
        x += tl.load(out_ptr + tile * BLOCK + offs)
    tl.store(out_ptr + tile * BLOCK + offs, x)
    tl.debug_barrier()
    tl.atomic_add(turn_ptr + tile, 1, sem="release")


def split_k_in_turns():
    x, out = torch.randn(5, 4, 128), torch.zeros(5, 128)
    split_k_kernel[(5, 4)](words(n=5), x, out, SPLIT=4, BLOCK=128)
    torch.testing.assert_close(out, x.sum(1))


@triton.jit
def scan_kernel(status_ptr, x_ptr, scratch_ptr, out_ptr, BLOCK: tl.constexpr):
    """Status: the sum so far, and below it 1 where it is of one block, 2 where of all up to it."""
    number, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + number * BLOCK + offs)
    own = tl.sum(x, axis=0).to(tl.int64)
    before = own * 0
    tl.store(scratch_ptr + number * 2, own)
    if number > 0:
        tl.atomic_xchg(status_ptr + number, own << 2 | 1, sem="relaxed")
        at = number - 1
        while at >= 0:
            found = tl.atomic_add(status_ptr + at, 0, sem="relaxed")
            while found == 0:
                found = tl.atomic_add(status_ptr + at, 0, sem="relaxed")
            before += found >> 2
            at = tl.where(found & 3 == 2, -1, at - 1)
    tl.atomic_xchg(status_ptr + number, (before + own) << 2 | 2, sem="relaxed")
    tl.store(scratch_ptr + number * 2 + 1, before)
    tl.store(out_ptr + number * BLOCK + offs, tl.cumsum(x, 0) + before)


def look_back_scan():
    x, out = torch.randint(0, 9, (12 * 64,)), torch.zeros(12 * 64, dtype=torch.int64)
    scan_kernel[(12,)](words(n=12, dtype=torch.int64), x, words(n=24, dtype=torch.int64), out, BLOCK=64)
    assert torch.equal(out, x.cumsum(0))


@triton.jit
def grid_barrier_kernel(count_ptr, x_ptr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    """In each round a program takes the row of its neighbour."""
    offs, programs = tl.arange(0, BLOCK), tl.num_programs(0)
    for k in range(ROUNDS):
        row = (tl.program_id(0) + k) % programs
        x = tl.load(x_ptr + row * BLOCK + offs)
        tl.store(x_ptr + row * BLOCK + offs, x * 2 + tl.program_id(0))
        tl.debug_barrier()
        tl.atomic_add(count_ptr, 1, sem="release")
        while tl.atomic_add(count_ptr, 0, sem="acquire") < (k + 1) * programs:
            pass
        tl.debug_barrier()


def grid_barrier():
    x, want = torch.zeros(6, 64), [0] * 6
    grid_barrier_kernel[(6,)](words(), x, ROUNDS=4, BLOCK=64)
    for k in range(4):
        want = [2 * w + (row - k) % 6 for row, w in enumerate(want)]
    assert x[:, 5].tolist() == want


@triton.jit
def queue_kernel(next_ptr, out_ptr, tiles, BLOCK: tl.constexpr):
    tile = tl.atomic_add(next_ptr, 1, sem="relaxed")
    while tile < tiles:
        tl.store(out_ptr + tile * BLOCK + tl.arange(0, BLOCK), tile + tl.arange(0, BLOCK))
        tile = tl.atomic_add(next_ptr, 1, sem="relaxed")


def work_queue():
    out = words(n=20 * 64)
    queue_kernel[(6,)](words(), out, 20, BLOCK=64)
    assert torch.equal(out.view(20, 64)[:, 0], torch.arange(20, dtype=torch.int32))


@triton.jit
def table_kernel(key_ptr, table_ptr, value_ptr, SLOTS: tl.constexpr):
    key = tl.load(key_ptr + tl.program_id(0))
    slot = key * 7 % SLOTS
    found = tl.atomic_cas(table_ptr + slot, 0, key)
    while found != 0:
        slot = (slot + 1) % SLOTS
        found = tl.atomic_cas(table_ptr + slot, 0, key)
    tl.store(value_ptr + slot, key * 10)


def hash_table():
    keys, table, values = (torch.arange(40) % 13 * 16 + torch.arange(40) + 1).int(), words(n=64), words(n=64)
    table_kernel[(40,)](keys, table, values, SLOTS=64)
    assert sorted(table[table > 0].tolist()) == sorted(keys.tolist())
    assert torch.equal(values, table * 10)


@triton.jit
def histogram_kernel(x_ptr, bins_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.atomic_add(bins_ptr + x, 1, sem="relaxed")
    tl.store(out_ptr + offs, x * 2)


def atomic_histogram():
    x, bins = torch.randint(0, 50, (10 * 128,)).int(), words(n=50)
    histogram_kernel[(10,)](x, bins, out := torch.zeros_like(x), BLOCK=128)
    assert torch.equal(bins, torch.bincount(x, minlength=50).int())
    assert torch.equal(out, x * 2)


@triton.jit
def plain_flag_kernel(count_ptr, flag_ptr, out_ptr):
    """Each program polls, by plain loads between atomics, until the one before it is through."""
    while tl.load(flag_ptr) != tl.program_id(0):
        tl.atomic_add(count_ptr + tl.program_id(0), 1)
    tl.store(out_ptr, tl.load(out_ptr) * 2 + tl.program_id(0))
    tl.debug_barrier()
    tl.store(flag_ptr, tl.program_id(0) + 1)


def flag_in_plain_loads():
    out = words()
    plain_flag_kernel[(4,)](words(n=4 * 64), words(), out)
    assert out.item() == 11


RIGHT = [
    ticket_lock, spin_lock, spin_lock_that_a_store_opens, last_program_reduces, stream_k, split_k_in_turns,
    look_back_scan, grid_barrier, work_queue, hash_table, atomic_histogram,
    flag_in_plain_loads,
]  # fmt: skip


@pytest.mark.parametrize("call", RIGHT)
@pytest.mark.parametrize("gpu", GPUS)
def test_what_atomics_order_is_let_pass(gpu, call):
    torch.manual_seed(1)
    for seed in range(3):
        with laneloom.emulated(gpu, strict=True, seed=seed):
            call()


@triton.jit
def edges_kernel(count_ptr, out_ptr, n, FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """The last tile, moved back to be whole, overlaps the one before. Neither waits for the other."""
    if FIRST:
        tl.atomic_add(count_ptr + tl.program_id(0), 1)
    offs = tl.minimum(tl.program_id(0) * BLOCK, n - BLOCK) + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.program_id(0) + offs * 0)
    tl.debug_barrier()
    if not FIRST:
        tl.atomic_add(count_ptr, 1)


def tiles_that_overlap():
    edges_kernel[(4,)](words(), words(n=100), 100, FIRST=False, BLOCK=32)


def tiles_that_overlap_behind_counters_of_their_own():
    edges_kernel[(4,)](words(n=4), words(n=100), 100, FIRST=True, BLOCK=32)


@triton.jit
def two_sums_kernel(right_ptr, wrong_ptr):
    tl.atomic_add(right_ptr, tl.program_id(0) + 1)
    tl.store(wrong_ptr, tl.load(wrong_ptr) + tl.program_id(0) + 1)


def sum_without_an_atomic():
    two_sums_kernel[(4,)](words(), words())


@triton.jit
def one_side_kernel(lock_ptr, out_ptr):
    if tl.program_id(0) > 0:
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
        tl.store(out_ptr, tl.load(out_ptr) + 1)
        tl.debug_barrier()
        tl.atomic_xchg(lock_ptr, 0)
    else:
        tl.store(out_ptr, tl.load(out_ptr) + 5)


def lock_that_one_side_takes():
    one_side_kernel[(4,)](words(), words())


@triton.jit
def row_locks_kernel(lock_ptr, out_ptr, BLOCK: tl.constexpr):
    """A lock for each row, and a row of sums that all of them add to."""
    row, offs = tl.program_id(0) % 2, tl.arange(0, BLOCK)
    while tl.atomic_cas(lock_ptr + 2 * row, 0, 1) == 1:
        pass
    tl.store(out_ptr + offs, tl.load(out_ptr + offs) + tl.program_id(0) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr + 2 * row, 0)


def row_under_two_locks():
    row_locks_kernel[(4,)](words(n=4), words(n=64), BLOCK=64)


@triton.jit
def early_release_kernel(lock_ptr, out_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    x = tl.load(out_ptr) + 1
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)
    tl.store(out_ptr, x)


def store_behind_the_lock():
    early_release_kernel[(4,)](words(), words())


WRONG = [
    tiles_that_overlap, tiles_that_overlap_behind_counters_of_their_own, sum_without_an_atomic,
    lock_that_one_side_takes, row_under_two_locks, store_behind_the_lock,
]  # fmt: skip


@pytest.mark.parametrize("call", WRONG)
@pytest.mark.parametrize("gpu", GPUS)
def test_what_atomics_leave_open_is_reported(gpu, call):
    for seed in range(3):
        with (
            laneloom.emulated(gpu, strict=True, seed=seed),
            pytest.raises(HazardError, match="different values from two workgroups that nothing orders"),
        ):
            call()


def test_memory_of_many_workgroups_is_bounded():
    """Where clocks would take too much of it, workgroups that took part count as ordered up to there."""
    clocks = GroupClocks(1 << 16)
    for group in range(500):
        clocks.meet(np.array([group]), np.array([group % PLACES]))
    kept = {id(c) for c in [*clocks.of_group.values(), *clocks.of_place.values()]}
    assert len(kept) <= clocks.most < 500
    zero = np.zeros(1, np.int32)
    assert not clocks.unknown(np.array([1]), np.array([0]), zero).any()
    assert clocks.unknown(np.array([498]), np.array([499]), zero).all()  # these two have met nowhere
    assert clocks.unknown(np.array([1]), np.array([600]), zero).all()
