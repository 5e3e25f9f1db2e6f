"""Kernels to machine code for any GPU of the table, on any machine: Triton, Gluon, AMDGCN assembly,
LLVM IR.
"""

from __future__ import annotations

from .assemble import assemble, compile_llvm_ir
from .cache import CacheStats, cache_dir, clear, stats
from .code_object import CodeObject, KernelArgument
from .compile import compile_kernel

__all__ = [
    "CacheStats",
    "CodeObject",
    "KernelArgument",
    "assemble",
    "cache_dir",
    "clear",
    "compile_kernel",
    "compile_llvm_ir",
    "stats",
]
