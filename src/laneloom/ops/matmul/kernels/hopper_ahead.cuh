// Of hopper_precise.cu and hopper_registers.cu: what a CTA asks the L2 for while it waits for the kernel ahead, of FETCHED of
// its first slices. Behind device/hopper.cuh.

// A box to the address `to` in shared memory, or, without a ring, no further than the L2.
template <bool TO_RING>
__device__ __forceinline__ void bring_box(const TensorMap *map, u32 to, u32 barrier, int x, int y, int z, int w) {
    if (TO_RING) load_box(map, to, barrier, x, y, z, w);
    else fetch_box(map, x, y, z, w);
}

// Calls ask(of_a, i) for what this CTA asks for of A and of B, by the number of a slice. CTAs that begin `alike` have the
// same slices of A along a row of tiles, and each asks for some of them; likewise B down a column.
template <class Ask>
__device__ __forceinline__ void fetch_first(const Tile &tile, const Sizes &s, int slices, bool alike, const Ask &ask) {
    const int fetched = min(FETCHED, slices);
    const int columns = alike ? (s.N + BLOCK_N - 1) / BLOCK_N : 1, rows = alike ? (s.M + BLOCK_M - 1) / BLOCK_M : 1;
    for (int i = alike ? tile.n / BLOCK_N : 0; i < fetched; i += columns) ask(true, i);
    for (int i = alike ? tile.m / BLOCK_M : 0; i < fetched; i += rows) ask(false, i);
}
