// C = epilogue(A B) on Hopper: clusters of CTAs that share what they load, one producer warp, warpgroups of wgmma.
//
// Memory: each CTA has a ring of STAGES K-slices of 128 bytes, filled by TMA. CLUSTER_M x CLUSTER_N neighbours in C's
// rows and columns form a cluster: CTAs of one row of tiles need the same A, so each loads a share of it and multicasts
// it to the others; likewise B down a column. A slice is refilled once every consumer that its loads reach is done.
// With PIECES > 1 a slice holds that many pieces of each operand (see device/pieces.py), multiplied in pairs from the
// smallest to the largest.
// Registers: with PROMOTE > 0 the tensor cores' sums are added to FP32 sums by FADD every PROMOTE slices and start
// afresh: their own additions are less precise than FP32's.
// device/hopper.cuh and wgmma(), from hopper_cluster.py, come in front of this text.

#define SLICE_BYTES 128
#define BLOCK_K (SLICE_BYTES / ELEMENT_BYTES)
#define SLAB (BLOCK_M / CONSUMERS)             // rows of one consumer
#define STRIPS (SLAB / 64)                     // wgmmas of 64 rows in a slab
#define ACCUMULATORS (BLOCK_N / 2)             // of one strip, in one thread
#define A_BYTES (BLOCK_M * SLICE_BYTES)        // of one piece of one slice
#define B_BYTES (BLOCK_N * SLICE_BYTES)
#define STAGE_BYTES (PIECES * (A_BYTES + B_BYTES))
#define PEERS (CLUSTER_M * CLUSTER_N)
#define NEIGHBOURS (CLUSTER_M + CLUSTER_N - 1)  // CTAs that a CTA's loads reach, itself among them
#define PANEL (128 / OUT_BYTES)                // columns of C in 128 bytes of staging
#define PANELS_OF_TILE ((BLOCK_N + PANEL - 1) / PANEL)
#define PANEL_BYTES (16 * 128)                 // of one warp's 16 rows
#define THREADS (128 * (CONSUMERS + 1))

// wgmma's description of a tile in shared memory, swizzled by 128 bytes: rows of 128 bytes in groups of 8. `leading` is
// the distance between panels of 64 rows of an operand that is not contiguous along K; without meaning otherwise.
__device__ __forceinline__ u64 describe(u32 address, u32 leading) {
    return (u64)(1u << 30 | 1024 >> 4) << 32 | (leading >> 4 << 16 | address >> 4);
}

__device__ __forceinline__ float activate(float x) {
#if ACTIVATION == 1
    return x < 0.0f ? 0.0f : x;  // not a maximum: NaN stays NaN
#elif ACTIVATION == 2
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
#elif ACTIVATION == 3
    return x / (1.0f + __expf(-x));
#else
    return x;
#endif
}

// What the epilogue reads beside the sums; strides in elements.
struct Terms {
    const void *addend, *bias;
    const float *scale_a, *scale_b;
    i64 addend_outer, addend_inner, addend_m, addend_n, bias_step;
    float alpha, beta;
};

// The epilogue of one strip: activation(alpha scale_a[m] scale_b[n] sum + beta addend[m, n] + bias), element by element.
// Scales: 0 none, 1 one number, 2 one for each row (column). Rows past C's edge read the terms of its last one, columns
// nothing; what comes of them is not stored.
__device__ __forceinline__ void finish(STORED (&acc)[ACCUMULATORS], int m, int n, const Sizes &s,
                                       const Tile &tile, const Terms &terms) {
#if EPILOGUE
    const int row = m + threadIdx.x % 32 / 4, column = n + threadIdx.x % 4 * 2;
    const int columns = s.N - column;  // that exist from here on
    float factor[2], row_bias[2];
    const ADDEND_TYPE *addend[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const i64 mj = min(row + 8 * half, tile.end - 1);
        factor[half] = HAS_ALPHA ? terms.alpha : 1.0f;
        if (SCALE_A) factor[half] *= terms.scale_a[SCALE_A == 2 ? mj : 0];
        if (SCALE_B == 1) factor[half] *= terms.scale_b[0];
        if (BIAS_AXIS == 1) row_bias[half] = as_float(((const BIAS_TYPE *)terms.bias)[mj * terms.bias_step]);
        if (HAS_ADDEND)
            addend[half] = (const ADDEND_TYPE *)terms.addend + tile.outer * terms.addend_outer +
                           tile.inner * terms.addend_inner + mj * terms.addend_m + column * terms.addend_n;
    }
    const i64 addend_step = ADDEND_DENSE ? 1 : terms.addend_n, bias_step = BIAS_DENSE ? 1 : terms.bias_step;
    const BIAS_TYPE *bias = (const BIAS_TYPE *)terms.bias + (BIAS_AXIS == 2 ? column * bias_step : 0);
    const float *scale_b = terms.scale_b + (SCALE_B == 2 ? column : 0);
#pragma unroll
    for (int j = 0; j < ACCUMULATORS; j += 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int x = 2 * j + i;
            if (x >= columns) continue;
            const float scale = SCALE_B == 2 ? scale_b[x] : 1.0f;
            const float column_bias = BIAS_AXIS == 2 ? as_float(bias[x * bias_step]) : 0.0f;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float y = acc[j + 2 * half + i];
                if (HAS_ALPHA || SCALE_A || SCALE_B == 1) y *= factor[half];
                if (SCALE_B == 2) y *= scale;
                if (HAS_ADDEND) y += terms.beta * as_float(addend[half][x * addend_step]);
                if (BIAS_AXIS) y += BIAS_AXIS == 1 ? row_bias[half] : column_bias;
                acc[j + 2 * half + i] = activate(y);
            }
        }
    }
#endif
}

#if OUT_BYTES == 2
// Two neighbours of a 16-bit type.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 bits;
#if OUT_KIND == 0
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
#endif
    return bits;
}
#endif

__device__ __forceinline__ void produce(const TensorMap *a_map, const TensorMap *b_map, const Sizes &s, u32 ring,
                                        u32 full, u32 empty, u32 rank_m, u32 rank_n) {
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K;
    u32 a_mask = 0;
    for (int j = 0; j < CLUSTER_N; ++j) a_mask |= 1u << (rank_m + CLUSTER_M * j);
    const u32 b_mask = ((1u << CLUSTER_M) - 1) << (rank_n * CLUSTER_M);
    u32 stage = 0, phase = 0;
    Walk walk = begin_walk();
    Tile tile;
    for (int item = blockIdx.x / PEERS; locate(item, walk, tile, s, rank_m, rank_n); item += gridDim.x / PEERS) {
#pragma unroll 1
        for (int slice = 0; slice < slices; ++slice) {
            // A barrier's first phase counts as complete when the other parity is asked for: the ring starts empty.
            wait_barrier(empty + 8 * stage, phase ^ 1);
            const u32 barrier = full + 8 * stage;
            expect_bytes(barrier, STAGE_BYTES);
            const int k = slice * BLOCK_K;
            u32 to = ring + stage * STAGE_BYTES;
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                // This CTA's share of the tile: 1 / CLUSTER_N of A's rows in memory, 1 / CLUSTER_M of B's.
                const int a_batch = tile.outer * s.a_outer;
                const int a_inner = PIECES > 1 ? piece : tile.inner * s.a_inner;
#if A_IS_KM
                const u32 rows = BLOCK_K / CLUSTER_N;
#pragma unroll
                for (int panel = 0; panel < BLOCK_M / 64; ++panel)
                    load_box(a_map, to + panel * (BLOCK_K * 128) + rank_n * rows * 128, barrier, a_mask,
                             tile.m + 64 * panel, k + rank_n * rows, a_inner, a_batch);
#else
                const u32 rows = BLOCK_M / CLUSTER_N;
                load_box(a_map, to + rank_n * rows * 128, barrier, a_mask, k, tile.m + rank_n * rows, a_inner, a_batch);
#endif
                to += A_BYTES;
            }
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                const int b_batch = tile.outer * s.b_outer;
                const int b_inner = PIECES > 1 ? piece : tile.inner * s.b_inner;
#if B_IS_NK
                const u32 rows = BLOCK_N / CLUSTER_M;
                load_box(b_map, to + rank_m * rows * 128, barrier, b_mask, k, tile.n + rank_m * rows, b_inner, b_batch);
#else
                const u32 rows = BLOCK_K / CLUSTER_M;
#pragma unroll
                for (int panel = 0; panel < BLOCK_N / 64; ++panel)
                    load_box(b_map, to + panel * (BLOCK_K * 128) + rank_m * rows * 128, barrier, b_mask,
                             tile.n + 64 * panel, k + rank_m * rows, b_inner, b_batch);
#endif
                to += B_BYTES;
            }
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
    // A CTA's shared memory outlives the last signals that neighbours send to its barriers.
    for (int i = 0; PEERS > 1 && i < STAGES; ++i) {
        wait_barrier(empty + 8 * stage, phase ^ 1);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
}

// The sums cannot be read or written between here and the wgmmas around it, whatever the compiler believes.
__device__ __forceinline__ void pin(ACCUMULATOR (&acc)[STRIPS][ACCUMULATORS]) {
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
        for (int j = 0; j < ACCUMULATORS; ++j) asm volatile("" : ACCUMULATOR_OPERAND(acc[strip][j])::"memory");
}

// Multiply one slice: the products of pieces that are within the sums' precision, the smallest first.
__device__ __forceinline__ void multiply(ACCUMULATOR (&acc)[STRIPS][ACCUMULATORS], u32 stage_base, u32 slab,
                                         bool fresh) {
#pragma unroll
    for (int order = PIECES - 1; order >= 0; --order) {  // products of pieces i and j with i + j = order
#pragma unroll
        for (int i = 0; i <= order; ++i) {
            const u32 a = stage_base + i * A_BYTES + slab * (SLAB * 128);
            const u32 b = stage_base + PIECES * A_BYTES + (order - i) * B_BYTES;
            const bool first_pair = order == PIECES - 1 && i == 0;
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                // 32 bytes of K: along a row, or (16-bit types) 16 rows further.
                const u64 b_tile = B_IS_NK ? describe(b + 32 * step, 16) : describe(b + 2048 * step, BLOCK_K * 128);
#pragma unroll
                for (int strip = 0; strip < STRIPS; ++strip) {
                    const u64 a_tile = A_IS_KM ? describe(a + strip * (BLOCK_K * 128) + 2048 * step, BLOCK_K * 128)
                                               : describe(a + strip * (64 * 128) + 32 * step, 16);
                    wgmma(acc[strip], a_tile, b_tile, first_pair && step == 0 ? !fresh : 1);
                }
            }
        }
    }
}

__device__ __forceinline__ void store_strip(STORED (&acc)[ACCUMULATORS], const TensorMap *c_map, OUT_TYPE *c,
                                            const Sizes &s, const Tile &tile, int m, char *staging, const Terms &terms) {
    const int lane = threadIdx.x % 32;
    const int row = lane / 4, pair = lane % 4;  // of wgmma's accumulators: rows row and row + 8, columns 2 pair, + 1
    const u32 buffers = shared_address(staging);
    finish(acc, m, tile.n, s, tile, terms);
    // The copy engine would write all 16 rows: those that reach past a group's end take the masked stores.
    const bool by_tma = TMA_STORE && (!GROUPED || m + 16 <= tile.end);
#pragma unroll
    for (int first = 0; first < PANELS_OF_TILE; first += PANELS) {
        // The copy engine must have read this warp's buffers before they are overwritten.
        if (TMA_STORE && lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncwarp();
#pragma unroll
        for (int p = 0; p < PANELS; ++p) {
            if (first + p >= PANELS_OF_TILE) break;
            const u32 base = buffers + p * PANEL_BYTES;
#if OUT_BYTES == 2
#pragma unroll
            for (int chunk = 0; chunk < 8; chunk += 2) {
                const int j = (first + p) * (PANEL / 2) + chunk * 4;
                if (j >= ACCUMULATORS) break;
                u32 x[4];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    x[i] = j + 2 * i < ACCUMULATORS ? pack(acc[j + 2 * i], acc[j + 2 * i + 1]) : 0;
                // Matrix q of four: rows 8 (q % 2), 16-byte column chunk + q / 2.
                const int q = lane / 8, r = lane % 8 + 8 * (q & 1);
                const u32 at = base + r * 128 + (((chunk + q / 2) ^ (r & 7)) << 4);
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]),
                             "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
            }
#else
#pragma unroll
            for (int block = 0; block < 4; ++block) {  // of 8 columns
                const int j = (first + p) * (PANEL / 2) + block * 4;
                if (j >= ACCUMULATORS) break;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int r = row + 8 * half;
                    const u32 at = base + r * 128 + (((2 * block + pair / 2) ^ (r & 7)) << 4) + (pair & 1) * 8;
                    u32 low, high;
                    memcpy(&low, &acc[j + 2 * half], 4);
                    memcpy(&high, &acc[j + 2 * half + 1], 4);
                    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(low), "r"(high) : "memory");
                }
            }
#endif
        }
        if (by_tma) {
            // This warp's writes become visible to the copy engine before it reads them.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) {
#pragma unroll
                for (int p = 0; p < PANELS; ++p)
                    if (first + p < PANELS_OF_TILE)
                        store_box(c_map, buffers + p * PANEL_BYTES, tile.n + (first + p) * PANEL, m,
                                  GROUPED ? 0 : tile.inner, tile.outer);
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            }
        } else if (!TMA_STORE || GROUPED) {
            __syncwarp();
            OUT_TYPE *origin = c + tile.outer * s.c_outer + tile.inner * s.c_inner;
            for (int p = 0; p < PANELS && first + p < PANELS_OF_TILE; ++p) {
                const int columns = min(min(PANEL, BLOCK_N - (first + p) * PANEL), s.N - tile.n - (first + p) * PANEL);
                for (int r = 0; r < 16 && m + r < tile.end; ++r) {
                    OUT_TYPE *to = origin + (m + r) * s.c_m + (tile.n + (first + p) * PANEL) * s.c_n;
#pragma unroll
                    for (int x = lane; x < PANEL; x += 32) {
                        const int chunk = x * OUT_BYTES / 16;
                        const char *from =
                            staging + p * PANEL_BYTES + r * 128 + ((chunk ^ (r & 7)) << 4) + x * OUT_BYTES % 16;
                        if (x < columns) to[x * s.c_n] = *(const OUT_TYPE *)from;
                    }
                }
            }
        }
    }
}

__device__ __forceinline__ void consume(const TensorMap *c_map, OUT_TYPE *c, const Sizes &s, u32 ring, u32 full,
                                        u32 empty, char *staging, u32 slab, u32 rank_m, u32 rank_n,
                                        const Terms &terms) {
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const u32 tiles = ring & 0x3ffff;  // without the CTA's place in the cluster, which descriptors have no bits for
    // Lanes 0 to NEIGHBOURS - 1 of each warp tell one CTA each, which multicasts to this one, that a slice is free.
    const int along = lane - CLUSTER_M;
    const u32 neighbour = lane < CLUSTER_M ? rank_n * CLUSTER_M + lane
                                           : rank_m + CLUSTER_M * (along + (along >= (int)rank_n));
    u32 stage = 0, phase = 0;
    ACCUMULATOR acc[STRIPS][ACCUMULATORS];
#if PROMOTE
    ACCUMULATOR sums[STRIPS][ACCUMULATORS];
#endif
    Walk walk = begin_walk();
    Tile tile;
    for (int item = blockIdx.x / PEERS; locate(item, walk, tile, s, rank_m, rank_n); item += gridDim.x / PEERS) {
#if PROMOTE
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
            for (int j = 0; j < ACCUMULATORS; ++j) sums[strip][j] = 0;
#endif
        for (int slice = 0; slice < slices;) {
            const int first = slice, end = PROMOTE ? min(slice + PROMOTE, slices) : slices;
            u32 held = 0;  // the slice that the wgmmas in flight read
#pragma unroll 1
            for (; slice < end; ++slice) {
                wait_barrier(full + 8 * stage, phase);
                pin(acc);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                multiply(acc, tiles + stage * STAGE_BYTES, slab, slice == first);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                // All but the newest group are done: the slice before this one may be refilled.
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (slice != first && lane < NEIGHBOURS) arrive_at(empty + 8 * held, neighbour);
                held = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane < NEIGHBOURS) arrive_at(empty + 8 * held, neighbour);
            pin(acc);
#if PROMOTE
#pragma unroll
            for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
                for (int j = 0; j < ACCUMULATORS; ++j) sums[strip][j] += acc[strip][j];
#endif
        }
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip) {
            const int m = tile.m + slab * SLAB + strip * 64 + warp * 16;
#if PROMOTE
            ACCUMULATOR(&strip_sums)[ACCUMULATORS] = sums[strip];
#else
            ACCUMULATOR(&strip_sums)[ACCUMULATORS] = acc[strip];
#endif
#if INTEGER_SUMS_AS_FLOAT
            float values[ACCUMULATORS];
#pragma unroll
            for (int j = 0; j < ACCUMULATORS; ++j) values[j] = (float)strip_sums[j];
            store_strip(values, c_map, c, s, tile, m, staging, terms);
#else
            store_strip(strip_sums, c_map, c, s, tile, m, staging, terms);
#endif
        }
    }
#if TMA_STORE
    // Shared memory must outlive the copy engine's reads of it.
    if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_hopper_cluster(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                      const __grid_constant__ TensorMap c_map, OUT_TYPE *c, const __grid_constant__ Sizes sizes,
                      const __grid_constant__ Terms terms) {
    extern __shared__ __align__(1024) char shared[];
    // Each CTA of a cluster has the same layout at the same addresses: that is what multicast and mapa lean on.
    char *staging = shared + STAGES * STAGE_BYTES;
    u64 *barriers = (u64 *)(staging + CONSUMERS * 4 * PANELS * PANEL_BYTES);
    const u32 ring = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES;
    const u32 group = threadIdx.x / 128;
    const u32 rank = cluster_rank(), rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(full + 8 * stage, 1);
            init_barrier(empty + 8 * stage, 4 * CONSUMERS * NEIGHBOURS);
        }
        // The copy engines of the cluster must see the barriers before they signal them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (PEERS > 1) cluster_meet();
    else __syncthreads();
    release_successor();
    if (group == 0) {
        if (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            // Orders the loads after the kernels that wrote A and B.
            wait_for_predecessor();
            produce(&a_map, &b_map, sizes, ring, full, empty, rank_m, rank_n);
        }
        __syncwarp();
    } else {
        if (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const u32 slab = group - 1;
        // The epilogue reads and writes what kernels ahead may still use.
        wait_for_predecessor();
        consume(&c_map, c, sizes, ring, full, empty, staging + (4 * slab + threadIdx.x / 32 % 4) * PANELS * PANEL_BYTES,
                slab, rank_m, rank_n, terms);
    }
}
