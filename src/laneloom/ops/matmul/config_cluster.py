"""What can be chosen of the CUDA C++ schedules on Hopper: a Config class for each. Pure; `plan_cluster` chooses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from ...gpu import Gpu
from .config_hopper import TMA_BYTES, tma_reads, tma_writes, why_not_walked
from .config_scaled import beside_scaled, why_not_scaled
from .config_shares import PartsConfig
from .config_sums import most_sums
from .dtypes import FLOAT_OUTPUTS, HALVES
from .problem import DTYPE_BYTES, MatmulProblem, Matrix

PIECES = {"ieee": 0, "tf32": 1, "3xtf32": 2, "3xbf16": 3}  #: of each fp32 operand, by precision; 0: not by wgmma
MOST_ROWS = 256  #: in one box of the copy engine
MOST_ALONE = 192  #: columns of all strips of a CTA's only tile, beside terms
NARROWER = 8  #: columns by which an uneven tile is narrower than the others: what wgmma's widths differ by
OWN_ROWS = 128  #: of a tile that one warpgroup multiplies while another writes
MOST_KEPT, MOST_KEPT_OF_TERMS = 192, 160  #: sums of a tile and words of C that wait in a thread; beside terms, or masks
_WGMMA_GROUPS = (("bf16",), ("fp16",), ("fp8", "bf8"), ("int8", "uint8"))  #: multiplied with each other


def piece_dtype(problem: MatmulProblem, config: ClusterConfig, operand: str) -> str:
    """What the tensor cores see of operand "a" or "b": its own dtype, or that of its pieces."""
    dtype = problem.dtype_a if operand == "a" else problem.dtype_b
    if dtype != "fp32":
        return dtype
    return "bf16" if problem.precision == "3xbf16" else "tf32"


def finishers(columns: int, parts: int) -> int:
    """CTAs that finish as many whole blocks of 8 columns each, of those with a part of K as many as can."""
    return max((n for n in range(1, parts + 1) if columns % (8 * n) == 0), default=1)


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(PartsConfig):
    """kernels/hopper_cluster.cu: clusters share loads by multicast; one producer warp, one to three warpgroups."""
    schedule: str = "hopper_cluster"
    num_warps: int = 4  #: of one consumer
    stages: int  #: K-slices of 128 bytes in the ring
    consumers: int = 2  #: warpgroups, each with block_m / consumers rows
    cluster_m: int = 1  #: CTAs down C's columns that share each tile of B
    cluster_n: int = 1  #: CTAs along C's rows that share each tile of A
    cluster_k: int = 1  #: CTAs that have a part of K each; `finishers` of them finish a part of the tile's columns
    tiles_n: int = 0  #: uneven tiles along N: so many, the last ones narrower; 0: as few as cover it, all of block_n
    panels: int = 1  #: 128-byte columns of C that a warp stages at a time
    split: bool = False  #: write a consumer's first strip while the second's last slice is multiplied
    hold_back: int = 0  #: slices of the next tile that are begun before a tile's last strip is written
    own_tiles: bool = False  #: each consumer has tiles of its own, and writes C while another multiplies
    tma_store: bool = True
    copy_a: bool = False  #: copy A first
    copy_b: bool = False
    pieces: int = 1  #: of each FP32 operand: 1 with precision "tf32", 2 with "3xtf32", 3 with "3xbf16"
    promote: int = 0  #: K-slices after which sums leave the tensor cores for FP32 additions; 0: at the end
    #: where blocks of K have scales or sums are promoted, parts of a tile's columns that leave the tensor cores in turn
    scaled: int = 0
    dual: bool = False  #: with `scaled`, a slice is multiplied while the sums of the one before it are added
    swapped: bool = False  #: compute the transpose of C: block_m and cluster_m are of its rows, which are N
    line: int = 0  #: bytes; tiles take rows of A that begin alike within such a line, at whole ones; 0: any rows
    grouped: bool = False  #: rows of A in groups, each against a B of its own; see ops/matmul/grouped.py
    k_grouped: bool = False  #: K in groups, each a product of the batch
    programs: int = 132  #: most CTAs that are launched; each walks over several tiles
    split_k: int = 1  #: parts of K, which a second launch adds up
    fetched: int = 0  #: slices that the L2 is asked for before the kernel ahead in the stream has ended
    pdl: bool = True  #: start while the kernel ahead in the stream still drains

    @property
    def peers(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def finishers(self) -> int:
        """CTAs that finish as many whole blocks of 8 columns each, of those with a part of K as many as can."""
        return finishers(self.block_n, self.cluster_k)

    @property
    def finished(self) -> int:
        """Columns of a tile that one CTA finishes."""
        return self.block_n // self.finishers

    @property
    def strips(self) -> int:
        """wgmmas of 64 rows of one consumer."""
        return self.block_m // 64 // (1 if self.own_tiles else self.consumers)

    def hands_over(self, problem: MatmulProblem) -> bool:
        """Whether the warps that load hand registers over: that takes time, and few sums do without."""
        many = self.strips * self.block_n * self.consumers > 256 or self.promote or self.scaled
        return self.consumers > 1 and bool(many or (problem.epilogue and problem.epilogue.addend))

    def classes(self, problem: MatmulProblem) -> int:
        """Classes of C's rows: those of one class begin alike in A, within a line of `line` bytes."""
        pitch = problem.a.strides[2] * DTYPE_BYTES[problem.dtype_a]
        return self.line // gcd(self.line, pitch) if self.line else 1

    def in_classes(self, problem: MatmulProblem) -> MatmulProblem:
        """The problem that the kernel is given: each class of rows is a product of an inner batch, of the same B."""
        classes = self.classes(problem)
        if classes == 1:
            return problem
        axis = 0 if problem.batch[0] > 1 else 1  # of the batch; the other has one product

        def split(matrix: Matrix, of_rows: bool) -> Matrix:
            row, column = matrix.strides[2:]
            rows = (row, classes * row) if of_rows else (0, row)
            return replace(matrix, strides=(matrix.strides[axis], *rows, column))

        epilogue = problem.epilogue
        if epilogue and epilogue.addend:
            epilogue = replace(epilogue, addend=split(epilogue.addend, True))
        return replace(
            problem, m=problem.m // classes, batch=(problem.batches, classes), a=split(problem.a, True),
            b=split(problem.b, False), out=split(problem.out, True), epilogue=epilogue,
        )  # fmt: skip

    def as_launched(self, problem: MatmulProblem) -> MatmulProblem:
        """The problem that the kernel is given: parts of K as a batch's outer products, perhaps rows `in_classes`."""
        if self.split_k == 1:
            return self.in_classes(problem)
        _, rows, columns = self.parts_shape(problem)
        batches = 1 if self.one_by_one(problem) else problem.batches

        def of_parts(matrix: Matrix) -> Matrix:
            return replace(matrix, strides=(0, matrix.strides[1] if batches > 1 else 0, *matrix.strides[2:]))

        scales = problem.scales
        return replace(
            problem, batch=(self.split_k, batches), dtype_out=problem.dtype_sums, epilogue=None,
            a=of_parts(problem.a), b=of_parts(problem.b),
            scales=scales and replace(scales, a=of_parts(scales.a), b=of_parts(scales.b)),
            out=Matrix((rows * columns, problem.m * columns, columns, 1)),
        )  # fmt: skip

    def tiles(self, problem: MatmulProblem) -> int:
        """Items of work: tiles of a whole cluster, of every product of the batch, perhaps `as_launched`."""
        m, n = (problem.n, problem.m) if self.swapped else (problem.m, problem.n)
        right = -(-(self.tiles_n or -(-n // self.block_n)) // self.cluster_n)
        return -(-m // (self.block_m * self.cluster_m)) * right * problem.batches

    def ctas(self, launched: MatmulProblem) -> int:
        """CTAs of the launch of a problem `as_launched`."""
        most = self.programs // self.peers * self.peers
        return most if self.grouped else min(self.tiles(launched) * self.peers, most)

    def one_tile(self, launched: MatmulProblem) -> bool:
        """Whether the kernel is told that every CTA has one tile. Where ptxas would spill then, it is not."""
        e, wide = launched.epilogue, DTYPE_BYTES[launched.dtype_out] > 2
        spills = (wide and self.swapped) or (e and (e.addend or wide or self.strips * self.block_n > MOST_ALONE))
        if self.grouped or self.own_tiles or spills:
            return False
        return self.ctas(launched) == self.tiles(launched) * self.peers

    def wide_tiles(self, n: int) -> int:
        """How many of the uneven tiles along n columns have all of `block_n`."""
        return max(0, -(-(n - self.tiles_n * (self.block_n - NARROWER)) // NARROWER)) if self.tiles_n else 0

    def stores_by_tma(self, problem: MatmulProblem) -> bool:
        """Whether TMA can write C: of uneven tiles, each in boxes of one width beside whole panels of 128 bytes."""
        panel = 128 // DTYPE_BYTES[problem.dtype_out]
        left, narrow = self.finished % panel, (self.block_n - NARROWER) % panel
        one_width = self.swapped or not self.tiles_n or not (left and narrow)
        fits = left * DTYPE_BYTES[problem.dtype_out] % TMA_BYTES == 0 and not (self.swapped and panel < 64)
        return tma_writes(problem) and one_width and fits

    def why_not_uneven(self, multiplied: MatmulProblem) -> str | None:
        """Why tiles along N cannot differ in width."""
        if not self.tiles_n:
            return None
        if not self.along_k(multiplied, "b") or self.cluster_n * self.cluster_k > 1 or self.grouped:
            return "hopper_cluster: uneven tiles take a B along K, which clusters do not cut into columns"
        if self.line or (self.block_n - NARROWER > 32 and multiplied.dtype_a in ("int8", "uint8")):
            return "hopper_cluster: uneven tiles are of all rows, and of floats"
        least, most = self.tiles_n * (self.block_n - NARROWER), self.tiles_n * self.block_n
        if not max(least, self.block_n) <= multiplied.n <= most or self.block_n < 2 * NARROWER:
            return f"hopper_cluster: {self.tiles_n} tiles of {self.block_n} columns or {NARROWER} less cannot cover N"
        return None

    def _why_parts(self, multiplied: MatmulProblem) -> str | None:
        if self.cluster_k == 1:
            return None
        if self.cluster_k > -(-multiplied.k // self.block_k):
            return f"hopper_cluster: {self.cluster_k} parts take a slice or more each, got K = {multiplied.k}"
        if self.promote or self.grouped or self.pieces > 1 or multiplied.dtype_a in ("int8", "uint8"):
            return "hopper_cluster: parts of K are FP32 sums, neither promoted nor of groups"
        tiles = self.tiles(multiplied.transposed() if self.swapped else multiplied)
        if tiles * self.peers > self.programs:
            return f"hopper_cluster: parts of K take one tile a cluster, got {tiles} for {self.programs} programs"
        return None

    def why_not_overlapped(self, problem: MatmulProblem) -> str | None:
        """Why C cannot be written while the tensor cores multiply, if it is to be."""
        if not (self.split or self.hold_back):
            return None
        if self.promote or self.pieces > 1 or self.cluster_k > 1:
            return "hopper_cluster: only bare sums of all of K are written while the next are multiplied"
        if self.split and (self.strips != 2 or -(-problem.k // self.block_k) < 2 * self.split_k):
            return "hopper_cluster: a split takes two strips and two slices of each part of K"
        kept = (2 * self.strips + 1) * self.block_n // 4
        room = MOST_KEPT if self.tma_store and not (problem.epilogue or self.grouped) else MOST_KEPT_OF_TERMS
        if self.hold_back and (kept > room or self.consumers == 3 or DTYPE_BYTES[problem.dtype_out] != 2):
            what = f"{room} a thread with its sums, got {kept} of {problem.dtype_out} and {self.consumers} consumers"
            return f"hopper_cluster: holds back words of 16-bit results, {what}"
        return None if self.hold_back >= 0 else f"hopper_cluster: holds back 0 slices or more, got {self.hold_back}"

    def as_multiplied(self, problem: MatmulProblem) -> MatmulProblem:
        """The problem whose A takes wgmma's 64 rows: the problem, or its transpose."""
        return problem.transposed() if self.swapped else problem

    def along_k(self, multiplied: MatmulProblem, operand: str) -> bool:
        """Whether operand "a" or "b", or its copy, is read along K. Copies of what goes along either axis keep it."""
        matrix, across = (multiplied.a, "t") if operand == "a" else (multiplied.b, "n")
        copied = self.copy_a if operand == "a" else self.copy_b
        keeps = self.pieces == 1 and piece_dtype(multiplied, self, operand) in HALVES
        return matrix.major != across or (copied and not keeps)

    def b_columns(self, multiplied: MatmulProblem) -> int:
        """Columns of B that a slice has room for: contiguous along N, it comes in panels of 64."""
        return self.block_n if self.along_k(multiplied, "b") else -(-self.block_n // 64) * 64

    def stage_bytes(self, multiplied: MatmulProblem) -> int:
        """Shared memory of one slice."""
        return self.pieces * (self.block_m + self.b_columns(multiplied)) * 128

    def cuts_blocks(self, multiplied: MatmulProblem) -> bool:
        """Whether a tile's columns do not begin and end where blocks of them that share a scale do."""
        together = multiplied.scales.columns if multiplied.scales else 1
        return self.block_n % together > 0 and together % self.block_n > 0

    def scale_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of the scales of one slice."""
        multiplied = self.as_multiplied(problem)
        if not (scales := multiplied.scales):
            return 0
        counts = (-(-self.block_m // scales.rows), -(-self.block_n // scales.columns) + self.cuts_blocks(multiplied))
        return sum(-(-count // 4) * 16 for count in counts)

    def shared_bytes(self, problem: MatmulProblem) -> int:
        """Shared memory of one CTA."""
        ring = self.stages * (self.stage_bytes(self.as_multiplied(problem)) + self.scale_bytes(problem))
        warps, received = 4 * self.consumers, (self.cluster_k - 1) * self.block_m * self.finished * 4
        each = self.panels * 2048 + 8 * (self.cluster_k > 1 or self.own_tiles)  # warp's staging and barrier
        return ring + warps * each + received + 16 * self.stages

    def why_invalid(self, problem: MatmulProblem, gpu: Gpu) -> str | None:
        if gpu.matrix_instructions != "wgmma":
            return f"hopper_cluster: needs wgmma and TMA, {gpu.name} has {gpu.matrix_instructions}"
        if why := self.why_not_in_classes(problem) or self._why_not_split(problem):
            return why
        problem = self.as_launched(problem)
        multiplied = self.as_multiplied(problem)
        return (
            self.why_not_swapped(problem)
            or why_not_scaled(self, multiplied)
            or self._why_operands(multiplied)
            or self._why_output(problem)
            or self._why_tile(problem, multiplied, gpu)
            or self._why_groups(problem)
            or self._why_not_own_tiles()
        )

    def _why_groups(self, problem: MatmulProblem) -> str | None:
        """Why rows, or K, cannot be in groups, or why they are in none."""
        if (self.grouped, self.k_grouped) != (problem.grouped, problem.k_grouped):
            return "hopper_cluster: `grouped` is for rows in groups, `k_grouped` for K"
        if self.grouped and problem.a.major != "n":
            return "hopper_cluster: groups of rows begin anywhere, so A is contiguous along K"
        parts = self.cluster_k * self.split_k + self.promote + self.scaled + self.fetched + self.split
        if self.k_grouped and (self.copy_a or self.copy_b or problem.epilogue or self.line or parts > 1):
            return "hopper_cluster: groups of K are bare sums of one part, of operands that are read where they lie"
        return None

    def _why_not_own_tiles(self) -> str | None:
        """Why warpgroups cannot have tiles of their own."""
        if not self.own_tiles:
            return None
        if self.consumers != 2 or self.block_m != OWN_ROWS or self.cluster_k * self.split_k > 1:
            return f"hopper_cluster: two warpgroups have tiles of their own, of {OWN_ROWS} rows and all of K"
        if self.split or self.hold_back or self.promote or self.scaled:
            return "hopper_cluster: tiles of one warpgroup each are written at once, of sums that nothing promotes"
        return None

    def why_not_in_classes(self, problem: MatmulProblem) -> str | None:
        """Why rows of A that begin alike cannot share tiles."""
        if not self.line:
            return None
        classes = self.classes(problem)
        if self.line not in (32, 64, 128) or classes == 1:
            return f"hopper_cluster: lines of 32, 64 or 128 bytes that A's rows break, got {self.line}"
        if problem.a.major != "n" or self.copy_a or self.copy_b or self.grouped or min(problem.batch) > 1:
            return "hopper_cluster: rows of A in classes are contiguous, lie in place, in one group and one batch axis"
        e = problem.epilogue
        if problem.m % classes or (e and (e.scale_a == "row" or (e.bias and e.bias[0] == "m"))):
            return f"hopper_cluster: {classes} equal classes of rows, without terms of their own, got M = {problem.m}"
        return None

    def _why_not_split(self, problem: MatmulProblem) -> str | None:
        """Why K cannot be cut into parts that a second launch adds up."""
        if self.split_k == 1:
            return None
        if problem.epilogue or self.grouped or self.line:
            return "hopper_cluster: a second launch adds up bare products, neither of groups nor of rows in classes"
        if not 1 <= self.split_k * self.cluster_k <= -(-problem.k // self.block_k):
            return f"hopper_cluster: {self.split_k} parts of K have a slice or more each, got K = {problem.k}"
        return self.why_not_added_up(problem)

    def why_not_swapped(self, problem: MatmulProblem) -> str | None:
        """Why the transpose of C cannot be what is computed."""
        if not self.swapped:
            return None
        addend = problem.epilogue and problem.epilogue.addend
        if addend or self.grouped or self.copy_a or self.copy_b or self.pieces > 1:
            return "hopper_cluster: C's transpose has no addend, and operands that are read where they lie"
        turns = DTYPE_BYTES[problem.dtype_out] == 2 or problem.dtype_a in ("fp8", "bf8", *HALVES)
        return None if turns else f"hopper_cluster: turns C of floats of 8 or 16 bits, got {problem.dtype_a}"

    def _why_operands(self, problem: MatmulProblem) -> str | None:
        pair = (problem.dtype_a, problem.dtype_b)
        pieces = PIECES.get(problem.precision, 0) if pair == ("fp32", "fp32") else 1
        if pieces == 0 or not any(set(pair) <= set(group) for group in (*_WGMMA_GROUPS, ("fp32",))):
            return f"hopper_cluster: wgmma does not multiply {pair[0]} by {pair[1]} in precision {problem.precision}"
        if self.pieces != pieces:
            return f"hopper_cluster: precision {problem.precision} takes {pieces} pieces, got {self.pieces}"
        if self.grouped and (self.copy_a or self.copy_b or pieces > 1 or problem.has_terms):
            return "hopper_cluster: groups are read where they lie and written as bare sums, or scaled ones"
        for name, matrix, copied in (("a", problem.a, self.copy_a), ("b", problem.b, self.copy_b)):
            if self.pieces > 1 and not copied:
                return f"hopper_cluster: pieces of {name} have to be made first, by a copy"
            both_majors = piece_dtype(problem, self, name) in HALVES  # wgmma takes others along K only
            along_k = matrix.major == ("n" if name == "a" else "t")
            if not copied and not (tma_reads(problem, name) and (both_majors or along_k)):
                return f"hopper_cluster: TMA and wgmma need {name} at multiples of {TMA_BYTES} bytes, or copied first"
        return None

    def _why_output(self, problem: MatmulProblem) -> str | None:
        integers = problem.dtype_a in ("int8", "uint8")
        outputs = (*FLOAT_OUTPUTS, "int32") if integers and not problem.epilogue else FLOAT_OUTPUTS
        if problem.dtype_out not in outputs:
            return f"hopper_cluster: writes {', '.join(outputs)}, got {problem.dtype_out}"
        if integers and self.promote:
            return "hopper_cluster: sums of integers are exact and need no promotion"
        if problem.dtype_acc not in ("fp32", "int32"):
            return f"hopper_cluster: sums in fp32 or int32, got {problem.dtype_acc}"
        if self.tma_store and not self.stores_by_tma(problem):
            return f"hopper_cluster: a TMA store needs C, and a tile's last panel, at multiples of {TMA_BYTES} bytes"
        return None

    def _why_tile(self, problem: MatmulProblem, multiplied: MatmulProblem, gpu: Gpu) -> str | None:
        shares = 1 if self.own_tiles else self.consumers
        slab = self.block_m // shares if self.consumers in (1, 2, 3) else 0
        if slab not in (64, 128) or slab * shares != self.block_m or self.num_warps != 4:
            return f"hopper_cluster: 1 to 3 consumers take 64 or 128 rows each, got {self.block_m} for {self.consumers}"
        if self.block_n % 8 or not 8 <= self.block_n <= 256:
            return f"hopper_cluster: block_n is a multiple of 8 up to 256, got {self.block_n}"
        if problem.dtype_a in ("int8", "uint8") and self.block_n > 32 and self.block_n % 16:
            return f"hopper_cluster: wgmma of integers takes multiples of 16 columns above 32, got {self.block_n}"
        kind = piece_dtype(multiplied, self, "a")
        size = 4 if kind == "tf32" else DTYPE_BYTES[kind]
        if self.block_k != 128 // size:
            return f"hopper_cluster: a K-slice has 128 bytes, got {self.block_k} elements"
        accumulators = slab * self.block_n // 128 * (2 if self.promote else 1)
        accumulators += beside_scaled(self, problem, multiplied) if self.scaled else 0
        if accumulators > (room := most_sums(self, problem)):
            return f"hopper_cluster: {accumulators} sums a thread, {room} fit beside {self.consumers} consumers"
        shape = f"{self.cluster_m} by {self.cluster_n} by {self.cluster_k}"
        if not {self.cluster_m, self.cluster_n} <= {1, 2, 4, 8} or self.cluster_k < 1 or self.peers > 8:
            return f"hopper_cluster: clusters of up to 8 CTAs, 1, 2, 4 or 8 of which share a load, got {shape}"
        if why := self._why_parts(multiplied) or self.why_not_overlapped(problem) or self.why_not_uneven(multiplied):
            return why
        shared = ((self.block_m, self.cluster_n), (self.block_n, self.cluster_m))
        if any(rows % sharers for rows, sharers in shared):
            return f"hopper_cluster: a cluster of {self.cluster_m} by {self.cluster_n} cannot share the tile out evenly"
        if self.along_k(multiplied, "a") and self.block_m // self.cluster_n > MOST_ROWS:
            return f"hopper_cluster: a CTA loads {MOST_ROWS} rows of A at most, got {self.block_m} by {self.cluster_n}"
        if why := why_not_walked(self, multiplied.m, multiplied.n, multiplied.k):
            return why
        if self.stages < 2 or min(self.panels - 1, self.promote, self.fetched) < 0 or self.programs < self.peers:
            return "hopper_cluster: at least 2 stages, one panel, one cluster"
        needed = self.shared_bytes(problem)
        if needed > gpu.lds_bytes:
            return f"hopper_cluster: needs {needed} bytes of shared memory, {gpu.name} gives {gpu.lds_bytes}"
        return None
