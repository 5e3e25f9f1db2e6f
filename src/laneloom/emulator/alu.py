"""How a declared ALU operation becomes a closure over `Waves`.

An instruction class file declares operations as data: mnemonic, destination type, source types, and a function from
native numpy arrays to a native numpy array. This file does the rest once for all of them: operands, constants, source
and output modifiers, op_sel, DPP, EXEC, SCC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..gpu import Gpu
from .dpp import lane_source
from .operands import BITS, FLOATS, read, read_mask, read_scalar, write
from .parse import VCC, Instruction, Operand
from .state import U32, Waves

Step = Callable[[Waves], None]
Builder = Callable[[Instruction, "Target"], Step]


@dataclass(frozen=True)
class Target:
    """What the builders need to know of the machine."""

    gpu: Gpu
    lanes: int  #: 32 or 64


@dataclass(frozen=True)
class Op:
    """`dst = fn(*sources)`; types as in operands.py, "mask" for a lane mask in SGPRs."""

    dst: str
    src: tuple[str, ...]
    fn: Callable
    reads_dst: bool = False  #: the destination is also the last source (v_fmac)
    implicit_vcc: bool = False  #: the last source is VCC though the text does not say so (v_div_fmas)


VECTOR: dict[str, Op] = {}  #: filled by the instruction class files
SPECIAL: dict[str, Builder] = {}  #: instructions with a builder of their own, by name
SCALAR: dict[str, tuple[Op, str]] = {}  #: op and what it does to SCC: "", "nonzero", "returned"


def vector(names: str, dst: str, src: str, fn: Callable, **flags) -> None:
    """Declare vector operations; `names` may list several that share a meaning."""
    for name in names.split():
        VECTOR[name] = Op(dst, tuple(src.split()), fn, **flags)


def scalar(names: str, dst: str, src: str, fn: Callable, scc: str = "") -> None:
    """Declare scalar operations. With scc="returned", `fn` gives (result, scc); the result may be None."""
    for name in names.split():
        SCALAR[name] = (Op(dst, tuple(src.split()), fn), scc)


_OUTPUT_SCALE = {("mul", "2"): 2.0, ("mul", "4"): 4.0, ("div", "2"): 0.5}


def build_vector(op: Op, ins: Instruction, target: Target) -> Step:
    """The closure of one vector ALU instruction."""
    destination = ins.operands[0]
    texts = list(ins.operands[1:])
    if op.reads_dst:
        texts.append(destination)
    if op.implicit_vcc or (op.src and op.src[-1] == "mask" and len(texts) < len(op.src)):
        texts.append(Operand("s", VCC, target.lanes // 32))
    if len(texts) != len(op.src):
        raise ValueError(f"{ins.name} takes {len(op.src)} sources, {len(texts)} given")
    select = ins.bits("op_sel", [0] * (len(op.src) + 1))
    destination_high = bool(select[len(op.src)]) if "op_sel" in ins.modifiers else False
    readers = []
    for k, (operand, kind) in enumerate(zip(texts, op.src, strict=True)):
        if kind == "mask":
            readers.append(read_mask(operand))
            continue
        high = BITS[kind] == 16 and (destination_high if op.reads_dst and k == len(texts) - 1 else bool(select[k]))
        readers.append(read(operand, kind, high))
    source = lane_source(ins, target.lanes)
    if source is not None:
        readers[0] = source.reader(readers[0])
    compute = _with_output_modifiers(op, ins, _compute(op.fn, readers))
    if op.dst == "mask":
        n = destination.index
        return lambda g: g.set_mask(n, _masked(g, compute(g)))
    store = write(destination, op.dst, destination_high)
    if source is not None and source.partial:
        return source.guarded(compute, store)
    fast = _ufunc_step(op, destination, readers, compute, store) if compute.plain else None
    if fast is not None and source is None:
        return fast
    return lambda g: store(g, compute(g))


def _masked(g: Waves, value: np.ndarray) -> np.ndarray:
    return value if g.exec is None else np.logical_and(value, g.exec)


class _Compute:
    """The arithmetic of one instruction, before it is written."""

    __slots__ = ("call", "plain")

    def __init__(self, call, plain=True):
        self.call, self.plain = call, plain

    def __call__(self, g: Waves) -> np.ndarray:
        return self.call(g)


def _compute(fn: Callable, readers: list) -> _Compute:
    if len(readers) == 1:
        (a,) = readers
        return _Compute(lambda g: fn(a(g)))
    if len(readers) == 2:
        a, b = readers
        return _Compute(lambda g: fn(a(g), b(g)))
    if len(readers) == 3:
        a, b, c = readers
        return _Compute(lambda g: fn(a(g), b(g), c(g)))
    return _Compute(lambda g: fn(*[r(g) for r in readers]))


def _with_output_modifiers(op: Op, ins: Instruction, compute: _Compute) -> _Compute:
    """omod (mul:2, mul:4, div:2) and clamp: floats to [0, 1] with NaN to 0."""
    scale = next((v for (k, x), v in _OUTPUT_SCALE.items() if ins.modifiers.get(k) == x), None)
    clamp = ins.flag("clamp") and op.dst in FLOATS and op.dst != "bf16"
    if scale is None and not clamp:
        return compute

    def modified(g: Waves) -> np.ndarray:
        x = compute(g)
        if scale is not None:
            x = x * x.dtype.type(scale)
        if clamp:
            x = np.where(np.isnan(x), x.dtype.type(0), np.clip(x, 0, 1)).astype(x.dtype)
        return x

    return _Compute(modified, plain=False)


def _ufunc_step(op: Op, destination: Operand, readers: list, compute, store) -> Step | None:
    """numpy writes a 32-bit result straight into the register file when every lane is active."""
    if not isinstance(op.fn, np.ufunc) or BITS[op.dst] != 32 or len(readers) not in (1, 2):
        return None
    n, fn = destination.index, op.fn
    rows = {"f32": "f", "i32": "i"}.get(op.dst, "u")
    if any(BITS.get(kind) != 32 for kind in op.src):
        return None
    if len(readers) == 2:
        a, b = readers
        if rows == "f":

            def step(g: Waves) -> None:
                if g.exec is None:
                    fn(a(g), b(g), out=g.f[n])
                else:
                    store(g, compute(g))
        else:

            def step(g: Waves) -> None:
                if g.exec is None:
                    fn(a(g), b(g), out=g.u[n] if rows == "u" else g.i[n])
                else:
                    store(g, compute(g))

        return step
    return None


def build_scalar(op: Op, scc: str, ins: Instruction, target: Target) -> Step:
    """The closure of one scalar ALU instruction. "b" of the type names follows the wave size where the ISA has both."""
    operands = list(ins.operands)
    destination = operands.pop(0) if op.dst else None
    readers = [read_scalar(o, kind) for o, kind in zip(operands, op.src, strict=True)]
    fn = op.fn
    n = destination.index if destination is not None else 0
    wide = bool(op.dst) and BITS[op.dst] == 64
    raw = np.dtype(f"u{BITS[op.dst] // 8}") if op.dst else None

    def step(g: Waves) -> None:
        result = fn(*[r(g) for r in readers])
        if scc == "returned":
            result, flag = result
            g.scc[...] = flag
        elif scc == "nonzero":
            g.scc[...] = result != 0
        if raw is None or result is None:
            return
        bits = np.asarray(result)
        if bits.dtype != raw:
            bits = bits.view(raw)
        if wide:
            g.set_scalar64(n, bits)
        else:
            g.set_scalar(n, bits)

    return step


def words(value: np.ndarray) -> np.ndarray:
    """Any 4-byte dtype as uint32."""
    return np.asarray(value).view(U32)
