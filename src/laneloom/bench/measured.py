"""Makes the tables that `laneloom.patched` decides by, from records: `python -m laneloom.bench.measured results`.

Of each problem the newest record counts: sustained time, against the fastest of torch's candidates. What no record has
comes from any GPU like it, and says so: attentions of models (bench/attention_models.py), products in groups, calls on
layers of models (bench/calls.py), layers (bench/matmul_layers.py), products and batches of other shapes
(bench/matmul_wide.py). Run it after measuring, and commit the table with the records.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..gpu import GPUS
from ..pytorch.measurements import ALONE, SCHEMA_VERSION, WITH_GRADIENTS
from .attention_models import read as read_models
from .calls import read as read_calls
from .host_time import IN_LAYERS, in_layers
from .matmul_layers import read as read_layers
from .matmul_wide import planned
from .records import Record, load

TABLES = Path(__file__).parents[1] / "pytorch" / "measured"
FOLDERS = {"h200": "sm_90a"}  #: results/<folder> -> the GPU's name in the table of GPUs
#: the GPU -> folders that may have OTHER_FILES and times of the host: the first that has one counts
MODELS = {"sm_90a": ("h200", "h100")}
GROUPS_FILE = "matmul_groups.jsonl"
ATTENTION_AXES = ("batch", "heads", "kv_heads", "queries", "keys", "d")


def _problem_of(record: Record) -> tuple[str, str, tuple[int, ...]] | None:
    """The table's op, kind and sizes of a record, None for what `patched` has no use for."""
    problem = record.problem
    if not record.method.startswith("sustained") or record.noisy:
        return None
    if record.op == "matmul" and problem["dtype"] == problem["dtype_out"]:
        sizes = (problem.get("batch", 1), problem["m"], problem["n"], problem["k"])
        return "matmul", f"{problem['dtype']} {problem['layout']}", sizes
    if record.op in ("attention forward", "attention backward"):
        mask = "causal" if problem["causal"] else "full"
        sizes = tuple(problem[axis] for axis in ATTENTION_AXES)
        return "attention", f"{problem['dtype']} {mask} {record.op.split()[1]}", (*sizes, problem["d"])
    if record.op == "matmul groups":
        rows, n, k = problem["tokens"] * problem["top"], problem["n"], problem["k"]
        sizes = {"C": (rows, n, k), "dA": (rows, k, n), "dB": (n, k, rows)}[problem["what"]]
        kind = "k" if problem["what"] == "dB" else "rows"
        return "grouped_matmul", f"{problem['dtype']} {kind}", (problem["groups"], *sizes)
    return None


def rows_of(records: Iterable[Record]) -> Iterator[tuple[dict[str, Any], Record]]:
    """A row for each record of laneloom's that follows torch's of the same problem, whose fastest counts."""
    theirs: dict[Any, dict[str, Record]] = defaultdict(dict)
    for record in records:
        problem = _problem_of(record)
        if problem is None:
            continue
        if record.candidate.startswith("torch"):
            theirs[problem][record.candidate] = record
        elif record.candidate == "laneloom" and theirs[problem]:
            fastest = min(theirs[problem].values(), key=lambda r: r.median_us)
            # The median of the rounds' ratios is steadier than the ratio of medians.
            same = fastest.candidate == record.reference
            ratio = record.ratio_to_reference if same else fastest.median_us / record.median_us
            op, kind, sizes = problem
            row = {"op": op, "kind": kind, "sizes": list(sizes)}
            yield {**row, "torch_us": round(fastest.median_us, 3), "ratio": round(ratio, 4)}, record


#: op -> of `laneloom.bench.host_time` the case, torch's candidate and laneloom's
_HOST = {
    "matmul": ("matmul", "torch.matmul", "laneloom.matmul"),
    "attention": ("attention", "F.scaled_dot_product_attention", "laneloom.flash_attention"),
    "scaled_mm": ("scaled_mm", "torch._scaled_mm", "laneloom.gemm"),
    "grouped_matmul": ("grouped_matmul", "torch._grouped_mm", "laneloom.grouped_matmul"),
}


def host_of(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """Host time of a warm call by op, torch's and laneloom's, the newest of each; in layers after each other of the
    forward alone, and with gradients of forward and backward, which begins once."""
    records = [record for record in records if record.op.startswith("host_time/")]
    times = {(r.op, r.candidate): r.median_us for r in records if not r.problem["gradients"]}
    found: dict[str, tuple[float | None, float | None]] = {
        op: (times.get((f"host_time/{case}", theirs)), times.get((f"host_time/{case}", ours)))
        for op, (case, theirs, ours) in _HOST.items()
    }
    found |= {op + ALONE: in_layers(records, op, False) or (None, None) for op in IN_LAYERS}
    found |= {op + WITH_GRADIENTS: in_layers(records, op, True) or (None, None) for op in IN_LAYERS}
    return {
        op: {"torch": round(theirs, 2), "laneloom": round(ours, 2)}
        for op, (theirs, ours) in found.items() if theirs is not None and ours is not None
    }  # fmt: skip


def table_of(records: Sequence[Record]) -> dict[str, Any]:
    """The table: one row for each problem, its newest, and where the newest of all comes from."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    newest: Record | None = None
    for row, record in rows_of(records):
        rows[row["op"], row["kind"], *row["sizes"]] = row
        newest = record if newest is None or record.time > newest.time else newest
    return {
        "about": "laneloom's time and torch's; made by `python -m laneloom.bench.measured results` from its records",
        "schema_version": SCHEMA_VERSION,
        "environment": None if newest is None else vars(newest.environment),
        "host_us": host_of(records),
        "measurements": [rows[key] for key in sorted(rows)],
    }


def model_rows(path: Path, source: str) -> Iterator[dict[str, Any]]:
    """Rows of attentions of models, measured on `source`."""
    for row in read_models(path):
        if row.direction == "decode":
            continue
        sizes = [row.batch, row.heads, row.kv_heads, row.queries, row.keys, row.d, row.d]
        kind = f"{row.dtype} {'causal' if row.causal else 'full'} {row.direction}"
        torch_us, ratio = round(row.us * row.ratio, 3), round(row.ratio, 4)
        yield {"op": "attention", "kind": kind, "sizes": sizes, "torch_us": torch_us, "ratio": ratio, "source": source}


def group_rows(path: Path, source: str) -> Iterator[dict[str, Any]]:
    """Rows of products in groups, measured on `source`."""
    newest = {(row["kind"], *row["sizes"]): row for row, _ in rows_of(load(path))}
    yield from ({**row, "source": source} for _, row in sorted(newest.items()))


def call_rows(path: Path, source: str) -> Iterator[dict[str, Any]]:
    """Rows of calls on layers of models, measured on `source`."""
    for row in read_calls(path):
        sizes = [int(size) for size in row.sizes.split("x")]
        of_call = {"op": row.op, "kind": row.kind, "sizes": sizes}
        yield {**of_call, "torch_us": row.torch_us, "ratio": round(row.ratio, 4), "source": source}


def product_row(row: Any, batch: int, torch_us: float, source: str) -> dict[str, Any]:
    """The table's row of a product that was measured on `source`."""
    sizes = [batch, row.m, row.n, row.k]
    of_product = {"op": "matmul", "kind": f"{row.dtype} {row.layout}", "sizes": sizes}
    return {**of_product, "torch_us": round(torch_us, 3), "ratio": round(torch_us / row.us, 4), "source": source}


def layer_rows(path: Path, source: str) -> Iterator[dict[str, Any]]:
    """Rows of linear layers of models, measured on `source`."""
    yield from (product_row(row, 1, row.us * row.ratio, source) for row in read_layers(path))


def config_rows(path: Path, source: str) -> Iterator[dict[str, Any]]:
    """Of products that many configs were measured of on `source`, rows of what the plan takes, beside torch.matmul."""
    yield from (product_row(row, row.batch, row.torch_us, source) for row, _ in planned(path) if row.dtype != "fp8")


#: what else of a GPU's folder, or of one like it, has measurements, and how they are read
OTHER_FILES = {
    "attention_models.csv": model_rows, GROUPS_FILE: group_rows, "calls.csv": call_rows, "layers.csv": layer_rows,
    "layer_gradients.csv": layer_rows,
    "tiles_wide.csv": config_rows, "tiles_batches.csv": config_rows, "tiles_unaligned.csv": config_rows,
    "tiles_decode.csv": config_rows, "tiles_short.csv": config_rows, "tiles_small.csv": config_rows,
}  # fmt: skip


def other_files(results: Path, gpu: str) -> Iterator[tuple[Path, Callable[[Path, str], Iterator[dict[str, Any]]]]]:
    """OTHER_FILES of the GPU, each from the first folder that has it, with what reads it."""
    for name, read in OTHER_FILES.items():
        paths = (results / other / name for other in MODELS.get(gpu, ()))
        if path := next(filter(Path.is_file, paths), None):
            yield path, read


def write(results: Path, tables: Path = TABLES) -> list[Path]:
    """Write the table of every GPU that `results` has records of."""
    written = []
    for folder, gpu in FOLDERS.items():
        assert gpu in GPUS
        files = sorted((results / folder).glob("*.jsonl"))
        table = table_of([record for file in files for record in load(file)])
        hosts = [results / other / "host_time.jsonl" for other in MODELS.get(gpu, ())]
        for path in filter(Path.is_file, hosts):
            table["host_us"] = host_of(load(path)) | table["host_us"]
        for path, read in other_files(results, gpu):
            known = {(row["op"], row["kind"], *row["sizes"]) for row in table["measurements"]}
            rows = read(path, f"on one {path.parent.name.upper()}")
            table["measurements"] += [r for r in rows if (r["op"], r["kind"], *r["sizes"]) not in known]
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
