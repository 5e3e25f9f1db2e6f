"""The layouts themselves, as digits of slots and lanes (see layouts.py for how to read them).

Sources: RDNA 3 and RDNA 4 ISA guides and AMD's WMMA articles; CDNA 3 and CDNA 4 ISA guides; AMD matrix instruction
calculator 1.3.2 (facts only; where it is wrong, docs/matrix-instructions.md says so); Triton's layouts for the f8f6f4
forms of gfx950 and for WMMA of CDNA 5, rocjitsu (ROCm/rocm-systems, AMD's emulator) for SWMMAC of CDNA 5; PTX ISA 8.7,
the fragments of mma and wgmma.
"""

from __future__ import annotations

from .catalogue import TYPES, MatrixInstruction

K_ORDERS = ("calculator", "articles")  #: descriptions of RDNA 4's 16-bit dense A and B in wave32


def digits_of(row: MatrixInstruction, wave: int, matrix: str, kind: str, k_order: str) -> tuple[str, str]:
    """(slots, lanes) of a matrix whose elements are of type `kind`."""
    match row.generation:
        case "rdna3":
            return _rdna3(row, wave, matrix)
        case "rdna4" | "rdna4m":
            return _rdna4(row, wave, matrix, k_order)
        case "cdna5" | "cdna5fp64":
            return _cdna5(row, matrix, TYPES[kind].bits)
        case "hopper":
            return _hopper(row, matrix, TYPES[kind].bits)
    return _cdna_output(row) if matrix in "CD" else _cdna_input(row, matrix, kind)


def describes_k_twice(row: MatrixInstruction, wave: int) -> bool:
    """Whether the two K_ORDERS of A and B differ."""
    return row.generation in ("rdna4", "rdna4m") and _rdna4(row, wave, "A", "articles") != _rdna4(row, wave, "A", "")


def index_sets(row: MatrixInstruction, wave: int) -> int:
    """How many sets of sparse indices fit the 32 bits of a lane's index register."""
    slots, _ = digits_of(row, wave, "K", row.a, K_ORDERS[0])
    held = 1
    for word in slots.split():
        held *= int(word.rpartition("x")[2])
    return 32 // (4 * held)


# -- RDNA 3: every half wave holds all of A and B ----------------------------------------------------------------------


def _rdna3(row: MatrixInstruction, wave: int, matrix: str) -> tuple[str, str]:
    groups = wave // 16
    if matrix in "CD":
        return f"i{groups}x{16 // groups}", f"j1x16 i1x{groups}"
    axis = "i" if matrix == "A" else "j"
    return f"k1x{row.k}", f"{axis}1x16 *x{groups}"


# -- RDNA 4: lanes share A and B between them --------------------------------------------------------------------------

_OUTPUT = {32: ("i1x8", "j1x16 i8x2"), 64: ("i1x4", "j1x16 i8x2 i4x2")}

# (bits of an element, K, wave) -> slots, lanes beyond the row or column
_DENSE = {
    (16, 16, 32): ("k1x4 k8x2", "k4x2"),
    (8, 16, 32): ("k1x8", "k8x2"),
    (4, 16, 32): ("k1x8", "k8x2"),
    (4, 32, 32): ("k1x16", "k16x2"),
    (16, 16, 64): ("k1x4", "k4x2 k8x2"),
    (8, 16, 64): ("k1x4", "k8x2 k4x2"),
    (4, 16, 64): ("k1x8", "k8x2 -x2"),
    (4, 32, 64): ("k1x8", "k16x2 k8x2"),
}
_ARTICLES = {(16, 16, 32): ("k1x8", "k8x2")}

# The same for A of the sparse forms, whose slots hold two values of four neighbouring k, and for its index ...
_SPARSE_A = {
    (16, 32, 32): ("k4x2 k16x2", "k8x2"),
    (8, 32, 32): ("k4x4", "k16x2"),
    (4, 32, 32): ("k4x4", "k16x2"),
    (4, 64, 32): ("k4x8", "k32x2"),
    (16, 32, 64): ("k4x2", "k8x4"),
    (8, 32, 64): ("k4x2", "k16x2 k8x2"),
    (4, 32, 64): ("k4x4", "k16x2 -x2"),
    (4, 64, 64): ("k4x4", "k32x2 k16x2"),
}
# ... and for B, which is dense.
_SPARSE_B = {
    (16, 32, 32): ("k1x8 k16x2", "k8x2"),
    (8, 32, 32): ("k1x16", "k16x2"),
    (4, 32, 32): ("k1x16", "k16x2"),
    (4, 64, 32): ("k1x32", "k32x2"),
    (16, 32, 64): ("k1x8", "k8x4"),
    (8, 32, 64): ("k1x8", "k16x2 k8x2"),
    (4, 32, 64): ("k1x8", "k16x2 k8x2"),
    (4, 64, 64): ("k1x16", "k32x2 k16x2"),
}


def _rdna4(row: MatrixInstruction, wave: int, matrix: str, k_order: str) -> tuple[str, str]:
    if matrix in "CD":
        return _OUTPUT[wave]
    key = (TYPES[row.a].bits, row.k, wave)
    if row.sparse:
        slots, lanes = (_SPARSE_B if matrix == "B" else _SPARSE_A)[key]
    else:
        slots, lanes = _DENSE[key]
        if k_order == "articles":
            slots, lanes = _ARTICLES.get(key, (slots, lanes))
    return slots, f"{'j' if matrix == 'B' else 'i'}1x16 {lanes}"


# -- CDNA 5: RDNA 4's output; of A and B two lanes share a row, 16 bytes of one, then 16 of the other ------------------


def _cdna5(row: MatrixInstruction, matrix: str, bits: int) -> tuple[str, str]:
    tall = row.m // 16
    if matrix in "CD":
        return f"i1x8 i16x{tall}", "j1x16 i8x2"
    axis, beyond = ("j", "") if matrix == "B" else ("i", f" i16x{tall}")
    each = row.k // 2  # of the k that a lane covers
    if row.sparse:  # not as in a dense product: halves of what a lane covers
        if matrix == "K":
            return f"k4x{each // 4}", f"i1x16 k{each}x2"
        half = each // 2
        slots = f"k1x{half} k{each}x2" if matrix == "B" else f"k4x{half // 4} k{each}x2"
        return slots, f"{axis}1x16 k{half}x2"
    run = min(each, 32 if bits < 8 else 128 // bits)
    return f"k1x{run} k{2 * run}x{each // run}{beyond}", f"{axis}1x16 k{run}x2"


# -- CDNA 2 to 4: 64 lanes ----------------------------------------------------------------------------------------


def _cdna_input(row: MatrixInstruction, matrix: str, kind: str) -> tuple[str, str]:
    axis, height = ("j", row.n) if matrix == "B" else ("i", row.m)
    groups = 64 // (height * row.blocks)  # lanes that share a row
    each = row.k // groups  # of the k that a lane covers
    lanes = f"{axis}1x{height} b1x{row.blocks}"
    if row.sparse and matrix != "B":
        return f"k4x{each // 4}", f"{lanes} k{each}x{groups}"
    if row.a == "f8f6f4" and TYPES[kind].bits == 8:  # two halves of 16 elements, as if of two instructions
        return f"k1x16 k{row.k // 2}x2", f"{lanes} k16x{groups}"
    return f"k1x{each}", f"{lanes} k{each}x{groups}"


def _cdna_output(row: MatrixInstruction) -> tuple[str, str]:
    tall = 1 if row.cd == "f64" else 4  # rows of a lane that follow each other
    groups = min(64 // row.n, row.m // tall)  # lanes that share a column of a block
    beside = 64 // (row.n * groups)  # blocks that share the lanes
    slots = f"i1x{tall} i{tall * groups}x{row.m // (tall * groups)} b{beside}x{row.blocks // beside}"
    return slots, f"j1x{row.n} b1x{beside} i{tall}x{groups}"


# -- NVIDIA: a quad of lanes shares a row ------------------------------------------------------------------------------


def _hopper(row: MatrixInstruction, matrix: str, bits: int) -> tuple[str, str]:
    warps = row.waves[0] // 32
    rows = f"i1x8 i16x{warps}"
    tall = 2 if row.m >= 16 else 1
    if matrix in "CD":
        return f"j1x2 i8x{tall} j8x{row.n // 8}", f"j2x4 {rows}"
    each = max(32 // bits, 1)  # elements of a register; an f64 takes two registers
    deep = row.k // (4 * each)
    if matrix == "A":
        return f"k1x{each} i8x{tall} k{4 * each}x{deep}", f"k{each}x4 {rows}"
    return f"k1x{each} k{4 * each}x{deep}", f"k{each}x4 j1x8"
