"""Which part of which shared tile a program of stream-K makes: `ops/matmul/stream_k.py`, which says why, in Gluon."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def stream_piece(program, steps, shared, workers, copies, inverse):
    """A program's shared tile, the first K-tile of it that it makes, the first that it does not, and its slot."""
    units = shared * steps
    slot = program
    first = program * units // workers
    tile = first // steps
    end = gl.minimum((program + 1) * units // workers, (tile + 1) * steps)
    if program >= workers:
        cycle = shared // copies
        second = program - workers
        tile = (second // copies + 1) * inverse % cycle + second % copies * cycle
        slot = workers + tile
        first = tile * steps
        end = (tile * workers // shared + 1) * units // workers
    return tile, first - tile * steps, end - tile * steps, slot


@gluon.jit
def stream_parts(tile, steps, shared, workers):
    """Of the shared tile with this number: the slot of its first part, and from where to where those of its others
    are.
    """
    units = shared * steps
    unit = tile * steps
    first = ((unit + 1) * workers - 1) // units
    last = ((unit + steps) * workers - 1) // units
    begins = gl.where(first * units // workers == unit, first, workers + tile)
    return begins, first + 1, last + 1
