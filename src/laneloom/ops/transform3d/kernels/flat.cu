// R[a',b',c'] = sum_abc X[a,b,c] T0[a,a'] T1[b,b'] T2[c,c'] for many small tensors, each read once and written once.
//
// A CTA holds GROUP tensors in shared memory and contracts one axis after the other, in place: c, b, then a on the way
// out. Each contraction is one product of matrix instructions whose 16 rows are any 16 of all GROUP K^2 lines along that
// axis, whose contraction goes in steps of 8 (the last one of 4 where that is enough) and whose columns are K, in tiles
// of 8: K = 20 costs 20 x 24, not 32 x 32. The matrix is the second operand, in registers. An axis takes the index pair
// (2j, 2j + 1) for lane j = lane % 4 of a step, as an accumulator has its columns: all passes want the same registers.
//
// The arithmetic is FP64 whatever VALUE is. float is rounded after each contraction.
//
// Compile-time constants: K, GROUP, WARPS, CTAS_PER_SM, BULK (1: bulk copies, which need 16-byte alignment; 0: plain
// loads), VECTORS_OUT (1: every tensor of `out` begins at a multiple of 16 bytes), SAME_MATRIX, ACCUMULATE, VALUE (double or float), PARTS (1 real, 2 complex: real and imaginary part lie side by
// side and are lines of their own; strides count VALUEs).

#define TILES ((K + 7) / 8)
#define STEPS ((K + 7) / 8)
#define HALF_TAIL (K % 8 >= 1 && K % 8 <= 4)  // the last step is of 4
#define PADDED (8 * TILES)
#define T_STRIDE (PADDED + 4 / ((int)sizeof(VALUE) / 4))  // few bank conflicts when fragments are read
#define PAIRS (ROW % 2 == 0)  // two neighbours of a plane are aligned, and of one row
#define PAIRS_OUT (VECTORS_OUT || PARTS == 2)

template <typename T> struct Types;
template <> struct Types<double> { typedef double2 Pair; };
template <> struct Types<float> { typedef float2 Pair; };
typedef Types<VALUE>::Pair VALUE2;

template <bool HALF>
__device__ __forceinline__ void mma(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
  if (HALF)
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(b[0]));
  else
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}
// Index that contraction step s gives to lane j, as its element e of two.
__device__ __forceinline__ constexpr int contraction(int s, int j, int e) {
  return HALF_TAIL && s == STEPS - 1 ? 8 * s + j : 8 * s + 2 * j + e;
}

// This lane's share of a matrix: of step s and column tile u, T[contraction][8 u + g], g = lane / 4.
struct Matrix {
  double value[STEPS][TILES][2];
  __device__ __forceinline__ Matrix(const VALUE* t, int g, int j) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int u = 0; u < TILES; ++u)
#pragma unroll
        for (int e = 0; e < 2; ++e) value[s][u][e] = (double)t[contraction(s, j, e) * T_STRIDE + 8 * u + g];
  }
};

// Where element c of row b lies in its row after the first pass: turned, so that rows 0, 2, 4 and 6 lie 8 banks apart.
__device__ __forceinline__ int turned(int b, int c) {
  const int unit = 32 / sizeof(VALUE), period = 4 * unit, apart = 2 * ROW % period;
  int by = 0;
  if (apart == 0 && ROW >= 4 * unit) by = unit * (b >> 1 & 3);
  else if (apart == 0 && ROW >= 2 * unit) by = unit * (b >> 1 & 1);
  else if (apart == 2 * unit && ROW >= 2 * unit) by = unit * (b >> 2 & 1);
  c += by;
  return c < ROW ? c : c - ROW;
}

// 16 lines along one axis, from line `first` of `lines` on: read, contracted, written in place, or along a to `out` (the
// group's first tensor). Lines g and g + 8 of a tile are neighbours where lanes can move pairs so.
template <Axis AXIS>
__device__ __forceinline__ void contract(VALUE* tensors, VALUE* out, i64 stride_out, int first, int lines, const Matrix& t,
                                         int g, int j) {
  const bool neighbours = PAIRS && (AXIS != ALONG_C || PARTS == 2);
  const bool pairs_along = AXIS == ALONG_C && PARTS == 1 && K % 2 == 0;
  VALUE *p[2], *to[2];  // where this lane's two lines begin; along a: where their sums go
  int at[2];            // along c the row within its plane, along b the column
  bool ok[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int line = first + (neighbours ? 2 * g + e : g + 8 * e);
    ok[e] = line < lines;
    if (AXIS == ALONG_C) {
      const int row = line / PARTS;
      at[e] = row % K;
      p[e] = tensors + row * ROW + line % PARTS;
    } else if (AXIS == ALONG_B) {
      at[e] = line % ROW;
      p[e] = tensors + line / ROW * PLANE;
    } else {
      const int tensor = GROUP == 1 ? 0 : line / PLANE, within = line - tensor * PLANE, b = within / ROW;
      p[e] = tensors + tensor * K * PLANE + b * ROW + turned(b, within - b * ROW);
      to[e] = out + tensor * stride_out + within;
    }
  }
  double acc[TILES][4] = {};
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    const bool half = HALF_TAIL && s == STEPS - 1;
    double x[2][2] = {};  // [index, line]
#pragma unroll
    for (int i = 0; i < (half ? 1 : 2); ++i) {
      const int k = contraction(s, j, i);
      const bool there = K % 8 == 0 || (HALF_TAIL && (!half || K % 4 == 0)) || k < K;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (!ok[e] || !there) continue;
        const VALUE* q = AXIS == ALONG_C ? p[e] + k * PARTS : AXIS == ALONG_B ? p[e] + k * ROW + turned(k, at[e]) : p[e] + k * PLANE;
        if (pairs_along && !half) {  // both indices of one line
          if (i == 0) {
            const VALUE2 both = *(const VALUE2*)q;
            x[0][e] = (double)both.x;
            x[1][e] = (double)both.y;
          }
        } else if (!neighbours) {
          x[i][e] = (double)*q;
        } else if (e == 0) {  // one index of both lines
          const VALUE2 both = *(const VALUE2*)q;
          x[i][0] = (double)both.x;
          x[i][1] = (double)both.y;
        }
      }
    }
    const double a[4] = {x[0][0], x[0][1], x[1][0], x[1][1]};
#pragma unroll
    for (int u = 0; u < TILES; ++u)
      if (half)
        mma<true>(acc[u], a, t.value[s][u]);
      else
        mma<false>(acc[u], a, t.value[s][u]);
  }
  if (AXIS != ALONG_A) __syncwarp();  // every lane has read these lines before they are overwritten
#pragma unroll
  for (int u = 0; u < TILES; ++u)
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {  // acc[u][2 e + i]: index 8 u + 2 j + i of line e
        const int k = 8 * u + 2 * j + i;
        if ((K % 8 != 0 && k >= K) || !ok[e]) continue;
        if (pairs_along) {
          if (i == 0) *(VALUE2*)(p[e] + turned(at[e], k)) = VALUE2{(VALUE)acc[u][2 * e], (VALUE)acc[u][2 * e + 1]};
          continue;
        }
        if (neighbours && e == 1) continue;
        VALUE* q = AXIS == ALONG_C ? p[e] + turned(at[e], k * PARTS) : AXIS == ALONG_B ? p[e] + k * ROW + turned(k, at[e]) : to[e] + k * PLANE;
        double v0 = acc[u][2 * e + i], v1 = acc[u][2 + i];
#if ACCUMULATE
        if (AXIS == ALONG_A) {
          v0 += (double)q[0];
          if (neighbours) v1 += (double)q[1];
        }
#endif
        if (neighbours && (AXIS != ALONG_A || PAIRS_OUT)) {
          *(VALUE2*)q = VALUE2{(VALUE)v0, (VALUE)v1};
        } else {
          q[0] = (VALUE)v0;
          if (neighbours) q[1] = (VALUE)v1;
        }
      }
}

template <Axis AXIS>
__device__ __forceinline__ void sweep(VALUE* tensors, VALUE* out, i64 stride_out, int lines, const Matrix& t, int g, int j) {
#pragma unroll 1
  for (int first = threadIdx.x / 32 * 16; first < lines; first += WARPS * 16)
    contract<AXIS>(tensors, out, stride_out, first, lines, t, g, j);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, CTAS_PER_SM)
    transform3d_flat(const VALUE* x, const VALUE* matrix, VALUE* out, i64 n, i64 stride_x, i64 stride_out, i64 stride_axis,
                     i64 stride_k, i64 stride_n, int resident) {
  extern __shared__ __align__(128) unsigned char shared[];
  VALUE* tensors = (VALUE*)shared;
  VALUE* t = (VALUE*)(shared + X_BYTES);  // [MATRICES][PADDED][T_STRIDE], zero past K
  const u32 loaded = (u32)__cvta_generic_to_shared(shared + X_BYTES + MATRICES * PADDED * T_STRIDE * (int)sizeof(VALUE));
  const int lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
  const i64 base = (i64)blockIdx.x * GROUP;
  const int count = (int)(n - base < GROUP ? n - base : GROUP);
  const VALUE* src = x + base * stride_x;

  expect_tensors(count, stride_x, loaded);
  follow_kernels_ahead(src, count, K * PLANE, stride_x, matrix, stride_axis, stride_k, stride_n, resident);
  load_tensors(tensors, src, count, stride_x, loaded);
  for (int i = threadIdx.x; i < MATRICES * PADDED * PADDED; i += WARPS * 32) {
    const int axis = i / (PADDED * PADDED), k = i / PADDED % PADDED, m = i % PADDED;
    t[(axis * PADDED + k) * T_STRIDE + m] = k < K && m < K ? matrix[axis * stride_axis + k * stride_k + m * stride_n] : VALUE(0);
  }
  __syncthreads();  // the matrices, the barrier's initialisation and (without bulk copies) the tensors are visible

  const int lines = count * PLANE;  // along each of the axes
  const Matrix tc(t + (MATRICES - 1) * PADDED * T_STRIDE, g, j);
  wait_for_tensors(loaded);
  sweep<ALONG_C>(tensors, out, 0, lines, tc, g, j);
  __syncthreads();  // a line along b has elements of K lines along c
#if SAME_MATRIX
  const Matrix &tb = tc, &ta = tc;
#else
  const Matrix tb(t + PADDED * T_STRIDE, g, j), ta(t, g, j);
#endif
  sweep<ALONG_B>(tensors, out, 0, lines, tb, g, j);
  __syncthreads();
  sweep<ALONG_A>(tensors, out + base * stride_out, stride_out, lines, ta, g, j);
}
