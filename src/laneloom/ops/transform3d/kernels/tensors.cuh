// What flat.cu and fma.cu share: a CTA's tensors come whole into shared memory, as VALUEs. It comes in front of their text,
// behind follow.cuh.

#define ROW (K * PARTS)
#define PLANE (K * ROW)
#define X_BYTES ((GROUP * K * PLANE * (int)sizeof(VALUE) + 15) / 16 * 16)

enum Axis { ALONG_C, ALONG_B, ALONG_A };

// Tensors side by side are one piece, whose last few bytes may be less than a bulk copy moves (odd K).
__device__ __forceinline__ int count_pieces(int count, i64 stride_x) { return side_by_side(stride_x, K * PLANE) ? 1 : count; }
__device__ __forceinline__ int copied(int values) { return values - values % (16 / (int)sizeof(VALUE)); }

// The barrier, which may come before `follow_kernels_ahead`.
__device__ __forceinline__ void expect_tensors(int count, i64 stride_x, u32 loaded) {
  if (!BULK || threadIdx.x != 0) return;
  const int pieces = count_pieces(count, stride_x), values = (pieces == 1 ? count : 1) * K * PLANE;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(loaded));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(loaded), "r"(pieces * copied(values) * (int)sizeof(VALUE))
               : "memory");
}

// By all threads: `count` tensors, which are there after the next __syncthreads() and `wait_for_tensors`.
__device__ __forceinline__ void load_tensors(VALUE* tensors, const VALUE* src, int count, i64 stride_x, u32 loaded) {
#if BULK
  const int pieces = count_pieces(count, stride_x), values = (pieces == 1 ? count : 1) * K * PLANE;
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < pieces; ++i)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              (u32)__cvta_generic_to_shared(tensors + i * K * PLANE)),
          "l"(src + i * stride_x), "r"(copied(values) * (int)sizeof(VALUE)), "r"(loaded)
          : "memory");
  }
  for (int i = copied(values) + threadIdx.x; i < values; i += WARPS * 32) tensors[i] = src[i];
#else
  for (int i = threadIdx.x; i < count * K * PLANE; i += WARPS * 32) tensors[i] = src[i / (K * PLANE) * stride_x + i % (K * PLANE)];
#endif
}

__device__ __forceinline__ void wait_for_tensors(u32 loaded) {
  if (BULK)
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra again;\n}" ::"r"(
            loaded)
        : "memory");
}

