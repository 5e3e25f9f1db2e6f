// What the attention kernels for Hopper share: mbarriers, the copy engine (TMA), descriptors and fences of wgmma, register
// budgets. It comes in front of a kernel's text. Source: PTX ISA 8.7; the descriptors: "Asynchronous warpgroup level matrix
// shared memory layout".

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef long long i64;
#define INFINITY __int_as_float(0x7f800000)
#if SOFTCAP  // a kernel's last parameter
#define SLOPE , float slope2
#define SLOPE2 slope2
#else
#define SLOPE
#define SLOPE2 0.0f
#endif
#define CHUNKS(d) (((d) + 63) / 64)  // pieces of 128 bytes that hold a row of d 16-bit elements

struct __align__(64) TensorMap { u64 words[16]; };  // CUtensorMap

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Returns when the phase of this parity has completed. A barrier that is new counts as completed for parity 1.
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
#ifdef TRAP_AFTER  // finds a deadlock: one try waits for about a millisecond at most
  for (u32 tries = 0;; ++tries) {
    u32 done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    if (done) return;
    if (tries > TRAP_AFTER) __trap();
  }
#else
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra again;\n"
      "done: }" ::"r"(bar), "r"(parity) : "memory");
#endif
}
// The copy engine sees initialised barriers.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// This thread's ordinary accesses to shared memory come before later ones of the copy engine and of wgmma.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Named barriers of `threads` threads; 0 is __syncthreads.
__device__ __forceinline__ void named_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Start the copy of a box at column, row, head, batch; `bar` counts its bytes.
__device__ __forceinline__ void load_box(u32 target, const TensorMap* map, u32 bar, int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      ::"r"(target), "l"(map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
}
// The same no further than the L2. That reads nothing, so it may come before `await_memory`: what a kernel ahead still writes, it
// writes in the L2.
__device__ __forceinline__ void fetch_box(const TensorMap* map, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];"
               ::"l"(map), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
}
// A box of shared memory, behind `fence_async`, to where it lies in a tensor; what lies outside of it stays away. Its thread's
// boxes up to `store_commit` have been read when `await_stores` returns.
__device__ __forceinline__ void store_box(u32 from, const TensorMap* map, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               ::"l"(map), "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void await_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Programmatic dependent launch: the next kernel's programs may take their places when all of this one have said so or ended;
// what follows comes after the kernels ahead. Every thread waits before it touches memory or ends: a grid that ended before the
// one ahead of it would let the one behind begin.
__device__ __forceinline__ void release_successor() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void await_memory() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void await_predecessor() {
  release_successor();
  await_memory();
}

// Clusters.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// What lies at this address in the shared memory of a CTA of the cluster.
__device__ __forceinline__ u32 at_rank(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ __forceinline__ void arrive_at(u64* barrier, u32 rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at_rank(shared_address(barrier), rank)) : "memory");
}
__device__ __forceinline__ void arrive_at_both(u64* barrier) { arrive_at(barrier, 0), arrive_at(barrier, 1); }
__device__ __forceinline__ void load_box_for_both(u32 target, const TensorMap* map, u32 bar, int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      ::"r"(target), "l"(map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch), "h"((u16)3) : "memory");
}

// To another CTA's shared memory, where `full` counts the bytes.
__device__ __forceinline__ void send_word(int* to, int word, u64* full, u32 rank) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
               ::"r"(at_rank(shared_address(to), rank)), "r"(word), "r"(at_rank(shared_address(full), rank)) : "memory");
}
template <int BYTES> __device__ __forceinline__ void send_tile(u32 to, u32 from, u64* full, u32 rank) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(at_rank(to, rank)), "r"(from), "n"(BYTES), "r"(at_rank(shared_address(full), rank)) : "memory");
}
__device__ __forceinline__ void cluster_sync() { asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory"); }

// A tile whose rows of 64 16-bit elements (128 bytes) are swizzled as the copy engine does: its descriptor with the row's
// elements as K (contraction) ...
__device__ __forceinline__ u64 rows_descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
// ... or with the rows as K; neighbouring groups of 64 columns are `pitch` bytes apart.
__device__ __forceinline__ u64 columns_descriptor(u32 address, u32 pitch) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)(pitch >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
// Byte of 16-byte group `group` of row `row` in such a tile of 64 columns.
__device__ __forceinline__ u32 swizzled(u32 row, u32 group) { return row * 128 + ((group ^ row % 8) * 16); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Accumulators are not read before this, nor written after it: stands around wgmma in flight.
template <int COUNT> __device__ __forceinline__ void pin(float (&x)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

template <int REGISTERS> __device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 - 2 / (1 + 2^x), which is tanh(ln(2) / 2 x), to 2^-22 of its largest value; where scores are capped.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float squashed(float x) { return fmaf(-2, reciprocal(1 + exp2_fast(x)), 1); }
// The same of two numbers, by one reciprocal: that of their denominators' product, which stays finite. A NaN reaches both.
__device__ __forceinline__ float least(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ float denominator(float x) { return 1 + exp2_fast(least(x, 40)); }
__device__ __forceinline__ void squash_both(float& x, float& y) {
  const float a = denominator(x), b = denominator(y), r = -2 * reciprocal(a * b);
  x = fmaf(b, r, 1), y = fmaf(a, r, 1);
}
// Scores of a thread, two beside each other of the same row. Where some are hidden, a NaN among them must not reach others.
template <int N> __device__ __forceinline__ void squash(float (&s)[N], float slope2, bool cut) {
#pragma unroll
  for (int i = 0; i < N; ++i) s[i] *= slope2;
  if (cut) {
#pragma unroll
    for (int i = 0; i < N; ++i) s[i] = squashed(s[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 2) squash_both(s[i], s[i + 1]);
  }
}

// Two numbers, rounded, in one register: the first in the low half.
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 y;
#if BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#endif
  return y;
}
__device__ __forceinline__ void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void store_matrices(u32 address, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void load_matrices(u32 address, u32& a, u32& b, u32& c, u32& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address) : "memory");
}
__device__ __forceinline__ uint4 load_shared(u32 address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}

// Eight elements, if they are `there`. Of *(uint4*) NVRTC makes four stores here, of a branch ptxas one load after another.
__device__ __forceinline__ void store_eight(u16* to, uint4 x, bool there) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}"
               ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"((u32)there) : "memory");
}

#ifdef STAGES
__device__ __forceinline__ void step_ring(int& stage, u32& phase) {
  if (++stage == STAGES) stage = 0, phase ^= 1;
}
#endif

// What a launch is about; first_q, first_k: where packed sequences begin.
struct Sizes {
  int queries, keys, heads, group, batches, first, last, section, wave, tiles, sum_blocks;
  const int *first_q, *first_k;
};

// Where tile `number` belongs when each head of a batch has `blocks` of them: the sections' heads take turns. Returns its place among
// the head's.
__device__ __forceinline__ int find_head(int number, const Sizes& n, int heads, int blocks, int& batch, int& head) {
  const int per_section = n.section * blocks;
  const int section = number / per_section, within = number % per_section;
  const int here = min(n.section, n.batches * heads - section * n.section);
  const int owner = section * n.section + within % here;
  batch = owner / heads, head = owner % heads;
  return within / here;
}

// How long the sequences of the tile's batch are, where they begin, and the ends of the band. Work: of the kernel.
template <typename Work> __device__ __forceinline__ void find_sequence(Work& w, const Sizes& n) {
  w.queries = n.queries, w.keys = n.keys, w.first = n.first, w.last = n.last;
  w.q_first = w.k_first = 0;
#if PACKED
  w.q_first = n.first_q[w.batch];
  w.k_first = n.first_k[w.batch];
  w.queries = n.first_q[w.batch + 1] - w.q_first;
  w.keys = n.first_k[w.batch + 1] - w.k_first;
  if (BOTTOM_RIGHT) w.first += w.keys - w.queries, w.last += w.keys - w.queries;
#endif
}

// The next tile, from a counter that all programs share: what was `taken` from it when this tile's last loads were near, since
// who takes it sooner may have two long ones. Each tile is one request, and the last one leaves the counter zero.
__device__ __forceinline__ int next_tile(int taken, int tiles, int* counter, int programs = gridDim.x) {
  if (taken + 1 == tiles) *counter = 0;
  return programs + taken;
}

// Zeros for a warp's 16 rows, of which `rows` exist.
template <int WIDTH>
__device__ __forceinline__ void write_zeros(u16* out, i64 row_stride, int rows, int lane) {
  for (int row = 0; row < min(16, rows); ++row)
    store_eight(out + row * row_stride + lane * 8, make_uint4(0, 0, 0, 0), lane < WIDTH / 8);
}

// Four lanes with four registers each exchange them: lane i has then the i-th of each.
__device__ __forceinline__ uint4 exchange(u32 a, u32 b, u32 c, u32 d, int lane) {
  const bool odd = lane % 2, high = lane / 2 % 2;
  const u32 ab = __shfl_xor_sync(~0u, odd ? a : b, 1), cd = __shfl_xor_sync(~0u, odd ? c : d, 1);
  if (odd) a = ab, c = cd;
  else b = ab, d = cd;
  const u32 ac = __shfl_xor_sync(~0u, high ? a : c, 2), bd = __shfl_xor_sync(~0u, high ? b : d, 2);
  if (high) a = ac, b = bd;
  else c = ac, d = bd;
  return make_uint4(a, b, c, d);
}

// A warp's 16 rows x WIDTH, from the order of an accumulator's registers.
template <int WIDTH>
__device__ __forceinline__ void write_rows(const float (&x)[WIDTH / 2], float factor, u16* out, i64 row_stride, int rows, int lane) {
  constexpr int GROUPS = WIDTH / 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
#pragma unroll
    for (int g = 0; g < GROUPS; g += 4) {
      u32 y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * min(g + i, GROUPS - 1) + 2 * half;
        y[i] = pack(x[at] * factor, x[at + 1] * factor);
      }
      const uint4 eight = exchange(y[0], y[1], y[2], y[3], lane);
      store_eight(out + row * row_stride + (g + lane % 4) * 8, eight, row < rows && g + lane % 4 < GROUPS);
    }
  }
}

// A warp's 16 rows x WIDTH, of which `rows` exist, from swizzled rows of 128 bytes in shared memory, PANEL bytes from 64 columns
// to the next, in whole lines: four are read before the first is stored.
template <int WIDTH, int PANEL>
__device__ __forceinline__ void copy_lines(u32 from, u16* out, i64 row_stride, int rows, int lane) {
  constexpr int GROUPS = WIDTH / 8, EIGHTS = 16 * GROUPS, AHEAD = 4;
  constexpr bool EVEN = 32 % GROUPS == 0;  // a lane stays in its columns
  u16* to = out + lane / GROUPS * row_stride + lane % GROUPS * 8;
#pragma unroll
  for (int first = 0; first < EIGHTS; first += 32 * AHEAD) {
    uint4 x[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int eight = min(first + 32 * i + lane, EIGHTS - 1), row = eight / GROUPS, group = eight % GROUPS;
      if (first + 32 * i < EIGHTS) x[i] = load_shared(from + group / 8 * PANEL + swizzled(row, group % 8));
    }
#pragma unroll
    for (int i = 0; i < AHEAD && first + 32 * i < EIGHTS; ++i) {
      const int eight = first + 32 * i + lane, row = eight / GROUPS;
      store_eight(EVEN ? to : out + row * row_stride + eight % GROUPS * 8, x[i], row < min(rows, 16));
      to += 32 / GROUPS * row_stride;
    }
  }
}

// Barriers of `count` buffers: filled by one arrival and its bytes, emptied by `readers` warps.
__device__ __forceinline__ void init_buffers(u64* full, u64* empty, int count, int readers) {
  for (int i = 0; i < count; ++i) {
    barrier_init(shared_address(full + i), 1);
    barrier_init(shared_address(empty + i), readers);
  }
}
