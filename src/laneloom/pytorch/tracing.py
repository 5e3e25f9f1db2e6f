"""The decisions of `patched` while torch.compile traces a call: made once, by the sizes at hand, without guards."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.comptime import comptime

from .patch import innermost

_decided: list[bool] = []


def takes_traced(function: str, x: Any, y: Any, z: Any, options: tuple[Any, ...]) -> bool:
    """Whether a traced call goes to laneloom: a constant of the graph."""
    comptime(_decide)
    return _take_decided()


def _decide(ctx: Any) -> None:
    """Runs while `takes_traced` is traced, with its locals."""

    def local(name: str) -> Any:
        variable = ctx.get_local(name)
        try:
            return variable.as_python_constant()
        except NotImplementedError:  # no constant: a tensor
            return variable.as_fake()

    _decided.append(innermost().decide_traced(*map(local, ("function", "x", "y", "z", "options"))))


@torch.compiler.assume_constant_result
def _take_decided() -> bool:
    return _decided.pop()
