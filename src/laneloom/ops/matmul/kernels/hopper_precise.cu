// C = alpha A B in full precision on Hopper: FP32 by FMA, FP64 by matrix instructions (DMMA). One warp fills a ring of
// K-slices by TMA, eight warps multiply; persistent.
//
// FP64 lies in shared memory in panels of 8 elements, 64 bytes, of whichever axis is contiguous, swizzled by TMA so that
// a half warp's 8-byte reads meet no bank twice.
// FP32 lies there in rows along M (N), as a launch ahead copies an operand that is contiguous along K: neighbours of a row
// are then neighbours in registers, and an FMA rarely reads two registers of one bank (one in ten; one in three where A
// comes in rows along K, whose elements of one k all stand in registers of one parity).
// device/hopper.cuh comes in front of this text.

#define WARPS_M 2
#define WARPS_N 4
#define CONSUMER_WARPS (WARPS_M * WARPS_N)
#define THREADS (32 * CONSUMER_WARPS + 128)  // registers are handed over between whole warpgroups
#define BLOCK_K (128 / (int)sizeof(VALUE))
#define A_BYTES (BLOCK_M * 128)
#define B_BYTES (BLOCK_N * 128)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define WARP_M (BLOCK_M / WARPS_M)
#define WARP_N (BLOCK_N / WARPS_N)

__device__ __forceinline__ void load_operand(const TensorMap *map, u32 to, u32 barrier, bool along_k, int block, int k,
                                             int row, int inner, int outer) {
    if (IS_FP64 && along_k) {
#pragma unroll 1
        for (int group = 0; group < BLOCK_K / 8; ++group)
            load_box(map, to + group * (block * 64), barrier, 1, k + 8 * group, row, inner, outer);
    } else if (IS_FP64) {
#pragma unroll 1
        for (int panel = 0; panel < block / 8; ++panel)
            load_box(map, to + panel * (BLOCK_K * 64), barrier, 1, row + 8 * panel, k, inner, outer);
    } else {
        load_box(map, to, barrier, 1, row, k, inner, outer);
    }
}

__device__ __forceinline__ void produce(const TensorMap *a_map, const TensorMap *b_map, const Sizes &s, u32 ring,
                                        u32 full, u32 empty) {
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K;
    u32 stage = 0, phase = 0;
    Walk walk = begin_walk();
    Tile tile;
    for (int item = blockIdx.x; locate(item, walk, tile, s, 0, 0); item += gridDim.x) {
#pragma unroll 1
        for (int slice = 0; slice < slices; ++slice) {
            // A barrier's first phase counts as complete when the other parity is asked for: the ring starts empty.
            wait_barrier(empty + 8 * stage, phase ^ 1);
            const u32 barrier = full + 8 * stage, to = ring + stage * STAGE_BYTES;
            expect_bytes(barrier, STAGE_BYTES);
            load_operand(a_map, to, barrier, !A_IS_KM, BLOCK_M, slice * BLOCK_K, tile.m, tile.inner * s.a_inner,
                         tile.outer * s.a_outer);
            load_operand(b_map, to + A_BYTES, barrier, B_IS_NK, BLOCK_N, slice * BLOCK_K, tile.n,
                         tile.inner * s.b_inner, tile.outer * s.b_outer);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

#if IS_FP64
// ---- FP64: mma m16n8k8. Lane (r, q) = (lane / 4, lane % 4) has A[r, q], B[q, r] and C[r, 2 q] of each 8 x 4 (4 x 8, 8 x 8)
// block. Which k stands at q is free, as long as A and B agree: element q % 2 + q / 2 * 4 + 2 s of a group of 8 in step s,
// so that 16 lanes, of which 4 rows and all q, read 128 different bytes of a panel's 128-byte period.
#define BLOCKS_M (WARP_M / 16)
#define BLOCKS_N (WARP_N / 8)

struct Sums { double x[BLOCKS_M][BLOCKS_N][4]; };

// Where lane (r, q) finds its element of step s, relative to its block of 8 rows (columns) in the group of 8 k.
__device__ __forceinline__ int lane_offset(bool along_k, int r, int q, int s) {
    const int k = q % 2 + q / 2 * 4 + 2 * s;
    const int chunk = (r / 2 ^ k / 2) & 3;
    return (along_k ? r : k) * 64 + chunk * 16 + (along_k ? k % 2 : r % 2) * 8;
}

// Where block `row` / 8 of an operand's rows starts in group `group`.
__device__ __forceinline__ int block_offset(bool along_k, int block, int row, int group) {
    return along_k ? group * (block * 64) + row * 64 : row / 8 * (BLOCK_K * 64) + group * 8 * 64;
}

// What one lane holds of A and B between steps: one block of rows of A ahead, one group of 8 k of B ahead.
struct Fragments { double a[2][2][2], b[2][BLOCKS_N][2]; };

// Offsets of this lane in a slice of A and of B, for both steps s of a group.
struct Lane { int a[2], b[2]; };

__device__ __forceinline__ Lane place_lane(int warp_m, int warp_n, int lane) {
    Lane result;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        result.a[s] = lane_offset(!A_IS_KM, lane / 4, lane % 4, s) + block_offset(!A_IS_KM, BLOCK_M, warp_m * WARP_M, 0);
        result.b[s] =
            A_BYTES + lane_offset(B_IS_NK, lane / 4, lane % 4, s) + block_offset(B_IS_NK, BLOCK_N, warp_n * WARP_N, 0);
    }
    return result;
}

__device__ __forceinline__ void fetch_a(Fragments &f, const char *slice, const Lane &lane, int i, int group) {
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            f.a[i % 2][h][s] =
                *(const double *)(slice + lane.a[s] + block_offset(!A_IS_KM, BLOCK_M, 16 * i + 8 * h, group));
}

__device__ __forceinline__ void fetch_b(Fragments &f, const char *slice, const Lane &lane, int j, int group) {
#pragma unroll
    for (int s = 0; s < 2; ++s)
        f.b[group % 2][j][s] = *(const double *)(slice + lane.b[s] + block_offset(B_IS_NK, BLOCK_N, 8 * j, group));
}

__device__ __forceinline__ void fetch_first(Fragments &f, const char *slice, const Lane &lane) {
    fetch_a(f, slice, lane, 0, 0);
#pragma unroll
    for (int j = 0; j < BLOCKS_N; ++j) fetch_b(f, slice, lane, j, 0);
}

// Multiply one slice, whose first fragments are there, and fetch those of `next`, once it is full. Without `more` slices
// in this tile, what is fetched is not used.
__device__ __forceinline__ void multiply(Sums &sums, Fragments &f, const char *slice, const char *next, bool more,
                                         u32 next_full, u32 next_phase, const Lane &lane) {
    constexpr int GROUPS = BLOCK_K / 8;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        const bool last = group == GROUPS - 1;
        if (last && more) wait_barrier(next_full, next_phase);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) {
            if (i < BLOCKS_M - 1) fetch_a(f, slice, lane, i + 1, group);
            else if (!last) fetch_a(f, slice, lane, 0, group + 1);
            else fetch_a(f, next, lane, 0, 0);
#pragma unroll
            for (int j = i * BLOCKS_N / BLOCKS_M; j < (i + 1) * BLOCKS_N / BLOCKS_M; ++j) {
                if (!last) fetch_b(f, slice, lane, j, group + 1);
                else fetch_b(f, next, lane, j, 0);
            }
#pragma unroll
            for (int j = 0; j < BLOCKS_N; ++j) {
                double(&c)[4] = sums.x[i][j];
                const double(&a)[2][2] = f.a[i % 2];
                const double(&b)[2] = f.b[group % 2][j];
                asm volatile(
                    "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                    "{%0, %1, %2, %3};"
                    : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                    : "d"(a[0][0]), "d"(a[1][0]), "d"(a[0][1]), "d"(a[1][1]), "d"(b[0]), "d"(b[1]));
            }
        }
    }
}

__device__ __forceinline__ void clear(Sums &sums) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums.x[i][j][e] = 0;
}

__device__ __forceinline__ void store(Sums &sums, double *c, const Sizes &s, const Tile &tile, int warp_m,
                                      int warp_n, int lane, double alpha) {
    const int r = lane / 4, q = lane % 4;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int m = tile.m + warp_m * WARP_M + 16 * i + 8 * h + r;
            if (m >= s.M) continue;
            double *row = c + m * s.c_m;
#pragma unroll
            for (int j = 0; j < BLOCKS_N; ++j) {
                const int n = tile.n + warp_n * WARP_N + 8 * j + 2 * q;
                const double x[2] = {alpha * sums.x[i][j][2 * h], alpha * sums.x[i][j][2 * h + 1]};
                if (WIDE_STORE) {
                    if (n < s.N) *(double2 *)(row + n) = make_double2(x[0], x[1]);
                } else {
                    if (n < s.N) row[n * s.c_n] = x[0];
                    if (n + 1 < s.N) row[(n + 1) * s.c_n] = x[1];
                }
            }
        }
}
#else
// ---- FP32: lane (u, v) = (lane % 8, lane / 8) multiplies the rows 4 u + 32 (i / 4) + i % 4 by the columns
// 4 v + 16 (j / 4) + j % 4 of its warp's tile.
#define THREAD_M (WARP_M / 8)
#define UNROLLED 16  // k, an even number
#define THREAD_N (WARP_N / 4)

struct Sums { float x[THREAD_M][THREAD_N]; };

__device__ __forceinline__ int row_of(int i, int u) { return 4 * u + i / 4 * 32 + i % 4; }
__device__ __forceinline__ int column_of(int j, int v) { return 4 * v + j / 4 * 16 + j % 4; }

// What one lane holds of A and B between steps: this k and the next.
struct Fragments { float a[2][THREAD_M], b[2][THREAD_N]; };

// Offsets of this lane in a slice of A and of B.
struct Lane { int a, b; };

__device__ __forceinline__ Lane place_lane(int warp_m, int warp_n, int lane) {
    return {(warp_m * WARP_M + row_of(0, lane % 8)) * 4, A_BYTES + (warp_n * WARP_N + column_of(0, lane / 8)) * 4};
}

// From where this lane's part of row 0 of A and of B lies.
__device__ __forceinline__ void fetch(Fragments &f, const char *a, const char *b, int k) {
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 4) {
        const float4 x = *(const float4 *)(a + (k * BLOCK_M + row_of(i, 0)) * 4);
        f.a[k % 2][i] = x.x, f.a[k % 2][i + 1] = x.y, f.a[k % 2][i + 2] = x.z, f.a[k % 2][i + 3] = x.w;
    }
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) {
        const float4 x = *(const float4 *)(b + (k * BLOCK_N + column_of(j, 0)) * 4);
        f.b[k % 2][j] = x.x, f.b[k % 2][j + 1] = x.y, f.b[k % 2][j + 2] = x.z, f.b[k % 2][j + 3] = x.w;
    }
}

__device__ __forceinline__ void fetch_first(Fragments &f, const char *slice, const Lane &lane) {
    fetch(f, slice + lane.a, slice + lane.b, 0);
}

// Multiply one slice, whose first fragments are there, and fetch those of `next`, once it is full. Without `more` slices
// in this tile, what is fetched is not used.
__device__ __forceinline__ void multiply(Sums &sums, Fragments &f, const char *slice, const char *next, bool more,
                                         u32 next_full, u32 next_phase, const Lane &lane) {
    // Not all of a slice is unrolled: its code would not stay in the instruction cache.
#pragma unroll 1
    for (int first = 0; first < BLOCK_K; first += UNROLLED) {
        const char *a = slice + lane.a + first * BLOCK_M * 4, *b = slice + lane.b + first * BLOCK_N * 4;
        const bool last = first + UNROLLED == BLOCK_K;
#pragma unroll
        for (int k = 0; k < UNROLLED; ++k) {
            if (k < UNROLLED - 1) {
                fetch(f, a, b, k + 1);
            } else {
                if (last && more) wait_barrier(next_full, next_phase);
                fetch(f, last ? next + lane.a : a + UNROLLED * BLOCK_M * 4, last ? next + lane.b : b + UNROLLED * BLOCK_N * 4,
                      0);
            }
            const float(&x)[THREAD_M] = f.a[k % 2];
            const float(&y)[THREAD_N] = f.b[k % 2];
            // Two columns at a time, down and up the rows: an FMA finds one of its factors where the last one left it.
#pragma unroll
            for (int j = 0; j < THREAD_N; j += 2)
#pragma unroll
                for (int r = 0; r < THREAD_M; ++r) {
                    const int i = j % 4 ? THREAD_M - 1 - r : r, e = r & 1;
                    sums.x[i][j + e] = fmaf(x[i], y[j + e], sums.x[i][j + e]);
                    sums.x[i][j + 1 - e] = fmaf(x[i], y[j + 1 - e], sums.x[i][j + 1 - e]);
                }
        }
    }
}

__device__ __forceinline__ void clear(Sums &sums) {
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) sums.x[i][j] = 0;
}

__device__ __forceinline__ void store(Sums &sums, float *c, const Sizes &s, const Tile &tile, int warp_m, int warp_n,
                                      int lane, float alpha) {
    const int u = lane % 8, v = lane / 8;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const int m = tile.m + warp_m * WARP_M + row_of(i, u);
        if (m >= s.M) continue;
        float *row = c + m * s.c_m;
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) sums.x[i][j] *= alpha;
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            const int n = tile.n + warp_n * WARP_N + column_of(j, v);
            if (WIDE_STORE) {
                if (n < s.N) *(float4 *)(row + n) = make_float4(sums.x[i][j], sums.x[i][j + 1], sums.x[i][j + 2], sums.x[i][j + 3]);
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int column = tile.n + warp_n * WARP_N + column_of(j + e, v);
                    if (column < s.N) row[column * s.c_n] = sums.x[i][j + e];
                }
            }
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_hopper_precise(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, VALUE *c,
                      const __grid_constant__ Sizes sizes, VALUE alpha) {
    extern __shared__ __align__(1024) char shared[];
    const u32 ring = shared_address(shared), full = ring + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(full + 8 * stage, 1);
            init_barrier(empty + 8 * stage, CONSUMER_WARPS);
        }
        // The copy engine must see the barriers before it signals them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    release_successor();
    wait_for_predecessor();
    if (warp >= CONSUMER_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == CONSUMER_WARPS && lane == 0) produce(&a_map, &b_map, sizes, ring, full, empty);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int slices = (sizes.K + BLOCK_K - 1) / BLOCK_K;
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    u32 stage = 0, phase = 0;
    Sums sums;
    const Lane place = place_lane(warp_m, warp_n, lane);
    Fragments fragments;
    Walk walk = begin_walk();
    Tile tile;
    for (int item = blockIdx.x; locate(item, walk, tile, sizes, 0, 0); item += gridDim.x) {
        clear(sums);
        wait_barrier(full + 8 * stage, phase);
        fetch_first(fragments, shared + stage * STAGE_BYTES, place);
#pragma unroll 1
        for (int slice = 0; slice < slices; ++slice) {
            const u32 here = stage;
            if (++stage == STAGES) stage = 0, phase ^= 1;
            multiply(sums, fragments, shared + here * STAGE_BYTES, shared + stage * STAGE_BYTES, slice + 1 < slices,
                     full + 8 * stage, phase, place);
            __syncwarp();
            if (lane == 0) arrive(empty + 8 * here);
        }
        store(sums, c + tile.outer * sizes.c_outer + tile.inner * sizes.c_inner, sizes, tile, warp_m, warp_n, lane,
              alpha);
    }
}
