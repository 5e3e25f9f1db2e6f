"""What the tuner found, as `plan` reads it: tables of this package and of the user's cache.

The package has one file for each GPU, `tables/<gpu>.json`; the cache one for each product, so that processes never
write the same file unless they tuned the same product, and then the last wins whole. All of it is JSON that is checked
field by field: a damaged or hostile file costs one line of the log and is done without, and an entry whose config can
no longer do the product is passed over. LANELOOM_TUNED=0 leaves every table out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from ...codegen.cache import cache_dir
from ...errors import LaneloomError
from ...gpu import Gpu, get_gpu
from .config import MatmulConfig
from .problem import MatmulProblem

SCHEMA_VERSION = 1
OBJECTIVES = ("measured", "predicted")
#: How much faster than the cost model's choice an entry has to be at its own product to speak for one nearby: more
#: where its time is a model's.
LEAST_GAIN = {"measured": 1.02, "predicted": 1.1}
LEAST_GAIN_ELSEWHERE = 1.2  #: of an entry that was measured on another product of the instruction set
REACH = 0.5  #: doublings in M, N, K and the batch up to which an entry speaks for a product nearby
MOST_BYTES = {"cache": 1 << 16, "package": 1 << 24}
_MOST_TEXT = 600
_log = logging.getLogger("laneloom")


@dataclass(frozen=True)
class TunedEntry:
    """The best config that was found for one product on one GPU."""

    key: str  #: the product's `MatmulProblem.key`
    kind: str  #: the key without its sizes
    sizes: tuple[int, int, int, int]  #: batches, M, N, K
    config: str  #: its text
    time_us: float
    model_us: float  #: what the cost model's own choice took, in the same study
    objective: str  #: "measured" on the GPU, or "predicted" by the timing model
    provenance: dict[str, str | int | bool]  #: GPU, versions, commit, date, method, trials
    torch_us: float | None = None  #: what torch.matmul took in the same run, where it can do the product
    origin: str = "cache"  #: or "package"

    @property
    def gain(self) -> float:
        """The time of the cost model's choice over this one's."""
        return self.model_us / self.time_us

    def is_of(self, product: str) -> bool:
        """Whether it was measured on that product, of a `Gpu.product` such as "H200 SXM"."""
        return product.split()[0] in str(self.provenance.get("gpu"))

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "key": self.key, "kind": self.kind, "sizes": list(self.sizes), "config": self.config,
            "time_us": self.time_us, "model_us": self.model_us, "torch_us": self.torch_us,
            "objective": self.objective, "provenance": self.provenance,
        }  # fmt: skip


@dataclass(frozen=True)
class Found:
    """An entry that speaks for a product."""

    entry: TunedEntry
    config: MatmulConfig
    exact: bool

    @property
    def source(self) -> str:
        """ "tuned, exact" or "tuned, nearest"."""
        return f"tuned, {'exact' if self.exact else 'nearest'}"

    @property
    def reason(self) -> str:
        """Why it runs, in words."""
        e = self.entry
        whose = "the user's cache" if e.origin == "cache" else "the package's table"
        place = "this product" if self.exact else f"the nearest, {e.key}"
        return (
            f"tuned for {place}: {e.objective} {e.time_us:.1f} us, the cost model's choice {e.model_us:.1f} us "
            f"({e.gain:.2f} x); {whose}, {e.provenance.get('date', 'no date')}"
        )


def kind_of(problem: MatmulProblem) -> str:
    """The product's key without its sizes: what two products share that may share a config."""
    operation, layout, dtypes, _, *rest = problem.key.split("/")
    return "/".join((operation, layout, dtypes, *rest))


def sizes_of(problem: MatmulProblem) -> tuple[int, int, int, int]:
    """Batches, M, N, K."""
    return problem.batches, problem.m, problem.n, problem.k


def parse_entry(fields: Any, origin: str) -> TunedEntry:
    """The entry of a JSON object. Raises ValueError for anything that is none."""
    if not isinstance(fields, dict) or {*fields, "torch_us"} != set(TunedEntry.__dataclass_fields__) - {"origin"}:
        raise ValueError("its fields are not those of an entry")
    texts = [fields[name] for name in ("key", "kind", "config", "objective")]
    if not all(isinstance(text, str) and 0 < len(text) <= _MOST_TEXT for text in texts):
        raise ValueError(f"expected texts of 1 to {_MOST_TEXT} characters")
    sizes, torch_us = fields["sizes"], fields.get("torch_us")
    times = [fields["time_us"], fields["model_us"], *([] if torch_us is None else [torch_us])]
    if not isinstance(sizes, list) or len(sizes) != 4 or not all(type(n) is int and 0 < n < 1 << 40 for n in sizes):
        raise ValueError("expected four positive sizes")
    if not all(type(t) in (int, float) and math.isfinite(t) and t > 0 for t in times):
        raise ValueError("expected positive times")
    if fields["objective"] not in OBJECTIVES:
        raise ValueError(f"expected an objective of {', '.join(OBJECTIVES)}")
    provenance = fields["provenance"]
    if not isinstance(provenance, dict) or not all(isinstance(v, str | int | bool) for v in provenance.values()):
        raise ValueError("expected a provenance of texts and numbers")
    return TunedEntry(**{**fields, "sizes": tuple(sizes), "origin": origin})


def parse_table(text: str, gpu_name: str, origin: str) -> list[TunedEntry]:
    """The entries of a file's text. Raises ValueError for a file that is no table of this GPU."""
    try:
        table = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(table, dict) or not isinstance(table.get("entries"), list):
        raise ValueError("it is no table")
    if table.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"it has schema {table.get('schema_version')!r}, this reads {SCHEMA_VERSION}")
    if table.get("op") != "matmul" or table.get("gpu") != gpu_name:
        raise ValueError("it is of another operation or GPU")
    return [parse_entry(fields, origin) for fields in table["entries"]]


def render_table(entries: list[TunedEntry], gpu_name: str) -> str:
    """The text of a file with these entries, one to a line."""
    head = json.dumps({"schema_version": SCHEMA_VERSION, "op": "matmul", "gpu": gpu_name})[:-1]
    rows = ",\n".join(json.dumps(e.to_dict(), sort_keys=True, allow_nan=False) for e in entries)
    return f'{head}, "entries": [\n{rows}\n]}}\n'


def read_table(path: Any, gpu_name: str, origin: str) -> list[TunedEntry]:
    """The entries of a file; none, and a line of the log, where it is damaged."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES[origin] + 1)
        if len(content) > MOST_BYTES[origin]:
            raise ValueError(f"it has more than {MOST_BYTES[origin]} bytes")
        return parse_table(content.decode(), gpu_name, origin)
    except (OSError, ValueError) as error:
        _log.warning("the tuned table %s is damaged (%s): it is left out, tuning writes it anew", path, error)
        return []


def table_path(gpu_name: str) -> Path:
    """The package's table of a GPU."""
    return Path(str(resources.files("laneloom.ops.matmul").joinpath("tables", f"{gpu_name}.json")))


def shipped_entries(gpu_name: str) -> list[TunedEntry]:
    """What the package's table of a GPU holds. Raises OSError or ValueError where there is none."""
    return parse_table(table_path(gpu_name).read_text(encoding="utf-8"), gpu_name, "package")


def cache_folder(gpu_name: str) -> Path:
    """Where the user's cache keeps a GPU's entries."""
    return cache_dir() / "tuned" / gpu_name / "matmul"


def cache_path(key: str, gpu_name: str) -> Path:
    """The user's file of one product."""
    return cache_folder(gpu_name) / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


@lru_cache(maxsize=64)
def _entries(gpu_name: str, folder: Path) -> tuple[TunedEntry, ...]:
    shipped = table_path(gpu_name)
    found = read_table(shipped, gpu_name, "package") if shipped.is_file() else []
    for path in sorted(folder.glob("*.json")):
        if path.is_file():
            found += read_table(path, gpu_name, "cache")
    return tuple(found)


def entries(gpu_name: str) -> tuple[TunedEntry, ...]:
    """What is known of a GPU, the package's first; read once in a process, until `forget`."""
    return () if os.environ.get("LANELOOM_TUNED") == "0" else _entries(gpu_name, cache_folder(gpu_name))


def forget() -> None:
    """Read the tables again when they are next wanted."""
    from . import config

    _entries.cache_clear()
    config.plan.cache_clear()


def _valid(entry: TunedEntry, problem: MatmulProblem, gpu: Gpu) -> MatmulConfig | None:
    """The entry's config, or None with a line of the log where it cannot do the product."""
    try:
        config = MatmulConfig.parse(entry.config)
        why = config.why_invalid(problem, gpu)
    except (LaneloomError, ArithmeticError, ValueError, TypeError, KeyError) as error:
        why, config = str(error), None
    if why is None:
        return config
    _log.warning("the tuned entry of %s on %s is passed over: %s", entry.key, gpu.name, why)
    return None


def find(problem: MatmulProblem, gpu: Gpu) -> Found | None:
    """The entry that speaks for a product: its own, else the nearest that gained; None where none does.

    A measured one comes before a predicted one, the user's before the package's, the newest last written. On Hopper,
    whose cost model is fitted to measured times, only its own: nearest ones were 1 to 3% behind that model. Of the
    package's, those speak that were measured on this product with all its SMs (`gpu.as_found`); for the product of the
    GPU table also others', where they gained LEAST_GAIN_ELSEWHERE and it has none of its own.
    """
    known = entries(gpu.name)
    if gpu.vendor == "nvidia":
        row = get_gpu(gpu.name)

        def speaks(entry: TunedEntry) -> bool:
            elsewhere = gpu.product == row.product and entry.gain >= LEAST_GAIN_ELSEWHERE
            return gpu.compute_units == row.compute_units and (entry.is_of(gpu.product) or elsewhere)

        known = tuple(e for e in known if e.origin == "cache" or speaks(e))
    if not known:
        return None

    def trust(entry: TunedEntry) -> tuple[bool, bool, bool]:
        return entry.objective != "measured", entry.origin != "cache", not entry.is_of(gpu.product)

    for entry in sorted((e for e in known if e.key == problem.key), key=trust):
        if config := _valid(entry, problem, gpu):
            return Found(entry, config, True)
    if gpu.matrix_instructions == "wgmma":
        return None
    kind, sizes = kind_of(problem), sizes_of(problem)

    def distance(entry: TunedEntry) -> float:
        return max(abs(math.log2(n / other)) for n, other in zip(sizes, entry.sizes, strict=True))

    near = [e for e in known if e.kind == kind and e.gain >= LEAST_GAIN[e.objective] and distance(e) <= REACH]
    for entry in sorted(near, key=lambda e: (distance(e), *trust(e))):
        if config := _valid(entry, problem, gpu):
            return Found(entry, config, False)
    return None
