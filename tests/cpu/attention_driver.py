"""A stand-in for libcuda that notes what Hopper's attention launches, with the CPU's tensors in place of a GPU's.

A launch is read as the kernel's own text lists what it takes. Nothing is compiled.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import struct
from importlib import resources

import pytest
import torch

from laneloom.codegen import cuda_call
from laneloom.codegen.cuda_call import CudaFunction
from laneloom.device import prepared
from laneloom.gpu import get_gpu
from laneloom.ops import target, warm
from laneloom.ops.attention import hopper_launch, kernels
from laneloom.ops.operators import Operator
from laneloom.ops.warm import WarmCalls

GPU, PROCESSORS, STREAM, COUNTER = get_gpu("sm_90a"), 132, 77, 0xC0 << 32
SCHEDULES = {64: "hopper_backward_narrow", 128: "hopper_backward", 256: "hopper_backward_wide"}
_OTHERS = ("hopper_forward", "hopper_forward_float8", "hopper_decode", "hopper_decode_ranges")
ENDS = {"START": "attention_hopper_start", "FINISH": "attention_hopper_finish", "JOIN": "attention_hopper_join"}
FORWARD_JOIN = "attention_hopper_forward_join"
SOURCES = {
    **dict.fromkeys(ENDS.values(), "hopper_backward_ends.cu"), FORWARD_JOIN: "hopper_forward_join.cu",
    **{f"attention_{name}": f"{name}.cu" for name in (*SCHEDULES.values(), *_OTHERS)},
}  # fmt: skip
#: bytes and format of what a kernel takes
KINDS = {"TensorMap": (128, "128s"), "*": (8, "Q"), "i64": (8, "q"), "int": (4, "i"), "float": (4, "f")}
MOST_RELATIVE = 2**-23  #: a scale is rounded to FP32


def parameters_of(kernel: str, capped: bool) -> list[tuple[str, str]]:
    """Kind and name of what a kernel takes, by its text; capped: where scores are."""
    text = resources.files(kernels).joinpath(SOURCES[kernel]).read_text(encoding="utf-8")
    found = re.search(rf"\b{kernel}\(([^)]*)\)", text)
    assert found is not None
    pairs = []
    for parameter in found[1].replace(" SLOPE", ", float slope2" if capped else "").split(","):
        *kind, name = parameter.replace("const ", "").replace("__grid_constant__ ", "").replace("*", " * ").split()
        pairs.append(("*" if "*" in kind else kind[0], name))
    return pairs


class Driver:
    """Stands for libcuda: notes launches, and what their tensor maps mean."""

    def __init__(self):
        both = [(name, capped) for name in SOURCES for capped in (False, True)]
        self.kernels = {number: (of, parameters_of(*of)) for number, of in enumerate(both)}
        self.launches, self.maps, self.on_launch = [], {}, lambda name, values: None
        self.largest_cluster = 16

    def function(self, name, threads, shared, capped=False):
        number = next(number for number, (of, _) in self.kernels.items() if of == (name, capped))
        return CudaFunction(name, number, threads, shared, None)

    def cuTensorMapEncodeTiled(self, place, kind, rank, address, sizes, strides, box, steps, *how):
        assert place.value % 64 == address.value % 16 == 0
        about = (kind, address.value, *(tuple(x)[:rank] for x in (sizes, strides, box, steps)), how)
        encoded = hashlib.sha512(repr(about).encode()).digest() * 2
        self.maps[encoded] = about
        ctypes.memmove(place.value, encoded, 128)
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        large_clusters = 14
        assert (attribute, value) == (large_clusters, 1)
        return 0

    def cuOccupancyMaxActiveClusters(self, found, function, by_config):
        found._obj.value = int(by_config._obj.attributes[0].value[0] <= self.largest_cluster)
        return 0

    def cuLaunchKernelEx(self, by_config, function, parameters, extra):
        config, ((name, _), taken) = by_config._obj, self.kernels[function.value or 0]
        assert (config.stream, extra, len(parameters)) == (STREAM, None, len(taken))
        cluster, programmatic = 4, 6
        attributes = {x.id: x.value[0] for x in config.attributes[: config.attribute_count]}
        values = {"grid": tuple(config.grid), "block": tuple(config.block), "shared": config.shared_bytes}
        if name.startswith("attention_hopper_decode"):
            values["cluster"] = attributes.pop(cluster, 1)
        late = (ENDS["FINISH"], ENDS["JOIN"], FORWARD_JOIN)
        assert attributes == ({} if name in late else {programmatic: 1})
        for (kind, parameter), address in zip(taken, parameters, strict=True):
            size, form = KINDS[kind]
            (value,) = struct.unpack(form, ctypes.string_at(address, size))
            values[parameter] = self.maps[value] if kind == "TensorMap" else value
        self.on_launch(name, values)
        self.launches.append((name, values))
        return 0


def boxed(x, rows):
    """What the map of x [B, H, N, D] says: boxes of 128 bytes a row, swizzled by 128, which a miss brings to the L2."""
    size = x.itemsize
    strides = tuple(16 if n == 1 else size * s for n, s in zip(x.shape[2::-1], x.stride()[2::-1], strict=True))
    kind, swizzle_128, promotion_128 = {torch.bfloat16: 9, torch.float8_e4m3fn: 0}[x.dtype], 3, 2
    ones = (1, 1, 1, 1)
    how = (0, swizzle_128, promotion_128, 0)
    return kind, x.data_ptr(), tuple(x.shape[::-1]), strides, (128 // size, rows, 1, 1), ones, how


def steps(**tensors):
    """Strides of batch, head and row, by the kernels' names of them."""
    axes = ("batch", "head", "row")
    return {f"{name}_{axis}": s for name, x in tensors.items() for axis, s in zip(axes, x.stride(), strict=False)}


def address_of(x):
    return 0 if x is None else x.data_ptr()


def assert_same(launches, wanted):
    assert [name for name, _ in launches] == [name for name, _ in wanted]
    for (_, values), (_, truth) in zip(launches, wanted, strict=True):
        assert values.keys() == truth.keys()
        for name, value in truth.items():
            near = pytest.approx(value, rel=MOST_RELATIVE) if isinstance(value, float) else value
            assert values[name] == near, name


def forget(*modules):
    """All that calls of these modules' operators prepared."""
    for module in modules:
        for x in vars(module).values():
            if isinstance(x, Operator):
                x._calls.clear()
            elif isinstance(x, WarmCalls):
                x.clear()


def stand_in(monkeypatch, schedules, callers):
    """The driver to which launches on the CPU's tensors go, of these kernels' modules; callers: modules that ask for
    the GPU."""
    found = Driver()

    def load(problem, config, *_):
        kernel = f"attention_{config.schedule}", 32 * config.num_warps, config.lds_bytes(problem)
        return found.function(*kernel, capped=problem.softcap != 0)

    monkeypatch.setattr(cuda_call, "driver", lambda: found)
    monkeypatch.setattr(cuda_call, "make_current", lambda device: None)
    monkeypatch.setattr(prepared, "current_stream", lambda device: STREAM)
    for module in schedules:
        monkeypatch.setattr(module, "_load", load)
    for module in (*schedules, hopper_launch):
        monkeypatch.setattr(module, "counter", lambda device, stream, count=1: COUNTER, raising=False)
        monkeypatch.setattr(module, "processors", lambda device: PROCESSORS, raising=False)
    for module in (target, *callers):
        for name, found_there in (("active_gpu", lambda: GPU), ("expected_device_type", lambda: "cpu")):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, found_there)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda x: 0, raising=False)
    monkeypatch.setattr(warm, "current_device", lambda: 0)
    return found, load
