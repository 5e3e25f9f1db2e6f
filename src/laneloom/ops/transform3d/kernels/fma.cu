// R[a',b',c'] = sum_abc X[a,b,c] T0[a,a'] T1[b,b'] T2[c,c'] for many small float tensors, each read once and written
// once, in FP32.
//
// A CTA holds GROUP tensors in shared memory and contracts one axis after the other, in place: c, b, then a on the way
// out. A lane takes two lines along that axis at a time and makes COLUMNS of their elements, all K where LANES is 1. Those
// columns of the matrix are in its registers: a pair read from shared memory serves 2 COLUMNS multiply-adds, and nothing is
// padded where LANES divides K.
//
// Compile-time constants: K, GROUP, WARPS, LANES, BULK (1: bulk copies, which need 16-byte alignment; 0: plain loads),
// VECTORS_OUT (1: every tensor of `out` begins at a multiple of 16 bytes), SAME_MATRIX, ACCUMULATE, PARTS (1 real, 2
// complex: real and imaginary part lie side by side and are lines of their own; strides count floats).

#define COLUMNS ((K + LANES - 1) / LANES)  // of the matrix, in one lane
#define UNITS (32 / LANES)                 // of a warp, which take two lines each
#define WHOLE (K % LANES == 0)
#define T_STRIDE (LANES * COLUMNS)

// SIZE floats that lie side by side, at a multiple of their size.
template <int SIZE> __device__ __forceinline__ void load(float* to, const float* from) {
  if (SIZE == 4) {
    const float4 v = *(const float4*)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if (SIZE == 2) {
    const float2 v = *(const float2*)from;
    to[0] = v.x, to[1] = v.y;
  } else {
    to[0] = *from;
  }
}
// Pairs as one word of 64 bits: of several float2 in a row NVRTC stores the first in two halves.
__device__ __forceinline__ double pair(const float* from) {
  return __hiloint2double(__float_as_int(from[1]), __float_as_int(from[0]));
}
template <int SIZE> __device__ __forceinline__ void store(float* to, const float* from) {
  if (SIZE == 4) *(double2*)to = make_double2(pair(from), pair(from + 2));
  else if (SIZE == 2) *(double*)to = pair(from);
  else *to = *from;
}

// This lane's columns of a matrix.
struct Matrix {
  float value[K][COLUMNS];
  __device__ __forceinline__ Matrix(const float* t, int part) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) value[k][i] = t[k * T_STRIDE + part * COLUMNS + i];
  }
};

// Two lines along one axis: read, contracted, written in place, or along a to `out` (the group's first tensor).
template <Axis AXIS>
__device__ __forceinline__ void contract(float* tensors, float* out, i64 stride_out, int first, int lines, const Matrix& t,
                                         int unit, int part) {
  // Lines that are neighbours, and of one row, move together; along c elements of a line do.
  constexpr int together = AXIS == ALONG_C ? PARTS : ROW % 2 == 0 ? 2 : 1;
  constexpr int sets = 2 / together, step = AXIS == ALONG_C ? PARTS : AXIS == ALONG_B ? ROW : PLANE;
  constexpr int read = step > 1 ? 1 : K % 4 == 0 ? 4 : K % 2 == 0 ? 2 : 1;
  constexpr int written = step > 1 || !WHOLE ? 1 : K % 4 == 0 && COLUMNS % 4 == 0 ? 4 : K % 2 == 0 && COLUMNS % 2 == 0 ? 2 : 1;
  float *p[sets], *to[sets];
  bool ok[sets];
#pragma unroll
  for (int set = 0; set < sets; ++set) {
    const int line = first + (unit + UNITS * set) * together;
    ok[set] = line < lines && (32 % LANES == 0 || unit < UNITS);
    if (AXIS == ALONG_C) {
      p[set] = tensors + line / PARTS * ROW;
    } else if (AXIS == ALONG_B) {
      p[set] = tensors + line / ROW * PLANE + line % ROW;
    } else {
      const int tensor = GROUP == 1 ? 0 : line / PLANE, within = line - tensor * PLANE;
      p[set] = tensors + tensor * K * PLANE + within;
      to[set] = out + tensor * stride_out + within;
    }
    if (AXIS != ALONG_A) to[set] = p[set];
    if (!ok[set]) p[set] = tensors;
  }
  float acc[2][COLUMNS] = {};
#pragma unroll
  for (int k = 0; k < K; k += read) {
    float x[sets][together * read];
#pragma unroll
    for (int set = 0; set < sets; ++set) load<together * read>(x[set], p[set] + k * step);
#pragma unroll
    for (int r = 0; r < read; ++r)
#pragma unroll
      for (int line = 0; line < 2; ++line)
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
          acc[line][i] = fmaf(x[line / together][line % together + r], t.value[k + r][i], acc[line][i]);
  }
  if (AXIS != ALONG_A) __syncwarp();  // every lane has read these lines before they are overwritten
#pragma unroll
  for (int i = 0; i < COLUMNS; i += written) {
    const int k = part * COLUMNS + i;
    if (!WHOLE && k >= K) continue;
#pragma unroll
    for (int set = 0; set < sets; ++set) {
      if (!ok[set]) continue;
      float *q = to[set] + k * step, values[together * written];
#pragma unroll
      for (int j = 0; j < together; ++j)
#pragma unroll
        for (int r = 0; r < written; ++r) {
          values[j + r] = acc[set * together + j][i + r];
#if ACCUMULATE
          if (AXIS == ALONG_A) values[j + r] += q[j + r];
#endif
        }
      if (AXIS != ALONG_A || VECTORS_OUT || together <= PARTS) {
        store<together * written>(q, values);
      } else {
#pragma unroll
        for (int j = 0; j < together; ++j) q[j] = values[j];
      }
    }
  }
}

template <Axis AXIS>
__device__ __forceinline__ void sweep(float* tensors, float* out, i64 stride_out, int lines, const Matrix& t, int unit, int part) {
#pragma unroll 1
  for (int first = threadIdx.x / 32 * (2 * UNITS); first < lines; first += WARPS * 2 * UNITS)
    contract<AXIS>(tensors, out, stride_out, first, lines, t, unit, part);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    transform3d_fma(const float* x, const float* matrix, float* out, i64 n, i64 stride_x, i64 stride_out, i64 stride_axis,
                    i64 stride_k, i64 stride_n, int resident) {
  extern __shared__ __align__(128) unsigned char shared[];
  float* tensors = (float*)shared;
  float* t = (float*)(shared + X_BYTES);  // [MATRICES][K][T_STRIDE]
  const u32 loaded = (u32)__cvta_generic_to_shared(shared + X_BYTES + (MATRICES * K * T_STRIDE + 1) / 2 * 8);
  const int unit = threadIdx.x % 32 / LANES, part = threadIdx.x % 32 % LANES;
  const i64 base = (i64)blockIdx.x * GROUP;
  const int count = (int)(n - base < GROUP ? n - base : GROUP);
  const float* src = x + base * stride_x;

  expect_tensors(count, stride_x, loaded);
  follow_kernels_ahead(src, count, K * PLANE, stride_x, matrix, stride_axis, stride_k, stride_n, resident);
  load_tensors(tensors, src, count, stride_x, loaded);
  for (int i = threadIdx.x; i < MATRICES * K * T_STRIDE; i += WARPS * 32) {
    const int axis = i / (K * T_STRIDE), k = i / T_STRIDE % K, m = i % T_STRIDE;
    t[i] = m < K ? matrix[axis * stride_axis + k * stride_k + m * stride_n] : 0.0f;
  }
  __syncthreads();  // the matrices, the barrier's initialisation and (without bulk copies) the tensors are visible

  const int lines = count * PLANE;  // along each of the axes
  const Matrix tc(t + (MATRICES - 1) * K * T_STRIDE, part);
  wait_for_tensors(loaded);
  sweep<ALONG_C>(tensors, out, 0, lines, tc, unit, part);
  __syncthreads();  // a line along b has elements of K lines along c
#if SAME_MATRIX
  const Matrix &tb = tc, &ta = tc;
#else
  const Matrix tb(t + K * T_STRIDE, part), ta(t, part);
#endif
  sweep<ALONG_B>(tensors, out, 0, lines, tb, unit, part);
  __syncthreads();
  sweep<ALONG_A>(tensors, out + base * stride_out, stride_out, lines, ta, unit, part);
}
