// O = softmax(scale Q K^T) V and the log-sum-exp of operands in e4m3, by warpgroups of Hopper: one thread streams tiles by TMA,
// TRANSPOSERS warps beside it transpose values, CONSUMERS warpgroups of 64 queries each multiply by wgmma and compute the softmax.
//
// wgmma wants the contraction of 8-bit operands contiguous, and values are contiguous along D_V: hence the transposers. An
// accumulator's thread has the keys 2q, 2q + 1, 8 + 2q, 8 + 2q + 1 of every 16 (q = lane % 4), the A operand's thread those at the
// places 4q .. 4q + 3. A sum over keys has no order: transposed values have the former at the latter, which is what ldmatrix with
// .trans gives, so that weights stay where they are and nobody pays for it.
//
// The tensor cores keep about 14 bits of a sum of 8-bit products (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024). So each block's
// sum begins at zero and is added to FP32 registers, together with the change of the reference maximum. It takes the registers of
// the block's scores: a consumer does one thing after the other, and three of them overlap. Weights are 2^PEAK times those of the
// softmax: at most 2^PEAK, where e4m3 ends at 448.
//
// Compile-time constants: D (a multiple of 16 up to 256), D_V (a multiple of 16 up to 128), COLUMNS = 128 (keys of a step), STAGES,
// Q_BUFFERS, CONSUMERS, TRANSPOSERS, HAS_FIRST, HAS_LAST, PACKED, PEAK, BF16 (of the output). wgmma functions: multiply_scores
// (64 x COLUMNS x 32), multiply_values (64 x D_V x 32, A in registers).

constexpr int ROW_CHUNKS = (D + 127) / 128;  // pieces of 128 bytes that hold a row of queries or keys
constexpr int Q_BYTES = ROW_CHUNKS * 64 * 128, O_BYTES = CHUNKS(D_V) * 64 * 128;
constexpr int SLAB_BYTES = Q_BYTES > O_BYTES ? Q_BYTES : O_BYTES;  // Q, then O
constexpr int K_BYTES = ROW_CHUNKS * COLUMNS * 128, V_BYTES = COLUMNS * 128, T_BYTES = D_V * 128;
static_assert(COLUMNS == 128 && D_V <= 128, "a row of turned values is one line of 128 bytes, and so is a row of values");

struct Shared {
  u64 q_full[Q_BUFFERS][CONSUMERS], q_empty[Q_BUFFERS][CONSUMERS];
  u64 k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES], t_full[STAGES], t_empty[STAGES];
  u64 tile_full[2], tile_empty[2];
  Work work[2];
};

// What the operands were divided by: addresses of numbers, or null, and elements between those of batches and of heads of keys.
struct Scales {
  const float *q, *k, *v;
  int q_batch, q_head, k_batch, k_head, v_batch, v_head;
  float v_number;
};

__device__ __forceinline__ void load_turned_matrices(u32 address, u32& a, u32& b, u32& c, u32& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address) : "memory");
}
// Four numbers in e4m3, the first in the lowest byte; beyond 448 they become 448.
__device__ __forceinline__ u32 pack_float8(float a, float b, float c, float d) {
  u32 x;
  asm("{.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};}" : "=r"(x) : "f"(a), "f"(b), "f"(c), "f"(d));
  return x;
}

__device__ __forceinline__ void produce(
    const TensorMap* q_map, const TensorMap* k_map, const TensorMap* v_map, u32 q_tile, u32 k_tile, u32 v_tile, Shared* shared,
    const Sizes& sizes, int* counter, Work w) {
  int k_stage = 0, v_stage = 0, q_buffer = 0;
  u32 k_phase = 0, v_phase = 0, q_phase = 0, count = 0;
  for (int taken;; w = work_of(next_tile(taken, sizes.tiles, counter), sizes)) {
    announce(w, shared, count);
    if (w.batch < 0) return;
    const int kv_head = w.head / sizes.group, batch = PACKED ? 0 : w.batch;
    const int blocks = w.row0 < w.queries ? w.end - w.begin : 0;
    if (blocks < 3) taken = atomicAdd(counter, 1);
    int key = w.k_first + w.end * COLUMNS;
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      key -= COLUMNS;
      if (i > 0 && i == blocks - 2) taken = atomicAdd(counter, 1);
      const u32 k_full = shared_address(&shared->k_full[k_stage]), v_full = shared_address(&shared->v_full[v_stage]);
      barrier_wait(shared_address(&shared->k_empty[k_stage]), k_phase ^ 1);
      barrier_expect(k_full, K_BYTES);
#pragma unroll 1
      for (int c = 0; c < ROW_CHUNKS; ++c)
        load_box(k_tile + (k_stage * ROW_CHUNKS + c) * COLUMNS * 128, k_map, k_full, c * 128, key, kv_head, batch);
      step_ring(k_stage, k_phase);
      if (i == 0) load_queries<ROW_CHUNKS, 128, SLAB_BYTES>(q_tile, q_map, shared, w, batch, q_buffer, q_phase);
      barrier_wait(shared_address(&shared->v_empty[v_stage]), v_phase ^ 1);
      barrier_expect(v_full, V_BYTES);
      load_box(v_tile + v_stage * V_BYTES, v_map, v_full, 0, key, kv_head, batch);
      step_ring(v_stage, v_phase);
    }
  }
}

// Values [128 keys][D_V] to [D_V][128 places]. 16 columns by 32 keys at a time: ldmatrix gives a lane (g = lane / 4, q) of columns
// 2g and 2g + 1 the keys 2q, 2q + 1 of each group of 8, which are places 4q .. 4q + 3 of a group of 16. The lower and the upper half of the
// warp store even and odd columns in turn, so that 8 neighbouring rows, and so all banks, take part in each store.
__device__ __forceinline__ void turn_values(u32 v_tile, u32 t_tile, int first, int lane) {
  const int upper = lane / 16;  // of a lane's g = lane / 4
  const u32 one = upper ? 0x7531 : 0x6420, other = upper ? 0x6420 : 0x7531;
  // Where the row of a store's matrix lies that this lane says: matrices 0 and 1 of places 0 .. 15, 2 and 3 of 16 .. 31.
  const int row = 2 * (lane % 8) + ((lane % 8 / 4) ^ (lane / 8 % 2));
#pragma unroll 1
  for (int group = first; group < D_V / 16; group += TRANSPOSERS) {
    const u32 from = v_tile + swizzled(lane, group);
    const u32 to = t_tile + group * 16 * 128 + swizzled(row, lane / 16);
#pragma unroll
    for (int block = 0; block < COLUMNS / 32; ++block) {
      u32 a, b, c, d;
      load_turned_matrices(from + block * 32 * 128, a, b, c, d);
      store_matrices(to ^ block * 32, __byte_perm(a, b, one), __byte_perm(a, b, other), __byte_perm(c, d, one), __byte_perm(c, d, other));
    }
  }
}

__device__ __forceinline__ void transpose(int number, u32 v_tile, u32 t_tile, Shared* shared, const Sizes& sizes) {
  const int lane = threadIdx.x % 32;
  int stage = 0, slot = 0;
  u32 phase = 0, tile_phase = 0;
  while (true) {
    const Work w = listen(shared, slot, tile_phase);
    acknowledge(shared, slot, tile_phase, lane);
    if (w.batch < 0) return;
    if (w.row0 >= w.queries) continue;
#pragma unroll 1
    for (int block = w.begin; block < w.end; ++block) {
      barrier_wait(shared_address(&shared->v_full[stage]), phase);
      barrier_wait(shared_address(&shared->t_empty[stage]), phase ^ 1);
      turn_values(v_tile + stage * V_BYTES, t_tile + stage * T_BYTES, number, lane);
      fence_async();
      __syncwarp();
      if (lane == 0) {
        barrier_arrive(shared_address(&shared->v_empty[stage]));
        barrier_arrive(shared_address(&shared->t_full[stage]));
      }
      step_ring(stage, phase);
    }
  }
}

__device__ __forceinline__ void to_operand(const float (&s)[COLUMNS / 2], u32 (&p)[COLUMNS / 8]) {
#pragma unroll
  for (int i = 0; i < COLUMNS / 8; ++i) {
    const int at = i / 4 * 16 + i / 2 % 2 * 8 + i % 2 * 2;  // steps of 32 keys, halves of 16, rows 8 apart
    p[i] = pack_float8(s[at], s[at + 1], s[at + 4], s[at + 5]);
  }
}

__device__ __forceinline__ void issue_scores(float (&s)[COLUMNS / 2], u64 q, u64 k) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < (D + 31) / 32; ++i)
    multiply_scores(s, q + ((i / 4 * 64 * 128 + i % 4 * 32) >> 4), k + ((i / 4 * COLUMNS * 128 + i % 4 * 32) >> 4), i > 0);
  wgmma_commit();
}

__device__ __forceinline__ void issue_values(float (&part)[D_V / 2], const u32 (&p)[COLUMNS / 8], u64 t) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < COLUMNS / 32; ++i)
    multiply_values(part, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], t + (i * 32 >> 4), i > 0);
  wgmma_commit();
}

// The largest of a thread's scores of either row. Of numbers of which one is not negative, it is the largest as integers, which
// one instruction finds for three; of negative ones it is the smallest.
__device__ __forceinline__ void largest(const float (&s)[COLUMNS / 2], float (&here)[2]) {
  int high[2] = {__float_as_int(s[0]), __float_as_int(s[2])};
#pragma unroll
  for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      high[half] = max(max(high[half], __float_as_int(s[4 * j + 2 * half])), __float_as_int(s[4 * j + 2 * half + 1]));
  if (min(high[0], high[1]) < 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int low = __float_as_int(s[2 * half]);
#pragma unroll
      for (int j = 0; j < COLUMNS / 8; ++j)
        low = min(min(low, __float_as_int(s[4 * j + 2 * half])), __float_as_int(s[4 * j + 2 * half + 1]));
      if (high[half] < 0) high[half] = low;
    }
  }
  here[0] = __int_as_float(high[0]), here[1] = __int_as_float(high[1]);
}

// Scores to weights; `fade` is what sums so far are to be multiplied by.
__device__ __forceinline__ void weigh(float (&s)[COLUMNS / 2], float (&top)[2], float (&sum)[2], float (&fade)[2], float scale2) {
  float here[2];
  largest(s, here);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    here[half] = fmaxf(here[half], __shfl_xor_sync(~0u, here[half], 1));
    here[half] = fmaxf(here[half], __shfl_xor_sync(~0u, here[half], 2));
    const float before = top[half];
    top[half] = fmaxf(before, here[half]);
    const float reference = top[half] == -INFINITY ? 0 : top[half];
    fade[half] = exp2_fast((before - reference) * scale2);
    const float shift = reference * scale2 - PEAK;
    float part = 0;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
      float& x = s[4 * j + 2 * half];
      float& y = s[4 * j + 2 * half + 1];
      x = exp2_fast(fmaf(x, scale2, -shift));
      y = exp2_fast(fmaf(y, scale2, -shift));
      part += x + y;
    }
    sum[half] = fmaf(sum[half], fade[half], part);
  }
}

__device__ __forceinline__ void consume(int slab, u32 q_tile, u32 k_tile, u32 t_tile, Shared* shared, const Sizes& sizes,
                                        const Output& to, const Scales& scales, float scale2_number) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int together = 8 + slab;
  int k_stage = 0, t_stage = 0, q_buffer = 0, slot = 0;
  u32 k_phase = 0, t_phase = 0, q_phase = 0, tile_phase = 0;
  while (true) {
    const Work w = listen(shared, slot, tile_phase);
    acknowledge(shared, slot, tile_phase, lane);
    if (w.batch < 0) break;
    if (w.row0 >= w.queries) continue;
    const u32 q_slab = q_tile + (q_buffer * CONSUMERS + slab) * SLAB_BYTES;
    const int row = w.row0 + slab * 64 + warp * 16 + lane / 4;
    const int row_slab = w.row0 + slab * 64;
    const int kv_head = w.head / sizes.group;
    float scale2 = scale2_number;
    if (scales.q) scale2 *= scales.q[w.batch * scales.q_batch + kv_head * scales.q_head];
    if (scales.k) scale2 *= scales.k[w.batch * scales.k_batch + kv_head * scales.k_head];
    float o[D_V / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < D_V / 2; ++i) o[i] = 0;
    auto release = [&](u64* empty) { if (lane == 0) barrier_arrive(shared_address(empty)); };
    if (w.begin == w.end) {
      write_nothing(w, to, row_slab + warp * 16, lane);
    } else {
      barrier_wait(shared_address(&shared->q_full[q_buffer][slab]), q_phase);
      const u64 q = rows_descriptor(q_slab);
#pragma unroll 1
      for (int block = w.end - 1; block >= w.begin; --block) {
        float s[COLUMNS / 2], fade[2];
        u32 p[COLUMNS / 8];
        barrier_wait(shared_address(&shared->k_full[k_stage]), k_phase);
        issue_scores(s, q, rows_descriptor(k_tile + k_stage * K_BYTES));
        wgmma_wait<0>();
        pin(s);
        release(&shared->k_empty[k_stage]);
        step_ring(k_stage, k_phase);
        hide_if_cut(s, block, row_slab, row, lane, w, SLOPE2);
        weigh(s, top, sum, fade, scale2);
        to_operand(s, p);
        float(&part)[D_V / 2] = *(float(*)[D_V / 2])s;  // takes the registers of the scores
        barrier_wait(shared_address(&shared->t_full[t_stage]), t_phase);
        issue_values(part, p, rows_descriptor(t_tile + t_stage * T_BYTES));
        wgmma_wait<0>();
        pin(part);
        release(&shared->t_empty[t_stage]);
        step_ring(t_stage, t_phase);
#pragma unroll
        for (int i = 0; i < D_V / 2; ++i) o[i] = fmaf(o[i], fade[i / 2 % 2], part[i]);
      }
      // The output takes the place of the queries once no warp's product reads them any more.
      named_sync(together, 128);
      const float whole = scales.v ? scales.v[w.batch * scales.v_batch + kv_head * scales.v_head] : 1.0f;
      write(o, top, sum, scale2, whole * scales.v_number, w, to, slab, warp, lane, q_slab);
      let_go(&shared->q_empty[q_buffer][slab], lane);
      if (++q_buffer == Q_BUFFERS) q_buffer = 0, q_phase ^= 1;
    }
  }
}

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1) attention_hopper_forward_float8(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap out_map, u16* out, float* lse, const int* first_q, const int* first_k, int* counter,
    i64 out_batch, i64 out_head, i64 out_row, i64 lse_batch, i64 lse_head, float scale2, int queries, int keys, int heads,
    int group, int batches, int first, int last, int section, int tiles, const float* scale_q, const float* scale_k,
    const float* scale_v, int scale_q_batch, int scale_q_head, int scale_k_batch, int scale_k_head, int scale_v_batch,
    int scale_v_head, float v_number) {
  extern __shared__ char memory[];
  __shared__ Shared storage;
  Shared* const shared = &storage;
  const u32 q_tile = (shared_address(memory) + 1023) & ~1023u;  // swizzled tiles begin at multiples of 1024
  const u32 k_tile = q_tile + Q_BUFFERS * CONSUMERS * SLAB_BYTES;
  const u32 v_tile = k_tile + STAGES * K_BYTES;
  const u32 t_tile = v_tile + STAGES * V_BYTES;
  const Sizes sizes = {queries, keys, heads, group, batches, first, last, section, 0, tiles, 0, first_q, first_k};
  const Output to = {&out_map, out, lse, out_batch, out_head, out_row, lse_batch, lse_head};
  const Scales scales = {scale_q, scale_k, scale_v, scale_q_batch, scale_q_head, scale_k_batch, scale_k_head, scale_v_batch,
                         scale_v_head, v_number};
  if (threadIdx.x == 128) {
    init_buffers(shared->q_full[0], shared->q_empty[0], Q_BUFFERS * CONSUMERS, 4);
    init_buffers(shared->k_full, shared->k_empty, STAGES, CONSUMER_WARPS);
    init_buffers(shared->v_full, shared->v_empty, STAGES, TRANSPOSERS);
    init_buffers(shared->tile_full, shared->tile_empty, 2, CONSUMER_WARPS + TRANSPOSERS);
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(shared_address(&shared->t_full[i]), TRANSPOSERS);
      barrier_init(shared_address(&shared->t_empty[i]), CONSUMER_WARPS);
    }
    fence_barrier_init();
  }
  release_successor();
  Work first_work;
  if (threadIdx.x == 0) {
    prefetch_map(&q_map), prefetch_map(&k_map), prefetch_map(&v_map);
    if (!PACKED) {
      first_work = work_of(blockIdx.x, sizes);
      fetch<ROW_CHUNKS, 1, 128>(&q_map, &k_map, &v_map, first_work, first_work.head, sizes);
    }
  }
  __syncthreads();
  await_memory();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the same for all of a warp, as the compiler sees it
  if (warp < 4) {
    shrink_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      if (PACKED) first_work = work_of(blockIdx.x, sizes);  // kernels ahead may write where sequences begin
      produce(&q_map, &k_map, &v_map, q_tile, k_tile, v_tile, shared, sizes, counter, first_work);
    }
    if (warp > 0 && warp <= TRANSPOSERS) transpose(warp - 1, v_tile, t_tile, shared, sizes);
  } else {
    grow_registers<CONSUMER_REGISTERS>();
    consume(warp / 4 - 1, q_tile, k_tile, t_tile, shared, sizes, to, scales, scale2);
  }
}
