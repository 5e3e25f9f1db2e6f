"""pytest plugin that records which passing test executes which instruction, in the smallest program.

Not loaded by itself: PYTHONPATH=tests/emulator python -m pytest -p record_coverage tests/emulator
"""

from __future__ import annotations

import json

import pytest

from laneloom.emulator import matrix
from laneloom.emulator.instructions import RECORD
from laneloom.emulator.program import Program

HAND_WRITTEN = 64  # instructions; a longer program is no test of an instruction
_found: dict[str, dict[str, tuple[int, str]]] = {}
_running: dict[tuple[str, str], int] = {}  #: (generation, mnemonic) -> smallest program, of the test that runs
_files: set[str] = set()
_seen: set[tuple[int, int]] = set()
_kept: list[Program] = []  # so that ids stay theirs
_building = 0


def _note(generation: str, name: str, size: int) -> None:
    """size: instructions of the program; 0 for a compiled kernel, which proves least."""
    before = _running.get((generation, name), 0)
    _running[generation, name] = min(size, before) if size and before else size or before


def _size(program: Program) -> int:
    count = len(program.listing.instructions)
    return count if "\t.loc\t" not in program.asm and count <= HAND_WRITTEN else 0


def _watched(step, program: Program, ins):
    noted = False

    def run(g):
        nonlocal noted
        if not noted:
            noted = True
            part = ins
            while part is not None:
                _note(program.gpu.generation, part.mnemonic, _size(program))
                part = part.second
        step(g)

    return run


def pytest_configure(config: pytest.Config) -> None:
    """Watch every program that tests build and run, and matrix instructions that they run without one."""
    build, run_block, decode = Program.__init__, Program.run_block, matrix.decode

    def init(self, *arguments, **options):
        global _building
        _building += 1
        try:
            build(self, *arguments, **options)
        finally:
            _building -= 1
        _kept.append(self)
        for block in self.blocks:
            block.steps = [_watched(s, self, i) for s, i in zip(block.steps, block.sources, strict=True)]

    def run(self, g, *arguments):
        block = self.blocks[g.block]
        after = run_block(self, g, *arguments)
        if (id(self), block.first) not in _seen:
            _seen.add((id(self), block.first))
            for ins in self.listing.instructions[block.first : block.last]:  # waits and branches too
                _note(self.gpu.generation, ins.mnemonic, _size(self))
        return after

    def watched_decode(ins, target):
        if not _building:
            _note(target.gpu.generation, ins.name, 1)
        return decode(ins, target)

    Program.__init__, Program.run_block, matrix.decode = init, run, watched_decode


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A new test starts."""
    _running.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what a passed test executed."""
    _files.add(report.nodeid.split("::")[0])
    if report.when == "call" and report.passed:
        for (generation, name), size in _running.items():
            _keep(generation, name, size, report.nodeid.split("[")[0])


def _keep(generation: str, name: str, size: int, test: str) -> None:
    """Unless another test executed it in a smaller program."""
    mine = _found.setdefault(generation, {})
    if name not in mine or (size or 1 << 20, test) < (mine[name][0] or 1 << 20, mine[name][1]):
        mine[name] = (size, test)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the record; of files that did not run, what the former record says of them."""
    former = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for generation, names in former.items():
        for name, (test, size) in names.items():
            if test.partition("::")[0] not in _files:
                _keep(generation, name, size, test)
    shown = {
        generation: {name: [test, size] for name, (size, test) in sorted(names.items())}
        for generation, names in sorted(_found.items())
    }
    lines = []
    for generation, names in shown.items():
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in names.items())
        lines.append(f" {json.dumps(generation)}: {{\n{rows}\n }}")
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
