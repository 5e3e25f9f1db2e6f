"""Wait states that CDNA's hardware leaves to the code, and that are missing.

From each instruction back along every path, as far as any rule reaches (`wait_states.MOST`), the instructions before it
are asked what they need. A register that something else has written in between ends what depends on it. Functions that
are called, and code in front of an indirect branch, are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator

from .check_code import Code
from .finding import Finding, found
from .wait_states import MOST, Acts, acts, needed


def check_wait_states(code: Code) -> Iterator[Finding]:
    """Instructions that come too soon after one that they depend on, the worst dependency of each."""
    if code.gpu.major != 9:
        return
    every = [acts(step, code.gpu.name) for step in code.steps]
    before = code.blocks_before()
    for number, block in enumerate(code.blocks):
        for at in range(block.first, block.last):
            own = every[at]
            if not (own.matrix or own.valu or own.memory):
                continue
            worst = max(_missing(code, every, before, number, at), default=None)
            if worst is not None:
                yield found("missing-nops", own.step.ins, _text(every[worst[1]], *worst))


def _text(producer: Acts, missing: int, _: int, states: int, reason: str) -> str:
    ins = producer.step.ins
    return (
        f"{reason}: {states} wait state{'s' if states > 1 else ''} since line {ins.line} ({ins.text}), "
        f"{states - missing} here: s_nop {missing - 1} is missing"
    )


def _missing(
    code: Code, every: list[Acts], before: list[list[int]], number: int, at: int
) -> Iterator[tuple[int, int, int, str]]:
    """(wait states that are missing, where the dependency starts, wait states that it needs, why)."""
    own = every[at]
    gpu = code.gpu.name
    pending = [(number, at, 0, -1, -1)]
    seen = set()
    while pending:
        number, place, distance, open_v, open_s = pending.pop()
        first = code.blocks[number].first
        while place > first and distance < MOST:
            place -= 1
            producer = every[place]
            for states, reason in needed(producer, own, gpu, open_v, open_s):
                if states > distance:
                    yield states - distance, place, states, reason
            uses = producer.step.uses
            open_v &= ~uses.writes_v
            open_s &= ~uses.writes_s
            distance += _states(producer)
        if distance < MOST:
            for earlier in before[number]:
                state = (earlier, code.blocks[earlier].last, distance, open_v, open_s)
                if state not in seen:
                    seen.add(state)
                    pending.append(state)


def _states(one: Acts) -> int:
    ins = one.step.ins
    return int(ins.operands[0].value) + 1 if ins.name == "s_nop" and ins.operands else 1
