"""A measured roofline: the bandwidth and the matrix rates that laneloom's own kernels reach, and a dot for each record.

The bandwidth is that of a copy, the rates those of products of 8192^3, or the most that any record reached. A dot above
the slanted line has operands that a cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .plots import Axis, Chart
from .records import Record

if TYPE_CHECKING:
    from .works import Work

PEAK_SIZE = 8192
PEAK_DTYPES = (("bf16", "nn"), ("fp16", "nn"), ("fp8", "nt"), ("int8", "nt"), ("fp32", "nn"), ("fp64", "nn"))
COPY_BYTES = 1 << 30
LEAST_TFLOPS = 0.1  #: of a dot: products of a few elements measure the launch
_BEYOND_CACHES = 256 << 20  #: bytes of a record from which its GB/s is the memory's


@dataclass(frozen=True)
class Ceilings:
    """What one GPU was measured to reach."""

    gbs: float
    tflops: dict[str, float]  #: by dtype


def ceilings(records: Iterable[Record]) -> Ceilings:
    """The most that records of one GPU reached: GB/s of those beyond the caches, TFLOP/s by dtype. 0 where there is
    none.
    """
    records = [r for r in records if "ranks" not in r.problem]
    rates: dict[str, float] = {}
    for r in records:
        if r.tflops:
            dtype = dtype_of(r)
            rates[dtype] = max(rates.get(dtype, 0.0), r.tflops)
    large = [r.gbs for r in records if r.bytes >= _BEYOND_CACHES]
    return Ceilings(max(large, default=0.0), rates)


def dtype_of(record: Record) -> str:
    """The first word: what follows says what else a call did, such as "bf16 bias gelu"."""
    return str(record.problem.get("dtype", "")).partition(" ")[0]


def ceiling_works(dtype: str | None = None) -> Iterator[Callable[[Any], Work]]:
    """What `laneloom bench roofline` measures: a copy, and a large product of each dtype, or of one."""
    from . import works

    yield lambda gpu: _copy_work()
    for kind, layout in PEAK_DTYPES:
        if dtype not in (None, kind):
            continue
        size = PEAK_SIZE if kind not in ("fp32", "fp64") else PEAK_SIZE // 2
        yield lambda gpu, dtype=kind, layout=layout, n=size: works.gemm_work(n, n, n, dtype, layout, "roofline", gpu)


def _copy_work() -> Work:
    import torch

    from ..errors import LaneloomError
    from ..ops.transpose.api import transpose
    from .works import Work

    x = torch.randn(COPY_BYTES // 8, dtype=torch.float32, device="cuda").view(-1, 1)
    out = torch.empty_like(x)

    def ours(_: int) -> None:
        # The transpose of one column is a copy, by laneloom's own kernel.
        transpose(x, out=out.view(1, -1))

    def check() -> float:
        out.fill_(float("nan"))
        ours(0)
        if not torch.equal(out, x):
            raise LaneloomError("roofline: the copy is wrong")
        return 0.0

    problem = {"bytes": COPY_BYTES, "dtype": "copy"}
    return Work("transpose", problem, 0, COPY_BYTES, 1, ours, lambda a: out.copy_(a), [(x,)], check)


def roofline_svg(records: Iterable[Record], limits: Ceilings, *, alone: bool = False) -> str:
    """The picture: TFLOP/s over FLOP per byte, both logarithmic, a dot for each of laneloom's records.

    alone: with colours of its own, for a file.
    """
    mine = [
        r for r in records
        if r.candidate == "laneloom" and r.bytes and r.tflops >= LEAST_TFLOPS and r.method.startswith("sustained")
    ]  # fmt: skip
    chart = Chart(Axis("FLOP per byte of operands", log=True), Axis("TFLOP/s", log=True))
    low = min((r.flops / r.bytes for r in mine), default=0.1)
    high = max((r.flops / r.bytes for r in mine), default=1e4)
    top = max(limits.tflops.values(), default=0.0)
    if limits.gbs and top:
        ridge = top * 1e3 / limits.gbs
        lowest = min(limits.tflops.values()) * 1e3 / limits.gbs
        low = min(low, ridge / 16, lowest / 2)  # so that the slope is seen, and every roof meets it
        chart.line(f"memory: {limits.gbs:.0f} GB/s", [(low, low * limits.gbs / 1e3), (ridge, top)], dashed=True)
    for dtype, rate in sorted(limits.tflops.items(), key=lambda item: -item[1]):
        mine_of = [r for r in mine if dtype_of(r) == dtype]
        if not mine_of:
            continue
        start = rate * 1e3 / limits.gbs if limits.gbs else low
        chart.line(f"{dtype}: {rate:.0f} TFLOP/s", [(start, rate), (max(high, 2 * start), rate)], dashed=True)
        chart.dots(dtype, [(r.flops / r.bytes, r.tflops, _tip(r)) for r in mine_of])
    return chart.svg(alone=alone)


def _tip(record: Record) -> str:
    words = ", ".join(f"{k} {v}" for k, v in record.problem.items() if k != "group")
    return f"{record.op} {words}: {record.median_us:.1f} us, {record.tflops:.1f} TFLOP/s, {record.gbs:.0f} GB/s"
