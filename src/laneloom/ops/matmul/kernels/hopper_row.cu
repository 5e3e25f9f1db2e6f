// C = A B for one row, B contiguous along N: B streams once through registers and is multiplied by FMA.
//
// A lane has WIDE neighbouring columns, 16 bytes of a row of B; LANES lanes have one row's COLUMNS, a warp STEPS such rows.
// K goes in units of 8: a lane loads a unit's 8 rows at once, and with them 8 elements of A. A CTA has COLUMNS columns
// and, of a cluster of CLUSTER CTAs, one part of K; its warps take units in turn, a lane UNITS of them at once. The last
// turn of a part may be short: rows that are not there, of A and of B, are zeros then. The sums of lanes, of warps and
// of CTAs are added in a fixed order, so the same inputs give the same bits.
// device/hopper.cuh comes in front of this text.

#define COLUMNS (WIDE * LANES)
#define STEPS (32 / LANES)
#define THREADS (32 * WARPS)
#define STRIDE (8 * STEPS * WARPS)  // rows from a lane's unit to its next

struct RowSizes {
    int N, K;
    i64 a_k, b_k, c_n;
};

__device__ __forceinline__ void unpack(SUM (&to)[WIDE], uint4 from) {
    const u32 words[4] = {from.x, from.y, from.z, from.w};
#if FP64
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i] = __hiloint2double(words[2 * i + 1], words[2 * i]);
#else
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if FP32
        to[i] = __uint_as_float(words[i]);
#elif FP16
        asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
            : "=f"(to[2 * i]), "=f"(to[2 * i + 1]) : "r"(words[i]));
#else
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
#endif
    }
#endif
}

#if FP32 || FP64
__device__ __forceinline__ SUM as_sum(ELEMENT x) { return x; }
#else
__device__ __forceinline__ SUM as_sum(ELEMENT x) { return as_float(x); }
#endif

// Volatile, as all loads here: in this order, and not before the kernels ahead have ended. What is read once need not
// stay in the L1.
__device__ __forceinline__ uint4 load_once(const ELEMENT *from) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from) : "memory");
    return x;
}

// 8 elements of A from k on; where they are not WHOLE, those from `end` on are zero.
template <bool WHOLE>
__device__ __forceinline__ void load_a(SUM (&to)[8], const ELEMENT *a, const RowSizes &s, int k, int end) {
#if A_LINES
    if (WHOLE) {
#pragma unroll
        for (int piece = 0; piece < 8; piece += WIDE) {
            uint4 x;
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(a + k + piece) : "memory");
            SUM some[WIDE];
            unpack(some, x);
#pragma unroll
            for (int j = 0; j < WIDE; ++j) to[piece + j] = some[j];
        }
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = WHOLE || k + i < end ? as_sum(a[(k + i) * s.a_k]) : SUM(0);
}

// A lane's units of one turn, the first from row k on, which lies at `from`. Where the turn is not WHOLE, rows from
// `end` on are zeros in A as well: an infinity times a zero would be NaN.
template <bool WHOLE>
__device__ __forceinline__ void take_turn(SUM (&acc)[WIDE], const ELEMENT *a, const ELEMENT *from, const RowSizes &s,
                                          int k, int end) {
    const i64 pitch = s.b_k;
    uint4 lines[UNITS][8];
    SUM weights[UNITS][8];
#pragma unroll
    for (int u = 0; u < UNITS; ++u, k += STRIDE, from += STRIDE * pitch) {
        const ELEMENT *line = from;
#pragma unroll
        for (int i = 0; i < 8; ++i, line += pitch)
            lines[u][i] = WHOLE || k + i < end ? load_once(line) : make_uint4(0, 0, 0, 0);
        load_a<WHOLE>(weights[u], a, s, k, end);
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            SUM x[WIDE];
            unpack(x, lines[u][i]);
#pragma unroll
            for (int j = 0; j < WIDE; ++j) acc[j] += weights[u][i] * x[j];
        }
}

__device__ __forceinline__ void write(OUT_TYPE *to, SUM x) {
#if OUT_KIND == 0
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*(u16 *)to) : "f"(x));
#elif OUT_KIND == 1
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*(u16 *)to) : "f"(x));
#else
    *to = x;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)  // two CTAs an SM: the next kernel's beside this one's
matmul_hopper_row(const ELEMENT *a, const ELEMENT *b, OUT_TYPE *c, const __grid_constant__ RowSizes s) {
    __shared__ SUM warp_sums[WARPS][COLUMNS];
#if CLUSTER > 1
    __shared__ SUM cta_sums[CLUSTER][COLUMNS];  // of the cluster's first CTA
    // Every CTA has to be there before another writes to its shared memory; waited for below.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int units = (s.K + 7) / 8;
    // The rows of this CTA's part of K.
    const int first = (i64)units * rank / CLUSTER * 8, end = min((i64)units * (rank + 1) / CLUSTER * 8, (i64)s.K);
    // The last columns are moved back to end inside: what two CTAs share, both write, with the same bits.
    const int block = min((int)(blockIdx.x / CLUSTER) * COLUMNS, s.N - COLUMNS);
    // The first AHEAD rows are asked for while the kernels ahead drain: they are in the L2 when they may be read. That
    // reads nothing, and what a kernel ahead still writes, it writes in the L2.
    for (int i = threadIdx.x; i < min(AHEAD, end - first); i += THREADS)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(b + block + (first + i) * s.b_k),
                     "n"(16 * LANES) : "memory");
    int k = first + (warp * STEPS + lane / LANES) * 8, left = end - first;
    const ELEMENT *from = b + block + lane % LANES * WIDE + k * s.b_k;
    SUM acc[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; ++j) acc[j] = 0;
    wait_for_predecessor();
    release_successor();  // not sooner: few CTAs of several launches would share SMs, and leave others idle
#pragma unroll 1
    for (; left >= UNITS * STRIDE; left -= UNITS * STRIDE, k += UNITS * STRIDE, from += UNITS * STRIDE * s.b_k)
        take_turn<true>(acc, a, from, s, k, end);
#if !WHOLE_TURNS
    if (left > 0) take_turn<false>(acc, a, from, s, k, end);
#endif
#pragma unroll
    for (int j = 0; j < WIDE; ++j) {
#pragma unroll
        for (int other = LANES; other < 32; other *= 2) acc[j] += __shfl_xor_sync(0xffffffffu, acc[j], other);
        if (lane < LANES) warp_sums[warp][lane * WIDE + j] = acc[j];
    }
    __syncthreads();
    const int column = threadIdx.x;
    SUM sum = 0;
    if (column < COLUMNS) {
#pragma unroll
        for (int i = 0; i < WARPS; ++i) sum += warp_sums[i][column];
    }
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    if (column < COLUMNS)
#if FP64
        asm volatile(
            "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, 0;\nst.shared::cluster.f64 [there], %1;\n}" ::"r"(
                shared_address(&cta_sums[rank][column])), "d"(sum) : "memory");
#else
        asm volatile(
            "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, 0;\nst.shared::cluster.f32 [there], %1;\n}" ::"r"(
                shared_address(&cta_sums[rank][column])), "f"(sum) : "memory");
#endif
    // The parts are there once all have arrived.
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (rank != 0) return;
    sum = 0;
    if (column < COLUMNS) {
#pragma unroll
        for (int i = 0; i < CLUSTER; ++i) sum += cta_sums[i][column];
    }
#endif
    if (column < COLUMNS) write(c + (block + column) * s.c_n, sum);
}
