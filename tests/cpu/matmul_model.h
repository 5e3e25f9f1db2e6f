// PTX as hopper_cluster.cu says it, on hopper_model.h: matmul_model.py makes each `asm` statement a call of what is here.
//
// A tensor map is what matmul_model.py's driver encodes. A box that the copy engine writes has to begin at 16 bytes of
// global memory, and ends behind C's edge in whole pieces of 16 bytes: both was seen on a GPU. With `late` it reads shared
// memory in the wait that it needs, and not before.

#include <unistd.h>

#include <cstdarg>

#include "hopper_model.h"

inline float __shfl_sync(u32 all, float x, int from) {
  u32 y;
  memcpy(&y, &x, 4);
  return __uint_as_float(__shfl_sync(all, y, from));
}
inline float __expf(float x) { return expf(x); }

namespace ptx {

struct Map { u64 data, sizes[4], strides[3], box[4], element, unused[3]; };  // strides and element: bytes

static int shared_bytes;  // of a CTA, as launched
static int cluster_size, ended[CTAS + 1];  // threads of each CTA, and of all
static thread_local bool after_predecessor;
static thread_local std::vector<std::function<void()>> open_stores, stores;
static thread_local std::vector<u32> unfenced;  // pieces of 16 bytes that this thread wrote
static char not_visible[CTAS][WINDOW / 16];        // to the copy engine, of each CTA

inline void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vfprintf(stderr, format, values);
  fprintf(stderr, " (CTA %d, thread %d)\n", blockIdx.x, threadIdx.x);
  abort();
}
inline void check_shared(u32 at, u32 bytes, u32 alignment) {
  if (at % alignment || at + bytes > (u32)shared_bytes) fail("shared memory: %u bytes at %u of %d", bytes, at, shared_bytes);
}

// Where byte `byte` of a box's row `row` is in shared memory, swizzled by 128 bytes.
inline u32 swizzled(u32 box, int row, int byte) {
  const u32 at = box + row * 128 + byte;
  return at ^ (at >> 7 & 7) << 4;
}
// The element at a box's beginning; none if the box's product is not one of the tensor's.
inline const char* origin(const Map& m, int x, int y, int z, int w) {
  const bool there = z >= 0 && w >= 0 && (u64)z < m.sizes[2] && (u64)w < m.sizes[3];
  if (!there) return nullptr;
  return (char*)m.data + (i64)x * (i64)m.element + y * (i64)m.strides[0] + z * (i64)m.strides[1] + w * (i64)m.strides[2];
}

// What signals a CTA of the cluster has to find it.
inline Cta& peer(u32 rank) {
  Lock lock;
  if (ended[rank] == blockDim.x) fail("a signal to a CTA that has ended");
  return ctas[rank];
}

inline void load_to(Cta& to, const Map& m, u32 target, u32 barrier, int x, int y, const char* first) {
  const int bytes = m.element;
  for (int r = 0; r < (int)m.box[1]; ++r)
    for (int c = 0; c < (int)m.box[0]; ++c) {
      const bool there = first && x + c >= 0 && (u64)(x + c) < m.sizes[0] && y + r >= 0 && (u64)(y + r) < m.sizes[1];
      char* at = to.memory + swizzled(target, r, c * bytes);
      if (there) memcpy(at, first + r * (i64)m.strides[0] + c * bytes, bytes);
      else memset(at, 0, bytes);
    }
  take(to, barrier, 0, -(i64)(m.box[0] * m.box[1] * bytes));
}
inline void load_box_to_all(u32 target, const void* map, u32 barrier, int x, int y, int z, int w, u16 mask) {
  const Map& m = *(const Map*)map;
  check_shared(target, m.box[1] * 128, 128);
  if (!after_predecessor) fail("a load before the kernels ahead are done");
  for (int rank = 0; mask; ++rank, mask >>= 1)
    if (mask & 1) load_to(peer(rank), m, target, barrier, x, y, origin(m, x, y, z, w));
}
inline void load_box(u32 target, const void* map, u32 barrier, int x, int y, int z, int w) {
  load_box_to_all(target, map, barrier, x, y, z, w, 1 << (cta - ctas));
}
inline void fetch_box(const void* map, int x, int y, int z, int w) { origin(*(const Map*)map, x, y, z, w); }

inline void store_box(const void* map, u32 from, int x, int y, int z, int w) {
  const Map m = *(const Map*)map;
  Cta& own = *cta;
  check_shared(from, m.box[1] * 128, 128);
  if (!after_predecessor) fail("a store before the kernels ahead are done");
  char* first = (char*)origin(m, x, y, z, w);
  if ((u64)first % 16) fail("illegal instruction: a box is stored %d bytes behind a multiple of 16", (int)((u64)first % 16));
  auto run = [=, &own] {
    for (int r = 0; first && r < (int)m.box[1]; ++r)
      for (int byte = 0; byte < (int)(m.box[0] * m.element); byte += 16) {
        const i64 column = x * (i64)m.element + byte;
        const bool there = column >= 0 && column < (i64)(m.sizes[0] * m.element) && y + r >= 0 && (u64)(y + r) < m.sizes[1];
        const u32 at = swizzled(from, r, byte);
        if (there && not_visible[&own - ctas][at / 16]) fail("the copy engine reads what no fence has shown it, at %u", at);
        if (there) memcpy(first + r * (i64)m.strides[0] + byte, own.memory + at, 16);
      }
  };
  if (late) open_stores.push_back(run); else run();
}
inline void commit_stores() {
  stores.insert(stores.end(), open_stores.begin(), open_stores.end());
  open_stores.clear();
}
inline void wait_for_stores() {
  for (auto& store : stores) store();
  stores.clear();
}
inline void show_to_copy_engine() {
  for (u32 piece : unfenced) not_visible[cta - ctas][piece] = 0;
  unfenced.clear();
}
inline void written(u32 at, u32 bytes) {
  check_shared(at, bytes, bytes);
  not_visible[cta - ctas][at / 16] = 1;
  unfenced.push_back(at / 16);
}
inline void copy_to_peer(u32 to, u32 from, u32 bytes, u32 barrier, u32 rank) {
  if (bytes % 16) fail("a bulk copy of %u bytes", bytes);
  check_shared(to, bytes, 16), check_shared(from, bytes, 16);
  Cta& other = peer(rank);
  memcpy(other.memory + to, arena + from, bytes);
  take(other, barrier, 0, -(i64)bytes);
}

inline void init_barrier(u32 at, u32 arrivals) { check_shared(at, 8, 8), barrier_init(at, arrivals); }
// Signals between CTAs take their time with `late`, the last CTA's most.
inline void arrive_at(u32 at, u32 rank) {
  if (late && cta != ctas + rank) usleep(SIGNAL_US * ::cluster_rank());
  take(peer(rank), at, 1, 0);
}
inline void cluster_rank(u32& rank) { rank = ::cluster_rank(); }
inline void cluster_meet() { meet(-1, cluster_size * blockDim.x, true, ctas[0]); }
inline void wait_for_predecessor() { after_predecessor = true; }
inline void warpgroup_sync(int name) { named_sync(name, 128); }
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
  auto& mine = cta->lanes[threadIdx.x / 32];
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

inline void run(int grid, int threads, int cluster, int bytes, bool products_late, const std::function<void()>& kernel) {
  shared_bytes = bytes, cluster_size = cluster;
  run_grid(grid, threads, products_late, [&] {
    kernel();
    if (!stores.empty() || !open_stores.empty()) fail("a CTA ends before the copy engine has read what it stores");
    if (!committed.empty() || !open_group.empty()) fail("wgmmas that nobody waits for");
    Lock lock;
    ++ended[cta - ctas];
    if (++ended[CTAS] == cluster_size * blockDim.x) memset(ended, 0, sizeof ended);
  }, cluster);
}

}  // namespace ptx
