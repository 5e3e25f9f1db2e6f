"""Which lane of CDNA holds what of a tile on its way to LDS, and where tiles lie in LDS."""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon import language as gl

from ...gpu import Gpu
from ...isa.lds_banks import BANK_BYTES, banks_of, lanes_at_once
from .config_mfma import SWIZZLED_ROWS, MfmaConfig

WAVE = 64
VECTOR_BYTES = 16  #: of a lane's load from memory, and of its read of a fragment
STORE_BYTES = 4  #: of a lane's store to LDS, at least, of an operand that is contiguous along its rows

#: LDS banks -> bytes of a row -> {bit of the row: bits of the LDS offset that it flips}. A fragment is 16 rows of 64
#: bytes; the lanes that LDS serves together read 16 bytes from each of 8 rows (64 banks: 16). Bits 1 to 8 of the row
#: put these into different banks, bits 4 to 64 the stores of a turned tile, whose lanes are as many rows apart.
FLIPS = {
    32: {64: {2: 16, 4: 32, 8: 16, 16: 64, 32: 32}, 128: {1: 16, 2: 32, 4: 64, 8: 16, 16: 32, 32: 64, 64: 16}},
    64: {
        64: {4: 32, 8: 128 + 48, 16: 64, 32: 128, 64: 32},
        128: {2: 64, 4: 32, 8: 128 + 48, 16: 64, 32: 128, 64: 32},
    },
}
assert all(tuple(flips) == SWIZZLED_ROWS for flips in FLIPS.values())


def _bits(size: int) -> list[int]:
    """The bits of an index into an axis of `size` elements, a power of two."""
    return [1 << bit for bit in range(size.bit_length() - 1)]


def _flips(row_bytes: int, gpu: Gpu) -> dict[int, int] | None:
    return FLIPS[banks_of(gpu).count].get(row_bytes)


def reads_vectors(config: MfmaConfig, size: int, gpu: Gpu) -> bool:
    """Whether a lane reads 16 bytes of a fragment at a time: its share of several matrix instructions."""
    return _flips(config.block_k * size, gpu) is not None


def shared_layout(rows: int, config: MfmaConfig, size: int, gpu: Gpu) -> Any:
    """Where the [rows, block_k] tile lies in LDS, K contiguous. size: bytes of an element there."""
    flips = _flips(config.block_k * size, gpu)
    if flips is None:
        padded: Any = gl.PaddedSharedLayout
        return padded.with_identity_for([[config.block_k, VECTOR_BYTES // size]], [rows, config.block_k], [1, 0])
    bases = [[0, k] for k in _bits(config.block_k)]
    bases += [[*divmod(row * config.block_k ^ flips.get(row, 0) // size, config.block_k)] for row in _bits(rows)]
    return gl.SharedLinearLayout(bases, alignment=VECTOR_BYTES)


def turned_layout(
    rows: int, config: MfmaConfig, stored: int, size: int, gpu: Gpu, *, reorder: bool = False
) -> gl.DistributedLinearLayout:
    """A lane loads up to 16 bytes along the rows of a [rows, block_k] tile, at each of a few neighbours along K.

    reorder: the same with these neighbours side by side, as they are stored. stored: bytes of an element in memory;
    size: in LDS.
    """
    row_bits, k_bits = _bits(rows), _bits(config.block_k)
    held = max(1, rows * config.block_k // (WAVE * config.num_warps))
    vector = min(VECTOR_BYTES // stored, max(1, held // max(1, STORE_BYTES // size)), rows)
    neighbours = min(held // vector, VECTOR_BYTES // size, config.block_k)
    across = [[row, 0] for row in row_bits if row < vector]
    along = [[0, k] for k in k_bits if k < neighbours]
    # The lanes that LDS serves together: all neighbours of 16 bytes, and what lies in other banks.
    banks = banks_of(gpu)
    together = lanes_at_once(neighbours * size, banks).bit_length() - 1
    inner = [[0, k] for k in k_bits if neighbours <= k < VECTOR_BYTES // size]
    outer = [[row, 0] for row in row_bits if row >= vector]
    outer += [[0, k] for k in k_bits if k >= max(neighbours, VECTOR_BYTES // size)]
    row_bytes = config.block_k * size
    flips = _flips(row_bytes, gpu) or {}
    first: list[list[int]] = []
    reached = {0}
    for row, k in outer:
        bank = ((row * row_bytes ^ flips.get(row, 0)) + k * size) % (BANK_BYTES * banks.count) // VECTOR_BYTES
        if bank not in reached and len(first) + len(inner) < together:
            first.append([row, k])
            reached |= {bank ^ other for other in reached}
    order = first + inner + [basis for basis in outer if basis not in first]
    lane_bits, wave_bits = WAVE.bit_length() - 1, config.num_warps.bit_length() - 1
    lanes, warps = order[:lane_bits], order[lane_bits : lane_bits + wave_bits]
    registers = (along + across if reorder else across + along) + order[lane_bits + wave_bits :]
    lanes += [[0, 0]] * (lane_bits - len(lanes))
    warps += [[0, 0]] * (wave_bits - len(warps))
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [rows, config.block_k])
