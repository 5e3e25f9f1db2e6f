// What attention's kernels over a cache say of Hopper's instructions, on hopper_model.h.
//
// Memory that a kernel has not asked for has to stay as it was, and what it reads of other CTAs' has to be there still.

#include "warp_model.h"

constexpr u32 MEMORY_AT = 16;  // where shared memory begins that a launch asks for: at no multiple of 1024
static int shared_bytes, peers_of_cluster;

inline void check_shared(u32 at, u32 bytes, u32 alignment) {
  const bool there = (MEMORY_AT <= at && at + bytes <= MEMORY_AT + shared_bytes) || (STATIC_AT <= at && at + bytes <= WINDOW);
  if (at % alignment || !there) fail("shared memory: %u bytes at %u of %d", bytes, at, shared_bytes);
}
inline u32 atomicInc(u32* p, u32 most) {
  const u32 x = *p;
  *p = x >= most ? 0 : x + 1;
  return x;
}

inline u32 load_word(u32 at) {
  check_shared(at, 4, 4);
  u32 x;
  memcpy(&x, arena + at, 4);
  return x;
}
inline void load_turned(u32 at, u32& a, u32& b, u32& c, u32& d) {
  check_shared(at, 16, 16);
  load_turned_matrices(at, a, b, c, d);
}
inline void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_warp(c[0], c[1], c[2], c[3], a[0], a[1], a[2], a[3], b0, b1);
}
inline void load_bytes(u32 target, const void* from, int bytes, u32 bar) {
  check_shared(target, bytes, 16);
  if ((u64)from % 16 || bytes % 16 || bytes <= 0) fail("a copy of %d bytes from %d behind a multiple of 16", bytes, (int)((u64)from % 16));
  memcpy(arena + target, from, bytes);
  take(bar, 0, -bytes);
}

// Threads lose their turn also where they do not wait, for example between what they leave for others.
inline float exp2_in_turn(float x) {
  if (fibers::drawn() % 4096 == 0) fibers::sleep();
  return exp2_fast(x);
}
#define exp2_fast exp2_in_turn

// Clusters: the CTA's number stands above the address there.
inline int cluster_size() { return peers_of_cluster; }
inline void forget(int&) {}
inline u32 at_rank(u32 at, u32 rank) { return (rank + 1) * WINDOW + at; }
inline const char* at_peer(u32 there, u32 bytes) {
  const u32 rank = there / WINDOW - 1, at = there % WINDOW;
  if (rank >= (u32)peers_of_cluster || ctas[rank].running == 0) fail("a load from CTA %d, which is not there", rank);
  check_shared(at, bytes, bytes);
  return ctas[rank].memory + at;
}
inline float load_peer(u32 there) {
  float x;
  memcpy(&x, at_peer(there, 4), 4);
  return x;
}
inline float4 load_peer4(u32 there) {
  float4 x;
  memcpy(&x, at_peer(there, 16), 16);
  return x;
}

// Nobody has written between the shared memory that the launch asks for and what is the kernel's own.
inline void check_untouched() {
  for (u32 at = MEMORY_AT + shared_bytes; at < STATIC_AT; at += 4)
    if (*(u32*)(cta->memory + at) != ~0u) fail("shared memory is written at %u of %d", at - MEMORY_AT, shared_bytes);
}
// together: programs that run beside each other, a cluster at least.
inline void run(int grid, int threads, int cluster, int together, int bytes, bool backwards, int seed,
                const Task& kernel) {
  shared_bytes = bytes, peers_of_cluster = cluster;
  fibers::seed = seed;
  run_grid(grid, threads, backwards, [&] {
    kernel();
    if (cta->running == 1) check_untouched();
  }, together);
}
