"""What Triton calls the project's dtypes; numpy arrays are multiplied without torch, which `tma` needs."""

TRITON_TYPES = {
    "bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "fp64": "fp64", "int8": "i8", "int32": "i32", "fp8": "fp8e4nv",
    "bf8": "fp8e5",
}  # fmt: skip
