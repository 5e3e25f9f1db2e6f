"""Records of what was measured: one JSON line each, append-only, in `results/<gpu>/<name>.jsonl`.

A record holds enough to judge it later: what ran (problem, candidate, configuration), how long and how well,
by which method, on which GPU, driver and versions, at which commit, and a hash of the kernel's sources, so
that a figure whose kernel has changed since can be shown as stale.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..codegen.versions import triton_version
from ..errors import ArgumentError
from ..gpu import Gpu, get_gpu

if TYPE_CHECKING:
    from .timing import Timing  # which needs torch; records do not

SCHEMA_VERSION = 1
WARMUP_S = 0.2  #: of replays before any counts: the clock is where the power limit holds it
#: The methods of `timing`, here because pages are made of records where there is no torch.
METHOD_SUSTAINED = (
    f"sustained: interleaved CUDA-graph replays, {WARMUP_S} s before any counts, order and inputs rotated, median"
)
METHOD_SINGLE = "single launch: one graph launch on an idle GPU, L2 overwritten before, median over rounds"
_MOVERS = ("copy", "moved alone")


@dataclass(frozen=True)
class Environment:
    """Where a measurement was made."""

    gpu: str
    driver: str
    torch: str
    triton: str
    commit: str
    dirty: bool

    def known_gpu(self) -> Gpu:
        """laneloom's row of a Hopper GPU that was measured on, which its plan went by."""
        return get_gpu("h100" if "H100" in self.gpu else "sm_90a")


@dataclass(frozen=True)
class Record:
    """One candidate on one problem, measured once."""

    op: str  #: "matmul", "transform3d", ...
    problem: Mapping[str, Any]  #: plain JSON: sizes, dtypes, layouts
    candidate: str  #: "laneloom", "torch.matmul", ...
    config: Mapping[str, Any] | None  #: the schedule and its knobs; None for somebody else's kernel
    method: str  #: one of timing's METHOD_ texts, or the caller's own
    median_us: float
    iqr_us: float
    ratio_to_reference: float
    noisy: bool
    reference: str
    flops: int
    bytes: int
    kernel_hash: str  #: `hash_sources` of the kernel's files; empty for somebody else's kernel
    environment: Environment
    error: float | None = None  #: the checked error of the same launch, in the unit of `error_budget`
    error_budget: float | None = None
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema_version: int = SCHEMA_VERSION

    @property
    def tflops(self) -> float:
        """0 of a candidate that only moves what the others compute with."""
        return 0.0 if self.candidate in _MOVERS else self.flops / self.median_us / 1e6

    @property
    def gbs(self) -> float:
        return self.bytes / self.median_us / 1e3

    def is_stale(self, sources: Iterable[str | Path]) -> bool:
        """Whether the kernel's `sources` differ from those that were measured, in more than what left the machine code
        as it was (same_code.json; never for somebody else's kernel)."""
        text = (self.config or {}).get("text", "")
        return bool(self.kernel_hash) and newest_sources(self.kernel_hash, text) != hash_sources(sources)


@cache
def _same_code() -> dict[str, dict[str, Any]]:
    noted = json.loads(Path(__file__).with_name("same_code.json").read_text(encoding="utf-8"))
    return {entry["before"]: entry for entry in noted}


def newest_sources(kernel_hash: str, config: str = "") -> str:
    """The hash of the newest sources that give the same machine code as those of `kernel_hash`, of a config as text."""
    seen = {kernel_hash}
    while entry := _same_code().get(kernel_hash):
        if entry["after"] in seen or config in entry.get("but", ()):
            break
        kernel_hash = entry["after"]
        seen.add(kernel_hash)
    return kernel_hash


def make_record(timing: Timing, **facts: Any) -> Record:
    """A Record of `timing` with every other field named in `facts`."""
    return Record(**dataclasses.asdict(timing), **facts)


def hash_sources(sources: Iterable[str | Path]) -> str:
    """SHA-256 (16 hex digits) over the bytes of the files, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted((Path(p) for p in sources), key=lambda p: p.name):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def read_environment() -> Environment:
    """The current GPU, driver, versions and commit."""
    import torch

    commit, dirty = read_commit()
    return Environment(
        gpu=torch.cuda.get_device_name(),
        driver=_read_driver(),
        torch=torch.__version__,
        triton=triton_version(),
        commit=commit,
        dirty=dirty,
    )


def read_commit() -> tuple[str, bool]:
    """The commit, and whether the sources differ from it.

    Outside a git checkout, LANELOOM_COMMIT names the commit and LANELOOM_DIRTY=1 says that the tree differed
    from it; with neither, the commit is "unknown" and counts as dirty.
    """
    commit = os.environ.get("LANELOOM_COMMIT") or _git("rev-parse", "--short=12", "HEAD") or "unknown"
    if "LANELOOM_COMMIT" in os.environ:
        return commit, os.environ.get("LANELOOM_DIRTY", "0") == "1"
    return commit, bool(_git("status", "--porcelain", "--", "src")) or commit == "unknown"


def _read_driver() -> str:
    """NVIDIA's version, that of an amdgpu built apart from the kernel, or the kernel's."""
    import torch

    if torch.version.hip:
        apart = Path("/sys/module/amdgpu/version")
        return apart.read_text(encoding="utf-8").strip() if apart.exists() else f"Linux {platform.release()}"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def append(path: str | Path, record: Record) -> None:
    """Add one line to the file, which is made with its folder when it is not there."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(dataclasses.asdict(record), sort_keys=True, allow_nan=False)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


_JSON_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "float": (int, float), "int": (int,), "bool": (bool,), "None": (type(None),), "Environment": (dict,),
    "Mapping[str, Any]": (dict,),
}  # fmt: skip


def _why_none(value: Any, kind: type) -> str | None:
    """Why what a line holds is no `kind`, Record or Environment; None where it is one."""
    if not isinstance(value, dict):
        return f"it holds {value!r:.40} in place of an object"
    fields: dict[str, Any] = {f.name: f for f in dataclasses.fields(kind)}
    for name, f in fields.items():
        needed = f.default is f.default_factory is MISSING or name == "schema_version"
        if needed and name not in value:
            return f"it has no {name}"
    for name, given in value.items():
        if name not in fields:
            return f"it has {name}, which records have not"
        if not isinstance(given, tuple(x for part in fields[name].type.split(" | ") for x in _JSON_KINDS[part])):
            return f"{name} is {given!r:.40}"
    return None


def load(path: str | Path) -> list[Record]:
    """All records of a file, oldest first; an absent file holds none.

    Raises ArgumentError naming the line when it is not a record of a schema that this version reads.
    """
    path = Path(path)
    if not path.exists():
        return []
    records = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ArgumentError(f"{path} is not text: expected benchmark records, JSON lines") from None
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror or error}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise ArgumentError(f"{path}:{number} is no benchmark record: it is no whole JSON object") from None
        if isinstance(fields, dict) and fields.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise ArgumentError(f"{path}:{number} has schema {fields['schema_version']!r}; this reads {SCHEMA_VERSION}")
        why = _why_none(fields, Record) or _why_none(fields["environment"], Environment)
        if why is not None or not fields["median_us"] > 0:
            why = why or f"median_us is {fields['median_us']}"
            raise ArgumentError(f"{path}:{number} is no benchmark record: {why}")
        records.append(Record(**{**fields, "environment": Environment(**fields["environment"])}))
    return records
