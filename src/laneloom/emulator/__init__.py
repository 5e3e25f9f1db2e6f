"""Executes AMD machine code (gfx11, gfx12) on a CPU: parse, state, memory, instruction classes, the Triton driver."""
