// Numbers of 16 bits, two in a register, as FP32. It comes after attention_hopper.cuh. Compile-time constant: BF16.

__device__ __forceinline__ float low_half(u32 x) {
#if BF16
  return __uint_as_float(x << 16);
#else
  float y;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}" : "=f"(y) : "r"(x));
  return y;
#endif
}
__device__ __forceinline__ float high_half(u32 x) {
#if BF16
  return __uint_as_float(x & 0xffff0000u);
#else
  return low_half(x >> 16);
#endif
}
__device__ __forceinline__ float dot(u32 a, u32 b) { return low_half(a) * low_half(b) + high_half(a) * high_half(b); }
