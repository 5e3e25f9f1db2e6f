"""Which changes of kernels' sources left the machine code of what was measured with them as it was.

`python -m laneloom.bench.same_code REV results/h200/matmul.jsonl results/h100/matmul.jsonl` takes the matmul records
of these files that were measured with REV's sources, compiles each one's config with REV's package and with this one,
and compares the instructions and registers that ptxas made. A change is written into same_code.json, with the configs
whose code it altered, unless that is each; for the others `Record.is_stale` takes the sources of before for today's.
Changes of other operations' sources are written there by hand, after the same comparison.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton.backends.nvidia as nvidia
from rich.console import Console
from rich.progress import track

# Absolute: this file is also run, by its path, with another version of the package.
from laneloom.bench.kernel_sources import config_sources
from laneloom.bench.matmul import make_case
from laneloom.bench.records import Record, hash_sources, load
from laneloom.gpu import get_gpu
from laneloom.ops.matmul.config import MatmulConfig
from laneloom.ops.matmul.execute import schedule_of

#: where what the package needs may lie, beside itself
OTHERS = [path for path in sys.path if Path(path).is_dir() and not Path(path, "laneloom").is_dir()]
COPY_KNOBS, COPY_SOURCES = ("copy_a", "copy_b", "repack_a", "repack_b"), ("pieces.py", "repack.py")
NOTED = Path(__file__).with_name("same_code.json")


def instructions(cubin: bytes) -> list[str]:
    """What nvdisasm says of a cubin, without addresses."""
    tool = Path(nvidia.__file__).parent / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text)


def _measured(paths: list[Path]) -> Iterator[Record]:
    for record in (record for path in paths for record in load(path)):
        if record.op == "matmul" and record.kernel_hash and (record.config or {}).get("text"):
            yield record


def _schedule(record: Record) -> str:
    return (record.config or {})["text"].partition(":")[0]


def _digest(record: Record) -> str:
    """A hash of the code of a record's config for its product, by this package; of the sources of what copies its
    operands ahead, if it does."""
    p = record.problem
    problem = make_case("", str(p["layout"]), str(p["dtype"]), (int(p["m"]), int(p["n"]), int(p["k"]))).problem
    config = MatmulConfig.parse((record.config or {})["text"])
    code = schedule_of(config).code_object(problem, config, get_gpu("sm_90a"))
    listing = "\n".join([f"{code.vgprs} {code.lds_bytes}", *instructions(code.binary)])
    if any(getattr(config, name, False) for name in COPY_KNOBS):
        listing += hash_sources([path for path in config_sources(config.schedule) if path.name in COPY_SOURCES])
    return hashlib.sha256(listing.encode()).hexdigest()


def digests(paths: list[Path], hashes: set[str]) -> dict[str, str]:
    """By this package, the code of every config and product that was measured with sources of these hashes."""
    records = {
        json.dumps([r.config, r.problem], sort_keys=True): r for r in _measured(paths) if r.kernel_hash in hashes
    }
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        found = track(pool.imap(_digest, records.values()), "compiling", len(records), console=Console(stderr=True))
        return dict(zip(records, found, strict=True))


def compare(rev: str, paths: list[Path], package: Path | None) -> None:
    """Note the changes since `rev`, whose package may lie in a folder, that left code alone."""
    root, noted = Path(__file__).parents[3], json.loads(NOTED.read_text(encoding="utf-8"))
    changed = {(_schedule(r), r.kernel_hash) for r in _measured(paths) if r.is_stale(config_sources(_schedule(r)))}
    if not changed:
        print("no record is stale")
        return
    # Not at the top: the package of before may not have it.
    from laneloom.bench.records import newest_sources

    with tempfile.TemporaryDirectory() as folder:
        if package is None:
            packed = subprocess.run(["git", "-C", root, "archive", rev, "src"], check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)

        def run(place: Path, *options: str) -> Any:
            command = [sys.executable, "-P", __file__, *options, rev, *map(str, paths)]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(place), *OTHERS])}
            said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            return json.loads(said)

        old = package or Path(folder) / "src"
        sources = run(old, "--sources", *sorted({schedule for schedule, _ in changed}), "--")
        known = [pair for pair in sorted(changed) if sources[pair[0]] == newest_sources(pair[1])]
        if not known:
            print(f"what is stale was so at {rev} already")
            return
        then, now = (run(place, "--digest", *(h for _, h in known), "--") for place in (old, root / "src"))
    for schedule in sorted({schedule for schedule, _ in known}):
        keys = [key for key in then if json.loads(key)[0]["text"].startswith(f"{schedule}:")]
        differ = [key for key in keys if then[key] != now[key]]
        print(f"{schedule}: {len(keys)} configs, the code of {len(differ)} differs", flush=True)
        if len(differ) < len(keys):
            after = hash_sources(config_sources(schedule))
            entry = {"schedule": schedule, "before": sources[schedule], "after": after, "since": rev}
            but = sorted({json.loads(key)[0]["text"] for key in differ})
            noted.append({**entry, "configs": len(keys), **({"but": but} if but else {})})
    NOTED.write_text(json.dumps(noted, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Find changes of kernels that left the machine code alone.")
    parser.add_argument("rev", help="the commit before them")
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--package", type=Path, help="the src folder of that commit, where there is no git")
    parser.add_argument("--sources", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--digest", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sources:
        print(json.dumps({name: hash_sources(config_sources(name)) for name in arguments.sources}))
    elif arguments.digest:
        print(json.dumps(digests(arguments.records, set(arguments.digest))))
    else:
        compare(arguments.rev, arguments.records, arguments.package)


if __name__ == "__main__":
    main()
