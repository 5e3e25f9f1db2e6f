// The ring of hopper_registers.cu: the warp that fills it by TMA, and those that make what wgmma takes of S.
// Behind device/hopper.cuh and hopper_ahead.cuh.

#define R_BYTES (BLOCK_M * 128)
#define S_BYTES (BLOCK_N * 128)
#define STAGE_BYTES (R_BYTES + PIECES * S_BYTES)
#define SLABS (BLOCK_M / 64)
#define CONSUMER_WARPS (4 * SLABS)
#define THREADS (32 * CONSUMER_WARPS + 128)
#define SUMS (BLOCK_N / 2)              // of a thread
#define PANEL_BYTES (32 * 128)          // 32 lines
#define BUFFER_BYTES (2 * PANEL_BYTES)  // of 64 rows and 32 columns of D on their way out
#define CUTTERS 96                      // threads that turn and cut S
#define CUT (PIECES > 1 || !S_ALONG_K)  // whether anything of that is to be done

struct Ring { u32 slices, full, empty, cut; };  // addresses: of the slices, and of barriers, one for each

struct Share { int item, part, first, last; };  // a tile, and slices of it

// The share of number n of this CTA, if there is one: `each` slices of a tile. The same ones of all tiles are neighbours,
// so that CTAs which run at the same time ask for the same lines.
__device__ __forceinline__ bool find_share(int n, Share &share, const Sizes &s, int each) {
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K, number = blockIdx.x + n * gridDim.x;
    if (!SPLIT) {
        share = {number, 0, 0, slices};
        return number < s.items;
    }
    const int part = number / s.items, first = part * each;
    share = {number - part * s.items, part, first, min(first + each, slices)};
    return first < slices;
}

// What a CTA brings: a share, and where its tile of R and of S is.
struct Work {
    Share share;
    Tile tile;
    bool there;

    __device__ __forceinline__ void find(int n, const Sizes &s, int each) {
        Walk walk = begin_walk();
        there = find_share(n, share, s, each);
        locate(share.item, walk, tile, s, 0, 0);
    }
};

// Brings ROWS rows of an operand of a slice: a box along K or panels.
template <bool TO_RING, bool IS_ALONG_K, int ROWS>
__device__ __forceinline__ void bring_rows(const TensorMap *map, u32 to, u32 barrier, int row, int k, int inner, int outer) {
    if (IS_ALONG_K) {
        bring_box<TO_RING>(map, to, barrier, k, row, inner, outer);
    } else {
#pragma unroll
        for (int panel = 0; panel < ROWS / 32; ++panel)
            bring_box<TO_RING>(map, to + panel * PANEL_BYTES, barrier, row + 32 * panel, k, inner, outer);
    }
}

// The operands of one tile.
struct Operands {
    const TensorMap *r_map, *s_map;
    int m, n, r_inner, r_outer, s_inner, s_outer;

    __device__ __forceinline__ Operands(const TensorMap *r_map, const TensorMap *s_map, const Tile &tile, const Sizes &s)
        : r_map(r_map), s_map(s_map), m(tile.m), n(tile.n), r_inner(tile.inner * s.a_inner),
          r_outer(tile.outer * s.a_outer), s_inner(tile.inner * s.b_inner), s_outer(tile.outer * s.b_outer) {}
    template <bool TO_RING> __device__ __forceinline__ void bring_r(int slice, u32 to, u32 barrier) const {
        bring_rows<TO_RING, R_ALONG_K, BLOCK_M>(r_map, to, barrier, m, slice * BLOCK_K, r_inner, r_outer);
    }
    template <bool TO_RING> __device__ __forceinline__ void bring_s(int slice, u32 to, u32 barrier) const {
        bring_rows<TO_RING, S_ALONG_K, BLOCK_N>(s_map, to + R_BYTES, barrier, n, slice * BLOCK_K, s_inner, s_outer);
    }
};

// Asks the L2 for what comes first: CTAs of a row of tiles have the same part of K.
__device__ __forceinline__ void fetch(const Operands &operands, const Sizes &s, const Work &work) {
    const int slices = work.there ? work.share.last - work.share.first : 0;
    fetch_first(work.tile, s, slices, true, [&](bool of_r, int i) {
        if (of_r) operands.bring_r<false>(work.share.first + i, 0, 0);
        else operands.bring_s<false>(work.share.first + i, 0, 0);
    });
}

__device__ __forceinline__ void produce(Operands operands, const Sizes &s, int each, const Ring &ring, Work work) {
    u32 stage = 0, phase = 0;
    // The loads come after the kernels that wrote R and S. In a block of its own, so that what is ahead of it stays there.
    if (work.there) wait_for_predecessor();
    for (int n = 0; work.there;) {
#pragma unroll 1
        for (int slice = work.share.first; slice < work.share.last; ++slice) {
            // A barrier's first phase counts as complete when the other parity is asked for: the ring starts empty.
            wait_barrier(ring.empty + 8 * stage, phase ^ 1);
            const u32 barrier = ring.full + 8 * stage, to = ring.slices + stage * STAGE_BYTES;
            expect_bytes(barrier, R_BYTES + S_BYTES);
            operands.bring_r<true>(slice, to, barrier);
            operands.bring_s<true>(slice, to, barrier);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        work.find(++n, s, each);
        operands = Operands(operands.r_map, operands.s_map, work.tile, s);
    }
}

// The nearest TF32. Ties go away from zero. What would round to infinity is cut off, and so are infinity and NaN.
__device__ __forceinline__ u32 near_bits(u32 bits) {
    return (bits + (fabsf(__uint_as_float(bits)) < 0x1.ffep+127f ? 0x1000 : 0)) & 0xffffe000;
}

// wgmma ignores the last 13 bits of what it takes as TF32.
__device__ __forceinline__ u32 rest_bits(u32 bits, u32 near) {
    return __float_as_uint(__uint_as_float(bits) - __uint_as_float(near));
}

__device__ __forceinline__ void write_pieces(uint4 *x, uint4 bits) {
    if (PIECES == 1) {
        *x = bits;
        return;
    }
    const uint4 near = {near_bits(bits.x), near_bits(bits.y), near_bits(bits.z), near_bits(bits.w)};
    *x = near;
    x[S_BYTES / 16] = {rest_bits(bits.x, near.x), rest_bits(bits.y, near.y), rest_bits(bits.z, near.z),
                       rest_bits(bits.w, near.w)};
}

// A half of each panel of S in turn to lines along K, in place: a lane turns 4 k x 4 columns. Block (k / 4, column / 4) of
// a panel goes to where (column / 4, k / 4) was, which a lane of the same warp has. 8 lanes that load or store together
// have blocks of one diagonal, k / 4 ^ column / 4, so that with the swizzle they meet in no bank.
__device__ __forceinline__ void turn(uint4 *x, int thread) {
    const int lane = thread % 32, along = lane % 8;
#pragma unroll 1
    for (int half = thread / 32; half < BLOCK_N / 16; half += CUTTERS / 32) {
        const int across = along ^ (lane / 8 + half % 2 * 4);
        uint4 *panel = x + half / 2 * (PANEL_BYTES / 16);
        u32 block[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int line = 4 * along + i;
            const uint4 bits = panel[line * 8 + (across ^ line % 8)];
            block[i][0] = bits.x, block[i][1] = bits.y, block[i][2] = bits.z, block[i][3] = bits.w;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int line = 4 * across + i;
            write_pieces(panel + line * 8 + (along ^ line % 8), {block[0][i], block[1][i], block[2][i], block[3][i]});
        }
    }
}

// Make every slice of S what wgmma takes: lines along K, its near pieces in place, the rest behind.
__device__ __forceinline__ void cut(const Sizes &s, int each, char *slices, const Ring &ring, int thread) {
    u32 stage = 0, phase = 0;
    Share share;
    for (int n = 0; find_share(n, share, s, each); ++n) {
#pragma unroll 1
        for (int slice = share.first; slice < share.last; ++slice) {
            wait_barrier(ring.full + 8 * stage, phase);
            uint4 *x = (uint4 *)(slices + stage * STAGE_BYTES + R_BYTES);
            if (!S_ALONG_K) {
                turn(x, thread);
            } else {
#pragma unroll 2
                for (int i = thread; i < S_BYTES / 16; i += CUTTERS) write_pieces(x + i, x[i]);
            }
            // These writes become visible to wgmma before the barrier says that they are there.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (thread % 32 == 0) arrive(ring.cut + 8 * stage);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}
