"""What of a product's operands stays until the gradients are made."""

from __future__ import annotations

import torch

from ...errors import UnsupportedError


def save_operands(ctx, a, b, *others) -> tuple[torch.dtype, torch.Size | None, bool]:
    """Save of two operands those that the other's gradient needs, and what else there is; a's dtype, and where one
    is not saved how the other lies. As of torch's products what no gradient needs may change, and is not kept alive."""
    wanted = ctx.needs_input_grad
    of_a, of_b = wanted[0], wanted[1]
    ctx.save_for_backward(a if of_b else None, b if of_a else None, *others)
    return (a.dtype, None, False) if of_a == of_b else (a.dtype, *layout_of(a if of_a else b))


def is_turned(x: torch.Tensor) -> bool:
    """Whether x is the transpose of matrices whose rows lie side by side, as `linear`'s weight comes."""
    return x.stride(-2) == 1 and x.stride(-1) != 1


def layout_of(x: torch.Tensor) -> tuple[torch.Size, bool]:
    """x's shape, and whether it `is_turned`: all of an operand that its own gradient depends on."""
    return x.shape, is_turned(x)


def check_differentiable(dtype: torch.dtype) -> None:
    """Raise UnsupportedError for operands whose dtype is too coarse for a gradient."""
    if dtype.itemsize == 1:
        raise UnsupportedError(f"a: expected an operand without gradients, {dtype} would round them; use .detach()")
