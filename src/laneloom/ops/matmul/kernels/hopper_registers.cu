// D = R S^T in TF32 on Hopper, R an operand in registers. wgmma takes TF32 from shared memory along K only, but its first
// operand from registers: those may be read from shared memory in any order, and be cut into pieces on the way. PIECES 2:
// x = near + rest, both TF32, and D = R.rest S.near + R.near S.rest + R.near S.near.
//
// One warp fills a ring of slices of 32 k by TMA: each operand in lines of 32 k, or in panels of 32 rows or columns of D,
// a line of 128 bytes for each k. The warps beside it turn S's panels into lines of 32 k and cut S into pieces.
// Warpgroups of 64 rows of D fetch R's fragments of the next slice while wgmma multiplies this one. TURNED: D is C's
// transpose. SPLIT: tiles are cut along K; C has a part of the sums behind the other, which the next launch adds up.
// device/hopper.cuh, hopper_ahead.cuh, hopper_registers_feed.cuh and multiply_step(), a wgmma, come in front of this text.

// What one thread gives wgmma of a slice of R: registers of each step of 8 k. Lane (g, t) = (lane / 4, lane % 4) holds the
// rows g and g + 8 of its warp's 16 at t and t + 4.
struct Fragments { u32 near[4][4], rest[PIECES > 1 ? 4 : 1][4]; };

// Where word `x` % 32 of line `line` lies in a panel whose lines TMA has swizzled.
__device__ __forceinline__ int swizzled(int line, int x) {
    return line * 128 + ((x % 32 / 4) ^ (line & 7)) * 16 + x % 4 * 4;
}

// Which of its slab's 64 rows of D a lane holds as row g + 8 half of its warp. Of panels: the 4 rows of 16 bytes beside
// each other and those 64 bytes further, so that with the swizzle all 32 lanes read other banks.
__device__ __forceinline__ int row_of(int warp, int g, int half) {
    return R_ALONG_K ? 16 * warp + g + 8 * half : warp / 2 * 32 + g / 4 * 16 + warp % 2 * 8 + half * 4 + g % 4;
}

struct Lane { int at[R_ALONG_K ? 2 : 4]; };  // of this lane's registers in the first step of a slice

__device__ __forceinline__ Lane place_lane(int warp, int lane) {
    Lane result;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < (R_ALONG_K ? 2 : 4); ++i)
        result.at[i] = R_ALONG_K ? (i ? g * 16 : row_of(warp, g, 0) * 128 + t * 4)
                                 : warp / 2 * PANEL_BYTES + swizzled(t + i / 2 * 4, row_of(warp, g, i % 2));
    return result;
}

__device__ __forceinline__ void fetch(Fragments &f, const char *slab, const Lane &lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = R_ALONG_K ? lane.at[0] + (lane.at[1] ^ (2 * step + i / 2) * 16) + i % 2 * 8 * 128
                                     : lane.at[i] + step * 8 * 128;
            const u32 bits = *(const u32 *)(slab + at);
            f.near[step][i] = PIECES > 1 ? near_bits(bits) : bits;
            if (PIECES > 1) f.rest[step][i] = rest_bits(bits, f.near[step][i]);
        }
}

template <int OUTSTANDING> __device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OUTSTANDING) : "memory");
}

// sums += R S^T of one slice, pieces of which are given.
__device__ __forceinline__ void multiply_pieces(float (&acc)[SUMS], const u32 (&r)[4][4], u32 s, bool fresh) {
    // wgmma's description of lines of 128 bytes along K, swizzled.
    const auto describe = [](u32 at) { return (u64)(1u << 30 | 1024 >> 4) << 32 | (1u << 16 | at >> 4); };
#pragma unroll
    for (int step = 0; step < 4; ++step)
        multiply_step(acc, r[step][0], r[step][1], r[step][2], r[step][3], describe(s + 32 * step),
                      !fresh || step > 0);
}

#if TMA_STORE
// Write 64 rows of D, 32 columns at a time: through shared memory, swizzled as the copy engine expects.
__device__ __forceinline__ void store(const float (&sums)[SUMS], const TensorMap *c_map, float *, const Sizes &,
                                      const Tile &tile, int slab, int warp, int lane, char *staging) {
    const int g = lane / 4, t = lane % 4;
    const bool first = threadIdx.x % 128 == 0;
#pragma unroll
    for (int piece = 0; piece < (BLOCK_N + 31) / 32; ++piece) {
        char *buffer = staging + piece % 2 * BUFFER_BYTES;
        // The copy engine must have read this buffer's last piece before it is overwritten: of an odd number of pieces the
        // last tile's newest one lies in the same buffer as this tile's first.
        if (first && (BLOCK_N + 31) / 32 % 2) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        else if (first) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(2 + slab) : "memory");
#pragma unroll
        for (int block = 0; block < 4 && 4 * piece + block < BLOCK_N / 8; ++block)  // of 8 columns
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = row_of(warp, g, half), j = (4 * piece + block) * 4 + 2 * half;
                if (TURNED) {
                    // Of panels, half of the lanes begin with the second of their two columns: no two of a warp meet in
                    // a bank.
                    const bool second = !R_ALONG_K && g / 4;
                    const float x[2] = {second ? sums[j + 1] : sums[j], second ? sums[j] : sums[j + 1]};
                    char *panel = buffer + warp / 2 * PANEL_BYTES;
                    const int column = 8 * block + 2 * t;
                    *(float *)(panel + swizzled(column + second, row)) = x[0];
                    *(float *)(panel + swizzled(column + !second, row)) = x[1];
                } else {
                    *(float2 *)(buffer + swizzled(row, 8 * block + 2 * t)) = make_float2(sums[j], sums[j + 1]);
                }
            }
        // These writes become visible to the copy engine before it reads them.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(2 + slab) : "memory");
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
#else
// Write 64 rows of D, each lane what it holds.
__device__ __forceinline__ void store(const float (&sums)[SUMS], const TensorMap *, float *c, const Sizes &s,
                                      const Tile &tile, int slab, int warp, int lane, char *) {
    c += tile.outer * s.c_outer + tile.inner * s.c_inner;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int m = tile.m + 64 * slab + row_of(warp, lane / 4, half);
#pragma unroll
        for (int j = 2 * half; j < SUMS; j += 4) {
            const int n = tile.n + 2 * j - 4 * half + lane % 4 * 2;
            float *to = c + m * s.c_m + n * s.c_n;
            if (m < s.M && n < s.N) to[0] = sums[j];
            if (m < s.M && n + 1 < s.N) to[s.c_n] = sums[j + 1];
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_hopper_registers(const __grid_constant__ TensorMap r_map, const __grid_constant__ TensorMap s_map,
                        const __grid_constant__ TensorMap c_map, float *c, const __grid_constant__ Sizes sizes, int each) {
    extern __shared__ __align__(1024) char shared[];
    char *staging = shared + STAGES * STAGE_BYTES;
    const u32 barriers = shared_address(staging + (TMA_STORE ? SLABS * 2 * BUFFER_BYTES : 0));
    const Ring ring = {shared_address(shared), barriers, barriers + 8 * STAGES, barriers + 16 * STAGES};
    const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    Work work;
    if (!FETCHED && threadIdx.x == 32 * CONSUMER_WARPS) prefetch_map(&r_map), prefetch_map(&s_map);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(ring.full + 8 * stage, 1);
            init_barrier(ring.empty + 8 * stage, CONSUMER_WARPS);
            if (CUT) init_barrier(ring.cut + 8 * stage, CUTTERS / 32);
        }
        // The copy engine must see the barriers before it signals them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // Meanwhile. By the lane that is elected each time: what all have would be computed in uniform registers, which is slow.
    if (warp >= CONSUMER_WARPS && elect_one()) work.find(0, sizes, each);
    __syncthreads();
    release_successor();
    if (warp >= CONSUMER_WARPS) {
        if (SLABS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S_ALONG_K ? 40 : 56));
        const Operands operands(&r_map, &s_map, work.tile, sizes);
        if (warp == CONSUMER_WARPS) {
            if (elect_one()) produce(operands, sizes, each, ring, work);
        } else {  // or 3xTF32 is 5% slower
            if (FETCHED && warp == CONSUMER_WARPS + 1 && elect_one()) fetch(operands, sizes, work);
            if (CUT) cut(sizes, each, shared, ring, threadIdx.x - 32 * CONSUMER_WARPS - 32);
        }
        wait_for_predecessor();  // who brings nothing does not end sooner
        return;
    }
    if (SLABS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S_ALONG_K ? 232 : 224));
    wait_for_predecessor();  // which may still use C
    const int slab = warp / 4;
    staging += slab * 2 * BUFFER_BYTES;
    const Lane place = place_lane(warp % 4, lane);
    u32 stage = 0, phase = 0;
    float acc[SUMS];
    Fragments even, odd;
#if PIECES > 1
    float sums[SUMS];
#else
    float(&sums)[SUMS] = acc;
#endif
    // What wgmma has computed may be read now. The tensor cores cut the last bits of their sums off, so those of pieces move
    // on after each slice.
    const auto settle = [&] {
#pragma unroll
        for (int j = 0; j < SUMS; ++j) {
            asm volatile("" : "+f"(acc[j])::"memory");
#if PIECES > 1
            sums[j] += acc[j];
#endif
        }
    };
    const auto release = [&](u32 done) {
        if (lane == 0) arrive(ring.empty + 8 * done);
    };
    const auto begin_slice = [&](Fragments &f, bool is_there) {
        if (is_there) wait_barrier(ring.full + 8 * stage, phase);
        fetch(f, shared + stage * STAGE_BYTES + slab * 2 * PANEL_BYTES, place);
    };
    const auto columns = [&] { return ring.slices + stage * STAGE_BYTES + R_BYTES; };
#if PIECES > 1
    // Multiply a slice whose fragments are there, and fetch those of the next.
    const auto multiply = [&](Fragments &f, Fragments &next, bool more) {
        wait_barrier(ring.cut + 8 * stage, phase);
        // Warpgroups take turns: while one waits for its products, adds them and fetches, the other one multiplies.
        if (SLABS > 1) asm volatile("bar.sync %0, 256;" ::"r"(4 + slab) : "memory");
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        multiply_pieces(acc, f.rest, columns(), true);
        multiply_pieces(acc, f.near, columns() + S_BYTES, false);
        // The other one begins while the last products are still to come.
        if (SLABS > 1) asm volatile("bar.arrive %0, 256;" ::"r"(5 - slab) : "memory");
        multiply_pieces(acc, f.near, columns(), false);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        const u32 here = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
        begin_slice(next, more);  // without more what is fetched is not used
        wait_products<0>();
        release(here);
        settle();
    };
    const auto multiply_slices = [&](int slices) {
#pragma unroll
        for (int j = 0; j < SUMS; ++j) sums[j] = 0;
        begin_slice(even, true);
#pragma unroll 1
        for (int slice = 1;; slice += 2) {
            multiply(even, odd, slice < slices);
            if (slice >= slices) break;
            multiply(odd, even, slice + 1 < slices);
            if (slice + 1 >= slices) break;
        }
    };
#else
    // Start the products of a slice. Those of the one before are then done, and it may be refilled.
    u32 held = 0;
    const auto multiply = [&](Fragments &f, bool fresh) {
        begin_slice(f, true);
        if (CUT) wait_barrier(ring.cut + 8 * stage, phase);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        multiply_pieces(acc, f.near, columns(), fresh);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (!fresh) {
            wait_products<1>();
            release(held);
        }
        held = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    const auto multiply_slices = [&](int slices) {
        multiply(even, true);
        int slice = 1;
#pragma unroll 1
        for (; slice + 1 < slices; slice += 2) {
            multiply(odd, false);
            multiply(even, false);
        }
        if (slice < slices) multiply(odd, false);
        wait_products<0>();
        settle();
        release(held);
    };
#endif
    if (PIECES > 1 && SLABS > 1 && slab == 1) asm volatile("bar.arrive 4, 256;" ::: "memory");
    Walk walk = begin_walk();
    Tile tile;
    Share share;
    for (int n = 0; find_share(n, share, sizes, each); ++n) {
        multiply_slices(uniform(share.last - share.first));
        locate(share.item, walk, tile, sizes, 0, 0);
        if (SPLIT) tile.inner = share.part;
        store(sums, &c_map, c, sizes, tile, slab, warp % 4, lane, staging);
    }
    if (PIECES > 1 && SLABS > 1 && slab == 0) asm volatile("bar.sync 4, 256;" ::: "memory");
    // Shared memory outlives the copy engine's reads of it.
    if (TMA_STORE && threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
