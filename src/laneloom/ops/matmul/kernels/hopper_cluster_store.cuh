// The way of hopper_cluster.cu's tiles to memory: sums become words of C in registers, which pass through staging, panels
// of 128 bytes of 16 rows, to the copy engine or to masked stores. Words can be kept while the next tile's wgmmas begin.

#define PANEL_WORDS 16                          // of 32 bits, of one panel in one thread
#define WORDS (PANELS_OF_TILE * PANEL_WORDS)    // of one strip

typedef u32 PanelWords[PANEL_WORDS];

// C as the copy engine writes it: whole panels, and what a tile's last panel has if it is not whole; that of a turned tile
// in boxes of TAIL_ROWS rows.
struct OutMaps {
    const TensorMap *whole, *tail;
};

template <int BYTES> struct Word;  // of so many bytes
template <> struct Word<2> { typedef unsigned short Type; };
template <> struct Word<4> { typedef u32 Type; };
template <> struct Word<8> { typedef unsigned long long Type; };
template <> struct Word<16> { typedef uint4 Type; };

typedef Word<OUT_VECTOR * OUT_BYTES>::Type OutWord;  // as much as every row of C is aligned to

// Two neighbours in a row of C as they lie there: one word of 16-bit types, two of others.
__device__ __forceinline__ void pack(u32 *words, STORED low, STORED high) {
#if OUT_BYTES == 4
    memcpy(words, &low, 4);
    memcpy(words + 1, &high, 4);
#elif OUT_KIND == 0
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(*words) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(*words) : "f"(high), "f"(low));
#endif
}

// What one strip's sums make of C, panel by panel.
struct Fresh {
    STORED sums[ACCUMULATORS];  // integers become floats where floats are stored
    int strip;
    Held &held;
    const Place &at;
    const Sizes &s;
    const Tile &tile;
    const Terms &terms;

    template <class Sum, int N>
    __device__ __forceinline__ Fresh(const Sum (&from)[N], int strip, Held &held, const Place &at,
                                     const Sizes &s, const Tile &tile, const Terms &terms, bool zeros = false)
        : strip(strip), held(held), at(at), s(s), tile(tile), terms(terms) {
#pragma unroll
        for (int j = 0; j < ACCUMULATORS; ++j) sums[j] = j < N && !zeros ? (STORED)from[j] : (STORED)0;
    }
    __device__ __forceinline__ void make(PanelWords &words, int panel) {
        const int first = panel * (PANEL / 2), left = ACCUMULATORS - first, count = left < PANEL / 2 ? left : PANEL / 2;
        finish(sums, first, count, strip, held, at, s, tile, terms);
#pragma unroll
        for (int i = 0; i < PANEL / 2; i += 2) {
            if (i < count) pack(&words[i * OUT_BYTES / 4], sums[first + i], sums[first + i + 1]);
            else words[i * OUT_BYTES / 4] = words[(i * OUT_BYTES + 3) / 4] = 0;
        }
    }
};

// What was made of a strip and kept.
struct Kept {
    u32 words[WORDS];

    __device__ __forceinline__ void keep(Fresh &fresh) {
#pragma unroll
        for (int panel = 0; panel < PANELS_OF_TILE; ++panel) {
            PanelWords made;
            fresh.make(made, panel);
#pragma unroll
            for (int i = 0; i < PANEL_WORDS; ++i) {
                // One panel at a time, or its sums and all that becomes of them want registers together.
                if (EPILOGUE) asm volatile("" : "+r"(made[i]));
                words[panel * PANEL_WORDS + i] = made[i];
            }
        }
    }
    __device__ __forceinline__ void make(PanelWords &made, int panel) {
#pragma unroll
        for (int i = 0; i < PANEL_WORDS; ++i) made[i] = words[panel * PANEL_WORDS + i];
    }
};

// One panel of a strip into staging: rows of 128 bytes, swizzled as the copy engine swizzles them.
__device__ __forceinline__ void stage_panel(const PanelWords &words, int panel, u32 base) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int block = 0; block < PANEL_WORDS / 4; ++block) {
        if (panel * PANEL + block * PANEL / 4 >= FINISHED) break;
        const u32 *w = words + 4 * block;
#if OUT_BYTES == 2
        // Matrix q of four: rows 8 (q % 2), 16-byte column 2 block + q / 2.
        const int q = lane / 8, r = lane % 8 + 8 * (q & 1);
        const u32 to = base + r * 128 + (((2 * block + q / 2) ^ (r & 7)) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
                     "r"(w[2]), "r"(w[3]) : "memory");
#else
        const int row = lane / 4, pair = lane % 4;  // of wgmma's sums: rows row and row + 8, columns 2 pair, + 1
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = row + 8 * half;
            const u32 to = base + r * 128 + (((2 * block + pair / 2) ^ (r & 7)) << 4) + (pair & 1) * 8;
            asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(w[2 * half]), "r"(w[2 * half + 1]) : "memory");
        }
#endif
    }
}

// One staged panel to where C lies, whatever its strides, but for what is outside of it.
__device__ __forceinline__ void store_panel(const char *panel, OUT_TYPE *to, int rows, int columns, const Sizes &s) {
    const int lane = threadIdx.x % 32;
#if LINE_STORE
    for (int i = lane; i < 16 * 8; i += 32) {
        const int r = i / 8, chunk = i % 8;
        if (r < rows && chunk * (16 / OUT_BYTES) < columns)
            *(uint4 *)(to + r * s.c_m + chunk * (16 / OUT_BYTES)) =
                *(const uint4 *)(panel + r * 128 + ((chunk ^ (r & 7)) << 4));
    }
#else
    for (int r = 0; r < 16 && r < rows; ++r)
#pragma unroll
        for (int x = lane; x < PANEL; x += 32) {
            const int chunk = x * OUT_BYTES / 16;
            const char *from = panel + r * 128 + ((chunk ^ (r & 7)) << 4) + x * OUT_BYTES % 16;
            if (x < columns) to[r * s.c_m + x * s.c_n] = *(const OUT_TYPE *)from;
        }
#endif
}

// The thread that stores panels waits until the copy engine has read the buffers that it stored from.
__device__ __forceinline__ void wait_for_reads(bool stores) {
    if (TMA_STORE && stores) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Write one strip, as many panels at a time as this warp has buffers.
template <class Panels>
__device__ __forceinline__ void store_strip(Panels &panels, const OutMaps &c_maps, OUT_TYPE *c, const Sizes &s,
                                            const Tile &tile, const Place &at, int strip, char *staging) {
    const int lane = threadIdx.x % 32, m = at.m + 64 * strip, finished = tile.narrow ? FINISHED - 8 : FINISHED;
    // The copy engine would write all 16 rows: those that reach past a group's end take the masked stores.
    const bool by_tma = TMA_STORE && (!GROUPED || m + 16 <= tile.end);
#pragma unroll
    for (int first = 0; first < PANELS_OF_TILE; first += PANELS) {
#pragma unroll
        for (int panel = first; panel < PANELS_OF_TILE && panel < first + PANELS; ++panel) {
            PanelWords words;
            panels.make(words, panel);
            if (panel == first) { 
                wait_for_reads(lane == 0);
                __syncwarp();
            }
            stage_panel(words, panel, shared_address(staging + (panel - first) * PANEL_BYTES));
        }
        // This warp's writes become visible to the copy engine before it reads them.
        if (by_tma) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
#pragma unroll
        for (int panel = first; panel < PANELS_OF_TILE && panel < first + PANELS; ++panel) {
            const int n = at.n + panel * PANEL;
            char *buffer = staging + (panel - first) * PANEL_BYTES;
            if (by_tma) {
                const TensorMap *map = panel * PANEL + PANEL <= finished ? c_maps.whole : c_maps.tail;
                const bool stores = lane == 0 && panel * PANEL < finished;
                if (stores) store_box(map, shared_address(buffer), n, m, GROUPED ? 0 : tile.inner, tile.outer);
            } else {
                OUT_TYPE *to = c + tile.outer * s.c_outer + tile.inner * s.c_inner + m * s.c_m + n * s.c_n;
                store_panel(buffer, to, tile.end - m, min(min(PANEL, finished - panel * PANEL), s.N - n), s);
            }
        }
        if (TMA_STORE && lane == 0) asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}
