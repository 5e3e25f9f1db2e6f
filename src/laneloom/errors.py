"""Every exception that a user of laneloom can meet."""

from __future__ import annotations


class LaneloomError(Exception):
    """Base of all errors that laneloom raises on purpose."""


class UnknownGpuError(LaneloomError, ValueError):
    """A GPU name that is not in the table."""


class ArgumentError(LaneloomError, ValueError):
    """An argument of a public function has the wrong shape, dtype, device or value."""


class UnsupportedError(LaneloomError):
    """A request that is well-formed but that laneloom refuses, with the reason."""


class InvalidConfigError(LaneloomError, ValueError):
    """A Config that `why_invalid` rejects for this problem and GPU."""


class CompileError(LaneloomError):
    """Triton or its LLVM could not turn the source into machine code."""


class EmulationError(LaneloomError):
    """The emulator stopped; the message names the kernel, the line and the instruction."""


class UnknownInstructionError(EmulationError):
    """The emulator met an instruction that it does not implement."""


class OutOfBoundsError(EmulationError):
    """A memory access outside the kernel's arguments or its LDS allocation."""


class DeadlockError(EmulationError):
    """Waves wait at a barrier that the rest of their workgroup can never reach."""


class TrapError(EmulationError):
    """The kernel stopped itself: a `tl.device_assert` that fails, or a trap instruction."""


class HazardError(EmulationError):
    """Strict mode found what a GPU hides; `kind` says what.

    "wait": a register used before the wait that guards its load. "race": two waves of a workgroup, one byte, at least
    one store, no barrier between; or two workgroups that store different values to one byte. "undefined": an address,
    stored data, a branch or EXEC that depends on what nobody wrote. "barrier": not all waves reach it. "alignment": an
    address that its access does not allow. "replication": gfx11 WMMA operands whose two halves differ. "exec": a matrix
    instruction with inactive lanes.
    """

    def __init__(self, message: str, kind: str = ""):
        super().__init__(message)
        self.kind = kind
