// What a kernel does with pairs of 16-bit floats and with bytes of words, on matmul_model.h.

namespace ptx {

// Pairs of 16-bit floats, of kind "f16x2" or "bf16x2".
inline void pack(const char* kind, u32& y, float high, float low) {
  *kind == 'f' ? pack_halves(y, high, low) : pack_bfloats(y, high, low);
}
template <class Make> u32 by_halves(const char* kind, Make make, u32 x, u32 y, u32 w = 0) {  // to nearest, ties to even
  u32 z = 0;
  for (int i = 0; i < 32; i += 16) {
    float a = __uint_as_float(x >> i << 16), b = __uint_as_float(y >> i << 16), c = __uint_as_float(w >> i << 16);
    if (*kind == 'f') widen_half(a, x >> i), widen_half(b, y >> i), widen_half(c, w >> i);
    const double exact = make((double)a, (double)b, (double)c);
    int exponent;
    frexp(exact, &exponent);
    const int last = *kind == 'f' ? max(exponent - 11, -24) : max(exponent - 8, -133);
    const float nearest = ldexp(nearbyint(ldexp(exact, -last)), last);
    z |= (u32)(*kind == 'f' ? to_half(nearest) : to_bfloat(nearest)) << i;
  }
  return z;
}
inline void subtract(const char* kind, u32& z, u32 x, u32 y) {
  z = by_halves(kind, [](double a, double b, double) { return a - b; }, x, y);
}
inline void multiply(const char* kind, u32& z, u32 x, u32 y) {
  z = by_halves(kind, [](double a, double b, double) { return a * b; }, x, y);
}
inline void multiply_add(const char* kind, u32& z, u32 x, u32 y, u32 w) {  // exact: products have 22 bits at most
  z = by_halves(kind, [](double a, double b, double c) { return a * b + c; }, x, y, w);
}
inline void permute(u32& y, u32 a, u32 b, u32 chosen) {
  y = __byte_perm(a, b, chosen);
  for (int i = 0; i < 4; ++i)
    if (chosen >> 4 * i & 8) y = y & ~(255u << 8 * i) | (y >> 8 * i & 128 ? 255u : 0u) << 8 * i;
}
inline void and_xor(u32& y, u32 a, u32 b, u32 c) { y = (a & b) ^ c; }
inline void widen_float8s(u32& y, u16 x) { pack_halves(y, widen_float8(x >> 8), widen_float8(x & 255)); }

}  // namespace ptx
