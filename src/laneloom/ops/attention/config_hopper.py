"""Hopper's own schedule: its knobs, what it can do, and which knobs a problem gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...gpu import Gpu
from .problem import HALVES, AttentionProblem

_WIDEST = 256
_MOST_PARTS = 64  #: of the keys
_LINE_BYTES = 2 * 64 * 4  #: lse and delta of a block of queries
_PIECES_BYTES = 2 * 64 * 16  #: the same as operands of the matrix units
_ONES_BYTES = 64 * 128  #: what those are multiplied by
_ZEROS_BYTES = 64 * 16  #: half of them
_LEAST_SCALE = 1e-7  #: of fp16: the logarithm of the number of keys over it stays below 2**31
PROCESSORS = 132  #: of an H100 and an H200
#: of a consumer's and of the producer's threads, by consumers and programs of a multiprocessor
REGISTERS = {(1, 1): (240, 40), (2, 1): (232, 40), (3, 1): (160, 32), (1, 2): (208, 40), (1, 3): (120, 40)}
_OTHER_REGISTERS = 28  #: of a thread, beside scores, weights and sums: with less some are spilled, or nothing compiles
BARRIER_BYTES = 2048  #: mbarriers, and what aligning the tiles may cost
#: tanh is right to 2**-22 of its largest value: a larger softcap wants small ones right to more
_MOST_SOFTCAP = 128
_SLOPES = (1e-30, 1e30)  #: scale / softcap, whose product with a score must be a number


def chunks(d: int) -> int:
    """Pieces of 64 elements, 128 bytes, that hold a row of d elements."""
    return -(-d // 64)


def why_not_wgmma(
    problem: Any, gpu: Gpu, widest: int, *, operands: str = "q, k and v", values: str = "v"
) -> str | None:
    """What every schedule by wgmma wants: the instruction, 16-bit operands, head dimensions up to `widest`."""
    if gpu.matrix_instructions != "wgmma":
        return f"the kernel multiplies by wgmma, {gpu.name} ({gpu.family}) has none"
    if problem.dtype not in HALVES:
        return f"{operands} must be fp16 or bf16, got {problem.dtype}"
    for name, d in (("D", problem.d), (f"D of {values}", problem.d_v)):
        if not 16 <= d <= widest or d % 8:
            return f"{name} must be a multiple of 8 from 16 to {widest}, got {d}"
    if problem.softcap > _MOST_SOFTCAP:
        return f"softcap: up to {_MOST_SOFTCAP}, got {problem.softcap}"
    if problem.softcap and not _SLOPES[0] <= abs(problem.scale / problem.softcap) <= _SLOPES[1]:
        return f"scale / softcap: from {_SLOPES[0]} to {_SLOPES[1]}, got {problem.scale} and {problem.softcap}"
    return None


def why_too_large(need: int, gpu: Gpu) -> str | None:
    """Why a workgroup cannot have so many bytes of shared memory, if it cannot."""
    if need <= gpu.lds_bytes:
        return None
    return f"the tiles need {need} bytes of shared memory, a workgroup of {gpu.name} has {gpu.lds_bytes}"


class Named:
    """A config whose knobs are its name."""

    schedule: str

    @property
    def text(self) -> str:
        """The config as one word."""
        knobs = [f"{name}={value}" for name, value in vars(self).items() if name not in ("role", "schedule")]
        return f"{self.schedule}:" + ",".join(knobs)


class Warpgroups(Named):
    """What the configs of forward schedules share whose tiles are 64 queries for each warpgroup that multiplies."""

    consumers: int
    resident: int = 1  #: programs of a multiprocessor

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return 64 * self.consumers

    @property
    def num_warps(self) -> int:
        return 4 * (self.consumers + 1)

    def tiles(self, problem: AttentionProblem) -> int:
        """Tiles of work: persistent programs share them."""
        return problem.batch * problem.heads * -(-problem.queries // self.rows)


@dataclass(frozen=True, kw_only=True)
class HopperForwardConfig(Warpgroups):
    """kernels/hopper_forward.cu: warpgroups of 64 queries, keys and values streamed by TMA, products by wgmma."""

    role: Literal["forward"] = "forward"
    schedule: str = "hopper_forward"  #: the kernel file's name
    columns: int  #: keys of a step
    consumers: int = 2  #: warpgroups that multiply
    stages: int = 2  #: blocks of keys, and of values, in shared memory
    q_buffers: int = 1  #: tiles of queries in shared memory: with 2 the next one comes while this one is worked on
    ping_pong: bool = True  #: consumers issue products in turn
    q_in_registers: bool = False  #: queries are operands from registers, not from shared memory
    threshold: int = 8  #: a row's reference maximum moves when the weights would exceed 2**threshold
    resident: int = 1  #: programs of a multiprocessor
    early: bool = False  #: the next tile's first scores are issued before this one's output is written
    parts: int = 1  #: of the keys, of a tile each; a second launch adds up what they found

    @property
    def registers(self) -> tuple[int, int]:
        """Of a consumer's and of the producer's threads."""
        return REGISTERS[self.consumers, self.resident]

    def lds_bytes(self, problem: AttentionProblem) -> int:
        """Dynamic shared memory: queries (later the output), rings of keys and values."""
        slab = max(chunks(problem.d), chunks(problem.d_v)) * 64 * 128
        ring = self.stages * self.columns * 128 * (chunks(problem.d) + chunks(problem.d_v))
        return self.q_buffers * self.consumers * slab + ring + 1024

    def why_invalid(self, problem: AttentionProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if why := why_not_wgmma(problem, gpu, _WIDEST):
            return why
        if not problem.scale > 0:
            return f"the maximum is taken before the scale, which must be above 0, got {problem.scale}"
        if not 1 <= self.parts <= _MOST_PARTS:
            return f"parts: expected 1 to {_MOST_PARTS}, got {self.parts}"
        if self.columns % 16 or not 16 <= self.columns <= 256 or self.stages < 1:
            return f"columns must be a multiple of 16 up to 256, stages at least 1, got {self.columns}, {self.stages}"
        if (self.consumers, self.resident) not in REGISTERS:
            return f"resident: 1 with consumers 1 to 3, up to 3 with 1, got {self.resident} with {self.consumers}"
        if self.early and not (self.ping_pong and self.consumers == 2 and self.q_buffers == 2):
            return f"early: two consumers in turn with two buffers of queries, got {self.text}"
        registers = self.columns // 2 + problem.d_v // 2 + self.columns // 4
        registers += problem.d // 4 if self.q_in_registers else 0
        if problem.softcap:
            if self.consumers > 2:
                return "capping scores takes registers that three consumers do not have"
            registers += self.columns // 8
        if registers > self.registers[0] - _OTHER_REGISTERS:
            return f"scores, weights and sums need {registers} registers of {self.registers[0]}"
        begun, sums = 65536 // (32 * self.num_warps * self.resident), max(self.columns, problem.d_v) // 2
        if sums > begun - _OTHER_REGISTERS + 2:
            return f"an instruction has sums in {sums} registers, of {begun} that a thread begins with"
        return why_too_large(self.resident * (self.lds_bytes(problem) + BARRIER_BYTES), gpu)


class KeyTiles(Named):
    """What the configs of the backward share: tiles of 128 keys."""

    sharers: int
    cluster: int

    rows = 128  #: keys of a tile

    def tiles(self, problem: AttentionProblem) -> int:
        """Tiles of work, of every sharer: persistent programs share them."""
        return problem.batch * problem.kv_heads * self.sharers * -(-problem.keys // self.rows)

    def why_not(self, problem: AttentionProblem, gpu: Gpu, widest: int) -> str | None:
        """What all of them want."""
        if why := why_not_wgmma(problem, gpu, widest):
            return why
        if not problem.scale > 0:
            return f"what the mask hides is -infinity before the scale, which must be above 0, got {problem.scale}"
        if self.sharers < 1 or problem.group % self.sharers:
            return f"sharers must divide the {problem.group} heads of queries of a head of keys, got {self.sharers}"
        return None


@dataclass(frozen=True, kw_only=True)
class HopperBackwardConfig(KeyTiles):
    """kernels/hopper_backward.cu: two warpgroups of 64 keys visit blocks of 64 queries, and compute dQ as well."""

    role: Literal["backward"] = "backward"
    schedule: str = "hopper_backward"  #: the kernel file's name
    stages: int = 3  #: blocks of queries, and of their gradients, in shared memory
    sharers: int = 1  #: programs that have a part of a group of query heads each; their dK and dV are added up after

    cluster = 1  #: CTAs that share a tile
    num_warps = 12
    widest = 128  #: D, and D of V
    #: the kernel's macros beside the usual ones
    constants = (("CONSUMER_REGISTERS", 240), ("PRODUCER_REGISTERS", 24))
    pieces = True  #: lse and delta are operands of the matrix units

    def lds_bytes(self, problem: AttentionProblem) -> int:
        """Dynamic shared memory: keys and values, two tiles of dS, ones, rings of queries and gradients."""
        both = chunks(problem.d) + chunks(problem.d_v)
        return (self.rows * both + 2 * self.rows + self.stages * 64 * both) * 128 + _ONES_BYTES + 1024

    def why_invalid(self, problem: AttentionProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if why := self.why_not(problem, gpu, self.widest):
            return why
        if problem.softcap:
            return "lse is added to the scores before they would be capped"
        if problem.dtype == "fp16" and problem.scale < _LEAST_SCALE:
            return f"lse / scale must be an fp16 number times 2**15, so that scale is at least {_LEAST_SCALE}"
        if self.stages < 1:
            return f"stages must be at least 1, got {self.stages}"
        small = _PIECES_BYTES * self.stages + _ZEROS_BYTES + BARRIER_BYTES // 4
        return why_too_large(self.lds_bytes(problem) + small, gpu)


@dataclass(frozen=True, kw_only=True)
class HopperBackwardNarrowConfig(HopperBackwardConfig):
    """kernels/hopper_backward_narrow.cu: a third warpgroup computes dQ."""

    schedule: str = "hopper_backward_narrow"  #: the kernel file's name
    stages: int = 4  #: blocks of queries, and of their gradients, in shared memory

    num_warps = 16
    widest = 64
    constants = (("CONSUMER_REGISTERS", 208), ("ADDER_REGISTERS", 72), ("PRODUCER_REGISTERS", 24))


@dataclass(frozen=True, kw_only=True)
class HopperBackwardWideConfig(KeyTiles):
    """kernels/hopper_backward_wide.cu: 64 keys for each of two CTAs, a warpgroup for dK, for dV, for scores and dQ."""

    role: Literal["backward"] = "backward"
    schedule: str = "hopper_backward_wide"  #: the kernel file's name
    stages: int = 2  #: blocks of queries in shared memory
    g_stages: int = 1  #: of their gradients
    sharers: int = 1  #: as in HopperBackwardConfig

    cluster = 2  #: CTAs that share a tile
    num_warps = 16
    pieces = False

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """The kernel's macros beside the usual ones."""
        registers = (("SCORER_REGISTERS", 152), ("SUM_REGISTERS", 168), ("PRODUCER_REGISTERS", 24))
        return (("G_STAGES", self.g_stages), *registers)

    def lds_bytes(self, problem: AttentionProblem) -> int:
        """Dynamic shared memory: keys and values, keys of the other CTA, P and dS, rings of queries and gradients."""
        d, d_v = chunks(problem.d), chunks(problem.d_v)
        blocks = d + d_v + (d + 1) // 2 + 6 + self.stages * d + self.g_stages * d_v
        return blocks * 64 * 128 + 1024

    def why_invalid(self, problem: AttentionProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if why := self.why_not(problem, gpu, _WIDEST):
            return why
        if min(self.stages, self.g_stages) < 1:
            return f"stages and g_stages must be at least 1, got {self.stages} and {self.g_stages}"
        return why_too_large(self.lds_bytes(problem) + _LINE_BYTES * self.stages + BARRIER_BYTES // 4, gpu)
