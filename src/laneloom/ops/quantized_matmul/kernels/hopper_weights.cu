// C = X W^T of 16-bit X and a weight W of 4 or 8 bits with scales of groups along K: W streams once, by TMA.
//
// C^T = W X^T: wgmma's rows are rows of W, 64 STRIPS for each of CONSUMERS warpgroups, its columns rows of X. W is as
// narrow in shared memory as in memory; a lane reads a word of a row, 8 values (two words of 8 bits), makes 16-bit floats
// of them and has wgmma's A of two steps of 16 in its registers: wgmma does not care which of K's elements stand where if
// those of X stand alike. Another warpgroup brings X in that order, the scales as FP32, and asks for W. X_BY_TMA: TMA brings
// X too, as it lies, and a lane picks its values from the words of four: more instructions, for many rows. While UNIT times 32
// of K are multiplied the next are converted; the sums of a group are scaled and added in FP32. Of a cluster of CLUSTER
// CTAs each has a part of K; their sums are added in a fixed order, so the same inputs give the same bits. Behind the end
// of K both operands are zero.
// device/hopper.cuh, hopper_weights_values.cuh, hopper_weights_bring.cuh and wgmma come in front of this text.

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

__device__ __forceinline__ void write(OUT_TYPE *to, float x) {
#if OUT_KIND == 0
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(*(u16 *)to) : "f"(x));
#elif OUT_KIND == 1
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(*(u16 *)to) : "f"(x));
#else
    *to = x;
#endif
}

// A number in the same place of another CTA's shared memory.
__device__ __forceinline__ void send(float *to, float x, u32 rank) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.f32 [there], %2;\n}" ::"r"(
            shared_address(to)), "r"(rank), "f"(x) : "memory");
}

// A unit of one warpgroup's rows of W as wgmma takes them, by steps of 16.
struct Fragments {
    u32 a[STRIPS][2 * UNIT][4];

    __device__ __forceinline__ void load(u32 of_w, u32 beside, int own, int unit) {
        const int t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < UNIT; ++i)
#pragma unroll
            for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int n = own + strip * 64 + half * 8, j = unit * UNIT + i, group = j * GROUPS / 4;
                    u32 pairs[4];
                    const u32 zero = ZEROS ? read_word(beside + ((GROUPS + group) * COLUMNS + n) * 4) : 0;
                    floats(pairs, of_w, n, j, t, zero);
                    if (FOLD) {
                        const u32 scale = read_word(beside + (group * COLUMNS + n) * 4);
#pragma unroll
                        for (int k = 0; k < 4; ++k) pairs[k] = times(pairs[k], scale);
                    }
                    a[strip][2 * i][half] = pairs[0];
                    a[strip][2 * i][2 + half] = pairs[1];
                    a[strip][2 * i + 1][half] = pairs[2];
                    a[strip][2 * i + 1][2 + half] = pairs[3];
                }
    }
    // They are not overwritten before here.
    __device__ __forceinline__ void keep() const {
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
            for (int i = 0; i < 8 * UNIT; ++i) asm volatile("" ::"r"(a[strip][i / 4][i % 4]));
    }
};

__device__ __forceinline__ void consume(float (&sums)[STRIPS][SUMS], u32 ring, u32 full, u32 empty, int own,
                                        int slices) {
    const int lane = threadIdx.x % 32;
    u32 stage = 0, phase = 0, within = 0;
    u32 of_w = 0, of_x = 0, beside = 0, free = 0;  // of the slice that is converted; the barrier of one that ends a stage
    const auto begin = [&]() {                     // the next slice
        if (within == 0) wait_barrier(full + 8 * stage, phase);
        const u32 at = ring + stage * STAGE_BYTES;
        of_w = at + within * W_BYTES, of_x = at + X_AT + within * X_BYTES;
        beside = at + BESIDE + within * SCALE_WORDS * 4;
        free = within + 1 == TOGETHER ? empty + 8 * stage : 0;
        if (++within == TOGETHER) {
            within = 0;
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    };
    float part[STRIPS][SUMS];
    auto &into = SCALED ? part : sums;
    // Of rows' groups: what the sums of `group` are multiplied by. Before the wait for them.
    float scales[STRIPS][2];
    const auto read_scales = [&](int group) {
#pragma unroll
        for (int i = 0; SCALED && i < 2 * STRIPS; ++i) {
            const u32 at = beside + (group * COLUMNS + own + i / 2 * 64 + i % 2 * 8) * 4;
            scales[i / 2][i % 2] = __uint_as_float(read_word(at));
            asm volatile("" : "+f"(scales[i / 2][i % 2]));
        }
    };
    const auto add = [&]() {
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
            for (int i = 0; SCALED && i < SUMS; ++i)
                sums[strip][i] = fmaf(part[strip][i], scales[strip][i / 2 % 2], sums[strip][i]);
    };
    Fragments fragments[2];
    u32 freed = 0;  // when what reads it has been multiplied
    const auto multiply_slice = [&](int first, bool more) {
        const u32 x = of_x, last = free;
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            Fragments &now = fragments[(first + unit) % 2], &next = fragments[(first + unit + 1) % 2];
            const bool begins = SCALED && unit * GROUPS % UNITS == 0;
            const bool ends = SCALED && (unit + 1) * GROUPS % UNITS == 0;
            if (ends) read_scales(unit * GROUPS / UNITS);
#pragma unroll
            for (int strip = 0; strip < STRIPS; ++strip) pin(into[strip]);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int step = 0; step < 2 * UNIT; ++step)
#pragma unroll
                for (int strip = 0; strip < STRIPS; ++strip) {
                    const u32(&a)[4] = now.a[strip][step];
                    const u64 b = describe_x(x & 0x3ffff, 2 * UNIT * unit + step);
                    wgmma(into[strip], a[0], a[1], a[2], a[3], b, !begins || step > 0);
                }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
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
                add();
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
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_hopper_weights(const __grid_constant__ TensorMap w_map, const __grid_constant__ Rows rows,
                      const unsigned char *scales, const unsigned char *zeros, const BIAS_TYPE *bias, OUT_TYPE *c,
                      const __grid_constant__ WeightSizes s) {
    extern __shared__ __align__(1024) float memory[];  // the ring and its barriers; then sums
    release_successor();
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const u32 warp = uniform(threadIdx.x / 32);
    const u32 ring = shared_address(memory), full = ring + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            init_barrier(full + 8 * i, BRINGERS / 32);
            init_barrier(empty + 8 * i, 4 * CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // This CTA's part of K in slices. Neighbours have the same rows of W, so that the L2 brings them once.
    const int all = (s.K + SLICE - 1) / SLICE;
    int number = blockIdx.x / CLUSTER;
    Part part = {0, 0, 0, 0, (int)((i64)all * rank / CLUSTER), (int)((i64)all * (rank + 1) / CLUSTER)};
#if BATCHED
    const int product = number / (s.blocks_m * s.blocks_n);
    part.outer = product / s.inner, part.inner = product - part.outer * s.inner;
    number -= product * s.blocks_m * s.blocks_n;
    scales += (part.outer * s.scale_outer + part.inner * s.scale_inner) * SCALE_BYTES;
    zeros += part.outer * s.zero_outer + part.inner * s.zero_inner;
    c += part.outer * s.c_outer + part.inner * s.c_inner;
#endif
    part.m = number % s.blocks_m * ROWS, part.n = number / s.blocks_m * COLUMNS;
    __syncthreads();
    float sums[STRIPS][SUMS] = {};
    const int own = (warp / 4) * OF_GROUP + warp % 4 * 16 + threadIdx.x % 32 / 4;  // a consumer's row of W
    if (warp >= 4 * CONSUMERS) {
        bring(&w_map, rows, scales, zeros, s, ring, full, empty, part);
    } else {
        consume(sums, ring, full, empty, own, part.last - part.first);
        wait_for_predecessor();  // C, the bias and the scales of rows come after the kernels ahead
    }
    __syncwarp();
    __syncthreads();  // the ring is read, sums take its place
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
    if (warp < 4 * CONSUMERS) {
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int n = own + strip * 64 + half * 8;
                float scale = FOLD ? 4 : 1;
                if (!GROUP) {
                    const i64 at = min(part.n + n, s.N - 1) * s.scale_n;
                    scale = scale_of(load_number<SCALE_BYTES>(scales + at * SCALE_BYTES));
                }
#pragma unroll
                for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const float sum = sums[strip][4 * e + 2 * half + j];
                        memory[(8 * e + 2 * (threadIdx.x % 4) + j) * PITCH + n] = FOLD || !GROUP ? sum * scale : sum;
                    }
            }
    }
    __syncthreads();
    const auto store = [&](int i, float sum) {  // C's contiguous axis is the one that neighbours share
        const int m = part.m + (C_ALONG_M ? i % ROWS : i / COLUMNS), n = part.n + (C_ALONG_M ? i / ROWS : i % COLUMNS);
        if (m >= s.M || n >= s.N) return;
        if (HAS_BIAS) sum += as_float(bias[n * s.bias_n]);
        write(c + m * s.c_m + n * s.c_n, sum);
    };
    const auto at = [](int i) {
        return (C_ALONG_M ? i % ROWS : i / COLUMNS) * PITCH + (C_ALONG_M ? i / ROWS : i % COLUMNS);
    };
#if CLUSTER > 1
    float *parts = memory + ROWS * PITCH;
    asm volatile("barrier.cluster.wait;" ::: "memory");
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS)
        if (part.m + (C_ALONG_M ? i % ROWS : i / COLUMNS) < s.M)
            send(parts + rank * SHARE + i % SHARE, memory[at(i)], i / SHARE);
    // The parts are there once all have arrived.
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    for (int j = threadIdx.x; j < SHARE; j += THREADS) {
        if (part.m + (C_ALONG_M ? (rank * SHARE + j) % ROWS : (rank * SHARE + j) / COLUMNS) >= s.M) continue;
        float sum = 0;
#pragma unroll
        for (int r = 0; r < CLUSTER; ++r) sum += parts[r * SHARE + j];
        store(rank * SHARE + j, sum);
    }
#else
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) store(i, memory[at(i)]);
#endif
}
