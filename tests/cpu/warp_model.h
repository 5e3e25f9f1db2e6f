// What a warp does beside wgmma, on a CPU: products by mma, ldmatrix, votes. And small functions that kernels take from CUDA.

#include <cstdarg>

#include "hopper_model.h"

inline void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vfprintf(stderr, format, values);
  fprintf(stderr, " (CTA %d, thread %d)\n", blockIdx.x, threadIdx.x);
  abort();
}

struct float2 { float x, y; };
struct uint2 { u32 x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline u32 __float_as_uint(float x) { return __float_as_int(x); }
inline float __shfl_sync(u32 all, float x, int from) { return __uint_as_float(__shfl_sync(all, __float_as_uint(x), from)); }
inline int __shfl_up_sync(u32 all, int x, int far) {
  const int lane = threadIdx.x % 32;
  return __shfl_sync(all, x, lane < far ? lane : lane - far);
}
inline u32 __ballot_sync(u32, bool x) {
  auto& mine = next_lanes();
  mine[threadIdx.x % 32][0] = x;
  __syncwarp();
  u32 found = 0;
  for (int lane = 0; lane < 32; ++lane) found |= mine[lane][0] << lane;
  return found;
}
inline bool __any_sync(u32 all, bool x) { return __ballot_sync(all, x) != 0; }
inline int __ffs(u32 x) { return __builtin_ffs(x); }
template <class T> T __ldcg(const T *from) { return *from; }
inline void __threadfence() {}

// ldmatrix: lane l says where row l % 8 of matrix l / 8 is, and gets a word of row l / 4 of each.
inline void load_matrices(u32 at, u32& a, u32& b, u32& c, u32& d) {
  const int lane = threadIdx.x % 32;
  auto& mine = next_lanes();
  mine[lane][0] = at;
  __syncwarp();
  u32* const to[4] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; ++i) memcpy(to[i], arena + mine[i * 8 + lane / 4][0] + lane % 4 * 4, 4);
  __syncwarp();
}
// mma m16n8k16: lane l has of A pairs 2q, 2q + 1 and 2q + 8, 2q + 9 of rows g and g + 8, of B those of column g, of the sums
// columns 2q, 2q + 1 of the two rows, where g = l / 4, q = l % 4.
inline void multiply_warp(float& s0, float& s1, float& s2, float& s3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  const int lane = threadIdx.x % 32;
  auto& mine = next_lanes();
  const u32 own[6] = {a0, a1, a2, a3, b0, b1};
  memcpy(mine[lane], own, sizeof own);
  __syncwarp();
  float a[2][16], b[2][16];
  auto half = [](u32 x, int i) { return widen(x >> 16 * i & 0xffff); };
  for (int k = 0; k < 16; ++k)
    for (int r = 0; r < 2; ++r) a[r][k] = half(mine[lane / 4 * 4 + k % 8 / 2][r + k / 8 * 2], k % 2);
  for (int k = 0; k < 16; ++k)
    for (int c = 0; c < 2; ++c) b[c][k] = half(mine[(lane % 4 * 2 + c) * 4 + k % 8 / 2][4 + k / 8], k % 2);
  float* const sums[4] = {&s0, &s1, &s2, &s3};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) *sums[i] += a[i / 2][k] * b[i % 2][k];
}
