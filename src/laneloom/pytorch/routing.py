"""Which calls of torch's functions laneloom can take, and which of them it should: the rules of `patched`.

A call becomes a `Request`, or the reason why torch keeps it; a request is decided by `measurements`, or always taken.
Sizes that a compiler has as symbols count by their hints, so that nothing here makes a guard.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import torch

from ..errors import LaneloomError
from ..gpu import Gpu
from ..ops.attention import config as attention_config
from ..ops.attention.problem import AttentionProblem, band
from ..ops.matmul import config as matmul_config
from ..ops.matmul import execute, tuned
from ..ops.matmul.plan_groups import plan_dense
from ..ops.matmul.problem import Epilogue, MatmulProblem
from ..ops.operators import AUTOCAST_DEVICES
from ..ops.target import active_gpu, expected_device_type
from .measurements import (
    ALONE,
    WITH_GRADIENTS,
    Measurement,
    Table,
    nearest,
    scaled_kind,
    scaled_us,
    table_of,
    tuned_beside,
)

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}
EIGHT_BITS = {torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "bf8"}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LAYOUTS = ("nt", "nn", "tn", "tt")
HOST_OF = {"scaled_grouped_mm": "grouped_matmul"}  #: ops whose host's time is about another's
LEAST_GAIN = 1.02  #: torch's time over laneloom's from which a call is routed: less is within the noise


@dataclass(frozen=True)
class Part:
    """One launch of a call: the forward's, or one that the gradients need."""

    op: str
    kinds: tuple[str, ...]  #: of measurements that speak for it, the most alike first
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """A call that laneloom may take."""

    text: str  #: sizes, dtype, layout, for reports
    parts: tuple[Part, ...]
    with_terms: bool = False  #: whether a bias or an addend goes with the product


@dataclass(frozen=True)
class Decision:
    """Whether laneloom takes a call, and why."""

    routed: bool
    reason: str


def size_of(n: Any) -> int:
    """A size, or a symbol's hint."""
    return int(n.node.hint) if isinstance(n, torch.SymInt) else int(n)


def dtype_in_force(x: torch.Tensor) -> torch.dtype:
    """What torch would compute in: x's dtype, or autocast's where that is on."""
    kind = x.device.type
    lowered = kind in AUTOCAST_DEVICES and x.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return torch.get_autocast_dtype(kind) if lowered and torch.is_autocast_enabled(kind) else x.dtype


def allows_tf32() -> bool:
    """Whether torch's FP32 products may run in TF32, by whichever of its settings."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def why_kept(tensors: tuple[Any, ...], *, eight_bits: bool = False) -> str | None:
    """Why torch keeps a call with these tensors, or None. Says nothing about sizes and GPUs. eight_bits: of 8-bit
    floats, in every pairing, in place of halves and wider ones, all alike."""
    from torch._subclasses.fake_tensor import FakeTensor

    for x in tensors:
        if type(x) not in _PLAIN and type(x) is not FakeTensor:
            return f"an operand of type {type(x).__name__}"
        if x.layout != torch.strided:
            return f"layout {x.layout}"
        if x.is_nested:
            return "a nested tensor"
        if dtype_in_force(x) not in (EIGHT_BITS if eight_bits else DTYPES):
            return f"dtype {x.dtype}"
        if 0 in x.shape:
            return "an empty operand"
    differ = not eight_bits and len({dtype_in_force(x) for x in tensors}) > 1
    if differ or len({x.device for x in tensors}) > 1:
        return "operands of different dtypes or devices"
    if _is_forward_mode():
        return "forward-mode derivatives"
    return None


def _is_forward_mode() -> bool:
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    stack = torch._C._functorch.get_interpreter_stack()  # pyright: ignore[reportAttributeAccessIssue]
    jvp = torch._C._functorch.TransformType.Jvp  # pyright: ignore[reportAttributeAccessIssue]
    return any(level.key() == jvp for level in stack or ())


def _letter(x: torch.Tensor) -> str:
    return "n" if size_of(x.stride(-1)) == 1 else "t" if size_of(x.stride(-2)) == 1 else "x"


def _flipped(letter: str) -> str:
    return {"n": "t", "t": "n"}.get(letter, letter)


def product_part(dtype: str, layout: str, *sizes: int) -> Part:
    """The launch of a product; sizes: the batch, M, N, K."""
    kinds = [layout, *(other for other in _LAYOUTS if other != layout)]
    return Part("matmul", tuple(f"{dtype} {kind}" for kind in kinds), sizes)


RANKS = {"mm": 2, "addmm": 2, "bmm": 3}  #: functions whose operands have so many axes


def product_request(function: str, a: Any, b: Any, term: Any) -> Request | str:
    """The request of A[..., M, K] B[..., K, N] and a term that is added, or None; or why torch keeps it.

    `function` is torch's; the second operand of linear is B's transpose.
    """
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return "an operand that is no tensor"
    kept = why_kept((a, b))
    if kept is not None:
        return kept
    if a.dim() < 2 or b.dim() < 2:
        return "a vector"
    rank = RANKS.get(function)
    if (rank and not a.dim() == b.dim() == rank) or (function == "linear" and b.dim() != 2):
        return "shapes that do not fit"
    if function == "bmm" and size_of(a.shape[0]) != size_of(b.shape[0]):
        return "shapes that do not fit"
    if function == "linear":
        b = b.mT
    m, k, n = size_of(a.shape[-2]), size_of(a.shape[-1]), size_of(b.shape[-1])
    if size_of(b.shape[-2]) != k:
        return "shapes that do not fit"
    outer_a, outer_b = ([size_of(s) for s in x.shape[:-2]] for x in (a, b))
    try:
        # torch's function imports sympy, which takes a second and more, the first time.
        batch = prod(torch.broadcast_shapes(outer_a, outer_b)) if outer_a or outer_b else 1
    except RuntimeError:
        return "shapes that do not fit"
    if prod(outer_b) == 1:  # a batch of A alone is more rows
        m, batch = m * batch, 1
    first, second, dtype = _letter(a), _letter(b), DTYPES[dtype_in_force(a)]

    parts = [product_part(dtype, first + second, batch, m, n, k)]
    # The gradient of an operand lies as it does, so that of a transposed one is made as its transpose.
    if torch.is_grad_enabled() and a.requires_grad:
        part = (second + "t", batch, k, m, n) if first == "t" else ("n" + _flipped(second), batch, m, k, n)
        parts.append(product_part(dtype, *part))
    if torch.is_grad_enabled() and b.requires_grad:
        part = ("t" + first, batch, n, k, m) if second == "t" else (_flipped(first) + "n", batch, k, n, m)
        parts.append(product_part(dtype, *part))
    shape = f"{m}x{n}x{k}" if batch == 1 else f"{batch}x{m}x{n}x{k}"
    request = Request(f"{shape} {dtype} {first}{second}", tuple(parts), term is not None)
    return request if term is None else _why_term_kept(function, a, n, term) or request


def _why_term_kept(function: str, a: torch.Tensor, n: int, term: Any) -> str | None:
    """Why torch keeps a product for its bias (of linear) or addend (of addmm), or None."""
    kept = why_kept((term,)) if isinstance(term, torch.Tensor) else "a bias that is no tensor"
    if kept is not None:
        return kept
    same = dtype_in_force(term) == dtype_in_force(a)  # autocast brings both to one dtype
    if term.device != a.device or term.dtype not in (torch.float32, a.dtype) or not same:
        return "a bias of another device or dtype"
    shape = [size_of(s) for s in term.shape]
    result = [size_of(a.shape[0]), n]
    fits = all(size in (1, whole) for size, whole in zip(reversed(shape), reversed(result), strict=False))
    if shape != [n] if function == "linear" else len(shape) > 2 or not fits:
        return "a bias whose shape does not fit"
    return None


def grouped_request(a: Any, b: Any, ends: Any) -> Request | str:
    """The request of a product of rows in groups, or of K in groups, as `grouped_matmul` has them; or why torch keeps
    it."""
    if not all(isinstance(x, torch.Tensor) for x in (a, b, ends)):
        return "groups that are a batch" if ends is None else "an operand that is no tensor"
    kept = why_kept((a, b))
    if kept is not None:
        return kept
    if dtype_in_force(a) != a.dtype:  # torch's function does not follow it
        return f"autocast to {dtype_in_force(a)}"
    if a.dim() != 2 or b.dim() not in (2, 3):
        return "columns in groups"
    m, k, n, groups = (size_of(x) for x in (*a.shape, b.shape[-1], ends.shape[0] if ends.dim() else 1))
    fits = ends.dim() == 1 and size_of(b.shape[-2]) == k and (b.dim() == 2 or size_of(b.shape[0]) == groups)
    if not fits or ends.dtype != torch.int32 or ends.device != a.device:
        return "ends or shapes that do not fit"
    dtype, rows = DTYPES[a.dtype], b.dim() == 3

    def part(rows: bool, *sizes: int) -> Part:
        return Part("grouped_matmul", (f"{dtype} {'rows' if rows else 'k'}",), (groups, *sizes))

    parts = [part(rows, m, n, k)]
    if torch.is_grad_enabled() and a.requires_grad:
        parts.append(part(True, m, k, n) if rows else part(True, k, m, n))
    if torch.is_grad_enabled() and b.requires_grad:
        parts.append(part(False, k, n, m) if rows else part(True, k, n, m))
    text = f"{m}x{n}x{k} in {groups} groups of {'rows' if rows else 'K'} {dtype} {_letter(a)}{_letter(b)}"
    return Request(text, tuple(parts))


def scaled_request(a: Any, b: Any, third: Any, scales: str, fast: bool, groups: bool) -> Request | str:
    """The request of a product of 8-bit floats whose tensors, or rows and columns, have `scales`, FP32; or why torch
    keeps it. third: a bias, or the ends of `groups` of rows. fast: sums as the tensor cores make them."""
    if not all(isinstance(x, torch.Tensor) for x in (a, b, *([third] if groups else []))):
        return "groups that are a batch" if groups and third is None else "an operand that is no tensor"
    kept = why_kept((a, b), eight_bits=True)
    if kept is not None:
        return kept
    if a.dim() != 2 or b.dim() != 2 + groups or size_of(b.shape[-2]) != size_of(a.shape[1]):
        return "columns in groups" if groups else "shapes that do not fit"
    m, k, n = (size_of(x) for x in (*a.shape, b.shape[-1]))
    text = f"{EIGHT_BITS[a.dtype]} {EIGHT_BITS[b.dtype]}, scales of {scales}{'' if fast else ', promoted'}"
    kinds = (scaled_kind(scales, fast),)
    if groups:
        number = size_of(b.shape[0])
        if third.dim() != 1 or size_of(third.shape[0]) != number or third.dtype != torch.int32:
            return "ends or shapes that do not fit"
        if scales != "rows":
            return "scales of tensors in groups"
        part = Part("scaled_grouped_mm", kinds, (number, m, n, k))
        return Request(f"{m}x{n}x{k} in {number} groups of rows {text}", (part,))
    if third is not None and (third.dim() != 1 or size_of(third.shape[0]) != n or third.dtype not in DTYPES):
        return "a bias whose shape or dtype does not fit"
    return Request(f"{m}x{n}x{k} {text}", (Part("scaled_mm", kinds, (m, n, k)),))


def attention_request(q: Any, k: Any, v: Any, causal: bool, grouped: bool) -> Request | str:
    """The request of an attention of q [B, H, N, D], k, v; or why torch keeps it."""
    if not all(isinstance(x, torch.Tensor) for x in (q, k, v)):
        return "an operand that is no tensor"
    kept = why_kept((q, k, v))
    if kept is not None:
        return kept
    if not q.dim() == k.dim() == v.dim() == 4:
        return "operands without 4 axes"
    (batch, heads, queries, d), (_, kv_heads, keys, d_v) = ([size_of(s) for s in x.shape] for x in (q, v))
    fits = [size_of(s) for s in k.shape] == [batch, kv_heads, keys, d] and size_of(v.shape[0]) == batch
    if not fits or heads % kv_heads or (heads != kv_heads and not grouped):
        return "shapes that do not fit"
    dtype = DTYPES[dtype_in_force(q)]
    sizes, mask = (batch, heads, kv_heads, queries, keys, d, d_v), "causal" if causal else "full"
    parts = [Part("attention", (f"{dtype} {mask} forward",), sizes)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        parts.append(Part("attention", (f"{dtype} {mask} backward",), sizes))
    shape = f"{batch}x{heads}" + (f"/{kv_heads}" if heads != kv_heads else "") + f"x{queries}:{keys}x{d}"
    return Request(f"{shape} {dtype} {mask}", tuple(parts))


def _check_planned(request: Request, gpu: Gpu) -> None:
    """Raise LaneloomError unless a schedule can do every part."""
    for part in request.parts:
        dtype, kind, *_ = part.kinds[0].split()
        if part.op in ("grouped_matmul", "scaled_grouped_mm"):
            plan_dense(part.sizes, dtype, gpu, of_k=kind == "k")
            continue
        if part.op == "scaled_mm":
            matmul_config.plan(MatmulProblem.contiguous(*part.sizes, dtype=dtype, layout="nt"), gpu)
            continue
        if part.op == "matmul":
            layout = kind if kind in _LAYOUTS else "nn"
            batch, *sizes = part.sizes
            matmul_config.plan(MatmulProblem.contiguous(*sizes, dtype=dtype, layout=layout, batch=batch), gpu)
            continue
        batch, heads, kv_heads, queries, keys, d, d_v = part.sizes
        first, last = band(queries, keys, "top_left" if kind == "causal" else "none")
        scale = 1 / sqrt(d)
        problem = AttentionProblem(batch, heads, kv_heads, queries, keys, d, d_v, dtype, scale, first, last)
        for role in ("query", "key") if part.kinds[0].endswith("backward") else ("forward",):
            attention_config.plan(problem, gpu, role)


def _fuses_terms(part: Part, gpu: Gpu) -> bool:
    """Whether a bias goes with the product's own launch."""
    dtype, layout = part.kinds[0].split()
    batch, m, n, k = part.sizes
    epilogue = Epilogue(bias=("n", 1), dtype_bias=dtype)
    problem = MatmulProblem.contiguous(
        m, n, k, dtype=dtype, layout=layout if layout in _LAYOUTS else "nn", batch=batch, epilogue=epilogue
    )
    return execute.fuses_epilogue(problem, gpu, None)


def known() -> tuple[Any, ...]:
    """What decisions rest on beside their requests: the GPU and what was measured on it, the same objects until that is
    read again. Raises LaneloomError where there is none."""
    gpu = active_gpu()
    return gpu, table_of(gpu.name), tuned.entries(gpu.name)


def decide(
    request: Request, device_type: str, *, always: bool, captured: bool = False, traced: bool = False
) -> Decision:
    """Whether laneloom takes the call: whether it can, and wins by what was measured on this GPU (or `always`)."""
    try:
        gpu = active_gpu()
        if device_type != expected_device_type():
            return Decision(False, f"on {device_type}, Triton drives {expected_device_type()}")
        _check_planned(request, gpu)
    except LaneloomError as error:
        return Decision(False, str(error))
    if always:
        return Decision(True, "always")
    if request.parts[0].kinds[0].startswith("fp32 ") and device_type == "cuda" and allows_tf32():
        return Decision(False, "torch may multiply fp32 in TF32, which was not measured against")
    return weigh(request, gpu, captured=captured, traced=traced)


def weigh(request: Request, gpu: Gpu, *, captured: bool = False, traced: bool = False) -> Decision:
    """Whether a call that laneloom can take wins on a GPU: by the package's measurements and those of the tuner.

    A call takes as long as its kernels or as the host needs to start them, whichever is longer; `captured` ones have no
    host. Of a `traced` one each gradient is a call by itself.
    """
    if request.with_terms and not _fuses_terms(request.parts[0], gpu):
        return Decision(False, f"a bias is a launch of its own for these sizes on {gpu.name}")
    table = table_of(gpu.name)
    found: list[tuple[Measurement, Part]] = []
    for part in request.parts:
        own = tuned_beside(gpu.name, part.sizes, bare=not request.with_terms)
        measured = nearest(table, own, part.op, part.kinds, part.sizes)
        if measured is None:
            sizes = "x".join(map(str, part.sizes))
            return Decision(False, f"nothing measured near {sizes} {part.kinds[0]} on {gpu.name}")
        found.append((measured, part))
    theirs = sum(scaled_us(measured, part.sizes) for measured, part in found)
    ours = sum(scaled_us(measured, part.sizes) / measured.ratio for measured, part in found)
    texts = "; ".join(measured.text for measured, _ in found)
    host = (0.0, 0.0) if captured else _host_us(request, table, traced)
    if ours < host[1]:
        texts += f"; the host needs {host[0]:.0f} us for torch, {host[1]:.0f} for laneloom"
        theirs, ours = max(theirs, host[0]), host[1]
    return Decision(theirs > LEAST_GAIN * ours, f"{theirs / ours:.3f} x, measured {texts}")


def _host_us(request: Request, table: Table, traced: bool) -> tuple[float, float]:
    """What the host needs for a call and its gradients, torch's and laneloom's."""
    ops = [HOST_OF.get(part.op, part.op) for part in request.parts]
    in_layers = table.host_us.get(ops[0] + (WITH_GRADIENTS if len(ops) > 1 else ALONE))
    if in_layers is not None and not traced:
        return in_layers
    theirs, ours = zip((0.0, 0.0), *(table.host_us.get(op, (0.0, 0.0)) for op in ops), strict=True)
    return sum(theirs), sum(ours)
