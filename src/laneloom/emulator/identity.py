"""What a wave asks of the hardware about itself: clocks, and the place where it runs.

An emulated GPU has neither. The clocks are counters that go on by a fixed step at each reading, so that a kernel which
waits for a moment gets there and one which takes differences gets numbers above 0: none of them is a time. Workgroups
take turns on the GPU's WGPs. (RDNA 3 ISA guide, HW_ID1 and S_SENDMSG_RTN; CDNA 3 ISA guide, HW_ID and S_MEMTIME;
AMDGPU LLVM backend, hwreg)
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import Instruction
from .alu import Step, Target, special
from .state import U32, U64, Waves

_TICKS = 100  #: by which a reading moves a clock: 1 us of the 100 MHz that MSG_RTN_GET_REALTIME counts
_REGISTER = re.compile(r"hwreg\(\s*(\w+)\s*(?:,\s*(\d+)\s*,\s*(\d+)\s*)?\)")


def _tick(g: Waves) -> int:
    g.memory.ticks += _TICKS
    return g.memory.ticks


def _place(g: Waves, target: Target) -> np.ndarray:
    """HW_ID1: SIMD_ID [9:8], WGP_ID [13:10], SA_ID [16], SE_ID [20:18]; WAVE_ID [4:0]. HW_ID of gfx9: WAVE_ID [3:0],
    SIMD_ID [5:4], CU_ID [11:8], SE_ID [15:13]."""
    group, wave = g.ids // g.waves_per_group, g.ids % g.waves_per_group
    if target.gpu.major == 9:
        unit = group % 40  # of one XCD
        return wave // 4 % 16 | wave % 4 << 4 | unit % 10 << 8 | unit // 10 << 13
    wgp = group % (target.gpu.compute_units // 2)
    return wave // 4 % 32 | wave % 4 << 8 | (wgp & 3) << 10 | (wgp >> 2 & 1) << 16 | (wgp >> 3 & 7) << 18


def register_reader(ins: Instruction, target: Target) -> Callable[[Waves], np.ndarray] | None:
    """What an s_getreg gives of the place or the cycle counter; None for other registers."""
    match = _REGISTER.search(ins.text)
    if match is None:
        return None
    name, offset, size = match[1].removeprefix("HW_REG_").removeprefix("WAVE_"), int(match[2] or 0), int(match[3] or 32)
    counts = 20 if target.gpu.major == 11 else 32  # gfx12 has the upper half in a register of its own
    words: dict[str, Callable[[Waves], np.ndarray]] = {
        "HW_ID1": lambda g: _place(g, target),
        "SHADER_CYCLES": lambda g: np.full(g.count, _tick(g) % (1 << counts)),
    }
    if target.gpu.major == 9:
        words = {"HW_ID": words["HW_ID1"], "XCC_ID": lambda g: np.zeros(g.count, np.int64)}
    if target.gpu.major == 12:
        words["SHADER_CYCLES_HI"] = lambda g: np.full(g.count, g.memory.ticks >> 32)
    if target.gpu.is_cdna5:
        words["IB_STS2"] = lambda g: g.memory.clusters.status(g)
    numbers = {
        "4": "HW_ID", "20": "XCC_ID", "23": "HW_ID1", "29": "SHADER_CYCLES", "30": "SHADER_CYCLES_HI",
        "SHADER_CYCLES_LO": "SHADER_CYCLES",
    }  # fmt: skip
    word = words.get(numbers.get(name, name))
    return word and (lambda g: (word(g) >> offset & (1 << size) - 1).astype(U32))


def _message(ins: Instruction, target: Target) -> Step:
    """`s_sendmsg_rtn`: of the messages that are answered, the clock's."""
    if "GET_REALTIME" not in ins.text and "sendmsg(131" not in ins.text:
        raise UnknownInstructionError(f"{ins.text!r} asks for what the emulator does not keep")
    n, wide = ins.operands[0].index, ins.name.endswith("b64")

    def step(g: Waves) -> None:
        now = U64(_tick(g))
        if wide:
            g.set_scalar64(n, now)
        else:
            g.set_scalar(n, U32(now & U64(0xFFFFFFFF)))

    return step


def _clock(ins: Instruction, target: Target) -> Step:
    n = ins.operands[0].index
    return lambda g: g.set_scalar64(n, U64(_tick(g)))


special("s_sendmsg_rtn_b32 s_sendmsg_rtn_b64", _message)
special("s_memtime s_memrealtime", _clock)
