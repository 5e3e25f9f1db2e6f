"""What every operator of `torch.ops.laneloom` has beside its kernel: gradients, a rule for vmap, one for autocast.

`complete` registers them and gives the `Operator` that laneloom's functions call: past torch's dispatcher, which takes
tens of microseconds, where nothing looks. torch.func's transforms (`grad`, `vjp`, `jacrev`, `vmap` of those) cannot
differentiate a custom operator; inside them, it goes through an autograd.Function made of the same rules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from ..errors import ArgumentError, UnsupportedError
from . import flop_counts
from .warm import Key, WarmCalls, keep, key_of

AUTOCAST_DEVICES = ("cpu", "cuda")


def complete(
    definition: Any,
    *,
    batched: Callable[..., tuple[Any, Any]],
    remember: Callable[..., None] | None = None,
    gradients: Callable[..., Any] | None = None,
    cast: Callable[[Sequence[Any]], tuple[int, ...]] | None = None,
    warm: WarmCalls | None = None,
) -> Operator:
    """Register the rules of a custom operator.

    batched: as for torch.library.register_vmap, after what it calls the operator by. remember, gradients: as for
    register_autograd. cast: the positions of the arguments that autocast brings to its dtype, of the arguments of a
    call; without it autocast changes nothing. warm: what the operator runs, where that is kept from call to call.
    """
    definition.register_vmap(partial(batched, _packet(definition)))
    if gradients is not None:
        definition.register_autograd(gradients, setup_context=remember)
    if cast is not None:
        for device_type in AUTOCAST_DEVICES:
            _register_autocast(definition, device_type, cast)
    flop_counts.register(_packet(definition))
    operator = Operator(definition, batched, remember, gradients, warm)
    if gradients is not None:
        for device_type in AUTOCAST_DEVICES:
            _register_warm(definition, device_type, operator)
    return operator


class Operator:
    """An operator of torch.ops.laneloom, called with all of its arguments in their order."""

    def __init__(
        self, definition: Any, batched: Any, remember: Any, gradients: Any, warm: WarmCalls | None
    ) -> None:  # fmt: skip
        self._packet = _packet(definition)
        self._writes = definition._name.endswith("_out")
        schema = definition._opoverload._schema.arguments
        self._names = tuple(argument.name for argument in schema)
        self._defaults = tuple(argument.default_value for argument in schema)
        self._body: Any = definition._init_fn
        self._warm = warm
        self._key_of = key_of if warm is None else warm.key_of
        self._calls: dict[Key, Callable[..., Any]] = {}  #: what gives a call's result, gradients recorded, by its key
        self._transformed = self._record = None
        if gradients is not None:
            self._transformed = _function_of(definition, partial(batched, self._within), remember, gradients)
            self._record = partial(recorded, definition._name, remember, gradients)

    def __call__(self, *args: Any) -> Any:
        if is_compiling():  # first: a compiler can trace nothing of what follows
            return self._packet(*args)
        if is_watched():
            return self._dispatched(args)
        if _function_modes() == 0:
            call = self._met(args)
            return self._dispatched(args) if call is None else call(*args)
        # `patched`, in force in the backward too, would be called for every tensor's every attribute.
        with torch._C.DisableTorchFunction():
            call = self._met(args)
            if call is not None:
                return call(*args)
        return self._dispatched(args)

    def _met(self, args: Sequence[Any]) -> Callable[..., Any] | None:
        """What gives the result of a call that nothing else looks at; None of tensors without a key."""
        key = self._key_of(args)
        return None if key is None else self._calls.get(key) or self._meet(key, args)

    def _meet(self, key: Key, args: Sequence[Any]) -> Callable[..., Any]:
        """What gives the results of calls with this key."""
        records = self._records(args)
        if records and self._record is None:
            return self._packet
        run = self._body if self._warm is None else self._warm.prepared(key, args)
        return keep(self._calls, key, self._record(run) if records and self._record is not None else run)

    def prepared(self, *args: Any) -> Callable[..., Any]:
        """What gives the results of plain tensors that lie as these do, on the current GPU, and records nothing."""
        key = self._key_of(args)
        assert key is not None
        assert self._warm is not None
        return self._warm.prepared(key, args)

    def find(self, args: Sequence[Any]) -> Callable[..., Any] | None:
        """What gives the result, gradients recorded, of a call that autocast and function modes have seen; None where
        something else wants to see it, and of tensors without a key."""
        return self._met(args) if _dispatch_modes() == 0 and _interpreters() is None else None

    def _within(self, *args: Any) -> Any:
        """A call by the rule for vmap, around which other transforms of torch.func may still be."""
        return self._dispatched(args + self._defaults[len(args) :])

    def _dispatched(self, args: Sequence[Any]) -> Any:
        """Through PyTorch's dispatcher; of DTensors and under torch.func's transforms too."""
        for name, x in zip(self._names, args, strict=False):
            if isinstance(x, torch.Tensor):
                check_strided(name, x)
                _learn_sharding(x)
        if self._writes:
            _check_own_bits(args[self._names.index("out")])
        _refuse_tangents(self._packet, args)
        if self._transformed is not None and _interpreters() is not None:
            return self._transformed.apply(*args)
        self._records(args)
        return self._packet(*args)

    def _records(self, args: Sequence[Any]) -> bool:
        """Whether gradients are recorded. Raises ArgumentError where the result goes into `out`."""
        records = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
        if records and self._writes:
            raise ArgumentError("out: expected none where gradients are recorded, got a tensor; use torch.no_grad()")
        return records


class Composed(WarmCalls):
    """`make(prepared, *args)(*args)`: a formula made of operators, such as a gradient.

    Where something looks, or gradients of it are recorded, its steps are calls of operators. Elsewhere they are what
    the operators prepared (`prepared` is True), as a whole.
    """

    def __init__(
        self, make: Callable[..., Callable[..., Any]], key_of: Callable[[Sequence[Any]], Key | None] = key_of
    ) -> None:
        super().__init__(partial(make, True), key_of)
        self._make = make

    def __call__(self, *args: Any) -> Any:
        if not (is_compiling() or torch.is_grad_enabled() or is_watched()):
            with torch._C.DisableTorchFunction():
                key = self.key_of(args)
                if key is not None:
                    return self.prepared(key, args)(*args)
        return self._make(False, *args)(*args)


# Found once: to look such a function up costs as much as to call it.
any_autocast, _tracer = torch._C._is_any_autocast_enabled, torch._C._get_tracing_state
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_interpreters: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack  # pyright: ignore[reportAttributeAccessIssue]


def is_watched() -> bool:
    """Whether something between the caller and the kernel wants to see operators: autocast, a tracer, a mode, a
    transform, forward-mode derivatives."""
    return (
        any_autocast()
        or _tracer() is not None
        or _dispatch_modes() > 0
        or (_function_modes() > 0 and any(map(_looks_at_operators, range(_function_modes()))))
        or _interpreters() is not None
        or forward_ad._current_level >= 0
    )


def _looks_at_operators(level: int) -> bool:
    """Whether a mode for torch's functions may want operators; `patched`, in force in the backward too, does not."""
    return getattr(torch._C._get_function_stack_at(level), "looks_at_operators", True)


def mark_written(out: torch.Tensor) -> None:
    """As torch's dispatcher does for a result in `out`: a backward pass that kept what was there must not use it."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


def check_strided(name: str, x: torch.Tensor) -> None:
    """Raise UnsupportedError for a tensor without strides, whose shape or dispatch torch would stumble over."""
    if x.is_nested or x.is_quantized or x.layout != torch.strided:
        got = "a nested one" if x.is_nested else "a quantized one" if x.is_quantized else x.layout
        raise UnsupportedError(f"{name}: expected a strided tensor, got {got}")


def _check_own_bits(out: torch.Tensor) -> None:
    """Raise ArgumentError for a result that shows other bits than it holds; torch's dispatcher drops what returns
    nothing there."""
    if out.is_neg() or out.is_conj():
        view = "conjugated" if out.is_conj() else "negated"
        raise ArgumentError(f"out: expected a tensor that shows the bits it holds, got a {view} view of one")


def _learn_sharding(x: Any) -> None:
    """Register the rules for DTensors, whose module takes seconds to import, when the first one comes."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is not None and isinstance(x, module.DTensor):
        from . import sharding  # noqa: F401


def _refuse_tangents(packet: Any, args: Sequence[Any]) -> None:
    """Forward-mode derivatives: a kernel would compute the result and lose its tangent."""
    if forward_ad._current_level < 0:
        return
    if any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in args):
        raise _no_tangents(packet.__name__)


def _no_tangents(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name}: no forward-mode derivative; use reverse mode, or torch's own operator for this call"
    )


def _packet(definition: Any) -> Any:
    return getattr(torch.ops.laneloom, definition._name)


def _function_of(definition: Any, batched: Any, remember: Any, gradients: Any) -> type[torch.autograd.Function]:
    packet = _packet(definition)

    def backward(ctx, *grads):
        return gradients(ctx, *grads)

    def setup_context(ctx, inputs, output):
        remember(ctx, inputs, output)

    def jvp(ctx, *tangents):  # asked for inside another transform, as by torch.func.hessian
        raise _no_tangents(packet.__name__)

    members = {"forward": packet, "setup_context": setup_context, "backward": backward, "vmap": batched, "jvp": jvp}
    return type(definition._name, (torch.autograd.Function,), {k: staticmethod(v) for k, v in members.items()})


def recorded(name: str, remember: Any, gradients: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with its gradients.

    With `setup_context` torch would look at its signature, 30 us in each call. `Function.apply` itself looks for
    tensors that outlived a transform of torch.func, which have no key, at another 5 us.
    """

    def forward(ctx, *args):
        output = run(*args)
        remember(ctx, args, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    function = type(name, (torch.autograd.Function,), members)
    return super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]


def _register_warm(definition: Any, device_type: str, operator: Operator) -> None:
    """Calls through the dispatcher find what was prepared in front of torch's rule for gradients, which takes 5 us
    where none are recorded and 20 where they are."""
    name = f"Autograd{torch._C._dispatch_key_for_device(device_type)}"
    rule = torch._C._dispatch_get_computed_kernel_for_dispatch_key(definition._qualname, name)
    defaults = tuple(argument.default_value for argument in definition._opoverload._schema.arguments)

    def with_gradients(keyset, *args):
        _refuse_tangents(operator._packet, args)
        full = args + defaults[len(args) :]  # the dispatcher leaves out what ends in defaults
        call = operator.find(full)
        return rule.call_boxed(keyset, *args) if call is None else call(*full)

    definition._lib.impl(definition._name, with_gradients, name, with_keyset=True)


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


def unfolded(info: Any, in_dims: Sequence[Any], first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[B * N, ...] as [B, N, ...], N as `folded` found it in the first tensor."""
    count = first.shape[0 if in_dims[0] is None else int(in_dims[0] == 0)]
    return x.unflatten(0, (info.batch_size, count))


def one_by_one(call: Callable[..., Any], info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
    """The rule of last resort: a call for every element, in their order. Of none, a call with zeros says what shape and
    dtype they would have had."""
    calls: list[list[Any]] = [
        [x.select(axis, i) if isinstance(axis, int) else x for x, axis in zip(args, in_dims, strict=True)]
        for i in range(info.batch_size)
    ] or [
        [x.sum(axis, dtype=x.dtype) if isinstance(axis, int) else x for x, axis in zip(args, in_dims, strict=True)]
    ]
    results = [call(*arguments) for arguments in calls]
    parts = zip(*results, strict=True) if isinstance(results[0], tuple) else [results]
    stacked = tuple(torch.stack(part)[: info.batch_size] for part in parts)
    return (stacked, (0,) * len(stacked)) if isinstance(results[0], tuple) else (stacked[0], 0)


def refuse_out(call: Callable[..., Any], info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
    """The rule of the operators that write into `out`."""
    raise UnsupportedError("out: expected none inside torch.vmap, which gives each call a part of one result")
