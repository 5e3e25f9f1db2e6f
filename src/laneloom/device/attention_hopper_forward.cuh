// What the forward kernels of attention on Hopper share: which tile is which and who takes it, the loads, the mask, the output.
//
// A tile is CONSUMERS * 64 queries of one head, a step COLUMNS keys. Compile-time constants besides: D_V, HAS_FIRST, HAS_LAST
// (the band's ends), PACKED (lengths from first_q, first_k), BOTTOM_RIGHT, PEAK (weights are 2^PEAK times those of the softmax), BF16 (of
// the output).

constexpr int ROWS = 64 * CONSUMERS;
constexpr int CONSUMER_WARPS = 4 * CONSUMERS;

struct Work { int batch, head, row0, queries, keys, q_first, k_first, first, last, begin, end; };

// The tile of this number: late rows first within a section of heads.
__device__ __forceinline__ Work locate(int number, const Sizes& n) {
  Work w;
  const int blocks = (n.queries + ROWS - 1) / ROWS;
  w.row0 = (blocks - 1 - find_head(number, n, n.heads, blocks, w.batch, w.head)) * ROWS;
  find_sequence(w, n);
  const int row_last = min(w.row0 + ROWS, w.queries) - 1;
  const int low = HAS_FIRST ? max(w.row0 + w.first, 0) : 0;
  const int high = HAS_LAST ? min(row_last + w.last + 1, w.keys) : w.keys;
  w.begin = low / COLUMNS;
  w.end = high > low ? (high + COLUMNS - 1) / COLUMNS : w.begin;
  return w;
}

// The same; of batch -1 if there is none.
__device__ __forceinline__ Work work_of(int number, const Sizes& n) {
  Work w;
  w.batch = -1;
  if (number < n.tiles) w = locate(number, n);
  return w;
}

// What the first tile begins with, before kernels ahead have ended: its queries, and of its first keys and values, with which all
// tiles of a head begin where nothing is hidden, its share. Rows come in boxes of PER_BOX elements.
template <int BOXES, int VALUE_BOXES, int PER_BOX>
__device__ __forceinline__ void fetch(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map, const Work& w, int q_head,
                                      const Sizes& n) {
  if (w.batch < 0) return;
  for (int slab = 0; slab < CONSUMERS; ++slab)
    for (int c = 0; c < BOXES; ++c) fetch_box(q_map, c * PER_BOX, w.row0 + slab * 64, q_head, w.batch);
  const int boxes = w.begin < w.end ? BOXES + VALUE_BOXES : 0, tiles = (w.queries + ROWS - 1) / ROWS, head = w.head / n.group;
  for (int c = HAS_LAST ? 0 : w.row0 / ROWS; c < boxes; c += HAS_LAST ? 1 : tiles) {
    if (c < BOXES) fetch_box(k_map, c * PER_BOX, (w.end - 1) * COLUMNS, head, w.batch);
    else fetch_box(v_map, (c - BOXES) * PER_BOX, (w.end - 1) * COLUMNS, head, w.batch);
  }
}

// The thread that fetches says which tile is next, `count` so far; one of batch -1 says that there is none. Shared: the kernel's.
template <typename Shared> __device__ __forceinline__ void announce(const Work& w, Shared* shared, u32& count) {
  const int slot = count % 2;
  barrier_wait(shared_address(&shared->tile_empty[slot]), ~(count++ / 2) & 1);
  shared->work[slot] = w;
  barrier_arrive(shared_address(&shared->tile_full[slot]));
}

// The next tile, once it is known; from one lane, so that the compiler sees what depends on it as the same for all of a warp.
template <typename Shared> __device__ __forceinline__ Work listen(Shared* shared, int slot, u32 phase) {
  barrier_wait(shared_address(&shared->tile_full[slot]), phase);
  const volatile Work& from = shared->work[slot];
  auto same = [](int x) { return (int)__shfl_sync(~0u, x, 0); };
  Work w;
  w.batch = same(from.batch), w.head = same(from.head), w.row0 = same(from.row0);
  w.queries = same(from.queries), w.keys = same(from.keys);
  w.q_first = same(from.q_first), w.k_first = same(from.k_first), w.first = same(from.first), w.last = same(from.last);
  w.begin = same(from.begin), w.end = same(from.end);
  return w;
}

// Every warp that listened has what it wants to know; tile_empty counts them.
template <typename Shared> __device__ __forceinline__ void acknowledge(Shared* shared, int& slot, u32& phase, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(shared_address(&shared->tile_empty[slot]));
  if (++slot == 2) slot = 0, phase ^= 1;
}

// The tile's queries, a slab of 64 for each consumer, in PIECES of 128 bytes a row that hold PER_PIECE elements each.
template <int PIECES, int PER_PIECE, int SLAB, typename Shared>
__device__ __forceinline__ void load_queries(u32 q_tile, const TensorMap* q_map, Shared* shared, const Work& w, int batch, int& q_buffer, u32& q_phase) {
#pragma unroll 1
  for (int slab = 0; slab < CONSUMERS; ++slab) {
    const u32 full = shared_address(&shared->q_full[q_buffer][slab]);
    barrier_wait(shared_address(&shared->q_empty[q_buffer][slab]), q_phase ^ 1);
    barrier_expect(full, PIECES * 64 * 128);
#pragma unroll 1
    for (int c = 0; c < PIECES; ++c)
      load_box(q_tile + (q_buffer * CONSUMERS + slab) * SLAB + c * 64 * 128, q_map, full, c * PER_PIECE, w.q_first + w.row0 + slab * 64, w.head, batch);
  }
  if (++q_buffer == Q_BUFFERS) q_buffer = 0, q_phase ^= 1;
}

// Scores that the band or the end of the keys hides become -infinity.
__device__ __forceinline__ void hide(float (&s)[COLUMNS / 2], int row, int column, const Work& w) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + 8 * half;
    const int high = (HAS_LAST ? min(i + w.last, w.keys - 1) : w.keys - 1) - column;
    const int low = HAS_FIRST ? i + w.first - column : 0;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * j + 2 * half + e];
        if (8 * j + e > high) x = -INFINITY;
        if (HAS_FIRST && 8 * j + e < low) x = -INFINITY;
      }
  }
}

// The same for a thread's part of the scores of a slab's 64 queries, if that block of keys is cut. Before, they are capped.
__device__ __forceinline__ void hide_if_cut(float (&s)[COLUMNS / 2], int block, int row_slab, int row, int lane, const Work& w,
                                            float slope2) {
  const int column = block * COLUMNS;
  const bool after = column + COLUMNS > w.keys || (HAS_LAST && column + COLUMNS - 1 > row_slab + w.last);
  const bool before = HAS_FIRST && column < row_slab + 63 + w.first;
  if (SOFTCAP) squash(s, slope2, after || before);
  if (after || before) hide(s, row, column + 2 * (lane % 4), w);
}

struct Output {
  const TensorMap* map;  // of boxes of a warp's rows
  u16* out;
  float* lse;
  i64 out_batch, out_head, out_row, lse_batch, lse_head;
};

// The warp's 16 rows, o `whole` / sum, through shared memory, and the log-sum-exp. `let_go` says when `tile` is free again.
__device__ __forceinline__ void write(float (&o)[D_V / 2], const float (&top)[2], float (&sum)[2], float scale2, float whole,
                                      const Work& w, const Output& to, int slab, int warp, int lane, u32 tile) {
  constexpr int GROUPS = D_V / 8;
  const int row_warp = w.row0 + slab * 64 + warp * 16;
  const i64 batch = PACKED ? 0 : w.batch;
  float* lse = to.lse + batch * to.lse_batch + w.head * to.lse_head + w.q_first;
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
    sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    factor[half] = sum[half] == 0 ? 0 : __fdividef(whole, sum[half]);
    const int row = row_warp + lane / 4 + 8 * half;
    if (lane % 4 == 0 && row < w.queries)
      lse[row] = sum[half] == 0 ? -INFINITY : (top[half] * scale2 + __log2f(sum[half]) - PEAK) * 0.6931471805599453f;
  }
  const u32 mine = tile + warp * 16 * 128;  // of each chunk
#pragma unroll
  for (int g = 0; g < GROUPS; g += 2) {
    const u32 a = pack(o[4 * g] * factor[0], o[4 * g + 1] * factor[0]);
    const u32 b = pack(o[4 * g + 2] * factor[1], o[4 * g + 3] * factor[1]);
    const u32 group = g + lane / 16;
    const u32 at = mine + group / 8 * 64 * 128 + swizzled(lane % 16, group % 8);
    if (g + 1 < GROUPS) {
      const u32 c = pack(o[4 * g + 4] * factor[0], o[4 * g + 5] * factor[0]);
      const u32 d = pack(o[4 * g + 6] * factor[1], o[4 * g + 7] * factor[1]);
      store_matrices(at, a, b, c, d);
    } else {
      store_matrices(mine + g / 8 * 64 * 128 + swizzled(lane % 16, g % 8), a, b);
    }
  }
  fence_async();
  __syncwarp();
  const int rows = w.queries - row_warp;
  if (PACKED && rows < 16) {  // a box would reach into the next sequence
    u16* out = to.out + batch * to.out_batch + w.head * to.out_head + (w.q_first + row_warp) * to.out_row;
    copy_lines<D_V, 64 * 128>(mine, out, to.out_row, rows, lane);
    fence_async();
    __syncwarp();
  } else if (rows > 0 && lane == 0) {
#pragma unroll
    for (int c = 0; c < CHUNKS(D_V); ++c) store_box(mine + c * 64 * 128, to.map, c * 64, w.q_first + row_warp, w.head, batch);
    store_commit();
  }
}

// The warp's rows of the tile of queries, which became its output's, are free.
__device__ __forceinline__ void let_go(u64* q_empty, int lane) {
  await_stores();
  if (lane == 0) barrier_arrive(shared_address(q_empty));
}

// Queries without keys: zeros, and the logarithm of nothing. Shared memory belongs to the next tile.
__device__ __forceinline__ void write_nothing(const Work& w, const Output& to, int row_warp, int lane) {
  const i64 batch = PACKED ? 0 : w.batch;
  for (int row = row_warp; row < min(row_warp + 16, w.queries); ++row) {
    u16* out = to.out + batch * to.out_batch + w.head * to.out_head + (w.q_first + row) * to.out_row;
    store_eight(out + lane * 8, make_uint4(0, 0, 0, 0), lane < D_V / 8);
    if (lane == 0) to.lse[batch * to.lse_batch + w.head * to.lse_head + w.q_first + row] = -INFINITY;
  }
}
