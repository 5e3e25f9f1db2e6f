// dQ, dK, dV of attention with up to 256 columns, by clusters of two CTAs of Hopper. A tile is 128 keys of one head of keys, 64 of
// each CTA: their dK and dV are 128 registers of a thread each, so that each has a warpgroup, and a third one has the rest. The
// CTAs visit the same blocks of 64 queries, of all query heads of the group, that see the keys:
//
//   scorer    S = Q K^T, dP = dO V^T, P = 2^(scale2 S - lse2), dS = P (dP - delta)           64 x 64, of the CTA's own keys
//             dQ += dS K                                                                     of all 128 keys, half of the columns
//   values    dV += P^T dO                                                                   64 x D_V
//   keys      dK += dS^T Q                                                                   64 x D
//
// Each CTA fetches half of Q and dO, for both. A scorer's dS goes to the other CTA too, so that dQ leaves once for 128 keys: its
// additions in the L2 and the reads from there are what bounds tiles of 64. P and dS go through shared memory, two of each, so that the
// sums are up to two blocks late: their products run under the scorer's exponentials. dQ is added in the order of the accumulators'
// registers, 64 columns at a time, under the next block's S and dP; attention_hopper_finish puts it in rows.
//
// Where scores are capped (SOFTCAP), S becomes tanh(slope2 S), and dS has its slope 1 - S^2 as a factor.
//
// Compile-time constants: those of attention_hopper_backward.cuh, BF16, SOFTCAP, STAGES and G_STAGES (blocks of Q and of dO in shared memory),
// SCORER_REGISTERS, SUM_REGISTERS, PRODUCER_REGISTERS. wgmma functions: multiply_block, multiply_keys, multiply_others (64 x 64 x 16: both
// with the contraction contiguous, A in registers and B by row, B by row), add_rows (64 x n x 16, both by the other axis, for the first up
// to 128 columns of D and D_V and for the others: the compiler takes no instruction with more registers than a thread begins with).

constexpr int MINE = KEYS / 2;
constexpr int K_BYTES = CHUNKS(D) * MINE * 128, V_BYTES = CHUNKS(D_V) * MINE * 128;
constexpr int DS_BYTES = BLOCK * 128;
constexpr int MY_PARTS = (PARTS + 1) / 2;  // a CTA has parts rank and rank + 2 of dQ's columns
constexpr int READERS = 14;  // of a tile's number, in a CTA: the consumers' warps, the producer, the sender

struct Shared {
  u64 kv_full, kv_empty;
  u64 q_full[STAGES], q_empty[STAGES], g_full[G_STAGES], g_empty[G_STAGES];
  u64 p_full[2], p_empty[2], ds_full[2], ds_empty[2], other_full[2];
  u64 tile_full[2], tile_empty[2];
  int tile[2];
  __align__(16) float lines[STAGES][2][BLOCK];  // lse2 and delta
};

// Addresses of tiles in shared memory; others: the other CTA's keys, of this one's columns of dQ; other_ds: what it sends.
struct Tiles {
  u32 k, others, v, p, ds, other_ds, q, g;
};

// The next tile's number, which the first CTA's producer sends to both; one thread of a warp.
__device__ __forceinline__ int hear_tile(Shared* shared, int& slot, u32& phase) {
  barrier_wait(shared_address(&shared->tile_full[slot]), phase);
  const int number = *(volatile int*)&shared->tile[slot];
  arrive_at(&shared->tile_empty[slot], 0);
  advance<2>(slot, phase);
  return number;
}
__device__ __forceinline__ int hear_tile_as_warp(Shared* shared, int& slot, u32& phase, int lane) {
  barrier_wait(shared_address(&shared->tile_full[slot]), phase);
  const int number = *(volatile int*)&shared->tile[slot];
  __syncwarp();
  if (lane == 0) arrive_at(&shared->tile_empty[slot], 0);
  advance<2>(slot, phase);
  return number;
}
__device__ __forceinline__ void produce(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map,
                                        const TensorMap* g_map, const Tiles& at, u32 rank, Shared* shared, const Sizes& sizes,
                                        int sharers, const float* lines, int* counter) {
  int stage = 0, g_stage = 0, slot = 0;
  u32 phase = 0, g_phase = 0, tile_phase = 0, kv_phase = 0;
  for (int next = blockIdx.x / 2;; next = rank == 0 ? next_tile(atomicAdd(counter, 1), sizes.tiles, counter, gridDim.x / 2) : 0) {
    barrier_expect(shared_address(&shared->tile_full[slot]), 4);
    if (rank == 0) {
      barrier_wait(shared_address(&shared->tile_empty[slot]), tile_phase ^ 1);
      for (u32 to = 0; to < 2; ++to) send_word(&shared->tile[slot], next, &shared->tile_full[slot], to);
    }
    const int number = hear_tile(shared, slot, tile_phase);
    if (number >= sizes.tiles) return;
    const Work w = locate(number, sizes);
    if (w.begin >= w.end) continue;
    const int batch = PACKED ? 0 : w.batch;
    int head = w.head * sizes.group, block = first_visited(w);
    const u32 full = shared_address(&shared->kv_full);
    const int kv_head = w.head / sharers, key = w.k_first + w.key0 + rank * MINE, other = w.k_first + w.key0 + (1 - rank) * MINE;
    barrier_wait(shared_address(&shared->kv_empty), kv_phase ^ 1);
    barrier_expect(full, K_BYTES + V_BYTES + MY_PARTS * MINE * 128);
#pragma unroll 1
    for (int c = 0; c < CHUNKS(D); ++c) load_box(at.k + c * MINE * 128, k_map, full, c * 64, key, kv_head, batch);
#pragma unroll 1
    for (int c = 0; c < CHUNKS(D_V); ++c) load_box(at.v + c * MINE * 128, v_map, full, c * 64, key, kv_head, batch);
#pragma unroll 1
    for (int i = 0; i < MY_PARTS; ++i)
      load_box(at.others + i * MINE * 128, k_map, full, min(2 * i + (int)rank, PARTS - 1) * 64, other, kv_head, batch);
    kv_phase ^= 1;
#pragma unroll 1
    for (int left = (w.end - w.begin) * sizes.group; left > 0; --left) {
      const u32 q_full = shared_address(&shared->q_full[stage]), g_full = shared_address(&shared->g_full[g_stage]);
      const int row = w.q_first + block * BLOCK;
      barrier_wait(shared_address(&shared->q_empty[stage]), phase ^ 1);
      barrier_expect(q_full, Q_BYTES + 2 * BLOCK * 4);
#pragma unroll 1
      for (int c = rank; c < CHUNKS(D); c += 2)
        load_box_for_both(at.q + (stage * CHUNKS(D) + c) * BLOCK * 128, q_map, q_full, c * 64, row, head, batch);
      load_line(shared_address(shared->lines[stage]), lines + (first_block(w, head, sizes) + block) * 2 * BLOCK, q_full);
      barrier_wait(shared_address(&shared->g_empty[g_stage]), g_phase ^ 1);
      barrier_expect(g_full, G_BYTES);
#pragma unroll 1
      for (int c = rank; c < CHUNKS(D_V); c += 2)
        load_box_for_both(at.g + (g_stage * CHUNKS(D_V) + c) * BLOCK * 128, g_map, g_full, c * 64, row, head, batch);
      advance<STAGES>(stage, phase), advance<G_STAGES>(g_stage, g_phase);
      if (++head == (w.head + 1) * sizes.group) head = w.head * sizes.group, block += w.step;
    }
  }
}

// dS goes to the other CTA.
__device__ __forceinline__ void send(const Tiles& at, u32 rank, Shared* shared, const Sizes& sizes) {
  int slot = 0;
  u32 tile_phase = 0, number_of = 0;
  while (true) {
    const int number = hear_tile(shared, slot, tile_phase);
    if (number >= sizes.tiles) return;
    const Work w = locate(number, sizes);
#pragma unroll 1
    for (int left = (w.end - w.begin) * sizes.group; left > 0; --left, ++number_of) {
      const u32 turn = number_of % 2;
      barrier_wait(shared_address(&shared->ds_full[turn]), number_of / 2 % 2);
      send_tile<DS_BYTES>(at.other_ds + turn * DS_BYTES, at.ds + turn * DS_BYTES, &shared->other_full[turn], 1 - rank);
    }
  }
}

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
    multiply_block(acc, a + ((i / 4 * BLOCK * 128 + i % 4 * 32) >> 4), b + ((i / 4 * MINE * 128 + i % 4 * 32) >> 4), i > 0);
  wgmma_commit();
}

// 64 columns of dQ, from this CTA's keys and from the other one's.
__device__ __forceinline__ void begin_queries(float (&dq)[32], const u32 (&ds)[16], u32 k_part) {
  const u64 k = columns_descriptor(k_part, 0);
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply_keys(dq, ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3], k + (j * 16 * 128 >> 4), j > 0);
}
__device__ __forceinline__ void end_queries(float (&dq)[32], u32 other_ds, u32 k_part) {
  const u64 ds = rows_descriptor(other_ds), k = columns_descriptor(k_part, 0);
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply_others(dq, ds + (j * 32 >> 4), k + (j * 16 * 128 >> 4), 1);
  wgmma_commit();
}

__device__ __forceinline__ void store_block(u32 to, const u32 (&x)[16], u64* full, int lane) {
#pragma unroll
  for (int g = 0; g < 8; g += 2) store_matrices(to ^ g * 16, x[2 * g], x[2 * g + 1], x[2 * g + 2], x[2 * g + 3]);
  fence_async();
  __syncwarp();
  if (lane == 0) barrier_arrive(shared_address(full));
}

__device__ __forceinline__ void score(const Tiles& at, u32 rank, Shared* shared, const Sizes& sizes, float* dq_sums, float scale2,
                                      float slope2) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int my_row = thread / 32 * 16 + lane / 4;  // of a block, and this + 8
  // Group g of this warp's rows is at this address with bits 5 and 6 exchanged by g, which is even.
  const u32 my_store = thread / 32 * 16 * 128 + swizzled(lane % 16, lane / 16);
  int stage = 0, g_stage = 0, slot = 0;
  u32 phase = 0, g_phase = 0, tile_phase = 0, kv_phase = 0, number_of = 0;  // number_of: blocks of all tiles together
  while (true) {
    const int number = hear_tile_as_warp(shared, slot, tile_phase, lane);
    if (number >= sizes.tiles) break;
    const Work w = locate(number, sizes);
    if (w.begin >= w.end) continue;
    const int key0 = w.key0 + rank * MINE;
    float s[32], t[32], dq[MY_PARTS][32];
    u32 p[16];
    barrier_wait(shared_address(&shared->kv_full), kv_phase);
    kv_phase ^= 1;
    barrier_wait(shared_address(&shared->q_full[stage]), phase);
    issue_block<D_STEPS>(s, at.q + stage * Q_BYTES, at.k);
    barrier_wait(shared_address(&shared->g_full[g_stage]), g_phase);
    issue_block<V_STEPS>(t, at.g + g_stage * G_BYTES, at.v);
    wgmma_wait<1>();
    pin(s);
    int block = first_visited(w), head = 0;
    float* sums = dq_sums + (first_block(w, w.head * sizes.group, sizes) + block) * (PARTS * SUMS) + rank * SUMS + thread * 4;
#pragma unroll 1
    for (int left = (w.end - w.begin) * sizes.group; left > 0; --left) {
      const float lse2[2] = {shared->lines[stage][0][my_row], shared->lines[stage][0][my_row + 8]};
      const float delta[2] = {shared->lines[stage][1][my_row], shared->lines[stage][1][my_row + 8]};
      const u32 turn = number_of % 2, round = number_of / 2 % 2;
      __syncwarp();
      if (lane == 0) arrive_at_both(&shared->q_empty[stage]);
      if (thread == 0) barrier_expect(shared_address(&shared->other_full[turn]), DS_BYTES);
      const int row = block * BLOCK;
      const bool cut = key0 + MINE > w.keys || (HAS_LAST && key0 + MINE - 1 - row > w.last) ||
                       (HAS_FIRST && key0 - (row + BLOCK - 1) < w.first);
      if (SOFTCAP) squash(s, slope2, cut);
      if (cut) hide(s, row + my_row, key0 + 2 * (lane % 4), w);
#if SOFTCAP
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        float weight[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[2 * j + e];
          const float seen = fmaxf(x, -1);  // not -infinity
          weight[e] = exp2_fast(fmaf(x, scale2, -lse2[j % 2]));
          x = weight[e] * fmaf(-seen, seen, 1);
        }
        p[j] = pack(weight[0], weight[1]);
      }
#else
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = exp2_fast(fmaf(s[i], scale2, -lse2[i / 2 % 2]));
#pragma unroll
      for (int j = 0; j < 16; ++j) p[j] = pack(s[2 * j], s[2 * j + 1]);
#endif
      barrier_wait(shared_address(&shared->p_empty[turn]), round ^ 1);
      store_block(at.p + turn * DS_BYTES + my_store, p, &shared->p_full[turn], lane);
      wgmma_wait<0>();
      pin(t);
      if (lane == 0) arrive_at_both(&shared->g_empty[g_stage]);
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] *= t[i] - delta[i / 2 % 2];
#pragma unroll
      for (int j = 0; j < 16; ++j) p[j] = pack(s[2 * j], s[2 * j + 1]);
      // Free where this CTA's dK and the other one's dQ have read it.
      barrier_wait(shared_address(&shared->ds_empty[turn]), round ^ 1);
      store_block(at.ds + turn * DS_BYTES + my_store, p, &shared->ds_full[turn], lane);
      advance<STAGES>(stage, phase), advance<G_STAGES>(g_stage, g_phase);
      if (left > 1) barrier_wait(shared_address(&shared->q_full[stage]), phase);
      // After the last block it multiplies what is there, and nobody looks.
      issue_block<D_STEPS>(s, at.q + stage * Q_BYTES, at.k);
      wgmma_fence();  // the additions have read these registers
#pragma unroll
      for (int i = 0; i < MY_PARTS; ++i) begin_queries(dq[i], p, at.k + min(2 * i + (int)rank, PARTS - 1) * MINE * 128);
      wgmma_commit();
      barrier_wait(shared_address(&shared->other_full[turn]), round);
#pragma unroll
      for (int i = 0; i < MY_PARTS; ++i) end_queries(dq[i], at.other_ds + turn * DS_BYTES, at.others + i * MINE * 128);
      if (MY_PARTS == 2) {
        wgmma_wait<1>();
        pin(dq[0]);
        add_queries(dq[0], sums, rank);
      }
      if (left > 1) barrier_wait(shared_address(&shared->g_full[g_stage]), g_phase);
      issue_block<V_STEPS>(t, at.g + g_stage * G_BYTES, at.v);
      wgmma_wait<1>();
      pin(s);
      pin(dq[MY_PARTS - 1]);
      if (lane == 0) arrive_at(&shared->ds_empty[turn], 1 - rank);
      if (PARTS % 2 == 0 || rank == 0) add_queries(dq[MY_PARTS - 1], sums + (MY_PARTS - 1) * 2 * SUMS, (MY_PARTS - 1) * 2 + rank);
      ++number_of;
      sums += (i64)sizes.sum_blocks * (PARTS * SUMS);
      if (++head == sizes.group) {
        head = 0, block += w.step;
        sums += (w.step - (i64)sizes.group * sizes.sum_blocks) * (PARTS * SUMS);
      }
    }
    wgmma_wait<0>();
    pin(t);
    if (lane == 0) barrier_arrive(shared_address(&shared->kv_empty));
  }
}

// One of the sums over queries, [keys, WIDTH]: weights^T rows, of P and dO or of dS and Q.
template <int WIDTH, int COUNT>
__device__ __forceinline__ void sum_rows(u32 weights, u32 rows_tile, u64* weights_full, u64* weights_empty, u64* rows_full,
                                         u64* rows_empty, u32 rank, Shared* shared, const Sizes& sizes, u16* out, i64 out_batch,
                                         i64 out_head, i64 out_row, float factor) {
  constexpr int LEFT = WIDTH < 128 ? WIDTH : 128, RIGHT = WIDTH - LEFT;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  int stage = 0, slot = 0;
  u32 phase = 0, tile_phase = 0, number_of = 0;
  while (true) {
    const int number = hear_tile_as_warp(shared, slot, tile_phase, lane);
    if (number >= sizes.tiles) break;
    const Work w = locate(number, sizes);
    if (w.key0 >= w.keys) continue;
    const int row_warp = w.key0 + rank * MINE + warp * 16, rows = w.keys - row_warp;
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
      const u32 turn = number_of % 2;
      barrier_wait(shared_address(rows_full + stage), phase);
      barrier_wait(shared_address(weights_full + turn), number_of / 2 % 2);
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
        arrive_at_both(rows_empty + stage);
      }
      advance<COUNT>(stage, phase);
      ++number_of;
    }
    write_rows<LEFT>(left_sum, factor, to, out_row, rows, lane);
    if constexpr (RIGHT > 0) write_rows<RIGHT>(right_sum, factor, to + LEFT, out_row, rows, lane);
  }
}

extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(512, 1) attention_hopper_backward_wide(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap g_map, const float* lines, float* dq_sums, u16* dk, u16* dv,
    const int* first_q, const int* first_k, int* counter, i64 dk_batch, i64 dk_head, i64 dk_row,
    i64 dv_batch, i64 dv_head, i64 dv_row, float scale2, float scale, int queries, int keys, int heads, int group, int batches,
    int first, int last, int section, int wave, int tiles, int sum_blocks, int sharers SLOPE) {
  extern __shared__ char memory[];
  __shared__ Shared storage;
  Shared* const shared = &storage;
  Tiles at;
  at.k = (shared_address(memory) + 1023) & ~1023u;  // swizzled tiles begin at multiples of 1024
  at.others = at.k + K_BYTES, at.v = at.others + MY_PARTS * MINE * 128, at.p = at.v + V_BYTES;
  at.ds = at.p + 2 * DS_BYTES, at.other_ds = at.ds + 2 * DS_BYTES;
  at.q = at.other_ds + 2 * DS_BYTES, at.g = at.q + STAGES * Q_BYTES;
  const u32 rank = cluster_rank();
  const Sizes sizes = {queries, keys, heads, group, batches, first, last, section, wave, tiles, sum_blocks, first_q, first_k};
  if (threadIdx.x == 128) {
    init_buffers(&shared->kv_full, &shared->kv_empty, 1, 4);
    init_buffers(shared->q_full, shared->q_empty, STAGES, 16);
    init_buffers(shared->g_full, shared->g_empty, G_STAGES, 16);
    init_buffers(shared->tile_full, shared->tile_empty, 2, 2 * READERS);
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared->p_full[i]), 4), barrier_init(shared_address(&shared->p_empty[i]), 4);
      barrier_init(shared_address(&shared->ds_full[i]), 4), barrier_init(shared_address(&shared->ds_empty[i]), 8);
      barrier_init(shared_address(&shared->other_full[i]), 1);
    }
    fence_barrier_init();
  }
  release_successor();
  if (threadIdx.x == 0 && !PACKED) {
    const Work w = work_of(blockIdx.x / 2, sizes);
    fetch_first(&q_map, &k_map, &v_map, &g_map, w, w.key0 + rank * MINE, sizes, sharers);
  }
  __syncthreads();
  cluster_sync();  // both CTAs' barriers are there
  await_memory();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same for all of a warp, as the compiler sees it
  if (warpgroup == 0) {
    shrink_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce(&q_map, &k_map, &v_map, &g_map, at, rank, shared, sizes, sharers, lines, counter);
    if (threadIdx.x == 32) send(at, rank, shared, sizes);
  } else if (warpgroup == 1) {
    grow_registers<SCORER_REGISTERS>();
    score(at, rank, shared, sizes, dq_sums, scale2, SLOPE2);
  } else if (warpgroup == 2) {
    grow_registers<SUM_REGISTERS>();
    sum_rows<D_V, G_STAGES>(at.p, at.g, shared->p_full, shared->p_empty, shared->g_full, shared->g_empty, rank, shared, sizes, dv,
                            dv_batch, dv_head, dv_row, 1);
  } else {
    grow_registers<SUM_REGISTERS>();
    sum_rows<D, STAGES>(at.ds, at.q, shared->ds_full, shared->ds_empty, shared->q_full, shared->q_empty, rank, shared, sizes, dk,
                        dk_batch, dk_head, dk_row, scale);
  }
  // The other CTA may still write here, or arrive.
  cluster_sync();
}
