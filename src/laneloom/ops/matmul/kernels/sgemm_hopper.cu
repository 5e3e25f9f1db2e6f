// The FP32 ladder on Hopper, C = A B row-major, by FMA. STEP picks one of seven kernels; each is the one before with one
// thing changed (docs/sgemm-ladder.md). Every step takes any sizes and pitches: elements beyond the matrices are zeros.
//
//   1  a thread per element of C, operands from global memory
//   2  32 x 32 tiles of both operands in shared memory
//   3  8 x 8 elements of C in a thread's registers, 128 x 128 in a CTA
//   4  16-byte accesses of global and shared memory; A's tile lies transposed
//   5  the next tile is on its way to registers, and to the other half of shared memory, during the multiplications
//   6  8 x 16 elements in a thread, 128 x 256 in a CTA; cp.async brings tiles past the registers, STAGES deep
//   7  the operands of an FMA come from both banks of the register file
//
// Step 7: registers lie in two banks by their number's last bit, and each bank reads one operand per clock for a
// scheduler, which could issue one FMA per clock. An operand that the instruction before had in the same place
// (SASS: .reuse) is not read again. So an element of B is kept for 8 FMAs, and the element of A and the sum have to lie
// in different banks. A's tile is transposed: 4 rows at one k are 4 registers in a row, and the bank of a sum follows
// from its row, the same for every k. In step 6, 4 k of one row are; the banks change with k, and a third of all FMAs
// wait for a second read (ncu: 74% of the issue slots used, "dispatch stall").
//
// Source: NVIDIA CUDA C++ Programming Guide (shared memory, asynchronous copies); CUTLASS, "Efficient GEMM in CUDA".

typedef long long i64;

#if STEP == 1
#define BLOCK_M 16
#define BLOCK_N 16
#define THREADS 256
#elif STEP == 2
#define BLOCK_M 32
#define BLOCK_N 32
#define THREADS 1024
#elif STEP >= 6
#define BLOCK_M 128
#define BLOCK_N 256
#define THREADS 256
#else
#define BLOCK_M 128
#define BLOCK_N 128
#define THREADS 256
#endif
#define GROUP_M 8

struct Tile { int m, n; };

// CTAs that run together share rows of A and columns of B: bands of GROUP_M rows of tiles, column by column.
__device__ __forceinline__ Tile tile_of(int program, int M, int N) {
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int band = program / (GROUP_M * tiles_n), within = program % (GROUP_M * tiles_n);
    const int height = min(tiles_m - band * GROUP_M, GROUP_M);
    return {(band * GROUP_M + within % height) * BLOCK_M, within / height * BLOCK_N};
}

// Four elements along a row; zeros beyond `columns`. ALIGNED says that every row begins at a multiple of 16 bytes.
__device__ __forceinline__ float4 load4(const float *row, int column, int columns, bool inside) {
    if (ALIGNED && inside && column + 4 <= columns) return *(const float4 *)(row + column);
    float4 x;
    x.x = inside && column + 0 < columns ? row[column + 0] : 0.0f;
    x.y = inside && column + 1 < columns ? row[column + 1] : 0.0f;
    x.z = inside && column + 2 < columns ? row[column + 2] : 0.0f;
    x.w = inside && column + 3 < columns ? row[column + 3] : 0.0f;
    return x;
}

__device__ __forceinline__ void store4(float *row, int column, int columns, const float *x) {
    if (ALIGNED && column + 4 <= columns) {
        *(float4 *)(row + column) = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (column + i < columns) row[column + i] = x[i];
}

#if STEP == 1

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm_step(const float *A, const float *B, float *C, int M, int N, int K, i64 lda, i64 ldb, i64 ldc) {
    const Tile tile = tile_of(blockIdx.x, M, N);
    const int m = tile.m + threadIdx.x / BLOCK_N, n = tile.n + threadIdx.x % BLOCK_N;
    if (m >= M || n >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += A[m * lda + k] * B[k * ldb + n];
    C[m * ldc + n] = sum;
}

#elif STEP == 2

extern "C" __global__ void __launch_bounds__(THREADS)
sgemm_step(const float *A, const float *B, float *C, int M, int N, int K, i64 lda, i64 ldb, i64 ldc) {
    extern __shared__ float shared[];
    float(*a)[32] = (float(*)[32])shared, (*b)[32] = a + 32;
    const Tile tile = tile_of(blockIdx.x, M, N);
    const int y = threadIdx.x / 32, x = threadIdx.x % 32, m = tile.m + y, n = tile.n + x;
    float sum = 0.0f;
    for (int k = 0; k < K; k += 32) {
        a[y][x] = m < M && k + x < K ? A[m * lda + k + x] : 0.0f;
        b[y][x] = k + y < K && n < N ? B[(k + y) * ldb + n] : 0.0f;
        __syncthreads();  // both tiles are stored
#pragma unroll
        for (int i = 0; i < 32; ++i) sum += a[y][i] * b[i][x];
        __syncthreads();  // and everybody has read them
    }
    if (m < M && n < N) C[m * ldc + n] = sum;
}

#elif STEP == 3

#define BLOCK_K 8

// Thread (y, x) of 16 x 16 has rows y + 16 i and columns x + 16 j: a warp's reads of B meet 16 banks, those of A two rows.
extern "C" __global__ void __launch_bounds__(THREADS)
sgemm_step(const float *A, const float *B, float *C, int M, int N, int K, i64 lda, i64 ldb, i64 ldc) {
    extern __shared__ float shared[];
    float(*a)[BLOCK_K + 1] = (float(*)[BLOCK_K + 1])shared, (*b)[BLOCK_N] = (float(*)[BLOCK_N])(a + BLOCK_M);
    const Tile tile = tile_of(blockIdx.x, M, N);
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
    float sum[8][8] = {};
    for (int k = 0; k < K; k += BLOCK_K) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = threadIdx.x / 8 + 32 * i, column = threadIdx.x % 8;
            a[row][column] = tile.m + row < M && k + column < K ? A[(tile.m + row) * lda + k + column] : 0.0f;
            const int deep = threadIdx.x / 128 + 2 * i, n = tile.n + threadIdx.x % 128;
            b[deep][threadIdx.x % 128] = k + deep < K && n < N ? B[(k + deep) * ldb + n] : 0.0f;
        }
        __syncthreads();  // both tiles are stored
#pragma unroll
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            float rows[8], columns[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) rows[i] = a[y + 16 * i][kk], columns[i] = b[kk][x + 16 * i];
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] += rows[i] * columns[j];
        }
        __syncthreads();  // and everybody has read them
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int m = tile.m + y + 16 * i, n = tile.n + x + 16 * j;
            if (m < M && n < N) C[m * ldc + n] = sum[i][j];
        }
}

#elif STEP == 4 || STEP == 5

#define BLOCK_K 8
#define PITCH_A (BLOCK_M + 4)  // a warp stores A by columns: 4 rows apart, its banks differ
#define BUFFERS (STEP == 5 ? 2 : 1)

struct Loaded { float4 a, b; };

__device__ __forceinline__ Loaded load_tile(const float *A, const float *B, Tile tile, int k, int M, int N, int K,
                                            i64 lda, i64 ldb) {
    const int row = tile.m + threadIdx.x / 2, deep = k + threadIdx.x / 32;
    return {load4(A + min(row, M - 1) * lda, k + threadIdx.x % 2 * 4, K, row < M),
            load4(B + min(deep, K - 1) * ldb, tile.n + threadIdx.x % 32 * 4, N, deep < K)};
}

__device__ __forceinline__ void store_tile(float *a, float *b, Loaded x) {
    const int column = threadIdx.x % 2 * 4, row = threadIdx.x / 2;
    a[(column + 0) * PITCH_A + row] = x.a.x;
    a[(column + 1) * PITCH_A + row] = x.a.y;
    a[(column + 2) * PITCH_A + row] = x.a.z;
    a[(column + 3) * PITCH_A + row] = x.a.w;
    *(float4 *)(b + threadIdx.x / 32 * BLOCK_N + threadIdx.x % 32 * 4) = x.b;
}

// Thread (y, x) of 16 x 16 has rows 4 y .. and 64 + 4 y .., columns 4 x .. and 64 + 4 x ..: all reads are 16 bytes wide.
__device__ __forceinline__ void multiply_tile(float (&sum)[8][8], const float *a, const float *b, int y, int x) {
#pragma unroll
    for (int kk = 0; kk < BLOCK_K; ++kk) {
        float rows[8], columns[8];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            *(float4 *)(rows + 4 * half) = *(const float4 *)(a + kk * PITCH_A + 64 * half + 4 * y);
            *(float4 *)(columns + 4 * half) = *(const float4 *)(b + kk * BLOCK_N + 64 * half + 4 * x);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) sum[i][j] += rows[i] * columns[j];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
sgemm_step(const float *A, const float *B, float *C, int M, int N, int K, i64 lda, i64 ldb, i64 ldc) {
    extern __shared__ __align__(16) float shared[];
    float(*a)[BLOCK_K * PITCH_A] = (float(*)[BLOCK_K * PITCH_A])shared;
    float(*b)[BLOCK_K * BLOCK_N] = (float(*)[BLOCK_K * BLOCK_N])(a + BUFFERS);
    const Tile tile = tile_of(blockIdx.x, M, N);
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
    float sum[8][8] = {};
#if STEP == 4
    for (int k = 0; k < K; k += BLOCK_K) {
        store_tile(a[0], b[0], load_tile(A, B, tile, k, M, N, K, lda, ldb));
        __syncthreads();  // both tiles are stored
        multiply_tile(sum, a[0], b[0], y, x);
        __syncthreads();  // and everybody has read them
    }
#else
    int now = 0;
    store_tile(a[0], b[0], load_tile(A, B, tile, 0, M, N, K, lda, ldb));
    __syncthreads();  // the first tiles are stored
    for (int k = BLOCK_K; k < K; k += BLOCK_K) {
        const Loaded next = load_tile(A, B, tile, k, M, N, K, lda, ldb);
        multiply_tile(sum, a[now], b[now], y, x);
        now ^= 1;
        store_tile(a[now], b[now], next);
        __syncthreads();  // these are stored, and everybody has read those before
    }
    multiply_tile(sum, a[now], b[now], y, x);
#endif
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int m = tile.m + i / 4 * 64 + 4 * y + i % 4;
        if (m >= M) continue;
        store4(C + m * ldc, tile.n + 4 * x, N, sum[i]);
        store4(C + m * ldc, tile.n + 64 + 4 * x, N, sum[i] + 4);
    }
}

#elif STEP >= 6

#define BLOCK_K 16
#if STEP == 6
#define A_FLOATS (BLOCK_M * BLOCK_K)
#else
#define PITCH_A (BLOCK_M + 4)
#define A_FLOATS (PITCH_A * BLOCK_K)
#endif
#define STAGE_FLOATS (A_FLOATS + BLOCK_N * BLOCK_K)

__device__ __forceinline__ void copy4(unsigned to, const char *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Copies `bytes` (0 to 16) from global to shared memory and zeros to the rest of 16, without waiting.
__device__ __forceinline__ void copy16(unsigned to, const char *from, int bytes) {
#if ALIGNED
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#else
#pragma unroll
    for (int at = 0; at < 16; at += 4) copy4(to + at, at < bytes ? from + at : from, at < bytes ? 4 : 0);
#endif
}

__device__ __forceinline__ int bytes_inside(int at, int size) { return max(0, min(16, 4 * (size - at))); }

// Where row, k of A's tile lies. Step 6: rows of 16 k, whose four 16-byte pieces are permuted by the row, so that reads
// of 8 rows meet all banks; k is a multiple of 4. Step 7: transposed.
__device__ __forceinline__ int a_place(int row, int k) {
#if STEP == 6
    return row * BLOCK_K + (k ^ (row >> 1 & 3) * 4);
#else
    return k * PITCH_A + row;
#endif
}

// What a thread copies of each tile: of A, pieces of 4 k (step 6) or single elements, of B pieces of 4 columns.
#define A_PIECE (STEP == 6 ? 4 : 1)
#define A_COPIES (BLOCK_M * BLOCK_K / A_PIECE / THREADS)
#define A_ROWS (BLOCK_M / A_COPIES)  // rows between two pieces of A of one thread
#define B_COPIES (BLOCK_N * BLOCK_K / 4 / THREADS)
#define B_ROWS (BLOCK_K / B_COPIES)

// A warp has 64 x 64 of C, its lanes 8 by 4. Lane (y, x) has columns x + 16 j and the three after each; its 8 rows are
// y + 8 i in step 6, y + i % 4 + i / 4 * 32 in step 7. There half a warp, not a quarter, reads all of A's 128 bytes: ncu
// counts 1.9 instead of 3.2 passes of a 16-byte read.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
sgemm_step(const float *A, const float *B, float *C, int M, int N, int K, i64 lda, i64 ldb, i64 ldc) {
    extern __shared__ __align__(128) float ring[];
    const Tile tile = tile_of(blockIdx.x, M, N);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#if STEP == 6
    const int y = warp / 4 * 64 + lane / 4, x = warp % 4 * 64 + 4 * (lane % 4);
#else
    const int y = warp / 4 * 64 + 4 * (lane / 2 % 8), x = warp % 4 * 64 + 4 * (lane % 2 + lane / 16 * 2);
#endif

    // Rows of A beyond the matrix are its last one again; what they give is not stored.
    const int a_k = threadIdx.x % (BLOCK_K / A_PIECE) * A_PIECE, a_row = threadIdx.x / (BLOCK_K / A_PIECE);
    const int b_column = threadIdx.x % (BLOCK_N / 4) * 4, b_row = threadIdx.x / (BLOCK_N / 4);
    const int b_bytes = bytes_inside(tile.n + b_column, N);
    unsigned from_a[A_COPIES], from_b[B_COPIES];  // bytes from the tile's first element
#pragma unroll
    for (int i = 0; i < A_COPIES; ++i)
        from_a[i] = 4 * (min(a_row + A_ROWS * i, M - 1 - tile.m) * (unsigned)lda + a_k);
#pragma unroll
    for (int i = 0; i < B_COPIES; ++i) from_b[i] = 4 * ((b_row + B_ROWS * i) * (unsigned)ldb + (b_bytes ? b_column : 0));
    const char *a_tile = (const char *)(A + tile.m * lda), *b_tile = (const char *)(B + tile.n);
    const unsigned base = (unsigned)__cvta_generic_to_shared(ring);
    const unsigned b_to = base + 4 * (A_FLOATS + b_row * BLOCK_N + b_column);
    unsigned fill = 0;  // bytes from the ring's beginning to the stage that is filled next
    int left = K;       // steps of K that are not yet on their way

    auto copy_pieces = [&](bool whole) {  // of a tile that K fills, or does not
        const int a_bytes = whole ? 4 * A_PIECE : min(bytes_inside(a_k, left), 4 * A_PIECE);
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) {
            const unsigned to = base + fill + 4 * a_place(a_row + A_ROWS * i, a_k);
            const char *from = a_bytes ? a_tile + from_a[i] : (const char *)A;
            A_PIECE == 4 ? copy16(to, from, a_bytes) : copy4(to, from, a_bytes);
        }
#pragma unroll
        for (int i = 0; i < B_COPIES; ++i) {
            const bool inside = whole || b_row + B_ROWS * i < left;
            const unsigned to = b_to + fill + 4 * B_ROWS * i * BLOCK_N;
            copy16(to, inside ? b_tile + from_b[i] : (const char *)B, inside ? b_bytes : 0);
        }
    };
    auto copy_tile = [&]() {
        if (left >= BLOCK_K)
            copy_pieces(true);
        else if (left > 0)
            copy_pieces(false);
        asm volatile("cp.async.commit_group;" ::: "memory");  // also without copies: groups are counted
        left -= BLOCK_K;
        fill = fill == 4 * (STAGES - 1) * STAGE_FLOATS ? 0 : fill + 4 * STAGE_FLOATS;
        a_tile += 4 * BLOCK_K, b_tile += 4 * BLOCK_K * ldb;
    };

    for (int number = 0; number < STAGES - 1; ++number) copy_tile();
    const int a_first = a_place(y, 0);
    int stage = 0;  // floats from the ring's beginning to the tile that is multiplied
    float sum[8][16] = {};
    for (int k = 0; k < K; k += BLOCK_K) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // everybody's part of this tile is here, and everybody has read the stage that is filled next
        copy_tile();
        const float *b = ring + stage + A_FLOATS + x;
#if STEP == 6
#pragma unroll
        for (int piece = 0; piece < BLOCK_K / 4; ++piece) {
            float rows[8][4];
            const float *a = ring + ((stage + a_first) ^ (4 * piece));
#pragma unroll
            for (int i = 0; i < 8; ++i) *(float4 *)rows[i] = *(const float4 *)(a + 8 * i * BLOCK_K);
#pragma unroll
            for (int kk = 0; kk < 4; ++kk) {
                float columns[16];
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    *(float4 *)(columns + 4 * j) = *(const float4 *)(b + (4 * piece + kk) * BLOCK_N + 16 * j);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 16; ++j) sum[i][j] += rows[i][kk] * columns[j];
            }
        }
#else
        const float *a = ring + stage + a_first;
        float rows[2][8], columns[2][16];
        auto read = [&](int kk) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
                *(float4 *)(rows[kk % 2] + 4 * i) = *(const float4 *)(a + kk * PITCH_A + 32 * i);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                *(float4 *)(columns[kk % 2] + 4 * j) = *(const float4 *)(b + kk * BLOCK_N + 16 * j);
        };
        read(0);
#pragma unroll
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            if (kk + 1 < BLOCK_K) read(kk + 1);
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                // ptxas puts reads right before their use otherwise, which then waits for them.
                if (j == 2) __syncwarp();
#pragma unroll
                for (int turn = 0; turn < 8; ++turn) {
                    // Down the column and up the next: the element of A at a turn is kept as well.
                    constexpr int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
                    const int i = order[j % 2 ? 7 - turn : turn];
                    sum[i][j] += rows[kk % 2][i] * columns[kk % 2][j];
                }
            }
        }
#endif
        stage = stage == (STAGES - 1) * STAGE_FLOATS ? 0 : stage + STAGE_FLOATS;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int m = tile.m + y + (STEP == 6 ? 8 * i : i / 4 * 32 + i % 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float out[4];
            // Step 7: through a shuffle that changes nothing, or the store would decide the sums' registers.
#pragma unroll
            for (int c = 0; c < 4; ++c)
                out[c] = STEP == 6 ? sum[i][4 * j + c] : __shfl_sync(0xffffffffu, sum[i][4 * j + c], lane);
            if (m < M) store4(C + m * ldc, tile.n + x + 16 * j, N, out);
        }
    }
}

#endif
