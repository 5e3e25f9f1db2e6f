"""CDNA 5's matrix instructions (gfx1250, gfx1251), the third version of WMMA: opcode, cycles and modifiers of each.

Opcodes are those that LLVM encodes (a test assembles every row); cycles and co-issue are from LLVM's scheduling model
of gfx1250, in which all but the FP32 product run on a pipe of their own beside the vector unit, and which agrees with
the peaks that AMD announced. `v_swmmac_bf16f32_16x16x64_bf16` adds to FP32 sums and gives BF16 in the first half of
their registers (rocjitsu, ROCm/rocm-systems).

gfx1251 has one of FP64 more, and takes two to four times the cycles for the others: so long LLVM's code waits for them
(tests/compile/test_check_wmma.py).
"""

from __future__ import annotations

from itertools import product

from .catalogue import MatrixInstruction, from_mnemonic

_LLVM1250, _LLVM1251 = "LLVM scheduling model of gfx1250", "LLVM scheduling model and hazard recognizer of gfx1251"
_REUSE = "matrix_a_reuse matrix_b_reuse"  # A or B are those of the instruction before: a hint
_NEG = f"neg_lo neg_hi {_REUSE}"
_NEG_C = f"neg_lo[2] neg_hi[2] {_REUSE}"
_SIGNS = f"neg_lo clamp {_REUSE}"
_FORMATS = f"matrix_a_fmt matrix_b_fmt {_NEG_C}"
_SCALES = "matrix_a_scale matrix_b_scale matrix_a_scale_fmt matrix_b_scale_fmt"  # half wave, and type, of the scales
_EIGHTS = [f"{a}_{b}" for a, b in product(("fp8", "bf8"), repeat=2)]
_TWO_FP4 = "{} cycles where both A and B have 4-bit elements"
_SCALE_NOTE = "each lane holds the scales of a row of A (column of B), one a byte; the other half wave's are not read"

# mnemonic, opcode, cycles, modifiers
_ROWS = (
    ("v_wmma_f32_16x16x4_f32", 0x5D, 16, _NEG),
    ("v_wmma_f32_16x16x32_f16", 0x60, 8, _NEG),
    ("v_wmma_f16_16x16x32_f16", 0x61, 8, _NEG),
    ("v_wmma_f32_16x16x32_bf16", 0x62, 8, _NEG),
    ("v_wmma_bf16_16x16x32_bf16", 0x63, 8, _NEG),
    ("v_wmma_bf16f32_16x16x32_bf16", 0x64, 8, _NEG),
    ("v_swmmac_f32_16x16x64_f16", 0x65, 8, _NEG),
    ("v_swmmac_f32_16x16x64_bf16", 0x66, 8, _NEG),
    ("v_swmmac_f16_16x16x64_f16", 0x67, 8, _NEG),
    ("v_swmmac_bf16_16x16x64_bf16", 0x68, 8, _NEG),
    ("v_swmmac_bf16f32_16x16x64_bf16", 0x69, 8, _NEG),
    *((f"v_wmma_f32_16x16x64_{t}", 0x6A + n, 4, _NEG_C) for n, t in enumerate(_EIGHTS)),
    *((f"v_wmma_f16_16x16x64_{t}", 0x6E + n, 4, _NEG_C) for n, t in enumerate(_EIGHTS)),
    ("v_wmma_i32_16x16x64_iu8", 0x72, 16, _SIGNS),
    *((f"v_swmmac_f32_16x16x128_{t}", 0x73 + n, 8, _REUSE) for n, t in enumerate(_EIGHTS)),
    *((f"v_swmmac_f16_16x16x128_{t}", 0x77 + n, 8, _REUSE) for n, t in enumerate(_EIGHTS)),
    ("v_swmmac_i32_16x16x128_iu8", 0x7B, 16, _SIGNS),
    *((f"v_wmma_f32_16x16x128_{t}", 0x80 + n, 8, _NEG_C) for n, t in enumerate(_EIGHTS)),
    *((f"v_wmma_f16_16x16x128_{t}", 0x84 + n, 8, _NEG_C) for n, t in enumerate(_EIGHTS)),
    ("v_wmma_f32_16x16x128_f8f6f4", 0x33, 8, _FORMATS),
    ("v_wmma_scale_f32_16x16x128_f8f6f4", 0x33, 8, f"{_SCALES} {_FORMATS}"),
    ("v_wmma_scale16_f32_16x16x128_f8f6f4", 0x33, 8, f"{_SCALES} {_FORMATS}"),
    ("v_wmma_f32_32x16x128_f4", 0x88, 8, _NEG_C),
    ("v_wmma_scale_f32_32x16x128_f4", 0x88, 8, f"{_SCALES} {_NEG_C}"),
    ("v_wmma_scale16_f32_32x16x128_f4", 0x88, 8, f"{_SCALES} {_NEG_C}"),
)


# On the vector unit, as the FP32 product.
_FP64 = ("v_wmma_f64_16x16x4_f64", 0x5B, 16, f"neg_lo neg_hi[2] {_REUSE}")


def _cycles_1251(name: str) -> int | None:
    """A product of FP32 keeps the vector unit busy for a time that nothing in LLVM's code shows."""
    if name.endswith("x4_f32"):
        return None
    return 32 if "iu8" in name or ("x128_" in name and "wmma" in name) else 16


def _note(name: str, fp64: bool) -> str:
    notes = [_TWO_FP4.format(16 if fp64 else 4)] if "f8f6f4" in name else []
    return "; ".join([*notes, _SCALE_NOTE] if "_scale" in name else notes)


def cdna5_rows(generation: str) -> list[MatrixInstruction]:
    """The rows of "cdna5" (gfx1250) or "cdna5fp64" (gfx1251) by opcode."""
    fp64 = generation == "cdna5fp64"
    rows = _ROWS if not fp64 else (*((name, code, _cycles_1251(name), words) for name, code, _, words in _ROWS), _FP64)
    made = [
        from_mnemonic(
            name, generation, opcode=opcode, cycles=cycles, coissue="x16x4_" not in name,
            modifiers=tuple(modifiers.split()), source=_LLVM1251 if fp64 else _LLVM1250, note=_note(name, fp64),
        )
        for name, opcode, cycles, modifiers in rows
    ]  # fmt: skip
    return sorted(made, key=lambda row: row.opcode or 0)
