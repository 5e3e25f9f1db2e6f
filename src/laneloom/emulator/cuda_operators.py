"""Operators that Python registers for CUDA run on the tensors that `cuda_on_cpu` takes for CUDA tensors.

To torch's dispatcher those are CPU tensors, so that `custom_op(device_types="cuda")` or `Library.impl(..., "CUDA")`
would never be reached, and replacements of torch's own operators (FlagGems) would go unused without a word. Each such
registration is therefore made for the CPU's key as well, by a kernel that hands host tensors on to what was there.
Some operators torch itself has for CUDA alone.
(https://docs.pytorch.org/docs/stable/library.html#torch.library.get_kernel)
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

_OF_CPU = {"CUDA": "CPU", "AutogradCUDA": "AutogradCPU"}
_RUN_BY_ALL = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")


class _Routed:
    """The kernel of one operator under a key of the CPU: `on_gpu`, or what host tensors get."""

    def __init__(self, mode: Any, name: str, on_gpu: Callable, on_host: Callable | None, library: Any):
        self.mode, self.name, self.on_gpu, self.on_host = mode, name, on_gpu, on_host
        self.library = weakref.ref(library)

    def registered(self) -> bool:
        """Whether the library that it belongs to still stands: FlagGems makes one for each `with use_gems()`."""
        library = self.library()
        return library is not None and library.m is not None

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.mode.runs_on_host((args, kwargs)):
            args = tuple(self.mode.as_asked(x) for x in args)
            return self.on_gpu(keyset, *args, **{name: self.mode.as_asked(x) for name, x in kwargs.items()})
        if self.on_host is None:
            raise NotImplementedError(f"{self.name} has a kernel for CUDA tensors only, and these are on the host")
        return self.on_host(keyset, *args, **kwargs)


def _before(name: str, key: str) -> Callable | None:
    """The kernel that the dispatcher has now; None where it has none."""
    import torch

    try:
        kernel = torch.library.get_kernel(name, key).call_boxed  # pyright: ignore[reportAttributeAccessIssue]
    except RuntimeError:
        return None
    except AttributeError:  # torch before 2.10 cannot call it
        return None
    schema = torch._C._get_schema(*f"{name}.".split(".")[:2])
    tensors = {k for k, argument in enumerate(schema.arguments) if str(argument.type) == "Tensor"}

    def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        """The dispatcher hands Python the number 1 where `x + 1` made it a tensor; what torch compiled wants that."""
        like = next((x for x in args if isinstance(x, torch.Tensor)), None)

        def made(k: int, x: Any) -> Any:
            if k not in tensors or not isinstance(x, bool | int | float | complex):
                return x
            return torch.tensor(x, dtype=None if like is None else torch.result_type(like, x))

        return kernel(keyset, *(made(k, x) for k, x in enumerate(args)), **kwargs)

    return call


def products_of_wider_types() -> Any:
    """`torch.mm(a, b, out_dtype=torch.float32)` and its kin, of which torch has kernels for CUDA alone: a library."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    for name in ("mm", "bmm", "addmm", "baddbmm"):
        product = getattr(torch.ops.aten, name)
        if "dtype" not in product.overloads():  # torch before 2.8
            continue

        def widened(*args: Any, product: Any = product.default, **scales: Any) -> Any:
            *tensors, dtype = args
            return product(*(x.to(dtype) for x in tensors), **scales)

        def into(*args: Any, out: Any, widened: Any = widened, **scales: Any) -> Any:
            return out.copy_(widened(*args, **scales))

        library.impl(f"{name}.dtype", widened, "CPU")
        library.impl(f"{name}.dtype_out", into, "CPU")
    return library


def histogram_of_integers(x: Any, bins: int = 100, min: float = 0, max: float = 0, *, out: Any = None) -> Any:
    """`torch.histc` of integers, which the CPU's refuses."""
    low, high = int(min), int(max)
    if low == high and x.numel():
        low, high = int(x.min()), int(x.max())
    if low == high:
        low, high = low - 1, high + 1
    inside = x[(x >= low) & (x <= high)].long()
    found = ((inside - low) * bins // (high - low)).clamp_(max=bins - 1).bincount(minlength=bins).to(x.dtype)
    return found if out is None else out.copy_(found)


def registering(mode: Any, register: Callable) -> Callable:
    """`torch.library.Library.impl` inside `cuda_on_cpu`. register: the method as it was."""
    import torch

    routed: dict[tuple[str, str], _Routed] = {}

    @wraps(register)
    def impl(self, op_name, fn, dispatch_key="", *, with_keyset=False, **how):
        key = dispatch_key or self.dispatch_key
        other = key not in (*_OF_CPU, *_OF_CPU.values(), *_RUN_BY_ALL)
        # laneloom's own operators run emulated kernels on CPU tensors, and ask for them.
        if other or self.ns == "laneloom" or fn is torch.library.fallthrough_kernel:
            return register(self, op_name, fn, dispatch_key, with_keyset=with_keyset, **how)
        spoken = op_name if isinstance(op_name, str) else op_name._name
        name = f"{self.ns}::{spoken.split('::')[-1]}"

        @wraps(fn)
        def seen(*args: Any, **kwargs: Any) -> Any:
            with mode.again():  # below the dispatcher torch's modes are off, and tensors would say "cpu"
                return fn(*args, **kwargs)

        def with_key(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            return seen(keyset, *args, **kwargs) if with_keyset else seen(*args, **kwargs)

        if key in _OF_CPU:
            register(self, op_name, fn, key, with_keyset=with_keyset, **how)  # for whoever asks what is registered
            key = _OF_CPU[key]
            former = routed.get((name, key))
            if former is not None and former.registered():
                former.on_gpu = with_key
                return None
            kernel = routed[name, key] = _Routed(mode, name, with_key, _before(name, key), self)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Warning only once for all operators")  # of a kernel that is replaced
                return register(self, op_name, kernel, key, with_keyset=True)
        former = routed.get((name, key))
        if former is not None and former.registered():
            former.on_host = with_key
            return None
        return register(self, op_name, seen, key, with_keyset=with_keyset, **how)

    return impl
