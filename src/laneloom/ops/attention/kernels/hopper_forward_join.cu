// O and the log-sum-exp from those of parts of the keys, [batches, heads x parts, queries, D_V] and the same without columns: sums of
// the parts by their share of all weights, 2^(lse of the part - of all). 8 columns a thread. It comes after attention_hopper_halves.cuh.
//
// Compile-time constants: D_V, PACKED, BF16.

extern "C" __global__ void __launch_bounds__(256) attention_hopper_forward_join(
    const u16* part_out, const float* part_lse, u16* out, float* lse, const int* first_q, i64 out_batch, i64 out_head, i64 out_row,
    i64 lse_batch, i64 lse_head, int queries, int heads, int parts, int batches) {
  await_predecessor();
  constexpr int EIGHTS = D_V / 8;
  const i64 number = (i64)blockIdx.x * 256 + threadIdx.x, row = number / EIGHTS, owner = row / queries;
  const int column = number % EIGHTS * 8, query = row % queries;
  const i64 batch = owner / heads, head = owner % heads;
  if (batch >= (PACKED ? 1 : batches) || (PACKED && query >= first_q[batches])) return;
  const float* const of_part = part_lse + owner * parts * queries + query;
  float top = -INFINITY;
  for (int i = 0; i < parts; ++i) top = fmaxf(top, of_part[(i64)i * queries]);
  const float shift = top == -INFINITY ? 0 : top;
  float sum[8] = {}, total = 0;
  for (int i = 0; i < parts; ++i) {
    const float weight = exp2_fast((of_part[(i64)i * queries] - shift) * 1.4426950408889634f);
    const uint4 x = *(const uint4*)(part_out + ((owner * parts + i) * queries + query) * D_V + column);
    const u32 words[4] = {x.x, x.y, x.z, x.w};
    total += weight;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[2 * j] += weight * low_half(words[j]), sum[2 * j + 1] += weight * high_half(words[j]);
  }
  const float factor = total == 0 ? 0 : 1 / total;
#pragma unroll
  for (int j = 0; j < 8; ++j) sum[j] *= factor;
  store_eight(out + batch * out_batch + head * out_head + query * out_row + column,
              make_uint4(pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7])), true);
  if (column == 0) lse[batch * lse_batch + head * lse_head + query] = total == 0 ? -INFINITY : top + __log2f(total) * 0.6931471805599453f;
}
