"""The page of `laneloom isa` for assembly that comes without metadata: hand-written code, a disassembly, a part of one.

What the kernel asks for is told by its `.amdhsa_kernel`, if it has one; registers otherwise by the code that names
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..errors import ArgumentError
from ..gpu import Gpu
from .analysis import Analysis, analyze_listing
from .check_code import ACCUMULATORS, Code, read_code
from .parse import Listing, descriptor
from .registers import Uses
from .render import analysis_dict, analysis_parts
from .words import counted

_NUMBERED_SGPRS = (1 << 102) - 1  #: VCC and the other registers with names of their own stand behind them


@dataclass(frozen=True)
class BareKernel:
    """One kernel, or a piece of code. None where the text does not say."""

    kernel: str | None
    gpu: Gpu
    asm: str
    wave: int
    analysis: Analysis
    described: bool  #: whether an `.amdhsa_kernel` says what it asks for
    vgprs: int | None  #: asked for, or the number of the last one that the code names and one
    sgprs: int | None
    lds_bytes: int | None
    scratch_bytes: int | None

    @property
    def missing(self) -> str:
        """What is not known, as one plain sentence, and where the registers' numbers come from."""
        unknown = "arguments, waves of a workgroup and spilled registers are not known"
        if self.described:
            told = "Registers, LDS and scratch are what .amdhsa_kernel asks for."
            return f"The text has no .amdgpu_metadata: {unknown}. {told}"
        told = "nor are LDS and scratch. Registers are those that the code names."
        return f"The text has neither .amdhsa_kernel nor .amdgpu_metadata: {unknown}, {told}"


def bare_kernel(text: str, gpu: str, kernel: str | None) -> BareKernel:
    """One kernel of a text without metadata.

    Raises as `read_code`, and ArgumentError where one of several has to be named.
    """
    codes = read_code(text, gpu, kernel)
    if len(codes) > 1:
        names = ", ".join(str(code.kernel) for code in codes)
        raise ArgumentError(f"the assembly holds {len(codes)} kernels ({names}): name one with kernel (--kernel)")
    code = next(iter(codes))
    asked = descriptor(code.text, code.kernel or "")
    listing = Listing(code.kernel or "", [], {}, asked) if asked else None
    named = _named(code)
    return BareKernel(
        code.kernel, code.gpu, code.text, code.lanes, analyze_listing(code.listing), listing is not None,
        _number(listing, "next_free_vgpr", named.writes_v), _number(listing, "next_free_sgpr", named.writes_s),
        _asked(listing, "group_segment_fixed_size"), _asked(listing, "private_segment_fixed_size"),
    )  # fmt: skip


def _named(code: Code) -> Uses:
    v = s = 0
    for step in code.steps:
        v, s = v | step.uses.reads_v | step.uses.writes_v, s | step.uses.reads_s | step.uses.writes_s
    if code.gpu.major == 9:  # of two kinds: their sum, for want of the place where one begins behind the other
        v = (1 << (v % (1 << ACCUMULATORS)).bit_length() + (v >> ACCUMULATORS).bit_length()) - 1
    return Uses(writes_v=v, writes_s=s & _NUMBERED_SGPRS)


def _number(listing: Listing | None, directive: str, named: int) -> int | None:
    if listing is None:
        return named.bit_length()
    return listing.directive(directive, -1) if listing.directive(directive, -1) >= 0 else None  # symbols, at times


def _asked(listing: Listing | None, directive: str) -> int | None:
    """Bytes: 0 where nothing is asked for, unknown where the text has no descriptor, or a symbol there."""
    if listing is None:
        return None
    return listing.directive(directive, -1) if directive in listing.descriptor else 0


def to_dict(bare: BareKernel, *, listing: bool = True) -> dict[str, Any]:
    """As `render.to_dict`, with None for what is not known, and `missing` for the sentence about it."""
    shown: dict[str, Any] = {
        "kernel": bare.kernel,
        "gpu": bare.gpu.name,
        "missing": bare.missing,
        "registers": {"vgprs": bare.vgprs, "sgprs": bare.sgprs, "vgpr_spills": None, "sgpr_spills": None},
        "scratch_bytes": bare.scratch_bytes,
        "lds_bytes": bare.lds_bytes,
        "num_warps": None,
        "wave": bare.wave,
        "occupancy": None,
    }
    return shown | analysis_dict(bare.analysis, bare.gpu, listing)


def render(bare: BareKernel, *, listing: bool = True) -> RenderableType:
    """As `render.render`."""
    parts: list[RenderableType] = [
        Text.assemble((bare.kernel or "code", "bold"), f"  {bare.gpu.name} ({bare.gpu.family})"),
        Text(bare.missing),
        Text(),
        _resources(bare),
        Text(),
        *analysis_parts(bare.analysis, bare.gpu, listing),
    ]
    return Group(*parts)


def _resources(bare: BareKernel) -> Table:
    gpu = bare.gpu
    table = Table.grid(padding=(0, 2))
    table.add_row("Vector registers", _of(bare.vgprs, gpu.vgprs_per_wave))
    table.add_row("Scalar registers", _of(bare.sgprs, gpu.sgprs_per_wave))
    table.add_row("Scratch", _of(bare.scratch_bytes, None, " B per lane"))
    table.add_row("LDS", _of(bare.lds_bytes, gpu.lds_bytes, " B"))
    table.add_row("Wave", f"{bare.wave} lanes")
    if bare.vgprs:
        waves = gpu.waves_per_simd(bare.vgprs, bare.wave, bare.sgprs or 0)
        table.add_row("Occupancy", f"registers permit {counted(waves, 'wave')} per SIMD")
    return table


def _of(number: int | None, most: int | None, unit: str = "") -> str:
    if number is None:
        return "not known"
    return f"{number:,}{unit}" if most is None else f"{number:,} of {most:,}{unit}"
