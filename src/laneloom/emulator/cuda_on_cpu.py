"""`cuda_on_cpu`: code written for `device="cuda"` runs on CPU tensors that take themselves for CUDA tensors.

A TorchFunctionMode sees every call of torch from Python. It turns device arguments that say "cuda" into the CPU, and
keeps apart what lives on which device: a tensor is on the host if it was made or moved there on purpose, or computed
from host tensors alone; every other tensor says `is_cuda` and `device == cuda:0`. Moves between the two copy, as they
do on a GPU. `torch.cuda` answers as a machine with one GPU would, except that it has no clock.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any

from ..gpu import Gpu
from .cuda_answers import PlacedEvent, accelerator_answers, always, answers, generator_class, nvtx_answers, only_one
from .cuda_operators import histogram_of_integers, products_of_wider_types, registering
from .cuda_traced import compiling, indexed, replaced, stand_for_others
from .cuda_types import name_of, named, tensor_types

_HOST = "_laneloom_host"  #: set on a tensor that lives on the host
_PINNED = "_laneloom_pinned"
_MOVES = ("to", "cuda", "cpu", "type_as")
_MADE_ON_HOST = ("from_numpy", "frombuffer", "get_rng_state")
_on: list[Any] = []  #: the modes of the contexts that are open
_AUTOCAST = ("set_autocast_enabled", "set_autocast_dtype")


def _function_mode():
    """An instance of the mode; its class is made here because importing it imports torch."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.overrides import _get_current_function_mode_stack as mode_stack
    from torch.utils import _device as default_device
    from torch.utils._pytree import tree_leaves

    tensor = torch.Tensor
    cpu, first = torch.device("cpu"), torch.device("cuda", 0)
    device_getter, is_cuda, is_cpu = tensor.device.__get__, tensor.is_cuda.__get__, tensor.is_cpu.__get__  # type: ignore
    get_device, data_setter = tensor.get_device, tensor.data.__set__  # type: ignore[attr-defined]
    moves = {getattr(tensor, name) for name in _MOVES}
    parse_to = torch._C._nn._parse_to  # type: ignore[attr-defined]

    def is_tensor(value: Any) -> bool:
        return isinstance(value, tensor)

    def mark(result: Any, host: bool) -> Any:
        for leaf in tree_leaves(result) if isinstance(result, list | tuple | dict) else (result,):
            if is_tensor(leaf):
                if host:
                    setattr(leaf, _HOST, True)
                elif hasattr(leaf, _HOST):
                    delattr(leaf, _HOST)
                if hasattr(leaf, "__tensor_flatten__"):  # a wrapper: what is inside was made below the mode
                    mark([getattr(leaf, name) for name in leaf.__tensor_flatten__()[0]], host)
        return result

    class CudaOnCpu(TorchFunctionMode):
        ended = False  #: what was registered meanwhile may outlive the context
        host: bool | None = None  #: whether the call of torch that is being run computes on the host
        put = staticmethod(mark)  #: notes where what is in a result lives

        def of_host(self, make: Any) -> Any:
            """A function that makes tensors on the host and is none of those that modes see."""

            @wraps(make)
            def made(*args: Any, **kwargs: Any) -> Any:
                return mark(make(*args, **kwargs), not self.ended)

            return made

        def constructor(self, make: Any) -> Any:
            """`Tensor.__new__`, as above: `torch.Tensor(2, 3)` and `torch.Tensor([1, 2])` are on the host."""

            @wraps(make)
            def made(*args: Any, **kwargs: Any) -> Any:
                return mark(make(*args, **kwargs), all(getattr(x, _HOST, False) for x in args if is_tensor(x)))

            return made

        def wrapper(self, make: Any) -> Any:
            """`Tensor._make_wrapper_subclass`: the device of what it makes has to be that of the tensors inside."""

            @wraps(make)
            def made(*args: Any, **kwargs: Any) -> Any:
                device = torch.device(kwargs.get("device") or cpu)
                if device.type == "cuda":
                    kwargs["device"] = cpu
                wrapped = make(*args, **kwargs)
                # Below the dispatcher the mode is off, where tensors of the GPU say "cpu" as well.
                if device.type == "cpu" and any(x is self for x in mode_stack()):
                    setattr(wrapped, _HOST, True)
                return wrapped

            return made

        def redispatching(self, redispatch: Any) -> Any:
            """`OpOverload.redispatch`, which no mode sees: to torch's own kernels the GPU's memory is the CPU's."""

            @wraps(redispatch)
            def redispatched(op: Any, keyset: Any, *args: Any, **kwargs: Any) -> Any:
                args = tuple(self.as_known(x) for x in args)
                return redispatch(op, keyset, *args, **{name: self.as_known(x) for name, x in kwargs.items()})

            return redispatched

        def parameters(self, make: Any) -> Any:
            """`Parameter.__new__`, which no mode sees: a parameter lives where the tensor does that it is made of."""

            @wraps(make)
            def made(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
                return mark(make(cls, data, requires_grad), data is None or getattr(data, _HOST, False))

            return made

        def loading(self, load: Any) -> Any:
            """`torch.load`, which puts tensors where `map_location` says if that is one device for all of them."""

            @wraps(load)
            def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
                to_gpu = isinstance(map_location, str | torch.device) and torch.device(map_location).type == "cuda"
                found = load(f, cpu if to_gpu else map_location, *args, **kwargs)
                for leaf in tree_leaves(found) if to_gpu else ():
                    mark(leaf, False)
                return found

            return loaded

        def again(self):
            """The mode, where it is not on already."""
            return nullcontext() if self.ended or any(x is self for x in mode_stack()) else self

        def runs_on_host(self, arguments: Any) -> bool:
            """Whether an operator that the dispatcher calls with `arguments` computes on the host."""
            if self.ended or self.host is not None:
                return self.ended or bool(self.host)
            return all(getattr(x, _HOST, False) for x in tree_leaves(arguments) if is_tensor(x))

        def as_asked(self, argument: Any) -> Any:
            """A device argument as it was before the mode made it the CPU."""
            return first if isinstance(argument, torch.device) and argument.type == "cpu" else argument

        def as_known(self, argument: Any) -> Any:
            """A device argument as torch's compiled kernels take it."""
            return cpu if isinstance(argument, torch.device) and argument.type == "cuda" else argument

        def as_told(self, argument: Any) -> Any:
            """A device argument that says "cuda" with the GPU's number."""
            if isinstance(argument, str | torch.device) and str(argument) == "cuda":
                return first
            return argument

        def on(self, host: bool, func: Any, args: Any, kwargs: Any) -> Any:
            before, self.host = self.host, host
            try:
                return func(*args, **kwargs)
            finally:
                self.host = before

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if func is torch.device and args and isinstance(args[0], int):
                return torch.device("cuda", args[0])
            if func is torch.device or func is parse_to:  # nn.Module.to asks what its arguments mean
                return func(*args, **kwargs)
            inputs = [x for x in tree_leaves((args, kwargs)) if is_tensor(x)]
            if stand_for_others(inputs):
                if func in (tensor.__getitem__, tensor.__setitem__):
                    return indexed(func, args, inputs, cpu, first)
                return func(*map(self.as_told, args), **{name: self.as_told(x) for name, x in kwargs.items()})
            host = bool(inputs) and all(getattr(x, _HOST, False) for x in inputs)
            if func in (device_getter, is_cuda, is_cpu, get_device) and device_getter(args[0]).type == "cpu":
                return {device_getter: cpu if host else first, is_cuda: not host, is_cpu: host}.get(
                    func, -1 if host else 0
                )
            if func is tensor.pin_memory:
                pinned = mark(self.on(True, tensor.clone, (args[0],), {}), True)
                setattr(pinned, _PINNED, True)
                return pinned
            if func is tensor.is_pinned:
                return getattr(args[0], _PINNED, False)
            if func == data_setter and is_tensor(args[1]):
                func(*args)
                return mark(args[0], getattr(args[1], _HOST, False))
            if func in (tensor.numpy, tensor.__array__) and not host and device_getter(args[0]).type == "cpu":
                if not kwargs.pop("force", False):
                    raise TypeError(
                        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                        "memory first."
                    )
                return tensor.numpy(args[0].detach().clone(), force=True)
            if func is tensor.type and (asked := self.by_type(func, args, kwargs, host)) is not NotImplemented:
                return asked
            if func in (torch.histc, tensor.histc) and not host and not args[0].is_floating_point():
                return mark(histogram_of_integers(*args, **kwargs), False)
            if func in moves:
                return self.move(func, args, kwargs, getattr(args[0], _HOST, False))
            default = default_device.CURRENT_DEVICE  # `with torch.device("cuda")`, torch.set_default_device
            if default is not None and kwargs.get("device") is None and func in default_device._device_constructors():
                kwargs["device"] = default
            wanted = [x for x in (*args, kwargs.get("device")) if isinstance(x, torch.device)]
            spoken = kwargs.get("device")
            if isinstance(spoken, str | int):
                wanted.append(torch.device(spoken) if isinstance(spoken, str) else torch.device("cuda", spoken))
            for device in wanted:
                only_one(device)
            args = tuple(self.as_known(x) for x in args)
            if wanted and wanted[-1].type == "cuda" and "device" in kwargs:
                kwargs["device"] = cpu
            pinned = kwargs.get("pin_memory")
            if pinned:
                kwargs["pin_memory"] = False
            if wanted:
                host = wanted[-1].type == "cpu"
            elif not inputs:
                host = True  # a factory without a device makes host tensors
            result = self.on(host, func, args, kwargs)
            if func.__name__ in ("__set__", "__delete__") or any(result is x for x in inputs):
                return result
            if pinned and is_tensor(result):
                setattr(result, _PINNED, True)
            return mark(result, host)

        def by_type(self, func, args, kwargs, host):
            """Tensor.type, which tells a tensor's type, or converts to one, on another device if the type says so."""
            kind = args[1] if len(args) > 1 else kwargs.get("dtype")
            if kind is None:
                return NotImplemented if host else name_of(args[0].dtype) or NotImplemented
            asked = named(torch, kind)
            return NotImplemented if asked is None else self.move(tensor.to, (args[0], *asked), {}, host)

        def move(self, func, args, kwargs, host):
            """Tensor.to, .cuda, .cpu, .type_as: copies if the device changes, and does what else was asked."""
            source, rest, asked = args[0], list(args[1:]), kwargs
            kwargs = {name: value for name, value in kwargs.items() if name != "non_blocking"}
            target = "cuda" if func is tensor.cuda else "cpu" if func is tensor.cpu else None
            if "other" in kwargs:
                rest.insert(0, kwargs.pop("other"))
            if func in (tensor.cuda, tensor.cpu):
                only_one(kwargs.pop("device", rest[0] if rest and func is tensor.cuda else None))
            else:
                spoken = kwargs.pop("device", None)
                if rest and rest[0] is None:
                    rest.pop(0)
                elif rest and isinstance(rest[0], str | torch.device | int):
                    spoken = rest.pop(0)
                elif rest and is_tensor(rest[0]):
                    kwargs["dtype"] = rest[0].dtype
                    spoken = "cpu" if getattr(rest.pop(0), _HOST, False) else "cuda"
                if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
                    kwargs["dtype"] = rest.pop(0)
                if len(rest) > 1:  # non_blocking, copy
                    kwargs["copy"] = rest[1]
                if spoken is not None:
                    only_one(spoken)
                    target = "cuda" if isinstance(spoken, int) else torch.device(spoken).type
            if target not in (None, "cpu", "cuda"):
                return func(*args, **asked)
            to_host = host if target is None else target == "cpu"
            kwargs = {name: value for name, value in kwargs.items() if value is not None}
            result = self.on(to_host, tensor.to, (source,), kwargs) if kwargs else source
            if to_host != host and result is source:
                result = self.on(True, tensor.clone, (source,), {})
            return result if result is source else mark(result, to_host)

    return CudaOnCpu()


def is_on() -> bool:
    """Whether a `cuda_on_cpu` is open."""
    return bool(_on)


def warn_of_host(kernel: str, arguments: Iterable[tuple[str, str, Any]]) -> None:
    """Warn of pointers (name, Triton type, tensor) to the host's memory, which Triton refuses where there is a GPU."""
    for name, kind, value in arguments if _on else ():
        if not kind.startswith("*") or not getattr(value, _HOST, False) or getattr(value, _PINNED, False):
            continue
        if value.numel():
            warnings.warn(
                f"{kernel}: {name} is a tensor on the host; the emulator reads it, where Triton on a GPU says that it "
                "'cannot be accessed from Triton (cpu tensor?)'",
                stacklevel=2,
            )


def _autocasting(change: Any) -> Any:
    """A change of autocast's state for "cuda", which is then the CPU's as well: that is where torch computes."""

    @wraps(change)
    def changed(*args: Any) -> None:
        change(*args)
        if args[0] == "cuda" or len(args) == 1:  # a flag alone means CUDA
            change("cpu", args[-1])

    return changed


def _traces() -> bool:
    """Whether torch.compile traces: its tensors stand for others, and their storage knows that it is the CPU's."""
    import torch

    key = torch._C._TorchDispatchModeKey  # type: ignore[attr-defined]
    return any(torch._C._get_dispatch_mode(k) is not None for k in (key.PROXY, key.FAKE))  # type: ignore[attr-defined]


def _scattered(tensor: Any, devices: Any, *_: Any) -> tuple[Any]:
    """What DataParallel asks for, over the one GPU."""
    for device in devices:
        only_one(device)
    return (tensor.cuda(),)


@contextmanager
def cuda_on_cpu(gpu: Gpu) -> Iterator[None]:
    """Inside, torch has one GPU called "cuda", whose memory is the CPU's. Everything is put back afterwards.

    Only Python code of the thread that entered is affected, and no device argument that C++ code makes by itself.
    """
    import torch
    from torch.nn.parallel import _functions as parallel

    mode, run_backward = _function_mode(), torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def backward(*args: Any, **kwargs: Any) -> Any:
        if _traces():
            return run_backward(*args, **kwargs)
        with mode:  # Tensor.backward runs outside the mode that saw it called
            return run_backward(*args, **kwargs)

    torch_cuda = answers(gpu)
    swapped: list[tuple[Any, str, Any]] = [(torch.cuda, name, new) for name, new in torch_cuda.items()]
    for part in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.profiler):
        swapped += [(part, name, new) for name, new in torch_cuda.items() if name in vars(part)]
    swapped += [(torch._C, "_scatter", _scattered), (parallel, "_get_stream", only_one)]
    swapped.append((torch._C, "_cuda_getCurrentRawStream", always(0)))  # asks the driver, where torch has it at all
    swapped.append((torch._C, "_cuda_cudaCachingAllocator_is_enabled", always(False)))  # Inductor: no CUDA graphs
    in_files = torch._C._dynamo.guards  # type: ignore[attr-defined]  # what files that Inductor wrote call
    swapped.append((in_files, "_empty_strided_cuda", lambda size, stride, dtype: torch.empty_strided(
        size, stride, dtype=dtype, device="cuda"
    )))  # fmt: skip
    swapped += [(torch.accelerator, name, new) for name, new in accelerator_answers(torch).items()]
    swapped += [(torch.autograd, "_engine_run_backward", backward), (torch.version, "hip", "0.0")]
    library = torch.library.Library
    swapped.append((library, "impl", registering(mode, library.impl)))
    swapped += [(torch.cuda.nvtx, name, new) for name, new in nvtx_answers().items()]
    swapped.append((torch, "Generator", generator_class(torch)))
    swapped += [(torch, "Stream", torch_cuda["Stream"]), (torch, "Event", PlacedEvent)]
    swapped += [(torch, name, mode.of_host(getattr(torch, name))) for name in _MADE_ON_HOST]
    swapped.append((torch.Tensor, "__new__", mode.constructor(torch.Tensor.__new__)))
    wrapper = mode.wrapper(torch.Tensor._make_wrapper_subclass)  # type: ignore[attr-defined]
    swapped.append((torch.Tensor, "_make_wrapper_subclass", staticmethod(wrapper)))
    swapped += tensor_types(torch, mode.put)
    swapped.append((torch.Tensor, "record_stream", always(None)))  # launches run at once
    swapped.append((torch.nn.Parameter, "__new__", mode.parameters(torch.nn.Parameter.__new__)))
    swapped.append((torch, "load", mode.loading(torch.load)))
    overload = torch._ops.OpOverload
    swapped.append((overload, "redispatch", mode.redispatching(overload.redispatch)))
    swapped += [(torch, name, _autocasting(getattr(torch, name))) for name in _AUTOCAST]
    stack = ExitStack()
    swapped.append((torch, "compile", compiling(torch.compile, mode, _HOST, stack)))
    products = products_of_wider_types()
    for owner, name, new in swapped:
        stack.enter_context(replaced(owner, name, new))
    _on.append(mode)
    try:
        with mode:
            yield
    finally:
        _on.remove(mode)
        mode.ended = True
        products._destroy()
        stack.close()
