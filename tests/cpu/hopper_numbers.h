// Numbers and words of CUDA C++ on a CPU: types, keywords, and what one thread makes of bits and floats by itself.
// 16-bit floats are FP16, or with BF16 that; e4m3 has no infinity.

#include <algorithm>
#include <cmath>
#include <cstring>

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef long long i64;
#undef INFINITY
#ifndef ELEMENT_BYTES
#define ELEMENT_BYTES 2
#endif
constexpr int DEPTH = 32 / ELEMENT_BYTES;  // K of a wgmma
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(n)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __nanosleep(n)
#define __fdividef(x, y) ((x) / (y))
#define __log2f log2f
using std::max;
using std::min;

struct uint4 { u32 x, y, z, w; };
struct float4 { float x, y, z, w; };
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __int_as_float(u32 x) { float y; memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(u32 x) { return __int_as_float(x); }
inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
inline u32 __byte_perm(u32 a, u32 b, u32 chosen) {
  const u64 both = a | (u64)b << 32;
  u32 y = 0;
  for (int i = 0; i < 4; ++i) y |= (u32)(both >> (chosen >> 4 * i & 7) * 8 & 255) << 8 * i;
  return y;
}

inline float exp2_fast(float x) { return exp2f(x); }
inline float reciprocal(float x) { return 1 / x; } inline float least(float x, float y) { return x < y || x != x ? x : y; }
inline u16 narrow(float x) {
#if BF16
  u32 y;
  memcpy(&y, &x, 4);
  return (y & 0x7f800000) == 0x7f800000 ? y >> 16 : (y + 0x7fff + (y >> 16 & 1)) >> 16;
#else
  const _Float16 half = x;
  u16 y;
  memcpy(&y, &half, 2);
  return y;
#endif
}
inline float widen(u16 x) {
#if BF16
  return __uint_as_float((u32)x << 16);
#else
  _Float16 y;
  memcpy(&y, &x, 2);
  return y;
#endif
}
inline float low_half(u32 x) { return widen(x & 0xffff); }
inline u32 pack(float low, float high) { return narrow(low) | (u32)narrow(high) << 16; }
inline float widen_float8(unsigned char x) {
  const int exponent = x >> 3 & 15, mantissa = x & 7;
  const float size = (x & 127) == 127 ? NAN : exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
  return x & 128 ? -size : size;
}
#if OPERAND_S8
inline float widen_byte(signed char x) { return x; }
#else
inline float widen_byte(unsigned char x) { return widen_float8(x); }
#endif
inline u32 narrow_float8(float x) {  // of a weight: to nearest, ties to even, at most 448
  if (!(x >= 0)) return 127;
  u32 low = 0, high = 126;
  while (high - low > 1) (widen_float8((low + high) / 2) <= x ? low : high) = (low + high) / 2;
  const float below = x - widen_float8(low), above = widen_float8(high) - x;
  return below < above || (below == above && low % 2 == 0) ? low : high;
}
inline u32 pack_float8(float a, float b, float c, float d) {
  return narrow_float8(a) | narrow_float8(b) << 8 | narrow_float8(c) << 16 | narrow_float8(d) << 24;
}
