// What a program of attention over a cache has on Hopper, and how sums become one: of a program's warps, of a cluster's programs,
// of parts in memory. It comes in front of the text of kernels whose compile-time constants it uses.

constexpr int TILE = 64, ROWS = 16, WARPS = 4;
constexpr int HEAD = D / ABREAST, HEAD_V = D_V / ABREAST;  // columns of one head
constexpr int AHEAD = 8;  // parts of a row that are on their way to a thread
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

// The query of row r, r / group: exact for the 2^19 rows that there are at most, and sooner there than by integers.
__device__ __forceinline__ int query_of(int r, const Rows& n) { return (int)__fdividef(r + 0.5f, n.group); }
__device__ __forceinline__ int head_of(int r, const Rows& n) { return r - query_of(r, n) * n.group; }

// A sequence's length.
__device__ __forceinline__ int length_of(const int* from) { return max(*from, 0); }
// The same before kernels ahead have ended, one of which may write it: `room` at most, whatever memory says while nobody has. Past
// the L1, where it would be found again.
__device__ __forceinline__ int early_length_of(const int* from, int room) { return min(max(__ldcg(from), 0), room); }

// That this run has.
__device__ __forceinline__ int rows_of(const Run& run, const Rows& n) { return min(ROWS, n.rows - run.row0); }
// Of the heads that lie abreast, the one to which row r belongs.
__device__ __forceinline__ int place_of(int r, const Rows& n) { return ABREAST == 1 ? 0 : head_of(r, n) * ABREAST / n.group; }

// 1 / x, and 0 for the sum of no weights.
__device__ __forceinline__ float inverse(float x) { return x == 0 ? 0 : reciprocal(x); }
__device__ __forceinline__ float log_of_sum(float top, float total) { return total == 0 ? -INFINITY : top + __log2f(total); }

struct Output {
  u16* out;
  float *lse, *parts, *parts_lse;
  int count, which, first;  // parts that the rows' result has, which of them this is, and how many lie before them
};

// The compiler does not know x as the same number from here on.
__device__ __forceinline__ void forget(int& x) { asm volatile("" : "+r"(x)); }

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
  const int query = query_of(r, n), head = run.head * n.group + head_of(r, n);
  *(uint2*)(to.out + (((i64)run.batch * n.queries + query) * n.heads + head) * HEAD_V + column) =
      make_uint2(pack(x.x, x.y), pack(x.z, x.w));
  if (column == 0) to.lse[((i64)run.batch * n.heads + head) * n.queries + query] = lse2 * 0.6931471805599453f;
}
// ... or this part of it. Where row r of part i lies:
__device__ __forceinline__ i64 part(const Output& to, const Run& run, const Rows& n, int i, int r) {
  return (i64)(to.first + i) * min(ROWS, n.rows) + r - run.row0;
}
// first: of what a slice has of the row. Each slice leaves the row's lse, the same number, since its ticket is for this slice alone.
__device__ __forceinline__ void write(const Output& to, const Run& run, const Rows& n, int r, int column, float4 x, float lse2,
                                      bool first) {
  if (to.count == 1) {
    write_result(to, run, n, r, column, x, lse2);
  } else {
    const i64 at = part(to, run, n, to.which, r);
    *(float4*)(to.parts + at * HEAD_V + column) = x;
    if (first) to.parts_lse[at] = lse2;
  }
}

// 128 threads: the four warps' sums become one, which a cluster's other programs read from `mine`.
__device__ __forceinline__ void join(const float* sums, float* mine, int peers, const Shared* shared, const Output& to,
                                     const Run& run, const Rows& n) {
  const int rows = rows_of(run, n);
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
      const float4 y = *(const float4*)(sums + (w * rows + r) * PITCH + place_of(run.row0 + r, n) * HEAD_V + column);
      total += weight * shared->total[w][r];
      x.x += weight * y.x, x.y += weight * y.y, x.z += weight * y.z, x.w += weight * y.w;
    }
    const float factor = inverse(total), lse2 = log_of_sum(top, total);
    x.x *= factor, x.y *= factor, x.z *= factor, x.w *= factor;
    if (peers == 1) {
      write(to, run, n, run.row0 + r, column, x, lse2, column == 0);
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
  const int items = rows_of(run, n) * (HEAD_V / 4);
  return {items * rank / peers, items * (rank + 1) / peers};
}

// Four columns of a row whose parts `load` gives, each with its lse, put together in their order.
template <class Load> __device__ __forceinline__ float4 weigh(int count, Load load, float& lse2) {
  float top = -INFINITY, total = 0;
  float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 1  // short code: it is fetched from memory when a program comes here
  for (int begin = 0; begin < count; begin += AHEAD) {
    float l[AHEAD];
    float4 y[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      l[i] = -INFINITY, y[i] = make_float4(0, 0, 0, 0);
      if (begin + i < count) load(begin + i, l[i], y[i]);
    }
    float most = top;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) most = fmaxf(most, l[i]);
    const float shift = most == -INFINITY ? 0 : most, fade = exp2_fast(top - shift);
    top = most, total *= fade;
    x.x *= fade, x.y *= fade, x.z *= fade, x.w *= fade;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const float weight = exp2_fast(l[i] - shift);
      total += weight;
      x.x += weight * y[i].x, x.y += weight * y[i].y, x.z += weight * y[i].z, x.w += weight * y[i].w;
    }
  }
  const float factor = inverse(total);
  lse2 = log_of_sum(top, total);
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

// 128 threads of each of a cluster's programs: what they have becomes one.
__device__ __forceinline__ void share(u32 mine, int peers, const Slice& slice, const Output& to, const Run& run, const Rows& n) {
  for (int item = slice.begin + threadIdx.x; item < slice.end; item += 128) {
    const int r = item / (HEAD_V / 4), column = item % (HEAD_V / 4) * 4;
    float lse2;
    const float4 x = weigh(peers, [&](int i, float& l, float4& y) {
      l = load_peer(at_rank(mine + r * 4, i)), y = load_peer4(at_rank(mine + (ROWS + r * HEAD_V + column) * 4, i));
    }, lse2);
    write(to, run, n, run.row0 + r, column, x, lse2, column == 0 || item == slice.begin);
  }
}

// 128 threads of the program that is last at a slice: the parts in memory become one.
__device__ __forceinline__ void combine(const Slice& slice, const Output& to, const Run& run, const Rows& n) {
#pragma unroll 1
  for (int item = slice.begin + threadIdx.x; item < slice.end; item += 128) {
    const int r = item / (HEAD_V / 4), column = item % (HEAD_V / 4) * 4;
    float lse2;
    const float4 x = weigh(to.count, [&](int i, float& l, float4& y) {
      const i64 at = part(to, run, n, i, run.row0 + r);
      l = __ldcg(to.parts_lse + at), y = __ldcg((const float4*)(to.parts + at * HEAD_V + column));
    }, lse2);
    write_result(to, run, n, run.row0 + r, column, x, lse2);
  }
}
