"""Which wave of its workgroup a wave is, as a scalar: branches on it give waves different work. AMD only."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.language import core


@builtin
def _local_id(axis, _semantic=None):
    """The work-item's number along an axis; Triton links AMD's device library, which has the function."""
    known = {(core.dtype("int32"),): ("__ockl_get_local_id", core.dtype("int64"))}
    return core.extern_elementwise("", "", [axis], known, is_pure=True, _semantic=_semantic)


@gluon.jit
def wave_number(WAVE: gl.constexpr):
    """The number of this wave, of WAVE lanes, in its workgroup: equal in all its lanes and in a scalar register.

    Triton takes scalars for equal in the whole workgroup. A branch on this one must hold no barrier, and nothing that
    exchanges data between waves.
    """
    wave = _local_id(gl.to_tensor(0)).to(gl.int32) // WAVE
    return gl.inline_asm_elementwise("v_readfirstlane_b32 $0, $1", "=s,v", [wave], dtype=gl.int32, is_pure=True, pack=1)
