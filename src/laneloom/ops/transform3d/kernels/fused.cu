// R[a',b',c'] = sum_abc X[a,b,c] T0[a,a'] T1[b,b'] T2[c,c'] for many small tensors, each read once and written once.
//
// A CTA transforms GROUP tensors in place in shared memory and ends: several CTAs share an SM, so that some load while
// others compute, and the memory sees addresses in the order of the grid (a persistent loop costs 3% of the bandwidth).
//   A  per plane a, by one warp: D1 = T2^T X_a^T (matrix unit), D2 = D1 T1. An accumulator holds row lane/4 and columns
//      2(lane%4), 2(lane%4)+1; read as an A operand these columns are the contraction index of two steps of four, so D1
//      feeds the second product without leaving its registers. D2 overwrites the plane.
//   B  along a: D3 = T0^T D2, stored to global memory in whole 32-byte sectors.
// The contraction goes in steps of 4, so K = 20 costs 20, not 32.
//
// CLUSTER > 1: that many CTAs hold one tensor, K / CLUSTER planes each, the last one those that are left; phase A is as
// before, in phase B each takes its share of the columns and reads the others' planes through distributed shared memory.
//
// Compile-time constants: K, GROUP, CLUSTER, WARPS, CTAS_PER_SM, BULK (1: bulk copies, which need 16-byte alignment;
// 0: plain loads), MATRIX_IN_REGISTERS (in phase A), UNROLL (of phase B), AS_FLAT (1: sums in the order of flat.cu, and
// rounded where it rounds, so that results are the same bits), SAME_MATRIX, ACCUMULATE, VALUE (double or float: float is
// rounded after the second and the third contraction, everything between is double), PARTS (1 real, 2 complex: real and
// imaginary part lie side by side and are two tensors to the real matrix; strides count VALUEs).

#define K2 (K * K)
#define K3 (K * K * K)
#define TILES ((K + 7) / 8)                      // 8-wide tiles of one axis
#define HALF_TAIL (K % 8 >= 1 && K % 8 <= 4)     // the last tile needs one step of 4, not two
#define STEPS (2 * TILES - (HALF_TAIL ? 1 : 0))  // contraction steps of 4
#define PADDED (8 * TILES)
#define T_STRIDE (PADDED + 2)                    // = 2 mod 8: few bank conflicts when fragments are read
#define SPREAD_B (K % 4 == 2 && K < 16 && !AS_FLAT)  // order of b that spares bank conflicts at small K
#define ORDER_A (AS_FLAT ? PAIRED : SPREAD)      // of a, likewise
#define PLANES ((K + CLUSTER - 1) / CLUSTER)      // planes of one tensor in a CTA; the last one may have fewer
#define COLUMN_TILES ((GROUP * K2 + 8 * CLUSTER - 1) / (8 * CLUSTER))
#define VECTORS (K % 2 == 0 && BULK)             // pairs along c are aligned
#define X_BYTES ((GROUP * PLANES * K2 * PARTS * (int)sizeof(VALUE) + 15) / 16 * 16)

template <typename T> struct Pair;
template <> struct Pair<double> { typedef double2 type; };
template <> struct Pair<float> { typedef float2 type; };
typedef Pair<VALUE>::type VALUE2;


__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// One vector store: a struct's assignment is split in two. No memory clobber, so that loads of later tiles may pass it.
__device__ __forceinline__ void store_pair(double* p, double a, double b) {
  asm volatile("st.global.v2.f64 [%0], {%1, %2};" ::"l"(p), "d"(a), "d"(b));
}
__device__ __forceinline__ void store_pair(float* p, float a, float b) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(a), "f"(b));
}

// acc[u] (8 x 8 each) += A[u] (8 x 4) B (4 x 8) for all tiles u. m8n8k4 runs at half the rate of m16n8k4: it only takes
// an odd last tile, where it costs the same time and fewer registers.
__device__ __forceinline__ void mma(double (&acc)[TILES][2], const double (&a)[TILES], double b) {
#pragma unroll
  for (int u = 0; u < TILES; u += 2) {
    if (u + 1 < TILES) {
      const int w = u + 1 < TILES ? u + 1 : u;
      asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
          : "+d"(acc[u][0]), "+d"(acc[u][1]), "+d"(acc[w][0]), "+d"(acc[w][1])
          : "d"(a[u]), "d"(a[w]), "d"(b));
    } else {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
          : "+d"(acc[u][0]), "+d"(acc[u][1])
          : "d"(a[u]), "d"(b));
    }
  }
}

// Index that contraction step s gives to lane j = lane % 4: pairs (two steps share a 16-byte load) or spread.
__device__ __forceinline__ constexpr int paired(int s, int j) {
  return HALF_TAIL && s == STEPS - 1 ? 8 * (TILES - 1) + j : 8 * (s / 2) + 2 * j + s % 2;
}
__device__ __forceinline__ constexpr int spread(int s, int j) {
  return HALF_TAIL && s == STEPS - 1 ? 8 * (TILES - 1) + j : 8 * (s / 2) + j + 4 * (s % 2);
}

// This lane's share of a matrix: element (step, tile) is T[order(step, j)][8 tile + g], g = lane / 4, j = lane % 4.
enum Order { PAIRED, SPREAD };
template <Order ORDER>
__device__ __forceinline__ constexpr int contraction(int s, int j) { return ORDER == PAIRED ? paired(s, j) : spread(s, j); }
template <Order ORDER>
struct InRegisters {
  double value[STEPS][TILES];
  __device__ __forceinline__ InRegisters(const double* t, int g, int j) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int u = 0; u < TILES; ++u) value[s][u] = t[contraction<ORDER>(s, j) * T_STRIDE + 8 * u + g];
  }
  __device__ __forceinline__ double operator()(int s, int u) const { return value[s][u]; }
};
template <Order ORDER>
struct InShared {
  const double* t;
  int j;
  __device__ __forceinline__ InShared(const double* t, int g, int j) : t(t + g), j(j) {}
  __device__ __forceinline__ double operator()(int s, int u) const { return t[contraction<ORDER>(s, j) * T_STRIDE + 8 * u]; }
};
template <typename Matrix>
__device__ __forceinline__ void mma_matrix(double (&acc)[TILES][2], const Matrix& t, int s, double b) {
  double a[TILES];
#pragma unroll
  for (int u = 0; u < TILES; ++u) a[u] = t(s, u);
  mma(acc, a, b);
}

// Where D2[a, b, c] lies in the K^2 values of plane a: permuted so that neither the stores of phase A
// (lanes differ in b) nor the loads of phase B (lanes differ in a) meet a bank conflict. FP64 banks repeat every 16.
__device__ __forceinline__ int place(int a, int b, int c) {
  int row = b, column = c;
  if (K % 16 == 0) {
    column = c ^ ((b >> 1 ^ a) & 3) << 2;
  } else if (K % 8 == 0) {
    row = b ^ ((b >> 1 ^ a) & 1);
    column = c ^ ((b >> 2 ^ a >> 1) & 1) << 2;
  } else if (K % 4 == 0) {
    if (b < K - 4) row = (b & ~7) | (b >> 1 & 3) | (b & 1) << 2;
    row ^= a & 3;
  }
  return row * K + column;
}

// The same address in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ const VALUE* remote(const VALUE* p, int rank) {
  const VALUE* mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(p), "r"(rank));
  return mapped;
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Phase A for one part of plane a: x[PARTS * (b * K + c)] -> D2, in place.
template <typename MatrixB, typename MatrixC>
__device__ __forceinline__ void transform_plane(VALUE* x, int a_index, const MatrixB& tb, const MatrixC& tc, int g, int j) {
  double d1[TILES][TILES][2] = {};  // [b tile][c' tile]
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    const bool single = HALF_TAIL && t == TILES - 1;
#pragma unroll
    for (int v = 0; v < TILES; ++v) {
      // Column g of the tile; a half tile uses its even columns only.
      const bool tail = HALF_TAIL && v == TILES - 1;
      int b = 8 * v + (tail ? g >> 1 : SPREAD_B ? (g >> 1) + 4 * (g & 1) : g);
      bool row_ok = K % 8 == 0 || b < K;
      const VALUE* p = x + PARTS * ((row_ok ? b : 0) * K + 8 * t);
      if (single) {
        bool ok = row_ok && (K % 4 == 0 || 8 * t + j < K);
        double b0 = (double)p[ok ? PARTS * j : 0];
        mma_matrix(d1[v], tc, 2 * t, ok ? b0 : 0.0);
      } else {
        bool ok0 = row_ok && (K % 8 == 0 || 8 * t + 2 * j < K), ok1 = row_ok && (K % 8 == 0 || 8 * t + 2 * j + 1 < K);
        double b0, b1;
        if (VECTORS && PARTS == 1) {
          VALUE2 pair = *(const VALUE2*)(p + (ok0 ? 2 * j : 0));
          b0 = (double)pair.x;
          b1 = (double)pair.y;
        } else {
          b0 = (double)p[ok0 ? PARTS * 2 * j : 0];
          b1 = (double)p[ok1 ? PARTS * (2 * j + 1) : 0];
        }
        mma_matrix(d1[v], tc, 2 * t, ok0 ? b0 : 0.0);
        if (2 * t + 1 < STEPS) mma_matrix(d1[v], tc, (2 * t + 1) % STEPS, ok1 ? b1 : 0.0);
      }
    }
  }
  __syncwarp();  // every lane has read the plane before it is overwritten
#pragma unroll
  for (int u = 0; u < TILES; ++u) {
    double d2[TILES][2] = {};  // [c', b']
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      double a[TILES];
#pragma unroll
      for (int m = 0; m < TILES; ++m) a[m] = AS_FLAT ? (double)(VALUE)d1[s / 2][m][s % 2] : d1[s / 2][m][s % 2];
      mma(d2, a, tb(s, u));
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      int b = 8 * u + 2 * j + e;
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        int c = 8 * m + g;
        if (K % 8 == 0 || (b < K && c < K)) x[PARTS * place(a_index, b, c)] = (VALUE)d2[m][e];
      }
    }
  }
}

// Phase B for 8 columns (tensor, b', c'): contraction over a, stored to `out` (the group's first tensor).
__device__ __forceinline__ void transform_columns(const VALUE* tensors, VALUE* out, i64 stride_out, int tile, int columns,
                                                  const InRegisters<ORDER_A>& ta, int g, int j) {
  int f = 8 * tile + g;
  f = f < columns ? f : 0;
  const VALUE* tensor = tensors + (GROUP == 1 ? 0 : f / K2 * K3 * PARTS);
  const int b = f % K2 / K, c = f % K;
  const int pair = 8 * tile + 2 * j;  // columns pair and pair + 1
  VALUE* q0 = out + (GROUP == 1 ? (i64)PARTS * pair : pair / K2 * stride_out + PARTS * (pair % K2));
  VALUE* q1 = VECTORS ? q0 + PARTS
                      : out + (GROUP == 1 ? (i64)PARTS * (pair + 1) : (pair + 1) / K2 * stride_out + PARTS * ((pair + 1) % K2));
  double d3[PARTS][TILES][2];  // [part, a', column]
#pragma unroll
  for (int r = 0; r < PARTS; ++r)
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      d3[r][m][0] = d3[r][m][1] = 0.0;
#if ACCUMULATE && !AS_FLAT
      int a = 8 * m + g;
      if (a < K && pair < columns) d3[r][m][0] = (double)q0[PARTS * a * K2 + r];
      if (a < K && pair + 1 < columns) d3[r][m][1] = (double)q1[PARTS * a * K2 + r];
#endif
    }
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    int a = contraction<ORDER_A>(s, j);
    bool ok = K % 4 == 0 || a < K;
    if (!ok) a = 0;
    const VALUE* plane =
        CLUSTER == 1 ? tensor + PARTS * a * K2 : remote(tensor, a / PLANES) + PARTS * (a % PLANES) * K2;
    const VALUE* p = plane + PARTS * place(a, b, c);
    if (PARTS == 2) {
      VALUE2 both = *(const VALUE2*)p;
      mma_matrix(d3[0], ta, s, ok ? (double)both.x : 0.0);
      mma_matrix(d3[PARTS - 1], ta, s, ok ? (double)both.y : 0.0);
    } else {
      double b0 = (double)*p;
      mma_matrix(d3[0], ta, s, ok ? b0 : 0.0);
    }
  }
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
    int a = 8 * m + g;
    if (K % 8 != 0 && a >= K) continue;
#if ACCUMULATE && AS_FLAT
#pragma unroll
    for (int r = 0; r < PARTS; ++r) {
      if (pair < columns) d3[r][m][0] += (double)q0[PARTS * a * K2 + r];
      if (pair + 1 < columns) d3[r][m][1] += (double)q1[PARTS * a * K2 + r];
    }
#endif
    if (PARTS == 2) {
      if (pair < columns) store_pair(q0 + PARTS * a * K2, (VALUE)d3[0][m][0], (VALUE)d3[PARTS - 1][m][0]);
      if (pair + 1 < columns) store_pair(q1 + PARTS * a * K2, (VALUE)d3[0][m][1], (VALUE)d3[PARTS - 1][m][1]);
    } else if (VECTORS) {
      if (pair < columns) store_pair(q0 + a * K2, (VALUE)d3[0][m][0], (VALUE)d3[0][m][1]);
    } else {
      if (pair < columns) q0[a * K2] = (VALUE)d3[0][m][0];
      if (pair + 1 < columns) q1[a * K2] = (VALUE)d3[0][m][1];
    }
  }
}

#if MATRIX_IN_REGISTERS
#define MATRIX_A InRegisters
#else
#define MATRIX_A InShared
#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, CTAS_PER_SM)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
    transform3d_fused(const VALUE* x, const VALUE* matrix, VALUE* out, i64 n, i64 stride_x, i64 stride_out,
                      i64 stride_axis, i64 stride_k, i64 stride_n, int resident) {
  extern __shared__ __align__(128) unsigned char shared[];
  VALUE* tensors = (VALUE*)shared;
  double* t = (double*)(shared + X_BYTES);  // [MATRICES][PADDED][T_STRIDE], zero past K
  const u32 loaded = shared_address(shared + X_BYTES + MATRICES * PADDED * T_STRIDE * 8);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
  const int rank = CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER;
  const i64 base = (i64)(blockIdx.x / CLUSTER) * GROUP;
  const int count = (int)(n - base < GROUP ? n - base : GROUP);
  const int planes = K % CLUSTER == 0 ? PLANES : min(PLANES, K - rank * PLANES);
  const VALUE* src = x + base * stride_x + rank * PLANES * K2 * PARTS;

  if (BULK && threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(loaded));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(loaded), "r"(count * planes * K2 * PARTS * (int)sizeof(VALUE))
                 : "memory");
  }
  follow_kernels_ahead(src, count, planes * K2 * PARTS, stride_x, matrix, stride_axis, stride_k, stride_n, resident);
  if (BULK && threadIdx.x == 0) {
    const bool dense = side_by_side(stride_x, K3 * PARTS);
    const u32 bytes = (dense ? count : 1) * planes * K2 * PARTS * sizeof(VALUE);
#pragma unroll 1
    for (int i = 0; i < (dense ? 1 : count); ++i)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              shared_address(tensors + i * K3 * PARTS)),
          "l"(src + i * stride_x), "r"(bytes), "r"(loaded)
          : "memory");
  }
  if (!BULK) {
    for (int i = threadIdx.x; i < count * planes * K2 * PARTS; i += WARPS * 32)
      tensors[i] = src[i / (K3 * PARTS) * stride_x + i % (K3 * PARTS)];
  }
  for (int i = threadIdx.x; i < MATRICES * PADDED * PADDED; i += WARPS * 32) {
    int axis = i / (PADDED * PADDED), k = i / PADDED % PADDED, m = i % PADDED;
    t[(axis * PADDED + k) * T_STRIDE + m] =
        k < K && m < K ? (double)matrix[axis * stride_axis + k * stride_k + m * stride_n] : 0.0;
  }
  __syncthreads();  // the matrices, the barrier's initialisation and (without bulk copies) the tensors are visible

  {
    const MATRIX_A<PAIRED> tc(t + (MATRICES - 1) * PADDED * T_STRIDE, g, j);
#if SAME_MATRIX && !SPREAD_B
    const MATRIX_A<PAIRED>& tb = tc;
#else
    const MATRIX_A<SPREAD_B ? SPREAD : PAIRED> tb(t + MATRICES / 2 * PADDED * T_STRIDE, g, j);
#endif
    if (BULK)
      asm volatile(
          "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra again;\n}" ::"r"(
              loaded)
          : "memory");
    for (int i = warp; i < GROUP * planes * PARTS; i += WARPS) {
      const int p = i / PARTS, part = i % PARTS;
      if (GROUP == 1 || p < count * K)
        transform_plane(tensors + p * K2 * PARTS + part, CLUSTER == 1 ? p % K : rank * PLANES + p, tb, tc, g, j);
    }
  }
  const InRegisters<ORDER_A> ta(t, g, j);
  // Every plane is transformed, in all CTAs of the cluster.
  if (CLUSTER == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
#pragma unroll UNROLL
  for (int i = warp; i < COLUMN_TILES; i += WARPS) {
    int tile = rank * COLUMN_TILES + i;
    if (tile * 8 < count * K2) transform_columns(tensors, out + base * stride_out, stride_out, tile, count * K2, ta, g, j);
  }
  if (CLUSTER > 1) {  // nobody leaves while another CTA still reads its planes
    cluster_arrive();
    cluster_wait();
  }
}
