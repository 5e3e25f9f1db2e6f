"""Waits that find nothing to wait for.

For each counter the most operations that can be under way is followed along every path; where paths meet, the larger
number holds. A kernel starts with none. What a call may leave under way, or an instruction that is not known here, is
taken as endless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .check_code import Code, Step
from .finding import Finding, found
from .flow import Flow
from .listing import Kind
from .registers import raises, waits
from .wait_states import TO_LDS

ENDLESS = 64  #: counters hold at most 63
_COUNTERS = {
    9: ("vmcnt", "lgkmcnt", "expcnt"),
    11: ("vmcnt", "lgkmcnt", "vscnt", "expcnt"),
    # CDNA 5's; its count of translated addresses guards registers that are overwritten and is not followed
    125: ("loadcnt", "storecnt", "dscnt", "kmcnt", "asynccnt", "tensorcnt"),
    12: ("loadcnt", "storecnt", "dscnt", "kmcnt", "samplecnt", "bvhcnt", "expcnt"),
}
# Operations whose counter is not modelled, or that leave this code.
_UNKNOWN = re.compile(
    r"image_|exp(ort)?_|exp$|tbuffer_|lds_|ds_(gws|ordered|append|consume)|global_load_(lds|async)|tensor_|cluster_"
    r"|s_(sendmsg|memtime|memrealtime|get_barrier|barrier_leave|barrier_signal_isfirst|atc_probe|scratch|dcache_wb"
    r"|atomic|trap|prefetch|buffer_prefetch)"
)
_COPY = re.compile(r"(global|cluster)_(load|store)_async|tensor_|cluster_load")  # CDNA 5 counts them
_CACHE = re.compile(r"(global|buffer)_(inv|wb|wbinv|gl\d_inv)")
State = tuple[int, ...]


def check_waits(code: Code) -> Iterator[Finding]:
    """Waits that no path needs."""
    names = _COUNTERS[125 if code.gpu.is_cdna5 else code.gpu.major]
    start: dict[int, State] = {0: (0,) * len(names)}
    pending = [0]
    while pending:  # the bounds only grow, and not above ENDLESS
        number = pending.pop()
        block = code.blocks[number]
        state = start[number]
        for step in code.steps[block.first : block.last]:
            state = _after(step, state, names, code.gpu.major)
        for after in block.next:
            if after is None:
                continue
            known = start.get(after)
            joined = state if known is None else tuple(map(max, known, state))
            if joined != known:
                start[after] = joined
                pending.append(after)
    for number, block in enumerate(code.blocks):
        state = start.get(number)
        if state is None:
            continue  # nothing comes here
        for step in code.steps[block.first : block.last]:
            if step.kind is Kind.WAIT and (asked := waits(step.ins, code.gpu.major)):
                open_now = {c: state[names.index(c)] for c in asked if c in names}
                if open_now and all(open_now[c] <= asked[c] for c in open_now):
                    yield found("needless-wait", step.ins, _text(asked, open_now))
            state = _after(step, state, names, code.gpu.major)


def _text(asked: dict[str, int], open_now: dict[str, int]) -> str:
    parts = [
        f"at most {n} of {c} {'is' if n == 1 else 'are'} under way here, and {asked[c]} may stay" if n else
        f"nothing of {c} is under way here" for c, n in open_now.items()
    ]  # fmt: skip
    return "; ".join(parts)


def _after(step: Step, state: State, names: tuple[str, ...], major: int) -> State:
    name = step.ins.name
    if step.kind is Kind.WAIT:
        asked = waits(step.ins, major)
        return tuple(min(n, asked.get(c, ENDLESS)) for c, n in zip(names, state, strict=True))
    counted = (major == 9 and TO_LDS.match(name)) or ("tensorcnt" in names and _COPY.match(name))
    if (_UNKNOWN.match(name) and not counted) or step.flow is Flow.CALLS:
        return (ENDLESS,) * len(names)
    raised = raises(step.ins, major)
    if _CACHE.match(name):  # gfx12 counts them; on gfx11 and CDNA it is not documented
        raised = ("loadcnt", "storecnt") if major == 12 else ("vmcnt", "vscnt")
    if not raised:
        return state
    return tuple(min(n + (c in raised), ENDLESS) for c, n in zip(names, state, strict=True))
