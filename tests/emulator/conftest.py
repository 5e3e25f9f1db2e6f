"""Running a few instructions on chosen registers, and exact arithmetic to hold the results against."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from laneloom.cli.coverage import instructions_of
from laneloom.emulator.memory import GlobalMemory, LocalMemory
from laneloom.emulator.program import Program
from laneloom.emulator.state import Waves
from laneloom.gpu import get_gpu
from laneloom.isa.parse import EXEC

MARK = 0xA5A5A5A5  #: what registers hold that a test does not set
KERNEL = """
k:
{code}
\ts_endpgm
\t.amdhsa_kernel k
\t\t.amdhsa_next_free_vgpr 32
\t\t.amdhsa_wavefront_size32 {wave32}
\t\t.amdhsa_float_denorm_mode_32 3
\t\t.amdhsa_float_denorm_mode_16_64 3
{directives}
\t.end_amdhsa_kernel
"""


class Machine:
    """The registers after some instructions ran."""

    def __init__(self, waves: Waves, items: int):
        self.waves, self.items = waves, items

    def vector(self, n: int, dtype, half: int = 0) -> np.ndarray:
        """VGPR n (a pair for 8-byte types, one half for 2-byte ones), lane after lane, wave after wave."""
        size = np.dtype(dtype).itemsize
        if size == 8:
            pair = np.stack([self.waves.V[n], self.waves.V[n + 1]], axis=-1)
            return np.ascontiguousarray(pair).view(dtype).reshape(-1)[: self.items]
        if size == 2:
            halves = np.ascontiguousarray(self.waves.V[n]).view(dtype)
            return halves.reshape(*self.waves.V[n].shape, 2)[..., int(half)].reshape(-1)[: self.items]
        return np.ascontiguousarray(self.waves.V[n]).view(dtype).reshape(-1)[: self.items]

    def scalar(self, n: int, dtype=np.uint32) -> np.ndarray:
        """SGPR n (a pair for 8-byte types) of every wave."""
        if np.dtype(dtype).itemsize == 8:
            return self.waves.scalar64(n).view(dtype)
        return self.waves.S[n].view(dtype)

    def mask(self, n: int) -> np.ndarray:
        """The lane mask in SGPR n, one boolean per item."""
        return self.waves.mask(n).reshape(-1)[: self.items]


def _place(V: np.ndarray, n: int, values: np.ndarray, lanes: int) -> None:
    values = np.ascontiguousarray(values)
    size = values.dtype.itemsize
    raw = values.view(f"u{size}")
    padded = np.resize(raw, V.shape[1] * lanes).reshape(V.shape[1], lanes)
    if size == 8:
        V[n], V[n + 1] = padded.astype(np.uint32), (padded >> np.uint64(32)).astype(np.uint32)
    elif size == 2:
        V[n] = padded.astype(np.uint32) | np.uint32(MARK & 0xFFFF0000)
    else:
        V[n] = padded


@cache
def _known_to_gfx12() -> frozenset[str]:
    return frozenset(instructions_of(get_gpu("gfx1201")))


def _runs_on_gfx12(program: Program) -> bool:
    """Whether RDNA 4 has all these instructions too."""
    halves = [half for ins in program.listing.instructions for half in (ins, ins.second) if half is not None]
    return all(half.name in _known_to_gfx12() for half in halves)


@pytest.fixture
def execute():
    """execute(code, v={register: values per lane}, s={register: value per wave}, ...) -> Machine.

    Where no GPU is named, RDNA 3.5 runs the code, and RDNA 4 too if it has the instructions: both must agree.
    """

    def run(code: str, *, gpu=None, **given) -> Machine:
        machine, program = run_on(gpu or "gfx1151", code, **given)
        if gpu is None and _runs_on_gfx12(program):
            other, _ = run_on("gfx1201", code, **given)
            np.testing.assert_array_equal(machine.waves.V, other.waves.V)
            np.testing.assert_array_equal(machine.waves.S, other.waves.S)
            np.testing.assert_array_equal(machine.waves.scc, other.waves.scc)
        return machine

    def run_on(gpu, code, *, lanes=32, v=None, s=None, active=None, scc=None, directives="") -> tuple[Machine, Program]:
        v, s = v or {}, s or {}
        items = max([len(x) for x in v.values()] or [np.size(x) * lanes for x in s.values()] or [lanes])
        count = -(-items // lanes)
        V = np.full((32, count, lanes), MARK, np.uint32)
        S = np.full((128, count), MARK, np.uint32)
        for n, values in v.items():
            _place(V, n, values, lanes)
        for n, value in s.items():
            raw = np.atleast_1d(value)
            bits = raw.view(f"u{raw.dtype.itemsize}") if raw.dtype.kind == "f" else raw.astype(np.int64).view(np.uint64)
            S[n] = (bits.astype(np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            if (raw.dtype.itemsize == 8 and raw.dtype.kind in "uf") or (bits.astype(np.uint64) >> np.uint64(32)).any():
                S[n + 1] = (bits.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)
        S[EXEC : EXEC + 2] = 0xFFFFFFFF
        flag = np.zeros(count, bool) if scc is None else np.broadcast_to(scc, (count,)).copy()
        lines = "\n".join("\t" + line.strip() for line in code.strip().splitlines())
        program = Program(KERNEL.format(code=lines, wave32=int(lanes == 32), directives=directives), gpu)
        g = Waves(
            V, S, flag, np.arange(count), np.zeros((count, 1), np.int64), lanes,
            GlobalMemory([]), LocalMemory(1, 0), True,
        )  # fmt: skip
        if active is not None:
            g.set_mask(EXEC, np.resize(active, count * lanes).reshape(count, lanes))
        with np.errstate(all="ignore"):
            for step in program.blocks[0].steps:
                step(g)
        return Machine(g, items), program

    return run


@pytest.fixture
def cdna3(execute):
    """`execute` on gfx942, or the GPU that is named, with 64 lanes."""
    return lambda code, gpu="gfx942", **given: execute(code, gpu=gpu, lanes=64, **given)


# -- exact arithmetic --------------------------------------------------------------------------------------------------

FORMATS = {"f16": (5, 10), "f32": (8, 23), "f64": (11, 52), "bf16": (8, 7)}


def decode(bits: int, kind: str) -> Fraction | float:
    """The number behind the bits: a Fraction, or a float for infinities and NaN (and -0.0)."""
    exponent_bits, mantissa_bits = FORMATS[kind]
    sign = -1 if bits >> (exponent_bits + mantissa_bits) & 1 else 1
    exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = bits & ((1 << mantissa_bits) - 1)
    if exponent == (1 << exponent_bits) - 1:
        return float("nan") if mantissa else sign * float("inf")
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent == 0:
        return sign * Fraction(mantissa) / (1 << (bias - 1 + mantissa_bits)) if mantissa else sign * 0.0
    power = exponent - bias - mantissa_bits
    return sign * Fraction(mantissa | 1 << mantissa_bits) * (Fraction(2) ** power)


def encode(value: Fraction, kind: str, rounding: int = 0) -> int:
    """The bits of a non-zero number rounded once: 0 nearest even, 1 up, 2 down, 3 towards zero."""
    exponent_bits, mantissa_bits = FORMATS[kind]
    bias = (1 << (exponent_bits - 1)) - 1
    negative, magnitude = value < 0, abs(value)
    power = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** power > magnitude:
        power -= 1
    power = max(power, 1 - bias)
    scaled = magnitude / Fraction(2) ** (power - mantissa_bits)
    whole, rest = divmod(scaled.numerator, scaled.denominator)
    remainder = Fraction(rest, scaled.denominator)
    away = {
        0: remainder > Fraction(1, 2) or (remainder == Fraction(1, 2) and whole % 2),
        1: remainder > 0 and not negative, 2: remainder > 0 and negative, 3: False,
    }[rounding]  # fmt: skip
    code = ((power + bias - 1) << mantissa_bits) + whole + bool(away)
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    if code >= infinity:
        stops = rounding == 3 or (rounding == 1 and negative) or (rounding == 2 and not negative)
        code = infinity - 1 if stops else infinity
    return code | int(negative) << (exponent_bits + mantissa_bits)


def numbers(kind: str, count: int, seed: int, spread: int = 40) -> np.ndarray:
    """Random bit patterns that meet: exponents near each other or at the ends, few or many mantissa bits, specials."""
    exponent_bits, mantissa_bits = FORMATS[kind]
    rng = np.random.default_rng(seed)
    top = (1 << exponent_bits) - 1
    near = np.clip(rng.integers(-spread, spread + 1, count) + (top >> 1), 0, top)
    anywhere = rng.integers(0, top + 1, count)
    edge = np.where(rng.random(count) < 0.5, rng.integers(0, 3, count), top - rng.integers(0, 3, count))
    choice = rng.random(count)
    exponent = np.where(choice < 0.6, near, np.where(choice < 0.8, anywhere, edge)).astype(object)
    mantissa = np.array([int(x) for x in rng.integers(0, 1 << mantissa_bits, count)], object)
    few = rng.random(count) < 0.5
    kept = rng.integers(0, 4, count)
    for i in np.nonzero(few)[0]:
        mantissa[i] = mantissa[i] >> (mantissa_bits - int(kept[i])) << (mantissa_bits - int(kept[i]))
        if rng.random() < 0.5:  # just beside a tie
            mantissa[i] = (mantissa[i] + int(rng.integers(-1, 2))) & ((1 << mantissa_bits) - 1)
    sign = rng.integers(0, 2, count).astype(object)
    bits = [(int(s) << (exponent_bits + mantissa_bits)) | int(e) << mantissa_bits | int(m)
            for s, e, m in zip(sign, exponent, mantissa, strict=True)]  # fmt: skip
    size = (1 + exponent_bits + mantissa_bits) // 8
    return np.array(bits, f"u{size}")


@pytest.fixture
def exact():
    """Exact numbers: decode, encode, numbers."""
    return SimpleNamespace(decode=decode, encode=encode, numbers=numbers, formats=FORMATS)
