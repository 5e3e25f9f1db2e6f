"""Measure laneloom's attention on its suite against what torch gives; `python -m laneloom.bench.attention --help`.

Forward and backward are compared with torch's cuDNN and flash backends: scaled_dot_product_attention, and the operators
that its autograd calls. A case of one query is decoding: `attention_decode` over a cache, compared with
scaled_dot_product_attention, and with copying the keys and values. Every result is checked against FP64 on one head
before it is timed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..errors import LaneloomError
from ..ops.attention import execute
from ..ops.attention.api import flash_attention
from ..ops.attention.config import plan, plan_backward
from ..ops.attention.config_decode import DecodeProblem
from ..ops.attention.decode import attention_decode
from ..ops.attention.plan_decode import plan_decode
from ..ops.target import active_gpu
from .records import append, hash_sources, make_record, read_environment
from .suites import load_suite
from .timing import METHOD_SUSTAINED, Timing, count_sets, interleave

PACKAGE = Path(__file__).parents[1]
_SHARED_SOURCES = ("device/attention_hopper.cuh", "ops/attention/hopper.py")
_DECODE_SOURCES = (
    *_SHARED_SOURCES, "device/attention_hopper_decode.cuh", "device/attention_hopper_decode_run.cuh",
    "ops/attention/config_decode.py", "ops/attention/hopper_decode_call.py",
    "ops/attention/kernels/hopper_decode.cu", "ops/attention/kernels/hopper_decode_ranges.cu",
)  # fmt: skip
_SOURCES = (
    *_SHARED_SOURCES, "device/attention_hopper_backward.cuh", "device/attention_hopper_columns.cuh",
    "device/attention_hopper_forward.cuh", "device/attention_hopper_halves.cuh", "ops/attention/config_hopper.py",
    "ops/attention/hopper_gradients.py", "ops/attention/kernels/hopper_forward_join.cu",
    "ops/attention/kernels/hopper_backward.cu", "ops/attention/kernels/hopper_backward_ends.cu",
    "ops/attention/kernels/hopper_backward_narrow.cu", "ops/attention/kernels/hopper_backward_wide.cu",
    "ops/attention/kernels/hopper_forward.cu",
)  # fmt: skip
#: what the time of attention on Hopper depends on, and that of decoding by a config
KERNEL_SOURCES, DECODE_SOURCES = (tuple(PACKAGE / name for name in names) for names in (_SOURCES, _DECODE_SOURCES))
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}
CUDNN, FLASH, COPY, DEFAULT = "torch cuDNN", "torch flash", "copy", "torch default"
ATEN = torch.ops.aten
_POSITIONS = 16384
#: decoding outside of the suite, as its file has sizes: large and small batches, one sequence, other head dimensions
DECODING = (
    (64, 32, 8, 1, 2048, 128, 0), (32, 32, 8, 1, 1024, 128, 0), (8, 32, 4, 1, 4096, 128, 0),
    (4, 32, 8, 1, 2048, 128, 0), (1, 32, 8, 1, 8192, 128, 0), (16, 16, 16, 1, 8192, 64, 0),
    (16, 16, 8, 1, 4096, 256, 0),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One attention of the suite; causal is top-left where lengths differ, as torch's is."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    causal: bool
    dtype: str

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head."""
        if not self.causal:
            return self.queries * self.keys
        return sum(min(i + 1, self.keys) for i in range(self.queries))

    def flops(self, backward: bool) -> int:
        return 4 * self.batch * self.heads * self.pairs * self.d * (5 if backward else 2) // 2

    def bytes(self, backward: bool) -> int:
        """Each tensor once: forward reads q, k, v and writes O; backward reads these and dO and writes three."""
        rows, columns = self.heads * self.queries, self.kv_heads * self.keys
        return 2 * self.batch * self.d * ((4 * rows + 4 * columns) if backward else (2 * rows + 2 * columns))

    @property
    def problem(self) -> dict[str, Any]:
        return {
            "batch": self.batch, "heads": self.heads, "kv_heads": self.kv_heads, "queries": self.queries,
            "keys": self.keys, "d": self.d, "causal": self.causal, "dtype": self.dtype,
        }  # fmt: skip

    @property
    def text(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}:{self.kv_heads}"
        lengths = f"{self.queries}" if self.queries == self.keys else f"{self.queries}:{self.keys}"
        return f"{self.batch} x {heads} x {lengths} x {self.d}{' causal' if self.causal else ''} {self.dtype}"


def _operands(case: Case, seed: int) -> tuple[Any, ...]:
    """q, k, v and the gradient of O."""
    generator = torch.Generator("cuda").manual_seed(seed)
    rows, columns = (case.heads, case.queries), (case.kv_heads, case.keys)
    return tuple(
        torch.randn(case.batch, h, n, case.d, dtype=DTYPES[case.dtype], device="cuda", generator=generator)
        for h, n in (rows, columns, columns, rows)
    )


def _expand(case: Case, x: torch.Tensor) -> torch.Tensor:
    """Every query head's own keys, which torch's backward operators want."""
    return x if case.heads == case.kv_heads else x.repeat_interleave(case.heads // case.kv_heads, 1)


def _truth(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    """O and dQ of the first head, dK and dV of the first head of keys, in FP64."""
    group = case.heads // case.kv_heads
    mask = None
    if case.causal:
        mask = torch.ones(case.queries, case.keys, dtype=torch.bool, device="cuda").tril()
    k64, v64 = k[0, 0].double(), v[0, 0].double()
    dk, dv, first = torch.zeros_like(k64), torch.zeros_like(v64), None
    for head in range(group):
        q64, g64 = q[0, head].double(), g[0, head].double()
        p = q64 @ k64.mT
        p *= case.d**-0.5
        if mask is not None:
            p.masked_fill_(~mask, -math.inf)
        p = torch.softmax(p, -1)
        out = p @ v64
        dv += p.mT @ g64
        ds = g64 @ v64.mT
        ds -= (g64 * out).sum(-1, keepdim=True)
        ds *= p
        ds *= case.d**-0.5
        dk += ds.mT @ q64
        if first is None:
            first = out, ds @ k64
        del p, ds
    assert first is not None
    return [first[0], first[1], dk, dv]


def _error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """|| got - truth || / || truth ||, infinite where an element is NaN."""
    error = ((got.double() - truth).norm() / truth.norm().clamp_min(1e-300)).item()
    return error if error == error else math.inf


def _judge(case: Case, what: str, mine: list[torch.Tensor], theirs: list[torch.Tensor], truth: list[torch.Tensor]):
    """The largest of the errors relative to its budget, as error and budget. Raises LaneloomError beyond one."""
    found = []
    for x, y, z in zip(mine, theirs, truth, strict=True):
        error, budget = _error(x, z), 2 * _error(y, z) + ROUNDING[case.dtype]
        if not error <= budget:
            raise LaneloomError(f"{case.text} {what}: relative error {error:.2e} is over its budget of {budget:.2e}")
        found.append((error, budget))
    return max(found, key=lambda pair: pair[0] / pair[1])


def attend_by_torch(case: Case, backend: SDPBackend | list[SDPBackend], operands: list[Any], i: int) -> torch.Tensor:
    """torch's attention of the i-th operands, of which the first three are q, k and v."""
    q, k, v = operands[i][:3]
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=case.heads != case.kv_heads)


def measure(
    case: Case, rounds: int, *, gradients: bool = True
) -> dict[str, tuple[dict[str, Timing], float, float, str]]:
    """"forward" and, if that is wanted, "backward" -> timings by candidate, error, its budget, what ran."""
    sets = count_sets(case.bytes(True), limit=64)
    operands = [_operands(case, i) for i in range(sets)]
    causal = "top_left" if case.causal else False
    truth = _truth(case, *operands[0])
    gpu = active_gpu()
    seen = execute.band_of(causal, None)
    q, k, v, _ = operands[0]
    problem = execute.problem_of(q, k, v, case.dtype, None, seen)

    mine = [flash_attention(*x[:3], causal=causal, return_lse=True) for x in operands]
    if case.causal and case.queries != case.keys:
        return {"forward": _measure_odd(case, rounds, operands, truth, plan(problem, gpu).text)}
    theirs = attend_by_torch(case, SDPBackend.FLASH_ATTENTION, operands, 0)
    error, budget = _judge(case, "forward", [mine[0][0][0, 0]], [theirs[0, 0]], truth[:1])
    candidates: dict[str, Callable[[int], object]] = {
        CUDNN: partial(attend_by_torch, case, SDPBackend.CUDNN_ATTENTION, operands),
        FLASH: partial(attend_by_torch, case, SDPBackend.FLASH_ATTENTION, operands),
        "laneloom": lambda i: flash_attention(*operands[i][:3], causal=causal),
    }
    forward = interleave(candidates, sets, reference=CUDNN, rounds=rounds, on_failure=_say)
    found = {"forward": (forward, error, budget, plan(problem, gpu).text)}
    if not gradients:
        return found

    full = [(x[0], _expand(case, x[1]), _expand(case, x[2]), x[3]) for x in operands]
    flash = [ATEN._scaled_dot_product_flash_attention(*x[:3], 0.0, case.causal, False) for x in full]
    cudnn = [ATEN._scaled_dot_product_cudnn_attention(*x[:3], None, True, 0.0, case.causal, False) for x in full]

    def run_flash(i: int) -> Any:
        q, k, v, g = full[i]
        out, lse, first_q, first_k, max_q, max_k, seed, offset, *_ = flash[i]
        return ATEN._scaled_dot_product_flash_attention_backward(
            g, q, k, v, out, lse, first_q, first_k, max_q, max_k, 0.0, case.causal, seed, offset)

    def run_cudnn(i: int) -> Any:
        q, k, v, g = full[i]
        out, lse, first_q, first_k, max_q, max_k, seed, offset, *_ = cudnn[i]
        return ATEN._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, out, lse, seed, offset, None, first_q, first_k, max_q, max_k, 0.0, case.causal)

    def run_ours(i: int) -> Any:
        q, k, v, g = operands[i]
        return torch.ops.laneloom.flash_attention_backward(
            g, None, q, k, v, *mine[i], seen.causal, None, seen.left, seen.right)

    group = case.heads // case.kv_heads
    dq, dk, dv = run_ours(0)
    fq, fk, fv = run_flash(0)
    sums = [x[0, :group].double().sum(0) for x in (fk, fv)]
    error, budget = _judge(case, "backward", [dq[0, 0], dk[0, 0], dv[0, 0]], [fq[0, 0], *sums], truth[1:])
    candidates = {CUDNN: run_cudnn, FLASH: run_flash, "laneloom": run_ours}
    backward = interleave(candidates, sets, reference=CUDNN, rounds=rounds, on_failure=_say)
    chosen = " + ".join(config.text for config in plan_backward(problem, gpu))
    found["backward"] = backward, error, budget, chosen
    return found


def _measure_odd(case: Case, rounds: int, operands: list[Any], truth: list[torch.Tensor], text: str):
    """The forward where torch's flash backend has no such mask: against what torch takes by itself."""
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    mine = flash_attention(*operands[0][:3], causal="top_left")
    theirs = attend_by_torch(case, SDPBackend.MATH, operands, 0)
    error, budget = _judge(case, "forward", [mine[0, 0]], [theirs[0, 0]], truth[:1])
    candidates: dict[str, Callable[[int], object]] = {
        DEFAULT: partial(attend_by_torch, case, backends, operands),
        "laneloom": lambda i: flash_attention(*operands[i][:3], causal="top_left"),
    }
    return interleave(candidates, len(operands), reference=DEFAULT, rounds=rounds), error, budget, text


def decode_problem(case: Case) -> DecodeProblem:
    """The problem of decoding a case, in a cache [B, S, H_kv, D]."""
    sizes = case.batch, case.heads, case.kv_heads, case.queries, case.keys, case.d, case.d
    return DecodeProblem(*sizes, case.dtype, case.d**-0.5, adjacent=True)


def measure_decode(case: Case, rounds: int) -> tuple[dict[str, Timing], float, float, str]:
    """Timings by candidate, error, its budget, what ran."""
    sets = count_sets(case.bytes(False), limit=64)
    operands = [_operands(case, i) for i in range(sets)]
    caches = [tuple(x.transpose(1, 2).contiguous() for x in three) for *three, _ in operands]
    lengths = torch.full((case.batch,), case.keys, dtype=torch.int32, device="cuda")
    targets = [torch.empty_like(x) for x in caches[0][1:]]

    def copy(i: int) -> None:
        for target, x in zip(targets, caches[i][1:], strict=True):
            target.copy_(x)

    mine = attention_decode(*caches[0], cache_lengths=lengths)
    theirs = attend_by_torch(case, SDPBackend.FLASH_ATTENTION, operands, 0)
    error, budget = _judge(case, "decode", [mine[0, :, 0]], [theirs[0, 0]], _truth(case, *operands[0])[:1])
    candidates: dict[str, Callable[[int], object]] = {
        CUDNN: partial(attend_by_torch, case, SDPBackend.CUDNN_ATTENTION, operands),
        FLASH: partial(attend_by_torch, case, SDPBackend.FLASH_ATTENTION, operands),
        COPY: copy,
        "laneloom": lambda i: attention_decode(*caches[i], cache_lengths=lengths),
    }
    timings = interleave(candidates, sets, reference=COPY, rounds=rounds, on_failure=_say)
    return timings, error, budget, plan_decode(decode_problem(case), active_gpu()).text


def _say(name: str, error: Exception) -> None:
    print(f"  {name}: {str(error).splitlines()[0]}", flush=True)


def run(path: Path, dtypes: list[str], rounds: int, lengths: list[int], *, decodes: bool = False) -> None:
    """Measure the suite and DECODING, of both what decodes alone, or 16,384 positions in sequences of `lengths`, and
    append records to `path`."""
    environment = read_environment()
    (sizes,) = load_suite("attention").values()
    sizes = [*sizes, *DECODING]
    if lengths:
        sizes = [(_POSITIONS // n, 16, 16, n, n, 128, causal) for n in lengths for causal in (0, 1)]
    if decodes:
        sizes = [size for size in sizes if size[3] == 1]
    decode_hash, kernel_hash = hash_sources(DECODE_SOURCES), hash_sources(KERNEL_SOURCES)
    for dtype in dtypes:
        for size in sizes:
            batch, heads, kv_heads, queries, keys, d, causal = size
            case = Case(batch, heads, kv_heads, queries, keys, d, bool(causal), dtype)
            found = {"decode": measure_decode(case, rounds)} if queries == 1 else measure(case, rounds)
            sources = decode_hash if queries == 1 else kernel_hash
            for what, (timings, error, budget, text) in found.items():
                backward = what == "backward"
                for name, timing in timings.items():
                    ours = name == "laneloom"
                    # A copy reads and writes what decoding reads.
                    moved = 2 * case.bytes(False) if name == COPY else case.bytes(backward)
                    append(path, make_record(
                        timing, op=f"attention {what}", problem=case.problem, candidate=name, method=METHOD_SUSTAINED,
                        reference=next(n for n in (COPY, CUDNN, DEFAULT) if n in timings),
                        flops=case.flops(backward), bytes=moved,
                        environment=environment, kernel_hash=sources if ours else "",
                        config={"text": text} if ours else None, error=error if ours else None,
                        error_budget=budget if ours else None,
                    ))  # fmt: skip
                    rate = f"{moved / timing.median_us / 1e3:.0f} GB/s" if what == "decode" else (
                        f"{case.flops(backward) / timing.median_us / 1e6:.0f} TFLOP/s")
                    words = [f"x{timing.ratio_to_reference:.3f}", *["noisy"] * timing.noisy, *[text] * ours]
                    print(f"{case.text} {what} {name}: {timing.median_us:.1f} us, {rate},", *words, flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure laneloom's attention on its suite.")
    parser.add_argument("--out", type=Path, required=True, help="file of records to append to")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--decodes", action="store_true", help="the suite's decodes alone")
    parser.add_argument("--lengths", default="", help="lengths of a sweep at D = 128 in place of the suite")
    arguments = parser.parse_args()
    lengths = [int(n) for n in arguments.lengths.split(",") if n]
    run(arguments.out, arguments.dtypes.split(","), arguments.rounds, lengths, decodes=arguments.decodes)


if __name__ == "__main__":
    main()
