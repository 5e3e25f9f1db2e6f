// What hopper_cluster.cu does with slices of K in which a group begins or ends: the copy engine brings its neighbours too.

// Of a tile's elements along K, of C's rows or columns, those from `first` up to `end` stay, the others become zeros.
template <bool ALONG_K>
__device__ __forceinline__ void keep_only(u32 tile, int rows, int first, int end) {
    const int thread = threadIdx.x % 128;
    if (ALONG_K) {  // rows of 128 bytes, whose pieces of 16 are swizzled
        for (int i = thread; i < rows * 32; i += 128) {
            const int row = i / 32, word = i % 32;
            // Bits of the word in front of the first element that stays, and in front of the end.
            const int low = 8 * (first * ELEMENT_BYTES - 4 * word), high = 8 * (end * ELEMENT_BYTES - 4 * word);
            const u32 below = high >= 32 ? ~0u : high > 0 ? (1u << high) - 1 : 0;
            const u32 lost = low >= 32 ? ~0u : low > 0 ? (1u << low) - 1 : 0;
            const u32 kept = below & ~lost, at = tile + row * 128 + (((word / 4) ^ (row & 7)) << 4) + word % 4 * 4;
            if (kept == ~0u) continue;
            u32 x = 0;
            if (kept) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
            x &= kept;
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
        }
    } else {  // panels of BLOCK_K rows of K
        for (int panel = 0; panel < rows / 64; ++panel)
            for (int i = thread; i < BLOCK_K * 16; i += 128)
                if (i / 16 < first || i / 16 >= end)
                    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(tile + panel * (BLOCK_K * 128) + 8 * i), "r"(0),
                                 "r"(0) : "memory");
    }
}

// By the four warps of a consumer: its rows of A, which are number `rows` of the tile's, and B, where others that multiply
// the tile write the same.
__device__ __forceinline__ void clear_others(u32 slice, u32 slab, u32 rows, const GroupOfK &group, int number) {
    const int first = max(group.before - number * BLOCK_K, 0), end = min(group.extent - number * BLOCK_K, BLOCK_K);
    keep_only<!A_IS_KM>(slice + rows * (SLAB * 128), SLAB, first, end);
    keep_only<B_IS_NK>(slice + A_BYTES, B_COLUMNS, first, end);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // before the tensor cores read
    asm volatile("bar.sync %0, 128;" ::"r"(1 + slab) : "memory");
}
