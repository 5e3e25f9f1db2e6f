"""What `isa --check` derives of vector registers from the code alone, against what the emulator computes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from laneloom.isa.check_code import read_code
from laneloom.isa.lane_values import SCALARS, Value, follow, values_at_start

LANE = np.arange(64, dtype=np.uint32)
CONSTANTS = (1, 2, 3, 7, 16, 31, 48, 63, 64, 0x70, 0xFF, 0x820, 0xFFFFFFF0)


def derived(lines: list[str], gpu: str) -> dict[int, Value]:
    (code,) = read_code("\n".join(f"\t{line}" for line in lines), gpu)
    state = dict(values_at_start(code)[0] or {})
    for step in code.steps:
        follow(step, state)
    return state


def check_value(value: Value, got: np.ndarray) -> None:
    """The same in every lane, but for a multiple of the grain that all add."""
    apart = (got.astype(np.int64) - value.lanes) & 0xFFFFFFFF
    if value.shifted:
        assert (apart == apart[0]).all()
        assert apart[0] % value.grain == 0
    else:
        assert not apart.any()


class Program:
    """Random instructions on v0, the lane's number, on s4 and s5, which are not known, and on each other's results."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.known = 1

    def source(self) -> str:
        return self.random.choice((f"v{self.random.randrange(self.known)}", *["v0"] * (self.known < 4)))

    def other(self) -> str:
        """A vector register, or seldom something else."""
        kind = self.random.random()
        if kind < 0.2:
            return self.random.choice(("s4", "s5", "s6"))
        return hex(self.random.choice(CONSTANTS)) if kind < 0.5 else self.source()

    def line(self) -> str:
        pick, a, v = self.random.choice, self.other(), self.source
        number = self.random.randrange
        body = pick((
            f"v_and_b32 %, {a}, {v()}", f"v_or_b32 %, {a}, {v()}", f"v_xor_b32 %, {a}, {v()}",
            f"v_add_u32 %, {a}, {v()}", f"v_sub_u32 %, {a}, {v()}", f"v_mul_lo_u32 %, {v()}, {v()}",
            f"v_lshlrev_b32 %, {number(8)}, {v()}", f"v_lshrrev_b32 %, {number(8)}, {v()}",
            f"v_and_or_b32 %, {v()}, {v()}, {a}", f"v_or3_b32 %, {v()}, {a}, {v()}",
            f"v_bfe_u32 %, {v()}, {number(6)}, {number(6)}", f"v_lshl_or_b32 %, {v()}, {number(6)}, {v()}",
            f"v_bfe_i32 %, {v()}, {number(6)}, {number(6)}", f"v_ashrrev_i32 %, {number(8)}, {v()}",
            f"v_cmp_{pick(('lt', 'le', 'eq', 'ne', 'ge', 'gt'))}_{pick('ui')}32 vcc, {a}, {v()}\n"
            f"v_cndmask_b32 %, {v()}, {v()}, vcc",
            f"s_bfe_{pick('ui')}32 s7, {pick(('s4', 's6'))}, {number(16) << 16 | number(16)}\nv_xor_b32 %, s7, {v()}",
            f"s_movk_i32 s7, {number(1 << 16):#x}\nv_and_b32 %, s7, {v()}",
            f"s_addk_i32 s6, {64 * number(1 << 10):#x}\nv_add_u32 %, s6, {v()}",
            f"v_lshl_add_u32 %, {v()}, {number(6)}, {v()}",
            *(f"v_bitop3_b32 %, {v()}, {a}, {v()} bitop3:{number(256):#x}" for _ in range(6)),
        ))  # fmt: skip
        self.known += 1
        return body.replace("%", f"v{self.known - 1}")


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(cdna3, seed: int):
    program = Program(seed)
    lines = ["s_and_b32 s6, s6, 0xffffffc0", *(line for _ in range(30) for line in program.line().split("\n"))]
    state = derived(lines, "gfx950")
    chosen = program.random
    got = cdna3("\n".join(lines), "gfx950", v={0: LANE}, s={n: np.uint32(chosen.getrandbits(32)) for n in (4, 5, 6)})
    known = [n for n in range(1, program.known) if n in state]
    assert known
    for n in known:
        check_value(state[n], got.vector(n, np.uint32)[:64])
    assert (state[SCALARS + 6].shifted, state[SCALARS + 6].grain) == (True, 64)
