"""AMDGCN text as a list of instructions: mnemonic, operands, class, memory width, branch target, line number.

Every instruction has one `Kind`. The names follow the RDNA 3, RDNA 4 and CDNA 3 instruction set guides, in
both spellings that LLVM prints (`ds_load_b128` and `ds_read_b128`, `global_load_b128` and
`global_load_dwordx4`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from .flow import Flow, flow_of
from .handwritten import as_printed, line_number
from .metadata import parse_metadata, select_kernel
from .parse import kernel_names


class Kind(StrEnum):
    """What an instruction does, as far as the order of a loop is concerned."""

    MATRIX = "matrix"
    VALU = "valu"
    DUAL = "dual-issue pair"
    SALU = "salu"
    SCALAR_LOAD = "scalar load"
    GLOBAL_LOAD = "global load"
    GLOBAL_STORE = "global store"
    GLOBAL_TO_LDS = "global to LDS"
    LDS_TO_GLOBAL = "LDS to global"
    ATOMIC = "atomic"
    LDS_LOAD = "LDS load"
    LDS_STORE = "LDS store"
    LDS_OTHER = "LDS other"
    SCRATCH = "scratch"
    WAIT = "wait"
    BARRIER = "barrier"
    BRANCH = "branch"
    OTHER = "other"


@dataclass(frozen=True)
class Instruction:
    """One instruction; `line` is its 1-based line in the text that was parsed."""

    line: int
    text: str  #: without comment
    mnemonic: str  #: of a dual-issue pair, the first half's
    operands: str
    kind: Kind
    width_bytes: int = 0  #: contiguous bytes per lane and address of a memory access
    accesses: int = 1  #: addresses: 2 for `ds_load_2addr_b64`
    target: str | None = None  #: label that a branch goes to

    @property
    def fmas(self) -> int:
        """Multiply-adds per lane: 2 for a dual-issue or packed pair, 0 for a matrix instruction."""
        if self.kind is Kind.DUAL:
            return len(re.findall(r"v_dual_fma", self.text))
        if self.kind is Kind.VALU:
            if self.mnemonic.startswith("v_pk_fma"):
                return 2
            floating = r"v_(fma|fmac|fmaak|fmamk|mad|mac)_(\w+_)?f\d|v_dot\d|fma\.rn\."  # the last is PTX
            return int(re.match(floating, self.mnemonic) is not None)
        return 0

    @property
    def ends_flow(self) -> bool:
        """Whether the next instruction in the text is not the next one executed."""
        if self.mnemonic.startswith("s_"):
            return flow_of(self.mnemonic, self.text) not in (Flow.NEXT, Flow.BRANCHES, Flow.CALLS)
        return (self.kind is Kind.BRANCH or self.mnemonic in ("ret", "exit")) and not self.text.startswith("@")  # PTX

    @property
    def width_name(self) -> str:
        """For example "16 B", or "2x8 B" for two addresses."""
        return f"{self.width_bytes} B" if self.accesses == 1 else f"{self.accesses}x{self.width_bytes} B"


@dataclass(frozen=True)
class Listing:
    """The instructions of one kernel in the text's order, and its labels: name to index of the next
    instruction.
    """

    kernel: str | None
    target: str | None  #: processor that the text is for, for example "gfx1151"
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]


_WORD = re.compile(r"\s*([\w.$@]+):(?:\s|$)")
_TARGET = re.compile(r'^\s*\.(?:amdgcn_target|target)\s+"?[^\n]*?(gfx[0-9a-f]+|sm_\w+)', re.MULTILINE)


def parse_listing(asm: str, kernel: str | None = None) -> Listing:
    """The instructions of `kernel`, or of the text's only kernel; text without metadata is taken whole where none
    is named.

    Raises ArgumentError for an unknown kernel, or for several kernels and no choice.
    """
    asm = as_printed(asm)
    if parse_metadata(asm) or (kernel is not None and kernel not in kernel_names(asm)):
        kernel = select_kernel(asm, kernel).name
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for number, line in _code_lines(asm, kernel):
        text = re.split(r";|//", line, maxsplit=1)[0].rstrip()
        while label := _WORD.match(text):
            labels[label[1]] = len(instructions)
            text = text[label.end() :]
        text = text.strip()
        if text and not text.startswith(".") and (text[0].isalpha()):
            instructions.append(parse_instruction(text, number))
    processor = _TARGET.search(asm)
    return Listing(kernel, processor[1] if processor else None, tuple(instructions), labels)


def _code_lines(asm: str, kernel: str | None) -> Iterator[tuple[int, str]]:
    """Numbered lines of one function: from its label to its end, or all code where no kernel is named."""
    inside = kernel is None
    for number, line in enumerate(asm.split("\n"), 1):
        if not inside:
            inside = line.startswith(f"{kernel}:")
        if not inside:
            continue
        stripped = line.lstrip()
        if stripped.startswith((".Lfunc_end", ".amdhsa_kernel", ".section", ".amdgpu_metadata", ".size")):
            return
        yield line_number(line, number), line


_OTHER = re.compile(
    r"s_(delay_alu|nop|clause|set_inst_prefetch|sethalt|sleep|setprio|endpgm|wait_alu|wait_event|code_end|icache"
    r"|dcache|sendmsg|setreg|getreg|round_mode|denorm_mode|inst_prefetch|wakeup|trap|ttrace)|exp_|export|image_"
)
_CACHE = re.compile(r"(global|buffer)_(inv|wb|wbinv|wbl2|gl\d_inv|gl1_inv)")
_RULES: tuple[tuple[re.Pattern[str], Kind], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"v_(wmma|swmmac|mfma|smfmac)_", Kind.MATRIX),
        (r"v_dual_", Kind.DUAL),
        (r"v_", Kind.VALU),
        (r"s_(waitcnt|wait_[a-z_]*cnt|wait_idle)", Kind.WAIT),
        (r"s_barrier", Kind.BARRIER),
        (r"s_(branch|cbranch|set_?pc|swap_?pc|add_pc|call|rfe|subvector_loop)", Kind.BRANCH),
        (r"s_(buffer_)?load_", Kind.SCALAR_LOAD),
        (r"(global|flat|buffer|tbuffer)_(atomic)", Kind.ATOMIC),
        (r"(global|buffer)_load_(async_to_)?lds_", Kind.GLOBAL_TO_LDS),
        (r"(global|flat|buffer|tbuffer)_load", Kind.GLOBAL_LOAD),
        (r"(global|flat|buffer|tbuffer)_store", Kind.GLOBAL_STORE),
        (r"scratch_", Kind.SCRATCH),
        (r"ds_(load|read)", Kind.LDS_LOAD),
        (r"ds_(store|write)", Kind.LDS_STORE),
        (r"ds_", Kind.LDS_OTHER),
        (r"s_", Kind.SALU),
    )
)
_NAMED_WIDTHS = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4, "short": 2, "byte": 1}
_MEMORY = frozenset(
    {
        Kind.SCALAR_LOAD, Kind.GLOBAL_LOAD, Kind.GLOBAL_STORE, Kind.GLOBAL_TO_LDS, Kind.ATOMIC,
        Kind.LDS_LOAD, Kind.LDS_STORE, Kind.SCRATCH,
    }
)  # fmt: skip


def parse_instruction(text: str, line: int = 0) -> Instruction:
    """One instruction of AMDGCN text, without label or comment."""
    mnemonic, _, operands = text.partition(" ") if " " in text else text.partition("\t")
    operands = operands.strip()
    kind = _kind(mnemonic, operands)
    width, accesses = memory_width(mnemonic) if kind in _MEMORY else (0, 1)
    target = operands.split(",")[-1].strip() if kind is Kind.BRANCH and operands else None
    return Instruction(line, " ".join(text.split()), mnemonic, operands, kind, width, accesses, target)


def _kind(mnemonic: str, operands: str) -> Kind:
    if _OTHER.match(mnemonic) or _CACHE.match(mnemonic):
        return Kind.OTHER
    for pattern, kind in _RULES:
        if pattern.match(mnemonic):
            # CDNA marks a buffer load into LDS by a modifier.
            if kind is Kind.GLOBAL_LOAD and re.search(r"\blds\b", operands):
                return Kind.GLOBAL_TO_LDS
            return kind
    return Kind.OTHER


def memory_width(mnemonic: str) -> tuple[int, int]:
    """Contiguous bytes per lane and address, and the number of addresses: (16, 1), or (8, 2) for two
    addresses.
    """
    accesses = 2 if re.search(r"_2addr|(read|write)2(st64)?_", mnemonic) else 1
    bits = re.search(r"_[biuf](\d+)", mnemonic)
    if bits:
        return int(bits[1]) // 8, accesses
    for name, width in _NAMED_WIDTHS.items():
        if name in mnemonic:
            return width, accesses
    elements = re.search(r"_format_(?:d16_)?([xyzw]+)", mnemonic)
    return (4 * len(elements[1]) if elements else 0), accesses
