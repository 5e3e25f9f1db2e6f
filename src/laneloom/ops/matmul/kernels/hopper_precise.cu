// C = alpha A B in FP64 on Hopper, by matrix instructions (DMMA). One warp fills a ring of K-slices by TMA, four or
// eight warps multiply; persistent, tiles cut along K to equal shares.
//
// Operands lie in shared memory in panels of 16 elements, 128 bytes, of whichever axis is contiguous, swizzled by TMA so
// that a half warp's 8-byte reads meet no bank twice. TMA asks for 128 bytes at a time: panels of 64 would be twice the
// requests.
// device/hopper.cuh, hopper_ahead.cuh and hopper_shares.cuh come in front of this text.

#define THREADS (32 * CONSUMER_WARPS + 128)  // registers are handed over between whole warpgroups
#define A_BYTES (BLOCK_M * 128)
#define B_BYTES (BLOCK_N * 128)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define WARP_M (BLOCK_M / WARPS_M)
#define WARP_N (BLOCK_N / WARPS_N)

template <bool TO_RING>
__device__ __forceinline__ void bring_operand(const TensorMap *map, u32 to, u32 barrier, bool along_k, int block, int k,
                                              int row, int inner, int outer) {
    if (along_k) {
        bring_box<TO_RING>(map, to, barrier, k, row, inner, outer);
    } else {
#pragma unroll 1
        for (int panel = 0; panel < block / 16; ++panel)
            bring_box<TO_RING>(map, to + panel * (BLOCK_K * 128), barrier, row + 16 * panel, k, inner, outer);
    }
}

// What a CTA brings: a piece and where its tile is.
struct Work {
    Piece piece;
    Tile tile;
    bool there;

    __device__ __forceinline__ bool find(int n, const Sizes &s, int whole, int parts) {
        Walk walk = begin_walk();
        there = find_piece(n, piece, s, whole, parts);
        locate(piece.item, walk, tile, s, 0, 0);
        return there;
    }
    // What of the first piece the L2 is asked for: ask(of_a, slice). Shares of tiles begin at slices of their own.
    template <class Ask> __device__ __forceinline__ void fetch(const Sizes &s, int whole, const Ask &ask) const {
        const bool alike = CUT != SHARES || whole == s.items;
        fetch_first(tile, s, there ? piece.last - piece.first : 0, alike, [&](bool of_a, int i) { ask(of_a, piece.first + i); });
    }
};

// The operands of one tile.
struct Operands {
    const TensorMap *a_map, *b_map;
    int m, n, a_inner, a_outer, b_inner, b_outer;

    __device__ __forceinline__ Operands(const TensorMap *a_map, const TensorMap *b_map, const Tile &tile, const Sizes &s)
        : a_map(a_map), b_map(b_map), m(tile.m), n(tile.n), a_inner(tile.inner * s.a_inner),
          a_outer(tile.outer * s.a_outer), b_inner(tile.inner * s.b_inner), b_outer(tile.outer * s.b_outer) {}
    template <bool TO_RING> __device__ __forceinline__ void bring_a(int slice, u32 to, u32 barrier) const {
        bring_operand<TO_RING>(a_map, to, barrier, !A_IS_KM, BLOCK_M, slice * BLOCK_K, m, a_inner, a_outer);
    }
    template <bool TO_RING> __device__ __forceinline__ void bring_b(int slice, u32 to, u32 barrier) const {
        bring_operand<TO_RING>(b_map, to + A_BYTES, barrier, B_IS_NK, BLOCK_N, slice * BLOCK_K, n, b_inner, b_outer);
    }
};

__device__ __forceinline__ void produce(const TensorMap *a_map, const TensorMap *b_map, const Sizes &s, int whole,
                                        int parts, u32 ring, u32 full, u32 empty, Work work) {
    u32 stage = 0, phase = 0;
    Operands operands(a_map, b_map, work.tile, s);
    // The loads come after the kernels that wrote A and B. In a block of its own, so that what is ahead of it stays there.
    if (work.there) wait_for_predecessor();
    for (int n = 0; work.there;) {
#pragma unroll 1
        for (int slice = work.piece.first; slice < work.piece.last; ++slice) {
            // A barrier's first phase counts as complete when the other parity is asked for: the ring starts empty.
            wait_barrier(empty + 8 * stage, phase ^ 1);
            const u32 barrier = full + 8 * stage, to = ring + stage * STAGE_BYTES;
            expect_bytes(barrier, STAGE_BYTES);
            operands.bring_a<true>(slice, to, barrier);
            operands.bring_b<true>(slice, to, barrier);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        // Through a zero that the compiler does not know, or it would begin with this ahead of the first piece.
        const int zero = full + 8 * stage >> 30;
        work.find(++n, s, whole + zero, parts + zero);
        operands = Operands(a_map, b_map, work.tile, s);
    }
}

// mma m16n8k16: lane (r, q) = (lane / 4, lane % 4) has A[r, q], B[q, r] and C[r, 2 q] of each 8 x 4 (4 x 8, 8 x 8)
// block. Which k stands at q and which row (column) at r is free, as long as A, B and C agree: k = q % 2 + q / 2 * 4 +
// s % 2 * 2 + s / 2 * 8 in step s of a slice, row place(r) of a block of 8. Then the 16 lanes of 4 r and all q read 16
// different eighths of the 128 bytes over which the banks repeat, whichever axis is contiguous.
#define BLOCKS_M (WARP_M / 16)
#define BLOCKS_N (WARP_N / 8)

struct Sums { double x[BLOCKS_M][BLOCKS_N][4]; };

__device__ __forceinline__ int place(int r) { return r % 2 + r / 2 % 2 * 4 + r / 4 * 2; }

// Where lane (r, q) finds its element of step s in block `block` of 8 rows (columns). The swizzle exchanges the 16-byte
// chunks of a line of 128 bytes by the number of the line. Lanes hold this for `way`s of s and block; the rest, `beyond`,
// is the same for all of them.
__device__ __forceinline__ int lane_offset(bool along_k, int r, int q, int s, int block) {
    const int k = q % 2 + q / 2 * 4 + s % 2 * 2 + s / 2 * 8, row = 8 * block + place(r);
    const int line = along_k ? row : row / 16 * BLOCK_K + k, x = along_k ? k : row % 16;
    return line * 128 + ((x / 2) ^ (line & 7)) * 16 + x % 2 * 8;
}

__device__ __forceinline__ constexpr int way(bool along_k, int s, int block) {
    return along_k ? s : s % 2 + block % 2 * 2;
}
__device__ __forceinline__ constexpr int beyond(bool along_k, int s, int block) {
    return along_k ? block * 8 * 128 : s / 2 * 8 * 128 + block / 2 * BLOCK_K * 128;
}

// What one lane holds of a slice of A and B: two blocks of 16 rows of A, all columns of B, by step. Neighbouring blocks,
// and the last and the next slice's first, have registers of their own.
#define A_BUFFERS (BLOCKS_M % 2 ? 3 : 2)
static_assert(BLOCKS_M > 1 && (BLOCKS_M - 1) % A_BUFFERS != 0);
struct Fragments { double a[A_BUFFERS][4][2], b[BLOCKS_N][4]; };

// Offsets of this lane in a slice of A and of B, by `way`.
struct Lane { int a[4], b[4]; };

__device__ __forceinline__ Lane place_lane(int warp_m, int warp_n, int lane) {
    Lane result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int r = lane / 4, q = lane % 4, a = warp_m * (WARP_M / 8), b = warp_n * (WARP_N / 8);
        result.a[i] = A_IS_KM ? lane_offset(false, r, q, i % 2, a + i / 2) : lane_offset(true, r, q, i, a);
        result.b[i] = A_BYTES + (B_IS_NK ? lane_offset(true, r, q, i, b) : lane_offset(false, r, q, i % 2, b + i / 2));
    }
    return result;
}

__device__ __forceinline__ void fetch_a(Fragments &f, const char *slice, const Lane &lane, int i) {
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            f.a[i % A_BUFFERS][s][h] =
                *(const double *)(slice + lane.a[way(!A_IS_KM, s, 2 * i + h)] + beyond(!A_IS_KM, s, 2 * i + h));
}

__device__ __forceinline__ void fetch_b(Fragments &f, const char *slice, const Lane &lane, int j) {
#pragma unroll
    for (int s = 0; s < 4; ++s)
        f.b[j][s] = *(const double *)(slice + lane.b[way(B_IS_NK, s, j)] + beyond(B_IS_NK, s, j));
}

__device__ __forceinline__ void fetch_first(Fragments &f, const char *slice, const Lane &lane) {
    fetch_a(f, slice, lane, 0);
#pragma unroll
    for (int j = 0; j < BLOCKS_N; ++j) fetch_b(f, slice, lane, j);
}

// Multiply one slice, whose first fragments are there, and fetch those of `next`, once it is full: each as soon as the
// products that need its registers have begun. Without `more` slices in this tile, what is fetched is not used.
__device__ __forceinline__ void multiply(Sums &sums, Fragments &f, const char *slice, const char *next, bool more,
                                         u32 next_full, u32 next_phase, const Lane &lane) {
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
        const bool last = i == BLOCKS_M - 1;
        if (last && more) wait_barrier(next_full, next_phase);
        fetch_a(f, last ? next : slice, lane, last ? 0 : i + 1);
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j) {
            double(&c)[4] = sums.x[i][j];
            const double(&a)[4][2] = f.a[i % A_BUFFERS];
            const double(&b)[4] = f.b[j];
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
                "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
                : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                : "d"(a[0][0]), "d"(a[0][1]), "d"(a[1][0]), "d"(a[1][1]), "d"(a[2][0]), "d"(a[2][1]), "d"(a[3][0]),
                  "d"(a[3][1]), "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
            if (last) fetch_b(f, next, lane, j);
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
            const int m = tile.m + warp_m * WARP_M + 16 * i + 8 * h + place(r);
            if (WIDE_STORE && m >= s.M) continue;
            double *row = c + m * s.c_m;
#pragma unroll
            for (int j = 0; j < BLOCKS_N; ++j) {
                const int block = tile.n + warp_n * WARP_N + 8 * j;
                double x[2] = {alpha * sums.x[i][j][2 * h], alpha * sums.x[i][j][2 * h + 1]};
                if (WIDE_STORE) {
                    const int n = block + place(2 * q);
                    if (n < s.N) *(double2 *)(row + n) = make_double2(x[0], x[1]);
                } else {
                    // Lanes q and q ^ 1 exchange their second elements, so that four lanes store 32 bytes of a row.
                    x[1] = __shfl_xor_sync(0xffffffffu, x[1], 1);
#pragma unroll
                    for (int four = 0; four < 2; ++four) {
                        const int n = block + 4 * four + place(q / 2 * 4) + (q % 2 ^ four);
                        if (n < s.N && m < s.M) row[n * s.c_n] = q % 2 == four ? x[0] : x[1];
                    }
                }
            }
        }
}

// A part lies as the lanes hold it: the n-th 16 bytes of all threads are neighbours.
__device__ __forceinline__ void store_part(const Sums &sums, double *part) {
    double2 *to = (double2 *)part + threadIdx.x;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                to[((i * BLOCKS_N + j) * 2 + h) * CONSUMERS] = {sums.x[i][j][2 * h], sums.x[i][j][2 * h + 1]};
}

__device__ __forceinline__ void add_part(Sums &sums, const double *part) {
    const double2 *from = (const double2 *)part + threadIdx.x;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const double2 x = __ldcg(from + ((i * BLOCKS_N + j) * 2 + h) * CONSUMERS);
                sums.x[i][j][2 * h] += x.x, sums.x[i][j][2 * h + 1] += x.y;
            }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
matmul_hopper_precise(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, double *c,
                      const __grid_constant__ Sizes sizes, double alpha, int whole, int parts, double *workspace,
                      u64 launch) {
    extern __shared__ __align__(1024) char shared[];
    const u32 ring = shared_address(shared), full = ring + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    Work work;
    if (threadIdx.x == CONSUMERS) prefetch_map(&a_map), prefetch_map(&b_map);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(full + 8 * stage, 1);
            init_barrier(empty + 8 * stage, CONSUMER_WARPS);
        }
        // The copy engine must see the barriers before it signals them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // Meanwhile. By the lane that is elected each time: what all have would be computed in uniform registers, which is slow.
    if (warp >= CONSUMER_WARPS && elect_one()) work.find(0, sizes, whole, parts);
    __syncthreads();
    release_successor();
    if (warp >= CONSUMER_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (warp == CONSUMER_WARPS && elect_one())
            produce(&a_map, &b_map, sizes, whole, parts, ring, full, empty, work);
        if (FETCHED && warp == CONSUMER_WARPS + 1 && elect_one()) {
            const Operands operands(&a_map, &b_map, work.tile, sizes);
            work.fetch(sizes, whole, [&](bool of_a, int slice) {
                if (of_a) operands.bring_a<false>(slice, 0, 0);
                else operands.bring_b<false>(slice, 0, 0);
            });
        }
        wait_for_predecessor();  // who brings nothing does not end sooner
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    wait_for_predecessor();  // which may still use C and the parts
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    // The stage that is multiplied next: where it lies and its barrier are carried on, so that a read's address is a
    // register of the lane, one of the warp and a constant. By its number ptxas computes every address anew.
    const char *at = shared;
    u32 barrier = full, stage = 0, phase = 0;
    Sums sums;
    const Lane place = place_lane(warp_m, warp_n, lane);
    Fragments fragments;
    Walk walk = begin_walk();
    Tile tile;
    const auto multiply_slices = [&](int slices) {
        clear(sums);
        wait_barrier(barrier, phase);
        fetch_first(fragments, at, place);
#pragma unroll 1
        for (int slice = 0; slice < slices; ++slice) {
            const char *here = at;
            const u32 done = barrier + 8 * STAGES;
            at += STAGE_BYTES, barrier += 8;
            if (++stage == STAGES) at -= STAGES * STAGE_BYTES, barrier -= 8 * STAGES, stage = 0, phase ^= 1;
            multiply(sums, fragments, here, at, slice + 1 < slices, barrier, phase, place);
            __syncwarp();
            if (lane == 0) arrive(done);
        }
    };
    const auto store_tile = [&] {
        store(sums, c + tile.outer * sizes.c_outer + tile.inner * sizes.c_inner, sizes, tile, warp_m, warp_n, lane,
              alpha);
    };
    const int slices = slices_of(sizes);
#if CUT
    u64 *flags = (u64 *)(workspace + (i64)gridDim.x * (BLOCK_M * BLOCK_N));
    const int shared_slices = (sizes.items - whole) * slices;
    Piece piece;
    for (int n = 0; find_piece(n, piece, sizes, whole, parts); ++n) {
        multiply_slices(uniform(piece.last - piece.first));
        asm volatile("" : "+r"(n));  // the piece is computed again, not kept
        find_piece(n, piece, sizes, whole, parts);
        if (CUT == SHARES && piece.first > 0) {
            store_part(sums, workspace + (i64)rank_here() * (BLOCK_M * BLOCK_N));
            publish(flags + rank_here(), launch);
            continue;
        }
        const int end = (piece.item - whole + 1) * slices;
        int covered = end - slices + piece.last;
        for (int other = rank_here() + 1; CUT == SHARES && piece.last < slices && covered < end; ++other) {
            await_part(flags + other, launch);
            add_part(sums, workspace + (i64)other * (BLOCK_M * BLOCK_N));
            covered = begin_of(other + 1, shared_slices);
        }
        locate(piece.item, walk, tile, sizes, 0, 0);
        store_tile();
    }
#else  // without pieces the loop over slices is a few instructions shorter, which is 5% in some tiles
    for (int item = blockIdx.x; locate(item, walk, tile, sizes, 0, 0); item += gridDim.x) {
        multiply_slices(slices);
        store_tile();
    }
#endif
}
