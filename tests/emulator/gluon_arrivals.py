"""Kernels whose copies to and from LDS arrive at barriers in LDS (CDNA 5), and what can be wrong with them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd.cdna5 import async_copy, mbarrier, tdm

ROWS = gl.constexpr(16)
COLUMNS = gl.constexpr(64)


@gluon.jit
def _tile(ptr, k, layout: gl.constexpr):
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    return ptr + (k * ROWS + rows[:, None]) * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def _fetch(buffers, bars, a_ptr, k, damage: gl.constexpr):
    """Tile k of what each thread copies; with `damage` "late", once more after the arrival."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    async_copy.global_to_shared(buffers.index(k % 2), _tile(a_ptr, k, layout))
    async_copy.mbarrier_arrive(bars.index(k % 2))
    if damage == "late":
        async_copy.global_to_shared(buffers.index(k % 2), _tile(a_ptr, k, layout))


@gluon.jit
def _move(buffers, bars, a_desc, k, damage: gl.constexpr):
    """As _fetch, by the tensor mover."""
    tdm.async_load(a_desc, [k * ROWS, 0], buffers.index(k % 2), mbarrier=bars.index(k % 2))
    if damage == "late":
        tdm.async_load(a_desc, [k * ROWS, 0], buffers.index(k % 2))


@gluon.jit
def ring(a_ptr, out_ptr, rounds, by_tensor: gl.constexpr, threads_too: gl.constexpr, damage: gl.constexpr):
    """out = a, by way of two buffers that are filled a round ahead; waves read what other waves have copied.

    threads_too: each thread arrives as well, and waits for the phase that it found.
    """
    read: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 4], [1, 0])
    held: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [ROWS, COLUMNS], [1, 0])
    desc = tdm.make_tensor_descriptor(
        base=a_ptr, shape=(rounds * ROWS, COLUMNS), strides=(COLUMNS, 1), block_shape=(ROWS, COLUMNS), layout=held
    )
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    buffers = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [2, ROWS, COLUMNS], held)
    for b in gl.static_range(2):
        mbarrier.init(bars.index(b), count=(4 if by_tensor else 128) + threads_too * 128)
    for k in range(rounds + 1):
        if k < rounds:
            if by_tensor:
                _move(buffers, bars, desc, k, damage)
            else:
                _fetch(buffers, bars, a_ptr, k, damage)
        if k > 0:
            bar = bars.index((k - 1) % 2)
            phase = (k - 1) // 2 & 1
            if damage == "phase":
                phase = phase ^ 1
            if threads_too:
                phase = mbarrier.arrive(bar)
            if damage != "wait":
                mbarrier.wait(bar, phase)
            gl.store(_tile(out_ptr, k - 1, read), buffers.index((k - 1) % 2).load(read))


@gluon.jit
def send(a_ptr, out_ptr, rounds, by_tensor: gl.constexpr, damage: gl.constexpr):
    """out = a, by copies from one buffer, which is overwritten when they have arrived."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    held: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [ROWS, COLUMNS], [1, 0])
    desc = tdm.make_tensor_descriptor(
        base=out_ptr, shape=(rounds * ROWS, COLUMNS), strides=(COLUMNS, 1), block_shape=(ROWS, COLUMNS), layout=held
    )
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    buffer = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [ROWS, COLUMNS], held)
    mbarrier.init(bar, count=4 if by_tensor else 128)
    for k in range(rounds):
        buffer.store(gl.load(_tile(a_ptr, k, layout)))
        if by_tensor:
            tdm.async_store(desc, [k * ROWS, 0], buffer, mbarrier=bar)
        else:
            async_copy.shared_to_global(_tile(out_ptr, k, layout), buffer)
            async_copy.mbarrier_arrive(bar)
        if damage != "wait":
            mbarrier.wait(bar, k & 1)
