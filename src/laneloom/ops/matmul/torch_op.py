"""torch.ops.laneloom.matmul: the product as an opaque operator of PyTorch, with a fake implementation and gradients.

The pattern of every operator here. Three functions: one that runs, one that gives the result's shape to tracing, one
that differentiates by calling the operator again, which is what makes second derivatives work. Shapes are adapted in
ordinary differentiable views around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from ...device.prepared import prepared_on
from ...errors import ArgumentError, UnsupportedError
from ..operators import Composed, aligned, check_strided, complete, mark_written, refuse_out
from ..scalars import shown
from ..target import active_gpu, expected_device_type, gpu_for_tensor
from ..warm import WarmCalls, maker_of
from . import execute
from .config import MatmulConfig, NamedPlan, plan
from .dtypes import IEEE, Arithmetic, check_arithmetic, check_pair, default_output
from .presets import named_config
from .saved import check_differentiable, layout_of, save_operands

_NAMES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.int8: "int8",
    torch.uint8: "uint8", torch.int32: "int32", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "bf8",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
#: what a product is stored as if nobody says and it is not a's dtype
_DEFAULT_OUTPUTS = {
    torch.float8_e4m3fn: torch.float32, torch.float8_e5m2: torch.float32, torch.int8: torch.int32,
    torch.uint8: torch.int32,
}  # fmt: skip


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """The project's word for a dtype; raises UnsupportedError, naming the argument, for one that it has none for."""
    if dtype not in _NAMES:
        known = [x for x in _NAMES if x is not torch.int32 or name not in ("a", "b")]  # int32 is a result's
        words = ", ".join(str(x).removeprefix("torch.") for x in known)
        raise UnsupportedError(f"{name}: expected dtype {words}, got {dtype}")
    return _NAMES[dtype]


def known_name(dtype: torch.dtype) -> str:
    """The project's word for a dtype, or torch's."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def operand_dtypes(a: torch.Tensor, b: torch.Tensor, packed: Sequence[str] | None) -> tuple[str, str]:
    """The dtypes of two operands that go together. Raises ArgumentError, UnsupportedError."""
    name_a, name_b = packed or (dtype_name("a", a.dtype), dtype_name("b", b.dtype))
    check_pair(name_a, name_b)
    return name_a, name_b


def accumulator_name(acc_dtype: Any) -> str | None:
    """The project's word for `acc_dtype`, which is such a word, torch's dtype or None. Raises ArgumentError."""
    if acc_dtype is None or isinstance(acc_dtype, str):
        return acc_dtype
    if not isinstance(acc_dtype, torch.dtype):
        raise ArgumentError(f"acc_dtype: expected a torch dtype, got {shown(acc_dtype)}")
    return dtype_name("acc_dtype", acc_dtype)


def arithmetic_words(precision: Any, acc_dtype: Any) -> tuple[str | None, str | None]:
    """`precision` and `acc_dtype` as the operators take them. Raises ArgumentError for what is no word at all."""
    if precision is not None and not isinstance(precision, str):
        check_arithmetic("fp32", precision, None)
    return precision, accumulator_name(acc_dtype)


def arithmetic_of(dtype_a: str, precision: str | None, acc_dtype: Any) -> Arithmetic:
    """The checked `precision` and `acc_dtype` of a call. Raises ArgumentError."""
    return check_arithmetic(dtype_a, precision, accumulator_name(acc_dtype))


def output_dtype(dtype_a: str, asked: torch.dtype | None, has_terms: bool = False) -> torch.dtype:
    """torch's dtype of the result: the asked one, or the default. Raises ArgumentError for what is no dtype."""
    if asked is not None and not isinstance(asked, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {shown(asked)}")
    return asked or _DTYPES[default_output(dtype_a, has_terms)]


def matmul_tensors(
    a: Any,
    b: Any,
    out: Any,
    out_dtype: torch.dtype | None,
    config: MatmulConfig | NamedPlan | None,
    precision: str | None,
    acc_dtype: Any,
    packed: tuple[str, str] | None,
) -> torch.Tensor:
    """`laneloom.matmul` on torch tensors."""
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {shown(out_dtype)}")
    tensor = torch.Tensor
    if not (isinstance(a, tensor) and isinstance(b, tensor) and (out is None or isinstance(out, tensor))):
        if not isinstance(a, tensor) and type(a) is type(b):
            raise ArgumentError(f"out: expected {type(a).__name__}, as a and b are, got {type(out).__name__}")
        operands = {"a": a, "b": b, "out": out}
        name = next(name for name, x in operands.items() if not isinstance(x, tensor))
        raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {type(operands[name]).__name__}")
    how = (None if config is None else config.text, *arithmetic_words(precision, acc_dtype), packed)
    extra: tuple[int, ...] = ()
    if a.ndim < 2 or b.ndim < 2:
        a, b, extra = execute.as_matrices(a, b)
    if out is None:
        result = matmul_operator(a, b, out_dtype, *how)
        for axis in extra:
            result = result.squeeze(axis)
        return result
    if out.is_nested:
        check_strided("out", out)
    target = out
    for axis in reversed(extra):
        target = target.unsqueeze(axis)
    if out.device != a.device:
        raise ArgumentError(f"out: expected a tensor on {a.device}, as a is, got one on {out.device}")
    usual = target.shape == (*a.shape[:-1], b.shape[-1])
    if not usual or out.dtype != (out_dtype or _DEFAULT_OUTPUTS.get(a.dtype, a.dtype)):
        wanted = output_dtype(operand_dtypes(a, b, packed)[0], out_dtype)
        shape = execute.batched_shape(a.shape, b.shape)
        if tuple(target.shape) != tuple(shape) or out.dtype != wanted:
            visible = [n for axis, n in enumerate(shape) if axis - len(shape) not in extra]
            raise ArgumentError(f"out: expected shape {visible} and {wanted}, got {list(out.shape)} and {out.dtype}")
    matmul_out_operator(a, b, target, *how)
    return out


def check(a: torch.Tensor, b: torch.Tensor, packed: Sequence[str] | None) -> tuple[str, str]:
    """The operands' dtypes. Raises for those that no product takes: not strided, on two devices, of dtypes that do not
    go together.
    """
    for name, operand in (("a", a), ("b", b)):
        check_strided(name, operand)
    if a.device != b.device:
        raise ArgumentError(f"b: expected a tensor on {a.device}, as a is, got one on {b.device}")
    return operand_dtypes(a, b, packed)


def check_aligned(**operands: torch.Tensor | None) -> None:
    """Raise ArgumentError for tensors, by their names, whose elements lie between addresses."""
    for name, x in operands.items():
        if x is not None and x.data_ptr() % x.itemsize:  # torch.from_numpy takes such arrays
            raise ArgumentError(f"{name}: expected elements at multiples of {x.itemsize} bytes, got {x.data_ptr():#x}")


def of_batch(shape: Sequence[int], *operands: torch.Tensor) -> list[torch.Tensor]:
    """Views with the batch axes of a result of `shape`."""
    return [x.expand(*shape[:-2], *x.shape[-2:]) for x in operands]


def run(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    config: str | None,
    names: tuple[str, str],
    terms: execute.Terms = execute.NO_TERMS,
    arithmetic: Arithmetic = IEEE,
) -> None:
    """Write the product and its terms into out, which is distinct from a and b; `names` are a's and b's dtypes."""
    dtypes = (*names, dtype_name("out_dtype", out.dtype))
    gpu = gpu_for_tensor("a", a)
    check_aligned(a=a, b=b, out=out, c=terms.addend, bias=terms.bias)
    a, b = of_batch(out.shape, a, b)
    execute.multiply_into(a, b, out, dtypes, gpu, named_config(config), terms, arithmetic)


def prepare_product(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: str | None, names: tuple[str, str],
    arithmetic: Arithmetic,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:  # fmt: skip
    """What writes products into out, which is distinct from a and b, for tensors that lie as these do."""
    gpu = active_gpu()
    plain = config is None and out.is_contiguous() and 0 not in (*out.shape, a.shape[-1])
    if plain and gpu.matrix_instructions == "wgmma" and a.device.type == expected_device_type():
        dtypes = (*names, dtype_name("out_dtype", out.dtype))
        x, y = of_batch(out.shape, a, b)
        problem = execute.problem_of(x, y, out, dtypes, arithmetic=arithmetic)
        if problem is not None:  # a schedule goes by the problem's strides: operands need not be expanded for it
            chosen = plan(problem, gpu)
            return prepared_on(execute.schedule_of(chosen).prepare, problem, chosen, gpu, out.device)
    return lambda a, b, out: run(a, b, out, config, names, arithmetic=arithmetic)


def _prepare(a, b, out_dtype, config, precision, acc_dtype, packed) -> Callable[..., torch.Tensor]:
    """What makes the product of tensors that lie as these do."""
    first = _matmul_fake(a, b, out_dtype, config, precision, acc_dtype, packed)
    names = operand_dtypes(a, b, packed)
    make = maker_of(first)
    launch = prepare_product(a, b, first, config, names, arithmetic_of(names[0], precision, acc_dtype))

    def run_prepared(a: torch.Tensor, b: torch.Tensor, *_: Any) -> torch.Tensor:
        out = make()
        launch(a, b, out)
        return out

    return run_prepared


_warm = WarmCalls(_prepare)


def _matmul(a, b, out_dtype=None, config=None, precision=None, acc_dtype=None, packed=None):
    return _warm(a, b, out_dtype, config, precision, acc_dtype, packed)


def _matmul_fake(a, b, out_dtype=None, config=None, precision=None, acc_dtype=None, packed=None):
    names = check(a, b, packed)
    check_arithmetic(names[0], precision, acc_dtype)
    shape = execute.batched_shape(a.shape, b.shape, torch.broadcast_shapes)
    return a.new_empty(shape, dtype=output_dtype(names[0], out_dtype))


def _remember(ctx, inputs, output) -> None:
    ctx.how = (*save_operands(ctx, *inputs[:2]), *inputs[4:6])


def _make_gradients(
    prepared, grad, a, b, wanted_a, wanted_b, dtype, shape, turned, *how
) -> Callable[..., tuple[Any, Any]]:  # fmt: skip
    """What gives dA = dC B^T and dB = A^T dC, summed over the axes along which the operand was broadcast. shape,
    turned: where one operand has a gradient, its `layout_of`, as it is not there."""
    check_differentiable(dtype)
    cast = None if grad.dtype == dtype else dtype
    like = grad if cast is None or not prepared else grad.to(cast)
    lies_a, lies_b = ((shape, turned) if x is None else layout_of(x) for x in (a, b))
    step_a = gradient_step(prepared, like, b.mT, lies_a, how=how) if wanted_a else None
    step_b = gradient_step(prepared, a.mT, like, lies_b, how=how) if wanted_b else None

    def run(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *_: Any) -> tuple[Any, Any]:
        grad = grad if cast is None else grad.to(cast)
        return None if step_a is None else step_a(grad, b.mT), None if step_b is None else step_b(a.mT, grad)

    return run


_differentiate = Composed(_make_gradients)


def _gradients(ctx, grad):
    a, b = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return *_differentiate(grad, a, b, wanted[0], wanted[1], *ctx.how), None, None, None, None, None


def summed_product(
    x: torch.Tensor, y: torch.Tensor, shape: torch.Size, alpha: float = 1.0, how: Sequence[str | None] = (None, None)
) -> torch.Tensor:
    """alpha x @ y summed to `shape`, the sum in FP32, or FP64 if x is; `how`: precision, acc_dtype."""

    def product(x: torch.Tensor, y: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        if alpha == 1:
            return matmul_operator(x, y, out_dtype, None, *how, None)
        from .torch_gemm import gemm_operator

        return gemm_operator(x, y, None, None, alpha, 0.0, None, out_dtype, None, None, None, *how, None)

    if x.dim() == y.dim() == len(shape) == 2:  # torch.broadcast_shapes takes microseconds
        return product(x, y)
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if batch == shape[:-2]:
        return product(x, y)
    if shape[:-2].numel() == 1:
        return product(*_joined(x, y, batch)).reshape(shape)
    return product(x, y, torch.promote_types(x.dtype, torch.float32)).sum_to_size(shape).to(x.dtype)


def _joined(x: torch.Tensor, y: torch.Tensor, batch: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices whose product is the sum of a batch of them: over a longer K."""
    k = prod(batch) * x.shape[-1]
    # Not flatten: gradients of several at once (is_grads_batched) know no rule for it.
    x = x.expand(*batch, *x.shape[-2:]).movedim(-2, 0).reshape(x.shape[-2], k)
    return x, y.expand(*batch, *y.shape[-2:]).reshape(k, y.shape[-1])


def summing_step(
    prepared: bool, x: torch.Tensor, y: torch.Tensor, shape: torch.Size, alpha: float = 1.0,
    how: Sequence[str | None] = (None, None),
) -> Callable[..., torch.Tensor]:  # fmt: skip
    """What gives `summed_product` of x, y and alpha as a step of a formula: of operands that lie as these do, of any
    alpha that is 0 or 1 where this is."""
    if not prepared:
        return lambda x, y, alpha=1.0: summed_product(x, y, shape, alpha, how)
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if batch == shape[:-2]:
        return _product_step(x, y, alpha, how)
    if shape[:-2].numel() == 1:
        joined = _joined(x, y, batch)
        if all(part.data_ptr() == whole.data_ptr() for part, whole in zip(joined, (x, y), strict=True)):  # views
            (of_x, of_y), step = ((z.shape, z.stride()) for z in joined), _product_step(*joined, alpha, how)
            return lambda x, y, alpha=1.0: step(x.as_strided(*of_x), y.as_strided(*of_y), alpha).view(shape)
    return lambda x, y, alpha=1.0: summed_product(x, y, shape, alpha, how)


def _product_step(
    x: torch.Tensor, y: torch.Tensor, alpha: float, how: Sequence[str | None]
) -> Callable[..., torch.Tensor]:
    if alpha == 1:
        return matmul_operator.prepared(x, y, None, None, *how, None)
    from .torch_gemm import gemm_operator

    run = gemm_operator.prepared(x, y, None, None, alpha, 0.0, None, None, None, None, None, *how, None)
    return lambda x, y, alpha: run(x, y, None, None, alpha, 0.0, None, None, None, None, None)


def gradient_step(
    prepared: bool, x: torch.Tensor, y: torch.Tensor, operand: tuple[torch.Size, bool], alpha: float = 1.0,
    how: Sequence[str | None] = (None, None),
) -> Callable[..., torch.Tensor]:  # fmt: skip
    """`summing_step` of the gradient of an operand, of which `layout_of` is given; it lies as the operand does: one
    that lies otherwise autograd copies into the parameter's."""
    shape, turned = operand
    if not turned:
        return summing_step(prepared, x, y, shape, alpha, how)
    step = summing_step(prepared, y.mT, x.mT, torch.Size((*shape[:-2], shape[-1], shape[-2])), alpha, how)
    return lambda x, y, alpha=1.0: step(y.mT, x.mT, alpha).mT


def _batched(call, info, in_dims, a, b, *how):
    return call(*aligned(in_dims, a, b), *how), 0


def _cast(args: Sequence[Any]) -> tuple[int, ...]:
    """Under autocast the operands become its dtype, unless `precision` says how to multiply fp32."""
    return () if len(args) > 4 and args[4] is not None else (0, 1)


def _prepare_out(a, b, out, config, precision, acc_dtype, packed) -> Callable[..., None]:
    """What writes products into out for tensors that lie as these do, apart from how out lies to a and b."""
    names = check(a, b, packed)
    arithmetic = arithmetic_of(names[0], precision, acc_dtype)
    execute.check_distinct(out)
    launch = prepare_product(a, b, out, config, names, arithmetic)
    reach_a, reach_b, reach = (execute.reach_bytes(x) for x in (a, b, out))

    def run_prepared(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *_: Any) -> None:
        first, first_a, first_b = out.data_ptr(), a.data_ptr(), b.data_ptr()
        last = first + reach
        if (first_a < last and first < first_a + reach_a) or (first_b < last and first < first_b + reach_b):
            result = torch.empty_like(out, memory_format=torch.contiguous_format)
            run(a, b, result, config, names, arithmetic=arithmetic)
            out.copy_(result)
        else:
            launch(a, b, out)
            mark_written(out)

    return run_prepared


_warm_out = WarmCalls(_prepare_out)


def _matmul_out(a, b, out, config=None, precision=None, acc_dtype=None, packed=None):
    _warm_out(a, b, out, config, precision, acc_dtype, packed)


def _matmul_out_fake(a, b, out, config=None, precision=None, acc_dtype=None, packed=None):
    check(a, b, packed)


_HOW = "str? config=None, str? precision=None, str? acc_dtype=None, str[]? packed=None"
_OPERATOR: Any = torch.library.custom_op(
    "laneloom::matmul",
    _matmul,
    mutates_args=(),
    schema=f"(Tensor a, Tensor b, ScalarType? out_dtype=None, {_HOW}) -> Tensor",
)
_OPERATOR.register_fake(_matmul_fake)
matmul_operator = complete(
    _OPERATOR, batched=_batched, remember=_remember, gradients=_gradients, cast=_cast, warm=_warm
)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::matmul_out",
    _matmul_out,
    mutates_args=("out",),
    schema=f"(Tensor a, Tensor b, Tensor(a!) out, {_HOW}) -> ()",
)
_OUT_OPERATOR.register_fake(_matmul_out_fake)
matmul_out_operator = complete(_OUT_OPERATOR, batched=refuse_out, warm=_warm_out)
