"""What WMMA kernels are made of: fences, the addresses of a tile, its loads, the product of two tiles in LDS. Gluon."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .float8 import fp16_of_float8
from .tile_order import tile_of


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
def schedule_fence_wave64(x):
    """As `schedule_fence`, where 64 lanes need all of EXEC: an instruction that writes to it what it holds."""
    fenced, _ = gl.inline_asm_elementwise(
        "s_mov_b32 exec_hi, exec_hi ; schedule fence $0 $1 $2", "=s,={exec_hi},0", [x], dtype=(gl.int32, gl.int32),
        is_pure=False, pack=1,
    )  # fmt: skip
    return fenced


@gluon.jit
def wait_for_memory(x, VERSION: gl.constexpr):
    """x, once every load from global memory and LDS that this wave has under way is done."""
    if VERSION == 1:
        return gl.inline_asm_elementwise(
            "s_waitcnt vmcnt(0) lgkmcnt(0) ; explicit wait $0 $1", "=s,0", [x], dtype=gl.int32, is_pure=False, pack=1
        )
    else:
        return gl.inline_asm_elementwise(
            "s_wait_loadcnt 0x0\n\ts_wait_dscnt 0x0 ; explicit wait $0 $1", "=s,0", [x],
            dtype=gl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@gluon.jit
def raise_priority(x):
    """x; from here on the SIMD prefers this wave."""
    return gl.inline_asm_elementwise("s_setprio 1 ; $0 $1", "=s,0", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def lower_priority(x):
    """x; from here on this wave is as any other."""
    return gl.inline_asm_elementwise("s_setprio 0 ; $0 $1", "=s,0", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def opaque(offsets):
    """`offsets`, computed by an unknown instruction here: LLVM cannot hoist 64-bit addresses made of them."""
    return gl.inline_asm_elementwise("; offset $0 $1", "=v,0", [offsets], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def opaque_halves(x):
    """x, each element through an empty instruction here: LLVM cannot merge it with its neighbour in a `d16_hi` load,
    which would wait for the neighbour's load before the matrix instructions.
    """
    if x.dtype.primitive_bitwidth == 8:
        # a whole register each: LLVM takes no 8-bit operands, and 16 bits would be a `d16` load again
        bits = x.to(gl.int8, bitcast=True).to(gl.int32)
        bits = gl.inline_asm_elementwise("; byte $0 $1", "=v,0", [bits], dtype=gl.int32, is_pure=False, pack=1)
        return bits.to(gl.int8).to(x.dtype, bitcast=True)
    else:
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
def load_last_tile(
    tile_ptr, offs_r, offs_k, k_left, WHOLE: gl.constexpr, K_VEC: gl.constexpr, BLOCK_K: gl.constexpr,
    MAJOR: gl.constexpr, VEC: gl.constexpr, WIDE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A K-tile of which k_left columns exist, all if WHOLE; the others are zeros, [ROWS, BLOCK_K].

    K_VEC divides k_left.
    """
    pointers = tile_pointers(tile_ptr, offs_r, offs_k, MAJOR, VEC, WIDE)
    if WHOLE:
        return gl.load(pointers)
    else:
        k_left = gl.multiple_of(k_left.to(gl.int32), [K_VEC])
        mask = gl.arange(0, BLOCK_K, gl.SliceLayout(0, LAYOUT)) < k_left
        return gl.load(pointers, mask=mask[None, :], other=0.0)


@gluon.jit
def store_to_lds(slot, x, STORE: gl.constexpr, SHUFFLE: gl.constexpr, INTERLEAVED: gl.constexpr):
    """Store a loaded [ROWS, BLOCK_K] tile where fragments are read: 8-bit floats as fp16 where the slot holds that,
    transposed between lanes if SHUFFLE, with K in the fragments' order.
    """
    if SHUFFLE:
        x = transposed_by_lanes(x)
    if x.dtype != slot.dtype:
        x = fp16_of_float8(x)
    if INTERLEAVED:
        ROWS: gl.constexpr = x.shape[0]
        BLOCK_K: gl.constexpr = x.shape[1]
        # memory's steps 8 to 15 are the fragments' 16 to 23, and the other way: names change, no data moves
        x = x.reshape([ROWS, BLOCK_K // 32, 2, 2, 8]).permute([0, 1, 3, 2, 4]).reshape([ROWS, BLOCK_K])
    slot.store(gl.convert_layout(x, STORE))


@gluon.jit
def marked(x, MARK: gl.constexpr):
    """x; the kernel's text has the mark that `codegen.matrix_rewrite` looks for, unless it is empty."""
    if MARK != "":
        x = gl.inline_asm_elementwise(MARK, "=s,0", [x], dtype=gl.int32, is_pure=False, pack=1)
    return x


@gluon.jit
def place_tile(
    program, M, N, batch_inner, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ORDER: gl.constexpr,
    GROUP: gl.constexpr, CHIPLETS: gl.constexpr, BATCHED: gl.constexpr,
):  # fmt: skip
    """Which tile of C has the number `program`: its product's outer and inner number, its first row and column, and
    how many of its rows and columns exist.
    """
    tiles_m = (M - 1) // BLOCK_M + 1
    tiles_n = (N - 1) // BLOCK_N + 1
    outer = gl.to_tensor(0).to(gl.int64)
    inner = gl.to_tensor(0).to(gl.int64)
    if BATCHED:
        batch = program // (tiles_m * tiles_n)
        program = program % (tiles_m * tiles_n)
        outer = (batch // batch_inner).to(gl.int64)
        inner = (batch % batch_inner).to(gl.int64)
    tile_m, tile_n = tile_of(program, tiles_m, tiles_n, ORDER, GROUP, CHIPLETS)
    m0 = tile_m.to(gl.int64) * BLOCK_M
    n0 = tile_n.to(gl.int64) * BLOCK_N
    rows_m = gl.minimum(M - m0, BLOCK_M).to(gl.int32)
    rows_n = gl.minimum(N - n0, BLOCK_N).to(gl.int32)
    return outer, inner, m0, n0, rows_m, rows_n


@gluon.jit
def complete(acc):
    """Read acc's registers, 8 at a time, by an empty instruction here: LLVM cannot sink the matrix instructions that
    make them past a branch. For loops: the sums stay where they are, which `epilogue.pinned` does not promise.
    """
    # Nobody uses the outputs; halves are the fewest registers that 8 elements can have.
    if acc.dtype.primitive_bitwidth == 16:
        # each has a register of its own, of which it is the lower half
        gl.inline_asm_elementwise("; sum is complete", "=v,v", [acc], dtype=gl.int16, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise(
            "; sums are complete", "=v,=v,=v,=v,v,v,v,v,v,v,v,v", [acc], dtype=gl.int16, is_pure=False, pack=8
        )


@gluon.jit
def multiply_wmma(a, b, acc, VERSION: gl.constexpr):
    """acc + a b, operands in the dot layouts of acc's; VERSION: of WMMA."""
    if VERSION == 1:
        return gl.amd.rdna3.wmma(a, b, acc)
    elif VERSION == 2:
        return gl.amd.rdna4.wmma(a, b, acc)
    else:
        return gl.amd.gfx1250.wmma(a, b, acc)


@gluon.jit
def multiply(a_lds, b_lds, acc, VERSION: gl.constexpr, K_WIDTH: gl.constexpr):
    """acc + A B^T of one K-tile in LDS, [BLOCK_M, BLOCK_N]."""
    a = a_lds.load(gl.DotOperandLayout(0, acc.type.layout, K_WIDTH))  # [BLOCK_M, BLOCK_K]
    b = b_lds.permute([1, 0]).load(gl.DotOperandLayout(1, acc.type.layout, K_WIDTH))  # [BLOCK_K, BLOCK_N]
    return multiply_wmma(a, b, acc, VERSION)


@gluon.jit
def transposed_by_lanes(x):
    """x, a [ROWS, BLOCK_K] tile of halves that 8 lanes hold as 8 x 8 blocks, one step of K each, 8 rows in registers:
    afterwards each lane has one row with 8 steps of K.

    Three exchanges with the lane that differs in one bit, by data-parallel primitives: no LDS. In each, a lane keeps
    the half of its registers that is right and takes the other from its partner: bit 2 of the lane changes places with
    bit 1 of the register's number, bit 1 with bit 0, and bit 0 with the half of the register.
    """
    # $0 to $3 are the result, $4 to $8 temporary, $12 to $15 the source; outputs come in fours.
    bits = gl.inline_asm_elementwise(
        "s_mov_b32 vcc_lo, 0x0f0f0f0f\n\t"
        "v_cndmask_b32_dpp $4, $14, $12, vcc_lo row_xmask:4 row_mask:0xf bank_mask:0xf\n\t"
        "v_cndmask_b32_dpp $5, $15, $13, vcc_lo row_xmask:4 row_mask:0xf bank_mask:0xf\n\t"
        "s_mov_b32 vcc_lo, 0xf0f0f0f0\n\t"
        "v_cndmask_b32_dpp $6, $12, $14, vcc_lo row_xmask:4 row_mask:0xf bank_mask:0xf\n\t"
        "v_cndmask_b32_dpp $7, $13, $15, vcc_lo row_xmask:4 row_mask:0xf bank_mask:0xf\n\t"
        "s_mov_b32 vcc_lo, 0x33333333\n\t"
        "v_cndmask_b32_dpp $0, $5, $4, vcc_lo row_xmask:2 row_mask:0xf bank_mask:0xf\n\t"
        "v_cndmask_b32_dpp $2, $7, $6, vcc_lo row_xmask:2 row_mask:0xf bank_mask:0xf\n\t"
        "s_mov_b32 vcc_lo, 0xcccccccc\n\t"
        "v_cndmask_b32_dpp $1, $4, $5, vcc_lo row_xmask:2 row_mask:0xf bank_mask:0xf\n\t"
        "v_cndmask_b32_dpp $3, $6, $7, vcc_lo row_xmask:2 row_mask:0xf bank_mask:0xf\n\t"
        "s_mov_b32 vcc_lo, 0xaaaaaaaa\n\t"
        "v_mov_b32 $8, 0x03020706\n\t"
        "v_cndmask_b32 $8, 0x05040100, $8, vcc_lo\n\t"
        "v_mov_b32_dpp $4, $0 row_xmask:1 row_mask:0xf bank_mask:0xf\n\t"
        "v_mov_b32_dpp $5, $1 row_xmask:1 row_mask:0xf bank_mask:0xf\n\t"
        "v_mov_b32_dpp $6, $2 row_xmask:1 row_mask:0xf bank_mask:0xf\n\t"
        "v_mov_b32_dpp $7, $3 row_xmask:1 row_mask:0xf bank_mask:0xf\n\t"
        "v_perm_b32 $0, $4, $0, $8\n\t"
        "v_perm_b32 $1, $5, $1, $8\n\t"
        "v_perm_b32 $2, $6, $2, $8\n\t"
        "v_perm_b32 $3, $7, $3, $8",
        "=&v,=&v,=&v,=&v,=&v,=&v,=&v,=&v,=&v,=&v,=&v,=&v,v,v,v,v,~{vcc}", [x.to(gl.int16, bitcast=True)],
        dtype=(gl.int16, gl.int16, gl.int16), is_pure=False, pack=8,
    )  # fmt: skip
    ROWS: gl.constexpr = x.shape[0]
    BLOCK_K: gl.constexpr = x.shape[1]
    # Every lane has what its partner's coordinates were: exchange the names of the two axes of each block.
    blocks = bits[0].reshape([ROWS // 8, 8, BLOCK_K // 8, 8]).permute([0, 3, 2, 1])
    return blocks.reshape([ROWS, BLOCK_K]).to(x.dtype, bitcast=True)
