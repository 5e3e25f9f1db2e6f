// Of hopper_stream.cu: how slices come to shared memory, in rows along M and N. What lies so and suits TMA comes in boxes;
// what suits TMA but lies along K comes in boxes too, which three warps turn, or an A that is read so; else four warps ask for elements, and a row
// along K is turned on its way. Behind hopper_shares.cuh.

#define THREADS (CONSUMERS + 128)  // registers are handed over between whole warpgroups
#define A_BYTES (BLOCK_M * BLOCK_K * 4)
#define B_BYTES (BLOCK_N * BLOCK_K * 4)
#define RAW_A (A_BYTES + B_BYTES)  // where a stage has boxes that are turned
#define RAW_B (RAW_A + (A_LANES == TURNED ? A_BYTES : 0))
#define FULL (RAW_B + (B_LANES == TURNED ? B_BYTES : 0))  // and its barriers
#define EMPTY (FULL + 8)
#define RAW (FULL + 16)
#define STAGE_BYTES (FULL + (A_LANES == AS_IT_LIES ? 512 : 128))  // what the copy engine twists begins at 512 bytes
#define WARP_M (BLOCK_M / WARPS_M)
#define WARP_N (BLOCK_N / WARPS_N)
#define THREAD_M (WARP_M / 8)
#define THREAD_N (WARP_N / 4)
#define STAGING_BYTES (16 * WARP_N * 4)  // of one warp, for 16 rows of C that cannot be stored 16 bytes at a time

// How an operand comes, where it does not lie as it is multiplied: element by element, or from boxes that are turned.
#define ALONG_ROWS 1
#define ALONG_K 2
#define TURNED 3
#define AS_IT_LIES 4  // A, along K: who multiplies reads four steps at once
#define BY_ELEMENTS(lanes) (lanes == ALONG_ROWS || lanes == ALONG_K)
#define ASKS (BY_ELEMENTS(A_LANES) || BY_ELEMENTS(B_LANES))
#define TURNS (A_LANES == TURNED || B_LANES == TURNED)
#define TURNERS 3  // warps: all that bring operands but the one that asks for boxes
#define BOX_BYTES ((A_LANES % AS_IT_LIES ? 0 : A_BYTES) + (B_LANES ? 0 : B_BYTES))
#define RAW_BYTES (FULL - RAW_A)
#define FILLERS ((ASKS ? 128 : 0) + (TURNS ? TURNERS : 0) + (BOX_BYTES > 0))

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
template <int ROWS, bool IS_ALONG_K, bool WHOLE>
__device__ __forceinline__ void ask(u32 slot, const float *from, i64 line, int row, int end, int left) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, x = lane % 8;
    if (IS_ALONG_K) {
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

template <int ROWS, int LANES>
__device__ __forceinline__ void ask(u32 slot, const Plain &x, const Tile &tile, int row, int end, int k, int left) {
    constexpr bool along_k = LANES == ALONG_K;
    const float *from = x.first + tile.outer * x.outer + tile.inner * x.inner + (along_k ? k : k * x.line);
    if (left >= BLOCK_K) ask<ROWS, along_k, true>(slot, from, x.line, row, end, left);
    else ask<ROWS, along_k, false>(slot, from, x.line, row, end, left);
}

__device__ __forceinline__ void read4(float *to, u32 from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void write1(u32 to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

// Turn a box of ROWS rows along K into rows along M or N, spread over the banks as above: every third block of 16 rows, 8
// steps of K at once. A warp's reads of 16 bytes begin in as many banks for every eight lanes, and so do the words that it
// writes. Rows of 64 bytes are twisted by the copy engine, 16 bytes at their place ^ row / 2 % 4.
template <int ROWS>
__device__ __forceinline__ void turn(u32 from, u32 to, int warp, int lane) {
    constexpr int pitch = BLOCK_K * 4, line = ROWS * 4, blocks = ROWS / 16;
    const int half = lane % 2, turn = lane / 2;
    const int row = pitch == 64 ? turn % 2 + turn / 2 % 2 * 4 + turn / 4 % 2 * 2 + turn / 8 * 8 : turn;
    from += (warp * 16 + row) * pitch + half * 16, to += half * 4 * line + row * 4;
    const u32 twist = pitch == 64 ? from / 128 % 4 * 16 : 0;
    const u32 places[2] = {to + (warp ^ half) * 64, to + (warp + TURNERS ^ half) * 64};
#pragma unroll
    for (int i = 0; i * TURNERS < blocks; ++i)
        if ((i + 1) * TURNERS <= blocks || warp + i * TURNERS < blocks)
#pragma unroll
            for (int group = 0; group < BLOCK_K / 8; ++group) {
                float x[4];
                read4(x, (from + group * 32 ^ twist) + i * TURNERS * 16 * pitch);
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    write1((places[i % 2] ^ k * 16) + (group * 8 + k) * line + i / 2 * 2 * TURNERS * 64, x[k]);
            }
}

__device__ __forceinline__ void turn_slice(const Ring &ring, int warp, int lane) {
    wait_barrier(ring.at + RAW, ring.phase);
    if (A_LANES == TURNED) turn<BLOCK_M>(ring.at + RAW_A, ring.at, warp, lane);
    if (B_LANES == TURNED) turn<BLOCK_N>(ring.at + RAW_B, ring.at + A_BYTES, warp, lane);
    __syncwarp();
    if (lane == 0) arrive(ring.at + FULL);
}

// Ask for a slice's box: `row` on along its axis, from `k` on.
template <int LANES>
__device__ __forceinline__ void load(const TensorMap *map, u32 to, u32 turned, const Ring &ring, int row, int k, int inner,
                                     int outer) {
    if (!LANES) load_box(map, to, ring.at + FULL, row, k, inner, outer);
    if (LANES == TURNED) load_box(map, turned, ring.at + RAW, k, row, inner, outer);
    if (LANES == AS_IT_LIES) load_box(map, to, ring.at + FULL, k, row, inner, outer);
}

__device__ __forceinline__ void produce(const TensorMap *a_map, const TensorMap *b_map, const Plain &a, const Plain &b,
                                        const Sizes &s, int whole, int parts, Ring ring) {
    const int warp = uniform(threadIdx.x / 32) - CONSUMER_WARPS, lane = threadIdx.x % 32;
    const bool boxes = BOX_BYTES + RAW_BYTES > 0 && warp == 0 && elect_one(), turns = TURNS && warp > 0;
    if (!ASKS && !boxes && !turns) return;
    Walk walk = begin_walk();
    Tile tile;
    Piece piece;
    for (int n = 0; find_piece(n, piece, s, whole, parts); ++n) {
        locate(piece.item, walk, tile, s, 0, 0);
        if (n == 0) wait_for_predecessor();  // which may have written A and B; the first piece is found by now
#pragma unroll 1
        for (int slice = piece.first; slice < piece.last; ++slice) {
            // A barrier's first phase counts as complete when the other parity is asked for: the ring starts empty.
            if (ASKS || boxes) wait_barrier(ring.at + EMPTY, ring.phase ^ 1);
            const int k = slice * BLOCK_K;
            if (boxes) {
                if (BOX_BYTES) expect_bytes(ring.at + FULL, BOX_BYTES);
                if (RAW_BYTES) expect_bytes(ring.at + RAW, RAW_BYTES);
                load<A_LANES>(a_map, ring.at, ring.at + RAW_A, ring, tile.m, k, tile.inner * s.a_inner,
                              tile.outer * s.a_outer);
                load<B_LANES>(b_map, ring.at + A_BYTES, ring.at + RAW_B, ring, tile.n, k, tile.inner * s.b_inner,
                              tile.outer * s.b_outer);
            }
            if (BY_ELEMENTS(A_LANES)) ask<BLOCK_M, A_LANES>(ring.at, a, tile, tile.m, s.M, k, s.K - k);
            if (BY_ELEMENTS(B_LANES)) ask<BLOCK_N, B_LANES>(ring.at + A_BYTES, b, tile, tile.n, s.N, k, s.K - k);
            if (ASKS)  // once all that this lane asked for is there
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.at + FULL) : "memory");
            if (turns) turn_slice(ring, warp - 1, lane);
            ring.step();
        }
    }
    // Behind the last slice comes an empty one: those who multiply fetch the first operands of the next, whatever it is.
    wait_barrier(ring.at + EMPTY, ring.phase ^ 1);
    if (boxes && BOX_BYTES) arrive(ring.at + FULL);
    if (ASKS) arrive(ring.at + FULL);
    if (turns && lane == 0) arrive(ring.at + FULL);
}
