// C = A B in FP32 by FMA or in FP64 by matrix instructions (DMMA), operands read where they lie: any strides, any batch.
//
// Slices of K come by asynchronous copies (cp.async) of 16 bytes, or of single elements where rows begin elsewhere, into
// a ring of STAGES in shared memory, each operand as it lies: a line is a row (of B a column) where it is contiguous along
// K, else one k. PAD elements behind each line keep the reads of a warp apart in the banks. GROUPS of threads take steps of
// a slice in turn, and of a cluster of CLUSTER CTAs each has a part of K; their sums are added through shared memory, of
// the cluster as well, in a fixed order. Where K is `split` further, each part leaves a result, which a launch behind
// adds. What lies behind the end of K is zero in A and B both.
// device/hopper.cuh comes in front of this text.

#define TURNS (BLOCK_K / (STEP * GROUPS))  // steps of a slice that a group takes
#if FP64
static_assert(TURNS % 2 == 0, "the first step of a slice has the same registers");
#endif

// Neighbours among the sums in a CTA's shared memory, by their address in the cluster: 16 bytes, or one.
template <int N>
__device__ __forceinline__ void read_peer(SUM (&x)[N], u32 address) {
#if FP64
    if (N == 2) asm volatile("ld.shared::cluster.v2.f64 {%0, %1}, [%2];" : "=d"(x[0]), "=d"(x[N - 1]) : "r"(address) : "memory");
    else asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(x[0]) : "r"(address) : "memory");
#else
    if (N == 4)
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[0]), "=f"(x[N / 4]), "=f"(x[N / 2]), "=f"(x[N - 1]) : "r"(address) : "memory");
    else asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x[0]) : "r"(address) : "memory");
#endif
}

#if CLUSTER > 1
// The CTAs of a cluster add their sums, in the order of K's parts: each a share of the tile, in its own shared memory,
// where nobody else reads that share.
__device__ __forceinline__ void add_shares(SUM *tiles, u32 rank) {
    constexpr int LINE = C_ALONG_M ? BLOCK_M : BLOCK_N, WIDE = LINE % (16 / sizeof(SUM)) ? 1 : 16 / sizeof(SUM);
    constexpr int ACROSS = LINE / WIDE, SHARE = ACROSS * TILE_LINES / CLUSTER;
    static_assert(SHARE * CLUSTER == ACROSS * TILE_LINES, "whole pieces in a share");
    for (int i = SHARE * rank + threadIdx.x; i < (int)(SHARE * (rank + 1)); i += THREADS) {
        SUM *own = tiles + i / ACROSS * TILE_PITCH + i % ACROSS * WIDE;
        SUM parts[CLUSTER][WIDE];
#pragma unroll
        for (int r = 0; r < CLUSTER; ++r) read_peer(parts[r], in_peer(shared_address(own), r));
#pragma unroll
        for (int v = 0; v < WIDE; ++v) {
            SUM sum = 0;
#pragma unroll
            for (int r = 0; r < CLUSTER; ++r) sum += parts[r][v];
            own[v] = sum;
        }
    }
    __syncthreads();
}
#endif

__device__ __forceinline__ void round_to(SUM &to, SUM x) { to = x; }
__device__ __forceinline__ void round_to(bf16 &to, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }
__device__ __forceinline__ void round_to(fp16 &to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
matmul_hopper_async(const ELEMENT *a, const ELEMENT *b, OUT *c, const __grid_constant__ AsyncSizes s) {
    extern __shared__ __align__(16) char shared[];
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int number = blockIdx.x / CLUSTER, tile = number % (s.tiles_m * s.tiles_n);
    const int batch = number / (s.tiles_m * s.tiles_n), outer = batch / s.inner, inner = batch % s.inner;
    const int part = s.split > 1 ? batch * CLUSTER + rank : rank, parts = s.split * CLUSTER;
    const int first_m = tile % s.tiles_m * BLOCK_M, first_n = tile / s.tiles_m * BLOCK_N;
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K;
    int first = 0, count = slices;
    if (parts > 1) {
        count = slices / parts;
        first = part * count + min(part, slices % parts), count += part < slices % parts;
    }
    const int length = s.K - first * BLOCK_K;
    int left = length;
    a += outer * s.a_outer + inner * s.a_inner, b += outer * s.b_outer + inner * s.b_inner;
    A of_a(a, s.a_m, s.a_k, first_m, s.M, first * BLOCK_K);
    B of_b(b, s.b_n, s.b_k, first_n, s.N, first * BLOCK_K);
    const u32 ring = shared_address(shared);
    int asked = 0;
    const auto ask = [&]() {
        if (asked < count) {
            const u32 slot = ring + asked % STAGES * STAGE_BYTES;
            of_a.ask(slot, left), of_b.ask(slot + A::BYTES, left);
            left -= BLOCK_K;
        }
        ++asked;
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    Sums sums(of_a, of_b);
    const auto read = [&](Step &step, int i, int k) {
        const ELEMENT *slice = (const ELEMENT *)(shared + i % STAGES * STAGE_BYTES);
        sums.read(step, slice, slice + A::BYTES / sizeof(ELEMENT), k + STEP * sums.group);
    };
    // Slice i is there: this thread's copies, then everybody's. Everybody has read all of the slice before by then, so that
    // another takes its place.
    const auto begin = [&]() {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        ask();
    };
    wait_for_predecessor();
    // Not sooner: CTAs of several launches that wait would share SMs, and leave others idle.
    release_successor();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) ask();
#if FP64
    // What is multiplied next is read while the matrix instructions run, of the next slice as well.
    Step steps[2];
    begin();
    read(steps[0], 0, 0);
#pragma unroll 1
    for (int i = 0; i < count; ++i)
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            if (turn + 1 < TURNS) {
                read(steps[(turn + 1) % 2], i, (turn + 1) * STEP * GROUPS);
            } else if (i + 1 < count) {
                begin();
                read(steps[0], i + 1, 0);
            }
            sums.multiply(steps[turn % 2]);
        }
#else
    // Warps of several CTAs hide each other's reads; a second step in registers would leave room for fewer.
    Step step;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        begin();
        const int there = BF16 || FP16 ? BLOCK_K : min(length - i * BLOCK_K, BLOCK_K);  // mma takes zeros as well
#pragma unroll BF16 || FP16 ? TURNS : 2
        for (int k = 0; k < there; k += STEP * GROUPS) {
            read(step, i, k);
            sums.multiply(step);
        }
    }
#endif
    // The sums take the place of the ring: its last copies are there, and its last slice is read.
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    SUM *tiles = (SUM *)shared;
    sums.leave(tiles);
    __syncthreads();
#if CLUSTER > 1
    if (GROUPS > 1) {
        for (int i = threadIdx.x; i < TILE; i += THREADS) {
            SUM sum = tiles[i];
#pragma unroll
            for (int g = 1; g < GROUPS; ++g) sum += tiles[g * TILE + i];
            tiles[i] = sum;
        }
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    add_shares(tiles, rank);
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    // A thread has the same place in every line that it stores: few instructions for each.
    constexpr int ACROSS = (C_ALONG_M ? BLOCK_M : BLOCK_N) / C_VECTOR, ALL = ACROSS * TILE_LINES, APART = THREADS / ACROSS;
    static_assert(THREADS % ACROSS == 0);
    const int own = ALL * rank / CLUSTER + threadIdx.x, place = own % ACROSS, line0 = own / ACROSS;
    const int m = first_m + (C_ALONG_M ? place * C_VECTOR : line0);
    const int n = first_n + (C_ALONG_M ? line0 : place * C_VECTOR);
    // Of this CTA's share, and of C.
    int lines = ((int)(ALL * (rank + 1) / CLUSTER) - place + ACROSS - 1) / ACROSS - line0;
    lines = min(lines, C_ALONG_M ? s.N - n : s.M - m);
    if (C_ALONG_M ? m >= s.M : n >= s.N) lines = 0;
    const SUM *from = tiles + line0 * TILE_PITCH + place * C_VECTOR;
    OUT *to = c + outer * s.c_outer + inner * s.c_inner + m * s.c_m + n * s.c_n;
    const i64 apart = APART * (C_ALONG_M ? s.c_n : s.c_m);
#pragma unroll 4
    for (int line = 0; line < lines; line += APART, from += APART * TILE_PITCH, to += apart) {
        union { OUT x[C_VECTOR]; uint4 all; uint2 half; u32 word; } rounded;
#pragma unroll
        for (int v = 0; v < C_VECTOR; ++v) {
            SUM sum = 0;
#pragma unroll
            for (int g = 0; g < (CLUSTER > 1 ? 1 : GROUPS); ++g) sum += from[g * TILE + v];
            round_to(rounded.x[v], sum);
        }
        constexpr int BYTES = C_VECTOR * sizeof(OUT);
        if (C_VECTOR == 1) *to = rounded.x[0];
        else if (BYTES == 16) *(uint4 *)to = rounded.all;
        else if (BYTES == 8) *(uint2 *)to = rounded.half;
        else *(u32 *)to = rounded.word;
    }
#if CLUSTER > 1
    // Nobody leaves while another still reads its sums.
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
