"""What `torch.cuda` and `torch.accelerator` say inside `cuda_on_cpu`: a machine with one GPU, which has no clock."""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from ..errors import UnsupportedError
from ..gpu import Gpu

_RUNTIME = "cudaProfilerStart cudaProfilerStop cudaHostRegister cudaHostUnregister".split()  #: all of them succeed


def _no_clock(*_: Any, **__: Any):
    raise UnsupportedError("an emulated GPU has no clock and no CUDA graphs; measure on a GPU")


class Event:
    """A place in a stream, which is reached as soon as it is recorded. It has no time."""

    def __init__(self, enable_timing: bool = False, *_: Any, **__: Any):
        if enable_timing:
            _no_clock()

    @property
    def device(self) -> Any:
        """The GPU."""
        import torch

        return torch.device("cuda", 0)

    def query(self) -> bool:
        """Whether all before it is done: always."""
        return True

    def synchronize(self, *_: Any) -> None:
        """Nothing is ever under way."""

    record = wait = synchronize
    elapsed_time = _no_clock


class PlacedEvent(Event):
    """`torch.Event`, which names its device first."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **__: Any):
        super().__init__(enable_timing)


class Device(nullcontext):
    """The one device made current, which it always is; a class, since others test for it and inherit from it."""

    idx = prev_idx = 0

    def __init__(self, device: Any = None):
        only_one(device)
        super().__init__()


class CUDAGraph:
    """A class, since others write `CUDAGraph | None`; there is none to be had."""

    __init__ = _no_clock


class MemPool:
    """A pool of memory; allocations take no notice of it."""

    id, allocator = (0, 1), None

    def __init__(self, *_: Any, **__: Any): ...

    def use_count(self) -> int:
        """How many use it."""
        return 1

    def snapshot(self, *_: Any, **__: Any) -> list:
        """Its segments."""
        return []


def only_one(device: Any) -> None:
    """Raises RuntimeError for a device of CUDA that is not the first."""
    if isinstance(device, str):
        index = device.removeprefix("cuda:") if device.startswith("cuda:") else 0
    else:
        index = getattr(device, "index", device) if getattr(device, "type", "cuda") == "cuda" else 0
    if index is not None and int(index) > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal: cuda:{index} of a machine that has cuda:0 alone")


def always(value: Any) -> Any:
    """A function of its own for each name: torch.compile keeps a rule for each."""
    return lambda *_, **__: value


def answers(gpu: Gpu) -> dict[str, Any]:
    """What `torch.cuda` says of the machine."""
    import torch

    major, minor = gpu.major, int(gpu.name[-2], 16)
    product = f"{gpu.product} (emulated by laneloom)"
    properties = SimpleNamespace(
        name=product, gcnArchName=gpu.name, major=major, minor=minor, multi_processor_count=gpu.compute_units,
        total_memory=16 << 30, warp_size=gpu.wave, shared_memory_per_block=gpu.lds_bytes, regs_per_multiprocessor=65536,
        shared_memory_per_block_optin=gpu.lds_bytes, shared_memory_per_multiprocessor=gpu.lds_bytes,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024, is_integrated=False, is_multi_gpu_board=False,
        L2_cache_size=0, clock_rate=int(gpu.clock_ghz * 1e6), uuid=f"laneloom-{gpu.name}",
        pci_domain_id=0, pci_bus_id=0, pci_device_id=0,
    )  # fmt: skip

    class Stream:
        """Launches run at once, in order."""

        cuda_stream = stream_id = device_index = priority = 0
        device_type = 1
        device = torch.device("cuda", 0)

        def __init__(self, *_: Any, **__: Any): ...

        def __enter__(self):
            return self

        def __exit__(self, *_: Any) -> None: ...

        def query(self) -> bool:
            """Whether all is done: always."""
            return True

        def synchronize(self, *_: Any) -> None:
            """Nothing is ever under way."""

        wait_stream = wait_event = synchronize

        def is_capturing(self) -> bool:
            """Whether a CUDA graph is being recorded: never."""
            return False

        def record_event(self, event: Any = None) -> Any:
            """An event that is reached."""
            return event or Event()

    class Generator:
        """The state of a CUDA generator, two int64: libraries draw the seeds of their own kernels from it.

        torch's functions draw from the CPU's generator all the same.
        """

        device = torch.device("cuda", 0)

        def __init__(self):
            self.state = torch.tensor([torch.initial_seed() % (1 << 63), 0])

        def get_state(self) -> Any:
            """Seed and offset, as bytes."""
            return self.state.clone().view(torch.uint8)

        def set_state(self, state: Any) -> Any:
            """Go on from a state that `get_state` gave."""
            self.state = state.clone().view(torch.int64)
            return self

        def manual_seed(self, seed: int) -> Any:
            """Start again."""
            self.state = torch.tensor([int(seed) % (1 << 63), 0])
            return self

        def initial_seed(self) -> int:
            """The seed."""
            return int(self.state[0])

        def seed(self) -> int:
            """Start again anywhere."""
            self.manual_seed(secrets.randbits(63))
            return self.initial_seed()

        def get_offset(self) -> int:
            """How many numbers were drawn."""
            return int(self.state[1])

        def set_offset(self, offset: int) -> None:
            """So many numbers were drawn."""
            self.state[1] = offset

        def clone_state(self) -> Any:
            """Another that goes on from here."""
            return Generator().set_state(self.get_state())

        graphsafe_get_state, graphsafe_set_state = clone_state, lambda self, other: self.set_state(other.get_state())

    generator = Generator()

    def seed_all(seed: int, *_: Any) -> None:
        generator.manual_seed(seed)

    def of_first(value: Any) -> Any:
        def answer(device: Any = None) -> Any:
            only_one(device)
            return value

        return answer

    silent = ("synchronize empty_cache check_error reset_peak_memory_stats init ipc_collect "
              "reset_max_memory_allocated reset_accumulated_memory_stats set_stream "
              "set_per_process_memory_fraction set_sync_debug_mode").split()  # fmt: skip
    zeros = ("current_device memory_allocated max_memory_allocated memory_reserved max_memory_reserved "
             "_exchange_device _maybe_exchange_device get_sync_debug_mode current_blas_handle").split()  # fmt: skip
    return {
        **{name: always(None) for name in silent},
        **{name: always(0) for name in zeros},
        "manual_seed": seed_all,
        "manual_seed_all": lambda seed, *_: seed_all(seed),
        "initial_seed": generator.initial_seed,
        "seed": lambda: seed_all(torch.seed()),
        "seed_all": lambda: seed_all(torch.seed()),
        "default_generators": (generator,),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": always(None),
        "device_count": lambda: 1,
        "is_bf16_supported": lambda *_, **__: True,
        "set_device": of_first(None),
        "get_device_name": of_first(product),
        "get_device_capability": of_first((major, minor)),
        "get_device_properties": of_first(properties),
        "get_arch_list": lambda: [gpu.name],
        "get_gencode_flags": lambda: "",
        "cudart": always(SimpleNamespace(**{name: always(0) for name in _RUNTIME})),
        "MemPool": MemPool,
        "use_mem_pool": lambda *_, **__: nullcontext(),
        "memory_stats": lambda *_: Counter(),  # 0 for every name
        "memory_snapshot": lambda *_: [],
        "get_per_process_memory_fraction": lambda *_: 1.0,
        "mem_get_info": lambda *_: (16 << 30, 16 << 30),
        "device": Device,
        "device_of": Device,
        "can_device_access_peer": lambda *_: False,
        "stream": lambda *_: nullcontext(),
        "Stream": Stream,
        "ExternalStream": Stream,
        "current_stream": lambda *_: Stream(),
        "default_stream": lambda *_: Stream(),
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda states: torch.set_rng_state(*states),
        "Event": Event,
        "memory_summary": lambda *_, **__: "",
        "CUDAGraph": CUDAGraph,
        "graph": type("graph", (CUDAGraph,), {}),
        "graph_pool_handle": lambda: (0, 0),
    }


def accelerator_answers(torch: Any) -> dict[str, Any]:
    """What `torch.accelerator`, which speaks for whichever kind of device there is, says."""
    silent = ("set_device_index set_device_idx synchronize set_stream empty_cache empty_host_cache "
              "reset_peak_memory_stats reset_accumulated_memory_stats").split()  # fmt: skip
    zeros = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved".split()

    def is_dtype(x: Any) -> bool:
        return isinstance(x, torch.dtype)

    return {
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "device_index": Device,
        **{name: always(None) for name in silent},
        **{name: always(0) for name in zeros},
        "memory_stats": lambda *_: Counter(),
        "get_memory_info": lambda *_: (16 << 30, 16 << 30),
        "current_stream": lambda *_: torch.cuda.current_stream(),
        "get_device_capability": lambda *_: {"supported_dtypes": {x for x in vars(torch).values() if is_dtype(x)}},
    }


def generator_class(torch: Any) -> type:
    """`torch.Generator` with a device of "cuda", whose numbers are those of the CPU's."""
    known = torch.Generator

    class Kind(type(known)):
        def __instancecheck__(self, instance: Any) -> bool:
            return isinstance(instance, known)

    class Generator(known, metaclass=Kind):
        def __new__(cls, device: Any = "cpu"):
            made = super().__new__(cls, device="cpu")
            made.place = torch.device("cuda", 0) if torch.device(device).type == "cuda" else torch.device("cpu")
            made.offset = 0
            return made

        def get_offset(self) -> int:
            """The offset that was set: the CPU's numbers have none."""
            return self.offset if self.place.type == "cuda" else super().get_offset()

        def set_offset(self, offset: int) -> Any:
            """Kept, for kernels that draw their own numbers from it."""
            if self.place.type == "cpu":
                return super().set_offset(offset)
            self.offset = offset
            return self

        @property
        def device(self) -> Any:
            """Where it was asked for."""
            return self.place

    return Generator


def nvtx_answers() -> dict[str, Any]:
    """`torch.cuda.nvtx`, whose marks nobody reads."""
    return {name: always(0) for name in ("range_push", "range_pop", "range_start", "range_end", "mark")}
