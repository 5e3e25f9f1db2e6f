// C = epilogue(A B) on Hopper: clusters of CTAs that share what they load, one producer warp, warpgroups of wgmma.
//
// Memory: each CTA has a ring of STAGES K-slices of 128 bytes, filled by TMA. CLUSTER_M x CLUSTER_N neighbours in C's
// rows and columns form a cluster: CTAs of one row of tiles need the same A, so each loads a share of it and multicasts
// it to the others; likewise B down a column. A slice is refilled once every consumer that its loads reach is done.
// With PIECES > 1 a slice holds that many pieces of each operand (see device/pieces.py), multiplied in pairs from the
// smallest to the largest.
// Registers: with PROMOTE > 0 the tensor cores' sums are added to FP32 sums by FADD every PROMOTE slices and start
// afresh: their own additions are less precise than FP32's.
// device/hopper.cuh, hopper_cluster_epilogue.cuh and wgmma(), from hopper_cluster.py, come in front of this text.

#define SLICE_BYTES 128
#define BLOCK_K (SLICE_BYTES / ELEMENT_BYTES)
#define SLAB (64 * STRIPS)                     // rows of one consumer: STRIPS wgmmas of 64
#define A_BYTES (BLOCK_M * SLICE_BYTES)        // of one piece of one slice
#define B_BYTES (B_COLUMNS * SLICE_BYTES)
#define STAGE_BYTES (PIECES * (A_BYTES + B_BYTES))
#define PEERS (CLUSTER_M * CLUSTER_N)
#define NEIGHBOURS (CLUSTER_M + CLUSTER_N - 1)  // CTAs that a CTA's loads reach, itself among them
#define WARPS (4 * CONSUMERS)                  // that multiply
#define THREADS (128 * (CONSUMERS + 1))

// Where a CTA is in its cluster.
struct Rank {
    u32 m, n;
};

// wgmma's description of a tile in shared memory, swizzled by 128 bytes: rows of 128 bytes in groups of 8. `leading` is
// the distance between panels of 64 rows of an operand that is not contiguous along K; without meaning otherwise.
__device__ __forceinline__ u64 describe(u32 address, u32 leading) {
    return (u64)(1u << 30 | 1024 >> 4) << 32 | (leading >> 4 << 16 | address >> 4);
}

__device__ __forceinline__ void produce(const TensorMap *a_map, const TensorMap *b_map, const Sizes &s, u32 ring,
                                        u32 full, u32 empty, Rank rank) {
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K;
    u32 a_mask = 0;
    for (int j = 0; j < CLUSTER_N; ++j) a_mask |= 1u << (rank.m + CLUSTER_M * j);
    const u32 b_mask = ((1u << CLUSTER_M) - 1) << (rank.n * CLUSTER_M);
    u32 stage = 0, phase = 0;
    Walk walk = begin_walk();
    Tile tile;
    for (int item = blockIdx.x / PEERS; locate(item, walk, tile, s, rank.m, rank.n); item += gridDim.x / PEERS) {
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
                    load_box(a_map, to + panel * (BLOCK_K * 128) + rank.n * rows * 128, barrier, a_mask,
                             tile.m + 64 * panel, k + rank.n * rows, a_inner, a_batch);
#else
                const u32 rows = BLOCK_M / CLUSTER_N;
                load_box(a_map, to + rank.n * rows * 128, barrier, a_mask, k, tile.m + rank.n * rows, a_inner, a_batch);
#endif
                to += A_BYTES;
            }
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                const int b_batch = tile.outer * s.b_outer;
                const int b_inner = PIECES > 1 ? piece : tile.inner * s.b_inner;
#if B_IS_NK
                const u32 rows = BLOCK_N / CLUSTER_M;
                load_box(b_map, to + rank.m * rows * 128, barrier, b_mask, k, tile.n + rank.m * rows, b_inner, b_batch);
#else
                const u32 rows = BLOCK_K / CLUSTER_M;
#pragma unroll
                for (int panel = 0; panel < B_COLUMNS / 64; ++panel)
                    load_box(b_map, to + panel * (BLOCK_K * 128) + rank.m * rows * 128, barrier, b_mask,
                             tile.n + 64 * panel, k + rank.m * rows, b_inner, b_batch);
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

__device__ __forceinline__ void consume(const TensorMap *c_map, OUT_TYPE *c, const Sizes &s, u32 ring, u32 full,
                                        u32 empty, char *staging, u32 slab, Rank rank,
                                        const Terms &terms) {
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const u32 tiles = ring & 0x3ffff;  // without the CTA's place in the cluster, which descriptors have no bits for
    // Lanes 0 to NEIGHBOURS - 1 of each warp tell one CTA each, which multicasts to this one, that a slice is free.
    const int along = lane - CLUSTER_M;
    const u32 neighbour = lane < CLUSTER_M ? rank.n * CLUSTER_M + lane
                                           : rank.m + CLUSTER_M * (along + (along >= (int)rank.n));
    u32 stage = 0, phase = 0;
    ACCUMULATOR acc[STRIPS][ACCUMULATORS];
#if PROMOTE
    ACCUMULATOR sums[STRIPS][ACCUMULATORS];
#endif
    Walk walk = begin_walk();
    Tile tile;
    for (int item = blockIdx.x / PEERS; locate(item, walk, tile, s, rank.m, rank.n); item += gridDim.x / PEERS) {
#if PROMOTE
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
            for (int j = 0; j < ACCUMULATORS; ++j) sums[strip][j] = 0;
#endif
        const Place at = {tile.m + (int)slab * SLAB + warp * 16, tile.n};
        Held held;
        ask_for_terms(held, at, s, tile, terms);
        for (int slice = 0; slice < slices;) {
            const int first = slice, end = PROMOTE ? min(slice + PROMOTE, slices) : slices;
            u32 busy = 0;  // the slice that the wgmmas in flight read
#pragma unroll 1
            for (; slice < end; ++slice) {
                wait_barrier(full + 8 * stage, phase);
                pin(acc);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                multiply(acc, tiles + stage * STAGE_BYTES, slab, slice == first);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                // All but the newest group are done: the slice before this one may be refilled.
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (slice != first && lane < NEIGHBOURS) arrive_at(empty + 8 * busy, neighbour);
                busy = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane < NEIGHBOURS) arrive_at(empty + 8 * busy, neighbour);
            pin(acc);
#if PROMOTE
#pragma unroll
            for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
                for (int j = 0; j < ACCUMULATORS; ++j) sums[strip][j] += acc[strip][j];
#endif
        }
        arrived(held);
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip) {
#if PROMOTE
            ACCUMULATOR(&strip_sums)[ACCUMULATORS] = sums[strip];
#else
            ACCUMULATOR(&strip_sums)[ACCUMULATORS] = acc[strip];
#endif
            STORED values[ACCUMULATORS];  // integers become floats where floats are stored
#pragma unroll
            for (int j = 0; j < ACCUMULATORS; ++j) values[j] = (STORED)strip_sums[j];
            store_strip(values, c_map, c, s, tile, at, strip, staging, held, terms);
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
    u64 *barriers = (u64 *)(staging + WARPS * PANELS * PANEL_BYTES);
    const u32 ring = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES;
    const u32 group = threadIdx.x / 128;
    const u32 number = cluster_rank();
    const Rank rank = {number % CLUSTER_M, number / CLUSTER_M};
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(full + 8 * stage, 1);
            init_barrier(empty + 8 * stage, WARPS * NEIGHBOURS);
        }
        // The copy engines of the cluster must see the barriers before they signal them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        prefetch_map(&a_map);
        prefetch_map(&b_map);
    }
    if (PEERS > 1) cluster_meet();
    else __syncthreads();
    release_successor();
    if (group == 0) {
        if (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            // Orders the loads after the kernels that wrote A and B.
            wait_for_predecessor();
            produce(&a_map, &b_map, sizes, ring, full, empty, rank);
        }
        __syncwarp();
    } else {
        if (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const u32 slab = group - 1, warp = 4 * slab + threadIdx.x / 32 % 4;
        // The epilogue reads and writes what kernels ahead may still use.
        wait_for_predecessor();
        consume(&c_map, c, sizes, ring, full, empty, staging + warp * PANELS * PANEL_BYTES, slab, rank,
                terms);
    }
}
