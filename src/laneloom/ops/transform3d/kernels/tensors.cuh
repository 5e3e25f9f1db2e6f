// What flat.cu and fma.cu share: a CTA's tensors come whole into shared memory, as VALUEs. It comes in front of their text.

#define ROW (K * PARTS)
#define PLANE (K * ROW)
#define MATRICES (SAME_MATRIX ? 1 : 3)
#define X_BYTES ((GROUP * K * PLANE * (int)sizeof(VALUE) + 15) / 16 * 16)

typedef unsigned int u32;
typedef long long i64;

enum Axis { ALONG_C, ALONG_B, ALONG_A };

// By all threads: `count` tensors, which are there after the next __syncthreads() and `wait_for_tensors`.
__device__ __forceinline__ void load_tensors(VALUE* tensors, const VALUE* src, int count, i64 stride_x, u32 loaded) {
#if BULK
  // Tensors side by side are one piece, whose last few bytes may be less than a bulk copy moves (odd K).
  const bool dense = stride_x == K * PLANE;
  const int values = (dense ? count : 1) * K * PLANE, copied = values - values % (16 / (int)sizeof(VALUE));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(loaded));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(loaded),
                 "r"((dense ? 1 : count) * copied * (int)sizeof(VALUE))
                 : "memory");
    for (int i = 0; i < (dense ? 1 : count); ++i)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              (u32)__cvta_generic_to_shared(tensors + i * K * PLANE)),
          "l"(src + i * stride_x), "r"(copied * (int)sizeof(VALUE)), "r"(loaded)
          : "memory");
  }
  for (int i = copied + threadIdx.x; i < values; i += WARPS * 32) tensors[i] = src[i];
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

