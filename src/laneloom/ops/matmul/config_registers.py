"""What can be chosen of FP32 products on Hopper's tensor cores with an operand in registers, and what is. Pure.

The model: CTAs multiply tiles, or parts of K of them, in rounds at a pace that the tile decides; a second launch adds
parts up. docs/hopper-gemm.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ...gpu import Gpu
from .config import why_not_grouped
from .config_cluster import ClusterConfig
from .config_hopper import MOST_LAUNCHES, TMA_BYTES, tma_reads, tma_writes, why_not_walked
from .config_shares import TiledConfig
from .problem import MatmulProblem

PIECES = {"tf32": 1, "3xtf32": 2}  #: of each operand, by precision
_SLICE_BYTES = 128
_MOST_STAGES = 8
_COPY_S = {False: {"copy_b": True}, True: {"copy_a": True}}  #: by whether C is turned
_LEAST_SLICES = 4  #: of a part of K
_MOST_ROUNDS = 3  #: of CTAs with parts of K


@dataclass(frozen=True)
class _Model:
    """What a product takes in one precision. Times in us."""

    pace: dict[tuple[int, int], float]  #: clocks of a slice, by rows and columns of D in a tile
    turned: float  #: what a slice takes longer whose S is turned
    parted: float  #: and one of a part of K
    launch: float
    tile: float  #: a tile's first slice and its last store
    store_kb: float  #: of a tile
    sums: float  #: the launch that adds up parts of K
    summed_per_us: float  #: bytes of parts
    copy: float  #: a launch that copies operands
    copied_per_us: float  #: bytes that it reads and writes
    memory_per_us: float  #: bytes of device memory
    #: of `hopper_cluster`, on its own model's estimate; for each 10^6 elements that it copies, and where it copies any
    cluster: float
    cluster_copied: float
    cluster_copy: float


_CLOCKS_PER_US = 1755
_CLUSTER_PARTS = 1.21  #: what `hopper_cluster` takes longer than its model says where a cluster has parts of K
_TURN_CLOCKS = 8.4  #: of a slice of S, for each column of D: three warps cannot turn it faster
#: fitted on one H100, 2026-11-25, to 730 pairs of product and config each, 68 products: what it prefers is slower than
#: the fastest by 1.5% and 0.9%. Tiles in the order in which equal costs are resolved
_MODELS = {
    "tf32": _Model(
        {(128, 256): 1104, (128, 192): 810, (128, 128): 667, (128, 96): 690, (128, 64): 614, (128, 32): 446,
         (128, 16): 451, (64, 256): 849, (64, 192): 609, (64, 128): 484, (64, 96): 419, (64, 64): 319, (64, 32): 361,
         (64, 16): 234},
        1.05, 1.079, 1.566, 0.2215, 0.01205, 1.947, 2.059e6, 1.389, 2.006e6, 2.632e6, 1.035, 3.866, 0.677,
    ),
    "3xtf32": _Model(
        {(128, 128): 2044, (128, 96): 1618, (128, 64): 1242, (128, 32): 924, (128, 16): 773, (64, 128): 1538,
         (64, 96): 1198, (64, 64): 880, (64, 32): 594, (64, 16): 536},
        1.123, 0.9463, 1.388, 0.5622, 0.003221, 1.623, 1.769e6, 1.309, 2.037e6, 2.455e6, 0.8204, 8.579, 2.593,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RegistersConfig(TiledConfig):
    """kernels/hopper_registers.cu: D = R S^T with R in registers. R is A and C = D, or B, and C is D's transpose."""

    schedule: str = "hopper_registers"
    num_warps: int = 4  #: of one warpgroup that multiplies
    stages: int  #: K-slices of 128 bytes in the ring
    turned: bool = False  #: R is B
    split_k: int = 1  #: parts of K, which a second launch adds up
    programs: int = 132  #: most CTAs that are launched; each multiplies several tiles
    copy_a: bool = False  #: copy A first, contiguous along K
    copy_b: bool = False  #: copy B first, contiguous along K
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of D in one tile."""
        return (self.block_n, self.block_m) if self.turned else (self.block_m, self.block_n)

    def ctas(self, problem: MatmulProblem) -> int:
        """CTAs that are launched."""
        return min(self.programs, self.tiles(problem) * self.split_k)

    @property
    def one_by_one(self) -> bool:
        """Whether a batch goes product by product: parts of K are of one."""
        return self.split_k > 1

    def by_tma(self, problem: MatmulProblem) -> bool:
        """Whether TMA writes C, or its parts: 32 columns of D at a time, or as many lines of C."""
        return (self.split_k > 1 or tma_writes(problem)) and (self.turned or self.tile[1] >= 32)

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA."""
        rows, columns = self.tile
        pieces = PIECES[problem.precision]
        stage = (rows + pieces * columns) * _SLICE_BYTES + 24
        return self.stages * stage + (rows // 64 * 2 * 8192 if self.by_tma(problem) else 0)

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_registers: needs wgmma and TMA, {gpu.name} has {gpu.matrix_instructions}"
        if why := why_not_grouped(self.schedule, problem):
            return why
        dtypes = {problem.dtype_a, problem.dtype_b, problem.dtype_out, problem.dtype_acc}
        if dtypes != {"fp32"} or problem.precision not in PIECES or problem.epilogue:
            return f"hopper_registers: bare products of fp32 in precision tf32 or 3xtf32, got {problem.key}"
        for name, copied, along_k in (
            ("a", self.copy_a, problem.a.major == "n"), ("b", self.copy_b, problem.b.major == "t"),
        ):  # fmt: skip
            if not copied and not tma_reads(problem, name):
                return f"hopper_registers: TMA needs {name} at a base and a pitch of {TMA_BYTES} bytes, or copied"
            if not copied and not along_k and (name == "b") != self.turned and self.tile[1] % 32:
                return f"hopper_registers: turns {name} in panels of 32 columns of D, or has it copied along K first"
        rows, columns = self.tile
        tiles = _MODELS[problem.precision].pace
        if (rows, columns) not in tiles or self.num_warps != 4 or self.block_k != 32:
            words = ", ".join(f"{m}x{n}" for m, n in tiles)
            return f"hopper_registers: tiles of D of {words} in {problem.precision}, got {rows}x{columns}"
        if self.split_k > 1 and problem.batches > MOST_LAUNCHES:
            return f"hopper_registers: parts of K of at most {MOST_LAUNCHES} products, got {problem.batches}"
        if self.split_k > 1 and self.split_k * problem.m * (problem.n + 3) >= 1 << 31:
            return f"hopper_registers: {self.split_k} parts of C have 2^31 elements or more"
        each = self.slices(problem)
        if self.split_k < 1 or (self.split_k - 1) * each * self.block_k >= max(problem.k, 1):
            return f"hopper_registers: {self.split_k} parts of {each} slices leave one of them none of K = {problem.k}"
        if self.stages < 2 or self.programs < 1:
            return f"hopper_registers: at least 2 stages and a program, got {self.stages} and {self.programs}"
        if why := why_not_walked(self, problem.m, problem.n, problem.k):
            return why
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_registers: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None


def along_k(problem: MatmulProblem, config: RegistersConfig) -> tuple[bool, bool]:
    """Whether R and S reach shared memory in lines along K."""
    a, b = config.copy_a or problem.a.major == "n", config.copy_b or problem.b.major == "t"
    return (b, a) if config.turned else (a, b)


def _copied(problem: MatmulProblem, config: RegistersConfig | ClusterConfig) -> int:
    """Elements that are copied ahead."""
    return (config.copy_a * problem.m + config.copy_b * problem.n) * problem.k * problem.batches


def estimate_us(problem: MatmulProblem, config: RegistersConfig) -> float:
    """The model's time: what the SM with the longest share does, or the memory, and the copies ahead."""
    if problem.batches > 1 and config.one_by_one:
        return problem.batches * estimate_us(problem.one_product(), config)
    model, area_kb = _MODELS[problem.precision], config.block_m * config.block_n * 4 / 1000
    around_us = model.tile + model.store_kb * area_kb
    rounds = -(-config.tiles(problem) * config.split_k // config.programs)
    clocks = model.pace[config.tile]
    if not along_k(problem, config)[1]:
        clocks = max(clocks * model.turned, _TURN_CLOCKS * config.tile[1])
    clocks *= model.parted if config.split_k > 1 else 1
    time_us = rounds * (config.slices(problem) * clocks / _CLOCKS_PER_US + around_us)
    time_us = model.launch + (time_us**4 + (problem.bytes / model.memory_per_us) ** 4) ** 0.25
    if config.split_k > 1:
        time_us += model.sums + 4 * config.split_k * problem.m * problem.n / model.summed_per_us
    copied = _copied(problem, config)
    return time_us + (model.copy + 8 * copied / model.copied_per_us if copied else 0.0)


def cluster_us(problem: MatmulProblem, config: ClusterConfig, estimate: float) -> float:
    """What `hopper_cluster` takes of FP32, by its model's estimate, which was fitted to 16-bit types."""
    model = _MODELS[problem.precision]
    copied = _copied(problem, config)
    estimate *= model.cluster * (_CLUSTER_PARTS if config.cluster_k > 1 else 1)
    time_us = (estimate**4 + (problem.bytes / model.memory_per_us) ** 4) ** 0.25
    return time_us + (model.cluster_copy + model.cluster_copied * copied / 1e6 if copied else 0.0)


def _parts(problem: MatmulProblem, config: RegistersConfig, gpu: Gpu) -> list[int]:
    """Parts of K that fill one round of CTAs or a few, and none."""
    slices, found = -(-problem.k // config.block_k), {1}
    tiles = config.tiles(problem) // problem.batches
    for rounds in range(1, _MOST_ROUNDS + 1):
        parts = min(rounds * gpu.compute_units // tiles, slices // _LEAST_SLICES)
        if parts > 1:
            found.add(-(-slices // -(-slices // parts)))  # none of them empty
    return sorted(found)


def registers_configs(problem: MatmulProblem, gpu: Gpu) -> Iterator[RegistersConfig]:
    """Every tile, upright and turned, with and without parts of K that fill rounds of CTAs, with the stages that fit;
    what TMA or wgmma does not read, copied."""
    if problem.precision not in PIECES:
        return
    for (rows, columns), turned in product(_MODELS[problem.precision].pace, (False, True)):
        m, n = (problem.n, problem.m) if turned else (problem.m, problem.n)
        if rows >= 2 * max(m, 64) or columns >= 2 * max(n, 16):
            continue  # half of it would be empty
        config = RegistersConfig(
            block_m=columns if turned else rows, block_n=rows if turned else columns, block_k=32, stages=_MOST_STAGES,
            turned=turned, programs=gpu.compute_units,
            copy_a=not tma_reads(problem, "a"), copy_b=not tma_reads(problem, "b"),
        )  # fmt: skip
        # S is turned on its way or, along K first, copied.
        copied = [config] if along_k(problem, config)[1] else [config, config.with_knobs(**_COPY_S[turned])]
        for whole, parts in product(copied, _parts(problem, config, gpu)):
            split = whole.with_knobs(split_k=parts)
            while split.stages > 2 and split.shared_bytes(problem) > gpu.lds_bytes:
                split = split.with_knobs(stages=split.stages - 1)
            if split.why_invalid(problem, gpu) is None:
                yield split


def in_registers(problem: MatmulProblem, gpu: Gpu) -> tuple[RegistersConfig, float] | None:
    """The config of the shortest estimate with that, in microseconds; None where none is valid."""
    found = [(config, estimate_us(problem, config)) for config in registers_configs(problem, gpu)]
    return min(found, key=lambda item: item[1], default=None)
