"""The Tensor Data Mover of CDNA 5: `tensor_load_to_lds` and `tensor_store_from_lds` move a tile of up to 5 dimensions.

A descriptor in scalar registers (tensor_descriptor.py) says where the tile is in global memory and in LDS. What lies
outside of the tensor loads as zero and is not stored; EXEC does not matter. Loads may leave gaps in LDS (padding); with
gather, the rows of a 2-D tile are those that groups 2 and 3 list. A descriptor that iterates moves its tile several
times, each time from addresses further on. A load may deliver to several workgroups of a cluster (cluster.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UnknownInstructionError
from ..isa.parse import NULL, Instruction
from .alu import Builder, Step, Target
from .lds_barriers import arrive
from .memory import AccessFault, LocalMemory
from .state import U32, Waves
from .tensor_descriptor import Descriptor, read_descriptor


class TensorMove:
    """One such transfer; calling it executes it."""

    def __init__(self, ins: Instruction):
        self.load = ins.name == "tensor_load_to_lds"
        sizes = zip(ins.operands, (4, 8, 4, 4), strict=False)
        self.groups = [(o.index if o.index != NULL else None, n) for o, n in sizes]
        self.groups += [(None, 4)] * (4 - len(self.groups))

    def descriptors(self, g: Waves) -> list[Descriptor]:
        """One for each wave."""
        def words(at: int | None, n: int, wave: int) -> list[int]:
            return [0] * n if at is None else [int(x) for x in g.S[at : at + n, wave]]

        return [read_descriptor([words(at, n, wave) for at, n in self.groups], self.load) for wave in range(g.count)]

    def __call__(self, g: Waves) -> None:
        """Raises AccessFault where either memory refuses."""
        for wave, d in enumerate(self.descriptors(g)):
            if not d.active:
                continue
            with _of_one_wave(g, wave):
                self._move(g, wave, d)
            if d.barrier is not None:
                if d.receivers and g.memory.clusters.count > 1:
                    raise UnknownInstructionError("a multicast that arrives at a barrier is not implemented")
                arrive(g, wave, d.barrier, 1)

    def _move(self, g: Waves, wave: int, d: Descriptor) -> None:
        at, inside = self._places(d)
        if not inside.size:
            return
        offset = np.zeros(0, np.int64)
        if inside.any():
            address = d.address + d.nbytes * sum(
                c.astype(np.int64) * s for c, s in zip(d.coordinates(), d.strides, strict=True)
            )
            offset = g.memory.check(np.asarray(address)[None], d.nbytes, inside)
        if self.load:
            words = np.zeros((1, inside.shape[1], max(d.nbytes // 4, 1)), U32)
            if inside.any():
                words = np.where(inside[..., None], g.memory.gather(offset, d.nbytes), words)
            for place in self._in_lds(g, wave, d, g.lds, at, None):
                g.lds.scatter(place, words, d.nbytes, None)
        elif inside.any():
            for place in self._in_lds(g, wave, d, g.lds, at, inside):
                g.memory.scatter(offset, g.lds.gather(place, d.nbytes), d.nbytes, inside)

    def _in_lds(self, g: Waves, wave: int, d: Descriptor, lds: LocalMemory, at: np.ndarray, active: np.ndarray | None):
        """Byte offsets into `lds` of places in a workgroup's LDS, of each workgroup that takes part."""
        one = slice(wave, wave + 1)
        mask = np.array([d.receivers], U32)
        for _, base in g.memory.clusters.receivers(g.ids[one], g.lds_base[one], lds, mask):
            yield lds.check(base, at, d.nbytes, active)

    def _places(self, d: Descriptor) -> tuple[np.ndarray, np.ndarray]:
        """Places [1, element] in a workgroup's LDS, and which elements the tensor has."""
        inside = np.ones(int(np.prod(d.tile, dtype=np.int64)), np.bool_)
        for place, size in zip(d.coordinates(), d.tensor, strict=True):
            inside &= place < size
        return d.in_lds()[None], inside[None]

    def each_place(self, g: Waves, lds: LocalMemory):
        """For strict mode: the wave, its places in `lds`, which elements the tensor has, bytes of an element."""
        for wave, d in enumerate(self.descriptors(g)):
            if d.active:
                at, inside = self._places(d)
                if not inside.size:
                    continue
                with _of_one_wave(g, wave):
                    found = list(self._in_lds(g, wave, d, lds, at, None if self.load else inside))
                for place in found:
                    yield wave, place, inside, d.nbytes


class _of_one_wave:
    """While one wave's transfer runs, memories take the access for that wave's; faults name it."""

    def __init__(self, g: Waves, wave: int):
        self.memories, self.wave = (g.memory, g.lds), wave

    def __enter__(self) -> None:
        self.tags = [m.now for m in self.memories]
        for memory, tag in zip(self.memories, self.tags, strict=True):
            if tag is not None:
                memory.now = tag[self.wave : self.wave + 1]

    def __exit__(self, kind, error, trace) -> None:
        for memory, tag in zip(self.memories, self.tags, strict=True):
            if tag is not None:
                memory.now = tag
        if isinstance(error, AccessFault) or hasattr(error, "mine"):  # or a race
            error.wave = self.wave


def _build(ins: Instruction, target: Target) -> Step:
    return TensorMove(ins)


NAMES: dict[str, Callable[[Instruction, Target], Step]] = dict.fromkeys(
    ("tensor_load_to_lds", "tensor_store_from_lds"), _build
)


def find(name: str) -> Builder | None:
    """The builder of a tensor transfer."""
    return NAMES.get(name)
