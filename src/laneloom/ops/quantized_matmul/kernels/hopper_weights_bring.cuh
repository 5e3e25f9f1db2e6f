// The ring of hopper_weights.cu, and the warpgroup that fills it: W by TMA, X in the order of the weight's values, scales
// and zeros as the others take them.

#define OF_GROUP (64 * STRIPS)  // rows of W of one warpgroup
#define COLUMNS (OF_GROUP * CONSUMERS)
#define ROWS (8 * EIGHTS)
#define BRINGERS 128  // threads that fill the ring
#define THREADS (128 * CONSUMERS + BRINGERS)
#define W_BYTES (COLUMNS * LINE)
#define X_BYTES (ROWS * SLICE * 2)
// Beside a slice's values, for each row and group: the scale, of CARRIED what sums are multiplied by before this group's
// are added; the zero; of CARRIED the power of two that values are multiplied by, and the unit of the sums.
#define SCALE_WORDS (GROUP ? COLUMNS * GROUPS * (1 + ZEROS + 2 * CARRIED) : 0)
#define WORD_BESIDE(kind, group, n) ((((kind) * GROUPS + (group)) * COLUMNS + (n)) * 4)
#define SCALE_KIND 0
#define ZERO_KIND 1
#define FACTOR_KIND (1 + ZEROS)
#define UNIT_KIND (2 + ZEROS)
// A stage of the ring has TOGETHER slices: of W, of X, and the scales.
#define X_AT (TOGETHER * W_BYTES)
#define BESIDE (X_AT + TOGETHER * X_BYTES)
#define STAGE_BYTES ((BESIDE + TOGETHER * SCALE_WORDS * 4 + 1023) / 1024 * 1024)
#define RING_BYTES (STAGES * (STAGE_BYTES + 16))  // with its barriers
#define CHUNKS_EACH (X_BY_TMA ? 0 : ROWS * SLICE / 8 * TOGETHER / BRINGERS)  // of 16 bytes of X, that a thread brings
#define SCALES_EACH ((COLUMNS * TOGETHER + BRINGERS - 1) / BRINGERS)  // rows of W, whose groups' scales it brings
#define SCALED (GROUP && !FOLD)  // groups' sums are scaled; else their values are, or all sums at the end
#define APART (SCALED && !CARRIED)  // in registers of their own
#define STEPS (SLICE / 16)       // of a slice
#define UNITS (STEPS / UNIT)     // of a slice, that are converted and multiplied as one
#define NEIGHBOURS (ROWS < 1024 ? 1024 / ROWS : 1)  // blocks of X whose tiles follow each other
#define FEWER_REGISTERS (CONSUMERS == 2 ? 72 : 56)  // those that fill the ring, if TMA brings X, and the others
#define MORE_REGISTERS (CONSUMERS == 2 ? 216 : 152)
#define SUMS (EIGHTS * 4)        // of a strip in one thread

struct WeightSizes {
    int M, N, K, blocks_m, blocks_n, inner, tiles;  // blocks of a product, products of the inner batch, tiles of all
    i64 x_m, scale_n, zero_n, bias_n, c_m, c_n;  // elements
    i64 x_outer, x_inner, scale_outer, scale_inner, zero_outer, zero_inner, c_outer, c_inner, bias_inner;
    int w_outer, w_inner;  // 1, or 0 where W repeats along that batch axis
};

#if X_BY_TMA
typedef TensorMap Rows;  // X
#else
typedef const u16 *Rows;
#endif

// More bytes that a barrier's phase waits for, which does not count as an arrival.
__device__ __forceinline__ void add_bytes(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ uint4 load_line(const u16 *from) {
    uint4 x;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    return x;
}

__device__ __forceinline__ void store_word(u32 to, u32 x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

// A tile: its product, first rows of X and of W, the row behind the last of X; and a CTA's part of K in slices.
struct Part {
    int outer, inner, m, n, end, first, last;
};

// Where a CTA's search for tiles of rows in groups is: at 32 groups, which so many tiles come before.
struct Search {
    int groups, before;
};

__device__ __forceinline__ int from_lane(int x, int lane) { return (int)__shfl_sync(~0u, (u32)x, lane); }

// Whether there is a tile `number`, not less than the last one that was asked for; if so, it. By a warp. Neighbours have
// the same rows of W, so that the L2 brings them once; no more of X's than are as many bytes as all CTAs' rows of W.
__device__ __forceinline__ bool find_part(Part &part, int number, Search &search, const int *ends, const WeightSizes &s,
                                          u32 rank) {
    const int all = (s.K + SLICE - 1) / SLICE;
    part = {0, 0, 0, 0, s.M, (int)((i64)all * rank / CLUSTER), (int)((i64)all * (rank + 1) / CLUSTER)};
#if GROUPED
    const int lane = threadIdx.x % 32;
    for (; search.groups < s.inner; search.groups += 32) {
        const int group = search.groups + lane;
        const int first = 0 < group && group < s.inner ? min(max(ends[group - 1], 0), s.M) : 0;
        const int end = group < s.inner ? min(ends[group], s.M) : 0;
        const int blocks = max(end - first + ROWS - 1, 0) / ROWS;
        int behind = blocks * s.blocks_n;  // tiles of the groups up to this one
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            const int others = from_lane(behind, max(lane - far, 0));
            if (lane >= far) behind += others;
        }
        const u32 later = __ballot_sync(~0u, number < search.before + behind);
        if (later) {
            const int own = __ffs(later) - 1, rows = from_lane(blocks, own);
            const int within = number - search.before - from_lane(behind, own) + rows * s.blocks_n;
            part.inner = search.groups + own, part.end = from_lane(end, own);
            part.m = from_lane(first, own) + within % rows * ROWS, part.n = within / rows * COLUMNS;
            return true;
        }
        search.before += from_lane(behind, 31);
    }
    return false;
#else
    if (number >= s.tiles) return false;
#if BATCHED
    const int product = number / (s.blocks_m * s.blocks_n);
    part.outer = product / s.inner, part.inner = product - part.outer * s.inner;
    number -= product * s.blocks_m * s.blocks_n;
#endif
#if TURNS  // what many rows of X are multiplied by
    const int first = number / (NEIGHBOURS * s.blocks_n) * NEIGHBOURS, blocks = min(NEIGHBOURS, s.blocks_m - first);
    number -= first * s.blocks_n;
#else
    const int first = 0, blocks = s.blocks_m;
#endif
    part.m = (first + number % blocks) * ROWS, part.n = number / blocks * COLUMNS;
    return true;
#endif
}

__device__ __forceinline__ i64 of_batch(const Part &part, i64 outer, i64 inner) {
    return BATCHED ? part.outer * outer + part.inner * inner : 0;
}

// A place in the ring.
struct Turn {
    u32 ring, stage, phase;

    __device__ __forceinline__ u32 place() const { return ring + stage * STAGE_BYTES; }
    __device__ __forceinline__ u32 full() const { return ring + STAGES * STAGE_BYTES + 8 * stage; }
    __device__ __forceinline__ u32 empty() const { return full() + 8 * STAGES; }
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// Of a thread's chunk of X number r: its block of 16 rows, its panel but for `Brought::k`, and its slice.
__device__ __forceinline__ constexpr int of_chunk(int r, int which) {
    constexpr int blocks = ROWS / 16;  // none of 8 rows, whose two panels are brought at once
    return ROWS == 8 ? (which == 2 ? r : 0) : which == 0 ? r % blocks : which == 1 ? r / blocks % 2 : r / blocks / 2;
}

// Where a thread's part of everything that it brings lies.
struct Brought {
    const u16 *x;                         // its chunk of the first slice of K, unless TMA brings it
    const unsigned char *scales, *zeros;
    i64 step;                             // of X, 16 rows further
    u32 scale_rows[SCALES_EACH], zero_rows[SCALES_EACH];
    u32 to[4];                            // in a stage, of each word of a chunk
    int thread, k, end, blocks;           // its first k, the end of K; blocks of 16 rows where its row is there

    __device__ __forceinline__ Brought(const u16 *x, const unsigned char *scales, const unsigned char *zeros,
                                       const WeightSizes &s, const Part &part)
        : scales(scales + of_batch(part, s.scale_outer, s.scale_inner) * SCALE_BYTES),
          zeros(zeros + of_batch(part, s.zero_outer, s.zero_inner)), step(16 * s.x_m), thread(threadIdx.x - 128 * CONSUMERS),
          end(min(s.K, part.last * SLICE)) {
        const int at = thread % 8, row = thread / 8 % (ROWS == 8 ? 8 : 16), panel = ROWS == 8 ? thread / 64 : 0;
        k = panel * 64 + at * 8;
        blocks = (part.end - part.m - row + 15) / 16;
        this->x = x + of_batch(part, s.x_outer, s.x_inner) + (part.m + row) * s.x_m + k;
#pragma unroll
        for (int piece = 0; piece < 4; ++piece)
            to[piece] = X_AT + (panel * ROWS + row) * 128 + ((at / 4 * 4 + piece ^ row & 7) << 4) + at % 4 * 4;
#pragma unroll
        for (int r = 0; r < SCALES_EACH; ++r) {
            const int n = min(part.n + (r * BRINGERS + thread) % COLUMNS, s.N - 1);
            scale_rows[r] = n * (u32)s.scale_n, zero_rows[r] = n * (u32)s.zero_n;
        }
    }
};

// What one thread brings of TOGETHER slices, on its way. As number r, eight threads bring a line of 128 bytes of X, in a
// panel of 64 of K: a warp's loads are whole lines, and its stores find different banks.
struct Bringing {
    uint4 x[CHUNKS_EACH + X_BY_TMA];
    u32 scales[SCALES_EACH][GROUPS], zeros[SCALES_EACH][GROUPS];

    template <bool WHOLE>
    __device__ __forceinline__ void load(const Brought &of, const WeightSizes &s, int slice) {
        const u16 *from = of.x + slice * SLICE;
#pragma unroll
        for (int r = 0; r < CHUNKS_EACH; ++r) {
            const int k = of_chunk(r, 2) * SLICE + of_chunk(r, 1) * 64;
            const bool there = of_chunk(r, 0) < of.blocks && (WHOLE || slice * SLICE + of.k + k < of.end);
            x[r] = there ? load_line(from + of_chunk(r, 0) * of.step + k) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int r = 0; GROUP && r < SCALES_EACH; ++r) {
            // Threads without a row of the last ones read what others do.
            const int own = slice + min((r * BRINGERS + of.thread) / COLUMNS, TOGETHER - 1);
            constexpr int together = WHOLE ? SCALE_PIECE / SCALE_BYTES : 1;
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                int group = GROUPS > 1 ? own * GROUPS + g : own * SLICE / max(GROUP, 1);
                const bool there = WHOLE || group <= (s.K - 1) / max(GROUP, 1);
                if (!there) group = 0;
                if (ZEROS) zeros[r][g] = load_number<1>(of.zeros + of.zero_rows[r] + group);
                if (g % together) continue;
                const unsigned char *from = of.scales + (of.scale_rows[r] + group) * SCALE_BYTES;
                // Of a group behind K, whose sums are 0, a number that is finite.
                const u32 bits = there ? load_number<SCALE_BYTES * together>(from) : 0;
#pragma unroll
                for (int i = 0; i < together; ++i)
                    scales[r][g + i] = together == 1 ? bits : bits >> 8 * SCALE_BYTES * i & (1u << 8 * SCALE_BYTES % 32) - 1;
            }
        }
    }

    __device__ __forceinline__ void load(const Brought &of, const WeightSizes &s, int slice, int last) {
        if (slice + TOGETHER <= last && (slice + TOGETHER) * SLICE <= s.K) load<true>(of, s, slice);
        else load<false>(of, s, slice);
    }

    // stage: where it lies. units: of CARRIED, what the sums of this thread's rows are in units of.
    __device__ __forceinline__ void store(const Brought &of, u32 stage, float (&units)[SCALES_EACH]) const {
#pragma unroll
        for (int r = 0; r < CHUNKS_EACH; ++r) {
            if (of_chunk(r, 0) >= of.blocks) continue;  // what lies there, no sum that is stored has
            // Four chunks of 8 become others: of two steps the first and second half, a word of each.
#pragma unroll
            for (int piece = 0; piece < 4; ++piece)
                store_word(stage + of.to[piece] + of_chunk(r, 2) * X_BYTES +
                               (of_chunk(r, 1) * ROWS + of_chunk(r, 0) * 16) * 128,
                           ordered(x[r], piece));
        }
#pragma unroll
        for (int r = 0; GROUP && r < SCALES_EACH; ++r) {
            const int i = r * BRINGERS + of.thread;
            if (COLUMNS * TOGETHER % BRINGERS && i >= COLUMNS * TOGETHER) continue;
            const u32 words = stage + BESIDE + i / COLUMNS * SCALE_WORDS * 4;
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                const u32 bits = scales[r][g];
                float scale = FOLD ? __uint_as_float(folded(bits)) : scale_of(bits);
                if (CARRIED) {
                    const float before = units[r];
                    store_word(words + WORD_BESIDE(FACTOR_KIND, g, i % COLUMNS), split(scale, units[r]));
                    store_word(words + WORD_BESIDE(UNIT_KIND, g, i % COLUMNS), __float_as_uint(units[r]));
                    scale = before / units[r];
                }
                store_word(words + WORD_BESIDE(SCALE_KIND, g, i % COLUMNS), __float_as_uint(scale));
                if (ZEROS) {
                    const float zero = zeros[r][g];
                    store_word(words + WORD_BESIDE(ZERO_KIND, g, i % COLUMNS), pair_of(zero, zero));
                }
            }
        }
    }
};

// By a warpgroup: fill the ring, for a tile.
__device__ __forceinline__ void bring_tile(const TensorMap *w_map, const Rows &rows, const Brought &of,
                                           const WeightSizes &s, Turn &at, const Part &part) {
    const int z = part.inner * s.w_inner, w = part.outer * s.w_outer;
    const int x_z = s.x_inner ? part.inner : 0, x_w = s.x_outer ? part.outer : 0;
    Bringing bringing[DEPTH];
    float units[SCALES_EACH];
#pragma unroll
    for (int r = 0; r < SCALES_EACH; ++r) units[r] = 1;
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
        if (part.first + d * TOGETHER < part.last)
            bringing[d].load(of, s, part.first + d * TOGETHER, part.last);
#pragma unroll 1
    for (int slice = part.first; slice < part.last;) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            if (slice >= part.last) break;
            wait_barrier(at.empty(), at.phase ^ 1);
            const u32 to = at.place(), barrier = at.full();
            if (of.thread == 0) {
                const int count = min(TOGETHER, part.last - slice);
                add_bytes(barrier, count * (W_BYTES + X_BY_TMA * X_BYTES));
                for (int i = 0; i < count; ++i) {
                    load_box(w_map, to + i * W_BYTES, barrier, (slice + i) * LINE, part.n, z, w);
#if X_BY_TMA
                    for (int panel = 0; panel < SLICE / 64; ++panel)
                        load_box(&rows, to + X_AT + i * X_BYTES + panel * ROWS * 128, barrier, (slice + i) * SLICE + panel * 64,
                                 part.m, x_z, x_w);
#endif
                }
            }
            bringing[d].store(of, to, units);
            // wgmma reads what was written so; then the warp says so.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (of.thread % 32 == 0) arrive(barrier);
            const int next = slice + DEPTH * TOGETHER;
            if (next < part.last) bringing[d].load(of, s, next, part.last);
            at.next();
            slice += TOGETHER;
        }
    }
}

// The same for all tiles of the CTA, of which `part` is the first; a cluster has one.
__device__ __forceinline__ void bring(const TensorMap *w_map, const Rows &rows, const unsigned char *scales,
                                      const unsigned char *zeros, const int *ends, const WeightSizes &s, Turn at, Search search,
                                      Part part, bool there) {
#if !GROUPED
    for (int i = threadIdx.x - 128 * CONSUMERS; i < min(FETCHED, part.last - part.first); i += BRINGERS)
        fetch_box(w_map, (part.first + i) * LINE, part.n, part.inner * s.w_inner, part.outer * s.w_outer);
    wait_for_predecessor();
#endif
    for (int tile = blockIdx.x; there; there = CLUSTER == 1 && find_part(part, tile += gridDim.x, search, ends, s, 0)) {
#if X_BY_TMA
        const Brought of(nullptr, scales, zeros, s, part);
#else
        const Brought of(rows, scales, zeros, s, part);
#endif
        bring_tile(w_map, rows, of, s, at, part);
    }
}
