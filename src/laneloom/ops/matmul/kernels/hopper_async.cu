// C = A B in FP32 by FMA or in FP64 by matrix instructions (DMMA), operands read where they lie: any strides, any batch.
//
// Slices of K come by asynchronous copies (cp.async) of 16 bytes, or of single elements where rows begin elsewhere, into
// a ring of STAGES in shared memory, each operand as it lies: a line is a row (of B a column) where it is contiguous along
// K, else one k. PAD elements behind each line keep the reads of a warp apart in the banks. GROUPS of threads take steps of
// a slice in turn, and of a cluster of CLUSTER CTAs each has a part of K; their sums are added through shared memory, of
// the cluster as well, in a fixed order. Where K is `split` further, each part leaves a result, which a launch behind
// adds. What lies behind the end of K is zero in A and B both.
// device/hopper.cuh comes in front of this text.

#define THREADS (32 * WARPS)
#define PAD 4

struct AsyncSizes {
    int M, N, K, inner, tiles_m, tiles_n, split;  // split: parts of K with a result each, where there is no batch
    i64 a_outer, a_inner, a_m, a_k, b_outer, b_inner, b_k, b_n, c_outer, c_inner, c_m, c_n;
};

// The copy of BYTES, of which the first `there` are read and the others are zero; of none no address is read.
template <int BYTES>
__device__ __forceinline__ void copy_async(u32 to, const ELEMENT *from, int there) {
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(there)
                     : "memory");
}

// One operand of ROWS rows (of B, columns) of this CTA, copied in pieces of VECTOR elements.
template <bool ALONG_K, int ROWS, int VECTOR>
struct Operand {
    static constexpr int WIDTH = ALONG_K ? BLOCK_K : ROWS, LINES = ALONG_K ? ROWS : BLOCK_K, PITCH = WIDTH + PAD;
    static constexpr int BYTES = LINES * PITCH * sizeof(ELEMENT), ACROSS = WIDTH / VECTOR;  // pieces of a line
    static constexpr int STEP = THREADS / ACROSS, TURNS = (LINES + STEP - 1) / STEP;        // lines between two pieces
    static_assert(THREADS % ACROSS == 0 && WIDTH % VECTOR == 0, "every thread has the same place in its lines");

    const ELEMENT *from;  // this thread's first piece of the next slice
    i64 step_line, step_slice;
    int line, x, rows;    // this thread's first line and place in it; rows that are there

    __device__ __forceinline__ Operand(const ELEMENT *base, i64 step_row, i64 step_k, int first_row, int end, int k) {
        line = threadIdx.x / ACROSS, x = threadIdx.x % ACROSS * VECTOR;
        rows = end - first_row;
        step_line = STEP * (ALONG_K ? step_row : step_k), step_slice = BLOCK_K * step_k;
        from = base + (first_row + (ALONG_K ? line : x)) * step_row + (k + (ALONG_K ? x : line)) * step_k;
    }

    // Ask for the next slice, of which `left` of K are there.
    __device__ __forceinline__ void ask(u32 slot, int left) {
        const ELEMENT *piece = from;
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            const int at = line + turn * STEP;
            int there;
            if (ALONG_K)
                there = at < rows ? min(max(left - x, 0), VECTOR) : 0;
            else
                there = at < left && x < rows ? VECTOR : 0;
            if (LINES % STEP == 0 || at < LINES)
                copy_async<VECTOR * sizeof(ELEMENT)>(slot + (at * PITCH + x) * sizeof(ELEMENT), piece,
                                                     there * sizeof(ELEMENT));
            piece += step_line;
        }
        from += step_slice;
    }
};

using A = Operand<A_ALONG_K, BLOCK_M, A_VECTOR>;
using B = Operand<B_ALONG_K, BLOCK_N, B_VECTOR>;
#define STAGE_BYTES (A::BYTES + B::BYTES)
#define TILE_PITCH ((C_ALONG_M ? BLOCK_M : BLOCK_N) + PAD)  // of the sums in shared memory, which lie as C does
#define TILE_LINES (C_ALONG_M ? BLOCK_N : BLOCK_M)
#define TILE (TILE_LINES * TILE_PITCH)

__device__ __forceinline__ int in_tile(int m, int n) { return C_ALONG_M ? n * TILE_PITCH + m : m * TILE_PITCH + n; }

// `Step` is what a thread multiplies at once: STEP of K.
#if DOUBLE
// FP64. A warp has 16 ROWS_16 x 8 COLUMNS_8 of the tile; mma m16n8k8: lane (r, q) = (lane / 4, lane % 4) has of A rows r
// and r + 8, k = q and q + 4; of B these k, column r; of C these rows, columns 2 q and 2 q + 1.
#define STEP 8
#define WARP_M (16 * ROWS_16)
#define WARP_N (8 * COLUMNS_8)
#define WARPS_M (BLOCK_M / WARP_M)
#define WARPS_N (BLOCK_N / WARP_N)
#define GROUPS (WARPS / (WARPS_M * WARPS_N))

struct Step { double a[ROWS_16][4], b[COLUMNS_8][2]; };

struct Sums {
    double x[ROWS_16][COLUMNS_8][4] = {};
    int m, n, group, r, q;

    __device__ __forceinline__ Sums() {
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

    __device__ __forceinline__ Sums() {
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
#if DOUBLE
#define TURNS (BLOCK_K / (STEP * GROUPS))  // steps of a slice that a group takes
static_assert(TURNS % 2 == 0, "the first step of a slice has the same registers");
#endif

__device__ __forceinline__ ELEMENT read_peer(u32 address) {
    ELEMENT x;
#if DOUBLE
    asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(x) : "r"(address) : "memory");
#else
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
#endif
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
matmul_hopper_async(const ELEMENT *a, const ELEMENT *b, ELEMENT *c, const __grid_constant__ AsyncSizes s) {
    extern __shared__ __align__(16) char shared[];
    release_successor();
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int number = blockIdx.x / CLUSTER, tile = number % (s.tiles_m * s.tiles_n);
    const int batch = number / (s.tiles_m * s.tiles_n), outer = batch / s.inner, inner = batch % s.inner;
    const int part = s.split > 1 ? batch * CLUSTER + rank : rank, parts = s.split * CLUSTER;
    const int first_m = tile % s.tiles_m * BLOCK_M, first_n = tile / s.tiles_m * BLOCK_N;
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K;
    const int first = (i64)slices * part / parts, count = (i64)slices * (part + 1) / parts - first;
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
    Sums sums;
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
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) ask();
#if DOUBLE
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
        const int there = min(length - i * BLOCK_K, BLOCK_K);
#pragma unroll 2
        for (int k = 0; k < there; k += STEP * GROUPS) {
            read(step, i, k);
            sums.multiply(step);
        }
    }
#endif
    // The sums take the place of the ring: its last copies are there, and its last slice is read.
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    ELEMENT *tiles = (ELEMENT *)shared;
    sums.leave(tiles);
    __syncthreads();
#if CLUSTER > 1
    if (GROUPS > 1) {
        for (int i = threadIdx.x; i < TILE; i += THREADS) {
            ELEMENT sum = tiles[i];
#pragma unroll
            for (int g = 1; g < GROUPS; ++g) sum += tiles[g * TILE + i];
            tiles[i] = sum;
        }
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    c += outer * s.c_outer + inner * s.c_inner;
    constexpr int ACROSS = (C_ALONG_M ? BLOCK_M : BLOCK_N) / C_VECTOR, ALL = ACROSS * TILE_LINES;
    for (int i = ALL * rank / CLUSTER + threadIdx.x; i < (int)(ALL * (rank + 1) / CLUSTER); i += THREADS) {
        const int line = i / ACROSS, x = i % ACROSS * C_VECTOR, at = line * TILE_PITCH + x;
        const int m = first_m + (C_ALONG_M ? x : line), n = first_n + (C_ALONG_M ? line : x);
        if (m >= s.M || n >= s.N) continue;
        ELEMENT sum[C_VECTOR];
#pragma unroll
        for (int v = 0; v < C_VECTOR; ++v) {
            sum[v] = 0;
#if CLUSTER > 1
#pragma unroll
            for (int r = 0; r < CLUSTER; ++r) sum[v] += read_peer(in_peer(shared_address(tiles + at + v), r));
#else
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) sum[v] += tiles[g * TILE + at + v];
#endif
        }
        ELEMENT *to = c + m * s.c_m + n * s.c_n;
        if (C_VECTOR * sizeof(ELEMENT) == 16)
            *(uint4 *)to = *(const uint4 *)sum;
        else
            *to = sum[0];
    }
#if CLUSTER > 1
    // Nobody leaves while another still reads its sums.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}
