// Attention of up to 16 rows over a cache of keys and values, for Hopper: bound by reading the cache once.
//
// A program has a run of the keys of one head of keys and the rows that share it, the queries of all its heads. One warp streams
// tiles of 64 keys and their values by TMA into a ring, many bytes ahead; four warps multiply by mma.m16n8k16, 16 keys of each tile
// each, with a softmax of their own, so that no warp waits for another before the end. Their four sums become one in shared
// memory. Where several programs share the rows, those of a cluster put theirs together through distributed shared memory, a
// slice of the result each; where there are several clusters, each leaves its sum, and the last one to finish a slice puts
// them together. All in the order of the runs: the same call gives the same bits.
//
// Heads of keys that lie side by side may be read as one, abreast: its rows are wider, which memory serves better than narrow
// ones. Each query then has zeros where the others' columns are, and takes its own columns of the result.
//
// The rows and how sums are put together: attention_hopper_decode.cuh; how a run is read: attention_hopper_decode_run.cuh.
//
// Compile-time constants: D, D_V (multiples of 8 up to 256, of all the heads abreast), ABREAST, STAGES, BOX (keys of a copy: 64,
// or fewer where pages are smaller), PAGE (keys of a page, 0 without pages), HAS_FIRST (a window), BF16,
// SOFTCAP (as in hopper_forward.cu), EARLY (the next launch's programs may take their places as these begin).

// Of a processor, at least, for which the compiler leaves registers. It would leave them for more, and load less ahead.
constexpr int PROGRAMS = D <= 64 && D_V <= 64 ? 3 : D <= 160 && D_V <= 160 ? 2 : 1;
// Rows that begin within half a line cost the L2 more to be asked for ahead than it saves.
constexpr bool WHOLE_LINES = D % 32 == 0 && D_V % 32 == 0;

// The run's tiles where its sequence has so many keys.
__device__ __forceinline__ void divide(Run& run, int keys, int splits, const Rows& n) {
  const int first = HAS_FIRST ? max(run.row0 / n.group + keys - n.queries - n.left, 0) / TILE : 0;
  const int tiles = max((keys + TILE - 1) / TILE - first, 0), each = tiles / splits, rest = tiles - each * splits;
  const float per_split = 1.0f / splits;
  run.keys = keys;
  run.begin = first + each * run.split + (int)((rest * run.split + 0.5f) * per_split);
  run.end = first + each * (run.split + 1) + (int)((rest * (run.split + 1) + 0.5f) * per_split);
}

extern "C" __global__ void __launch_bounds__(160, PROGRAMS) attention_hopper_decode(
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map, const u16* q, u16* out, float* lse,
    float* parts, float* parts_lse, int* tickets, const int* lengths, const int* table, i64 q_batch, i64 q_row, i64 q_head,
    float scale2, int queries, int heads, int group, int row_tiles, int left, int table_row, int room, int splits SLOPE) {
  extern __shared__ char memory[];
  __shared__ Shared storage;
  Shared* const shared = &storage;
  const u32 k_tile = (shared_address(memory) + 1023) / 1024 * 1024;  // swizzled tiles begin at multiples of 1024
  const u32 v_tile = k_tile + STAGES * K_BYTES;
  // The heads of one position lie side by side: programs that start together read them together.
  int peers = cluster_size(), clusters = splits / peers, rest = blockIdx.x / peers;
  Run run;
  run.head = rest % (heads / group), rest /= heads / group;
  run.split = rest % clusters * peers + blockIdx.x % peers, rest /= clusters;
  run.row0 = rest % row_tiles * ROWS, run.batch = rest / row_tiles;
  Rows n = {queries, heads, group, queries * group, left, q_batch, q_row, q_head};
  const int* const pages = table + (PAGE > 0 ? (i64)run.batch * table_row : 0);
  if (threadIdx.x == 0) {
    init_buffers(shared->full, shared->empty, STAGES, WARPS);
    fence_barrier_init();
    prefetch_map(&k_map), prefetch_map(&v_map);
  }
  __syncthreads();
#if EARLY
  release_successor();
  // Who begins early waits for some time. The length is what it will be, as a rule.
  divide(run, early_length_of(lengths + run.batch, room), splits, n);
  if (WHOLE_LINES && threadIdx.x >= 128) fetch_tile<true>(&k_map, &v_map, run, pages, threadIdx.x % 32);
  await_memory();
  const int keys = length_of(lengths + run.batch);
  if (keys != run.keys) divide(run, keys, splits, n);
#else
  await_memory();
  divide(run, length_of(lengths + run.batch), splits, n);
#endif
  Place in = {};
  if (threadIdx.x >= 128) {
    stream<false>(&k_map, &v_map, k_tile, v_tile, shared, run, pages, threadIdx.x % 32, in, q, 0, n);
    return;
  }
  float* const sums = (float*)(memory + (k_tile - shared_address(memory)));
  float* const mine = sums + WARPS * ROWS * PITCH;
  attend<false>(q, 0, k_tile, v_tile, shared, sums, run, n, scale2, SLOPE2, in);
  if (!EARLY) release_successor();
  // Found again, not kept in registers for so long.
  forget(n.group);
  peers = cluster_size(), clusters = splits / peers;
  const int unit = (run.batch * row_tiles + run.row0 / ROWS) * (heads / n.group) + run.head, rank = run.split % peers;
  const Output to = {out, lse, parts, parts_lse, clusters, run.split / peers, unit * clusters};
  const Slice slice = slice_of(run, n, rank, peers);
  join(sums, mine, peers, shared, to, run, n);
  if (peers > 1) {
    cluster_sync();
    share(shared_address(mine), peers, slice, to, run, n);
  }
  if (clusters > 1) {
    __threadfence();
    named_sync(1, 128);
    // The ticket goes round, so that it is zero again for the next launch.
    if (threadIdx.x == 0) shared->last = atomicInc((u32*)tickets + unit * peers + rank, clusters - 1) == clusters - 1;
    named_sync(1, 128);
    if (shared->last) {
      __threadfence();
      combine(slice, to, run, n);
    }
  }
  if (peers > 1) cluster_sync();  // what others read of this program is there until they have
}
