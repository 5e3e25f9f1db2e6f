"""Importing this fills `VECTOR`, `SCALAR` and `SPECIAL` with every ALU instruction that the emulator knows."""

from . import (  # noqa: F401
    carry,
    compare,
    division,
    floating,
    integer,
    scalar_alu,
    transcendental,
)
