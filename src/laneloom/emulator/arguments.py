"""A kernel's arguments as bytes, and the memory that each one lets the kernel reach."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import ArgumentError, EmulationError, UnsupportedError
from ..isa.words import counted
from .memory import Region
from .sums import SUMS
from .tensor_descriptor import host_descriptor

Argument = tuple[str, str, Any]  #: name, Triton type, value

_NUMPY_TO_TRITON = {
    "float16": "fp16", "float32": "fp32", "float64": "fp64", "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
_FORMATS = {
    "i1": "?", "u1": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
_DESCRIPTOR = re.compile(r"tensordesc(?:_im2col)?<([^[>]*)\[")
_SCRATCH_POINTERS = 2  #: what Triton appends to every kernel's arguments: global scratch and profile scratch


def check_context(strict: Any, seed: Any, profile: Any, bounds: Any, sums: Any) -> None:
    """Raise ArgumentError for options of `emulated` that are none."""
    for name, flag in (("strict", strict), ("profile", profile)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name}: expected True or False, got {flag!r}")
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ArgumentError(f"seed: expected a whole number of at least 0, got {seed!r}")
    if bounds not in ("view", "storage", "hardware"):
        raise ArgumentError(f"bounds: expected 'view', 'storage' or 'hardware', got {bounds!r}")
    if sums not in SUMS:
        raise ArgumentError(f"sums: expected 'hardware' or 'exact', got {sums!r}")


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

    def ptr_range(self) -> int:
        """Bytes of what the array is a view of, of which Triton's AMD backend asks tensors: below 2 GiB offsets have 32
        bits, if none is negative."""
        if any(step < 0 for step in self.array.strides):
            return 1 << 63
        whole = self.array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        return whole.nbytes


def extent(name: str, tensor: Any, storage: bool = False) -> Region:
    """The bytes that a tensor-like argument can reach: from its lowest element to the end of its highest.

    Accesses are checked against this, not against the storage behind a view, so that a kernel that runs off a slice is
    caught even where the memory next to it exists. A view with stride 0 shows only where a kernel starts (gathers and
    scatters make such views to carry their other strides): there the storage counts, and everywhere if `storage`.
    """
    base = getattr(tensor, "base", None)
    device = getattr(tensor, "device", None)
    if getattr(device, "type", "cpu") != "cpu":
        device = _memory_device(tensor, base)
        if device.type != "cpu":
            raise ArgumentError(f"{name} is on {device}; kernels inside `emulated` take CPU tensors")
    shaped = _shaped(tensor)
    if shaped is None:
        kind = type(tensor).__name__
        raise ArgumentError(
            f"{name} is a {kind}; a pointer argument needs shape, stride() and element_size() as torch has"
        )
    shape, strides = tuple(shaped.shape), tuple(shaped.stride())
    size = shaped.element_size()
    if any(n == 0 for n in shape):
        return Region(name, tensor.data_ptr(), 0, tensor)
    if (storage or 0 in strides) and hasattr(shaped, "untyped_storage"):
        whole = shaped.untyped_storage()
        return Region(name, whole.data_ptr(), whole.nbytes(), tensor)
    low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    return Region(name, tensor.data_ptr() + low * size, (high - low + 1) * size, tensor)


def _shaped(tensor: Any) -> Any:
    """What has the shape of a tensor-like argument: itself, or the tensor that `triton.reinterpret` has wrapped."""
    base = getattr(tensor, "base", None)
    shaped = tensor if hasattr(tensor, "shape") and not hasattr(base, "data_ptr") else base
    return shaped if all(hasattr(shaped, name) for name in ("shape", "stride", "element_size")) else None


def _memory_device(tensor: Any, base: Any) -> Any:
    """Where the memory of an argument lies that says it is on another device.

    What wraps a tensor notes the device when it is made (triton.reinterpret does), and that is "cuda" inside
    `cuda_on_cpu`: the tensor inside knows better, or the storage.
    """
    inside = base if hasattr(base, "data_ptr") else tensor
    storage = inside.untyped_storage() if hasattr(inside, "untyped_storage") else inside
    return getattr(storage, "device", inside.device)


def pack_scalar(name: str, kind: str, value: Any) -> bytes:
    """A scalar argument of Triton type `kind` as bytes. As Triton's own launchers do it, bf16 is cut off, and a number
    beyond a float's largest becomes infinite."""
    with np.errstate(over="ignore"):
        if kind == "bf16":
            return np.array(value, "<f4").tobytes()[2:]
        if _FORMATS.get(kind) in ("e", "f", "d"):
            return np.array(value, "<" + _FORMATS[kind]).tobytes()
    if kind not in _FORMATS:
        raise UnsupportedError(f"argument {name!r} has type {kind!r}, which the emulated driver cannot pass")
    if _FORMATS[kind] in "bhiqBHIQ":  # Triton types an int by its value, or by an annotation that may be too narrow
        bits = struct.calcsize(_FORMATS[kind]) * 8
        value = int(value) % (1 << bits)
        if _FORMATS[kind].islower() and value >> (bits - 1):
            value -= 1 << bits
    return struct.pack("<" + _FORMATS[kind], value)


class Layout:
    """Where each argument of one kernel lies in its argument block."""

    def __init__(
        self, kernel: str, signature: Iterable[tuple[Any, Any]], arguments: Sequence[tuple[int, int, str]],
        movers: Sequence[Mapping[str, Any]] = (), num_warps: int = 1,
    ):  # fmt: skip
        """signature: (name, Triton type); arguments: (offset, size, kind) from the code object's metadata.

        movers: of a GPU with a Tensor Data Mover, Triton's `tensordesc_meta`, which says how descriptors are filled.
        """
        self.kernel, self.movers, self.num_warps = kernel, movers, num_warps
        self.signature = [(str(name), kind) for name, kind in signature]
        self.nbytes = max((o + s for o, s, _ in arguments), default=0)
        self.slots = [(o, s) for o, s, kind in arguments if not kind.startswith("hidden_")]
        plain, descriptors = _count(kind for _, kind in self.signature)
        # Triton 3.9 passes one flag more for each tensor descriptor: whether loads round FP32 to TF32.
        self.rounding_flag = bool(descriptors) and len(self.slots) == plain + descriptors + _SCRATCH_POINTERS

    def flatten(self, values: Sequence[Any]) -> list[Argument]:
        """Every argument that the kernel takes: tuples and descriptors taken apart, constants left out."""
        if len(values) != len(self.signature):
            raise ArgumentError(
                f"{self.kernel} takes {counted(len(self.signature), 'argument')}, constants included, got {len(values)}"
            )
        return list(self._flatten(self.signature, values, iter(self.movers)))

    def _flatten(self, signature, values, movers: Iterator[Mapping[str, Any]]) -> Iterator[Argument]:
        for (name, kind), value in zip(signature, values, strict=True):
            if isinstance(kind, tuple | list):
                yield from self._flatten([(f"{name}[{k}]", t) for k, t in enumerate(kind)], value, movers)
            elif match := _DESCRIPTOR.match(kind):
                yield from self._take_apart(name, match[1], value, next(movers, None))
            elif kind.startswith("*") and hasattr(value, "data_ptr") and _shaped(value) is None:
                yield name, kind, value.data_ptr()  # all that Triton asks of a pointer: an address and a type
            elif kind != "constexpr":
                yield name, kind, value

    def _take_apart(
        self, name: str, dtype: str, descriptor: Any, mover: Mapping[str, Any] | None
    ) -> Iterator[Argument]:
        """A host-side tensor descriptor: filled for the GPU's data mover, or taken apart where it has none."""
        base = getattr(descriptor, "base", None)
        if base is None or not hasattr(descriptor, "strides"):
            raise ArgumentError(f"{name} expects a TensorDescriptor, got {type(descriptor).__name__}")
        shape, strides = tuple(descriptor.shape), tuple(descriptor.strides)
        if mover is not None:
            interval, gap = next(iter(mover.get("interval_padding_pairs") or ()), (0, 0))
            filled = host_descriptor(
                base.data_ptr(), shape, strides, mover["block_size"], mover["elem_bits"], self.num_warps,
                (interval, gap),
            )
            yield f"{name}.base", "tensordesc", (filled, base)
            yield from ((f"{name}.shape", "i32", n) for n in shape)
            yield from ((f"{name}.strides", "i64", n) for n in strides)
            return
        yield f"{name}.base", f"*{dtype}", base
        yield from ((f"{name}.shape", "i64", n) for n in shape)
        yield from ((f"{name}.strides", "i64", n) for n in strides)
        yield f"{name}.padding", "i1", getattr(descriptor, "padding", "zero") == "nan"
        if self.rounding_flag:
            yield f"{name}.round_f32_to_tf32", "i1", getattr(descriptor, "round_f32_to_tf32", False)
        yield from ((f"{name}.shape", "i32", n) for n in shape)
        yield from ((f"{name}.strides", "i64", n) for n in strides)

    def pack(
        self, values: Sequence[Argument], scratch: Sequence[np.ndarray], *, whole_words=False, storage=False
    ) -> tuple[bytes, list[Region]]:
        """The kernel argument block, laid out as the code object's metadata says, and the memory that it points to.

        scratch: what Triton appends to the arguments: global and profile scratch, as far as the kernel has them.
        whole_words: the kernel may touch the whole words in which elements of 1 and 2 bytes lie.
        storage: it may reach all of the storage behind a view.
        """
        block = bytearray(self.nbytes)
        regions: list[Region] = []
        if len(self.slots) < len(values):
            raise EmulationError(f"{self.kernel} takes {counted(len(self.slots), 'argument')}, got {len(values)}")
        for (name, kind, value), (offset, size) in zip(values, self.slots, strict=False):
            if kind == "tensordesc":
                data, base = value
                regions.append(extent(name, base, storage))
            elif kind.startswith("*"):
                if hasattr(value, "data_ptr"):
                    region = extent(name, value, storage)
                    if whole_words and value.element_size() < 4 and region.nbytes:
                        low, high = region.address & ~3, (region.end + 3) & ~3
                        region = Region(name, low, high - low, region.owner)
                    regions.append(region)
                    value = value.data_ptr()
                data = struct.pack("<Q", value or 0)
            else:
                data = pack_scalar(name, kind, value)
            if len(data) > size:
                raise EmulationError(f"argument {name!r} of type {kind} does not fit its {size} bytes in the kernel")
            block[offset : offset + len(data)] = data
        for memory, (offset, _) in zip(scratch, self.slots[len(values) :], strict=False):
            if memory.nbytes:
                regions.append(Region("scratch", memory.ctypes.data, memory.nbytes, memory))
                block[offset : offset + 8] = struct.pack("<Q", memory.ctypes.data)
        return bytes(block), regions


def _count(kinds: Iterable[Any]) -> tuple[int, int]:
    """(arguments without the descriptors' rounding flags, descriptors) of a signature."""
    plain = descriptors = 0
    for kind in kinds:
        if isinstance(kind, tuple | list):
            inner = _count(kind)
            plain, descriptors = plain + inner[0], descriptors + inner[1]
        elif _DESCRIPTOR.match(kind):
            rank = kind[kind.index("[") + 1 : kind.index("]")].count(",") + 1
            plain, descriptors = plain + 2 + 4 * rank, descriptors + 1
        elif kind != "constexpr":
            plain += 1
    return plain, descriptors
