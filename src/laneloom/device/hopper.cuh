// What the CUDA C++ kernels for Hopper share: barriers, the copy engine (TMA), clusters, the order of tiles.
// It comes in front of a kernel's text. Source: PTX ISA, `mbarrier`, `cp.async.bulk.tensor`, `griddepcontrol`.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(64) TensorMap {
    u64 opaque[16];
};

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A number that all lanes of a warp have, in a form that lets the compiler keep what follows from it in uniform registers.
__device__ __forceinline__ u32 uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }

// One lane of a whole warp. Unlike a comparison with threadIdx.x it says to the compiler that there is one: the copy
// engine's and the barriers' operands need no loop over lanes.
__device__ __forceinline__ bool elect_one() {
    u32 elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected;
}

__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// After fence.mbarrier_init: every CTA of the cluster is there, and its barriers can be signalled.
__device__ __forceinline__ void cluster_meet() {
    cluster_arrive();
    cluster_wait();
}

__device__ __forceinline__ void wait_barrier(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Where the shared memory of CTA `rank` of the cluster has what this one has at `address`.
__device__ __forceinline__ u32 in_peer(u32 address, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// Arrive at a barrier by its address in the cluster. What it says is that this warp's reads of a slice are done, so
// nothing has to be made visible: a release of the cluster's scope would wait for all memory traffic, about a
// microsecond.
__device__ __forceinline__ void arrive_in_cluster(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Bring a tensor map near before its first use.
__device__ __forceinline__ void prefetch_map(const TensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The copy engine brings a box, and tells the barrier how many bytes came.
__device__ __forceinline__ void load_box(const TensorMap *map, u32 to, u32 barrier, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

// The same to all CTAs of the cluster whose bit of `mask` is set, at the same addresses there.
__device__ __forceinline__ void share_box(const TensorMap *map, u32 to, u32 barrier, u32 mask, int x, int y, int z,
                                          int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z),
        "r"(w), "h"((u16)mask) : "memory");
}

// The copy engine brings a box no further than the L2. That reads nothing, so it may come before `wait_for_predecessor`:
// what a kernel ahead still writes, it writes in the L2.
__device__ __forceinline__ void fetch_box(const TensorMap *map, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y),
                 "r"(z), "r"(w) : "memory");
}

// Four sums to a CTA of the cluster, and their bytes to a barrier of its, both by addresses in the cluster.
__device__ __forceinline__ void send(u32 to, u32 barrier, const float *x) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier) : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap *map, u32 from, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// 16-bit floats as they lie in memory.
struct bf16 { u16 bits; };
struct fp16 { u16 bits; };
__device__ __forceinline__ float as_float(float x) { return x; }
__device__ __forceinline__ float as_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float as_float(fp16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// What the host knows of a number to divide by: n / d of n up to 2^31 is one product in place of the 80 clocks of a division.
struct Divisor {
    u32 multiplier, shift;
};

__device__ __forceinline__ int divide(int n, const Divisor &by) { return (u64)(u32)n * by.multiplier >> by.shift; }

// The divisors of tiles of one width: how many a product has, and a band of GROUP_M rows of them.
struct Tiling {
    Divisor by_tiles, by_band;
};

// What a CTA asks for first comes first: one line of constants, which takes some 150 clocks to come.
struct Sizes {
    int M, N, K, batch_inner, items;
    Divisor by_inner, by_last_rows;          // batch_inner; rows of tiles in the last band of GROUP_M, where it has fewer
    Tiling tiling;
    int a_outer, a_inner, b_outer, b_inner;  // 1, or 0 where the operand repeats along that batch axis
    i64 c_outer, c_inner, c_m, c_n;
    const int *group_ends;  // of a grouped product: the row of A behind each group's last
    int groups;
    int wide_n, narrow_n, wide_items;  // of uneven tiles: those along N that have all columns, the others, all wide ones
    Tiling narrow_tiling;
};

// Programmatic dependent launch: the next kernel may start now; what follows comes after the kernels ahead.
__device__ __forceinline__ void release_successor() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void init_barrier(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

struct Tile {
    int m, n;          // first row and column of this CTA's tile
    int end;           // the row behind the last that belongs to it
    int outer, inner;  // its product in the batch, or (inner) its group
    bool narrow;       // it has 8 columns less
};

// Where the walk over tiles is: a group, its rows, and the number of tiles before it.
struct Walk {
    int group, first, rows, before;
};

__device__ __forceinline__ Walk begin_walk() { return {-1, 0, 0, 0}; }

#if GROUPED
// Moves `walk` on to the group that item `item` is of, if there is one. By a warp, which looks at 32 groups at a time.
__device__ __forceinline__ bool find_group(int item, Walk &walk, const Sizes &s, int tiles_n) {
    const auto tiles_of = [&](int rows) {
        return (rows + BLOCK_M * CLUSTER_M - 1) / (BLOCK_M * CLUSTER_M) * tiles_n;
    };
    if (item < walk.before + tiles_of(walk.rows)) return true;
    walk.before += tiles_of(walk.rows);
    const int lane = threadIdx.x % 32;
    for (int from = walk.group + 1; from < s.groups; from += 32) {
        const int group = from + lane;
        const int first = 0 < group && group < s.groups ? min(max(s.group_ends[group - 1], 0), s.M) : 0;
        const int rows = group < s.groups ? max(min(s.group_ends[group], s.M) - first, 0) : 0;
        int behind = tiles_of(rows);  // of the groups up to this one
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            const int others = __shfl_sync(~0u, behind, max(lane - far, 0));
            if (lane >= far) behind += others;
        }
        const u32 later = __ballot_sync(~0u, item < walk.before + behind);
        if (later) {
            const int own = __ffs(later) - 1;
            walk.group = from + own;
            walk.first = __shfl_sync(~0u, first, own), walk.rows = __shfl_sync(~0u, rows, own);
            walk.before += __shfl_sync(~0u, behind, own) - tiles_of(walk.rows);
            return true;
        }
        walk.before += __shfl_sync(~0u, behind, 31);
    }
    return false;
}
#endif

// A cluster's tile of number `item`, if there is one: GROUP_M rows of them are walked down before each step to the right.
// Of uneven tiles all wide ones come first, of every product of the batch, and stand to the left. With GROUPED by a warp.
__device__ __forceinline__ bool locate(int item, Walk &walk, Tile &tile, const Sizes &s, int rank_m, int rank_n) {
#if UNEVEN
    tile.narrow = item >= s.wide_items;
    const int tiles_n = tile.narrow ? s.narrow_n : s.wide_n;
#else
    tile.narrow = false;
    const int tiles_n = (s.N + BLOCK_N * CLUSTER_N - 1) / (BLOCK_N * CLUSTER_N);
#endif
    const Tiling &tiling = tile.narrow ? s.narrow_tiling : s.tiling;
#if GROUPED
    if (!find_group(item, walk, s, tiles_n)) return false;
    const int tiles_m = (walk.rows + BLOCK_M * CLUSTER_M - 1) / (BLOCK_M * CLUSTER_M);
    const int within_group = item - walk.before;
    tile.outer = 0;
    tile.inner = walk.group;
    tile.end = walk.first + walk.rows;
    const int first = walk.first;
#else
    const bool more = item < s.items;  // looked at last: a branch here would wait for its constant before asking for others
    if (tile.narrow) item -= s.wide_items;
    const int tiles_m = (s.M + BLOCK_M * CLUSTER_M - 1) / (BLOCK_M * CLUSTER_M);
    const int batch = divide(item, tiling.by_tiles);
    const int within_group = item - batch * (tiles_m * tiles_n);
    tile.outer = divide(batch, s.by_inner);
    tile.inner = batch - tile.outer * s.batch_inner;
    tile.end = s.M;
    const int first = 0;
#endif
    const int band = GROUPED ? within_group / (GROUP_M * tiles_n) : divide(within_group, tiling.by_band);
    const int rows = min(tiles_m - band * GROUP_M, GROUP_M);
    const int within = within_group - band * (GROUP_M * tiles_n);
    const int column = GROUPED ? within / rows : rows == GROUP_M ? within / GROUP_M : divide(within, s.by_last_rows);
    tile.m = first + ((band * GROUP_M + within - column * rows) * CLUSTER_M + rank_m) * BLOCK_M;
    const int width = tile.narrow ? BLOCK_N - 8 : BLOCK_N;
    tile.n = (column * CLUSTER_N + rank_n) * width + (tile.narrow ? s.wide_n * BLOCK_N : 0);
    // The copy engine takes 2.7 times as long for a row that is not there: the last tiles are moved back to end inside, but
    // for rows in groups. What two tiles share, both write, with the same bits.
#ifdef EDGE_STEP_M
    tile.m = min(tile.m, max((s.M - BLOCK_M + EDGE_STEP_M - 1) / EDGE_STEP_M * EDGE_STEP_M, 0));
#endif
#ifdef EDGE_STEP_N
    tile.n = min(tile.n, max((s.N - width + EDGE_STEP_N - 1) / EDGE_STEP_N * EDGE_STEP_N, 0));
#endif
#if GROUPED
    return true;
#else
    return more;
#endif
}
