"""AMD's matrix instructions: opcode, cycles, co-issue and modifiers of each mnemonic.

Opcodes are those that LLVM encodes (a test assembles every row). Cycles of RDNA and CDNA 1 to 3 and co-issue: AMD
matrix instruction calculator 1.3.2, from the ISA guides' pass counts (4 cycles a pass). Cycles of CDNA 4: LLVM's
scheduling model of gfx950, which agrees with the data sheet's peaks.
"""

from __future__ import annotations

from .catalogue import MatrixInstruction, from_mnemonic

_CALCULATOR = "AMD matrix instruction calculator 1.3.2; ISA guide"
_LLVM117 = "LLVM, which encodes them as RDNA 4's; nobody publishes cycles"
_LLVM950 = "LLVM scheduling model of gfx950; CDNA 4 ISA guide"

_NEG = "neg_lo neg_hi"  # floats: negate A and B; for C neg_lo negates and neg_hi takes the absolute value
_NEG_C = "neg_lo[2] neg_hi[2]"  # fp8 and bf8: of C only
_SIGNS = "neg_lo clamp"  # integers: neg_lo says which of A and B is signed

# mnemonic, opcode, cycles, modifiers
_RDNA3 = (
    ("v_wmma_f32_16x16x16_f16", 64, 32, _NEG),
    ("v_wmma_f32_16x16x16_bf16", 65, 32, _NEG),
    ("v_wmma_f16_16x16x16_f16", 66, 32, f"op_sel {_NEG}"),
    ("v_wmma_bf16_16x16x16_bf16", 67, 32, f"op_sel {_NEG}"),
    ("v_wmma_i32_16x16x16_iu8", 68, 32, _SIGNS),
    ("v_wmma_i32_16x16x16_iu4", 69, 16, _SIGNS),
)

_RDNA4 = (
    ("v_wmma_f32_16x16x16_f16", 64, 16, _NEG),
    ("v_wmma_f32_16x16x16_bf16", 65, 16, _NEG),
    ("v_wmma_f16_16x16x16_f16", 66, 16, _NEG),
    ("v_wmma_bf16_16x16x16_bf16", 67, 16, _NEG),
    ("v_wmma_i32_16x16x16_iu8", 68, 8, _SIGNS),
    ("v_wmma_i32_16x16x16_iu4", 69, 8, _SIGNS),
    ("v_wmma_f32_16x16x16_fp8_fp8", 70, 8, _NEG_C),
    ("v_wmma_f32_16x16x16_fp8_bf8", 71, 8, _NEG_C),
    ("v_wmma_f32_16x16x16_bf8_fp8", 72, 8, _NEG_C),
    ("v_wmma_f32_16x16x16_bf8_bf8", 73, 8, _NEG_C),
    ("v_wmma_i32_16x16x32_iu4", 74, 8, _SIGNS),
    ("v_swmmac_f32_16x16x32_f16", 80, 16, f"index_key {_NEG}"),
    ("v_swmmac_f32_16x16x32_bf16", 81, 16, f"index_key {_NEG}"),
    ("v_swmmac_f16_16x16x32_f16", 82, 16, f"index_key {_NEG}"),
    ("v_swmmac_bf16_16x16x32_bf16", 83, 16, f"index_key {_NEG}"),
    ("v_swmmac_i32_16x16x32_iu8", 84, 8, f"index_key {_SIGNS}"),
    ("v_swmmac_i32_16x16x32_iu4", 85, 8, f"index_key {_SIGNS}"),
    ("v_swmmac_i32_16x16x64_iu4", 86, 8, f"index_key {_SIGNS}"),
    ("v_swmmac_f32_16x16x32_fp8_fp8", 87, 8, "index_key"),
    ("v_swmmac_f32_16x16x32_fp8_bf8", 88, 8, "index_key"),
    ("v_swmmac_f32_16x16x32_bf8_fp8", 89, 8, "index_key"),
    ("v_swmmac_f32_16x16x32_bf8_bf8", 90, 8, "index_key"),
)

_BROADCAST = "cbsz abid blgp"  # A from one block for many; B from other lanes
_SETS = "cbsz abid"  # which set of sparse indices
_NEGATE = "blgp"  # f64: bits negate A, B, C
_FORMATS = "cbsz blgp"  # f8f6f4: the types
_SCALES = f"op_sel[0:1] op_sel_hi[0:1] {_FORMATS}"  # which of four bytes holds the scale of A (0) and of B (1)

# mnemonic as the guides to CDNA 1 and 2 and LLVM spell it, blocks, opcode, cycles, delay of co-issued VALU work,
# modifiers
_CDNA2 = (
    ("v_mfma_f32_32x32x1f32", 2, 64, 64, 4, _BROADCAST),
    ("v_mfma_f32_16x16x1f32", 4, 65, 32, 4, _BROADCAST),
    ("v_mfma_f32_4x4x1f32", 16, 66, 8, 4, _BROADCAST),
    ("v_mfma_f32_32x32x2f32", 1, 68, 64, 4, "blgp"),
    ("v_mfma_f32_16x16x4f32", 1, 69, 32, 4, "blgp"),
    ("v_mfma_f32_32x32x4f16", 2, 72, 64, 4, _BROADCAST),
    ("v_mfma_f32_16x16x4f16", 4, 73, 32, 4, _BROADCAST),
    ("v_mfma_f32_4x4x4f16", 16, 74, 8, 4, _BROADCAST),
    ("v_mfma_f32_32x32x8f16", 1, 76, 64, 4, "blgp"),
    ("v_mfma_f32_16x16x16f16", 1, 77, 32, 4, "blgp"),
    ("v_mfma_i32_32x32x4i8", 2, 80, 64, 4, _BROADCAST),
    ("v_mfma_i32_16x16x4i8", 4, 81, 32, 4, _BROADCAST),
    ("v_mfma_i32_4x4x4i8", 16, 82, 8, 4, _BROADCAST),
    ("v_mfma_i32_32x32x8i8", 1, 84, 64, 4, "blgp"),
    ("v_mfma_i32_16x16x16i8", 1, 85, 32, 4, "blgp"),
    ("v_mfma_f32_32x32x4bf16_1k", 2, 99, 64, 4, _BROADCAST),
    ("v_mfma_f32_16x16x4bf16_1k", 4, 100, 32, 4, _BROADCAST),
    ("v_mfma_f32_4x4x4bf16_1k", 16, 101, 8, 4, _BROADCAST),
    ("v_mfma_f32_32x32x8bf16_1k", 1, 102, 64, 4, "blgp"),
    ("v_mfma_f32_16x16x16bf16_1k", 1, 103, 32, 4, "blgp"),
    ("v_mfma_f32_32x32x2bf16", 2, 104, 64, 4, _BROADCAST),
    ("v_mfma_f32_16x16x2bf16", 4, 105, 32, 4, _BROADCAST),
    ("v_mfma_f32_4x4x2bf16", 16, 107, 8, 4, _BROADCAST),
    ("v_mfma_f32_32x32x4bf16", 1, 108, 64, 4, "blgp"),
    ("v_mfma_f32_16x16x8bf16", 1, 109, 32, 4, "blgp"),
    ("v_mfma_f64_16x16x4f64", 1, 110, 32, None, ""),
    ("v_mfma_f64_4x4x4f64", 4, 111, 16, None, ""),
)
#: CDNA 2 added those of FP64 and of four bf16 a lane.
_CDNA1 = tuple(
    (name, blocks, opcode, cycles, None if "_4x4x" in name else 8, modifiers)
    for name, blocks, opcode, cycles, _, modifiers in _CDNA2
    if not name.endswith(("f64", "_1k"))
)

# of CDNA 3: mnemonic, opcode, cycles, delay of co-issued VALU work (None: none can), modifiers
_CDNA = (
    ("v_mfma_f32_32x32x1_2b_f32", 64, 64, None, _BROADCAST),
    ("v_mfma_f32_16x16x1_4b_f32", 65, 32, None, _BROADCAST),
    ("v_mfma_f32_4x4x1_16b_f32", 66, 8, None, _BROADCAST),
    ("v_mfma_f32_32x32x2_f32", 68, 64, None, "blgp"),
    ("v_mfma_f32_16x16x4_f32", 69, 32, None, "blgp"),
    ("v_mfma_f32_32x32x4_2b_f16", 72, 64, 4, _BROADCAST),
    ("v_mfma_f32_16x16x4_4b_f16", 73, 32, 4, _BROADCAST),
    ("v_mfma_f32_4x4x4_16b_f16", 74, 8, 4, _BROADCAST),
    ("v_mfma_f32_32x32x8_f16", 76, 32, 4, ""),
    ("v_mfma_f32_16x16x16_f16", 77, 16, 4, ""),
    ("v_mfma_i32_32x32x4_2b_i8", 80, 64, 4, _BROADCAST),
    ("v_mfma_i32_16x16x4_4b_i8", 81, 32, 4, _BROADCAST),
    ("v_mfma_i32_4x4x4_16b_i8", 82, 8, 4, _BROADCAST),
    ("v_mfma_i32_32x32x16_i8", 86, 32, 4, ""),
    ("v_mfma_i32_16x16x32_i8", 87, 16, 4, ""),
    ("v_mfma_f32_32x32x4_2b_bf16", 93, 64, 4, _BROADCAST),
    ("v_mfma_f32_16x16x4_4b_bf16", 94, 32, 4, _BROADCAST),
    ("v_mfma_f32_4x4x4_16b_bf16", 95, 8, 4, _BROADCAST),
    ("v_mfma_f32_32x32x8_bf16", 96, 32, 4, ""),
    ("v_mfma_f32_16x16x16_bf16", 97, 16, 4, ""),
    ("v_smfmac_f32_16x16x32_f16", 98, 16, 8, _SETS),
    ("v_smfmac_f32_32x32x16_f16", 100, 32, 8, _SETS),
    ("v_smfmac_f32_16x16x32_bf16", 102, 16, 8, _SETS),
    ("v_smfmac_f32_32x32x16_bf16", 104, 32, 8, _SETS),
    ("v_smfmac_i32_16x16x64_i8", 106, 16, 8, _SETS),
    ("v_smfmac_i32_32x32x32_i8", 108, 32, 8, _SETS),
    ("v_mfma_f64_16x16x4_f64", 110, 32, None, _NEGATE),
    ("v_mfma_f64_4x4x4_4b_f64", 111, 16, None, _NEGATE),
    ("v_mfma_f32_16x16x32_bf8_bf8", 112, 16, 4, ""),
    ("v_mfma_f32_16x16x32_bf8_fp8", 113, 16, 4, ""),
    ("v_mfma_f32_16x16x32_fp8_bf8", 114, 16, 4, ""),
    ("v_mfma_f32_16x16x32_fp8_fp8", 115, 16, 4, ""),
    ("v_mfma_f32_32x32x16_bf8_bf8", 116, 32, 4, ""),
    ("v_mfma_f32_32x32x16_bf8_fp8", 117, 32, 4, ""),
    ("v_mfma_f32_32x32x16_fp8_bf8", 118, 32, 4, ""),
    ("v_mfma_f32_32x32x16_fp8_fp8", 119, 32, 4, ""),
    ("v_smfmac_f32_16x16x64_bf8_bf8", 120, 16, 8, _SETS),
    ("v_smfmac_f32_16x16x64_bf8_fp8", 121, 16, 8, _SETS),
    ("v_smfmac_f32_16x16x64_fp8_bf8", 122, 16, 8, _SETS),
    ("v_smfmac_f32_16x16x64_fp8_fp8", 123, 16, 8, _SETS),
    ("v_smfmac_f32_32x32x32_bf8_bf8", 124, 32, 8, _SETS),
    ("v_smfmac_f32_32x32x32_bf8_fp8", 125, 32, 8, _SETS),
    ("v_smfmac_f32_32x32x32_fp8_bf8", 126, 32, 8, _SETS),
    ("v_smfmac_f32_32x32x32_fp8_fp8", 127, 32, 8, _SETS),
)

_CDNA3_ONLY = (
    ("v_mfma_f32_16x16x8_xf32", 62, 16, 4, ""),
    ("v_mfma_f32_32x32x4_xf32", 63, 32, 4, ""),
)

# gfx950: mnemonic, opcode, cycles, delay of co-issued VALU work, modifiers
_CDNA4_ONLY = (
    ("v_mfma_f32_16x16x128_f8f6f4", 45, 32, 4, _FORMATS),
    ("v_mfma_f32_32x32x64_f8f6f4", 46, 64, 4, _FORMATS),
    ("v_mfma_scale_f32_16x16x128_f8f6f4", 45, 32, 4, _SCALES),
    ("v_mfma_scale_f32_32x32x64_f8f6f4", 46, 64, 4, _SCALES),
    ("v_mfma_f32_16x16x32_bf16", 53, 16, 4, ""),
    ("v_mfma_i32_16x16x64_i8", 54, 16, 4, ""),
    ("v_mfma_f32_32x32x16_bf16", 55, 32, 4, ""),
    ("v_mfma_i32_32x32x32_i8", 56, 32, 4, ""),
    ("v_smfmac_f32_16x16x64_bf16", 57, 16, 8, _SETS),
    ("v_smfmac_i32_16x16x128_i8", 58, 16, 8, ""),
    ("v_smfmac_f32_16x16x128_bf8_bf8", 59, 16, 8, ""),
    ("v_smfmac_f32_16x16x128_bf8_fp8", 60, 16, 8, ""),
    ("v_smfmac_f32_16x16x128_fp8_bf8", 61, 16, 8, ""),
    ("v_smfmac_f32_16x16x128_fp8_fp8", 67, 16, 8, ""),
    ("v_smfmac_f32_32x32x32_bf16", 70, 32, 8, _SETS),
    ("v_smfmac_i32_32x32x64_i8", 71, 32, 8, ""),
    ("v_smfmac_f32_32x32x64_bf8_bf8", 75, 32, 8, ""),
    ("v_smfmac_f32_32x32x64_bf8_fp8", 78, 32, 8, ""),
    ("v_smfmac_f32_32x32x64_fp8_bf8", 79, 32, 8, ""),
    ("v_smfmac_f32_32x32x64_fp8_fp8", 83, 32, 8, ""),
    ("v_mfma_f32_16x16x32_f16", 84, 16, 4, ""),
    ("v_mfma_f32_32x32x16_f16", 85, 32, 4, ""),
    ("v_smfmac_f32_16x16x64_f16", 90, 16, 8, _SETS),
    ("v_smfmac_f32_32x32x32_f16", 91, 32, 8, _SETS),
)

_ACCUMULATORS_ONLY = "C and D lie in accumulation registers, A and B in either kind"

#: CDNA 4 halved the rate of FP64.
_CDNA4_CYCLES = {"v_mfma_f64_16x16x4_f64": 64}

#: Two instructions in one: v_mfma_ld_scale_b32 (opcode 44) and the f8f6f4 form, whose opcode the rows give.
_SCALE_NOTE = (
    "{} cycles where neither A nor B has 8-bit elements; two more operands, a register each, hold the scales of A and "
    "B: E8M0, 2^(byte - 127), one for every 32 k of a row or column, in lane i + {} (k/32) (of B, j for i)"
)
_NOTES = {
    "v_mfma_scale_f32_16x16x128_f8f6f4": _SCALE_NOTE.format(16, 16),
    "v_mfma_scale_f32_32x32x64_f8f6f4": _SCALE_NOTE.format(32, 32),
    "v_mfma_f32_16x16x128_f8f6f4": "16 cycles where neither A nor B has 8-bit elements",
    "v_mfma_f32_32x32x64_f8f6f4": "32 cycles where neither A nor B has 8-bit elements",
}


def amd_rows(generation: str) -> list[MatrixInstruction]:
    """The rows of "rdna3", "rdna4m", "rdna4", "cdna1", "cdna2", "cdna3" or "cdna4" by opcode."""
    if generation.startswith("rdna"):
        new = generation == "rdna4m"  # it has RDNA 4's, at a rate that nobody publishes
        return [
            from_mnemonic(
                name, generation, opcode=opcode, cycles=None if new else cycles, coissue=None if new else False,
                modifiers=tuple(modifiers.split()), source=_LLVM117 if new else _CALCULATOR,
            )
            for name, opcode, cycles, modifiers in (_RDNA3 if generation == "rdna3" else _RDNA4)
        ]  # fmt: skip
    if generation in ("cdna1", "cdna2"):
        return [
            from_mnemonic(
                name, generation, blocks=blocks, opcode=opcode, cycles=cycles, coissue=delay is not None,
                coissue_delay=delay, modifiers=tuple(modifiers.split()), source=_CALCULATOR,
                note=_ACCUMULATORS_ONLY if generation == "cdna1" else "",
            )
            for name, blocks, opcode, cycles, delay, modifiers in (_CDNA1 if generation == "cdna1" else _CDNA2)
        ]  # fmt: skip
    newer = generation == "cdna4"
    rows = [
        from_mnemonic(
            name, generation, opcode=opcode, cycles=_CDNA4_CYCLES.get(name, cycles) if newer else cycles,
            coissue=delay is not None, coissue_delay=delay, modifiers=tuple(modifiers.split()),
            source=_LLVM950 if newer else _CALCULATOR, note=_NOTES.get(name, ""),
        )
        for name, opcode, cycles, delay, modifiers in (*_CDNA, *(_CDNA4_ONLY if newer else _CDNA3_ONLY))
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row.opcode or 0)
