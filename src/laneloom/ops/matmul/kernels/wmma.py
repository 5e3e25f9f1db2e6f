"""WMMA block GEMM: a workgroup's tiles of A and B go through LDS, twice buffered, while the next ones are on their way.

The general schedule of RDNA 3, 3.5 and 4 for fp16 and bf16: any size, any strides. Both tiles lie in LDS with K
contiguous, so that fragments are read 16 bytes at a time; an operand that is contiguous along M or N is transposed in
registers on the way. Layouts, what was tried and compiled figures: docs/matmul.md. Source of the fragment layouts:
AMD's RDNA 3 and RDNA 4 ISA guides, "Wave Matrix Multiply Accumulate".
"""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import cta_barrier, wmma_layout
from ....device.tile_order import grouped_tile
from ....gpu import Gpu
from ..plan_wmma import VECTOR, WmmaConfig, needs_wide_offsets
from ..problem import DTYPE_BYTES, MatmulProblem

MAX_PROGRAMS = 1 << 24  # of one launch: a grid of AMD's holds fewer than 2**32 threads

#: block_k -> {bit of the row: bit of the LDS offset that it flips}, in elements. A row's 16-byte groups are permuted so
#: that 8 rows (the lanes of one phase of a read) and the 8-row steps of a transposing store fall on different banks.
SWIZZLES = {16: {4: 8, 8: 16, 16: 32}, 32: {2: 8, 4: 16, 8: 32}, 64: {1: 8, 2: 16, 4: 32, 8: 32}}


def _bits(size: int) -> list[int]:
    """The bits of an index into an axis of `size` elements, a power of two."""
    return [1 << bit for bit in range(size.bit_length() - 1)]


def load_layout(rows: int, config: WmmaConfig, along_k: bool, reorder: bool = False) -> gl.DistributedLinearLayout:
    """Which lane holds what of a [rows, block_k] tile between its global loads and its LDS stores.

    Along K, a lane loads 8 elements of a row. Across, it loads 8 rows at each of up to 8 neighbours along K, and stores
    these neighbours together: `reorder` gives its registers in that order. The lanes that LDS serves at once fall on
    different banks.
    """
    row_bits, k_bits = _bits(rows), _bits(config.block_k)
    if along_k:
        registers = [[0, k] for k in k_bits[:3]]
        lanes = [[0, k] for k in k_bits[3:]]
        # Padded rows that are neighbours overlap in their banks; rows block_k / 8 apart do not.
        apart = config.block_k // VECTOR if config.lds == "padded" else 1
        first = [bit for bit in row_bits if bit >= apart][: 3 - len(lanes)]
        rest = [[bit, 0] for bit in first + [bit for bit in row_bits if bit not in first]]
    else:
        neighbours = min(VECTOR, rows * config.block_k // (32 * config.num_warps * VECTOR))
        registers = [[row, 0] for row in row_bits[:3]] + [[0, k] for k in k_bits if k < neighbours]
        across = [[row, 0] for row in row_bits[3:]]
        along = [[0, k] for k in k_bits if k >= neighbours]
        if config.lds == "padded":  # 8 blocks of 8 rows are 128 bytes of global memory and fill the banks
            lanes, rest = across[:3], along + across[3:]
        else:  # K fills half of the banks, and the swizzle puts the next block of 8 rows into the other half
            lanes = [basis for basis in along if basis[1] < 32]
            rest = across + [basis for basis in along if basis[1] >= 32]
    lanes, rest = lanes + rest[: 5 - len(lanes)], rest[5 - len(lanes) :]
    wave_bits = config.num_warps.bit_length() - 1
    registers += rest[wave_bits:]
    if reorder:
        registers.sort(key=lambda basis: basis[1] == 0)
    return gl.DistributedLinearLayout(registers, lanes, rest[:wave_bits], [], [rows, config.block_k])


def shared_layout(rows: int, config: WmmaConfig, along_k: bool) -> Any:
    """Where the [rows, block_k] tile lies in LDS, K contiguous."""
    if config.lds == "padded":
        pads = [[config.block_k, VECTOR]]
        if not along_k:  # a transposing store steps by 8 rows, which one pad a row would put on the same bank
            pads.append([VECTOR * config.block_k, VECTOR * max(1, 64 // rows)])
        return gl.PaddedSharedLayout.with_identity_for(pads, [rows, config.block_k], [1, 0])
    flips = SWIZZLES[config.block_k]
    bases = [[0, k] for k in _bits(config.block_k)]
    bases += [list(divmod(row * config.block_k ^ flips.get(row, 0), config.block_k)) for row in _bits(rows)]
    return gl.SharedLinearLayout(bases, alignment=16)


@gluon.jit
def load_fence(x):
    """x, through an empty instruction with a side effect: LLVM moves no memory access across it."""
    return gl.inline_asm_elementwise("; load fence $0 $1", "=s,0", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def schedule_fence(x):
    """x, through an empty instruction that LLVM's schedulers move nothing across, matrix instructions included.

    They never cross a write to EXEC: an output in the half of it that wave32 does not use is enough.
    """
    fenced, _ = gl.inline_asm_elementwise(
        "; schedule fence $0 $1 $2", "=s,={exec_hi},0", [x], dtype=(gl.int32, gl.int32), is_pure=False, pack=1
    )
    return fenced


@gluon.jit
def opaque(offsets):
    """`offsets`, computed by an unknown instruction here: LLVM cannot hoist 64-bit addresses made of them."""
    return gl.inline_asm_elementwise("; offset $0 $1", "=v,0", [offsets], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def opaque_halves(x):
    """x, each element through an empty instruction here: LLVM cannot merge it with its neighbour in a `d16_hi` load,
    which would wait for the neighbour's load before the matrix instructions.
    """
    bits = x.to(gl.int16, bitcast=True)
    bits = gl.inline_asm_elementwise("; half $0 $1", "=v,0", [bits], dtype=gl.int16, is_pure=False, pack=1)
    return bits.to(x.dtype, bitcast=True)


@gluon.jit
def tile_offsets(
    rows_left, stride_row, stride_k, ROWS: gl.constexpr, BLOCK_K: gl.constexpr, MAJOR: gl.constexpr,
    VEC: gl.constexpr, WIDE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Offsets of a [ROWS, BLOCK_K] tile along its two axes, in elements from its first one.

    Rows beyond the matrix read the tile's first vector of rows again; what they give is never stored.
    """
    offs_r = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    offs_k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, LAYOUT))
    offs_r = gl.where(offs_r < rows_left, offs_r, offs_r % (VEC if MAJOR == "row" else 1))
    if WIDE:
        offs_r = offs_r.to(gl.int64)
        offs_k = offs_k.to(gl.int64)
    if MAJOR != "row":
        offs_r = offs_r * stride_row
    if MAJOR != "k":
        offs_k = offs_k * stride_k
    return offs_r, offs_k


@gluon.jit
def tile_pointers(tile_ptr, offs_r, offs_k, MAJOR: gl.constexpr, VEC: gl.constexpr, WIDE: gl.constexpr):
    """Pointers [ROWS, BLOCK_K], known to be contiguous and aligned in vectors of VEC elements.

    Unless WIDE, the offsets are unsigned bytes on a scalar base: the address form of one SGPR pair and one VGPR.
    """
    offsets = offs_r[:, None] + offs_k[None, :]
    if WIDE:
        pointers = tile_ptr + offsets
    else:
        ELEMENT_BYTES: gl.constexpr = tile_ptr.dtype.element_ty.primitive_bitwidth // 8
        byte_ptr = tile_ptr.to(gl.pointer_type(gl.int8), bitcast=True) + offsets.to(gl.uint32) * ELEMENT_BYTES
        pointers = byte_ptr.to(tile_ptr.dtype, bitcast=True)
    ALIGNMENT: gl.constexpr = VEC * tile_ptr.dtype.element_ty.primitive_bitwidth // 8
    if MAJOR == "row":
        return gl.max_contiguous(gl.multiple_of(pointers, [ALIGNMENT, 1]), [VEC, 1])
    else:
        return gl.max_contiguous(gl.multiple_of(pointers, [1, ALIGNMENT]), [1, VEC])


@gluon.jit
def load_tile(tile_ptr, offs_r, offs_k, MAJOR: gl.constexpr, VEC: gl.constexpr, WIDE: gl.constexpr):
    """A whole K-tile, [ROWS, BLOCK_K]."""
    if not WIDE:
        if MAJOR == "row":
            offs_k = opaque(offs_k)
        else:
            offs_r = opaque(offs_r)
    return gl.load(tile_pointers(tile_ptr, offs_r, offs_k, MAJOR, VEC, WIDE))


@gluon.jit
def load_ragged_tile(
    tile_ptr, offs_r, offs_k, k_left, BLOCK_K: gl.constexpr, MAJOR: gl.constexpr, VEC: gl.constexpr,
    WIDE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A K-tile of which k_left columns exist; the others are zeros, [ROWS, BLOCK_K]."""
    mask = gl.arange(0, BLOCK_K, gl.SliceLayout(0, LAYOUT)) < k_left
    return gl.load(tile_pointers(tile_ptr, offs_r, offs_k, MAJOR, VEC, WIDE), mask=mask[None, :], other=0.0)


@gluon.jit
def multiply(a_lds, b_lds, acc, VERSION: gl.constexpr, K_WIDTH: gl.constexpr):
    """acc + A B^T of one K-tile in LDS, [BLOCK_M, BLOCK_N]."""
    a = a_lds.load(gl.DotOperandLayout(0, acc.type.layout, K_WIDTH))  # [BLOCK_M, BLOCK_K]
    b = b_lds.permute([1, 0]).load(gl.DotOperandLayout(1, acc.type.layout, K_WIDTH))  # [BLOCK_K, BLOCK_N]
    if VERSION == 1:
        return gl.amd.rdna3.wmma(a, b, acc)
    else:
        return gl.amd.rdna4.wmma(a, b, acc)


_RUNTIME = [
    "a_ptr", "b_ptr", "c_ptr", "M", "N", "K", "stride_ao", "stride_ai", "stride_am", "stride_ak",
    "stride_bo", "stride_bi", "stride_bk", "stride_bn", "stride_co", "stride_ci", "stride_cm", "stride_cn",
    "batch_inner", "first_program",
]  # fmt: skip


# Not specialised on values: what matters about them are constexprs, so that a new size compiles nothing.
@gluon.jit(do_not_specialize=_RUNTIME)
def wmma_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_ao, stride_ai, stride_am, stride_ak,
    stride_bo, stride_bi, stride_bk, stride_bn,
    stride_co, stride_ci, stride_cm, stride_cn,
    batch_inner, first_program,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    BATCHED: gl.constexpr, WHOLE_K: gl.constexpr, WIDE: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_CONTIGUOUS: gl.constexpr,
    A_VEC: gl.constexpr, B_VEC: gl.constexpr, C_VEC: gl.constexpr, K_VEC: gl.constexpr,
    VERSION: gl.constexpr, K_WIDTH: gl.constexpr, ACCUMULATOR: gl.constexpr,
    A_LOAD: gl.constexpr, B_LOAD: gl.constexpr, A_STORE: gl.constexpr, B_STORE: gl.constexpr, C_STORE: gl.constexpr,
    A_SHARED: gl.constexpr, B_SHARED: gl.constexpr,
):  # fmt: skip
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // BLOCK_N + 1
    program = gl.program_id(0) + first_program
    if BATCHED:
        batch = program // (tiles_m * tiles_n)
        program = program % (tiles_m * tiles_n)
        outer = (batch // batch_inner).to(gl.int64)
        inner = (batch % batch_inner).to(gl.int64)
        a_ptr += outer * stride_ao + inner * stride_ai
        b_ptr += outer * stride_bo + inner * stride_bi
        c_ptr += outer * stride_co + inner * stride_ci
    tile_m, tile_n = grouped_tile(program, tiles_m, tiles_n, GROUP_M)
    m0 = tile_m.to(gl.int64) * BLOCK_M
    n0 = tile_n.to(gl.int64) * BLOCK_N
    rows_m = gl.minimum(M - m0, BLOCK_M).to(gl.int32)
    rows_n = gl.minimum(N - n0, BLOCK_N).to(gl.int32)
    a_tile = a_ptr + m0 * stride_am
    b_tile = b_ptr + n0 * stride_bn
    a_r, a_k = tile_offsets(rows_m, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD)
    b_r, b_k = tile_offsets(rows_n, stride_bn, stride_bk, BLOCK_N, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD)
    a_lds = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [2, BLOCK_M, BLOCK_K], A_SHARED)
    b_lds = gl.allocate_shared_memory(b_ptr.dtype.element_ty, [2, BLOCK_N, BLOCK_K], B_SHARED)

    # The last K-tile, which may be ragged, comes first: a sum has no order, and the loop needs no masks.
    steps = (K - 1) // BLOCK_K
    k_last = steps.to(gl.int64) * BLOCK_K
    a_last = a_tile + k_last * stride_ak
    b_last = b_tile + k_last * stride_bk
    if WHOLE_K:
        a = gl.load(tile_pointers(a_last, a_r, a_k, A_MAJOR, A_VEC, WIDE))  # [BLOCK_M, BLOCK_K]
        b = gl.load(tile_pointers(b_last, b_r, b_k, B_MAJOR, B_VEC, WIDE))  # [BLOCK_N, BLOCK_K]
    else:
        k_left = gl.multiple_of((K - k_last).to(gl.int32), [K_VEC])
        a = load_ragged_tile(a_last, a_r, a_k, k_left, BLOCK_K, A_MAJOR, A_VEC, WIDE, A_LOAD)
        b = load_ragged_tile(b_last, b_r, b_k, k_left, BLOCK_K, B_MAJOR, B_VEC, WIDE, B_LOAD)
    left = steps
    a_lds.index(left % 2).store(gl.convert_layout(a, A_STORE))
    b_lds.index(left % 2).store(gl.convert_layout(b, B_STORE))

    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, ACCUMULATOR)
    a_step = stride_ak.to(gl.int64) * BLOCK_K
    b_step = stride_bk.to(gl.int64) * BLOCK_K
    while left > 0:
        # the tile that is read below is stored, and nobody reads the other buffer any more
        cta_barrier()
        a = load_tile(a_tile, a_r, a_k, A_MAJOR, A_VEC, WIDE)  # [BLOCK_M, BLOCK_K]
        b = load_tile(b_tile, b_r, b_k, B_MAJOR, B_VEC, WIDE)  # [BLOCK_N, BLOCK_K]
        # the loads stay above the LDS reads, and so above the matrix instructions
        left = load_fence(left)
        acc = multiply(a_lds.index(left % 2), b_lds.index(left % 2), acc, VERSION, K_WIDTH)
        # the matrix instructions stay above the wait for the loads
        left = schedule_fence(left - 1)
        if A_VEC == 1:
            a = opaque_halves(a)
        if B_VEC == 1:
            b = opaque_halves(b)
        a_lds.index(left % 2).store(gl.convert_layout(a, A_STORE))
        b_lds.index(left % 2).store(gl.convert_layout(b, B_STORE))
        a_tile += a_step
        b_tile += b_step
    cta_barrier()  # the last tile is stored
    acc = multiply(a_lds.index(0), b_lds.index(0), acc, VERSION, K_WIDTH)

    # Through LDS, so that a lane has C_VEC neighbours of a row. It also keeps the matrix instructions above the masks:
    # LLVM sinks them into the masked stores otherwise, where some lanes are off.
    c = gl.convert_layout(acc.to(c_ptr.dtype.element_ty), C_STORE)  # [BLOCK_M, BLOCK_N]
    offs_m = gl.arange(0, BLOCK_M, gl.SliceLayout(1, C_STORE))
    offs_n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, C_STORE))
    mask = (offs_m < rows_m)[:, None] & (offs_n < gl.multiple_of(rows_n, [C_VEC]))[None, :]
    if WIDE:
        offs_m = offs_m.to(gl.int64)
        offs_n = offs_n.to(gl.int64)
    if not C_CONTIGUOUS:
        offs_n = offs_n * stride_cn
    c_tile = c_ptr + m0 * stride_cm + n0 * stride_cn
    pointers = tile_pointers(c_tile, offs_m * stride_cm, offs_n, "k", C_VEC, WIDE)
    gl.store(pointers, c, mask=mask)


def runtime_arguments(problem: MatmulProblem) -> dict[str, int]:
    """The kernel's integers, but for the number of the launch's first program."""
    a, b, c = problem.a.strides, problem.b.strides, problem.out.strides
    return dict(zip(_RUNTIME[3:-1], (problem.m, problem.n, problem.k, *a, *b, *c, problem.batch[1]), strict=True))


@cache
def constants(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> dict[str, Any]:
    """The kernel's constexprs."""
    version = 1 if gpu.major == 11 else 2
    a_major = {"n": "k", "t": "row", "x": "neither"}[problem.a.major]
    b_major = {"n": "row", "t": "k", "x": "neither"}[problem.b.major]
    a_along, b_along = a_major != "row", b_major != "row"
    vector_c = 16 // DTYPE_BYTES[problem.dtype_out]
    lanes_n = min(32, config.block_n // vector_c)
    # The mask at the end of K has to be whole vectors only where vectors lie along K.
    vector_k = max([1] + [v for v, along in ((problem.vector_a, a_along), (problem.vector_b, b_along)) if along])
    return {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
        "BATCHED": problem.batches > 1,
        "WHOLE_K": problem.k % config.block_k == 0,
        "WIDE": needs_wide_offsets(problem, config),
        "A_MAJOR": a_major,
        "B_MAJOR": b_major,
        "C_CONTIGUOUS": problem.out.major == "n",
        "A_VEC": problem.vector_a,
        "B_VEC": problem.vector_b,
        "C_VEC": problem.vector_out,
        "K_VEC": gcd(problem.k, vector_k),
        "VERSION": version,
        "K_WIDTH": 16 if version == 1 else 8,
        "ACCUMULATOR": wmma_layout(version, config.num_warps // config.waves_n, config.waves_n, transposed=True),
        "A_LOAD": load_layout(config.block_m, config, a_along),
        "B_LOAD": load_layout(config.block_n, config, b_along),
        "A_STORE": load_layout(config.block_m, config, a_along, reorder=True),
        "B_STORE": load_layout(config.block_n, config, b_along, reorder=True),
        "C_STORE": gl.BlockedLayout([1, vector_c], [32 // lanes_n, lanes_n], [config.num_warps, 1], [1, 0]),
        "A_SHARED": shared_layout(config.block_m, config, a_along),
        "B_SHARED": shared_layout(config.block_n, config, b_along),
    }


def launch(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu, a: Any, b: Any, c: Any) -> None:
    """Write the product of a and b into c, which are what Triton takes for pointers."""
    programs = problem.batches * -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
    arguments = runtime_arguments(problem) | constants(problem, config, gpu)
    for first in range(0, programs, MAX_PROGRAMS):
        grid = (min(programs - first, MAX_PROGRAMS), 1, 1)
        wmma_matmul[grid](
            a, b, c, first_program=first, **arguments, num_warps=config.num_warps, enable_fp_fusion=True
        )


def code_object(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> CodeObject:
    """The machine code that `launch` runs."""
    pointers = (problem.dtype_a, problem.dtype_b, problem.dtype_out)
    signature = {name: f"*{dtype}" for name, dtype in zip(_RUNTIME[:3], pointers, strict=True)}
    integers = runtime_arguments(problem) | {"first_program": 0}
    signature |= {name: "i32" if value < 1 << 31 else "i64" for name, value in integers.items()}
    return compile_kernel(
        wmma_matmul,
        gpu=gpu,
        signature=signature,
        constants=constants(problem, config, gpu),
        num_warps=config.num_warps,
        attrs=(),
    )


def facts(problem: MatmulProblem, config: WmmaConfig, gpu: Gpu) -> list[str]:
    """What sizes and strides made of the kernel, as sentences."""
    chosen = constants(problem, config, gpu)
    lines = []
    for name, major, vector in (("A", chosen["A_MAJOR"], chosen["A_VEC"]), ("B", chosen["B_MAJOR"], chosen["B_VEC"])):
        along = {"k": "K", "row": "M" if name == "A" else "N", "neither": "no axis"}[major]
        way = "transposed in registers on the way to LDS" if major == "row" else "stored to LDS as loaded"
        lines.append(f"{name} is contiguous along {along}: loads of {vector * 2} bytes, {way}")
    lines.append(f"C is stored {chosen['C_VEC'] * DTYPE_BYTES[problem.dtype_out]} bytes at a time")
    if not chosen["WHOLE_K"]:
        lines.append(f"the last K-tile has {problem.k % config.block_k} of {config.block_k} columns and is masked")
    if chosen["WIDE"]:
        lines.append("offsets inside a tile need 64 bits")
    lines.append(f"LDS: {config.lds_bytes()} bytes in two buffers, {config.lds}")
    return lines
