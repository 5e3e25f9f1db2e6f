"""The only place that knows how Triton's versions differ.

Triton 3.6 to 3.9 are supported. An older one is refused with an UnsupportedError; a newer one is tried, with
one warning, because most of them work. The jit functions here are used from kernels in other modules: the
JIT takes their sources into the caller's cache key.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars  # pyright: ignore[reportMissingImports]
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.runtime.jit import JITFunction

from ..errors import ArgumentError, UnsupportedError
from ..gpu import Gpu

OLDEST, NEWEST = (3, 6), (3, 9)

__all__ = [
    "NEWEST",
    "OLDEST",
    "GluonASTSource",
    "assembler",
    "assembler_features",
    "check_gpu",
    "check_layout",
    "check_triton",
    "compiler_environment",
    "cu_mode_options",
    "cta_barrier",
    "default_fp_fusion",
    "forgets_waits_of_lds",
    "is_jit_function",
    "knob_values",
    "parse_version",
    "rewritten_assembly",
    "tma_load",
    "tma_store",
    "triton_version",
    "wmma_layout",
]


def triton_version() -> str:
    """Triton's own version text, for example "3.9.0"."""
    return triton.__version__


def parse_version(text: str) -> tuple[int, int]:
    """Major and minor number of a version text such as "3.6.0+git1234"."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    if numbers is None:
        raise UnsupportedError(f"cannot read Triton's version {text!r}: install triton 3.6 to 3.9")
    return int(numbers[1]), int(numbers[2])


def check_triton(version: str | None = None) -> None:
    """Raise UnsupportedError for a Triton older than 3.6; warn once for one newer than 3.9."""
    _check_version(version or triton_version())


@functools.cache
def _check_version(version: str) -> None:
    number = parse_version(version)
    if number < OLDEST:
        raise UnsupportedError(f"laneloom needs triton 3.6 to 3.9, but {version} is installed")
    if number > NEWEST:
        warnings.warn(
            f"laneloom is tested with triton 3.6 to 3.9; {version} is newer and may compile differently",
            stacklevel=3,
        )


if hasattr(gl, "barrier"):  # 3.7 and newer

    @gluon.jit
    def cta_barrier():
        """Wait until every wave of the workgroup is here; orders their LDS accesses before and after it."""
        gl.barrier()

else:

    @gluon.jit
    def cta_barrier():
        """Wait until every wave of the workgroup is here; orders their LDS accesses before and after it."""
        gl.thread_barrier()  # pyright: ignore[reportAttributeAccessIssue]


if hasattr(gl.shared_memory_descriptor, "reinterpret"):  # 3.7 and newer

    @gluon.jit
    def reinterpreted(x_lds, SHAPE: gl.constexpr, LAYOUT: gl.constexpr):
        """The same LDS by another shape and layout."""
        return x_lds.reinterpret(x_lds.dtype, SHAPE, LAYOUT)

else:

    @gluon.jit
    def reinterpreted(x_lds, SHAPE: gl.constexpr, LAYOUT: gl.constexpr):
        """The same LDS by another shape and layout."""
        return x_lds._reinterpret(x_lds.dtype, SHAPE, LAYOUT)


if hasattr(tma, "async_load"):  # 3.8 and newer; 3.9 refuses the former names

    @gluon.jit
    def tma_load(descriptor, coordinates, barrier, target):
        """Start a TMA copy of one block to shared memory; `barrier` counts its bytes as they arrive."""
        tma.async_load(descriptor, coordinates, barrier, target)  # pyright: ignore[reportAttributeAccessIssue]

    @gluon.jit
    def tma_store(descriptor, coordinates, source):
        """Start a TMA copy of one block from shared memory; `tma.store_wait` orders what comes after."""
        tma.async_store(descriptor, coordinates, source)  # pyright: ignore[reportAttributeAccessIssue]

else:

    @gluon.jit
    def tma_load(descriptor, coordinates, barrier, target):
        """Start a TMA copy of one block to shared memory; `barrier` counts its bytes as they arrive."""
        tma.async_copy_global_to_shared(descriptor, coordinates, barrier, target)

    @gluon.jit
    def tma_store(descriptor, coordinates, source):
        """Start a TMA copy of one block from shared memory; `tma.store_wait` orders what comes after."""
        tma.async_copy_shared_to_global(descriptor, coordinates, source)


def wmma_layout(
    version: int,
    warps_m: int,
    warps_n: int,
    transposed: bool,
    instr_shape: tuple[int, int, int] = (16, 16, 16),
    pairs: bool = False,
) -> Any:
    """Gluon's accumulator layout of `warps_m` x `warps_n` waves, each with one matrix-instruction tile at a
    time, or with two that are neighbours along M.

    `version` is 1 on RDNA 3 and 3.5, 2 on RDNA 4, 3 on CDNA 5. Wave numbers run along N first. `transposed` puts
    consecutive elements of a lane along N instead of M. RDNA 3 has 16-bit sums of two tiles in the halves of
    one register; Triton 3.9 mixes them up unless a wave has `pairs` or one row of tiles. 3.6 has no pairs and
    needs none. Raises ArgumentError unless both wave counts are powers of two.
    """
    for name, count in (("warps_m", warps_m), ("warps_n", warps_n)):
        if count < 1 or count & (count - 1):
            raise ArgumentError(f"{name} must be a power of two, not {count}")
    layout: Any = gl.amd.AMDWMMALayout
    if "warps_per_cta" in inspect.signature(layout).parameters:  # 3.6
        return layout(version, transposed, [warps_m, warps_n], list(instr_shape))
    # From 3.7 each bit of the wave's number has a basis vector, in units of instruction tiles.
    bases = [[0, 1 << bit] for bit in range(warps_n.bit_length() - 1)]
    bases += [[1 << bit + pairs, 0] for bit in range(warps_m.bit_length() - 1)]
    return layout(version, transposed, bases, [[1, 0]] if pairs else [], list(instr_shape))


def check_layout(name: str, value: Any, gpu: Gpu) -> None:
    """Raise ArgumentError where `value` is a WMMA layout of another generation than `gpu`'s.

    Triton accepts it, and LLVM, which then has no such instruction, aborts the process.
    """
    layout = getattr(value, "parent", value)
    if not isinstance(layout, gl.amd.AMDWMMALayout):
        return
    if layout.version != gpu.wmma_version:
        known = {1: "RDNA 3 and 3.5", 2: "RDNA 4", 3: "CDNA 5"}
        raise ArgumentError(
            f"{name} is a WMMA layout of version {layout.version}, which is for "
            f"{known.get(layout.version, 'another GPU')}, not for {gpu.name} ({gpu.family})"
        )


def check_gpu(gpu: Gpu) -> None:
    """Raise UnsupportedError where this Triton's LLVM or its own backend does not know a GPU that 3.9 does."""
    gpu.check_triton(triton_version())


def assembler() -> Callable[[str, str, str], bytes]:
    """Triton's AMDGCN assembler: (text, processor, features) -> object file. 3.9 moved it out of
    libtriton.
    """
    from triton._C.libtriton import amd, llvm  # pyright: ignore[reportMissingImports]
    from triton.backends.amd import compiler

    llvm.init_targets()
    return getattr(compiler, "assemble_amdgcn", None) or amd.assemble_amdgcn


_HALF = re.compile(r"\bv\d+\.[lh]\b")


def assembler_features(gpu: Gpu, text: str = "") -> str:
    """LLVM features with which `text` for `gpu` assembles; without one, those of Triton's own.

    LLVM takes 16-bit operands of RDNA as halves (`v1.h`) or as whole registers, not both. 3.6 to 3.8 write those of
    RDNA 3 as whole registers, which the assembler of 3.7 and 3.8 has to be told; newer compilers write halves.
    """
    if gpu.major > 9 and _HALF.search(text):
        return "+real-true16"
    whole_registers = parse_version(triton_version()) in ((3, 7), (3, 8)) and gpu.major == 11
    return "-real-true16" if whole_registers else ""


def forgets_waits_of_lds() -> bool:
    """Whether LLVM may let waves reach a loop's barrier with stores to LDS under way: that of 3.7 and 3.8 does."""
    return parse_version(triton_version()) in ((3, 7), (3, 8))


def default_fp_fusion() -> bool:
    """Whether a * b + c may become one FMA where neither kernel nor caller says so: unless TRITON_DEFAULT_FP_FUSION is
    0, whatever the Triton at hand makes of its absence. Passing it on silences 3.9's warning.
    """
    is_set = "TRITON_DEFAULT_FP_FUSION" in os.environ or "default_fp_fusion" in vars(knobs.language)
    return bool(knobs.language.default_fp_fusion) if is_set else True


def compiler_environment() -> dict[str, str]:
    """Environment variables that change what Triton compiles: a part of every cache key."""
    return {str(name): str(value) for name, value in get_cache_invalidating_env_vars().items()}


def cu_mode_options() -> dict[str, str]:
    """Launch options that keep a workgroup on one compute unit of an RDNA WGP; none before Triton 3.9."""
    from triton.backends.amd.compiler import HIPOptions

    return {"wgp_cu_mode": "cu"} if "wgp_cu_mode" in HIPOptions.__dataclass_fields__ else {}


def is_jit_function(kernel: object) -> bool:
    """Whether `kernel` came from @triton.jit or @gluon.jit (and not from an autotuner or the interpreter)."""
    return isinstance(kernel, JITFunction)


@contextmanager
def knob_values(*, buffer_ops: bool) -> Iterator[None]:
    """Triton's process-wide settings for one compilation, restored after it.

    Triton's own disk cache is passed over, so that a damaged file in it cannot reach a CodeObject; and
    `ptxas -v` is printed, which is the only source of NVIDIA's spill count.
    """
    with knobs.compilation.scope(), knobs.amd.scope(), knobs.nvidia.scope():
        knobs.compilation.always_compile = True
        if knobs.amd.use_buffer_ops != buffer_ops:  # a knob that is set is a part of the key in Triton's cache
            knobs.amd.use_buffer_ops = buffer_ops
        knobs.nvidia.dump_ptxas_log = True
        yield


@contextmanager
def rewritten_assembly(rewrite: Callable[[str], str], name: str) -> Iterator[None]:
    """Pass the text that Triton's AMD backend generates through `rewrite` before it is assembled.

    Triton's hook for this belongs to the process. From 3.7 its caches keep what was compiled under the hook, which is
    known by `name`, apart; 3.6 does not, so a kernel has to be compiled under it always or never.
    """
    runtime: Any = knobs.runtime  # its hook has other arguments in each version
    before = runtime.add_stages_inspection_hook

    def hook(backend=None, stages=None, options=None, language=None, capability=None):
        if stages is None:
            key = (name, name) if before is None else tuple(f"{name}+{part}" for part in before())
            return key
        if before is not None:
            before(backend, stages, options, language, capability)
        generate = stages.get("amdgcn")
        if generate is not None:
            stages["amdgcn"] = lambda source, metadata: rewrite(generate(source, metadata))

    runtime.add_stages_inspection_hook = hook
    try:
        yield
    finally:
        runtime.add_stages_inspection_hook = before
