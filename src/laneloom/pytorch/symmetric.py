"""Products and attention that overlap with copies between the GPUs of one host, over torch's symmetric memory.

Copy engines move shards over NVLink while all SMs multiply; NCCL's sends take SMs from the product. Nothing here uses
multicast.

Why no call waits for its peers to be done with memory that it writes: calls alternate between the halves of a buffer,
and each passes one barrier. A peer that has arrived at a call's barrier has finished what it did two calls ago. A call
in a CUDA graph has the same half in every replay, beside whatever runs between them: it passes two barriers more.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..errors import ArgumentError, UnsupportedError
from ..ops.matmul.api import matmul

_MOST_VIEWS = 256  #: of a group's memory that are kept; making one takes microseconds


class Exchange:
    """A group's symmetric memory on one GPU, in two halves, and a stream for copies."""

    def __init__(self, group: Any, device: torch.device):
        self.group, self.device = group, device
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.copies = torch.cuda.Stream(device)
        self._half_bytes, self._half = 0, 0
        self._memory: torch.Tensor | None = None
        self._handle: Any = None
        self._last: torch.cuda.Stream | None = None  #: what the call before ran on
        self._captured: list[Any] = []  #: memory that CUDA graphs know by its address
        self._views: dict[Any, torch.Tensor] = {}

    def begin(self, nbytes: int) -> torch.cuda.Stream:
        """Begin a call that needs so many bytes of every rank; all ranks ask for as many. Gives the caller's stream.

        Raises UnsupportedError where a CUDA graph is captured and the memory is not there yet.
        """
        self._half = 1 - self._half
        here = torch.cuda.current_stream(self.device)
        if torch.cuda.is_current_stream_capturing():
            if nbytes > self._half_bytes:
                raise UnsupportedError(
                    "symmetric memory cannot be made while a CUDA graph is captured: make the call once before"
                )
            if not self._captured or self._captured[-1] is not self._handle:
                self._captured += [self._memory, self._handle]
            self.barrier()
        else:
            if nbytes > self._half_bytes:
                self._grow(nbytes)
            if self._last is not None and self._last != here:
                here.wait_stream(self._last)
            self._last = here
        self.copies.wait_stream(here)
        return here

    def end(self, here: torch.cuda.Stream) -> None:
        """End a call; what it left in this rank's memory has been read."""
        here.wait_stream(self.copies)
        if torch.cuda.is_current_stream_capturing():
            self.barrier()

    def _grow(self, nbytes: int) -> None:
        symmetric_memory = _module()
        if self._memory is not None:  # a peer may still read it
            torch.cuda.synchronize(self.device)
            dist.barrier(self.group)
        half_bytes = -(-nbytes // 2**21) * 2**21
        memory = symmetric_memory.empty(2 * half_bytes, dtype=torch.uint8, device=self.device)
        try:
            handle = symmetric_memory.rendezvous(memory, self.group)
        except RuntimeError as error:
            words = str(error).strip().partition("\n")[0]
            raise UnsupportedError(
                f"transport: these GPUs cannot share memory ({words}); use transport='p2p'"
            ) from error
        self._half_bytes, self._memory, self._handle = half_bytes, memory, handle
        self._views.clear()

    def buffer(self, rank: int, shape: Sequence[int], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A rank's memory of this call, from `offset` bytes on."""
        key = self._half, rank, tuple(shape), dtype, offset
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            first = (self._half * self._half_bytes + offset) // dtype.itemsize
            view = self._handle.get_buffer(rank, list(shape), dtype, storage_offset=first)
            self._views[key] = view
        return view

    def barrier(self) -> None:
        """All ranks' copies before this one in the current stream are done."""
        self._handle.barrier(channel=0)


_exchanges: dict[tuple[str, int], Exchange] = {}


def exchange_of(group: Any, device: torch.device) -> Exchange:
    """The exchange of a group on a GPU."""
    key = group.group_name, device.index
    if key not in _exchanges:
        _exchanges[key] = Exchange(group, device)
    return _exchanges[key]


def _module() -> Any:
    import torch.distributed._symmetric_memory as symmetric_memory

    if not hasattr(symmetric_memory, "rendezvous"):
        raise UnsupportedError(f"transport: torch {torch.__version__} has no symmetric memory; use transport='p2p'")
    return symmetric_memory


def transport_of(transport: str | None, x: torch.Tensor, group: Any) -> str:
    """The transport asked for, or else the faster one that is there. Collective where none is asked for.

    Raises ArgumentError for another name, UnsupportedError for symmetric memory of CPU tensors.
    """
    if transport not in (None, "p2p", "symmetric"):
        raise ArgumentError(f"transport: expected None, 'p2p' or 'symmetric', got {transport!r}")
    if transport == "symmetric" and not x.is_cuda:
        raise UnsupportedError(f"transport: symmetric memory is for CUDA tensors, x is on {x.device}; use 'p2p'")
    return transport or ("symmetric" if x.is_cuda and _connected(group.group_name, x.device.index) else "p2p")


@lru_cache(maxsize=64)
def _connected(group_name: str, device: int) -> bool:
    """Whether all ranks of a group are on one host, each on a GPU of its own that this one can copy from."""
    resolve: Any = c10d._resolve_process_group  # pyright: ignore[reportPrivateImportUsage]
    group = resolve(group_name)
    places: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(places, (socket.gethostname(), device), group=group)
    others = [other for _, other in places if other != device]
    reachable = torch.version.hip is None and all(
        other < torch.cuda.device_count() and torch.cuda.can_device_access_peer(device, other) for other in others
    )
    together = len({host for host, _ in places}) == 1 and len(set(places)) == len(places)
    verdicts: list[Any] = [None] * len(places)
    dist.all_gather_object(verdicts, reachable and together, group=group)
    return all(verdicts)


def pull(k: torch.Tensor, v: torch.Tensor, group: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of every rank, this one's first, each copied while the caller computes with the one before."""
    box = exchange_of(group, k.device)
    here = box.begin(k.nbytes + v.nbytes)
    rooms = [(torch.empty_like(k), torch.empty_like(v)) for _ in range(min(2, box.ranks - 1))]
    with torch.cuda.stream(box.copies):
        box.buffer(box.rank, k.shape, k.dtype).copy_(k)
        box.buffer(box.rank, v.shape, v.dtype, k.nbytes).copy_(v)
        box.barrier()
    here.wait_stream(box.copies)  # a kernel that fills the SMs would keep the barrier's waiting, and with it the copies

    def fetch(step: int) -> Any:
        owner, room = (box.rank - step) % box.ranks, rooms[step % 2 - 1]
        with torch.cuda.stream(box.copies):
            room[0].copy_(box.buffer(owner, k.shape, k.dtype))
            room[1].copy_(box.buffer(owner, v.shape, v.dtype, k.nbytes))
            return box.copies.record_event()

    arrived = fetch(1) if box.ranks > 1 else None
    yield k, v
    for step in range(1, box.ranks):
        assert arrived is not None
        here.wait_event(arrived)
        if step + 1 < box.ranks:  # into the room that the step before this one has left
            box.copies.wait_stream(here)
            arrived = fetch(step + 1)
        yield rooms[step % 2 - 1]
    box.end(here)


def gather_and_multiply(
    x: torch.Tensor, w: torch.Tensor, gathered: torch.Tensor, y: torch.Tensor, group: Any, keeps: bool
) -> None:
    """y[r] = X_r W for every rank r; gathered[r] = X_r, of this rank's own only if it `keeps` them."""
    box = exchange_of(group, x.device)
    here = box.begin(x.nbytes)
    arrived = []
    with torch.cuda.stream(box.copies):
        box.buffer(box.rank, x.shape, x.dtype).copy_(x)
        box.barrier()
        ready = box.copies.record_event()
        for step in range(1, box.ranks):
            source = (box.rank + step) % box.ranks
            gathered[source].copy_(box.buffer(source, x.shape, x.dtype))
            arrived.append(box.copies.record_event())
        if keeps:
            gathered[box.rank].copy_(x)
    here.wait_event(ready)  # a kernel that fills the SMs would keep the barrier's waiting, and with it the copies
    matmul(x, w, out=y[box.rank])
    for step, event in enumerate(arrived, start=1):
        source = (box.rank + step) % box.ranks
        here.wait_event(event)
        matmul(gathered[source], w, out=y[source])
    box.end(here)


def multiply_and_add(rows: torch.Tensor, w: torch.Tensor, group: Any) -> torch.Tensor:
    """The sum of every rank's product of this rank's rows, [M / ranks, N]; rows: [ranks, M / ranks, K / ranks]."""
    box = exchange_of(group, rows.device)
    shape, dtype = (box.ranks, rows.shape[1], w.shape[1]), rows.dtype
    here = box.begin(shape[0] * shape[1] * shape[2] * dtype.itemsize)
    leaving = rows.new_empty(shape)
    for step in range(1, box.ranks):
        target = (box.rank + step) % box.ranks
        matmul(rows[target], w, out=leaving[target])
        box.copies.wait_stream(here)
        with torch.cuda.stream(box.copies):
            box.buffer(target, shape, dtype)[box.rank].copy_(leaving[target])
    mine = box.buffer(box.rank, shape, dtype)
    matmul(rows[box.rank], w, out=mine[box.rank])
    here.wait_stream(box.copies)
    box.barrier()
    total = mine.sum(0)
    box.end(here)
    return total
