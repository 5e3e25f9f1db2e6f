"""What `laneloom selftest` runs: every operation on small, awkward operands against FP64, and a short benchmark.

The same list runs on a GPU and in the emulator, on whatever device Triton's active driver takes.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..codegen.versions import triton_version
from ..errors import LaneloomError, UnsupportedError
from ..gpu import Gpu
from ..ops.attention.api import flash_attention
from ..ops.gemm_chain.api import gemm_chain
from ..ops.matmul.api import matmul
from ..ops.matmul.gemm import gemm
from ..ops.matmul.grouped import grouped_matmul
from ..ops.matmul.problem import MatmulProblem
from ..ops.quantized_matmul.api import quantized_matmul
from ..ops.quantized_matmul.quantize import quantize_weight
from ..ops.transform3d.api import transform3d
from ..ops.transpose.api import transpose
from ..verify import UNIT_ROUNDOFF
from .products import DTYPES, judge
from .records import Environment, read_commit

SCHEMA_VERSION = 1
RIGHT, WRONG, REFUSED, FAILED = "right", "wrong", "refused", "failed"
#: M, N, K and layout: a tile, edges in every direction, one row, one column, a deep K, both transposes
PRODUCTS = (
    (64, 64, 64, "nn"), (127, 129, 131, "nt"), (1, 200, 96, "nn"), (130, 1, 70, "tn"), (33, 47, 600, "tt"),
    (256, 192, 128, "nt"),
)  # fmt: skip
GROUP_ENDS = (20, 20, 70)  #: of rows in groups, the second of which has none
PRODUCT_DTYPES = ("fp16", "bf16", "int8", "fp8", "fp32", "fp64")


@dataclass(frozen=True)
class Check:
    """One line of the list."""

    name: str
    verdict: str  #: right, wrong, refused (no schedule for it on this GPU) or failed
    share: float | None  #: of the error budget that the worst element takes
    detail: str
    seconds: float


def run_checks(device: str, *, most: int | None = None) -> Iterator[Check]:
    """Every check, or the first `most`, as soon as it is done."""
    for number, (name, check) in enumerate(_checks(device)):
        if most is not None and number >= most:
            return
        began = time.perf_counter()
        share, detail = None, ""
        try:
            share, why = check()
            verdict, detail = (RIGHT, "") if why is None else (WRONG, why.removeprefix("wrong: "))
        except UnsupportedError as error:
            verdict, detail = REFUSED, str(error)
        except Exception as error:  # the file is to say what happened, whatever it was
            verdict, detail = FAILED, f"{type(error).__name__}: {_said(error).strip().partition(chr(10))[0][:300]}"
        finite = share if share is not None and share < float("inf") else None
        yield Check(name, verdict, finite, detail, time.perf_counter() - began)


def _said(error: Exception) -> str:
    """Its text without the folders of files, which may be called as a person is: the file names none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).replace(str(Path.home()), "~")
    return re.sub(r"(?<![\w~/])~?(?!/(?:dev|opt|proc|sys|usr)/)(?:/[^\s/:'\"(),]+)*/(?=[^\s/])", "", text)


def _checks(device: str) -> Iterator[tuple[str, Callable[[], tuple[float, str | None]]]]:
    for dtype in PRODUCT_DTYPES:
        for m, n, k, layout in PRODUCTS:
            yield f"matmul {m}x{n}x{k} {layout} {dtype}", lambda a=(m, n, k, layout, dtype): _product(device, *a)
    for dtype in ("fp16", "bf16"):
        yield f"matmul of a batch {dtype}", lambda d=dtype: _batch(device, d)
        yield f"gemm with scale, addend, bias and relu {dtype}", lambda d=dtype: _epilogue(device, d)
        yield f"gradients of matmul {dtype}", lambda d=dtype: _gradients(device, d)
        for causal in (False, True):
            word = "causal " if causal else ""
            yield f"flash_attention {word}{dtype}", lambda d=dtype, c=causal: _attention(device, d, c)
        yield f"gemm_chain {dtype}", lambda d=dtype: _chain(device, d)
        for m, bits in ((1, "int4"), (20, "fp4"), (70, "int8")):
            yield f"quantized_matmul {m} rows, {bits} {dtype}", lambda d=dtype, a=(m, bits): _quantized(device, *a, d)
        yield f"grouped_matmul {dtype}", lambda d=dtype: _grouped(device, d)
        yield f"gradients of grouped_matmul {dtype}", lambda d=dtype: _gradients_of_groups(device, d)
        yield f"quantized_matmul of groups, int4 {dtype}", lambda d=dtype: _quantized_groups(device, d)
    for dtype in ("fp64", "fp32"):
        for k in (4, 7, 16):
            yield f"transform3d K={k} {dtype}", lambda k=k, d=dtype: _transform(device, k, d)
    for kind in (torch.uint8, torch.float16, torch.float32, torch.float64):
        yield f"transpose {kind.itemsize} bytes", lambda kind=kind: _transpose(device, kind)


def _randn(device: str, *shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, dtype=dtype, generator=generator).to(device)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).to(device)


def _product(device: str, m: int, n: int, k: int, layout: str, dtype: str) -> tuple[float, str | None]:
    problem = MatmulProblem.contiguous(m, n, k, dtype=dtype, layout=layout)
    a, b = (
        _randn(device, *size, dtype=DTYPES[dtype]) if letter == "n"
        else _randn(device, *size[::-1], dtype=DTYPES[dtype]).mT
        for size, letter in zip(((m, k), (k, n)), layout, strict=True)
    )  # fmt: skip
    kind = DTYPES[problem.dtype_out]
    out = torch.full((m, n), -77 if kind == torch.int32 else float("nan"), dtype=kind, device=device)
    matmul(a, b, out=out, out_dtype=kind)
    if not torch.equal(out.view(torch.uint8), matmul(a, b, out_dtype=kind).view(torch.uint8)):
        return float("inf"), "two calls gave different bits"
    if problem.dtype_out == "int32":
        return judge(problem, a.cpu(), b.cpu(), out.cpu())
    return judge(problem, a, b, out)


def _within(
    got: torch.Tensor, truth: torch.Tensor, same: torch.Tensor, dtype: str
) -> tuple[float, str | None]:
    """The worst error over 2 x that of the same in torch, and one rounding of the largest result."""
    error, theirs = ((x.double() - truth).abs().max().item() for x in (got, same))
    budget = 2 * theirs + UNIT_ROUNDOFF[dtype] * truth.abs().max().item()
    share = error / budget if error == error else float("inf")
    return share, None if share <= 1 else f"off by {error:.2e}, allowed {budget:.2e}"


def _batch(device: str, dtype: str) -> tuple[float, str | None]:
    a, b = (_randn(device, *s, dtype=DTYPES[dtype]) for s in ((3, 1, 50, 40), (2, 40, 70)))
    return _within(matmul(a, b), a.double() @ b.double(), (a.float() @ b.float()).to(a.dtype), dtype)


def _epilogue(device: str, dtype: str) -> tuple[float, str | None]:
    a, b, c = (_randn(device, *s, dtype=DTYPES[dtype]) for s in ((90, 70), (70, 110), (90, 110)))
    bias = _randn(device, 110, dtype=DTYPES[dtype])
    got = gemm(a, b, c, alpha=0.5, beta=2.0, bias=bias, activation="relu")
    truth, same = (
        torch.relu(0.5 * (a.to(t) @ b.to(t)) + 2 * c.to(t) + bias.to(t)) for t in (torch.float64, torch.float32)
    )
    return _within(got, truth, same.to(a.dtype), dtype)


def _gradients(device: str, dtype: str) -> tuple[float, str | None]:
    a, b = (_randn(device, *s, dtype=DTYPES[dtype]).requires_grad_() for s in ((50, 60), (60, 70)))
    g = _randn(device, 50, 70, dtype=DTYPES[dtype])
    matmul(a, b).backward(g)
    assert a.grad is not None
    assert b.grad is not None
    with torch.no_grad():
        first = _within(a.grad, g.double() @ b.double().mT, (g.float() @ b.float().mT).to(a.dtype), dtype)
        second = _within(b.grad, a.double().mT @ g.double(), (a.float().mT @ g.float()).to(a.dtype), dtype)
    return max(first, second, key=lambda result: result[0])


def _attention(device: str, dtype: str, causal: bool) -> tuple[float, str | None]:
    q, k, v = (_randn(device, 1, h, n, 64, dtype=DTYPES[dtype], seed=h) for h, n in ((4, 70), (2, 90), (2, 90)))
    got = flash_attention(q, k, v, causal=causal)

    def softmax(kind: torch.dtype, rounded: bool) -> torch.Tensor:
        wide = [x.to(kind).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (q, k, v)]
        scores = wide[0] @ wide[1].mT / sqrt(q.shape[-1])
        if causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=device).tril(k.shape[2] - q.shape[2])
            scores = scores.masked_fill(~seen, float("-inf"))
        weights = scores.softmax(-1)
        if rounded:  # as torch's own kernels, the second product takes weights of the operands' dtype
            weights = weights.to(q.dtype).to(kind)
        return weights @ wide[2]

    truth = softmax(torch.float64, False)
    return _within(got, truth, softmax(torch.float32, True).to(q.dtype), dtype)


def _chain(device: str, dtype: str) -> tuple[float, str | None]:
    a, b, c = (_randn(device, *s, dtype=DTYPES[dtype]) for s in ((70, 64), (64, 90), (90, 64)))
    middle = (a.float() @ b.float()).to(a.dtype)
    truth = a.double() @ b.double() @ c.double()
    return _within(gemm_chain(a, b, c), truth, (middle.float() @ c.float()).to(a.dtype), dtype)


def _quantized(device: str, m: int, bits: str, dtype: str) -> tuple[float, str | None]:
    weight = quantize_weight(_randn(device, 90, 320, dtype=torch.float32), bits)
    x, w = _randn(device, m, 320, dtype=DTYPES[dtype]), weight.dequantize()
    return _within(quantized_matmul(x, weight), x.double() @ w.double().mT, (x.float() @ w.mT).to(x.dtype), dtype)


def _by_groups(x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Each group's rows by its matrix [K, N]."""
    firsts = (0, *GROUP_ENDS)
    return torch.cat([x[i:j].to(dtype) @ m.to(dtype) for i, j, m in zip(firsts, GROUP_ENDS, w, strict=False)])


def _grouped(device: str, dtype: str) -> tuple[float, str | None]:
    a, b = (_randn(device, *s, dtype=DTYPES[dtype]) for s in ((GROUP_ENDS[-1], 320), (len(GROUP_ENDS), 320, 96)))
    got = grouped_matmul(a, b, torch.tensor(GROUP_ENDS, dtype=torch.int32, device=device))
    return _within(got, _by_groups(a, b, torch.float64), _by_groups(a, b, torch.float32).to(a.dtype), dtype)


def _gradients_of_groups(device: str, dtype: str) -> tuple[float, str | None]:
    """Those of the matrices, which are a product of K in groups; each group's beside its own."""
    a, d = (_randn(device, GROUP_ENDS[-1], n, dtype=DTYPES[dtype]) for n in (320, 96))
    b = _randn(device, len(GROUP_ENDS), 320, 96, dtype=DTYPES[dtype]).requires_grad_()
    grouped_matmul(a, b, torch.tensor(GROUP_ENDS, dtype=torch.int32, device=device)).backward(d)
    firsts, got = (0, *GROUP_ENDS), b.grad
    assert got is not None

    def truth(kind: torch.dtype) -> torch.Tensor:
        parts = zip(firsts, GROUP_ENDS, strict=False)
        return torch.stack([a[i:j].to(kind).mT @ d[i:j].to(kind) for i, j in parts])

    return _within(got, truth(torch.float64), truth(torch.float32).to(a.dtype), dtype)


def _quantized_groups(device: str, dtype: str) -> tuple[float, str | None]:
    weight = quantize_weight(_randn(device, len(GROUP_ENDS), 90, 320, dtype=torch.float32), "int4")
    x, w = _randn(device, GROUP_ENDS[-1], 320, dtype=DTYPES[dtype]), weight.dequantize().mT
    got = quantized_matmul(x, weight, ends=torch.tensor(GROUP_ENDS, dtype=torch.int32, device=device))
    return _within(got, _by_groups(x, w, torch.float64), _by_groups(x, w, torch.float32).to(x.dtype), dtype)


def _transform(device: str, k: int, dtype: str) -> tuple[float, str | None]:
    from ..ops.transform3d.reference import worst_share

    x, t = (_randn(device, *s, dtype=DTYPES[dtype]) for s in ((5, k, k, k), (k, k)))
    got = transform3d(x, t)
    share = worst_share(got.cpu().numpy(), x.cpu().numpy(), t.cpu().numpy(), dtype=dtype) / 4
    return share, None if share <= 1 else f"{share:.1f} x the budget"


def _transpose(device: str, kind: torch.dtype) -> tuple[float, str | None]:
    x = torch.arange(2 * 70 * 131, device=device).remainder(251).to(kind).view(2, 70, 131)
    return (0.0, None) if torch.equal(transpose(x), x.mT) else (float("inf"), "elements are elsewhere")


def run_benchmark(gpu: Gpu, environment: Environment) -> Iterator[dict[str, Any]]:
    """A few products, an attention and a transform beside torch: records, or why there is none."""
    from . import works

    makers: list[tuple[str, Callable[[], works.Work]]] = [
        (f"matmul {n} fp16 nt", lambda n=n: works.gemm_work(n, n, n, "fp16", "nt", "selftest", gpu))
        for n in (1024, 4096)
    ]
    makers += [
        ("matmul 16x4096x4096 fp16 nt", lambda: works.gemm_work(16, 4096, 4096, "fp16", "nt", "selftest", gpu)),
        ("flash_attention 4096 fp16", lambda: works.attention_work((1, 16, 16, 4096, 4096, 128, 1), "fp16")),
        ("transform3d K=16 fp64", lambda: works.transform_work(16, 8192, "fp64")),
    ]
    for name, make in makers:
        try:
            for record in works.measure(make(), ["torch"], environment, rounds=7):
                yield asdict(record)
        except (LaneloomError, RuntimeError) as error:
            yield {"case": name, "failed": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"}


def describe(gpu: Gpu, how: str) -> dict[str, Any]:
    """What ran where; nothing that names a person, a host or a path."""
    commit, dirty = read_commit()
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION, "how": how, "gpu": gpu.name, "family": gpu.family, "laneloom": __version__,
        "commit": commit, "dirty": dirty, "torch": torch.__version__, "triton": triton_version(),
        "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}",
        "hip": torch.version.hip, "cuda": torch.version.cuda,
    }  # fmt: skip
    if how == "measured":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {
            "device": properties.name, "compute_units": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
        }  # fmt: skip
    return found
