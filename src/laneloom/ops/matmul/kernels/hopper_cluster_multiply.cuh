// How the warpgroups of hopper_cluster.cu ask the tensor cores for a slice, and tell when it may be refilled.

// The sums cannot be read or written between here and the wgmmas around it, whatever the compiler believes.
template <int N>
__device__ __forceinline__ void pin(ACCUMULATOR (&acc)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) asm volatile("" : ACCUMULATOR_OPERAND(acc[j])::"memory");
}
template <int N>
__device__ __forceinline__ void pin(ACCUMULATOR (&acc)[STRIPS][N]) {
#pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip) pin(acc[strip]);
}

// What wgmma's descriptions of a consumer's tiles begin with, of the ring's first slice: those of a slice, of a piece, of a
// strip and of a step are sums with it, all in uniform registers.
struct Descriptions {
    u32 a, b;
};

__device__ __forceinline__ Descriptions describe_ring(u32 ring, u32 slab) {
    return {describe(ring + slab * (SLAB * 128), A_IS_KM ? BLOCK_K * 128 : 16),
            describe(ring + PIECES * A_BYTES, B_IS_NK ? 16 : BLOCK_K * 128)};
}

// Step `step` of four of a slice, 32 bytes of K (along a row, or, of 16-bit types, 16 rows further): a strip of A.
__device__ __forceinline__ u64 a_tile(u32 a, int strip, int step) {
    return described(a + (A_IS_KM ? strip * (BLOCK_K * 128) + 2048 * step : strip * (64 * 128) + 32 * step) / 16);
}

// The same of B.
__device__ __forceinline__ u64 b_tile(u32 b, int step) { return described(b + (B_IS_NK ? 32 : 2048) * step / 16); }

// Multiply one strip of a slice that begins `at` bytes behind the ring's first.
template <int N>
__device__ __forceinline__ void multiply_strip(ACCUMULATOR (&acc)[N], const Descriptions &of, u32 at, int strip,
                                               bool fresh) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
        wgmma(acc, a_tile(of.a + at / 16, strip, step), b_tile(of.b + at / 16, step), step == 0 ? !fresh : 1);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Multiply one slice: the products of pieces that are within the sums' precision, the smallest first.
template <int N>
__device__ __forceinline__ void multiply(ACCUMULATOR (&acc)[STRIPS][N], const Descriptions &of, u32 at, bool fresh) {
#pragma unroll
    for (int order = PIECES - 1; order >= 0; --order) {  // products of pieces i and j with i + j = order
#pragma unroll
        for (int i = 0; i <= order; ++i) {
            const u32 a = of.a + (at + i * A_BYTES) / 16, b = of.b + (at + (order - i) * B_BYTES) / 16;
            const bool first_pair = order == PIECES - 1 && i == 0;
#pragma unroll
            for (int step = 0; step < 4; ++step) {
#pragma unroll
                for (int strip = 0; strip < STRIPS; ++strip)
                    wgmma(acc[strip], a_tile(a, strip, step), b_tile(b, step), first_pair && step == 0 ? !fresh : 1);
            }
        }
    }
}

// Lanes 0 to NEIGHBOURS - 1 of each warp tell one CTA each, which multicasts to this one, that a slice is free: where. The
// other lanes' address is of no CTA, and not used.
__device__ __forceinline__ u32 freed_barrier(u32 empty, Rank rank) {
    const int lane = threadIdx.x % 32, along = lane - CLUSTER_M;
    const u32 neighbour = rank.k * SHARERS + (lane < CLUSTER_M ? rank.n * CLUSTER_M + lane
                                                               : rank.m + CLUSTER_M * (along + (along >= (int)rank.n)));
    return in_peer(empty, neighbour);
}
