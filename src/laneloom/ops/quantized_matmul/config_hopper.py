"""Configs of `hopper_weights`: a weight of few bits streams past Hopper's tensor cores. Pure.

Which tile is a model's choice, with constants from one H100 (2026-11-27): of 20 products of up to 64 rows, 400 configs
in all, what it prefers is 1.8% slower than the fastest; of 63 of 48 to 4096 rows, 1300 configs, 1.1%. Where consumers
take turns they are from one H200 (2026-11-30): of 107 products of 161 to 8192 rows, 1800 configs, 0.9%.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from ...gpu import Gpu
from ..matmul.config_hopper import MOST_SIZE
from ..matmul.dtypes import FLOAT_OUTPUTS, HALVES
from ..matmul.model_hopper import clusters_at_once
from ..matmul.problem import Matrix
from .config import BaseConfig
from .problem import DTYPE_BYTES, QuantizedProblem

SLICE = 128  #: of K
BRINGERS = 128  #: threads that fill the ring
EIGHTHS = (1, 2, *range(4, 33, 2))  #: rows of X of a tile, in eights
CLUSTERS = (1, 2, 4, 8)
MOST_GROUP = 1 << 30
#: registers that a thread gets, by consumer warpgroups, and what it needs beside sums and operands
REGISTERS, OTHER_REGISTERS, BRINGER_REGISTERS = {1: 255, 2: 168, 3: 128}, 24, 60
#: the same where TMA brings X, of consumers and of the others; what these need beside scales
OF_CONSUMERS, OF_OTHERS, TMA_REGISTERS = {1: 216, 2: 216, 3: 152}, {1: 255, 2: 72, 3: 56}, 40
BYTES_REGISTERS = 8  #: more, to convert numbers of 8 bits, or for zeros, or with a bias
SEARCH_REGISTERS = 8  #: more, to find tiles of rows in groups
#: constants of the estimate: microseconds of a slice, and for 64 rows of W more, by EIGHTHS; of a launch, of a round of
#: CTAs; of the exchange within a cluster
SLICE_US = {1: (0.13, 0.09), 2: (0.17, 0.10), 4: (0.20, 0.123), 8: (0.30, 0.19)}
LAUNCH_US, ROUND_US, BANDWIDTH_SHARE = 1.5, 3.0, 0.9
CLUSTER_US = {1: 0.0, 2: 0.8, 4: 0.8, 8: 1.5}
#: the same where TMA brings X: of a slice where groups' sums are scaled, and where none are; the exchange of 8192 sums,
#: likewise, and what 8 CTAs add to it; what an H200 takes times that, with one and two strips
TMA_SLICE_US = {True: {8: (0.13, 0.19), 16: (0.40, 0.18)}, False: {8: (0.10, 0.21), 16: (0.14, 0.30)}}
TMA_ROUND_US, EXCHANGE_US, OF_EIGHT_US = 5.1, {True: 1.3, False: 0.45}, 1.2
TMA_FACTORS = {True: (1.0, 1.12), False: (1.1, 1.22)}


class _TurnsUs(NamedTuple):
    """The same where consumers take turns."""

    round: float
    slice: float
    eighth: float  #: of a slice, for 8 rows of X by 64 of W
    three: float  #: of a slice, more by three consumers
    exchange: float  #: of 8192 sums
    wide: float  #: more by clusters of four and eight


#: by what is scaled: groups' sums, or values of 4 or 8 bits
TURNS_US = {
    "sums": _TurnsUs(4.74, 0.295, 0.0169, 0.119, 1.56, -0.8),
    "packed": _TurnsUs(5.95, 0.313, 0.0145, 0.142, 1.27, -0.9),
    "bytes": _TurnsUs(6.52, 0.293, 0.0165, 0.103, 1.11, -1.2),
}
TURNED_BYTES = 4 * 16 * 20  #: of a warp, as hopper_weights_store.cuh has it
TILES = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1))  #: consumer warpgroups, and strips of 64 rows of W of each
OF_TURNS = ((2, 1), (3, 1))  #: the same where consumers take turns
EIGHTHS_OF_TURNS = (8, 12, 16, 20, 24, 28, 32)


@dataclass(frozen=True, kw_only=True)
class HopperWeightsConfig(BaseConfig):
    """kernels/hopper_weights.cu: a CTA has 8 `eighths` rows of X, 64 strips * consumers of W, and a part of K."""

    schedule: str = "hopper_weights"
    eighths: int  #: of 8 rows of X
    consumers: int = 2  #: warpgroups that multiply
    strips: int = 1  #: of 64 rows of W, of each
    stages: int = 3  #: of the ring
    together: int = 2  #: slices of 128 of K of a stage
    depth: int = 1  #: stages that are on their way to the threads that bring X and the scales
    unit: int = 4  #: times 16 of K that are converted while as many are multiplied
    cluster: int = 1  #: CTAs with a part of K each
    x_by_tma: bool = False  #: X as it lies in memory; else threads bring it, in the order of the weight's values
    carried: bool = False  #: sums go on in units of the next group's scale; else each group's are apart and added
    turns: bool = False  #: consumers multiply one after another, while the others convert what they multiply next
    fetched: int = 4  #: slices of W that a CTA asks the L2 for before the kernel ahead in the stream has ended

    @property
    def rows(self) -> int:
        """Of X, of a tile."""
        return 8 * self.eighths

    @property
    def columns(self) -> int:
        """Of C, rows of W, of a tile."""
        return 64 * self.strips * self.consumers

    def blocks(self, problem: QuantizedProblem) -> tuple[int, int]:
        """Tiles of a product along M and N."""
        return -(-problem.m // self.rows), -(-problem.n // self.columns)

    def tiles(self, problem: QuantizedProblem) -> int:
        """Of all products; of rows in groups at most."""
        return problem.row_tiles(self.rows) * self.blocks(problem)[1]

    def ctas(self, problem: QuantizedProblem, gpu: Gpu) -> int:
        """Of the launch: a CTA for each compute unit, which takes tile after tile; of clusters one for each tile."""
        return self.tiles(problem) * self.cluster if self.cluster > 1 else min(self.tiles(problem), gpu.compute_units)

    def shared_bytes(self, problem: QuantizedProblem) -> int:
        """Shared memory of one CTA: the ring with its barriers, and what turns each warp's sums; or, of a cluster, the
        sums that take the ring's place."""
        numbers = 0
        if scaled_group(problem):
            numbers = groups_of_slice(problem) * (1 + (problem.zeros is not None) + 2 * self.carried)
        slice_bytes = self.columns * line_bytes(problem) + 2 * SLICE * self.rows + 4 * self.columns * numbers
        stage = -(-self.together * slice_bytes // 1024) * 1024
        ring = self.stages * (stage + 16)
        if self.cluster > 1:
            return max(ring, 4 * self.rows * (2 * self.columns + 4))
        return ring + 4 * self.consumers * TURNED_BYTES

    def why_invalid(self, problem: QuantizedProblem, gpu: Gpu) -> str | None:
        """See BaseConfig."""
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_weights: needs wgmma, {gpu.name} has none"
        if problem.dtype not in HALVES or problem.dtype_out not in FLOAT_OUTPUTS:
            return f"hopper_weights: multiplies fp16 and bf16, got {problem.dtype} to {problem.dtype_out}"
        if problem.group and problem.group < 32:
            return f"hopper_weights: groups of 32 or more, got {problem.group}"
        if problem.k % 32:
            return f"hopper_weights: K of whole blocks of 32, got {problem.k}"
        if max(problem.m, problem.n, problem.k) > MOST_SIZE:
            return f"hopper_weights: M, N and K of at most {MOST_SIZE}, got {problem.m}, {problem.n}, {problem.k}"
        for name, matrix, size in (("x", problem.x, 2), ("values", problem.values, 1)):
            if not in_lines(matrix, size):
                return f"hopper_weights: {name} along K in rows that begin at 16 bytes"
        for name, matrix, size in (("scales", problem.scales, scale_bytes(problem)), ("zeros", problem.zeros, 1)):
            if matrix is None:
                continue
            if problem.groups > 1 and matrix.strides[3] != 1:
                return f"hopper_weights: {name} of a row side by side"
            if problem.n * matrix.strides[2] * size >= 1 << 31:
                return f"hopper_weights: {name} of less than 2**31 bytes"
        return self._why_resources(problem, gpu)

    def _why_resources(self, problem: QuantizedProblem, gpu: Gpu) -> str | None:
        if self.eighths not in EIGHTHS or self.cluster not in CLUSTERS or self.unit not in (1, 2, 4, 8):
            return f"hopper_weights: eighths 1 or even, to 32; cluster and unit powers of 2, to 8; got {self.text}"
        if self.eighths not in SLICE_US and not self.x_by_tma:
            return "hopper_weights: 8, 16, 32 or 64 rows of X without x_by_tma"
        if self.consumers not in REGISTERS or self.strips not in (1, 2) or self.columns > 256:
            return f"hopper_weights: 1 to 3 consumers of 1 or 2 strips, 256 rows of W at most, got {self.text}"
        if not (2 <= self.stages <= 16 and self.together in (1, 2, 4) and self.depth in (1, 2) and self.fetched >= 0):
            return f"hopper_weights: 2 to 16 stages, 1, 2 or 4 slices together, 1 or 2 deep, got {self.text}"
        if self.cluster > -(-problem.k // SLICE):
            return f"hopper_weights: at least a slice of {SLICE} for each of {self.cluster} CTAs, K is {problem.k}"
        groups = groups_of_slice(problem)
        scaled = scales_sums(problem)
        if self.turns and not (self.x_by_tma and self.together == 1 and self.consumers > 1):
            return "hopper_weights: turns with x_by_tma, one slice together, and two consumers or more"
        if self.carried and not (self.turns and can_carry(problem)):
            return "hopper_weights: carried in turns, for scales of groups, with X of bf16, or X and scales of fp16"
        if scaled and self.unit * groups > 8:
            return f"hopper_weights: a unit of at most {8 // groups} for groups of {problem.group}, got {self.unit}"
        sums = 4 * self.eighths * (2 if scaled and not self.carried else 1)
        held = self.strips * (sums + self.unit * (4 if self.turns else 8)) + OTHER_REGISTERS
        bare = problem.is_packed and problem.zeros is None and problem.bias is None
        held += 0 if bare else BYTES_REGISTERS
        held += SEARCH_REGISTERS if problem.ragged else 0
        scales = -(-self.columns * self.together // BRINGERS) * groups * (2 if problem.zeros is not None else 1)
        of_x = 4 * self.eighths * self.together
        if self.x_by_tma:
            brought = (self.depth + 1) * scales + TMA_REGISTERS
            most, most_brought = OF_CONSUMERS[self.consumers], OF_OTHERS[self.consumers]
            most -= 8 if self.cluster == 1 else 40  # beyond that ptxas was seen to spill
        else:
            brought = self.depth * (of_x + scales) + scales + BRINGER_REGISTERS
            most = most_brought = REGISTERS[self.consumers]
        # Sums of one wgmma are in registers that ptxas counts before any are handed over.
        of_one = 4 * self.eighths + OTHER_REGISTERS
        if held > most or brought > most_brought or of_one > REGISTERS[self.consumers]:
            return f"hopper_weights: would spill, threads hold {held} and {brought} registers"
        if self.tiles(problem) * self.cluster >= 1 << 30:
            return f"hopper_weights: less than 2**30 tiles, got {self.tiles(problem) * self.cluster}"
        if (needed := self.shared_bytes(problem)) > gpu.lds_bytes:
            return f"hopper_weights: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None


CONFIGS: dict[str, type[BaseConfig]] = {"hopper_weights": HopperWeightsConfig}


def groups_of_slice(problem: QuantizedProblem) -> int:
    """Scales of a row of a slice."""
    return max(1, SLICE // problem.group) if problem.group else 1


def scaled_group(problem: QuantizedProblem) -> int:
    """K whose sums are scaled as one; 0 where those of a whole row are. A row's zero comes off its values, though."""
    return problem.group or (MOST_GROUP if problem.zeros is not None else 0)


def scales_sums(problem: QuantizedProblem) -> bool:
    """Whether sums of groups are scaled and added; else values are scaled before, or all sums of a row at the end."""
    return scaled_group(problem) > 0 and not problem.folds


def can_carry(problem: QuantizedProblem) -> bool:
    """Whether every scale over any other is a factor of sums that stay finite: a power of two of a scale goes to the
    weight's values, which have the range of X."""
    return scales_sums(problem) and (problem.dtype == "bf16" or problem.dtype_scale == "fp16")


def scale_piece(problem: QuantizedProblem) -> int:
    """Bytes of scales that one load takes, of a slice that has several."""
    size = scale_bytes(problem)
    piece = size
    outer, inner, row, _ = problem.scales.strides
    ends = (problem.scales.alignment, *(step * size for step in (outer, inner, row)))
    while piece < min(4, groups_of_slice(problem) * size) and all(end % (2 * piece) == 0 for end in ends):
        piece *= 2
    return piece


def line_bytes(problem: QuantizedProblem) -> int:
    """Of a slice of a row of W."""
    return SLICE // 2 if problem.is_packed else SLICE


def in_lines(matrix: Matrix, size: int) -> bool:
    """Whether every row is contiguous and begins at 16 bytes."""
    outer, inner, row, column = matrix.strides
    return column == 1 and matrix.alignment >= 16 and all(step * size % 16 == 0 for step in (outer, inner, row))


def _estimate_us(problem: QuantizedProblem, config: HopperWeightsConfig, gpu: Gpu) -> float:
    tiles = config.tiles(problem)
    if config.cluster == 1:  # of clusters all that there may be are launched
        tiles = problem.likely_row_tiles(config.rows) * config.blocks(problem)[1]
    rounds = ceil(tiles / int(clusters_at_once(config.cluster, gpu)))
    slices = -(-problem.k // (SLICE * config.cluster))
    scaled, others_us, factor = scales_sums(problem), 0.0, 1.0
    if config.turns:
        us = TURNS_US["sums" if scaled else "packed" if problem.is_packed else "bytes"]
        fixed, more, round_us = us.slice + us.three * (config.consumers == 3), us.eighth * config.eighths, us.round
        if config.cluster > 1:
            others_us = us.exchange * config.rows * config.columns / 8192 + us.wide * (config.cluster > 2)
    elif config.x_by_tma:
        (fixed, more), round_us = TMA_SLICE_US[scaled][config.eighths], TMA_ROUND_US
        factor = TMA_FACTORS[scaled][config.strips - 1]
        if config.cluster > 1:
            others_us = EXCHANGE_US[scaled] * config.rows * config.columns / 8192 + OF_EIGHT_US * (config.cluster == 8)
    else:
        fixed, more = SLICE_US[config.eighths]
        round_us, others_us = ROUND_US, LAUNCH_US + CLUSTER_US[config.cluster]
    compute_us = rounds * (round_us + slices * (fixed + more * config.columns / 64))
    memory_us = problem.bytes / (gpu.bandwidth_gbs * 1e3 * BANDWIDTH_SHARE)
    return factor * (others_us + (compute_us**4 + memory_us**4) ** 0.25)


def _turned(eighths: int, folds: bool) -> Iterator[HopperWeightsConfig]:
    """Knobs of tiles whose X threads bring, most wanted first."""
    units = {1: (4, 8, 2) if folds else (8, 4, 2), 2: (4, 2), 4: (4, 2), 8: (2,)}[eighths]
    for depth in (1,) if eighths < 4 else (2, 1):
        for unit in units:
            for stages in (3, 2):
                yield HopperWeightsConfig(
                    eighths=eighths, stages=stages, unit=unit, together=1 if eighths == 8 else 2, depth=depth
                )


def _by_tma(eighths: int) -> Iterator[HopperWeightsConfig]:
    """The same of tiles whose X TMA brings."""
    for stages in (6, 5, 4, 3):
        for unit in (4, 2, 1):
            yield HopperWeightsConfig(eighths=eighths, stages=stages, unit=unit, together=1, x_by_tma=True)


def _in_turns(eighths: int, problem: QuantizedProblem) -> Iterator[HopperWeightsConfig]:
    """The same where consumers take turns."""
    carried, units = can_carry(problem), (8, 4, 2, 1) if problem.is_packed and not problem.folds else (4, 2, 1)
    for stages in (6, 5, 4, 3, 2):
        for unit in units:
            yield HopperWeightsConfig(
                eighths=eighths, stages=stages, unit=unit, together=1, x_by_tma=True, carried=carried, turns=True
            )


def hopper_configs(problem: QuantizedProblem, gpu: Gpu) -> Iterator[HopperWeightsConfig]:
    """Every valid one, the shortest estimate first; of rows in groups by what is typical of them."""
    typical = problem.typical
    kinds = [(TILES, tuple(_turned(next((e for e in SLICE_US if 8 * e >= typical.m), 8), problem.folds)))]
    if typical.m > 32:
        kinds += [(TILES, tuple(_by_tma(eighths))) for eighths in ((8,) if typical.m <= 64 else (8, 16))]
    if typical.m > 64:
        wanted = (e for e in EIGHTHS_OF_TURNS if 8 * e < 2 * typical.m)
        kinds += [(OF_TURNS, tuple(_in_turns(eighths, problem))) for eighths in wanted]
    found: list[tuple[float, HopperWeightsConfig]] = []
    for tiles, knobs in kinds:
        for consumers, strips in tiles:
            for cluster in CLUSTERS:
                ways = (knob.with_knobs(consumers=consumers, strips=strips, cluster=cluster) for knob in knobs)
                config = next((way for way in ways if way.why_invalid(problem, gpu) is None), None)
                if config is not None:
                    found.append((_estimate_us(problem, config, gpu), config))
    yield from (config for _, config in sorted(found, key=lambda pair: pair[0]))


def scale_bytes(problem: QuantizedProblem) -> int:
    """Of one scale."""
    return DTYPE_BYTES[problem.dtype_scale]
