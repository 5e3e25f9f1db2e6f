"""The part of a kernel's argument block that a launch leaves out, and what of it strict mode sees the kernel read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..isa.metadata import ArgumentMetadata


class NotGiven:
    """Bytes [start, end) of the argument block at `base`; nothing where end is not behind start.

    arguments: as the metadata lists them, if there is any.
    """

    def __init__(self, base: int, start: int, end: int, arguments: Sequence[ArgumentMetadata] = ()):
        self.base, self.start, self.arguments = base, start, arguments
        self.read = np.zeros(max(end - start, 0), np.bool_)

    def __bool__(self) -> bool:
        return self.read.size > 0

    def lacks(self, address: np.ndarray, nbytes: int) -> np.ndarray:
        """Which of the bytes [..., nbytes] from each address on nobody gives; they are noted as read."""
        octets = address[..., None] - (self.base + self.start) + np.arange(nbytes)
        lacks = (octets >= 0) & (octets < self.read.size)
        self.read[octets[lacks]] = True
        return lacks

    def said(self) -> str:
        """For a report on undefined bits: which arguments are missing that the kernel has read, if there are any."""
        at = self.start + np.flatnonzero(self.read)
        names = []
        if self.arguments:  # what lies between them is padding, which wide loads read as well
            belongs = np.zeros(at.size, np.bool_)
            for k, a in enumerate(self.arguments):
                its = (at >= a.offset) & (at < a.offset + a.size)
                names += [a.name or f"argument {k}"] if its.any() else []
                belongs |= its
            at = at[belongs]
        if at.size == 0:
            return ""
        runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
        octets = ", ".join(f"{run[0]} to {run[-1]}" for run in runs)
        which = f" ({', '.join(names)})" if names else ""
        octets = f"bytes {octets} of the argument block{which}"
        return f"; the kernel reads arguments that the launch does not give: {octets}"
