"""Importing this fills `VECTOR` and `SCALAR` with every ALU instruction that the emulator knows."""

from . import (  # noqa: F401
    carry,
    cdna4_alu,
    cdna4_stochastic,
    cdna5_alu,
    cdna5_convert,
    cdna5_pairs,
    cdna_alu,
    compare,
    convert,
    division,
    dots,
    double,
    exec_mask,
    float8_convert,
    floating,
    graphics,
    half,
    identity,
    integer,
    lanes,
    packed,
    scalar_alu,
    scalar_float,
    transcendental,
)
from .aliases import declare_aliases

declare_aliases()
