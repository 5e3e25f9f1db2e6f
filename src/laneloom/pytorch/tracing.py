"""The decisions of `patched` while torch.compile traces a call: made once, by the sizes at hand, without guards."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.comptime import comptime

from .patch import decide_call, innermost

_decided: list[bool] = []
#: operands of the last call that was left to torch, and the number of modes around the context that left it
_left: list[tuple[tuple[Any, ...], int]] = []


def takes_traced(
    function: str, x: Any, y: Any, z: Any, options: tuple[Any, ...], always: bool, captured: bool, around: int
) -> bool:
    """Whether a traced call goes to laneloom: a constant of the graph.

    always, captured: those of the context. around: the modes that stand around it and see what it leaves to torch.
    """
    comptime(_decide)
    return _take_decided()


def _decide(ctx: Any) -> None:
    """Runs while `takes_traced` is traced, with its locals.

    What a context is that was entered in the traced code, nobody knows here but by its options, so that no report has
    its calls.
    """

    def local(name: str) -> Any:
        variable = ctx.get_local(name)
        try:
            return variable.as_python_constant()
        except NotImplementedError:  # no constant: a tensor
            return variable.as_fake()

    operands, around = tuple(map(local, ("x", "y", "z"))), local("around")
    last, _left[:] = _left[:], [(operands, around)]
    if any(around < outer and all(a is b for a, b in zip(operands, seen, strict=True)) for seen, outer in last):
        _decided.append(False)  # an inner context has decided
        return
    decided = decide_call(local("function"), *operands, *map(local, ("options", "always", "captured")), traced=True)
    if (context := innermost()) is not None:
        context.note_traced(decided)
    if decided[2]:
        _left.clear()
    _decided.append(decided[2])


@torch.compiler.assume_constant_result
def _take_decided() -> bool:
    return _decided.pop()
