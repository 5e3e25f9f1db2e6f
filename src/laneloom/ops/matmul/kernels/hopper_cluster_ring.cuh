// The ring of hopper_cluster.cu, and the warp that fills it by TMA.

#define SLICE_BYTES 128
#define BLOCK_K (SLICE_BYTES / ELEMENT_BYTES)
#define SLAB (64 * STRIPS)                     // rows of one consumer: STRIPS wgmmas of 64
#define A_BYTES (BLOCK_M * SLICE_BYTES)        // of one piece of one slice
#define B_BYTES (B_COLUMNS * SLICE_BYTES)
#define STAGE_BYTES (PIECES * (A_BYTES + B_BYTES))
// The third coordinate of a piece: behind the others of its product, and of the products before in a batch.
#define PIECE(product, piece) (PIECES == 1 ? (product) : BATCHED_PIECES ? (product) * PIECES + (piece) : (piece))
// B that is not contiguous along K comes in panels of 64 columns; of the last one only those of the tile.
#define B_TAIL (B_IS_NK ? 0 : BLOCK_N % 64)
#define LOADED_BYTES (PIECES * (A_BYTES + BLOCK_N * SLICE_BYTES))
#define SHARERS (CLUSTER_M * CLUSTER_N)        // CTAs of a cluster with the same part of K
#define PEERS (SHARERS * CLUSTER_K)
#define SUMS (BLOCK_N / 2)                     // of one strip in one thread, before they are exchanged
#define PART_BYTES (STRIPS * ACCUMULATORS * 4 * 32)  // of one warp's sums that one CTA finishes
#define NEIGHBOURS (CLUSTER_M + CLUSTER_N - 1)  // CTAs that a CTA's loads reach, itself among them
#define READS_ENDS (GROUPED || K_GROUPED)      // of groups, which kernels ahead may write
#define WARPS (4 * CONSUMERS)                  // that multiply
#define TILE_WARPS (OWN_TILES ? 4 : WARPS)     // that multiply one tile
#define THREADS (128 * (CONSUMERS + 1))
#define FETCHER 3                              // the warp that asks the L2 for what comes first

// Where a CTA is in its cluster.
struct Rank {
    u32 m, n, k;
};

// A tile's K begins so many elements before the first: zeros, with which the lines that it takes of the operand with C's
// rows begin where a line of memory does. Those rows are of one class, which is a product of the batch here.
__device__ __forceinline__ int before_k(const Tile &tile) { return LINE ? tile.inner * LINE_STEP % LINE : 0; }

#if K_GROUPED
// A tile's group of K. Boxes of the copy engine begin at 16 bytes of a row along K: perhaps in the group before.
struct GroupOfK {
    int begin, before, extent;  // where its slices begin, how many of their elements are another's, all of them
    int slices;
    __device__ __forceinline__ GroupOfK(const Sizes &s, const Tile &tile) {
        const int step = A_IS_KM && !B_IS_NK ? 1 : 16 / ELEMENT_BYTES;
        const int first = tile.inner > 0 ? min(max(s.group_ends[tile.inner - 1], 0), s.K) : 0;
        const int end = min(s.group_ends[tile.inner], s.K);
        before = first % step, begin = first - before, extent = end - begin;
        slices = end > first ? (extent + BLOCK_K - 1) / BLOCK_K : 0;
    }
};
#endif

// The slices of a CTA's part of K. With K_PARTS > 1 clusters have parts of K as well, which stand where a batch's outer
// products do.
__device__ __forceinline__ int first_slice(const Sizes &s, const Tile &tile, u32 part) {
    const int slices = (s.K + before_k(tile) + BLOCK_K - 1) / BLOCK_K;
#if K_PARTS > 1
    const int share = tile.outer * CLUSTER_K + part, shares = K_PARTS * CLUSTER_K;
    return slices / shares * share + min(share, slices % shares);
#else
    return slices * part / CLUSTER_K;
#endif
}

// The slice that comes as number i. The copy engine takes longer for what is not there, and everybody waits for the first
// slice: the one that may begin before K comes last.
__device__ __forceinline__ int nth_slice(int i, int k_first, int k_end) {
    const int slice = k_first + i;
    return !LINE ? slice : slice + 1 == k_end ? k_first : slice + 1;
}

// The lower half of wgmma's description of a tile in shared memory, swizzled by 128 bytes: rows of 128 bytes in groups of
// 8. `leading` is the distance between panels of 64 rows of an operand that is not contiguous along K; without meaning
// otherwise. Of an address that is further by x bytes it is larger by x / 16.
__device__ __forceinline__ u32 describe(u32 address, u32 leading) { return leading >> 4 << 16 | address >> 4; }
__device__ __forceinline__ u64 described(u32 lower_half) { return (u64)(1u << 30 | 1024 >> 4) << 32 | lower_half; }

// A tile that the producer loads, and its CTA's slices of it.
struct Work {
    Tile tile;
    int k_first, k_end;
    bool more;
#if K_GROUPED
    int k_begin;
#endif

    __device__ __forceinline__ void find(int item, Walk &walk, const Sizes &s, Rank rank) {
        more = locate(item, walk, tile, s, rank.m, rank.n);
#if K_GROUPED
        if (!more) return;
        const GroupOfK group(s, tile);
        k_begin = group.begin, k_first = 0, k_end = group.slices;
#else
        k_first = first_slice(s, tile, rank.k), k_end = first_slice(s, tile, rank.k + 1);
#endif
    }
    // What the warp's first lane has found.
    __device__ __forceinline__ void share() {
        tile.m = uniform(tile.m), tile.n = uniform(tile.n);
        tile.outer = uniform(tile.outer), tile.inner = uniform(tile.inner);
        k_first = uniform(k_first), k_end = uniform(k_end), more = uniform(more);
#if K_GROUPED
        k_begin = uniform(k_begin);
#endif
    }
};

// A CTA's next tile, which nobody looks for where each has one.
__device__ __forceinline__ bool locate_next(int item, Walk &walk, Tile &tile, const Sizes &s, Rank rank) {
    return !ONE_TILE && locate(item, walk, tile, s, rank.m, rank.n);
}

// What the copy engine is asked for: a CTA's shares of the slices of a tile, by a whole warp, whose first lane asks. What all
// lanes have lies in uniform registers, where the copy engine's operands have to be.
struct Loads {
    const TensorMap *a_map, *b_map, *b_tail_map;
    Rank rank;
    u32 a_mask, b_mask;  // the CTAs of the cluster that a share reaches
    int m, n, k;         // where the tile begins
    int a_inner, a_outer, b_inner, b_outer;

    __device__ __forceinline__ Loads(const TensorMap *a_map, const TensorMap *b_map, const TensorMap *b_tail_map, Rank rank)
        : a_map(a_map), b_map(b_map), b_tail_map(b_tail_map), rank(rank), a_mask(0) {
        for (int j = 0; j < CLUSTER_N; ++j) a_mask |= 1u << (rank.k * SHARERS + rank.m + CLUSTER_M * j);
        b_mask = ((1u << CLUSTER_M) - 1) << (rank.k * SHARERS + rank.n * CLUSTER_M);
    }
    __device__ __forceinline__ void begin(const Work &work, const Sizes &s) {
        const Tile &tile = work.tile;
        m = tile.m, n = tile.n;
        a_inner = tile.inner * s.a_inner, a_outer = tile.outer * s.a_outer;
        b_inner = tile.inner * s.b_inner, b_outer = tile.outer * s.b_outer;
#if K_GROUPED
        k = work.k_begin;
#else
        k = -before_k(tile);
#endif
    }
    // To the address `to` in shared memory, or, without a ring, no further than the L2.
    template <bool TO_RING>
    __device__ __forceinline__ void ask(bool of_a, bool of_b, int slice, u32 to, u32 barrier) const {
        const int first_k = k + slice * BLOCK_K;
        const auto box = [&](const TensorMap *map, u32 at, bool shared, u32 mask, int x, int y, int z, int w) {
            if (!TO_RING) fetch_box(map, x, y, z, w);
            else if (shared) share_box(map, at, barrier, mask, x, y, z, w);
            else load_box(map, at, barrier, x, y, z, w);
        };
        // One of `sharers` shares of an operand's tile: of its rows along K, or, where it comes in panels of 64 neighbours
        // along the axis that it shares with C, of K.
        const auto share = [&](const TensorMap *map, const TensorMap *last_map, bool along_k, int extent, u32 sharers,
                               u32 own, u32 mask, int first, int inner, int outer) {
            const u32 rows = (along_k ? extent : BLOCK_K) / sharers, at = own * rows;
            if (along_k) {
                box(map, to + at * 128, sharers > 1, mask, first_k, first + at, inner, outer);
            } else {
#pragma unroll
                for (int panel = 0; panel < extent / 64; ++panel)
                    box(panel == extent / 64 - 1 ? last_map : map, to + panel * (BLOCK_K * 128) + at * 128, sharers > 1,
                        mask, first + 64 * panel, first_k + at, inner, outer);
            }
            to += extent * 128;
        };
#pragma unroll
        for (int piece = 0; piece < PIECES && of_a; ++piece)
            share(a_map, a_map, !A_IS_KM, BLOCK_M, CLUSTER_N, rank.n, a_mask, m, PIECE(a_inner, piece), a_outer);
#pragma unroll
        for (int piece = 0; piece < PIECES && of_b; ++piece)
            share(b_map, B_TAIL ? b_tail_map : b_map, B_IS_NK, B_COLUMNS, CLUSTER_M, rank.m, b_mask, n,
                  PIECE(b_inner, piece), b_outer);
    }
};

#if FETCHED
// The first slices, before the kernel ahead has ended. All CTAs of a row of tiles begin with the same slices of A, each asks
// for some of them; likewise B down a column. Classes of rows are rows of tiles of one product.
__device__ __forceinline__ void fetch(Loads loads, const Sizes &s, Work work) {
    work.share();
    loads.begin(work, s);
    const Tile &tile = work.tile;
    // No remainders: divisions in uniform registers take 100 clocks.
    const int columns = (s.N + BLOCK_N * CLUSTER_N - 1) / (BLOCK_N * CLUSTER_N);
    const int rows = (s.M + BLOCK_M * CLUSTER_M - 1) / (BLOCK_M * CLUSTER_M);
    const int column = (tile.n + BLOCK_N - 1) / (BLOCK_N * CLUSTER_N);
    const int row = (tile.m + BLOCK_M - 1) / (BLOCK_M * CLUSTER_M) + (LINE ? tile.inner * rows : 0);
    const int fetched = work.more ? min(FETCHED, work.k_end - work.k_first) : 0;
    const bool leads = elect_one();
    const auto ask = [&](bool of_a, int i) {
        if (leads) loads.ask<false>(of_a, !of_a, nth_slice(i, work.k_first, work.k_end), 0, 0);
    };
    for (int i = column; i < fetched; i += columns) ask(true, i);
    for (int i = row; i < fetched; i += LINE ? rows * s.batch_inner : rows) ask(false, i);
}
#endif

// By a whole warp, whose first lane finds the tiles, but for those of rows in groups, which all lanes look for.
__device__ __forceinline__ void produce(Loads loads, const Sizes &s, u32 ring, u32 full, u32 empty, Rank rank, Walk walk,
                                        Work work) {
    u32 stage = 0, phase = 0;
    const bool leads = elect_one();
    int item = blockIdx.x / PEERS;
    // The loads come after the kernels that wrote A and B, and where groups end.
    if (READS_ENDS) {
        wait_for_predecessor();
        if (GROUPED || threadIdx.x == 0) work.find(item, walk, s, rank);
    }
    const auto begin = [&]() {
        work.share();
        loads.begin(work, s);
    };
    const auto advance = [&]() {
        if (ONE_TILE) {
            work.more = false;
            return;
        }
        item += gridDim.x / PEERS;
        if (GROUPED || threadIdx.x == 0) work.find(item, walk, s, rank);
        begin();
    };
    const auto ask = [&](int slice) {
        if (leads)
            loads.ask<true>(true, true, nth_slice(slice, work.k_first, work.k_end), ring + stage * STAGE_BYTES,
                            full + 8 * stage);
    };
    begin();
    asm volatile("" : "+r"(ring), "+r"(full));
    // In a block of its own, so that what follows is computed before it, not behind it.
    if (!READS_ENDS && work.more) wait_for_predecessor();
    int slice = 0;
    // The ring starts empty, and its barriers expect their first slices.
    const auto ask_at_once = [&]() {
        const int end = work.more ? min(work.k_end - work.k_first, STAGES - (int)stage) : 0;
#pragma unroll 1
        for (slice = 0; slice < end; ++slice, ++stage) ask(slice);
    };
    ask_at_once();
    while (work.more && stage < STAGES) {
        advance();
        ask_at_once();
    }
    if (stage == STAGES) stage = 0, phase = 1;
    while (work.more) {
        const int slices = work.k_end - work.k_first;
#pragma unroll 1
        for (; slice < slices; ++slice) {
            wait_barrier(empty + 8 * stage, phase ^ 1);
            __syncwarp();  // a lane that still waited when the slice is full could miss the phase
            if (leads) expect_bytes(full + 8 * stage, LOADED_BYTES);
            ask(slice);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        slice = 0;
        advance();
    }
    // A CTA's shared memory outlives the last signals that neighbours send to its barriers.
    for (int i = 0; SHARERS > 1 && i < STAGES; ++i) {
        wait_barrier(empty + 8 * stage, phase ^ 1);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
}
