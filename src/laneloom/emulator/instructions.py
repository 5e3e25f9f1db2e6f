"""Every mnemonic that the emulator executes, and the test that proves each.

ALU instructions stand in tables. The others are parsed from their names, so their names are made here from the parts
that names are made of, and those that no builder takes fall out. Which of them a GPU has, its assembler knows.

The proofs are recorded by a run of the tests, never written by hand:
    PYTHONPATH=tests/emulator python -m pytest -p record_coverage tests/emulator
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from ..isa.catalogue import instructions
from . import (
    async_access,
    atomics,
    block_access,
    calls,
    cdna,
    format_access,
    global_sync,
    lds_access,
    lds_barriers,
    lds_special,
    matrix,
    scalar_stores,
    tensor_access,
    transposed,
)
from .alu import SCALAR, VECTOR
from .builders import ORDERING, find_builder, is_ordering
from .conditions import CONDITIONS

RECORD = Path(__file__).with_name("coverage.json")
#: of each generation, those whose tests may prove its instructions, the nearest first
_NEAR = {
    "gfx9": ("gfx11", "gfx12"), "gfx11": ("gfx12",), "gfx12": ("gfx11",), "gfx1250": ("gfx12", "gfx9", "gfx11"),
}  # fmt: skip
_WIDTHS = ("u8", "i8", "u16", "i16", "b8", "b16", "b32", "b64", "b96", "b128", "b256", "b512")
_COUNTERS = ("loadcnt", "storecnt", "dscnt", "kmcnt", "samplecnt", "bvhcnt", "expcnt", "asynccnt",
             "tensorcnt", "xcnt", "alu", "event", "idle")  # fmt: skip


@dataclass(frozen=True)
class Proof:
    """The smallest program in the tests that executed an instruction, and the test that ran it."""

    test: str  #: file::function
    instructions: int  #: of that program; 0 where only compiled kernels execute it
    through: str = ""  #: what was executed in its place: "as v_and_b32", "on gfx11"

    @property
    def alone(self) -> bool:
        """Whether a test made for instructions executes it, not only a compiled kernel."""
        return self.instructions > 0


@cache
def mnemonics() -> frozenset[str]:
    """Every mnemonic that the emulator executes, of any GPU."""
    made = {*_memory_names(), *_atomic_names(), *_matrix_names(), *cdna.spellings()}
    flow = {"s_branch", "s_endpgm", "s_barrier", "s_barrier_wait", "s_setvskip", *calls.JUMPS}
    flow |= {f"s_cbranch_{condition}" for condition in CONDITIONS}
    waits = {f"s_wait_{counter}" for counter in (*_COUNTERS, "loadcnt_dscnt", "storecnt_dscnt")}
    assert all(map(is_ordering, waits))
    return frozenset({*VECTOR, *SCALAR, *ORDERING, *waits, *flow, *(n for n in made if is_known(n))})


def is_known(name: str) -> bool:
    """Whether the emulator executes an instruction of this name, of any GPU; branches aside."""
    return find_builder(name) is not None or find_builder(cdna.modern(name)) is not None


def _memory_names() -> set[str]:
    halves = ("", "d16_", "d16_hi_")
    per_lane = product(("global", "flat", "scratch", "buffer"), ("load", "store"), halves, _WIDTHS)
    names = {f"{space}_{way}_{half}{width}" for space, way, half, width in per_lane}
    in_lds = product(("load", "store"), _WIDTHS, ("", "_d16", "_d16_hi"))
    names |= {f"ds_{way}_{width}{half}" for way, width, half in in_lds}
    names |= {f"ds_{w}_2addr_{s}{b}" for w, s, b in product(("load", "store"), ("", "stride64_"), ("b32", "b64"))}
    names |= {f"s_{buffer}load_{width}" for buffer, width in product(("", "buffer_"), _WIDTHS)}
    names |= {f"s_scratch_load_dword{wide}" for wide in ("", "x2", "x4")}
    names |= {f"global_{way}_addtid_b32" for way in ("load", "store")}
    names |= {*async_access.NAMES, *block_access.NAMES, *tensor_access.NAMES, *transposed.NAMES, *lds_barriers.BUILDERS}
    names |= scalar_stores.NAMES | set(format_access.NAMES) | set(global_sync.BUILDERS)
    return names | set(lds_access.OTHERS) | set(lds_special.BUILDERS)


def _atomic_names() -> set[str]:
    kinds = [letter + bits for letter, bits in product("ubif", ("32", "64"))]
    spaces = ("global", "flat", "buffer")
    names = {f"{space}_atomic_{op}_{kind}" for space, op, kind in product(spaces, atomics.OPERATIONS, kinds)}
    names |= {f"{space}_atomic_pk_add_{kind}" for space, kind in product(spaces, ("f16", "bf16"))}
    returning = ("", "_rtn")
    names |= {f"ds_{op}{rtn}_{kind}" for op, rtn, kind in product(atomics.OPERATIONS, returning, kinds)}
    return names | {f"ds_pk_add{rtn}_{kind}" for rtn, kind in product(returning, ("f16", "bf16"))}


def _matrix_names() -> set[str]:
    eights = [f"{a}_{b}" for a, b in product(("fp8", "bf8"), repeat=2)]
    sources = ("f16", "bf16", "iu8", "iu4", *eights)
    names = product(("wmma", "swmmac"), ("f32", "f16", "bf16", "i32"), ("16", "32", "64"), sources)
    made = {name for i, d, k, ab in names if matrix.NAME.match(name := f"v_{i}_{d}_16x16x{k}_{ab}")}
    gpus = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1250", "gfx1251")
    return made | {row.name for gpu in gpus for row in instructions(gpu)}


def proofs(generation: str) -> dict[str, Proof]:
    """Mnemonic -> proof, as the last recorded run found it on GPUs of this generation (`Gpu.generation`).

    An instruction that no test executes on this generation is proved by another spelling of the same operation, else
    by a test on another generation: one operation stands behind both.
    """
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    found = {name: Proof(*entry) for name, entry in recorded.get(generation, {}).items()}
    elsewhere: dict[str, tuple[Proof, str]] = {}  #: the proof, and on which generation
    for other in _NEAR[generation]:
        for name, entry in recorded.get(other, {}).items():
            elsewhere.setdefault(name, (Proof(*entry), other))
    same: dict[object, list[str]] = {}
    for name, operation in (*VECTOR.items(), *SCALAR.items()):
        same.setdefault(operation, []).append(name)
    for names in same.values():
        proved = next((name for name in names if name in found and found[name].alone), None)
        other = next((name for name in names if name in elsewhere and elsewhere[name][0].alone), None)
        for name in names:
            if name in found and found[name].alone:
                continue
            if proved:
                found[name] = Proof(found[proved].test, found[proved].instructions, f"as {proved}")
            elif other:
                found[name] = _borrowed(*elsewhere[other], "" if name in elsewhere else other)
    for name in (cdna.spellings() | set(elsewhere)) - set(found):
        modern = cdna.modern(name)
        if proof := found.get(modern):
            found[name] = Proof(proof.test, proof.instructions, proof.through or f"as {modern}")
        elif modern in elsewhere:
            found[name] = _borrowed(*elsewhere[modern], "" if modern == name else modern)
    return found


def _borrowed(proof: Proof, generation: str, name: str) -> Proof:
    """What another generation's test proves, of the same operation under this name."""
    return Proof(proof.test, proof.instructions, f"as {name} on {generation}" if name else f"on {generation}")
