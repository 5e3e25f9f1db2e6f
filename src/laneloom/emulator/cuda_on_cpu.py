"""`cuda_on_cpu`: code written for `device="cuda"` runs on CPU tensors that take themselves for CUDA tensors.

A TorchFunctionMode sees every call of torch from Python. It turns device arguments that say "cuda" into the CPU, and
keeps apart what lives on which device: a tensor is on the host if it was made or moved there on purpose, or computed
from host tensors alone; every other tensor says `is_cuda` and `device == cuda:0`. Moves between the two copy, as they
do on a GPU. `torch.cuda` answers as a machine with one GPU would, except that it has no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from ..errors import UnsupportedError
from ..gpu import Gpu
from .cuda_operators import registering

_HOST = "_laneloom_host"  #: set on a tensor that lives on the host
_ABSENT = object()  #: where there was nothing to put back
_MOVES = ("to", "cuda", "cpu")


def _no_clock(*_: Any, **__: Any):
    raise UnsupportedError("an emulated GPU has no clock and no CUDA graphs; measure on a GPU")


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
    get_device = tensor.get_device
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
        return result

    class CudaOnCpu(TorchFunctionMode):
        ended = False  #: what was registered meanwhile may outlive the context
        host: bool | None = None  #: whether the call of torch that is being run computes on the host

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

        def on(self, host: bool, func: Any, args: Any, kwargs: Any) -> Any:
            before, self.host = self.host, host
            try:
                return func(*args, **kwargs)
            finally:
                self.host = before

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if func is torch.device or func is parse_to:  # nn.Module.to asks what its arguments mean
                return func(*args, **kwargs)
            inputs = [x for x in tree_leaves((args, kwargs)) if is_tensor(x)]
            host = bool(inputs) and all(getattr(x, _HOST, False) for x in inputs)
            if func in (device_getter, is_cuda, is_cpu, get_device) and device_getter(args[0]).type == "cpu":
                return {device_getter: cpu if host else first, is_cuda: not host, is_cpu: host}.get(
                    func, -1 if host else 0
                )
            if func in moves:
                return self.move(func, args, kwargs, getattr(args[0], _HOST, False))
            default = default_device.CURRENT_DEVICE  # `with torch.device("cuda")`, torch.set_default_device
            if default is not None and kwargs.get("device") is None and func in default_device._device_constructors():
                kwargs["device"] = default
            wanted = [x for x in (*args, kwargs.get("device")) if isinstance(x, torch.device)]
            named = kwargs.get("device")
            if isinstance(named, str | int):
                wanted.append(torch.device(named) if isinstance(named, str) else first)
            args = tuple(cpu if isinstance(x, torch.device) and x.type == "cuda" else x for x in args)
            if wanted and wanted[-1].type == "cuda" and "device" in kwargs:
                kwargs["device"] = cpu
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            if wanted:
                host = wanted[-1].type == "cpu"
            elif not inputs:
                host = True  # a factory without a device makes host tensors
            result = self.on(host, func, args, kwargs)
            if func.__name__ == "pin_memory":
                return mark(result, True)
            if func.__name__ in ("__set__", "__delete__") or any(result is x for x in inputs):
                return result
            return mark(result, host)

        def move(self, func, args, kwargs, host):
            """Tensor.to, .cuda, .cpu: copies if the device changes, and does what else was asked."""
            source, rest = args[0], list(args[1:])
            kwargs = {name: value for name, value in kwargs.items() if name != "non_blocking"}
            target = "cuda" if func is tensor.cuda else "cpu" if func is tensor.cpu else None
            if func is not tensor.to:
                kwargs.pop("device", None)
            else:
                spoken = kwargs.pop("device", None)
                if rest and isinstance(rest[0], str | torch.device | int):
                    spoken = rest.pop(0)
                elif rest and is_tensor(rest[0]):
                    kwargs["dtype"] = rest[0].dtype
                    spoken = "cpu" if getattr(rest.pop(0), _HOST, False) else "cuda"
                if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
                    kwargs["dtype"] = rest.pop(0)
                if len(rest) > 1:  # non_blocking, copy
                    kwargs["copy"] = rest[1]
                if spoken is not None:
                    target = "cuda" if isinstance(spoken, int) else torch.device(spoken).type
            if target not in (None, "cpu", "cuda"):
                return func(*args, **{**kwargs, "device": target})
            to_host = host if target is None else target == "cpu"
            kwargs = {name: value for name, value in kwargs.items() if value is not None}
            result = self.on(to_host, tensor.to, (source,), kwargs) if kwargs else source
            if to_host != host and result is source:
                result = self.on(True, tensor.clone, (source,), {})
            return result if result is source else mark(result, to_host)

    return CudaOnCpu()


def _always(value: Any) -> Any:
    """A function of its own for each name: torch.compile keeps a rule for each."""
    return lambda *_, **__: value


def _answers(gpu: Gpu) -> dict[str, Any]:
    """What `torch.cuda` says of the machine."""
    import torch

    major, minor = gpu.major, int(gpu.name[-2], 16)
    product = f"{gpu.product} (emulated by laneloom)"
    properties = SimpleNamespace(
        name=product, gcnArchName=gpu.name, major=major, minor=minor, multi_processor_count=gpu.compute_units,
        total_memory=16 << 30, warp_size=gpu.wave, shared_memory_per_block=gpu.lds_bytes, regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048, is_integrated=False, is_multi_gpu_board=False, L2_cache_size=0,
    )  # fmt: skip

    class Stream:
        """Launches run at once, in order."""

        cuda_stream, device = 0, torch.device("cuda", 0)

        def __init__(self, *_: Any, **__: Any): ...

        def __enter__(self):
            return self

        def __exit__(self, *_: Any) -> None: ...

        def query(self) -> bool:
            """Whether all is done: always."""
            return True

        def synchronize(self, *_: Any) -> None:
            """Nothing is ever under way."""

        wait_stream = wait_event = record_event = synchronize

    class Generator:
        """The state of a CUDA generator, two int64: libraries draw the seeds of their own kernels from it.

        torch's functions draw from the CPU's generator all the same.
        """

        device = torch.device("cuda", 0)

        def __init__(self):
            self.state = torch.tensor([torch.initial_seed() % (1 << 63), 0])

        def get_state(self) -> Any:
            """Seed and offset, as bytes."""
            return self.state.clone().view(torch.uint8)

        def set_state(self, state: Any) -> Any:
            """Go on from a state that `get_state` gave."""
            self.state = state.clone().view(torch.int64)
            return self

        def manual_seed(self, seed: int) -> Any:
            """Start again."""
            self.state = torch.tensor([int(seed) % (1 << 63), 0])
            return self

        def initial_seed(self) -> int:
            """The seed."""
            return int(self.state[0])

        def get_offset(self) -> int:
            """How many numbers were drawn."""
            return int(self.state[1])

    class Device(nullcontext):
        """The one device made current, which it always is; a class, since others test for it and inherit from it."""

        def __init__(self, *_: Any):
            super().__init__()

    generator = Generator()

    def seed_all(seed: int, *_: Any) -> None:
        generator.manual_seed(seed)

    silent = ("synchronize empty_cache set_device reset_peak_memory_stats init ipc_collect "
              "reset_max_memory_allocated reset_accumulated_memory_stats set_stream "
              "set_per_process_memory_fraction").split()  # fmt: skip
    zeros = ("current_device memory_allocated max_memory_allocated memory_reserved max_memory_reserved "
             "_exchange_device _maybe_exchange_device").split()  # fmt: skip
    return {
        **{name: _always(None) for name in silent},
        **{name: _always(0) for name in zeros},
        "manual_seed": seed_all,
        "manual_seed_all": lambda seed, *_: seed_all(seed),
        "initial_seed": generator.initial_seed,
        "seed": lambda: seed_all(torch.seed()),
        "default_generators": (generator,),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": _always(None),
        "device_count": lambda: 1,
        "is_bf16_supported": lambda *_, **__: True,
        "get_device_name": lambda *_: product,
        "get_device_capability": lambda *_: (major, minor),
        "get_device_properties": lambda *_: properties,
        "mem_get_info": lambda *_: (16 << 30, 16 << 30),
        "device": Device,
        "device_of": Device,
        "can_device_access_peer": lambda *_: False,
        "stream": lambda *_: nullcontext(),
        "Stream": Stream,
        "current_stream": lambda *_: Stream(),
        "default_stream": lambda *_: Stream(),
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "Event": _no_clock,
        "CUDAGraph": _no_clock,
        "graph": _no_clock,
    }


def _generator_class() -> type:
    """`torch.Generator` that takes device="cuda" as well; functions draw from it as from one of the CPU."""
    import torch

    class AnyGenerator(type(torch._C.Generator)):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, torch._C.Generator)

    class Generator(torch._C.Generator, metaclass=AnyGenerator):
        def __new__(cls, device: Any = "cpu") -> Any:
            where = torch.device(device)
            if where.type != "cuda":
                return torch._C.Generator(where)
            made = super().__new__(cls, torch.device("cpu"))  # pyright: ignore[reportCallIssue]
            made.device = torch.device("cuda", 0)
            return made

        device: Any = None  # pyright: ignore[reportIncompatibleMethodOverride]

    return Generator


def _accelerator(torch: Any) -> dict[str, Any]:
    """What `torch.accelerator`, which speaks for whichever kind of device there is, says."""
    return {
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        **{name: _always(None) for name in ("set_device_index", "set_device_idx", "synchronize")},
        "current_stream": lambda *_: torch.cuda.current_stream(),
    }


@contextmanager
def cuda_on_cpu(gpu: Gpu) -> Iterator[None]:
    """Inside, torch has one GPU called "cuda", whose memory is the CPU's. Everything is put back afterwards.

    Only Python code of the thread that entered is affected. Not covered: device arguments that C++ code
    makes by itself.
    """
    import torch

    mode, run_backward = _function_mode(), torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def backward(*args: Any, **kwargs: Any) -> Any:
        with mode:  # Tensor.backward runs outside the mode that saw it called
            return run_backward(*args, **kwargs)

    swapped: list[tuple[Any, str, Any]] = [(torch.cuda, name, new) for name, new in _answers(gpu).items()]
    swapped.append((torch._C, "_cuda_getCurrentRawStream", _always(0)))  # asks the driver, where torch has it at all
    swapped += [(torch.accelerator, name, new) for name, new in _accelerator(torch).items()]
    swapped.append((torch, "Generator", _generator_class()))
    swapped += [(torch.autograd, "_engine_run_backward", backward), (torch.version, "hip", "0.0")]
    library = torch.library.Library
    swapped.append((library, "impl", registering(mode, library.impl)))
    before = [(owner, name, getattr(owner, name, _ABSENT)) for owner, name, _ in swapped]
    for owner, name, new in swapped:
        setattr(owner, name, new)
    try:
        with mode:
            yield
    finally:
        mode.ended = True
        for owner, name, old in before:
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
