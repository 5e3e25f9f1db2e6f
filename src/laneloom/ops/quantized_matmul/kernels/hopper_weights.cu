// C = X W^T of 16-bit X and a weight W of 4 or 8 bits with scales of groups along K: W streams once, by TMA.
//
// C^T = W X^T: wgmma's rows are rows of W, 64 STRIPS for each of CONSUMERS warpgroups, its columns rows of X. W is as
// narrow in shared memory as in memory; a lane reads a word of a row, 8 values (two words of 8 bits), makes 16-bit floats
// of them and has wgmma's A of two steps of 16 in its registers: wgmma does not care which of K's elements stand where if
// those of X stand alike. Another warpgroup brings X in that order, the scales as FP32, and asks for W. X_BY_TMA: TMA brings
// X too, as it lies, and a lane picks its values from the words of four: more instructions, for many rows. While UNIT times 16
// of K are multiplied the next are converted; the sums of a group are scaled and added in FP32. CARRIED: without a second
// set of sums. A scale is a unit times a power of two, by which values are multiplied, exactly; before a group is added,
// the sums are multiplied by the unit they are in over this group's. Of a cluster of CLUSTER CTAs each has a part of K;
// their sums are added in a fixed order, so the same inputs give the same bits. Behind the end of K both operands are
// zero. GROUPED: rows of X are in groups with a W each, whose ends the kernel reads.
// device/hopper.cuh, hopper_weights_values.cuh, _bring.cuh, _store.cuh and wgmma come in front of this text.

// Of step `step` of a slice, wgmma's description of X: rows of 128 bytes in groups of 8, two panels of 64 of K. `from` is
// without the CTA's place in the cluster, which descriptions have no bits for.
__device__ __forceinline__ u64 describe_x(u32 from, int step) {
    return (u64)(1u << 30 | 1024 >> 4) << 32 | 1 << 16 | (from + step / 4 * (ROWS * 128) + step % 4 * 32) >> 4;
}

template <int N>
__device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// A unit of one warpgroup's rows of W as wgmma takes them, by steps of 16.
struct Fragments {
    u32 a[STRIPS][UNIT][4];

    __device__ __forceinline__ void load(u32 of_w, u32 beside, int own, int unit) {
        constexpr int together = UNIT > 1 ? 2 : 1;  // steps whose values lie in one word
        OfGroup of[STRIPS][2];
#pragma unroll
        for (int i = 0; i < UNIT; i += together)
#pragma unroll
            for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int n = own + strip * 64 + half * 8, step = unit * UNIT + i, group = step * GROUPS / STEPS;
                    u32 pairs[2 * together];
                    if (i == 0 || group != (step - together) * GROUPS / STEPS) {
                        const u32 zero = ZEROS ? read_word(beside + WORD_BESIDE(ZERO_KIND, group, n)) : 0;
                        const int kind = FOLD ? SCALE_KIND : FACTOR_KIND;
                        const u32 factor = FOLD || CARRIED ? read_word(beside + WORD_BESIDE(kind, group, n)) : 0;
                        of[strip][half] = of_group(zero, factor);
                    }
                    floats<together>(pairs, of_w, n, step, threadIdx.x % 4, of[strip][half]);
#pragma unroll
                    for (int k = 0; k < 2 * together; ++k) a[strip][i + k / 2][k % 2 * 2 + half] = pairs[k];
                }
    }
    // They are not overwritten before here.
    __device__ __forceinline__ void keep() const {
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
            for (int i = 0; i < 4 * UNIT; ++i) asm volatile("" ::"r"(a[strip][i / 4][i % 4]));
    }
};

// Of rows' groups: what the sums of a group are multiplied by, or those before it.
struct Scales {
    float of[STRIPS][2];

    // Before the wait for the sums. beside: of a slice.
    __device__ __forceinline__ void read(u32 beside, int own, int kind, int group) {
#pragma unroll
        for (int i = 0; SCALED && i < 2 * STRIPS; ++i) {
            const int n = own + i / 2 * 64 + i % 2 * 8;
            of[i / 2][i % 2] = __uint_as_float(read_word(beside + WORD_BESIDE(kind, group, n)));
            asm volatile("" : "+f"(of[i / 2][i % 2]));
        }
    }
    __device__ __forceinline__ void scale(float (&sums)[STRIPS][SUMS], const float (&part)[STRIPS][SUMS]) const {
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
            for (int i = 0; SCALED && i < SUMS; ++i) {
                float &sum = sums[strip][i], by = of[strip][i / 2 % 2];
                sum = CARRIED ? sum * by : fmaf(part[strip][i], by, sum);
            }
    }
};

// A unit of a slice whose X lies at `x`. begins: with new sums.
__device__ __forceinline__ void multiply(float (&into)[STRIPS][SUMS], const Fragments &now, u32 x, int unit, bool begins) {
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip) pin(into[strip]);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < UNIT; ++step)
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip) {
            const u32(&a)[4] = now.a[strip][step];
            const u64 b = describe_x(x & 0x3ffff, UNIT * unit + step);
            wgmma(into[strip], a[0], a[1], a[2], a[3], b, !begins || step > 0);
        }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#if TURNS
__device__ __forceinline__ void take_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory"); }
__device__ __forceinline__ void give_turn(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1) % CONSUMERS) : "memory");
}

// By a warpgroup: the sums of a tile. at: where it is in the ring. Warpgroups take turns: while one multiplies, the others
// wait for their products, scale sums and convert what they multiply next. Without, they convert at the same time, as a
// wgmma whose A is in registers holds its warp until the one before has read its own.
__device__ __forceinline__ void consume(float (&sums)[STRIPS][SUMS], Turn &at, int own, const Part &of) {
    const int group = uniform(threadIdx.x / 128);
    Fragments now;
    Scales scales;
    float part[STRIPS][SUMS];
    auto &into = APART ? part : sums;
#pragma unroll 1
    for (int slice = of.first; slice < of.last; ++slice) {
        wait_barrier(at.full(), at.phase);
        const u32 of_w = at.place(), beside = of_w + BESIDE;
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            const bool begins = SCALED && unit * GROUPS % UNITS == 0, ends = SCALED && (unit + 1) * GROUPS % UNITS == 0;
            now.load(of_w, beside, own, unit);
            if (CARRIED && begins && slice * SLICE % max(GROUP, 1) == 0) {
                scales.read(beside, own, SCALE_KIND, unit * GROUPS / UNITS);
                scales.scale(sums, part);
            }
            if (APART && ends) scales.read(beside, own, SCALE_KIND, unit * GROUPS / UNITS);
            if (CARRIED && unit + 1 == UNITS && slice + 1 == of.last) scales.read(beside, own, UNIT_KIND, GROUPS - 1);
            take_turn(group);
            multiply(into, now, of_w + X_AT, unit, APART && begins);
            give_turn(group);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            now.keep();
#pragma unroll
            for (int strip = 0; strip < STRIPS; ++strip) pin(into[strip]);
            if (APART && ends) scales.scale(sums, part);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(at.empty());
        at.next();
    }
    if (CARRIED) scales.scale(sums, part);
}
#else
// By a warpgroup: the sums of a tile. at: where it is in the ring.
__device__ __forceinline__ void consume(float (&sums)[STRIPS][SUMS], Turn &at, int own, const Part &of) {
    int slices = of.last - of.first;
    const int lane = threadIdx.x % 32;
    u32 within = 0, left = slices;
    u32 of_w = 0, of_x = 0, beside = 0, free = 0;  // of the slice that is converted; the barrier of one that ends a stage
    const auto begin = [&]() {                     // the next slice
        if (within == 0) wait_barrier(at.full(), at.phase);
        of_w = at.place() + within * W_BYTES, of_x = at.place() + X_AT + within * X_BYTES;
        beside = at.place() + BESIDE + within * SCALE_WORDS * 4;
        const bool ends = (--left == 0) | (++within == TOGETHER);
        free = ends ? at.empty() : 0;
        if (ends) within = 0, at.next();
    };
    float part[STRIPS][SUMS];
    auto &into = SCALED ? part : sums;
    Scales scales;
    Fragments fragments[2];
    u32 freed = 0;  // when what reads it has been multiplied
    const auto multiply_slice = [&](int first, bool more) {
        const u32 x = of_x, last = free;
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            Fragments &now = fragments[(first + unit) % 2], &next = fragments[(first + unit + 1) % 2];
            const bool begins = SCALED && unit * GROUPS % UNITS == 0;
            const bool ends = SCALED && (unit + 1) * GROUPS % UNITS == 0;
            if (ends) scales.read(beside, own, SCALE_KIND, unit * GROUPS / UNITS);
            multiply(into, now, x, unit, begins);
            // What the products before these read is free: registers, and the slice before this one. Not sooner: a word
            // that is still on its way from shared memory must not be overwritten by TMA.
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            next.keep();
            if (unit == 0) {
                __syncwarp();
                if (freed && lane == 0) arrive(freed);
                freed = last;
            }
            if (unit + 1 < UNITS) {
                next.load(of_w, beside, own, unit + 1);
            } else if (more) {
                begin();
                next.load(of_w, beside, own, 0);
            }
            if (ends) {
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                for (int strip = 0; strip < STRIPS; ++strip) pin(part[strip]);
                scales.scale(sums, part);
            }
        }
    };
    begin();
    fragments[0].load(of_w, beside, own, 0);
#pragma unroll 1
    for (; slices > 2; slices -= 2) {
        multiply_slice(0, true);
        multiply_slice(UNITS, true);
    }
    multiply_slice(0, slices == 2);
    if (slices == 2) multiply_slice(UNITS, false);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    fragments[0].keep(), fragments[1].keep();
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip) pin(sums[strip]);
    __syncwarp();
    if (lane == 0) arrive(freed);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_hopper_weights(const __grid_constant__ TensorMap w_map, const __grid_constant__ Rows rows,
                      const unsigned char *scales, const unsigned char *zeros, const BIAS_TYPE *bias, OUT_TYPE *c,
                      const int *ends, const __grid_constant__ WeightSizes s) {
    extern __shared__ __align__(1024) float memory[];  // the ring and its barriers; then sums
    release_successor();
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const u32 warp = uniform(threadIdx.x / 32);
    Turn at = {shared_address(memory), 0, 0};
    if (threadIdx.x == 0) {
        for (Turn i = at; i.stage < STAGES; ++i.stage) {
            init_barrier(i.full(), BRINGERS / 32);
            init_barrier(i.empty(), 4 * CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (GROUPED) wait_for_predecessor();  // which may write the ends
    Search search = {0, 0};
    Part part;
    bool there = find_part(part, blockIdx.x / CLUSTER, search, ends, s, rank);
    if (CLUSTER > 1 && !there) return;
    __syncthreads();
    const Result to = {c, bias, scales};
    const auto end_ring = [&]() {
        if (CLUSTER == 1) return;
        __syncwarp();
        __syncthreads();  // the ring is read, sums take its place
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    };
    if (warp >= 4 * CONSUMERS) {
        if (X_BY_TMA && CONSUMERS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEWER_REGISTERS));
        bring(&w_map, rows, scales, zeros, ends, s, at, search, part, there);
        end_ring();
    } else {
        if (X_BY_TMA && CONSUMERS > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE_REGISTERS));
        const int own = (warp / 4) * OF_GROUP + warp % 4 * 16 + threadIdx.x % 32 / 4;  // its first row of W
#if TURNS
        if (warp / 4 == CONSUMERS - 1) give_turn(CONSUMERS - 1);
#endif
        for (int tile = blockIdx.x; there; there = CLUSTER == 1 && find_part(part, tile += gridDim.x, search, ends, s, 0)) {
            float sums[STRIPS][SUMS] = {};
            consume(sums, at, own, part);
            wait_for_predecessor();  // C, the bias and the scales of rows come after the kernels ahead
            end_ring();
            if (CLUSTER == 1) store_tile(sums, memory + RING_BYTES / 4 + warp * TURNED_WORDS, to, s, part, own);
            else leave_tile(sums, memory, to, s, part, own);
        }
#if TURNS
        if (warp / 4 == 0) take_turn(0);  // what the last one gave
#endif
    }
#if CLUSTER > 1
    __syncthreads();
    store_parts(memory, to, s, part, rank);
#endif
}
