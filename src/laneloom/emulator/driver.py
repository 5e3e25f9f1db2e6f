"""The emulator as Triton's active driver: `with emulated("gfx1151"):` runs any Triton or Gluon kernel on CPU tensors.

Triton's own JIT specialises, compiles and caches the kernel for that GPU; what it launches, the emulator executes on
the tensors' real addresses. Nothing in the kernel or its call changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver as triton_driver
from triton.runtime.cache import get_cache_manager

from ..errors import ArgumentError, EmulationError, UnsupportedError
from ..gpu import GPUS, Gpu, get_gpu
from ..isa.metadata import parse_metadata
from .launch import LaunchRecord, launch
from .memory import Region
from .program import Program, load

_NUMPY_TO_TRITON = {
    "float16": "fp16", "float32": "fp32", "float64": "fp64", "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
_FORMATS = {
    "i1": "?", "u1": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip


class ArrayArgument:
    """A numpy array dressed so that Triton's JIT takes it as a pointer argument."""

    def __init__(self, array: np.ndarray):
        if array.dtype.name not in _NUMPY_TO_TRITON:
            raise UnsupportedError(f"numpy dtype {array.dtype.name} has no Triton type")
        self.array = array
        self.dtype = _NUMPY_TO_TRITON[array.dtype.name]
        self.shape = array.shape

    def data_ptr(self) -> int:
        """Address of element [0, 0, ...]."""
        return self.array.ctypes.data

    def stride(self, dim: int | None = None):
        """Strides in elements, like torch's."""
        steps = tuple(s // self.array.itemsize for s in self.array.strides)
        return steps if dim is None else steps[dim]

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.array.itemsize


@dataclass
class Emulation:
    """What `emulated` yields."""

    gpu: Gpu
    launches: list[LaunchRecord] = field(default_factory=list)

    @property
    def instructions(self) -> int:
        """Wave-instructions executed so far."""
        return sum(record.instructions for record in self.launches)


def extent(name: str, tensor: Any) -> Region:
    """The bytes that a tensor-like argument can reach: from its lowest element to the end of its highest.

    Accesses are checked against this, not against the storage behind a view, so that a kernel that runs off a slice is
    caught even where the memory next to it exists.
    """
    device = getattr(tensor, "device", None)
    if device is not None and getattr(device, "type", "cpu") != "cpu":
        raise ArgumentError(f"{name} is on {device}; kernels inside `emulated` take CPU tensors")
    base = getattr(tensor, "base", None)
    shaped = tensor if hasattr(tensor, "shape") and not hasattr(base, "data_ptr") else base  # triton.reinterpret wraps
    shape, strides = tuple(shaped.shape), tuple(shaped.stride())
    size = shaped.element_size()
    if any(n == 0 for n in shape):
        return Region(name, tensor.data_ptr(), 0, tensor)
    low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    return Region(name, tensor.data_ptr() + low * size, (high - low + 1) * size, tensor)


class _Utils:
    """What Triton asks of a driver about its device and its binaries."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu

    def get_device_properties(self, device: int) -> dict[str, Any]:
        gpu = self.gpu
        return {
            "max_shared_mem": gpu.lds_bytes, "multiprocessor_count": gpu.compute_units, "warpSize": gpu.wave,
            "max_num_regs": gpu.vgpr_file, "sm_clock_rate": int(gpu.clock_ghz * 1e6), "mem_clock_rate": 0,
            "mem_bus_width": 0, "arch": gpu.name,
        }  # fmt: skip

    def load_binary(self, name: str, binary: bytes, shared: int, device: int):
        """Nothing to load: the launcher finds the assembly text. (module, function, registers, spills, threads)"""
        return object(), name, 0, 0, 1024

    def unload_module(self, module: object) -> None:
        """Nothing was loaded."""


class _Launcher:
    """Launches one compiled kernel. Triton makes it once and keeps it, so it asks at each call which `emulated` is on."""

    def __init__(self, src: Any, metadata: Any):
        self.metadata = metadata
        self.signature = dict(src.signature)
        group = get_cache_manager(metadata.hash).get_group(f"{src.name[:150]}.json") or {}
        path = next((p for f, p in group.items() if f.endswith(".amdgcn")), None)
        if path is None:
            raise EmulationError(f"Triton's cache holds no assembly of {metadata.name!r}; clear it and try again")
        with open(path) as file:
            self.asm = file.read()
        kernel = next(k for k in parse_metadata(self.asm) if k.name == metadata.name)
        self.arguments = [(a.offset, a.size, a.kind) for a in kernel.arguments]
        self._program: Program | None = None

    def __call__(self, gx, gy, gz, stream, function, packed, launch_metadata, enter_hook, exit_hook, *args) -> None:
        if gx * gy * gz == 0:
            return
        md, emulation = self.metadata, _active_emulation()
        values = list(_flatten(self.signature.items(), args))
        sizes = (getattr(md, f"{kind}_scratch_size", 0) or 0 for kind in ("global", "profile"))
        scratch = [np.zeros(size * gx * gy * gz, np.uint8) for size in sizes]
        kernarg, regions = self._pack(values, scratch)
        if self._program is None:
            self._program = load(self.asm, emulation.gpu, md.name)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        record = launch(
            self._program, (gx, gy, gz), kernarg, workgroup_size=md.num_warps * md.warp_size, lds_bytes=md.shared,
            regions=regions,
        )  # fmt: skip
        emulation.launches.append(record)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _pack(self, values: list[tuple[str, str, Any]], scratch: Sequence[np.ndarray]) -> tuple[bytes, list[Region]]:
        """The kernel argument block, laid out as the code object's metadata says, and the memory that it points to."""
        block = bytearray(max((o + s for o, s, _ in self.arguments), default=0))
        regions: list[Region] = []
        explicit = [a for a in self.arguments if not a[2].startswith("hidden_")]
        if len(explicit) < len(values):
            raise EmulationError(f"{self.metadata.name} takes {len(explicit)} arguments, {len(values)} were given")
        for (name, kind, value), (offset, size, _) in zip(values, explicit, strict=False):
            if kind.startswith("*"):
                if hasattr(value, "data_ptr"):
                    region = extent(name, value)
                    regions.append(region)
                    value = value.data_ptr()
                data = struct.pack("<Q", value or 0)
            else:
                data = pack_scalar(name, kind, value)
            if len(data) > size:
                raise EmulationError(f"argument {name!r} of type {kind} does not fit its {size} bytes in the kernel")
            block[offset : offset + len(data)] = data
        for memory, (offset, _, _) in zip(scratch, explicit[len(values) :], strict=False):
            if memory.nbytes:
                regions.append(Region("scratch", memory.ctypes.data, memory.nbytes, memory))
                block[offset : offset + 8] = struct.pack("<Q", memory.ctypes.data)
        return bytes(block), regions


def pack_scalar(name: str, kind: str, value: Any) -> bytes:
    """A scalar argument of Triton type `kind` as bytes."""
    if kind == "bf16":
        return struct.pack("<f", value)[2:]
    if kind not in _FORMATS:
        raise UnsupportedError(f"argument {name!r} has type {kind!r}, which the emulated driver cannot pass")
    if _FORMATS[kind] in "bhiq":  # Triton types an int by its value: 2^31 and more come as i64 or u64
        bits = struct.calcsize(_FORMATS[kind]) * 8
        value = (int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    return struct.pack("<" + _FORMATS[kind], value)


def _flatten(signature, args) -> Iterator[tuple[str, str, Any]]:
    """(name, type, value) of every argument that the kernel takes; tuples are taken apart, constants left out."""
    for (name, kind), value in zip(signature, args, strict=True):
        if isinstance(kind, tuple | list):
            yield from _flatten([(f"{name}[{k}]", t) for k, t in enumerate(kind)], value)
        elif kind != "constexpr":
            yield str(name), kind, value


def _active_emulation() -> Emulation:
    driver = triton_driver._active
    if not isinstance(driver, EmulatedDriver):
        raise EmulationError("a kernel compiled for an emulated GPU was launched outside `laneloom.emulated`")
    return driver.emulation


class EmulatedDriver(DriverBase):
    """Triton's view of an emulated GPU."""

    def __init__(self, emulation: Emulation):
        self.emulation = emulation
        self.utils = _Utils(emulation.gpu)
        self.launcher_cls = _Launcher

    @staticmethod
    def is_active() -> bool:
        """Never chosen by itself: only `emulated` activates it."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Triton's C++ launchers are not used."""
        raise UnsupportedError("the emulated driver compiles no C++ launcher")

    def get_current_target(self) -> GPUTarget:
        """What Triton compiles for."""
        return GPUTarget("hip", self.emulation.gpu.name, self.emulation.gpu.wave)

    def get_active_torch_device(self):
        """Where kernels' tensors live."""
        import torch

        return torch.device("cpu")

    def get_device_interface(self):
        """Triton's testing code asks this for synchronisation."""
        import torch

        return torch.cpu

    def get_current_device(self) -> int:
        """A number of its own for each emulated GPU: Triton keeps compiled kernels by device."""
        return 1000 + list(GPUS).index(self.emulation.gpu.name)

    def get_current_stream(self, device: int) -> int:
        """Launches run at once, in order."""
        return 0

    def get_benchmarker(self) -> Callable:
        """For triton.autotune: one run, ranked by wave-instructions executed (not a time)."""

        def count(call: Callable, *, quantiles: Sequence[float] | None = None, **_: Any):
            emulation = _active_emulation()  # an autotuner keeps this function longer than one `emulated`
            before = emulation.instructions
            call()
            cost = float(emulation.instructions - before)
            return [cost] * len(quantiles) if quantiles else cost

        return count

    def get_empty_cache_for_benchmark(self):
        """There is no cache to flush."""
        return None

    def clear_cache(self, cache) -> None:
        """There is no cache to flush."""


@contextmanager
def emulated(gpu: str | Gpu) -> Iterator[Emulation]:
    """Make the emulator Triton's active driver: kernels launched on CPU tensors run as machine code of `gpu`.

    Yields an `Emulation` whose `launches` lists what ran. Contexts nest; the former driver comes back whatever happens.
    The active driver belongs to the process, as in Triton itself: threads that launch kernels share it.

    Raises UnknownGpuError for a name that is not in the table, UnsupportedError for a GPU that the emulator lacks.
    """
    row = get_gpu(gpu)
    if not row.emulated:
        able = ", ".join(g.name for g in GPUS.values() if g.emulated)
        raise UnsupportedError(f"{row.name} ({row.family}) is not emulated; these are: {able}")
    emulation = Emulation(row)
    before = triton_driver._active  # `active` would look for a real GPU, and fail where there is none
    triton_driver.set_active(EmulatedDriver(emulation))
    try:
        yield emulation
    finally:
        triton_driver._active = before
