"""LDS loads and stores, and the lane permutes that go through the LDS unit."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import Instruction
from .alu import Builder, Step, Target
from .global_access import Access
from .state import U32, Waves

_PLAIN = re.compile(r"ds_(load|store)_([bui])(8|16|32|64|96|128)(_d16_hi|_d16)?$")
_PAIR = re.compile(r"ds_(load|store)_2addr_(stride64_)?b(32|64)$")


def addresses(g: Waves, n: int, offset: int) -> np.ndarray:
    """LDS byte addresses [wave, lane] as int64.

    The sum has 32 bits: compilers fold a constant into the offset of a base that is negative without it.
    """
    address = g.addresses[n]
    return (address + U32(offset) if offset else address).astype(np.int64)


#: Triton's address of lanes that a mask leaves out, on CDNA 5, and of waves that load nothing to LDS, on CDNA 3
#: and 4: out of any LDS, where stores are lost and loads give 0.
NOWHERE = 0x7FFFFFFF
_OFFSETS = 1 << 16  #: that an instruction can add to it


def is_nowhere(address: np.ndarray) -> np.ndarray | None:
    """Which addresses lie out of any LDS on purpose; None if none does."""
    if int(address.max()) < NOWHERE:
        return None
    return (address >= NOWHERE) & (address < NOWHERE + _OFFSETS)


def places(
    g: Waves, n: int, offset: int, nbytes: int, target: Target
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Byte offsets into LDS, the lanes that take part (None: all), and of a load those that get 0 (None: none)."""
    address, active = addresses(g, n, offset), g.exec
    nowhere = g.lds.dropped(address)
    if nowhere is None and target.gpu.is_cdna5:
        nowhere = is_nowhere(address)
    if nowhere is not None:
        active = ~nowhere if active is None else active & ~nowhere
    return g.lds.check(g.lds_base, address, nbytes, active), active, nowhere


def gathered(g: Waves, n: int, offset: int, nbytes: int, target: Target) -> np.ndarray:
    """What a load finds, as words [wave, lane, words]."""
    at, _, nowhere = places(g, n, offset, nbytes, target)
    words = g.lds.gather(at, nbytes)
    return words if nowhere is None else np.where(nowhere[..., None], U32(0), words)


def _build_plain(ins: Instruction, target: Target) -> Step:
    match = _PLAIN.match(ins.name)
    assert match
    half = {"_d16_hi": "d16_hi_", "_d16": "d16_"}.get(match[4] or "", "")
    access = Access(f"{match[1]}_{half}{match[2]}{match[3]}", target.gpu)
    data, address = ins.operands if access.load else (ins.operands[1], ins.operands[0])
    if data.half:
        access.half = data.half
    n, a, offset, nbytes = data.index, address.index, ins.number("offset"), access.nbytes
    if access.load:

        def load(g: Waves) -> None:
            access.put(g, n, gathered(g, a, offset, nbytes, target))

        return load

    def store(g: Waves) -> None:
        at, active, _ = places(g, a, offset, nbytes, target)
        g.lds.scatter(at, access.get(g, n), nbytes, active)

    return store


def _build_pair(ins: Instruction, target: Target) -> Step:
    match = _PAIR.match(ins.name)
    assert match
    access = Access(f"{match[1]}_b{match[3]}")
    nbytes = access.nbytes
    unit = nbytes * (64 if match[2] else 1)
    offsets = (ins.number("offset0") * unit, ins.number("offset1") * unit)
    if access.load:
        n, a = ins.operands[0].index, ins.operands[1].index

        def load(g: Waves) -> None:
            # Both halves are read before either is written: the address register may be in the destination.
            got = [gathered(g, a, o, nbytes, target) for o in offsets]
            for k, x in enumerate(got):
                access.put(g, n + k * (nbytes // 4), x)

        return load
    a = ins.operands[0].index
    data = (ins.operands[1].index, ins.operands[2].index)

    def store(g: Waves) -> None:
        for n, o in zip(data, offsets, strict=True):
            at, active, _ = places(g, a, o, nbytes, target)
            g.lds.scatter(at, access.get(g, n), nbytes, active)

    return store


def _exchanged_lanes(ins: Instruction, target: Target) -> Callable[[Waves], np.ndarray]:
    """The lane that each lane's address / 4 names, modulo the wave. In waves of 64 lanes gfx11 stays within each half
    (RDNA 3 ISA guide, DS_BPERMUTE_B32; LLVM's lowering of `llvm.amdgcn.wave.shuffle`).
    """
    span = min(target.lanes, 32) if target.gpu.major == 11 else target.lanes
    first = (np.arange(target.lanes) // span * span).astype(np.int64)
    n, offset = ins.operands[1].index, ins.number("offset")
    return lambda g: ((g.addresses[n] + U32(offset)) >> U32(2)) % U32(span) + first


def _build_bpermute(ins: Instruction, target: Target) -> Step:
    """Each lane reads another; an inactive source lane gives 0, or its value with fi."""
    d, _, x = (o.index for o in ins.operands)
    lanes, fetch_inactive = _exchanged_lanes(ins, target), "_fi_" in ins.name

    def step(g: Waves) -> None:
        value = g.u[x]
        if g.exec is not None and not fetch_inactive:
            value = np.where(g.exec, value, U32(0))
        g.put(d, np.take_along_axis(value, lanes(g), axis=1))

    return step


def _build_permute(ins: Instruction, target: Target) -> Step:
    """Each active lane sends its data to another; the highest sender wins; lanes not sent to get 0."""
    d, _, x = (o.index for o in ins.operands)
    lanes = _exchanged_lanes(ins, target)

    def step(g: Waves) -> None:
        to = lanes(g)
        out = np.zeros((g.count, g.lanes), U32)
        active = g.active()
        rows = np.arange(g.count)
        for lane in range(g.lanes):
            send = active[:, lane]
            out[rows[send], to[send, lane]] = g.u[x][send, lane]
        g.put(d, out)

    return step


def swizzle_lanes(offset: int | str, lanes: int) -> np.ndarray:
    """Source lane of each lane for ds_swizzle_b32 (RDNA 3 ISA guide, "DS_SWIZZLE_B32")."""
    lane = np.arange(lanes)
    if isinstance(offset, str):
        offset = _encode_swizzle(offset)
    if offset & 0x8000:
        if offset >= 0xE000:  # the order of a fast Fourier transform of 32, 16, ... elements
            reversed_bits = sum((lane >> k & 1) << (4 - k) for k in range(5))
            return (lane & ~31) | (reversed_bits >> (offset & 31).bit_count()) | (lane & offset & 31)
        if offset >= 0xC000:  # rotate within 32 lanes
            amount = (offset >> 5) & 31
            turn = -amount if offset & 0x400 else amount
            keep = offset & 31
            return (lane & ~31) | (((lane & 31) & keep) | (((lane + turn) & 31) & ~keep & 31))
        return (lane & ~3) | ((offset >> (2 * (lane & 3))) & 3)
    keep, set_bits, flip = offset & 31, (offset >> 5) & 31, (offset >> 10) & 31
    return (lane & ~31) | ((((lane & 31) & keep) | set_bits) ^ flip)


def _encode_swizzle(text: str) -> int:
    """The assembler's swizzle(...) macro as its 16-bit offset."""
    match = re.fullmatch(r"swizzle\((\w+),\s*(.*)\)", text)
    if not match:
        return int(text, 0)
    mode, rest = match[1], match[2]
    if mode == "BITMASK_PERM":
        keep = set_bits = flip = 0
        for c in rest.strip('"'):
            keep, set_bits, flip = keep << 1 | (c in "pi"), set_bits << 1 | (c == "1"), flip << 1 | (c == "i")
        return flip << 10 | set_bits << 5 | keep
    numbers = [int(x, 0) for x in rest.split(",")]
    if mode == "QUAD_PERM":
        return 0x8000 | sum(n << (2 * k) for k, n in enumerate(numbers))
    if mode == "SWAP":
        return numbers[0] << 10 | 0x1F
    if mode == "REVERSE":
        return (numbers[0] - 1) << 10 | 0x1F
    if mode == "BROADCAST":
        return numbers[1] << 5 | (32 - numbers[0])
    if mode == "FFT":
        return 0xE000 | numbers[0]
    if mode == "ROTATE":
        return 0xC000 | numbers[0] << 10 | numbers[1] << 5
    raise UnknownInstructionError(f"ds_swizzle_b32 with {mode}")


def _build_swizzle(ins: Instruction, target: Target) -> Step:
    d, x = (o.index for o in ins.operands)
    source = swizzle_lanes(ins.modifiers.get("offset", "0"), target.lanes)

    def step(g: Waves) -> None:
        value = g.u[x][:, source]
        if g.exec is not None:
            value = np.where(g.exec[:, source], value, U32(0))
        g.put(d, value)

    return step


OTHERS: dict[str, Builder] = {
    "ds_bpermute_b32": _build_bpermute,
    "ds_bpermute_fi_b32": _build_bpermute,
    "ds_permute_b32": _build_permute,
    "ds_swizzle_b32": _build_swizzle,
}


def find(name: str) -> Builder | None:
    """The builder of an LDS instruction (atomics aside)."""
    if _PLAIN.match(name):
        return _build_plain
    if _PAIR.match(name):
        return _build_pair
    return OTHERS.get(name)
