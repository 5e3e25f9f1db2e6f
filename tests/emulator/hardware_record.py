"""What tinygrad's tests of AMD instructions gave in this emulator: a record, and what docs/emulator.md says of it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from laneloom.bench.emulator import EMULATOR_SOURCES, read_processor
from laneloom.bench.records import hash_sources
from laneloom.bench.report import fill_page

ROOT = Path(__file__).parents[2]
FILE = ROOT / "results" / "cpu" / "hardware_suite.json"
PAGE = ROOT / "docs" / "emulator.md"


def write(checkout: Path, stats: dict[str, list[Any]]) -> None:
    """Keep what pytest's terminal reporter counted, and say it on the page."""
    asked = ["git", "-C", str(checkout), "log", "-1", "--abbrev=12", "--format=%h %cs"]
    commit, date = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    environment = read_processor()
    broken = [*stats.get("failed", []), *stats.get("error", [])]
    record = {
        "suite": "tinygrad test/amd/hw", "suite_commit": commit, "suite_date": date,
        "commit": environment.commit, "dirty": environment.dirty, "sources": hash_sources(EMULATOR_SOURCES),
        "python_and_numpy": environment.driver, "triton": environment.triton,
        "passed": len(stats.get("passed", [])),
        "failed": sorted(report.nodeid.rpartition("/")[2] for report in broken),
        "skipped": dict(sorted(Counter(report.longrepr[2] for report in stats.get("skipped", [])).items())),
    }  # fmt: skip
    FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    fill_page(PAGE, {"hardware": sentence(record)})


def sentence(record: dict[str, Any]) -> str:
    """The record as the page says it."""
    passed, failed, skipped = record["passed"], len(record["failed"]), sum(record["skipped"].values())
    reasons = "; ".join(f"{reason.removeprefix('Skipped: ')}, {n}" for reason, n in record["skipped"].items())
    names = ", ".join(f"`{name.rpartition('::')[2]}`" for name in record["failed"])
    return (
        f"tinygrad at commit `{record['suite_commit']}` ({record['suite_date']}), laneloom at `{record['commit']}`: "
        f"{passed} of {passed + failed + skipped} give the values of the hardware.\n"
        f"Skipped: {skipped} ({reasons}).\n"
        f"Failed: {failed} ({names})."
    )
