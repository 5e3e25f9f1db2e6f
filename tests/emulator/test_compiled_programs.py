"""What clang compiles for AMD's GPUs gives in the emulator what it gives on this machine: random C programs.

They need a clang that knows both, which LANELOOM_CLANG may name, and an llvm-objdump. LANELOOM_RANDOM_PROGRAMS says how
many run.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct

import compiled_programs
import numpy as np
import pytest
from compiled_here import GPUS, call_clang, compiled, llvm_ir, need_clang, run_assembly, run_code_object

from laneloom.codegen import compile_llvm_ir, versions

LANES = 100
COUNT = int(os.environ.get("LANELOOM_RANDOM_PROGRAMS", "12"))


class Given(ctypes.Structure):
    """What the programs get by value."""

    _fields_ = (
        ("a", ctypes.c_int8), ("b", ctypes.c_int16), ("c", ctypes.c_float), ("d", ctypes.c_uint64),
        ("e", ctypes.c_uint8),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _clang():
    need_clang()


def on_this_machine(text: str, folder, given: np.ndarray, outputs: int, by_value: Given) -> np.ndarray:
    library = folder / "program.so"
    rounded = ["-Xclang", "-ffloat16-excess-precision=none"]
    call_clang(text, "-O1", *rounded, "-shared", "-fPIC", "-o", str(library), "-lm", "-lgcc")
    function = ctypes.CDLL(str(library)).program
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, Given, ctypes.c_int]
    out = np.zeros((len(given), outputs), np.uint64)
    function(out.ctypes.data, given.ctypes.data, by_value, len(given))
    return out


def numbers(seed: int) -> np.ndarray:
    """Random bits, small integers of both signs, and ordinary floats of each size."""
    rng = np.random.default_rng(seed)
    shape = (LANES, compiled_programs.INPUTS)
    small = rng.integers(0, 100, shape).astype(np.uint64)
    halves = (rng.standard_normal(shape) * 8).astype(np.float16).view(np.uint16).astype(np.uint64)
    singles = rng.standard_normal(shape).astype(np.float32).view(np.uint32).astype(np.uint64)
    doubles = (rng.standard_normal(shape) * np.exp(5 * rng.standard_normal(shape))).view(np.uint64)
    anything = rng.integers(0, 1 << 64, shape, dtype=np.uint64)
    kinds = np.stack([anything, small, np.uint64(0) - small, halves, singles, doubles])
    return np.ascontiguousarray(np.take_along_axis(kinds, rng.integers(0, len(kinds), shape)[None], axis=0)[0])


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_programs(seed, tmp_path):
    program = compiled_programs.Program(seed)
    choose = random.Random(seed)
    gpu, level = choose.choice(GPUS), choose.choice(["-O0", "-O1", "-O2", "-O3", "-Os"])
    options = [level, *choose.choice([[], [], ["-mwavefrontsize64"]])]
    # Without the attribute every access is a flat one.
    options.append("-DPOINTER=" + choose.choice(["", "__attribute__((address_space(1)))"]))
    given, by_value = numbers(seed), Given(-5, -300, 1.5, (1 << 40) + 7, 200)
    want = on_this_machine(program.text, tmp_path, given, program.outputs, by_value)
    got = np.full_like(want, 0xEEEEEEEE)
    arguments = [got, given.copy(), bytes(by_value), struct.pack("<i", LANES)]
    binary = compiled(program.text, gpu, *options)
    run_code_object(binary, arguments, grid=-(-LANES // 64), strict=choose.random() < 0.5)
    assert (got == want).all(), f"{gpu} {' '.join(options)}: lane, output {np.argwhere(got != want)[0]}"


@pytest.mark.skipif(versions.parse_version(versions.triton_version()) < (3, 9), reason="Triton 3.9 knows these GPUs")
@pytest.mark.parametrize("gpu", ["gfx1250", "gfx950", "gfx1172", "gfx1201"])
@pytest.mark.parametrize("seed", range(max(COUNT // 12, 1)))
def test_random_programs_by_tritons_llvm(seed, gpu, tmp_path):
    """Code of the LLVM that Triton has, which is newer than most clangs: halves of registers, `v_bitop3`, generic
    addresses of scratch. At -O0 that LLVM itself is wrong about some of them."""
    seed = 1000 + 4 * seed + len(gpu)
    program, choose = compiled_programs.Program(seed), random.Random(seed)
    where = choose.choice(["", "__attribute__((address_space(1)))"])
    options = [choose.choice(["-O1", "-O2", "-Os"]), f"-DPOINTER={where}"]
    given, by_value = numbers(seed), Given(-5, -300, 1.5, (1 << 40) + 7, 200)
    want = on_this_machine(program.text, tmp_path, given, program.outputs, by_value)
    got = np.full_like(want, 0xEEEEEEEE)
    code = compile_llvm_ir(llvm_ir(program.text, {"gfx950": "gfx942"}.get(gpu, "gfx1201"), *options), gpu)
    arguments = [got, given.copy(), bytes(by_value), struct.pack("<i", LANES)]
    run_assembly(code.asm, gpu, arguments, grid=-(-LANES // 64), strict=True)
    assert (got == want).all(), f"{gpu} {' '.join(options)}: lane, output {np.argwhere(got != want)[0]}"


POINTERS = """
#define GLOBAL __attribute__((address_space(1)))
#define SEEN __attribute__((visibility("default")))
#define CALLED static __attribute__((noinline))
CALLED int triple(int x) { return x * 3 + 1; }
CALLED int less(int x) { return x - 7; }
CALLED int flip(int x) { return x ^ 0x55; }
SEEN int (*functions[3])(int) = {triple, less, flip};
SEEN GLOBAL int counter = 5;
GLOBAL int* to_counter = &counter;
CALLED int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__attribute__((amdgpu_kernel)) void k(GLOBAL int* out, const GLOBAL int* in) {
  int i = __builtin_amdgcn_workitem_id_x();
  out[i] = functions[(unsigned)in[i] % 3](in[i]);
  out[i + 64] = fibonacci(i & 7);
  out[i + 128] = *to_counter + counter;
}
"""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("level", ["-O0", "-O3"])
@pytest.mark.parametrize("gpu", GPUS)
def test_function_pointers_recursion_and_relocations(gpu, level, strict):
    """Tables of functions, a stack whose depth nobody knows, variables by way of the global offset table."""
    out, x = np.zeros(192, np.int32), np.arange(64, dtype=np.int32) * 37
    run_code_object(compiled(POINTERS, gpu, level), [out, x], strict=strict)
    assert out[:64].tolist() == [(v * 3 + 1, v - 7, v ^ 0x55)[v % 3] for v in x.tolist()]
    assert out[64:128].tolist() == [(0, 1, 1, 2, 3, 5, 8, 13)[i & 7] for i in range(64)]
    assert (out[128:] == 10).all()
