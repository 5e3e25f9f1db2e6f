"""Hashes of layouts that were compared, element by element, with AMD's matrix instruction calculator 1.3.2."""

import hashlib

import pytest

from laneloom.isa import instructions, layout_csv
from laneloom.isa.layout_digits import index_sets

# SHA-256, first 10 digits, of all the layouts of an instruction: each wave size, matrix and opsel.
HASHES = {
    "gfx1100": {
        "v_wmma_f32_16x16x16_f16": "0e5aab88ce",
        "v_wmma_f32_16x16x16_bf16": "0e5aab88ce",
        "v_wmma_f16_16x16x16_f16": "8bbf2124b9",
        "v_wmma_bf16_16x16x16_bf16": "8bbf2124b9",
        "v_wmma_i32_16x16x16_iu8": "89eb7692ce",
        "v_wmma_i32_16x16x16_iu4": "0556e964ce",
    },
    "gfx1201": {
        "v_wmma_f32_16x16x16_f16": "ced6035cbd",
        "v_wmma_f32_16x16x16_bf16": "ced6035cbd",
        "v_wmma_f16_16x16x16_f16": "e367fd0681",
        "v_wmma_bf16_16x16x16_bf16": "e367fd0681",
        "v_wmma_i32_16x16x16_iu8": "b4864d0610",
        "v_wmma_i32_16x16x16_iu4": "0447e9733a",
        "v_wmma_f32_16x16x16_fp8_fp8": "b4864d0610",
        "v_wmma_f32_16x16x16_fp8_bf8": "b4864d0610",
        "v_wmma_f32_16x16x16_bf8_fp8": "b4864d0610",
        "v_wmma_f32_16x16x16_bf8_bf8": "b4864d0610",
        "v_wmma_i32_16x16x32_iu4": "3cdd897f03",
        "v_swmmac_f32_16x16x32_f16": "5a8266d322",
        "v_swmmac_f32_16x16x32_bf16": "5a8266d322",
        "v_swmmac_f16_16x16x32_f16": "1fcaa25467",
        "v_swmmac_bf16_16x16x32_bf16": "1fcaa25467",
        "v_swmmac_i32_16x16x32_iu8": "f8be13b4f6",
        "v_swmmac_i32_16x16x32_iu4": "f8539f1cb5",
        "v_swmmac_i32_16x16x64_iu4": "40a17b7bb5",
        "v_swmmac_f32_16x16x32_fp8_fp8": "f8be13b4f6",
        "v_swmmac_f32_16x16x32_fp8_bf8": "f8be13b4f6",
        "v_swmmac_f32_16x16x32_bf8_fp8": "f8be13b4f6",
        "v_swmmac_f32_16x16x32_bf8_bf8": "f8be13b4f6",
    },
    "gfx908": {
        "v_mfma_f32_32x32x1f32": "b29858f8bb",
        "v_mfma_f32_16x16x1f32": "29b2ca9740",
        "v_mfma_f32_4x4x1f32": "c79f00c66f",
        "v_mfma_f32_32x32x2f32": "e04b5e2ac7",
        "v_mfma_f32_16x16x4f32": "981981169c",
        "v_mfma_f32_32x32x4f16": "8da21fb205",
        "v_mfma_f32_16x16x4f16": "9e9737a16c",
        "v_mfma_f32_4x4x4f16": "94cd8b638f",
        "v_mfma_f32_32x32x8f16": "d08fcc46c8",
        "v_mfma_f32_16x16x16f16": "c79362e36a",
        "v_mfma_i32_32x32x4i8": "698eb14228",
        "v_mfma_i32_16x16x4i8": "4e7615a3f5",
        "v_mfma_i32_4x4x4i8": "01eef6559b",
        "v_mfma_i32_32x32x8i8": "61ebf3eb41",
        "v_mfma_i32_16x16x16i8": "5a6a3c63b3",
        "v_mfma_f32_32x32x2bf16": "4bb08c12c6",
        "v_mfma_f32_16x16x2bf16": "3a26e4ab8f",
        "v_mfma_f32_4x4x2bf16": "65a02b2f90",
        "v_mfma_f32_32x32x4bf16": "374153fc1a",
        "v_mfma_f32_16x16x8bf16": "e075c444cf",
    },
    "gfx90a": {
        "v_mfma_f32_32x32x1f32": "b29858f8bb",
        "v_mfma_f32_16x16x1f32": "29b2ca9740",
        "v_mfma_f32_4x4x1f32": "c79f00c66f",
        "v_mfma_f32_32x32x2f32": "e04b5e2ac7",
        "v_mfma_f32_16x16x4f32": "981981169c",
        "v_mfma_f32_32x32x4f16": "8da21fb205",
        "v_mfma_f32_16x16x4f16": "9e9737a16c",
        "v_mfma_f32_4x4x4f16": "94cd8b638f",
        "v_mfma_f32_32x32x8f16": "d08fcc46c8",
        "v_mfma_f32_16x16x16f16": "c79362e36a",
        "v_mfma_i32_32x32x4i8": "698eb14228",
        "v_mfma_i32_16x16x4i8": "4e7615a3f5",
        "v_mfma_i32_4x4x4i8": "01eef6559b",
        "v_mfma_i32_32x32x8i8": "61ebf3eb41",
        "v_mfma_i32_16x16x16i8": "5a6a3c63b3",
        "v_mfma_f32_32x32x4bf16_1k": "8da21fb205",
        "v_mfma_f32_16x16x4bf16_1k": "9e9737a16c",
        "v_mfma_f32_4x4x4bf16_1k": "94cd8b638f",
        "v_mfma_f32_32x32x8bf16_1k": "d08fcc46c8",
        "v_mfma_f32_16x16x16bf16_1k": "c79362e36a",
        "v_mfma_f32_32x32x2bf16": "4bb08c12c6",
        "v_mfma_f32_16x16x2bf16": "3a26e4ab8f",
        "v_mfma_f32_4x4x2bf16": "65a02b2f90",
        "v_mfma_f32_32x32x4bf16": "374153fc1a",
        "v_mfma_f32_16x16x8bf16": "e075c444cf",
        "v_mfma_f64_16x16x4f64": "fcddb03333",
        "v_mfma_f64_4x4x4f64": "43c166fc16",
    },
    "gfx942": {
        "v_mfma_f32_16x16x8_xf32": "478044ed0f",
        "v_mfma_f32_32x32x4_xf32": "03681a3ee5",
        "v_mfma_f32_32x32x1_2b_f32": "b29858f8bb",
        "v_mfma_f32_16x16x1_4b_f32": "29b2ca9740",
        "v_mfma_f32_4x4x1_16b_f32": "c79f00c66f",
        "v_mfma_f32_32x32x2_f32": "e04b5e2ac7",
        "v_mfma_f32_16x16x4_f32": "981981169c",
        "v_mfma_f32_32x32x4_2b_f16": "8da21fb205",
        "v_mfma_f32_16x16x4_4b_f16": "9e9737a16c",
        "v_mfma_f32_4x4x4_16b_f16": "94cd8b638f",
        "v_mfma_f32_32x32x8_f16": "d08fcc46c8",
        "v_mfma_f32_16x16x16_f16": "c79362e36a",
        "v_mfma_i32_32x32x4_2b_i8": "698eb14228",
        "v_mfma_i32_16x16x4_4b_i8": "4e7615a3f5",
        "v_mfma_i32_4x4x4_16b_i8": "01eef6559b",
        "v_mfma_i32_32x32x16_i8": "d504b22db9",
        "v_mfma_i32_16x16x32_i8": "4d5b5cd48f",
        "v_mfma_f32_32x32x4_2b_bf16": "8da21fb205",
        "v_mfma_f32_16x16x4_4b_bf16": "9e9737a16c",
        "v_mfma_f32_4x4x4_16b_bf16": "94cd8b638f",
        "v_mfma_f32_32x32x8_bf16": "d08fcc46c8",
        "v_mfma_f32_16x16x16_bf16": "c79362e36a",
        "v_smfmac_f32_16x16x32_f16": "b229db21cc",
        "v_smfmac_f32_32x32x16_f16": "df9a44fcea",
        "v_smfmac_f32_16x16x32_bf16": "b229db21cc",
        "v_smfmac_f32_32x32x16_bf16": "df9a44fcea",
        "v_smfmac_i32_16x16x64_i8": "2a5815ec73",
        "v_smfmac_i32_32x32x32_i8": "722ce15085",
        "v_mfma_f64_16x16x4_f64": "fcddb03333",
        "v_mfma_f64_4x4x4_4b_f64": "43c166fc16",
        "v_mfma_f32_16x16x32_bf8_bf8": "4d5b5cd48f",
        "v_mfma_f32_16x16x32_bf8_fp8": "4d5b5cd48f",
        "v_mfma_f32_16x16x32_fp8_bf8": "4d5b5cd48f",
        "v_mfma_f32_16x16x32_fp8_fp8": "4d5b5cd48f",
        "v_mfma_f32_32x32x16_bf8_bf8": "d504b22db9",
        "v_mfma_f32_32x32x16_bf8_fp8": "d504b22db9",
        "v_mfma_f32_32x32x16_fp8_bf8": "d504b22db9",
        "v_mfma_f32_32x32x16_fp8_fp8": "d504b22db9",
        "v_smfmac_f32_16x16x64_bf8_bf8": "2a5815ec73",
        "v_smfmac_f32_16x16x64_bf8_fp8": "2a5815ec73",
        "v_smfmac_f32_16x16x64_fp8_bf8": "2a5815ec73",
        "v_smfmac_f32_16x16x64_fp8_fp8": "2a5815ec73",
        "v_smfmac_f32_32x32x32_bf8_bf8": "722ce15085",
        "v_smfmac_f32_32x32x32_bf8_fp8": "722ce15085",
        "v_smfmac_f32_32x32x32_fp8_bf8": "722ce15085",
        "v_smfmac_f32_32x32x32_fp8_fp8": "722ce15085",
    },
}


def layouts_of(gpu, row):
    for wave in row.waves:
        for matrix in row.matrices:
            if "op_sel" in row.modifiers:
                choices = (0, 4)
            elif row.kind == "swmmac" and matrix == "K":
                choices = range(index_sets(row, wave))
            else:
                choices = (0,)
            for opsel in choices:
                yield layout_csv(row.name, gpu, wave, matrix, opsel)


@pytest.mark.parametrize("gpu", HASHES)
def test_layouts_equal_the_calculators(gpu):
    if gpu == "gfx1201":  # RDNA 4m has the same instructions
        assert [(r.name, r.opcode, r.modifiers) for r in instructions("gfx1170")] == [
            (r.name, r.opcode, r.modifiers) for r in instructions(gpu)
        ]
        for row in instructions("gfx1170"):
            assert [*layouts_of("gfx1170", row)] == [*layouts_of(gpu, row)]
    rows = instructions(gpu)
    found = {row.name: hashlib.sha256("".join(layouts_of(gpu, row)).encode()).hexdigest()[:10] for row in rows}
    assert found == HASHES[gpu]
