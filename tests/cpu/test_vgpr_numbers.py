"""Registers above 255 of gfx1250: the numbers that operands get, against those that LLVM writes beside them."""

import re

import pytest

from laneloom.isa.parse import parse
from laneloom.isa.vgpr_banks import number_registers

KERNEL = """
k:
\ts_set_vgpr_msb 0x{setting:x}
\t{line}
\ts_endpgm
\t.amdhsa_kernel k
\t.end_amdhsa_kernel
"""
#: settings, and lines with LLVM's comments: source 0 in bank 1, source 1 in bank 2, source 2 in 3, the destination in 1
LINES = [
    (0x79, "v_fma_f32 v1 /*v257*/, v2 /*v258*/, v3 /*v515*/, v4 /*v772*/"),
    (0x79, "v_mov_b32_e32 v1 /*v257*/, v2 /*v258*/"),
    (0x79, "v_fmamk_f32 v1 /*v257*/, v2 /*v258*/, 0x40490fdb, v3 /*v515*/"),
    (0x79, "ds_load_b128 v[4:7] /*v[260:263]*/, v2 /*v258*/"),
    (0x79, "ds_store_b64 v2 /*v258*/, v[4:5] /*v[516:517]*/"),
    (0x79, "global_load_b64 v[4:5] /*v[260:261]*/, v2 /*v258*/, s[2:3]"),
    (0x79, "global_load_async_to_lds_b128 v4 /*v260*/, v2 /*v258*/, s[2:3]"),
    (0x79, "buffer_store_b32 v4 /*v260*/, v2 /*v258*/, s[4:7], null offen"),
    (0x51, "v_wmma_f32_16x16x32_f16 v[0:7] /*v[256:263]*/, v[8:15] /*v[264:271]*/, v[16:23], v[0:7] /*v[256:263]*/"),
    # Scales are in the first 256 whatever the setting, of both kinds and in the instruction that loads them alone.
    (
        0x55,
        "v_wmma_scale_f32_16x16x128_f8f6f4 v[0:7] /*v[256:263]*/, v[8:15] /*v[264:271]*/, v[16:31] /*v[272:287]*/, "
        "v[0:7] /*v[256:263]*/, v40, v41 matrix_a_fmt:MATRIX_FMT_FP4",
    ),
    (
        0x55,
        "v_wmma_scale16_f32_16x16x128_f8f6f4 v[0:7] /*v[256:263]*/, v[8:23] /*v[264:279]*/, v[24:39] /*v[280:295]*/, "
        "v[0:7] /*v[256:263]*/, v[40:41], v[42:43]",
    ),
    (0x55, "v_wmma_ld_scale_paired_b32 v40, v41"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "line"), LINES)
def test_operands_lie_where_llvm_says(setting, line):
    listing = parse(KERNEL.format(setting=setting, line=line))
    number_registers(listing)
    got = [o.index for o in listing.instructions[1].operands if o.kind == "v"]
    named = re.finditer(r"\bv\[?(\d+)(?::\d+\])?(?: /\*v\[?(\d+))?", line)
    assert got == [int(m[2] or m[1]) for m in named]
