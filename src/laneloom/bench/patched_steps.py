"""Steps of transformers as torch runs them and inside `laneloom.patched`: eager and captured in CUDA graphs.

`python -m laneloom.bench.patched_steps --out results/h200/patched_steps.jsonl` measures on a Hopper GPU, and the same
with `--page docs/pytorch.md` fills that page's table. The layers are torch's own (LayerNorm, Linear, attention, GELU),
in bf16; the gradients of both sides are held against an FP32 model's first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..pytorch.patch import patched
from .records import Record, append, make_record, read_environment
from .report import measure_or_fill
from .timing import Timing

METHOD_STEPS = "wall time of steps after each other until the GPU is done, candidates in turns, median over rounds"
STEPS = 4  #: after each other
#: batch, tokens, width, heads, layers
MODELS = (
    (4, 512, 768, 12, 6), (8, 1024, 768, 12, 12), (8, 1024, 1024, 16, 6), (4, 2048, 2048, 16, 4),
    (2, 4096, 4096, 32, 2),
)  # fmt: skip
KINDS = ("training", "inference")
OURS = "laneloom.patched"


class Block(nn.Module):
    """A layer of a transformer: attention and a network of two layers, each behind a norm and beside a sum."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, tokens, width]."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


def _train(model: nn.Module, x: torch.Tensor) -> None:
    for p in model.parameters():
        p.grad = None
    model(x).float().square().mean().backward()


def _infer(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        model(x)


def _error(model: nn.Module, truth: list[torch.Tensor]) -> float:
    """|| gradients - truth || / || truth ||, infinite where one is NaN."""
    grads = [p.grad for p in model.parameters()]
    off = sum(float((g.double() - t).square().sum()) for g, t in zip(grads, truth, strict=True) if g is not None)
    error = (off / sum(float(t.square().sum()) for t in truth)) ** 0.5
    return error if error == error and None not in grads else float("inf")


def check_errors(sizes: tuple[int, ...], errors: dict[str, float]) -> None:
    """Raise ArithmeticError where laneloom's gradients are further off than torch's by half, or nothing is told."""
    if not errors[OURS] <= 1.5 * errors["torch"] < float("inf"):
        raise ArithmeticError(f"{sizes}: gradients off by {errors[OURS]:.2e}, torch's by {errors['torch']:.2e}")


def _captured(call: Callable[[], None], around: Callable[[], AbstractContextManager[Any]]) -> Callable[[], None]:
    with around():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    return graph.replay


def _inside(call: Callable[[], None], around: Callable[[], AbstractContextManager[Any]]) -> Callable[[], None]:
    def step() -> None:
        with around():
            call()

    return step


def _times(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, Timing]:
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for call in calls.values():
        for _ in range(3):
            call()
    for r in range(rounds):
        for name in names if r % 2 else names[::-1]:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                calls[name]()
            torch.cuda.synchronize()
            samples[name].append((time.perf_counter() - start) * 1e6 / STEPS)
    return {name: Timing.from_samples(values, samples["torch"]) for name, values in samples.items()}


def measure(sizes: tuple[int, int, int, int, int], kind: str, captured: bool, rounds: int) -> Iterator[Record]:
    """Records of torch and of laneloom.patched. Raises ArithmeticError where laneloom's gradients are further off than
    a bf16 model's own by half."""
    batch, tokens, width, heads, layers = sizes
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(width, heads) for _ in range(layers))).to("cuda", torch.bfloat16)
    x = torch.randn(batch, tokens, width, device="cuda", dtype=torch.bfloat16)
    run = _train if kind == "training" else _infer
    around: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "torch": nullcontext, OURS: lambda: patched(captured=captured)}  # fmt: skip
    models = {name: deepcopy(model) for name in around}
    calls = {name: (lambda m=m: run(m, x)) for name, m in models.items()}
    wrap = _captured if captured else _inside
    calls = {name: wrap(call, around[name]) for name, call in calls.items()}
    for call in calls.values():
        call()
    errors: dict[str, float] = {}
    if kind == "training":
        exact = deepcopy(model).float()
        _train(exact, x.float())
        truth = [p.grad.double() for p in exact.parameters() if p.grad is not None]
        errors = {name: _error(m, truth) for name, m in models.items()}
        del exact, truth
        check_errors(sizes, errors)
    problem = {
        "kind": kind, "captured": captured, "batch": batch, "tokens": tokens, "width": width, "heads": heads,
        "layers": layers,
    }  # fmt: skip
    environment = read_environment()
    for name, timing in _times(calls, rounds).items():
        yield make_record(
            timing, op="patched_step", candidate=name, method=METHOD_STEPS, reference="torch", flops=0, bytes=0,
            environment=environment, kernel_hash="", config=None, problem=problem, error=errors.get(name),
        )  # fmt: skip


def run(path: Path, rounds: int) -> None:
    """Measure every model both ways and append the records to `path`."""
    for sizes in MODELS:
        for kind in KINDS:
            for captured in (False, True):
                records = list(measure(sizes, kind, captured, rounds))
                for record in records:
                    append(path, record)
                ours, how = records[-1], "captured" if captured else "eager"
                ms, ratio = ours.median_us / 1e3, ours.ratio_to_reference
                print(f"{sizes} {kind}, {how}: {ms:.3f} ms, {ratio:.3f} x torch", flush=True)


def render(records: Iterable[Record]) -> str:
    """Markdown: milliseconds of a step and how many times as fast as torch's, eager and captured."""
    newest: dict[tuple[Any, ...], dict[str, Record]] = {}
    for r in records:
        p = r.problem
        sizes = tuple(p[name] for name in ("batch", "tokens", "width", "heads", "layers"))
        newest.setdefault((sizes, p["kind"], p["captured"]), {})[r.candidate] = r
    some = next(iter(newest.values()))[OURS].environment
    lines = [
        f"One {some.gpu}, torch {some.torch}, commit {some.commit}; times in ms a step.", "",
        "| batch x tokens, width, heads, layers | | eager: torch | patched | x torch | captured: torch | patched "
        "| x torch | gradients off by: torch | patched |", "|---" * 10 + "|",
    ]  # fmt: skip
    for sizes in MODELS:
        for kind in KINDS:
            if (sizes, kind, False) not in newest:
                continue
            cells: list[str] = []
            for captured in (False, True):
                theirs, ours = (newest[sizes, kind, captured][name] for name in ("torch", OURS))
                cells += [f"{x.median_us / 1e3:.2f}" for x in (theirs, ours)] + [f"{ours.ratio_to_reference:.2f}"]
            errors = [newest[sizes, kind, True][name].error for name in ("torch", OURS)]
            cells += ["" if error is None else f"{error:.1e}" for error in errors]
            batch, tokens, width, heads, layers = sizes
            lines.append(f"| {batch} x {tokens}, {width}, {heads}, {layers} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    measure_or_fill("Steps of transformers, torch's and patched.", 11, run, "patched steps", render)


if __name__ == "__main__":
    main()
