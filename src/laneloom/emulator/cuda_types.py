"""`torch.FloatTensor`, `torch.cuda.FloatTensor` and their kin inside `cuda_on_cpu`.

They construct tensors, they are what `isinstance` asks for, and they name a type and a device for `Tensor.type`. torch
has those of CUDA only where it was built for it, and no mode sees a tensor that one of the others makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DTYPES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8",
    "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool",
}  # fmt: skip


class TensorType(type):
    """The metaclass of one such type: known is what torch has for the CPU, mark notes where a tensor lives."""

    known: Any
    dtype: Any
    place: str
    mark: Callable[[Any, bool], Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.mark(cls.known(*args, **kwargs), cls.place == "cpu")

    def __instancecheck__(cls, instance: Any) -> bool:
        return hasattr(instance, "data_ptr") and instance.dtype == cls.dtype and instance.device.type == cls.place


def tensor_types(torch: Any, mark: Callable[[Any, bool], Any]) -> list[tuple[Any, str, Any]]:
    """(module, name, type), to be put in place."""
    made = []
    for kind, dtype in _DTYPES.items():
        for owner, place in ((torch, "cpu"), (torch.cuda, "cuda")):
            known = getattr(torch, f"{kind}Tensor")
            members = {"known": known, "dtype": getattr(torch, dtype), "place": place, "mark": staticmethod(mark)}
            made.append((owner, f"{kind}Tensor", TensorType(f"{kind}Tensor", (), members)))
    return made


def name_of(dtype: Any) -> str | None:
    """What `Tensor.type()` calls a tensor of the GPU."""
    kind = next((kind for kind, name in _DTYPES.items() if str(dtype) == f"torch.{name}"), None)
    return kind and f"torch.cuda.{kind}Tensor"


def named(torch: Any, kind: Any) -> tuple[str | None, Any] | None:
    """The device, None for the one where the tensor is, and the dtype that `Tensor.type(kind)` asks for."""
    if isinstance(kind, torch.dtype):
        return None, kind
    if isinstance(kind, TensorType):
        return kind.place, kind.dtype
    words = kind.split(".") if isinstance(kind, str) else []
    dtype = _DTYPES.get(words[-1].removesuffix("Tensor")) if words else None
    if dtype is None or words[:-1] not in (["torch"], ["torch", "cuda"]):
        return None
    return "cuda" if len(words) == 3 else "cpu", getattr(torch, dtype)
