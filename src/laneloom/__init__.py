"""laneloom: matrix-core kernels for PyTorch on AMD and NVIDIA, and an emulator that runs any Triton kernel as RDNA code."""
