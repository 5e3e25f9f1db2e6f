"""The functions of torch that `patched` knows, and what it does with a call of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled
from torch.nn import Parameter

from ..ops.attention.arguments import MOST_SCALE
from ..ops.attention.torch_op import must_be_deterministic
from ..ops.matmul.gemm import gemm
from ..ops.matmul.torch_gemm import gemm_operator
from ..ops.matmul.torch_grouped import grouped_operator
from ..ops.matmul.torch_op import matmul_operator
from ..ops.operators import Operator
from ..ops.warm import PLAIN_TENSORS, Key
from .attention import attend, prepared

if TYPE_CHECKING:
    from .patch import Patched

Decided = tuple[str, str, bool, str]  #: function, problem, routed, reason
Met = tuple[Decided, Callable[..., Any] | None]  #: the decision, and what runs where laneloom takes the call


@dataclass(frozen=True)
class Kept:
    """How calls of a function are found again."""

    #: of positional and named ones: the arguments by which a call is found, None where it is decided anew
    arguments: Callable[[Any, Any], tuple[Any, ...] | None]
    #: of the function too: what decides that torch keeps a call, in half the time; None where more has a say
    brief: Callable[[Any, Any, Any], Key | None]
    #: what is kept of a call, None for nothing
    meet: Callable[[Patched, Any, tuple[Any, ...]], Met | None]


@dataclass(frozen=True)
class Route:
    """What `patched` does with calls of a function."""

    run: Callable[[Patched, Any, Any, Any], Any]
    kept: Kept | None = None  #: None where each is decided anew


def _takes(mode: Patched, function: str, x: Any, y: Any, z: Any, options: tuple[Any, ...]) -> bool:
    if torch.compiler.is_dynamo_compiling():
        from .tracing import takes_traced  # imports the compiler, which takes seconds

        around = torch._C._len_torch_function_stack()
        return takes_traced(function, x, y, z, options, mode.always, mode.captured, around)
    if torch.compiler.is_compiling():  # torch.export runs this code itself
        return mode.decide_traced(function, x, y, z, options)
    return mode.decide(function, x, y, z, options)


def bound(names: tuple[str, ...], args: Any, kwargs: Any) -> tuple[list[Any], str | None]:
    """The arguments in the order of `names`, None for those not given, and why torch keeps the call, if it does."""
    values = [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)]
    if len(args) > len(names):
        return values, "arguments that laneloom does not know"
    for name in kwargs:
        if name not in names:
            return values, f"{name}="
    return values, None


def called(function: str, x: Any, y: Any, z: Any = None) -> tuple[Operator, tuple[Any, ...]]:
    """laneloom's operator for a product of torch's, and its arguments."""
    if function == "linear":
        y = y.mT
    if z is None:
        return matmul_operator, (x, y, None, None, None, None, None)
    return gemm_operator, (x, y, None, z, 1.0, 0.0, None, None, None, None, None, None, None, None)


def route_product(mode: Patched, func: Any, args: Any, kwargs: Any) -> Any:
    function, names = PRODUCTS[func]
    (x, y, *z), refusal = bound(names, args, kwargs)
    if func is torch.Tensor.__rmatmul__:
        x, y = y, x
    if _takes(mode, function, x, y, z[0] if z else None, (refusal, False, False)):
        operator, arguments = called(function, x, y, *z)
        return operator(*arguments)
    return func(*args, **kwargs)


def _route_addmm(mode: Patched, func: Any, args: Any, kwargs: Any) -> Any:
    (z, x, y, beta, alpha), refusal = bound(("input", "mat1", "mat2", "beta", "alpha"), args, kwargs)
    beta, alpha = 1 if beta is None else beta, 1 if alpha is None else alpha
    if refusal is None and not (isinstance(beta, (int, float)) and isinstance(alpha, (int, float))):
        refusal = "beta or alpha that is no number"
    elif refusal is None and not beta and getattr(z, "requires_grad", False) and torch.is_grad_enabled():
        refusal = "beta=0 of an input with gradients"  # which are zeros in torch; gemm does not look at it
    if _takes(mode, "addmm", x, y, z, (refusal, False, False)):
        return gemm(x, y, z, beta=beta, alpha=alpha)
    return func(*args, **kwargs)


def _attention_call(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], str | None]:
    """q, k, v, causal, the scale and whether heads share keys, and why torch keeps the call, if it does."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    (q, k, v, mask, dropout, causal, scale, grouped), refusal = bound(names, args, kwargs)
    if mask is not None:
        refusal = "attn_mask"
    elif dropout:
        refusal = "dropout"
    elif scale is not None and not (isinstance(scale, (int, float)) and abs(scale) <= MOST_SCALE):
        refusal = "a scale that is no number or too large"
    elif scale is not None:
        scale = float(scale)
    # Branches, not bool(): of a symbol, as `q.shape[2] > 1` is to a compiler, they make a constant.
    causal, grouped = True if causal else False, True if grouped else False  # noqa: SIM210
    return (q, k, v, causal, scale, grouped), refusal


def _route_attention(mode: Patched, func: Any, args: Any, kwargs: Any) -> Any:
    (q, k, v, causal, scale, grouped), refusal = _attention_call(args, kwargs)
    if refusal is None and must_be_deterministic() and not mode.always and torch.is_grad_enabled() and any(
        isinstance(t, torch.Tensor) and t.requires_grad for t in (q, k, v)
    ):
        refusal = "gradients by deterministic algorithms, which were not measured"
    if _takes(mode, ATTENTION, q, k, v, (refusal, causal, grouped)):
        return attend(q, k, v, causal, scale)
    return func(*args, **kwargs)


def _meet_product(mode: Patched, func: Any, args: tuple[Any, ...]) -> Met | None:
    function, names = PRODUCTS[func]
    (x, y, *z), refusal = bound(names, args, {})
    if func is torch.Tensor.__rmatmul__ or refusal is not None:
        return None
    decided = mode.decided(function, x, y, z[0] if z else None, (None, False, False))
    if not decided[2]:
        return decided, None
    operator, arguments = called(function, *args)
    run = operator.find(arguments)
    return None if run is None else (decided, lambda *args: run(*called(function, *args)[1]))


def _meet_attention(mode: Patched, func: Any, args: tuple[Any, ...]) -> Met:
    q, k, v, causal, scale, grouped = args
    decided = mode.decided(ATTENTION, q, k, v, (None, causal, grouped))
    if not decided[2]:
        return decided, None
    run = prepared(q, k, v, causal, scale)
    return decided, lambda q, k, v, *_: run(q, k, v)


def _key_of_product(args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    return None if kwargs else args


def _key_of_attention(args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    call, refusal = _attention_call(args, kwargs)
    return None if refusal is not None or must_be_deterministic() else call


def _brief_of_product(func: Any, args: Any, kwargs: Any) -> Key | None:
    """Of a layer's weight: which one it is stands for how it lies."""
    if kwargs or len(args) < 2:
        return None
    x, y = args[0], args[1]
    if type(x) not in PLAIN_TENSORS:
        return None
    terms = len(args), args[-1] is None, is_grad_enabled()
    try:
        if type(y) is Parameter:
            return func, id(y), x.shape, x.requires_grad, y.requires_grad, *terms
        if type(y) is Tensor:
            of_x = x.shape, x.stride(), x.dtype, x.requires_grad, x.get_device()
            return func, *of_x, y.shape, y.stride(), y.dtype, y.requires_grad, *terms
    except RuntimeError:  # a sparse tensor has no strides, a nested one no shape
        pass
    return None


def _brief_of_attention(func: Any, args: Any, kwargs: Any) -> Key | None:
    """How operands lie decides nothing."""
    if len(args) != 3 or kwargs.get("attn_mask") is not None:
        return None
    q, k, v = args
    if not type(q) is type(k) is type(v) is Tensor:
        return None
    try:
        sizes = q.shape, k.shape, v.shape, q.dtype, q.get_device(), *kwargs.items()
    except RuntimeError:
        return None
    return *sizes, is_grad_enabled() and (q.requires_grad, k.requires_grad, v.requires_grad)


def _route_grouped(mode: Patched, func: Any, args: Any, kwargs: Any) -> Any:
    (x, y, ends, bias, out_dtype), refusal = bound(("self", "mat2", "offs", "bias", "out_dtype"), args, kwargs)
    if bias is not None:
        refusal = "a bias"
    elif out_dtype is not None and out_dtype != getattr(x, "dtype", None):
        refusal = "out_dtype="
    if _takes(mode, "grouped_mm", x, y, ends, (refusal, False, False)):
        return grouped_operator(x, y, ends, None, None, None, False)
    return func(*args, **kwargs)


def _scales_of(x: Any, y: Any, scale_a: Any, scale_b: Any) -> str:
    """ "tensor" or "rows": what has a scale, of an A and a B that may have groups; else ""."""
    tensors = (x, y, scale_a, scale_b)
    if not all(isinstance(t, torch.Tensor) and t.dim() for t in tensors[:2]) or not all(
        isinstance(t, torch.Tensor) and t.dtype == torch.float32 for t in tensors[2:]
    ):
        return ""
    if scale_a.numel() == scale_b.numel() == 1:
        return "tensor"
    of_a = tuple(scale_a.shape) in ((x.shape[0],), (x.shape[0], 1))
    columns = (*y.shape[:-2], y.shape[-1])
    return "rows" if of_a and tuple(scale_b.shape) in (columns, (1, *columns)[-2:]) else ""


def _recipe(scales: Any, recipe: Any, swizzle: Any) -> Any:
    """The one tensor of scales that F.scaled_mm hands on, of a whole operand or of its rows; else None."""
    if not all(isinstance(x, (list, tuple)) for x in (scales, recipe, swizzle)):
        return None
    plain = len(scales) == len(recipe) == 1 and recipe[0] in (TENSOR_WISE, ROW_WISE) and not any(swizzle)
    return scales[0] if plain else None


def _scaled(
    mode: Patched, function: str, operands: tuple[Any, Any, Any], scale_a: Any, scale_b: Any, dtype: Any, fast: Any,
    refusal: str | None,
) -> bool:  # fmt: skip
    """Whether laneloom takes a scaled product of two operands and a bias, or ends of groups."""
    x, y, third = operands
    kind = _scales_of(x, y, scale_a, scale_b)
    if refusal is None and not kind:
        refusal = "scales that are neither FP32 nor of tensors or rows"
    elif refusal is None and dtype not in (torch.bfloat16, torch.float16, torch.float32):
        refusal = f"out_dtype {dtype}"
    elif refusal is None and torch.is_grad_enabled() and any(
        isinstance(t, torch.Tensor) and t.requires_grad for t in (x, y, third, scale_a, scale_b)
    ):
        refusal = "gradients"  # of which torch has none either
    return _takes(mode, function, x, y, third, (refusal, kind, bool(fast)))


def _route_scaled(mode: Patched, func: Any, args: Any, kwargs: Any, *, recipes: bool = False) -> Any:
    if recipes:
        (x, y, bias, scale_a, scale_b, dtype, fast), refusal = _by_recipe(args, kwargs, "bias")
    else:
        names = ("self", "mat2", "scale_a", "scale_b", "bias", "scale_result", "out_dtype", "use_fast_accum")
        (x, y, scale_a, scale_b, bias, result, dtype, fast), refusal = bound(names, args, kwargs)
        refusal = "scale_result" if result is not None else refusal
    if _scaled(mode, "scaled_mm", (x, y, bias), scale_a, scale_b, dtype, fast, refusal):
        if scale_a.dim() > 1:
            scale_a, scale_b = scale_a.reshape(-1), scale_b.reshape(-1)
        precision = None if fast else "promoted"
        terms = (None, bias, 1.0, 0.0, None, dtype, None, scale_a, scale_b, precision, None, None)
        return gemm_operator(x, y, *terms)
    return func(*args, **kwargs)


def _by_recipe(args: Any, kwargs: Any, third: str) -> tuple[list[Any], str | None]:
    """A, B, `third`, both scales, the dtype and whether sums are fast, of a call that names recipes of scales."""
    names = (
        "self", "mat2", "scale_a", "recipe_a", "swizzle_a", "scale_b", "recipe_b", "swizzle_b",
        *(("offs",) if third == "offs" else ()), "bias", "out_dtype", "contraction_dim", "use_fast_accum",
    )  # fmt: skip
    values, refusal = bound(names, args, kwargs)
    of = dict(zip(names, values, strict=True))
    scales = [_recipe(of[f"scale_{x}"], of[f"recipe_{x}"], of[f"swizzle_{x}"]) for x in "ab"]
    if of["contraction_dim"]:
        refusal = "contraction_dim"
    elif third == "offs" and of["bias"] is not None:
        refusal = "a bias"
    return [of["self"], of["mat2"], of[third], *scales, of["out_dtype"], of["use_fast_accum"]], refusal


def _route_scaled_groups(mode: Patched, func: Any, args: Any, kwargs: Any, *, recipes: bool = False) -> Any:
    if recipes:
        (x, y, ends, scale_a, scale_b, dtype, fast), refusal = _by_recipe(args, kwargs, "offs")
    else:
        names = ("self", "mat2", "scale_a", "scale_b", "offs", "bias", "scale_result", "out_dtype", "use_fast_accum")
        (x, y, scale_a, scale_b, ends, bias, result, dtype, fast), refusal = bound(names, args, kwargs)
        refusal = "a bias" if bias is not None else "scale_result" if result is not None else refusal
    if _scaled(mode, "scaled_grouped_mm", (x, y, ends), scale_a, scale_b, dtype, fast, refusal):
        scales = scale_a.reshape(-1), scale_b.reshape(y.shape[0], -1)
        return grouped_operator(x, y, ends, dtype, *scales, False, None if fast else "promoted")
    return func(*args, **kwargs)


ATTENTION = "scaled_dot_product_attention"
TENSOR_WISE, ROW_WISE = 0, 1  #: of torch's ScalingType
PRODUCTS: dict[Any, tuple[str, tuple[str, ...]]] = {
    torch.matmul: ("matmul", ("input", "other")),
    torch.Tensor.matmul: ("matmul", ("self", "other")),
    torch.Tensor.__matmul__: ("matmul", ("self", "other")),
    torch.Tensor.__rmatmul__: ("matmul", ("self", "other")),
    torch.mm: ("mm", ("input", "mat2")),
    torch.Tensor.mm: ("mm", ("self", "mat2")),
    torch.bmm: ("bmm", ("input", "mat2")),
    torch.Tensor.bmm: ("bmm", ("self", "mat2")),
    F.linear: ("linear", ("input", "weight", "bias")),
}
_PRODUCT = Route(route_product, Kept(_key_of_product, _brief_of_product, _meet_product))
ROUTES: dict[Any, Route] = {
    **dict.fromkeys(PRODUCTS, _PRODUCT),
    torch.addmm: Route(_route_addmm),
    torch.Tensor.addmm: Route(_route_addmm),
    F.scaled_dot_product_attention: Route(
        _route_attention, Kept(_key_of_attention, _brief_of_attention, _meet_attention)
    ),
    torch._grouped_mm: Route(_route_grouped),  # pyright: ignore[reportPrivateImportUsage]; what F.grouped_mm calls
    torch._scaled_mm: Route(_route_scaled),  # pyright: ignore[reportPrivateImportUsage]
    torch._scaled_grouped_mm: Route(_route_scaled_groups),  # pyright: ignore[reportPrivateImportUsage]
}
#: what F.scaled_mm and F.scaled_grouped_mm call; torch 2.9 has neither
for _name, _route in (("_scaled_mm_v2", _route_scaled), ("_scaled_grouped_mm_v2", _route_scaled_groups)):
    if hasattr(torch, _name):
        ROUTES[getattr(torch, _name)] = Route(partial(_route, recipes=True))


def _is_not_overridden(*args: Any) -> bool:
    return False


def _body_of(function: Any) -> Any:
    """The body of a function of torch's, which does not ask modes again whether they want the whole of it."""
    asked = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), _is_not_overridden)
    body = FunctionType(
        function.__code__,
        {**function.__globals__, **asked},
        function.__name__,
        function.__defaults__,
    )
    body.__kwdefaults__ = function.__kwdefaults__
    return body


MULTI_HEAD_BODY = _body_of(F.multi_head_attention_forward)
#: torch shows none of its modes what runs inside of a function that it has shown them
GRADIENTS = {
    function: _body_of(function) for function in (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
}
#: functions that are called otherwise, of which no product is made
OTHERS = dict.fromkeys((F.multi_head_attention_forward, *GRADIENTS))
