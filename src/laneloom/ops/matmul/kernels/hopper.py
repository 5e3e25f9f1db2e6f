"""Warp-specialised persistent GEMM for Hopper: one warp streams tiles by TMA, one or two warpgroups multiply by wgmma.

The idea: a ring of STAGES K-slices in shared memory. The producer warp waits for a slice to be empty and has the copy
engine fill it; each consumer warpgroup owns a slab of BLOCK_M / CONSUMERS rows, waits for a slice to be full, and keeps
one wgmma in flight while it hands back the slice before. A program walks over several tiles and the producer never
stops at a tile's end, so the next tile's first slices arrive during this tile's epilogue.

Wins wherever TMA can read the operands (16-byte pitch and base): large products at the tensor cores' power limit, small
ones with small tiles and SPLIT_K, and skinny ones transposed, with the weights as A. Hopper (sm_90a).
Source: NVIDIA CUTLASS, "Efficient GEMM in CUDA", warp specialisation and persistent kernels; PTX ISA, `wgmma`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ....codegen import CodeObject, compile_kernel
from ....codegen.versions import tma_load, tma_store
from ....device.hopper import advance_ring, locate_tile, release_successor, start_of_tile, wait_for_predecessor
from ....device.pieces import MatrixCopy, line_pitch, placing
from ....device.prepared import PreparedLaunch, prepared_on, specialise
from ....device.split_k import ReduceLaunch
from ....device.tma import GLUON_NAMES, GLUON_TYPES, TmaView
from ....device.triton_types import TRITON_TYPES


@gluon.jit
def _locate_item(item, M, N, K, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                 GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr):
    """Tile row, tile column, part of K and its first and last slice, for one item of work."""
    tile_m, tile_n = locate_tile(item // SPLIT_K, gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N), GROUP_M)
    slices = gl.cdiv(K, BLOCK_K)
    part = item % SPLIT_K
    return tile_m, tile_n, part, slices * part // SPLIT_K, slices * (part + 1) // SPLIT_K


@gluon.jit
def _locate_tile(tile_m, tile_n, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr,
                 A_IS_KM: gl.constexpr, B_IS_NK: gl.constexpr, TMA_STORE: gl.constexpr):
    """First row and column of a tile. Along an axis that lies in memory it moves by whole sectors of 32 bytes: rows
    that break them are slow as well. TMA raises an illegal instruction where what it writes does not begin at 16
    bytes, and parts of K may have any number of columns. Two consumers that store through pointers have no registers
    left for all this."""
    if TMA_STORE or CONSUMERS == 1:
        along_c: gl.constexpr = 8 if TMA_STORE else 1
        m = start_of_tile(tile_m, BLOCK_M, M, 16 if A_IS_KM else 1)
        n = start_of_tile(tile_n, BLOCK_N, N, along_c if B_IS_NK else 16)
    else:
        m = tile_m * BLOCK_M
        n = tile_n * BLOCK_N
    return m, n


@gluon.jit
def _produce(a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
             BLOCK_K: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, GROUP_M: gl.constexpr,
             SPLIT_K: gl.constexpr, A_IS_KM: gl.constexpr, B_IS_NK: gl.constexpr, TMA_STORE: gl.constexpr):
    """One warp: fill the ring with the slices of all of this program's tiles, in the consumers' order."""
    SLAB: gl.constexpr = BLOCK_M // CONSUMERS
    BYTES: gl.constexpr = CONSUMERS * a_desc.block_type.nbytes + b_desc.block_type.nbytes
    items = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * SPLIT_K
    # Orders the loads below after the kernels that wrote A and B; the consumers' stores follow the loads.
    wait_for_predecessor()
    stage = 0
    phase = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile_m, tile_n, _, k_first, k_last = _locate_item(item, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_K)
        m, n = _locate_tile(tile_m, tile_n, M, N, BLOCK_M, BLOCK_N, CONSUMERS, A_IS_KM, B_IS_NK, TMA_STORE)
        for k_slice in range(k_first, k_last):
            k = k_slice * BLOCK_K
            # A barrier's first phase counts as complete when the other parity is asked for: the ring starts empty.
            mbarrier.wait(empty.index(stage), phase ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, BYTES)
            for slab in gl.static_range(CONSUMERS):
                a_slice = a_ring.index(stage * CONSUMERS + slab)
                if A_IS_KM:
                    tma_load(a_desc, [k, m + slab * SLAB], bar, a_slice)
                else:
                    tma_load(a_desc, [m + slab * SLAB, k], bar, a_slice)
            if B_IS_NK:
                tma_load(b_desc, [n, k], bar, b_ring.index(stage))
            else:
                tma_load(b_desc, [k, n], bar, b_ring.index(stage))
            stage, phase = advance_ring(stage, phase, STAGES)


@gluon.jit
def _halve(x):
    """Left and right half of the columns of x, in registers."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()


@gluon.jit
def _cut(x, PIECES: gl.constexpr):
    """The columns of x in 1, 2 or 4 pieces from left to right, in registers."""
    if PIECES == 1:
        return (x, )
    else:
        left, right = _halve(x)
        if PIECES == 2:
            return (left, right)
        else:
            first, second = _halve(left)
            third, fourth = _halve(right)
            return (first, second, third, fourth)


@gluon.jit
def _store_piece(piece, number: gl.constexpr, slab: gl.constexpr, c_desc, c_ptr, stride_cm, stride_cn, staging, origin,
                 m, n, M, N, TMA_STORE: gl.constexpr, C_IS_NM: gl.constexpr, BUFFERS: gl.constexpr):
    """Write piece `number` of a tile through shared memory: by TMA, or by masked stores where C's pitch forbids it."""
    ROWS: gl.constexpr = piece.shape[0]
    COLUMNS: gl.constexpr = piece.shape[1]
    n += number * COLUMNS
    buffer = staging.index(slab * BUFFERS + number % BUFFERS)
    if TMA_STORE:
        # The copy engine must have read this buffer's last piece before it is overwritten.
        tma.store_wait(pendings=BUFFERS - 1)
        buffer.store(piece)
        # Generic-proxy writes of all threads become visible to the copy engine before it reads them.
        fence_async_shared()
        tma_store(c_desc, [origin + m, n], buffer)
    else:
        # One warp writes 32 neighbours of a row (of a column of a swapped C): whole sectors at any pitch.
        coalesced: gl.constexpr = (gl.BlockedLayout([1, 1], [32, 1], [gl.num_warps(), 1], [0, 1]) if C_IS_NM
                                   else gl.BlockedLayout([1, 1], [1, 32], [gl.num_warps(), 1], [1, 0]))
        buffer.store(piece)
        # By quarters of the rows: the addresses of a whole piece would not fit beside the accumulators. The few
        # columns of a swapped C need no such care.
        STEPS: gl.constexpr = 1 if C_IS_NM else 4
        STEP: gl.constexpr = ROWS // STEPS
        offs_m = gl.arange(0, STEP, gl.SliceLayout(1, coalesced))
        offs_n = gl.arange(0, COLUMNS, gl.SliceLayout(0, coalesced))
        mask_n = (n + offs_n < N)[None, :]
        base = c_ptr + origin + gl.cast(m, gl.int64) * stride_cm + gl.cast(n, gl.int64) * stride_cn
        for step in gl.static_range(STEPS):
            values = buffer.slice(step * STEP, STEP).load(coalesced)
            row = step * STEP + offs_m
            offsets = row[:, None] * stride_cm + offs_n[None, :] * stride_cn
            gl.store(base + offsets, values, mask=(m + row < M)[:, None] & mask_n)


@gluon.jit
def _consume(slab: gl.constexpr, c_desc, c_ptr, stride_cm, stride_cn, part_step, a_ring, b_ring, staging, full,
             empty, M, N, K, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
             STAGES: gl.constexpr, CONSUMERS: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
             A_IS_KM: gl.constexpr, B_IS_NK: gl.constexpr, PIECES: gl.constexpr, TMA_STORE: gl.constexpr,
             C_IS_NM: gl.constexpr, BUFFERS: gl.constexpr, LEAD: gl.constexpr):
    """One warpgroup: multiply slab number `slab` of each of this program's tiles and write it."""
    SLAB: gl.constexpr = BLOCK_M // CONSUMERS
    ACC: gl.constexpr = gl.int32 if a_ring.dtype == gl.int8 else gl.float32
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 256 // a_ring.dtype.primitive_bitwidth])
    items = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * SPLIT_K
    stage = 0
    phase = 0
    held = 0  # the slice that the wgmma in flight reads
    if LEAD > 0 and slab == 1:
        # Let the other consumer get ahead by LEAD slices, so that one multiplies while the other stores its tile.
        mbarrier.wait(full.index(LEAD), 0)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile_m, tile_n, part, k_first, k_last = _locate_item(
            item, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, SPLIT_K)
        acc = gl.zeros((SLAB, BLOCK_N), ACC, layout)
        for k_slice in range(k_first, k_last):
            mbarrier.wait(full.index(stage), phase)
            a_slice = a_ring.index(stage * CONSUMERS + slab)
            b_slice = b_ring.index(stage)
            acc = warpgroup_mma(a_slice.permute((1, 0)) if A_IS_KM else a_slice,
                                b_slice.permute((1, 0)) if B_IS_NK else b_slice,
                                acc, use_acc=k_slice > k_first, is_async=True)
            # All but the newest wgmma are done: the slice before this one may be refilled.
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc, ))
            mbarrier.arrive(empty.index(held), count=1, pred=k_slice > k_first)
            held = stage
            stage, phase = advance_ring(stage, phase, STAGES)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc, ))
        mbarrier.arrive(empty.index(held), count=1)
        m, n = _locate_tile(tile_m, tile_n, M, N, BLOCK_M, BLOCK_N, CONSUMERS, A_IS_KM, B_IS_NK, TMA_STORE)
        m += slab * SLAB
        pieces = _cut(acc.to(staging.dtype), PIECES)
        for number in gl.static_range(PIECES):
            _store_piece(pieces[number], number, slab, c_desc, c_ptr, stride_cm, stride_cn, staging, part * part_step,
                         m, n, M, N, TMA_STORE, C_IS_NM, BUFFERS)
    if TMA_STORE:
        # Shared memory must outlive the copy engine's reads of it.
        tma.store_wait(pendings=0)


@gluon.jit(do_not_specialize=["M", "N", "K"])
def matmul_hopper(a_desc, b_desc, c_desc, c_ptr, stride_cm, stride_cn, part_step, M, N, K,
                  BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
                  CONSUMERS: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr, A_IS_KM: gl.constexpr,
                  B_IS_NK: gl.constexpr, PIECES: gl.constexpr, TMA_STORE: gl.constexpr,
                  OUT: gl.constexpr, C_IS_NM: gl.constexpr, BUFFERS: gl.constexpr, LEAD: gl.constexpr,
                  CONSUMER_REGISTERS: gl.constexpr):
    """C = A B; with SPLIT_K > 1, C is the workspace of parts, `part_step` rows (elements, without TMA) apart."""
    SLAB: gl.constexpr = BLOCK_M // CONSUMERS
    a_slices: gl.constexpr = [STAGES * CONSUMERS] + a_desc.block_type.shape  # noqa: RUF005 - the JIT has no starred
    b_slices: gl.constexpr = [STAGES] + b_desc.block_type.shape  # noqa: RUF005
    a_ring = gl.allocate_shared_memory(a_desc.dtype, a_slices, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, b_slices, b_desc.layout)
    piece: gl.constexpr = [SLAB, BLOCK_N // PIECES]
    pieces: gl.constexpr = [CONSUMERS * BUFFERS] + piece  # noqa: RUF005
    staging = gl.allocate_shared_memory(OUT, pieces, gl.NVMMASharedLayout.get_default_for(piece, OUT))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
    # The copy engine must see the barriers initialised before it signals them.
    fence_async_shared()
    release_successor()
    # Tuples are written inline: assigned to a name, their constexprs would become tensors.
    if CONSUMERS == 1:
        gl.warp_specialize([
            (_consume, (0, c_desc, c_ptr, stride_cm, stride_cn, part_step, a_ring, b_ring, staging, full, empty,
                        M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, CONSUMERS, GROUP_M, SPLIT_K, A_IS_KM,
                        B_IS_NK, PIECES, TMA_STORE, C_IS_NM, BUFFERS, LEAD)),
            (_produce, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
                        CONSUMERS, GROUP_M, SPLIT_K, A_IS_KM, B_IS_NK, TMA_STORE)),
        ], [1], [24])
    else:
        gl.warp_specialize([
            (_consume, (0, c_desc, c_ptr, stride_cm, stride_cn, part_step, a_ring, b_ring, staging, full, empty,
                        M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, CONSUMERS, GROUP_M, SPLIT_K, A_IS_KM,
                        B_IS_NK, PIECES, TMA_STORE, C_IS_NM, BUFFERS, LEAD)),
            (_consume, (1, c_desc, c_ptr, stride_cm, stride_cn, part_step, a_ring, b_ring, staging, full, empty,
                        M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, CONSUMERS, GROUP_M, SPLIT_K, A_IS_KM,
                        B_IS_NK, PIECES, TMA_STORE, C_IS_NM, BUFFERS, LEAD)),
            (_produce, (a_desc, b_desc, a_ring, b_ring, full, empty, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
                        CONSUMERS, GROUP_M, SPLIT_K, A_IS_KM, B_IS_NK, TMA_STORE)),
        ], [4, 1], [CONSUMER_REGISTERS, 24])


class _Prepared:
    """All that does not depend on the addresses, computed once."""

    def __init__(self, problem, config) -> None:
        m, n, k = problem.m, problem.n, problem.k
        a_is_km, b_is_nk = problem.a.major == "t", problem.b.major == "t"
        a, b, out = problem.a.strides[2:], problem.b.strides[2:], problem.out.strides[2:]
        if config.swapped:  # C^T = B^T A^T: the long side of a skinny product takes wgmma's 64 rows
            m, n = n, m
            a, b, out = b[::-1], a[::-1], out[::-1]
            a_is_km, b_is_nk = not b_is_nk, not a_is_km
        dtypes, repacked = (problem.dtype_a, problem.dtype_b), (config.repack_a, config.repack_b)
        if config.swapped:
            dtypes, repacked = dtypes[::-1], repacked[::-1]
        self.swapped = config.swapped
        slab = config.block_m // config.consumers

        def view(operand: int, rows: int, columns: int, pitch: int, *block: int) -> tuple[TmaView, MatrixCopy | None]:
            copy = MatrixCopy(dtypes[operand], 1, rows, columns, (pitch, 1)) if repacked[operand] else None
            return TmaView(rows, columns, copy.pitch if copy else pitch, *block), copy

        block_n, block_k = config.block_n, config.block_k
        lies_a = (k, m, a[1], block_k, slab) if a_is_km else (m, k, a[0], slab, block_k)
        lies_b = (n, k, b[1], block_n, block_k) if b_is_nk else (k, n, b[0], block_k, block_n)
        (self.a, a_copy), (self.b, b_copy) = view(0, *lies_a), view(1, *lies_b)
        self.place = placing(a_copy, b_copy, pdl=config.pdl)
        self.parts_shape, part_step, strides, c_rows = None, 0, out, m
        if config.split_k > 1:
            # By TMA with M up to whole tiles, in rows of whole lines, which it writes fastest; else as dense as C and
            # along the same axis.
            rows = triton.cdiv(m, config.block_m) * config.block_m if config.tma_store else m
            columns = line_pitch(n, 4) if config.tma_store else n
            self.parts_shape = (config.split_k, columns, rows) if config.swapped else (config.split_k, rows, columns)
            part_step = rows if config.tma_store else rows * columns
            strides = (1, rows) if config.swapped else (columns, 1)
            c_rows = config.split_k * rows
        self.out_shape, self.out_strides = (problem.m, problem.n), problem.out.strides[2:]
        self.c = TmaView(c_rows, n, strides[0], slab, config.block_n // config.pieces) if config.tma_store else None
        self.sum_dtype = torch.int32 if problem.dtype_a == "int8" else torch.float32
        items = triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n) * config.split_k
        self.launch = PreparedLaunch(
            matmul_hopper, (min(items, config.programs),), self._arguments, num_warps=config.num_warps,
            maxnreg=config.max_registers, launch_pdl=config.pdl,
        )  # fmt: skip
        self.sizes = (*strides, part_step, m, n, k)
        self.knobs = (
            config.block_m, config.block_n, config.block_k, config.stages, config.consumers, config.group_m,
            config.split_k, a_is_km, b_is_nk, config.pieces, config.tma_store,
        )  # fmt: skip
        self.more_knobs = (config.swapped, config.buffers, config.lead, 240)
        self.reduce = ReduceLaunch(pdl=config.pdl)

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        if self.swapped:
            a, b = b, a
        a, b = self.place(a, b)
        target = out
        if self.parts_shape is not None:
            target = torch.empty(self.parts_shape, dtype=self.sum_dtype, device=out.device)
        if self.c is None:
            self.launch(a, b, target)
        else:
            self.launch(a, b, target, target)
        if self.parts_shape is not None:
            self.reduce(target, out.as_strided(self.out_shape, self.out_strides))

    def _arguments(self, a: torch.Tensor, b: torch.Tensor, target: torch.Tensor, *again: torch.Tensor) -> tuple:
        """All of the kernel's, for the JIT."""
        return (
            self.a.descriptor(a), self.b.descriptor(b), self.c.descriptor(target) if self.c else None, target,
            *self.sizes, *self.knobs, GLUON_TYPES[target.dtype], *self.more_knobs,
        )  # fmt: skip


def prepare(problem, config, gpu) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """What runs `config` (a HopperConfig) on tensors that lie as `problem` says, call after call, on one device."""
    run = _Prepared(problem, config)
    if problem.batches == 1:
        return run

    def run_batch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        for outer in range(problem.batch[0]):
            for inner in range(problem.batch[1]):
                run(*(
                    x.as_strided((1,), (1,), x.storage_offset() + outer * matrix.strides[0] + inner * matrix.strides[1])
                    for x, matrix in ((a, problem.a), (b, problem.b), (out, problem.out))
                ))  # fmt: skip

    return run_batch


def launch(problem, config, gpu, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Run `config` on what lies as `problem` says."""
    prepared_on(prepare, problem, config, gpu, out.device)(a, b, out)


def code_object(problem, config, gpu) -> CodeObject:
    """The machine code of the multiplication that `launch` runs; repacking and reducing are kernels of their own."""
    run = _Prepared(problem, config)
    kind = TRITON_TYPES[problem.dtype_a]
    out = {"fp32": "fp32", "int8": "int32"}.get(problem.dtype_a, "fp32") if config.split_k > 1 else problem.dtype_out
    pointers = {
        "a_desc": run.a.signature(kind), "b_desc": run.b.signature(TRITON_TYPES[problem.dtype_b]),
        "c_ptr": f"*{TRITON_TYPES[out]}",
    }  # fmt: skip
    if run.c is not None:
        pointers["c_desc"] = run.c.signature(TRITON_TYPES[out])
    values = (None, None, None, None, *run.sizes, *run.knobs, GLUON_NAMES[TRITON_TYPES[out]], *run.more_knobs)
    arguments = dict(zip(matmul_hopper.arg_names, values, strict=True))
    signature, constants, divisible = specialise(matmul_hopper, arguments, pointers)
    return compile_kernel(
        matmul_hopper, gpu=gpu, signature=signature, constants=constants, num_warps=config.num_warps, attrs=divisible,
        options={"maxnreg": config.max_registers, "launch_pdl": config.pdl},
    )  # fmt: skip


def facts(problem, config, gpu) -> list[str]:
    """What sizes and strides made of the launch, as sentences."""
    run = _Prepared(problem, config)
    items = triton.cdiv(run.sizes[3], config.block_m) * triton.cdiv(run.sizes[4], config.block_n) * config.split_k
    lines = [f"{items} tiles of {config.block_m}x{config.block_n} on at most {config.programs} programs"]
    if config.swapped:
        lines.append("C's transpose is computed: N takes the 64 rows of wgmma")
    for name, repacked in (("A", config.repack_a), ("B", config.repack_b)):
        if repacked:
            lines.append(f"{name} is copied to a pitch of whole 128-byte lines first: TMA cannot read it where it lies")
    if config.split_k > 1:
        lines.append(f"K in {config.split_k} parts, summed in their order by a second launch")
    elif not config.tma_store:
        lines.append("C is written with masked stores: TMA cannot write it where it lies, or not transposed")
    return lines
