// Threads that take turns on one thread of the CPU. To change over costs nanoseconds, where the system's threads of a warp take
// 90 us for a meeting.
//
// A thread runs until it waits. Now and then one sleeps for some rounds, drawn from a seed, and with it whoever waits for it, so
// that warps are ahead of each other by more than an instruction. When nobody gets on for longer than anybody sleeps, waits have no end.

#include <ucontext.h>

#include <cstdint>
#include <cstdlib>

namespace fibers {

constexpr int MOST = 2048, STACK = 1 << 17, MOST_SLEEP = 256, MOST_IDLE = 4 * MOST_SLEEP;  // threads, bytes, rounds

struct Fiber {
  char* stack;
  void* place[5];  // where it goes on
  const unsigned* watched;  // it waits for another value than it was
  unsigned was;
  bool begun, ended;
  int sleeps;
};

static Fiber all[MOST];  // the first `count` are of these threads; the others' stacks are kept
static int count, running, current, idle;
static bool backwards;  // the last thread's turn is the first
static uint64_t seed;
static void* caller[5];
static void (*before_turn)(int thread), (*body)();  // what a thread has for itself, what it does

inline unsigned drawn() { return (seed = seed * 6364136223846793005ull + 1442695040888963407ull) >> 40; }
inline void got_on() { idle = 0; }
inline bool for_ever() { return idle > MOST_IDLE; }
__attribute__((noinline)) static void jump(void** place) { __builtin_longjmp(place, 1); }
static void begin();
// The next one's turn.
[[noreturn]] static void give_turn() {
  Fiber* next;
  for (;;) {
    if (backwards ? --current < 0 : ++current >= count) current = backwards ? count - 1 : 0, ++idle;
    next = &all[current];
    if (next->ended || (next->sleeps && next->sleeps--)) continue;
    if (drawn() % 16384 == 0) next->sleeps = drawn() % MOST_SLEEP;
    else if (!next->watched || *next->watched != next->was || for_ever()) break;
  }
  before_turn(current);
  if (next->begun) jump(next->place);
  next->begun = true;
  ucontext_t first;
  getcontext(&first);
  first.uc_stack.ss_sp = next->stack, first.uc_stack.ss_size = STACK, first.uc_link = nullptr;
  makecontext(&first, begin, 0);
  setcontext(&first);
  abort();
}
static void begin() {
  body();
  all[current].ended = true, got_on();
  if (--running == 0) jump(caller);
  give_turn();
}
__attribute__((noinline)) static void wait() {
  if (!__builtin_setjmp(all[current].place)) give_turn();
}
// Until what is watched has another value, at least one round; or there is no end of it.
inline void wait_for_change(const unsigned& watched) {
  Fiber& own = all[current];
  own.watched = &watched, own.was = watched;
  wait();
  own.watched = nullptr;
}
inline void sleep(int rounds = MOST_SLEEP) {
  for (; rounds > 0; rounds -= MOST_SLEEP) got_on(), all[current].sleeps = rounds < MOST_SLEEP ? rounds : MOST_SLEEP, wait();
}
__attribute__((noinline)) static void run(int threads) {
  count = running = threads, current = backwards ? count : -1, got_on();
  for (int i = 0; i < count; ++i) {
    if (!all[i].stack) all[i].stack = (char*)malloc(STACK);
    all[i].watched = nullptr, all[i].begun = all[i].ended = false, all[i].sleeps = 0;
  }
  if (!__builtin_setjmp(caller)) give_turn();
}

}  // namespace fibers
