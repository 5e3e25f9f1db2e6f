"""The orders in which programs visit the tiles of C, in Python: what `plan` reckons with and tests hold the kernels to.

Each is a bijection from 0 .. tiles_m * tiles_n - 1 to the tiles of every grid. `device/tile_order.py` says the same in
Gluon. Programs that run at the same time have neighbouring numbers: the closer their tiles, the fewer rows of A and
columns of B they need from memory.
"""

from __future__ import annotations

from collections.abc import Callable

CHIPLETS = 8  #: dies over which "chiplet" deals programs: the XCDs of an MI300X

Order = Callable[[int, int, int, int], tuple[int, int]]


def row(program: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Row after row."""
    return program // tiles_n, program % tiles_n


def column(program: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Column after column."""
    return program % tiles_m, program // tiles_m


def snake(program: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Row after row, every other one backwards: the last columns of B are used again at once."""
    m, n = divmod(program, tiles_n)
    return m, tiles_n - 1 - n if m % 2 else n


def grouped(program: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Column by column through bands of `group` rows; the last band is as tall as what is left."""
    band, within = divmod(program, group * tiles_n)
    height = min(tiles_m - band * group, group)
    return band * group + within % height, within // height


def chunked(program: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Row by row through chunks of `group` columns; the last chunk is as wide as what is left."""
    n, m = grouped(program, tiles_n, tiles_m, group)
    return m, n


def chiplet(program: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Grouped on each chiplet by itself: hardware deals programs out in turn, each chiplet has its own L2."""
    die, place = program % CHIPLETS, program // CHIPLETS
    share, more = divmod(tiles_m * tiles_n, CHIPLETS)
    return grouped(die * share + min(die, more) + place, tiles_m, tiles_n, group)


def hilbert(program: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Along a Hilbert curve, generalised to any rectangle: neighbours in number are neighbours on the grid.

    A rectangle is walked from a corner along its long side. A long one is cut in two across; any other one into a part
    walked away from the long side, a part along it, and a part walked back. Only odd sides make
    a diagonal step.
    """
    m = n = 0
    # The rectangle spans `along` from (m, n) in its long direction and `across` in the other, each with a sign.
    (along_m, along_n), (across_m, across_n) = ((0, tiles_n), (tiles_m, 0)) if tiles_n >= tiles_m else (
        (tiles_m, 0), (0, tiles_n))  # fmt: skip
    while True:
        length, breadth = abs(along_m + along_n), abs(across_m + across_n)
        step_m, step_n = _sign(along_m), _sign(along_n)
        turn_m, turn_n = _sign(across_m), _sign(across_n)
        if breadth == 1:
            return m + step_m * program, n + step_n * program
        if length == 1:
            return m + turn_m * program, n + turn_n * program
        half, side = length // 2, breadth // 2
        if 2 * length > 3 * breadth:
            half += half % 2 if length > 2 else 0
            if program < half * breadth:
                along_m, along_n = step_m * half, step_n * half
            else:
                program -= half * breadth
                m, n = m + step_m * half, n + step_n * half
                along_m, along_n = step_m * (length - half), step_n * (length - half)
            continue
        side += side % 2 if breadth > 2 else 0
        if program < side * half:
            along_m, along_n, across_m, across_n = turn_m * side, turn_n * side, step_m * half, step_n * half
        elif program < side * half + length * (breadth - side):
            program -= side * half
            m, n = m + turn_m * side, n + turn_n * side
            across_m, across_n = turn_m * (breadth - side), turn_n * (breadth - side)
        else:
            program -= side * half + length * (breadth - side)
            m += step_m * (length - 1) + turn_m * (side - 1)
            n += step_n * (length - 1) + turn_n * (side - 1)
            along_m, along_n = -turn_m * side, -turn_n * side
            across_m, across_n = -step_m * (length - half), -step_n * (length - half)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


ORDERS: dict[str, Order] = {
    "grouped": grouped, "row": row, "column": column, "chunked": chunked, "snake": snake, "hilbert": hilbert,
    "chiplet": chiplet,
}  # fmt: skip


def footprint(order: str, tiles_m: int, tiles_n: int, group: int, programs: int) -> tuple[int, int]:
    """How many rows and how many columns of tiles the first `programs` programs need."""
    visited = [ORDERS[order](p, tiles_m, tiles_n, group) for p in range(min(programs, tiles_m * tiles_n))]
    return len({m for m, _ in visited}), len({n for _, n in visited})
