"""How a declared ALU operation becomes a closure over `Waves`.

An instruction class file declares operations as data: mnemonic, destination type, source types, and a function from
native numpy arrays to a native numpy array. This file does the rest once for all of them: operands, constants, source
and output modifiers, op_sel, DPP, EXEC, SCC, denormals and rounding. `tables.py` imports all class files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import UnknownInstructionError
from ..gpu import Gpu
from ..isa.parse import EXEC, VCC, Instruction, Operand
from ..isa.registers import misplaced_result
from . import sdwa
from .dpp import LaneSource, lane_source
from .float16 import stopping
from .mode import NEAREST, Mode, flush, refuse_rounding
from .operands import BITS, DTYPE, FLOATS, Read, Write, read, read_mask, read_scalar, write
from .output_modifiers import output_modifier
from .state import U32, Waves
from .tininess import Exact, denormal_before_packing

Step = Callable[[Waves], None]


@dataclass(frozen=True)
class Target:
    """What the builders need to know of the machine."""

    gpu: Gpu
    lanes: int  #: 32 or 64
    mode: Mode = Mode()
    accumulators: int = 1 << 16  #: number of the vector register that a[0] is here


Builder = Callable[[Instruction, Target], Step]


@dataclass(frozen=True)
class Op:
    """`dst = fn(*sources)`; types as in operands.py, "mask" for a lane mask in SGPRs, "exec" for EXEC itself."""

    dst: str
    src: tuple[str, ...]
    fn: Callable
    reads_dst: bool = False  #: the destination is also the last source (v_fmac)
    implicit_vcc: bool = False  #: the last source is VCC though the text does not say so (v_div_fmas)
    flushes: bool = True  #: float operands and results follow the denormal mode
    kept: tuple[int, ...] = ()  #: sources whose denormals stay whatever the mode says
    keeps_result: bool = False  #: a scalar operation's denormal result stays whatever the mode says
    of_mode: Callable[[Mode], Callable] | None = None  #: `fn` of each mode, which follows all of it but in its operands
    clamped: Callable | None = None  #: `fn` under the clamp modifier, for integer results
    halves: str = ""  #: the type of the two halves of the result, which clamp and omod change
    rounded: Callable[[int], Callable] | None = None  #: rounding mode -> fn; None: rounding does not matter
    exact: Exact | None = None  #: `fn` on fractions, of results that the denormal mode has to know before rounding
    build: Builder | None = None  #: makes the whole closure: the operands do not fit `dst = fn(*sources)`
    dpp: bool = True  #: `build` knows DPP
    sdwa: bool = False  #: `build` knows SDWA


VECTOR: dict[str, Op] = {}  #: filled by the instruction class files
SCALAR: dict[str, tuple[Op, str]] = {}  #: op and what it does to SCC: "", "nonzero", "returned"


def vector(names: str, dst: str, src: str, fn: Callable, **flags) -> None:
    """Declare vector operations; `names` may list several that share a meaning."""
    for name in names.split():
        VECTOR[name] = Op(dst, tuple(src.split()), fn, **flags)


def special(names: str, build: Builder, dpp: bool = False, sdwa: bool = False) -> None:
    """Declare operations whose operands do not fit `dst = fn(*sources)`: `build` makes the whole closure."""
    for name in names.split():
        op = Op("", (), _no_function, build=build, dpp=dpp, sdwa=sdwa)
        if name.startswith("v_"):
            VECTOR[name] = op
        else:
            SCALAR[name] = (op, "")


def _no_function(*_sources):
    raise AssertionError("an operation with its own builder has no function")


def scalar(names: str, dst: str, src: str, fn: Callable, scc: str = "", **flags) -> None:
    """Declare scalar operations. With scc="returned", `fn` gives (result, scc); the result may be None.

    A source of type "scc" is SCC itself and does not stand in the text; neither does the destination that
    `reads_dst` adds as the last source.
    """
    for name in names.split():
        SCALAR[name] = (Op(dst, tuple(src.split()), fn, **flags), scc)


# -- vector ------------------------------------------------------------------------------------------------------------


def build_vector(op: Op, ins: Instruction, target: Target) -> Step:
    """The closure of one vector ALU instruction."""
    refuse_misplaced(ins)
    if op.build is not None:
        if not op.dpp and (source := lane_source(ins, target.lanes)) is not None:
            moved = ins.operands[1]
            if moved.kind != "v" or moved.count != 1:
                raise UnknownInstructionError(f"{ins.mnemonic} with DPP is not implemented")
            return source.moved(op.build, ins, target)
        if not op.sdwa and sdwa.is_sdwa(ins):
            raise UnknownInstructionError(f"{ins.mnemonic} with SDWA is not implemented")
        return op.build(ins, target)
    texts = list(ins.operands)
    also: Operand | None = None  #: gfx9's v_cmpx writes this mask beside EXEC
    if op.dst == "exec":
        destination = Operand("s", EXEC, target.lanes // 32)
        if len(texts) > len(op.src):
            also = texts.pop(0)
    else:
        destination = texts.pop(0)
    if op.reads_dst:
        texts.append(destination)
    if op.implicit_vcc or (op.src and op.src[-1] == "mask" and len(texts) < len(op.src)):
        texts.append(Operand("s", VCC, target.lanes // 32))
    select = ins.bits("op_sel", [0] * (len(op.src) + 1))
    # The destination's bit of op_sel follows those of the sources in the text.
    written = len(op.src) - op.reads_dst - (op.src[-1:] == ("mask",))
    destination_high = bool(select[written]) if "op_sel" in ins.modifiers else False
    if op.reads_dst:
        select = [*select[: len(op.src) - 1], int(destination_high)]
    source = lane_source(ins, target.lanes)
    readers = vector_readers(ins, texts, op.src, target, select, source, op.flushes, op.kept)
    compute = _with_output_modifiers(op, ins, target, _compute(_function(op, ins, target), readers))
    if op.dst in ("mask", "exec"):
        step = mask_step(destination.index, compute, source)
        return step if also is None else _and_copy(step, also.index)
    store = vector_writer(ins, destination, op.dst, target, destination_high)
    if source is not None and source.partial:
        return source.guarded(compute, store)
    plain = compute.fn is op.fn and not sdwa.is_sdwa(ins)
    fast = _ufunc_step(op, destination, readers, compute, store) if plain else None
    return fast or (lambda g: store(g, compute(g)))


def _and_copy(step: Step, n: int) -> Step:
    def both(g: Waves) -> None:
        step(g)
        g.set_mask(n, g.active())

    return both


#: On gfx9 16-bit results clear the other half of their register, but for these (Vega ISA guide, "VOP3"; LLVM's list of
#: what clears it lacks them, Mesa's of what keeps it has them; v_ashr_pk writes bits 15:0 by the CDNA 4 ISA guide, and
#: LLVM clears the others behind it).
KEEP_HALF = frozenset("v_bitop3_b16 v_div_fixup_f16 v_fma_f16 v_mac_f16 v_mad_f16 v_mad_i16 v_mad_u16".split())
KEEP_HALF |= {"v_madak_f16", "v_madmk_f16", "v_add_nc_i16", "v_sub_nc_i16", "v_ashr_pk_i8_i32", "v_ashr_pk_u8_i32"}
KEEP_HALF |= {f"v_{name}_{kind}" for name in ("min3", "max3", "med3") for kind in ("f16", "i16", "u16")}


def vector_writer(ins: Instruction, destination: Operand, kind: str, target: Target, high: bool = False) -> Write:
    """How to write the result of a vector instruction: SDWA, one half, and what becomes of the other."""
    if sdwa.is_sdwa(ins):
        return sdwa.writer(ins, destination, kind)
    if target.gpu.major == 9 and BITS[kind] == 16 and ins.name not in KEEP_HALF and "op_sel" not in ins.modifiers:
        return lambda g, x: g.put(destination.index, np.asarray(x).view(np.uint16).astype(U32))
    return write(destination, kind, high)


def vector_readers(
    ins: Instruction,
    texts: Sequence[Operand],
    kinds: Sequence[str],
    target: Target,
    select: Sequence[int],
    source: LaneSource | None,
    flushes: bool = True,
    kept: Sequence[int] = (),
) -> list[Read]:
    """How to read the sources of a vector instruction: halves (`select`), denormal mode, DPP on the first."""
    if len(texts) != len(kinds):
        raise UnknownInstructionError(f"{ins.name} takes {len(kinds)} sources, {len(texts)} given")
    readers = []
    parts = sdwa.is_sdwa(ins)
    for k, (operand, kind, high) in enumerate(zip(texts, kinds, select, strict=False)):
        if kind == "mask":
            readers.append(read_mask(operand))
            continue
        if parts and k < 2:
            reader = sdwa.source_reader(ins, operand, kind, k)
        else:
            reader = read(operand, kind, BITS[kind] == 16 and bool(high))
        if flushes and k not in kept and target.mode.flushes_inputs(kind):
            reader = _flushed(reader, kind)
        readers.append(reader)
    if source is not None:
        readers[0] = source.reader(readers[0], texts[0].negate)
    return readers


def _flushed(reader: Read, kind: str) -> Read:
    return lambda g: flush(reader(g), kind)


def mask_step(n: int, compute: Callable, source: LaneSource | None) -> Step:
    """A step that writes one bit per active lane to SGPR `n` (EXEC included), 0 for the other lanes."""
    if source is not None and source.partial:
        return lambda g: g.set_mask(n, np.logical_and(compute(g), source.enabled(g)))

    def step(g: Waves) -> None:
        value = compute(g)
        g.set_mask(n, value if g.exec is None else np.logical_and(value, g.exec))

    return step


def store_step(source: LaneSource | None, compute: Callable, store: Write) -> Step:
    """`store(g, compute(g))`, sparing the lanes that DPP leaves unwritten."""
    if source is not None and source.partial:
        return source.guarded(compute, store)
    return lambda g: store(g, compute(g))


def refuse_signs(ins: Instruction, *sources: Operand) -> None:
    """Stop at neg and abs of operands that hold several numbers: which of them they change is not known."""
    if any(o.negate or o.absolute for o in sources):
        raise UnknownInstructionError(f"{ins.mnemonic} with neg or abs of a pair")


def refuse_misplaced(ins: Instruction) -> None:
    """Stop at results that do not go to a register of their kind: by number alone they would go to another."""
    if (operand := misplaced_result(ins)) is not None:
        name = operand.value if operand.kind in ("symbol", "const") else f"{operand.kind}{operand.index}"
        raise UnknownInstructionError(f"{str(name)!r} as the destination is not implemented")


class _Compute:
    """The arithmetic of one instruction, before it is written."""

    __slots__ = ("call", "fn")

    def __init__(self, call: Read, fn: Callable | None):
        self.call, self.fn = call, fn  #: fn: what is computed when nothing else is done to operands and result

    def __call__(self, g: Waves) -> np.ndarray:
        return self.call(g)


# Integers that are limited in any case.
_LIMITED = re.compile(r"v_(cvt_(\w+_)?[iu](8|16|32)_f|frexp_exp|(min|max)_[iu])")


def _function(op: Op, ins: Instruction, target: Target) -> Callable:
    rounding = target.mode.rounding(op.dst if op.dst in FLOATS else next(iter(op.src), ""))
    fn = op.fn if op.of_mode is None else op.of_mode(target.mode)
    if rounding != NEAREST and op.rounded is not None:
        try:
            fn = op.rounded(rounding)
        except NotImplementedError:
            raise refuse_rounding(ins, rounding) from None
    scaled = target.gpu.major >= 12 and {"mul", "div"} & ins.modifiers.keys()  # before, only where results flush
    if op.exact is not None and (scaled or target.mode.flushes_results(op.dst)):
        fn = denormal_before_packing(fn, op.exact, op.dst, rounding)
    if ins.flag("clamp") and op.dst not in FLOATS and not op.halves:
        if op.dst in ("mask", "exec"):  # of a comparison it says only which NaNs raise an exception
            return fn
        if op.clamped is None and _LIMITED.match(ins.name):
            return fn
        if op.clamped is None:
            raise UnknownInstructionError(f"{ins.name} with clamp is not implemented")
        return op.clamped
    return stopping(fn) if op.dst == "f16" and target.mode.f16_overflow and op.of_mode is None else fn


def _compute(fn: Callable, readers: list) -> _Compute:
    if len(readers) == 1:
        (a,) = readers
        return _Compute(lambda g: fn(a(g)), fn)
    if len(readers) == 2:
        a, b = readers
        return _Compute(lambda g: fn(a(g), b(g)), fn)
    if len(readers) == 3:
        a, b, c = readers
        return _Compute(lambda g: fn(a(g), b(g), c(g)), fn)
    return _Compute(lambda g: fn(*[r(g) for r in readers]), fn)


def _with_output_modifiers(op: Op, ins: Instruction, target: Target, compute: _Compute) -> _Compute:
    flushes = op.flushes and op.of_mode is None and op.src[:1] != (op.halves,)
    if op.halves and target.gpu.name.startswith("gfx120"):  # omod and clamp are ignored (rocjitsu, measured on gfx1201)
        modify = partial(flush, kind=op.halves) if flushes and target.mode.flushes_results(op.halves) else None
    else:
        modify = output_modifier(ins, op.halves or op.dst, target, flushes)
    if modify is None:
        return compute
    if op.halves:
        return _Compute(lambda g: modify(np.ascontiguousarray(compute(g)).view(DTYPE[op.halves])).view(U32), None)
    return _Compute(lambda g: modify(compute(g)), None)


def _ufunc_step(op: Op, destination: Operand, readers: list, compute: _Compute, store: Write) -> Step | None:
    """numpy writes a 32-bit result straight into the register file when every lane is active."""
    if not isinstance(op.fn, np.ufunc) or BITS[op.dst] != 32 or len(readers) > 2:
        return None
    if any(BITS.get(kind) != 32 for kind in op.src):
        return None
    n, fn, kind = destination.index, op.fn, op.dst
    rows = {"f32": lambda g: g.f[n], "i32": lambda g: g.i[n]}.get(kind, lambda g: g.u[n])
    if len(readers) == 1:
        (a,) = readers

        def step_of_one(g: Waves) -> None:
            if g.exec is None:
                fn(a(g), out=rows(g))
            else:
                store(g, compute(g))

        return step_of_one
    a, b = readers

    def step(g: Waves) -> None:
        if g.exec is None:
            fn(a(g), b(g), out=rows(g))
        else:
            store(g, compute(g))

    return step


# -- scalar ------------------------------------------------------------------------------------------------------------


def build_scalar(op: Op, scc: str, ins: Instruction, target: Target) -> Step:
    """The closure of one scalar ALU instruction."""
    refuse_misplaced(ins)
    if op.build is not None:
        return op.build(ins, target)
    operands = list(ins.operands)
    destination = operands.pop(0) if op.dst else None
    kinds = [kind for kind in op.src if kind != "scc"]
    if op.reads_dst and destination is not None:
        operands.append(destination)
    if len(operands) != len(kinds):
        raise UnknownInstructionError(f"{ins.name} takes {len(kinds)} sources, {len(operands)} given")
    readers = [
        _flushed(read_scalar(o, kind), kind) if target.mode.flushes_inputs(kind) else read_scalar(o, kind)
        for o, kind in zip(operands, kinds, strict=True)
    ]
    if "scc" in op.src:
        readers.append(lambda g: g.scc)
    fn = _function(op, ins, target)
    flushed = target.mode.flushes_results(op.dst) and not op.keeps_result
    n = destination.index if destination is not None else 0
    size = BITS[op.dst] if op.dst else 0
    raw = np.dtype(f"u{size // 8}") if op.dst else None

    def step(g: Waves) -> None:
        result = fn(*[r(g) for r in readers])
        if scc == "returned":
            result, flag = result
            g.scc[...] = flag
        elif scc == "nonzero":
            g.scc[...] = result != 0
        if raw is None or result is None:
            return
        bits = np.asarray(flush(result, op.dst) if flushed else result)
        if bits.dtype != raw:
            bits = bits.view(raw)
        if size == 64:
            g.set_scalar64(n, bits)
        else:
            g.set_scalar(n, bits)

    return step


def words(value: np.ndarray) -> np.ndarray:
    """Any 4-byte dtype as uint32."""
    return np.asarray(value).view(U32)
