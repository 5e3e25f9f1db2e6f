"""Which lane holds what on the way to LDS, where tiles lie in LDS, and the constexprs that WMMA kernels share."""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import Any

from triton.experimental.gluon import language as gl

from ...codegen.versions import wmma_layout
from ...gpu import Gpu
from .config_wmma import VECTOR, WmmaConfig, needs_wide_offsets
from .problem import DTYPE_BYTES, MatmulProblem
from .tile_orders import CHIPLETS

MAX_PROGRAMS = 1 << 24  #: of one launch: a grid of AMD's holds fewer than 2**32 threads

#: lds -> block_k -> {bit of the row: bit of the LDS offset that it flips}, in elements. "swizzled": a row's 16-byte
#: groups are permuted so that 8 rows (the lanes of one phase of a read) and the 8-row steps of a transposing store fall
#: on different banks. "xor": the seed's, each row's lowest bits on the number of its 16-byte group.
SWIZZLES = {
    "swizzled": {16: {4: 8, 8: 16, 16: 32}, 32: {2: 8, 4: 16, 8: 32}, 64: {1: 8, 2: 16, 4: 32, 8: 32}},
    "xor": {16: {1: 8}, 32: {1: 8, 2: 16}, 64: {1: 8, 2: 16, 4: 32}},
}

#: The kernels' arguments that are integers, in their order; the values come from `runtime_arguments`.
SIZES = [
    "M", "N", "K", "stride_ao", "stride_ai", "stride_am", "stride_ak", "stride_bo", "stride_bi", "stride_bk",
    "stride_bn", "stride_co", "stride_ci", "stride_cm", "stride_cn", "stride_do", "stride_di", "stride_dm",
    "stride_dn", "stride_bias", "batch_inner", "first_program",
]  # fmt: skip
POINTERS = ["a_ptr", "b_ptr", "c_ptr", "add_ptr", "bias_ptr", "scale_a_ptr", "scale_b_ptr"]
#: Not specialised on values: what matters about them are constexprs, so that a new size compiles nothing.
RUNTIME = [*POINTERS, "alpha", "beta", *SIZES]


def _bits(size: int) -> list[int]:
    """The bits of an index into an axis of `size` elements, a power of two."""
    return [1 << bit for bit in range(size.bit_length() - 1)]


def load_layout(rows: int, config: WmmaConfig, along_k: bool, reorder: bool = False) -> gl.DistributedLinearLayout:
    """Which lane holds what of a [rows, block_k] tile between its global loads and its LDS stores.

    Along K, a lane loads 8 elements of a row. Across, by default, it loads 8 rows at each of up to 8 neighbours along
    K, and stores these neighbours together: `reorder` gives its registers in that order. transpose="scalar" has no
    neighbours, "gather" loads neighbours along K one by one, and "shuffle" loads 8 rows and stores 8 neighbours along
    K, which it has from 7 other lanes. The lanes that LDS serves at once fall on different banks.
    """
    row_bits, k_bits = _bits(rows), _bits(config.block_k)
    held = rows * config.block_k // (32 * config.loaders)
    vector = min(VECTOR, held)
    if along_k:
        registers = [[0, k] for k in k_bits if k < vector]
        lanes = [[0, k] for k in k_bits if k >= vector]
        # Padded rows that are neighbours overlap in their banks; rows block_k / 8 apart do not.
        apart = config.block_k // VECTOR if config.lds == "padded" else 1
        first = [bit for bit in row_bits if bit >= apart][: max(0, 3 - len(lanes))]
        rest = [[bit, 0] for bit in first + [bit for bit in row_bits if bit not in first]]
    elif config.transpose == "gather":
        registers = [[0, k] for k in k_bits if k < vector]
        lanes = [[row, 0] for row in row_bits[:5]]
        rest = [[row, 0] for row in row_bits[5:]] + [[0, k] for k in k_bits if k >= vector]
    elif config.transpose == "shuffle":
        few = [bit for bit in _bits(VECTOR) if bit < vector]
        kept, passed = ([[bit, 0] for bit in few], [[0, bit] for bit in few])
        registers, lanes = (passed, kept) if reorder else (kept, passed)
        rest = [[row, 0] for row in row_bits if row >= vector] + [[0, k] for k in k_bits if k >= vector]
        reorder = False
    else:
        neighbours = 1 if config.transpose == "scalar" else min(VECTOR, held // vector)
        registers = [[row, 0] for row in row_bits if row < vector] + [[0, k] for k in k_bits if k < neighbours]
        across = [[row, 0] for row in row_bits if row >= vector]
        along = [[0, k] for k in k_bits if k >= neighbours]
        if config.lds == "padded":  # 8 blocks of 8 rows are 128 bytes of global memory and fill the banks
            lanes, rest = across[:3], along + across[3:]
        else:  # K fills half of the banks, and the swizzle puts the next block of 8 rows into the other half
            lanes = [basis for basis in along if basis[1] < 32]
            rest = across + [basis for basis in along if basis[1] >= 32]
    lanes, rest = lanes + rest[: 5 - len(lanes)], rest[max(0, 5 - len(lanes)) :]
    lanes, rest = lanes[:5], lanes[5:] + rest
    wave_bits = config.loaders.bit_length() - 1
    registers += rest[wave_bits:]
    waves = rest[:wave_bits] + [[0, 0]] * ((config.num_warps // config.loaders).bit_length() - 1)
    if reorder:
        registers.sort(key=lambda basis: basis[1] == 0)
    return gl.DistributedLinearLayout(registers, lanes, waves, [], [rows, config.block_k])


def shared_layout(rows: int, config: WmmaConfig, along_k: bool) -> Any:
    """Where the [rows, block_k] tile lies in LDS, K contiguous."""
    if config.lds == "padded":
        pads = [[config.block_k, VECTOR]]
        if not along_k and config.transpose == "registers":
            # a transposing store steps by 8 rows, which one pad a row would put on the same bank
            pads.append([VECTOR * config.block_k, VECTOR * max(1, 64 // rows)])
        padded: Any = gl.PaddedSharedLayout
        return padded.with_identity_for(pads, [rows, config.block_k], [1, 0])
    flips = SWIZZLES[config.lds][config.block_k]
    bases = [[0, k] for k in _bits(config.block_k)]
    bases += [list(divmod(row * config.block_k ^ flips.get(row, 0), config.block_k)) for row in _bits(rows)]
    return gl.SharedLinearLayout(bases, alignment=16)


def runtime_arguments(problem: MatmulProblem) -> dict[str, int]:
    """The kernels' integers, but for the number of the launch's first program."""
    epilogue = problem.epilogue
    d = epilogue.addend.strides if epilogue and epilogue.addend else (0, 0, 0, 0)
    bias = epilogue.bias[1] if epilogue and epilogue.bias else 0
    a, b, c = problem.a.strides, problem.b.strides, problem.out.strides
    values = (problem.m, problem.n, problem.k_stored, *a, *b, *c, *d, bias, problem.batch[1])
    return dict(zip(SIZES[:-1], values, strict=True))


def pointer_types(problem: MatmulProblem) -> dict[str, str | None]:
    """Triton's types of the arguments that are no integers; None for those that the epilogue does without."""
    epilogue = problem.epilogue
    adds, biased = bool(epilogue and epilogue.addend), bool(epilogue and epilogue.bias)
    return {
        "a_ptr": f"*{problem.dtype_a}",
        "b_ptr": f"*{problem.dtype_b}",
        "c_ptr": f"*{problem.dtype_out}",
        "add_ptr": f"*{epilogue.dtype_addend}" if epilogue and adds else None,
        "bias_ptr": f"*{epilogue.dtype_bias}" if epilogue and biased else None,
        "alpha": "fp32" if epilogue and epilogue.scaled else None,
        "beta": "fp32" if adds else None,
        "scale_a_ptr": "*fp32" if epilogue and epilogue.scale_a else None,
        "scale_b_ptr": "*fp32" if epilogue and epilogue.scale_b else None,
    }


def epilogue_pieces(problem: MatmulProblem, config: WmmaConfig) -> int:
    """In how many pieces of columns a tile is stored: whole tiles of every wave, at most 4.

    With an epilogue a piece has 32 sums a lane, which leaves registers for its terms; without one it is staged in no
    more LDS than the loop has.
    """
    if problem.epilogue:
        wanted = config.block_m * config.block_n // (32 * config.num_warps) / 32
    elif config.stores == "staged":
        wanted = config.block_m * config.block_n * DTYPE_BYTES[problem.dtype_out] / config.lds_bytes()
    else:
        wanted = 1
    most = min(4, config.block_n // (16 * config.waves_n))
    return next((pieces for pieces in (1, 2, 4) if wanted <= pieces <= most), most)


@cache
def constants(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> dict[str, Any]:
    """The constexprs that every WMMA kernel has."""
    version = 1 if gpu.major == 11 else 2
    a_major = {"n": "k", "t": "row", "x": "neither"}[problem.a.major]
    b_major = {"n": "row", "t": "k", "x": "neither"}[problem.b.major]
    a_along, b_along = a_major != "row", b_major != "row"
    vector_c = 16 // DTYPE_BYTES[problem.dtype_out]
    pieces = epilogue_pieces(problem, config)
    lanes_n = min(32, config.block_n // pieces // vector_c)
    # The mask at the end of K has to be whole vectors only where vectors lie along K.
    vector_k = max([1] + [v for v, along in ((problem.vector_a, a_along), (problem.vector_b, b_along)) if along])
    epilogue = problem.epilogue
    staged = gl.BlockedLayout([1, vector_c], [32 // lanes_n, lanes_n], [config.num_warps, 1], [1, 0])
    return {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "ORDER": config.order,
        "GROUP": config.group_m,
        "CHIPLETS": CHIPLETS,
        "BATCHED": problem.batches > 1,
        "WHOLE_K": problem.k % config.block_k == 0,
        "WIDE": needs_wide_offsets(problem, config),
        "A_MAJOR": a_major,
        "B_MAJOR": b_major,
        "C_CONTIGUOUS": problem.out.major == "n",
        "ADD_CONTIGUOUS": bool(epilogue and epilogue.addend and epilogue.addend.major == "n"),
        "A_VEC": problem.vector_a,
        "B_VEC": problem.vector_b,
        "C_VEC": problem.vector_out,
        "ADD_VEC": problem.vector_addend,
        "K_VEC": gcd(problem.k, vector_k),
        "SCALE_A": (epilogue.scale_a if epilogue else None) or "none",
        "SCALE_B": (epilogue.scale_b if epilogue else None) or "none",
        "BIAS_AXIS": epilogue.bias[0] if epilogue and epilogue.bias else "none",
        "ACTIVATION": (epilogue.activation if epilogue else None) or "none",
        "VERSION": version,
        "K_WIDTH": 16 if version == 1 else 8,
        "ACCUMULATOR": wmma_layout(version, config.num_warps // config.waves_n, config.waves_n, transposed=True),
        "A_LOAD": load_layout(config.block_m, config, a_along),
        "B_LOAD": load_layout(config.block_n, config, b_along),
        "A_STORE": load_layout(config.block_m, config, a_along, reorder=True),
        "B_STORE": load_layout(config.block_n, config, b_along, reorder=True),
        "C_STORE": staged if config.stores == "staged" else None,
        "C_PIECES": pieces,
        "N_VEC": max(problem.vector_out, problem.vector_addend),
        "A_SHARED": shared_layout(config.block_m, config, a_along),
        "B_SHARED": shared_layout(config.block_n, config, b_along),
    }


def programs(problem: MatmulProblem, config: WmmaConfig) -> int:
    """Workgroups: one for each tile of each product."""
    return problem.batches * -(-problem.m // config.block_m) * -(-problem.n // config.block_n)


def signature(problem: MatmulProblem) -> tuple[dict[str, str], dict[str, None]]:
    """Triton's types of a kernel's arguments, and those that are None."""
    types = pointer_types(problem)
    integers = runtime_arguments(problem) | {"first_program": 0}
    known = {name: kind for name, kind in types.items() if kind is not None}
    known |= {name: "i32" if value < 1 << 31 else "i64" for name, value in integers.items()}
    return known, {name: None for name, kind in types.items() if kind is None}


def facts(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the kernel, as sentences."""
    chosen = constants(problem, config, gpu)
    ways = {
        "registers": "transposed in registers on the way to LDS", "scalar": "transposed by stores of 2 bytes to LDS",
        "gather": "gathered along K", "shuffle": "transposed between lanes on the way to LDS",
    }  # fmt: skip
    lines = []
    for name, major, vector in (("A", chosen["A_MAJOR"], chosen["A_VEC"]), ("B", chosen["B_MAJOR"], chosen["B_VEC"])):
        along = {"k": "K", "row": "M" if name == "A" else "N", "neither": "no axis"}[major]
        rows = config.block_m if name == "A" else config.block_n
        held = 1 if major == "row" and config.transpose == "gather" else rows * config.block_k // 32 // config.loaders
        way = ways[config.transpose] if major == "row" else "stored to LDS as loaded"
        lines.append(f"{name} is contiguous along {along}: loads of {min(vector, held) * 2} bytes, {way}")
    stored = chosen["C_VEC"] * DTYPE_BYTES[problem.dtype_out]
    lines.append(f"C is stored {stored} bytes at a time" if config.stores == "staged" else "C is stored by its sums")
    if not chosen["WHOLE_K"]:
        lines.append(f"the last K-tile has {problem.k % config.block_k} of {config.block_k} columns and is masked")
    if chosen["WIDE"]:
        lines.append("offsets inside a tile need 64 bits")
    if problem.epilogue:
        lines.append(f"the sums become C in FP32 before their one rounding: {problem.epilogue.key.replace('+', ', ')}")
    count = "one buffer" if config.buffers == 1 else "two buffers"
    lines.append(f"LDS: {config.lds_bytes()} bytes in {count}, {config.lds}")
    return lines
