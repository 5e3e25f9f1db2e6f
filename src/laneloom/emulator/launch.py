"""Run a Program over a grid of workgroups: batches of waves, divergence, barriers, the start state of the registers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from ..errors import ArgumentError, DeadlockError, EmulationError
from ..isa.parse import EXEC, NULL, SCALAR_REGISTERS, TTMP, Listing
from .allocation import reachable_lds
from .buffer_access import scratch_place
from .cluster import BARRIERS, Clusters, release
from .counters import Counters, Profile
from .entry import SYSTEM_SGPRS, defined_at_entry, lane_numbers, number_lanes, user_sgpr_count, user_sgprs
from .flights import Flights, arrives, starts_copy
from .global_sync import GlobalWaveSync
from .heartbeat import Heartbeat
from .hostcall import Hostcall
from .kernarg import dispatch_packet, not_given, with_hidden_arguments
from .memory import GlobalMemory, LocalMemory, Region
from .named_barriers import NamedBarriers
from .observer import Enough, Observer
from .polling import awake, digest
from .program import Program
from .races import TrackedLocalMemory
from .shadow import Shadow, UndefinedBits
from .state import U32, Waves
from .strict import barrier_error, tracked_memory, unit_bytes

# One instruction should move enough data to pay for numpy's call, yet a few registers of all waves should stay in the
# cache: 512 waves of 32 lanes are 64 KiB a register. Measured: 256 is slower by a quarter on softmax, 1024 on matmul.
WAVES_PER_BATCH = 512
# A group that spins (a lock, a semaphore) must not starve the one that it waits for, whatever polling.py makes of it.
TURNS_BEFORE_OTHERS = 2000
# Turns of a batch without a wave ending after which the next batch starts beside it: it may be what this one waits for.
TURNS_BEFORE_NEXT_BATCH = 16_384
TURNS_BETWEEN_DEADLOCK_CHECKS = 4096
TURNS_BEFORE_BARRIERS = 512  #: in which nothing splits, ends or comes to a barrier
STACK_BYTES = 16_384  #: for calls through pointers and recursion
POISON = 0xFFFFFFFF  #: what nobody wrote reads as: NaN in every float format, -1 as an integer


@dataclass
class LaunchRecord:
    """What one launch did."""

    kernel: str
    gpu: str
    grid: tuple[int, int, int]
    workgroup_size: int
    lds_bytes: int
    wall_s: float = 0.0
    instructions: int = 0  #: wave-instructions executed, ordering hints included
    executed: dict[str, int] = field(default_factory=dict, repr=False)  #: wave-instructions per mnemonic
    asm: str = field(default="", repr=False)
    profile: Profile | None = field(default=None, repr=False)  #: None unless the launch was asked to count

    def matching(self, prefix: str) -> int:
        """Wave-instructions executed whose mnemonic starts with `prefix`."""
        return sum(n for name, n in self.executed.items() if name.startswith(prefix))

    @property
    def matrix_instructions(self) -> int:
        """Wave-instructions executed that multiply matrices."""
        return sum(self.matching(f"v_{kind}_") for kind in ("wmma", "swmmac", "mfma", "smfmac"))


def launch(
    program: Program,
    grid: Sequence[int],
    kernarg: bytes,
    *,
    workgroup_size: int | Sequence[int],
    lds_bytes: int = 0,
    regions: Sequence[Region] = (),
    scratch_bytes: int | None = None,
    seed: int = 0,
    profile: bool = False,
    observer: Observer | None = None,
    cluster: Sequence[int] = (1,),
    lds_drops: bool = False,
) -> LaunchRecord:
    """Execute `program` for every workgroup of `grid` (1 to 3 dimensions) on the memory of `regions`.

    kernarg: the kernel's argument block, as its metadata lays it out. workgroup_size: threads, x fastest.
    seed: 0 runs waves together and workgroups in order; another number runs the waves of a workgroup one after another
    between barriers, and the workgroups, in an order that it fixes.
    profile: also count, for each instruction, memory accesses, LDS bank conflicts and idle lanes (`record.profile`).
    observer: hears of every block and access in place of the profile, and chooses which workgroups run at all.
    cluster: workgroups along each dimension that run as one cluster (CDNA 5); the grid counts workgroups all the same.
    lds_drops: past the end of LDS loads give 0 and stores are dropped, as on a GPU; else both are OutOfBoundsError.
    A strict program also raises HazardError.
    Raises an EmulationError that names kernel, instruction, source line, workgroup, wave and lane.
    """
    grid3 = _three(grid, "grid")
    size3 = _three(workgroup_size if isinstance(workgroup_size, Sequence) else [workgroup_size], "workgroup_size")
    threads = size3[0] * size3[1] * size3[2]
    if not 1 <= threads <= 1024:
        raise ArgumentError(f"a workgroup has 1 to 1024 threads, got {threads}")
    for axis, groups, size in zip("xyz", grid3, size3, strict=True):
        if groups * size >= 1 << 32:  # more than a dispatch packet holds
            raise ArgumentError(f"grid: {groups} workgroups of {size} along {axis} are 2^32 threads or more")
    lds_bytes = max(lds_bytes, program.listing.directive("group_segment_fixed_size"))
    if lds_bytes > (most := program.gpu.lds_bytes):
        raise ArgumentError(f"{program.kernel} wants {lds_bytes} bytes of LDS; {program.gpu.name} has {most}")
    clusters = Clusters(_three(cluster, "cluster"), grid3, program.gpu)
    run = _Run(program, grid3, size3, kernarg, lds_bytes, regions, scratch_bytes, seed, profile, observer, clusters)
    run.lds_drops = lds_drops
    record = LaunchRecord(program.kernel, program.gpu.name, grid3, threads, lds_bytes, asm=program.asm)
    began = time.perf_counter()
    try:
        counts = run.all_batches()
    finally:
        run.heartbeat.end()
    record.wall_s = time.perf_counter() - began
    record.profile = run.counters.profile(counts) if isinstance(run.counters, Counters) else None
    for block, waves in zip(program.blocks, counts, strict=True):
        if waves:
            for ins in program.listing.instructions[block.first : block.last]:
                record.executed[ins.mnemonic] = record.executed.get(ins.mnemonic, 0) + waves
    record.instructions = run.instructions()
    return record


def scratch_of(listing: Listing) -> int:
    """Bytes of scratch for each lane: what the descriptor says, and room for calls whose depth nobody knows."""
    fixed = listing.directive("private_segment_fixed_size")
    return fixed + STACK_BYTES if listing.directive("uses_dynamic_stack") else fixed


def _three(values: Sequence[int], name: str) -> tuple[int, int, int]:
    sizes = [int(v) for v in values]
    if not 1 <= len(sizes) <= 3 or any(v < 0 for v in sizes):
        raise ArgumentError(f"{name} takes one to three sizes, none negative; got {tuple(values)}")
    x, y, z = sizes + [1] * (3 - len(sizes))
    return x, y, z


class _Run:
    """One launch while it runs."""

    def __init__(
        self, program, grid, size, kernarg, lds_bytes, regions, scratch_bytes, seed, profile, observer, clusters
    ):  # fmt: skip
        self.program: Program = program
        self.grid, self.size, self.lds_bytes = grid, size, lds_bytes
        listing = program.listing
        self.scratch = scratch_of(listing) if scratch_bytes is None else scratch_bytes
        self.threads = size[0] * size[1] * size[2]
        self.waves_per_group = -(-self.threads // program.lanes)
        calls_host = any(a.kind == "hidden_hostcall_buffer" for a in program.hidden_arguments)
        self.host = Hostcall() if calls_host else None
        sync = GlobalWaveSync(groups := grid[0] * grid[1] * grid[2])
        self.kernarg = with_hidden_arguments(kernarg, program, grid, size, lds_bytes, self.host, sync)
        self.packet = dispatch_packet(grid, size, self.scratch, lds_bytes)
        everything = [
            *regions,
            Region("kernel argument block", self.kernarg.ctypes.data, self.kernarg.nbytes, ours=True),
            Region("dispatch packet", self.packet.ctypes.data, self.packet.nbytes, ours=True),
            sync.region,
            *program.regions,
            *([self.host.region] if self.host else []),
        ]
        if program.strict:
            self.memory = tracked_memory(everything, program.listing, program.gpu.major, program.lanes, groups)
        else:
            self.memory = GlobalMemory(everything)
        self.memory.host, self.memory.clusters, self.clusters = self.host, clusters, clusters
        self.memory.named, self.memory.sync = NamedBarriers(self.waves_per_group), sync
        self.memory.not_given = not_given(kernarg, program, self.kernarg.ctypes.data)
        self.defined_s = defined_at_entry(listing, program.gpu, self.memory.not_given)
        clusters.begin(self.waves_per_group)
        self.observer: Observer | None = observer
        self.chosen = observer.begin(program, groups, self.waves_per_group) if observer else np.arange(groups)
        self.counters: Counters | Observer | None = observer or (Counters(program) if profile else None)
        if self.counters:
            self.counters.watch(self.memory)
        self.counts = [0] * len(program.blocks)
        self.heartbeat = Heartbeat(f"{program.kernel} on {program.gpu.name}", len(self.chosen))
        self.started = 0  #: workgroups
        self.order = np.random.default_rng(seed) if seed else None
        self.turn: np.ndarray | None = None  #: with a seed: when each wave of a workgroup comes, until the next barrier
        self.lds_drops = False
        self.ended: set[int] = set()  #: strict mode: workgroups of which a wave has ended

    def all_batches(self) -> list[int]:
        """Execute every workgroup; wave-executions per block."""
        together = self.clusters.count
        per_batch = max(1, WAVES_PER_BATCH // self.waves_per_group // together) * together
        if together > 1:
            number = self.clusters.together(self.chosen, self.order)
        else:
            number = self.chosen if self.order is None else self.order.permutation(self.chosen)
        batches = (self._start(number[first : first + per_batch]) for first in range(0, len(number), per_batch))
        with np.errstate(all="ignore"):
            for batch in batches:
                with suppress(Enough):
                    self._schedule(self._one_by_one(batch), batches)
        return self.counts

    def instructions(self) -> int:
        """Wave-instructions executed so far."""
        blocks = self.program.blocks
        return sum(n * (block.last - block.first) for block, n in zip(blocks, self.counts, strict=True))

    # -- start state ---------------------------------------------------------------------------------------------------

    def _one_by_one(self, batch: Waves) -> list[Waves]:
        """With a seed, one group for each place in the workgroup, so that they can run in any order."""
        if self.order is None or self.waves_per_group == 1:
            return [batch]
        self.turn = self.order.permutation(self.waves_per_group)
        place = batch.ids % self.waves_per_group
        return [batch.split(place == k)[0] for k in range(self.waves_per_group)]

    def _start(self, groups: np.ndarray) -> Waves:
        p, listing = self.program, self.program.listing
        n = len(groups) * self.waves_per_group
        self.started += len(groups)
        V = np.full((p.vgprs, n, p.lanes), POISON, U32)
        S = np.full((SCALAR_REGISTERS, n), POISON, U32)
        S[NULL] = 0
        group = np.repeat(groups, self.waves_per_group)
        wave = np.arange(n) % self.waves_per_group
        ids = group * self.waves_per_group + wave
        x = (group % self.grid[0]).astype(U32)
        y = (group // self.grid[0] % self.grid[1]).astype(U32)
        z = (group // (self.grid[0] * self.grid[1])).astype(U32)
        user_sgprs(S, listing, self.kernarg, self.packet.ctypes.data, self.scratch)
        if p.gpu.major == 12:  # RDNA 4 hands the workgroup's identity over in trap registers
            place, S[TTMP + 7], S[TTMP + 9] = self.clusters.registers(x, y, z)
            S[TTMP + 8] = (wave.astype(U32) & U32(31)) << U32(25)
            if p.gpu.is_cdna5:
                S[TTMP + 6] = place
        else:
            at = user_sgpr_count(listing)
            for field, value in zip(SYSTEM_SGPRS, (x, y, z, 0, scratch_place(ids, self.scratch)), strict=True):
                if listing.directive(f"system_sgpr_{field}", int(field == "workgroup_id_x")):
                    S[at] = value
                    at += 1
        thread = wave[:, None] * p.lanes + np.arange(p.lanes)
        number_lanes(V, thread, self.size, listing, p.gpu)
        exists = np.packbits(thread < self.threads, axis=1, bitorder="little").view(U32)
        S[EXEC + 1] = 0
        for k in range(p.lanes // 32):
            S[EXEC + k] = exists[:, k]
        # What lies between the size asked for and the size given out is memory too, for those that may go beyond.
        lds_bytes = reachable_lds(listing, p.gpu, self.lds_bytes, self.lds_drops)
        if p.strict:
            unit = unit_bytes(listing, ("ds_", "flat_", "global_load_async"))
            lds = TrackedLocalMemory(len(groups), lds_bytes, unit)
            if any(starts_copy(ins.name) for ins in listing.instructions):
                by_wave = any(arrives(ins.name) for ins in listing.instructions)
                lds.flights = Flights(lds.tags, unit, self.waves_per_group, by_wave)
        else:
            lds = LocalMemory(len(groups), lds_bytes)
        lds.drops = self.lds_drops
        lds.bytes[...] = 0xFF
        lds.counters = self.counters
        base = (np.arange(n) // self.waves_per_group * lds.stride)[:, None]
        private = np.zeros((n, p.lanes, self.scratch), np.uint8) if self.scratch else None
        waves = Waves(V, S, np.zeros(n, bool), ids, base, p.lanes, self.memory, lds, True, private)
        waves.block, waves.waves_per_group = p.first_block, self.waves_per_group
        if p.strict:
            waves.shadow = Shadow.start(waves, self.defined_s, max(lane_numbers(listing, p.gpu), 1))
            waves.undefined_lds = UndefinedBits(len(groups), lds_bytes)
            waves.undefined_lds.drops = self.lds_drops
        return waves

    def name_wave(self, wave: int) -> str:
        """A wave, as messages name it."""
        group = wave // self.waves_per_group
        x, y, z = group % self.grid[0], group // self.grid[0] % self.grid[1], group // (self.grid[0] * self.grid[1])
        return f"workgroup ({x}, {y}, {z}), wave {wave % self.waves_per_group}"

    # -- divergence and barriers ---------------------------------------------------------------------------------------

    def _schedule(self, groups: list[Waves], batches: Iterator[Waves]) -> None:
        """The group furthest behind runs first, so that groups which took different ways meet again and merge."""
        streak = turns = alone = 0
        seen: set[bytes] = set()
        while groups:
            ready = [g for g in groups if not g.at_barrier]
            if not ready:
                self._release(groups, batches)
                continue
            if len(ready) > 1:
                groups, ready = self._merge(groups, ready)
            able = awake(ready)  #: where none is, what they poll for stands behind a barrier or in the next batch
            g = min(able or ready, key=self._when)
            streak = streak + 1 if len(ready) > 1 else 0
            if streak > TURNS_BEFORE_OTHERS:
                others = sorted(ready, key=self._when)[1:]  # each in turn: any may be what the others poll for
                g = others[streak % len(others)]
                streak = streak if streak < 2 * TURNS_BEFORE_OTHERS else 0
            if g.block >= len(self.counts):
                raise EmulationError(f"{self.program.kernel}: {self.name_wave(int(g.ids[0]))} runs past the code's end")
            self.counts[g.block] += g.count
            if self.observer:
                self.observer.enter(g)
            after = self.program.run_block(g, self.name_wave, self.counters)
            g.polling.watch(g)
            if self.heartbeat.is_due:
                self.heartbeat.beat(self.started, self.instructions())
            turns = turns + 1 if sum(part.count for part in after) == g.count else 0
            alone = alone + 1 if len(after) == 1 and not g.at_barrier else 0
            if alone >= (TURNS_BEFORE_BARRIERS if able else 1):  # it may poll for what a complete barrier holds back
                self._let_go(release(groups, self.waves_per_group))
                alone = 0
            if not after and self.program.strict and not g.closed:
                self.ended.update((g.ids // self.waves_per_group).tolist())
            if len(after) != 1:
                groups.remove(g)
                for part in after:
                    part.closed = self._is_closed(part)
                groups += after
                if self.counters and after:
                    self.counters.splits += 1
            due = turns >= TURNS_BEFORE_NEXT_BATCH and turns % TURNS_BETWEEN_DEADLOCK_CHECKS == 0
            if (due or not able) and (more := next(batches, None)) is not None:
                groups.append(more)
                turns = 0
            elif due:
                self._check_progress(groups, seen)

    def _when(self, g: Waves) -> tuple[int, int]:
        """Whose turn it is: with a seed one place of the workgroup after another, else the group furthest behind."""
        return (0 if self.turn is None else int(self.turn[g.ids[0] % self.waves_per_group]), g.block)

    def _release(self, groups: list[Waves], batches: Iterator[Waves]) -> None:
        """Every wave that still lives waits at a barrier; ended waves no longer count, so all may go on.

        With other barriers, only those whose barrier is complete; for one of the launch it may take the next batch.
        """
        simple = all(g.at_barrier == "workgroup" for g in groups)
        free = groups if simple else release(groups, self.waves_per_group)
        if not free:
            if (more := next(batches, None)) is not None:
                return groups.append(more)
            waiting = next((g for g in groups if g.at_barrier != "workgroup"), groups[0])
            ins = self.program.listing.instructions[self.program.blocks[waiting.block].first - 1]
            where = self.name_wave(int(waiting.ids[0]))
            raise DeadlockError(
                f"{self.program.kernel}: {where} waits for ever at {BARRIERS[waiting.at_barrier]}, which too few "
                f"have signalled; line {ins.line}: {ins.text!r}"
            )
        self._let_go(free)
        if self.order is not None:
            self.turn = self.order.permutation(self.waves_per_group)

    def _let_go(self, free: list[Waves]) -> None:
        for g in free:
            self.clusters.left(g.ids)
            g.at_barrier, held_by = "", g.at_barrier
            if self.ended and held_by != "launch":
                for wave in g.ids:
                    if int(wave) // self.waves_per_group in self.ended:
                        ins = self.program.listing.instructions[self.program.blocks[g.block].first - 1]
                        raise barrier_error(self.program.kernel, self.name_wave(int(wave)), ins)

    def _check_progress(self, groups: list[Waves], seen: set[bytes]) -> None:
        """Stop when the whole state of all waves and of what they wrote has been here before: it will come for ever."""
        state = digest(groups)
        if state in seen:
            first = min(groups, key=lambda w: w.block)
            ins = self.program.listing.instructions[self.program.blocks[first.block].first]
            raise DeadlockError(
                f"{self.program.kernel}: {self.name_wave(int(first.ids[0]))} loops for ever without changing anything, "
                f"near line {ins.line}: {ins.text!r}" + (f" ({ins.source})" if ins.source else "")
            )
        seen.add(state)

    def _merge(self, groups: list[Waves], ready: list[Waves]) -> tuple[list[Waves], list[Waves]]:
        at: dict[tuple, list[Waves]] = {}
        for g in ready:  # batches keep their LDS apart, a seed the places in a workgroup, strict mode its callers
            place = 0 if self.turn is None else int(g.ids[0]) % self.waves_per_group
            at.setdefault((g.block, id(g.lds), place, g.calls), []).append(g)
        if len(at) == len(ready):
            return groups, ready
        merged = []
        for parts in at.values():
            if len(parts) == 1:
                merged.append(parts[0])
                continue
            whole = Waves.merge(parts)
            whole.closed = self._is_closed(whole)
            merged.append(whole)
        return [g for g in groups if g.at_barrier] + merged, merged

    def _is_closed(self, g: Waves) -> bool:
        """Whether the group holds every wave of the workgroups that it touches."""
        if self.waves_per_group == 1:
            return True
        _, held = np.unique(g.ids // self.waves_per_group, return_counts=True)
        return bool((held == self.waves_per_group).all())
