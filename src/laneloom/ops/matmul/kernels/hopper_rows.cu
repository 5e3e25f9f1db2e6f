// C = A B for few rows, one product or many: B streams once through registers, from where the tensor cores take it (mma m16n8k16).
//
// mma's 16 rows are columns of B, its 8 columns rows of A, so that EIGHTS of them cover A. A warp has 64 GROUPS columns
// of B and units of 32 of K, of which a lane has 8, quarter lane % 4. mma does not care which of K's elements stand
// where if those of A and of B stand alike, nor which columns, so a lane gives it what it loaded: of B along N the same
// 8 columns of its 8 rows, of B along K its 8 elements of a column of every 8. They come in pieces of PIECE elements, 8
// where B's lines begin at 16 bytes, or as few as these allow; neighbouring lanes' pieces are neighbours. Those along K,
// of A at least, have K_PIECE elements.
// ACROSS warps stand beside each other and read the same of A; WARPS / ACROSS take units in turn, UNITS in flight. Of a
// cluster of CLUSTER CTAs each has a part of K. The sums of warps and of CTAs are added in a fixed order, so the same
// inputs give the same bits. What lies behind the end of K is zero in A and B both: an infinity times a zero would be
// NaN.
// device/hopper.cuh comes in front of this text.

#define OF_WARP (64 * GROUPS)
#define COLUMNS (OF_WARP * ACROSS)
#define ROWS (8 * EIGHTS)
#define THREADS (32 * WARPS)
#define TURNS (WARPS / ACROSS)  // warps that take units in turn
#define PITCH (COLUMNS + 4)              // of a row of sums, in words
#define SHARE (ROWS * COLUMNS / CLUSTER)  // sums that a CTA of the cluster finishes

struct RowsSizes {
    int M, N, K, blocks, inner;  // blocks of columns of a product, products of the inner batch
    i64 a_m, a_k, b_k, b_n, c_m, c_n, a_outer, a_inner, b_outer, b_inner, c_outer, c_inner;
};

struct Unit {
    uint4 b[GROUPS][8], a[EIGHTS];
};

// Where along K a lane's element i lies, from its first one on; and along N, of B along N.
__device__ __forceinline__ int along_k(int i) { return i / K_PIECE * 4 * K_PIECE + i % K_PIECE; }
__device__ __forceinline__ int along_n(int i) { return i / PIECE * 8 * PIECE + i % PIECE; }

// Volatile, as all loads here: in this order, and not before the kernels ahead have ended. Whole lines of B need not
// stay in the L1; of others the next piece has the rest.
__device__ __forceinline__ uint4 load_once(const ELEMENT *from) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from) : "memory");
    return x;
}

// 8 elements in pieces of COUNT, each `step` elements behind the one before.
template <int COUNT>
__device__ __forceinline__ uint4 load_pieces(const ELEMENT *from, int step) {
    uint4 x;
    if (COUNT == 8) {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from) : "memory");
    } else if (COUNT == 4) {
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from) : "memory");
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.z), "=r"(x.w) : "l"(from + step) : "memory");
    } else {
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(x.x) : "l"(from) : "memory");
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(x.y) : "l"(from + step) : "memory");
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(x.z) : "l"(from + 2 * step) : "memory");
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(x.w) : "l"(from + 3 * step) : "memory");
    }
    return x;
}

__device__ __forceinline__ void multiply(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if FP16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
        " {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
        " {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

__device__ __forceinline__ u32 word(const uint4 &x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

// A lane's 8 elements along K, `step` apart; zeros where `left` of K are not enough.
__device__ __forceinline__ uint4 load_each(const ELEMENT *from, i64 step, int left) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int k = along_k(2 * i);
        const u32 low = k < left ? ((const volatile ELEMENT *)from)[k * step].bits : 0;
        const u32 high = k + 1 < left ? ((const volatile ELEMENT *)from)[(k + 1) * step].bits : 0;
        words[i] = low | high << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// This lane's part of a unit; `left`: of K from its first element on, enough where the unit is WHOLE.
template <bool WHOLE>
__device__ __forceinline__ void load(Unit &unit, const ELEMENT *const (&a)[EIGHTS], const ELEMENT *b,
                                     const RowsSizes &s, int left) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#if ALONG_K
            const ELEMENT *from = b + (64 * g + 8 * i) * s.b_n;
            unit.b[g][i] = !WHOLE       ? load_each(from, 1, left)
                           : PIECE == 8 ? load_once(from)
                                        : load_pieces<PIECE>(from, 4 * PIECE);
#else
            const ELEMENT *from = b + 64 * g + along_k(i) * s.b_k;
            unit.b[g][i] = !WHOLE && along_k(i) >= left ? make_uint4(0, 0, 0, 0)
                           : PIECE == 8        ? load_once(from)
                                               : load_pieces<PIECE>(from, 8 * PIECE);
#endif
        }
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e)
        unit.a[e] = WHOLE && A_LINES ? load_pieces<K_PIECE>(a[e], 4 * K_PIECE) : load_each(a[e], s.a_k, left);
}

__device__ __forceinline__ void multiply(float (&sums)[GROUPS][4][EIGHTS][4], const Unit &unit) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int p = 0; p < 4; ++p) {
#if ALONG_K
                const u32 x0 = word(unit.b[g][2 * p], 2 * half), x1 = word(unit.b[g][2 * p + 1], 2 * half);
                const u32 x2 = word(unit.b[g][2 * p], 2 * half + 1), x3 = word(unit.b[g][2 * p + 1], 2 * half + 1);
#else
                const u32 first = word(unit.b[g][4 * half], p), second = word(unit.b[g][4 * half + 1], p);
                const u32 third = word(unit.b[g][4 * half + 2], p), fourth = word(unit.b[g][4 * half + 3], p);
                const u32 x0 = __byte_perm(first, second, 0x5410), x1 = __byte_perm(first, second, 0x7632);
                const u32 x2 = __byte_perm(third, fourth, 0x5410), x3 = __byte_perm(third, fourth, 0x7632);
#endif
#pragma unroll
                for (int e = 0; e < EIGHTS; ++e)
                    multiply(sums[g][p][e], x0, x1, x2, x3, word(unit.a[e], 2 * half), word(unit.a[e], 2 * half + 1));
            }
}

__device__ __forceinline__ void write(OUT_TYPE *to, float x) {
#if OUT_KIND == 0
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*(u16 *)to) : "f"(x));
#elif OUT_KIND == 1
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*(u16 *)to) : "f"(x));
#else
    *to = x;
#endif
}

// Bring what is read first to the L2, before the kernels ahead have ended. That reads nothing, and what a kernel ahead
// still writes, it writes in the L2.
__device__ __forceinline__ void ask_ahead(const ELEMENT *b, const RowsSizes &s, int length) {
#if ALONG_K
    const int lines = COLUMNS, bytes = min(AHEAD, length) / 8 * 16;
    const i64 pitch = s.b_n;
#else
    const int lines = min(AHEAD, length), bytes = COLUMNS * 2;
    const i64 pitch = s.b_k;
#endif
    if (PIECE < 8) return;  // lines would have to begin at 16 bytes
    for (int i = threadIdx.x; i < lines && bytes > 0; i += THREADS)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(b + i * pitch), "r"(bytes) : "memory");
}

// A number in the same place of another CTA's shared memory.
__device__ __forceinline__ void send(float *to, float x, u32 rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.f32 [there], %2;\n}" ::"r"(
            shared_address(to)), "r"(rank), "f"(x) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
matmul_hopper_rows(const ELEMENT *a, const ELEMENT *b, OUT_TYPE *c, const __grid_constant__ RowsSizes s) {
    extern __shared__ float memory[];  // of each turn PITCH columns of sums, row after row; then SHARE of each CTA
#if CLUSTER > 1
    // Every CTA has to be there before another writes to its shared memory; waited for below.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    release_successor();
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // This CTA's part of K, in whole units but for the last.
    const int all = (s.K + 31) / 32;
    const int first = (i64)all * rank / CLUSTER * 32;
    const int length = min((int)((i64)all * (rank + 1) / CLUSTER * 32), s.K) - first;
    // The last columns are moved back to end inside: what two CTAs share, both write, with the same bits.
    int number = blockIdx.x / CLUSTER;
#if BATCHED
    const int product = number / s.blocks, outer = product / s.inner, inner = product - outer * s.inner;
    number -= product * s.blocks;
    a += outer * s.a_outer + inner * s.a_inner;
    b += outer * s.b_outer + inner * s.b_inner;
    c += outer * s.c_outer + inner * s.c_inner;
#endif
    const int block = min(number * COLUMNS, s.N - COLUMNS);
    b += block * s.b_n + first * s.b_k;
    if (AHEAD > 0) ask_ahead(b, s, length);
    const int across = warp % ACROSS, turn = warp / ACROSS;
    const int k = turn * 32 + lane % 4 * K_PIECE;
    b += across * OF_WARP * s.b_n + k * s.b_k + lane / 4 * (ALONG_K ? s.b_n : PIECE);
    const ELEMENT *rows[EIGHTS];
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e) rows[e] = a + min(8 * e + lane / 4, s.M - 1) * s.a_m + (first + k) * s.a_k;
    const i64 step_a = 32 * TURNS * s.a_k, step_b = 32 * TURNS * s.b_k;
    const int whole = length / 32, count = (whole - turn + TURNS - 1) / TURNS;  // of units, and those of this warp

    float sums[GROUPS][4][EIGHTS][4] = {};
    Unit units[UNITS];
    int loaded = 0;
    const auto load_next = [&](Unit &unit) {
        if (loaded++ < count) load<true>(unit, rows, b, s, 32);
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) rows[e] += step_a;
        b += step_b;
    };
    wait_for_predecessor();
#pragma unroll
    for (int d = 0; d < UNITS - 1; ++d) load_next(units[d]);
#pragma unroll 1
    for (int i = 0; i < count; i += UNITS) {
#pragma unroll
        for (int d = 0; d < UNITS; ++d) {
            load_next(units[(d + UNITS - 1) % UNITS]);
            if (i + d < count) multiply(sums, units[d]);
        }
    }
    if (whole * 32 < length && whole % TURNS == turn) {
        const int back = count - loaded;
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) rows[e] += back * step_a;
        load<false>(units[0], rows, b + back * step_b, s, length - whole * 32 - lane % 4 * K_PIECE);
        multiply(sums, units[0]);
    }

#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
#pragma unroll
        for (int p = 0; p < 4; ++p)
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int row = 8 * e + lane % 4 * 2 + i % 2;
                    const int of_group =
                        ALONG_K ? 16 * p + i / 2 * 8 + lane / 4 : lane / 4 * PIECE + along_n(2 * p + i / 2);
                    memory[(turn * ROWS + row) * PITCH + across * OF_WARP + 64 * g + of_group] = sums[g][p][e][i];
                }
    __syncthreads();
#if CLUSTER > 1
    float *parts = memory + TURNS * ROWS * PITCH;
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
    // C's contiguous axis is the one that neighbours share.
    const int rows_there = min(ROWS, s.M);
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
        const int row = C_ALONG_M ? i % ROWS : i / COLUMNS, column = C_ALONG_M ? i / ROWS : i % COLUMNS;
        if (row >= rows_there) continue;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < TURNS; ++w) sum += memory[(w * ROWS + row) * PITCH + column];
#if CLUSTER > 1
        send(parts + rank * SHARE + i % SHARE, sum, i / SHARE);
#else
        write(c + row * s.c_m + (block + column) * s.c_n, sum);
#endif
    }
#if CLUSTER > 1
    // The parts are there once all have arrived.
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    for (int j = threadIdx.x; j < SHARE; j += THREADS) {
        const int i = rank * SHARE + j;
        const int row = C_ALONG_M ? i % ROWS : i / COLUMNS, column = C_ALONG_M ? i / ROWS : i % COLUMNS;
        if (row >= rows_there) continue;
        float sum = 0;
#pragma unroll
        for (int r = 0; r < CLUSTER; ++r) sum += parts[r * SHARE + j];
        write(c + row * s.c_m + (block + column) * s.c_n, sum);
    }
#endif
}
