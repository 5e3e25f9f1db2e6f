// Sums of hopper_weights.cu on their way to C: those of a warp by way of its own shared memory, those of a cluster's CTAs,
// each of a part of K, by way of each other's.

#define PITCH (COLUMNS + 4)               // of a row of a cluster's sums, in words
#define SHARE (ROWS * COLUMNS / CLUSTER)  // sums that a CTA of the cluster finishes
#define TURNED_ROWS (EIGHTS == 1 ? 8 : 16)  // of X, of 16 columns, that a warp turns at once
#define TURNED_PITCH 20
#define TURNED_WORDS (16 * TURNED_PITCH)

struct Result {
    OUT_TYPE *c;
    const BIAS_TYPE *bias;
    const unsigned char *scales;
};

__device__ __forceinline__ void write(OUT_TYPE *to, float x) {
#if OUT_KIND == 0
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*(u16 *)to) : "f"(x));
#elif OUT_KIND == 1
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*(u16 *)to) : "f"(x));
#else
    *to = x;
#endif
}

// A number in the same place of another CTA's shared memory.
__device__ __forceinline__ void send(float *to, float x, u32 rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.f32 [there], %2;\n}" ::"r"(
            shared_address(to)), "r"(rank), "f"(x) : "memory");
}

// A group of rows has a bias of its own.
__device__ __forceinline__ const BIAS_TYPE *bias_of(const Result &to, const WeightSizes &s, const Part &part) {
    return GROUPED ? to.bias + part.inner * s.bias_inner : to.bias;
}

// Of column n of a tile: a row's scale, what folded values were divided by, or 1.
__device__ __forceinline__ float last_factor(const Result &to, const WeightSizes &s, const Part &part, int n) {
    if (GROUP) return FOLD ? X_BY_TMA ? 16 : 4 : 1;
    const i64 at = of_batch(part, s.scale_outer, s.scale_inner) + min(part.n + n, s.N - 1) * s.scale_n;
    return scale_of(load_number<SCALE_BYTES>(to.scales + at * SCALE_BYTES));
}

// By one warp: its 16 columns of each strip. Every lane stores 16 bytes where they lie together in C, and in it.
__device__ __forceinline__ void store_tile(const float (&sums)[STRIPS][SUMS], float *turned, const Result &to,
                                           const WeightSizes &s, const Part &part, int own) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    OUT_TYPE *c = to.c + of_batch(part, s.c_outer, s.c_inner);
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip) {
        float scale[2], bias[2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int n = own + strip * 64 + half * 8;
            scale[half] = last_factor(to, s, part, n);
            if (HAS_BIAS) bias[half] = as_float(bias_of(to, s, part)[min(part.n + n, s.N - 1) * s.bias_n]);
        }
#pragma unroll
        for (int e = 0; e < EIGHTS; e += TURNED_ROWS / 8) {
            if (part.m + e * 8 >= part.end) break;
#pragma unroll
            for (int i = 0; i < TURNED_ROWS / 8; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        turned[(8 * i + 2 * t + j) * TURNED_PITCH + lane / 4 + half * 8] =
                            sums[strip][4 * (e + i) + 2 * half + j] * scale[half] + bias[half];
            __syncwarp();
            const int row = C_ALONG_M ? lane / 16 * 8 : lane / 2, column = C_ALONG_M ? lane % 16 : lane % 2 * 8;
            const int m = part.m + e * 8 + row, n = part.n + own - lane / 4 + strip * 64 + column;
            if (row < TURNED_ROWS && m < part.end && n < s.N) {
                const i64 step = C_ALONG_M ? s.c_m : s.c_n;
                const int count = min(8, C_ALONG_M ? part.end - m : s.N - n);
                OUT_TYPE *first = c + m * s.c_m + n * s.c_n;
                __align__(16) OUT_TYPE y[8];
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    write(y + i, turned[(C_ALONG_M ? row + i : row) * TURNED_PITCH + (C_ALONG_M ? column : column + i)]);
                if (count == 8 && step == 1 && ((u64)first & 15) == 0) {
#pragma unroll
                    for (int i = 0; i < (int)sizeof(y) / 16; ++i) ((uint4 *)first)[i] = ((const uint4 *)y)[i];
                } else {
#pragma unroll
                    for (int i = 0; i < 8; ++i)
                        if (i < count) first[i * step] = y[i];
                }
            }
            __syncwarp();
        }
    }
}

// Sums of a CTA's part of K, by its consumers, to where its other threads find them.
__device__ __forceinline__ void leave_tile(const float (&sums)[STRIPS][SUMS], float *memory, const Result &to,
                                           const WeightSizes &s, const Part &part, int own) {
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int n = own + strip * 64 + half * 8;
            const float scale = last_factor(to, s, part, n);
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
                for (int j = 0; j < 2; ++j)
                    memory[(8 * e + 2 * (threadIdx.x % 4) + j) * PITCH + n] = sums[strip][4 * e + 2 * half + j] * scale;
        }
}

// By all threads of a cluster: each CTA adds up its share of the sums. Neighbours in C are neighbours among threads.
__device__ __forceinline__ void store_parts(float *memory, const Result &to, const WeightSizes &s, const Part &part,
                                            u32 rank) {
    const auto row = [](int i) { return C_ALONG_M ? i % ROWS : i / COLUMNS; };
    const auto column = [](int i) { return C_ALONG_M ? i / ROWS : i % COLUMNS; };
    OUT_TYPE *c = to.c + of_batch(part, s.c_outer, s.c_inner);
    float *parts = memory + ROWS * PITCH;
    asm volatile("barrier.cluster.wait;" ::: "memory");
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS)
        if (part.m + row(i) < part.end)
            send(parts + rank * SHARE + i % SHARE, memory[row(i) * PITCH + column(i)], i / SHARE);
    // The parts are there once all have arrived.
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    for (int j = threadIdx.x; j < SHARE; j += THREADS) {
        const int m = part.m + row(rank * SHARE + j), n = part.n + column(rank * SHARE + j);
        if (m >= part.end || n >= s.N) continue;
        float sum = 0;
#pragma unroll
        for (int r = 0; r < CLUSTER; ++r) sum += parts[r * SHARE + j];
        if (HAS_BIAS) sum += as_float(bias_of(to, s, part)[n * s.bias_n]);
        write(c + m * s.c_m + n * s.c_n, sum);
    }
}
