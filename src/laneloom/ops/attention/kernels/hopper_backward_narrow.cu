// dQ, dK, dV of attention for head dimensions up to 64 by three warpgroups of Hopper: two own 64 keys each of a tile of 128, the
// third computes dQ of what they leave in shared memory (attention_hopper_columns.cuh says what is computed). Its additions
// hold up nobody, and the owners' registers are dK's, dV's and two blocks'.
//
// An owner multiplies S and dP of a block at once, dV and dK at once; what it computes in between runs under the products of the
// other two.
//
// The owners take turns at issuing products, by named barriers, so that what one computes runs under the other's products. Else both
// begin their products together, get them together, and leave the matrix units to nobody.
//
// Compile-time constants: D, D_V (multiples of 8 up to 64), KEYS 128, STAGES, HAS_FIRST, HAS_LAST, PACKED, BOTTOM_RIGHT, BF16,
// CONSUMER_REGISTERS, ADDER_REGISTERS, PRODUCER_REGISTERS.

__device__ __forceinline__ void add_up(const Tiles& at, Shared* shared, const Sizes& sizes, float* dq_sums) {
  const int lane = threadIdx.x % 32;
  int slot = 0;
  u32 tile_phase = 0, kv_phase = 0, step = 0;
  auto release = [&](u64* empty) {
    if (lane == 0) barrier_arrive(shared_address(empty));
  };
  while (true) {
    Work w;
    if (!listen(w, shared, slot, tile_phase)) break;
    if (w.begin >= w.end) continue;
    barrier_wait(shared_address(&shared->k_full), kv_phase);
    kv_phase ^= 1;
    float* sums = dq_sums + (first_block(w, w.head * sizes.group, sizes) + first_visited(w)) * SUMS + threadIdx.x % 128 * 4;
    int head = 0, row = first_visited(w) * BLOCK + threadIdx.x % 128 / 32 * 16;  // row: of the queries, the warp's first
#pragma unroll 1
    for (int left = (w.end - w.begin) * sizes.group; left > 0; --left) {
      const u32 turn = step % 2;
      float dq[32];
      barrier_wait(shared_address(&shared->ds_full[turn]), step / 2 % 2);
      wgmma_fence();
      issue_queries(dq, at.ds + turn * DS_BYTES, at.k);
      wgmma_commit();
      wgmma_wait<0>();
      pin(dq);
      release(&shared->ds_empty[turn]);
      if (left == 1) release(&shared->k_empty);
      if (row < w.queries) add_queries(dq, sums, 0);
      sums += (i64)sizes.sum_blocks * SUMS;
      if (++head == sizes.group) head = 0, row += w.step * BLOCK, sums -= ((i64)sizes.group * sizes.sum_blocks - w.step) * SUMS;
      ++step;
    }
  }
}

__device__ __forceinline__ void consume(int slab, const Tiles& at, Shared* shared, const Sizes& sizes, const Output& to,
                                        float scale2) {
  const u32 thread = thread_number();
  const int warp = thread / 32 % 4, lane = thread % 32;
  const u32 k_slab = at.k + slab * 64 * 128, v_slab = at.v + slab * 64 * 128;
  if (slab == 1) named_arrive(1, 256);
  const u32 ds_store = at.ds + (slab * 64 + warp * 16) * 128 + swizzled(lane % 16, lane / 16);
  int stage = 0, slot = 0;
  u32 phase = 0, tile_phase = 0, kv_phase = 0, step = 0;  // step: of all tiles together
  auto release = [&](u64* empty) {
    if (lane == 0) barrier_arrive(shared_address(empty));
  };
  while (true) {
    Work w;
    if (!listen(w, shared, slot, tile_phase)) break;
    if (w.key0 >= w.keys) continue;
    const int key_slab = w.key0 + slab * 64;
    float dk[D / 2], dv[D_V / 2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dk[i] = 0;
#pragma unroll
    for (int i = 0; i < D_V / 2; ++i) dv[i] = 0;
    if (w.begin < w.end) {
      float s[BLOCK / 2], t[BLOCK / 2];
      u32 p[BLOCK / 4], ds[BLOCK / 4];
      barrier_wait(shared_address(&shared->v_full), kv_phase);
      barrier_wait(shared_address(&shared->k_full), kv_phase);
      kv_phase ^= 1;
      int block = first_visited(w), head = 0;
#pragma unroll 1
      for (int left = (w.end - w.begin) * sizes.group; left > 0; --left) {
        const u32 q_now = at.q + stage * Q_BYTES, g_now = at.g + stage * G_BYTES;
        barrier_wait(shared_address(&shared->q_full[stage]), phase);
        barrier_wait(shared_address(&shared->g_full[stage]), phase);
        named_sync(1 + slab, 256);
        wgmma_fence();
        issue_block<D_STEPS>(s, shared->lines[stage][0], shared, at, k_slab, q_now);
        wgmma_commit();
        issue_block<V_STEPS>(t, shared->lines[stage][1], shared, at, v_slab, g_now);
        wgmma_commit();
        named_arrive(2 - slab, 256);
        wgmma_wait<1>();
        pin(s);
        const int row = block * BLOCK;
        const bool cut = key_slab + 64 > w.keys || (HAS_LAST && key_slab + 63 - row > w.last) ||
                         (HAS_FIRST && key_slab - (row + BLOCK - 1) < w.first);
        if (cut) hide(s, key_slab + warp * 16 + lane / 4, row + 2 * (lane % 4), w);
        weigh(s, scale2);
        // Never true, but the end of a basic block: the compiler would wait before the exponentials.
        if (sizes.tiles < 0) __nanosleep(1);
        const u32 turn = step % 2;
        barrier_wait(shared_address(&shared->ds_empty[turn]), step / 2 % 2 ^ 1);
        wgmma_wait<0>();
        pin(t);
        if (left == 1) release(&shared->v_empty), release(&shared->k_empty);
        to_operand(s, p);
#pragma unroll
        for (int i = 0; i < BLOCK / 2; ++i) s[i] *= t[i];
        to_operand(s, ds);
        store_ds(ds, ds_store + turn * DS_BYTES);
        pin(dk);
        pin(dv);
        named_sync(1 + slab, 256);
        wgmma_fence();
        issue_values(dv, p, g_now);
        issue_keys(dk, ds, q_now);
        wgmma_commit();
        named_arrive(2 - slab, 256);
        fence_async();
        __syncwarp();
        release(&shared->ds_full[turn]);
        wgmma_wait<0>();
        pin(dk);
        pin(dv);
        release(&shared->q_empty[stage]);
        release(&shared->g_empty[stage]);
        advance<STAGES>(stage, phase);
        ++step;
        if (++head == sizes.group) head = 0, block += w.step;
      }
    }
    write_sums(dk, dv, to, w, key_slab + warp * 16, at.ds + (slab * 64 + warp * 16) * 128, shared, step, lane);
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) attention_hopper_backward_narrow(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap g_map, const char* lines, float* dq_sums, u16* dk, u16* dv,
    const int* first_q, const int* first_k, int* counter, i64 dk_batch, i64 dk_head, i64 dk_row,
    i64 dv_batch, i64 dv_head, i64 dv_row, float scale2, float scale, int queries, int keys, int heads, int group, int batches,
    int first, int last, int section, int wave, int tiles, int sum_blocks, int sharers) {
  extern __shared__ char memory[];
  __shared__ Shared storage;
  const Tiles at = place_tiles(memory);
  const Sizes sizes = {queries, keys, heads, group, batches, first, last, section, wave, tiles, sum_blocks, first_q, first_k};
  release_successor();
  Work first_work;
  if (threadIdx.x == 0 && !PACKED) {
    first_work = work_of(blockIdx.x, sizes);
    fetch_first(&q_map, &k_map, &v_map, &g_map, first_work, first_work.key0, sizes, sharers);
  }
  set_up(&storage, at, WARPS + 4, 4);
  await_memory();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same for all of a warp, as the compiler sees it
  if (warpgroup == 0) {
    shrink_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      if (PACKED) first_work = work_of(blockIdx.x, sizes);  // kernels ahead may write where sequences begin
      fetch(&q_map, &k_map, &v_map, &g_map, at, &storage, sizes, sharers, lines, counter, first_work);
    }
  } else if (warpgroup == 1) {
    shrink_registers<ADDER_REGISTERS>();
    add_up(at, &storage, sizes, dq_sums);
  } else {
    grow_registers<CONSUMER_REGISTERS>();
    const Output to = {dk, dv, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, scale};
    consume(warpgroup - 2, at, &storage, sizes, to, scale2);
  }
}
