"""Kernels whose waves wait for each other at barriers in LDS (CDNA 5)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd.cdna5 import mbarrier


@gluon.jit
def pass_on(out_ptr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    swapped: gl.constexpr = gl.DistributedLinearLayout([], [[1], [2], [4], [8], [16]], [[64], [32]], [], [128])
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    held = gl.allocate_shared_memory(gl.int32, [4, 128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    mbarrier.init(bar, count=128)
    lane = gl.arange(0, 128, layout=layout)
    for k in gl.static_range(3):
        held.index(k).store(lane + 1000 * k)
        mbarrier.arrive(bar, count=1)
        mbarrier.wait(bar, k % 2)
        gl.store(out_ptr + 128 * k + gl.arange(0, 128, layout=swapped), held.index(k).load(swapped))


@gluon.jit
def _consume(held, ready, empty, out_ptr, rounds: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    for k in range(rounds):
        mbarrier.wait(ready, k & 1)
        gl.store(out_ptr + 128 * k + gl.arange(0, 128, layout=layout), held.load(layout))
        mbarrier.arrive(empty, count=1)


@gluon.jit
def _produce(held, ready, empty, rounds: gl.constexpr):
    lane = gl.arange(0, 128, layout=gl.BlockedLayout([2], [32], [2], [0]))
    for k in range(rounds):
        mbarrier.wait(empty, k & 1 ^ 1)
        held.store(3 * lane + 1000 * k)
        mbarrier.arrive(ready, count=1)


@gluon.jit
def hand_over(out_ptr, rounds: gl.constexpr):
    held = gl.allocate_shared_memory(gl.int32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=64)
    mbarrier.init(empty, count=128)
    gl.warp_specialize(
        [(_consume, (held, ready, empty, out_ptr, rounds)), (_produce, (held, ready, empty, rounds))], [2]
    )
