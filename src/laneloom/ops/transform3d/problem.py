"""What one batch of tensor transforms is: sizes, dtype and where the tensors lie. No tensors, no GPU."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of one element of every dtype that a schedule may name.
DTYPE_BYTES = {"fp64": 8, "fp32": 4, "complex128": 16, "complex64": 8}


@dataclass(frozen=True)
class Transform3dProblem:
    """R[n,a',b',c'] = sum over a, b, c of X[n,a,b,c] T0[a,a'] T1[b,b'] T2[c,c'], each tensor K x K x K and dense."""

    k: int
    count: int  #: tensors
    dtype: str = "fp64"
    same_matrix: bool = True  #: T0 = T1 = T2
    accumulate: bool = False  #: add to what the output holds
    stride_x: int | None = None  #: elements between two tensors of X; None means dense
    stride_out: int | None = None
    complex_matrix: bool = False  #: for complex tensors only
    alignment: int = 16  #: bytes; the largest power of two up to 16 that divides both base addresses

    def __post_init__(self) -> None:
        # The stride of a single tensor has no meaning: equal calls are equal problems.
        for name in ("stride_x", "stride_out"):
            if getattr(self, name) is None or self.count <= 1:
                object.__setattr__(self, name, self.k**3)

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def parts(self) -> int:
        """Real tensors in a tensor: 2 where it is complex."""
        return 2 if self.dtype.startswith("complex") else 1

    @property
    def double(self) -> bool:
        """Whether an element's parts are FP64."""
        return self.dtype in ("fp64", "complex128")

    @property
    def flops(self) -> int:
        """6 K^4 per real tensor and real matrix: a multiplication and an addition per term of three contractions."""
        return 6 * self.k**4 * self.count * self.parts * (2 if self.complex_matrix else 1)

    @property
    def bytes(self) -> int:
        """Device memory traffic if each tensor is read once and written once, and read back where it is added to."""
        return (3 if self.accumulate else 2) * self.k**3 * self.count * self.element_bytes

    @property
    def vector_aligned(self) -> bool:
        """Whether every plane [K, K] starts at a multiple of 16 bytes and has whole 16-byte pieces."""
        pieces = (self.stride_x, self.stride_out, self.k * self.k)
        return self.alignment >= 16 and all(piece * self.element_bytes % 16 == 0 for piece in pieces)  # pyright: ignore

    @property
    def key(self) -> str:
        """Name of the tuning record."""
        marks = ("_same" if self.same_matrix else "_axes") + ("_add" if self.accumulate else "")
        marks += "_complex_matrix" if self.complex_matrix else ""
        return f"transform3d/{self.dtype}/k{self.k}_n{self.count}{marks}"
