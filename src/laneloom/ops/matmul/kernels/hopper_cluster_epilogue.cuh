// What hopper_cluster.cu makes of a tile's sums: activation(alpha scale_a sum scale_b + beta D + bias). The
// constants are those of hopper_cluster.py: a warp has 16 rows in each of STRIPS strips of 64 rows.
//
// A wait for memory here is a wait of the tensor cores. So a warp asks for all terms but D while the tile is being
// multiplied, each column's once, and its lanes pass them on by shuffles; of D it asks for AHEAD pieces at that time.

#define FINISHED (BLOCK_N / FINISHERS)        // columns of a tile that one CTA finishes
#define ACCUMULATORS (FINISHED / 2)           // sums of one strip in one thread
#define PANEL (128 / OUT_BYTES)               // columns of C in 128 bytes of staging
#define PANELS_OF_TILE ((FINISHED + PANEL - 1) / PANEL)
#define PANEL_BYTES (16 * 128)                // of one warp's 16 rows
#define PAIRS ((FINISHED + 63) / 64)          // pairs of columns whose terms one lane holds
#define QUADS ((FINISHED + 31) / 32)          // four blocks of 8 columns: what one 16-byte load a lane brings of D
#define AHEAD (STRIPS * QUADS < 3 ? STRIPS * QUADS : 3)

// What the epilogue reads beside the sums; strides in elements.
struct Terms {
    const void *addend, *bias;
    const float *scale_a, *scale_b;
    i64 addend_outer, addend_inner, addend_m, addend_n, bias_step;
    float alpha, beta;
};

__device__ __forceinline__ float larger(float x, float y) {  // NaN if either is
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

__device__ __forceinline__ float activate(float x) {
#if ACTIVATION == 1
    return larger(x, 0.0f);
#elif ACTIVATION == 2 && OUT_BYTES == 2
    // x Phi(x) = max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, and that erfc is 2^-(a P(a)), P fitted on a up to 5.6: a
    // relative error of 6e-6 there, below 5e-13 absolute beyond, of a result that is rounded to 16 bits. A third of
    // erff's instructions.
    const float a = fminf(fabsf(x), 16.0f);
    float p = 1.75624473e-06f;
    p = fmaf(p, a, -6.00938984e-05f);
    p = fmaf(p, a, 0.000919095532f);
    p = fmaf(p, a, -0.00846410822f);
    p = fmaf(p, a, 0.0538713969f);
    p = fmaf(p, a, 0.458554924f);
    p = fmaf(p, a, 1.1512115f);
    float half_erfc;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(half_erfc) : "f"(fmaf(-p, a, -1.0f)));
    return fmaf(-a, half_erfc, larger(x, 0.0f));
#elif ACTIVATION == 2
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
#elif ACTIVATION == 3
    return __fdividef(x, 1.0f + __expf(-x));
#else
    return x;
#endif
}

__device__ __forceinline__ void pin(float &x) { asm volatile("" : "+f"(x)); }
__device__ __forceinline__ void pin(bf16 &x) { asm volatile("" : "+h"(x.bits)); }
__device__ __forceinline__ void pin(fp16 &x) { asm volatile("" : "+h"(x.bits)); }

// The terms of one tile, asked for ahead: of this thread's rows, and of columns 64 i + 2 lane and the next one.
struct Held {
    float scale_a[STRIPS][2], scale_b[PAIRS][2];
    BIAS_TYPE row_bias[STRIPS][2], bias[PAIRS][2];
    uint4 addend[AHEAD][2];
};

// Whether lanes store words of C's rows whose places are known before the sums are.
#define KNOWN_PLACE (ONE_TILE && (ROW_STORE || (SWAPPED && OUT_BYTES == 2 && !TMA_STORE)))

// Where a warp's part of C is: the first of its rows in the first strip, and its first column.
struct Place {
    int m, n;
#if KNOWN_PLACE
    i64 first, step;    // this lane's first element of C, and from there to its next row
    int rows, columns;  // from there to the tile's end
#endif
};

__device__ __forceinline__ int row_of(const Place &at, const Tile &tile, int strip, int half) {
    // Rows past the tile's end read the terms of its last one; what comes of them is not stored.
    return min(at.m + 64 * strip + 8 * half + (int)(threadIdx.x % 32 / 4), tile.end - 1);
}

__device__ __forceinline__ const ADDEND_TYPE *addend_row(const Place &at, const Tile &tile, const Terms &terms,
                                                         int strip, int half) {
    return (const ADDEND_TYPE *)terms.addend + tile.outer * terms.addend_outer + tile.inner * terms.addend_inner +
           row_of(at, tile, strip, half) * terms.addend_m;
}

// Piece `number` of D: 8 columns of each of the thread's two rows, a block of its own for each of four lanes.
__device__ __forceinline__ void ask_for_addend(uint4 (&words)[2], int number, const Place &at, const Sizes &s,
                                               const Tile &tile, const Terms &terms) {
    const int n = at.n + 32 * (number % QUADS) + 8 * (threadIdx.x % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        words[half] = make_uint4(0, 0, 0, 0);
        if (n < s.N) words[half] = *(const uint4 *)(addend_row(at, tile, terms, number / QUADS, half) + n);
    }
}

__device__ __forceinline__ void ask_for_terms(Held &held, const Place &at, const Sizes &s, const Tile &tile,
                                              const Terms &terms) {
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int m = row_of(at, tile, strip, half);
            if (SCALE_A) held.scale_a[strip][half] = terms.scale_a[SCALE_A == 2 ? m : 0];
            if (BIAS_AXIS == 1) held.row_bias[strip][half] = ((const BIAS_TYPE *)terms.bias)[m * terms.bias_step];
        }
#pragma unroll
    for (int i = 0; i < PAIRS; ++i)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
            const int n = min(at.n + 64 * i + 2 * (int)(threadIdx.x % 32) + x, s.N - 1);
            if (SCALE_B) held.scale_b[i][x] = terms.scale_b[SCALE_B == 2 ? (GROUPED ? (i64)tile.inner * s.N : 0) + n : 0];
            if (BIAS_AXIS == 2) held.bias[i][x] = ((const BIAS_TYPE *)terms.bias)[n * terms.bias_step];
        }
#if ADDEND_IN_LINES
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) ask_for_addend(held.addend[i], i, at, s, tile, terms);
#endif
}

// The multiplication is over: what was asked for may be waited for, not before.
__device__ __forceinline__ void arrived(Held &held) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
#pragma unroll
        for (int i = 0; i < STRIPS; ++i) {
            if (SCALE_A) pin(held.scale_a[i][x]);
            if (BIAS_AXIS == 1) pin(held.row_bias[i][x]);
        }
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            if (SCALE_B) pin(held.scale_b[i][x]);
            if (BIAS_AXIS == 2) pin(held.bias[i][x]);
        }
    }
}

// Among four neighbouring lanes, word j of lane i and word i of lane j change places.
__device__ __forceinline__ void transpose(u32 (&w)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const u32 got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? got : w[i], w[i + 1] = odd ? w[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 got = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
        w[i] = high ? got : w[i], w[i + 2] = high ? w[i + 2] : got;
    }
}

__device__ __forceinline__ float from_bits(u16 bits) {
    ADDEND_TYPE x;
    memcpy(&x, &bits, 2);
    return as_float(x);
}

// The epilogue of `count` sums of one strip from number `first`, a multiple of 16.
__device__ __forceinline__ void finish(STORED (&acc)[ACCUMULATORS], int first, int count, int strip, Held &held,
                                       const Place &at, const Sizes &s, const Tile &tile, const Terms &terms) {
#if EPILOGUE
    const int pair = threadIdx.x % 4;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        factor[half] = HAS_ALPHA ? terms.alpha : 1.0f;
        if (SCALE_A) factor[half] *= held.scale_a[strip][half];
        if (SCALE_B == 1) factor[half] *= held.scale_b[0][0];
    }
#pragma unroll
    for (int j = first; j < first + count; j += 16) {  // four blocks of 8 columns
        float addend[2][4][2];
#if ADDEND_IN_LINES
        const int number = strip * QUADS + j / 16;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 line = held.addend[number % AHEAD][half];
            u32 words[4] = {line.x, line.y, line.z, line.w};
            transpose(words);
#pragma unroll
            for (int block = 0; block < 4; ++block)
#pragma unroll
                for (int x = 0; x < 2; ++x) addend[half][block][x] = from_bits((u16)(words[block] >> 16 * x));
        }
        if (number + AHEAD < STRIPS * QUADS)
            ask_for_addend(held.addend[number % AHEAD], number + AHEAD, at, s, tile, terms);
#endif
#pragma unroll
        for (int block = 0; block < 4; ++block) {
            const int y = j + 4 * block;
            if (y >= first + count) break;
#if HAS_ADDEND && !ADDEND_IN_LINES
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int x = 0; x < 2; ++x) {
                    const int n = min(at.n + 2 * y + 2 * pair + x, s.N - 1);
                    addend[half][block][x] = as_float(
                        addend_row(at, tile, terms, strip, half)[n * (ADDEND_DENSE ? 1 : terms.addend_n)]);
                }
#endif
            const int i = y / 32, lane = y / 4 % 8 * 4 + pair;  // who holds the terms of these columns
#pragma unroll
            for (int x = 0; x < 2; ++x) {
                const float scale = SCALE_B == 2 ? __shfl_sync(~0u, held.scale_b[i][x], lane) : 1.0f;
                const float bias = BIAS_AXIS == 2 ? __shfl_sync(~0u, as_float(held.bias[i][x]), lane) : 0.0f;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float z = acc[y + 2 * half + x];
                    if (HAS_ALPHA || SCALE_A || SCALE_B == 1) z *= factor[half];
                    if (SCALE_B == 2) z *= scale;
                    if (HAS_ADDEND) z = fmaf(terms.beta, addend[half][block][x], z);
                    if (BIAS_AXIS) z += BIAS_AXIS == 1 ? as_float(held.row_bias[strip][half]) : bias;
                    acc[y + 2 * half + x] = activate(z);
                }
            }
        }
    }
#endif
}
