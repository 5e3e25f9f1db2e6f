// What a program of hopper_decode.cu has, and how sums become one: of a program's warps, of a cluster's programs, of clusters.
// It comes in front of that kernel's text, whose compile-time constants it uses.

constexpr int TILE = 64, ROWS = 16, WARPS = 4;
constexpr int HEAD = D / ABREAST, HEAD_V = D_V / ABREAST;  // columns of one head
constexpr int MOST_PEERS = 16;  // programs of a cluster
constexpr int PITCH = D_V + 4;  // floats of a row of sums in shared memory

struct Shared {
  u64 full[STAGES], empty[STAGES];
  float top[WARPS][ROWS], total[WARPS][ROWS];
  int last;
};

struct Run {
  int batch, head, row0, split, keys, begin, end;  // begin, end: tiles
};

struct Rows {
  int queries, heads, group, rows, left;
  i64 q_batch, q_row, q_head;
};

// Of the heads that lie abreast, the one to which row r belongs.
__device__ __forceinline__ int place_of(int r, const Rows& n) { return ABREAST == 1 ? 0 : r % n.group / (n.group / ABREAST); }

// 1 / x, and 0 for the sum of no weights.
__device__ __forceinline__ float inverse(float x) { return x == 0 ? 0 : 1 / x; }
__device__ __forceinline__ float log_of_sum(float top, float total) { return total == 0 ? -INFINITY : top + log2f(total); }

struct Output {
  u16* out;
  float *lse, *parts, *parts_lse;
  int clusters, cluster;  // that share the rows, and which of them this is
};

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
