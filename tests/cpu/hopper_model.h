// Hopper's instructions, as laneloom's attention kernels use them, on a CPU: C++ with the kernels' own text behind it.
//
// Every thread of a CTA, or of a cluster's CTAS at most, is one of fibers.h and waits where the kernel does: mbarriers count arrivals
// and bytes, named barriers threads. With `late` the last thread's turn is the first. Copies of the copy engine are done at once. A wgmma
// reads its registers where it is issued and, with `late`, shared memory and sums only in the wait that it needs: what comes too
// early is seen without it, what is overwritten or read too early with it. Of a warp only the collective instructions meet.
//
// The kernel's functions that hold assembly are left out of its text and are here, with the same meaning and arguments.
// Operands are 16-bit floats, where ELEMENT_BYTES is 1 e4m3 or, with OPERAND_S8, integers, where it is 4 TF32.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fibers.h"
#include "hopper_numbers.h"

constexpr u32 WINDOW = 1 << 18, STATIC_AT = WINDOW - 16384;  // of shared memory: what a descriptor can say

struct Index { int x; };
struct TensorMap { u64 words[16]; };  // data, columns, rows, heads, batches, strides of the last three, rows of a box
struct Barrier { u32 at, count, pending, phase; i64 bytes; };
struct Meeting { u32 there, round; };
struct Cta {
  char* memory;
  Barrier barriers[128];
  u32 barrier_count;
  Meeting of_names[18], warps[16];
  u32 lanes[16][2][32][6];
  u32 exchanges[512], running;  // of each thread; threads that have not ended

  Meeting& meeting(int name) { return of_names[name + 2]; }  // OF_CLUSTER at least
  Barrier& barrier(u32 at, bool begins = false) {
    for (u32 i = 0; i < barrier_count; ++i)
      if (barriers[i].at == at) return barriers[i];
    if (!begins || barrier_count == 128) fprintf(stderr, "mbarrier %u: it has not begun, or too many have\n", at), abort();
    barriers[barrier_count].at = at;
    return barriers[barrier_count++];
  }
};
static Cta ctas[CTAS];
static Cta* cta;
static Index threadIdx, blockIdx;
static Index blockDim, gridDim;
#define arena (cta->memory)
// What is done later, and lists. What std::function, std::deque, std::vector and std::map bring is half of a program's compilation.
struct Task {
  void (*act)(void*, bool);
  void* what;
  u32 group;

  template <class F> Task(const F& f) : act([](void* p, bool ends) { if (ends) delete (F*)p; else (*(F*)p)(); }), what(new F(f)) {}
  void operator()() const { act(what, false); }
};
template <class T> struct List {
  T* first;
  u32 count, room;

  void push_back(const T& x) {
    if (count == room) first = (T*)realloc((void*)first, (room = 2 * room + 16) * sizeof(T));
    first[count++] = x;
  }
  T* begin() const { return first; }
  T* end() const { return first + count; }
};
// Tasks in groups, of which the last is open.
struct Later {
  List<Task> tasks;
  u32 begun, done, open;  // tasks, groups

  void push_back(Task task) { task.group = open, tasks.push_back(task); }
  void commit() { ++open; }
  void wait(u32 pending) {
    for (; open - done > pending; ++done)
      for (; begun < tasks.count && tasks.first[begun].group == done; ++begun) {
        const Task task = tasks.first[begun];
        task(), task.act(task.what, true);
      }
    if (begun == tasks.count) begun = tasks.count = 0;
  }
  bool empty() const { return open == done && tasks.count == 0; }
  void clear() { begun = done = open = tasks.count = 0; }
};
// What a thread has for itself beside its stack.
struct Own { Later products, stores; };
constexpr int MOST_THREADS = fibers::MOST / 4;  // of a CTA
static_assert(CTAS <= 4);
static Own of_threads[CTAS * MOST_THREADS], *own;
static bool late;
static int first_block_of_cluster;

inline u64 __cvta_generic_to_shared(const void* p) { return (const char*)p - arena; }

// Until `changing` is another than `from`.
inline void wait_while(const u32& changing, u32 from, const char* what, u32 which) {
  while (changing == from) {
    if (fibers::for_ever()) fprintf(stderr, "thread %d waits for ever: %s %u\n", threadIdx.x, what, which), abort();
    fibers::wait_for_change(changing);
  }
}
inline void turn(Barrier& b) {
  if (b.pending || b.bytes) return;
  b.phase ^= 1, b.pending = b.count;
  fibers::got_on();
}
inline void take(Cta& of, u32 at, u32 arrivals, i64 bytes) {
  if (fibers::drawn() % 256 == 0) fibers::sleep(fibers::drawn() % 64);
  Barrier& b = of.barrier(at);
  if (b.pending < arrivals) fprintf(stderr, "mbarrier %u: more arrivals than it counts\n", at), abort();
  b.pending -= arrivals, b.bytes += bytes;
  turn(b);
}
inline void take(u32 at, u32 arrivals, i64 bytes) { take(*cta, at, arrivals, bytes); }
inline void barrier_init(u32 at, u32 count) {
  Barrier& b = cta->barrier(at, true);
  b.count = b.pending = count, b.phase = 0, b.bytes = 0;
}
inline void barrier_expect(u32 at, u32 bytes) { take(at, 1, bytes); }
inline void barrier_arrive(u32 at) { take(at, 1, 0); }
inline void barrier_wait(u32 at, u32 parity) {
  Barrier& b = cta->barrier(at);
  wait_while(b.phase, parity % 2, "mbarrier", at);
}
inline void end(Meeting& m) {
  m.there = 0, ++m.round;
  fibers::got_on();
}
inline void meet(Meeting& m, u32 threads, bool waits, const char* what, u32 which) {
  const u32 round = m.round;
  if (++m.there == threads) end(m);
  if (waits) wait_while(m.round, round, what, which);
}
inline void meet(int name, u32 threads, bool waits = true, Cta& of = *cta) { meet(of.meeting(name), threads, waits, "barrier", name); }
inline void named_sync(int name, int threads) { meet(name, threads); }
inline void named_arrive(int name, int threads) { meet(name, threads, false); }
inline void __syncthreads() { meet(0, blockDim.x); }
inline void __syncwarp() { meet(cta->warps[threadIdx.x / 32], 32, true, "warp", threadIdx.x / 32); }
inline void fence_barrier_init() {}
inline void release_successor() {} inline void await_memory() {}  // grids run one after the other
inline void fence_async() {}
inline void prefetch_map(const TensorMap*) {}
inline u32 cluster_rank() { return cta - ctas; }
static u32 running_threads;  // of a cluster: who has ended is not waited for
constexpr int OF_CLUSTER = -2;
inline void cluster_sync() { meet(OF_CLUSTER, running_threads, true, ctas[0]); }
inline void arrive_at(u64* barrier, u32 rank) { take(ctas[rank], (const char*)barrier - arena, 1, 0); }
inline void send_word(int* to, int word, u64* full, u32 rank) {
  memcpy(ctas[rank].memory + ((char*)to - arena), &word, 4);
  take(ctas[rank], (const char*)full - arena, 0, -4);
}
template <int BYTES> void send_tile(u32 to, u32 from, u64* full, u32 rank) {
  memcpy(ctas[rank].memory + to, arena + from, BYTES);
  take(ctas[rank], (const char*)full - arena, 0, -BYTES);
}
template <int REGISTERS> void grow_registers() {}
template <int REGISTERS> void shrink_registers() {}
template <int COUNT> void pin(float (&)[COUNT]) {}
inline u32 thread_number() { return threadIdx.x; }
// Where a warp's lanes leave each other words, in turn: who writes here again has been at the other's meeting, to which
// every lane came with what it had read here.
typedef u32 Lanes[32][6];
inline Lanes& next_lanes() { return cta->lanes[threadIdx.x / 32][cta->exchanges[threadIdx.x]++ % 2]; }
inline u32 __shfl_sync(u32, u32 x, int from) {
  auto& mine = next_lanes();
  mine[threadIdx.x % 32][0] = x;
  __syncwarp();
  return mine[from % 32][0];
}
inline int __shfl_sync(u32 all, int x, int from) { return (int)__shfl_sync(all, (u32)x, from); }
inline u32 __shfl_xor_sync(u32 all, u32 x, int far) { return __shfl_sync(all, x, threadIdx.x % 32 ^ far); }
inline float __shfl_xor_sync(u32 all, float x, int far) {
  u32 y;
  memcpy(&y, &x, 4);
  return __uint_as_float(__shfl_xor_sync(all, y, far));
}
inline int atomicAdd(int* p, int x) { return *p += x, *p - x; }

inline void store_shared(u32 at, u32 a, u32 b) {
  const u32 x[4] = {a, b, 0, 0};
  memcpy(arena + at, x, 16);
}
inline uint4 load_shared(u32 at) {
  uint4 x;
  memcpy(&x, arena + at, 16);
  return x;
}
inline void store_eight(u16* to, uint4 x, bool there) {
  if (there) memcpy(to, &x, 16);
}
// stmatrix: lane l says where row l % 8 of matrix l / 8 goes, and has a pair of row l / 4 of each.
inline void store_rows(u32 at, const u32* x, int count) {
  const int lane = threadIdx.x % 32;
  auto& mine = next_lanes();
  mine[lane][0] = at;
  __syncwarp();
  for (int m = 0; m < count; ++m) memcpy(arena + mine[m * 8 + lane / 4][0] + lane % 4 * 4, x + m, 4);
  __syncwarp();
}
inline void store_matrices(u32 at, u32 a, u32 b, u32 c, u32 d) {
  const u32 x[4] = {a, b, c, d};
  store_rows(at, x, 4);
}
inline void store_matrices(u32 at, u32 a, u32 b) {
  const u32 x[2] = {a, b};
  store_rows(at, x, 2);
}
// ldmatrix with .trans: lane l says where row l % 8 of matrix l / 8 is, and gets rows 2q and 2q + 1 of column l / 4.
inline void load_turned_matrices(u32 at, u32& a, u32& b, u32& c, u32& d) {
  const int lane = threadIdx.x % 32;
  auto& mine = next_lanes();
  mine[lane][0] = at;
  __syncwarp();
  u32* const to[4] = {&a, &b, &c, &d};
  for (int i = 0; i < 8; ++i)
    memcpy((u16*)to[i / 2] + i % 2, arena + mine[i / 2 * 8 + lane % 4 * 2 + i % 2][0] + lane / 4 * 2, 2);
  __syncwarp();
}
inline void load_lines(u32 target, const char* from, u32 bar) {
  const int bytes = 2 * 64 * 16;
  memcpy(arena + target, from, bytes);
  take(bar, 0, -bytes);
}
inline void load_line(u32 target, const float* from, u32 bar) {
  const int bytes = 2 * 64 * 4;
  memcpy(arena + target, from, bytes);
  take(bar, 0, -bytes);
}
inline void load_box(u32 target, const TensorMap* map, u32 bar, int column, int row, int head, int batch, Cta& to = *cta) {
  const u64* n = map->words + 1;
  const i64* stride = (const i64*)map->words + 5;
  const int rows = map->words[8];
  for (int i = 0; i < rows * 128; ++i) {  // bytes
    const i64 r = row + i / 128, c = column + i % 128 / ELEMENT_BYTES;
    const bool there = c < (i64)n[0] && r >= 0 && r < (i64)n[1] && head < (i64)n[2] && batch < (i64)n[3];
    const i64 from = (c + r * stride[0] + head * stride[1] + batch * stride[2]) * ELEMENT_BYTES + i % ELEMENT_BYTES;
    to.memory[target + i / 128 * 128 + (((i % 128 / 16) ^ i / 128 % 8) * 16) + i % 16] = there ? ((const char*)map->words[0])[from] : 0;
  }
  take(to, bar, 0, -rows * 128);
}
inline void store_box(u32 from, const TensorMap* map, int column, int row, int head, int batch) {
  const auto run = [=] {
    const u64* n = map->words + 1;
    const i64* stride = (const i64*)map->words + 5;
    for (int i = 0; i < (int)map->words[8] * 64; ++i) {
      const i64 r = row + i / 64, c = column + i % 64;
      if (c >= (i64)n[0] || r < 0 || r >= (i64)n[1] || head >= (i64)n[2] || batch >= (i64)n[3]) continue;
      u16* const to = (u16*)map->words[0] + c + r * stride[0] + head * stride[1] + batch * stride[2];
      memcpy(to, arena + from + i / 64 * 128 + ((i % 64 / 8) ^ i / 64 % 8) * 16 + i % 8 * 2, 2);
    }
  };
  if (late) own->stores.push_back(run); else run();
}
inline void store_commit() { own->stores.commit(); }
inline void await_stores() { own->stores.wait(0); }
inline void fetch_box(const TensorMap*, int, int, int, int) {}
inline void load_box_for_both(u32 target, const TensorMap* map, u32 bar, int column, int row, int head, int batch) {
  for (Cta& to : ctas) load_box(target, map, bar, column, row, head, batch, to);
}
template <int WIDTH> void add_columns(const float (&dq)[32], float* sums) {
  for (int r = 0; r < WIDTH / 2; ++r) sums[r / 4 * 512 + r % 4] += dq[r];
}

inline float to_tf32(u32 x) { return __uint_as_float(x & ~0x1fffu); }  // the tensor cores ignore the last bits
static void (*at_each_read)(u32) = nullptr;  // of the tensor cores, where a model has something to say
// An element of an operand in shared memory: PTX ISA, "Asynchronous warpgroup level matrix shared memory layout".
inline float element(u64 descriptor, bool by_column, int row, int k) {
  const u32 from = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  u32 at;
  if (by_column) at = from + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2;
  else if (descriptor >> 62 == 1) at = from + row / 8 * stride + row % 8 * 128 + k * ELEMENT_BYTES;
  else at = from + row / 8 * stride + k / 8 * leading + row % 8 * 16 + k % 8 * 2;
  if (descriptor >> 62 == 1) at ^= (at >> 7 & 7) << 4;
  if (at_each_read) at_each_read(at % WINDOW);
  if (ELEMENT_BYTES == 1) return widen_byte(arena[at % WINDOW]);
  if (ELEMENT_BYTES == 4) return to_tf32(*(u32*)(arena + at % WINDOW));
  u16 x;
  memcpy(&x, arena + at % WINDOW, 2);
  return widen(x);
}
struct RowsOfA { float x[2][DEPTH]; };  // a thread's two
template <int WIDE, class Sum, class Read> void multiply(Sum* sums, const Read& rows, u64 b, bool b_by_row, int accumulate) {
  const int lane = threadIdx.x % 32;
  auto run = [=] {
    const RowsOfA a = rows();
    for (int i = 0; i < WIDE / 2; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      Sum sum = accumulate ? sums[i] : 0;
      for (int k = 0; k < DEPTH; ++k) sum += (Sum)(a.x[i / 2 % 2][k] * element(b, b_by_row, column, k));
      sums[i] = sum;
    }
  };
  if (late) own->products.push_back(run); else run();
}
template <int WIDE, class Sum> void multiply_shared(Sum* sums, u64 a, bool a_by_column, u64 b, bool b_by_row, int accumulate) {
  const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  multiply<WIDE>(sums, [=] {
    RowsOfA rows;
    for (int i = 0; i < 2 * DEPTH; ++i) rows.x[i / DEPTH][i % DEPTH] = element(a, a_by_column, row + i / DEPTH * 8, i % DEPTH);
    return rows;
  }, b, b_by_row, accumulate);
}
template <int WIDE> void multiply_registers(float* sums, const u32 (&a)[4], u64 b, int accumulate, bool b_by_row = ELEMENT_BYTES == 2) {
  auto& mine = next_lanes();
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) mine[lane][i] = a[i];
  __syncwarp();
  RowsOfA rows;
  constexpr int HELD = 4 / ELEMENT_BYTES;  // of a register
  for (int q = 0; q < 4; ++q)
    for (int i = 0; i < 4 * HELD; ++i) {
      const u32 x = mine[lane / 4 * 4 + q][i / HELD] >> i % HELD * 8 * ELEMENT_BYTES;
      rows.x[i / HELD % 2][i / HELD / 2 * (DEPTH / 2) + q * HELD + i % HELD] = HELD == 4 ? widen_float8(x & 0xff) : HELD == 1 ? to_tf32(x) : widen(x & 0xffff);
    }
  multiply<WIDE>(sums, [=] { return rows; }, b, b_by_row, accumulate);
}
inline void wgmma_fence() {}
inline void wgmma_commit() { own->products.commit(); }
template <int PENDING> void wgmma_wait() {
  own->products.wait(PENDING);
  __syncwarp();
}
#ifdef KEYS
inline void multiply_block(float (&d)[32], u64 a, u64 b, int accumulate) { multiply_shared<64>(d, a, false, b, false, accumulate); }
template <int COUNT> void multiply_queries(float (&d)[COUNT], u64 a, u64 b, int accumulate) {
  multiply_shared<2 * COUNT>(d, a, true, b, true, accumulate);
}
inline void multiply_others(float (&d)[32], u64 a, u64 b, int accumulate) { multiply_shared<64>(d, a, false, b, true, accumulate); }
inline void multiply_keys(float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {
  multiply_registers<64>(d, {a0, a1, a2, a3}, b, accumulate);
}
template <int COUNT> void add_rows(float (&d)[COUNT], u64 a, u64 b, int accumulate) {
  multiply_shared<2 * COUNT>(d, a, true, b, true, accumulate);
}
inline void add_values(float (&d)[D_V / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {
  multiply_registers<D_V>(d, {a0, a1, a2, a3}, b, accumulate);
}
inline void add_keys(float (&d)[D / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {
  multiply_registers<D>(d, {a0, a1, a2, a3}, b, accumulate);
}
#endif
#ifdef TRANSPOSERS
inline void multiply_scores(float (&d)[COLUMNS / 2], u64 a, u64 b, int accumulate) { multiply_shared<COLUMNS>(d, a, false, b, false, accumulate); }
inline void multiply_values(float (&d)[D_V / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {
  multiply_registers<D_V>(d, {a0, a1, a2, a3}, b, accumulate);
}
#endif

// Clusters one after the other, with `late` from the last: they share tiles by a counter, and do not wait for each other.
static const Task* body;
static void stand_at(int thread) {
  const int rank = thread / blockDim.x;
  threadIdx.x = thread % blockDim.x, blockIdx.x = first_block_of_cluster + rank, cta = ctas + rank, own = of_threads + thread;
}
static void run_thread() {
  own->products.clear(), own->stores.clear();
  (*body)();
  if (!own->stores.empty()) fprintf(stderr, "thread %d ended before its boxes were read\n", threadIdx.x), abort();
  Meeting& m = ctas[0].meeting(OF_CLUSTER);
  --cta->running;
  if (--running_threads == m.there && m.there) end(m);
}
static void run_grid(int grid, int threads, bool products_late, const Task& kernel, int cluster = 1) {
  if (threads > MOST_THREADS) fprintf(stderr, "%d threads\n", threads), abort();
  body = &kernel, late = products_late, gridDim.x = grid, blockDim.x = threads;
  fibers::before_turn = stand_at, fibers::body = run_thread, fibers::backwards = late;
  for (Cta& one : ctas) one.memory = (char*)aligned_alloc(WINDOW, WINDOW);
  for (int& block = first_block_of_cluster = late ? grid - cluster : 0; 0 <= block && block < grid; block += late ? -cluster : cluster) {
    for (Cta& one : ctas) {
      memset(one.memory, 0xff, WINDOW);  // NaN
      one.barrier_count = 0, one.running = threads;
      for (auto& meeting : one.of_names) meeting = {};
      for (auto& warp : one.warps) warp = {};
      memset(one.exchanges, 0, sizeof one.exchanges);
    }
    fibers::run(running_threads = threads * cluster);
  }
  for (Cta& one : ctas) free(one.memory);
}
