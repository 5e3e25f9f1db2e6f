"""What every operator of `torch.ops.laneloom` has beside its kernel: gradients, a rule for vmap, one for autocast.

`complete` registers them, `call` calls the operator. torch.func's transforms (`grad`, `vjp`, `jacrev`, `vmap` of those)
cannot differentiate a custom operator; inside them, `call` goes through an autograd.Function made of the same rules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import UnsupportedError

AUTOCAST_DEVICES = ("cpu", "cuda")

_functions: dict[Any, type[torch.autograd.Function]] = {}
_bodies: dict[Any, Callable[..., Any]] = {}  #: what an operator runs
_recorded: dict[Any, type[torch.autograd.Function]] = {}  #: that with its gradients


def complete(
    definition: Any,
    *,
    batched: Callable[..., tuple[Any, Any]],
    remember: Callable[..., None] | None = None,
    gradients: Callable[..., Any] | None = None,
    cast: Callable[[Sequence[Any]], tuple[int, ...]] | None = None,
) -> None:
    """Register the rules of a custom operator.

    batched: as for torch.library.register_vmap. remember, gradients: as for register_autograd. cast: the positions of
    the arguments that autocast brings to its dtype, of the arguments of a call; without it autocast changes nothing.
    """
    definition.register_vmap(batched)
    _bodies[_packet(definition)] = definition._init_fn
    if gradients is not None:
        definition.register_autograd(gradients, setup_context=remember)
        _functions[_packet(definition)] = _function_of(definition, batched, remember, gradients)
        _recorded[_packet(definition)] = _recorded_of(definition, remember, gradients)
    if cast is not None:
        for device_type in AUTOCAST_DEVICES:
            _register_autocast(definition, device_type, cast)


def call(packet: Any, *args: Any) -> Any:
    """`packet(*args)`, `packet` one of torch.ops.laneloom: of DTensors and under torch.func's transforms too.

    Where nothing wants to see the operator it is its body that is called: the dispatcher takes tens of microseconds.
    """
    if torch.compiler.is_compiling():
        return packet(*args)
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    hidden = torch._C._len_torch_function_stack() == 0 and torch._C._get_tracing_state() is None
    if hidden and not is_observed(*tensors):
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
            return _bodies[packet](*args)
        return _recorded[packet].apply(*args) if packet in _recorded else packet(*args)
    transformed = torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
    if transformed and packet in _functions:
        return _functions[packet].apply(*args)
    return packet(*args)


def is_observed(*tensors: Any) -> bool:
    """Whether something wants to see the operator: a compiler, autocast, a transform, a mode, a kind of tensor."""
    if torch.compiler.is_compiling():
        return True
    for x in tensors:
        kind = type(x)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:
            _learn_sharding(x)
            return True
        if x.is_neg() or x.is_conj():  # shows other bits than it holds: the dispatcher gives those to the kernel
            return True
    kind = tensors[0].device.type
    return (
        kind not in AUTOCAST_DEVICES  # meta tensors: only the operator knows their shapes
        or torch.is_autocast_enabled(kind)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
    )


def _learn_sharding(x: Any) -> None:
    """Register the rules for DTensors, whose module takes seconds to import, when the first one comes."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is not None and isinstance(x, module.DTensor):
        from . import sharding  # noqa: F401


def _packet(definition: Any) -> Any:
    return getattr(torch.ops.laneloom, definition._name)


def _function_of(definition: Any, batched: Any, remember: Any, gradients: Any) -> type[torch.autograd.Function]:
    packet = _packet(definition)

    def backward(ctx, *grads):
        return gradients(ctx, *grads)

    def setup_context(ctx, inputs, output):
        remember(ctx, inputs, output)

    members = {"forward": packet, "setup_context": setup_context, "backward": backward, "vmap": batched}
    return type(definition._name, (torch.autograd.Function,), {k: staticmethod(v) for k, v in members.items()})


def _recorded_of(definition: Any, remember: Any, gradients: Any) -> type[torch.autograd.Function]:
    """The body with its gradients. With `setup_context` torch would look at its signature, 30 us in each call."""
    body = definition._init_fn

    def forward(ctx, *args):
        output = body(*args)
        remember(ctx, args, output)
        return output

    def backward(ctx, *grads):
        return gradients(ctx, *grads)

    members = {"forward": forward, "backward": backward}
    return type(definition._name, (torch.autograd.Function,), {k: staticmethod(v) for k, v in members.items()})


_library = torch.library.Library("laneloom", "FRAGMENT")


def _register_autocast(definition: Any, device_type: str, cast: Callable[[Sequence[Any]], tuple[int, ...]]) -> None:
    packet = _packet(definition)
    key = f"Autocast{torch._C._dispatch_key_for_device(device_type)}"
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def with_cast(*args):
        dtype = torch.get_autocast_dtype(device_type)
        changed = list(args)
        for position in cast(args):
            changed[position] = _lowered(args[position], device_type, dtype)
        with torch._C._ExcludeDispatchKeyGuard(keys):  # pyright: ignore[reportAttributeAccessIssue]
            return packet(*changed)

    _library.impl(definition._name, with_cast, key)


def _lowered(x: Any, device_type: str, dtype: torch.dtype) -> Any:
    """x in autocast's dtype, by its rule: halves and fp32 change, fp64, 8-bit floats and integers do not."""
    fits = isinstance(x, torch.Tensor) and x.device.type == device_type and x.is_floating_point()
    return x.to(dtype) if fits and x.dtype.itemsize in (2, 4) else x


# -- rules for vmap ----------------------------------------------------------------------------------------------------


def to_front(x: Any, axis: Any, ndim: int | None = None) -> Any:
    """x with the batched axis first, if it has one, and `ndim` axes after that."""
    if axis is None or x is None:
        return x
    x = x.movedim(axis, 0)
    missing = 0 if ndim is None else ndim - (x.dim() - 1)
    return x[(slice(None),) + (None,) * missing] if missing > 0 else x


def aligned(in_dims: Sequence[Any], *tensors: Any) -> list[Any]:
    """Tensors whose batch axes broadcast, with the batched axis as a first one that all of them could have."""
    axes = [*in_dims, *[None] * len(tensors)][: len(tensors)]  # of those that were left out: None
    ranks = [x.dim() - (axis is not None) for x, axis in zip(tensors, axes, strict=True) if x is not None]
    return [to_front(x, axis, max(ranks)) for x, axis in zip(tensors, axes, strict=True)]


def folded(info: Any, in_dims: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """Tensors [N, ...] with the batched axis merged into the first, those without it repeated along it."""
    result = []
    for x, axis in zip(tensors, in_dims, strict=False):
        if x is not None:
            x = x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
            x = x.flatten(0, 1)
        result.append(x)
    return result


def unfolded(info: Any, x: torch.Tensor) -> torch.Tensor:
    """[B * N, ...] as [B, N, ...]."""
    return x.unflatten(0, (info.batch_size, x.shape[0] // max(1, info.batch_size)))


def one_by_one(operator: Callable[..., Any], info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
    """The rule of last resort: a call for every element, in their order."""
    results = [
        operator(*(x.select(axis, i) if isinstance(axis, int) else x for x, axis in zip(args, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(results[0], tuple):
        return tuple(torch.stack(part) for part in zip(*results, strict=True)), (0,) * len(results[0])
    return torch.stack(results), 0


def refuse_out(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
    """The rule of the operators that write into `out`."""
    raise UnsupportedError("out: expected none inside torch.vmap, which gives each call a part of one result")
