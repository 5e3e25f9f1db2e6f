// C = epilogue(A B) on Hopper: clusters of CTAs that share what they load, one producer warp, warpgroups of wgmma.
//
// Memory: each CTA has a ring of STAGES K-slices of 128 bytes, filled by TMA. CLUSTER_M x CLUSTER_N neighbours in C's
// rows and columns form a cluster: CTAs of one row of tiles need the same A, so each loads a share of it and multicasts
// it to the others; likewise B down a column. A slice is refilled once every consumer that its loads reach is done.
// CLUSTER_K of a cluster's CTAs have a part of K each, and then exchange sums: FINISHERS of them finish a part of the
// columns each.
// With K_PARTS > 1 C is that many parts of a product, side by side, which a second launch adds up.
// With SWAPPED the product is C^T = B^T A^T: what is A here is B^T, what is B here A^T, and C is turned on its way out.
// With PIECES > 1 a slice holds that many pieces of each operand (see device/pieces.py), multiplied in pairs from the
// smallest to the largest.
// With K_GROUPED every product of the batch has a group of K, which end where `ends` says: hopper_cluster_groups.cuh.
// With UNEVEN the last tiles along N are 8 columns narrower, so that their number fills all SMs; see `locate`.
// Overlap: with HOLD_BACK > 0 a tile's last strip waits in registers, as words of C, until so many slices of the next tile
// are being multiplied. With SPLIT the first of two strips is written while the last slice of the second is multiplied.
// With OWN_TILES warpgroups have tiles of their own, in turn: one writes C while the other multiplies.
// With SCALED every slice of a row and of a column has a scale, and is summed up in FP32 as where sums of 8-bit floats are
// promoted: hopper_cluster_blocks.cuh.
// Registers: with PROMOTE > 0 the tensor cores' sums are added to FP32 sums by FADD every PROMOTE slices and start
// afresh: their own additions are less precise than FP32's.
// device/hopper.cuh, wgmma(), from hopper_cluster.py, hopper_cluster_epilogue, _store, _lanes, _ring and _multiply.cuh,
// _groups.cuh, and _sums or _blocks.cuh come in front of this text.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
matmul_hopper_cluster(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                      const __grid_constant__ TensorMap b_tail_map, const __grid_constant__ TensorMap c_map,
                      const __grid_constant__ TensorMap c_tail_map, OUT_TYPE *c,
                      const __grid_constant__ Sizes sizes, const __grid_constant__ Terms terms SCALES_PARAMETER) {
    extern __shared__ __align__(1024) char shared[];
    // Each CTA of a cluster has the same layout at the same addresses: that is what multicast and mapa lean on.
    char *staging = shared + STAGES * STAGE_BYTES;
    char *beside = staging + WARPS * PANELS * PANEL_BYTES;
    u64 *barriers = (u64 *)(beside + BESIDE_BYTES);
    const u32 ring = shared_address(shared), full = shared_address(barriers), empty = full + 8 * STAGES;
    const u32 exchanged = empty + 8 * STAGES;  // a barrier for each warp, or for each warpgroup its turns
    const u32 group = uniform(threadIdx.x / 128);
    const u32 number = cluster_rank();
    const Rank rank = {number % CLUSTER_M, number / CLUSTER_M % CLUSTER_N, number / SHARERS};
    Walk walk = begin_walk();
    Work work;
    if (threadIdx.x == 0) prefetch_map(&a_map), prefetch_map(&b_map);
    if (threadIdx.x == 128) {  // by one thread: the fence of a whole warp takes half a microsecond more
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(full + 8 * stage, 1 + 32 * SCALED);  // scales: each lane of a warp
            expect_bytes(full + 8 * stage, LOADED_BYTES);     // of its first slice, ahead of the copy engine's first box
            init_barrier(empty + 8 * stage, TILE_WARPS * NEIGHBOURS);
        }
        for (int warp = 0; CLUSTER_K > 1 && warp < WARPS; ++warp) init_barrier(exchanged + 8 * warp, 1);
        for (int slab = 0; OWN_TILES && slab < CONSUMERS; ++slab) init_barrier(exchanged + 8 * slab, TILE_WARPS);
        // The copy engines of the cluster must see the barriers before they signal them.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (PEERS > 1) cluster_arrive();
    // While others arrive; not before kernels ahead have written where groups end.
    if (!READS_ENDS && (threadIdx.x == 0 || (FETCHED && threadIdx.x == FETCHER * 32)))
        work.find(blockIdx.x / PEERS, walk, sizes, rank);
    __syncwarp();
    if (PEERS > 1) cluster_wait();
    else __syncthreads();
    if (group == 0) {
        if (HANDS_OVER) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        const u32 warp = uniform(threadIdx.x / 32);
        const Loads loads(&a_map, &b_map, &b_tail_map, rank);
        if (warp == 0) produce(loads, sizes, ring, full, empty, rank, walk, work);
#if FETCHED
        if (!READS_ENDS && warp == FETCHER) fetch(loads, sizes, work);
#endif
#if SCALED
        if (warp == 1)
            bring_scales(scales, sizes, (float *)beside, full, empty, rank, begin_walk());
#endif
        __syncwarp();
    } else {
        if (!RELEASE_LATE) release_successor();
        if (HANDS_OVER && CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (HANDS_OVER && CONSUMERS == 3) asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
        const u32 slab = group - 1, warp = 4 * slab + uniform(threadIdx.x / 32 % 4);
        // The epilogue reads and writes what kernels ahead may still use.
        wait_for_predecessor();
        // Where few CTAs run, launches that wait would share their SMs with each other, and leave others idle.
        if (RELEASE_LATE) release_successor();
        consume({&c_map, &c_tail_map}, c, sizes, ring, full, empty, staging + warp * PANELS * PANEL_BYTES,
                beside + warp * (CLUSTER_K - 1) * PART_BYTES, exchanged + (OWN_TILES ? 0 : 8 * warp), slab, rank, terms);
    }
    // A CTA's shared memory outlives the sums that it sends.
    if (CLUSTER_K > 1) cluster_meet();
}
