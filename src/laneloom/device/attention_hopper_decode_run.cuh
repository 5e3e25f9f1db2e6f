// How a program of Hopper's attention over a cache reads its run of keys: one warp streams tiles of 64 keys and their values by TMA
// into a ring, four warps multiply 16 keys of each tile each. It comes behind attention_hopper_decode.cuh.

constexpr int K_BYTES = CHUNKS(D) * TILE * 128, V_BYTES = CHUNKS(D_V) * TILE * 128;
constexpr int BOXES = TILE / BOX;
constexpr int D_STEPS = (D + 15) / 16, V_PAIRS = (D_V + 15) / 16;  // of 16 columns
constexpr int AT_ONCE = D_V > 128 ? 2 : 4;  // steps whose operands are loaded before the first of their products

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if BF16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 load_word(u32 address) {
  u32 x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ void load_turned(u32 address, u32& a, u32& b, u32& c, u32& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address) : "memory");
}

// Values of 16 keys, AT_ONCE times 16 columns from `begin` times 16 on.
__device__ __forceinline__ void load_values(u32 (&b)[AT_ONCE][4], u32 v_tile, u32 row, u32 group, int begin) {
#pragma unroll
  for (int i = begin; i < min(begin + AT_ONCE, V_PAIRS); ++i) {
    u32(&x)[4] = b[i - begin];
    load_turned(v_tile + i / 4 * TILE * 128 + swizzled(row, i % 4 * 2 + group), x[0], x[1], x[2], x[3]);
  }
}

// Where a warp is in the ring.
struct Place {
  int stage;
  u32 phase;
};

// A run's row of queries in memory.
__device__ __forceinline__ const u16* row_of(const u16* q, int r, const Run& run, const Rows& n) {
  return q + run.batch * n.q_batch + query_of(r, n) * n.q_row + (run.head * n.group + head_of(r, n)) * n.q_head;
}

// Bytes between rows of queries in shared memory: eight rows' words lie in different banks.
constexpr int Q_PITCH = HEAD * 2 + 16;
// Where the queries of a run lie whose first tile is in this stage.
__device__ __forceinline__ u32 queries_at(u32 q_tile, int stage) { return q_tile + stage * ROWS * Q_PITCH; }

// Bytes from memory that lie side by side, at multiples of 16.
__device__ __forceinline__ void load_bytes(u32 target, const void* from, int bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(target), "l"(from), "r"(bytes), "r"(bar) : "memory");
}

// All lanes of one warp: lane i sends for box i of a tile, and, where they are to be NEAR, with the first one for row i of the queries.
template <bool NEAR>
__device__ __forceinline__ void stream(const TensorMap* k_map, const TensorMap* v_map, u32 k_tile, u32 v_tile, Shared* shared,
                                       const Run& run, const int* table, int lane, Place& in, const u16* q, u32 q_tile,
                                       const Rows& n) {
  int page = 0, known = -1;  // this lane's entry of the table, of 32 boxes from `known` on
#pragma unroll 1
  for (int tile = run.begin; tile < run.end; ++tile) {
    const int boxes = min(BOXES, (run.keys - tile * TILE + BOX - 1) / BOX);
    int row = tile * TILE + lane * BOX, batch = run.batch;
#if PAGE > 0
    if (known < 0 || tile * BOXES >= known + 32) {
      known = tile * BOXES;
      const int at = (known + lane) * BOX;
      page = at < run.keys ? table[at / PAGE] : 0;
    }
    batch = __shfl_sync(~0u, page, (tile * BOXES - known + lane) % 32);
    row %= PAGE;
#endif
    const u32 full = shared_address(shared->full + in.stage);
    barrier_wait(shared_address(shared->empty + in.stage), in.phase ^ 1);
    const int rows = NEAR && tile == run.begin ? rows_of(run, n) : 0;
    if (lane == 0) barrier_expect(full, boxes * BOX * 128 * (CHUNKS(D) + CHUNKS(D_V)) + rows * HEAD * 2);
    __syncwarp();
    if (NEAR && lane < rows)
      load_bytes(queries_at(q_tile, in.stage) + lane * Q_PITCH, row_of(q, run.row0 + lane, run, n), HEAD * 2, full);
    if (lane < boxes) {
#pragma unroll
      for (int c = 0; c < CHUNKS(D); ++c)
        load_box(k_tile + in.stage * K_BYTES + (c * TILE + lane * BOX) * 128, k_map, full, c * 64, row, run.head, batch);
#pragma unroll
      for (int c = 0; c < CHUNKS(D_V); ++c)
        load_box(v_tile + in.stage * V_BYTES + (c * TILE + lane * BOX) * 128, v_map, full, c * 64, row, run.head, batch);
    }
    step_ring(in.stage, in.phase);
  }
}

// All lanes of one warp, before kernels ahead have ended: the L2 is asked for a run's first keys, and VALUES, by the length and the
// page that memory says then. Where others are right, they are read for nothing.
template <bool VALUES>
__device__ __forceinline__ void fetch_tile(const TensorMap* k_map, const TensorMap* v_map, const Run& run, const int* table, int lane) {
  int row = run.begin * TILE + lane * BOX, batch = run.batch;
  if (run.begin == run.end || lane >= BOXES || row >= run.keys) return;
#if PAGE > 0
  batch = __ldcg(table + row / PAGE), row %= PAGE;
#endif
#pragma unroll
  for (int c = 0; c < CHUNKS(D); ++c) fetch_box(k_map, c * 64, row, run.head, batch);
#pragma unroll
  for (int c = 0; VALUES && c < CHUNKS(D_V); ++c) fetch_box(v_map, c * 64, row, run.head, batch);
}

// Four warps: their sums, of which each of 128 threads then has a part, go to shared memory, which nobody reads by then.
// NEAR: the queries come from shared memory, where `stream` has them brought.
template <bool NEAR>
__device__ __forceinline__ void attend(const u16* q, u32 q_tile, u32 k_tile, u32 v_tile, Shared* shared, float* sums, const Run& run,
                                       const Rows& n, float scale2, float slope2, Place& in) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Row r is query r / group of head `head` group + r % group, zero in the columns of the heads abreast of its own.
  // Rows beyond the last read it again.
  u32 a[D_STEPS][4];
  int at[2];
  if (NEAR) barrier_wait(shared_address(shared->full + in.stage), in.phase);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = min(run.row0 + lane / 4 + 8 * half, n.rows - 1);
    at[half] = query_of(r, n) + run.keys - n.queries;  // the last key that this row sees
    const u16* const from = row_of(q, r, run, n);
    const u32 near = queries_at(q_tile, in.stage) + (r - run.row0) * Q_PITCH;
    const int first = place_of(r, n) * HEAD;
#pragma unroll
    for (int i = 0; i < D_STEPS; ++i)
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        const int column = 16 * i + 8 * eight + 2 * (lane % 4) - first;
        if (0 <= column && column < HEAD) a[i][half + 2 * eight] = NEAR ? load_word(near + column * 2) : *(const u32*)(from + column);
        else a[i][half + 2 * eight] = 0;
      }
  }
  float out[V_PAIRS][2][4];
#pragma unroll
  for (int i = 0; i < V_PAIRS; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) out[i][j / 4][j % 4] = 0;
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  const int key_warp = warp * 16;  // of a tile
  // Lanes 0-7, 8-15, 16-23, 24-31 say where the rows of four 8 x 8 pieces are.
  const u32 k_row = key_warp + lane / 16 * 8 + lane % 8, k_group = lane / 8 % 2;
  const u32 v_row = key_warp + lane / 8 % 2 * 8 + lane % 8, v_group = lane / 16;
#pragma unroll 1
  for (int tile = run.begin; tile < run.end; ++tile) {
    barrier_wait(shared_address(shared->full + in.stage), in.phase);
    float s[2][4] = {};  // 8 keys each
    const u32 k_now = k_tile + in.stage * K_BYTES, v_now = v_tile + in.stage * V_BYTES;
#pragma unroll
    for (int i = 0; i < D_STEPS; ++i) {
      u32 x[4];
      load_matrices(k_now + i / 4 * TILE * 128 + swizzled(k_row, i % 4 * 2 + k_group), x[0], x[1], x[2], x[3]);
      multiply(s[0], a[i], x[0], x[1]);
      multiply(s[1], a[i], x[2], x[3]);
    }
    // The first values' operands are on their way while the weights are made.
    u32 b[AT_ONCE][4];
    load_values(b, v_now, v_row, v_group, 0);
    const int key = tile * TILE + key_warp + 2 * (lane % 4);  // of this lane's first column
    const bool cut = tile * TILE + TILE > run.keys - n.queries || (HAS_FIRST && tile * TILE < run.keys - n.left);
    float fade[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[e / 2][2 * half + e % 2];
        const int j = key + e / 2 * 8 + e % 2;
        if (SOFTCAP) x = squashed(x * slope2);
        x *= scale2;
        if (cut && (j > at[half] || (HAS_FIRST && j < at[half] - n.left))) x = -INFINITY;
      }
      float most = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      most = fmaxf(most, top[half]);
      const float shift = most == -INFINITY ? 0 : most;  // a row that has seen no key
      fade[half] = exp2_fast(top[half] - shift);
      top[half] = most;
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) s[j][2 * half + e] = exp2_fast(s[j][2 * half + e] - shift);
      total[half] = total[half] * fade[half] + (s[0][2 * half] + s[0][2 * half + 1] + (s[1][2 * half] + s[1][2 * half + 1]));
    }
    if (__any_sync(~0u, fade[0] != 1 || fade[1] != 1)) {
#pragma unroll
      for (int i = 0; i < V_PAIRS; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) out[i][j / 4][j % 4] *= fade[j / 2 % 2];
    }
    const u32 p[4] = {pack(s[0][0], s[0][1]), pack(s[0][2], s[0][3]), pack(s[1][0], s[1][1]), pack(s[1][2], s[1][3])};
    // Values of keys beyond the last may be NaN, which a weight of zero does not hide.
    u32 there[2] = {~0u, ~0u};
    if (tile * TILE + TILE > run.keys) {
#pragma unroll
      for (int j = 0; j < 2; ++j)
        there[j] = (key + 8 * j < run.keys ? 0xffffu : 0) | (key + 8 * j + 1 < run.keys ? 0xffff0000u : 0);
    }
#pragma unroll
    for (int begin = 0; begin < V_PAIRS; begin += AT_ONCE) {
      if (begin > 0) load_values(b, v_now, v_row, v_group, begin);
#pragma unroll
      for (int i = begin; i < min(begin + AT_ONCE, V_PAIRS); ++i) {
        const u32(&x)[4] = b[i - begin];
        multiply(out[i][0], p, x[0] & there[0], x[1] & there[1]);
        multiply(out[i][1], p, x[2] & there[0], x[3] & there[1]);
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(shared->empty + in.stage));
    step_ring(in.stage, in.phase);
  }
  const int rows = rows_of(run, n);
  named_sync(1, 128);  // the ring, or where the last run's sums were, is this one's now
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = lane / 4 + 8 * half;
    if (rows <= 8 * half) break;
    total[half] += __shfl_xor_sync(~0u, total[half], 1);
    total[half] += __shfl_xor_sync(~0u, total[half], 2);
    if (lane % 4 == 0) shared->top[warp][r] = top[half], shared->total[warp][r] = total[half];
#pragma unroll
    for (int i = 0; i < V_PAIRS; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = 16 * i + 8 * j + 2 * (lane % 4);
        if (column < D_V && r < rows)
          *(float2*)(sums + (warp * rows + r) * PITCH + column) = make_float2(out[i][j][2 * half], out[i][j][2 * half + 1]);
      }
  }
  named_sync(1, 128);
}
