"""Makes the tables that `laneloom.patched` decides by, from records: `python -m laneloom.bench.measured results`.

Of each problem the newest record counts, sustained time. Run it after measuring, and commit the table with the records.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..gpu import GPUS
from ..pytorch.measurements import SCHEMA_VERSION
from .records import Record, load
from .timing import METHOD_SUSTAINED

TABLES = Path(__file__).parents[1] / "pytorch" / "measured"
FOLDERS = {"h200": "sm_90a"}  #: results/<folder> -> the GPU's name in the table of GPUs
ATTENTION_AXES = ("batch", "heads", "kv_heads", "queries", "keys", "d", "d_v")


def row_of(record: Record) -> dict[str, Any] | None:
    """The table's row of a record of laneloom's own, None for one that says nothing about torch's time."""
    problem = record.problem
    # The reference's own time in the same rounds; a record's ratio is the median of the rounds' ratios.
    ratio = record.ratio_to_reference
    row = {"torch_us": round(record.median_us * ratio, 3), "ratio": round(ratio, 4)}
    if record.op == "matmul" and problem["dtype"] == problem["dtype_out"]:
        kind = f"{problem['dtype']} {problem['layout']}"
        sizes = [problem.get("batch", 1), problem["m"], problem["n"], problem["k"]]
        return {"op": "matmul", "kind": kind, "sizes": sizes, **row}
    if record.op.startswith("attention") and all(axis in problem for axis in ATTENTION_AXES):
        direction = "backward" if "backward" in record.op or problem.get("pass") == "backward" else "forward"
        mask = "causal" if problem.get("causal") else "full"
        sizes = [problem[axis] for axis in ATTENTION_AXES]
        return {"op": "attention", "kind": f"{problem['dtype']} {mask} {direction}", "sizes": sizes, **row}
    return None


def table_of(records: list[Record]) -> dict[str, Any]:
    """The table: one row for each problem, from its newest record, and where they come from."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    used = []
    for record in records:
        if record.candidate != "laneloom" or record.method != METHOD_SUSTAINED or record.noisy:
            continue
        row = row_of(record)
        if row is not None:
            rows[row["op"], row["kind"], *row["sizes"]] = row
            used.append(record)
    newest = max(used, key=lambda record: record.time).environment if used else None
    return {
        "about": "laneloom's time and torch's; made by `python -m laneloom.bench.measured results` from its records",
        "schema_version": SCHEMA_VERSION,
        "environment": None if newest is None else vars(newest),
        "measurements": [rows[key] for key in sorted(rows)],
    }


def write(results: Path, tables: Path = TABLES) -> list[Path]:
    """Write the table of every GPU that `results` has records of."""
    written = []
    for folder, gpu in FOLDERS.items():
        assert gpu in GPUS
        files = sorted((results / folder).glob("*.jsonl"))
        table = table_of([record for file in files for record in load(file)])
        if table["measurements"]:
            rows = ",\n".join(json.dumps(row) for row in table.pop("measurements"))
            head = json.dumps(table, indent=1)[:-2]
            written.append(tables / f"{gpu}.json")
            written[-1].write_text(f'{head},\n "measurements": [\n{rows}\n]}}\n', encoding="utf-8")
    return written


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="the folder of records")
    for path in write(parser.parse_args().results):
        print(path)


if __name__ == "__main__":
    main()
