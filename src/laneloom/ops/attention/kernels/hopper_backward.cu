// dQ, dK, dV of attention by two warpgroups of Hopper. A tile is 128 keys of one head of keys, 64 for each warpgroup, which keep
// their dK and dV in registers and visit the blocks of 64 queries, of all query heads of the group, that see them:
//
//   S^T = K Q^T, dP^T = V dO^T        64 x 64 each, P = 2^(scale2 S - lse2), dS = P (dP - delta)
//   dV += P^T dO, dK += dS^T Q        P from registers: an accumulator's layout is the A operand's; dS from shared memory
//   dQ += dS K                        dS of both warpgroups, dQ by FP32 additions in the L2
//
// The next block's S is issued before this block's dQ and dK, and its exponentials run under them. dQ's sums lie in the order of
// the accumulators' registers, so that an addition is 16 bytes a lane, 512 a warp; attention_hopper_finish puts them in rows.
//
// Compile-time constants: D, D_V (multiples of 8 up to 128), STAGES (blocks of Q and dO in shared memory), HAS_FIRST, HAS_LAST,
// PACKED, BOTTOM_RIGHT, BF16, CONSUMER_REGISTERS, PRODUCER_REGISTERS. wgmma functions: multiply_block (64 x 64 x 16), add_values
// (64 x D_V x 16, A in registers), add_keys (64 x D x 16), multiply_queries (64 x 64 x 16, A by column).

constexpr int DQ_PARTS = CHUNKS(D);  // 2: a warpgroup computes 64 columns of dQ each; 1: they take turns
constexpr int K_BYTES = CHUNKS(D) * KEYS * 128, V_BYTES = CHUNKS(D_V) * KEYS * 128;
constexpr int DS_BYTES = KEYS * 128;
constexpr int SUMS = 64 * 64;  // of dQ, by one warpgroup in one block
constexpr float LOG2E = 1.4426950408889634f;

struct Shared {
  u64 kv_full, kv_empty;
  u64 q_full[STAGES], q_empty[STAGES], g_full[STAGES], g_empty[STAGES];
  u64 tile_full[2], tile_empty[2], ds_full[2], ds_empty[2];
  int tile[2];
  __align__(16) float lines[STAGES][2][BLOCK];  // lse2 and delta
};

__device__ __forceinline__ void produce(const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map,
                                        const TensorMap* g_map, u32 q_tile, u32 k_tile, u32 v_tile, u32 g_tile, Shared* shared,
                                        const Sizes& sizes, const float* lines, int* counter) {
  int stage = 0, slot = 0, number = blockIdx.x;
  u32 phase = 0, tile_phase = 0, kv_phase = 0;
  while (true) {
    const int next = next_tile(number, sizes.tiles, counter);
    barrier_wait(shared_address(&shared->tile_empty[slot]), tile_phase ^ 1);
    shared->tile[slot] = number;
    barrier_arrive(shared_address(&shared->tile_full[slot]));
    if (++slot == 2) slot = 0, tile_phase ^= 1;
    if (number >= sizes.tiles) return;
    const Work w = locate(number, sizes);
    const int batch = PACKED ? 0 : w.batch;
    int head = w.head * sizes.group, block = w.begin;
    if (w.begin < w.end) {
      const u32 full = shared_address(&shared->kv_full);
      barrier_wait(shared_address(&shared->kv_empty), kv_phase ^ 1);
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
      const u32 q_full = shared_address(&shared->q_full[stage]), g_full = shared_address(&shared->g_full[stage]);
      const int row = w.q_first + block * BLOCK;
      barrier_wait(shared_address(&shared->q_empty[stage]), phase ^ 1);
      barrier_expect(q_full, Q_BYTES + 2 * BLOCK * 4);
#pragma unroll 1
      for (int c = 0; c < CHUNKS(D); ++c)
        load_box(q_tile + (stage * CHUNKS(D) + c) * BLOCK * 128, q_map, q_full, c * 64, row, head, batch);
      load_line(shared_address(shared->lines[stage]), lines + (first_block(w, head, sizes) + block) * 2 * BLOCK, q_full);
      barrier_wait(shared_address(&shared->g_empty[stage]), phase ^ 1);
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

__device__ __forceinline__ float2 load_pair(const float* p) { return *(const float2*)p; }

template <int STEPS, int ROWS_A, int ROWS_B>
__device__ __forceinline__ void issue_block(float (&acc)[BLOCK / 2], u32 a_tile, u32 b_tile) {
  const u64 a = rows_descriptor(a_tile), b = rows_descriptor(b_tile);
#pragma unroll
  for (int i = 0; i < STEPS; ++i)
    multiply_block(acc, a + ((i / 4 * ROWS_A * 128 + i % 4 * 32) >> 4), b + ((i / 4 * ROWS_B * 128 + i % 4 * 32) >> 4), i > 0);
}

struct Output {
  u16 *dk, *dv;
  float* dq_sums;
  i64 dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row;
  float scale;
};

// A warp's 16 rows x WIDTH through its rows of a tile in shared memory to 16-byte stores.
template <int WIDTH>
__device__ __forceinline__ void write_rows(const float (&x)[WIDTH / 2], float factor, u32 tile, u16* out, i64 row_stride, int rows,
                                           int lane) {
  constexpr int GROUPS = WIDTH / 8;
#pragma unroll
  for (int g = 0; g < GROUPS; g += 2) {
    const u32 a = pack(x[4 * g] * factor, x[4 * g + 1] * factor), b = pack(x[4 * g + 2] * factor, x[4 * g + 3] * factor);
    if (g + 1 < GROUPS) {
      const u32 c = pack(x[4 * g + 4] * factor, x[4 * g + 5] * factor), d = pack(x[4 * g + 6] * factor, x[4 * g + 7] * factor);
      const u32 group = g + lane / 16;
      store_matrices(tile + group / 8 * KEYS * 128 + swizzled(lane % 16, group % 8), a, b, c, d);
    } else {
      store_matrices(tile + g / 8 * KEYS * 128 + swizzled(lane % 16, g % 8), a, b);
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < (16 * GROUPS + 31) / 32; ++i) {
    const int vector = i * 32 + lane;
    const int row = vector / GROUPS, group = vector % GROUPS;
    if (row < 16 && row < rows)
      *(uint4*)(out + row * row_stride + group * 8) = load_shared(tile + group / 8 * KEYS * 128 + swizzled(row, group % 8));
  }
}

// dQ of one block, the product of both warpgroups' dS with K, and its addition to the sums.
__device__ __forceinline__ void issue_queries(float (&dq)[32], u32 ds_now, u32 k_part, bool mine) {
  const u64 ds = columns_descriptor(ds_now, 0), k = columns_descriptor(k_part, 0);
  if (mine) {
    if (DQ_PARTS == 1) wgmma_fence();  // on this path, or the compiler puts its own and waits for each product
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) multiply_queries(dq, ds + (j * 16 * 128 >> 4), k + (j * 16 * 128 >> 4), j > 0);
  }
}

__device__ __forceinline__ void add_queries(const float (&dq)[32], float* sums, bool mine) {
  if (mine) {
#pragma unroll
    for (int r = 0; r < 32; r += 4)
      asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                   ::"l"(sums + r * 128), "f"(dq[r]), "f"(dq[r + 1]), "f"(dq[r + 2]), "f"(dq[r + 3]) : "memory");
  }
}

__device__ __forceinline__ void consume(int slab, u32 q_tile, u32 k_tile, u32 v_tile, u32 g_tile, u32 ds_tile, Shared* shared,
                                        const Sizes& sizes, const Output& to, float scale2) {
  const int thread = threadIdx.x % 128;
  const int warp = thread / 32, lane = thread % 32;
  const u32 k_slab = k_tile + slab * 64 * 128, v_slab = v_tile + slab * 64 * 128;
  const u32 k_part = k_tile + (DQ_PARTS == 2 ? slab * KEYS * 128 : 0);
  // Group g of this warp's rows of dS is at this address with bits 5 and 6 exchanged by g, which is even.
  const u32 ds_store = ds_tile + (slab * 64 + warp * 16) * 128 + swizzled(lane % 16, lane / 16);
  int stage = 0, slot = 0;
  u32 phase = 0, tile_phase = 0, kv_phase = 0, step = 0;  // step: of all tiles together
  auto release = [&](u64* empty) {
    if (lane == 0) barrier_arrive(shared_address(empty));
  };
  while (true) {
    barrier_wait(shared_address(&shared->tile_full[slot]), tile_phase);
    const int number = *(volatile int*)&shared->tile[slot];
    __syncwarp();
    release(&shared->tile_empty[slot]);
    if (++slot == 2) slot = 0, tile_phase ^= 1;
    if (number >= sizes.tiles) break;
    const Work w = locate(number, sizes);
    if (w.key0 >= w.keys) continue;
    const int key_slab = w.key0 + slab * 64;
    float dk[D / 2], dv[D_V / 2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dk[i] = 0;
#pragma unroll
    for (int i = 0; i < D_V / 2; ++i) dv[i] = 0;
    const bool any = w.begin < w.end;
    if (any) {
      float s[BLOCK / 2], t[BLOCK / 2], dq[32];
      u32 p[BLOCK / 4], ds[BLOCK / 4];
      barrier_wait(shared_address(&shared->kv_full), kv_phase);
      kv_phase ^= 1;
      barrier_wait(shared_address(&shared->q_full[stage]), phase);
      wgmma_fence();
      issue_block<D_STEPS, KEYS, BLOCK>(s, k_slab, q_tile + stage * Q_BYTES);
      wgmma_commit();
      wgmma_wait<0>();
      pin(s);
      int block = w.begin, left = (w.end - w.begin) * sizes.group;
      // The sums of the block whose dQ comes next: one step late, so that nobody waits for the other warpgroup's dS.
      int sum_block = (int)first_block(w, w.head * sizes.group, sizes) + w.begin;
      bool late = false;
#pragma unroll 1
      for (; left > 0; --left) {
        const u32 q_now = q_tile + stage * Q_BYTES, g_now = g_tile + stage * G_BYTES;
        barrier_wait(shared_address(&shared->g_full[stage]), phase);
        wgmma_fence();
        issue_block<V_STEPS, KEYS, BLOCK>(t, v_slab, g_now);
        wgmma_commit();
        const int row = block * BLOCK;
        const bool cut = key_slab + 64 > w.keys || (HAS_LAST && key_slab + 63 - row > w.last) ||
                         (HAS_FIRST && key_slab - (row + BLOCK - 1) < w.first);
        if (cut) hide(s, key_slab + warp * 16 + lane / 4, row + 2 * (lane % 4), w);
        const float* const lse2 = &shared->lines[stage][0][2 * (lane % 4)];
#pragma unroll
        for (int g = 0; g < BLOCK / 8; ++g) {
          const float2 two = load_pair(lse2 + 8 * g);
          s[4 * g] = exp2_fast(fmaf(s[4 * g], scale2, -two.x));
          s[4 * g + 1] = exp2_fast(fmaf(s[4 * g + 1], scale2, -two.y));
          s[4 * g + 2] = exp2_fast(fmaf(s[4 * g + 2], scale2, -two.x));
          s[4 * g + 3] = exp2_fast(fmaf(s[4 * g + 3], scale2, -two.y));
        }
        // Never true, but the end of a basic block: the compiler would wait before the exponentials.
        if (sizes.tiles < 0) __nanosleep(1);
        // dK of the block before is done, and its queries are free.
        wgmma_wait<1>();
        pin(dk);
        if (late) release(&shared->q_empty[stage == 0 ? STAGES - 1 : stage - 1]);
#pragma unroll
        for (int j = 0; j < BLOCK / 4; ++j) p[j] = pack(s[2 * j], s[2 * j + 1]);
        pin(dv);
        wgmma_fence();
        const u64 g_columns = columns_descriptor(g_now, BLOCK * 128);
#pragma unroll
        for (int j = 0; j < BLOCK / 16; ++j)
          add_values(dv, p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3], g_columns + (j * 16 * 128 >> 4), 1);
        wgmma_commit();
        wgmma_wait<1>();
        pin(t);
#pragma unroll
        for (int g = 0; g < BLOCK / 8; ++g) {
          const float2 delta = load_pair(lse2 + BLOCK + 8 * g);
          ds[2 * g] = pack(s[4 * g] * (t[4 * g] - delta.x), s[4 * g + 1] * (t[4 * g + 1] - delta.y));
          ds[2 * g + 1] = pack(s[4 * g + 2] * (t[4 * g + 2] - delta.x), s[4 * g + 3] * (t[4 * g + 3] - delta.y));
        }
        const u32 turn = step % 2;
        barrier_wait(shared_address(&shared->ds_empty[turn]), step / 2 % 2 ^ 1);
#pragma unroll
        for (int g = 0; g < BLOCK / 8; g += 2)
          store_matrices((ds_store + turn * DS_BYTES) ^ g * 16, ds[2 * g], ds[2 * g + 1], ds[2 * g + 2], ds[2 * g + 3]);
        fence_async();
        __syncwarp();
        release(&shared->ds_full[turn]);
        // dV is done: registers for two more products are its weights'.
        wgmma_wait<0>();
        pin(dv);
        release(&shared->g_empty[stage]);
        named_sync(2 + slab, 128);  // this warpgroup's dS is complete
        step_ring(stage, phase);
        if (left > 1) barrier_wait(shared_address(&shared->q_full[stage]), phase);
        if (late) barrier_wait(shared_address(&shared->ds_full[turn ^ 1]), (step - 1) / 2 % 2);
        pin(dk);
        wgmma_fence();
        // After the last block it multiplies what is there, and nobody looks.
        issue_block<D_STEPS, KEYS, BLOCK>(s, k_slab, q_tile + stage * Q_BYTES);
        wgmma_commit();
        const bool mine = DQ_PARTS == 2 || turn == slab;
        issue_queries(dq, ds_tile + (turn ^ 1) * DS_BYTES, k_part, mine);
        wgmma_commit();
        const u64 q_columns = columns_descriptor(q_now, BLOCK * 128);
        const u64 ds_rows = rows_descriptor(ds_tile + turn * DS_BYTES + slab * 64 * 128);
#pragma unroll
        for (int j = 0; j < BLOCK / 16; ++j) add_keys(dk, ds_rows + (j * 32 >> 4), q_columns + (j * 16 * 128 >> 4), 1);
        wgmma_commit();
        wgmma_wait<1>();
        pin(dq);
        pin(s);
        if (late) {
          release(&shared->ds_empty[turn ^ 1]);
          add_queries(dq, to.dq_sums + ((i64)sum_block * DQ_PARTS + (DQ_PARTS == 2 ? slab : 0)) * SUMS + thread * 4, mine);
          sum_block = block == w.begin ? sum_block + sizes.sum_blocks - (w.end - w.begin) + 1 : sum_block + 1;
        }
        late = true;
        ++step;
        if (++block == w.end) block = w.begin;
      }
      const u32 turn = (step - 1) % 2;
      const bool mine = DQ_PARTS == 2 || turn != slab;
      barrier_wait(shared_address(&shared->ds_full[turn]), (step - 1) / 2 % 2);
      wgmma_fence();
      issue_queries(dq, ds_tile + turn * DS_BYTES, k_part, true);
      wgmma_commit();
      wgmma_wait<0>();
      pin(dq);
      pin(dk);
      release(&shared->ds_empty[turn]);
      release(&shared->q_empty[stage == 0 ? STAGES - 1 : stage - 1]);
      add_queries(dq, to.dq_sums + ((i64)sum_block * DQ_PARTS + (DQ_PARTS == 2 ? slab : 0)) * SUMS + thread * 4, mine);
    }
    const int row_warp = key_slab + warp * 16, rows = w.keys - row_warp;
    const i64 batch = PACKED ? 0 : w.batch;
    u16* const dk_rows = to.dk + batch * to.dk_batch + w.head * to.dk_head + (w.k_first + row_warp) * to.dk_row;
    u16* const dv_rows = to.dv + batch * to.dv_batch + w.head * to.dv_head + (w.k_first + row_warp) * to.dv_row;
    if (!any) {  // no query sees these keys, and shared memory belongs to the next tile
      write_zeros<D>(dk_rows, to.dk_row, rows, lane);
      write_zeros<D_V>(dv_rows, to.dv_row, rows, lane);
      continue;
    }
    // The sums take the place of K and V, which nobody reads any more.
    named_sync(1, 256);
    const u32 mine = (slab * 64 + warp * 16) * 128;
    write_rows<D_V>(dv, 1, v_tile + mine, dv_rows, to.dv_row, rows, lane);
    write_rows<D>(dk, to.scale, k_tile + mine, dk_rows, to.dk_row, rows, lane);
    fence_async();
    __syncwarp();
    release(&shared->kv_empty);
  }
}

extern "C" __global__ void __launch_bounds__(384, 1) attention_hopper_backward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap g_map, const float* lines, float* dq_sums, u16* dk, u16* dv,
    const int* first_q, const int* first_k, int* counter, i64 dk_batch, i64 dk_head, i64 dk_row,
    i64 dv_batch, i64 dv_head, i64 dv_row, float scale2, float scale, int queries, int keys, int heads, int group, int batches,
    int first, int last, int section, int tiles, int sum_blocks) {
  extern __shared__ char memory[];
  __shared__ Shared storage;
  Shared* const shared = &storage;
  const u32 k_tile = (shared_address(memory) + 1023) & ~1023u;  // swizzled tiles begin at multiples of 1024
  const u32 v_tile = k_tile + K_BYTES, ds_tile = v_tile + V_BYTES;
  const u32 q_tile = ds_tile + 2 * DS_BYTES, g_tile = q_tile + STAGES * Q_BYTES;
  const Sizes sizes = {queries, keys, heads, group, batches, first, last, section, tiles, sum_blocks, first_q, first_k};
  if (threadIdx.x == 0) {
    init_buffers(&shared->kv_full, &shared->kv_empty, 1, 8);
    init_buffers(shared->q_full, shared->q_empty, STAGES, 8);
    init_buffers(shared->g_full, shared->g_empty, STAGES, 8);
    init_buffers(shared->tile_full, shared->tile_empty, 2, 8);
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared->ds_full[i]), 8);
      barrier_init(shared_address(&shared->ds_empty[i]), 8);
    }
    fence_barrier_init();
    prefetch_map(&q_map), prefetch_map(&k_map), prefetch_map(&v_map), prefetch_map(&g_map);
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same for all of a warp, as the compiler sees it
  if (warpgroup == 0) {
    shrink_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce(&q_map, &k_map, &v_map, &g_map, q_tile, k_tile, v_tile, g_tile, shared, sizes, lines, counter);
  } else {
    grow_registers<CONSUMER_REGISTERS>();
    const Output to = {dk, dv, dq_sums, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, scale};
    consume(warpgroup - 1, q_tile, k_tile, v_tile, g_tile, ds_tile, shared, sizes, to, scale2);
  }
}
