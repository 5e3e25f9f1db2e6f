"""`Program`: a kernel's assembly as basic blocks of closures, ready to run over `Waves`."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import ref

from ..errors import EmulationError, UnknownInstructionError
from ..gpu import Gpu, emulated_gpu, get_gpu
from ..isa.metadata import parse_metadata
from ..isa.parse import Instruction, Listing, parse
from ..isa.symbols import plain_symbols
from ..locks import cached_property
from . import calls, cdna, matrix, wmma3
from .allocation import prepare
from .alu import Step, Target
from .builders import build_nothing, find_builder, is_ordering
from .cluster import held_by, is_barrier, passed
from .conditions import CONDITIONS
from .entry import first_instruction
from .gfx9_modes import INDEXED, IndexedGuard, build_skip, skipped_to
from .loaded import LoadedObject
from .memory import AccessFault
from .mode import Mode, initial_mode, modes_of
from .races import Misaligned, RaceFault, wave_of
from .shadow import Found
from .state import Waves
from .strict import Guard, as_error, check_branch, race_error
from .tested_loads import LOADS, tested_loads
from .undefined_select import follow_selects
from .undefined_swap import follow_swaps

if TYPE_CHECKING:
    from .counters import Counters
    from .observer import Observer


@dataclass(slots=True)
class Code:
    """What a block executes."""

    steps: list[Step] = field(default_factory=list)
    sources: list[Instruction] = field(default_factory=list)  #: the instruction behind each step
    guards: list[Guard | IndexedGuard] = field(default_factory=list)  #: strict mode: of each step

    def append(self, ins: Instruction, step: Step) -> None:
        self.steps.append(step)
        self.sources.append(ins)


@dataclass(frozen=True)
class _Stop:
    """The step of an instruction that is not implemented."""

    message: str

    def __call__(self, g: Waves) -> None:
        raise UnknownInstructionError(self.message)


@dataclass
class Block:
    """Straight-line code, then one way to leave. Its closures are built when a launch first comes by."""

    program: ref[Program]  #: weak: a Program that nobody holds is gone at once, and with it some kilobytes a line
    first: int  #: index of its first instruction
    last: int  #: one past its last
    leave: str = "next"  #: "next", "jump", "end", "barrier", "indirect", or a branch condition such as "scc1"
    target: int = 0  #: block to jump to
    jump: calls.Jump | None = None  #: where an indirect jump goes
    decide: tuple[int, ...] = ()  #: scalar registers that say whether vector instructions are skipped

    @cached_property
    def code(self) -> Code:
        program = self.program()
        assert program is not None, "a block runs as part of its program"
        return program.build(self)

    @cached_property
    def steps(self) -> list[Step]:
        return self.code.steps

    @property
    def sources(self) -> list[Instruction]:
        return self.code.sources


class Program:
    """One kernel for one GPU, compiled to closures once and run by any number of launches.

    A strict program has a Guard beside every closure and batches no matrix instructions.
    """

    def __init__(
        self, asm: str, gpu: str | Gpu, kernel: str | None = None, *, strict: bool = False, elf: bytes | None = None
    ):
        """elf: the code object that `asm` is the disassembly of; its data is loaded."""
        self.gpu, self.asm, self.strict = emulated_gpu(gpu), asm, strict
        self.listing: Listing = parse(asm, kernel)
        self.lanes = prepare(self.listing, self.gpu)
        self.kernel = self.listing.kernel
        loaded = None if elf is None else LoadedObject(elf)
        self.places = calls.Places(self.listing, *(() if loaded is None else (loaded.base,)))
        constants = calls.link(plain_symbols(asm), self.listing, self.places)
        self.regions = [*([constants] if constants else []), *(loaded.regions if loaded else [])]  #: beside arguments
        self.arguments = [a for k in parse_metadata(asm) if k.name == self.kernel for a in k.arguments]
        self.hidden_arguments = [a for a in self.arguments if a.kind.startswith("hidden_")]
        first = cdna.first_accumulator(self.listing) if self.gpu.major == 9 else Target.accumulators
        self.target = Target(self.gpu, self.lanes, initial_mode(self.listing, self.gpu), first)
        self.targets = self._follow_mode()
        self.guards: dict[int, Guard | IndexedGuard] = {}  #: strict mode: by instruction, of blocks that were reached
        self.blocks = self._cut()
        vgprs = self.listing.directive("next_free_vgpr", self.gpu.vgprs_per_wave)
        self.vgprs = max(vgprs, 1) * (1 + self.gpu.is_cdna_1) + 32

    # -- building ------------------------------------------------------------------------------------------------------

    def _follow_mode(self) -> list[Target]:
        """What each instruction is built for: the floating-point mode changes along the text."""
        made: dict[Mode, Target] = {}
        modes = modes_of(self.listing, self.target.mode, self.lanes)
        return [made.setdefault(mode, replace(self.target, mode=mode)) for mode in modes]

    def _cut(self) -> list[Block]:
        code = self.listing.instructions
        labels = {*self.listing.labels.values(), *self.places.reached(self.listing)}
        first = first_instruction(self.listing, self.gpu)
        starts = {0, first, *labels}
        behind: dict[int, int] = {}  #: s_setvskip -> where it skips to
        for i, ins in enumerate(code):
            if ins.name.startswith(("s_branch", "s_cbranch")) or ins.name in calls.LEAVING or is_barrier(ins.name):
                starts.add(i + 1)
            elif ins.name == "s_setvskip":
                behind[i] = skipped_to(code, labels, i)
                starts |= {i + 1, behind[i]}
        order = sorted(s for s in starts if s < len(code))
        number = {s: k for k, s in enumerate(order)}
        self.first_block = number.get(first, 0)
        blocks = []
        for k, start in enumerate(order):
            stop = order[k + 1] if k + 1 < len(order) else len(code)
            blocks.append(self._block(code, start, stop, number))
            if stop - 1 in behind:
                following, skipped = number.get(stop, len(number)), number.get(behind[stop - 1], len(number))
                skip = code[stop - 1]
                blocks[-1].leave, blocks[-1].jump = "indirect", build_skip(skip, following, skipped)
                blocks[-1].decide = tuple(o.index for o in skip.operands if o.kind == "s")
        return blocks

    def _block(self, code: list[Instruction], start: int, stop: int, number: dict[int, int]) -> Block:
        block = Block(ref(self), start, stop)
        last = code[stop - 1]
        if last.name in calls.ENDS:
            block.leave = "end"
        elif is_barrier(last.name):
            block.leave = held_by(last, self.gpu)
        elif last.name in calls.JUMPS:
            block.leave = "indirect"
            try:
                block.jump = calls.build_jump(last, stop - 1, self.listing.labels, number, self.places)
            except KeyError:
                raise EmulationError(self._where(last, calls.leads_nowhere(last))) from None
        elif last.name.startswith(("s_branch", "s_cbranch")):
            if last.name != "s_branch" and last.name.removeprefix("s_cbranch_") not in CONDITIONS:
                raise UnknownInstructionError(self._where(last, f"{last.mnemonic} is not implemented"))
            label = str(last.operands[0].value)
            if label not in self.listing.labels:
                raise EmulationError(self._where(last, calls.leads_nowhere(last)))
            at = self.listing.labels[label]
            block.target = number.get(at, len(number))
            block.leave = "jump" if last.name == "s_branch" else last.name.removeprefix("s_cbranch_")
        return block

    def build(self, block: Block) -> Code:
        """The closures of a block. They live on, so Python's collector would only walk over all of them again."""
        collects = gc.isenabled()
        gc.disable()
        try:
            return self._closures(block)
        finally:
            if collects:
                gc.enable()

    def _closures(self, block: Block) -> Code:
        body, targets = self.listing.instructions[block.first : block.last], self.targets[block.first : block.last]
        if not self.strict:
            return self._batched(body if block.leave in ("next", "launch") else body[:-1], targets)
        last = None if block.leave in ("next", "launch") else body[-1]
        code, tested = Code(), tested_loads(body, self.lanes, LOADS)
        for number, (ins, target) in enumerate(zip(body, targets, strict=True), block.first):
            step = build_nothing(ins, target) if ins is last else self.step_of(ins, target)
            code.append(ins, step)
            guard = self._guard(ins, number, target, step, number - block.first in tested)
            code.guards.append(self.guards.setdefault(number, guard))
        follow_selects(code.guards, body, self.lanes)
        follow_swaps(code.guards, block, self.listing, self.places, self.lanes)
        return code

    def _guard(self, ins: Instruction, number: int, target: Target, step: Step, tested: bool) -> Guard | IndexedGuard:
        if isinstance(step, _Stop):
            ins = replace(ins, name="s_nop", operands=(), modifiers={}, second=None)
        if ins.name != INDEXED:
            return Guard(ins, number, target, step, tested)
        return IndexedGuard(ins, lambda plain: Guard(plain, number, target, self.step_of(plain, target)))

    def _batched(self, body: list[Instruction], targets: list[Target]) -> Code:
        """Matrix instructions wait, to be batched, until something touches their registers."""
        code = Code()
        pending: list[matrix.Wmma] = []
        behind: list[Instruction] = []
        results: set[int] = set()
        inputs: set[int] = set()

        def flush() -> None:
            if pending:
                code.append(behind[0], matrix.build(list(pending)))
                pending.clear()
                behind.clear()
                results.clear()
                inputs.clear()

        for ins, target in zip(body, targets, strict=False):  # the block's last instruction may be its branch
            if is_ordering(ins.name):
                continue
            if ins.name.startswith("v_wmma") and not (ins.missing or wmma3.fits(ins.name)):
                try:
                    wmma = matrix.decode(ins, target)
                except UnknownInstructionError:
                    flush()
                    code.append(ins, self._unknown(ins))
                    continue
                if (
                    (pending and wmma.shape != pending[0].shape)
                    or wmma.operands() & results
                    or wmma.writes() & inputs
                    or (wmma.c != wmma.d and wmma.writes() & results)
                    or (wmma.c is not None and wmma.c != wmma.d and wmma.reads() & results)
                ):
                    flush()
                pending.append(wmma)
                behind.append(ins)
                results |= wmma.writes()
                inputs |= wmma.operands() | (wmma.reads() if wmma.c != wmma.d else set())
                continue
            if pending:
                mentioned, written = matrix.touched(ins)
                if mentioned & results or written & inputs or ins.name.startswith("s_set"):
                    flush()
            code.append(ins, self.step_of(ins, target))
        flush()
        return code

    def step_of(self, ins: Instruction, target: Target) -> Step:
        """The closure of one instruction; an unknown one becomes a step that stops when it is reached."""
        try:
            if ins.second is not None and not ins.missing:
                return self._dual(ins, target)
            if ins.flag("gds") and not ins.name.startswith("ds_gws_"):
                raise UnknownInstructionError("GDS, a memory of the whole launch, is not modelled")
            builder = None if ins.missing else find_builder(ins.name)
            return builder(ins, target) if builder else self._unknown(ins)
        except UnknownInstructionError as error:
            return self._unknown(ins, str(error))
        except (IndexError, KeyError, AssertionError):
            return self._unknown(ins, "with these operands")
        except ValueError as error:
            if "to unpack" in str(error):
                return self._unknown(ins, "with these operands")
            raise EmulationError(self._where(ins, str(error))) from error

    def _dual(self, ins: Instruction, target: Target) -> Step:
        """A dual-issue pair: both halves read their sources before either writes."""
        assert ins.second is not None
        single = Instruction(ins.name, "", ins.operands, ins.modifiers, ins.line, ins.text, ins.source)
        x, y = self.step_of(single, target), self.step_of(ins.second, target)
        written = range(ins.operands[0].index, ins.operands[0].index + ins.operands[0].count)
        reads = {o.index + k for o in ins.second.operands[1:] if o.kind == "v" for k in range(o.count)}
        if "fmac" in ins.second.name or "dot2acc" in ins.second.name:
            reads.add(ins.second.operands[0].index)
        if reads.isdisjoint(written):

            def in_order(g: Waves) -> None:
                x(g)
                y(g)

            return in_order

        def both(g: Waves) -> None:
            before = [g.u[n].copy() for n in written]
            x(g)
            after = [g.u[n].copy() for n in written]
            for n, row in zip(written, before, strict=True):
                g.u[n][...] = row
            y(g)
            for n, row in zip(written, after, strict=True):
                g.u[n][...] = row

        return both

    def _unknown(self, ins: Instruction, why: str = "") -> Step:
        where = f"{self.gpu.name} (wave{self.lanes})"
        what = f"the emulator does not implement {ins.mnemonic} on {where}{f' ({why})' if ' ' in why else ''}"
        if ins.missing:
            what = ins.missing
        elif ins.name == "undecodable":
            what = "llvm-objdump did not know this instruction; that of a newer LLVM may (LANELOOM_OBJDUMP names it)"
        return _Stop(self._where(ins, what))

    def _where(self, ins: Instruction, text: str) -> str:
        source = f" ({ins.source})" if ins.source else ""
        return f"{self.kernel}: {text}; line {ins.line}: {ins.text!r}{source}"

    # -- running -------------------------------------------------------------------------------------------------------

    def run_block(
        self, g: Waves, name_wave: Callable[[int], str], counters: Counters | Observer | None = None
    ) -> list[Waves]:
        """Execute the block that `g` stands at and move it on; the groups that it became (none if it ended)."""
        block = self.blocks[g.block]
        steps = block.steps if counters is None else counters.steps[g.block]
        done = 0
        try:
            if self.strict:
                for step, guard in zip(steps, block.code.guards, strict=True):
                    guard.before(g)
                    step(g)
                    guard.after(g)
                    done += 1
                check_branch(g, block.leave, block.decide)
            else:
                for step in steps:
                    step(g)
                    done += 1
        except Found as found:
            ins = block.sources[min(done, len(block.sources) - 1)]
            found.text += g.memory.not_given.said() if found.kind == "undefined" else ""
            raise as_error(self.kernel, found, ins, name_wave) from None
        except Misaligned as fault:
            found = Found("alignment", fault.text, int(g.ids[fault.wave]), fault.lane)
            raise as_error(self.kernel, found, block.sources[done], name_wave) from None
        except RaceFault as fault:
            place, group = name_wave(int(g.ids[fault.wave])), fault.group or 0
            other = name_wave(group * g.waves_per_group + (wave_of(fault.other) or 0))
            raise race_error(self.kernel, fault, self.guards, block.sources[done], place, other) from None
        except AccessFault as fault:
            ins = block.sources[done]
            place = f"{fault.text}; {name_wave(int(g.ids[fault.wave]))}, lane {fault.lane}"
            raise fault.error(self._where(ins, place)) from None
        except EmulationError:
            raise
        except Exception as error:
            error.add_note(self._where(block.sources[done], "while emulating"))
            raise
        leave = block.leave
        if leave in ("next", "jump"):
            g.block = block.target if leave == "jump" else g.block + 1
        elif leave == "end":
            return []
        elif leave == "barrier":
            g.block += 1
            g.at_barrier = "workgroup" if not g.closed else ""
            if g.closed:
                g.memory.clusters.left(g.ids)
            if self.strict:
                g.shadow.epoch += 1
        elif leave in ("cluster", "named", "launch"):
            g.block += 1
            return passed(g, leave)
        elif block.jump is not None:
            return calls.part(g, block.jump(g))
        else:
            taken = CONDITIONS[leave](g)
            if taken.all():
                g.block = block.target
            elif not taken.any():
                g.block += 1
            else:
                jumped, stayed = g.split(taken)
                jumped.block, stayed.block = block.target, g.block + 1
                return [jumped, stayed]
        return [g]


INSTRUCTIONS_KEPT = 200_000  #: an autotuner can compile without end, and in strict mode each takes some kilobytes
_loaded: dict[tuple[str, str, str | None, bool], Program] = {}


def load(asm: str, gpu: str | Gpu, kernel: str | None = None, *, strict: bool = False) -> Program:
    """The Program of an assembly text, kept for the next launch."""
    key = (hashlib.sha256(asm.encode()).hexdigest(), get_gpu(gpu).name, kernel, strict)
    found = _loaded.pop(key, None) or Program(asm, gpu, kernel, strict=strict)
    _loaded[key] = found  # the latest last
    held = sum(len(p.listing.instructions) for p in _loaded.values())
    while held > INSTRUCTIONS_KEPT and len(_loaded) > 1:
        held -= len(_loaded.pop(next(iter(_loaded))).listing.instructions)
    return found
