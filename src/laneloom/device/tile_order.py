"""The order in which programs visit the tiles of a matrix: maps from a program's number to its tile.

Each is a bijection from 0 .. tiles_m * tiles_n - 1 to (tile_m, tile_n) on every grid; `ops/matmul/tile_orders.py` says
what each is for.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def grouped_tile(program, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Column by column through bands of GROUP rows of tiles; the last band is as tall as what is left."""
    per_band = GROUP * tiles_n
    first_m = (program // per_band) * GROUP
    height = gl.minimum(tiles_m - first_m, GROUP)
    within = program % per_band
    return first_m + within % height, within // height


@gluon.jit
def chiplet_program(program, programs, CHIPLETS: gl.constexpr):
    """The program's number once each of CHIPLETS dies, which take programs in turn, has a stretch of its own."""
    die = program % CHIPLETS
    return die * (programs // CHIPLETS) + gl.minimum(die, programs % CHIPLETS) + program // CHIPLETS


@gluon.jit
def hilbert_tile(program, tiles_m, tiles_n):
    """Along a Hilbert curve that fits any rectangle: halves of long ones, else one part away, one along, one back."""
    # A rectangle goes `length` tiles in direction s and `breadth` in direction t from its corner (m, n).
    wide = (tiles_n >= tiles_m).to(gl.int32)
    length = gl.maximum(tiles_m, tiles_n)
    breadth = gl.minimum(tiles_m, tiles_n)
    s_m = 1 - wide
    s_n = wide
    t_m = wide
    t_n = 1 - wide
    m = program * 0
    n = program * 0
    while (length > 1) & (breadth > 1):
        half = length // 2
        side = breadth // 2
        if 2 * length > 3 * breadth:
            if length > 2:
                half += half % 2
            if program < half * breadth:
                length = half
            else:
                program -= half * breadth
                m += s_m * half
                n += s_n * half
                length -= half
        else:
            if breadth > 2:
                side += side % 2
            along = side * half + length * (breadth - side)
            if (program >= side * half) & (program < along):
                program -= side * half
                m += t_m * side
                n += t_n * side
                breadth -= side
            else:
                sign = gl.to_tensor(1)
                if program >= along:
                    program -= along
                    m += s_m * (length - 1) + t_m * (side - 1)
                    n += s_n * (length - 1) + t_n * (side - 1)
                    half = length - half
                    sign = gl.to_tensor(-1)
                old_m = s_m
                old_n = s_n
                s_m = sign * t_m
                s_n = sign * t_n
                t_m = sign * old_m
                t_n = sign * old_n
                length = side
                breadth = half
    if breadth > 1:
        s_m = t_m
        s_n = t_n
    return m + s_m * program, n + s_n * program


@gluon.jit
def tile_of(program, tiles_m, tiles_n, ORDER: gl.constexpr, GROUP: gl.constexpr, CHIPLETS: gl.constexpr):
    """The tile that a program makes under one of the named orders."""
    if ORDER == "row":
        return program // tiles_n, program % tiles_n
    elif ORDER == "column":
        return program % tiles_m, program // tiles_m
    elif ORDER == "snake":
        m = program // tiles_n
        n = program % tiles_n
        return m, gl.where(m % 2 == 1, tiles_n - 1 - n, n)
    elif ORDER == "chunked":
        n, m = grouped_tile(program, tiles_n, tiles_m, GROUP)
        return m, n
    elif ORDER == "hilbert":
        return hilbert_tile(program, tiles_m, tiles_n)
    elif ORDER == "chiplet":
        return grouped_tile(chiplet_program(program, tiles_m * tiles_n, CHIPLETS), tiles_m, tiles_n, GROUP)
    else:
        gl.static_assert(ORDER == "grouped")
        return grouped_tile(program, tiles_m, tiles_n, GROUP)
