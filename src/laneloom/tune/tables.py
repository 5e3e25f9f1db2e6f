"""Writing what a study found: into the user's cache, and into the package's tables. Each file at once or not at all."""

from __future__ import annotations

import fcntl
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from ..bench.records import read_commit
from ..errors import LaneloomError
from ..gpu import Gpu
from ..ops.matmul import tuned
from ..ops.matmul.problem import MatmulProblem
from .outcome import Evaluator, kernel_hash
from .study import Result

LEAST_SHIPPED = 1.01  #: times as fast as the cost model's choice: less is noise on another GPU of the kind


def make_entry(problem: MatmulProblem, result: Result, evaluator: Evaluator) -> tuned.TunedEntry:
    """The table's entry of a result, with its provenance."""
    commit, dirty = read_commit()
    provenance = {
        **evaluator.where, "method": evaluator.method, "trials": result.tried, "commit": commit, "dirty": dirty,
        "date": datetime.now(UTC).date().isoformat(), "kernel_hash": kernel_hash(),
    }  # fmt: skip
    return tuned.TunedEntry(
        problem.key, tuned.kind_of(problem), tuned.sizes_of(problem), result.config.text, round(result.time_us, 4),
        round(result.model_us, 4), evaluator.objective, provenance,
        None if result.torch_us is None else round(result.torch_us, 4),
    )  # fmt: skip


def write_atomically(path: Path, text: str) -> None:
    """Write a file beside its place and move it there. Raises LaneloomError where it cannot be written."""
    unfinished = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".unfinished")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    except OSError as error:
        if unfinished is not None:
            Path(unfinished).unlink(missing_ok=True)
        raise LaneloomError(f"cannot write {path}: {error.strerror or error}") from None


def store(entry: tuned.TunedEntry, gpu: Gpu) -> Path:
    """Put an entry into the user's cache, over an older one of the same product. Returns the file."""
    path = tuned.cache_path(entry.key, gpu.name)
    write_atomically(path, tuned.render_table([entry], gpu.name))
    tuned.forget()
    return path


def ship(entry: tuned.TunedEntry, gpu: Gpu) -> Path:
    """Put an entry into the package's table of its GPU, in the place of an older one of the same product of matrices
    and of the same objective, measured on the same GPU.

    One that gains less than LEAST_SHIPPED is left out, and the older one with it: the cost model, which may get better,
    decides there. Raises LaneloomError for a table that cannot be read: it is in the repository, and not to be lost.
    """
    path = tuned.table_path(gpu.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries: list[tuned.TunedEntry] = []
        if path.exists():
            try:
                entries = tuned.parse_table(path.read_text(encoding="utf-8"), gpu.name, "package")
            except ValueError as error:
                raise LaneloomError(f"{path} is damaged ({error}): mend it or remove it first") from None

        def place(e: tuned.TunedEntry) -> tuple[str, str, str]:
            return e.key, e.objective, str(e.provenance.get("gpu"))

        entries = [e for e in entries if place(e) != place(entry)]
        entries += [entry] if entry.gain >= LEAST_SHIPPED else []
        write_atomically(path, tuned.render_table(sorted(entries, key=place), gpu.name))
    tuned.forget()
    return path
