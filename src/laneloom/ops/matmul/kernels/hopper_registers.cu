// D = R^T S in TF32 on Hopper, R contiguous along D's rows. wgmma takes TF32 from shared memory along K only, but its first
// operand from registers, which may be read from shared memory in any order: R's fragments are.
//
// One warp fills a ring of slices of 32 k by TMA: R in panels of 32 rows of D, a line of 128 bytes for each k; S in lines
// of 32 k. Warpgroups of 64 rows of D fetch the fragments of the next slice while wgmma multiplies this one. TURNED: D is
// C's transpose.
// device/hopper.cuh and multiply_step(), a wgmma, come in front of this text.

#define BLOCK_K 32
#define R_BYTES (BLOCK_M * 128)
#define S_BYTES (BLOCK_N * 128)
#define STAGE_BYTES (R_BYTES + S_BYTES)
#define CONSUMERS (BLOCK_M / 64)
#define THREADS (128 * (CONSUMERS + 1))
#define ACCUMULATORS (BLOCK_N / 2)
#define PANEL_BYTES (32 * 128)  // 32 lines
#define BUFFER_BYTES (2 * PANEL_BYTES)  // of 64 rows and 32 columns of D on their way out

__device__ __forceinline__ void produce(const TensorMap *r_map, const TensorMap *s_map, const Sizes &s, u32 ring,
                                        u32 full, u32 empty) {
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K;
    u32 stage = 0, phase = 0;
    Walk walk = begin_walk();
    Tile tile;
    for (int item = blockIdx.x; locate(item, walk, tile, s, 0, 0); item += gridDim.x) {
#pragma unroll 1
        for (int slice = 0; slice < slices; ++slice) {
            // A barrier's first phase counts as complete when the other parity is asked for: the ring starts empty.
            wait_barrier(empty + 8 * stage, phase ^ 1);
            const u32 barrier = full + 8 * stage, to = ring + stage * STAGE_BYTES;
            const int k = slice * BLOCK_K;
            expect_bytes(barrier, STAGE_BYTES);
#pragma unroll
            for (int panel = 0; panel < BLOCK_M / 32; ++panel)
                load_box(r_map, to + panel * PANEL_BYTES, barrier, tile.m + 32 * panel, k, tile.inner * s.a_inner,
                         tile.outer * s.a_outer);
            load_box(s_map, to + R_BYTES, barrier, k, tile.n, tile.inner * s.b_inner, tile.outer * s.b_outer);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

// What one thread gives wgmma of a slice of R: registers of each step of 8 k. Lane (g, t) = (lane / 4, lane % 4) holds the
// rows g and g + 8 of its warp's 16 at t and t + 4.
struct Fragments { u32 x[4][4]; };

// Which of its slab's 64 rows of D a lane holds as row g + 8 half of its warp: the 4 rows of 16 bytes beside each other
// and those 64 bytes further, so that with the swizzle all 32 lanes read other banks.
__device__ __forceinline__ int row_of(int warp, int g, int half) {
    return warp / 2 * 32 + g / 4 * 16 + warp % 2 * 8 + half * 4 + g % 4;
}

// Where word `row` % 32 of line `line` lies in a panel whose lines TMA has swizzled.
__device__ __forceinline__ int swizzled(int line, int row) {
    return line * 128 + ((row % 32 / 4) ^ (line & 7)) * 16 + row % 4 * 4;
}

struct Lane { int at[4]; };  // of this lane's four registers in the first step of a slice

__device__ __forceinline__ Lane place_lane(int warp, int lane) {
    Lane result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = row_of(warp, lane / 4, i % 2);
        result.at[i] = warp / 2 * PANEL_BYTES + swizzled(lane % 4 + i / 2 * 4, row);
    }
    return result;
}

__device__ __forceinline__ void fetch(Fragments &f, const char *slab, const Lane &lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) f.x[step][i] = *(const u32 *)(slab + lane.at[i] + step * 8 * 128);
}

// wgmma's description of lines of 128 bytes along K, swizzled.
__device__ __forceinline__ u64 describe_lines(u32 address) {
    return (u64)(1u << 30 | 1024 >> 4) << 32 | (1u << 16 | address >> 4);
}

template <int OUTSTANDING> __device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OUTSTANDING) : "memory");
}

// Write 64 rows of D, 32 columns at a time: through shared memory, swizzled as the copy engine expects.
__device__ __forceinline__ void store(float (&acc)[ACCUMULATORS], const TensorMap *c_map, const Tile &tile, int slab,
                                      int warp, int lane, char *staging) {
    const int g = lane / 4, t = lane % 4;
    const bool first = threadIdx.x % 128 == 0;
#pragma unroll
    for (int piece = 0; piece < BLOCK_N / 32; ++piece) {
        char *buffer = staging + piece % 2 * BUFFER_BYTES;
        // The copy engine must have read this buffer's last piece before it is overwritten.
        if (first) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(1 + slab) : "memory");
#pragma unroll
        for (int block = 0; block < 4; ++block)  // of 8 columns
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = row_of(warp, g, half), j = (4 * piece + block) * 4 + 2 * half;
                if (TURNED) {
                    // Half of the lanes begin with the second of their two columns: no two of a warp meet in a bank.
                    const bool second = g / 4;
                    const float x[2] = {second ? acc[j + 1] : acc[j], second ? acc[j] : acc[j + 1]};
                    char *panel = buffer + warp / 2 * PANEL_BYTES;
                    const int column = 8 * block + 2 * t;
                    *(float *)(panel + swizzled(column + second, row)) = x[0];
                    *(float *)(panel + swizzled(column + !second, row)) = x[1];
                } else {
                    *(float2 *)(buffer + swizzled(row, 8 * block + 2 * t)) = make_float2(acc[j], acc[j + 1]);
                }
            }
        // These writes become visible to the copy engine before it reads them.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(1 + slab) : "memory");
        if (first) {
            const int m = tile.m + 64 * slab, n = tile.n + 32 * piece;
            const u32 from = shared_address(buffer);
            if (TURNED) {
                store_box(c_map, from, m, n, tile.inner, tile.outer);
                store_box(c_map, from + PANEL_BYTES, m + 32, n, tile.inner, tile.outer);
            } else {
                store_box(c_map, from, n, m, tile.inner, tile.outer);
            }
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
}

__device__ __forceinline__ void consume(const TensorMap *c_map, const Sizes &s, const char *ring, u32 full, u32 empty,
                                        char *staging, int slab) {
    const int slices = (s.K + BLOCK_K - 1) / BLOCK_K;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const Lane place = place_lane(warp, lane);
    u32 stage = 0, phase = 0, held = 0;
    float acc[ACCUMULATORS];
    Fragments even, odd;

    // Start the products of a slice. Those of the one before are then done, and it may be refilled.
    auto multiply = [&](Fragments &f, bool fresh) {
        wait_barrier(full + 8 * stage, phase);
        const char *slice = ring + stage * STAGE_BYTES;
        fetch(f, slice + slab * 2 * PANEL_BYTES, place);
        const u32 columns = shared_address(slice + R_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < 4; ++step)
            multiply_step(acc, f.x[step][0], f.x[step][1], f.x[step][2], f.x[step][3], describe_lines(columns + 32 * step),
                          !fresh || step > 0);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (!fresh) {
            wait_products<1>();
            if (lane == 0) arrive(empty + 8 * held);
        }
        held = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
    };

    Walk walk = begin_walk();
    Tile tile;
    for (int item = blockIdx.x; locate(item, walk, tile, s, 0, 0); item += gridDim.x) {
        multiply(even, true);
        int slice = 1;
#pragma unroll 1
        for (; slice + 1 < slices; slice += 2) {
            multiply(odd, false);
            multiply(even, false);
        }
        if (slice < slices) multiply(odd, false);
        wait_products<0>();
#pragma unroll
        for (int j = 0; j < ACCUMULATORS; ++j) asm volatile("" : "+f"(acc[j])::"memory");
        if (lane == 0) arrive(empty + 8 * held);
        store(acc, c_map, tile, slab, warp, lane, staging);
    }
    // Shared memory outlives the copy engine's reads of it.
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_hopper_registers(const __grid_constant__ TensorMap r_map, const __grid_constant__ TensorMap s_map,
                        const __grid_constant__ TensorMap c_map, const __grid_constant__ Sizes sizes) {
    extern __shared__ __align__(1024) char shared[];
    char *staging = shared + STAGES * STAGE_BYTES;
    const u32 ring = shared_address(shared);
    const u32 full = shared_address(staging + CONSUMERS * 2 * BUFFER_BYTES), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(full + 8 * stage, 1);
            init_barrier(empty + 8 * stage, 4 * CONSUMERS);
        }
        // The copy engine must see the barriers before it signals them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    release_successor();
    const int group = uniform(threadIdx.x / 128);
    if (group == 0) {
        if (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (uniform(threadIdx.x / 32) == 0 && elect_one()) {
            // Orders the loads after the kernels that wrote the operands.
            wait_for_predecessor();
            produce(&r_map, &s_map, sizes, ring, full, empty);
        }
        __syncwarp();
    } else {
        if (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        // Kernels ahead may still use what is written.
        wait_for_predecessor();
        consume(&c_map, sizes, shared, full, empty, staging + (group - 1) * 2 * BUFFER_BYTES, group - 1);
    }
}
