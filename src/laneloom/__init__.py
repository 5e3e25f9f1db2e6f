"""Matrix-core kernels for PyTorch on AMD and NVIDIA, and an emulator that runs any Triton kernel as AMD machine code.

The functions are loaded when they are first used: importing laneloom costs nothing and needs neither torch nor a GPU.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .first_use import module_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import codegen, emulator, errors, gpu, isa, timing  # noqa: F401
    from .emulator.driver import emulated
    from .ops.attention.api import flash_attention
    from .ops.attention.decode import attention_decode
    from .ops.gemm_chain.api import gemm_chain
    from .ops.matmul.api import explain, matmul
    from .ops.matmul.dtypes import Int4
    from .ops.matmul.gemm import gemm
    from .ops.matmul.grouped import grouped_matmul
    from .ops.quantize.api import quantize_blocks
    from .ops.quantized_matmul.api import quantized_matmul
    from .ops.quantized_matmul.quantize import quantize_weight
    from .ops.quantized_matmul.weight import QuantizedWeight
    from .ops.transform3d.api import transform3d
    from .ops.transpose.api import transpose
    from .pytorch.linear import QuantizedLinear, quantize_linears
    from .pytorch.patch import patched

__version__ = "0.1.0"

_HOMES = {
    "Int4": ".ops.matmul.dtypes",
    "QuantizedLinear": ".pytorch.linear",
    "QuantizedWeight": ".ops.quantized_matmul.weight",
    "attention_decode": ".ops.attention.decode",
    "emulated": ".emulator.driver",
    "explain": ".ops.matmul.api",
    "flash_attention": ".ops.attention.api",
    "gemm": ".ops.matmul.gemm",
    "gemm_chain": ".ops.gemm_chain.api",
    "grouped_matmul": ".ops.matmul.grouped",
    "matmul": ".ops.matmul.api",
    "patched": ".pytorch.patch",
    "quantize_blocks": ".ops.quantize.api",
    "quantize_linears": ".pytorch.linear",
    "quantize_weight": ".ops.quantized_matmul.quantize",
    "quantized_matmul": ".ops.quantized_matmul.api",
    "transform3d": ".ops.transform3d.api",
    "transpose": ".ops.transpose.api",
}

_PARTS = ("codegen", "emulator", "errors", "gpu", "isa", "timing")  #: modules that are there as attributes as well

__all__ = [
    "Int4", "QuantizedLinear", "QuantizedWeight", "attention_decode", "emulated", "explain", "flash_attention", "gemm",
    "gemm_chain", "grouped_matmul", "matmul", "patched", "quantize_blocks", "quantize_linears", "quantize_weight",
    "quantized_matmul", "transform3d", "transpose",
]  # fmt: skip


def __getattr__(name: str):
    if name in _PARTS:
        return module_of(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module 'laneloom' has no attribute {name!r}")
    try:
        value = getattr(module_of(_HOMES[name], __name__), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        return _refusal(name)
    globals()[name] = value
    return value


def _refusal(name: str) -> Callable[..., Any]:
    """In place of a function that is nothing without torch: `import *`, hasattr and help find it all the same."""
    from .errors import UnsupportedError

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"{name}: needs torch, and there is none: `pip install torch`")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PARTS})


if os.environ.get("LANELOOM_PATCH") == "1":
    from .pytorch.patch import patch_process

    patch_process()
