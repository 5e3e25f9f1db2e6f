"""Machine code of one kernel for one GPU, and what the compiler said about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ArgumentError, CompileError
from ..gpu import Gpu, get_gpu
from ..isa.elf import cubin_attribute, read_sections, symbol_sizes
from ..isa.metadata import select_kernel

_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT = 0x11, 0x2F


@dataclass(frozen=True)
class KernelArgument:
    """One argument in the kernel argument segment: bytes `offset` to `offset + size`."""

    offset: int
    size: int
    kind: str  #: the metadata's value_kind: "global_buffer", "by_value", ...
    name: str | None = None  #: the source's name where it is known; Triton's two scratch pointers have none


@dataclass(frozen=True)
class CodeObject:
    """One kernel compiled for one GPU. Every figure comes from the compiler's own output."""

    kernel: str  #: symbol
    gpu: Gpu
    asm: str  #: AMDGCN text; PTX on NVIDIA
    binary: bytes  #: hsaco or cubin, an ELF file
    vgprs: int  #: vector registers per lane (CDNA: both kinds together); NVIDIA: registers per thread
    sgprs: int  #: scalar registers per wave; 0 on NVIDIA, where the compiler does not tell
    vgpr_spills: int  #: registers spilled; NVIDIA: 4-byte spill stores
    sgpr_spills: int
    scratch_bytes: int  #: private memory per lane
    lds_bytes: int  #: LDS or shared memory per workgroup, fixed and allocated at launch
    occupancy: int | None  #: waves per SIMD that the registers permit, by LLVM; LDS is not counted
    code_bytes: int
    num_warps: int
    wave: int  #: lanes per wave
    triton_version: str
    arguments: tuple[KernelArgument, ...] = ()  #: empty on NVIDIA
    kernarg_bytes: int = 0  #: size of the kernel argument segment; 0 on NVIDIA
    agprs: int = 0  #: CDNA: accumulation registers among `vgprs`
    workgroup_processor_mode: bool = False  #: RDNA: a workgroup's waves share both CUs of a WGP

    @property
    def workgroup_size(self) -> int:
        """Threads of one workgroup."""
        return self.num_warps * self.wave

    @property
    def spills(self) -> int:
        """Spilled registers of both kinds."""
        return self.vgpr_spills + self.sgpr_spills

    def to_record(self) -> dict[str, Any]:
        """Everything but `asm` and `binary`, as JSON can hold it."""
        skip = ("asm", "binary", "gpu", "arguments")
        record = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in skip}
        return record | {"gpu": self.gpu.name, "arguments": [asdict(a) for a in self.arguments]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], asm: str, binary: bytes) -> CodeObject:
        """The inverse of `to_record`."""
        fields = dict(record)
        fields["gpu"] = get_gpu(fields["gpu"])
        fields["arguments"] = tuple(KernelArgument(**a) for a in fields["arguments"])
        return cls(asm=asm, binary=binary, **fields)


def from_amdgcn(
    asm: str,
    binary: bytes,
    gpu: Gpu,
    *,
    triton_version: str,
    kernel: str | None = None,
    num_warps: int | None = None,
    lds_bytes: int | None = None,
    argument_names: Sequence[str] = (),
) -> CodeObject:
    """The CodeObject of one kernel of an AMDGCN text and its linked binary.

    `num_warps` defaults to the largest workgroup that the kernel admits, `lds_bytes` to its fixed LDS.
    `argument_names` name the first arguments where the text itself does not.
    Raises ArgumentError where the kernel cannot be told, or where `num_warps` waves exceed what it admits.
    """
    found = select_kernel(asm, kernel)
    most_waves = max(1, found.max_workgroup_size // found.wave)
    if num_warps is not None and num_warps > most_waves:
        raise ArgumentError(
            f"kernel {found.name} admits workgroups of {found.max_workgroup_size} threads "
            f"({most_waves} waves of {found.wave}), fewer than num_warps={num_warps}"
        )
    sections = read_sections(binary)
    text_bytes = sum(len(section.data) for section in sections if section.name == ".text")
    arguments = tuple(
        KernelArgument(
            a.offset, a.size, a.kind, a.name or (argument_names[i] if i < len(argument_names) else None)
        )
        for i, a in enumerate(found.arguments)
    )
    return CodeObject(
        kernel=found.name,
        gpu=gpu,
        asm=asm,
        binary=binary,
        vgprs=found.vgprs,
        sgprs=found.sgprs,
        vgpr_spills=found.vgpr_spills,
        sgpr_spills=found.sgpr_spills,
        scratch_bytes=found.scratch_bytes,
        lds_bytes=found.lds_bytes if lds_bytes is None else lds_bytes,
        occupancy=_stated_occupancy(asm, found.name),
        code_bytes=symbol_sizes(sections).get(found.name, text_bytes),
        num_warps=num_warps or most_waves,
        wave=found.wave,
        triton_version=triton_version,
        arguments=arguments,
        kernarg_bytes=found.kernarg_bytes,
        agprs=found.agprs,
        workgroup_processor_mode=found.workgroup_processor_mode,
    )


def from_cubin(
    ptx: str, binary: bytes, gpu: Gpu, *, triton_version: str, num_warps: int, lds_bytes: int, ptxas_log: str
) -> CodeObject:
    """The CodeObject of the one kernel of a PTX text and its cubin.

    Registers come from the cubin, spills from `ptxas -v`; where that log is missing, the cubin's stack frame
    counts.
    """
    entry = re.search(r"\.visible\s+\.entry\s+([\w$.]+)", ptx)
    if entry is None:
        raise CompileError("the PTX has no visible entry")
    kernel = entry[1]
    sections = read_sections(binary)
    registers = cubin_attribute(sections, kernel, _EIATTR_REGCOUNT)
    if registers is None:
        raise CompileError(f"the cubin of {kernel} does not state its registers")
    frame = cubin_attribute(sections, kernel, _EIATTR_FRAME_SIZE) or 0
    logged = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", ptxas_log)
    spill_bytes = int(logged[2]) if logged else frame
    waves = gpu.waves_per_simd(registers)
    return CodeObject(
        kernel=kernel,
        gpu=gpu,
        asm=ptx,
        binary=binary,
        vgprs=registers,
        sgprs=0,
        vgpr_spills=-(-spill_bytes // 4),
        sgpr_spills=0,
        scratch_bytes=frame,
        lds_bytes=lds_bytes,
        occupancy=waves,
        code_bytes=sum(len(s.data) for s in sections if s.name == f".text.{kernel}"),
        num_warps=num_warps,
        wave=gpu.wave,
        triton_version=triton_version,
    )


def _stated_occupancy(asm: str, kernel: str) -> int | None:
    """LLVM's comment after the kernel's code; hand-written text has none."""
    label = re.search(rf"^{re.escape(kernel)}:", asm, re.MULTILINE)
    stated = re.compile(r"^; Occupancy: (\d+)", re.MULTILINE).search(asm, label.end() if label else 0)
    return int(stated[1]) if stated else None
