"""The pages' tables and sentences of what `matmul_wide` measured: of each product, what the plan takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Any

from ..ops.matmul.config import MatmulConfig
from ..ops.matmul.config_async import AsyncConfig
from ..ops.matmul.config_cluster import ClusterConfig
from ..ops.matmul.config_shares import SharedConfig
from ..ops.matmul.dtypes import HALVES
from ..ops.matmul.model_hopper import SLICE_BYTES
from ..ops.matmul.problem import DTYPE_BYTES
from .wide_products import PRODUCTS, RANDOM, WIDE_RANDOM

if TYPE_CHECKING:
    from .matmul_wide import Row

WIDE = ("fp32", "fp64")
DTYPES = (*WIDE, "bf16", "fp8")
SLOW = 0.97  #: of torch.matmul
#: what a table calls its rows -> the most rows or columns of the short side
ROW_GROUPS = {
    "1": 1, "2 to 8": 8, "9 to 16": 16, "17 to 32": 32, "33 to 64": 64, "65 to 128": 128, "129 to 256": 256,
    "257 to 512": 512, "513 to 2048": 2048,
}  # fmt: skip
SHORT_K = "K of a slice or less"
SLOWEST_LISTED = 8


def summarise(taken: Sequence[tuple[Row, list[Row]]]) -> str:
    """Markdown: the ratios of each type in a sentence."""
    words = []
    for dtype in (dtype for dtype in DTYPES if any(row.dtype == dtype for row, _ in taken)):
        ratios = sorted(row.torch_us / row.us for row, _ in taken if row.dtype == dtype)
        below, name = sum(ratio < SLOW for ratio in ratios), "torch._scaled_mm" if dtype == "fp8" else "torch.matmul"
        words.append(
            f"{dtype.upper()}: {len(ratios)} products, {geometric_mean(ratios):.3f} x {name} on average, from "
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}, {below} under {SLOW}")  # fmt: skip
    return "; ".join(words) + "."


def render(taken: Sequence[tuple[Row, list[Row]]]) -> str:
    """Markdown: what the plan takes of each product, both types in a line, and of random ones."""
    of_type = " us | x torch | what ran |"
    lines = [f"| batch | M x N x K | layout | FP32,{of_type} FP64,{of_type}", "|---" * 9 + "|"]
    by_type = {dtype: {row.problem_key: row for row, _ in taken if row.dtype == dtype} for dtype in WIDE}
    for batch, m, n, k, layout in PRODUCTS:
        cells = [str(batch), f"{m} x {n} x {k}", layout.upper()]
        for dtype in WIDE:
            row = by_type[dtype].get((batch, m, n, k, layout))
            cells += ["", "", ""] if row is None else [f"{row.us:.2f}", f"{row.torch_us / row.us:.2f}", _words(row)]
        lines.append("| " + " | ".join(cells) + " |")
    for dtype, rows in by_type.items():
        ratios = [(row.torch_us / row.us, key) for key, row in rows.items() if key in WIDE_RANDOM]
        lines += ["", f"{dtype.upper()}. {_of_random(ratios)}"]
    return "\n".join(lines)


def _of_random(ratios: Sequence[tuple[float, tuple[int, int, int, int, str]]]) -> str:
    """The mean of random products, and which are slow."""
    below = ", ".join(
        f"{' x '.join(map(str, key[:4]))} {ratio:.2f}" for ratio, key in sorted(ratios) if ratio < SLOW) or "none"
    mean = geometric_mean([ratio for ratio, _ in ratios])
    return f"Of {len(ratios)} random products: {mean:.3f} x torch.matmul on average; under {SLOW}: {below}."


def render_half(taken: Sequence[tuple[Row, list[Row]]]) -> str:
    """Markdown: what the plan takes of products of 16 bits, the slowest beside torch first, then of random ones."""
    lines = ["| batch | M x N x K | layout | us | x torch | what ran |", "|---" * 6 + "|"]
    rows = sorted((row for row, _ in taken if row.dtype in HALVES), key=lambda row: row.torch_us / row.us)
    for row in (row for row in rows if row.problem not in RANDOM):
        cells = [str(row.batch), f"{row.m} x {row.n} x {row.k}", row.layout.upper(), f"{row.us:.2f}"]
        cells += [f"{row.torch_us / row.us:.2f}", _words(row)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", _of_random([(row.torch_us / row.us, row.problem_key) for row in rows if row.problem in RANDOM])]
    return "\n".join(lines)


def _group(row: Row) -> str:
    """Of ROW_GROUPS, or SHORT_K."""
    if row.k * DTYPE_BYTES[row.problem.dtype_a] <= SLICE_BYTES:
        return SHORT_K
    return next(group for group, most in ROW_GROUPS.items() if min(row.m, row.n) <= most)


def render_decode(taken: Sequence[tuple[Row, list[Row]]]) -> str:
    """Markdown: what the plan takes by the number of rows or columns, then the slowest beside torch."""
    lines = ["| | rows or columns | products | x torch | least | behind the fastest |", "|---" * 6 + "|"]
    for dtype, group in product(DTYPES, (*ROW_GROUPS, SHORT_K)):
        of = [x for x in taken if x[0].dtype == dtype and _group(x[0]) == group]
        if not of:
            continue
        ratios = [row.torch_us / row.us for row, _ in of]
        behind = mean(row.us / min(other.us for other in every) - 1 for row, every in of)
        cells = [dtype.upper(), group, str(len(of)), f"{geometric_mean(ratios):.3f}"]
        lines.append("| " + " | ".join([*cells, f"{min(ratios):.2f}", f"{100 * behind:.1f}%"]) + " |")
    lines += ["", "| | slowest: M x N x K | layout | us | x torch | TB/s | what ran |", "|---" * 7 + "|"]
    for row in sorted((row for row, _ in taken), key=lambda row: row.torch_us / row.us)[:SLOWEST_LISTED]:
        moved = row.problem.bytes / row.us / 1e6
        cells = [row.dtype.upper(), f"{row.m} x {row.n} x {row.k}", row.layout.upper(), f"{row.us:.2f}"]
        cells.append(f"{row.torch_us / row.us:.2f}")
        lines.append("| " + " | ".join([*cells, f"{moved:.2f}", _words(row)]) + " |")
    return "\n".join(lines)


def _words(row: Row) -> str:
    config: Any = MatmulConfig.parse(row.config)
    words = [f"{config.schedule.removeprefix('hopper_')}, {config.block_m}x{config.block_n}"]
    if isinstance(config, AsyncConfig | ClusterConfig):
        words += [f"K in {config.cluster_k} CTAs"] * (config.cluster_k > 1)
    if isinstance(config, AsyncConfig | SharedConfig):
        words += [f"K in {config.split_k}"] * (config.split_k > 1)
    if isinstance(config, AsyncConfig | ClusterConfig):
        words += ["transposed"] * config.swapped
    return ", ".join(words)
