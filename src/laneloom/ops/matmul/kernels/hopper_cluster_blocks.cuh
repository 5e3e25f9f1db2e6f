// Sums of each slice, for hopper_cluster.cu: C = sum over slices of K of row scale x column scale x (A B of that slice).
//
// A slice is a block of K of 8-bit floats, 128 elements. Its sums leave the tensor cores, and one multiply-add each in FP32
// scales and adds them, or without scales an addition; meanwhile another warpgroup's wgmmas run, and with DUAL the same
// one's next. With PARTS = 2 the two halves of a tile's columns follow each other, so that a tile of 128x256 needs registers
// for half of its sums twice. What the next tile begins with is asked for before C is written.
// Warpgroups ask the tensor cores in turn, by named barriers: else their wgmmas would mingle, all end at about the same
// time, and nothing be multiplied while all add.
// Scales come into the ring beside the slice that they belong to, by cp.async of 4 bytes: whatever their strides.

#define SCALE_BLOCK 128                          // rows or columns that share a scale, where several do
#define ROW_SCALES (ROWS_SCALED == 1 ? BLOCK_M : (BLOCK_M + SCALE_BLOCK - 1) / SCALE_BLOCK)
// Whether a tile's columns begin and end where blocks of them do.
#define ALIGNED_COLUMNS (BLOCK_N % SCALE_BLOCK == 0 || SCALE_BLOCK % BLOCK_N == 0)
#define COLUMN_SCALES \
    (COLUMNS_SCALED == 1 ? BLOCK_N : (BLOCK_N + SCALE_BLOCK - 1) / SCALE_BLOCK + !ALIGNED_COLUMNS)
#define COLUMN_SCALES_AT ((ROW_SCALES + 3) / 4 * 4)
#define SCALES_OF_STAGE (COLUMN_SCALES_AT + (COLUMN_SCALES + 3) / 4 * 4)
#define A_HELD (PARTS > 1)                       // in registers, which two parts read, not shared memory twice
#define PART_COLUMNS (BLOCK_N / PARTS)
#define PART_SUMS (PART_COLUMNS / 2)             // of one strip in one thread
#define TURNS (CONSUMERS > 1)
#define TURN_OF(slab) (4 + (slab))               // a named barrier: its warpgroup waits there for the one before it
#define UNITS (STRIPS * PARTS)                   // of a slice, which leave the tensor cores one after another
#define FREED_LATE (COLUMNS_SCALED == 1 && !DUAL)  // a slice, after its sums are added: columns' scales are read with them
#if SCALED
#define SCALES_PARAMETER , const __grid_constant__ Scales scales
#define BESIDE_BYTES (STAGES * SCALES_OF_STAGE * 4)  // of shared memory beside ring and staging
#else
#define SCALES_PARAMETER
#define BESIDE_BYTES 0
#endif

// Scales of an operand: strides of the batch, of its rows (or columns) and of blocks of K, in elements.
struct OperandScales {
    const float *at;
    i64 outer, inner, along, block;
};
struct Scales {
    OperandScales a, b;
};

__device__ __forceinline__ void copy_scale(float *to, const float *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

#if SCALED
// By a whole warp: the scales of every slice of this CTA's tiles into the ring. Each lane arrives at the slice's barrier
// when what it copied is there; no slice is full before all have, so none can miss a phase.
__device__ __forceinline__ void bring_scales(const Scales &scales, const Sizes &s, float *ring, u32 full, u32 empty,
                                             Rank rank, Walk walk) {
    const int lane = threadIdx.x % 32;
    u32 stage = 0, phase = 0;
    wait_for_predecessor();
    Work work;
    for (int item = blockIdx.x / PEERS;; item += gridDim.x / PEERS) {
        work.find(item, walk, s, rank);
        if (!work.more) break;
        const Tile &tile = work.tile;
        const auto bring = [&](float *to, const OperandScales &of, int count, int together, int first, int end,
                               int product, int slice) {
            const float *from = of.at + tile.outer * of.outer + product * of.inner + slice * of.block;
            for (int i = lane; i < count; i += 32)
                copy_scale(to + i, from + min(first / together + i, (end - 1) / together) * of.along);
        };
        for (int slice = work.k_first; slice < work.k_end; ++slice) {
            wait_barrier(empty + 8 * stage, phase ^ 1);
            float *to = ring + stage * SCALES_OF_STAGE;
            bring(to, scales.a, ROW_SCALES, ROWS_SCALED, tile.m, tile.end, tile.inner, slice);
            bring(to + COLUMN_SCALES_AT, scales.b, COLUMN_SCALES, COLUMNS_SCALED, tile.n, s.N, tile.inner, slice);
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + 8 * stage) : "memory");
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

#endif

// One warp's 16 rows of A of a slice, in registers: as wgmma takes them, for each of a slice's four steps.
struct RowsOfA {
    u32 of[4][4];

    // slice: where its A begins, and the warpgroup's rows. 8 x 16-byte matrices: rows of the first half, of the second, of
    // the step's first 16 bytes, of the others.
    __device__ __forceinline__ void load(u32 slice, u32 slab) {
        const int lane = threadIdx.x % 32, row = slab * SLAB + threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
        for (int step = 0; step < 4; ++step)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(of[step][0]), "=r"(of[step][1]), "=r"(of[step][2]), "=r"(of[step][3])
                         : "r"(slice + row * 128 + (((2 * step + lane / 16) ^ (row & 7)) << 4)));
    }
};

// Ask the tensor cores for one part of the columns of one strip, of a slice that begins `at` bytes behind the ring's first.
__device__ __forceinline__ void multiply_part(float (&acc)[PART_SUMS], const Descriptions &of, const RowsOfA &rows, u32 at,
                                              int strip, int part, u32 slab) {
    pin(acc);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    if (TURNS) asm volatile("bar.sync %0, 256;" ::"r"(TURN_OF(slab)) : "memory");
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        const u64 b = b_tile(of.b + (at + part * PART_COLUMNS * 128) / 16, step);
#if A_HELD
        const u32(&a)[4] = rows.of[step];
        wgmma(acc, a[0], a[1], a[2], a[3], b, step > 0);
#else
        wgmma(acc, a_tile(of.a + at / 16, strip, step), b, step > 0);
#endif
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (TURNS) asm volatile("bar.arrive %0, 256;" ::"r"(TURN_OF(slab == CONSUMERS - 1 ? 0 : slab + 1)) : "memory");
}

// What one thread multiplies the sums of a unit by: of its two rows, times the scale of the columns of the unit's first
// block and of those behind `within`; without the columns' where each has its own.
struct Factors {
    float first[2], behind[2];
    int within;
    const float *columns;
    float2 pairs[PART_SUMS / 4];  // with DUAL: ptxas waits behind every wgmma where a slice is freed after its sums are added

    // scales: of the slice. n: the number of the tile's first column.
    __device__ __forceinline__ Factors(const float *scales, u32 slab, int unit, int n) : within(PART_COLUMNS) {
        if (!SCALED) return;
        const int row = slab * SLAB + unit / PARTS * 64;
        const int own = row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        columns = scales + COLUMN_SCALES_AT;
#pragma unroll
        for (int half = 0; half < 2; ++half)
            first[half] = behind[half] = scales[ROWS_SCALED == 1 ? own + 8 * half : row / SCALE_BLOCK];
        if (COLUMNS_SCALED == 1) {
            columns += unit % PARTS * PART_COLUMNS + 2 * (threadIdx.x % 4);
#pragma unroll
            for (int j = 0; DUAL && j < PART_SUMS / 4; ++j) {
                pairs[j] = *(const float2 *)(columns + 8 * j);
                pin(pairs[j].x), pin(pairs[j].y);
            }
        } else {
            const int at = (ALIGNED_COLUMNS ? 0 : n % SCALE_BLOCK) + unit % PARTS * PART_COLUMNS, block = at / SCALE_BLOCK;
            const float one = columns[block], two = ALIGNED_COLUMNS ? one : columns[min(block + 1, COLUMN_SCALES - 1)];
#pragma unroll
            for (int half = 0; half < 2; ++half) behind[half] *= two, first[half] *= one;
            if (!ALIGNED_COLUMNS) within = SCALE_BLOCK - at % SCALE_BLOCK;
        }
        // Before the wait for the sums, not after it.
#pragma unroll
        for (int half = 0; half < 2; ++half) pin(first[half]), pin(behind[half]);
    }
};

// Two scales, where they are used: the compiler would load all of a tile's ahead, into registers that are not there.
__device__ __forceinline__ float2 load_pair(const float *from) {
    float2 pair;
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(shared_address(from)));
    return pair;
}

// Add what came of one unit, times its scales.
__device__ __forceinline__ void add_scaled(float *sums, const float (&acc)[PART_SUMS], const Factors &factors) {
#pragma unroll
    for (int j = 0; j < PART_SUMS; j += 4) {
        float2 pair = make_float2(1.0f, 1.0f);
        if (COLUMNS_SCALED == 1) pair = DUAL ? factors.pairs[j / 4] : load_pair(factors.columns + 2 * j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float both = ALIGNED_COLUMNS || 2 * j < factors.within ? factors.first[half] : factors.behind[half];
            const float low = COLUMNS_SCALED == 1 ? both * pair.x : both, high = COLUMNS_SCALED == 1 ? both * pair.y : both;
            float &one = sums[j + 2 * half], &other = sums[j + 2 * half + 1];
            one = SCALED ? fmaf(acc[j + 2 * half], low, one) : one + acc[j + 2 * half];
            other = SCALED ? fmaf(acc[j + 2 * half + 1], high, other) : other + acc[j + 2 * half + 1];
        }
    }
}

// Where a warpgroup is in the ring.
struct Cursor {
    u32 stage = 0, phase = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

__device__ __forceinline__ void consume(const OutMaps &c_maps, OUT_TYPE *c, const Sizes &s, u32 ring, u32 full,
                                        u32 empty, char *staging, const char *beside, u32, u32 slab, Rank rank,
                                        const Terms &terms) {
    const int lane = threadIdx.x % 32;
    const u32 warp = uniform(threadIdx.x / 32 % 4);
    const Descriptions of_ring = describe_ring(ring & 0x3ffff, slab);
    const u32 freed = freed_barrier(empty, rank);
    Cursor asked, taken;
    RowsOfA rows_of_a;
    float acc[1 + DUAL][PART_SUMS], sums[STRIPS][SUMS];
    Walk walk = begin_walk();
    Tile tile, next;
    // The tensor cores are to multiply unit `unit` of the next slice, or of the same one.
    const auto ready = [&](int unit) {
        if (unit == 0) wait_barrier(full + 8 * asked.stage, asked.phase);
    };
    const auto ask = [&](float (&acc)[PART_SUMS], int unit) {
        multiply_part(acc, of_ring, rows_of_a, asked.stage * STAGE_BYTES, unit / PARTS, unit % PARTS, slab);
        if (unit == UNITS - 1) asked.advance();
    };
    const auto factors_of = [&](int unit) {
        return Factors((const float *)beside + taken.stage * SCALES_OF_STAGE, slab, unit, tile.n);
    };
    // A slice that is ready, while nothing is being multiplied.
    const auto load_a = [&](int unit) {
        if (A_HELD && unit == 0) rows_of_a.load(ring + asked.stage * STAGE_BYTES, slab);
    };
    // What came of it is added, after a wait for it.
    const auto add = [&](float (&acc)[PART_SUMS], const Factors &factors, int unit) {
        pin(acc);
        const bool last = unit == UNITS - 1;
        const auto free = [&]() {  // by this warp: the slice's elements and scales
            __syncwarp();
            if (lane < NEIGHBOURS) arrive_in_cluster(freed + 8 * taken.stage);
        };
        if (last && !FREED_LATE) free();
        add_scaled(sums[unit / PARTS] + unit % PARTS * PART_SUMS, acc, factors);
        if (last && FREED_LATE) free();
        if (last) taken.advance();
    };
    const auto begin = [&]() {
        ready(0);
        load_a(0);
        ask(acc[0], 0);
    };
    const auto multiply_rest = [&](int left) {
#if DUAL
        // The next slice is being multiplied while what came of this one is added. ptxas waits behind every wgmma whose
        // sums only some of the paths there have begun: both ways around the loop begin the same.
        const auto overlap = [&](float (&now)[PART_SUMS], float (&next)[PART_SUMS]) {
            const Factors factors = factors_of(0);
            ready(0);
            ask(next, 0);
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            add(now, factors, 0);
        };
        const auto end = [&](float (&now)[PART_SUMS]) {
            const Factors factors = factors_of(0);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            add(now, factors, 0);
        };
#pragma unroll 1
        for (; left > 2; left -= 2) {
            overlap(acc[0], acc[1]);
            overlap(acc[1], acc[0]);
        }
        if (left == 2) {
            overlap(acc[0], acc[1]);
            end(acc[1]);
        } else {
            end(acc[0]);
        }
#else
        const auto step = [&](int unit, bool more) {
            const Factors factors = factors_of(unit);
            if (more) ready((unit + 1) % UNITS);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (more) load_a((unit + 1) % UNITS);
            add(acc[0], factors, unit);
            if (more) ask(acc[0], (unit + 1) % UNITS);
        };
#pragma unroll 1
        for (; left > 1; --left)
#pragma unroll
            for (int unit = 0; unit < UNITS; ++unit) step(unit, true);
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) step(unit, unit + 1 < UNITS);
#endif
    };
    int item = blockIdx.x / PEERS;
    bool more = locate(item, walk, tile, s, rank.m, rank.n);
    if (TURNS && slab == CONSUMERS - 1) asm volatile("bar.arrive %0, 256;" ::"n"(TURN_OF(0)) : "memory");
    if (more) begin();
    while (more) {
        const Place at = place_of(tile.m + (int)(slab * SLAB + warp * 16), tile.n, s, tile);
        Held held;
        ask_for_terms(held, at, s, tile, terms);
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
            for (int j = 0; j < SUMS; ++j) sums[strip][j] = 0;
        item += gridDim.x / PEERS;
        if (!A_HELD) more = locate_next(item, walk, next, s, rank);
        multiply_rest(first_slice(s, tile, rank.k + 1) - first_slice(s, tile, rank.k));
        arrived(held);
        const auto write = [&]() {
#pragma unroll
            for (int strip = 0; strip < STRIPS; ++strip) {
                Fresh fresh(sums[strip], strip, held, at, s, tile, terms);
                store(fresh, c_maps, c, s, tile, at, strip, staging, slab);
            }
        };
        if (A_HELD) {  // there are no registers for where the next tile is
            write();
            more = locate_next(item, walk, tile, s, rank);
            if (more) begin();
            continue;
        }
        if (!more) {
            write();
            break;
        }
        if (CONSUMERS == 3) {  // nor for the sums of two tiles
            write();
            begin();
        } else {
            begin();
            write();
            __syncwarp();  // or ptxas takes the loop for lanes that go their own ways, each with descriptions of its own
        }
        tile = next;
    }
    // The turn that nobody took.
    if (TURNS && slab == 0) asm volatile("bar.sync %0, 256;" ::"n"(TURN_OF(0)) : "memory");
    wait_for_reads(lane == 0);  // shared memory must outlive them
}
