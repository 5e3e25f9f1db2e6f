"""A mode that lets nothing go past PyTorch's dispatcher: what operators do where something looks."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):
    """Passes on what it sees; backward passes inside it are watched as well."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
