"""Matrix instructions as data: what each of AMD's WMMA, SWMMAC, MFMA, SMFMAC and NVIDIA's mma.sync, wgmma does.

A mnemonic says shape and types; the tables of catalogue_amd.py and catalogue_nvidia.py add opcode, cycles, co-issue and
modifiers, and `check` holds every row against its own name. Where an element lies is in layouts.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from ..errors import ArgumentError
from ..gpu import GPUS, Gpu, get_gpu


@dataclass(frozen=True)
class ElementType:
    """A number format of a matrix operand."""

    bits: int
    text: str


TYPES: Mapping[str, ElementType] = MappingProxyType({
    "f64": ElementType(64, "IEEE binary64"),
    "f32": ElementType(32, "IEEE binary32"),
    "xf32": ElementType(32, "binary32, multiplied with 10 bits of mantissa"),
    "tf32": ElementType(32, "TF32: binary32, of which 10 bits of mantissa count"),
    "f16": ElementType(16, "IEEE binary16"),
    "bf16": ElementType(16, "bfloat16"),
    "fp8": ElementType(8, "E4M3, OCP"),
    "bf8": ElementType(8, "E5M2, OCP"),
    "fp8_fnuz": ElementType(8, "E4M3 FNUZ (bias 8, no infinity, no -0)"),
    "bf8_fnuz": ElementType(8, "E5M2 FNUZ (bias 16, no infinity, no -0)"),
    "fp6": ElementType(6, "E2M3, OCP"),
    "bf6": ElementType(6, "E3M2, OCP"),
    "fp4": ElementType(4, "E2M1, OCP"),
    "f8f6f4": ElementType(8, "fp8, bf8, fp6, bf6 or fp4: cbsz chooses A's, blgp chooses B's"),
    "i32": ElementType(32, "signed 32-bit integer"),
    "i8": ElementType(8, "signed 8-bit integer"),
    "u8": ElementType(8, "unsigned 8-bit integer"),
    "iu8": ElementType(8, "8-bit integer, signed where neg_lo says so"),
    "iu4": ElementType(4, "4-bit integer, signed where neg_lo says so"),
})  # fmt: skip

#: What cbsz (for A) and blgp (for B) choose in an f8f6f4 instruction.
F8F6F4 = ("fp8", "bf8", "fp6", "bf6", "fp4")

#: Names of the generations for people.
GENERATIONS = {
    "rdna3": "RDNA 3", "rdna4m": "RDNA 4m", "rdna4": "RDNA 4", "cdna1": "CDNA 1", "cdna2": "CDNA 2", "cdna3": "CDNA 3",
    "cdna4": "CDNA 4", "cdna5": "CDNA 5", "cdna5fp64": "CDNA 5 (gfx1251)", "hopper": "Hopper",
}  # fmt: skip
_GENERATIONS = {
    "gfx117": "rdna4m", "gfx11": "rdna3", "gfx120": "rdna4", "gfx908": "cdna1", "gfx90a": "cdna2", "gfx942": "cdna3",
    "gfx950": "cdna4", "gfx1250": "cdna5", "gfx1251": "cdna5fp64", "sm_90": "hopper",
}  # fmt: skip


@dataclass(frozen=True)
class MatrixInstruction:
    """D = A B + C, `blocks` independent M x N x K products; sparse ones add to D, and A keeps 2 of every 4 k."""

    name: str
    generation: str  #: one of GENERATIONS
    kind: str  #: "wmma", "swmmac", "mfma", "smfmac", "mma", "wgmma"
    m: int
    n: int
    k: int
    blocks: int
    a: str  #: types, of TYPES
    b: str
    cd: str  #: of C and D; of D alone where `c` says another of C
    waves: tuple[int, ...]  #: lanes that work together: wave sizes, 128 for a warpgroup
    modifiers: tuple[str, ...]
    source: str  #: of cycles and co-issue
    opcode: int | None = None  #: VOP3P opcode, 7 bits (8 on CDNA 5); NVIDIA publishes none
    cycles: int | None = None  #: of one matrix core, from one instruction to the next; None where nobody publishes it
    coissue: bool | None = None  #: whether VALU work of other waves runs beside it on the same SIMD
    coissue_delay: int | None = None  #: cycles after its issue until such work may start
    note: str = ""
    c: str = ""  #: the type of C, where it is not that of D

    @property
    def sparse(self) -> bool:
        """Whether A is 4:2 structured sparse."""
        return self.kind in ("swmmac", "smfmac")

    @property
    def scaled(self) -> bool:
        """Whether A and B have a scale for every 32 (`scale_block`) k of a row or column, as MX formats do."""
        return "_scale" in self.name

    @property
    def scale_block(self) -> int:
        """How many k share a scale."""
        return 16 if "_scale16_" in self.name else 32

    @property
    def flops(self) -> int:
        """Multiplications and additions of the dense product (a sparse instruction does half of them)."""
        return 2 * self.m * self.n * self.k * self.blocks

    def rate(self, gpu: str | Gpu) -> float | None:
        """FLOPs per CU (or SM) and cycle when every SIMD's matrix core is busy; None where cycles are unknown."""
        return None if self.cycles is None else self.flops * get_gpu(gpu).simds_per_cu / self.cycles

    @property
    def matrices(self) -> tuple[str, ...]:
        """The matrices that lie in registers: A, B, C, D, and K, the index of a sparse A."""
        if self.kind == "wgmma":
            return ("A", "C", "D")
        if not self.sparse:
            return ("A", "B", "C", "D")
        return ("A", "B", "K", "C", "D") if self.c else ("A", "B", "K", "D")

    def type_of(self, matrix: str, cbsz: int = 0, blgp: int = 0) -> str:
        """The type of A, B, C or D; cbsz and blgp choose it for f8f6f4."""
        if self.a == "f8f6f4" and matrix in ("A", "B"):
            return F8F6F4[cbsz if matrix == "A" else blgp]
        return {"A": self.a, "B": self.b, "C": self.c or self.cd}.get(matrix, self.cd)

    @property
    def encoding(self) -> str:
        """The instruction's encoding."""
        if self.opcode is None:
            return "PTX"
        if self.scaled:
            return "VOP3PX2" if self.kind == "mfma" else "VOP3PX3"
        return "VOP3P-MAI" if self.kind in ("mfma", "smfmac") else "VOP3P"


_MNEMONIC = re.compile(
    r"v_(?P<kind>wmma|swmmac|mfma|smfmac)(?:_scale(?:16)?)?_(?P<cd>[a-z]+\d+)(?P<c>[a-z]+\d+)?_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)(?:_(?P<blocks>\d+)b)?"
    r"_?(?P<a>[a-z]+\d+(?:f6f4)?)(?:_1k|_(?P<b>[a-z]+\d+))?"
)


def from_mnemonic(name: str, generation: str, *, blocks: int = 1, **facts) -> MatrixInstruction:
    """A row from an AMD mnemonic, which says kind, shape, types and, but for those of CDNA 1 and 2, blocks."""
    match = _MNEMONIC.fullmatch(name)
    assert match, name
    a, b = match["a"], match["b"] or match["a"]
    if generation == "cdna3":
        a, b = (f"{t}_fnuz" if t in ("fp8", "bf8") else t for t in (a, b))
    if a == "f4":
        a = b = "fp4"
    m, n, k = (int(match[size]) for size in "mnk")
    waves = (32,) if generation.startswith("cdna5") else (32, 64) if generation.startswith("rdna") else (64,)
    return MatrixInstruction(
        name, generation, match["kind"], m, n, k, int(match["blocks"] or blocks), a, b, match["cd"], waves,
        c=match["c"] or "", **facts,
    )  # fmt: skip


def generation_of(gpu: str | Gpu) -> str:
    """The generation of matrix instructions that a GPU has."""
    name = get_gpu(gpu).name
    return next(g for prefix, g in _GENERATIONS.items() if name.startswith(prefix))


@cache
def _rows(generation: str) -> Mapping[str, MatrixInstruction]:
    if generation == "hopper":
        from .catalogue_nvidia import hopper_rows

        rows = hopper_rows()
    elif generation.startswith("cdna5"):
        from .catalogue_cdna5 import cdna5_rows

        rows = cdna5_rows(generation)
    else:
        from .catalogue_amd import amd_rows

        rows = amd_rows(generation)
    return MappingProxyType({row.name: row for row in rows})


def instructions(gpu: str | Gpu) -> tuple[MatrixInstruction, ...]:
    """Every matrix instruction of a GPU, in the order of its opcodes."""
    return tuple(_rows(generation_of(gpu)).values())


@cache
def _spellings(generation: str) -> Mapping[str, MatrixInstruction]:
    found = {_plain(name): row for name, row in _rows(generation).items()}
    for key, row in list(found.items()):  # CDNA 3 has the one of _TWO_BLOCKS alone
        found.setdefault(key.replace("_2b_", "_"), row)
    return found


def find_instruction(name: str | MatrixInstruction, gpu: str | Gpu) -> MatrixInstruction:
    """The instruction of `gpu` with this mnemonic, in any spelling.

    Case does not matter; the compiler's builtins and intrinsics, the older MFMA names (v_mfma_f32_32x32x8f16) and PTX
    without `.aligned` or `.row.col` are understood. Raises ArgumentError with the nearest names.
    """
    row = get_gpu(gpu)
    if isinstance(name, MatrixInstruction):
        name = name.name
    generation = generation_of(row)
    found = _spellings(generation).get(_plain(name))
    if found is not None:
        return found
    others = (g for g in GPUS.values() if generation_of(g) != generation)
    elsewhere = sorted(g.name for g in others if _plain(name) in _spellings(generation_of(g)))
    known = _rows(generation)
    near = difflib.get_close_matches(name.strip().lower(), known, n=4, cutoff=0.3) or list(known)[:4]
    where = f" (it is one of {', '.join(elsewhere)})" if elsewhere else ""
    raise ArgumentError(f"{row.name} has no matrix instruction {name!r}{where}; the nearest are {', '.join(near)}")


# CDNA 2 has this and 32x32x4bf16 of one block: the only two that nothing else tells apart.
_TWO_BLOCKS = re.compile(r"mfma_f32_32x32x4(bf16_1k|_2b_bf16)")
_NOISE = {"sync", "aligned", "row", "col", "mma_async"}


def _plain(name: str) -> str:
    """A spelling-independent key of a mnemonic."""
    text = name.strip().lower()
    if re.match(r"w?gmma\b|w?mma\b", text):
        parts = [p for p in text.split(".") if p not in _NOISE]
        parts = [{"u32": "s32", "i32": "s32", "fp8": "e4m3", "bf8": "e5m2"}.get(p, p) for p in parts]
        if len(parts) == 4:  # kind, shape, D, A: C is D and B is A
            parts.append(parts[3])
        if parts[0] == "mma" and len(parts) == 5:
            parts.append(parts[2])
        return ".".join(parts)
    text = re.sub(r"^(__builtin_amdgcn_|llvm\.amdgcn\.)", "", text).replace(".", "_").removeprefix("v_")
    text = re.sub(r"(_w(32|64))?(_gfx12)?$", "", text).removesuffix("_e64")
    if _TWO_BLOCKS.fullmatch(text):
        return "mfma_f32_32x32x4_2b_bf16"
    text = re.sub(r"_\d+b_", "_", text.removesuffix("_1k"))
    return re.sub(r"(\d+x\d+x\d+)_?", r"\1_", text)


def check(row: MatrixInstruction) -> None:
    """Raise AssertionError where a row contradicts itself."""
    assert {row.a, row.b, row.cd} <= TYPES.keys(), row.name
    assert row.flops % (row.cycles or 1) == 0, row.name
    integer = row.cd == "i32"
    assert integer == (row.a in ("i8", "u8", "iu8", "iu4")), row.name
    assert row.cycles is None or row.cycles % 4 == 0, row.name
    assert row.opcode is None or 0 < row.opcode < 256, row.name
