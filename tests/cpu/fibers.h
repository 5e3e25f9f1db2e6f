// Threads that take turns on one thread of the CPU, under the names of pthread's functions: hopper_model.h runs on them where a file
// includes this one first. To change over costs nanoseconds, where the system's threads of a warp take 90 us for a meeting.
//
// A thread runs until it waits. Now and then one sleeps for some rounds, drawn from a seed, and with it whoever waits for it, so
// that warps are ahead of each other by more than an instruction. When nobody gets on for longer than anybody sleeps, waits have no end.

#include <errno.h>
#include <pthread.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace fibers {

constexpr int STACK = 1 << 17, MOST_SLEEP = 256, MOST_IDLE = 4 * MOST_SLEEP;  // bytes, rounds

struct Fiber {
  std::unique_ptr<char[]> stack{new char[STACK]};
  void* place[5];  // where it goes on
  void* (*run)(void*);
  void* argument;
  bool begun, ended;
  int sleeps;
};
struct Barrier { unsigned total, there, round; };

static std::vector<Fiber> all;  // the first `count` are of this grid; the others' stacks are kept
static int count, running, current, idle;
static uint64_t seed;
static void* caller[5];
static void (*before_turn)(void* argument) = nullptr;  // sets what a thread has for itself

inline unsigned drawn() { return (seed = seed * 6364136223846793005ull + 1442695040888963407ull) >> 40; }
inline void got_on() { idle = 0; }
__attribute__((noinline)) static void jump(void** place) { __builtin_longjmp(place, 1); }
static void begin();
// The next one's turn.
[[noreturn]] static void give_turn() {
  for (;;) {
    if (++current >= count) current = 0, ++idle;
    Fiber& next = all[current];
    if (next.ended || (next.sleeps && next.sleeps--)) continue;
    if (drawn() % 16384 == 0) next.sleeps = drawn() % MOST_SLEEP;
    else break;
  }
  Fiber& next = all[current];
  if (before_turn) before_turn(next.argument);
  if (next.begun) jump(next.place);
  next.begun = true;
  ucontext_t first;
  getcontext(&first);
  first.uc_stack.ss_sp = next.stack.get(), first.uc_stack.ss_size = STACK, first.uc_link = nullptr;
  makecontext(&first, begin, 0);
  setcontext(&first);
  abort();
}
static void begin() {
  Fiber& own = all[current];
  own.run(own.argument);
  own.ended = true, got_on();
  if (--running == 0) jump(caller);
  give_turn();
}
__attribute__((noinline)) static void wait() {
  if (!__builtin_setjmp(all[current].place)) give_turn();
}
inline void sleep() { got_on(), all[current].sleeps = MOST_SLEEP, wait(); }
__attribute__((noinline)) static void run_all() {
  if (!__builtin_setjmp(caller)) give_turn();
}

inline int create(pthread_t*, const pthread_attr_t*, void* (*run)(void*), void* argument) {
  if (running == 0) count = 0, current = -1;
  if (count == (int)all.size()) all.emplace_back();
  Fiber& one = all[count++];
  one.run = run, one.argument = argument, one.begun = one.ended = false, one.sleeps = 0;
  ++running, got_on();
  return 0;
}
inline int join(pthread_t, void**) {
  if (running) run_all();
  return 0;
}
inline int wait_for_change(pthread_cond_t*, pthread_mutex_t*, const timespec*) {
  if (idle > MOST_IDLE) return ETIMEDOUT;
  wait();
  return 0;
}
inline int meet(Barrier* b) {
  if (++b->there == b->total) {
    b->there = 0, ++b->round, got_on();
    return 0;
  }
  for (const unsigned round = b->round; b->round == round; wait())
    if (idle > MOST_IDLE) fprintf(stderr, "a warp waits for ever for %u lanes\n", b->total - b->there), abort();
  return 0;
}

}  // namespace fibers

#define pthread_barrier_t fibers::Barrier
#define pthread_barrier_init(b, attributes, threads) (*(b) = {(unsigned)(threads), 0, 0})
#define pthread_barrier_wait(b) fibers::meet(b)
#define pthread_create fibers::create
#define pthread_join fibers::join
#define pthread_cond_timedwait fibers::wait_for_change
#define pthread_cond_broadcast(changed) fibers::got_on()
#define pthread_mutex_lock(mutex)
#define pthread_mutex_unlock(mutex)
