"""Every wait, barrier and lane mask of laneloom's kernels deleted, one at a time: caught, or shown to change nothing.

A mutant is caught when strict mode raises or the result differs. One that survives must be shown to change nothing: the
clean run, watched, gives the reason.
"""

import os
import re
from collections import Counter
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from own_kernels import CASES, turn  # noqa: E402
from sampled import sampled  # noqa: E402

import laneloom  # noqa: E402
from laneloom.emulator import launch as launching  # noqa: E402
from laneloom.emulator.program import Program  # noqa: E402
from laneloom.emulator.strict import Guard  # noqa: E402
from laneloom.errors import EmulationError  # noqa: E402
from laneloom.isa.parse import VCC  # noqa: E402
from laneloom.isa.registers import waits  # noqa: E402

WAIT = re.compile(r"s_waitcnt\b|s_waitcnt_vscnt|s_wait_(load|store|ds|km)cnt")
BARRIER = re.compile(r"s_barrier\b|s_barrier_signal")
# A masked lane is switched off, or sent to an offset that no buffer reaches.
OFFSET = re.compile(r"v_(dual_)?cndmask_b32\S* (v\d+), 0x80000000, (v\d+)(, (?:s\d+|vcc_lo))?")
# How assembly written by hand masks lanes; switching all on again is no mask.
SET_EXEC = re.compile(r"s_(mov|and)_b(32 exec_lo|64 exec), (?!-1\b)")
SAVE_EXEC = re.compile(r"s_and_saveexec_b(32|64) ([^,]+),")
MASK = re.compile(rf"{SAVE_EXEC.pattern}|v_cmpx_|{SET_EXEC.pattern}|{OFFSET.pattern}")


def mutants(asm: str):
    """(line number, what it was, text without it)."""
    lines = asm.split("\n")
    for i, line in enumerate(lines):
        code = line.split(";")[0].strip()
        if WAIT.match(code) or BARRIER.match(code) or SET_EXEC.match(code) or code.startswith("v_cmpx_"):
            new = ""
        elif match := SAVE_EXEC.match(code):
            new = f"\ts_mov_b{match[1]} {match[2]}, exec{'_lo' if match[1] == '32' else ''}"
        elif match := OFFSET.search(code):
            new = "\t" + code.replace(match[0], f"v_{match[1] or ''}mov_b32 {match[2]}, {match[3]}")
        else:
            continue
        lone = [*lines[:i], new, *lines[i + 1 :]]
        if code.startswith("s_barrier_signal"):  # gfx12's barrier is two instructions
            end = next(j for j in range(i, len(lines)) if lines[j].split(";")[0].strip().startswith("s_barrier_wait"))
            lone[end] = ""
        yield i + 1, code, "\n".join(lone)


def same(got, want) -> bool:
    return all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


class Watch:
    """What a clean strict run shows of each line: which waits are needed, which masks turn lanes off, and so on."""

    def __init__(self, monkeypatch, asm):
        self.needed_waits: set[int] = set()  #: a load that it releases is used before the next wait for its counter
        self.masks_that_turn_off: set[int] = set()
        self.barriers_after_accesses: set[int] = set()
        self.reached: set[int] = set()
        self._released: dict[str, list] = {}  #: counter -> (line of the wait, operation) not used yet
        self._accesses = 0
        self._program = SimpleNamespace(asm=None)
        before, after, wait = Guard.before, Guard.after, Guard._wait

        def watch_wait(guard, g):
            if self._program.asm != asm:
                return wait(guard, g)
            held = {c: [e for group in entries for e in group] for c, entries in g.shadow.pending.items()}
            done = wait(guard, g)
            for counter in waits(guard.ins):
                left = {id(e) for group in g.shadow.pending.get(counter, []) for e in group}
                gone = [e for e in held.get(counter, []) if id(e) not in left]
                self._released[counter] = [(guard.ins.line, e) for e in gone]
            return done

        def watch_before(guard, g):
            if self._program.asm != asm:
                return before(guard, g)
            self.reached.add(guard.ins.line)
            for counter, released in self._released.items():
                for line, e in released:
                    if guard._clashes(counter, e):
                        self.needed_waits.add(line)
            if guard.signals:
                if self._accesses:
                    self.barriers_after_accesses.add(guard.ins.line)
                self._accesses = 0
            self._exec = g.active().copy()
            for half in (guard.ins, guard.ins.second):
                if half is not None and half.name == "v_cndmask_b32" and OFFSET.search(half.text):
                    n = half.operands[3].index if len(half.operands) > 3 else VCC
                    if not (g.mask(n) | ~self._exec).all():
                        self.masks_that_turn_off.add(guard.ins.line)
            return before(guard, g)

        def watch_after(guard, g):
            if self._program.asm != asm:
                return after(guard, g)
            self._accesses += bool(guard.lds)
            if guard.writes_exec and not (g.active() == self._exec).all():
                self.masks_that_turn_off.add(guard.ins.line)
            return after(guard, g)

        monkeypatch.setattr(Guard, "_wait", watch_wait)
        monkeypatch.setattr(Guard, "before", watch_before)
        monkeypatch.setattr(Guard, "after", watch_after)

    def launch(self, program, *args, **kw):
        """An emulation's launcher."""
        self._program = program
        return launching.launch(program, *args, **kw)

    def reason(self, kind: str, line: int) -> str | None:
        """Why deleting a line cannot change a result; None if the clean run does not show it."""
        if line not in self.reached:
            return "never reached for this problem"
        if kind == "wait" and line not in self.needed_waits:
            return "for this problem, what it releases is used only behind a later wait for the same counter"
        if kind == "mask" and line not in self.masks_that_turn_off:
            return "turns off no lane for this problem"
        if kind == "barrier" and line not in self.barriers_after_accesses:
            return "no wave has touched LDS since the barrier before it"
        return None


def run(original, text, gpu, call):
    """What the call gives with the mutant in place of the original, None where it is caught."""
    program = Program(text, gpu, strict=True)
    replaced = []

    def launch(compiled, *args, **kw):
        replaced.append(compiled.asm == original)
        return launching.launch(program if replaced[-1] else compiled, *args, **kw)

    with laneloom.emulated(gpu, strict=True) as emulation:
        emulation.launcher = launch
        try:
            result = call()
        except EmulationError:
            return None
    assert any(replaced), "the call launched another kernel"
    return result


def same_elsewhere(original, text, gpu, call) -> bool:
    """Whether the mutant is right on other operands too."""
    with laneloom.emulated(gpu):
        want = call()
    got = run(original, text, gpu, call)
    return got is not None and same(got, want)


ALL = os.environ.get("LANELOOM_ALL_MUTANTS")


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        (name, gpu)
        for name in (CASES if ALL else sampled(CASES))
        for n, gpu in enumerate(CASES[name].gpus)
        if ALL or n == turn(name)  # the GPUs take turns: gfx12 has other waits and other barriers
    ],
)
def test_every_mutant_is_caught_or_explained(name, gpu, monkeypatch):
    case = CASES[name]
    call = case.make()
    with laneloom.emulated(gpu) as clean:
        call()
    original = clean.launches[case.launch].asm
    with monkeypatch.context() as watched, laneloom.emulated(gpu, strict=True) as emulation:
        watch = Watch(watched, original)
        emulation.launcher = watch.launch
        want = call()
    caught, survivors = Counter(), []
    every = list(mutants(original))
    step = 1 if ALL else 8 * case.step
    every = every[case.gpus.index(gpu) % step :: step]
    for line, code, text in every:
        kind = next(k for k, p in (("wait", WAIT), ("barrier", BARRIER), ("mask", MASK)) if p.search(code))
        got = run(original, text, gpu, call)
        if got is None or not same(got, want):
            caught[kind] += 1
            continue
        why = watch.reason(kind, line)
        others, text_of_why = [], ""
        if why is None and kind == "mask":
            # It turns lanes off, and yet nothing changed: then what they load must reach no output, whatever it is.
            others = [case.make(seed=seed) for seed in (1, 2)]
            text_of_why = "what the masked lanes load reaches no output: same bits on other random operands"
        elif why is None and kind == "barrier":
            # No race without it: then it separates no conflict, however long the loop runs.
            others = [case.make(more=more) for more in (32, 96, 128)]
            text_of_why = "strict mode finds no race without it in longer loops either: another barrier orders all"
        if others and not all(same_elsewhere(original, text, gpu, other) for other in others):
            caught[kind] += 1  # on other operands
            continue
        why = why or text_of_why
        survivors.append((kind, line, code, why))
    assert caught, "deleted nothing that matters"
    assert step > 1 or not case.caught - caught, f"caught only {caught}"
    unexplained = [s for s in survivors if not s[3]]
    assert not unexplained, f"{caught} caught, unexplained: {unexplained}"
    print(f"{gpu} {name}: {sum(caught.values())} of {len(every)} caught {dict(caught)}")
    for _, line, code, why in survivors:
        print(f"  line {line}: {code}: {why}")
