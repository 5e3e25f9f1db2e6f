"""The processor that machine code says it is for: a GPU, or a family of them that LLVM calls generic."""

from __future__ import annotations

import re

from ..errors import ArgumentError
from ..gpu import GPUS, get_gpu

#: what follows the triple in `.amdgcn_target`
_NAMED = re.compile(r"^\s*\.amdgcn_target\s+\"?[^\s\"]*?-(gfx[0-9a-f]+(?:-[0-9]+)?(?:-generic)?)", re.MULTILINE)
# Code for a whole family, and the GPUs of the table that run it (LLVM AMDGPUUsage, "Generic processor").
_GENERIC = {
    "gfx9-4-generic": ("gfx942", "gfx950"),
    "gfx11-generic": tuple(name for name in GPUS if name.startswith(("gfx110", "gfx115"))),
    "gfx12-generic": tuple(name for name in GPUS if name.startswith("gfx120")),
    "gfx12-5-generic": ("gfx1250", "gfx1251"),
}


def named_in(text: str) -> str | None:
    """The processor that an assembly names."""
    found = _NAMED.search(text)
    return found[1] if found else None


def runs_on(target: str) -> tuple[str, ...]:
    """The GPUs that run code for a processor, the first of them where nobody asks for another."""
    return _GENERIC.get(target, (target,))


def gpu_of(text: str, asked: str | None) -> str | None:
    """The GPU that an assembly runs on: the one that is asked for, else the one that the text names.

    Raises ArgumentError where these two have not the same instruction set; a text may name a GPU that nobody knows.
    """
    target = named_in(text)
    if target is None or asked is None:
        return asked if target is None else runs_on(target)[0]
    own = runs_on(target)[0]
    if own in GPUS and asked in GPUS and get_gpu(own).generation != get_gpu(asked).generation:
        raise ArgumentError(f"the text is code for {target}, which {asked} does not run")
    return asked
