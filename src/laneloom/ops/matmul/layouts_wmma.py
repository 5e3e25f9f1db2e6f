"""Which lane holds what of a tile on its way to LDS, and where tiles lie in LDS."""

from __future__ import annotations

from typing import Any

from triton.experimental.gluon import language as gl

from .config_wmma import ACROSS, VECTOR_BYTES, WmmaConfig

#: lds -> bytes of a row -> {bit of the row: bit of the LDS offset that it flips}, in bytes. "swizzled": a row's 16-byte
#: groups are permuted so that 8 rows (the lanes of one phase of a read) and the 8-row steps of a transposing store fall
#: on different banks. "xor": the seed's, each row's lowest bits on the number of its 16-byte group. Rows of 16 bytes
#: are dense: 8 of them are all banks.
SWIZZLES = {
    "swizzled": {16: {}, 32: {4: 16, 8: 32, 16: 64}, 64: {2: 16, 4: 32, 8: 64}, 128: {1: 16, 2: 32, 4: 64, 8: 64}},
    "xor": {16: {}, 32: {1: 16}, 64: {1: 16, 2: 32}, 128: {1: 16, 2: 32, 4: 64}},
}


def _bits(size: int) -> list[int]:
    """The bits of an index into an axis of `size` elements, a power of two."""
    return [1 << bit for bit in range(size.bit_length() - 1)]


def halves_interleaved(size: int, block_k: int, version: int) -> bool:
    """Whether K's steps 8 to 15 and 16 to 23 change places between memory and the fragments.

    A lane of RDNA 4 has 8 steps of K in a fragment: of 8-bit elements that is half of a 16-byte LDS access. With the
    places changed, the other half is what it has of the next fragment. A and B are changed alike: no sum is.
    """
    return version == 2 and size == 1 and block_k >= 32


def _step_of_k(k: int, interleaved: bool) -> int:
    """The fragments' name for step k of memory."""
    return {8: 16, 16: 8}.get(k, k) if interleaved else k


def load_layout(
    rows: int, config: WmmaConfig, along_k: bool, reorder: bool = False, size: int = 2, interleaved: bool = False,
    stored: int = 0,
) -> gl.DistributedLinearLayout:  # fmt: skip
    """Which lane holds what of a [rows, block_k] tile between its global loads and its LDS stores.

    Along K, a lane loads 16 bytes of a row. Across, by default, it loads 8 rows at each of up to 8 neighbours along
    K, and stores these neighbours together. transpose="scalar" has no neighbours, "gather" loads neighbours along K one
    by one, and "shuffle" loads 8 rows and stores 8 neighbours along K, which it has from 7 other lanes. The lanes that
    LDS serves at once fall on different banks. `reorder` gives what is stored: registers in that order, and K by the
    fragments' names. size: bytes of an element in LDS; stored: in memory, if that differs.
    """
    row_bits, k_bits = _bits(rows), _bits(config.block_k)
    held = rows * config.block_k // (32 * config.loaders)
    widest = VECTOR_BYTES // size
    # Two stores of neighbours along K would meet on the banks of padded rows.
    if along_k and stored and config.lds != "padded":
        vector = min(VECTOR_BYTES // stored, held)
    else:
        vector = min(widest if along_k or config.transpose == "gather" else ACROSS, held)
    turns = False
    if along_k:
        registers = [[0, k] for k in k_bits if k < vector]
        lanes = [[0, k] for k in k_bits if k >= vector]
        # Padded rows that are neighbours overlap in their banks; rows as far apart as a row has 16-byte groups do not.
        apart = max(1, config.block_k // widest) if config.lds == "padded" else 1
        first = [bit for bit in row_bits if bit >= apart][: max(0, 3 - len(lanes))]
        rest = [[bit, 0] for bit in first + [bit for bit in row_bits if bit not in first]]
    elif config.transpose == "gather":
        registers = [[0, k] for k in k_bits if k < vector]
        lanes = [[row, 0] for row in row_bits[:5]]
        rest = [[row, 0] for row in row_bits[5:]] + [[0, k] for k in k_bits if k >= vector]
    elif config.transpose == "shuffle":
        few = [bit for bit in _bits(ACROSS) if bit < vector]
        kept, passed = ([[bit, 0] for bit in few], [[0, bit] for bit in few])
        registers, lanes = (passed, kept) if reorder else (kept, passed)
        rest = [[row, 0] for row in row_bits if row >= vector] + [[0, k] for k in k_bits if k >= vector]
    else:
        turns = True
        neighbours = 1 if config.transpose == "scalar" else min(ACROSS, held // vector)
        registers = [[row, 0] for row in row_bits if row < vector] + [[0, k] for k in k_bits if k < neighbours]
        across = [[row, 0] for row in row_bits if row >= vector]
        along = [[0, k] for k in k_bits if k >= neighbours]
        if config.lds == "padded":  # 8 blocks of 8 rows are 128 bytes of global memory and fill the banks
            lanes, rest = across[:3], along + across[3:]
        else:  # K fills half of the banks, and the swizzle puts the next block of 8 rows into the other half
            lanes = [basis for basis in along if basis[1] * size < 64]
            rest = across + [basis for basis in along if basis[1] * size >= 64]
    lanes, rest = lanes + rest[: 5 - len(lanes)], rest[max(0, 5 - len(lanes)) :]
    lanes, rest = lanes[:5], lanes[5:] + rest
    wave_bits = config.loaders.bit_length() - 1
    registers += rest[wave_bits:]
    waves = rest[:wave_bits] + [[0, 0]] * ((config.num_warps // config.loaders).bit_length() - 1)
    if reorder:
        if turns:
            registers.sort(key=lambda basis: basis[1] == 0)
        registers, lanes, waves = (
            [[row, _step_of_k(k, interleaved)] for row, k in bases] for bases in (registers, lanes, waves)
        )
    return gl.DistributedLinearLayout(registers, lanes, waves, [], [rows, config.block_k])


def shared_layout(rows: int, config: WmmaConfig, along_k: bool, size: int = 2, interleaved: bool = False) -> Any:
    """Where the [rows, block_k] tile lies in LDS, K contiguous; K by the fragments' names."""
    widest = VECTOR_BYTES // size
    if config.lds == "padded":
        pads = [[config.block_k, widest]]
        if not along_k and config.transpose == "registers":
            # a transposing store steps by 8 rows, which one pad a row would put on the same bank
            pads.append([ACROSS * config.block_k, widest * max(1, 64 // rows)])
        padded: Any = gl.PaddedSharedLayout
        return padded.with_identity_for(pads, [rows, config.block_k], [1, 0])
    flips = SWIZZLES[config.lds][config.block_k * size]
    bases = [[0, _step_of_k(k, interleaved)] for k in _bits(config.block_k)]
    for row in _bits(rows):
        flipped_row, k = divmod(row * config.block_k ^ flips.get(row, 0) // size, config.block_k)
        bases.append([flipped_row, _step_of_k(k, interleaved)])
    return gl.SharedLinearLayout(bases, alignment=16)


def vector_layouts(rows: int, config: WmmaConfig) -> tuple[Any, dict[str, Any]]:
    """Of `device.wide_tiles`: which lane of half the waves holds which vectors of a tile, and the same as [rows,
    block_k], by the operand's major, in the order of the stores.

    A lane has 8 vectors: 8 neighbours along K of a block of 8 rows, or 8 rows 16 apart. The lanes that LDS serves at
    once are all groups of 8 along K and two blocks of 8 rows, or two rows.
    """
    groups, vectors = rows // ACROSS, rows * config.block_k // ACROSS
    bits = _bits(vectors)
    held = [bit for bit in bits if groups <= bit < ACROSS * groups]
    rest = [bit for bit in bits if bit >= ACROSS * groups] + [bit for bit in bits if bit < groups]
    lanes, waves = rest[:5], rest[5:]

    def layout(place: Any, elements: list[list[int]], shape: list[int], last: bool) -> Any:
        both = [elements, [place(bit) for bit in held]]
        registers = [*both[1], *both[0]] if last else [*both[0], *both[1]]
        spread = [[place(bit) for bit in bits] for bits in (lanes, waves)]
        return gl.DistributedLinearLayout(registers, spread[0], [*spread[1], [0, 0]], [], shape)

    def along(v: int) -> list[int]:
        return [v % rows, v // rows * ACROSS]

    def across(v: int) -> list[int]:
        return [v % groups * ACROSS, v // groups]

    eight, shape = _bits(ACROSS), [rows, config.block_k]
    stores = {
        "k": layout(along, [[0, e] for e in eight], shape, last=False),
        "row": layout(across, [[e, 0] for e in eight], shape, last=True),
    }
    return layout(lambda v: [v, 0], [[0, e] for e in eight], [vectors, ACROSS], last=False), stores
