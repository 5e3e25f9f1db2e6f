// What stands before and after attention_hopper_backward.
//
// START: for each block of 64 queries a line of 64 lse / ln 2 and one of 64 delta = sum over D_V of dO O - dL, or of what the matrix
// units are to add (PIECES), and zeros where dQ's sums go. A query without keys, and one beyond the last, gets lse = infinity:
// weights of zero. FINISH: dQ = scale x its sums,
// from the order of the accumulators' registers to rows: of 64 queries x 64 columns, thread t of a warpgroup has in its registers
// 4j..4j+3 the columns 8j + 2 (t % 4) and the next one of rows 16 (t / 32) + t % 32 / 4 and that + 8.
//
// Compile-time constants: START (or FINISH), PIECES (lines are operands: -lse / scale and -delta, 16 bytes a query), D, D_V,
// PACKED, BF16.

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

#if START
#if PIECES
typedef uint4 Line;
// x as 2^15 a + 16 b + c, 16-bit numbers: a takes what is large, b and c what is left, so that neither format loses any. What lies
// beyond 2^15 of fp16's largest number, 2^31, becomes NaN.
__device__ __forceinline__ uint4 in_pieces(float x) {
  const u32 a = pack(x / 32768, 0) & 0xffff;
  const float rest = x == -INFINITY ? 0 : x - 32768 * low_half(a);
  const u32 b = pack(rest / 16, 0) & 0xffff;
  const u32 c = pack(rest - 16 * low_half(b), 0) & 0xffff;
  return make_uint4(a | b << 16, c, 0, 0);
}
#else
typedef float Line;
#endif

constexpr int LANES = D_V <= 64 ? 8 : D_V <= 128 ? 16 : 32;  // of a row

extern "C" __global__ void __launch_bounds__(256) attention_hopper_start(
    const u16* g, const u16* out, const float* lse, const float* dlse, Line* lines, float4* sums, const int* first_q, i64 g_batch,
    i64 g_head, i64 g_row, i64 out_batch, i64 out_head, i64 out_row, i64 lse_batch, i64 lse_head, float scale, i64 vectors, int queries,
    int heads, int batches, int blocks, int sum_blocks) {
  const i64 thread = blockIdx.x * 256ll + threadIdx.x, threads = gridDim.x * 256ll;
  for (i64 i = thread; i < vectors; i += threads) sums[i] = make_float4(0, 0, 0, 0);
  const int lane = threadIdx.x % LANES;
  const int rows = batches * heads * blocks * 64;
  for (int i = thread / LANES; i < rows; i += threads / LANES) {
    const int row = i % (blocks * 64), owner = i / (blocks * 64), head = owner % heads;
    i64 batch = owner / heads, block = (i64)owner * sum_blocks + row / 64;
    int first = 0;
#if PACKED
    first = first_q[batch];
    queries = first_q[batch + 1] - first;
    block = (i64)head * sum_blocks + first / 64 + batch + row / 64;
    batch = 0;
    if (row >= (queries + 63) / 64 * 64) continue;
#endif
    float sum = 0;
    if (row < queries && lane * 8 < D_V) {
      const uint4 a = *(const uint4*)(g + batch * g_batch + head * g_head + (first + row) * g_row + lane * 8);
      const uint4 b = *(const uint4*)(out + batch * out_batch + head * out_head + (first + row) * out_row + lane * 8);
      sum = dot(a.x, b.x) + dot(a.y, b.y) + (dot(a.z, b.z) + dot(a.w, b.w));
    }
    // The lanes of a row are in this iteration together or not at all.
    const u32 together = (LANES == 32 ? ~0u : (1u << LANES) - 1) << (threadIdx.x % 32 / LANES * LANES);
#pragma unroll
    for (int far = LANES / 2; far > 0; far /= 2) sum += __shfl_xor_sync(together, sum, far);
    if (lane == 0) {
      const i64 at = batch * lse_batch + head * lse_head + first + row;
      const float l = row < queries ? lse[at] : -INFINITY;
      const float delta = sum - (dlse && row < queries ? dlse[at] : 0);
      Line* const line = lines + block * 128 + row % 64;
#if PIECES
      line[0] = in_pieces(l == -INFINITY ? -INFINITY : -l / scale);
      line[64] = in_pieces(-delta);
#else
      line[0] = l == -INFINITY ? INFINITY : l * 1.4426950408889634f;
      line[64] = delta;
#endif
    }
  }
}
#else
extern "C" __global__ void __launch_bounds__(128) attention_hopper_finish(
    const float4* sums, u16* dq, const int* first_q, i64 dq_batch, i64 dq_head, i64 dq_row, float scale, int queries, int heads,
    int blocks, int sum_blocks) {
  const int part = blockIdx.x % CHUNKS(D), block = blockIdx.x / CHUNKS(D) % blocks;
  const int owner = blockIdx.x / CHUNKS(D) / blocks, head = owner % heads, batch = owner / heads;
  int first = 0;
#if PACKED
  first = first_q[batch];
  queries = first_q[batch + 1] - first;
#endif
  if (block * 64 >= queries) return;
  const i64 sum_block = (PACKED ? (i64)head * sum_blocks + first / 64 + batch : (i64)owner * sum_blocks) + block;
  const float4* from = sums + (sum_block * CHUNKS(D) + part) * 1024 + threadIdx.x;
  const int row = block * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  u16* to = dq + (PACKED ? 0 : batch * dq_batch) + head * dq_head + (first + row) * dq_row;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int column = part * 64 + 8 * j + 2 * (threadIdx.x % 4);
    const float4 x = from[j * 128];
    if (column < D) {
      if (row < queries) *(u32*)(to + column) = pack(x.x * scale, x.y * scale);
      if (row + 8 < queries) *(u32*)(to + 8 * dq_row + column) = pack(x.z * scale, x.w * scale);
    }
  }
}
#endif
