// The other ways of hopper_cluster.cu's tiles to memory: lanes store C's rows in the longest words that every row is
// aligned to, or C^T is computed and turned on its way. Where every CTA has one tile, which is written at the end where
// nothing hides it, lanes compute where their words go while the tensor cores still multiply. Beside another tile's sums
// there are no registers for that: the widest tiles spilled, and so both ways stand here.

#if ROW_STORE
// Panels whose rows are stored together: a line of memory that is written in two goes, with other rows in between, costs
// more than both. Eight rows at a time make room for twice as many panels, but their other rows wait in registers.
#define PASSES (OWN_TILES && EPILOGUE ? 1 : 2)
#define ROWS_AT_ONCE (OWN_TILES && EPILOGUE ? 1 : 4)
#define ROW_PANELS (PASSES * PANELS < PANELS_OF_TILE ? PASSES * PANELS : PANELS_OF_TILE)
#define ROW_WORDS (ROW_PANELS * PANEL / OUT_VECTOR)
#define ROW_LANES (ROW_WORDS > 16 ? 32 : ROW_WORDS > 8 ? 16 : 8)    // that store one row
#define ROW_STEP (32 / ROW_LANES)                                   // rows that are stored together
#define HALF_BYTES (PANEL_BYTES / 2)
#define ROWS_BYTES (PANEL_BYTES / PASSES)  // of a panel in one pass

typedef u32 HalfWords[PANEL_WORDS / 2];  // of eight of a panel's 16 rows: the first, or the others

__device__ __forceinline__ void take_half(HalfWords &half, const PanelWords &words, int which) {
#pragma unroll
    for (int i = 0; i < PANEL_WORDS / 2; ++i)
        half[i] = words[OUT_BYTES == 2 ? 2 * i + which : i / 2 * 4 + 2 * which + i % 2];
}

// They go into staging, eight rows of 128 bytes.
__device__ __forceinline__ void stage_half(const HalfWords &w, u32 base) {
    const int lane = threadIdx.x % 32;
#if OUT_BYTES == 2
#pragma unroll
    for (int first = 0; first < 8; first += 4) {  // matrix q of four: 16-byte column first + q
        const u32 to = base + lane % 8 * 128 + (((first + lane / 8) ^ lane % 8) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[first]),
                     "r"(w[first + 1]), "r"(w[first + 2]), "r"(w[first + 3]) : "memory");
    }
#else
    const int row = lane / 4, pair = lane % 4;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
        const u32 to = base + row * 128 + (((2 * block + pair / 2) ^ row) << 4) + (pair & 1) * 8;
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(w[2 * block]), "r"(w[2 * block + 1]) : "memory");
    }
#endif
}

// Row r of those that are staged to C: `to` is where its first word goes or, where a CTA has one tile, this lane's first
// word. Then addresses are known before the sums are, and there is no branch, since all lanes read.
__device__ __forceinline__ void store_row(const char *staging, OUT_TYPE *to, int r, int columns) {
    const int own = threadIdx.x % ROW_LANES * OUT_VECTOR;
#pragma unroll
    for (int x = own; x < ROW_PANELS * PANEL; x += ROW_LANES * OUT_VECTOR) {
        const int column = x * OUT_BYTES / 16;
        const char *from = staging + column / 8 * ROWS_BYTES + r * 128 + ((column % 8 ^ r % 8) << 4);
#if ONE_TILE
        const OutWord word = *(const OutWord *)(from + x * OUT_BYTES % 16);
        if (x - own < columns) *(OutWord *)(to + (x - own)) = word;
#else
        if (x < columns) *(OutWord *)(to + x) = *(const OutWord *)(from + x * OUT_BYTES % 16);
#endif
    }
}

// Write one strip by rows of as many panels as there is room for.
template <class Panels>
__device__ __forceinline__ void store_rows(Panels &panels, OUT_TYPE *c, const Sizes &s, const Tile &tile,
                                           const Place &at, int strip, char *staging) {
    const int first_row = threadIdx.x % 32 / ROW_LANES, finished = tile.narrow ? FINISHED - 8 : FINISHED;
    OUT_TYPE *of_product = c + tile.outer * s.c_outer + tile.inner * s.c_inner;
#pragma unroll
    for (int first = 0; first < PANELS_OF_TILE; first += ROW_PANELS) {
        const int n = at.n + first * PANEL, columns = min(min(ROW_PANELS * PANEL, finished - first * PANEL), s.N - n);
        HalfWords others[ROW_PANELS];
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            __syncwarp();
#pragma unroll
            for (int panel = 0; panel < ROW_PANELS && first + panel < PANELS_OF_TILE; ++panel) {
                const u32 base = shared_address(staging + panel * ROWS_BYTES);
                if (pass == 0) {
                    PanelWords words;
                    HalfWords half;
                    panels.make(words, first + panel);
                    take_half(half, words, 0);
                    take_half(others[panel], words, 1);
                    stage_half(half, base);
                }
                if (pass == PASSES - 1) stage_half(others[panel], base + (PASSES == 1 ? HALF_BYTES : 0));
            }
            __syncwarp();
            const int passed = 64 * strip + 8 * pass, m = at.m + passed;
#pragma unroll ROWS_AT_ONCE
            for (int i = 0; i < 16 / PASSES; i += ROW_STEP) {
                const int r = i + first_row;
#if ONE_TILE
                OUT_TYPE *to = c + at.first + (passed + i) / ROW_STEP * at.step + first * PANEL;
                store_row(staging, to, r, passed + i < at.rows ? at.columns - first * PANEL : 0);
#else
                if (m + r < tile.end) store_row(staging, of_product + (m + r) * s.c_m + n, r, columns);
#endif
            }
        }
    }
}
#endif

#if SWAPPED && OUT_BYTES == 4
// Write one strip of C^T from registers: eight lanes have 32 neighbouring bytes of a row of C.
template <class Panels>
__device__ __forceinline__ void store_columns(Panels &panels, OUT_TYPE *c, const Sizes &s, const Tile &tile,
                                              const Place &at, int strip) {
    const int lane = threadIdx.x % 32, finished = tile.narrow ? FINISHED - 8 : FINISHED;
    c += tile.outer * s.c_outer + tile.inner * s.c_inner;
#pragma unroll
    for (int panel = 0; panel < PANELS_OF_TILE; ++panel) {
        PanelWords words;
        panels.make(words, panel);
#pragma unroll
        for (int i = 0; i < PANEL_WORDS; ++i) {  // two columns of each of two rows of C^T in each block of 8
            const int m = at.m + 64 * strip + lane / 4 + 8 * (i / 2 % 2);
            const int x = panel * PANEL + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (m < tile.end && x < finished && at.n + x < s.N) memcpy(c + m * s.c_m + (at.n + x) * s.c_n, &words[i], 4);
        }
    }
}
#elif SWAPPED
#define ROW_LANES (OUT_VECTOR == 1 ? 32 : 64 / OUT_VECTOR)  // that store one row of C, 64 elements
#define ROW_STEP (128 / ROW_LANES)                         // rows that are stored together

// A panel of 64 of C's rows is turned on its way into staging, a 16-byte column of it from each 8 x 8 block of each warp.
__device__ __forceinline__ void turn_panel(const PanelWords &words, int panel, u32 base) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int block = 0; block < PANEL_WORDS / 4; ++block) {
        if (panel * PANEL + block * PANEL / 4 >= FINISHED) break;
        const u32 *w = words + 4 * block;
        // Matrix q of four: 8 of C's rows from 8 (2 block + q / 2), 16-byte column 2 warp + q % 2.
        const int q = lane / 8, r = 8 * (2 * block + q / 2) + lane % 8;
        const u32 to = base + r * 128 + (((2 * warp + (q & 1)) ^ (r & 7)) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]),
                     "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
    }
}

// The four warps of a consumer meet.
__device__ __forceinline__ void meet_warpgroup(u32 slab) {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + slab) : "memory");
}

// Write one strip of C^T: its 64 rows are 64 neighbours, 128 bytes, in each of C's rows. `staging` is the warpgroup's.
template <class Panels>
__device__ __forceinline__ void store_turned(Panels &panels, const OutMaps &c_maps, OUT_TYPE *c, const Sizes &s,
                                             const Tile &tile, const Place &at, int strip, char *staging, u32 slab) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int m = at.m - 16 * warp + 64 * strip, finished = tile.narrow ? FINISHED - 8 : FINISHED;
    const bool stores = threadIdx.x % 128 == 0;
#pragma unroll
    for (int first = 0; first < PANELS_OF_TILE; first += PANELS) {
        // The copy engine, or every warp, must have read the buffers before they are overwritten.
        if (!ONE_TILE || strip > 0 || first > 0) {
            wait_for_reads(stores);
            meet_warpgroup(slab);
        }
#pragma unroll
        for (int panel = first; panel < PANELS_OF_TILE && panel < first + PANELS; ++panel) {
            PanelWords words;
            panels.make(words, panel);
            turn_panel(words, panel, shared_address(staging + (panel - first) * (4 * PANEL_BYTES)));
        }
        // The warps' writes become visible to the copy engine before it reads them.
        if (TMA_STORE) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet_warpgroup(slab);
#pragma unroll
        for (int panel = first; panel < PANELS_OF_TILE && panel < first + PANELS; ++panel) {
            const char *buffer = staging + (panel - first) * (4 * PANEL_BYTES);
#if TMA_STORE
            const int n = at.n + panel * PANEL;
            if (stores) {
                const u32 from = shared_address(buffer);
                if (panel * PANEL + PANEL <= finished) {
                    store_box(c_maps.whole, from, m, n, tile.inner, tile.outer);
                } else {
#pragma unroll 1
                    for (int r = 0; panel * PANEL + r < finished; r += TAIL_ROWS)
                        store_box(c_maps.tail, from + r * 128, m, n + r, tile.inner, tile.outer);
                }
            }
#elif ONE_TILE
#pragma unroll 4
            for (int i = 0; i < PANEL; i += ROW_STEP) {
                const int r = i + threadIdx.x % 128 / ROW_LANES, own = threadIdx.x % ROW_LANES * OUT_VECTOR;
                OUT_TYPE *to = c + at.first + (panel * PANEL + i) / ROW_STEP * at.step + 64 * strip * s.c_m;
#pragma unroll
                for (int x = own; x < 64; x += ROW_LANES * OUT_VECTOR) {
                    const OutWord word = *(const OutWord *)(buffer + r * 128 + (((x / 8) ^ (r & 7)) << 4) + x % 8 * 2);
                    if (panel * PANEL + i < at.rows && 64 * strip + x - own < at.columns)
                        *(OutWord *)(to + (x - own) * s.c_m) = word;
                }
            }
#else
            const int n = at.n + panel * PANEL, columns = tile.end - m;
            const int rows = min(min(PANEL, finished - panel * PANEL), s.N - n);
            OUT_TYPE *to = c + tile.outer * s.c_outer + tile.inner * s.c_inner + m * s.c_m + n * s.c_n;
#pragma unroll 2
            for (int r = (warp * 32 + lane) / ROW_LANES; r < rows; r += ROW_STEP)
#pragma unroll
                for (int x = lane % ROW_LANES * OUT_VECTOR; x < 64; x += ROW_LANES * OUT_VECTOR)
                    if (x < columns)
                        *(OutWord *)(to + r * s.c_n + x * s.c_m) =
                            *(const OutWord *)(buffer + r * 128 + (((x / 8) ^ (r & 7)) << 4) + x % 8 * 2);
#endif
        }
        if (TMA_STORE && stores) asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}
#endif

// The place of a warp's part of a tile from its row m and its column n on.
__device__ __forceinline__ Place place_of(int m, int n, const Sizes &s, const Tile &tile) {
    Place at;
    at.m = m, at.n = n;
#if KNOWN_PLACE && SWAPPED
    const int row = n + threadIdx.x % 128 / ROW_LANES;
    const int column = m - threadIdx.x / 32 % 4 * 16 + threadIdx.x % ROW_LANES * OUT_VECTOR;
    at.first = tile.outer * s.c_outer + tile.inner * s.c_inner + row * s.c_n + column * s.c_m;
    at.step = s.c_n * ROW_STEP;
    at.rows = min(tile.narrow ? FINISHED - 8 : FINISHED, s.N - n) - (row - n), at.columns = tile.end - column;
#elif KNOWN_PLACE
    const int row = m + threadIdx.x % 32 / ROW_LANES, column = threadIdx.x % ROW_LANES * OUT_VECTOR;
    at.first = tile.outer * s.c_outer + tile.inner * s.c_inner + row * s.c_m + (n + column);
    at.step = s.c_m * ROW_STEP;
    at.rows = tile.end - row, at.columns = min(tile.narrow ? FINISHED - 8 : FINISHED, s.N - n) - column;
#endif
    return at;
}

// It is computed now, while the tensor cores multiply, not when they are done.
__device__ __forceinline__ void pin(Place &at) {
#if KNOWN_PLACE
    asm volatile("" : "+l"(at.first), "+l"(at.step), "+r"(at.rows), "+r"(at.columns));
#endif
}

// Write one strip of a tile; `staging` is this warp's.
template <class Panels>
__device__ __forceinline__ void store(Panels &panels, const OutMaps &c_maps, OUT_TYPE *c, const Sizes &s,
                                      const Tile &tile, const Place &at, int strip, char *staging, u32 slab) {
#if SWAPPED && OUT_BYTES == 4
    store_columns(panels, c, s, tile, at, strip);
#elif SWAPPED
    store_turned(panels, c_maps, c, s, tile, at, strip, staging - threadIdx.x / 32 % 4 * PANELS * PANEL_BYTES, slab);
#elif ROW_STORE
    store_rows(panels, c, s, tile, at, strip, staging);
#else
    store_strip(panels, c_maps, c, s, tile, at, strip, staging);
#endif
}
