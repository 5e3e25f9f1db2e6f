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

struct Work {
  int batch, head, key0, queries, keys, q_first, k_first, first, last, begin, end;
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
  return w;
}

// Where sums and lines of a head's queries begin, in blocks.
__device__ __forceinline__ i64 first_block(const Work& w, int head, const Sizes& n) {
  return PACKED ? (i64)head * n.sum_blocks + w.q_first / BLOCK + w.batch : ((i64)w.batch * n.heads + head) * n.sum_blocks;
}

// lse2 and delta of a block.
__device__ __forceinline__ void load_line(u32 target, const float* from, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(target), "l"(from), "n"(2 * BLOCK * 4), "r"(bar) : "memory");
}
