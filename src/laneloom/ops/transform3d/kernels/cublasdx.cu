// Level 5: the three passes c[i, j] = sum_k a[k, i] b[k, j] (i < K^2, j < K) by cuBLASDx, tensors in shared memory.
//
// One CTA per tensor. A pass reads one buffer and writes the other: [k][i] is a column-major K^2 x K operand, [i][j] a
// row-major result, which is the next pass's [k][i].
//
// Compile-time constants: ORDER (K; the headers use that name themselves), THREADS.

#include <cublasdx.hpp>

using Product = decltype(cublasdx::Size<ORDER * ORDER, ORDER, ORDER>() + cublasdx::Precision<double>() +
                         cublasdx::Type<cublasdx::type::real>() + cublasdx::Function<cublasdx::function::MM>() +
                         cublasdx::Arrangement<cublasdx::col_major, cublasdx::row_major, cublasdx::row_major>() +
                         cublasdx::SM<900>() + cublasdx::Block() + cublasdx::BlockDim<THREADS>());

extern "C" __global__ void __launch_bounds__(THREADS)
    transform3d_cublasdx(const double* __restrict__ x, const double* __restrict__ matrix, double* __restrict__ out) {
  extern __shared__ __align__(16) unsigned char shared[];
  double* front = (double*)shared;
  double* back = front + ORDER * ORDER * ORDER;
  double* b = back + ORDER * ORDER * ORDER;
  const long long base = (long long)blockIdx.x * (ORDER * ORDER * ORDER);
  for (int i = threadIdx.x; i < ORDER * ORDER * ORDER; i += THREADS) front[i] = x[base + i];
  for (int i = threadIdx.x; i < ORDER * ORDER; i += THREADS) b[i] = matrix[i];
  __syncthreads();
  for (int pass = 0; pass < 3; ++pass) {
    Product().execute(1.0, front, b, 0.0, back);
    __syncthreads();
    double* done = front;
    front = back;
    back = done;
  }
  for (int i = threadIdx.x; i < ORDER * ORDER * ORDER; i += THREADS) out[base + i] = front[i];
}
