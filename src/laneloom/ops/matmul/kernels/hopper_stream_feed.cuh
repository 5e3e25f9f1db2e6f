// Of hopper_stream.cu: which slices a CTA multiplies, and how they come to shared memory, in rows along M and N. What lies
// so and suits TMA comes in boxes; else four warps ask for it element by element, and a row along K is turned on its way.

#define CONSUMER_WARPS (WARPS_M * WARPS_N)
#define CONSUMERS (32 * CONSUMER_WARPS)
#define THREADS (CONSUMERS + 128)  // registers are handed over between whole warpgroups
#define A_BYTES (BLOCK_M * BLOCK_K * 4)
#define B_BYTES (BLOCK_N * BLOCK_K * 4)
#define FULL (A_BYTES + B_BYTES)  // where a stage has its barriers
#define EMPTY (FULL + 8)
#define STAGE_BYTES (A_BYTES + B_BYTES + 128)
#define WARP_M (BLOCK_M / WARPS_M)
#define WARP_N (BLOCK_N / WARPS_N)
#define THREAD_M (WARP_M / 8)
#define THREAD_N (WARP_N / 4)
#define STAGING_BYTES (16 * WARP_N * 4)  // of one warp, for 16 rows of C that cannot be stored 16 bytes at a time

#define BY_LANES (A_LANES || B_LANES)  // 1: an operand along its rows, 2: along K
#define FILLERS (BY_LANES ? 128 : 0)
#define BOX_BYTES ((A_LANES ? 0 : A_BYTES) + (B_LANES ? 0 : B_BYTES))

// ---- Work: of the tiles behind the first `whole`, CTA `rank` takes the slices from begin_of(rank) to begin_of(rank + 1);
// then every gridDim.x-th of the whole ones.
struct Piece { int item, first, last; };  // slices of a tile

// Shares differ by one slice at most. All fits 32 bits: a division of 64 bits would be a call.
__device__ __forceinline__ int begin_of(int rank, int shared_slices) {
    const int ctas = gridDim.x;
    return rank * (shared_slices / ctas) + min(rank, shared_slices % ctas);
}

__device__ __forceinline__ int slices_of(const Sizes &s) { return (s.K + BLOCK_K - 1) / BLOCK_K; }

// A CTA that waits for a part waits for one of a lower number, which computes it before all else: whichever CTAs the GPU
// has room for, the lowest can go on.
__device__ __forceinline__ int rank_here() { return gridDim.x - 1 - blockIdx.x; }

// The piece of number n of this CTA, if there is one. It keeps nothing from piece to piece: registers are short.
__device__ __forceinline__ bool find_piece(int n, Piece &piece, const Sizes &s, int whole) {
    const int slices = slices_of(s);
    const int shared_slices = (s.items - whole) * slices;
    const int begin = begin_of(rank_here(), shared_slices), end = begin_of(rank_here() + 1, shared_slices);
    const int first_tile = begin / slices, tiles = (end + slices - 1) / slices - first_tile;
    if (n < tiles) {
        const int before = (first_tile + n) * slices;
        piece = {whole + first_tile + n, max(begin - before, 0), min(end - before, slices)};
        return true;
    }
    piece = {(int)blockIdx.x + (n - tiles) * (int)gridDim.x, 0, slices};
    return piece.item < whole;
}

// Where the stages of the ring begin and end, and the one that comes next; a stage's barriers stand behind its operands.
struct Ring {
    u32 at, begin, phase;

    __device__ __forceinline__ void step() {
        at += STAGE_BYTES;
        if (at == begin + STAGES * STAGE_BYTES) at = begin, phase ^= 1;
    }
};

// ---- Slices.
// An operand that lanes bring, element by element: its first, the steps of the batch's axes, and that of the axis along
// which it is not contiguous.
struct Plain {
    const float *first;
    i64 outer, inner, line;
};

// Unless it is known to be there, what is not becomes zero, and no address is read.
template <bool WHOLE>
__device__ __forceinline__ void copy4(u32 to, const float *from, bool there) {
    if (WHOLE) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

// Ask for a slice of ROWS rows from `row` on, of which `left` of K are there. Rows that are not stay what they were: nobody
// stores their sums, and 32 lanes at one address would be slow. What came along K is spread over the banks: 16 bytes of
// step k lie at their place ^ k % 8.
template <int ROWS, bool ALONG_K, bool WHOLE>
__device__ __forceinline__ void ask(u32 slot, const float *from, i64 line, int row, int end, int left) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, x = lane % 8;
    if (ALONG_K) {
        const u32 to = slot + x * ROWS * 4 + ((warp ^ x) * 16) + lane / 8 * 4;
        row += warp * 4 + lane / 8;
        from += row * line + x;
#pragma unroll
        for (int group = 0; group < ROWS / 16; ++group, from += 16 * line)
#pragma unroll
            for (int step = 0; step < BLOCK_K; step += 8) {
                const u32 there = (to ^ group % 2 * 64) + group / 2 * 128 + step * ROWS * 4;
                if (row + group * 16 < end) copy4<WHOLE>(there, from + step, step + x < left);
            }
    } else {
        const u32 to = slot + (warp * ROWS + lane) * 4;
        row += lane;
        from += warp * line + row;
#pragma unroll
        for (int step = 0; step < BLOCK_K; step += 4) {
#pragma unroll
            for (int column = 0; column < ROWS; column += 32)
                if (row + column < end) copy4<WHOLE>(to + (step * ROWS + column) * 4, from + column, step + warp < left);
            from += 4 * line;
            asm volatile("" : "+l"(from));  // one address at a time: registers are short
        }
    }
}

template <int ROWS, bool ALONG_K>
__device__ __forceinline__ void ask(u32 slot, const Plain &x, const Tile &tile, int row, int end, int k, int left) {
    const float *from = x.first + tile.outer * x.outer + tile.inner * x.inner + (ALONG_K ? k : k * x.line);
    if (left >= BLOCK_K) ask<ROWS, ALONG_K, true>(slot, from, x.line, row, end, left);
    else ask<ROWS, ALONG_K, false>(slot, from, x.line, row, end, left);
}

__device__ __forceinline__ void produce(const TensorMap *a_map, const TensorMap *b_map, const Plain &a, const Plain &b,
                                        const Sizes &s, int whole, Ring ring) {
    const bool boxes = BOX_BYTES > 0 && uniform(threadIdx.x / 32) == CONSUMER_WARPS && elect_one();
    if (!BY_LANES && !boxes) return;
    Walk walk = begin_walk();
    Tile tile;
    Piece piece;
    for (int n = 0; find_piece(n, piece, s, whole); ++n) {
        locate(piece.item, walk, tile, s, 0, 0);
#pragma unroll 1
        for (int slice = piece.first; slice < piece.last; ++slice) {
            // A barrier's first phase counts as complete when the other parity is asked for: the ring starts empty.
            wait_barrier(ring.at + EMPTY, ring.phase ^ 1);
            const int k = slice * BLOCK_K;
            if (boxes) {
                expect_bytes(ring.at + FULL, BOX_BYTES);
                if (!A_LANES)
                    load_box(a_map, ring.at, ring.at + FULL, tile.m, k, tile.inner * s.a_inner, tile.outer * s.a_outer);
                if (!B_LANES)
                    load_box(b_map, ring.at + A_BYTES, ring.at + FULL, tile.n, k, tile.inner * s.b_inner,
                             tile.outer * s.b_outer);
            }
            if (A_LANES) ask<BLOCK_M, A_LANES == 2>(ring.at, a, tile, tile.m, s.M, k, s.K - k);
            if (B_LANES) ask<BLOCK_N, B_LANES == 2>(ring.at + A_BYTES, b, tile, tile.n, s.N, k, s.K - k);
            if (BY_LANES)  // once all that this lane asked for is there
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.at + FULL) : "memory");
            ring.step();
        }
    }
    // Behind the last slice comes an empty one: those who multiply fetch the first operands of the next, whatever it is.
    wait_barrier(ring.at + EMPTY, ring.phase ^ 1);
    if (boxes) arrive(ring.at + FULL);
    if (BY_LANES) arrive(ring.at + FULL);
}

