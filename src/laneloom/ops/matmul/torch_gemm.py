"""torch.ops.laneloom.gemm: activation(alpha scale_a (A B) scale_b + beta C + bias) as an operator of PyTorch, with
gradients.

The backward pass is made of this operator and of laneloom::matmul, so that second derivatives work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...device.prepared import prepared_on
from ...errors import ArgumentError, UnsupportedError
from ..operators import Composed, aligned, complete, mark_written, one_by_one, refuse_out, to_front
from ..scalars import shown
from ..target import active_gpu
from ..warm import Key, WarmCalls, key_of, maker_of
from . import execute
from .config import MatmulConfig, NamedPlan, plan
from .dtypes import ACCUMULATORS, Arithmetic
from .gemm import OPERANDS, check_block_dtypes, check_shapes, check_term, have_blocks, needs_copy
from .saved import check_differentiable, layout_of, save_operands
from .torch_op import (
    arithmetic_of,
    arithmetic_words,
    check,
    dtype_name,
    gradient_step,
    known_name,
    of_batch,
    output_dtype,
    prepare_product,
    run,
)


def gemm_tensors(
    operands: tuple[Any, ...],
    alpha: float,
    beta: float,
    activation: str | None,
    out_dtype: torch.dtype | None,
    config: MatmulConfig | NamedPlan | None,
    how: tuple[str | None, Any, tuple[str, str] | None],
) -> torch.Tensor:
    """`laneloom.gemm` on torch tensors, in the order of OPERANDS; how: precision, acc_dtype, the dtypes of packed
    operands."""
    for name, operand in zip(OPERANDS, operands, strict=True):
        if not isinstance(operand, torch.Tensor) and (operand is not None or name in ("a", "b")):
            raise ArgumentError(f"{name}: expected a torch tensor as the others are, got {type(operand).__name__}")
    a, b, c, bias, out, scale_a, scale_b = operands
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise ArgumentError(f"out_dtype: expected a torch dtype, got {shown(out_dtype)}")
    if scale_a is not None or scale_b is not None:
        for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
            if scale is not None and scale.requires_grad and torch.is_grad_enabled():
                raise UnsupportedError(f"{name}: expected a scale without gradients; use .detach()")
    precision, acc_dtype, packed = how
    text = None if config is None else config.text
    terms = (None if beta == 0 else c, bias, alpha, beta, activation)
    rest = (scale_a, scale_b, *arithmetic_words(precision, acc_dtype), packed)
    if out is None:
        return gemm_operator(a, b, *terms, out_dtype, text, *rest)
    if out.dtype != (out_dtype or out.dtype):
        raise ArgumentError(f"out: expected dtype {out_dtype}, got {out.dtype}")
    gemm_out_operator(a, b, out, *terms, text, *rest)
    return out


def _check(
    a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed, out=None
) -> tuple[tuple[int, ...], tuple[str, str], Arithmetic]:  # fmt: skip
    """The result's shape, the operands' dtypes, and how they are multiplied."""
    names = check(a, b, packed)
    terms = {"c": c, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    for name, term in (*terms.items(), ("out", out)):
        if term is not None and term.device != a.device:
            raise ArgumentError(f"{name}: expected a tensor on {a.device}, as a is, got one on {term.device}")
    for name, term in terms.items():
        if term is not None:
            check_term(name, known_name(term.dtype), names[0])
    shapes = [None if x is None else tuple(x.shape) for x in (a, b, c, bias, out, scale_a, scale_b)]
    shape = check_shapes(*shapes, broadcast=torch.broadcast_shapes)
    if have_blocks(scale_a, scale_b, shape):
        check_block_dtypes(names[0])
    return shape, names, arithmetic_of(names[0], precision, acc_dtype)


def _output_dtype(dtype_a: str, asked: torch.dtype | None, alpha: float, activation: str | None, *terms) -> torch.dtype:
    has_terms = alpha != 1 or activation is not None or any(x is not None for x in terms)
    return output_dtype(dtype_a, asked, has_terms)


def _scales_as_taken(scales, shape) -> list[Any]:
    """Both as `execute.Terms` takes them, for a result of `shape`."""
    scale_a, scale_b = scales
    if have_blocks(scale_a, scale_b, shape):
        return of_batch(shape, *scales)
    return [None if x is None else x.reshape(-1).contiguous() for x in scales]


def _run(a, b, c, bias, out, alpha, beta, activation, config, scales, names, arithmetic) -> None:
    addend = None if c is None or beta == 0 else c.expand(out.shape)
    scales = _scales_as_taken(scales, out.shape)
    copies = needs_copy(out, addend, a, b, bias, *scales)
    result = torch.empty_like(out, memory_format=torch.contiguous_format) if copies else out
    terms = execute.Terms(
        alpha,
        beta,
        addend,
        "" if addend is None else dtype_name("c", addend.dtype),
        bias,
        "" if bias is None else dtype_name("bias", bias.dtype),
        "n",
        activation,
        *scales,
    )
    run(a, b, result, config, names, terms, arithmetic)
    if copies:
        out.copy_(result)


def _prepare(
    a, b, c, bias, alpha, beta, activation, out_dtype, config, scale_a, scale_b, precision, acc_dtype, packed
) -> Callable[..., torch.Tensor]:
    """What makes results of operands that lie as these do, of any alpha and beta that are 0 or 1 where these are."""
    shape, names, arithmetic = _check(a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed)
    dtype = _output_dtype(names[0], out_dtype, alpha, activation, c, bias, scale_a, scale_b)
    if beta == 0:
        c = None
    dtypes = (*names, dtype_name("out_dtype", dtype))
    gpu = active_gpu()
    empty = a.new_empty(shape, dtype=dtype)
    make = maker_of(empty)

    def run_unprepared(a, b, c, bias, alpha, beta, *others) -> torch.Tensor:
        out = make()
        _run(a, b, c, bias, out, alpha, beta, activation, config, others[3:5], names, arithmetic)
        return out

    plain = config is None and alpha != 0 and 0 not in (*a.shape, *b.shape)
    of_blocks = have_blocks(scale_a, scale_b, shape)
    if not plain or gpu.matrix_instructions != "wgmma" or not all(
        x is None or of_blocks or x.is_contiguous() for x in (scale_a, scale_b)
    ):
        return run_unprepared
    names_terms = ["" if x is None else dtype_name("c", x.dtype) for x in (c, bias)]

    def terms_of(c, bias, alpha, beta, scale_a, scale_b) -> execute.Terms:
        return execute.Terms(
            alpha, beta, None if c is None else c.expand(shape), names_terms[0], bias, names_terms[1], "n", activation,
            *(x if x is None or of_blocks else x.reshape(-1) for x in (scale_a, scale_b)),
        )  # fmt: skip

    first = terms_of(c, bias, alpha, beta, scale_a, scale_b)
    x, y = of_batch(shape, a, b)
    problem = execute.problem_of(x, y, empty, dtypes, first, arithmetic)
    if problem is None:  # a batch of three strides
        return run_unprepared
    if problem.epilogue is None or execute.fuses_epilogue(problem, gpu, None):
        chosen = plan(problem, gpu)
        launch = prepared_on(execute.schedule_of(chosen).prepare, problem, chosen, gpu, a.device)
        has_alpha, has_addend = alpha != 1, c is not None

        def run_fused(a, b, c, bias, alpha, beta, _activation, _out, _config, scale_a, scale_b, *_) -> torch.Tensor:
            out = make()
            if problem.epilogue is None and problem.scales is None:
                launch(a, b, out)
            else:
                terms = (c, beta) if has_addend else (None, None)
                launch(a, b, out, terms[0], bias, alpha if has_alpha else None, terms[1], scale_a, scale_b)
            return out

        return run_fused
    if of_blocks:
        return run_unprepared
    kind = ACCUMULATORS[problem.dtype_a][0]
    sums_dtype = {"fp32": torch.float32, "fp64": torch.float64, "int32": torch.int32}[kind]
    empty_sums = a.new_empty(shape, dtype=sums_dtype)
    make_sums = maker_of(empty_sums)
    multiply = prepare_product(a, b, empty_sums, None, names, arithmetic)

    def run_with_terms(a, b, c, bias, alpha, beta, _activation, _out, _config, scale_a, scale_b, *_) -> torch.Tensor:
        out, sums = make(), make_sums()
        multiply(a, b, sums)
        terms = terms_of(c if beta != 0 else None, bias, alpha, beta, scale_a, scale_b)
        execute.apply_terms(sums, out, dtypes[2], terms, kind)
        return out

    return run_with_terms


def _key_of(args: Sequence[Any]) -> Key | None:
    """Of alpha and beta only what they are compared with: they come with each launch."""
    a, b, c, bias, alpha, beta, *rest = args
    return key_of((a, b, c, bias, alpha == 0, alpha == 1, beta == 0, *rest))


_warm = WarmCalls(_prepare, _key_of)


def _gemm(
    a, b, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, out_dtype=None, config=None, scale_a=None,
    scale_b=None, precision=None, acc_dtype=None, packed=None,
):  # fmt: skip
    return _warm(
        a, b, c, bias, alpha, beta, activation, out_dtype, config, scale_a, scale_b, precision, acc_dtype, packed
    )


def _gemm_fake(
    a, b, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, out_dtype=None, config=None, scale_a=None,
    scale_b=None, precision=None, acc_dtype=None, packed=None,
):  # fmt: skip
    shape, names, _ = _check(a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed)
    dtype = _output_dtype(names[0], out_dtype, alpha, activation, c, bias, scale_a, scale_b)
    return a.new_empty(shape, dtype=dtype)


def _gemm_out(
    a, b, out, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, config=None, scale_a=None, scale_b=None,
    precision=None, acc_dtype=None, packed=None,
):  # fmt: skip
    _, names, arithmetic = _check(a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed, out)
    execute.check_distinct(out)
    with torch.cuda.device(a.device if a.device.type == "cuda" else -1):
        _run(a, b, c, bias, out, alpha, beta, activation, config, (scale_a, scale_b), names, arithmetic)
    mark_written(out)


def _gemm_out_fake(
    a, b, out, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, config=None, scale_a=None, scale_b=None,
    precision=None, acc_dtype=None, packed=None,
):  # fmt: skip
    _check(a, b, c, bias, scale_a, scale_b, precision, acc_dtype, packed, out)


def _remember(ctx, inputs, output) -> None:
    a, b, c, bias, alpha, beta, activation, _, config, scale_a, scale_b, precision, acc_dtype, _ = inputs
    wanted = ctx.needs_input_grad
    shape_c, dtype_c = (c.shape, c.dtype) if c is not None and wanted[2] else (None, None)
    dtype_bias = bias.dtype if bias is not None and wanted[3] else None
    options = alpha, beta, activation, config, precision, acc_dtype, shape_c, dtype_c, dtype_bias
    if activation is None or activation == "relu":
        lies = save_operands(ctx, a, b, None, None, scale_a, scale_b, output if activation else None)
    else:  # whose slope is that of the sum before it, which is computed again
        ctx.save_for_backward(a, b, c, bias, scale_a, scale_b, None)
        lies = a.dtype, None, False
    ctx.options = options + lies


def _times_slope(grad: torch.Tensor, z: torch.Tensor, activation: str | None) -> torch.Tensor:
    """grad times the derivative of gelu or silu at z, in z's dtype, which is no narrower. (Into a 16-bit result torch
    would compute it of z rounded to 16 bits.)"""
    if not torch.is_grad_enabled():
        slope = torch.ops.aten.gelu_backward if activation == "gelu" else torch.ops.aten.silu_backward
        return slope.default(grad, z)
    grad = grad.to(z.dtype)
    if activation == "gelu":
        return torch.ops.aten.gelu_backward(grad, z)
    part = torch.sigmoid(z)  # silu_backward has no derivative
    return grad * part * (1 + z * (1 - part))


def _make_gradients(
    prepared, grad, a, b, c, bias, scale_a, scale_b, output, alpha, beta, activation, config, precision, acc_dtype,
    shape_c, dtype_c, dtype_bias, dtype, shape, turned, *wanted,
) -> Callable[..., tuple[Any, ...]]:  # fmt: skip
    """With G = grad * activation'(z), S = scale_a G scale_b: what gives dA = alpha S B^T, dB = alpha A^T S,
    dC = beta G, dbias = sum of G's rows, those that are wanted.

    S enters the products rounded to a's dtype, and the sums in FP32, or FP64 for operands in that. shape_c, dtype_c,
    dtype_bias: of those that have gradients. shape, turned: as for `matmul`.
    """
    needs_s = wanted[0] or wanted[1]
    if needs_s:
        check_differentiable(dtype)
    how = precision, acc_dtype
    wide = torch.float32 if dtype.itemsize == 1 else torch.promote_types(dtype, torch.float32)
    repeats = activation is not None and output is None
    again = gemm_operator
    if prepared and repeats:
        again = gemm_operator.prepared(a, b, c, bias, alpha, beta, None, wide, config, scale_a, scale_b, *how, None)

    def g_and_s(grad, a, b, c, bias, scale_a, scale_b, output, alpha, beta) -> tuple[torch.Tensor, torch.Tensor]:
        if output is not None:
            grad = torch.where(output <= 0, 0.0, grad)  # of NaN, as in torch, the gradient goes on
        elif repeats:
            z = again(a, b, c, bias, alpha, beta, None, wide, config, scale_a, scale_b, *how, None)
            grad = _times_slope(grad, z, activation)
        if not needs_s:
            return grad, grad
        scaled = grad if scale_a is None else grad.to(wide) * scale_a.reshape(-1, 1)
        scaled = scaled if scale_b is None else scaled * scale_b.reshape(1, -1)
        return grad, scaled if scaled.dtype == dtype else scaled.to(dtype)

    s = g_and_s(grad, a, b, c, bias, scale_a, scale_b, output, alpha, beta)[1] if prepared and needs_s else grad
    lies_a, lies_b = ((shape, turned) if x is None else layout_of(x) for x in (a, b))
    step_a = gradient_step(prepared, s, b.mT, lies_a, alpha, how) if wanted[0] else None
    step_b = gradient_step(prepared, a.mT, s, lies_b, alpha, how) if wanted[1] else None

    def run(grad, a, b, c, bias, scale_a, scale_b, output, alpha, beta, *_) -> tuple[Any, ...]:
        g, s = g_and_s(grad, a, b, c, bias, scale_a, scale_b, output, alpha, beta)
        grad_a = None if step_a is None else step_a(s, b.mT, alpha)
        grad_b = None if step_b is None else step_b(a.mT, s, alpha)
        grad_c = grad_bias = None
        if dtype_c is not None:
            grad_c = (beta * g.to(wide)).sum_to_size(shape_c).to(dtype_c)
        if dtype_bias is not None:
            alike = g.dtype == dtype_bias  # torch sums 16 bits in FP32 and rounds once, too
            grad_bias = g.sum(tuple(range(g.dim() - 1)), dtype=None if alike else wide).to(dtype_bias)
        return grad_a, grad_b, grad_c, grad_bias

    return run


def _gradients_key_of(args: Sequence[Any]) -> Key | None:
    """As `_key_of`: alpha and beta come with each call."""
    tensors, alpha, beta, rest = args[:8], args[8], args[9], args[10:]
    return key_of((*tensors, alpha == 0, alpha == 1, beta == 0, *rest))


_differentiate = Composed(_make_gradients, _gradients_key_of)


def _gradients(ctx, grad):
    gradients = _differentiate(grad, *ctx.saved_tensors, *ctx.options, *ctx.needs_input_grad[:2])
    return *gradients, None, None, None, None, None, None, None, None, None, None


def _batched(call, info, in_dims, a, b, c=None, bias=None, alpha=1.0, beta=0.0, *rest):
    """One launch, unless a scale is batched or a bias beside an addend: those take a call for every element."""
    scales = in_dims[9:11]
    if any(axis is not None for axis in scales) or (in_dims[3:4] != (None,) and c is not None and beta != 0):
        return one_by_one(call, info, in_dims, a, b, c, bias, alpha, beta, *rest)
    a, b, c = aligned(in_dims, a, b, c)
    if len(in_dims) > 3 and in_dims[3] is not None:  # a bias for every element is an addend
        rank = max(x.dim() - (axis is not None) for x, axis in zip((a, b), in_dims, strict=False))
        c, bias, beta = to_front(bias, in_dims[3])[:, *(None,) * (rank - 1), :], None, 1.0
    if in_dims[0] is None and in_dims[1] is None:
        a = a.expand(info.batch_size, *(1,) * (b.dim() - a.dim()), *a.shape)
    return call(a, b, c, bias, alpha, beta, *rest), 0


def _cast(args: Sequence[Any]) -> tuple[int, ...]:
    """Under autocast the operands become its dtype, unless `precision` says how to multiply fp32; the terms stay."""
    return () if len(args) > 11 and args[11] is not None else (0, 1)


_TERMS = "Tensor? c=None, Tensor? bias=None, float alpha=1., float beta=0., str? activation=None"
_HOW = (
    "str? config=None, Tensor? scale_a=None, Tensor? scale_b=None, str? precision=None, str? acc_dtype=None, "
    "str[]? packed=None"
)
_OPERATOR: Any = torch.library.custom_op(
    "laneloom::gemm",
    _gemm,
    mutates_args=(),
    schema=f"(Tensor a, Tensor b, {_TERMS}, ScalarType? out_dtype=None, {_HOW}) -> Tensor",
)
_OPERATOR.register_fake(_gemm_fake)
gemm_operator = complete(
    _OPERATOR, batched=_batched, remember=_remember, gradients=_gradients, cast=_cast, warm=_warm
)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::gemm_out",
    _gemm_out,
    mutates_args=("out",),
    schema=f"(Tensor a, Tensor b, Tensor(a!) out, {_TERMS}, {_HOW}) -> ()",
)
_OUT_OPERATOR.register_fake(_gemm_out_fake)
gemm_out_operator = complete(_OUT_OPERATOR, batched=refuse_out)
