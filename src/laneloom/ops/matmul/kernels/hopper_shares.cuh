// Of hopper_stream.cu and hopper_precise.cu: which slices of which tiles a CTA multiplies. Tiles that would not fill a last
// round are cut along K, so that every CTA multiplies as many slices as any other ("stream-K"), and the parts of a tile
// meet in memory; or all tiles are cut into the same parts, which lie side by side for a second launch to add up.
// Source: Osama, Merrill, Cecka et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
// Multiplication on the GPU".

#define CONSUMER_WARPS (WARPS_M * WARPS_N)
#define CONSUMERS (32 * CONSUMER_WARPS)

// What CUT can be, or 0. SHARES: of the tiles behind the first `whole`, CTA `rank` takes the slices from begin_of(rank) to
// begin_of(rank + 1); then every gridDim.x-th of the whole ones. PARTS: the parts of K stand where a batch's products do.
#define SHARES 1
#define PARTS 2

struct Piece { int item, first, last; };  // slices of a tile

// Shares differ by one slice at most. All fits 32 bits: a division of 64 bits would be a call.
__device__ __forceinline__ int begin_of(int rank, int shared_slices) {
    const int ctas = gridDim.x;
    return rank * (shared_slices / ctas) + min(rank, shared_slices % ctas);
}

__device__ __forceinline__ int slices_of(const Sizes &s) { return (s.K + BLOCK_K - 1) / BLOCK_K; }

// A CTA that waits for a part waits for one of a lower number, which computes it before all else: whichever CTAs the GPU
// has room for, the lowest can go on.
__device__ __forceinline__ int rank_here() { return gridDim.x - 1 - blockIdx.x; }

// The piece of number n of this CTA, if there is one. It keeps nothing from piece to piece: registers are short.
__device__ __forceinline__ bool find_piece(int n, Piece &piece, const Sizes &s, int whole, int parts) {
    const int slices = slices_of(s);
    if (!CUT) {
        piece = {(int)(blockIdx.x + n * gridDim.x), 0, slices};
        return piece.item < s.items;
    }
    if (CUT == PARTS) {
        const int item = blockIdx.x + n * gridDim.x, part = item / (s.items / parts), most = (slices + parts - 1) / parts;
        piece = {item, part * most, min(part * most + most, slices)};
        return item < s.items;
    }
    const int shared_slices = (s.items - whole) * slices;
    const int begin = begin_of(rank_here(), shared_slices), end = begin_of(rank_here() + 1, shared_slices);
    const int first_tile = begin / slices, tiles = (end + slices - 1) / slices - first_tile;
    if (n < tiles) {
        const int before = (first_tile + n) * slices;
        piece = {whole + first_tile + n, max(begin - before, 0), min(end - before, slices)};
        return true;
    }
    piece = {(int)blockIdx.x + (n - tiles) * (int)gridDim.x, 0, slices};
    return piece.item < whole;
}

__device__ __forceinline__ void meet_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// `launch` is a number that memory holds by no chance: what it was before says that nothing is there yet.
__device__ __forceinline__ void publish(u64 *flag, u64 launch) {
    meet_consumers();
    if (threadIdx.x == 0) {
        __threadfence();
        asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(launch) : "memory");
    }
}

// Wait for what `publish` says.
__device__ __forceinline__ void await_part(u64 *flag, u64 launch) {
    if (threadIdx.x == 0) {
        u64 found;
        do {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(flag) : "memory");
        } while (found != launch);
        *flag = ~launch;  // a graph launches with the same number again
    }
    meet_consumers();
}

