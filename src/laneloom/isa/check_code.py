"""Any AMDGCN text as what the checks read: typed instructions, basic blocks and who follows whom.

Understood are the compiler's `.s`, hand-written assembly with or without directives, and what `llvm-objdump -d` prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..errors import ArgumentError, EmulationError, UnsupportedError
from ..gpu import GPUS, Gpu, get_gpu
from .disassembly import branch_target
from .flow import Flow
from .handwritten import as_printed
from .listing import Kind, Listing, parse_listing
from .metadata import KernelMetadata, parse_metadata
from .parse import FILE, LOC, Instruction, Operand, Source, descriptor, file_name, instruction, kernel_names
from .parse import Listing as TypedListing
from .registers import Uses, uses, with_vcc
from .targets import gpu_of
from .vgpr_banks import number_registers

#: GPUs whose code is checked
CHECKED = tuple(g.name for g in GPUS.values() if g.vendor == "amd")
ACCUMULATORS = 256  #: a[n] stands for vector register 256 + n
_SYMBOL = re.compile(r"^[0-9a-fA-F]{8,16} <([^>]+)>:")
_DISASSEMBLED = re.compile(r"^\s+(\S.*?)\s*//\s*([0-9a-fA-F]+):")
_BRANCH = re.compile(r"(s_c?branch\w*)\s+(-?\d+)$")
_AMDGCN = re.compile(
    r"(?:s|v|ds|global|flat|buffer|tbuffer|scratch|image|lds|cluster|tensor)_|exp(?:ort)?\b|undecodable\b"
)


@dataclass(frozen=True)
class Step:
    """One instruction."""

    ins: Instruction
    kind: Kind
    uses: Uses

    @property
    def flow(self) -> Flow:
        """Where control goes behind it."""
        return self.ins.flow


@dataclass(frozen=True)
class Block:
    """Straight-line code: steps [first, last) and the blocks that may come next; None: code that is not here."""

    first: int
    last: int
    next: tuple[int | None, ...]


@dataclass(frozen=True)
class Code:
    """One kernel, ready to be checked."""

    gpu: Gpu
    kernel: str | None
    lanes: int
    steps: tuple[Step, ...]
    blocks: tuple[Block, ...]
    metadata: KernelMetadata | None
    text: str
    listing: Listing  #: the same instructions without their operands' types

    def blocks_before(self) -> list[list[int]]:
        """Of each block the numbers of those that control may come from."""
        before: list[list[int]] = [[] for _ in self.blocks]
        for number, block in enumerate(self.blocks):
            for after in block.next:
                if after is not None:
                    before[after].append(number)
        return before

    def step_before_end(self) -> Step | None:
        """The last step before the text's end, or before what fills the memory behind it, if control comes there and
        goes on. A call may be one of no return."""
        seen, left = {0}, [0]
        while left:
            more = {after for after in self.blocks[left.pop()].next if after is not None} - seen
            seen |= more
            left += more
        for number in sorted(seen):
            block = self.blocks[number]
            step = self.steps[block.last - 1]
            if step.flow is Flow.FILLS:
                return self.steps[max(block.last - 2, block.first)]
            if block.last == len(self.steps) and step.flow in (Flow.NEXT, Flow.BRANCHES):
                return step
        return None


def read_code(text: str, gpu: str | Gpu | None = None, kernel: str | None = None) -> tuple[Code, ...]:
    """Every kernel of a text, or the one that is named; text without kernels is one piece of code.

    gpu: by default the one of the text's `.amdgcn_target`.
    Raises ArgumentError for text without instructions, with lines that are none of AMDGCN's, without a GPU, or without
    that kernel; UnsupportedError for a GPU that is not AMD's.
    """
    text, symbols = _as_assembly(text)
    text = as_printed(text)
    chosen = gpu_of(text, gpu.name if isinstance(gpu, Gpu) else gpu)
    if chosen is None:
        raise ArgumentError("the text has no .amdgcn_target line: say with --gpu which GPU it is for")
    row = get_gpu(chosen)
    if row.name not in CHECKED:
        raise UnsupportedError(f"laneloom checks code of {', '.join(CHECKED)}, not of {row.name} ({row.family})")
    described = {m.name: m for m in parse_metadata(text)}
    described_alone = [] if described or symbols else kernel_names(text)  # by a descriptor, without metadata
    names = list(described) or symbols or described_alone
    if kernel is not None:
        if kernel not in names:
            raise ArgumentError(f"no kernel {kernel!r} in this text: it holds {', '.join(names) or 'no kernel names'}")
        names = [kernel]
    codes = []
    for name in names or [None]:
        part = _only(text, name, symbols) if name in symbols else text
        listing = parse_listing(part, None if name in symbols else name)
        foreign = next((i for i in listing.instructions if not _AMDGCN.match(i.mnemonic)), None)
        if foreign is not None:
            raise ArgumentError(f"line {foreign.line} is no AMDGCN instruction: {foreign.text[:80]!r}")
        if listing.instructions:
            codes.append(_code(part, row, name, listing, described.get(name or "")))
    if not codes:
        raise ArgumentError("the text holds no AMDGCN instructions")
    return tuple(codes)


def _code(text: str, gpu: Gpu, name: str | None, listing: Listing, metadata: KernelMetadata | None) -> Code:
    asked = descriptor(text, name) if name else {}
    wave64 = re.search(r"^\s*\.amdhsa_wavefront_size32\s+0", text, re.MULTILINE) and not asked  # of a part of a text
    wave64 = wave64 or asked.get("wavefront_size32") == "0"
    lanes = metadata.wave if metadata else 64 if wave64 or gpu.major == 9 else 32
    where = _sources(text)
    typed = (instruction(i.mnemonic, i.operands, i.line, i.text, where.get(i.line)) for i in listing.instructions)
    code = [with_vcc(ins, lanes) for ins in typed]
    if gpu.major == 9:
        for typed in code:
            typed.operands = tuple(_one_file(o) for o in typed.operands)
    if gpu.is_cdna5:
        code = _numbered(code, listing, name, gpu)
    steps = [Step(typed, i.kind, uses(typed, lanes)) for typed, i in zip(code, listing.instructions, strict=True)]
    return Code(gpu, name, lanes, tuple(steps), _blocks(steps, listing), metadata, text, listing)


def _numbered(code: list[Instruction], listing: Listing, name: str | None, gpu: Gpu) -> list[Instruction]:
    """With the numbers that CDNA 5's vector registers have in the whole file."""
    typed = TypedListing(name or "?", code, dict(listing.labels), {})
    try:
        number_registers(typed, gpu.name == "gfx1251")
    except EmulationError as error:
        raise UnsupportedError(str(error)) from error
    return typed.instructions


def _one_file(operand: Operand) -> Operand:
    """Accumulation registers a[n] as vector registers from ACCUMULATORS on: CDNA has both in one file."""
    return replace(operand, kind="v", index=ACCUMULATORS + operand.index) if operand.kind == "a" else operand


def _sources(text: str) -> dict[int, Source]:
    """Line of the text -> file and line of the `.loc` that holds there."""
    files = {m[1]: file_name(m) for m in FILE.finditer(text)}
    if not files:
        return {}
    found: dict[int, Source] = {}
    source = None
    for number, line in enumerate(text.split("\n"), 1):
        if (match := LOC.match(line)) and match[2] != "0":
            source = Source(files.get(match[1], "?"), int(match[2]))
        elif line.startswith("\t.size"):
            source = None
        if source is not None:
            found[number] = source
    return found


def _blocks(steps: list[Step], listing: Listing) -> tuple[Block, ...]:
    starts = {0, *(at for at in listing.labels.values() if at < len(steps))}
    starts |= {k + 1 for k, s in enumerate(steps) if s.flow is not Flow.NEXT}
    order = sorted(s for s in starts if s < len(steps))
    number = {at: k for k, at in enumerate(order)}
    blocks = []
    for k, first in enumerate(order):
        last = order[k + 1] if k + 1 < len(order) else len(steps)
        flow = steps[last - 1].flow
        after: list[int | None] = [None] if flow is Flow.LEAVES else []
        if flow in (Flow.BRANCHES, Flow.JUMPS, Flow.CALLS):  # a register's name is no label
            target = listing.instructions[last - 1].target or ""
            after.append(number.get(listing.labels.get(target, -1)))
        # Code for firmware that preloads no arguments is a trap; other firmware starts behind it.
        is_header = last == 1 and steps[0].ins.name == "s_trap"
        if (flow in (Flow.NEXT, Flow.BRANCHES, Flow.CALLS) or is_header) and last < len(steps):
            after.append(number[last])
        blocks.append(Block(first, last, tuple(after)))
    return tuple(blocks)


def _as_assembly(text: str) -> tuple[str, list[str]]:
    """A disassembly as assembly with the same lines, and its symbols: branches get labels for their offsets."""
    lines = text.split("\n")
    symbols = [m[1] for line in lines if (m := _SYMBOL.match(line))]
    if not symbols:
        return text, []
    placed: dict[int, int] = {}
    out = []
    for number, line in enumerate(lines):
        if symbol := _SYMBOL.match(line):
            out.append(f"{symbol[1]}:")
        elif match := _DISASSEMBLED.match(line):
            placed[int(match[2], 16)] = number
            out.append("\t" + match[1])
        else:
            out.append("")
    wanted = set()
    for at, number in placed.items():
        if branch := _BRANCH.fullmatch(out[number].strip()):
            target = branch_target(at + 4, int(branch[2]))
            out[number] = f"\t{branch[1]} .L{target:x}"
            wanted.add(target)
    for target in wanted & placed.keys():
        out[placed[target]] = f".L{target:x}:{out[placed[target]]}"
    return "\n".join(out), symbols


def _only(text: str, symbol: str, symbols: list[str]) -> str:
    """The text with the lines of other symbols emptied."""
    out, inside = [], False
    others = {f"{s}:" for s in symbols}
    for line in text.split("\n"):
        if line in others:
            inside = line == f"{symbol}:"
        out.append(line if inside else "")
    return "\n".join(out)
