// Attention of up to 16 rows over a cache of keys and values, for Hopper: bound by reading the cache once.
//
// A program has a run of the keys of one head of keys and the rows that share it, the queries of all its heads. One warp streams
// tiles of 64 keys and their values by TMA into a ring, many bytes ahead; four warps multiply by mma.m16n8k16, 16 keys of each tile
// each, with a softmax of their own, so that no warp waits for another before the end. Their four sums become one in shared
// memory. Where several programs share the rows, those of a cluster put theirs together through distributed shared memory, a
// slice of the result each; where there are several clusters, each leaves its sum, and the last one to finish a slice puts
// them together. All in the order of the runs: the same call gives the same bits.
//
// Heads of keys that lie side by side may be read as one, abreast: its rows are wider, which memory serves better than narrow
// ones. Each query then has zeros where the others' columns are, and takes its own columns of the result.
//
// The rows and how sums are put together: attention_hopper_decode.cuh.
//
// Compile-time constants: D, D_V (multiples of 8 up to 256, of all the heads abreast), ABREAST, STAGES, BOX (keys of a copy: 64,
// or fewer where pages are smaller), PAGE (keys of a page, 0 without pages), HAS_FIRST (a window), BF16,
// SOFTCAP (as in hopper_forward.cu).

constexpr int K_BYTES = CHUNKS(D) * TILE * 128, V_BYTES = CHUNKS(D_V) * TILE * 128;
constexpr int BOXES = TILE / BOX;
constexpr int D_STEPS = (D + 15) / 16, V_PAIRS = (D_V + 15) / 16;  // of 16 columns
constexpr int AT_ONCE = D_V > 128 ? 2 : 4;  // steps whose operands are loaded before the first of their products
// Of a processor, at least, for which the compiler leaves registers. It would leave them for more, and load less ahead.
constexpr int PROGRAMS = D <= 64 && D_V <= 64 ? 3 : D <= 160 && D_V <= 160 ? 2 : 1;

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if BF16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

// All lanes of one warp: lane i sends for box i of a tile.
__device__ __forceinline__ void stream(const TensorMap* k_map, const TensorMap* v_map, u32 k_tile, u32 v_tile, Shared* shared,
                                       const Run& run, const int* table, int lane) {
  int stage = 0;
  u32 phase = 0;
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
    const u32 full = shared_address(shared->full + stage);
    barrier_wait(shared_address(shared->empty + stage), phase ^ 1);
    if (lane == 0) barrier_expect(full, boxes * BOX * 128 * (CHUNKS(D) + CHUNKS(D_V)));
    __syncwarp();
    if (lane < boxes) {
#pragma unroll
      for (int c = 0; c < CHUNKS(D); ++c)
        load_box(k_tile + stage * K_BYTES + (c * TILE + lane * BOX) * 128, k_map, full, c * 64, row, run.head, batch);
#pragma unroll
      for (int c = 0; c < CHUNKS(D_V); ++c)
        load_box(v_tile + stage * V_BYTES + (c * TILE + lane * BOX) * 128, v_map, full, c * 64, row, run.head, batch);
    }
    step_ring(stage, phase);
  }
}

// Four warps: their sums, of which each of 128 threads then has a part, go to shared memory.
__device__ __forceinline__ void attend(const u16* q, u32 k_tile, u32 v_tile, Shared* shared, float* sums, const Run& run,
                                       const Rows& n, float scale2, float slope2) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Row r is query r / group of head `head` group + r % group, zero in the columns of the heads abreast of its own.
  // Rows beyond the last read it again.
  u32 a[D_STEPS][4];
  int at[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = min(run.row0 + lane / 4 + 8 * half, n.rows - 1);
    at[half] = r / n.group + run.keys - n.queries;  // the last key that this row sees
    const u16* const from = q + run.batch * n.q_batch + (r / n.group) * n.q_row + (run.head * n.group + r % n.group) * n.q_head;
    const int first = place_of(r, n) * HEAD;
#pragma unroll
    for (int i = 0; i < D_STEPS; ++i)
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        const int column = 16 * i + 8 * eight + 2 * (lane % 4) - first;
        a[i][half + 2 * eight] = 0 <= column && column < HEAD ? *(const u32*)(from + column) : 0;
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
  int stage = 0;
  u32 phase = 0;
#pragma unroll 1
  for (int tile = run.begin; tile < run.end; ++tile) {
    barrier_wait(shared_address(shared->full + stage), phase);
    float s[2][4] = {};  // 8 keys each
    const u32 k_now = k_tile + stage * K_BYTES, v_now = v_tile + stage * V_BYTES;
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
    if (lane == 0) barrier_arrive(shared_address(shared->empty + stage));
    step_ring(stage, phase);
  }
  named_sync(1, 128);  // the ring is the sums' now
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = lane / 4 + 8 * half;
    total[half] += __shfl_xor_sync(~0u, total[half], 1);
    total[half] += __shfl_xor_sync(~0u, total[half], 2);
    if (lane % 4 == 0) shared->top[warp][r] = top[half], shared->total[warp][r] = total[half];
#pragma unroll
    for (int i = 0; i < V_PAIRS; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = 16 * i + 8 * j + 2 * (lane % 4);
        if (column < D_V)
          *(float2*)(sums + (warp * ROWS + r) * PITCH + column) = make_float2(out[i][j][2 * half], out[i][j][2 * half + 1]);
      }
  }
  named_sync(1, 128);
}

extern "C" __global__ void __launch_bounds__(160, PROGRAMS) attention_hopper_decode(
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map, const u16* q, u16* out, float* lse,
    float* parts, float* parts_lse, int* tickets, const int* lengths, const int* table, i64 q_batch, i64 q_row, i64 q_head,
    float scale2, int queries, int heads, int group, int row_tiles, int left, int table_row, int splits, int early SLOPE) {
  extern __shared__ char memory[];
  __shared__ Shared storage;
  Shared* const shared = &storage;
  char* const ring = memory + (1024 - shared_address(memory) % 1024) % 1024;  // swizzled tiles begin at multiples of 1024
  const u32 k_tile = shared_address(ring), v_tile = k_tile + STAGES * K_BYTES;
  // The heads of one position lie side by side: programs that start together read them together.
  const int kv_heads = heads / group;
  const int peers = cluster_size(), rank = blockIdx.x % peers, clusters = splits / peers;
  int rest = blockIdx.x / peers;
  Run run;
  run.head = rest % kv_heads, rest /= kv_heads;
  const int cluster = rest % clusters;
  run.split = cluster * peers + rank, rest /= clusters;
  const int owner = (rest * kv_heads + run.head) * peers + rank;
  run.row0 = rest % row_tiles * ROWS, run.batch = rest / row_tiles;
  if (threadIdx.x == 0) {
    init_buffers(shared->full, shared->empty, STAGES, WARPS);
    fence_barrier_init();
    prefetch_map(&k_map), prefetch_map(&v_map);
  }
  __syncthreads();
  if (early) release_successor();
  await_memory();
  run.keys = lengths[run.batch];
  const int first = HAS_FIRST ? max(run.row0 / group + run.keys - queries - left, 0) / TILE : 0;
  const int tiles = max((run.keys + TILE - 1) / TILE - first, 0);
  run.begin = first + (int)((i64)tiles * run.split / splits);
  run.end = first + (int)((i64)tiles * (run.split + 1) / splits);
  if (threadIdx.x >= 128) {
    stream(&k_map, &v_map, k_tile, v_tile, shared, run, table + (PAGE > 0 ? (i64)run.batch * table_row : 0), threadIdx.x % 32);
    return;
  }
  const Rows n = {queries, heads, group, queries * group, left, q_batch, q_row, q_head};
  const Output to = {out, lse, parts, parts_lse, clusters, cluster};
  const Slice slice = slice_of(run, n, rank, peers);
  float* const sums = (float*)ring;
  float* const mine = sums + WARPS * ROWS * PITCH;
  attend(q, k_tile, v_tile, shared, sums, run, n, scale2, SLOPE2);
  if (!early) release_successor();
  join(sums, mine, peers, shared, to, run, n);
  if (peers > 1) {
    cluster_sync();
    share(shared_address(mine), peers, slice, to, run, n);
  }
  if (clusters > 1) {
    __threadfence();
    named_sync(1, 128);
    // The ticket goes round, so that it is zero again for the next launch.
    if (threadIdx.x == 0) shared->last = atomicInc((u32*)tickets + owner, clusters - 1) == clusters - 1;
    named_sync(1, 128);
    if (shared->last) {
      __threadfence();
      combine(mine + ROWS * (HEAD_V + 1), slice, to, run, n);
    }
  }
  if (peers > 1) cluster_sync();  // what others read of this program is there until they have
}
