// C = A B in FP32 by FMA on Hopper. One warp fills a ring of K-slices by TMA, eight warps multiply; persistent. Tiles that
// would not fill a last round are cut along K, so that every CTA multiplies as many slices as any other ("stream-K").
//
// What limits: a scheduler can issue one FMA per clock. Registers lie in two banks, by their number's last bit, and each
// delivers one operand per clock; a third has to be one that the FMA before had in the same place (SASS: .reuse). So an
// element of B is kept for a column of sums, and the element of A and the sum have to lie in different banks. ptxas finds
// such registers if nothing else asks for certain ones: operands lie in rows along M and N (rows along K would put all
// elements of one k into one bank), sums begin by single moves and leave through shuffles, and what is not needed in the
// loop is computed again. The loop is one slice, short enough for the instruction cache: 32 KB, at 16 bytes an
// instruction.
// device/hopper.cuh comes in front of this text.
// Source: Osama, Merrill, Cecka et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
// Multiplication on the GPU".

#define WARPS_M 2
#define WARPS_N 4
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

__device__ __forceinline__ void produce(const TensorMap *a_map, const TensorMap *b_map, const Sizes &s, int whole,
                                        Ring ring) {
    Walk walk = begin_walk();
    Tile tile;
    Piece piece;
    for (int n = 0; find_piece(n, piece, s, whole); ++n) {
        locate(piece.item, walk, tile, s, 0, 0);
#pragma unroll 1
        for (int slice = piece.first; slice < piece.last; ++slice) {
            // A barrier's first phase counts as complete when the other parity is asked for: the ring starts empty.
            wait_barrier(ring.at + EMPTY, ring.phase ^ 1);
            expect_bytes(ring.at + FULL, A_BYTES + B_BYTES);
            load_box(a_map, ring.at, ring.at + FULL, tile.m, slice * BLOCK_K, tile.inner * s.a_inner,
                     tile.outer * s.a_outer);
            load_box(b_map, ring.at + A_BYTES, ring.at + FULL, tile.n, slice * BLOCK_K, tile.inner * s.b_inner,
                     tile.outer * s.b_outer);
            ring.step();
        }
    }
    // Behind the last slice comes an empty one: those who multiply fetch the first operands of the next, whatever it is.
    wait_barrier(ring.at + EMPTY, ring.phase ^ 1);
    arrive(ring.at + FULL);
}

// ---- Multiplication: lane (u, v) = (lane % 8, lane / 8) multiplies the rows 4 u + 32 (i / 4) + i % 4 by the columns
// 4 v + 16 (j / 4) + j % 4 of its warp's tile.
struct Sums { float x[THREAD_M][THREAD_N]; };

__device__ __forceinline__ int row_of(int i, int u) { return 4 * u + i / 4 * 32 + i % 4; }
__device__ __forceinline__ int column_of(int j, int v) { return 4 * v + j / 4 * 16 + j % 4; }

// What one lane holds of A and B between steps: this k and the next.
struct Fragments { float a[2][THREAD_M], b[2][THREAD_N]; };

// Offsets of this lane in a slice of A and of B.
struct Lane { u32 a, b; };

__device__ __forceinline__ Lane place_lane(int warp_m, int warp_n, int lane) {
    Lane place = {(warp_m * WARP_M + row_of(0, lane % 8)) * 4u, A_BYTES + (warp_n * WARP_N + column_of(0, lane / 8)) * 4u};
    asm volatile("" : "+r"(place.a), "+r"(place.b));  // kept, not computed again
    return place;
}

__device__ __forceinline__ void read4(float *to, u32 from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(from) : "memory");
}

// Fetch this lane's factors of step k of the slice at `at`.
__device__ __forceinline__ void fetch(Fragments &f, const Lane &lane, u32 at, int k) {
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) read4(f.b[k % 2] + j, at + lane.b + (k * BLOCK_N + column_of(j, 0)) * 4);
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 4) read4(f.a[k % 2] + i, at + lane.a + (k * BLOCK_M + row_of(i, 0)) * 4);
}

// Multiply the slice at `at`, whose first factors are there, and fetch those of the next slice once it is full.
__device__ __forceinline__ void multiply(Sums &sums, Fragments &f, const Lane &lane, u32 at, const Ring &next) {
#pragma unroll
    for (int k = 0; k < BLOCK_K; ++k) {
        if (k == BLOCK_K - 1) wait_barrier(next.at + FULL, next.phase);
        if (k < BLOCK_K - 1) fetch(f, lane, at, k + 1);
        else fetch(f, lane, next.at, 0);
        // Down a column and up the next one, so that the turn keeps a factor too.
#pragma unroll
        for (int turn = 0; turn < THREAD_M * THREAD_N; ++turn) {
            const int c = turn / THREAD_M, r = turn % THREAD_M;
            const int j = c ^ c >> 1, i = c % 2 ? THREAD_M - 1 - r : r;
            sums.x[i][j] = fmaf(f.a[k % 2][i], f.b[k % 2][j], sums.x[i][j]);
        }
    }
}

// By single moves: zeros by pairs would decide the sums' registers.
__device__ __forceinline__ void clear(Sums &sums) {
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(sums.x[i][j]));
}

// x through a shuffle that changes nothing: where four registers in a row are stored or loaded, they would have to be those
// of the sums.
__device__ __forceinline__ float itself(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

// A matrix, or the part of one, that a tile's sums are written to or added from.
struct Target {
    float *first;
    i64 step_m, step_n;
    int rows, columns;
};

// Write a warp's sums from row m0 and column n0 on. `staging`: its own shared memory, for a C without 16-byte pieces.
__device__ __forceinline__ void store(const Sums &sums, const Target &to, int m0, int n0, int lane, char *staging) {
    const int u = lane % 8, v = lane / 8;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        float *row = to.first + (m0 + row_of(i, u)) * to.step_m;
        if (!WIDE_STORE && i % 2 == 0) __syncwarp();
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            const float(&row_sums)[THREAD_N] = sums.x[i];
            const float4 x = {itself(row_sums[j], lane), itself(row_sums[j + 1], lane), itself(row_sums[j + 2], lane),
                              itself(row_sums[j + 3], lane)};
            const int n = n0 + column_of(j, v);
            if (!WIDE_STORE)
                *(float4 *)(staging + (i % 2 * 8 + u) * (WARP_N * 4) + ((v + j) ^ (u % (WARP_N / 4))) * 16) = x;
            else if (n < to.columns && m0 + row_of(i, u) < to.rows) *(float4 *)(row + n) = x;
        }
        if (WIDE_STORE || i % 2 == 0) continue;
        // Sixteen rows are staged: a store takes 32 neighbours of one.
        __syncwarp();
#pragma unroll 1  // unrolled, it takes registers from the sums
        for (int slot = 0; slot < 16; ++slot) {
            const int m = m0 + row_of(i - 1 + slot / 8, slot % 8);
            const float *from = (const float *)(staging + slot * (WARP_N * 4));
            float *row = to.first + m * to.step_m;
#pragma unroll
            for (int x = lane; x < WARP_N; x += 32)
                if (m < to.rows && n0 + x < to.columns)
                    row[(n0 + x) * to.step_n] = from[((x / 4) ^ (slot % 8 % (WARP_N / 4))) * 4 + x % 4];
        }
    }
}

// ---- The parts of a tile meet in memory.
__device__ __forceinline__ void meet_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// `launch` is a number that memory holds by no chance: what it was before says that nothing is there yet.
__device__ __forceinline__ void publish(u64 *flag, u64 launch) {
    meet_consumers();
    if (threadIdx.x == 0) {
        __threadfence();
        asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(launch) : "memory");
    }
}

__device__ __forceinline__ void add_part(Sums &sums, const float *part, u64 *flag, u64 launch, int m0, int n0, int lane) {
    if (threadIdx.x == 0) {
        u64 found;
        do {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(flag) : "memory");
        } while (found != launch);
        *flag = ~launch;  // a graph launches with the same number again
    }
    meet_consumers();
    const float *first = part + (m0 + row_of(0, lane % 8)) * BLOCK_N + n0 + column_of(0, lane / 8);
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            const float4 x = __ldcg((const float4 *)(first + row_of(i, 0) * BLOCK_N + column_of(j, 0)));
            sums.x[i][j] += itself(x.x, lane), sums.x[i][j + 1] += itself(x.y, lane);
            sums.x[i][j + 2] += itself(x.z, lane), sums.x[i][j + 3] += itself(x.w, lane);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_hopper_stream(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float *c,
             const __grid_constant__ Sizes sizes, int whole, float *parts, u64 launch) {
    extern __shared__ __align__(1024) char shared[];
    Ring ring = {shared_address(shared), shared_address(shared), 0};
    const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(ring.at + stage * STAGE_BYTES + FULL, 1);
            init_barrier(ring.at + stage * STAGE_BYTES + EMPTY, CONSUMER_WARPS);
        }
        // The copy engine must see the barriers before it signals them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    release_successor();
    wait_for_predecessor();
    if (warp >= CONSUMER_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == CONSUMER_WARPS && elect_one()) produce(&a_map, &b_map, sizes, whole, ring);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    u64 *flags = (u64 *)(parts + (i64)gridDim.x * (BLOCK_M * BLOCK_N));
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    Sums sums;
    const Lane place = place_lane(warp_m, warp_n, lane);
    Fragments fragments;
    Piece piece;
    wait_barrier(ring.at + FULL, ring.phase);
    for (int n = 0; find_piece(n, piece, sizes, whole); ++n) {
        clear(sums);
        fetch(fragments, place, ring.at, 0);  // again: the last store had no registers for them
#pragma unroll 1
        for (int left = piece.last - piece.first; left; --left) {
            const u32 here = ring.at;
            ring.step();
            multiply(sums, fragments, place, here, ring);
            __syncwarp();
            if (lane == 0) arrive(here + EMPTY);
        }
        asm volatile("" : "+r"(n));  // the piece is computed again, not kept
        find_piece(n, piece, sizes, whole);
        int m0 = warp_m * WARP_M, n0 = warp_n * WARP_N;
        Target to = {parts + (i64)rank_here() * (BLOCK_M * BLOCK_N), BLOCK_N, 1, BLOCK_M, BLOCK_N};
        if (piece.first == 0) {
            const int slices = slices_of(sizes);
            const int shared_slices = (sizes.items - whole) * slices, end = (piece.item - whole + 1) * slices;
            int covered = end - slices + piece.last;
            for (int other = rank_here() + 1; piece.last < slices && covered < end; ++other) {
                add_part(sums, parts + (i64)other * (BLOCK_M * BLOCK_N), flags + other, launch, m0, n0, lane);
                covered = begin_of(other + 1, shared_slices);
            }
            Walk walk = begin_walk();
            Tile tile;
            locate(piece.item, walk, tile, sizes, 0, 0);
            to = {c + tile.outer * sizes.c_outer + tile.inner * sizes.c_inner, sizes.c_m, sizes.c_n, sizes.M, sizes.N};
            m0 += tile.m, n0 += tile.n;
        }
        store(sums, to, m0, n0, lane, shared + STAGES * STAGE_BYTES + warp * STAGING_BYTES);
        if (piece.first > 0) publish(flags + rank_here(), launch);
    }
}
