// The warpgroups of hopper_cluster.cu that multiply and write C; blocks of K that have scales are hopper_cluster_blocks.cuh's.

#define SCALES_PARAMETER
#if OWN_TILES
#define STEP step  // from a warpgroup's tile to its next one
#else
#define STEP gridDim.x / PEERS
#endif
#define BESIDE_BYTES ((CLUSTER_K - 1) * WARPS * PART_BYTES)  // of shared memory beside ring and staging

#if CLUSTER_K > 1
// Where four neighbouring sums of one lane stand in a part.
__device__ __forceinline__ int place_of_sums(int strip, int j) {
    return ((strip * ACCUMULATORS + j) / 4 * 32 + threadIdx.x % 32) * 16;
}

// The CTAs of a cluster add their parts of K, always in the parts' order: sums of the columns that this one finishes. Those
// are whole blocks of 8, so that FINISHERS may be fewer than parts. A warp's parts travel as they lie in registers to the
// same warp of another CTA: `received` is its own, in shared memory, and `barrier` counts what comes.
__device__ __forceinline__ void exchange(ACCUMULATOR (&kept)[STRIPS][ACCUMULATORS],
                                         const ACCUMULATOR (&acc)[STRIPS][SUMS], const char *received, u32 barrier,
                                         Rank rank) {
    const bool finishes = FINISHERS == CLUSTER_K || rank.k < FINISHERS;
    if (finishes && threadIdx.x % 32 == 0) expect_bytes(barrier, (CLUSTER_K - 1) * PART_BYTES);
#pragma unroll
    for (u32 part = 0; part < FINISHERS; ++part) {  // of the columns
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
    if (!finishes) return;
#pragma unroll
    for (u32 part = 0; part < FINISHERS; ++part)
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
    const u32 rows = OWN_TILES ? 0 : slab;  // of a tile: which of them are this warpgroup's
    const Descriptions of_ring = describe_ring(ring & 0x3ffff, rows);
    const u32 freed = freed_barrier(empty, rank);
    u32 stage = 0, phase = 0;
#if OWN_TILES
    u32 turn = slab > 0;  // the first warpgroup begins: a phase before the first counts as over
#endif
    u32 busy = 0;  // the slice that the wgmmas in flight read
    Kept kept_panels;  // the tile's last strip
    bool held_back = false;
    Walk walk = begin_walk();
    Tile tile, next;
    Tile last = {};  // where they go; ptxas 13 takes the next tile's where a path leaves these unset
    Place last_at = {};
#if OWN_TILES
    const int step = CONSUMERS * gridDim.x / PEERS;
    int item = blockIdx.x / PEERS + slab * (gridDim.x / PEERS);
#else
    int item = blockIdx.x / PEERS;
#endif
    bool more = locate(item, walk, next, s, rank.m, rank.n);
#if OWN_TILES
    // The slices of the other warpgroup's tile, ahead of the next one.
    const auto pass = [&]() {
        Tile other = next;
        if (LINE || K_GROUPED) locate(item - gridDim.x / PEERS, walk, other, s, rank.m, rank.n);
#if K_GROUPED
        stage += GroupOfK(s, other).slices;
#else
        stage += first_slice(s, other, 1) - first_slice(s, other, 0);
#endif
        phase ^= stage / STAGES & 1, stage %= STAGES;
    };
    if (more && slab > 0) pass();
#endif
    const auto compute = [&](auto &acc) {
        tile = next;
#if K_GROUPED
        const GroupOfK group(s, tile);
        constexpr int k_first = 0;
        const int k_end = group.slices;
        const int begins_within = group.before ? 0 : -1, ends_within = group.extent % BLOCK_K ? k_end - 1 : -1;
        if (k_end == 0) {  // the group is empty
            if (HOLD_BACK && held_back) store(kept_panels, c_maps, c, s, last, last_at, STRIPS - 1, staging, slab);
            __syncwarp();
            more = locate_next(item += STEP, walk, next, s, rank);
        }
#else
        const int k_first = first_slice(s, tile, rank.k), k_end = first_slice(s, tile, rank.k + 1);
#endif
        Place at = place_of(tile.m + (int)(rows * SLAB + warp * 16), tile.n + (int)rank.k * FINISHED, s, tile);
#if PROMOTE
        constexpr int sums_of_strip = sizeof acc[0] / sizeof acc[0][0];
        ACCUMULATOR sums[STRIPS][sums_of_strip] = {};
#endif
        Held held;
        ask_for_terms(held, at, s, tile, terms);
#if OWN_TILES
        // A barrier tells a phase from the next one only: slices of other tiles must have come before this one's.
        wait_barrier(exchanged + 8 * slab, turn ^= 1);
        const auto give_turn = [&]() {
            if (lane == 0) arrive(exchanged + 8 * (slab == CONSUMERS - 1 ? 0 : slab + 1));
        };
        if (K_GROUPED && k_end == 0) {
            __syncwarp();  // a lane that still waited when the turn comes again could miss the phase
            give_turn();
        }
#endif
        for (int slice = k_first; slice < k_end - SPLIT;) {
            const int first = slice, end = PROMOTE ? min(slice + PROMOTE, k_end) : k_end - SPLIT;
#pragma unroll 1
            for (; slice < end; ++slice) {
                wait_barrier(full + 8 * stage, phase);
#if K_GROUPED
                if (slice == begins_within || slice == ends_within)
                    clear_others(ring + stage * STAGE_BYTES, slab, rows, group, slice);
#endif
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
#if OWN_TILES
            if (slice == k_end) give_turn();
#endif
#if !SPLIT
            if (slice == k_end) more = locate_next(item += STEP, walk, next, s, rank);
            if (ONE_TILE && slice == k_end) pin(at);
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
        more = locate_next(item += STEP, walk, next, s, rank);
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
        for (int strip = SPLIT; strip < STRIPS && (FINISHERS == CLUSTER_K || rank.k < FINISHERS); ++strip) {
#if CLUSTER_K > 1
            auto &strip_sums = kept[strip];
#elif PROMOTE
            auto &strip_sums = sums[strip];
#else
            auto &strip_sums = acc[strip];
#endif
            // Of an empty group nothing was summed; zeros in the sums themselves, and ptxas waits behind every wgmma.
            Fresh fresh(strip_sums, strip, held, at, s, tile, terms, K_GROUPED && k_end == 0);
            if (HOLD_BACK && strip == STRIPS - 1) {
                kept_panels.keep(fresh);
                held_back = more && next.narrow == tile.narrow;
                if (!held_back) store(kept_panels, c_maps, c, s, tile, at, strip, staging, slab);
            } else {
                store(fresh, c_maps, c, s, tile, at, strip, staging, slab);
            }
        }
        last = tile, last_at = at;
#if OWN_TILES
        if (more) pass();
#endif
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
