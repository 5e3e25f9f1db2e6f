"""What can be chosen for one transpose: the schedules, their knobs, and `plan`, which chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from ...errors import ArgumentError, InvalidConfigError, UnsupportedError
from ...gpu import Gpu
from ..config_words import config_text, read_when_traced
from ..scalars import shown
from .problem import ELEMENT_BYTES, MAX_VECTOR_BYTES, TransposeProblem

_MAX_WARPS = 16
_MAX_HELD_BYTES = 512  #: of a tile in one lane: 128 registers
_MAX_ROWS = 1 << 30  #: of a matrix along either axis: offsets of tiles are 32-bit numbers of elements


def _power_of_two(*numbers: int) -> bool:
    return all(n >= 1 and not n & (n - 1) for n in numbers)


@dataclass(frozen=True, kw_only=True)
class TransposeConfig:
    """A schedule's name; each schedule's own class adds its knobs."""

    schedule: str

    def why_invalid(self, problem: TransposeProblem, gpu: Gpu) -> str | None:
        """One sentence on why this cannot do `problem` on `gpu`, or None. The only statement of each constraint."""
        if problem.element_bytes not in ELEMENT_BYTES:
            return f"elements have 1, 2, 4 or 8 bytes, got {problem.element_bytes}"
        if max(problem.rows, problem.columns) > _MAX_ROWS:
            return f"a matrix has at most {_MAX_ROWS} rows and columns, got {problem.rows} x {problem.columns}"
        return None

    @property
    def text(self) -> str:
        """The config as one word, which `parse_config` reads back: "tiles:block_b=1,..."."""
        return config_text(self)


@dataclass(frozen=True, kw_only=True)
class TilesConfig(TransposeConfig):
    """kernels/tiles.py: any strides and sizes; a tile changes its layout on the way through LDS or between lanes."""

    schedule: str = "tiles"
    block_b: int = 1  #: matrices of a program
    block_r: int = 64  #: rows and columns of X in a tile
    block_c: int = 64
    num_warps: int = 4
    through: str = "lds"  #: or "lanes": 16-byte blocks change places between lanes, without LDS or a barrier

    def why_invalid(self, problem: TransposeProblem, gpu: Gpu) -> str | None:
        """See TransposeConfig."""
        if not _power_of_two(self.block_b, self.block_r, self.block_c, self.num_warps) or self.num_warps > _MAX_WARPS:
            return (
                f"block_b, block_r, block_c and num_warps must be powers of two and num_warps at most {_MAX_WARPS}, "
                f"got {self.block_b}, {self.block_r}, {self.block_c} and {self.num_warps}"
            )
        size = self.block_b * self.block_r * self.block_c * problem.element_bytes
        held = size // (gpu.wave * self.num_warps)
        if held > _MAX_HELD_BYTES:
            return f"a lane holds at most {_MAX_HELD_BYTES} bytes of a tile, here {held}"
        if size > gpu.lds_bytes:
            return f"the tile has {size} bytes, a workgroup of {gpu.name} has {gpu.lds_bytes} of LDS"
        if self.through not in ("lds", "lanes"):
            return f"through must be lds or lanes, got {self.through!r}"
        if self.through == "lanes":
            if gpu.matrix_instructions != "wmma":
                return f"lanes exchange data by RDNA's data-parallel primitives, which {gpu.name} does not have"
            block = MAX_VECTOR_BYTES // problem.element_bytes
            if min(self.block_r, self.block_c) < block or held < MAX_VECTOR_BYTES:
                return f"lanes exchange blocks of {block} x {block}, got a tile of {self.block_r} x {self.block_c}"
        return super().why_invalid(problem, gpu)


@dataclass(frozen=True, kw_only=True)
class FragmentsConfig(TransposeConfig):
    """kernels/fragments.py: 16 x 16 operands of matrix instructions are transposed in the registers where they lie."""

    schedule: str = "fragments"
    block_r: int = 64  #: rows of X of a program; a wave has 16 rows of them or more
    chunks: int = 4  #: 16-column blocks of X of a program
    num_warps: int = 4
    #: "iu8": products of bytes with the identity, exact; "f16", "bf16": one product, where NaN and infinity spread and
    #: -0 is 0; "lanes": exchanges between lanes, whose result is an operand again
    by: str = "iu8"

    def why_invalid(self, problem: TransposeProblem, gpu: Gpu) -> str | None:
        """See TransposeConfig."""
        if gpu.matrix_instructions != "wmma":
            return f"fragments are those of WMMA, which {gpu.name} ({gpu.family}) does not have"
        if problem.element_bytes > 2:
            return f"fragments have elements of 1 or 2 bytes, got {problem.element_bytes}"
        if not _power_of_two(self.block_r, self.chunks, self.num_warps) or self.block_r < 16 * self.num_warps:
            return (
                "block_r, chunks and num_warps must be powers of two, block_r at least 16 a wave, got "
                f"{self.block_r}, {self.chunks} and {self.num_warps}"
            )
        if problem.fast_axis(problem.x) != "c" or problem.fast_axis(problem.y) != "r":
            return "it loads along X's rows and stores along Y's: X must be row-major, or Y the transpose of its order"
        if self.by not in ("iu8", "f16", "bf16", "lanes"):
            return f"by must be iu8, f16, bf16 or lanes, got {self.by!r}"
        if self.by in ("f16", "bf16") and problem.element_bytes != 2:
            return f"by={self.by} moves elements of 2 bytes, got {problem.element_bytes}"
        return super().why_invalid(problem, gpu)


#: schedule, which is its kernel file's name -> its Config
SCHEDULES: Mapping[str, type[TransposeConfig]] = {"tiles": TilesConfig, "fragments": FragmentsConfig}


@read_when_traced
def parse_config(text: Any) -> TransposeConfig:
    """The config whose `text` this is; knobs that are left out take their defaults. Raises ArgumentError."""
    if not isinstance(text, str):
        raise ArgumentError(f"config: expected a config or its text, got {shown(text)}")
    schedule, _, rest = text.partition(":")
    if schedule not in SCHEDULES:
        raise ArgumentError(f"config: expected a schedule of {', '.join(SCHEDULES)}, got {schedule!r}")
    kind = SCHEDULES[schedule]
    known = {f.name: f.default for f in fields(kind) if f.name != "schedule"}
    knobs: dict[str, Any] = {}
    for word in filter(None, rest.split(",")):
        name, _, value = word.partition("=")
        if name not in known:
            raise ArgumentError(f"config: unknown knob {name!r}, the knobs are {', '.join(known)}")
        read = {bool: {"True": True, "False": False}.get, str: str, int: lambda v: int(v) if v.isdecimal() else None}
        knobs[name] = read[type(known[name])](value)
        if knobs[name] is None:
            raise ArgumentError(f"config: knob {name} must be of type {type(known[name]).__name__}, got {value!r}")
    return kind(**knobs)


def _padded(n: int, most: int) -> int:
    """The power of two that holds n, at most `most`."""
    return min(most, 1 << max(0, n - 1).bit_length())


#: NVIDIA: bytes of an element -> most columns of X in a tile, bytes of it in a lane, warps; the fastest of those around
#: them on one H200 at 128 MB and more (docs/transpose.md, 2026-11-20).
_MEASURED = {1: (128, 128, 8), 2: (64, 128, 4), 4: (64, 128, 4), 8: (32, 64, 4)}
#: The same where rows of X or Y begin at addresses that no 16-byte access takes.
_MEASURED_NARROW = {1: (128, 128, 8), 2: (32, 32, 8), 4: (64, 128, 4), 8: (32, 64, 4)}

#: The same of batches of fewer bytes, read and written, which larger tiles leave SMs without; 2026-11-30.
_MEASURED_SMALL, _SMALL_BYTES = (32, 32, 2), 12_000_000


def candidates(problem: TransposeProblem, gpu: Gpu) -> Iterator[TransposeConfig]:
    """Configs, best first: a tile of the measured size, which shrinks with the matrix and then takes more matrices."""
    size = problem.element_bytes
    if size not in ELEMENT_BYTES:
        yield TilesConfig(block_r=16, block_c=16)  # which says why not
        return
    narrow = min(problem.vector(problem.x), problem.vector(problem.y)) * size < MAX_VECTOR_BYTES
    side, held, num_warps = (_MEASURED_NARROW if narrow else _MEASURED)[size]
    if gpu.vendor == "amd":  # not measured: four waves with four 16-byte loads of a lane in flight
        held, num_warps = 64, 4
    elif problem.bytes < _SMALL_BYTES:
        side, held, num_warps = _MEASURED_SMALL
    elements = held * gpu.wave * num_warps // size
    block_c = _padded(problem.columns, side)
    block_r = _padded(problem.rows, elements // block_c)
    block_c = _padded(problem.columns, elements // block_r)
    block_b = _padded(problem.batch[1], max(1, elements // (block_r * block_c)))
    while num_warps > 1 and block_b * block_r * block_c * size < MAX_VECTOR_BYTES * gpu.wave * num_warps:
        num_warps //= 2
    yield TilesConfig(block_b=block_b, block_r=block_r, block_c=block_c, num_warps=num_warps)


@lru_cache(maxsize=4096)
def plan(problem: TransposeProblem, gpu: Gpu) -> TransposeConfig:
    """The config that `transpose` runs when none is given. Pure; raises UnsupportedError where there is none."""
    why = "there is no candidate"
    for config in candidates(problem, gpu):
        why = config.why_invalid(problem, gpu)
        if why is None:
            return config
    raise UnsupportedError(f"no schedule can do {problem.key} on {gpu.name}: {why}")


def checked_config(problem: TransposeProblem, gpu: Gpu, config: TransposeConfig | None) -> TransposeConfig:
    """`config` if it can do the problem, or what `plan` chooses. Raises InvalidConfigError, UnsupportedError."""
    if config is None:
        return plan(problem, gpu)
    why = config.why_invalid(problem, gpu)
    if why is not None:
        raise InvalidConfigError(f"config: {config.text} cannot do {problem.key} on {gpu.name}: {why}")
    return config
