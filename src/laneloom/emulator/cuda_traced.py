"""torch.compile, and tensors without memory, inside `cuda_on_cpu`.

Dynamo follows calls of torch through the mode, but reads `x.device` and its kin off the tensor that it traces with,
which lies on the CPU: `if x.is_cuda` would take the other branch without a word. Inductor writes C++ for the CPU; here
it writes what it would for the GPU, Triton, which the emulator runs. Of several configs of a kernel it takes the first,
of several kernels the one that a single run takes least time for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any


def _places(mode: Any, host_mark: str) -> list[tuple[Any, str, Any]]:
    """Replacements (owner, name, new) of the methods by which Dynamo reads where a tensor lives."""
    import torch
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.tensor import TensorVariable
    from torch.nn.attention import flex_attention

    cpu, first = torch.device("cpu"), torch.device("cuda", 0)

    def place(variable: Any, tx: Any) -> Any:
        """The device that the tensor says it is on; None to leave it to Dynamo."""
        device, modes = variable.device, tx.symbolic_torch_function_state.mode_stack
        if not any(x.value is mode for x in modes):  # it is off in what a function does that it sees called as a whole
            return None
        if not isinstance(device, torch.device) or device.type != "cpu":
            return None
        if tx.f_code.co_filename == flex_attention.__file__:  # asks which of Inductor's kernels it will get: the CPU's
            return None
        return cpu if variable.call_obj_hasattr(tx, host_mark).as_python_constant() else first

    def reading(name: str, read: Callable[[Any], Any]) -> tuple[Any, str, Any]:
        former = getattr(TensorVariable, name, None)

        def method(self: Any, tx: Any) -> Any:
            device = place(self, tx)
            if device is None:
                return former(self, tx) if former is not None else None
            return ConstantVariable.create(read(device))

        return TensorVariable, name, method

    return [
        reading("method_attr_device", lambda device: device),
        reading("method_attr_is_cuda", lambda device: device.type == "cuda"),
        reading("method_attr_is_cpu", lambda device: device.type == "cpu"),
        reading("method_get_device", lambda device: 0 if device.type == "cuda" else -1),
    ]


def _inductor() -> tuple[dict[str, Any], list[tuple[Any, str, Any]]]:
    """Settings of Inductor, and replacements (owner, name, new), with which its kernels are Triton's for the GPU."""
    import torch
    from torch._inductor import config, graph
    from torch._inductor.kernel.flex import flex_attention
    from torch._inductor.runtime import benchmarking, triton_helpers, triton_heuristics
    from torch._inductor.runtime.hints import DeviceProperties

    former = DeviceProperties.create

    def create(device: Any) -> Any:
        if device.type not in ("cpu", "cuda"):
            return former(device)
        told = torch.cuda.get_device_properties(0)
        return DeviceProperties(
            type="hip", index=0, multi_processor_count=told.multi_processor_count, cc=told.gcnArchName,
            max_threads_per_multi_processor=told.max_threads_per_multi_processor, max_threads_per_block=1024,
            warp_size=told.warp_size,
        )  # fmt: skip

    def take_first(autotuner: Any, *_: Any, **__: Any) -> None:
        autotuner.launchers = autotuner.launchers[:1]

    def once(_: Any, call: Callable, *__: Any, **___: Any) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def in_cpp(*args: Any, **kwargs: Any) -> Any:
        """flex_attention, of which Inductor has a kernel in C++ for CPU tensors: so is then all of its graph."""
        from torch._inductor.virtualized import V

        setattr(V.graph, in_the_cpus, True)
        with config.patch(cpu_backend="cpp"):
            return lower(*args, **kwargs)

    def codegen(self: Any) -> Any:
        with config.patch(cpu_backend="cpp") if hasattr(self, in_the_cpus) else nullcontext():
            return generate(self)

    in_the_cpus = "laneloom_cpp"  #: set on graphs
    lower: Callable = vars(flex_attention)["lower_cpu"]
    generate = graph.GraphLowering.codegen
    # Its caches know nothing of the GPU, its other processes nothing of the emulator, its own launcher wants CUDA; for
    # the CPU it cannot write the benchmark of an epilogue.
    settings = {"cpu_backend": "triton", "compile_threads": 1, "force_disable_caches": True,
                "use_static_triton_launcher": False, "use_static_cuda_launcher": False,
                "benchmark_epilogue_fusion": False}  # fmt: skip
    stay = [(triton_helpers, name, lambda: None) for name in ("set_driver_to_gpu", "set_driver_to_cpu")]
    return {name: value for name, value in settings.items() if hasattr(config, name)}, [
        *stay, (flex_attention, "lower_cpu", in_cpp), (graph.GraphLowering, "codegen", codegen),
        (DeviceProperties, "create", create), (benchmarking.Benchmarker, "benchmark_cpu", once),
        (triton_heuristics.CachingAutotuner, "autotune_to_one_config", take_first),
        (triton_heuristics.CachingAutotuner, "coordinate_descent_tuning", lambda _, launcher, *__, **___: launcher),
    ]  # fmt: skip


def compiling(compile_: Callable, mode: Any, host_mark: str, stack: ExitStack) -> Callable:
    """`torch.compile`, which makes Dynamo and Inductor see the GPU first: importing them for nothing takes seconds.

    stack: what ends with the context.
    """
    done: set[str] = set()

    def follow(what: str, replacements: Callable[[], list[tuple[Any, str, Any]]]) -> None:
        if what not in done:
            done.add(what)
            for owner, name, new in replacements():
                stack.enter_context(replaced(owner, name, new))

    def dynamo() -> list[tuple[Any, str, Any]]:
        return _places(mode, host_mark)

    def inductor() -> list[tuple[Any, str, Any]]:
        from torch._inductor import config

        settings, replacements = _inductor()
        stack.enter_context(config.patch(settings))
        return replacements

    if "torch._dynamo" in sys.modules:
        follow("dynamo", dynamo)

    @wraps(compile_)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        follow("dynamo", dynamo)
        if kwargs.get("backend", "inductor") == "inductor":
            follow("inductor", inductor)
        return compile_(*args, **kwargs)

    return compiled


def stand_for_others(tensors: list[Any]) -> bool:
    """Whether a call is on tensors that have no memory (FakeTensor), or makes such: they may say any device.

    Not inside torch.compile, which makes them of tensors that lie on the CPU.
    """
    import torch

    if torch.compiler.is_dynamo_compiling():
        return False
    guards, fake = torch._guards, sys.modules.get("torch._subclasses.fake_tensor")  # type: ignore[attr-defined]
    if fake is None or guards.TracingContext.try_get() is not None:
        return False
    if tensors:
        return any(isinstance(x, fake.FakeTensor) for x in tensors)
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None  # type: ignore[attr-defined]


def indexed(func: Any, args: Any, tensors: list[Any], cpu: Any, first: Any) -> Any:
    """An access to parts of a FakeTensor: C++ asks the driver for its device, where torch's build has none."""
    there = [x for x in tensors if getattr(x, "fake_device", None) == first]
    for x in there:
        x.fake_device = cpu
    try:
        result = func(*args)
    finally:
        for x in there:
            x.fake_device = first
    if there and hasattr(result, "fake_device"):
        result.fake_device = first
    return result


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """An attribute in place of another, or of none."""
    absent = object()
    old = vars(owner).get(name, absent)
    setattr(owner, name, new)
    try:
        yield
    finally:
        if old is absent:
            delattr(owner, name)
        else:
            setattr(owner, name, old)
