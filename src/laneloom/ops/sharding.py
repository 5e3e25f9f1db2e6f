"""How the operators of `torch.ops.laneloom` run on DTensors: which axes of their operands may be sharded, and how.

Each rule names the axes of every operand by letters. Where tensors are sharded along one letter, those that have it are
shards and the others whole; a letter that is summed over leaves a sum for the mesh to finish (Partial). DTensor takes
the cheapest of the rules for the placements at hand. Importing this module registers the rules; `operators.Operator`
does it when it first sees a DTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from ..errors import UnsupportedError
from .attention import torch_decode as _registers_decode  # noqa: F401
from .attention import torch_float8 as _registers_float8  # noqa: F401
from .attention import torch_op as _registers_attention  # noqa: F401
from .gemm_chain import torch_op as _registers_gemm_chain  # noqa: F401
from .matmul import torch_gemm as _registers_gemm  # noqa: F401
from .matmul import torch_grouped as _registers_grouped  # noqa: F401
from .matmul.gemm import have_blocks
from .quantize import torch_op as _registers_quantize  # noqa: F401
from .quantized_matmul import torch_op as _registers_quantized  # noqa: F401
from .transform3d import torch_op as _registers_transform3d  # noqa: F401
from .transpose import torch_op as _registers_transpose  # noqa: F401

Axes = Sequence[str | None]  #: one letter for each axis of a tensor, None for an axis that has to be whole


def strategies(outputs: Sequence[Axes], inputs: Sequence[Axes | None], summed: Sequence[str] = ()) -> list[Any]:
    """The rules of an operator: all whole, and one for each letter of the outputs or of `summed`.

    An input without axes is None: no tensor.
    """
    letters = dict.fromkeys(letter for axes in outputs for letter in axes if letter)

    def placement(axes: Axes | None, letter: str, otherwise: Any) -> Any:
        if axes is None:
            return None
        return Shard(list(axes).index(letter)) if letter in axes else otherwise

    whole = ([Replicate() for _ in outputs], [None if axes is None else Replicate() for axes in inputs])
    sharded = [
        ([placement(axes, x, Partial()) for axes in outputs], [placement(axes, x, Replicate()) for axes in inputs])
        for x in [*letters, *summed]
    ]
    return [whole, *sharded]


def _batch(shape: Sequence[int], count: int) -> list[str | None]:
    """Letters of batch axes that broadcast from the right to `count` axes; one of size 1 is whole."""
    return [None if size == 1 else f"b{count - len(shape) + i}" for i, size in enumerate(shape)]


def _term(term: Any, count: int, letters: str) -> list[str | None] | None:
    """Axes of an addend that broadcasts to [..., M, N]."""
    if term is None:
        return None
    names = [*(f"b{i}" for i in range(count)), *letters][count + len(letters) - len(term.shape) :]
    return [None if size == 1 else name for size, name in zip(term.shape, names, strict=True)]


def _product_axes(a: Any, b: Any) -> tuple[int, list[str | None], list[str | None], list[str | None]]:
    """The result's batch axes, and the letters of a, b and the result."""
    count = max(len(a.shape), len(b.shape)) - 2
    first, second = ([*_batch(x.shape[:-2], count), *letters] for x, letters in ((a, "mk"), (b, "kn")))
    whole = [f"b{i}" for i in range(count)]
    sizes = [max((x.shape[i - count - 2] for x in (a, b) if len(x.shape) >= count + 2 - i), default=1)
             for i in range(count)]  # fmt: skip
    result = [None if size == 1 else name for size, name in zip(sizes, whole, strict=True)]
    return count, first, second, [*result, "m", "n"]


def _matmul(a: Any, b: Any, *rest: Any) -> list[Any]:
    _, first, second, result = _product_axes(a, b)
    return strategies([result], [first, second, *[None] * len(rest)], "k")


def _gemm(a: Any, b: Any, c: Any = None, bias: Any = None, alpha: Any = 1.0, beta: Any = 0.0, activation: Any = None,
          out_dtype: Any = None, config: Any = None, scale_a: Any = None, scale_b: Any = None, *rest: Any, given: int,
          ) -> list[Any]:  # fmt: skip
    count, first, second, result = _product_axes(a, b)
    rows, columns = a.shape[-2], b.shape[-1]
    whole: set[str] = set()
    if have_blocks(scale_a, scale_b, (rows, columns)):  # K stays whole, and what shares a scale stays together
        own = (("m", scale_a.shape[-2] == rows), ("n", scale_b.shape[-1] == columns))
        whole = {"k", *(letter for letter, each in own if not each)}
        scales = [[*_batch(scale_a.shape[:-2], count), "m", None], [*_batch(scale_b.shape[:-2], count), None, "n"]]
    else:
        scales = [
            None if scale is None else [letter if n == size > 1 else None for n in scale.shape]
            for scale, letter, size in ((scale_a, "m", rows), (scale_b, "n", columns))
        ]
    terms = [_term(c, count, "mn"), None if bias is None else ["n"]]
    inputs = [first, second, *terms, *[None] * 5, *scales, *[None] * len(rest)][:given]
    result = [None if letter in whole else letter for letter in result]
    inputs = [axes if axes is None else [None if letter in whole else letter for letter in axes] for axes in inputs]
    is_linear = c is None and bias is None and activation is None and not whole
    return strategies([result], inputs, "k" if is_linear else "")


def _grouped(a: Any, b: Any, ends: Any, out_dtype: Any = None, scale_a: Any = None, scale_b: Any = None,
             *rest: Any, given: int) -> list[Any]:  # fmt: skip
    """What lies in groups belongs to one by its number, so that it stays together."""
    if len(b.shape) == 2:
        return strategies([[None, "m", "n"]], [["m", None], [None, "n"], [None], *[None] * 6][:given])
    if scale_a is None:
        return strategies([[None, "n"]], [[None, "k"], [None, "k", "n"], [None], *[None] * 6][:given], "k")
    n = "n" if scale_b.shape[-1] == b.shape[-1] else None
    scales = [None] * len(scale_a.shape), [*[None] * (len(scale_b.shape) - 1), n]
    inputs = [[None, None], [None, None, n], [None], None, *scales, *[None] * 3]
    return strategies([[None, n]], inputs[:given])


def _chain(a0: Any, b0: Any, b1: Any, c1: Any = None, *rest: Any, given: int) -> list[Any]:
    """The first product is rounded before the second one, so that its sum cannot be left to the mesh."""
    operands = (a0, b0, b1)
    count = max(len(x.shape) for x in operands) - 2
    axes = [[*_batch(x.shape[:-2], count), *letters] for x, letters in zip(operands, ("mk", "kl", "ln"), strict=True)]
    batch = [f"b{i}" if any(f"b{i}" in x for x in axes) else None for i in range(count)]
    inputs = [*axes, _term(c1, count, "mn"), *[None] * len(rest)][:given]
    return strategies([[*batch, "m", "n"]], inputs, "l" if c1 is None else "")


def _allowed(causal: Any = "none", scale: Any = None, *bounds: Any) -> str:
    """Letters that may be sharded. Masks and packed sequences (of `bounds`) count positions from the first query."""
    return "bh" if causal != "none" or any(x is not None for x in bounds[:3]) else "bhi"


def _whole(options: Sequence[Any]) -> list[Axes | None]:
    """Options, among which are tensors that every rank needs: where packed sequences begin."""
    return [[None] * len(x.shape) if hasattr(x, "placements") else None for x in options]


def _attention_axes(q: Any, k: Any) -> tuple[str, str, str, str]:
    """Letters of q, k, out and LSE. A group of heads must stay with its keys: they are sharded alike or not at all."""
    heads, kv_heads = q.shape[1], k.shape[1]
    together = heads == kv_heads or kv_heads % q.mesh.size() == 0
    h = "h" if together else "_"
    return f"b{h}id", f"b{h}jd", f"b{h}ie", f"b{h}i"


def _letters(axes: str, allowed: str) -> list[str | None]:
    return [letter if letter in allowed else None for letter in axes]


def _attention(q: Any, k: Any, v: Any, *options: Any) -> list[Any]:
    queries, keys, out, lse = _attention_axes(q, k)
    tensors = [_letters(x, _allowed(*options)) for x in (out, lse, queries, keys, keys)]
    return strategies(tensors[:2], [*tensors[2:], *_whole(options)])


def _attention_float8(q: Any, k: Any, v: Any, *options: Any) -> list[Any]:
    """The same; after eight options scales, whose sequences and heads of keys are sharded as those of k are."""
    queries, keys, out, lse = _attention_axes(q, k)
    allowed = _allowed(*options)
    tensors = [_letters(x, allowed) for x in (out, lse, queries, keys, keys)]
    scales: list[Axes | None] = [
        [letter if len(x.shape) == 2 and n == size > 1 else None
         for n, size, letter in zip(x.shape, k.shape, _letters(keys, allowed), strict=False)]
        if hasattr(x, "placements") else None
        for x in options[8:]
    ]  # fmt: skip
    return strategies(tensors[:2], [*tensors[2:], *_whole(options[:8]), *scales])


def _attention_backward(
    grad: Any, grad_lse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *options: Any
) -> list[Any]:
    queries, keys, result, sums = _attention_axes(q, k)
    dq, dk, g, s = (_letters(x, _allowed(*options)) for x in (queries, keys, result, sums))
    return strategies([dq, dk, dk], [g, None if grad_lse is None else s, dq, dk, dk, g, s, *_whole(options)])


def _decode(
    q: Any, k_cache: Any, v_cache: Any, lengths: Any, block_table: Any = None, *options: Any, given: int
) -> list[Any]:
    """Heads are sharded with their caches; sequences too, unless their pages lie in one pool."""
    heads, kv_heads = q.shape[2], k_cache.shape[2]
    h = "h" if heads == kv_heads or kv_heads % q.mesh.size() == 0 else None
    b = "b" if block_table is None else None
    cache = [b, None, h, None]
    table = None if block_table is None else [None, None]
    inputs = [[b, None, h, None], cache, cache, [b], table, *[None] * len(options)][:given]
    return strategies([[b, None, h, None], [b, h, None]], inputs)


def _quantize(x: Any, *options: Any) -> list[Any]:
    """Rows may be sharded where each has scales of its own: a shard may end within a block of 128."""
    axes = [*(f"b{i}" for i in range(len(x.shape) - 2)), "m" if options[:1] in ((), (1,)) else None, None]
    return strategies([axes, axes], [axes, *[None] * len(options)])


def _quantized(
    x: Any, values: Any, scales: Any, zeros: Any, bias: Any, dtype: Any, group: int = 0, *rest: Any, given: int
) -> list[Any]:  # fmt: skip
    """K may be sharded where every shard has whole groups, and whole bytes. Rows in groups stay together."""
    if len(rest) > 2 and rest[2] is not None:  # ends, after out_dtype and config
        columns = [None, "n", None]
        others = [columns, None if zeros is None else columns, None if bias is None else [None, "n"]]
        return strategies([[None, "n"]], [[None, None], columns, *others, *[None] * 4, [None]])
    count = max(len(x.shape), len(values.shape)) - 2
    k = "k" if x.shape[-1] % (x.mesh.size() * max(group, 2)) == 0 else None
    batch = _batch(values.shape[:-2], count)
    of_groups = [*batch, "n", k if group else None]
    sizes = [max((t.shape[i - count - 2] for t in (x, values) if len(t.shape) >= count + 2 - i), default=1)
             for i in range(count)]  # fmt: skip
    result = [*(None if size == 1 else f"b{i}" for i, size in enumerate(sizes)), "m", "n"]
    inputs = [
        [*_batch(x.shape[:-2], count), "m", k], [*batch, "n", k], of_groups, None if zeros is None else of_groups,
        None if bias is None else ["n"], None, None, *[None] * len(rest),
    ][:given]  # fmt: skip
    return strategies([result], inputs, "k" if k and bias is None else "")


def _transform3d(coeffs: Any, matrix: Any, *rest: Any) -> list[Any]:
    tensors = ["n", None, None, None]
    return strategies([tensors], [tensors, [None] * len(matrix.shape), *[None] * len(rest)])


def _transpose(x: Any, *rest: Any) -> list[Any]:
    batch = [f"b{i}" for i in range(len(x.shape) - 2)]
    return strategies([[*batch, "c", "r"]], [[*batch, "r", "c"], *[None] * len(rest)])


def _refuse(*args: Any) -> list[Any]:
    raise UnsupportedError("out: expected none for DTensors, whose result has placements of its own")


def _register(name: str, rule: Callable[..., list[Any]], *, counts: bool = False) -> None:
    operator = getattr(torch.ops.laneloom, name).default
    register_sharding(operator)((lambda *args: rule(*args, given=len(args))) if counts else rule)
    # The rules depend on which operands there are and on options; DTensor's cache has to see all of them.
    info = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[operator]
    info.static_argnum = 0


_register("matmul", _matmul)
_register("gemm", _gemm, counts=True)
_register("grouped_matmul", _grouped, counts=True)
_register("gemm_chain", _chain, counts=True)
_register("flash_attention", _attention)
_register("flash_attention_backward", _attention_backward)
_register("flash_attention_float8", _attention_float8)
_register("attention_decode", _decode, counts=True)
_register("quantize_blocks", _quantize)
_register("quantized_matmul", _quantized, counts=True)
_register("transform3d", _transform3d)
_register("transpose", _transpose)
for _name in (
    "matmul_out", "gemm_out", "grouped_matmul_out", "gemm_chain_out", "quantized_matmul_out", "transform3d_out",
    "transpose_out",
):  # fmt: skip
    _register(_name, _refuse)
