// What the backward kernels of attention share whose warpgroups own 64 keys each and keep their dK and dV in registers:
//
//   S^T = K Q^T, dP^T = V dO^T        64 keys x BLOCK queries, P = 2^(scale2 S - lse2), dS = P (dP - delta)
//   dV += P^T dO, dK += dS^T Q        dQ += dS K, by FP32 additions in the L2
//
// What belongs to a query belongs to a column here: each thread would load 16 of lse and of delta, 8 lanes the same ones. The
// matrix units add them instead, by one more step of the product. It comes after attention_hopper_backward.cuh.
//
// Compile-time constants: those of attention_hopper_backward.cuh, STAGES (blocks of Q and dO in shared memory), BF16. wgmma functions: multiply_block (64 x 64 x 16), add_values and add_keys (64 x D_V or D x 16, A in registers),
// multiply_queries (64 x 64 x 16, A by column).

constexpr int KEY_BYTES = CHUNKS(D) * KEYS * 128, VALUE_BYTES = CHUNKS(D_V) * KEYS * 128;
constexpr int DS_BYTES = KEYS * 128;
constexpr int LINE_BYTES = 2 * BLOCK * 16;  // of a block
constexpr int ONES_BYTES = 64 * 128;
constexpr int WARPS = KEYS / 16;  // that own keys

// A full barrier counts the copy engine's bytes, an empty one the warps that have read. Of lines, 8 elements a query: -lse / scale,
// or -delta, as 2^15 a + 16 b + c, and zeros. The second half of this operand's K is zeros for all of them.
struct Shared {
  u64 k_full, k_empty, v_full, v_empty;
  u64 q_full[STAGES], q_empty[STAGES], g_full[STAGES], g_empty[STAGES];
  u64 tile_full[2], tile_empty[2], ds_full[2], ds_empty[2];
  Work work[2];
  __align__(16) u16 lines[STAGES][2][BLOCK][8];
  u16 zeros[BLOCK][8];
};

__device__ __forceinline__ void store_shared(u32 address, u32 a, u32 b) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %3};" ::"r"(address), "r"(a), "r"(b), "r"(0) : "memory");
}

struct Tiles {
  u32 k, v, ds, ones, q, g;  // addresses in shared memory: keys, values, two tiles of dS, ones, rings of Q and dO
};

__device__ __forceinline__ Tiles place_tiles(const void* memory) {
  Tiles at;
  at.k = (shared_address(memory) + 1023) & ~1023u;  // swizzled tiles begin at multiples of 1024
  at.v = at.k + KEY_BYTES, at.ds = at.v + VALUE_BYTES;
  at.ones = at.ds + 2 * DS_BYTES;
  at.q = at.ones + ONES_BYTES, at.g = at.q + STAGES * Q_BYTES;
  return at;
}

// All threads. Each row of ones is {2^15, 16, 1, 0 ..}: what lines are multiplied by. listeners: warps that are told of tiles
// and read their keys, ds_readers: those that read a whole tile of dS.
__device__ __forceinline__ void set_up(Shared* shared, const Tiles& at, int listeners, int ds_readers) {
  for (int i = threadIdx.x; i < BLOCK * 4; i += blockDim.x) ((u32*)shared->zeros)[i] = 0;
  for (int i = threadIdx.x; i < 64 * 8; i += blockDim.x) {
    const bool first = i % 8 == 0;
    store_shared(at.ones + swizzled(i / 8, i % 8), first ? (BF16 ? 0x41804700 : 0x4c007800) : 0, first ? (BF16 ? 0x3f80 : 0x3c00) : 0);
  }
  fence_async();
  if (threadIdx.x == 128) {
    init_buffers(&shared->k_full, &shared->k_empty, 1, listeners);
    init_buffers(&shared->v_full, &shared->v_empty, 1, WARPS);
    init_buffers(shared->q_full, shared->q_empty, STAGES, WARPS);
    init_buffers(shared->g_full, shared->g_empty, STAGES, WARPS);
    init_buffers(shared->tile_full, shared->tile_empty, 2, listeners);
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared->ds_full[i]), WARPS);
      barrier_init(shared_address(&shared->ds_empty[i]), ds_readers);
    }
    fence_barrier_init();
  }
  __syncthreads();
}

// The next tile, false if there is none; from one lane, so that the compiler sees what depends on it as the same for all of a warp.
__device__ __forceinline__ bool listen(Work& w, Shared* shared, int& slot, u32& phase) {
  barrier_wait(shared_address(&shared->tile_full[slot]), phase);
  volatile Work* from = &shared->work[slot];
  auto same = [](int x) { return (int)__shfl_sync(~0u, x, 0); };
  w.batch = same(from->batch), w.head = same(from->head), w.key0 = same(from->key0);
  w.queries = same(from->queries), w.keys = same(from->keys);
  w.q_first = same(from->q_first), w.k_first = same(from->k_first), w.first = same(from->first), w.last = same(from->last);
  w.begin = same(from->begin), w.end = same(from->end), w.step = same(from->step);
  if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared->tile_empty[slot]));
  if (++slot == 2) slot = 0, phase ^= 1;
  return w.batch >= 0;
}

__device__ __forceinline__ void load_lines(u32 target, const char* from, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(target), "l"(from), "n"(LINE_BYTES), "r"(bar) : "memory");
}

// The thread that fetches: tiles, their keys and values, blocks of Q and dO. A tile's first blocks come before its values and keys,
// whose places are free only when the tile before has its last dP and dQ. Heads are those of keys, for each of its sharers.
__device__ __forceinline__ void fetch(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map,
                                      const TensorMap* g_map, const Tiles& at, Shared* shared, const Sizes& sizes, int sharers,
                                      const char* lines, int* counter, Work w) {
  const u32 k_full = shared_address(&shared->k_full), v_full = shared_address(&shared->v_full);
  int stage = 0, slot = 0, ahead = 0;  // ahead: blocks before values and keys
  u32 phase = 0, tile_phase = 0, kv_phase = 0;
  for (;; w = work_of(next_tile(atomicAdd(counter, 1), sizes.tiles, counter), sizes)) {
    barrier_wait(shared_address(&shared->tile_empty[slot]), tile_phase ^ 1);
    shared->work[slot] = w;
    barrier_arrive(shared_address(&shared->tile_full[slot]));
    advance<2>(slot, tile_phase);
    if (w.batch < 0) return;
    const int batch = PACKED ? 0 : w.batch, steps = (w.end - w.begin) * sizes.group;
    if (steps == 0) continue;
    const int first = min(ahead, steps);
    ahead = STAGES - 1;
    int head = w.head * sizes.group, block = first_visited(w);
#pragma unroll 1
    for (int step = 0; step <= steps; ++step) {
      if (step == first) {
        barrier_wait(shared_address(&shared->v_empty), kv_phase ^ 1);
        barrier_expect(v_full, VALUE_BYTES);
#pragma unroll 1
        for (int c = 0; c < CHUNKS(D_V); ++c)
          load_box(at.v + c * KEYS * 128, v_map, v_full, c * 64, w.k_first + w.key0, w.head / sharers, batch);
        barrier_wait(shared_address(&shared->k_empty), kv_phase ^ 1);
        barrier_expect(k_full, KEY_BYTES);
#pragma unroll 1
        for (int c = 0; c < CHUNKS(D); ++c)
          load_box(at.k + c * KEYS * 128, k_map, k_full, c * 64, w.k_first + w.key0, w.head / sharers, batch);
        kv_phase ^= 1;
      }
      if (step == steps) break;
      const u32 q_full = shared_address(&shared->q_full[stage]), g_full = shared_address(&shared->g_full[stage]);
      const int row = w.q_first + block * BLOCK;
      barrier_wait(shared_address(&shared->q_empty[stage]), phase ^ 1);
      barrier_expect(q_full, Q_BYTES + LINE_BYTES);
#pragma unroll 1
      for (int c = 0; c < CHUNKS(D); ++c)
        load_box(at.q + (stage * CHUNKS(D) + c) * BLOCK * 128, q_map, q_full, c * 64, row, head, batch);
      load_lines(shared_address(shared->lines[stage]), lines + (first_block(w, head, sizes) + block) * LINE_BYTES, q_full);
      barrier_wait(shared_address(&shared->g_empty[stage]), phase ^ 1);
      barrier_expect(g_full, G_BYTES);
#pragma unroll 1
      for (int c = 0; c < CHUNKS(D_V); ++c)
        load_box(at.g + (stage * CHUNKS(D_V) + c) * BLOCK * 128, g_map, g_full, c * 64, row, head, batch);
      advance<STAGES>(stage, phase);
      if (++head == (w.head + 1) * sizes.group) head = w.head * sizes.group, block += w.step;
    }
  }
}

// threadIdx.x, read once: the compiler would read it again wherever it is needed, which takes longer than a register is worth.
__device__ __forceinline__ u32 thread_number() {
  u32 number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}

// Rows of 16 bytes, 8 of them together, without swizzle; zeros, the second half of K, lie behind.
__device__ __forceinline__ u64 line_descriptor(const void* line, const Shared* shared) {
  const u32 at = shared_address(line), half = shared_address(shared->zeros) - at;
  return (u64)((at & 0x3ffff) >> 4) | (u64)(half >> 4) << 16 | (u64)(128 >> 4) << 32;
}

template <int STEPS>
__device__ __forceinline__ void issue_block(float (&acc)[BLOCK / 2], const void* line, const Shared* shared, const Tiles& at,
                                            u32 a_tile, u32 b_tile) {
  const u64 a = rows_descriptor(a_tile), b = rows_descriptor(b_tile);
  multiply_block(acc, rows_descriptor(at.ones), line_descriptor(line, shared), 0);
#pragma unroll
  for (int i = 0; i < STEPS; ++i)
    multiply_block(acc, a + ((i / 4 * KEYS * 128 + i % 4 * 32) >> 4), b + ((i / 4 * BLOCK * 128 + i % 4 * 32) >> 4), 1);
}

// dV and dK of 64 keys: the weights are accumulators whose layout is the A operand's.
__device__ __forceinline__ void issue_values(float (&dv)[D_V / 2], const u32 (&p)[BLOCK / 4], u32 g_tile) {
  const u64 g = columns_descriptor(g_tile, BLOCK * 128);
#pragma unroll
  for (int j = 0; j < BLOCK / 16; ++j)
    add_values(dv, p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3], g + (j * 16 * 128 >> 4), 1);
}
__device__ __forceinline__ void issue_keys(float (&dk)[D / 2], const u32 (&ds)[BLOCK / 4], u32 q_tile) {
  const u64 q = columns_descriptor(q_tile, BLOCK * 128);
#pragma unroll
  for (int j = 0; j < BLOCK / 16; ++j)
    add_keys(dk, ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3], q + (j * 16 * 128 >> 4), 1);
}

// dQ of a block, 64 columns of it: all warpgroups' dS, as columns, by K.
__device__ __forceinline__ void issue_queries(float (&dq)[32], u32 ds_tile, u32 k_part) {
  const u64 ds = columns_descriptor(ds_tile, 0), k = columns_descriptor(k_part, 0);
#pragma unroll
  for (int j = 0; j < KEYS / 16; ++j) multiply_queries(dq, ds + (j * 16 * 128 >> 4), k + (j * 16 * 128 >> 4), j > 0);
}

// Scores of pairs that the band or the ends hide become -infinity.
__device__ __forceinline__ void hide(float (&s)[BLOCK / 2], int key, int query, const Work& w) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = key + 8 * half;
    const int low = j >= w.keys ? BLOCK : HAS_LAST ? j - w.last - query : 0;
    const int high = HAS_FIRST ? j - w.first - query : BLOCK;
#pragma unroll
    for (int g = 0; g < BLOCK / 8; ++g)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * g + 2 * half + e];
        if (8 * g + e < low) x = -INFINITY;
        if (HAS_FIRST && 8 * g + e > high) x = -INFINITY;
      }
  }
}

// P = 2^(scale2 S); scores have their -lse / scale already.
__device__ __forceinline__ void weigh(float (&s)[BLOCK / 2], float scale2) {
#pragma unroll
  for (int i = 0; i < BLOCK / 2; ++i) s[i] = exp2_fast(s[i] * scale2);
}

__device__ __forceinline__ void to_operand(const float (&x)[BLOCK / 2], u32 (&y)[BLOCK / 4]) {
#pragma unroll
  for (int i = 0; i < BLOCK / 4; ++i) y[i] = pack(x[2 * i], x[2 * i + 1]);
}

// A warp's 16 rows of dS to their tile. `at` is group 0's address: group g, which is even, has bits 5 and 6 exchanged by g.
__device__ __forceinline__ void store_ds(const u32 (&ds)[BLOCK / 4], u32 at) {
#pragma unroll
  for (int g = 0; g < BLOCK / 8; g += 2) store_matrices(at ^ g * 16, ds[2 * g], ds[2 * g + 1], ds[2 * g + 2], ds[2 * g + 3]);
}

struct Output {
  u16 *dk, *dv;
  i64 dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row;
  float scale;
};

// A warp's 16 rows x WIDTH through its rows of both tiles of dS to 16-byte stores of whole lines.
template <int WIDTH>
__device__ __forceinline__ void write_lines(const float (&x)[WIDTH / 2], float factor, u32 tile, u16* out, i64 row_stride, int rows,
                                            int lane) {
  constexpr int GROUPS = WIDTH / 8;
#pragma unroll
  for (int g = 0; g < GROUPS; g += 2) {
    const u32 a = pack(x[4 * g] * factor, x[4 * g + 1] * factor), b = pack(x[4 * g + 2] * factor, x[4 * g + 3] * factor);
    if (g + 1 < GROUPS) {
      const u32 c = pack(x[4 * g + 4] * factor, x[4 * g + 5] * factor), d = pack(x[4 * g + 6] * factor, x[4 * g + 7] * factor);
      const u32 group = g + lane / 16;
      store_matrices(tile + group / 8 * DS_BYTES + swizzled(lane % 16, group % 8), a, b, c, d);
    } else {
      store_matrices(tile + g / 8 * DS_BYTES + swizzled(lane % 16, g % 8), a, b);
    }
  }
  __syncwarp();
  copy_lines<WIDTH, DS_BYTES>(tile, out, row_stride, rows, lane);
  __syncwarp();
}

// A warp's rows of dK and dV, which begin at key `row`; step: of dS, whose tiles are free from here on.
__device__ __forceinline__ void write_sums(const float (&dk)[D / 2], const float (&dv)[D_V / 2], const Output& to, const Work& w,
                                           int row, u32 ds_rows, Shared* shared, u32 step, int lane) {
  const i64 batch = PACKED ? 0 : w.batch, at = w.k_first + row;
#pragma unroll
  for (u32 later = 0; later < 2; ++later)
    barrier_wait(shared_address(&shared->ds_empty[(step + later) % 2]), (step + later) / 2 % 2 ^ 1);
  write_lines<D_V>(dv, 1, ds_rows, to.dv + batch * to.dv_batch + w.head * to.dv_head + at * to.dv_row, to.dv_row, w.keys - row, lane);
  write_lines<D>(dk, to.scale, ds_rows, to.dk + batch * to.dk_batch + w.head * to.dk_head + at * to.dk_row, to.dk_row, w.keys - row, lane);
}
