// dQ, dK, dV of attention with up to 256 columns, by three warpgroups of Hopper. A tile is 64 keys of one head of keys: its dK and
// dV are 128 registers of a thread each, so that each of them has a warpgroup, and the third one has the rest. They visit the
// blocks of 64 queries, of all query heads of the group, that see the keys:
//
//   scorer    S = Q K^T, dP = dO V^T, P = 2^(scale2 S - lse2), dS = P (dP - delta), dQ += dS K      64 x 64, and 64 x D
//   values    dV += P^T dO                                                                          64 x D_V
//   keys      dK += dS^T Q                                                                          64 x D
//
// P and dS go through shared memory, two of each, so that the sums are up to two blocks late: their products run under the scorer's
// exponentials. In the scorer the next block's S and dP are under way while this block's dQ leaves by additions in the L2, 64
// columns at a time, in the order of the accumulators' registers; attention_hopper_finish puts them in rows.
//
// Compile-time constants: those of attention_hopper_backward.cuh, SCORER_REGISTERS, SUM_REGISTERS, PRODUCER_REGISTERS. wgmma
// functions: multiply_block (64 x 64 x 16), multiply_keys (the same, A in registers, B by row), add_rows (64 x n x 16, both by the
// other axis, for the first up to 128 columns of D and D_V and for the others: the compiler takes no instruction with more
// registers than a thread of the launch has).

constexpr int DS_BYTES = BLOCK * 128;
constexpr int SUMS = 64 * 64;  // of dQ, in one block and 64 columns
constexpr int PARTS = CHUNKS(D);

struct Shared {
  Rings rings;
  u64 p_full[2], p_empty[2], ds_full[2], ds_empty[2];
};

// Scores of pairs that the band or the ends hide become -infinity.
__device__ __forceinline__ void hide(float (&s)[32], int query, int key, const Work& w) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = query + 8 * half;
    const int low = HAS_FIRST ? i + w.first - key : 0;
    const int high = HAS_LAST ? min(i + w.last, w.keys - 1) - key : w.keys - 1 - key;
#pragma unroll
    for (int g = 0; g < 8; ++g)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * g + 2 * half + e];
        if (8 * g + e > high) x = -INFINITY;
        if (HAS_FIRST && 8 * g + e < low) x = -INFINITY;
      }
  }
}

template <int STEPS>
__device__ __forceinline__ void issue_block(float (&acc)[32], u32 a_tile, u32 b_tile) {
  const u64 a = rows_descriptor(a_tile), b = rows_descriptor(b_tile);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < STEPS; ++i)
    multiply_block(acc, a + ((i / 4 * BLOCK * 128 + i % 4 * 32) >> 4), b + ((i / 4 * KEYS * 128 + i % 4 * 32) >> 4), i > 0);
  wgmma_commit();
}

// 64 columns of dQ.
__device__ __forceinline__ void issue_queries(float (&dq)[32], const u32 (&ds)[16], u32 k_part) {
  const u64 k = columns_descriptor(k_part, 0);
  wgmma_fence();  // the additions have read these registers
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply_keys(dq, ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3], k + (j * 16 * 128 >> 4), j > 0);
  wgmma_commit();
}

__device__ __forceinline__ void add_queries(const float (&dq)[32], float* sums) {
#pragma unroll
  for (int r = 0; r < 32; r += 4)
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(sums + r * 128), "f"(dq[r]), "f"(dq[r + 1]), "f"(dq[r + 2]), "f"(dq[r + 3]) : "memory");
}

__device__ __forceinline__ void store_block(u32 to, const u32 (&x)[16], u64* full, int lane) {
#pragma unroll
  for (int g = 0; g < 8; g += 2) store_matrices(to ^ g * 16, x[2 * g], x[2 * g + 1], x[2 * g + 2], x[2 * g + 3]);
  fence_async();
  __syncwarp();
  if (lane == 0) barrier_arrive(shared_address(full));
}

__device__ __forceinline__ void score(u32 q_tile, u32 k_tile, u32 v_tile, u32 g_tile, u32 p_tile, u32 ds_tile, Shared* shared,
                                      const Sizes& sizes, float* dq_sums, float scale2) {
  Rings* const rings = &shared->rings;
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int my_row = thread / 32 * 16 + lane / 4;  // of a block, and this + 8
  // Group g of this warp's rows is at this address with bits 5 and 6 exchanged by g, which is even.
  const u32 my_store = thread / 32 * 16 * 128 + swizzled(lane % 16, lane / 16);
  int stage = 0, slot = 0;
  u32 phase = 0, tile_phase = 0, kv_phase = 0, step = 0;  // step: of all tiles together
  while (true) {
    const int number = hear_tile(rings, slot, tile_phase, lane);
    if (number >= sizes.tiles) break;
    const Work w = locate(number, sizes);
    if (w.begin >= w.end) continue;
    float s[32], t[32], dq[2][32];
    u32 p[16];
    barrier_wait(shared_address(&rings->kv_full), kv_phase);
    kv_phase ^= 1;
    barrier_wait(shared_address(&rings->q_full[stage]), phase);
    issue_block<D_STEPS>(s, q_tile + stage * Q_BYTES, k_tile);
    barrier_wait(shared_address(&rings->g_full[stage]), phase);
    issue_block<V_STEPS>(t, g_tile + stage * G_BYTES, v_tile);
    wgmma_wait<1>();
    pin(s);
    int block = w.begin;
    float* sums = dq_sums + (first_block(w, w.head * sizes.group, sizes) + block) * (PARTS * SUMS) + thread * 4;
#pragma unroll 1
    for (int left = (w.end - w.begin) * sizes.group; left > 0; --left) {
      const float lse2[2] = {rings->lines[stage][0][my_row], rings->lines[stage][0][my_row + 8]};
      const float delta[2] = {rings->lines[stage][1][my_row], rings->lines[stage][1][my_row + 8]};
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&rings->q_empty[stage]));
      const int row = block * BLOCK;
      const bool cut = w.key0 + KEYS > w.keys || (HAS_LAST && w.key0 + KEYS - 1 - row > w.last) ||
                       (HAS_FIRST && w.key0 - (row + BLOCK - 1) < w.first);
      if (cut) hide(s, row + my_row, w.key0 + 2 * (lane % 4), w);
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = exp2_fast(fmaf(s[i], scale2, -lse2[i / 2 % 2]));
#pragma unroll
      for (int j = 0; j < 16; ++j) p[j] = pack(s[2 * j], s[2 * j + 1]);
      const u32 turn = step % 2, even = step / 2 % 2 ^ 1;
      barrier_wait(shared_address(&shared->p_empty[turn]), even);
      store_block(p_tile + turn * DS_BYTES + my_store, p, &shared->p_full[turn], lane);
      wgmma_wait<0>();
      pin(t);
      if (lane == 0) barrier_arrive(shared_address(&rings->g_empty[stage]));
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] *= t[i] - delta[i / 2 % 2];
#pragma unroll
      for (int j = 0; j < 16; ++j) p[j] = pack(s[2 * j], s[2 * j + 1]);
      barrier_wait(shared_address(&shared->ds_empty[turn]), even);
      store_block(ds_tile + turn * DS_BYTES + my_store, p, &shared->ds_full[turn], lane);
      step_ring(stage, phase);
      if (left > 1) barrier_wait(shared_address(&rings->q_full[stage]), phase);
      // After the last block it multiplies what is there, and nobody looks.
      issue_block<D_STEPS>(s, q_tile + stage * Q_BYTES, k_tile);
      issue_queries(dq[0], p, k_tile);
#pragma unroll
      for (int part = 1; part < PARTS; ++part) {
        issue_queries(dq[part % 2], p, k_tile + part * KEYS * 128);
        wgmma_wait<1>();
        pin(dq[(part - 1) % 2]);
        add_queries(dq[(part - 1) % 2], sums + (part - 1) * SUMS);
      }
      if (left > 1) barrier_wait(shared_address(&rings->g_full[stage]), phase);
      issue_block<V_STEPS>(t, g_tile + stage * G_BYTES, v_tile);
      wgmma_wait<1>();
      pin(s);
      pin(dq[(PARTS - 1) % 2]);
      add_queries(dq[(PARTS - 1) % 2], sums + (PARTS - 1) * SUMS);
      ++step;
      sums += PARTS * SUMS;
      if (++block == w.end) {
        block = w.begin;
        sums += (i64)(sizes.sum_blocks - (w.end - w.begin)) * (PARTS * SUMS);
      }
    }
    wgmma_wait<0>();
    pin(t);
    if (lane == 0) barrier_arrive(shared_address(&rings->kv_empty));
  }
}

// Four lanes with four registers each exchange them: lane i has then the i-th of each.
__device__ __forceinline__ uint4 exchange(u32 a, u32 b, u32 c, u32 d, int lane) {
  const bool odd = lane % 2, high = lane / 2 % 2;
  const u32 ab = __shfl_xor_sync(~0u, odd ? a : b, 1), cd = __shfl_xor_sync(~0u, odd ? c : d, 1);
  if (odd) a = ab, c = cd;
  else b = ab, d = cd;
  const u32 ac = __shfl_xor_sync(~0u, high ? a : c, 2), bd = __shfl_xor_sync(~0u, high ? b : d, 2);
  if (high) a = ac, b = bd;
  else c = ac, d = bd;
  return make_uint4(a, b, c, d);
}

// A warp's 16 rows x WIDTH.
template <int WIDTH>
__device__ __forceinline__ void write_rows(const float (&x)[WIDTH / 2], float factor, u16* out, i64 row_stride, int rows, int lane) {
  constexpr int GROUPS = WIDTH / 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
#pragma unroll
    for (int g = 0; g < GROUPS; g += 4) {
      u32 y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * min(g + i, GROUPS - 1) + 2 * half;
        y[i] = pack(x[at] * factor, x[at + 1] * factor);
      }
      const uint4 eight = exchange(y[0], y[1], y[2], y[3], lane);
      if (row < rows && g + lane % 4 < GROUPS) *(uint4*)(out + row * row_stride + (g + lane % 4) * 8) = eight;
    }
  }
}

// One of the sums over queries, [keys, WIDTH]: weights^T rows, of P and dO or of dS and Q.
template <int WIDTH>
__device__ __forceinline__ void sum_rows(u32 weights, u32 rows_tile, u64* weights_full, u64* weights_empty, u64* rows_full,
                                         u64* rows_empty, Rings* rings, const Sizes& sizes, u16* out, i64 out_batch, i64 out_head,
                                         i64 out_row, float factor) {
  constexpr int LEFT = WIDTH < 128 ? WIDTH : 128, RIGHT = WIDTH - LEFT;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  int stage = 0, slot = 0;
  u32 phase = 0, tile_phase = 0, step = 0;
  while (true) {
    const int number = hear_tile(rings, slot, tile_phase, lane);
    if (number >= sizes.tiles) break;
    const Work w = locate(number, sizes);
    if (w.key0 >= w.keys) continue;
    const int row_warp = w.key0 + warp * 16, rows = w.keys - row_warp;
    u16* const to = out + (PACKED ? 0 : w.batch) * out_batch + w.head * out_head + (w.k_first + row_warp) * out_row;
    if (w.begin >= w.end) {  // no query sees these keys
      write_zeros<WIDTH>(to, out_row, rows, lane);
      continue;
    }
    float left_sum[LEFT / 2], right_sum[RIGHT > 0 ? RIGHT / 2 : 1];
#pragma unroll
    for (int i = 0; i < LEFT / 2; ++i) left_sum[i] = 0;
#pragma unroll
    for (int i = 0; i < (RIGHT > 0 ? RIGHT / 2 : 1); ++i) right_sum[i] = 0;
#pragma unroll 1
    for (int left = (w.end - w.begin) * sizes.group; left > 0; --left) {
      const u32 turn = step % 2;
      barrier_wait(shared_address(rows_full + stage), phase);
      barrier_wait(shared_address(weights_full + turn), step / 2 % 2);
      const u64 a = columns_descriptor(weights + turn * DS_BYTES, 0);
      const u64 b = columns_descriptor(rows_tile + stage * (CHUNKS(WIDTH) * BLOCK * 128), BLOCK * 128);
      pin(left_sum), pin(right_sum);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < BLOCK / 16; ++j) {
        add_rows(left_sum, a + (j * 16 * 128 >> 4), b + (j * 16 * 128 >> 4), 1);
        if constexpr (RIGHT > 0) add_rows(right_sum, a + (j * 16 * 128 >> 4), b + ((2 * BLOCK + j * 16) * 128 >> 4), 1);
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin(left_sum), pin(right_sum);
      if (lane == 0) {
        barrier_arrive(shared_address(weights_empty + turn));
        barrier_arrive(shared_address(rows_empty + stage));
      }
      step_ring(stage, phase);
      ++step;
    }
    write_rows<LEFT>(left_sum, factor, to, out_row, rows, lane);
    if constexpr (RIGHT > 0) write_rows<RIGHT>(right_sum, factor, to + LEFT, out_row, rows, lane);
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) attention_hopper_backward_wide(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap g_map, const float* lines, float* dq_sums, u16* dk, u16* dv,
    const int* first_q, const int* first_k, int* counter, i64 dk_batch, i64 dk_head, i64 dk_row,
    i64 dv_batch, i64 dv_head, i64 dv_row, float scale2, float scale, int queries, int keys, int heads, int group, int batches,
    int first, int last, int section, int tiles, int sum_blocks) {
  extern __shared__ char memory[];
  __shared__ Shared storage;
  Shared* const shared = &storage;
  Rings* const rings = &storage.rings;
  const u32 k_tile = (shared_address(memory) + 1023) & ~1023u;  // swizzled tiles begin at multiples of 1024
  const u32 v_tile = k_tile + K_BYTES, p_tile = v_tile + V_BYTES, ds_tile = p_tile + 2 * DS_BYTES;
  const u32 q_tile = ds_tile + 2 * DS_BYTES, g_tile = q_tile + STAGES * Q_BYTES;
  const Sizes sizes = {queries, keys, heads, group, batches, first, last, section, tiles, sum_blocks, first_q, first_k};
  if (threadIdx.x == 0) {
    init_buffers(&rings->kv_full, &rings->kv_empty, 1, 4);
    init_buffers(rings->q_full, rings->q_empty, STAGES, 8);
    init_buffers(rings->g_full, rings->g_empty, STAGES, 8);
    init_buffers(rings->tile_full, rings->tile_empty, 2, 12);
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared->p_full[i]), 4), barrier_init(shared_address(&shared->p_empty[i]), 4);
      barrier_init(shared_address(&shared->ds_full[i]), 4), barrier_init(shared_address(&shared->ds_empty[i]), 4);
    }
    fence_barrier_init();
    prefetch_map(&q_map), prefetch_map(&k_map), prefetch_map(&v_map), prefetch_map(&g_map);
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same for all of a warp, as the compiler sees it
  if (warpgroup == 0) {
    shrink_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce(&q_map, &k_map, &v_map, &g_map, q_tile, k_tile, v_tile, g_tile, rings, sizes, lines, counter);
  } else if (warpgroup == 1) {
    grow_registers<SCORER_REGISTERS>();
    score(q_tile, k_tile, v_tile, g_tile, p_tile, ds_tile, shared, sizes, dq_sums, scale2);
  } else if (warpgroup == 2) {
    grow_registers<SUM_REGISTERS>();
    sum_rows<D_V>(p_tile, g_tile, shared->p_full, shared->p_empty, rings->g_full, rings->g_empty, rings, sizes, dv, dv_batch,
                  dv_head, dv_row, 1);
  } else {
    grow_registers<SUM_REGISTERS>();
    sum_rows<D>(ds_tile, q_tile, shared->ds_full, shared->ds_empty, rings->q_full, rings->q_empty, rings, sizes, dk, dk_batch,
                dk_head, dk_row, scale);
  }
}
