"""The machine code of attention as the command line asks for it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..gpu import Gpu, get_gpu
from .product import check_choice
from .profile import SHAPES, parse_sizes

if TYPE_CHECKING:
    from ..codegen import CodeObject


def compile_attention(
    gpu: str, shape: str | None, dtype: str, kernel: str | None, causal: bool
) -> tuple[str, dict[str, Any], CodeObject]:
    """What was asked for in words and for JSON, and the kernel that `flash_attention` or `attention_decode` runs.

    kernel: forward, query and key (the backward's two), backward (Hopper's one) or decode, whose N keys one query sees.
    """
    from ..ops.attention.problem import HALVES

    row = get_gpu(gpu)
    names, usual = SHAPES["attention"]
    batch, heads, n, d = parse_sizes(usual if shape is None else shape, names)
    check_choice("--dtype", dtype, HALVES)
    kernel = "forward" if kernel is None else kernel
    problem, configs = attention_kernels(row, batch, heads, n, d, dtype, causal, decodes=kernel == "decode")
    check_choice("--kernel", kernel, tuple(configs) if kernel in configs else (*configs, "decode"))
    config = configs[kernel]
    module = import_module(f"..ops.attention.kernels.{config.schedule}", __package__)
    asked = {"shape": [batch, heads, n, d], "dtype": dtype, "causal": causal, "role": kernel, "config": config.text}
    words = f"attention {batch} x {heads} x {n} x {d}, {dtype}{', causal' if causal else ''}, {kernel}"
    return words, asked, module.code_object(problem, config, row)


def attention_kernels(
    gpu: Gpu, batch: int, heads: int, n: int, d: int, dtype: str, causal: bool, *, decodes: bool
) -> tuple[Any, dict[str, Any]]:
    """The problem, and its kernels' configs by name."""
    if decodes:
        from ..ops.attention.config_decode import DecodeProblem
        from ..ops.attention.plan_decode import plan_decode

        if causal:
            raise ArgumentError("--causal: a query that decodes sees all keys before it anyway")
        problem = DecodeProblem(batch, heads, heads, 1, n, d, d, dtype, d**-0.5, adjacent=True)
        return problem, {"decode": plan_decode(problem, gpu)}
    from ..ops.attention.config import plan, plan_backward
    from ..ops.attention.problem import AttentionProblem

    problem = AttentionProblem(batch, heads, heads, n, n, d, d, dtype, d**-0.5, last=0 if causal else None)
    configs = (plan(problem, gpu), *plan_backward(problem, gpu))
    return problem, {config.role: config for config in configs}
