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
// Compile-time constants: D, D_V (multiples of 8 up to 256, of all the heads abreast), ABREAST, STAGES, BOX (keys of a copy: 64,
// or fewer where pages are smaller), PAGE (keys of a page, 0 without pages), HAS_FIRST (a window), BF16.

constexpr int TILE = 64, ROWS = 16, WARPS = 4;
constexpr int K_BYTES = CHUNKS(D) * TILE * 128, V_BYTES = CHUNKS(D_V) * TILE * 128;
constexpr int BOXES = TILE / BOX;
constexpr int D_STEPS = (D + 15) / 16, V_PAIRS = (D_V + 15) / 16;  // of 16 columns
constexpr int HEAD = D / ABREAST, HEAD_V = D_V / ABREAST;  // columns of one head
constexpr int AT_ONCE = D_V > 128 ? 2 : 4;  // steps whose operands are loaded before the first of their products
constexpr int MOST_PEERS = 16;  // programs of a cluster
// Of a processor, at least, for which the compiler leaves registers. It would leave them for more, and load less ahead.
constexpr int PROGRAMS = D <= 64 && D_V <= 64 ? 3 : D <= 160 && D_V <= 160 ? 2 : 1;
constexpr int PITCH = D_V + 4;  // floats of a row of sums in shared memory

struct Shared {
  u64 full[STAGES], empty[STAGES];
  float top[WARPS][ROWS], total[WARPS][ROWS];
  int last;
};

struct Run {
  int batch, head, row0, split, keys, begin, end;  // begin, end: tiles
};

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

struct Rows {
  int queries, heads, group, rows, left;
  i64 q_batch, q_row, q_head;
};

// Of the heads that lie abreast, the one to which row r belongs.
__device__ __forceinline__ int place_of(int r, const Rows& n) { return ABREAST == 1 ? 0 : r % n.group / (n.group / ABREAST); }

// Four warps: their sums, of which each of 128 threads then has a part, go to shared memory.
__device__ __forceinline__ void attend(const u16* q, u32 k_tile, u32 v_tile, Shared* shared, float* sums, const Run& run,
                                       const Rows& n, float scale2) {
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

// 1 / x, and 0 for the sum of no weights.
__device__ __forceinline__ float inverse(float x) { return x == 0 ? 0 : 1 / x; }
__device__ __forceinline__ float log_of_sum(float top, float total) { return total == 0 ? -INFINITY : top + log2f(total); }

struct Output {
  u16* out;
  float *lse, *parts, *parts_lse;
  int clusters, cluster;  // that share the rows, and which of them this is
};

// The next kernel's programs may take their places beside this one's when all of these have said so.
__device__ __forceinline__ void release_successor() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Programs of a cluster. Those of a launch without clusters are alone.
__device__ __forceinline__ int cluster_size() {
  u32 size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ __forceinline__ float load_peer(u32 address) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ float4 load_peer4(u32 address) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address) : "memory");
  return x;
}

// Four columns of row r, and its lse where they are the first: the result [B, N, H, HEAD_V], [B, H, N], ...
__device__ __forceinline__ void write_result(const Output& to, const Run& run, const Rows& n, int r, int column, float4 x, float lse2) {
  const int query = r / n.group, head = run.head * n.group + r % n.group;
  *(uint2*)(to.out + (((i64)run.batch * n.queries + query) * n.heads + head) * HEAD_V + column) =
      make_uint2(pack(x.x, x.y), pack(x.z, x.w));
  if (column == 0) to.lse[((i64)run.batch * n.heads + head) * n.queries + query] = lse2 * 0.6931471805599453f;
}
// ... or this cluster's part of it, of which there are `clusters` side by side.
__device__ __forceinline__ i64 part(const Output& to, const Run& run, const Rows& n, int r) {
  return (((i64)run.batch * n.heads + run.head * n.group + r % n.group) * n.queries + r / n.group) * to.clusters;
}
__device__ __forceinline__ void write(const Output& to, const Run& run, const Rows& n, int r, int column, float4 x, float lse2) {
  if (to.clusters == 1) {
    write_result(to, run, n, r, column, x, lse2);
  } else {
    const i64 at = part(to, run, n, r) + to.cluster;
    *(float4*)(to.parts + at * HEAD_V + column) = x;
    if (column == 0) to.parts_lse[at] = lse2;
  }
}

// 128 threads: the four warps' sums become one, which a cluster's other programs read from `mine`.
__device__ __forceinline__ void join(const float* sums, float* mine, int peers, const Shared* shared, const Output& to,
                                     const Run& run, const Rows& n) {
  const int rows = min(ROWS, n.rows - run.row0);
  for (int item = threadIdx.x; item < rows * (HEAD_V / 4); item += 128) {
    const int r = item / (HEAD_V / 4), column = item % (HEAD_V / 4) * 4;
    float top = shared->top[0][r];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) top = fmaxf(top, shared->top[w][r]);
    const float shift = top == -INFINITY ? 0 : top;
    float total = 0;
    float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float weight = exp2_fast(shared->top[w][r] - shift);
      const float4 y = *(const float4*)(sums + (w * ROWS + r) * PITCH + place_of(run.row0 + r, n) * HEAD_V + column);
      total += weight * shared->total[w][r];
      x.x += weight * y.x, x.y += weight * y.y, x.z += weight * y.z, x.w += weight * y.w;
    }
    const float factor = inverse(total), lse2 = log_of_sum(top, total);
    x.x *= factor, x.y *= factor, x.z *= factor, x.w *= factor;
    if (peers == 1) {
      write(to, run, n, run.row0 + r, column, x, lse2);
    } else {
      *(float4*)(mine + ROWS + r * HEAD_V + column) = x;
      if (column == 0) mine[r] = lse2;
    }
  }
}

// Four columns each of the rows, of which a cluster's programs have a slice each.
struct Slice {
  int begin, end;
};
__device__ __forceinline__ Slice slice_of(const Run& run, const Rows& n, int rank, int peers) {
  const int items = min(ROWS, n.rows - run.row0) * (HEAD_V / 4);
  return {items * rank / peers, items * (rank + 1) / peers};
}

// 128 threads of each of a cluster's programs: what they have becomes one.
__device__ __forceinline__ void share(u32 mine, int peers, const Slice& slice, const Output& to, const Run& run, const Rows& n) {
  for (int item = slice.begin + threadIdx.x; item < slice.end; item += 128) {
    const int r = item / (HEAD_V / 4), column = item % (HEAD_V / 4) * 4;
    float lse2[MOST_PEERS], top = -INFINITY, total = 0;
    float4 y[MOST_PEERS], x = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < MOST_PEERS; ++i) {
      lse2[i] = i < peers ? load_peer(at_rank(mine + r * 4, i)) : -INFINITY;
      if (i < peers) y[i] = load_peer4(at_rank(mine + (ROWS + r * HEAD_V + column) * 4, i));
    }
#pragma unroll
    for (int i = 0; i < MOST_PEERS; ++i) top = fmaxf(top, lse2[i]);
    const float shift = top == -INFINITY ? 0 : top;
#pragma unroll
    for (int i = 0; i < MOST_PEERS; ++i)
      if (i < peers) {
        const float weight = exp2_fast(lse2[i] - shift);
        total += weight;
        x.x += weight * y[i].x, x.y += weight * y[i].y, x.z += weight * y[i].z, x.w += weight * y[i].w;
      }
    const float factor = inverse(total);
    x.x *= factor, x.y *= factor, x.z *= factor, x.w *= factor;
    write(to, run, n, run.row0 + r, column, x, log_of_sum(top, total));
  }
}

// 128 threads of the program that is last at a slice: the parts of all clusters become one, in their order.
__device__ __forceinline__ void combine(float* weights, const Slice& slice, const Output& to, const Run& run, const Rows& n) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int r = slice.begin / (HEAD_V / 4) + warp; r * (HEAD_V / 4) < slice.end; r += WARPS) {
    const float* const lse2 = to.parts_lse + part(to, run, n, run.row0 + r);
    float top = -INFINITY, total = 0;
    for (int i = lane; i < to.clusters; i += 32) top = fmaxf(top, __ldcg(lse2 + i));
#pragma unroll
    for (int far = 16; far > 0; far /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, far));
    const float shift = top == -INFINITY ? 0 : top;
    for (int i = lane; i < to.clusters; i += 32) total += exp2_fast(__ldcg(lse2 + i) - shift);
#pragma unroll
    for (int far = 16; far > 0; far /= 2) total += __shfl_xor_sync(~0u, total, far);
    const float factor = inverse(total);
    for (int i = lane; i < to.clusters; i += 32) weights[r * to.clusters + i] = exp2_fast(__ldcg(lse2 + i) - shift) * factor;
    if (lane == 0) weights[ROWS * to.clusters + r] = log_of_sum(top, total);
  }
  named_sync(1, 128);
  for (int item = slice.begin + threadIdx.x; item < slice.end; item += 128) {
    const int r = item / (HEAD_V / 4), column = item % (HEAD_V / 4) * 4;
    const float* const from = to.parts + part(to, run, n, run.row0 + r) * HEAD_V + column;
    float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int i = 0; i < to.clusters; ++i) {
      const float4 y = __ldcg((const float4*)(from + (i64)i * HEAD_V));
      const float weight = weights[r * to.clusters + i];
      x.x += weight * y.x, x.y += weight * y.y, x.z += weight * y.z, x.w += weight * y.w;
    }
    write_result(to, run, n, run.row0 + r, column, x, weights[ROWS * to.clusters + r]);
  }
}

extern "C" __global__ void __launch_bounds__(160, PROGRAMS) attention_hopper_decode(
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map, const u16* q, u16* out, float* lse,
    float* parts, float* parts_lse, int* tickets, const int* lengths, const int* table, i64 q_batch, i64 q_row, i64 q_head,
    float scale2, int queries, int heads, int group, int row_tiles, int left, int table_row, int splits, int early) {
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
  asm volatile("griddepcontrol.wait;" ::: "memory");
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
  attend(q, k_tile, v_tile, shared, sums, run, n, scale2);
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
