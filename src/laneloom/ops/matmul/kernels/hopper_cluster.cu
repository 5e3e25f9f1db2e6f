// C = epilogue(A B) on Hopper: clusters of CTAs that share what they load, one producer warp, warpgroups of wgmma.
//
// Memory: each CTA has a ring of STAGES K-slices of 128 bytes, filled by TMA. CLUSTER_M x CLUSTER_N neighbours in C's
// rows and columns form a cluster: CTAs of one row of tiles need the same A, so each loads a share of it and multicasts
// it to the others; likewise B down a column. A slice is refilled once every consumer that its loads reach is done.
// CLUSTER_K of a cluster's CTAs have a part of K each, and then exchange sums: each finishes a part of the columns.
// With K_PARTS > 1 C is that many parts of a product, side by side, which a second launch adds up.
// With SWAPPED the product is C^T = B^T A^T: what is A here is B^T, what is B here A^T, and C is turned on its way out.
// With PIECES > 1 a slice holds that many pieces of each operand (see device/pieces.py), multiplied in pairs from the
// smallest to the largest.
// With UNEVEN the last tiles along N are 8 columns narrower, so that their number fills all SMs; see `locate`.
// Overlap: with HOLD_BACK > 0 a tile's last strip waits in registers, as words of C, until so many slices of the next tile
// are being multiplied. With SPLIT the first of two strips is written while the last slice of the second is multiplied.
// Registers: with PROMOTE > 0 the tensor cores' sums are added to FP32 sums by FADD every PROMOTE slices and start
// afresh: their own additions are less precise than FP32's.
// device/hopper.cuh, wgmma(), from hopper_cluster.py, and hopper_cluster_epilogue, _store and _ring.cuh come in front of
// this text.

// The sums cannot be read or written between here and the wgmmas around it, whatever the compiler believes.
template <int N>
__device__ __forceinline__ void pin(ACCUMULATOR (&acc)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) asm volatile("" : ACCUMULATOR_OPERAND(acc[j])::"memory");
}
template <int N>
__device__ __forceinline__ void pin(ACCUMULATOR (&acc)[STRIPS][N]) {
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip) pin(acc[strip]);
}

// What wgmma's descriptions of a consumer's tiles begin with, of the ring's first slice: those of a slice, of a piece, of a
// strip and of a step are sums with it, all in uniform registers.
struct Descriptions {
    u32 a, b;
};

__device__ __forceinline__ Descriptions describe_ring(u32 ring, u32 slab) {
    return {describe(ring + slab * (SLAB * 128), A_IS_KM ? BLOCK_K * 128 : 16),
            describe(ring + PIECES * A_BYTES, B_IS_NK ? 16 : BLOCK_K * 128)};
}

// Step `step` of four of a slice, 32 bytes of K (along a row, or, of 16-bit types, 16 rows further): a strip of A.
__device__ __forceinline__ u64 a_tile(u32 a, int strip, int step) {
    return described(a + (A_IS_KM ? strip * (BLOCK_K * 128) + 2048 * step : strip * (64 * 128) + 32 * step) / 16);
}

// The same of B.
__device__ __forceinline__ u64 b_tile(u32 b, int step) { return described(b + (B_IS_NK ? 32 : 2048) * step / 16); }

// Multiply one strip of a slice that begins `at` bytes behind the ring's first.
template <int N>
__device__ __forceinline__ void multiply_strip(ACCUMULATOR (&acc)[N], const Descriptions &of, u32 at, int strip,
                                               bool fresh) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
        wgmma(acc, a_tile(of.a + at / 16, strip, step), b_tile(of.b + at / 16, step), step == 0 ? !fresh : 1);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Multiply one slice: the products of pieces that are within the sums' precision, the smallest first.
template <int N>
__device__ __forceinline__ void multiply(ACCUMULATOR (&acc)[STRIPS][N], const Descriptions &of, u32 at, bool fresh) {
#pragma unroll
    for (int order = PIECES - 1; order >= 0; --order) {  // products of pieces i and j with i + j = order
#pragma unroll
        for (int i = 0; i <= order; ++i) {
            const u32 a = of.a + (at + i * A_BYTES) / 16, b = of.b + (at + (order - i) * B_BYTES) / 16;
            const bool first_pair = order == PIECES - 1 && i == 0;
#pragma unroll
            for (int step = 0; step < 4; ++step) {
#pragma unroll
                for (int strip = 0; strip < STRIPS; ++strip)
                    wgmma(acc[strip], a_tile(a, strip, step), b_tile(b, step), first_pair && step == 0 ? !fresh : 1);
            }
        }
    }
}

#if CLUSTER_K > 1
// Where four neighbouring sums of one lane stand in a part.
__device__ __forceinline__ int place_of_sums(int strip, int j) {
    return ((strip * ACCUMULATORS + j) / 4 * 32 + threadIdx.x % 32) * 16;
}

// The CTAs of a cluster add their parts of K, always in the parts' order: sums of the columns that this one finishes. A
// warp's parts travel as they lie in registers to the same warp of another CTA: `received` is its own, in shared memory,
// and `barrier` counts what comes.
__device__ __forceinline__ void exchange(ACCUMULATOR (&kept)[STRIPS][ACCUMULATORS],
                                         const ACCUMULATOR (&acc)[STRIPS][SUMS], const char *received, u32 barrier,
                                         Rank rank) {
    if (threadIdx.x % 32 == 0) expect_bytes(barrier, (CLUSTER_K - 1) * PART_BYTES);
#pragma unroll
    for (u32 part = 0; part < CLUSTER_K; ++part) {  // of the columns
        if (part == rank.k) continue;
        const u32 peer = part * SHARERS + rank.n * CLUSTER_M + rank.m, signal = in_peer(barrier, peer);
        const u32 from = rank.k - (rank.k > part);  // among those that the other CTA hears from
        const u32 to = in_peer(shared_address(received), peer) + from * PART_BYTES;
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
            for (int j = 0; j < ACCUMULATORS; j += 4)
                send(to + place_of_sums(strip, j), signal, &acc[strip][part * ACCUMULATORS + j]);
    }
#pragma unroll
    for (u32 part = 0; part < CLUSTER_K; ++part)
        if (part == rank.k)
#pragma unroll
            for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
                for (int j = 0; j < ACCUMULATORS; ++j) kept[strip][j] = acc[strip][part * ACCUMULATORS + j];
    wait_barrier(barrier, 0);
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
        for (int j = 0; j < ACCUMULATORS; j += 4) {
            float sum[4] = {0, 0, 0, 0};
#pragma unroll
            for (u32 part = 0; part < CLUSTER_K; ++part) {  // of K
                const u32 from = part - (part > rank.k);
                const float *own = &kept[strip][j];
                const float4 x = part == rank.k
                                     ? make_float4(own[0], own[1], own[2], own[3])
                                     : *(const float4 *)(received + from * PART_BYTES + place_of_sums(strip, j));
                sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) kept[strip][j + i] = sum[i];
        }
}
#endif

__device__ __forceinline__ void consume(const OutMaps &c_maps, OUT_TYPE *c, const Sizes &s, u32 ring, u32 full,
                                        u32 empty, char *staging, const char *received, u32 exchanged, u32 slab,
                                        Rank rank, const Terms &terms) {
    const int lane = threadIdx.x % 32;
    const u32 warp = uniform(threadIdx.x / 32 % 4);
    // Without the CTA's place in the cluster, which descriptors have no bits for.
    const Descriptions of_ring = describe_ring(ring & 0x3ffff, slab);
    // Lanes 0 to NEIGHBOURS - 1 of each warp tell one CTA each, which multicasts to this one, that a slice is free.
    const int along = lane - CLUSTER_M;
    const u32 neighbour = rank.k * SHARERS + (lane < CLUSTER_M ? rank.n * CLUSTER_M + lane
                                                               : rank.m + CLUSTER_M * (along + (along >= (int)rank.n)));
    const u32 freed = in_peer(empty, neighbour);  // the other lanes' address is of no CTA, and not used
    u32 stage = 0, phase = 0;
    u32 busy = 0;  // the slice that the wgmmas in flight read
    Kept kept_panels;  // the tile's last strip
    bool held_back = false;
    Walk walk = begin_walk();
    Tile tile, next;
    Tile last = {};  // where they go; ptxas 13 takes the next tile's where a path leaves these unset
    Place last_at = {};
    int item = blockIdx.x / PEERS;
    bool more = locate(item, walk, next, s, rank.m, rank.n);
    const auto compute = [&](auto &acc) {
        tile = next;
        const int k_first = first_slice(s, tile, rank.k), k_end = first_slice(s, tile, rank.k + 1);
        const Place at = {tile.m + (int)(slab * SLAB + warp * 16), tile.n + (int)rank.k * FINISHED};
#if PROMOTE
        constexpr int sums_of_strip = sizeof acc[0] / sizeof acc[0][0];
        ACCUMULATOR sums[STRIPS][sums_of_strip] = {};
#endif
        Held held;
        ask_for_terms(held, at, s, tile, terms);
        for (int slice = k_first; slice < k_end - SPLIT;) {
            const int first = slice, end = PROMOTE ? min(slice + PROMOTE, k_end) : k_end - SPLIT;
#pragma unroll 1
            for (; slice < end; ++slice) {
                wait_barrier(full + 8 * stage, phase);
                pin(acc);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                multiply(acc, of_ring, stage * STAGE_BYTES, slice == first);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                if (HOLD_BACK && held_back && slice == min(k_first + HOLD_BACK, k_end - SPLIT) - 1) {
                    store(kept_panels, c_maps, c, s, last, last_at, STRIPS - 1, staging, slab);
                    __syncwarp();
                    held_back = false;
                }
                // All but the newest group are done: the slice before this one may be refilled.
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (slice != first && lane < NEIGHBOURS) arrive_in_cluster(freed + 8 * busy);
                busy = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
#if !SPLIT
            if (slice == k_end) more = locate(item += gridDim.x / PEERS, walk, next, s, rank.m, rank.n);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane < NEIGHBOURS) arrive_in_cluster(freed + 8 * busy);
            pin(acc);
#endif
#if PROMOTE
#pragma unroll
            for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
                for (int j = 0; j < sums_of_strip; ++j) sums[strip][j] += acc[strip][j];
#endif
        }
#if SPLIT
        // The last slice, strip by strip: the first is written while the second is multiplied.
        wait_barrier(full + 8 * stage, phase);
        pin(acc);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        multiply_strip(acc[0], of_ring, stage * STAGE_BYTES, 0, false);
        multiply_strip(acc[1], of_ring, stage * STAGE_BYTES, 1, false);
        more = locate(item += gridDim.x / PEERS, walk, next, s, rank.m, rank.n);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (lane < NEIGHBOURS) arrive_in_cluster(freed + 8 * busy);
        busy = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
        pin(acc[0]);
        arrived(held);
        Fresh first_strip(acc[0], 0, held, at, s, tile, terms);
        store(first_strip, c_maps, c, s, tile, at, 0, staging, slab);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (lane < NEIGHBOURS) arrive_in_cluster(freed + 8 * busy);
        pin(acc[1]);
#endif
#if CLUSTER_K > 1
        ACCUMULATOR kept[STRIPS][ACCUMULATORS];  // of this CTA's only tile
        exchange(kept, acc, received, exchanged, rank);
#endif
        if (!SPLIT) arrived(held);
#pragma unroll
        for (int strip = SPLIT; strip < STRIPS; ++strip) {
#if CLUSTER_K > 1
            auto &strip_sums = kept[strip];
#elif PROMOTE
            auto &strip_sums = sums[strip];
#else
            auto &strip_sums = acc[strip];
#endif
            Fresh fresh(strip_sums, strip, held, at, s, tile, terms);
            if (HOLD_BACK && strip == STRIPS - 1) {
                kept_panels.keep(fresh);
                held_back = more && next.narrow == tile.narrow;
                if (!held_back) store(kept_panels, c_maps, c, s, tile, at, strip, staging, slab);
            } else {
                store(fresh, c_maps, c, s, tile, at, strip, staging, slab);
            }
        }
        last = tile, last_at = at;
    };
    // A loop for each width: ptxas waits behind every wgmma where one loop has several.
    {
        ACCUMULATOR acc[STRIPS][SUMS];
        while (more && !next.narrow) compute(acc);
    }
#if UNEVEN
    ACCUMULATOR acc[STRIPS][SUMS - 4];
    while (more) compute(acc);
#endif
    wait_for_reads(lane == 0);  // shared memory must outlive them
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_hopper_cluster(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                      const __grid_constant__ TensorMap b_tail_map, const __grid_constant__ TensorMap c_map,
                      const __grid_constant__ TensorMap c_tail_map, OUT_TYPE *c,
                      const __grid_constant__ Sizes sizes, const __grid_constant__ Terms terms) {
    extern __shared__ __align__(1024) char shared[];
    // Each CTA of a cluster has the same layout at the same addresses: that is what multicast and mapa lean on.
    char *staging = shared + STAGES * STAGE_BYTES;
    char *received = staging + WARPS * PANELS * PANEL_BYTES;
    u64 *barriers = (u64 *)(received + (CLUSTER_K - 1) * WARPS * PART_BYTES);
    const u32 ring = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES;
    const u32 exchanged = empty + 8 * STAGES;  // one barrier for each warp
    const u32 group = uniform(threadIdx.x / 128);
    const u32 number = cluster_rank();
    const Rank rank = {number % CLUSTER_M, number / CLUSTER_M % CLUSTER_N, number / SHARERS};
    Walk walk = begin_walk();
    Work work;
    if (threadIdx.x == 0) {
        prefetch_map(&a_map);
        prefetch_map(&b_map);
        // While another warp makes the barriers; not before kernels ahead have written where groups end.
        if (!GROUPED) work.find(blockIdx.x / PEERS, walk, sizes, rank);
    }
    if (threadIdx.x == 128) {  // by one thread: the fence of a whole warp takes half a microsecond more
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(full + 8 * stage, 1);
            init_barrier(empty + 8 * stage, WARPS * NEIGHBOURS);
        }
        for (int warp = 0; CLUSTER_K > 1 && warp < WARPS; ++warp) init_barrier(exchanged + 8 * warp, 1);
        // The copy engines of the cluster must see the barriers before they signal them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (PEERS > 1) cluster_meet();
    else __syncthreads();
    if (!RELEASE_LATE) release_successor();
    if (group == 0) {
        if (CONSUMERS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (uniform(threadIdx.x / 32) == 0)
            produce(&a_map, &b_map, &b_tail_map, sizes, ring, full, empty, rank, walk, work);
        __syncwarp();
    } else {
        if (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (CONSUMERS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
        const u32 slab = group - 1, warp = 4 * slab + uniform(threadIdx.x / 32 % 4);
        // The epilogue reads and writes what kernels ahead may still use.
        wait_for_predecessor();
        // Where few CTAs run, launches that wait would share their SMs with each other, and leave others idle.
        if (RELEASE_LATE) release_successor();
        consume({&c_map, &c_tail_map}, c, sizes, ring, full, empty, staging + warp * PANELS * PANEL_BYTES,
                received + warp * (CLUSTER_K - 1) * PART_BYTES, exchanged + 8 * warp, slab, rank, terms);
    }
    // A CTA's shared memory outlives the sums that it sends.
    if (CLUSTER_K > 1) cluster_meet();
}
