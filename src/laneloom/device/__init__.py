"""JIT device functions that two kernels or more use unchanged."""
