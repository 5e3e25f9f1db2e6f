// dQ, dK, dV of attention by two warpgroups of Hopper, which compute dQ themselves: for head dimensions whose dK and dV leave
// no registers for a third (attention_hopper_columns.cuh says what is computed). A tile is 128 keys of one head of keys.
//
// In one step a warpgroup issues dQ of the block before, which needs both warpgroups' dS, the next block's S, and dK, and takes
// them as they come: dQ leaves by additions, S becomes weights. The additions keep dQ's registers until the L2 has taken them:
// dP, which wants these registers, comes after the exponentials.
//
// Compile-time constants: D, D_V (multiples of 8 up to 128), KEYS 128, STAGES, HAS_FIRST, HAS_LAST, PACKED, BOTTOM_RIGHT, BF16,
// CONSUMER_REGISTERS, PRODUCER_REGISTERS.

// Of two parts of dQ's columns each warpgroup computes one; one is theirs in turns.

__device__ __forceinline__ void consume(int slab, const Tiles& at, Shared* shared, const Sizes& sizes, const Output& to,
                                        float* dq_sums, float scale2) {
  const u32 thread = thread_number();
  const int warp = thread / 32 % 4, lane = thread % 32;
  const u32 k_slab = at.k + slab * 64 * 128, v_slab = at.v + slab * 64 * 128;
  const u32 k_part = at.k + (PARTS == 2 ? slab * KEYS * 128 : 0);
  const u32 ds_store = at.ds + (slab * 64 + warp * 16) * 128 + swizzled(lane % 16, lane / 16);
  int stage = 0, slot = 0;
  u32 phase = 0, tile_phase = 0, kv_phase = 0, step = 0;  // step: of all tiles together
  auto release = [&](u64* empty) {
    if (lane == 0) barrier_arrive(shared_address(empty));
  };
  const int part = PARTS == 2 ? slab : 0;
  dq_sums += part * SUMS + thread % 128 * 4;
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
      float s[BLOCK / 2], t[BLOCK / 2], dq[32];
      u32 p[BLOCK / 4], ds[BLOCK / 4];
      barrier_wait(shared_address(&shared->q_full[stage]), phase);
      barrier_wait(shared_address(&shared->v_full), kv_phase);
      barrier_wait(shared_address(&shared->k_full), kv_phase);
      kv_phase ^= 1;
      wgmma_fence();
      issue_block<D_STEPS>(s, shared->lines[stage][0], shared, at, k_slab, at.q + stage * Q_BYTES);
      wgmma_commit();
      wgmma_wait<0>();
      pin(s);
      int block = first_visited(w), head = 0, before = -1;  // before: the head of the block whose dQ comes next, one step late
      // Where the last block's dQ went. Moved on before the additions, and not touched after them: that would wait for them.
      // Of the block before: whether this warp has rows of queries there.
      auto has_rows = [&] { return (block - (head == 0 ? w.step : 0)) * BLOCK + warp * 16 < w.queries; };
      const int to_block = w.step - (sizes.group - 1) * sizes.sum_blocks;
      float* sums = dq_sums + (first_block(w, w.head * sizes.group, sizes) + block - to_block) * (PARTS * SUMS);
#pragma unroll 1
      for (int left = (w.end - w.begin) * sizes.group; left > 0; --left) {
        const u32 q_now = at.q + stage * Q_BYTES, g_now = at.g + stage * G_BYTES;
        const int row = block * BLOCK;
        const bool cut = key_slab + 64 > w.keys || (HAS_LAST && key_slab + 63 - row > w.last) ||
                         (HAS_FIRST && key_slab - (row + BLOCK - 1) < w.first);
        if (cut) hide(s, key_slab + warp * 16 + lane / 4, row + 2 * (lane % 4), w);
        weigh(s, scale2);
        // Never true, but the end of a basic block: the compiler would wait before the exponentials.
        if (sizes.tiles < 0) __nanosleep(1);
        barrier_wait(shared_address(&shared->g_full[stage]), phase);
        wgmma_wait<0>();  // dK of the block before, whose queries are free
        pin(dk);
        if (before >= 0) release(&shared->q_empty[stage == 0 ? STAGES - 1 : stage - 1]);
        to_operand(s, p);
        pin(dv);
        wgmma_fence();
        issue_block<V_STEPS>(t, shared->lines[stage][1], shared, at, v_slab, g_now);
        wgmma_commit();
        wgmma_fence();
        issue_values(dv, p, g_now);
        wgmma_commit();
        const u32 turn = step % 2;
        u64* const g_empty = &shared->g_empty[stage];
        advance<STAGES>(stage, phase);
        barrier_wait(shared_address(&shared->ds_empty[turn]), step / 2 % 2 ^ 1);
        wgmma_wait<1>();
        pin(t);
        if (left == 1) release(&shared->v_empty);
#pragma unroll
        for (int i = 0; i < BLOCK / 2; ++i) s[i] *= t[i];
        to_operand(s, ds);
        store_ds(ds, ds_store + turn * DS_BYTES);
        fence_async();
        __syncwarp();
        release(&shared->ds_full[turn]);
        wgmma_wait<0>();
        pin(dv);
        release(g_empty);
        pin(s);  // rounded again: while dV is summed, its weights have the registers
        to_operand(s, ds);
        if (before >= 0) barrier_wait(shared_address(&shared->ds_full[turn ^ 1]), (step - 1) / 2 % 2);
        if (left > 1) barrier_wait(shared_address(&shared->q_full[stage]), phase);  // not where wgmma are in flight
        pin(dk);
        const bool mine = PARTS == 2 || turn == slab;
        wgmma_fence();
        if (mine) {
          if (PARTS == 1) wgmma_fence();  // on this path, or the compiler puts its own and waits for each product
          issue_queries(dq, at.ds + (turn ^ 1) * DS_BYTES, k_part);
        }
        wgmma_commit();
        wgmma_fence();
        // After the last block it multiplies what is there, and nobody looks.
        issue_block<D_STEPS>(s, shared->lines[stage][0], shared, at, k_slab, at.q + stage * Q_BYTES);
        wgmma_commit();
        issue_keys(dk, ds, q_now);
        wgmma_commit();
        wgmma_wait<2>();
        pin(dq);
        if (before >= 0) {
          release(&shared->ds_empty[turn ^ 1]);
          sums += (i64)(before == 0 ? to_block : sizes.sum_blocks) * (PARTS * SUMS);
          if (mine && has_rows()) add_queries(dq, sums, part);
        }
        wgmma_wait<1>();
        pin(s);
        ++step;
        before = head;
        if (++head == sizes.group) head = 0, block += w.step;
      }
      const u32 turn = (step - 1) % 2;
      barrier_wait(shared_address(&shared->ds_full[turn]), (step - 1) / 2 % 2);
      wgmma_fence();
      issue_queries(dq, at.ds + turn * DS_BYTES, k_part);
      wgmma_commit();
      wgmma_wait<0>();
      pin(dq);
      pin(dk);
      release(&shared->k_empty);
      release(&shared->ds_empty[turn]);
      release(&shared->q_empty[stage == 0 ? STAGES - 1 : stage - 1]);
      sums += (i64)(before == 0 ? to_block : sizes.sum_blocks) * (PARTS * SUMS);
      if ((PARTS == 2 || turn != slab) && has_rows()) add_queries(dq, sums, part);
    }
    write_sums(dk, dv, to, w, key_slab + warp * 16, at.ds + (slab * 64 + warp * 16) * 128, shared, step, lane);
  }
}

extern "C" __global__ void __launch_bounds__(384, 1) attention_hopper_backward(
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
  set_up(&storage, at, WARPS, WARPS);
  await_memory();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // the same for all of a warp, as the compiler sees it
  if (warpgroup == 0) {
    shrink_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      if (PACKED) first_work = work_of(blockIdx.x, sizes);  // kernels ahead may write where sequences begin
      fetch(&q_map, &k_map, &v_map, &g_map, at, &storage, sizes, sharers, lines, counter, first_work);
    }
  } else {
    grow_registers<CONSUMER_REGISTERS>();
    const Output to = {dk, dv, dk_batch, dk_head, dk_row, dv_batch, dv_head, dv_row, scale};
    consume(warpgroup - 1, at, &storage, sizes, to, dq_sums, scale2);
  }
}
