"""What a WMMA or SWMMAC says, and which registers it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from .wmma_sums import Sums

_BITS = {"f32": 32, "f16": 16, "bf16": 16, "iu8": 8, "iu4": 4, "fp8": 8, "bf8": 8}


@dataclass(frozen=True)
class Shape:
    """What the mnemonic says, the same for all instructions that may be batched together."""

    gfx12: bool  #: of gfx12 and gfx117x
    lanes: int
    k: int
    a: str
    b: str
    cd: str
    signs: tuple[int, ...]  #: neg_lo: signedness for iu8 and iu4, negation for floats
    signs_high: tuple[int, ...]  #: neg_hi: negation of odd elements of A and B, |C|
    clamp: bool
    high: bool  #: op_sel: C read from and D written to the high halves (gfx11, 16-bit)
    sparse: bool = False
    index_key: int = 0  #: which part of the index register the indices come from
    sums: Sums | None = None  #: how they are made step by step; None: they are rounded once

    def groups(self, side: str) -> int:
        """Groups of 16 lanes that hold different k of A or B; a lane holds one register at least."""
        return min(self.lanes // 16, self.k_of(side) * _BITS[self.kind(side)] // 32) if self.gfx12 else 1

    def kind(self, side: str) -> str:
        """The type of "a" or "b"."""
        return self.a if side == "a" else self.b

    def k_of(self, side: str) -> int:
        """Elements of a row of A or a column of B that are in registers."""
        return self.k // 2 if self.sparse and side == "a" else self.k

    def lane_elements(self, side: str) -> int:
        """Elements of A or B that one lane holds."""
        return self.k_of(side) // self.groups(side)

    def registers(self, side: str) -> int:
        """Registers of an A or B fragment."""
        return self.lane_elements(side) * _BITS[self.kind(side)] // 32

    @property
    def registers_cd(self) -> int:
        """Registers of a C or D fragment."""
        whole = 256 // self.lanes
        return whole // 2 if self.gfx12 and self.cd in ("f16", "bf16") else whole


@dataclass(frozen=True)
class Wmma:
    """One matrix instruction: first registers of its operands (c is None where it is a constant)."""

    shape: Shape
    d: int
    a: int
    b: int
    c: int | None
    c_value: float | int = 0
    index: int | None = None  #: SWMMAC: the register of A's indices; c is d

    def reads(self) -> set[int]:
        """Registers of A, B, C and the index."""
        got = self.operands()
        if self.c is not None:
            got |= set(range(self.c, self.c + self.shape.registers_cd))
        if self.index is not None:
            got.add(self.index)
        return got

    def operands(self) -> set[int]:
        """Registers of A and B."""
        s = self.shape
        return set(range(self.a, self.a + s.registers("a"))) | set(range(self.b, self.b + s.registers("b")))

    def writes(self) -> set[int]:
        """Registers of D."""
        return set(range(self.d, self.d + self.shape.registers_cd))
