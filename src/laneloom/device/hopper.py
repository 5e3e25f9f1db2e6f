"""Gluon pieces that Hopper kernels share: tile order, ring positions, programmatic dependent launch.

Programmatic dependent launch (PDL): a kernel launched with it may start before the kernel ahead of it in the stream has
ended, so that its prologue hides behind that kernel's tail. It must touch no memory before `wait_for_predecessor`.
Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA, `griddepcontrol`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def wait_for_predecessor():
    """Return when every kernel ahead in the stream has ended and its writes can be seen. Immediate without PDL."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def release_successor():
    """Let the next kernel's programs start as soon as there is room for them beside this grid's."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def locate_tile(tile, tiles_m, tiles_n, GROUP_M: gl.constexpr):
    """Row and column of a tile when GROUP_M rows are walked down before each step to the right.

    The tiles that run at one time then share few rows of A and few columns of B, which stay in the L2.
    """
    group_size = GROUP_M * tiles_n
    first_m = (tile // group_size) * GROUP_M
    rows = gl.minimum(tiles_m - first_m, GROUP_M)
    within = tile % group_size
    return first_m + within % rows, within // rows


@gluon.jit
def start_of_tile(tile, BLOCK: gl.constexpr, SIZE, STEP: gl.constexpr):
    """First element of a tile along an axis of SIZE; the last tile is moved back, by multiples of STEP, to end inside.

    The copy engine takes 2.7 times as long for a row that is not there. What two tiles share, both write, with the same
    bits.
    """
    return gl.minimum(tile * BLOCK, gl.maximum(gl.cdiv(SIZE - BLOCK, STEP) * STEP, 0))


@gluon.jit
def advance_ring(stage, phase, STAGES: gl.constexpr):
    """The next stage of a ring of STAGES buffers, and the parity of its barriers, which flips at each turn."""
    wraps = stage + 1 == STAGES
    return gl.where(wraps, 0, stage + 1), gl.where(wraps, phase ^ 1, phase)
