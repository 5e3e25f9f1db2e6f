// What stands before and after a backward kernel.
//
// START, for a block of 64 queries of one head: a line of 64 lse / ln 2 and one of 64 delta = sum over D_V of dO O - dL, or of what the
// matrix units are to add (PIECES), and zeros where dQ's sums go. A query without keys, and one beyond the last,
// gets lse = infinity: weights of zero. FINISH, the same block: dQ = scale x its sums, from the order of the accumulators' registers, 64
// columns at a time, to rows. JOIN: dK and dV of a head of keys = the sums of what its sharers left, 8 elements a thread.
//
// Compile-time constants: START, FINISH or JOIN, PIECES (lines are operands: -lse / scale and -delta, 16 bytes a query), D, D_V,
// PACKED, BF16.

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
constexpr int ROWS = 256 / LANES;  // of all threads

extern "C" __global__ void __launch_bounds__(256) attention_hopper_start(
    const u16* g, const u16* out, const float* lse, const float* dlse, Line* lines, float4* sums, const int* first_q, i64 g_batch,
    i64 g_head, i64 g_row, i64 out_batch, i64 out_head, i64 out_row, i64 lse_batch, i64 lse_head, float scale, int queries, int heads,
    int blocks, int sum_blocks) {
  await_predecessor();
  const int block = blockIdx.x % blocks, owner = blockIdx.x / blocks, head = owner % heads;
  i64 batch = owner / heads, at = (i64)owner * sum_blocks + block;
  int first = 0;
#if PACKED
  first = first_q[batch];
  queries = first_q[batch + 1] - first;
  at = (i64)head * sum_blocks + first / 64 + batch + block;
  batch = 0;
  if (block * 64 >= queries) return;
#endif
  const int lane = threadIdx.x % LANES, row0 = block * 64 + threadIdx.x / LANES;
  const u16* const my_g = g + batch * g_batch + head * g_head + lane * 8;
  const u16* const my_out = out + batch * out_batch + head * out_head + lane * 8;
  uint4 a[64 / ROWS], b[64 / ROWS];
#pragma unroll
  for (int i = 0; i < 64 / ROWS; ++i) {
    const int row = row0 + i * ROWS;
    a[i] = b[i] = make_uint4(0, 0, 0, 0);
    if (row < queries && lane * 8 < D_V) {
      a[i] = *(const uint4*)(my_g + (first + row) * g_row);
      b[i] = *(const uint4*)(my_out + (first + row) * out_row);
    }
  }
#pragma unroll
  for (int i = 0; i < (D + 15) / 16; ++i)  // of the warps that have rows, as the kernel's
    if (block * 64 + threadIdx.x % 128 / 32 * 16 < queries)
      sums[at * (CHUNKS(D) * 1024) + i * 256 + threadIdx.x] = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < 64 / ROWS; ++i) {
    const int row = row0 + i * ROWS;
    float sum = dot(a[i].x, b[i].x) + dot(a[i].y, b[i].y) + (dot(a[i].z, b[i].z) + dot(a[i].w, b[i].w));
#pragma unroll
    for (int far = LANES / 2; far > 0; far /= 2) sum += __shfl_xor_sync(~0u, sum, far);
    if (lane == 0) {
      const i64 number = batch * lse_batch + head * lse_head + first + row;
      const float l = row < queries ? lse[number] : -INFINITY;
      const float delta = sum - (dlse && row < queries ? dlse[number] : 0);
      Line* const line = lines + at * 128 + row % 64;
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
#elif FINISH
extern "C" __global__ void __launch_bounds__(128 * CHUNKS(D)) attention_hopper_finish(
    const float4* sums, u16* dq, const int* first_q, i64 dq_batch, i64 dq_head, i64 dq_row, float scale, int queries, int heads,
    int blocks, int sum_blocks) {
  await_predecessor();
  const int block = blockIdx.x % blocks, owner = blockIdx.x / blocks, head = owner % heads, batch = owner / heads;
  int first = 0;
#if PACKED
  first = first_q[batch];
  queries = first_q[batch + 1] - first;
  if (block * 64 >= queries) return;
#endif
  const i64 at = (PACKED ? (i64)head * sum_blocks + first / 64 + batch : (i64)owner * sum_blocks) + block;
  const int part = threadIdx.x / 128, row = block * 64 + threadIdx.x % 128 / 32 * 16;
  if (row >= queries) return;
  float x[32];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float4 four = sums[(at * CHUNKS(D) + part) * 1024 + j * 128 + threadIdx.x % 128];
    x[4 * j] = four.x, x[4 * j + 1] = four.y, x[4 * j + 2] = four.z, x[4 * j + 3] = four.w;
  }
  u16* const to = dq + (PACKED ? 0 : batch * dq_batch) + head * dq_head + (first + row) * dq_row + part * 64;
  const int rows = queries - row, lane = threadIdx.x % 32;
  if (part < D / 64) write_rows<64>(x, scale, to, dq_row, rows, lane);
#if D % 64
  else write_rows<D % 64>((float(&)[D % 64 / 2])x, scale, to, dq_row, rows, lane);
#endif
}
#else
// One row of eight of a head's keys, from [batches, heads x sharers, keys, width].
template <int WIDTH>
__device__ __forceinline__ void join(const u16* parts, u16* to, i64 owner, int key, int keys, int sharers, int column) {
  float sum[8] = {};
  for (int i = 0; i < sharers; ++i) {
    const uint4 x = *(const uint4*)(parts + ((owner * sharers + i) * keys + key) * WIDTH + column);
    const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[2 * j] += low_half(words[j]), sum[2 * j + 1] += high_half(words[j]);
  }
  store_eight(to + column, make_uint4(pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7])), true);
}

extern "C" __global__ void __launch_bounds__(256) attention_hopper_join(
    const u16* dk_parts, const u16* dv_parts, u16* dk, u16* dv, const int* first_k, i64 dk_batch, i64 dk_head, i64 dk_row,
    i64 dv_batch, i64 dv_head, i64 dv_row, int keys, int heads, int sharers, int batches) {
  await_predecessor();
  constexpr int EIGHTS = (D + D_V) / 8;
  const i64 number = (i64)blockIdx.x * 256 + threadIdx.x, row = number / EIGHTS;
  const int column = number % EIGHTS * 8, key = row % keys;
  const i64 owner = row / keys, batch = owner / heads, head = owner % heads;
  if (batch >= (PACKED ? 1 : batches) || (PACKED && key >= first_k[batches])) return;
  if (column < D) join<D>(dk_parts, dk + batch * dk_batch + head * dk_head + key * dk_row, owner, key, keys, sharers, column);
  else join<D_V>(dv_parts, dv + batch * dv_batch + head * dv_head + key * dv_row, owner, key, keys, sharers, column - D);
}
#endif
