"""One call of an operation, ready to be measured on a GPU: laneloom's, torch's and the compiled one's launches.

`torch` is what a user would write; `compile` is the same under torch.compile(mode="max-autotune-no-cudagraphs"), whose
kernels are chosen by measuring. Nothing is timed here that was not checked.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from ..errors import ArgumentError, LaneloomError
from ..gpu import Gpu
from ..ops.attention.api import flash_attention
from ..ops.attention.problem import AttentionProblem, band
from ..ops.matmul import config as matmul_config
from ..ops.matmul.problem import MatmulProblem
from ..ops.transform3d import reference as transform_reference
from ..ops.transform3d.api import transform3d
from ..ops.transform3d.problem import Transform3dProblem
from ..verify import UNIT_ROUNDOFF
from . import products
from .products import DTYPES, judge, multiply, operands, torch_product
from .records import Environment, Record, hash_sources, make_record
from .suites import load_suite, quick_cases
from .timing import METHOD_SUSTAINED, Launch, Timing, count_sets, interleave

PACKAGE = Path(__file__).parents[1]


@dataclass
class Work:
    """One problem with everything that runs it."""

    op: str
    problem: dict[str, Any]
    flops: int
    bytes: int
    sets: int
    ours: Launch
    torch: Callable[..., Any]  #: of the arguments of a set
    arguments: list[tuple[Any, ...]] = field(repr=False)
    check: Callable[[], float] = field(repr=False)  #: the share of the error budget that our result takes
    config: str | None = None


def sources(op: str) -> list[Path]:
    """The files that a figure of an operation depends on."""
    folder = PACKAGE / "ops" / op
    found = [*folder.glob("*.py"), *folder.glob("kernels/*"), *PACKAGE.glob("device/*")]
    return [path for path in found if path.suffix in (".py", ".cu", ".cuh")]


def suite_works(suite: str, *, dtype: str, layout: str, groups: list[str] | None, quick: bool) -> Iterator[Any]:
    """What each case of a suite is made by: a function of the GPU that gives its Work. Raises ArgumentError."""
    known = load_suite(suite)
    for name in groups or []:
        if name not in known:
            raise ArgumentError(f"--group: expected one of {', '.join(known)}, got {name!r}")
    for group, cases in known.items():
        if groups and group not in groups:
            continue
        if suite == "transform3d" and dtype != group and not groups:
            continue
        for case in quick_cases(cases) if quick else cases:
            if suite == "gemm":
                m, n, k = case
                yield lambda gpu, m=m, n=n, k=k, g=group: gemm_work(m, n, k, dtype, layout, g, gpu)
            elif suite == "attention":
                yield lambda gpu, case=case: attention_work(case, dtype)
            else:
                k, count = case
                yield lambda gpu, k=k, count=count, g=group: transform_work(k, count, g)


def gemm_work(m: int, n: int, k: int, dtype: str, layout: str, group: str, gpu: Gpu) -> Work:
    """A product of the gemm suite."""
    problem = MatmulProblem.contiguous(m, n, k, dtype=dtype, layout=layout)
    sets = count_sets(problem.bytes)
    pairs = [operands(problem, seed) for seed in range(sets)]
    outs = [torch.empty(m, n, dtype=DTYPES[problem.dtype_out], device="cuda") for _ in range(sets)]

    def check() -> float:
        outs[0].fill_(-77 if problem.dtype_out == "int32" else float("nan"))
        multiply(problem, *pairs[0], outs[0], None)
        share, why = judge(problem, *pairs[0], outs[0])
        if why is not None:
            raise LaneloomError(f"{problem.key}: {why}")
        return share

    return Work(
        "matmul",
        {"m": m, "n": n, "k": k, "layout": layout, "dtype": dtype, "dtype_out": problem.dtype_out, "group": group},
        problem.flops, problem.bytes, sets, lambda i: multiply(problem, *pairs[i], outs[i], None), torch_product(dtype),
        list(pairs), check, matmul_config.plan(problem, gpu).text,
    )  # fmt: skip


def attention_work(case: tuple[int, ...], dtype: str) -> Work:
    """A forward pass of the attention suite."""
    batch, heads, kv_heads, queries, keys, d, is_causal = case
    causal = bool(is_causal)
    first, last = band(queries, keys, "bottom_right" if causal else "none")
    problem = AttentionProblem(batch, heads, kv_heads, queries, keys, d, d, dtype, 1 / sqrt(d), first, last)
    sets = count_sets(problem.bytes)
    generator = products.seeded(0)

    def tensor(h: int, n: int) -> torch.Tensor:
        return torch.randn(batch, h, n, d, dtype=DTYPES[dtype], device="cuda", generator=generator)

    triples = [(tensor(heads, queries), tensor(kv_heads, keys), tensor(kv_heads, keys)) for _ in range(sets)]

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # torch's causal mask is aligned at the top left; for other shapes it takes a mask.
        mask = None
        if causal and queries != keys:
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=heads != kv_heads
        )

    def check() -> float:
        q, k, v = triples[0]
        got, theirs = flash_attention(q, k, v, causal=causal), sdpa(q, k, v)
        worst = budget = 0.0
        # One head at a time, of the first and the last batch: FP64 scores are large.
        for i, h in product({0, batch - 1}, range(heads)):
            group = h // (heads // kv_heads)
            scores = q[i, h].double() @ k[i, group].double().mT / sqrt(d)
            if causal:
                ones = torch.ones_like(scores, dtype=torch.bool).tril(keys - queries)
                scores = scores.masked_fill(~ones, float("-inf"))
            truth = scores.softmax(-1) @ v[i, group].double()
            error = (got[i, h].double() - truth).abs().max().item()
            rounding = UNIT_ROUNDOFF[dtype] * truth.abs().max().item()
            allowed = 2 * (theirs[i, h].double() - truth).abs().max().item() + rounding
            worst, budget = max(worst, error if error == error else float("inf")), max(budget, allowed)
        if not worst <= budget:
            raise LaneloomError(f"{problem.key}: off by {worst:.2e}, allowed {budget:.2e}")
        return worst / budget

    names = ("batch", "heads", "kv_heads", "queries", "keys", "d")
    return Work(
        "attention", dict(zip(names, case, strict=False)) | {"causal": causal, "dtype": dtype, "pass": "forward"},
        problem.flops, problem.bytes, sets, lambda i: flash_attention(*triples[i], causal=causal), sdpa, list(triples),
        check,
    )  # fmt: skip


def transform_work(k: int, count: int, dtype: str) -> Work:
    """A batch of the transform3d suite."""
    problem = Transform3dProblem(k, count, dtype)
    kinds = {"fp64": torch.float64, "fp32": torch.float32, "complex128": torch.complex128}
    sets = count_sets(problem.bytes)
    xs = [torch.randn(count, k, k, k, dtype=kinds[dtype], device="cuda") for _ in range(sets)]
    matrix = torch.randn(k, k, dtype=xs[0].real.dtype, device="cuda")
    outs = [torch.empty_like(x) for x in xs]

    def products(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        t = t.to(x.dtype)
        for _ in range(3):  # each takes the first axis and puts the new one last
            x = x.reshape(count, k, k * k).mT @ t
            x = x.reshape(count, k, k, k)
        return x

    def check() -> float:
        outs[0].fill_(float("nan"))
        transform3d(xs[0], matrix, out=outs[0])
        got, given = (torch.cat((x[:2], x[-2:])).cpu().numpy() for x in (outs[0], xs[0]))
        share = transform_reference.worst_share(got, given, matrix.cpu().numpy(), dtype=dtype)
        if not share <= 4.0 or bool(outs[0].isnan().any()):
            raise LaneloomError(f"{problem.key}: {share:.1f} bounds off, 4 are allowed")
        return share / 4.0

    return Work(
        "transform3d", {"k": k, "count": count, "dtype": dtype}, problem.flops, problem.bytes, sets,
        lambda i: transform3d(xs[i], matrix, out=outs[i]), products, [(x, matrix) for x in xs], check,
    )  # fmt: skip


@contextmanager
def _silenced() -> Iterator[None]:
    """Without the pages that Inductor prints and logs for every choice that it tries."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def measure(work: Work, rivals: list[str], environment: Environment, *, rounds: int) -> list[Record]:
    """Check our result, then time it beside its rivals in one run; the reference is the first rival, or ours."""
    share = work.check()
    launches: dict[str, Launch] = {}
    if "torch" in rivals:
        launches["torch"] = lambda i: work.torch(*work.arguments[i])
    if "compile" in rivals:
        torch.compiler.reset()
        compiled = torch.compile(work.torch, mode="max-autotune-no-cudagraphs", dynamic=False)
        with _silenced():
            compiled(*work.arguments[0])
        launches["compile"] = lambda i: compiled(*work.arguments[i])
    launches["laneloom"] = work.ours
    reference = next(iter(launches))
    failed: dict[str, str] = {}

    def timed() -> dict[str, Timing]:
        return interleave(
            launches, work.sets, reference=reference, rounds=rounds,
            on_failure=lambda name, error: failed.update({name: str(error)}),
        )  # fmt: skip

    try:
        timings = timed()
    except KeyError:  # the reference cannot do this
        launches = {name: launch for name, launch in launches.items() if name not in failed}
        reference = next(iter(launches), "laneloom")
        timings = timed() if launches else {}
    if "laneloom" in failed:
        raise LaneloomError(f"{work.op} {work.problem}: {failed['laneloom']}")
    return [
        make_record(
            timing, op=work.op, problem=work.problem, candidate=name, method=METHOD_SUSTAINED, reference=reference,
            config={"text": work.config} if name == "laneloom" and work.config else None, flops=work.flops,
            bytes=work.bytes, environment=environment, error=share if name == "laneloom" else None,
            error_budget=1.0 if name == "laneloom" else None,
            kernel_hash=hash_sources(sources(work.op)) if name == "laneloom" else "",
        )
        for name, timing in timings.items()
    ]  # fmt: skip
