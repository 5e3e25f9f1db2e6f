"""What a function under torch.compile reads of its tensors' devices inside `cuda_on_cpu`.

Dynamo follows calls of torch through the mode, but reads `x.device` and its kin off the tensor that it traces with,
which lies on the CPU: `if x.is_cuda` would take the other branch without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


def _places(host_mark: str, is_on: Callable[[], bool]) -> list[tuple[Any, str, Any]]:
    """Replacements (owner, name, new) of the methods by which Dynamo reads where a tensor lives."""
    import torch
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.tensor import TensorVariable

    cpu, first = torch.device("cpu"), torch.device("cuda", 0)

    def place(variable: Any, tx: Any) -> Any:
        """The device that the tensor says it is on; None to leave it to Dynamo."""
        device = variable.device
        if not is_on() or not isinstance(device, torch.device) or device.type != "cpu":
            return None
        return cpu if variable.call_obj_hasattr(tx, host_mark).as_python_constant() else first

    def replaced(name: str, read: Callable[[Any], Any]) -> tuple[Any, str, Any]:
        former = getattr(TensorVariable, name, None)

        def method(self: Any, tx: Any) -> Any:
            device = place(self, tx)
            if device is None:
                return former(self, tx) if former is not None else None
            return ConstantVariable.create(read(device))

        return TensorVariable, name, method

    return [
        replaced("method_attr_device", lambda device: device),
        replaced("method_attr_is_cuda", lambda device: device.type == "cuda"),
        replaced("method_attr_is_cpu", lambda device: device.type == "cpu"),
        replaced("method_get_device", lambda device: 0 if device.type == "cuda" else -1),
    ]


def compiling(compile_: Callable, host_mark: str, is_on: Callable[[], bool], swap: Callable) -> Callable:
    """`torch.compile`, which makes Dynamo see the mode's devices first: importing Dynamo for nothing takes seconds.

    swap: replaces (owner, name, new) until the context ends.
    """
    done = False

    def follow() -> None:
        nonlocal done
        if not done:
            done = True
            for owner, name, new in _places(host_mark, is_on):
                swap(owner, name, new)

    if "torch._dynamo" in sys.modules:
        follow()

    @wraps(compile_)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        follow()
        return compile_(*args, **kwargs)

    return compiled
