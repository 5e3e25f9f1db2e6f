"""torch.ops.laneloom.grouped_matmul: the product in groups as an opaque operator, with gradients.

The gradients of rows in groups are a product of rows in groups and one of K in groups, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...device.clear_rows import prepare_clearing
from ...errors import UnsupportedError
from ..operators import Composed, complete, mark_written, one_by_one, refuse_out
from ..warm import WarmCalls, maker_of
from . import grouped
from .config import MatmulConfig
from .presets import named_config
from .saved import check_differentiable, is_turned, save_operands
from .torch_op import operand_dtypes, output_dtype


def _prepare(
    a, b, ends, out_dtype, scale_a, scale_b, cleared, precision=None, config=None
) -> Callable[..., torch.Tensor]:  # fmt: skip
    """What makes the product of tensors that lie as these do."""
    dtype = grouped.result_dtype(a, b, ends, out_dtype, scale_a, scale_b, precision)  # which checks the shapes
    out = a.new_empty(grouped.result_shape(a, b, ends), dtype=dtype)
    names = grouped.tensor_names(a, b, ends, out)
    make = maker_of(out)
    if cleared and b.dim() == 3 and a.shape[1] == 0:  # of a gradient alone, where C has no rows or no columns
        return lambda *_: make().zero_()
    launch = grouped.prepare_launch(a, b, out, names, _config(config), scale_a, scale_b, precision)
    clear = None
    if cleared and 0 not in (*out.shape, *ends.shape):
        clear = prepare_clearing(out, ends[-1:])

    def run(a, b, ends, _, scale_a, scale_b, cleared, *rest: Any) -> torch.Tensor:
        out = make()
        launch(a, b, out, ends, scale_a, scale_b)
        if clear is not None:
            clear(out, ends[-1:])
        return out.zero_() if cleared and clear is None else out

    return run


_warm = WarmCalls(_prepare)


def _config(text: str | None) -> MatmulConfig | None:
    config = named_config(text)
    assert config is None or isinstance(config, MatmulConfig)
    return config


def _grouped(a, b, ends, out_dtype=None, scale_a=None, scale_b=None, cleared=False, precision=None, config=None):
    return _warm(a, b, ends, out_dtype, scale_a, scale_b, cleared, precision, config)


def _grouped_fake(a, b, ends, out_dtype=None, scale_a=None, scale_b=None, cleared=False, precision=None, config=None):
    grouped.check_shapes(a, b)
    grouped.check_devices(a, b, ends)  # else one on meta would make the result one
    grouped.check_scales(a, b, scale_a, scale_b)
    names = operand_dtypes(a, b, None)
    grouped.check_precision(names[0], precision)
    return a.new_empty(grouped.result_shape(a, b, ends), dtype=output_dtype(names[0], out_dtype, scale_a is not None))


def _grouped_out(a, b, ends, out, scale_a=None, scale_b=None, precision=None, config=None):
    grouped.result_dtype(a, b, ends, out.dtype, scale_a, scale_b, precision)
    grouped.check_tensor_out(a, b, ends, out)
    grouped.check_apart(out, a, b, ends, scale_a, scale_b)
    with torch.cuda.device(a.device if a.device.type == "cuda" else -1), torch.no_grad():
        names = grouped.tensor_names(a, b, ends, out)
        launch = grouped.prepare_launch(a, b, out, names, _config(config), scale_a, scale_b, precision)
        launch(a, b, out, ends, scale_a, scale_b)
    mark_written(out)


def _grouped_out_fake(a, b, ends, out, scale_a=None, scale_b=None, precision=None, config=None):
    _grouped_fake(a, b, ends, out.dtype, scale_a, scale_b, False, precision)
    grouped.check_tensor_out(a, b, ends, out)


def _remember(ctx, inputs, output) -> None:
    a, b, ends, _, scale_a, *_ = inputs
    if scale_a is not None:
        raise UnsupportedError("scale_a: products with scales have no gradients, use .detach()")
    ctx.how = *save_operands(ctx, a, b, ends), b.dim() == 3


def _make_gradients(
    prepared, grad, a, b, ends, wanted_a, wanted_b, a_dtype, shape, turned, rows
) -> Callable[..., tuple[Any, Any]]:  # fmt: skip
    """What gives dA and dB, in a's dtype, to which dC is rounded first. Rows of no group get zeros. dB lies as b does,
    or autograd copies it. shape, turned: as for `matmul`; rows: whether these are in groups, not K.

    C[m] = A[m] B[g]: dA[m] = dC[m] B[g]^T, dB[g] = A[of g]^T dC[of g]. Of K in groups, C[g] = A[:, of g] B[of g]:
    dA^T[k] = B[k] dC[g]^T, dB[k] = A^T[k] dC[g].
    """
    check_differentiable(a_dtype)

    like = grad.to(a_dtype)
    turned = rows and (is_turned(b) if wanted_a and wanted_b else turned)
    of_a = of_b = None
    if wanted_a:
        of_a = grouped_step(prepared, *((like, b.mT) if rows else (b, like.mT)), ends, cleared=True)
    if wanted_b:
        of_b = grouped_step(prepared, *((like.mT, a) if turned else (a.mT, like)), ends, cleared=not rows)

    def run(grad: torch.Tensor, a: Any, b: Any, ends: torch.Tensor, *_: Any) -> tuple[Any, Any]:
        grad = grad.to(a_dtype)
        grad_a = grad_b = None
        if of_a is not None:
            grad_a = of_a(grad, b.mT, ends) if rows else of_a(b, grad.mT, ends).mT
        if of_b is not None:
            grad_b = of_b(grad.mT, a, ends).mT if turned else of_b(a.mT, grad, ends)
        return grad_a, grad_b

    return run


def grouped_step(
    prepared: bool, x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor, *, cleared: bool
) -> Callable[..., torch.Tensor]:
    """What gives the grouped product of x, y and ends as a step of a formula: of operands that lie as these do."""
    if not prepared:
        return lambda x, y, ends: grouped_operator(x, y, ends, None, None, None, cleared)
    run = grouped_operator.prepared(x, y, ends, None, None, None, cleared)
    return lambda x, y, ends: run(x, y, ends, None, None, None, cleared)


_differentiate = Composed(_make_gradients)


def _gradients(ctx, grad):
    wanted = ctx.needs_input_grad
    return *_differentiate(grad, *ctx.saved_tensors, wanted[0], wanted[1], *ctx.how), *[None] * 7


def _batched(call, info, in_dims, *args):
    return one_by_one(call, info, in_dims, *args)


def _cast(args: Sequence[Any]) -> tuple[int, ...]:
    return (0, 1)


_OPERATOR: Any = torch.library.custom_op(
    "laneloom::grouped_matmul",
    _grouped,
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor ends, ScalarType? out_dtype=None, Tensor? scale_a=None, "
    "Tensor? scale_b=None, bool cleared=False, str? precision=None, str? config=None) -> Tensor",
)
_OPERATOR.register_fake(_grouped_fake)
grouped_operator = complete(
    _OPERATOR, batched=_batched, remember=_remember, gradients=_gradients, cast=_cast, warm=_warm
)
_OUT_OPERATOR: Any = torch.library.custom_op(
    "laneloom::grouped_matmul_out",
    _grouped_out,
    mutates_args=("out",),
    schema="(Tensor a, Tensor b, Tensor ends, Tensor(a!) out, Tensor? scale_a=None, Tensor? scale_b=None, "
    "str? precision=None, str? config=None) -> ()",
)
_OUT_OPERATOR.register_fake(_grouped_out_fake)
grouped_out_operator = complete(_OUT_OPERATOR, batched=refuse_out)
