// What the backward kernels of attention for Hopper share: which keys a tile has, which blocks of queries see them. It comes after
// attention_hopper.cuh.
//
// Compile-time constants: D, D_V, KEYS (of a tile), HAS_FIRST, HAS_LAST, PACKED, BOTTOM_RIGHT.

constexpr int BLOCK = 64;  // queries of a step
constexpr int Q_BYTES = CHUNKS(D) * BLOCK * 128, G_BYTES = CHUNKS(D_V) * BLOCK * 128;
constexpr int D_STEPS = (D + 15) / 16, V_STEPS = (D_V + 15) / 16;

template <int COUNT> __device__ __forceinline__ void advance(int& stage, u32& phase) {
  if (++stage == COUNT) stage = 0, phase ^= 1;
}

// step: blocks of queries are visited from the last one down, by every second wave of tiles from the first one up. With a causal mask
// a wave's longest tiles come first, and who is done with a short one takes a long one: so the first wave begins together at the last
// block and the second one ends together there, each block's readers and its sums of dQ meet in the L2, and all are done at once.
struct Work {
  int batch, head, key0, queries, keys, q_first, k_first, first, last, begin, end, step;
};

__device__ __forceinline__ Work locate(int number, const Sizes& n) {
  Work w;
  w.key0 = find_head(number, n, n.heads / n.group, (n.keys + KEYS - 1) / KEYS, w.batch, w.head) * KEYS;
  find_sequence(w, n);
  const int key_last = min(w.key0 + KEYS, w.keys) - 1;
  const int low = HAS_LAST ? max(w.key0 - w.last, 0) : 0;
  const int high = HAS_FIRST ? min(key_last - w.first + 1, w.queries) : w.queries;
  w.begin = low / BLOCK;
  w.end = high > low && w.key0 < w.keys ? (high + BLOCK - 1) / BLOCK : w.begin;
  w.step = number / n.wave % 2 ? 1 : -1;
  return w;
}

// The same; of batch -1 if there is none.
__device__ __forceinline__ Work work_of(int number, const Sizes& n) {
  Work w;
  w.batch = -1;
  if (number < n.tiles) w = locate(number, n);
  return w;
}

__device__ __forceinline__ int first_visited(const Work& w) { return w.step > 0 ? w.begin : w.end - 1; }

// What the first tile begins with, before kernels ahead have ended: its keys and values from `key` on, and the head's first block of
// queries, by one of its tiles.
__device__ __forceinline__ void fetch_first(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map,
                                            const TensorMap* g_map, const Work& w, int key, const Sizes& n, int sharers) {
  prefetch_map(q_map), prefetch_map(k_map), prefetch_map(v_map), prefetch_map(g_map);
  if (w.batch < 0 || w.begin >= w.end) return;
  for (int c = 0; c < CHUNKS(D); ++c) fetch_box(k_map, c * 64, key, w.head / sharers, w.batch);
  for (int c = 0; c < CHUNKS(D_V); ++c) fetch_box(v_map, c * 64, key, w.head / sharers, w.batch);
  if (key > 0) return;
  const int head = w.head * n.group, row = first_visited(w) * BLOCK;
  for (int c = 0; c < CHUNKS(D); ++c) fetch_box(q_map, c * 64, row, head, w.batch);
  for (int c = 0; c < CHUNKS(D_V); ++c) fetch_box(g_map, c * 64, row, head, w.batch);
}

// Where sums and lines of a head's queries begin, in blocks.
__device__ __forceinline__ i64 first_block(const Work& w, int head, const Sizes& n) {
  return PACKED ? (i64)head * n.sum_blocks + w.q_first / BLOCK + w.batch : ((i64)w.batch * n.heads + head) * n.sum_blocks;
}

constexpr int PARTS = CHUNKS(D), SUMS = BLOCK * 64;  // of dQ's columns, 64 each; sums of a block's part
constexpr int LAST_WIDTH = (D - 1) % 64 + 1;  // columns of the last part

// Additions in the L2: sums lie in the order of the accumulators' registers, 16 bytes a lane, 512 a warp.
template <int WIDTH> __device__ __forceinline__ void add_columns(const float (&dq)[32], float* sums) {
#pragma unroll
  for (int r = 0; r < WIDTH / 2; r += 4)
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(sums + r * 128), "f"(dq[r]), "f"(dq[r + 1]), "f"(dq[r + 2]), "f"(dq[r + 3]) : "memory");
}
__device__ __forceinline__ void add_queries(const float (&dq)[32], float* sums, int part) {
  if (LAST_WIDTH == 64 || part < PARTS - 1) add_columns<64>(dq, sums);
  else add_columns<LAST_WIDTH>(dq, sums);
}

// lse2 and delta of a block.
__device__ __forceinline__ void load_line(u32 target, const float* from, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(target), "l"(from), "n"(2 * BLOCK * 4), "r"(bar) : "memory");
}
