"""Which lane holds what of a tile, and the exchange of blocks between lanes as machine code."""

from __future__ import annotations

from functools import cache
from typing import Any

from triton.experimental.gluon import language as gl

from ...gpu import Gpu
from .config import TilesConfig
from .problem import MAX_VECTOR_BYTES, TransposeProblem

_ROW_BYTES = 128  #: that neighbouring lanes cover of a row before they go on to the next


def _bits(size: int) -> list[int]:
    return [1 << bit for bit in range(size.bit_length() - 1)]


def tile_layout(
    problem: TransposeProblem, config: TilesConfig, gpu: Gpu, fast: str, vector: int, across: int
) -> gl.DistributedLinearLayout:
    """A lane holds `vector` neighbours along axis `fast` of `across` neighbours along the other, lanes go on along it.

    With vector and across exchanged between load and store, a lane's elements on either side share a block, so that
    LDS is written and read 16 bytes at a time.
    """
    axis = {"b": 0, "r": 1, "c": 2}
    slow = "c" if fast == "r" else "r"
    sizes = {"b": config.block_b, "r": config.block_r, "c": config.block_c}
    left = {name: [(name, bit) for bit in _bits(size)] for name, size in sizes.items()}

    def take(name: str, count: int) -> list[tuple[str, int]]:
        taken, left[name] = left[name][:count], left[name][count:]
        return taken

    lane_bits, warp_bits = gpu.wave.bit_length() - 1, config.num_warps.bit_length() - 1
    held_bits = max(0, sum(map(len, left.values())) - lane_bits - warp_bits)
    if config.through == "lanes":
        block = (MAX_VECTOR_BYTES // problem.element_bytes).bit_length() - 1
        registers = take(fast, block)
        lanes = take(slow, block)
    else:
        registers = take(fast, min(held_bits, vector.bit_length() - 1))
        registers += take(slow, min(held_bits - len(registers), across.bit_length() - 1))
        lanes = []
    row = max(1, _ROW_BYTES // (problem.element_bytes * vector)).bit_length() - 1
    lanes += take(fast, min(row, lane_bits - len(lanes)))
    rest = left[slow] + left[fast] + left["b"]
    lanes, rest = lanes + rest[: lane_bits - len(lanes)], rest[lane_bits - len(lanes) :]
    more = held_bits - len(registers)
    held, warps = rest[: max(0, more)], rest[max(0, more) :]
    registers += held
    if gpu.vendor == "nvidia" and all(name == "b" for name, _ in warps):
        lanes = _told_apart(lanes)

    def bases(words: list[tuple[str, int]], count: int) -> list[list[int]]:
        found = [[bit if axis[name] == n else 0 for n in range(3)] for name, bit in words]
        return found + [[0, 0, 0]] * (count - len(found))

    return gl.DistributedLinearLayout(
        bases(registers, 0), bases(lanes, lane_bits), bases(warps, warp_bits), [],
        [config.block_b, config.block_r, config.block_c],
    )  # fmt: skip


def _told_apart(lanes: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """`lanes` in an order where no axis has every bit of a lane's number that it takes at its own place.

    Where one has, such as c = lane & 28, and the other's are shifted, r = (lane & 3) << 2, and no warp's number is in
    either, Triton 3.6 makes both of one 64-bit product, and takes a part of the lane's number for r: wrong addresses.
    Which lane has what of a tile is all the same to memory.
    """
    for axis in ("r", "c"):
        places = [n for n, (name, bit) in enumerate(lanes) if name == axis]
        if 0 < len(places) < len(lanes) and all(lanes[n][1] == 1 << n for n in places):
            turned = list(lanes)
            for n, other in zip(places, reversed(places), strict=True):
                turned[n] = lanes[other]
            return turned if len(places) > 1 else lanes[1:] + lanes[:1]
    return lanes


@cache
def lane_exchange(element_bytes: int, row_bytes: int = MAX_VECTOR_BYTES, halves: bool = False) -> tuple[str, str]:
    """Instructions and constraints that transpose blocks, each lane with `row_bytes` of one of its block's rows.

    Bit n of an element's number in its lane changes places with bit n of the lane. Where it is a bit of the register's
    number, a lane keeps the half of its registers that stays and takes the other from its partner (`row_xmask`); where
    it lies inside registers, a byte permutation joins own and partner's bytes. Elements of 8 bytes go as two halves, of
    which this is the exchange of 2 x 2. With `halves`, lanes 8 to 15 change places with lanes 16 to 23 at the end: four
    blocks of 8 x 8 are one of 16 x 16, as RDNA 4's fragments are.
    """
    registers = row_bytes // 4 if element_bytes < 8 else 2
    inside = {1: 2, 2: 1}.get(element_bytes, 0)  # bits of an element's number that lie inside a register
    width = (registers.bit_length() - 1) + inside
    out, spare = [f"${r}" for r in range(registers)], [f"${registers + r}" for r in range(registers)]
    selector = f"${2 * registers}"
    source = [f"${3 * registers + r}" for r in range(registers)]
    lines = []
    whole = list(range(width - 1, inside - 1, -1))
    for n, bit in enumerate(whole):
        target = out if (len(whole) - n) % 2 else spare
        flip = 1 << (bit - inside)
        for half in (0, 1):
            mask = sum(1 << lane for lane in range(32) if lane >> bit & 1 == half)
            lines.append(f"s_mov_b32 vcc_lo, {mask:#010x}")
            lines += [
                f"v_cndmask_b32_dpp {target[r]}, {source[r ^ flip]}, {source[r]}, vcc_lo row_xmask:{1 << bit} "
                "row_mask:0xf bank_mask:0xf"
                for r in range(registers) if bool(r & flip) == bool(half)
            ]  # fmt: skip
        source = target
    joins = {2: {0: (0x05040100, 0x03020706)}, 1: {1: (0x05040100, 0x03020706), 0: (0x06020400, 0x03070105)}}
    for bit, (lower, upper) in joins.get(element_bytes, {}).items():
        mask = sum(1 << lane for lane in range(32) if lane >> bit & 1)
        lines.append(f"s_mov_b32 vcc_lo, {mask:#010x}")
        lines.append(f"v_mov_b32 {selector}, {upper:#010x}")
        lines.append(f"v_cndmask_b32 {selector}, {lower:#010x}, {selector}, vcc_lo")
        lines += [
            f"v_mov_b32_dpp {spare[r]}, {out[r]} row_xmask:{1 << bit} row_mask:0xf bank_mask:0xf"
            for r in range(registers)
        ]
        lines += [f"v_perm_b32 {out[r]}, {spare[r]}, {out[r]}, {selector}" for r in range(registers)]
    if halves:
        # Every lane reads the one of the other row of 16 whose number differs in bit 3; half of them take it.
        lines += ["s_mov_b32 vcc_lo, 0xfedcba98", "s_mov_b32 vcc_hi, 0x76543210"]
        lines += [f"v_permlanex16_b32 {spare[r]}, {out[r]}, vcc_lo, vcc_hi" for r in range(registers)]
        lines.append("s_mov_b32 vcc_lo, 0x00ffff00")
        lines += [f"v_cndmask_b32 {out[r]}, {out[r]}, {spare[r]}, vcc_lo" for r in range(registers)]
    constraints = ["=&v"] * (3 * registers) + ["v"] * registers + ["~{vcc}"]
    return "\n\t".join(lines), ",".join(constraints)


@cache
def tiles_constants(problem: TransposeProblem, config: TilesConfig, gpu: Gpu) -> dict[str, Any]:
    """The constexprs of kernels/tiles.py."""
    x_fast, y_fast = problem.fast_axis(problem.x), problem.fast_axis(problem.y)
    x_vector, y_vector = problem.vector(problem.x), problem.vector(problem.y)
    turned = x_fast != y_fast
    lanes = turned and config.through == "lanes"
    load = tile_layout(problem, config, gpu, x_fast, x_vector, y_vector if turned else 1)
    store = tile_layout(problem, config, gpu, y_fast, y_vector, x_vector) if turned else load
    code, constraints = lane_exchange(problem.element_bytes)
    sizes = (config.block_b, config.block_r, config.block_c)
    extents = (problem.batch[1], problem.rows, problem.columns)
    wide = any(
        sum(min(size, n) * s for size, n, s in zip(sizes, extents, m.strides[1:], strict=True)) * problem.element_bytes
        >= 1 << 31
        for m in (problem.x, problem.y)
    )
    return {
        "BLOCK_B": config.block_b,
        "BLOCK_R": config.block_r,
        "BLOCK_C": config.block_c,
        "X_FAST": x_fast,
        "Y_FAST": y_fast,
        "X_VEC": x_vector,
        "Y_VEC": y_vector,
        "R_VEC": known_divisor(problem.rows, config.block_r),
        "C_VEC": known_divisor(problem.columns, config.block_c),
        "WIDE": wide,
        "LOAD": load,
        "STORE": None if lanes or not turned else store,
        "EXCHANGE": code if lanes else None,
        "CONSTRAINTS": constraints,
        "BLOCK": MAX_VECTOR_BYTES // problem.element_bytes,
        "PDL": gpu.vendor == "nvidia",  # programs take their places while the kernel ahead ends
    }


def known_divisor(extent: int, block: int) -> int:
    """A power of two that divides what exists of every tile along an axis: masks are uniform over so many."""
    together = extent | block | MAX_VECTOR_BYTES
    return together & -together
