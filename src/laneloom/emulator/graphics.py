"""Instructions that graphics needs: cube maps, lighting, sliding sums of absolute differences, indexed moves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..isa.parse import M0, Instruction
from .alu import Step, Target, special, store_step, vector
from .bits import U16, U32, U64, absolute_difference, saturate, saturating
from .dpp import lane_source
from .operands import read, read_scalar
from .state import Waves

# -- cube maps: which face a direction (x, y, z) meets, and where ------------------------------------------------------


def _faces(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where z is the major axis, and where y is (and z is not)."""
    z_major = (np.abs(z) >= np.abs(x)) & (np.abs(z) >= np.abs(y))
    return z_major, ~z_major & (np.abs(y) >= np.abs(x))


def _by_face(of_z: Callable, of_y: Callable, of_x: Callable) -> Callable:
    def function(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        z_major, y_major = _faces(x, y, z)
        chosen = np.where(z_major, of_z(x, y, z), np.where(y_major, of_y(x, y, z), of_x(x, y, z)))
        return chosen.astype(np.float32)

    return function


_three = "f32 f32 f32"
vector(
    "v_cubeid_f32", "f32", _three,
    _by_face(lambda x, y, z: np.where(z < 0, 5.0, 4.0), lambda x, y, z: np.where(y < 0, 3.0, 2.0),
             lambda x, y, z: np.where(x < 0, 1.0, 0.0)),
)  # fmt: skip
vector("v_cubema_f32", "f32", _three, _by_face(lambda x, y, z: 2 * z, lambda x, y, z: 2 * y, lambda x, y, z: 2 * x))
vector(
    "v_cubesc_f32", "f32", _three,
    _by_face(lambda x, y, z: np.where(z < 0, -x, x), lambda x, y, z: x, lambda x, y, z: np.where(x < 0, z, -z)),
)  # fmt: skip
vector(
    "v_cubetc_f32", "f32", _three,
    _by_face(lambda x, y, z: -y, lambda x, y, z: np.where(y < 0, -z, z), lambda x, y, z: -y),
)  # fmt: skip


def _lighting(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b, +0 where either is a zero, or the lowest number where b is not above it or c is not positive."""
    lowest = np.finfo(np.float32).min
    product = np.where((a == 0) | (b == 0), np.float32(0), a * b)
    return np.where((b > lowest) & (c > 0), product, lowest)


vector("v_mullit_f32", "f32", _three, _lighting)

# -- sums of absolute differences over a sliding window ----------------------------------------------------------------


def _window(a: np.ndarray, b: np.ndarray, start: int, masked: bool) -> np.ndarray:
    """Sum over four bytes of |a[start + k] - b[k]|; masked: bytes of b that are 0 do not count."""
    total = U32(0)
    for k in range(4):
        x = (a >> U64(8 * (start + k))).astype(U32) & U32(0xFF)
        y = (b >> U32(8 * k)) & U32(0xFF)
        difference = absolute_difference(x, y)
        total = total + (np.where(y == 0, U32(0), difference) if masked else difference)
    return np.asarray(total)


def _sums_16(masked: bool, clamps: bool) -> Callable:
    def function(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        out = U64(0)
        for k in range(4):
            old = (c >> U64(16 * k)).astype(U16)
            total = _window(a, b, k, masked) + old
            total = saturate(total, U16) if clamps else total.astype(U16)
            out = out | (total.astype(U64) << U64(16 * k))
        return np.asarray(out)

    return function


for _name, _masked in (("v_qsad_pk_u16_u8", False), ("v_mqsad_pk_u16_u8", True)):
    vector(_name, "b64", "u64 u32 u64", _sums_16(_masked, False), clamped=_sums_16(_masked, True))


def _sums_32(ins: Instruction, target: Target) -> Step:
    destination, first, second, third = ins.operands
    a, b = read(first, "u64"), read(second, "u32")
    old = [read(type(third)(third.kind, third.index + k), "u32") for k in range(4)]
    n, add = destination.index, saturating(np.add, U32) if ins.flag("clamp") else np.add

    def step(g: Waves) -> None:
        x, y = a(g), b(g)
        results = [add(_window(x, y, k, True), old[k](g)) for k in range(4)]
        for k, value in enumerate(results):
            g.put(n + k, value)

    return step


special("v_mqsad_u32_u8", _sums_32)

# -- moves whose register number comes from M0 -------------------------------------------------------------------------


def _offsets(g: Waves, low_bits: bool) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of the source and of the destination register per wave."""
    m0 = g.s[M0]
    if low_bits:
        return (m0 & U32(0x3FF)).astype(np.intp), ((m0 >> U32(16)) & U32(0x3FF)).astype(np.intp)
    return m0.astype(np.intp), m0.astype(np.intp)


def _within(file: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Registers of a file by number; the first is read for those that are not there, and none written (RDNA 3 ISA
    guide, on VGPRs and SGPRs out of range)."""
    return np.where(rows < len(file), rows, 0)


def _move_vector(moves_source: bool, moves_destination: bool, low_bits: bool = False):
    def build(ins: Instruction, target: Target) -> Step:
        destination, source = ins.operands
        plain, lanes = read(source, "b32"), lane_source(ins, target.lanes)

        def find(g: Waves) -> np.ndarray:
            if not moves_source:
                return np.broadcast_to(plain(g), (g.count, g.lanes))
            return g.V[_within(g.V, source.index + _offsets(g, low_bits)[0]), np.arange(g.count)]

        def store(g: Waves, value: np.ndarray) -> None:
            if not moves_destination:
                g.put(destination.index, np.ascontiguousarray(value))
                return
            rows, wave = destination.index + _offsets(g, low_bits)[1], np.arange(g.count)
            moves = g.active() & (rows < len(g.V))[:, None]
            rows = _within(g.V, rows)
            g.V[rows, wave] = np.where(moves, value, g.V[rows, wave])

        return store_step(lanes, find if lanes is None else lanes.reader(find), store)

    return build


special("v_movrels_b32", _move_vector(True, False), dpp=True)
special("v_movreld_b32", _move_vector(False, True), dpp=True)
special("v_movrelsd_b32", _move_vector(True, True), dpp=True)
special("v_movrelsd_2_b32", _move_vector(True, True, low_bits=True), dpp=True)


def _swap_vectors(ins: Instruction, target: Target) -> Step:
    destination, source = ins.operands

    def step(g: Waves) -> None:
        by_source, by_destination = _offsets(g, True)
        wave = np.arange(g.count)
        x, y = destination.index + by_destination, source.index + by_source
        active = g.active() & (np.maximum(x, y) < len(g.V))[:, None]
        x, y = _within(g.V, x), _within(g.V, y)
        old_x, old_y = g.V[x, wave], g.V[y, wave]
        g.V[x, wave] = np.where(active, old_y, old_x)
        g.V[y, wave] = np.where(active, old_x, g.V[y, wave])

    return step


special("v_swaprel_b32", _swap_vectors)


def _move_scalar(moves_source: bool, wide: bool):
    def build(ins: Instruction, target: Target) -> Step:
        destination, source = ins.operands
        plain = read_scalar(source, "b64" if wide else "b32")

        def step(g: Waves) -> None:
            offset = g.s[M0].astype(np.intp)
            wave = np.arange(g.count)
            value = np.broadcast_to(plain(g), (g.count,))
            if moves_source:
                rows = _within(g.S[: -int(wide) or None], source.index + offset)
                value = g.S[rows, wave]
                if wide:
                    value = value.astype(U64) | (g.S[rows + 1, wave].astype(U64) << U64(32))
                (g.set_scalar64 if wide else g.set_scalar)(destination.index, value)
                return
            # Which register is written differs by wave: write each one's own.
            for n in np.unique(offset):
                at = destination.index + int(n)
                if at + wide >= len(g.S):
                    continue
                old = g.scalar64(at) if wide else g.s[at]
                (g.set_scalar64 if wide else g.set_scalar)(at, np.where(offset == n, value, old))

        return step

    return build


for _bits, _wide in (("b32", False), ("b64", True)):
    special(f"s_movrels_{_bits}", _move_scalar(True, _wide))
    special(f"s_movreld_{_bits}", _move_scalar(False, _wide))


def _move_scalar_both(ins: Instruction, target: Target) -> Step:
    destination, source = ins.operands

    def step(g: Waves) -> None:
        by_source, by_destination = _offsets(g, True)
        value = g.S[_within(g.S, source.index + by_source), np.arange(g.count)]
        for n in np.unique(by_destination):
            at = destination.index + int(n)
            if at >= len(g.S):
                continue
            g.set_scalar(at, np.where(by_destination == n, value, g.s[at]))

    return step


special("s_movrelsd_2_b32", _move_scalar_both)
