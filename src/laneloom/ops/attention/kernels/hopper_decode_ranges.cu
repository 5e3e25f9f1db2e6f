// Attention of up to 16 rows over a cache of keys and values, for Hopper, by programs that divide all sequences' keys evenly.
//
// The tiles of all sequences and heads form one row, sequence after sequence, head after head; each program has a range of it, as
// long as the others', wherever it begins and ends. So sequences may have any lengths, which only the GPU knows. Within its
// range a program goes from head to head without a pause: the warp that streams tiles is ahead, in the next head's keys and
// queries, while the others put this one's sums together. A head that several programs have is put together by the last of them,
// in their order: the same call gives the same bits.
//
// A head counts as COST tiles more than it has, for what beginning and ending it costs. A border among these lies where the head
// begins, and one within SNAP tiles of a head's begin or end lies there.
//
// How a run of keys is read: attention_hopper_decode_run.cuh; how sums become one: attention_hopper_decode.cuh. Compile-time
// constants: as of hopper_decode.cu.

constexpr int COST = 1, SNAP = 1;
constexpr int PROGRAMS = D <= 64 && D_V <= 64 ? 3 : D <= 128 && D_V <= 128 ? 2 : 1;  // as in hopper_decode.cu

struct Sequences {
  const int* lengths;
  int batches, kv_heads, units;  // units: heads of keys by tiles of the rows that share one
};

// A program's place: it is at the tile after `passed` of a unit's `tiles`; `begin`, where that unit begins in the row of all.
struct Walk {
  int batch, head, row0, number, keys, next_keys, first, tiles, begin, passed;
};

// One unit's share of the row of each sequence, as the lanes of a warp have them: lane i those of `each` sequences from `each` i on.
struct Shares {
  int each, keys, own, upto;
};

// Of a sequence; none of one that there is not.
__device__ __forceinline__ int keys_of(int batch, const Sequences& all) { return batch < all.batches ? length_of(all.lengths + batch) : 0; }
// Where a window's keys begin, in tiles.
__device__ __forceinline__ int first_of(int keys, const Rows& n) { return HAS_FIRST ? max(keys - n.queries - n.left, 0) / TILE : 0; }
// One at least: where there are no keys, the result is written all the same.
__device__ __forceinline__ int tiles_of(int keys, const Rows& n) { return max((keys + TILE - 1) / TILE - first_of(keys, n), 1); }

// The sum of what the lanes up to this one have.
__device__ __forceinline__ int sum_up_to(int x, int lane) {
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const int y = __shfl_up_sync(~0u, x, far);
    if (lane >= far) x += y;
  }
  return x;
}
// keys: of this lane's sequence, where each lane has one at most.
__device__ __forceinline__ Shares shares_of(const Sequences& all, const Rows& n, int lane, int keys) {
  Shares s = {(all.batches + 31) / 32, keys, 0, 0};
  if (s.each == 1) {
    s.own = lane < all.batches ? tiles_of(keys, n) + COST : 0;
  } else {
#pragma unroll 4
    for (int i = 0; i < s.each; ++i) {
      const int batch = lane * s.each + i, here = keys_of(batch, all);
      if (batch < all.batches) s.own += tiles_of(here, n) + COST;
    }
  }
  s.upto = sum_up_to(s.own, lane);
  return s;
}

__device__ __forceinline__ void enter(Walk& w, int keys, int next_keys, const Rows& n) {
  w.keys = keys, w.next_keys = next_keys, w.first = first_of(keys, n), w.tiles = tiles_of(keys, n);
}
__device__ __forceinline__ void step(Walk& w, const Sequences& all, const Rows& n) {
  w.begin += w.tiles + COST, w.passed = 0, ++w.number;
  if ((w.row0 += ROWS) < n.rows) return;
  w.row0 = 0;
  if (++w.head < all.kv_heads) return;
  w.head = 0, ++w.batch;
  enter(w, w.next_keys, keys_of(w.batch + 1, all), n);
}

// All lanes of a warp: the place of a border, of which there is one.
__device__ __forceinline__ Walk find(int border, const Shares& s, const Sequences& all, const Rows& n, int lane) {
  const int holder = __ffs(__ballot_sync(~0u, s.upto * all.units > border)) - 1;
  int before = __shfl_sync(~0u, s.upto - s.own, holder);
  Walk w = {holder * s.each};
  if (s.each == 1) {
    const int keys = __shfl_sync(~0u, s.keys, holder);
    enter(w, keys, __shfl_sync(~0u, s.keys, min(holder + 1, 31)), n);
  } else {
    const int end = min(w.batch + s.each, all.batches);
    for (;; w.batch += 32) {
      const int own = w.batch + lane < end ? tiles_of(keys_of(w.batch + lane, all), n) + COST : 0;
      const int upto = before + sum_up_to(own, lane);
      const u32 beyond = __ballot_sync(~0u, upto * all.units > border);
      const int found = beyond == 0 ? 31 : __ffs(beyond) - 1;
      before = __shfl_sync(~0u, beyond == 0 ? upto : upto - own, found);
      if (beyond != 0) {
        w.batch += found;
        break;
      }
    }
    enter(w, keys_of(w.batch, all), keys_of(w.batch + 1, all), n);
  }
  const int share = w.tiles + COST, unit = (border - before * all.units) / share;
  w.begin = before * all.units + unit * share;
  w.number = w.batch * all.units + unit;
  const int row_tiles = all.units / all.kv_heads;
  w.head = unit / row_tiles, w.row0 = unit % row_tiles * ROWS;
  const int within = border - w.begin;
  if (share - within <= SNAP && within > COST + SNAP) step(w, all, n);
  else if (within > COST + SNAP) w.passed = within - COST;
  return w;
}

// What a range that ends within unit `end_number`, `end_passed` tiles behind its begin, has of the unit at w.
__device__ __forceinline__ Run run_of(const Walk& w, int end_number, int end_passed) {
  return {w.batch, w.head, w.row0, 0, w.keys, w.first + w.passed, w.first + (w.number == end_number ? end_passed : w.tiles)};
}

// The row of `total` tiles in ranges that differ by one tile at most.
struct Ranges {
  int total, programs, each, rest;
  float per_program;
};
__device__ __forceinline__ Ranges ranges_of(int total) {
  const int programs = min((int)gridDim.x, total), each = total / programs;
  return {total, programs, each, total - each * programs, 1.0f / programs};
}
__device__ __forceinline__ int border(int program, const Ranges& by) {
  return program * by.each + (int)((program * by.rest + 0.5f) * by.per_program);
}
// The program that has place x if no border is moved.
__device__ __forceinline__ int program_at(int x, const Ranges& by) {
  int program = min((int)(__fdividef(x + 1.0f, by.total) * by.programs), by.programs - 1);  // or one beside it
  while (border(program, by) > x) --program;
  while (program + 1 < by.programs && border(program + 1, by) <= x) ++program;
  return program;
}

// A unit of which others have parts as well: how many parts there are, which one this is, how many lie before them. It lies in
// shared memory, since there are no registers to spare.
struct Held {
  Run run;
  int number, count, which, first, last;
};
// The unit at w of this program.
__device__ __forceinline__ void hold(Held* held, const Walk& w, int program, const Ranges& by) {
  const int begins = program_at(w.begin + COST + SNAP, by), ends = program_at(w.begin + COST + w.tiles - SNAP - 1, by);
  held->number = w.number, held->count = ends - begins + 1, held->which = program - begins;
  held->first = w.number + begins;  // each program's part of each unit has a place of its own
}

extern "C" __global__ void __launch_bounds__(160, PROGRAMS) attention_hopper_decode_ranges(
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map, const u16* q, u16* out, float* lse,
    float* parts, float* parts_lse, int* tickets, const int* lengths, const int* table, i64 q_batch, i64 q_row, i64 q_head,
    float scale2, int queries, int heads, int group, int row_tiles, int left, int table_row, int room, int batches SLOPE) {
  extern __shared__ char memory[];
  __shared__ Shared storage;
  __shared__ Held held[2];
  Shared* const shared = &storage;
  const u32 k_tile = (shared_address(memory) + 1023) / 1024 * 1024;  // swizzled tiles begin at multiples of 1024
  const u32 v_tile = k_tile + STAGES * K_BYTES, q_tile = v_tile + STAGES * V_BYTES;
  const Sequences all = {lengths, batches, heads / group, heads / group * row_tiles};
  const Rows n = {queries, heads, group, queries * group, left, q_batch, q_row, q_head};
  float* const sums = (float*)(memory + (q_tile + STAGES * ROWS * Q_PITCH - shared_address(memory)));
  const int program = blockIdx.x, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    init_buffers(shared->full, shared->empty, STAGES, WARPS);
    fence_barrier_init();
    prefetch_map(&k_map), prefetch_map(&v_map);
  }
  __syncthreads();
  // A range takes a microsecond to find. So it is found by the lengths as they are before kernels ahead have ended, as long as each
  // lane has one, and found again if they are others then.
  Shares s;
  Ranges by;
  Walk w, end;
  int keys = lane < batches && batches <= 32 ? early_length_of(lengths + lane, room) : 0;
#pragma unroll 1
  for (bool waited = batches > 32;; waited = true) {
    if (waited) {
      await_memory();
      if (batches <= 32) {
        const int before = keys;
        keys = keys_of(lane, all);
        if (!__any_sync(~0u, keys != before)) break;
      }
    }
    s = shares_of(all, n, lane, keys), by = ranges_of(__shfl_sync(~0u, s.upto, 31) * all.units);
    if (program < by.programs) {
      w = find(border(program, by), s, all, n, lane), end = {};
      end.number = batches * all.units;
      if (program + 1 < by.programs) end = find(border(program + 1, by), s, all, n, lane);
      if (threadIdx.x == 0) {
        const bool is_first = w.passed > 0 || w.number == end.number;
        if (is_first) hold(held, w, program, by);
        if (end.passed > 0 && end.number != w.number) hold(held + is_first, end, program, by);
      }
    }
    if (waited) break;
    if (threadIdx.x < 128 || program >= by.programs) continue;
    const Run run = run_of(w, end.number, end.passed);
    fetch_tile<false>(&k_map, &v_map, run, table + (PAGE > 0 ? (i64)run.batch * table_row : 0), lane);
  }
  if (program >= by.programs) return;
  const int end_number = end.number, end_passed = end.passed;
  Place in = {};
  int parts_held = 0;
  for (; w.number < end_number || (w.number == end_number && w.passed < end_passed); step(w, all, n)) {
    const Run run = run_of(w, end_number, end_passed);
    if (threadIdx.x >= 128) {
      const int* const pages = table + (PAGE > 0 ? (i64)run.batch * table_row : 0);
      stream<true>(&k_map, &v_map, k_tile, v_tile, shared, run, pages, lane, in, q, q_tile, n);
      continue;
    }
    attend<true>(q, q_tile, k_tile, v_tile, shared, sums, run, n, scale2, SLOPE2, in);
    Output to = {out, lse, parts, parts_lse, 1, 0, 0};
    if (run.end - run.begin < w.tiles) {
      Held& one = held[parts_held++];
      to.count = one.count, to.which = one.which, to.first = one.first;
      if (threadIdx.x == 0) one.run = run;
    }
    join(sums, sums, 1, shared, to, run, n);
  }
  release_successor();
  if (threadIdx.x >= 128 || parts_held == 0) return;
  __threadfence();
  named_sync(1, 128);
  if (threadIdx.x < parts_held) {
    Held& one = held[threadIdx.x];
    // The ticket goes round, so that it is zero again for the next launch.
    one.last = atomicInc((u32*)tickets + one.number, one.count - 1) == one.count - 1;
  }
  named_sync(1, 128);
#pragma unroll 1
  for (int i = 0; i < parts_held; ++i)
    if (held[i].last) {
      __threadfence();
      const Output to = {out, lse, parts, parts_lse, held[i].count, 0, held[i].first};
      combine(slice_of(held[i].run, n, 0, 1), to, held[i].run, n);
    }
}
