// C = A B in FP32 by FMA on Hopper. One warpgroup fills a ring of K-slices, four or eight warps multiply; persistent. Of four
// warps that multiply an SM holds two CTAs: one warp a scheduler keeps it half busy, and one CTA stores while the
// other multiplies.
//
// What limits: a scheduler can issue one FMA per clock. Registers lie in two banks, by their number's last bit, and each
// delivers one operand per clock; a third has to be one that the FMA before had in the same place (SASS: .reuse). So an
// element of B is kept for a column of sums, and the element of A and the sum have to lie in different banks. ptxas finds
// such registers if nothing else asks for certain ones: operands lie in rows along M and N (rows along K would put all
// elements of one k into one bank), sums begin by single moves and leave through shuffles, and what is not needed in the
// loop is computed again. The loop is one slice, short enough for the instruction cache: 32 KB, at 16 bytes an
// instruction.
// device/hopper.cuh, hopper_shares.cuh and hopper_stream_feed.cuh come in front of this text.

// ---- Multiplication: lane (u, v) multiplies the rows 4 u + 32 (i / 4) + i % 4 by the columns
// 4 v + 16 (j / 4) + j % 4 of its warp's tile.
struct Sums { float x[THREAD_M][THREAD_N]; };

// Reading 16 bytes a lane takes half the time where lanes i and i ^ 1 or i and i ^ 2 read the same. Large tiles, which read
// less, are 1 to 2% faster in the plain order.
#define PAIRED (THREAD_M * THREAD_N <= 32)
__device__ __forceinline__ int lane_u(int lane) { return PAIRED ? lane / 2 % 4 + lane / 16 * 4 : lane % 8; }
__device__ __forceinline__ int lane_v(int lane) { return PAIRED ? lane % 2 + lane / 8 % 2 * 2 : lane / 8; }
__device__ __forceinline__ int lane_of(int u, int v) {
    return PAIRED ? v % 2 + u % 4 * 2 + v / 2 * 8 + u / 4 * 16 : u + 8 * v;
}

__device__ __forceinline__ int row_of(int i, int u) {
    return A_LANES == AS_IT_LIES ? u + 8 * i : 4 * u + i / 4 * 32 + i % 4;
}
__device__ __forceinline__ int column_of(int j, int v) { return 4 * v + j / 4 * 16 + j % 4; }

// What one lane holds of A and B between steps: this k and the next, of an A that is read along K these four and the next.
#define A_STEPS (A_LANES == AS_IT_LIES ? 4 : 1)
struct Fragments { float a[2][THREAD_M * A_STEPS], b[2][THREAD_N]; };

// Offsets of this lane in a slice of A and of B.
struct Lane { u32 a, b; };

__device__ __forceinline__ Lane place_lane(int warp_m, int warp_n, int lane) {
    const int u = lane_u(lane);
    Lane place = {(warp_m * WARP_M + row_of(0, u)) * 4u * (A_LANES == AS_IT_LIES ? BLOCK_K : 1) +
                      (A_LANES == AS_IT_LIES ? u / 2 % 4 * 16 : 0),
                  A_BYTES + (warp_n * WARP_N + column_of(0, lane_v(lane))) * 4u};
    asm volatile("" : "+r"(place.a), "+r"(place.b));  // kept, not computed again
    return place;
}

// Where a lane's factors lie whose piece of 16 bytes is `at` in step k: rows that came along K are spread over the banks.
__device__ __forceinline__ u32 spread(u32 at, int k, bool along_k) { return along_k ? at ^ k % 8 * 16 : at; }

// Fetch this lane's factors of step k of the slice at `at`.
__device__ __forceinline__ void fetch(Fragments &f, const Lane &lane, u32 at, int k) {
    const u32 b = spread(at + lane.b, k % 4, B_LANES >= ALONG_K);
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) {
        if (WARP_N % 32) {  // its pieces do not lie in lines of their own
            read4(f.b[k % 2] + j, spread(at + lane.b + column_of(j, 0) * 4, k, B_LANES >= ALONG_K) + k * BLOCK_N * 4);
        } else {
            const int turned = B_LANES >= ALONG_K && k % 8 >= 4 ? j ^ 4 : j;
            read4(f.b[k % 2] + j, b + (k * BLOCK_N + column_of(turned, 0)) * 4);
        }
    }
    if (A_LANES == AS_IT_LIES) return;
    const u32 a = spread(at + lane.a, k, A_LANES == ALONG_K || A_LANES == TURNED);
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 4) read4(f.a[k % 2] + i, a + (k * BLOCK_M + row_of(i, 0)) * 4);
}

// Fetch this lane's factors of A at the steps from k on of the slice at `at`, every fourth row from `first` on.
__device__ __forceinline__ void fetch_four(Fragments &f, const Lane &lane, u32 at, int k, int first) {
    const u32 a = at + (lane.a ^ k * 4);
#pragma unroll
    for (int i = first; i < THREAD_M; i += 4) read4(f.a[k / 4 % 2] + 4 * i, a + i * 8 * BLOCK_K * 4);
}

// Multiply the slice at `at`, whose first factors are there, and fetch those of the next slice once it is full.
__device__ __forceinline__ void multiply(Sums &sums, Fragments &f, const Lane &lane, u32 at, const Ring &next) {
#pragma unroll
    for (int k = 0; k < BLOCK_K; ++k) {
        if (k == BLOCK_K - A_STEPS) wait_barrier(next.at + FULL, next.phase);
        if (k < BLOCK_K - 1) fetch(f, lane, at, k + 1);
        else fetch(f, lane, next.at, 0);
        if (A_LANES == AS_IT_LIES) {
            if (k < BLOCK_K - 4) fetch_four(f, lane, at, k / 4 * 4 + 4, k % 4);
            else fetch_four(f, lane, next.at, 0, k % 4);
        }
        // Down a column and up the next one, so that the turn keeps a factor too.
#pragma unroll
        for (int turn = 0; turn < THREAD_M * THREAD_N; ++turn) {
            const int c = turn / THREAD_M, r = turn % THREAD_M;
            int j = THREAD_N % 8 ? c / 4 * 4 + (c % 4 ^ c % 4 / 2) : c ^ c >> 1, i = c % 2 ? THREAD_M - 1 - r : r;
            // All elements of A lie in one bank then: one is kept along a row. With 64 sums and more ptxas finds no
            // such order, and turned boxes are faster.
            if (A_LANES == AS_IT_LIES) i = turn / THREAD_N, j = i % 2 ? THREAD_N - 1 - turn % THREAD_N : turn % THREAD_N;
            sums.x[i][j] = fmaf(f.a[k / A_STEPS % 2][i * A_STEPS + k % A_STEPS], f.b[k % 2][j], sums.x[i][j]);
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

// Sums are stored and loaded through shuffles: four registers in a row would have to be those of the sums, all the time.
__device__ __forceinline__ float of_lane(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

__device__ __forceinline__ float4 four_of(const float *x, int lane) {
    return {of_lane(x[0], lane), of_lane(x[1], lane), of_lane(x[2], lane), of_lane(x[3], lane)};
}

// The same where nothing moves: zero, which the compiler does not know, takes less of the way to shared memory than a shuffle.
__device__ __forceinline__ float apart(float x, u32 zero) { return __uint_as_float(__float_as_uint(x) | zero); }

// Pieces of 16 bytes of a row of C that are exchanged in shared memory, against bank conflicts: a power of two.
#define TWISTED (WARP_N / 4 & -(WARP_N / 4))

// Elements of C that a lane stores, neighbours, where it cannot be four.
struct __align__(4 * C_VECTOR) Few { float x[C_VECTOR]; };

// Write sixteen rows that are staged, rows `first_row` and first_row + 1 of each lane: eight that lie apart, and their neighbours.
__device__ __forceinline__ void store_staged(const char *staging, float *first, const Sizes &s, int m0, int n0, int first_row,
                                             int lane) {
    constexpr int OF_ROW = WARP_N / C_VECTOR, LANES = OF_ROW <= 8 ? 8 : OF_ROW <= 16 ? 16 : 32, ROWS = 32 / LANES;
    constexpr int ACROSS = (OF_ROW + LANES - 1) / LANES;
    constexpr int AT_ONCE = ROWS > 2 ? 2 : 4;  // stores of 32 lanes that are under way, of rows that lie as far apart
    const int step = row_of(0, 1), column = lane % LANES * C_VECTOR;
#pragma unroll 1  // unrolled, it takes registers from the sums
    for (int begin = 0; begin < 16; begin += AT_ONCE * ROWS) {
        const int slot = begin + lane / LANES, m = m0 + row_of(first_row, 0) + slot / 8 * row_of(1, 0) + slot % 8 * step;
        float *row = first + m * s.c_m + (n0 + column) * s.c_n;
        Few x[AT_ONCE][ACROSS];
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r)
#pragma unroll
            for (int across = 0; across < ACROSS; ++across) {
                const int n = column + LANES * C_VECTOR * across, u = slot + r * ROWS;
                const float *staged = (const float *)(staging + u * (WARP_N * 4));
                if (OF_ROW % LANES == 0 || n < WARP_N)
                    x[r][across] = *(const Few *)(staged + ((n / 4) ^ u % 8 % TWISTED) * 4 + n % 4);
            }
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r, row += ROWS * step * s.c_m)
#pragma unroll
            for (int across = 0; across < ACROSS; ++across) {
                const int n = column + LANES * C_VECTOR * across;
                const bool there = n0 + n < s.N && m + r * ROWS * step < s.M;
                if ((OF_ROW % LANES == 0 || n < WARP_N) && there) *(Few *)(row + LANES * C_VECTOR * across * s.c_n) = x[r][across];
            }
    }
}

// Write a warp's sums from row m0 and column n0 on: four neighbouring lanes 64 bytes of a row. `staging`: the warp's own
// shared memory, for a C without 16-byte pieces.
__device__ __forceinline__ void store(const Sums &sums, float *first, const Sizes &s, int m0, int n0, int lane,
                                      char *staging) {
    const int u = WIDE_STORE ? lane / 4 : lane_u(lane), v = WIDE_STORE ? lane % 4 : lane_v(lane), from = lane_of(u, v);
    const u32 zero = (u32)s.M >> 31;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        float *row = first + (m0 + row_of(i, u)) * s.c_m;
        if (!WIDE_STORE && i % 2 == 0) __syncwarp();
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            const float(&of)[THREAD_N] = sums.x[i];
            const int n = n0 + column_of(j, v);
            if (!WIDE_STORE) {
                *(float4 *)(staging + (i % 2 * 8 + u) * (WARP_N * 4) + ((v + j) ^ u % TWISTED) * 16) =
                    make_float4(apart(of[j], zero), apart(of[j + 1], zero), apart(of[j + 2], zero), apart(of[j + 3], zero));
            } else {
                const float4 x = four_of(of + j, from);
                if (n < s.N && m0 + row_of(i, u) < s.M) *(float4 *)(row + n) = x;
            }
        }
        if (WIDE_STORE || i % 2 == 0) continue;
        __syncwarp();
        store_staged(staging, first, s, m0, n0, i - 1, lane);
    }
}

// ---- Parts.
// A part lies as the lanes hold it: the n-th 16 bytes of all threads are neighbours.
__device__ __forceinline__ void store_part(const Sums &sums, float *part, int lane) {
    float4 *to = (float4 *)part + threadIdx.x;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) to[(i * THREAD_N + j) / 4 * CONSUMERS] = four_of(sums.x[i] + j, lane);
}

__device__ __forceinline__ void add_part(Sums &sums, const float *part, u64 *flag, u64 launch, int lane) {
    await_part(flag, launch);
    const float4 *from = (const float4 *)part + threadIdx.x;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            const float4 x = __ldcg(from + (i * THREAD_N + j) / 4 * CONSUMERS);
            sums.x[i][j] += of_lane(x.x, lane), sums.x[i][j + 1] += of_lane(x.y, lane);
            sums.x[i][j + 2] += of_lane(x.z, lane), sums.x[i][j + 3] += of_lane(x.w, lane);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
matmul_hopper_stream(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
             const __grid_constant__ Plain a, const __grid_constant__ Plain b, float *c,
             const __grid_constant__ Sizes sizes, int whole, int parts, float *workspace, u64 launch) {
    extern __shared__ __align__(1024) char shared[];
    Ring ring = {shared_address(shared), shared_address(shared), 0};
    const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    if (threadIdx.x == CONSUMERS && !BY_ELEMENTS(A_LANES)) prefetch_map(&a_map);
    if (threadIdx.x == CONSUMERS && !BY_ELEMENTS(B_LANES)) prefetch_map(&b_map);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(ring.at + stage * STAGE_BYTES + FULL, FILLERS);
            if (TURNS) init_barrier(ring.at + stage * STAGE_BYTES + RAW, 1);
            init_barrier(ring.at + stage * STAGE_BYTES + EMPTY, CONSUMER_WARPS);
        }
        // The copy engine must see the barriers before it signals them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    release_successor();
    if (warp >= CONSUMER_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        produce(&a_map, &b_map, a, b, sizes, whole, parts, ring);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    wait_for_predecessor();  // which may still use C and the parts
    u64 *flags = (u64 *)(workspace + (i64)gridDim.x * (BLOCK_M * BLOCK_N));
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    Sums sums;
    const Lane place = place_lane(warp_m, warp_n, lane);
    Fragments fragments;
    Piece piece;
    wait_barrier(ring.at + FULL, ring.phase);
    for (int n = 0; find_piece(n, piece, sizes, whole, parts); ++n) {
        clear(sums);
        fetch(fragments, place, ring.at, 0);  // again: the last store had no registers for them
#pragma unroll
        for (int row = 0; A_LANES == AS_IT_LIES && row < 4; ++row) fetch_four(fragments, place, ring.at, 0, row);
#pragma unroll 1
        for (int left = piece.last - piece.first; left; --left) {
            const u32 here = ring.at;
            ring.step();
            multiply(sums, fragments, place, here, ring);
            __syncwarp();
            if (lane == 0) arrive(here + EMPTY);
        }
        asm volatile("" : "+r"(n));  // the piece is computed again, not kept
        find_piece(n, piece, sizes, whole, parts);
        if (CUT == SHARES && piece.first > 0) {
            store_part(sums, workspace + (i64)rank_here() * (BLOCK_M * BLOCK_N), lane);
            publish(flags + rank_here(), launch);
            continue;
        }
        const int slices = slices_of(sizes);
        const int shared_slices = (sizes.items - whole) * slices, end = (piece.item - whole + 1) * slices;
        int covered = end - slices + piece.last;
        for (int other = rank_here() + 1; CUT == SHARES && piece.last < slices && covered < end; ++other) {
            add_part(sums, workspace + (i64)other * (BLOCK_M * BLOCK_N), flags + other, launch, lane);
            covered = begin_of(other + 1, shared_slices);
        }
        Walk walk = begin_walk();
        Tile tile;
        locate(piece.item, walk, tile, sizes, 0, 0);
        float *first = c + tile.outer * sizes.c_outer + tile.inner * sizes.c_inner;
        store(sums, first, sizes, tile.m + warp_m * WARP_M, tile.n + warp_n * WARP_N, lane,
              shared + STAGES * STAGE_BYTES + warp * STAGING_BYTES);
    }
}
