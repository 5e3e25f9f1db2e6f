"""From a trace to the streams that are simulated: each wave's instructions, without the middle of its longest loop.

A loop comes into step after a few iterations, and all that follow take as long. So the simulation sees the first
`WARM`, the next `MEASURED`, whose pace is measured, and the last `TAIL`; what lies between is counted at that pace.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .simulate import Stream
from .trace import Trace

WARM, MEASURED, TAIL = 4, 8, 2  #: iterations
_MOST = 300_000  #: instructions of all waves that are simulated
_FEWEST = WARM + TAIL + 4  #: iterations of a loop whose pace is measured
PACE_STARTS, PACE_ENDS = 0, 1  #: marks


@dataclass(frozen=True)
class Cut:
    """One wave's stream, and what was left out of it."""

    stream: Stream
    left_out: int  #: iterations between the measured ones and the tail
    executed: int  #: instructions before anything was left out
    measured: int = 0  #: iterations whose pace is measured; 0 where there is no loop to speak of
    iterations: int = 0  #: of that loop


def cut_streams(trace: Trace) -> list[Cut]:
    """The streams of a trace's waves."""
    blocks = trace.program.blocks
    waves = trace.waves
    visits = {wave: trace.of_wave(wave) for wave in waves}
    lengths = [block.last - block.first for block in blocks]
    total = sum(lengths[trace.visits[v].block] for own in visits.values() for v in own)
    # A loop's block stands at most once in an iteration, so its visits count the iterations.
    longest = max(visits.values(), key=len, default=[])
    header, measured = _header([trace.visits[v].block for v in longest], lengths, len(waves))
    if total < _MOST / 8:
        measured = len(longest)  # a small launch is simulated whole
    return [_cut(trace, wave, visits[wave], header, lengths, measured) for wave in waves]


def _header(sequence: list[int], lengths: list[int], waves: int) -> tuple[int | None, int]:
    """The block to cut at, and the iterations to measure: of the loops in which most time passes the longest that the
    simulation can afford.
    """
    places: dict[int, list[int]] = {}
    before = 0
    for block in sequence:
        places.setdefault(block, []).append(before)
        before += lengths[block]
    enough = {b: p for b, p in places.items() if len(p) >= _FEWEST}
    if not enough:
        return None, 0
    span = {b: p[-1] - p[0] for b, p in enough.items()}
    most = max(span.values())
    counts = Counter(sequence)
    candidates = [b for b in enough if span[b] >= 0.9 * most]
    affords = {b: int(_MOST / (span[b] / (counts[b] - 1) * waves)) - WARM - TAIL for b in candidates}
    affordable = [b for b in candidates if affords[b] >= 4] or [max(candidates, key=lambda b: affords[b])]
    header = min(affordable, key=lambda b: (counts[b], sequence.index(b)))
    return header, max(min(affords[header], MEASURED), 4)


def _cut(
    trace: Trace, wave: int, visits: list[int], header: int | None, lengths: list[int], most: int
) -> Cut:  # fmt: skip
    at = [k for k, v in enumerate(visits) if trace.visits[v].block == header] if header is not None else []
    keep: list[tuple[int, int | None]] = [(k, None) for k in range(len(visits))]
    left_out = measured = 0
    if len(at) >= _FEWEST:
        measured = min(most, len(at) - TAIL - WARM)
        starts, ends, resume = at[WARM], at[WARM + measured], at[-TAIL]
        left_out = len(at) - TAIL - WARM - measured
        keep = [(k, None) for k in (*range(ends), *range(resume, len(visits)))]
        keep[starts] = (starts, PACE_STARTS)
        keep[ends] = (resume, PACE_ENDS)
    instructions: list[int] = []
    asked: list = []
    marks: dict[int, int] = {}
    blocks = trace.program.blocks
    for k, mark in keep:
        if mark is not None:
            marks[len(instructions)] = mark
        visit = trace.visits[visits[k]]
        block = blocks[visit.block]
        first = len(instructions)
        instructions.extend(range(block.first, block.last))
        asked.extend([None] * (block.last - block.first))
        row = visit.row[wave]
        for index, per_wave in visit.asked:
            place = first + index - block.first
            if asked[place] is None:
                asked[place] = [per_wave[row]]
            else:
                asked[place].append(per_wave[row])
        if block.leave not in ("next", "end", "barrier", "cluster"):
            after = trace.visits[visits[k + 1]].block if k + 1 < len(visits) else visit.block + 1
            asked[-1] = after != visit.block + 1 or None
    executed = sum(lengths[trace.visits[v].block] for v in visits)
    return Cut(Stream(wave // trace.waves_per_group, instructions, asked, marks), left_out, executed, measured, len(at))
