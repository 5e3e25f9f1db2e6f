// PTX as hopper_cluster.cu, hopper_rows.cu, hopper_registers.cu and hopper_weights.cu say it, on hopper_model.h:
// matmul_model.py makes each `asm` statement a call of what is here.
//
// A tensor map is what matmul_model.py's driver encodes. A box that the copy engine writes has to begin at 16 bytes of
// global memory, and ends behind C's edge in whole pieces of 16 bytes: both was seen on a GPU. With `late` it reads shared
// memory in the wait that it needs, and not before.

#include "warp_model.h"

inline float __expf(float x) { return expf(x); }

namespace ptx {

using ::fail;

// Strides and element: bytes; rounds: to TF32; line: bytes of shared memory from a box's row to the next.
struct Map { u64 data, sizes[4], strides[3], box[4], element, rounds, line, unused; };

static int shared_bytes;  // of a CTA, as launched
static int cluster_size, ended[CTAS + 1];  // threads of each CTA, and of all
struct Coming { u32 at, word; };  // on its way, and where it was
// What a thread has for itself here.
struct More {
  bool after_predecessor;
  Later stores, words;   // of the copy engine; copies of its own
  List<u32> unfenced;    // pieces of 16 bytes that this thread wrote
  u32 met;               // rounds of the cluster's meeting
  List<Coming> coming;   // from shared memory
};
static More more_of_threads[CTAS * MOST_THREADS];
inline More& mine() { return more_of_threads[own - of_threads]; }
static char not_visible[CTAS][WINDOW / 16];        // to the copy engine, of each CTA

inline void check_shared(u32 at, u32 bytes, u32 alignment) {
  if (at % alignment || at + bytes > (u32)shared_bytes) fail("shared memory: %u bytes at %u of %d", bytes, at, shared_bytes);
}

// Where byte `byte` of a box's row `row` is in shared memory, swizzled by as many bytes as a line has, 64 or 128.
inline u32 swizzled(u32 box, int row, int byte, int line = 128) {
  const u32 at = box + row * line + byte;
  return at ^ (at >> 7 & line / 16 - 1) << 4;
}
// The element at a box's beginning; none if the box's product is not one of the tensor's.
inline const char* origin(const Map& m, int x, int y, int z, int w) {
  const bool there = z >= 0 && w >= 0 && (u64)z < m.sizes[2] && (u64)w < m.sizes[3];
  if (!there) return nullptr;
  return (char*)m.data + (i64)x * (i64)m.element + y * (i64)m.strides[0] + z * (i64)m.strides[1] + w * (i64)m.strides[2];
}

// What signals a CTA of the cluster has to find it.
inline Cta& peer(u32 rank) {
  if (ended[rank] == blockDim.x) fail("a signal to a CTA that has ended");
  return ctas[rank];
}

// What a map of TF32 brings of an FP32: the nearest, ties away from zero; infinity and NaN as they are.
inline void round_to_tf32(char* at) {
  u32 x;
  memcpy(&x, at, 4);
  if ((x & 0x7f800000) != 0x7f800000) x = (x + 0x1000) & ~0x1fffu;
  memcpy(at, &x, 4);
}
inline void load_to(Cta& to, const Map& m, u32 target, u32 barrier, int x, int y, const char* first) {
  const int bytes = m.element;
  for (int r = 0; r < (int)m.box[1]; ++r)
    for (int c = 0; c < (int)m.box[0]; ++c) {
      const bool there = first && x + c >= 0 && (u64)(x + c) < m.sizes[0] && y + r >= 0 && (u64)(y + r) < m.sizes[1];
      char* at = to.memory + swizzled(target, r, c * bytes, m.line);
      if (there) memcpy(at, first + r * (i64)m.strides[0] + c * bytes, bytes);
      else memset(at, 0, bytes);
      if (m.rounds) round_to_tf32(at);
    }
  take(to, barrier, 0, -(i64)(m.box[0] * m.box[1] * bytes));
}
inline void load_box_to_all(u32 target, const void* map, u32 barrier, int x, int y, int z, int w, u16 mask) {
  const Map& m = *(const Map*)map;
  check_shared(target, m.box[1] * m.line, 128);
  if (!mine().after_predecessor) fail("a load before the kernels ahead are done");
  if (x * (i64)m.element % 16) fail("a box is loaded from %d bytes behind a multiple of 16", (int)(x * (i64)m.element % 16));
  for (int rank = 0; mask; ++rank, mask >>= 1)
    if (mask & 1) load_to(peer(rank), m, target, barrier, x, y, origin(m, x, y, z, w));
}
inline void load_box(u32 target, const void* map, u32 barrier, int x, int y, int z, int w) {
  load_box_to_all(target, map, barrier, x, y, z, w, 1 << (cta - ctas));
}
// With FETCHED_BOXES in the environment, a file's name, a line there of each box.
inline void fetch_box(const void* map, int x, int y, int z, int w) {
  const Map& m = *(const Map*)map;
  origin(m, x, y, z, w);
  const char* name = getenv("FETCHED_BOXES");
  FILE* to = name ? fopen(name, "a") : nullptr;
  if (to) fprintf(to, "%p %d %d %d %d %d %d\n", (void*)m.data, (int)m.box[0], (int)m.box[1], x, y, z, w), fclose(to);
}

inline void store_box(const void* map, u32 from, int x, int y, int z, int w) {
  const Map m = *(const Map*)map;
  Cta& own = *cta;
  check_shared(from, m.box[1] * m.line, 128);
  if (!mine().after_predecessor) fail("a store before the kernels ahead are done");
  char* first = (char*)origin(m, x, y, z, w);
  if ((u64)first % 16) fail("illegal instruction: a box is stored %d bytes behind a multiple of 16", (int)((u64)first % 16));
  auto run = [=, &own] {
    for (int r = 0; first && r < (int)m.box[1]; ++r)
      for (int byte = 0; byte < (int)(m.box[0] * m.element); byte += 16) {
        const i64 column = x * (i64)m.element + byte;
        const bool there = column >= 0 && column < (i64)(m.sizes[0] * m.element) && y + r >= 0 && (u64)(y + r) < m.sizes[1];
        const u32 at = swizzled(from, r, byte, m.line);
        if (there && not_visible[&own - ctas][at / 16]) fail("the copy engine reads what no fence has shown it, at %u", at);
        if (there) memcpy(first + r * (i64)m.strides[0] + byte, own.memory + at, 16);
      }
  };
  if (late) mine().stores.push_back(run); else run();
}
inline void commit_stores() { mine().stores.commit(); }
template <int PENDING> void wait_for_stores() { mine().stores.wait(PENDING); }
inline void show_to_copy_engine() {
  for (u32 piece : mine().unfenced) not_visible[cta - ctas][piece] = 0;
  mine().unfenced.count = 0;
}
inline void check_visible(u32 at) {
  if (not_visible[cta - ctas][at / 16]) fail("wgmma reads what no fence has shown it, at %u", at);
}
inline void written(u32 at, u32 bytes) {
  check_shared(at, bytes, bytes);
  not_visible[cta - ctas][at / 16] = 1;
  mine().unfenced.push_back(at / 16);
}
// Shared memory that a kernel writes without assembly.
template <class T> class Shared {
  T value;

public:
  operator T() const { return value; }
  void operator=(const T& x) {
    written((char*)this - arena, sizeof(T));
    value = x;
  }
};
inline void init_barrier(u32 at, u32 arrivals) { check_shared(at, 8, 8), barrier_init(at, arrivals); }
// An address in the cluster: the CTA's number stands above the address there.
inline void in_peer(u32& there, u32 at, u32 rank) {
  there = rank < (u32)cluster_size && at < WINDOW ? (rank + 1) * WINDOW + at : 0;  // what is of no CTA can be computed
}
inline void send(u32 there, float a, float b, float c, float d, u32 barrier) {
  const u32 rank = there / WINDOW - 1, to = there % WINDOW;
  if (rank >= (u32)cluster_size || barrier / WINDOW - 1 != rank) fail("sums to %u, their bytes to %u", there, barrier);
  check_shared(to, 16, 16);
  const float sums[4] = {a, b, c, d};
  memcpy(peer(rank).memory + to, sums, 16);
  take(peer(rank), barrier % WINDOW, 0, -16);
}
// Signals between CTAs take their time with `late`, the last CTA's most.
inline void arrive_in_cluster(u32 there) {
  const u32 rank = there / WINDOW - 1, at = there % WINDOW;
  if (rank >= (u32)cluster_size) fail("a signal to %u, which is no address in the cluster", there);
  if (late && cta != ctas + rank) fibers::sleep(SIGNAL_ROUNDS * ::cluster_rank());
  take(peer(rank), at, 1, 0);
}
// The PTX ISA leaves open which lane it is: here not the first.
inline void elect_one(u32& elected) {
  __syncwarp();
  elected = threadIdx.x % 32 == 31;
}
inline void cluster_rank(u32& rank) { rank = ::cluster_rank(); }
inline void cluster_meet() { meet(-1, cluster_size * blockDim.x, true, ctas[0]); }
inline void wait_for_predecessor() { mine().after_predecessor = true; }
template <class... T> void nothing(T&&...) {}

// stmatrix: lane l says where row l % 8 of matrix l / 8 goes; turned, its pair of row l / 4 is one of column l / 4.
inline void store_matrices(u32 at, u32 a, u32 b, u32 c, u32 d) {
  written(at, 16);
  ::store_matrices(at, a, b, c, d);
}
inline void store_turned_matrices(u32 at, u32 a, u32 b, u32 c, u32 d) {
  written(at, 16);
  const u32 x[4] = {a, b, c, d};
  const int lane = threadIdx.x % 32;
  auto& mine = next_lanes();
  mine[lane][0] = at;
  __syncwarp();
  for (int i = 0; i < 8; ++i)
    memcpy(arena + mine[i / 2 * 8 + lane % 4 * 2 + i % 2][0] + lane / 4 * 2, (const u16*)&x[i / 2] + i % 2, 2);
  __syncwarp();
}
inline void store_words(u32 at, u32 a, u32 b) {
  written(at, 8);
  memcpy(arena + at, &a, 4), memcpy(arena + at + 4, &b, 4);
}

inline u16 to_half(float x) {
  const _Float16 half = x;
  u16 y;
  memcpy(&y, &half, 2);
  return y;
}
inline u16 to_bfloat(float x) {
  u32 y;
  memcpy(&y, &x, 4);
  return (y & 0x7f800000) == 0x7f800000 ? y >> 16 : (y + 0x7fff + (y >> 16 & 1)) >> 16;
}
inline void pack_halves(u32& y, float high, float low) { y = to_half(low) | (u32)to_half(high) << 16; }
inline void pack_bfloats(u32& y, float high, float low) { y = to_bfloat(low) | (u32)to_bfloat(high) << 16; }
inline void widen_half(float& y, u16 x) {
  _Float16 half;
  memcpy(&half, &x, 2);
  y = half;
}
inline void larger(float& z, float x, float y) { z = x != x || y != y ? NAN : max(x, y); }
inline void exp2(float& y, float x) { y = exp2f(x); }

// What hopper_rows.cu says: loads of global memory, mma, a cluster that meets in two steps.
template <int COUNT> void load_global(const void* from, u32* to) {
  if (!mine().after_predecessor) fail("a load before the kernels ahead are done");
  if ((u64)from % (4 * COUNT)) fail("misaligned: %d bytes at %d behind a multiple", 4 * COUNT, (int)((u64)from % (4 * COUNT)));
  memcpy(to, from, 4 * COUNT);
}
inline void load_words(u32& x, u32& y, u32& z, u32& w, const void* from) {
  u32 words[4];
  load_global<4>(from, words);
  x = words[0], y = words[1], z = words[2], w = words[3];
}
inline void load_words(u32& x, u32& y, const void* from) {
  u32 words[2];
  load_global<2>(from, words);
  x = words[0], y = words[1];
}
inline void load_words(u32& x, const void* from) { load_global<1>(from, &x); }
inline void fetch_line(const void* from, int bytes) {
  if ((u64)from % 16 || bytes % 16 || bytes <= 0) fail("a prefetch of %d bytes", bytes);
}
using ::multiply_warp;
inline void narrow_to_bfloat(u16& y, float x) { y = to_bfloat(x); }
inline void narrow_to_half(u16& y, float x) { y = to_half(x); }
inline void store_at_peer(u32 at, u32 rank, float x) {
  check_shared(at, 4, 4);
  memcpy(peer(rank).memory + at, &x, 4);
}
inline void cluster_arrive() {
  mine().met = ctas[0].meeting(-1).round;
  meet(-1, cluster_size * blockDim.x, false, ctas[0]);
}
inline void cluster_wait() {
  wait_while(ctas[0].meeting(-1).round, mine().met, "cluster", 0);
}

// What hopper_registers.cu says: wgmma with A in registers, parts of tiles that other CTAs wrote.
template <int WIDE> void multiply_fragments(float* sums, const u32 (&a)[4], u64 b, int accumulate, bool b_by_row) {
  if (b_by_row) fail("what a fence has shown is known of rows along K");
  for (int piece = threadIdx.x % 32; piece < 2 * WIDE; piece += 32) {  // of 16 bytes, two in each of B's lines
    const u32 at = swizzled((b & 0x3fff) << 4, piece / 2, piece % 2 * 16);
    check_visible(at);
  }
  multiply_registers<WIDE>(sums, a, b, accumulate, b_by_row);
}
// What hopper_cluster_blocks.cuh says: words that a thread copies by itself, which with `late` are there when its arrival is,
// and not before; A from shared memory to registers.
inline void copy_word(u32 to, const void* from) {
  check_shared(to, 4, 4);
  if (!mine().after_predecessor) fail("a load before the kernels ahead are done");
  auto run = [=, at = arena + to] { memcpy(at, from, 4); };
  if (late) mine().words.push_back(run); else run();
}
inline void arrive_with_words(u32 at) {
  mine().words.commit(), mine().words.wait(0);
  take(at, 1, 0);
}
inline void load_matrices(u32& a, u32& b, u32& c, u32& d, u32 at) {
  check_shared(at, 16, 16);
  ::load_matrices(at, a, b, c, d);
}
inline void load_shared_pair(float& x, float& y, u32 at) {
  check_shared(at, 8, 8);
  memcpy(&x, arena + at, 4), memcpy(&y, arena + at + 4, 4);
}

// What hopper_weights.cu says. With `late` words of shared memory are on their way until the next wgmma, and registers
// are read until wgmma is done: who overwrites either sooner is seen.
inline void load_shared_words(u32& x, u32 at) {
  check_shared(at, 4, 4);
  memcpy(&x, arena + at, 4);
  if (late) mine().coming.push_back({at, x});
}
inline void load_shared_words(u32& x, u32& y, u32 at) {
  check_shared(at, 8, 8);
  load_shared_words(x, at), load_shared_words(y, at + 4);
}
inline void load_shared_words(u32& x, u32& y, u32& z, u32& w, u32 at) {
  check_shared(at, 16, 16);
  load_shared_words(x, y, at), load_shared_words(z, w, at + 8);
}
struct Held { const u32 &x, &y, &z, &w; };
template <int WIDE> void multiply_held(float* sums, Held a, u64 b, int accumulate, bool b_by_row) {
  for (auto [at, word] : mine().coming)
    if (memcmp(arena + at, &word, 4)) fail("a word on its way from shared memory is overwritten, at %u", at);
  mine().coming.count = 0;
  const u32 read[4] = {a.x, a.y, a.z, a.w};
  multiply_fragments<WIDE>(sums, read, b, accumulate, b_by_row);
  if (late) own->products.push_back([=] {
    if (a.x != read[0] || a.y != read[1] || a.z != read[2] || a.w != read[3]) fail("wgmma still reads its registers");
  });
}
inline void store_words(u32 at, u32 x) {
  written(at, 4);
  memcpy(arena + at, &x, 4);
}
inline void expect_more(u32 at, u32 bytes) { take(at, 0, bytes); }
inline void follow_predecessor() {
  if (!mine().after_predecessor) fail("a load before the kernels ahead are done");
}
template <class Number> void load_number(u32& x, const void* from) {
  follow_predecessor();
  x = *(const Number*)from;
}
inline void wait_for_products(int pending) { pending ? wgmma_wait<1>() : wgmma_wait<0>(); }
inline void run(int grid, int threads, int cluster, int bytes, bool products_late, const Task& kernel) {
  shared_bytes = bytes, cluster_size = cluster;
  run_grid(grid, threads, products_late, [&] {
    mine().stores.clear(), mine().words.clear();
    mine().after_predecessor = false, mine().unfenced.count = mine().coming.count = 0;
    kernel();
    if (!mine().stores.empty()) fail("a CTA ends before the copy engine has read what it stores");
    if (!own->products.empty()) fail("wgmmas that nobody waits for");
    if (!mine().words.empty()) fail("a CTA ends with copies that nobody waits for");
    if (++ended[cta - ctas] == blockDim.x)
      for (int name = 0; name < 16; ++name)
        if (const u32 there = cta->meeting(name).there) fail("a CTA ends while %u threads are at barrier %d", there, name);
    if (++ended[CTAS] == cluster_size * blockDim.x) memset(ended, 0, sizeof ended);
  }, cluster);
}

}  // namespace ptx

#include "pairs_model.h"
