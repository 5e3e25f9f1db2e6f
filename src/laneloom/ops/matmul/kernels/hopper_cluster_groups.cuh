// What hopper_cluster.cu does with slices of K in which a group begins or ends: the copy engine brings its neighbours too.

// Of a tile's elements along K, of C's rows or columns, those from `first` up to `end` stay, the others become zeros.
template <bool ALONG_K>
__device__ __forceinline__ void keep_only(char *tile, int rows, int first, int end) {
    const int thread = threadIdx.x % 128;
    if (ALONG_K) {  // rows of 128 bytes, whose pieces of 16 are swizzled
        for (int i = thread; i < rows * 8; i += 128) {
            const int row = i / 8, piece = i % 8;
            u32 *words = (u32 *)(tile + row * 128 + ((piece ^ (row & 7)) << 4));
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                // Bits of the word in front of the first element that stays, and in front of the end.
                const int at = 16 * piece + 4 * word;
                const int low = 8 * (first * ELEMENT_BYTES - at), high = 8 * (end * ELEMENT_BYTES - at);
                const u32 below = high >= 32 ? ~0u : high > 0 ? (1u << high) - 1 : 0;
                const u32 lost = low >= 32 ? ~0u : low > 0 ? (1u << low) - 1 : 0;
                if (~below | lost) words[word] &= below & ~lost;
            }
        }
    } else {  // panels of BLOCK_K rows of K
        for (int panel = 0; panel < rows / 64; ++panel)
            for (int i = thread; i < BLOCK_K * 8; i += 128)
                if (i / 8 < first || i / 8 >= end)
                    ((uint4 *)(tile + panel * (BLOCK_K * 128)))[i] = make_uint4(0, 0, 0, 0);
    }
}

// By the four warps of a consumer: its rows of A, and B, where the other consumers write the same.
__device__ __forceinline__ void clear_others(char *slice, u32 slab, const GroupOfK &group, int number) {
    const int first = max(group.before - number * BLOCK_K, 0), end = min(group.extent - number * BLOCK_K, BLOCK_K);
    keep_only<!A_IS_KM>(slice + slab * (SLAB * 128), SLAB, first, end);
    keep_only<B_IS_NK>(slice + A_BYTES, B_COLUMNS, first, end);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // before the tensor cores read
    asm volatile("bar.sync %0, 128;" ::"r"(1 + slab) : "memory");
}
