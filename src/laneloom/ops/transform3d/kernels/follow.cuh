// How launches of fused.cu, flat.cu and fma.cu follow each other. It comes in front of their text.
// Source: PTX ISA, `griddepcontrol`, `cp.async.bulk.prefetch`.

#define MATRICES (SAME_MATRIX ? 1 : 3)

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Programmatic dependent launch: the next kernel's CTAs may take their places when all of this one have said so or ended;
// what follows comes after the kernels ahead. Every thread waits before it touches memory or ends: a grid that ended before
// the one ahead of it would let the one behind begin. Pointers to what kernels ahead may write are not `__restrict__`: the
// compiler would take it for constant, and may load it before the wait.
__device__ __forceinline__ void release_successor() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Bring what lies there in whole 16 bytes no further than the L2. That reads nothing, so it may come before
// `wait_for_predecessor`: what a kernel ahead still writes, it writes in the L2.
__device__ __forceinline__ void fetch(const VALUE* from, int values) {
  const int skipped = -(u32)(u64)from & 15, bytes = (values * (int)sizeof(VALUE) - skipped) & ~15;
  if (bytes > 0)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const char*)from + skipped), "r"(bytes) : "memory");
}

// Whether a CTA's tensors of so many values each are one piece.
__device__ __forceinline__ bool side_by_side(i64 stride_x, int values) { return GROUP == 1 || stride_x == values; }

// By all threads, before they touch global memory. `values`: of this CTA in each of `count` tensors; `resident`: CTAs that
// the GPU holds at once. Those are the ones that come while kernels ahead drain, so the others ask for nothing.
__device__ __forceinline__ void follow_kernels_ahead(const VALUE* src, int count, int values, i64 stride_x,
                                                     const VALUE* matrix, i64 stride_axis, i64 stride_k, i64 stride_n,
                                                     int resident) {
  // The last CTAs of several waves give their places to the next launch's first ones. Few CTAs let them in later: CTAs of
  // several launches would share SMs, and leave others idle.
  const bool waves = (int)gridDim.x > resident;
  if (waves) release_successor();
  if ((int)blockIdx.x < (resident + 1) / 2) {
    if (threadIdx.x == 0) {
      const bool dense = side_by_side(stride_x, values);
#pragma unroll 1  // several at once would take more registers than all that follows
      for (int i = 0; i < (dense ? 1 : count); ++i) fetch(src + i * stride_x, (dense ? count : 1) * values);
    }
    if (blockIdx.x == 0) {  // for all
#pragma unroll 1
      for (int i = threadIdx.x; i < MATRICES * K * K; i += WARPS * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(matrix + i / (K * K) * stride_axis + i / K % K * stride_k + i % K * stride_n)
                     : "memory");
    }
  }
  wait_for_predecessor();
  if (!waves) release_successor();
}
