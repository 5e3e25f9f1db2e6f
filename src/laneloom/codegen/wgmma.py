"""CUDA C++ functions for Hopper's warpgroup matrix instruction: its shapes have too many operands to write by hand."""

from __future__ import annotations

#: dtype -> PTX's type and K of one instruction
_TYPES = {
    "fp16": ("f16", 16), "bf16": ("bf16", 16), "tf32": ("tf32", 8), "fp8": ("e4m3", 32), "bf8": ("e5m2", 32),
    "int8": ("s8", 32), "uint8": ("u8", 32),
}  # fmt: skip


def wgmma_function(
    name: str, columns: int, dtype: str, *, dtype_b: str | None = None, a_in_registers: bool = False,
    a_by_column: bool = False, b_by_row: bool = False,
) -> str:  # fmt: skip
    """Text of `void name(float (&d)[columns / 2], A, u64 b, int accumulate)`: d = A B + (accumulate ? d : 0).

    A is 64 x K, B is K x `columns` (a multiple of 8 up to 256, of integers one of 16 above 32), K = 16 (TF32: 8, 8-bit
    types: 32). B's dtype is A's unless `dtype_b` names another 8-bit one; sums of integers are `int`. A is a descriptor
    of shared memory (u64) or four registers (u32 a0..a3), b a descriptor. By default both lie with K contiguous;
    `a_by_column` and `b_by_row` say that M and N are (16-bit types only). Asynchronous: a fence before, a commit and a
    wait after.
    Source: PTX ISA, "Asynchronous warpgroup level matrix instructions".
    """
    kind, depth = _TYPES[dtype]
    kind_b = _TYPES[dtype_b or dtype][0]
    integer = dtype in ("int8", "uint8")
    value, operand, sum_kind = ("int", "+r", "s32") if integer else ("float", "+f", "f32")
    results = columns // 2
    a_operands = 4 if a_in_registers else 1
    sums = ", ".join(f"%{i}" for i in range(results))
    a = ", ".join(f"%{results + i}" for i in range(a_operands))
    b, flag = f"%{results + a_operands}", f"%{results + a_operands + 1}"
    modes = "" if integer else ", 1, 1"
    if depth == 16:
        modes += f", {int(b_by_row)}" if a_in_registers else f", {int(a_by_column)}, {int(b_by_row)}"
    parameters = "u32 a0, u32 a1, u32 a2, u32 a3" if a_in_registers else "u64 a"
    inputs = ", ".join(f'"r"(a{i})' for i in range(4)) if a_in_registers else '"l"(a)'
    outputs = ", ".join(f'"{operand}"(d[{i}])' for i in range(results))
    return (
        f"__device__ __forceinline__ void {name}({value} (&d)[{results}], {parameters}, u64 b, int accumulate) {{\n"
        f'  asm volatile("{{.reg .pred p; setp.ne.b32 p, {flag}, 0;\\n"\n'
        f'    "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{sum_kind}.{kind}.{kind_b} "\n'
        f'    "{{{sums}}}, {"{" + a + "}" if a_in_registers else a}, {b}, p{modes};}}\\n"\n'
        f'    : {outputs}\n    : {inputs}, "l"(b), "r"(accumulate));\n}}\n'
    )
