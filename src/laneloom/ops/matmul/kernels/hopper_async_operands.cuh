// Of hopper_async.cu: how slices of both operands come to shared memory, and where the sums lie there.

#define THREADS (32 * WARPS)
#define PAD (BF16 || FP16 ? 8 : 4)

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

// One operand of ROWS rows (of B, columns) of this CTA, copied in pieces of VECTOR elements. SHIFTED: its rows begin
// anywhere. Then aligned pieces of 16 bytes come that cover each line, one more than it would have: it begins `shift_at`
// elements behind its place in shared memory, and nobody reads what lies in front.
template <bool ALONG_K, int ROWS, int VECTOR, bool SHIFTED>
struct Operand {
    static constexpr int WIDTH = ALONG_K ? BLOCK_K : ROWS, LINES = ALONG_K ? ROWS : BLOCK_K, PITCH = WIDTH + PAD;
    static constexpr int ACROSS = WIDTH / VECTOR;                                     // pieces of a line
    static constexpr bool SINGLE = VECTOR * sizeof(ELEMENT) < 4;                      // no asynchronous copy is as short
    static constexpr int STEP = THREADS / ACROSS, TURNS = (LINES + STEP - 1) / STEP;  // lines between two pieces
    static constexpr int BYTES = LINES * PITCH * sizeof(ELEMENT);
    static_assert(THREADS % ACROSS == 0 && WIDTH % VECTOR == 0, "every thread has the same place in its lines");
    static_assert(!SHIFTED || (VECTOR == 8 && PAD == 8 && STEP % 8 == 0 && BLOCK_K % 8 == 0),
                  "room for a piece more, and a thread's lines begin alike");

    const ELEMENT *from;  // this thread's first piece of the next slice
    i64 step_line, step_slice;
    int line, x, rows;    // this thread's first line and place in it; rows that are there
    const ELEMENT *corner;  // of the tile
    i64 step_row, step_k;

    __device__ __forceinline__ Operand(const ELEMENT *base, i64 step_row, i64 step_k, int first_row, int end, int k)
        : corner(base + first_row * step_row + k * step_k), step_row(step_row), step_k(step_k) {
        line = threadIdx.x / ACROSS, x = threadIdx.x % ACROSS * VECTOR;
        rows = end - first_row;
        step_line = STEP * (ALONG_K ? step_row : step_k), step_slice = BLOCK_K * step_k;
        from = base + (first_row + (ALONG_K ? line : x)) * step_row + (k + (ALONG_K ? x : line)) * step_k;
        if (SHIFTED) from -= shift_at(line);
    }

    // By how many elements line `at`, every eighth from there on, and the same ones of every slice lie behind their places.
    __device__ __forceinline__ int shift_at(int at) const {
        return SHIFTED ? (u64)(corner + at * (ALONG_K ? step_row : step_k)) % 16 / sizeof(ELEMENT) : 0;
    }

    // Ask for the next slice, of which `left` of K are there.
    __device__ __forceinline__ void ask(u32 slot, int left) {
        const ELEMENT *piece = from;
        u16 single[SINGLE ? TURNS : 1];
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            const int at = line + turn * STEP;
            const u32 to = slot + (at * PITCH + x) * sizeof(ELEMENT);
            if (SHIFTED) {
                const int there = at < (ALONG_K ? rows : left) ? (ALONG_K ? left : rows) - x + shift_at(line) : 0;
                if (LINES % STEP == 0 || at < LINES) {
                    copy_async<16>(to, piece, min(max(there, 0), VECTOR) * sizeof(ELEMENT));
                    if (x == WIDTH - VECTOR)
                        copy_async<16>(to + 16, piece + VECTOR, min(max(there - VECTOR, 0), VECTOR) * sizeof(ELEMENT));
                }
            } else {
                int there;
                if (ALONG_K)
                    there = at < rows ? min(max(left - x, 0), VECTOR) : 0;
                else
                    there = at < left && x < rows ? VECTOR : 0;
                if (SINGLE)
                    single[turn] = there ? *(const u16 *)piece : 0;
                else if (LINES % STEP == 0 || at < LINES)
                    copy_async<SINGLE ? 4 : VECTOR * sizeof(ELEMENT)>(to, piece, there * sizeof(ELEMENT));
            }
            piece += step_line;
        }
        if (SINGLE) {
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                const int at = line + turn * STEP;
                if (LINES % STEP == 0 || at < LINES)
                    asm volatile("st.shared.u16 [%0], %1;" ::"r"(slot + (at * PITCH + x) * 2), "h"(single[turn]) : "memory");
            }
        }
        from += step_slice;
    }
};

using A = Operand<A_ALONG_K, BLOCK_M, A_VECTOR, A_SHIFTED>;
using B = Operand<B_ALONG_K, BLOCK_N, B_VECTOR, B_SHIFTED>;
#define STAGE_BYTES (A::BYTES + B::BYTES)
#define TILE_PITCH ((C_ALONG_M ? BLOCK_M : BLOCK_N) + 4)  // of the sums in shared memory, which lie as C does
#define TILE_LINES (C_ALONG_M ? BLOCK_N : BLOCK_M)
#define TILE (TILE_LINES * TILE_PITCH)

__device__ __forceinline__ int in_tile(int m, int n) { return C_ALONG_M ? n * TILE_PITCH + m : m * TILE_PITCH + n; }
