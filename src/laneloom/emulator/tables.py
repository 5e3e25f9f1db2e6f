"""Importing this fills `VECTOR` and `SCALAR` with every ALU instruction that the emulator knows."""

from . import (  # noqa: F401
    carry,
    compare,
    convert,
    division,
    double,
    exec_mask,
    floating,
    integer,
    lanes,
    scalar_alu,
    transcendental,
)
