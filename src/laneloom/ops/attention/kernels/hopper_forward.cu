// O = softmax(scale Q K^T) V and the log-sum-exp, by warpgroups of Hopper: one thread streams tiles by TMA, CONSUMERS
// warpgroups of 64 queries each multiply by wgmma and compute the softmax.
//
// A consumer issues the scores of the next block of keys, then the sum of this block's values, and computes the next
// block's softmax while the values are summed. Named barriers give the matrix units to the consumers in turn, so that one's softmax
// also runs under the other's products. Weights go from the scores' accumulators to the A operand in registers: the layouts are
// equal. The reference maximum of a row moves only when a score exceeds it by more than 2^THRESHOLD; sums are exact either way.
//
// A tile is CONSUMERS * 64 queries of one head. Programs are persistent: the first tile is the program's number, more come from a
// counter in global memory, longest first, heads in sections whose keys and values stay in the L2. Where tiles are few, `parts` of them
// have a part of the keys each, and hopper_forward_join.cu makes one of what they leave.
//
// Compile-time constants: D, D_V (multiples of 8 up to 256), COLUMNS (keys of a step, a multiple of 16), STAGES, Q_BUFFERS,
// CONSUMERS, RESIDENT (programs of a multiprocessor), HAS_FIRST, HAS_LAST (the band's ends), PACKED (lengths from first_q, first_k), PING_PONG,
// THRESHOLD, BF16, SOFTCAP (scores become softcap tanh(scale Q K^T / softcap): their argument is slope2 Q K^T, scale2 the cap). wgmma functions:
// multiply_scores (64 x COLUMNS x 16), multiply_values (64 x D_V x 16, A in registers).

constexpr int SLAB_BYTES = (CHUNKS(D) > CHUNKS(D_V) ? CHUNKS(D) : CHUNKS(D_V)) * 64 * 128;  // Q, then O
constexpr int K_BYTES = CHUNKS(D) * COLUMNS * 128, V_BYTES = CHUNKS(D_V) * COLUMNS * 128;
constexpr int D_STEPS = (D + 15) / 16;

struct Shared {
  u64 q_full[Q_BUFFERS][CONSUMERS], q_empty[Q_BUFFERS][CONSUMERS];
  u64 k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  u64 tile_full[2], tile_empty[2];
  Work work[2];
};

// Where each head of queries is `parts` heads here: a part of the blocks of keys.
__device__ __forceinline__ void take_part(Work& w, int parts) {
  const int blocks = w.end - w.begin, part = w.head % parts;
  w.end = w.begin + blocks * (part + 1) / parts;
  w.begin += blocks * part / parts;
}

__device__ __forceinline__ Work part_of(int number, const Sizes& sizes, int parts) {
  Work w = work_of(number, sizes);
  if (w.batch >= 0) take_part(w, parts);
  return w;
}

__device__ __forceinline__ void produce(
    const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map, u32 q_tile, u32 k_tile, u32 v_tile, Shared* shared,
    const Sizes& sizes, int parts, int* counter, Work w) {
  int k_stage = 0, v_stage = 0, q_buffer = 0;
  u32 k_phase = 0, v_phase = 0, q_phase = 0, count = 0;
  for (int taken;; w = part_of(next_tile(taken, sizes.tiles, counter), sizes, parts)) {
    announce(w, shared, count);
    if (w.batch < 0) return;
    const int kv_head = w.head / sizes.group, batch = PACKED ? 0 : w.batch;
    const int blocks = w.row0 < w.queries ? w.end - w.begin : 0;
    if (blocks < 3) taken = atomicAdd(counter, 1);
    // The scores need a block's keys one step before the sum needs its values.
    int key = w.k_first + w.end * COLUMNS;
#pragma unroll 1
    for (int i = 0; i <= blocks && blocks > 0; ++i) {
      key -= COLUMNS;
      if (i > 0 && i == blocks - 2) taken = atomicAdd(counter, 1);
      if (i < blocks) {
        const u32 full = shared_address(&shared->k_full[k_stage]);
        barrier_wait(shared_address(&shared->k_empty[k_stage]), k_phase ^ 1);
        barrier_expect(full, K_BYTES);
#pragma unroll 1
        for (int c = 0; c < CHUNKS(D); ++c)
          load_box(k_tile + (k_stage * CHUNKS(D) + c) * COLUMNS * 128, k_map, full, c * 64, key, kv_head, batch);
        step_ring(k_stage, k_phase);
      }
      if (i > 0) {
        const u32 full = shared_address(&shared->v_full[v_stage]);
        barrier_wait(shared_address(&shared->v_empty[v_stage]), v_phase ^ 1);
        barrier_expect(full, V_BYTES);
#pragma unroll 1
        for (int c = 0; c < CHUNKS(D_V); ++c)
          load_box(v_tile + (v_stage * CHUNKS(D_V) + c) * COLUMNS * 128, v_map, full, c * 64, key + COLUMNS, kv_head, batch);
        step_ring(v_stage, v_phase);
      }
      if (i == 0) {
        Work whole = w;
        whole.head /= parts;
        load_queries<CHUNKS(D), 64, SLAB_BYTES>(q_tile, q_map, shared, whole, batch, q_buffer, q_phase);
      }
    }
  }
}

// Scores to weights; `fade` is what sums so far are to be multiplied by. One half of the rows after the other: the
// exponentials of the first run beside the maximum of the second.
template <bool NEW>
__device__ __forceinline__ void weigh(float (&s)[COLUMNS / 2], float (&top)[2], float (&sum)[2], float (&fade)[2], float scale2) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float here = fmaxf(s[2 * half], s[2 * half + 1]);
#pragma unroll
    for (int j = 1; j < COLUMNS / 8; ++j) here = fmaxf(here, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
    here = fmaxf(here, __shfl_xor_sync(~0u, here, 1));
    here = fmaxf(here, __shfl_xor_sync(~0u, here, 2));
    fade[half] = 1;
    if (NEW) {
      top[half] = here;
      sum[half] = 0;
    } else if ((here - top[half]) * scale2 > THRESHOLD) {
      fade[half] = exp2_fast((top[half] - here) * scale2);
      sum[half] *= fade[half];
      top[half] = here;
    }
    const float shift = top[half] == -INFINITY ? 0 : top[half] * scale2;
    float part = 0;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
      float& x = s[4 * j + 2 * half];
      float& y = s[4 * j + 2 * half + 1];
      x = exp2_fast(fmaf(x, scale2, -shift));
      y = exp2_fast(fmaf(y, scale2, -shift));
      part += x + y;
    }
    sum[half] += part;
  }
}

__device__ __forceinline__ void to_operand(const float (&s)[COLUMNS / 2], u32 (&p)[COLUMNS / 4]) {
#pragma unroll
  for (int i = 0; i < COLUMNS / 4; ++i) p[i] = pack(s[2 * i], s[2 * i + 1]);
}

// Queries as the A operand: registers of a whole tile, or a descriptor.
struct Queries {
#if Q_IN_REGISTERS
  u32 a[4 * D_STEPS];
#else
  u64 rows;
#endif
};

__device__ __forceinline__ void take_queries(Queries& q, u32 q_slab, int warp, int lane) {
#if Q_IN_REGISTERS
#pragma unroll
  for (int i = 0; i < D_STEPS; ++i)
    load_matrices(q_slab + i / 4 * 64 * 128 + warp * 16 * 128 + swizzled(lane % 16, i % 4 * 2 + lane / 16), q.a[4 * i], q.a[4 * i + 1],
                  q.a[4 * i + 2], q.a[4 * i + 3]);
#else
  q.rows = rows_descriptor(q_slab);
#endif
}

__device__ __forceinline__ void issue_scores(float (&s)[COLUMNS / 2], const Queries& q, u32 k_tile) {
  const u64 k = rows_descriptor(k_tile);
#pragma unroll
  for (int i = 0; i < D_STEPS; ++i) {
    const u64 k_step = k + ((i / 4 * COLUMNS * 128 + i % 4 * 32) >> 4);
#if Q_IN_REGISTERS
    multiply_scores(s, q.a[4 * i], q.a[4 * i + 1], q.a[4 * i + 2], q.a[4 * i + 3], k_step, i > 0);
#else
    multiply_scores(s, q.rows + ((i / 4 * 64 * 128 + i % 4 * 32) >> 4), k_step, i > 0);
#endif
  }
}

__device__ __forceinline__ void issue_values(float (&o)[D_V / 2], const u32 (&p)[COLUMNS / 4], u32 v_tile) {
  const u64 v = columns_descriptor(v_tile, COLUMNS * 128);
#pragma unroll
  for (int i = 0; i < COLUMNS / 16; ++i)
    multiply_values(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], v + (i * 16 * 128 >> 4), 1);
}

__device__ __forceinline__ void consume(int slab, u32 q_tile, u32 k_tile, u32 v_tile, Shared* shared, const Sizes& sizes,
                                        const Output& to, float scale2, float slope2) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int turn = 1 + slab, next_turn = 1 + (slab + 1) % CONSUMERS, together = 8 + slab;
  int k_stage = 0, v_stage = 0, q_buffer = 0, slot = 0;
  u32 k_phase = 0, v_phase = 0, q_phase = 0, tile_phase = 0;
  if (PING_PONG && slab == CONSUMERS - 1) named_arrive(next_turn, 256);
  float s[COLUMNS / 2], o[D_V / 2];
  Queries q;
  auto release = [&](u64* empty) { if (lane == 0) barrier_arrive(shared_address(empty)); };
  // Waits for the next tile that has keys; false if there is none.
  auto find = [&]() {
    while (true) {
      const Work w = listen(shared, slot, tile_phase);
      if (w.batch < 0) return false;
      if (w.row0 < w.queries) {
        if (w.begin != w.end) return true;
        write_nothing(w, to, w.row0 + slab * 64 + warp * 16, lane);
      }
      acknowledge(shared, slot, tile_phase, lane);
    }
  };
  // The first scores of the tile that was found. A product must not stand in a branch: without a tile it has what lies there.
  auto begin = [&](bool found) {
    if (found) {
      barrier_wait(shared_address(&shared->q_full[q_buffer][slab]), q_phase);
      barrier_wait(shared_address(&shared->k_full[k_stage]), k_phase);
      take_queries(q, q_tile + (q_buffer * CONSUMERS + slab) * SLAB_BYTES, warp, lane);
    }
    wgmma_fence();
    issue_scores(s, q, k_tile + k_stage * K_BYTES);
    wgmma_commit();
  };
  u64* written = nullptr;  // the barrier of the tile before, whose output may still be read
  bool found = find();
  if (found) {
    begin(true);
    do {
      const Work w = listen(shared, slot, tile_phase);
      acknowledge(shared, slot, tile_phase, lane);
      const u32 q_slab = q_tile + (q_buffer * CONSUMERS + slab) * SLAB_BYTES;
      u64* const q_empty = &shared->q_empty[q_buffer][slab];
      const int row_slab = w.row0 + slab * 64, row = row_slab + warp * 16 + lane / 4;
      float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, fade[2];
      u32 p[COLUMNS / 4];
#pragma unroll
      for (int i = 0; i < D_V / 2; ++i) o[i] = 0;
      wgmma_wait<0>();
      pin(s);
      release(&shared->k_empty[k_stage]);
      step_ring(k_stage, k_phase);
      if (written) let_go(written, lane);
      hide_if_cut(s, w.end - 1, row_slab, row, lane, w, slope2);
      weigh<true>(s, top, sum, fade, scale2);
      to_operand(s, p);
      for (int block = w.end - 2; block >= w.begin; --block) {
        barrier_wait(shared_address(&shared->k_full[k_stage]), k_phase);
        if (PING_PONG) named_sync(turn, 256);
        pin(o);
        wgmma_fence();
        issue_scores(s, q, k_tile + k_stage * K_BYTES);
        wgmma_commit();
        barrier_wait(shared_address(&shared->v_full[v_stage]), v_phase);
        issue_values(o, p, v_tile + v_stage * V_BYTES);
        wgmma_commit();
        if (PING_PONG) named_arrive(next_turn, 256);
        wgmma_wait<1>();
        pin(s);
        release(&shared->k_empty[k_stage]);
        step_ring(k_stage, k_phase);
        hide_if_cut(s, block, row_slab, row, lane, w, slope2);
        weigh<false>(s, top, sum, fade, scale2);
        // Never true, but the end of a basic block: the compiler would wait for the values before the maximum else.
        if (sizes.tiles < 0) __nanosleep(1);
        wgmma_wait<0>();
        pin(o);
        release(&shared->v_empty[v_stage]);
        step_ring(v_stage, v_phase);
        if (__any_sync(~0u, fade[0] != 1 || fade[1] != 1)) {
#pragma unroll
          for (int i = 0; i < D_V / 2; ++i) o[i] *= fade[i / 2 % 2];
        }
        to_operand(s, p);
      }
      barrier_wait(shared_address(&shared->v_full[v_stage]), v_phase);
      // Not while the others wait for their turn: a tile may be known only once they have seen those without keys.
      if (EARLY) found = find(), named_sync(turn, 256);
      pin(o);
      wgmma_fence();
      issue_values(o, p, v_tile + v_stage * V_BYTES);
      wgmma_commit();
      if (!EARLY) found = find();
      if (++q_buffer == Q_BUFFERS) q_buffer = 0, q_phase ^= 1;
      // The next tile's first scores run while this one's output is written: its queries have a place of their own.
      if (EARLY) begin(found);
      if (EARLY) named_arrive(next_turn, 256);
      wgmma_wait<EARLY>();
      pin(o);
      release(&shared->v_empty[v_stage]);
      step_ring(v_stage, v_phase);
      // The output takes the place of the queries once no warp's product reads them any more.
      named_sync(together, 128);
      write(o, top, sum, scale2, 1.0f, w, to, slab, warp, lane, q_slab);
      // With room for the next tile's queries its first scores run while the copy engine reads.
      if (Q_BUFFERS > 1) written = q_empty;
      else let_go(q_empty, lane);
      if (!EARLY) begin(found);
    } while (found);
    await_stores();
    wgmma_wait<0>();
    pin(s);
  }
  // The one turn that nobody took.
  if (PING_PONG && slab == 0) named_sync(turn, 256);
}

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), RESIDENT) attention_hopper_forward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap out_map, u16* out, float* lse, const int* first_q, const int* first_k, int* counter,
    i64 out_batch, i64 out_head, i64 out_row, i64 lse_batch, i64 lse_head, float scale2, int queries, int keys, int heads,
    int group, int batches, int first, int last, int section, int tiles, int parts SLOPE) {
  extern __shared__ char memory[];
  __shared__ Shared storage;
  Shared* const shared = &storage;
  const u32 q_tile = (shared_address(memory) + 1023) & ~1023u;  // swizzled tiles begin at multiples of 1024
  const u32 k_tile = q_tile + Q_BUFFERS * CONSUMERS * SLAB_BYTES;
  const u32 v_tile = k_tile + STAGES * K_BYTES;
  const Sizes sizes = {queries, keys, heads, group, batches, first, last, section, 0, tiles, 0, first_q, first_k};
  const Output to = {&out_map, out, lse, out_batch, out_head, out_row, lse_batch, lse_head};
  if (threadIdx.x == 128) {
    init_buffers(shared->q_full[0], shared->q_empty[0], Q_BUFFERS * CONSUMERS, 4);
    init_buffers(shared->k_full, shared->k_empty, STAGES, CONSUMER_WARPS);
    init_buffers(shared->v_full, shared->v_empty, STAGES, CONSUMER_WARPS);
    init_buffers(shared->tile_full, shared->tile_empty, 2, CONSUMER_WARPS);
    fence_barrier_init();
  }
  release_successor();
  Work first_work;
  if (threadIdx.x == 0) {
    prefetch_map(&q_map), prefetch_map(&k_map), prefetch_map(&v_map);
    if (!PACKED) {
      first_work = part_of(blockIdx.x, sizes, parts);
      fetch<CHUNKS(D), CHUNKS(D_V), 64>(&q_map, &k_map, &v_map, first_work, first_work.head / parts, sizes);
    }
  }
  __syncthreads();
  await_memory();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same for all of a warp, as the compiler sees it
  if (warpgroup == 0) {
    shrink_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      if (PACKED) first_work = part_of(blockIdx.x, sizes, parts);  // kernels ahead may write where sequences begin
      produce(&q_map, &k_map, &v_map, q_tile, k_tile, v_tile, shared, sizes, parts, counter, first_work);
    }
  } else {
    grow_registers<CONSUMER_REGISTERS>();
    consume(warpgroup - 1, q_tile, k_tile, v_tile, shared, sizes, to, scale2, SLOPE2);
  }
}
