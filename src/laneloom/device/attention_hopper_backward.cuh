// What the backward kernels of attention for Hopper share: tiles of keys and their blocks of queries, in which order, and the
// thread that fetches them. It comes after attention_hopper.cuh.
//
// Compile-time constants: D, D_V, KEYS (of a tile), STAGES (blocks of Q and dO in shared memory), HAS_FIRST, HAS_LAST, PACKED,
// BOTTOM_RIGHT, BF16.

constexpr int BLOCK = 64;  // queries of a step
constexpr int K_BYTES = CHUNKS(D) * KEYS * 128, V_BYTES = CHUNKS(D_V) * KEYS * 128;
constexpr int Q_BYTES = CHUNKS(D) * BLOCK * 128, G_BYTES = CHUNKS(D_V) * BLOCK * 128;
constexpr int D_STEPS = (D + 15) / 16, V_STEPS = (D_V + 15) / 16;

// Barriers and lines of every kernel: full ones count the copy engine's bytes, empty ones the warps that have read.
struct Rings {
  u64 kv_full, kv_empty;
  u64 q_full[STAGES], q_empty[STAGES], g_full[STAGES], g_empty[STAGES];
  u64 tile_full[2], tile_empty[2];
  int tile[2];
  __align__(16) float lines[STAGES][2][BLOCK];  // lse2 and delta
};

struct Work {
  int batch, head, key0, queries, keys, q_first, k_first, first, last, begin, end;
};

__device__ __forceinline__ Work locate(int number, const Sizes& n) {
  Work w;
  const int blocks = (n.keys + KEYS - 1) / KEYS, heads = n.heads / n.group;
  const int per_section = n.section * blocks;
  const int section = number / per_section, within = number % per_section;
  const int here = min(n.section, n.batches * heads - section * n.section);
  const int owner = section * n.section + within % here;
  w.batch = owner / heads, w.head = owner % heads;
  w.key0 = within / here * KEYS;
  w.queries = n.queries, w.keys = n.keys, w.first = n.first, w.last = n.last;
  w.q_first = w.k_first = 0;
#if PACKED
  w.q_first = n.first_q[w.batch];
  w.k_first = n.first_k[w.batch];
  w.queries = n.first_q[w.batch + 1] - w.q_first;
  w.keys = n.first_k[w.batch + 1] - w.k_first;
  if (BOTTOM_RIGHT) w.first += w.keys - w.queries, w.last += w.keys - w.queries;
#endif
  const int key_last = min(w.key0 + KEYS, w.keys) - 1;
  const int low = HAS_LAST ? max(w.key0 - w.last, 0) : 0;
  const int high = HAS_FIRST ? min(key_last - w.first + 1, w.queries) : w.queries;
  w.begin = low / BLOCK;
  w.end = high > low && w.key0 < w.keys ? (high + BLOCK - 1) / BLOCK : w.begin;
  return w;
}

// Where sums and lines of a head's queries begin, in blocks.
__device__ __forceinline__ i64 first_block(const Work& w, int head, const Sizes& n) {
  return PACKED ? (i64)head * n.sum_blocks + w.q_first / BLOCK + w.batch : ((i64)w.batch * n.heads + head) * n.sum_blocks;
}

// The next tile's number, as the producer says it; all of a warp ask.
__device__ __forceinline__ int hear_tile(Rings* rings, int& slot, u32& phase, int lane) {
  barrier_wait(shared_address(&rings->tile_full[slot]), phase);
  const int number = *(volatile int*)&rings->tile[slot];
  __syncwarp();
  if (lane == 0) barrier_arrive(shared_address(&rings->tile_empty[slot]));
  if (++slot == 2) slot = 0, phase ^= 1;
  return number;
}

__device__ __forceinline__ void load_line(u32 target, const float* from, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(target), "l"(from), "n"(2 * BLOCK * 4), "r"(bar) : "memory");
}

__device__ __forceinline__ void produce(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map,
                                        const TensorMap* g_map, u32 q_tile, u32 k_tile, u32 v_tile, u32 g_tile, Rings* rings,
                                        const Sizes& sizes, const float* lines, int* counter) {
  int stage = 0, slot = 0, number = blockIdx.x;
  u32 phase = 0, tile_phase = 0, kv_phase = 0;
  while (true) {
    const int next = next_tile(number, sizes.tiles, counter);
    barrier_wait(shared_address(&rings->tile_empty[slot]), tile_phase ^ 1);
    rings->tile[slot] = number;
    barrier_arrive(shared_address(&rings->tile_full[slot]));
    if (++slot == 2) slot = 0, tile_phase ^= 1;
    if (number >= sizes.tiles) return;
    const Work w = locate(number, sizes);
    const int batch = PACKED ? 0 : w.batch;
    int head = w.head * sizes.group, block = w.begin;
    if (w.begin < w.end) {
      const u32 full = shared_address(&rings->kv_full);
      barrier_wait(shared_address(&rings->kv_empty), kv_phase ^ 1);
      barrier_expect(full, K_BYTES + V_BYTES);
#pragma unroll 1
      for (int c = 0; c < CHUNKS(D); ++c)
        load_box(k_tile + c * KEYS * 128, k_map, full, c * 64, w.k_first + w.key0, w.head, batch);
#pragma unroll 1
      for (int c = 0; c < CHUNKS(D_V); ++c)
        load_box(v_tile + c * KEYS * 128, v_map, full, c * 64, w.k_first + w.key0, w.head, batch);
      kv_phase ^= 1;
    }
#pragma unroll 1
    for (int left = (w.end - w.begin) * sizes.group; left > 0; --left) {
      const u32 q_full = shared_address(&rings->q_full[stage]), g_full = shared_address(&rings->g_full[stage]);
      const int row = w.q_first + block * BLOCK;
      barrier_wait(shared_address(&rings->q_empty[stage]), phase ^ 1);
      barrier_expect(q_full, Q_BYTES + 2 * BLOCK * 4);
#pragma unroll 1
      for (int c = 0; c < CHUNKS(D); ++c)
        load_box(q_tile + (stage * CHUNKS(D) + c) * BLOCK * 128, q_map, q_full, c * 64, row, head, batch);
      load_line(shared_address(rings->lines[stage]), lines + (first_block(w, head, sizes) + block) * 2 * BLOCK, q_full);
      barrier_wait(shared_address(&rings->g_empty[stage]), phase ^ 1);
      barrier_expect(g_full, G_BYTES);
#pragma unroll 1
      for (int c = 0; c < CHUNKS(D_V); ++c)
        load_box(g_tile + (stage * CHUNKS(D_V) + c) * BLOCK * 128, g_map, g_full, c * 64, row, head, batch);
      step_ring(stage, phase);
      if (++block == w.end) block = w.begin, ++head;
    }
    number = next;
  }
}

