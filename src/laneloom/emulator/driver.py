"""The emulator as Triton's active driver: `with emulated("gfx1151"):` runs any Triton or Gluon kernel on CPU tensors.

Triton's own JIT specialises, compiles and caches the kernel for that GPU; what it launches, the emulator executes on
the tensors' real addresses. Nothing in the kernel or its call changes.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import triton
from triton.backends.amd.compiler import HIPBackend
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver as triton_driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITCallable

from ..errors import CompileError, EmulationError, UnsupportedError
from ..gpu import GPUS, Gpu, emulated_gpu
from ..isa.elf import read_sections
from ..isa.metadata import parse_metadata
from ..isa.notes import read_metadata
from ..locks import process_lock
from .arguments import ArrayArgument, Layout, check_context, extent
from .context import Emulated, check_knobs
from .cuda_on_cpu import is_on, warn_of_host
from .launch import LaunchRecord, launch
from .pointers import pointed_at
from .program import Program, load
from .sums import added

__all__ = ["ArrayArgument", "EmulatedDriver", "Emulation", "emulate_code_object", "emulated"]

# Kernels are built and run one at a time: the closures of a Program keep working memory of their own.
_one_at_a_time = process_lock()
_parsing = process_lock()
_given_back: list[list[Any]] = []  #: of each context that is entered, what was there before it


@dataclass
class Emulation:
    """What `emulated` yields."""

    gpu: Gpu
    strict: bool = False
    seed: int = 0
    profile: bool = False
    launches: list[LaunchRecord] = field(default_factory=list)
    bounds: str = "view"
    sums: str = "hardware"
    launcher: Callable[..., LaunchRecord] = launch  #: runs each kernel; the timing model puts its own here

    def run(self, program: Program, grid: Sequence[int], kernarg: bytes, **how: Any) -> LaunchRecord:
        """Launch a program as this context asks for (`how` as for `emulator.launch.launch`) and note what it did."""
        with added(self.sums):
            record = self.launcher(program, grid, kernarg, seed=self.seed, profile=self.profile, **how)
        self.launches.append(record)
        return record

    @property
    def beyond(self) -> dict[str, bool]:
        """What `launch` is told about accesses past the end of LDS, where they are no error."""
        return {"lds_drops": True} if self.bounds == "hardware" else {}

    @property
    def instructions(self) -> int:
        """Wave-instructions executed so far."""
        return sum(record.instructions for record in self.launches)


class _Utils:
    """What Triton asks of a driver about its device and its binaries."""

    handles = iter(range(1, 1 << 31))  #: of functions: numbers, as a GPU's driver gives them and Proton's hook wants

    def __init__(self, gpu: Gpu):
        self.gpu = gpu

    def get_device_properties(self, device: int) -> dict[str, Any]:
        gpu = self.gpu
        lanes = gpu.simds_per_cu * gpu.wave
        return {
            "max_shared_mem": gpu.lds_bytes, "multiprocessor_count": gpu.compute_units, "warpSize": gpu.wave,
            "max_num_regs": gpu.vgpr_file * lanes, "max_threads_per_sm": gpu.max_waves_per_simd * lanes,
            "sm_clock_rate": int(gpu.clock_ghz * 1e6), "mem_clock_rate": 0, "mem_bus_width": 0, "arch": gpu.name,
            "cooperativeLaunch": 1,
        }  # fmt: skip

    def load_binary(self, name: str, binary: bytes, shared: int, device: int):
        """(module, function, registers, spills (words of scratch a lane, as HIP says), threads). Nothing is loaded, and
        no module given, because Triton would ask whichever driver is active later, if any, to unload it."""
        kernels = (read_metadata(read_sections(binary)) or {}).get("amdhsa.kernels", ())
        facts = next((k for k in kernels if k.get(".name") == name), {})
        spills = facts.get(".private_segment_fixed_size", 0) // 4
        return None, next(self.handles), facts.get(".vgpr_count", 0), spills, 1024

    def unload_module(self, module: object) -> None:
        """Nothing was loaded."""


#: inline assembly in LLVM IR: its text, its constraints, its operands; and in the listing
_INLINE = re.compile(
    r'\basm (?:sideeffect |alignstack |inteldialect |unwind )*"((?:[^"\\]|\\.)*)", "([^"]*)"(?:\((.*?)\) #|)'
)
_WRITTEN = re.compile(r";;#ASMSTART\n(.*?);;#ASMEND", re.DOTALL)
_REPLACED = re.compile(r"\\\$(?:\d+|\\\{.*?\\\})|\\\$\\\$")  #: an operand, after re.escape


def _check_inline(ir: str, asm: str, kernel: str) -> None:
    """Where LLVM finds no register for an operand, it says so, leaves the result undefined, and Triton takes the code
    all the same: of an NVIDIA register's letter, and of types such as <4 x i8>. Raises EmulationError."""
    patterns = {}
    for text, constraints, operands in _INLINE.findall(ir):
        letters = (word.lstrip("=+&*%") for word in constraints.split(","))
        if letter := next((x for x in letters if x in ("f", "d", "h", "l", "q")), None):
            raise EmulationError(
                f"{kernel}: its inline assembly {text!r} is NVIDIA's: {letter!r} is no register of an AMD GPU, so that "
                "LLVM leaves its result undefined"
            )
        plain = re.sub(r"\\([0-9A-F]{2})", lambda code: chr(int(code[1], 16)), text)
        if plain.strip():  # in place of an operand comes no space: anything (.*) takes minutes to look for
            patterns[text, operands] = re.compile(_REPLACED.sub(r"[^\\s,]+", re.escape(" ".join(plain.split()))))
    written = [" ".join(text.split()) for text in _WRITTEN.findall(asm)]
    others = [line for line in written if not any(p.fullmatch(line) for p in set(patterns.values()))]
    for (text, operands), pattern in patterns.items():
        if not others and not any(pattern.fullmatch(line) for line in written):
            raise EmulationError(
                f"{kernel}: LLVM has no register for an operand of its inline assembly {text!r} ({operands}) and "
                "leaves its result undefined; pass numbers of 16, 32 or 64 bits"
            )


_CUT_OFF = "{} in Triton's cache holds a part of {!r} only, as after a full disk; delete the folder {} and run it again"


@lru_cache(maxsize=1024)
def _assembly(digest: str, group: str, kernel: str) -> tuple[str, tuple[tuple[int, int, str], ...]]:
    """The assembly of a kernel in Triton's cache, and its arguments' (offset, size, kind)."""
    files = get_cache_manager(digest).get_group(group) or {}
    path = next((p for f, p in files.items() if f.endswith(".amdgcn")), None)
    if path is None:
        raise EmulationError(f"Triton's cache holds no assembly of {kernel!r}; clear it and try again")
    asm = Path(path).read_text()
    found = next((k for k in parse_metadata(asm) if k.name == kernel), None)
    if found is None or ".end_amdgpu_metadata" not in asm:  # what LLVM writes behind the code
        raise EmulationError(_CUT_OFF.format(path, kernel, Path(path).parent))
    if (binary := next((p for f, p in files.items() if f.endswith(".hsaco")), None)) is not None:
        try:
            read_sections(Path(binary).read_bytes())
        except (CompileError, struct.error):
            raise EmulationError(_CUT_OFF.format(binary, kernel, Path(binary).parent)) from None
    if (ir := next((p for f, p in files.items() if f.endswith(".llir")), None)) is not None:
        _check_inline(Path(ir).read_text(), asm, kernel)
    return asm, tuple((a.offset, a.size, a.kind) for a in found.arguments)


class _Launcher:
    """Launches one compiled kernel.

    Triton makes it once per kernel and keeps it, so it asks at each call which `emulated` is on.
    """

    def __init__(self, src: Any, metadata: Any):
        self.metadata = metadata
        self.asm, arguments = _assembly(metadata.hash, f"{src.name[:150]}.json", metadata.name)
        movers = getattr(metadata, "tensordesc_meta", None) or ()
        self.layout = Layout(metadata.name, src.signature.items(), arguments, movers, metadata.num_warps)
        # LLVM makes an atomic on 1 or 2 bytes a loop of compare-and-swap on the word around them.
        self.whole_words = bool(re.search(r"_atomic_cmpswap(_b32)?\s", self.asm))

    def __call__(self, gx, gy, gz, stream, function, packed, launch_metadata, enter_hook, exit_hook, *args) -> None:
        gx, gy, gz = map(index, (gx, gy, gz))  # floats are refused as a GPU's driver refuses them
        if gx * gy * gz == 0:
            return
        md, emulation = self.metadata, _active_emulation()
        if md.target.arch != emulation.gpu.name:
            raise EmulationError(
                f"{md.name} was compiled for {md.target.arch} and is launched inside emulated({emulation.gpu.name!r})"
            )
        values = self.layout.flatten(args)
        ctas = getattr(md, "num_ctas", 1)  # a program is a cluster of so many workgroups
        sizes = (getattr(md, f"{kind}_scratch_size", 0) or 0 for kind in ("global", "profile"))
        scratch = [np.zeros(size * gx * gy * gz * ctas, np.uint8) for size in sizes]
        with _without_torch_modes():
            warn_of_host(md.name, values)
            storage = emulation.bounds != "view"
            kernarg, regions = self.layout.pack(values, scratch, whole_words=self.whole_words, storage=storage)
            regions += pointed_at(values)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        with _one_at_a_time:
            program = load(self.asm, emulation.gpu, md.name, strict=emulation.strict)
            emulation.run(
                program, (gx * ctas, gy, gz), kernarg, workgroup_size=md.num_warps * md.warp_size, lds_bytes=md.shared,
                regions=regions, **emulation.beyond, **({"cluster": (ctas, 1, 1)} if ctas > 1 else {}),
            )  # fmt: skip
        if exit_hook is not None:
            exit_hook(launch_metadata)


def emulate_code_object(
    asm: str, kernel: str, grid: Sequence[int], kernarg: bytes, pointers: Mapping[str, Any], *, workgroup_size: int
) -> None:
    """Launch a kernel that Triton did not compile inside `emulated`, on an argument block that its caller has filled.

    pointers: the tensors that addresses in the block point into, by argument; the kernel may reach nothing else.
    """
    emulation = _active_emulation()
    with _without_torch_modes():
        regions = [extent(name, value) for name, value in pointers.items()]
    with _one_at_a_time:
        program = load(asm, emulation.gpu, kernel, strict=emulation.strict)
        emulation.run(program, grid, kernarg, workgroup_size=workgroup_size, regions=regions, **emulation.beyond)


def _without_torch_modes() -> AbstractContextManager:
    """Tensors as they are, whatever a TorchFunctionMode makes of them; torch stays unloaded where nobody loaded it."""
    torch = sys.modules.get("torch")
    return torch._C.DisableTorchFunction() if torch else nullcontext()


def _active_emulation() -> Emulation:
    driver = triton_driver._active
    if not isinstance(driver, EmulatedDriver):
        raise EmulationError("a kernel compiled for an emulated GPU was launched outside `laneloom.emulated`")
    return driver.emulation


def count_instructions(call: Callable, quantiles: Sequence[float] | None = None, **_: Any):
    """What stands in for a time when configs are ranked: the wave-instructions that one call executes."""
    emulation = _active_emulation()
    before = emulation.instructions
    call()
    cost = float(emulation.instructions - before)
    return [cost] * len(quantiles) if quantiles else cost


class _Device:
    """torch.cpu, with clocks that refuse."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch.cpu, name)

    @staticmethod
    def Event(*_: Any, **__: Any):
        """What `triton.testing.do_bench` starts its clock with."""
        raise UnsupportedError(
            "an emulated GPU has no clock: rank by the instructions that `emulated(...)` counts, or measure on a GPU"
        )


class EmulatedDriver(DriverBase):
    """Triton's view of an emulated GPU."""

    def __init__(self, emulation: Emulation):
        self.emulation = emulation
        self.utils = _Utils(emulation.gpu)
        self.launcher_cls = _Launcher

    @staticmethod
    def is_active() -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Never chosen by itself: only `emulated` activates it."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Triton's C++ launchers are not used."""
        raise UnsupportedError("the emulated driver compiles no C++ launcher")

    def get_current_target(self) -> GPUTarget:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What Triton compiles for."""
        return GPUTarget("hip", self.emulation.gpu.name, self.emulation.gpu.wave)

    memory_of = "cpu"  #: the type of torch device in whose memory kernels' tensors are, whatever it is called

    def get_active_torch_device(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Where kernels' tensors live."""
        import torch

        return torch.device("cuda", 0) if is_on() else torch.device("cpu")

    def get_device_interface(self):
        """Triton's testing code asks this for synchronisation and for clocks."""
        return _Device()

    def get_current_device(self) -> int:
        """A number of its own for each emulated GPU: Triton keeps compiled kernels by device."""
        return 1000 + list(GPUS).index(self.emulation.gpu.name)

    def get_current_stream(self, device: int) -> int:
        """Launches run at once, in order."""
        return 0

    def get_benchmarker(self) -> Callable:
        """For triton.autotune: one run, ranked by wave-instructions executed (not a time)."""
        return count_instructions

    def get_empty_cache_for_benchmark(self):
        """There is no cache to flush."""
        return None

    def clear_cache(self, cache) -> None:
        """There is no cache to flush."""


def _parse_one_at_a_time(parse: Callable) -> Callable:
    """Triton's `JITCallable.parse`, under a lock.

    Before Python 3.11.8 and 3.12.2, ast.parse raises SystemError where a garbage collection within it lets another
    thread parse (https://github.com/python/cpython/issues/106905).
    """

    def locked(kernel: JITCallable) -> Any:
        with _parsing:
            return parse(kernel)

    return locked


def _ask_without_torch(ask: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Triton's `HIPBackend.is_within_2gb`, which before 3.8 imports torch to ask an array, where there is none."""

    def within(arg: Any) -> bool:
        try:
            return ask(arg)
        except ModuleNotFoundError:
            return hasattr(arg, "ptr_range") and arg.ptr_range() < 1 << 31

    return within


def emulated(
    gpu: str | Gpu, *, strict: bool = False, seed: int = 0, profile: bool = False, bounds: str = "view",
    sums: str = "hardware",
) -> Emulated:  # fmt: skip
    """Make the emulator Triton's active driver: kernels launched on CPU tensors run as machine code of `gpu`.

    Gives an `Emulation` whose `launches` lists what ran. Contexts nest; the former driver comes back whatever happens.
    The active driver belongs to the process, as in Triton itself: threads share it, their kernels run one at a time.
    triton.autotune ranks by the wave-instructions that one run of each config executes; that is not a time.

    strict: also check what a GPU hides, and raise HazardError at the first: registers used before their wait, races in
    LDS and in global memory within a workgroup, use of what nobody wrote, barriers that not all waves reach, misaligned
    addresses, WMMA operands that are not replicated (gfx11).
    seed: 0 runs waves together; any other number fixes an order in which the waves of a workgroup run one after another
    between barriers, and the workgroups. No right kernel can tell.
    profile: count memory accesses, LDS bank conflicts and idle lanes of each instruction (`launches[i].profile`).
    bounds: "view" checks accesses against what the tensor that is passed can reach, "storage" against all of its
    storage, for kernels that step out of a slice on purpose (torch's block-sparse products do); "hardware" does so too,
    and past the end of LDS loads give 0 and stores are dropped, as the ISA guides say.
    sums: "hardware": matrix instructions add as was measured on silicon, bit for bit, where it was (docs/emulator.md);
    "exact": in float64, rounded once, which is several times faster where products are most of the work.

    Raises UnknownGpuError, UnsupportedError for a GPU that the emulator or this Triton lacks and where Triton is told
    to interpret kernels, ArgumentError.
    """
    return Emulated(partial(_emulated, gpu, strict, seed, profile, bounds, sums))


@contextmanager
def _emulated(gpu: str | Gpu, strict: bool, seed: int, profile: bool, bounds: str, sums: str) -> Iterator[Emulation]:
    (row := emulated_gpu(gpu)).check_triton(triton.__version__)
    check_knobs()
    check_context(strict, seed, profile, bounds, sums)
    emulation = Emulation(row, strict, seed, profile, bounds=bounds, sums=sums)
    before = triton_driver._active  # `active` would look for a real GPU, and fail where there is none
    benchmarker, parse, ask = Autotuner.__dict__["do_bench"], JITCallable.parse, HIPBackend.is_within_2gb
    _given_back.append(saved := [before, benchmarker, parse, ask])
    triton_driver.set_active(EmulatedDriver(emulation))
    # An autotuner keeps the benchmark that it was made with (a clock, CUDA graphs), or the first one that it used.
    Autotuner.do_bench = property(lambda tuner: count_instructions)  # pyright: ignore[reportAttributeAccessIssue]
    JITCallable.parse = _parse_one_at_a_time(parse)
    HIPBackend.is_within_2gb = staticmethod(_ask_without_torch(ask))  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield emulation
    finally:
        del _given_back[at := next(i for i, each in enumerate(_given_back) if each is saved)]
        if at < len(_given_back):  # left before one that was entered later, which gives back what was before both
            _given_back[at][:] = saved
        else:
            triton_driver._active, Autotuner.do_bench, JITCallable.parse, ask = saved
            HIPBackend.is_within_2gb = staticmethod(ask)
