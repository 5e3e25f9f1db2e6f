// Of hopper_stream.cu: how slices come to shared memory, in rows along M and N. What lies so and suits TMA comes in boxes;
// else four warps ask for it element by element, and a row along K is turned on its way. Behind hopper_shares.cuh.

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

// Where the stages of the ring begin and end, and the one that comes next; a stage's barriers stand behind its operands.
struct Ring {
    u32 at, begin, phase;

    __device__ __forceinline__ void step() {
        at += STAGE_BYTES;
        if (at == begin + STAGES * STAGE_BYTES) at = begin, phase ^= 1;
    }
};

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
                                        const Sizes &s, int whole, int parts, Ring ring) {
    const bool boxes = BOX_BYTES > 0 && uniform(threadIdx.x / 32) == CONSUMER_WARPS && elect_one();
    if (!BY_LANES && !boxes) return;
    Walk walk = begin_walk();
    Tile tile;
    Piece piece;
    for (int n = 0; find_piece(n, piece, s, whole, parts); ++n) {
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

