"""What was measured on which GPU, as far as `patched` needs it: laneloom's time and torch's for the same problem.

`measured/<gpu>.json` ships with the package and is made from the records in results/ by `python -m
laneloom.bench.measured`. It is data: a damaged file is an error that names it, and nothing of it is executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from math import log2, prod
from typing import Any

from ..errors import LaneloomError
from ..ops.matmul import tuned

SCHEMA_VERSION = 2
#: what ops of `host_us` end in that stand for calls in a model's layers, alone and with their backward
ALONE, WITH_GRADIENTS = " in layers", " with gradients"
REACH = 1.0  #: a measurement speaks for sizes that are at most this many doublings away, in each of them


class MeasurementsError(LaneloomError):
    """A table of measurements cannot be read."""


@dataclass(frozen=True)
class Measurement:
    """One problem, timed for laneloom and for what torch would run, in one run."""

    op: str  #: "matmul", "attention"
    kind: str  #: what has to agree: dtype and layout, or dtype, mask and direction
    sizes: tuple[int, ...]
    torch_us: float
    ratio: float  #: torch's time over laneloom's
    source: str = ""  #: who measured, or on what, if it was not the package's authors on the table's GPU

    @property
    def text(self) -> str:
        """ "4096x4096x4096 bf16 nt: 1.012 x"."""
        text = f"{'x'.join(map(str, self.sizes))} {self.kind}: {self.ratio:.3f} x"
        return f"{text}, {self.source}" if self.source else text


_Placed = list[tuple[tuple[float, ...], Measurement]]


@dataclass(frozen=True)
class Table:
    """What is known of a GPU."""

    measurements: tuple[Measurement, ...] = ()
    #: of a warm call of each op, and of one in layers, alone and with its backward, torch's and laneloom's
    host_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: op, kind, number of sizes, whether rows are regular -> sizes in doublings, measurement
    by_kind: Mapping[tuple[str, str, int, bool], _Placed] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[tuple[str, str, int, bool], _Placed] = {}
        for m in self.measurements:
            key = m.op, m.kind, len(m.sizes), is_regular(m.sizes)
            found.setdefault(key, []).append((_doublings(m.sizes), m))
        object.__setattr__(self, "by_kind", found)


@lru_cache(maxsize=32)
def table_of(gpu_name: str) -> Table:
    """The table of a GPU, empty where it has none. Raises MeasurementsError for one that is damaged."""
    path = resources.files("laneloom.pytorch").joinpath("measured", f"{gpu_name}.json")
    if not path.is_file():
        return Table()
    return parse(path.read_text(encoding="utf-8"), str(path))


def tuned_beside(gpu_name: str, sizes: Sequence[int], *, bare: bool) -> list[Measurement]:
    """What `laneloom tune` measured of products on this GPU beside torch, the user's first.

    An entry's own config runs where the product has its sizes and nothing is added (`bare`); elsewhere it is taken to
    be the cost model's choice, whose time the entry has too.
    """
    found = []
    for entry in sorted(tuned.entries(gpu_name), key=lambda entry: entry.origin != "cache"):
        _, layout, dtypes, *rest = entry.kind.split("/")
        dtype = dtypes.partition("_")[0]
        plain = len(rest) == 1 and rest[0].startswith("v")  # no precision, no epilogue: vector widths alone
        if entry.objective != "measured" or entry.torch_us is None or not plain:
            continue
        ours = entry.time_us if bare and entry.sizes == tuple(sizes) else entry.model_us
        whose = "tuned on this machine" if entry.origin == "cache" else "tuned by the authors"
        source = f"{whose} {entry.provenance.get('date', '')}".strip()
        ratio = entry.torch_us / ours
        found.append(Measurement("matmul", f"{dtype} {layout}", entry.sizes, entry.torch_us, ratio, source))
    return found


def parse(text: str, source: str) -> Table:
    """The table of a text. Raises MeasurementsError, naming the source."""
    try:
        table = json.loads(text)
        if table["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema {table['schema_version']}, this reads {SCHEMA_VERSION}")
        rows = tuple(_parse_row(row) for row in table["measurements"])
        hosts = table.get("host_us", {})
        return Table(rows, {op: (float(us["torch"]), float(us["laneloom"])) for op, us in hosts.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MeasurementsError(f"{source} is no table of measurements: {error}") from error


def _parse_row(row: dict[str, Any]) -> Measurement:
    sizes = tuple(int(n) for n in row["sizes"])
    torch_us, ratio = float(row["torch_us"]), float(row["ratio"])
    if not (torch_us > 0 and ratio > 0 and all(n > 0 for n in sizes)):
        raise ValueError(f"expected positive numbers, got {row}")
    return Measurement(str(row["op"]), str(row["kind"]), sizes, torch_us, ratio, str(row.get("source", "")))


def scaled_kind(scales: str, fast: bool) -> str:
    """What a measurement of fp8 calls scales of "tensor" or "rows", and sums with fast accumulation or without."""
    return f"fp8 {scales}" if fast else f"fp8 {scales} promoted"


def is_regular(sizes: Sequence[int]) -> bool:
    """Whether rows of 2-byte elements begin at multiples of 16 bytes: others take other kernels, here and in torch.

    The last two sizes are those of rows: N and K of a product, D and D_V of an attention.
    """
    return all(n % 8 == 0 for n in sizes[-2:])


def nearest(
    table: Table, own: Sequence[Measurement], op: str, kinds: Sequence[str], sizes: Sequence[int]
) -> Measurement | None:
    """The measurement that speaks for a problem: of the first of `kinds` that has one within REACH, the nearest.

    `own` go before equally near ones of the table."""
    place, regular = _doublings(sizes), is_regular(sizes)

    def distance(placed: tuple[tuple[float, ...], Measurement]) -> float:
        return max((abs(x - y) for x, y in zip(place, placed[0], strict=True)), default=0.0)

    for kind in kinds:
        key = op, kind, len(sizes), regular
        fitting = [(_doublings(m.sizes), m) for m in own if key == (m.op, m.kind, len(m.sizes), is_regular(m.sizes))]
        best = min([*fitting, *table.by_kind.get(key, ())], key=distance, default=None)
        if best is not None and distance(best) <= REACH:
            return best[1]
    return None


def _doublings(sizes: Sequence[int]) -> tuple[float, ...]:
    return tuple(log2(n) for n in sizes)


def scaled_us(m: Measurement, sizes: Sequence[int]) -> float:
    """Torch's time for `sizes`, from that of a problem nearby, in proportion to the work."""
    return m.torch_us * prod(n / other for n, other in zip(sizes, m.sizes, strict=True))
