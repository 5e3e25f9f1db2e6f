// Levels 1 to 4: three passes c[i * K + j] = sum_k a[k * K^2 + i] b[k * K + j], each through device memory.
//
// A CTA takes tensors in turn; X -> out -> work -> out, `work` one tensor per CTA. The levels differ in one function:
//   1  everything from global memory, one thread per element of c, column j fastest
//   2  b in shared memory
//   3  + one thread per row i, the whole output row in registers
//   4  FP64 matrix instructions m16n8k4, a from global memory, b in shared memory
//
// Compile-time constants: K, LEVEL, THREADS.

#define K2 (K * K)
#define K3 (K * K * K)

typedef long long i64;

#if LEVEL == 1 || LEVEL == 2
__device__ __forceinline__ void multiply(const double* a, const double* b, double* c) {
  for (int element = threadIdx.x; element < K3; element += THREADS) {
    const int i = element / K, j = element % K;
    double sum = 0.0;
    for (int k = 0; k < K; ++k) sum += a[k * K2 + i] * b[k * K + j];
    c[element] = sum;
  }
}
#elif LEVEL == 3
__device__ __forceinline__ void multiply(const double* a, const double* b, double* c) {
  for (int i = threadIdx.x; i < K2; i += THREADS) {
    double row[K] = {};
    for (int k = 0; k < K; ++k) {
      const double x = a[k * K2 + i];
#pragma unroll
      for (int j = 0; j < K; ++j) row[j] += x * b[k * K + j];
    }
#pragma unroll
    for (int j = 0; j < K; ++j) c[i * K + j] = row[j];
  }
}
#else
// A[lane / 4 (+ 8)][lane % 4], B[lane % 4][lane / 4], C[lane / 4 (+ 8)][2 (lane % 4) (+ 1)].
__device__ __forceinline__ void multiply(const double* a, const double* b, double* c) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  for (int m = threadIdx.x / 32 * 16; m < K2; m += THREADS / 32 * 16)
    for (int n = 0; n < K; n += 8) {
      double acc[4] = {};
      for (int k = 0; k < K; k += 4) {
        const bool k_ok = k + q < K;
        const double a0 = k_ok && m + g < K2 ? a[(k + q) * K2 + m + g] : 0.0;
        const double a1 = k_ok && m + g + 8 < K2 ? a[(k + q) * K2 + m + g + 8] : 0.0;
        const double b0 = k_ok && n + g < K ? b[(k + q) * K + n + g] : 0.0;
        asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
            : "+d"(acc[0]), "+d"(acc[1]), "+d"(acc[2]), "+d"(acc[3])
            : "d"(a0), "d"(a1), "d"(b0));
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = m + g + e / 2 * 8, j = n + 2 * q + e % 2;
        if (i < K2 && j < K) c[i * K + j] = acc[e];
      }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    transform3d_level(const double* x, const double* matrix, double* out, double* work, i64 n) {
#if LEVEL == 1
  const double* b = matrix;
#else
  __shared__ double b[K2];
  for (int i = threadIdx.x; i < K2; i += THREADS) b[i] = matrix[i];
  __syncthreads();
#endif
  work += (i64)blockIdx.x * K3;
  for (i64 t = blockIdx.x; t < n; t += gridDim.x) {
    multiply(x + t * K3, b, out + t * K3);
    __syncthreads();  // a pass reads what all threads of the one before wrote
    multiply(out + t * K3, b, work);
    __syncthreads();
    multiply(work, b, out + t * K3);
    __syncthreads();
  }
}
