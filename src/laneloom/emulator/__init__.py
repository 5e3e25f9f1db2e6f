"""Executes machine code of RDNA and CDNA on a CPU: parse, state, memory, instruction classes, the Triton driver."""
