"""The timing model of CDNA against published figures: fit on half of them, tell the error of all.

    python -m laneloom.bench.timing_cdna --out results/predicted/timing_cdna.jsonl --page docs/timing-model.md

Sources of the figures: [X] facebookexperimental/triton, pull request 2891: BF16 on an MI300X, the fastest of a list of
tiles. [R] AMD, ROCm/gfx950-gluon-tutorials, a16w16: FP16 on an MI355X, versions v0 and v4. [Z] facebookexperimental/
triton, pull request 1407: FP16 on gfx950 by tile, three buffers in LDS, without warp pipelining. What is predicted is
the Triton kernel below with the same tiles and waves, compiled here: that difference is part of every error.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from ..timing import Machine, machine_of
from ..timing.cdna import L2_PEAK
from ..timing.model import Sample, evaluate, sample
from .report import fill_page
from .timing_model import append_record, errors

_DEPTH = 1024  #: of K that is emulated; the loop goes on at the same pace


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_bn, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, DIES: tl.constexpr,
):  # fmt: skip
    """C = A B with tiles that divide M, N and K; workgroups of one die take neighbouring tiles."""
    tiles_n = N // BLOCK_N
    tiles = M // BLOCK_M * tiles_n
    place = tl.program_id(0) % DIES * (tiles // DIES) + tl.program_id(0) // DIES
    band = place // (GROUP * tiles_n) * GROUP
    rows = tl.minimum(M // BLOCK_M - band, GROUP)
    inside = place % (GROUP * tiles_n)
    offs_m = (band + inside % rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = inside // rows * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :]
    b = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(K // BLOCK_K):
        acc = tl.dot(tl.load(a), tl.load(b), acc)  # [BLOCK_M, BLOCK_N]
        a += BLOCK_K
        b += BLOCK_K * stride_bk
    c = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :]
    tl.store(c, acc.to(c_ptr.dtype.element_ty))


@dataclass(frozen=True)
class Tile:
    """A schedule of the kernel: shape, waves and stages."""

    m: int
    n: int
    k: int
    waves: int
    stages: int
    instruction: int = 0  #: M and N of the MFMA; 0: Triton chooses


@dataclass(frozen=True)
class Case:
    """One published figure, and the tiles of which the fastest stands for it."""

    source: str  #: "X", "R" or "Z"
    name: str
    gpu: str
    shape: tuple[int, int, int]
    dtype: str
    along_k: bool  #: B is contiguous along K
    tiles: tuple[Tile, ...]
    published_tflops: float
    fitted: bool = False

    def sample(self) -> list[tuple[Tile, Sample, float]]:
        """What the emulator sees of each tile, and how much deeper the product is."""
        m, n, k = self.shape
        kind = getattr(torch, self.dtype)
        a, c = torch.zeros(m, k, dtype=kind), torch.zeros(m, n, dtype=kind)
        b = torch.zeros(n, k, dtype=kind).T if self.along_k else torch.zeros(k, n, dtype=kind)
        depth = min(k, _DEPTH)

        def launch(tile: Tile) -> None:
            how: Any = {
                "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k, "GROUP": 8, "DIES": 8, "num_warps": tile.waves,
                "num_stages": tile.stages, "matrix_instr_nonkdim": tile.instruction, "enable_fp_fusion": True,
            }  # fmt: skip
            strides = a.stride(0), b.stride(0), b.stride(1), c.stride(0)
            product[(m // tile.m * (n // tile.n),)](a, b, c, m, n, depth, *strides, **how)

        return [(tile, sample(lambda tile=tile: launch(tile), self.gpu)[0], k / depth) for tile in self.tiles]


_X_TILES = tuple(
    Tile(m, n, k, waves, 2, 16)
    for m, n, k, waves in (
        (128, 128, 32, 4), (128, 128, 64, 8), (256, 128, 32, 8), (128, 256, 32, 8), (256, 256, 32, 8),
    )
)  # fmt: skip
_X_TFLOPS = {(4096, 4096, 4096): 502.6, (8192, 8192, 8192): 514.0, (1024, 8192, 8192): 499.5, (8192, 1024, 8192): 479.5}
_Z_TFLOPS = {(256, 256): (856, 778), (256, 128): (734, 681), (128, 256): (733, 671), (128, 128): (623, 588)}


def cases() -> tuple[Case, ...]:
    """Every figure; of each table, in its order, the first is fitted, the second not, and so on."""
    found = [
        Case("X", "x".join(map(str, shape)), "gfx942", shape, "bfloat16", False, _X_TILES, tflops)
        for shape, tflops in _X_TFLOPS.items()
    ]
    deep = (4096, 4096, 8192)
    found += [
        Case("R", "v0, no pipeline", "gfx950", deep, "float16", True, (Tile(256, 256, 64, 4, 1, 16),), 520),
        Case("R", "v4, two stages", "gfx950", deep, "float16", True, (Tile(256, 256, 64, 4, 2, 16),), 1113),
    ]
    found += [
        Case("Z", f"{m}x{n}, {size}^3", "gfx950", (size, size, size), "float16", False, (Tile(m, n, 32, 8, 3),), tflops)
        for (m, n), both in _Z_TFLOPS.items()
        for size, tflops in zip((4096, 8192), both, strict=True)
    ]
    order: dict[str, int] = {}
    chosen = []
    for case in found:
        place = order[case.source] = order.get(case.source, -1) + 1
        chosen.append(replace(case, fitted=place % 2 == 0))
    return tuple(chosen)


Samples = Sequence[tuple[Case, list[tuple[Tile, Sample, float]]]]


def rows_of(samples: Samples, machines: Mapping[str, Machine]) -> list[dict[str, Any]]:
    """Every case with its prediction, as a record holds it."""
    rows = []
    for case, tiles in samples:
        machine = machines[case.gpu]
        kernel, tile = min(
            ((evaluate(seen, machine, longer), tile) for tile, seen, longer in tiles), key=lambda pair: pair[0].time_us
        )
        flops = 2 * math.prod(case.shape)
        tflops = flops / kernel.time_us * 1e-6
        rows.append({
            "source": case.source, "name": case.name, "gpu": case.gpu, "shape": list(case.shape), "dtype": case.dtype,
            "tile": [tile.m, tile.n, tile.k], "waves": tile.waves, "published_tflops": case.published_tflops,
            "predicted_tflops": tflops, "ratio": tflops / case.published_tflops, "fitted": case.fitted,
            "limiter": kernel.limiter, "matrix": kernel.busy["matrix"], "clock_ghz": kernel.clock_ghz,
        })  # fmt: skip
    return rows


_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  #: of the L2's peak, that `fit` tries


def with_share(machine: Machine, share: float) -> Machine:
    """The machine with an L2 that reaches this part of its peak."""
    return replace(machine, l2_bytes_per_clock=L2_PEAK * share)


def fit(samples: Samples) -> float:
    """The part of the L2's peak with the least |log(predicted / published)| over the fitted half."""
    losses = {}
    for share in _SHARES:
        machines = {gpu: with_share(machine_of(gpu), share) for gpu in ("gfx942", "gfx950")}
        rows = rows_of([pair for pair in samples if pair[0].fitted], machines)
        losses[share] = sum(abs(math.log(r["ratio"])) for r in rows) / len(rows)
        print(f"{share:.0%}: {losses[share]:.3f}  " + ", ".join(f"{r['ratio'] - 1:+.0%}" for r in rows), flush=True)
    return min(losses, key=lambda share: losses[share])


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Errors of the fitted half and of the other."""
    found = {}
    for name, half in (("fitted", True), ("held_out", False)):
        median, worst = errors([r["ratio"] for r in rows if r["fitted"] is half])
        found[name] = {"median_error": median, "worst_error": worst, "cases": sum(r["fitted"] is half for r in rows)}
    return found


_NAMES = {"X": "MI300X, BF16", "R": "MI355X, FP16", "Z": "gfx950, FP16"}


def table(rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> str:
    """The page's part: the errors in words, then every prediction."""
    held, fitted = found["held_out"], found["fitted"]
    lines = [
        f"On the {held['cases']} figures that it was not fitted to: **median error {held['median_error']:.0%}, worst "
        f"{held['worst_error']:.0%}**. On the {fitted['cases']} that it was fitted to: median "
        f"{fitted['median_error']:.0%}, worst {fitted['worst_error']:.0%}.",
        "",
        "| figures | product | tile, waves | published | predicted | error | fitted | predicted clock, limited by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {_NAMES[r['source']]} [{r['source']}] | {r['name']} | {'x'.join(map(str, r['tile']))}, {r['waves']} | "
        f"{r['published_tflops']:,.0f} TFLOP/s | {r['predicted_tflops']:,.0f} TFLOP/s | {r['ratio'] - 1:+.0%} | "
        f"{'yes' if r['fitted'] else 'no'} | {r['clock_ghz']:.2f} GHz, {r['limiter']} |"
        for r in rows
    ]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="The timing model of CDNA against published figures.")
    parser.add_argument("--out", type=Path, help="append a record to this file")
    parser.add_argument("--page", type=Path, help="fill the table of this page")
    parser.add_argument("--fit", action="store_true", help="search the free parameter and print it")
    given = parser.parse_args(words)
    samples = [(case, case.sample()) for case in cases()]
    if given.fit:
        print(f"{fit(samples):.0%} of the L2's peak")
        return 0
    machines = {gpu: machine_of(gpu) for gpu in ("gfx942", "gfx950")}
    rows = rows_of(samples, machines)
    found = summary(rows)
    print(table(rows, found))
    if given.out is not None:
        fitted = {gpu: {"l2_share": m.l2_bytes_per_clock / L2_PEAK} for gpu, m in machines.items()}
        append_record(given.out, "timing model of CDNA against published figures", fitted, found, rows)
    if given.page is not None:
        fill_page(given.page, {"cdna": table(rows, found)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
