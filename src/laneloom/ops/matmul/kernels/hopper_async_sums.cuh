// Of hopper_async.cu: what a thread multiplies, by type.

// `Step` is what a thread multiplies at once: STEP of K.
#if FP64 || BF16 || FP16
// Matrix instructions: a warp has 16 ROWS_16 x 8 COLUMNS_8 of the tile.
#define WARP_M (16 * ROWS_16)
#define WARP_N (8 * COLUMNS_8)
#define WARPS_M (BLOCK_M / WARP_M)
#define WARPS_N (BLOCK_N / WARP_N)
#define GROUPS (WARPS / (WARPS_M * WARPS_N))
#endif
#if FP64
// FP64. mma m16n8k8: lane (r, q) = (lane / 4, lane % 4) has of A rows r
// and r + 8, k = q and q + 4; of B these k, column r; of C these rows, columns 2 q and 2 q + 1.
#define STEP 8

struct Step { double a[ROWS_16][4], b[COLUMNS_8][2]; };

struct Sums {
    double x[ROWS_16][COLUMNS_8][4] = {};
    int m, n, group, r, q;

    __device__ __forceinline__ Sums(const A &, const B &) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        m = warp % WARPS_M * WARP_M, n = warp / WARPS_M % WARPS_N * WARP_N, group = warp / (WARPS_M * WARPS_N);
        r = lane / 4, q = lane % 4;
    }

    template <class O> static __device__ __forceinline__ double element(const double *slice, int row, int k, bool along_k) {
        return slice[along_k ? row * O::PITCH + k : k * O::PITCH + row];
    }

    __device__ __forceinline__ void read(Step &step, const double *a, const double *b, int k) const {
#pragma unroll
        for (int i = 0; i < ROWS_16; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                step.a[i][e] = element<A>(a, m + 16 * i + r + e % 2 * 8, k + q + e / 2 * 4, A_ALONG_K);
#pragma unroll
        for (int j = 0; j < COLUMNS_8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) step.b[j][e] = element<B>(b, n + 8 * j + r, k + q + 4 * e, B_ALONG_K);
    }

    __device__ __forceinline__ void multiply(const Step &step) {
#pragma unroll
        for (int i = 0; i < ROWS_16; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS_8; ++j) {
                double(&c)[4] = x[i][j];
                asm volatile(
                    "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                    " {%0, %1, %2, %3};"
                    : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                    : "d"(step.a[i][0]), "d"(step.a[i][1]), "d"(step.a[i][2]), "d"(step.a[i][3]), "d"(step.b[j][0]),
                      "d"(step.b[j][1]));
            }
    }

    __device__ __forceinline__ void leave(double *tiles) const {
#pragma unroll
        for (int i = 0; i < ROWS_16; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS_8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    tiles[group * TILE + in_tile(m + 16 * i + r + e / 2 * 8, n + 8 * j + 2 * q + e % 2)] = x[i][j][e];
    }
};
#elif BF16 || FP16
// 16 bits. mma m16n8k16, whose fragments ldmatrix reads: of what lies along K as it is, else transposed; where rows begin
// anywhere, each lane its words or halves of words.
#define STEP 16

struct Step { u32 a[ROWS_16][4], b[COLUMNS_8][2]; };

// Four blocks of 8 x 8, of whose rows (or, transposed, columns) lane l has the address of the l-th.
template <bool TRANSPOSED>
__device__ __forceinline__ void read_blocks(u32 (&x)[4], u32 address) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}

struct Sums {
    float x[ROWS_16][COLUMNS_8][4] = {};
    int m, n, group, lane;
    int shift_a[2], shift_b[2];  // of the lines that this lane reads: a row, or two neighbouring k

    __device__ __forceinline__ Sums(const A &a, const B &b) {
        const int warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        m = warp % WARPS_M * WARP_M, n = warp / WARPS_M % WARPS_N * WARP_N, group = warp / (WARPS_M * WARPS_N);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            shift_a[e] = a.shift_at(A_ALONG_K ? lane / 4 : lane % 4 * 2 + e);
            shift_b[e] = b.shift_at(B_ALONG_K ? lane / 4 : lane % 4 * 2 + e);
        }
    }

    // What this lane has of a block of 8 rows and 8 k whose lines lie `shift` elements behind their places: two k of a row.
    template <class O, bool ALONG_K>
    __device__ __forceinline__ u32 pair(const ELEMENT *slice, int row, int k, const int (&shift)[2]) const {
        row += lane / 4, k += lane % 4 * 2;
        if (ALONG_K) {
            const u32 *words = (const u32 *)(slice + row * O::PITCH + k + (shift[0] & ~1));
            return __funnelshift_r(words[0], words[1], shift[0] % 2 * 16);
        }
        const u16 *line = (const u16 *)slice + k * O::PITCH + row;
        return line[shift[0]] | (u32)line[O::PITCH + shift[1]] << 16;
    }

    template <class O> static __device__ __forceinline__ u32 place(const ELEMENT *slice, int row, int k, bool along_k) {
        return shared_address(slice + (along_k ? row * O::PITCH + k : k * O::PITCH + row));
    }

    __device__ __forceinline__ void read(Step &step, const ELEMENT *a, const ELEMENT *b, int k) const {
        const int low = lane % 8, second = lane / 8 % 2 * 8, third = lane / 16 * 8;
        // Blocks of A: rows 0 and 8 of the first eight k, then of the next.
#pragma unroll
        for (int i = 0; i < ROWS_16; ++i) {
            if (A_SHIFTED) {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    step.a[i][e] = pair<A, A_ALONG_K>(a, m + 16 * i + e % 2 * 8, k + e / 2 * 8, shift_a);
            } else {
                read_blocks<!A_ALONG_K>(step.a[i], place<A>(a, m + 16 * i + second + (A_ALONG_K ? low : 0),
                                                            k + third + (A_ALONG_K ? 0 : low), A_ALONG_K));
            }
        }
        // Of B: both eights of k, of one block of columns and then of the next, which a single one repeats.
#pragma unroll
        for (int j = 0; j < COLUMNS_8; j += B_SHIFTED ? 1 : 2) {
            if (B_SHIFTED) {
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    step.b[j][e] = pair<B, B_ALONG_K>(b, n + 8 * j, k + 8 * e, shift_b);
                continue;
            }
            u32 x[4];
            read_blocks<!B_ALONG_K>(x, place<B>(b, n + 8 * j + (COLUMNS_8 > 1 ? third : 0) + (B_ALONG_K ? low : 0),
                                                k + second + (B_ALONG_K ? 0 : low), B_ALONG_K));
            step.b[j][0] = x[0], step.b[j][1] = x[1];
            if (j + 1 < COLUMNS_8) step.b[j + 1][0] = x[2], step.b[j + 1][1] = x[3];
        }
    }

    __device__ __forceinline__ void multiply(const Step &step) {
#if BF16
#define KINDS "f32.bf16.bf16.f32"
#else
#define KINDS "f32.f16.f16.f32"
#endif
#pragma unroll
        for (int i = 0; i < ROWS_16; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS_8; ++j) {
                float(&c)[4] = x[i][j];
                asm volatile("mma.sync.aligned.m16n8k16.row.col." KINDS " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                             " {%0, %1, %2, %3};"
                             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                             : "r"(step.a[i][0]), "r"(step.a[i][1]), "r"(step.a[i][2]), "r"(step.a[i][3]),
                               "r"(step.b[j][0]), "r"(step.b[j][1]));
            }
    }

    __device__ __forceinline__ void leave(float *tiles) const {
#pragma unroll
        for (int i = 0; i < ROWS_16; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS_8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    tiles[group * TILE + in_tile(m + 16 * i + lane / 4 + e / 2 * 8, n + 8 * j + lane % 4 * 2 + e % 2)] =
                        x[i][j][e];
    }
};
#else
// FP32. A thread has THREAD_M x THREAD_N of the tile.
#define STEP 4
#define ACROSS_M (BLOCK_M / THREAD_M)
#define ACROSS_N (BLOCK_N / THREAD_N)
#define GROUPS (THREADS / (ACROSS_M * ACROSS_N))

// The rows of one thread: of an operand along K every ACROSS-th, so that neighbours read neighbouring lines; else as many
// neighbours as one read of 16 bytes takes.
template <bool ALONG_K, int COUNT, int ACROSS, int PITCH>
struct Rows {
    static constexpr int WIDE = COUNT < 4 ? COUNT : 4;
    float x[COUNT][STEP];

    static __device__ __forceinline__ int row(int thread, int i) {
        return ALONG_K ? thread + i * ACROSS : thread * WIDE + i % WIDE + i / WIDE * WIDE * ACROSS;
    }

    __device__ __forceinline__ void read(const float *slice, int thread, int k) {
        if (ALONG_K) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const float4 four = *(const float4 *)(slice + row(thread, i) * PITCH + k);
                x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
            }
        } else {
#pragma unroll
            for (int e = 0; e < STEP; ++e)
#pragma unroll
                for (int i = 0; i < COUNT; i += WIDE) {
                    const float *from = slice + (k + e) * PITCH + row(thread, i);
                    if (WIDE == 4) {
                        const float4 four = *(const float4 *)from;
                        x[i][e] = four.x, x[i + 1][e] = four.y, x[i + 2][e] = four.z, x[i + 3][e] = four.w;
                    } else {
#pragma unroll
                        for (int w = 0; w < WIDE; ++w) x[i + w][e] = from[w];
                    }
                }
        }
    }
};
using RowsA = Rows<A_ALONG_K, THREAD_M, ACROSS_M, A::PITCH>;
using RowsB = Rows<B_ALONG_K, THREAD_N, ACROSS_N, B::PITCH>;

struct Step { RowsA a; RowsB b; };

struct Sums {
    float x[THREAD_M][THREAD_N] = {};
    int m, n, group;  // number of this thread along M and N

    __device__ __forceinline__ Sums(const A &, const B &) {
        const int thread = threadIdx.x % (ACROSS_M * ACROSS_N);
        m = thread % ACROSS_M, n = thread / ACROSS_M, group = threadIdx.x / (ACROSS_M * ACROSS_N);
    }

    __device__ __forceinline__ void read(Step &step, const float *a, const float *b, int k) const {
        step.a.read(a, m, k), step.b.read(b, n, k);
    }

    __device__ __forceinline__ void multiply(const Step &step) {
#pragma unroll
        for (int e = 0; e < STEP; ++e)
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j) x[i][j] = fmaf(step.a.x[i][e], step.b.x[j][e], x[i][j]);
    }

    __device__ __forceinline__ void leave(float *tiles) const {
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j) tiles[group * TILE + in_tile(RowsA::row(m, i), RowsB::row(n, j))] = x[i][j];
    }
};
#endif
